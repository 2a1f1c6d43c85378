"""Find and open the native libraries; the only module that knows cffi.

The libraries are looked for in this order, and the first that passes its checks is used:

1. ``INFINIOP_LIBRARY``: an absolute path of ``libinfiniop.so`` or of its folder. When set, nothing else is
   tried. It is ignored where Python ignores its own environment variables (``-E``, ``-I``), as are plugins
   that the environment names, and in setuid processes.
2. ``_lib`` in every folder of ``infiniop_py.__path__``. An editable install has two, the source tree's and
   its own; the one built last comes first, whether it was by build_native.sh or by pip.
3. ``_lib`` of the installed distribution, for a Python that runs in the root of a clone without an own build.
4. the dynamic linker's search path.

Beside the library lies ``_infiniop_cffi.py``, generated from the headers of the same build.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from operator import is_
from pathlib import Path
from typing import Any, NamedTuple

from . import _environment, errors

ABI_VERSION = 1
_BINDING = "_infiniop_cffi"
_SUFFIX = ".dylib" if sys.platform == "darwin" else ".so"
_LIBRARY = f"libinfiniop{_SUFFIX}"
_RUNTIME = f"libinfinirt{_SUFFIX}"
_VARIABLE = "INFINIOP_LIBRARY"
_REMEDY = (
    "Build it with './build_native.sh' in the root of the clone, or install the package with 'pip install .' "
    f"(a C++ compiler is needed), or set {_VARIABLE} to the absolute path of a folder that holds {_LIBRARY}."
)


_CUT_SHORT = "was cut short: its ELF header promises more than it holds"


class _Rejected(Exception):
    """Why one place does not serve."""


class _Opened(NamedTuple):
    folder: Path
    ffi: Any
    lib: Any
    version: str


def _named_folder(value: str) -> Path:
    path = Path(value)
    if not path.is_absolute():
        raise _Rejected(f"{_VARIABLE} is not an absolute path")
    if path.is_dir():
        return path
    if path.name != _LIBRARY:
        raise _Rejected(f"{_VARIABLE} names neither a folder nor a file called {_LIBRARY}")
    return path.parent


def _system_folder() -> Path:
    """Where the dynamic linker finds the library. Never the current directory."""
    import ctypes  # a last resort, not worth its import time before

    entries = os.environ.get("LD_LIBRARY_PATH", "")
    if entries and not all(os.path.isabs(entry) for entry in entries.split(":")):
        raise _Rejected("not tried: LD_LIBRARY_PATH has an entry that is not absolute")
    for entry in filter(None, entries.split(":")):
        _need_usable(Path(entry))
    try:
        ctypes.CDLL(_LIBRARY)
    except OSError as error:
        raise _Rejected(str(error)) from None
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        maps = ""
    for line in maps.splitlines():
        if line.endswith("/" + _LIBRARY):
            return Path("/" + line.split(" /", 1)[1]).parent
    raise _Rejected("the dynamic linker opened it, but its folder cannot be found out")


def _built(folder: Path) -> float:
    try:
        return (folder / _LIBRARY).stat().st_mtime
    except OSError:
        return 0.0


def _places() -> Iterator[tuple[str, Any]]:
    """Yield (what to call the place in a message, a function that returns its folder)."""
    if value := _environment.variable(_VARIABLE):
        yield f"{_VARIABLE}={value}", lambda: _named_folder(value)
        return
    own = [Path(os.path.abspath(entry), "_lib") for entry in sys.modules[__package__].__path__]
    for folder in sorted(own, key=_built, reverse=True):
        yield str(folder), lambda folder=folder: folder
    from importlib import metadata  # slow to import and needed only where the package's own _lib is empty

    try:
        located = metadata.distribution("infiniop_py").locate_file("infiniop_py/_lib")
    except metadata.PackageNotFoundError:
        pass
    else:
        folder = Path(os.path.abspath(str(located)))
        if folder not in own:
            yield f"{folder} (the installed distribution)", lambda: folder
    yield f"{_LIBRARY} (the dynamic linker's search path)", _system_folder


def _load_binding(folder: Path) -> Any:
    path = folder / f"{_BINDING}.py"
    if not path.is_file():
        raise _Rejected(f"{path.name}, the binding of this build, is missing beside the library")
    spec = importlib.util.spec_from_loader(
        f"{__package__}._lib.{_BINDING}", importlib.machinery.SourceFileLoader(_BINDING, str(path))
    )
    assert spec is not None and spec.loader is not None
    spec.loader.name = spec.name  # type: ignore[attr-defined]
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        return module.ffi
    except Exception as error:
        raise _Rejected(f"{path.name} cannot be imported: {error}") from None


def _machine(head: bytes) -> int:
    """What processor an ELF file is for."""
    return int.from_bytes(head[18:20], "little" if head[5] == 1 else "big")


def _defect(path: Path) -> str:
    """What the linker would not say, or not survive, of an ELF file; "" for nothing. It judges the others."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(64)
        if head[:4] != b"\x7fELF":
            return ""
        if len(head) < 64:
            return _CUT_SHORT
        with suppress(OSError), open("/proc/self/exe", "rb") as python:
            needed = _machine(python.read(20))
            if _machine(head) != needed:
                return f"is for another processor: its ELF machine is {_machine(head)}, needed {needed}"
        order = "<" if head[5] == 1 else ">"
        # where the header has the table's place and its entries' size and number; where an entry has its
        # segment's offset and size
        word, place, entries, fields = ("Q", 32, 54, (8, 32)) if head[4] == 2 else ("I", 28, 42, (4, 16))
        (start,) = struct.unpack_from(order + word, head, place)
        each, count = struct.unpack_from(order + "HH", head, entries)
        if start + each * count > size:
            return _CUT_SHORT
        file.seek(start)
        table = file.read(each * count)
    numbers = (
        [struct.unpack_from(order + word, table, i * each + at)[0] for at in fields] for i in range(count)
    )
    return "" if all(sum(segment) <= size for segment in numbers) else _CUT_SHORT


