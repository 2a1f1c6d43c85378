"""Importing the package: what it finds, what it says when it finds nothing, and what it must not do."""

from __future__ import annotations

import pickle
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import children
import pytest

import infiniop_py
from infiniop_py import _native

FRAMEWORKS = ("torch", "jax", "cupy", "tensorflow", "ml_dtypes", "cffi", "ctypes")


def test_import_brings_no_framework_and_no_thread() -> None:
    code = textwrap.dedent(
        f"""
        import sys, os, numpy
        before = set(sys.modules)
        threads = len(os.listdir("/proc/self/task"))
        import infiniop_py
        print(*sorted(set({FRAMEWORKS!r}) & (set(sys.modules) - before)))
        print(len(os.listdir("/proc/self/task")) - threads)
        """
    )
    if not Path("/proc/self/task").is_dir():
        pytest.skip("counting threads needs /proc")
    assert children.run(code).split("\n")[:2] == ["", "0"]


def test_import_is_cheap() -> None:
    """Cheaper than NumPy's, at the best of several: other work on the machine slows both."""
    code = textwrap.dedent(
        """
        import time
        start = time.perf_counter()
        import numpy
        middle = time.perf_counter()
        import infiniop_py
        print((time.perf_counter() - middle) / (middle - start))
        """
    )
    children.run(code)  # compiles the modules
    assert min(float(children.run(code)) for _ in range(5)) < 1


def test_version_is_the_library_s() -> None:
    source = children.ROOT / "native" / "CMakeLists.txt"
    assert re.fullmatch(r"\d+\.\d+\.\d+", infiniop_py.__version__)
    if source.is_file():
        assert f"VERSION {infiniop_py.__version__}" in source.read_text(encoding="utf-8")


def test_all_names_exist_and_are_documented() -> None:
    assert sorted(set(infiniop_py.__all__)) == sorted(infiniop_py.__all__)
    for name in infiniop_py.__all__:
        value = getattr(infiniop_py, name)
        if callable(value):
            assert value.__doc__, f"{name} has no docstring"


def test_binding_has_every_function_of_the_headers() -> None:
    text = "".join(
        path.read_text(encoding="utf-8") for path in sorted((_native.folder / "include").glob("*.h"))
    )
    declared = set(re.findall(r"^INFINI_API .*?(infini\w+)\s*\(", text, flags=re.MULTILINE))
    assert len(declared) > 60
    for name in declared:
        assert getattr(_native.lib, name) is not None
    bound = {name for name in dir(_native.lib) if name.startswith(("infinirt", "infiniop"))}
    assert bound == declared


def test_constants_are_those_of_the_headers() -> None:
    for status in infiniop_py.Status:
        assert getattr(_native.lib, f"INFINI_STATUS_{status.name}") == status
    for kind in infiniop_py.DeviceType:
        assert getattr(_native.lib, f"INFINI_DEVICE_{kind.name}") == kind
    assert len(infiniop_py.DeviceType) == _native.lib.INFINI_DEVICE_TYPE_COUNT
    for name in (n for n in dir(_native.lib) if n.startswith("INFINI_DTYPE_") and not n.endswith("INVALID")):
        assert (
            getattr(_native.lib, name) == getattr(infiniop_py.DType, name.removeprefix("INFINI_DTYPE_")).code
        )


# ---- the loader ------------------------------------------------------------------------------------------

WHERE = "import infiniop_py._native as n; print(n.library_path)"


def _error(**environment: str) -> str:
    """The last lines of a failed import."""
    done = children.attempt("import infiniop_py", **environment)
    assert done.returncode == 1
    assert "infiniop_py.errors.LibraryError" in done.stderr
    return done.stderr[done.stderr.index("infiniop_py.errors.LibraryError") :]


#: An editable install brings a finder of its own, an object that would find the package before sys.path does.
ONLY_SYS_PATH = "import sys; sys.meta_path[:] = [f for f in sys.meta_path if isinstance(f, type)]\n"


def _copy(folder: Path) -> Path:
    for name in (_native.library_path.name, _native.runtime_path.name, "_infiniop_cffi.py"):
        shutil.copy(_native.folder / name, folder / name)
    return folder


