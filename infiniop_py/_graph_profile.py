"""``Graph.profile``: how long each call of a graph takes, and how near that is to what the machine can do."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from os import PathLike
from pathlib import Path
from threading import RLock
from time import perf_counter_ns
from typing import Any, NamedTuple

import numpy as np

from ._ceilings import COPY, READ, Ceilings
from ._native import check
from ._native_op import NativeGraph
from ._program import Node, Range, buffer_at, covers
from .cpu import get_num_threads
from .device import CPU, Device, get_stream
from .errors import OutOfMemoryError, shown

_EMPTY_CALLS = 8  # a run, to see what the timer and a call cost

#: Free in the child of fork(), which waits for it; and taken twice where a signal's handler profiles, too.
_measuring = RLock()
os.register_at_fork(
    before=_measuring.acquire, after_in_parent=_measuring.release, after_in_child=_measuring.release
)


@cache
def _ceilings() -> Ceilings:
    """Of this process: what one profile has measured serves the next."""
    return Ceilings()


# ---- the runs ----------------------------------------------------------------------------------------------


class Runs(NamedTuple):
    """What was measured: nanoseconds, one row of each array for each run.

    starts   of the calls, counted from the first one
    took     by each call
    empty    taken by empty calls, by device
    replays  taken by whole replays; None where one more run might have changed results
    """

    starts: Any
    took: Any
    empty: dict[Device, list[int]]
    replays: list[int] | None


def _runner(device: Device, run: Callable[[], int | None]) -> Callable[[], int | None]:
    """A run that returns when the work is done; what it returns is a status, or nothing."""
    if device is CPU:
        return run

    def synchronized() -> int | None:
        status = run()
        get_stream(device).synchronize()
        return status

    return synchronized


def _native(device: Device, call: Node | None = None, workspace: Any = None) -> Callable[[], int | None]:
    executor = NativeGraph(device)
    if call is not None:
        executor.append(call, workspace)
    return _runner(device, executor.bound() if device is CPU else executor.run)


def measure(
    nodes: Sequence[Node], calls: Sequence[Node], workspaces: Sequence[Any], steps: Sequence[Any], n: int
) -> Runs:
    """Run calls one by one, all of them `n` times; and as many whole replays in turn, if those change
    nothing.
    """
    runners = [
        _native(call.device, call, workspace)
        if call.foreign is None
        else _runner(call.device, call.foreign.run)
        for call, workspace in zip(calls, workspaces)
    ]
    empty = {device: _native(device) for device in dict.fromkeys(call.device for call in calls)}
    took_empty: dict[Device, list[int]] = {device: [] for device in empty}
    replays: list[int] | None = [] if _is_repeatable(nodes) else None
    try:
        starts, took = np.zeros((2, n, len(calls)), np.int64)
    except (MemoryError, ValueError, OverflowError) as error:  # the others: more bytes than addresses
        raise OutOfMemoryError(f"Graph.profile: the times of {shown(n)} runs: {error}") from None
    _wait(empty)
    first = perf_counter_ns()
    for i in range(n):
        if replays is not None:
            start = perf_counter_ns()
            for step in steps:
                step.run()
            _wait(empty)
            replays.append(perf_counter_ns() - start)
        for device, run in empty.items():
            for _ in range(_EMPTY_CALLS):
                took_empty[device].append(_time(run)[1])
        for k, run in enumerate(runners):
            start, took[i, k] = _time(run)
            starts[i, k] = start - first
    return Runs(starts, took, took_empty, replays)


def _time(run: Callable[[], int | None]) -> tuple[int, int]:
    """When it began and how long it took."""
    start = perf_counter_ns()
    status = run()
    end = perf_counter_ns()
    if status:
        check(status)
    return start, end - start


def _wait(devices: Iterable[Device]) -> None:
    for device in devices:
        if device is not CPU:
            get_stream(device).synchronize()


def _is_repeatable(nodes: Sequence[Node]) -> bool:
    """Does one more run leave all memory as the last one did? So it is if nothing is read that a run writes,
    unless that run has written all of it before.
    """
    written = [what for node in nodes for what in node.writes if buffer_at(what.low) is None]
    before: list[Range] = []
    for node in nodes:
        if node.foreign is not None:
            return False
        for what in node.reads:
            if buffer_at(what.low) is not None or any(whole.holds(what) for whole in before):
                continue
            if any(what.meets(one) for one in written):
                return False
        before += [
            what
            for what, operand in zip(node.writes, zip(node.layouts, node.addresses))
            if buffer_at(what.low) is None and covers(*operand, what.low, what.high - what.low)
        ]
    return True


# ---- the roofline ------------------------------------------------------------------------------------------


def _roofs(calls: Sequence[Node], threads: int) -> list[float | None]:
    """The least seconds each call can take, None where that is not known.

    Operands that one call alone touches come from wherever the memory of a whole run fits; others were
    touched lately, and come from wherever those of the call fit.
    """
    uses = Counter(what for call in calls for what in set(call.ranges))
    everything = _size(uses)
    ceilings = _ceilings()
    roofs: list[float | None] = []
    with _measuring:
        for call in calls:
            if call.device is not CPU:
                roofs.append(None)
                continue
            moved = call.moved
            what = READ if 8 * sum(moved[: call.n_outputs]) < sum(moved) else COPY
            far = sum(nbytes for nbytes, one in zip(moved, call.ranges) if uses[one] == 1)
            near = sum(moved) - far
            moving = near / ceilings.bandwidth(what, _size(call.ranges), threads)
            if far:
                moving += far / ceilings.bandwidth(what, everything, threads)
            roofs.append(max(moving, call.flops / ceilings.fma(call.layouts[0][0], threads)))
    return roofs


def _size(ranges: Iterable[Range]) -> int:
    """Bytes that lie in any of them."""
    total = 0
    seen: dict[Device, int] = {}
    for one in sorted(set(ranges), key=lambda what: what.low):
        start = max(one.low, seen.get(one.device, one.low))
        total += max(0, one.high - start)
        seen[one.device] = max(one.high, start)
    return total


# ---- the profile -------------------------------------------------------------------------------------------


class ProfileRow(NamedTuple):
    """One call of a graph's profile.

    number     of the recorded call
    op         the operator's name
    described  operands and scalars in words
    seconds    median of the runs, less what an empty call takes
    spread     interquartile range / median of the time measured; None for a single run
    share      of the time of all calls, 0 to 1
    flops      arithmetic operations
    bytes      moved at least
    percent    of the roofline; None where that is not known
    """

    number: int
    op: str
    described: str
    seconds: float
    spread: float | None
    share: float
    flops: int
    bytes: int
    percent: float | None

    @property
    def unit(self) -> str:
        """What the rate counts: arithmetic where there is more of it than bytes."""
        return "GFLOP/s" if self.flops > self.bytes else "GB/s"

    @property
    def rate(self) -> float | None:
        """In billions a second; None if the call took no longer than an empty one."""
        return max(self.flops, self.bytes) / self.seconds / 1e9 if self.seconds else None


@dataclass(frozen=True)
class Profile:
    """What the calls of a graph take; ``print`` shows it as a table.

    rows       :class:`ProfileRow`, in the order of the calls
    runs       how often each was run
    threads    that a CPU call could use
    overheads  seconds that an empty call takes on each device: timer, Python and executor
    replay     median seconds of a whole replay; None if it was not measured, because the graph changes what
               it reads or has calls of other implementations, so that one more run might change results
    steps      native calls, and calls of other implementations, that a replay takes
    """

    rows: tuple[ProfileRow, ...]
    runs: int
    threads: int
    overheads: dict[Device, float]
    replay: float | None
    steps: int

    @property
    def seconds(self) -> float:
        """Of all calls."""
        return sum(row.seconds for row in self.rows)

    @classmethod
    def of(cls, calls: Sequence[Node], numbers: Sequence[int], steps: int, runs: Runs) -> Profile:
        """The profile of what was measured."""
        threads = get_num_threads()
        overheads = {device: float(np.median(took)) / 1e9 for device, took in runs.empty.items()}
        medians = [float(middle) / 1e9 for middle in np.median(runs.took, axis=0)] if calls else []
        spreads = np.subtract(*np.percentile(runs.took, [75, 25], axis=0)) if calls else []
        seconds = [max(took - overheads[call.device], 0.0) for took, call in zip(medians, calls)]
        total = sum(seconds) or 1.0
        roofs = _roofs(calls, threads)
        rows = [
            ProfileRow(
                *(number, call.name, call.described(), net),
                float(spread) / 1e9 / took if len(runs.took) > 1 and took else None,
                *(net / total, call.flops, call.bytes),
                100 * roof / net if roof is not None and net else None,
            )
            for number, call, took, spread, net, roof in zip(numbers, calls, medians, spreads, seconds, roofs)
        ]
        replay = None if runs.replays is None else float(np.median(runs.replays)) / 1e9
        return cls(tuple(rows), len(runs.took), threads, overheads, replay, steps)

    def __str__(self) -> str:
        table = [_TITLES, *map(_cells, self.rows)]
        widths = [max(map(len, column)) for column in zip(*table)]
        lines = [
            "  ".join(
                cell.ljust(width) if title in _LEFT else cell.rjust(width)
                for cell, width, title in zip(cells, widths, _TITLES)
            ).rstrip()
            for cells in table
        ]
        n = len(self.rows)
        lines += ["", f"{n} call{'s' * (n != 1)} one by one: {_us(self.seconds)} us"]
        calls = "one call" if self.steps == 1 else f"{self.steps} calls"
        if self.replay is None:
            lines.append("a whole replay: not measured, because one more run might change results")
        else:
            lines.append(f"a whole replay, {calls} from Python: {_us(self.replay)} us")
        runs = f"{self.runs} run{'s' * (self.runs != 1)}"
        lines.append(f"medians of {runs}, {self.threads} thread{'s' * (self.threads != 1)}")
        lines += [
            f"taken off each call on {device}: {_us(seconds)} us, the time of an empty one"
            for device, seconds in self.overheads.items()
        ]
        return "\n".join(lines)


_TITLES = ("#", "op", "us", "spread", "share", "rate", "unit", "% of roof", "operands")
_LEFT = ("op", "unit", "operands")


def _cells(row: ProfileRow) -> tuple[str, ...]:
    return (
        str(row.number),
        row.op,
        _us(row.seconds),
        "-" if row.spread is None else f"{100 * row.spread:.0f} %",
        f"{100 * row.share:.1f} %",
        "-" if row.rate is None else f"{row.rate:.3g}",
        row.unit,
        "-" if row.percent is None else f"{row.percent:.0f} %",
        row.described,
    )


def _us(seconds: float) -> str:
    return f"{1e6 * seconds:.2f}"


# ---- the trace ---------------------------------------------------------------------------------------------


def write_trace(path: str | PathLike[str], calls: Sequence[Node], numbers: Sequence[int], runs: Runs) -> None:
    """Write each call of each run as an event of the Trace Event Format; times are as measured."""
    import json

    events: list[dict[str, Any]] = [
        {"name": "process_name", "ph": "M", "pid": 1, "tid": 1, "args": {"name": "infiniop_py graph"}}
    ]
    for i, (starts, took) in enumerate(zip(runs.starts.tolist(), runs.took.tolist())):
        for start, duration, number, call in zip(starts, took, numbers, calls):
            events.append(
                {
                    "name": call.name,
                    "cat": str(call.device),
                    "ph": "X",
                    "pid": 1,
                    "tid": 1,
                    "ts": start / 1e3,
                    "dur": duration / 1e3,
                    "args": {
                        "call": number,
                        "run": i,
                        "shape": list(call.layouts[0][1]),
                        "operands": call.described(),
                        "flops": call.flops,
                        "bytes": call.bytes,
                    },
                }
            )
    trace = {"traceEvents": events, "displayTimeUnit": "ns"}
    Path(path).write_text(json.dumps(trace, allow_nan=False) + "\n", encoding="utf-8")
