"""What the binary elementwise operators share: broadcasting and the output rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from .._layout import MAX_RANK, RESULT, Layout, broadcast, broadcast_to, count, need_one_dtype, need_rank
from .._native_op import Problem
from ..device import CPU
from ..errors import ShapeError
from ..graph_operator import GraphOperator
from ..interop import allocate, common_device, count_writes, need_writable, views, views3, write_counts

_INPUTS = ("a", "b")
_WITH_OUT = ("out", *_INPUTS)
_WITHOUT_OUT = (RESULT, *_INPUTS)


class Elementwise(GraphOperator):
    """An operator ``c = f(a, b)`` on single elements. A subclass is a row: its name and its native
    functions. A module of one adds the signatures and the documentation of :meth:`apply` and :meth:`into`.
    """

    __slots__ = ()

    operand_names = ("c", "a", "b")
    n_outputs = 1
    may_be_output = frozenset(_INPUTS)

    #: The form that writes its first operand: ``into(c, a, b, names of the three in messages)``.
    into: ClassVar[Callable[..., Any]]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.into = staticmethod(_into(cls))

    def __init__(self, c: Any, a: Any, b: Any) -> None:
        self._take((c, a, b))

    @classmethod
    def check(cls, layouts: tuple[Layout, ...], names: Sequence[str]) -> Problem:
        c, a, b = layouts
        if c[:2] == a[:2] == b[:2] and len(c[1]) <= MAX_RANK:
            return Problem(layouts)
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
    def flops(cls, layouts: tuple[Layout, ...], scalars: tuple[float, ...]) -> int:
        return count(layouts[0][1])

    @classmethod
    def apply(cls, a: Any, b: Any, out: Any) -> Any:
        """The functional form: a new result, or `out`."""
        if out is not None:
            return cls.into(out, a, b, _WITH_OUT)
        made = cls.again_to_new((a, b))
        if made is not None:
            return made[0]
        view_a, view_b = views(cls.name, _INPUTS, (a, b))
        device = common_device(cls.name, _INPUTS, (view_a, view_b))
        dtype, shape, _ = view_a[1]
        if view_b[1][1] != shape:
            shape = broadcast(cls.name, _INPUTS, (shape, view_b[1][1]))
        out, finish = allocate(cls.name, (a, b), dtype, shape, device)
        view_out = views(cls.name, ("out",), (out,))[0]
        cls.remember_results((view_out,), (view_a, view_b))
        if device is not CPU:
            cls.launch((out, a, b), (view_out, view_a, view_b), names=_WITHOUT_OUT)
        elif not cls.again((view_out[1], view_a[1], view_b[1]), (view_out[2], view_a[2], view_b[2])):
            cls.launch_new((out, a, b), (view_out, view_a, view_b), names=_WITHOUT_OUT)
        return finish(out)


def _into(cls: type[Elementwise]) -> Callable[..., Any]:
    # What each call needs is bound here once: looking it up costs a small call a tenth of its time.
    again, op = cls.again, cls.name

    def into(c: Any, a: Any, b: Any, names: Sequence[str] = cls.operand_names) -> Any:
        operand_views = views3(op, names, c, a, b)
        need_writable(op, names[0], c)
        (on_c, layout_c, at_c), (on_a, layout_a, at_a), (on_b, layout_b, at_b) = operand_views
        if on_c is on_a is on_b is CPU and again((layout_c, layout_a, layout_b), (at_c, at_a, at_b)):
            if write_counts:
                count_writes((c,))
            return c
        launch = cls.launch_new if on_c is CPU else cls.launch
        launch((c, a, b), operand_views, names=names)
        return c

    return into
