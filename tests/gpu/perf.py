"""Times the operators on an NVIDIA device against torch and against this run's own ceilings.

    python tests/gpu/perf.py [--only PATTERN] [--seconds N] [--json FILE] [--markdown FILE]
    python tests/gpu/perf.py --device cpu --quick      # a trial without a device: its times mean nothing

Many calls are captured in one CUDA graph, on sets of operands that together are three times the second-level
cache, and the graph is replayed 50 times (less often where that takes seconds) between two events. Before the
first of them the device is kept busy until the replay is queued, so that what the host does is not timed.
Contenders take turns replay by replay; ours takes two turns in each round, and how far apart their medians
are is the noise. Operands are random numbers, never zeros. Before it is timed a row is checked against
torch's result. torch has its default settings: no TF32, and partial sums of F16 and BF16 in their own type if
it likes.

Exit status 1 if a result is wrong or a row cannot be run; a target that is missed is told in the table.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import torch

import infiniop_py as ip
from infiniop_py._native import check, ffi, lib

REPLAYS, LEAST_REPLAYS = 50, 5
CACHES = 3  # times the second-level cache is what the sets of a row take at least
LARGE = 2 * 8191**2  # bytes that a call touches, from which the share of the copy rate is judged
EPSILON = 1e-5
PARITY = 0.01  # by so much a ratio may be short of its target: two kernels at the ceiling differ by that

Tensor = torch.Tensor
Operands = tuple[Tensor, ...]
Call = Callable[[], object]
#: Makes the call on one set of operands, and plans it.
Bind = Callable[[Operands], Call]

HALVES = (torch.float16, torch.bfloat16)
#: How far a result may be from torch's, relative in the 2-norm.
CLOSE = {torch.float16: 2e-3, torch.bfloat16: 1.5e-2, torch.float32: 1e-5, torch.float64: 1e-12}
NAMES = {torch.float16: "F16", torch.bfloat16: "BF16", torch.float32: "F32", torch.float64: "F64",
         torch.uint8: "U8", torch.int16: "I16", torch.int32: "I32", torch.int64: "I64",
         torch.complex128: "C128"}  # fmt: skip


# ---- what is timed -----------------------------------------------------------------------------------------


class Row(NamedTuple):
    """One row of the table."""

    name: str
    dtype: torch.dtype
    make: Callable[[], Operands]  # one set of operands, outputs first
    n_outputs: int
    ours: Bind
    peer: Bind  # torch
    others: dict[str, Bind]  # timed, too, and not judged
    flops: int  # 0 where the bytes count
    least_share: float  # of the copy rate, if the row is large
    least_ratio: float  # torch's time / ours


def row(
    op: str,
    dtype: torch.dtype,
    what: str,
    make: Callable[[], Operands],
    ours: Bind,
    peer: Bind,
    *,
    n_outputs: int = 1,
    others: dict[str, Bind] | None = None,
    flops: int = 0,
    share: float = 0.0,
    ratio: float = 1.0,
) -> Row:
    name = f"{op} {NAMES[dtype]} {what}"
    return Row(name, dtype, make, n_outputs, ours, peer, others or {}, flops, share, ratio)


class Table:
    """The rows, as they are on a device. `quick` makes every extent small."""

    def __init__(self, device: str, quick: bool, others: bool) -> None:
        self._device, self._quick, self._others = device, quick, others

    def random(self, *shape: int, dtype: torch.dtype) -> Tensor:
        if dtype.is_floating_point or dtype.is_complex:
            return torch.randn(shape, dtype=dtype, device=self._device)
        return torch.randint(1, 100, shape, dtype=dtype, device=self._device)

    def empty(self, *shape: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=self._device)

    def size(self, *shape: int) -> tuple[int, ...]:
        return tuple(min(n, 24 + n % 2) for n in shape) if self._quick else shape

    def rows(self) -> Iterator[Row]:
        for part in (self._norms, self._elementwise, self._rearranges, self._gemms):
            for row in part():
                yield row if self._others else row._replace(others={})

    # ---- add, mul ----

    def _elementwise(self) -> Iterator[Row]:
        dtypes = (torch.float32, *HALVES, torch.int32)
        for op in ("add", "mul"):
            for dtype in dtypes:
                for n in (1_000_000, 64_000_000, 256_000_000):
                    (n,) = self.size(n)
                    yield self._pair(op, dtype, f"{n}", (n,), self._plain)
        layouts = {"b broadcast row": self._by_row, "b broadcast column": self._by_column,
                   "a transposed": self._transposed, "in place": self._in_place}  # fmt: skip
        for layout, make in layouts.items():
            for dtype in (torch.float32, torch.float16):
                odd = {self._transposed: (8191,), self._by_row: (8001,)}.get(make, ())
                for n in (1000, 8000, *odd):
                    shape = self.size(n, n)
                    yield self._pair("add", dtype, f"{shape[0]}x{shape[1]}, {layout}", shape, make)

    def _pair(self, op: str, dtype: torch.dtype, what: str, shape: tuple[int, ...], make: Any) -> Row:
        plan, function = {"add": (ip.Add, torch.add), "mul": (ip.Mul, torch.mul)}[op]
        return row(
            *(op, dtype, what, partial(make, shape, dtype)),
            ours=lambda x: plan(*x),
            peer=lambda x: partial(function, x[1], x[2], out=x[0]),
            share=0.9,
        )

    def _plain(self, shape: tuple[int, ...], dtype: torch.dtype) -> Operands:
        return (
            self.empty(*shape, dtype=dtype),
            self.random(*shape, dtype=dtype),
            self.random(*shape, dtype=dtype),
        )

    def _by_row(self, shape: tuple[int, ...], dtype: torch.dtype) -> Operands:
        c, a, _ = self._plain(shape, dtype)
        return c, a, self.random(shape[1], dtype=dtype).expand(shape)

    def _by_column(self, shape: tuple[int, ...], dtype: torch.dtype) -> Operands:
        c, a, _ = self._plain(shape, dtype)
        return c, a, self.random(shape[0], 1, dtype=dtype).expand(shape)

    def _transposed(self, shape: tuple[int, ...], dtype: torch.dtype) -> Operands:
        c, a, b = self._plain(shape, dtype)
        return c, a.T, b

    def _in_place(self, shape: tuple[int, ...], dtype: torch.dtype) -> Operands:
        """What is added is so small that it rounds away: the sum stays what it is, however often."""
        a = self.random(*shape, dtype=dtype).abs_().add_(1)
        return a, a, torch.full_like(a, torch.finfo(dtype).eps / 8)

    # ---- add_rms_norm ----

    def _norms(self) -> Iterator[Row]:
        for dtype in (torch.float32, *HALVES):
            for shape in ((128, 4096), (4096, 4096), (8192, 5121), (16384, 8192)):
                shape = self.size(*shape)
                yield row(
                    *("add_rms_norm", dtype, f"{shape[0]}x{shape[1]}", partial(self._norm, shape, dtype)),
                    ours=lambda x: ip.AddRMSNorm(*x, EPSILON),
                    peer=lambda x: partial(_eager_norm, *x[2:]),
                    n_outputs=2,
                    others={"compiled": _compiled_norm},
                    share=0.9,
                    ratio=2.0,
                )

    def _norm(self, shape: tuple[int, ...], dtype: torch.dtype) -> Operands:
        outputs = self.empty(*shape, dtype=dtype), self.empty(*shape, dtype=dtype)
        inputs = self.random(*shape, dtype=dtype), self.random(*shape, dtype=dtype)
        return *outputs, *inputs, self.random(shape[1], dtype=dtype)

    # ---- rearrange ----

    def _rearranges(self) -> Iterator[Row]:
        sizes = (torch.uint8, torch.int16, torch.int32, torch.int64, torch.complex128)
        for dtype in sizes:
            for n in (4096, 8192, 8191):
                yield self._permuted(dtype, self.size(n, n), (1, 0), 0.85)
        for dtype in (torch.uint8, torch.float16, torch.float32):  # images, there and back
            yield self._permuted(dtype, self.size(64, 224, 224, 3), (0, 3, 1, 2), 0.0)
            yield self._permuted(dtype, self.size(64, 3, 224, 224), (0, 2, 3, 1), 0.0)
            yield self._permuted(dtype, self.size(320, 512, 7, 7), (0, 2, 3, 1), 0.0)
        for dtype in (torch.float16, torch.float32):
            yield self._permuted(dtype, self.size(32, 128, 32, 128), (0, 2, 1, 3), 0.0)
            yield self._permuted(dtype, self.size(16, 12, 50, 50, 14, 18), (5, 4, 3, 2, 1, 0), 0.0)

    def _permuted(
        self, dtype: torch.dtype, shape: tuple[int, ...], order: tuple[int, ...], share: float
    ) -> Row:
        if self._quick and len(shape) > 3:
            shape = tuple(min(n, 5) for n in shape)

        def make() -> Operands:
            x = self.random(*shape, dtype=dtype).permute(order)
            return self.empty(*x.shape, dtype=dtype), x

        what = f"{'x'.join(map(str, shape))} -> ({','.join(map(str, order))})"
        return row(
            *("rearrange", dtype, what, make),
            ours=lambda x: ip.Rearrange(*x),
            peer=lambda x: partial(x[0].copy_, x[1]),
            share=share,
        )

    # ---- gemm ----

    def _gemms(self) -> Iterator[Row]:
        dtypes = (*HALVES, torch.float32, torch.float64)
        for n in (512, 1024, 2048, 4096, 8192):
            for dtype in dtypes:
                yield self._gemm(dtype, (n, n, n))
        for dtype in dtypes:
            yield self._gemm(dtype, (128, 4096, 4096))
        for dtype in (*HALVES, torch.float32):
            for m in (1, 2, 3, 4):
                for transposed in (False, True):
                    yield self._gemm(dtype, (m, 4096, 11008), transposed=transposed)
            yield self._gemm(dtype, (1, 4096, 4096))
        for dtype in (*HALVES, torch.float32):
            for batched in ((64, 128, 64, 128), (32, 512, 512, 512), (100_000, 4, 4, 4)):
                yield self._gemm(dtype, batched)

    def _gemm(self, dtype: torch.dtype, sizes: tuple[int, ...], transposed: bool = False) -> Row:
        """([batch,] M, K, N); a transposed B lies in memory as [N, K]."""
        *batch, m, k, n = sizes = self.size(*sizes)

        def make() -> Operands:
            b = self.random(n, k, dtype=dtype).T if transposed else self.random(*batch, k, n, dtype=dtype)
            return self.empty(*batch, m, n, dtype=dtype), self.random(*batch, m, k, dtype=dtype), b

        flops = 2 * m * k * n
        for count in batch:
            flops *= count
        return row(
            *("gemm", dtype, "x".join(map(str, sizes)) + ", b transposed" * transposed, make),
            ours=lambda x: ip.Gemm(*x),
            peer=lambda x: partial(torch.matmul, x[1], x[2], out=x[0]),
            others={"tiled": partial(_gemm_by, "tiled")},
            flops=flops,
            ratio=1.0 if m <= 4 else 0.97,
        )


def _eager_norm(a: Tensor, b: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    total = torch.add(a, b)
    return torch.nn.functional.rms_norm(total, weight.shape, weight, EPSILON), total


def _compiled_norm(x: Operands) -> Call:
    return partial(_COMPILED_NORM, *x[2:])


_COMPILED_NORM = torch.compile(_eager_norm, dynamic=False)


def _gemm_by(implementation: str, x: Operands) -> Call:
    """A product planned with one of the device's implementations: the variable is read then."""
    before = os.environ.get("INFINIOP_CUDA_GEMM")
    os.environ["INFINIOP_CUDA_GEMM"] = implementation
    ip.Gemm.cache().clear()
    try:
        return ip.Gemm(*x)
    finally:
        del os.environ["INFINIOP_CUDA_GEMM"]
        if before is not None:
            os.environ["INFINIOP_CUDA_GEMM"] = before
        ip.Gemm.cache().clear()


