"""``add_rms_norm``: a residual sum and its RMS norm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .._layout import RESULT, Layout, count, listed, need_one_dtype, need_rank
from .._native_op import Problem, native_op
from ..dtypes import DType
from ..errors import DTypeError, OperandError, ShapeError
from ..graph_operator import GraphOperator, planned
from ..interop import allocate, common_device, need_writable, views
from ._scalars import as_param

_WIDE_WEIGHTS = frozenset((DType.F16, DType.BF16, DType.F32))
_HALVES = frozenset((DType.F16, DType.BF16))

#: (no out, no residual_out) -> the operands' names in messages
_NAMES = {
    (no_out, no_residual): (
        RESULT if no_out else "out",
        RESULT if no_residual else "residual_out",
        "a",
        "b",
        "weight",
    )
    for no_out in (False, True)
    for no_residual in (False, True)
}


def need_weight(dtype: DType, weight: DType) -> None:
    """Refuse a weight of a dtype that does not go with the other operands' one."""
    wanted = _WIDE_WEIGHTS if dtype in _HALVES else frozenset((dtype,))
    if weight not in wanted:
        raise DTypeError(
            f"add_rms_norm: weight is {weight}, but with {dtype} operands it must be "
            f"{' or '.join(sorted(one.name for one in wanted))}"
        )


class AddRMSNorm(GraphOperator):
    """One planned ``residual_out = a + b; y = norm(residual_out) * weight``.

    ``AddRMSNorm(y, residual_out, a, b, weight, epsilon)``. See :func:`add_rms_norm`.
    """

    __slots__ = ()

    name = "add_rms_norm"
    operand_names = ("y", "residual_out", "a", "b", "weight")
    n_outputs = 2
    may_be_output = frozenset(("a", "b"))
    native = native_op("AddRMSNorm", name, operand_names)
    param_names = ("epsilon",)

    @classmethod
    def flops(cls, layouts: tuple[Layout, ...], scalars: tuple[float, ...]) -> int:
        return 5 * count(layouts[0][1])  # the sum, its square, the sum of squares, two products

    def __init__(self, y: Any, residual_out: Any, a: Any, b: Any, weight: Any, epsilon: float = 1e-5) -> None:
        self._take((y, residual_out, a, b, weight), params=(as_param(self.name, "epsilon", epsilon),))

    @classmethod
    def check(cls, layouts: tuple[Layout, ...], names: Sequence[str]) -> Problem:
        *rows, weight = layouts
        need_rank(cls.name, names[2:-1], rows[2:], 1, 8)
        need_one_dtype(cls.name, names[:-1], rows)
        dtype, shape, _ = rows[0]
        need_weight(dtype, weight[0])
        if any(row[1] != shape for row in rows) or weight[1] != shape[-1:]:
            *equal, last = (name for name in names[:-1] if name != RESULT)
            raise ShapeError(
                f"{cls.name}: shapes do not fit: {listed(names, [layout[1] for layout in layouts])}; "
                f"{', '.join(equal)} and {last} must be equal, [..., D], and weight (D,)"
            )
        return Problem(layouts)


@planned(AddRMSNorm)
def add_rms_norm(
    a: Any, b: Any, weight: Any, epsilon: float = 1e-5, *, out: Any = None, residual_out: Any = None
) -> tuple[Any, Any]:
    """Return ``(y, residual)`` with ``residual = a + b`` and ``y = residual / rms(residual) * weight`` over
    the last dimension, where ``rms(x) = sqrt(mean(x * x) + epsilon)`` (RMSNorm: Zhang and Sennrich, 2019).

    `a` and `b` have equal shapes ``[..., D]`` of rank 1 to 8, `weight` is ``[D]``. F16, BF16, F32 or F64;
    the weight has the same dtype, or any of F16, BF16 and F32 when `a` is F16 or BF16. Outer strides are
    free, the last one must be 1. The residual is rounded to its dtype first, and `y` is computed from what
    was rounded, in F32 (F64 for F64), and rounded once: the same as :func:`add` followed by a norm.
    `epsilon` is rounded to F32.

    `y` goes to `out` and the residual to `residual_out` where they are given; each has the shape and dtype
    of `a`, may be exactly `a` or `b`, and must share no other memory with an operand or with the other.
    ShapeError, DTypeError, StrideError, ParamError or DeviceError come before anything is written.

    >>> import numpy as np
    >>> y, residual = add_rms_norm(np.array([[3.0, 0.0]]), np.array([[0.0, 4.0]]), np.ones(2), 0.0)
    >>> residual, np.round(y * 12.5**0.5, 12)
    (array([[3., 4.]]), array([[3., 4.]]))
    """
    return _apply((out, residual_out), (a, b, weight), epsilon, _NAMES[out is None, residual_out is None])


def add_rms_norm_(
    y: Any, residual_out: Any, a: Any, b: Any, weight: Any, epsilon: float = 1e-5
) -> tuple[Any, Any]:
    """Write the results of :func:`add_rms_norm` to `y` and `residual_out`, and return both."""
    names = AddRMSNorm.operand_names
    for name, output in zip(names, (y, residual_out)):
        if output is None:
            raise OperandError(f"add_rms_norm: {name} is None, needs a NumPy array or a Tensor")
    return _apply((y, residual_out), (a, b, weight), epsilon, names)


def _apply(
    given: tuple[Any, Any], inputs: tuple[Any, Any, Any], epsilon: float, names: Sequence[str]
) -> tuple[Any, Any]:
    op = AddRMSNorm.name
    params = (as_param(op, "epsilon", epsilon),)
    y, residual = given
    if y is None and residual is None:
        made = AddRMSNorm.again_to_new(inputs, params)
        if made is not None:
            return made[0], made[1]
    input_views = views(op, names[2:], inputs)
    finish_y = finish_residual = None
    if y is None or residual is None:
        device = common_device(op, names[2:], input_views)
        dtype, shape, _ = input_views[0][1]
        if y is None:
            y, finish_y = allocate(op, inputs, dtype, shape, device)
        if residual is None:
            residual, finish_residual = allocate(op, inputs, dtype, shape, device)
    outputs = (y, residual)
    output_views = views(op, names, outputs)
    if finish_y is not None and finish_residual is not None:
        AddRMSNorm.remember_results(output_views, input_views)
    need_writable(op, names[0], y)
    need_writable(op, names[1], residual)
    AddRMSNorm.launch((*outputs, *inputs), (*output_views, *input_views), params, names=names)
    return (
        y if finish_y is None else finish_y(y),
        residual if finish_residual is None else finish_residual(residual),
    )
