"""How CPU calls compute: instruction set and number of threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ._native import check, ffi, lib
from .errors import OperandError, ParamError, shown

__all__ = ["cpu_isa", "get_num_threads", "num_threads", "set_num_threads"]


def cpu_isa() -> str:
    """Return the instruction set of the CPU kernels: "portable", "avx2", "avx512" or "avx512_bf16".

    It is the best this CPU has, capped by the environment variable ``INFINIOP_MAX_ISA`` as it was at the
    first use. Results of add, mul and rearrange do not depend on it.
    """
    out = ffi.new("const char **")
    check(lib.infiniopGetCpuIsa(out))
    return str(ffi.string(out[0]).decode("ascii"))


class _Local(threading.local):
    limit = 0  # 0: the process's number


_local = _Local()


def _checked(op: str, n: int, least: int) -> int:
    if not isinstance(n, int) or isinstance(n, bool):
        raise OperandError(f"{op}: n is {n!r}, needs an int")
    if not least <= n < 2**31:
        needed = f"at least {least}" if n < least else f"less than {2**31}"
        raise ParamError(f"{op}: n is {shown(n)}, needs {needed}")
    return n


def set_num_threads(n: int) -> None:
    """Set how many threads one CPU call of this process may use, the caller included; 0 goes back to the
    default.

    The default is ``INFINIOP_NUM_THREADS``, else ``OMP_NUM_THREADS``, capped by the CPUs and the quota this
    process has. Results do not depend on it.
    """
    check(lib.infiniopSetNumThreads(_checked("set_num_threads", n, 0)))


def get_num_threads() -> int:
    """Return how many threads a CPU call from this thread may use now."""
    out = ffi.new("int *")
    check(lib.infiniopGetNumThreads(out))
    return int(out[0])


@contextmanager
def num_threads(n: int) -> Iterator[None]:
    """Limit the CPU calls of this thread, and of no other, to `n` threads inside a ``with`` block.

    >>> with num_threads(1):
    ...     get_num_threads()
    1
    """
    n = _checked("num_threads", n, 1)
    outer = _local.limit
    check(lib.infiniopSetNumThreadsLocal(n))
    _local.limit = n
    try:
        yield
    finally:
        check(lib.infiniopSetNumThreadsLocal(outer))
        _local.limit = outer
