"""An exception in an implementation of one's own, wherever it is called: it reaches the caller, everything is
as it was before, and the next call works."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from everything import Caught

import infiniop_py as ip

Record = Callable[[str, object], None]
CPU = ip.DeviceType.CPU


class Mine(Exception):
    pass


ERRORS = [Mine, ip.ShapeError, MemoryError, StopIteration, RecursionError, KeyboardInterrupt, SystemExit]
OPERATORS = [ip.Add, ip.Mul, ip.Gemm, ip.GemmAdd, ip.GemmMul, ip.AddRMSNorm, ip.Rearrange]


def operands(op: type[ip.GraphOperator]) -> list[Any]:
    return [
        np.full((3, 3), 7.0) if i < op.n_outputs else np.ones(3 if name == "weight" else (3, 3))
        for i, name in enumerate(op.operand_names)
    ]


class Failing:
    """The native implementation, in which one of the three functions fails as long as it is told to."""

    def __init__(self, op: type[ip.GraphOperator], where: str, error: type[BaseException]) -> None:
        native = op.dispatcher().implementation(CPU)
        self.failing = True
        self.alive = 0

        def fail_in(place: str) -> None:
            if self.failing and place == where:
                raise error("mine")

        def plan(call: Any) -> Any:
            fail_in("plan")
            planned = native.plan(call)
            self.alive += 1
            return planned

        def run(call: Any) -> None:
            fail_in("run")
            native.run(call)

        def cleanup(planned: Any) -> None:
            self.alive -= 1

        self.implementation = ip.OpImpl(plan, run, cleanup)


def outputs_are(op: type[ip.GraphOperator], arrays: list[Any], seven: bool) -> bool:
    return all((array == 7).all() == seven for array in arrays[: op.n_outputs])


def check(op: type[ip.GraphOperator], where: str, error: type[BaseException], own: Any) -> None:
    failing = Failing(op, where, error)
    own(op, failing.implementation)
    arrays = operands(op)

    def raises(call: Callable[[], object]) -> None:
        with pytest.raises(error, match="mine"):
            call()
        assert not ip.is_graph_recording() and outputs_are(op, arrays, True)

    def record() -> ip.Graph:
        with ip.Graph() as graph:
            ip.add(np.ones(2), np.ones(2)) if op is not ip.Add else None
            op.execute(*arrays)
        return graph

    raises(lambda: op.execute(*arrays))
    if where == "plan":
        raises(lambda: op(*arrays))
        raises(record)
    else:
        planned, graph = op(*arrays), record()
        raises(planned)
        raises(planned.run)
        raises(graph.run)
        raises(graph.run)
        raises(lambda: graph.profile(1))
    # And then it does not.
    failing.failing = False
    if where == "run":
        planned()
        assert outputs_are(op, arrays, False)
        for array in arrays[: op.n_outputs]:
            array[...] = 7
        graph.run()
        assert outputs_are(op, arrays, False)
        del planned, graph
    op.execute(*arrays)
    record().run()
    gc.collect()
    assert failing.alive == 0


@pytest.mark.parametrize("where", ["plan", "run"])
@pytest.mark.parametrize("op", OPERATORS, ids=lambda op: op.name)
def test_an_exception_in_an_implementation(
    op: type[ip.GraphOperator], where: str, own: Any, record_property: Record
) -> None:
    for error in ERRORS:
        check(op, where, error, own)
    record_property("cases", len(ERRORS) * (3 if where == "plan" else 6))


@pytest.mark.parametrize("where", ["plan", "run"])
def test_in_threads(where: str, own: Any, record_property: Record) -> None:
    """Each thread's calls fail or succeed by themselves, also with one graph in turns."""
    failing = Failing(ip.Mul, where, Mine)
    own(ip.Mul, failing.implementation)
    start = threading.Barrier(6)

    def work() -> None:
        start.wait()
        for _ in range(30):
            arrays = operands(ip.Mul)
            with pytest.raises(Mine):
                ip.Mul.execute(*arrays)
            with pytest.raises(Mine), ip.Graph() as graph:
                ip.Mul.execute(*arrays)
                if where == "run":
                    raise Mine  # recorded, and dropped
            assert not ip.is_graph_recording() and len(graph) == 0
            np.testing.assert_array_equal(ip.add(arrays[1], arrays[2]), 2)

    threads = [Caught(work) for _ in range(6)]
    for thread in threads:
        thread.finish()
    gc.collect()
    assert failing.alive == 0
    record_property("cases", 6 * 30 * 2)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("error", [Mine, KeyboardInterrupt])
def test_in_a_cleanup(error: type[BaseException], own: Any) -> None:
    """Nobody is there to be told; nothing else is lost."""
    native = ip.Add.dispatcher().implementation(CPU)
    seen: list[int] = []

    def cleanup(_: Any) -> None:
        seen.append(1)
        raise error

    own(ip.Add, ip.OpImpl(native.plan, native.run, cleanup))
    for i in range(3):
        np.testing.assert_array_equal(ip.add(np.ones(3), np.ones(3)), 2)
        gc.collect()
        assert len(seen) == i + 1


def test_an_implementation_that_calls_operators_and_fails(own: Any) -> None:
    """Operators, recordings and graphs inside of it are those of its thread, and end with it."""
    deep = [0]

    def add(c: ip.Tensor, a: ip.Tensor, b: ip.Tensor) -> None:
        with ip.Graph() as graph:
            product = ip.mul(a, b)
        graph.run()
        c.copy_(product)
        if deep[0] == 2:
            with pytest.raises(ip.ShapeError), ip.Graph():
                ip.mul(np.ones(2), np.ones(3))
            raise Mine
        deep[0] += 1
        ip.add_(c, a, b)

    own(ip.Add, add)
    x, y = np.full(3, 5.0), np.zeros(3)
    with ip.Graph() as outer:
        ip.add_(y, x, x)
    for call in (lambda: ip.add_(y, x, x), outer.run):
        deep[0] = 0
        with pytest.raises(Mine):
            call()
        assert not ip.is_graph_recording() and (y == 25).all()
    deep[0] = -(10**6)
    with pytest.raises(RecursionError):
        ip.add_(y, x, x)
    assert not ip.is_graph_recording()
    np.testing.assert_array_equal(ip.mul(x, x), 25)
