"""How many native objects are alive, said by the library itself.

It knows of any address whether a live descriptor or graph is there, and uses memory of those that are gone
for the next ones. So whoever has seen many at once knows all addresses of later ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from infiniop_py._native import check, ffi, lib
from infiniop_py.device import CPU, handle

MOST = 32 + 64 + 128  # the first pieces of memory for objects of a kind


def _places(make: Callable[[Any], int], destroy: Callable[[Any], int]) -> list[Any]:
    """Where objects of a kind are when there are no more than `MOST`."""
    one = ffi.new("void **")
    found = []
    for _ in range(MOST):
        check(make(one))
        found.append(one[0])
    for at in found:
        check(destroy(at))
    return found


class Live:
    """Counts all of this process, whoever made them."""

    def __init__(self) -> None:
        text, size = ffi.new("const char **"), ffi.new("size_t *")
        layouts = ffi.new("int64_t[]", [lib.INFINI_DTYPE_F32, 0] * 2)

        def make_descriptor(one: Any) -> int:
            place = ffi.cast("struct InfiniopDescriptor **", one)
            status: int = lib.infiniopCreateDescriptor(handle(CPU), place, size, b"rearrange", layouts, 4, 0)
            return status

        def make_graph(one: Any) -> int:
            status: int = lib.infiniopCreateGraph(handle(CPU), ffi.cast("infiniopGraph_t *", one))
            return status

        self._descriptors = _places(make_descriptor, lib.infiniopDestroyRearrangeDescriptor)
        self._graphs = _places(make_graph, lib.infiniopDestroyGraph)
        self._is_descriptor = lambda at: not lib.infiniopGetDescriptorPlan(at, text)
        self._is_graph = lambda at: not lib.infiniopGraphDescribe(at, text)

    def descriptors(self) -> int:
        return self._count(self._is_descriptor, self._descriptors)

    def graphs(self) -> int:
        return self._count(self._is_graph, self._graphs)

    def _count(self, is_live: Callable[[Any], bool], places: list[Any]) -> int:
        n = sum(map(is_live, places))
        assert n < MOST, "there may be more, elsewhere"
        return n
