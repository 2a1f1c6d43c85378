"""``python -m infiniop_py``: info, config, and what they say when the native library cannot be used."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import children
import numpy as np
import pytest

import infiniop_py as ip
from infiniop_py import _info, _native, _selftest
from infiniop_py.__main__ import COMMANDS, main


def command(*arguments: str, module: str = "infiniop_py", **environment: str | None) -> Any:
    """Run ``python -m infiniop_py`` as a shell would. None removes a variable."""
    env = dict(os.environ, PYTHONPATH=str(children.ROOT))
    for name, value in environment.items():
        env.pop(name, None)
        if value is not None:
            env[name] = value
    words = [sys.executable, "-W", "error", "-m", module, *arguments]
    return subprocess.run(words, env=env, capture_output=True, text=True, timeout=120, check=False)


def rows(text: str) -> dict[str, str]:
    """The lines of info by name; further lines of a value belong to it."""
    found: dict[str, str] = {}
    last = ""
    for line in text.splitlines():
        name, value = line[:16].strip(), line[17:]
        last = name or last
        found[last] = value if name else f"{found[last]}\n{value}"
    return found


@pytest.mark.parametrize("library", [None, "/nowhere"])
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", ["--help", "config --cflags", "info"])
def test_a_reader_that_has_seen_enough(words: str, unbuffered: str, library: str | None) -> None:
    """``info | head`` ends without a traceback, whether a line or the last flush finds the pipe closed,
    and whether there is a native library or not."""
    read, write = os.pipe()
    os.close(read)
    env = dict(os.environ, PYTHONPATH=str(children.ROOT), PYTHONUNBUFFERED=unbuffered)
    if library is not None:
        env["INFINIOP_LIBRARY"] = library
    python = [sys.executable, "-m", "infiniop_py", *words.split()]
    done = subprocess.run(python, env=env, stdout=write, stderr=subprocess.PIPE, timeout=120, check=False)
    os.close(write)
    assert done.returncode == 1
    if library is None or words == "info":
        assert done.stderr == b""
    else:
        assert b"INFINIOP_LIBRARY=/nowhere" in done.stderr and b"Traceback" not in done.stderr


# ---- info ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["info", "doctor"])
def test_info(name: str) -> None:
    done = command(name, INFINIOP_NUM_THREADS="1", INFINIOP_MAX_ISA="portable")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    shown = rows(done.stdout)
    assert shown["infiniop_py"].startswith(ip.__version__)
    assert shown["library"] == str(_native.library_path) and shown["runtime"] == str(_native.runtime_path)
    assert str(children.ROOT / "infiniop_py") in shown["package"]
    assert sys.executable in shown["python"] and re.match(r"\d+\.\d+", shown["numpy"])
    assert re.match(r"\d+\.\d+", shown["cffi"]) and shown["platform"] and shown["processor"]
    assert shown["instruction set"].startswith("portable: ")
    assert shown["threads"].startswith("1: INFINIOP_NUM_THREADS=1, ")
    assert "built-in" in shown["CPU"] and shown["CPU"].startswith("1 device, ")
    for kind in ip.DeviceType:
        if not ip.device_count(kind):
            assert re.match(r"not available: .+", shown[kind.name])
    assert re.match(r"\d+ checks on the CPU in \d+\.\d+ s", shown["self-test"])
    assert done.stdout.splitlines()[-1] == "verdict          OK"


def test_info_names_the_plugin_of_a_slot(tmp_path: Path) -> None:
    plugin = children.build_fake_backend(tmp_path)
    done = command("info", INFINIOP_BACKEND_PATH=str(plugin))
    assert done.returncode == 0 and re.match(rf"2 devices, .*{plugin}", rows(done.stdout)["QY"])


def test_info_imports_no_framework() -> None:
    names = ("torch", "jax", "cupy", "threadpoolctl")
    code = (
        "import sys; from infiniop_py.__main__ import main; main(['info'])\n"
        f"print('imported:', *[name for name in {names!r} if name in sys.modules])"
    )
    assert children.run(code).splitlines()[-1] == "imported:"


def test_info_finds_what_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the distributions' metadata alone: there is nothing here that could be imported."""
    for name, version in (("cupy-cuda12x", "13.9"), ("jax", "0.7.1")):
        folder = tmp_path / f"{name}-{version}.dist-info"
        folder.mkdir()
        folder.joinpath("METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    without = [entry for entry in sys.path if "-packages" not in entry and Path(entry) != children.ROOT]
    monkeypatch.setattr(sys, "path", [str(tmp_path), *without])
    shown = dict(_info.facts())
    assert shown["interop"] == "jax 0.7.1, cupy 13.9"
    assert shown["not installed"] == "ml_dtypes, torch, threadpoolctl"


def test_info_says_when_bf16_cannot_be_tested() -> None:
    code = """
        import sys
        sys.modules["ml_dtypes"] = None
        from infiniop_py.__main__ import main
        sys.exit(main(["info"]))
    """
    text = children.run(textwrap.dedent(code))
    assert "not tested: BF16 needs the package ml_dtypes" in text and text.endswith("verdict          OK\n")


def _last_element_off(op: Any) -> Any:
    def wrong(*arguments: Any, **options: Any) -> Any:
        result = op(*arguments, **options)
        out = result[0] if isinstance(result, tuple) else result
        last = (-1,) * out.ndim
        out[last] = out[last] + np.ones((), out.dtype)
        return result

    return wrong


@pytest.mark.parametrize("op", ["gemm", "add", "mul", "add_rms_norm", "rearrange"])
def test_the_self_test_sees_one_wrong_element(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _selftest.run()[1] == []
    monkeypatch.setattr(_selftest, op, _last_element_off(getattr(_selftest, op)))
    faults = _selftest.run()[1]
    assert faults and all(fault.startswith(f"{op} ") and "1 of " in fault for fault in faults)
    tested = [t for t in _selftest.dtypes()[0] if t.is_float or op not in ("gemm", "add_rms_norm")]
    assert all(any(f" {dtype} " in fault for fault in faults) for dtype in tested)


@pytest.mark.parametrize(
    ("replacement", "said"),
    [
        (lambda a, b: (a + b).astype("f4"), "wrong: add F16 5 x 33: float32 (5, 33), wanted float16"),
        (lambda a, b: ip.add(a, b) * np.array(np.nan, "f4"), "wanted"),
        (lambda a, b: ip.add(a, b[:-1]), "wrong: after 6 checks: ShapeError: "),
    ],
    ids=["dtype", "nan", "exception"],
)
def test_a_failing_self_test(
    replacement: Any, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_selftest, "add", replacement)
    assert main(["info"]) == 1
    text = capsys.readouterr().out
    assert said in text and text.splitlines()[-1].startswith("verdict          FAILED: ")


# ---- without the library ---------------------------------------------------------------------------------


def _unusable(kind: str, folder: Path) -> tuple[Path, str]:
    """A library that cannot be used, and a part of the sentence about it."""
    library = folder / _native.library_path.name
    if kind == "missing":
        return folder / "gone", "names neither a folder nor a file called libinfiniop.so"
    for path in (_native.library_path, _native.runtime_path, _native.folder / "_infiniop_cffi.py"):
        shutil.copy(path, folder)
    if kind == "cut":
        library.write_bytes(library.read_bytes()[:5000])
        return folder, "was cut short"
    library.write_bytes(b"no library at all, but longer than the header of one\n" * 4)
    return folder, "invalid ELF header"


BROKEN = ("missing", "cut", "text")


@pytest.mark.parametrize("kind", BROKEN)
@pytest.mark.parametrize("name", ["info", "doctor"])
def test_info_without_the_library(name: str, kind: str, tmp_path: Path) -> None:
    library, said = _unusable(kind, tmp_path)
    done = command(name, INFINIOP_LIBRARY=str(library))
    assert done.returncode == 1 and done.stderr == ""
    shown = rows(done.stdout)
    assert said in shown["library"] and str(library) in shown["library"]
    assert shown["python"] and shown["processor"] and shown["package"]
    assert done.stdout.splitlines()[-1] == "verdict          FAILED: the native library cannot be used"


@pytest.mark.parametrize("arguments", [("config", "--libs"), ("demo",), ("bench",), ("nope",), ()], ids=str)
def test_other_commands_without_the_library(arguments: tuple[str, ...], tmp_path: Path) -> None:
    library, said = _unusable("missing", tmp_path)
    done = command(*arguments, INFINIOP_LIBRARY=str(library))
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("infiniop_py: ") and said in done.stderr
    assert "Traceback" not in done.stderr


def test_programs_get_the_exception(tmp_path: Path) -> None:
    """Also those that are started with -m, and have an argument called info."""
    tmp_path.joinpath("program.py").write_text(
        "try:\n    import infiniop_py\nexcept ImportError as e:\n    print(type(e))"
    )
    python_path = os.pathsep.join([str(tmp_path), str(children.ROOT)])
    done = command("info", module="program", INFINIOP_LIBRARY="/nowhere", PYTHONPATH=python_path)
    assert done.stdout == "<class 'infiniop_py.errors.LibraryError'>\n", done.stderr


def test_commands() -> None:
    done = command("nope")
    assert done.returncode == 2 and "unknown command 'nope'" in done.stderr and done.stdout == ""
    done = command("--help")
    assert done.returncode == 0 and done.stdout.startswith("usage") and done.stderr == ""
    assert all(re.search(rf"^  {name} ", done.stdout, flags=re.MULTILINE) for name in COMMANDS)


# ---- config ----------------------------------------------------------------------------------------------


def test_folders() -> None:
    assert ip.get_include() == str(_native.folder / "include")
    assert ip.get_library_dir() == str(_native.folder)


@pytest.mark.parametrize("name", ["plain", "with a space", "quote's $HOME `x`", "comma, too"])
def test_config_survives_a_shell(name: str, tmp_path: Path) -> None:
    """A program is compiled, linked and run, from a library in a folder of this name."""
    moved = tmp_path / name
    shutil.copytree(_native.folder, moved)
    done = command("config", "--libs", "--cflags", INFINIOP_LIBRARY=str(moved))
    assert done.returncode == 0 and done.stderr == "" and len(done.stdout.splitlines()) == 1
    words = shlex.split(done.stdout)
    assert words[0] == f"-L{moved}" and words[-1] == f"-I{moved}/include" and "-linfiniop" in words
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")
    source = children.ROOT / "native" / "examples" / "gemm.c"
    if compiler is None or not source.is_file():
        pytest.skip("compiling the example needs a C compiler and the source tree")
    build = f"{shlex.quote(compiler)} -std=c99 {shlex.quote(str(source))} {done.stdout.strip()} -o gemm"
    words = ["sh", "-c", f"{build} && ./gemm"]
    ran = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0 and ran.stdout.startswith(" 102.0  204.0"), ran.stderr


def test_config_prints_folders_as_they_are(tmp_path: Path) -> None:
    moved = tmp_path / "with a space"
    shutil.copytree(_native.folder, moved)
    done = command("config", "--cmakedir", "--cflags", "--pkgconfigdir", INFINIOP_LIBRARY=str(moved))
    assert done.stdout.splitlines() == [
        f"'-I{moved}/include'",
        f"{moved}/cmake/infiniop",
        f"{moved}/pkgconfig",
    ]


def test_config_of_nothing() -> None:
    done = command("config")
    assert done.returncode == 2 and "nothing was asked for" in done.stderr


@pytest.mark.parametrize(
    ("flag", "gone"), [("--cflags", "include"), ("--cmakedir", "cmake"), ("--pkgconfigdir", "pkgconfig")]
)
def test_config_of_a_part(flag: str, gone: str, tmp_path: Path) -> None:
    part = tmp_path / "part"
    shutil.copytree(_native.folder, part, ignore=shutil.ignore_patterns(gone))
    done = command("config", flag, INFINIOP_LIBRARY=str(part))
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith(
        f"infiniop_py: only a part of the native library was copied: there is no {part}"
    )
