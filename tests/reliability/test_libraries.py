"""Plugins and libraries that are faulty, of another version or processor, or none: a sentence that names the
file, what was found and what is needed; nothing crashes or hangs, and the CPU works on.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path

import _child
import _compiler
import children
import pytest
from _library import BAD_PARAM, ROOT

from infiniop_py import _native
from infiniop_py._cffi_build import generate

CHILD = Path(__file__).with_name("_plugin_child.py")
BACKENDS = "_backend_child.py"
INCLUDE = _native.folder / "include"


# ---- plugins -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("plugin") / "failing_plugin.so"
    flags = ("-std=c99", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-fvisibility=hidden")
    folders = (f"-I{INCLUDE}", f"-I{ROOT / 'native' / 'tests'}")
    source = Path(__file__).with_name("failing_plugin.c")
    _compiler.run([_compiler.compiler(), *flags, *folders, source, "-o", target, "-ldl", "-lpthread"])
    return target


def run_failing(failing: Path, which: str) -> int:
    return int(_child.run(str(CHILD), failing, which, timeout=600))


def test_each_entry_fails(failing: Path, record_property: Callable[..., None]) -> None:
    calls = run_failing(failing, "some")
    record_property("cases", calls)
    assert calls > 300


@pytest.mark.slow
def test_each_entry_answers_each_status(failing: Path, record_property: Callable[..., None]) -> None:
    calls = run_failing(failing, "all")
    record_property("cases", calls)
    assert calls > 2000


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return children.build_fake_backend(tmp_path_factory.mktemp("plugin"))


def patched(source: Path, target: Path, at: int, form: str, value: int) -> Path:
    """A copy with other bytes in its ELF header, or in that of its first segment behind it."""
    content = bytearray(source.read_bytes())
    struct.pack_into(form, content, at, value)
    target.write_bytes(content)
    return target


OTHER_MACHINE = 40 if os.uname().machine == "aarch64" else 183
#: What is written into the headers of a plugin, and words of the refusal.
HEADERS: dict[str, tuple[int, str, int, str]] = {
    "another processor": (18, "<H", OTHER_MACHINE, f"ELF machine is {OTHER_MACHINE}, needed "),
    "32 bits": (4, "B", 1, "ELFCLASS32"),
    "another byte order": (5, "B", 2, "endian"),
    "an object file": (16, "<H", 1, "ET_DYN"),
    "segments far away": (32, "<Q", 1 << 62, ""),
    "segments behind the end": (32, "<Q", 1 << 40, "cut short"),
    "a first segment behind the end": (64 + 8, "<Q", 1 << 40, "cut short"),
    "a first segment that is longer than the file": (64 + 32, "<Q", 1 << 40, "cut short"),
    "many segments": (56, "<H", 65535, "cut short"),
    "no segments": (56, "<H", 0, "no loadable segments"),
    "segments of another size": (54, "<H", 8, "phentsize"),
}


def odd_files(folder: Path, plugin: Path) -> dict[Path, str]:
    """What a path may lead to, and words of the refusal."""
    found = {
        patched(plugin, folder / f"{i}.so", at, form, value): words
        for i, (at, form, value, words) in enumerate(HEADERS.values())
    }
    loop, dangling, pipe, door = (folder / f"{name}.so" for name in ("loop", "dangling", "pipe", "socket"))
    loop.symlink_to(loop.name)
    dangling.symlink_to("nothing")
    os.mkfifo(pipe)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(door))
    found |= {
        loop: "Too many levels",
        dangling: "No such file",
        pipe: "no shared library",
        door: "cannot open",
    }
    if os.geteuid():
        secret = folder / "secret.so"
        secret.write_bytes(plugin.read_bytes())
        secret.chmod(0)
        found[secret] = "Permission denied"
    return found | {
        Path("/dev/null"): "no shared library",
        Path("/dev/zero"): "no shared library",
        Path("/" + "x" * 300): "",
        Path("/x" * 5000): "",
    }


def test_what_a_path_may_lead_to(
    plugin: Path, tmp_path_factory: pytest.TempPathFactory, record_property: Callable[..., None]
) -> None:
    folder = tmp_path_factory.mktemp("f")  # a short name: sockets have little room for theirs
    files = odd_files(folder, plugin)
    pairs = [word for path, words in files.items() for word in (path, words)]
    record_property("cases", len(files))
    _child.run(BACKENDS, "all_refused", *pairs)


def test_every_place_where_a_plugin_may_be_cut(
    plugin: Path, tmp_path: Path, record_property: Callable[..., None]
) -> None:
    """Up to the end of what is loaded; of what is behind it nobody asks."""
    content = plugin.read_bytes()
    at, each, n = struct.unpack_from("<32xQ14xHH", content)
    ends = [sum(struct.unpack_from("<8xQ16xQ", content, at + i * each)) for i in range(n)]
    cuts = [*range(200), *range(200, max(ends), 41)]
    record_property("cases", len(cuts))
    (tmp_path / "cuts").write_text(" ".join(map(str, cuts)))
    _child.run(BACKENDS, "cut", plugin, tmp_path)


# ---- libraries of other versions ---------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the libraries and their binding."""
    for path in (_native.library_path, _native.runtime_path, _native.folder / "_infiniop_cffi.py"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


def refusal(folder: Path) -> str:
    """Why a folder was refused; the error names it."""
    done = children.attempt("import infiniop_py", INFINIOP_LIBRARY=str(folder))
    assert done.returncode == 1 and "infiniop_py.errors.LibraryError" in done.stderr, done.stderr
    said = done.stderr[done.stderr.index("infiniop_py.errors.LibraryError") :]
    assert f"INFINIOP_LIBRARY={folder}: " in said
    return said


def stub(target: Path, code: str, *flags: str) -> None:
    """A library of a few lines in the place of a real one."""
    source = target.with_suffix(".c")
    source.write_text(code)
    command = [_compiler.compiler(), "-shared", "-fPIC", f"-Wl,-soname,{target.name}", *flags]
    _compiler.run([*command, source, "-o", target])


def test_library_of_another_version(folder: Path) -> None:
    version = 'int infiniopGetVersion(int *abi, const char **text) { *abi = 7; *text = "9.9"; return 0; }'
    stub(folder / _native.library_path.name, version)
    assert "the library (version 9.9) has interface number 7, but this package needs 1" in refusal(folder)


def test_binding_of_another_version(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    pytest.importorskip("cffi")
    headers = tmp_path_factory.mktemp("include")
    for path in INCLUDE.glob("*.h"):
        text = path.read_text(encoding="utf-8")
        (headers / path.name).write_text(
            text.replace("#define INFINIOP_ABI_VERSION 1", "#define INFINIOP_ABI_VERSION 8")
        )
    generate(headers, folder)
    assert "the binding (version " in (said := refusal(folder))
    assert "has interface number 8, but this package needs 1" in said


def test_runtime_of_another_version(folder: Path) -> None:
    """One that lacks what the library needs."""
    stub(folder / _native.runtime_path.name, "int infinirtInit(void) { return 0; }")
    said = refusal(folder)
    assert "libinfiniop.so" in said and (
        "infinirt" in said and ("undefined symbol" in said or "version" in said)
    )


def test_runtime_missing(folder: Path) -> None:
    """Nor is another one taken, from wherever the linker looks."""
    (folder / _native.runtime_path.name).unlink()
    assert "libinfinirt.so is missing beside it" in refusal(folder)


@pytest.mark.parametrize("name", ["library_path", "runtime_path"])
def test_library_for_another_processor(folder: Path, name: str) -> None:
    original: Path = getattr(_native, name)
    patched(original, folder / original.name, 18, "<H", OTHER_MACHINE)
    said = refusal(folder)
    assert f"{original.name} is for another processor: its ELF machine is {OTHER_MACHINE}, needed " in said


def test_another_library_of_the_same_name(folder: Path) -> None:
    stub(folder / _native.library_path.name, "int something_else;")
    assert "it has no infiniopGetVersion: it is another library, or far too old" in refusal(folder)


NO_FILES: dict[str, Callable[[Path], object]] = {
    "a folder": Path.mkdir,
    "a pipe": os.mkfifo,
    "a loop": lambda path: path.symlink_to(path.name),
    "a dangling link": lambda path: path.symlink_to("nothing"),
}


@pytest.mark.parametrize("kind", NO_FILES)
@pytest.mark.parametrize("name", ["libinfiniop.so", "libinfinirt.so", "_infiniop_cffi.py"])
def test_what_is_no_file(folder: Path, name: str, kind: str) -> None:
    (folder / name).unlink()
    NO_FILES[kind](folder / name)
    assert ("no such file" if name == "libinfiniop.so" else f"{name}") in refusal(folder)


@pytest.mark.parametrize("name", ["libinfiniop.so", "libinfinirt.so", "_infiniop_cffi.py"])
@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"not what it should be\n", b"\0" * 5000])
def test_what_is_another_file(folder: Path, name: str, content: bytes) -> None:
    (folder / name).write_bytes(content)
    assert name in refusal(folder)


def test_the_refusal_is_that_of_the_interface() -> None:
    """BAD_PARAM, as the contract says; the words are tested above."""
    assert _native.lib.infinirtLoadBackend(b"/nothing.so") == BAD_PARAM
