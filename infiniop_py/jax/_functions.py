"""The operators as functions of JAX arrays: what XLA sees of a call, batches, derivatives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from math import prod
from operator import index
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import ops
from .._layout import RESULT, Layout, Shape, broadcast, interned, need_one_dtype, row_major
from .._native_op import create
from ..device import CPU
from ..dtypes import as_dtype
from ..errors import OperandError, ParamError, ShapeError, shown
from ..graph_operator import GraphOperator
from ..ops._products import missing_addend, product_shape
from ..ops._scalars import as_float, as_param
from ._build import TARGET, register

Array = Any

#: Functions that are kept for scalars or axes; of a schedule's there is a new one each step.
_MOST_KEPT = 1 << 10


def _layout(x: Any) -> Layout:
    """That of a row-major array, as XLA's are here."""
    dtype = as_dtype(np.dtype(x.dtype))
    shape = tuple(x.shape)
    return interned(dtype, shape, row_major(shape, dtype.itemsize))


def _call(
    op: type[GraphOperator],
    results: Sequence[jax.ShapeDtypeStruct],
    inputs: Sequence[Array],
    layouts: Sequence[Layout],
    scalars: tuple[float, float, float] = (1.0, 0.0, 0.0),
    addend: Array | None = None,
) -> list[Array]:
    """Call XLA's target. Layouts are those of results and inputs, as the operator is to see them. What it
    refuses is refused here, where a program is traced.
    """
    register()
    names = (RESULT,) * len(results) + op.operand_names[len(results) :]
    problem = op.check(tuple(layouts), names)
    create(op.native, op.name, names, CPU, problem, scalars[2:])
    numbers: list[int] = []
    for dtype, shape, strides in problem.layouts:
        numbers += (dtype.code, len(shape), *shape, *strides)
    offsets = [step for steps in problem.offsets or () for step in steps]
    operands = [*inputs, *([] if addend is None else [addend])]
    call = jax.ffi.ffi_call(
        TARGET,
        results,
        input_output_aliases={} if addend is None else {len(inputs): 0},
    )
    made = call(
        *operands,
        op=op.native.name,
        layouts=np.array(numbers, np.int64),
        offsets=np.array(offsets, np.int64),
        scalars=np.array(scalars, np.float32),
    )
    return list(made)


def _of(shape: Shape, like: Array) -> jax.ShapeDtypeStruct:
    """A result of a call with this operand."""
    it = jax.typeof(like)
    inside: dict[str, Any] = {}
    if not it.sharding.mesh.empty:  # in shard_map: it varies over the axes of the mesh that the operand does
        spec = jax.sharding.PartitionSpec(*[None] * len(shape))
        inside["sharding"] = jax.sharding.NamedSharding(it.sharding.mesh, spec)
        inside["manual_axis_type"] = it.manual_axis_type
    return jax.ShapeDtypeStruct(shape, like.dtype, **inside)


def _varying(x: Array) -> frozenset[str]:
    return jax.typeof(x).manual_axis_type.varying  # type: ignore[no-any-return]


def _alike(*arrays: Any) -> list[Array]:
    """The operands of a call. Inside of shard_map one that is the same on all devices stands in for many, so
    that its derivative is the sum of theirs.
    """
    operands = [jnp.asarray(x) for x in arrays]
    axes = frozenset[str]().union(*map(_varying, operands))
    return [
        jax.lax.pcast(x, tuple(axes - _varying(x)), to="varying") if axes - _varying(x) else x
        for x in operands
    ]


@jax.tree_util.register_static
@dataclass(frozen=True)
class _Shapes:
    """What is kept of operands of which no more is needed."""

    of: tuple[Shape, ...]


def _sum_to(x: Array, shape: Shape) -> Array:
    """`x` summed over the dimensions along which `shape` was broadcast to its own."""
    lead = x.ndim - len(shape)
    along = (*range(lead), *(lead + d for d, size in enumerate(shape) if size == 1 != x.shape[lead + d]))
    return jnp.sum(x, along, dtype=x.dtype).reshape(shape)


def _batched(x: Array, is_batched: bool, rank: int) -> Array:
    """An operand with its batch dimension before `rank` others."""
    if not is_batched:
        return x
    return x.reshape(x.shape[0], *(1,) * (rank + 1 - x.ndim), *x.shape[1:])


def _as_many(x: Array, is_batched: bool, n: int) -> Array:
    return x if is_batched else jnp.broadcast_to(x, (n, *x.shape))


def _rank(x: Array, is_batched: bool) -> int:
    return x.ndim - is_batched


# ---- gemm --------------------------------------------------------------------------------------------------


