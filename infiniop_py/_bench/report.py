"""What is shown: progress, the table, JSON and Markdown."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from .._ceilings import COPY, READ
from .ceilings import Ceilings
from .machine import SLOWED, size_text
from .suite import Result

SCHEMA = 1  # of the JSON; counts up when the meaning of a field changes
_BAR = 30


class Progress:
    """A bar on standard error if that is a terminal, else a line for each step done."""

    def __init__(self, total: int) -> None:
        self._total = max(total, 1)
        self._done = 0
        self._start = perf_counter()
        self._terminal = sys.stderr.isatty()

    def begin(self, text: str) -> None:
        """Say what is being done."""
        if self._terminal:
            filled = _BAR * self._done // self._total
            bar = "#" * filled + "." * (_BAR - filled)
            print(f"\r\033[K[{bar}] {self._left()}{text}"[:110], end="", file=sys.stderr, flush=True)

    def end(self, text: str) -> None:
        """Say how it went."""
        self._done += 1
        if not self._terminal:
            print(f"[{self._done}/{self._total}] {text}", file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)

    def _left(self) -> str:
        if not self._done:
            return ""
        seconds = (perf_counter() - self._start) / self._done * (self._total - self._done)
        return f"{seconds / 60:.0f} min left " if seconds > 90 else f"{seconds:.0f} s left "


@dataclass(frozen=True)
class Report:
    """Everything one run has found out."""

    facts: Mapping[str, str]
    versions: Mapping[str, str]  # of the peers, in the order of the columns
    left_out: Sequence[str]
    budget: float
    offset: int  # bytes from a cache line to where arrays begin
    ceilings: Ceilings
    threads: Sequence[int]
    results: Sequence[Result]

    def json(self) -> str:
        """The run as JSON, with every number unrounded."""
        return json.dumps(
            {
                "schema": SCHEMA,
                "machine": dict(self.facts),
                "peers": dict(self.versions),
                "left_out": list(self.left_out),
                "budget_seconds": self.budget,
                "offset_bytes": self.offset,
                "threads": list(self.threads),
                "ceilings_disturbed": self.ceilings.disturbed,
                "ceilings": [
                    {"what": what, "working_set_bytes": size, "threads": n, "rate_per_second": rate}
                    for n in self.threads
                    for what, size, rate in self.ceilings.measured(n)
                ],
                "rows": [result.as_json() for result in self.results],
            },
            indent=1,
            allow_nan=False,
        )

    # ---- text ----------------------------------------------------------------------------------------------

    def text(self) -> str:
        """The run as aligned columns."""
        columns = self._columns()
        widths = [max(map(len, column)) for column in zip(*columns)] if columns else []
        lines = [f"{name + ':':13} {value}" for name, value in self._heading()]
        lines.append("")
        for cells in columns:
            padded = [
                cell.ljust(width) if i < _LEFT else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(cells, widths))
            ]
            lines.append("  ".join(padded).rstrip())
        return "\n".join([*lines, "", *self._notes(), ""])

    def markdown(self) -> str:
        """The run as a Markdown table, with where it comes from."""
        lines = [f"- {name.strip()}: {value}" for name, value in self._heading()]
        titles, *rows = self._columns()
        lines += ["", _markdown_row(titles)]
        lines.append(_markdown_row(["---" if i < _LEFT else "--:" for i in range(len(titles))]))
        lines += [_markdown_row(cells) for cells in rows]
        return "\n".join([*lines, "", *(f"{note}  " for note in self._notes()), ""])

    def _heading(self) -> Iterator[tuple[str, str]]:
        facts = self.facts
        yield "CPU", f"{facts['cpu']}, {facts['cpus']} CPUs, caches {facts['caches']}"
        yield "library", f"infiniop_py {facts['infiniop_py']}, {facts['isa']} kernels, {facts['compiler']}"
        yield "system", f"{facts['system']}, Python {facts['python']}"
        yield "date", facts["date"]
        if self.offset:
            yield "arrays", f"begin {self.offset} bytes behind a cache line"
        if self.versions:
            yield "peers", ", ".join(f"{name} {version}" for name, version in self.versions.items())
        for n in self.threads:
            rates = self.ceilings.measured(n)
            flops = [f"{what} {rate / 1e9:.0f} GFLOP/s" for what, size, rate in rates if not size]
            yield threads_text(n), ", ".join(flops) or "FMA not measured"
            for name in (COPY, READ):
                points = [
                    f"{rate / 1e9:.3g} in {size_text(size)}" for what, size, rate in rates if what == name
                ]
                if points:
                    yield f"  {name}, GB/s", ", ".join(points)

    def _columns(self) -> list[list[str]]:
        present = [name for name in self.versions if any(name in result.peers for result in self.results)]
        return [[*_TITLES, *present], *(_cells(result, present) for result in self.results)]

    def _notes(self) -> Iterator[str]:
        names = ", ".join(self.versions)
        if names:
            yield f"Columns {names}: their time / ours; above 1, ours is faster."
        yield "Rates are of medians; spread is the interquartile range / median."
        yield "pace: the CPUs' FMA rate during the row, of the peak above."
        if any(result.timing.overhead for result in self.results):
            taken = max(result.timing.overhead for result in self.results)
            yield (
                f"*: too short to call from Python; the cost of a call ({taken * 1e6:.2g} us) is taken off, "
                "also from BLAS libraries. NumPy and torch keep theirs."
            )
        if any(result.sets > 1 for result in self.results):
            yield "+: from memory; goes round several sets of operands."
        if self.ceilings.disturbed:
            yield "Other processes disturbed the measurement of the ceilings: percentages may be too high."
        if any(result.disturbed for result in self.results):
            yield (
                "!: other processes used more than a twentieth of the CPUs meanwhile, or the pace was below "
                f"{100 * SLOWED:.0f} %; see --retries."
            )
        if any(peer.estimated for result in self.results for peer in result.peers.values()):
            yield "~: at the rate of a smaller problem, because one call would take too long."
        yield from dict.fromkeys(
            peer.remark + "." for result in self.results for peer in result.peers.values() if peer.remark
        )
        yield from (
            f"{name} failed in {result.case.name}: {failure}"
            for result in self.results
            for name, failure in result.failures.items()
        )
        yield from (reason + "." for reason in self.left_out)


_WORDS = ("op", "dtype", "shape", "layout")
_TITLES = (*_WORDS, "threads", "rate", "unit", "spread", "% of roof", "pace", "bound")
_LEFT = len(_WORDS)  # columns


def _cells(result: Result, peers: Sequence[str]) -> list[str]:
    case, timing = result.case, result.timing
    marks = "*" * (timing.overhead > 0) + "+" * (result.sets > 1) + "!" * result.disturbed
    return [
        case.op,
        case.dtype.name,
        case.shape_text + marks,
        case.layout,
        str(result.threads),
        number(result.rate(timing.seconds)),
        result.unit,
        percent(timing.spread),
        f"{result.percent:.0f} %",
        f"{100 * result.pace:.0f} %",
        result.roof.bound,
        *(_ratio(result, peer) for peer in peers),
    ]


def _ratio(result: Result, peer: str) -> str:
    if peer not in result.peers:
        return "-"
    return "~" * result.peers[peer].estimated + number(result.ratio(peer))


def threads_text(n: int) -> str:
    return f"{n} thread{'s' * (n > 1)}"


def number(x: float) -> str:
    """Three digits that count."""
    return f"{x:.0f}" if x >= 100 else f"{x:.3g}" if x < 1 else f"{x:.{1 if x >= 10 else 2}f}"


def percent(fraction: float | None) -> str:
    return "-" if fraction is None else f"{100 * fraction:.1f} %"


def line(result: Result) -> str:
    """A row as one line, while others are still to come."""
    best = result.best_peer
    against = f", {number(result.ratio(best))} x {best}" if best else ""
    rate = f"{number(result.rate(result.timing.seconds))} {result.unit}"
    roof = f"{result.percent:.0f} % of {result.roof.bound}"
    return f"{result.case.name}, {threads_text(result.threads)}: {rate}, {roof}{against}"


def _markdown_row(cells: Sequence[Any]) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"
