"""Calls, plans, graphs, caches, devices, threads and forks in any order, beside a model of what is alive;
started by test_model.py.

    python _model_child.py <examples> <usual or same: the hashes of keys> <fixed or search>

The model knows every descriptor that was created, and who has it: the caches of threads, plans, graphs. After
each step the caches hold what the model says, in its order, and as many native objects are alive. Prints the
number of steps.
"""

from __future__ import annotations

import ctypes
import gc
import os
import queue
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "abi"))

import hypothesis.strategies as st
import numpy as np
from _library import FakeCounts
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from live import Live

import infiniop_py as ip
from infiniop_py._layout import _Interned

CPU = ip.Device("cpu")
DEVICES = (CPU, ip.Device("qy:0"), ip.Device("qy:1"))
OPS = {"add": ip.Add, "mul": ip.Mul, "gemm": ip.Gemm}
FUNCTIONS = {"add": ip.add_, "mul": ip.mul_, "gemm": ip.gemm_}
OWN = 1000.0  # what implementations of the test's own add to a result


class Key(NamedTuple):
    """A kind of call: one descriptor serves all of one kind."""

    op: str
    device: ip.Device
    dtype: str
    n: int


keys = st.builds(
    Key,
    st.sampled_from(list(OPS)),
    st.sampled_from(DEVICES),
    st.sampled_from(["f4", "f8"]),
    st.integers(1, 4),
)


class Call:
    """The operands of a call, and what comes of it."""

    def __init__(self, key: Key) -> None:
        self.key, self.function = key, FUNCTIONS[key.op]
        a = np.arange(key.n * key.n, dtype=key.dtype).reshape(key.n, key.n)
        b = a.T + 1
        self.wanted = {"add": a + b, "mul": a * b, "gemm": a @ b}[key.op]
        host = (np.full_like(a, -1), a, np.ascontiguousarray(b))
        # Arrays on the CPU, Tensors elsewhere.
        self.operands = host if key.device is CPU else tuple(ip.from_numpy(x).to(key.device) for x in host)

    def forget(self) -> None:
        self.operands[0][...] = np.full_like(self.wanted, -1)
        ip.Rearrange.cache().clear()  # which the model knows nothing of

    def check(self, own: bool) -> None:
        c = self.operands[0]
        got = c.to("cpu").numpy() if isinstance(c, ip.Tensor) else c
        np.testing.assert_array_equal(got, self.wanted + OWN * own)


def own_implementation(op: str) -> Callable[..., None]:
    compute = {"add": np.add, "mul": np.multiply, "gemm": lambda a, b: a @ b}[op]

    def run(c: ip.Tensor, a: ip.Tensor, b: ip.Tensor, *_: float) -> None:
        c.numpy()[...] = compute(a.numpy(), b.numpy()) + OWN

    return run


class Descriptor:
    """One that was created, in the model."""

    def __init__(self, key: Key) -> None:
        self.key = key


class Cache:
    """The model of one operator's caches in one thread."""

    def __init__(self) -> None:
        self.capacity = 100
        self.of: dict[ip.Device, dict[Key, Descriptor]] = {device: {} for device in DEVICES}

    def plan(self, key: Key) -> Descriptor:
        entries = self.of[key.device]
        found = entries.pop(key, None) or Descriptor(key)
        entries[key] = found
        self.shrink()
        return found

    def shrink(self) -> None:
        for entries in self.of.values():
            while len(entries) > self.capacity:
                del entries[next(iter(entries))]


