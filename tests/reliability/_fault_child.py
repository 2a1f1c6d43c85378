"""Calls exported functions while allocations fail; started by test_faults.py with failing_malloc.c preloaded.

    python _fault_child.py <shared object of failing_malloc.c> each <function> [<function> ...]
    python _fault_child.py <shared object of failing_malloc.c> first
    python _fault_child.py <shared object of failing_malloc.c> forked

"each": every allocation of a call fails once, and from it on for good, in a thread that has called the
libraries before and in a new one. "first": so does every allocation of the first calls of a process, which
set up what all later ones find. "forked": all of them fail in fork(), and then in its child. Prints the
number of calls.
"""

from __future__ import annotations

import ctypes
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "abi"))

import numpy as np
from _calls import Scene, numbers, releases
from _fault_call import Caller, Fault
from _headers import Function
from _library import INTERNAL_ERROR, SUCCESS, pointer
from _ops import Layout, Memory

# ---- each function -----------------------------------------------------------------------------------------


def each(caller: Caller, names: list[str]) -> None:
    scene = Scene(caller.lib)
    for function in caller.lib.declared:
        if function.name in names:
            _check_function(caller, scene, function)
    scene.close()


def _check_function(caller: Caller, scene: Scene, function: Function) -> None:
    usual = _check(caller, scene, function, -1, False, False).status
    for thread, for_good in ((False, False), (False, True), (True, False), (True, True)):
        fail_at, failed = 0, True
        while failed:
            got = _check(caller, scene, function, fail_at, for_good, thread)
            if got.status not in (SUCCESS, usual):
                assert got.failed and got.status == INTERNAL_ERROR, (got.status, caller.lib.message())
            after = _check(caller, scene, function, -1, False, thread).status
            assert after == usual, f"{after} afterwards, {usual} before"
            fail_at, failed = fail_at + 1, bool(got.failed)


def _check(
    caller: Caller, scene: Scene, function: Function, fail_at: int, for_good: bool, thread: bool
) -> Fault:
    """One call, after which everything is as it was; what it made is released again."""
    arguments = scene.arguments(function)
    # The second time, since a thread's first error message has its buffer, which the thread keeps.
    for _ in range(2):
        caller.lib.clear_message()
        got = caller.call(function.name, arguments, fail_at, for_good, thread)
        print(
            f"{function.name}: allocation {fail_at} of {got.asked} fails, {for_good=}, {thread=}: "
            f"status {got.status}, {got.failed} failed, {got.held} held",
            file=sys.stderr,
            flush=True,
        )
        if function.returns != "infiniStatus_t":
            assert got.status != 0, "a text is never NULL"
            return got
        if got.status == SUCCESS:
            if not releases(function):
                scene.release(function, arguments)
            return got
        if thread:  # its message and its memory went with it
            return got
        assert caller.lib.message() or function.name == "infinirtSetLastError", "no message"
        if got.held == 0:
            return got
    raise AssertionError(f"{got.held} blocks are lost")


# ---- the first calls of a process --------------------------------------------------------------------------


class Step:
    """A call of a function; `done` says what must hold after it succeeded. If there is an `excuse`, a message
    with it will do."""

    def __init__(
        self, name: str, *arguments: Any, done: Callable[[], bool] = lambda: True, excuse: str | None = None
    ) -> None:
        self.name, self.arguments, self.done, self.excuse = name, list(arguments), done, excuse

    def excused(self, message: str) -> bool:
        return self.excuse is not None and self.excuse in message


def _steps() -> Iterator[Step]:
    """A program: products that two threads share, in one call and in a graph. A generator, so that a step's
    arguments are what the steps before it made."""
    n = 160  # two threads are worth it
    matrix = Layout((n, n))
    c, a, b = Memory(matrix, 0.0), Memory(matrix, 1.0), Memory(matrix, 2.0)
    right = lambda: bool(np.all(c.array == 2 * n))  # noqa: E731
    layouts = numbers({"c": matrix, "a": matrix, "b": matrix})
    handle, desc, graph, size = pointer(), pointer(), pointer(), ctypes.c_size_t()
    text = ctypes.c_char_p()
    yield Step("infinirtGetDeviceCount", 0, ctypes.addressof(size))
    yield Step("infinirtSetDevice", 1, 0, done=lambda: False)  # no such device: the first error of all
    if "INFINIOP_BACKEND_PATH" in os.environ:
        # QY, the plugin's. The search before found it, or what the dynamic loader said of it without memory.
        yield Step("infinirtUseDevice", 9, 0, excuse=os.environ["INFINIOP_BACKEND_PATH"] + ": ")
        yield Step("infinirtUseDevice", 0, 0)
    yield Step("infiniopGetCpuIsa", ctypes.addressof(text))
    yield Step("infiniopGetNumThreads", ctypes.addressof(size))
    yield Step("infiniopCreateHandle", ctypes.addressof(handle))
    yield Step(
        "infiniopCreateDescriptor",
        *(handle, ctypes.addressof(desc), ctypes.addressof(size), b"gemm", layouts, len(layouts), 0.0),
    )
    workspace = ctypes.create_string_buffer(max(1, size.value))
    operands = (ctypes.c_void_p * 3)(c.pointer, a.pointer, b.pointer)
    run = (desc, workspace, size.value, c.pointer, a.pointer, b.pointer, 1.0, 0.0, None)
    yield Step("infiniopGemm", *run, done=right)
    c.array[...] = 0
    yield Step("infiniopCreateGraph", handle, ctypes.addressof(graph))
    yield Step("infiniopGraphAppend", graph, desc, workspace, size.value, operands, 3, 1.0, 0.0)
    yield Step("infiniopGraphRun", graph, None, done=right)
    for name, made in (("Graph", graph), ("GemmDescriptor", desc), ("Handle", handle)):
        yield Step(f"infiniopDestroy{name}", made)


