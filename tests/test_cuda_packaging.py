"""Where the build finds a CUDA compiler, what it says where there is none that works, and what it installs.

The compilers are scripts and nothing is compiled; a slow test of test_packaging.py makes a real wheel.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import children
import pytest

ROOT = children.ROOT
if not (ROOT / "native" / "CMakeLists.txt").is_file():
    pytest.skip("these tests do not lie in a source tree", allow_module_level=True)
if shutil.which("cmake") is None or not any(map(shutil.which, ("c++", "g++", "clang++"))):
    pytest.skip("cmake or a C++ compiler is not installed", allow_module_level=True)

#: Says what nvcc -v says of its folders, if what it is asked to preprocess is there.
NVCC = """#!/bin/sh
for source; do :; done
[ -f "$source" ] || exit 9
echo '#$ INCLUDES="-I{home}/include"  ' >&2
echo '#$ LIBRARIES=  "-L{home}/lib64/stubs" "-L{home}/lib64"' >&2
"""
CUDA_VARIABLES = ("CUDACXX", "CUDA_HOME", "CUDA_PATH")


def toolkit(home: Path, bin: str = "bin", lib: str = "lib64", script: str = NVCC) -> Path:
    """A CUDA toolkit in `home` that has nothing in it; its nvcc."""
    nvcc = home / bin / "nvcc"
    for file in (nvcc, home / lib / "libcudart_static.a", home / "include" / "cuda_runtime_api.h"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    nvcc.write_text(script.format(home=home))
    nvcc.chmod(0o755)
    return nvcc


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("venv")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A build folder; what is found out about the C++ compiler stays known in it."""
    folder = tmp_path_factory.mktemp("build")
    done = configure(folder, "OFF")
    assert done.returncode == 0 and "NVIDIA" not in done.stdout
    return folder


def configure(
    build: Path, cuda: str, *options: str, path: str = "", **variables: object
) -> subprocess.CompletedProcess[str]:
    """What cmake says with INFINIOP_CUDA=`cuda`; an earlier call is remembered as in any build folder."""
    env = {name: value for name, value in os.environ.items() if name not in CUDA_VARIABLES}
    # folders with an nvcc are left out of PATH, but not the tools that are in them, too
    tools = build / "tools"
    tools.mkdir(exist_ok=True)
    for name in ("cmake", "ninja", "make", "c++", "g++", "clang++", os.environ.get("CXX", "c++")):
        found = shutil.which(name)
        if found is not None and "/" not in name and not (tools / name).exists():
            (tools / name).symlink_to(found)
    folders = [folder for folder in os.get_exec_path() if not (Path(folder) / "nvcc").exists()]
    env["PATH"] = os.pathsep.join([*filter(None, [path]), str(tools), *folders])
    env |= {name: str(value) for name, value in variables.items()}
    # the last place that is looked at, whatever PATH says
    ignored = "-DCMAKE_IGNORE_PATH=/usr/local/cuda/bin"
    command = ["cmake", "-S", str(ROOT / "native"), "-B", str(build), ignored, f"-DINFINIOP_CUDA={cuda}"]
    return subprocess.run(
        [*command, *options],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )


def said(done: subprocess.CompletedProcess[str]) -> str:
    """What was said of the backend: a line of status, or an error, whose lines CMake breaks."""
    status = r"^-- ((?:No )?NVIDIA backend.*)$"
    error = r"^  (INFINIOP_CUDA.*(?:\n  .*)*)"
    found = re.search(f"{status}|{error}", done.stdout, flags=re.MULTILINE)
    assert found is not None, done.stdout
    return " ".join((found[1] or found[2]).split())


# ---- where it is found -----------------------------------------------------------------------------------


def test_the_first_compiler_is_taken(build: Path, python: Path, tmp_path: Path) -> None:
    site = next((python.parent.parent / "lib").glob("python*/site-packages"))
    named = toolkit(tmp_path / "named")
    places = {
        named: {"CUDACXX": named},
        toolkit(tmp_path / "home"): {"CUDA_HOME": tmp_path / "home"},
        toolkit(tmp_path / "path"): {"path": str(tmp_path / "path" / "bin")},
        # the Python packages, which have lib where their nvcc says lib64
        toolkit(site / "nvidia" / "cu13", lib="lib"): {},
    }
    options = ("-UINFINIOP_NVCC", f"-DPython_EXECUTABLE={python}", "-UPython_SITELIB", "-UPython_SITEARCH")
    while places:
        variables: dict[str, object] = {}
        for place in places.values():
            variables |= place
        done = configure(build, "ON", *options, **variables)  # type: ignore[arg-type]
        assert done.returncode == 0, done.stdout
        nvcc = next(iter(places))
        assert said(done).startswith(f"NVIDIA backend: {nvcc}, for 80-real;90-real;100,")
        places.pop(nvcc)


