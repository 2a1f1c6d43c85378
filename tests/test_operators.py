"""The Python surface of the operators: results in kind, output rules, broadcasting, batches. Numbers are
exact here; rounding, dtypes and instruction sets have their own tests."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import children
import numpy as np
import pytest

import infiniop_py as ip
from infiniop_py._layout import Layout
from infiniop_py.ops._products import as_batches

Array = np.ndarray[Any, Any]


def integers(*shape: int, dtype: str = "f4", seed: int = 0) -> Array:
    """Small integers: their sums and products are exact in every type, in any order."""
    return np.random.default_rng((seed, *shape)).integers(-4, 5, shape).astype(dtype)


# ---- kinds -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kinds", ["numpy", "tensor", "mixed"])
def test_answers_in_kind(kinds: str) -> None:
    a, b, w = integers(3, 3), integers(3, 3, seed=1), integers(3)
    x: Any = a if kinds == "numpy" else ip.from_numpy(a)
    y: Any = ip.from_numpy(b) if kinds == "tensor" else b
    kind = np.ndarray if kinds == "numpy" else ip.Tensor
    results = [ip.gemm(x, y), ip.add(x, y), ip.mul(x, y), *ip.add_rms_norm(x, y, w), ip.rearrange(x)]
    for result in results:
        assert type(result) is kind
    for result, wanted in zip(results, [a @ b, a + b, a * b]):
        np.testing.assert_array_equal(np.asarray(result), wanted)
    np.testing.assert_array_equal(np.asarray(results[4]), a + b)
    np.testing.assert_array_equal(np.asarray(results[5]), a)


def test_subclasses_are_their_memory(tmp_path: Any) -> None:
    mapped = np.memmap(tmp_path / "x", "f4", "w+", shape=(4,))
    mapped[:] = 1
    result = ip.add(mapped, mapped)
    assert type(result) is np.ndarray
    np.testing.assert_array_equal(result, np.full(4, 2, "f4"))
    ip.add_(mapped, mapped, mapped)
    np.testing.assert_array_equal(np.asarray(mapped), np.full(4, 2, "f4"))


def test_in_place_forms_return_their_outputs() -> None:
    a, c, y, r = integers(2, 2), np.empty((2, 2), "f4"), np.empty((2, 2), "f4"), np.empty((2, 2), "f4")
    assert (
        ip.add_(c, a, a) is c
        and ip.mul_(c, a, a) is c
        and ip.rearrange_(c, a) is c
        and ip.gemm_(c, a, a) is c
    )
    np.testing.assert_array_equal(c, a @ a)
    got = ip.add_rms_norm_(y, r, a, a, np.ones(2, "f4"))
    assert got[0] is y and got[1] is r
    np.testing.assert_array_equal(r, a + a)


def test_out_is_returned_and_filled() -> None:
    a, out, res = integers(2, 2), np.empty((2, 2), "f4"), np.empty((2, 2), "f4")
    for call, wanted in (
        (lambda: ip.add(a, a, out=out), a + a),
        (lambda: ip.mul(a, a, out=out), a * a),
        (lambda: ip.gemm(a, a, out=out), a @ a),
        (lambda: ip.rearrange(a.T, out=out), a.T),
    ):
        assert call() is out
        np.testing.assert_array_equal(out, wanted)
    y, residual = ip.add_rms_norm(a, a, np.ones(2, "f4"), residual_out=res)
    assert residual is res and y is not res
    y, residual = ip.add_rms_norm(a, a, np.ones(2, "f4"), out=out)
    assert y is out and residual is not res


def test_new_results_are_row_major_even_for_transposed_inputs() -> None:
    a = integers(3, 4)
    for result in (ip.add(a.T, a.T), ip.rearrange(a.T), ip.gemm(a.T, a)):
        assert result.flags.c_contiguous


def test_read_only_inputs_are_fine() -> None:
    a = integers(2, 2)
    frozen = a.copy()
    frozen.flags.writeable = False
    np.testing.assert_array_equal(ip.gemm(frozen, frozen, 1, 1, c=frozen), a @ a + a)


@pytest.mark.parametrize("op", [ip.add, ip.mul])
def test_scalars_of_rank_0(op: Any) -> None:
    result = op(np.array(3.0), np.array(4.0))
    assert isinstance(result, np.ndarray) and result.shape == () and result == (7 if op is ip.add else 12)
    np.testing.assert_array_equal(ip.add(np.array(1.0), np.ones((2, 2))), np.full((2, 2), 2.0))


# ---- add and mul -----------------------------------------------------------------------------------------

SHAPES = [(), (1,), (3,), (2, 1), (1, 3), (2, 3), (4, 1, 3), (4, 2, 1), (1, 1, 1), (0, 3), (2, 0, 1)]


@pytest.mark.parametrize(("a", "b"), list(itertools.product(SHAPES, SHAPES)), ids=str)
def test_broadcasting_is_numpy_s(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    x, y = integers(*a), integers(*b, seed=1)
    try:
        wanted = x + y
    except ValueError:
        with pytest.raises(ip.ShapeError, match="do not broadcast"):
            ip.add(x, y)
        return
    result = ip.add(x, y)
    assert result.shape == wanted.shape
    np.testing.assert_array_equal(result, wanted)


def test_operators_of_the_language() -> None:
    a, b = integers(2, 2), integers(2, 2, seed=1)
    t, u = ip.from_numpy(a.copy()), ip.from_numpy(b)
    for result, wanted in (
        (t + u, a + b),
        (t * u, a * b),
        (t @ u, a @ b),
        (a + u, a + b),
        (a * u, a * b),
        (b @ t, b @ a),
    ):
        assert isinstance(result, ip.Tensor)
        np.testing.assert_array_equal(result.numpy(), wanted)
    same = t
    t += u
    t *= u
    assert t is same
    np.testing.assert_array_equal(t.numpy(), (a + b) * b)
    for bad in (2.0, 1j, None):
        with pytest.raises(TypeError, match="unsupported operand"):
            t + bad
        with pytest.raises(TypeError, match="unsupported operand"):
            bad * t


# ---- gemm ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((2, 3), (3, 4)),
        ((5, 2, 3), (3, 4)),
        ((2, 3), (5, 3, 4)),
        ((5, 2, 3), (5, 3, 4)),
        ((5, 2, 3), (1, 3, 4)),
        ((6, 1, 2, 3), (5, 3, 4)),
        ((1, 5, 2, 3), (6, 1, 3, 4)),
        ((6, 5, 2, 3), (6, 5, 3, 4)),
        ((2, 1, 3, 1, 2, 3), (4, 1, 5, 3, 2)),
        ((0, 2, 3), (3, 4)),
        ((4, 0, 2, 3), (4, 1, 3, 4)),
        ((2, 0), (0, 4)),
        ((3, 2, 0), (0, 4)),
        ((0, 3), (3, 4)),
        ((1, 1, 1), (1, 1)),
    ],
    ids=str,
)
@pytest.mark.parametrize("beta", [0.0, 2.0])
def test_gemm_shapes(a: tuple[int, ...], b: tuple[int, ...], beta: float) -> None:
    x, y = integers(*a), integers(*b, seed=1)
    wanted = x @ y
    c = integers(*wanted.shape, seed=2)
    before = c.copy()
    result = ip.gemm(x, y, 3.0, beta, c=c)
    assert result.shape == wanted.shape and result.shape[:-1] == wanted.shape[:-1]
    np.testing.assert_array_equal(result, 3 * wanted + beta * before)
    np.testing.assert_array_equal(c, before)
    assert ip.gemm(x, y, 3.0, beta, c=c, out=c) is c
    np.testing.assert_array_equal(c, 3 * wanted + beta * before)


def batched(order: tuple[int, ...], *, step: int = 1, flip: bool = False) -> Array:
    """[4, 2, 3, 5, 6] whose memory has its dimensions in another order, with gaps, or backwards."""
    shape = (4, 2, 3, 5, 6)
    x = integers(*(shape[d] * (step if d == 1 else 1) for d in order), seed=sum(order[:2]))
    x = x.transpose(np.argsort(order))[:, ::step]
    return x[::-1, :, ::-1] if flip else x


LAYOUTS = [
    batched(o, step=s, flip=f)
    for o in ((0, 1, 2, 3, 4), (2, 0, 1, 3, 4), (4, 1, 3, 0, 2))
    for s in (1, 2)
    for f in (False, True)
]


@pytest.mark.parametrize("i", range(len(LAYOUTS)))
@pytest.mark.parametrize("out", [0, 3, 8, 11])
def test_gemm_batches_of_any_layout(i: int, out: int) -> None:
    """Batch dimensions that merge, that do not, and that broadcast, with the output's own strides too."""
    a = LAYOUTS[i]
    b = integers(3, 6, 5, seed=9)
    c = LAYOUTS[out][..., :5].copy(order="K")
    c = np.lib.stride_tricks.as_strided(c, c.shape, c.strides)
    wanted = a @ b - c
    ip.gemm_(c, a, b, 1.0, -1.0)
    np.testing.assert_array_equal(c, wanted)