@lru_cache(_MOST_KEPT)
def _product(alpha: float, beta: float, transposes: tuple[bool, bool]) -> Callable[..., Array]:
    """alpha * a @ b + beta * c, with a and b those that are given, or their transposes."""

    def layout(x: Array, transposed: bool) -> Layout:
        dtype, shape, strides = _layout(x)
        if not transposed:
            return dtype, shape, strides
        return dtype, (*shape[:-2], shape[-1], shape[-2]), (*strides[:-2], strides[-1], strides[-2])

    @jax.custom_batching.custom_vmap
    def product(a: Array, b: Array, *c: Array) -> Array:
        of_a, of_b = layout(a, transposes[0]), layout(b, transposes[1])
        result = _of(product_shape("gemm", of_a[1], of_b[1]), a)
        layouts = (_layout(result), of_a, of_b)
        (made,) = _call(ops.Gemm, [result], [a, b], layouts, (alpha, beta, 0.0), *c)
        return made

    @product.def_vmap
    def in_batches(n: int, is_batched: list[bool], a: Array, b: Array, *c: Array) -> tuple[Array, bool]:
        a_is, b_is = is_batched[:2]
        if not (a_is or b_is):  # the addends alone
            a, a_is = jnp.broadcast_to(a, (n, *a.shape)), True
        rank = max(_rank(a, a_is), _rank(b, b_is))
        addend = [_as_many(x, it_is, n) for x, it_is in zip(c, is_batched[2:])]
        return product(_batched(a, a_is, rank), _batched(b, b_is, rank), *addend), True

    return product  # type: ignore[no-any-return]


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _gemm(alpha: float, beta: float, transposes: tuple[bool, bool], a: Array, b: Array, *c: Array) -> Array:
    return _product(alpha, beta, transposes)(a, b, *c)


def _gemm_forward(
    alpha: float, beta: float, transposes: tuple[bool, bool], a: Array, b: Array, *c: Array
) -> tuple[Array, Any]:
    return _gemm(alpha, beta, transposes, a, b, *c), (a, b, len(c))


def _gemm_backward(
    alpha: float, beta: float, transposes: tuple[bool, bool], kept: Any, d: Array
) -> tuple[Array, ...]:
    """da = alpha * d @ b^T and db = alpha * a^T @ d; of those that are given transposed the transposes."""
    a, b, n_addends = kept
    of_a, of_b = transposes

    def product(x: Array, y: Array, transposed: tuple[bool, bool], shape: Shape) -> Array:
        return _sum_to(_gemm(alpha, 0.0, transposed, x, y), shape)

    d_a = product(b, d, (of_b, True), a.shape) if of_a else product(d, b, (False, not of_b), a.shape)
    if b.ndim == 2 and not of_a:  # one product: what it sums over batches is rounded once
        a, rows = (x.reshape(prod(x.shape[:-1]), x.shape[-1]) for x in (a, d))
    else:
        rows = d
    d_b = product(rows, a, (True, of_a), b.shape) if of_b else product(a, rows, (not of_a, False), b.shape)
    # The product takes beta as F32, whatever it computes in.
    return d_a, d_b, *[d * jnp.asarray(np.float32(beta), d.dtype)] * n_addends


_gemm.defvjp(_gemm_forward, _gemm_backward)


def gemm(a: Array, b: Array, alpha: float = 1.0, beta: float = 0.0, *, c: Array | None = None) -> Array:
    """Return ``alpha * a @ b + beta * c``; see :func:`infiniop_py.gemm`."""
    scalars = as_float("gemm", "alpha", alpha), as_float("gemm", "beta", beta)
    if c is None:
        if scalars[1] != 0:
            raise missing_addend(beta)
        return _gemm(*scalars, (False, False), *_alike(a, b))
    a, b, c = _alike(a, b, c)
    need_one_dtype("gemm", ("c", "a"), (_layout(c), _layout(a)))
    wanted = product_shape("gemm", a.shape, b.shape)
    if c.shape != wanted:
        raise ShapeError(f"gemm: c is {c.shape}, but the result is {wanted}; addends are not broadcast")
    return _gemm(*scalars, (False, False), a, b, *[c] * (scalars[1] != 0))


# ---- add and mul -------------------------------------------------------------------------------------------


def _elementwise(op: type[GraphOperator]) -> Callable[[Array, Array], Array]:
    @jax.custom_batching.custom_vmap
    def function(a: Array, b: Array) -> Array:
        result = _of(broadcast(op.name, ("a", "b"), (a.shape, b.shape)), a)
        (made,) = _call(op, [result], [a, b], [_layout(x) for x in (result, a, b)])
        return made

    @function.def_vmap
    def in_batches(n: int, is_batched: list[bool], a: Array, b: Array) -> tuple[Array, bool]:
        rank = max(_rank(a, is_batched[0]), _rank(b, is_batched[1]))
        return function(*(_batched(x, it_is, rank) for x, it_is in zip((a, b), is_batched))), True

    return function  # type: ignore[no-any-return]


_sum, _product_of_elements = _elementwise(ops.Add), _elementwise(ops.Mul)
_add, _mul = jax.custom_vjp(_sum), jax.custom_vjp(_product_of_elements)
_add.defvjp(
    lambda a, b: (_add(a, b), _Shapes((a.shape, b.shape))),
    lambda shapes, d: tuple(_sum_to(d, shape) for shape in shapes.of),
)
_mul.defvjp(
    lambda a, b: (_mul(a, b), (a, b)),
    lambda kept, d: tuple(_sum_to(_mul(d, other), x.shape) for x, other in zip(kept, reversed(kept))),
)


