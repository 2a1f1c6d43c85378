"""NaN, infinities, zeros, subnormals and overflow where operators have a say of their own in them.

What sums and products of such numbers are is test_rounding.py's; test_isa.py starts this file, too, under the
other instruction sets.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest

import infiniop_py
from infiniop_py._conformance.cases import DTYPES, FLOATS, gemm
from infiniop_py._conformance.layouts import Array, Guarded
from infiniop_py._conformance.reference import (
    FORMATS,
    assert_gemm,
    assert_same_bits,
    assert_same_values,
    round_to,
)

Record = Callable[[str, object], None]
NAN, INF = float("nan"), float("inf")

# ---- gemm: what alpha, beta and K exclude is not read; all else follows the arithmetic ---------------------

# Every way to multiply: m, n, k and whether B is transposed.
_WAYS = (
    (3, 5, 7, False),
    (1, 33, 300, False),
    (1, 33, 300, True),
    (34, 18, 260, False),
    (34, 18, 260, True),
    (70, 3, 260, False),
    (264, 67, 20, True),
    (520, 67, 9, True),
)
_SCALES = (2.0**100, 2.0**-140)  # one overflows or is subnormal: exact but for the store, with no C beside it
_ALPHAS = (0.0, -0.0, 1.0, -2.0, NAN, INF, -INF, *_SCALES)
_BETAS = (0.0, -0.0, 1.0, -0.5, NAN, INF, -INF)


def _integers(rng: np.random.Generator, dtype: str, *shape: int) -> Array:
    return rng.integers(-4, 5, shape).astype(DTYPES[dtype])


def _operands(rng: np.random.Generator, dtype: str, m: int, n: int, k: int, transposed: bool) -> list[Array]:
    shape = gemm(m, n, k, dtype, ("padded", "C", "T" if transposed else "C"))
    c, a, b = (Guarded(size, DTYPES[dtype], layout).view for _, size, layout in shape.operands())
    for x in (c, a, b):
        x[...] = _integers(rng, dtype, *x.shape)
    return [c, a, b]


@pytest.mark.parametrize("way", _WAYS, ids=str)
@pytest.mark.parametrize("dtype", FLOATS)
def test_any_alpha_and_beta(
    dtype: str, way: tuple[int, int, int, bool], rng: np.random.Generator, record_property: Record
) -> None:
    before, a, b = _operands(rng, dtype, *way)
    c, unread = np.empty_like(before), [np.full_like(x, NAN) for x in (before, a, b)]
    pairs = [x for x in itertools.product(_ALPHAS, _BETAS) if x[0] not in _SCALES or x[1] in (0, INF, -INF)]
    for alpha, beta in pairs:
        old = unread[0] if beta == 0 else before
        left, right = unread[1:] if alpha == 0 else (a, b)
        c[...] = old
        infiniop_py.gemm_(c, left, right, alpha, beta)
        assert_gemm(c, old, left, right, alpha, beta, exact_data=True)
    record_property("cases", len(pairs))


@pytest.mark.parametrize("way", _WAYS, ids=str)
@pytest.mark.parametrize("dtype", FLOATS)
def test_nonfinite_elements_stay_in_their_rows_and_columns(
    dtype: str, way: tuple[int, int, int, bool], rng: np.random.Generator, record_property: Record
) -> None:
    """One at a time, at both ends of K and of a block of it, meeting zeros or not; in C, too."""
    before, a, b = _operands(rng, dtype, *way)
    (m, n), k = before.shape, a.shape[1]
    places = sorted({0, k // 2, min(255, k - 1), min(256, k - 1), k - 1})
    for value, at in itertools.product((NAN, INF, -INF), places):
        for x, index in ((a, (m // 2, at)), (b, (at, n // 2)), (before, (m - 1, n - 1))):
            kept, x[index] = x[index].copy(), value
            b[at, -1] = 0  # NaN where an infinity of A meets it
            c = before.copy()
            infiniop_py.gemm_(c, a, b, 1.0, 0.5)
            assert_gemm(c, before, a, b, 1.0, 0.5, exact_data=True)
            x[index] = kept
    record_property("cases", 9 * len(places))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("scalars", [(NAN, 0.0), (NAN, 1.0), (INF, -0.5), (0.0, NAN), (1.0, INF)], ids=str)
def test_without_k_only_beta_counts(
    dtype: str, scalars: tuple[float, float], rng: np.random.Generator, record_property: Record
) -> None:
    before = _integers(rng, dtype, 5, 7)
    c, nothing = before.copy(), np.empty((5, 0), before.dtype)
    infiniop_py.gemm_(c, nothing, np.empty((0, 7), before.dtype), *scalars)
    assert_gemm(c, before, nothing, nothing.T, *scalars, exact_data=True)
    record_property("cases", 1)


@pytest.mark.parametrize("way", _WAYS, ids=str)
@pytest.mark.parametrize("dtype", FLOATS)
def test_alpha_and_beta_come_before_the_store(
    dtype: str, way: tuple[int, int, int, bool], rng: np.random.Generator, record_property: Record
) -> None:
    """Sums beyond F16's largest number that alpha, or what is added, brings back."""
    c, a, b = _operands(rng, dtype, *way)
    a[...], b[...] = np.abs(a) * 16, np.abs(b) * 16
    c[...] = -1024
    for alpha, beta in ((2.0**-8, 0.0), (1.0, 32.0), (-(2.0**-8), -1.0)):
        got = infiniop_py.gemm(a, b, alpha, beta, c=c)
        assert_gemm(got, c, a, b, alpha, beta, exact_data=True)
    record_property("cases", 3)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", ["gemm_add", "gemm_mul"])
