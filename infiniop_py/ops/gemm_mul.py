"""``gemm_mul``: matrix products, times another array."""

from __future__ import annotations

from typing import Any

from .._native_op import native_op
from ..graph_operator import planned
from ._epilogue import GemmEpilogue


class GemmMul(GemmEpilogue):
    """One planned ``y = (alpha * a @ b) * d``: ``GemmMul(y, a, b, d, alpha)``. See :func:`gemm_mul`."""

    __slots__ = ()

    name = "gemm_mul"
    native = native_op("GemmMul", name, GemmEpilogue.operand_names)


@planned(GemmMul)
def gemm_mul(a: Any, b: Any, d: Any, alpha: float = 1.0, *, out: Any = None) -> Any:
    """Return ``(alpha * a @ b) * d``, the last product element by element, such as one with a scale.

    The bits are those of ``mul(gemm(a, b, alpha), d)``: the product is rounded to its dtype before it is
    multiplied by `d`. Everything else is as in :func:`gemm_add`.

    >>> import numpy as np
    >>> a, b = np.arange(6.0).reshape(2, 3), np.ones((3, 2))
    >>> gemm_mul(a, b, np.array([[1.0], [10.0]]))
    array([[  3.,   3.],
           [120., 120.]])
    """
    return GemmMul.apply(a, b, d, alpha, out)