def add(a: Array, b: Array) -> Array:
    """Return ``a + b``; see :func:`infiniop_py.add`."""
    return _add(*_alike(a, b))


def mul(a: Array, b: Array) -> Array:
    """Return ``a * b``; see :func:`infiniop_py.mul`."""
    return _mul(*_alike(a, b))


# ---- add_rms_norm ------------------------------------------------------------------------------------------


@lru_cache(_MOST_KEPT)
def _norm(epsilon: float) -> Callable[..., tuple[Array, Array]]:
    @jax.custom_batching.custom_vmap
    def function(a: Array, b: Array, weight: Array) -> tuple[Array, Array]:
        layouts = [_layout(x) for x in (a, a, a, b, weight)]
        result = _of(a.shape, a)
        y, residual = _call(ops.AddRMSNorm, [result] * 2, [a, b, weight], layouts, (1.0, 0.0, epsilon))
        return y, residual

    @function.def_vmap
    def in_batches(n: int, is_batched: list[bool], a: Array, b: Array, weight: Array) -> Any:
        a, b = (_as_many(x, it_is, n) for x, it_is in zip((a, b), is_batched))
        if is_batched[2]:  # one weight serves all rows of a call
            made = jax.lax.map(lambda operands: function(*operands), (a, b, weight))
        else:
            made = function(a, b, weight)
        return made, (True, True)

    return function  # type: ignore[no-any-return]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _add_rms_norm(epsilon: float, a: Array, b: Array, weight: Array) -> tuple[Array, Array]:
    return _norm(epsilon)(a, b, weight)


def _norm_forward(epsilon: float, a: Array, b: Array, weight: Array) -> Any:
    y, residual = _add_rms_norm(epsilon, a, b, weight)
    return (y, residual), (residual, weight)


def _norm_backward(epsilon: float, kept: tuple[Array, Array], d: tuple[Array, Array]) -> tuple[Array, ...]:
    """With y = r * s * w, s = 1 / sqrt(mean(r * r) + epsilon) and g = w * d_y:
    d_w = sum(d_y * r * s) over the rows, d_r = s * (g - r * s * s * mean(g * r)), and d_r + d_residual is the
    derivative by both a and b.
    """
    residual, weight = kept
    wide = jnp.float64 if residual.dtype == jnp.float64 else jnp.float32
    r, d_y, d_residual = (x.astype(wide) for x in (residual, *d))
    epsilon = float(np.float32(epsilon))  # which the operator takes
    s = jax.lax.rsqrt((r * r).mean(-1, keepdims=True) + jnp.asarray(epsilon, wide))
    g = d_y * weight.astype(wide)
    d_sum = (s * (g - r * (s * s * (g * r).mean(-1, keepdims=True))) + d_residual).astype(residual.dtype)
    d_weight = _sum_to(d_y * r * s, weight.shape).astype(weight.dtype)
    return d_sum, d_sum, d_weight


_add_rms_norm.defvjp(_norm_forward, _norm_backward)


def add_rms_norm(a: Array, b: Array, weight: Array, epsilon: float = 1e-5) -> tuple[Array, Array]:
    """Return ``(y, residual)``; see :func:`infiniop_py.add_rms_norm`."""
    return _add_rms_norm(as_param("add_rms_norm", "epsilon", epsilon), *_alike(a, b, weight))


# ---- rearrange ---------------------------------------------------------------------------------------------


@lru_cache(_MOST_KEPT)
def _transpose(axes: tuple[int, ...]) -> Callable[[Array], Array]:
    @jax.custom_batching.custom_vmap
    def function(x: Array) -> Array:
        dtype, shape, strides = _layout(x)
        seen = dtype, tuple(shape[d] for d in axes), tuple(strides[d] for d in axes)
        result = _of(seen[1], x)
        (made,) = _call(ops.Rearrange, [result], [x], (_layout(result), seen))
        return made

    @function.def_vmap
    def in_batches(n: int, is_batched: list[bool], x: Array) -> tuple[Array, bool]:
        return _transpose((0, *(d + 1 for d in axes)))(x), True

    return function  # type: ignore[no-any-return]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _rearrange(axes: tuple[int, ...], x: Array) -> Array:
    return _transpose(axes)(x)


_rearrange.defvjp(
    lambda axes, x: (_rearrange(axes, x), None),
    lambda axes, _, d: (_rearrange(tuple(axes.index(d) for d in range(len(axes))), d),),
)


def rearrange(x: Array, axes: Sequence[int] | None = None) -> Array:
    """Return ``x.transpose(axes)``: reversed without `axes`; see :func:`infiniop_py.rearrange`."""
    x = jnp.asarray(x)
    wanted = tuple(range(x.ndim))
    try:
        given = wanted[::-1] if axes is None else tuple(map(index, axes))
    except TypeError:
        raise OperandError(f"rearrange: axes is {shown(axes)}, needs ints") from None
    given = tuple(d + x.ndim if -x.ndim <= d < 0 else d for d in given)
    if tuple(sorted(given)) != wanted:
        raise ParamError(f"rearrange: axes is {given}, needs each of {wanted} once")
    return _rearrange(given, x)
