"""Does something again and again, and sees whether memory is lost; started by test_leaks.py with
PYTHONMALLOC=malloc, so that the objects of Python are counted with all else.

    python _leak_child.py package
    python _leak_child.py plugins <plugin> [<plugin> ...]

Prints the number of cycles.
"""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

HERE = Path(__file__).resolve()
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parents[1] / "abi")]

import heap  # noqa: E402


def settled() -> int:
    """Bytes in use, without what Python lets go of in time: cycles, names of attributes looked up."""
    gc.collect()
    getattr(sys, "_clear_type_cache", lambda: None)()
    return heap.bytes_in_use()


def check(name: str, cycle: Callable[[], object], cycles: int, warm_up: int) -> int:
    for _ in range(warm_up):
        cycle()
    before = settled()
    for _ in range(cycles):
        cycle()
    lost = settled() - before
    print(f"{name}: {lost} bytes in {cycles} cycles", file=sys.stderr, flush=True)
    assert lost < cycles, f"{name}: {lost} bytes lost in {cycles} cycles"
    return cycles


# ---- what is done with the C interface ---------------------------------------------------------------------


def plugins(paths: list[str]) -> int:
    """A cycle is the refusal of each of some plugins; their reasons live for ever, but once."""
    import _library

    lib = _library.load()

    def cycle() -> None:
        for path in paths:
            assert lib.infinirtLoadBackend(path.encode()) != _library.SUCCESS

    return len(paths) * check("plugins", cycle, 400, 10)


# ---- what is done with the package -------------------------------------------------------------------------


def package() -> int:
    import numpy as np
    from test_errors import ROWS

    import infiniop_py as ip

    done = 0
    x, weight, square = np.ones((6, 8), "f4"), np.ones(8, "f4"), np.ones((8, 8), "f4")
    tensor = ip.from_numpy(x)
    shapes = [np.ones((2, n), "f4") for n in range(1, 126)]  # more than a cache holds, in whole rounds
    numbers = iter(range(1 << 60))

    def operators() -> None:
        y, residual = ip.add_rms_norm(x, x, weight)
        h = ip.mul(ip.gemm(y, square), ip.add(residual, weight))
        ip.gemm_add(h, square, h, 0.5, out=y)
        ip.gemm_mul(h, square, h, 0.5, out=y)
        ip.gemm_(y, h, square, 1.0, 2.0)
        ip.rearrange_(y, h[::-1])

    def plans() -> None:
        y = np.empty_like(x)
        ip.add.plan(y, x, weight)()
        ip.gemm.plan(y, x, square)()

    def evictions() -> None:
        s = shapes[next(numbers) % len(shapes)]
        ip.add(s, s)
        ip.rearrange(s.T)

    def caches() -> None:
        ip.add(x, x)
        for op in (ip.Add, ip.Gemm):
            op.cache().clear()

    def tensors() -> None:
        t = ip.empty((3, 4), "F32")
        t.copy_(ip.ones((3, 4)))
        t.T.reshape((2, 6))[0].numpy()
        (t + t) * t
        ip.from_numpy(x).permute(1, 0).contiguous()

    def recorded() -> ip.Graph:
        with ip.Graph() as graph:
            y = ip.gemm(x, square)
            ip.add_(y, y, ip.mul(y, x))
        return graph

    def graphs() -> None:
        graph = recorded()
        graph.run()
        graph.run()
        graph.memory_report()
        graph.explain()

    def abandoned_graphs() -> None:
        recorded().run()
        try:
            with ip.Graph():
                ip.add(x, x)
                ip.add(x, weight[:3])
        except ip.ShapeError:
            return
        raise AssertionError

    def dlpack() -> None:
        np.from_dlpack(tensor)
        ip.from_dlpack(x)
        ip.from_dlpack(tensor)
        tensor.__dlpack__()  # that nobody takes
        tensor.__dlpack__(max_version=(1, 1))

    def streams() -> None:
        stream, start, end = ip.Stream(), ip.Event(), ip.Event()
        with stream:
            start.record()
            ip.add(x, x)
            end.record(stream)
        end.synchronize()
        stream.wait_event(start)
        ip.synchronize()

    def limits() -> None:
        with ip.num_threads(2):
            ip.get_num_threads()

    programs: list[Callable[[], object]] = [
        operators, plans, evictions, caches, tensors, graphs, abandoned_graphs, dlpack, streams, limits,
    ]  # fmt: skip
    warnings.simplefilter("ignore")
    for program in programs:
        done += check(program.__name__, program, 2000, 250)

    def refusal(call: Callable[[], object]) -> None:
        try:
            call()
        except ip.InfiniopError:
            return
        raise AssertionError("not refused")

    for row in ROWS:
        done += check(row.name, partial(refusal, row.call), 400, 50)
    return done


MODES: dict[str, Callable[[list[str]], int]] = {"package": lambda _: package(), "plugins": plugins}

if __name__ == "__main__":
    print(MODES[sys.argv[1]](sys.argv[2:]))
