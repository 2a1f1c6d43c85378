"""How far results are from the exact ones: the worst of each operator and type, on every instruction set.

    python tests/reliability/accuracy.py [--slow]

prints the table of the README; test_accuracy.py fails where an error is beyond its bound. The bounds and
their derivations are in infiniop_py/_conformance/reference.py.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import math
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import isas
import numpy as np

from infiniop_py._conformance import reference
from infiniop_py._conformance.cases import (
    FLOATS,
    Case,
    Views,
    alike,
    build,
    epilogue,
    gemm,
    norm,
    outputs_after,
    sizes,
)
from infiniop_py._conformance.layouts import Array


@dataclass
class Found:
    """The worst of some cases; NaN where nothing was measured."""

    ulps: float = math.nan  # in units in the last place of the exact result; no sum cancels
    bound: float = math.nan  # error / worst-case bound
    rms: float = math.nan  # rms of the errors / statistical bound, on random data
    cases: int = 1

    def worse(self, other: Found) -> Found:
        pairs = ((self.ulps, other.ulps), (self.bound, other.bound), (self.rms, other.rms))
        return Found(*(float(np.fmax(*pair)) for pair in pairs), self.cases + other.cases)


Results = Mapping[str, Array]  # of one output, by instruction set
Findings = Iterator[Found]  # in the order of these
_FEW = 256  # elements: for fewer the rms of an error is left to chance


# ---- what is measured: `old` is what a case's operands held ------------------------------------------------


def _gemm(case: Case, old: Views, results: Results) -> Findings:
    operands = old["c"], old["a"], old["b"], case.alpha, case.beta
    exact, error = reference.gemm(*operands), reference.gemm_error(*operands)
    for got in results.values():
        found = Found(bound=reference.assert_within(got, exact, error, "c"))
        if case.data == "positive":
            found.ulps = reference.worst_ulps(got, exact)
        elif case.beta == 0 and got.size >= _FEW:
            found.rms = reference.assert_gemm_rms(got, exact, old["a"], old["b"], case.alpha)
        yield found


def _epilogue(case: Case, old: Views, results: Results) -> Findings:
    a, b, d = old["a"], old["b"], old["d"]
    product = reference.gemm(old["y"], a, b)
    exact = reference.epilogue(case.op, product, reference.widen(d))
    error = reference.epilogue_error(case.op, old["y"], product, a, b, d)
    for got in results.values():
        found = Found(bound=reference.assert_within(got, exact, error, "y"))
        if case.data == "positive":
            found.ulps = reference.worst_ulps(got, exact)
        else:
            found.rms = reference.assert_epilogue_rms(case.op, got, product, a, b, d)
        yield found


def _elementwise(case: Case, old: Views, results: Results) -> Findings:
    """Rounded once: half an ULP is all there may be."""
    op = "mul" if case.op == "mul" else "add"  # the residual of add_rms_norm is a sum, too
    rounded = reference.elementwise(op, old["a"], old["b"])
    exact = reference.elementwise(op, reference.widen(old["a"]), reference.widen(old["b"]))
    for got in results.values():
        reference.assert_same_bits(got, rounded)
        yield Found(reference.worst_ulps(got, exact))


def _norm(case: Case, old: Views, results: Results) -> Findings:
    arguments = reference.elementwise("add", old["a"], old["b"]), old["weight"], case.epsilon
    exact = reference.rms_norm(*arguments)
    for got in results.values():
        found = Found(bound=reference.assert_rms_norm(got, *arguments))
        if case.data == "":
            found.ulps = reference.worst_ulps(got, exact)
            if got.size >= _FEW:
                found.rms = reference.assert_rms_norm_rms(got, *arguments)
        yield found


_CHECKS = {
    "gemm": {"c": _gemm},
    "gemm_add": {"y": _epilogue},
    "gemm_mul": {"y": _epilogue},
    "add": {"c": _elementwise},
    "mul": {"c": _elementwise},
    "add_rms_norm": {"y": _norm, "residual_out": _elementwise},
}


# ---- cases -------------------------------------------------------------------------------------------------

# K on both sides of a block of 256, of one of 256 pairs, and of several.
_DEPTHS = (1, 2, 3, 7, 31, 255, 256, 257, 512, 513, 769, 3001)
# Few rows, also with more of B than half of a large second-level cache; few columns, also of a B that the
# first-level cache holds; more of both, and of a B that no product reads where it lies. Beyond so many rows a
# product is blocked, if B is transposed and too large to be copied.
_SHAPES = sizes("1x300x384 2x1101x513 8x130x513 300x1x384 300x5x300 300x6x36 40x330x600 16x16x100003")
_BLOCKED_ROWS = {"f16": 264, "bf16": 264, "f32": 264, "f64": 136}
_SLOW_SHAPES = sizes("2060x70x300 70x2060x300 16x16x1000003")
_LAYOUTS: tuple[tuple[str, ...], ...] = ((), ("C", "C", "T"), ("C", "T", "C"), ("T", "C", "C"))
# An item for each thread; one problem, since its items share b; threads share each item.
_BATCHES = (
    sizes("3x17x33 3x17x300 3x300x33"),
    sizes("3x40x33 3x40x300 300x33"),
    sizes("2x160x400 2x160x300 2x300x400"),
)
_ROWS = sizes("300x1 200x2 130x3 50x7 9x64 5x255 5x256 5x257 3x4096 3x4097 2x8192 2x8193 2x16411 2x100003")


def _products(dtype: str, slow: bool) -> Iterator[Case]:
    row = partial(gemm, dtype=dtype)
    for k, layouts in itertools.product(_DEPTHS, _LAYOUTS[:2]):
        yield row(17, 33, k, layouts=layouts, data="normal")
        yield row(17, 33, k, layouts=layouts, data="positive")
    blocked = _BLOCKED_ROWS[dtype]
    for m, n, k in (*_SHAPES, (blocked, 130, 270), (blocked, 400, 513), *_SLOW_SHAPES * slow):
        large = m * n * k > 10**7
        for layouts in _LAYOUTS[1:2] if large else _LAYOUTS:
            yield row(m, n, k, layouts=layouts, data="normal")
        if not large or slow:
            yield row(m, n, k, data="positive")
            yield row(m, n, k, layouts=("C", "C", "T"), data="normal", alpha=-0.3, beta=0.7)
    for shapes in _BATCHES[: 3 if slow or dtype != "f64" else 2]:
        yield Case("gemm", dtype, shapes, data="normal")


def _epilogues(op: str, dtype: str) -> Iterator[Case]:
    for m, n, k in sizes("17x33x1 17x33x300 130x5x300"):
        for layouts, data in itertools.product(_LAYOUTS[:2], ("normal", "positive")):
            yield epilogue(op, dtype, m, n, k, layouts, data=data)


def _norms(dtype: str, slow: bool) -> Iterator[Case]:
    weights = {"f16": ("", "bf16", "f32"), "bf16": ("", "f16", "f32")}.get(dtype, ("",))
    for shape, weight in itertools.product(_ROWS + sizes("2x2200003") * slow, weights):
        yield norm(dtype, shape, weight_dtype=weight)
    for data in ("outliers", "large", "small"):
        yield norm(dtype, (7, 300), data=data, epsilon=0.0)


def cases(slow: bool = False) -> Iterator[Case]:
    for dtype in FLOATS:
        yield from _products(dtype, slow)
        for op in ("gemm_add", "gemm_mul"):
            yield from _epilogues(op, dtype)
        for op in ("add", "mul"):
            yield alike(op, dtype, (100003,))
        yield from _norms(dtype, slow)


# ---- measuring ---------------------------------------------------------------------------------------------


def _write_outputs(path: str, slow: bool) -> None:
    """What this process's instruction set gives, in the order of cases()."""
    with open(path, "wb") as file:
        for case in cases(slow):
            operands = build(case)
            for value in outputs_after(case, operands, {n: x.view for n, x in operands.items()}).values():
                file.write(value.tobytes())


