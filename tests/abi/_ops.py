"""Operators, element types and strided memory as a C caller sees them.

`OPS` is the table of the operators; a new operator is a row. `Abi` makes descriptors from `Layout`s and
runs them.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from _library import CPU, D2H, H2D, SUCCESS, Library, pointer

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Dtype:
    """An element type: its pinned number, its size in bytes, and the NumPy type that holds its bits."""

    name: str
    number: int
    size: int
    storage: str

    @property
    def alignment(self) -> int:
        """Bytes; a complex number is aligned like its two parts."""
        return self.size // 2 if self.name.startswith("c") else self.size


DTYPES = {
    row.name: row
    for row in (
        Dtype("byte", 1, 1, "u1"),
        Dtype("bool", 2, 1, "u1"),
        Dtype("i8", 3, 1, "i1"),
        Dtype("i16", 4, 2, "i2"),
        Dtype("i32", 5, 4, "i4"),
        Dtype("i64", 6, 8, "i8"),
        Dtype("u8", 7, 1, "u1"),
        Dtype("u16", 8, 2, "u2"),
        Dtype("u32", 9, 4, "u4"),
        Dtype("u64", 10, 8, "u8"),
        Dtype("f8", 11, 1, "u1"),
        Dtype("f16", 12, 2, "f2"),
        Dtype("f32", 13, 4, "f4"),
        Dtype("f64", 14, 8, "f8"),
        Dtype("c16", 15, 2, "u2"),
        Dtype("c32", 16, 4, "u4"),
        Dtype("c64", 17, 8, "u8"),
        Dtype("c128", 18, 16, "V16"),
        Dtype("bf16", 19, 2, "u2"),
    )
}
FLOATS = ("f16", "bf16", "f32", "f64")
INTEGERS = ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64")
# Distance from 1 to the next larger number.
EPS = {"f16": 2.0**-10, "bf16": 2.0**-7, "f32": 2.0**-23, "f64": 2.0**-52}


def encode(values: npt.ArrayLike, dtype: str) -> Array:
    """`values` as elements of `dtype`, rounded to nearest even; BF16 as its bits."""
    if dtype == "bf16":
        bits = np.asarray(values, np.float32).view(np.uint32)
        odd = (bits >> np.uint32(16)) & np.uint32(1)
        half: Array = ((bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)).astype(np.uint16)
        return half
    return np.asarray(np.asarray(values).astype(DTYPES[dtype].storage))


def decode(elements: Array, dtype: str) -> Array:
    """The values of `elements`; BF16 bits become float32."""
    if dtype == "bf16":
        values: Array = (elements.astype(np.uint32) << np.uint32(16)).view(np.float32)
        return values
    return elements


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Element strides of a compact array."""
    return tuple(int(np.prod(shape[d + 1 :], dtype=object)) for d in range(len(shape)))


@dataclass(frozen=True)
class Layout:
    """Shape, element strides (None: row-major) and dtype of one operand."""

    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None
    dtype: str = "f32"

    @property
    def element_strides(self) -> tuple[int, ...]:
        return row_major(self.shape) if self.strides is None else self.strides

    @property
    def byte_strides(self) -> list[int]:
        """For NumPy; a dimension of size 1 may have a stride that no array could have."""
        size = DTYPES[self.dtype].size
        return [0 if n == 1 else s * size for n, s in zip(self.shape, self.element_strides, strict=True)]

    @property
    def reach(self) -> tuple[int, int]:
        """Lowest and highest element offset from element (0, ..., 0)."""
        if 0 in self.shape:
            return 0, -1
        steps = [(n - 1) * s for n, s in zip(self.shape, self.element_strides, strict=True)]
        return sum(min(0, step) for step in steps), sum(max(0, step) for step in steps)


class Memory:
    """Host memory for one operand, with guard bytes on both sides.

    `pointer` is the address of element (0, ..., 0), `array` a view of the elements with their strides.
    """

    GUARD = 64

    def __init__(self, layout: Layout, values: npt.ArrayLike | None = None) -> None:
        dtype = DTYPES[layout.dtype]
        low, high = layout.reach
        self.layout = layout
        self.bytes: Array = np.full(2 * self.GUARD + (high - low + 1) * dtype.size, 0xA5, np.uint8)
        first = self.GUARD - low * dtype.size
        self.pointer = self.bytes.ctypes.data + first
        self.array: Array = np.ndarray(
            layout.shape,
            dtype.storage,
            buffer=self.bytes.data,
            offset=first if self.bytes.size > 2 * self.GUARD else 0,
            strides=layout.byte_strides,
        )
        if values is not None:
            self.array[...] = encode(np.broadcast_to(np.asarray(values), layout.shape), layout.dtype)

    @property
    def values(self) -> Array:
        """A copy of the values, BF16 as float32."""
        return np.array(decode(self.array, self.layout.dtype))

    def outside(self) -> bytes:
        """Every byte that is not an element: guards and padding. No operator may change them."""
        copy = self.bytes.copy()
        dtype = DTYPES[self.layout.dtype]
        start = self.pointer - self.bytes.ctypes.data
        for index in itertools.product(*map(range, self.layout.shape)):
            steps = sum(i * s for i, s in zip(index, self.layout.byte_strides, strict=True))
            copy[start + steps : start + steps + dtype.size] = 0
        return bytes(copy)


