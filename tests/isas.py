"""Processes that use an instruction set below the best: the choice is made once per process."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import infiniop_py

ISAS = ("portable", "avx2", "avx512", "avx512_bf16", "amx_bf16")  # worst first
TESTS = Path(__file__).resolve().parent
_TIMEOUT_S = 600


@cache
def usable() -> tuple[str, ...]:
    """Those that this process could have used: up to the one it uses, and what is used where it is named."""
    used = ISAS.index(infiniop_py.cpu_isa()) + 1
    ask = ("-c", "import infiniop_py; print(infiniop_py.cpu_isa())")
    beyond = () if "INFINIOP_MAX_ISA" in os.environ else ISAS[used:]
    return (*ISAS[:used], *(isa for isa in beyond if output(start(isa, *ask)).strip() == isa))


def needed(isa: str) -> None:
    """Skips the test where the machine or the build has not got it."""
    if isa not in usable():
        pytest.skip(f"{isa} is beyond the best of this machine and build, {infiniop_py.cpu_isa()}")


def start(isa: str, *arguments: object, **variables: str) -> subprocess.Popen[str]:
    """Python with these arguments, where the modules of the tests are found."""
    environment = dict(os.environ, INFINIOP_MAX_ISA=isa, **variables)
    environment["PYTHONPATH"] = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        cwd=TESTS.parent,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def output(child: subprocess.Popen[str]) -> str:
    """What it printed; fails where it failed."""
    try:
        text, _ = child.communicate(timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        child.kill()
        raise
    assert child.returncode == 0, f"exit status {child.returncode}:\n{text[-6000:]}"
    return text
