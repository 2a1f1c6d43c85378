"""The operators inside of JAX's programs, on the CPU: under ``jit``, ``vmap``, ``shard_map`` and ``grad``.

::

    gemm(a, b, alpha=1.0, beta=0.0, *, c=None)     add(a, b)     mul(a, b)
    add_rms_norm(a, b, weight, epsilon=1e-5)       rearrange(x, axes=None)

They compute what the functions of :mod:`infiniop_py` do, bit for bit, and refuse what those refuse, when they
are traced; ``rearrange`` returns ``x.transpose(axes)``. Scalars are Python numbers, not traced. What is no
integer can be differentiated in reverse, any number of times. Under ``vmap`` a call becomes one of more
batches, or rows.

The first use compiles a small source against the headers of the jaxlib that is installed, which takes some
seconds, and keeps the result in ``$XDG_CACHE_HOME/infiniop_py`` (else ``~/.cache/infiniop_py``). Only on the
CPU: for its other devices JAX knows no call of this name.
"""

from __future__ import annotations

try:
    import jax as _jax  # noqa: F401
except ImportError as _error:
    raise ImportError("infiniop_py.jax needs JAX: pip install 'infiniop_py[jax]'") from _error

from ._functions import add, add_rms_norm, gemm, mul, rearrange

__all__ = ["add", "add_rms_norm", "gemm", "mul", "rearrange"]
