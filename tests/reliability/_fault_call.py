"""Calls through failing_malloc.c, which makes allocations fail and counts what a call keeps."""

from __future__ import annotations

import ctypes
from typing import Any

import _library


class Fault(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("status", "asked", "failed", "held")]


class Call(ctypes.Structure):
    _fields_ = [
        ("function", ctypes.c_void_p),
        ("i", ctypes.c_uint64 * 10),
        ("f", ctypes.c_float * 2),
        ("fail_at", ctypes.c_int64),
        ("for_good", ctypes.c_int),
        ("found", Fault),
    ]


def _register(value: Any) -> int:
    """What goes into a register for an argument that ctypes would take."""
    if value is None:
        return 0
    if isinstance(value, int):
        return value % 2**64
    if isinstance(value, bytes):
        return ctypes.cast(ctypes.c_char_p(value), ctypes.c_void_p).value or 0
    if isinstance(value, ctypes.c_void_p):
        return value.value or 0
    return ctypes.addressof(value)


class Caller:
    """Makes calls and counts them."""

    def __init__(self, shim: str) -> None:
        """Without `shim` (""), calls are plain: nothing fails, and nothing is counted of what they keep."""
        self.lib = _library.load()
        self.shim = ctypes.CDLL(shim) if shim else None
        self.calls = 0

    def call(
        self, name: str, arguments: list[Any], fail_at: int = -1, for_good: bool = False, thread: bool = False
    ) -> Fault:
        self.calls += 1
        if self.shim is None:
            status = self.lib.functions[name](*arguments)
            return Fault(status=status if isinstance(status, int) else status is not None)
        call = Call(fail_at=fail_at, for_good=for_good)
        call.function = self.lib.address(name)
        for place, x in enumerate(x for x in arguments if not isinstance(x, float)):
            call.i[place] = _register(x)
        for place, x in enumerate(x for x in arguments if isinstance(x, float)):
            call.f[place] = x
        if thread:
            assert self.shim.fault_call_in_new_thread(ctypes.byref(call)) == 0
        else:
            self.shim.fault_call(ctypes.byref(call))
        found = Fault.from_buffer_copy(call.found)
        if self.lib.functions[name].restype is ctypes.c_int:
            found.status = ctypes.c_int32(found.status & 0xFFFFFFFF).value
        return found

    def fork(self) -> int:
        """fork() in which every allocation fails: the handlers of the libraries find no memory."""
        assert self.shim is not None
        call = Call(function=ctypes.cast(ctypes.CDLL(None).fork, ctypes.c_void_p).value, for_good=True)
        self.shim.fault_call(ctypes.byref(call))
        return call.found.status & 0xFFFFFFFF
