"""Makes the cffi binding from the public headers: ``python _cffi_build.py INCLUDE_DIR OUTPUT_DIR``.

Writes ``OUTPUT_DIR/_infiniop_cffi.py``, an out-of-line module in ABI mode: no C compiler is needed to make
it, and it imports in a few milliseconds. The headers are the only source of the declarations, so header and
binding cannot drift.

cffi reads C without a preprocessor. The one below knows what the headers use: comments, includes (dropped),
conditionals on defined names, and macros with and without parameters, ``##`` included.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import NamedTuple

HEADERS = ("infinicore.h", "infinirt.h", "infiniop.h", "infini_backend.h")
MODULE = "_infiniop_cffi"


class Macro(NamedTuple):
    """One ``#define``; ``params`` is None for a macro without a parameter list."""

    params: tuple[str, ...] | None
    body: str


def _strip_comments(text: str) -> str:
    return re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.DOTALL)


def _expand(text: str, macros: dict[str, Macro]) -> str:
    """Replace macros in `text` until nothing changes. Arguments hold no commas or parentheses in our
    headers.
    """

    def replace(match: re.Match[str]) -> str:
        macro = macros.get(match[1])
        if macro is None:
            return match[0]
        if macro.params is None:
            return macro.body + (match[2] or "")
        if match[2] is None:
            return match[0]
        arguments = [argument.strip() for argument in match[2].strip()[1:-1].split(",")]
        body = macro.body
        for param, argument in zip(macro.params, arguments, strict=True):
            body = re.sub(rf"\b{param}\b", argument, body)
        return re.sub(r"\s*##\s*", "", body)

    while True:
        expanded = re.sub(r"\b([A-Za-z_]\w*)\b(\s*\([^()]*\))?", replace, text)
        if expanded == text:
            return text
        text = expanded


def _condition(directive: str, rest: str, macros: dict[str, Macro]) -> bool:
    if directive == "if":
        match = re.fullmatch(r"defined\s*\(\s*(\w+)\s*\)", rest)
        if match is None:
            raise ValueError(f"cannot evaluate '#if {rest}': only defined(NAME) is understood")
        return match[1] in macros
    return (rest in macros) == (directive == "ifdef")


def preprocess(text: str, macros: dict[str, Macro]) -> str:
    """Return the declarations of one header; `macros` carries definitions from header to header."""
    out: list[str] = []
    active = [True]
    lines = iter(_strip_comments(text).replace("\\\n", " ").split("\n"))
    for line in lines:
        match = re.match(r"\s*#\s*(\w+)\s*(.*?)\s*$", line)
        if match is None:
            if all(active) and line.strip():
                out.append(_expand(line, macros))
            continue
        directive, rest = match[1], match[2]
        if directive in ("if", "ifdef", "ifndef"):
            active.append(_condition(directive, rest, macros))
        elif directive == "else":
            active[-1] = not active[-1]
        elif directive == "endif":
            active.pop()
        elif not all(active) or directive == "include":
            continue
        elif directive == "undef":
            macros.pop(rest, None)
        elif directive == "define":
            definition = re.match(r"(\w+)(?:\(([^)]*)\))?\s*(.*)$", rest)
            if definition is None:
                raise ValueError(f"cannot read '#define {rest}'")
            params = None if definition[2] is None else tuple(p.strip() for p in definition[2].split(","))
            macros[definition[1]] = Macro(params, definition[3])
        else:
            raise ValueError(f"unknown directive '#{directive}'")
    return "\n".join(out)


def declarations(include_dir: Path) -> str:
    """Return the declarations of all public headers in the form cffi reads."""
    macros: dict[str, Macro] = {}
    text = "\n".join(
        preprocess((include_dir / header).read_text(encoding="utf-8"), macros) for header in HEADERS
    )
    integers = [
        f"#define {name} {macro.body}"
        for name, macro in macros.items()
        if macro.params is None and re.fullmatch(r"\d+", macro.body)
    ]
    return "\n".join([*integers, text, ""])


def generate(include_dir: Path, output_dir: Path) -> Path:
    """Write the binding module and return its path."""
    from cffi import FFI  # only building needs the compiler half of cffi

    builder = FFI()
    builder.cdef(declarations(include_dir))
    builder.set_source(MODULE, None)
    output_dir.mkdir(parents=True, exist_ok=True)
    path = output_dir / f"{MODULE}.py"
    builder.emit_python_code(str(path))
    return path


def main(argv: list[str]) -> int:
    if len(argv) != 2:
        sys.stderr.write("usage: python _cffi_build.py INCLUDE_DIR OUTPUT_DIR\n")
        return 2
    generate(Path(argv[0]), Path(argv[1]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
