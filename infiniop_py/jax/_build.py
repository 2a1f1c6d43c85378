"""Compile the handler against the headers of the jaxlib that is installed, once, and register it with JAX."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax

from .._paths import get_include, get_library_dir
from ..errors import LibraryError

TARGET = "infiniop"
_SOURCE = Path(__file__).with_name("handler.cc")
_FLAGS = ("-std=c++17", "-O2", "-fPIC", "-shared", "-w")


def _folder() -> Path:
    """Where compiled handlers are kept: the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return Path(base if os.path.isabs(base) else Path.home() / ".cache") / "infiniop_py"


def _command(to: Path) -> list[str]:
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise LibraryError(
            "infiniop_py.jax compiles a small source once for each jaxlib and needs a C++17 compiler: there "
            "is no c++, g++ or clang++ on the PATH"
        )
    libraries = Path(get_library_dir())
    includes = [f"-I{jax.ffi.include_dir()}", f"-I{get_include()}"]
    linked = [str(libraries / name) for name in ("libinfiniop.so", "libinfinirt.so")]
    return [compiler, *_FLAGS, *includes, str(_SOURCE), *linked, f"-Wl,-rpath,{libraries}", "-o", str(to)]


def _compile(to: Path) -> None:
    done = subprocess.run(_command(to), capture_output=True, text=True, check=False)
    if done.returncode:
        raise LibraryError(f"infiniop_py.jax: {' '.join(_command(to))} failed:\n{done.stderr}")


def handler() -> Path:
    """The compiled handler, from the cache if it is there."""
    folder = _folder()
    path = folder / "none"
    command = _command(path)
    what = hashlib.sha256(_SOURCE.read_bytes())
    what.update("\0".join([version("jaxlib"), *command]).encode())
    path = folder / f"jax-{what.hexdigest()[:32]}.so"
    if path.exists():
        return path
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as temporary:
            made = Path(temporary) / path.name
            _compile(made)
            made.replace(path)  # another process may have done the same
    except OSError as error:
        raise LibraryError(
            f"infiniop_py.jax keeps what it compiles in {folder}: {error}; set XDG_CACHE_HOME to a folder "
            "that can be written"
        ) from None
    return path


@cache
def register() -> None:
    """Make the handler known to JAX, in this process."""
    library = ctypes.CDLL(str(handler()))
    capsule = jax.ffi.pycapsule
    library.infiniop_jax_type_id.restype = library.infiniop_jax_type_info.restype = ctypes.c_void_p
    pointers = {
        "type_id": library.infiniop_jax_type_id(),
        "type_info": library.infiniop_jax_type_info(),
    }
    of_type: Any = {name: capsule(ctypes.c_void_p(at)) for name, at in pointers.items()}
    jax.ffi.register_ffi_type(TARGET, of_type, platform="cpu")
    stages = {"instantiate": library.infiniop_jax_create, "execute": library.infiniop_jax_run}
    jax.ffi.register_ffi_target(TARGET, {name: capsule(at) for name, at in stages.items()}, platform="cpu")
