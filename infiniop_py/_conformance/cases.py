"""The one table of operator cases: what is run, on which data, in which memory layout.

A row is a `Case`; CASES holds them by name, and a name reruns its row: `pytest -k gemm-f16-9x17x33-a_T`, or,
on a plugin, `python -m infiniop_py conformance PLUGIN.so -k gemm-f16-9x17x33-a_T`. To cover an operator
better, add rows. To add an operator, add its line to OPERANDS, N_OUTPUTS, FILLS, CALLS and CHECKS, and rows.

Data is exact where it can be: small integers whose products and sums every accumulator represents, so that
the result has to be right to the last bit. Otherwise the bounds are the formulas of reference.py.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import ops
from . import reference
from .layouts import (
    INPUT_ONLY,
    LAYOUTS,
    OUTPUT_LAYOUTS,
    ROW_LAYOUTS,
    Array,
    Guarded,
    Shape,
    assert_same_words,
    bits,
)

# Of NumPy. Without the package ml_dtypes there is no "bf16".
DTYPES: dict[str, np.dtype[Any]] = {name: form.dtype for name, form in reference.FORMATS.items()}
DTYPES |= {
    "i8": np.dtype(np.int8),
    "i16": np.dtype(np.int16),
    "i32": np.dtype(np.int32),
    "i64": np.dtype(np.int64),
    "u8": np.dtype(np.uint8),
    "u16": np.dtype(np.uint16),
    "u32": np.dtype(np.uint32),
    "u64": np.dtype(np.uint64),
    "bool": np.dtype(np.bool_),
    "c64": np.dtype(np.complex64),
    "c128": np.dtype(np.complex128),
}
FLOATS = ("f16", "bf16", "f32", "f64")
INTEGERS = ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64")

# Operands in the order of the C function; the outputs come first.
OPERANDS = {
    "gemm": ("c", "a", "b"),
    "add": ("c", "a", "b"),
    "mul": ("c", "a", "b"),
    "add_rms_norm": ("y", "residual_out", "a", "b", "weight"),
    "rearrange": ("y", "x"),
    "gemm_add": ("y", "a", "b", "d"),
    "gemm_mul": ("y", "a", "b", "d"),
}
N_OUTPUTS = {"gemm": 1, "add": 1, "mul": 1, "add_rms_norm": 2, "rearrange": 1, "gemm_add": 1, "gemm_mul": 1}


@dataclass(frozen=True)
class Case:
    """One row: operands in the order of OPERANDS[op]."""

    op: str
    dtype: str
    shapes: tuple[Shape, ...]
    layouts: tuple[str, ...] = ()  # of each operand; "C" where not given
    data: str = ""  # a name in FILLS[op]; "" is its first
    alpha: float = 1.0
    beta: float = 0.0
    epsilon: float = 1e-5
    weight_dtype: str = ""  # "" is dtype
    alias: tuple[tuple[str, str], ...] = ()  # (output, input): the output is the very array the input is
    edge: str = ""  # "begin", "end": every operand starts or ends at an inaccessible page

    def operands(self) -> Iterator[tuple[str, Shape, str]]:
        layouts = self.layouts + ("C",) * (len(self.shapes) - len(self.layouts))
        return zip(OPERANDS[self.op], self.shapes, layouts, strict=True)

    @property
    def outputs(self) -> tuple[str, ...]:
        return OPERANDS[self.op][: N_OUTPUTS[self.op]]

    @property
    def name(self) -> str:
        parts = [self.op, self.dtype]
        if self.weight_dtype:
            parts.append(f"weight_{self.weight_dtype}")
        shapes = {name: "x".join(map(str, shape)) or "scalar" for name, shape, _ in self.operands()}
        if self.op.startswith("gemm") and all(len(shape) == 2 for shape in self.shapes):
            (m, n), (_, k) = self.shapes[0], self.shapes[1]
            parts.append(f"{m}x{n}x{k}")
        elif self.op == "add_rms_norm" or len(set(self.shapes)) == 1:
            parts.append(shapes[OPERANDS[self.op][0]])
        else:
            parts += [f"{name}{shape}" for name, shape in shapes.items()]
        parts += [f"{name}_{layout}" for name, _, layout in self.operands() if layout != "C"]
        if (self.alpha, self.beta) != (1.0, 0.0):
            parts.append(f"alpha{self.alpha:g}-beta{self.beta:g}")
        if self.epsilon != 1e-5:
            parts.append(f"epsilon{self.epsilon:g}")
        parts += [f"{output}_is_{source}" for output, source in self.alias]
        parts += [tag for tag in (self.data, self.edge and f"page_{self.edge}") if tag]
        return "-".join(parts)


# ---- data --------------------------------------------------------------------------------------------------

Rng = np.random.Generator
Fill = Callable[[Case, Rng, dict[str, Guarded]], None]


def _put(operand: Guarded, values: npt.ArrayLike) -> None:
    with np.errstate(all="ignore"):
        operand.view[...] = np.asarray(values).astype(operand.dtype)


def _normal(rng: Rng, operand: Guarded, scale: float = 1.0) -> None:
    _put(operand, rng.standard_normal(operand.view.shape) * scale)


def _integers(rng: Rng, operand: Guarded, limit: int, scale: float = 1.0) -> None:
    _put(operand, rng.integers(-limit, limit + 1, operand.view.shape) * scale)


def _random_bits(rng: Rng, operand: Guarded) -> None:
    """Every bit pattern of the type, NaN, inf and subnormals included; bool gets 0 and 1."""
    if operand.dtype == np.bool_:
        operand.view[...] = rng.integers(0, 2, operand.view.shape)
        return
    count = operand.view.size * operand.dtype.itemsize
    operand.view[...] = np.frombuffer(rng.bytes(count), operand.dtype).reshape(operand.view.shape)


def _gemm_integers(limit: int, scale: Callable[[reference.Format], float]) -> Fill:
    def fill(case: Case, rng: Rng, operands: dict[str, Guarded]) -> None:
        out = reference.FORMATS[case.dtype]
        _integers(rng, operands["a"], limit, scale(out))
        _integers(rng, operands["b"], limit, 1.0 if scale(out) == 1.0 else scale(out) / 4)
        for name in operands.keys() & {"c", "d"}:
            _integers(rng, operands[name], limit)

    return fill


def _gemm_normal(case: Case, rng: Rng, operands: dict[str, Guarded]) -> None:
    for operand in operands.values():
        _normal(rng, operand)


def _gemm_positive(case: Case, rng: Rng, operands: dict[str, Guarded]) -> None:
    """No sum cancels: errors may be compared with the result itself."""
    for operand in operands.values():
        _put(operand, rng.random(operand.view.shape))


def _gemm_nonfinite(case: Case, rng: Rng, operands: dict[str, Guarded]) -> None:
    """A NaN, infinities of both signs and a column of zeros that meets one of them."""
    for operand in operands.values():
        _integers(rng, operand, 4)
    a, b = operands["a"].view, operands["b"].view
    a[..., 0, 0] = np.nan
    a[..., 1, -1] = np.inf
    a[..., 2, 0] = -np.inf
    a[..., 2, -1] = np.inf
    b[..., -1, 0] = 0
    b[..., :, -1] = 1


def _gemm_overflow(case: Case, rng: Rng, operands: dict[str, Guarded]) -> None:
    """Products of both signs around and beyond the largest number, one in each sum."""
    out = reference.FORMATS[case.dtype]
    for name in ("a", "b"):
        view = operands[name].view
        exponents = rng.integers(out.emax // 2 - 3, out.emax // 2 + 4, view.shape)
        values = np.ldexp(rng.choice(np.array([-1.75, -1.0, 1.0, 1.5, 1.875]), view.shape), exponents)
        index = np.arange(view.shape[-1 if name == "a" else -2])
        _put(operands[name], values * ((index == 0) if name == "a" else (index == 0)[:, None]))
    if "d" in operands:
        _integers(rng, operands["d"], 4)


def _subnormal_scale(out: reference.Format) -> float:
    """For a; b gets a quarter of it. Results lie among the output's subnormals, and every product is a
    multiple of the accumulator's smallest one."""
    return float(2.0 ** ((out.emin - out.precision + 1) // 2 + (2 if out.dtype.itemsize >= 4 else 0)))


def _mixed(case: Case, rng: Rng, operands: dict[str, Guarded]) -> None:
    """Any bits; for floating dtypes seven of ten elements of ordinary size, so that sums round."""
    for operand in operands.values():
        _random_bits(rng, operand)
        if case.dtype in FLOATS:
            ordinary = rng.random(operand.view.shape) < 0.7
            values = rng.standard_normal(operand.view.shape).astype(operand.dtype)
            operand.view[...] = np.where(ordinary, values, operand.view)


def special_values(dtype: str) -> Array:
    """Numbers of a type at which arithmetic changes its ways."""
    if dtype in INTEGERS:
        info = np.iinfo(DTYPES[dtype])
        middle = int(info.max) // 2
        values = [info.min, info.min + 1, info.max, info.max - 1, middle, middle + 1, 0, 1, 2, 3, 7]
        return np.array(values, DTYPES[dtype])
    f = reference.FORMATS[dtype]
    tiny, ulp = 2.0**f.emin, 2.0 * f.u
    positive = [0.0, f.eta, 3 * f.eta, tiny - f.eta, tiny, 1.5 * tiny, f.u, ulp]
    positive += [1.0 - f.u, 1.0, 1 + ulp, 1 + 3 * ulp, 1.5, 2**0.5, 3.0]
    positive += [f.ulp_of_max / 4, f.ulp_of_max / 2, f.ulp_of_max, f.max / 2, f.max, np.inf]
    return np.array([*positive, *(-x for x in positive), np.nan]).astype(DTYPES[dtype])


def _special_pairs(case: Case, rng: Rng, operands: dict[str, Guarded]) -> None:
    values = special_values(case.dtype)
    operands["a"].view[...] = values[:, None]
    operands["b"].view[...] = values[None, :]


def _norm_data(values: Callable[[Rng, Shape], Array]) -> Fill:
    def fill(case: Case, rng: Rng, operands: dict[str, Guarded]) -> None:
        for name in ("a", "b"):
            _put(operands[name], values(rng, operands[name].view.shape))
        _normal(rng, operands["weight"])

    return fill


def _norm_scaled(power: float) -> Fill:
    """Normal numbers times emax or emin to some power."""

    def fill(case: Case, rng: Rng, operands: dict[str, Guarded]) -> None:
        f = reference.FORMATS[case.dtype]
        scale = 2.0 ** int(abs(power) * (f.emax if power > 0 else f.emin))
        for name in ("a", "b"):
            _normal(rng, operands[name], scale)
        _normal(rng, operands["weight"])

    return fill


def _norm_outliers(rng: Rng, shape: Shape) -> Array:
    values = rng.standard_normal(shape)
    return np.where(rng.random(shape) < 0.02, values * 1000, values)


def _norm_nonfinite(case: Case, rng: Rng, operands: dict[str, Guarded]) -> None:
    """One row each with a NaN, an inf, and inf - inf; the rows between are untouched by them."""
    for name in ("a", "b", "weight"):
        _normal(rng, operands[name])
    a, b = operands["a"].view, operands["b"].view
    a[1, 2], a[3, -1], a[5, 0], b[5, 0] = np.nan, -np.inf, np.inf, -np.inf


def _norm_overflow(case: Case, rng: Rng, operands: dict[str, Guarded]) -> None:
    """Residuals that overflow in the odd rows, weights that take y beyond the largest number."""
    limit = reference.FORMATS[case.dtype].max
    for name in ("a", "b"):
        _normal(rng, operands[name])
        operands[name].view[1::2, ::3] = limit * 0.75
    operands["weight"].view[...] = np.where(np.arange(operands["weight"].view.size) % 4 == 1, limit, 1.0)


def _rearrange_bits(case: Case, rng: Rng, operands: dict[str, Guarded]) -> None:
    _random_bits(rng, operands["x"])


FILLS: dict[str, dict[str, Fill]] = {
    "gemm": {
        "": _gemm_integers(4, lambda out: 1.0),
        "normal": _gemm_normal,
        "positive": _gemm_positive,
        "large": _gemm_integers(200, lambda out: 1.0),
        "subnormal": _gemm_integers(15, _subnormal_scale),
        "nonfinite": _gemm_nonfinite,
        "overflow": _gemm_overflow,
    },
    "add": {"": _mixed, "special": _special_pairs},
    "mul": {"": _mixed, "special": _special_pairs},
    "add_rms_norm": {
        "": _norm_data(lambda rng, shape: rng.standard_normal(shape)),
        "outliers": _norm_data(_norm_outliers),
        "huge": _norm_scaled(0.55),  # squares overflow
        "large": _norm_scaled(0.45),
        "small": _norm_scaled(-0.45),
        "tiny": _norm_scaled(-0.55),  # squares are subnormal, or 0
        "zeros": _norm_data(lambda rng, shape: np.zeros(shape)),
        "nonfinite": _norm_nonfinite,
        "overflow": _norm_overflow,
    },
    "rearrange": {"": _rearrange_bits},
}
FILLS["gemm_add"] = FILLS["gemm_mul"] = FILLS["gemm"]


def build(case: Case, seed: int = 0) -> dict[str, Guarded]:
    """The operands by name, filled, with other numbers for each seed; what the operator must not read holds
    NaN."""
    operands: dict[str, Guarded] = {}
    sources = dict(case.alias)
    for name, shape, layout in reversed(list(case.operands())):  # inputs first: an output may be one of them
        if name in sources:
            operands[name] = operands[sources[name]]
            continue
        dtype = DTYPES[case.weight_dtype or case.dtype if name == "weight" else case.dtype]
        operands[name] = Guarded(shape, dtype, layout, case.edge)
    rng = np.random.default_rng(zlib.crc32(case.name.encode()) + seed)
    FILLS[case.op][case.data](case, rng, operands)
    if case.op.startswith("gemm"):
        if case.beta == 0:
            operands[case.outputs[0]].view[...] = np.nan
        if case.alpha == 0:
            operands["a"].view[...] = np.nan
            operands["b"].view[...] = np.nan
    written = {id(operands[name]) for name in case.outputs}
    for operand in operands.values():
        if id(operand) not in written:
            operand.seal()
    return operands


# ---- running and checking ----------------------------------------------------------------------------------

Views = dict[str, Array]

CALLS: dict[str, Callable[[Case, Views], object]] = {
    "gemm": lambda case, v: ops.gemm_(v["c"], v["a"], v["b"], case.alpha, case.beta),
    "add": lambda case, v: ops.add_(v["c"], v["a"], v["b"]),
    "mul": lambda case, v: ops.mul_(v["c"], v["a"], v["b"]),
    "add_rms_norm": lambda case, v: ops.add_rms_norm_(
        v["y"], v["residual_out"], v["a"], v["b"], v["weight"], case.epsilon
    ),
    "rearrange": lambda case, v: ops.rearrange_(v["y"], v["x"]),
    "gemm_add": lambda case, v: ops.gemm_add(v["a"], v["b"], v["d"], case.alpha, out=v["y"]),
    "gemm_mul": lambda case, v: ops.gemm_mul(v["a"], v["b"], v["d"], case.alpha, out=v["y"]),
}


def _check_gemm(case: Case, old: Views, new: Views) -> None:
    exact = case.data not in ("normal", "positive")
    reference.assert_gemm(new["c"], old["c"], old["a"], old["b"], case.alpha, case.beta, exact_data=exact)
    if case.data == "normal" and case.beta == 0 and case.alpha != 0 and new["c"].size >= 256:
        product = reference.gemm(old["c"], old["a"], old["b"], case.alpha)
        reference.assert_gemm_rms(new["c"], product, old["a"], old["b"], case.alpha)


def _check_elementwise(case: Case, old: Views, new: Views) -> None:
    reference.assert_same_bits(new["c"], reference.elementwise(case.op, old["a"], old["b"]), "c")


def _check_add_rms_norm(case: Case, old: Views, new: Views) -> None:
    residual = reference.elementwise("add", old["a"], old["b"])
    reference.assert_same_bits(new["residual_out"], residual, "residual_out")
    reference.assert_rms_norm(new["y"], residual, old["weight"], case.epsilon)


def _check_rearrange(case: Case, old: Views, new: Views) -> None:
    assert_same_words(bits(new["y"]), bits(old["x"]), "y")


def check_epilogue(case: Case, product: Array, old: Views, new: Views) -> None:
    """The bits of the two operators one after the other; of their own values other rows speak."""
    expected = reference.elementwise(case.op.removeprefix("gemm_"), product, old["d"])
    reference.assert_same_bits(new["y"], expected, "y")


def _check_epilogue(case: Case, old: Views, new: Views) -> None:
    check_epilogue(case, ops.gemm(old["a"], old["b"], case.alpha), old, new)


CHECKS: dict[str, Callable[[Case, Views, Views], None]] = {
    "gemm": _check_gemm,
    "add": _check_elementwise,
    "mul": _check_elementwise,
    "add_rms_norm": _check_add_rms_norm,
    "rearrange": _check_rearrange,
    "gemm_add": _check_epilogue,
    "gemm_mul": _check_epilogue,
}


def views(operands: dict[str, Guarded]) -> Views:
    return {name: operand.view for name, operand in operands.items()}


def outputs_after(case: Case, operands: dict[str, Guarded], initial: Views) -> Views:
    """Run the row from the given contents of its outputs; the results, as copies."""
    for name in case.outputs:
        operands[name].view[...] = initial[name]
    CALLS[case.op](case, views(operands))
    return {name: operands[name].view.copy() for name in case.outputs}


def _assert_long_doubles_work() -> None:
    """A compiler may move 8 bytes through an MMX register, and then the caller's x87 stack counts as full."""
    with np.errstate(invalid="ignore"):
        assert np.longdouble(1) + 1 == 2, "the call left the x87 registers unusable (MMX without emms)"


def run(case: Case, num_threads: Callable[[int], None], threads: Iterable[int] = (1, 2)) -> None:
    """Run one row with each number of threads; check values, guards, inputs, and that the bits are the
    same."""
    operands = build(case)
    initial = {name: operand.view.copy() for name, operand in operands.items()}
    written = [operands[name] for name in case.outputs]
    kept = [name for name, operand in operands.items() if not any(operand is other for other in written)]
    first: Views | None = None
    for count in threads:
        num_threads(count)
        got = outputs_after(case, operands, initial)
        _assert_long_doubles_work()
        for name, operand in operands.items():
            operand.assert_guards_intact(name)
            if name in kept:
                operand.assert_unchanged(name)
        if first is None:
            first = got
            # Inputs as they lie: the order of a product's sums may depend on that.
            CHECKS[case.op](case, initial | {name: operands[name].view for name in kept}, got)
            continue
        for name in got:
            assert_same_words(bits(got[name]), bits(first[name]), f"{name} with {count} threads")


# ---- rows --------------------------------------------------------------------------------------------------


def sizes(text: str) -> tuple[Shape, ...]:
    """sizes("5x1 7 scalar") is ((5, 1), (7,), ())."""
    return tuple(tuple(map(int, word.split("x"))) if word != "scalar" else () for word in text.split())


def _lengths(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split()))


# Around the lengths of vectors and tiles of 4 to 64 elements; around blocks of 128 to 1024.
EDGES = _lengths(
    "1 2 3 4 5 6 7 8 9 11 12 13 14 15 16 17 23 24 25 31 32 33 47 48 49 63 64 65 95 96 97 127 128 129"
)
FAR = {"f16": 1201, "bf16": 1201, "f32": 601, "f64": 301}  # columns: more than 768 KiB of 701 rows
BLOCKS = _lengths("191 192 193 255 256 257 319 383 384 385 511 512 513 767 768 769 1023 1024 1025")
SHORT_LIST = _lengths("1 2 3 7 8 9 15 16 17 31 32 33 63 64 65 127 129 1025")


def gemm(m: int, n: int, k: int, dtype: str, layouts: tuple[str, ...] = (), **options: object) -> Case:
    return Case("gemm", dtype, ((m, n), (m, k), (k, n)), layouts, **options)  # type: ignore[arg-type]


def _gemm_sizes() -> Iterator[Case]:
    for dtype in FLOATS:
        for size in EDGES:
            yield gemm(size, 17, 9, dtype)
            yield gemm(7, size, 18, dtype)
            yield gemm(7, 17, size, dtype)
            if dtype in ("f16", "bf16") and size > 32:  # so long a K that A and B are packed
                yield gemm(size, 17, 137, dtype)
        for k in BLOCKS:
            yield gemm(6, 19, k, dtype)
            yield gemm(1, 33, k, dtype, ("C", "C", "T"))
        for k in (32, 288, 544):  # which end with a cache line of halves
            yield gemm(1, 33, k, dtype, ("C", "C", "T"))
        for n in (1, 4, 7, 8, 9, 12, 20, 31, 67):  # a vector times columns, of which some are taken at a time
            yield gemm(1, n, 70, dtype, ("C", "C", "T"))
        for m in (2, 3, 4, 5, 6, 7, 8, 9, 16, 17):  # rows times columns, and what is left of two blocks of k
            yield gemm(m, 70, 300, dtype, ("C", "C", "T"))
        for m, n in itertools.product((1, 2, 3, 4, 5, 8), repeat=2):
            yield gemm(m, n, 3, dtype)
        for m, n, k in sizes(
            "1x4096x3 4096x1x3 1x1x4096 1x513x300 513x1x300 2000x3x5 3x2000x5 1x2048x1024 "
            "191x20x33 193x20x33 257x20x33 20x511x33 20x513x33 20x1025x33 40x2049x9 "
            "2x1030x700 1030x2x700 4x700x513 700x4x513 9x1030x300 1030x9x300 "
            "257x300x129 512x64x64 31x1030x257 2060x20x260 3x2060x300 64x64x64 128x128x128"
        ):
            yield gemm(m, n, k, dtype)
        for m in (1, 2):  # with more of B than a cache holds
            yield gemm(m, FAR[dtype], 701, dtype)
        yield gemm(70, 449, 450, dtype)  # whose rows are packed while they are multiplied
    yield gemm(1, 2049, 4097, "bf16", ("C", "C", "T"))  # columns that are fetched ahead
    yield gemm(4, FAR["bf16"], 701, "bf16")
    yield gemm(3, FAR["bf16"], 701, "bf16", data="subnormal", beta=1.0)


def _gemm_few_rows() -> Iterator[Case]:
    """1 to 4 rows or columns and sums of some length. The other operand's vectors, along N and K, are whole
    and aligned, or end in the middle of one ("padded": where 3 are missing to a multiple of 8), or lie
    anywhere."""
    for dtype, m in itertools.product(FLOATS, (1, 2, 3, 4)):
        for n, k in sizes("40x200 45x197 37x300 45x264 24x584 24x586"):
            for a, b in (("C", "C"), ("padded", "padded"), ("C", "offset")):
                yield gemm(m, n, k, dtype, ("C", a, b), beta=-0.5)
            yield gemm(n, m, k, dtype, ("padded", "T", "C"))
        for n, k in sizes("13x1029 16x1096 17x840 24x584 24x586"):
            for a in ("C", "padded", "T", "offset"):
                yield gemm(m, n, k, dtype, ("C", a, "T"), beta=-0.5)
            for a, b in itertools.product(("C", "padded"), ("C", "T")):
                yield gemm(n, m, k, dtype, ("C", a, b))
        for n, k in sizes("40x200 16x1096"):
            yield gemm(m, n, k, dtype, data="normal")
            yield gemm(m, n, k, dtype, ("C", "C", "T"), data="normal", alpha=0.3, beta=0.7)
            if m >= 3:
                yield gemm(m, n, k, dtype, data="nonfinite")
                yield gemm(m, n, k, dtype, ("C", "C", "T"), data="nonfinite")
            for edge in ("begin", "end"):
                yield gemm(m, n, k - 3, dtype, ("C", "padded", "padded"), edge=edge)
                for b in ("C", "T"):
                    yield gemm(m, n, k, dtype, ("C", "C", b), edge=edge)
                    yield gemm(m, n, k - 3, dtype, ("C", "C", b), edge=edge)
                yield gemm(n, m, k - 3, dtype, ("C", "padded", "C"), edge=edge)
        batched = sizes(f"3x{m}x21 3x{m}x264 3x264x21")
        yield Case("gemm", dtype, batched)
        yield Case("gemm", dtype, batched, ("C", "padded", "padded"), alpha=-0.5, beta=1.0)
        yield Case("gemm", dtype, sizes(f"3x{m}x5 3x{m}x584 3x584x5"), ("C", "C", "T"), beta=1.0)


def _gemm_columns_of_few_rows() -> Iterator[Case]:
    """Results of 2 to 33 rows whose columns are contiguous, of more columns than are transposed at a time."""
    for dtype in FLOATS:
        for m, n, k in sizes("2x70x9 4x131x300 8x70x32 15x131x61 16x70x300 17x131x68 32x200x128 33x70x132"):
            for b in ("C", "T"):
                for edge in ("begin", "end"):
                    yield gemm(m, n, k, dtype, ("T", "C", b), alpha=-0.5, beta=1.0, edge=edge)
            yield gemm(m, n, k, dtype, ("padded_columns", "T", "C"))
        for rows in (4, 16):
            batched = sizes(f"3x{rows}x70 3x{rows}x68 3x68x70")
            yield Case("gemm", dtype, batched, ("T", "C", "C"), beta=-0.5)


def _gemm_layouts() -> Iterator[Case]:
    for m, n, k in sizes("9x17x33 33x65x40 70x64x260"):
        large = m == 70
        for dtype in FLOATS:
            for layout in OUTPUT_LAYOUTS:
                yield gemm(m, n, k, dtype, (layout, "C", "C"), alpha=1.0, beta=-0.5)
            for layout in LAYOUTS:
                yield gemm(m, n, k, dtype, ("C", layout, "C"))
                yield gemm(m, n, k, dtype, ("C", "C", layout))
            pairs = ("T", "padded", "sliced", "reversed") if large or dtype != "f32" else tuple(LAYOUTS)
            for a, b in itertools.product(pairs, repeat=2):
                yield gemm(m, n, k, dtype, ("padded", a, b))
            yield gemm(m, n, k, dtype, ("F", "T", "T"), alpha=-0.5, beta=1.0)
            yield gemm(m, n, k, dtype, ("sliced", "sliced", "sliced"), alpha=-0.5, beta=1.0)
            yield gemm(m, n, k, dtype, ("reversed", "mirrored", "reversed_rows"), alpha=-0.5, beta=1.0)
        # Both operands packed, a block of K after the other: so many rows of A are no use to another way.
        for layouts in (("padded", "T", "C"), ("T", "T", "T"), ("sliced", "mirrored", "sliced")):
            yield gemm(260, 70, 300, dtype, layouts, beta=-0.5)
            yield gemm(520, 130, 257, dtype, layouts)
        # So much of B that it is streamed, for few rows of A; runs end in the middle of vectors.
        for layouts in (("C", "C", "C"), ("padded", "T", "reversed_rows"), ("sliced", "sliced", "padded")):
            for edge in ("begin", "end"):
                for m, n, k in sizes("1x1101x263 2x1027x300 3x2051x265 4x1027x519"):
                    yield gemm(m, n, k, dtype, layouts, beta=-0.5, edge=edge)
    for dtype in FLOATS:
        for m, n, k in sizes("1x17x9 17x1x9 17x9x1 1x1x9 1x1x1"):
            for layout in ("odd_ones", "column", "F", "sliced"):
                yield gemm(m, n, k, dtype, (layout, layout, layout), beta=1.0)
        for layouts in (("C", "C", "C"), ("C", "T", "T"), ("padded", "offset", "mirrored")):
            for edge in ("begin", "end"):
                for m, n, k in sizes("1x1x1 7x5x3 9x17x33 64x64x64 33x63x257"):
                    yield gemm(m, n, k, dtype, layouts, beta=1.0, edge=edge)
        for layouts in (
            ("padded", "C", "C"),
            ("padded", "C", "T"),
            ("padded", "T", "C"),
            ("sliced", "C", "C"),
        ):
            for edge in ("begin", "end"):
                for m, n, k in sizes("1x179x257 6x47x31 8x33x513 97x65x33"):
                    yield gemm(m, n, k, dtype, layouts, beta=-0.5, edge=edge)


def _gemm_scalars() -> Iterator[Case]:
    for dtype in FLOATS:
        for m, n, k in sizes("3x5x7 33x65x17 1x65x40 24x64x300"):
            for alpha, beta in itertools.product((0.0, 1.0, -0.5), repeat=2):
                yield gemm(m, n, k, dtype, alpha=alpha, beta=beta)
            yield gemm(m, n, k, dtype, data="normal", alpha=0.3, beta=0.7)
            yield gemm(m, n, k, dtype, data="normal", alpha=-1e-3, beta=1.0)
        for m, n, k in sizes("0x5x7 3x0x7 3x5x0 0x0x0 0x5x0 3x0x0 300x70x0"):
            for beta in (0.0, 1.0, -0.5):
                yield gemm(m, n, k, dtype, beta=beta)
        yield gemm(9, 17, 0, dtype, ("sliced", "C", "C"), beta=-0.5)


# c, a, b: batches of a, of b, of both, of neither; rank 2 beside rank 3; more leading dimensions; no items.
_BATCHES = (
    sizes("3x5x18 3x5x9 3x9x18"),
    sizes("3x5x18 1x5x9 3x9x18"),
    sizes("3x5x18 3x5x9 1x9x18"),
    sizes("3x5x18 5x9 3x9x18"),
    sizes("3x5x18 3x5x9 9x18"),
    sizes("1x5x18 1x5x9 1x9x18"),
    sizes("0x5x18 0x5x9 0x9x18"),
    sizes("0x5x18 0x5x9 1x9x18"),
    sizes("3x0x18 3x0x9 3x9x18"),
    sizes("3x5x18 3x5x0 3x0x18"),
    sizes("2x40x70 2x40x130 130x70"),
    sizes("8x33x32 8x33x48 8x48x32"),
    sizes("70x1x1 70x1x1 1x1"),
    sizes("65x1x16 65x1x8 8x16"),
    sizes("2x3x5x18 2x3x5x9 2x3x9x18"),
    sizes("2x3x5x18 2x1x5x9 3x9x18"),
    sizes("2x3x5x18 5x9 2x3x9x18"),
    sizes("2x0x3x5x18 2x1x1x5x9 0x3x9x18"),
    sizes("2x1x3x5x18 2x1x3x5x9 1x3x9x18"),
)


def _gemm_batches() -> Iterator[Case]:
    for dtype in FLOATS:
        for shapes in _BATCHES:
            yield Case("gemm", dtype, shapes)
            yield Case("gemm", dtype, shapes, alpha=-0.5, beta=1.0)
        batched, twice_batched = sizes("3x5x18 3x5x9 3x9x18"), sizes("2x3x5x18 2x3x5x9 2x3x9x18")
        for layout in LAYOUTS:
            yield Case("gemm", dtype, batched, ("C", layout, "C"))
            yield Case("gemm", dtype, batched, ("C", "C", layout))
        for shapes in (
            sizes("3x5x18 1x5x9 3x9x18"),
            sizes("3x5x18 3x5x9 1x9x18"),
            sizes("1x5x18 1x5x9 1x9x18"),
        ):
            yield Case("gemm", dtype, shapes, ("odd_ones",) * 3, beta=1.0)
        for layout in OUTPUT_LAYOUTS:
            yield Case("gemm", dtype, batched, (layout, "T", "first_zero"), beta=-0.5)
            yield Case("gemm", dtype, twice_batched, (layout, "rotated", "F"), beta=1.0)


def _gemm_values() -> Iterator[Case]:
    for dtype in FLOATS:
        for m, n, k in sizes("64x64x64 33x65x129 16x32x1025 1x300x384 300x1x384 16x16x4096 4x1101x263"):
            yield gemm(m, n, k, dtype, data="normal")
            yield gemm(m, n, k, dtype, ("C", "T", "T"), data="normal", alpha=0.3)
        for m, n, k in sizes("5x7x4 12x33x9 40x64x300 1x40x33 3x1101x263"):
            yield gemm(m, n, k, dtype, data="large")
            yield gemm(m, n, k, dtype, data="subnormal")
            yield gemm(m, n, k, dtype, data="subnormal", beta=1.0)
        yield gemm(1, 40, 70, dtype, ("C", "C", "T"), data="subnormal")
        for m, n, k in sizes("3x2x5 9x33x17 40x64x300 3x1101x263"):
            yield gemm(m, n, k, dtype, data="nonfinite")
        for m, n, k in sizes("13x35x1 13x35x5 30x70x64 4x1101x263"):
            yield gemm(m, n, k, dtype, data="overflow")
    yield gemm(257, 513, 385, "f32", data="normal")
    yield gemm(129, 257, 513, "bf16", ("C", "T", "C"), data="normal")
    yield gemm(129, 257, 513, "f16", ("C", "C", "T"), data="normal")


def epilogue(
    op: str, dtype: str, m: int, n: int, k: int, layouts: tuple[str, ...] = (), **options: object
) -> Case:
    return Case(op, dtype, ((m, n), (m, k), (k, n), (m, n)), layouts, **options)  # type: ignore[arg-type]


def _epilogues() -> Iterator[Case]:
    for op, dtype in itertools.product(("gemm_add", "gemm_mul"), FLOATS):
        row = partial(epilogue, op, dtype)
        # Each way to compute a product, and sizes around those of tiles and tasks.
        for m, n, k in sizes(
            "1x1x1 1x33x9 33x1x9 7x17x33 33x65x40 70x64x260 1x513x300 513x1x300 2060x3x20 3x2060x20 "
            "31x1030x257 97x65x33 257x300x129 200x70x513 2x1101x263 3x21x600 21x2x600"
        ):
            yield row(m, n, k, data="normal")
            yield row(m, n, k, ("padded", "C", "T", "last_zero"), data="normal", alpha=0.3)
            yield row(m, n, k, ("T", "T", "C", "first_zero"), data="normal", alpha=-2.5)
        for m, n, k in sizes("9x17x33 70x64x260"):
            for layout in OUTPUT_LAYOUTS:
                yield row(m, n, k, (layout, "C", "C"), data="normal")
                yield row(m, n, k, (layout, "C", "C", layout), data="normal")
            for layout in LAYOUTS:
                yield row(m, n, k, ("C", "T", "C", layout), data="normal")
        for alpha, k in ((0.0, 9), (1.0, 0), (-0.5, 0)):
            for m, n in ((5, 33), (2060, 3)):
                yield row(m, n, k, ("padded",), alpha=alpha)
        for m, n, k in sizes("0x5x7 3x0x7 0x0x0"):
            yield row(m, n, k)
        for data in ("subnormal", "nonfinite", "overflow"):
            yield row(9, 33, 17, data=data)
            yield row(40, 64, 300, ("C", "C", "T", "last_zero"), data=data)
        yield row(260, 70, 300, ("padded", "T", "C", "T"), data="normal", alpha=0.3)
        for edge in ("begin", "end"):
            for m, n, k in sizes("1x1x1 7x5x3 33x63x257 8x33x513"):
                yield row(m, n, k, ("padded", "C", "T", "T"), edge=edge)
        for d in sizes("scalar 1 18 1x18 5x1 5x18 3x5x18 3x1x1 1x5x1"):
            for shapes in _BATCHES[:5]:
                yield Case(op, dtype, (*shapes, d))
        for shapes in _BATCHES:
            yield Case(op, dtype, (*shapes, shapes[0]), ("C", "C", "C", "T"), alpha=-0.5)


def alike(op: str, dtype: str, shape: Shape, layouts: tuple[str, ...] = (), **options: object) -> Case:
    """All operands of one shape."""
    return Case(op, dtype, (shape,) * len(OPERANDS[op]), layouts, **options)  # type: ignore[arg-type]


# c, a, b
_BROADCASTS = (
    sizes("5x7 5x1 1x7"),
    sizes("13 scalar 13"),
    sizes("13 13 scalar"),
    sizes("2x3x4 2x1x4 3x1"),
    sizes("9x17 17 9x17"),
    sizes("9x17 9x17 9x1"),
    sizes("0x5 1x5 0x1"),
    sizes("4x5x6x7 4x1x6x1 1x5x1x7"),
    sizes("3x4x65 3x1x65 1x4x65"),
)


# Sizes of 1 behind others, where strides mean nothing: those of each operand are others.
_TRAILING_ONES = sizes("7x1 5x3x1 4x1x1x1 1x9x1 40x1x1")


def _elementwise() -> Iterator[Case]:
    for op, dtype in itertools.product(("add", "mul"), FLOATS + INTEGERS):
        floating = dtype in FLOATS
        for size in EDGES + BLOCKS if floating else SHORT_LIST:
            yield alike(op, dtype, (size,))
        yield alike(op, dtype, (100003,))
        yield alike(op, dtype, (300, 517), ("padded", "T", "C"))
        yield alike(op, dtype, (577, 523), ("padded", "T", "T"))  # beyond a strip and a tile
        # Each thread its own part: what is computed twice in place is wrong.
        yield alike(op, dtype, (577, 523), ("padded", "padded", "T"), alias=(("c", "a"),))
        # The same where padded rows start at cache lines.
        yield alike(op, dtype, (131, 189), ("padded", "T", "C"))
        yield alike(op, dtype, (131, 189), ("padded", "T", "T"))
        yield alike(op, dtype, (131, 189), ("padded", "padded", "T"), alias=(("c", "a"),))
        for shape in (*sizes("scalar 0 3x0x5 0x0 1x1x1 2x1x3x1x2x1x2x2"), (1,) * 9 + (2,) * 7):
            yield alike(op, dtype, shape)
        for shape in sizes("5x33 3x4x17 2x3x2x5" if floating else "3x4x17"):
            for layout in OUTPUT_LAYOUTS:
                yield alike(op, dtype, shape, (layout, "C", "C"))
                yield alike(op, dtype, shape, (layout, layout, layout))
            for layout in LAYOUTS:
                yield alike(op, dtype, shape, ("C", layout, "C"))
                yield alike(op, dtype, shape, ("C", "C", layout))
        # Rows longer than a block, at every alignment: the blocks at both ends overlap those between them.
        yield alike(op, dtype, (35, 131), ("padded", "C", "reversed_rows"))
        yield alike(op, dtype, (35, 131), ("padded", "padded", "C"), alias=(("c", "a"),))
        yield alike(op, dtype, (35, 131), ("padded", "last_zero", "padded"), alias=(("c", "b"),))
        for size in (257, 511, 600):  # strides that are gathered in vectors, some at a time
            yield alike(op, dtype, (3, size), ("offset", "sliced", "mirrored"), edge="end")
            yield alike(op, dtype, (3, size), ("sliced", "mirrored", "column"), edge="begin")
            for edge in ("begin", "end"):
                yield alike(op, dtype, (3, size), ("C", "every_3", "every_4"), edge=edge)
                yield alike(op, dtype, (3, size), ("offset", "sliced", "every_5"), edge=edge)
            yield alike(op, dtype, (3, size), ("every_3", "every_4", "last_zero"))
            yield alike(op, dtype, (3, size), ("every_4", "every_4", "every_3"), alias=(("c", "a"),))
        # Rows shorter than a vector, of which as many as there is room for are one.
        for shape, edge in (((700, 3), "begin"), ((131, 12), "end")):
            yield alike(op, dtype, shape, ("C", "C", "mirrored"), edge=edge)
            yield alike(op, dtype, shape, ("C", "T", "sliced"), edge=edge)
            yield alike(op, dtype, shape, ("padded", "last_zero", "T"), edge=edge)
            yield alike(op, dtype, shape, ("C", "padded", "C"), edge=edge)
            yield alike(op, dtype, shape, ("sliced", "sliced", "mirrored"), edge=edge, alias=(("c", "a"),))
        # Columns, and rows, 512 elements apart collide in a first-level cache.
        yield alike(op, dtype, (512, 67), ("C", "T", "C"))
        yield alike(op, dtype, (67, 512), ("C", "C", "T"))
        for layout in OUTPUT_LAYOUTS:
            other = "C" if layout == "T" else "T"
            yield alike(op, dtype, (5, 33), (layout, layout, other), alias=(("c", "a"),))
            yield alike(op, dtype, (5, 33), (layout, other, layout), alias=(("c", "b"),))
        yield alike(op, dtype, (9, 1), ("column", "odd_ones", "column"))
        for shape in _TRAILING_ONES:
            yield alike(op, dtype, shape, ("odd_ones", "column", "sliced"))
            yield alike(op, dtype, shape, ("column", "first_zero", "odd_ones"))
        yield alike(op, dtype, (1, 33), ("odd_ones", "odd_ones", "odd_ones"))
        for shapes in _BROADCASTS:
            yield Case(op, dtype, shapes)
        size = len(special_values("f32" if floating else dtype))  # as many for each floating type
        yield alike(op, dtype, (size, size), data="special")
        yield alike(op, dtype, (size, size), ("T", "sliced", "reversed"), data="special")
        for shape, edge in itertools.product(sizes("1 7 16 33 65 129"), ("begin", "end")):
            yield alike(op, dtype, shape, edge=edge)
        for edge in ("begin", "end"):
            yield alike(op, dtype, (5, 33), ("padded", "T", "reversed"), edge=edge)
            yield alike(op, dtype, (5, 33), ("mirrored", "last_zero", "first_zero"), edge=edge)
    for op, a, b in itertools.product(("add", "mul"), LAYOUTS, LAYOUTS):
        yield alike(op, "f32", (6, 35), ("padded", a, b))


def norm(dtype: str, shape: Shape, layouts: tuple[str, ...] = (), **options: object) -> Case:
    return Case("add_rms_norm", dtype, (shape,) * 4 + (shape[-1:],), layouts, **options)  # type: ignore[arg-type]


_NORM_ALIASES = (
    (("y", "a"),),
    (("y", "b"),),
    (("residual_out", "a"),),
    (("residual_out", "b"),),
    (("y", "a"), ("residual_out", "b")),
    (("y", "b"), ("residual_out", "a")),
)


def _add_rms_norm() -> Iterator[Case]:
    for dtype in FLOATS:
        halves = dtype in ("f16", "bf16")
        weights = [weight for weight in ("f16", "bf16", "f32") if halves and weight != dtype]
        for size in (*EDGES, *BLOCKS, 4096, 4097):
            yield norm(dtype, (3, size))
        for weight in weights:
            for size in SHORT_LIST:
                yield norm(dtype, (2, size), weight_dtype=weight)
            yield norm(dtype, (2, 33), edge="end", weight_dtype=weight)
        for shape in sizes("5 1x1 9x1 3x0 0x7 2x0x3 2x3x2x1x2x1x2x9 2x3x17 301x70"):
            yield norm(dtype, shape)
        for shape in sizes("5x33 3x4x17 2x3x2x5"):
            for layout, position in itertools.product(ROW_LAYOUTS, range(4)):
                yield norm(dtype, shape, ("C",) * position + (layout,))
            yield norm(dtype, shape, ("C", "C", "first_zero", "padded"))
            yield norm(dtype, shape, ("C", "C", "reversed_rows", "first_zero"))
            yield norm(dtype, shape, ("swapped", "padded", "reversed_rows", "sliced_rows", "offset"))
        for layout in ("odd_ones", "column", "sliced", "reversed", "F"):
            yield norm(dtype, (4, 1), (layout,) * 5)
        for shape in _TRAILING_ONES:
            yield norm(dtype, shape, ("odd_ones", "column", "sliced", "reversed", "odd_ones"))
        for alias in _NORM_ALIASES:
            for layout in ("C", "padded", "reversed_rows"):
                yield norm(dtype, (5, 33), (layout,) * 4, alias=alias)
        for shape in sizes(
            "1x8191 1x8192 1x8193 1x50000 3x16411"
        ):  # the longer ones are shared among threads
            yield norm(dtype, shape)
            yield norm(dtype, shape, ("padded", "C", "C", "reversed_rows"), edge="end")
        yield norm(dtype, (1, 2200003))  # more than as many chunks of the usual length as there may be
        yield norm(dtype, (2, 16411), ("padded",) * 4, alias=(("y", "a"), ("residual_out", "b")))
        for epsilon in (0.0, 1e-6, 1.0, 1e4):
            yield norm(dtype, (5, 33), epsilon=epsilon)
        for data, epsilon in itertools.product(("huge", "large", "small", "tiny"), (0.0, 1e-5, 1e-30)):
            yield norm(dtype, (7, 300), data=data, epsilon=epsilon)
        for data in ("outliers", "zeros", "nonfinite"):
            yield norm(dtype, (7, 40), data=data)
            yield norm(dtype, (7, 300), data=data)
        yield norm(dtype, (3, 17), data="zeros", epsilon=0.0)
        yield norm(dtype, (5, 33), data="overflow")
        for size, edge in itertools.product((1, 7, 16, 33, 65, 129), ("begin", "end")):
            yield norm(dtype, (3, size), edge=edge)
            yield norm(dtype, (3, size), ("padded", "reversed_rows", "column", "first_zero"), edge=edge)


def _rearrange() -> Iterator[Case]:
    for dtype in (*FLOATS, *INTEGERS, "bool", "c64", "c128"):
        yield alike("rearrange", dtype, (7, 13), ("C", "T"))
        yield alike("rearrange", dtype, (300,), ("sliced", "C"))
    for dtype in ("u8", "bf16", "f32", "i64", "c128"):  # one for each element size
        for shape in (*sizes("scalar 0 3x0x5 1 1x1x1 100003"), (1,) * 8 + (2,) * 8):
            yield alike("rearrange", dtype, shape)
        for shape in ((2,) * 16, (3, 2, 1, 2, 2, 1, 3, 2)):
            yield alike("rearrange", dtype, shape, ("C", "F"))
            yield alike("rearrange", dtype, shape, ("rotated", "reversed"))
        for size in SHORT_LIST[:-3]:
            yield alike("rearrange", dtype, (size,), ("C", "reversed"))
            yield alike("rearrange", dtype, (size, size), ("C", "T"))
            yield alike("rearrange", dtype, (size, 19), ("C", "T"))
            yield alike("rearrange", dtype, (size, 19), ("T", "C"))
        for shape in sizes("5x33 3x4x17 2x3x4x5"):
            outputs = OUTPUT_LAYOUTS if dtype in ("u8", "f32") else ("C", "sliced")
            for layouts in itertools.product(outputs, LAYOUTS):
                yield alike("rearrange", dtype, shape, layouts)
            for layout in OUTPUT_LAYOUTS:
                yield alike("rearrange", dtype, shape, (layout, "C"))
        for shape in sizes("257x511 64x300x7 7x64x300 40x3x50x3"):
            yield alike("rearrange", dtype, shape, ("C", "T"))
            yield alike("rearrange", dtype, shape, ("padded", "rotated"))
        # Around squares of a cache line's length; columns 512 elements apart collide in a first-level cache.
        for shape in sizes("64x16 16x64 65x130 130x65 513x129 512x70"):
            for layout in ("C", "padded", "mirrored"):
                yield alike("rearrange", dtype, shape, (layout, "T"))
            yield alike("rearrange", dtype, shape, ("C", "turned"), edge="begin")
            yield alike("rearrange", dtype, shape, ("padded", "turned"), edge="end")
        for shape in sizes("5x33 33x5 3x129 129x3 64x300x7 7x64x300"):
            yield alike("rearrange", dtype, shape, ("C", "turned"))
        for edge, shape in itertools.product(("begin", "end"), sizes("130x67 512x70")):
            yield alike("rearrange", dtype, shape, ("C", "T"), edge=edge)
        yield alike("rearrange", dtype, (9, 1), ("column", "odd_ones"))
        for shape in _TRAILING_ONES:
            yield alike("rearrange", dtype, shape, ("odd_ones", "column"))
            yield alike("rearrange", dtype, shape, ("sliced", "odd_ones"))
        for edge, shape in itertools.product(("begin", "end"), sizes("1 7 65 5x33 17x16 33x65")):
            for layouts in (("C", "C"), ("C", "T"), ("mirrored", "first_zero"), ("padded", "reversed")):
                yield alike("rearrange", dtype, shape, layouts, edge=edge)
        for edge, size in itertools.product(("begin", "end"), (16, 33, 65, 131)):
            for layout in ("mirrored", "sliced", "every_3", "every_4", "every_5"):
                yield alike("rearrange", dtype, (3, size), ("offset", layout), edge=edge)
        # Short rows, of which some make larger elements.
        for size in (2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 33, 64, 65, 129):
            for layout in ("C", "padded", "column"):
                yield alike("rearrange", dtype, (5, 7, size), (layout, "swapped"), edge="end")
            yield alike("rearrange", dtype, (3, 70, size), ("swapped", "C"), edge="begin")
            for edge in ("begin", "end"):
                yield alike("rearrange", dtype, (70, size), ("C", "mirrored"), edge=edge)
    for dtype in ("u8", "bf16", "f32"):
        # Pixels of few channels: to lines of each, some of them or all, and back.
        for channels, length in itertools.product((2, 3, 4, 5, 7, 15), (15, 17, 33, 64, 68, 131)):
            for edge in ("begin", "end"):
                yield alike("rearrange", dtype, (channels, length), ("padded", "T"), edge=edge)
                yield alike("rearrange", dtype, (length, channels), ("C", "T"), edge=edge)
                for of in (of for of in (3, 4, 5, 9) if of >= channels):
                    yield alike("rearrange", dtype, (channels, length), ("C", f"pixels_{of}"), edge=edge)
    for size in (511, 512, 513):
        yield alike("rearrange", "u8", (5, 7, size), ("padded", "swapped"))
    # More than a last-level cache of 32 MiB keeps: past the caches. Padded, rows of y start at cache lines.
    yield alike("rearrange", "u8", (3649, 3645), ("padded", "T"))
    yield alike("rearrange", "f32", (1793, 1869), ("padded", "T"))
    # Not padded, they do not: the last line of a row is a part that differs from row to row.
    yield alike("rearrange", "f32", (1873, 1802), ("C", "T"))
    yield alike("rearrange", "f32", (1793, 1869), ("padded", "turned"))
    for dtype in ("u8", "bf16", "f32", "f64"):  # rows of y that all start at the same place in a cache line
        yield alike("rearrange", dtype, (67, 192), ("offset", "T"))
    yield alike("rearrange", "bf16", (61, 53, 2049), ("offset", "swapped"))
    yield alike("rearrange", "c64", (61, 53, 517), ("swapped", "sliced_rows"))


def _table() -> dict[str, Case]:
    groups = [
        _gemm_sizes,
        _gemm_few_rows,
        _gemm_columns_of_few_rows,
        _gemm_layouts,
        _gemm_scalars,
        _gemm_batches,
        _gemm_values,
    ]
    groups += [_epilogues, _elementwise, _add_rms_norm, _rearrange]
    table: dict[str, Case] = {}
    for case in itertools.chain.from_iterable(group() for group in groups):
        known = table.setdefault(case.name, case)
        if list(known.operands()) != list(case.operands()) or replace(known, layouts=case.layouts) != case:
            raise ValueError(f"two different rows are called {case.name}")
        if any(layout in INPUT_ONLY for layout in case.layouts[: len(case.outputs)]):
            raise ValueError(f"{case.name}: an output may not overlap itself")
    return table


CASES = _table()