class DeviceMemory:
    """Memory of one operand on the thread's current device, as compact as its layout allows."""

    def __init__(self, lib: Library, host: Memory) -> None:
        self._lib = lib
        self._host = host
        self._block = pointer()
        size = host.bytes.size
        assert lib.infinirtMalloc(ctypes.byref(self._block), size) == SUCCESS, lib.message()
        assert self._block.value is not None
        self.pointer = self._block.value + host.pointer - host.bytes.ctypes.data
        self.upload()

    def upload(self) -> None:
        """Copies the host's bytes over the device's."""
        size = self._host.bytes.size
        status = self._lib.infinirtMemcpy(self._block, self._host.bytes.ctypes.data, size, H2D)
        assert status == SUCCESS, self._lib.message()

    def download(self) -> None:
        """Copies the device's bytes over the host's."""
        size = self._host.bytes.size
        status = self._lib.infinirtMemcpy(self._host.bytes.ctypes.data, self._block, size, D2H)
        assert status == SUCCESS, self._lib.message()

    def free(self) -> None:
        assert self._lib.infinirtFree(self._block) == SUCCESS, self._lib.message()


@dataclass(frozen=True)
class Op:
    """One operator: its name, its name in C functions, and its operands in the order of the create function.

    `legal` is a small problem in F32.
    """

    name: str
    c_name: str
    outputs: tuple[str, ...]
    inputs: tuple[str, ...]
    dtypes: tuple[str, ...]
    legal: Mapping[str, Layout]
    in_place: tuple[tuple[str, str], ...] = ()
    has_workspace: bool = True
    has_epsilon: bool = False
    factors: tuple[str, ...] = ()  # what run takes after the operands

    @property
    def operands(self) -> tuple[str, ...]:
        return self.outputs + self.inputs

    def layouts(self, dtype: str = "f32", /, **changed: Layout) -> dict[str, Layout]:
        """The legal problem in `dtype`, with some operands changed."""
        unknown = set(changed) - set(self.operands)
        assert not unknown, f"{self.name} has no {unknown}"
        legal = {name: Layout(old.shape, old.strides, dtype) for name, old in self.legal.items()}
        return {**legal, **changed}


_MATRIX = Layout((2, 3))
_ELEMENTWISE: dict[str, Any] = {
    "outputs": ("c",),
    "inputs": ("a", "b"),
    "dtypes": FLOATS + INTEGERS,
    "legal": {"c": _MATRIX, "a": _MATRIX, "b": _MATRIX},
    "in_place": (("c", "a"), ("c", "b")),
}
_EPILOGUE: dict[str, Any] = {
    "outputs": ("y",),
    "inputs": ("a", "b", "d"),
    "dtypes": FLOATS,
    "legal": {"y": _MATRIX, "a": Layout((2, 4)), "b": Layout((4, 3)), "d": _MATRIX},
    "factors": ("alpha",),
}

OPS = {
    row.name: row
    for row in (
        Op(
            "gemm",
            "Gemm",
            outputs=("c",),
            inputs=("a", "b"),
            dtypes=FLOATS,
            legal={"c": _MATRIX, "a": Layout((2, 4)), "b": Layout((4, 3))},
            factors=("alpha", "beta"),
        ),
        Op("add", "Add", **_ELEMENTWISE),
        Op("mul", "Mul", **_ELEMENTWISE),
        Op(
            "add_rms_norm",
            "AddRMSNorm",
            outputs=("y", "residual_out"),
            inputs=("a", "b", "weight"),
            dtypes=FLOATS,
            legal={
                **dict.fromkeys(("y", "residual_out", "a", "b"), Layout((3, 4))),
                "weight": Layout((4,)),
            },
            in_place=(("y", "a"), ("y", "b"), ("residual_out", "a"), ("residual_out", "b")),
            has_epsilon=True,
        ),
        Op(
            "rearrange",
            "Rearrange",
            outputs=("y",),
            inputs=("x",),
            dtypes=tuple(DTYPES),
            legal={"y": _MATRIX, "x": _MATRIX},
            has_workspace=False,
        ),
        Op("gemm_add", "GemmAdd", **_EPILOGUE),
        Op("gemm_mul", "GemmMul", **_EPILOGUE),
    )
}


