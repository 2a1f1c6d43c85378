"""The one table of element types."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from .errors import DTypeError, OperandError, shown

__all__ = ["DType", "as_dtype"]


class DType:
    """One element type: ``name``, ``code`` (of ``infinicore.h``), ``itemsize`` and ``alignment`` in bytes
    and, where there is one, ``numpy``.

    The types are attributes of the class and exist once each, so they may be compared with ``is``.

    >>> DType.BF16.itemsize, DType.F32.numpy
    (2, dtype('float32'))
    """

    __slots__ = ("_numpy", "alignment", "code", "itemsize", "name")

    name: str
    code: int
    itemsize: int
    alignment: int
    _numpy: np.dtype[Any] | None

    BYTE: ClassVar[DType]
    BOOL: ClassVar[DType]
    I8: ClassVar[DType]
    I16: ClassVar[DType]
    I32: ClassVar[DType]
    I64: ClassVar[DType]
    U8: ClassVar[DType]
    U16: ClassVar[DType]
    U32: ClassVar[DType]
    U64: ClassVar[DType]
    F8: ClassVar[DType]
    F16: ClassVar[DType]
    F32: ClassVar[DType]
    F64: ClassVar[DType]
    C16: ClassVar[DType]
    C32: ClassVar[DType]
    C64: ClassVar[DType]
    C128: ClassVar[DType]
    BF16: ClassVar[DType]

    def __init__(self) -> None:
        raise OperandError("DType() makes nothing: the element types are DType.F32 and its likes")

    @classmethod
    def _make(cls, name: str, code: int, itemsize: int, numpy_name: str | None) -> DType:
        self = object.__new__(cls)
        self.name = name
        self.code = code
        self.itemsize = itemsize
        # A complex number is aligned like its parts.
        self.alignment = itemsize // 2 if name.startswith("C") else itemsize
        self._numpy = None if numpy_name is None else np.dtype(numpy_name)
        return self

    @property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy dtype. DTypeError where there is none, or where BF16 misses the package that defines
        it.
        """
        if self._numpy is None:
            if self is not DType.BF16:
                raise DTypeError(f"{self.name} has no NumPy dtype")
            try:
                import ml_dtypes  # optional, and only BF16 needs it
            except ImportError:
                raise DTypeError(
                    "BF16 needs the package ml_dtypes to become a NumPy array: pip install "
                    "'infiniop_py[bf16]'"
                ) from None
            self._numpy = np.dtype(ml_dtypes.bfloat16)
            BY_NUMPY[self._numpy] = self
        return self._numpy

    @property
    def is_float(self) -> bool:
        """Is it one of the types gemm and add_rms_norm compute with?"""
        return self in _FLOATS

    def __repr__(self) -> str:
        return f"DType.{self.name}"

    def __str__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Any, ...]:
        return as_dtype, (self.name,)


#        name   code  bytes  NumPy
_ROWS = (
    ("BYTE",   1,  1, None),
    ("BOOL",   2,  1, "bool"),
    ("I8",     3,  1, "int8"),
    ("I16",    4,  2, "int16"),
    ("I32",    5,  4, "int32"),
    ("I64",    6,  8, "int64"),
    ("U8",     7,  1, "uint8"),
    ("U16",    8,  2, "uint16"),
    ("U32",    9,  4, "uint32"),
    ("U64",   10,  8, "uint64"),
    ("F8",    11,  1, None),
    ("F16",   12,  2, "float16"),
    ("F32",   13,  4, "float32"),
    ("F64",   14,  8, "float64"),
    ("C16",   15,  2, None),
    ("C32",   16,  4, None),
    ("C64",   17,  8, "complex64"),
    ("C128",  18, 16, "complex128"),
    ("BF16",  19,  2, None),
)  # fmt: skip

_BY_NAME = {row[0]: DType._make(*row) for row in _ROWS}
for _name, _dtype in _BY_NAME.items():
    setattr(DType, _name, _dtype)
_FLOATS = frozenset((DType.F16, DType.BF16, DType.F32, DType.F64))

#: NumPy dtype -> DType. Types that are not here are asked of from_numpy_dtype, which knows why.
BY_NUMPY: dict[np.dtype[Any], DType] = {
    dtype._numpy: dtype for dtype in _BY_NAME.values() if dtype._numpy is not None
}


def all_dtypes() -> Iterator[DType]:
    """Every element type, in the order of its code."""
    return iter(_BY_NAME.values())


def from_numpy_dtype(dtype: np.dtype[Any], what: str = "dtype") -> DType:
    """Return the DType of a NumPy dtype; DTypeError says what is wrong with `what` otherwise."""
    found = BY_NUMPY.get(dtype)
    if found is not None:
        return found
    # ml_dtypes' bfloat16 has kind 'V' and a typestring like any 2-byte record: only its name tells.
    if dtype.name == "bfloat16" and dtype.itemsize == DType.BF16.itemsize and dtype.fields is None:
        BY_NUMPY[dtype] = DType.BF16
        return DType.BF16
    if not dtype.isnative:
        raise DTypeError(
            f"{what} is {dtype.str!r}, which is not in this machine's byte order; convert it with "
            "x.astype(x.dtype.newbyteorder('='))"
        )
    raise DTypeError(f"{what} is {dtype}, which is no element type of this library ({', '.join(_BY_NAME)})")


def as_dtype(dtype: Any, op: str = "") -> DType:
    """Return the DType for a DType, one of its names ("F32", "BF16"), "bfloat16", or anything
    ``numpy.dtype`` takes but None, which is float64 there and F32, the default, here.

    >>> as_dtype("F16"), as_dtype("float16"), as_dtype(float)
    (DType.F16, DType.F16, DType.F64)
    """
    if isinstance(dtype, DType):
        return dtype
    if isinstance(dtype, str):
        if dtype in _BY_NAME:
            return _BY_NAME[dtype]
        if dtype == "bfloat16":
            return DType.BF16
    try:
        if dtype is None:
            raise TypeError  # NumPy takes it for float64
        parsed = np.dtype(dtype)
    except (TypeError, ValueError, SyntaxError):
        raise DTypeError(
            f"{_of(op)} is {shown(dtype)}; needs one of {', '.join(_BY_NAME)} or a NumPy dtype"
        ) from None
    return BY_NUMPY.get(parsed) or from_numpy_dtype(parsed, _of(op))


def _of(op: str) -> str:
    return f"{op}: dtype" if op else "dtype"
