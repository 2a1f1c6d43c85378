"""Where a C or C++ compiler finds what it needs."""

from __future__ import annotations

from pathlib import Path

from ._native import folder
from .errors import LibraryError


def _with(path: Path, file: str) -> str:
    if not (path / file).is_file():
        raise LibraryError(f"only a part of the native library was copied: there is no {path / file}")
    return str(path)


def get_include() -> str:
    """Return the folder of the C headers, for a compiler's ``-I``.

    It is that of the library in use, as is get_library_dir(). LibraryError where only the library was copied.

    >>> import os
    >>> os.path.isfile(os.path.join(get_include(), "infiniop.h"))
    True
    """
    return _with(folder / "include", "infiniop.h")


def get_library_dir() -> str:
    """Return the folder of libinfiniop and libinfinirt, for a linker's ``-L`` and ``-rpath``.

    ``python -m infiniop_py config --cflags --libs`` prints both as flags.

    >>> import os
    >>> sorted(name for name in os.listdir(get_library_dir()) if name.startswith("libinfini"))
    ['libinfiniop.so', 'libinfinirt.so']
    """
    return str(folder)


def get_cmake_dir() -> str:
    """Return the folder of infiniopConfig.cmake."""
    return _with(folder / "cmake" / "infiniop", "infiniopConfig.cmake")


def get_pkgconfig_dir() -> str:
    """Return the folder of infiniop.pc."""
    return _with(folder / "pkgconfig", "infiniop.pc")
