"""Something done at each place of a call at which a signal's handler may run."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

_opcodes: dict[CodeType, dict[int, str]] = {}


def at_place(place: int, files: str, call: Callable[[], object], action: Callable[[], object]) -> bool:
    """Make `call`, and do `action` at the place of that number in files whose names start with `files`; was
    there one?
    """
    seen, before = 0, ""

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal seen, before
        code = frame.f_code
        if not code.co_filename.startswith(files):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            if code not in _opcodes:
                _opcodes[code] = {one.offset: one.opname for one in dis.get_instructions(code)}
            handles = before.startswith(("CALL", "RESUME", "JUMP_BACKWARD"))
            before = _opcodes[code][frame.f_lasti]
            seen += handles
            if handles and seen == place:
                action()
        return trace

    traced = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(traced)
    return seen >= place


def interrupted(place: int, files: str, call: Callable[[], object]) -> bool:
    """Raise KeyboardInterrupt out of `call` at a place; was there one?"""

    def interrupt() -> None:
        raise KeyboardInterrupt

    try:
        return at_place(place, files, call, interrupt)
    except KeyboardInterrupt:
        return True
