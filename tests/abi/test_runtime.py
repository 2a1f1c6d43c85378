"""infinirt on the CPU: each function, each rule of its header. Other devices: test_backend.py."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from _library import (
    BAD_PARAM,
    CPU,
    D2D,
    D2H,
    DEVICE_NOT_FOUND,
    DEVICE_TYPE_NOT_SUPPORTED,
    DEVICE_TYPES,
    H2D,
    H2H,
    INTERNAL_ERROR,
    NOT_IMPLEMENTED,
    NULL_POINTER,
    SUCCESS,
    BackendInfo,
    Library,
    pointer,
)
from _ops import current_device

KINDS = {"H2H": H2H, "H2D": H2D, "D2H": D2H, "D2D": D2D}
BAD_DEVICES = (-(2**31), -1, DEVICE_TYPES, DEVICE_TYPES + 1, 2**31 - 1)
SIZE_MAX = 2**64 - 1
ALIGNMENT = 64


def refused(lib: Library, status: int, wanted: int, *words: str) -> None:
    """Asserts a status and a message with these words in it."""
    message = lib.message()
    assert status == wanted, message
    assert message
    missing = [word for word in words if word.lower() not in message.lower()]
    assert not missing, f"{message!r} lacks {missing}"


@pytest.fixture(autouse=True)
def on_cpu(lib: Library) -> None:
    assert lib.infinirtSetDevice(CPU, 0) == SUCCESS
    lib.clear_message()


@pytest.fixture
def stream(lib: Library) -> Iterator[ctypes.c_void_p]:
    made = pointer()
    assert lib.infinirtStreamCreate(ctypes.byref(made)) == SUCCESS, lib.message()
    assert made.value
    yield made
    assert lib.infinirtStreamDestroy(made) == SUCCESS, lib.message()


@pytest.fixture
def events(lib: Library) -> Iterator[list[ctypes.c_void_p]]:
    made = [pointer(), pointer()]
    for event in made:
        assert lib.infinirtEventCreate(ctypes.byref(event)) == SUCCESS, lib.message()
        assert event.value
    yield made
    for event in made:
        assert lib.infinirtEventDestroy(event) == SUCCESS, lib.message()


# ---- devices -------------------------------------------------------------------------------------


def test_init_is_repeatable(lib: Library) -> None:
    assert [lib.infinirtInit() for _ in range(3)] == [SUCCESS] * 3


def test_all_device_counts_are_those_of_each_family(lib: Library) -> None:
    counts = (ctypes.c_int * (DEVICE_TYPES + 1))(*[-7] * (DEVICE_TYPES + 1))
    assert lib.infinirtGetAllDeviceCount(counts) == SUCCESS
    assert counts[CPU] == 1
    assert counts[DEVICE_TYPES] == -7, "wrote behind the last family"
    for device in range(DEVICE_TYPES):
        count = ctypes.c_int(-7)
        assert lib.infinirtGetDeviceCount(device, ctypes.byref(count)) == SUCCESS
        assert count.value == counts[device] >= 0


@pytest.mark.parametrize("device", BAD_DEVICES)
def test_unknown_device_type(lib: Library, device: int) -> None:
    count, size = ctypes.c_int(-7), ctypes.c_size_t(7)
    out = pointer()
    refused(lib, lib.infinirtGetDeviceCount(device, ctypes.byref(count)), DEVICE_TYPE_NOT_SUPPORTED)
    refused(lib, lib.infinirtSetDevice(device, 0), DEVICE_TYPE_NOT_SUPPORTED)
    refused(lib, lib.infinirtUseDevice(device, 0), DEVICE_TYPE_NOT_SUPPORTED)
    status = lib.infinirtGetMemInfo(device, 0, ctypes.byref(size), ctypes.byref(size))
    refused(lib, status, DEVICE_TYPE_NOT_SUPPORTED)
    snapshot = ctypes.create_string_buffer(512)
    refused(lib, lib.infinirtGetDeviceResourceSnapshot(device, 0, snapshot), DEVICE_TYPE_NOT_SUPPORTED)
    refused(lib, lib.infinirtGetBackend(device, ctypes.byref(out)), DEVICE_TYPE_NOT_SUPPORTED)
    refused(lib, lib.infinirtGetBackendInfo(device, ctypes.byref(BackendInfo())), DEVICE_TYPE_NOT_SUPPORTED)
    assert (count.value, size.value, out.value) == (-7, 7, None), "a failed call wrote a result"
    assert current_device(lib) == (CPU, 0)


@pytest.mark.parametrize("device_id", [-(2**31), -1, 1, 2**31 - 1])
def test_device_id_out_of_range(lib: Library, device_id: int) -> None:
    size = ctypes.c_size_t(7)
    refused(lib, lib.infinirtSetDevice(CPU, device_id), DEVICE_NOT_FOUND, str(device_id))
    refused(lib, lib.infinirtUseDevice(CPU, device_id), DEVICE_NOT_FOUND, str(device_id))
    status = lib.infinirtGetMemInfo(CPU, device_id, ctypes.byref(size), ctypes.byref(size))
    refused(lib, status, DEVICE_NOT_FOUND)
    snapshot = ctypes.create_string_buffer(512)
    refused(lib, lib.infinirtGetDeviceResourceSnapshot(CPU, device_id, snapshot), DEVICE_NOT_FOUND)
    assert current_device(lib) == (CPU, 0)
    assert size.value == 7


def test_get_device_writes_what_is_asked_for(lib: Library) -> None:
    device, device_id = ctypes.c_int(-7), ctypes.c_int(-7)
    assert lib.infinirtGetDevice(ctypes.byref(device), None) == SUCCESS
    assert lib.infinirtGetDevice(None, ctypes.byref(device_id)) == SUCCESS
    assert (device.value, device_id.value) == (CPU, 0)
    refused(lib, lib.infinirtGetDevice(None, None), NULL_POINTER)


def test_memory_info(lib: Library) -> None:
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    assert lib.infinirtGetMemInfo(CPU, 0, ctypes.byref(free), ctypes.byref(total)) == SUCCESS
    assert 0 < free.value <= total.value


def test_resource_snapshot_is_not_implemented(lib: Library) -> None:
    snapshot = ctypes.create_string_buffer(512)
    refused(lib, lib.infinirtGetDeviceResourceSnapshot(CPU, 0, snapshot), NOT_IMPLEMENTED)


def test_the_cpu_is_built_in(lib: Library) -> None:
    info, backend = BackendInfo(), pointer()
    assert lib.infinirtGetBackendInfo(CPU, ctypes.byref(info)) == SUCCESS
    assert (info.available, info.name, info.path, info.reason) == (1, b"cpu", b"built-in", b"")
    assert info.version
    assert lib.infinirtGetBackend(CPU, ctypes.byref(backend)) == SUCCESS
    assert backend.value


def test_device_synchronize(lib: Library) -> None:
    assert lib.infinirtDeviceSynchronize() == SUCCESS


def test_each_thread_starts_on_the_cpu_with_no_message(lib: Library) -> None:
    refused(lib, lib.infinirtSetDevice(-1, 0), DEVICE_TYPE_NOT_SUPPORTED)
    seen: list[Any] = []
    thread = threading.Thread(target=lambda: seen.append((current_device(lib), lib.message())))
    thread.start()
    thread.join()
    assert seen == [((CPU, 0), "")]


def test_a_success_keeps_the_message(lib: Library) -> None:
    refused(lib, lib.infinirtSetDevice(-1, 0), DEVICE_TYPE_NOT_SUPPORTED)
    message = lib.message()
    assert lib.infinirtInit() == SUCCESS
    assert lib.message() == message


def test_set_last_error_returns_the_status(lib: Library) -> None:
    assert lib.infinirtSetLastError(BAD_PARAM, b"a sentence") == BAD_PARAM
    assert lib.infinirtGetLastErrorMessage() == lib.infiniopGetLastErrorMessage() == b"a sentence"


def test_the_last_error_may_be_set_to_itself_or_its_end(lib: Library) -> None:
    """A plugin passes on what it was told."""
    get = ctypes.CFUNCTYPE(ctypes.c_void_p)(lib.address("infinirtGetLastErrorMessage"))
    assert lib.infinirtSetLastError(BAD_PARAM, b"why: a sentence") == BAD_PARAM
    for start, wanted in ((0, b"why: a sentence"), (5, b"a sentence")):
        assert lib.infinirtSetLastError(BAD_PARAM, get() + start) == BAD_PARAM
        assert lib.infinirtGetLastErrorMessage() == wanted


def test_a_message_is_cut_to_1023_bytes(lib: Library) -> None:
    assert lib.infinirtSetLastError(BAD_PARAM, b"x" * 1023 + b"y") == BAD_PARAM
    assert lib.infinirtGetLastErrorMessage() == b"x" * 1023


# ---- streams and events --------------------------------------------------------------------------


def test_stream(lib: Library, stream: ctypes.c_void_p) -> None:
    assert lib.infinirtStreamSynchronize(stream) == SUCCESS
    assert lib.infinirtStreamSynchronize(None) == SUCCESS


def test_event_is_complete_before_and_after_it_is_recorded(
    lib: Library, stream: ctypes.c_void_p, events: list[ctypes.c_void_p]
) -> None:
    event = events[0]
    for record in (False, True, True):
        if record:
            assert lib.infinirtEventRecord(event, stream) == SUCCESS
        status = ctypes.c_int(-7)
        assert lib.infinirtEventQuery(event, ctypes.byref(status)) == SUCCESS
        assert status.value == 0
        assert lib.infinirtEventSynchronize(event) == SUCCESS
        assert lib.infinirtStreamWaitEvent(stream, event) == SUCCESS
        assert lib.infinirtStreamWaitEvent(None, event) == SUCCESS


def test_elapsed_time(lib: Library, events: list[ctypes.c_void_p]) -> None:
    start, end = events
    before = time.monotonic()
    assert lib.infinirtEventRecord(start, None) == SUCCESS
    time.sleep(0.02)
    assert lib.infinirtEventRecord(end, None) == SUCCESS
    after = time.monotonic()
    ms, back = ctypes.c_float(), ctypes.c_float()
    assert lib.infinirtEventElapsedTime(ctypes.byref(ms), start, end) == SUCCESS
    assert lib.infinirtEventElapsedTime(ctypes.byref(back), end, start) == SUCCESS
    # The sleep is a lower bound and the interval around it an upper one, to the accuracy of a float.
    assert 20 * (1 - 2.0**-20) <= ms.value <= (after - before) * 1e3 * (1 + 2.0**-20)
    assert back.value == -ms.value


def test_elapsed_time_needs_two_recorded_events(lib: Library, events: list[ctypes.c_void_p]) -> None:
    ms = ctypes.c_float(7)
    assert lib.infinirtEventRecord(events[0], None) == SUCCESS
    for pair in (events, events[::-1]):
        refused(lib, lib.infinirtEventElapsedTime(ctypes.byref(ms), *pair), BAD_PARAM, "record")
    assert ms.value == 7


@pytest.mark.parametrize("flags", [0, 1, 2, 3])
def test_event_flags(lib: Library, flags: int) -> None:
    event, ms = pointer(), ctypes.c_float(7)
    assert lib.infinirtEventCreateWithFlags(ctypes.byref(event), flags) == SUCCESS
    assert lib.infinirtEventRecord(event, None) == SUCCESS
    status = lib.infinirtEventElapsedTime(ctypes.byref(ms), event, event)
    if flags & 1:
        refused(lib, status, BAD_PARAM, "timing")
        assert ms.value == 7
    else:
        assert (status, ms.value) == (SUCCESS, 0)
    assert lib.infinirtEventDestroy(event) == SUCCESS


@pytest.mark.parametrize("flags", [4, 5, 0x80000000, 0xFFFFFFFF])
def test_event_flags_that_are_none(lib: Library, flags: int) -> None:
    event = pointer()
    refused(lib, lib.infinirtEventCreateWithFlags(ctypes.byref(event), flags), BAD_PARAM)
    assert event.value is None


# ---- memory --------------------------------------------------------------------------------------


def allocators(lib: Library, stream: ctypes.c_void_p | None) -> dict[str, tuple[Any, Any]]:
    """Name -> (allocate(out, size), free(ptr))."""
    return {
        "device": (lib.infinirtMalloc, lib.infinirtFree),
        "host": (lib.infinirtMallocHost, lib.infinirtFreeHost),
        "async": (
            lambda out, size: lib.infinirtMallocAsync(out, size, stream),
            lambda ptr: lib.infinirtFreeAsync(ptr, stream),
        ),
        "async-free": (lambda out, size: lib.infinirtMallocAsync(out, size, stream), lib.infinirtFree),
        "free-async": (lib.infinirtMalloc, lambda ptr: lib.infinirtFreeAsync(ptr, stream)),
    }


ALLOCATORS = ("device", "host", "async", "async-free", "free-async")


@pytest.mark.parametrize("name", ALLOCATORS)
@pytest.mark.parametrize("size", [1, 63, 64, 65, 4096, 3 << 20])
def test_memory_is_aligned_and_usable(lib: Library, stream: ctypes.c_void_p, name: str, size: int) -> None:
    allocate, free = allocators(lib, stream)[name]
    blocks = [pointer() for _ in range(3)]
    for block in blocks:
        assert allocate(ctypes.byref(block), size) == SUCCESS, lib.message()
        assert block.value and block.value % ALIGNMENT == 0
        ctypes.memset(block, 0xC3, size)
    assert len({block.value for block in blocks}) == 3
    for block in blocks:
        assert ctypes.string_at(block, size) == b"\xc3" * size
        assert free(block) == SUCCESS, lib.message()


@pytest.mark.parametrize("name", ALLOCATORS)
def test_memory_of_size_zero_is_null(lib: Library, stream: ctypes.c_void_p, name: str) -> None:
    allocate, free = allocators(lib, stream)[name]
    block = ctypes.c_void_p(1)
    assert allocate(ctypes.byref(block), 0) == SUCCESS
    assert block.value is None
    assert free(block) == SUCCESS


@pytest.mark.parametrize("name", ALLOCATORS)
@pytest.mark.parametrize("size", [SIZE_MAX, SIZE_MAX - 63, 2**63, 2**62])
def test_no_memory(lib: Library, stream: ctypes.c_void_p, name: str, size: int) -> None:
    allocate, _ = allocators(lib, stream)[name]
    block = ctypes.c_void_p(1)
    refused(lib, allocate(ctypes.byref(block), size), INTERNAL_ERROR, "memory", str(size))
    assert block.value is None


@pytest.mark.parametrize("name", ALLOCATORS)
def test_double_free(lib: Library, stream: ctypes.c_void_p, name: str) -> None:
    allocate, free = allocators(lib, stream)[name]
    block = pointer()
    assert allocate(ctypes.byref(block), 64) == SUCCESS
    assert free(block) == SUCCESS
    refused(lib, free(block), BAD_PARAM)


@pytest.mark.parametrize("name", ALLOCATORS)
def test_free_of_what_is_no_allocation(lib: Library, stream: ctypes.c_void_p, name: str) -> None:
    allocate, free = allocators(lib, stream)[name]
    block, foreign = pointer(), ctypes.create_string_buffer(256)
    assert allocate(ctypes.byref(block), 256) == SUCCESS
    assert block.value
    for wrong in (block.value + 64, block.value + 1, ctypes.addressof(foreign), 1, SIZE_MAX):
        refused(lib, free(wrong), BAD_PARAM)
    assert free(block) == SUCCESS


@pytest.mark.parametrize("queued", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("kind", KINDS)
def test_memcpy(lib: Library, stream: ctypes.c_void_p, kind: str, queued: bool) -> None:
    source = np.arange(100, dtype=np.uint8)
    target = np.full(100, 0xEE, np.uint8)
    copy = lib.infinirtMemcpyAsync if queued else lib.infinirtMemcpy
    tail = (stream,) if queued else ()
    status = copy(target[1:].ctypes.data, source[3:].ctypes.data, 51, KINDS[kind], *tail)
    assert status == SUCCESS, lib.message()
    assert target.tolist() == [0xEE, *range(3, 54), *[0xEE] * 48]


@pytest.mark.parametrize("n", [50, 5000])
@pytest.mark.parametrize("shift", [1, -1, 0, 63, -4095, 4097, 5001])
def test_memcpy_may_overlap(lib: Library, shift: int, n: int) -> None:
    first = 4100
    data = (np.arange(15000) % 251).astype(np.uint8)
    wanted = data.copy()
    wanted[first + shift : first + n + shift] = data[first : first + n]
    status = lib.infinirtMemcpy(data[first + shift :].ctypes.data, data[first:].ctypes.data, n, D2D)
    assert status == SUCCESS
    assert data.tolist() == wanted.tolist()


@pytest.mark.parametrize("kind", [-(2**31), -1, 4, 2**31 - 1])
def test_memcpy_kind_that_is_none(lib: Library, kind: int) -> None:
    source, target = np.zeros(8, np.uint8), np.ones(8, np.uint8)
    for tail in ((), (None,)):
        copy = lib.infinirtMemcpyAsync if tail else lib.infinirtMemcpy
        refused(lib, copy(target.ctypes.data, source.ctypes.data, 8, kind, *tail), BAD_PARAM, str(kind))
    assert target.tolist() == [1] * 8


def test_size_zero_takes_null(lib: Library) -> None:
    assert lib.infinirtMemcpy(None, None, 0, H2H) == SUCCESS
    assert lib.infinirtMemcpyAsync(None, None, 0, H2H, None) == SUCCESS
    assert lib.infinirtMemset(None, 1, 0) == SUCCESS
    assert lib.infinirtMemsetAsync(None, 1, 0, None) == SUCCESS


@pytest.mark.parametrize("queued", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("value", [0, 7, 255, 256, 0x1234, -1])
def test_memset_uses_the_low_byte(lib: Library, stream: ctypes.c_void_p, value: int, queued: bool) -> None:
    data = np.full(32, 0xEE, np.uint8)
    fill = lib.infinirtMemsetAsync if queued else lib.infinirtMemset
    tail = (stream,) if queued else ()
    assert fill(data[1:].ctypes.data, value, 30, *tail) == SUCCESS
    assert data.tolist() == [0xEE, *[value & 0xFF] * 30, 0xEE]


# ---- capture -------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0, 1, 2])
def test_the_cpu_has_no_capture(lib: Library, stream: ctypes.c_void_p, mode: int) -> None:
    out, fake = pointer(), ctypes.create_string_buffer(64)
    calls = {
        "infinirtStreamBeginCapture": (stream, mode),
        "infinirtStreamEndCapture": (stream, ctypes.byref(out)),
        "infinirtGraphInstantiate": (ctypes.byref(out), fake, None, None, 0),
        "infinirtGraphDestroy": (fake,),
        "infinirtGraphExecDestroy": (fake,),
        "infinirtGraphLuanch": (fake, stream),
        "infinirtGraphLaunch": (fake, stream),
    }
    for name, arguments in calls.items():
        lib.clear_message()
        refused(lib, lib.functions[name](*arguments), NOT_IMPLEMENTED, "cpu")
    assert out.value is None


def test_what_instantiating_says_is_written_whatever_fails(lib: Library) -> None:
    out, node, log = pointer(), ctypes.c_void_p(0x1234), ctypes.create_string_buffer(b"#" * 16)
    fake = ctypes.create_string_buffer(64)
    status = lib.infinirtGraphInstantiate(ctypes.byref(out), fake, ctypes.byref(node), log, 16)
    refused(lib, status, NOT_IMPLEMENTED, "cpu")
    assert log.value == b"" and node.value is None


@pytest.mark.parametrize("mode", [-1, 3, 2**31 - 1])
def test_capture_mode_that_is_none(lib: Library, mode: int) -> None:
    refused(lib, lib.infinirtStreamBeginCapture(None, mode), BAD_PARAM)


# ---- handles of another kind ---------------------------------------------------------------------


def test_dead_and_wrong_kind_streams_and_events(
    lib: Library, stream: ctypes.c_void_p, events: list[ctypes.c_void_p]
) -> None:
    dead_stream, dead_event = pointer(), pointer()
    assert lib.infinirtStreamCreate(ctypes.byref(dead_stream)) == SUCCESS
    assert lib.infinirtEventCreate(ctypes.byref(dead_event)) == SUCCESS
    assert lib.infinirtStreamDestroy(dead_stream) == SUCCESS
    assert lib.infinirtEventDestroy(dead_event) == SUCCESS
    event, out, block = events[0], pointer(), pointer()
    assert lib.infinirtMalloc(ctypes.byref(block), 8) == SUCCESS
    value = ctypes.c_int(-7)
    ms = ctypes.c_float()
    for wrong in (dead_stream, event, dead_event):
        refused(lib, lib.infinirtStreamSynchronize(wrong), BAD_PARAM)
        refused(lib, lib.infinirtStreamDestroy(wrong), BAD_PARAM)
        refused(lib, lib.infinirtStreamWaitEvent(wrong, event), BAD_PARAM)
        refused(lib, lib.infinirtEventRecord(event, wrong), BAD_PARAM)
        refused(lib, lib.infinirtMallocAsync(ctypes.byref(out), 8, wrong), BAD_PARAM)
        refused(lib, lib.infinirtFreeAsync(block, wrong), BAD_PARAM)
    assert lib.infinirtEventRecord(event, None) == SUCCESS
    for wrong in (dead_event, stream, dead_stream):
        refused(lib, lib.infinirtEventRecord(wrong, None), BAD_PARAM)
        refused(lib, lib.infinirtEventQuery(wrong, ctypes.byref(value)), BAD_PARAM)
        refused(lib, lib.infinirtEventSynchronize(wrong), BAD_PARAM)
        refused(lib, lib.infinirtEventDestroy(wrong), BAD_PARAM)
        refused(lib, lib.infinirtStreamWaitEvent(None, wrong), BAD_PARAM)
        refused(lib, lib.infinirtEventElapsedTime(ctypes.byref(ms), event, wrong), BAD_PARAM)
        refused(lib, lib.infinirtEventElapsedTime(ctypes.byref(ms), wrong, event), BAD_PARAM)
    assert value.value == -7
    assert lib.infinirtFree(block) == SUCCESS, "a refused FreeAsync freed it"


@pytest.mark.parametrize(
    "name",
    [
        "infinirtStreamDestroy",
        "infinirtEventDestroy",
        "infinirtFree",
        "infinirtFreeHost",
        "infinirtGraphDestroy",
        "infinirtGraphExecDestroy",
    ],
)
def test_destroy_accepts_null(lib: Library, name: str) -> None:
    assert lib.functions[name](None) == SUCCESS


def test_free_async_accepts_null(lib: Library) -> None:
    assert lib.infinirtFreeAsync(None, None) == SUCCESS
