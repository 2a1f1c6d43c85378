"""Which rewrites a graph makes, which it must not, and that no result can tell."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import infiniop_py as ip
from infiniop_py._fusion import WINDOW
from infiniop_py._layout import interned, row_major
from infiniop_py._program import through_copy
from infiniop_py.dtypes import DType

Array = np.ndarray[Any, Any]


# ---- views of copies as views of what was copied -----------------------------------------------------------


def random_view(rng: random.Random, array: Array) -> Array:
    for _ in range(rng.randrange(4)):
        kind = rng.randrange(5)
        if kind == 0 and array.ndim:
            array = array.transpose(rng.sample(range(array.ndim), array.ndim))
        elif kind == 1 and array.ndim:
            d = rng.randrange(array.ndim)
            step = rng.choice([1, 1, 2, -1, -2])
            array = array[(slice(None),) * d + (slice(None, None, step),)]
        elif kind == 2 and array.ndim:
            d = rng.randrange(array.ndim)
            if array.shape[d] > 1:
                array = array[(slice(None),) * d + (slice(rng.randrange(array.shape[d]), None),)]
        elif kind == 3:
            array = array[rng.choice([(None, ...), (..., None)])]
        elif array.size and array.flags.c_contiguous:
            sizes = [n for n in range(1, array.size + 1) if array.size % n == 0]
            first = rng.choice(sizes)
            array = array.reshape(first, array.size // first)
    return array


@pytest.mark.parametrize("block", range(8))
def test_a_view_of_a_copy_is_one_of_its_source_or_none(block: int) -> None:
    found = 0
    for seed in range(400):
        rng = random.Random(1000 * block + seed)
        shape = tuple(rng.choice([1, 2, 3, 4, 6]) for _ in range(rng.randrange(5)))
        memory = np.arange(4 * int(np.prod(shape)) * 81, dtype="i4")
        base = memory[: int(np.prod(shape))].reshape(shape)
        source = random_view(rng, base)
        copy = np.ascontiguousarray(source).reshape(source.shape)
        view = random_view(rng, copy)
        layouts = [interned(DType.I32, x.shape, x.strides) for x in (view, copy, source)]
        at = [x.__array_interface__["data"][0] for x in (view, copy, source)]
        answer = through_copy(layouts[0], at[0] - at[1], layouts[1], layouts[2])
        if answer is None:
            continue
        (dtype, seen_shape, strides), offset = answer
        low = (at[2] + offset - memory.__array_interface__["data"][0]) // 4
        assert dtype is DType.I32 and 0 <= low < memory.size
        seen = np.lib.stride_tricks.as_strided(memory[low:], seen_shape, strides)
        np.testing.assert_array_equal(seen, view)
        found += 1
    assert found > 100


def test_copies_are_read_through_reshapes() -> None:
    """Heads split, swapped and seen as matrices again: one stride does not walk through all of it."""
    source = interned(DType.F32, (4, 3, 8), (32, 128, 4))
    copy = interned(DType.F32, (4, 3, 8), row_major((4, 3, 8), 4))
    assert through_copy(copy, 0, copy, source) == (source, 0)
    merged = interned(DType.F32, (12, 8), (32, 4))
    assert through_copy(merged, 0, copy, source) is None
    assert through_copy(interned(DType.F32, (3, 8), (32, 4)), 96, copy, source) == (
        (DType.F32, (3, 8), (128, 4)),
        32,
    )
    assert through_copy(interned(DType.I32, (4, 3, 8), copy[2]), 0, copy, source) is None
    assert through_copy(copy, 4, copy, source) is None
    assert through_copy(copy, -4, copy, source) is None


# ---- the rules ---------------------------------------------------------------------------------------------


def f4(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype("f4")


class Arrays:
    """What the rows below compute with."""

    def __init__(self, dtype: str) -> None:
        self.a = f4(6, 8, seed=1).astype(dtype)
        self.b = f4(8, 4, seed=2).astype(dtype)
        self.c = f4(6, 4, seed=3).astype(dtype)
        self.d = f4(6, 4, seed=4).astype(dtype)
        self.bias = f4(4, seed=5).astype(dtype)
        self.square = f4(8, 8, seed=6).astype(dtype)
        self.out = np.zeros((6, 4), dtype)
        self.heads = f4(2, 6, 8, seed=7).astype(dtype)
        self.long = f4(3, 600, seed=8).astype(dtype)
        self.columns = f4(5, 600, seed=9).astype(dtype)

    def all(self) -> list[Array]:
        return list(vars(self).values())


Program = Callable[[Arrays], Any]


def copy_then_product(x: Arrays) -> Any:
    return ip.gemm(ip.rearrange(x.a.T).T, x.b)


def copies_then_long_product(x: Arrays) -> Any:
    rows = ip.rearrange(x.columns.T)  # of which the columns would be summed in another order
    return ip.gemm(x.long, rows), ip.gemm(ip.rearrange(x.long[::-1]), rows)


def copy_then_product_of_511(x: Arrays) -> Any:
    return ip.gemm(x.long[:, :511], ip.rearrange(x.columns[:, :511].T))


def copy_then_product_of_512(x: Arrays) -> Any:
    return ip.gemm(x.long[:, :512], ip.rearrange(x.columns[:, :512].T))


def copy_then_long_batch(x: Arrays) -> Any:
    return ip.gemm(x.long[None], ip.rearrange(x.columns.T[None]))


def copy_then_long_sum(x: Arrays) -> Any:
    return ip.gemm_add(x.long, ip.rearrange(x.columns.T), x.columns[:3, :5])


def copy_then_long_scale(x: Arrays) -> Any:
    return ip.gemm_mul(x.long, ip.rearrange(x.columns.T), x.columns[:3, :5])


def copy_then_sum(x: Arrays) -> Any:
    return ip.add(ip.rearrange(x.square.T), x.square)


def rows_then_sum(x: Arrays) -> Any:
    return ip.add(ip.rearrange(x.square[::-2]), x.square[::2])


def copy_of_copy(x: Arrays) -> Any:
    return ip.mul(ip.rearrange(ip.rearrange(x.square.T)[::-1]), x.square)


def copy_that_is_kept(x: Arrays) -> Any:
    copied = ip.rearrange(x.square.T)
    return copied, ip.add(copied, copied)


def copy_whose_source_changes(x: Arrays) -> Any:
    copied = ip.rearrange(x.square.T)
    ip.add_(x.square, x.square, x.square)
    return ip.mul(copied, x.bias[:1])


def copy_written_to_its_source(x: Arrays) -> Any:
    return ip.mul_(x.square, ip.rearrange(x.square.T), x.square)


def copy_that_is_changed(x: Arrays) -> Any:
    copied = ip.rearrange(x.square.T)
    ip.mul_(copied, copied, copied)
    return ip.add(copied, x.square)


def copy_that_many_read(x: Arrays) -> Any:
    copied = ip.rearrange(x.square.T)
    return [ip.add(copied, x.square) for _ in range(5)]


def copy_for_a_norm(x: Arrays) -> Any:
    return ip.add_rms_norm(ip.rearrange(x.square.T), x.square, x.square[0])


def product_and_bias(x: Arrays) -> Any:
    return ip.add(ip.gemm(x.a, x.b, 0.5), x.bias)


def bias_and_product(x: Arrays) -> Any:
    return ip.add(x.bias, ip.gemm(x.a, x.b))


def product_and_scale(x: Arrays) -> Any:
    return ip.mul(ip.gemm(x.a, x.b), x.d)


def bias_in_place(x: Arrays) -> Any:
    result = ip.gemm(x.a, x.b)
    return ip.add_(result, result, x.bias)


def product_times_itself(x: Arrays) -> Any:
    result = ip.gemm(x.a, x.b)
    return ip.mul(result, result)


def product_that_is_kept(x: Arrays) -> Any:
    result = ip.gemm(x.a, x.b)
    return result, ip.add(result, x.bias)


def product_that_is_read_twice(x: Arrays) -> Any:
    result = ip.gemm(x.a, x.b)
    return ip.add(result, x.bias), ip.mul(result, x.d)


def product_with_beta(x: Arrays) -> Any:
    return ip.add(ip.gemm(x.a, x.b, 1.0, 0.5, c=x.c), x.bias)


def product_whose_input_changes(x: Arrays) -> Any:
    result = ip.gemm(x.a, x.b)
    ip.add_(x.a, x.a, x.a)
    return ip.add(result, x.bias)


def product_stretched(x: Arrays) -> Any:
    return ip.add(ip.gemm(x.a[:1], x.b), x.c)


def result_over_an_input(x: Arrays) -> Any:
    return ip.add(ip.gemm(x.a, x.square), x.a, out=x.a)


def product_added_in_place(x: Arrays) -> Any:
    return ip.add_(x.out, x.out, ip.gemm(x.a, x.b))


def scaled_product_added_in_place(x: Arrays) -> Any:
    return ip.add_(x.out, ip.gemm(x.a, x.b, 0.3), x.out)


def product_of_nothing_added_in_place(x: Arrays) -> Any:
    x.out[...] = -0.0
    return ip.add_(x.out, ip.gemm(x.a[:, :0], x.b[:0]), x.out)


def addend(x: Arrays) -> Any:
    return ip.gemm(x.a, x.b, 1.0, 1.0, c=x.c)


def addend_that_changes(x: Arrays) -> Any:
    ip.rearrange_(x.out, x.c)
    ip.add_(x.c, x.c, x.c)
    return ip.gemm_(x.out, x.a, x.b, 1.0, 1.0)


def addend_of_nothing(x: Arrays) -> Any:
    x.c[...] = -0.0
    return ip.gemm(x.a[:, :0], x.b[:0], 1.0, 1.0, c=x.c)


def scaled_addend(x: Arrays) -> Any:
    return ip.gemm(x.a, x.b, 1.0, 0.5, c=x.c)


def product_stored_by_heads(x: Arrays) -> Any:
    return ip.rearrange(ip.gemm(x.heads, x.square).transpose(1, 0, 2))


def product_stored_transposed(x: Arrays) -> Any:
    return ip.rearrange(ip.gemm(x.a, x.b).T)


def product_stored_in_part(x: Arrays) -> Any:
    return ip.rearrange(ip.gemm(x.a, x.b)[1:])


def product_stored_over_an_input(x: Arrays) -> Any:
    return ip.rearrange_(x.square.T, ip.gemm(x.square, x.heads[0, :1].T @ x.heads[0, :1]))


def product_stored_where_something_is_read(x: Arrays) -> Any:
    result = ip.gemm(x.a, x.b)
    before = ip.add(x.out, x.bias)
    ip.rearrange_(x.out, result)
    return before


def dead(x: Arrays) -> Any:
    ip.gemm(ip.add(x.a, x.a), x.b)
    return ip.add(x.c, x.d)


#: (program, rules that must be applied to F32, rules to F16; None: the same)
ROWS: list[tuple[Program, list[str], list[str] | None]] = [
    (copy_then_product, ["copy"], None),
    (copies_then_long_product, ["copy"], None),
    (copy_then_product_of_511, ["copy"], None),
    (copy_then_product_of_512, [], None),
    (copy_then_long_batch, [], None),
    (copy_then_long_sum, [], None),
    (copy_then_long_scale, [], None),
    (copy_then_sum, ["copy"], []),
    (copy_of_copy, ["copy", "copy"], ["copy"]),
    (rows_then_sum, ["copy"], None),
    (copy_that_is_kept, [], None),
    (copy_whose_source_changes, [], None),
    (copy_written_to_its_source, [], None),
    (copy_that_is_changed, [], None),
    (copy_that_many_read, [], None),
    (copy_for_a_norm, [], None),
    (product_and_bias, ["epilogue"], None),
    (bias_and_product, ["epilogue"], None),
    (product_and_scale, ["epilogue"], None),
    (bias_in_place, ["epilogue"], None),
    (product_times_itself, [], None),
    (product_that_is_kept, [], None),
    (product_that_is_read_twice, [], None),
    (product_with_beta, [], None),
    (product_whose_input_changes, [], None),
    (product_stretched, [], None),
    (result_over_an_input, [], None),
    (product_added_in_place, ["addend"], []),
    (scaled_product_added_in_place, [], None),
    (product_of_nothing_added_in_place, [], None),
    (addend, ["addend"], []),
    (addend_that_changes, [], None),
    (addend_of_nothing, [], None),
    (scaled_addend, [], None),
    (product_stored_by_heads, ["store"], None),
    (product_stored_transposed, [], None),
    (product_stored_in_part, [], None),
    (product_stored_over_an_input, [], None),
    (product_stored_where_something_is_read, [], None),
    (dead, ["dead", "dead"], None),
]


def recorded(program: Program, arrays: Arrays, fuse: str) -> tuple[ip.Graph, list[Array]]:
    with ip.Graph(fuse=fuse) as g:
        results = program(arrays)
    if not isinstance(results, (tuple, list)):
        results = [results]
    return g, list(results)


@pytest.mark.parametrize("dtype", ["f4", "f2"])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0].__name__)
def test_rules(row: tuple[Program, list[str], list[str] | None], dtype: str) -> None:
    program, wide, half = row
    plain, fused = Arrays(dtype), Arrays(dtype)
    wanted_graph, wanted = recorded(program, plain, "none")
    graph, got = recorded(program, fused, "exact")
    assert [one.rule for one in graph._program.rewrites] == (wide if half is None or dtype == "f4" else half)
    for _ in range(3):
        wanted_graph.run()
        graph.run()
        for one, other in zip([*fused.all(), *got], [*plain.all(), *wanted]):
            assert one.tobytes() == other.tobytes()
    assert graph.memory_report().naive == wanted_graph.memory_report().naive
    assert not wanted_graph._program.rewrites


OPERATORS = [ip.Rearrange, ip.Gemm, ip.Add, ip.Mul, ip.GemmAdd, ip.GemmMul, ip.AddRMSNorm]


def copy_for_an_epilogue(x: Arrays) -> Any:
    copy = ip.rearrange(x.a.T).T
    return ip.gemm_add(copy, x.b, x.c), ip.gemm_mul(copy, x.b, x.c)


@pytest.mark.parametrize("op", OPERATORS, ids=lambda op: op.name)
def test_a_wrapper_of_the_native_implementation_is_called_each_time(op: Any, own: Any) -> None:
    """Its plan is a native call's, which says nothing of what it does when it is run."""
    native, calls = op.dispatcher().implementation(ip.DeviceType.CPU), Counter[str]()

    def plan(call: Any) -> Any:
        calls["planned"] += 1
        return native.plan(call)

    def run(call: Any) -> None:
        calls["run"] += 1
        native.run(call)

    own(op, ip.OpImpl(plan, run))
    for program in [row[0] for row in ROWS] + [copy_for_an_epilogue]:
        for fuse in ("exact", "fast"):
            calls.clear()
            graph, _ = recorded(program, Arrays("f4"), fuse)
            for n in range(1, 3):
                graph.run()
                assert calls["run"] == n * calls["planned"], program.__name__


