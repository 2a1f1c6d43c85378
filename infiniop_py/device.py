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
from ._native import address, check, error, ffi, lib, owning
from ._native import pointer as as_pointer
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
        self.borrowed: dict[
            tuple[Device, int], Stream
        ] = {}  # of other libraries, the last one used at the end
        self.events: dict[Device, Event] = {}  # for one stream to wait for another
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
    """Makes a device current for a ``with`` block and restores the caller's device after it. Not for
    other code of this thread, such as torch: what it takes for CUDA's current device stays.
    """

    __slots__ = ("_device", "_previous")

    def __init__(self, device: Device) -> None:
        self._device = device

    def __enter__(self) -> None:
        previous = get_device()
        self._previous = None if previous is self._device else previous
        if self._previous is not None:
            try:
                check(lib.infinirtUseDevice(self._device.type, self._device.index))
            except BaseException:  # a signal's handler may raise after the call
                self.__exit__()
                raise

    def __exit__(self, *_: object) -> None:
        if self._previous is not None:
            check(lib.infinirtUseDevice(self._previous.type, self._previous.index))


def call_on(device: Device, function: Callable[..., T], *arguments: Any) -> T:
    """Call a function with a device current, restore the caller's device, and return what it returns."""
    if get_device() is device:
        return function(*arguments)
    with device_scope(device):
        return function(*arguments)


@cache
def runtime_entry(device: Device, entry: str) -> Callable[..., Any]:
    """An entry of the device's own table: it acts on that device, whichever is current. DeviceError if the
    device is not there.
    """
    with device_scope(device):
        pass
    backend = ffi.new("const InfiniBackend **")
    check(lib.infinirtGetBackend(device.type, backend))
    return partial(getattr(backend[0].runtime, entry), device.index)


