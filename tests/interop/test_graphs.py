"""A recording outlives what its operands were called: torch, JAX and DLPack arrays whose names are gone."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
from _kinds import KINDS
from _producers import Interface, Producer

import infiniop_py as ip

Array = np.ndarray[Any, Any]


class Memory(np.ndarray):  # type: ignore[type-arg]
    """An array that can be watched."""


def disturb() -> None:
    """What would show in memory that was given back too early."""
    gc.collect()
    for size in (12, 16, 64, 256, 1024):
        kept = [np.full(size, 9e9, np.float32) for _ in range(64)]
        del kept


@pytest.mark.parametrize("kind", ["torch", "jax", "dlpack", "dlpack-old", "array-interface", "tensor"])
def test_operands_that_nobody_else_has(kind: str) -> None:
    wrap = KINDS[kind].wrap
    a, b = np.arange(12, dtype=np.float32).reshape(3, 4), np.arange(20, dtype=np.float32).reshape(4, 5)
    out, y = np.zeros((3, 5), np.float32), ip.zeros((3, 5))
    with ip.Graph() as graph:
        ip.gemm_(out, wrap(a.copy()), wrap(b.copy()))
        ip.add_rms_norm_(y, ip.zeros((3, 5)), out, wrap(np.ones((3, 5), "f4")), wrap(np.ones(5, "f4")))
        ip.rearrange_(out, wrap((a @ b).copy()))
    disturb()
    for _ in range(2):
        out[...] = 0
        graph.run()
        np.testing.assert_array_equal(out, a @ b)
        np.testing.assert_array_equal(
            np.asarray(y), ip.add_rms_norm(a @ b, np.ones_like(out), np.ones(5, "f4"))[0]
        )


def test_batches_of_several_runs() -> None:
    """Batch dimensions that no one stride walks through: several native calls, shifted from one pointer."""
    a = np.arange(2 * 3 * 4 * 5, dtype=np.float32).reshape(2, 3, 4, 5)
    swapped = a.transpose(1, 0, 2, 3)
    b = np.arange(5 * 2, dtype=np.float32).reshape(5, 2)
    for wrap in (KINDS["torch"].wrap, KINDS["dlpack"].wrap, KINDS["array-interface"].wrap):
        np.testing.assert_array_equal(np.asarray(ip.gemm(wrap(swapped), wrap(b))), swapped @ b)
        out = np.zeros((3, 2, 4, 2), np.float32)
        with ip.Graph() as graph:
            ip.gemm(wrap(a.copy().transpose(1, 0, 2, 3)), wrap(b.copy()), out=out)
        disturb()
        graph.run()
        np.testing.assert_array_equal(out, swapped @ b)


def test_torch_results_of_a_recording() -> None:
    torch = pytest.importorskip("torch")
    x = torch.arange(6.0).reshape(2, 3)
    with ip.Graph() as graph:
        y = ip.mul(ip.add(x, x), x)  # what add gives has no name
        y_again, residual = ip.add_rms_norm(y, y, torch.ones(3))
    assert type(y) is torch.Tensor
    disturb()
    for first in (0.0, 5.0):
        x[0, 0] = first
        graph.run()
        assert torch.equal(y, 2 * x * x) and torch.equal(residual, 4 * x * x)
    del y, residual
    graph.run()
    assert y_again.isfinite().all()


@pytest.mark.parametrize("wrap", [Producer, Interface, ip.from_numpy], ids=lambda wrap: wrap.__name__)
def test_memory_goes_with_the_graph(wrap: Any) -> None:
    memory = np.ones(8, np.float32).view(Memory)
    alive = weakref.ref(memory)
    out = np.zeros(8, np.float32)
    with ip.Graph() as graph:
        ip.add(wrap(memory), wrap(memory), out=out)
    del memory
    gc.collect()
    graph.run()
    assert alive() is not None and out.tolist() == [2] * 8
    del graph
    gc.collect()
    assert alive() is None


def test_memory_that_only_the_capsule_keeps() -> None:
    """A producer may make the memory when it is asked: then the array itself keeps nothing."""
    made: list[weakref.ref[Any]] = []

    class Fresh(Producer):
        def __dlpack__(self, **given: Any) -> Any:
            memory = self._array.copy().view(Memory)
            made.append(weakref.ref(memory))
            return Producer(memory).capsule()

    x, out = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
    with ip.Graph() as graph:
        ip.add(Fresh(x), Fresh(x), out=out)
    gc.collect()
    assert len(made) == 2 and all(one() is not None for one in made)
    graph.run()
    np.testing.assert_array_equal(out, x + x)
    np.testing.assert_array_equal(np.asarray(ip.mul(Fresh(x), Fresh(x))), x * x)
    del graph
    gc.collect()
    assert len(made) == 4 and all(one() is None for one in made)


def test_memory_of_torch_goes_with_the_graph() -> None:
    torch = pytest.importorskip("torch")
    memory = np.ones(8, np.float32).view(Memory)
    alive = weakref.ref(memory)
    out = torch.from_numpy(memory)
    with ip.Graph() as graph:
        ip.add(out, out, out=out)
    del memory, out
    gc.collect()
    graph.run()
    assert alive() is not None
    del graph
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("kind", ["torch", "jax", "dlpack", "dlpack-old", "array-interface"])
def test_a_dropped_recording_and_refused_calls_keep_nothing(kind: str) -> None:
    memory = np.ones((2, 2), np.float32).view(Memory)
    alive = weakref.ref(memory)
    with pytest.raises(ZeroDivisionError), ip.Graph():
        ip.gemm_(np.zeros((2, 2), "f4"), KINDS[kind].wrap(memory), KINDS[kind].wrap(memory))
        raise ZeroDivisionError
    with pytest.raises(ip.ShapeError):
        ip.gemm(KINDS[kind].wrap(memory), np.ones((3, 3), "f4"))
    ip.gemm(KINDS[kind].wrap(memory), KINDS[kind].wrap(memory))
    ip.Add(np.zeros((2, 2), "f4"), KINDS[kind].wrap(memory), KINDS[kind].wrap(memory)).run()
    del memory
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("kind", ["torch", "jax", "dlpack", "dlpack-old", "array-interface"])
def test_a_planned_call_keeps_its_operands(kind: str) -> None:
    out = np.zeros((64, 64), np.float32)
    call = ip.Mul(out, KINDS[kind].wrap(np.full((64, 64), 3, "f4")), KINDS[kind].wrap(np.full(64, 2, "f4")))
    disturb()
    call.run()
    assert (out == 6).all()


@pytest.mark.parametrize("kind", ["torch", "jax", "dlpack", "dlpack-old", "array-interface"])
def test_temporaries(kind: str) -> None:
    wrap = KINDS[kind].wrap
    for size in (8, 1 << 10, 1 << 16):
        for _ in range(5):
            got = ip.add(wrap(np.full(size, 1, "f4")), wrap(np.full(size, 2, "f4")))
            np.testing.assert_array_equal(np.asarray(got), np.full(size, 3, np.float32))
            t = ip.zeros(size).copy_(wrap(np.full(size, 4, "f4")))
            np.testing.assert_array_equal(
                np.asarray(t + wrap(np.full(size, 1, "f4"))), np.full(size, 5, "f4")
            )
