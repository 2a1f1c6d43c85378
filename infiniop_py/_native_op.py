"""The generic implementation of every operator: a native descriptor, cached, run with pointers.

``plan`` finds or creates the descriptor, ``run`` is one native call. Adding an operator adds a
:class:`NativeOp` row beside its Python signature, not code here.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from . import _native
from ._layout import RESULT, Layout, Shape, element_strides, overlap, row_major, same_elements
from ._log import logger
from ._native import BYTE_POINTER, NULL, address, cast, check, ffi, last_message, lib, owning, owning_pointer
from .cache import OpCache
from .device import CPU, Device, Stream, get_stream, handle, refuse_pickle
from .dispatcher import OpImpl
from .errors import InfiniopError, ParamError, StrideError, from_status
from .interop import one_stream, stream_order
from .workspace import cpu_workspace, stream_workspace

#: Byte offsets added to the pointers of the operands, one tuple for each run of a descriptor that one call
#: needs.
Offsets = tuple[tuple[int, ...], ...]


class Problem(NamedTuple):
    """One legal call in the form the C operators take."""

    layouts: tuple[Layout, ...]
    offsets: Offsets | None = None  # None: one run, no offsets


class NativeOp(NamedTuple):
    """One operator in ``infiniop.h``; its names are the words of the library's messages."""

    name: str
    operand_names: tuple[str, ...]
    has_workspace: bool
    run: Any
    place: Callable[[], Any]  # for a descriptor

    @property
    def direct(self) -> Callable[[Any, Any, Any, Any], int] | None:
        """One run on the CPU, with alpha 1 and beta 0 where there are such, as a function of
        ``Descriptor.direct`` and three pointers, which returns its status: of the operands or, where these
        are two, of them and NULL. None for operators of more.
        """
        if len(self.operand_names) == 3:
            return _run3  # type: ignore[no-any-return]
        return None if self.has_workspace else self.run  # with a stream at the end


def native_op(
    c_name: str, name: str, operand_names: tuple[str, ...], *, has_workspace: bool = True
) -> NativeOp:
    """The row of the operator that is called `c_name` in C names, such as "Gemm", and `name` in messages."""
    return NativeOp(
        name=name,
        operand_names=operand_names,
        has_workspace=has_workspace,
        run=getattr(lib, f"infiniop{c_name}"),
        place=owning("struct InfiniopDescriptor *", getattr(lib, f"infiniopDestroy{c_name}Descriptor")),
    )


# Bound here: torch.compile, which follows calls into this module, cannot watch a global `lib`.
_create, _run3 = lib.infiniopCreateDescriptor, lib.infiniopRun3
_new = ffi.new
_SIZE = ffi.typeof("size_t *")
_NUMBERS = ffi.typeof("int64_t[]")

REARRANGE = native_op("Rearrange", "rearrange", ("y", "x"), has_workspace=False)

#: Where the library's messages have an operand's name: first, or after one of these words.
_OPERAND = re.compile(r"(?:^|(?<=overlaps )|(?<=output )|(?<=of ))\w+")


def _refusal(
    status: int, op: NativeOp, name: str, names: Sequence[str], shapes: Sequence[Shape] = ()
) -> InfiniopError:
    """The exception for a native call that failed: the library's sentence in the caller's words.

    The library calls operands by its own names, and at a run it knows no more than their addresses; the
    caller may have called them otherwise, and wants to know which they were.
    """
    operator, colon, sentence = last_message().partition(": ")
    if operator != op.name:  # not about the operands
        return _native.error(status)
    if " overlaps " in sentence:  # each other, so the one must not be said to be the other
        pairs = zip(op.operand_names, names)
        said = [f"{own} (the result)" if given == RESULT else given for own, given in pairs]
    else:
        known = next(given for given in names if given != RESULT)
        said = [known if given == RESULT else given for given in names]
    if shapes:
        said = [f"{given} with shape {shape}" for given, shape in zip(said, shapes)]
    words = dict(zip(op.operand_names, said))
    sentence = _OPERAND.sub(lambda match: words.get(match[0], match[0]), sentence)
    return from_status(status, f"{name}{colon}{sentence}")


class Call(Protocol):
    """What this module needs of a planned call."""

    names: Sequence[str]
    device: Device
    layouts: tuple[Layout, ...]
    params: tuple[float, ...]
    scalars: tuple[float, ...]
    plan: Any

    @property
    def name(self) -> str: ...
    @property
    def n_outputs(self) -> int: ...
    @property
    def native(self) -> NativeOp: ...
    @property
    def may_be_output(self) -> frozenset[str]: ...
    @property
    def pointers(self) -> list[Any]: ...

    def cache(self) -> OpCache: ...

    def problem(self) -> Problem: ...


