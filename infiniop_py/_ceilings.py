"""What this machine can do at most, and how near a measurement comes to it."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, floor, log2
from typing import NamedTuple

from ._machine import available_memory, last_level_cache
from ._native import check, ffi, lib
from .cpu import num_threads
from .dtypes import DType

COPY, READ = "copy", "read"
FMA_F32, FMA_F64 = "FMA F32", "FMA F64"
_CODES = {
    COPY: lib.INFINIOP_CEILING_COPY,
    READ: lib.INFINIOP_CEILING_READ,
    FMA_F32: lib.INFINIOP_CEILING_FMA_F32,
    FMA_F64: lib.INFINIOP_CEILING_FMA_F64,
}

SMALLEST = 2**14
#: Below this working set, waking a second thread can cost more than it brings: one thread's rate counts too.
_MAYBE_ONE_THREAD = 2**20
_LARGE = 2**26  # measuring takes long enough not to be spoilt by a moment

#: (ceiling, bytes of memory touched, threads) -> rate per second
Measure = Callable[[str, int, int], float]


def measure_native(what: str, working_set: int, threads: int) -> float:
    """Measure one ceiling. Copying touches two arrays, reading one."""
    rate = ffi.new("double *")
    with num_threads(threads):
        check(
            lib.infiniopMeasureCpuCeiling(
                _CODES[what], working_set // 2 if what == COPY else working_set, rate
            )
        )
    return float(rate[0])


class Roof(NamedTuple):
    """The least time a row can take."""

    seconds: float
    bound: str  # which ceiling binds: COPY, READ, FMA_F32 or FMA_F64
    bandwidth: float  # bytes per second at the row's working set

    def percent(self, seconds: float) -> float:
        """Of the roof, reached in `seconds`."""
        return 100 * self.seconds / seconds


def fma_of(dtype: DType) -> str:
    return FMA_F64 if dtype is DType.F64 else FMA_F32


class Ceilings:
    """Ceilings, measured when they are first asked for.

    Bandwidths are measured where the working set is a power of two and interpolated between: the logarithm
    of the rate over that of the size.
    """

    def __init__(self, measure: Measure = measure_native, largest: int | None = None) -> None:
        if largest is None:
            wanted = max(2**28, 2 * last_level_cache())
            largest = max(SMALLEST, min(wanted, available_memory() // 4))
        self._measure = measure
        self._largest = 2 ** floor(log2(largest))
        self._rates: dict[tuple[str, int, int], float] = {}

    def _rate(self, what: str, working_set: int, threads: int) -> float:
        key = (what, working_set, threads)
        if key not in self._rates:
            self._rates[key] = max(self._measure(*key) for _ in range(1 if working_set > _LARGE else 3))
        return self._rates[key]

    def fma(self, dtype: DType, threads: int) -> float:
        """flop/s of multiply-adds in the type that gemm of `dtype` accumulates in."""
        return self._rate(fma_of(dtype), 0, threads)

    def fma_now(self, dtype: DType, threads: int) -> float:
        """The same, measured anew. CPUs shared with other machines run slower for seconds at a time, and
        nothing but work shows it.
        """
        return self._measure(fma_of(dtype), 0, threads)

    def bandwidth(self, what: str, working_set: int, threads: int) -> float:
        """bytes/s of copying or reading in a working set of so many bytes."""
        exponent = log2(min(max(working_set, SMALLEST), self._largest))
        below, above = floor(exponent), ceil(exponent)
        rates = [self._on_grid(what, 2**point, threads) for point in (below, above)]
        return float(rates[0] * (rates[1] / rates[0]) ** (exponent - below))

    def _on_grid(self, what: str, working_set: int, threads: int) -> float:
        rate = self._rate(what, working_set, threads)
        if threads > 1 and 0 < working_set < _MAYBE_ONE_THREAD:
            rate = max(rate, self._rate(what, working_set, 1))
        return rate

    def measured(self, threads: int) -> list[tuple[str, int, float]]:
        """(ceiling, working set, rate) of what has been measured with so many threads, in order."""
        found = [(what, size) for what, size, n in self._rates if n == threads]
        return sorted((what, size, self._on_grid(what, size, threads)) for what, size in found)