def _need_usable(folder: Path) -> None:
    """Refuse libraries that were cut short: opening one ends the process without a word. And those for other
    processors, of which the linker says that they do not exist.
    """
    for name in (_LIBRARY, _RUNTIME):
        path = folder / name
        try:
            defect = _defect(path) if path.is_file() else ""
        except OSError as error:
            raise _Rejected(f"{path.name} cannot be read: {error}") from None
        if defect:
            raise _Rejected(f"{path.name} {defect}")


def _open(folder: Path) -> _Opened:
    path = folder / _LIBRARY
    if not path.is_file():
        raise _Rejected("no such file")
    if not (folder / _RUNTIME).is_file():  # the linker would look for one elsewhere
        raise _Rejected(f"{_RUNTIME} is missing beside it")
    _need_usable(folder)
    ffi = _load_binding(folder)
    # NODELETE: threads of the library may outlive the module that opened it.
    flags = ffi.RTLD_NOW | ffi.RTLD_LOCAL | getattr(ffi, "RTLD_NODELETE", 0)
    try:
        # The one of the same build, first: the linker would prefer one in LD_LIBRARY_PATH.
        ffi.dlopen(str(folder / _RUNTIME), flags)
        lib = ffi.dlopen(str(path), flags)
    except OSError as error:
        raise _Rejected(str(error)) from None
    abi = ffi.new("int *")
    version = ffi.new("const char **")
    try:
        lib.infiniopGetVersion(abi, version)
    except (AttributeError, ffi.error):
        raise _Rejected("it has no infiniopGetVersion: it is another library, or far too old") from None
    text = ffi.string(version[0]).decode("ascii", "replace")
    for what, number in (("library", abi[0]), ("binding", lib.INFINIOP_ABI_VERSION)):
        if number != ABI_VERSION:
            raise _Rejected(
                f"the {what} (version {text}) has interface number {number}, but this package needs "
                f"{ABI_VERSION}: "
                "they are of different versions"
            )
    if sys.flags.ignore_environment:
        lib.infinirtIgnoreBackendPath()
    return _Opened(folder, ffi, lib, text)


def _find() -> _Opened:
    tried: list[str] = []
    for name, folder in _places():
        try:
            return _open(folder())
        except _Rejected as reason:
            tried.append(f"  {name}: {reason}")
    raise errors.LibraryError(
        "infiniop_py cannot find its native library. Tried:\n" + "\n".join(tried) + "\n" + _REMEDY
    )


folder, ffi, lib, version = _find()
library_path = folder / _LIBRARY
runtime_path = folder / _RUNTIME

NULL = ffi.NULL
cast = ffi.cast
from_buffer = ffi.from_buffer
buffer = ffi.buffer
VOID_POINTER = ffi.typeof("void *")
BYTE_POINTER = ffi.typeof("char *")
ADDRESS = ffi.typeof("uintptr_t")

# Bound early, because objects are released when this module may already be half gone.
_last_message = lib.infiniopGetLastErrorMessage
_string = ffi.string


def last_message() -> str:
    """This thread's sentence about the last native call that failed."""
    return _string(_last_message()).decode("utf-8", "replace")


def error(status: int) -> errors.InfiniopError:
    """Return the exception for a status that is not SUCCESS, with the library's sentence."""
    return errors.from_status(status, last_message())


def check(status: int) -> None:
    """Raise the exception for `status` unless it is SUCCESS."""
    if status:
        raise errors.from_status(status, last_message())


def address(pointer: Any) -> int:
    """The number of a pointer."""
    return int(cast(ADDRESS, pointer))


def pointer(number: int) -> Any:
    """The pointer of a number."""
    return cast(VOID_POINTER, number)


def owning(kind: str, destroy: Any) -> Callable[[], Any]:
    """A function that makes places for one native object each: pointers to a `kind`, NULL at first. What
    creates the object writes it there, and when the place goes, `destroy` is called with what is there.

    So an object has an owner before it exists, and goes without a line of Python: a signal's handler may
    raise at any point without losing it.
    """
    one, new, own = ffi.typeof(f"{kind}[1]"), ffi.new, ffi.gc
    release = partial(max, key=destroy)  # calls it with each element, without bytecode of its own
    return lambda: own(new(one), release)


def owning_pointer(number: int, owner: object) -> Any:
    """The pointer of a number, which keeps `owner` alive as long as it lives itself."""
    # What is called in the end does nothing: it is there to hold the owner.
    return ffi.gc(cast(VOID_POINTER, number), partial(is_, owner))