def layout(shape: tuple[int, ...], strides: tuple[int, ...]) -> Layout:
    return ip.DType.F32, shape, strides


def test_batches_are_merged_where_one_stride_walks_through() -> None:
    flat = layout((4, 5, 2, 2), (80, 16, 8, 4))
    problem = as_batches((flat, flat, flat))
    assert problem.offsets is None and problem.layouts[0] == layout((20, 2, 2), (16, 8, 4))
    shared = layout((2, 2), (8, 4))
    problem = as_batches((flat, flat, shared))
    assert problem.offsets is None and problem.layouts[2] == layout((20, 2, 2), (0, 8, 4))


def test_batches_that_do_not_merge_become_runs_of_the_longest() -> None:
    flat = layout((4, 5, 2, 2), (80, 16, 8, 4))
    rows = layout((4, 1, 2, 2), (16, 16, 8, 4))
    problem = as_batches((flat, flat, rows))
    assert [one[1] for one in problem.layouts] == [(5, 2, 2)] * 3
    assert problem.offsets == ((0, 0, 0), (80, 80, 16), (160, 160, 32), (240, 240, 48))


def test_overlap_between_runs_is_refused_before_the_first() -> None:
    """Each run alone is legal; the first would overwrite what the second reads."""
    memory = integers(64)
    strided = np.lib.stride_tricks.as_strided
    c = strided(memory, (2, 3, 2, 2), (96, 16, 8, 4))
    a = strided(memory[24:], (2, 3, 2, 2), (-96, 16, 8, 4))
    b = integers(2, 1, 2, 2, seed=3)
    before = memory.copy()
    with pytest.raises(ip.ParamError, match=r"gemm: c with shape .* overlaps a"):
        ip.gemm_(c, a, b)
    folded = strided(memory, (2, 3, 2, 2), (0, 16, 8, 4))
    with pytest.raises(ip.StrideError, match=r"gemm: c .* overlap each other"):
        ip.gemm_(folded, integers(2, 3, 2, 2), integers(2, 1, 2, 2))
    np.testing.assert_array_equal(memory, before)


