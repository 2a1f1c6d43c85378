"""``python -m infiniop_py conformance``: the plugins here pass, and each planted fault is found and named.

A plugin that is loaded stays for the rest of its process, and each slot takes one: so several are checked in
one child, each in a slot of its own.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import children
import pytest

from infiniop_py._conformance import cases, command, rows, rules
from infiniop_py._native import folder

TEMPLATE = children.ROOT / "native" / "examples" / "backend_template" / "backend_template.c"
FAKE = children.ROOT / "native" / "tests" / "fake_backend.c"
FLAGS = ("-std=c99", "-shared", "-fPIC")
STRICT = ("-Wall", "-Wextra", "-Wpedantic", "-Werror")
SLOTS = 9  # but the CPU's


class Plugin(NamedTuple):
    """A plugin to check: the template or the fake with some of its text replaced, and what is asked."""

    arguments: str
    replaced: tuple[tuple[str, str], ...] = ()
    source: Path = TEMPLATE
    defines: tuple[str, ...] = ()


class Verdict(NamedTuple):
    status: int
    text: str

    @property
    def faults(self) -> set[str]:
        """What is run again for them."""
        again = r"^    again: python -m infiniop_py conformance \S+ --cases (\S+)$"
        return set(re.findall(again, self.text, re.M))

    def count(self, op: str, column: int) -> int:
        """Of the rows of an operator: 0 passed, 1 refused, 2 failed."""
        (numbers,) = re.findall(rf"^{op} +(\d+) +(\d+) +(\d+)$", self.text, re.M)
        return int(numbers[column])


_CHECK = """
import contextlib, io, json, sys
from infiniop_py.__main__ import main
found = {}
for name, arguments in json.loads(sys.argv[1]).items():
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        status = main(["conformance", *arguments])
    found[name] = status, text.getvalue()
