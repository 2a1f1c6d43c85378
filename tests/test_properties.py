"""Properties of the operators over random shapes and views: against the reference, against each other, and
against themselves at other times, in other threads and in other processes."""

from __future__ import annotations

import ctypes
import math
import platform
import threading
from collections.abc import Callable

import children
import numpy as np
import pytest
from cases import CALLS, CASES, DTYPES, EDGES, FLOATS, INTEGERS, Case, build, outputs_after, run, views
from everything import Caught, all_operators_once
from hypothesis import given
from hypothesis import strategies as st
from layouts import LAYOUTS, OUTPUT_LAYOUTS, ROW_LAYOUTS, Array, Guarded, Shape, bits
from reference import FORMATS, assert_gemm, assert_same_bits, round_to

import infiniop_py

# ---- random rows -------------------------------------------------------------------------------------------

floats = st.sampled_from(FLOATS)
numbers = st.sampled_from(FLOATS + INTEGERS)
any_layout = st.sampled_from(tuple(LAYOUTS))
output_layout = st.sampled_from(OUTPUT_LAYOUTS)
row_layout = st.sampled_from((*ROW_LAYOUTS, "first_zero"))
sizes = st.one_of(st.integers(0, 9), st.integers(10, 70))
shapes = st.lists(sizes, max_size=5).map(tuple).filter(lambda shape: math.prod(shape) <= 20000)
scalars = st.sampled_from((1.0, 0.0, -0.5, 2.0))


@st.composite
def _gemm_rows(draw: st.DrawFn) -> Case:
    m, n, k = draw(sizes), draw(sizes), draw(st.one_of(sizes, st.integers(250, 260)))
    batch = draw(st.lists(st.integers(0, 3), max_size=2).map(tuple))
    a_batch, b_batch = (_droppable(draw, batch) for _ in range(2))
    full = np.broadcast_shapes(a_batch, b_batch)
    return Case(
        "gemm",
        draw(floats),
        ((*full, m, n), (*a_batch, m, k), (*b_batch, k, n)),
        (draw(output_layout), draw(any_layout), draw(any_layout)),
        draw(st.sampled_from(("", "normal"))),
        draw(scalars),
        draw(scalars),
    )


def _droppable(draw: st.DrawFn, shape: Shape) -> Shape:
    """A shape that broadcasts to `shape`: some sizes replaced by 1, some leading ones left out."""
    ones = tuple(1 if draw(st.booleans()) else size for size in shape)
    return ones[draw(st.integers(0, len(ones))) :]


@st.composite
def _elementwise_rows(draw: st.DrawFn) -> Case:
    shape = draw(shapes)
    a, b = _droppable(draw, shape), _droppable(draw, shape)
    c = np.broadcast_shapes(a, b)
    layouts = draw(output_layout), draw(any_layout), draw(any_layout)
    return Case(draw(st.sampled_from(("add", "mul"))), draw(numbers), (c, a, b), layouts)


@st.composite
def _norm_rows(draw: st.DrawFn) -> Case:
    dtype = draw(floats)
    shape = (*draw(st.lists(st.integers(0, 5), max_size=3)), draw(st.one_of(sizes, st.integers(250, 260))))
    layouts = tuple(draw(st.sampled_from(ROW_LAYOUTS)) for _ in range(2)) + tuple(
        draw(row_layout) for _ in range(2)
    )
    if len(shape) == 1:
        layouts = tuple("C" if layout == "first_zero" else layout for layout in layouts)
    weight = draw(st.sampled_from(("", "f32", "f16", "bf16"))) if dtype in ("f16", "bf16") else ""
    epsilon = draw(st.sampled_from((1e-5, 1e-6, 0.5)))
    shapes_ = (shape,) * 4 + (shape[-1:],)
    return Case(
        "add_rms_norm",
        dtype,
        shapes_,
        layouts,
        epsilon=epsilon,
        weight_dtype=weight if weight != dtype else "",
    )


