"""``Adapter``: how operators see one kind of array."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from .._layout import Layout, Shape
from ..device import Device
from ..dtypes import DType
from ..tensor import View


def _as_it_is(result: Any) -> Any:
    return result


class Adapter(NamedTuple):
    """How operators see one kind of array.

    ``view`` gives device, layout and pointer; the pointer keeps alive what the operand itself does not.
    Errors of it begin with a verb: the caller puts the operator and the operand's name before them.
    ``writable`` is asked about each output before it is written. ``allocate(dtype, shape, device, op)``
    makes what a result is computed in, and ``finish`` what the user gets of it afterwards. A call with
    several kinds of inputs answers in the kind of the highest ``rank``, the first one of several. Libraries
    that keep count of writes are told by ``count_write`` of each one that was done. ``memory`` gives what
    keeps the memory that an array has now, where arrays may be given other memory. ``stream`` gives the
    number of the stream on which an array's library works with it on a device, None if that is not known;
    Tensors need no such function, nor arrays that are never on a device. ``fresh(layout)`` makes a result
    of a row-major layout on the CPU, quickly, and gives it with its pointer; MemoryError and InfiniopError
    are for ``allocate`` to say what is wrong.
    """

    view: Callable[[Any], View]
    writable: Callable[[Any], bool]
    allocate: Callable[[DType, Shape, Device, str], Any]
    rank: int
    finish: Callable[[Any], Any] = _as_it_is
    count_write: Callable[[Any], None] | None = None
    memory: Callable[[Any], object] | None = None
    stream: Callable[[Any, Device], int | None] | None = None
    fresh: Callable[[Layout], tuple[Any, Any]] | None = None
