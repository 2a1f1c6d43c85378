"""DLPack: what other libraries' tensors are, and Tensors for other libraries.

A capsule holds one C structure, of DLPack before 1.0 or since (https://dmlc.github.io/dlpack/latest). Reading
one leaves it as it is: whoever holds the capsule holds the memory, and letting it go gives the memory back.
New capsules are NumPy's, whose memory management is proven, with our element type and device written over
its own.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ._layout import MAX_RANK, row_major
from ._native import BYTE_POINTER, buffer, cast
from .device import CPU, Device, DeviceType
from .dtypes import DType
from .errors import (
    DeviceError,
    DTypeError,
    InfiniopError,
    NullPointerError,
    OperandError,
    ParamError,
    ShapeError,
    shown,
)

#: The newest version whose structure is known here; later minor versions keep it.
VERSION = (1, 3)
_READ_ONLY = 1  # of the flags

_NEW, _OLD = b"dltensor_versioned", b"dltensor"
# From the start of each structure: the tensor itself.
# data, device type and id, rank, type code, bits, lanes, shape, strides, offset
_TENSOR = struct.Struct("=QiiiBBHQQQ")
_TENSOR_IN_NEW = 32
_VERSION = struct.Struct("=II")
_FLAGS_IN_NEW, _FLAGS = 24, struct.Struct("=Q")
_DEVICE, _DTYPE = (8, struct.Struct("=ii")), (20, struct.Struct("=BBH"))  # from the start of the tensor

#: (code, bits): kDLInt, kDLUInt, kDLFloat, kDLBfloat, kDLComplex, kDLBool
_DTYPES = {
    DType.I8: (0, 8), DType.I16: (0, 16), DType.I32: (0, 32), DType.I64: (0, 64),
    DType.U8: (1, 8), DType.U16: (1, 16), DType.U32: (1, 32), DType.U64: (1, 64),
    DType.F16: (2, 16), DType.F32: (2, 32), DType.F64: (2, 64), DType.BF16: (4, 16),
    DType.C32: (5, 32), DType.C64: (5, 64), DType.C128: (5, 128), DType.BOOL: (6, 8),
}  # fmt: skip
_BY_CODE = {code: dtype for dtype, code in _DTYPES.items()}

#: kDLCPU, kDLCUDA; memory of kDLCUDAHost and kDLCUDAManaged is the host's, too.
_DEVICE_TYPES = {1: DeviceType.CPU, 2: DeviceType.NVIDIA, 3: DeviceType.CPU, 13: DeviceType.CPU}
_DEVICE_CODES = {DeviceType.CPU: 1, DeviceType.NVIDIA: 2}


class Contents(NamedTuple):
    """What a capsule describes; strides in bytes."""

    device: Device
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    address: int
    writable: bool


@cache
def _capsules() -> tuple[Any, Any]:
    """The interpreter's functions of capsules: is it valid under a name, and its pointer."""
    import ctypes  # slow to import, and needed only where a capsule is seen

    api = ctypes.PyDLL(None)  # the types of functions in ctypes.pythonapi are whoever set them last
    is_valid, get = api.PyCapsule_IsValid, api.PyCapsule_GetPointer
    is_valid.argtypes, is_valid.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_int
    get.argtypes, get.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_void_p
    return is_valid, get


def _structure(capsule: object) -> tuple[int, int]:
    """The address of the structure, and where in it the tensor is."""
    is_valid, get = _capsules()
    for name, tensor in ((_NEW, _TENSOR_IN_NEW), (_OLD, 0)):
        if is_valid(capsule, name):
            return get(capsule, name), tensor
    raise OperandError("gave no DLPack capsule, or one that was used before")


def _bytes(address: int, size: int) -> Any:
    return buffer(cast(BYTE_POINTER, address), size)


def device_of(code: int, index: int) -> Device:
    """The device of DLPack's numbers."""
    kind = _DEVICE_TYPES.get(code)
    if kind is None:
        raise DeviceError(f"is on device type {code} of DLPack, which this library does not know")
    return CPU if kind is DeviceType.CPU else Device(kind, index)


def device_code(device: Device) -> tuple[int, int]:
    """DLPack's numbers of a device."""
    code = _DEVICE_CODES.get(device.type)
    if code is None:
        raise DeviceError(f"DLPack has no number for {device}")
    return code, device.index


