"""What the two libraries export is what the headers declare, and they can be moved."""

import re
import shutil
import subprocess

import pytest
from _library import Library

LIBRARIES = {
    "libinfinirt.so": ("infinirt.h", "infini_backend.h"),
    "libinfiniop.so": ("infiniop.h",),
}
# What a C++ library needs of any system. Neither a BLAS nor an OpenMP runtime.
SYSTEM = re.compile(r"(libc|libm|libdl|libpthread|librt|libgcc_s|libstdc\+\+|ld-linux[-\w]*)\.so(\.\d+)?")

pytestmark = pytest.mark.skipif(shutil.which("readelf") is None, reason="readelf (binutils) is not installed")


def readelf(lib: Library, name: str, *options: str) -> str:
    command = ["readelf", "--wide", *options, str(lib.folder / name)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def dynamic(lib: Library, name: str, tag: str) -> list[str]:
    """The values of one tag of the dynamic section."""
    return re.findall(rf"\({tag}\).*\[(.*)\]", readelf(lib, name, "--dynamic"))


def exported(lib: Library, name: str) -> dict[str, str]:
    """Symbol -> version of everything that is defined and visible."""
    symbols = {}
    for line in readelf(lib, name, "--dyn-syms").splitlines():
        columns = line.split()
        if len(columns) < 8 or columns[4] not in ("GLOBAL", "WEAK") or columns[6] in ("UND", "ABS"):
            continue
        symbol, _, version = columns[7].partition("@@")
        symbols[symbol] = version
    return symbols


@pytest.fixture
def released(lib: Library) -> Library:
    """The libraries as users get them."""
    if {"libasan", "libtsan"} & {needed.split(".")[0] for needed in dynamic(lib, "libinfiniop.so", "NEEDED")}:
        pytest.skip("the libraries are built with sanitizers")
    return lib


@pytest.mark.parametrize("name", LIBRARIES)
def test_exports_are_the_declarations(lib: Library, name: str) -> None:
    declared = {function.name for function in lib.declared if function.header in LIBRARIES[name]}
    assert set(exported(lib, name)) == declared


@pytest.mark.parametrize("name", LIBRARIES)
def test_every_symbol_has_a_version(lib: Library, name: str) -> None:
    without = [symbol for symbol, version in exported(lib, name).items() if not version]
    assert not without


@pytest.mark.parametrize("name", LIBRARIES)
def test_soname_is_the_file_name(lib: Library, name: str) -> None:
    assert dynamic(lib, name, "SONAME") == [name]


def test_the_libraries_find_each_other(lib: Library) -> None:
    assert dynamic(lib, "libinfiniop.so", "RUNPATH") == ["$ORIGIN"]
    assert "libinfinirt.so" in dynamic(lib, "libinfiniop.so", "NEEDED")
    assert "libinfiniop.so" not in dynamic(lib, "libinfinirt.so", "NEEDED")


@pytest.mark.parametrize("name", LIBRARIES)
def test_needs_only_the_system(released: Library, name: str) -> None:
    foreign = [
        needed
        for needed in dynamic(released, name, "NEEDED")
        if not SYSTEM.fullmatch(needed) and needed != "libinfinirt.so"
    ]
    assert not foreign


@pytest.mark.parametrize("name", LIBRARIES)
def test_thread_locals_are_few_bytes_that_every_thread_has(lib: Library, name: str) -> None:
    """The rest of a process has to share the room for them, see core/thread_local.h."""
    (segment,) = re.findall(r"^ *TLS +(.*)$", readelf(lib, name, "--program-headers"), re.MULTILINE)
    assert int(segment.split()[4], 16) <= 64
    assert "STATIC_TLS" in readelf(lib, name, "--dynamic")


def test_the_published_misspelling_is_exported(lib: Library) -> None:
    assert {"infinirtGraphLuanch", "infinirtGraphLaunch"} <= set(exported(lib, "libinfinirt.so"))
