"""Rewrites of a recorded program that leave its results as they are.

Five rules, applied in this order:

* *copy*: a row-major copy that only other calls read is left out; they read what was copied, through the
  strides it has there. "exact" keeps the copy where a product would sum up in another order then.
* *store*: a product that only a copy reads is stored where the copy would put it, if its rows stay rows.
* *epilogue*: a product that only an elementwise operator reads becomes one call with it, which rounds the
  product to the element type before it goes on, as two calls do.
* *addend*: a product that is added to an array in place becomes a product with ``beta = 1``. For F32 and F64
  with ``alpha = 1`` that is the same: sums are kept in the element type. With F16, BF16 or another `alpha`
  one rounding less happens, so only "fast" does it. The other way round, a copy of an addend and a product
  with ``beta = 1`` become one call that reads the addend where it is.
* *dead*: a call whose results nothing reads, and nobody but the graph has, is left out.

A rule is applied only where no write between the calls it brings together could be seen, judged by ranges of
bytes, and where the operator takes the new operands in no more native calls than before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ._layout import Layout, interned
from ._program import Node, Range, buffer_at, covers, is_planned, through_copy
from .errors import InfiniopError

#: A copy that more calls read is worth being made: each would go through its strides again.
MOST_READERS = 4

MODES = ("exact", "fast", "none")

#: Calls further apart are not brought together: looking at all between each two would take too long.
WINDOW = 256
_LONG_K = 512  # see _sums_along_k
_WIDE = 4  # bytes
_ZERO = 2.0**-150  # the largest number that is 0 when it is rounded to F32


class Rewrite(NamedTuple):
    """One applied rule.

    rule    "copy", "store", "epilogue", "addend" or "dead"
    nodes   numbers of the recorded calls it concerns, the first one gone
    bytes   of memory traffic saved
    flops   saved
    """

    rule: str
    nodes: tuple[int, ...]
    bytes: int
    flops: int


class Fusion:
    """The passes over one program; `nodes` becomes the shorter one.

    `sizes` are the bytes of the virtual buffers, by number.
    """

    def __init__(self, nodes: Sequence[Node], sizes: dict[int, int], mode: str) -> None:
        self._all: list[Node | None] = list(nodes)
        self._sizes = sizes
        self._is_fast = mode == "fast"
        self._users: dict[int, set[int]] = {k: set() for k in sizes}  # the nodes that touch a virtual buffer
        for i, node in enumerate(nodes):
            self._note(i, node, set.add)
        self.rewrites: list[Rewrite] = []
        if mode != "none":
            for rule in self._rules():
                for i in range(len(self._all)):
                    self._try(rule, i)
            self._remove_dead()
        self.numbers = [i for i, node in enumerate(self._all) if node is not None]
        self.nodes = [node for node in self._all if node is not None]

    def _rules(self) -> list[Callable[[int, Node], bool]]:
        return [
            self._absorb_copy,
            self._store_through,
            self._absorb_addend,
            self._fuse_epilogue,
            self._add_in_place,
        ]

    # ---- looking around ------------------------------------------------------------------------------------

    def _try(self, rule: Callable[[int, Node], bool], i: int) -> None:
        node = self._all[i]
        if node is not None and is_planned(node):
            rule(i, node)

    def _between(self, i: int, j: int) -> list[Node]:
        return [node for node in self._all[i + 1 : j] if node is not None]

    def _is_written(self, ranges: Sequence[Range], i: int, j: int) -> bool:
        """May a node between i and j write any of them?"""
        return j - i > WINDOW or any(
            write.meets(one) for node in self._between(i, j) for write in node.writes for one in ranges
        )

    def _is_touched(self, what: Range, i: int, j: int) -> bool:
        """May a node between i and j read or write it?"""
        return j - i > WINDOW or any(what.meets(one) for node in self._between(i, j) for one in node.ranges)

    def _touching(self, k: int) -> list[int]:
        """The nodes that touch a virtual buffer, in order."""
        return sorted(self._users[k])

    def _note(self, i: int, node: Node | None, change: Callable[[set[int], int], None]) -> None:
        for address in () if node is None else node.addresses:
            k = buffer_at(address)
            if k is not None:
                change(self._users[k], i)

    def _put(self, i: int, node: Node | None) -> None:
        self._note(i, self._all[i], set.discard)
        self._note(i, node, set.add)
        self._all[i] = node

    def _last_touch(self, operand: int, of: Node, before: int) -> int | None:
        """The last node before one that touches the memory of an operand, or its virtual buffer; None if
        there is none near.
        """
        k = buffer_at(of.addresses[operand])
        if k is not None:
            return max((i for i in self._users[k] if i < before), default=None)
        what = of.ranges[operand]
        for i in range(before - 1, max(-1, before - 1 - WINDOW), -1):
            node = self._all[i]
            if node is not None and any(what.meets(one) for one in node.ranges):
                return i
        return None

    def _replace(self, rule: str, gone: int, new: dict[int, Node]) -> bool:
        old = [node for i in (gone, *new) if (node := self._all[i]) is not None]
        saved_bytes = sum(n.bytes for n in old) - sum(n.bytes for n in new.values())
        saved_flops = sum(n.flops for n in old) - sum(n.flops for n in new.values())
        self._put(gone, None)
        for i, node in new.items():
            self._put(i, node)
        self.rewrites.append(Rewrite(rule, (gone, *new), saved_bytes, saved_flops))
        return True

    # ---- the rules -----------------------------------------------------------------------------------------

    def _absorb_copy(self, i: int, copy: Node) -> bool:
        if not copy.op.is_copy:
            return False
        (copied, at), (source, source_at) = copy.operand(0), copy.operand(1)
        k = buffer_at(at)
        if k is None or k not in self._sizes or not covers(copied, at, copy.ranges[0].low, self._sizes[k]):
            return False
        readers = [j for j in self._touching(k) if j != i]
        if not 0 < len(readers) <= MOST_READERS or readers[0] < i:
            return False
        new = {}
        for j in readers:
            node = self._all[j]
            if node is None or not is_planned(node) or self._is_written(copy.ranges[1:], i, j):
                return False
            if any(buffer_at(address) == k for address in node.addresses[: node.n_outputs]):
                return False
            if any(write.meets(copy.ranges[1]) for write in node.writes):
                return False
            found = {}
            for n in range(node.n_outputs, len(node.layouts)):
                layout, address = node.operand(n)
                if buffer_at(address) != k:
                    continue
                seen = through_copy(layout, address - at, copied, source)
                if seen is None or not _reads_well(node, seen[0]):
                    return False
                found[n] = (seen[0], source_at + seen[1])
            changed = _or_none(lambda node=node, found=found: node.with_operands(found))  # type: ignore[misc]
            if changed is None or changed.runs > node.runs:
                return False
            if not self._is_fast and _sums_along_k(changed) != _sums_along_k(node):
                return False
            new[j] = changed
        return self._replace("copy", i, new)

    def _store_through(self, j: int, copy: Node) -> bool:
        if not copy.op.is_copy:
            return False
        k = buffer_at(copy.addresses[1])
        i = None if k is None else self._last_touch(1, copy, j)
        product = None if i is None else self._all[i]
        if k is None or i is None or product is None or not product.op.epilogues:
            return False
        if not is_planned(product) or product.op.reads_outputs(product.scalars):
            return False
        (result, at), (target, target_at), (seen, seen_at) = product.operand(0), *map(copy.operand, (0, 1))
        if self._touching(k) != [i, j] or not covers(result, at, product.ranges[0].low, self._sizes[k]):
            return False
        if self._is_touched(copy.ranges[0], i, j):
            return False
        if any(copy.ranges[0].meets(one) for one in product.ranges):
            return False
        # What the copy sees, in the order in which it lies in memory; all of the result must be there.
        order = sorted(range(len(seen[1])), key=lambda d: -seen[2][d])
        ordered, stored = (
            interned(layout[0], *(tuple(part[d] for d in order) for part in layout[1:]))
            for layout in (seen, target)
        )
        found = through_copy(result, at - seen_at, ordered, stored)
        if found is None or not _has_unit_rows(found[0]):
            return False
        changed = _or_none(lambda: product.with_operands({0: (found[0], target_at + found[1])}))
        if changed is None or changed.runs > product.runs:
            return False
        return self._replace("store", j, {i: changed})

    def _absorb_addend(self, j: int, product: Node) -> bool:
        fused_op = product.op.epilogues.get("add")
        if fused_op is None or product.scalars != (1.0, 1.0) or not _keeps_sums(product):
            return False
        if _is_empty(product):
            return False
        i = self._last_touch(0, product, j)
        copy = None if i is None else self._all[i]
        if i is None or copy is None or not is_planned(copy) or not copy.op.is_copy:
            return False
        if copy.operand(0) != product.operand(0) or self._is_written(copy.ranges[1:], i, j):
            return False
        return self._fuse(
            "addend",
            *(i, j, fused_op),
            [product.operand(0), product.operand(1), product.operand(2), copy.operand(1)],
            product.scalars[:1],
        )

    def _producer(self, j: int, node: Node, n: int) -> tuple[int, Node] | None:
        """The product whose whole result is operand `n` of node `j`, and nothing else's before."""
        is_in_place = node.operand(n) == node.operand(0)
        if not is_in_place and buffer_at(node.addresses[n]) is None:
            return None  # somebody may look at it afterwards
        i = self._last_touch(n, node, j)
        product = None if i is None else self._all[i]
        if i is None or product is None or not is_planned(product) or not product.op.epilogues:
            return None
        if product.operand(0) != node.operand(n) or product.op.reads_outputs(product.scalars):
            return None
        if self._is_written(product.ranges[1:], i, j):
            return None
        if not is_in_place:
            k = buffer_at(product.addresses[0])
            if k is None or self._touching(k) != [i, j]:
                return None
        return i, product

    def _fuse_epilogue(self, j: int, node: Node) -> bool:
        for n in (1, 2) if len(node.layouts) == 3 and not node.op.epilogues else ():
            other = 3 - n
            found = self._producer(j, node, n)
            if found is None:
                continue
            i, product = found
            fused_op = product.op.epilogues.get(node.name)
            if fused_op is None or node.ranges[other].meets(product.ranges[0]):
                continue
            operands = [node.operand(0), product.operand(1), product.operand(2), node.operand(other)]
            if self._fuse("epilogue", i, j, fused_op, operands, product.scalars[:1]):
                return True
        return False

    def _add_in_place(self, j: int, node: Node) -> bool:
        for n in (1, 2) if len(node.layouts) == 3 and not node.op.epilogues else ():
            if node.operand(0) != node.operand(3 - n) or node.operand(0) == node.operand(n):
                continue
            found = self._producer(j, node, n)
            if found is None or node.name != "add":
                continue
            i, product = found
            alpha = product.scalars[0]
            if not self._is_fast and (alpha != 1 or not _keeps_sums(product)):
                continue
            if _is_empty(product):
                continue
            operands = [node.operand(0), product.operand(1), product.operand(2)]
            if self._fuse("addend", i, j, product.op, operands, (alpha, 1.0)):
                return True
        return False

    def _fuse(
        self,
        rule: str,
        i: int,
        j: int,
        op: Any,
        operands: list[Any],
        scalars: tuple[float, ...],
    ) -> bool:
        """Put one call in the place of node `j`, and none in that of node `i`."""
        first, second = self._all[i], self._all[j]
        assert first is not None and second is not None
        layouts, addresses = zip(*operands)
        fused = _or_none(lambda: Node(op, second.device, layouts, addresses, scalars=scalars))
        if fused is None or fused.runs > max(first.runs, second.runs):
            return False
        if any(fused.ranges[0].meets(read) for read in fused.ranges[1:]):
            return False
        return self._replace(rule, i, {j: fused})

    def _remove_dead(self) -> None:
        read: dict[int | None, list[Range]] = {}  # later, by virtual buffer
        for i in range(len(self._all) - 1, -1, -1):
            node = self._all[i]
            if node is None:
                continue
            buffers = [buffer_at(address) for address in node.addresses]
            outputs = list(zip(buffers, node.writes))
            if all(
                k is not None and not any(write.meets(one) for one in read.get(k, ())) for k, write in outputs
            ):
                self._replace("dead", i, {})
                continue
            for k, one in zip(buffers[len(buffers) - len(node.reads) :], node.reads):
                if k is not None:
                    read.setdefault(k, []).append(one)