@pytest.mark.parametrize(
    "program", [product_added_in_place, scaled_product_added_in_place], ids=lambda program: program.__name__
)
@pytest.mark.parametrize("dtype", ["f2", "f4"])
def test_fast_leaves_out_a_rounding(program: Program, dtype: str) -> None:
    arrays, plain = Arrays(dtype), Arrays(dtype)
    graph, (got,) = recorded(program, arrays, "fast")
    exact, (wanted,) = recorded(program, plain, "none")
    assert [one.rule for one in graph._program.rewrites] == ["addend"]
    graph.run()
    exact.run()
    # One rounding of the product more or less: half a unit in its last place, and half a unit of the sum's.
    product = np.abs(wanted.astype("f8"))
    eps = float(np.finfo(dtype).eps)
    assert (np.abs(got.astype("f8") - wanted.astype("f8")) <= eps * (product + 1)).all()


@pytest.mark.parametrize("alpha", [0.0, -0.0, 1e-50])
def test_fast_adds_products_that_are_zero(alpha: float) -> None:
    """No sum is computed for them, and beta * c alone would leave -0 as it is."""
    y, x = np.full((2, 2), -0.0, "f4"), np.ones((2, 2), "f4")
    with ip.Graph(fuse="fast") as graph:
        ip.add_(y, y, ip.gemm(x, x, alpha))
    graph.run()
    assert not np.signbit(y).any()