def test_variable_names_a_folder_or_a_file(tmp_path: Path) -> None:
    folder = _copy(tmp_path)
    library = folder / _native.library_path.name
    assert children.run(WHERE, INFINIOP_LIBRARY=str(folder)).strip() == str(library)
    assert children.run(WHERE, INFINIOP_LIBRARY=str(library)).strip() == str(library)


def test_variable_is_ignored_in_isolated_mode(tmp_path: Path) -> None:
    code = f"import sys; sys.path.insert(0, {str(children.ROOT)!r}); {WHERE}"
    without = children.attempt(code, INFINIOP_LIBRARY=None)
    isolated = children.attempt(code, "-I", INFINIOP_LIBRARY=str(tmp_path))
    assert (isolated.returncode, isolated.stdout) == (without.returncode, without.stdout)
    assert str(tmp_path) not in isolated.stderr


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("lib", "not an absolute path"),
        ("{tmp}", "no such file"),
        ("{tmp}/nothing.so", "neither a folder nor a file called libinfiniop"),
    ],
)
def test_wrong_variable(tmp_path: Path, value: str, reason: str) -> None:
    message = _error(INFINIOP_LIBRARY=value.format(tmp=tmp_path))
    assert reason in message and value.format(tmp=tmp_path) in message
    assert "./build_native.sh" in message and "pip install" in message


def test_not_a_library(tmp_path: Path) -> None:
    (_copy(tmp_path) / _native.library_path.name).write_text("not a library, " * 100)
    assert "invalid ELF header" in _error(INFINIOP_LIBRARY=str(tmp_path))


@pytest.mark.parametrize("name", ["library_path", "runtime_path"])
@pytest.mark.parametrize("place", ["variable", "search path"])
def test_library_cut_short(tmp_path: Path, name: str, place: str) -> None:
    """What a full disk leaves behind. Opening it would end the process without a word."""
    whole: Path = getattr(_native, name)
    cut = _copy(tmp_path) / whole.name
    cut.write_bytes(whole.read_bytes()[:5000] + bytes(60_000))
    if place == "variable":
        message = _error(INFINIOP_LIBRARY=str(tmp_path))
    else:
        # The import takes the libraries of one folder, whatever the linker would have found for the second.
        code = (
            "import infiniop_py._native as n\n"
            "try:\n    n._system_folder()\nexcept n._Rejected as e:\n    print(e)"
        )
        message = children.run(code, LD_LIBRARY_PATH=str(tmp_path))
    assert f"{whole.name} was cut short" in message


def test_binding_missing(tmp_path: Path) -> None:
    (_copy(tmp_path) / "_infiniop_cffi.py").unlink()
    assert "_infiniop_cffi.py, the binding of this build, is missing" in _error(
        INFINIOP_LIBRARY=str(tmp_path)
    )


def test_binding_of_another_interface(tmp_path: Path) -> None:
    """Also what a library of another version meets: the number is asked of both."""
    code = "import infiniop_py._native as n"
    source = children.ROOT / "infiniop_py"
    package = tmp_path / "infiniop_py"
    shutil.copytree(source, package, ignore=shutil.ignore_patterns("_lib", "__pycache__"))
    native = package / "_native.py"
    native.write_text(native.read_text(encoding="utf-8").replace("ABI_VERSION = 1", "ABI_VERSION = 2", 1))
    done = children.attempt(
        f"{ONLY_SYS_PATH}sys.path.insert(0, {str(tmp_path)!r}); {code}", INFINIOP_LIBRARY=str(_native.folder)
    )
    assert done.returncode == 1
    assert "has interface number 1, but this package needs 2" in done.stderr


def test_failure_lists_every_place(tmp_path: Path) -> None:
    package = tmp_path / "infiniop_py"
    shutil.copytree(
        children.ROOT / "infiniop_py", package, ignore=shutil.ignore_patterns("_lib", "__pycache__")
    )
    code = (
        f"{ONLY_SYS_PATH}sys.path.insert(0, {str(tmp_path)!r})\n"
        "from importlib import metadata\n"
        "def missing(name): raise metadata.PackageNotFoundError(name)\n"
        "metadata.distribution = missing\n"
        "try:\n    import infiniop_py\nexcept ImportError as e:\n    print(e)"
    )
    text = children.run(code, cwd=tmp_path, INFINIOP_LIBRARY=None, LD_LIBRARY_PATH=None)
    assert f"{package}/_lib: no such file" in text
    assert "the dynamic linker's search path" in text
    assert text.strip().endswith("libinfiniop.so.")


