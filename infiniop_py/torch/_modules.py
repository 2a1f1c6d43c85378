"""Modules made of the operators, in the place of torch's."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

_linear, _add_rms_norm = torch.ops.infiniop.linear.default, torch.ops.infiniop.add_rms_norm.default


class Linear(nn.Linear):
    """``y = x @ weight^T + bias``: :class:`torch.nn.Linear` on this library's product.

    Parameters, their initial values and state dicts are those of torch. `x` is ``[..., in_features]`` and of
    the weight's dtype; the result is ``[..., out_features]``. The bias is added before the one rounding.
    """

    def forward(self, x: Tensor) -> Tensor:
        return _linear(x, self.weight, self.bias)  # type: ignore[no-any-return]


class AddRMSNorm(nn.Module):
    """``residual = x + residual; y = residual / rms(residual) * weight``: a residual connection and the norm
    after it, in one pass.

    `x` and `residual` are ``[..., dim]``, of rank 1 to 8; returned are `y` and the new residual.

    ::

        norm = AddRMSNorm(dim)
        y, residual = norm(block(y), residual)

    in place of ``residual = residual + block(y); y = torch.nn.RMSNorm(dim, eps)(residual)``.
    """

    def __init__(
        self, dim: int, eps: float = 1e-5, device: Any = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self.dim, self.eps = dim, eps
        self.weight = nn.Parameter(torch.ones(dim, device=device, dtype=dtype))

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        return _add_rms_norm(x, residual, self.weight, self.eps)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        return f"{self.dim}, eps={self.eps}"
