"""Nothing is lost, however often it is done: nothing done with the package, refused calls included, leaves a
byte a cycle behind. What single calls of the C interface keep, test_hostile.py counts by blocks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import _child
import heap
import pytest
from _compiler import build_plugin
from _library import load

CHILD = Path(__file__).with_name("_leak_child.py")
# All of Python's memory is the C library's, which counts what it gave out exactly if no thread keeps some.
ENVIRONMENT = {"PYTHONMALLOC": "malloc", "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}

pytestmark = pytest.mark.skipif(not heap.counts(), reason="the allocator of this process does not count")


def run(*arguments: object) -> int:
    return int(_child.run(str(CHILD), *arguments, timeout=300, **ENVIRONMENT))


def test_programs_of_the_package(record_property: Callable[..., None]) -> None:
    cycles = run("package")
    record_property("cases", cycles)
    assert cycles > 50_000


def test_plugins_that_are_refused(tmp_path: Path, record_property: Callable[..., None]) -> None:
    defects = ("FAKE_ABI=99", "FAKE_RUNTIME_SIZE=16", "FAKE_OP_RUN=NULL", "FAKE_PROBE=7", "FAKE_SLOT=0")
    include = load().folder / "include"
    made = [build_plugin(include, tmp_path / f"{i}.so", defect) for i, defect in enumerate(defects)]
    record_property("cases", run("plugins", *made))
