"""``Node``, one recorded call, and what can be said of a list of them without running it.

Memory is where a recording saw it: an address is a number, and two operands may meet where their ranges of
bytes do. Memory that exists in the graph alone has addresses of its own, above all real ones: buffer `k`
begins at ``virtual(k)``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

from ._layout import Layout, Shape, count, extent, interned, is_row_major
from ._native import pointer as as_pointer
from ._native_op import Descriptor, NativeOp, Problem
from ._native_op import plan as native_plan
from .cache import OpCache
from .device import Device
from .dtypes import DType

_FIRST = 1 << 66
_STEP = 1 << 64  # more than any array


def virtual(k: int) -> int:
    """The address of buffer `k` of those that exist in a graph alone."""
    return _FIRST + k * _STEP


def buffer_at(address: int) -> int | None:
    """The number of the virtual buffer at an address; None for real memory."""
    # Half a step down, because an operand may lie below its address.
    return None if address < _FIRST - _STEP // 2 else (address - _FIRST + _STEP // 2) // _STEP


class Op(Protocol):
    """What the passes need to know of an operator."""

    name: ClassVar[str]
    operand_names: ClassVar[tuple[str, ...]]
    n_outputs: ClassVar[int]
    native: ClassVar[NativeOp]
    is_copy: ClassVar[bool]
    may_be_output: ClassVar[frozenset[str]]
    epilogues: ClassVar[dict[str, Any]]
    keeps_sums: ClassVar[frozenset[DType]]

    @classmethod
    def cache(cls) -> OpCache: ...

    @classmethod
    def check(cls, layouts: tuple[Layout, ...], names: Sequence[str]) -> Problem: ...

    @classmethod
    def reads_outputs(cls, scalars: tuple[float, ...]) -> bool: ...

    @classmethod
    def flops(cls, layouts: tuple[Layout, ...], scalars: tuple[float, ...]) -> int: ...


class Range(NamedTuple):
    """Bytes on a device: from `low` on, `high` is the first one behind."""

    device: Device
    low: int
    high: int

    def meets(self, other: Range) -> bool:
        """Do they share a byte?"""
        return self.low < other.high and other.low < self.high and self.device is other.device

    def holds(self, other: Range) -> bool:
        """Is the other one inside?"""
        return self.low <= other.low and other.high <= self.high and self.device is other.device


class Node:
    """One recorded call: its operator, layouts, addresses and scalars. Fits ``_native_op.Call``."""

    def __init__(
        self,
        op: type[Op],
        device: Device,
        layouts: Iterable[Layout],
        addresses: Sequence[int],
        params: tuple[float, ...] = (),
        scalars: tuple[float, ...] = (),
        names: Sequence[str] | None = None,
        plan: Any = None,
        foreign: Any = None,
    ) -> None:
        self.op = op
        self.device = device
        self.layouts = tuple(layouts)
        self.addresses = tuple(addresses)
        self.params = params
        self.scalars = scalars
        self.names = names or op.operand_names
        self.foreign = foreign  # the call of an implementation that is not ours, which sees no node
        self.plan: Any = plan if plan is not None or foreign is not None else native_plan(self)
        #: The bytes between an operand's first and last one, outputs first.
        self.ranges = tuple(range_of(device, *operand) for operand in zip(self.layouts, self.addresses))

    # What a call is to the native library.

    @property
    def name(self) -> str:
        return self.op.name

    @property
    def n_outputs(self) -> int:
        return self.op.n_outputs

    @property
    def native(self) -> NativeOp:
        return self.op.native

    @property
    def may_be_output(self) -> frozenset[str]:
        return self.op.may_be_output

    def cache(self) -> OpCache:
        return self.op.cache()

    def problem(self) -> Problem:
        return self.op.check(self.layouts, self.names)

    @property
    def pointers(self) -> list[Any]:
        return [as_pointer(address) for address in self.addresses]

    # ---- what it touches -----------------------------------------------------------------------------------

    @property
    def writes(self) -> tuple[Range, ...]:
        return self.ranges[: self.n_outputs]

    @property
    def reads(self) -> tuple[Range, ...]:
        reads_all = self.foreign is not None or self.op.reads_outputs(self.scalars)
        return self.ranges[0 if reads_all else self.n_outputs :]

    def operand(self, i: int) -> tuple[Layout, int]:
        return self.layouts[i], self.addresses[i]

    # ---- what it costs -------------------------------------------------------------------------------------

    @property
    def flops(self) -> int:
        return self.op.flops(self.layouts, self.scalars)

    @property
    def moved(self) -> tuple[int, ...]:
        """Bytes moved at least, by operand: every element once, of outputs that are read too twice."""
        moved = [_element_bytes(layout) for layout in self.layouts]
        if self.op.reads_outputs(self.scalars):
            moved[: self.n_outputs] = [2 * nbytes for nbytes in moved[: self.n_outputs]]
        return tuple(moved)

    @property
    def bytes(self) -> int:
        """Those of all operands."""
        return sum(self.moved)

    @property
    def runs(self) -> int:
        """Native calls it takes."""
        offsets = None if self.foreign is not None else self.plan.offsets
        return 1 if offsets is None else len(offsets)

    # ---- nodes like it -------------------------------------------------------------------------------------

    def at(self, addresses: Sequence[int]) -> Node:
        """The same call on other memory."""
        return Node(
            *(self.op, self.device, self.layouts, addresses, self.params, self.scalars, self.names),
            plan=self.plan,
            foreign=self.foreign,
        )

    def with_operands(self, new: dict[int, tuple[Layout, int]]) -> Node:
        """The same call with some operands replaced. Raises what its operator refuses."""
        operands = [new.get(i) or self.operand(i) for i in range(len(self.layouts))]
        layouts, addresses = zip(*operands)
        return Node(self.op, self.device, layouts, addresses, self.params, self.scalars, self.names)

    def described(self) -> str:
        """The call in words: operands with types and shapes, scalars, device."""
        operands = ", ".join(
            f"{name} {layout[0].name}{list(layout[1])}" for name, layout in zip(self.names, self.layouts)
        )
        scalars = "".join(f", {value:g}" for value in (*self.params, *self.scalars))
        return f"{operands}{scalars} on {self.device}"


def range_of(device: Device, layout: Layout, address: int) -> Range:
    """The bytes between an operand's first and last one."""
    low, high = extent(layout)
    return Range(device, address + low, address + high)


