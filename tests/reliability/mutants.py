"""Changes one token of the sources at a time and sees whether a test notices: a survivor is a test to write.

    python tests/reliability/mutants.py native [--sample 200] [--seed 1] [--jobs 2] [--report FILE]
    python tests/reliability/mutants.py python ...

Needs what the tests need, and works in copies of the committed tree. The sample is drawn over all places that
can be changed, so that a seed names it. A change that does not compile is not counted, another one is drawn.
One that no test can notice, since it changes speed alone or nothing at all, is named with the reason in
mutants_equivalent.tsv. What has been tried is in the report (a JSON object a line) and is not tried again.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import tokenize
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
EQUIVALENT = Path(__file__).with_name("mutants_equivalent.tsv")

# What a token may become. Operators count where the house style puts a blank on both sides of them, which
# leaves out templates, pointers, references and starred arguments.
TOKENS = {
    "<": ("<=", ">="),
    "<=": ("<", ">"),
    ">": (">=", "<="),
    ">=": (">", "<"),
    "==": ("!=",),
    "!=": ("==",),
    "+": ("-",),
    "-": ("+",),
    "*": ("+",),
    "/": ("*",),
    "//": ("*",),
    "%": ("*",),
    "&": ("|",),
    "|": ("&",),
    "<<": (">>",),
    ">>": ("<<",),
    "+=": ("-=",),
    "-=": ("+=",),
    "&&": ("||",),
    "||": ("&&",),
    "and": ("or",),
    "or": ("and",),
    "not": ("",),
    "is": ("is not",),
    "true": ("false",),
    "false": ("true",),
    "True": ("False",),
    "False": ("True",),
    "break": ("continue",),
    "continue": ("break",),
    "min": ("max",),
    "max": ("min",),
}
_CPP = re.compile(
    r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])'"  # skipped
    r"|(?P<line>^[ \t]*(?:\#|(?:static_assert|using|typedef|namespace|template|extern)\b)[^\n]*)"  # too
    r"|(?<= )(?P<operator><=|>=|==|!=|&&|\|\||<<|>>|\+=|-=|[-+*/%&|<>])(?= )"
    r"|(?<![\w.])(?P<number>\d+)(?![\w.'])"
    r"|(?<=[( ])(?P<negation>!)(?=\w)"
    r"|\b(?P<word>true|false|break|continue|min|max)\b"
    r"|^[ \t]+(?P<statement>(?!return|delete|else|case)[\w:.\->\[\]]+"
    r"(?:\([^;{}\n]*\)|(?: =| \+=| -=) [^;{}\n]*);)$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Mutant:
    file: str
    start: int
    before: str
    after: str

    def line(self, text: str) -> tuple[int, str, str]:
        """Its line number, and that line before and after."""
        first = text.rfind("\n", 0, self.start) + 1
        last = text.find("\n", self.start + len(self.before))
        changed = text[first : self.start] + self.after + text[self.start + len(self.before) : last]
        return text.count("\n", 0, first) + 1, " ".join(text[first:last].split()), " ".join(changed.split())


def _of_cpp(file: str, text: str) -> Iterator[Mutant]:
    for found in _CPP.finditer(text):
        kind = found.lastgroup
        if kind in (None, "line"):
            continue
        token, start = found[kind], found.start(kind)
        if kind == "statement":
            yield Mutant(file, start, token, ";")
        elif kind == "number":
            yield Mutant(file, start, token, str(int(token) + 1))
        elif kind == "negation":
            yield Mutant(file, start, token, "")
        else:
            yield from (Mutant(file, start, token, after) for after in TOKENS[token])


def _of_python(file: str, text: str) -> Iterator[Mutant]:
    lines = [0]
    for line in text.splitlines(keepends=True):
        lines.append(lines[-1] + len(line))

    def at(row: int, column: int) -> int:
        """Where the AST's column, which counts bytes of UTF-8, is."""
        line = text[lines[row - 1] : lines[row]]
        return lines[row - 1] + len(line.encode()[:column].decode())

    def extent(node: ast.expr | ast.stmt) -> tuple[int, int]:
        return at(node.lineno, node.col_offset), at(node.end_lineno or 0, node.end_col_offset or 0)

    types: list[tuple[int, int]] = []  # not evaluated, or seen by the type checker alone
    for node in ast.walk(ast.parse(text)):
        annotation = getattr(node, "annotation", None) or getattr(node, "returns", None)
        if annotation is not None:
            types.append(extent(annotation))
        if isinstance(node, (ast.Expr, ast.Assign, ast.AugAssign)) and not (
            isinstance(node, ast.Expr) and isinstance(node.value, (ast.Constant, ast.Yield, ast.YieldFrom))
        ):
            start, end = extent(node)
            yield Mutant(file, start, text[start:end], "pass")
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        start = lines[token.start[0] - 1] + token.start[1]
        if any(first <= start < last for first, last in types):
            continue
        binary = text[start - 1 : start] == " " == text[start + len(token.string)]
        if token.type == tokenize.NUMBER and token.string.isdigit():
            yield Mutant(file, start, token.string, str(int(token.string) + 1))
        elif token.type == tokenize.NAME or (token.type == tokenize.OP and binary):
            yield from (Mutant(file, start, token.string, after) for after in TOKENS.get(token.string, ()))


