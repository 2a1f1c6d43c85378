"""Operands that are one array, overlap, or begin anywhere in a cache line."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import infiniop_py
from infiniop_py._conformance.cases import CALLS, DTYPES, FLOATS, N_OUTPUTS, OPERANDS, Case
from infiniop_py._conformance.layouts import Array, bits
from infiniop_py._conformance.reference import assert_gemm, assert_rms_norm, assert_same_bits, elementwise


def _interleaved(
    shape: tuple[int, ...], dtype: str, count: int, rng: np.random.Generator
) -> tuple[Array, list[Array]]:
    """`count` arrays whose elements take turns in one buffer: they share a range, but no byte."""
    buffer = rng.standard_normal((*shape, count)).astype(DTYPES[dtype])
    return buffer, [buffer[..., i] for i in range(count)]


@pytest.mark.parametrize("dtype", FLOATS)
def test_one_array_as_several_operands(dtype: str, rng: np.random.Generator) -> None:
    """Inputs may share memory in any way; add and mul may write over both inputs at once."""
    x = rng.standard_normal((40, 40)).astype(DTYPES[dtype])
    old = x.copy()
    assert_gemm(infiniop_py.gemm(x, x.T), old, old, old.T, 1.0, 0.0, exact_data=False)
    assert_same_bits(infiniop_py.add(x[1:], x[:-1]), elementwise("add", old[1:], old[:-1]))
    y, residual = infiniop_py.add_rms_norm(x, x, x[0])
    assert_same_bits(residual, elementwise("add", old, old))
    assert_rms_norm(y, residual, old[0], 1e-5)
    assert_same_bits(x, old)
    for op, function in (("add", infiniop_py.add_), ("mul", infiniop_py.mul_)):
        c = x.copy()
        function(c, c, c)
        assert_same_bits(c, elementwise(op, old, old))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", CALLS)
def test_partial_overlap_is_refused(op: str, dtype: str, rng: np.random.Generator) -> None:
    """Each output one element off each input, and gemm's c as its a or b: refused, and nothing is written."""
    depth = 8
    names = OPERANDS[op]
    for output, source in itertools.product(names[: N_OUTPUTS[op]], names[N_OUTPUTS[op] :]):
        for shift in (-1, 1) if op in ("add", "mul", "add_rms_norm") else (-1, 1, 0):
            buffer = rng.standard_normal(depth * depth + 2).astype(DTYPES[dtype])
            operands = {name: rng.standard_normal((depth, depth)).astype(buffer.dtype) for name in names}
            if op == "add_rms_norm":
                operands["weight"] = operands["weight"][0]
            operands[output] = buffer[1:-1].reshape(depth, depth)
            shared = buffer[1 + shift : len(buffer) - 1 + shift]
            operands[source] = shared.reshape(depth, depth) if source != "weight" else shared[:depth]
            before = {name: operand.copy() for name, operand in operands.items()}
            with pytest.raises(infiniop_py.InfiniopError, match=op):
                CALLS[op](Case(op, dtype, tuple(x.shape for x in operands.values())), operands)
            for name in names:
                assert_same_bits(operands[name], before[name], f"{name}, refused because of {source}")


def test_overlap_by_part_of_an_element_is_refused(rng: np.random.Generator) -> None:
    """Half a complex number, aligned to its parts; an F16 output in the upper half of an F32 weight."""
    raw = rng.standard_normal(33)
    before = raw.copy()
    for first, second in ((raw[:32], raw[1:]), (raw[1:], raw[:32])):
        with pytest.raises(infiniop_py.InfiniopError, match="rearrange"):
            infiniop_py.rearrange_(first.view(np.complex128), second.view(np.complex128))

    weight = rng.standard_normal(1).astype(np.float32)
    half = weight.view(np.float16)
    a, b, free = (rng.standard_normal((1, 1)).astype(np.float16) for _ in range(3))
    halves = half.copy()
    for part in (half[:1], half[1:]):
        with pytest.raises(infiniop_py.InfiniopError, match="add_rms_norm"):
            infiniop_py.add_rms_norm_(part.reshape(1, 1), free, a, b, weight)
        with pytest.raises(infiniop_py.InfiniopError, match="add_rms_norm"):
            infiniop_py.add_rms_norm_(free, part.reshape(1, 1), a, b, weight)
    assert_same_bits(raw, before)
    assert_same_bits(half, halves)


