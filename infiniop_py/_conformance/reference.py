"""What the operators must give: references in wider arithmetic, and how far a result may be from them.

u is the unit roundoff 2**-precision, eta the smallest subnormal, gamma(n, u) = n*u / (1 - n*u): the classical
bound on n roundings (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1). acc is the format
an operator accumulates in: F64 for F64, F32 for everything smaller.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..dtypes import DType
from ..errors import DTypeError
from .layouts import Array, bits


@dataclass(frozen=True)
class Format:
    """A binary floating-point format: significand bits (the hidden one included) and exponent range."""

    dtype: np.dtype[Any]
    precision: int
    emin: int
    emax: int

    @property
    def u(self) -> float:
        return 2.0**-self.precision

    @property
    def eta(self) -> float:
        return 2.0 ** (self.emin - self.precision + 1)

    @property
    def ulp_of_max(self) -> float:
        return 2.0 ** (self.emax - self.precision + 1)

    @property
    def max(self) -> float:
        return (2.0 - 2.0 ** (1 - self.precision)) * 2.0**self.emax


def _formats() -> Iterator[tuple[str, Format]]:
    """Those that NumPy has here: BF16 needs the package ml_dtypes."""
    for name, dtype, precision, emin, emax in (
        ("f16", DType.F16, 11, -14, 15),
        ("bf16", DType.BF16, 8, -126, 127),
        ("f32", DType.F32, 24, -126, 127),
        ("f64", DType.F64, 53, -1022, 1023),
    ):
        try:
            yield name, Format(dtype.numpy, precision, emin, emax)
        except DTypeError:
            continue


FORMATS = dict(_formats())
_BY_DTYPE = {format_.dtype: format_ for format_ in FORMATS.values()}


def format_of(x: Array) -> Format:
    return _BY_DTYPE[x.dtype]


def accumulator(out: Format) -> Format:
    return FORMATS["f64"] if out is FORMATS["f64"] else FORMATS["f32"]


def gamma(n: float, u: float) -> float:
    return n * u / (1.0 - n * u)


def widen(x: Array) -> Array:
    """To the format references are computed in: long double for F64, float64 for the others."""
    with np.errstate(invalid="ignore"):  # a signalling NaN
        return x.astype(np.longdouble if x.dtype == np.float64 else np.float64)


def round_to(out: Format, x: Array) -> Array:
    """Round float64 values once, to nearest even, to `out`, overflow and subnormals included."""
    if out is FORMATS["f64"]:
        return x.astype(np.float64)
    with np.errstate(all="ignore"):
        exponent = np.maximum(np.frexp(x)[1] - 1, out.emin) - (out.precision - 1)
        rounded = np.ldexp(np.rint(np.ldexp(x, -exponent)), exponent)
        rounded = np.where(np.abs(rounded) > out.max, np.copysign(np.inf, x), rounded)
        return np.asarray(np.where(np.isnan(x), np.nan, rounded), out.dtype)


def assert_same_bits(got: Array, expected: Array, what: str = "result") -> None:
    """Equal shape, dtype and bits; a NaN equals any NaN."""
    assert got.dtype == expected.dtype, f"{what}: dtype {got.dtype}, expected {expected.dtype}"
    assert got.shape == expected.shape, f"{what}: shape {got.shape}, expected {expected.shape}"
    got_bits, expected_bits = bits(got), bits(expected)
    wrong = got_bits != expected_bits
    if expected.dtype in _BY_DTYPE:
        wrong &= ~(np.isnan(got).reshape(-1) & np.isnan(expected).reshape(-1))
    if wrong.any():
        words = max(1, expected.dtype.itemsize // 8)
        flat = int(np.flatnonzero(wrong)[0]) // words
        index = tuple(int(i) for i in np.unravel_index(flat, expected.shape)) if expected.shape else ()
        raise AssertionError(
            f"{what}: {np.count_nonzero(wrong)} of {wrong.size} words differ; first at {index}:"
            f" got {got[index]!r} (0x{int(got_bits[flat * words]):x}), expected {expected[index]!r}"
            f" (0x{int(expected_bits[flat * words]):x})"
        )


def assert_same_values(got: Array, expected: Array, what: str = "result") -> None:
    """Equal shape, dtype and values; -0 equals 0 and a NaN equals any NaN."""
    zero = np.zeros((), expected.dtype)
    assert_same_bits(np.where(got == 0, zero, got), np.where(expected == 0, zero, expected), what)


def ulp(out: Format, x: Array) -> Array:
    """The distance of `out`'s numbers around x, in x's own type."""
    return np.asarray(
        np.ldexp(np.ones_like(x), np.maximum(np.frexp(x)[1] - 1, out.emin) - (out.precision - 1))
    )


def worst_ulps(got: Array, exact: Array) -> float:
    """The worst error of finite results, in units in the last place of the exact ones."""
    with np.errstate(invalid="ignore"):
        errors = np.abs(widen(got) - exact) / ulp(format_of(got), exact)
    return float(np.max(errors, initial=0.0, where=np.isfinite(exact) & np.isfinite(widen(got))))


def rms(x: Array) -> float:
    return float(np.sqrt(np.mean(np.square(x))))


def assert_within(got: Array, exact: Array, acc_error: Array, what: str) -> float:
    """Check a result stored once in its format from a computed value at most `acc_error` away from `exact`;
    return the worst ratio of a finite result's error to its bound.

    The stored value is fl(x) with |x - exact| <= acc_error, so |got - exact| <= acc_error + u*(|exact| +
    acc_error) + eta/2, without the last two when accumulator and result are one format. It is infinite
    exactly when |x| reaches max + ulp/2; when that lies within acc_error of |exact|, either is right. NaN and
    inf of `exact` are wanted as such.
    """
    out = format_of(got)
    value = widen(got)
    stored = out is not accumulator(out)
    with np.errstate(all="ignore"):
        bound = acc_error + stored * (out.u * (np.abs(exact) + acc_error) + out.eta / 2)
        error = np.abs(value - exact)
        limit = np.longdouble(out.max) + np.longdouble(out.ulp_of_max) / 2
        right = np.where(
            np.isfinite(value),
            (error <= bound) & (np.abs(exact) - acc_error < limit),
            (np.abs(exact) + acc_error >= limit) & (value == np.copysign(np.inf, exact)),
        )
        right = np.where(np.isfinite(exact), right, (value == exact) | (np.isnan(value) & np.isnan(exact)))
    if not right.all():
        index = tuple(int(i[0]) for i in np.nonzero(np.atleast_1d(~right)))
        index = index if got.shape else ()
        raise AssertionError(
            f"{what}: {np.count_nonzero(~right)} of {right.size} out of bounds; first at {index}:"
            f" got {value[index]}, exact {exact[index]}, error {error[index]}, bound {bound[index]}"
        )
    counts = np.isfinite(exact) & np.isfinite(value) & (error > 0)
    with np.errstate(all="ignore"):
        return float(np.max(error / bound, initial=0.0, where=counts))


def assert_rms_within(got: Array, exact: Array, bound: float, what: str) -> float:
    """Check the second tier's bound, to which the store is added; return the ratio of the error to it."""
    bound += _STORE * format_of(got).u * rms(exact)
    error = rms(widen(got) - exact)
    assert error <= bound, f"{what}: rms error {error} exceeds {bound} (ratio {error / bound:.2f})"
    return error / bound


