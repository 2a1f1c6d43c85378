"""``Graph.profile``: what it runs, counts and writes. No time is asserted."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import children
import numpy as np
import pytest

import infiniop_py as ip
from infiniop_py import _graph_profile
from infiniop_py._ceilings import COPY, FMA_F32, FMA_F64, READ, Ceilings

Array = np.ndarray[Any, Any]
RATES = {COPY: 10e9, READ: 20e9, FMA_F32: 100e9, FMA_F64: 50e9}


@pytest.fixture(autouse=True)
def _flat_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rates that do not depend on the working set, so that nothing is measured for them."""
    ceilings = Ceilings(lambda what, size, threads: RATES[what] * threads, 2**28)
    monkeypatch.setattr(_graph_profile, "_ceilings", lambda: ceilings)


def ones(*shape: int) -> Array:
    return np.ones(shape, "f4")


def mixed() -> tuple[ip.Graph, Array, Any]:
    """A graph with an absorbed copy, an arena, a workspace or none, and its input and result."""
    x, w = np.random.default_rng(0).standard_normal((2, 24, 24)).astype("f4")
    with ip.Graph() as g:
        y = ip.add(ip.mul(ip.gemm(ip.rearrange(x.T), w), x), x)
    return g, x, y


@pytest.mark.parametrize("n", [1, 2, 5])
def test_results_are_those_of_a_run(n: int) -> None:
    g, x, y = mixed()
    for seed in range(2):
        x[:] = np.random.default_rng(seed).standard_normal(x.shape)
        g.run()
        wanted = y.copy()
        y[:] = 0
        g.profile(n)
        np.testing.assert_array_equal(y, wanted)


@pytest.mark.parametrize("n", [1, 3])
def test_what_changes_its_inputs_runs_exactly_n_times(n: int) -> None:
    x, total, doubled = ones(4), np.zeros(4, "f4"), ones(4)
    with ip.Graph() as g:
        ip.add_(total, total, x)
        ip.mul_(doubled, doubled, 2 * x)
    profile = g.profile(n)
    assert total.tolist() == [n] * 4 and doubled.tolist() == [2**n] * 4
    assert profile.replay is None and "not measured" in str(profile)


def test_order_is_kept_where_memory_is_read_before_it_is_written() -> None:
    x, y = ones(4), np.zeros(4, "f4")
    with ip.Graph() as g:
        ip.rearrange_(y, x)  # y is what x was
        ip.add_(x, x, x)
    profile = g.profile(3)
    assert (x[0], y[0]) == (8, 4) and profile.replay is None


def test_whole_replays_are_timed_where_they_change_nothing() -> None:
    x, out = ones(4, 4), np.zeros((4, 4), "f4")
    with ip.Graph(fuse="none") as g:
        ip.add_(out, x, x)
        ip.mul_(out[1:3], out[1:3], out[1:3])  # after all of it was written
        ip.gemm_(out, x, x, 1.0, 1.0)
    profile = g.profile(3)
    wanted = np.full((4, 4), 6.0)
    wanted[1:3] = 8
    np.testing.assert_array_equal(out, wanted)
    assert profile.replay is not None and profile.replay > 0 and "one call from Python" in str(profile)


def test_an_implementation_of_ones_own_runs_n_times(own: Any) -> None:
    seen = []

    def implementation(c: Any, a: Any, b: Any) -> None:
        seen.append(1)
        c.numpy()[...] = a.numpy() * b.numpy()

    x = ones(8)
    own(ip.Mul, implementation)
    with ip.Graph() as g:
        y = ip.add(ip.mul(ip.add(x, x), x), x)
    profile = g.profile(4)
    assert len(seen) == 4 and y.tolist() == [3] * 8
    assert (profile.steps, profile.replay) == (3, None)
    assert [row.op for row in profile.rows] == ["add", "mul", "add"]


def test_rows_count_what_the_calls_do() -> None:
    g, _, _ = mixed()
    profile = g.profile(4)
    program = g._program
    assert [row.number for row in profile.rows] == program.numbers != list(range(4))
    assert [row.op for row in profile.rows] == [node.name for node in program.nodes]
    assert [row.flops for row in profile.rows] == [node.flops for node in program.nodes]
    assert [row.bytes for row in profile.rows] == [node.bytes for node in program.nodes]
    assert profile.runs == 4 and profile.threads == ip.get_num_threads()
    assert profile.seconds == sum(row.seconds for row in profile.rows)
    if profile.seconds:
        assert sum(row.share for row in profile.rows) == pytest.approx(1)
    assert set(profile.overheads) == {ip.Device("cpu")} and profile.overheads[ip.Device("cpu")] > 0
    titles, *lines = str(profile).splitlines()
    assert titles.split()[:5] == ["#", "op", "us", "spread", "share"]
    assert [line.split()[1] for line in lines[: len(profile.rows)]] == [row.op for row in profile.rows]
    assert all(row.spread is None for row in g.profile(1).rows)


