"""Planned calls, and the short way of calls like one before: what each sees, and what it must not miss."""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import infiniop_py as ip
from infiniop_py._native_op import Descriptor


def tensor(*values: float) -> ip.Tensor:
    return ip.from_numpy(np.array(values, "f4"))


# ---- plans -----------------------------------------------------------------------------------------------


def matrices() -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(0)
    c, a, b = (rng.integers(-4, 4, shape).astype("f4") for shape in ((3, 5), (3, 4), (4, 5)))
    return c, a, b


def test_a_plan_computes_on_current_contents() -> None:
    c, a, b = matrices()
    plan = ip.gemm.plan(c, a, b)
    assert plan() is c
    np.testing.assert_array_equal(c, a @ b)
    a += 1
    plan.run()
    np.testing.assert_array_equal(c, a @ b)


@pytest.mark.parametrize("k", [4, 300])  # without a workspace, and with one
def test_scalars_of_one_run(k: int) -> None:
    rng = np.random.default_rng(1)
    a, b = rng.integers(-4, 4, (3, k)).astype("f4"), rng.integers(-4, 4, (k, 5)).astype("f4")
    c = np.ones((3, 5), "f4")
    plan = ip.gemm.plan(c, a, b, 2.0)
    assert plan(beta=3.0) is c
    np.testing.assert_array_equal(c, 2 * (a @ b) + 3)
    plan(0.5, 0)
    np.testing.assert_array_equal(c, 0.5 * (a @ b))
    plan()  # the planned ones are as they were
    np.testing.assert_array_equal(c, 2 * (a @ b))
    with pytest.raises(ip.OperandError, match="gemm: beta is 'x'"):
        plan(1.0, "x")  # type: ignore[arg-type]


def test_every_operator_has_a_plan() -> None:
    x, y = np.arange(6, dtype="f4").reshape(2, 3), np.ones((2, 3), "f4")
    out, residual = np.zeros((2, 3), "f4"), np.zeros((2, 3), "f4")
    assert ip.add.plan(out, x, y)() is out
    np.testing.assert_array_equal(out, x + y)
    ip.mul.plan(out, x, x)()
    np.testing.assert_array_equal(out, x * x)
    results = ip.add_rms_norm.plan(out, residual, x, y, np.ones(3, "f4"), 1e-6)()
    assert results[0] is out and results[1] is residual
    np.testing.assert_array_equal(residual, x + y)
    copy = np.zeros((3, 2), "f4")
    ip.rearrange.plan(copy, x.T)()
    np.testing.assert_array_equal(copy, x.T)


def test_other_operands_of_the_same_layouts() -> None:
    c, a, b = matrices()
    plan = ip.gemm.plan(c, a, b)
    before = c.copy()
    other, other_a = np.zeros_like(c), a + 1
    plan.run(c=other, a=other_a)
    np.testing.assert_array_equal(other, other_a @ b)
    np.testing.assert_array_equal(c, before)
    plan.run(b=ip.from_numpy(2 * b))  # another kind of array
    np.testing.assert_array_equal(c, 2 * (a @ b))
    plan.run(b=read_only(3 * b))  # inputs are not written
    np.testing.assert_array_equal(c, 3 * (a @ b))
    plan.run()
    np.testing.assert_array_equal(c, a @ b)


def read_only(array: Any) -> Any:
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    "given, error, says",
    [
        (
            lambda c, a, b: {"a": a.astype("f8")},
            ip.DTypeError,
            "gemm: a has dtype F64, but the plan is for F32",
        ),
        (
            lambda c, a, b: {"a": a[:2]},
            ip.ShapeError,
            r"gemm: a has shape \(2, 4\), but the plan is for \(3, 4\)",
        ),
        (lambda c, a, b: {"b": np.asfortranarray(b)}, ip.StrideError, "gemm: b has byte strides"),
        (lambda c, a, b: {"x": a}, ip.OperandError, "gemm: there is no operand 'x', only c, a, b"),
        (lambda c, a, b: {"c": read_only(c.copy())}, ip.ParamError, "gemm: c with shape .* is read-only"),
        (lambda c, a, b: {"a": None}, ip.OperandError, "gemm: a is a NoneType"),
        (lambda c, a, b: {"b": c[:0]}, ip.ShapeError, "gemm: b has shape"),
    ],
)
def test_other_operands_that_do_not_fit(given: Any, error: type[Exception], says: str) -> None:
    c, a, b = matrices()
    plan = ip.gemm.plan(c, a, b)
    before = c.copy()
    with pytest.raises(error, match=says):
        plan.run(**given(c, a, b))
    np.testing.assert_array_equal(c, before)