# A store errs by at most 0.58*u_out*rms(C): half an ulp, uniformly, over a binade.
_STORE = 0.6


# ---- gemm --------------------------------------------------------------------------------------------------


def _gemm(c: Array, a: Array, b: Array, alpha: float, beta: float, shape: tuple[int, ...]) -> Array:
    """alpha*a@b + beta*c in the arithmetic of the operands, with what alpha, beta and K exclude left
    unread."""
    total = np.zeros(shape, a.dtype)
    with np.errstate(all="ignore"):
        if alpha != 0 and a.shape[-1] != 0:
            if b.dtype == np.longdouble:  # for which there is no BLAS: NumPy goes along the columns of b
                b = b.swapaxes(-1, -2).copy().swapaxes(-1, -2)
            total = total + alpha * (a @ b)
        if beta != 0:
            total = total + beta * c
    return total


def gemm(c: Array, a: Array, b: Array, alpha: float = 1.0, beta: float = 0.0) -> Array:
    """alpha*a@b + beta*c in wider arithmetic; c has the shape of the result."""
    alpha, beta = float(np.float32(alpha)), float(np.float32(beta))
    return _gemm(widen(c), widen(a), widen(b), alpha, beta, c.shape)


def gemm_error(c: Array, a: Array, b: Array, alpha: float, beta: float) -> Array:
    """How far what is accumulated for C may be from the exact result.

    A product is rounded once, then takes part in at most K-1 additions, one multiplication with alpha and one
    addition of beta*C: K+2 roundings, whatever the order, and fewer with fused ones. Multiplications may also
    underflow, by at most eta/2 each. The reference itself is K+2 roundings of a wider format away. The sum of
    the magnitudes is computed in float64, with another K+2 roundings.
    """
    acc = accumulator(format_of(c))
    n, u_reference = a.shape[-1] + 2, float(np.finfo(widen(c[..., :0]).dtype).eps) / 2
    with np.errstate(all="ignore"):
        c, a, b = (np.abs(x.astype(np.float64)) for x in (c, a, b))
        magnitude = _gemm(c, a, b, abs(alpha), abs(beta), c.shape) * (1 + gamma(n, 2.0**-53))
        error = (gamma(n, acc.u) + gamma(n, u_reference)) * magnitude + (n * abs(alpha) + 3) * acc.eta / 2
    return np.asarray(error)


