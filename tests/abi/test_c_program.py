"""C and C++ programs that use an installation that was moved: the Python package's, and that of ``cmake
--install``."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

import _compiler
import heap
import pytest
from _headers import HEADERS
from _library import ROOT, Library

EXAMPLES = ROOT / "native" / "examples"
SOURCE = EXAMPLES / "gemm.c"
PRINTED = " 102.0  204.0  306.0  412.0\n 508.0  610.0  712.0  830.0\n"
#: What gemm.cc says besides, of a problem that does not fit.
REFUSED = "BAD_TENSOR_SHAPE: gemm: "
WARNINGS = ("-Wall", "-Wextra", "-pedantic", "-Werror")

CMAKE_PROJECT = """
cmake_minimum_required(VERSION 3.18)
project(user C CXX)
find_package(infiniop ${WANTED} REQUIRED)
add_executable(gemm_c gemm.c)
set_target_properties(gemm_c PROPERTIES C_STANDARD 99 C_STANDARD_REQUIRED ON C_EXTENSIONS OFF)
target_link_libraries(gemm_c PRIVATE infiniop::infiniop)
add_executable(gemm_cc gemm.cc)
set_target_properties(gemm_cc PROPERTIES CXX_STANDARD 17 CXX_STANDARD_REQUIRED ON CXX_EXTENSIONS OFF)
target_link_libraries(gemm_cc PRIVATE infiniop::infiniop)
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


def generator() -> list[str]:
    ninja = find("ninja")
    return ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"] if ninja else []


class Package(NamedTuple):
    """An installation, and where it was made."""

    root: Path
    libraries: Path
    pkgconfig: Path
    cmake: Path
    was: Path

    @property
    def include(self) -> Path:
        return self.root / "include"


#: CMAKE_INSTALL_LIBDIR of an installation by CMake; None is the Python package.
LAYOUTS = {"wheel": None, "prefix": "lib", "multiarch": "lib/x86_64-linux-gnu"}


@pytest.fixture(params=LAYOUTS)
def package(request: pytest.FixtureRequest, lib: Library, tmp_path: Path) -> Package:
    """An installation that was moved to a folder with a space in its name; where it was there is nothing."""
    was, root, libdir = tmp_path / "was here", tmp_path / "moved here", LAYOUTS[request.param]
    if libdir is None:
        shutil.copytree(lib.folder, was, ignore=shutil.ignore_patterns("__pycache__"))
        moved = Package(root, root, root / "pkgconfig", root / "cmake" / "infiniop", was)
    else:
        # The install rules are under test, not the compiler: they get the libraries that are there.
        cmake, build = tool("cmake"), tmp_path / "native"
        if not (ROOT / "native" / "CMakeLists.txt").is_file():
            pytest.skip("installing with CMake needs the source tree")
        _compiler.run(
            [
                *(cmake, "-S", ROOT / "native", "-B", build, *generator()),
                *(f"-DCMAKE_CXX_COMPILER={_compiler.compiler('c++')}", f"-DCMAKE_INSTALL_LIBDIR={libdir}"),
            ]
        )
        for name in ("libinfiniop.so", "libinfinirt.so"):
            shutil.copy(lib.folder / name, build)
        _compiler.run([cmake, "--install", build, "--prefix", was])
        shutil.rmtree(build)
        folder = root / libdir
        moved = Package(root, folder, folder / "pkgconfig", folder / "cmake" / "infiniop", was)
    shutil.move(was, root)
    return moved


