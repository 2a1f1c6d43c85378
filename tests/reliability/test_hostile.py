"""No argument crashes a function: each is refused for what is wrong with it, or does what it should.

Broken arguments, layouts and pointers come from generators, and what must be answered from an oracle
(_rules.py) that is made from the headers. Every group of calls has a process of its own, whose allocator
counts what a call keeps where it can be had (failing_malloc.c).
"""

from __future__ import annotations

import json
import platform
from collections.abc import Callable
from pathlib import Path

import _child
import heap
import pytest
from _headers import functions
from _library import ROOT
from _ops import OPS

HERE = Path(__file__).parent
NAMES = [function.name for function in functions(Path(ROOT, "native", "include"))]
GROUPS = {
    "runtime": [name for name in NAMES if name.startswith("infinirt")],
    "descriptors": [name for name in NAMES if "Descriptor" in name and name.startswith("infiniop")],
    "the-rest": [name for name in NAMES if "Descriptor" not in name and name.startswith("infiniop")],
}
SEED = 1


@pytest.fixture(scope="module")
def counting(request: pytest.FixtureRequest) -> str:
    """The allocator that counts, or "" where another one is in place."""
    if heap.SANITIZED or platform.libc_ver()[0] != "glibc":
        return ""
    return str(request.getfixturevalue("failing_malloc"))


def run(counting: str, script: str, *arguments: object) -> str:
    environment: dict[str, str | Path] = {"LD_PRELOAD": counting} if counting else {}
    return _child.run(str(HERE / script), counting, SEED, *arguments, timeout=300, **environment)


def test_every_function_is_in_one_group() -> None:
    assert sorted(name for group in GROUPS.values() for name in group) == sorted(NAMES)


@pytest.mark.parametrize("group", GROUPS)
def test_broken_arguments(group: str, counting: str, record_property: Callable[..., None]) -> None:
    calls = int(run(counting, "_arguments_child.py", *GROUPS[group]))
    record_property("cases", calls)
    assert calls > 200 * len(GROUPS[group])


@pytest.mark.parametrize("op", OPS)
def test_layouts(op: str, counting: str, record_property: Callable[..., None]) -> None:
    counts = json.loads(run(counting, "_layouts_child.py", 1200, op))
    record_property("cases", counts["calls"])
    statuses = {int(status): n for status, n in counts["statuses"].items()}
    # Success, a number missing or too many, and each way to be no legal tensor or problem.
    assert set(statuses) == {0, 3, 10, 11, 12} and min(statuses.values()) >= 5 and statuses[0] >= 400
    assert counts["contrived"] <= 5, "problems that the oracle does not understand"


@pytest.mark.parametrize("op", OPS)
def test_pointers_and_workspaces(op: str, counting: str, record_property: Callable[..., None]) -> None:
    counts = json.loads(run(counting, "_runs_child.py", 20, op))
    record_property("cases", counts["calls"])
    statuses = {int(status): n for status, n in counts["statuses"].items()}
    assert {0, 3, 4} <= set(statuses) and min(statuses[0], statuses[3], statuses[4]) >= 300
    assert op != "gemm" or statuses[13] >= 100, "no problem needed a workspace"