def assert_gemm(
    got: Array, c: Array, a: Array, b: Array, alpha: float, beta: float, *, exact_data: bool
) -> None:
    """c, a, b: contents before the call. exact_data: every product and sum is representable in the
    accumulator, so that the result must be the exact one rounded once."""
    if exact_data:
        alpha, beta = float(np.float32(alpha)), float(np.float32(beta))
        with np.errstate(all="ignore"):
            c64, a64, b64 = (x.astype(np.float64) for x in (c, a, b))
        expected = round_to(format_of(got), _gemm(c64, a64, b64, alpha, beta, got.shape))
        assert_same_values(got, expected, "c")
    else:
        assert_gemm_bound(got, gemm(c, a, b, alpha, beta), c, a, b, alpha, beta)


def assert_gemm_bound(
    got: Array, exact: Array, c: Array, a: Array, b: Array, alpha: float = 1.0, beta: float = 0.0
) -> float:
    """The first tier, the worst case; exact is gemm(c, a, b, alpha, beta)."""
    return assert_within(got, exact, gemm_error(c, a, b, alpha, beta), "c")


def _gemm_rms(out: Format, a: Array, b: Array, alpha: float) -> float:
    """Sequential summation errs by about 0.41*u*K*rms(A)*rms(B)."""
    return float(accumulator(out).u * a.shape[-1] * rms(widen(a)) * rms(widen(b)) * abs(alpha))


def assert_gemm_rms(got: Array, exact: Array, a: Array, b: Array, alpha: float = 1.0) -> float:
    """The second tier, for standard normal data and beta == 0: a worst-case bound alone misses operands
    silently cut to a shorter format at large K."""
    return assert_rms_within(got, exact, _gemm_rms(format_of(got), a, b, alpha), "c")


def epilogue(op: str, product: Array, d: Array) -> Array:
    """What follows the product in gemm_add and gemm_mul."""
    return product + d if op == "gemm_add" else product * d


def epilogue_error(op: str, y: Array, product: Array, a: Array, b: Array, d: Array) -> Array:
    """How far what is stored for gemm_add or gemm_mul may be from epilogue(op, product, d): the exact product
    is rounded to the result's type before D comes in; what is then added or multiplied rounds once more in
    acc, before the store. y: of the result's type and shape."""
    out = format_of(y)
    acc, d = accumulator(out), widen(d)
    with np.errstate(all="ignore"):
        error = gemm_error(y, a, b, 1.0, 0.0)
        error = error + out.u * (np.abs(product) + error) + out.eta / 2
        if op == "gemm_mul":
            error = error * np.abs(d)
        return np.asarray(error + acc.u * (np.abs(epilogue(op, product, d)) + error) + acc.eta / 2)


