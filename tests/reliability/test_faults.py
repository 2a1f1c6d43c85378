"""Every allocation of every call fails, once and for good: a clean error, nothing lost, the next call works.

In a process of its own, whose allocator fails on request (failing_malloc.c) where glibc is the C library.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from pathlib import Path

import _child
import children
import heap
import pytest
from _headers import functions
from _library import ROOT

CHILD = Path(__file__).with_name("_fault_child.py")
NAMES = [function.name for function in functions(Path(ROOT, "native", "include"))]

pytestmark = [
    pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc"),
    pytest.mark.skipif(not heap.counts(), reason="the allocator of this process is another one than glibc's"),
]


def run(failing_malloc: Path, *arguments: str, **variables: str) -> int:
    # A library that has made threads leaves their stacks to ours in a child of fork(), who then ask for none.
    environment = {"LD_PRELOAD": failing_malloc, "OPENBLAS_NUM_THREADS": "1"} | variables
    return int(_child.run(str(CHILD), failing_malloc, *arguments, **environment))


@pytest.mark.parametrize("name", NAMES)
def test_each_function(name: str, failing_malloc: Path, record_property: Callable[..., None]) -> None:
    calls = run(failing_malloc, "each", name)
    record_property("cases", calls)
    assert calls >= 9, "plain, and four ways to fail, each with a call afterwards"


def test_the_first_calls_of_a_process(
    failing_malloc: Path, tmp_path: Path, record_property: Callable[..., None]
) -> None:
    """Among them the search for plugins, one of which there is: it is found once there is memory."""
    plugin = children.build_fake_backend(tmp_path)
    programs = run(failing_malloc, "first", INFINIOP_BACKEND_PATH=str(plugin))
    record_property("cases", programs)
    assert programs > 60


def test_a_child_without_memory(failing_malloc: Path, record_property: Callable[..., None]) -> None:
    calls = run(failing_malloc, "forked")
    record_property("cases", calls)
    assert calls >= 13, "a product and a graph, each in a child too"
