"""Kinds of arrays that operators take, one adapter each.

An adapter is found by the exact type of an operand: one dictionary look-up. A type that is not in the table
is looked at once, and remembered if an adapter claims it; so no framework needs to be imported before one
of its arrays arrives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from .._layout import Shape
from ..device import Device
from ..dtypes import DType, from_numpy_dtype
from ..errors import DeviceError, OperandError, ParamError
from ..tensor import Tensor, View
from ..tensor import allocate as allocate_tensor
from . import _numpy


class Adapter(NamedTuple):
    """How operators see one kind of array."""

    view: Callable[[Any], View]
    writable: Callable[[Any], bool]
    allocate: Callable[[DType, Shape, Device, str], Any]
    rank: int  # a call with several kinds of inputs answers in the kind of the highest rank


NUMPY = Adapter(_numpy.view, _numpy.writable, _numpy.allocate, rank=0)
TENSOR = Adapter(attrgetter("_view"), attrgetter("_writable"), allocate_tensor, rank=1)

_ADAPTERS: dict[type, Adapter] = {Tensor: TENSOR, np.ndarray: NUMPY}
_VIEWS: dict[type, Callable[[Any], View]] = {kind: adapter.view for kind, adapter in _ADAPTERS.items()}

#: Asked in turn about a type that is not in the table.
_CLAIMS: tuple[tuple[Callable[[type], bool], Adapter], ...] = (
    (lambda kind: issubclass(kind, Tensor), TENSOR),
    (_numpy.is_array_type, NUMPY),
)


def _adapter(op: str, name: str, operand: object) -> Adapter:
    kind = type(operand)
    adapter = _ADAPTERS.get(kind)
    if adapter is None:
        adapter = next((adapter for claims, adapter in _CLAIMS if claims(kind)), None)
        if adapter is None:
            raise OperandError(f"{op}: {name} is a {kind.__name__}, needs a NumPy array or a Tensor")
        _VIEWS[kind] = adapter.view
        _ADAPTERS[kind] = adapter
    return adapter


def views(op: str, names: Sequence[str], operands: Sequence[Any]) -> list[View]:
    """Device, layout and pointer of every operand. Errors name the operand."""
    try:
        return [_VIEWS[type(operand)](operand) for operand in operands]
    except KeyError:
        pass  # a new kind, a new dtype, or a wrong one
    out = []
    for name, operand in zip(names, operands):
        adapter = _adapter(op, name, operand)
        if adapter is NUMPY:
            from_numpy_dtype(operand.dtype, f"{op}: dtype of {name}")
        out.append(adapter.view(operand))
    return out


def views3(op: str, names: Sequence[str], c: Any, a: Any, b: Any) -> Sequence[View]:
    """:func:`views` of three operands, for those to whom a loop is too slow."""
    try:
        return _VIEWS[type(c)](c), _VIEWS[type(a)](a), _VIEWS[type(b)](b)
    except KeyError:
        return views(op, names, (c, a, b))


def need_writable(op: str, name: str, operand: Any) -> None:
    """Refuse a read-only output."""
    if type(operand) is np.ndarray and operand.flags.writeable:
        return
    adapter = _ADAPTERS.get(type(operand)) or _adapter(op, name, operand)
    if not adapter.writable(operand):
        raise ParamError(f"{op}: {name} with shape {tuple(operand.shape)} is read-only, but it is an output")


def common_device(op: str, names: Sequence[str], operand_views: Sequence[View]) -> Device:
    """The one device of all operands."""
    device = operand_views[0][0]
    for view in operand_views:
        if view[0] is not device:
            where = ", ".join(f"{name} on {view[0]}" for name, view in zip(names, operand_views))
            raise DeviceError(f"Tensor devices mismatch {device} vs {view[0]} in {op}: {where}")
    return device


def allocate(op: str, inputs: Sequence[Any], dtype: DType, shape: Shape, device: Device) -> Any:
    """An array for a result of `op`, of the kind of the inputs (a Tensor if any of them is one)."""
    adapter = _ADAPTERS[type(inputs[0])]
    for operand in inputs:
        other = _ADAPTERS[type(operand)]
        if other.rank > adapter.rank:
            adapter = other
    return adapter.allocate(dtype, shape, device, op)


def as_tensor(operand: Any) -> Tensor:
    """The operand as a Tensor on the same memory."""
    return operand if isinstance(operand, Tensor) else Tensor.from_numpy(operand)
