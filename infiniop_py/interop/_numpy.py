"""NumPy arrays as operands."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from .._layout import Layout, Shape, interned
from .._native import VOID_POINTER, cast, from_buffer
from ..device import CPU, Device, thread
from ..dtypes import BY_NUMPY, DType
from ..errors import OutOfMemoryError
from ..tensor import View

_transpose = np.ndarray.transpose  # a subclass may have another one, which copies


def view(array: np.ndarray[Any, Any]) -> View:
    """The array's device, layout and pointer. KeyError for dtypes the table does not have (yet)."""
    try:
        pointer = from_buffer(array)  # a fifth of the cost of the last way, but for C-contiguous arrays only
    except ValueError:
        if array.flags.f_contiguous:  # as the transposed weights of a layer are
            pointer = from_buffer(_transpose(array))
        else:
            pointer = cast(VOID_POINTER, array.__array_interface__["data"][0])
    return CPU, _layout(array.dtype, array.shape, array.strides), pointer


@lru_cache(maxsize=1 << 14)
def _layout(dtype: np.dtype[Any], shape: Shape, strides: tuple[int, ...]) -> Layout:
    return interned(BY_NUMPY[dtype], shape, strides)


def writable(array: np.ndarray[Any, Any]) -> bool:
    """May operators write to the array?"""
    return array.flags.writeable


def allocate(dtype: DType, shape: Shape, device: Device, what: str) -> np.ndarray[Any, Any]:
    """An array for a result of `what`."""
    assert device is CPU
    try:
        array: np.ndarray[Any, Any] = np.empty(shape, dtype.numpy)
    except (MemoryError, ValueError) as error:  # ValueError: more bytes than there are addresses
        raise OutOfMemoryError(f"{what}: cannot allocate {shape} of {dtype}: {error}") from None
    if thread.recording is not None:
        thread.recording._allocated(array, CPU, array.__array_interface__["data"][0], array.nbytes)
    return array


def is_array_type(kind: type) -> bool:
    """Is `kind` an array type whose memory says everything? A masked array's does not."""
    return issubclass(kind, np.ndarray) and not any(base.__name__ == "MaskedArray" for base in kind.__mro__)
