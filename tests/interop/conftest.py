"""These tests come last, and infiniop_py.jax's: JAX, once imported, objects to every fork of the process, and
others fork it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: HERE in item.path.parents or item.path.stem == "test_jax_operators")
