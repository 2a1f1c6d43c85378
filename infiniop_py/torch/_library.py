"""Schemas, what computes them, and what their results look like."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .. import ops
from ..ops._products import product_shape

#: torch forgets what was registered when this goes.
LIBRARY = torch.library.Library("infiniop", "DEF")

SCHEMAS = {
    "gemm": "(Tensor a, Tensor b, float alpha=1.0, float beta=0.0, Tensor? c=None) -> Tensor",
    "gemm_": "(Tensor(a!) c, Tensor a, Tensor b, float alpha=1.0, float beta=0.0) -> ()",
    "add": "(Tensor a, Tensor b) -> Tensor",
    "add_": "(Tensor(a!) c, Tensor a, Tensor b) -> ()",
    "mul": "(Tensor a, Tensor b) -> Tensor",
    "mul_": "(Tensor(a!) c, Tensor a, Tensor b) -> ()",
    "add_rms_norm": "(Tensor a, Tensor b, Tensor weight, float epsilon=1e-5) -> (Tensor, Tensor)",
    "add_rms_norm_": (
        "(Tensor(a!) y, Tensor(b!) residual_out, Tensor a, Tensor b, Tensor weight, float epsilon=1e-5) -> ()"
    ),
    "rearrange": "(Tensor x) -> Tensor",
    "rearrange_": "(Tensor(a!) y, Tensor x) -> ()",
}


def _gemm(a: Tensor, b: Tensor, alpha: float = 1.0, beta: float = 0.0, c: Tensor | None = None) -> Tensor:
    return ops.gemm(a, b, alpha, beta, c=c)


def _writing(function: Callable[..., Any]) -> Callable[..., None]:
    def kernel(*operands: Any) -> None:
        function(*operands)

    return kernel


def _product(a: Tensor, b: Tensor, alpha: float = 1.0, beta: float = 0.0, c: Tensor | None = None) -> Tensor:
    return a.new_empty(product_shape("gemm", tuple(a.shape), tuple(b.shape)))


def _elementwise(a: Tensor, b: Tensor) -> Tensor:
    return a.new_empty(torch.broadcast_shapes(a.shape, b.shape))


def _norm(a: Tensor, b: Tensor, weight: Tensor, epsilon: float = 1e-5) -> tuple[Tensor, Tensor]:
    return a.new_empty(a.shape), a.new_empty(a.shape)


def _copy(x: Tensor) -> Tensor:
    return x.new_empty(x.shape)


#: What the results look like, for tensors without memory. Those that write an operand have none.
RESULTS: dict[str, Callable[..., Any]] = {
    "gemm": _product,
    "add": _elementwise,
    "mul": _elementwise,
    "add_rms_norm": _norm,
    "rearrange": _copy,
}


def define() -> None:
    """Register all operators."""
    for name, schema in SCHEMAS.items():
        function = _gemm if name == "gemm" else getattr(ops, name)
        writes = name.endswith("_")
        LIBRARY.define(name + schema)
        for key in ("CPU", "CUDA"):
            LIBRARY.impl(name, _writing(function) if writes else function, key)
        result = (lambda *operands: None) if writes else RESULTS[name]
        torch.library.register_fake(f"infiniop::{name}", result, lib=LIBRARY)
