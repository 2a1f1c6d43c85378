"""The generic implementation of every operator: a native descriptor, cached, run with pointers.

``plan`` finds or creates the descriptor, ``run`` is one native call. Adding an operator adds a
:class:`NativeOp` row beside its Python signature, not code here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

from . import _native
from ._layout import Layout, element_strides, overlap, row_major
from ._native import BYTE_POINTER, NULL, address, cast, check, ffi, lib
from .cache import OpCache
from .device import CPU, Device, device_scope, get_stream, handle, refuse_pickle, release
from .dispatcher import OpImpl
from .errors import ParamError, StrideError
from .tensor import Tensor
from .workspace import Workspace, cpu_workspace, stream_workspace

#: Byte offsets added to the pointers of the operands, one tuple for each run of a descriptor that one call
#: needs.
Offsets = tuple[tuple[int, ...], ...]


class Problem(NamedTuple):
    """One legal call in the form the C operators take."""

    layouts: tuple[Layout, ...]
    offsets: Offsets | None = None  # None: one run, no offsets


class NativeOp(NamedTuple):
    """The four functions of one operator in ``infiniop.h``; those without a workspace have no function for
    its size.
    """

    create: Any
    workspace_size: Any | None
    run: Any
    destroy: Any


def native_op(name: str, *, has_workspace: bool = True) -> NativeOp:
    """The row of the operator called `name` in C names, such as "Gemm"."""
    return NativeOp(
        create=getattr(lib, f"infiniopCreate{name}Descriptor"),
        workspace_size=getattr(lib, f"infiniopGet{name}WorkspaceSize") if has_workspace else None,
        run=getattr(lib, f"infiniop{name}"),
        destroy=getattr(lib, f"infiniopDestroy{name}Descriptor"),
    )


_REARRANGE = native_op("Rearrange", has_workspace=False)


class Call(Protocol):
    """What this module needs of a planned call."""

    name: ClassVar[str]
    n_outputs: ClassVar[int]
    native: ClassVar[NativeOp]
    names: Sequence[str]
    device: Device
    layouts: tuple[Layout, ...]
    pointers: list[Any]
    params: tuple[float, ...]
    scalars: tuple[float, ...]
    plan: Any

    @classmethod
    def cache(cls) -> OpCache: ...

    def problem(self) -> Problem: ...


class Descriptor:
    """A native operator descriptor, destroyed when the last reference to it goes."""

    __slots__ = (
        "_destroy",
        "_head",
        "_run",
        "device",
        "offsets",
        "pointer",
        "workspace_size",
    )

    def __init__(self, op: NativeOp, device: Device, pointer: Any, offsets: Offsets | None) -> None:
        self._destroy = op.destroy
        self._run = op.run
        self.device = device
        self.pointer = pointer
        self.offsets = offsets
        self.workspace_size = 0
        if op.workspace_size is not None:
            out = ffi.new("size_t *")
            check(op.workspace_size(pointer, out))
            self.workspace_size = int(out[0])
        # The first arguments of every run, for the usual case that no workspace is needed.
        self._head = (pointer, NULL, 0) if op.workspace_size is not None else (pointer,)

    def run(
        self, pointers: list[Any], scalars: tuple[float, ...], stream: Any, scratch: Tensor | None
    ) -> None:
        """One native call, or one for each tuple of offsets."""
        arguments = self._head if scratch is None else (self.pointer, scratch._view[2], self.workspace_size)
        if self.offsets is None:
            status = self._run(*arguments, *pointers, *scalars, stream)
            if status:
                raise _native.error(status)
            return
        for shifted in self.shifted(pointers):
            check(self._run(*arguments, *shifted, *scalars, stream))

    def shifted(self, pointers: list[Any]) -> list[list[Any]]:
        """The operands' pointers for each native call."""
        if self.offsets is None:
            return [pointers]
        return [[cast(BYTE_POINTER, p) + step for p, step in zip(pointers, steps)] for steps in self.offsets]

    __reduce__ = refuse_pickle

    def __del__(self, _release: Any = release) -> None:
        _release(self.device, self._destroy, self.pointer)


def create(
    op: NativeOp, name: str, names: Sequence[str], device: Device, problem: Problem, params: Sequence[float]
) -> Descriptor:
    """Create a descriptor; everything that is illegal about shapes, types and strides is refused here."""
    described: list[Any] = []
    try:
        for operand, layout in zip(names, problem.layouts):
            dtype, shape, _ = layout
            strides = element_strides(name, operand, layout)
            out = ffi.new("infiniopTensorDescriptor_t *")
            check(
                lib.infiniopCreateTensorDescriptor(
                    out, len(shape), ffi.new("size_t[]", shape), ffi.new("ptrdiff_t[]", strides), dtype.code
                )
            )
            described.append(out[0])
        made = ffi.new("infiniopGemmDescriptor_t *")  # every operator's is a struct InfiniopDescriptor *
        with device_scope(device):
            check(op.create(handle(device), made, *described, *params))
        return Descriptor(op, device, made[0], problem.offsets)
    finally:
        for one in described:
            lib.infiniopDestroyTensorDescriptor(one)


