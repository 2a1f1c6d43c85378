"""Every error this package raises.

::

    InfiniopError ├── ParamError(ValueError)            a value out of its set, an overlap, a read-only
    output     BAD_PARAM │   └── NullPointerError              NULL where memory is needed
    NULL_POINTER ├── ShapeError(ValueError)            rank or sizes do not fit
    BAD_TENSOR_SHAPE ├── StrideError(ValueError)           strides the operator cannot take
    BAD_TENSOR_STRIDES ├── TensorIndexError(IndexError, ValueError)    an index or dimension out of range
    BAD_PARAM ├── OperandError(TypeError)           an argument of a kind that is not taken
    BAD_PARAM ├── DTypeError(TypeError)             an element type that is not taken, or mixed types
    BAD_TENSOR_DTYPE ├── DeviceError(RuntimeError)         no such device, or operands on two devices
    DEVICE_TYPE_NOT_SUPPORTED, │                                     DEVICE_NOT_FOUND, _NOT_INITIALIZED,
    _ARCHITECTURE_NOT_SUPPORTED ├── UnsupportedError(NotImplementedError)    legal, but this device has no
    code for it    NOT_IMPLEMENTED ├── WorkspaceError(RuntimeError)      the workspace is too small
    INSUFFICIENT_WORKSPACE ├── InternalError(RuntimeError)       a fault of the library, the driver or the
    system     INTERNAL_ERROR ├── OutOfMemoryError(MemoryError)     an allocation failed
    INTERNAL_ERROR ├── GraphError(RuntimeError)          recording or replaying out of order
    BAD_PARAM └── LibraryError(ImportError)         the native library cannot be used
    INTERNAL_ERROR

Each is also the built-in exception a NumPy user would catch. ``.status`` is the status the C interface uses
for the same fault. All of them can be pickled.
"""

from __future__ import annotations

from enum import IntEnum

__all__ = [
    "DTypeError",
    "DeviceError",
    "GraphError",
    "InfiniopError",
    "InternalError",
    "LibraryError",
    "NullPointerError",
    "OperandError",
    "OutOfMemoryError",
    "ParamError",
    "ShapeError",
    "Status",
    "StrideError",
    "TensorIndexError",
    "UnsupportedError",
    "WorkspaceError",
]


class Status(IntEnum):
    """The status codes of ``infinicore.h``."""

    SUCCESS = 0
    INTERNAL_ERROR = 1
    NOT_IMPLEMENTED = 2
    BAD_PARAM = 3
    NULL_POINTER = 4
    DEVICE_TYPE_NOT_SUPPORTED = 5
    DEVICE_NOT_FOUND = 6
    DEVICE_NOT_INITIALIZED = 7
    DEVICE_ARCHITECTURE_NOT_SUPPORTED = 8
    BAD_TENSOR_DTYPE = 10
    BAD_TENSOR_SHAPE = 11
    BAD_TENSOR_STRIDES = 12
    INSUFFICIENT_WORKSPACE = 13


class InfiniopError(Exception):
    """Base of all errors of this package; ``.status`` is the :class:`Status` of the fault."""

    status: int = Status.INTERNAL_ERROR

    def __init__(self, message: str = "", *, status: int | None = None) -> None:
        super().__init__(message)
        if status is not None:
            self.status = status


class ParamError(InfiniopError, ValueError):
    """A value out of its set, operands that overlap, or an output that cannot be written."""

    status = Status.BAD_PARAM


class NullPointerError(ParamError):
    """NULL where memory is needed."""

    status = Status.NULL_POINTER


class ShapeError(InfiniopError, ValueError):
    """Rank or sizes do not fit."""

    status = Status.BAD_TENSOR_SHAPE


class StrideError(InfiniopError, ValueError):
    """Strides the operator cannot take."""

    status = Status.BAD_TENSOR_STRIDES


class TensorIndexError(InfiniopError, IndexError, ValueError):
    """An index or a dimension out of range."""

    status = Status.BAD_PARAM


class OperandError(InfiniopError, TypeError):
    """An argument of a kind that is not taken."""

    status = Status.BAD_PARAM


class DTypeError(InfiniopError, TypeError):
    """An element type that is not taken, or operands of different types."""

    status = Status.BAD_TENSOR_DTYPE


class DeviceError(InfiniopError, RuntimeError):
    """No such device, a device that does not work, or operands on two devices."""

    status = Status.DEVICE_TYPE_NOT_SUPPORTED


class UnsupportedError(InfiniopError, NotImplementedError):
    """A legal request that this device has no code for."""

    status = Status.NOT_IMPLEMENTED


class WorkspaceError(InfiniopError, RuntimeError):
    """The workspace is smaller than the descriptor asked for."""

    status = Status.INSUFFICIENT_WORKSPACE


class InternalError(InfiniopError, RuntimeError):
    """A fault of the library, the driver or the system."""

    status = Status.INTERNAL_ERROR


class OutOfMemoryError(InfiniopError, MemoryError):
    """An allocation failed."""

    status = Status.INTERNAL_ERROR


class GraphError(InfiniopError, RuntimeError):
    """Recording or replaying out of order."""

    status = Status.BAD_PARAM


class LibraryError(InfiniopError, ImportError):
    """The native library was not found or cannot be used."""

    status = Status.INTERNAL_ERROR


_BY_STATUS: dict[int, type[InfiniopError]] = {
    Status.INTERNAL_ERROR: InternalError,
    Status.NOT_IMPLEMENTED: UnsupportedError,
    Status.BAD_PARAM: ParamError,
    Status.NULL_POINTER: NullPointerError,
    Status.DEVICE_TYPE_NOT_SUPPORTED: DeviceError,
    Status.DEVICE_NOT_FOUND: DeviceError,
    Status.DEVICE_NOT_INITIALIZED: DeviceError,
    Status.DEVICE_ARCHITECTURE_NOT_SUPPORTED: DeviceError,
    Status.BAD_TENSOR_DTYPE: DTypeError,
    Status.BAD_TENSOR_SHAPE: ShapeError,
    Status.BAD_TENSOR_STRIDES: StrideError,
    Status.INSUFFICIENT_WORKSPACE: WorkspaceError,
}


def from_status(status: int, message: str) -> InfiniopError:
    """Return (not raise) the exception for a native status."""
    return _BY_STATUS.get(status, InternalError)(message, status=status)
