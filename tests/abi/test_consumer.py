"""A program written against the published interface: it knows names and numbers, and nothing of this project.

It loads lib/libinfiniop.so and lib/libinfinirt.so from one folder and writes out what it calls, as ctypes
consumers do.
"""

from __future__ import annotations

import ctypes
import shutil
import threading
from ctypes import POINTER, c_float, c_int, c_int32, c_size_t, c_ssize_t, c_void_p
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _library import Library
from _ops import EPS, Array, decode, encode

F16, F32, BF16 = 12, 13, 19
DTYPES = {"f16": F16, "f32": F32, "bf16": BF16}


class Handle(ctypes.Structure):
    """The public head of a handle."""

    _fields_ = [("device", c_int), ("device_id", c_int)]


class TensorDescriptor(ctypes.Structure):
    """Opaque."""


class OpDescriptor(ctypes.Structure):
    """The public head of an operator descriptor."""

    _fields_ = [("device_type", c_int), ("device_id", c_int)]


HandlePtr, TensorPtr, OpPtr = POINTER(Handle), POINTER(TensorDescriptor), POINTER(OpDescriptor)

OPERATORS: dict[str, tuple[int, list[Any], list[Any]]] = {
    # name: tensors, scalars of create, what run takes after the operands and before the stream
    "Gemm": (3, [], [c_float, c_float]),
    "Add": (3, [], []),
    "Mul": (3, [], []),
    "AddRMSNorm": (5, [c_float], []),
    "Rearrange": (2, [], []),
    "GemmAdd": (4, [], [c_float]),
    "GemmMul": (4, [], [c_float]),
}
RUNTIME: dict[str, list[Any]] = {
    "infinirtInit": [],
    "infinirtGetDeviceCount": [c_int, POINTER(c_int)],
    "infinirtSetDevice": [c_int, c_int],
    "infinirtDeviceSynchronize": [],
    "infinirtMalloc": [POINTER(c_void_p), c_size_t],
    "infinirtFree": [c_void_p],
    "infinirtMemcpy": [c_void_p, c_void_p, c_size_t, c_int],
}


class Consumer:
    """The two libraries of a folder, with the functions it needs."""

    def __init__(self, folder: Path) -> None:
        self.op = ctypes.CDLL(str(folder / "libinfiniop.so"))
        self.rt = ctypes.CDLL(str(folder / "libinfinirt.so"))
        self._bind(self.op, "infiniopCreateHandle", [POINTER(HandlePtr)])
        self._bind(self.op, "infiniopDestroyHandle", [HandlePtr])
        tensor = [POINTER(TensorPtr), c_size_t, POINTER(c_size_t), POINTER(c_ssize_t), c_int]
        self._bind(self.op, "infiniopCreateTensorDescriptor", tensor)
        self._bind(self.op, "infiniopDestroyTensorDescriptor", [TensorPtr])
        for name, (tensors, scalars, factors) in OPERATORS.items():
            create = [HandlePtr, POINTER(OpPtr), *[TensorPtr] * tensors, *scalars]
            self._bind(self.op, f"infiniopCreate{name}Descriptor", create)
            self._bind(self.op, f"infiniopDestroy{name}Descriptor", [OpPtr])
            workspace = [c_void_p, c_size_t] if name != "Rearrange" else []
            self._bind(
                self.op, f"infiniop{name}", [OpPtr, *workspace, *[c_void_p] * tensors, *factors, c_void_p]
            )
            if workspace:
                self._bind(self.op, f"infiniopGet{name}WorkspaceSize", [OpPtr, POINTER(c_size_t)])
        for name, arguments in RUNTIME.items():
            self._bind(self.rt, name, arguments)

    @staticmethod
    def _bind(library: ctypes.CDLL, name: str, arguments: list[Any]) -> None:
        function = library[name]
        function.argtypes, function.restype = arguments, c_int32
        setattr(library, name, function)

    @staticmethod
    def check(status: int) -> None:
        assert status == 0, f"status {status}"