# A stage is a command and the seconds it may take; a test that notices ends the trial.
Stage = tuple[list[str], float]


def _pytest(*arguments: str, seconds: float = 1800) -> Stage:
    return [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *arguments], seconds


class Native:
    sources = ("native/src/**/*.cc", "native/src/**/*.h", "native/src/**/*.inl")
    mutants = staticmethod(_of_cpp)
    build: tuple[Stage, ...] = (
        (["cmake", "--build", "build/mutants", "--parallel", "1"], 900),
        (["cmake", "--install", "build/mutants", "--prefix", "infiniop_py/_lib"], 60),
    )
    prepare = (
        [
            *("cmake", "-S", "native", "-B", "build/mutants", "-DCMAKE_BUILD_TYPE=Debug"),
            *("-DINFINIOP_FLAT_INSTALL=ON", "-DINFINIOP_TESTS=ON", f"-DPython_EXECUTABLE={sys.executable}"),
        ],
        *(command for command, _ in build),
    )

    @staticmethod
    def stages(file: str) -> list[Stage]:
        """First the cheap ones; then, of a kernel, those about numbers."""
        stages: list[Stage] = [(["ctest", "--test-dir", "build/mutants", "--stop-on-failure"], 600)]
        if "/cpu/" in file:
            stages.append(_pytest("tests/test_operators.py", "tests/test_rounding.py", "tests/test_isa.py"))
        return [*stages, _pytest("tests/abi"), _pytest("tests")]


class Python:
    sources = ("infiniop_py/**/*.py",)
    mutants = staticmethod(_of_python)
    build: tuple[Stage, ...] = ()
    prepare = (["./build_native.sh", "--jobs", "2"],)

    @staticmethod
    def stages(file: str) -> list[Stage]:
        """First the tests that name the module."""
        module = Path(file).stem.strip("_") if not file.endswith("__init__.py") else Path(file).parent.name
        near = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob(f"tests/**/test_*{module}*.py"))
        slow = ("tests/abi", "tests/test_packaging.py")
        rest = _pytest("tests", *(f"--ignore={path}" for path in slow))
        return [*([_pytest(*near)] if near else []), rest, _pytest(*slow)]


class Worker:
    """A copy of the tree, in which one mutant after the other is tried."""

    def __init__(self, kind: type[Native] | type[Python]) -> None:
        self.kind = kind
        self.tree = Path(tempfile.mkdtemp(prefix="mutants-"))
        subprocess.run(["git", "clone", "-q", str(ROOT), str(self.tree)], check=True)
        for command in kind.prepare:
            subprocess.run(command, cwd=self.tree, check=True, capture_output=True)

    def attempt(self, mutant: Mutant) -> str:
        """The first test that noticed the mutant; "" when none did, "none" when it does not compile."""
        path = self.tree / mutant.file
        text = path.read_text()
        assert text[mutant.start :].startswith(mutant.before)
        path.write_text(text[: mutant.start] + mutant.after + text[mutant.start + len(mutant.before) :])
        try:
            if mutant.file.endswith(".py"):
                try:
                    compile(path.read_text(), mutant.file, "exec")
                except SyntaxError:
                    return "none"
            if any(self._failure(stage) for stage in self.kind.build):
                return "none"
            failures = (self._failure(stage) for stage in self.kind.stages(mutant.file))
            return next(filter(None, failures), "")
        finally:
            path.write_text(text)

    def _failure(self, stage: Stage) -> str:
        """The test that failed in this stage, "" when none did."""
        command, seconds = stage
        environment = os.environ | {"PYTHONPATH": str(self.tree), "PYTHONDONTWRITEBYTECODE": "1"}
        pipes: dict[str, Any] = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.STDOUT,
        }
        with subprocess.Popen(
            command,
            cwd=self.tree,
            env=environment,
            start_new_session=True,
            text=True,
            errors="replace",
            **pipes,
        ) as process:
            try:
                output, _ = process.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:  # a loop without an end is noticed
                return f"{seconds:.0f} s of {' '.join(command)}"
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        if process.returncode == 0:
            return ""
        named = re.search(r"^(?:FAILED|ERROR) (\S+)|^\s*\d+ - (\w+) \(", output, re.MULTILINE)
        return named[1] or named[2] if named else " ".join(command)

    def close(self) -> None:
        shutil.rmtree(self.tree)


