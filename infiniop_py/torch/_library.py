"""Schemas, what computes them, and what their results look like."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import ops
from .._bindings import Binding, compiled
from .._bypass import when_implemented, when_recording
from .._layout import RESULT, broadcast, need_one_dtype
from .._native_op import NATIVE
from ..device import DeviceType, thread
from ..dtypes import DType
from ..graph_operator import OPERATORS
from ..interop import named
from ..interop._torch import from_torch_dtype
from ..ops._products import missing_addend, product_shape
from ..ops.add_rms_norm import AddRMSNorm
from ..ops.gemm import need_shape

#: torch forgets what was registered when this goes.
LIBRARY = torch.library.Library("infiniop", "DEF")

#: The functions of the package, where the kernels in C++ leave calls to them.
PYTHON = torch.library.Library("infiniop_py", "DEF")

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


def _returning(function: Callable[..., Any]) -> Callable[..., Any]:
    def kernel(*operands: Any) -> Any:
        # Autograd has recorded the call, or computes its tangents, if anybody does.
        with torch.no_grad(), torch.autograd.forward_ad._set_fwd_grad_enabled(False):
            return function(*operands)

    return kernel


def _dtype(op: str, name: str, x: Tensor) -> DType:
    with named(op, name):
        return from_torch_dtype(torch, x.dtype)


def _need_one_dtype(op: str, **operands: Tensor | None) -> None:
    given = {name: x for name, x in operands.items() if x is not None}
    need_one_dtype(op, list(given), [(_dtype(op, name, x), (), ()) for name, x in given.items()])


def _product(a: Tensor, b: Tensor, alpha: float = 1.0, beta: float = 0.0, c: Tensor | None = None) -> Tensor:
    _need_one_dtype("gemm", c=c, a=a, b=b)
    if c is None and beta != 0:
        raise missing_addend(beta, ", or use gemm_ to add to the output")
    shape = product_shape("gemm", tuple(a.shape), tuple(b.shape))
    if c is not None:
        need_shape("c", tuple(c.shape), shape)
    return a.new_empty(shape)


def _elementwise(op: str) -> Callable[[Tensor, Tensor], Tensor]:
    def result(a: Tensor, b: Tensor) -> Tensor:
        _need_one_dtype(op, a=a, b=b)
        try:
            shape = torch.broadcast_shapes(a.shape, b.shape)  # which knows of sizes that are symbols
        except RuntimeError:
            broadcast(op, ("a", "b"), [tuple(map(int, x.shape)) for x in (a, b)])
            raise
        return a.new_empty(shape)

    return result


def _norm(a: Tensor, b: Tensor, weight: Tensor, epsilon: float = 1e-5) -> tuple[Tensor, Tensor]:
    inputs = {"a": a, "b": b, "weight": weight}
    of_a, *others = ((_dtype("add_rms_norm", name, x), tuple(x.shape), ()) for name, x in inputs.items())
    AddRMSNorm.check((of_a, of_a, of_a, *others), (RESULT, RESULT, *inputs))
    return a.new_empty(a.shape), a.new_empty(a.shape)


def _copy(x: Tensor) -> Tensor:
    return x.new_empty(x.shape)


#: What the results look like, for tensors without memory; what these refuse is refused where a program is
#: traced. Those that write an operand have none, and refuse when they run.
RESULTS: dict[str, Callable[..., Any]] = {
    "gemm": _product,
    "add": _elementwise("add"),
    "mul": _elementwise("mul"),
    "add_rms_norm": _norm,
    "rearrange": _copy,
}


#: Without what may be replaced at run time, calls inside cost less.
_FLAGS = ("-std=c++20", "-fvisibility=hidden", "-fno-semantic-interposition")


@cache
def _kernels() -> Path:
    """What is registered from C++, compiled."""
    torch_files = Path(torch.__file__).parent
    include, libraries = torch_files / "include", torch_files / "lib"
    return compiled(
        Binding(
            "infiniop_py.torch",
            f"torch {torch.__version__}",
            Path(__file__).with_name("kernels.cc"),
            flags=(*_FLAGS, f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"),
            includes=(include, include / "torch" / "csrc" / "api" / "include"),
            libraries=(libraries / "libc10.so", libraries / "libtorch_cpu.so"),
        )
    )


def _load(path: Path) -> None:
    """Register what is in it, and let it ask Python where only Python knows."""
    kernels = ctypes.CDLL(str(path))
    record, ask_python = kernels.infiniop_torch_record, kernels.infiniop_torch_ask_python
    record.argtypes, ask_python.argtypes = [ctypes.c_bool], [ctypes.c_char_p]
    record.restype = ask_python.restype = None

    def implemented(name: str) -> None:
        ask_python(name.encode())

    for name, op in OPERATORS.items():
        if op.dispatcher().implementation(DeviceType.CPU) is not NATIVE:
            implemented(name)
    when_implemented.append(implemented)
    when_recording.append(record)
    record(thread.recording is not None)


def define() -> None:
    """Register all operators."""
    path = _kernels()
    LIBRARY.define("linear(Tensor x, Tensor weight, Tensor? bias=None) -> Tensor")
    for name, schema in SCHEMAS.items():
        function = _gemm if name == "gemm" else getattr(ops, name)
        writes = name.endswith("_")
        kernel = (_writing if writes else _returning)(function)
        LIBRARY.define(name + schema)
        PYTHON.define(name + schema)
        LIBRARY.impl(name, kernel, "CUDA")
        PYTHON.impl(name, kernel, "CPU")
        result = (lambda *operands: None) if writes else RESULTS[name]
        torch.library.register_fake(f"infiniop::{name}", result, lib=LIBRARY)
    _load(path)
