"""This machine's ceilings as the benchmark needs them: what they mean for its rows, measured undisturbed."""

from __future__ import annotations

from collections.abc import Iterable

from .. import _ceilings
from .._ceilings import COPY, READ, Measure, Roof, fma_of, measure_native
from .machine import DISTURBED, OtherProcesses
from .rows import Case

_RETRIES = 3
_GROWN = 1.1  # so much more than before was no ceiling


class Ceilings(_ceilings.Ceilings):
    """Ceilings, measured when they are first asked for."""

    def __init__(self, measure: Measure = measure_native, largest: int | None = None) -> None:
        super().__init__(measure, largest)
        self.disturbed = False  # by other processes, however often it was tried

    def roof(self, case: Case, sets: int, threads: int) -> Roof:
        """The roofline at a row whose calls go round `sets` sets of operands."""
        what = READ if case.mostly_reads else COPY
        bandwidth = self.bandwidth(what, case.footprint * sets, threads)
        moving = case.traffic / bandwidth
        if case.flops:
            computing = case.flops / self.fma(case.dtype, threads)
            if computing >= moving:
                return Roof(computing, fma_of(case.dtype), bandwidth)
        return Roof(moving, what, bandwidth)

    def measure_all(self, cases: Iterable[tuple[Case, int]], threads: int) -> None:
        """Measure what the roofs of these (row, sets) need, and all of it again: the best is kept, since CPUs
        may be away for a while unseen. More often while that finds more, or other processes are seen.
        """
        for case, sets in cases:
            self.roof(case, sets, threads)
            self.fma(case.dtype, threads)
        for _ in range(_RETRIES):
            others, grown = OtherProcesses(), False
            for key, rate in self._rates.items():
                again = self._measure(*key)
                self._rates[key] = max(rate, again)
                grown = grown or again > _GROWN * rate
            disturbed = others.share() > DISTURBED
            if not (disturbed or grown):
                return
        self.disturbed = self.disturbed or disturbed