def test_it_is_looked_for_again_when_it_is_gone(build: Path, tmp_path: Path) -> None:
    """As that of pip's environment for a build is, while the build folder stays."""
    for name in ("one", "other"):
        toolkit(tmp_path / name)
    one, other = (str(tmp_path / name / "bin") for name in ("one", "other"))
    assert one in said(configure(build, "AUTO", "-UINFINIOP_NVCC", path=one))
    assert one in said(configure(build, "AUTO", path=other))
    shutil.rmtree(tmp_path / "one")
    assert other in said(configure(build, "AUTO", path=other))


def test_architectures(build: Path, tmp_path: Path) -> None:
    nvcc = toolkit(tmp_path)
    written = build / "cuda" / "command"
    # one with PTX, one without
    configure(build, "ON", "-DINFINIOP_CUDA_ARCHITECTURES=86;90-real", CUDACXX=nvcc)
    _, shared, own = written.read_text().splitlines()
    codes = re.findall(r"-gencode=([\w=,]+)", own)
    assert codes == [
        "arch=compute_86,code=sm_86",
        "arch=compute_86,code=compute_86",
        "arch=compute_90,code=sm_90",
    ]
    assert shared == own
    # what was said is forgotten if it is said again as nothing
    configure(build, "ON", "-DINFINIOP_CUDA_ARCHITECTURES=", CUDACXX=nvcc)
    _, shared, own = written.read_text().splitlines()
    assert re.findall(r",code=(\w+)", own) == ["sm_80", "sm_90", "sm_100", "compute_100"]
    # later ones are made of the PTX of the newest that the sources know
    assert re.findall(r"arch=compute_(\d+),code=(\w+)", shared) == [
        ("80", "sm_80"),
        ("90", "sm_90"),
        ("90", "sm_100"),
        ("90", "compute_90"),
    ]


# ---- where there is none ---------------------------------------------------------------------------------

FAILING = "#!/bin/sh\necho '#$ TOP=/fatal' >&2\n{}\nexit {}\n"
REMEDY = "; pip install 'cuda-toolkit[nvcc,cudart,crt,cccl]==13.0.*', or name a compiler in CUDACXX"
# the script; what is said of it
BROKEN = {
    "fails": ("", 3, "does not work: it ended with 3"),
    "sentence": ("echo 'not a CUDA machine' >&2", 1, "does not work: not a CUDA machine"),
    "architecture": (
        "printf '%s\\n' 'nvcc warning' \"nvcc fatal   : Unsupported gpu architecture 'compute_77'\" >&2",
        1,
        "does not work: nvcc fatal : Unsupported gpu architecture 'compute_77'",
    ),
    "host": (
        "printf '%s\\n' 'In file included from a:' 'h:1:2: error: #error -- unsupported GNU!' 'after' >&2",
        2,
        "does not work: h:1:2: error: #error -- unsupported GNU!",
    ),
    "headers": (
        "echo 'cuda_fp16.h:9: fatal error: nv/target: No such file or directory' >&2",
        2,
        f"does not work: cuda_fp16.h:9: fatal error: nv/target: No such file or directory{REMEDY}",
    ),
}


@pytest.mark.parametrize(("says", "status", "sentence"), BROKEN.values(), ids=BROKEN)
def test_a_broken_compiler(build: Path, tmp_path: Path, says: str, status: int, sentence: str) -> None:
    nvcc = tmp_path / "nvcc"
    nvcc.write_text(FAILING.format(says, status))
    nvcc.chmod(0o755)
    done = configure(build, "ON", CUDACXX=nvcc)
    assert done.returncode == 1
    assert said(done) == f"INFINIOP_CUDA=ON: {nvcc} {sentence}."
    done = configure(build, "AUTO", CUDACXX=nvcc)
    assert done.returncode == 0
    assert said(done) == f"No NVIDIA backend: {nvcc} {sentence}"