def test_beta_0_never_reads_the_output() -> None:
    a = integers(3, 3)
    np.testing.assert_array_equal(ip.gemm_(np.full((3, 3), np.nan, "f4"), a, a), a @ a)
    np.testing.assert_array_equal(ip.gemm(a, a, c=np.full((3, 3), np.nan, "f4")), a @ a)
    np.testing.assert_array_equal(ip.gemm(a, a, out=np.full((3, 3), np.nan, "f4")), a @ a)


def test_alpha_0_and_no_products_scale_the_addend() -> None:
    a, c = np.full((2, 2), np.nan, "f4"), integers(2, 2)
    np.testing.assert_array_equal(ip.gemm(a, a, 0.0, 2.0, c=c), 2 * c)
    np.testing.assert_array_equal(ip.gemm(integers(2, 0), integers(0, 2), 1.0, 2.0, c=c), 2 * c)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_a_vector_times_a_matrix_from_memory(dtype: str) -> None:
    """However many columns are left behind the last whole group of them."""
    k = 1029
    far = 2**24 // (k * np.dtype(dtype).itemsize)
    w, x = integers(far + 32, k, dtype=dtype), integers(k, 1, dtype=dtype)
    wanted = w.astype("f8") @ x.astype("f8")
    assert abs(wanted).max() < 2048  # exact in F16
    for rows in range(far + 1, far + 33):
        np.testing.assert_array_equal(ip.gemm(w[:rows], x), wanted[:rows])


