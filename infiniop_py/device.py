"""Devices, streams and events; what each thread has of them.

The device an operator runs on comes from its tensors. The current device of a thread only says where
tensors, streams and events are made when no device is named. It is kept by the native runtime, not here, so
that C code in the same thread and this module never disagree.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from enum import IntEnum
from functools import cache, partial
from types import TracebackType
from typing import Any, NoReturn, TypeAlias, TypeVar

from . import errors
from ._native import NULL, check, error, ffi, lib, owning
from .errors import shown

__all__ = [
    "CPU",
    "Device",
    "DeviceType",
    "Event",
    "Stream",
    "as_device",
    "device_count",
    "get_device",
    "get_stream",
    "set_device",
    "synchronize",
]


T = TypeVar("T")


class DeviceType(IntEnum):
    """A family of devices. A family without a backend on this machine has 0 devices."""

    CPU = 0
    NVIDIA = 1
    CAMBRICON = 2
    ASCEND = 3
    METAX = 4
    MOORE = 5
    ILUVATAR = 6
    KUNLUN = 7
    HYGON = 8
    QY = 9


_TYPE_NAMES = {member.name.lower(): member for member in DeviceType} | {
    "cuda": DeviceType.NVIDIA,
    "mlu": DeviceType.CAMBRICON,
    "npu": DeviceType.ASCEND,
    "musa": DeviceType.MOORE,
}


def as_device_type(spec: DeviceType | int | str) -> DeviceType:
    """Return the DeviceType for a member, its number or its name in any case."""
    known: DeviceType | None = None
    if isinstance(spec, str):
        known = _TYPE_NAMES.get(spec.lower())
    elif isinstance(spec, int) and not isinstance(spec, bool):  # 1.0 and True are equal to numbers of members
        with suppress(ValueError):
            known = DeviceType(spec)
    if known is None:
        raise errors.DeviceError(
            f"device type is {shown(spec)}; known are {', '.join(_TYPE_NAMES)}",
            status=errors.Status.DEVICE_TYPE_NOT_SUPPORTED,
        )
    return known


class Device:
    """One device: ``type`` and ``index``. Naming a device does not need it to exist; using it does.

    Devices exist once each, so they may be compared with ``is``. "cuda" is another name of NVIDIA, and no
    index means 0.

    >>> Device("cpu"), Device("cuda:1"), Device(DeviceType.QY, 1)
    (Device('CPU:0'), Device('NVIDIA:1'), Device('QY:1'))
    """

    __slots__ = ("__weakref__", "index", "type")

    type: DeviceType
    index: int

    def __new__(cls, spec: DeviceLike, index: int | None = None) -> Device:
        if isinstance(spec, tuple) and index is None and len(spec) == 2:
            spec, index = spec
        text = str(spec) if isinstance(spec, (str, Device)) else ""
        if index is not None and ":" in text:
            raise errors.ParamError(f"Device: index is {shown(index)}, but {text} already has one")
        if isinstance(spec, Device):
            return spec
        if isinstance(spec, str):
            spec, colon, digits = spec.partition(":")
            if colon and not (digits.isdecimal() and len(digits) < 100):
                raise errors.ParamError(f"device is {shown(text)}; needs a form such as 'cpu' or 'nvidia:0'")
            index = int(digits) if colon else index
        if not isinstance(spec, (DeviceType, int, str)) or isinstance(spec, bool):
            raise errors.OperandError(
                f"device is {shown(spec)} ({type(spec).__name__}); needs a name, DeviceType or Device"
            )
        index = 0 if index is None else index
        if not isinstance(index, int) or isinstance(index, bool):
            raise errors.OperandError(f"device index is {shown(index)}; needs an int")
        if not 0 <= index < 2**31:
            raise errors.DeviceError(f"device index is {shown(index)}", status=errors.Status.DEVICE_NOT_FOUND)
        key = (as_device_type(spec), index)
        known = _DEVICES.get(key)
        if known is not None:
            return known
        self = super().__new__(cls)
        self.type, self.index = key
        return _DEVICES.setdefault(key, self)

    def __str__(self) -> str:
        return f"{self.type.name}:{self.index}"

    def __repr__(self) -> str:
        return f"Device({str(self)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Device, (str(self),)


DeviceLike: TypeAlias = "Device | DeviceType | str | int | tuple[DeviceType | str, int]"

_DEVICES: dict[tuple[DeviceType, int], Device] = {}
CPU = Device(DeviceType.CPU, 0)


def as_device(spec: DeviceLike | None) -> Device:
    """Return a Device; None means this thread's current one."""
    if spec is None:
        return get_device()
    return spec if type(spec) is Device else Device(spec)