print(json.dumps(found))
"""


def build(plugin: Plugin, slot: int, target: Path, *flags: str) -> Path:
    """Compile it. Each replaced text is there once, in whatever lines."""
    text = plugin.source.read_text(encoding="utf-8")
    for old, new in plugin.replaced:
        pattern = r"\s+".join(map(re.escape, old.split()))
        text, count = re.subn(pattern, lambda match, new=new: new, text)  # type: ignore[misc]
        assert count == 1, old
    source = target.with_suffix(".c")
    source.write_text(text, encoding="utf-8")
    compiler = next(filter(shutil.which, ("cc", "gcc", "clang")), None)
    if compiler is None:
        pytest.skip("a C compiler is not installed")
    words = [compiler, *FLAGS, *flags, f"-I{folder / 'include'}", source, "-o", target]
    words += [f"-D{one}" for one in (f"TEMPLATE_SLOT={slot}", f"FAKE_SLOT={slot}", *plugin.defines)]
    words += ["-lm", "-ldl", "-lpthread"]
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return target


def _checked(plugins: dict[str, Plugin], tmp_path: Path) -> dict[str, Verdict]:
    """Check them, one after the other, in one process."""
    assert len(plugins) <= SLOTS
    asked = {}
    for slot, (name, plugin) in enumerate(plugins.items(), 1):
        built = build(plugin, slot, tmp_path / f"lib{name}.so")
        asked[name] = [str(built), *plugin.arguments.split()]
    words = [sys.executable, "-c", _CHECK, json.dumps(asked)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=children.ROOT, timeout=300)
    assert done.returncode == 0, done.stderr
    return {name: Verdict(*found) for name, found in json.loads(done.stdout).items()}


def checked(plugins: dict[str, Plugin], tmp_path: Path) -> dict[str, Verdict]:
    """Check any number of plugins, in a few processes."""
    names = list(plugins)
    parts = [{name: plugins[name] for name in names[i : i + SLOTS]} for i in range(0, len(names), SLOTS)]
    with ThreadPoolExecutor(2) as pool:
        return {
            name: verdict
            for found in pool.map(lambda part: _checked(part, tmp_path), parts)
            for name, verdict in found.items()
        }


# ---- the template ------------------------------------------------------------------------------------------


def test_the_template_passes(tmp_path: Path) -> None:
    """Built and checked as it says itself, by a path that is not absolute."""
    shutil.copy(TEMPLATE, tmp_path)
    lines = [line[3:].strip() for line in TEMPLATE.read_text(encoding="utf-8").splitlines()]
    (first,) = (i for i, line in enumerate(lines) if line.startswith('eval "cc'))
    assert lines[first + 2] == "python -m infiniop_py conformance ./libtemplate.so"
    build_it = "\n".join(lines[first : first + 2])
    path = f"export PATH={Path(sys.executable).parent}:$PATH PYTHONPATH={children.ROOT}"
    script = f"set -e\n{path}\n{build_it}\n{lines[first + 2]} --quick"
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    found = Verdict(0, done.stdout)
    assert "backend          template 1.0, QY, 2 devices" in found.text
    for op in cases.OPERANDS:
        assert found.count(op, 0) > 25 and found.count(op, 1) == found.count(op, 2) == 0
    held = re.findall(r"^(rule-\S+) +passed +passed$", found.text, re.M)
    assert set(held) == {rule.name for rule in rules.RULES} - {"rule-optional-entries"}
    assert "verdict          OK: rules: 78 held, 0 refused, 2 do not apply; rows: " in found.text


def test_the_template_owes_nothing_to_the_library(tmp_path: Path) -> None:
    built = build(Plugin(""), 9, tmp_path / "libtemplate.so", *STRICT)
    if shutil.which("nm") is None:
        pytest.skip("nm (binutils) is not installed")
    text = subprocess.run(["nm", "-D", built], check=True, capture_output=True, text=True).stdout
    assert [line.split()[-1] for line in text.splitlines() if "infini" in line] == ["infiniBackendGet"]


# ---- planted faults ----------------------------------------------------------------------------------------


class Planted(NamedTuple):
    """A fault in the template, or in the fake: `old` becomes `new` in its text."""

    options: str  # of the command
    named: str  # how the name of a fault begins
    said: str
    changes: tuple[tuple[str, str], ...]
    lazy: bool = False


def plant(options: str, named: str, said: str, *texts: str, lazy: bool = False) -> Planted:
    """texts: old, new, old, new, ... lazy: in the fake that runs what is queued as late as it may."""
    return Planted(options, named, said, tuple(zip(texts[::2], texts[1::2], strict=True)), lazy)


RECORD = "stream ? record(&stream->recording, plan, call) : compute(plan, call);"
RUN = "kernels[plan->op](plan, call);"
ASK = "*workspace_size = 0;"
ASK_16 = "*workspace_size = problem->op == INFINI_OP_REARRANGE ? 0 : 16;"
REFUSE = 'host->fail(INFINI_STATUS_NOT_IMPLEMENTED, "template: there is no kernel for this operator")'
NO_MUL = ("[INFINI_OP_MUL] = run_elementwise,", "")

LAZY = (FAKE, ("FAKE_LAZY=1",))
GEMM = "-k gemm-f32-9x17x33*"

PLANTED = {
    "rounding": plant(
        "-k add-bf16-5x33*",
        *("add-bf16-", "words differ; first at"),
        *("wide + 0x7FFF + (wide >> 16 & 1)", "wide"),
    ),
    "the_norm_of_the_exact_sum": plant(
        "-k rule-ways-to-run-add_rms_norm",
        *("rule-ways-to-run-add_rms_norm", "out of bounds"),
        "const double x = load(dtype, call->operands[1], at);",
        "const double x = load(dtype, call->operands[2], a0 + i * a->stride[last]) +"
        " load(dtype, call->operands[3], b0 + i * b->stride[last]);",
    ),
    "one_byte_beyond": plant(
        "-k rearrange-u8-5x33*",
        *("rearrange-", "words outside the view were written"),
        *("(size_t)size);", "(size_t)size + 1);"),
    ),
    "an_input_is_written": plant(
        "-k mul-f32-5x33-*",
        *("mul-f32-", "b is an input and was written to"),
        "store(dtype, c, c_at, round_to(",
        "store(dtype, (void *)b, b_at, 0), store(dtype, c, c_at, round_to(",
    ),
    "alpha_is_ignored": plant(GEMM, "gemm-", "expected", *("(double)call->alpha * sum", "sum")),
    "c_is_read_without_beta": plant(GEMM, "gemm-", "got np.float32(nan)", *("&& call->beta != 0;", ";")),
    "the_product_is_not_rounded": plant(
        "-k rule-ways-to-run-gemm_add",
        *("rule-ways-to-run-gemm_add", "y: "),
        "if (p->op != INFINI_OP_GEMM)",
        "if (p->op == INFINI_OP_GEMM_ADD)"
        " store(dtype, call->operands[0], c_at, sum + load(dtype, call->operands[3], place(d, 3, i)));"
        " else if (p->op != INFINI_OP_GEMM)",
    ),
    "workspace_overrun": plant(
        GEMM,
        *("gemm-", "1 bytes behind the workspace of 16 bytes were written"),
        *(ASK, ASK_16),
        *(RUN, RUN + "if (call->workspace) memset(call->workspace, 0, 17);"),
    ),
    "workspace_is_taken_for_aligned": plant(
        "-k rule-ways-to-run-mul",
        *("rule-ways-to-run-mul", "bytes before the workspace were written"),
        *(ASK, ASK_16),
        *(RUN, RUN + "if (call->workspace) memset((void *)((uintptr_t)call->workspace & ~15), 0, 8);"),
    ),
    "memset_of_the_high_byte": plant(
        "-k rule-memory",
        "rule-memory-set",
        "bytes are wrong",
        *("memset(ptr, value,", "memset(ptr, value >> 8,"),
    ),
    "short_copies": plant(
        "-k rule-memory-copies",
        *("rule-memory-copies", "D2D of 4099 bytes: "),
        *("memmove(dst, src, size);", "memmove(dst, src, size - (size > 4096));"),
    ),
    "alignment": plant(
        "-k rule-memory-sizes",
        "rule-memory-sizes",
        "no multiple of 64",
        *("kAlignment = 64", "kAlignment = 16"),
    ),
    "more_memory_than_there_is": plant(
        "-k rule-memory-too-much",
        *("rule-memory-too-much", "answers SUCCESS; needed INTERNAL_ERROR"),
        *("const int fits = size <= kMemory - used[device_id];", "const int fits = 1;"),
    ),
    "time_in_seconds": plant(
        "-k rule-event",
        *("rule-event-time", "ms elapsed"),
        *("* 1e3 +", "+"),
        *("* 1e-6", "* 1e-9"),
    ),
    "time_of_the_first_mark": plant(
        "-k rule-event-time",
        *("rule-event-time", "ms elapsed"),
        *("clock_gettime(", "if (own->time.tv_sec == 0) clock_gettime("),
    ),
    "time_of_untimed_events": plant(
        "-k rule-event-refusals",
        *("rule-event-refusals", "with DISABLE_TIMING, answers SUCCESS; needed BAD_PARAM"),
        *("(from->flags | to->flags) &", "from->flags & to->flags &"),
    ),
    "a_new_event_is_not_ready": plant(
        "-k rule-event-states",
        *("rule-event-states", "an event that was never recorded is 1, not COMPLETE"),
        *("*status = INFINIRT_EVENT_COMPLETE;", "*status = !((Event *)event)->recorded;"),
    ),
    "memory_of_the_wrong_device": plant(
        "-k rule-other-devices",
        *("rule-other-devices", "are taken, needed"),
        *("used[device_id] += size;", "used[device_id = 0] += size;"),
    ),
    "memory_that_stays_away": plant(
        "-k rule-memory-info",
        *("rule-memory-info", "stay away when it is freed"),
        *("-= block->size;", "-= block->size / 2;"),
    ),
    "async_memory_leaks": plant(
        "-k rule-leaks",
        *("rule-leaks", "bytes less are free"),
        *("? free_device(device_id, ptr) : status", "? INFINI_STATUS_SUCCESS : status"),
    ),
    "a_capture_runs": plant(
        "-k rule-captured-mul",
        *("rule-captured-mul", "was written while it was captured"),
        *(f"return {RECORD}", "return compute(plan, call), " + RECORD),
    ),
    "a_graph_runs_once": plant(
        "-k rule-captured-add",
        *("rule-captured-add", "words differ"),
        "InfiniCall call = own->calls[i].call;",
        "InfiniCall call = own->calls[i].call; if (launched++) continue;",
        "const Recording *own = exec;",
        "static int launched; const Recording *own = exec;",
    ),
    "alpha_is_not_captured": plant(
        "-k rule-graphs",
        *("rule-graphs", "gemm-"),
        *("calls[to->n].call = *call;", "calls[to->n].call = *call; calls[to->n].call.alpha = 1;"),
    ),
    "waits_for_no_event": plant(
        "-k rule-event-waits",
        *("rule-event-waits", "what a stream read after it waited: "),
        *("(Step){.kind = kWaitStep, .awaited = mark->queue,", "(Step){.kind = kWaitStep,"),
        lazy=True,
    ),
    "waits_for_no_device": plant(
        "-k rule-stream-order",
        *("rule-stream-order", "the end of a queue: "),
        *("return wait_on_host(device_id, NULL, 0);", "(void)device_id; return INFINI_STATUS_SUCCESS;"),
        lazy=True,
    ),
    "runs_on_the_default_stream": plant(
        "-k rule-ways-to-run-mul",
        *("rule-ways-to-run-mul", "c: "),
        *("enqueue(plan->device_id, call->stream, step);", "enqueue(plan->device_id, NULL, step);"),
        lazy=True,
    ),
    "never_complete": plant(
        "-k rule-event-states",
        *("rule-event-states", "a synchronised event is 1, not COMPLETE"),
        *(
            "const int done = !mark->queue || mark->queue->done >= mark->mark;",
            "const int done = !mark->queue;",
        ),
        lazy=True,
    ),
    "silent_refusals": plant(
        "-k mul-i8-3x4x17*",
        *("mul-", "NOT_IMPLEMENTED without a sentence"),
        *NO_MUL,
        *(REFUSE, "INFINI_STATUS_NOT_IMPLEMENTED"),
    ),
    "refused_at_run": plant(
        "-k rule-ways-to-run-mul",
        *("rule-ways-to-run-mul", "refuses to run what create accepted: not today"),
        RUN,
        'if (call->stream) return host->fail(INFINI_STATUS_NOT_IMPLEMENTED, "not today");' + RUN,
    ),
}


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Verdict]:
    plugins = {
        name: Plugin(f"--device 0 {fault.options}", fault.changes, *(LAZY if fault.lazy else ()))
        for name, fault in PLANTED.items()
    }
    return checked(plugins, tmp_path_factory.mktemp("planted"))


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_named(name: str, planted: dict[str, Verdict]) -> None:
    fault, found = PLANTED[name], planted[name]
    assert found.status == 1, found.text
    assert any(again.startswith(fault.named) for again in found.faults), found.text
    assert fault.said in " ".join(found.text.split()), found.text
    assert re.search(r"^verdict +FAILED: \d+ faults?; ", found.text, re.M)


# ---- what else it tells ------------------------------------------------------------------------------------


def test_other_plugins(tmp_path: Path) -> None:
    """The fake, which also refuses what it should not touch; and what refusals and missing parts come to."""
    found = checked(
        {
            "fake": Plugin("--quick --max-elements 2000 --device 0", source=FAKE),
            "lazy": Plugin("--quick --max-elements 2000 --device 1", (), *LAZY),
            "nothing": Plugin("--quick --op gemm --device 1", source=FAKE, defines=("FAKE_CREATE=2",)),
            "no_capture": Plugin("-k rule-[oc]*", source=FAKE, defines=("FAKE_CAPTURE=0",)),
            "uncapturable": Plugin("-k rule-*", source=FAKE, defines=("FAKE_UNCAPTURABLE=INFINI_OP_ADD",)),
            "no_mul": Plugin("--quick --op mul --op rearrange --device 1", (NO_MUL,)),
        },
        tmp_path,
    )
    assert {verdict.status for verdict in found.values()} == {0}, found
    fake, nothing = found["fake"], found["nothing"]
    assert "OK: rules: 39 held, 0 refused, 1 do not apply; rows: " in fake.text
    assert all(verdict.count(op, 0) > 8 for op in cases.OPERANDS for verdict in (fake, found["lazy"]))
    assert re.search(r"^ +\d+: --max-elements 2000$", fake.text, re.M)
    assert nothing.count("gemm", 0) == 0 and nothing.count("gemm", 1) > 100
    assert re.search(r"^  \d+: fake: this device has no code for it$", nothing.text, re.M)
    assert "every operator asked for is refused" in nothing.text
    words = {name: " ".join(verdict.text.split()) for name, verdict in found.items()}
    assert "rule-optional-entries passed passed" in words["no_capture"]
    assert "rule-captured-gemm - - the backend has no capture" in words["no_capture"]
    assert "rule-captured-add refused refused f16: fake: this operator cannot be" in words["uncapturable"]
    assert "rule-captured-mul passed passed" in words["uncapturable"]
    assert "refused: capture: capture failed, op by op: " in words["uncapturable"]
    assert "rule-ways-to-run-mul refused f16: template: there is no kernel for this" in words["no_mul"]
    assert found["no_mul"].count("mul", 0) == 0 and found["no_mul"].count("mul", 1) > 100
    assert found["no_mul"].count("rearrange", 0) > 90
    rules_of_mul = [rule for rule in rules.RULES if rule.op in ("", "mul", "rearrange")]
    assert len(re.findall(r"^rule-", found["no_mul"].text, re.M)) == len(rules_of_mul)


def test_a_crash_says_where(tmp_path: Path) -> None:
    crash = Plugin("", (("if (!ptr) return INFINI_STATUS_SUCCESS;", ""),))
    built = build(crash, 9, tmp_path / "libcrash.so")
    words = [sys.executable, "-m", "infiniop_py", "conformance", str(built), "-v", "-k", "rule-memory"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=children.ROOT)
    assert done.returncode < 0
    assert done.stdout.splitlines()[-1] == "rule-memory-none on QY:0"
    assert "Fatal Python error" in done.stderr and "rules.py" in done.stderr


def test_without_ml_dtypes(tmp_path: Path) -> None:
    built = build(Plugin(""), 9, tmp_path / "libtemplate.so")
    code = (
        "import sys; sys.modules['ml_dtypes'] = None\n"
        "from infiniop_py.__main__ import main\n"
        f"main(['conformance', {str(built)!r}, '--op', 'add_rms_norm', '--quick', '--device', '0'])"
    )
    text = children.run(code)
    norms = [case for case in command.table().values() if case.op == "add_rms_norm"]
    types = [{case.dtype, case.weight_dtype} for case in norms if 0 not in case.shapes[0]]
    count = len([one for one in types if "bf16" in one])
    assert re.search(rf"^ +{count}: BF16 needs the package ml_dtypes", text, re.M)
    assert re.search(r"^verdict +OK: ", text, re.M)


# ---- what is chosen ----------------------------------------------------------------------------------------


def chosen(*arguments: str) -> tuple[list[str], list[str], Any]:
    found = command.select(command.parser().parse_args(arguments))
    return [rule.name for rule in found.rules], [case.name for case in found.rows], found.left_out


def test_every_row_is_run_once() -> None:
    """But for those that no backend would hear of."""
    rule_names, names, left_out = chosen()
    assert rule_names == [rule.name for rule in rules.RULES]
    assert len(names) == len(set(names)) > 13_900
    of_the_host = {case.name for case in cases.CASES.values() if case.edge}
    empty = {case.name for case in cases.CASES.values() if 0 in case.shapes[0]}
    assert list(left_out.values()) == [len(empty)] and len(empty) > 100
    assert set(cases.CASES) - of_the_host - empty <= set(names)
    assert not [name for name in names if "page_" in name]


def test_a_part_of_the_rows() -> None:
    _, everything, _ = chosen()
    _, quick, left_out = chosen("--quick")
    assert 400 < len(quick) < 800 and left_out["--quick"] == len(everything) - len(quick)
    groups = {(case.op, case.dtype) for case in command.table().values()}
    assert {op for op, _ in groups} == {name.split("-")[0] for name in quick}
    rule_names, names, left_out = chosen("--op", "gemm_add", "--max-elements", "1000")
    assert {name.split("-")[0] for name in names} == {"gemm_add"} and left_out.total() > 100
    assert "rule-memory-set" in rule_names and "rule-captured-gemm_add" in rule_names
    assert "rule-captured-gemm" not in rule_names


@pytest.mark.parametrize(
    ("pattern", "count"),
    [("gemm-f16-9x17x33-a_T", 1), ("rule-captured-gemm", 1), ("rule-memory*info", 1), ("rule-captured-", 7)],
)
def test_names(pattern: str, count: int) -> None:
    """A name is that row alone, though other names begin with it."""
    rule_names, names, _ = chosen("-k", pattern)
    assert len(rule_names) + len(names) == count


def test_there_is_a_row_for_each_type_of_each_operator() -> None:
    assert set(rows._C_NAMES) == set(cases.OPERANDS)
    for op in cases.OPERANDS:
        found = rules.rows_of(op)
        types = {case.dtype for case in cases.CASES.values() if case.op == op} - {"bool", "c64"}
        assert {case.dtype for case in found} == types
        assert all(case.beta != 0 and case.alpha != 1 for case in found if op == "gemm")


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--list", "-k", "rule-memory", "--op", "add"]) == 0
    names = [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()]
    assert names == [rule.name for rule in rules.RULES if rule.name.startswith("rule-memory")]
    assert command.main(["--list", "-k", "add-f16-7"]) == 0
    assert capsys.readouterr().out == "add-f16-7\n"


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        ((), 2, "which plugin?"),
        (("/nowhere/plugin.so",), 1, "/nowhere/plugin.so"),
        (("pyproject.toml",), 1, "pyproject.toml"),
        (("/nowhere/\udcff.so",), 1, "/nowhere/"),
        (("x.so", "-k", "no such row"), 2, "no rule and no row is left"),
        (("x.so", "--op", "div"), 2, "invalid choice"),
        (("x.so", "--max-elements", "-1"), 2, "'-1' is no number of elements"),
    ],
)
def test_refusals(
    arguments: tuple[str, ...], status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        got = command.main(list(arguments))
    except SystemExit as end:
        got = int(str(end.code))
    assert got == status and said in capsys.readouterr().err


def test_a_device_that_is_not_there(tmp_path: Path) -> None:
    built = build(Plugin(""), 9, tmp_path / "libtemplate.so")
    words = [sys.executable, "-m", "infiniop_py", "conformance", built, "--device", "2"]
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "--device 2: there are 2 devices" in done.stderr
