"""What the operators share that end a matrix product with an elementwise operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .._layout import RESULT, Layout, Shape, broadcast_to, count, need_one_dtype
from .._native_op import Problem
from ..errors import ShapeError
from ..graph_operator import GraphOperator
from ..interop import allocate, common_device, need_writable, views
from ._products import as_batches, most_batches, product_flops, product_shape
from ._scalars import as_float

_INPUTS = ("a", "b", "d")


class GemmEpilogue(GraphOperator):
    """An operator ``y = f(alpha * a @ b, d)``, f on single elements. A subclass is a row: its name and its
    native functions. A module of one adds the signature and the documentation of :meth:`apply`.
    """

    __slots__ = ()

    operand_names = ("y", "a", "b", "d")
    n_outputs = 1
    scalar_names = ("alpha",)

    def __init__(self, y: Any, a: Any, b: Any, d: Any, alpha: float = 1.0) -> None:
        self._take((y, a, b, d), scalars=(as_float(self.name, "alpha", alpha),))

    def __call__(self, alpha: float | None = None) -> Any:
        """Run the call, or record it if this thread records a graph, with this scalar in place of the
        planned one; return `y`.
        """
        if alpha is None:
            self.submit()
        else:
            self._submit_with((as_float(self.name, "alpha", alpha),))
        return self.operands[0]

    @classmethod
    def check(cls, layouts: tuple[Layout, ...], names: Sequence[str]) -> Problem:
        y, a, b, d = layouts
        need_one_dtype(cls.name, names, layouts)
        shape = product_shape(cls.name, a[1], b[1])
        if y[1] != shape:
            raise ShapeError(
                f"{cls.name}: {names[0]} is {y[1]}, but the result is {shape}; outputs are never resized"
            )
        _need_broadcast(cls.name, d[1], shape)
        return as_batches((y, a, b, broadcast_to(d, shape)))

    @classmethod
    def most_runs(cls, layouts: tuple[Layout, ...]) -> int:
        return most_batches(layouts[0][1])

    @classmethod
    def flops(cls, layouts: tuple[Layout, ...], scalars: tuple[float, ...]) -> int:
        y, a, _, _ = layouts
        return product_flops(y[1], a[1]) + count(y[1])

    @classmethod
    def apply(cls, a: Any, b: Any, d: Any, alpha: float, out: Any) -> Any:
        """The functional form: a new result, or `out`."""
        scalars = (as_float(cls.name, "alpha", alpha),)
        if out is None:
            made = cls.again_to_new((a, b, d), (), scalars)
            if made is not None:
                return made[0]
        input_views = views(cls.name, _INPUTS, (a, b, d))
        device = common_device(cls.name, _INPUTS, input_views)
        finish = None
        if out is None:
            layout_a, layout_b, layout_d = (view[1] for view in input_views)
            shape = product_shape(cls.name, layout_a[1], layout_b[1])
            _need_broadcast(cls.name, layout_d[1], shape)  # before a result of that shape is made
            out, finish = allocate(cls.name, (a, b, d), layout_a[0], shape, device)
        names = ("out" if finish is None else RESULT, *_INPUTS)
        view_out = views(cls.name, ("out",), (out,))[0]
        if finish is None:
            need_writable(cls.name, "out", out)
        else:
            cls.remember_results((view_out,), input_views)
        cls.launch((out, a, b, d), (view_out, *input_views), scalars=scalars, names=names)
        return out if finish is None else finish(out)


def _need_broadcast(op: str, shape: Shape, wanted: Shape) -> None:
    lead = len(wanted) - len(shape)
    if lead < 0 or any(size not in (1, want) for size, want in zip(shape, wanted[lead:])):
        raise ShapeError(
            f"{op}: d is {shape}, which does not broadcast to the result, {wanted}; sizes must be equal or "
            "1, from the last dimension on"
        )
