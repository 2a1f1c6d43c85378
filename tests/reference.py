"""What the operators must give: references in wider arithmetic, and how far a result may be from them.

u is the unit roundoff 2**-precision, eta the smallest subnormal, gamma(n, u) = n*u / (1 - n*u): the classical
bound on n roundings (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1). acc is the format
an operator accumulates in: F64 for F64, F32 for everything smaller.
"""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np
from layouts import Array, bits


@dataclass(frozen=True)
class Format:
    """A binary floating-point format: significand bits (the hidden one included) and exponent range."""

    dtype: np.dtype[np.generic]
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


FORMATS = {
    "f16": Format(np.dtype(np.float16), 11, -14, 15),
    "bf16": Format(np.dtype(ml_dtypes.bfloat16), 8, -126, 127),
    "f32": Format(np.dtype(np.float32), 24, -126, 127),
    "f64": Format(np.dtype(np.float64), 53, -1022, 1023),
}
_BY_DTYPE = {format_.dtype: format_ for format_ in FORMATS.values()}


def format_of(x: Array) -> Format:
    return _BY_DTYPE[x.dtype]


def accumulator(out: Format) -> Format:
    return FORMATS["f64"] if out is FORMATS["f64"] else FORMATS["f32"]


def gamma(n: float, u: float) -> float:
    return n * u / (1.0 - n * u)


def widen(x: Array) -> Array:
    """To the format references are computed in: long double for F64, float64 for the others."""
    return x.astype(np.longdouble if x.dtype == np.float64 else np.float64)


def round_to(out: Format, x: Array) -> Array:
    """Round float64 values once, to nearest even, to `out`, overflow and subnormals included."""
    if out is FORMATS["f64"]:
        return x.astype(np.float64)
    with np.errstate(all="ignore"):
        exponent = np.maximum(np.frexp(x)[1] - 1, out.emin) - (out.precision - 1)
        rounded = np.ldexp(np.rint(np.ldexp(x, -exponent)), exponent)
        rounded = np.where(np.abs(rounded) > out.max, np.copysign(np.inf, x), rounded)
        return np.where(np.isnan(x), np.nan, rounded).astype(out.dtype)


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