@pytest.mark.parametrize(("alpha", "k"), [(0.0, 9), (-0.0, 9), (1.0, 0), (NAN, 0)])
def test_a_product_of_zeros_still_meets_d(
    op: str, dtype: str, alpha: float, k: int, record_property: Record
) -> None:
    d = np.array([[0.0, -0.0, 1.5, -3.0, INF, -INF, NAN]] * 9).astype(DTYPES[dtype])
    a, b = np.full((9, k), NAN).astype(d.dtype), np.full((k, 7), INF).astype(d.dtype)
    y = getattr(infiniop_py, op)(a, b, d, alpha)
    with np.errstate(invalid="ignore"):
        zeros = np.zeros_like(d)
        assert_same_bits(y, np.asarray(zeros + d if op == "gemm_add" else zeros * d))
    record_property("cases", 1)


# ---- add_rms_norm ------------------------------------------------------------------------------------------

_DEPTHS = (1, 4, 16, 64, 1024, 16384)  # powers of two: the mean of equal squares is exact


def _norm(x: Array, weight: Array, epsilon: float) -> Array:
    y, residual = infiniop_py.add_rms_norm(x, np.zeros_like(x), weight, epsilon)
    assert_same_bits(residual, x)
    return np.asarray(y)


@pytest.mark.parametrize("depth", _DEPTHS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_any_epsilon(dtype: str, depth: int, record_property: Record) -> None:
    """Rows of 2 with signs that take turns: y is 2 / sqrt(4 + epsilon)."""
    x = np.where(np.arange(depth) % 2, -2.0, 2.0).astype(DTYPES[dtype])[None].repeat(3, 0)
    weight = np.ones(depth, x.dtype)
    wanted = {0.0: 1.0, 12.0: 0.5, -3.0: 2.0, -4.0: INF, -5.0: NAN, INF: 0.0, -INF: NAN, NAN: NAN}
    for epsilon, factor in wanted.items():
        y = np.sign(x.astype(np.float64)) * factor
        assert_same_bits(_norm(x, weight, epsilon), round_to(FORMATS[dtype], y), f"epsilon {epsilon}")
    record_property("cases", len(wanted))


@pytest.mark.parametrize("depth", _DEPTHS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_squares_beyond_the_largest_number(dtype: str, depth: int, record_property: Record) -> None:
    """Their sum is infinite and y is 0 with the sign of its product; F16's squares are far below F32's limit.
    Other rows do not notice."""
    f = FORMATS[dtype]
    x = np.full((5, depth), 2.0).astype(f.dtype)
    x[1::2] = -(2.0**f.emax)
    y = _norm(x, np.full(depth, -0.5).astype(f.dtype), 0.0)
    for i in range(5):
        large = 0.0 if dtype != "f16" else 0.5
        assert_same_bits(y[i], np.full(depth, -0.5 if i % 2 == 0 else large).astype(f.dtype), f"row {i}")
    record_property("cases", 1)


@pytest.mark.parametrize("depth", _DEPTHS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_squares_below_the_smallest_number(dtype: str, depth: int, record_property: Record) -> None:
    """Their sum is 0: epsilon counts, and without one y is infinite. F16's smallest has a square in F32."""
    f = FORMATS[dtype]
    x = np.full((2, depth), -f.eta).astype(f.dtype)
    weight = np.full(depth, 2.0).astype(f.dtype)
    assert_same_values(_norm(x, weight, 0.0), np.full_like(x, -2.0 if dtype == "f16" else -INF))
    with_epsilon = -f.eta * 2.0 / np.sqrt(2.0**-20 + (f.eta**2 if dtype == "f16" else 0.0))
    assert_same_bits(_norm(x, weight, 2.0**-20), round_to(f, np.full(x.shape, with_epsilon)))
    record_property("cases", 2)


@pytest.mark.parametrize("depth", _DEPTHS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_nonfinite_elements_of_a_row(
    dtype: str, depth: int, rng: np.random.Generator, record_property: Record
) -> None:
    """A NaN makes the whole row NaN; an infinity makes itself NaN and the others 0. No other row notices."""
    x = np.ones((4, depth), DTYPES[dtype])
    weight = np.full(depth, 3.0).astype(x.dtype)
    for at, value in itertools.product({0, depth // 2, depth - 1}, (NAN, INF, -INF)):
        changed = x.copy()
        changed[2, at] = value
        wanted = np.full_like(x, 3.0)
        wanted[2] = NAN if np.isnan(value) else 0.0
        wanted[2, at] = NAN
        assert_same_bits(_norm(changed, weight, 0.0), wanted, f"{value} at {at}")
        weighted = weight.copy()
        weighted[at] = value
        assert_same_bits(
            _norm(x, weighted, 0.0), np.broadcast_to(weighted, x.shape), f"weight {value} at {at}"
        )
    record_property("cases", 18)
