"""Products of BF16 in tiles (AMX): bit for bit the sums that the instruction is documented to give, whatever
way computes them.

Of 32 elements of k, products of even ones and of odd ones are two chains of fused multiply-adds from 0; their
sum is added to what there is. Nothing is flushed: where the instruction would, other kernels compute the
same.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

import infiniop_py
from infiniop_py._conformance.layouts import Array

BF16 = np.dtype(ml_dtypes.bfloat16)

pytestmark = pytest.mark.skipif(
    infiniop_py.cpu_isa() != "amx_bf16",
    reason=f"products are not computed in tiles on {infiniop_py.cpu_isa()}",
)


def _chain(a: Array, b: Array) -> Array:
    """a @ b: each product is exact in float64, and each sum rounded to float32 once.

    (float64 has the exact sum of a product of two BF16 and a float32 unless they are more than 2**29 apart,
    where rounding it twice may differ from rounding it once: not in numbers as near as those used here.)
    """
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for k in range(a.shape[1]):
        total = (a[:, k, None] * b[None, k] + total).astype(np.float32)
    return total


def _sums(a: Array, b: Array) -> Array:
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for k in range(0, a.shape[1], 32):
        part_a, part_b = wide_a[:, k : k + 32], wide_b[k : k + 32]
        total = total + (_chain(part_a[:, ::2], part_b[::2]) + _chain(part_a[:, 1::2], part_b[1::2]))
    return total


#: M, K, N: in place by few rows and by more, in one tile and two, in parts; with packed operands; in blocks.
SHAPES = [
    (1, 1, 1),
    (1, 70, 2100),
    (2, 301, 45),
    (3, 33, 31),
    (16, 16, 16),
    (17, 100, 48),
    (31, 545, 129),
    (33, 64, 65),
    (64, 64, 64),
    (70, 515, 1),
    (100, 520, 200),
    (330, 300, 90),
    (520, 2100, 70),
]

#: By how much elements of a row of A and of a column of B are scaled, if they are in the first half, or odd.
SCALES: dict[str, Callable[[Array, Array], tuple[Array | float, Array | float]]] = {
    "normal": lambda first, odd: (1.0, 1.0),
    "products below normal numbers": lambda first, odd: (2.0**-66, 2.0**-66),
    "elements below normal numbers": lambda first, odd: (np.where(first, 2.0**-130, 2.0**-128), 1.0),
    "odd products below normal numbers": lambda first, odd: (odd * 2.0**-66, np.where(odd, 2.0**-66, 1.0)),
    "sums below normal numbers, and then zeros": lambda first, odd: (np.where(first, 2.0**-66, 1.0),) * 2,
}


def _operands(shape: tuple[int, int, int], scales: str, rng: np.random.Generator) -> tuple[Array, Array]:
    m, k, n = shape
    first, odd = np.arange(k) < (k + 1) // 2, np.arange(k) % 2 == (k > 1)
    scale_a, scale_b = SCALES[scales](first, odd)
    a, b = rng.standard_normal((m, k)) * scale_a, (rng.standard_normal((n, k)) * scale_b).T
    if "then zeros" in scales:
        b[~first, ::2] = 0  # what the first half has left is all there is
    return a.astype(BF16), b.astype(BF16)


@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "x".join(map(str, shape)))
def test_bits(shape: tuple[int, int, int], scales: str, rng: np.random.Generator) -> None:
    a, b = _operands(shape, scales, rng)
    sums = _sums(a, b)
    assert np.any(sums != 0)
    alpha = np.float32(1 if scales == "normal" else 2.0**100)
    # More bits are seen than the result has: what the first rounding leaves of the sums.
    c = -(alpha * sums).astype(BF16)
    for left in (c, np.zeros_like(c)):
        expected = (alpha * sums + left.astype(np.float32)).astype(BF16)
        for orders in itertools.product("CF", repeat=3):
            *operands, out = (np.array(x, order=order) for x, order in zip((a, b, left), orders, strict=True))
            infiniop_py.gemm(*operands, float(alpha), 1.0, c=out, out=out)
            np.testing.assert_array_equal(out.view(np.uint16), expected.view(np.uint16), err_msg=str(orders))
