"""``add``: the sum of two arrays, element by element."""

from __future__ import annotations

from typing import Any

from .._native_op import native_op
from ..graph_operator import planned
from ..tensor import Tensor
from ._elementwise import Elementwise


class Add(Elementwise):
    """One planned ``c = a + b``: ``Add(c, a, b)``. See :func:`add`."""

    __slots__ = ()

    name = "add"
    native = native_op("Add", name, Elementwise.operand_names)


_again, _into = Add.again, Add.into


@planned(Add)
def add(a: Any, b: Any, *, out: Any = None) -> Any:
    """Return ``a + b``, element by element.

    Shapes broadcast like NumPy's. F16, BF16, F32, F64 and all integers of 8 to 64 bits; both operands have
    the same dtype, which is the result's. Floating results are correctly rounded, integers wrap around. Any
    strides.

    The result is a new row-major array of the inputs' kind (a Tensor if one of them is), or `out`, which
    must have the result's shape and dtype. `out` may be exactly `a` or `b`; any other overlap is a
    ParamError. ShapeError, DTypeError, StrideError, ParamError or DeviceError come before anything is
    written.

    >>> import numpy as np
    >>> add(np.ones((2, 1), "f4"), np.arange(3, dtype="f4"))
    array([[1., 2., 3.],
           [1., 2., 3.]], dtype=float32)
    """
    return Add.apply(a, b, out)


def add_(c: Any, a: Any, b: Any) -> Any:
    """Write ``a + b`` to `c` and return `c`: :func:`add` with ``out=c``.

    >>> import numpy as np
    >>> x = np.arange(3)
    >>> add_(x, x, x)
    array([0, 2, 4])
    """
    if type(c) is type(a) is type(b) is Tensor and _again(
        (c._layout, a._layout, b._layout), (c._pointer, a._pointer, b._pointer)
    ):
        return c
    return _into(c, a, b)
