"""The same inputs give the same bits: in every run, whatever threads, neighbours and memory there are."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import numpy as np
import pytest
from isas import ISAS, needed, output, start

import infiniop_py
from infiniop_py._conformance.cases import (
    CALLS,
    DTYPES,
    FLOATS,
    INTEGERS,
    Case,
    Views,
    build,
    outputs_after,
    views,
)
from infiniop_py._conformance.layouts import OUTPUT_LAYOUTS, ROW_LAYOUTS, Array, Guarded, Shape, bits
from infiniop_py._conformance.reference import assert_same_bits
from infiniop_py.workspace import cpu_workspace

Record = Callable[[str, object], None]
Threads = Callable[[int], None]


def _normal(rng: np.random.Generator, dtype: str, *shape: int) -> Array:
    return rng.standard_normal(shape).astype(DTYPES[dtype])


# ---- a call again ------------------------------------------------------------------------------------------

# Large enough for several threads.
_REPEATED: dict[str, tuple[Shape, ...]] = {
    "gemm": ((96, 200), (96, 700), (700, 200)),
    "add": ((300, 517),) * 3,
    "mul": ((300, 517),) * 3,
    "add_rms_norm": ((200, 259),) * 4 + ((259,),),
    "rearrange": ((300, 517),) * 2,
    **dict.fromkeys(("gemm_add", "gemm_mul"), ((530, 100), (530, 300), (300, 100), (530, 100))),
}
_REPEATED_LAYOUTS = {
    "gemm": ("C", "T", "padded"),
    "add": ("C", "T"),
    "mul": ("padded", "T"),
    "rearrange": ("C", "T"),
    **dict.fromkeys(("gemm_add", "gemm_mul"), ("C", "T", "padded", "T")),
}
_TYPES = {"add": FLOATS + INTEGERS, "mul": FLOATS + INTEGERS, "rearrange": tuple(DTYPES)}
_CALLS = [(op, dtype) for op in CALLS for dtype in _TYPES.get(op, FLOATS)]

each_call = pytest.mark.parametrize(("op", "dtype"), _CALLS, ids=map("-".join, _CALLS))


class Repeat:
    """Runs one case again and again; each result must have the bits of the first."""

    def __init__(self, op: str, dtype: str) -> None:
        data = "normal" if op.startswith("gemm") else ""
        beta = 0.5 if op == "gemm" else 0.0
        self.case = Case(op, dtype, _REPEATED[op], _REPEATED_LAYOUTS.get(op, ()), data, beta=beta)
        self.operands = build(self.case)
        self.initial = {name: operand.view.copy() for name, operand in self.operands.items()}
        self.first = outputs_after(self.case, self.operands, self.initial)
        self.times = 0

    def check(self, when: str) -> None:
        self.compare(outputs_after(self.case, self.operands, self.initial), when)

    def compare(self, got: Views, when: str) -> None:
        self.times += 1
        for name, value in got.items():
            np.testing.assert_array_equal(bits(value), bits(self.first[name]), f"{name}: {when}")


@each_call
def test_every_run(op: str, dtype: str, num_threads: Threads, record_property: Record) -> None:
    repeat = Repeat(op, dtype)
    for run, count in itertools.product(range(4), (1, 2, 3, 8, 0)):
        num_threads(count)
        repeat.check(f"{count} threads, run {run}")
    with ThreadPoolExecutor(1) as thread:
        thread.submit(repeat.check, "in a new thread, whose caches are empty").result()
    record_property("cases", repeat.times)


_OPERATORS = {
    "gemm": infiniop_py.Gemm,
    "gemm_add": infiniop_py.GemmAdd,
    "gemm_mul": infiniop_py.GemmMul,
    "add": infiniop_py.Add,
    "mul": infiniop_py.Mul,
    "add_rms_norm": infiniop_py.AddRMSNorm,
    "rearrange": infiniop_py.Rearrange,
}


@each_call
def test_cold_warm_and_evicted(op: str, dtype: str, record_property: Record) -> None:
    repeat, cache = Repeat(op, dtype), _OPERATORS[op].cache()
    capacity = cache.cache_info().capacity
    other = build(Case(op, dtype, tuple(tuple(2 for _ in shape) for shape in _REPEATED[op])))
    try:
        cache.set_capacity(1)
        repeat.check("cold")
        hits, evictions = cache.cache_info().hits, cache.cache_info().evictions
        repeat.check("warm")
        assert cache.cache_info().hits == hits + 1
        CALLS[op](repeat.case, views(other))
        assert cache.cache_info().evictions == evictions + 1
        repeat.check("evicted")
    finally:
        cache.set_capacity(capacity)
    record_property("cases", repeat.times)


@each_call
def test_a_graph_replays_the_call(op: str, dtype: str, record_property: Record) -> None:
    repeat = Repeat(op, dtype)
    case, operands = repeat.case, repeat.operands
    with infiniop_py.Graph() as graph:
        CALLS[op](case, views(operands))
    for replay in range(3):
        for name in case.outputs:
            operands[name].view[...] = repeat.initial[name]
        graph.run()
        repeat.compare({name: operands[name].view.copy() for name in case.outputs}, f"replay {replay}")
        for name, operand in operands.items():
            operand.assert_guards_intact(name)
    record_property("cases", repeat.times)


def _at(x: Array, offset: int) -> Array:
    """A copy with the same strides that starts so many elements behind a cache line."""
    assert min(x.strides) > 0
    extent = sum((n - 1) * step for n, step in zip(x.shape, x.strides)) + x.itemsize
    raw = np.empty(extent + 64 + offset * x.itemsize, np.uint8)
    start = -raw.ctypes.data % 64 + offset * x.itemsize
    copy: Array = np.ndarray(x.shape, x.dtype, raw.data, start, x.strides)
    copy[...] = x
    return copy


@each_call
def test_every_address(op: str, dtype: str, record_property: Record) -> None:
    """Each operand at other offsets within two cache lines."""
    repeat = Repeat(op, dtype)
    operands = {name: operand.view for name, operand in repeat.operands.items()}
    line = 64 // DTYPES[dtype].itemsize
    for shift in range(0, 2 * line, max(1, line // 8)):
        moved = {
            name: _at(operand, (shift * (2 * i + 1) + i) % (2 * line))
            for i, (name, operand) in enumerate(operands.items())
        }
        for name in repeat.case.outputs:
            moved[name][...] = repeat.initial[name]
        CALLS[op](repeat.case, moved)
        repeat.compare({name: moved[name] for name in repeat.case.outputs}, f"moved by {shift}")
    record_property("cases", repeat.times)


# ---- a product in any memory and company -------------------------------------------------------------------


def _laid(x: Array, layout: str) -> Array:
    view = Guarded(x.shape, x.dtype, layout).view
    view[...] = x
    return view


@pytest.mark.parametrize(
    ("m", "k"), [(1, 300), (7, 259), (5, 511), (34, 600), (70, 31), (264, 260), (9, 1030), (35, 4700)]
)
@pytest.mark.parametrize("dtype", FLOATS)
def test_every_layout(dtype: str, m: int, k: int, rng: np.random.Generator, record_property: Record) -> None:
    """How operands lie decides how a product is computed, but not its bits; save that a long sum may have an
    order of its own where rows of A and columns of B are both contiguous."""
    a, b, c = _normal(rng, dtype, m, k), _normal(rng, dtype, k, 67), _normal(rng, dtype, m, 67)
    wholes = {False: infiniop_py.gemm(a, b, 0.3, 0.7, c=c)}
    layouts = [(first, second, "C") for first, second in itertools.product(OUTPUT_LAYOUTS, repeat=2)]
    layouts += [("C", second, third) for second, third in itertools.product(("C", "T"), OUTPUT_LAYOUTS)]
    for in_a, in_b, in_c in layouts:
        got, of_a, of_b = _laid(c, in_c), _laid(a, in_a), _laid(b, in_b)
        infiniop_py.gemm_(got, of_a, of_b, 0.3, 0.7)
        along_k = k >= 512 and of_a.strides[1] == of_b.strides[0] == a.itemsize
        whole = wholes.setdefault(along_k, np.ascontiguousarray(got))
        assert_same_bits(np.ascontiguousarray(got), whole, f"layouts {in_a}, {in_b}, {in_c}")
    assert len(wholes) == 1 + (k >= 512)
    record_property("cases", len(layouts))


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("k", [1, 7, 64, 259, 1030, 4700])
@pytest.mark.parametrize("dtype", FLOATS)
def test_every_part_of_a_product(
    dtype: str, k: int, order: Literal["C", "F"], rng: np.random.Generator, record_property: Record
) -> None:
    """Neither M nor N decides on the order of accumulation: any part of the product, computed alone, has its
    bits."""
    m, n = 45, 131
    a, b, c = _normal(rng, dtype, m, k), _normal(rng, dtype, k, n), _normal(rng, dtype, m, n)
    b = np.asarray(b, order=order)
    whole = infiniop_py.gemm(a, b, 0.3, 0.7, c=c)
    parts = [(slice(i, i + 1), slice(None)) for i in (0, 1, 17, 44)]
    parts += [(slice(None), slice(j, j + 1)) for j in (0, 1, 77, 130)]
    parts += [(slice(3, 20), slice(10, 75)), (slice(7, 8), slice(9, 10)), (slice(40, 45), slice(97, 131))]
    parts += [(slice(0, 4), slice(None)), (slice(None), slice(0, 16)), (slice(0, 9), slice(2, 4))]
    for rows, columns in parts:
        got = infiniop_py.gemm(a[rows], b[:, columns], 0.3, 0.7, c=c[rows, columns])
        assert_same_bits(got, np.ascontiguousarray(whole[rows, columns]), f"rows {rows}, columns {columns}")
    record_property("cases", len(parts))


@pytest.mark.parametrize("k", [15, 33, 70, 255, 256, 257, 300, 530, 800])
@pytest.mark.parametrize("dtype", FLOATS)
def test_columns_that_begin_anywhere(
    dtype: str, k: int, rng: np.random.Generator, record_property: Record
) -> None:
    """Columns of B that all begin at the same place of a cache line are read line by line, also where a K
    block ends within one."""
    line = 64 // DTYPES[dtype].itemsize
    stride = (k // line + 2) * line
    memory = np.zeros((45, stride), DTYPES[dtype])
    a, columns = _normal(rng, dtype, 3, k), _normal(rng, dtype, 45, k)
    whole = infiniop_py.gemm(a, columns.T)
    for begin in range(line):
        b = _at(memory[:, :k], begin)
        b[...] = columns
        for m in (1, 3):
            assert_same_bits(infiniop_py.gemm(a[:m], b.T), whole[:m], f"{m} rows, B begins at {begin}")
    record_property("cases", 2 * line)


@pytest.mark.parametrize("dtype", FLOATS)
def test_rows_that_begin_anywhere(
    dtype: str, rng: np.random.Generator, num_threads: Threads, record_property: Record
) -> None:
    """Rows of a large B that all begin at the same place of a cache line are read line by line, from there on
    and up to there. Infinite sums are spoilt by whatever is added to them."""
    line, k, n = 64 // DTYPES[dtype].itemsize, 600, 2061
    memory = np.zeros((k, 2112), DTYPES[dtype])
    a, rows = _normal(rng, dtype, 40, k), _normal(rng, dtype, k, n)
    a[0, 5], a[1, k - 1] = np.inf, -np.inf
    ways = [(1, 1), (1, 2), (2, 2), (4, 1), (9, 1), (9, 2), (40, 1), (40, 2)]
    num_threads(1)
    whole = infiniop_py.gemm(a, rows)
    for begin in range(line):
        b = _at(memory[:, :n], begin)
        b[...] = rows
        for m, threads in ways:
            num_threads(threads)
            got = infiniop_py.gemm(a[:m], b)
            assert_same_bits(got, whole[:m], f"{m} rows, {threads} threads, B begins at {begin}")
    record_property("cases", len(ways) * line)


_HEIGHTS = (1, 2, 3, 5, 8, 9, 32, 33, 64, 65, 97, 128, 129, 256, 257, 512, 600)


# In the last, columns of B meet in a few sets of the first-level cache.
@pytest.mark.parametrize(
    ("k", "in_b"),
    [
        *itertools.product((1, 7, 256, 257, 600, 1100), ("rows", "columns", "columns_apart")),
        (2051, "columns"),
    ],
)
@pytest.mark.parametrize("dtype", FLOATS)
def test_a_row_of_a_product_in_any_company(
    dtype: str,
    k: int,
    in_b: str,
    rng: np.random.Generator,
    num_threads: Threads,
    record_property: Record,
) -> None:
    """Whatever M and its place are, alone or in a batch, for any number of threads: numbers of rows on both
    sides of where another way to multiply is chosen, or another height of its tiles."""
    a, b = _normal(rng, dtype, 600, k), _normal(rng, dtype, k, 83)
    if in_b != "rows":
        columns = np.zeros((83, 2048 if in_b == "columns_apart" else k), a.dtype)[:, :k]
        columns[:] = b.T
        b = columns.T
    half = k // 2  # of which the other is the opposite, so that results are what rounding leaves of a sum
    a[:, half : 2 * half], b[half : 2 * half] = -a[:, :half], b[:half]
    b[0, 40] = 1e-40  # subnormal in BF16: beside it nothing is multiplied by instructions that flush
    num_threads(1)
    whole = infiniop_py.gemm(a, b)

    def company() -> Iterator[tuple[Array, Array]]:
        """Rows of a, and b for them."""
        for m in range(1, 71) if k == 7 else _HEIGHTS:
            yield rng.permutation(600)[:m], b
        for m in (1, 5, 33, 66):
            rows = rng.permutation(600)[: 3 * m].reshape(3, m)
            yield rows, b
            yield rows, _laid(np.stack([b] * 3), "C" if in_b == "rows" else "T")

    cases = 0
    for rows, with_b in company():
        for count in (1, 2, 3, 8) if rows.size > 8 else (2,):
            num_threads(count)
            got = infiniop_py.gemm(a[rows], with_b)
            assert_same_bits(got, whole[rows], f"{rows.shape} rows, b {with_b.shape}, {count} threads")
            cases += 1
    record_property("cases", cases)


@pytest.mark.parametrize("k", [256, 600])
@pytest.mark.parametrize("dtype", FLOATS)
def test_overlapping_rows_and_columns(
    dtype: str, k: int, rng: np.random.Generator, num_threads: Threads, record_property: Record
) -> None:
    """Rows and columns of windows over one run of elements: each is contiguous in either direction. Of small
    integers, so that any sum is exact."""
    run = rng.integers(-2, 3, k + 700).astype(DTYPES[dtype])
    a, columns = (np.lib.stride_tricks.sliding_window_view(run[begin:], k) for begin in (0, 13))
    wide = run.astype(np.float64)
    heights, widths = (1, 5, 33, 100, 300), (1, 7, 33, 70)
    for m, n, count in itertools.product(heights, widths, (1, 2)):
        num_threads(count)
        got = infiniop_py.gemm(a[:m], columns[:n].T)
        exact = [[wide[i : i + k] @ wide[13 + j : 13 + j + k] for j in range(n)] for i in (0, m - 1)]
        needed = np.asarray(exact).astype(np.float32).astype(got.dtype)
        assert_same_bits(np.ascontiguousarray(got[[0, m - 1]]), needed, f"{m} x {n}, {count} threads")
    record_property("cases", 2 * len(heights) * len(widths))


def _spoil_workspace() -> None:
    """Let this thread's workspace hold NaN, in every type: nobody may count on what is left there."""
    workspace = cpu_workspace()
    held = workspace.reserve(workspace.nbytes, "test")
    if held is not None:
        ctypes.memset(held.data_ptr, 0xFF, workspace.nbytes)


