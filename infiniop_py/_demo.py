"""``python -m infiniop_py demo``: the residual and gated-MLP path of one decoder layer, checked and timed.

The layer, in shapes of small and of 7B-parameter models, on one token and on 64 (rows are tokens)::

    residual, y = add_rms_norm(attention, stream)         (tokens, hidden)
    gate, up    = y @ w_gate.T, y @ w_up.T                (tokens, intermediate)
    h           = gate * up                               (tokens, intermediate)
    down        = h @ w_down.T                            (tokens, hidden)
    out         = residual + down                         (tokens, hidden)
    heads       = out, split for the next attention       (heads, tokens, head_dim)

It runs in F32, F16 and BF16: call by call ("eager"), as a recorded graph of the same calls ("graph"), and as
a graph that is asked for the heads alone ("fused"), so that all other tensors exist in it alone and calls
are joined. Every tensor is checked against float64; see `check_layer` for the error bound. Exit status 1 if
anything is outside its bound, or if a graph has other bits than the eager calls.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from statistics import median
from time import perf_counter
from typing import Any, TypeAlias

import numpy as np

from . import DType, DTypeError, Graph, add, add_rms_norm, cpu_isa, gemm, get_num_threads, mul, rearrange

Array: TypeAlias = "np.ndarray[Any, Any]"

#           hidden, intermediate
SMALL = (1024, 2816)
LLAMA_7B = (4096, 11008)
TOKENS = (1, 64)
DTYPES = (DType.F32, DType.F16, DType.BF16)
HEAD_DIM = 128
EPSILON = 1e-5

#: Unit roundoff (half the distance from 1 to the next number) and smallest positive number of each type.
FORMATS = {
    "float32": (2.0**-24, 2.0**-149),
    "float16": (2.0**-11, 2.0**-24),
    "bfloat16": (2.0**-8, 2.0**-133),
}


# ---- the layer ---------------------------------------------------------------------------------------------


@dataclass
class Layer:
    """Inputs and weights, all of one dtype. Matrices are (outputs, inputs), as linear layers keep them."""

    attention: Array  # (tokens, hidden)
    stream: Array  # (tokens, hidden)
    w_norm: Array  # (hidden,)
    w_gate: Array  # (intermediate, hidden)
    w_up: Array  # (intermediate, hidden)
    w_down: Array  # (hidden, intermediate)


class Results:
    """The tensors of one run of a layer, in the order they are computed; the run itself allocates none.

    Zeros at first, so that what is not computed is seen.
    """

    def __init__(self, layer: Layer) -> None:
        (tokens, hidden), intermediate, dtype = layer.stream.shape, len(layer.w_gate), layer.stream.dtype
        self.residual = np.zeros((tokens, hidden), dtype)
        self.y = np.zeros((tokens, hidden), dtype)
        self.gate = np.zeros((tokens, intermediate), dtype)
        self.up = np.zeros((tokens, intermediate), dtype)
        self.h = np.zeros((tokens, intermediate), dtype)
        self.down = np.zeros((tokens, hidden), dtype)
        self.out = np.zeros((tokens, hidden), dtype)
        self.heads = np.zeros((hidden // HEAD_DIM, tokens, HEAD_DIM), dtype)


def split_heads(x: Array) -> Array:
    """(tokens, hidden) seen as (heads, tokens, head_dim), without a copy."""
    heads: Array = np.swapaxes(x.reshape(len(x), -1, HEAD_DIM), 0, 1)
    return heads


def run_layer(layer: Layer, r: Results) -> None:
    """The layer in this library's operators. The transposed weights and the split heads are strided views."""
    add_rms_norm(layer.attention, layer.stream, layer.w_norm, EPSILON, out=r.y, residual_out=r.residual)
    gemm(r.y, layer.w_gate.T, out=r.gate)
    gemm(r.y, layer.w_up.T, out=r.up)
    mul(r.gate, r.up, out=r.h)
    gemm(r.h, layer.w_down.T, out=r.down)
    add(r.residual, r.down, out=r.out)
    rearrange(split_heads(r.out), out=r.heads)


def heads_of(layer: Layer) -> Array:
    """The same for the last result alone."""
    y, residual = add_rms_norm(layer.attention, layer.stream, layer.w_norm, EPSILON)
    h = mul(gemm(y, layer.w_gate.T), gemm(y, layer.w_up.T))
    heads: Array = rearrange(split_heads(add(residual, gemm(h, layer.w_down.T))))
    return heads


