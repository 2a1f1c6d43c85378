"""The examples in the docstrings run, and every operator has one."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import sys

import pytest

import infiniop_py as ip

MODULES = [
    name
    for _, name, _ in pkgutil.walk_packages(ip.__path__, "infiniop_py.")
    if not name.startswith(("infiniop_py._lib", "infiniop_py.examples")) and not name.endswith("__main__")
]


@pytest.mark.parametrize("name", ["infiniop_py", *MODULES])
def test_examples(name: str) -> None:
    importlib.import_module(name)
    module = sys.modules[name]  # the attribute of ops.add's package is the function
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize(
    "name", ["gemm", "gemm_", "add", "add_", "mul", "mul_", "add_rms_norm", "rearrange", "rearrange_"]
)
def test_every_operator_has_an_example(name: str) -> None:
    assert ">>>" in (getattr(ip, name).__doc__ or "")
