"""libinfini_cuda.so as nvcc made it, where there is no GPU: what it needs and exports, and what it says with
no driver, or with one that is too old or does not start. What it computes is tested with another build of
its sources (native/tests/cuda), and by tests/gpu where there is a device.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import _child
import _compiler
import pytest
from _library import ROOT
from test_symbols import SYSTEM

BUILT = ROOT / "build" / "native-release" / "libinfini_cuda.so"
OLDEST = "13.0"  # what its runtime needs of a driver

needs_build = pytest.mark.skipif(not BUILT.is_file(), reason=f"no {BUILT}; run ./build_native.sh --cuda")


def readelf(*options: str) -> str:
    if shutil.which("readelf") is None:
        pytest.skip("readelf (binutils) is not installed")
    return subprocess.run(
        ["readelf", "--wide", *options, str(BUILT)], check=True, capture_output=True, text=True
    ).stdout


@needs_build
def test_it_needs_nothing_of_cuda() -> None:
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", readelf("--dynamic"))
    assert needed and all(SYSTEM.fullmatch(name) for name in needed)


@needs_build
def test_it_exports_its_entry_alone() -> None:
    rows = [line.split() for line in readelf("--dyn-syms").splitlines()]
    shown = [row[7] for row in rows if len(row) > 7 and row[4] in ("GLOBAL", "WEAK") and row[6] != "UND"]
    assert [name.partition("@")[0] for name in shown] == ["infiniBackendGet"]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tests/abi/fake_driver.c in it as libcuda.so.1."""
    folder = tmp_path_factory.mktemp("driver")
    source = Path(__file__).with_name("fake_driver.c")
    flags = ("-std=c99", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1")
    _compiler.run([_compiler.compiler(), *flags, source, "-o", folder / "libcuda.so.1"])
    return folder


# name: what the driver says its version is, what cuInit answers; words of the reason
DRIVERS: dict[str, tuple[int, int, tuple[str, ...]]] = {
    "none": (0, 0, ("no NVIDIA driver is installed",)),
    "too-old": (12040, 0, ("supports CUDA 12.4", f"needed {OLDEST} or later")),
    "far-too-old": (9020, 0, ("supports CUDA 9.2", f"needed {OLDEST} or later")),
    "no-device": (13000, 100, ("sees no device", "CUDA 13.0")),
    "does-not-start": (13010, 3, ("does not start", "CUDA 13.1", "cudaErrorInitializationError")),
    "mismatch": (13000, 803, ("does not start", "cudaErrorSystemDriverMismatch")),
    "unknown": (13000, 999, ("does not start", "cudaErrorUnknown")),
}


@needs_build
@pytest.mark.parametrize("name", DRIVERS)
def test_a_driver_that_does_not_serve_is_a_reason(name: str, driver: Path) -> None:
    version, init, words = DRIVERS[name]
    environment = {
        "LD_LIBRARY_PATH": str(driver),
        "FAKE_DRIVER_VERSION": str(version),
        "FAKE_DRIVER_INIT": str(init),
        "INFINIOP_BACKEND_PATH": str(BUILT),
    }
    said = json.loads(_child.run("_cuda_plugin_child.py", **environment))
    assert said["count"] == 0 and said["error"] == "DeviceError" and said["after"] == [2.0, 4.0]
    for text in (said["reason"], said["message"]):
        assert all(word in text for word in (str(BUILT), *words))


@needs_build
def test_without_any_driver() -> None:
    if Path("/proc/driver/nvidia").exists() or shutil.which("nvidia-smi"):
        pytest.skip("this machine has an NVIDIA driver")
    said = json.loads(_child.run("_cuda_plugin_child.py", INFINIOP_BACKEND_PATH=BUILT))
    assert said["count"] == 0 and "no NVIDIA driver is installed" in said["reason"]


# source: the least number of loads and of stores of 16 bytes that its kernels must have between them
# Of elementwise: 2 operators, 8 kinds of elements, 2 inputs, 2 at once. Of rearrange: 5 sizes, 4 at once.
VECTORS = {"elementwise": (64, 32), "rearrange": (20, 20)}


@needs_build
@pytest.mark.parametrize("name", VECTORS)
def test_memory_is_read_and_written_by_16_bytes(name: str) -> None:
    """What is bound by memory has few instructions for it: counted in the PTX of each architecture."""
    kept = sorted((BUILT.parent / "cuda" / "kept").glob(f"{name}.compute_*.ptx"))
    if not kept:
        pytest.skip("the build kept no PTX; run ./build_native.sh --cuda --tests")
    loads, stores = VECTORS[name]
    for ptx in kept:
        found = Counter(re.findall(r"\b(ld|st)\.global\.(?:v4\.[bfu]32|v2\.[bfu]64)\b", ptx.read_text()))
        assert found["ld"] >= loads and found["st"] >= stores, (ptx.name, found)