def test_a_run_that_overlaps_is_refused() -> None:
    base = np.zeros((4, 4), "f4")
    c, a, b = base[:2, :2], np.ones((2, 2), "f4"), np.ones((2, 2), "f4")
    plan = ip.gemm.plan(c, a, b)
    same_steps = np.zeros((4, 4), "f4")
    with pytest.raises(ip.StrideError):
        plan.run(a=base[1:3, :2])
    plan = ip.gemm.plan(c, same_steps[:2, :2], b)
    with pytest.raises(ip.ParamError, match=r"gemm: c .*overlaps a"):
        plan.run(a=base[1:3, :2])


def unaligned(n: int) -> Any:
    return np.zeros(4 * n + 1, "u1")[1:].view("f4")


@pytest.mark.parametrize(
    "plan, says",
    [
        (lambda x: ip.gemm.plan(x, x, np.eye(4, dtype="f4")), r"gemm: c .*overlaps a"),
        (lambda x: ip.add.plan(x[1:], x[:3], x[:3]), r"add: c .*overlaps a"),
        (lambda x: ip.rearrange.plan(x, x.T), r"rearrange: y .*overlaps x"),
        (lambda x: ip.mul.plan(x[0], x[1], unaligned(4)), r"mul: b .*is not aligned"),
        (
            lambda x: ip.gemm.plan(*[np.zeros((2, 3, 2, 2), "f4")] * 2, x.reshape(2, 1, 2, 4)[..., :2]),
            r"gemm: c .*overlaps a",
        ),
    ],
)
def test_what_is_wrong_is_refused_when_it_is_planned(plan: Any, says: str) -> None:
    with pytest.raises(ip.ParamError, match=says):
        plan(np.ones((4, 4), "f4"))


def test_an_output_that_becomes_read_only_is_not_written() -> None:
    c, a, b = matrices()
    plan = ip.gemm.plan(c, a, b)
    before = read_only(c).copy()
    for run in (plan, lambda: plan(2.0), plan.run, lambda: plan.run(a=a)):
        with pytest.raises(ip.ParamError, match=r"gemm: c .*read-only"):
            run()
    np.testing.assert_array_equal(c, before)
    plan.run(c=np.zeros_like(c))


def test_autograd_sees_what_a_plan_writes() -> None:
    torch = pytest.importorskip("torch")
    c, x = torch.zeros(2, 2), torch.ones(2, 2)
    plan = ip.gemm.plan(c, x, x)
    for run in (plan, lambda: plan(2.0), plan.run, lambda: plan.run(a=x)):
        version = c._version
        run()
        assert c._version > version


def test_a_plan_while_recording() -> None:
    c, a, b = matrices()
    plan = ip.gemm.plan(c, a, b)
    c[:] = 7
    with ip.Graph() as graph:
        assert plan() is c
        plan(alpha=2.0, beta=1.0)
        assert (c == 7).all()  # recorded, not run
    assert len(graph) == 2
    graph.run()
    np.testing.assert_array_equal(c, 3 * (a @ b))
    with ip.Graph() as graph:
        plan.run()  # at once
    assert len(graph) == 0
    np.testing.assert_array_equal(c, a @ b)


def test_a_plan_outlives_the_cache_and_its_thread() -> None:
    c, a, b = matrices()
    made: list[ip.Gemm] = []
    thread = threading.Thread(target=lambda: made.append(ip.gemm.plan(c, a, b)))
    thread.start()
    thread.join()
    ip.Gemm.cache().clear()
    made[0]()
    np.testing.assert_array_equal(c, a @ b)


