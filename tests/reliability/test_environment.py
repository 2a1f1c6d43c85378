"""The caller's floating-point environment is neither used nor changed: rounding, flushing, traps, flags."""

from __future__ import annotations

import platform
from collections.abc import Callable
from pathlib import Path

import _child
import _compiler
import pytest
from isas import ISAS, needed

HERE = Path(__file__).parent

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="sets the registers of x86-64")


@pytest.fixture(scope="module")
def fp_environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("environment") / "fp_environment.so"
    flags = ("-std=c99", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC")
    _compiler.run([_compiler.compiler(), *flags, HERE / "fp_environment.c", "-o", target])
    return target


@pytest.mark.parametrize("isa", ISAS)
def test_every_environment(isa: str, fp_environment: Path, record_property: Callable[..., None]) -> None:
    needed(isa)
    variables = {"INFINIOP_MAX_ISA": isa, "OPENBLAS_NUM_THREADS": "1"}  # the child forks
    counts = _child.run(str(HERE / "_environment_child.py"), fp_environment, **variables).split()
    assert len(counts) == 9 and min(map(int, counts)) > 300
    record_property("cases", sum(map(int, counts)))
