"""The steps of test_backend.py, each run in a process of its own: a backend that was loaded stays for good.

python _backend_child.py <step> [<plugin> ...]
"""

from __future__ import annotations

import ctypes
import itertools
import os
import sys
import threading
from collections.abc import Callable

import _library
import numpy as np
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
    INSUFFICIENT_WORKSPACE,
    INTERNAL_ERROR,
    NOT_IMPLEMENTED,
    NULL_POINTER,
    QY,
    SUCCESS,
    BackendInfo,
    FakeCounts,
    Library,
    pointer,
)
from _ops import (
    FLOATS,
    OPS,
    Abi,
    DeviceMemory,
    Layout,
    Memory,
    assert_result,
    current_device,
    example,
    expected,
    run_example,
)

MEMORY = 64 << 20  # FAKE_MEMORY of the plugin
WORKSPACE = 96  # FAKE_WORKSPACE of the plugin


class Fake:
    """The libraries with the plugin in its slot."""

    def __init__(self, lib: Library, plugin: str) -> None:
        self.lib = lib
        self._plugin = ctypes.CDLL(plugin)

    def counts(self) -> FakeCounts:
        return FakeCounts.of(self._plugin)

    def use(self, device_id: int) -> None:
        assert self.lib.infinirtSetDevice(QY, device_id) == SUCCESS, self.lib.message()

    def use_cpu(self) -> None:
        assert self.lib.infinirtSetDevice(CPU, 0) == SUCCESS, self.lib.message()

    def handle_on(self, device_id: int) -> Abi:
        """A handle on QY:device_id; the CPU is current again afterwards."""
        self.use(device_id)
        made = Abi(self.lib)
        self.use_cpu()
        return made

    def memory_free(self, device_id: int) -> int:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        status = self.lib.infinirtGetMemInfo(QY, device_id, ctypes.byref(free), ctypes.byref(total))
        assert status == SUCCESS, self.lib.message()
        assert total.value == MEMORY
        return free.value

    def assert_nothing_left(self) -> None:
        """Every plan, block, stream, event and graph was released, and nothing was written beside a block."""
        counts = self.counts()
        assert counts.plans == counts.host_blocks == counts.streams == counts.events == 0
        assert counts.device_graphs == counts.graph_execs == 0
        assert [*counts.blocks, *counts.bytes] == [0, 0, 0, 0]
        assert counts.broken_guards == 0


def info(lib: Library, device: int = QY) -> BackendInfo:
    read = BackendInfo()
    assert lib.infinirtGetBackendInfo(device, ctypes.byref(read)) == SUCCESS
    assert None not in (read.name, read.version, read.path, read.reason)
    return read


def count(lib: Library, device: int = QY) -> int:
    n = ctypes.c_int(-7)
    assert lib.infinirtGetDeviceCount(device, ctypes.byref(n)) == SUCCESS, lib.message()
    return n.value


def load(plugin: str) -> Fake:
    lib = _library.load()
    assert lib.infinirtLoadBackend(plugin.encode()) == SUCCESS, lib.message()
    return Fake(lib, plugin)


def allocate(lib: Library, size: int) -> ctypes.c_void_p:
    block = pointer()
    assert lib.infinirtMalloc(ctypes.byref(block), size) == SUCCESS, lib.message()
    return block


def download(lib: Library, block: ctypes.c_void_p, size: int) -> bytes:
    host = ctypes.create_string_buffer(size)
    assert lib.infinirtMemcpy(host, block, size, D2H) == SUCCESS, lib.message()
    return host.raw


# ---- loading -------------------------------------------------------------------------------------


def loaded(plugin: str) -> None:
    """By call: the slot answers with the plugin's name, version, path and devices."""
    fake = load(plugin)
    read = info(fake.lib)
    assert (read.available, read.name, read.version, read.reason) == (1, b"fake", b"1.0", b"")
    assert read.path == plugin.encode()
    assert count(fake.lib) == 2
    backend = pointer()
    assert fake.lib.infinirtGetBackend(QY, ctypes.byref(backend)) == SUCCESS
    assert backend.value
    counts = (ctypes.c_int * DEVICE_TYPES)()
    assert fake.lib.infinirtGetAllDeviceCount(counts) == SUCCESS
    assert (counts[CPU], counts[QY]) == (1, 2)


def found_by_itself(plugin: str) -> None:
    """By INFINIOP_BACKEND_PATH, or beside the library: at the first question about the slot."""
    lib = _library.load()
    assert count(lib) == 2, info(lib).reason
    assert info(lib).path == plugin.encode()
    assert lib.infinirtSetDevice(QY, 1) == SUCCESS


def not_found(*words: str) -> None:
    """INFINIOP_BACKEND_PATH names what is no plugin: no error of the process; the reason has these words."""
    lib = _library.load()
    assert count(lib) == 0
    assert count(lib, CPU) == 1
    reason = (info(lib).reason or b"").decode()
    assert all(word in reason for word in words), reason
    assert lib.infinirtSetDevice(QY, 0) == DEVICE_TYPE_NOT_SUPPORTED
    assert all(word in lib.message() for word in words), lib.message()


def refused(path: str, status: str, *words: str) -> None:
    """infinirtLoadBackend answers `status`, says why, and leaves the slot empty with the reason."""
    lib = _library.load()
    assert lib.infinirtLoadBackend(path.encode()) == int(status), lib.message()
    message = lib.message()
    # The path may hold any digits: a word is looked for beside it.
    said = message.replace(path, "PATH") if path else message
    assert all(word.lower() in said.lower() or (word == path and "PATH" in said) for word in words), message
    assert count(lib) == 0
    assert info(lib).available == 0
    assert lib.infinirtSetDevice(QY, 0) == DEVICE_TYPE_NOT_SUPPORTED
    assert current_device(lib) == (CPU, 0)


def all_refused(*paths_and_words: str) -> None:
    """`refused`, for many that leave nothing behind, with a word each."""
    lib = _library.load()
    for path, word in zip(paths_and_words[::2], paths_and_words[1::2]):
        print(path, file=sys.stderr, flush=True)
        assert lib.infinirtLoadBackend(path.encode()) == BAD_PARAM
        assert path[:200] in lib.message() and word in lib.message(), lib.message()
    assert count(lib) == 0 and count(lib, CPU) == 1


