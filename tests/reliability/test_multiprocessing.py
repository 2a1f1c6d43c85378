"""multiprocessing with each of its ways to start a process, after use, while threads compute."""

from __future__ import annotations

import multiprocessing
import os
import warnings
from collections.abc import Callable

import children
import numpy as np
import pytest
from everything import all_operators_once, computing

import infiniop_py as ip

TASKS = 12


def task(i: int) -> tuple[int, int]:
    all_operators_once(seed=i, size=i)
    x = np.full((40, 40), float(i))
    with ip.Graph() as graph:
        y = ip.add(ip.gemm(x, x), x)
    graph.run()
    assert np.array_equal(y, x @ x + x)
    return i, os.getpid()


def pool(method: str) -> None:
    warnings.simplefilter("ignore", DeprecationWarning)  # of a fork while threads run
    task(0)
    with computing(2), multiprocessing.get_context(method).Pool(2) as workers:
        done = workers.map(task, range(TASKS), chunksize=1)
    assert [i for i, _ in done] == list(range(TASKS))
    assert os.getpid() not in {pid for _, pid in done}
    task(1)


@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_a_pool(method: str, record_property: Callable[[str, object], None]) -> None:
    children.call(pool, method, OPENBLAS_NUM_THREADS="1")
    record_property("cases", TASKS)
