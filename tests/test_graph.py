"""Recording and replay: nothing runs while recording, replay equals eager, and a graph keeps what it
needs."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from places import interrupted

import infiniop_py as ip

Array = np.ndarray[Any, Any]


def normal(*shape: int, dtype: str = "f4", seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def program(x: Any, w: Any, scale: Any) -> Any:
    """All five operators, functional and in place, with views and an addend."""
    y, residual = ip.add_rms_norm(x, x, scale)
    h = ip.gemm(y, w)
    h = ip.mul(h, ip.rearrange(h[::-1]))
    ip.add_(h, h, scale)
    out = ip.gemm(h, w, 0.5, 2.0, c=residual)
    ip.mul_(residual, residual, out)
    return ip.rearrange(out.T), residual


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
@pytest.mark.parametrize("kind", ["numpy", "tensor"])
def test_replay_equals_eager_bit_for_bit(dtype: str, kind: str) -> None:
    arrays = [normal(5, 8, dtype=dtype), normal(8, 8, dtype=dtype, seed=1), normal(8, dtype=dtype, seed=2)]
    operands: Any = arrays if kind == "numpy" else [ip.from_numpy(array) for array in arrays]
    with ip.Graph() as graph:
        results = program(*operands)
    assert len(graph) == 9  # the eight calls, and the copy of the addend
    for seed in range(3):
        arrays[0][...] = normal(5, 8, dtype=dtype, seed=seed)
        graph.run()
        for got, wanted in zip(results, program(*arrays)):
            np.testing.assert_array_equal(np.asarray(got), wanted)


def test_nothing_runs_while_recording() -> None:
    x, out = np.ones(4), np.zeros(4)
    with ip.Graph() as graph:
        assert ip.is_graph_recording()
        ip.add(x, x, out=out)
        ip.mul_(out, out, out)
    assert not ip.is_graph_recording() and not out.any()
    graph.run()
    np.testing.assert_array_equal(out, np.full(4, 4.0))


def test_in_place_operators_run_once_for_each_run() -> None:
    x, total = np.ones(3), np.zeros(3)
    with ip.Graph() as graph:
        ip.add_(total, total, x)
    for run in range(1, 5):
        graph.run()
        np.testing.assert_array_equal(total, np.full(3, float(run)))


def test_start_and_stop() -> None:
    x = np.ones(3)
    started = ip.start_graph_recording()
    assert ip.is_graph_recording()
    y = ip.add(x, x)
    graph = ip.stop_graph_recording()
    assert graph is started and not ip.is_graph_recording()
    graph.run()
    np.testing.assert_array_equal(y, x + x)
    with pytest.raises(ip.GraphError, match="no graph is being recorded"):
        ip.stop_graph_recording()


def test_stopping_inside_the_block_ends_it() -> None:
    x, out = np.ones(3), np.zeros(3)
    with ip.Graph() as graph:
        ip.add(x, x, out=out)
        assert ip.stop_graph_recording() is graph
        np.testing.assert_array_equal(ip.add(x, x), x + x)
    assert len(graph) == 1 and not ip.is_graph_recording()


def test_a_recording_ends_in_the_thread_in_which_it_began() -> None:
    graph = ip.Graph()
    graph.__enter__()
    errors: list[BaseException] = []

    def end() -> None:
        try:
            graph.__exit__(None, None, None)
        except ip.GraphError as error:
            errors.append(error)

    other = threading.Thread(target=end)
    other.start()
    other.join()
    assert "must be the one that began it" in str(errors[0])
    y = ip.add(np.ones(2), np.ones(2))
    graph.__exit__(None, None, None)
    graph.run()
    assert y.tolist() == [2, 2] and not ip.is_graph_recording()


def test_recordings_do_not_nest() -> None:
    x = np.ones(3)
    with ip.Graph() as outer:
        with pytest.raises(ip.GraphError, match="do not nest"), ip.Graph():
            pass
        with pytest.raises(ip.GraphError, match="do not nest"):
            ip.start_graph_recording()
        assert ip.is_graph_recording()
        ip.add(x, x)
    assert len(outer) == 1


def test_a_graph_is_recorded_once() -> None:
    graph = ip.Graph()
    with pytest.raises(ip.GraphError, match="the graph is new"):
        graph.run()
    with graph:
        with pytest.raises(ip.GraphError, match="the graph is recording"):
            graph.run()
        with pytest.raises(ip.GraphError, match="do not nest"):
            graph.__enter__()
    with pytest.raises(ip.GraphError, match="recorded already"), graph:
        pass
    graph.run()
    assert not ip.is_graph_recording()


def test_a_graph_does_not_run_inside_a_recording() -> None:
    with ip.Graph() as first:
        pass
    with ip.Graph(), pytest.raises(ip.GraphError, match="not while a graph is being recorded"):
        first.run()


def test_an_exception_leaves_the_thread_not_recording() -> None:
    x = np.ones(3)
    with pytest.raises(KeyError), ip.Graph() as graph:
        ip.add(x, x)
        raise KeyError
    assert not ip.is_graph_recording() and len(graph) == 0
    np.testing.assert_array_equal(ip.add(x, x), x + x)
    with pytest.raises(ip.GraphError, match="the graph is dropped"):
        graph.run()


def test_a_refused_call_leaves_the_recording_as_it_was() -> None:
    x, memory = np.ones((2, 2)), np.ones(8)
    with ip.Graph() as graph:
        y = ip.add(x, x)
        with pytest.raises(ip.ShapeError):
            ip.gemm(x, np.ones((3, 3)))
        with pytest.raises(ip.ParamError, match="overlap"):
            ip.add_(memory[1:], memory[:-1], memory[1:])
        z = ip.mul(y, x)
    assert len(graph) == 2
    graph.run()
    np.testing.assert_array_equal(z, x + x)
    np.testing.assert_array_equal(memory, np.ones(8))


def test_values_cannot_be_read_while_recording() -> None:
    t = ip.ones(3)
    with ip.Graph() as graph:
        u = t + t
        for read in (
            u.tolist, u[0].item, lambda: bool(u[0]), lambda: np.asarray(u), lambda: np.array(u),
            lambda: np.sum(u), lambda: np.float32(2) - u,
        ):  # fmt: skip
            with pytest.raises(ip.GraphError, match="nothing has been computed yet"):
                read()
        assert "no values while recording" in repr(u)
        assert u.numpy().shape == (3,)
    graph.run()
    assert u.tolist() == [2, 2, 2]


def test_what_overlaps_is_called_what_it_is() -> None:
    x = np.ones(8, "f4")
    with ip.Graph() as graph:
        y, residual = ip.add_rms_norm(x[:4], x[4:], np.ones(4, "f4"))
    with pytest.raises(ip.ParamError, match=r"y \(the result\) .* overlaps residual_out \(the result\)"):
        graph.bind(y, residual)
    with ip.Graph() as graph:
        y = ip.rearrange(x)
    with pytest.raises(ip.ParamError, match=r"rearrange: y \(the result\) .* overlaps x with shape \(8,\)"):
        graph.bind(y, x)


def test_a_graph_keeps_what_it_uses() -> None:
    a, b = normal(4, 4), normal(4, 4, seed=1)
    t = ip.from_numpy(a.copy())
    alive = [weakref.ref(a), weakref.ref(t)]
    wanted = a @ b + a
    with ip.Graph() as graph:
        c = ip.gemm(a, b, 1.0, 1.0, c=t)
    ip.Gemm.cache().clear()
    ip.Rearrange.cache().clear()
    del a, b, t
    gc.collect()
    for size in range(1, 50):  # other calls reuse whatever memory was given back
        ip.gemm(normal(size, 9), normal(9, size))
    graph.run()
    np.testing.assert_allclose(
        np.asarray(c), wanted, rtol=0, atol=8 * np.finfo("f4").eps * np.abs(wanted).max() * 4
    )
    assert all(ref() is not None for ref in alive)
    del graph, c
    gc.collect()
    assert all(ref() is None for ref in alive)


def test_a_graph_has_its_own_workspace() -> None:
    a, b = normal(70, 90), normal(90, 80, seed=1)
    with ip.Graph() as graph:
        small = ip.gemm(a[:3], b)
        large = ip.gemm(a, b)
    before = [normal(200, 300) @ normal(300, 200), ip.gemm(normal(200, 300), normal(300, 200))]
    graph.run()
    np.testing.assert_array_equal(small, ip.gemm(a[:3], b))
    np.testing.assert_array_equal(large, ip.gemm(a, b))
    assert before[0].shape == before[1].shape


def test_batches_with_several_runs() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.integers(-3, 4, (4, 1, 2, 3)).astype("f4"), rng.integers(-3, 4, (5, 3, 2)).astype("f4")
    with ip.Graph() as graph:
        c = ip.add(ip.gemm(a, b), ip.gemm(a, b))
    graph.run()
    np.testing.assert_array_equal(c, 2 * (a @ b))
    assert len(graph) == 3


def test_each_thread_records_for_itself() -> None:
    x = np.ones(3)
    seen: list[Any] = []

    def work() -> None:
        seen.append(ip.is_graph_recording())
        seen.append(ip.add(x, x).tolist())
        with ip.Graph() as graph:
            y = ip.mul(x, x)
        graph.run()
        seen.append(y.tolist())

    with ip.Graph() as graph:
        z = ip.add(x, x)
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert ip.is_graph_recording()
    assert seen == [False, [2.0] * 3, [1.0] * 3] and len(graph) == 1
    graph.run()
    np.testing.assert_array_equal(z, x + x)


def test_another_thread_may_run_a_graph_but_not_at_the_same_time(own: Any) -> None:
    x = np.ones(3)
    inside, proceed = threading.Event(), threading.Event()
    errors: list[Exception] = []

    def slow(c: ip.Tensor, a: ip.Tensor, b: ip.Tensor) -> None:
        inside.set()
        assert proceed.wait(30)
        c.numpy()[...] = a.numpy() + b.numpy()

    own(ip.Add, slow)
    with ip.Graph() as graph:
        y = ip.add(x, x)
    thread = threading.Thread(target=graph.run)
    thread.start()
    assert inside.wait(30)
    try:
        graph.run()
    except ip.GraphError as error:
        errors.append(error)
    proceed.set()
    thread.join()
    assert "another thread is running this graph" in str(errors[0])
    np.testing.assert_array_equal(y, x + x)
    graph.run()


def test_a_graph_does_not_run_itself(own: Any) -> None:
    x, errors = np.ones(3), []

    def runs_it(c: ip.Tensor, a: ip.Tensor, b: ip.Tensor) -> None:
        with pytest.raises(ip.GraphError, match=r"Graph\.run: this thread is running this graph") as error:
            graph.run()
        errors.append(error)

    own(ip.Add, runs_it)
    with ip.Graph() as graph:
        _ = ip.add(x, x)
    graph.run()
    assert len(errors) == 1


def test_an_empty_graph_runs() -> None:
    with ip.Graph() as graph:
        pass
    graph.run()
    assert len(graph) == 0 and bool(graph) and "empty" in repr(graph)


def test_factories_make_their_values_while_recording() -> None:
    with ip.Graph() as graph:
        y = ip.ones(3) + ip.arange(3, dtype="F32")
    graph.run()
    assert y.tolist() == [1, 2, 3]


USES: dict[str, Callable[[ip.Graph, Any], object]] = {
    "run": lambda g, path: g.run(),
    "profile": lambda g, path: g.profile(1),
    "bind": lambda g, path: g.bind(x=np.ones(3)),
    "save": lambda g, path: g.save(path / "graph"),
}


@pytest.mark.parametrize("use", USES)
def test_a_graph_is_free_again_wherever_a_signal_interrupts_its_use(use: str, tmp_path: Path) -> None:
    x = np.ones(3)
    with ip.Graph() as graph:
        _ = ip.add(x, x)
    graph.name(x=x)
    graph.profile(1)  # what is measured once in a process
    place = 1
    while interrupted(place, ip.Graph.run.__code__.co_filename, lambda: USES[use](graph, tmp_path)):
        graph.run()
        place += 1
    assert place > 5
