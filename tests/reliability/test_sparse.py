"""Every operator on arrays that reach beyond what 32 bits count, in bytes and in elements, on each set of
instructions of this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import _child
import pytest
from isas import ISAS, needed

from infiniop_py._conformance.cases import OPERANDS

CHILD = Path(__file__).with_name("_sparse_child.py")


def _room() -> bool:
    """May a process reserve as much as it does not use?"""
    try:
        return int(Path("/proc/sys/vm/overcommit_memory").read_text()) != 2
    except OSError:
        return False


@pytest.mark.skipif(not _room(), reason="the system gives no memory that is not there")
@pytest.mark.parametrize("isa", ISAS)
def test_far_elements(isa: str, record_property: Callable[..., None]) -> None:
    needed(isa)
    runs = int(_child.run(str(CHILD), *OPERANDS, timeout=900, INFINIOP_MAX_ISA=isa))
    record_property("cases", runs)
    assert runs > 1000
