"""``Graph``: operators recorded once, planned as a whole, and replayed.

::

    record -> nodes and what memory they touch -> fusion -> memory plan -> native executors

While recording, results get memory of their own, which nothing touches. At the end the graph lets go of it;
what nobody else has then exists in the graph alone, and is given a place in its arena.
"""

from __future__ import annotations

import logging
import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from operator import itemgetter
from os import PathLike
from pathlib import Path
from threading import get_ident
from time import perf_counter_ns
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from weakref import ref

import numpy as np

from ._bypass import when_recording
from ._files import as_path
from ._fusion import MODES, Fusion, Rewrite
from ._layout import Layout, holds, interned, overlap
from ._log import logger
from ._memory import Block, MemoryReport, arena_size, lifetimes, place
from ._native import NULL, address
from ._native import pointer as as_pointer
from ._native_op import NATIVE, NativeGraph, refuse, refuse_overlap
from ._program import Node, Range, buffer_at, covers, range_of, virtual
from .device import CPU, Device, DeviceLike, as_device, refuse_pickle, thread
from .dtypes import DType
from .errors import GraphError, OperandError, ParamError, shown
from .graph_operator import GraphOperator, need_alike
from .interop import (
    as_tensor,
    count_writes,
    keeping,
    need_writable,
    stream_order,
    stream_sources,
    views,
    write_counts,
)
from .tensor import Tensor, allocate, borrowed

if TYPE_CHECKING:
    from . import _graph_text
    from ._graph_profile import Profile, Runs

__all__ = [
    "Graph",
    "MemoryReport",
    "is_graph_recording",
    "start_graph_recording",
    "stop_graph_recording",
]

T = TypeVar("T")

#: How often this process was forked off since the package was imported: of the threads of a process only the
#: one that forked it is in the child, so that a graph another one was running is free there.
_generation = 0


def _count_generation() -> None:
    global _generation
    _generation += 1


os.register_at_fork(after_in_child=_count_generation)


class _Made(NamedTuple):
    """Memory that was allocated while recording."""

    owner: ref[Any]
    device: Device
    address: int
    nbytes: int


class _Held(NamedTuple):
    """An array that a graph keeps alive, or that has a name in it, and its memory."""

    operand: Any
    device: Device
    layout: Layout
    pointer: Any  # of some kinds of arrays it is what keeps the memory
    is_output: bool = False

    @property
    def at(self) -> int:
        return address(self.pointer)

    @property
    def range(self) -> Range:
        return range_of(self.device, self.layout, self.at)


def _all_of(what: Range, owner: Any, pointer: Any, is_output: bool) -> _Held:
    """Memory with whatever is in it."""
    return _Held(owner, what.device, interned(DType.U8, (what.high - what.low,), (1,)), pointer, is_output)


class _Move(NamedTuple):
    """Memory that is replaced, and how far away that lies which takes its place."""

    name: str
    was: _Held
    range: Range
    delta: int

    def of(self, layout: Layout, at: int, what: Range) -> bool:
        """Is an operand, with bytes in `what`, inside?"""
        return (
            what.low < what.high
            and self.range.holds(what)
            and holds(self.was.layout, self.was.at, layout, at)
        )


def _moved(moves: Sequence[_Move], whose: str, layout: Layout, at: int, what: Range) -> int:
    """Where an operand lies after some moves."""
    mine = [move for move in moves if move.of(layout, at, what)]
    for move in mine:
        if move.delta != mine[0].delta:
            raise OperandError(
                f"Graph.bind: {mine[0].name} and {move.name} replace the memory of {whose}, by different ones"
            )
    return at + mine[0].delta if mine else at


class _Program(NamedTuple):
    """What a graph runs."""

    nodes: list[Node]  # after fusion; virtual buffers still virtual
    numbers: list[int]  # of the recorded calls they stand for
    rewrites: list[Rewrite]
    blocks: dict[Device, list[Block]]
    arenas: dict[Device, Tensor]
    calls: list[Node]  # the nodes at their real addresses
    workspaces: list[Any]  # pointers, one for each of them
    steps: list[Any]  # native executors, and calls of implementations that are not native


