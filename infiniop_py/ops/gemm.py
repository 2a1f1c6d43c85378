"""``gemm``: matrix products, batched, scaled and added."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from .._layout import RESULT, Layout, Shape, count, need_one_dtype, same_elements
from .._native_op import Problem, native_op
from ..device import CPU
from ..dtypes import DType
from ..errors import ShapeError
from ..graph_operator import GraphOperator, planned, submit_together
from ..interop import allocate, common_device, count_writes, need_writable, views, views3, write_counts
from ..tensor import Tensor, View
from ._products import as_batches, missing_addend, most_batches, product_flops, product_shape
from ._scalars import as_float
from .gemm_add import GemmAdd
from .gemm_mul import GemmMul
from .rearrange import Rearrange

_INPUTS = ("a", "b", "c")
_WITH_OUT = ("out", "a", "b")


class Gemm(GraphOperator):
    """One planned ``c = alpha * a @ b + beta * c``: ``Gemm(c, a, b, alpha, beta)``. See :func:`gemm_`."""

    __slots__ = ()

    name = "gemm"
    operand_names = ("c", "a", "b")
    n_outputs = 1
    native = native_op("Gemm", name, operand_names)
    scalar_names = ("alpha", "beta")
    epilogues: ClassVar = {"add": GemmAdd, "mul": GemmMul}
    keeps_sums = frozenset((DType.F32, DType.F64))

    def __init__(self, c: Any, a: Any, b: Any, alpha: float = 1.0, beta: float = 0.0) -> None:
        scalars = (as_float(self.name, "alpha", alpha), as_float(self.name, "beta", beta))
        self._take((c, a, b), scalars=scalars)

    def __call__(self, alpha: float | None = None, beta: float | None = None) -> Any:
        """Run the call, or record it if this thread records a graph, with these scalars in place of the
        planned ones; return `c`.
        """
        if alpha is None and beta is None:
            self.submit()
            return self.operands[0]
        planned_alpha, planned_beta = self.scalars
        scalars = (
            planned_alpha if alpha is None else as_float(self.name, "alpha", alpha),
            planned_beta if beta is None else as_float(self.name, "beta", beta),
        )
        self._submit_with(scalars)
        return self.operands[0]

    @classmethod
    def check(cls, layouts: tuple[Layout, ...], names: Sequence[str]) -> Problem:
        c, a, b = layouts
        need_one_dtype(cls.name, names, layouts)
        need_shape(names[0], c[1], product_shape(cls.name, a[1], b[1]))
        return as_batches(layouts)

    @classmethod
    def reads_outputs(cls, scalars: tuple[float, ...]) -> bool:
        return scalars[1] != 0

    @classmethod
    def most_runs(cls, layouts: tuple[Layout, ...]) -> int:
        return most_batches(layouts[0][1])

    @classmethod
    def flops(cls, layouts: tuple[Layout, ...], scalars: tuple[float, ...]) -> int:
        c, a, _ = layouts
        return product_flops(c[1], a[1]) + (count(c[1]) if cls.reads_outputs(scalars) else 0)


_again, _again_to_new = Gemm.again, Gemm.again_to_new


class Addend(Rearrange):
    """The copy of the addend to the output that comes before the product."""

    __slots__ = ()

    name = "gemm"
    operand_names = ("out", "c")


def _are_one(x: View, y: View) -> bool:
    return x == y or (x[0] is y[0] and x[2] == y[2] and same_elements(x[1], y[1]))


def need_shape(name: str, shape: Shape, wanted: Shape) -> None:
    """Refuse an output or an addend that has not the shape of the result."""
    if shape != wanted:
        raise ShapeError(
            f"gemm: {name} is {shape}, but the result is {wanted}; outputs are never resized, addends not "
            "broadcast"
        )


@planned(Gemm)
def gemm(a: Any, b: Any, alpha: float = 1.0, beta: float = 0.0, *, c: Any = None, out: Any = None) -> Any:
    """Return ``alpha * a @ b + beta * c``.

    `a` is ``[..., M, K]`` and `b` ``[..., K, N]``; leading dimensions broadcast like NumPy's, and the
    result has the shape of `a` with the last dimension replaced by that of `b`. F16, BF16, F32 or F64, the
    same for all operands. Any strides: a transposed operand is a view and costs no copy. Sums are
    accumulated in F32 (F64 for F64) and rounded once. `alpha` and `beta` are rounded to F32, for F64
    operands too.

    `c` is the addend: it has the result's shape and dtype, is required when `beta` is not 0, is not read
    when it is 0, and is never written. The result is a new row-major array of the inputs' kind (a Tensor if
    one of them is), or `out`, which must have the result's shape and dtype. `out` may be `c` itself; it
    shares no other memory with an operand. ShapeError, DTypeError, StrideError, ParamError or DeviceError
    come before anything is written.

    >>> import numpy as np
    >>> a, b = np.arange(6.0).reshape(2, 3), np.ones((3, 2))
    >>> gemm(a, b)
    array([[ 3.,  3.],
           [12., 12.]])
    >>> gemm(a, b, 2.0, 10.0, c=np.ones((2, 2)))
    array([[16., 16.],
           [34., 34.]])
    """
    scalars = (as_float("gemm", "alpha", alpha), as_float("gemm", "beta", beta))
    adds = scalars[1] != 0
    if c is None:
        if adds:
            raise missing_addend(beta, ", or use gemm_ to add to the output")
        if out is not None:
            return _into(out, a, b, scalars, _WITH_OUT)
        made = _again_to_new((a, b), (), scalars)
        if made is not None:
            return made[0]
    inputs = (a, b) if c is None else (a, b, c)
    input_views = views("gemm", _INPUTS, inputs)
    device = common_device("gemm", _INPUTS, input_views)
    (_, layout_a, at_a), (_, layout_b, at_b), *addend = input_views
    shape = product_shape("gemm", layout_a[1], layout_b[1])
    for _, layout_c, _ in addend:
        need_one_dtype("gemm", ("c", "a"), (layout_c, layout_a))
        need_shape("c", layout_c[1], shape)
    given = RESULT if out is None else "out"
    if out is None:
        out, finish = allocate("gemm", inputs, layout_a[0], shape, device)
        view_out = views("gemm", ("out",), (out,))[0]
        Gemm.remember_results((view_out,), input_views[:2])
        if (
            not adds
            and device is CPU
            and _again((view_out[1], layout_a, layout_b), (view_out[2], at_a, at_b), scalars)
        ):
            return finish(out)
    else:
        finish = None
        view_out = views("gemm", ("out",), (out,))[0]
        need_writable("gemm", "out", out)
    product, names = (view_out, *input_views[:2]), (given, "a", "b")
    if adds and not _are_one(addend[0], view_out):
        call = Gemm.__new__(Gemm)
        call._plan((out, a, b), product, scalars=scalars, names=names)
        copy = Addend.__new__(Addend)
        copy._plan((out, c), (view_out, addend[0]), names=(given, "c"))
        submit_together(copy, call)
    else:
        Gemm.launch((out, a, b), product, scalars=scalars, names=names)
    return out if finish is None else finish(out)


def gemm_(c: Any, a: Any, b: Any, alpha: float = 1.0, beta: float = 0.0) -> Any:
    """Write ``alpha * a @ b + beta * c`` to `c` and return `c`.

    `c` is read only if `beta` is not 0; it may hold anything, NaN included, otherwise. It must have the
    shape and dtype of the result and share no memory with `a` or `b`. Everything else is as in
    :func:`gemm`.

    >>> import numpy as np
    >>> gemm_(np.ones((2, 2)), np.eye(2), np.eye(2), 1.0, 0.5)
    array([[1.5, 0.5],
           [0.5, 1.5]])
    """
    scalars = (as_float("gemm", "alpha", alpha), as_float("gemm", "beta", beta))
    if type(c) is type(a) is type(b) is Tensor and _again(
        (c._layout, a._layout, b._layout), (c._pointer, a._pointer, b._pointer), scalars
    ):
        return c
    return _into(c, a, b, scalars, Gemm.operand_names)


def _into(c: Any, a: Any, b: Any, scalars: tuple[float, float], names: Sequence[str]) -> Any:
    operand_views = views3("gemm", names, c, a, b)
    need_writable("gemm", names[0], c)
    (on_c, layout_c, at_c), (on_a, layout_a, at_a), (on_b, layout_b, at_b) = operand_views
    if on_c is on_a is on_b is CPU and _again((layout_c, layout_a, layout_b), (at_c, at_a, at_b), scalars):
        if write_counts:
            count_writes((c,))
        return c
    launch = Gemm.launch_new if on_c is CPU else Gemm.launch
    launch((c, a, b), operand_views, scalars=scalars, names=names)
    return c
