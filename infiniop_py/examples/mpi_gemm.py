"""A product that no process holds: C = A @ B in blocks, one of each matrix in a process::

    mpiexec -n 4 python -m infiniop_py.examples.mpi_gemm --shape 4096x4096x4096

Needs mpi4py and an MPI (``pip install mpi4py mpich``). The processes are a grid of P rows and Q columns; that
at [i, j] holds blocks [i, j] of A (M/P, K/Q), of B (K/P, N/Q) and of C (M/P, N/Q). For each panel of K,
whoever has it sends its columns of A along its row of the grid, and its rows of B along its column, and
everyone does ``C += columns @ rows``: SUMMA (van de Geijn and Watts, 1997). The next panel is on its way
meanwhile, so that a process needs its blocks and two panels of each.

The elements are small integers, so that every sum is exact and the same whatever its order. The result is
compared with ``A @ (B @ x)``, which takes no more memory; ``--whole`` also collects C in one process, and
compares it with one product of A and B. Exit status 1 if they differ.
"""

from __future__ import annotations

import argparse
import os
import sys
from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter
from typing import Any, TypeAlias

import numpy as np
from mpi4py import MPI

from infiniop_py import gemm, gemm_, set_num_threads

Array: TypeAlias = "np.ndarray[Any, Any]"

DTYPES = {"F32": np.float32, "F64": np.float64}
LARGEST = 3  # element: sums of products are exact up to 2**24 / 9 of them in F32


