"""gemm_add and gemm_mul give the bits of gemm followed by add or mul, whatever way a product is computed.

At the instruction set in use; tests/test_isa.py starts this file under the others.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import zlib
from collections.abc import Iterator

import numpy as np
import pytest
from _library import CPU, SUCCESS, Library
from _ops import FLOATS, OPS, Abi, Array, Layout, Memory, decode, encode, row_major

Shape = tuple[int, ...]
OUTPUTS = ("C", "T", "padded", "sliced", "reversed")
# d also repeats: rows, columns, items, or one element.
ADDENDS = (*OUTPUTS, "one_row", "one_column", "one_item", "one_element")
THREADS = (1, 2, 3, 8)

# batch (0: matrices of rank 2), m, n, k
SHAPES = (
    (0, 1, 1, 1),
    (0, 5, 7, 9),
    (0, 1, 33, 65),
    (0, 33, 1, 65),
    (0, 1, 1030, 300),
    (0, 1030, 1, 300),
    (0, 4, 517, 513),
    (0, 31, 300, 257),
    (0, 33, 65, 17),
    (0, 70, 64, 260),
    (0, 129, 200, 70),
    (0, 900, 3, 20),
    (0, 3, 900, 20),
    (0, 260, 300, 600),
    (0, 530, 70, 600),
    (0, 9, 17, 0),
    (3, 5, 18, 9),
    (2, 40, 70, 130),
    (8, 33, 32, 48),
    (70, 1, 7, 3),
    (3, 7, 5, 0),
)


def strides_of(layout: str, shape: Shape) -> Shape:
    """Element strides of a shape of rank 2 or 3."""
    compact = row_major(shape)
    *lead, m, n = shape
    if layout == "T":
        return (*compact[:-2], 1, m)
    if layout == "padded":
        return (*(m * (n + 3) for _ in lead), n + 3, 1)
    if layout == "sliced":
        return (*(4 * m * n for _ in lead), 4 * n, 2)
    if layout == "reversed":
        return tuple(-stride for stride in compact)
    if layout == "one_row":
        return (*compact[:-2], 0, 1)
    if layout == "one_column":
        return (*(m for _ in lead), 1, 0)
    if layout == "one_item":
        return (*(0 for _ in lead), n, 1)
    return (0,) * len(shape) if layout == "one_element" else compact


def random_values(random: np.random.Generator, shape: Shape, dtype: str, scale: float) -> Array:
    return encode(random.standard_normal(shape) * scale, dtype)


def filled(random: np.random.Generator, shape: Shape, layout: str, dtype: str, scale: float = 1.0) -> Memory:
    memory = Memory(Layout(shape, strides_of(layout, shape), dtype))
    memory.array[...] = random_values(random, shape, dtype, scale)
    return memory


def assert_same_memory(got: Memory, wanted: Memory, what: str) -> None:
    """Every byte, those between the elements included; a NaN is any NaN."""
    a, b = decode(got.array, got.layout.dtype), decode(wanted.array, wanted.layout.dtype)
    nan = np.isnan(a) & np.isnan(b)
    got.array[nan] = wanted.array[nan] = encode(np.float32(np.nan), got.layout.dtype)
    assert got.bytes.tobytes() == wanted.bytes.tobytes(), what


def run(abi: Abi, name: str, memory: dict[str, Memory], alpha: float = 1.0) -> None:
    """With a workspace of exactly the size asked for, between guards; C and Y are not read."""
    op = OPS[name]
    desc = abi.created(op, {operand: at.layout for operand, at in memory.items()})
    size, guard = abi.workspace_size(op, desc), 64
    workspace = np.full(size + 2 * guard, 0xA5, np.uint8)
    pointers: dict[str, int | None] = {operand: at.pointer for operand, at in memory.items()}
    status = abi.run(op, desc, pointers, workspace.ctypes.data + guard, size, alpha=alpha)
    assert status == SUCCESS, abi.lib.message()
    assert (workspace[:guard] == 0xA5).all()
    assert (workspace[guard + size :] == 0xA5).all()
    assert abi.destroy(op, desc) == SUCCESS


@pytest.fixture
def abi(lib: Library) -> Iterator[Abi]:
    assert lib.infinirtSetDevice(CPU, 0) == SUCCESS
    made = Abi(lib)
    yield made
    made.close()
    assert lib.infiniopSetNumThreads(0) == SUCCESS


def check(
    abi: Abi,
    dtype: str,
    shape: tuple[int, int, int, int],
    layouts: tuple[str, ...],
    alpha: float,
    **data: float,
) -> None:
    batch, m, n, k = shape
    random = np.random.default_rng(zlib.crc32(f"{dtype} {shape} {layouts} {alpha}".encode()))
    lead = (batch,) if batch else ()
    layout_y, layout_a, layout_b, layout_d = layouts
    a = filled(random, (*lead, m, k), layout_a, dtype, data.get("scale", 1.0))
    # The batch of b: its own, 1, or of rank 2.
    lead_b = random.choice(3) if batch else 0
    b = filled(random, (*((lead, (1,), ())[lead_b]), k, n), layout_b, dtype, data.get("scale", 1.0))
    d = filled(random, (*lead, m, n), layout_d, dtype)
    d.array[..., 0, 0] = encode(np.float32(np.inf), dtype)
    d.array[..., -1, -1] = encode(np.float32(-0.0), dtype)
    product = filled(random, (*lead, m, n), "C", dtype)
    run(abi, "gemm", {"c": product, "a": a, "b": b}, alpha)
    for name in ("add", "mul"):
        wanted = filled(random, (*lead, m, n), layout_y, dtype)
        run(abi, name, {"c": wanted, "a": product, "b": d})
        for threads in THREADS:
            assert abi.lib.infiniopSetNumThreads(threads) == SUCCESS
            y = Memory(wanted.layout)
            y.array[...] = encode(np.float32(np.nan), dtype)  # it is not read
            run(abi, f"gemm_{name}", {"y": y, "a": a, "b": b, "d": d}, alpha)
            assert_same_memory(y, wanted, f"gemm_{name} with {threads} threads")


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "x".join(map(str, shape)))
def test_bits_of_the_two_operators(abi: Abi, shape: tuple[int, int, int, int], dtype: str) -> None:
    """Every layout of d, with the others taking turns."""
    alphas = itertools.cycle((1.0, 2.5, -1.0, 0.0, 0.3))
    others = itertools.cycle(itertools.product(OUTPUTS, ("C", "T", "padded"), ("C", "T", "sliced")))
    # An odd step, so that shapes meet different combinations.
    for _ in range(zlib.crc32(f"{shape} {dtype}".encode()) % 45):
        next(others)
    for layout_d, alpha in zip(ADDENDS, alphas):
        check(abi, dtype, shape, (*next(others), layout_d), alpha)
        for _ in range(10):
            next(others)


@pytest.mark.parametrize("layouts", list(itertools.product(OUTPUTS, "CT", "CT")), ids="-".join)
@pytest.mark.parametrize("dtype", FLOATS)
def test_layouts(abi: Abi, dtype: str, layouts: tuple[str, ...]) -> None:
    """Every layout of y, as any of them may be computed as its transpose."""
    for shape in ((0, 33, 65, 300), (3, 5, 18, 9), (0, 300, 5, 33)):
        for layout_d in ("C", "T", "one_row", "one_column"):
            check(abi, dtype, shape, (*layouts, layout_d), 1.0)


@pytest.mark.parametrize("layout_b", ["C", "T"])
@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize("shape", SHAPES[:15], ids=lambda shape: "x".join(map(str, shape)))
def test_products_of_the_least_numbers(
    abi: Abi, shape: tuple[int, int, int, int], dtype: str, layout_b: str
) -> None:
    """Sums of subnormals, which BF16 instructions flush: such parts are computed a second time."""
    check(abi, dtype, shape, ("C", "C", layout_b, "C"), 1.0, scale=2.0**-66)


def test_every_way_is_among_them(lib: Library) -> None:
    """The shapes above are computed in every way there is, on an instruction set with all of them."""
    if "INFINIOP_MAX_ISA" in os.environ:
        pytest.skip("INFINIOP_MAX_ISA is set: this process is one of several instruction sets")
    made = Abi(lib)
    op, plans = OPS["gemm_add"], dict[str, list[str]]()
    layouts = itertools.product(("C", "T"), ("C", "T", "sliced"))
    for (batch, m, n, k), dtype, (layout_a, layout_b) in itertools.product(SHAPES, FLOATS, layouts):
        lead = (batch,) if batch else ()
        y = Layout((*lead, m, n), None, dtype)
        a = Layout((*lead, m, k), strides_of(layout_a, (*lead, m, k)), dtype)
        b = Layout((*lead, k, n), strides_of(layout_b, (*lead, k, n)), dtype)
        desc = made.created(op, {"y": y, "a": a, "b": b, "d": y})
        text = ctypes.c_char_p()
        assert lib.infiniopGetDescriptorPlan(desc, ctypes.byref(text)) == SUCCESS
        plans.setdefault(dtype, []).append((text.value or b"").decode())
        assert made.destroy(op, desc) == SUCCESS
    made.close()
    for way in (
        "by rows of B",
        "by columns of B",
        ", A packed, tasks",
        "columns, A packed",
        "blocked",
        "of C^T",
        "B transposed",
        "B copied",
    ):
        assert any(way in plan for plan in itertools.chain(*plans.values())), way
    for dtype, way in itertools.product(FLOATS, ("columns, A packed", "blocked")):
        assert any(way in plan for plan in plans[dtype]), (dtype, way)
    assert any(plan.endswith("an item each") for plan in itertools.chain(*plans.values()))
