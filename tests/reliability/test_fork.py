"""fork() at any time: the child computes, whatever other threads of its parent were doing."""

from __future__ import annotations

import functools
import logging
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import _compiler
import children
import heap
import numpy as np
import numpy.testing  # else NumPy imports it when it is first used: see while_others()
import pytest
from everything import Caught, all_operators_once, computing
from soak import SCALE

import infiniop_py as ip
from infiniop_py import _native

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork()")


def in_a_process(program: Callable[..., object], *arguments: object, **environment: str | None) -> str:
    # NumPy's products stay in a parent of forks for ever, if they have threads of their own.
    return children.call(program, *arguments, OPENBLAS_NUM_THREADS="1", **environment)


# ---- a small program that needs everything that threads share ----------------------------------------------

X = np.arange(12, dtype="f4").reshape(3, 4)


def negated(c: ip.Tensor, a: ip.Tensor, b: ip.Tensor) -> None:
    c.numpy()[...] = -a.numpy() - b.numpy()


def record() -> tuple[ip.Graph, Any]:
    with ip.Graph() as graph:
        y = ip.add(ip.gemm(X, X.T), ip.rearrange((X @ X.T).T))
    return graph, y


the_graph = functools.cache(record)


def run() -> None:
    graph, y = the_graph()
    graph.run()
    np.testing.assert_array_equal(y, 2 * (X @ X.T))


def create() -> None:
    """Descriptors, handles and streams; what was there of them is destroyed."""
    for op in (ip.Add, ip.Gemm):
        op.cache().clear()
    np.testing.assert_array_equal(ip.add(X, X), X + X)
    np.testing.assert_array_equal(ip.gemm(X, X.T), X @ X.T)
    ip.Stream("cpu").synchronize()
    ip.Event("cpu").record()


SHARED = ip.OpDispatcher("of all threads")


def register() -> None:
    SHARED.register_all(negated, override_existing=False)
    SHARED.register_device("cpu", negated)
    assert SHARED.lookup("cpu") is negated
    assert SHARED.implementation(ip.DeviceType.KUNLUN) is SHARED.table[ip.DeviceType.KUNLUN]


def profile() -> None:
    graph, _ = record()
    assert graph.profile(1).rows


def rerecord() -> None:
    graph, y = record()
    graph.run()
    np.testing.assert_array_equal(y, 2 * (X @ X.T))


WORK: dict[str, Callable[[], None]] = {
    "run a graph": run,
    "record": rerecord,
    "create": create,
    "register": register,
}


def all_work() -> None:
    for work in WORK.values():
        work()


# ---- a thread that stops at each line ----------------------------------------------------------------------


#: The package, and what of the standard library has locks.
PACKAGE, LOCKED = os.path.dirname(ip.__file__), (functools.__file__, logging.__file__)
#: Of how many lines of the package a thread stops at one.
EVERY = {"record": max(1, round(8 / SCALE)), "create": max(1, round(4 / SCALE))}


class Stopping(Caught):
    """A thread that stops at lines it has not been at before, until it may go on.

    Not for ever: fork() waits for some of what another thread holds.
    """

    def __init__(self, work: Callable[[], None], every: int) -> None:
        self._every = every
        self.stopped, self._go, self.ended = threading.Semaphore(0), threading.Semaphore(0), False
        self._seen: set[tuple[CodeType, int]] = set()
        super().__init__(lambda: self._traced(work))

    def _traced(self, work: Callable[[], None]) -> None:
        sys.settrace(self._trace)
        try:
            work()
        finally:
            sys.settrace(None)
            self.ended = True
            self.stopped.release()

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        file = frame.f_code.co_filename
        if not file.startswith((PACKAGE, *LOCKED)):
            return None
        place = (frame.f_code, frame.f_lineno)
        if event == "line" and place not in self._seen:
            self._seen.add(place)
            if file not in LOCKED and len(self._seen) % self._every:
                return self._trace
            self.stopped.release()
            self._go.acquire(timeout=0.2)
        return self._trace

    def lines(self) -> Any:
        """Yields as often as the thread has stopped, and lets it go on."""
        while True:
            self.stopped.acquire()
            if self.ended:
                return
            yield
            self._go.release()


