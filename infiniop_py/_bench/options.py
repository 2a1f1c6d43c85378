"""What the commands ask of their options alike. All of it is asked before anything is measured."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeAlias

NEEDS_PLOT = "--plot needs matplotlib: pip install 'infiniop_py[plot]'"

#: A file that may be wanted, and what writes it.
Output: TypeAlias = "tuple[str | None, Callable[[str], object]]"


def as_threads(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 4096:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of threads")
    return int(text)


def as_times(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no number of times")
    return int(text)


def as_seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds")
    return value


# ---- files -------------------------------------------------------------------------------------------------


def new_file(text: str) -> str:
    """A file that can be written. One that was not there is not there afterwards either."""
    path = os.path.realpath(text)  # a link to nothing can be written through, but not be made anew
    exists = os.path.exists(path)
    try:
        if exists and not os.path.isfile(path) and not os.path.isdir(path):
            if not os.access(path, os.W_OK):  # a pipe would wait to be opened
                raise PermissionError(0, "Permission denied")
            return text
        with open(path, "ab" if exists else "xb"):
            pass
        if not exists:
            os.remove(path)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text!r} cannot be written: {error.strerror}") from None
    return text


def can_plot() -> bool:
    """Is matplotlib installed?"""
    return find_spec("matplotlib") is not None


def picture(text: str) -> str:
    """A file that can be written, of a kind that matplotlib draws if it is installed."""
    if can_plot():
        canvas: Any = import_module("matplotlib.backend_bases").FigureCanvasBase
        known = sorted("." + kind for kind in canvas.get_supported_filetypes())
        if os.path.splitext(text)[1].lower() not in known:
            raise argparse.ArgumentTypeError(f"{text!r} is no picture; it needs one of {', '.join(known)}")
    return new_file(text)


def write_all(outputs: Iterable[Output]) -> int:
    """Write the files that are wanted; returns the exit status. One that cannot be written is told, and the
    others are.
    """
    status = 0
    for path, write in outputs:
        if path is None:
            continue
        try:
            write(path)
        except Exception as error:  # matplotlib's may be any
            reason = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
            print(f"{path} is not written: {reason}", file=sys.stderr)
            status = 1
    return status