class Tensor:
    """Device memory with a shape and element strides, filled from the host."""

    def __init__(self, consumer: Consumer, host: Array, dtype: str, view: Array | None = None) -> None:
        """`host` is the storage, `view` the part of it that the tensor names (default: all of it)."""
        self.consumer, self.host, self.dtype = consumer, host, dtype
        self.view = host if view is None else view
        self.data = c_void_p()
        consumer.check(consumer.rt.infinirtMalloc(ctypes.byref(self.data), host.nbytes))
        consumer.check(consumer.rt.infinirtMemcpy(self.data, host.ctypes.data, host.nbytes, 1))
        assert self.data.value
        self.pointer = self.data.value + self.view.ctypes.data - host.ctypes.data

    def descriptor(self) -> Any:
        rank, desc = self.view.ndim, TensorPtr()
        shape = (c_size_t * max(rank, 1))(*self.view.shape)
        strides = (c_ssize_t * max(rank, 1))(*(s // self.view.itemsize for s in self.view.strides))
        create = self.consumer.op.infiniopCreateTensorDescriptor
        self.consumer.check(create(ctypes.byref(desc), rank, shape, strides, DTYPES[self.dtype]))
        return desc

    def read(self) -> Array:
        """Copies the memory back; the values of the view."""
        copy = self.consumer.rt.infinirtMemcpy
        self.consumer.check(copy(self.host.ctypes.data, self.data, self.host.nbytes, 2))
        return decode(self.view, self.dtype)

    def free(self) -> None:
        self.consumer.check(self.consumer.rt.infinirtFree(self.data))


def run_op(
    consumer: Consumer,
    name: str,
    tensors: list[Tensor],
    scalars: tuple[float, ...] = (),
    factors: tuple[float, ...] = (),
) -> None:
    """Describe, destroy the tensor descriptors, ask for the workspace, run, destroy: as such programs do."""
    op, handle, desc = consumer.op, HandlePtr(), OpPtr()
    consumer.check(op.infiniopCreateHandle(ctypes.byref(handle)))
    assert (handle.contents.device, handle.contents.device_id) == (0, 0)
    described = [tensor.descriptor() for tensor in tensors]
    create = getattr(op, f"infiniopCreate{name}Descriptor")
    consumer.check(create(handle, ctypes.byref(desc), *described, *scalars))
    for tensor in described:
        consumer.check(op.infiniopDestroyTensorDescriptor(tensor))
    assert (desc.contents.device_type, desc.contents.device_id) == (0, 0)
    workspace, arguments = c_void_p(), []
    if name != "Rearrange":
        size = c_size_t()
        consumer.check(getattr(op, f"infiniopGet{name}WorkspaceSize")(desc, ctypes.byref(size)))
        consumer.check(consumer.rt.infinirtMalloc(ctypes.byref(workspace), size))
        arguments = [workspace, size]
    pointers = [tensor.pointer for tensor in tensors]
    consumer.check(getattr(op, f"infiniop{name}")(desc, *arguments, *pointers, *factors, None))
    consumer.check(consumer.rt.infinirtDeviceSynchronize())
    consumer.check(consumer.rt.infinirtFree(workspace))
    consumer.check(getattr(op, f"infiniopDestroy{name}Descriptor")(desc))
    consumer.check(op.infiniopDestroyHandle(handle))


@pytest.fixture(scope="module")
def consumer(lib: Library, tmp_path_factory: pytest.TempPathFactory) -> Consumer:
    """The libraries copied to lib/ of another folder."""
    folder = tmp_path_factory.mktemp("elsewhere") / "lib"
    folder.mkdir()
    for name in ("libinfiniop.so", "libinfinirt.so"):
        shutil.copy(lib.folder / name, folder)
    made = Consumer(folder)
    made.check(made.rt.infinirtInit())
    count = c_int()
    made.check(made.rt.infinirtGetDeviceCount(0, ctypes.byref(count)))
    assert count.value == 1
    made.check(made.rt.infinirtSetDevice(0, 0))
    return made


class Source:
    """Tensors of one dtype with normal random values, in the layouts a test suite has."""

    def __init__(self, consumer: Consumer, dtype: str, seed: int = 0) -> None:
        self.consumer, self.dtype = consumer, dtype
        self._random = np.random.default_rng(seed)

    def _storage(self, *shape: int) -> Array:
        return encode(self._random.standard_normal(shape), self.dtype)

    def compact(self, *shape: int) -> Tensor:
        return Tensor(self.consumer, self._storage(*shape), self.dtype)

    def padded(self, *shape: int) -> Tensor:
        host = self._storage(*shape[:-1], shape[-1] + 5)
        return Tensor(self.consumer, host, self.dtype, host[..., : shape[-1]])

    def transposed(self, *shape: int) -> Tensor:
        host = self._storage(*shape[::-1])
        return Tensor(self.consumer, host, self.dtype, host.T)

    def broadcast(self, *shape: int) -> Tensor:
        """One row for all rows: stride 0."""
        host = self._storage(shape[-1])
        return Tensor(self.consumer, host, self.dtype, np.broadcast_to(host, shape))


LAYOUTS = ("compact", "padded", "transposed", "broadcast")
OUT_LAYOUTS = ("compact", "padded", "transposed")


def rounding(values: Array, dtype: str) -> Array:
    """Half a unit in the last place at `values`, half the smallest subnormal at least."""
    smallest = {"f16": 2.0**-24, "f32": 2.0**-149, "bf16": 2.0**-133}[dtype]
    return np.maximum(np.abs(values) * EPS[dtype] / 2, smallest / 2)


def assert_gemm(got: Array, a: Array, b: Array, c: Array, alpha: float, beta: float, dtype: str) -> None:
    """|error| <= gamma_{K+2} (|alpha||A||B| + |beta||C|) in F32, and the rounding of the store."""
    a, b, c = (x.astype(np.float64) for x in (a, b, c))
    wanted = alpha * (a @ b) + beta * c
    unit = EPS["f32"] / 2
    steps = a.shape[-1] + 2
    gamma = steps * unit / (1 - steps * unit)
    bound = gamma * (abs(alpha) * (np.abs(a) @ np.abs(b)) + abs(beta) * np.abs(c))
    error = np.abs(got.astype(np.float64) - wanted)
    limit = bound + rounding(np.abs(wanted) + bound, dtype)
    assert (error <= limit).all(), f"error {error.max():g}, {np.nanmax(error / limit):g} of the bound"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout_c", OUT_LAYOUTS)
@pytest.mark.parametrize("layout_b", LAYOUTS)
@pytest.mark.parametrize("layout_a", LAYOUTS)
def test_gemm(consumer: Consumer, layout_a: str, layout_b: str, layout_c: str, dtype: str) -> None:
    source = Source(consumer, dtype)
    a, b = getattr(source, layout_a)(5, 17), getattr(source, layout_b)(17, 9)
    c = getattr(source, layout_c)(5, 9)
    before = decode(c.view.copy(), dtype)
    values = decode(a.view, dtype), decode(b.view, dtype)
    run_op(consumer, "Gemm", [c, a, b], factors=(0.5, 1.5))
    assert_gemm(c.read(), *values, before, 0.5, 1.5, dtype)
    for tensor in (a, b, c):
        tensor.free()


@pytest.mark.parametrize("dtype", DTYPES)
def test_gemm_batched(consumer: Consumer, dtype: str) -> None:
    source = Source(consumer, dtype)
    a, b, c = source.compact(3, 4, 8), source.padded(8, 6), source.padded(3, 4, 6)
    run_op(consumer, "Gemm", [c, a, b], factors=(1.0, 0.0))
    values = decode(a.view, dtype), decode(b.view, dtype)
    assert_gemm(c.read(), *values, np.zeros((3, 4, 6)), 1, 0, dtype)
    for tensor in (a, b, c):
        tensor.free()


def elementwise(name: str, a: Array, b: Array, dtype: str) -> Array:
    """The correctly rounded result, as bits.

    The wide type has at least 2p + 2 bits of significand for the p bits of `dtype`, so rounding twice is
    rounding once.
    """
    wide = np.float32 if dtype != "f32" else np.float64
    x, y = decode(a, dtype).astype(wide), decode(b, dtype).astype(wide)
    return encode(x + y if name == "Add" else x * y, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout_c", OUT_LAYOUTS)
@pytest.mark.parametrize("layout_b", LAYOUTS)
@pytest.mark.parametrize("layout_a", LAYOUTS)
@pytest.mark.parametrize("name", ["Add", "Mul"])
def test_elementwise(
    consumer: Consumer, name: str, layout_a: str, layout_b: str, layout_c: str, dtype: str
) -> None:
    source = Source(consumer, dtype)
    a, b, c = (getattr(source, layout)(7, 19) for layout in (layout_a, layout_b, layout_c))
    wanted = elementwise(name, a.view, b.view, dtype)
    run_op(consumer, name, [c, a, b])
    c.read()
    assert c.view.tobytes() == wanted.tobytes()
    for tensor in (a, b, c):
        tensor.free()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", OUT_LAYOUTS)
@pytest.mark.parametrize("name", ["Add", "Mul"])
def test_elementwise_in_place(consumer: Consumer, name: str, layout: str, dtype: str) -> None:
    for place in ("a", "b", "both"):
        source = Source(consumer, dtype)
        c, other = getattr(source, layout)(7, 19), source.compact(7, 19)
        a, b = {"a": (c, other), "b": (other, c), "both": (c, c)}[place]
        wanted = elementwise(name, a.view, b.view, dtype)
        run_op(consumer, name, [c, a, b])
        c.read()
        assert c.view.tobytes() == wanted.tobytes(), place
        for tensor in (c, other):
            tensor.free()


def assert_norm(y: Array, residual: Array, weight: Array, epsilon: float, dtype: str) -> None:
    """y from the rounded residual: D squares, a division, a root and two products in F32; one rounding."""
    r = residual.astype(np.float64)
    wanted = r / np.sqrt(np.mean(r * r, -1, keepdims=True) + np.float64(np.float32(epsilon))) * weight
    relative = (r.shape[-1] + 8) * EPS["f32"] / 2
    error = np.abs(y.astype(np.float64) - wanted)
    assert (error <= relative * np.abs(wanted) + rounding(wanted * (1 + relative), dtype)).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["compact", "padded", "broadcast"])
@pytest.mark.parametrize("shape", [(24,), (5, 24), (2, 3, 24)], ids=str)
@pytest.mark.parametrize("in_place", [False, True])
def test_add_rms_norm(
    consumer: Consumer, shape: tuple[int, ...], layout: str, dtype: str, in_place: bool
) -> None:
    source = Source(consumer, dtype)
    a = source.padded(*shape) if in_place else getattr(source, layout)(*shape)
    b, weight, y = getattr(source, layout)(*shape), source.compact(24), source.padded(*shape)
    residual = a if in_place else source.compact(*shape)
    wanted = elementwise("Add", a.view, b.view, dtype)
    run_op(consumer, "AddRMSNorm", [y, residual, a, b, weight], scalars=(1e-6,))
    y.read()
    residual.read()
    assert residual.view.tobytes() == wanted.tobytes()
    assert_norm(decode(y.view, dtype), decode(residual.view, dtype), decode(weight.view, dtype), 1e-6, dtype)
    for tensor in {id(t): t for t in (a, b, weight, y, residual)}.values():
        tensor.free()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout_y", OUT_LAYOUTS)
@pytest.mark.parametrize("layout_x", LAYOUTS)
def test_rearrange(consumer: Consumer, layout_x: str, layout_y: str, dtype: str) -> None:
    source = Source(consumer, dtype)
    x, y = getattr(source, layout_x)(4, 7, 9), getattr(source, layout_y)(4, 7, 9)
    run_op(consumer, "Rearrange", [y, x])
    y.read()
    assert y.view.tobytes() == x.view.tobytes()
    for tensor in (x, y):
        tensor.free()


def test_many_threads_run_one_descriptor(consumer: Consumer) -> None:
    """One gemm descriptor, 8 threads, each with memory and a workspace of its own."""
    op, handle, desc, size = consumer.op, HandlePtr(), OpPtr(), c_size_t()
    consumer.check(op.infiniopCreateHandle(ctypes.byref(handle)))
    sets = [
        [Source(consumer, "f32", seed).compact(48, 48) for seed in (3 * i, 3 * i + 1, 3 * i + 2)]
        for i in range(8)
    ]
    described = [tensor.descriptor() for tensor in sets[0]]
    consumer.check(op.infiniopCreateGemmDescriptor(handle, ctypes.byref(desc), *described))
    for tensor in described:
        consumer.check(op.infiniopDestroyTensorDescriptor(tensor))
    consumer.check(op.infiniopDestroyHandle(handle))
    consumer.check(op.infiniopGetGemmWorkspaceSize(desc, ctypes.byref(size)))
    barrier, failures = threading.Barrier(len(sets)), []

    def work(tensors: list[Tensor]) -> None:
        try:
            workspace = c_void_p()
            consumer.check(consumer.rt.infinirtMalloc(ctypes.byref(workspace), size))
            pointers = [tensor.pointer for tensor in tensors]
            barrier.wait()
            for _ in range(200):
                consumer.check(op.infiniopGemm(desc, workspace, size, *pointers, 1.0, 0.0, None))
            consumer.check(consumer.rt.infinirtFree(workspace))
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=work, args=(tensors,)) for tensors in sets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    consumer.check(op.infiniopDestroyGemmDescriptor(desc))
    for c, a, b in sets:
        assert_gemm(c.read(), a.view, b.view, np.zeros((48, 48)), 1, 0, "f32")
        for tensor in (c, a, b):
            tensor.free()
