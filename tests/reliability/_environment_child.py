"""Calls the libraries from threads whose floating-point environment is not the usual one; started by
test_environment.py.

    python _environment_child.py <shared object of fp_environment.c>

Every exported function with legal arguments, and every operator on numbers that round and among the
subnormals, by several threads, alone and in a graph: the bits are those of the usual environment, and
afterwards the caller's is what it was, exception flags included. Prints the numbers of calls.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "abi"))

import _library
import numpy as np
from _calls import Scene, releases
from _library import SUCCESS, Library, pointer
from _ops import FLOATS, OPS, Abi, Layout, Memory, Op


class Environment(ctypes.Structure):
    _fields_ = [("mxcsr", ctypes.c_uint32), ("control", ctypes.c_uint16), ("status", ctypes.c_uint16)]


DAZ, FTZ = 0x0040, 0x8000
DOWN, UP, TO_ZERO = 0x2000, 0x4000, 0x6000
NO_TRAPS, ALL_FLAGS = 0x1F80, 0x003F
USUAL_X87 = 0x037F  # extended precision, to nearest, no traps
ENVIRONMENTS = {
    "flags": (NO_TRAPS | ALL_FLAGS, USUAL_X87),
    "down": (NO_TRAPS | DOWN, 0x077F),
    "up": (NO_TRAPS | UP, 0x0B7F),
    "to zero, in single precision": (NO_TRAPS | TO_ZERO, 0x0C7F),
    "results flushed": (NO_TRAPS | FTZ, USUAL_X87),
    "operands flushed": (NO_TRAPS | DAZ, USUAL_X87),
    "both flushed": (NO_TRAPS | FTZ | DAZ, USUAL_X87),
    "traps": (0, 0x0340),
    "traps, up, both flushed": (UP | FTZ | DAZ, 0x0B40),
}


class Caller:
    """Calls functions in an environment."""

    def __init__(self, shim: ctypes.CDLL, wanted: Environment) -> None:
        self._shim, self._wanted = shim, wanted
        self.calls = 0
        self._usual = Environment()
        shim.get_environment(ctypes.byref(self._usual))

    def __call__(self, function: Any, *arguments: Any) -> Any:
        found = Environment()
        wanted, after, usual = (ctypes.byref(x) for x in (self._wanted, found, self._usual))
        enter, leave = self._shim.set_environment, self._shim.get_environment
        # Converted before: that may be inexact.
        arguments = tuple(ctypes.c_float(x) if isinstance(x, float) else x for x in arguments)
        enter(wanted)
        result = function(*arguments)
        leave(after)
        enter(usual)
        self.calls += 1
        assert bytes(found) == bytes(self._wanted), (
            f"{function.__name__}: MXCSR is {found.mxcsr:#06x} after {self._wanted.mxcsr:#06x}, "
            f"the x87's words {found.control:#06x}, {found.status:#06x} after {self._wanted.control:#06x}, 0"
        )
        return result


# Enough for three threads.
_MATRICES = {"a": (66, 270), "b": (270, 101)}
_RESULT = (66, 101)
_LONG = (300, 521)
_PROBLEMS: dict[str, dict[str, tuple[int, ...]]] = {
    "gemm": {"c": _RESULT, **_MATRICES},
    "gemm_add": {"y": _RESULT, **_MATRICES, "d": _RESULT},
    "gemm_mul": {"y": _RESULT, **_MATRICES, "d": _RESULT},
    "add": {"c": _LONG, "a": _LONG, "b": _LONG},
    "mul": {"c": _LONG, "a": _LONG, "b": _LONG},
    "add_rms_norm": {"y": _LONG, "residual_out": _LONG, "a": _LONG, "b": _LONG, "weight": _LONG[1:]},
    "rearrange": {"y": _LONG, "x": _LONG},
}


class Problem:
    """An operator of one type, its memory, every fourth row of which is subnormal, and its results."""

    def __init__(self, op: Op, dtype: str) -> None:
        self.op = op
        self.layouts = {name: Layout(shape, None, dtype) for name, shape in _PROBLEMS[op.name].items()}
        random = np.random.default_rng(0)
        least = {"f16": 2.0**-15, "bf16": 2.0**-127, "f32": 2.0**-127, "f64": 2.0**-1023}[dtype]
        self.memory = {}
        for name, layout in self.layouts.items():
            values = random.standard_normal(layout.shape)
            factor = name == "weight" or (name == "b" and not op.name.startswith("add"))
            values[::4] *= 1.0 if factor else least
            self.memory[name] = Memory(layout, values)
        self.pointers: dict[str, int | None] = {name: at.pointer for name, at in self.memory.items()}
        self.results: list[bytes] = []

    def clear(self) -> None:
        for name in self.op.outputs:
            self.memory[name].array[...] = 0

    def found(self) -> list[bytes]:
        return [self.memory[name].array.tobytes() for name in self.op.outputs]


def _run(abi: Abi, problem: Problem, call: Callable[..., Any]) -> None:
    """From the descriptor to its end, and the same in a graph."""
    lib, op = abi.lib, problem.op
    tensors = [abi.tensor(layout) for layout in problem.layouts.values()]
    desc, graph, size = pointer(), pointer(), ctypes.c_size_t()
    epsilon = (0.0,) if op.has_epsilon else ()
    create = lib.functions[f"infiniopCreate{op.c_name}Descriptor"]
    assert call(create, abi.handle, ctypes.byref(desc), *tensors, *epsilon) == SUCCESS, lib.message()
    if op.has_workspace:
        ask = lib.functions[f"infiniopGet{op.c_name}WorkspaceSize"]
        assert call(ask, desc, ctypes.byref(size)) == SUCCESS
    workspace = ctypes.create_string_buffer(max(1, size.value))
    before = (workspace, size.value) if op.has_workspace else ()
    after = [{"alpha": 1.0, "beta": 0.0}[factor] for factor in op.factors]
    operands = [problem.pointers[name] for name in op.operands]
    problem.clear()
    run = lib.functions[f"infiniop{op.c_name}"]
    assert call(run, desc, *before, *operands, *after, None) == SUCCESS, lib.message()
    direct = problem.found()
    problem.results = problem.results or direct
    assert direct == problem.results, f"{op.name}: other bits"

    problem.clear()
    pointers = (ctypes.c_void_p * len(operands))(*operands)
    assert lib.infiniopCreateGraph(abi.handle, ctypes.byref(graph)) == SUCCESS
    append = lib.infiniopGraphAppend
    arguments = (graph, desc, workspace, size.value, pointers, len(operands), 1.0, 0.0)
    assert call(append, *arguments) == SUCCESS, lib.message()
    assert call(lib.infiniopGraphRun, graph, None) == SUCCESS, lib.message()
    assert problem.found() == problem.results, f"{op.name} in a graph: other bits"
    assert call(lib.infiniopDestroyGraph, graph) == SUCCESS
    assert call(lib.functions[f"infiniopDestroy{op.c_name}Descriptor"], desc) == SUCCESS
    for tensor in tensors:
        assert call(lib.infiniopDestroyTensorDescriptor, tensor) == SUCCESS


def _every_function(lib: Library, call: Callable[..., Any]) -> None:
    scene = Scene(lib)
    for function in lib.declared:
        arguments = scene.arguments(function)
        status = call(lib.functions[function.name], *arguments)
        if function.returns == "infiniStatus_t" and status == SUCCESS and not releases(function):
            scene.release(function, arguments)
    assert lib.infiniopSetNumThreads(0) == lib.infiniopSetNumThreadsLocal(0) == SUCCESS


def main(shim: str) -> None:
    lib = _library.load()
    abi = Abi(lib)
    problems = [Problem(op, dtype) for op in OPS.values() for dtype in FLOATS]
    assert lib.infiniopSetNumThreads(1) == SUCCESS
    for problem in problems:
        _run(abi, problem, lambda function, *arguments: function(*arguments))
    assert lib.infiniopSetNumThreads(8) == SUCCESS  # more than the problems are worth
    for name, (mxcsr, control) in ENVIRONMENTS.items():
        caller = Caller(ctypes.CDLL(shim), Environment(mxcsr, control))
        child = os.fork()
        if child == 0:  # its other threads are started by calls from this environment
            status = 1
            try:
                for problem in problems:
                    _run(abi, problem, caller)
                _every_function(lib, caller)
                print(caller.calls, flush=True)
                status = 0
            except BaseException as error:
                print(f"{name}: {error!r}", file=sys.stderr, flush=True)
            os._exit(status)
        _, status = os.waitpid(child, 0)
        assert status == 0, f"{name}: ended with wait status {status}"


if __name__ == "__main__":
    main(sys.argv[1])
