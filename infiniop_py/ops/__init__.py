"""The operators: signature, documentation, output rule and plan of each."""

from __future__ import annotations

from ..interop import as_tensor, knows, stream_order
from ..tensor import operators
from .add import Add, add, add_
from .add_rms_norm import AddRMSNorm, add_rms_norm, add_rms_norm_
from .gemm import Gemm, gemm, gemm_
from .gemm_add import GemmAdd, gemm_add
from .gemm_mul import GemmMul, gemm_mul
from .mul import Mul, mul, mul_
from .rearrange import Rearrange, copy_, rearrange, rearrange_

__all__ = [
    "Add",
    "AddRMSNorm",
    "Gemm",
    "GemmAdd",
    "GemmMul",
    "Mul",
    "Rearrange",
    "add",
    "add_",
    "add_rms_norm",
    "add_rms_norm_",
    "gemm",
    "gemm_",
    "gemm_add",
    "gemm_mul",
    "mul",
    "mul_",
    "rearrange",
    "rearrange_",
]

operators.add = add
operators.add_ = add_
operators.gemm_ = gemm_
operators.mul = mul
operators.mul_ = mul_
operators.gemm = gemm
operators.rearrange_ = rearrange_
operators.copy_ = copy_
operators.as_tensor = as_tensor
operators.knows = knows
operators.stream_order = stream_order
