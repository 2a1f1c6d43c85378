"""What a user could use instead. A `Peer` turns a row into calls, if it has the operator for it."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from .._native import pointer
from ..dtypes import DType
from ..errors import DTypeError
from .calls import doing_nothing, function
from .memory import Array, Memory
from .rows import EPSILON, HALVES, Case, Operand
from .timing import Call, Contender


class Missing(Exception):
    """Why a peer cannot be used here."""


class Peer:
    """A library, or one way to use it. Making one raises Missing where it cannot be used."""

    name: ClassVar[str]
    #: Is it used without being asked for?
    default: ClassVar[bool] = True

    @property
    def version(self) -> str:
        raise AssertionError(f"{type(self).__name__} has no version")  # pragma: no cover

    def set_threads(self, n: int) -> None:
        """Use so many threads from now on."""

    def contender(self, case: Case, memory: Memory) -> Contender | None:
        """Its calls for a row, or None if it has no such operator."""
        calls = self.calls(case, memory)
        return None if calls is None else Contender(self.name, calls, keep=memory)

    def calls(self, case: Case, memory: Memory) -> list[Call] | None:
        raise AssertionError(f"{type(self).__name__} has no calls")  # pragma: no cover

    def remark(self, case: Case) -> str:
        """What a reader must know to read its time for this row right; "" for nothing."""
        return ""


def _module(name: str, package: str | None = None) -> Any:
    if find_spec(name) is None:
        raise Missing(f"{package or name} is not installed")
    try:
        return import_module(name)
    except (ImportError, OSError) as error:
        raise Missing(f"{package or name} is installed, but importing it fails: {error}") from None


# ---- NumPy -------------------------------------------------------------------------------------------------


class NumPy(Peer):
    """matmul, add, multiply and copyto with their outputs given."""

    name = "numpy"

    def __init__(self) -> None:
        self._pools: Any = None
        self._limited: Any = None
        try:
            self._threadpoolctl = _module("threadpoolctl")
        except Missing:
            self._threadpoolctl = None

    @property
    def version(self) -> str:
        return str(np.__version__)

    def set_threads(self, n: int) -> None:
        if self._threadpoolctl is not None:
            self._pools = self._pools or self._threadpoolctl.ThreadpoolController()
            self._limited = self._pools.limit(limits=n, user_api="blas")

    def calls(self, case: Case, memory: Memory) -> list[Call] | None:
        try:
            return [_NUMPY[case.op](*memory.numpy(which)) for which in range(memory.sets)]
        except DTypeError:  # BF16 needs ml_dtypes
            return None

    def remark(self, case: Case) -> str:
        if case.dtype in HALVES:
            if case.op == "gemm" and case.dtype is DType.F16:
                return "NumPy multiplies F16 matrices in a plain loop, without BLAS"
            if case.op == "gemm":
                return "NumPy multiplies BF16 matrices as F32 copies"
            if case.op in ("add", "mul"):
                return f"NumPy computes {case.dtype} element by element, converting each"
        if case.op == "gemm" and self._threadpoolctl is None:
            return "NumPy's BLAS uses its own number of threads: threadpoolctl is not installed"
        return ""


def _numpy_add_rms_norm(y: Array, residual_out: Array, a: Array, b: Array, weight: Array) -> Call:
    def call() -> None:
        np.add(a, b, out=residual_out)
        wide = residual_out.astype(np.float32 if a.itemsize < 4 else a.dtype, copy=False)
        mean_square = np.mean(wide * wide, axis=-1, keepdims=True)
        y[...] = wide * (1 / np.sqrt(mean_square + EPSILON)) * weight

    return call


_NUMPY: dict[str, Callable[..., Call]] = {
    "gemm": lambda c, a, b: partial(np.matmul, a, b, out=c),
    "add": lambda c, a, b: partial(np.add, a, b, out=c),
    "mul": lambda c, a, b: partial(np.multiply, a, b, out=c),
    "add_rms_norm": _numpy_add_rms_norm,
    "rearrange": lambda y, x: partial(np.copyto, y, x),
}


class NumExpr(Peer):
    """numexpr's compiled expressions, for what it has: add and mul."""

    name = "numexpr"
    _EXPRESSIONS: ClassVar = {"add": "a + b", "mul": "a * b"}

    def __init__(self) -> None:
        self._numexpr = _module("numexpr")

    @property
    def version(self) -> str:
        return str(self._numexpr.__version__)

    def set_threads(self, n: int) -> None:
        self._numexpr.set_num_threads(min(n, self._numexpr.MAX_THREADS))

    def calls(self, case: Case, memory: Memory) -> list[Call] | None:
        if case.op not in self._EXPRESSIONS or case.dtype not in (DType.F32, DType.F64, DType.I32, DType.I64):
            return None
        return [self._call(case.op, *memory.numpy(which)) for which in range(memory.sets)]

    def _call(self, op: str, c: Array, a: Array, b: Array) -> Call:
        kind = self._numexpr.necompiler.getType(a)
        inputs = [("a", kind), ("b", kind)]
        # evaluate() would look it up in its cache at every call
        return partial(self._numexpr.NumExpr(self._EXPRESSIONS[op], inputs), a, b, out=c, ex_uses_vml=False)


