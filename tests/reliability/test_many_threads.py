"""Many threads: more layouts than caches hold, short lives, one descriptor for all; nothing stays behind."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import children
import numpy as np
import pytest
from everything import Caught, all_operators_once
from soak import SCALE

import infiniop_py as ip
from infiniop_py import _native
from infiniop_py._native_op import Descriptor, NativeGraph

Record = Callable[[str, object], None]
needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

THREADS, SHAPES, CAPACITY = 8, 1000, 100


def resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def native_threads() -> int:
    return len(os.listdir("/proc/self/task"))


def alive() -> int:
    """Descriptors and native graphs."""
    gc.collect()
    return sum(type(one) in (Descriptor, NativeGraph) for one in gc.get_objects())


def together(work: Callable[[int], object], count: int) -> list[Caught]:
    return [Caught(lambda i=i: work(i)) for i in range(count)]  # type: ignore[misc]


# ---- more layouts than caches hold -------------------------------------------------------------------------


def _add(x: Any, w: Any) -> Any:
    return ip.add(x, w), x + w


def _mul(x: Any, w: Any) -> Any:
    return ip.mul(x, x), x * x


def _gemm(x: Any, w: Any) -> Any:
    return ip.gemm(x, x.T), x @ x.T


def _gemm_add(x: Any, w: Any) -> Any:
    return ip.gemm_add(x, x.T, x[:1, :1]), x @ x.T + x[:1, :1]


def _gemm_mul(x: Any, w: Any) -> Any:
    return ip.gemm_mul(x.T, x, w), (x.T @ x) * w


def _norm(x: Any, w: Any) -> Any:
    return ip.add_rms_norm(x, x, w)[1], x + x


def _rearrange(x: Any, w: Any) -> Any:
    return ip.rearrange(x.T), x.T


CALLS = (_add, _mul, _gemm, _gemm_add, _gemm_mul, _norm, _rearrange)
OPERATORS = (ip.Add, ip.Mul, ip.Gemm, ip.GemmAdd, ip.GemmMul, ip.AddRMSNorm, ip.Rearrange)


def hammer(seconds: float) -> None:
    """A thread's round is each of its shapes once, with one operator; the next round has the next one."""
    end = time.monotonic() + seconds
    warm: list[int] = []
    all_warm = threading.Barrier(THREADS, action=lambda: warm.append(resident_bytes()))
    calls = [0] * THREADS

    def work(thread: int) -> None:
        turn = 0
        while time.monotonic() < end or turn < len(CALLS) + 2:
            call = CALLS[turn % len(CALLS)]
            for i in range(SHAPES):
                m, n = 1 + i % 40, 1 + i // 40 + thread * (SHAPES // 40)
                x = np.arange(m * n, dtype="f4").reshape(m, n) % 5
                got, wanted = call(x, x[0])
                assert np.array_equal(got, wanted), (call, m, n)
            turn += 1
            calls[thread] += SHAPES
            if turn == len(CALLS):
                all_warm.wait()
        for op in OPERATORS:
            assert len(op.cache().get_cache("cpu")) == CAPACITY
            assert op.cache().cache_info().evictions > 0

    for thread in together(work, THREADS):
        thread.finish(60 * (SCALE + 1))
    assert alive() == 0
    growth = resident_bytes() - warm[0]
    assert growth < 8 << 20, f"{growth} bytes more than when each call had been made once"
    print(sum(calls))


@needs_proc
def test_more_layouts_than_caches_hold(record_property: Record) -> None:
    """With INFINIOP_SOAK=60 for a minute."""
    record_property("cases", int(children.call(hammer, SCALE, OPENBLAS_NUM_THREADS="1")))


# ---- short lives -------------------------------------------------------------------------------------------


