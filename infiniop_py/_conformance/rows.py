"""Rows of the table on a device: memory with guards, a descriptor, runs, and what has to come of them."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from .._native import ffi
from ..dtypes import from_numpy_dtype
from .cases import CHECKS, OPERANDS, Case, Views, build, check_epilogue
from .device import (
    Device,
    Fault,
    NotApplicable,
    Refused,
    at,
    call,
    done,
    download,
    expect,
    free_bytes,
    judge,
    upload,
)
from .layouts import Array, Guarded

_C_NAMES = {
    "gemm": "Gemm",
    "add": "Add",
    "mul": "Mul",
    "add_rms_norm": "AddRMSNorm",
    "rearrange": "Rearrange",
    "gemm_add": "GemmAdd",
    "gemm_mul": "GemmMul",
}
_ALIGNMENT = 256  # of operands in a block, as allocations of their own often have
_GUARD = 64  # bytes on each side of a workspace
_GUARD_BYTE = 0xA5
_LARGE = 1 << 20  # bytes that every device has


def _broadcast(view: Array, shape: tuple[int, ...]) -> Array:
    """The view itself where nothing is broadcast: NumPy would change strides of sizes of 1."""
    return view if view.shape == shape else np.broadcast_to(view, shape)


def c_views(op: str, views: Mapping[str, Array]) -> list[dict[str, Array]]:
    """The operands in ranks and shapes that the C operators take, one for each run: Python's also broadcast,
    and take products of more than one batch dimension."""
    result = dict(views)
    shape = result[OPERANDS[op][0]].shape
    if op in ("add", "mul"):
        result = {name: _broadcast(view, shape) for name, view in result.items()}
    if "d" in result:
        result["d"] = _broadcast(result["d"], shape)
    if not op.startswith("gemm") or len(shape) <= 3:
        return [result]
    for name in ("a", "b"):
        result[name] = _broadcast(result[name], (*shape[:-2], *result[name].shape[-2:]))
    return [{name: view[i] for name, view in result.items()} for i in np.ndindex(shape[:-3])]


class Operator:
    """A descriptor on the current device; made from tensor descriptors that are gone when it is used."""

    def __init__(self, handle: Any, op: str, views: Mapping[str, Array], epsilon: float) -> None:
        self.op, self._name = op, _C_NAMES[op]
        tensors = []
        try:
            for name in OPERANDS[op]:
                view = views[name]
                place = ffi.new("infiniopTensorDescriptor_t *")
                strides = [stride // view.itemsize for stride in view.strides]
                code = from_numpy_dtype(view.dtype).code
                done("infiniopCreateTensorDescriptor", place, view.ndim, list(view.shape), strides, code)
                tensors.append(place[0])
            place = ffi.new("struct InfiniopDescriptor **")
            last = (epsilon,) if op == "add_rms_norm" else ()
            done(f"infiniopCreate{self._name}Descriptor", handle, place, *tensors, *last)
        finally:
            for tensor in tensors:
                call("infiniopDestroyTensorDescriptor", tensor)
        self.desc = place[0]
        self.workspace_size = 0
        if op != "rearrange":
            size = ffi.new("size_t *")
            done(f"infiniopGet{self._name}WorkspaceSize", self.desc, size)
            self.workspace_size = int(size[0])

    def run(
        self, pointers: list[Any], workspace: Any, scalars: tuple[float, float], stream: Any, capturing: bool
    ) -> None:
        """Queue it. What was accepted at create may be refused only while it is captured."""
        head = () if self.op == "rearrange" else (workspace, self.workspace_size)
        taken = scalars[: {"gemm": 2, "gemm_add": 1, "gemm_mul": 1}.get(self.op, 0)]
        function = f"infiniop{self._name}"
        status = call(function, self.desc, *head, *pointers, *taken, stream)
        try:
            judge(function, status)
        except Refused as sentence:
            if capturing:
                raise
            raise Fault(f"{function} refuses to run what create accepted: {sentence}") from None

    def plan(self) -> str:
        """What the backend says of how it runs."""
        text = ffi.new("const char **")
        done("infiniopGetDescriptorPlan", self.desc, text)
        return str(ffi.string(text[0]).decode())

    def destroy(self) -> None:
        done(f"infiniopDestroy{self._name}Descriptor", self.desc)


@contextmanager
def operator(handle: Any, op: str, views: Mapping[str, Array], epsilon: float = 0.0) -> Iterator[Operator]:
    made = Operator(handle, op, views, epsilon)
    try:
        yield made
    finally:
        made.destroy()


def _address(x: Array) -> int:
    return int(x.__array_interface__["data"][0])


class Memory:
    """One block of the device with all operands of a row and a workspace of exactly the size asked for, among
    bytes that nobody may change."""

    def __init__(self, case: Case, operands: dict[str, Guarded], workspace_size: int, odd: bool) -> None:
        self.case, self.operands = case, operands
        self._offsets: dict[int, int] = {}
        self._gaps: list[tuple[int, int, str]] = []
        end = 0
        for name, operand in operands.items():
            if id(operand) not in self._offsets:
                start = -(-end // _ALIGNMENT) * _ALIGNMENT
                self._gaps.append((end, start, f"before the memory of {name}"))
                self._offsets[id(operand)] = start
                end = start + operand.memory.nbytes
        self._workspace = -(-(end + _GUARD) // _ALIGNMENT) * _ALIGNMENT + odd
        self._gaps.append((end, self._workspace, "before the workspace"))
        end = self._workspace + workspace_size
        self._gaps.append((end, end + _GUARD, f"behind the workspace of {workspace_size} bytes"))
        self.size = end + _GUARD
        self._has_workspace = workspace_size > 0
        self._block: Any = None

    @contextmanager
    def on_device(self) -> Iterator[None]:
        if self.size > _LARGE and self.size > (free := free_bytes()):
            raise NotApplicable(f"it takes {self.size} bytes, of which {free} are free")
        with Device.block(self.size) as self._block:
            yield

    def load(self, operands: dict[str, Guarded]) -> Views:
        """Write the operands, of the same layouts as those it was made of; returns what they hold."""
        self._offsets = {
            id(operand): self._offsets[id(old)]
            for old, operand in zip(self.operands.values(), operands.values(), strict=True)
        }
        self.operands = operands
        data = np.full(self.size, _GUARD_BYTE, np.uint8)
        for operand in operands.values():
            start = self._offsets[id(operand)]
            data[start : start + operand.memory.nbytes] = operand.memory
        upload(self._block, data)
        return {name: operand.view.copy() for name, operand in operands.items()}

    def pointers(self, views: Mapping[str, Array], op: str) -> list[Any]:
        """Of each operand's element (0, ..., 0)."""
        found = []
        for name in OPERANDS[op]:
            operand = self.operands[name]
            inside = _address(views[name]) - _address(operand.memory)
            found.append(at(self._block, self._offsets[id(operand)] + inside))
        return found

    @property
    def workspace(self) -> Any:
        return at(self._block, self._workspace) if self._has_workspace else ffi.NULL

    def outputs(self, stream: Any) -> Views:
        """Read everything back on a stream: what the outputs hold. Nothing else may have changed."""
        data = download(self._block, self.size, stream)
        for start, end, where in self._gaps:
            wrong = np.flatnonzero(data[start:end] != _GUARD_BYTE)
            expect(
                not wrong.size, f"{wrong.size} bytes {where} were written, the first is number {wrong[:1]}"
            )
        written = {id(self.operands[name]) for name in self.case.outputs}
        for name, operand in self.operands.items():
            start = self._offsets[id(operand)]
            if id(operand) in written:
                operand.memory[:] = data[start : start + operand.memory.nbytes]
                operand.assert_guards_intact(name)
            else:
                got = data[start : start + operand.memory.nbytes]
                if not np.array_equal(got, operand.memory):
                    operand.memory[:] = got
                    operand.assert_guards_intact(name)
                    operand.assert_unchanged(name)
        return {name: self.operands[name].view.copy() for name in self.case.outputs}


