"""Logging: what is said at debug, what is not said otherwise, and who decides."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import children
import numpy as np
import pytest

import infiniop_py as ip


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records if record.name == "infiniop_py"]
    caplog.clear()
    return found


def test_a_call_is_one_line_in_and_one_line_out(caplog: pytest.LogCaptureFixture) -> None:
    a, b = np.ones((2, 3), "f4"), np.ones((3, 4), "f4")
    ip.Gemm.cache().clear()
    with caplog.at_level(logging.DEBUG, "infiniop_py"):
        ip.gemm(a, b, 0.5)
        first = messages(caplog)
        ip.gemm(a, b, 0.5)
        second = messages(caplog)
    call = r"result F32\[2, 4\], a F32\[2, 3\], b F32\[3, 4\], 0\.5, 0 on CPU:0"
    assert len(first) == 3 and len(second) == 2
    assert re.fullmatch(
        r"gemm planned: 1 x \(2 x 3\) @ \(3 x 4\): in place by rows of B, tasks .*", first.pop(0)
    )
    assert re.fullmatch(rf"gemm enter: {call}, cache miss", first[0])
    assert re.fullmatch(rf"gemm enter: {call}, cache hit", second[0])
    for lines in (first, second):
        assert re.fullmatch(rf"gemm exit: {call}, \d+\.\d us", lines[1])


def test_a_failure_is_told(caplog: pytest.LogCaptureFixture) -> None:
    memory = np.ones(4)
    with caplog.at_level(logging.DEBUG, "infiniop_py"):
        with pytest.raises(ip.ParamError):
            ip.add_(memory[1:], memory[:-1], memory[1:])
        assert [line.split(":")[0] for line in messages(caplog)] == ["add enter", "add failed"]


def test_graphs_are_told(caplog: pytest.LogCaptureFixture) -> None:
    x = np.ones(3)
    with caplog.at_level(logging.DEBUG, "infiniop_py"):
        with ip.Graph() as graph:
            _ = ip.add(x, x)  # a result that nobody has would not be computed
        assert [line.split(":")[0] for line in messages(caplog)] == ["add recorded"]
        graph.run()
        lines = messages(caplog)
    assert lines[0] == "graph enter: 1 calls in 1 steps" and re.fullmatch(
        r"graph exit: 1 calls, \d+\.\d us", lines[1]
    )


GRAPH_ON_DEVICE = """
import logging, numpy as np, infiniop_py as ip
said = []
class Kept(logging.Handler):
    def emit(self, record): said.append((record.levelname, record.getMessage()))
logging.getLogger("infiniop_py").addHandler(Kept())
x = ip.ones(3, device="qy:1")
for _ in range(2):
    with ip.Graph() as graph:
        y = ip.add(x, x)
        z = ip.mul(y, x)
    for _ in range(3):
        graph.run()
    assert z.to("cpu").numpy().tolist() == [2, 2, 2] and ip.get_device() == ip.Device("cpu")
print(*said, sep="\\n")
"""


@pytest.mark.parametrize("flag", ["-DFAKE_INSTANTIATE=1", "-DFAKE_CAPTURE=1", "-DFAKE_CAPTURE=0"])
def test_a_capture_that_fails_is_told_once_a_graph(tmp_path: Path, flag: str) -> None:
    plugin = str(children.build_fake_backend(tmp_path, flag))
    lines = children.run(GRAPH_ON_DEVICE, INFINIOP_BACKEND_PATH=plugin, INFINIOP_NO_CAPTURE=None).splitlines()
    if "INSTANTIATE" not in flag:
        assert lines == [""]
        return
    assert len(lines) == 2 and lines[0] == lines[1]
    for part in ("WARNING", "graph of 2 calls on QY:1: capture failed, op by op: instantiating: fake: "):
        assert part in lines[0]


def test_nothing_is_said_at_info(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "infiniop_py"):
        ip.add(np.ones(3), np.ones(3))
    assert messages(caplog) == []


CALL = "import numpy as np, infiniop_py as ip\nip.add(np.ones(3), np.ones(3))\n"
LEVEL = "import logging, infiniop_py\nprint(logging.getLogger('infiniop_py').level)"


@pytest.mark.parametrize(
    ("environment", "level"),
    [
        ({}, logging.NOTSET),
        ({"INFINIOP_LOG": "debug"}, logging.DEBUG),
        ({"INFINICORE_LOG_LEVEL": "WARNING"}, logging.WARNING),
        ({"INFINIOP_LOG": "15"}, 15),
        ({"INFINIOP_LOG": "error", "INFINICORE_LOG_LEVEL": "debug"}, logging.ERROR),
        ({"INFINIOP_LOG": " ", "INFINICORE_LOG_LEVEL": "info"}, logging.INFO),
    ],
    ids=str,
)
def test_the_environment_sets_the_level(environment: dict[str, str], level: int) -> None:
    cleared: dict[str, Any] = {"INFINIOP_LOG": None, "INFINICORE_LOG_LEVEL": None}
    assert children.run(LEVEL, **{**cleared, **environment}).strip() == str(level)


def test_lines_reach_standard_error_when_nobody_else_takes_them() -> None:
    done = children.attempt(CALL, INFINIOP_LOG="debug")
    assert done.returncode == 0 and done.stdout == ""
    lines = done.stderr.splitlines()
    assert len(lines) == 2 and lines[0].startswith("infiniop_py DEBUG: add enter: result F64[3]")


def test_lines_are_not_doubled_when_the_program_takes_them() -> None:
    done = children.attempt(
        "import logging; logging.basicConfig(format='app %(message)s')\n" + CALL, INFINIOP_LOG="debug"
    )
    assert [line.split(":")[0] for line in done.stderr.splitlines()] == ["app add enter", "app add exit"]


@pytest.mark.parametrize("level", ["loud", "\N{SUPERSCRIPT TWO}", "1" * 5000], ids=len)
def test_a_wrong_level_is_named(level: str) -> None:
    done = children.attempt(CALL, INFINIOP_LOG=level, INFINICORE_LOG_LEVEL=None)
    assert done.returncode == 0 and f"INFINIOP_LOG={level!r} is no log level" in done.stderr


@pytest.mark.parametrize(
    "program", [CALL, "from infiniop_py._log import logger; logger.warning('to nobody')"]
)
def test_silence_by_default(program: str) -> None:
    """Nothing on standard error either, where logging itself shows warnings that nobody takes."""
    assert children.run(program, INFINIOP_LOG=None, INFINICORE_LOG_LEVEL=None) == ""
