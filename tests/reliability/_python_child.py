"""Calls the package with hostile arguments; started by test_hostile_python.py, a group of rows a process.

    python _python_child.py <folder for files> <seed> <row> [<row> ...]

Prints the number of calls.
"""

from __future__ import annotations

import inspect
import itertools
import os
import random
import re
import sys
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import _python_rows as rows
import numpy as np
from _python_operators import ENTRIES, trials
from _python_rows import ROWS, Choice, Row

import infiniop_py as ip

PAIRS = 25  # calls with two values, per row
MOST_WORDS = 2000  # characters of a message
OPERATORS = (ip.Add, ip.AddRMSNorm, ip.Gemm, ip.GemmAdd, ip.GemmMul, ip.Mul, ip.Rearrange)


def state() -> tuple[Any, ...]:
    """What no refused call may change."""
    return (
        ip.get_device(),
        ip.get_num_threads(),
        ip.is_graph_recording(),
        ip.get_stream("cpu"),
        [op.cache().cache_info()[3:] for op in OPERATORS],
        [list(op.dispatcher().table) for op in OPERATORS],
        ip.empty(0).numpy().dtype,
    )


def contents(arguments: Any) -> list[bytes]:
    """What the arrays among them hold."""
    arrays = [rows.X, rows.Y, rows.Z, *arguments]
    return [
        (x.numpy() if isinstance(x, ip.Tensor) else np.asarray(x)).tobytes()
        for x in arrays
        if isinstance(x, (np.ndarray, ip.Tensor)) and x.dtype != object
    ]


class Caller:
    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.random = random.Random(seed)
        self.calls = 0
        self.failures: list[str] = []

    def attempt(
        self,
        what: str,
        call: Callable[[], Any],
        held: Sequence[Any],
        errors: Collection[type[BaseException]],
        begins: str | tuple[str, ...],
        names: Collection[str] = (),
        undo: Callable[[], None] = lambda: None,
    ) -> None:
        """One call that must end with one of `errors`, or succeed if there are none. `held` is what it may
        not change when it is refused, besides the state of the process.
        """
        before, bytes_before = state(), contents(held)
        self.calls += 1
        error: BaseException | None = None
        try:
            call()
        except Exception as raised:
            error = raised
        finally:
            undo()
        wrong = ""
        if error is None:
            wrong = f"must be refused with {sorted(one.__name__ for one in errors)}" if errors else ""
        elif not isinstance(error, tuple(errors)):
            wrong = f"needed {sorted(one.__name__ for one in errors)}"
        elif isinstance(error, ip.InfiniopError):
            # What is wrong with a device is worded in one place for all functions.
            known = (begins,) if isinstance(begins, str) else begins
            if not str(error).startswith((*known, "device", "Device: ", "infinirt")):
                wrong = f"must begin with {begins}"
            elif names and not any(re.search(rf"\b{name}\b", str(error)) for name in names):
                wrong = f"names none of {sorted(names)}"
            elif len(str(error)) > MOST_WORDS:
                wrong = f"says {len(str(error))} characters"
        if not wrong and error is not None and contents(held) != bytes_before:
            wrong = "memory changed"
        if not wrong and error is not None and state() != before:
            wrong = f"the state changed from {before} to {state()}"
        if wrong:
            self.failures.append(f"{what}: {type(error).__name__}: {str(error)[:300]}: {wrong}")

    # ---- functions and methods ---------------------------------------------------------------------------

    def _value(self, value: Any) -> Any:
        if isinstance(value, str) and value in ("PATH", "SAVED"):
            path = self.folder / value
            if value == "SAVED" and not path.exists():
                rows.graph().save(path)
            return path
        return value

    def call(self, name: str, row: Row, changed: dict[str, tuple[str, Choice]]) -> None:
        values = {**row.legal, **{key: choice.value for key, (_, choice) in changed.items()}}
        values = {key: self._value(value) for key, value in values.items()}
        errors = {error for _, choice in changed.values() for error in choice.errors}
        function = row.make()
        try:
            parameters = list(inspect.signature(function).parameters.values())
        except (TypeError, ValueError):
            parameters = []
        by_name = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        by_name |= set(values) if any(p.kind is p.VAR_KEYWORD for p in parameters) else set()
        keywords = {key: value for key, value in values.items() if key in by_name}
        positional = [value for key, value in values.items() if key not in by_name and key != "()"]
        shown = ", ".join(f"{key}={label}" for key, (label, _) in changed.items())
        held = [rows.X, rows.Y, rows.Z, *values.values()]
        call = partial(function, *positional, **keywords)
        self.attempt(f"{name}({shown})", call, held, errors, row.says, undo=row.undo)

    def row(self, name: str) -> None:
        row = ROWS[name]
        print(name, file=sys.stderr, flush=True)
        if "()" not in row.choices:
            self.call(name, row, {})
        for key, choices in row.choices.items():
            for labelled in choices.items():
                self.call(name, row, {key: labelled})
        for first, second in itertools.combinations(row.choices, 2):
            bad = [labelled for labelled in row.choices[first].items() if labelled[1].errors]
            for _ in range(PAIRS if bad and row.pairs else 0):
                other = self.random.choice(list(row.choices[second].items()))
                if not isinstance(other[1].value, ip.Tensor):
                    self.call(name, row, {first: self.random.choice(bad), second: other})

    # ---- operators -----------------------------------------------------------------------------------------

    def entry(self, name: str) -> None:
        entry = ENTRIES[name]
        print(name, file=sys.stderr, flush=True)
        for trial in trials(entry, self.random, PAIRS):
            shown = ", ".join(f"{key}={label}" for key, label in trial.wrong.items())
            names = () if entry.python else trial.names
            call = partial(entry.call, **trial.arguments)
            held = [getattr(x, "base", None) if x is not None else x for x in trial.arguments.values()]
            held = [*held, *trial.arguments.values()]
            self.attempt(f"{name}({shown})", call, held, trial.errors, f"{entry.op}: ", names)
            if trial.errors and self.calls % 3 == 0:
                graph = ip.start_graph_recording()
                what = f"{name}({shown}), recording"
                self.attempt(what, call, held, trial.errors, f"{entry.op}: ", names)
                ip.stop_graph_recording()
                if len(graph):
                    self.failures.append(f"{what}: what was refused is in the graph")


def main(folder: str, seed: int, names: list[str]) -> None:
    os.chdir(folder)
    caller = Caller(Path(folder), seed)
    for name in names:
        if name in ROWS:
            caller.row(name)
        if name in ENTRIES:
            caller.entry(name)
    for failure in caller.failures:
        print(failure.encode(errors="replace").decode(), file=sys.stderr)
    assert not caller.failures, f"{len(caller.failures)} calls"
    print(caller.calls)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
