"""Kinds of arrays that operators take, one adapter each.

An adapter is found by the exact type of an operand: one dictionary look-up. A type that is not in the table
is looked at once, and remembered if an adapter claims it; so no framework needs to be imported before one
of its arrays arrives.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from .._dlpack import asked
from .._layout import Layout, Shape
from .._native import address, owning_pointer
from ..device import CPU, Device, Stream, get_stream, stream_at, thread
from ..dtypes import DType, from_numpy_dtype
from ..errors import DeviceError, InfiniopError, OperandError, ParamError
from ..tensor import Tensor, View, _Storage, allocate_as, borrowed, is_array_type, of_array, pinned
from ..tensor import allocate as allocate_tensor
from . import _exchange, _numpy, _torch
from ._adapter import Adapter
from ._streams import StreamOrder


def _fresh_tensor(layout: Layout) -> tuple[Tensor, Any]:
    tensor = allocate_as(layout, CPU, "empty")
    return tensor, tensor._pointer


NUMPY = Adapter(*(_numpy.view, _numpy.writable, _numpy.allocate), rank=0, memory=pinned, fresh=_numpy.fresh)
TENSOR = Adapter(
    *(attrgetter("_view"), attrgetter("_writable"), allocate_tensor), rank=2, fresh=_fresh_tensor
)

_ADAPTERS: dict[type, Adapter] = {}
_VIEWS: dict[type, Callable[[Any], View]] = {}
#: Of the kinds whose library keeps count of writes; empty until one of them arrives.
write_counts: dict[type, Callable[[Any], None]] = {}
#: For results on the CPU: how arrays of a kind are viewed, and what makes one of their results.
FRESH: dict[type, tuple[Callable[[Any], View], Callable[[Layout], tuple[Any, Any]]]] = {}


def _register(kind: type, adapter: Adapter) -> None:
    if adapter.count_write is not None:
        write_counts[kind] = adapter.count_write
    if adapter.fresh is not None:
        FRESH[kind] = adapter.view, adapter.fresh
    _VIEWS[kind] = adapter.view
    _ADAPTERS[kind] = adapter


_register(Tensor, TENSOR)
_register(np.ndarray, NUMPY)

#: What an instance may have though its class has it not.
_INSTANCES = (
    ("__cuda_array_interface__", _exchange.CUDA_ARRAY_INTERFACE),
    ("__array_interface__", _exchange.ARRAY_INTERFACE),
)


def _claimed(op: str, name: str, kind: type) -> Adapter | None:
    """The adapter of a type that is seen for the first time. Order: the cheapest way, then the most exact."""
    if issubclass(kind, Tensor):
        return TENSOR
    if is_array_type(kind):
        return NUMPY
    torch = sys.modules.get("torch")
    if torch is not None and issubclass(kind, getattr(torch, "Tensor", ())):
        _torch.need_memory(torch, op, name, kind)
        return _torch.adapter(torch)
    if hasattr(kind, "__cuda_array_interface__") and not hasattr(kind, "__dlpack__"):
        return _exchange.CUDA_ARRAY_INTERFACE
    if hasattr(kind, "__dlpack_device__") and not issubclass(kind, np.ndarray):
        return _exchange.dlpack(kind)
    return None


def _adapter(op: str, name: str, operand: object) -> Adapter:
    kind = type(operand)
    adapter = _ADAPTERS.get(kind)
    if adapter is None:
        adapter = _claimed(op, name, kind)
        if adapter is None:
            # These two may be the instance's alone, not its class's.
            if not isinstance(operand, (np.ndarray, np.generic, type)):
                for protocol, found in _INSTANCES:
                    with named(op, name):
                        if asked(operand, protocol, hasattr, operand, protocol):
                            return found
            raise OperandError(
                f"{op}: {name} is a {kind.__name__}, needs a NumPy array or a Tensor, or any array with "
                "__dlpack__"
            )
        _register(kind, adapter)
    return adapter


def views(op: str, names: Sequence[str], operands: Sequence[Any]) -> list[View]:
    """Device, layout and pointer of every operand. Errors name the operand."""
    try:
        return [_VIEWS[type(operand)](operand) for operand in operands]
    except (KeyError, InfiniopError):
        pass  # a new kind, a new dtype, or a wrong one
    out = []
    for name, operand in zip(names, operands):
        adapter = _adapter(op, name, operand)
        if adapter is NUMPY:
            from_numpy_dtype(operand.dtype, f"{op}: dtype of {name}")
        with named(op, name):
            out.append(adapter.view(operand))
    return out


@contextmanager
def named(op: str, name: str) -> Iterator[None]:
    """Puts the operator and the operand before the messages of adapters."""
    try:
        yield
    except InfiniopError as error:
        raise type(error)(f"{op}: {name} {error}", status=error.status) from error.__cause__


def views3(op: str, names: Sequence[str], c: Any, a: Any, b: Any) -> Sequence[View]:
    """:func:`views` of three operands, for those to whom a loop is too slow."""
    try:
        return _VIEWS[type(c)](c), _VIEWS[type(a)](a), _VIEWS[type(b)](b)
    except (KeyError, InfiniopError):
        return views(op, names, (c, a, b))


def need_writable(op: str, name: str, operand: Any) -> None:
    """Refuse a read-only output."""
    if type(operand) is np.ndarray and operand.flags.writeable:
        return
    adapter = _ADAPTERS.get(type(operand)) or _adapter(op, name, operand)
    if not adapter.writable(operand):
        with named(op, name):
            shape = adapter.view(operand)[1][1]
        raise ParamError(f"{op}: {name} with shape {shape} is read-only, but it is an output")


def count_writes(outputs: Iterable[Any]) -> None:
    """Tell the libraries that keep count of it that arrays of theirs were written."""
    for operand in outputs:
        count = write_counts.get(type(operand))
        if count is not None:
            count(operand)


def keeping(operand: Any, pointer: Any) -> Any:
    """An operand's pointer, for those who use it later: together they keep the memory it points to."""
    adapter = _ADAPTERS.get(type(operand))
    if adapter is None or adapter.memory is None:
        return pointer
    return owning_pointer(address(pointer), adapter.memory(operand))


