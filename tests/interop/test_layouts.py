"""Every operator, dtype, layout and rank with every kind of array: the result is of that kind, and has the
bits of the same call on NumPy arrays.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest
from _kinds import KINDS, Kind

import infiniop_py as ip
from infiniop_py._conformance.cases import DTYPES, FLOATS, INTEGERS, special_values
from infiniop_py._conformance.layouts import INPUT_ONLY, LAYOUTS, Array, Guarded, Shape
from infiniop_py._conformance.reference import assert_same_bits

#: The functional form of each operator with its output(s) by keyword, the form that is told its outputs, and
#: the shapes of its inputs and outputs.
FUNCTIONS = {
    "add": (ip.add, ip.add_, ("out",)),
    "mul": (ip.mul, ip.mul_, ("out",)),
    "gemm": (ip.gemm, ip.gemm_, ("out",)),
    "add_rms_norm": (ip.add_rms_norm, ip.add_rms_norm_, ("out", "residual_out")),
    "rearrange": (ip.rearrange, ip.rearrange_, ("out",)),
}
OP_DTYPES = {
    "add": FLOATS + INTEGERS,
    "mul": FLOATS + INTEGERS,
    "gemm": FLOATS,
    "add_rms_norm": FLOATS,
    "rearrange": tuple(DTYPES),
}
#: What the innermost dimension of add_rms_norm may not do.
INNER_STEPS = ("F", "T", "sliced", "reversed", "mirrored", "last_zero", "all_zero", "window", "rotated")


def shapes_of(op: str, shape: Shape) -> tuple[tuple[Shape, ...], tuple[Shape, ...]]:
    """The shapes of inputs and of outputs in a call about `shape`."""
    if op == "gemm":
        m, n = shape[-2:]
        return ((*shape[:-2], m, 5), (*shape[:-2], 5, n)), (shape,)
    if op == "add_rms_norm":
        return (shape, shape, shape[-1:]), (shape, shape)
    return ((shape,) if op == "rearrange" else (shape, shape)), (shape,)


def filled(shape: Shape, dtype: str, layout: str) -> Guarded:
    made = Guarded(shape, DTYPES[dtype], layout)
    rng = np.random.default_rng(zlib.crc32(f"{shape} {dtype} {layout}".encode()))
    if dtype in INTEGERS:
        values: Any = rng.choice(special_values(dtype), shape)
    elif dtype == "bool":
        values = rng.integers(0, 2, shape)
    else:
        values = rng.standard_normal(shape)
    made.view[...] = np.asarray(values).astype(made.dtype)
    return made


def as_list(result: Any) -> list[Any]:
    return list(result) if isinstance(result, tuple) else [result]


def check(op: str, kind: Kind, dtype: str, shape: Shape, layout: str) -> None:
    """Inputs in `layout`; then outputs in it, by both forms."""
    function, into, names = FUNCTIONS[op]
    in_shapes, out_shapes = shapes_of(op, shape)
    inputs = [filled(one, dtype, layout if len(one) == len(shape) else "C") for one in in_shapes]
    arrays = [made.view for made in inputs]
    operands = [kind.wrap(array) for array in arrays]
    if any(operand is None for operand in operands):
        pytest.skip(f"this kind has no array of {dtype} in layout {layout}")
    wanted = as_list(function(*arrays))
    for made in inputs:
        made.seal()

    got = as_list(function(*operands))
    for result, expected in zip(got, wanted, strict=True):
        assert type(result) is kind.result()
        assert_same_bits(kind.values(result), expected)

    if kind.as_output and layout not in INPUT_ONLY:
        for by_keyword in (False, True):
            outputs = [filled(one, dtype, layout) for one in out_shapes]
            given = [kind.wrap(made.view) for made in outputs]
            if by_keyword:
                returned = as_list(function(*operands, **dict(zip(names, given, strict=True))))
            else:
                returned = as_list(into(*given, *operands))
            for made, one, back, expected in zip(outputs, given, returned, wanted, strict=True):
                assert back is one
                assert_same_bits(np.array(made.view), expected)
                made.assert_guards_intact("output")
    for made in inputs:
        made.assert_unchanged("input")


def layouts_of(op: str) -> list[str]:
    return [name for name in LAYOUTS if op != "add_rms_norm" or name not in INNER_STEPS]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("op", FUNCTIONS)
def test_every_layout(op: str, kind: str) -> None:
    done = 0
    for dtype in ("f32", "bf16"):
        for layout in layouts_of(op):
            if KINDS[kind].wrap(filled((3, 4), dtype, layout).view) is None:
                continue
            check(op, KINDS[kind], dtype, (3, 4), layout)
            if layout != "window" or op == "rearrange":
                check(op, KINDS[kind], dtype, (2, 3, 4), layout)
            done += 1
    assert done >= 5


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("op", "dtype"), [(op, dtype) for op in FUNCTIONS for dtype in OP_DTYPES[op]])
def test_every_dtype(op: str, dtype: str, kind: str) -> None:
    if kind == "array-interface" and dtype == "bf16":
        pytest.skip("BF16 has no typestring in NumPy's array interface")
    for layout in ("C", "padded"):
        check(op, KINDS[kind], dtype, (7, 33), layout)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("op", "rank"),
    [(op, rank) for op in FUNCTIONS for rank in range({"gemm": 2, "add_rms_norm": 1}.get(op, 0), 9)],
)
def test_every_rank(op: str, rank: int, kind: str) -> None:
    shape = (2, 1, 3, 1, 2, 2, 1, 4)[8 - rank :]
    check(op, KINDS[kind], "f32", shape, "C")
    if rank > 1:
        check(op, KINDS[kind], "f32", shape, "padded")
    if KINDS[kind].wrap(filled(shape, "f32", "odd_ones").view) is not None:
        check(op, KINDS[kind], "f32", shape, "odd_ones")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("op", FUNCTIONS)
@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0), (2, 0, 3)], ids=str)
def test_no_elements(op: str, shape: Shape, kind: str) -> None:
    check(op, KINDS[kind], "f32", shape, "C")


def _array(*values: float) -> Array:
    return np.array(values, np.float32)


RESULT_KINDS = [
    (("numpy", "torch"), "torch"), (("torch", "numpy"), "torch"), (("numpy", "jax"), "jax"),
    (("torch", "jax"), "torch"), (("jax", "torch"), "jax"), (("tensor", "torch"), "tensor"),
    (("torch", "tensor"), "tensor"), (("jax", "tensor"), "tensor"), (("numpy", "tensor"), "tensor"),
    (("array-interface", "torch"), "torch"), (("numpy", "array-interface"), "array-interface"),
    (("dlpack", "torch"), "dlpack"), (("torch", "dlpack"), "torch"), (("numpy", "dlpack"), "dlpack"),
]  # fmt: skip


@pytest.mark.parametrize(("kinds", "answer"), RESULT_KINDS)
def test_several_kinds_in_one_call(kinds: tuple[str, str], answer: str) -> None:
    """Tensor before all others, other libraries' arrays before NumPy's, and the first of equals."""
    arrays = _array(1, 2), _array(3, 4)
    operands = [array if kind == "numpy" else KINDS[kind].wrap(array) for kind, array in zip(kinds, arrays)]
    for function, wanted in ((ip.add, _array(4, 6)), (ip.mul, _array(3, 8))):
        result = function(*operands)
        assert type(result) is KINDS[answer].result()
        assert_same_bits(KINDS[answer].values(result), wanted)


@pytest.mark.parametrize("kind", ["torch", "jax", "tensor"])
def test_the_addend_and_the_weight_count_as_inputs(kind: str) -> None:
    wrap, values, result, _ = KINDS[kind]
    a, b = np.eye(2, dtype=np.float32), np.full((2, 2), 3, np.float32)
    got = ip.gemm(a, a, 1.0, 2.0, c=wrap(b))
    assert type(got) is result()
    assert_same_bits(values(got), a + 2 * b)
    for one in ip.add_rms_norm(a, b, wrap(_array(1, 1))):
        assert type(one) is result()


def test_numpy_output_for_foreign_inputs_and_the_reverse() -> None:
    a, b = _array(1, 2), _array(3, 4)
    out = np.zeros(2, np.float32)
    assert ip.add(KINDS["torch"].wrap(a), KINDS["jax"].wrap(b), out=out) is out
    assert_same_bits(out, a + b)
    own = KINDS["torch"].wrap(np.zeros(2, np.float32))
    assert ip.add(a, KINDS["jax"].wrap(b), out=own) is own
    assert_same_bits(KINDS["torch"].values(own), a + b)


def test_arrays_that_jax_is_still_computing() -> None:
    """JAX answers before it has computed; what is read here must be the values, not what was there before."""
    jax = pytest.importorskip("jax")
    x = jax.numpy.ones((700, 700), np.float32)
    for _ in range(3):
        late = x @ x @ x
        got = ip.add(late, late)
        assert_same_bits(np.asarray(got), np.full((700, 700), 2 * 700.0**2, np.float32))