@cache
def places(device: Device, kind: str, entry: str) -> Callable[[], Any]:
    """A function that makes places (see ``_native.owning``) for what belongs to a device, and which an entry
    of the device's own table gives back.
    """
    return owning(kind, runtime_entry(device, entry))


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

    On which stream a call on a device runs, a plan's and a graph's, too, is decided when it runs:

    1. inside ``with stream:``, on that one
    2. else on the current stream of the library that the first operand is of which is not a Tensor: torch's
       and CuPy's current stream of the device, or the stream that ``__cuda_array_interface__`` names
    3. else on the device's default stream, which is that of torch and CuPy, too

    Whatever that is, each library finds its arrays as if its own stream had run the call. The stream that
    runs it first waits for the streams of the other operands, and those wait for it afterwards; Tensors are
    this thread's :func:`get_stream`'s. So a result may be used, and memory be given back to an allocator, on
    the library's current stream right after the call. All this waiting is in the queues of the device. Only
    where an array's library says nothing of its stream (``__dlpack__`` of others than torch and CuPy, an
    array interface without one) it is the host that waits: for the device before the call, and for the call.

    Nothing is ordered for a Tensor that is used on several streams of one's own, as by two ``with`` blocks:
    let the second :meth:`wait_stream` for the first. A Tensor may be let go of as soon as the call that uses
    it has returned: device memory is released once the work queued by then is done. Memory of others, of
    :meth:`Tensor.from_blob` and :meth:`Tensor.from_dlpack`, is let go of with the last Tensor on it, whatever
    is queued: keep one until the work is done.
    """

    __slots__ = ("__weakref__", "_is_implicit", "_owner", "_place", "device", "handle", "pointer")

    device: Device
    #: The number that other libraries know it by: the address of a ``cudaStream_t``, 0 for the default one.
    handle: int
    pointer: Any
    _place: Any
    _owner: object
    _is_implicit: bool  # the one that is current where nobody has asked for another

    def __init__(self, device: DeviceLike | None = None) -> None:
        device = as_device(device)
        with device_scope(device):
            place = places(device, "infinirtStream_t", "stream_destroy")()
            check(lib.infinirtStreamCreate(place))
        self._fill_in(device, place[0], place, None)

    def _fill_in(self, device: Device, pointer: Any, place: Any, owner: object) -> None:
        self.device, self.pointer, self.handle = device, pointer, address(pointer)
        self._place, self._owner = place, owner
        self._is_implicit = False

    @classmethod
    def _of(cls, device: Device, handle: int, owner: object = None) -> Stream:
        """The stream behind a number, borrowed. 1 is another name of 0: the legacy default stream."""
        self = object.__new__(cls)
        self._fill_in(device, as_pointer(0 if handle == 1 else handle), None, owner)
        return self

    @classmethod
    def from_handle(cls, device: DeviceLike, stream: Any) -> Stream:
        """Return a stream of another library as one of this one, borrowed: it is kept and never destroyed.

        `stream` is the number of a ``cudaStream_t`` (0 or 1 for the default one, 2 for the default one of
        each thread), or an object that knows it: with ``__cuda_stream__``, as in cuda.core, ``cuda_stream``,
        as in torch, or ``ptr``, as in CuPy. The other way, ``torch.cuda.ExternalStream(stream.handle)`` and
        ``cupy.cuda.ExternalStream(stream.handle)`` are streams of those libraries, while this one is kept.

        DeviceError on the CPU, or if the object is of another device; OperandError for what is no stream.

        ::

            with Stream.from_handle("nvidia:0", torch.cuda.Stream()):
                y = gemm(a, b)
        """
        device = as_device(device)
        if device is CPU:
            raise errors.DeviceError("Stream.from_handle: the CPU has no streams of other libraries")
        handle = _foreign_handle(stream)
        for name in ("device_index", "device_id"):  # torch's and CuPy's; -1: of whichever device is current
            index = getattr(stream, name, -1)
            if isinstance(index, int) and index not in (-1, device.index):
                raise errors.DeviceError(
                    f"Stream.from_handle: the stream is of device {shown(index)}, but device is {device}"
                )
        with device_scope(device):  # is it there?
            return cls._of(device, handle, stream)

    def __cuda_stream__(self) -> tuple[int, int]:
        """The stream for libraries that speak this protocol, such as cuda.core. DeviceError unless it is one
        of an NVIDIA device.
        """
        if self.device.type is not DeviceType.NVIDIA:
            raise errors.DeviceError(f"__cuda_stream__: {self!r} is no stream of CUDA")
        return 0, self.handle or LEGACY

    def synchronize(self) -> None:
        """Wait until the work queued so far is done."""
        with device_scope(self.device):
            check(lib.infinirtStreamSynchronize(self.pointer))

    def wait_stream(self, other: Stream) -> None:
        """Let work queued from now on wait for what is queued on `other`, a stream of the same device."""
        _need_kind("Stream.wait_stream", "other", other, Stream)
        if other.device is not self.device:
            raise errors.DeviceError(
                f"Stream.wait_stream: the stream is on {self.device}, the other on {other.device}"
            )
        # Taken for as long as it says something: a signal's handler may order other streams meanwhile.
        event = thread.events.pop(self.device, None) or Event(self.device, timing=False)
        event.record(other)
        self.wait_event(event)
        thread.events[self.device] = event

    def wait_event(self, event: Event) -> None:
        """Let work queued from now on wait for the last recording of `event`."""
        _need_kind("Stream.wait_event", "event", event, Event)
        with device_scope(self.device):
            check(lib.infinirtStreamWaitEvent(self.pointer, event.pointer))

    def __enter__(self) -> Stream:
        stack, entry = thread.stream_stack, (self, thread.streams.get(self.device))
        try:
            stack.append(entry)
            thread.streams[self.device] = self
            return self
        except BaseException:  # a signal's handler may raise after each step
            if stack and stack[-1] is entry:
                self.__exit__(None, None, None)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        stack = thread.stream_stack
        if not stack or stack[-1][0] is not self:  # as by a generator that one thread starts and another ends
            raise errors.ParamError(
                f"{self!r}: left in another thread than it was entered in, or out of order"
            )
        outer = stack[-1][1]
        try:
            if outer is None:
                thread.streams.pop(self.device, None)
            else:
                thread.streams[self.device] = outer
        finally:
            del stack[-1]

    def __repr__(self) -> str:
        what = (
            "" if self._place is not None else f", {self.handle:#x}" if self.handle else ", the default one"
        )
        return f"<Stream of {self.device}{what}>"

    __reduce__ = refuse_pickle


#: What the exchange protocols call the default stream, for which they do not allow 0.
LEGACY = 1

_MOST_BORROWED = 64  # torch has 32 of each priority


def _foreign_handle(stream: Any) -> int:
    """The number of a stream of another library."""
    number: Any = stream
    if hasattr(stream, "__cuda_stream__"):
        try:
            said = stream.__cuda_stream__
            version, number = said() if callable(said) else said
        except errors.InfiniopError:
            raise
        except Exception as error:
            raise errors.OperandError(
                f"Stream.from_handle: stream is a {type(stream).__name__} whose __cuda_stream__ failed: "
                f"{type(error).__name__}: {error}"
            ) from error
        if version != 0:
            raise errors.ParamError(
                f"Stream.from_handle: stream speaks version {shown(version)} of __cuda_stream__, needs 0"
            )
    elif not isinstance(stream, int):
        number = getattr(stream, "cuda_stream", getattr(stream, "ptr", None))
    if not isinstance(number, int) or isinstance(number, bool):
        raise errors.OperandError(
            f"Stream.from_handle: stream is {shown(stream)} ({type(stream).__name__}), needs the number of a "
            "stream, or an object with __cuda_stream__, cuda_stream or ptr"
        )
    if not 0 <= number < 2**64:
        raise errors.ParamError(f"Stream.from_handle: stream is {shown(number)}, which is no address")
    return number


def stream_at(device: Device, handle: int) -> Stream:
    """This thread's object for a stream of another library. It is the same for the same number, because
    workspaces belong to the objects.
    """
    borrowed = thread.borrowed
    key = (device, handle)
    found = borrowed.pop(key, None) or Stream._of(device, handle)
    borrowed[key] = found
    if len(borrowed) > _MOST_BORROWED:
        with suppress(RuntimeError):  # a signal's handler was here as well
            borrowed.pop(next(iter(borrowed)), None)
    return found


def get_stream(device: DeviceLike | None = None) -> Stream:
    """Return the stream this thread's operators on a device run on, as far as no array of another library
    has a say (see :class:`Stream`): the device's default one outside ``with stream:``.
    """
    device = as_device(device)
    stream = thread.streams.get(device)
    if stream is None:
        stream = Stream._of(device, 0)
        stream._is_implicit = True
        thread.streams[device] = stream
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
