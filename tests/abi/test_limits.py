"""Problems at the edge of what numbers can hold, and names that are no file: never a crash or a hang."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from _library import BAD_PARAM, Library
from _ops import OPS, Abi, Layout, Memory, encode

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


@pytest.mark.parametrize("m, n, k", [(1, 40, 300), (5, 40, 300), (9, 70, 520), (40, 33, 257), (100, 70, 520)])
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
def test_gemm_stays_in_its_workspace(abi: Abi, dtype: str, m: int, n: int, k: int) -> None:
    """B in rows, in columns and with steps; C in rows and with steps."""
    for c_strides in ((n, 1), (2 * n, 2)):
        for b_strides in ((n, 1), (1, k), (2 * n, 2)):
            c, a, b = (
                Layout((m, n), c_strides, dtype),
                Layout((m, k), None, dtype),
                Layout((k, n), b_strides, dtype),
            )
            _run_in_guarded_workspace(abi, {"c": c, "a": a, "b": b})


@pytest.mark.parametrize("m", [1, 3, 5, 9])
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
def test_gemm_stays_in_its_workspace_for_any_k(abi: Abi, dtype: str, m: int) -> None:
    """More of A than is packed as a whole, in tiles of any height: sums wait for the next part of K."""
    k = (1 << 22) // m + 1
    c, a, b = Layout((m, 24), None, dtype), Layout((m, k), (0, 0), dtype), Layout((k, 24), (0, 0), dtype)
    _run_in_guarded_workspace(abi, {"c": c, "a": a, "b": b}, alpha=2.0**-22)


def _run_in_guarded_workspace(abi: Abi, layouts: dict[str, Layout], alpha: float = 1.0) -> None:
    """A's and B's elements are 1."""
    op, guard = OPS["gemm"], 4096
    desc = abi.created(op, layouts)
    size = abi.workspace_size(op, desc)
    block = np.full(guard + size + guard, 0xA5, np.uint8)
    memory = {name: Memory(layout) for name, layout in layouts.items()}
    for name, x in memory.items():
        each = tuple(slice(None if stride else 1) for stride in layouts[name].element_strides)
        x.array[each] = encode(0 if name == "c" else 1, layouts[name].dtype)
    pointers = {name: x.pointer for name, x in memory.items()}
    status = abi.run(op, desc, pointers, block.ctypes.data + guard, size, alpha=alpha)
    assert status == 0, abi.lib.message()
    assert (block[:guard] == 0xA5).all() and (block[guard + size :] == 0xA5).all()
    wanted = Memory(layouts["c"], layouts["a"].shape[1] * alpha)
    np.testing.assert_array_equal(memory["c"].values, wanted.values)
    abi.destroy(op, desc)


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


def in_child(lib: Library, code: str, **environment: str) -> list[str]:
    """The lines that `code` prints, with `lib` and `text(function)`, which returns the string it writes."""
    prologue = (
        "import ctypes, os, sys\n"
        "lib = ctypes.CDLL(sys.argv[1])\n"
        "def text(function):\n"
        "    out = ctypes.c_char_p()\n"
        "    assert getattr(lib, function)(ctypes.byref(out)) == 0\n"
        "    return out.value.decode()\n"
    )
    variables = ("INFINIOP_MAX_ISA", "INFINIOP_NUM_THREADS", "OMP_NUM_THREADS")
    inherited = {name: value for name, value in os.environ.items() if name not in variables}
    done = subprocess.run(
        [sys.executable, "-c", prologue + code, str(lib.folder / "libinfiniop.so")],
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


ISA = "print(text('infiniopGetCpuIsa')); print(text('infiniopGetCpuIsaReason'))"


@pytest.mark.parametrize(
    ("value", "isa"), [("portable", "portable"), ("PORTABLE", "portable"), ("sse9", "portable")]
)
def test_isa_cap_is_read_without_case_and_never_means_more(lib: Library, value: str, isa: str) -> None:
    best, why_best = in_child(lib, ISA)
    assert why_best == "the best of this CPU"
    got, why = in_child(lib, ISA, INFINIOP_MAX_ISA=value)
    assert got == isa
    if best == isa:
        assert why == why_best
    else:
        unknown = "" if value.lower() == isa else ", which is no name of an instruction set"
        assert why == f"capped by INFINIOP_MAX_ISA={value}{unknown}; this CPU has {best}"


def test_slow_bf16_instructions_are_used_only_where_they_are_named(lib: Library) -> None:
    best, _ = in_child(lib, ISA)
    got, why = in_child(lib, ISA, INFINIOP_MAX_ISA="avx512_bf16")
    if got == best:  # this CPU has none, or fast ones
        assert why == "the best of this CPU"
    elif best == "amx_bf16":
        assert got in ("avx512", "avx512_bf16")
        assert why == "capped by INFINIOP_MAX_ISA=avx512_bf16; this CPU has amx_bf16"
    else:
        assert (best, got) == ("avx512", "avx512_bf16")
        assert why == "named by INFINIOP_MAX_ISA; avx512 is faster on this CPU"


AFFINITY = r"1 CPU in the affinity mask, (no quota|control group quota of [\d.]+ CPUs)"


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({"INFINIOP_NUM_THREADS": "1", "OMP_NUM_THREADS": "7"}, f"INFINIOP_NUM_THREADS=1, {AFFINITY}"),
        ({"OMP_NUM_THREADS": "1"}, f"OMP_NUM_THREADS=1, {AFFINITY}"),
        ({"INFINIOP_NUM_THREADS": "9"}, f"{AFFINITY}, and INFINIOP_NUM_THREADS=9 asks for more"),
        ({"INFINIOP_NUM_THREADS": "many"}, AFFINITY),
    ],
    ids=str,
)
def test_the_reason_for_the_default_number_of_threads(
    lib: Library, environment: dict[str, str], wanted: str
) -> None:
    code = (
        "os.sched_setaffinity(0, list(os.sched_getaffinity(0))[:1])\n"
        "n = ctypes.c_int(); assert lib.infiniopGetNumThreads(ctypes.byref(n)) == 0 and n.value == 1\n"
        "print(text('infiniopGetNumThreadsReason'))"
    )
    (got,) = in_child(lib, code, **environment)
    assert re.fullmatch(wanted, got), got