@pytest.mark.parametrize("order", "CF")
def test_out_may_be_the_addend_under_another_name(order: Any) -> None:
    a, c = integers(3, 3), np.array(integers(3, 3, seed=1), order=order)
    wanted = a @ a + 2 * c
    view = c[:]
    assert ip.gemm(a, a, 1.0, 2.0, c=c, out=view) is view
    np.testing.assert_array_equal(c, wanted)


def test_out_may_be_the_addend_with_another_step_that_is_not_taken() -> None:
    a, b, c = integers(1, 2), integers(2, 4, seed=1), integers(1, 4, seed=2)
    wanted = a @ b + 2 * c
    out = np.lib.stride_tricks.as_strided(c, c.shape, (400, 4))
    assert out.strides != c.strides and ip.gemm(a, b, 1.0, 2.0, c=c, out=out) is out
    np.testing.assert_array_equal(c, wanted)


def test_an_addend_interleaved_with_the_output_is_no_overlap() -> None:
    memory, a = integers(3, 6), integers(3, 3, seed=1)
    wanted = a @ a + memory[:, ::2]
    np.testing.assert_array_equal(ip.gemm(a, a, 1.0, 1.0, c=memory[:, ::2], out=memory[:, 1::2]), wanted)


def test_alpha_and_beta_take_any_real_number() -> None:
    a = np.eye(2)
    for alpha in (2, np.float32(2), np.int64(2), True + 1):
        np.testing.assert_array_equal(ip.gemm(a, a, alpha), 2 * a)


# ---- gemm_add, gemm_mul ----------------------------------------------------------------------------------


def test_an_epilogue_planned_recorded_and_with_another_alpha() -> None:
    a, b, d = integers(5, 7), integers(7, 3), integers(3)
    y = np.empty((5, 3), "f4")
    plan = ip.gemm_add.plan(y, a, b, d, alpha=2.0)
    np.testing.assert_array_equal(plan(), 2 * (a @ b) + d)
    np.testing.assert_array_equal(plan(alpha=-1.0), d - a @ b)
    plan.run(d=d + 1)
    np.testing.assert_array_equal(y, 2 * (a @ b) + d + 1)
    with ip.Graph() as g:
        summed = ip.gemm_add(a, b, d, 3.0)
        scaled = ip.gemm_mul(summed, summed.T, d[:1], -1.0)
    g.run()
    np.testing.assert_array_equal(summed, 3 * (a @ b) + d)
    np.testing.assert_array_equal(scaled, -(summed @ summed.T) * d[0])


def test_an_epilogue_of_batches_that_take_several_runs() -> None:
    a, b, d = integers(2, 3, 5, 7), integers(3, 7, 4), integers(2, 1, 5, 1)
    out = np.empty((3, 2, 4, 5), "f4").transpose(1, 0, 3, 2)
    assert ip.gemm_add(a, b, d, out=out) is out
    np.testing.assert_array_equal(out, a @ b + d)
    np.testing.assert_array_equal(ip.gemm_mul(a, b, d), (a @ b) * d)
    with pytest.raises(ip.ParamError, match=r"gemm_add: out with shape .* overlaps d"):
        ip.gemm_add(a, b, out, out=out)