def _sources(kept: Iterable[_Held], device: Device) -> list[Any]:
    """What says on which streams of a device these operands are worked with."""
    return stream_sources(one.operand for one in kept if one.device is device)


def _outputs(kept: Sequence[_Held], program: _Program) -> tuple[list[Any], list[Any]]:
    """Of what a program writes: that whose libraries count writes, and what may be read-only by then. Tells
    its steps on devices whose streams they are to wait for.
    """
    for step in program.steps:
        if isinstance(step, NativeGraph) and step.device is not CPU:
            step.operands = _sources(kept, step.device)
    outputs = [one.operand for one in kept if one.is_output]
    counted = [output for output in outputs if type(output) in write_counts]
    return counted, [output for output in outputs if isinstance(output, np.ndarray)]


class Graph:
    """A recorded list of operators, replayed in as few native calls as possible.

    Inside ``with Graph() as g:`` this thread's operators are planned and recorded, not run; what they
    return are the tensors their results will be in. ``g.run()`` runs them in order on what the input
    tensors and arrays hold then, any number of times, and allocates nothing. A graph keeps alive what it
    uses. If the block ends with an exception the recording is dropped.

    >>> import numpy as np
    >>> from infiniop_py import add, mul
    >>> x = np.ones(3, "f4")
    >>> with Graph() as g:
    ...     y = mul(add(x, x), x)
    >>> x[:] = 3
    >>> g.run(); y
    array([18., 18., 18.], dtype=float32)

    Results that nobody has when the recording ends (no variable, no view of them) exist in the graph alone:
    they share one arena, in which the memory of what is not needed any more is used again; see
    :meth:`memory_report`. A torch tensor is always kept. Calls are rewritten where that leaves all other
    results as they are, bit for bit (a NaN stays a NaN, but may be another one, as to its sign); see
    :meth:`explain`. ``fuse="fast"`` also rewrites where one rounding less happens, or a product sums up in
    another order, ``fuse="none"`` nowhere.

    One thread at a time runs a graph; a second is refused with GraphError.

    A graph holds the addresses of its operands. As long as it does, ``numpy.ndarray.resize`` refuses to
    give such an array other memory, with ``refcheck=False``, too. A torch tensor that gets other memory
    (``x.data = y``, ``Module.to``) leaves the graph what it had; do not use ``torch.Tensor.resize_`` to more
    bytes on one. :meth:`bind` gives a graph other arrays.
    """

    def __init__(self, *, fuse: str = "exact") -> None:
        if not isinstance(fuse, str) or fuse not in MODES:
            raise ParamError(f"Graph: fuse is {shown(fuse)}, needs one of {', '.join(map(repr, MODES))}")
        self._fuse = fuse
        self._state = "new"  # -> recording -> recorded or dropped
        self._nodes: list[Node] = []  # as recorded
        self._kept: list[_Held] = []
        self._made: list[_Made] = []
        self._names: dict[str, _Held] = {}
        self._sizes: dict[int, int] = {}  # bytes of the virtual buffers
        self._contents: frozenset[str] = frozenset()  # names of arrays that are saved with what they hold
        self._program = _Program([], [], [], {}, {}, [], [], [])
        self._counted: list[Any] = []  # outputs whose libraries keep count of writes
        self._asked: list[Any] = []  # outputs that may be read-only by now: NumPy's
        self._users: dict[int, list[int]] = {}  # the call that uses it, by generation: one at most

    # ---- recording ---------------------------------------------------------------------------------------

    def _begin(self) -> None:
        if thread.recording is not None:
            raise GraphError("a graph is being recorded in this thread already: recordings do not nest")
        if self._state != "new":
            raise GraphError(f"this graph is {self._state} already: record another one")
        self._state = "recording"
        for tell in when_recording:
            tell(True)
        thread.recording = self  # so late that an interrupt before it leaves no recording behind
        thread.ready = {}  # nothing is added while recording

    def _end(self, *, drop: bool) -> None:
        thread.recording = None
        self._state = "dropped"  # until all is done
        try:
            for tell in when_recording:
                tell(False)
            if not drop:
                self._settle()
                self._program = self._compiled(self._nodes)
                self._counted, self._asked = _outputs(self._kept, self._program)
                self._state = "recorded"
        finally:
            self._made.clear()
            if self._state == "dropped":
                self._nodes.clear()
                self._kept.clear()
                self._names.clear()

    def __enter__(self) -> Graph:
        nests = thread.recording is not None
        try:
            self._begin()
            return self
        except BaseException:  # a signal's handler may raise after the last step
            if not nests and thread.recording is self:
                self._end(drop=True)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if thread.recording is self:
            self._end(drop=kind is not None)
        elif self._state == "recording":  # else stop_graph_recording() came first
            raise GraphError("Graph: the thread that ends a recording must be the one that began it")

    def _allocated(self, owner: Any, device: Device, start: int, nbytes: int) -> None:
        """Take note of memory whose contents matter only once an operator has written them."""
        if nbytes:
            self._made.append(_Made(ref(owner), device, start, nbytes))

    def _append(self, call: GraphOperator) -> None:
        foreign = None if call._impl is NATIVE else call
        if foreign is None:
            refuse(call)
        else:
            refuse_overlap(call)
        node = Node(
            type(call),
            call.device,
            call.layouts,
            [address(pointer) for pointer in call.pointers],
            call.params,
            call.scalars,
            call.names,
            call.plan,
            foreign,
        )
        self._kept += [
            _Held(operand, call.device, layout, keeping(operand, pointer), i < call.n_outputs)
            for i, (operand, layout, pointer) in enumerate(zip(call.operands, call.layouts, call.pointers))
        ]
        self._nodes.append(node)
        logger.debug("%s recorded", call.name)

    # ---- what is whose -----------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Find out which memory exists in the graph alone, let go of it, and call it by numbers."""
        made = [one for one in self._made if one.owner() is not None]
        made.sort(key=lambda one: one.address)
        self._made.clear()
        starts = [one.address for one in made]

        def number(what: Range) -> int | None:
            k = bisect_right(starts, what.low) - 1
            if k < 0 or what.low == what.high:
                return None
            one = made[k]
            inside = one.device is what.device and what.high <= one.address + one.nbytes
            return k if inside else None

        needed = set()  # for what it held before the first run, or for an implementation that is not ours
        first_use: dict[int, None] = {}  # in this order
        for node in self._nodes:
            for what in node.reads:
                if (k := number(what)) is not None and (k not in first_use or node.foreign is not None):
                    needed.add(k)
            for what, operand in zip(node.writes, zip(node.layouts, node.addresses)):
                if (k := number(what)) is not None and k not in first_use:
                    if not covers(*operand, made[k].address, made[k].nbytes) or node.foreign is not None:
                        needed.add(k)
                    first_use[k] = None
        owners = {k: made[k].owner() for k in needed}
        self._kept = [kept for kept in self._kept if (k := number(kept.range)) is None or k in needed]
        # Asked once: a garbage collection or another thread may let go of one at any time.
        for k in first_use:
            if k not in needed and (owner := made[k].owner()) is not None:
                owners[k] = owner
        alone = {k: n for n, k in enumerate(k for k in first_use if k not in owners)}
        for k, owner in sorted(owners.items(), key=itemgetter(0)):
            one = made[k]
            whole = Range(one.device, one.address, one.address + one.nbytes)
            pointer = keeping(owner, as_pointer(one.address))
            self._kept.append(_all_of(whole, owner, pointer, k in first_use))
        self._sizes = {n: made[k].nbytes for k, n in alone.items()}

        def moved(node: Node) -> Node:
            numbers = [number(what) for what in node.ranges]
            if not any(k in alone for k in numbers):
                return node
            return node.at(
                [
                    at if k is None or k not in alone else virtual(alone[k]) + at - made[k].address
                    for at, k in zip(node.addresses, numbers)
                ]
            )

        self._nodes = [moved(node) for node in self._nodes]

    # ---- compiling ---------------------------------------------------------------------------------------

    def _compiled(self, recorded: Sequence[Node]) -> _Program:
        fusion = Fusion(recorded, self._sizes, self._fuse)
        nodes = fusion.nodes
        blocks: dict[Device, list[Block]] = {}
        buffers = lifetimes(nodes, self._sizes)
        for k, (first, last) in buffers.items():
            block = Block(self._sizes[k], first, last, f"t{k}")
            blocks.setdefault(nodes[first].device, []).append(block)
        for i, node in enumerate(nodes):
            if node.foreign is None and node.plan.workspace_size:
                block = Block(node.plan.workspace_size, i, i, "workspace")
                blocks.setdefault(node.device, []).append(block)
        blocks = {device: place(those) for device, those in blocks.items()}
        arenas = {}
        for device, those in blocks.items():
            held = self._program.arenas.get(device)
            size = arena_size(those)
            arenas[device] = (
                held
                if held is not None and held.nbytes >= size
                else allocate(DType.U8, (size,), device, "Graph")
            )
        starts: dict[str, int] = {}
        workspaces: list[Any] = [NULL] * len(nodes)
        for device, those in blocks.items():
            base = arenas[device].data_ptr
            for block in those:
                if block.what == "workspace":
                    workspaces[block.first] = as_pointer(base + block.offset)
                else:
                    starts[block.what] = base + block.offset

        def real(at: int) -> int:
            k = buffer_at(at)
            return at if k is None else at - virtual(k) + starts[f"t{k}"]

        calls = [node.at([real(at) for at in node.addresses]) for node in nodes]
        steps: list[Any] = []
        for call, workspace in zip(calls, workspaces):
            if call.foreign is not None:
                steps.append(call.foreign)
                continue
            if not steps or not isinstance(steps[-1], NativeGraph) or steps[-1].device is not call.device:
                steps.append(NativeGraph(call.device))
            steps[-1].append(call, workspace)
        return _Program(*(nodes, fusion.numbers, fusion.rewrites, blocks, arenas, calls, workspaces, steps))

    # ---- replay ------------------------------------------------------------------------------------------

    def _need_recorded(self, what: str) -> None:
        if self._state != "recorded":
            raise GraphError(f"{what}: the graph is {self._state}, needs to be recorded")

    def _alone(self, what: str, work: Callable[[], T]) -> T:
        """Do what one thread at a time may do with the graph."""
        users, generation = self._users, _generation
        me = [get_ident()]  # an object of this call's own
        try:
            self._need_recorded(what)
            if thread.recording is not None:
                raise GraphError(f"{what}: not while a graph is being recorded in this thread")
            if (user := users.setdefault(generation, me)) is not me:
                who = "this thread" if user == me else "another thread"
                raise GraphError(f"{what}: {who} is running this graph; its outputs and workspace exist once")
            return work()
        finally:
            # Whatever came before: a signal's handler may raise between taking the place and knowing of it.
            # Nothing is called here, since handlers run after calls.
            try:
                if users[generation] is me:
                    del users[generation]
            except KeyError:
                pass

    def run(self) -> None:
        """Run the recorded operators in order. GraphError while recording, or if there is no complete
        recording; ParamError if a NumPy array that the graph writes is read-only by now.
        """
        self._alone("Graph.run", self._run)

    def _need_writable(self, what: str) -> None:
        for output in self._asked:
            if not output.flags.writeable:
                need_writable(what, "an array", output)

    def _run(self) -> None:
        self._need_writable("Graph.run")
        try:
            if logger.isEnabledFor(logging.DEBUG):
                self._run_logged()
            else:
                for step in self._program.steps:
                    step.run()
        finally:
            if self._counted:
                count_writes(self._counted)

    def _run_logged(self) -> None:
        program = self._program
        logger.debug("graph enter: %d calls in %d steps", len(program.nodes), len(program.steps))
        start = perf_counter_ns()
        for step in program.steps:
            step.run()
        logger.debug("graph exit: %d calls, %.1f us", len(program.nodes), (perf_counter_ns() - start) / 1e3)

    def profile(self, n: int = 10, trace: str | PathLike[str] | None = None) -> Profile:
        """Run the graph `n` times, call by call, and measure each: a table of times, rates and percentages of
        the roofline, to be printed. The results are those of `n` runs.

        `trace` is the path of a file to be written for Perfetto or about:tracing. Whole replays are measured
        in between if they leave all results as they are. What this machine can do at most is measured once
        in a process. Errors are those of :meth:`run`; ParamError if `n` is less than 1.

        >>> import numpy as np
        >>> from infiniop_py import add, mul
        >>> x = np.ones(1000, "f4")
        >>> with Graph() as g:
        ...     y = mul(add(x, x), x)
        >>> profile = g.profile(3)
        >>> [row.op for row in profile.rows], [row.bytes for row in profile.rows]
        (['add', 'mul'], [12000, 12000])
        """
        from ._graph_profile import Profile, write_trace

        if not isinstance(n, int) or isinstance(n, bool):
            raise OperandError(f"Graph.profile: n is {shown(n)}, needs an int")
        if n < 1:
            raise ParamError(f"Graph.profile: n is {shown(n)}, needs at least 1")
        if trace is not None:
            trace = as_path("Graph.profile", trace, "trace")

        def measured() -> tuple[_Program, Runs]:
            if trace is not None:
                open(trace, "a").close()  # what cannot be written is refused before anything runs
            return self._measured(n)

        program, runs = self._alone("Graph.profile", measured)
        if trace is not None:
            write_trace(trace, program.calls, program.numbers, runs)
        return Profile.of(program.calls, program.numbers, len(program.steps), runs)

    def _measured(self, n: int) -> tuple[_Program, Runs]:
        from ._graph_profile import measure

        program = self._program
        self._need_writable("Graph.profile")
        try:
            with ExitStack() as orders:
                for device in dict.fromkeys(call.device for call in program.calls if call.device is not CPU):
                    orders.enter_context(stream_order("Graph.profile", device, _sources(self._kept, device)))
                return program, measure(program.nodes, program.calls, program.workspaces, program.steps, n)
        finally:
            if self._counted:
                count_writes(self._counted)

    # ---- other memory ------------------------------------------------------------------------------------

    def name(self, /, **operands: Any) -> None:
        """Give arrays of the graph names, by which :meth:`bind` and :meth:`save` know them. GraphError while
        a recorded graph runs, or while this thread records another.

        >>> import numpy as np
        >>> x = np.ones(2)
        >>> with Graph() as g:
        ...     y = x.__add__(x)  # NumPy's own: computed at once
        >>> g.name(x=x)
        """
        if self._state not in ("recording", "recorded"):
            raise GraphError(f"Graph.name: the graph is {self._state}, needs to be recording or recorded")
        named = {}
        for name, operand in operands.items():
            ((device, layout, pointer),) = views("Graph.name", (name,), (operand,))
            named[name] = _Held(operand, device, layout, keeping(operand, pointer))

        def add() -> None:
            self._names = {**self._names, **named}  # another one: who reads the old one reads on

        if self._state == "recording":
            add()
        else:
            self._alone("Graph.name", add)

    @property
    def tensors(self) -> dict[str, Any]:
        """The arrays that have names."""
        return {name: named.operand for name, named in self._names.items()}

    def bind(self, old: Any = None, new: Any = None, /, **named: Any) -> None:
        """Let the graph use `new` wherever it used `old`, from the next run on; or ``bind(name=new)`` for
        arrays that :meth:`name` has named. All are changed, or none if one of them is refused.

        The new array has the device, dtype, shape and strides of the old one: else DeviceError, DTypeError,
        ShapeError or StrideError. What the graph reads or writes of the old one, views included, must lie
        inside it; what lies between its elements stays where it is. What has a name and lies inside becomes a
        Tensor in the new one. OperandError if the graph does not use it, or if two new arrays would take the
        place of one operand, GraphError while the graph runs.

        >>> import numpy as np
        >>> from infiniop_py import add
        >>> x, z = np.ones(2), np.full(2, 5.0)
        >>> with Graph() as g:
        ...     y = add(x, x)
        >>> g.bind(x, z); g.run(); y
        array([10., 10.])
        """
        self._alone("Graph.bind", lambda: self._bind(old, new, named))

    def _bind(self, old: Any, new: Any, named: dict[str, Any]) -> None:
        pairs: list[tuple[str, _Held, Any]] = []
        if old is not None or new is not None:
            ((device, layout, pointer),) = views("Graph.bind", ("old",), (old,))
            pairs.append(("new", _Held(old, device, layout, pointer), new))
        for name, operand in named.items():
            if name not in self._names:
                known = ", ".join(self._names) or "no array has one"
                raise OperandError(f"Graph.bind: there is no array of the name {shown(name)}: {known}")
            pairs.append((name, self._names[name], operand))
        moves: list[_Move] = []
        added: list[_Held] = []
        for name, was, operand in pairs:
            ((device, layout, pointer),) = views("Graph.bind", (name,), (operand,))
            pointer = keeping(operand, pointer)
            need_alike("Graph.bind", name, (device, layout), (was.device, was.layout), "the old one")
            is_output = self._need_inside(name, was)
            if is_output:
                need_writable("Graph.bind", name, operand)
            added.append(_Held(operand, device, layout, pointer, is_output))
            moves.append(_Move(name, was, was.range, added[-1].at - was.at))

        def moved(node: Node) -> Node:
            whose = (f"{name} of {node.name}" for name in node.names)
            operands = zip(whose, node.layouts, node.addresses, node.ranges)
            return node.at([_moved(moves, *operand) for operand in operands])

        nodes = [moved(node) for node in self._nodes]
        names = {known: self._renamed(known, moves, added) for known in self._names}
        program = self._compiled(nodes)
        kept = [
            one for one in self._kept if not any(move.of(one.layout, one.at, one.range) for move in moves)
        ]
        kept += added
        counted, asked = _outputs(kept, program)
        # Nothing fails from here on, and no signal's handler runs.
        self._nodes, self._program, self._kept, self._names = nodes, program, kept, names
        self._counted, self._asked = counted, asked

    def _renamed(self, name: str, moves: Sequence[_Move], added: Sequence[_Held]) -> _Held:
        """What a name means after some moves."""
        one = self._names[name]
        at = _moved(moves, name, one.layout, one.at, one.range)
        for move, new in zip(moves, added):
            if (one.device, one.layout, one.at) == (move.was.device, move.was.layout, move.was.at):
                return new._replace(is_output=False)
        for move, new in zip(moves, added):
            if move.of(one.layout, one.at, one.range):
                whole = as_tensor("Graph.bind", move.name, new.operand)
                inside = borrowed(one.device, one.layout, as_pointer(at), whole, whole.writable)
                return _Held(inside, *inside._view)
        return one

    def _need_inside(self, name: str, held: _Held) -> bool:
        """Refuse memory that the graph does not use, or uses with more around it; is it written?"""
        whole = held.range
        if whole.low == whole.high:
            return False
        found = written = False
        for node in self._nodes:
            for i, what in enumerate(node.ranges):
                if not whole.meets(what) or not overlap(held.layout, held.at, *node.operand(i)):
                    continue
                if not holds(held.layout, held.at, *node.operand(i)):
                    raise OperandError(
                        f"Graph.bind: the graph uses memory on both sides of an end of what {name} is to "
                        f"replace: {node.names[i]} of {node.name}; bind the whole array"
                    )
                if node.foreign is not None:
                    raise GraphError(
                        f"Graph.bind: {node.name} has an implementation of its own on {node.device}, which "
                        "keeps the operands it was planned with"
                    )
                found = True
                written = written or i < node.n_outputs
        if not found:
            raise OperandError(f"Graph.bind: the graph does not use what {name} is to replace")
        return written

    # ---- files -------------------------------------------------------------------------------------------

    def save(self, path: Any, *, contents: Iterable[str] | None = None) -> None:
        """Write the graph to a file, from which :meth:`load` makes one that computes the same bits.

        Saved are the calls as they were recorded, before they were rewritten, and how their operands share
        memory. Arrays with a name (:meth:`name`) are saved without what they hold, except those that
        `contents` names; what the calls read besides is a constant and saved with what it holds now. What
        they write and nobody has named is called output0, output1, ... in the file. ``contents=None``
        means nothing, and of a loaded graph what came with its file.

        The file begins with "INFGRAPH", a version, and a header in JSON that says what each buffer, array
        and call is; the constants follow as they are in memory, little-endian, each with a CRC-32. The
        docstring of ``infiniop_py._graph_file`` describes every byte. Nothing in it is ever executed.

        The file takes the place of an old one once it is complete and on the disk; if that fails, with
        OSError, the old one stays. GraphError for a graph that is not on the CPU alone, that has calls of
        implementations other than the native ones, or that a thread is running.
        """
        self._alone("Graph.save", lambda: self._save(path, contents))

    def _save(self, path: Any, contents: Iterable[str] | None) -> None:
        from . import _graph_file

        known = {name: _graph_file.Named(one.device, one.layout, one.at) for name, one in self._names.items()}
        wanted = self._contents & known.keys() if contents is None else _as_names(contents)
        if strange := wanted - known.keys():
            raise OperandError(
                f"Graph.save: contents has {', '.join(map(shown, strange))}: no array has that name"
            )
        _graph_file.save(path, self._nodes, self._sizes, known, sorted(wanted))

    @classmethod
    def load(cls, path: Any, *, fuse: str = "exact", max_bytes: int = 1 << 32) -> Graph:
        """Read a graph that :meth:`save` wrote, on the CPU.

        :attr:`tensors` has its named arrays and its outputs. Those that were saved without contents hold
        zeros, to be filled or exchanged (:meth:`bind`).

        >>> import tempfile, os, numpy as np
        >>> from infiniop_py import gemm
        >>> x, weights = np.ones((1, 2)), np.array([[1.0, 2.0], [3.0, 4.0]])
        >>> with Graph() as g:
        ...     g.name(x=x)
        ...     y = gemm(x, weights)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     g.save(os.path.join(folder, "product"))
        ...     loaded = Graph.load(os.path.join(folder, "product"))
        >>> loaded.bind(x=x); loaded.run(); loaded.tensors["output0"].tolist()
        [[4.0, 6.0]]

        The file may come from anybody: GraphError says what is wrong with it, before memory is allocated,
        and nothing in it is executed. Constants take the memory they take in the file; `max_bytes` limits
        what the graph needs beyond them. How long a run may take is not limited. OSError if the file cannot
        be read, GraphError in a thread that is recording, or where an operator of the graph has an
        implementation other than the native one.
        """
        from . import _graph_file

        self = cls(fuse=fuse)
        if thread.recording is not None:
            raise GraphError("Graph.load: not while a graph is being recorded in this thread")
        loaded = _graph_file.load(path, max_bytes)
        self._nodes, self._sizes = loaded.nodes, loaded.sizes
        self._kept = [
            _all_of(what, owner, as_pointer(what.low), is_output) for what, owner, is_output in loaded.kept
        ]
        self._program = self._compiled(self._nodes)
        self._state = "recorded"
        self._contents = loaded.contents
        self._names = {name: _Held(tensor, *tensor._view) for name, tensor in loaded.arrays.items()}
        return self

    # ---- what it is --------------------------------------------------------------------------------------

    def memory_report(self, device: DeviceLike = CPU) -> MemoryReport:
        """What the graph's arena on a device holds, and what it would take without one.

        >>> import numpy as np
        >>> from infiniop_py import mul
        >>> x = np.ones(1024, "f4")
        >>> with Graph() as g:
        ...     y = mul(mul(mul(mul(x, x), x), x), x)
        >>> report = g.memory_report()
        >>> report.arena, report.naive
        (8192, 12288)
        """
        self._need_recorded("Graph.memory_report")
        device = as_device(device)
        first = lifetimes(self._nodes, self._sizes)
        naive = sum(self._sizes[k] for k, (i, _) in first.items() if self._nodes[i].device is device)
        naive += sum(
            node.plan.workspace_size for node in self._nodes if node.foreign is None and node.device is device
        )
        return MemoryReport.of(device, self._program.blocks.get(device, []), naive)

    def explain(self) -> str:
        """The graph as recorded and after fusion, what was rewritten, and what that saves; to be printed.

        ``t0``, ``t1``... exist in the graph alone; other memory has the names that :meth:`name` gave it,
        else ``y0``... if the graph writes it and ``x0``... if not. Bytes count every element of every
        operand once, as if nothing stayed in a cache.

        >>> import numpy as np
        >>> from infiniop_py import add, rearrange
        >>> x, y = np.ones((2, 3)), np.ones((3, 2))
        >>> with Graph() as g:
        ...     z = add(rearrange(x.T), y)
        >>> print(g.explain())
        as recorded: 2 calls
             #0  rearrange  y=t0 F64[3, 2]  x=x0 F64[3, 2] strides [1, 3]
             #1  add        c=y0 F64[3, 2]  a=t0 F64[3, 2]  b=x1 F64[3, 2]
        <BLANKLINE>
        after fusion ("exact"): 1 call
             #1  add  c=y0 F64[3, 2]  a=x0 F64[3, 2] strides [1, 3]  b=x1 F64[3, 2]
        <BLANKLINE>
        rewrites:
          copy: #0 rearrange is gone into #1 add; saves 96 bytes
        <BLANKLINE>
                        calls       bytes moved             FLOPs
        as recorded         2               240                 6
        after fusion        1               144                 6
        saved               1                96                 0
        <BLANKLINE>
        CPU:0: arena of 0 bytes for 48, 0 %; 0 are alive at once
        """
        from . import _graph_text

        self._need_recorded("Graph.explain")
        program = self._program
        devices = dict.fromkeys(node.device for node in self._nodes)
        return _graph_text.explain(
            self._fuse,
            self._shown(fused=False),
            self._shown(fused=True),
            program.rewrites,
            self._shown_names(),
            [self.memory_report(device) for device in devices],
        )

    def to_dot(self, fused: bool = True) -> str:
        """The graph in the language of Graphviz, after fusion or as recorded: calls as boxes, the values they
        read and write as ellipses. Memory that is written again holds another value then.
        """
        from . import _graph_text

        self._need_recorded("Graph.to_dot")
        return _graph_text.dot(_graph_text.picture(self._shown(fused), self._shown_names()))

    def to_svg(self, path: str | PathLike[str] | None = None, *, fused: bool = True) -> str:
        """The picture that :meth:`to_dot` describes, as SVG; also written to `path` if that is given."""
        from . import _graph_text

        self._need_recorded("Graph.to_svg")
        if path is not None:
            path = as_path("Graph.to_svg", path)
        drawn = _graph_text.svg(_graph_text.picture(self._shown(fused), self._shown_names()))
        if path is not None:
            Path(path).write_text(drawn, encoding="utf-8")
        return drawn

    def _shown(self, fused: bool) -> _graph_text.Program:
        from . import _graph_text

        program = self._program
        return (
            _graph_text.Program(program.nodes, program.numbers)
            if fused
            else _graph_text.Program(self._nodes, range(len(self._nodes)))
        )

    def _shown_names(self) -> _graph_text.Names:
        from . import _graph_text

        given = {name: one.range for name, one in self._names.items()}
        nodes = [*self._nodes, *self._program.nodes]
        return _graph_text.Names(nodes, [kept.range for kept in self._kept], given)

    def __len__(self) -> int:
        """Number of recorded calls."""
        return len(self._nodes)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"<Graph, {self._state}: {', '.join(node.name for node in self._nodes) or 'empty'}>"

    __reduce__ = refuse_pickle


def _as_names(contents: Iterable[str]) -> frozenset[str]:
    """Names of arrays; a string is one name, and no collection of them."""
    if isinstance(contents, Iterable) and not isinstance(contents, str):
        names = list(contents)
        if all(isinstance(name, str) for name in names):
            return frozenset(names)
    raise OperandError(f"Graph.save: contents is {shown(contents)}, needs names of arrays")


def start_graph_recording() -> Graph:
    """Start recording this thread's operators, without a ``with`` block; returns the graph."""
    graph = Graph()
    graph._begin()
    return graph


def stop_graph_recording() -> Graph:
    """Stop this thread's recording; returns the graph. GraphError if there is none."""
    graph: Graph | None = thread.recording
    if graph is None:
        raise GraphError("no graph is being recorded in this thread")
    graph._end(drop=False)
    return graph


def is_graph_recording() -> bool:
    """Is a graph being recorded in this thread?"""
    return thread.recording is not None
