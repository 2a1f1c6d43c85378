"""The operators as torch's own: importing this registers them as ``torch.ops.infiniop``.

::

    torch.ops.infiniop.gemm(a, b, alpha=1.0, beta=0.0, c=None) -> Tensor
    torch.ops.infiniop.gemm_(c!, a, b, alpha=1.0, beta=0.0)
    torch.ops.infiniop.add(a, b) -> Tensor                    mul alike
    torch.ops.infiniop.add_(c!, a, b)                         mul_ alike
    torch.ops.infiniop.add_rms_norm(a, b, weight, epsilon=1e-5) -> (Tensor, Tensor)
    torch.ops.infiniop.add_rms_norm_(y!, residual_out!, a, b, weight, epsilon=1e-5)
    torch.ops.infiniop.rearrange(x) -> Tensor
    torch.ops.infiniop.rearrange_(y!, x)

They compute what the functions of :mod:`infiniop_py` do and refuse what those refuse. In the first form they
are recorded by autograd, can be differentiated any number of times and in forward mode, and follow
``torch.autocast``; those that write an operand return nothing, and refuse tensors that require grad while
grad mode is on. ``torch.compile`` traces all of them, ``fullgraph=True`` too, and none is fused with what
torch generates.

The kernels for the CPU are in C++, and the first import compiles them against the headers of the torch that
is installed (LibraryError without a C++20 compiler). Calls that they do themselves are in no cache or log of
the package. Recording threads and operators with an implementation registered for the CPU go through Python.

Under autocast ``gemm`` takes its operands, but for F64, as the dtype of autocast; ``add``, ``mul`` and
``add_rms_norm`` convert theirs to the wider of their dtypes (F32 for F16 and BF16). Without it nothing is
converted.

:class:`Linear` and :class:`AddRMSNorm` are modules made of them. After ``import infiniop_py.torch.sharding``
the operators work on DTensors.
"""

from __future__ import annotations

try:
    import torch as _torch  # noqa: F401
except ImportError as _error:
    raise ImportError("infiniop_py.torch needs torch: pip install 'infiniop_py[torch]'") from _error

from . import _library

_library.define()

from ._modules import AddRMSNorm, Linear  # noqa: E402  made of what is registered now

__all__ = ["AddRMSNorm", "Linear"]