Row = tuple[str, str]  # operator, with its output's name where there are two; dtype


def measured(slow: bool = False) -> dict[str, dict[Row, Found]]:
    """By instruction set; an AssertionError where an error is beyond its bound."""
    tables: dict[str, dict[Row, Found]] = {isa: {} for isa in isas.usable()}
    with tempfile.TemporaryDirectory() as folder:
        files = {isa: Path(folder, isa) for isa in tables}
        flags = ("--slow",) * slow
        children = {isa: isas.start(isa, __file__, *flags, "--outputs", file) for isa, file in files.items()}
        for child in children.values():
            isas.output(child)
        opened = {isa: file.open("rb") for isa, file in files.items()}
        for case in cases(slow):
            old = {name: operand.view for name, operand in build(case).items()}
            for output in case.outputs:
                like = old[output]
                results = {
                    isa: np.frombuffer(file.read(like.nbytes), like.dtype).reshape(like.shape)
                    for isa, file in opened.items()
                }
                name = case.op if len(case.outputs) == 1 else f"{case.op}: {output}"
                row, findings = (name, case.dtype), _CHECKS[case.op][output](case, old, results)
                for isa, rows in tables.items():
                    try:
                        found = next(findings)
                    except AssertionError as error:
                        raise AssertionError(f"{case.name} on {isa}: {error}") from error
                    rows[row] = found.worse(rows[row]) if row in rows else found
        for file in opened.values():
            assert file.read() == b"", "these processes ran other cases"
            file.close()
    return tables


_MEASURES = {
    "ulps": "worst error, ULP",
    "bound": "worst error / its bound",
    "rms": "rms error / its bound",
}


def markdown(tables: dict[str, dict[Row, Found]]) -> str:
    """The worst of all instruction sets."""
    worst: dict[Row, Found] = {}
    for row in itertools.chain.from_iterable(tables.values()):
        worst[row] = functools.reduce(Found.worse, (table[row] for table in tables.values()))
    lines = [f"| operator | | {' | '.join(map(str.upper, FLOATS))} |", "|---|---|" + "--:|" * len(FLOATS)]
    for name in dict.fromkeys(name for name, _ in worst):
        for field, measure in _MEASURES.items():
            figures = [getattr(worst[name, dtype], field) for dtype in FLOATS]
            if not math.isnan(figures[0]):
                lines.append(f"| {name} | {measure} | {' | '.join(f'{x:.3g}' for x in figures)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--slow", action="store_true", help="larger products and longer rows, too")
    parser.add_argument("--outputs", metavar="FILE", help="only write the results of this process's set")
    arguments = parser.parse_args()
    if arguments.outputs:
        return _write_outputs(arguments.outputs, arguments.slow)
    tables = measured(arguments.slow)
    cases = sum(found.cases for table in tables.values() for found in table.values())
    print(f"{cases} results of {', '.join(tables)}\n\n{markdown(tables)}")


if __name__ == "__main__":
    main()
