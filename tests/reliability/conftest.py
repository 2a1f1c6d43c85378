"""A scoreboard of what these tests tried; and the helper modules of the tests of the C interface."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.extend([str(Path(__file__).resolve().parents[1] / folder) for folder in ("abi", "interop")])

import _compiler

_FOLDER = "tests/reliability/"


@pytest.fixture(scope="session")
def failing_malloc(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The allocator that fails and counts, to be preloaded."""
    target = tmp_path_factory.mktemp("faults") / "failing_malloc.so"
    flags = ("-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-fvisibility=hidden")
    source = Path(__file__).with_name("failing_malloc.c")
    _compiler.run([_compiler.compiler(), *flags, source, "-o", target, "-lpthread"])
    return target


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """A row a file: tests record how many cases they tried as the property "cases"."""
    rows: dict[str, list[float]] = {}
    for outcome in ("passed", "failed", "error"):
        for report in terminalreporter.getreports(outcome):
            if not report.nodeid.startswith(_FOLDER):
                continue
            name = report.nodeid.removeprefix(_FOLDER).partition("::")[0]
            row = rows.setdefault(name.removeprefix("test_").removesuffix(".py"), [0, 0, 0])
            row[0] += dict(report.user_properties).get("cases", 0) if report.when == "call" else 0
            row[1] += outcome != "passed"
            row[2] += report.duration
    if not rows:
        return
    terminalreporter.section("reliability")
    terminalreporter.write_line(f"{'':24}{'cases':>10}{'failures':>10}{'seconds':>10}")
    for name, (cases, failures, seconds) in sorted(rows.items()):
        terminalreporter.write_line(f"{name:24}{cases:10,.0f}{failures:10.0f}{seconds:10.1f}")
