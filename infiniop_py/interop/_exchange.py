"""Arrays of any library that speaks an exchange protocol: DLPack, or NumPy's or CUDA's array interface."""

from __future__ import annotations

import sys
from collections.abc import Callable
from operator import index
from typing import Any, NamedTuple

import numpy as np

from .._dlpack import asked
from .._layout import Shape, interned, need_memory, row_major
from .._native import owning_pointer
from ..device import Device, DeviceType, thread
from ..dtypes import DType, from_numpy_dtype
from ..errors import GraphError, OperandError, ParamError, ShapeError, StrideError, shown
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

    adapter = Adapter(_dlpack_view, _dlpack_writable, allocate, rank=1, stream=_library_stream(kind))
    return adapter if to_own is None else adapter._replace(finish=to_own)


def _library_stream(kind: type) -> Callable[[Any, Device], int | None]:
    """What asks the class's library for its current stream."""
    cupy = sys.modules.get("cupy")
    if cupy is None or not issubclass(kind, getattr(cupy, "ndarray", ())):
        return lambda array, device: None

    def stream(array: Any, device: Device) -> int:
        handle: int = cupy.cuda.get_current_stream(device.index).ptr
        return handle

    return stream


def _interface_array(array: Any) -> np.ndarray[Any, Any]:
    made: np.ndarray[Any, Any] = asked(array, "__array_interface__", np.asarray, array)
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


class _Described(NamedTuple):
    """What ``__cuda_array_interface__`` says."""

    numpy_dtype: np.dtype[Any]
    shape: Shape
    strides: tuple[int, ...] | None
    address: int
    writable: bool
    masked: bool
    stream: int | None


def _described(array: Any) -> _Described:
    said = array.__cuda_array_interface__
    strides, (address, read_only) = said.get("strides"), said["data"]
    return _Described(
        np.dtype(said["typestr"]),
        tuple([index(size) for size in said["shape"]]),
        None if strides is None else tuple([index(step) for step in strides]),
        index(address or 0),
        not read_only,
        said.get("mask") is not None,
        said.get("stream"),
    )


def _cuda_interface(array: Any) -> _Described:
    said: _Described = asked(array, "__cuda_array_interface__", _described, array)
    return said


def _cuda_view(array: Any) -> View:
    said = _cuda_interface(array)
    if said.masked:
        raise OperandError("has a mask, which no operator here knows")
    dtype = from_numpy_dtype(said.numpy_dtype, "has elements whose dtype")
    if said.strides is not None and len(said.strides) != len(said.shape):
        raise StrideError(f"has {len(said.strides)} strides for shape {said.shape}")
    if min(said.shape, default=0) < 0:
        raise ShapeError(f"has shape {said.shape}, but sizes must not be negative")
    strides = row_major(said.shape, dtype.itemsize) if said.strides is None else said.strides
    need_memory((dtype, said.shape, strides), said.address)
    layout = interned(dtype, said.shape, strides)
    # The protocol does not say which device; arrays know it themselves.
    number = getattr(getattr(array, "device", None), "id", 0)
    device = Device(DeviceType.NVIDIA, number if isinstance(number, int) else 0)
    _need_stream(said.stream)
    return device, layout, owning_pointer(said.address, array)


def _need_stream(stream: object) -> None:
    """Refuse what is not a number of a stream."""
    if stream is None:
        return
    if not isinstance(stream, int) or isinstance(stream, bool):
        raise OperandError(f"names stream {shown(stream)}, but the CUDA array interface needs a number")
    if not 0 < stream < 2**64:
        raise ParamError(f"names stream {shown(stream)}, which the CUDA array interface does not allow")


def _cuda_stream(array: Any, device: Device) -> int | None:
    stream = _cuda_interface(array).stream  # it may be another one than at the last call
    _need_stream(stream)
    return stream


def _cuda_allocate(dtype: DType, shape: Shape, device: Device, op: str) -> Tensor:
    return allocate_tensor(dtype, shape, device, op)


#: Anything with ``__cuda_array_interface__``: results are Tensors.
CUDA_ARRAY_INTERFACE = Adapter(
    _cuda_view, lambda array: _cuda_interface(array).writable, _cuda_allocate, rank=1, stream=_cuda_stream
)
