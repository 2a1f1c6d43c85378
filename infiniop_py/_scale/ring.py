"""What processes of one machine send each other: run by validate.py in each of them, with gloo or MPI.

The first prints, as JSON, for each size in bytes the median seconds of a step around the ring, each process
sending to the next and receiving from the one before at the same time, and of an all-reduce.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib import import_module
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

SIZES = tuple(1 << e for e in range(12, 27, 2))
_FEW_BYTES, _ROUNDS, _FEW_ROUNDS = 1 << 22, 25, 7


class Gloo:
    def __init__(self) -> None:
        self.torch: Any = import_module("torch")
        self.group: Any = import_module("torch.distributed")
        self.torch.set_num_threads(1)
        self.group.init_process_group("gloo")
        self.rank, self.n = self.group.get_rank(), self.group.get_world_size()

    def barrier(self) -> None:
        self.group.barrier()

    def calls(self, nbytes: int) -> tuple[Callable[[], object], Callable[[], object]]:
        given, got = self.torch.ones(nbytes // 4), self.torch.empty(nbytes // 4)
        to, source = (self.rank + 1) % self.n, (self.rank - 1) % self.n

        def step() -> None:
            sending = self.group.isend(given, to)
            self.group.recv(got, source)
            sending.wait()

        return step, lambda: self.group.all_reduce(given)

    def longest(self, seconds: float) -> float:
        value = self.torch.tensor([seconds], dtype=self.torch.float64)
        self.group.all_reduce(value, op=self.group.ReduceOp.MAX)
        return float(value)

    def close(self) -> None:
        self.group.destroy_process_group()


class Mpi:
    def __init__(self) -> None:
        self.mpi: Any = import_module("mpi4py.MPI")
        self.world = self.mpi.COMM_WORLD
        self.rank, self.n = self.world.rank, self.world.size

    def barrier(self) -> None:
        self.world.Barrier()

    def calls(self, nbytes: int) -> tuple[Callable[[], object], Callable[[], object]]:
        given, got = np.ones(nbytes // 4, "f4"), np.empty(nbytes // 4, "f4")
        to, source = (self.rank + 1) % self.n, (self.rank - 1) % self.n
        return (
            lambda: self.world.Sendrecv(given, to, recvbuf=got, source=source),
            lambda: self.world.Allreduce(self.mpi.IN_PLACE, given),
        )

    def longest(self, seconds: float) -> float:
        return float(self.world.allreduce(seconds, op=self.mpi.MAX))

    def close(self) -> None:
        pass


def _seconds(engine: Gloo | Mpi, call: Callable[[], object], rounds: int) -> float:
    call()
    times = []
    for _ in range(rounds):
        engine.barrier()
        start = perf_counter()
        call()
        times.append(perf_counter() - start)
    return engine.longest(median(times))


def main(which: str) -> None:
    engine = Gloo() if which == "gloo" else Mpi()
    rows = []
    for nbytes in SIZES:
        rounds = _ROUNDS if nbytes < _FEW_BYTES else _FEW_ROUNDS
        step, all_reduce = engine.calls(nbytes)
        rows.append((nbytes, _seconds(engine, step, rounds), _seconds(engine, all_reduce, rounds)))
    if engine.rank == 0:
        print(json.dumps({"processes": engine.n, "rows": rows}))
    engine.close()


if __name__ == "__main__":
    main(sys.argv[1])
