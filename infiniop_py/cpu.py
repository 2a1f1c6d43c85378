"""How CPU calls compute: instruction set and number of threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ContextDecorator
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from typing import Any, TypeVar

from ._native import check, ffi, lib
from .errors import OperandError, ParamError, shown

F = TypeVar("F", bound=Callable[..., Any])

__all__ = ["cpu_isa", "get_num_threads", "num_threads", "set_num_threads"]


def _text(function: object) -> str:
    out = ffi.new("const char **")
    check(function(out))  # type: ignore[operator]
    return str(ffi.string(out[0]).decode("utf-8", "replace"))


def cpu_isa() -> str:
    """Return the instruction set of the CPU kernels: "portable", "avx2", "avx512", "avx512_bf16"
    or "amx_bf16".

    It is the fastest this CPU has, capped by the environment variable ``INFINIOP_MAX_ISA`` as it was at the
    first use. "avx512_bf16" is used only where the variable names it on CPUs whose BF16 instructions are
    slow (Intel's since Sapphire Rapids); "amx_bf16", where there is AMX, multiplies BF16 in tiles, for which
    Linux is asked once to save them for this process. Results of add, mul and rearrange do not depend on it.
    """
    return _text(lib.infiniopGetCpuIsa)


def cpu_isa_reason() -> str:
    """Why cpu_isa() is what it is, in a few words for people."""
    return _text(lib.infiniopGetCpuIsaReason)


def num_threads_reason() -> str:
    """Why get_num_threads() returns what it does, in a few words for people."""
    return _text(lib.infiniopGetNumThreadsReason)


class _Local(threading.local):
    def __init__(self) -> None:
        #: This thread's limits in the order they were set: the last one is in force. Each with its owner.
        self.limits: list[tuple[object, int]] = []


_local = _Local()


def _checked(op: str, n: int, least: int) -> int:
    if not isinstance(n, int) or isinstance(n, bool):
        raise OperandError(f"{op}: n is {shown(n)}, needs an int")
    if not least <= n < 2**31:
        needed = f"at least {least}" if n < least else f"less than {2**31}"
        raise ParamError(f"{op}: n is {shown(n)}, needs {needed}")
    return n


def set_num_threads(n: int) -> None:
    """Set how many threads one CPU call of this process may use, the caller included; 0 goes back to the
    default. More than 1024 are 1024.

    The default is ``INFINIOP_NUM_THREADS``, else ``OMP_NUM_THREADS``, capped by the CPUs and the quota this
    process has. Results do not depend on it.

    >>> before = get_num_threads()
    >>> set_num_threads(1)
    >>> get_num_threads()
    1
    >>> set_num_threads(0)
    >>> get_num_threads() == before
    True
    """
    check(lib.infiniopSetNumThreads(_checked("set_num_threads", n, 0)))


def get_num_threads() -> int:
    """Return how many threads a CPU call from this thread may use now."""
    out = ffi.new("int *")
    check(lib.infiniopGetNumThreads(out))
    return int(out[0])


def _apply() -> None:
    limits = _local.limits
    check(lib.infiniopSetNumThreadsLocal(limits[-1][1] if limits else 0))


def push_limit(owner: object, n: int) -> None:
    """Limit this thread's calls to `n` threads until `owner` drops its limit."""
    check(lib.infiniopSetNumThreadsLocal(n))  # first: what is refused leaves no trace
    _local.limits.append((owner, n))


def drop_limit(owner: object) -> bool:
    """Forget the limit that `owner` set last in this thread; was there one?

    Whatever else was set since stays, so that the order in which owners leave leaves no trace.
    """
    limits = _local.limits
    for i in reversed(range(len(limits))):
        if limits[i][0] is owner:
            del limits[i]
            _apply()
            return True
    return False


def count_limits(owner: object) -> int:
    """How many limits of `owner` this thread has."""
    return sum(one is owner for one, _ in _local.limits)


class num_threads(ContextDecorator):
    """Limit the CPU calls of this thread, and of no other, to `n` threads inside a ``with`` block, or while
    a function that it decorates runs.

    The innermost limit holds. One object may be entered again, and by several threads. Generators and
    coroutines run when their callers please, and are no functions to decorate: OperandError.

    >>> with num_threads(1):
    ...     get_num_threads()
    1
    >>> @num_threads(2)
    ... def half() -> int:
    ...     return get_num_threads()
    >>> half()
    2
    """

    def __init__(self, n: int) -> None:
        self._n = _checked("num_threads", n, 1)

    def __call__(self, function: F) -> F:
        for kind in (isgeneratorfunction, iscoroutinefunction, isasyncgenfunction):
            if kind(function):
                raise OperandError(
                    f"num_threads({self._n}): decorates {shown(function)}, which returns before it runs; use "
                    "a with block inside of it"
                )
        return super().__call__(function)

    def __enter__(self) -> None:
        before = count_limits(self)
        try:
            push_limit(self, self._n)
        except BaseException:  # a signal's handler may raise after each step
            if count_limits(self) > before:
                drop_limit(self)
            else:
                _apply()
            raise

    def __exit__(self, *exception: object) -> None:
        before = None
        try:
            before = count_limits(self)
            dropped = drop_limit(self)
        except BaseException:  # a signal's handler may raise after each step
            if before is None or count_limits(self) == before:
                drop_limit(self)
            else:
                _apply()
            raise
        if not dropped:
            # As by a generator that one thread starts and another one ends.
            raise ParamError(f"num_threads({self._n}): left in another thread than it was entered in")
