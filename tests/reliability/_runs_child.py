"""Runs operators with broken pointers and workspaces; started by test_hostile.py.

    python _runs_child.py <shared object of failing_malloc.c, or ""> <seed> <problems> <operator> [...]

Each call goes to the operator's own function, to a graph, and to infiniopRun3 where there are three
operands. All memory is in one arena, of which a refusal changes no byte, and a run only elements of outputs.
Prints the number of calls, and how many had each status.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import random
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "abi"))

import numpy as np
from _checked import Checked
from _library import SUCCESS, pointer
from _ops import DTYPES, OPS, Abi, Layout, Op, encode
from _problems import legal
from _rules import BY_NUMBER, Fault, run_faults, touched

ARENA = 1 << 15  # bytes
MARGIN = 1 << 11  # bytes between operands, and more than any reaches in one direction
PAIRS = 60  # calls with values of two arguments, per problem
FLOATS = (float("nan"), float("inf"), -float("inf"), 0.0, -1.0, 3.4e38)
#: A product that needs a workspace.
NEEDY = {
    "a": Layout((2, 70), dtype="f16"),
    "b": Layout((70, 12), dtype="f16"),
    "c": Layout((2, 12), dtype="f16"),
}
WORKSPACE = 1 << 20  # bytes; more than any of these problems asks for


class Case:
    """A legal problem in an arena, and its descriptor."""

    def __init__(self, abi: Abi, op: Op, layouts: dict[str, Layout], r: random.Random) -> None:
        self.op, self.layouts, self.random = op, layouts, r
        self.desc = abi.created(op, layouts)
        self.needed = abi.workspace_size(op, self.desc)
        whole = np.zeros(ARENA + 64, np.uint8)
        skip = -whole.ctypes.data % 64
        self.arena = whole[skip : skip + ARENA]
        self.base = self.arena.ctypes.data
        self.arena[...] = encode(np.arange(ARENA // 4) % 7, "f32").view(np.uint8)
        self.initial = self.arena.copy()
        self.workspace = np.full(WORKSPACE, 0xA5, np.uint8)
        self.pointers = {name: self.base + MARGIN * (2 * i + 1) for i, name in enumerate(op.operands)}

    def reset(self) -> None:
        self.arena[...] = self.initial

    def choices(self) -> dict[str, list[Any]]:
        """What each argument may be besides what it should."""
        pools: dict[str, list[Any]] = {}
        for name in self.op.operands:
            x = self.layouts[name]
            size = DTYPES[x.dtype].size
            pools[name] = [0, self.pointers[name] + 1, self.pointers[name] + DTYPES[x.dtype].alignment]
            for other in self.op.operands:
                at = self.pointers[other]
                steps = [*self.random.sample(range(-9, 10), 3), 0]
                pools[name] += [at + step * size for step in steps] if other != name else []
        if self.op.has_workspace:
            at = self.workspace.ctypes.data
            pools["workspace"] = [0, at + 1]  # which needs no alignment
            pools["workspace_size"] = [0, max(self.needed - 1, 0), self.needed, 2**64 - 1]
        for factor in self.op.factors:
            pools[factor] = list(FLOATS)
        return pools

    def changes(self) -> Iterator[dict[str, Any]]:
        """Nothing, every value by itself, each NULL with each other, and values of two arguments."""
        pools = self.choices()
        yield {}
        for name, values in pools.items():
            for value in values:
                yield {name: value}
            yield {}
        for first, second in itertools.combinations(self.op.operands, 2):
            yield {first: 0, second: 0}
            yield {first: self.pointers[first] + 1, second: 0}
        for _ in range(PAIRS):
            chosen = self.random.sample(list(pools), 2)
            yield {name: self.random.choice(pools[name]) for name in chosen}
        yield {}


class Runner:
    def __init__(self, shim: str) -> None:
        self.checked = Checked(shim)
        self.abi = Abi(self.checked.lib)
        self.graph = pointer()
        self.statuses: Counter[int] = Counter()

    def try_case(self, case: Case) -> None:
        usual: bytes | None = None
        for change in case.changes():
            self.call(case, change)
            if not change:  # what it did at first
                result = case.arena.tobytes()
                usual = usual or result
                assert result == usual, f"{case.op.name}: another result"
        assert self.abi.destroy(case.op, case.desc) == SUCCESS

    def call(self, case: Case, change: dict[str, Any]) -> None:
        op = case.op
        pointers = {name: change.get(name, at) for name, at in case.pointers.items()}
        workspace = change.get("workspace", case.workspace.ctypes.data)
        size = change.get("workspace_size", case.needed)
        factors = [change.get(factor, 1.0 if factor == "alpha" else 0.0) for factor in op.factors]
        before = [workspace or None, size] if op.has_workspace else []
        faults = list(run_faults(op, case.layouts, pointers, workspace, size, case.needed))
        operands = [at or None for at in pointers.values()]
        arguments = [case.desc, *before, *operands, *factors, None]
        self._run(case, f"infiniop{op.c_name}", arguments, faults, pointers)
        direct = case.arena.tobytes()
        if len(op.operands) == 3:
            without = list(run_faults(op, case.layouts, pointers, 0, 0, case.needed))
            self._run(case, "infiniopRun3", [case.desc, *operands], without, pointers)
        self._append(case, before or [None, 0], operands, factors, faults)
        if not faults and not change:
            assert case.arena.tobytes() == direct, f"{op.name}: a graph has another result"

    def _run(self, case: Case, name: str, arguments: list[Any], faults: list[Fault], pointers: Any) -> None:
        case.reset()
        status = self.checked.call(name, arguments, faults, begins=[case.op.name], watched=[case.arena])
        self.statuses[status] += 1
        if status == SUCCESS:
            self._only_outputs_changed(case, pointers)

    def _only_outputs_changed(self, case: Case, pointers: dict[str, int]) -> None:
        outside = np.ones(ARENA, np.bool_)
        for name in case.op.outputs:
            if pointers[name]:
                places = [pointers[name] - case.base + byte for byte in touched(case.layouts[name])]
                outside[places] = False
        changed = np.flatnonzero((case.arena != case.initial) & outside)
        assert changed.size == 0, f"{case.op.name}: bytes {changed[:5]} are no output's, {case.layouts}"

    def _append(
        self, case: Case, workspace: list[Any], operands: list[Any], factors: list[float], faults: list[Fault]
    ) -> None:
        case.reset()
        graph = ctypes.addressof(self.graph)
        assert self.checked.plain("infiniopCreateGraph", [self.abi.handle, graph])[0] == SUCCESS
        scalars = [*factors, *(1.0, 0.0)[len(factors) :]]
        array = (ctypes.c_void_p * len(operands))(*operands)

        def undo() -> int:
            assert self.checked.plain("infiniopGraphRun", [self.graph, None])[0] == SUCCESS
            kept = self.checked.plain("infiniopDestroyGraph", [self.graph])[1]
            self.checked.plain("infiniopCreateGraph", [self.abi.handle, graph])
            return kept

        status = self.checked.call(
            "infiniopGraphAppend",
            [self.graph, case.desc, *workspace, array, len(operands), *scalars],
            faults,
            begins=[case.op.name],
            watched=[case.arena, array],
            undo=undo,
        )
        self.statuses[status] += 1
        if status != SUCCESS:  # and nothing was appended
            assert self.checked.plain("infiniopGraphRun", [self.graph, None])[0] == SUCCESS
            assert np.array_equal(case.arena, case.initial)
        assert self.checked.plain("infiniopDestroyGraph", [self.graph])[0] == SUCCESS


def cases(abi: Abi, op: Op, n: int, r: random.Random) -> Iterator[Case]:
    if op.name == "gemm":
        yield Case(abi, op, NEEDY, r)
    while n:
        operands = legal(r, op)
        layouts = {name: Layout(x.shape, x.strides, BY_NUMBER[x.dtype].name) for name, x in operands.items()}
        reaches = [max(map(abs, layout.reach)) * DTYPES[layout.dtype].size for layout in layouts.values()]
        if max(reaches) < MARGIN // 2 and max(len(touched(x)) for x in layouts.values()) < 1000:
            n -= 1
            yield Case(abi, op, layouts, r)


def main(shim: str, seed: int, n: int, names: list[str]) -> None:
    runner = Runner(shim)
    for name in names:
        r = random.Random(seed)
        for case in cases(runner.abi, OPS[name], n, r):
            print(name, case.layouts, file=sys.stderr, flush=True)
            runner.try_case(case)
    runner.checked.state_is_unchanged()
    runner.abi.close()
    print(json.dumps({"calls": runner.checked.calls, "statuses": runner.statuses}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