def cut(plugin: str, folder: str) -> None:
    """A plugin cut short at each of the places that a file lists is refused."""
    lib = _library.load()
    with open(plugin, "rb") as file:
        content = file.read()
    with open(f"{folder}/cuts") as file:
        places = [int(word) for word in file.read().split()]
    for place in places:
        with open(f"{folder}/cut.so", "wb") as file:
            file.write(content[:place])
        assert lib.infinirtLoadBackend(f"{folder}/cut.so".encode()) == BAD_PARAM, place
    assert lib.infinirtLoadBackend(plugin.encode()) == SUCCESS


def reason_is_kept(path: str, *words: str) -> None:
    """A plugin for a slot that failed: the slot's info tells it later."""
    lib = _library.load()
    assert lib.infinirtLoadBackend(path.encode()) != SUCCESS
    reason = (info(lib).reason or b"").decode().replace(path, "PATH")
    assert "PATH" in reason and all(word.lower() in reason.lower() for word in words), reason


def taken(plugin: str, second: str) -> None:
    """The first plugin keeps the slot; to load it again is no error."""
    fake = load(plugin)
    lib = fake.lib
    assert lib.infinirtLoadBackend(second.encode()) == BAD_PARAM
    assert "taken" in lib.message() and plugin in lib.message(), lib.message()
    assert lib.infinirtLoadBackend(plugin.encode()) == SUCCESS, lib.message()
    assert info(lib).path == plugin.encode()
    run_all(fake, 0)


def no_devices(plugin: str, why: str) -> None:
    """The backend is there and has no device: every id is out of range, and who asks for one hears why."""
    lib = load(plugin).lib
    assert info(lib).available == 1
    assert lib.infinirtSetDevice(CPU, 7) == DEVICE_NOT_FOUND
    before = lib.message()
    assert count(lib) == 0
    assert lib.message() == before, "a call that succeeds leaves the message as it is"
    assert lib.infinirtSetDevice(QY, 0) == DEVICE_NOT_FOUND
    assert "no QY:0" in lib.message() and why in lib.message(), lib.message()
    assert current_device(lib) == (CPU, 0)
    abi = Abi(lib)
    run_example(abi, OPS["add"], OPS["add"].layouts())
    abi.close()


def found_after_chdir(folder: str) -> None:
    """The library is loaded by a relative path, and the process goes elsewhere."""
    os.chdir(folder)
    runtime = ctypes.CDLL("lib/libinfinirt.so")
    os.chdir("/")
    read = BackendInfo()
    assert runtime.infinirtGetBackendInfo(QY, ctypes.byref(read)) == SUCCESS
    assert read.available == 1, read.reason
    assert read.path.decode() == os.path.realpath(f"{folder}/lib/libinfini_qy.so")


def after_a_bad_one(bad: str, plugin: str) -> None:
    """A plugin that failed does not spoil the slot for a good one."""
    lib = _library.load()
    assert lib.infinirtLoadBackend(bad.encode()) != SUCCESS
    assert count(lib) == 0
    assert lib.infinirtLoadBackend(plugin.encode()) == SUCCESS, lib.message()
    assert count(lib) == 2
    assert info(lib).reason == b""


def empty_slots() -> None:
    """A slot without a backend: no device, a status, a reason; and never the CPU instead."""
    lib = _library.load()
    for device in range(1, DEVICE_TYPES):
        read = info(lib, device)
        if read.available:  # a real device of this machine
            continue
        assert count(lib, device) == 0
        assert (read.name, read.version, read.path) == (b"", b"", b"") and read.reason
        size = ctypes.c_size_t()
        snapshot = ctypes.create_string_buffer(512)
        calls: dict[str, tuple[object, ...]] = {
            "infinirtSetDevice": (device, 0),
            "infinirtUseDevice": (device, 0),
            "infinirtGetMemInfo": (device, 0, ctypes.byref(size), ctypes.byref(size)),
            "infinirtGetDeviceResourceSnapshot": (device, 0, snapshot),
            "infinirtGetBackend": (device, ctypes.byref(pointer())),
        }
        for name, arguments in calls.items():
            lib.clear_message()
            assert lib.functions[name](*arguments) == DEVICE_TYPE_NOT_SUPPORTED, name
            assert lib.message(), name
        assert current_device(lib) == (CPU, 0)
    handle = pointer()
    assert lib.infiniopCreateHandle(ctypes.byref(handle)) == SUCCESS
    assert handle.value and list((ctypes.c_int * 2).from_address(handle.value)) == [CPU, 0]
    assert lib.infiniopDestroyHandle(handle) == SUCCESS


def one_load_under_threads(plugin: str) -> None:
    """Many threads ask at once: one of them loads, all see two devices."""
    lib = _library.load()
    barrier, seen = threading.Barrier(8), []

    def ask() -> None:
        barrier.wait()
        seen.append((count(lib), lib.infinirtSetDevice(QY, 1)))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [(2, SUCCESS)] * 8
    assert info(lib).path == plugin.encode()


# ---- devices and memory --------------------------------------------------------------------------


def devices(plugin: str) -> None:
    """The current device is a thread's own; a failed change keeps it."""
    lib = load(plugin).lib
    for device_id in (1, 0):
        assert lib.infinirtSetDevice(QY, device_id) == SUCCESS
        assert current_device(lib) == (QY, device_id)
        assert lib.infinirtDeviceSynchronize() == SUCCESS
        for wrong, change in itertools.product(
            (-1, 2, 2**31 - 1), ("infinirtSetDevice", "infinirtUseDevice")
        ):
            assert lib.functions[change](QY, wrong) == DEVICE_NOT_FOUND
            assert current_device(lib) == (QY, device_id)
        assert lib.infinirtSetDevice(8, 0) == DEVICE_TYPE_NOT_SUPPORTED
        assert current_device(lib) == (QY, device_id)
    seen: list[tuple[int, int]] = []
    thread = threading.Thread(target=lambda: seen.append(current_device(lib)))
    thread.start()
    thread.join()
    assert seen == [(CPU, 0)]
    handle = pointer()
    assert lib.infinirtSetDevice(QY, 1) == SUCCESS
    assert lib.infiniopCreateHandle(ctypes.byref(handle)) == SUCCESS
    assert handle.value and list((ctypes.c_int * 2).from_address(handle.value)) == [QY, 1]
    assert lib.infiniopDestroyHandle(handle) == SUCCESS


