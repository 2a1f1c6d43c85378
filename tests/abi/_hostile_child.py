"""Calls exported functions with broken arguments; started by test_hostile.py, a group a process.

    python _hostile_child.py <seed> <function> [<function> ...]

Only what a library can find out is broken: NULL, values out of their set, objects of another kind or
destroyed, shapes and strides, alignment. A pointer to memory that is not there is beyond any check. Prints
the number of calls.
"""

from __future__ import annotations

import ctypes
import itertools
import random
import sys
from typing import Any

import _library
from _calls import OBJECTS, Scene, releases
from _headers import Function, Parameter
from _library import STATUSES, SUCCESS
from _ops import signed_sizes, sizes

INTS = (-(2**31), -1, 1, 10, 20, 2**31 - 1)
HUGE = (2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
FLOATS = (float("nan"), float("inf"), -float("inf"), 0.0, -1.0, 3.4e38)
# Functions whose sizes name memory of the caller: only 0 is both wrong for the rest of the call and safe.
TRUSTED_SIZE = ("infinirtMemcpy", "infinirtMemset", "infinirtGraphInstantiate")
PAIRS = 40  # calls with two broken arguments, per function


class Foreign:
    """Objects that are none of this library's."""

    def __init__(self) -> None:
        self.zeros = ctypes.create_string_buffer(4096)
        self.ones = ctypes.create_string_buffer(b"\xff" * 4096, 4096)
        self.noise = ctypes.create_string_buffer(random.Random(0).randbytes(4096), 4096)

    def addresses(self) -> list[int]:
        return [
            ctypes.addressof(b) + shift for b in (self.zeros, self.ones, self.noise) for shift in (0, 1, 64)
        ]


def objects(scene: Scene, foreign: Foreign) -> list[Any]:
    small = [1, 8, 2**63, 2**64 - 1]
    return [None, *scene.live.values(), *scene.dead.values(), *foreign.addresses(), *small]


def broken(scene: Scene, foreign: Foreign, function: Function, parameter: Parameter) -> list[Any]:
    """Values that the parameter should not have, or that are at the edge of what it may have."""
    if releases(function) and parameter == function.parameters[0]:
        # Live objects of the right kind are left alone: they are needed for the other calls.
        own = scene.live.get(OBJECTS.get(parameter.type, ""))
        return [value for value in objects(scene, foreign) if value is not own]
    if parameter.type in OBJECTS:
        return objects(scene, foreign)
    if parameter.name == "shape":
        return [None, *(sizes(pair) for pair in itertools.product((0, 1, 3, *HUGE), repeat=2))]
    if parameter.name == "strides":
        edge = (-(2**63), -(2**62), -1, 0, 1, 2**62, 2**63 - 1)
        return [None, *(signed_sizes(pair) for pair in itertools.product(edge, repeat=2))]
    if parameter.name == "operands":
        legal = scene.argument(function, parameter)
        partly = [(ctypes.c_void_p * 3)(*legal) for _ in range(6)]
        for i, array in enumerate(partly):
            array[i % 3] = None if i < 3 else legal[i % 3] + 1
        same = (ctypes.c_void_p * 3)(*[legal[0]] * 3)
        return [None, *partly, same]
    if parameter.name == "op":
        return [None, b"", b"GEMM", b"add", b"rearrange", b"x" * 100_000, b"%s%n"]
    if parameter.name == "layouts":
        legal = list(scene.layouts)
        wrong = [
            [*legal[:i], value, *legal[i + 1 :]]
            for i in range(len(legal))
            for value in (-(2**63), -1, 0, 1, 3, 17, *(size for size in HUGE if size < 2**63))
        ]
        return [None, *((ctypes.c_int64 * len(legal))(*numbers) for numbers in wrong)]
    if parameter.name in ("path", "message"):
        return [None, b"", b"/", b"relative.so", b"/dev/null", b"/" + b"x" * 100_000, b"\xff\xfe%s%n"]
    if parameter.type == "void *" and parameter.name == "stream":
        return [None, *foreign.addresses()]
    if "*" in parameter.type:
        memory = scene.argument(function, parameter)
        is_data = parameter.type in ("void *", "const void *") and "memcpy" not in function.name.lower()
        return [None, memory + 1] if is_data and "Memset" not in function.name else [None]
    if parameter.type == "float":
        return list(FLOATS)
    if parameter.type == "size_t":
        if function.name.startswith(TRUSTED_SIZE):
            return [0]
        if parameter.name == "ndim":
            return [0, 1, 17, 100, *HUGE]  # 1: one entry of the arrays; more than 2 must be refused unread
        if parameter.name == "workspace_size":
            return [0, 1]
        if parameter.name == "bytes":
            return [0, 1, 63, *HUGE[2:]]  # what a machine may really have would be allocated
        return [0, 1, 2, 4, 100, *HUGE]
    return [value for value in INTS if not (parameter.name == "device_id" and value == 0)]


class Caller:
    """Makes calls and checks what holds for all of them."""

    def __init__(self, lib: _library.Library) -> None:
        self.lib = lib
        self.calls = 0

    def call(self, function: Function, arguments: list[Any]) -> int:
        if self.lib.infinirtSetLastError(SUCCESS, b"") != SUCCESS:
            raise AssertionError("the message store failed")
        status = self.lib.functions[function.name](*arguments)
        self.calls += 1
        if function.returns != "infiniStatus_t":
            assert isinstance(status, bytes), f"{function.name} returned NULL"
            return SUCCESS
        if function.name == "infinirtSetLastError":
            assert status == arguments[0]
            return SUCCESS
        shown = f"{function.name}({', '.join(map(str, arguments))}) -> {status}: {self.lib.message()!r}"
        assert status in STATUSES, shown
        if status != SUCCESS:
            assert self.lib.message(), f"no message: {shown}"
        return int(status)


def main(seed: int, names: list[str]) -> None:
    lib = _library.load()
    scene, foreign, caller = Scene(lib), Foreign(), Caller(lib)
    chooser = random.Random(seed)
    for function in lib.declared:
        if function.name not in names:
            continue
        print(function.name, file=sys.stderr, flush=True)
        values = [broken(scene, foreign, function, parameter) for parameter in function.parameters]
        trials: list[dict[int, Any]] = [{i: value} for i, listed in enumerate(values) for value in listed]
        for _ in range(PAIRS if len(values) > 1 else 0):
            places = chooser.sample(range(len(values)), 2)
            if all(values[place] for place in places):
                trials.append({place: chooser.choice(values[place]) for place in places})
        for trial in trials or [{}]:
            arguments = scene.arguments(function)
            for place, value in trial.items():
                arguments[place] = value
            status = caller.call(function, arguments)
            if status == SUCCESS and not releases(function):
                scene.release(function, arguments)
            lib.infinirtSetDevice(_library.CPU, 0)
    lib.infiniopSetNumThreads(0)
    lib.infiniopSetNumThreadsLocal(0)
    # Everything that was alive still is.
    scene.close()
    print(caller.calls)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
