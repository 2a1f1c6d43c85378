"""Every pinned number of the interface, written out: a change of one breaks every program there is."""

import ctypes

import _headers
import pytest
from _library import STATUSES, SUCCESS, Library, pointer
from _ops import DTYPES, Abi, Layout, Memory

STATUS = {
    "SUCCESS": 0,
    "INTERNAL_ERROR": 1,
    "NOT_IMPLEMENTED": 2,
    "BAD_PARAM": 3,
    "NULL_POINTER": 4,
    "DEVICE_TYPE_NOT_SUPPORTED": 5,
    "DEVICE_NOT_FOUND": 6,
    "DEVICE_NOT_INITIALIZED": 7,
    "DEVICE_ARCHITECTURE_NOT_SUPPORTED": 8,
    "BAD_TENSOR_DTYPE": 10,
    "BAD_TENSOR_SHAPE": 11,
    "BAD_TENSOR_STRIDES": 12,
    "INSUFFICIENT_WORKSPACE": 13,
}
DEVICE = {
    "CPU": 0,
    "NVIDIA": 1,
    "CAMBRICON": 2,
    "ASCEND": 3,
    "METAX": 4,
    "MOORE": 5,
    "ILUVATAR": 6,
    "KUNLUN": 7,
    "HYGON": 8,
    "QY": 9,
    "TYPE_COUNT": 10,
}
DTYPE = {
    "INVALID": 0,
    "BYTE": 1,
    "BOOL": 2,
    "I8": 3,
    "I16": 4,
    "I32": 5,
    "I64": 6,
    "U8": 7,
    "U16": 8,
    "U32": 9,
    "U64": 10,
    "F8": 11,
    "F16": 12,
    "F32": 13,
    "F64": 14,
    "C16": 15,
    "C32": 16,
    "C64": 17,
    "C128": 18,
    "BF16": 19,
}
SIZES = dict(zip(DTYPE, (0, 1, 1, 1, 2, 4, 8, 1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 8, 16, 2), strict=True))
PINNED = {
    **{f"INFINI_STATUS_{name}": value for name, value in STATUS.items()},
    **{f"INFINI_DEVICE_{name}": value for name, value in DEVICE.items()},
    **{f"INFINI_DTYPE_{name}": value for name, value in DTYPE.items()},
    "INFINIRT_MEMCPY_H2H": 0,
    "INFINIRT_MEMCPY_H2D": 1,
    "INFINIRT_MEMCPY_D2H": 2,
    "INFINIRT_MEMCPY_D2D": 3,
    "INFINIRT_EVENT_COMPLETE": 0,
    "INFINIRT_EVENT_NOT_READY": 1,
    "INFINIRT_EVENT_DEFAULT": 0,
    "INFINIRT_EVENT_DISABLE_TIMING": 1,
    "INFINIRT_EVENT_BLOCKING_SYNC": 2,
    "INFINIRT_STREAM_CAPTURE_MODE_GLOBAL": 0,
    "INFINIRT_STREAM_CAPTURE_MODE_THREAD_LOCAL": 1,
    "INFINIRT_STREAM_CAPTURE_MODE_RELAXED": 2,
    "INFINIOP_CEILING_COPY": 0,
    "INFINIOP_CEILING_READ": 1,
    "INFINIOP_CEILING_FMA_F32": 2,
    "INFINIOP_CEILING_FMA_F64": 3,
}


def test_every_enum_value_is_the_pinned_one(lib: Library) -> None:
    assert _headers.enum_values(lib.folder / "include") == PINNED


def test_the_tests_use_the_pinned_numbers() -> None:
    assert frozenset(STATUS.values()) == STATUSES
    assert {name.upper(): row.number for name, row in DTYPES.items()} == {n: v for n, v in DTYPE.items() if v}
    assert {name.upper(): row.size for name, row in DTYPES.items()} == {n: s for n, s in SIZES.items() if s}


@pytest.mark.parametrize("name", STATUS)
def test_status_string_is_the_name(lib: Library, name: str) -> None:
    assert lib.infiniopStatusString(STATUS[name]) == name.encode()


@pytest.mark.parametrize("number", [-(2**31), -1, 9, 14, 2**31 - 1])
def test_status_string_of_no_status(lib: Library, number: int) -> None:
    assert lib.infiniopStatusString(number) == b"UNKNOWN_STATUS"


@pytest.mark.parametrize("dtype", DTYPES)
def test_element_size(abi: Abi, dtype: str) -> None:
    """A strided copy moves exactly the bytes of the elements: their size is the pinned one."""
    layout = Layout((3,), (2,), dtype)
    source, target = Memory(layout), Memory(layout)
    source.bytes[:] = range(1, source.bytes.size + 1)
    outside = target.outside()
    tensor = abi.tensor(layout)
    desc = pointer()
    lib = abi.lib
    assert lib.infiniopCreateRearrangeDescriptor(abi.handle, ctypes.byref(desc), tensor, tensor) == SUCCESS
    assert lib.infiniopRearrange(desc, target.pointer, source.pointer, None) == SUCCESS
    assert lib.infiniopDestroyRearrangeDescriptor(desc) == SUCCESS
    assert lib.infiniopDestroyTensorDescriptor(tensor) == SUCCESS
    assert target.array.tobytes() == source.array.tobytes()
    assert target.outside() == outside
