"""Derivatives of the operators, made of what has derivatives itself.

For each operator what is kept of a call, and the derivatives by its operands from those by its results;
``d_x`` is that of some number by x.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ._library import LIBRARY

Inputs = tuple[Any, ...]

_HALVES = (torch.float16, torch.bfloat16)


def _keep_gemm(ctx: Any, inputs: Inputs, output: Tensor) -> None:
    a, b, ctx.alpha, ctx.beta, _ = inputs
    ctx.save_for_backward(a, b)


def _gemm(ctx: Any, d_result: Tensor) -> Inputs:
    gemm = torch.ops.infiniop.gemm
    a, b = ctx.saved_tensors
    needs_a, needs_b, *scalars_and_c = ctx.needs_input_grad  # but for trailing defaults
    d_a = d_b = d_c = None
    if needs_a:
        d_a = gemm(d_result, b.mT, ctx.alpha).sum_to_size(a.shape)
    if needs_b and b.ndim == 2:  # one product: what it sums over batches is rounded once
        d_b = gemm(a.flatten(0, -2).mT, d_result.flatten(0, -2), ctx.alpha)
    elif needs_b:
        d_b = gemm(a.mT, d_result, ctx.alpha).sum_to_size(b.shape)
    if any(scalars_and_c):
        d_c = d_result * ctx.beta
    return d_a, d_b, None, None, d_c


def _keep_add(ctx: Any, inputs: Inputs, output: Tensor) -> None:
    ctx.shapes = [x.shape for x in inputs]


def _add(ctx: Any, d_sum: Tensor) -> Inputs:
    return tuple(
        d_sum.sum_to_size(shape) if needs else None for needs, shape in zip(ctx.needs_input_grad, ctx.shapes)
    )


def _keep_mul(ctx: Any, inputs: Inputs, output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _mul(ctx: Any, d_product: Tensor) -> Inputs:
    a, b = ctx.saved_tensors
    mul = torch.ops.infiniop.mul
    return tuple(
        mul(d_product, other).sum_to_size(x.shape) if needs else None
        for needs, x, other in zip(ctx.needs_input_grad, (a, b), (b, a))
    )


def _keep_add_rms_norm(ctx: Any, inputs: Inputs, output: tuple[Tensor, Tensor]) -> None:
    _, _, weight, ctx.epsilon = inputs
    ctx.save_for_backward(output[1], weight)
    ctx.set_materialize_grads(False)


def _add_rms_norm(ctx: Any, d_y: Tensor | None, d_residual: Tensor | None) -> Inputs:
    """With y = r * s * w, s = 1 / sqrt(mean(r * r) + epsilon) and g = w * d_y:
    d_w = sum(d_y * r * s) over the rows, d_r = s * (g - r * s * s * mean(g * r)), and d_r + d_residual is the
    derivative by both of what was added.
    """
    needs_a, needs_b, needs_weight = ctx.needs_input_grad[:3]
    if d_y is None:
        return d_residual, d_residual, None, None
    residual, weight = ctx.saved_tensors
    wide = torch.float32 if residual.dtype in _HALVES else residual.dtype
    r, d = residual.to(wide), d_y.to(wide)
    s = torch.rsqrt((r * r).mean(-1, keepdim=True) + ctx.epsilon)
    d_sum = d_weight = None
    if needs_a or needs_b:
        g = d * weight.to(wide)
        d_sum = s * (g - r * (s * s * (g * r).mean(-1, keepdim=True)))
        d_sum = (d_sum if d_residual is None else d_sum + d_residual).to(residual.dtype)
    if needs_weight:
        d_weight = (d * r * s).sum_to_size(weight.shape).to(weight.dtype)
    return d_sum, d_sum, d_weight, None


def _keep_nothing(ctx: Any, inputs: Inputs, output: Tensor) -> None:
    pass


def _rearrange(ctx: Any, d_copy: Tensor) -> Tensor:
    return d_copy


_FORMULAS: dict[str, tuple[Callable[..., None], Callable[..., Any]]] = {
    "gemm": (_keep_gemm, _gemm),
    "add": (_keep_add, _add),
    "mul": (_keep_mul, _mul),
    "add_rms_norm": (_keep_add_rms_norm, _add_rms_norm),
    "rearrange": (_keep_nothing, _rearrange),
}


def register() -> None:
    """Register the formulas of all operators that return results."""
    for name, (keep, formula) in _FORMULAS.items():
        torch.library.register_autograd(f"infiniop::{name}", formula, setup_context=keep, lib=LIBRARY)
