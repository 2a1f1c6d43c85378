"""This library in threadpoolctl: ``threadpool_info()`` lists it and ``threadpool_limits(n)`` limits it.

Where threadpoolctl is there before infiniop_py, ``import infiniop_py`` does this by itself. It never imports
threadpoolctl on its own account, so in the other order it takes a line::

    import infiniop_py.interop.threadpoolctl

A limit holds for the calls of the thread that sets it, as threadpoolctl asks of a library that can do so.
"""

from __future__ import annotations

from threadpoolctl import LibController, register

from .._native import version
from ..cpu import count_limits, drop_limit, get_num_threads, push_limit

_OWNER = object()


class _Number(int):
    """A number of threads that knows which limits there were when it was read.

    Threadpoolctl ends a limit by setting the number from before. Set as a mere number it would stay as a
    limit, and a later set_num_threads() would have no effect on this thread.
    """

    limits: int


class InfiniopController(LibController):  # type: ignore[misc]  # threadpoolctl has no types
    """How threadpoolctl sees libinfiniop."""

    user_api = "infiniop"
    internal_api = "infiniop"
    filename_prefixes = ("libinfiniop",)
    check_symbols = ("infiniopSetNumThreadsLocal",)

    def get_num_threads(self) -> int:
        """What get_num_threads() says."""
        number = _Number(get_num_threads())
        number.limits = count_limits(_OWNER)
        return number

    def set_num_threads(self, num_threads: int) -> None:
        """Limit this thread, or end a limit by giving what get_num_threads() returned before it."""
        if isinstance(num_threads, _Number):
            while count_limits(_OWNER) > num_threads.limits and drop_limit(_OWNER):
                pass
        else:
            push_limit(_OWNER, num_threads)

    def get_version(self) -> str:
        """The library's version."""
        return str(version)


register(InfiniopController)
