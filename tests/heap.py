"""The allocator of this process: how many bytes it has given out and not got back, and whose it is."""

from __future__ import annotations

import ctypes
import os
from typing import ClassVar

import pytest

#: Do the libraries run under AddressSanitizer (.ci/asan), which brings its own?
SANITIZED = "libasan" in os.environ.get("LD_PRELOAD", "")


def unsanitized(why: str) -> pytest.MarkDecorator:
    """Skips a test that is about the libraries as they are released."""
    return pytest.mark.skipif(SANITIZED, reason=f"under AddressSanitizer {why}")


class _Heap(ctypes.Structure):
    """``struct mallinfo2``."""

    _fields_: ClassVar = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


_libc = ctypes.CDLL(None)
_libc.malloc.restype = ctypes.c_void_p
if hasattr(_libc, "mallinfo2"):
    _libc.mallinfo2.restype = _Heap


def bytes_in_use() -> int:
    """0 where nobody counts; see :func:`counts`."""
    heap = _libc.mallinfo2() if hasattr(_libc, "mallinfo2") else _Heap()
    return int(heap.uordblks + heap.hblkhd)


def counts() -> bool:
    """Does the allocator of this process count? A preloaded one, or another C library's, does not."""
    before = bytes_in_use()
    block = ctypes.c_void_p(_libc.malloc(ctypes.c_size_t(1 << 20)))
    grown = bytes_in_use() - before
    _libc.free(block)
    return grown >= 1 << 20
