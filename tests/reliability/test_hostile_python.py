"""No argument crashes the package: each public function and method refuses what it cannot take with an
exception of the package that names what is wrong, changes nothing, and goes on working.

Rows (_python_rows.py, _python_operators.py) say what each parameter takes, and generators make calls of
them. A public name without a row fails the first test.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import _child
import pytest
from _python_operators import ENTRIES
from _python_rows import ROWS

import infiniop_py as ip

CHILD = Path(__file__).with_name("_python_child.py")
SEED = 1

#: Records, which hold what they are given: who uses them asks.
RECORDS = {"CacheInfo", "MemoryReport", "MemoryReport.of", "OpImpl", "Status"}
#: Methods that get what has been checked, layouts, views, pointers: for operators of one's own, and of caches
#: for those who have looked into their entries.
CHECKED_BEFORE = (
    *("again", "again_to_new", "apply", "check", "flops", "into", "launch", "launch_new", "most_runs"),
    "remember_results",
)
CHECKED_BEFORE += ("reads_outputs", "use")


def _takes_arguments(function: Any) -> bool:
    parameters = list(inspect.signature(function).parameters.values())
    return any(p.name not in ("self", "cls") for p in parameters)


def _methods(cls: type) -> Iterator[str]:
    """Public methods with arguments, by the class of the package that defines them."""
    for base in cls.__mro__:
        if not base.__module__.startswith("infiniop_py"):
            continue
        for name, static in vars(base).items():
            function = inspect.unwrap(getattr(static, "__func__", static))
            if not name.startswith("_") and inspect.isfunction(function) and _takes_arguments(function):
                yield f"{base.__name__}.{name}"


def _public() -> set[str]:
    """Everything public that takes arguments."""
    names = set()
    for name in ip.__all__:
        value = getattr(ip, name)
        if inspect.isclass(value) and not issubclass(value, BaseException):
            names |= {name, *_methods(value)}
        elif inspect.isfunction(value) and _takes_arguments(value):
            names.add(name)
    return names


#: Static methods that are functions of the package, too.
SAME = ("empty", "zeros", "ones", "arange", "randn", "from_blob", "from_dlpack", "from_numpy")
#: What every operator has: its row is that of each operator.
BY_OPERATOR = {"GraphOperator.execute", "GraphOperator.run"}


def test_every_public_name_has_a_row() -> None:
    assert all(getattr(ip.Tensor, name) is getattr(ip, name) for name in SAME)
    elsewhere = {*RECORDS, *BY_OPERATOR, *(f"Tensor.{name}" for name in SAME)}
    missing = _public() - set(ROWS) - set(ENTRIES) - elsewhere
    assert not {name for name in missing if name.partition(".")[2] not in CHECKED_BEFORE}
    operators = [op for op in vars(ip).values() if inspect.isclass(op) and issubclass(op, ip.GraphOperator)]
    for op in operators:
        if op is not ip.GraphOperator:
            assert {op.__name__, f"{op.__name__}.execute", f"{op.__name__}.run"} <= set(ENTRIES)


GROUPS = {
    "tensors": [name for name in ROWS if "Tensor" in name or name in SAME],
    "graphs": [name for name in ROWS if "raph" in name],
    "operators": [name for name in ENTRIES if not name[0].isupper()],
    "planned": [name for name in ENTRIES if name[0].isupper()],
}
GROUPS["the-rest"] = sorted({*ROWS, *ENTRIES} - {name for group in GROUPS.values() for name in group})


@pytest.mark.parametrize("group", GROUPS)
def test_hostile_arguments(group: str, tmp_path: Path, record_property: Callable[..., None]) -> None:
    calls = int(_child.run(str(CHILD), tmp_path, SEED, *GROUPS[group], timeout=300))
    record_property("cases", calls)
    assert calls > 20 * len(GROUPS[group])
