"""The example of a product in blocks, in 1, 2 and 4 real MPI processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from children import ROOT

pytest.importorskip("mpi4py")
MPIEXEC = shutil.which(
    "mpiexec", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
)
if MPIEXEC is None:
    pytest.skip("mpiexec is not installed", allow_module_level=True)


def mpi(n: int, *program: str) -> subprocess.CompletedProcess[str]:
    """What comes of a Python program in `n` processes."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [str(MPIEXEC), "-n", str(n), sys.executable, *program]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("n", [1, 2, 4])
@pytest.mark.parametrize(
    "arguments",
    [
        ("--shape", "300x200x501", "--panel", "64"),
        ("--shape", "64x65x66", "--panel", "100", "--dtype", "F64"),
        ("--shape", "5x7x3", "--panel", "1"),
        ("--shape", "1x1x1"),  # fewer of everything than processes
    ],
    ids=" ".join,
)
def test_blocks_make_the_product(n: int, arguments: tuple[str, ...]) -> None:
    done = mpi(n, "-m", "infiniop_py.examples.mpi_gemm", "--whole", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[-2:] == ["the same as A @ (B @ x)", "the same as one process's product"]
    for rank, line in enumerate(lines[1 : 1 + n]):
        assert line.startswith(f"process {rank}: ") and "GFLOP/s" in line
    n_panels = int(lines[0].split()[-2])
    assert f"panel {n_panels} of {n_panels}" in done.stderr


def test_no_process_holds_more_than_its_share() -> None:
    done = mpi(4, "-m", "infiniop_py.examples.mpi_gemm", "--shape", "1024x1024x1024")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(": 3.0 MiB, ") == 4 and "\nall: 12.0 MiB, " in done.stdout


@pytest.mark.parametrize("whole", [(), ("--whole",)], ids=["by a vector", "by one process"])
def test_one_wrong_element_is_noticed(whole: tuple[str, ...]) -> None:
    program = (
        "import sys\n"
        "from infiniop_py.examples import mpi_gemm\n"
        "right = mpi_gemm.Summa.run\n"
        "def wrong(self):\n"
        "    seconds = right(self)\n"
        "    if self.world.rank == 1: self.c[3, 1] += 1\n"
        "    return seconds\n"
        "mpi_gemm.Summa.run = wrong\n"
        f"sys.exit(mpi_gemm.main(['--shape', '40x40x40', *{whole!r}]))"
    )
    done = mpi(2, "-c", program)
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.count("DIFFERS FROM") == 1 + len(whole)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--shape", "3x4"), "'3x4' is no shape; it looks like"),
        (("--shape", "3x4x0"), "'3x4x0' is no shape"),
        (("--panel", "0"), "--panel is 0, needs at least 1"),
        (("--shape", "1x1x2000000"), "sums in F32 are exact up to 1864135; use --dtype F64"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_what_is_wrong_is_said(arguments: tuple[str, ...], words: str) -> None:
    done = mpi(1, "-m", "infiniop_py.examples.mpi_gemm", *arguments)
    assert done.returncode == 2 and words in done.stderr
