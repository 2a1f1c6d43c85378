"""How well the models of work and of collectives predict what can be measured here.

Four rows give the rates of each element type, and others are predicted from them: the products of a layer
with weights [N, K] as they are stored, sums with the norm, and products of elements, all of them larger than
the caches, which the model of work knows nothing of. A step around a ring of processes gives the link, and
all-reduces are predicted from it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from shutil import which
from statistics import median

import numpy as np

from .._bench import ours, rows, timing
from .._bench.memory import Memory, sets_of, too_large
from ..dtypes import DType
from .collectives import Link, all_reduce
from .report import amount, table
from .work import Rates, Work, add_rms_norm, gemm, mul

DTYPES = (DType.F32, DType.BF16)
PROCESSES = (2, 4)
_HIDDEN, _FFN = 4096, 11008
_COMPUTES, _READS, _BOTH = (512, _HIDDEN, _HIDDEN), (1, _HIDDEN, _FFN), (16, _HIDDEN, _FFN)
_STREAMS = 4096  # rows of the norm


@dataclass(frozen=True)
class Row:
    """A prediction and what it is of."""

    name: str
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


def median_error(found: Sequence[Row]) -> float:
    return median(abs(row.error) for row in found)


# ---- work --------------------------------------------------------------------------------------------------

Timer = Callable[[rows.Case], float]


class LeftOut(Exception):
    """There is no memory for a row; the message says so."""


def timer(budget: float) -> Timer:
    """The median seconds of a row of ``bench``, of this library. LeftOut if there is no memory for it."""

    def seconds(case: rows.Case) -> float:
        sets = sets_of(case)
        if not sets:
            raise LeftOut(too_large(case))
        memory = Memory(case, sets)
        timings, failures = timing.take_turns([ours.contender(case, memory)], budget)
        if failures:
            raise RuntimeError(f"{case.name}: {failures[ours.NAME]}")
        return timings[ours.NAME].seconds

    return seconds


def _weights(dtype: DType, shape: tuple[int, int, int]) -> rows.Case:
    return rows.gemm(dtype, shape, rows.B_TRANSPOSED)


def _overlap(both: Work, rates: Rates, seconds: float) -> float:
    """That with which the model takes as long as was measured."""
    computing, moving = both.flops / rates.flops, both.bytes / rates.mem
    return float(np.clip(1 - (seconds - max(computing, moving)) / min(computing, moving), 0, 1))


def rates(dtype: DType, seconds: Timer) -> Rates:
    """From one row that computes, one that reads weights, one that does both, and one that streams."""
    computes, reads, both = (gemm("", *shape, dtype.itemsize) for shape in (_COMPUTES, _READS, _BOTH))
    flops = computes.flops / seconds(_weights(dtype, _COMPUTES))
    mem = reads.bytes / seconds(_weights(dtype, _READS))
    stream = add_rms_norm(_STREAMS, _HIDDEN, dtype.itemsize).bytes / seconds(
        rows.add_rms_norm(dtype, (_STREAMS, _HIDDEN))
    )
    without = Rates(flops, mem, stream)
    return Rates(flops, mem, stream, _overlap(both, without, seconds(_weights(dtype, _BOTH))))


def cases(dtype: DType) -> Iterator[tuple[Work, rows.Case]]:
    """What is predicted: nothing that gave the rates."""
    shapes = ((_HIDDEN, _HIDDEN), (_HIDDEN, _FFN), (_FFN, _HIDDEN))
    for m in (1, 2, 4, 8, 16, 32, 64, 128, 256):
        for k, n in shapes:
            if (m, k, n) not in (_READS, _BOTH):
                yield gemm("gemm", m, k, n, dtype.itemsize), _weights(dtype, (m, k, n))
    for m in (2048, 8192):
        yield add_rms_norm(m, _HIDDEN, dtype.itemsize), rows.add_rms_norm(dtype, (m, _HIDDEN))
    for m in (1024, 4096):
        yield (
            mul("mul", m, _FFN, dtype.itemsize),
            rows.elementwise("mul", dtype, (m * _FFN,)),
        )


def work_rows(dtype: DType, known: Rates, seconds: Timer) -> tuple[list[Row], list[str]]:
    """The rows, and why others are left out."""
    found, left_out = [], []
    for work, case in cases(dtype):
        try:
            found.append(Row(f"{work.name} {dtype} {work.shape}", work.seconds(known), seconds(case)))
        except LeftOut as reason:
            left_out.append(f"{reason}.")
    return found, left_out


# ---- collectives -------------------------------------------------------------------------------------------


def _launcher(engine: str, n: int) -> list[str] | None:
    """How `n` processes are started, if they can be."""
    if engine == "gloo" and find_spec("torch") is not None:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(n)]
        return [*command, "-m"]
    beside = os.path.join(os.path.dirname(sys.executable), "mpiexec")
    mpiexec = beside if os.path.exists(beside) else which("mpiexec")
    if engine == "mpi" and find_spec("mpi4py") is not None and mpiexec is not None:
        return [mpiexec, "-n", str(n), sys.executable, "-m"]
    return None


Measured = Sequence[tuple[int, float, float]]  # bytes, seconds of a step, seconds of an all-reduce


def measured(engine: str, n: int) -> Measured | None:
    """By ring.py in `n` processes; None where they cannot be started."""
    launcher = _launcher(engine, n)
    if launcher is None:
        return None
    done = subprocess.run(
        [*launcher, "infiniop_py._scale.ring", engine],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    line = next((line for line in done.stdout.splitlines() if line.startswith('{"processes"')), None)
    if done.returncode or line is None:
        raise RuntimeError(f"{' '.join(launcher)} failed:\n{done.stderr}")
    return [(int(nbytes), step, reduced) for nbytes, step, reduced in json.loads(line)["rows"]]


def link(found: Measured) -> Link:
    """From steps around the ring: the latency of the smallest, the rate between the largest and it."""
    (small, least, _), (large, most, _) = min(found), max(found)
    return Link((large - small) / max(most - least, 1e-12), least)


def collective_rows(engine: str, n: int, found: Measured) -> list[Row]:
    known = link(found)
    return [
        Row(
            f"all-reduce, {engine}, {n} processes, {amount(nbytes, 'B')}",
            all_reduce(nbytes, n, known)[0],
            reduced,
        )
        for nbytes, _, reduced in found
    ]


# ---- the report --------------------------------------------------------------------------------------------


def _shown(found: Sequence[Row]) -> str:
    return table(
        ["", "predicted", "measured", "error"],
        [
            [row.name, amount(row.predicted, "s"), amount(row.measured, "s"), f"{row.error:+.0%}"]
            for row in found
        ],
    )


def run(budget: float) -> str:
    """Measure everything, and compare."""
    parts = []
    everything: list[Row] = []
    seconds = timer(budget)
    for dtype in DTYPES:
        try:
            known = rates(dtype, seconds)
        except LeftOut as reason:
            parts += [f"{reason}. Without its rate nothing is predicted for {dtype}.", ""]
            continue
        parts.append(
            f"measured here, {dtype}: {amount(known.flops, 'FLOP/s')} of products, "
            f"{amount(known.mem, 'B/s')} where they read weights, "
            f"{amount(known.stream, 'B/s')} where elements stream, overlap {known.overlap:.2f}"
        )
        found, left_out = work_rows(dtype, known, seconds)
        everything += found
        parts += [_shown(found), *left_out]
        if found:
            parts.append(f"median error, {dtype}: {median_error(found):.1%}")
        parts.append("")
    if everything:
        parts += [f"median error of {len(everything)} operators: {median_error(everything):.1%}", ""]
    for engine in ("gloo", "mpi"):
        for n in PROCESSES:
            steps = measured(engine, n)
            if steps is None:
                parts.append(f"{engine} is not installed: not measured")
                break
            known_link = link(steps)
            found = collective_rows(engine, n, steps)
            parts += [
                f"measured here, {engine}, a ring of {n} processes: {amount(known_link.rate, 'B/s')}, "
                f"{amount(known_link.latency, 's')} a message",
                _shown(found),
                f"median error, {engine}, {n} processes: {median_error(found):.1%}",
                "",
            ]
    return "\n".join(parts) + "\n"