def equivalents() -> dict[tuple[str, str, str], str]:
    """By file, line before and line after: why no test can notice."""
    rows = (line.split("\t") for line in EQUIVALENT.read_text().splitlines() if line[:1] not in ("#", ""))
    return {(file, before, after): reason for file, before, after, reason in rows}


def main() -> int:
    parser = argparse.ArgumentParser(description="Change a token of the sources, see which test notices.")
    parser.add_argument("kind", choices=("native", "python"))
    parser.add_argument("--sample", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="", help="files whose path has this in it")
    parser.add_argument("--report", type=Path, default=None)
    options = parser.parse_args()
    kind: type[Native] | type[Python] = Native if options.kind == "native" else Python
    report: Path = options.report or Path(f"mutants-{options.kind}.jsonl")
    files = sorted(str(path.relative_to(ROOT)) for pattern in kind.sources for path in ROOT.glob(pattern))
    texts = {
        file: Path(ROOT, file).read_text() for file in files if options.only in file and "_lib/" not in file
    }
    mutants = [mutant for file, text in texts.items() for mutant in kind.mutants(file, text)]
    random.Random(options.seed).shuffle(mutants)
    known = equivalents()
    done = {}
    if report.exists():
        rows = (json.loads(line) for line in report.read_text().splitlines())
        done = {Mutant(r["file"], r["start"], r["before"], r["after"]): r["noticed"] for r in rows}
    found: dict[Mutant, str] = {}
    lock = threading.Lock()
    queue = iter(mutants)

    def work(_: int) -> None:
        worker = Worker(kind)
        try:
            while True:
                with lock:
                    counted = sum(noticed != "none" for noticed in found.values())
                    mutant = next(queue, None)
                    if mutant is None or counted >= options.sample:
                        return
                    if mutant in done:
                        found[mutant] = done[mutant]
                        continue
                    found[mutant] = "..."
                noticed = worker.attempt(mutant)
                number, before, after = mutant.line(texts[mutant.file])
                with lock:
                    found[mutant] = noticed
                    with report.open("a") as out:
                        out.write(json.dumps(asdict(mutant) | {"noticed": noticed}) + "\n")
                    state = {"": "SURVIVED", "none": "does not compile"}.get(noticed, "killed by " + noticed)
                    print(f"{mutant.file}:{number}: {before}  ->  {after}: {state}", flush=True)
        finally:
            worker.close()

    with ThreadPoolExecutor(options.jobs) as pool:
        for future in [pool.submit(work, i) for i in range(options.jobs)]:
            future.result()
    counted = [mutant for mutant, noticed in found.items() if noticed != "none"]
    survivors = [mutant for mutant in counted if not found[mutant]]
    named = [mutant for mutant in survivors if (mutant.file, *mutant.line(texts[mutant.file])[1:]) in known]
    for mutant in survivors:
        number, before, after = mutant.line(texts[mutant.file])
        reason = known.get((mutant.file, before, after))
        print(f"{mutant.file}:{number}\n    {before}\n    {after}\n    {reason or 'SURVIVED'}")
    judged = len(counted) - len(named)
    killed = len(counted) - len(survivors)
    print(f"{killed} of {judged} killed ({100 * killed / max(1, judged):.1f} %); {len(named)} equivalent")
    return killed < 0.9 * judged


if __name__ == "__main__":
    sys.exit(main())
