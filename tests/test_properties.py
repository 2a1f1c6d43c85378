"""Properties of the operators over random shapes and views: against the reference, against each other, and
against themselves in other threads."""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable

import numpy as np
import pytest
from everything import Caught, all_operators_once
from hypothesis import given
from hypothesis import strategies as st

import infiniop_py
from infiniop_py._conformance.cases import CASES, DTYPES, EDGES, FLOATS, INTEGERS, Case, build, run, views
from infiniop_py._conformance.layouts import LAYOUTS, OUTPUT_LAYOUTS, ROW_LAYOUTS, Array, Guarded, Shape, bits
from infiniop_py._conformance.reference import FORMATS, assert_gemm, assert_same_bits, round_to

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


def _laid(x: Array, transposed: bool) -> Array:
    return np.asfortranarray(x) if transposed else x


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


@pytest.mark.parametrize("dtype", FLOATS)
def test_rows_of_a_that_are_apart(dtype: str, rng: np.random.Generator) -> None:
    """Of even and odd length, an even and an odd number of elements apart: none counts that lies between."""
    m = 100  # of an item, which is one thread's on any machine
    for k in (1, 2, 15, 16, 63, 64, 301, 302, 514):
        b = _normal(rng, dtype, 2, k, 80)
        for apart in (k, k + 1, k + 2):
            a = np.full((2, m, apart), np.nan, DTYPES[dtype])[..., :k]
            a[...] = _normal(rng, dtype, 2, m, k)
            got = infiniop_py.gemm(a, b)
            for i in (0, m // 2, m - 3):
                alone = infiniop_py.gemm(a[:, i : i + 3].copy(), b)
                assert_same_bits(got[:, i : i + 3], alone, f"k {k}, rows {apart} apart, from row {i}")


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


@functools.cache
def _normal_numbers(rows: int, cols: int, scale: float) -> Array:
    x = np.random.default_rng(rows + cols).standard_normal((rows, cols))
    return (np.copysign(np.maximum(np.abs(x), 0.02), x) * scale).astype(DTYPES["bf16"])


def _tiny_operands(name: str, m: int, n: int, k: int, row: int, at: tuple[int, int]) -> tuple[Array, Array]:
    """Normal numbers but for one row of A, which is 0 but for two elements, and what these meet."""
    x, y, scale = _TINY[name]
    a, b = _normal_numbers(m, k, 1.0).copy(), _normal_numbers(k, n, scale).copy()
    a[row] = 0
    for i, xi, yi in reversed(list(zip(at, x, y, strict=True))):  # the first counts where both are one
        a[row, i] = xi
        b[i] = yi
    return a, b


@pytest.mark.parametrize("name", _TINY)
@pytest.mark.parametrize(("m", "transposed"), _WAYS)
def test_no_bf16_number_is_too_small_to_count(m: int, transposed: bool, name: str) -> None:
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
                a, b = _tiny_operands(name, *shape, k, place, at)
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
def test_a_norm_is_add_and_then_a_norm(dtype: str, rng: np.random.Generator) -> None:
    """y computed from a and b has the bits of y computed from their rounded sum and zeros."""
    a, b, weight = _normal(rng, dtype, 6, 259), _normal(rng, dtype, 6, 259), _normal(rng, dtype, 259)
    y, residual = infiniop_py.add_rms_norm(a, b, weight)
    assert_same_bits(residual, infiniop_py.add(a, b))
    again, _ = infiniop_py.add_rms_norm(residual, np.zeros_like(a), weight)
    assert_same_bits(y, again)
    row, _ = infiniop_py.add_rms_norm(a[4], b[4], weight)
    assert_same_bits(y[4], row)


# ---- threads ----------------------------------------------------------------------------------------------


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