# ---- torch -------------------------------------------------------------------------------------------------

_TORCH_NAMES = {
    DType.U8: "uint8",
    DType.I32: "int32",
    DType.F16: "float16",
    DType.BF16: "bfloat16",
    DType.F32: "float32",
    DType.F64: "float64",
}


class Torch(Peer):
    """Eager calls with their outputs given, on the same memory. Only rms_norm allocates its result, because
    it takes no output.
    """

    name = "torch"

    def __init__(self) -> None:
        self._torch = _module("torch")

    @property
    def version(self) -> str:
        return str(self._torch.__version__)

    def set_threads(self, n: int) -> None:
        self._torch.set_num_threads(n)

    def calls(self, case: Case, memory: Memory) -> list[Call] | None:
        if case.dtype not in _TORCH_NAMES:
            return None
        return [self._call(case, *self._tensors(memory, which)) for which in range(memory.sets)]

    def _tensors(self, memory: Memory, which: int) -> Iterator[Any]:
        case = memory.case
        for i in range(len(case.operands)):
            storage, operand = memory.storage(which, i)
            integers = storage if storage.itemsize == 1 else storage.view(f"i{storage.itemsize}")
            flat = self._torch.from_numpy(integers).view(getattr(self._torch, _TORCH_NAMES[case.dtype]))
            yield flat.as_strided(operand.shape, operand.strides)

    def _call(self, case: Case, *operands: Any) -> Call:
        torch = self._torch
        if case.op == "rearrange":
            y, x = operands
            return partial(y.copy_, x)
        if case.op == "add_rms_norm":
            _, residual_out, a, b, weight = operands
            rms_norm = torch.nn.functional.rms_norm

            def call() -> None:
                torch.add(a, b, out=residual_out)
                rms_norm(residual_out, weight.shape, weight, EPSILON)

            return call
        c, a, b = operands
        run = {"gemm": torch.mm if c.ndim == 2 else torch.bmm, "add": torch.add, "mul": torch.mul}[case.op]
        return partial(run, a, b, out=c)


class TorchUpcast(Torch):
    """What users do where a type is slow: F32 copies, their product, rounded back."""

    name = "torch.upcast"

    def calls(self, case: Case, memory: Memory) -> list[Call] | None:
        return super().calls(case, memory) if case.op == "gemm" and case.dtype in HALVES else None

    def _call(self, case: Case, *operands: Any) -> Call:
        c, a, b = operands

        def call() -> None:
            c.copy_(a.float() @ b.float())

        return call


