"""The case table of the operators, a test a row: see :mod:`infiniop_py._conformance.cases`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from infiniop_py._conformance.cases import CASES, Case, run


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_case(case: Case, num_threads: Callable[[int], None]) -> None:
    run(case, num_threads)
