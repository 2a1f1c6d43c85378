"""Every instruction set of this machine gives right results; moves, sums and products are the same bits on
all.

The choice is made once per process, so that each other set gets processes of its own. The one that is chosen
is what the other tests run on: rows whose bits are the same on every set need no reference of their own here.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable

import numpy as np
import pytest
from isas import ISAS, TESTS, needed, output, start, usable

import infiniop_py
from infiniop_py._conformance import cases
from infiniop_py._conformance.layouts import Array, bits

best_only = pytest.mark.skipif(
    "INFINIOP_MAX_ISA" in os.environ,
    reason="INFINIOP_MAX_ISA is set: this process is one of several instruction sets",
)


def _others() -> list[str]:
    return [isa for isa in usable() if isa != infiniop_py.cpu_isa()]


def _needed_beside_this(isa: str) -> None:
    if isa not in _others():
        pytest.skip(f"{isa} is not of this machine, or what all tests run on, {infiniop_py.cpu_isa()}")


def _dtype_that_differs(isa: str) -> str:
    """From what all tests run on: "all", or the halves, which have kernels of their own there."""
    if not {isa, infiniop_py.cpu_isa()} <= {"avx512", "avx512_bf16", "amx_bf16"}:
        return "all"
    return "f16" if isa == "avx512" else "bf16"  # the former is part of the latter's name


def _canonical(x: Array) -> Array:
    """NaN payloads are not part of a result: which operand's survives is up to the instruction."""
    return np.where(np.isnan(x), np.array(np.nan, x.dtype), x) if x.dtype.name in _FLOAT_NAMES else x


_FLOAT_NAMES = {cases.DTYPES[name].name for name in cases.FLOATS}


_SAME_BITS = ("add", "mul", "rearrange")


def _in_digests(case: cases.Case) -> bool:
    """Rows at the ends of pages are not: a fault there ends the process."""
    return case.op in _SAME_BITS and not case.edge


#: All rows; those that each set has to get right, as their bits are not compared; and of these the ones that
#: may be written past the caches.
ROWS: dict[str, Callable[[cases.Case], bool]] = {
    "all": lambda _: True,
    "table": lambda case: not _in_digests(case),
    "streamed": lambda case: not _in_digests(case) and not case.op.startswith("gemm"),
}


def _of(dtype: str, case: cases.Case) -> bool:
    return dtype == "all" or dtype in case.dtype


def check(rows: str, dtype: str) -> None:
    """Runs them without pytest, which takes longer for a row than the row does; prints how many are right.

    With two threads alone: reliability/test_determinism.py asks each set for the same bits with any number.
    """
    right = 0
    for name, case in cases.CASES.items():
        if ROWS[rows](case) and _of(dtype, case):
            try:
                cases.run(case, infiniop_py.set_num_threads, threads=(2,))
            except BaseException:
                print(f"in row {name}:")
                raise
            right += 1
    print(right)


def digests(dtype: str) -> dict[str, str]:
    """A hash of the outputs that must be the same everywhere, by row. Nothing else may have been written."""
    result = {}
    for name, case in cases.CASES.items():
        if not _of(dtype, case) or (not _in_digests(case) and (case.op != "add_rms_norm" or case.edge)):
            continue
        operands = cases.build(case)
        initial = {key: operand.view.copy() for key, operand in operands.items()}
        got = cases.outputs_after(case, operands, initial)
        got.pop("y" if case.op == "add_rms_norm" else "", None)  # a bound, not bits, is promised for a norm
        digest = hashlib.sha256()
        for key in sorted(got):
            # rearrange moves NaNs unchanged, payload and all
            digest.update(bits(got[key] if case.op == "rearrange" else _canonical(got[key])).tobytes())
        for key, operand in operands.items():
            operand.assert_guards_intact(f"{key} of {name}")
        result[name] = digest.hexdigest()
    return result


_PYTEST = ("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider")
_TESTS = {
    "placement": ("test_placement.py", ""),
    "rounding": ("reliability/test_rounding.py", ""),
    "special_values": ("reliability/test_special_values.py", ""),
    "gemm_epilogue": ("abi/test_gemm_epilogue.py", ""),
}


