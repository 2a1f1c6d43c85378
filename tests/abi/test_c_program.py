"""C and C++ programs that use the installed package, from a folder it was moved to."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import _compiler
import pytest
from _headers import HEADERS
from _library import ROOT, Library

SOURCE = ROOT / "native" / "examples" / "gemm.c"
PRINTED = " 102.0  204.0  306.0  412.0\n 508.0  610.0  712.0  830.0\n"
WARNINGS = ("-Wall", "-Wextra", "-pedantic", "-Werror")

CMAKE_PROJECT = """
cmake_minimum_required(VERSION 3.18)
project(user C)
find_package(infiniop REQUIRED)
add_executable(gemm gemm.c)
set_target_properties(gemm PROPERTIES C_STANDARD 99 C_STANDARD_REQUIRED ON C_EXTENSIONS OFF)
target_link_libraries(gemm PRIVATE infiniop::infiniop)
# The runtime alone is a target too.
add_executable(devices devices.c)
target_link_libraries(devices PRIVATE infiniop::infinirt)
"""
DEVICES = """
#include <infinirt.h>
int main(void) {
    int counts[INFINI_DEVICE_TYPE_COUNT];
    return infinirtGetAllDeviceCount(counts) != INFINI_STATUS_SUCCESS || counts[INFINI_DEVICE_CPU] != 1;
}
"""
CPP_CONSUMER = """
#include <infini_backend.h>
#include <infiniop.h>
#include <infinirt.h>
#include <type_traits>
static_assert(std::is_same_v<decltype(&infiniopCreateHandle), infiniStatus_t (*)(infiniopHandle_t *)>);
int main() {
    infiniopHandle_t handle = nullptr;
    if (infiniopCreateHandle(&handle) != INFINI_STATUS_SUCCESS) return 1;
    const bool cpu = handle->device == INFINI_DEVICE_CPU && handle->device_id == 0;
    InfiniBackendInfo info{};
    if (infinirtGetBackendInfo(INFINI_DEVICE_CPU, &info) != INFINI_STATUS_SUCCESS) return 1;
    return infiniopDestroyHandle(handle) == INFINI_STATUS_SUCCESS && cpu && info.available ? 0 : 1;
}
"""


def find(*names: str) -> str | None:
    """A program from PATH or beside this Python."""
    places = os.pathsep.join([os.environ.get("PATH", ""), str(Path(sys.executable).parent)])
    return next((found for name in names if (found := shutil.which(name, path=places))), None)


def tool(*names: str) -> str:
    """A program that the test needs; the test is skipped where there is none."""
    return find(*names) or pytest.skip(f"none of {', '.join(names)} is installed")


@pytest.fixture
def package(lib: Library, tmp_path: Path) -> Path:
    """A copy of the installed package in a folder with a space in its name."""
    moved = tmp_path / "moved here"
    shutil.copytree(lib.folder, moved)
    return moved


def test_pkg_config(package: Path, tmp_path: Path) -> None:
    config = tool("pkg-config", "pkgconf")
    variables = {"PKG_CONFIG_PATH": str(package / "pkgconfig")}
    flags = _compiler.run([config, "--cflags", "--libs", "infiniop"], **variables)
    assert str(package).replace(" ", "\\ ") in flags, "the flags do not follow the folder"
    assert _compiler.run([config, "--modversion", "infiniop"], **variables).strip()
    program = tmp_path / "gemm"
    # Through a shell, as in a makefile: pkg-config quotes for one.
    line = f'"{_compiler.compiler()}" -std=c99 {" ".join(WARNINGS)} "{SOURCE}" {flags.strip()} -o "{program}"'
    _compiler.run(["sh", "-c", line])
    assert _compiler.run([program], LD_LIBRARY_PATH=str(package)) == PRINTED


def test_find_package(package: Path, tmp_path: Path) -> None:
    cmake, ninja = tool("cmake"), find("ninja")
    generator = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"] if ninja else []
    project = tmp_path / "user"
    project.mkdir()
    project.joinpath("CMakeLists.txt").write_text(CMAKE_PROJECT)
    project.joinpath("devices.c").write_text(DEVICES)
    shutil.copy(SOURCE, project)
    build = tmp_path / "build"
    _compiler.run(
        [
            cmake,
            *("-S", project, "-B", build, *generator),
            f"-DCMAKE_PREFIX_PATH={package / 'cmake'}",
            f"-DCMAKE_C_COMPILER={_compiler.compiler()}",
            f"-DCMAKE_C_FLAGS={' '.join(WARNINGS)}",
        ]
    )
    _compiler.run([cmake, "--build", build])
    assert _compiler.run([build / "gemm"]) == PRINTED
    _compiler.run([build / "devices"])


def test_the_program_says_what_failed(package: Path, tmp_path: Path) -> None:
    """With a wrong B the program ends with 1 and the library's sentence."""
    wrong = tmp_path / "wrong.c"
    text = SOURCE.read_text(encoding="utf-8")
    wrong.write_text(text.replace("shape_b[2] = {K, N}", "shape_b[2] = {K + 1, N}"))
    program = tmp_path / "wrong"
    _compiler.run(
        [
            *(_compiler.compiler(), "-std=c99", wrong, "-o", program),
            *(f"-I{package}/include", f"-L{package}", "-linfiniop", "-linfinirt"),
        ]
    )
    with pytest.raises(AssertionError, match=r"BAD_TENSOR_SHAPE: gemm: .*\ba\b.*\bb\b"):
        _compiler.run([program], LD_LIBRARY_PATH=str(package))


@pytest.mark.parametrize("header", HEADERS)
def test_each_header_alone(lib: Library, tmp_path: Path, header: str) -> None:
    """Valid C99 and C++17 without a warning, and complete without another header before it."""
    include = lib.folder / "include"
    for language, standard, suffix in (("c", "c99", ".c"), ("c++", "c++17", ".cc")):
        source = tmp_path / f"alone{suffix}"
        source.write_text(f"#include <{header}>\n#include <{header}>\nint nothing;\n")
        _compiler.run(
            [
                _compiler.compiler(language),
                f"-std={standard}",
                *WARNINGS,
                "-fsyntax-only",
                f"-I{include}",
                source,
            ]
        )


def test_the_headers_are_the_sources(lib: Library) -> None:
    for header in HEADERS:
        installed = (lib.folder / "include" / header).read_text(encoding="utf-8")
        assert installed == (ROOT / "native" / "include" / header).read_text(encoding="utf-8"), header


def test_cpp_consumer(package: Path, tmp_path: Path) -> None:
    source, program = tmp_path / "user.cc", tmp_path / "user"
    source.write_text(CPP_CONSUMER)
    _compiler.run(
        [
            *(_compiler.compiler("c++"), "-std=c++17", *WARNINGS, source, "-o", program),
            *(f"-I{package}/include", f"-L{package}", "-linfiniop", "-linfinirt", f"-Wl,-rpath,{package}"),
        ]
    )
    _compiler.run([program])
