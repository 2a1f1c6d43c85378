"""Every error on every instruction set is within both bounds; the second rejects what the first misses."""

from __future__ import annotations

import logging
import math
import re
from collections import defaultdict
from collections.abc import Callable

import accuracy
import ml_dtypes
import numpy as np
import pytest
from isas import usable

import infiniop_py
from infiniop_py._conformance.cases import DTYPES, FLOATS
from infiniop_py._conformance.layouts import Array, Guarded
from infiniop_py._conformance.reference import assert_gemm_bound, assert_gemm_rms, gemm

Record = Callable[[str, object], None]


def check(slow: bool, record_property: Record) -> None:
    tables = accuracy.measured(slow)
    assert list(tables) == list(usable())
    record_property("cases", sum(found.cases for table in tables.values() for found in table.values()))
    for isa, table in tables.items():
        for (name, dtype), found in table.items():
            what = f"{name} of {dtype} on {isa}"
            if name in ("add", "mul", "add_rms_norm: residual_out"):
                assert 0.49 < found.ulps <= 0.5 and math.isnan(found.bound), what
            else:
                assert found.ulps > 0.49 and 0 < found.bound <= 1 and 0 < found.rms <= 1, what


def test_errors_are_within_their_bounds(record_property: Record) -> None:
    check(False, record_property)


@pytest.mark.slow
def test_errors_of_larger_cases(record_property: Record) -> None:
    check(True, record_property)


def test_the_cases_reach_every_way_to_multiply(caplog: pytest.LogCaptureFixture) -> None:
    found: dict[str, set[str]] = defaultdict(set)
    for case in accuracy.cases():
        if case.op != "gemm":
            continue
        operands = [Guarded(shape, DTYPES[case.dtype], layout).view for _, shape, layout in case.operands()]
        infiniop_py.Gemm.cache().clear()
        with caplog.at_level(logging.DEBUG, "infiniop_py"):
            infiniop_py.gemm.plan(*operands)
        (told,) = (message for message in caplog.messages if " planned: " in message)
        caplog.clear()
        ways = r"B kept|B transposed|B copied in pairs|in place by \w+|streamed by rows|columns|blocked"
        way = re.search(f": ({ways})", told)
        found[case.dtype].add(way[1] if way else told)
        found[case.dtype] |= set(re.findall("of C\\^T|an item each", told))
    all_have = {"in place by rows", "in place by columns", "streamed by rows", "columns", "blocked"}
    all_have |= {"of C^T", "an item each"}
    # Halves of a short K are copied as others are; BF16 where there are instructions for pairs, for those
    # alone: of 96 rows for each thread.
    isa = infiniop_py.cpu_isa()
    for_pairs = accuracy._BLOCKED_ROWS["bf16"] >= 96 * infiniop_py.get_num_threads()
    pairs = {"B copied in pairs"} if isa == "avx512_bf16" and for_pairs else set()
    copied = {"bf16": pairs} if isa in ("avx512_bf16", "amx_bf16") else {}
    expected = {dtype: all_have | copied.get(dtype, {"B transposed"}) for dtype in FLOATS}
    # Neither portable vectors nor pairs keep a B.
    for dtype in FLOATS:
        if isa != "portable" and (dtype, isa) != ("bf16", "avx512_bf16"):
            expected[dtype].add("B kept")
    assert found == expected


def _stored_by_cutting(x: Array) -> Array:
    """The next number towards 0, not the nearest one."""
    near = x.astype(np.float16)
    return np.where(np.abs(near.astype(np.float64)) > np.abs(x), np.nextafter(near, np.float16(0)), near)


def _summed_in_f16(a: Array, b: Array) -> Array:
    total = np.zeros((a.shape[0], b.shape[1]), np.float16)
    for k in range(a.shape[1]):
        total = total + a[:, k, None] * b[k]
    return total


def _cut(to: type) -> Callable[[Array, Array], Array]:
    def product(a: Array, b: Array) -> Array:
        return (a.astype(to).astype(np.float64) @ b.astype(to).astype(np.float64)).astype(a.dtype)

    return product


# What a faulty library would give: the type, K, and whether the first tier and a tolerance of 1e-2 miss it.
FAULTS: dict[str, tuple[str, int, bool, Callable[[Array, Array], Array]]] = {
    "f32 cut to f16": ("f32", 20000, True, _cut(np.float16)),
    "f64 cut to f32": ("f64", 1000, False, _cut(np.float32)),
    "f32 cut to bf16": ("f32", 1000, False, _cut(ml_dtypes.bfloat16)),
    "f16 summed in f16": ("f16", 1024, False, _summed_in_f16),
    "f16 stored by cutting": (
        "f16",
        20000,
        True,
        lambda a, b: _stored_by_cutting(a.astype(np.float64) @ b.astype(np.float64)),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_second_tier_rejects(fault: str, rng: np.random.Generator, record_property: Record) -> None:
    dtype, k, missed, product = FAULTS[fault]
    a, b = (rng.standard_normal(shape).astype(DTYPES[dtype]) for shape in ((16, k), (k, 32)))
    c = np.zeros((16, 32), a.dtype)
    exact = gemm(c, a, b)
    assert_gemm_rms(infiniop_py.gemm(a, b), exact, a, b)
    wrong = product(a, b)
    if missed:
        np.testing.assert_allclose(wrong, infiniop_py.gemm(a, b), 1e-2, 1e-2 * k**0.5)
        assert_gemm_bound(wrong, exact, c, a, b)
    with pytest.raises(AssertionError, match="rms error"):
        assert_gemm_rms(wrong, exact, a, b)
    record_property("cases", 1)


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_first_tier_rejects(dtype: str, rng: np.random.Generator, record_property: Record) -> None:
    """One product of 20 left out, one taken twice, one element of C a few numbers away."""
    a, b = (rng.random(shape).astype(DTYPES[dtype]) for shape in ((4, 20), (20, 5)))
    c = infiniop_py.gemm(a, b)
    exact = gemm(c, a, b)
    assert_gemm_bound(c, exact, c, a, b)
    more = np.concatenate([a, a[:, -1:]], axis=1), np.concatenate([b, b[-1:]])
    off = c.copy()
    off[2, 3] *= DTYPES[dtype].type(1 + 32 * float(ml_dtypes.finfo(c.dtype).eps))
    for wrong in (infiniop_py.gemm(a[:, 1:], b[1:]), infiniop_py.gemm(*more), off):
        with pytest.raises(AssertionError, match="out of bounds"):
            assert_gemm_bound(wrong, exact, c, a, b)
    record_property("cases", 3)
