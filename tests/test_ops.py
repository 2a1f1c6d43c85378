"""The case table of the operators: see :mod:`infiniop_py._conformance.cases`.

A test takes many rows, since pytest takes longer for a test than most rows do; where -k chooses among them,
each is a test of its name: `pytest tests/test_ops.py -k gemm-f16-9x17x33-a_T`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import pytest

from infiniop_py._conformance.cases import CASES, run

_ROWS_OF_A_TEST = 100


def _tests() -> dict[str, list[str]]:
    """The names of rows, by test: of one operator and one type."""
    rows: defaultdict[str, list[str]] = defaultdict(list)
    for name, case in CASES.items():
        rows[f"{case.op}-{case.dtype}"].append(name)
    return {
        f"{of}-{first // _ROWS_OF_A_TEST}": names[first : first + _ROWS_OF_A_TEST]
        for of, names in rows.items()
        for first in range(0, len(names), _ROWS_OF_A_TEST)
    }


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    chosen = metafunc.config.getoption("keyword")
    tests = {name: [name] for name in CASES} if chosen else _tests()
    metafunc.parametrize("names", tests.values(), ids=tests.keys())


def test_case(names: list[str], num_threads: Callable[[int], None]) -> None:
    failed: dict[str, BaseException] = {}
    for name in names:
        try:
            run(CASES[name], num_threads)
        except Exception as error:
            failed[name] = error
    if failed:
        first, error = next(iter(failed.items()))
        raise AssertionError(
            f"{len(failed)} of {len(names)} rows fail: {', '.join(failed)}; "
            f"rerun one: pytest tests/test_ops.py -k {first}"
        ) from error