def device_does_not_start(plugin: str) -> None:
    """set_device of the plugin fails: its status, its sentence, and the device that was current. It is not
    asked where calls of this library alone are to use the device.
    """
    lib = load(plugin).lib
    assert lib.infinirtSetDevice(QY, 1) == 7
    assert "does not start" in lib.message()
    assert current_device(lib) == (CPU, 0)
    assert lib.infinirtUseDevice(QY, 1) == SUCCESS
    assert current_device(lib) == (QY, 1)
    assert lib.infinirtUseDevice(CPU, 0) == SUCCESS
    assert current_device(lib) == (CPU, 0)


def memory(plugin: str) -> None:
    """Each device has memory of its own, which the host and the other device cannot reach."""
    fake = load(plugin)
    lib = fake.lib
    fake.use(0)
    here = allocate(lib, 1000)
    fake.use(1)
    there = allocate(lib, 5000)
    assert fake.memory_free(0) == MEMORY - 1000
    assert fake.memory_free(1) == MEMORY - 5000
    assert here.value and here.value % 64 == 0 and there.value and there.value % 64 == 0
    data = bytes(range(250)) * 4
    assert lib.infinirtMemcpy(here, data, 1000, H2D) == BAD_PARAM, "device 1 wrote to memory of device 0"
    fake.use(0)
    assert lib.infinirtMemcpy(here, data, 1000, H2D) == SUCCESS
    assert lib.infinirtMemcpy(here, data, 1001, H2D) == BAD_PARAM, "beyond the end"
    assert lib.infinirtMemcpy(here.value + 100, here.value + 50, 400, D2D) == SUCCESS
    moved = bytearray(data)
    moved[100:500] = data[50:450]
    assert download(lib, here, 1000) == moved
    assert lib.infinirtMemset(here.value + 990, 0x107, 10) == SUCCESS
    assert lib.infinirtMemset(here.value + 990, 1, 11) == BAD_PARAM
    moved[990:] = b"\x07" * 10
    assert download(lib, here, 1000) == moved
    host = ctypes.create_string_buffer(1000)
    assert lib.infinirtMemcpy(host, data, 1000, H2H) == SUCCESS
    assert host.raw == data
    assert lib.infinirtMemcpy(host, here, 1000, H2H) == BAD_PARAM
    for wrong in (here.value + 1, 12345, ctypes.addressof(host)):
        assert lib.infinirtFree(wrong) == BAD_PARAM
    big = pointer()
    for size in (MEMORY - 999, MEMORY + 1, 2**63, 2**64 - 1):
        big.value = 1
        assert lib.infinirtMalloc(ctypes.byref(big), size) == INTERNAL_ERROR, size
        assert big.value is None
        assert "memory" in lib.message()
    assert lib.infinirtMalloc(ctypes.byref(big), MEMORY - 1000) == SUCCESS
    assert fake.memory_free(0) == 0
    assert lib.infinirtFree(big) == SUCCESS
    # Memory may be released while any device of its family is current.
    assert lib.infinirtFree(there) == SUCCESS
    assert lib.infinirtFree(here) == SUCCESS
    assert lib.infinirtFree(here) == BAD_PARAM
    pinned = pointer()
    assert lib.infinirtMallocHost(ctypes.byref(pinned), 100) == SUCCESS
    ctypes.memset(pinned, 7, 100)
    assert lib.infinirtFreeHost(pinned) == SUCCESS
    fake.assert_nothing_left()


def streams_and_events(plugin: str) -> None:
    """Queued calls go to the backend with their stream."""
    fake = load(plugin)
    lib = fake.lib
    fake.use(1)
    stream, events, block = pointer(), [pointer(), pointer(), pointer()], pointer()
    assert lib.infinirtStreamCreate(ctypes.byref(stream)) == SUCCESS
    for event, flags in zip(events, (0, 2, 1), strict=True):
        assert lib.infinirtEventCreateWithFlags(ctypes.byref(event), flags) == SUCCESS
    start, end, untimed = events
    ms, state = ctypes.c_float(-7), ctypes.c_int(-7)
    assert lib.infinirtEventElapsedTime(ctypes.byref(ms), start, end) == BAD_PARAM, "not recorded"
    assert lib.infinirtEventRecord(start, stream) == SUCCESS
    assert lib.infinirtMallocAsync(ctypes.byref(block), 64, stream) == SUCCESS
    data = bytes(range(64))
    assert lib.infinirtMemcpyAsync(block, data, 64, H2D, stream) == SUCCESS
    assert lib.infinirtMemsetAsync(block, 9, 32, stream) == SUCCESS
    assert lib.infinirtEventRecord(end, stream) == SUCCESS
    assert lib.infinirtStreamWaitEvent(stream, end) == SUCCESS
    assert lib.infinirtStreamSynchronize(stream) == SUCCESS
    assert lib.infinirtEventSynchronize(end) == SUCCESS
    assert lib.infinirtEventQuery(end, ctypes.byref(state)) == SUCCESS
    assert state.value == 0
    assert download(lib, block, 64) == b"\x09" * 32 + data[32:]
    assert lib.infinirtEventElapsedTime(ctypes.byref(ms), start, end) == SUCCESS
    assert ms.value >= 0
    assert lib.infinirtEventRecord(untimed, stream) == SUCCESS
    assert lib.infinirtEventElapsedTime(ctypes.byref(ms), start, untimed) == BAD_PARAM
    assert lib.infinirtFreeAsync(block, stream) == SUCCESS
    for event in events:
        assert lib.infinirtEventDestroy(event) == SUCCESS
    assert lib.infinirtStreamDestroy(stream) == SUCCESS
    assert lib.infinirtStreamDestroy(stream) == BAD_PARAM
    fake.assert_nothing_left()


# ---- operators -----------------------------------------------------------------------------------