@pytest.mark.parametrize("apart", [0, WINDOW - 2, WINDOW + 10])
def test_calls_far_apart_stay_apart(apart: int) -> None:
    x, out = Arrays("f4"), np.zeros((6, 4), "f4")
    with ip.Graph() as g:
        y = ip.gemm(x.a, x.b)
        copied = ip.rearrange(x.square.T)
        for _ in range(apart):
            ip.add_(x.d, x.c, x.c)
        ip.add_(y, y, x.c)
        z = ip.add(copied, x.square)
        del copied
    g.run()
    rules = [one.rule for one in g._program.rewrites]
    assert rules == (["copy", "epilogue"] if apart < WINDOW else [])
    np.testing.assert_array_equal(z, x.square.T + x.square)
    assert not out.any() and y.tobytes() == ip.add(ip.gemm(x.a, x.b), x.c).tobytes()


def test_a_rewrite_says_what_it_saves() -> None:
    arrays = Arrays("f4")
    graph, _ = recorded(copy_then_sum, arrays, "exact")
    (rewrite,) = graph._program.rewrites
    assert rewrite == ("copy", (0, 1), 2 * 8 * 8 * 4, 0)
    graph, _ = recorded(dead, arrays, "exact")
    assert [(one.nodes, one.flops) for one in graph._program.rewrites] == [((1,), 2 * 6 * 8 * 4), ((0,), 48)]