def test_a_plan_of_several_batch_dimensions() -> None:
    rng = np.random.default_rng(2)
    a, b = rng.integers(-4, 4, (2, 3, 4, 5)).astype("f4"), rng.integers(-4, 4, (3, 5, 2)).astype("f4")
    c = np.zeros((2, 3, 4, 2), "f4")
    plan = ip.gemm.plan(c, a, b)
    plan()
    np.testing.assert_array_equal(c, a @ b)
    other = np.zeros_like(c)
    plan.run(c=other)
    np.testing.assert_array_equal(other, a @ b)


def test_a_plan_of_one_s_own_implementation(own_add: list[Any]) -> None:
    x, y, out, other = tensor(1, 2), tensor(3, 4), tensor(0, 0), tensor(0, 0)
    plan = ip.add.plan(out, x, y)
    plan()
    plan.run(c=other)
    assert out.tolist() == other.tolist() == [104.0, 106.0]
    assert len(own_add) == 2


def test_a_plan_of_an_implementation_that_holds_scalars_keeps_it(own: Any) -> None:
    """Other scalars and operands are planned by the implementation of the plan, whatever was registered
    since."""
    native = ip.Gemm.dispatcher().lookup("cpu")

    def fixed(call: Any) -> Any:
        ((c, a, b),), (alpha, beta) = call.tensors(), call.scalars
        return lambda: c.numpy().__setitem__(..., alpha * (a.numpy() @ b.numpy()) + beta * c.numpy() + 100)

    own(ip.Gemm, ip.OpImpl(fixed, lambda call: call.plan()))
    c, a, b = matrices()
    plan = ip.gemm.plan(c, a, b)
    plan(2.0)
    np.testing.assert_array_equal(c, 2 * (a @ b) + 100)
    own(ip.Gemm, native)
    other = np.zeros_like(c)
    plan.run(c=other)
    np.testing.assert_array_equal(other, a @ b + 100)
    plan(3.0)
    np.testing.assert_array_equal(c, 3 * (a @ b) + 100)


@pytest.fixture
def own_add(own: Any) -> list[Any]:
    """An implementation of add on the CPU that adds 100 more."""
    calls: list[Any] = []

    def more(c: ip.Tensor, a: ip.Tensor, b: ip.Tensor) -> None:
        calls.append(c)
        c.numpy()[...] = a.numpy() + b.numpy() + 100

    own(ip.Add, more)
    return calls


# ---- the short way: what must still be seen after a call like this one ran ------------------------------


class Counts:
    """Hits and misses of add in this thread since this was made."""

    def __init__(self) -> None:
        self.before = ip.Add.cache().cache_info()

    def __call__(self) -> tuple[int, int]:
        now = ip.Add.cache().cache_info()
        return now.hits - self.before.hits, now.misses - self.before.misses


@pytest.fixture
def ran() -> tuple[ip.Tensor, ip.Tensor, ip.Tensor]:
    """Operands whose layouts add_ has run with in this thread."""
    ip.Add.cache().clear()
    c, a, b = tensor(0, 0, 0), tensor(1, 2, 3), tensor(10, 20, 30)
    for _ in range(3):
        assert ip.add_(c, a, b) is c
    return c, a, b


def test_hits_are_counted_and_values_are_current(ran: Any) -> None:
    c, a, b = ran
    counts = Counts()
    a.numpy()[:] = 5
    ip.add_(c, a, b)
    assert c.tolist() == [15.0, 25.0, 35.0]
    ip.add_(c, tensor(0, 0, 1), b)  # other memory
    assert c.tolist() == [10.0, 20.0, 31.0]
    assert counts() == (2, 0)


