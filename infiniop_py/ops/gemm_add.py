"""``gemm_add``: matrix products, plus another array."""

from __future__ import annotations

from typing import Any

from .._native_op import native_op
from ..graph_operator import planned
from ._epilogue import GemmEpilogue


class GemmAdd(GemmEpilogue):
    """One planned ``y = alpha * a @ b + d``: ``GemmAdd(y, a, b, d, alpha)``. See :func:`gemm_add`."""

    __slots__ = ()

    name = "gemm_add"
    native = native_op("GemmAdd", name, GemmEpilogue.operand_names)


@planned(GemmAdd)
def gemm_add(a: Any, b: Any, d: Any, alpha: float = 1.0, *, out: Any = None) -> Any:
    """Return ``alpha * a @ b + d``, such as a product with a bias.

    The bits are those of ``add(gemm(a, b, alpha), d)``: the product is rounded to its dtype before `d` is
    added. But it takes no memory and no pass over it. `a`, `b` and `alpha` are as in :func:`gemm`; `d` has
    their dtype, and broadcasts like NumPy's arrays to the result's shape, which it does not enlarge.

    The result is a new row-major array of the inputs' kind (a Tensor if one of them is), or `out`, which
    must have the result's shape and dtype and share no memory with an input. ShapeError, DTypeError,
    StrideError, ParamError or DeviceError come before anything is written.

    >>> import numpy as np
    >>> a, b = np.arange(6.0).reshape(2, 3), np.ones((3, 2))
    >>> gemm_add(a, b, np.array([0.5, 100.0]))
    array([[  3.5, 103. ],
           [ 12.5, 112. ]])
    """
    return GemmAdd.apply(a, b, d, alpha, out)
