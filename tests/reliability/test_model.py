"""Whatever is done in whatever order: what is alive is what a model of it says, and results are right.

In processes of their own, with a test backend beside the CPU, and forks.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import _child
import children
import pytest

CHILD = Path(__file__).with_name("_model_child.py")

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork()")


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return children.build_fake_backend(tmp_path_factory.mktemp("backend"))


def run(backend: Path, examples: int, hashes: str, profile: str, timeout: float = 120) -> int:
    arguments = (str(CHILD), examples, hashes, profile)
    return int(_child.run(*arguments, timeout=timeout, INFINIOP_BACKEND_PATH=backend))


@pytest.mark.parametrize("hashes", ["usual", "same"])
def test_a_model_of_what_is_alive(backend: Path, hashes: str, record_property: Callable[..., None]) -> None:
    """Once with a hash that all keys have in common, which changes nothing."""
    steps = run(backend, 25, hashes, "fixed")
    record_property("cases", steps)
    assert steps > 500


@pytest.mark.slow
def test_a_model_searched(backend: Path, record_property: Callable[..., None]) -> None:
    steps = run(backend, 300, "usual", "search", timeout=1800)
    record_property("cases", steps)
    assert steps > 5000
