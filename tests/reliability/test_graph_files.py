"""Graph files that are damaged or made to harm: a sentence, little memory, and nothing is executed.

What each field of the header may be is tested in tests/test_graph_file.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import _child
import heap
import pytest

CHILD = Path(__file__).with_name("_graph_file_child.py")

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, and limits memory")


def run(folder: Path, stride: int) -> int:
    return int(_child.run(str(CHILD), folder, stride, timeout=600))


@heap.unsanitized("there is not enough memory below the limit")
def test_damaged_and_hostile_files(
    tmp_path_factory: pytest.TempPathFactory, record_property: Callable[..., None]
) -> None:
    files = run(tmp_path_factory.mktemp("f"), 19)  # a short name: sockets have little room for theirs
    record_property("cases", files)
    assert files > 1000


@pytest.mark.slow
def test_every_byte_and_every_truncation(
    tmp_path_factory: pytest.TempPathFactory, record_property: Callable[..., None]
) -> None:
    files = run(tmp_path_factory.mktemp("f"), 1)
    record_property("cases", files)
    assert files > 20_000
