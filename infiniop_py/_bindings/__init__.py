"""Compile what speaks a framework's own C++ interface, once for each version of it, and keep the result.

Its headers are in the framework that is installed; the library's interface is ours.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from .._log import logger
from .._paths import get_include, get_library_dir
from ..errors import LibraryError

_HERE = Path(__file__).parent
_FLAGS = ("-O2", "-fPIC", "-shared", "-w")
_LIBRARIES = ("libinfiniop.so", "libinfinirt.so")


class Binding(NamedTuple):
    """What is compiled for a framework: the source, and what else its compiler is given."""

    package: str  # of ours, in messages
    framework: str  # and its version
    source: Path
    flags: Sequence[str]
    includes: Sequence[str | Path]
    libraries: Sequence[str | Path] = ()


def _no_folder(binding: Binding, where: object, error: Exception) -> LibraryError:
    return LibraryError(
        f"{binding.package} keeps what it compiles in {where}: {error}; set XDG_CACHE_HOME to a folder that "
        "can be written"
    )


def _folder(binding: Binding) -> Path:
    """Where compiled bindings are kept: the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    try:
        return Path(base if os.path.isabs(base) else Path.home() / ".cache") / "infiniop_py"
    except RuntimeError as error:  # no HOME, and a user whom the system does not know
        raise _no_folder(binding, "the user's cache folder", error) from None


def _command(binding: Binding, to: Path) -> list[str]:
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise LibraryError(
            f"{binding.package} compiles a small source once for each version of "
            f"{binding.framework.split()[0]} and needs a C++ compiler: there is no c++, g++ or clang++ on "
            "the PATH"
        )
    own = Path(get_library_dir())
    includes = [f"-I{folder}" for folder in (*binding.includes, get_include(), _HERE)]
    linked = [*(str(own / name) for name in _LIBRARIES), f"-Wl,-rpath,{own}", *map(str, binding.libraries)]
    return [compiler, *_FLAGS, *binding.flags, *includes, str(binding.source), *linked, "-o", str(to)]


def _digest(binding: Binding, folder: Path) -> str:
    what = hashlib.sha256("\0".join([binding.framework, *_command(binding, folder)]).encode())
    for path in sorted((*binding.source.parent.glob("*.h"), *_HERE.glob("*.h"), binding.source)):
        what.update(path.read_bytes())
    return what.hexdigest()[:32]


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Other processes that want the same wait for this one to be done. Where a file system has no locks, each
    compiles for itself.
    """
    with open(folder / "lock", "w") as lock:
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def compiled(binding: Binding) -> Path:
    """The binding as a shared library, from the cache if it is there. LibraryError if it cannot be made."""
    folder = _folder(binding)
    path = folder / f"{binding.source.parent.name}-{_digest(binding, folder)}.so"
    if path.exists():
        return path
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _alone(folder):
            if not path.exists():
                logger.info("compiling %s for %s, once", binding.package, binding.framework)
                with tempfile.TemporaryDirectory(dir=folder) as temporary:
                    made = Path(temporary) / path.name
                    _compile(binding, made)
                    made.replace(path)
    except OSError as error:
        raise _no_folder(binding, folder, error) from None
    return path


def _compile(binding: Binding, to: Path) -> None:
    command = _command(binding, to)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LibraryError(f"{binding.package}: {' '.join(command)} failed:\n{done.stderr}")
