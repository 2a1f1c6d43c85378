"""``python -m infiniop_py bench graph``: programs run eagerly, recorded, recorded and fused, and by torch.

Each program is written once and runs with the operators of either library, on the same memory and with the
same number of threads; eager results are new arrays, as a user's are. All ways to run it take turns, see
`bench`; before that their results are compared: those of this library bit for bit, torch's within what
rounding in another order explains. Times are medians in microseconds; in parentheses, how many times as long
as the fused graph. The first call of torch.compile, which makes the code, is not timed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from .. import add, add_rms_norm, gemm, mul, rearrange
from .._native import ffi, pointer
from ..cpu import get_num_threads, num_threads
from ..dtypes import DType
from ..graph import Graph
from ..tensor import Tensor
from .machine import facts
from .memory import encode
from .options import as_seconds, as_threads
from .peers import Peer, Torch, TorchCompile, available
from .report import Progress, number
from .rows import EPSILON
from .timing import Contender, Timing, take_turns

Array: TypeAlias = "np.ndarray[Any, Any]"

BUDGET = 2.0  # seconds for one row
EAGER, GRAPH, FUSED = "eager", "graph", "fused"
PEERS = (Torch.name, TorchCompile.name)
#: The largest ||ours - torch|| / ||torch||.
TOLERANCE = {DType.F32: 1e-4, DType.BF16: 5e-2}
_UNSTEADY = 0.1  # spread from which a time is marked


# ---- the programs ------------------------------------------------------------------------------------------


class Ops(NamedTuple):
    """The operators of one library."""

    add: Callable[[Any, Any], Any]
    mul: Callable[[Any, Any], Any]
    gemm: Callable[[Any, Any], Any]
    add_rms_norm: Callable[[Any, Any, Any], tuple[Any, Any]]
    rearrange: Callable[[Any], Any]


OURS = Ops(add, mul, gemm, lambda a, b, weight: add_rms_norm(a, b, weight, EPSILON), rearrange)


def torch_ops(torch: Any) -> Ops:
    rms_norm = torch.nn.functional.rms_norm

    def torch_add_rms_norm(a: Any, b: Any, weight: Any) -> tuple[Any, Any]:
        residual = a + b
        return rms_norm(residual, weight.shape, weight, EPSILON), residual

    return Ops(torch.add, torch.mul, torch.matmul, torch_add_rms_norm, lambda x: x.contiguous())


#: operators, inputs -> result
Program: TypeAlias = Callable[..., Any]


def adds(ops: Ops, x: Any, y: Any) -> Any:
    """A hundred operators that have next to nothing to do."""
    for _ in range(100):
        x = ops.add(x, y)
    return x


def decoder(ops: Ops, x: Any, w_norm: Any, *weights: Any) -> Any:
    """Layers of a decoder, seven weights each; there is no operator for softmax and activation."""
    tokens, width = x.shape
    heads = width // HEAD_DIM

    def split(y: Any, w: Any) -> Any:
        return ops.rearrange(ops.gemm(y, w).reshape(tokens, heads, HEAD_DIM).permute(1, 0, 2))

    delta, residual = x, x
    for i in range(0, len(weights), 7):
        w_q, w_k, w_v, w_out, w_gate, w_up, w_down = weights[i : i + 7]
        y, residual = ops.add_rms_norm(residual, delta, w_norm)
        scores = ops.gemm(split(y, w_q), split(y, w_k).permute(0, 2, 1))
        mixed = ops.gemm(scores, split(y, w_v))
        merged = ops.rearrange(mixed.permute(1, 0, 2)).reshape(tokens, width)
        y, residual = ops.add_rms_norm(residual, ops.gemm(merged, w_out), w_norm)
        delta = ops.gemm(ops.mul(ops.gemm(y, w_gate), ops.gemm(y, w_up)), w_down)
    return ops.add(residual, delta)


def mlp(ops: Ops, x: Any, *weights: Any) -> Any:
    """Gated layers with a bias and a residual: four weights each."""
    for i in range(0, len(weights), 4):
        w_gate, bias, w_up, w_down = weights[i : i + 4]
        h = ops.mul(ops.add(ops.gemm(x, w_gate), bias), ops.gemm(x, w_up))
        x = ops.add(ops.gemm(h, w_down), x)
    return x


HEAD_DIM = 64


@dataclass(frozen=True)
class Row:
    """A program and the shapes of its inputs."""

    name: str
    program: Program
    dtype: DType
    shapes: tuple[tuple[int, ...], ...]

    def inputs(self) -> list[Tensor]:
        """Random numbers; matrices scaled so that products are about as large as what they are made of."""
        made = []
        for seed, shape in enumerate(self.shapes):
            scale = shape[0] ** -0.5 if seed and len(shape) == 2 else 1.0
            values = np.random.default_rng(seed).standard_normal(shape)
            tensor = Tensor.empty(shape, self.dtype)
            _bits(tensor)[...] = encode(values * scale, self.dtype)
            made.append(tensor)
        return made


def _bits(tensor: Tensor) -> Array:
    """The memory of a row-major tensor as unsigned integers, so that no package is needed for BF16."""
    raw = ffi.buffer(pointer(tensor.data_ptr), tensor.nbytes)
    return np.frombuffer(raw, f"u{tensor.dtype.itemsize}").reshape(tensor.shape)


def _values(tensor: Tensor) -> Array:
    bits = _bits(tensor)
    if tensor.dtype is DType.BF16:
        return (bits.astype(np.uint32) << 16).view(np.float32)
    return bits.view(tensor.dtype.numpy)


def table(width: int = 256, layers: int = 4) -> list[Row]:
    """All rows."""
    rows = [Row("100 adds of 8, F32", adds, DType.F32, ((8,), (8,)))]
    square, wide, bias = (width, width), (width, 4 * width), (4 * width,)
    for dtype in (DType.F32, DType.BF16):
        for tokens in (16, 128):
            shapes = ((tokens, width), (width,), *(*[square] * 4, wide, wide, wide[::-1]) * layers)
            rows.append(Row(f"decoder, {layers} layers, {tokens} tokens, {dtype}", decoder, dtype, shapes))
    for dtype in (DType.F32, DType.BF16):
        for tokens in (16, 128):
            shapes = ((tokens, width), *(wide, bias, wide, wide[::-1]) * layers)
            rows.append(Row(f"MLP, {layers} layers, {tokens} tokens, {dtype}", mlp, dtype, shapes))
    return rows


# ---- the measurement ---------------------------------------------------------------------------------------


class Disagreement(Exception):
    """Two ways to run a program have different results."""


@dataclass
class Result:
    """One row, measured."""

    row: Row
    calls: tuple[int, int]  # as recorded, after fusion
    arena: int
    naive: int
    timings: dict[str, Timing] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)  # of peers, and why


def _no_grad(torch: Any, run: Callable[[], Any]) -> Callable[[], Any]:
    def call() -> Any:
        with torch.inference_mode():
            return run()

    return call


def _peer_call(peer: Peer, row: Row, inputs: Sequence[Tensor]) -> Callable[[], Any]:
    torch: Any = import_module("torch")
    program = partial(row.program, torch_ops(torch))
    if isinstance(peer, TorchCompile):
        torch.compiler.reset()  # after too many shapes of one function no more code is made
        program = torch.compile(program, dynamic=False)
    return _no_grad(torch, partial(program, *[torch.from_dlpack(one) for one in inputs]))


def measure(row: Row, peers: Sequence[Peer], threads: int, budget: float) -> Result:
    """Measure one row for about `budget` seconds. Disagreement if results differ."""
    for peer in peers:
        peer.set_threads(threads)
    with num_threads(threads):
        inputs = row.inputs()
        eager = partial(row.program, OURS, *inputs)
        wanted = eager()
        graphs = {}
        for name, fuse in ((GRAPH, "none"), (FUSED, "exact")):
            with Graph(fuse=fuse) as graph:
                result = eager()
            graph.run()
            if not np.array_equal(_bits(result), _bits(wanted)):
                raise Disagreement(f"{row.name}: {name} and {EAGER} differ")
            graphs[name] = graph, result
        contenders = [
            Contender(EAGER, [eager]),
            *(Contender(name, [graph.run], keep=result) for name, (graph, result) in graphs.items()),
        ]
        fused, _ = graphs[FUSED]
        report = fused.memory_report()
        calls = len(fused), len(fused._program.nodes)
        done = Result(row, calls, report.arena, report.naive)
        for peer in peers:
            try:
                call = _peer_call(peer, row, inputs)
                got = call().float().numpy()
            except Exception as error:  # of a library that is not ours: any
                first = str(error).strip().partition("\n")[0]
                done.failures[peer.name] = f"{type(error).__name__}: {first}"
                continue
            values = _values(wanted)
            distance = float(np.linalg.norm(got - values) / np.linalg.norm(values))
            if not distance <= TOLERANCE[row.dtype]:
                raise Disagreement(f"{row.name}: {peer.name} is {distance:.1e} away")
            contenders.append(Contender(peer.name, [call]))
        done.timings, failures = take_turns(contenders, budget)
        done.failures.update(failures)
    return done


# ---- the table ---------------------------------------------------------------------------------------------


def text(results: Sequence[Result], peers: Sequence[str]) -> str:
    """Aligned columns."""
    columns = (EAGER, GRAPH, FUSED, *peers)
    lines = [["program", "calls", *columns, "arena / naive, bytes"]]
    for result in results:
        before, after = result.calls
        lines.append(
            [
                result.row.name,
                f"{before} -> {after}",
                *(_cell(result, name) for name in columns),
                f"{result.arena:,} / {result.naive:,}",
            ]
        )
    widths = [max(map(len, column)) for column in zip(*lines)]
    shown = [
        "  ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(cells, widths))
        )
        for cells in lines
    ]
    shown += ["", f"Microseconds; in parentheses: time / that of {FUSED}."]
    if any(_unsteady(timing) for result in results for timing in result.timings.values()):
        shown.append(f"~: the interquartile range is more than {100 * _UNSTEADY:.0f} % of the median.")
    shown += [
        f"{name} failed in {result.row.name}: {why}"
        for result in results
        for name, why in result.failures.items()
    ]
    return "\n".join(shown)


def _unsteady(timing: Timing) -> bool:
    return timing.spread is not None and timing.spread > _UNSTEADY


def _cell(result: Result, name: str) -> str:
    if name not in result.timings:
        return "failed" if name in result.failures else "-"
    timing = result.timings[name]
    ratio = number(timing.seconds / result.timings[FUSED].seconds)
    return f"{'~' * _unsteady(timing)}{timing.seconds * 1e6:.1f} ({ratio})"


def main(argv: Sequence[str]) -> int:
    """Print the table; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m infiniop_py bench graph",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    option = parser.add_argument
    option("--list", action="store_true", help="list the rows and measure nothing")
    option("--only", default="", metavar="TEXT", help="rows whose names have this in them")
    option("--threads", type=as_threads, default=None, help="default: the process's")
    option(
        "--budget", type=as_seconds, default=BUDGET, metavar="SECONDS", help=f"for a row (default {BUDGET:g})"
    )
    option("--width", type=int, default=256, help=f"of the layers, a multiple of {HEAD_DIM} (default 256)")
    option("--layers", type=int, default=4, help="default 4")
    option(
        "--compare", default=",".join(PEERS), metavar="PEERS", help=f"of {', '.join(PEERS)} (default: both)"
    )
    options = parser.parse_args(argv)
    if options.width < 1 or options.width % HEAD_DIM or options.layers < 1:
        parser.error(f"--width is a multiple of {HEAD_DIM}, --layers is more than 0")
    threads = options.threads or get_num_threads()
    wanted = [name for name in options.compare.split(",") if name]
    if unknown := set(wanted) - set(PEERS):
        parser.error(f"{', '.join(sorted(unknown))}: there are {', '.join(PEERS)}")
    rows = [row for row in table(options.width, options.layers) if options.only in row.name]
    if not rows:
        parser.error(f"no row has {options.only!r} in its name")
    if options.list:
        print("\n".join(row.name for row in rows))
        return 0
    peers, left_out = available(wanted)
    results: list[Result] = []
    progress = Progress(len(rows))
    status = 0
    for row in rows:
        progress.begin(row.name)
        try:
            results.append(measure(row, peers, threads, options.budget))
        except Disagreement as error:
            left_out.append(f"{error}: not timed")
            status = 1
        progress.end(row.name)
    progress.close()
    for name, value in facts().items():
        print(f"{name}: {value}")
    print(f"threads: {threads}")
    for peer in peers:
        print(f"{peer.name}: {peer.version}")
    print()
    print(text(results, [peer.name for peer in peers]))
    for reason in left_out:
        print(f"{reason}.")
    return status
