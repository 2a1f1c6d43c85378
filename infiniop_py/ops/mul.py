"""``mul``: the product of two arrays, element by element."""

from __future__ import annotations

from typing import Any

from .._native_op import native_op
from ..graph_operator import planned
from ..tensor import Tensor
from ._elementwise import Elementwise


class Mul(Elementwise):
    """One planned ``c = a * b``: ``Mul(c, a, b)``. See :func:`mul`."""

    __slots__ = ()

    name = "mul"
    native = native_op("Mul", name, Elementwise.operand_names)


_again, _into = Mul.again, Mul.into


@planned(Mul)
def mul(a: Any, b: Any, *, out: Any = None) -> Any:
    """Return ``a * b``, element by element.

    Shapes, dtypes, rounding, strides, `out` and errors are those of :func:`add`.

    >>> import numpy as np
    >>> mul(np.full((2, 1), 3, "i4"), np.arange(3, dtype="i4"))
    array([[0, 3, 6],
           [0, 3, 6]], dtype=int32)
    """
    return Mul.apply(a, b, out)


def mul_(c: Any, a: Any, b: Any) -> Any:
    """Write ``a * b`` to `c` and return `c`: :func:`mul` with ``out=c``.

    >>> import numpy as np
    >>> x = np.arange(3)
    >>> mul_(x, x, x)
    array([0, 1, 4])
    """
    if type(c) is type(a) is type(b) is Tensor and _again(
        (c._layout, a._layout, b._layout), (c._pointer, a._pointer, b._pointer)
    ):
        return c
    return _into(c, a, b)