def traffic(x: Operands) -> int:
    """Bytes that must be moved: each element of each operand once."""
    total = 0
    for tensor in x:
        count = tensor.itemsize
        for size, stride in zip(tensor.shape, tensor.stride()):
            count *= size if stride else 1
        total += count
    return total


def footprint(x: Operands) -> int:
    """Bytes of memory that one call touches."""
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in x}
    return sum(storages.values())


def described(call: object) -> str:
    """How the library computes a planned call, in its words."""
    text = ffi.new("const char **")
    check(lib.infiniopGetDescriptorPlan(call.plan.pointer, text))  # type: ignore[attr-defined]
    return ffi.string(text[0]).decode()


# ---- clocks ------------------------------------------------------------------------------------------------


class Cuda:
    """Replays of graphs on a stream of its own, between events."""

    device = "cuda"
    replay_seconds = 1e-3  # at least

    def __init__(self, row_seconds: float) -> None:
        self.row_seconds = row_seconds
        properties = torch.cuda.get_device_properties(0)
        self.name = f"{properties.name}, {properties.multi_processor_count} multiprocessors"
        self.cache: int = properties.L2_cache_size
        self._stream = torch.cuda.Stream()
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]

    def warm_up(self, calls: Sequence[Call]) -> None:
        """So that workspaces are there and modules are loaded: none of it may happen in a capture. The
        stream is that of the capture, because workspaces are a stream's.
        """
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for call in (*calls, *calls):
                call()
        torch.cuda.synchronize()

    def prepare(self, calls: Sequence[Call], n: int) -> Call:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self._stream):
            for i in range(n):
                calls[i % len(calls)]()
        return graph.replay

    def seconds(self, run: Call) -> float:
        start, end = self._events
        with torch.cuda.stream(self._stream):
            torch.cuda._sleep(200_000)  # some 100 us, in which the rest is queued
            start.record()
            run()
            end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3

    def forget(self) -> None:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


