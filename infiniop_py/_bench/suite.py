"""Measuring rows: this library and its peers, against each other and against the roofline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from time import perf_counter
from typing import Any

from .._ceilings import Roof
from ..cpu import num_threads
from . import ours
from .ceilings import Ceilings
from .machine import DISTURBED, SLOWED, OtherProcesses
from .memory import Memory
from .peers import Peer
from .rows import Case
from .timing import Contender, Timing, settle, take_turns

_SLOW_FLOPS = 2e8  # below this even the slowest peers known take no more than a second
_PROBE_TRIES = 3
_TRUSTED_SECONDS = 0.05
_PATIENCE_SECONDS = 1.0  # for one call, however small the budget


@dataclass(frozen=True)
class PeerTime:
    """How a peer did in a row."""

    timing: Timing
    estimated: bool  # from a small problem, because one call of this one would take too long
    remark: str


@dataclass(frozen=True)
class Result:
    """One row, measured with one number of threads."""

    case: Case
    threads: int
    sets: int
    roof: Roof
    timing: Timing
    peers: dict[str, PeerTime] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)  # of peers that raised an exception
    disturbance: float = 0.0  # share of the CPUs that other processes had meanwhile
    pace: float = 1.0  # FMA rate between the turns / its ceiling

    @property
    def working_set(self) -> int:
        """Bytes of memory that the calls go round."""
        return self.case.footprint * self.sets

    @property
    def unit(self) -> str:
        return "GFLOP/s" if self.case.flops else "GB/s"

    def rate(self, seconds: float) -> float:
        """In the row's unit."""
        return (self.case.flops or self.case.traffic) / seconds / 1e9

    @property
    def percent(self) -> float:
        """Of the roofline."""
        return self.roof.percent(self.timing.seconds)

    def ratio(self, peer: str) -> float:
        """How many times as long as ours the peer takes: above 1, ours is faster."""
        return self.peers[peer].timing.seconds / self.timing.seconds

    @property
    def disturbed(self) -> bool:
        """Did other processes, or slower CPUs, spoil it?"""
        return self.disturbance > DISTURBED or self.pace < SLOWED

    @property
    def best_peer(self) -> str | None:
        """The fastest, if there is any."""
        return min(self.peers, key=lambda name: self.peers[name].timing.seconds, default=None)

    def as_json(self) -> dict[str, Any]:
        """Every field, with units in the names."""
        case = self.case
        return {
            "op": case.op,
            "dtype": case.dtype.name,
            "shape": list(case.shape),
            "layout": case.layout,
            "threads": self.threads,
            "flops": case.flops,
            "bytes": case.traffic,
            "working_set_bytes": self.working_set,
            "sets": self.sets,
            "unit": self.unit,
            **_timing_json(self.timing, self.rate(self.timing.seconds)),
            "call_overhead_removed_seconds": self.timing.overhead,
            "bound": self.roof.bound,
            "roofline_seconds": self.roof.seconds,
            "roofline_rate": self.rate(self.roof.seconds),
            "bandwidth_bytes_per_second": self.roof.bandwidth,
            "percent_of_roofline": self.percent,
            "best_peer": self.best_peer,
            "peers": {
                name: {
                    **_timing_json(peer.timing, self.rate(peer.timing.seconds)),
                    "ratio": self.ratio(name),
                    "estimated": peer.estimated,
                    "remark": peer.remark,
                }
                for name, peer in self.peers.items()
            },
            "failures": self.failures,
            "other_processes_cpu_share": self.disturbance,
            "fma_rate_of_ceiling": self.pace,
        }


def _timing_json(timing: Timing, rate: float) -> dict[str, Any]:
    return {
        "median_seconds": timing.seconds,
        "spread": timing.spread,
        "samples": timing.samples,
        "rate": rate,
    }


def measure_row(
    case: Case, memory: Memory, peers: Sequence[Peer], threads: int, ceilings: Ceilings, budget: float
) -> Result:
    """Measure one row for about `budget` seconds."""
    for peer in peers:
        peer.set_threads(threads)
    with num_threads(threads):
        paces: list[float] = []
        ceiling = ceilings.fma(case.dtype, threads)

        def take_pace() -> None:
            paces.append(ceilings.fma_now(case.dtype, threads) / ceiling)

        contenders = [replace(ours.contender(case, memory), after=take_pace)]
        estimates: dict[str, float] = {}
        for peer in peers:
            contender = peer.contender(case, memory)
            if contender is None:
                continue
            estimate = _estimate(peer, case, max(2 * budget, _PATIENCE_SECONDS))
            if estimate is None:
                contenders.append(contender)
            else:
                estimates[peer.name] = estimate
        others = OtherProcesses()
        timings, failures = take_turns(contenders, budget)
        disturbance = others.share()
        pace = median(paces) if paces else 1.0
    if ours.NAME in failures:
        raise RuntimeError(f"{case.name}: {failures[ours.NAME]}")
    times = {}
    for peer in peers:
        if peer.name in timings:
            times[peer.name] = PeerTime(timings[peer.name], False, peer.remark(case))
        elif peer.name in estimates:
            timing = Timing(estimates[peer.name], None, 0)
            times[peer.name] = PeerTime(timing, True, peer.remark(case))
    roof = ceilings.roof(case, memory.sets, threads)
    return Result(case, threads, memory.sets, roof, timings[ours.NAME], times, failures, disturbance, pace)


def _estimate(peer: Peer, case: Case, limit: float) -> float | None:
    """Seconds that one call takes, if that is more than `limit`, from a smaller problem; else None.

    The problem grows until its time can be trusted: at first, waking a thread may take longer than the work.
    """
    if case.flops < _SLOW_FLOPS:
        return None
    for probe in case.probes():
        contender = peer.contender(probe, Memory(probe))
        if contender is None or contender.prepare is not None:  # what is compiled is not slow
            return None
        took = float("inf")
        for _ in range(_PROBE_TRIES):
            took = min(took, _once(contender))
            if took * case.flops <= limit * probe.flops:
                return None
            if took >= _TRUSTED_SECONDS:
                return took * case.flops / probe.flops
    return None


def _once(contender: Contender) -> float:
    settle()
    start = perf_counter()
    contender.calls[0]()
    return perf_counter() - start