# Columns of B, of which a small cache holds less: rows that meet in a few of its sets, or not; far from each
# other, so that two groups of rows of A stream it in steps.
_LARGE_B = {"crowded": 2048, "large": 2050, "far": 11_500}


@pytest.mark.parametrize("transposed", [False, True], ids=["b_rows", "b_columns"])
@pytest.mark.parametrize("size", _LARGE_B)
@pytest.mark.parametrize("dtype", FLOATS)
def test_a_row_of_a_product_with_a_large_b(
    dtype: str,
    size: str,
    transposed: bool,
    rng: np.random.Generator,
    num_threads: Threads,
    record_property: Record,
) -> None:
    """Few rows, whose number decides on the way through B: in place by steps, streamed, packed ahead
    or packed. The rows of the whole are blocked: all five K blocks together, or some, as a cache has room.
    Of 300 rows, and 520 but in F64, a second-level cache of 2 MiB has room for a K block: few, too. Else
    each thread has columns of its own, where there are enough of them."""
    a, b = _normal(rng, dtype, 800, 1100), _normal(rng, dtype, 1100, _LARGE_B[size])
    b = np.asfortranarray(b) if transposed else b
    whole = infiniop_py.gemm(a, b)
    heights = (*range(1, 34), 64, 128, 300, 520)
    for m, count in [*itertools.product(heights, (1, 2)), (300, 5), (520, 3), (520, 16)]:
        num_threads(count)
        rows = rng.permutation(800)[:m]
        _spoil_workspace()
        assert_same_bits(infiniop_py.gemm(a[rows], b), whole[rows], f"{m} rows, {count} threads")
    record_property("cases", 2 * len(heights) + 3)


