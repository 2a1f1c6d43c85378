"""No argument crashes a function: thousands of broken calls, in processes of their own."""

from pathlib import Path

import _child
import pytest
from _headers import functions
from _library import ROOT

NAMES = [function.name for function in functions(Path(ROOT, "native", "include"))]
GROUPS = {
    "infinirt": [name for name in NAMES if name.startswith("infinirt")],
    "descriptors": [name for name in NAMES if "Descriptor" in name and name.startswith("infiniop")],
    "the-rest": [name for name in NAMES if "Descriptor" not in name and name.startswith("infiniop")],
}


def test_every_function_is_in_one_group() -> None:
    assert sorted(name for group in GROUPS.values() for name in group) == sorted(NAMES)


@pytest.mark.parametrize("group", GROUPS)
def test_broken_arguments(group: str) -> None:
    calls = int(_child.run("_hostile_child.py", 1, *GROUPS[group]))
    assert calls > 20 * len(GROUPS[group])
