"""Makes the helper modules of this folder importable from its tests and from the children they start."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from collections.abc import Iterator

import _library
import _ops
import pytest


@pytest.fixture(scope="session")
def lib() -> _library.Library:
    """The libraries under test."""
    return _library.load()


@pytest.fixture
def abi(lib: _library.Library) -> Iterator[_ops.Abi]:
    """A handle on CPU:0, and the calls that need one."""
    assert lib.infinirtSetDevice(_library.CPU, 0) == _library.SUCCESS
    made = _ops.Abi(lib)
    yield made
    made.close()
