"""The rules of infinirt.h and infini_backend.h that a caller can see broken, each a function of RULES."""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from .._native import address, ffi, from_buffer, lib
from .cases import CASES, DTYPES, FLOATS, INTEGERS, OPERANDS, Case
from .device import (
    D2D,
    D2H,
    H2D,
    H2H,
    Device,
    Fault,
    NotApplicable,
    Refused,
    at,
    done,
    download,
    expect,
    expect_status,
    judge,
    upload,
)
from .layouts import Array
from .rows import Row

CAPTURE = (
    "stream_begin_capture",
    "stream_end_capture",
    "graph_destroy",
    "graph_instantiate",
    "graph_exec_destroy",
    "graph_launch",
)
_SLEEP_S = 0.02


@dataclass
class Context:
    """What rules are checked on: a device, the others of its family, and the operators chosen."""

    device: Device
    others: list[Device]
    ops: list[str]
    refused: list[str] = field(default_factory=list)  # of the rule in progress, with why


def _bytes(size: int, seed: int = 0) -> Array:
    return np.random.default_rng([size, seed]).integers(0, 256, size, np.uint8)


def _same(got: Array, wanted: Array, what: str) -> None:
    wrong = np.flatnonzero(got != wanted)
    expect(not wrong.size, f"{what}: {wrong.size} of {wanted.size} bytes are wrong, first number {wrong[:1]}")


# ---- memory ------------------------------------------------------------------------------------------------

_SIZES = (1, 2, 3, 63, 64, 65, 4095, 4097, 1 << 20, (1 << 20) + 1)


def memory_sizes(at_hand: Context) -> None:
    """blocks of any size are aligned to 64 bytes, apart from each other, and keep what is written"""
    with ExitStack() as stack:
        blocks = [(size, stack.enter_context(Device.block(size))) for size in _SIZES * 2]
        for number, (size, block) in enumerate(blocks):
            expect(address(block) % 64 == 0, f"a block of {size} bytes is at {block}: no multiple of 64")
            upload(block, _bytes(size, number))
        for number, (size, block) in enumerate(blocks):
            _same(download(block, size), _bytes(size, number), f"a block of {size} bytes")


def memory_none(at_hand: Context) -> None:
    """no bytes are NULL, and NULL may be freed"""
    for allocate, free in (("infinirtMalloc", "infinirtFree"), ("infinirtMallocHost", "infinirtFreeHost")):
        place = ffi.new("void **", ffi.cast("void *", 64))
        done(allocate, place, 0)
        expect(place[0] == ffi.NULL, f"{allocate} of no bytes gives {place[0]}")
        done(free, ffi.NULL)
    table, index = at_hand.device.table, at_hand.device.index
    for entry in ("free_device", "free_host", "stream_destroy", "event_destroy"):
        judge(f"{entry} of NULL", getattr(table, entry)(index, ffi.NULL))
    judge("free_async of NULL", table.free_async(index, ffi.NULL, ffi.NULL))
    for entry in ("graph_destroy", "graph_exec_destroy"):
        if at_hand.device.offers(entry):
            judge(f"{entry} of NULL", getattr(table, entry)(index, ffi.NULL))


def _lost(device: Device, action: Callable[[], object]) -> int:
    """Bytes that are not free any more after an action. Other processes may have the device, too, and take
    of it meanwhile: but hardly each of three times.
    """
    least = 0
    for tries in range(3):
        before = device.memory()[0]
        action()
        lost = before - device.memory()[0]
        least = lost if tries == 0 else min(least, lost)
        if least <= device.tolerance:
            break
    return least


def memory_too_much(at_hand: Context) -> None:
    """more than there is answers INTERNAL_ERROR with a sentence, and takes nothing"""
    device = at_hand.device

    def once() -> None:
        total = device.memory()[1]
        for size in (total + 1, 1 << 62):
            for allocate in (("infinirtMalloc",), ("infinirtMallocAsync", ffi.NULL)):
                place = ffi.new("void **", ffi.cast("void *", 64))
                function, *stream = allocate
                why = f"of {size} bytes where there are {total}"
                expect_status(lib.INFINI_STATUS_INTERNAL_ERROR, why, function, place, size, *stream)
                expect(place[0] == ffi.NULL, f"{function} fails and gives {place[0]}")

    lost = _lost(device, once)
    expect(lost <= device.tolerance, f"{lost} bytes are gone after refusals")


