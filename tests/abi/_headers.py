"""What the public headers declare, read from their text.

The tests that must hold for every function (NULL at each pointer, symbols, hostile arguments) walk over
this list, so a function added to a header is under test without another line here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

HEADERS = ("infinicore.h", "infinirt.h", "infiniop.h", "infini_backend.h")

_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*$", re.MULTILINE)
_FUNCTION = re.compile(r"\bINFINI_API\s+([\w\s*]+?)\b(\w+)\s*\(([^)]*)\)\s*;")
_ENUM = re.compile(r"\benum\s*\{([^}]*)\}")
_PARAMETER = re.compile(r"^(.*?)(\w+)$", re.DOTALL)


@dataclass(frozen=True)
class Parameter:
    """One parameter: its C type with single spaces ("const void *") and its name."""

    type: str
    name: str


@dataclass(frozen=True)
class Function:
    """One exported function of a header."""

    header: str
    returns: str
    name: str
    parameters: tuple[Parameter, ...]


def _spaced(text: str) -> str:
    return " ".join(text.replace("*", " * ").split()).replace("* *", "**")


def _parameter(text: str) -> Parameter:
    match = _PARAMETER.match(text.strip())
    assert match, f"a parameter without a name: {text!r}"
    return Parameter(_spaced(match[1]), match[2])


def _code(header: Path) -> str:
    return _DIRECTIVE.sub("", _COMMENT.sub(" ", header.read_text(encoding="utf-8")))


def functions(include: Path) -> list[Function]:
    """Every function that the headers in `include` declare, in their order."""
    found = []
    for header in HEADERS:
        for returns, name, parameters in _FUNCTION.findall(_code(include / header)):
            listed = () if parameters.strip() == "void" else tuple(map(_parameter, parameters.split(",")))
            found.append(Function(header, _spaced(returns), name, listed))
    return found


def enum_values(include: Path) -> dict[str, int]:
    """Every enum constant that is written with its value."""
    values: dict[str, int] = {}
    for header in HEADERS:
        for body in _ENUM.findall(_code(include / header)):
            for name, value in re.findall(r"(\w+)\s*=\s*(\d+)", body):
                values[name] = int(value)
    return values