@st.composite
def _rearrange_rows(draw: st.DrawFn) -> Case:
    shape = draw(shapes)
    dtype = draw(st.sampled_from(tuple(DTYPES)))
    return Case("rearrange", dtype, (shape, shape), (draw(output_layout), draw(any_layout)))


def _no_thread_choice(count: int) -> None:
    """Random rows run with the default number of threads."""


@given(_gemm_rows())
def test_random_gemm(case: Case) -> None:
    run(case, _no_thread_choice, (1,))


@given(_elementwise_rows())
def test_random_add_and_mul(case: Case) -> None:
    run(case, _no_thread_choice, (1,))


@given(_norm_rows())
def test_random_add_rms_norm(case: Case) -> None:
    run(case, _no_thread_choice, (1,))


@given(_rearrange_rows())
def test_random_rearrange(case: Case) -> None:
    run(case, _no_thread_choice, (1,))


@given(data=st.data(), dtype=st.sampled_from(tuple(DTYPES)))
def test_rearrange_undoes_itself(data: st.DataObject, dtype: str) -> None:
    """Any sequence of slices, flips and transposes of x; there and back with the inverse permutation."""
    shape = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=5).map(tuple))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    raw = rng.integers(0, 2, (math.prod(shape), DTYPES[dtype].itemsize), np.uint8)
    x = raw.view(DTYPES[dtype]).reshape(shape)
    order = tuple(data.draw(st.permutations(range(len(shape)))))
    steps = tuple(slice(None, None, data.draw(st.sampled_from((1, 2, -1, -3)))) for _ in shape)
    view = x[steps]
    turned = infiniop_py.rearrange(view.transpose(order))
    back = infiniop_py.rearrange(turned.transpose(np.argsort(order)))
    np.testing.assert_array_equal(bits(turned), bits(view.transpose(order)))
    np.testing.assert_array_equal(bits(back), bits(view))


# ---- one result against another ----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
def test_add_and_mul_commute(dtype: str) -> None:
    for op in ("add", "mul"):
        case = CASES[f"{op}-{dtype}-1025"]
        operands = views(build(case))
        function = {"add": infiniop_py.add, "mul": infiniop_py.mul}[op]
        assert_same_bits(function(operands["a"], operands["b"]), function(operands["b"], operands["a"]))


def _normal(rng: np.random.Generator, dtype: str, *shape: int) -> Array:
    return rng.standard_normal(shape).astype(DTYPES[dtype])


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_transposed_product_is_the_product_of_transposes(dtype: str, rng: np.random.Generator) -> None:
    """Both are held to the bound of the product; they need not have the same bits."""
    a, b = _normal(rng, dtype, 37, 259), _normal(rng, dtype, 259, 66)
    nothing = np.zeros((37, 66), a.dtype)
    assert_gemm(infiniop_py.gemm(a, b), nothing, a, b, 1.0, 0.0, exact_data=False)
    assert_gemm(np.ascontiguousarray(infiniop_py.gemm(b.T, a.T).T), nothing, a, b, 1.0, 0.0, exact_data=False)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("k", [1, 7, 64, 259, 1030])
def test_rows_columns_and_blocks_do_not_depend_on_their_neighbours(
    dtype: str, k: int, rng: np.random.Generator
) -> None:
    """The order of accumulation depends on K alone: any part of the product, computed alone, has its bits."""
    m, n = 45, 131
    a, b, c = _normal(rng, dtype, m, k), _normal(rng, dtype, k, n), _normal(rng, dtype, m, n)
    whole = infiniop_py.gemm(a, b, 0.75, 0.5, c=c)
    parts = [(slice(i, i + 1), slice(None)) for i in (0, 1, 17, 44)]
    parts += [(slice(None), slice(j, j + 1)) for j in (0, 1, 77, 130)]
    parts += [(slice(3, 20), slice(10, 75)), (slice(7, 8), slice(9, 10)), (slice(40, 45), slice(97, 131))]
    parts += [(slice(0, 4), slice(None)), (slice(None), slice(0, 16))]
    for rows, columns in parts:
        got = infiniop_py.gemm(a[rows], b[:, columns], 0.75, 0.5, c=c[rows, columns])
        assert_same_bits(got, np.ascontiguousarray(whole[rows, columns]), f"rows {rows}, columns {columns}")