@pytest.mark.parametrize("k", [4, 300])  # without a workspace, and with one
@pytest.mark.parametrize("scalars", [(), (2.0,)])
def test_each_call_counts_once(k: int, scalars: tuple[float, ...]) -> None:
    cache = ip.Gemm.cache()
    c, a, b = (ip.zeros(shape) for shape in ((3, 5), (3, k), (k, 5)))
    ip.gemm_(c, a, b)
    before = cache.cache_info()
    ip.gemm_(c, a, b, *scalars)
    ip.gemm_(c.numpy(), a.numpy(), b.numpy(), *scalars)
    after = cache.cache_info()
    assert (after.hits - before.hits, after.misses - before.misses) == (2, 0)


def test_a_refused_call_counts_once(ran: Any) -> None:
    base, counts = ip.zeros(6), Counts()
    for _ in range(2):
        with pytest.raises(ip.ParamError, match="overlaps"):
            ip.add_(base[1:4], base[:3], ran[2])
    assert counts() == (2, 0)


def test_numpy_arrays_share_the_entry(ran: Any) -> None:
    x, counts = np.ones(3, "f4"), Counts()
    ip.add_(x, x, x)
    assert counts() == (1, 0)
    np.testing.assert_array_equal(x, 2)


def test_the_order_of_use_is_kept(ran: Any) -> None:
    cache = ip.Add.cache()
    cache.clear()
    cache.set_capacity(2)
    try:
        one, two, three = (ip.zeros(n) for n in (4, 5, 6))
        for x in (one, two, one, one, three):  # two is the oldest when three comes
            ip.add_(x, x, x)
        sizes = [key[0][1] for key in cache.get_cache("cpu")]
        assert sizes == [(4,), (6,)]
    finally:
        cache.set_capacity(100)


def test_a_cleared_cache_and_capacity_0(ran: Any) -> None:
    cache, counts = ip.Add.cache(), Counts()
    cache.clear()
    ip.add_(*ran)
    assert counts() == (0, 1)
    cache.set_capacity(0)
    try:
        ip.add_(*ran)
        ip.add_(*ran)
        assert cache.cache_info().size == 0 and counts() == (0, 3)
    finally:
        cache.set_capacity(100)


def test_recording_is_seen(ran: Any) -> None:
    c, a, b = ran
    c.numpy()[:] = -1
    with ip.Graph() as graph:
        ip.add_(c, a, b)
        ip.add_(c.numpy(), a.numpy(), b.numpy())
    assert c.tolist() == [-1.0] * 3 and len(graph) == 2
    graph.run()
    assert c.tolist() == [11.0, 22.0, 33.0]
    ip.add_(c, a, a)
    assert c.tolist() == [2.0, 4.0, 6.0]


def test_a_graph_holds_no_cache_of_the_thread_that_recorded_it() -> None:
    graphs: list[ip.Graph] = []

    def record() -> None:
        for n in range(1, 21):
            x = ip.zeros(n)
            ip.add_(x, x, x)
        with ip.Graph() as graph:
            ip.add_(x, x, x)
        graphs.append(graph)

    def descriptors() -> int:
        gc.collect()
        return sum(type(one) is Descriptor for one in gc.get_objects())

    before = descriptors()
    thread = threading.Thread(target=record)
    thread.start()
    thread.join()
    assert descriptors() - before == 1  # the recorded call's
    graphs[0].run()


def test_recording_that_fails_is_over(ran: Any) -> None:
    with pytest.raises(ip.ShapeError), ip.Graph():
        ip.add(ip.zeros(2), ip.zeros(3))
    c, a, _ = ran
    ip.add_(c, a, a)
    assert c.tolist() == [2.0, 4.0, 6.0]


def test_another_implementation_is_seen(ran: Any, own_add: list[Any]) -> None:
    c, a, b = ran
    ip.add_(c, a, b)
    assert c.tolist() == [111.0, 122.0, 133.0]
    ip.add_(c.numpy(), a.numpy(), b.numpy())
    assert len(own_add) == 2


def test_logging_is_seen(ran: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "infiniop_py"):
        ip.add_(*ran)
    assert any("add enter" in record.getMessage() for record in caplog.records)


def test_overlap_is_seen(ran: Any) -> None:
    base = ip.from_numpy(np.arange(6, dtype="f4"))
    with pytest.raises(ip.ParamError, match=r"add: c .*overlaps a"):
        ip.add_(base[1:4], base[:3], ran[2])
    assert base.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