def first(caller: Caller) -> None:
    place = fail_at = 0
    for_good = False
    while True:
        ended, failed = _in_child(partial(_one_program, caller, place, fail_at, for_good))
        caller.calls += 1
        if ended:
            return
        if failed:
            fail_at += 1
        elif not for_good:
            fail_at, for_good = 0, True
        else:
            place, fail_at, for_good = place + 1, 0, False


def _one_program(caller: Caller, place: int, fail_at: int, for_good: bool) -> tuple[bool, bool]:
    """Runs the program; allocations fail in the step at `place`, which is then done again. Was it past the
    last one; and did any fail?"""
    lib, failed, reached = caller.lib, False, False
    if place:  # the first call is the very first one
        lib.infiniopSetNumThreads(2)
    for i, step in enumerate(_steps()):
        usual = SUCCESS if step.name != "infinirtSetDevice" else None
        if i == place:
            reached = True
            got = caller.call(step.name, step.arguments, fail_at, for_good)
            failed = bool(got.failed)
            print(
                f"first {step.name}: allocation {fail_at} of {got.asked} fails, {for_good=}: "
                f"status {got.status}, {got.failed} failed",
                file=sys.stderr,
                flush=True,
            )
            if got.status == SUCCESS:
                assert step.done()
                continue
            assert lib.message()
            clean = usual is None or (failed and got.status == INTERNAL_ERROR) or step.excused(lib.message())
            assert clean, (got.status, lib.message())
        got = caller.call(step.name, step.arguments)
        if usual is not None and not (got.status and step.excused(lib.message())):
            assert got.status == SUCCESS and step.done(), (step.name, got.status, lib.message())
    return not reached, failed


def _in_child(run: Callable[[], tuple[bool, bool]]) -> tuple[bool, bool]:
    """`run` in a process in which nothing has called the libraries yet."""
    child = os.fork()
    if child == 0:
        status = 99
        try:
            ended, failed = run()
            status = 2 * ended + failed
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.WIFEXITED(status) and os.WEXITSTATUS(status) < 4, f"ended with {status}"
    return bool(os.WEXITSTATUS(status) & 2), bool(os.WEXITSTATUS(status) & 1)


# ---- after fork() ------------------------------------------------------------------------------------------


def forked(caller: Caller) -> None:
    """Threads of the parent are not in the child, which has no memory for new ones: it computes alone."""
    caller.lib.infiniopSetNumThreads(2)
    for step in _steps():
        got = caller.call(step.name, step.arguments)
        assert got.status == SUCCESS or step.name == "infinirtSetDevice", (step.name, got.status)
        if not step.name.endswith(("Gemm", "GraphRun")):
            continue
        child = caller.fork()
        if child == 0:
            status = 99
            try:
                got = caller.call(step.name, step.arguments, 0, True)
                assert got.status == SUCCESS and step.done(), (step.name, got.status, caller.lib.message())
                again = caller.call(step.name, step.arguments)
                assert again.status == SUCCESS and step.done(), (step.name, again.status)
                status = 0
            finally:
                sys.stderr.flush()
                os._exit(status)
        _, status = os.waitpid(child, 0)
        assert status == 0, f"the child of fork() ended with wait status {status} in {step.name}"


def main(shim: str, mode: str, names: list[str]) -> None:
    libc, key = ctypes.CDLL(None), ctypes.c_uint()
    for _ in range(64):  # values of a thread's first 32 keys need no memory
        libc.pthread_key_create(ctypes.byref(key), None)
    caller = Caller(shim)
    if mode == "each":
        each(caller, names)
    elif mode == "first":
        first(caller)
    else:
        forked(caller)
    print(caller.calls)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
