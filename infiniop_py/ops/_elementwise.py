"""What the binary elementwise operators share: broadcasting and the output rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .._layout import RESULT, Layout, broadcast, broadcast_to, need_one_dtype, need_rank
from .._native_op import Problem
from ..errors import ShapeError
from ..graph import GraphOperator
from ..interop import allocate, common_device, need_writable, views

_INPUTS = ("a", "b")
_WITH_OUT = ("out", *_INPUTS)
_WITHOUT_OUT = (RESULT, *_INPUTS)


class Elementwise(GraphOperator):
    """An operator ``c = f(a, b)`` on single elements. A subclass is a row: its name and its native
    functions. A module of one adds the signatures and the documentation of :meth:`apply` and :meth:`apply_`.
    """

    __slots__ = ()

    operand_names = ("c", "a", "b")
    n_outputs = 1

    def __init__(self, c: Any, a: Any, b: Any) -> None:
        self._take((c, a, b))

    @classmethod
    def check(cls, layouts: tuple[Layout, ...], names: Sequence[str]) -> Problem:
        c, a, b = layouts
        need_rank(cls.name, names[1:], (a, b))
        need_one_dtype(cls.name, names, layouts)
        shape = broadcast(cls.name, names[1:], (a[1], b[1]))
        if c[1] != shape:
            raise ShapeError(
                f"{cls.name}: {names[0]} is {c[1]}, but {names[1]} {a[1]} and {names[2]} {b[1]} make "
                f"{shape}; outputs are never resized"
            )
        return Problem((c, broadcast_to(a, shape), broadcast_to(b, shape)))

    @classmethod
    def apply(cls, a: Any, b: Any, out: Any) -> Any:
        """The functional form: a new result, or `out`."""
        if out is not None:
            return cls._into(out, a, b, _WITH_OUT)
        view_a, view_b = views(cls.name, _INPUTS, (a, b))
        device = common_device(cls.name, _INPUTS, (view_a, view_b))
        dtype, shape, _ = view_a[1]
        if view_b[1][1] != shape:
            shape = broadcast(cls.name, _INPUTS, (shape, view_b[1][1]))
        out = allocate(cls.name, (a, b), dtype, shape, device)
        view_out = views(cls.name, ("out",), (out,))[0]
        cls.launch((out, a, b), (view_out, view_a, view_b), names=_WITHOUT_OUT)
        return out

    @classmethod
    def apply_(cls, c: Any, a: Any, b: Any) -> Any:
        """The form that writes its first operand."""
        return cls._into(c, a, b, cls.operand_names)

    @classmethod
    def _into(cls, c: Any, a: Any, b: Any, names: Sequence[str]) -> Any:
        operand_views = views(cls.name, names, (c, a, b))
        need_writable(cls.name, names[0], c)
        cls.launch((c, a, b), operand_views, names=names)
        return c