def test_read_only_memory_is_seen(ran: Any) -> None:
    frozen = ip.from_numpy(read_only(np.zeros(3, "f4")))
    for c in (frozen, frozen.numpy()):
        with pytest.raises(ip.ParamError, match="read-only"):
            ip.add_(c, ran[1], ran[2])
    ip.add_(ran[0], frozen, ran[2])  # as an input it is welcome
    assert ran[0].tolist() == [10.0, 20.0, 30.0]


def test_another_thread_has_its_own(ran: Any) -> None:
    seen: list[Any] = []

    def other() -> None:
        ip.add_(*ran)
        seen.append(ip.Add.cache().cache_info()[:2])

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert seen == [(0, 1)]


#: An operator, a call of it, and the shapes of what it reads.
CALLS: dict[str, tuple[type[ip.GraphOperator], Any, list[tuple[int, ...]]]] = {
    "add": (ip.Add, ip.add, [(3, 5), (3, 5)]),
    "rearrange": (ip.Rearrange, lambda x: ip.rearrange(x.T), [(40, 30)]),
    "gemm": (ip.Gemm, ip.gemm, [(3, 5), (5, 4)]),
    "with alpha": (ip.Gemm, lambda a, b: ip.gemm(a, b, 3.0), [(3, 5), (5, 4)]),
    "with a workspace": (ip.Gemm, lambda a, b: ip.gemm(a, b.T), [(40, 50), (60, 50)]),
    "with a workspace and alpha": (ip.Gemm, lambda a, b: ip.gemm(a, b.T, 3.0), [(40, 50), (60, 50)]),
    "in several runs": (ip.Gemm, lambda a, b: ip.gemm(a[:, :2], b), [(2, 3, 4, 5), (2, 1, 5, 4)]),
    "gemm_add": (ip.GemmAdd, ip.gemm_add, [(3, 5), (5, 4), (4,)]),
    "gemm_mul with alpha": (ip.GemmMul, lambda a, b, d: ip.gemm_mul(a, b, d, 3.0), [(3, 5), (5, 4), (3, 4)]),
    "add_rms_norm": (ip.AddRMSNorm, lambda a, b, w: ip.add_rms_norm(a, b, w)[0], [(3, 8), (3, 8), (8,)]),
}


@pytest.mark.parametrize("dtype", ["f4", "f2"])
@pytest.mark.parametrize("name", CALLS)
def test_a_call_like_one_before_it_gives_the_same(name: str, dtype: str) -> None:
    op, call, shapes = CALLS[name]
    first, then = (
        [random.integers(-3, 4, shape).astype(dtype) for shape in shapes]
        for random in (np.random.default_rng(seed) for seed in (1, 2))
    )
    op.cache().clear()
    wanted = call(*then)
    op.cache().clear()
    call(*first)
    call(*first)
    before = op.cache().cache_info()
    np.testing.assert_array_equal(call(*then), wanted)
    after = op.cache().cache_info()
    assert (after.hits - before.hits, after.misses - before.misses) == (1, 0)


NEW = {
    "add": (ip.Add, ip.add, np.add),
    "mul": (ip.Mul, ip.mul, np.multiply),
    "gemm": (ip.Gemm, ip.gemm, np.matmul),
}