class Plain:
    """A plain clock around plain calls, to try the program without a device."""

    device = "cpu"
    replay_seconds = 0.0
    name = "CPU, for a trial: these times mean nothing"
    cache = 2**16

    def __init__(self, row_seconds: float) -> None:
        self.row_seconds = row_seconds
        torch.set_num_threads(1)

    def warm_up(self, calls: Sequence[Call]) -> None:
        for call in calls:
            call()

    def prepare(self, calls: Sequence[Call], n: int) -> Call:
        def run() -> None:
            for i in range(n):
                calls[i % len(calls)]()

        return run

    def seconds(self, run: Call) -> float:
        start = perf_counter()
        run()
        return perf_counter() - start

    def forget(self) -> None:
        pass


Clock = Cuda | Plain


def take_turns(clock: Clock, runs: Sequence[Call]) -> list[float]:
    """The median seconds of each. They take turns; the first time of each is not counted."""
    first = sum(clock.seconds(run) for run in runs)
    replays = min(REPLAYS, max(LEAST_REPLAYS, int(clock.row_seconds / max(first, 1e-9))))
    samples: list[list[float]] = [[] for _ in runs]
    for _ in range(replays):
        for run, found in zip(runs, samples):
            found.append(clock.seconds(run))
    return [median(found) for found in samples]