def memory_host(at_hand: Context) -> None:
    """host memory of any size is the host's to write, and 64-byte aligned"""
    for size in _SIZES:
        with Device.host_block(size) as block:
            expect(address(block) % 64 == 0, f"host memory of {size} bytes is at {block}: no multiple of 64")
            ffi.buffer(block, size)[:] = _bytes(size).tobytes()
            with Device.block(size) as there:
                done("infinirtMemcpy", there, block, size, H2D)
                _same(download(there, size), _bytes(size), f"{size} bytes from host memory")


def memory_copies(at_hand: Context) -> None:
    """copies of all kinds move the bytes asked for, at any address, and no others"""
    for size, source, target in itertools.product((1, 7, 64, 4099), (0, 1, 33), (0, 3, 64)):
        data, room = _bytes(size + source), size + target + 5
        with Device.block(size + source) as first, Device.block(room) as second:
            upload(first, data)
            upload(second, np.full(room, 0xA5, np.uint8))
            done("infinirtMemcpy", at(second, target), at(first, source), size, D2D)
            wanted = np.full(room, 0xA5, np.uint8)
            wanted[target : target + size] = data[source:]
            _same(download(second, room), wanted, f"D2D of {size} bytes")
            wanted[target : target + size] = data[:size]
            done("infinirtMemcpy", at(second, target), from_buffer(data), size, H2D)
            _same(download(second, room), wanted, f"H2D of {size} bytes")
            host = np.full(room, 0xA5, np.uint8)
            done("infinirtMemcpy", at(from_buffer(host), target), at(second, target), size, D2H)
            _same(host, wanted, f"D2H of {size} bytes")
        host = np.full(room, 0xA5, np.uint8)
        done("infinirtMemcpy", at(from_buffer(host), target), from_buffer(data), size, H2H)
        _same(host, wanted, f"H2H of {size} bytes")


def memory_set(at_hand: Context) -> None:
    """memset writes the low byte of its value, and no byte beside"""
    for size, start, value in itertools.product((1, 13, 64, 4097), (0, 1, 7), (0, 0x7F, 0x1A5, -2, 0x5A00)):
        for name, stream in (("infinirtMemset", ()), ("infinirtMemsetAsync", (ffi.NULL,))):
            with Device.block(size + 16) as block:
                upload(block, np.full(size + 16, 0x69, np.uint8))
                done(name, at(block, start), value, size, *stream)
                done("infinirtDeviceSynchronize")
                wanted = np.full(size + 16, 0x69, np.uint8)
                wanted[start : start + size] = value & 0xFF
                _same(download(block, size + 16), wanted, f"{name} of {size} bytes to {value:#x}")


@contextmanager
def _streams(n: int = 1) -> Iterator[list[Any]]:
    """The default stream, and n others."""
    with ExitStack() as stack:
        yield [ffi.NULL, *(stack.enter_context(Device.stream()) for _ in range(n))]


def memory_async(at_hand: Context) -> None:
    """memory of malloc_async serves what follows on its stream; either free takes either memory"""
    size = 100_003
    with _streams() as streams, Device.host_block(size) as data, Device.host_block(size) as back:
        ffi.buffer(data, size)[:] = _bytes(size).tobytes()
        for stream in streams:
            for free in (("infinirtFreeAsync", stream), ("infinirtFree",)):
                place = ffi.new("void **")
                done("infinirtMallocAsync", place, size, stream)
                expect(address(place[0]) % 64 == 0, f"malloc_async gives {place[0]}: no multiple of 64")
                done("infinirtMemcpyAsync", place[0], data, size, H2D, stream)
                done("infinirtMemcpyAsync", back, place[0], size, D2H, stream)
                if len(free) == 1:
                    done("infinirtStreamSynchronize", stream)
                done(free[0], place[0], *free[1:])
                done("infinirtStreamSynchronize", stream)
                _same(np.frombuffer(ffi.buffer(back, size), np.uint8), _bytes(size), "through malloc_async")
            done("infinirtMalloc", place, size)
            done("infinirtFreeAsync", place[0], stream)
            done("infinirtStreamSynchronize", stream)


