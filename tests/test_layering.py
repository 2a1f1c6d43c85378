"""Modules import only what lies below them, and nothing at all while they run, except what is optional or
slow."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import infiniop_py

PACKAGE = Path(infiniop_py.__file__).parent

# From the bottom up. A module may import modules of the lines above its own, and its neighbours further left.
ORDER = (
    "errors _files _environment _log _facts _bypass",
    "_native",
    "_paths",
    "dtypes",
    "device cpu",
    "_machine _ceilings",
    "_layout _dlpack",
    "tensor",
    "interop._adapter interop._streams interop._numpy interop._torch interop._exchange "
    "interop.threadpoolctl interop",
    "dispatcher cache workspace",
    "_native_op",
    "_program",
    "_fusion _memory",
    "_graph_text _graph_profile",
    "graph_operator",
    "_graph_file",
    "graph",
    "ops._scalars ops._elementwise ops._products ops._epilogue ops.rearrange ops.gemm_add "
    "ops.gemm_mul ops.gemm ops.add ops.mul ops.add_rms_norm ops",
    "__init__",
    "_bindings",
    "jax._build jax._functions jax",
    "torch._library torch._modules torch torch.sharding",
    "_selftest _info _config _demo _bench _conformance",
    "_scale",
    "__main__",
)
RANK = {name: rank for rank, name in enumerate(name for line in ORDER for name in line.split())}
STANDALONE = {"_cffi_build"}  # run by the native build, before there is a package
INSIDE_IS_FREE = {
    "_bench",
    "_conformance",
    "_scale",
}  # packages of one command, of whose inner order this test knows nothing

# What may be imported inside a function: optional packages, and what only a fall-back needs.
LATE = {
    "_native": {"ctypes", "importlib"},
    "dtypes": {"ml_dtypes"},
    "_dlpack": {"ctypes"},
    "_cffi_build": {"cffi"},
    "_graph_profile": {"json"},
    "graph": {"."},  # what draws, profiles and files graphs takes longer to import than all the rest
    "_demo": {"torch", "ml_dtypes", "importlib"},
}


def _place(name: str) -> str:
    """A module's name in ORDER."""
    package = name.split(".")[0]
    return package if package in INSIDE_IS_FREE else name


def _modules() -> dict[str, Path]:
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if parts[0] in ("_lib", "examples"):
            continue
        name = ".".join(parts)
        found[name if name == "__init__" else name.removesuffix(".__init__")] = path
    return found


def _imports(name: str, tree: ast.AST) -> set[str]:
    """The package's modules that a module imports, by their names in ORDER."""
    package = ["infiniop_py", *name.split(".")]
    if name == "__init__":
        package = ["infiniop_py"]
    elif MODULES[name].name != "__init__.py":
        package.pop()
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            targets = [f"{module}.{alias.name}" for alias in node.names]
        else:
            continue
        for target in targets:
            if target.split(".")[0] != "infiniop_py":
                continue
            inner = target.removeprefix("infiniop_py").removeprefix(".")
            while inner and inner not in RANK:
                inner = inner.rpartition(".")[0]
            found.add(inner or "__init__")
    return found - {name}


MODULES = _modules()


def test_every_module_has_a_place() -> None:
    assert {_place(name) for name in MODULES} - STANDALONE <= set(RANK)
    assert set(RANK) - {_place(name) for name in MODULES} <= {"_demo", "_bench"}


@pytest.mark.parametrize("name", [name for name in MODULES if name not in STANDALONE])
def test_imports_point_down(name: str) -> None:
    imported = _imports(name, ast.parse(MODULES[name].read_text(encoding="utf-8")))
    above = {other for other in imported - {_place(name)} if RANK[other] >= RANK[_place(name)]}
    assert not above, f"{name} imports {sorted(above)}, which do not lie below it"


def test_the_import_reader_sees_each_form() -> None:
    """The rule above would hold for anything if the reader of imports saw nothing."""
    tree = ast.parse(
        "from . import errors\nfrom .. import _native\nfrom ..graph import Graph\nimport infiniop_py.cache"
    )
    assert _imports("ops.gemm", tree) == {"_native", "graph", "cache", "ops"}


@pytest.mark.parametrize("name", MODULES)
def test_no_import_dodges_the_order(name: str) -> None:
    tree = ast.parse(MODULES[name].read_text(encoding="utf-8"))
    late = set()
    for function in ast.walk(tree):
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            for node in ast.walk(function):
                if isinstance(node, ast.Import):
                    late |= {alias.name.split(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom):
                    late.add((node.module or "").split(".")[0] if not node.level else ".")
    assert late <= LATE.get(name, set())


@pytest.mark.parametrize("name", [name for name in MODULES if name != "_native"])
def test_only_one_module_imports_cffi(name: str) -> None:
    tree = ast.parse(MODULES[name].read_text(encoding="utf-8"))
    names = {
        alias.name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    } | {(node.module or "").split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not names & {"_cffi_backend"}
    assert "cffi" not in names or name == "_cffi_build"
