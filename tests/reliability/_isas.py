"""A child process for one instruction set: the choice is made once per process."""

from __future__ import annotations

from pathlib import Path

import _child
import pytest
from isas import ISAS, usable

import infiniop_py

__all__ = ["ISAS", "run"]


def run(script: Path, isa: str, *arguments: object, **environment: str) -> str:
    """What `script` printed; the test is skipped where the machine has not got the instruction set."""
    if isa not in usable():
        pytest.skip(f"{isa} is beyond the best of this machine and build, {infiniop_py.cpu_isa()}")
    return _child.run(str(script), *arguments, timeout=900, INFINIOP_MAX_ISA=isa, **environment)
