"""Scratch memory for operators: U8 tensors that only grow.

A thread has one per device and stream, because calls queued on one stream run one after the other. A graph
has its own.
"""

from __future__ import annotations

import threading
from weakref import WeakKeyDictionary

from .device import CPU, Device, Stream
from .dtypes import DType
from .tensor import Tensor, allocate


class Workspace:
    """Scratch memory on one device."""

    __slots__ = ("_tensors", "device")

    def __init__(self, device: Device) -> None:
        self.device = device
        self._tensors: list[Tensor] = []

    def reserve(self, nbytes: int, *, keep: bool = False) -> Tensor | None:
        """Return at least `nbytes` bytes, to be held on to while they are used; None for 0.

        `keep` also holds on to what was returned before, for those who have noted its address.
        """
        if nbytes == 0:
            return None
        tensors = self._tensors
        if not tensors or tensors[-1].size < nbytes:
            grown = allocate(DType.U8, (nbytes,), self.device, "workspace")
            if not keep:
                tensors.clear()
            tensors.append(grown)
        return tensors[-1]

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(tensor.size for tensor in self._tensors)


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