def at_lines(name: str) -> None:
    all_work()
    thread = Stopping(WORK[name], EVERY.get(name, 1))
    forks = 0
    for _ in thread.lines():
        children.forked(WORK[name])
        forks += 1
    thread.finish()
    all_work()
    print(forks)


@pytest.mark.parametrize("name", WORK)
def test_while_another_thread_is_at_any_line(name: str, record_property: Callable[..., None]) -> None:
    forks = int(in_a_process(at_lines, name))
    assert forks > 3
    record_property("cases", forks)


# ---- in native code ----------------------------------------------------------------------------------------


def after_use(count: int) -> None:
    ip.set_num_threads(count)
    all_operators_once(seed=1, size=30)  # starts the pool

    def nested(depth: int) -> None:
        all_operators_once(seed=depth, size=0)
        if depth:
            children.forked(lambda: nested(depth - 1))
        create()

    for _ in range(4):
        children.forked(lambda: nested(3))
    all_operators_once(seed=2, size=33)


@pytest.mark.parametrize("count", [1, 2, 8])
def test_after_use_and_nested(count: int, record_property: Callable[..., None]) -> None:
    in_a_process(after_use, count)
    record_property("cases", 4 * 4)


def while_others(forks: int) -> None:
    """Three threads compute; one replays a graph, one records, one creates, one registers, one profiles."""
    large = np.ones((300, 300), "f4")
    with ip.Graph() as graph:
        product = ip.gemm(large, large)
    profile()  # in the child of fork() Python never ends an import that another thread was at
    stop = threading.Event()

    def again(work: Callable[[], object]) -> None:
        while not stop.is_set():
            work()

    def child() -> None:
        product[...] = 0
        graph.run()
        assert (product == 300).all()
        run()
        all_work()
        profile()

    with computing(3):
        threads = [
            Caught(lambda work=work: again(work))  # type: ignore[misc]
            for work in (graph.run, rerecord, create, register, profile)
        ]
        for i in range(forks):
            children.forked(child)
            all_operators_once(seed=i, size=i + 1)
        stop.set()
        for thread in threads:
            thread.finish()
    child()


def test_while_other_threads_do_everything(record_property: Callable[..., None]) -> None:
    in_a_process(while_others, round(8 * SCALE))
    record_property("cases", round(8 * SCALE))


def during_the_first_calls() -> None:
    """In a process in which nothing has called the libraries yet."""
    thread = Caught(lambda: all_operators_once(seed=0, size=1))
    forks = 0
    while thread.is_alive():
        children.forked(create, 20)
        forks += 1
    thread.finish()
    print(forks)


@pytest.mark.skipif(sys.platform != "linux", reason="preloads a library")
@heap.unsanitized("no other library may be preloaded")
def test_during_the_first_calls(tmp_path: Path, record_property: Callable[..., None]) -> None:
    """What is found out once, such as the number of CPUs, is found out whole."""
    slow = _compiler.shared_library(Path(__file__).with_name("files.c"), tmp_path)
    forks = int(in_a_process(during_the_first_calls, LD_PRELOAD=slow))
    assert forks > 0
    record_property("cases", forks)


def while_a_plugin_is_loaded() -> None:
    def load() -> None:
        _native.check(_native.lib.infinirtLoadBackend(os.environ["PLUGIN"].encode()))
        assert ip.device_count("qy") == 2

    thread = Caught(load)
    forks = 0
    while thread.is_alive():
        children.forked(load, 20)
        forks += 1
    thread.finish()
    print(forks)


@pytest.mark.skipif(sys.platform != "linux", reason="preloads a library")
@heap.unsanitized("no other library may be preloaded")
def test_while_a_plugin_is_loaded(tmp_path: Path, record_property: Callable[..., None]) -> None:
    slow = _compiler.shared_library(Path(__file__).with_name("files.c"), tmp_path)
    plugin = str(children.build_fake_backend(tmp_path))
    forks = int(in_a_process(while_a_plugin_is_loaded, LD_PRELOAD=slow, PLUGIN=plugin))
    assert forks > 0
    record_property("cases", forks)
