"""One device of a backend as a C program has it: every call, and what a failure of one means."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from .._native import address, ffi, from_buffer, last_message, lib
from ..device import DeviceType
from .layouts import Array

H2H, H2D, D2H, D2D = range(4)
_SUCCESS, _NOT_IMPLEMENTED = lib.INFINI_STATUS_SUCCESS, lib.INFINI_STATUS_NOT_IMPLEMENTED


class Fault(Exception):
    """What a backend got wrong."""


class Refused(Exception):
    """NOT_IMPLEMENTED, with a sentence: what a backend says that it cannot do."""


class NotApplicable(Exception):
    """Why there is nothing to check here."""


def expect(right: bool, otherwise: str) -> None:
    """Fault where it is not."""
    if not right:
        raise Fault(otherwise)


def status_name(status: int) -> str:
    return str(ffi.string(lib.infiniopStatusString(status)).decode())


def call(function: str, *arguments: Any) -> int:
    """One call; what it says of a failure is last_message()."""
    lib.infinirtSetLastError(_SUCCESS, b"")
    return int(getattr(lib, function)(*arguments))


def judge(function: str, status: int) -> None:
    """Raise unless a call succeeded: Refused where the backend said what it cannot do."""
    if status == _SUCCESS:
        return
    sentence = last_message()
    expect(bool(sentence), f"{function} answers {status_name(status)} without a sentence for host->fail")
    if status == _NOT_IMPLEMENTED:
        raise Refused(sentence)
    raise Fault(f"{function} answers {status_name(status)}: {sentence}")


def done(function: str, *arguments: Any) -> None:
    """One call that has to succeed, or to be refused."""
    judge(function, call(function, *arguments))


def expect_status(wanted: int, why: str, function: str, *arguments: Any) -> None:
    """One call that has to fail in a certain way, with a sentence."""
    status = call(function, *arguments)
    expect(
        status == wanted,
        f"{function}, {why}, answers {status_name(status)}; needed {status_name(wanted)}",
    )
    expect(bool(last_message()), f"{function}, {why}, gives no sentence to host->fail")


@contextmanager
def _made(destroy: str, create: str, *arguments: Any) -> Iterator[Any]:
    """What a function makes and writes to its first argument; destroyed in the end."""
    place = ffi.new("void **")
    done(create, place, *arguments)
    expect(place[0] != ffi.NULL, f"{create} succeeds and gives NULL")
    try:
        yield place[0]
    except BaseException:
        call(destroy, place[0])
        raise
    done(destroy, place[0])


class Device:
    """A device, and what C functions do on it while it is current."""

    def __init__(self, kind: DeviceType, index: int) -> None:
        self.kind, self.index = kind, index
        backend = ffi.new("const InfiniBackend **")
        done("infinirtGetBackend", kind, backend)
        self.table = backend[0].runtime

    def __str__(self) -> str:
        return f"{self.kind.name}:{self.index}"

    def use(self) -> None:
        """Make it current in this thread."""
        done("infinirtSetDevice", self.kind, self.index)

    def offers(self, entry: str) -> bool:
        return bool(getattr(self.table, entry) != ffi.NULL)

    def memory(self) -> tuple[int, int]:
        """Bytes: free, in all."""
        sizes = ffi.new("size_t[2]")
        done("infinirtGetMemInfo", self.kind, self.index, sizes, sizes + 1)
        expect(sizes[0] <= sizes[1], f"infinirtGetMemInfo: {sizes[0]} bytes are free of {sizes[1]}")
        return sizes[0], sizes[1]

    @property
    def tolerance(self) -> int:
        """Bytes that mem_info may be off: drivers hand out memory in units of some MiB, of which small blocks
        share one, load code when it is first used, and serve other processes."""
        return min(32 << 20, self.memory()[1] // 64)

    @staticmethod
    def block(size: int) -> Any:
        """Memory of the current device; a context."""
        return _made("infinirtFree", "infinirtMalloc", size)

    @staticmethod
    def host_block(size: int) -> Any:
        return _made("infinirtFreeHost", "infinirtMallocHost", size)

    @staticmethod
    def stream() -> Any:
        return _made("infinirtStreamDestroy", "infinirtStreamCreate")

    @staticmethod
    def event(flags: int = 0) -> Any:
        return _made("infinirtEventDestroy", "infinirtEventCreateWithFlags", flags)

    @staticmethod
    def handle() -> Any:
        return _made_as("struct InfiniopHandle **", "infiniopDestroyHandle", "infiniopCreateHandle")

    @staticmethod
    def graph(handle: Any) -> Any:
        return _made_as("struct InfiniopGraph **", "infiniopDestroyGraph", "infiniopCreateGraph", handle)

    @contextmanager
    def captured(self, stream: Any) -> Iterator[list[Any]]:
        """What is run on the stream meanwhile is captured; then the list holds the executable graph."""
        done("infinirtStreamBeginCapture", stream, lib.INFINIRT_STREAM_CAPTURE_MODE_THREAD_LOCAL)
        place, made = ffi.new("void **"), list[Any]()
        try:
            yield made
        except BaseException:
            call("infinirtStreamEndCapture", stream, place)
            call("infinirtGraphDestroy", place[0])
            raise
        done("infinirtStreamEndCapture", stream, place)
        graph, log = place[0], ffi.new("char[512]")
        try:
            done("infinirtGraphInstantiate", place, graph, ffi.NULL, log, 512)
            made.append(place[0])
        finally:
            done("infinirtGraphDestroy", graph)


def free_bytes() -> int:
    """Of the current device."""
    kind, index, sizes = ffi.new("infiniDevice_t *"), ffi.new("int *"), ffi.new("size_t[2]")
    done("infinirtGetDevice", kind, index)
    done("infinirtGetMemInfo", kind[0], index[0], sizes, sizes + 1)
    return int(sizes[0])


@contextmanager
def _made_as(place_type: str, destroy: str, create: str, *arguments: Any) -> Iterator[Any]:
    """What a function makes and writes to its last argument, or to its first if there is no other."""
    place = ffi.new(place_type)
    done(create, *arguments, place)
    try:
        yield place[0]
    finally:
        done(destroy, place[0])


def at(pointer: Any, offset: int) -> Any:
    """The pointer so many bytes on."""
    return ffi.cast("void *", address(pointer) + offset)


def upload(pointer: Any, data: Array) -> None:
    """Copy host bytes to the device and wait."""
    done("infinirtMemcpy", pointer, from_buffer(data), data.nbytes, H2D)


def download(pointer: Any, size: int, stream: Any = None) -> Array:
    """Copy bytes of the device to the host and wait; with a stream, after what is queued there, and for that
    alone.
    """
    data = np.full(size, 0x3C, np.uint8)
    if stream is None:
        done("infinirtMemcpy", from_buffer(data), pointer, size, D2H)
    else:
        done("infinirtMemcpyAsync", from_buffer(data), pointer, size, D2H, stream)
        done("infinirtStreamSynchronize", stream)
    return data