def run_all(fake: Fake, device_id: int) -> None:
    """Every operator and type through the plugin, in layouts that the planner reduces."""
    rows: dict[str, list[dict[str, Layout]]] = {
        "gemm": [
            {},
            {"c": Layout((2, 3), (1, 2)), "a": Layout((2, 4), (-4, 1)), "b": Layout((4, 3), (1, 4))},
            {"c": Layout((5, 2, 3)), "a": Layout((5, 2, 4), (8, 4, 1))},
            {"a": Layout((2, 0)), "b": Layout((0, 3))},
        ],
        "add": [
            {},
            dict.fromkeys(("c", "a", "b"), Layout(())),
            {"c": Layout((2, 3), (-3, 1)), "a": Layout((2, 3), (0, 1)), "b": Layout((2, 3), (1, -2))},
        ],
        "add_rms_norm": [
            {},
            {"a": Layout((3, 4), (0, 1)), "y": Layout((3, 4), (-7, 1))},
            {**dict.fromkeys(("y", "residual_out", "a", "b"), Layout((4,)))},
            {**dict.fromkeys(("y", "residual_out", "a", "b"), Layout((2, 3, 1))), "weight": Layout((1,))},
        ],
        "rearrange": [{}, {"y": Layout((2, 3), (1, 2)), "x": Layout((2, 3), (-3, -1))}],
    }
    rows["mul"] = rows["add"]
    rows["gemm_add"] = rows["gemm_mul"] = [
        {},
        {"y": Layout((2, 3), (1, 2)), "a": Layout((2, 4), (-4, 1)), "d": Layout((2, 3), (0, -1))},
        {"y": Layout((5, 2, 3)), "a": Layout((5, 2, 4), (8, 4, 1)), "d": Layout((5, 2, 3), (0, 1, 0))},
    ]
    fake.use(device_id)
    abi = Abi(fake.lib)
    for name, op in OPS.items():
        for changed in rows[name]:
            for dtype in (*FLOATS, "i16"):
                if dtype in op.dtypes:
                    layouts = {n: Layout(x.shape, x.strides, dtype) for n, x in op.layouts(**changed).items()}
                    run_example(abi, op, layouts, device=QY, alpha=2.0, beta=1.0)
    abi.close()
    fake.use_cpu()
    fake.assert_nothing_left()


def operators(plugin: str) -> None:
    """Right results on both devices, computed there and not on the CPU."""
    fake = load(plugin)
    for device_id in (0, 1):
        before = fake.counts()
        run_all(fake, device_id)
        after = fake.counts()
        assert after.runs[device_id] - before.runs[device_id] >= 50
        assert after.runs[1 - device_id] == before.runs[1 - device_id]


def other_device_current(plugin: str) -> None:
    """A descriptor of QY:1 is made and run while CPU:0 is current; the current device stays the caller's."""
    fake = load(plugin)
    lib = fake.lib
    abi = fake.handle_on(1)
    for op in OPS.values():
        held = example(op, op.layouts())
        wanted = expected(op, held)
        fake.use(1)
        remote = {name: DeviceMemory(lib, operand) for name, operand in held.items()}
        workspace = allocate(lib, 1 << 16)
        fake.use_cpu()
        desc = abi.created(op, op.layouts())
        assert current_device(lib) == (CPU, 0)
        device, device_id = ctypes.c_int(), ctypes.c_int()
        assert lib.infiniopGetDescriptorDeviceType(desc, ctypes.byref(device)) == SUCCESS
        assert lib.infiniopGetDescriptorDeviceId(desc, ctypes.byref(device_id)) == SUCCESS
        assert (device.value, device_id.value) == (QY, 1)
        pointers: dict[str, int | None] = {name: block.pointer for name, block in remote.items()}
        assert abi.run(op, desc, pointers, workspace, 1 << 16) == SUCCESS, lib.message()
        assert current_device(lib) == (CPU, 0)
        assert abi.destroy(op, desc) == SUCCESS
        assert current_device(lib) == (CPU, 0)
        fake.use(1)
        for block in remote.values():
            block.download()
            block.free()
        assert lib.infinirtFree(workspace) == SUCCESS
        assert_result(op, held, wanted)
        fake.use_cpu()
    counts = fake.counts()
    assert list(counts.runs) == [0, len(OPS)]
    abi.close()
    fake.assert_nothing_left()


def wrong_memory(plugin: str) -> None:
    """Memory of the host or of the other device reaches the backend, which refuses it."""
    fake = load(plugin)
    lib = fake.lib
    abi = fake.handle_on(1)
    op = OPS["add"]
    held = example(op, op.layouts())
    before = {name: operand.bytes.tobytes() for name, operand in held.items()}
    desc = abi.created(op, op.layouts())
    fake.use(1)
    workspace = allocate(lib, WORKSPACE)
    assert abi.run(op, desc, {n: m.pointer for n, m in held.items()}, workspace, WORKSPACE) == BAD_PARAM
    assert "fake" in lib.message()
    fake.use(0)
    remote = {name: DeviceMemory(lib, operand) for name, operand in held.items()}
    fake.use(1)
    assert abi.run(op, desc, {n: m.pointer for n, m in remote.items()}, workspace, WORKSPACE) == BAD_PARAM
    assert {name: operand.bytes.tobytes() for name, operand in held.items()} == before
    fake.use(0)
    for name, block in remote.items():
        block.download()
        block.free()
        assert held[name].bytes.tobytes() == before[name]
    assert lib.infinirtFree(workspace) == SUCCESS
    assert abi.destroy(op, desc) == SUCCESS
    abi.close()
    fake.use_cpu()
    fake.assert_nothing_left()


def workspace(plugin: str) -> None:
    """The size asked for, one byte less, NULL, and more; also for operators that need none on the CPU."""
    fake = load(plugin)
    lib = fake.lib
    fake.use(0)
    abi = Abi(lib)
    for op in OPS.values():
        if not op.has_workspace:
            continue
        runs = fake.counts().runs[0]
        held = example(op, op.layouts())
        remote = {name: DeviceMemory(lib, operand) for name, operand in held.items()}
        pointers: dict[str, int | None] = {name: block.pointer for name, block in remote.items()}
        desc = abi.created(op, op.layouts())
        size = abi.workspace_size(op, desc)
        assert size >= WORKSPACE
        block = allocate(lib, size + 64)
        assert block.value
        for where in (None, block):
            for short in (0, size - 1):
                assert abi.run(op, desc, pointers, where, short) == INSUFFICIENT_WORKSPACE
                assert op.name in lib.message() and str(size) in lib.message() and str(short) in lib.message()
        assert abi.run(op, desc, pointers, None, size) == NULL_POINTER
        assert "workspace" in lib.message()
        assert fake.counts().runs[0] == runs, "a refused run reached the backend"
        for shift in (0, 1, 63):
            assert abi.run(op, desc, pointers, block.value + shift, size + 1) == SUCCESS, lib.message()
        assert lib.infinirtFree(block) == SUCCESS
        for remote_block in remote.values():
            remote_block.free()
        assert abi.destroy(op, desc) == SUCCESS
        assert fake.counts().runs[0] == runs + 3
    abi.close()
    fake.assert_nothing_left()


