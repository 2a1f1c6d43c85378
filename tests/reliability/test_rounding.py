"""Rounding, bit for bit: every F16 and every BF16 number against partners, F32 and F64 at random, integers.

test_isa.py starts this file under the other instruction sets.

NumPy and ml_dtypes are the reference for sums and products; `round_to`, which rounds a float64 once, for the
rest. Products of two halves are exact in F32, and a sum of two that is rounded to F32 first and then to a
half is still correctly rounded, because 24 >= 2*11 + 2 (Figueroa, When is double rounding innocuous?, 1995).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import infiniop_py
from infiniop_py._conformance.cases import DTYPES, INTEGERS, special_values
from infiniop_py._conformance.layouts import Array
from infiniop_py._conformance.reference import (
    FORMATS,
    assert_same_bits,
    assert_same_values,
    elementwise,
    round_to,
)

HALVES = ("f16", "bf16")
Record = Callable[[str, object], None]
FUNCTIONS = {"add": infiniop_py.add_, "mul": infiniop_py.mul_}


def _every_value(dtype: str) -> Array:
    return np.arange(65536, dtype=np.uint16).view(DTYPES[dtype])


def _partners(dtype: str, rng: np.random.Generator) -> Array:
    """The special values of the type and some of random bits."""
    return np.concatenate([special_values(dtype), rng.integers(0, 65536, 20, np.uint16).view(DTYPES[dtype])])


def _relatives(x: Array) -> Array:
    """For each value itself, its negative, and five of its neighbours."""
    words = x.view(np.uint16)
    moved = [words, words ^ 0x8000, *(words + np.uint16(d % 65536) for d in (-5, -2, -1, 1, 3))]
    return np.stack(moved).view(x.dtype)


@pytest.mark.parametrize("op", FUNCTIONS)
@pytest.mark.parametrize("dtype", HALVES)
def test_every_value_against_partners(
    op: str, dtype: str, rng: np.random.Generator, record_property: Record
) -> None:
    x, partners = _every_value(dtype), _partners(dtype, rng)
    a, b = np.broadcast_arrays(x, partners[:, None])
    expected = elementwise(op, a, b)
    c = np.empty_like(expected)
    FUNCTIONS[op](c, a, b)  # both broadcast, by stride 0
    assert_same_bits(c, expected)
    c.fill(0)
    FUNCTIONS[op](c, np.ascontiguousarray(b), np.ascontiguousarray(a))
    assert_same_bits(c, expected)
    strided = np.zeros((*c.shape, 2), c.dtype)
    FUNCTIONS[op](strided[..., 1], a, b)
    assert_same_bits(strided[..., 1], expected)
    relatives = _relatives(x)
    c = np.empty_like(relatives)
    FUNCTIONS[op](c, x[None], relatives)
    assert_same_bits(c, elementwise(op, x[None], relatives))
    record_property("cases", 3 * a.size + c.size)


def _pairs(dtype: str, rng: np.random.Generator) -> list[tuple[Array, Array]]:
    """Any bits; numbers of like size; those whose products are subnormal; subnormal ones; sums that are ties,
    or next to one."""
    n, f = 1 << 17, FORMATS[dtype]
    any_bits = np.frombuffer(rng.bytes(2 * n * f.dtype.itemsize), f.dtype)
    near = rng.standard_normal(2 * n) * np.exp2(rng.integers(-30, 30, 2 * n))
    deep = rng.standard_normal(2 * n) * 2.0 ** (f.emin // 2)
    subnormal = rng.integers(-(2 ** (f.precision - 1)), 2 ** (f.precision - 1), 2 * n) * f.eta
    values = [any_bits, *(x.astype(f.dtype) for x in (near, deep, subnormal))]
    ordinary = near[:n].astype(f.dtype)
    half_ulp = np.ldexp(1.0, np.frexp(ordinary)[1] - f.precision - 1)
    ties = (half_ulp * rng.choice([-3.0, -1.0, 1.0, 3.0, 1 - 2 * f.u, 1 + 2 * f.u], n)).astype(f.dtype)
    return [*((x[:n], x[n:]) for x in values), (ordinary, ties)]


@pytest.mark.parametrize("op", FUNCTIONS)
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_random_pairs(op: str, dtype: str, rng: np.random.Generator, record_property: Record) -> None:
    pairs = _pairs(dtype, rng)
    for a, b in pairs:
        c = np.empty_like(a)
        FUNCTIONS[op](c, a, b)
        assert_same_bits(c, elementwise(op, a, b))
    record_property("cases", sum(a.size for a, _ in pairs))


@pytest.mark.parametrize("op", FUNCTIONS)
@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_wrap_around(op: str, dtype: str, rng: np.random.Generator, record_property: Record) -> None:
    """All pairs of 8 bits; random ones of more."""
    if DTYPES[dtype].itemsize == 1:
        every = np.arange(256, dtype=np.uint8).view(DTYPES[dtype])
        a, b = (np.ascontiguousarray(x) for x in np.broadcast_arrays(every[:, None], every))
    else:
        a, b = (np.frombuffer(rng.bytes(DTYPES[dtype].itemsize << 16), DTYPES[dtype]) for _ in range(2))
    # In Python's integers, which are never too long.
    exact = {"add": np.add, "mul": np.multiply}[op](a.astype(object), b.astype(object))
    wrapped = (exact & (2 ** (8 * a.dtype.itemsize) - 1)).astype(f"u{a.dtype.itemsize}").view(a.dtype)
    c = np.empty_like(a)
    FUNCTIONS[op](c, a, b)
    assert_same_bits(c, wrapped)
    record_property("cases", c.size)


@pytest.mark.parametrize("dtype", HALVES)
def test_residual_is_add(dtype: str, rng: np.random.Generator, record_property: Record) -> None:
    """In long rows and in rows that are mostly a tail."""
    x, partners = _every_value(dtype), _partners(dtype, rng)
    a = np.concatenate([np.broadcast_to(x, (len(partners), 65536)), np.stack([x] * 7)])
    b = np.concatenate([np.repeat(partners, 65536).reshape(-1, 65536), _relatives(x)])
    expected = elementwise("add", a, b)
    depths = (65536, 16384, 8)
    for depth in depths:
        shape = (a.size // depth, depth)
        y, residual_out = np.empty(shape, a.dtype), np.empty(shape, a.dtype)
        infiniop_py.add_rms_norm_(
            y, residual_out, a.reshape(shape), b.reshape(shape), np.ones(depth, a.dtype)
        )
        assert_same_bits(residual_out, expected.reshape(shape), f"residual_out, rows of {depth}")
    record_property("cases", len(depths) * a.size)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_residual_is_add_of_random_pairs(
    dtype: str, rng: np.random.Generator, record_property: Record
) -> None:
    pairs = _pairs(dtype, rng)
    for a, b in pairs:
        shape = (-1, 1024)
        _, residual = infiniop_py.add_rms_norm(a.reshape(shape), b.reshape(shape), np.ones(1024, a.dtype))
        assert_same_bits(residual, elementwise("add", a, b).reshape(shape))
    record_property("cases", sum(a.size for a, _ in pairs))


@pytest.mark.parametrize("dtype", HALVES)
def test_norm_stores_with_one_rounding_to_nearest_even(dtype: str, record_property: Record) -> None:
    """Residuals of 1 and epsilon 0 make y the F32 weight rounded once: each value, each midpoint to the next,
    and the F32 neighbours of both. The row's length is a power of two, so that the mean of squares is exactly
    1."""
    out = FORMATS[dtype]
    finite = np.arange(round_to(out, np.array([out.max])).view(np.uint16)[0] + 1, dtype=np.uint16).view(
        out.dtype
    )
    values = finite.astype(np.float64)
    middles = (values + np.append(values[1:], out.max + out.ulp_of_max)) / 2
    points = np.concatenate([values, middles]).astype(np.float32)
    points = np.concatenate(
        [points, np.nextafter(points, np.float32(0)), np.nextafter(points, np.float32(np.inf))]
    )
    points = np.concatenate([points, -points])
    depth = 1 << (len(points) - 1).bit_length()
    weight = np.ones(depth, np.float32)
    weight[: len(points)] = points
    one, zero = np.ones((1, depth), out.dtype), np.zeros((1, depth), out.dtype)
    y, residual_out = np.empty_like(one), np.empty_like(one)
    infiniop_py.add_rms_norm_(y, residual_out, one, zero, weight, 0.0)
    assert_same_bits(y[0], round_to(out, weight.astype(np.float64)), "y")
    record_property("cases", depth)


@pytest.mark.parametrize("dtype", HALVES)
def test_gemm_rounds_products_once(dtype: str, rng: np.random.Generator, record_property: Record) -> None:
    x, partners = _every_value(dtype), _partners(dtype, rng)
    expected = elementwise("mul", x[:, None], partners[None, :])
    c = np.empty_like(expected)
    infiniop_py.gemm_(c, x[:, None], partners[None, :])
    assert_same_values(c, expected, "outer product")
    turned = np.empty_like(expected.T)
    infiniop_py.gemm_(turned, partners[:, None], x[None, :])
    assert_same_values(turned, expected.T, "outer product, turned")
    column = np.empty((65536, 1), x.dtype)
    infiniop_py.gemm_(column, x[:, None], partners[3:4, None])
    assert_same_values(column, expected[:, 3:4], "one column")
    for j in rng.choice(len(partners), 4, replace=False):
        batch = np.empty((65536, 1, 1), x.dtype)
        infiniop_py.gemm_(batch, x[:, None, None], partners[j : j + 1, None])
        assert_same_values(batch[:, 0, 0], expected[:, j], "batch of 1x1x1")
    record_property("cases", 2 * c.size + 5 * column.size)


@pytest.mark.parametrize("dtype", HALVES)
def test_gemm_rounds_sums_once(dtype: str, rng: np.random.Generator, record_property: Record) -> None:
    """x*1 + 1*p inside the sum over K, and p*1 + beta*x with beta = 1."""
    x, partners = _every_value(dtype), _partners(dtype, rng)
    expected = elementwise("add", x[:, None], partners[None, :])
    a = np.stack([x, np.ones_like(x)], axis=1)
    b = np.stack([np.ones_like(partners), partners])
    c = np.empty_like(expected)
    infiniop_py.gemm_(c, a, b)
    assert_same_values(c, expected, "x*1 + 1*p")
    c[...] = x[:, None]
    infiniop_py.gemm_(c, np.ones((65536, 1), x.dtype), partners[None, :], 1.0, 1.0)
    assert_same_values(c, expected, "p + beta*x")
    record_property("cases", 2 * c.size)


@pytest.mark.parametrize("dtype", HALVES)
def test_gemm_stores_midpoints_to_even(dtype: str, record_property: Record) -> None:
    """x + half an ulp is a tie, which 1/256 of an ulp decides: sums the accumulator holds exactly."""
    out = FORMATS[dtype]
    x = _every_value(dtype)
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64)
    kept = np.isfinite(wide) & (np.abs(wide) >= 2.0 ** (out.emin + out.precision))
    x, wide = x[kept], wide[kept]
    half_ulp = np.ldexp(np.sign(wide), np.frexp(wide)[1] - out.precision - 1)
    for nudge in (0.0, 2.0**-7, -(2.0**-7)):
        terms = np.stack([wide, half_ulp, nudge * half_ulp], axis=1)
        a = round_to(out, terms)
        np.testing.assert_array_equal(a.astype(np.float64), terms)
        c = np.empty((len(x), 1), out.dtype)
        infiniop_py.gemm_(c, a, np.ones((3, 1), out.dtype))
        assert_same_values(
            c, round_to(out, terms.sum(axis=1))[:, None], f"tie nudged by {nudge} of half an ulp"
        )
    record_property("cases", 3 * len(x))


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_gemm_of_one_term_is_the_rounded_product(
    dtype: str, rng: np.random.Generator, record_property: Record
) -> None:
    """Subnormal products included: no instruction set flushes them."""
    values = special_values(dtype)
    values = np.concatenate([values, np.frombuffer(rng.bytes(200 * values.dtype.itemsize), values.dtype)])
    c = np.empty((len(values), len(values)), values.dtype)
    infiniop_py.gemm_(c, values[:, None], values[None, :])
    assert_same_values(c, elementwise("mul", values[:, None], values[None, :]), "outer product")
    record_property("cases", c.size)