def sizes(values: Sequence[int]) -> Any:
    return (ctypes.c_size_t * max(1, len(values)))(*values)


def signed_sizes(values: Sequence[int]) -> Any:
    return (ctypes.c_ssize_t * max(1, len(values)))(*values)


class Abi:
    """Descriptors and runs for the device that is current when it is made."""

    def __init__(self, lib: Library) -> None:
        self.lib = lib
        self.handle = pointer()
        assert lib.infiniopCreateHandle(ctypes.byref(self.handle)) == SUCCESS, lib.message()

    def close(self) -> None:
        assert self.lib.infiniopDestroyHandle(self.handle) == SUCCESS, self.lib.message()

    def tensor(self, layout: Layout) -> ctypes.c_void_p:
        """A tensor descriptor; the caller destroys it."""
        desc = pointer()
        strides = None if layout.strides is None else signed_sizes(layout.strides)
        status = self.lib.infiniopCreateTensorDescriptor(
            ctypes.byref(desc), len(layout.shape), sizes(layout.shape), strides, DTYPES[layout.dtype].number
        )
        assert status == SUCCESS, f"{layout}: {self.lib.message()}"
        return desc

    def create(
        self, op: Op, layouts: Mapping[str, Layout], epsilon: float = 1e-5
    ) -> tuple[int, ctypes.c_void_p]:
        """Status and operator descriptor; its tensor descriptors are gone when this returns."""
        tensors = [self.tensor(layouts[name]) for name in op.operands]
        desc = pointer()
        scalars = (epsilon,) if op.has_epsilon else ()
        create = self.lib.functions[f"infiniopCreate{op.c_name}Descriptor"]
        status = create(self.handle, ctypes.byref(desc), *tensors, *scalars)
        for tensor in tensors:
            assert self.lib.infiniopDestroyTensorDescriptor(tensor) == SUCCESS
        return status, desc

    def created(self, op: Op, layouts: Mapping[str, Layout], epsilon: float = 1e-5) -> ctypes.c_void_p:
        """The operator descriptor of a legal problem."""
        status, desc = self.create(op, layouts, epsilon)
        assert status == SUCCESS, self.lib.message()
        return desc

    def workspace_size(self, op: Op, desc: ctypes.c_void_p) -> int:
        if not op.has_workspace:
            return 0
        size = ctypes.c_size_t(2**40)
        status = self.lib.functions[f"infiniopGet{op.c_name}WorkspaceSize"](desc, ctypes.byref(size))
        assert status == SUCCESS, self.lib.message()
        return size.value

    def run(
        self,
        op: Op,
        desc: ctypes.c_void_p | int | None,
        pointers: Mapping[str, int | None],
        workspace: Any = None,
        workspace_size: int = 0,
        alpha: float = 1.0,
        beta: float = 0.0,
        stream: Any = None,
    ) -> int:
        """The status of one run."""
        before = (workspace, workspace_size) if op.has_workspace else ()
        after = [{"alpha": alpha, "beta": beta}[factor] for factor in op.factors]
        ordered = [pointers[name] for name in op.operands]
        status: int = self.lib.functions[f"infiniop{op.c_name}"](desc, *before, *ordered, *after, stream)
        return status

    def run_in(
        self, op: Op, desc: ctypes.c_void_p, pointers: Mapping[str, int | None], **scalars: Any
    ) -> int:
        """The status of one run with a workspace of exactly the size asked for, on the current device."""
        size = self.workspace_size(op, desc)
        block = pointer()
        assert self.lib.infinirtMalloc(ctypes.byref(block), size) == SUCCESS, self.lib.message()
        status = self.run(op, desc, pointers, block, size, **scalars)
        assert self.lib.infinirtFree(block) == SUCCESS, self.lib.message()
        return status

    def destroy(self, op: Op, desc: ctypes.c_void_p) -> int:
        status: int = self.lib.functions[f"infiniopDestroy{op.c_name}Descriptor"](desc)
        return status


def current_device(lib: Library) -> tuple[int, int]:
    device, device_id = ctypes.c_int(-1), ctypes.c_int(-1)
    assert lib.infinirtGetDevice(ctypes.byref(device), ctypes.byref(device_id)) == SUCCESS
    return device.value, device_id.value


