"""Every instruction set of this machine gives right results; moves, sums and products are the same bits on
all.

The choice is made once per process, so that each set below the best gets processes of its own. The best one
is what the other tests run on: rows whose bits are the same on every set need no reference of their own here.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Iterable, Iterator

import cases
import numpy as np
import pytest
from isas import ISAS, TESTS, output, start, usable
from layouts import Array, bits

import infiniop_py

best_only = pytest.mark.skipif(
    "INFINIOP_MAX_ISA" in os.environ,
    reason="INFINIOP_MAX_ISA is set: this process is one of several instruction sets",
)


def _lower_isas() -> tuple[str, ...]:
    return usable()[:-1]


def _canonical(x: Array) -> Array:
    """NaN payloads are not part of a result: which operand's survives is up to the instruction."""
    return np.where(np.isnan(x), np.array(np.nan, x.dtype), x) if x.dtype.name in _FLOAT_NAMES else x


_FLOAT_NAMES = {cases.DTYPES[name].name for name in cases.FLOATS}


_SAME_BITS = ("add", "mul", "rearrange")
# Rows that digests() covers; those at the ends of pages are left, since a fault there ends the process.
_IN_DIGESTS = f"({' or '.join(f'test_case[{op}-' for op in _SAME_BITS)}) and not page_"


def digests() -> dict[str, str]:
    """A hash of the outputs that must be the same everywhere, by row. Nothing else may have been written."""
    result = {}
    for name, case in cases.CASES.items():
        if case.op not in (*_SAME_BITS, "add_rms_norm") or case.edge:
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


def _side_by_side(
    isas: Iterable[str], files: Iterable[str], rows: str, **variables: str
) -> Iterator[dict[str, subprocess.Popen[str]]]:
    """The same tests under each set, at once."""
    arguments = ("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *(str(TESTS / file) for file in files))
    children = {isa: start(isa, *arguments, "-k", rows, **variables) for isa in isas}
    yield children
    for child in children.values():
        child.kill()
        child.communicate()


@pytest.fixture(scope="module")
def table_runs() -> Iterator[dict[str, subprocess.Popen[str]]]:
    """What digests() does not cover of the table, and the rounding tests, under each lower set."""
    files = (
        "test_ops.py",
        "reliability/test_rounding.py",
        "reliability/test_special_values.py",
        "abi/test_gemm_epilogue.py",
    )
    yield from _side_by_side(_lower_isas(), files, f"not ({_IN_DIGESTS})")


@pytest.fixture(scope="module")
def streamed_runs() -> Iterator[dict[str, subprocess.Popen[str]]]:
    """The rows that may be written past the caches and that digests() does not cover, all of them so, under
    each set."""
    rows = "test_case and (add_rms_norm- or page_) and not gemm"
    yield from _side_by_side(ISAS, ("test_ops.py",), rows, INFINIOP_STREAM_BYTES="0")


@best_only
@pytest.mark.parametrize("isa", ISAS)
def test_the_environment_caps_the_choice(isa: str) -> None:
    expected = min(isa, infiniop_py.cpu_isa(), key=ISAS.index)
    got = output(start(isa, "-c", "import infiniop_py; print(infiniop_py.cpu_isa())"))
    assert got.split() == [expected]


@best_only
@pytest.mark.parametrize("isa", ISAS[:-1])
def test_table_and_rounding(isa: str, table_runs: dict[str, subprocess.Popen[str]]) -> None:
    if isa not in table_runs:
        pytest.skip(f"{isa} is not below the best of this machine, {infiniop_py.cpu_isa()}")
    assert " passed" in output(table_runs[isa])


@best_only
@pytest.mark.parametrize("stream_bytes", ["inf", "0"])
def test_same_bits_on_every_isa(stream_bytes: str) -> None:
    """And when every result is written past the caches, which else only large ones are."""
    isas = usable() if stream_bytes == "0" else _lower_isas()
    script = "import json, test_isa; print(json.dumps(test_isa.digests()))"
    children = {isa: start(isa, "-c", script, INFINIOP_STREAM_BYTES=stream_bytes) for isa in isas}
    expected = digests()
    for isa, child in children.items():
        got = json.loads(output(child))
        different = [name for name in expected if got.get(name) != expected[name]]
        assert not different, (
            f"{isa} and {infiniop_py.cpu_isa()} differ in {len(different)} rows: {different[:5]}"
        )


@best_only
@pytest.mark.parametrize("isa", ISAS)
def test_rows_past_the_caches(isa: str, streamed_runs: dict[str, subprocess.Popen[str]]) -> None:
    """The ends of pages, and norms, whose bits may differ between the sets."""
    assert " passed" in output(streamed_runs[isa])
