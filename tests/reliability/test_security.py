"""What is opened, what the environment may say, and how the libraries are hardened."""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import _compiler
import children
import heap
import pytest

import infiniop_py as ip
from infiniop_py import _environment, _native

LIBRARIES = (_native.library_path, _native.runtime_path)


@pytest.fixture(autouse=True)
def counted(record_property: Callable[..., None]) -> None:
    record_property("cases", 1)


# ---- what is opened ----------------------------------------------------------------------------------------

#: A library that leaves a note when it is opened.
DECOY = """
#include <stdio.h>
__attribute__((constructor)) static void opened(void) { fclose(fopen(NOTE, "w")); }
"""
DECOYS = (
    "libinfiniop.so",
    "libinfinirt.so",
    "libinfini_qy.so",
    "libinfini_cuda.so",
    "libinfini_cpu.so",
    "qy.so",
)

#: Uses what may make libraries be looked for; prints where those of this project came from.
LOOKS_AROUND = """
import os, re
from pathlib import Path
import numpy as np, infiniop_py as ip
counts = [ip.device_count(kind) for kind in ip.DeviceType]
ip.add(np.ones(3), np.ones(3))
maps = Path("/proc/self/maps").read_text()
print(*sorted({os.path.dirname(path) for path in re.findall(r"(/.*/\\S*infini\\S*)$", maps, re.M)}))
"""


@pytest.fixture
def decoys(tmp_path: Path) -> Path:
    """A folder of them."""
    folder = tmp_path / "decoys"
    folder.mkdir()
    source = tmp_path / "decoy.c"
    source.write_text(DECOY)
    note = f'-DNOTE="{tmp_path / "note"}"'
    made = folder / DECOYS[0]
    _compiler.run([_compiler.compiler(), "-shared", "-fPIC", note, source, "-o", made])
    for name in DECOYS[1:]:
        shutil.copy(made, folder / name)
    (folder / "_infiniop_cffi.py").write_text(f"open({str(tmp_path / 'note')!r}, 'w').close()\n")
    return folder


def was_opened(folder: Path) -> bool:
    return (folder.parent / "note").exists()


def test_the_decoys_leave_a_note(decoys: Path) -> None:
    assert not was_opened(decoys)
    children.run(f"import ctypes; ctypes.CDLL({str(decoys / DECOYS[0])!r})")
    assert was_opened(decoys)


@pytest.mark.parametrize("search_path", [None, "", ".", ":", ".:/nowhere"])
def test_nothing_is_opened_from_the_current_directory(decoys: Path, search_path: str | None) -> None:
    """Nor by its name from the linker's search path, as long as the package has its own."""
    variables = {"LD_LIBRARY_PATH": search_path, "INFINIOP_BACKEND_PATH": "qy.so:./qy.so"}
    found = children.run(LOOKS_AROUND, cwd=decoys, **variables)
    assert found.split() == [str(_native.folder.resolve())] and not was_opened(decoys)


@pytest.mark.parametrize("search_path", [".", ":", "./"])
@pytest.mark.parametrize("missing", ["libinfiniop.so", "libinfinirt.so"])
def test_nor_where_a_library_is_missing(decoys: Path, tmp_path: Path, missing: str, search_path: str) -> None:
    package = tmp_path / "clone" / "infiniop_py"
    shutil.copytree(Path(ip.__file__).parent, package, ignore=shutil.ignore_patterns("_lib", "__pycache__"))
    (package / "_lib").mkdir()
    for path in (*LIBRARIES, _native.folder / "_infiniop_cffi.py"):
        if path.name != missing:
            shutil.copy(path, package / "_lib")
    code = f"""
import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if isinstance(finder, type)]  # no editable install
sys.path.insert(0, {str(package.parent)!r})
from importlib import metadata
def absent(name): raise metadata.PackageNotFoundError(name)
metadata.distribution = absent
import infiniop_py
"""
    done = children.attempt(code, cwd=decoys, INFINIOP_LIBRARY=None, LD_LIBRARY_PATH=search_path)
    assert done.returncode == 1 and "LibraryError" in done.stderr and not was_opened(decoys)


# ---- the environment ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return children.build_fake_backend(tmp_path_factory.mktemp("plugin"))


@pytest.mark.parametrize("flag", ["-I", "-E"])
def test_isolated_mode_ignores_the_environment(plugin: Path, flag: str) -> None:
    """Where Python ignores its own variables. The same without the flag shows that they mean something."""
    code = (
        f"import sys; sys.path.insert(0, {str(children.ROOT)!r})\n"
        "import infiniop_py as ip, logging\n"
        "print(ip.device_count('qy'), logging.getLogger('infiniop_py').level)"
    )
    variables = {"INFINIOP_BACKEND_PATH": str(plugin), "INFINIOP_LOG": "error"}
    assert children.run(code, **variables).split() == ["2", "40"]
    assert children.run(code, flag, INFINIOP_LIBRARY="/nowhere", **variables).split() == ["0", "0"]


def auxiliary(secure: int) -> bytes:
    """As in /proc/self/auxv."""
    return struct.pack("@NNNNNN", 6, 4096, 23, secure, 0, 0)