def zero_sizes(plugin: str) -> None:
    """A problem whose outputs have no element never reaches the backend; it needs no memory."""
    fake = load(plugin)
    abi = fake.handle_on(0)
    empty: dict[str, dict[str, Layout]] = {
        "gemm": {"c": Layout((0, 3)), "a": Layout((0, 4))},
        "add": dict.fromkeys(("c", "a", "b"), Layout((2, 0))),
        "mul": dict.fromkeys(("c", "a", "b"), Layout((0,))),
        "add_rms_norm": dict.fromkeys(("y", "residual_out", "a", "b"), Layout((0, 4))),
        "rearrange": dict.fromkeys(("y", "x"), Layout((0, 2))),
    }
    empty["gemm_add"] = empty["gemm_mul"] = {
        "y": Layout((0, 3)),
        "a": Layout((0, 4)),
        "d": Layout((0, 3)),
    }
    for name, op in OPS.items():
        desc = abi.created(op, op.layouts(**empty[name]))
        assert abi.workspace_size(op, desc) == 0
        # Operands that have elements must not be NULL, but no byte behind them is touched.
        pointers = {n: None if 0 in at.shape else 64 for n, at in op.layouts(**empty[name]).items()}
        assert abi.run(op, desc, pointers) == SUCCESS, fake.lib.message()
        assert abi.destroy(op, desc) == SUCCESS
    assert fake.counts().creates == 0
    abi.close()
    fake.assert_nothing_left()


def refuses_create(plugin: str) -> None:
    """The backend has no code: NOT_IMPLEMENTED with its sentence, and no fall-back to the CPU."""
    fake = load(plugin)
    abi = fake.handle_on(0)
    for op in OPS.values():
        fake.lib.clear_message()
        status, desc = abi.create(op, op.layouts())
        assert (status, desc.value) == (NOT_IMPLEMENTED, None)
        assert "no code" in fake.lib.message()
        # A wrong problem is still the caller's fault, found before the backend is asked.
        status, _ = abi.create(op, op.layouts(**{op.inputs[-1]: Layout((7, 7, 7))}))
        assert status == 11
    abi.close()
    fake.assert_nothing_left()


def fails_at_run(plugin: str) -> None:
    """run of the backend fails: its status and its sentence; a graph stops there."""
    fake = load(plugin)
    lib = fake.lib
    fake.use(0)
    abi = Abi(lib)
    op = OPS["add"]
    held = example(op, op.layouts())
    remote = {name: DeviceMemory(lib, operand) for name, operand in held.items()}
    pointers: dict[str, int | None] = {name: block.pointer for name, block in remote.items()}
    desc = abi.created(op, op.layouts())
    plan = ctypes.c_char_p(b"?")
    assert lib.infiniopGetDescriptorPlan(desc, ctypes.byref(plan)) == SUCCESS
    assert plan.value == b""  # the backend does not tell
    assert abi.run_in(op, desc, pointers) == INTERNAL_ERROR
    assert "the run fails" in lib.message()
    graph = pointer()
    scratch = allocate(lib, WORKSPACE)
    operands = (ctypes.c_void_p * 3)(*[pointers[name] for name in op.operands])
    assert lib.infiniopCreateGraph(abi.handle, ctypes.byref(graph)) == SUCCESS
    assert lib.infiniopGraphAppend(graph, desc, scratch, WORKSPACE, operands, 3, 1.0, 0.0) == SUCCESS
    assert lib.infiniopGraphRun(graph, None) == INTERNAL_ERROR
    assert lib.infiniopDestroyGraph(graph) == SUCCESS
    assert lib.infinirtFree(scratch) == SUCCESS
    for block in remote.values():
        block.free()
    assert abi.destroy(op, desc) == SUCCESS
    abi.close()
    fake.assert_nothing_left()


def graphs(plugin: str) -> None:
    """A graph keeps a plan after its descriptor, runs on its device, and takes no call of another."""
    fake = load(plugin)
    lib = fake.lib
    on_1, on_0 = fake.handle_on(1), fake.handle_on(0)
    fake.use_cpu()
    on_cpu = Abi(lib)
    op = OPS["add"]
    held = example(op, op.layouts("i32"))
    wanted = expected(op, held)
    fake.use(1)
    remote = {name: DeviceMemory(lib, operand) for name, operand in held.items()}
    scratch = allocate(lib, WORKSPACE)
    fake.use_cpu()
    graph = pointer()
    assert lib.infiniopCreateGraph(on_1.handle, ctypes.byref(graph)) == SUCCESS
    operands = (ctypes.c_void_p * 3)(*[remote[name].pointer for name in op.operands])
    for other in (on_0, on_cpu):
        foreign = other.created(op, op.layouts("i32"))
        status = lib.infiniopGraphAppend(graph, foreign, scratch, WORKSPACE, operands, 3, 1.0, 0.0)
        assert status == BAD_PARAM, "a call of another device was appended"
        assert other.destroy(op, foreign) == SUCCESS
    desc = on_1.created(op, op.layouts("i32"))
    for where, size, wanted_status in (
        (scratch, WORKSPACE - 1, INSUFFICIENT_WORKSPACE),
        (None, WORKSPACE, NULL_POINTER),
        (scratch, WORKSPACE, SUCCESS),
    ):
        assert lib.infiniopGraphAppend(graph, desc, where, size, operands, 3, 1.0, 0.0) == wanted_status
    assert on_1.destroy(op, desc) == SUCCESS
    assert fake.counts().plans == 1, "the plan went with the descriptor"
    for _ in range(3):
        assert lib.infiniopGraphRun(graph, None) == SUCCESS, lib.message()
        assert current_device(lib) == (CPU, 0)
    assert list(fake.counts().runs) == [0, 3]
    assert lib.infiniopDestroyGraph(graph) == SUCCESS
    fake.use(1)
    for block in remote.values():
        block.download()
        block.free()
    assert_result(op, held, wanted)
    assert lib.infinirtFree(scratch) == SUCCESS
    for abi in (on_0, on_1, on_cpu):
        abi.close()
    fake.assert_nothing_left()


