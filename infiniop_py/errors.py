"""Every error this package raises.

::

    InfiniopError
    ├── ParamError(ValueError)                    BAD_PARAM: a wrong value, an overlap, a read-only output
    │   └── NullPointerError                      NULL_POINTER: NULL where memory is needed
    ├── ShapeError(ValueError)                    BAD_TENSOR_SHAPE: rank or sizes do not fit
    ├── StrideError(ValueError)                   BAD_TENSOR_STRIDES: strides the operator cannot take
    ├── TensorIndexError(IndexError, ValueError)  BAD_PARAM: an index or dimension out of range
    ├── OperandError(TypeError)                   BAD_PARAM: an argument of a kind that is not taken
    ├── DTypeError(TypeError)                     BAD_TENSOR_DTYPE: a type that is not taken, or mixed types
    ├── DeviceError(RuntimeError)                 DEVICE_...: no such device, or operands on two devices
    ├── UnsupportedError(NotImplementedError)     NOT_IMPLEMENTED: legal, but this device has no code for it
    ├── WorkspaceError(RuntimeError)              INSUFFICIENT_WORKSPACE: the workspace is too small
    ├── InternalError(RuntimeError)               INTERNAL_ERROR: a fault of the library, driver or system
    ├── OutOfMemoryError(MemoryError)             INTERNAL_ERROR: an allocation failed
    ├── GraphError(RuntimeError)                  BAD_PARAM: recording or replaying out of order
    └── LibraryError(ImportError)                 INTERNAL_ERROR: the native library cannot be used

Each is also the built-in exception a NumPy user would catch. ``.status`` is the status the C interface uses
for the same fault. All of them can be pickled. LibraryError is the one that comes from importing the package,
and so an ImportError; all others come from calls.
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


_LONGEST = 200  # characters of a value in a message


def shown(value: object) -> str:
    """What a message says of a caller's value: its repr, as far as it helps. Raises nothing, whatever the
    value is.
    """
    if isinstance(value, int) and value.bit_length() > 128:
        return f"an int of {value.bit_length()} bits"
    try:
        text = repr(value)
    except Exception:
        return f"a {type(value).__name__} without a repr"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text)} characters)"


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