@pytest.mark.parametrize("dtype", FLOATS)
def test_interleaved_operands_share_no_byte(dtype: str, rng: np.random.Generator) -> None:
    """The exact overlap test, not byte ranges, decides what is refused."""
    _, (c, a, b) = _interleaved((7, 9), dtype, 3, rng)
    for op, function in (("add", infiniop_py.add_), ("mul", infiniop_py.mul_)):
        old_a, old_b = a.copy(), b.copy()
        function(c, a, b)
        assert_same_bits(c, elementwise(op, old_a, old_b))
        assert_same_bits(a, old_a)
        assert_same_bits(b, old_b)

    _, (c, a, b) = _interleaved((6, 6), dtype, 3, rng)
    old_c, old_a, old_b = c.copy(), a.copy(), b.copy()
    infiniop_py.gemm_(c, a, b, 1.0, 1.0)
    assert_gemm(c, old_c, old_a, old_b, 1.0, 1.0, exact_data=False)

    _, (y, x) = _interleaved((5, 11), dtype, 2, rng)
    infiniop_py.rearrange_(y, x)
    np.testing.assert_array_equal(bits(y), bits(x))

    rows = rng.standard_normal((6, 4, 16)).astype(DTYPES[dtype])
    y, residual_out, a, b = (rows[:, i] for i in range(4))
    weight = rng.standard_normal(16).astype(DTYPES[dtype])
    infiniop_py.add_rms_norm_(y, residual_out, a, b, weight)
    assert_same_bits(residual_out, elementwise("add", a, b))
    assert_rms_norm(y, residual_out, weight, 1e-5)


