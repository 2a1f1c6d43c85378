"""Arrays of any library that speaks an exchange protocol: DLPack, or NumPy's or CUDA's array interface."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from .._layout import Layout, Shape, interned, row_major
from .._native import owning_pointer
from ..device import Device, DeviceType, device_scope, synchronize, thread
from ..dtypes import DType, from_numpy_dtype
from ..errors import GraphError, OperandError, ParamError
from ..tensor import Tensor, View, package_of, tensor_of
from ..tensor import allocate as allocate_tensor
from . import _numpy
from ._adapter import Adapter


def _dlpack_view(array: Any) -> View:
    tensor = tensor_of(array)
    device, layout, _ = tensor._view
    # Somebody else's capsule may be all that keeps the memory.
    return device, layout, owning_pointer(tensor.data_ptr, tensor)


def _dlpack_writable(array: Any) -> bool:
    return tensor_of(array).writable


def _from_dlpack(kind: type) -> Callable[[Any], Any] | None:
    """The function of the array's own library that takes a capsule."""
    package = sys.modules.get(package_of(kind))
    if package is not None and package_of(kind) in ("jax", "jaxlib"):
        package = sys.modules.get("jax.numpy")
    return getattr(package, "from_dlpack", None)


def dlpack(kind: type) -> Adapter:
    """The adapter of a class whose instances have ``__dlpack__``.

    Results are computed in a Tensor and handed to the class's library without a copy, where that has a
    ``from_dlpack``.
    """
    to_own = _from_dlpack(kind)

    def allocate(dtype: DType, shape: Shape, device: Device, op: str) -> Tensor:
        if to_own is not None and thread.recording is not None:
            raise GraphError(
                f"{op}: a new {kind.__name__} cannot be recorded, because it would be made of values that "
                "have not been computed yet; pass out=, or a Tensor among the inputs"
            )
        return allocate_tensor(dtype, shape, device, op)

    adapter = Adapter(_dlpack_view, _dlpack_writable, allocate, rank=1)
    return adapter if to_own is None else adapter._replace(finish=to_own)


def _interface_array(array: Any) -> np.ndarray[Any, Any]:
    made = np.asarray(array)
    if made.dtype.hasobject:
        raise OperandError(f"is a {type(array).__name__} of Python objects, needs numbers")
    return made


def _interface_view(array: Any) -> View:
    made = _interface_array(array)
    from_numpy_dtype(made.dtype, "is an array whose dtype")
    device, layout, _ = _numpy.view(made)
    return device, layout, owning_pointer(made.__array_interface__["data"][0], made)


#: Anything with ``__array_interface__``: results are NumPy arrays.
ARRAY_INTERFACE = Adapter(
    _interface_view,
    lambda array: _interface_array(array).flags.writeable,
    _numpy.allocate,
    rank=0,
)


def _cuda_interface(array: Any) -> tuple[Layout, int, bool]:
    described = array.__cuda_array_interface__
    if described.get("mask") is not None:
        raise OperandError("has a mask, which no operator here knows")
    dtype = from_numpy_dtype(np.dtype(described["typestr"]), "has elements whose dtype")
    shape = tuple(described["shape"])
    strides = described.get("strides")
    strides = row_major(shape, dtype.itemsize) if strides is None else tuple(strides)
    address, read_only = described["data"]
    return interned(dtype, shape, strides), address or 0, not read_only


def _cuda_view(array: Any) -> View:
    layout, address, _ = _cuda_interface(array)
    # The protocol does not say which device; arrays know it themselves.
    index = getattr(getattr(array, "device", None), "id", 0)
    device = Device(DeviceType.NVIDIA, index if isinstance(index, int) else 0)
    stream = array.__cuda_array_interface__.get("stream")
    if stream == 0:
        raise ParamError("names stream 0, which the CUDA array interface does not allow")
    if stream is not None:  # work that this library's streams know nothing of may still be going on there
        with device_scope(device):
            synchronize(device)
    return device, layout, owning_pointer(address, array)


def _cuda_allocate(dtype: DType, shape: Shape, device: Device, op: str) -> Tensor:
    return allocate_tensor(dtype, shape, device, op)


#: Anything with ``__cuda_array_interface__``: results are Tensors.
CUDA_ARRAY_INTERFACE = Adapter(_cuda_view, lambda array: _cuda_interface(array)[2], _cuda_allocate, rank=1)
