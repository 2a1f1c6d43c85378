"""``python -m infiniop_py bench overhead``: what a call costs around a kernel that has next to nothing to do.

Eight F32 elements, or matrices of 4 x 4, one thread. All rows take turns in rounds of a few milliseconds
each; the table has medians, their spread (interquartile range / median), and the ratio to one peer's call. A
Python loop's own cost is in all rows alike.

With --torch the operators of infiniop_py.torch, each next to the operator of torch's own that it stands for.
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from statistics import median, quantiles
from timeit import Timer
from typing import Any

import numpy as np

from .. import add, add_, gemm, gemm_, mul_, num_threads
from ..graph import Graph
from ..ops import Add
from ..tensor import Tensor
from .machine import facts
from .options import as_times
from .report import Progress

_PEER = "torch.add(out=)"
_ROUNDS, _LEAST_ROUNDS = 31, 3
_SECONDS = 3e-3  # of one row in one round
_LAYOUTS = 64  # of new calls


@dataclass
class Row:
    """A rung of the ladder: a statement that counts as `calls` calls; `before` runs before each, untimed."""

    name: str
    statement: str
    calls: int = 1
    before: Callable[[], object] | None = None
    peer: str | None = None  # the row that it is compared with, if not the one for all

    def timer(self, names: dict[str, Any]) -> Callable[[int], float]:
        """The time of one call, from a number of repetitions. The statement is compiled, as a user's is."""
        timer = Timer(self.statement, globals=names).timeit

        def seconds(count: int) -> float:
            if self.before is None:
                return timer(count) / count / self.calls
            total = 0.0
            for _ in range(count):
                self.before()
                total += timer(1)
            return total / count / self.calls

        return seconds


def _ladder() -> tuple[list[Row], dict[str, Any]]:
    """The rows, and the names in their statements."""
    x, y, z = (np.ones(8, "f4") for _ in range(3))
    a, b, c = (np.ones((4, 4), "f4") for _ in range(3))
    tensors = [Tensor.from_numpy(array) for array in (x, y, z, a, b, c)]
    with Graph() as graph:
        for _ in range(100):
            add_(tensors[2], tensors[0], tensors[1])
    names: dict[str, Any] = {
        "np": np, "x": x, "y": y, "z": z, "a": a, "b": b, "c": c,
        **dict(zip(("X", "Y", "Z", "A", "B", "C"), tensors)),
        "add": add, "add_": add_, "mul_": mul_, "gemm": gemm, "gemm_": gemm_,
        "add_plan": add.plan(tensors[2], tensors[0], tensors[1]),
        "gemm_plan": gemm.plan(tensors[5], tensors[3], tensors[4]),
        "replay": graph.run,
        "many": [Tensor.empty(8 + i) for i in range(_LAYOUTS)],
    }  # fmt: skip
    rows = [Row("np.add(out=)", "np.add(x, y, out=z)"), Row("np.matmul(out=)", "np.matmul(a, b, out=c)")]
    if find_spec("torch") is not None:
        torch: Any = import_module("torch")
        torch.set_num_threads(1)
        names["torch"] = torch
        names |= {f"t{name}": torch.from_numpy(names[name]) for name in "xyzabc"}
        rows += [
            Row(_PEER, "torch.add(tx, ty, out=tz)"),
            Row("torch.mm(out=)", "torch.mm(ta, tb, out=tc)"),
            Row("add_, torch tensors", "add_(tz, tx, ty)"),
        ]
    return [
        *rows,
        Row("add_, Tensors", "add_(Z, X, Y)"),
        Row("add_, NumPy arrays", "add_(z, x, y)"),
        Row("add, Tensors, a new result", "add(X, Y)"),
        Row("gemm_, Tensors", "gemm_(C, A, B)"),
        Row("gemm_, NumPy arrays", "gemm_(c, a, b)"),
        Row("gemm(out=), NumPy arrays, b transposed", "gemm(a, b.T, out=c)"),
        Row("gemm, NumPy arrays, a new result", "gemm(a, b)"),
        Row("add.plan(...)()", "add_plan()"),
        Row("gemm.plan(...)()", "gemm_plan()"),
        Row("gemm.plan(...)(alpha, beta)", "gemm_plan(2.0, 0.5)"),
        Row("graph of 100 add_, each", "replay()", 100),
        Row(f"mul_, Tensors of {_LAYOUTS} layouts in turn", "for t in many: mul_(t, t, t)", _LAYOUTS),
        Row(
            "add_, Tensors, new layouts (cache misses)",
            "for t in many: add_(t, t, t)",
            _LAYOUTS,
            Add.cache().clear,
        ),
    ], names


