"""A self-test of half a second: every operator on the CPU, against NumPy in float64 or exact integers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .dtypes import DType
from .errors import DTypeError
from .ops import add, add_rms_norm, gemm, mul, rearrange

Array = npt.NDArray[Any]

FLOATS = (DType.F16, DType.BF16, DType.F32, DType.F64)
INTEGERS = (DType.I8, DType.U8, DType.I32, DType.U64)
#: A small problem with odd sizes, and one that several threads share.
SIZES = ((5, 33, 40), (250, 190, 130))
#: Half a unit in the last place, relative.
_ROUNDING = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}


class Comparison(NamedTuple):
    """What an operator gave, what it should have given, and how far off each element may be."""

    got: Array
    wanted: Array
    bound: Array | float = 0.0

    def fault(self) -> str:
        """What is wrong, "" if nothing is."""
        if self.got.shape != self.wanted.shape or self.got.dtype != self.wanted.dtype:
            return f"{self.got.dtype} {self.got.shape}, wanted {self.wanted.dtype} {self.wanted.shape}"
        if self.got.dtype.kind in "iu":
            wrong = self.got != self.wanted
        else:
            off = np.abs(self.got.astype(np.float64) - self.wanted.astype(np.float64))
            wrong = ~(off <= self.bound)  # a NaN is wrong
        if not wrong.any():
            return ""
        first = tuple(int(i) for i in np.argwhere(wrong)[0])
        return (
            f"{wrong.sum()} of {wrong.size} elements are wrong, the first at {first}: {self.got[first]}, "
            f"wanted {self.wanted[first]}"
        )


def dtypes() -> tuple[list[DType], list[str]]:
    """The types that can be tested here, and why others cannot."""
    usable, reasons = [], []
    for dtype in (*FLOATS, *INTEGERS):
        try:
            dtype.numpy  # noqa: B018
        except DTypeError as error:
            reasons.append(str(error))
        else:
            usable.append(dtype)
    return usable, reasons


def _numbers(rng: np.random.Generator, dtype: DType, *shape: int) -> Array:
    """Numbers whose sums and products float64 holds, and for types of two bytes float32, too."""
    if dtype in (DType.F32, DType.F64):
        return rng.standard_normal(shape).astype(dtype.numpy)
    if dtype.is_float:
        return (rng.integers(-100, 101, shape) / 16).astype(dtype.numpy)
    limits = np.iinfo(dtype.numpy)
    return rng.integers(limits.min, limits.max, shape, dtype=dtype.numpy, endpoint=True)


def _rounded(exact: Array, dtype: DType) -> Array:
    """float64 values in `dtype`, rounded once."""
    if dtype is DType.F64:
        return exact
    return exact.astype(np.float32).astype(dtype.numpy)  # exact as float32 where a second rounding follows


#: Of a matrix: with these no sum of 130 products is rounded, in whatever order it is made.
_LARGEST = {DType.F16: 8, DType.BF16: 8, DType.F32: 2**8, DType.F64: 2**22}


def _gemm(rng: np.random.Generator, dtype: DType, m: int, n: int, k: int, turned: str) -> Comparison:
    largest = _LARGEST[dtype]
    a, b, c = (
        rng.integers(-largest, largest, shape).astype(dtype.numpy)
        for shape in ((k, m) if "a" in turned else (m, k), (n, k) if "b" in turned else (k, n), (m, n))
    )
    a, b = (a.T if "a" in turned else a), (b.T if "b" in turned else b)
    wanted = 0.5 * (a.astype(np.float64) @ b.astype(np.float64)) + 2 * c.astype(np.float64)
    return Comparison(gemm(a, b, 0.5, 2.0, c=c), _rounded(wanted, dtype))


def _elementwise(
    op: Callable[[Any, Any], Any],
    reference: Callable[[Any, Any], Any],
    rng: np.random.Generator,
    dtype: DType,
    m: int,
    n: int,
    turned: bool,
) -> Comparison:
    a = _numbers(rng, dtype, m, n)
    b = _numbers(rng, dtype, n, m).T if turned else _numbers(rng, dtype, m, n)
    if dtype.is_float:
        return Comparison(op(a, b), _rounded(reference(a.astype(np.float64), b.astype(np.float64)), dtype))
    return Comparison(op(a, b), reference(a, b))  # integers wrap around in both


def _add_rms_norm(rng: np.random.Generator, dtype: DType, m: int, n: int) -> Iterator[tuple[str, Comparison]]:
    a, b = _numbers(rng, dtype, m, n + 3)[:, :n], _numbers(rng, dtype, m, n)
    weight, epsilon = _numbers(rng, dtype, n), 1e-5
    y, residual = add_rms_norm(a, b, weight, epsilon)
    total = _rounded(a.astype(np.float64) + b.astype(np.float64), dtype)
    yield "residual", Comparison(residual, total)
    x = total.astype(np.float64)
    scale = 1 / np.sqrt(np.mean(x * x, -1, keepdims=True) + float(np.float32(epsilon)))
    wanted = x * scale * weight.astype(np.float64)
    # n squares, their sum, the root and two products in the type of the sums, and the rounding of the result;
    # twice, because the reference rounds as well
    sums = _ROUNDING["float64" if dtype is DType.F64 else "float32"]
    relative = 2 * (n + 8) * sums + 2 * _ROUNDING[dtype.numpy.name]
    yield "y", Comparison(y, wanted.astype(dtype.numpy), relative * np.abs(wanted))


def _rearrange(rng: np.random.Generator, dtype: DType, m: int, n: int) -> Comparison:
    x = _numbers(rng, dtype, m, 3, n)
    return Comparison(rearrange(x.transpose(2, 0, 1)), np.ascontiguousarray(x.transpose(2, 0, 1)))


def comparisons() -> Iterator[tuple[str, Comparison]]:
    """(what is compared, the comparison), one after the other."""
    rng = np.random.default_rng(0)
    for dtype in dtypes()[0]:
        for m, n, k in SIZES:
            size = f"{dtype} {m} x {n}"
            if dtype.is_float:
                for turned in ("", "a", "b", "ab"):
                    name = f"gemm {size} x {k}" + (f", transposed {' and '.join(turned)}" if turned else "")
                    yield name, _gemm(rng, dtype, m, n, k, turned)
                for output, comparison in _add_rms_norm(rng, dtype, m, n):
                    yield f"add_rms_norm {size}, {output}", comparison
            for turned_b in (False, True):
                layout = f"{size}, transposed b" if turned_b else size
                yield f"add {layout}", _elementwise(add, np.add, rng, dtype, m, n, turned_b)
                yield f"mul {layout}", _elementwise(mul, np.multiply, rng, dtype, m, n, turned_b)
            yield f"rearrange {size}", _rearrange(rng, dtype, m, n)


def run() -> tuple[int, list[str]]:
    """How many comparisons were made, and what was wrong."""
    count, faults = 0, []
    try:
        for name, comparison in comparisons():
            count += 1
            fault = comparison.fault()
            if fault:
                faults.append(f"{name}: {fault}")
    except Exception as error:  # whatever it is, the user asked what is wrong here
        faults.append(f"after {count} checks: {type(error).__name__}: {error}")
    return count, faults
