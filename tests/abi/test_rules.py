"""The rules that hold for every function, and what each operator accepts and refuses: tables, one row a rule.

Where several things are wrong, the order is: NULL pointers, wrong or dead objects, dtype, shape, strides;
at run: NULL or dead descriptor, workspace size, NULL workspace, NULL operands, alignment, overlap.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _calls import OBJECTS, Scene, may_be_null, numbers, operator_of, releases
from _headers import functions
from _library import (
    BAD_PARAM,
    BAD_TENSOR_DTYPE,
    BAD_TENSOR_SHAPE,
    BAD_TENSOR_STRIDES,
    CPU,
    INSUFFICIENT_WORKSPACE,
    INTERNAL_ERROR,
    NULL_POINTER,
    ROOT,
    SUCCESS,
    Library,
    pointer,
)
from _ops import (
    DTYPES,
    FLOATS,
    OPS,
    Abi,
    Array,
    Layout,
    Memory,
    Op,
    decode,
    encode,
    example,
    expected,
    run_example,
    signed_sizes,
    sizes,
)

FUNCTIONS = {function.name: function for function in functions(Path(ROOT, "native", "include"))}
PTRDIFF_MAX, PTRDIFF_MIN, SIZE_MAX = 2**63 - 1, -(2**63), 2**64 - 1
F32 = DTYPES["f32"].number


def refused(
    lib: Library, status: int, wanted: int | set[int], op: Op | None = None, operand: str = ""
) -> None:
    """Asserts a status, and a message that names the operator and the operand."""
    message = lib.message()
    assert status in (wanted if isinstance(wanted, set) else {wanted}), message
    assert message
    if op:
        assert re.search(rf"\b({op.name}|infiniop{op.c_name})\b", message), (
            f"{message!r} does not name {op.name}"
        )
    if op and operand:
        assert re.search(rf"\b{operand}\b", message), f"{message!r} does not name {operand}"


@pytest.fixture(scope="module")
def scene(lib: Library) -> Iterator[Scene]:
    assert lib.infinirtSetDevice(CPU, 0) == SUCCESS
    made = Scene(lib)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def no_old_message(lib: Library) -> None:
    lib.clear_message()


# ---- NULL at each pointer ------------------------------------------------------------------------

REQUIRED = [
    (function.name, position)
    for function in FUNCTIONS.values()
    for position, parameter in enumerate(function.parameters)
    if ("*" in parameter.type or parameter.type in OBJECTS or parameter.type.startswith("infinirtGraph"))
    and not may_be_null(function, parameter)
]


@pytest.mark.parametrize(
    ("name", "position"), REQUIRED, ids=[f"{n}-{FUNCTIONS[n].parameters[p].name}" for n, p in REQUIRED]
)
def test_null(scene: Scene, name: str, position: int) -> None:
    function = FUNCTIONS[name]
    arguments = scene.arguments(function)
    arguments[position] = None
    op = operator_of(function)
    runs = op is not None and name == f"infiniop{op.c_name}"
    parameter = function.parameters[position].name
    operand = parameter if op and runs and parameter in op.operands else ""
    refused(scene.lib, scene.lib.functions[name](*arguments), NULL_POINTER, op if runs else None, operand)


def test_null_version_pointers(lib: Library) -> None:
    number, text = ctypes.c_int(-7), ctypes.c_char_p()
    assert lib.infiniopGetVersion(ctypes.byref(number), None) == SUCCESS
    assert lib.infiniopGetVersion(None, ctypes.byref(text)) == SUCCESS
    header = Path(lib.folder, "include", "infiniop.h").read_text(encoding="utf-8")
    declared = re.search(r"#define INFINIOP_ABI_VERSION (\d+)", header)
    assert declared and number.value == int(declared[1])
    assert text.value and re.fullmatch(rb"\d+\.\d+\.\d+", text.value)
    refused(lib, lib.infiniopGetVersion(None, None), NULL_POINTER)


DESTROYERS = [name for name, function in FUNCTIONS.items() if releases(function)]


@pytest.mark.parametrize("name", DESTROYERS)
def test_destroy_null(lib: Library, name: str) -> None:
    arguments = [None] * len(FUNCTIONS[name].parameters)
    assert lib.functions[name](*arguments) == SUCCESS


def test_a_legal_call_of_every_function_succeeds(scene: Scene) -> None:
    """The argument lists that the tests break are legal before: else a refusal would prove nothing."""
    answers = {}
    for name, function in FUNCTIONS.items():
        if function.returns == "infiniStatus_t":
            arguments = scene.arguments(function)
            answers[name] = scene.lib.functions[name](*arguments)
            scene.release(function, arguments)
    capture = {
        n for n in answers if n.startswith(("infinirtStreamBegin", "infinirtStreamEnd", "infinirtGraph"))
    }
    no_success = {name for name, status in answers.items() if status != SUCCESS}
    capture -= {"infinirtGraphDestroy", "infinirtGraphExecDestroy"}  # NULL
    assert no_success == capture | {"infinirtLoadBackend", "infinirtGetDeviceResourceSnapshot"}


# ---- objects of another kind, and dead ones ------------------------------------------------------

# The CPU answers NOT_IMPLEMENTED to all of capture before it looks at the stream; releasing NULL is nothing
# on any stream.
UNCHECKED_STREAM = (
    "infinirtStreamBeginCapture",
    "infinirtStreamEndCapture",
    "infinirtGraphLuanch",
    "infinirtGraphLaunch",
    "infinirtFreeAsync",
)
KINDS = ("handle", "tensor", "graph", "stream", "event", *OPS)
MISTAKEN = [
    (function.name, position, wrong)
    for function in FUNCTIONS.values()
    for position, parameter in enumerate(function.parameters)
    if OBJECTS.get(parameter.type, "device graph") != "device graph" and function.name not in UNCHECKED_STREAM
    for wrong in (*KINDS, "dead", "zeros", "text")
    if wrong != OBJECTS[parameter.type] and not (parameter.type.startswith("const struct") and wrong in OPS)
]


@pytest.mark.parametrize(
    ("name", "position", "wrong"),
    MISTAKEN,
    ids=[f"{n}-{FUNCTIONS[n].parameters[p].name}-{w}" for n, p, w in MISTAKEN],
)
def test_wrong_object(scene: Scene, name: str, position: int, wrong: str) -> None:
    function = FUNCTIONS[name]
    kind = OBJECTS[function.parameters[position].type]
    foreign = ctypes.create_string_buffer(b"not an object of this library" if wrong == "text" else b"", 256)
    stand_ins: dict[str, Any] = {"dead": scene.dead[kind], "zeros": foreign, "text": foreign}
    arguments = scene.arguments(function)
    arguments[position] = stand_ins[wrong] if wrong in stand_ins else scene.live[wrong]
    refused(scene.lib, scene.lib.functions[name](*arguments), BAD_PARAM)


def test_objects_survive_what_was_refused(scene: Scene) -> None:
    """After the calls above, each object still works: none was destroyed by a refused call."""
    lib = scene.lib
    for name, op in OPS.items():
        pointers: dict[str, int | None] = {n: m.pointer for n, m in scene.memory[name].items()}
        assert scene.abi.run_in(op, scene.live[name], pointers) == SUCCESS, lib.message()
    assert lib.infiniopGraphRun(scene.live["graph"], None) == SUCCESS
    assert lib.infinirtEventRecord(scene.live["event"], scene.live["stream"]) == SUCCESS


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_public_head_of_a_descriptor(abi: Abi, op: Op) -> None:
    desc = abi.created(op, op.layouts())
    device, device_id = ctypes.c_int(-7), ctypes.c_int(-7)
    assert abi.lib.infiniopGetDescriptorDeviceType(desc, ctypes.byref(device)) == SUCCESS
    assert abi.lib.infiniopGetDescriptorDeviceId(desc, ctypes.byref(device_id)) == SUCCESS
    assert (device.value, device_id.value) == (CPU, 0)
    assert desc.value and abi.handle.value
    assert list((ctypes.c_int * 2).from_address(desc.value)) == [CPU, 0]
    assert list((ctypes.c_int * 2).from_address(abi.handle.value)) == [CPU, 0]
    assert abi.destroy(op, desc) == SUCCESS


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_a_descriptor_of_numbers_is_the_operator_s_own(abi: Abi, op: Op) -> None:
    lib, layouts = abi.lib, op.layouts()
    legal = numbers(layouts)

    def made(name: bytes = op.name.encode(), at: Any = legal, n: int = len(legal)) -> tuple[int, Any, int]:
        desc, size = pointer(), ctypes.c_size_t(7)
        status = lib.infiniopCreateDescriptor(
            abi.handle, ctypes.byref(desc), ctypes.byref(size), name, at, n, ctypes.c_float(1e-5)
        )
        return status, desc, size.value

    status, desc, size = made()
    assert status == SUCCESS, lib.message()
    own = abi.created(op, layouts)
    memory, expected = ({name: Memory(at, 2.0) for name, at in layouts.items()} for _ in range(2))
    for one, where in ((desc, memory), (own, expected)):
        assert abi.run_in(op, one, {name: at.pointer for name, at in where.items()}) == SUCCESS, lib.message()
    for name in op.operands:
        np.testing.assert_array_equal(memory[name].bytes, expected[name].bytes)
    if op.name != "rearrange":
        asked = ctypes.c_size_t()
        assert lib.functions[f"infiniopGet{op.c_name}WorkspaceSize"](own, ctypes.byref(asked)) == SUCCESS
        assert size == asked.value
    assert abi.destroy(op, desc) == abi.destroy(op, own) == SUCCESS

    first = next(iter(op.operands))
    for n in (0, 1, 2, len(legal) - 1):
        refused(lib, made(n=n)[0], BAD_PARAM)
    longer = (ctypes.c_int64 * (len(legal) + 1))(*legal, 0)
    refused(lib, made(at=longer, n=len(longer))[0], BAD_PARAM)
    refused(lib, made(name=op.name.upper().encode())[0], BAD_PARAM)
    bad_dtype, bad_rank = (0, BAD_TENSOR_DTYPE), (1, BAD_TENSOR_SHAPE)
    for (place, wanted), value in ((bad_dtype, 0), (bad_dtype, 99), (bad_rank, 17), (bad_rank, -1)):
        wrong = (ctypes.c_int64 * len(legal))(*legal)
        wrong[place] = value
        refused(lib, made(at=wrong)[0], wanted, op, first)
    rank = legal[1]
    wrong = (ctypes.c_int64 * len(legal))(*legal)
    wrong[2 + rank] += 1  # bytes of the first stride
    refused(lib, made(at=wrong)[0], BAD_TENSOR_STRIDES, op, first)
    wrong[2] = 0  # without elements no step is taken, and other sizes are what is wrong
    assert made(at=wrong)[0] in (BAD_TENSOR_SHAPE, SUCCESS), lib.message()


def test_run3(abi: Abi) -> None:
    lib = abi.lib
    for name in ("gemm", "add", "mul"):
        op = OPS[name]
        desc = abi.created(op, op.layouts())
        memory, expected = ({n: Memory(at, 3.0) for n, at in op.layouts().items()} for _ in range(2))
        assert abi.run_in(op, desc, {n: at.pointer for n, at in expected.items()}) == SUCCESS, lib.message()
        assert lib.infiniopRun3(desc, *(memory[n].pointer for n in op.operands)) == SUCCESS, lib.message()
        for n in op.operands:
            np.testing.assert_array_equal(memory[n].bytes, expected[n].bytes)
        a = memory["a"].pointer
        refused(lib, lib.infiniopRun3(desc, a + 4, a, memory["b"].pointer), BAD_PARAM, op, "c")
        assert abi.destroy(op, desc) == SUCCESS
    for name in ("add_rms_norm", "rearrange"):
        desc = abi.created(OPS[name], OPS[name].layouts())
        refused(lib, lib.infiniopRun3(desc, None, None, None), BAD_PARAM)
        assert abi.destroy(OPS[name], desc) == SUCCESS


def test_run3_of_what_needs_a_workspace(abi: Abi) -> None:
    gemm = OPS["gemm"]
    big = {  # whose A is converted
        "c": Layout((8, 8), dtype="f16"),
        "a": Layout((8, 300), dtype="f16"),
        "b": Layout((300, 8), (1, 300), dtype="f16"),
    }
    desc = abi.created(gemm, big)
    memory = {name: Memory(at, 1.0) for name, at in big.items()}
    status = abi.lib.infiniopRun3(desc, *(memory[n].pointer for n in gemm.operands))
    refused(abi.lib, status, INSUFFICIENT_WORKSPACE, gemm)
    assert abi.destroy(gemm, desc) == SUCCESS


def test_double_destroy(abi: Abi) -> None:
    lib = abi.lib
    tensor = abi.tensor(Layout((2,)))
    assert lib.infiniopDestroyTensorDescriptor(tensor) == SUCCESS
    refused(lib, lib.infiniopDestroyTensorDescriptor(tensor), BAD_PARAM)
    for op in OPS.values():
        desc = abi.created(op, op.layouts())
        assert abi.destroy(op, desc) == SUCCESS
        refused(lib, abi.destroy(op, desc), BAD_PARAM)


# ---- tensor descriptors --------------------------------------------------------------------------

BIG = 2**62
TENSORS: dict[str, tuple[int, tuple[int, ...] | None, tuple[int, ...] | None, int, int | set[int]]] = {
    # name: ndim, shape, strides, dtype, status
    "rank-0": (0, None, None, F32, SUCCESS),
    "rank-16": (16, (2,) * 16, None, F32, SUCCESS),
    "rank-17": (17, (1,) * 17, None, F32, BAD_TENSOR_SHAPE),
    "rank-100": (100, (1,) * 100, None, F32, BAD_TENSOR_SHAPE),
    "rank-2^32": (2**32, (1,), None, F32, BAD_TENSOR_SHAPE),
    "rank-size-max": (SIZE_MAX, (1,), (1,), F32, BAD_TENSOR_SHAPE),
    "dtype-invalid": (1, (2,), None, 0, BAD_TENSOR_DTYPE),
    "dtype-20": (1, (2,), None, 20, BAD_TENSOR_DTYPE),
    "dtype-minus-1": (1, (2,), None, -1, BAD_TENSOR_DTYPE),
    "dtype-int-max": (1, (2,), None, 2**31 - 1, BAD_TENSOR_DTYPE),
    "dtype-int-min": (1, (2,), None, -(2**31), BAD_TENSOR_DTYPE),
    "dtype-before-shape": (17, (1,) * 17, None, 0, BAD_TENSOR_DTYPE),
    "zero": (2, (0, 5), None, F32, SUCCESS),
    "zero-beside-big": (2, (0, BIG), None, DTYPES["u8"].number, SUCCESS),
    "zero-hides-a-product": (3, (0, BIG, 2), None, F32, BAD_TENSOR_SHAPE),
    "zero-with-big-strides": (2, (0, 3), (PTRDIFF_MIN, PTRDIFF_MAX), F32, SUCCESS),
    "product-2^63": (2, (2**31, 2**32), None, DTYPES["u8"].number, BAD_TENSOR_SHAPE),
    "product-2^64": (2, (2**32, 2**32), None, DTYPES["u8"].number, BAD_TENSOR_SHAPE),
    "product-2^80": (16, (32,) * 16, None, DTYPES["u8"].number, BAD_TENSOR_SHAPE),
    "product-behind-stride-0": (2, (2**32, 2**32), (0, 0), F32, BAD_TENSOR_SHAPE),
    "size-max": (1, (SIZE_MAX,), None, DTYPES["u8"].number, BAD_TENSOR_SHAPE),
    "size-max-of-stride-0": (1, (SIZE_MAX,), (0,), F32, BAD_TENSOR_SHAPE),
    "size-2^63": (1, (2**63,), (1,), F32, BAD_TENSOR_SHAPE),
    "product-of-stride-0": (1, (BIG,), (0,), F32, SUCCESS),
    "bytes-overflow": (1, (BIG,), None, F32, {BAD_TENSOR_SHAPE, BAD_TENSOR_STRIDES}),
    "extent-overflow": (1, (2,), (BIG,), F32, BAD_TENSOR_STRIDES),
    "negative-extent-overflow": (1, (2,), (-BIG,), F32, BAD_TENSOR_STRIDES),
    "stride-ptrdiff-max": (1, (2,), (PTRDIFF_MAX,), F32, BAD_TENSOR_STRIDES),
    "stride-ptrdiff-min": (1, (2,), (PTRDIFF_MIN,), F32, BAD_TENSOR_STRIDES),
    "extent-of-two-dims": (2, (2, 2), (BIG, BIG), DTYPES["u8"].number, BAD_TENSOR_STRIDES),
    "extent-both-ways": (2, (2, 2), (BIG, -BIG), DTYPES["u8"].number, BAD_TENSOR_STRIDES),
    "size-1-strides": (2, (1, 1), (PTRDIFF_MIN, PTRDIFF_MAX), F32, SUCCESS),
    "strides-of-any-sign": (3, (2, 3, 4), (-12, 0, 5), F32, SUCCESS),
}


@pytest.mark.parametrize("row", TENSORS)
def test_tensor_descriptor(lib: Library, row: str) -> None:
    ndim, shape, strides, dtype, wanted = TENSORS[row]
    out = pointer()
    status = lib.infiniopCreateTensorDescriptor(
        ctypes.byref(out),
        ndim,
        None if shape is None else sizes(shape),
        None if strides is None else signed_sizes(strides),
        dtype,
    )
    if wanted == SUCCESS:
        assert status == SUCCESS, lib.message()
        assert lib.infiniopDestroyTensorDescriptor(out) == SUCCESS
    else:
        refused(lib, status, wanted)
        assert out.value is None


def test_tensor_descriptor_copies_its_arguments(abi: Abi) -> None:
    shape, strides = sizes((2, 3)), signed_sizes((3, 1))
    op, lib = OPS["rearrange"], abi.lib
    desc, out = pointer(), pointer()
    assert lib.infiniopCreateTensorDescriptor(ctypes.byref(desc), 2, shape, strides, F32) == SUCCESS
    shape[:], strides[:] = (7, 7), (1, 1)
    assert lib.infiniopCreateRearrangeDescriptor(abi.handle, ctypes.byref(out), desc, desc) == SUCCESS
    memory = example(op, op.layouts())
    assert abi.run_in(op, out, {name: operand.pointer for name, operand in memory.items()}) == SUCCESS
    assert memory["y"].array.tobytes() == memory["x"].array.tobytes()
    assert abi.destroy(op, out) == SUCCESS
    assert lib.infiniopDestroyTensorDescriptor(desc) == SUCCESS


# ---- create: dtypes ------------------------------------------------------------------------------


def legal_dtypes(op: Op, operand: str, others: str) -> set[str]:
    """What one operand may be when the others are `others`."""
    if op.name == "add_rms_norm" and operand == "weight" and others in ("f16", "bf16"):
        return {"f16", "bf16", "f32"}
    return {others} & set(op.dtypes)


@pytest.mark.parametrize(
    ("op", "operand", "others"),
    [
        pytest.param(op, operand, others, id=f"{op.name}-{operand}-{others}")
        for op in OPS.values()
        for operand in op.operands
        for others in ("f16", "bf16", "f32", "f64", "i32", "c64")
        if others in op.dtypes
    ],
)
def test_dtype_of_one_operand(abi: Abi, op: Op, operand: str, others: str) -> None:
    """Every element type for one operand, the others of one type: exactly the legal pairs are accepted."""
    legal = legal_dtypes(op, operand, others)
    old = op.legal[operand]
    for dtype in DTYPES:
        status, desc = abi.create(op, op.layouts(others, **{operand: Layout(old.shape, old.strides, dtype)}))
        if dtype in legal:
            assert status == SUCCESS, f"{dtype}: {abi.lib.message()}"
            assert abi.destroy(op, desc) == SUCCESS
        else:
            refused(abi.lib, status, BAD_TENSOR_DTYPE, op, operand)
            assert desc.value is None


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_dtype_of_all_operands(abi: Abi, op: Op) -> None:
    for dtype in DTYPES:
        status, desc = abi.create(op, op.layouts(dtype))
        if dtype in op.dtypes:
            assert status == SUCCESS, f"{dtype}: {abi.lib.message()}"
            assert abi.destroy(op, desc) == SUCCESS
        else:
            refused(abi.lib, status, BAD_TENSOR_DTYPE, op)
            assert desc.value is None


# ---- create: shapes and strides ------------------------------------------------------------------

L = Layout
NORM = ("y", "residual_out", "a", "b")
Row = tuple[dict[str, Layout], int, str]  # changed operands, status, the operand that the message names


def each(names: tuple[str, ...], layout: Layout) -> dict[str, Layout]:
    return dict.fromkeys(names, layout)


ALL = ("c", "a", "b")
CREATE: dict[str, dict[str, Row]] = {
    "gemm": {
        "a-rank-1": ({"a": L((4,))}, BAD_TENSOR_SHAPE, "a"),
        "b-rank-0": ({"b": L(())}, BAD_TENSOR_SHAPE, "b"),
        "c-rank-4": ({"c": L((1, 1, 2, 3))}, BAD_TENSOR_SHAPE, "c"),
        "a-rank-16": ({"a": L((1,) * 14 + (2, 4))}, BAD_TENSOR_SHAPE, "a"),
        "inner": ({"a": L((2, 5))}, BAD_TENSOR_SHAPE, "a"),
        "inner-0-and-4": ({"a": L((2, 0))}, BAD_TENSOR_SHAPE, "a"),
        "rows": ({"c": L((5, 3))}, BAD_TENSOR_SHAPE, "c"),
        "columns": ({"c": L((2, 7))}, BAD_TENSOR_SHAPE, "c"),
        "c-transposed-shape": ({"c": L((3, 2))}, BAD_TENSOR_SHAPE, "c"),
        "batches-differ": (
            {"c": L((3, 2, 3)), "a": L((2, 2, 4)), "b": L((3, 4, 3))},
            BAD_TENSOR_SHAPE,
            "a",
        ),
        "c-batch-too-small": ({"c": L((1, 2, 3)), "a": L((2, 2, 4))}, BAD_TENSOR_SHAPE, "c"),
        "c-rank-2-of-batch-2": ({"a": L((2, 2, 4))}, BAD_TENSOR_SHAPE, "c"),
        "batch-0-against-2": ({"c": L((2, 2, 3)), "a": L((0, 2, 4))}, BAD_TENSOR_SHAPE, "a"),
        "batch-2-against-0": ({"c": L((0, 2, 3)), "a": L((2, 2, 4))}, BAD_TENSOR_SHAPE, "a"),
        "c-stride-0": ({"c": L((2, 3), (0, 1))}, BAD_TENSOR_STRIDES, "c"),
        "c-strides-1-1": ({"c": L((2, 3), (1, 1))}, BAD_TENSOR_STRIDES, "c"),
        "c-rows-overlap": ({"c": L((2, 3), (2, 1))}, BAD_TENSOR_STRIDES, "c"),
        "c-batch-stride-0": ({"c": L((2, 2, 3), (0, 3, 1)), "a": L((2, 2, 4))}, BAD_TENSOR_STRIDES, "c"),
    },
    "add": {
        "a-transposed-shape": ({"a": L((3, 2))}, BAD_TENSOR_SHAPE, "a"),
        "b-flat": ({"b": L((6,))}, BAD_TENSOR_SHAPE, "b"),
        "b-scalar": ({"b": L(())}, BAD_TENSOR_SHAPE, "b"),
        "a-of-size-1": ({"a": L((1, 3))}, BAD_TENSOR_SHAPE, "a"),
        "c-of-size-1": ({"c": L((1, 3))}, BAD_TENSOR_SHAPE, "c"),
        "c-zero": ({"c": L((0, 3))}, BAD_TENSOR_SHAPE, "c"),
        "c-stride-0": ({"c": L((2, 3), (3, 0))}, BAD_TENSOR_STRIDES, "c"),
        "c-strides-1-1": ({"c": L((2, 3), (1, 1))}, BAD_TENSOR_STRIDES, "c"),
        "c-strides-3--1-shape-5-4": (
            {**each(("a", "b"), L((5, 4))), "c": L((5, 4), (3, -1))},
            BAD_TENSOR_STRIDES,
            "c",
        ),
        "c-strides-2-3-shape-3-3-ok-only-to-2": (
            {**each(("a", "b"), L((3, 4))), "c": L((3, 4), (3, 2))},
            BAD_TENSOR_STRIDES,
            "c",
        ),
    },
    "add_rms_norm": {
        "rank-0": ({**each(NORM, L(())), "weight": L((1,))}, BAD_TENSOR_SHAPE, ""),
        "rank-9": (each(NORM, L((1,) * 8 + (4,))), BAD_TENSOR_SHAPE, ""),
        "a-shape": ({"a": L((3, 5))}, BAD_TENSOR_SHAPE, "a"),
        "b-rank": ({"b": L((4,))}, BAD_TENSOR_SHAPE, "b"),
        "b-of-size-1": ({"b": L((1, 4))}, BAD_TENSOR_SHAPE, "b"),
        "residual-shape": ({"residual_out": L((4, 3))}, BAD_TENSOR_SHAPE, "residual_out"),
        "y-shape": ({"y": L((2, 4))}, BAD_TENSOR_SHAPE, ""),
        "weight-rank-2": ({"weight": L((1, 4))}, BAD_TENSOR_SHAPE, "weight"),
        "weight-rank-0": ({"weight": L(())}, BAD_TENSOR_SHAPE, "weight"),
        "weight-size": ({"weight": L((5,))}, BAD_TENSOR_SHAPE, "weight"),
        "weight-of-size-1": ({"weight": L((1,))}, BAD_TENSOR_SHAPE, "weight"),
        "y-last-stride": ({"y": L((3, 4), (8, 2))}, BAD_TENSOR_STRIDES, "y"),
        "residual-last-stride": ({"residual_out": L((3, 4), (1, 3))}, BAD_TENSOR_STRIDES, "residual_out"),
        "a-last-stride": ({"a": L((3, 4), (4, -1))}, BAD_TENSOR_STRIDES, "a"),
        "b-last-stride": ({"b": L((3, 4), (1, 0))}, BAD_TENSOR_STRIDES, "b"),
        "weight-stride-2": ({"weight": L((4,), (2,))}, BAD_TENSOR_STRIDES, "weight"),
        "weight-stride-0": ({"weight": L((4,), (0,))}, BAD_TENSOR_STRIDES, "weight"),
        "y-rows-overlap": ({"y": L((3, 4), (3, 1))}, BAD_TENSOR_STRIDES, "y"),
        "y-rows-the-same": ({"y": L((3, 4), (0, 1))}, BAD_TENSOR_STRIDES, "y"),
        "residual-rows-the-same": ({"residual_out": L((3, 4), (0, 1))}, BAD_TENSOR_STRIDES, "residual_out"),
    },
    "rearrange": {
        "shape": ({"x": L((3, 2))}, BAD_TENSOR_SHAPE, "x"),
        "rank": ({"x": L((6,))}, BAD_TENSOR_SHAPE, "x"),
        "src-of-size-1": ({"x": L((2, 1))}, BAD_TENSOR_SHAPE, "x"),
        "dst-stride-0": ({"y": L((2, 3), (0, 1))}, BAD_TENSOR_STRIDES, "y"),
        "dst-strides-1-1": ({"y": L((2, 3), (1, 1))}, BAD_TENSOR_STRIDES, "y"),
        "dst-overlaps-behind-a-hole": (
            {"x": L((3, 2, 2)), "y": L((3, 2, 2), (4, 8, 1))},
            BAD_TENSOR_STRIDES,
            "y",
        ),
    },
}
CREATE["mul"] = CREATE["add"]


def epilogue_of(gemm: dict[str, Layout]) -> dict[str, Layout]:
    """A problem of gemm for gemm_add and gemm_mul: y in place of c, and a d of its shape."""
    renamed = {"y" if name == "c" else name: layout for name, layout in gemm.items()}
    return {**renamed, "d": L(renamed["y"].shape)} if "y" in renamed else renamed


CREATE["gemm_add"] = CREATE["gemm_mul"] = {
    **{
        row.replace("c-", "y-", 1) if row.startswith("c-") else row: (
            epilogue_of(changed),
            wanted,
            "y" if operand == "c" else operand,
        )
        for row, (changed, wanted, operand) in CREATE["gemm"].items()
    },
    "d-transposed-shape": ({"d": L((3, 2))}, BAD_TENSOR_SHAPE, "d"),
    "d-row": ({"d": L((1, 3))}, BAD_TENSOR_SHAPE, "d"),
    "d-vector": ({"d": L((3,))}, BAD_TENSOR_SHAPE, "d"),
    "d-batch-1": ({"d": L((1, 2, 3))}, BAD_TENSOR_SHAPE, "d"),
    "d-rank-2-of-batch-2": (
        {"y": L((2, 2, 3)), "a": L((2, 2, 4)), "d": L((2, 3))},
        BAD_TENSOR_SHAPE,
        "d",
    ),
}


@pytest.mark.parametrize(
    ("op", "row"),
    [pytest.param(OPS[name], row, id=f"{name}-{row}") for name, rows in CREATE.items() for row in rows],
)
def test_create_refuses(abi: Abi, op: Op, row: str) -> None:
    changed, wanted, operand = CREATE[op.name][row]
    status, desc = abi.create(op, op.layouts(**changed))
    refused(abi.lib, status, wanted, op, operand)
    assert desc.value is None


def test_dtype_comes_before_shape_before_strides(abi: Abi) -> None:
    for op in OPS.values():
        out, last = op.outputs[0], op.inputs[-1]
        both = {out: L((2, 3), (0, 1)), last: L((7, 7, 7))}
        refused(abi.lib, abi.create(op, op.layouts(**both))[0], BAD_TENSOR_SHAPE, op)
        refused(
            abi.lib,
            abi.create(op, {**op.layouts(**both), last: L((7, 7, 7), None, "u8")})[0],
            BAD_TENSOR_DTYPE,
            op,
        )


def test_null_comes_before_dead_objects(scene: Scene) -> None:
    out = ctypes.byref(pointer())
    create = scene.lib.infiniopCreateAddDescriptor
    dead, live = scene.dead, scene.live
    refused(scene.lib, create(dead["handle"], out, dead["tensor"], live["add"], None), NULL_POINTER)
    refused(
        scene.lib, create(scene.abi.handle, out, dead["tensor"], live["tensor"], live["tensor"]), BAD_PARAM
    )


# Legal problems beside the plain one, each run and compared.
ACCEPT: dict[str, dict[str, dict[str, Layout]]] = {
    "gemm": {
        "padded": {"c": L((2, 3), (8, 1)), "a": L((2, 4), (9, 1)), "b": L((4, 3), (7, 1))},
        "transposed": {"c": L((2, 3), (1, 2)), "a": L((2, 4), (1, 2)), "b": L((4, 3), (1, 4))},
        "spaced-columns": {"c": L((2, 3), (12, 4)), "a": L((2, 4), (8, 2)), "b": L((4, 3), (9, 3))},
        "not-nested": {"c": L((2, 3), (3, 2)), "b": L((4, 3), (1, 1))},
        "negative": {"c": L((2, 3), (-3, 1)), "a": L((2, 4), (4, -1)), "b": L((4, 3), (-3, -1))},
        "stride-0": {"a": L((2, 4), (0, 1)), "b": L((4, 3), (0, 0))},
        "batch": {"c": L((5, 2, 3)), "a": L((5, 2, 4)), "b": L((5, 4, 3))},
        "batch-of-a-only": {"c": L((5, 2, 3)), "a": L((5, 2, 4))},
        "batch-of-b-only": {"c": L((5, 2, 3)), "b": L((5, 4, 3))},
        "batch-1-broadcasts": {"c": L((5, 2, 3)), "a": L((5, 2, 4)), "b": L((1, 4, 3))},
        "batch-stride-0": {"c": L((5, 2, 3)), "a": L((5, 2, 4), (0, 4, 1)), "b": L((5, 4, 3))},
        "batch-of-c-only": {"c": L((5, 2, 3)), "a": L((1, 2, 4))},
        "batch-1-and-rank-2": {"a": L((1, 2, 4)), "b": L((1, 4, 3))},
        "batch-negative": {
            "c": L((3, 2, 3), (-6, 3, 1)),
            "a": L((3, 2, 4), (-8, 4, 1)),
            "b": L((3, 4, 3)),
        },
        "batch-innermost": {
            "c": L((3, 2, 3), (1, 9, 3)),
            "a": L((3, 2, 4), (1, 12, 3)),
            "b": L((3, 4, 3), (1, 9, 3)),
        },
        "one-element": {"c": L((1, 1)), "a": L((1, 1)), "b": L((1, 1))},
        "vector": {"c": L((1, 3)), "a": L((1, 4))},
        "odd-strides-of-size-1": {
            "c": L((1, 1), (0, -9)),
            "a": L((1, 4), (PTRDIFF_MIN, 1)),
            "b": L((4, 1), (1, PTRDIFF_MAX)),
        },
    },
    "add": {
        "padded": {"c": L((2, 3), (5, 1)), "a": L((2, 3), (4, 1)), "b": L((2, 3), (7, 1))},
        "transposed": {"c": L((2, 3), (1, 2)), "b": L((2, 3), (1, 2))},
        "not-nested": {"c": L((2, 3), (3, 2))},
        "negative": {"c": L((2, 3), (-3, -1)), "a": L((2, 3), (3, -1))},
        "broadcast": {"a": L((2, 3), (0, 1)), "b": L((2, 3), (0, 0))},
        "rank-0": each(ALL, L(())),
        "rank-16": each(ALL, L((1, 2) * 8)),
        "rank-16-strided": {
            **each(ALL, L((2,) * 8 + (1,) * 8)),
            "a": L((2,) * 8 + (1,) * 8, (1, 2, 4, 8, 16, 32, 64, 128) + (3,) * 8),
        },
        "odd-strides-of-size-1": {
            "c": L((1, 3), (0, 1)),
            "a": L((1, 3), (PTRDIFF_MIN, 1)),
            "b": L((1, 3), (PTRDIFF_MAX, 1)),
        },
    },
    "add_rms_norm": {
        "rank-1": {**each(NORM, L((4,))), "weight": L((4,))},
        "rank-8": each(NORM, L((1, 2, 1, 2, 1, 2, 1, 4))),
        "rank-3": each(NORM, L((2, 3, 4))),
        "padded": {"y": L((3, 4), (6, 1)), "residual_out": L((3, 4), (5, 1)), "a": L((3, 4), (9, 1))},
        "broadcast-rows": {"a": L((3, 4), (0, 1)), "b": L((3, 4), (0, 1))},
        "negative-rows": {"y": L((3, 4), (-4, 1)), "b": L((3, 4), (-4, 1))},
        "outer-transposed": {
            **each(NORM, L((2, 3, 4))),
            "y": L((2, 3, 4), (4, 8, 1)),
            "a": L((2, 3, 4), (4, 8, 1)),
        },
        "depth-1": {
            "y": L((3, 1), (2, 9)),
            "residual_out": L((3, 1), (1, 0)),
            "a": L((3, 1), (1, -5)),
            "b": L((3, 1)),
            "weight": L((1,), (7,)),
        },
    },
    "rearrange": {
        "rank-0": each(("y", "x"), L(())),
        "rank-16": each(("y", "x"), L((2, 1) * 8)),
        "transpose": {"x": L((2, 3), (1, 2))},
        "not-nested": {"y": L((2, 3), (3, 2))},
        "negative": {"y": L((2, 3), (-3, 1)), "x": L((2, 3), (3, -1))},
        "broadcast": {"x": L((2, 3), (0, 0))},
        "three-dims": {"y": L((2, 3, 5), (1, 10, 2)), "x": L((2, 3, 5), (20, 6, 1))},
    },
}
ACCEPT["mul"] = ACCEPT["add"]
ACCEPT["gemm_add"] = ACCEPT["gemm_mul"] = {
    **{row: epilogue_of(changed) for row, changed in ACCEPT["gemm"].items()},
    "d-padded": {"d": L((2, 3), (7, 1))},
    "d-transposed": {"d": L((2, 3), (1, 2))},
    "d-negative": {"d": L((2, 3), (-3, -1))},
    "d-one-row": {"d": L((2, 3), (0, 1))},
    "d-one-column": {"d": L((2, 3), (1, 0))},
    "d-one-element": {"d": L((2, 3), (0, 0))},
    "d-one-item": {"y": L((5, 2, 3)), "a": L((5, 2, 4)), "d": L((5, 2, 3), (0, 3, 1))},
}


@pytest.mark.parametrize(
    ("op", "row", "dtype"),
    [
        pytest.param(OPS[name], row, dtype, id=f"{name}-{row}-{dtype}")
        for name, rows in ACCEPT.items()
        for row in ("plain", *rows)
        for dtype in (*FLOATS, "i8", "u64")
        if dtype in OPS[name].dtypes
    ],
)
def test_accepted_and_right(abi: Abi, op: Op, row: str, dtype: str) -> None:
    changed = ACCEPT[op.name].get(row, {})
    run_example(abi, op, {n: L(at.shape, at.strides, dtype) for n, at in op.layouts(**changed).items()})


@pytest.mark.parametrize("weight", ["f16", "bf16", "f32"])
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_weight_of_another_type(abi: Abi, dtype: str, weight: str) -> None:
    run_example(abi, OPS["add_rms_norm"], OPS["add_rms_norm"].layouts(dtype, weight=L((4,), None, weight)))


# Problems in which an operand has no element: it may be NULL.
ZERO: dict[str, dict[str, dict[str, Layout]]] = {
    "gemm": {
        "no-rows": {"c": L((0, 3)), "a": L((0, 4))},
        "no-columns": {"c": L((2, 0)), "b": L((4, 0))},
        "no-batch": {"c": L((0, 2, 3)), "a": L((0, 2, 4))},
        "no-batch-both": {"c": L((0, 2, 3)), "a": L((0, 2, 4)), "b": L((0, 4, 3))},
        "no-inner": {"a": L((2, 0)), "b": L((0, 3))},
        "nothing": {"c": L((0, 0)), "a": L((0, 0)), "b": L((0, 0))},
        "c-stride-0": {"c": L((0, 3), (0, 0)), "a": L((0, 4))},
    },
    "add": {
        "first": each(ALL, L((0, 3))),
        "last": each(ALL, L((2, 0))),
        "many": each(ALL, L((0, 5, 0, 7))),
        "c-stride-0": {**each(ALL, L((0, 3))), "c": L((0, 3), (0, 0))},
    },
    "add_rms_norm": {
        "no-rows": each(NORM, L((0, 4))),
        "no-depth": {**each(NORM, L((3, 0))), "weight": L((0,))},
        "nothing": {**each(NORM, L((0,))), "weight": L((0,))},
    },
    "rearrange": {
        "first": each(("y", "x"), L((0, 3))),
        "last": each(("y", "x"), L((2, 0))),
    },
}
ZERO["mul"] = ZERO["add"]
# Without an inner dimension there is a result still, and not the one that was there before.
ZERO["gemm_add"] = ZERO["gemm_mul"] = {
    row: epilogue_of(changed) for row, changed in ZERO["gemm"].items() if row != "no-inner"
}


@pytest.mark.parametrize(
    ("op", "row"),
    [pytest.param(OPS[name], row, id=f"{name}-{row}") for name, rows in ZERO.items() for row in rows],
)
def test_operands_without_elements_may_be_null(abi: Abi, op: Op, row: str) -> None:
    layouts = op.layouts(**ZERO[op.name][row])
    memory = example(op, layouts)
    wanted = {name: operand.bytes.tobytes() for name, operand in memory.items()}
    if op.name == "gemm" and row == "no-inner":
        memory["c"].array[...] = 3
        wanted["c"] = memory["c"].bytes.tobytes()
    desc = abi.created(op, layouts)
    pointers = {name: None if 0 in at.shape else memory[name].pointer for name, at in layouts.items()}
    assert abi.run_in(op, desc, pointers, beta=1.0) == SUCCESS, abi.lib.message()
    assert {name: operand.bytes.tobytes() for name, operand in memory.items()} == wanted
    assert abi.destroy(op, desc) == SUCCESS


# ---- gemm: alpha, beta, K == 0 -------------------------------------------------------------------

# name: alpha, beta, K, value in a and b, value in c, wanted value of every element
FACTORS: dict[str, tuple[float, float, int, float, float, float]] = {
    "beta-0-does-not-read-c": (1, 0, 4, 1, np.nan, 4),
    "beta-0-does-not-read-inf": (1, 0, 4, 1, np.inf, 4),
    "beta-minus-0-does-not-read-c": (1, -0.0, 4, 1, np.nan, 4),
    "beta-1": (1, 1, 4, 1, 10, 14),
    "beta-half": (2, 0.5, 4, 1, 10, 13),
    "alpha-0-does-not-read-a-and-b": (0, 2, 4, np.nan, 10, 20),
    "alpha-0-beta-0": (0, 0, 4, np.nan, np.nan, 0),
    "alpha-0-beta-1": (0, 1, 4, np.inf, 10, 10),
    "K-0": (3, 2, 0, 1, 10, 20),
    "K-0-beta-0": (3, 0, 0, 1, np.nan, 0),
    "nan-in-a": (1, 0, 4, np.nan, 0, np.nan),
    "nan-in-c": (1, 1, 4, 1, np.nan, np.nan),
    "alpha-nan": (np.nan, 0, 4, 1, 0, np.nan),
    "beta-nan": (1, np.nan, 4, 1, 0, np.nan),
    "alpha-negative": (-1, 0, 4, 2, 0, -16),
}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("row", FACTORS)
def test_gemm_factors(abi: Abi, row: str, dtype: str) -> None:
    alpha, beta, depth, value, old, wanted = FACTORS[row]
    op = OPS["gemm"]
    layouts = {
        "c": L((2, 3), (5, 1), dtype),
        "a": L((2, depth), None, dtype),
        "b": L((depth, 3), None, dtype),
    }
    memory = {name: Memory(at, old if name == "c" else value) for name, at in layouts.items()}
    outside = memory["c"].outside()
    desc = abi.created(op, layouts)
    pointers: dict[str, int | None] = {name: operand.pointer for name, operand in memory.items()}
    assert abi.run_in(op, desc, pointers, alpha=alpha, beta=beta) == SUCCESS, abi.lib.message()
    np.testing.assert_array_equal(memory["c"].values, np.full((2, 3), wanted, np.float64))
    assert memory["c"].outside() == outside
    assert abi.destroy(op, desc) == SUCCESS


# ---- run: pointers -------------------------------------------------------------------------------

OPERANDS = [pytest.param(op, name, id=f"{op.name}-{name}") for op in OPS.values() for name in op.operands]


def written(memory: dict[str, Memory]) -> dict[str, bytes]:
    return {name: operand.bytes.tobytes() for name, operand in memory.items()}


@pytest.mark.parametrize(("op", "operand"), OPERANDS)
def test_null_operand_is_refused_before_anything_is_written(abi: Abi, op: Op, operand: str) -> None:
    memory = example(op, op.layouts())
    before = written(memory)
    desc = abi.created(op, op.layouts())
    pointers = {name: None if name == operand else held.pointer for name, held in memory.items()}
    refused(abi.lib, abi.run_in(op, desc, pointers), NULL_POINTER, op, operand)
    assert written(memory) == before
    assert abi.destroy(op, desc) == SUCCESS


@pytest.mark.parametrize(
    ("op", "operand", "dtype"),
    [
        pytest.param(op, operand, dtype, id=f"{op.name}-{operand}-{dtype}")
        for op in OPS.values()
        for operand in op.operands
        for dtype in ("f16", "f32", "f64", "c128")
        if dtype in op.dtypes
    ],
)
def test_misaligned_operand(abi: Abi, op: Op, operand: str, dtype: str) -> None:
    held = {name: Memory(at) for name, at in op.layouts(dtype).items()}
    before = written(held)
    desc = abi.created(op, op.layouts(dtype))
    for shift in {1, DTYPES[dtype].alignment // 2}:
        pointers: dict[str, int | None] = {name: at.pointer for name, at in held.items()}
        pointers[operand] = held[operand].pointer + shift
        refused(abi.lib, abi.run_in(op, desc, pointers), BAD_PARAM, op, operand)
    assert written(held) == before
    assert abi.destroy(op, desc) == SUCCESS


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_element_alignment_is_enough(abi: Abi, op: Op) -> None:
    """Operands at every multiple of the element size within a cache line."""
    desc = abi.created(op, op.layouts())
    for shift in range(16):
        memory = {
            name: Memory(L((at.shape[0] + 1, *at.shape[1:]), at.strides, at.dtype))
            for name, at in op.legal.items()
        }
        random = np.random.default_rng(shift)
        views: dict[str, Array] = {}
        pointers: dict[str, int | None] = {}
        for name, held in memory.items():
            pointers[name] = held.pointer + shift * 4 % 16
            at = op.legal[name]
            view: Array = np.ndarray(
                at.shape,
                "f4",
                held.bytes.data,
                held.GUARD + shift * 4 % 16,
                at.byte_strides,
            )
            view[...] = random.integers(-3, 4, at.shape)
            views[name] = view
        assert abi.run_in(op, desc, pointers) == SUCCESS, abi.lib.message()
        if op.name == "rearrange":
            np.testing.assert_array_equal(views["y"], views["x"])
        elif op.name == "gemm":
            np.testing.assert_array_equal(views["c"], views["a"] @ views["b"])
        elif op.name in ("gemm_add", "gemm_mul"):
            product, d = views["a"] @ views["b"], views["d"]
            np.testing.assert_array_equal(views["y"], product + d if op.name == "gemm_add" else product * d)
        else:
            first = "residual_out" if op.name == "add_rms_norm" else "c"
            both = views["a"] * views["b"] if op.name == "mul" else views["a"] + views["b"]
            np.testing.assert_array_equal(views[first], both)
    assert abi.destroy(op, desc) == SUCCESS


@pytest.mark.parametrize("op", [op for op in OPS.values() if op.has_workspace], ids=lambda op: op.name)
def test_workspace(abi: Abi, op: Op) -> None:
    """Too small comes before NULL; where none is asked for, any pointer and any size will do."""
    desc = abi.created(op, op.layouts())
    size = abi.workspace_size(op, desc)
    memory = example(op, op.layouts())
    before = written(memory)
    pointers: dict[str, int | None] = {name: held.pointer for name, held in memory.items()}
    block = np.zeros(size + 64, np.uint8)
    for workspace in (None, block.ctypes.data):
        for short in {0, 1, size - 1} & set(range(size)):
            status = abi.run(op, desc, pointers, workspace, short)
            refused(abi.lib, status, INSUFFICIENT_WORKSPACE, op)
            assert str(size) in abi.lib.message()
    if size:
        refused(abi.lib, abi.run(op, desc, pointers, None, size), NULL_POINTER, op, "workspace")
        assert written(memory) == before
    for shift in (0, 1, 7, 63):  # no alignment is needed, and what is too large is no harm
        assert abi.run(op, desc, pointers, block.ctypes.data + shift, size + 1) == SUCCESS, abi.lib.message()
    if not size:
        for workspace, any_size in ((None, 0), (None, 100), (1, 0), (1, 100)):
            assert abi.run(op, desc, pointers, workspace, any_size) == SUCCESS, abi.lib.message()
    assert abi.destroy(op, desc) == SUCCESS


@pytest.mark.parametrize("name", OPS["gemm"].operands)
def test_a_workspace_that_is_an_operands_too(abi: Abi, name: str) -> None:
    """What is before, after and between the rows of an operand is free; its elements are not."""
    op, n, step = OPS["gemm"], 64, 1 << 18
    layouts = {operand: L((n, n), (step // 2, 1), dtype="f16") for operand in op.operands}
    desc = abi.created(op, layouts)
    size = abi.workspace_size(op, desc)
    assert 0 < size < step - 2 * n, "it fits between two rows"
    memory = {operand: Memory(at, 1.0) for operand, at in layouts.items()}
    last = (n - 1) * step + 2 * n
    block = np.zeros(2 * size + last, np.uint8)
    pointers: dict[str, int | None] = {operand: held.pointer for operand, held in memory.items()}
    pointers[name] = start = block.ctypes.data + size
    gap = start + step + 2 * n
    for at in (start - size, gap, gap + step - 2 * n - size, start + last):
        assert abi.run(op, desc, pointers, at, size) == SUCCESS, abi.lib.message()
    before, block[:] = written(memory), 7
    for at in (start - size + 1, start, gap - 1, gap + step - 2 * n - size + 1, start + last - 1):
        refused(abi.lib, abi.run(op, desc, pointers, at, size), BAD_PARAM, op, name)
        assert "workspace" in abi.lib.message()
    assert written(memory) == before and np.all(block == 7)
    assert abi.destroy(op, desc) == SUCCESS


def test_streams_are_ignored(abi: Abi) -> None:
    for op in OPS.values():
        desc = abi.created(op, op.layouts())
        memory = example(op, op.layouts())
        pointers: dict[str, int | None] = {name: held.pointer for name, held in memory.items()}
        assert abi.run_in(op, desc, pointers, stream=1) == SUCCESS, abi.lib.message()
        assert abi.destroy(op, desc) == SUCCESS


# ---- run: memory shared by operands --------------------------------------------------------------

# Each operand: layout, first element in one common block of 64 elements. Then the status.
Shared = dict[str, tuple[Layout, int]]
A, B = L((2, 3)), L((2, 3))
FAR = 40
EVEN, ODD = (L((2, 3), (6, 2)), 0), (L((2, 3), (6, 2)), 1)
BINARY: dict[str, tuple[Shared, int]] = {
    "c-is-a": ({"c": (A, 0), "a": (A, 0), "b": (B, FAR)}, SUCCESS),
    "c-is-b": ({"c": (A, 0), "a": (A, FAR), "b": (B, 0)}, SUCCESS),
    "c-is-both": ({"c": (A, 0), "a": (A, 0), "b": (B, 0)}, SUCCESS),
    "a-is-b": ({"c": (A, 0), "a": (A, FAR), "b": (B, FAR)}, SUCCESS),
    "a-overlaps-b": ({"c": (A, 0), "a": (A, FAR), "b": (B, FAR + 1)}, SUCCESS),
    "c-is-a-with-odd-size-1-stride": (
        {"c": (L((2, 1, 3), (3, 7, 1)), 0), "a": (L((2, 1, 3), (3, -2, 1)), 0), "b": (L((2, 1, 3)), FAR)},
        SUCCESS,
    ),
    "c-is-a-negative": (
        {"c": (L((2, 3), (-3, 1)), 3), "a": (L((2, 3), (-3, 1)), 3), "b": (B, FAR)},
        SUCCESS,
    ),
    "c-is-a-padded": ({"c": (L((2, 3), (9, 1)), 0), "a": (L((2, 3), (9, 1)), 0), "b": (B, FAR)}, SUCCESS),
    "c-beside-a": ({"c": (A, 0), "a": (A, 6), "b": (B, 12)}, SUCCESS),
    "c-and-a-interleave": ({"c": EVEN, "a": ODD, "b": (B, FAR)}, SUCCESS),
    "c-and-b-interleave": ({"c": EVEN, "a": EVEN, "b": ODD}, SUCCESS),
    "c-between-the-rows-of-a": (
        {"c": (L((2, 3), (8, 1)), 3), "a": (L((2, 3), (8, 1)), 0), "b": (B, FAR)},
        SUCCESS,
    ),
    "c-is-a-transposed": (
        {"c": (L((2, 2)), 0), "a": (L((2, 2), (1, 2)), 0), "b": (L((2, 2)), FAR)},
        BAD_PARAM,
    ),
    "c-is-a-reversed": ({"c": (A, 0), "a": (L((2, 3), (-3, -1)), 5), "b": (B, FAR)}, BAD_PARAM),
    "c-on-a-shifted": ({"c": (A, 0), "a": (A, 1), "b": (B, FAR)}, BAD_PARAM),
    "c-on-a-one-row": ({"c": (A, 0), "a": (A, 3), "b": (B, FAR)}, BAD_PARAM),
    "c-on-the-last-of-a": ({"c": (A, 5), "a": (A, 0), "b": (B, FAR)}, BAD_PARAM),
    "c-on-b-shifted": ({"c": (A, 0), "a": (A, FAR), "b": (B, 1)}, BAD_PARAM),
    "c-is-a-but-on-b": ({"c": (A, 0), "a": (A, 0), "b": (B, 2)}, BAD_PARAM),
    "c-on-broadcast-a": ({"c": (A, 0), "a": (L((2, 3), (0, 1)), 0), "b": (B, FAR)}, BAD_PARAM),
    "c-on-scalar-b": ({"c": (A, 0), "a": (A, FAR), "b": (L((2, 3), (0, 0)), 4)}, BAD_PARAM),
    "c-and-a-of-other-padding": (
        {"c": (A, 0), "a": (L((2, 3), (4, 1)), 0), "b": (B, FAR)},
        BAD_PARAM,
    ),
}
GEMM_C, GEMM_A, GEMM_B = L((2, 2)), L((2, 2)), L((2, 2))
N = L((3, 4))
Q = L((2, 2))
EPILOGUE: dict[str, tuple[Shared, int]] = {
    "all-inputs-the-same": ({"y": (Q, 0), "a": (Q, FAR), "b": (Q, FAR), "d": (Q, FAR)}, SUCCESS),
    "y-beside-d": ({"y": (Q, 0), "a": (Q, FAR), "b": (Q, FAR), "d": (Q, 4)}, SUCCESS),
    "y-and-d-interleave": (
        {"y": (L((2, 2), (4, 2)), 0), "a": (Q, FAR), "b": (Q, FAR), "d": (L((2, 2), (4, 2)), 1)},
        SUCCESS,
    ),
    "y-is-a": ({"y": (Q, 0), "a": (Q, 0), "b": (Q, FAR), "d": (Q, FAR)}, BAD_PARAM),
    "y-is-b": ({"y": (Q, 0), "a": (Q, FAR), "b": (Q, 0), "d": (Q, FAR)}, BAD_PARAM),
    "y-is-d": ({"y": (Q, 0), "a": (Q, FAR), "b": (Q, FAR), "d": (Q, 0)}, BAD_PARAM),
    "y-on-d-shifted": ({"y": (Q, 0), "a": (Q, FAR), "b": (Q, FAR), "d": (Q, 3)}, BAD_PARAM),
    "y-on-d-of-one-element": (
        {"y": (Q, 0), "a": (Q, FAR), "b": (Q, FAR), "d": (L((2, 2), (0, 0)), 1)},
        BAD_PARAM,
    ),
}
SHARED: dict[str, dict[str, tuple[Shared, int]]] = {
    "add": BINARY,
    "mul": BINARY,
    "gemm": {
        "a-is-b": ({"c": (GEMM_C, 0), "a": (GEMM_A, FAR), "b": (GEMM_B, FAR)}, SUCCESS),
        "c-beside-a": ({"c": (GEMM_C, 0), "a": (GEMM_A, 4), "b": (GEMM_B, FAR)}, SUCCESS),
        "c-and-a-interleave": (
            {"c": (L((2, 2), (4, 2)), 0), "a": (L((2, 2), (4, 2)), 1), "b": (GEMM_B, FAR)},
            SUCCESS,
        ),
        "c-and-b-in-halves-of-rows": (
            {"c": (L((2, 2), (4, 1)), 0), "a": (GEMM_A, FAR), "b": (L((2, 2), (4, 1)), 2)},
            SUCCESS,
        ),
        "c-is-a": ({"c": (GEMM_C, 0), "a": (GEMM_A, 0), "b": (GEMM_B, FAR)}, BAD_PARAM),
        "c-is-b": ({"c": (GEMM_C, 0), "a": (GEMM_A, FAR), "b": (GEMM_B, 0)}, BAD_PARAM),
        "c-on-a-shifted": ({"c": (GEMM_C, 0), "a": (GEMM_A, 3), "b": (GEMM_B, FAR)}, BAD_PARAM),
        "c-on-broadcast-b": ({"c": (GEMM_C, 0), "a": (GEMM_A, FAR), "b": (L((2, 2), (0, 0)), 1)}, BAD_PARAM),
    },
    "gemm_add": EPILOGUE,
    "gemm_mul": EPILOGUE,
    "rearrange": {
        "beside": ({"y": (A, 0), "x": (A, 6)}, SUCCESS),
        "interleave": ({"y": EVEN, "x": ODD}, SUCCESS),
        "the-same": ({"y": (A, 0), "x": (A, 0)}, BAD_PARAM),
        "transposed": ({"y": (L((2, 2)), 0), "x": (L((2, 2), (1, 2)), 0)}, BAD_PARAM),
        "shifted": ({"y": (A, 1), "x": (A, 0)}, BAD_PARAM),
        "last-on-first": ({"y": (A, 5), "x": (A, 0)}, BAD_PARAM),
    },
    "add_rms_norm": {
        "y-is-a": (
            {"y": (N, 0), "residual_out": (N, 12), "a": (N, 0), "b": (N, 24), "weight": (L((4,)), 60)},
            SUCCESS,
        ),
        "y-is-b": (
            {"y": (N, 0), "residual_out": (N, 12), "a": (N, 24), "b": (N, 0), "weight": (L((4,)), 60)},
            SUCCESS,
        ),
        "residual-is-a": (
            {"y": (N, 0), "residual_out": (N, 12), "a": (N, 12), "b": (N, 24), "weight": (L((4,)), 60)},
            SUCCESS,
        ),
        "residual-is-b": (
            {"y": (N, 0), "residual_out": (N, 12), "a": (N, 24), "b": (N, 12), "weight": (L((4,)), 60)},
            SUCCESS,
        ),
        "residual-is-a-and-y-is-b": (
            {"y": (N, 0), "residual_out": (N, 12), "a": (N, 12), "b": (N, 0), "weight": (L((4,)), 60)},
            SUCCESS,
        ),
        "a-is-b-is-y": (
            {"y": (N, 0), "residual_out": (N, 12), "a": (N, 0), "b": (N, 0), "weight": (L((4,)), 60)},
            SUCCESS,
        ),
        "rows-interleave": (
            {
                "y": (L((3, 4), (16, 1)), 0),
                "residual_out": (L((3, 4), (16, 1)), 4),
                "a": (L((3, 4), (16, 1)), 8),
                "b": (L((3, 4), (16, 1)), 12),
                "weight": (L((4,)), 60),
            },
            SUCCESS,
        ),
        "weight-is-a-row-of-a": (
            {"y": (N, 0), "residual_out": (N, 12), "a": (N, 24), "b": (N, 36), "weight": (L((4,)), 24)},
            SUCCESS,
        ),
        "y-is-residual": (
            {"y": (N, 0), "residual_out": (N, 0), "a": (N, 24), "b": (N, 36), "weight": (L((4,)), 60)},
            BAD_PARAM,
        ),
        "y-is-residual-is-a": (
            {"y": (N, 0), "residual_out": (N, 0), "a": (N, 0), "b": (N, 36), "weight": (L((4,)), 60)},
            BAD_PARAM,
        ),
        "y-on-residual": (
            {"y": (N, 0), "residual_out": (N, 4), "a": (N, 24), "b": (N, 36), "weight": (L((4,)), 60)},
            BAD_PARAM,
        ),
        "y-on-weight": (
            {"y": (N, 0), "residual_out": (N, 12), "a": (N, 24), "b": (N, 36), "weight": (L((4,)), 8)},
            BAD_PARAM,
        ),
        "residual-on-weight": (
            {"y": (N, 0), "residual_out": (N, 12), "a": (N, 24), "b": (N, 36), "weight": (L((4,)), 12)},
            BAD_PARAM,
        ),
        "y-on-a-shifted": (
            {"y": (N, 0), "residual_out": (N, 16), "a": (N, 4), "b": (N, 36), "weight": (L((4,)), 60)},
            BAD_PARAM,
        ),
        "residual-on-b-of-other-rows": (
            {
                "y": (N, 0),
                "residual_out": (N, 12),
                "a": (N, 36),
                "b": (L((3, 4), (-4, 1)), 20),
                "weight": (L((4,)), 60),
            },
            BAD_PARAM,
        ),
    },
}


class Block:
    """One block of memory with every operand of a problem somewhere in it."""

    ELEMENTS = 64

    def __init__(self, shared: Shared, dtype: str) -> None:
        self.dtype = dtype
        values = np.random.default_rng(3).integers(0, 4, self.ELEMENTS)
        self.elements = encode(values, dtype)
        size = DTYPES[dtype].size
        self.layouts = {n: L(at.shape, at.strides, dtype) for n, (at, _) in shared.items()}
        self.pointers: dict[str, int | None] = {
            n: self.elements.ctypes.data + first * size for n, (_, first) in shared.items()
        }
        self.views: dict[str, Array] = {
            n: np.ndarray(
                at.shape,
                self.elements.dtype,
                self.elements.data,
                shared[n][1] * size,
                at.byte_strides,
            )
            for n, at in self.layouts.items()
        }

    def apart(self) -> dict[str, Memory]:
        """The operands copied to memory of their own."""
        apart = {}
        for name, view in self.views.items():
            apart[name] = Memory(L(view.shape, None, self.dtype))
            apart[name].array[...] = view
        return apart


@pytest.mark.parametrize("dtype", ["f16", "f32"])
@pytest.mark.parametrize(
    ("op", "row"),
    [pytest.param(OPS[name], row, id=f"{name}-{row}") for name, rows in SHARED.items() for row in rows],
)
def test_shared_memory(abi: Abi, op: Op, row: str, dtype: str) -> None:
    """Legal sharing gives what separate operands give; any other is refused before a byte is written."""
    shared, wanted = SHARED[op.name][row]
    block = Block(shared, dtype)
    before = block.elements.copy()
    desc = abi.created(op, block.layouts)
    apart = block.apart()
    status = abi.run_in(op, desc, block.pointers)
    if wanted == SUCCESS:
        assert status == SUCCESS, abi.lib.message()
        compact = abi.created(op, {name: held.layout for name, held in apart.items()})
        assert abi.run_in(op, compact, {name: held.pointer for name, held in apart.items()}) == SUCCESS
        assert abi.destroy(op, compact) == SUCCESS
        for name in op.outputs:
            np.testing.assert_array_equal(block.views[name], apart[name].array)
        untouched = np.ones(block.ELEMENTS, bool)
        for name in op.outputs:
            mask: Array = np.ndarray(
                block.views[name].shape,
                bool,
                untouched.data,
                shared[name][1],
                list(block.layouts[name].element_strides),
            )
            mask[...] = False
        np.testing.assert_array_equal(block.elements[untouched], before[untouched])
    else:
        refused(abi.lib, status, BAD_PARAM, op)
        assert block.elements.tobytes() == before.tobytes(), "a refused call wrote"
    assert abi.destroy(op, desc) == SUCCESS


@pytest.mark.parametrize(
    ("op", "output", "aliased"),
    [
        pytest.param(op, output, aliased, id=f"{op.name}-{output}-is-{aliased}")
        for op in OPS.values()
        for output, aliased in op.in_place
    ],
)
@pytest.mark.parametrize("dtype", FLOATS)
def test_in_place_over_several_vectors(abi: Abi, op: Op, output: str, aliased: str, dtype: str) -> None:
    """In place at a size that no vector width divides, so that heads, bodies and tails of rows are in it."""
    layouts = {n: L((3, 77) if len(at.shape) == 2 else (77,), None, dtype) for n, at in op.legal.items()}
    memory, plain = example(op, layouts, seed=1), example(op, layouts, seed=1)
    desc = abi.created(op, layouts)
    pointers: dict[str, int | None] = {name: held.pointer for name, held in memory.items()}
    pointers[output] = memory[aliased].pointer
    assert abi.run_in(op, desc, pointers) == SUCCESS, abi.lib.message()
    assert abi.run_in(op, desc, {name: held.pointer for name, held in plain.items()}) == SUCCESS
    for name in op.outputs:
        got = memory[aliased if name == output else name].array
        np.testing.assert_array_equal(got, plain[name].array, err_msg=name)
    assert abi.destroy(op, desc) == SUCCESS


# ---- lifetimes, threads, numbers -----------------------------------------------------------------


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_a_descriptor_outlives_its_handle(lib: Library, op: Op) -> None:
    maker = Abi(lib)
    desc = maker.created(op, op.layouts())
    maker.close()
    user = Abi(lib)
    memory = example(op, op.layouts())
    wanted = expected(op, memory)
    status = user.run_in(op, desc, {name: held.pointer for name, held in memory.items()})
    assert status == SUCCESS, lib.message()
    out = op.outputs[-1]
    np.testing.assert_array_equal(memory[out].array, wanted[out])
    assert user.destroy(op, desc) == SUCCESS
    user.close()


def threads(lib: Library) -> int:
    n = ctypes.c_int(-7)
    assert lib.infiniopGetNumThreads(ctypes.byref(n)) == SUCCESS
    return n.value


def test_number_of_threads(lib: Library) -> None:
    default = threads(lib)
    assert default >= 1
    try:
        assert lib.infiniopSetNumThreads(3) == SUCCESS
        assert threads(lib) == 3
        assert lib.infiniopSetNumThreadsLocal(2) == SUCCESS
        assert threads(lib) == 2
        for refuse in (lib.infiniopSetNumThreads, lib.infiniopSetNumThreadsLocal):
            for n in (-1, -(2**31)):
                refused(lib, refuse(n), BAD_PARAM)
        assert threads(lib) == 2
        assert lib.infiniopSetNumThreadsLocal(0) == SUCCESS
        assert threads(lib) == 3
    finally:
        assert lib.infiniopSetNumThreadsLocal(0) == SUCCESS
        assert lib.infiniopSetNumThreads(0) == SUCCESS
    assert threads(lib) == default


@pytest.mark.parametrize("count", [1, 2, 3, 8])
@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_the_result_does_not_depend_on_the_number_of_threads(abi: Abi, op: Op, count: int) -> None:
    """Bit for bit, at a size that is worth sharing."""
    layouts = {n: L((190, 190) if len(at.shape) == 2 else (190,)) for n, at in op.legal.items()}
    random = np.random.default_rng(5)
    memory = {n: Memory(at, random.standard_normal(at.shape)) for n, at in layouts.items()}
    desc = abi.created(op, layouts)
    pointers: dict[str, int | None] = {name: held.pointer for name, held in memory.items()}
    results = []
    try:
        for n in (1, count):
            assert abi.lib.infiniopSetNumThreadsLocal(n) == SUCCESS
            assert abi.run_in(op, desc, pointers) == SUCCESS, abi.lib.message()
            results.append([memory[name].array.tobytes() for name in op.outputs])
    finally:
        assert abi.lib.infiniopSetNumThreadsLocal(0) == SUCCESS
    assert results[0] == results[1]
    assert abi.destroy(op, desc) == SUCCESS


def test_cpu_isa(lib: Library) -> None:
    name = ctypes.c_char_p()
    assert lib.infiniopGetCpuIsa(ctypes.byref(name)) == SUCCESS
    assert name.value in (b"portable", b"avx2", b"avx512", b"avx512_bf16", b"amx_bf16")


def reason(lib: Library, what: str) -> str:
    text = ctypes.c_char_p()
    assert getattr(lib, f"infiniopGet{what}Reason")(ctypes.byref(text)) == SUCCESS
    assert text.value
    return text.value.decode("ascii")


def test_the_reason_for_the_number_of_threads(lib: Library) -> None:
    default = threads(lib)
    why = reason(lib, "NumThreads")
    assert re.search(r"\b[1-9]\d* CPUs? in the affinity mask, (no quota|control group quota of )", why)
    try:
        assert lib.infiniopSetNumThreads(3) == SUCCESS
        assert reason(lib, "NumThreads") == f"set for this process; the default is {default}: {why}"
        assert lib.infiniopSetNumThreadsLocal(2) == SUCCESS
        assert reason(lib, "NumThreads") == f"set for this thread; the default is {default}: {why}"
    finally:
        assert lib.infiniopSetNumThreadsLocal(0) == SUCCESS
        assert lib.infiniopSetNumThreads(0) == SUCCESS
    assert reason(lib, "NumThreads") == why


@pytest.mark.parametrize("what", [0, 1, 2, 3])
def test_cpu_ceiling(lib: Library, what: int) -> None:
    rate = ctypes.c_double(-7)
    assert lib.infiniopMeasureCpuCeiling(what, 1 << 16, ctypes.byref(rate)) == SUCCESS, lib.message()
    assert 0 < rate.value < np.inf


@pytest.mark.parametrize(
    ("what", "size", "wanted"),
    [(-1, 4096, BAD_PARAM), (4, 4096, BAD_PARAM), (0, 0, BAD_PARAM), (1, 63, BAD_PARAM)]
    + [(what, size, INTERNAL_ERROR) for what in (0, 1) for size in (2**62, 2**63, SIZE_MAX)],
)
def test_cpu_ceiling_refuses(lib: Library, what: int, size: int, wanted: int) -> None:
    rate = ctypes.c_double(-7)
    refused(lib, lib.infiniopMeasureCpuCeiling(what, size, ctypes.byref(rate)), wanted)
    assert rate.value == -7


def test_decode_inverts_encode() -> None:
    """The helper that BF16 results are compared with: every pattern survives, and halves round to even."""
    patterns = np.arange(2**16, dtype=np.uint16)
    finite = patterns[(patterns & 0x7F80) != 0x7F80]
    np.testing.assert_array_equal(encode(decode(finite, "bf16"), "bf16"), finite)
    halves = np.array([1 + 2.0**-8, 1 + 3 * 2.0**-8], np.float32)
    np.testing.assert_array_equal(decode(encode(halves, "bf16"), "bf16"), [1, 1 + 2.0**-6])