@contextmanager
def no_collection() -> Iterator[None]:
    """What the collector frees in a capture would end it."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


# ---- ceilings ----------------------------------------------------------------------------------------------


class Ceilings(NamedTuple):
    """What this run's device reaches with torch."""

    copy: float  # bytes read and written, per second, by the faster of a copy and a kernel
    flops: dict[str, float]  # of a large product, by dtype
    node: float  # seconds of a kernel of one element in a graph

    def least(self, row: Row, nbytes: int) -> float:
        """Seconds that a call takes at least."""
        return max(self.node, nbytes / self.copy, self.computing(row))

    def computing(self, row: Row) -> float:
        return row.flops / self.flops[NAMES[row.dtype]] if row.flops else 0.0


def measure_ceilings(clock: Clock, quick: bool) -> Ceilings:
    def timed(call: Call, n: int) -> float:
        with no_collection():
            clock.warm_up([call])
            return take_turns(clock, [clock.prepare([call], n)])[0] / n

    count = 2**16 if quick else 2**30
    source = torch.randint(1, 100, (count // 4,), dtype=torch.int32, device=clock.device)
    target = torch.empty_like(source)
    copy = min(timed(partial(target.copy_, source), 4), timed(partial(torch.neg, source, out=target), 4))
    del source, target
    n, rates = 64 if quick else 8192, {}
    for dtype in (*HALVES, torch.float32, torch.float64):
        a, b = (torch.randn(n, n, dtype=dtype, device=clock.device) for _ in range(2))
        rates[NAMES[dtype]] = 2 * n**3 / timed(partial(torch.matmul, a, b, out=torch.empty_like(a)), 1)
    one = torch.ones(1, device=clock.device)
    node = timed(partial(one.mul_, 1.0), 1000)
    clock.forget()
    return Ceilings(2 * count / copy, rates, node)


# ---- rows --------------------------------------------------------------------------------------------------


class Result(NamedTuple):
    """One row, timed. Seconds are of a call."""

    name: str
    seconds: float
    peer: float
    noise: float  # between the two turns of ours
    others: dict[str, float | None]  # None: it failed
    amount: float  # of bytes or floating-point operations, whichever takes longer at the ceilings
    unit: str
    share: float  # of this run's ceiling
    how: str
    missed: str  # the targets that were missed, in words

    @property
    def rate(self) -> str:
        scale = {"GB/s": 1e9, "TFLOP/s": 1e12}[self.unit]
        return f"{self.amount / self.seconds / scale:.4g} {self.unit}"


def _agree(row: Row, x: Operands, ours: Call, peer: Call) -> None:
    """Compare results. What is not written stays NaN, unless the output is an input, too."""
    outputs, inputs = x[: row.n_outputs], x[row.n_outputs :]
    for output in outputs:
        if all(output is not other for other in inputs):
            output.fill_(float("nan") if output.dtype.is_floating_point else 0)
    ours()
    got = [output.clone() for output in outputs]
    said = peer()
    wanted = said if row.n_outputs > 1 else outputs
    for x_got, x_wanted in zip(got, wanted, strict=True):
        tolerance = CLOSE.get(row.dtype, 0.0)
        if tolerance:
            norm = partial(torch.linalg.vector_norm, dtype=torch.float64)
            error = float(norm(x_got - x_wanted) / norm(x_wanted))
            if not error <= tolerance:  # nor if it is NaN
                raise ArithmeticError(f"the result is {error:.2g} from torch's, may be {tolerance}")
        elif not torch.equal(x_got, x_wanted):
            raise ArithmeticError("the result is not torch's")


def measure(clock: Clock, row: Row, ceilings: Ceilings) -> Result:
    x = row.make()
    nbytes, touched = traffic(x), footprint(x)
    sets = [x, *(row.make() for _ in range(-(-CACHES * clock.cache // touched) - 1))]
    binds = {"ours": row.ours, "torch": row.peer, "ours again": row.ours, **row.others}
    calls = {name: [bind(one) for one in sets] for name, bind in binds.items()}
    how = described(calls["ours"][0])
    least = ceilings.least(row, nbytes)
    n = max(len(sets), min(1000, int(clock.replay_seconds / least) + 1))
    with no_collection():
        for name in binds:
            try:
                clock.warm_up(calls[name])
            except Exception as error:
                if name not in row.others:
                    raise
                print(f"{row.name}: {name} failed: {type(error).__name__}: {error}")
                del calls[name]
        _agree(row, x, calls["ours"][0], calls["torch"][0])
        runs = [clock.prepare(some, n) for some in calls.values()]
        times = {name: seconds / n for name, seconds in zip(calls, take_turns(clock, runs))}
    first, again, peer = times["ours"], times["ours again"], times["torch"]
    ours = (first + again) / 2
    missed = []
    copied = nbytes / ours / ceilings.copy
    if touched >= LARGE and copied < row.least_share:
        missed.append(f"{100 * copied:.0f} % of copy, needs {100 * row.least_share:.0f}")
    if peer < row.least_ratio * (1 - PARITY) * ours:
        missed.append(f"{peer / ours:.2f} x torch, needs {row.least_ratio:g}")
    others = {name: times.get(name) for name in row.others}
    amount = (row.flops, "TFLOP/s") if ceilings.computing(row) > nbytes / ceilings.copy else (nbytes, "GB/s")
    return Result(
        *(row.name, ours, peer, abs(first - again) / min(first, again), others, *amount),
        *(least / ours, how, "; ".join(missed)),
    )


NODES, NODE_SECONDS = 100, 1.5e-6


def measure_nodes(clock: Clock, ceilings: Ceilings) -> Result:
    """Replays of the package's own graph of tiny calls, each of which needs the one before."""
    x, y = (torch.ones(1024, device=clock.device) for _ in range(2))
    small = torch.full_like(x, 2.0**-30)
    with ip.Graph() as graph:
        for _ in range(NODES // 2):
            ip.add_(y, x, small)
            ip.add_(x, y, small)

    def peer() -> None:
        for _ in range(NODES // 2):
            torch.add(x, small, out=y)
            torch.add(y, small, out=x)

    with no_collection():
        clock.warm_up([graph.run, peer])
        first, torch_s, second = take_turns(clock, [graph.run, clock.prepare([peer], 1), graph.run])
    ours = (first + second) / 2 / NODES
    missed = "" if ours <= NODE_SECONDS else f"{ours * 1e6:.2f} us a node, needs {NODE_SECONDS * 1e6}"
    noise, share = abs(first - second) / min(first, second), ceilings.node / ours
    name = f"graph of {NODES} add F32 1024, a node"
    nbytes = traffic((x, y, small))
    return Result(name, ours, torch_s / NODES, noise, {}, nbytes, "GB/s", share, "", missed)


# ---- what is printed ---------------------------------------------------------------------------------------

TITLES = (
    "row",
    "ours, us",
    "torch, us",
    "torch/ours",
    "noise",
    "rate",
    "of ceiling",
    "others, us",
    "target",
    "how",
)


def _us(seconds: float | None) -> str:
    return "failed" if seconds is None else f"{seconds * 1e6:.2f}"


def cells(result: Result) -> tuple[str, ...]:
    return (
        result.name,
        f"{result.seconds * 1e6:.2f}",
        f"{result.peer * 1e6:.2f}",
        f"{result.peer / result.seconds:.2f}",
        f"{100 * result.noise:.1f} %",
        result.rate,
        f"{100 * result.share:.0f} %",
        ", ".join(f"{name} {_us(seconds)}" for name, seconds in result.others.items()) or "-",
        f"MISSED: {result.missed}" if result.missed else "met",
        result.how or "-",
    )


def heading(clock: Clock, ceilings: Ceilings) -> list[str]:
    rates = ", ".join(f"{name} {rate / 1e12:.3g}" for name, rate in ceilings.flops.items())
    return [
        f"{clock.name}, second-level cache {clock.cache / 2**20:.3g} MiB; torch {torch.__version__}, "
        f"infiniop_py {ip.__version__}",
        f"ceilings of this run, by torch: copy {ceilings.copy / 1e9:.4g} GB/s (read and written), "
        f"products of 8192x8192x8192 in TFLOP/s: {rates}; a node of one element in a graph "
        f"{ceilings.node * 1e6:.2f} us",
    ]


def aligned(rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(cells, widths)).rstrip() for cells in rows
    )


def markdown(head: Sequence[str], rows: Sequence[tuple[str, ...]], notes: Sequence[str]) -> str:
    table = [TITLES, ("---",) * len(TITLES), *rows]
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |" for cells in table]
    return "\n".join([*(f"- {line}" for line in (*head, *notes)), "", *lines, ""])


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--device", choices=("cuda", "cpu"), default="cuda")
    add("--quick", action="store_true", help="tiny operands")
    add("--only", metavar="PATTERN", default="", help="rows whose names contain it; * stands for anything")
    add("--seconds", type=float, default=420.0, help="after which the rows that are left are left out")
    add("--row-seconds", type=float, default=3.0, metavar="N", help="for the replays of a row")
    add("--no-others", action="store_true", help="without contenders but torch")
    add("--json", type=Path, metavar="FILE")
    add("--markdown", type=Path, metavar="FILE")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parsed(arguments)
    if options.device == "cuda":
        if not torch.cuda.is_available():
            print("tests/gpu/perf.py: torch finds no CUDA device", file=sys.stderr)
            return 2
        try:
            ip.set_device("nvidia")
        except ip.DeviceError as error:
            print(f"tests/gpu/perf.py: {error}", file=sys.stderr)
            return 2
    clock: Clock = (Cuda if options.device == "cuda" else Plain)(options.row_seconds)
    end = perf_counter() + options.seconds
    torch.manual_seed(20240229)
    gc.freeze()
    ceilings = measure_ceilings(clock, options.quick)
    head = heading(clock, ceilings)
    print(*head, "", sep="\n")
    table = Table(clock.device, options.quick, not options.no_others)
    measures: list[tuple[str, Callable[[], Result]]] = [
        ("graph of nodes", partial(measure_nodes, clock, ceilings)),
        *((row.name, partial(measure, clock, row, ceilings)) for row in table.rows()),
    ]
    results, failures, late = [], [], []
    for name, take in measures:
        if not fnmatchcase(name, f"*{options.only}*"):
            continue
        if perf_counter() > end:
            late.append(name)
            continue
        try:
            results.append(take())
            print(*cells(results[-1]), sep="  ", flush=True)
        except Exception as error:  # the other rows are wanted all the same
            failures.append(f"{name}: {type(error).__name__}: {' '.join(str(error).split())[:300]}")
            print(f"FAILED {failures[-1]}", flush=True)
        torch._dynamo.reset()  # each row of its own is compiled for its shape
        clock.forget()
    notes = [f"FAILED: {failure}" for failure in failures]
    if late:
        notes.append(f"left out for want of time, {len(late)} rows: {', '.join(late)}")
    missed = [result for result in results if result.missed]
    notes.append(f"{len(results)} rows, targets met in {len(results) - len(missed)}, missed in {len(missed)}")
    rows = [cells(result) for result in results]
    print("", aligned([TITLES, *rows]), "", *notes, sep="\n")
    if options.markdown is not None:
        options.markdown.write_text(markdown(head, rows, notes), encoding="utf-8")
    if options.json is not None:
        said = {
            "card": clock.name,
            "torch": torch.__version__,
            "infiniop_py": ip.__version__,
            "ceilings": ceilings._asdict(),
            "rows": [result._asdict() for result in results],
            "failures": failures,
            "late": late,
        }
        options.json.write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
