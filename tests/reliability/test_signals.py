"""Signals at any time: handlers that compute, Ctrl-C, and what the libraries leave alone."""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable

import children
import numpy as np
import pytest
from everything import all_operators_once
from places import at_place, interrupted
from soak import SCALE

import infiniop_py as ip
from infiniop_py import cpu, device

PACKAGE = os.path.dirname(ip.__file__)
X = np.arange(12, dtype="f4").reshape(3, 4)
Y = np.full((3, 3), 7, "f4")


def gemm() -> None:
    ip.gemm_(Y, X, X.T)


def anew() -> None:
    ip.Gemm.cache().clear()
    gemm()


def record() -> None:
    with ip.Graph() as graph:
        gemm()
    graph.run()


PLAN = ip.Gemm(Y, X, X.T)
with ip.Graph() as GRAPH:
    gemm()

CALLS: dict[str, Callable[[], object]] = {
    "as before": gemm,
    "for the first time": anew,
    "functional": lambda: np.copyto(Y, ip.gemm(X, X.T)),
    "of two operators": lambda: np.copyto(Y, ip.gemm_add(X, X.T, np.zeros((3, 3), "f4"))),
    "planned": PLAN,
    "recorded": record,
    "replayed": GRAPH.run,
}


def compute() -> None:
    """What a handler may do: the same operator, another one that fails, a graph, and no caches any more."""
    here = np.empty((3, 3), "f4")
    ip.gemm_(here, X, X.T)
    ip.gemm(X.T, X)
    with pytest.raises(ip.ShapeError):
        ip.gemm(X, X)
    ip.Gemm.cache().clear()


@pytest.mark.parametrize("call", CALLS)
def test_a_handler_computes_at_any_place(call: str, record_property: Callable[[str, object], None]) -> None:
    place = 1
    step = max(1, round(7 / SCALE)) if call == "recorded" else 1  # of which there are a thousand
    # Inside of a recording a handler's calls are recorded, too, as it is the thread's.
    action = compute if call != "recorded" else lambda: None if ip.is_graph_recording() else compute()
    while True:
        Y[...] = 7
        if not at_place(place, PACKAGE, CALLS[call], action):
            break
        np.testing.assert_array_equal(Y, X @ X.T, err_msg=f"place {place}")
        place += step
    assert place > 3
    record_property("cases", place // step)


# What is raised in a __del__ Python ignores.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("call", CALLS)
def test_an_interrupt_at_any_place(call: str, record_property: Callable[[str, object], None]) -> None:
    place, left_recording = 1, []
    while True:
        Y[...] = 7
        if not interrupted(place, PACKAGE, CALLS[call]):
            break
        assert (Y == 7).all() or (Y == X @ X.T).all()
        if ip.is_graph_recording():
            left_recording.append(place)
            ip.stop_graph_recording()
        for other in (gemm, CALLS[call]):
            Y[...] = 7
            other()
            np.testing.assert_array_equal(Y, X @ X.T)
        place += 1
    # Python lets handlers run before the first step of what __exit__ is and calls: no code can stop them.
    assert len(left_recording) <= 1, left_recording
    assert place > 3
    record_property("cases", place)


# ---- real signals, in processes of their own ---------------------------------------------------------------


def long_enough() -> int:
    """The size of an F64 product that one thread takes about a third of a second for, sanitized or not."""
    ip.set_num_threads(1)
    x = np.ones((200, 200))
    ip.gemm(x, x)
    start = time.perf_counter()
    ip.gemm(x, x)
    return int(200 * (0.3 / (time.perf_counter() - start)) ** (1 / 3))


def ctrl_c(call: str) -> None:
    """SIGINT comes while the native call runs, and KeyboardInterrupt when it is over."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a shell has started with &
    n = long_enough()
    a, c = np.ones((n, n)), np.full((n, n), 7.0)
    plan = ip.Gemm(c, a, a)
    with ip.Graph(fuse="none") as graph:
        for _ in range(2):
            ip.gemm_(c, a, a)
    run = {"at once": lambda: ip.gemm_(c, a, a), "planned": plan, "replayed": graph.run}[call]
    for _ in range(2):
        c[...] = 7
        threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGINT)).start()
        after = False
        try:
            run()
            after = True
        except KeyboardInterrupt:
            assert (c == n).all(), "it came before the call was over"
        assert not after, "it did not come right after the call"
    run()
    assert (c == n).all()


@pytest.mark.parametrize("call", ["at once", "planned", "replayed"])
def test_ctrl_c_comes_right_after_a_call(call: str) -> None:
    children.call(ctrl_c, call)


def alarms(seconds: float) -> None:
    """A handler computes while the main thread does, and other threads."""
    rang = []

    def ring(*_: object) -> None:
        all_operators_once(seed=len(rang), size=3)
        rang.append(1)

    signal.signal(signal.SIGALRM, ring)
    end = time.monotonic() + seconds
    i = 0
    while time.monotonic() < end or len(rang) < 3:
        signal.setitimer(signal.ITIMER_REAL, 1e-4 + i % 50 * 1e-4)
        all_operators_once(seed=i, size=i % 40)
        i += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    print(len(rang))


def test_alarms(record_property: Callable[[str, object], None]) -> None:
    rang = int(children.call(alarms, 1 * SCALE))
    assert rang >= 3
    record_property("cases", rang)


def dispositions() -> None:
    def caught() -> list[str]:
        with open("/proc/self/status") as status:
            return [line for line in status if line.startswith(("SigCgt", "SigIgn", "SigBlk"))]

    thread = threading.Thread(target=int)  # the C library's own signal is caught from the first thread on
    thread.start()
    thread.join()
    before = caught()
    ip.set_num_threads(3)
    all_operators_once(seed=0, size=5)
    assert caught() == before
    # In one long call: frames that change while faulthandler's thread reads them end Python 3.11.
    n = long_enough()
    x = np.ones((n, n))
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback_later(0.05, file=file)
        ip.gemm(x, x)
        faulthandler.cancel_dump_traceback_later()
        file.seek(0)
        assert b"in dispositions" in file.read()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_signals_are_left_alone() -> None:
    children.call(dispositions)


def in_the_event_loop() -> None:
    async def work() -> None:
        await asyncio.gather(*(asyncio.to_thread(all_operators_once, i, i) for i in range(24)))

    asyncio.run(work())


def test_asyncio() -> None:
    children.call(in_the_event_loop)


def limit() -> None:
    with ip.num_threads(1):
        pass


def stream() -> None:
    with ip.Stream("cpu"):
        pass


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("scope", [limit, stream])
def test_an_interrupt_leaves_no_scope_behind(scope: Callable[[], object]) -> None:
    def state() -> tuple[object, ...]:
        return ip.get_num_threads(), ip.get_stream("cpu"), len(device.thread.stream_stack)

    ip.set_num_threads(2)
    try:
        before, left, place = state(), [], 1
        while interrupted(place, PACKAGE, scope):
            if state() != before:
                left.append(place)
                cpu._local.limits.clear()
                cpu._apply()
                device.thread.streams.pop(ip.Device("cpu"), None)
                device.thread.stream_stack.clear()
                before = state()
            place += 1
    finally:
        ip.set_num_threads(0)
    # Python lets handlers run before the first step of what __exit__ is and calls: no code can stop them.
    assert place > 5 and len(left) <= 1, left
