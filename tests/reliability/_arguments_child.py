"""Calls exported functions with broken arguments; started by test_hostile.py, a group a process.

    python _arguments_child.py <shared object of failing_malloc.c, or ""> <seed> <function> [<function> ...]

Each value alone, each NULL with each other NULL, and values of two parameters at a time. Only what a
library can find out is broken: a pointer to memory that is not there is beyond any check. Prints the number
of calls.
"""

from __future__ import annotations

import ctypes
import itertools
import random
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "abi"))

from _calls import OBJECTS, Scene, operator_of, releases
from _checked import Checked
from _headers import Function, Parameter
from _library import SUCCESS, is_pointer
from _ops import OPS, signed_sizes, sizes
from _rules import Arguments, Value, faults_of, is_pointer_to_result

INTS = (-(2**31), -1, 0, 1, 2, 3, 4, 9, 10, 20, 2**31 - 1)
HUGE = (2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
EDGES = (-(2**63), -(2**62), -1, 0, 1, 2**62, 2**63 - 1)  # of strides
FLOATS = (float("nan"), float("inf"), -float("inf"), 0.0, -1.0, 3.4e38)
PAIRS = 700  # calls with values of two parameters, per function
RESULT = 512  # bytes
PATTERN = b"\xa5" * RESULT
# What sets something for the calls after it.
SETTERS = ("infiniopSetNumThreads", "infiniopSetNumThreadsLocal")
# Parameters that are written by a call that fails, too.
TOLD_OF_FAILURES = {"infinirtGraphInstantiate": ("node", "log")}
# Functions whose sizes name memory of the caller, which is as long as a result.
TRUSTED_SIZE = ("infinirtMemcpy", "infinirtMemset", "infinirtGraphInstantiate")


class World:
    """A scene, objects that are none of the library's, and room for results."""

    def __init__(self, checked: Checked) -> None:
        self.lib = checked.lib
        self.scene = Scene(self.lib)
        self.foreign = [
            ctypes.create_string_buffer(content, 4096)
            for content in (bytes(4096), b"\xff" * 4096, random.Random(0).randbytes(4096))
        ]
        self.freed = ctypes.c_void_p()
        assert self.lib.infinirtMalloc(ctypes.byref(self.freed), 4096) == SUCCESS
        assert self.lib.infinirtFree(self.freed) == SUCCESS
        self._results = [ctypes.create_string_buffer(RESULT) for _ in range(10)]
        self._memory = [ctypes.create_string_buffer(RESULT) for _ in range(10)]
        self.known: dict[int | None, Value] = {}
        self.know()

    def know(self) -> None:
        """What the live objects are."""
        scene = self.scene
        self.known = {live.value: Value(live, kind) for kind, live in scene.live.items()}
        self.known[scene.live["tensor"].value] = Value(scene.live["tensor"], "tensor", OPS["add"].legal["c"])
        for op in OPS.values():
            live = scene.live[op.name]
            needed = scene.abi.workspace_size(op, live)
            self.known[live.value] = Value(live, op.name, op.layouts(), needed)
        for (op_name, name), tensor in scene.tensors.items():
            self.known[tensor.value] = Value(tensor, "tensor", OPS[op_name].legal[name])

    def objects(self) -> list[Value]:
        """NULL, objects of all kinds, dead ones, and what never was one."""
        alive = [self.known[live.value] for live in self.scene.live.values()]
        dead = [Value(dead) for dead in (*self.scene.dead.values(), self.freed)]
        foreign = [Value(ctypes.addressof(x) + shift) for x in self.foreign for shift in (0, 1, 64)]
        return [Value(None), *alive, *dead, *foreign, *map(Value, (1, 8, 2**63, 2**64 - 1))]

    def legal(self, function: Function) -> list[Value]:
        """Arguments of a call that succeeds, where one does; results get a pattern."""
        values = []
        for place, parameter in enumerate(function.parameters):
            raw = self.scene.argument(function, parameter)
            if is_pointer_to_result(function, parameter.name):
                ctypes.memmove(self._results[place], PATTERN, RESULT)
                values.append(Value(ctypes.addressof(self._results[place])))
            elif parameter.name in ("ptr", "dst", "src") and raw is not None:
                values.append(Value(ctypes.addressof(self._memory[place])))
            elif parameter.type in OBJECTS and raw is not None:
                values.append(self.known[raw.value])
            elif parameter.name == "operands":
                norm = self.scene.memory["add_rms_norm"]
                rest = [memory.pointer for memory in norm.values()]  # for operators of more operands
                values.append(Value((ctypes.c_void_p * 8)(*raw, *rest)))
            elif parameter.name == "layouts":  # zeros behind it, for those who are told of more
                values.append(Value((ctypes.c_int64 * 256)(*raw)))
            else:
                values.append(Value(raw))
        return values

    def broken(self, function: Function, place: int) -> list[Value]:
        """Values that a parameter should not have, or that are at the edge of what it may have."""
        parameter = function.parameters[place]
        if is_pointer_to_result(function, parameter.name):
            return [Value(None)]
        if releases(function) and place == 0:
            # Live objects of the right kind are needed for the other calls.
            own = OBJECTS.get(parameter.type)
            return [value for value in self.objects() if own is None or value.kind != own]
        if parameter.type in OBJECTS:
            return self.objects()
        if parameter.name == "stream":  # of an operator, on the CPU
            return self.objects()
        legal = self.legal(function)[place].raw
        if parameter.name in ("operands", "layouts"):
            return [Value(None), *map(Value, self._changed(parameter, legal))]
        return list(map(Value, self._plain(function, parameter, legal)))

    @staticmethod
    def _changed(parameter: Parameter, legal: Any) -> list[Any]:
        """Copies of an array with one entry changed."""
        copies = []
        for i, old in enumerate(legal[:24]):
            edges = (-(2**63), -1, 0, 1, 3, 5, 17, 2**32, 2**62, 2**63 - 1)
            for value in (None, old + 1, legal[0]) if parameter.name == "operands" else edges:
                copies.append(type(legal)(*legal))
                copies[-1][i] = value
        return copies

    def _plain(self, function: Function, parameter: Parameter, legal: Any) -> list[Any]:
        name = parameter.name
        pools: dict[str, list[Any]] = {
            "shape": [None, *(sizes(pair) for pair in itertools.product((0, 1, 3, *HUGE), repeat=2))],
            "strides": [None, *(signed_sizes(pair) for pair in itertools.product(EDGES, repeat=2))],
            "op": [None, b"", b"GEMM", *(op.encode() for op in OPS), b"x" * 100_000, b"%s%n", b"\xff"],
            "path": [None, b"", b"/", b"relative.so", b"/dev/null", b"/" + b"x" * 100_000, b"\xff%s%n"],
            "message": [None, b"", b"%s%n", b"x" * 100_000],
            "ndim": [0, 1, 2, 17, 100, *HUGE],
            "bytes": [0, 1, 63, 64, *(size for size in HUGE if size >= 2**62)],
            "workspace_size": [0, 1, 2**64 - 1],
            "n_operands": [0, 1, 2, 3, 4, 5, *HUGE],
            "what": [-(2**31), -1, 4, 2**31 - 1],  # not the others, which take a while
            "device": [-(2**31), -1, 2, 9, 10, 20, 2**31 - 1],  # NVIDIA may be there
            "flags": [0, 1, 2, 3, 4, 2**31, 2**32 - 1],
        }
        if name in pools:
            return pools[name]
        if parameter.type == "float":
            return list(FLOATS)
        if name == "workspace":
            return [None, legal + 1]
        if is_pointer(parameter.type):
            op = operator_of(function)
            misaligned = op is not None or name in ("x0", "x1", "x2", "ptr", "dst", "src")
            others = [memory.pointer for memory in self.scene.memory[op.name].values()] if op else []
            return [None, *others, *([legal + 1] if misaligned else [])]
        if name == "n" and "layouts" in [p.name for p in function.parameters]:
            # Also so many that their bytes are as few again, counted with 64 bits.
            wrapped = [2**61 + legal, 2**62 + legal, 2**63 + legal]
            return [0, 1, 2, legal - 1, 2**31, 2**32, 2**63, *wrapped]
        if parameter.type == "size_t":
            if function.name.startswith(TRUSTED_SIZE):
                return [0, 1, 64]
            return [0, 1, 2, 63, 2**57, 2**62, 2**63 - 1, 2**63, 2**64 - 64, 2**64 - 1]
        return [value for value in INTS if value != 0 or name != "n"]


class Group:
    """Calls of one function after the other."""

    def __init__(self, shim: str, seed: int) -> None:
        self.checked = Checked(shim)
        self.world = World(self.checked)
        self.random = random.Random(seed)

    def try_function(self, function: Function) -> None:
        pools = [self.world.broken(function, place) for place in range(len(function.parameters))]
        self.call(function, {})
        for place, pool in enumerate(pools):
            for value in pool:
                self.call(function, {place: value})
            self.call(function, {})  # still does what it should
        nullable = [place for place, pool in enumerate(pools) if any(value.raw is None for value in pool)]
        for pair in itertools.combinations(nullable, 2):
            self.call(function, dict.fromkeys(pair, Value(None)))
        places = [place for place, pool in enumerate(pools) if pool]
        combinations = list(itertools.combinations(places, 2))
        for n in range(PAIRS if combinations else 0):
            pair = combinations[n % len(combinations)]
            self.call(function, {place: self.random.choice(pools[place]) for place in pair})
        self.call(function, {})

    def call(self, function: Function, changed: dict[int, Value]) -> None:
        values = self.world.legal(function)
        for place, value in changed.items():
            values[place] = value
        if function.returns != "infiniStatus_t" or function.name == "infinirtSetLastError":
            self._call_without_status(function, [value.raw for value in values])
            return
        call = Arguments(function, values)
        raw = [value.raw for value in values]
        told = TOLD_OF_FAILURES.get(function.name, ())
        named = [
            (p.name, value)
            for p, value in zip(function.parameters, values, strict=True)
            if p.name not in told
        ]
        results = [value.raw for name, value in named if is_pointer_to_result(function, name) and value.raw]
        room = [(ctypes.c_char * RESULT).from_address(at) for at in results]
        cleared = "Malloc" in function.name  # which sets its result to NULL first
        op = operator_of(function)
        memory = [x.bytes for x in self.world.scene.memory[op.name if op else "gemm"].values()]
        arrays = [value.raw for _, value in named if isinstance(value.raw, ctypes.Array)]
        about = {op.name if op else "", *(value.kind for value in values), call.get("op")}
        begins = [name for name in OPS if name in about or name.encode() in about]

        def undo() -> int:
            return self._undo(function, raw)

        status = self.checked.call(
            function.name, raw, faults_of(call), begins=begins, undo=undo,
            watched=[*memory, *arrays, *([] if cleared else room)],
        )  # fmt: skip
        if status != SUCCESS and cleared and room:
            assert bytes(room[0]) == bytes(8) + PATTERN[8:], "no NULL"
        if status == SUCCESS:
            assert all(bytes(one) != PATTERN for one in room), f"{function.name}: nothing was written"
        self.checked.state_is_unchanged()

    def _undo(self, function: Function, raw: list[Any]) -> int:
        """Takes back what a call did, and returns the blocks that are kept beyond it."""
        kept = 0

        def call(name: str, arguments: list[Any]) -> int:
            nonlocal kept
            status, held = self.checked.plain(name, arguments)
            kept += held
            return status

        scene = self.world.scene
        if function.name == "infiniopGraphAppend":  # the graph goes, and another one comes
            graph = scene.live["graph"]
            assert call("infiniopDestroyGraph", [graph]) == SUCCESS
            assert call("infiniopCreateGraph", [scene.abi.handle, ctypes.addressof(graph)]) == SUCCESS
            self.world.know()
        elif function.name in SETTERS:
            assert call(function.name, [0]) == SUCCESS
        elif not releases(function):
            scene.release(function, raw, call)
        return kept

    def _call_without_status(self, function: Function, raw: list[Any]) -> None:
        got, _ = self.checked.plain(function.name, raw)
        if function.name == "infinirtSetLastError":
            assert got == raw[0]
        else:
            assert got, f"{function.name} returned NULL"


def main(shim: str, seed: int, names: list[str]) -> None:
    group = Group(shim, seed)
    for function in group.checked.lib.declared:
        if function.name in names:
            print(function.name, file=sys.stderr, flush=True)
            group.try_function(function)
    # Everything that was alive still is.
    group.world.scene.close()
    print(group.checked.calls)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
