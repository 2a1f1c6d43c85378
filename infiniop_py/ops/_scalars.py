"""Scalars given by a caller."""

from __future__ import annotations

from numbers import Real
from typing import Any

from ..errors import OperandError, ParamError, shown


def as_float(op: str, name: str, value: Any) -> float:
    """A real number as a float."""
    if type(value) is float:
        return value
    if not isinstance(value, Real):
        raise OperandError(f"{op}: {name} is {shown(value)} ({type(value).__name__}), needs a real number")
    try:
        return float(value)
    except OverflowError:
        raise ParamError(f"{op}: {name} is {shown(value)}, needs a number in the range of F64") from None