@pytest.mark.parametrize("dtype", FLOATS)
def test_columns_of_a_b_from_memory(
    dtype: str, rng: np.random.Generator, num_threads: Threads, record_property: Record
) -> None:
    """B transposed, of more than 16 MiB, in columns of one to three cache lines and some more: what is
    fetched ahead must not count on longer ones; or in some that meet in one set of the first-level cache. Of
    small integers, so that any sum is exact, and rounded once."""
    element = _normal(rng, dtype, 1, 1).dtype
    line, meeting, heights = 64 // element.itemsize, 2048 // element.itemsize, (1, 2, 3, 4, 9, 16)
    ks = (line, line + 1, 2 * line, 2 * line + 1, 3 * line, meeting - 1, meeting, 2 * meeting - 3)
    for k in ks:
        columns = (17 << 20) // (k * element.itemsize)
        a = rng.integers(0, 3, (max(heights), k)).astype(element)
        few = rng.integers(0, 3, (97, k)).astype(element)
        apart = k if k <= 3 * line else -(-k // meeting) * meeting
        b = np.empty((columns, apart), element)[:, :k]
        b[...] = np.resize(few, (columns, k))
        needed = (a.astype(np.float64) @ few.astype(np.float64).T).astype(np.float32).astype(element)
        for m, count in itertools.product(heights, (1, 2)):
            num_threads(count)
            got = np.asarray(infiniop_py.gemm(a[:m], b.T))
            assert np.array_equal(got, needed[:m, np.arange(columns) % 97]), f"{m} x {k}, {count} threads"
    record_property("cases", len(ks) * 2 * len(heights))


@pytest.mark.parametrize("subnormal", [False, True])
@pytest.mark.parametrize("k", [1024, 1100, 2048, 2300])
@pytest.mark.parametrize("dtype", FLOATS)
def test_columns_that_meet(
    dtype: str,
    k: int,
    subnormal: bool,
    rng: np.random.Generator,
    num_threads: Threads,
    record_property: Record,
) -> None:
    """Columns of B that meet in one set of the first-level cache, with NaN between them: some CPUs take two K
    blocks of them side by side, as few at a time as have room there. Whole groups of columns and not, added
    to a C or not."""
    a, c = _normal(rng, dtype, 40, k), _normal(rng, dtype, 40, 131)
    meeting = 2048 // a.itemsize
    columns = np.full((131, -(-k // meeting) * meeting), np.nan, a.dtype)[:, :k]
    columns[...] = _normal(rng, dtype, 131, k)
    if subnormal:
        columns[7, k - 1] = 1e-40
    widths, heights = (128, 131), range(1, 18)
    for n in widths:
        b = columns[:n].T
        plain, added = infiniop_py.gemm(a, b), infiniop_py.gemm(a, b, 0.5, -2.0, c=c[:, :n])
        for m, count in itertools.product(heights, (1, 2)):
            num_threads(count)
            rows = rng.permutation(40)[:m]
            assert_same_bits(infiniop_py.gemm(a[rows], b), plain[rows], f"{m} x {n}, {count} threads")
            out = c[rows, :n]
            infiniop_py.gemm_(out, a[rows], b, 0.5, -2.0)
            assert_same_bits(out, added[rows], f"{m} x {n} added, {count} threads")
    record_property("cases", 4 * len(widths) * len(heights))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("gap", [0, 24], ids=["dense", "apart"])
@pytest.mark.parametrize(("k", "columns"), [(512, 1024), (513, 1025), (1100, 1100), (2300, 1024)])
@pytest.mark.parametrize("dtype", FLOATS)
def test_b_packed_ahead(
    dtype: str,
    k: int,
    columns: int,
    gap: int,
    transposed: bool,
    rng: np.random.Generator,
    num_threads: Threads,
    record_property: Record,
) -> None:
    """At least 1 MiB of B in long rows or columns, which begin anywhere between cache lines: some CPUs pack
    it while they multiply what was packed before, for some heights. Added to a C, and to a second matrix."""
    a, c = _normal(rng, dtype, 70, k), _normal(rng, dtype, 70, columns)
    runs, run = (columns, k) if transposed else (k, columns)
    wide = np.full((runs, run + gap), np.nan, a.dtype)
    wide[:, :run] = _normal(rng, dtype, runs, run)
    if k % 2 == 1:
        wide[runs - 1, 7] = 1e-40
    heights = (9, 10, 16, 20, 31, 64)
    for offset in (0, a.itemsize, 16):
        memory = np.empty(wide.nbytes + 128, np.uint8)
        begin = -memory.ctypes.data % 64 + offset
        b = memory[begin : begin + wide.nbytes].view(a.dtype).reshape(wide.shape)
        b[...] = wide
        b = b[:, :run].T if transposed else b[:, :run]
        singles = [(a[i : i + 1], c[i : i + 1]) for i in range(len(a))]
        plain = np.concatenate([infiniop_py.gemm(row, b) for row, _ in singles])
        added = np.concatenate([infiniop_py.gemm(row, b, 0.5, -2.0, c=rest) for row, rest in singles])
        for m, count in itertools.product(heights, (1, 2)):
            num_threads(count)
            rows, what = rng.permutation(70)[:m], f"{m} rows, B {offset} bytes behind a line, {count} threads"
            assert_same_bits(infiniop_py.gemm(a[rows], b), plain[rows], what)
            out = c[rows]
            infiniop_py.gemm_(out, a[rows], b, 0.5, -2.0)
            assert_same_bits(out, added[rows], f"{what}, added")
            second = infiniop_py.add(plain[rows], c[rows])
            assert_same_bits(
                infiniop_py.gemm_add(a[rows], b, c[rows]), second, f"{what}, with a second matrix"
            )
    record_property("cases", 3 * 6 * len(heights))


# Columns of which a thread has about as many as are fetched ahead, none of them whole vectors. Rows of B
# are so many elements apart: side by side, meeting in a set of the first-level cache, or far.
@pytest.mark.parametrize("columns", [265, 517])
@pytest.mark.parametrize("apart", [None, 1024, 2300], ids=["dense", "meeting", "far"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_a_row_of_a_product_with_a_long_b(
    dtype: str,
    columns: int,
    apart: int | None,
    rng: np.random.Generator,
    num_threads: Threads,
    record_property: Record,
) -> None:
    """Over 4 MiB of B in short rows, which few rows of A stream in steps; added to a C, whose columns may be
    apart."""
    k = 5_000_000 // columns // np.dtype(DTYPES[dtype]).itemsize + 7
    a, c = _normal(rng, dtype, 40, k), _normal(rng, dtype, 40, 2 * columns)
    b = np.zeros((k, apart or columns), a.dtype)[:, :columns]
    b[:] = _normal(rng, dtype, k, columns)
    heights = (2, 3, 4, 5, 8, 12, 13, 16, 17, 24, 29, 32)
    for at in (c[:, ::2], c[:, :columns]):
        whole = infiniop_py.gemm(a, b, 0.5, -2.0, c=at)
        for m, count in itertools.product(heights, (1, 2)):
            num_threads(count)
            out = at[:m].copy() if at.strides[1] == at.itemsize else c[:m].copy()[:, ::2]
            _spoil_workspace()
            infiniop_py.gemm(a[:m], b, 0.5, -2.0, out=out, c=out)
            assert_same_bits(out, whole[:m], f"{m} rows, {count} threads")
    record_property("cases", 4 * len(heights))


@pytest.mark.parametrize("dtype", FLOATS)
def test_few_columns_are_shared_by_rows(
    dtype: str, rng: np.random.Generator, num_threads: Threads, record_property: Record
) -> None:
    """By more threads than there are columns for: each packs the same panel of B, for other rows of A."""
    a, b = _normal(rng, dtype, 71, 6000), _normal(rng, dtype, 6000, 40)
    num_threads(1)
    whole = infiniop_py.gemm(a, b)
    num_threads(8)  # before the product of 70 rows is planned
    assert_same_bits(infiniop_py.gemm(a[:70], b), whole[:70], "70 rows, 8 threads")
    record_property("cases", 1)


# Columns: vectors that are mostly empty, full but for a few, whole, and two or three strips of them.
@pytest.mark.parametrize("n", [5, 11, 14, 17, 24, 31, 32, 40, 56, 64, 200])
@pytest.mark.parametrize("in_columns", ["", "a", "b", "ab"], ids="in_columns={}".format)
@pytest.mark.parametrize("op", ["gemm", "gemm_add"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_a_row_of_a_product_with_few_columns(
    op: str,
    dtype: str,
    in_columns: str,
    n: int,
    rng: np.random.Generator,
    num_threads: Threads,
    record_property: Record,
) -> None:
    """Many rows, which are multiplied as they are or, transposed, as the columns: of a B that is little and
    lies in columns, each thread makes itself a copy in rows; A is read in columns if these are short. In K
    blocks, one of them short."""
    a, b, d = (_normal(rng, dtype, *shape) for shape in ((700, 530), (530, n), (700, n)))
    b = np.asfortranarray(b) if "b" in in_columns else b
    call, others = getattr(infiniop_py, op), (d,) if op == "gemm_add" else ()
    num_threads(1)
    whole = call(np.asfortranarray(a) if "a" in in_columns else a, b, *others)
    heights = (4, 16, 17, 18, 4 * min(n, 150), 4 * min(n, 150) + 1, 97, 300, 699)
    for m, count in itertools.product(heights, (1, 2, 8)):
        num_threads(count)
        rows = rng.permutation(700)[:m]
        of_a = np.asfortranarray(a[rows]) if "a" in in_columns else a[rows]
        _spoil_workspace()
        got = call(of_a, b, *(x[rows] for x in others))
        assert_same_bits(got, whole[rows], f"{m} rows, {count} threads")
    record_property("cases", 3 * len(heights))


# Of an odd K, what lies behind a row is not a part of its last pair; nor do pairs begin at even elements.
@pytest.mark.parametrize("gap", [0, 1, 2])
@pytest.mark.parametrize("k", [1, 2, 31, 33, 197, 531, 2051])
@pytest.mark.parametrize("in_columns", ["", "a", "b", "ab"], ids="in_columns={}".format)
@pytest.mark.parametrize("dtype", FLOATS)
def test_rows_that_end_between_nans(
    dtype: str,
    in_columns: str,
    k: int,
    gap: int,
    rng: np.random.Generator,
    num_threads: Threads,
    record_property: Record,
) -> None:
    heights = (8, 24, 49, 100)
    for n in (17, 43, 130):
        in_columns_of_a = "a" in in_columns
        shape = (k, 101 + gap) if in_columns_of_a else (101, k + gap)
        wide = np.full(shape, np.nan, DTYPES[dtype])
        a = wide[:, 1:101].T if in_columns_of_a else wide[1:, :k]
        a[...] = _normal(rng, dtype, 100, k)
        b = _normal(rng, dtype, n, k).T if "b" in in_columns else _normal(rng, dtype, k, n)
        whole = np.concatenate([infiniop_py.gemm(a[i : i + 1], b) for i in range(100)])
        assert np.all(np.isfinite(whole.astype(np.float64)))
        for m, count in itertools.product(heights, (1, 2, 5)):
            num_threads(count)
            assert_same_bits(infiniop_py.gemm(a[:m], b), whole[:m], f"{m} x {n}, {count} threads")
    record_property("cases", 3 * 3 * len(heights))


# Rows of B follow one another, or are 32 KiB apart; C has no room in a second-level cache, or in four.
@pytest.mark.parametrize(("m", "k"), [(2000, 3), (400, 31), (400, 60)])
@pytest.mark.parametrize("layout", ["rows", "far rows", "columns", "columns of a"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_products_of_a_short_k(
    dtype: str,
    layout: str,
    m: int,
    k: int,
    rng: np.random.Generator,
    num_threads: Threads,
    record_property: Record,
) -> None:
    """C is written in long runs, of whole rows by each thread, whatever their number: sums of few integers
    are exact, and what lies behind C's rows is left alone."""
    n, apart = 2150, 32768 // DTYPES[dtype].itemsize
    a = rng.integers(-3, 4, (m, k)).astype(DTYPES[dtype])
    b = rng.integers(-3, 4, (k, n)).astype(DTYPES[dtype])
    expected = (a.astype(np.float64) @ b.astype(np.float64)).astype(DTYPES[dtype])
    if layout == "columns":
        b = np.asfortranarray(b)
    elif layout == "columns of a":
        a = np.asfortranarray(a)
    elif layout == "far rows":
        far = np.zeros((k, apart), DTYPES[dtype])[:, :n]
        far[...] = b
        b = far
    heights = (1, 8, 9, 33, 100, m)
    for count in (1, 2, 3):
        num_threads(count)
        for rows in heights:
            c = np.full((rows, n + 1), 7, DTYPES[dtype])
            infiniop_py.gemm(a[:rows], b, out=c[:, :n])
            assert_same_bits(c[:, :n] + 0, expected[:rows] + 0, f"{rows} rows, {count} threads")
            assert (c[:, n] == 7).all()
    record_property("cases", 3 * len(heights))


# Vectors and tiles of columns, in part and whole; of K, elements, pairs and tiles; in all, more than is kept.
@pytest.mark.parametrize("n", [2, 5, 8, 13, 16, 31, 32, 33, 64, 130])
@pytest.mark.parametrize("layout", ["rows", "padded", "columns", "columns of a"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_products_with_a_small_b(
    dtype: str, layout: str, n: int, rng: np.random.Generator, num_threads: Threads, record_property: Record
) -> None:
    """Rows of C are written as whole vectors where others follow: sums of few integers are exact, what lies
    behind C is left alone, and so are operands' neighbours, which are NaN."""
    depths, heights = (1, 7, 13, 24, 33, 64, 127, 128), (11, 12, 25, 32, 47, 128, 500)
    b_all = rng.integers(-3, 4, (depths[-1], n)).astype(DTYPES[dtype])
    a_all = rng.integers(-3, 4, (heights[-1], depths[-1])).astype(DTYPES[dtype])
    pad = 1 if layout == "padded" else 0
    for k in depths:
        b = np.asfortranarray(b_all[:k]) if layout == "columns" else b_all[:k]
        for rows in heights:
            around = np.full((rows, k + pad), np.nan, DTYPES[dtype], "F" if layout == "columns of a" else "C")
            a = around[:, :k]
            a[...] = a_all[:rows, :k]
            product = a.astype(np.float64) @ b.astype(np.float64)
            for count in (1, 3):
                num_threads(count)
                for alpha, beta in ((1.0, 0.0), (2.0, 1.0)):
                    memory = np.full(rows * (n + pad) + 40, 7, DTYPES[dtype])
                    c = memory[: rows * (n + pad)].reshape(rows, n + pad)
                    infiniop_py.gemm(a, b, alpha, beta, c=c[:, :n], out=c[:, :n])
                    expected = (alpha * product + 7 * beta).astype(DTYPES[dtype])
                    what = f"{rows} rows, k {k}, {count} threads, beta {beta}"
                    assert_same_bits(c[:, :n] + 0, expected + 0, what)
                    assert (c[:, n:] == 7).all() and (memory[-40:] == 7).all(), what
    record_property("cases", 4 * len(depths) * len(heights))


# Items, M, K, N: several to a task; more than a cache holds, so that the next one is fetched.
@pytest.mark.parametrize("shape", [(37, 19, 130, 35), (150, 64, 70, 52)], ids=str)
@pytest.mark.parametrize("op", ["gemm", "gemm_add", "gemm_mul"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_a_batch_item_is_the_single_product(
    op: str, dtype: str, shape: Shape, rng: np.random.Generator, num_threads: Threads, record_property: Record
) -> None:
    items, m, k, n = shape
    a, b, d = (_normal(rng, dtype, items, *size) for size in ((m, k), (k, n), (m, n)))
    call = getattr(infiniop_py, op)
    each, shared = ((d,), (d[1],)) if op != "gemm" else ((), ())
    for count in (1, 2, 3):
        num_threads(count)
        batched, of_one_b = call(a, b, *each), call(a, b[2], *shared)
        for i in range(items):
            single = call(a[i], b[i], *(x[i] for x in each))
            assert_same_bits(batched[i], single, f"item {i}, {count} threads")
            assert_same_bits(of_one_b[i], call(a[i], b[2], *shared), f"item {i}, shared b")
    record_property("cases", 6 * items)


# Rows of A: streamed, in steps, in short steps, packed.
@pytest.mark.parametrize("m", [1, 2, 4, 8, 20])
@pytest.mark.parametrize(("k", "n"), [(700, 613), (600, 150)])
@pytest.mark.parametrize("in_columns", ["", "b"], ids="in_columns={}".format)
@pytest.mark.parametrize("dtype", FLOATS)
def test_items_that_come_from_memory(
    dtype: str,
    in_columns: str,
    k: int,
    n: int,
    m: int,
    rng: np.random.Generator,
    num_threads: Threads,
    record_property: Record,
) -> None:
    """Little of B in each, but more in all than caches hold: they are fetched as a large B is."""
    items = 24
    a = _normal(rng, dtype, items, m, k)
    b = _normal(rng, dtype, items, n, k).swapaxes(1, 2) if in_columns else _normal(rng, dtype, items, k, n)
    singles = [infiniop_py.gemm(*item) for item in zip(a, b)]
    for count in (1, 2, 3):
        num_threads(count)
        for i, (item, single) in enumerate(zip(infiniop_py.gemm(a, b), singles)):
            assert_same_bits(item, single, f"item {i}, {count} threads")
    record_property("cases", 3 * items)


# ---- of two NaNs the same one ------------------------------------------------------------------------------


# Elements from one to the next of a and of b: 0 is a column that repeats.
@pytest.mark.parametrize(
    "steps", [(2, 1), (1, 2), (2, 2), (0, 1), (1, 0), (5, 1), (9, 1), (1, 9), (9, 9)], ids=str
)
@pytest.mark.parametrize("n", [3, 7, 11])
@pytest.mark.parametrize("dtype", FLOATS)
def test_the_same_nan_in_any_row(
    dtype: str, n: int, steps: tuple[int, int], num_threads: Threads, record_property: Record
) -> None:
    """Short rows are brought together, but not where a thread's part ends within one."""
    rows = 30011
    number = DTYPES[dtype]

    def operand(step: int, value: float) -> Array:
        memory = np.full((rows, n * max(step, 1)), value, number)
        return np.broadcast_to(memory[:, :1], (rows, n)) if step == 0 else memory[:, ::step]

    a, b = operand(steps[0], np.nan), operand(steps[1], -np.nan)
    for call in (infiniop_py.add, infiniop_py.mul):
        num_threads(1)
        whole = call(a, b)
        first = bits(whole)[0]
        for count in (1, 2, 3, 8):
            num_threads(count)
            assert np.all(bits(call(a, b)) == first), f"{call.__name__}, {count} threads"
        assert np.all(bits(call(a[:1], b[:1])) == first), f"{call.__name__}, one row"
    record_property("cases", 10)


# ---- a row of a norm in any memory and company -------------------------------------------------------------


@pytest.mark.parametrize("shape", [(600, 259), (9, 16411)], ids=str)
@pytest.mark.parametrize("dtype", FLOATS)
def test_a_row_of_a_norm_in_any_company(
    dtype: str, shape: Shape, rng: np.random.Generator, num_threads: Threads, record_property: Record
) -> None:
    """Rows that are shared among threads, and rows whose parts are."""
    a, b, weight = (_normal(rng, dtype, *size) for size in (shape, shape, shape[-1:]))
    num_threads(1)
    y, residual = infiniop_py.add_rms_norm(a, b, weight)
    cases = 0
    for rows, count in itertools.product((1, 2, 5, 8, 9, shape[0]), (1, 2, 3, 8)):
        num_threads(count)
        at = rng.permutation(shape[0])[:rows]
        got = infiniop_py.add_rms_norm(a[at], b[at], weight)
        assert_same_bits(got[0], y[at], f"y, {rows} rows, {count} threads")
        assert_same_bits(got[1], residual[at], f"residual, {rows} rows, {count} threads")
        cases += 1
    for layout in ROW_LAYOUTS:
        places = [Guarded((5, shape[-1]), a.dtype, layout).view for _ in range(2)]
        operands = (_laid(x[:5], layout) for x in (a, b))
        infiniop_py.add_rms_norm_(*places, *operands, weight)
        assert_same_bits(np.ascontiguousarray(places[0]), y[:5], f"y, {layout}")
        cases += 1
    record_property("cases", cases)


# ---- other instruction sets --------------------------------------------------------------------------------


@pytest.mark.parametrize("isa", ISAS)
def test_other_instruction_sets(isa: str) -> None:
    """Rows in any company. Results of more than 100 kB are written past the caches: not those of few rows. In
    so small a second-level cache a product has one K block at a time."""
    needed(isa)
    rows = "any_company and (norm or 600) or with_a_large_b and crowded and b_rows"
    arguments = ("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", __file__, "-k", rows)
    sizes = {"INFINIOP_STREAM_BYTES": "100000", "INFINIOP_L2_BYTES": "300000"}
    assert " passed" in output(start(isa, *arguments, **sizes))
