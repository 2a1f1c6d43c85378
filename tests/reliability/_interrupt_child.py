"""An exception at every instruction of the package that some work passes; started by test_interrupts.py.

    python _interrupt_child.py <work> <stride>
    python _interrupt_child.py signals <number>

Whatever is hit: no native object is lost, and the same work done again has its result. Where this Python
looks for signals, whose handlers may raise: no recording is left behind either, and the thread's current
device is the one from before; but for the first instruction of an ``__exit__``, which no Python code can
guard. Prints the number of exceptions.

Instructions are counted by where they stand in the code: those passed several times are hit the first and the
last time. Of all every `stride`-th is hit. A graph looks at its memory in the order of addresses, so that a
few of those passed in one run are not in the next. "signals" are real ones, at random times, in all works.
"""

from __future__ import annotations

import ctypes
import dis
import gc
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "abi"))

import numpy as np
from _library import FakeCounts
from live import Live

import infiniop_py as ip
from infiniop_py import workspace
from infiniop_py.device import thread
from infiniop_py.graph_operator import OPERATORS

PACKAGE = os.path.dirname(ip.__file__) + os.sep
QY = ip.Device("qy:0")


class Interrupt(BaseException):
    """What no code expects."""


@cache
def looks_after(code: CodeType) -> frozenset[int]:
    """The instructions after which Python looks for signals."""
    kinds = ("CALL", "JUMP_BACKWARD", "JUMP_ABSOLUTE") + ("RESUME",) * (code.co_name != "__exit__")
    return frozenset(one.offset for one in dis.get_instructions(code) if one.opname.startswith(kinds))


@cache
def ends_of_except(code: CodeType) -> frozenset[int]:
    return frozenset(one.offset for one in dis.get_instructions(code) if one.opname == "POP_EXCEPT")


def is_end_of_except(frame: FrameType) -> bool:
    """One that cannot fail; an exception there leaves the one before for good among those being handled."""
    return frame.f_lineno is None or frame.f_lasti in ends_of_except(frame.f_code)


Place = tuple[CodeType, int]  # and where in it


class Instructions:
    """How often those of the package pass; raises at one of them, after it has passed `times` times."""

    def __init__(self, stop: Place | None = None, times: int = 0) -> None:
        self.stop, self.times = stop, times
        self.passed: Counter[Place] = Counter()
        self.hit: tuple[str, bool] = ("", False)  # where, and does Python look for signals there?
        self._looks: dict[FrameType, bool] = {}  # before the next instruction?

    def __call__(self, frame: FrameType, event: str, _: object) -> Any:
        if event == "call":
            if frame.f_back in self._looks:
                self._looks[frame.f_back] = False  # not after calls of Python functions: in them
            if not frame.f_code.co_filename.startswith(PACKAGE):
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        elif event == "opcode" and not is_end_of_except(frame):
            place = code, at = frame.f_code, frame.f_lasti
            if self.stop == place and self.passed[place] == self.times:
                where = f"{code.co_filename}:{frame.f_lineno}, {code.co_name}"
                self.hit = where, self._looks.get(frame, False)
                raise Interrupt
            self.passed[place] += 1
            self._looks[frame] = at in looks_after(code)
        elif event == "return":
            self._looks.pop(frame, None)
        return self

    def of(self, work: Callable[[], object]) -> None:
        sys.settrace(self)
        try:
            work()
        finally:
            sys.settrace(None)
            self._looks.clear()


# ---- pieces of work: each checks its result, and leaves nothing but what is in caches ----------------------

x, y = np.arange(6, dtype="f4").reshape(2, 3), np.ones((2, 3), "f4")
on_device = [ip.from_numpy(array).to(QY) for array in (x, y)]


def same(result: Any, wanted: Any) -> None:
    np.testing.assert_array_equal(
        result.to("cpu").numpy() if isinstance(result, ip.Tensor) else result, wanted
    )


def miss() -> None:
    same(ip.add(x, y), x + y)


def miss_of_a_norm() -> None:
    same(ip.add_rms_norm(x, y, y[0])[1], x + y)


def batches() -> None:
    """A call of several native ones."""
    a = np.ones((2, 3, 2, 3), "f4")
    same(ip.gemm(a.transpose(1, 0, 2, 3), y.T), np.full((3, 2, 2, 2), 3))


def scratch() -> None:
    """One that has to grow, in a thread of this call."""
    same(ip.gemm(x[:, ::-1].T, y), x[:, ::-1].T @ y)


def miss_on_a_device() -> None:
    same(ip.mul(*on_device), x * y)


def plan() -> None:
    c = np.empty_like(x)
    same(ip.mul.plan(c, x, y)(), x * y)


