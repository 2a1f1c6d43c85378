"""``python -m infiniop_py info`` (or ``doctor``): what this installation is, what it can use, and whether it
works.

Exit status 0 if the self-test passes, else 1.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from time import perf_counter

from . import _selftest
from ._facts import facts, show
from ._native import ABI_VERSION, check, ffi, lib, library_path, runtime_path, version
from .cpu import cpu_isa, cpu_isa_reason, get_num_threads, num_threads_reason
from .device import DeviceType, device_count

_SHOWN_FAULTS = 10


def _text(pointer: object) -> str:
    return str(ffi.string(pointer).decode("utf-8", "replace")) if pointer != ffi.NULL else ""


def _slots() -> Iterator[tuple[str, str]]:
    info = ffi.new("InfiniBackendInfo *")
    for kind in DeviceType:
        count = device_count(kind)  # loads the backend, so that the slot's reason is known
        check(lib.infinirtGetBackendInfo(kind, info))
        if info.available:
            devices = "1 device" if count == 1 else f"{count} devices"
            yield kind.name, f"{devices}, {_text(info.name)} {_text(info.version)}, {_text(info.path)}"
        else:
            yield kind.name, f"not available: {_text(info.reason)}"


def lines() -> Iterator[tuple[str, str]]:
    """The facts, as (name, value)."""
    yield "infiniop_py", f"{version}, C interface {ABI_VERSION}"
    yield "library", str(library_path)
    yield "runtime", str(runtime_path)
    yield from facts()
    yield "instruction set", f"{cpu_isa()}: {cpu_isa_reason()}"
    yield "threads", f"{get_num_threads()}: {num_threads_reason()}"
    yield from _slots()


def main(argv: list[str]) -> int:
    """Print the facts, what the self-test found, and the verdict."""
    argparse.ArgumentParser(prog="python -m infiniop_py info", description=__doc__).parse_args(argv)
    for name, value in lines():
        show(name, value)
    start = perf_counter()
    count, faults = _selftest.run()
    show("self-test", f"{count} checks on the CPU in {perf_counter() - start:.2f} s")
    for reason in _selftest.dtypes()[1]:
        show("", f"not tested: {reason}")
    for fault in faults[:_SHOWN_FAULTS]:
        show("", f"wrong: {fault}")
    if faults:
        show("verdict", f"FAILED: {len(faults)} of {count} checks; do not trust results of this installation")
        return 1
    show("verdict", "OK")
    return 0
