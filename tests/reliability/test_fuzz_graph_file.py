"""The first mutants of fuzz_graph_file.py, which looks for more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import fuzz_graph_file
import pytest


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_mutated_files_are_loaded_or_refused(tmp_path: Path, record_property: Callable[..., None]) -> None:
    tried, kinds, loaded = fuzz_graph_file.fuzz(7, tmp_path, most=2000)
    record_property("cases", tried)
    assert tried == 2000 and kinds > 300 and loaded > 100