def assert_epilogue_rms(op: str, got: Array, product: Array, a: Array, b: Array, d: Array) -> float:
    """The second tier, for standard normal A, B and D."""
    out = format_of(got)
    bound = _gemm_rms(out, a, b, 1.0) + _STORE * out.u * rms(product)
    bound *= rms(widen(d)) if op == "gemm_mul" else 1.0
    return assert_rms_within(got, epilogue(op, product, widen(d)), bound, "y")


# ---- add, mul ----------------------------------------------------------------------------------------------


def elementwise(op: str, a: Array, b: Array) -> Array:
    """NumPy's result (ml_dtypes' for BF16): correctly rounded, integers wrap."""
    with np.errstate(all="ignore"):
        return np.asarray({"add": np.add, "mul": np.multiply}[op](a, b))


# ---- add_rms_norm ------------------------------------------------------------------------------------------


def _mean_square(r: Array) -> Array:
    return np.asarray(np.sum(r * r, axis=-1, keepdims=True) / max(r.shape[-1], 1))


def rms_norm(residual: Array, weight: Array, epsilon: float) -> Array:
    """y in wider arithmetic."""
    r = widen(residual)
    return np.asarray(r / np.sqrt(_mean_square(r) + float(np.float32(epsilon))) * weight.astype(r.dtype))


def assert_rms_norm(y: Array, residual: Array, weight: Array, epsilon: float) -> float:
    """Check y = r * rsqrt(mean(r^2) + epsilon) * w, where r = `residual` holds the rounded sums.

    Roundings, all in acc with unit roundoff u, D the length of a row, epsilon >= 0, so that no sum cancels:
      s = sum of r_i^2     1 (square) + D-1 (additions, any order): relative error gamma_D; squares that
                           underflow take up to D*eta/2 from it; beyond acc's largest number it is infinite
      t = s/D + epsilon    1 (a division) + 1 (addition): gamma_{D+2}, and eta/2 where the division underflows
      v = t^(-1/2)         2 (root, division)
      y = r * v * w        2; the weight is converted to acc without error
    so t lies in an interval around the exact one, y between its values at both ends, but for 4 roundings:
    gamma_4. To each the reference adds its own with its smaller u. r*v and its product with w may underflow,
    each by eta/2. Then the store, see assert_within.
    """
    out = format_of(y)
    acc = accumulator(out)
    depth = residual.shape[-1]
    with np.errstate(all="ignore"):
        exact, mean = rms_norm(residual, weight, epsilon), _mean_square(widen(residual))
        w = weight.astype(exact.dtype)
        u_reference = float(np.finfo(exact.dtype).eps) / 2
        g, h = (
            gamma(depth + 2, acc.u) + gamma(depth + 2, u_reference),
            gamma(4, acc.u) + gamma(4, u_reference),
        )
        t = mean + float(np.float32(epsilon))
        least = np.maximum(t * (1 - g) - 2 * acc.eta, 0)
        most = np.where(mean * depth * (1 + g) > acc.max, np.inf, t * (1 + g) + 2 * acc.eta)
        size = np.abs(widen(residual) * w)
        spread = np.maximum(size / np.sqrt(least) - np.abs(exact), np.abs(exact) - size / np.sqrt(most))
        spread = np.where(size == 0, 0, spread)
        acc_error = spread + h * (np.abs(exact) + spread) + (np.abs(w) + 1) * acc.eta / 2
    return assert_within(y, exact, acc_error, "y")


def assert_rms_norm_rms(y: Array, residual: Array, weight: Array, epsilon: float) -> float:
    """The second tier, for random data whose squares neither overflow nor underflow. The rounding errors of D
    terms are as good as independent: they add up to 0.33*u*sqrt(D) of the sum of the squares at most, and y
    has half of that: 0.5*sqrt(D)*u is three times as much. What follows the sum is at most 5*u."""
    depth = residual.shape[-1]
    exact = rms_norm(residual, weight, epsilon)
    bound = accumulator(format_of(y)).u * (0.5 * depth**0.5 + 5) * rms(exact)
    return assert_rms_within(y, exact, bound, "y")