class _Thread(threading.local):
    """What one thread has. Its members die with the thread, and release what they own then."""

    def __init__(self) -> None:
        self.recording: Any = None  # the Graph that operators are recorded to
        # The CPU descriptors that may be run without a further look, by operator: none while recording.
        self.ready: dict[type, Any] = {}
        self.handles: dict[Device, Any] = {}
        self.streams: dict[Device, Stream] = {}
        self.stream_stack: list[tuple[Stream, Stream | None]] = []  # each with the one before it


thread = _Thread()


_new = ffi.new
_TWO_INTS = ffi.typeof("int[2]")


def get_device() -> Device:
    """Return this thread's current device; CPU:0 at first."""
    ints = _new(_TWO_INTS)  # not kept per thread: this runs while a thread's members are being released, too
    check(lib.infinirtGetDevice(ints, ints + 1))
    return _DEVICES.get((ints[0], ints[1])) or Device(DeviceType(ints[0]), ints[1])


def set_device(device: DeviceLike, index: int | None = None) -> None:
    """Make a device this thread's current one. DeviceError if it is not there; the current device then stays.

    >>> set_device("cpu")
    >>> get_device()
    Device('CPU:0')
    """
    device = Device(device, index)
    check(lib.infinirtSetDevice(device.type, device.index))


def device_count(type: DeviceType | int | str = DeviceType.CPU) -> int:
    """Return how many devices of a family this machine can use: 0 without backend, driver or device.

    >>> device_count("cpu")
    1
    """
    count = ffi.new("int *")
    check(lib.infinirtGetDeviceCount(as_device_type(type), count))
    return int(count[0])


class device_scope:
    """Makes a device current for a ``with`` block and restores the caller's device after it."""

    __slots__ = ("_device", "_previous")

    def __init__(self, device: Device) -> None:
        self._device = device

    def __enter__(self) -> None:
        previous = get_device()
        self._previous = None if previous is self._device else previous
        if self._previous is not None:
            try:
                check(lib.infinirtSetDevice(self._device.type, self._device.index))
            except BaseException:  # a signal's handler may raise after the call
                self.__exit__()
                raise

    def __exit__(self, *_: object) -> None:
        if self._previous is not None:
            check(lib.infinirtSetDevice(self._previous.type, self._previous.index))


def call_on(device: Device, function: Callable[..., T], *arguments: Any) -> T:
    """Call a function with a device current, restore the caller's device, and return what it returns."""
    if get_device() is device:
        return function(*arguments)
    with device_scope(device):
        return function(*arguments)


@cache
def places(device: Device, kind: str, entry: str) -> Callable[[], Any]:
    """A function that makes places (see ``_native.owning``) for what belongs to a device. An entry of the
    device's own table gives it back, whichever device is current then.
    """
    backend = ffi.new("const InfiniBackend **")
    check(lib.infinirtGetBackend(device.type, backend))
    return owning(kind, partial(getattr(backend[0].runtime, entry), device.index))


def refuse_pickle(self: object) -> NoReturn:
    """For ``__reduce__`` of objects that mean something in this process only."""
    raise errors.OperandError(
        f"{type(self).__name__}: cannot be pickled or copied, because it belongs to this process; make it "
        "anew where it is needed"
    )


_handle_place = owning("infiniopHandle_t", lib.infiniopDestroyHandle)


def handle(device: Device) -> Any:
    """This thread's native handle of a device: what operators are created on."""
    try:
        return thread.handles[device][0]
    except KeyError:
        place = _handle_place()
        with device_scope(device):
            check(lib.infiniopCreateHandle(place))
        thread.handles[device] = place
        return place[0]