# ---- graphs on a device with capture -------------------------------------------------------------


class Chain:
    """A graph of y = x + x and then y = y * x on a device of the plugin, while the CPU is current."""

    def __init__(self, fake: Fake, device_id: int = 1) -> None:
        self.fake, self.lib, self.device_id = fake, fake.lib, device_id
        self.abi = fake.handle_on(device_id)
        layout = Layout((5,), None, "i32")
        self.x, self.y = Memory(layout, range(5)), Memory(layout, 0)
        fake.use(device_id)
        self.on_device = [DeviceMemory(self.lib, held) for held in (self.x, self.y)]
        self.scratch = allocate(self.lib, WORKSPACE)
        fake.use_cpu()
        self.graph = pointer()
        assert self.lib.infiniopCreateGraph(self.abi.handle, ctypes.byref(self.graph)) == SUCCESS
        self.appended: list[str] = []
        for name, a in (("add", 0), ("mul", 1)):
            assert self.append(name, a) == SUCCESS, self.lib.message()

    def append(self, name: str, a: int, scratch_size: int = WORKSPACE) -> int:
        """Appends y = (x, y)[a] `name` x; the descriptor is destroyed at once."""
        op = OPS[name]
        desc = self.abi.created(op, dict.fromkeys(op.operands, self.x.layout))
        x, y = (block.pointer for block in self.on_device)
        operands = (ctypes.c_void_p * 3)(y, (x, y)[a], x)
        status: int = self.lib.infiniopGraphAppend(
            self.graph, desc, self.scratch, scratch_size, operands, 3, 1.0, 0.0
        )
        assert self.abi.destroy(op, desc) == SUCCESS
        if status == SUCCESS:
            self.appended.append(name)
        return status

    def run(self, stream: ctypes.c_void_p | None = None) -> int:
        status: int = self.lib.infiniopGraphRun(self.graph, stream)
        assert current_device(self.lib) == (CPU, 0)
        return status

    def set(self, x: int) -> None:
        """Changes what the operands hold: x, x + 1, ... and an output that no run left there."""
        self.x.array[:], self.y.array[:] = range(x, x + 5), -7
        self.fake.use(self.device_id)
        for block in self.on_device:
            block.upload()
        self.fake.use_cpu()

    def result(self) -> list[int]:
        self.fake.use(self.device_id)
        self.on_device[1].download()
        self.fake.use_cpu()
        found: list[int] = self.y.array.tolist()
        return found

    def wanted(self) -> list[int]:
        y = self.x.array + self.x.array
        for name in self.appended[1:]:
            y = y * self.x.array if name == "mul" else y + self.x.array
        wanted: list[int] = y.tolist()
        return wanted

    def check_runs(self, *starts: int, stream: ctypes.c_void_p | None = None) -> None:
        """Each run computes every call once, from what the operands hold then."""
        for x in starts:
            self.set(x)
            before = self.fake.counts().runs[self.device_id]
            assert self.run(stream) == SUCCESS, self.lib.message()
            assert self.fake.counts().runs[self.device_id] - before == len(self.appended)
            assert self.result() == self.wanted()

    def describe(self) -> str:
        text = ctypes.c_char_p()
        assert self.lib.infiniopGraphDescribe(self.graph, ctypes.byref(text)) == SUCCESS, self.lib.message()
        assert text.value
        return text.value.decode()

    def close(self) -> None:
        assert self.lib.infiniopDestroyGraph(self.graph) == SUCCESS, self.lib.message()
        assert current_device(self.lib) == (CPU, 0)
        self.fake.use(self.device_id)
        for block in self.on_device:
            block.free()
        assert self.lib.infinirtFree(self.scratch) == SUCCESS
        self.fake.use_cpu()
        self.abi.close()


def captured(plugin: str) -> None:
    """The first run captures, on a stream of its own that is gone afterwards; every run is one launch."""
    fake = load(plugin)
    chain = Chain(fake)
    assert chain.describe() == "not decided before the first run"
    fake.lib.infinirtSetLastError(SUCCESS, b"what failed before")
    chain.check_runs(0)
    assert chain.describe() == "captured, 2 calls"
    fake.use(1)
    stream = pointer()
    assert fake.lib.infinirtStreamCreate(ctypes.byref(stream)) == SUCCESS
    fake.use_cpu()
    chain.check_runs(3, -9, stream=stream)
    chain.check_runs(100)
    assert fake.lib.message() == "what failed before"
    counts = fake.counts()
    assert (counts.captures, counts.launches) == (1, 4)
    assert (counts.device_graphs, counts.graph_execs, counts.streams) == (1, 1, 1)
    chain.close()
    fake.use(1)
    assert fake.lib.infinirtStreamDestroy(stream) == SUCCESS
    fake.assert_nothing_left()


def not_captured(plugin: str, captures: str, *words: str) -> None:
    """A step of the capture fails: op by op for good, with right results, and the reason is kept."""
    fake = load(plugin)
    chain = Chain(fake)
    fake.lib.infinirtSetLastError(SUCCESS, b"what failed before")
    chain.check_runs(0, 3, -9)
    assert fake.lib.message() == "what failed before"
    said = chain.describe()
    assert said.startswith("capture failed, op by op: ") and all(word in said for word in words), said
    counts = fake.counts()
    assert (counts.captures, counts.launches) == (int(captures), 0), "tried again, or not at all"
    assert counts.device_graphs == counts.graph_execs == counts.streams == 0
    # What is appended later is run so, too.
    assert chain.append("add", 1) == SUCCESS, fake.lib.message()
    chain.check_runs(5)
    assert chain.describe() == said
    chain.close()
    fake.assert_nothing_left()


