"""This machine's ceilings as the benchmark needs them: what they mean for its rows, measured undisturbed."""

from __future__ import annotations

from collections.abc import Iterable

from .. import _ceilings
from .._ceilings import COPY, READ, Measure, Roof, fma_of, measure_native
from .machine import DISTURBED, OtherProcesses
from .rows import Case

_RETRIES = 3


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
        """Measure what the roofs of these (row, sets) need: more than once while other processes disturb it,
        and the best is kept.
        """
        others = OtherProcesses()
        for case, sets in cases:
            self.roof(case, sets, threads)
            self.fma(case.dtype, threads)
        for _ in range(_RETRIES):
            if others.share() <= DISTURBED:
                return
            others = OtherProcesses()
            for key, rate in self._rates.items():
                self._rates[key] = max(rate, self._measure(*key))
        self.disturbed = self.disturbed or others.share() > DISTURBED