def test_variables_of_secure_processes_are_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFINIOP_TEST", "value")
    assert _environment.variable("INFINIOP_TEST") == "value" and _environment.variable("INFINIOP_NONE") == ""

    def unreadable(_: Path) -> bytes:
        raise PermissionError

    def missing(_: Path) -> bytes:
        raise FileNotFoundError

    for read, wanted in (
        (lambda _: auxiliary(1), ""),
        (lambda _: auxiliary(0), "value"),
        (unreadable, ""),
        (missing, "value"),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(Path, "read_bytes", read)
            assert _environment.variable("INFINIOP_TEST") == wanted
    for name in ("geteuid", "getegid"):
        with monkeypatch.context() as patched:
            patched.setattr(os, name, lambda: 4711)
            assert _environment.variable("INFINIOP_TEST") == ""


#: Prints whether the process is secure, how many fake devices there are, and the instruction set.
PROGRAM = r"""
#include "infini_backend.h"
#include "infiniop.h"
#include <stdio.h>
#include <sys/auxv.h>
int main(void) {
    int count = -1;
    const char *isa = "";
    if (infinirtGetDeviceCount(INFINI_DEVICE_QY, &count) != INFINI_STATUS_SUCCESS) return 1;
    if (infiniopGetCpuIsa(&isa) != INFINI_STATUS_SUCCESS) return 1;
    return printf("%d %d %s\n", getauxval(AT_SECURE) != 0, count, isa) < 0;
}
"""


@heap.unsanitized("a program of another group does not start")
def test_setgid_programs_ignore_the_environment(plugin: Path, tmp_path: Path) -> None:
    """Of a group that is not the caller's: what setuid programs are to the linker and to the libraries."""
    if os.geteuid() != 0:
        pytest.skip("only root gives a program a group of others")
    if os.statvfs(tmp_path).f_flag & os.ST_NOSUID:
        pytest.skip(f"{tmp_path} is mounted with nosuid")
    program, source = tmp_path / "program", tmp_path / "program.c"
    source.write_text(PROGRAM)
    folder = _native.folder
    libraries = (f"-L{folder}", f"-Wl,-rpath,{folder}", "-linfiniop", "-linfinirt")
    _compiler.run([_compiler.compiler(), f"-I{folder / 'include'}", source, "-o", program, *libraries])
    variables = {"INFINIOP_BACKEND_PATH": str(plugin), "INFINIOP_MAX_ISA": "portable"}
    assert _compiler.run([program], **variables).split() == ["0", "2", "portable"]
    os.chown(program, -1, 65534)
    program.chmod(0o2755)
    secure, count, isa = _compiler.run([program], **variables).split()
    if secure == "0":
        pytest.skip("the system does not run programs with the rights of their group")
    usual = children.run("import infiniop_py as ip; print(ip.cpu_isa())", INFINIOP_MAX_ISA=None)
    assert (count, isa) == ("0", usual.strip())


# ---- hardening ---------------------------------------------------------------------------------------------


def weaknesses(path: Path) -> set[str]:
    """What of hardening a library lacks."""

    def readelf(*options: str) -> str:
        command = ["readelf", "--wide", *options, str(path)]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    segments, entries, needed = readelf("--program-headers"), readelf("--dynamic"), readelf("--dyn-syms")
    stack = re.findall(r"GNU_STACK.*", segments)
    found = {
        "executable stack": not stack or any("RWE" in line.split() for line in stack),
        "relocations stay writable": "GNU_RELRO" not in segments,
        "bound when called": "BIND_NOW" not in entries,
        "code is relocated": "TEXTREL" in entries,
        "no stack protector": "__stack_chk_fail" not in needed,
        # A sanitizer looks after the buffers itself.
        "no _FORTIFY_SOURCE": "__snprintf_chk" not in needed and "libasan" not in entries,
    }
    return {what for what, is_weak in found.items() if is_weak}


needs_readelf = pytest.mark.skipif(
    shutil.which("readelf") is None, reason="readelf (binutils) is not installed"
)


@needs_readelf
@pytest.mark.parametrize("path", LIBRARIES, ids=lambda path: path.name)
def test_the_libraries_are_hardened(path: Path) -> None:
    assert not weaknesses(path)


SAMPLE = """
#include <stdio.h>
int value(int n);
int value(int n) {
    char text[64];
    snprintf(text, sizeof text, "%d", n);
    return text[n];
}
"""
STRONG = (
    "-O2",
    "-fstack-protector-strong",
    "-U_FORTIFY_SOURCE",
    "-D_FORTIFY_SOURCE=2",
    "-Wl,-z,relro,-z,now,-z,noexecstack",
)
RELOCATED = '__asm__(".text\\n.quad stdout\\n");'
#: What is compiled with which flags, and what that lacks.
WEAK: dict[str, tuple[str, tuple[str, ...], set[str]]] = {
    "nothing": (SAMPLE, (), set()),
    "stack": (SAMPLE, ("-Wl,-z,execstack",), {"executable stack"}),
    "relro": (SAMPLE, ("-Wl,-z,norelro",), {"relocations stay writable"}),
    "lazy": (SAMPLE, ("-Wl,-z,lazy",), {"bound when called"}),
    "protector": (SAMPLE, ("-fno-stack-protector",), {"no stack protector"}),
    "fortify": (SAMPLE, ("-U_FORTIFY_SOURCE",), {"no _FORTIFY_SOURCE"}),
    "text": (SAMPLE + RELOCATED, ("-Wl,-z,notext",), {"code is relocated"}),
}


@needs_readelf
@pytest.mark.parametrize("row", WEAK)
def test_each_weakness_is_found(tmp_path: Path, row: str) -> None:
    code, flags, wanted = WEAK[row]
    source, target = tmp_path / "sample.c", tmp_path / "sample.so"
    source.write_text(code)
    _compiler.run([_compiler.compiler(), "-shared", "-fPIC", *STRONG, *flags, source, "-o", target])
    assert weaknesses(target) == wanted