def stream_sources(operands: Iterable[Any]) -> list[Any]:
    """Those of some operands, or of what keeps their memory, that say all there is to know of their streams:
    one of each kind, and every array that names a stream itself. None of them if all are Tensors.
    """
    found: dict[object, Any] = {}
    for operand in operands:
        kind = Tensor if isinstance(operand, _Storage) else type(operand)
        adapter = _ADAPTERS.get(kind)
        names_stream = adapter is None or adapter is _exchange.CUDA_ARRAY_INTERFACE
        found.setdefault(id(operand) if names_stream else kind, operand)
    return list(found.values()) if found.keys() - {Tensor} else []


def stream_order(op: str, device: Device, operands: Iterable[Any]) -> StreamOrder:
    """The order in which a call on a device with these operands runs."""
    handles: list[int | None] = []
    has_tensors = False
    for operand in stream_sources(operands):
        if isinstance(operand, (Tensor, _Storage)):
            has_tensors = True
            continue
        adapter = _ADAPTERS.get(type(operand)) or _adapter(op, "operand", operand)
        assert adapter.stream is not None  # or it would be on the CPU
        with named(op, "operand"):
            handles.append(adapter.stream(operand, device))
    return StreamOrder(device, handles, has_tensors)


def one_stream(device: Device, operands: Sequence[Any]) -> Stream | None:
    """The stream of a call on a device that has no other one to wait for, because its operands are Tensors
    alone or of one library. None where that takes more than a look: then :func:`stream_order` knows.
    """
    adapter = _ADAPTERS.get(type(operands[0]))
    for operand in operands:
        if _ADAPTERS.get(type(operand)) is not adapter:
            return None
    own = thread.streams.get(device) or get_stream(device)
    if adapter is TENSOR:
        return own
    if adapter is None or adapter is _exchange.CUDA_ARRAY_INTERFACE or adapter.stream is None:
        return None
    handle = adapter.stream(operands[0], device)
    if handle == own.handle:
        return own
    return stream_at(device, handle) if own._is_implicit and handle is not None else None


def common_device(op: str, names: Sequence[str], operand_views: Sequence[View]) -> Device:
    """The one device of all operands."""
    device = operand_views[0][0]
    for view in operand_views:
        if view[0] is not device:
            where = ", ".join(f"{name} on {view[0]}" for name, view in zip(names, operand_views))
            raise DeviceError(f"Tensor devices mismatch {device} vs {view[0]} in {op}: {where}")
    return device


class Result(NamedTuple):
    """What a result is computed in, and how the user gets it."""

    operand: Any
    finish: Callable[[Any], Any]


def allocate(op: str, inputs: Sequence[Any], dtype: DType, shape: Shape, device: Device) -> Result:
    """A result of `op`, of the kind of the inputs (a Tensor if any of them is one)."""
    first = inputs[0]
    adapter = _ADAPTERS.get(type(first)) or _adapter(op, "input", first)
    for operand in inputs[1:]:
        if type(operand) is not type(first):
            other = _ADAPTERS.get(type(operand)) or _adapter(op, "input", operand)
            if other.rank > adapter.rank:
                adapter = other
    return Result(adapter.allocate(dtype, shape, device, op), adapter.finish)


def as_tensor(op: str, name: str, operand: Any) -> Tensor:
    """An operand of `op` as a Tensor on the same memory."""
    if isinstance(operand, Tensor):
        return operand
    adapter = _adapter(op, name, operand)
    if adapter is NUMPY:
        return of_array(op, name, operand)
    with named(op, name):
        device, layout, pointer = adapter.view(operand)
    return borrowed(device, layout, pointer, (operand, pointer), adapter.writable(operand))


def knows(operand: object) -> bool:
    """May the operand be computed with?"""
    try:
        _adapter("", "", operand)
    except InfiniopError:
        return False
    return True
