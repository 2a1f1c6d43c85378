"""The examples in the docstrings and in the README run, and every operator has one."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
import sys

import children
import pytest

import infiniop_py as ip

MODULES = [
    name
    for _, name, _ in pkgutil.walk_packages(ip.__path__, "infiniop_py.")
    if not name.startswith(("infiniop_py._lib", "infiniop_py.examples")) and not name.endswith("__main__")
]


@pytest.mark.parametrize("name", ["infiniop_py", *MODULES])
def test_examples(name: str) -> None:
    for library, module_name in (
        ("threadpoolctl", "infiniop_py.interop.threadpoolctl"),
        ("torch", "infiniop_py.torch"),
        ("jax", "infiniop_py.jax"),
    ):
        if f"{name}.".startswith(f"{module_name}."):
            pytest.importorskip(library)
    importlib.import_module(name)
    module = sys.modules[name]  # the attribute of ops.add's package is the function
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize(
    "name",
    [
        "gemm",
        "gemm_",
        "gemm_add",
        "gemm_mul",
        "add",
        "add_",
        "mul",
        "mul_",
        "add_rms_norm",
        "rearrange",
        "rearrange_",
    ],
)
def test_every_operator_has_an_example(name: str) -> None:
    assert ">>>" in (getattr(ip, name).__doc__ or "")


README = (children.ROOT / "README.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"^```python\n(.*?)^```$", README, flags=re.DOTALL | re.MULTILINE)
#: What a reader brings along to a snippet.
BROUGHT = "def my_add(c, a, b): c.copy_(a)\n"


def test_the_readme_has_snippets() -> None:
    assert len(SNIPPETS) >= 3


@pytest.mark.parametrize("snippet", SNIPPETS, ids=range(len(SNIPPETS)))
def test_readme(snippet: str) -> None:
    """Each alone, in a process of its own; what it prints is what the comment beside it says."""
    for framework in ("torch", "jax"):
        if f"import {framework}" in snippet:
            pytest.importorskip(framework)
    wanted = re.findall(r"^print\(.*\) +# (.*)$", snippet, flags=re.MULTILINE)
    assert children.run((BROUGHT if "my_add" in snippet else "") + snippet).splitlines() == wanted
