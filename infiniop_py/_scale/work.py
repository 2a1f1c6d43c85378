"""The operators of a decoder's layer on one device, and how long each takes.

An operator's time is what its multiplications take at one rate and its bytes at another: the longer of the
two where both go on at once, their sum where one waits for the other, and in between for an `overlap` between
1 and 0 (roofline: Williams, Waterman and Patterson, 2009: overlap 1). Each call costs a constant more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .models import Model


@dataclass(frozen=True)
class Rates:
    """What a device reaches: these are no peaks, but what good kernels get."""

    flops: float  # of products, per second
    mem: float  # bytes per second of memory, where products read their operands
    stream: float  # the same where elements are read and written
    overlap: float = 1.0
    call: float = 0.0  # seconds for each call


@dataclass(frozen=True)
class Work:
    """One call of an operator: what it computes and moves."""

    name: str
    kind: str  # gemm, attention or elementwise
    shape: str
    flops: float
    bytes: float

    def seconds(self, rates: Rates) -> float:
        computing = self.flops / rates.flops
        moving = self.bytes / (rates.stream if self.kind == "elementwise" else rates.mem)
        longer, shorter = max(computing, moving), min(computing, moving)
        return longer + (1 - rates.overlap) * shorter + rates.call

    def bound(self, rates: Rates) -> str:
        """What takes the longer part of its time."""
        moving = self.bytes / (rates.stream if self.kind == "elementwise" else rates.mem)
        parts = {"flops": self.flops / rates.flops, "memory": moving, "call": rates.call}
        return max(parts, key=lambda part: parts[part])


def gemm(name: str, m: int, k: int, n: int, itemsize: int) -> Work:
    return Work(name, "gemm", f"{m}x{k}x{n}", 2.0 * m * k * n, float(itemsize * (m * k + k * n + m * n)))


def add_rms_norm(rows: int, width: int, itemsize: int) -> Work:
    nbytes = float(itemsize * (4 * rows * width + width))
    return Work("add_rms_norm", "elementwise", f"{rows}x{width}", 5.0 * rows * width, nbytes)


def mul(name: str, rows: int, width: int, itemsize: int) -> Work:
    nbytes = float(itemsize * 3 * rows * width)
    return Work(name, "elementwise", f"{rows}x{width}", 1.0 * rows * width, nbytes)


@dataclass(frozen=True)
class Phase:
    """What is done at once: so many sequences, each `new` tokens further than the `past` ones before."""

    sequences: int
    new: int
    past: int

    @property
    def tokens(self) -> int:
        return self.sequences * self.new


def attention(phase: Phase, heads: int, kv_heads: int, head_dim: int, itemsize: int) -> Work:
    """Two products for each head, of a query with all keys up to its own, and with as many values. What lies
    between them stays on the chip and is not counted.
    """
    seen = phase.new * phase.past + phase.new * (phase.new + 1) // 2  # keys, of all queries of a sequence
    flops = 4.0 * phase.sequences * heads * head_dim * seen
    queries = 2 * phase.new * heads  # and results
    nbytes = float(
        itemsize * phase.sequences * head_dim * (queries + 2 * (phase.past + phase.new) * kv_heads)
    )
    shape = f"{phase.sequences}x{heads}x{phase.new}x{phase.past + phase.new}"
    return Work("attention", "attention", shape, flops, nbytes)


def layer(model: Model, phase: Phase, tp: int, itemsize: int) -> Sequence[Work]:
    """The calls of one layer on one of `tp` devices that share each matrix. After the second and the last
    product of the MLP their results are summed up over the devices.
    """
    t, h = phase.tokens, model.hidden
    heads, kv_heads, ffn = model.heads // tp, max(model.kv_heads // tp, 1), model.ffn // tp
    wide = heads * model.head_dim
    return [
        add_rms_norm(t, h, itemsize),
        gemm("queries, keys, values", t, h, (heads + 2 * kv_heads) * model.head_dim, itemsize),
        attention(phase, heads, kv_heads, model.head_dim, itemsize),
        gemm("attention out", t, wide, h, itemsize),
        add_rms_norm(t, h, itemsize),
        gemm("gate and up", t, h, 2 * ffn, itemsize),
        mul("gate * up", t, ffn, itemsize),
        gemm("down", t, ffn, h, itemsize),
    ]


def head(model: Model, phase: Phase, tp: int, itemsize: int) -> Sequence[Work]:
    """What comes after the last layer, for the last token of each sequence."""
    return [gemm("vocabulary", phase.sequences, model.hidden, model.vocab // tp, itemsize)]
