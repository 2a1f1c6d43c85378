"""Problems at the edge of what numbers can hold, and names that are no file: never a crash or a hang."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from _library import BAD_PARAM, Library
from _ops import OPS, Abi, Layout

MIB = 1 << 20


@pytest.mark.parametrize("rows", [1, 4, 64])
@pytest.mark.parametrize("k", [1 << 20, 1 << 40, 1 << 56, (1 << 57) - 1])
@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_gemm_workspace_is_bounded_whatever_k_is(abi: Abi, dtype: str, k: int, rows: int) -> None:
    """Operands of stride 0 make K as long as one likes; scratch of M * K elements would wrap around."""
    c, a, b = Layout((rows, 4), None, dtype), Layout((rows, k), (0, 0), dtype), Layout((k, 4), (0, 0), dtype)
    desc = abi.created(OPS["gemm"], {"c": c, "a": a, "b": b})
    assert 0 < abi.workspace_size(OPS["gemm"], desc) <= 64 * MIB
    abi.destroy(OPS["gemm"], desc)


@pytest.mark.parametrize("name", ["add", "mul", "rearrange"])
def test_broadcasts_longer_than_memory_are_refused_or_planned(abi: Abi, name: str) -> None:
    """The output cannot be that long, so create says so; nothing on the way there overflows."""
    op = OPS[name]
    huge = Layout(((1 << 62) - 1, 2), (0, 0), "u8")
    layouts = dict.fromkeys(op.operands, huge)
    status, _ = abi.create(op, layouts)
    assert status == 12, abi.lib.message()


def test_a_pipe_is_no_plugin(lib: Library, tmp_path: Path) -> None:
    pipe = tmp_path / "libpipe.so"
    os.mkfifo(pipe)
    assert lib.infinirtLoadBackend(str(pipe).encode()) == BAD_PARAM
    assert str(pipe) in lib.message()


@pytest.mark.parametrize(
    ("value", "isa"), [("portable", "portable"), ("PORTABLE", "portable"), ("sse9", "portable")]
)
def test_isa_cap_is_read_without_case_and_never_means_more(lib: Library, value: str, isa: str) -> None:
    code = (
        "import ctypes, sys\n"
        "lib = ctypes.CDLL(sys.argv[1]); name = ctypes.c_char_p()\n"
        "assert lib.infiniopGetCpuIsa(ctypes.byref(name)) == 0\n"
        "print(name.value.decode())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(lib.folder / "libinfiniop.so")],
        env=dict(os.environ, INFINIOP_MAX_ISA=value),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == isa