def _laid(x: Array, transposed: bool) -> Array:
    return np.asfortranarray(x) if transposed else x


@pytest.mark.parametrize("transposed", [False, True], ids=["b_rows", "b_columns"])
@pytest.mark.parametrize("k", [1, 7, 256, 257, 600])
@pytest.mark.parametrize("dtype", FLOATS)
def test_a_row_has_its_bits_in_any_company(
    dtype: str, k: int, transposed: bool, rng: np.random.Generator, num_threads: Callable[[int], None]
) -> None:
    """Whatever M and its place are, alone or in a batch, for any number of threads: numbers of rows on both
    sides of where another way to multiply is chosen, or another height of its tiles."""
    n = 83
    a, b = _normal(rng, dtype, 600, k), _laid(_normal(rng, dtype, k, n), transposed)
    num_threads(1)
    whole = infiniop_py.gemm(a, b)
    heights = range(1, 71) if k == 7 else (1, 2, 3, 5, 8, 9, 32, 33, 64, 65, 97, 128, 129, 256, 257, 512, 513)
    for m in heights:
        rows = rng.permutation(600)[:m]
        for count in (1, 2, 3, 8) if m > 8 else (2,):
            num_threads(count)
            assert_same_bits(infiniop_py.gemm(a[rows], b), whole[rows], f"{m} rows, {count} threads")
    for count in (2, 3, 8):
        num_threads(count)
        assert_same_bits(infiniop_py.gemm(a, b), whole, f"{count} threads")
    for m in (1, 5, 33, 66):
        rows = rng.permutation(600)[: 3 * m].reshape(3, m)
        assert_same_bits(infiniop_py.gemm(a[rows], b), whole[rows], f"3 items of {m} rows")
        batch = np.stack([b] * 3).transpose(0, 2, 1).copy().transpose(0, 2, 1) if transposed else [b] * 3
        got = infiniop_py.gemm(a[rows], np.asarray(batch))
        assert_same_bits(got, whole[rows], f"3 items of {m} rows, each with its own b")


@pytest.mark.parametrize("transposed", [False, True], ids=["b_rows", "b_columns"])
@pytest.mark.parametrize("m", [1, 4, 33, 100])
@pytest.mark.parametrize("dtype", FLOATS)
def test_any_number_of_columns(dtype: str, m: int, transposed: bool, rng: np.random.Generator) -> None:
    """The last columns are those of a wider product, and nothing beside them is written."""
    a, b = _normal(rng, dtype, m, 261), _laid(_normal(rng, dtype, 261, 273), transposed)
    old = _normal(rng, dtype, m, 273)
    whole = infiniop_py.gemm(a, b, 0.75, 0.5, c=old)
    for n in (*EDGES, *range(129, 273, 13)):
        c = Guarded((m, n), DTYPES[dtype], "padded")
        c.view[...] = old[:, :n]
        infiniop_py.gemm_(c.view, a, b[:, :n], 0.75, 0.5)
        assert_same_bits(c.view, whole[:, :n], f"{n} columns")
        c.assert_guards_intact("c")


# ---- numbers that a fast instruction may take for 0 --------------------------------------------------------

_SUBNORMAL = 3 * 2.0**-133


def _at(significand: int, exponent: int) -> float:
    """The BF16 with this significand of eight bits and this exponent as stored."""
    return math.ldexp(significand, exponent - 134)


