"""What ``torch.autocast`` does to operands: those of products become its dtype, others that of the widest."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from ._library import LIBRARY

_NARROW = (torch.float16, torch.bfloat16, torch.float32)


def _to_autocast(device: str, x: Tensor) -> Tensor:
    """As torch's own products: F64 is left alone."""
    return x.to(torch.get_autocast_dtype(device)) if x.dtype in _NARROW else x


def _to_widest(*operands: Tensor) -> list[Tensor]:
    dtypes = {x.dtype for x in operands}
    if len(dtypes) == 1 or not all(dtype.is_floating_point for dtype in dtypes):
        return list(operands)
    dtype = reduce(torch.promote_types, dtypes)
    return [x.to(dtype) for x in operands]


def _gemm(
    device: str, a: Tensor, b: Tensor, alpha: float = 1.0, beta: float = 0.0, c: Tensor | None = None
) -> tuple[Any, ...]:
    a, b = _to_autocast(device, a), _to_autocast(device, b)
    return a, b, alpha, beta, None if c is None else _to_autocast(device, c)


def _elementwise(device: str, a: Tensor, b: Tensor) -> tuple[Any, ...]:
    return tuple(_to_widest(a, b))


def _norm(device: str, a: Tensor, b: Tensor, weight: Tensor, epsilon: float = 1e-5) -> tuple[Any, ...]:
    a, b = _to_widest(a, b)
    if a.dtype not in (torch.float16, torch.bfloat16):  # halves are scaled by what the weight is
        weight = weight.to(a.dtype)
    return a, b, weight, epsilon


_RULES: dict[str, Callable[..., tuple[Any, ...]]] = {
    "gemm": _gemm,
    "add": _elementwise,
    "mul": _elementwise,
    "add_rms_norm": _norm,
}


def _kernel(name: str, device: str) -> Callable[..., Any]:
    rule, operator = _RULES[name], getattr(torch.ops.infiniop, name).default

    def kernel(*operands: Any) -> Any:
        converted = rule(device, *operands)
        with torch.autocast(device, enabled=False):
            return operator(*converted)

    return kernel


def register() -> None:
    """Register the rules of all operators that convert operands."""
    for name in _RULES:
        for device in ("cpu", "cuda"):
            LIBRARY.impl(name, _kernel(name, device), f"Autocast{device.upper()}")
