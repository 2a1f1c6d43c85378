"""Every operator, run and checked, and threads that do it: what several threads and processes do at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

import infiniop_py as ip
from infiniop_py._conformance.cases import DTYPES, FLOATS
from infiniop_py._conformance.layouts import bits
from infiniop_py._conformance.reference import assert_gemm, assert_rms_norm, assert_same_bits, elementwise

#: For what does not end by itself where it should.
PATIENCE_S = 60.0


def all_operators_once(seed: int, size: int) -> None:
    """Every operator on shapes made from `size`, large enough to be shared among threads, checked."""
    rng = np.random.default_rng(seed)
    dtype = DTYPES[FLOATS[seed % len(FLOATS)]]
    m, n, k = 32 + size, 70, 40 + size
    a, b = rng.integers(-4, 5, (m, k)).astype(dtype), rng.integers(-4, 5, (k, n)).astype(dtype)
    product, d = ip.gemm(a, b), rng.standard_normal((m, n)).astype(dtype)
    assert_gemm(product, np.zeros((m, n), dtype), a, b, 1.0, 0.0, exact_data=True)
    assert_same_bits(ip.gemm_add(a, b, d), elementwise("add", product, d))
    assert_same_bits(ip.gemm_mul(a, b, d), elementwise("mul", product, d))
    x, z, weight = (
        rng.standard_normal(shape).astype(dtype) for shape in ((200 + size, 301), (200 + size, 301), (301,))
    )
    assert_same_bits(ip.add(x, z), elementwise("add", x, z))
    assert_same_bits(ip.mul(x.T, z.T), np.ascontiguousarray(elementwise("mul", x, z).T))
    y, residual = ip.add_rms_norm(x, z, weight)
    assert_same_bits(residual, elementwise("add", x, z))
    assert_rms_norm(y, residual, weight, 1e-5)
    np.testing.assert_array_equal(bits(ip.rearrange(x.T)), bits(x.T))


class Caught(threading.Thread):
    """A started thread whose exception is raised again by finish()."""

    def __init__(self, target: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._work = target
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self._error = error

    def finish(self, timeout_s: float = PATIENCE_S) -> None:
        self.join(timeout_s)
        assert not self.is_alive(), f"a thread still runs after {timeout_s} s"
        if self._error is not None:
            raise self._error


@contextmanager
def computing(count: int) -> Iterator[None]:
    """Threads that run all operators as long as the block lasts."""
    stop = threading.Event()

    def work(thread: int) -> None:
        size = 0
        while not stop.is_set():
            all_operators_once(seed=thread, size=size % 64)
            size += 1

    threads = [Caught(lambda thread=thread: work(thread)) for thread in range(count)]  # type: ignore[misc]
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.finish()
