"""What can be said of an installation without its native library: versions, machine, known packages."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

_PACKAGE = "infiniop_py"
#: What to call it -> the distributions it comes in.
INTEROP = {
    "ml_dtypes": ("ml_dtypes",),
    "torch": ("torch",),
    "jax": ("jax",),
    "cupy": ("cupy", "cupy-cuda11x", "cupy-cuda12x", "cupy-cuda13x", "cupy-rocm-4-3", "cupy-rocm-5-0"),
    "threadpoolctl": ("threadpoolctl",),
}
WIDTH = 16


def first_match(pattern: str, path: str) -> str:
    """The first group of the first match in a file; "" where there is none."""
    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    match = re.search(pattern, text, flags=re.MULTILINE)
    return match[1].strip() if match else ""


def cpu_model() -> str:
    """The CPU's name."""
    named = first_match(r"^model name\s*:\s*(.+)$", "/proc/cpuinfo")
    return named or platform.processor() or platform.machine()


def installed(*distributions: str) -> str:
    """The version of the first of these that is installed, "" where none is. Imports none of them."""
    for name in distributions:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            pass
    return ""


def facts() -> Iterator[tuple[str, str]]:
    """(name, value) of what holds with and without the native library."""
    folders = ", ".join(os.path.abspath(folder) for folder in sys.modules[_PACKAGE].__path__)
    version = installed(_PACKAGE)
    yield "package", f"{folders} ({f'installed: {version}' if version else 'not installed'})"
    gil = "" if getattr(sys, "_is_gil_enabled", lambda: True)() else ", without a GIL"
    yield "python", f"{platform.python_version()} ({platform.python_implementation()}{gil}), {sys.executable}"
    yield "numpy", installed("numpy") or "unknown"
    yield "cffi", installed("cffi") or "unknown"
    yield "platform", f"{platform.platform()}, libc {' '.join(platform.libc_ver()) or 'unknown'}"
    yield "processor", cpu_model()
    versions = {name: installed(*distributions) for name, distributions in INTEROP.items()}
    yield "interop", ", ".join(f"{name} {version}" for name, version in versions.items() if version) or "none"
    absent = [name for name, version in versions.items() if not version]
    if absent:
        yield "not installed", ", ".join(absent)


def show(name: str, value: str) -> None:
    """Print one fact; further lines of its value are indented below the first."""
    print(f"{name:{WIDTH}} {value}".rstrip().replace("\n", f"\n{'':{WIDTH}} "))


@contextmanager
def reader_may_stop() -> Iterator[None]:
    """End the program quietly, with status 1, if its reader has seen enough, as in ``info | head``."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is still to be flushed
        raise SystemExit(1) from None


def command() -> list[str] | None:
    """The arguments of ``python -m infiniop_py`` while that is about to run; None in any other program.

    Python imports the package before it runs the package's __main__, and calls the program "-m" meanwhile.
    """
    if sys.argv[:1] != ["-m"]:
        return None
    before_arguments = sys.orig_argv[: 1 - len(sys.argv) or None][-1:]
    return sys.argv[1:] if before_arguments in ([_PACKAGE], [f"-m{_PACKAGE}"]) else None


def end_command(error: Exception) -> None:
    """End ``python -m infiniop_py`` with status 1, because the native library cannot be used; return in any
    other program.
    """
    arguments = command()
    if arguments is None:
        return
    if arguments[:1] not in (["info"], ["doctor"]):
        raise SystemExit(f"{_PACKAGE}: {error}")
    with reader_may_stop():
        for name, value in facts():
            show(name, value)
        show("library", str(error))
        show("verdict", "FAILED: the native library cannot be used")
    raise SystemExit(1)
