"""Scratch memory for operators: U8 tensors that only grow.

A thread has one per device and stream, because calls queued on one stream run one after the other. Graphs
keep theirs in their arenas.
"""

from __future__ import annotations

import threading
from weakref import WeakKeyDictionary

from .device import CPU, Device, Stream
from .dtypes import DType
from .tensor import Tensor, allocate


class Workspace:
    """Scratch memory on one device."""

    __slots__ = ("_held", "device")

    #: Bytes, and where they are: in one, for a signal's handler may reserve more between any two steps.
    _held: tuple[int, Tensor | None]

    def __init__(self, device: Device) -> None:
        self.device = device
        self._held = (0, None)

    def reserve(self, nbytes: int, op: str) -> Tensor | None:
        """Return at least `nbytes` bytes, to be held while they are used, for `op`; perhaps None for 0."""
        held = self._held
        if nbytes > held[0]:
            held = self._held = (nbytes, allocate(DType.U8, (nbytes,), self.device, f"{op}: workspace"))
        return held[1]

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self._held[0]


class _Pool(threading.local):
    def __init__(self) -> None:
        self.cpu = Workspace(CPU)
        self.streams: WeakKeyDictionary[Stream, Workspace] = WeakKeyDictionary()


_pool = _Pool()


def cpu_workspace() -> Workspace:
    """This thread's workspace for CPU calls, which are synchronous on every stream."""
    return _pool.cpu


def stream_workspace(stream: Stream) -> Workspace:
    """This thread's workspace for calls on one stream."""
    found = _pool.streams.get(stream)
    if found is None:
        found = _pool.streams[stream] = Workspace(stream.device)
    return found