@pytest.mark.parametrize("missing", ["lib64/libcudart_static.a", "include/cuda_runtime_api.h"])
def test_a_toolkit_that_is_not_whole(build: Path, tmp_path: Path, missing: str) -> None:
    nvcc = toolkit(tmp_path)
    (tmp_path / missing).unlink()
    done = configure(build, "ON", CUDACXX=nvcc)
    assert done.returncode == 1
    places = ", ".join(f"{tmp_path}/{folder}" for folder in ("include", "lib64/stubs", "lib64"))
    sentence = f"{nvcc} has no libcudart_static.a or no cuda_runtime_api.h in {places}"
    assert said(done) == f"INFINIOP_CUDA=ON: {sentence}{REMEDY}."


def test_no_compiler(build: Path, tmp_path: Path) -> None:
    done = configure(build, "ON", CUDACXX=tmp_path / "none")
    assert done.returncode == 1
    assert said(done) == f"INFINIOP_CUDA=ON: CUDACXX is {tmp_path}/none, and there is no such program."
    python = f"-DPython_EXECUTABLE={sys.executable}"
    done = configure(build, "ON", "-UINFINIOP_NVCC", python, "-UPython_SITELIB", "-UPython_SITEARCH")
    if done.returncode == 0:
        pytest.skip("this Python has a CUDA compiler among its packages")
    sentence = "no nvcc was found in CUDA_HOME, on PATH or among the packages of "
    assert said(done) == f"INFINIOP_CUDA=ON: {sentence}{sys.executable}{REMEDY}."
    done = configure(build, "AUTO")
    assert done.returncode == 0
    assert said(done) == f"No NVIDIA backend: {sentence}{sys.executable}{REMEDY}"


@pytest.mark.parametrize("value", ["1", "on", "NO", ""])
def test_values(build: Path, value: str) -> None:
    done = configure(build, value)
    assert done.returncode == 1
    assert said(done) == f"INFINIOP_CUDA is {value}; it must be AUTO, ON or OFF."


# ---- what is installed -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cuda", "condition"),
    {
        "ON": 'CMAKE_INSTALL_COMPONENT STREQUAL "Unspecified" OR NOT CMAKE_INSTALL_COMPONENT',
        "AUTO": 'CMAKE_INSTALL_COMPONENT STREQUAL "cuda"',  # what was built may be older than the sources
        "OFF": None,
    }.items(),
)
def test_when_the_plugin_is_installed(build: Path, tmp_path: Path, cuda: str, condition: str | None) -> None:
    assert configure(build, cuda, CUDACXX=toolkit(tmp_path)).returncode == 0
    conditions = set()
    for line in (build / "cmake_install.cmake").read_text().splitlines():
        if line.startswith("if("):
            last = line
        elif "libinfini_cuda.so" in line:
            conditions.add(last)
    assert conditions == (set() if condition is None else {f"if({condition})"})


def test_build_native_removes_the_plugin_of_an_earlier_call(tmp_path: Path) -> None:
    """With a cmake that only writes down what it was asked."""
    log = tmp_path / "log"
    cmake = tmp_path / "bin" / "cmake"
    cmake.parent.mkdir()
    cmake.write_text(f'#!/bin/sh\necho "$@" >>{log}\n')
    cmake.chmod(0o755)
    plugin = tmp_path / "lib" / "libinfini_cuda.so"
    plugin.parent.mkdir()
    for options, value, stays in (((), "AUTO", False), (("--cuda",), "ON", True)):
        plugin.touch()
        log.unlink(missing_ok=True)
        env = os.environ | {"PATH": f"{cmake.parent}{os.pathsep}{os.environ['PATH']}"}
        command = [str(ROOT / "build_native.sh"), "--prefix", str(plugin.parent), *options]
        subprocess.run(command, env=env, check=True, capture_output=True)
        asked = log.read_text().splitlines()[0]
        assert f"-DINFINIOP_CUDA={value} " in asked
        # neither the compiler nor the architectures of an earlier call
        assert "-UINFINIOP_NVCC " in asked and "-UINFINIOP_CUDA_ARCHITECTURES " in asked
        assert plugin.exists() == stays