def _square(seed: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(-3, 4, (5, 5)).astype("f4")


def _torch(array: np.ndarray[Any, Any]) -> Any:
    return pytest.importorskip("torch").from_numpy(array)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("kind", [np.asarray, ip.from_numpy, _torch])
@pytest.mark.parametrize("name", NEW)
def test_results_of_calls_like_ones_before_are_new(name: str, kind: Any, turned: bool) -> None:
    op, function, numpy = NEW[name]
    op.results.clear()
    arrays = [(_square(2 * i), _square(2 * i + 1).T if turned else _square(2 * i + 1)) for i in range(4)]
    operands = [(kind(a), kind(b)) for a, b in arrays]
    results = [function(a, b) for a, b in operands]
    assert len(op.results) == 1
    for result, (a, b), (x, _) in zip(results, arrays, operands):
        assert type(result) is type(x)
        got = np.asarray(result)
        assert got.flags.c_contiguous and got.flags.writeable
        np.testing.assert_array_equal(got, numpy(a, b))
    addresses = {np.asarray(result).ctypes.data for result in results}
    assert len(addresses) == len(results)


@pytest.mark.parametrize("name", NEW)
def test_what_a_call_like_one_before_is_asked_still(
    name: str, own: Callable[[type[ip.GraphOperator], Any], None]
) -> None:
    """Kinds, read-only inputs, types, recordings and implementations, after a call that only they change."""
    op, function, numpy = NEW[name]
    a, b = _square(1), _square(2)
    wanted = numpy(a, b)

    def usual() -> None:
        for x, y in ((a, b), (ip.from_numpy(a), ip.from_numpy(b))):
            np.testing.assert_array_equal(function(x, y), wanted)

    usual()
    for x, y in ((a, ip.from_numpy(b)), (ip.from_numpy(a), b)):
        got = function(x, y)
        assert type(got) is ip.Tensor
        np.testing.assert_array_equal(got, wanted)
    usual()
    fixed = b.copy()
    fixed.flags.writeable = False
    np.testing.assert_array_equal(function(ip.from_numpy(a), ip.from_numpy(fixed)), wanted)
    for _ in range(3):
        with pytest.raises(ip.DTypeError, match=name):
            function(a, b.astype("f8"))
        with pytest.raises(ip.ShapeError, match=name):
            function(a, b[:3])
    usual()
    with ip.Graph() as graph:
        recorded = function(a, b)
    a += 1
    graph.run()
    np.testing.assert_array_equal(recorded, numpy(a, b))
    a -= 1
    usual()

    def zero(call: ip.GraphOperator) -> None:
        np.asarray(call.operands[0])[...] = 0

    own(op, ip.OpImpl(lambda call: None, zero))
    np.testing.assert_array_equal(function(a, b), 0 * wanted)
    np.testing.assert_array_equal(function(ip.from_numpy(a), ip.from_numpy(b)), 0 * wanted)


def test_a_result_that_torch_makes_another_way_is_refused() -> None:
    torch = pytest.importorskip("torch")
    modes = pytest.importorskip("torch._subclasses.fake_tensor")
    a = torch.ones(3, 3)
    for _ in range(2):
        assert ip.add(a, a).sum() == 18
    with modes.FakeTensorMode(allow_non_fake_inputs=True), pytest.raises(ip.OperandError, match="FakeTensor"):
        ip.add(a, a)
    with torch.inference_mode():
        assert ip.add(a, a).is_inference()
    needs_grad = torch.nn.Parameter(a)
    with torch.no_grad():
        for _ in range(2):
            assert type(ip.add(needs_grad, needs_grad)) is torch.Tensor
    with pytest.raises(ip.ParamError, match="requires grad"):
        ip.add(needs_grad, needs_grad)


def test_gemm_with_scalars_after_gemm_without() -> None:
    c, a, b = (ip.from_numpy(x) for x in matrices())
    product = a.numpy() @ b.numpy()
    for _ in range(2):
        ip.gemm_(c, a, b)
        np.testing.assert_array_equal(c.numpy(), product)
        ip.gemm_(c, a, b, 2.0, 1.0)
        np.testing.assert_array_equal(c.numpy(), 3 * product)
        ip.gemm_(c, a, b, 0.0)
        np.testing.assert_array_equal(c.numpy(), 0 * product)


def test_gemm_with_scalars_that_are_none_of_the_expected_kind() -> None:
    c, a, b = (ip.from_numpy(x) for x in matrices())
    ip.gemm_(c, a, b)
    for wrong in ("1", None, [1.0], np.ones(3)):
        with pytest.raises(ip.OperandError, match="gemm: alpha is"):
            ip.gemm_(c, a, b, wrong)  # type: ignore[arg-type]
