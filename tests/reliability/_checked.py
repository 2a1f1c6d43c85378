"""Calls of the C interface, each held to what the oracle says of it."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any

from _fault_call import Caller
from _library import CPU, SUCCESS
from _ops import current_device
from _rules import Fault

#: Words of messages that stand for a parameter.
WORDS = {
    "desc": ("descriptor",),
    "device_id": ("there is no",),
    "ndim": ("rank",),
    "path": ("/", "plugin"),
    "ptr": ("0x",),
    "size": ("bytes",),
    "n": ("numbers",),
    "device": ("device type", "backend"),
    "what": ("ceiling",),
    "kind": ("kind of copy",),
    "mode": ("capture mode",),
    "flags": ("event flag",),
}


def names_one(message: str, names: Collection[str]) -> bool:
    words = [word for name in names for word in (name, *WORDS.get(name, ()))]
    return not names or any(re.search(rf"(\b|(?=/)){re.escape(word)}", message) for word in words)


class Checked:
    """Makes calls; raises AssertionError where one does not answer as it must."""

    def __init__(self, shim: str) -> None:
        self._caller = Caller(shim)
        self.lib = self._caller.lib
        self.calls = 0
        self._threads = self._num_threads()

    def plain(self, name: str, arguments: Sequence[Any]) -> tuple[int, int]:
        """A call about which nothing is asked here: what it returns, and the blocks it keeps."""
        got = self._caller.call(name, list(arguments))
        return got.status, got.held

    def call(
        self,
        name: str,
        arguments: Sequence[Any],
        faults: Sequence[Fault],
        *,
        begins: Collection[str] = (),
        watched: Sequence[Any] = (),
        undo: Callable[[], int] = lambda: 0,
        also: Collection[int] = (),
    ) -> int:
        """One call with these faults, twice where something is kept.

        A refusal names the function, or something of `begins`, and what is wrong; leaves all bytes of the
        buffers `watched` as they are; and keeps no memory. After a success, `undo` releases what was made and
        returns how many blocks it did not give back. `also` are statuses that are right besides.
        """
        self.calls += 1
        wanted = {one.status for one in faults} or {SUCCESS}
        for attempt in range(2):
            before = [bytes(buffer) for buffer in watched]
            self.lib.clear_message()
            got = self._caller.call(name, list(arguments))
            message = self.lib.message()
            wrong = ""
            if got.status not in wanted and got.status not in also:
                wrong = f"needed {sorted(wanted)}"
            elif got.status == SUCCESS:
                wrong = "a message all the same" if message else ""
                kept = got.held + undo()
            else:
                names = {n for one in faults if one.status == got.status for n in one.names}
                if not any(message.startswith(f"{start}: ") for start in (name, *begins)):
                    wrong = "whose message is it?"
                elif not names_one(message, names):
                    wrong = f"the message names none of {sorted(names)}"
                elif before != [bytes(buffer) for buffer in watched]:
                    wrong = "memory changed"
                kept = got.held
            # The first error message of a thread has its buffer; the first objects of a kind have their room.
            if not wrong and kept and attempt:
                wrong = f"{kept} blocks are lost"
            if wrong:
                shown = ", ".join(map(_shown, arguments))
                raise AssertionError(f"{name}({shown}) -> {got.status}, {wrong}: {message!r}")
            if kept == 0:
                break
        return int(got.status)

    def state_is_unchanged(self) -> None:
        assert current_device(self.lib) == (CPU, 0)
        assert self._num_threads() == self._threads

    def _num_threads(self) -> int:
        n = ctypes.c_int()
        assert self.lib.infiniopGetNumThreads(ctypes.byref(n)) == SUCCESS
        return n.value


def _shown(argument: Any) -> str:
    if isinstance(argument, ctypes.Array):
        return str(list(argument))
    return str(argument)[:80]
