"""Compile the handler against the headers of the jaxlib that is installed, once, and register it with JAX."""

from __future__ import annotations

import ctypes
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax

from .._bindings import Binding, compiled

TARGET = "infiniop"


def handler() -> Path:
    """The compiled handler."""
    return compiled(
        Binding(
            "infiniop_py.jax",
            f"jaxlib {version('jaxlib')}",
            Path(__file__).with_name("handler.cc"),
            flags=("-std=c++17",),
            includes=(jax.ffi.include_dir(),),
        )
    )


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