def capsule_of(source: Any, device: Device, stream: int | None) -> Any:
    """A capsule of an object with ``__dlpack__``, on its own memory."""
    given: dict[str, Any] = {} if device is CPU else {"stream": stream}
    try:
        return source.__dlpack__(max_version=VERSION, **given)
    except TypeError as error:
        # Before version 1.0 there was no max_version. Then it is the call that fails, without a step into the
        # method, or a wrapper hands on what was said of the argument; what else is wrong there stays wrong.
        trace = error.__traceback__
        if trace is not None and trace.tb_next is not None and "max_version" not in str(error):
            raise
        return source.__dlpack__(**given)


def asked(source: Any, method: str, ask: Callable[..., Any], *arguments: Any) -> Any:
    """What an object of another library answers; its own errors are told as ours."""
    try:
        return ask(*arguments)
    except InfiniopError:  # a Tensor's own
        raise
    except Exception as error:
        raise OperandError(
            f"is a {type(source).__name__} whose {method} failed: {type(error).__name__}: {error}"
        ) from error


def read(capsule: object) -> Contents:
    """What a capsule describes. Messages of what cannot be used begin with a verb."""
    start, tensor = _structure(capsule)
    writable = True
    if tensor:
        major, minor = _VERSION.unpack(_bytes(start, _VERSION.size))
        if major != VERSION[0]:
            raise ParamError(f"speaks DLPack {major}.{minor}, but this library {VERSION[0]}")
        writable = not _FLAGS.unpack(_bytes(start + _FLAGS_IN_NEW, _FLAGS.size))[0] & _READ_ONLY
    data, kind, index, rank, code, bits, lanes, shape_at, strides_at, offset = _TENSOR.unpack(
        _bytes(start + tensor, _TENSOR.size)
    )
    dtype = _BY_CODE.get((code, bits))
    if dtype is None or lanes != 1:
        raise DTypeError(
            f"has DLPack's element type of code {code}, {bits} bits and {lanes} lane(s), which is none of "
            "this library's"
        )
    if not 0 <= rank <= MAX_RANK:
        raise ShapeError(f"has {rank} dimensions, needs at most {MAX_RANK}")
    if rank and not shape_at:
        raise NullPointerError(f"has {rank} dimensions, but no shape")
    numbers = struct.Struct(f"={rank}q")
    shape = numbers.unpack(_bytes(shape_at, numbers.size)) if rank else ()
    if min(shape, default=0) < 0:
        raise ShapeError(f"has shape {shape}, but sizes must not be negative")
    itemsize = dtype.itemsize
    if strides_at and rank:
        strides = tuple(step * itemsize for step in numbers.unpack(_bytes(strides_at, numbers.size)))
    else:
        strides = row_major(shape, itemsize)
    address = data + offset if data else 0
    return Contents(device_of(kind, index), dtype, shape, strides, address, writable)


def _is_old(max_version: Any) -> bool:
    """Does a consumer know nothing of version 1.0?"""
    if max_version is None:
        return True
    if (
        not isinstance(max_version, (tuple, list))
        or len(max_version) != 2
        or not all(isinstance(number, int) for number in max_version)
    ):
        raise OperandError(f"__dlpack__: max_version is {shown(max_version)}, needs two ints, or None")
    return bool(max_version[0] < 1)


def export(memory: np.ndarray[Any, Any], dtype: DType, device: Device, max_version: Any) -> Any:
    """A capsule of `memory`: an array whose elements have the size of `dtype`, and whose bytes may be on any
    device.
    """
    code = _DTYPES.get(dtype)
    if code is None:
        raise DTypeError(f"__dlpack__: DLPack has no element type for {dtype}")
    try:
        capsule = memory.__dlpack__() if _is_old(max_version) else capsule_of(memory, CPU, None)
    except BufferError as error:  # read-only memory, of which old capsules cannot tell
        raise ParamError(
            f"__dlpack__: a tensor of {dtype} with shape {memory.shape} cannot be exported: {error}"
        ) from None
    start, tensor = _structure(capsule)
    for (at, form), values in ((_DEVICE, device_code(device)), (_DTYPE, (*code, 1))):
        _bytes(start + tensor + at, form.size)[:] = form.pack(*values)
    return capsule