def _has_unit_rows(layout: Layout) -> bool:
    dtype, shape, strides = layout
    return not shape or shape[-1] == 1 or strides[-1] in (0, dtype.itemsize)


def _reads_well(node: Node, layout: Layout) -> bool:
    """Is an operand with these strides read as fast as it is copied first? Products pack what they read, and
    copies have to go through strides somewhere. Sums of transposed arrays were measured: 1.0 to 3 times as
    fast in F32, 0.7 to 0.9 times in F16.
    """
    return bool(node.op.is_copy or node.op.epilogues or _has_unit_rows(layout) or layout[0].itemsize >= _WIDE)


def _sums_along_k(node: Node) -> bool:
    """May this be a product in the order of sums that ``infiniop.h`` has, at gemm, where rows of A and
    columns of B are both contiguous? Asked of layouts alone, so that a graph is the same on every device.
    """
    if node.op.is_copy or node.name not in ("gemm", "gemm_add", "gemm_mul"):
        return False
    (dtype, shape, of_a), (_, _, of_b) = node.layouts[1:3]
    return shape[-1] >= _LONG_K and of_a[-1] == of_b[-2] == dtype.itemsize


def _is_empty(product: Node) -> bool:
    """Does a product sum up nothing? It is beta * c alone then, which is not 0 + c where c is -0."""
    return not product.layouts[1][1][-1] or abs(product.scalars[0]) <= _ZERO


def _keeps_sums(product: Node) -> bool:
    return product.layouts[0][0] in product.op.keeps_sums


def _or_none(make: Callable[[], Node]) -> Node | None:
    try:
        return make()
    except InfiniopError:
        return None