def launch_fails_later(plugin: str) -> None:
    """A launch that fails after one that did not: an error of the run, as it would be of an operator."""
    fake = load(plugin)
    chain = Chain(fake)
    chain.check_runs(4)
    chain.set(6)
    assert chain.run() == INTERNAL_ERROR
    assert "no launch today" in fake.lib.message()
    assert chain.result() == [-7] * 5
    assert chain.describe() == "captured, 2 calls"
    chain.close()
    fake.assert_nothing_left()


def run_fails(plugin: str) -> None:
    """What fails with and without capture is an error of the run, and no reason to give capture up."""
    fake = load(plugin)
    chain = Chain(fake)
    for _ in range(2):
        assert chain.run() == INTERNAL_ERROR
        assert "the run fails" in fake.lib.message()
        assert chain.describe() == "not decided before the first run"
        counts = fake.counts()
        assert counts.device_graphs == counts.graph_execs == counts.streams == 0
    assert fake.counts().captures == 2
    chain.close()
    fake.assert_nothing_left()


def first_run_on_a_dead_stream(plugin: str) -> None:
    """Is the caller's error; the graph is captured by the next run."""
    fake = load(plugin)
    chain = Chain(fake)
    fake.use(1)
    dead = pointer()
    assert fake.lib.infinirtStreamCreate(ctypes.byref(dead)) == SUCCESS
    assert fake.lib.infinirtStreamDestroy(dead) == SUCCESS
    fake.use_cpu()
    chain.set(1)
    assert chain.run(dead) == BAD_PARAM
    assert "not a live stream" in fake.lib.message()
    assert chain.result() == [-7] * 5
    chain.check_runs(1, 2)
    assert chain.describe() == "captured, 2 calls"
    assert chain.run(dead) == BAD_PARAM
    chain.close()
    fake.assert_nothing_left()


def append_after_a_run(plugin: str) -> None:
    """What was captured is given up for a new capture; a refused append gives up nothing."""
    fake = load(plugin)
    chain = Chain(fake)
    chain.check_runs(1, 2)
    assert chain.append("add", 1, WORKSPACE - 1) == INSUFFICIENT_WORKSPACE
    chain.check_runs(3)
    assert (fake.counts().captures, fake.counts().launches) == (1, 3)
    for n in (3, 4):
        assert chain.append("add", 1) == SUCCESS, fake.lib.message()
        assert chain.describe() == "not decided before the first run"
        assert fake.counts().device_graphs == fake.counts().graph_execs == 0
        chain.check_runs(4, 5)
        assert chain.describe() == f"captured, {n} calls"
        assert fake.counts().device_graphs == fake.counts().graph_execs == 1
    assert (fake.counts().captures, fake.counts().launches) == (3, 7)
    chain.close()
    fake.assert_nothing_left()


def graph_that_never_runs(plugin: str) -> None:
    fake = load(plugin)
    chain = Chain(fake)
    before = fake.counts()
    chain.close()
    fake.assert_nothing_left()
    after = fake.counts()
    assert (after.captures, after.launches) == (0, 0)
    assert list(after.runs) == list(before.runs) == [0, 0]


def graphs_that_record_nothing(plugin: str) -> None:
    """No calls, and calls whose outputs have no element."""
    fake = load(plugin)
    abi = fake.handle_on(0)
    graph = pointer()
    assert fake.lib.infiniopCreateGraph(abi.handle, ctypes.byref(graph)) == SUCCESS
    assert fake.lib.infiniopGraphRun(graph, None) == SUCCESS, fake.lib.message()
    op = OPS["add"]
    desc = abi.created(op, dict.fromkeys(op.operands, Layout((0, 3))))
    operands = (ctypes.c_void_p * 3)()
    assert fake.lib.infiniopGraphAppend(graph, desc, None, 0, operands, 3, 1.0, 0.0) == SUCCESS
    assert abi.destroy(op, desc) == SUCCESS
    barrier, statuses = threading.Barrier(8), []

    def work() -> None:
        barrier.wait()
        statuses.append(fake.lib.infiniopGraphRun(graph, None))

    # Nothing is written, so that threads may run it at once: one of them captures.
    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses == [SUCCESS] * 8
    counts = fake.counts()
    assert (counts.captures, counts.launches, counts.device_graphs) == (2, 9, 1)
    assert fake.lib.infiniopDestroyGraph(graph) == SUCCESS
    abi.close()
    fake.assert_nothing_left()


def two_graphs(plugin: str) -> None:
    """On two devices, in turn and in two threads."""
    fake = load(plugin)
    chains = [Chain(fake, 0), Chain(fake, 1), Chain(fake, 1)]
    for x in (2, 8):
        for chain in chains:
            chain.check_runs(x)
    failures: list[BaseException] = []

    def work(chain: Chain) -> None:
        try:
            for x in range(50):
                chain.set(x)
                assert chain.run() == SUCCESS, fake.lib.message()
                assert chain.result() == chain.wanted()
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=work, args=(chain,)) for chain in chains]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert (fake.counts().captures, fake.counts().launches) == (3, 6 + 150)
    assert fake.counts().device_graphs == 3
    chains.pop(1).close()
    chains[1].check_runs(-3)
    for chain in chains:
        chain.close()
    fake.assert_nothing_left()


def capture_switched_off(plugin: str, *words: str) -> None:
    """By INFINIOP_NO_CAPTURE, or not offered: op by op, and that is no failure."""
    fake = load(plugin)
    chain = Chain(fake)
    for _ in range(2):
        assert chain.describe().startswith("op by op: ")
        assert all(word in chain.describe() for word in words), chain.describe()
        chain.check_runs(0, 3)
    counts = fake.counts()
    assert (counts.captures, counts.launches, counts.device_graphs) == (0, 0, 0)
    chain.close()
    fake.assert_nothing_left()


def capture_not_offered(plugin: str) -> None:
    """The functions of capture say so, and graphs do without."""
    fake = load(plugin)
    fake.use(1)
    for mode in (0, 1, 2):
        assert fake.lib.infinirtStreamBeginCapture(None, mode) == NOT_IMPLEMENTED
        assert "fake" in fake.lib.message(), fake.lib.message()
    fake.use_cpu()
    capture_switched_off(plugin, "has no capture")