def _need_kind(op: str, name: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        article = "an" if kind is Event else "a"
        raise errors.OperandError(f"{op}: {name} is {shown(value)}, needs {article} {kind.__name__}")


class Stream:
    """A queue of work on one device; on the CPU an object without a queue, because every call there is
    synchronous.

    ``with stream:`` makes it the stream this thread's operators on that device run on.

    >>> with Stream("cpu") as stream:
    ...     assert get_stream("cpu") is stream
    """

    __slots__ = ("__weakref__", "_place", "device", "pointer")

    device: Device
    pointer: Any
    _place: Any

    def __init__(self, device: DeviceLike | None = None) -> None:
        self.device = as_device(device)
        with device_scope(self.device):
            self._place = places(self.device, "infinirtStream_t", "stream_destroy")()
            check(lib.infinirtStreamCreate(self._place))
        self.pointer = self._place[0]

    @classmethod
    def _default(cls, device: Device) -> Stream:
        self = object.__new__(cls)
        self.device, self.pointer, self._place = device, NULL, None
        return self

    def synchronize(self) -> None:
        """Wait until the work queued so far is done."""
        with device_scope(self.device):
            check(lib.infinirtStreamSynchronize(self.pointer))

    def wait_event(self, event: Event) -> None:
        """Let work queued from now on wait for the last recording of `event`."""
        _need_kind("Stream.wait_event", "event", event, Event)
        with device_scope(self.device):
            check(lib.infinirtStreamWaitEvent(self.pointer, event.pointer))

    def __enter__(self) -> Stream:
        thread.stream_stack.append((self, thread.streams.get(self.device)))
        thread.streams[self.device] = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        stack = thread.stream_stack
        if not stack or stack[-1][0] is not self:  # as by a generator that one thread starts and another ends
            raise errors.ParamError(
                f"{self!r}: left in another thread than it was entered in, or out of order"
            )
        _, outer = stack.pop()
        if outer is None:
            thread.streams.pop(self.device, None)
        else:
            thread.streams[self.device] = outer

    def __repr__(self) -> str:
        return f"<Stream of {self.device}{', the default one' if self._place is None else ''}>"

    __reduce__ = refuse_pickle


def get_stream(device: DeviceLike | None = None) -> Stream:
    """Return the stream this thread's operators on a device run on: the device's default one outside ``with
    stream:``.
    """
    device = as_device(device)
    stream = thread.streams.get(device)
    if stream is None:
        stream = thread.streams[device] = Stream._default(device)
    return stream


class Event:
    """A point in a stream's work.

    `timing` allows :meth:`elapsed_time`; `blocking` lets :meth:`synchronize` sleep instead of spin.

    >>> start, end = Event("cpu"), Event("cpu")
    >>> start.record(); end.record()
    >>> start.elapsed_time(end) >= 0
    True
    """

    __slots__ = ("__weakref__", "_place", "device", "pointer")

    device: Device
    pointer: Any

    def __init__(
        self, device: DeviceLike | None = None, *, timing: bool = True, blocking: bool = False
    ) -> None:
        self.device = as_device(device)
        flags = (0 if timing else lib.INFINIRT_EVENT_DISABLE_TIMING) | (
            lib.INFINIRT_EVENT_BLOCKING_SYNC if blocking else 0
        )
        with device_scope(self.device):
            self._place = places(self.device, "infinirtEvent_t", "event_destroy")()
            check(lib.infinirtEventCreateWithFlags(self._place, flags))
        self.pointer = self._place[0]

    def record(self, stream: Stream | None = None) -> None:
        """Mark this point of a stream, by default the thread's stream of the event's device."""
        stream = get_stream(self.device) if stream is None else stream
        _need_kind("Event.record", "stream", stream, Stream)
        if stream.device is not self.device:
            raise errors.DeviceError(
                f"Event.record: the event is on {self.device}, the stream on {stream.device}"
            )
        with device_scope(self.device):
            check(lib.infinirtEventRecord(self.pointer, stream.pointer))

    def query(self) -> bool:
        """Is the work before the mark done? True, too, when nothing was recorded yet."""
        out = ffi.new("infinirtEventStatus_t *")
        with device_scope(self.device):
            check(lib.infinirtEventQuery(self.pointer, out))
        return bool(out[0] == lib.INFINIRT_EVENT_COMPLETE)

    def synchronize(self) -> None:
        """Wait until the work before the mark is done."""
        with device_scope(self.device):
            check(lib.infinirtEventSynchronize(self.pointer))

    def elapsed_time(self, end: Event) -> float:
        """Return the milliseconds between this event and a later one. ParamError unless both were
        recorded.
        """
        _need_kind("Event.elapsed_time", "end", end, Event)
        out = ffi.new("float *")
        with device_scope(self.device):
            check(lib.infinirtEventElapsedTime(out, self.pointer, end.pointer))
        return float(out[0])

    def __repr__(self) -> str:
        return f"<Event of {self.device}>"

    __reduce__ = refuse_pickle


def synchronize(device: DeviceLike | None = None) -> None:
    """Wait until all work of a device (by default the current one) is done."""
    with device_scope(as_device(device)):
        check(lib.infinirtDeviceSynchronize())


def memory_error(what: str, nbytes: int, device: Device, status: int) -> errors.InfiniopError:
    """The exception for an allocation that failed."""
    reason = error(status)
    if status != errors.Status.INTERNAL_ERROR:
        return reason
    return errors.OutOfMemoryError(
        f"{what}: cannot allocate {nbytes} bytes on {device}: {reason}", status=status
    )
