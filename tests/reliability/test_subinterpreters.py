"""Subinterpreters: NumPy does not support them, and is in one of a process at most; there, all is right."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import children
import pytest

NAME = next(
    (name for name in ("_xxsubinterpreters", "_interpreters") if importlib.util.find_spec(name)), None
)
pytestmark = pytest.mark.skipif(NAME is None, reason="this Python has no module of subinterpreters")

#: Run by the subinterpreter; says what came of it.
INSIDE = """
import warnings; warnings.simplefilter("ignore")
try:
    import numpy as np, infiniop_py as ip
    x = np.arange(6.0).reshape(2, 3)
    assert np.array_equal(ip.gemm(x, x.T), x @ x.T)
    with ip.Graph() as graph:
        y = ip.add(x, x)
    graph.run()
    assert np.array_equal(y, x + x)
    print("right")
except ImportError as error:
    print("refused:", error)
"""
OUTSIDE = """
import {name} as interpreters, sys
try: make = interpreters.create("legacy")
except TypeError: make = interpreters.create()
def inside():
    sys.stdout.flush()
    failed = interpreters.run_string(make, {inside!r})
    assert failed is None, failed
"""


def run(program: str) -> list[str]:
    return children.run(OUTSIDE.format(name=NAME, inside=INSIDE) + program).split("\n")[:-1]


def test_in_the_only_one(record_property: Callable[[str, object], None]) -> None:
    record_property("cases", 1)
    (said,) = run("inside(); inside_again = inside(); interpreters.destroy(make)")[:1]
    assert said == "right" or said.startswith("refused: ")


def test_after_the_main_one(record_property: Callable[[str, object], None]) -> None:
    record_property("cases", 1)
    said = run(
        "import numpy as np, infiniop_py as ip; x = np.ones((3, 3))\n"
        "print(ip.gemm(x, x)[0, 0])\n"
        "inside()\n"
        "interpreters.destroy(make)\n"
        "print(ip.gemm(x, x)[0, 0])"
    )
    assert said[0] == said[-1] == "3.0" and len(said) == 3
    assert said[1] == "right" or said[1].startswith("refused: ")