class TorchCompile(Torch):
    """torch.compile of the function a user would write; it needs a C++ compiler."""

    name = "torch.compile"
    default = False

    def __init__(self) -> None:
        super().__init__()
        functional = self._torch.nn.functional

        def add_rms_norm(a: Any, b: Any, weight: Any) -> Any:
            residual = a + b
            return functional.rms_norm(residual, weight.shape, weight, EPSILON), residual

        functions: dict[str, Callable[..., Any]] = {
            "gemm": lambda a, b: a @ b,
            "add": lambda a, b: a + b,
            "mul": lambda a, b: a * b,
            "add_rms_norm": add_rms_norm,
            "rearrange": lambda x: x.contiguous(),
        }
        self._functions = functions
        try:
            with self._torch.inference_mode():
                self._compiled("add")(self._torch.ones(8), self._torch.ones(8))
        except Exception as error:
            raise Missing(f"torch.compile fails here: {str(error).strip().splitlines()[0]}") from None

    def _compiled(self, op: str) -> Any:
        return self._torch.compile(self._functions[op], dynamic=False)

    def contender(self, case: Case, memory: Memory) -> Contender | None:
        found = super().contender(case, memory)
        if found is not None:
            first = found.calls[0]

            def prepare() -> None:
                # Code is made for a number of threads, and after too many shapes of one function no more.
                self._torch.compiler.reset()
                first()

            found.prepare = prepare
        return found

    def _call(self, case: Case, *operands: Any) -> Call:
        compiled = self._compiled(case.op)
        inputs = operands[case.n_outputs :]

        def call() -> None:
            with self._torch.inference_mode():
                compiled(*inputs)

        return call

    def remark(self, case: Case) -> str:
        return "torch.compile allocates its results"


# ---- BLAS libraries ----------------------------------------------------------------------------------------


class Routine(NamedTuple):
    """One row of a BLAS library's table."""

    symbol: str
    scalar: str = "float"  # C type of alpha and beta
    wide_result: bool = False  # C is F32 whatever A and B are


_ROW_MAJOR, _PLAIN, _TRANSPOSED = 101, 111, 112

# order, transpose a, transpose b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc
_GEMM = (
    "void(*)(int, int, int, int, int, int, {scalar}, const void *, int, const void *, int, {scalar}, "
    "void *, int)"
)
# the same, a stride after each leading dimension, and the number of products
_BATCH = (
    "void(*)(int, int, int, int, int, int, {scalar}, const void *, int, int, const void *, int, int, "
    "{scalar}, void *, int, int, int)"
)


def _matrix(operand: Operand) -> tuple[int, int]:
    """How BLAS is told of a matrix: transposed or not, and its leading dimension."""
    row, column = operand.strides[-2:]
    return (_PLAIN, row) if column == 1 else (_TRANSPOSED, column)


class Blas(Peer):
    """A BLAS library at the C level."""

    routines: ClassVar[dict[DType, Routine]]
    batched: ClassVar[dict[DType, Routine]] = {}

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def contender(self, case: Case, memory: Memory) -> Contender | None:
        batch = len(case.shape) == 4
        routine = (self.batched if batch else self.routines).get(case.dtype) if case.op == "gemm" else None
        if routine is None:
            return None
        prototype = (_BATCH if batch else _GEMM).format(scalar=routine.scalar)
        run = function(self._library, routine.symbol, prototype)
        if run is None:
            return None
        wide = np.empty(case.operands[0].shape, np.float32) if routine.wide_result else None
        arguments = [self._arguments(case, memory, which, wide) for which in range(memory.sets)]
        overhead = partial(doing_nothing(prototype), *arguments[0]) if case.small else None
        calls = [partial(run, *one) for one in arguments]
        return Contender(self.name, calls, overhead, keep=(memory, wide))

    def _arguments(self, case: Case, memory: Memory, which: int, wide: Array | None) -> Sequence[Any]:
        *batch, m, k, n = case.shape
        (transpose_a, lda), (transpose_b, ldb) = map(_matrix, case.operands[1:])
        c, a, b = (pointer(memory.address(which, i)) for i in range(3))
        if wide is not None:
            c = pointer(wide.ctypes.data)
        steps = [(operand.strides[0],) if batch else () for operand in case.operands]
        return (
            *(_ROW_MAJOR, transpose_a, transpose_b, m, n, k),
            *(1.0, a, lda, *steps[1], b, ldb, *steps[2]),
            *(0.0, c, n, *steps[0], *batch),
        )

    def remark(self, case: Case) -> str:
        return f"{self.name} writes its {case.dtype} products as F32" if case.dtype in HALVES else ""


