"""Taking turns: how contenders are timed against each other."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from math import ceil
from statistics import median, quantiles
from time import perf_counter, process_time, sleep

Call = Callable[[], object]

BATCH_SECONDS = 2e-3  # a timed batch takes at least so long
MAX_BATCH = 100_000
LONG_SECONDS = 0.05  # a call so long needs no warming up
MIN_ROUNDS, ENOUGH_ROUNDS = 3, 20
SPREAD = 0.05  # small enough to stop after ENOUGH_ROUNDS

_IDLE = 0.25  # CPU time over wall time of a process whose threads sleep, this loop included
_MAX_SETTLE_SECONDS = 0.3


@dataclass
class Contender:
    """One way to do the work of a row.

    calls     one for each set of operands
    overhead  the same call from Python of a C function that does nothing: its time is taken off
    keep      what must live as long as the calls do
    """

    name: str
    calls: Sequence[Call]
    overhead: Call | None = None
    keep: object = None


@dataclass(frozen=True)
class Timing:
    """Seconds for one call."""

    seconds: float  # median
    spread: float | None  # interquartile range / median; None if there was only one sample
    samples: int
    overhead: float = 0.0  # taken off


def summary(samples: Sequence[float], overheads: Sequence[float] = ()) -> Timing:
    """The median and the spread of the samples, each less its overhead."""
    net = [sample - taken for sample, taken in zip(samples, overheads)] if overheads else list(samples)
    middle = median(net)
    spread = None
    if len(net) > 1 and middle > 0:
        low, _, high = quantiles(net, n=4, method="inclusive")
        spread = (high - low) / middle
    return Timing(middle, spread, len(net), median(overheads) if overheads else 0.0)


def settle() -> None:
    """Wait until this process is idle: threads of peers may spin for a while after their work."""
    start = perf_counter()
    while perf_counter() - start < _MAX_SETTLE_SECONDS:
        wall, cpu = perf_counter(), process_time()
        sleep(1e-3)
        if process_time() - cpu < _IDLE * (perf_counter() - wall):
            return


@contextmanager
def _no_collection() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _seconds(calls: Sequence[Call]) -> float:
    start = perf_counter()
    for call in calls:
        call()
    return perf_counter() - start


@dataclass
class _Turns:
    """One contender's turns in a row."""

    contender: Contender
    batch: int = 1  # calls
    warm_up: int = 0  # calls before it
    used: float = 0.0  # seconds
    finished: bool = False  # has had its share of the budget
    samples: list[float] = field(default_factory=list)
    overheads: list[float] = field(default_factory=list)

    def next_calls(self, n: int, sets: Iterator[int]) -> list[Call]:
        calls = self.contender.calls
        return [calls[next(sets) % len(calls)] for _ in range(n)]

    def first(self, sets: Iterator[int], budget: float) -> None:
        """See how long a call takes. One that takes half the budget is the only sample there will be."""
        settle()
        took = self.used = _seconds(self.next_calls(1, sets))
        if took > budget / 2:
            self.samples.append(took)
            self.finished = True
        if took > LONG_SECONDS:
            return
        took = _seconds(self.next_calls(2, sets)) / 2  # the first call touched pages and woke threads
        self.batch = min(MAX_BATCH, max(1, ceil(BATCH_SECONDS / max(took, 1e-9))))
        self.warm_up = max(1, self.batch // 4)

    def turn(self, sets: Iterator[int], budget: float) -> None:
        start = perf_counter()
        settle()
        _seconds(self.next_calls(self.warm_up, sets))
        self.samples.append(_seconds(self.next_calls(self.batch, sets)) / self.batch)
        if self.contender.overhead is not None:
            self.overheads.append(_seconds([self.contender.overhead] * self.batch) / self.batch)
        self.used += perf_counter() - start
        self.finished = self.used > budget / 2 and len(self.samples) >= MIN_ROUNDS

    @property
    def steady(self) -> bool:
        if len(self.samples) < ENOUGH_ROUNDS:
            return False
        spread = summary(self.samples, self.overheads).spread
        return spread is not None and spread <= SPREAD


def take_turns(contenders: Sequence[Contender], budget: float) -> dict[str, Timing]:
    """Time contenders against each other for about `budget` seconds.

    Every round gives each a turn, and every other round in reverse order, so that none profits from coming
    first or from a machine that warms up. A contender that is very slow drops out after a few turns.
    """
    turns = [_Turns(contender) for contender in contenders]
    sets = count()
    with _no_collection():
        start = perf_counter()
        for one in turns:
            one.first(sets, budget)
        for number in count():
            if number >= MIN_ROUNDS and perf_counter() - start > budget:
                break
            waiting = [one for one in turns if not one.finished]
            if all(one.steady for one in waiting):
                break
            for one in waiting if number % 2 == 0 else reversed(waiting):
                one.turn(sets, budget)
    return {one.contender.name: summary(one.samples, one.overheads) for one in turns}