def _at(place: int, rows: int, cols: int, dtype: str) -> tuple[Array, Array]:
    """An array so many bytes behind a cache line, its rows whole lines apart; and the memory it lies in."""
    size = np.dtype(dtype).itemsize
    pitch = -(-cols * size // 64) * 64
    memory = np.full(rows * pitch + 128, 0xA5, np.uint8)
    first = -memory.ctypes.data % 64 + place
    lines = memory[first : first + rows * pitch].reshape(rows, pitch)
    return lines[:, : cols * size].view(dtype), memory


@pytest.mark.parametrize("dtype", ["u1", "u2", "u4", "u8"])
@pytest.mark.parametrize(("x_place", "y_place"), [(0, 16), (16, 0), (16, 16), (48, 8), (56, 24)])
def test_transposes_wherever_lines_begin(
    x_place: int, y_place: int, dtype: str, rng: np.random.Generator
) -> None:
    """Of either side, as many as are worth being read or written whole. Beside y nothing is written."""
    side = 64 // np.dtype(dtype).itemsize
    several_tiles = [(2100, 1090), (1025, 4200)]
    for rows, cols in [
        *itertools.product((8 * side, 9 * side, 9 * side + 3, 16 * side), repeat=2),
        *several_tiles,
    ]:
        x, _ = _at(x_place, cols, rows, dtype)
        y, memory = _at(y_place, rows, cols, dtype)
        x.view(np.uint8)[...] = rng.integers(0, 256, x.view(np.uint8).shape, np.uint8)
        infiniop_py.rearrange(x.T, out=y)
        np.testing.assert_array_equal(y, x.T)
        y.view(np.uint8)[...] = 0xA5
        assert (memory == 0xA5).all()


@pytest.mark.parametrize("dtype", ["u1", "u2", "u4", "u8", "f2"])
@pytest.mark.parametrize(("x_place", "y_place"), [(0, 16), (16, 0), (16, 16), (48, 8), (56, 24)])
def test_transposed_operands_wherever_lines_begin(
    x_place: int, y_place: int, dtype: str, rng: np.random.Generator
) -> None:
    """Few rows and columns, and as many as are worth bands; one operand transposed or both, c apart or in
    place. Beside c nothing is written."""
    side = 64 // np.dtype(dtype).itemsize
    shapes = [(side + 5, 4 * side + 3), (5 * side, 6 * side + 1), (9 * side + 7, 300)]
    several_tiles = (520, 65 * side + 9)
    for rows, cols in [*shapes, several_tiles, (1 + (1 << 19) // (288 * 64 // side), 288)]:
        x, _ = _at(x_place, cols, rows, dtype)
        z, _ = _at(y_place, cols, rows, dtype)
        c, memory = _at(y_place, rows, cols, dtype)
        for array in (x, z, c):
            array[...] = rng.integers(0, 200, array.shape)
        other = c.copy()
        infiniop_py.add_(c, x.T, c)
        np.testing.assert_array_equal(c, x.T + other)
        infiniop_py.mul_(c, other, z.T)
        np.testing.assert_array_equal(c, other * z.T)
        infiniop_py.add_(c, x.T, z.T)
        np.testing.assert_array_equal(c, x.T + z.T)
        c.view(np.uint8)[...] = 0xA5
        assert (memory == 0xA5).all()


@pytest.mark.parametrize("dtype", ["u1", "u2", "u4", "u8", "c8", "c16"])
@pytest.mark.parametrize("place", [0, 4, 16, 40])
def test_strided_rows_wherever_lines_begin(place: int, dtype: str, rng: np.random.Generator) -> None:
    """From elements of x that are one for all, near or far, backwards too; and from long rows, pages of
    which are copied by turns. Beside y nothing is written."""
    size = np.dtype(dtype).itemsize
    place = place // np.dtype(dtype).alignment * np.dtype(dtype).alignment
    for row in (1024, 1072, 2048 + 56 * 16):
        n = row // size
        x = rng.integers(0, 256, (3, 5 * row), np.uint8).view(dtype)
        for step in (-1, 0, 2, 3, 4, 5):
            source = np.broadcast_to(x[:, :1], (3, n)) if step == 0 else x[:, ::step][:, :n]
            y, memory = _at(place, 3, n, dtype)
            infiniop_py.rearrange(source, out=y)
            np.testing.assert_array_equal(y.view(np.uint8), np.ascontiguousarray(source).view(np.uint8))
            y.view(np.uint8)[...] = 0xA5
            assert (memory == 0xA5).all()
    for row in (16384, 16384 + 48, 40000):
        n = row // size
        x = rng.integers(0, 256, (3, row + 64), np.uint8).view(dtype)[:, :n]
        y, memory = _at(place, 3, n, dtype)
        infiniop_py.rearrange(x, out=y)
        np.testing.assert_array_equal(y.view(np.uint8), np.ascontiguousarray(x).view(np.uint8))
        y.view(np.uint8)[...] = 0xA5
        assert (memory == 0xA5).all()


@pytest.mark.parametrize("dtype", ["u1", "u2", "u4", "u8", "c8", "c16"])
@pytest.mark.parametrize("place", [0, 4, 16, 40])
def test_rows_of_any_length_wherever_lines_begin(place: int, dtype: str, rng: np.random.Generator) -> None:
    """Contiguous ones, one element for all of a row, and near elements on either side or on both, in more
    rows than are copied down a column at a time. Beside y nothing is written."""
    size = np.dtype(dtype).itemsize
    place = place // np.dtype(dtype).alignment * np.dtype(dtype).alignment
    for n in (*range(1, 20), 31, 33, 64, 65, 100, 500 // size, 1000 // size, 4096 // size, 4200 // size):
        count = 70 if n < 20 else 9
        x = rng.integers(0, 256, (count, (2 * n + 1) * size), np.uint8).view(dtype)
        for step in (1, 2):
            y, memory = _at(place, count, step * n, dtype)
            y = y[:, ::step]
            for source in (x[:, :n], x[:, : 2 * n : 2], np.broadcast_to(x[:, :1], (count, n))):
                infiniop_py.rearrange(source, out=y)
                got, wanted = np.ascontiguousarray(y), np.ascontiguousarray(source)
                np.testing.assert_array_equal(got.view(np.uint8), wanted.view(np.uint8))
            y[...] = np.full(size, 0xA5, np.uint8).view(dtype)
            assert (memory == 0xA5).all()


@pytest.mark.parametrize("dtype", ["u1", "u2", "u4", "u8", *FLOATS])
@pytest.mark.parametrize("place", [0, 8, 16])
def test_short_rows_of_results_wherever_lines_begin(place: int, dtype: str, rng: np.random.Generator) -> None:
    """Of a few vectors, the last of which overlaps the one before it: c may be an operand, rows follow one
    another or do not, and the other operand is a row, a column or as large. Beside c nothing is written."""
    number = np.dtype(DTYPES.get(dtype, dtype))
    for n, gap in itertools.product((*range(1, 40), 63, 64, 65, 127, 128, 129, 257, 400), (0, 3)):
        a = rng.integers(1, 100, (11, n)).astype(number)
        flat, memory = _at(place, 1, 11 * (n + gap) * number.itemsize, "u1")
        c = flat.view(number).reshape(11, n + gap)[:, :n]
        for shape, op in itertools.product(((1, n), (11, 1), (11, n)), ("add", "mul")):
            b = rng.integers(1, 100, shape).astype(number)
            expected = elementwise(op, a, np.broadcast_to(b, a.shape))
            function = {"add": infiniop_py.add_, "mul": infiniop_py.mul_}[op]
            function(c, a, b)
            assert_same_bits(np.array(c), expected, f"{op}, {n} columns, b {shape}")
            c[...] = a
            function(c, c, b)
            assert_same_bits(np.array(c), expected, f"{op} in place, {n} columns, b {shape}")
        c[...] = np.full(number.itemsize, 0xA5, np.uint8).view(number)
        assert (memory == 0xA5).all()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("y_place", "r_place"), [(0, 0), (0, 16), (16, 16), (8, 48), (56, 24)])
def test_normalized_rows_wherever_lines_begin(
    y_place: int, r_place: int, dtype: str, rng: np.random.Generator
) -> None:
    """Rows of y and of the residual that follow one another and share cache lines, or lie apart, forwards or
    backwards. Beside them nothing is written."""
    size = DTYPES[dtype].itemsize
    unwritten = np.full(size, 0xA5, np.uint8).view(DTYPES[dtype])
    for n in (128 // size, 160 // size, 160 // size + 1, 1000 // size + 3):
        weight = rng.standard_normal(n).astype(DTYPES[dtype])
        x, residual = rng.standard_normal((2, 7, n)).astype(DTYPES[dtype])
        alone = [infiniop_py.add_rms_norm(x[i : i + 1], residual[i : i + 1], weight) for i in range(7)]
        expected = [np.concatenate(rows) for rows in zip(*alone)]
        assert_rms_norm(expected[0], expected[1], weight, 1e-5)
        for pitch, step in ((n, 1), (n, -1), (n + 1, 1), (n + 64 // size, 1)):
            outputs, memories = [], []
            for place in (y_place, r_place):
                flat, memory = _at(place, 1, 7 * pitch * size, "u1")
                outputs.append(flat.view(DTYPES[dtype]).reshape(7, pitch)[::step, :n])
                memories.append(memory)
            infiniop_py.add_rms_norm_(*outputs, x, residual, weight)
            for got, rows, memory in zip(outputs, expected, memories):
                assert_same_bits(got, rows)
                got[...] = unwritten
                assert (memory == 0xA5).all()


@pytest.mark.parametrize("dtype", ["u1", "u2", "u4", "u8", "c16"])
@pytest.mark.parametrize("place", [0, 8, 16, 24, 48])
@pytest.mark.parametrize("row", [256, 272, 336])
def test_rows_that_follow_one_another(row: int, place: int, dtype: str, rng: np.random.Generator) -> None:
    """Rows of y, of so many bytes, share cache lines; in x they lie apart, forwards or backwards. Beside y
    nothing is written."""
    n = row // np.dtype(dtype).itemsize
    y, memory = _at(place, 1, 4 * 5 * 7 * n, dtype)
    y = y.reshape(4, 5, 7, n)
    for shape, order in (
        ((4, 7, 5, n), (0, 2, 1, 3)),
        ((7, 5, 4, n), (2, 1, 0, 3)),
        ((5, 4, 7, n), (1, 0, 2, 3)),
    ):
        memory[...] = 0xA5
        whole = rng.integers(0, 256, (*shape[:-1], row + 32), np.uint8).view(dtype)
        for x in (whole[..., :n], whole[::-1, :, ::-1, :n]):
            infiniop_py.rearrange(x.transpose(order), out=y)
            np.testing.assert_array_equal(
                y.view(np.uint8), np.ascontiguousarray(x.transpose(order)).view(np.uint8)
            )
        for part in np.s_[:, 1:4], np.s_[:, :, 1:6]:  # the first and the last rows have neighbours beside it
            y.view(np.uint8)[...] = 0xA5
            x = whole[..., :n].transpose(order)[part]
            infiniop_py.rearrange(x, out=y[part])
            np.testing.assert_array_equal(y[part].view(np.uint8), np.ascontiguousarray(x).view(np.uint8))
            y[part].view(np.uint8)[...] = 0xA5
            assert (memory == 0xA5).all()