def capture_of_the_caller(plugin: str) -> None:
    """A run of a graph inside the caller's own capture is recorded with the rest."""
    fake = load(plugin)
    lib = fake.lib
    chain = Chain(fake)
    chain.check_runs(1)
    chain.set(2)
    fake.use(1)
    stream, graph, executable = pointer(), pointer(), pointer()
    assert lib.infinirtStreamBeginCapture(None, 1) == BAD_PARAM, "a default stream was captured"
    assert lib.infinirtStreamCreate(ctypes.byref(stream)) == SUCCESS
    assert lib.infinirtStreamEndCapture(stream, ctypes.byref(graph)) == BAD_PARAM
    assert lib.infinirtStreamBeginCapture(stream, 1) == SUCCESS, lib.message()
    assert lib.infinirtMemsetAsync(chain.on_device[0].pointer, 0, 4, stream) == BAD_PARAM
    fake.use_cpu()
    assert chain.run(stream) == SUCCESS, lib.message()
    assert chain.run(stream) == SUCCESS, lib.message()
    assert chain.result() == [-7] * 5, "recording ran something"
    fake.use(1)
    assert lib.infinirtStreamEndCapture(stream, ctypes.byref(graph)) == SUCCESS, lib.message()
    instantiate = lib.infinirtGraphInstantiate
    assert instantiate(ctypes.byref(executable), graph, None, None, 0) == SUCCESS, lib.message()
    assert lib.infinirtGraphDestroy(graph) == SUCCESS
    before = fake.counts().runs[1]
    assert lib.infinirtGraphLaunch(executable, stream) == SUCCESS, lib.message()
    assert fake.counts().runs[1] - before == 4
    assert chain.result() == chain.wanted()
    fake.use(1)
    assert lib.infinirtGraphExecDestroy(executable) == SUCCESS
    assert lib.infinirtGraphLaunch(executable, stream) == BAD_PARAM
    assert lib.infinirtStreamDestroy(stream) == SUCCESS
    fake.use_cpu()
    chain.close()
    fake.assert_nothing_left()


def overlap(plugin: str) -> None:
    """Exact aliases and overlaps are told apart on device addresses as on the CPU."""
    fake = load(plugin)
    lib = fake.lib
    fake.use(1)
    abi = Abi(lib)
    op = OPS["add"]
    vector = dict.fromkeys(op.operands, Layout((4,)))
    desc = abi.created(op, vector)
    block, scratch = allocate(lib, 64), allocate(lib, WORKSPACE)
    assert block.value
    start = np.arange(16, dtype=np.float32)
    rows: dict[str, tuple[tuple[int, int, int], int]] = {
        "c-is-a": ((0, 0, 4), SUCCESS),
        "apart": ((8, 0, 4), SUCCESS),
        "c-on-a": ((1, 0, 8), BAD_PARAM),
        "c-on-b": ((0, 8, 3), BAD_PARAM),
    }
    for name, (firsts, wanted) in rows.items():
        assert lib.infinirtMemcpy(block, start.ctypes.data, 64, H2D) == SUCCESS
        pointers: dict[str, int | None] = {
            operand: block.value + 4 * first for operand, first in zip(op.operands, firsts, strict=True)
        }
        assert abi.run(op, desc, pointers, scratch, WORKSPACE) == wanted, f"{name}: {lib.message()}"
        got = np.frombuffer(download(lib, block, 64), np.float32)
        result = start.copy()
        if wanted == SUCCESS:
            c, a, b = firsts
            result[c : c + 4] = start[a : a + 4] + start[b : b + 4]
        np.testing.assert_array_equal(got, result, err_msg=name)
    assert lib.infinirtFree(block) == lib.infinirtFree(scratch) == SUCCESS
    assert abi.destroy(op, desc) == SUCCESS
    abi.close()
    fake.assert_nothing_left()


def misaligned(plugin: str) -> None:
    """Element alignment is asked of device addresses too, before the backend sees them."""
    fake = load(plugin)
    lib = fake.lib
    fake.use(0)
    abi = Abi(lib)
    op = OPS["mul"]
    desc = abi.created(op, op.layouts())
    block, scratch = allocate(lib, 256), allocate(lib, WORKSPACE)
    assert block.value
    legal = {name: block.value + 64 * i for i, name in enumerate(op.operands)}
    for name in op.operands:
        assert abi.run(op, desc, {**legal, name: legal[name] + 2}, scratch, WORKSPACE) == BAD_PARAM
        assert f"mul: {name}" in lib.message() or name in lib.message().split()
    assert fake.counts().runs[0] == 0
    assert lib.infinirtFree(block) == lib.infinirtFree(scratch) == SUCCESS
    assert abi.destroy(op, desc) == SUCCESS
    abi.close()
    fake.assert_nothing_left()


def threads(plugin: str) -> None:
    """Eight threads on two devices at once, each with its own current device and memory."""
    fake = load(plugin)
    barrier, failures = threading.Barrier(8), []

    def work(i: int) -> None:
        try:
            fake.use(i % 2)
            abi = Abi(fake.lib)
            barrier.wait()
            for op in OPS.values():
                for _ in range(5):
                    run_example(abi, op, op.layouts(), device=QY)
                    assert current_device(fake.lib) == (QY, i % 2)
            abi.close()
        except BaseException as error:
            failures.append(error)
            barrier.abort()
            raise

    started = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    assert not failures
    counts = fake.counts()
    assert counts.runs[0] == counts.runs[1] == 4 * 5 * len(OPS)
    fake.assert_nothing_left()


STEPS: dict[str, Callable[..., None]] = {
    step.__name__: step
    for step in (
        loaded,
        found_by_itself,
        not_found,
        refused,
        all_refused,
        cut,
        reason_is_kept,
        taken,
        no_devices,
        found_after_chdir,
        after_a_bad_one,
        empty_slots,
        one_load_under_threads,
        devices,
        device_does_not_start,
        memory,
        streams_and_events,
        operators,
        other_device_current,
        wrong_memory,
        workspace,
        zero_sizes,
        refuses_create,
        fails_at_run,
        graphs,
        captured,
        not_captured,
        launch_fails_later,
        run_fails,
        first_run_on_a_dead_stream,
        append_after_a_run,
        graph_that_never_runs,
        graphs_that_record_nothing,
        two_graphs,
        capture_switched_off,
        capture_not_offered,
        capture_of_the_caller,
        overlap,
        misaligned,
        threads,
    )
}

if __name__ == "__main__":
    STEPS[sys.argv[1]](*sys.argv[2:])