def recording(devices: bool = False) -> None:
    a, b = on_device if devices else (x, y)
    with ip.Graph() as graph:
        c = ip.mul(ip.add(a, b), b)
        d = ip.add(c, b)
    graph.run()
    same(d, x + 2)


def recording_on_a_device() -> None:
    recording(devices=True)


def tensors() -> None:
    """Memory, a stream and an event on two devices, from their first instruction to their last."""
    for device in ("cpu", "qy:1"):
        tensor = ip.ones(3, device=device)
        stream, event = ip.Stream(device), ip.Event(device)
        event.record(stream)
        same(tensor.to(QY), [1, 1, 1])


WORKS = {work.__name__: work for work in (
    miss, miss_of_a_norm, batches, scratch, miss_on_a_device, plan, recording, recording_on_a_device, tensors
)}  # fmt: skip


# ---- what must hold ----------------------------------------------------------------------------------------


class State:
    def __init__(self) -> None:
        self._live = Live()
        self._fake = ctypes.CDLL(os.environ["INFINIOP_BACKEND_PATH"])
        self.before: dict[str, object] = {}

    def need_same(self, when: str) -> None:
        now = self.now()
        if now != self.before:
            gc.collect()  # an exception may be part of a cycle
            now = self.now()
        changed = {what: now[what] for what in now if now[what] != self.before[what]}
        assert not changed, f"{when}: {changed}"

    def restore(self) -> None:
        thread.recording = None
        ip.set_device("cpu")

    def clear(self) -> None:
        for op in OPERATORS.values():
            op.cache().clear()
        thread.handles.clear()
        thread.ready.clear()
        thread.streams.clear()  # the workspaces of streams go with them
        workspace._pool.cpu = workspace.Workspace(ip.Device("cpu"))

    def now(self) -> dict[str, object]:
        """What must be the same after each exception, whatever it hit."""
        fake = FakeCounts.of(self._fake)
        caches = [op.cache() for op in OPERATORS.values()]
        cached = sum(cache.cache_info().size for cache in caches)
        kept = [one.nbytes for one in workspace._pool.streams.values()]
        return {
            # Each plan of the test backend has a descriptor of its own.
            "descriptors that no cache has": self._live.descriptors() - fake.plans - cached,
            "plans that no cache has": fake.plans - sum(len(cache.get_cache(QY)) for cache in caches),
            "graphs": self._live.graphs(),
            "device memory that no workspace has": fake.bytes[0] + fake.bytes[1] - sum(kept),
            "streams": fake.streams,
            "events": fake.events,
            "device graphs": fake.device_graphs + fake.graph_execs,
            "broken guards": fake.broken_guards,
            "current device": ip.get_device(),
            "recording": ip.is_graph_recording(),
        }


def to_be_hit(work: Callable[[], None], state: State) -> list[tuple[Place, int]]:
    """Instructions, and how often each has passed before."""
    counting = Instructions()
    state.clear()
    counting.of(work)
    return [(place, times) for place, n in counting.passed.items() for times in sorted({0, n - 1})]


def by_signals(n: int) -> None:
    def interrupt(*_: object) -> None:
        raise Interrupt

    rng, state, hits = random.Random(5), State(), 0
    signal.signal(signal.SIGALRM, interrupt)
    for work in WORKS.values():
        work()
    state.clear()
    state.before = state.now()
    while hits < n:
        work = rng.choice(list(WORKS.values()))
        state.clear()
        try:
            signal.setitimer(signal.ITIMER_REAL, 10 ** rng.uniform(-5, -2.5))
            work()
            signal.setitimer(signal.ITIMER_REAL, 0)  # one that comes now is dealt with in here
        except Interrupt:
            hits += 1
        state.restore()
        state.need_same(f"after a signal in {work.__name__}")
    print(hits)


def main(name: str, stride: int) -> None:
    work = WORKS[name]
    gc.disable()  # what it would run, and when, differs from time to time
    state = State()
    work()
    state.before = state.now()
    tried = to_be_hit(work, state)[::stride]
    missed = 0
    for place, times in tried:
        state.clear()
        instructions = Instructions(place, times)
        with suppress(Interrupt):
            instructions.of(work)
        where, looks = instructions.hit
        missed += not where
        if not looks:
            state.restore()
        state.need_same(f"after an exception in {where}")
        work()
        state.need_same(f"after an exception in {where}, and done again")
    assert missed < 0.05 * len(tried), f"{missed} of {len(tried)} instructions were not reached"
    print(len(tried) - missed)


if __name__ == "__main__":
    if sys.argv[1] == "signals":
        by_signals(int(sys.argv[2]))
    else:
        main(sys.argv[1], int(sys.argv[2]))