#: What is done, by torch and by infiniop_py.torch.
_IN_TORCH = (
    ("add, 8 elements", "torch.add(x, y)", "add(x, y)"),
    ("add, 8 elements, through torch.ops", "aten_add(x, y)", "add(x, y)"),
    ("add, written", "torch.add(x, y, out=z)", "add_(z, x, y)"),
    ("mul, recorded", "torch.mul(x, w)", "mul(x, w)"),
    ("gemm, 4 x 4", "torch.mm(a, b)", "gemm(a, b)"),
    ("gemm, 4 x 4, through torch.ops", "aten_mm(a, b)", "gemm(a, b)"),
    ("gemm, 4 x 4, with an addend", "torch.addmm(c, a, b)", "gemm(a, b, 1.0, 1.0, c)"),
    ("gemm, 4 x 4, recorded", "torch.mm(a, p)", "gemm(a, p)"),
    ("gemm, 4 x 4, and its derivatives", "torch.mm(a, p).backward(c)", "gemm(a, p).backward(c)"),
    ("gemm, 32 x 32", "torch.mm(d, e)", "gemm(d, e)"),
    ("rearrange, 4 x 4", "a.mT.contiguous()", "rearrange(a.mT)"),
    ("add_rms_norm, 4 x 4", "(rms_norm(s := a + b, (4,), v), s)", "add_rms_norm(a, b, v)"),
    ("Linear, 4 x 4, recorded", "their_linear(a)", "our_linear(a)"),
)  # fmt: skip


def _torch_ladder() -> tuple[list[Row], dict[str, Any]]:
    torch: Any = import_module("torch")
    ours: Any = import_module("infiniop_py.torch")
    torch.set_num_threads(1)
    x, a, d = torch.ones(8), torch.ones(4, 4), torch.ones(32, 32)
    names: dict[str, Any] = {
        "torch": torch, "x": x, "y": x.clone(), "z": x.clone(), "w": x.clone().requires_grad_(),
        "a": a, "b": a.clone(), "c": a.clone(), "p": a.clone().requires_grad_(), "v": a[0].clone(),
        "d": d, "e": d.clone(),
        "rms_norm": torch.nn.functional.rms_norm,
        "their_linear": torch.nn.Linear(4, 4), "our_linear": ours.Linear(4, 4),
        "aten_add": torch.ops.aten.add.Tensor, "aten_mm": torch.ops.aten.mm.default,
        **{name: getattr(torch.ops.infiniop, name).default
           for name in ("add", "add_", "mul", "gemm", "rearrange", "add_rms_norm")},
    }  # fmt: skip
    names["our_linear"].load_state_dict(names["their_linear"].state_dict())
    rows = []
    for name, theirs, own in _IN_TORCH:
        rows += [Row(f"{name}: torch", theirs, peer=f"{name}: torch"), Row(name, own, peer=f"{name}: torch")]
    return rows, names


def main(argv: Sequence[str]) -> int:
    """Print the ladder; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m infiniop_py bench overhead",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--rounds",
        type=as_times,
        default=_ROUNDS,
        help=f"how often each row has its turn, {_LEAST_ROUNDS} or more (default {_ROUNDS})",
    )
    parser.add_argument("--torch", action="store_true", help="the operators of infiniop_py.torch")
    options = parser.parse_args(argv)
    if options.torch and find_spec("torch") is None:
        print("infiniop_py: torch is not installed", file=sys.stderr)
        return 1
    rounds = max(options.rounds, _LEAST_ROUNDS)
    with num_threads(1):
        rows, names = _torch_ladder() if options.torch else _ladder()
        timers = [row.timer(names) for row in rows]
        counts = []
        for row, seconds in zip(rows, timers):
            seconds(3)
            counts.append(max(int(_SECONDS / (seconds(10) * row.calls)), 1))
        samples: list[list[float]] = [[] for _ in rows]
        progress = Progress(rounds)
        collecting = gc.isenabled()
        gc.disable()
        try:
            for i in range(rounds):
                progress.begin(f"round {i + 1}")
                for seconds, count, seen in zip(timers, counts, samples):
                    seen.append(seconds(count))
                if sys.stderr.isatty():
                    progress.end("")
        finally:
            if collecting:
                gc.enable()
        progress.close()
    medians = [median(seen) for seen in samples]
    at = {row.name: i for i, row in enumerate(rows)}
    peer = at.get(_PEER, 0)
    for name, value in facts().items():
        print(f"{name}: {value}")
    print(f"\n{'call':45} {'ns':>7} {'spread':>7}  / {'torch' if options.torch else rows[peer].name}")
    for row, seen, middle in zip(rows, samples, medians):
        low, _, high = quantiles(seen, n=4)
        ratio = middle / medians[at[row.peer] if row.peer else peer]
        print(f"{row.name:45} {middle * 1e9:7.0f} {(high - low) / middle:7.1%}  {ratio:.2f}")
    return 0
