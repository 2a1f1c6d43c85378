"""A signal's handler may raise anywhere in the package: nothing native is lost, and the next call works.

In processes of their own, since each instruction is followed, of which a piece of work has some 1,000 to
6,000. All are tried where the mark `slow` is not left out, and a part of them in any case.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import _child
import children
import pytest

CHILD = Path(__file__).with_name("_interrupt_child.py")
#: A piece of work, and of how many instructions one is tried.
WORKS = {
    "miss": 1,
    "miss_of_a_norm": 7,
    "batches": 29,
    "scratch": 11,
    "miss_on_a_device": 11,
    "plan": 5,
    "recording": 97,
    "recording_on_a_device": 127,
    "tensors": 23,
}


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return children.build_fake_backend(tmp_path_factory.mktemp("backend"))


def run(backend: Path, work: str, stride: int, timeout: float = 60) -> int:
    return int(_child.run(str(CHILD), work, stride, timeout=timeout, INFINIOP_BACKEND_PATH=backend))


@pytest.mark.parametrize("work", WORKS)
def test_an_exception_anywhere(backend: Path, work: str, record_property: Callable[..., None]) -> None:
    n = run(backend, work, WORKS[work])
    record_property("cases", n)
    assert n > 40


def test_signals_at_any_time(backend: Path, record_property: Callable[..., None]) -> None:
    record_property("cases", run(backend, "signals", 400))


@pytest.mark.slow
@pytest.mark.parametrize("work", [work for work, stride in WORKS.items() if stride > 1])
def test_an_exception_everywhere(backend: Path, work: str, record_property: Callable[..., None]) -> None:
    n = run(backend, work, 1, timeout=600)
    record_property("cases", n)
    assert n > 1000
