"""Arrays of libraries that do not exist: objects that speak one exchange protocol and nothing else, and say
whatever a test wants them to.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

import infiniop_py as ip

Array = np.ndarray[Any, Any]

_CODES = {
    "bool": (6, 8), "int8": (0, 8), "int16": (0, 16), "int32": (0, 32), "int64": (0, 64),
    "uint8": (1, 8), "uint16": (1, 16), "uint32": (1, 32), "uint64": (1, 64),
    "float16": (2, 16), "float32": (2, 32), "float64": (2, 64), "bfloat16": (4, 16),
    "complex64": (5, 64), "complex128": (5, 128),
}  # fmt: skip
CPU, CUDA = 1, 2  # kDLCPU, kDLCUDA


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Old(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class _New(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


_api = ctypes.PyDLL(None)  # of its own: JAX sets the argument types of those in ctypes.pythonapi
_DESTRUCTOR = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_new = _api.PyCapsule_New
_new.argtypes, _new.restype = (ctypes.c_void_p, ctypes.c_char_p, _DESTRUCTOR), ctypes.py_object
#: name -> (structures by address, how often one was released)
_alive: dict[int, tuple[Any, ...]] = {}
_NAMES = {True: b"dltensor_versioned", False: b"dltensor"}  # capsules do not own their names


# The capsule comes as a number: as an object it would be born again while it dies.
@_DESTRUCTOR
def _released(capsule: int) -> None:
    released, *_ = _alive.pop(capsule)
    released.append(capsule)


class Producer:
    """An object with ``__dlpack__`` on the memory of `array`; `fields` are written over the truth.

    `fields` are those of DLTensor, and major, minor and flags. Shape and strides are numbers (strides count
    elements), or None for NULL.
    """

    def __init__(
        self, array: Array, *, versioned: bool = True, read_only: bool = False, **fields: Any
    ) -> None:
        code, bits = _CODES[array.dtype.name]
        self._array = array
        self._versioned = versioned
        self._fields = {
            "data": array.__array_interface__["data"][0],
            "device_type": CPU,
            "device_id": 0,
            "ndim": array.ndim,
            "code": code,
            "bits": bits,
            "lanes": 1,
            "shape": array.shape,
            "strides": tuple(stride // array.itemsize for stride in array.strides),
            "byte_offset": 0,
            "major": 1,
            "minor": 0,
            "flags": int(read_only),
            **fields,
        }
        self.asked: list[dict[str, Any]] = []  # the arguments of each call of __dlpack__
        self.released: list[int] = []  # one entry for each capsule that went
        self.made = 0

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._fields["device_type"], self._fields["device_id"]

    def __dlpack__(self, **given: Any) -> Any:
        self.asked.append(given)
        return self.capsule()

    def capsule(self) -> Any:
        fields = dict(self._fields)
        numbers = []
        for name in ("shape", "strides"):
            values = fields[name]
            if values is not None:
                numbers.append((ctypes.c_int64 * max(len(values), 1))(*values))
                fields[name] = ctypes.addressof(numbers[-1])
        structure = _New() if self._versioned else _Old()
        for name, value in fields.items():
            if name in ("major", "minor", "flags"):
                if self._versioned:
                    setattr(structure, name, value)
            else:
                setattr(structure.tensor, name, value)
        capsule = _new(ctypes.addressof(structure), _NAMES[self._versioned], _released)
        _alive[id(capsule)] = (self.released, structure, numbers, self._array)
        self.made += 1
        return capsule


def old_style(array: Array) -> Any:
    """A producer of before DLPack 1.0: its ``__dlpack__`` knows no max_version."""

    class Old(Producer):
        def __dlpack__(self, stream: Any = None) -> Any:  # type: ignore[override]
            return super().__dlpack__()

    return Old(array, versioned=False)


class Interface:
    """An object with ``__array_interface__`` and nothing else."""

    def __init__(self, array: Array, **fields: Any) -> None:
        self._array = array
        self.__array_interface__ = {**array.__array_interface__, **fields}


class CudaInterface:
    """An object with ``__cuda_array_interface__`` and nothing else, on the memory of a Tensor."""

    def __init__(self, tensor: ip.Tensor, **fields: Any) -> None:
        self._tensor = tensor
        self.__cuda_array_interface__ = {
            "version": 3,
            "typestr": tensor.dtype.numpy.str,
            "shape": tensor.shape,
            "strides": tuple(stride * tensor.itemsize for stride in tensor.strides),
            "data": (tensor.data_ptr, not tensor.writable),
            "stream": None,
            **fields,
        }
