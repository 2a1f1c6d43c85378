"""Calls on devices in the order of the streams that their arrays' libraries work on; the rule is told by
:class:`~infiniop_py.Stream`.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..device import LEGACY, Device, get_stream, stream_at, synchronize, thread


class StreamOrder:
    """Runs what is in its ``with`` block on one stream, which is the thread's current one there, and in order
    with the others.

    ``handles`` are the streams of libraries, the first of them the one that is run on if the thread has not
    entered another; None stands for a library that says nothing of its stream. ``has_tensors``: are there
    operands, too, that belong to the thread's current stream?
    """

    __slots__ = ("_others", "_own", "_waits", "stream")

    def __init__(self, device: Device, handles: Iterable[int | None], has_tensors: bool) -> None:
        found = [0 if handle == LEGACY else handle for handle in handles]
        known = list(dict.fromkeys(handle for handle in found if handle is not None))
        self._waits = None in found
        self.stream = self._own = own = get_stream(device)
        if own._is_implicit and known and known[0] != own.handle:
            self.stream = stream_at(device, known[0])
            if has_tensors:
                known.append(own.handle)
        # The host waits for these as well, if it does.
        others = () if self._waits else known
        self._others = [stream_at(device, handle) for handle in others if handle != self.stream.handle]

    def __enter__(self) -> None:
        if self._waits:
            synchronize(self.stream.device)
        for other in self._others:
            self.stream.wait_stream(other)
        thread.streams[self.stream.device] = self.stream  # the last: what raises before has changed nothing

    def __exit__(self, *error: object) -> None:
        thread.streams[self.stream.device] = self._own
        # A call that failed may have been queued in part.
        try:
            for other in self._others:
                other.wait_stream(self.stream)
            if self._waits:
                self.stream.synchronize()
        except BaseException:  # a signal's handler may raise: libraries then find their arrays done
            self.stream.synchronize()
            raise
