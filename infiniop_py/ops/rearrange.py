"""``rearrange``: the same elements in another layout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .._layout import RESULT, Layout, need_one_dtype, need_rank
from .._native import NULL
from .._native_op import REARRANGE, Problem
from ..device import CPU
from ..errors import ShapeError
from ..graph_operator import GraphOperator, planned
from ..interop import allocate, count_writes, need_writable, views, write_counts
from ..tensor import Tensor


class Rearrange(GraphOperator):
    """One planned ``y[...] = x``: ``Rearrange(y, x)``. See :func:`rearrange`."""

    __slots__ = ()

    name = "rearrange"
    operand_names = ("y", "x")
    n_outputs = 1
    native = REARRANGE
    is_copy = True

    def __init__(self, y: Any, x: Any) -> None:
        self._take((y, x))

    @classmethod
    def check(cls, layouts: tuple[Layout, ...], names: Sequence[str]) -> Problem:
        y, x = layouts
        need_rank(cls.name, names[1:], (x,))
        need_one_dtype(cls.name, names, layouts)
        if y[1] != x[1]:
            raise ShapeError(
                f"{cls.name}: {names[0]} is {y[1]}, {names[1]} is {x[1]}; the shapes must be equal"
            )
        return Problem(layouts)

    @classmethod
    def flops(cls, layouts: tuple[Layout, ...], scalars: tuple[float, ...]) -> int:
        return 0


class Copy(Rearrange):
    """Rearrange in the words of ``Tensor.copy_``."""

    __slots__ = ()

    name = "copy_"
    operand_names = ("destination", "source")


@planned(Rearrange)
def rearrange(x: Any, *, out: Any = None) -> Any:
    """Return the elements of `x` in row-major order, or copied to `out`, whatever its strides.

    Rank 0 to 16, any strides, every dtype; the bits are moved unchanged. The result is a new array of the
    kind of `x`, or `out`, which must have the same shape and dtype, and must not share memory with `x`.
    Transposed, sliced and broadcast views are inputs like any other, so splitting heads is one call::

        heads = rearrange(x.reshape(tokens, heads, width).transpose(1, 0, 2))

    ShapeError, DTypeError, StrideError, ParamError or DeviceError come before anything is written.

    >>> import numpy as np
    >>> y = rearrange(np.arange(6).reshape(2, 3).T)
    >>> y.flags.c_contiguous, y.tolist()
    (True, [[0, 3], [1, 4], [2, 5]])
    """
    if out is not None:
        return _into(out, x, ("out", "x"))
    made = _again_to_new((x,))
    if made is not None:
        return made[0]
    (view,) = views("rearrange", ("x",), (x,))
    device, (dtype, shape, _), _ = view
    out, finish = allocate("rearrange", (x,), dtype, shape, device)
    (view_out,) = views("rearrange", ("out",), (out,))
    Rearrange.remember_results((view_out,), (view,))
    if device is not CPU:
        Rearrange.launch((out, x), (view_out, view), names=(RESULT, "x"))
    elif not _again((view_out[1], view[1]), (view_out[2], view[2], NULL)):
        Rearrange.launch_new((out, x), (view_out, view), names=(RESULT, "x"))
    return finish(out)


def rearrange_(y: Any, x: Any) -> Any:
    """Copy the elements of `x` to `y` and return `y`: :func:`rearrange` with ``out=y``.

    >>> import numpy as np
    >>> rearrange_(np.zeros((2, 2)), np.ones((2, 2)))
    array([[1., 1.],
           [1., 1.]])
    """
    return _into(y, x, Rearrange.operand_names)


_again, _again_to_new = Rearrange.again, Rearrange.again_to_new


def _into(y: Any, x: Any, names: Sequence[str]) -> Any:
    operand_views = views("rearrange", names, (y, x))
    need_writable("rearrange", names[0], y)
    (on_y, layout_y, at_y), (on_x, layout_x, at_x) = operand_views
    if on_y is on_x is CPU and _again((layout_y, layout_x), (at_y, at_x, NULL)):
        if write_counts:
            count_writes((y,))
        return y
    launch = Rearrange.launch_new if on_y is CPU else Rearrange.launch
    launch((y, x), operand_views, names=names)
    return y


def copy_(destination: Tensor, source: Any) -> None:
    """What ``Tensor.copy_`` does on one device, once shapes, dtypes and writability are known to fit."""
    view = source._view if type(source) is Tensor else views(Copy.name, ("source",), (source,))[0]
    Copy.launch((destination, source), (destination._view, view))