def plan(call: Call) -> Descriptor:
    """The call's descriptor, from this thread's cache for the operator and the device if it is there."""
    cache = call.cache().get_cache(call.device)
    key = call.layouts + call.params
    descriptor = cache.get(key)
    if descriptor is None:
        problem = call.problem()
        if problem.offsets is not None:
            _refuse_self_overlap(call)
        descriptor = create(call.native, call.name, call.names, call.device, problem, call.params)
        cache.put(key, descriptor)
    return descriptor


# The library checks each run it sees. A call that takes several runs is checked here as a whole before the
# first.


def _refuse_self_overlap(call: Call) -> None:
    for name, (dtype, shape, strides) in zip(call.names[: call.n_outputs], call.layouts):
        source = (dtype, shape, row_major(shape, dtype.itemsize))
        try:
            create(
                _REARRANGE,
                call.name,
                (name, "x"),
                call.device,
                Problem(((dtype, shape, strides), source)),
                (),
            )
        except StrideError:
            raise StrideError(
                f"{call.name}: {name} with shape {shape} has strides of {strides} bytes, under which its "
                "elements overlap "
                "each other, but it is an output"
            ) from None


def refuse_overlap(call: Call) -> None:
    """Refuse a call one of whose outputs shares memory with an input."""
    outputs = range(call.n_outputs)
    for i in outputs:
        for j in range(call.n_outputs, len(call.layouts)):
            need_no_overlap(call, i, call.names[j], call.layouts[j], call.pointers[j])


def need_no_overlap(call: Call, output: int, name: str, layout: Layout, pointer: Any) -> None:
    """Refuse an output of a call that shares memory with the operand `name`."""
    if overlap(call.layouts[output], address(call.pointers[output]), layout, address(pointer)):
        raise ParamError(
            f"{call.name}: {call.names[output]} with shape {call.layouts[output][1]} overlaps {name} with "
            f"shape {layout[1]}; "
            "an output must not share memory with it"
        )


def run(call: Call) -> None:
    """One call of the library. CPU calls need no stream and no current device."""
    descriptor: Descriptor = call.plan
    device, size = descriptor.device, descriptor.workspace_size
    if descriptor.offsets is not None:
        refuse_overlap(call)
    if device is CPU:
        descriptor.run(call.pointers, call.scalars, NULL, cpu_workspace().reserve(size) if size else None)
        return
    with device_scope(device):
        stream = get_stream(device)
        scratch = stream_workspace(stream).reserve(size) if size else None
        descriptor.run(call.pointers, call.scalars, stream.pointer, scratch)


NATIVE = OpImpl(plan, run)


class NativeGraph:
    """A native executor: calls with their pointers, run in one native call."""

    __slots__ = ("device", "length", "pointer")

    def __init__(self, device: Device) -> None:
        self.pointer: Any = None
        self.device = device
        self.length = 0
        out = ffi.new("infiniopGraph_t *")
        with device_scope(device):
            check(lib.infiniopCreateGraph(handle(device), out))
        self.pointer = out[0]

    def append(self, call: Call, scratch: Workspace) -> None:
        """Append a call planned by :data:`NATIVE`, checked like a run of it."""
        descriptor: Descriptor = call.plan
        if descriptor.offsets is not None:
            refuse_overlap(call)
        reserved = scratch.reserve(descriptor.workspace_size, keep=True)
        memory = NULL if reserved is None else reserved._view[2]
        alpha, beta = call.scalars or (1.0, 0.0)
        with device_scope(self.device):
            for pointers in descriptor.shifted(call.pointers):
                operands = ffi.new("void *[]", [cast(_native.VOID_POINTER, p) for p in pointers])
                check(
                    lib.infiniopGraphAppend(
                        self.pointer,
                        descriptor.pointer,
                        memory,
                        descriptor.workspace_size,
                        operands,
                        len(operands),
                        alpha,
                        beta,
                    )
                )
        self.length += 1

    def run(self) -> None:
        """Run all calls in order."""
        if self.device is CPU:
            check(lib.infiniopGraphRun(self.pointer, NULL))
            return
        with device_scope(self.device):
            check(lib.infiniopGraphRun(self.pointer, get_stream(self.device).pointer))

    __reduce__ = refuse_pickle

    def __del__(self, _release: Any = release, _destroy: Any = lib.infiniopDestroyGraph) -> None:
        if self.pointer is not None:
            _release(self.device, _destroy, self.pointer)