def _libraries(distribution: str, pattern: str) -> Iterator[Path]:
    """Files of an installed distribution whose names match."""
    for file in metadata.files(distribution) or ():
        if file.match(pattern):
            yield Path(str(file.locate())).resolve()


class Mkl(Blas):
    """Intel MKL, from the wheel "mkl", with its own calls for halves."""

    name = "mkl"
    routines: ClassVar = {
        DType.F32: Routine("cblas_sgemm"),
        DType.F64: Routine("cblas_dgemm", "double"),
        DType.F16: Routine("cblas_gemm_f16f16f32", wide_result=True),
        DType.BF16: Routine("cblas_gemm_bf16bf16f32", wide_result=True),
    }
    batched: ClassVar = {
        DType.F32: Routine("cblas_sgemm_batch_strided"),
        DType.F64: Routine("cblas_dgemm_batch_strided", "double"),
    }

    def __init__(self) -> None:
        # Its threads spin for 200 ms after their work by default, and every turn of others waits for that.
        os.environ.setdefault("KMP_BLOCKTIME", "10")
        try:
            paths = list(_libraries("mkl", "libmkl_rt.so*"))
        except metadata.PackageNotFoundError:
            raise Missing("mkl is not installed") from None
        if not paths:
            raise Missing("mkl is installed, but without libmkl_rt")
        try:
            super().__init__(ctypes.CDLL(str(paths[0])))
        except OSError as error:
            raise Missing(f"mkl is installed, but cannot be opened: {error}") from None
        self._set_threads = function(self._library, "MKL_Set_Num_Threads", "void(*)(int)")

    @property
    def version(self) -> str:
        return metadata.version("mkl")

    def set_threads(self, n: int) -> None:
        if self._set_threads is not None:
            self._set_threads(n)


class OpenBlas(Blas):
    """OpenBLAS, from the wheel "scipy-openblas32"."""

    name = "openblas"
    routines: ClassVar = {
        DType.F32: Routine("scipy_cblas_sgemm"),
        DType.F64: Routine("scipy_cblas_dgemm", "double"),
        DType.BF16: Routine("scipy_cblas_sbgemm", wide_result=True),
        DType.F16: Routine("scipy_cblas_shgemm", wide_result=True),
    }
    batched: ClassVar = {
        DType.F32: Routine("scipy_cblas_sgemm_batch_strided"),
        DType.F64: Routine("scipy_cblas_dgemm_batch_strided", "double"),
    }

    def __init__(self) -> None:
        # Its threads spin for 100 ms: for so many ticks of the CPU's clock, as a power of 2, now about
        # 2 ms. NumPy has an OpenBLAS of its own, which was loaded before.
        os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "22")
        package = _module("scipy_openblas32", "scipy-openblas32")
        path = Path(package.get_lib_dir(), "lib" + package.get_library() + ".so")
        try:
            super().__init__(ctypes.CDLL(str(path)))
        except OSError as error:
            raise Missing(f"scipy-openblas32 is installed, but cannot be opened: {error}") from None
        self._set_threads = function(self._library, "scipy_openblas_set_num_threads", "void(*)(int)")

    @property
    def version(self) -> str:
        return metadata.version("scipy-openblas32")

    def set_threads(self, n: int) -> None:
        if self._set_threads is not None:
            self._set_threads(n)


# ---- all of them -------------------------------------------------------------------------------------------

#: In the order of the table's columns.
PEERS: dict[str, type[Peer]] = {
    peer.name: peer for peer in (NumPy, Torch, TorchUpcast, TorchCompile, Mkl, OpenBlas, NumExpr)
}


def available(names: Sequence[str] | None) -> tuple[list[Peer], list[str]]:
    """The peers of these names, or all that are used by default, and why others are left out."""
    found, reasons = [], []
    for name, peer in PEERS.items():
        if name in names if names is not None else peer.default:
            try:
                found.append(peer())
            except Missing as reason:
                reasons.append(f"{name} is left out: {reason}")
    return found, reasons