def test_installed_distribution_serves_a_clone_without_a_build(tmp_path: Path) -> None:
    package = tmp_path / "clone" / "infiniop_py"
    shutil.copytree(
        children.ROOT / "infiniop_py", package, ignore=shutil.ignore_patterns("_lib", "__pycache__")
    )
    installed = tmp_path / "site" / "infiniop_py" / "_lib"
    installed.mkdir(parents=True)
    _copy(installed)
    info = tmp_path / "site" / "infiniop_py-9.9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: infiniop_py\nVersion: 9.9\n")
    code = f"{ONLY_SYS_PATH}sys.path[:0] = [{str(package.parent)!r}, {str(tmp_path / 'site')!r}]; {WHERE}"
    assert children.run(code, INFINIOP_LIBRARY=None).strip() == str(installed / _native.library_path.name)


def test_system_search_path_is_last_and_never_relative(tmp_path: Path) -> None:
    package = tmp_path / "clone" / "infiniop_py"
    shutil.copytree(
        children.ROOT / "infiniop_py", package, ignore=shutil.ignore_patterns("_lib", "__pycache__")
    )
    system = tmp_path / "system"
    system.mkdir()
    _copy(system)
    code = (
        f"{ONLY_SYS_PATH}sys.path.insert(0, {str(package.parent)!r})\n"
        "from importlib import metadata\n"
        "def missing(name): raise metadata.PackageNotFoundError(name)\n"
        "metadata.distribution = missing\n"
    )
    found = children.run(code + WHERE, INFINIOP_LIBRARY=None, LD_LIBRARY_PATH=str(system)).strip()
    assert found == str(system / _native.library_path.name)
    done = children.attempt(code + WHERE, cwd=system, INFINIOP_LIBRARY=None, LD_LIBRARY_PATH=f":{system}")
    assert done.returncode == 1 and "LD_LIBRARY_PATH has an entry that is not absolute" in done.stderr


def test_library_error_is_an_import_error() -> None:
    error = infiniop_py.LibraryError("gone")
    assert isinstance(error, ImportError) and isinstance(error, infiniop_py.InfiniopError)
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == "gone" and copy.status == error.status


# ---- the generator ---------------------------------------------------------------------------------------


def test_generator_reproduces_the_installed_binding(tmp_path: Path) -> None:
    pytest.importorskip("cffi")
    script = children.ROOT / "infiniop_py" / "_cffi_build.py"
    subprocess.run(
        [sys.executable, str(script), str(_native.folder / "include"), str(tmp_path)],
        check=True,
        capture_output=True,
    )
    made = (tmp_path / "_infiniop_cffi.py").read_text(encoding="utf-8")
    assert made == (_native.folder / "_infiniop_cffi.py").read_text(encoding="utf-8")


def test_generator_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    from infiniop_py._cffi_build import preprocess

    for text in ("#if __STDC_VERSION__ > 1\n", "#pragma once\n"):
        with pytest.raises(ValueError, match=r"#(if|pragma)"):
            preprocess(text, {})
    assert preprocess("#define F(x) a_##x + x /* c */\nint y = F(b);", {}).split() == [
        "int",
        "y",
        "=",
        "a_b",
        "+",
        "b;",
    ]
    assert preprocess("#ifdef NO\nint a;\n#else\nint b;\n#endif", {}).strip() == "int b;"


def test_import_leaves_alone_what_only_commands_need() -> None:
    """Reading the metadata of packages takes as long to import as all the rest."""
    code = (
        "import sys, numpy; before = set(sys.modules); import infiniop_py; print(*set(sys.modules) - before)"
    )
    new = children.run(code).split()
    assert "infiniop_py._native" in new
    assert not [name for name in new if name in ("infiniop_py._facts", "infiniop_py._info", "argparse")]
