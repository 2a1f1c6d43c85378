"""No operator touches a byte that is not its own: every row of the table between inaccessible pages, on every
instruction set of this machine, through the caches and past them.

Always a part of the rows for each, with -m slow all of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _child
import pytest
from isas import ISAS, needed

from infiniop_py._conformance.cases import OPERANDS

CHILD = Path(__file__).with_name("_page_edge_child.py")
COLUMNS = ["columns, A packed", "columns, A packed, B packed by rows"]
WAYS = ["B transposed", "blocked", *COLUMNS, "in place by columns", "in place by rows"]
PRODUCTS = tuple(op for op in OPERANDS if op.startswith("gemm"))
OTHERS = tuple(op for op in OPERANDS if op not in PRODUCTS)

# One of so many: odd, so that both edges of a row have their turns.
part = pytest.mark.parametrize("of", [25, pytest.param(1, marks=pytest.mark.slow)], ids=["part", "all"])


def run(isa: str, share: int, of: int, operators: tuple[str, ...], **environment: str) -> Any:
    needed(isa)
    arguments = (share % of, of, *operators)
    return json.loads(_child.run(str(CHILD), *arguments, timeout=900, INFINIOP_MAX_ISA=isa, **environment))


@part
@pytest.mark.parametrize("isa", ISAS)
def test_products(isa: str, of: int, record_property: Callable[..., None]) -> None:
    found = run(isa, 3 * ISAS.index(isa), of, PRODUCTS)
    record_property("cases", found["rows"])
    assert found["isa"] == isa and found["ways"] == ["B kept"] * (isa != "portable") + WAYS


@part
@pytest.mark.parametrize("stream_bytes", ["inf", "0"])
@pytest.mark.parametrize("isa", ISAS)
def test_other_operators(isa: str, stream_bytes: str, of: int, record_property: Callable[..., None]) -> None:
    share = 2 * ISAS.index(isa) + (stream_bytes == "0")
    found = run(isa, share, of, OTHERS, INFINIOP_STREAM_BYTES=stream_bytes)
    record_property("cases", found["rows"])
    assert found["isa"] == isa and found["rows"] > 500
