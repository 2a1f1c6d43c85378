"""Calling C functions that the headers of this library do not declare, all by the same means.

What a call from Python costs is then the same for every contender at the C level, and can be taken off.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from .._native import ADDRESS, cast, ffi, lib


def function(library: ctypes.CDLL, name: str, prototype: str) -> Any | None:
    """A function of a library as `prototype`, such as "void(*)(int)"; None if the library has none of this
    name.
    """
    try:
        found = getattr(library, name)
    except AttributeError:
        return None
    return _cast(prototype, ctypes.cast(found, ctypes.c_void_p).value)


def doing_nothing(prototype: str) -> Callable[..., Any]:
    """A function with this prototype that returns at once: its time is that of calling C.

    It takes no arguments in truth; the caller of a C function clears up what it passed.
    """
    nothing = cast(ADDRESS, ffi.addressof(lib, "infiniopGetLastErrorMessage"))
    found: Callable[..., Any] = _cast(prototype, nothing)
    return found


def _cast(prototype: str, address: Any) -> Any:
    return cast(prototype, cast(ADDRESS, address))
