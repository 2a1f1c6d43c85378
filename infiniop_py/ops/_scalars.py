"""Scalars given by a caller."""

from __future__ import annotations

from numbers import Real
from typing import Any

from ..errors import OperandError, ParamError, shown

_NAN = float("nan")


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


def as_param(op: str, name: str, value: Any) -> float:
    """A scalar that a plan fixes, as a float. Each NaN is one object: a key of a cache is found where it is
    equal or the same, and no two NaN are equal.
    """
    number = as_float(op, name, value)
    return number if number == number else _NAN