def starts(size: int, parts: int) -> list[int]:
    """Where parts of nearly equal sizes start, and the end of the last."""
    return [size * i // parts for i in range(parts + 1)]


def elements(seed: int, rows: range, columns: range, dtype: Any) -> Array:
    """Those of a block of a matrix: integers that depend on nothing but where they are."""
    i = np.arange(rows.start, rows.stop, dtype=np.uint32)[:, None]
    j = np.arange(columns.start, columns.stop, dtype=np.uint32)[None, :]
    mixed = (i * np.uint32(0x9E3779B1)) ^ (j * np.uint32(0x85EBCA77)) ^ np.uint32(seed)
    mixed = (mixed ^ mixed >> 15) * np.uint32(0x2C1B3C6D)
    values: Array = ((mixed >> 16) % np.uint32(2 * LARGEST + 1)).astype(dtype)
    return values - dtype(LARGEST)  # type: ignore[no-any-return]


@dataclass
class Panel:
    """Some of K: who has it in a row and in a column of the grid, and where in its blocks."""

    first: int
    last: int
    column: int
    row: int


def panels(k: int, width: int, k_of_a: list[int], k_of_b: list[int]) -> list[Panel]:
    """Pieces of K of `width` at most, each of which one column of the grid has of A, and one row of B."""
    edges = sorted({*k_of_a, *k_of_b, *range(0, k, width)})
    return [
        Panel(first, last, bisect_right(k_of_a, first) - 1, bisect_right(k_of_b, first) - 1)
        for first, last in pairwise(edges)
    ]


class Summa:
    """This process's part of a product."""

    def __init__(self, world: Any, shape: tuple[int, int, int], width: int, dtype: Any) -> None:
        self.world, self.dtype = world, dtype
        self.m, self.n, self.k = shape
        self.grid = world.Create_cart(MPI.Compute_dims(world.size, 2))
        (self.p, self.q), _, (self.i, self.j) = self.grid.Get_topo()
        self.along_row, self.along_column = self.grid.Sub((False, True)), self.grid.Sub((True, False))
        k_of_a, k_of_b = starts(self.k, self.q), starts(self.k, self.p)
        of_m, of_n = starts(self.m, self.p), starts(self.n, self.q)
        self.rows, self.columns = range(*of_m[self.i : self.i + 2]), range(*of_n[self.j : self.j + 2])
        self.k_of_a, self.k_of_b = range(*k_of_a[self.j : self.j + 2]), range(*k_of_b[self.i : self.i + 2])
        self.a = elements(1, self.rows, self.k_of_a, dtype)
        self.b = elements(2, self.k_of_b, self.columns, dtype)
        self.c = np.zeros((len(self.rows), len(self.columns)), dtype)
        self.panels = panels(self.k, width, k_of_a, k_of_b)
        self.computing = self.waiting = 0.0  # seconds

    def _send(self, panel: Panel) -> tuple[Array, Array, list[Any]]:
        """Start to send a panel, or to receive it."""
        size = panel.last - panel.first
        columns = np.empty((len(self.rows), size), self.dtype)
        rows = np.empty((size, len(self.columns)), self.dtype)
        if panel.column == self.j:
            columns[...] = self.a[:, panel.first - self.k_of_a.start :][:, :size]
        if panel.row == self.i:
            rows[...] = self.b[panel.first - self.k_of_b.start :][:size]
        requests = [
            self.along_row.Ibcast(columns, root=panel.column),
            self.along_column.Ibcast(rows, root=panel.row),
        ]
        return columns, rows, requests

    def run(self) -> float:
        """Compute C; returns how many seconds that took the slowest."""
        self.world.Barrier()
        start = perf_counter()
        coming = self._send(self.panels[0])
        for done, _ in enumerate(self.panels, 1):
            columns, rows, requests = coming
            before = perf_counter()
            MPI.Request.Waitall(requests)
            self.waiting += perf_counter() - before
            if done < len(self.panels):
                coming = self._send(self.panels[done])
            before = perf_counter()
            gemm_(self.c, columns, rows, 1.0, 1.0)
            self.computing += perf_counter() - before
            self._show(done)
        return float(self.world.allreduce(perf_counter() - start, MPI.MAX))

    def _show(self, done: int) -> None:
        if self.world.rank == 0 and done * 10 // len(self.panels) > (done - 1) * 10 // len(self.panels):
            print(f"panel {done} of {len(self.panels)}", file=sys.stderr, flush=True)

    def agrees(self) -> bool:
        """Is C @ x = A @ (B @ x)? In F64, where all of it is exact. x has no 0: one wrong element shows."""
        x = abs(elements(3, range(self.n), range(1), np.float64)) + 1
        y = np.zeros((self.k, 1))
        y[self.k_of_b.start : self.k_of_b.stop] = (
            self.b.astype(np.float64) @ x[self.columns.start : self.columns.stop]
        )
        y = self.world.allreduce(y)
        parts = [
            self.a.astype(np.float64) @ y[self.k_of_a.start : self.k_of_a.stop],
            self.c.astype(np.float64) @ x[self.columns.start : self.columns.stop],
        ]
        wanted, got = (self.along_row.allreduce(part) for part in parts)
        return bool(self.world.allreduce(bool((wanted == got).all()), MPI.LAND))

    def is_that_of_one_process(self) -> bool:
        """Collects C in the first process, which computes it alone, too."""
        blocks = self.world.gather((self.rows, self.columns, self.c))
        equal = True
        if self.world.rank == 0:
            a = elements(1, range(self.m), range(self.k), self.dtype)
            b = elements(2, range(self.k), range(self.n), self.dtype)
            wanted = gemm(a, b)
            equal = sum(c.size for _, _, c in blocks) == wanted.size and all(
                (wanted[rows.start : rows.stop, columns.start : columns.stop] == c).all()
                for rows, columns, c in blocks
            )
        return bool(self.world.bcast(equal))


def shape_of(text: str) -> tuple[int, int, int]:
    sizes = [int(size) if size.isdecimal() else 0 for size in text.split("x")]
    if len(sizes) != 3 or min(sizes) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no shape; it looks like 4096x4096x4096, M x N x K")
    return sizes[0], sizes[1], sizes[2]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m infiniop_py.examples.mpi_gemm",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--shape", type=shape_of, default=(2048, 2048, 2048), help="M x N x K")
    parser.add_argument("--panel", type=int, default=256, help="how much of K is sent at a time")
    parser.add_argument("--dtype", choices=DTYPES, default="F32")
    parser.add_argument("--whole", action="store_true", help="compare with one process's product, too")
    options = parser.parse_args(arguments)
    if options.panel < 1:
        parser.error(f"--panel is {options.panel}, needs at least 1")
    m, n, k = options.shape
    if options.dtype == "F32" and k * LARGEST**2 > 2**24:
        parser.error(f"K is {k}: sums in F32 are exact up to {2**24 // LARGEST**2}; use --dtype F64")
    world = MPI.COMM_WORLD
    here = world.Split_type(MPI.COMM_TYPE_SHARED).size  # processes that share this machine's CPUs
    set_num_threads(max(len(os.sched_getaffinity(0)) // here, 1))
    work = Summa(world, options.shape, options.panel, DTYPES[options.dtype])
    if world.rank == 0:
        print(f"{m}x{n}x{k} {options.dtype} on a grid of {work.p} x {work.q}, {len(work.panels)} panels")
    seconds = work.run()
    flops = 2 * len(work.rows) * len(work.columns) * k
    share = work.a.nbytes + work.b.nbytes + work.c.nbytes
    lines: Any = world.gather(
        f"process {world.rank}: {share / 2**20:.1f} MiB, {flops / work.computing / 1e9:.1f} GFLOP/s "
        f"for {work.computing:.3f} s, {work.waiting:.3f} s waiting for panels"
    )
    checks = {"A @ (B @ x)": work.agrees()}
    if options.whole:
        checks["one process's product"] = work.is_that_of_one_process()
    if world.rank == 0:
        whole = (m * k + k * n + m * n) * work.c.itemsize
        print(*lines, sep="\n")
        print(
            f"all: {whole / 2**20:.1f} MiB, {2 * m * n * k / seconds / 1e9:.1f} GFLOP/s for {seconds:.3f} s"
        )
        for what, equal in checks.items():
            print(f"{'the same as' if equal else 'DIFFERS FROM'} {what}")
    return int(not all(checks.values()))


if __name__ == "__main__":
    sys.exit(main())
