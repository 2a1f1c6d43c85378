"""NumPy arrays as operands."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._layout import Layout, Shape, interned
from .._native import from_buffer
from ..device import CPU, Device, thread
from ..dtypes import BY_NUMPY, DType
from ..errors import OutOfMemoryError
from ..tensor import View

# A subclass may have others, which copy, or say something else.
_transpose, _getitem, _flags = np.ndarray.transpose, np.ndarray.__getitem__, np.ndarray.flags.__get__


def view(array: np.ndarray[Any, Any]) -> View:
    """The array's device, layout and pointer. KeyError for dtypes the table does not have (yet)."""
    try:
        layout, odd = _known[array.dtype, array.shape, array.strides]
    except KeyError:
        layout, odd = _meet(array)
    if not odd:
        return CPU, layout, from_buffer(array)
    if odd == _F_CONTIGUOUS:  # as the transposed weights of a layer are
        return CPU, layout, from_buffer(_transpose(array))
    # What has no elements is contiguous and begins where the array does; __array_interface__ is slower.
    return CPU, layout, from_buffer(_getitem(array, _NO_ELEMENTS))


_F_CONTIGUOUS, _NOT_CONTIGUOUS = 1, 2
_NO_ELEMENTS = slice(0, 0)
#: Of arrays met before, by dtype, shape and strides: layout, and 0 or what they are if not C-contiguous.
_known: dict[Any, tuple[Layout, int]] = {}
_MOST_KNOWN = 1 << 14


def _meet(array: np.ndarray[Any, Any]) -> tuple[Layout, int]:
    key = array.dtype, array.shape, array.strides
    flags = _flags(array)
    odd = 0 if flags.c_contiguous else _F_CONTIGUOUS if flags.f_contiguous else _NOT_CONTIGUOUS
    found = interned(BY_NUMPY[array.dtype], array.shape, array.strides), odd
    if len(_known) >= _MOST_KNOWN:
        _known.clear()
    _known[key] = found
    return found


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


def fresh(layout: Layout) -> tuple[np.ndarray[Any, Any], Any]:
    """An array of a row-major layout, and its pointer. MemoryError."""
    dtype, shape, _ = layout
    array: np.ndarray[Any, Any] = np.empty(shape, dtype.numpy)
    return array, from_buffer(array)
