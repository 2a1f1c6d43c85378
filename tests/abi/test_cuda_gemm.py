"""gemm by cublasLt in the NVIDIA backend, on the CPU: the backend's kernels and runtime are those of
native/tests/cuda, the library is fake_cublaslt.cc, which refuses what the real one would.

What is loaded stays for the life of a process, so each test is a step of _cublaslt_child.py in a process of
its own.
"""

from __future__ import annotations

import ctypes.util
import shutil
from pathlib import Path

import _child
import pytest
from _library import (
    DEVICE_NOT_INITIALIZED,
    INTERNAL_ERROR,
    NOT_IMPLEMENTED,
    ROOT,
)

BUILT = ROOT / "build" / "native-release" / "tests"  # of build_native.sh --tests
PLUGIN, LIBRARY = BUILT / "cuda_on_cpu.so", BUILT / "fake_cublaslt.so"
ARCHITECTURE_NOT_SUPPORTED = 8

pytestmark = pytest.mark.skipif(
    not (PLUGIN.is_file() and LIBRARY.is_file()), reason=f"no {PLUGIN}; run ./build_native.sh --tests"
)


def step(name: str, *arguments: object, fake: str = "", **environment: str | Path) -> None:
    """Runs a step with the fake library, but where `environment` says otherwise; "" is as good as unset."""
    variables: dict[str, str | Path] = {
        "INFINIOP_BACKEND_PATH": PLUGIN,
        "INFINIOP_CUBLASLT_PATH": LIBRARY,
        "INFINIOP_CUDA_GEMM": "cublaslt",
        "INFINI_FAKE_CUBLASLT": fake,
        "INFINI_FAKE_CUDA": "",
        "CUDA_HOME": "",
    }
    _child.run("_cublaslt_child.py", name, *arguments, **variables | environment)


@pytest.mark.parametrize("seed", [1, 2])
def test_random_problems(seed: int) -> None:
    step("randomly", seed, 1200)


def test_it_is_captured() -> None:
    step("captured")


def test_threads_load_it_once() -> None:
    step("threads")


def test_k_of_0_is_not_its_business() -> None:
    step("empty")


# ---- algorithms ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("capability", "mebibytes"), [(80, 4), (89, 4), (90, 32), (100, 32)])
def test_workspace(capability: int, mebibytes: int) -> None:
    step("workspace", mebibytes, fake="workspace=-1", INFINI_FAKE_CUDA=f"capability={capability}")


def test_a_workspace_too_large_is_no_algorithm() -> None:
    step("declined", "no algorithm", fake=f"workspace={(32 << 20) + 1}")


def test_no_workspace() -> None:
    step("none_needed", fake="workspace=0")


def test_algorithms_for_aligned_pointers_alone() -> None:
    step("alignment", fake="least=16")


@pytest.mark.parametrize(("tf32", "low"), [("", ""), ("1", ""), ("0", "1"), ("yes", "0")])
def test_precision_is_given_up_only_where_asked(tf32: str, low: str) -> None:
    step("precision", tf32, low, INFINIOP_CUDA_TF32=tf32, INFINIOP_CUDA_SPLIT_K_LOW_PRECISION=low)


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (1, DEVICE_NOT_INITIALIZED),
        (3, INTERNAL_ERROR),
        (7, INTERNAL_ERROR),
        (8, ARCHITECTURE_NOT_SUPPORTED),
        (15, NOT_IMPLEMENTED),
    ],
)
def test_errors_of_a_run(answer: int, status: int) -> None:
    step("failing", status, f"cublasLtMatmul: status {answer}", fake=f"matmul={answer}")


# ---- the next implementation is asked ------------------------------------------------------------


@pytest.mark.parametrize(
    ("fake", "sentence"),
    [
        ("version=110901", "it is version 11.9, needed 12.0 or later"),
        ("create=1", "cublasLtCreate: status 1"),
        ("results=0", "it has no algorithm"),
        ("heuristic=15", "it has no algorithm"),
        ("heuristic=14", "cublasLtMatmulAlgoGetHeuristic: status 14"),
    ],
)
def test_it_declines(fake: str, sentence: str) -> None:
    step("declined", sentence, fake=fake)


@pytest.mark.parametrize("path", ["/nowhere/libcublasLt.so", "/dev/null"])
def test_the_path_names_no_library(path: str) -> None:
    """Nothing else is tried."""
    step("declined", path, INFINIOP_CUBLASLT_PATH=path, CUDA_HOME="/usr", LD_LIBRARY_PATH=BUILT)


def test_the_path_is_relative() -> None:
    sentence = "INFINIOP_CUBLASLT_PATH is libcublasLt.so, needed an absolute path"
    step("declined", sentence, INFINIOP_CUBLASLT_PATH="libcublasLt.so")


def test_the_path_names_another_library() -> None:
    step("declined", f"{PLUGIN}: it has no cublasLtGetVersion", INFINIOP_CUBLASLT_PATH=PLUGIN)


# ---- where it is looked for ----------------------------------------------------------------------


def test_the_oldest() -> None:
    step("taken", "12.0", fake="version=120000")


def test_loaded_already() -> None:
    step("taken", "13.1", LIBRARY, INFINIOP_CUBLASLT_PATH="")


@pytest.mark.parametrize(
    "wheel", ["nvidia/cu13/lib/libcublasLt.so.13", "nvidia/cublas/lib/libcublasLt.so.12"]
)
def test_in_a_wheel(wheel: str, tmp_path: Path) -> None:
    plugin = tmp_path / "infiniop_py" / "_lib" / "libinfini_cuda.so"
    for source, target in ((PLUGIN, plugin), (LIBRARY, tmp_path / wheel)):
        target.parent.mkdir(parents=True)
        shutil.copy(source, target)
    step("taken", INFINIOP_BACKEND_PATH=plugin, INFINIOP_CUBLASLT_PATH="")


@pytest.mark.skipif(
    ctypes.util.find_library("cublasLt") is not None, reason="there is a real cublasLt, which would be found"
)
@pytest.mark.parametrize("name", ["libcublasLt.so.13", "libcublasLt.so.12"])
def test_in_a_folder(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "lib64"
    folder.mkdir()
    shutil.copy(LIBRARY, folder / name)
    step("taken", INFINIOP_CUBLASLT_PATH="", LD_LIBRARY_PATH=folder)
    step("taken", INFINIOP_CUBLASLT_PATH="", CUDA_HOME=tmp_path)
    step("missing", INFINIOP_CUBLASLT_PATH="")
