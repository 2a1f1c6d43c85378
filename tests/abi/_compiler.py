"""Builds C and C++ with whatever compiler the machine has."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from _library import ROOT

PLUGIN_SOURCE = ROOT / "native" / "tests" / "fake_backend.c"


def compiler(language: str = "c") -> str:
    """The C ("c") or C++ ("c++") compiler; the test is skipped where there is none."""
    variable, names = {"c": ("CC", ("cc", "gcc", "clang")), "c++": ("CXX", ("c++", "g++", "clang++"))}[
        language
    ]
    for name in (os.environ.get(variable), *names):
        found = shutil.which(name) if name else None
        if found:
            return found
    pytest.skip(f"no {language} compiler: none of {', '.join(names)} is installed")


def run(command: Sequence[object], **environment: str) -> str:
    """Runs a compiler or a program and returns its stdout; a failure shows its output."""
    words = [str(word) for word in command]
    done = subprocess.run(
        words, check=False, capture_output=True, text=True, env={**os.environ, **environment}
    )
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout}{done.stderr}"
    return done.stdout


def build_plugin(include: Path, target: Path, *defines: str) -> Path:
    """Compiles native/tests/fake_backend.c with `defines` ("FAKE_ABI=99") to the shared object `target`."""
    run(
        [
            compiler(),
            *("-std=c99", "-O1", "-Wall", "-Wextra", "-pedantic", "-Werror", "-shared", "-fPIC"),
            "-fvisibility=hidden",
            *(f"-D{define}" for define in defines),
            f"-I{include}",
            PLUGIN_SOURCE,
            *("-o", target, "-ldl", "-lpthread"),
        ]
    )
    return target


def shared_library(source: Path, folder: Path) -> str:
    """Compiles a C source that tests load or preload; the path of the library."""
    target = folder / f"{source.stem}.so"
    flags = ("-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC")
    run([compiler(), *flags, source, "-o", target, "-ldl", "-lpthread"])
    return str(target)
