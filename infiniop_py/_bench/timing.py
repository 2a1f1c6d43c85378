"""Taking turns: how contenders are timed against each other."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from math import ceil
from pathlib import Path
from statistics import median, quantiles
from threading import get_native_id
from time import perf_counter, sleep

Call = Callable[[], object]

BATCH_SECONDS = 2e-3  # a timed batch takes at least so long
MAX_BATCH = 100_000
LONG_SECONDS = 0.05  # a call so long needs no warming up
WARM_UP_SECONDS = 0.05  # at most
WARM = 1.1  # times the best time of a call so far
RAMP_SECONDS = 0.015  # what CPUs that slept take to be as fast as they were, at most
MIN_ROUNDS, ENOUGH_ROUNDS = 3, 20
SPREAD = 0.05  # small enough to stop after ENOUGH_ROUNDS

_MAX_SETTLE_SECONDS = 0.5
_UNSEEN_SETTLE_SECONDS = 0.2
_TASKS = Path("/proc/self/task")


@dataclass
class Contender:
    """One way to do the work of a row.

    calls     one for each set of operands
    overhead  the same call from Python of a C function that does nothing: its time is taken off
    prepare   what must be done before the first call, untimed
    keep      what must live as long as the calls do
    after     what is done after each turn, untimed and not charged to the budget
    """

    name: str
    calls: Sequence[Call]
    overhead: Call | None = None
    prepare: Call | None = None
    keep: object = None
    after: Call | None = None


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


def settle() -> float:
    """Wait until the other threads of this process sleep: those of peers may spin for a while after their
    work. Where the system does not tell, wait for as long as the worst known peer spins. Returns the seconds
    it took.
    """
    start = perf_counter()
    if not _TASKS.is_dir():
        sleep(_UNSEEN_SETTLE_SECONDS)
        return perf_counter() - start
    own = get_native_id()
    end = start + _MAX_SETTLE_SECONDS
    quiet = 0
    while quiet < 2 and perf_counter() < end:
        sleep(1e-3)
        quiet = 0 if any(_runs(task) for task in _TASKS.iterdir() if int(task.name) != own) else quiet + 1
    return perf_counter() - start


def _runs(task: Path) -> bool:
    try:
        status = (task / "stat").read_bytes()
    except OSError:  # it has ended
        return False
    return status[status.rindex(b")") + 2 :].startswith(b"R")  # behind the name, which may hold anything


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
    warm_up: int = 0  # calls before it, repeated until they are as fast as they were
    best: float = float("inf")  # seconds for a call
    used: float = 0.0  # seconds
    finished: bool = False  # has had its share of the budget
    failure: str = ""
    samples: list[float] = field(default_factory=list)
    overheads: list[float] = field(default_factory=list)

    def next_calls(self, n: int, sets: Iterator[int]) -> list[Call]:
        calls = self.contender.calls
        return [calls[next(sets) % len(calls)] for _ in range(n)]

    def first(self, sets: Iterator[int], budget: float) -> None:
        """See how long a call takes. One that takes half the budget is the only sample there will be."""
        if self.contender.prepare is not None:
            self.contender.prepare()
        settle()
        took = self.used = _seconds(self.next_calls(1, sets))
        if took > LONG_SECONDS:
            if took > budget / 2:
                self.samples.append(took)
                self.finished = True
            return
        took = self.best = _seconds(self.next_calls(2, sets)) / 2  # the first call touched pages
        self.batch = min(MAX_BATCH, max(1, ceil(BATCH_SECONDS / max(took, 1e-9))))
        self.warm_up = max(1, self.batch // 4)

    def turn(self, sets: Iterator[int], budget: float) -> None:
        start = perf_counter()
        self.get_warm(sets, settle())
        sample = _seconds(self.next_calls(self.batch, sets)) / self.batch
        self.best = min(self.best, sample)
        self.samples.append(sample)
        if self.contender.overhead is not None:
            self.overheads.append(_seconds([self.contender.overhead] * self.batch) / self.batch)
        self.used += perf_counter() - start
        self.finished = self.used > budget / 2 and len(self.samples) >= MIN_ROUNDS
        if self.contender.after is not None:
            self.contender.after()

    def get_warm(self, sets: Iterator[int], idle: float) -> None:
        """Threads that have slept may be put on one CPU and part only after tens of milliseconds. CPUs that
        have slept are slower at first, the more so the longer: whoever takes turns with a peer whose threads
        spin long would be slower for it.
        """
        now = perf_counter()
        least, end = now + min(idle, RAMP_SECONDS), now + WARM_UP_SECONDS
        took = float("inf")
        while self.warm_up and (took > WARM * self.best or now < least) and now < end:
            took = _seconds(self.next_calls(self.warm_up, sets)) / self.warm_up
            self.best = min(self.best, took)
            now = perf_counter()

    @property
    def steady(self) -> bool:
        if len(self.samples) < ENOUGH_ROUNDS:
            return False
        spread = summary(self.samples, self.overheads).spread
        return spread is not None and spread <= SPREAD


def take_turns(contenders: Sequence[Contender], budget: float) -> tuple[dict[str, Timing], dict[str, str]]:
    """Time contenders against each other for about `budget` seconds.

    Returns the times by name, and by name why others raised an exception. Every round gives each a turn, and
    every other round in reverse order, so that none profits from coming first or from a machine that warms
    up. A contender that is very slow drops out after a few turns.
    """
    turns = [_Turns(contender) for contender in contenders]
    sets = count()
    with _no_collection():
        start = perf_counter()
        for one in turns:
            try:
                one.first(sets, budget)
            except Exception as error:  # of a library that is not ours: any
                one.failure = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
                one.finished = True
        for number in count():
            if number >= MIN_ROUNDS and perf_counter() - start > budget:
                break
            waiting = [one for one in turns if not one.finished]
            if all(one.steady for one in waiting):
                break
            for one in waiting if number % 2 == 0 else reversed(waiting):
                one.turn(sets, budget)
    timings = {one.contender.name: summary(one.samples, one.overheads) for one in turns if not one.failure}
    return timings, {one.contender.name: one.failure for one in turns if one.failure}
