"""Names of files given by a caller."""

from __future__ import annotations

import os
from typing import Any

from .errors import OperandError, ParamError, shown


def as_path(op: str, path: Any, name: str = "path") -> str:
    """A path as text. A number is none: it would stand for a file that is open."""
    try:
        text = os.fsdecode(path)
    except TypeError:
        raise OperandError(f"{op}: {name} is {shown(path)}, needs a str or a path object") from None
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        raise ParamError(f"{op}: {name} is {shown(text)}, which no file can be called") from None
    if "\0" in text:
        raise ParamError(f"{op}: {name} is {shown(text)}, which has a null character")
    return text