def numpy_layer(layer: Layer) -> Array:
    """The same in NumPy, for its time."""
    residual = layer.attention + layer.stream
    mean_square = np.mean(residual * residual, axis=-1, keepdims=True)
    y = residual / np.sqrt(mean_square + np.float32(EPSILON)) * layer.w_norm
    h = (y @ layer.w_gate.T) * (y @ layer.w_up.T)
    return np.ascontiguousarray(split_heads(residual + h @ layer.w_down.T))


def torch_layer(torch: Any, layer: Layer) -> Callable[[], Any]:
    """The same in torch, on the same memory and in the same dtype, for its time."""

    def shared(x: Array) -> Any:  # through integers, because torch cannot read BF16 from NumPy
        return torch.from_numpy(x.view(f"i{x.itemsize}")).view(getattr(torch, x.dtype.name))

    attention, stream, w_norm, w_gate, w_up, w_down = (shared(getattr(layer, f.name)) for f in fields(Layer))

    def run() -> Any:
        residual = attention + stream
        x = residual.float()
        scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + EPSILON)
        y = (x * scale).to(residual.dtype) * w_norm
        h = (y @ w_gate.T) * (y @ w_up.T)
        out = residual + h @ w_down.T
        return out.reshape(len(out), -1, HEAD_DIM).transpose(0, 1).contiguous()

    return run


# ---- the check ---------------------------------------------------------------------------------------------


@dataclass
class Check:
    """How far the tensors of one run are from what they should be."""

    ratios: dict[str, float]  # of each tensor: the largest |error| / bound
    drift: float  # ||heads - exact|| / ||exact||, exact being `exact_layer` of the F32 layer

    @property
    def worst(self) -> float:
        return max(self.ratios.values())

    @property
    def ok(self) -> bool:
        return self.worst <= 1


# Wrong results may be anything, infinite and NaN too; they are reported, not warned of.
@np.errstate(invalid="ignore", over="ignore")
def check_layer(layer: Layer, r: Results, exact_heads: Array) -> Check:
    """Compare every tensor of a run with float64, computed from the tensors it was made of.

    The bounds. An operator computes in F32, unit roundoff v, and rounds once when it stores: fl(x) = x(1 + d)
    with |d| <= u, or at most half the smallest number away where x is so small. n roundings of factors of one
    term multiply it by something within 1 +- gamma_n, gamma_n = n*v / (1 - n*v), whatever the order of the
    operations (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1). F32's own underflow is
    far from these operands. If the value before storing is at most e away from the exact x, then

        |stored - x| <= e + u * (|x| + e) + smallest / 2

    where e is

        residual, h, out   0: one operation, correctly rounded.
        gate, up, down     gamma_K * (|a| @ |w|.T), K the length of a row of w: every product of the sum takes
                           part in at most K roundings, its own and those of K - 1 additions.
        y                  ((1 + gamma_{D+3}) * (1 + gamma_4) - 1) * |x|, D = hidden: the mean square plus
                           epsilon, a sum of positive terms, is at most D + 3 roundings away (D in the sum of
                           squares, 2 in the mean, 1 in the last addition), its inverse square root relatively
                           no farther; then come the roundings of root, division and two products.

    Heads are moved bits, without error or bound. The float64 reference is rounded as often as the result, in
    its own finer format: 2**-52 on top of u and v covers that.

    Why not one bound from the inputs to the end? Every gemm of the chain would multiply a relative bound by
    |a| @ |w|.T / |a @ w.T|, about sqrt(K) for weights of random signs. The storage roundings of BF16 taken
    through K = 4096 and 11008 give `down` a bound of many times `down`: a run that computes zeros would pass.
    From stored tensor to stored tensor the bounds are sharp, and with every step the chain is checked. What
    all its roundings add up to, those of inputs and weights included, is measured: `drift`.
    """
    u, smallest = FORMATS[layer.stream.dtype.name]
    u, v = u + 2.0**-52, 2.0**-24 + 2.0**-52

    def gamma(n: int) -> float:
        return n * v / (1 - n * v)

    def ratio(stored: Array, x: Array, e: Array | float = 0.0) -> float:
        return _worst_ratio(wide(stored) - x, e + u * (np.abs(x) + e) + smallest / 2)

    def gemm_ratio(stored: Array, a: Array, w: Array) -> float:
        a_t = wide(a).T
        bound_t = gamma(len(a_t)) * np.abs(a_t)
        parts = wide_rows(w)
        return max(ratio(stored.T[rows], part @ a_t, np.abs(part) @ bound_t) for rows, part in parts)

    norm_error = (1 + gamma(layer.w_norm.size + 3)) * (1 + gamma(4)) - 1
    y = rms_norm(wide(r.residual), layer.w_norm)
    ratios = {
        "residual": ratio(r.residual, wide(layer.attention) + wide(layer.stream)),
        "y": ratio(r.y, y, norm_error * np.abs(y)),
        "gate": gemm_ratio(r.gate, r.y, layer.w_gate),
        "up": gemm_ratio(r.up, r.y, layer.w_up),
        "h": ratio(r.h, wide(r.gate) * wide(r.up)),
        "down": gemm_ratio(r.down, r.h, layer.w_down),
        "out": ratio(r.out, wide(r.residual) + wide(r.down)),
        "heads": _worst_ratio(wide(r.heads) - wide(split_heads(r.out)), np.float64(0)),
    }
    drift = np.linalg.norm(wide(r.heads) - exact_heads) / np.linalg.norm(exact_heads)
    return Check(ratios, float(drift))


