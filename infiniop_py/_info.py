"""``python -m infiniop_py info``: what this installation is and what it can use."""

from __future__ import annotations

import argparse
import platform
from collections.abc import Iterator

import numpy as np

from ._native import check, ffi, lib, library_path, runtime_path, version
from .cpu import cpu_isa, get_num_threads
from .device import DeviceType, device_count
from .ops import gemm


def _text(pointer: object) -> str:
    return str(ffi.string(pointer).decode("utf-8", "replace")) if pointer != ffi.NULL else ""


def _slots() -> Iterator[tuple[str, str]]:
    info = ffi.new("InfiniBackendInfo *")
    for kind in DeviceType:
        count = device_count(kind)  # loads the backend, so that the slot's reason is known
        check(lib.infinirtGetBackendInfo(kind, info))
        if info.available:
            yield (
                kind.name,
                f"{count} device(s), {_text(info.name)} {_text(info.version)}, {_text(info.path)}",
            )
        else:
            yield kind.name, f"not available: {_text(info.reason)}"


def _works() -> bool:
    """Products of small integers are exact, so that any difference is a fault."""
    values = np.arange(64, dtype="f4").reshape(8, 8) % 7
    return bool(np.array_equal(gemm(values, values.T), values @ values.T))


def lines() -> Iterator[tuple[str, str]]:
    """The facts, as (name, value)."""
    yield "infiniop_py", version
    yield "python", f"{platform.python_version()}, numpy {np.__version__}, {platform.machine()}"
    yield "library", str(library_path)
    yield "runtime", str(runtime_path)
    yield "instruction set", cpu_isa()
    yield "threads", str(get_num_threads())
    yield from _slots()


def main(argv: list[str]) -> int:
    """Print the facts and a verdict; 0 if a small product comes out right."""
    argparse.ArgumentParser(prog="python -m infiniop_py info", description=__doc__).parse_args(argv)
    for name, value in lines():
        print(f"{name:16} {value}")
    works = _works()
    print(f"{'self-test':16} {'passed' if works else 'FAILED'}")
    return 0 if works else 1