def _element_bytes(layout: Layout) -> int:
    dtype, shape, strides = layout
    distinct = tuple(1 if stride == 0 and size else size for size, stride in zip(shape, strides))
    return count(distinct) * dtype.itemsize


def covers(layout: Layout, address: int, start: int, nbytes: int) -> bool:
    """Do the elements of an output, which do not overlap, fill memory completely?"""
    dtype, shape, _ = layout
    low, high = extent(layout)
    filled = count(shape) * dtype.itemsize
    return filled == nbytes == high - low and address + low == start


def through_copy(view: Layout, offset: int, copied: Layout, source: Layout) -> tuple[Layout, int] | None:
    """A view of a row-major copy as a view of what was copied.

    `view` is seen at `offset` bytes from the copy's first element; returned are its layout and offset on the
    source, which has the copy's shape. None if there is none.

    Each dimension of the view must walk along one dimension of the source, or along several that one stride
    walks through there.
    """
    itemsize = copied[0].itemsize
    if view[0] is not copied[0] or not is_row_major(copied) or 0 in copied[1] or 0 in view[1]:
        return None
    if offset < 0 or offset % itemsize:
        return None
    dims = _merged(copied[1], source[2])
    position = offset // itemsize
    steps: list[tuple[int, int, int]] = []  # elements of the copy to the next one, size, stride in the source
    step = 1
    for size, stride in reversed(dims):
        steps.insert(0, (step, size, stride))
        step *= size
    if position >= step:
        return None
    at = [position // step % size for step, size, _ in steps]
    lowest, highest = list(at), list(at)
    strides = []
    for size, walk in zip(view[1], view[2]):
        if size == 1 or walk == 0:
            strides.append(0)
            continue
        elements, rest = divmod(abs(walk), itemsize)
        fits = [
            d for d, (step, wide, _) in enumerate(steps) if elements % step == 0 and elements < step * wide
        ]
        if rest or not fits:
            return None
        d = fits[0]
        by = elements // steps[d][0] * (1 if walk > 0 else -1)
        if by > 0:
            highest[d] += by * (size - 1)
        else:
            lowest[d] += by * (size - 1)
        strides.append(by * steps[d][2])
    if any(low < 0 or high >= size for low, high, (_, size, _) in zip(lowest, highest, steps)):
        return None
    return interned(view[0], view[1], tuple(strides)), sum(i * stride for i, (_, _, stride) in zip(at, steps))


def _merged(shape: Shape, strides: tuple[int, ...]) -> list[tuple[int, int]]:
    """(size, stride) of the fewest dimensions that walk through the same elements in the same order."""
    out: list[tuple[int, int]] = []
    for size, stride in zip(shape, strides):
        if size == 1:
            continue
        if out and out[-1][1] == size * stride:
            out[-1] = (out[-1][0] * size, stride)
        else:
            out.append((size, stride))
    return out


def is_planned(node: Node) -> bool:
    """May passes look into it? The plan of an implementation that is not ours may be a native one."""
    return node.foreign is None and isinstance(node.plan, Descriptor)