@pytest.mark.parametrize("d", [(4,), (5, 1, 3), (2, 3), (1, 5, 3), (0, 3)], ids=str)
def test_an_epilogue_does_not_enlarge_the_result(d: tuple[int, ...]) -> None:
    with pytest.raises(ip.ShapeError, match=r"gemm_mul: d is .* does not broadcast to the result, \(5, 3\)"):
        ip.gemm_mul(integers(5, 7), integers(7, 3), integers(*d))


def test_an_epilogue_answers_in_the_kind_of_any_input() -> None:
    a, b = integers(5, 7), integers(7, 3)
    assert isinstance(ip.gemm_add(a, b, ip.from_numpy(integers(3))), ip.Tensor)
    with pytest.raises(ip.DTypeError, match="gemm_add: dtypes differ"):
        ip.gemm_add(a, b, np.ones(3))
    with pytest.raises(ip.ShapeError, match=r"gemm_add: out is \(5, 4\), but the result is \(5, 3\)"):
        ip.gemm_add(a, b, integers(3), out=integers(5, 4))


# ---- add_rms_norm and rearrange --------------------------------------------------------------------------


@pytest.mark.parametrize("alias", ["out-a", "out-b", "residual-a", "residual-b", "both"])
def test_norm_outputs_may_be_inputs(alias: str) -> None:
    a, b, w = integers(2, 4), integers(2, 4, seed=1), integers(4, seed=2)
    y, residual = ip.add_rms_norm(a, b, w)
    x, z = a.copy(), b.copy()
    target = {
        "out-a": {"out": x},
        "out-b": {"out": z},
        "residual-a": {"residual_out": x},
        "residual-b": {"residual_out": z},
    }
    got = ip.add_rms_norm(x, z, w, **target.get(alias, {"out": x, "residual_out": z}))
    np.testing.assert_array_equal(got[0], y)
    np.testing.assert_array_equal(got[1], residual)


@pytest.mark.parametrize("rank", range(9))
def test_rearrange_any_order_of_dimensions(rank: int) -> None:
    x = integers(*[2, 3, 1, 2, 2, 1, 3, 2][:rank])
    for order in list(itertools.permutations(range(rank)))[:: max(1, 7 ** (rank - 3))]:
        np.testing.assert_array_equal(ip.rearrange(x.transpose(order)), x.transpose(order))


@pytest.mark.parametrize("ahead", [0, 1, 16, 63, 64, 4095])
def test_rearrange_of_whole_rows_wherever_they_lie(ahead: int) -> None:
    """Bytes that y is past x, but for pages: some distances are copied in pieces."""
    memory = np.zeros(5 * 4096, np.uint8)
    for n in (2047, 2048, 2049, 4096, 6145):
        memory[:] = 0xEE
        x, y = memory[1 : 1 + n], memory[2 * 4096 + 1 + ahead :][:n]
        x[:] = np.arange(n) % 251
        ip.rearrange(x, out=y)
        np.testing.assert_array_equal(y, np.arange(n) % 251)
        assert memory[2 * 4096 + ahead] == memory[2 * 4096 + 1 + ahead + n] == 0xEE


def test_rearrange_moves_bits() -> None:
    bits = np.array([0x7FC00001, 0xFF800001, 0x80000000], "u4").view("f4")
    np.testing.assert_array_equal(ip.rearrange(bits[::-1]).view("u4"), bits[::-1].view("u4"))
    np.testing.assert_array_equal(ip.rearrange(np.array([True, False])[::-1]), [False, True])
    np.testing.assert_array_equal(ip.rearrange(np.array([1 + 2j, 3])[::-1]), [3, 1 + 2j])