class Submitted(Call, Protocol):
    """What it needs of a call that it runs at once."""

    @property
    def operands(self) -> tuple[Any, ...]: ...


class Descriptor:
    """A native operator descriptor, destroyed when the last reference to it goes."""

    __slots__ = (
        "_head",
        "_place",
        "_run",
        "device",
        "direct",
        "name",
        "offsets",
        "pointer",
        "workspace_size",
    )

    def __init__(
        self, op: NativeOp, device: Device, place: Any, workspace_size: int, offsets: Offsets | None
    ) -> None:
        self._place = place
        self._run = op.run
        self.name = op.name
        self.device = device
        self.pointer = pointer = place[0]
        self.offsets = offsets
        self.workspace_size = workspace_size
        # The first arguments of every run, for the usual case that no workspace is needed.
        self._head = (pointer, NULL, 0) if op.has_workspace else (pointer,)
        #: For NativeOp.direct, where there is one and it does all that is needed.
        self.direct = None if self.workspace_size or offsets or op.direct is None else pointer

    def run(self, call: Call, stream: Stream | None) -> None:
        """One native call, or one for each tuple of offsets, on a stream (None: on the CPU)."""
        for shifted in self.shifted(call.pointers):
            if status := self.run_once(shifted, call.scalars, stream):
                raise _run_refusal(status, call)

    def run_once(
        self, pointers: Sequence[Any], scalars: tuple[float, ...], stream: Stream | None = None
    ) -> int:
        """One native call, on a stream (None: on the CPU); returns its status."""
        arguments = self._head
        if self.workspace_size:
            workspace = cpu_workspace() if stream is None else stream_workspace(stream)
            scratch = workspace.reserve(self.workspace_size, self.name)
            assert scratch is not None  # and is kept while it is used
            arguments = (self.pointer, scratch._pointer, self.workspace_size)
        at = NULL if stream is None else stream.pointer
        return self._run(*arguments, *pointers, *scalars, at)  # type: ignore[no-any-return]

    def shifted(self, pointers: list[Any]) -> list[list[Any]]:
        """The operands' pointers for each native call."""
        if self.offsets is None:
            return [pointers]
        return [[cast(BYTE_POINTER, p) + step for p, step in zip(pointers, steps)] for steps in self.offsets]

    __reduce__ = refuse_pickle


def _run_refusal(status: int, call: Call) -> InfiniopError:
    return _refusal(status, call.native, call.name, call.names, [shape for _, shape, _ in call.layouts])


def create(
    op: NativeOp, name: str, names: Sequence[str], device: Device, problem: Problem, params: Sequence[float]
) -> Descriptor:
    """Create a descriptor; everything that is illegal about shapes, types and strides is refused here."""
    layouts: list[int] = []
    for dtype, shape, strides in problem.layouts:
        layouts += (dtype.code, len(shape), *shape, *strides)
    place = op.place()
    size = _new(_SIZE)
    status = _create(
        handle(device),
        place,
        size,
        op.name.encode(),
        _new(_NUMBERS, layouts),
        len(layouts),
        params[0] if params else 0.0,
    )
    if status:
        # What is wrong with one operand alone is said without its shape.
        alone = last_message().startswith(tuple(f"{op.name}: {operand}: " for operand in op.operand_names))
        if alone:
            for operand, layout in zip(names, problem.layouts):
                element_strides(name, operand, layout)  # says more of strides that are no multiples
        shapes = [shape for _, shape, _ in problem.layouts]
        raise _refusal(status, op, name, names, shapes if alone else ())
    if logger.isEnabledFor(logging.DEBUG):
        plan = ffi.new("const char **")
        check(lib.infiniopGetDescriptorPlan(place[0], plan))
        if text := ffi.string(plan[0]).decode():
            logger.debug("%s planned: %s", name, text)
    return Descriptor(op, device, place, size[0], problem.offsets)


def plan(call: Call) -> Descriptor:
    """The call's descriptor, from this thread's cache for the operator and the device if it is there."""
    cache = call.cache().get_cache(call.device)
    key = call.layouts + call.params
    descriptor = cache.get(key)
    if descriptor is None:
        problem = call.problem()
        if problem.offsets is not None:
            refuse_self_overlap(call)
        descriptor = create(call.native, call.name, call.names, call.device, problem, call.params)
        cache.put(key, descriptor)
    return descriptor


# The library checks each run it sees. A call that takes several runs is checked here as a whole before the
# first.


