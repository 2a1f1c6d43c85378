"""OpDispatcher: which implementation wins, and operators that run a user's."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import numpy as np
import pytest

import infiniop_py as ip
from infiniop_py import DeviceType
from infiniop_py._native_op import NATIVE


def one(*_: Any) -> None:
    """An implementation."""


def two(*_: Any) -> None:
    """Another."""


def test_what_is_registered_is_found() -> None:
    table = ip.OpDispatcher("op")
    table.register_device(DeviceType.CPU, one)
    table.register_device([DeviceType.QY, "nvidia", 2], two)
    assert table.lookup(DeviceType.CPU) is one and table.lookup("cpu") is one
    assert (
        table.lookup("qy") is two
        and table.lookup("cuda") is two
        and table.lookup(DeviceType.CAMBRICON) is two
    )
    with pytest.raises(ip.DeviceError, match="op: no implementation is registered for ASCEND") as caught:
        table.lookup("ascend")
    assert caught.value.status == ip.Status.DEVICE_TYPE_NOT_SUPPORTED


@pytest.mark.parametrize("first", ["generic", "specific"])
def test_a_specific_implementation_wins_whichever_came_first(first: str) -> None:
    table = ip.OpDispatcher("op")
    steps = [
        lambda: table.register_all(one, override_existing=False),
        lambda: table.register_device("cpu", two),
    ]
    for step in steps if first == "generic" else reversed(steps):
        step()
    assert table.lookup("cpu") is two
    assert all(table.lookup(kind) is one for kind in DeviceType if kind is not DeviceType.CPU)


def test_overriding() -> None:
    table = ip.OpDispatcher("op")
    table.register_all(one)
    table.register_device("cpu", two, override_existing=False)
    assert table.lookup("cpu") is one
    table.register_device("cpu", two)
    assert table.lookup("cpu") is two
    table.register_all(one)
    assert table.lookup("cpu") is one
    native = ip.Add.dispatcher()
    before = [native.lookup(kind) for kind in DeviceType]
    native.register_all(one, override_existing=False)  # each type has one
    assert [native.lookup(kind) for kind in DeviceType] == before


@pytest.mark.parametrize("bad", [1, None, "add", (one, two)])
def test_not_an_implementation(bad: Any) -> None:
    table = ip.OpDispatcher("op")
    with pytest.raises(ip.OperandError, match="an implementation is an OpImpl or a function"):
        table.register_all(bad)
    with pytest.raises(ip.DeviceError):
        table.lookup("cpu")


@pytest.mark.parametrize("bad", ["tpu", 10, -1, ["cpu", "tpu"]])
def test_not_a_device_type(bad: Any) -> None:
    table = ip.OpDispatcher("op")
    with pytest.raises(ip.DeviceError, match="device type is"):
        table.register_device(bad, one)
    with pytest.raises(ip.DeviceError, match="no implementation"):
        table.lookup("cpu")


@pytest.mark.parametrize(
    "op",
    [ip.Gemm, ip.Add, ip.Mul, ip.AddRMSNorm, ip.Rearrange, ip.GemmAdd, ip.GemmMul],
    ids=lambda op: op.name,
)
def test_every_operator_has_the_native_one_everywhere(op: type[ip.GraphOperator]) -> None:
    assert op.dispatcher() is op.dispatcher()
    assert all(op.dispatcher().lookup(kind) is NATIVE for kind in DeviceType)


def test_only_operators_have_a_table_and_a_cache() -> None:
    for between in (ip.GraphOperator, ip.Add.__mro__[1]):
        assert not hasattr(between, "_dispatcher") and not hasattr(between, "_local")
    assert ip.Add.dispatcher() is not ip.Mul.dispatcher() and ip.Add.dispatcher().name == "add"
    with pytest.raises(TypeError, match="abstract"):
        ip.GraphOperator()  # type: ignore[abstract]


# ---- operators with an implementation of the user's ------------------------------------------------------


def test_a_function_gets_tensors_and_scalars(own: Any) -> None:
    seen: list[tuple[Any, ...]] = []

    def gemm(c: ip.Tensor, a: ip.Tensor, b: ip.Tensor, alpha: float, beta: float) -> None:
        seen.append((type(c), alpha, beta))
        c.numpy()[...] = alpha * (a.numpy() @ b.numpy()) + beta * c.numpy() + 100

    own(ip.Gemm, gemm)
    a = np.eye(2)
    np.testing.assert_array_equal(ip.gemm(a, a, 2.0), 2 * a + 100)
    c = np.ones((2, 2))
    ip.gemm_(c, ip.from_numpy(a), a, 3.0, 1.0)
    np.testing.assert_array_equal(c, 3 * a + 101)
    assert seen == [(ip.Tensor, 2.0, 0.0), (ip.Tensor, 3.0, 1.0)]


def test_a_function_gets_broadcast_operands(own: Any) -> None:
    shapes: list[Any] = []

    def mul(c: ip.Tensor, a: ip.Tensor, b: ip.Tensor) -> None:
        shapes.append((c.shape, a.shape, b.shape, a.strides))
        c.numpy()[...] = a.numpy() * b.numpy()

    own(ip.Mul, mul)
    x, y = np.arange(3.0), np.arange(2.0).reshape(2, 1)
    np.testing.assert_array_equal(ip.mul(x, y), x * y)
    assert shapes == [((2, 3), (2, 3), (2, 3), (0, 1))]


def test_a_function_for_each_other_operator(own: Any) -> None:
    def norm(y: Any, residual_out: Any, a: Any, b: Any, weight: Any, epsilon: float) -> None:
        residual_out.numpy()[...] = a.numpy() - b.numpy()
        y.numpy()[...] = weight.numpy() * epsilon

    def rearrange(y: Any, x: Any) -> None:
        y.numpy()[...] = -x.numpy()

    own(ip.AddRMSNorm, norm)
    own(ip.Rearrange, rearrange)
    a, w = np.full((2, 3), 5.0), np.arange(3.0)
    y, residual = ip.add_rms_norm(a, a, w, 2.0)
    np.testing.assert_array_equal(y, np.broadcast_to(2 * w, (2, 3)))
    np.testing.assert_array_equal(residual, np.zeros((2, 3)))
    np.testing.assert_array_equal(ip.rearrange(a.T), -a.T)
    assert ip.from_numpy(a).T.contiguous().tolist() == (-a.T).tolist()


def test_gemm_with_many_batches_comes_as_several_calls(own: Any) -> None:
    calls: list[Any] = []

    def gemm(c: Any, a: Any, b: Any, alpha: float, beta: float) -> None:
        calls.append(a.shape)
        c.numpy()[...] = alpha * (a.numpy() @ b.numpy())

    own(ip.Gemm, gemm)
    rng = np.random.default_rng(0)
    a, b = rng.integers(-3, 4, (4, 1, 2, 3)).astype("f4"), rng.integers(-3, 4, (5, 3, 2)).astype("f4")
    np.testing.assert_array_equal(ip.gemm(a, b), a @ b)
    assert calls == [(5, 2, 3)] * 4


def test_operands_are_checked_before_a_function_runs(own: Any) -> None:
    own(ip.Add, one)
    with pytest.raises(ip.ShapeError, match="do not broadcast"):
        ip.add(np.ones(2), np.ones(3))
    with pytest.raises(ip.DTypeError, match="dtypes differ"):
        ip.add(np.ones(2), np.ones(2, "f4"))
    with pytest.raises(ip.ShapeError, match="add: out is"):
        ip.add(np.ones(2), np.ones(2), out=np.ones(3))


def test_functions_in_graphs(own: Any) -> None:
    runs: list[int] = []

    def add(c: ip.Tensor, a: ip.Tensor, b: ip.Tensor) -> None:
        runs.append(1)
        assert not ip.is_graph_recording()
        c.numpy()[...] = a.numpy() - b.numpy()

    own(ip.Add, add)
    x = np.array([1.0, 2.0])
    with ip.Graph() as graph:
        y = ip.mul(ip.add(ip.mul(x, x), x), x)
    assert runs == [] and len(graph) == 3
    own(ip.Add, two)  # the recording keeps what it has
    for _ in range(2):
        graph.run()
        np.testing.assert_array_equal(y, (x * x - x) * x)
        x += 3
    assert runs == [1, 1]


def test_plan_run_cleanup(own: Any) -> None:
    log: list[Any] = []

    def plan(call: ip.GraphOperator) -> str:
        log.append(("plan", call.layouts[0][1], call.params, call.scalars))
        return "prepared"

    def run(call: ip.GraphOperator) -> None:
        log.append(("run", call.plan))

    own(ip.Gemm, ip.OpImpl(plan, run, lambda prepared: log.append(("cleanup", prepared))))
    a = np.eye(2)
    ip.gemm_(np.ones((2, 2)), a, a, 2.0)
    gc.collect()
    once = [("plan", (2, 2), (), (2.0, 0.0)), ("run", "prepared"), ("cleanup", "prepared")]
    assert log == once
    log.clear()
    with ip.Graph() as graph:
        ip.gemm(a, a, 2.0)
    assert log == once[:1]
    graph.run()
    graph.run()
    assert log == [once[0], once[1], once[1]]
    del graph
    gc.collect()
    assert log == [once[0], once[1], once[1], once[2]]


def test_registering_while_others_call(own: Any) -> None:
    """Every call sees one implementation or the other, never a mixture."""

    def negated(c: ip.Tensor, a: ip.Tensor, b: ip.Tensor) -> None:
        c.numpy()[...] = -(a.numpy() + b.numpy())

    own(ip.Add, negated)
    stop = threading.Event()
    wrong: list[Any] = []

    def call() -> None:
        x = np.ones(3)
        while not stop.is_set():
            result = ip.add(x, x).tolist()
            if result not in ([2.0] * 3, [-2.0] * 3):
                wrong.append(result)

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(200):
        ip.Add.dispatcher().register_device("cpu", NATIVE)
        ip.Add.dispatcher().register_device("cpu", negated)
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_plan_that_refers_to_its_call_is_cleaned_up(own: Any) -> None:
    cleaned: list[int] = []

    class Prepared:
        def __init__(self, call: ip.GraphOperator) -> None:
            self.call = call

    own(ip.Add, ip.OpImpl(Prepared, one, lambda plan: cleaned.append(len(plan.call.operands))))
    x = np.ones(3)
    known = weakref.ref(x)
    ip.add(x, x)
    del x
    gc.collect()
    assert cleaned == [3] and known() is None


def test_overlaps_are_refused_before_a_function_runs(own: Any) -> None:
    runs: list[int] = []
    for op in (ip.Add, ip.AddRMSNorm, ip.Rearrange):
        own(op, lambda *operands: runs.append(len(operands)))
    x = np.arange(6.0)
    plan = ip.Add(x[1:], x[:-1], np.ones(5))
    for call in (
        lambda: ip.add(x[:-1], x[:-1], out=x[1:]),
        plan,
        plan.run,
        lambda: ip.add_rms_norm(x[None], x[None], np.ones(6), out=x[None], residual_out=x[None]),
        lambda: ip.rearrange(x, out=x),
    ):
        with pytest.raises(ip.ParamError, match="overlaps"):
            call()  # type: ignore[operator]
        with ip.Graph(), pytest.raises(ip.ParamError, match="overlaps"):
            call()  # type: ignore[operator]
    with pytest.raises(ip.StrideError, match="overlap each other"):
        ip.add(np.ones(5), np.ones(5), out=np.lib.stride_tricks.as_strided(np.zeros(1), (5,), (0,)))
    assert runs == []
    ip.add_(x, x, x)
    ip.add_rms_norm(x[None], x[None], np.ones(6), out=x[None])
    assert runs == [3, 6]
