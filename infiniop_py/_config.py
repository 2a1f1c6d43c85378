"""``python -m infiniop_py config``: what a C or C++ compiler needs.

The flags come first, on one line, quoted for a shell::

    eval "cc program.c $(python -m infiniop_py config --cflags --libs) -o program"

Folders follow, each on a line of its own and unquoted::

    cmake -S . -B build -Dinfiniop_DIR="$(python -m infiniop_py config --cmakedir)"
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable

from . import _paths


def _cflags() -> list[str]:
    return [f"-I{_paths.get_include()}"]


def _libs() -> list[str]:
    folder = _paths.get_library_dir()
    # -Wl, takes words apart at commas.
    rpath = ["-Xlinker", "-rpath", "-Xlinker", folder] if "," in folder else [f"-Wl,-rpath,{folder}"]
    return [f"-L{folder}", *rpath, "-linfiniop", "-linfinirt"]


FLAGS: dict[str, tuple[Callable[[], list[str]], str]] = {
    "cflags": (_cflags, "flags to compile with"),
    "libs": (_libs, "flags to link with; the program will find the libraries where they are now"),
}
FOLDERS: dict[str, tuple[Callable[[], str], str]] = {
    "cmakedir": (_paths.get_cmake_dir, "folder of the CMake package"),
    "pkgconfigdir": (_paths.get_pkgconfig_dir, "folder of the pkg-config file"),
}


def main(argv: list[str]) -> int:
    """Print what was asked for; 2 if nothing was."""
    parser = argparse.ArgumentParser(
        prog="python -m infiniop_py config",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    asked: list[str] = []
    for name, (_, help_text) in {**FLAGS, **FOLDERS}.items():
        parser.add_argument(f"--{name}", dest="asked", action="append_const", const=name, help=help_text)
    asked = parser.parse_args(argv).asked or parser.error("nothing was asked for; see --help")
    words = [word for name in asked if name in FLAGS for word in FLAGS[name][0]()]
    if words:
        print(shlex.join(words))
    for name in asked:
        if name in FOLDERS:
            print(FOLDERS[name][0]())
    return 0
