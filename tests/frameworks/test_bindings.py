"""What is compiled where a framework is: once, and where that fails, with words about it."""

from __future__ import annotations

import ctypes
import os
import shutil
import stat
import threading
from pathlib import Path

import children
import pytest

import infiniop_py as ip
from infiniop_py._bindings import Binding, compiled

_SOURCE = """#include "more.h"
#include "operators.h"
extern "C" int answer() { return infiniop::kOperatorCount * 10 + MORE; }
extern "C" int isa() { const char *name; return infiniopGetCpuIsa(&name); }
"""


@pytest.fixture
def binding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Binding:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "some"
    folder.mkdir()
    (folder / "more.h").write_text("#define MORE 1\n")
    (folder / "calls.cc").write_text(_SOURCE)
    return Binding("infiniop_py.some", "some 1.0", folder / "calls.cc", ["-std=c++17"], [folder])


def _kept(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache" / "infiniop_py").glob("*.so"))


def _answer(path: Path) -> int:
    return ctypes.CDLL(str(path)).answer()


def test_it_is_compiled_once(tmp_path: Path, binding: Binding, monkeypatch: pytest.MonkeyPatch) -> None:
    made = compiled(binding)
    assert _answer(made) == 51 and _kept(tmp_path) == [made]
    assert ctypes.CDLL(str(made)).isa() == 0
    assert stat.S_IMODE(made.parent.stat().st_mode) == 0o700
    assert {path.name for path in made.parent.iterdir()} == {made.name, "lock"}
    before = made.stat()
    assert compiled(binding) == made and made.stat() == before


@pytest.mark.parametrize("changed", ["version", "flags", "source", "header"])
def test_it_is_compiled_again_when_anything_changes(tmp_path: Path, binding: Binding, changed: str) -> None:
    first = compiled(binding)
    if changed == "version":
        binding = binding._replace(framework="some 1.1")
    elif changed == "flags":
        binding = binding._replace(flags=["-std=c++17", "-DEXTRA"])
    elif changed == "source":
        binding.source.write_text(_SOURCE.replace("10", "100"))
    else:
        binding.source.with_name("more.h").write_text("#define MORE 2\n")
    second = compiled(binding)
    assert second != first and _kept(tmp_path) == sorted([first, second])
    assert _answer(second) == {"source": 501, "header": 52}.get(changed, 51)


def test_several_that_want_it_at_once_get_one(
    tmp_path: Path, binding: Binding, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler notes each of its runs."""
    log, found = tmp_path / "runs", []
    compiler = tmp_path / "c++"
    compiler.write_text(f'#!/bin/sh\necho run >> {log}\nexec {_real_compiler()} "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    threads = [threading.Thread(target=lambda: found.append(compiled(binding))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4 and len(set(found)) == 1
    assert log.read_text().split() == ["run"]


def _real_compiler() -> str:
    found = shutil.which("c++") or shutil.which("g++")
    assert found is not None
    return found


def test_without_a_compiler(tmp_path: Path, binding: Binding, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        ip.LibraryError, match=r"infiniop_py\.some compiles .* each version of some .*needs a C\+\+ compiler"
    ):
        compiled(binding)


def test_a_compiler_that_fails_is_quoted(tmp_path: Path, binding: Binding) -> None:
    binding.source.write_text("no such thing\n")
    with pytest.raises(
        ip.LibraryError, match=r"infiniop_py\.some: .*calls\.cc.* failed:\n(.*\n)*.*no such thing"
    ):
        compiled(binding)
    assert not _kept(tmp_path)


def test_a_folder_that_cannot_be_made_is_named(
    tmp_path: Path, binding: Binding, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "infiniop_py").write_text("a file")
    with pytest.raises(ip.LibraryError, match=r"keeps what it compiles in .*infiniop_py: .*XDG_CACHE_HOME"):
        compiled(binding)


def test_a_user_without_a_home(binding: Binding, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(_: int) -> None:
        raise KeyError

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", nobody)
    with pytest.raises(ip.LibraryError, match=r"infiniop_py\.some keeps .*: .*home.*; set XDG_CACHE_HOME"):
        compiled(binding)


def test_it_is_not_imported_with_the_package() -> None:
    children.run("import sys, infiniop_py; assert 'infiniop_py._bindings' not in sys.modules")