class Worker:
    """A thread that does what it is told, and the model of it; the first one is the thread of the test."""

    def __init__(self, is_new: bool) -> None:
        self.caches = {op: Cache() for op in OPS}
        self.device = CPU
        self._work: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._loop) if is_new else None
        if self._thread is not None:
            self._thread.start()

    def _loop(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                self._done.put((work(), None))
            except BaseException as error:
                self._done.put((None, error))
            del work

    def do(self, work: Callable[[], Any]) -> Any:
        if self._thread is None:
            return work()
        self._work.put(work)
        result, error = self._done.get()
        if error is not None:
            raise error
        return result

    def end(self) -> None:
        if self._thread is not None:
            self._work.put(None)
            self._thread.join()


class Held(NamedTuple):
    """A plan or a graph."""

    real: Any
    calls: list[Call]
    own: list[bool]
    descriptors: list[Descriptor]
    executors: int  # native graphs


live = Live()
plugin = ctypes.CDLL(os.environ["INFINIOP_BACKEND_PATH"])
NATIVE = {op: cls.dispatcher().implementation(ip.DeviceType.CPU) for op, cls in OPS.items()}
steps = 0


class Machine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.workers = [Worker(is_new=False)]
        self.plans: list[Held] = []
        self.graphs: list[Held] = []
        self.own: set[str] = set()
        self.called: list[tuple[int, Key]] = []
        gc.collect()  # an example that failed may have left exceptions
        fake = FakeCounts.of(plugin)
        left = live.descriptors(), live.graphs(), fake.plans, fake.device_graphs, fake.graph_execs
        assert not any(left), left

    # ---- what is done ------------------------------------------------------------------------------------

    @rule(who=st.integers(0, 9), key=keys)
    def call(self, who: int, key: Key) -> None:
        worker, call = self._worker(who), Call(key)
        worker.do(lambda: call.function(*call.operands))
        self._planned(worker, key)
        self.called.append((who, key))
        call.check(self._is_own(key))

    @precondition(lambda self: self.called)
    @rule(which=st.integers(0, 9))
    def call_again(self, which: int) -> None:
        self.call(*self.called[-1 - which % len(self.called)])

    @rule(who=st.integers(0, 9), key=keys)
    def plan(self, who: int, key: Key) -> None:
        worker, call = self._worker(who), Call(key)
        plan = worker.do(lambda: OPS[key.op](*call.operands))
        found = self._planned(worker, key)
        is_bound = found is not None and key.device is CPU and not plan.plan.workspace_size
        self.plans.append(Held(plan, [call], [found is None], [found] if found else [], int(is_bound)))

    @precondition(lambda self: self.plans)
    @rule(who=st.integers(0, 9), which=st.integers(0, 9))
    def run_plan(self, who: int, which: int) -> None:
        self._run(self._worker(who), self.plans[which % len(self.plans)])

    @precondition(lambda self: self.plans)
    @rule(which=st.integers(0, 9))
    def drop_plan(self, which: int) -> None:
        del self.plans[which % len(self.plans)]

    @rule(who=st.integers(0, 9), recorded=st.lists(keys, max_size=4), fails=st.booleans())
    def record(self, who: int, recorded: list[Key], fails: bool) -> None:
        worker, calls = self._worker(who), [Call(key) for key in recorded]

        def work() -> ip.Graph | None:
            try:
                with ip.Graph(fuse="none") as graph:
                    for call in calls:
                        call.function(*call.operands)
                    if fails:
                        raise LookupError
            except LookupError:
                return None
            return graph

        graph = worker.do(work)
        found = [self._planned(worker, key) for key in recorded]
        if graph is None:
            return
        runs = groupby(key.device if one else None for key, one in zip(recorded, found))
        executors = sum(device is not None for device, _ in runs)
        self.graphs.append(
            Held(graph, calls, [one is None for one in found], [one for one in found if one], executors)
        )

    @precondition(lambda self: self.graphs)
    @rule(who=st.integers(0, 9), which=st.integers(0, 9))
    def replay(self, who: int, which: int) -> None:
        self._run(self._worker(who), self.graphs[which % len(self.graphs)])

    @precondition(lambda self: self.graphs)
    @rule(which=st.integers(0, 9))
    def drop_graph(self, which: int) -> None:
        del self.graphs[which % len(self.graphs)]

    @rule(who=st.integers(0, 9), op=st.sampled_from(list(OPS)), capacity=st.sampled_from([0, 1, 2, 3, 100]))
    def set_capacity(self, who: int, op: str, capacity: int) -> None:
        worker = self._worker(who)
        worker.do(lambda: OPS[op].cache().set_capacity(capacity))
        worker.caches[op].capacity = capacity
        worker.caches[op].shrink()

    @rule(who=st.integers(0, 9), op=st.sampled_from(list(OPS)))
    def clear(self, who: int, op: str) -> None:
        worker = self._worker(who)
        worker.do(lambda: OPS[op].cache().clear())
        for entries in worker.caches[op].of.values():
            entries.clear()

    @rule(who=st.integers(0, 9), device=st.sampled_from(DEVICES))
    def switch_device(self, who: int, device: ip.Device) -> None:
        worker = self._worker(who)
        worker.do(lambda: ip.set_device(device))
        worker.device = device

    @precondition(lambda self: len(self.workers) < 3)
    @rule()
    def start_thread(self) -> None:
        self.workers.append(Worker(is_new=True))

    @precondition(lambda self: len(self.workers) > 1)
    @rule(who=st.integers(0, 9))
    def end_thread(self, who: int) -> None:
        self.workers.pop(1 + who % (len(self.workers) - 1)).end()

    @rule(op=st.sampled_from(list(OPS)))
    def register(self, op: str) -> None:
        OPS[op].dispatcher().register_device("cpu", own_implementation(op))
        self.own.add(op)
        self._call_again(op)

    @rule(op=st.sampled_from(list(OPS)))
    def unregister(self, op: str) -> None:
        OPS[op].dispatcher().register_device("cpu", NATIVE[op])
        self.own.discard(op)
        self._call_again(op)

    @rule(n=st.integers(0, 3))
    def set_threads(self, n: int) -> None:
        ip.set_num_threads(n)

    @rule(key=keys)
    def fork(self, key: Key) -> None:
        """The child goes on with what it has: all but the other threads."""
        child = os.fork()
        if child == 0:
            status = 1
            try:
                for worker in self.workers[1:]:
                    worker.caches = {}
                self.workers = self.workers[:1]
                self.check()
                for held in self.plans + self.graphs:
                    self._run(self.workers[0], held)
                self.call(0, key)
                self.check()
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0, "in the child"

    # ---- what must hold ----------------------------------------------------------------------------------

    @invariant()
    def check(self) -> None:
        global steps
        steps += 1
        for worker in self.workers:
            assert worker.do(self._cached) == self._modelled(worker)
            assert worker.do(ip.get_device) is worker.device
        alive = {id(one): one for one in self._alive()}.values()
        on_devices = sum(one.key.device is not CPU for one in alive)
        fake = FakeCounts.of(plugin)
        assert fake.plans == on_devices
        # Each plan of the test backend has a descriptor of its own.
        assert live.descriptors() == len(alive) + on_devices
        assert live.graphs() == sum(held.executors for held in self.plans + self.graphs)
        assert fake.broken_guards == fake.events == fake.streams == 0

    def teardown(self) -> None:
        for op, cls in OPS.items():
            cls.dispatcher().register_device("cpu", NATIVE[op])
            cls.cache().clear()
            cls.cache().set_capacity(100)
        for worker in self.workers[1:]:
            worker.end()
        ip.set_num_threads(0)
        ip.set_device("cpu")
        del self.plans[:], self.graphs[:], self.workers[:]

    # ---- parts of it -------------------------------------------------------------------------------------

    def _worker(self, who: int) -> Worker:
        return self.workers[who % len(self.workers)]

    def _call_again(self, op: str) -> None:
        """What was called before, and may be found without a further look."""
        for who, key in [one for one in self.called if one[1].op == op and one[1].device is CPU][-2:]:
            self.call(who, key)

    def _is_own(self, key: Key) -> bool:
        return key.device is CPU and key.op in self.own

    def _planned(self, worker: Worker, key: Key) -> Descriptor | None:
        """The descriptor of a call of this kind; None if the implementation has none."""
        return None if self._is_own(key) else worker.caches[key.op].plan(key)

    def _run(self, worker: Worker, held: Held) -> None:
        for call in held.calls:
            call.forget()
        worker.do(held.real.run)
        for call, own in zip(held.calls, held.own):
            call.check(own)

    def _alive(self) -> Iterator[Descriptor]:
        for worker in self.workers:
            for cache in worker.caches.values():
                for entries in cache.of.values():
                    yield from entries.values()
        for held in self.plans + self.graphs:
            yield from held.descriptors

    @staticmethod
    def _cached() -> list[tuple[str, list[tuple[str, int]]]]:
        """What this thread's caches hold, the oldest first."""
        return [
            (
                f"{op} {device}",
                [(f"f{key[0][0].itemsize}", key[0][1][0]) for key in cls.cache().get_cache(device)],
            )
            for op, cls in OPS.items()
            for device in DEVICES
        ]

    @staticmethod
    def _modelled(worker: Worker) -> list[tuple[str, list[tuple[str, int]]]]:
        return [
            (f"{op} {device}", [(key.dtype, key.n) for key in worker.caches[op].of[device]])
            for op in OPS
            for device in DEVICES
        ]


def main(examples: int, hashes: str, profile: str) -> None:
    if hashes == "same":
        _Interned.__hash__ = lambda self: 1  # type: ignore[assignment,method-assign]
        x = np.ones(3)
        ip.add(x, x)
        ip.add(x[:2], x[:2])
        assert len({hash(key) for key in ip.Add.cache().get_cache(CPU)}) == 1
        ip.Add.cache().clear()
    for op in OPS.values():
        op.cache().clear()
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            derandomize=profile == "fixed",
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    print(steps)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
