"""Where the memory goes that exists in a graph alone: lifetimes, and one arena for all of it.

A buffer lives from the first node that touches it to the last one, a workspace during its node. Large ones
are placed first, each at the lowest offset where nothing lives that is alive at the same time; or early ones,
where that takes less. Lowest-offset placement by decreasing size: Y. Pisarchyk and J. Lee, "Efficient Memory
Management for Deep Neural Net Inference", 2020.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ._program import Node, buffer_at
from .device import Device

ALIGNMENT = 64  # bytes


class Block(NamedTuple):
    """One piece of an arena.

    nbytes  bytes
    first   number of the first node that uses it
    last    number of the last one
    what    "t3" or "workspace"
    offset  from the start of the arena, in bytes
    """

    nbytes: int
    first: int
    last: int
    what: str
    offset: int = 0


def lifetimes(nodes: Sequence[Node], sizes: dict[int, int]) -> dict[int, tuple[int, int]]:
    """First and last node of each virtual buffer that is touched."""
    found: dict[int, tuple[int, int]] = {}
    for i, node in enumerate(nodes):
        for address in node.addresses:
            k = buffer_at(address)
            if k is not None and k in sizes:
                found[k] = (found[k][0] if k in found else i, i)
    return found


def place(blocks: Iterable[Block]) -> list[Block]:
    """Offsets for all blocks, such that none shares a byte with another one that lives at the same time."""
    pending = list(blocks)
    by_size = _place_in_turn(sorted(pending, key=lambda block: (-block.nbytes, block.first, block.what)))
    if arena_size(by_size) == peak_size(pending):
        return by_size
    by_time = _place_in_turn(sorted(pending, key=lambda block: (block.first, -block.nbytes, block.what)))
    return min(by_size, by_time, key=arena_size)


def _place_in_turn(pending: Sequence[Block]) -> list[Block]:
    placed = np.empty((4, len(pending)), np.int64)  # first, last, offset, end
    out = []
    for n, block in enumerate(pending):
        first, last, offsets, ends = placed[:, :n]
        alive = (first <= block.last) & (last >= block.first)
        offset = 0
        for start, end in sorted(zip(offsets[alive].tolist(), ends[alive].tolist())):
            if offset + block.nbytes <= start:
                break
            offset = max(offset, end)
        end = offset + -(-block.nbytes // ALIGNMENT) * ALIGNMENT
        placed[:, n] = block.first, block.last, offset, end
        out.append(block._replace(offset=offset))
    return out


def peak_size(blocks: Iterable[Block]) -> int:
    """Bytes of the blocks that are alive at the busiest node."""
    change: dict[int, int] = {}
    for block in blocks:
        change[block.first] = change.get(block.first, 0) + block.nbytes
        change[block.last + 1] = change.get(block.last + 1, 0) - block.nbytes
    now = peak = 0
    for node in sorted(change):
        now += change[node]
        peak = max(peak, now)
    return peak


def arena_size(blocks: Iterable[Block]) -> int:
    """Bytes that placed blocks need."""
    return max((block.offset + block.nbytes for block in blocks), default=0)


@dataclass(frozen=True)
class MemoryReport:
    """What a graph keeps for itself on one device; ``print`` shows it as a table.

    device  where
    arena   bytes of the arena
    naive   bytes that all recorded results that live in the graph alone, and a workspace for each call,
            would take on their own
    peak    bytes of the buffers that are alive at the busiest node: no arena can be smaller
    blocks  what lies in it: :class:`Block`, by offset
    """

    device: Device
    arena: int
    naive: int
    peak: int
    blocks: tuple[Block, ...]

    @classmethod
    def of(cls, device: Device, blocks: Sequence[Block], naive: int) -> MemoryReport:
        """The report on placed blocks."""
        ordered = sorted(blocks, key=lambda block: (block.offset, block.first))
        return cls(device, arena_size(blocks), naive, peak_size(blocks), tuple(ordered))

    def __str__(self) -> str:
        share = f", {100 * self.arena / self.naive:.0f} %" if self.naive else ""
        lines = [
            f"{self.device}: arena of {self.arena:,} bytes for {self.naive:,}{share}; "
            f"{self.peak:,} are alive at once",
            f"{'offset':>12} {'bytes':>12}  nodes      what",
        ]
        for block in self.blocks:
            nodes = f"{block.first}..{block.last}" if block.first != block.last else str(block.first)
            lines.append(f"{block.offset:>12,} {block.nbytes:>12,}  {nodes:9}  {block.what}")
        return "\n".join(lines)
