"""Runs rows of the table of operator cases between inaccessible pages; started by test_page_edges.py, once
for each instruction set.

    python _page_edge_child.py <share> <of> [<operator> ...]

Each row runs twice: every operand, and the workspace, which is exactly as long as was asked for, ends where a
page begins that faults when touched, and begins where such a page ends. What is only read is on read-only
pages; what lies between the elements is watched. Of all these, every <of>th is run, from <share> on.
Prints what was run as JSON: the number of rows, and the ways in which products were computed.
"""

from __future__ import annotations

import json
import logging
import math
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import infiniop_py
from infiniop_py._conformance.cases import CASES, Case, run
from infiniop_py._conformance.layouts import Guarded
from infiniop_py.workspace import Workspace

LONGEST = 400_000  # elements of all operands: beyond, a row has no more kinds of edges, only more of each
_WAY = re.compile(r"B kept|B transposed|blocked|in place by \w+|columns, A packed(, B packed by rows)?")


class Ways(logging.Handler):
    """The ways in which products are computed, from the log of new plans."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.met: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        if way := _WAY.search(record.getMessage()):
            self.met.add(way[0])


class Scratch:
    """Workspaces at the edge of the row that runs: nothing is kept, so that each is of its own length."""

    def __init__(self) -> None:
        self.edge = ""
        self._given: list[Guarded] = []

    def reserve(self, nbytes: int) -> Any:
        if nbytes == 0:
            return None
        # At a page's begin it would be aligned, which it need not be: there, guards watch both sides.
        layout, edge = ("C", "end") if self.edge == "end" else ("offset", "")
        self._given.append(Guarded((nbytes,), "u1", layout, edge))
        return infiniop_py.from_numpy(self._given[-1].view)

    def check(self) -> None:
        for given in self._given:
            given.assert_guards_intact("the workspace")
        self._given.clear()


def rows(operators: list[str]) -> Iterator[Case]:
    for case in CASES.values():
        short = sum(math.prod(shape) for shape in case.shapes) <= LONGEST
        if case.op in operators and short and not case.edge:
            yield from (replace(case, edge=edge) for edge in ("begin", "end"))


def main(share: int, of: int, operators: list[str]) -> None:
    ways, scratch, count = Ways(), Scratch(), 0
    log = logging.getLogger("infiniop_py")
    log.setLevel(logging.DEBUG)
    log.addHandler(ways)
    log.propagate = False
    Workspace.reserve = lambda self, nbytes, op: scratch.reserve(nbytes)  # type: ignore[method-assign]
    for case in islice(rows(operators), share, None, of):
        print(case.name, file=sys.stderr, flush=True)
        scratch.edge = case.edge
        # A workspace has a part for each thread; nothing else that they touch depends on their number.
        run(case, infiniop_py.set_num_threads, (1, 3) if case.op.startswith("gemm") else (1,))
        scratch.check()
        count += 1
    print(json.dumps({"isa": infiniop_py.cpu_isa(), "rows": count, "ways": sorted(ways.met)}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