@heap.unsanitized("there is debug information")
def test_no_file_knows_where_it_was(package: Package, lib: Library) -> None:
    files = [path for path in package.root.rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {
        *HEADERS,
        "libinfiniop.so",
        "infiniop.pc",
        "infiniopConfig.cmake",
    }
    for path in files:
        content = path.read_bytes()
        for place in (package.was, lib.folder, ROOT):
            assert os.fsencode(place) not in content, f"{path} names {place}"


def test_pkg_config(package: Package, tmp_path: Path) -> None:
    config = tool("pkg-config", "pkgconf")
    variables = {"PKG_CONFIG_PATH": str(package.pkgconfig)}
    flags = _compiler.run([config, "--cflags", "--libs", "infiniop"], **variables)
    assert str(package.root).replace(" ", "\\ ") in flags, "the flags do not follow the folder"
    assert _compiler.run([config, "--modversion", "infiniop"], **variables).strip()
    # Through a shell, as in a makefile: pkg-config quotes for one.
    for language, options, name in (("c", "-std=c99", "gemm.c"), ("c++", "-std=c++17", "gemm.cc")):
        program = tmp_path / f"{name}.program"
        compile_it = f'"{_compiler.compiler(language)}" {options} {" ".join(WARNINGS)}'
        _compiler.run(["sh", "-c", f'{compile_it} "{EXAMPLES / name}" {flags.strip()} -o "{program}"'])
        printed = _compiler.run([program])
        assert printed == PRINTED if language == "c" else printed.startswith(PRINTED + REFUSED)


def test_find_package(package: Package, tmp_path: Path) -> None:
    cmake = tool("cmake")
    project = tmp_path / "user"
    project.mkdir()
    project.joinpath("CMakeLists.txt").write_text(CMAKE_PROJECT)
    project.joinpath("devices.c").write_text(DEVICES)
    for name in ("gemm.c", "gemm.cc"):
        shutil.copy(EXAMPLES / name, project)
    build = tmp_path / "build"
    version = re.search(
        r"^Version: (\d+\.\d+)", (package.pkgconfig / "infiniop.pc").read_text(), re.MULTILINE
    )
    assert version
    # The two ways to say where a package is.
    here = (
        f"-DCMAKE_PREFIX_PATH={package.root}"
        if package.libraries.name == "lib"
        else f"-Dinfiniop_DIR={package.cmake}"
    )
    configure = [
        *(cmake, "-S", project, *generator(), here),
        *(f"-DCMAKE_C_COMPILER={_compiler.compiler()}", f"-DCMAKE_CXX_COMPILER={_compiler.compiler('c++')}"),
        *(f"-DCMAKE_{language}_FLAGS={' '.join(WARNINGS)}" for language in ("C", "CXX")),
    ]
    _compiler.run([*configure, "-B", build, f"-DWANTED={version[1]}"])
    _compiler.run([cmake, "--build", build])
    assert _compiler.run([build / "gemm_c"]) == PRINTED
    assert _compiler.run([build / "gemm_cc"]).startswith(PRINTED + REFUSED)
    _compiler.run([build / "devices"])
    with pytest.raises(AssertionError, match="compatible with requested"):
        _compiler.run([*configure, "-B", tmp_path / "newer", "-DWANTED=99.0"])


def test_an_installation_that_could_not_be_moved_is_refused(tmp_path: Path) -> None:
    cmake = tool("cmake")
    command = [cmake, "-S", ROOT / "native", "-B", tmp_path / "build", *generator()]
    with pytest.raises(AssertionError, match="must be relative to the prefix"):
        _compiler.run([*command, "-DCMAKE_INSTALL_LIBDIR=/opt/lib"])


def test_the_program_says_what_failed(lib: Library, tmp_path: Path) -> None:
    """With a wrong B the program ends with 1 and the library's sentence."""
    wrong = tmp_path / "wrong.c"
    text = SOURCE.read_text(encoding="utf-8")
    wrong.write_text(text.replace("shape_b[2] = {K, N}", "shape_b[2] = {K + 1, N}"))
    program = tmp_path / "wrong"
    _compiler.run(
        [
            *(_compiler.compiler(), "-std=c99", wrong, "-o", program),
            *(f"-I{lib.folder}/include", f"-L{lib.folder}", "-linfiniop", "-linfinirt"),
        ]
    )
    with pytest.raises(AssertionError, match=r"BAD_TENSOR_SHAPE: gemm: .*\ba\b.*\bb\b"):
        _compiler.run([program], LD_LIBRARY_PATH=str(lib.folder))


@pytest.mark.parametrize("header", HEADERS)
def test_each_header_alone(lib: Library, tmp_path: Path, header: str) -> None:
    """Valid C99, C++11 and C++17 without a warning, and complete without another header before it."""
    include = lib.folder / "include"
    for language, standard, suffix in (("c", "c99", ".c"), ("c++", "c++11", ".cc"), ("c++", "c++17", ".cc")):
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


def test_cpp_consumer(lib: Library, tmp_path: Path) -> None:
    source, program = tmp_path / "user.cc", tmp_path / "user"
    source.write_text(CPP_CONSUMER)
    _compiler.run(
        [
            *(_compiler.compiler("c++"), "-std=c++17", *WARNINGS, source, "-o", program),
            *(f"-I{lib.folder}/include", f"-L{lib.folder}", "-linfiniop", "-linfinirt"),
            f"-Wl,-rpath,{lib.folder}",
        ]
    )
    _compiler.run([program])
