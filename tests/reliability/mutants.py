"""Changes one token of the sources at a time and sees whether a test notices: a survivor is a test to write.

    python tests/reliability/mutants.py native [--sample 200] [--seed 1] [--jobs 2] [--report FILE]
    python tests/reliability/mutants.py python ...

Needs what the tests need and coverage.py, and works in copies of the committed tree. The sample is drawn
over all places that can be changed, so that a seed names it. A change that does not compile is not counted,
nor one of which the compiler makes the same program, as of code for processors that this one is not;
another one is drawn. One that no test can notice, since it changes speed alone or nothing at all, is named
with the reason in mutants_equivalent.tsv, and not tried. What has been tried is in the report (file, line
before and after, stages, what noticed) and is not tried again. .ci/mutants has what was tried last, with
seed 7.

Not every test is run. Of a change of the package it is those that reach the line, the quick ones first and at
most two minutes of them, by what measure_coverage.py has left in build/coverage; of a native one those about
numbers and about the C interface. So a survivor may be one that the rest would have noticed.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import hashlib
import io
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
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import coverage

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))


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
_BUILDS = ("test_c_program", "test_packaging")
_MOST_SECONDS = 120  # of the tests that reach a line


def _pytest(*arguments: str, seconds: float = 900) -> Stage:
    return [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *arguments], seconds


#: On the best instruction set, in a loop.
_TABLE = "import test_isa; test_isa.check('all', 'all')"


class Native:
    sources = ("native/src/**/*.cc", "native/src/**/*.h", "native/src/**/*.inl")
    mutants = staticmethod(_of_cpp)
    built = ("infiniop_py/_lib/libinfiniop.so", "infiniop_py/_lib/libinfinirt.so")
    build: tuple[Stage, ...] = (
        (["cmake", "--build", "build/mutants", "--parallel", "1"], 900),
        (["cmake", "--install", "build/mutants", "--prefix", "infiniop_py/_lib"], 60),
    )
    tests = (
        _pytest("tests/reliability/test_fuzz_abi.py"),
        _pytest("tests/reliability/test_machine.py", "tests/test_threads.py"),
        _pytest("tests/reliability/test_hostile.py"),
        ([sys.executable, "-c", "import sys; sys.path.append('tests'); " + _TABLE], 300),
        _pytest(
            "tests/abi",
            "tests/test_operators.py",
            "tests/test_isa.py",
            "--ignore=tests/abi/test_c_program.py",
        ),
        _pytest(
            *(f"tests/reliability/test_{name}.py" for name in ("page_edges", "rounding", "special_values")),
            *(f"tests/reliability/test_{name}.py" for name in ("accuracy", "determinism", "environment")),
            *(
                f"tests/reliability/test_{name}.py"
                for name in ("faults", "leaks", "fork", "libraries", "sparse")
            ),
            "tests/test_graph_memory.py",
        ),
    )

    def __init__(self) -> None:
        configure = [
            *("cmake", "-S", "native", "-B", "build/mutants", "-DCMAKE_BUILD_TYPE=None"),
            *("-DCMAKE_CXX_FLAGS=-O1", "-DINFINIOP_ISAS=native"),
            *("-DINFINIOP_FLAT_INSTALL=ON", "-DINFINIOP_TESTS=ON", f"-DPython_EXECUTABLE={sys.executable}"),
        ]
        self.prepare = (configure, *(command for command, _ in self.build))
        self.failing: list[str] = []  # tests that fail without a change

    def stages(self, mutant: Mutant) -> list[Stage]:
        """First the cheap ones."""
        return [(["ctest", "--test-dir", "build/mutants", "--stop-on-failure"], 120), *self.tests]


class Python:
    sources = ("infiniop_py/**/*.py",)
    mutants = staticmethod(_of_python)
    built: tuple[str, ...] = ()
    build: tuple[Stage, ...] = ()
    prepare = (["./build_native.sh", "--jobs", "2"],)
    tests: tuple[Stage, ...] = ()

    def __init__(self) -> None:
        folder = ROOT / "build" / "coverage"
        self.reached = coverage.CoverageData(str(folder / "python"))
        self.reached.read()
        self.seconds: dict[str, float] = defaultdict(float)  # of a test, by its context
        self.names: dict[str, str] = {}  # of a test, by its context: what pytest calls it
        self.failing: list[str] = []
        for case in ElementTree.parse(folder / "tests.xml").iter("testcase"):
            places, name = case.attrib["classname"].split("."), case.attrib["name"].partition("[")[0]
            file = next(i for i, place in enumerate(places) if place.startswith("test_"))
            context = ".".join([*places[file:], name])
            self.seconds[context] += float(case.attrib["time"])
            self.names[context] = "::".join(["/".join(places[: file + 1]) + ".py", *places[file + 1 :], name])
            if places[file] in _BUILDS:  # of packages
                del self.names[context]
            elif case.find("failure") is not None or case.find("error") is not None:
                self.failing.append(self.names.pop(context))

    def stages(self, mutant: Mutant) -> list[Stage]:
        """The tests that reach the line, first the quick ones; or those that are named after the module."""
        path = Path(mutant.file)
        parts = {part.strip("_") for part in (path.stem, path.parent.name)} - {"init", "infiniop_py"}
        near = sorted(
            {str(one.relative_to(ROOT)) for part in parts for one in ROOT.glob(f"tests/**/test_*{part}*.py")}
        )
        number = (ROOT / mutant.file).read_text().count("\n", 0, mutant.start) + 1
        contexts = self.reached.contexts_by_lineno(str(ROOT / mutant.file))
        reaching: set[str] = set()
        for line in range(number, 0, -1):  # a statement of several lines is counted at its first
            if line in contexts:
                reaching = {context for context in contexts[line] if context in self.names}
                break
        # Or at import, or in processes of the tests' own: then what has its name, and what is quick.
        first = [] if reaching else [_pytest(*near)] if near else []
        names, whole = [], 0.0
        for context in sorted(reaching or self.names, key=lambda one: self.seconds[one]):
            whole += self.seconds[context]
            if whole > (_MOST_SECONDS if reaching else _MOST_SECONDS / 4):
                break
            names.append(self.names[context])
        return [*first, _pytest(*names)]


class Worker:
    """A copy of the tree, in which one mutant after the other is tried."""

    def __init__(self, kind: Native | Python) -> None:
        self.kind = kind
        self.tree = Path(tempfile.mkdtemp(prefix="mutants-"))
        subprocess.run(["git", "clone", "-q", str(ROOT), str(self.tree)], check=True)
        for command in kind.prepare:
            subprocess.run(command, cwd=self.tree, check=True, capture_output=True)
        self.unchanged = self._built()

    def _built(self) -> list[bytes]:
        return [hashlib.sha256(Path(self.tree, file).read_bytes()).digest() for file in self.kind.built]

    def attempt(self, mutant: Mutant, stages: int) -> str:
        """The first test that noticed the mutant; "" when none did, "none" when nothing changed."""
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
            if any(self._failures(stage) for stage in self.kind.build):
                return "none"
            if self.kind.built and self._built() == self.unchanged:
                return "none"
            failures = (self._failures(stage) for stage in self.kind.stages(mutant)[:stages])
            return next(filter(None, failures), [""])[0]
        finally:
            path.write_text(text)

    def find_failing(self, stages: int) -> None:
        """Tests of native changes that fail without one, as some do of a build for this processor alone."""
        for command, seconds in self.kind.tests[: stages - 1]:  # the first is the C++ tests
            self.kind.failing += self._failures(([word for word in command if word != "-x"], seconds))
        assert all("::" in name for name in self.kind.failing), self.kind.failing

    def _failures(self, stage: Stage) -> list[str]:
        """The tests that failed in this stage, or what else shows that one did."""
        command, seconds = stage
        if "pytest" in command:
            command = [*command, *(f"--deselect={name}" for name in self.kind.failing)]
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
                return [f"no end in {seconds:.0f} s"]
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        if process.returncode == 0:
            return []
        named = re.findall(r"^(?:FAILED|ERROR) (\S+)|^\s*\d+ - (\w+) \(", output, re.MULTILINE)
        return [test or program for test, program in named] or ["an error before the first test"]

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
    parser.add_argument("--stages", type=int, default=99, help="of tests: survivors of fewer are tried again")
    parser.add_argument("--only", default="", help="files whose path has this in it")
    parser.add_argument("--report", type=Path, default=None)
    options = parser.parse_args()
    kind: Native | Python = Native() if options.kind == "native" else Python()
    report: Path = options.report or Path(f"mutants-{options.kind}.tsv")
    files = sorted(str(path.relative_to(ROOT)) for pattern in kind.sources for path in ROOT.glob(pattern))
    texts = {
        file: Path(ROOT, file).read_text() for file in files if options.only in file and "_lib/" not in file
    }
    mutants = [mutant for file, text in texts.items() for mutant in kind.mutants(file, text)]
    random.Random(options.seed).shuffle(mutants)
    known = equivalents()
    done: dict[tuple[str, ...], str] = {}
    for line in report.read_text().splitlines() if report.exists() else ():
        *change, stages, noticed = line.split("\t")
        if noticed or int(stages) >= options.stages:
            done[tuple(change)] = noticed
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
                    number, before, after = mutant.line(texts[mutant.file])
                    change = (mutant.file, before, after)
                    if change in done or change in known:
                        found[mutant] = done.get(change, "")
                        continue
                    found[mutant] = "..."
                noticed = worker.attempt(mutant, options.stages)
                with lock:
                    found[mutant] = noticed
                    with report.open("a") as out:
                        print(*change, options.stages, noticed, sep="\t", file=out)
                    state = {"": "SURVIVED", "none": "not counted"}.get(noticed, "killed by " + noticed)
                    print(f"{mutant.file}:{number}: {before}  ->  {after}: {state}", flush=True)
        finally:
            worker.close()

    first = Worker(kind)
    first.find_failing(options.stages)
    first.close()
    print(f"fail without a change: {kind.failing}", flush=True)
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