# Two elements of a row of A, the elements of B that they meet, the scale of B's other elements. All that is
# below the least normal number: operands, a product, or a difference of products. Where that is a + b = 141
# or less, a and b the least exponents, it is a difference of neighbours; at 142 the least normal number is.
_TINY = {
    "subnormal_operand": ((_SUBNORMAL, 0.0), (2.0**100, 2.0**100), 2.0**100),
    "subnormal_operands": ((_SUBNORMAL, -_SUBNORMAL), (2.0**20, 2.0**30), 1.0),
    "least_subnormal": ((0.0, 2.0**-133), (2.0**30, 2.0**30), 2.0**30),
    "subnormal_product": ((_at(128, 62), 0.0), (_at(128, 62), _at(128, 62)), 1.0),
    "difference_140": ((_at(129, 20), -_at(128, 20)), (_at(129, 120), _at(130, 120)), 2.0**20),
    "difference_141": ((_at(129, 20), -_at(128, 20)), (_at(129, 121), _at(130, 121)), 2.0**20),
    "difference_142": ((_at(129, 20), -_at(128, 20)), (_at(129, 122), _at(130, 122)), 2.0**20),
    "difference_141_of_large_a": ((_at(129, 121), -_at(128, 121)), (_at(129, 20), _at(130, 20)), 2.0**20),
}
# By M and B's layout: each way to multiply, and each height of the tiles of a B that is not packed.
_WAYS = [(m, False) for m in (1, 2, 4, 6, 8, 48, 520)] + [(m, True) for m in (1, 4, 8, 16, 100, 520)]


def _tiny_operands(
    rng: np.random.Generator, name: str, m: int, n: int, k: int, row: int, at: tuple[int, int]
) -> tuple[Array, Array]:
    """Normal numbers but for one row of A, which is 0 but for two elements, and what these meet."""
    x, y, scale = _TINY[name]
    a, b = rng.standard_normal((m, k)), rng.standard_normal((k, n)) * scale
    a, b = np.copysign(np.maximum(np.abs(a), 0.02), a), np.copysign(np.maximum(np.abs(b), 0.02 * scale), b)
    a[row] = 0
    for i, xi, yi in reversed(list(zip(at, x, y, strict=True))):  # the first counts where both are one
        a[row, i] = xi
        b[i] = yi
    return a.astype(DTYPES["bf16"]), b.astype(DTYPES["bf16"])


