"""The command line of ``python -m infiniop_py bench``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from ..cpu import get_num_threads
from ..dtypes import DType, as_dtype
from ..errors import DTypeError
from . import graphs, overhead, plot
from .ceilings import Ceilings
from .machine import facts
from .memory import Memory, sets_of, too_large
from .options import NEEDS_PLOT, as_seconds, as_threads, as_times, can_plot, new_file, picture, write_all
from .peers import PEERS, Peer, available
from .report import Progress, Report, line, threads_text
from .rows import CACHE_LINE, OPERANDS, Case, select
from .suite import Result, measure_row

BUDGET, QUICK_BUDGET = 3.0, 0.4  # seconds for one row
_OFFSETS = 8  # bytes, of which all are multiples: elements are aligned
_T = TypeVar("_T")


# ---- options -----------------------------------------------------------------------------------------------


def _list_of(read: Callable[[str], _T]) -> Callable[[str], list[_T]]:
    def parse(text: str) -> list[_T]:
        return [read(part.strip()) for part in text.split(",") if part.strip()]

    return parse


def _one_of(names: Sequence[str], what: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in names:
            raise argparse.ArgumentTypeError(f"{text!r} is no {what}; there are {', '.join(names)}")
        return text

    return parse


def _dtype(text: str) -> DType:
    try:
        return as_dtype(text.upper() if text.islower() and len(text) <= 4 else text)
    except DTypeError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _shape(text: str) -> tuple[int, ...]:
    try:
        sizes = [float(size) for size in text.lower().split("x")]
    except ValueError:
        sizes = []
    if not sizes or not all(size >= 1 and size.is_integer() for size in sizes):
        raise argparse.ArgumentTypeError(f"{text!r} is no shape of whole sizes; it looks like 4x2048x2048")
    return tuple(map(int, sizes))


def _offset(text: str) -> int:
    if not text.isdecimal() or int(text) % _OFFSETS or int(text) >= CACHE_LINE:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no offset; it is a multiple of {_OFFSETS} below {CACHE_LINE}, in bytes"
        )
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m infiniop_py bench",
        description="Times this library against its peers and this machine's measured limits. Takes about "
        "20 minutes for each number of threads, with --quick 20 seconds. Lists take commas. "
        "'bench overhead' measures what a small call costs, 'bench graph' whole programs.",
    )
    add = parser.add_argument
    add("--op", type=_list_of(_one_of(tuple(OPERANDS), "op")), default=[], help=f"of {', '.join(OPERANDS)}")
    add("--dtype", type=_list_of(_dtype), default=[], help="such as F32,BF16")
    add(
        "--shape",
        type=_list_of(_shape),
        default=[],
        help="such as 4x2048x2048 (gemm: [batch x] M x K x N); one that no row has is measured with --op",
    )
    add("--threads", type=_list_of(as_threads), default=[], help="such as 1,2 (default: the process's)")
    add(
        "--compare",
        type=_list_of(_one_of(tuple(PEERS), "peer")),
        default=None,
        metavar="PEERS",
        help=f"of {', '.join(PEERS)} (default: those installed; torch.compile only by name)",
    )
    add("--quick", action="store_true", help="a row of each kind")
    add(
        "--budget",
        type=as_seconds,
        default=None,
        metavar="SECONDS",
        help=f"for each row (default {BUDGET:g}, with --quick {QUICK_BUDGET:g})",
    )
    add(
        "--retries",
        type=as_times,
        default=0,
        metavar="N",
        help="measure a row up to N times more while it is disturbed (default 0)",
    )
    add(
        "--offset",
        type=_offset,
        default=0,
        metavar="BYTES",
        help="where arrays begin, behind a cache line (default 0, as torch's; NumPy's large ones at 16)",
    )
    add("--list", action="store_true", help="list the rows and measure nothing")
    add("--json", type=new_file, metavar="FILE", help="write everything measured")
    add("--markdown", type=new_file, metavar="FILE", help="write the table as Markdown")
    add("--plot", type=picture, metavar="FILE.png", help="draw the roofline; needs the extra [plot]")
    return parser


# ---- the run -----------------------------------------------------------------------------------------------


@dataclass
class _Run:
    """A run, and what it has found so far."""

    cases: Sequence[tuple[Case, int]]  # and how many sets of operands each goes round; 0: no memory for it
    peers: Sequence[Peer]
    threads: Sequence[int]
    budget: float
    retries: int
    offset: int
    left_out: list[str]
    ceilings: Ceilings = field(default_factory=Ceilings)
    results: list[Result] = field(default_factory=list)

    def measure(self, progress: Progress) -> None:
        for n in self.threads:
            progress.begin(f"this machine's ceilings, {threads_text(n)}")
            self.ceilings.measure_all([(case, sets) for case, sets in self.cases if sets], n)
            progress.end(f"this machine's ceilings, {threads_text(n)}: measured")
        for case, sets in self.cases:
            progress.begin(case.name)
            if not sets:
                self.left_out.append(too_large(case))
                for _ in self.threads:
                    progress.end(self.left_out[-1])
                continue
            memory = Memory(case, sets, offset=self.offset)
            for n in self.threads:
                result = self._row(case, memory, n)
                self.results.append(result)
                progress.end(line(result))
            del memory  # before the next row's is made

    def _row(self, case: Case, memory: Memory, threads: int) -> Result:
        best = measure_row(case, memory, self.peers, threads, self.ceilings, self.budget)
        for _ in range(self.retries):
            if not best.disturbed:
                break
            again = measure_row(case, memory, self.peers, threads, self.ceilings, self.budget)
            best = min(best, again, key=lambda result: result.disturbance - result.pace)
        return best


def main(argv: list[str]) -> int:
    """Run the benchmark; returns the exit status."""
    if argv[:1] == ["overhead"]:
        return overhead.main(argv[1:])
    if argv[:1] == ["graph"]:
        return graphs.main(argv[1:])
    parser = _parser()
    options = parser.parse_args(argv)
    try:
        cases = select(options.op, options.dtype, options.shape, quick=options.quick)
    except ValueError as error:
        parser.error(str(error))
    if options.list:
        for case in cases:
            print(case.name)
        return 0

    threads = list(dict.fromkeys(options.threads)) or [get_num_threads()]
    budget = options.budget or (QUICK_BUDGET if options.quick else BUDGET)
    peers, left_out = available(options.compare)
    if options.plot and not can_plot():
        left_out.append(NEEDS_PLOT)
        options.plot = None
    for reason in left_out:
        print(reason, file=sys.stderr)

    run = _Run(
        [(case, sets_of(case)) for case in cases],
        peers,
        threads,
        budget,
        options.retries,
        options.offset,
        left_out,
    )
    progress = Progress((len(cases) + 1) * len(threads))
    status = 0
    try:
        run.measure(progress)
    except KeyboardInterrupt:
        left_out.append(f"interrupted after {len(run.results)} of {len(cases) * len(threads)} rows")
        status = 130
    progress.close()

    versions = {peer.name: peer.version for peer in peers}
    report = Report(facts(), versions, left_out, budget, options.offset, run.ceilings, threads, run.results)
    try:
        print(report.text(), end="", flush=True)
    finally:  # also where nobody reads what is printed
        failed = write_all(
            [
                (options.json, lambda path: Path(path).write_text(report.json() + "\n", encoding="utf-8")),
                (options.markdown, lambda path: Path(path).write_text(report.markdown(), encoding="utf-8")),
                (options.plot, lambda path: plot.draw(report, path)),
            ]
        )
    return status or failed