def _pytest(isa: str, file: str, chosen: str) -> tuple[str, ...]:
    dtype = _dtype_that_differs(isa)
    chosen = " and ".join(f"({part})" for part in (chosen, dtype.replace("all", "")) if part)
    return (*_PYTEST, str(TESTS / file), "-k", chosen)


def _checking(rows: str, isa: str) -> tuple[str, ...]:
    script = f"import test_isa; test_isa.check({rows!r}, {_dtype_that_differs(isa)!r})"
    return ("-X", "faulthandler", "-c", script)


@best_only
@pytest.mark.parametrize("isa", ISAS)
def test_the_environment_caps_the_choice(isa: str) -> None:
    expected = isa if isa in usable() else infiniop_py.cpu_isa()
    got = output(start(isa, "-c", "import infiniop_py; print(infiniop_py.cpu_isa())"))
    assert got.split() == [expected]


_SMALL_SIGNAL_STACK = """
import ctypes
class Stack(ctypes.Structure):
    _fields_ = [("p", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]
memory = ctypes.create_string_buffer(4096)
stack = Stack(ctypes.addressof(memory), 0, len(memory))
assert ctypes.CDLL(None).sigaltstack(ctypes.byref(stack), None) == 0
import infiniop_py, infiniop_py.cpu
print(infiniop_py.cpu_isa(), infiniop_py.cpu.cpu_isa_reason())
"""


def test_tiles_that_linux_does_not_save_are_not_used() -> None:
    """It does not where a thread has a stack for its signals on which they have no room."""
    needed("amx_bf16")
    isa, _, reason = output(start("amx_bf16", "-c", _SMALL_SIGNAL_STACK)).strip().partition(" ")
    assert (isa, reason) == (
        "avx512",
        "the system does not save the registers of amx_bf16 for this process",
    )


@best_only
@pytest.mark.parametrize("isa", ISAS)
def test_table(isa: str) -> None:
    """What the digests do not cover of it."""
    _needed_beside_this(isa)
    least = 5000 if _dtype_that_differs(isa) == "all" else 1000
    assert int(output(start(isa, *_checking("table", isa)))) > least


@best_only
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    "tests",
    # Rows of products with an epilogue are in test_table too.
    [pytest.param(name, marks=[pytest.mark.slow] * (name == "gemm_epilogue")) for name in _TESTS],
)
def test_other_tests(tests: str, isa: str) -> None:
    _needed_beside_this(isa)
    assert " passed" in output(start(isa, *_pytest(isa, *_TESTS[tests])))


@best_only
def test_same_bits_on_every_isa() -> None:
    """And when every result is written past the caches, which else only large ones are."""
    ways = [(isa, "inf") for isa in _others()] + [(isa, "0") for isa in usable()]
    script = "import json, test_isa; print(json.dumps(test_isa.digests({!r})))"
    children = {
        (isa, stream_bytes): start(
            isa, "-c", script.format(_dtype_that_differs(isa)), INFINIOP_STREAM_BYTES=stream_bytes
        )
        for isa, stream_bytes in ways
    }
    expected = digests("all")
    for way, child in children.items():
        got = json.loads(output(child))
        assert len(got) > (0.9 if _dtype_that_differs(way[0]) == "all" else 0.05) * len(expected)
        different = [
            name
            for name in expected
            if _of(_dtype_that_differs(way[0]), cases.CASES[name]) and got.get(name) != expected[name]
        ]
        assert not different, (
            f"{way} and {infiniop_py.cpu_isa()} differ in {len(different)} rows: {different[:5]}"
        )


@best_only
@pytest.mark.parametrize("isa", ISAS)
def test_rows_past_the_caches(isa: str) -> None:
    """The ends of pages, and norms, whose bits may differ between the sets."""
    needed(isa)
    least = 1500 if _dtype_that_differs(isa) == "all" else 300
    assert int(output(start(isa, *_checking("streamed", isa), INFINIOP_STREAM_BYTES="0"))) > least


@best_only
@pytest.mark.parametrize("isa", ISAS)
def test_lines_past_the_caches(isa: str) -> None:
    """Wherever they begin."""
    needed(isa)
    options = _pytest(isa, "test_placement.py", "wherever or follow")
    assert " passed" in output(start(isa, *options, INFINIOP_STREAM_BYTES="0"))