def test_bytes_are_those_of_each_element_once_or_twice() -> None:
    c, a, b = ones(2, 5), ones(2, 3), ones(3, 5)
    with ip.Graph(fuse="none") as g:
        ip.gemm_(c, a, b)
        ip.gemm_(c, a, b, 1.0, 1.0)  # reads what it writes
        ip.add_(c, c, c)
    assert [row.bytes for row in g.profile(1).rows] == [4 * (10 + 6 + 15), 4 * (20 + 6 + 15), 4 * 30]


def test_the_time_of_a_call_is_the_median_of_its_runs() -> None:
    x = ones(4)
    with ip.Graph(fuse="none") as g:
        ip.add_(x, x, x)
        ip.mul_(x, x, x)
    took = np.array([[1000, 5000], [3000, 4000], [2000, 9000]])
    runs = _graph_profile.Runs(np.zeros((3, 2)), took, {ip.Device("cpu"): [100, 300, 500]}, None)
    profile = _graph_profile.Profile.of(g._program.nodes, [0, 1], 2, runs)
    assert [row.seconds for row in profile.rows] == pytest.approx([1.7e-6, 4.7e-6])
    assert [row.share for row in profile.rows] == pytest.approx([1.7 / 6.4, 4.7 / 6.4])
    assert [row.spread for row in profile.rows] == pytest.approx([0.5, 0.5])
    assert "\n2 calls one by one: 6.40 us\n" in str(profile)


def test_rates_and_percentages() -> None:
    row = _graph_profile.ProfileRow(0, "gemm", "", 2e-6, 0.1, 1.0, 6000, 3000, 50.0)
    assert row.unit == "GFLOP/s" and row.rate == pytest.approx(3)
    row = row._replace(flops=3000)
    assert row.unit == "GB/s" and row.rate == pytest.approx(1.5)
    assert row._replace(seconds=0.0).rate is None
    assert "2.00    10 %  100.0 %   1.5  GB/s       50 %" in str(
        _graph_profile.Profile((row,), 3, 1, {}, None, 1)
    )


def test_the_roof_is_the_larger_of_computing_and_moving() -> None:
    big, small = np.ones((64, 64)), ones(4096)
    with ip.Graph() as g:
        product = ip.gemm(big, big)
        y = ip.add(small, small)
    with ip.num_threads(2):
        roofs = _graph_profile._roofs(g._program.calls, 2)
    assert roofs == pytest.approx([2 * 64**3 / 100e9, 3 * 4096 * 4 / 20e9])
    with ip.Graph() as skinny:
        z = ip.gemm(big[:1], big)
    (roof,) = _graph_profile._roofs(skinny._program.calls, 1)
    assert roof == pytest.approx((64 * 64 + 64 + 64) * 8 / 20e9)
    assert product.shape == (64, 64) and y.shape == (4096,) and z.shape == (1, 64)