@pytest.mark.parametrize("name", _TINY)
@pytest.mark.parametrize(("m", "transposed"), _WAYS)
def test_no_bf16_number_is_too_small_to_count(
    m: int, transposed: bool, name: str, rng: np.random.Generator
) -> None:
    """In a row of A or a column of B: that row or column is exact, and the others keep their bits."""
    n, bf16 = 179, FORMATS["bf16"]
    two = min(_TINY[name][0]) != 0 and max(_TINY[name][0]) != 0
    for k, at in (
        (1, (0, 0)),
        (7, (0, 1)),
        (7, (6, 3)),
        (300, (1, 0)),
        (300, (254, 256)),
        (300, (299, 31)),
        (600, (511, 513)),
    ):
        if k == 1 and (two or _TINY[name][0][0] == 0):
            continue
        for turned in (False, True):
            places = (0, 5, 100, 140, 165, n - 1) if turned else {0, m // 2, m - 1}
            for place in places:
                shape = (n, m) if turned else (m, n)
                a, b = _tiny_operands(rng, name, *shape, k, place, at)
                plain = a.copy()
                plain[place] = plain[place - 1] if shape[0] > 1 else 1
                if turned:
                    a, b, plain, with_b = b.T.copy(), a.T, b.T.copy(), plain.T
                else:
                    with_b = b
                b, with_b = _laid(b.copy(), transposed), _laid(with_b.copy(), transposed)
                special = (slice(None), place) if turned else (place, slice(None))
                exact = (a.astype(np.float64) @ b.astype(np.float64))[special]
                assert (exact != 0).all()
                others = np.ones((m, n), np.bool_)
                others[special] = False
                for beta in (0.0, 0.5):
                    c = np.ones((m, n), DTYPES["bf16"])
                    c[special] = round_to(bf16, 2 * exact)
                    what = f"k {k}, at {at}, {'column' if turned else 'row'} {place}, beta {beta}"
                    got = infiniop_py.gemm(a, b, 1.0, beta, c=c)
                    wanted = round_to(bf16, exact + beta * c[special].astype(np.float64))
                    assert_same_bits(np.ascontiguousarray(got[special]), wanted, what)
                    without = infiniop_py.gemm(
                        a if turned else plain, with_b if turned else b, 1.0, beta, c=c
                    )
                    assert_same_bits(got[others], without[others], f"others: {what}")


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_batch_item_is_the_single_product(dtype: str, rng: np.random.Generator) -> None:
    a, b = _normal(rng, dtype, 5, 19, 130), _normal(rng, dtype, 5, 130, 35)
    batched = infiniop_py.gemm(a, b)
    shared = infiniop_py.gemm(a, b[2])
    for i in range(5):
        assert_same_bits(batched[i], infiniop_py.gemm(a[i], b[i]), f"item {i}")
        assert_same_bits(shared[i], infiniop_py.gemm(a[i], b[2]), f"item {i}, shared b")


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_norm_is_add_and_then_a_norm(dtype: str, rng: np.random.Generator) -> None:
    """y computed from a and b has the bits of y computed from their rounded sum and zeros."""
    a, b, weight = _normal(rng, dtype, 6, 259), _normal(rng, dtype, 6, 259), _normal(rng, dtype, 259)
    y, residual = infiniop_py.add_rms_norm(a, b, weight)
    assert_same_bits(residual, infiniop_py.add(a, b))
    again, _ = infiniop_py.add_rms_norm(residual, np.zeros_like(a), weight)
    assert_same_bits(y, again)
    row, _ = infiniop_py.add_rms_norm(a[4], b[4], weight)
    assert_same_bits(y[4], row)


# ---- the same bits every time ------------------------------------------------------------------------------

_REPEATED = {
    "gemm": ((96, 200), (96, 700), (700, 200)),
    "add": ((300, 517),) * 3,
    "mul": ((300, 517),) * 3,
    "add_rms_norm": ((200, 259),) * 4 + ((259,),),
    "rearrange": ((300, 517),) * 2,
    **dict.fromkeys(("gemm_add", "gemm_mul"), ((530, 200), (530, 700), (700, 200), (530, 200))),
}
_REPEATED_LAYOUTS = {
    "gemm": ("C", "T", "padded"),
    "add": ("C", "T"),
    "mul": ("padded", "T"),
    "rearrange": ("C", "T"),
    **dict.fromkeys(("gemm_add", "gemm_mul"), ("C", "T", "padded", "T")),
}


def _repeated(op: str, dtype: str) -> Case:
    data = "normal" if op.startswith("gemm") else ""
    beta = 0.5 if op == "gemm" else 0.0
    layouts = _REPEATED_LAYOUTS.get(op, ())
    return Case(op, dtype, _REPEATED[op], layouts, data, beta=beta, epsilon=2.0**-16)  # exact in F32


class _Repeat:
    """Runs one row again and again; each result must have the bits of the first."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.operands = build(case)
        self.initial = {name: operand.view.copy() for name, operand in self.operands.items()}
        self.first = outputs_after(case, self.operands, self.initial)

    def check(self, when: str) -> None:
        self.compare(outputs_after(self.case, self.operands, self.initial), when)

    def compare(self, got: dict[str, Array], when: str) -> None:
        for name, value in got.items():
            np.testing.assert_array_equal(bits(value), bits(self.first[name]), f"{name}: {when}")


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", CALLS)
def test_same_bits_every_time(op: str, dtype: str, num_threads: Callable[[int], None]) -> None:
    repeat = _Repeat(_repeated(op, dtype))
    for count in (1, 2, 3, 8, 0):
        num_threads(count)
        for _ in range(4):
            repeat.check(f"{count} threads")

    thread = Caught(lambda: repeat.check("in a new thread, whose caches are empty"))
    thread.finish()

    for size in range(1, 130):  # more shapes than a cache of descriptors holds
        x = np.ones((size, size), DTYPES[dtype])
        infiniop_py.gemm(x[:1], x)
        infiniop_py.add(x[0], x[0])
        infiniop_py.mul(x[0], x[0])
        infiniop_py.add_rms_norm(x[0], x[0], x[0])
        infiniop_py.rearrange(x[0])
    repeat.check("after its descriptor was evicted")


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", CALLS)
def test_a_graph_gives_the_bits_of_the_eager_call(op: str, dtype: str) -> None:
    repeat = _Repeat(_repeated(op, dtype))
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


@pytest.mark.parametrize("dtype", FLOATS)
def test_addresses_do_not_change_the_bits(dtype: str, rng: np.random.Generator) -> None:
    """Operands that start at every element offset within two cache lines."""
    a, b, weight = _normal(rng, dtype, 9, 300), _normal(rng, dtype, 300, 40), _normal(rng, dtype, 300)
    product = infiniop_py.gemm(a, b)
    norm = infiniop_py.add_rms_norm(a, a, weight)[0]
    raw = np.empty(b.size + 200, a.dtype)
    for offset in range(0, 128 // a.dtype.itemsize, 3):
        moved_b = raw[offset : offset + b.size].reshape(b.shape)
        moved_b[...] = b
        assert_same_bits(infiniop_py.gemm(a, moved_b), product, f"gemm, b at {offset}")
        moved_a = raw[offset : offset + a.size].reshape(a.shape)
        moved_a[...] = a
        assert_same_bits(infiniop_py.gemm(moved_a, b), product, f"gemm, a at {offset}")
        assert_same_bits(
            infiniop_py.add_rms_norm(moved_a, a, weight)[0], norm, f"add_rms_norm, a at {offset}"
        )


# ---- threads and processes ---------------------------------------------------------------------------------


def test_eight_threads_at_once() -> None:
    """Each with shapes of its own, all sharing the pool of native threads."""
    start = threading.Barrier(8)

    def work(thread: int) -> None:
        start.wait()
        for i in range(12):
            all_operators_once(seed=100 * thread + i, size=8 * i + thread)

    threads = [Caught(lambda thread=thread: work(thread)) for thread in range(8)]  # type: ignore[misc]
    for thread in threads:
        thread.finish()


def test_a_thread_limits_itself_only(num_threads: Callable[[int], None]) -> None:
    num_threads(3)
    seen: list[int] = []
    with infiniop_py.num_threads(1):
        Caught(lambda: seen.append(infiniop_py.get_num_threads())).finish()
        assert infiniop_py.get_num_threads() == 1
    assert infiniop_py.get_num_threads() == 3
    assert seen == [3]


_UPWARD = {"x86_64": 0x800, "aarch64": 0x400000}  # FE_UPWARD of <fenv.h>


@pytest.mark.skipif(platform.machine() not in _UPWARD, reason="FE_UPWARD is not known for this processor")
def test_the_callers_rounding_mode_is_neither_used_nor_changed(num_threads: Callable[[int], None]) -> None:
    """In a child, so that its native threads, too, start with another rounding mode than to nearest."""
    num_threads(3)
    libm = ctypes.CDLL("libm.so.6")
    repeats = [_Repeat(_repeated(op, dtype)) for op in CALLS for dtype in FLOATS]

    def child() -> None:
        upward = _UPWARD[platform.machine()]
        for repeat in repeats:
            for name in repeat.case.outputs:
                repeat.operands[name].view[...] = repeat.initial[name]
            libm.fesetround(upward)
            CALLS[repeat.case.op](repeat.case, views(repeat.operands))
            after = libm.fegetround()
            libm.fesetround(0)
            assert after == upward
            got = {name: repeat.operands[name].view.copy() for name in repeat.case.outputs}
            repeat.compare(got, "rounding upward in the caller")

    children.forked(child)