def example(op: Op, layouts: Mapping[str, Layout], seed: int = 0) -> dict[str, Memory]:
    """Memory for a problem, filled with small integers: few of them sum and multiply exactly."""
    random = np.random.default_rng(seed)
    low = 0 if layouts[op.outputs[0]].dtype.startswith("u") else -3
    return {name: Memory(layout, random.integers(low, 4, layout.shape)) for name, layout in layouts.items()}


def expected(
    op: Op, memory: Mapping[str, Memory], alpha: float = 1.0, beta: float = 0.0, epsilon: float = 1e-5
) -> dict[str, Array]:
    """What the outputs must hold, in float64 (integers in int64), from what the operands hold now."""
    dtype = memory[op.outputs[0]].layout.dtype
    wide = np.int64 if dtype in INTEGERS else np.float64
    if op.name == "rearrange":
        return {"y": memory["x"].array.copy()}
    values = {name: operand.values.astype(wide) for name, operand in memory.items()}
    a, b = values["a"], values["b"]
    if op.name.startswith("gemm"):
        c = values[op.outputs[0]]
        product = a @ b
        product = alpha * np.broadcast_to(product[0] if product.ndim > c.ndim else product, c.shape)
        if op.name == "gemm":
            return {"c": product + (beta * c if beta else 0.0)}
        product = decode(encode(product, dtype), dtype)
        return {"y": product + values["d"] if op.name == "gemm_add" else product * values["d"]}
    if op.name == "add_rms_norm":
        residual = decode(encode(a + b, dtype), dtype).astype(np.float64)
        scale = np.sqrt(np.mean(residual**2, -1, keepdims=True) + np.float64(np.float32(epsilon)))
        return {"y": residual / scale * values["weight"], "residual_out": residual}
    return {"c": a + b if op.name == "add" else a * b}


def assert_result(op: Op, memory: Mapping[str, Memory], wanted: Mapping[str, Array]) -> None:
    """Compares outputs with `wanted`: exactly, but for the norm's y.

    y: the sum of D squares, the division by D, the root and two products in the accumulation type (F64 for
    F64, else F32) are each off by at most eps/2; the final rounding adds eps/2 of the output type.
    """
    for name, want in wanted.items():
        got = memory[name].values
        dtype = memory[name].layout.dtype
        if name == "y" and op.name == "add_rms_norm":
            depth = memory[name].layout.shape[-1]
            accumulate = EPS["f64"] if dtype == "f64" else EPS["f32"]
            relative = (depth + 8) * accumulate / 2 + EPS[dtype] / 2
            np.testing.assert_array_less(
                np.abs(got - want), relative * np.abs(want) + np.finfo(np.float32).tiny
            )
        elif op.name == "rearrange":
            assert memory[name].array.tobytes() == want.tobytes(), (
                f"{op.name}: {name} is not the bits of the source"
            )
        else:
            np.testing.assert_array_equal(
                got, decode(encode(want, dtype), dtype), err_msg=f"{op.name}: {name}"
            )


def run_example(
    abi: Abi, op: Op, layouts: Mapping[str, Layout], device: int = CPU, alpha: float = 1.0, beta: float = 0.0
) -> dict[str, Memory]:
    """Runs a problem on the current device; compares the outputs and the bytes around them."""
    memory = example(op, layouts)
    wanted = expected(op, memory, alpha, beta)
    outside = {name: operand.outside() for name, operand in memory.items()}
    inputs = {name: memory[name].bytes.tobytes() for name in op.inputs}
    desc = abi.created(op, layouts)
    scalars = {"alpha": alpha, "beta": beta}
    if device == CPU:
        pointers: dict[str, int | None] = {name: operand.pointer for name, operand in memory.items()}
        status = abi.run_in(op, desc, pointers, **scalars)
    else:
        remote = {name: DeviceMemory(abi.lib, operand) for name, operand in memory.items()}
        status = abi.run_in(op, desc, {name: block.pointer for name, block in remote.items()}, **scalars)
        for block in remote.values():
            block.download()
            block.free()
    assert status == SUCCESS, abi.lib.message()
    assert abi.destroy(op, desc) == SUCCESS
    assert_result(op, memory, wanted)
    for name, operand in memory.items():
        assert operand.outside() == outside[name], f"{op.name}: bytes around {name} changed"
    for name in op.inputs:
        assert memory[name].bytes.tobytes() == inputs[name], f"{op.name}: input {name} changed"
    return memory