def refuse_self_overlap(call: Call) -> None:
    """Refuse a call one of whose outputs has elements that share memory with each other."""
    for name, (dtype, shape, strides) in zip(call.names[: call.n_outputs], call.layouts):
        source = (dtype, shape, row_major(shape, dtype.itemsize))
        try:
            create(
                REARRANGE,
                call.name,
                (name, "x"),
                CPU,
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
    """Refuse a call one of whose outputs shares memory with another operand, unless it may be that."""
    operands = list(zip(call.native.operand_names, call.names, call.layouts, map(address, call.pointers)))
    for i, (_, name, layout, at) in enumerate(operands[: call.n_outputs]):
        for own, other, read, read_at in operands[i + 1 :]:
            if own in call.may_be_output and at == read_at and same_elements(layout, read):
                continue
            if overlap(layout, at, read, read_at):
                raise ParamError(
                    f"{call.name}: {name} with shape {layout[1]} overlaps {other} with shape {read[1]}; "
                    "an output must not share memory with it"
                )


def refuse(call: Call) -> NativeGraph:
    """Raise now what a run of the call would be refused for; return the call as a graph of its own, which
    may be run if it needs no workspace.
    """
    graph = NativeGraph(call.device)
    graph.append(call, _SOMEWHERE)
    return graph


def reserve(call: Submitted) -> None:
    """Get the workspace that a run of the call by this thread needs."""
    if call.device is CPU:
        workspace = cpu_workspace()
    else:
        workspace = stream_workspace(stream_order(call.name, call.device, call.operands).stream)
    workspace.reserve(call.plan.workspace_size, call.name)


def run(call: Submitted) -> None:
    """One call of the library, on its plan's own device, whichever is current."""
    descriptor: Descriptor = call.plan
    device = descriptor.device
    stream = None if device is CPU else one_stream(device, call.operands)
    if descriptor.offsets is not None:
        refuse_overlap(call)
    if device is CPU or stream is not None:
        descriptor.run(call, stream)
    else:
        with stream_order(call.name, device, call.operands):
            descriptor.run(call, get_stream(device))


NATIVE = OpImpl(plan, run)

#: A workspace for what is checked and not run, where no operand is.
_SOMEWHERE = cast(_native.VOID_POINTER, 1 << 63)


#: alpha and beta of operators that have none, or only the first, and of :attr:`NativeOp.direct`.
FACTORS = (1.0, 0.0)


_graph_place = owning("infiniopGraph_t", lib.infiniopDestroyGraph)


class NativeGraph:
    """A native executor: calls with their pointers, run in one native call."""

    __slots__ = ("_place", "_told", "device", "length", "operands", "pointer")

    #: What says on which streams its operands' libraries work: see :func:`~.interop.stream_sources`.
    operands: Sequence[Any]

    def __init__(self, device: Device) -> None:
        self._told = False
        self.operands = ()
        self.device = device
        self.length = 0
        self._place = _graph_place()
        check(lib.infiniopCreateGraph(handle(device), self._place))
        self.pointer = self._place[0]

    def append(self, call: Call, workspace: Any) -> None:
        """Append a call planned by :data:`NATIVE`, checked like a run of it. `workspace` points to as many
        bytes as its plan needs, until the graph is gone.
        """
        descriptor: Descriptor = call.plan
        if descriptor.offsets is not None:
            refuse_overlap(call)
        alpha, beta = (*call.scalars, *FACTORS[len(call.scalars) :])
        for pointers in descriptor.shifted(call.pointers):
            operands = ffi.new("void *[]", [cast(_native.VOID_POINTER, p) for p in pointers])
            status = lib.infiniopGraphAppend(
                self.pointer,
                descriptor.pointer,
                workspace,
                descriptor.workspace_size,
                operands,
                len(operands),
                alpha,
                beta,
            )
            if status:
                raise _run_refusal(status, call)
        self.length += 1

    def bound(self) -> Callable[[], int]:
        """The run on the CPU as a function without arguments, which keeps the graph; returns the status."""
        return partial(lib.infiniopGraphRun, owning_pointer(address(self.pointer), self), NULL)

    def run(self) -> None:
        """Run all calls in order."""
        if self.device is CPU:
            check(lib.infiniopGraphRun(self.pointer, NULL))
            return
        stream = one_stream(self.device, self.operands) if self.operands else get_stream(self.device)
        if stream is not None:
            self._queue(stream)
        else:
            with stream_order("Graph.run", self.device, self.operands):
                self._queue(get_stream(self.device))
        if not self._told:
            self._told = True
            if (how := self.describe()).startswith("capture failed"):
                logger.warning("graph of %d calls on %s: %s", self.length, self.device, how)

    def _queue(self, stream: Stream) -> None:
        check(lib.infiniopGraphRun(self.pointer, stream.pointer))

    def describe(self) -> str:
        """How the graph runs, in the words of ``infiniopGraphDescribe`` in ``infiniop.h``."""
        text = ffi.new("const char **")
        check(lib.infiniopGraphDescribe(self.pointer, text))
        return ffi.string(text[0]).decode(errors="replace")  # type: ignore[no-any-return]

    __reduce__ = refuse_pickle
