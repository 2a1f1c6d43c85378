"""The two libraries bound with ctypes from their headers, as a program outside this project would bind them.

Independent of the Python package: it only asks where the package's folder is and never imports it.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _headers

ROOT = Path(__file__).resolve().parents[2]

CPU, NVIDIA, QY = 0, 1, 9
DEVICE_TYPES = 10

SUCCESS, INTERNAL_ERROR, NOT_IMPLEMENTED, BAD_PARAM, NULL_POINTER = 0, 1, 2, 3, 4
DEVICE_TYPE_NOT_SUPPORTED, DEVICE_NOT_FOUND, DEVICE_NOT_INITIALIZED = 5, 6, 7
BAD_TENSOR_DTYPE, BAD_TENSOR_SHAPE, BAD_TENSOR_STRIDES, INSUFFICIENT_WORKSPACE = 10, 11, 12, 13
STATUSES = frozenset({0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13})

H2H, H2D, D2H, D2D = 0, 1, 2, 3

_SCALARS: dict[str, Any] = {
    "size_t": ctypes.c_size_t,
    "int": ctypes.c_int,
    "uint32_t": ctypes.c_uint32,
    "float": ctypes.c_float,
    "infiniStatus_t": ctypes.c_int,
    "infiniDevice_t": ctypes.c_int,
    "infiniDtype_t": ctypes.c_int,
    "infinirtMemcpyKind_t": ctypes.c_int,
    "infinirtStreamCaptureMode_t": ctypes.c_int,
}


def library_folder() -> Path:
    """The folder with both libraries and include/: that of INFINIOP_LIBRARY, else the package's own."""
    named = os.environ.get("INFINIOP_LIBRARY")
    if named:
        path = Path(named).resolve()
        return path if path.is_dir() else path.parent
    spec = importlib.util.find_spec("infiniop_py")
    entries = list(spec.submodule_search_locations or ()) if spec else []
    # Python may run from elsewhere than the clone's root, so the tree of these tests comes last.
    tried = [Path(entry) / "_lib" for entry in [*entries, str(ROOT / "infiniop_py")]]
    for folder in tried:
        if (folder / "libinfiniop.so").is_file():
            return folder
    raise FileNotFoundError(
        f"no libinfiniop.so in {', '.join(map(str, tried))}; run ./build_native.sh or pip install"
    )


def is_pointer(c_type: str) -> bool:
    return c_type not in _SCALARS


def restype(c_type: str) -> Any:
    return ctypes.c_char_p if c_type == "const char *" else _SCALARS[c_type]


class Library:
    """Every function of the headers, by name, with C types: pointers and handles are `void *`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.declared = _headers.functions(folder / "include")
        self._op = ctypes.CDLL(str(folder / "libinfiniop.so"))
        self._rt = ctypes.CDLL(str(folder / "libinfinirt.so"))
        self.functions: dict[str, Callable[..., Any]] = {}
        for declared in self.declared:
            home = self._op if declared.header == "infiniop.h" else self._rt
            function = getattr(home, declared.name)
            function.argtypes = [_SCALARS.get(p.type, ctypes.c_void_p) for p in declared.parameters]
            function.restype = restype(declared.returns)
            self.functions[declared.name] = function

    def __getattr__(self, name: str) -> Callable[..., Any]:
        try:
            return self.functions[name]
        except KeyError:
            raise AttributeError(name) from None

    def address(self, name: str) -> int:
        return ctypes.cast(self.functions[name], ctypes.c_void_p).value or 0

    def message(self) -> str:
        """This thread's last error message."""
        text: bytes = self.infiniopGetLastErrorMessage()
        return text.decode(errors="backslashreplace")

    def clear_message(self) -> None:
        """Empties the last error message, so that a following check sees what one call wrote."""
        self.infinirtSetLastError(SUCCESS, b"")


class BackendInfo(ctypes.Structure):
    """InfiniBackendInfo of infini_backend.h."""

    _fields_ = [
        ("available", ctypes.c_int),
        ("name", ctypes.c_char_p),
        ("version", ctypes.c_char_p),
        ("path", ctypes.c_char_p),
        ("reason", ctypes.c_char_p),
    ]


class FakeCounts(ctypes.Structure):
    """FakeCounts of native/tests/fake_backend.c: what of it is alive, and what it did."""

    _fields_ = [
        ("plans", ctypes.c_int64),
        ("blocks", ctypes.c_int64 * 2),
        ("bytes", ctypes.c_int64 * 2),
        ("host_blocks", ctypes.c_int64),
        ("streams", ctypes.c_int64),
        ("events", ctypes.c_int64),
        ("device_graphs", ctypes.c_int64),
        ("graph_execs", ctypes.c_int64),
        ("broken_guards", ctypes.c_int64),
        ("creates", ctypes.c_int64),
        ("runs", ctypes.c_int64 * 2),
        ("captures", ctypes.c_int64),
        ("launches", ctypes.c_int64),
        ("waits", ctypes.c_int64),
        ("host_waits", ctypes.c_int64),
    ]

    @classmethod
    def of(cls, plugin: ctypes.CDLL) -> FakeCounts:
        counts = cls()
        plugin.fakeBackendGetCounts(ctypes.byref(counts))
        return counts


_loaded: dict[Path, Library] = {}


def load(folder: Path | None = None) -> Library:
    """The libraries of `folder` (default: the ones under test), loaded once."""
    where = folder or library_folder()
    if where not in _loaded:
        _loaded[where] = Library(where)
    return _loaded[where]


def pointer() -> ctypes.c_void_p:
    """A fresh NULL pointer to receive a handle."""
    return ctypes.c_void_p()