def test_bfloat16_comes_and_goes() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    a = integers(2, 3).astype(ml_dtypes.bfloat16)
    for result in (ip.add(a, a), ip.gemm(a, a.T), ip.rearrange(a.T)):
        assert result.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(ip.add(a, a), a + a)


def test_without_ml_dtypes_bf16_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['ml_dtypes'] = None\n"
        "import infiniop_py as ip\n"
        "t = ip.zeros((2,), 'BF16')\n"
        "print((t + t).tolist(), t.dtype)\n"
        "try:\n    t.numpy()\nexcept ip.DTypeError as e:\n    print(e)"
    )
    lines = children.run(code).splitlines()
    assert lines == [
        "[0.0, 0.0] BF16",
        "BF16 needs the package ml_dtypes to become a NumPy array: pip install 'infiniop_py[bf16]'",
    ]


# ---- planned calls, threads, processes -------------------------------------------------------------------


def test_a_planned_call_runs_on_what_the_operands_hold() -> None:
    a, b, c = integers(2, 3), integers(3, 2), np.zeros((2, 2), "f4")
    call = ip.Gemm(c, a, b, 2.0, 1.0)
    assert not c.any()
    wanted = np.zeros((2, 2), "f4")
    for _ in range(3):
        wanted += 2 * (a @ b)
        call.run()
        np.testing.assert_array_equal(c, wanted)
        a += 1
    assert "gemm" in type(call).name and "c F32[2, 2]" in repr(call)


@pytest.mark.parametrize(
    ("op", "shapes", "scalars"),
    [
        (ip.Gemm, [(2, 2)] * 3, {"alpha": 2.0}),
        (ip.Add, [(2, 2)] * 3, {}),
        (ip.Mul, [(2, 2)] * 3, {}),
        (ip.AddRMSNorm, [(2, 2)] * 4 + [(2,)], {"epsilon": 0.5}),
        (ip.Rearrange, [(2, 2)] * 2, {}),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_execute_is_plan_and_run(op: Any, shapes: Any, scalars: Any) -> None:
    one = [integers(*shape, seed=i) for i, shape in enumerate(shapes)]
    two = [array.copy() for array in one]
    op.execute(*one, **scalars)
    op(*two, **scalars).run()
    for i in range(op.n_outputs):
        assert (one[i] != integers(*shapes[i], seed=i)).any()
        np.testing.assert_array_equal(one[i], two[i])
    assert issubclass(op, ip.GraphOperator) and isinstance(op.dispatcher(), ip.OpDispatcher)


def test_many_threads_at_once() -> None:
    wrong: list[str] = []

    def work(seed: int) -> None:
        for size in range(1, 60):
            a, b = integers(size, 7, seed=seed), integers(7, size, seed=seed + 1)
            if not np.array_equal(ip.gemm(a, b), a @ b) or not np.array_equal(ip.add(a, a), a + a):
                wrong.append(f"{seed}, {size}")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_thread_counts() -> None:
    default = ip.get_num_threads()
    assert default >= 1
    with ip.num_threads(1):
        assert ip.get_num_threads() == 1
        with ip.num_threads(3):
            assert ip.get_num_threads() == 3
        assert ip.get_num_threads() == 1
        seen: list[int] = []
        other = threading.Thread(target=lambda: seen.append(ip.get_num_threads()))
        other.start()
        other.join()
        assert seen == [default]
    assert ip.get_num_threads() == default
    with pytest.raises(KeyError), ip.num_threads(1):
        raise KeyError
    ip.set_num_threads(default + 1)
    assert ip.get_num_threads() == default + 1
    ip.set_num_threads(0)
    assert ip.get_num_threads() == default


def test_the_result_does_not_depend_on_the_thread_count() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((200, 301)).astype("f4"), rng.standard_normal((301, 157)).astype("f4")
    results = []
    for n in (1, 2, 3, 8):
        with ip.num_threads(n):
            results.append(ip.gemm(a, b))
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])