def test_operands_of_one_call_alone_come_from_afar(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that are read once a run are where the memory of a whole run fits."""
    asked: set[int] = set()

    def measure(what: str, size: int, threads: int) -> float:
        asked.add(size)
        return 1e9 if size <= 2**16 else 1e8

    monkeypatch.setattr(_graph_profile, "_ceilings", lambda: Ceilings(measure, 2**28))
    x, out = ones(1024), np.zeros(1024, "f4")
    weights = [ones(1024) for _ in range(64)]
    with ip.Graph(fuse="none") as g:
        for w in weights:
            ip.mul_(out, x, w)
    roofs = _graph_profile._roofs(g._program.calls, 1)
    assert roofs == pytest.approx([8192 / 1e9 + 4096 / 1e8] * 64)
    assert asked - {0} == {2**14, 2**18, 2**19}  # 12 KiB, and 264 KiB between powers of two


def test_the_trace_is_one_event_for_each_call_of_each_run(tmp_path: Path) -> None:
    g, _, _ = mixed()
    path = tmp_path / "trace.json"
    g.profile(3, trace=path)
    trace = json.loads(path.read_text(encoding="utf-8"))
    named, *events = trace["traceEvents"]
    assert named["ph"] == "M"
    nodes = g._program.nodes
    assert len(events) == 3 * len(nodes)
    end = 0.0
    for k, event in enumerate(events):
        node = nodes[k % len(nodes)]
        assert (event["name"], event["ph"], event["cat"]) == (node.name, "X", "CPU:0")
        assert event["ts"] >= end and event["dur"] > 0
        end = event["ts"] + event["dur"]
        assert event["args"]["run"] == k // len(nodes)
        assert event["args"]["flops"] == node.flops and event["args"]["bytes"] == node.bytes
        assert event["args"]["shape"] == list(node.layouts[0][1])


def test_refusals(tmp_path: Path) -> None:
    total = np.zeros(2, "f4")
    g = ip.Graph()
    with pytest.raises(ip.GraphError, match=r"Graph\.profile: the graph is new"):
        g.profile()
    with g:
        ip.add_(total, total, ones(2))
        with pytest.raises(ip.GraphError, match="the graph is recording"):
            g.profile()
    for n, error, message in (
        (0, ip.ParamError, "n is 0, needs at least 1"),
        (-(10**60), ip.ParamError, "n is an int of 200 bits"),
        (2.0, ip.OperandError, "n is 2.0, needs an int"),
        (True, ip.OperandError, "n is True"),
    ):
        with pytest.raises(error, match=message):
            g.profile(n)  # type: ignore[arg-type]
    with pytest.raises(OSError):
        g.profile(1, trace=tmp_path / "missing" / "trace.json")
    with ip.Graph(), pytest.raises(ip.GraphError, match="not while a graph is being recorded"):
        g.profile()
    with pytest.raises(ip.GraphError, match="the graph is new"):
        ip.Graph().profile(trace=tmp_path / "trace.json")
    assert not list(tmp_path.iterdir())
    assert not total.any()


def test_a_graph_that_runs_elsewhere_is_refused(own: Any) -> None:
    started, finish = threading.Event(), threading.Event()

    def implementation(c: Any, a: Any, b: Any) -> None:
        started.set()
        assert finish.wait(60)

    x = ones(2)
    own(ip.Mul, implementation)
    with ip.Graph() as g:
        y = ip.mul(x, x)
    thread = threading.Thread(target=g.profile, args=(1,))
    thread.start()
    try:
        assert started.wait(60)
        with pytest.raises(ip.GraphError, match="another thread is running this graph"):
            g.profile()
        with pytest.raises(ip.GraphError, match="another thread is running this graph"):
            g.run()
    finally:
        finish.set()
        thread.join()
    g.run()
    assert y.shape == (2,)


def test_a_failure_lets_go_of_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    g, _, y = mixed()

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(_graph_profile, "_time", fail)
        with pytest.raises(KeyboardInterrupt):
            g.profile()
    g.run()
    assert g.profile(1).runs == 1 and np.isfinite(y).all()


def test_torch_sees_that_outputs_were_written() -> None:
    torch = pytest.importorskip("torch")
    x, out = torch.ones(4), torch.zeros(4)
    with ip.Graph() as g:
        ip.add_(out, x, x)
    before = out._version
    g.profile(2)
    assert out._version > before and out.tolist() == [2] * 4


def test_an_empty_graph_has_an_empty_profile() -> None:
    with ip.Graph() as g:
        pass
    profile = g.profile(2)
    assert profile.rows == () and profile.seconds == 0 and "0 calls" in str(profile)


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return children.build_fake_backend(tmp_path_factory.mktemp("backend"))


def test_other_devices_have_times_and_no_percentage(plugin: Path) -> None:
    printed = children.run(
        "import infiniop_py as ip\n"
        "x = ip.ones((4, 4), device='qy:0')\n"
        "with ip.Graph() as g:\n"
        "    y = ip.add(ip.mul(x, x), x)\n"
        "profile = g.profile(3)\n"
        "assert [row.percent for row in profile.rows] == [None, None]\n"
        "assert all(row.seconds >= 0 for row in profile.rows) and profile.replay > 0\n"
        "assert 'QY:0' in str(profile) and 'QY:0' in g.explain()\n"
        "print(y.to('cpu').numpy()[3, 3])\n",
        INFINIOP_BACKEND_PATH=str(plugin),
    )
    assert printed == "2.0\n"