def exact_layer(layer: Layer) -> Array:
    """The heads that the layer gives in float64."""
    residual = wide(layer.attention) + wide(layer.stream)
    y = rms_norm(residual, layer.w_norm)
    h = wide_gemm(y, layer.w_gate) * wide_gemm(y, layer.w_up)
    return split_heads(residual + wide_gemm(h, layer.w_down))


def wide(x: Array) -> Array:
    return x.astype(np.float64, copy=False)


def rms_norm(x: Array, weight: Array) -> Array:
    """In float64, with the epsilon that the operator's F32 parameter holds."""
    mean_square = np.mean(x * x, axis=-1, keepdims=True)
    scale: Array = 1 / np.sqrt(mean_square + float(np.float32(EPSILON)))
    return x * scale * wide(weight)


def wide_rows(w: Array) -> Iterator[tuple[slice, Array]]:
    """The rows of a large matrix in float64, some at a time."""
    step = max(1, 2**22 // w.shape[1])
    for start in range(0, len(w), step):
        rows = slice(start, start + step)
        yield rows, wide(w[rows])


def wide_gemm(a: Array, w: Array) -> Array:
    """a @ w.T in float64."""
    product: Array = np.concatenate([w_rows @ wide(a).T for _, w_rows in wide_rows(w)]).T
    return product


def _worst_ratio(error: Array, bound: Array) -> float:
    """The largest |error| / bound; 0 / 0 is 0, and NaN is as wrong as anything can be."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.where(error == 0, 0, np.abs(error) / bound)
    return float(np.max(np.where(np.isnan(ratios), np.inf, ratios)))


def same_bits(one: Results, other: Results) -> bool:
    """Are all tensors of two runs equal, bit for bit?"""
    pairs = zip(vars(one).values(), vars(other).values())
    return all(np.array_equal(a.view(f"u{a.itemsize}"), b.view(f"u{b.itemsize}")) for a, b in pairs)


# ---- the measurement ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One layer to measure."""

    hidden: int
    intermediate: int
    tokens: int
    dtype: DType

    @property
    def operations(self) -> int:
        """Multiplications and additions of the three gemms."""
        return 2 * self.tokens * 3 * self.hidden * self.intermediate

    @property
    def weight_bytes(self) -> int:
        """Bytes of the three matrices."""
        return 3 * self.hidden * self.intermediate * self.dtype.itemsize


@dataclass
class Row:
    """One line of the table. Times are in seconds; None was not measured."""

    case: Case
    mode: str
    check: Check
    seconds: float
    numpy_seconds: float
    torch_seconds: float | None
    same_as_eager: bool = True

    @property
    def ok(self) -> bool:
        return self.check.ok and self.same_as_eager


def random_weights(rng: np.random.Generator, hidden: int, intermediate: int) -> dict[str, Array]:
    """Normally distributed F32 weights, scaled so that every tensor of the layer has values near 1."""

    def matrix(outputs: int, inputs: int) -> Array:
        w = rng.standard_normal((outputs, inputs), np.float32)
        w *= np.float32(inputs**-0.5)
        return w

    return {
        "w_norm": 1 + np.float32(0.1) * rng.standard_normal(hidden, np.float32),
        "w_gate": matrix(intermediate, hidden),
        "w_up": matrix(intermediate, hidden),
        "w_down": matrix(hidden, intermediate),
    }


def random_inputs(rng: np.random.Generator, tokens: int, hidden: int) -> dict[str, Array]:
    return {name: rng.standard_normal((tokens, hidden), np.float32) for name in ("attention", "stream")}


def converted(arrays: dict[str, Array], dtype: DType) -> dict[str, Array]:
    return {name: array.astype(dtype.numpy, copy=False) for name, array in arrays.items()}


def median_seconds(run: Callable[[], object], budget: float = 0.5) -> float:
    """Median time of a call: one to warm up, then as many as the budget holds, but between 1 and 20."""
    run()
    times: list[float] = []
    while not times or (len(times) < 20 and sum(times) < budget):
        start = perf_counter()
        run()
        times.append(perf_counter() - start)
    return median(times)


class TorchTimer:
    """Times torch where it is installed.

    Not every CPU has arithmetic for every type, and torch can then take minutes for what takes others a
    second: a case is left out if the smaller one before it was as slow.
    """

    def __init__(self) -> None:
        self._torch: Any = None
        self._seconds_per_operation: dict[tuple[int, DType], float] = {}
        if find_spec("torch") is None:
            return
        try:
            self._torch = import_module("torch")
        except (ImportError, OSError) as error:
            print(f"torch is installed, but importing it fails, so it is not timed: {error}")

    def seconds(self, case: Case, layer: Layer, limit: float = 1.5) -> float | None:
        if self._torch is None:
            return None
        key = (case.tokens, case.dtype)
        if self._seconds_per_operation.get(key, 0.0) * case.operations > limit:
            return None
        with self._torch.no_grad():
            result = median_seconds(torch_layer(self._torch, layer))
        self._seconds_per_operation[key] = result / case.operations
        return result


def measure(
    case: Case, layer: Layer, exact_heads: Array, numpy_seconds: float, torch_seconds: float | None
) -> Iterator[Row]:
    """Run, check and time a layer, eagerly and as a graph."""
    eager = Results(layer)
    run_layer(layer, eager)
    check = check_layer(layer, eager, exact_heads)

    replayed = Results(layer)
    with Graph() as graph:
        run_layer(layer, replayed)
    graph.run()
    same = same_bits(eager, replayed)
    replay_check = check if same else check_layer(layer, replayed, exact_heads)

    yield Row(
        case, "eager", check, median_seconds(lambda: run_layer(layer, eager)), numpy_seconds, torch_seconds
    )
    yield Row(case, "graph", replay_check, median_seconds(graph.run), numpy_seconds, torch_seconds, same)

    with Graph() as fused:
        heads = heads_of(layer)
    fused.run()
    same = heads.tobytes() == eager.heads.tobytes()
    yield Row(case, "fused", check, median_seconds(fused.run), numpy_seconds, torch_seconds, same)


# ---- what is shown -----------------------------------------------------------------------------------------


class Progress:
    """A bar on stderr if that is a terminal, else one line a step."""

    def __init__(self, total: int) -> None:
        self._done, self._total = 0, total

    def step(self, text: str) -> None:
        """Say what begins now; the step before it is done."""
        if sys.stderr.isatty():
            filled = 30 * self._done // self._total
            bar = "#" * filled + "." * (30 - filled)
            print(f"\r\033[K[{bar}] {text}", end="", file=sys.stderr, flush=True)
        else:
            print(f"[{self._done + 1}/{self._total}] {text}", file=sys.stderr, flush=True)
        self._done += 1

    def close(self) -> None:
        if sys.stderr.isatty():
            print("\r\033[K", end="", file=sys.stderr, flush=True)


TITLES = """\
        inter-                    error /                                          NumPy F32     torch
hidden mediate tokens dtype mode    bound   drift   time, ms          rate         time, ms  time, ms"""


def line(row: Row) -> str:
    """A row under TITLES."""
    case = row.case
    # One token uses every weight once, and reading them is the work; many tokens share what was read.
    if case.tokens == 1:
        rate, unit = case.weight_bytes / row.seconds / 1e9, "GB/s"
    else:
        rate, unit = case.operations / row.seconds / 1e9, "GFLOP/s"
    torch_time = f"{'-':>9}" if row.torch_seconds is None else f"{row.torch_seconds * 1e3:9.2f}"
    faults = "" if row.check.ok else "  OUTSIDE ITS BOUND"
    faults += "" if row.same_as_eager else "  NOT THE BITS OF EAGER"
    return (
        f"{case.hidden:6} {case.intermediate:7} {case.tokens:6} {case.dtype.name:5} {row.mode:5} "
        f"{row.check.worst:7.3f} {row.check.drift:7.1e} {row.seconds * 1e3:10.2f} {rate:9.1f} {unit:7} "
        f"{row.numpy_seconds * 1e3:13.2f} {torch_time}{faults}"
    )


def tensor_table(table: list[Row]) -> Iterator[str]:
    """The largest error / bound of each tensor in each dtype."""
    names = list(table[0].check.ratios)
    yield "dtype " + " ".join(f"{name:>8}" for name in names)
    for dtype in dict.fromkeys(row.case.dtype for row in table):
        checks = [row.check.ratios for row in table if row.case.dtype is dtype]
        yield f"{dtype.name:5} " + " ".join(
            f"{max(ratios[name] for ratios in checks):8.3f}" for name in names
        )


def available(dtypes: Sequence[DType]) -> list[DType]:
    """The types NumPy has here; says why one is left out."""
    found = []
    for dtype in dtypes:
        try:
            dtype.numpy  # noqa: B018
            found.append(dtype)
        except DTypeError as error:
            print(f"{dtype.name} is skipped: {error}")
    return found


def rows(
    shapes: Sequence[tuple[int, int]], dtypes: list[DType], seed: int, progress: Progress
) -> Iterator[Row]:
    """Measure all cases, a shape at a time: the weights of one are dropped before the next ones are made."""
    rng = np.random.default_rng(seed)
    torch_timer = TorchTimer()
    for hidden, intermediate in shapes:
        name = f"hidden {hidden}, intermediate {intermediate}"
        progress.step(f"{name}: random weights")
        weights = random_weights(rng, hidden, intermediate)
        inputs = {tokens: random_inputs(rng, tokens, hidden) for tokens in TOKENS}
        progress.step(f"{name}: NumPy in F32 and in float64")
        in_f32 = {tokens: Layer(**inputs[tokens], **weights) for tokens in TOKENS}
        numpy_seconds = {
            tokens: median_seconds(partial(numpy_layer, layer)) for tokens, layer in in_f32.items()
        }
        exact_heads = {tokens: exact_layer(layer) for tokens, layer in in_f32.items()}
        for dtype in dtypes:
            stored = converted(weights, dtype)
            for tokens in TOKENS:
                progress.step(f"{name}: {dtype.name}, tokens {tokens}")
                case = Case(hidden, intermediate, tokens, dtype)
                layer = Layer(**converted(inputs[tokens], dtype), **stored)
                torch_seconds = torch_timer.seconds(case, layer)
                yield from measure(case, layer, exact_heads[tokens], numpy_seconds[tokens], torch_seconds)


def main(argv: list[str]) -> int:
    """Run the demo; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m infiniop_py demo",
        description="A decoder layer's residual and MLP path, checked against float64, timed next to NumPy.",
    )
    parser.add_argument("--quick", action="store_true", help="the small layer only")
    parser.add_argument("--seed", type=int, default=0, help="of the random weights and inputs (default 0)")
    options = parser.parse_args(argv)
    if options.seed < 0:
        parser.error(f"--seed is {options.seed}, needs 0 or more")

    shapes = (SMALL,) if options.quick else (SMALL, LLAMA_7B)
    print(f"{get_num_threads()} CPU threads, instruction set {cpu_isa()}, seed {options.seed}")
    dtypes = available(DTYPES)
    progress = Progress(total=len(shapes) * (2 + len(dtypes) * len(TOKENS)))
    table = list(rows(shapes, dtypes, options.seed, progress))
    progress.close()

    print("", TITLES, *map(line, table), sep="\n")
    print(
        "\nTimes are medians. GFLOP/s are those of the three gemms, GB/s the bytes of their weights.\n"
        "drift: relative distance of the result from the layer in float64, weights before they are rounded.\n"
        "error / bound: of the worst element of any tensor, at most 1. The worst of each tensor:\n"
    )
    print(*tensor_table(table), sep="\n")
    wrong = sum(not row.ok for row in table)
    print(f"\nFAILED: {wrong} rows of {len(table)}" if wrong else f"\npassed: {len(table)} rows")
    return 1 if wrong else 0