class Row:
    """A row with its descriptor and its memory."""

    def __init__(self, handle: Any, case: Case, *, odd: bool = False) -> None:
        self.case, self._handle, self._odd = case, handle, odd

    @contextmanager
    def ready(self, shared: Operator | None = None) -> Iterator[Row]:
        """Makes what it needs. With `shared`, another row's descriptor of the same problem is used."""
        operands = build(self.case)
        self._runs = c_views(self.case.op, {name: operand.view for name, operand in operands.items()})
        with ExitStack() as stack:
            own = operator(self._handle, self.case.op, self._runs[0], self.case.epsilon)
            self.operator = shared or stack.enter_context(own)
            self._memory = Memory(self.case, operands, self.operator.workspace_size, self._odd)
            stack.enter_context(self._memory.on_device())
            yield self

    def load(self, seed: int = 0) -> None:
        """Write operands to the device, with other numbers for each seed."""
        operands = build(self.case, seed)
        self._runs = c_views(self.case.op, {name: operand.view for name, operand in operands.items()})
        self._old = self._memory.load(operands)

    @property
    def _scalars(self) -> tuple[float, float]:
        return self.case.alpha, self.case.beta

    def run(self, stream: Any = ffi.NULL, *, capturing: bool = False) -> None:
        """Queue what it takes."""
        for views in self._runs:
            pointers = self._memory.pointers(views, self.case.op)
            self.operator.run(pointers, self._memory.workspace, self._scalars, stream, capturing)

    def append_to(self, graph: Any) -> None:
        """Append what it takes to a graph of infiniop.h."""
        for views in self._runs:
            pointers = self._memory.pointers(views, self.case.op)
            operands = ffi.new("void *[]", pointers), len(pointers)
            workspace = self._memory.workspace, self.operator.workspace_size
            done("infiniopGraphAppend", graph, self.operator.desc, *workspace, *operands, *self._scalars)

    def product(self) -> Array | None:
        """What gemm gives for the operands of gemm_add and gemm_mul, where that is what they must give."""
        if self.case.op not in ("gemm_add", "gemm_mul"):
            return None
        product = replace(self.case, op="gemm", beta=0.0)
        operands = {
            ("c" if name == "y" else name): operand
            for name, operand in self._memory.operands.items()
            if name != "d"
        }
        names = OPERANDS["gemm"]
        runs = c_views("gemm", {name: operands[name].view for name in names})
        try:
            with operator(self._handle, "gemm", runs[0]) as gemm:
                memory = Memory(product, {name: operands[name] for name in names}, gemm.workspace_size, False)
                with memory.on_device():
                    memory.load(memory.operands)
                    for views in runs:
                        pointers, scalars = memory.pointers(views, "gemm"), (self.case.alpha, 0.0)
                        gemm.run(pointers, memory.workspace, scalars, ffi.NULL, False)
                    return memory.outputs(ffi.NULL)["c"]
        except Refused as sentence:
            raise Refused(f"gemm, whose bits it has to give, is refused: {sentence}") from None

    def check(self, product: Array | None, stream: Any) -> None:
        """What was written by what was queued on a stream."""
        new = self._memory.outputs(stream)
        if product is not None:
            check_epilogue(self.case, product, self._old, new)
        else:
            CHECKS[self.case.op](self.case, self._old, new)

    def unchanged(self, why: str) -> None:
        """Nothing may have been computed yet."""
        for name, got in self._memory.outputs(ffi.NULL).items():
            expect(got.tobytes() == self._old[name].tobytes(), f"{name} was written {why}")


def run_row(handle: Any, case: Case, own_stream: Any) -> None:
    """Run one row once: half of them on the default stream, half with a workspace at an odd address."""
    chosen = zlib.crc32(case.name.encode())
    stream = own_stream if chosen & 1 else ffi.NULL
    with Row(handle, case, odd=bool(chosen & 2)).ready() as row:
        row.load()
        product = row.product()
        if product is not None:
            row.load()
        row.run(stream)
        row.check(product, stream)
