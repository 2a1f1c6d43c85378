"""What all tests share: reproducible data, the thread count, and a header that says what is being tested."""

from __future__ import annotations

import gc
from collections.abc import Callable, Generator, Iterator
from typing import Any

import hypothesis
import numpy as np
import pytest
from live import Live

import infiniop_py

# The same examples in every run; `pytest --hypothesis-profile=search` looks for new ones.
hypothesis.settings.register_profile(
    "fixed", derandomize=True, deadline=None, database=None, max_examples=150
)
hypothesis.settings.register_profile("search", deadline=None, max_examples=5000)
hypothesis.settings.load_profile("fixed")


def pytest_report_header() -> str:
    return f"infiniop_py {infiniop_py.__version__}, CPU instruction set {infiniop_py.cpu_isa()}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What compiles the package comes first: at the end other processes would have nothing left to do."""
    items.sort(key=lambda item: item.path.name != "test_packaging.py")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and isinstance(item, pytest.Function) and hasattr(item, "callspec"):
        report.sections.append(("rerun", f"pytest '{item.nodeid}'"))
    return report


@pytest.fixture(autouse=True, scope="module")
def old_objects_are_left_alone() -> None:
    """Keep the garbage collector from looking through twenty thousand tests and their reports again."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20240229)


@pytest.fixture
def own() -> Iterator[Callable[[type[infiniop_py.GraphOperator], Any], None]]:
    """A function that registers an implementation for the CPU; after the test those from before are back."""
    before: list[tuple[infiniop_py.OpDispatcher, Any]] = []

    def register(op: type[infiniop_py.GraphOperator], implementation: Any) -> None:
        dispatcher = op.dispatcher()
        before.append((dispatcher, dispatcher.implementation(infiniop_py.DeviceType.CPU)))
        dispatcher.register_device("cpu", implementation)

    yield register
    for dispatcher, implementation in reversed(before):
        dispatcher.register_device("cpu", implementation)


@pytest.fixture
def live() -> Live:
    return Live()


@pytest.fixture
def num_threads() -> Iterator[Callable[[int], None]]:
    """A function that sets how many threads one native call may use; the default again after the test."""
    yield infiniop_py.set_num_threads
    infiniop_py.set_num_threads(0)