def test_fast_sums_in_another_order() -> None:
    arrays, plain = Arrays("f4"), Arrays("f4")
    graph, got = recorded(copies_then_long_product, arrays, "fast")
    exact, wanted = recorded(copies_then_long_product, plain, "none")
    assert [one.rule for one in graph._program.rewrites] == ["copy", "copy"]
    graph.run()
    exact.run()
    for one, other, a in zip(got, wanted, (plain.long, plain.long[::-1])):
        bound = 2 * 600 * 2.0**-24 * (np.abs(a).astype("f8") @ np.abs(plain.columns.T).astype("f8"))
        assert np.all(np.abs(one.astype("f8") - other) <= bound)


def test_results_of_a_product_do_not_depend_on_how_operands_lie() -> None:
    """What makes reading through a copy exact, but for long sums along rows of A and columns of B."""
    rng = random.Random(0)
    for seed in range(60):
        m, k, n = (rng.choice([1, 2, 5, 16, 17, 33, 64, 100, 257, 600]) for _ in range(3))
        dtype = rng.choice(["f2", "f4", "f8"])
        a, b = f4(m, k, seed=seed).astype(dtype), f4(k, n, seed=seed + 1).astype(dtype)
        rows, columns = np.ascontiguousarray(a), np.asfortranarray(b)
        wanted = {False: ip.gemm(np.asfortranarray(np.repeat(a, 2, 0))[::2], b), True: ip.gemm(rows, columns)}
        spread = np.zeros((2 * k, n + 3), dtype)[::2, 1 : 1 + n]
        spread[...] = b
        for left in (np.asfortranarray(a), a[::-1].copy()[::-1]):
            for right in (np.asfortranarray(b), spread):
                out = np.zeros((n, m), dtype).T
                ip.gemm_(out, left, right)
                along_k = k >= 512 and left.strides[1] == right.strides[0] == a.itemsize
                assert out.tobytes() == wanted[along_k].tobytes()