def assert_within(got: Array, exact: Array, acc_error: Array, what: str) -> None:
    """Check a result stored once in its format from a computed value at most `acc_error` away from `exact`.

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


# ---- gemm --------------------------------------------------------------------------------------------------


def _gemm_wide(c: Array, a: Array, b: Array, alpha: float, beta: float, shape: tuple[int, ...]) -> Array:
    """alpha*a@b + beta*c in the arithmetic of the operands, with what alpha, beta and K exclude left
    unread."""
    total = np.zeros(shape, a.dtype)
    if alpha != 0 and a.shape[-1] != 0:
        total = total + alpha * (a @ b)
    if beta != 0:
        total = total + beta * c
    return total


def assert_gemm(
    got: Array, c: Array, a: Array, b: Array, alpha: float, beta: float, *, exact_data: bool
) -> None:
    """c, a, b: contents before the call. exact_data: every product and sum is representable in the
    accumulator, so that the result must be the exact one rounded once."""
    alpha, beta = float(np.float32(alpha)), float(np.float32(beta))
    out = format_of(got)
    acc = accumulator(out)
    if exact_data:
        with np.errstate(all="ignore"):
            c64, a64, b64 = (x.astype(np.float64) for x in (c, a, b))
            expected = round_to(out, _gemm_wide(c64, a64, b64, alpha, beta, got.shape))
        assert_same_values(got, expected, "c")
        return

    # A product is rounded once, then takes part in at most K-1 additions, one multiplication with alpha and
    # one addition of beta*C: K+2 roundings, whatever the order, and fewer with fused ones. Multiplications
    # may also underflow, by at most eta/2 each. The reference itself is K+2 roundings of a wider format away.
    k = a.shape[-1]
    c, a, b = widen(c), widen(a), widen(b)
    with np.errstate(all="ignore"):
        exact = _gemm_wide(c, a, b, alpha, beta, got.shape)
        magnitude = _gemm_wide(np.abs(c), np.abs(a), np.abs(b), abs(alpha), abs(beta), got.shape)
        u_reference = float(np.finfo(exact.dtype).eps) / 2
        acc_error = (gamma(k + 2, acc.u) + gamma(k + 2, u_reference)) * magnitude
        acc_error = acc_error + (k * abs(alpha) + 3) * acc.eta / 2
    assert_within(got, exact, acc_error, "c")


def assert_gemm_rms(got: Array, a: Array, b: Array, alpha: float) -> None:
    """The second tier, for standard normal data and beta == 0: a worst-case bound alone misses operands
    silently cut to a shorter format at large K. Sequential summation errs by about 0.41*u*K*rms(A)*rms(B), a
    store by at most 0.58*u_out*rms(C) (a uniform error of half an ulp over a binade)."""
    out = format_of(got)
    acc = accumulator(out)
    a, b = widen(a), widen(b)
    exact = float(np.float32(alpha)) * (a @ b)

    def rms(x: Array) -> float:
        return float(np.sqrt(np.mean(np.square(x))))

    error = rms(widen(got) - exact)
    bound = acc.u * a.shape[-1] * rms(a) * rms(b) * abs(alpha) + 0.6 * out.u * rms(exact)
    assert error <= bound, f"c: rms error {error} exceeds {bound} (ratio {error / bound:.2f})"


# ---- add, mul ----------------------------------------------------------------------------------------------


def elementwise(op: str, a: Array, b: Array) -> Array:
    """NumPy's result (ml_dtypes' for BF16): correctly rounded, integers wrap."""
    with np.errstate(all="ignore"):
        return np.asarray({"add": np.add, "mul": np.multiply}[op](a, b))


# ---- add_rms_norm ------------------------------------------------------------------------------------------


def assert_rms_norm(y: Array, residual: Array, weight: Array, epsilon: float) -> None:
    """Check y = r * rsqrt(mean(r^2) + epsilon) * w, where r = `residual` holds the rounded sums.

    Roundings, all in acc with unit roundoff u and D the length of a row:
      s = sum of r_i^2     1 (square) + D-1 (additions, any order), all terms >= 0: relative error gamma_D
      t = s/D + epsilon    2 (s * fl(1/D), or 1 for a division) + 1 (addition; epsilon >= 0): gamma_{D+3} =: g
      v = t^(-1/2)         inherits |(1 +- g)^(-1/2) - 1| <= g/2 * (1 + 2g) for g <= 1/4; 2 (root, division)
      y = r * v * w        2; the weight is converted to acc without error
    so y is 4 roundings and the inherited error away: relative error h, 1+h = (1 + g/2*(1+2g)) * (1 +
    gamma_4), to which the reference adds its own with its smaller u. r*v and its product with w may
    underflow, each by eta/2. Then the store, see assert_within. Squares that underflow take D*eta/2 from s:
    this check is given only data whose squares, or an epsilon, are far above eta, and rows of zeros.
    """
    out = format_of(y)
    acc = accumulator(out)
    depth = residual.shape[-1]
    r, w = widen(residual), weight.astype(widen(residual).dtype)
    with np.errstate(all="ignore"):
        mean = np.sum(r * r, axis=-1, keepdims=True) / max(depth, 1)
        exact = r / np.sqrt(mean + float(np.float32(epsilon))) * w
        u_reference = float(np.finfo(exact.dtype).eps) / 2
        relative = sum(_rms_norm_error(depth, u) for u in (acc.u, u_reference))
        acc_error = relative * np.abs(exact) + (np.abs(w) + 1) * acc.eta / 2
    assert_within(y, exact, acc_error, "y")


def _rms_norm_error(depth: int, u: float) -> float:
    g = gamma(depth + 3, u)
    return (1 + g / 2 * (1 + 2 * g)) * (1 + gamma(4, u)) - 1