def memory_info(at_hand: Context) -> None:
    """mem_info falls by what is allocated, comes back, and tells nothing of other devices' blocks"""
    device = at_hand.device
    slack = device.tolerance
    size = min(device.memory()[0] // 4, 8 * slack)
    for tries in range(3):  # other processes may have the device, too
        before, elsewhere = device.memory()[0], [other.memory()[0] for other in at_hand.others]
        with Device.block(size):
            taken = before - device.memory()[0]
            moved = [one - other.memory()[0] for one, other in zip(elsewhere, at_hand.others, strict=True)]
        lost = before - device.memory()[0]
        try:
            expect(abs(taken - size) <= slack, f"with a block of {size} bytes, {taken} less are free")
            expect(abs(lost) <= slack, f"of a block of {size} bytes {lost} stay away when it is freed")
            for other, change in zip(at_hand.others, moved, strict=True):
                expect(abs(change) <= slack, f"a block on {device} takes {change} bytes of {other}")
            return
        except Fault:
            if tries == 2:
                raise


# ---- streams and events ------------------------------------------------------------------------------------


def stream_order(at_hand: Context) -> None:
    """what is queued on one stream runs in that order; waiting for it, or for the device, waits for all"""
    size, steps = 1 << 18, 24
    with _streams(2) as streams, ExitStack() as stack:
        one, other = (stack.enter_context(Device.block(size)) for _ in range(2))
        data, back = (stack.enter_context(Device.host_block(size)) for _ in range(2))
        ffi.buffer(data, size)[:] = _bytes(size).tobytes()
        waits: list[Callable[[Any], None]] = [
            lambda stream: done("infinirtStreamSynchronize", stream),
            lambda stream: done("infinirtDeviceSynchronize"),
        ]
        for stream, wait in itertools.product(streams, waits):
            ffi.buffer(back, size)[:] = bytes(size)
            for step in range(steps):
                done("infinirtMemsetAsync", one, step, size, stream)
                done("infinirtMemcpyAsync", other, one, size, D2D, stream)
            done("infinirtMemcpyAsync", one, data, size, H2D, stream)
            done("infinirtMemcpyAsync", at(other, 1), at(one, 1), size - 1, D2D, stream)
            done("infinirtMemcpyAsync", back, other, size, D2H, stream)
            wait(stream)
            wanted = _bytes(size)
            wanted[0] = steps - 1
            _same(np.frombuffer(ffi.buffer(back, size), np.uint8), wanted, "the end of a queue")


def stream_many(at_hand: Context) -> None:
    """streams and events are made in numbers, are not NULL, and none is another"""
    with ExitStack() as stack:
        for make in (Device.stream, Device.event):
            made = [address(stack.enter_context(make())) for _ in range(32)]
            expect(len(set(made)) == 32, "two that live at once are one object")


def event_states(at_hand: Context) -> None:
    """an event is complete before it is recorded and when the work before its mark is done"""
    status = ffi.new("int *")
    size = 1 << 20
    with _streams() as streams, Device.block(size) as block:
        for stream, flags in itertools.product(streams, range(4)):
            with Device.event(flags) as event:
                status[0] = 77
                done("infinirtEventQuery", event, status)
                expect(status[0] == 0, f"an event that was never recorded is {status[0]}, not COMPLETE")
                done("infinirtEventSynchronize", event)
                for value in range(4):
                    done("infinirtMemsetAsync", block, value, size, stream)
                done("infinirtEventRecord", event, stream)
                done("infinirtEventQuery", event, status)
                expect(status[0] in (0, 1), f"event_query writes {status[0]}: neither COMPLETE nor NOT_READY")
                done("infinirtEventSynchronize", event)
                done("infinirtEventQuery", event, status)
                expect(status[0] == 0, f"a synchronised event is {status[0]}, not COMPLETE")
                _same(download(block, size), np.full(size, 3, np.uint8), "what was queued before the mark")


def _elapsed(start: Any, end: Any) -> float:
    milliseconds = ffi.new("float *", math.nan)
    done("infinirtEventElapsedTime", milliseconds, start, end)
    return float(milliseconds[0])


def _mark(event: Any, stream: Any) -> None:
    done("infinirtEventRecord", event, stream)
    done("infinirtEventSynchronize", event)


def event_time(at_hand: Context) -> None:
    """the time between two events is that of the clock, in milliseconds; a new mark replaces the old"""
    with _streams() as streams, Device.event() as first, Device.event() as last:
        for stream in streams:
            for pause_s in (_SLEEP_S, 0):
                begin = time.perf_counter()
                _mark(first, stream)
                after_first = time.perf_counter()
                time.sleep(pause_s)
                before_last = time.perf_counter()
                _mark(last, stream)
                end = time.perf_counter()
                least, most, got = (
                    (before_last - after_first) * 1e3,
                    (end - begin) * 1e3,
                    _elapsed(first, last),
                )
                # The device has a clock of its own.
                right = least * 0.98 - 0.1 <= got <= most * 1.02 + 0.1
                expect(right, f"between marks {least:.3f} to {most:.3f} ms apart, {got:.3f} ms elapsed")
            expect(_elapsed(first, first) == 0, "between an event and itself time elapsed")


def event_refusals(at_hand: Context) -> None:
    """no time of events that were never recorded or made with DISABLE_TIMING: BAD_PARAM"""
    place, bad = ffi.new("float *"), lib.INFINI_STATUS_BAD_PARAM
    untimed = lib.INFINIRT_EVENT_DISABLE_TIMING
    with Device.event() as recorded, Device.event() as never, Device.event(untimed) as silent:
        _mark(recorded, ffi.NULL)
        _mark(silent, ffi.NULL)
        for event, why in ((never, "with an event that was never recorded"), (silent, "with DISABLE_TIMING")):
            for pair in ((recorded, event), (event, recorded)):
                place[0] = 77
                expect_status(bad, why, "infinirtEventElapsedTime", place, *pair)
                expect(place[0] == 77, f"infinirtEventElapsedTime, {why}, writes its result")


def event_waits(at_hand: Context) -> None:
    """what is queued on a stream after wait_event follows the event's mark on another stream"""
    size = 1 << 20
    with _streams(2) as streams, ExitStack() as stack:
        block, copy = (stack.enter_context(Device.block(size)) for _ in range(2))
        back = stack.enter_context(Device.host_block(size))
        event = stack.enter_context(Device.event(lib.INFINIRT_EVENT_DISABLE_TIMING))
        for value, (first, second) in enumerate(itertools.permutations(streams, 2)):
            done("infinirtDeviceSynchronize")
            for other in range(16):
                done("infinirtMemsetAsync", block, 0x80 + other, size, first)
            done("infinirtMemsetAsync", block, value, size, first)
            done("infinirtEventRecord", event, first)
            done("infinirtStreamWaitEvent", second, event)
            done("infinirtMemcpyAsync", copy, block, size, D2D, second)
            done("infinirtMemcpyAsync", back, copy, size, D2H, second)
            done("infinirtStreamSynchronize", second)
            got = np.frombuffer(ffi.buffer(back, size), np.uint8)
            _same(got, np.full(size, value, np.uint8), "what a stream read after it waited")


# ---- several devices ---------------------------------------------------------------------------------------


def other_devices(at_hand: Context) -> None:
    """each call acts on the device it is given, which need not be the current one, and leaves that current"""
    if not at_hand.others:
        raise NotApplicable("there is one device")
    device, other = at_hand.device, at_hand.others[0]
    slack = max(device.tolerance, other.tolerance)
    size = min(device.memory()[0] // 4, other.memory()[0] // 4, 8 * slack)
    table, place, there = other.table, ffi.new("void **"), other.index
    before = [device.memory()[0], other.memory()[0]]

    def expect_taken(wanted: list[int], when: str) -> None:
        taken = [was - one.memory()[0] for was, one in zip(before, (device, other), strict=True)]
        right = all(abs(got - need) <= slack for got, need in zip(taken, wanted, strict=True))
        expect(right, f"{when}, {taken} bytes of {device} and {other} are taken, needed {wanted}")

    judge("malloc_device", table.malloc_device(there, place, size))
    block, part = place[0], min(size, 1 << 16)
    try:
        expect_taken([0, size], f"after a block on {other} while {device} is current")
        judge("memset_sync", table.memset_sync(there, block, 0x5A, part))
        judge("device_synchronize", table.device_synchronize(there))  # a fill need not wait for its end
        judge("stream_create", table.stream_create(there, place))
        stream = place[0]
        judge("event_create", table.event_create(there, place, 0))
        event = place[0]
        judge("memset_async", table.memset_async(there, block, 0x3C, part, stream))
        judge("event_record", table.event_record(there, event, stream))
        judge("stream_wait_event", table.stream_wait_event(there, ffi.NULL, event))
        judge("event_synchronize", table.event_synchronize(there, event))
        judge("stream_synchronize", table.stream_synchronize(there, stream))
        judge("device_synchronize", table.device_synchronize(there))
        got = np.zeros(part, np.uint8)
        judge("memcpy_sync", table.memcpy_sync(there, from_buffer(got), block, part, D2H))
        _same(got, np.full(part, 0x3C, np.uint8), f"memory of {other}")
        judge("event_destroy", table.event_destroy(there, event))
        judge("stream_destroy", table.stream_destroy(there, stream))
        kind, index = ffi.new("infiniDevice_t *"), ffi.new("int *")
        done("infinirtGetDevice", kind, index)
        expect(
            (kind[0], index[0]) == (device.kind, device.index), f"the current device is {kind[0]}:{index[0]}"
        )
        with Device.block(size):
            expect_taken([size, size], f"after another block on {device}")
        expect_taken([0, size], "when that block is freed")
    finally:
        done("infinirtFree", block)  # memory of the family, whichever device is current
    expect_taken([0, 0], "when everything is freed")


def plans_of_other_devices(at_hand: Context) -> None:
    """descriptors run and are destroyed on their own device, whichever the thread has current"""
    if not at_hand.others:
        raise NotApplicable("there is one device")
    other = at_hand.others[0]
    case = _any_row(at_hand)
    other.use()
    with Device.handle() as handle, Row(handle, case).ready() as row:
        row.load()
        product = row.product()
        row.load()
        at_hand.device.use()
        row.run()
        other.use()
        done("infinirtDeviceSynchronize")
        row.check(product, ffi.NULL)
        at_hand.device.use()


# ---- what is optional --------------------------------------------------------------------------------------


def optional_entries(at_hand: Context) -> None:
    """what the table leaves out answers NOT_IMPLEMENTED, with a sentence"""
    device, null = at_hand.device, ffi.NULL
    place, some = ffi.new("void **"), ffi.cast("void *", 64)
    calls: dict[str, tuple[Any, ...]] = {
        "stream_begin_capture": ("infinirtStreamBeginCapture", some, 0),
        "stream_end_capture": ("infinirtStreamEndCapture", some, place),
        "graph_destroy": ("infinirtGraphDestroy", some),
        "graph_instantiate": ("infinirtGraphInstantiate", place, some, null, null, 0),
        "graph_exec_destroy": ("infinirtGraphExecDestroy", some),
        "graph_launch": ("infinirtGraphLaunch", some, null),
    }
    left_out = [entry for entry in CAPTURE if not device.offers(entry)]
    for entry in left_out:
        function, *arguments = calls[entry]
        expect_status(lib.INFINI_STATUS_NOT_IMPLEMENTED, "which is left out", function, *arguments)
    if not left_out:
        raise NotApplicable("nothing is left out")
    expect(
        len(left_out) == len(CAPTURE),
        f"of the six entries of capture only {', '.join(left_out)} are left out",
    )


# ---- operators ---------------------------------------------------------------------------------------------


_TYPES = {"add": FLOATS + INTEGERS, "mul": FLOATS + INTEGERS, "rearrange": (*FLOATS, *INTEGERS, "c128")}


def _shows_much(case: Case) -> bool:
    """With different strides on its operands, every scalar in use, and small enough to be run many times."""
    strided = {layout for _, _, layout in case.operands() if layout != "C"}
    return (
        len(strided) >= (1 if case.op == "rearrange" else 2)
        and 50 <= sum(map(math.prod, case.shapes)) <= 20_000
        and (case.op != "gemm" or (case.alpha != 1 and case.beta != 0))
        and not case.alias
        and not case.edge
    )


@cache
def rows_of(op: str) -> list[Case]:
    """A row of the table for each type of an operator."""
    found = {case.dtype: case for case in reversed(CASES.values()) if case.op == op and _shows_much(case)}
    return [found[dtype] for dtype in _TYPES.get(op, FLOATS) if dtype in DTYPES]


def _any_row(at_hand: Context) -> Case:
    """A row of an operator that is there."""
    with Device.handle() as handle:
        for op in at_hand.ops:
            for case in rows_of(op):
                try:
                    with Row(handle, case).ready():
                        return case
                except Refused:
                    continue
    raise NotApplicable("every operator asked for is refused")


def _each(at_hand: Context, op: str, check: Callable[[Context, Any, Case], None]) -> None:
    """Check a row of each type; Refused where all are."""
    cases = rows_of(op)
    for case in cases:
        try:
            with Device.handle() as handle:
                check(at_hand, handle, case)
        except Refused as sentence:
            at_hand.refused.append(f"{case.dtype}: {sentence}")
        except (Fault, AssertionError) as fault:
            raise Fault(f"{case.name}: {fault}") from None
    if len(at_hand.refused) == len(cases):
        raise Refused(at_hand.refused[0])


def _with_product(row: Row, seed: int) -> Array | None:
    """Load other data, and what gemm makes of it where that is needed."""
    row.load(seed)
    product = row.product()
    row.load(seed)
    return product


def _ways(at_hand: Context, handle: Any, case: Case) -> None:
    with Device.stream() as own, ExitStack() as stack:
        rows = [stack.enter_context(Row(handle, case, odd=odd).ready()) for odd in (False, True)]
        text = rows[0].operator.plan()
        expect(text.isprintable(), f"describe says {text!r}")
        for seed, (row, stream) in enumerate(itertools.product(rows, (ffi.NULL, own))):
            product = _with_product(row, seed)
            row.run(stream)
            row.check(product, stream)


def ways_to_run(op: str, at_hand: Context) -> None:
    """on the default stream and another, with a workspace at any address"""
    _each(at_hand, op, _ways)


def _threads(at_hand: Context, handle: Any, case: Case) -> None:
    case = replace(case, beta=0.0)  # the same again at every run
    with ExitStack() as stack:
        first = stack.enter_context(Row(handle, case).ready())
        second = stack.enter_context(Row(handle, case, odd=True).ready(first.operator))
        rows = (first, second)
        products = [_with_product(row, seed) for seed, row in enumerate(rows)]
        failures: list[BaseException] = []
        together = threading.Barrier(2)

        def work(row: Row, stream: Any) -> None:
            try:  # the CPU is current here
                together.wait(60)
                for _ in range(8):
                    row.run(stream)
            except BaseException as error:
                failures.append(error)

        with _streams() as streams:
            threads = [threading.Thread(target=work, args=pair) for pair in zip(rows, streams, strict=True)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            done("infinirtDeviceSynchronize")
        if failures:
            raise failures[0]
        for row, product in zip(rows, products, strict=True):
            row.check(product, ffi.NULL)


def threads(op: str, at_hand: Context) -> None:
    """one descriptor in two threads at once, which have another device current"""
    _each(at_hand, op, _threads)


def _can_capture(device: Device) -> None:
    if not all(map(device.offers, CAPTURE)):
        raise NotApplicable("the backend has no capture")


def _captured(at_hand: Context, handle: Any, case: Case) -> None:
    with Device.stream() as own, _streams() as streams, Row(handle, case, odd=True).ready() as row:
        row.load()
        row.run()  # what is loaded at a first run is loaded
        done("infinirtDeviceSynchronize")
        row.load()
        with at_hand.device.captured(own) as made:
            row.run(own, capturing=True)
        (graph,) = made
        try:
            done("infinirtDeviceSynchronize")
            row.unchanged("while it was captured")
            for seed, stream in enumerate((*streams, own, own)):
                product = _with_product(row, seed)
                done("infinirtGraphLaunch", graph, stream)
                row.check(product, stream)
        finally:
            done("infinirtGraphExecDestroy", graph)
        product = _with_product(row, 5)  # the stream is one like any other again
        row.run(own)
        row.check(product, own)


def captured(op: str, at_hand: Context) -> None:
    """captured, it does not run; each launch computes with what the operands hold then"""
    _can_capture(at_hand.device)
    _each(at_hand, op, _captured)


def graphs(at_hand: Context) -> None:
    """all operators in one graph of infiniop.h, run three times with other inputs"""
    with ExitStack() as stack:
        handle = stack.enter_context(Device.handle())
        own = stack.enter_context(Device.stream())
        rows = []
        for op in at_hand.ops:
            for case in rows_of(op)[:2]:
                try:
                    rows.append(stack.enter_context(Row(handle, case).ready()))
                except Refused as sentence:
                    at_hand.refused.append(f"{case.name}: {sentence}")
        if not rows:
            raise NotApplicable("every operator asked for is refused")
        graph = stack.enter_context(Device.graph(handle))
        for row in rows:
            row.append_to(graph)
        for seed, stream in enumerate((ffi.NULL, own, ffi.NULL)):
            products = [_with_product(row, seed) for row in rows]
            done("infiniopGraphRun", graph, stream)
            for row, product in zip(rows, products, strict=True):
                try:
                    row.check(product, stream)
                except (Fault, AssertionError) as fault:
                    raise Fault(f"{row.case.name}, run number {seed + 1}: {fault}") from None
        text = ffi.new("const char **")
        done("infiniopGraphDescribe", graph, text)
        how = ffi.string(text[0]).decode()
        if all(map(at_hand.device.offers, CAPTURE)) and not how.startswith("captured"):
            at_hand.refused.append(f"capture: {how}")


# ---- nothing stays behind ----------------------------------------------------------------------------------

_ROUNDS = 64


def leaks(at_hand: Context) -> None:
    """everything that is made 64 times and released leaves mem_info as it was"""
    device = at_hand.device
    size = device.tolerance // 4  # more than four lost blocks show
    place = ffi.new("void **")
    captures = all(map(device.offers, CAPTURE))

    cases = []
    for op in at_hand.ops:
        with Device.handle() as handle:
            for case in rows_of(op)[:1]:
                try:
                    with Row(handle, case).ready():
                        cases.append(case)
                except Refused:
                    pass

    def once() -> None:
        with Device.block(size), Device.host_block(4096), Device.stream() as stream, Device.event() as event:
            done("infinirtEventRecord", event, stream)
            done("infinirtMallocAsync", place, size, stream)
            done("infinirtFreeAsync", place[0], stream)
            done("infinirtStreamSynchronize", stream)
            with Device.handle() as handle:
                for case in cases:
                    with Row(handle, case).ready() as row:
                        row.load()
                        row.run(stream)
                        done("infinirtStreamSynchronize", stream)
                        if captures:
                            with suppress(Refused):
                                with device.captured(stream) as made:
                                    row.run(stream, capturing=True)
                                done("infinirtGraphExecDestroy", made[0])

    def rounds() -> None:
        for _ in range(_ROUNDS):
            once()

    once()  # drivers keep some of what a first time takes
    lost = _lost(device, rounds)
    expect(lost <= device.tolerance, f"after {_ROUNDS} rounds {lost} bytes less are free")


# ---- the list ----------------------------------------------------------------------------------------------


class Rule(NamedTuple):
    """One rule; `op` when it is about one operator."""

    name: str
    check: Callable[[Context], None]
    summary: str
    op: str = ""


_GENERAL = (
    memory_sizes,
    memory_none,
    memory_too_much,
    memory_host,
    memory_copies,
    memory_set,
    memory_async,
    memory_info,
    stream_order,
    stream_many,
    event_states,
    event_time,
    event_refusals,
    event_waits,
    other_devices,
    plans_of_other_devices,
    optional_entries,
)
_OF_OPERATORS = (ways_to_run, threads, captured)


def _name(check: Callable[..., None]) -> str:
    return f"rule-{check.__name__.replace('_', '-')}"


def _rules() -> Iterator[Rule]:
    for check in _GENERAL:
        yield Rule(_name(check), check, check.__doc__ or "")
    for each, op in itertools.product(_OF_OPERATORS, OPERANDS):
        yield Rule(f"{_name(each)}-{op}", partial(each, op), each.__doc__ or "", op)
    for check in (graphs, leaks):
        yield Rule(_name(check), check, check.__doc__ or "")


RULES = tuple(_rules())