def short_lives(count: int) -> None:
    pool = 3
    ip.set_num_threads(pool)
    threads = native_threads()
    all_operators_once(seed=0, size=0)
    mine = alive()

    def live(i: int) -> None:
        x = np.arange(20.0 * (i + 60)).reshape(20, -1) % 5
        for call in CALLS:
            got, wanted = call(x, x[0])
            assert np.array_equal(got, wanted)
        with ip.Graph() as graph:
            y = ip.add(ip.gemm(x, x.T), x[:, :20])
        graph.run()
        assert np.array_equal(y, x @ x.T + x[:, :20])

    resident = 0
    for i in range(count // 20):
        if i == count // 40:
            resident = resident_bytes()
        for thread in together(live, 20):
            thread.finish()
    assert alive() == mine
    deadline = time.monotonic() + 20  # a thread that was joined may not be gone yet
    while native_threads() > threads + pool - 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert native_threads() <= threads + pool - 1
    growth = resident_bytes() - resident
    assert growth < 8 << 20, f"{growth} bytes more after the second half"


@needs_proc
def test_600_short_lived_threads(record_property: Record) -> None:
    children.call(short_lives, 600, OPENBLAS_NUM_THREADS="1")
    record_property("cases", 600)


# ---- one descriptor for all --------------------------------------------------------------------------------


def one_descriptor() -> None:
    """Native calls, which run without the GIL, on one descriptor; and a planned call that threads share."""
    ip.set_num_threads(2)
    lib, pointer = _native.lib, _native.from_buffer
    rng = np.random.default_rng(0)
    for dtype in ("f2", "f4", "f8"):
        a = rng.integers(-4, 5, (250, 260)).astype(dtype)
        b = rng.integers(-4, 5, (260, 240)).astype(dtype)
        plan = ip.Gemm(np.empty((250, 240), dtype), a, b)
        descriptor, size = plan.plan.pointer, plan.plan.workspace_size
        wanted = a.astype("f8") @ b.astype("f8")

        def work(
            _: int, descriptor: Any = descriptor, size: int = size, plan: Any = plan, wanted: Any = wanted
        ) -> None:
            a, b = plan.operands[1:]
            c, workspace = np.empty_like(plan.operands[0]), bytearray(size)
            for _ in range(20):
                c[...] = 7
                status = lib.infiniopGemm(
                    descriptor,
                    pointer(workspace),
                    size,
                    pointer(c),
                    pointer(a),
                    pointer(b),
                    1,
                    0,
                    _native.NULL,
                )
                assert status == 0 and np.array_equal(c, wanted)
                c[...] = 7
                plan.run(c=c)
                assert np.array_equal(c, wanted)

        for thread in together(work, 8):
            thread.finish()


def test_one_descriptor_in_eight_threads(record_property: Record) -> None:
    children.call(one_descriptor, OPENBLAS_NUM_THREADS="1")
    record_property("cases", 3 * 8 * 20 * 2)


# ---- native threads ----------------------------------------------------------------------------------------


def count_threads() -> None:
    for n in (1, 4):
        ip.set_num_threads(n)
        stop = threading.Event()

        def work(i: int, stop: threading.Event = stop) -> None:
            while not stop.is_set():
                all_operators_once(seed=i, size=20 + i)

        threads = together(work, 8)
        most = max(native_threads() for _ in range(60) if time.sleep(0.002) is None)
        stop.set()
        for thread in threads:
            thread.finish()
        assert 1 + 8 <= most <= 1 + 8 + (n - 1), (n, most)


@needs_proc
def test_no_more_native_threads_than_callers_and_the_pool() -> None:
    children.call(count_threads, OPENBLAS_NUM_THREADS="1")


# ---- at once -----------------------------------------------------------------------------------------------


def import_at_once() -> None:
    """The package has not been imported by this process but for the modules of the tests, which go first."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "infiniop_py"]:
        del sys.modules[name]
    start = threading.Barrier(8)

    def work(i: int) -> None:
        start.wait()
        import infiniop_py
        from infiniop_py import interop  # noqa: F401

        x = np.full((3, 3), i, "f8")
        assert np.array_equal(infiniop_py.gemm(x, x), x @ x)
        with infiniop_py.Graph() as graph:
            y = infiniop_py.add(x, x)
        graph.run()
        assert np.array_equal(y, x + x) and "add" in graph.explain()

    for thread in together(work, 8):
        thread.finish()


def test_imports_at_once() -> None:
    children.call(import_at_once)


def test_devices_and_operators_at_once(record_property: Record) -> None:
    """A device is one object, whoever names it first; what is registered is found by all."""
    start = threading.Barrier(8)
    seen: list[list[Any]] = [[] for _ in range(8)]
    dispatcher = ip.OpDispatcher("of all")
    functions = [lambda *_, i=i: i for i in range(8)]

    def work(thread: int) -> None:
        start.wait()
        for index in range(1000, 1200):
            seen[thread].append(ip.Device("kunlun", index))
            dispatcher.register_device("kunlun", functions[thread])
            dispatcher.register_all(functions[thread], override_existing=False)
            assert dispatcher.lookup("kunlun") in functions
            seen[thread].append(dispatcher.lookup("cpu"))
            assert dispatcher.implementation(ip.DeviceType.CPU) is dispatcher.table[0]
            assert ip.device_count("kunlun") == 0 and ip.get_device() is ip.Device("cpu")

    for thread in together(work, 8):
        thread.finish()
    assert all(len(set(map(id, column))) == 1 for column in zip(*seen))
    record_property("cases", 8 * 200)
