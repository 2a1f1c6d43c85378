"""``python -m infiniop_py bench``: what it lists, measures, computes and writes. No time is asserted."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import infiniop_py
from infiniop_py import DType, __main__
from infiniop_py._bench import (
    command,
    graphs,
    machine,
    memory,
    ours,
    overhead,
    peers,
    report,
    rows,
    suite,
    timing,
)
from infiniop_py._bench.ceilings import Ceilings
from infiniop_py._bench.report import Progress, Report
from infiniop_py._ceilings import COPY, FMA_F32, FMA_F64, READ, SMALLEST, Roof
from infiniop_py._conformance.reference import assert_rms_norm, assert_same_bits

ROOT = Path(infiniop_py.__file__).resolve().parent.parent
RATES = {COPY: 10e9, READ: 20e9, FMA_F32: 100e9, FMA_F64: 50e9}


def flat(what: str, working_set: int, threads: int) -> float:
    """A machine whose rates depend on the number of threads alone."""
    return RATES[what] * threads


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "infiniop_py", "bench", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


# ---- the command -------------------------------------------------------------------------------------------


def test_list_names_each_row_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(["bench", "--list"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert len(listed) == len(set(listed)) == len(rows.table())
    assert set(listed) >= rows.QUICK
    for name in (
        "gemm F64 4096x4096x4096 contiguous",
        "gemm F16 128x4096x4096 contiguous",
        "gemm BF16 1x4096x11008 b transposed",
        "gemm BF16 300x300x64 a transposed",
        "gemm F32 64x128x64x128 contiguous",
        "gemm F32 16x16x16 contiguous",
        "mul I32 64000000 contiguous",
        "add F16 8000x8000 a transposed",
        "add BF16 1000x1000 in place",
        "add_rms_norm F16 4096x4096 contiguous",
        "rearrange U8 2001x2001 transpose",
        "rearrange F32 3x4x50x50x5x7 -> (5,4,3,2,1,0)",
    ):
        assert name in listed


def test_options_choose_rows(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--list", "--op", "gemm", "--dtype", "f16,BF16", "--shape", "4x2048x2048"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "gemm F16 4x2048x2048 contiguous",
        "gemm F16 4x2048x2048 b transposed",
        "gemm BF16 4x2048x2048 contiguous",
        "gemm BF16 4x2048x2048 b transposed",
    ]
    assert command.main(["--list", "--op", "rearrange", "--dtype", "F32", "--shape", "7x9x2"]) == 0
    assert capsys.readouterr().out.splitlines() == ["rearrange F32 7x9x2 -> (2,1,0)"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--op", "conv"], "'conv' is no op"),
        (["--dtype", "F33"], "F33"),
        (["--shape", "4x-1"], "'4x-1' is no shape"),
        (["--shape", "4.9x4x4"], "'4.9x4x4' is no shape of whole sizes"),
        (["--shape", "infx4x4"], "'infx4x4' is no shape"),
        (["--shape", "5x6x7"], "name the op"),
        (["--op", "gemm", "--shape", "5x6"], "gemm takes 3 to 4 sizes"),
        (["--op", "gemm", "--dtype", "I32"], "no row"),
        (["--op", "gemm", "--dtype", "I32", "--shape", "2x3x4"], "gemm is not measured in I32"),
        (["--threads", "0"], "'0' is no number of threads"),
        (["--budget", "nan"], "'nan' is no number of seconds"),
        (["--retries", "-1"], "'-1' is no number of times"),
        (["--offset", "12"], "'12' is no offset"),
        (["--offset", "64"], "a multiple of 8 below 64"),
        (["--compare", "numpy,blis"], "'blis' is no peer"),
        (["--json", "/nowhere/at/all.json"], "cannot be written: No such file"),
        (["--json", "/dev"], "'/dev' cannot be written: Is a directory"),
        (["--markdown", "/proc/version/x.md"], "cannot be written"),
        (["sideways"], "sideways"),
    ],
)
def test_refusals(arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refusal:
        command.main(["--list", *arguments])
    assert refusal.value.code == 2
    assert sentence in capsys.readouterr().err


def test_shapes_may_be_written_as_floats(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--list", "--op", "mul", "--dtype", "F32", "--shape", "1e6"]) == 0
    assert capsys.readouterr().out.split()[:3] == ["mul", "F32", "1000000"]


def test_files_are_tried_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    new, old, link = (tmp_path / name for name in ("new.json", "old.md", "link.json"))
    old.write_text("old")
    link.symlink_to(tmp_path / "nothing.json")
    assert command.main(["--list", "--json", str(new), "--markdown", str(old)]) == 0
    assert command.main(["--list", "--json", str(link), "--markdown", "/dev/stdout"]) == 0
    assert sorted(tmp_path.iterdir()) == [link, old] and old.read_text() == "old"

    def refuse(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(SystemExit):
        command.main(["--list", "--json", str(new)])
    assert "new.json' cannot be written: Read-only file system" in capsys.readouterr().err


def test_plots_have_a_suffix_that_matplotlib_knows(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    for name in ("roofline", "roofline.txt"):
        with pytest.raises(SystemExit):
            command.main(["--list", "--plot", name])
        assert f"'{name}' is no picture; it needs one of " in capsys.readouterr().err


def test_json_has_every_field(tmp_path: Path) -> None:
    written, table = tmp_path / "rows.json", tmp_path / "rows.md"
    done = run(
        *("--quick", "--op", "add", "--dtype", "F32", "--budget", "0.2", "--threads", "1,2"),
        *("--compare", "numpy,numexpr", "--json", str(written), "--markdown", str(table)),
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(written.read_text(encoding="utf-8"))
    assert report["schema"] == 1
    assert (report["threads"], report["offset_bytes"]) == ([1, 2], 0)
    assert set(report["machine"]) >= {"cpu", "caches", "isa", "compiler", "date", "infiniop_py", "numpy"}
    measured = {(one["what"], one["threads"]) for one in report["ceilings"]}
    assert measured == {(what, n) for what in (COPY, FMA_F32) for n in (1, 2)}
    assert len(report["rows"]) == 4
    for row in report["rows"]:
        assert set(row) == {
            *("op", "dtype", "shape", "layout", "threads", "flops", "bytes", "working_set_bytes", "sets"),
            *("unit", "median_seconds", "spread", "samples", "rate", "call_overhead_removed_seconds"),
            *("bound", "roofline_seconds", "roofline_rate", "bandwidth_bytes_per_second"),
            *("percent_of_roofline", "best_peer", "peers", "failures", "other_processes_cpu_share"),
            "fma_rate_of_ceiling",
        }
        assert (row["op"], row["dtype"], row["unit"], row["bound"]) == ("add", "F32", "GB/s", COPY)
        assert row["samples"] >= timing.MIN_ROUNDS
        assert row["rate"] == pytest.approx(row["bytes"] / row["median_seconds"] / 1e9)
        assert row["failures"] == {}
        against = row["peers"]["numpy"]
        assert against["ratio"] == pytest.approx(against["median_seconds"] / row["median_seconds"])
    assert report["rows"][0]["bytes"] == 3 * 4 * 10**6
    for text in (done.stdout, table.read_text(encoding="utf-8")):
        assert report["machine"]["cpu"] in text
        assert "1000x1000" in text
    assert done.stderr.count("\n") >= 4  # a line for each row, because this is no terminal


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Runs a tiny row of each kind in this process, against NumPy and without measuring ceilings."""
    monkeypatch.setattr(command, "Ceilings", lambda: Ceilings(flat, 2**28))

    def main(*arguments: str) -> int:
        given = ["--shape", "4x8x16", "--op", "gemm,rearrange", "--dtype", "F32", "--threads", "1"]
        return command.main([*given, "--budget", "0.01", "--compare", "numpy", *arguments])

    return main


@pytest.mark.parametrize("offset", [0, 8, 56])
def test_arrays_begin_where_they_are_told(offset: int) -> None:
    held = memory.Memory(rows.gemm(DType.F64, (4, 8, 16)), 2, offset=offset)
    assert {held.address(which, i) % 64 for which in range(2) for i in range(3)} == {offset}


def test_a_run_says_where_its_arrays_begin(
    tiny: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begins: set[int] = set()

    def measure(case: rows.Case, held: memory.Memory, *rest: Any) -> suite.Result:
        begins.update(held.address(0, i) % 64 for i in range(len(case.operands)))
        return suite.measure_row(case, held, *rest)

    monkeypatch.setattr(command, "measure_row", measure)
    assert tiny("--offset", "16") == 0
    assert begins == {16} and "begin 16 bytes behind a cache line" in capsys.readouterr().out


def test_plot_without_matplotlib_says_so(
    tiny: Callable[..., int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    picture = tmp_path / "roofline.png"
    assert tiny("--plot", str(picture)) == 0
    captured = capsys.readouterr()
    for text in (captured.err, captured.out):
        assert "infiniop_py[plot]" in text
    assert "4x8x16" in captured.out
    assert not picture.exists()


def test_plot(tiny: Callable[..., int], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "roofline.png"
    assert tiny("--plot", str(picture)) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_file_that_fails_leaves_the_others_and_the_table(
    tiny: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "rows.md"
    assert tiny("--json", "/dev/full", "--markdown", str(table)) == 1
    captured = capsys.readouterr()
    assert "4x8x16" in table.read_text() and "4x8x16" in captured.out
    assert "/dev/full is not written: No space left on device" in captured.err


def test_files_are_written_though_nobody_reads_the_table(
    tiny: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "rows.md"

    def gone(_: str) -> int:
        raise BrokenPipeError

    with monkeypatch.context() as patch, pytest.raises(BrokenPipeError):
        patch.setattr(sys.stdout, "write", gone)
        tiny("--markdown", str(table))
    assert "4x8x16" in table.read_text()


def test_a_peer_that_is_missing_is_named(
    tiny: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "numexpr", None)
    assert tiny("--compare", "numpy,numexpr") == 0
    captured = capsys.readouterr()
    for text in (captured.err, captured.out):
        assert "numexpr is left out: numexpr is not installed" in text


def test_an_interrupted_run_shows_what_it_has(
    tiny: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured = []

    def once(*arguments: object) -> suite.Result:
        if measured:
            raise KeyboardInterrupt
        measured.append(suite.measure_row(*arguments))
        return measured[0]

    monkeypatch.setattr(command, "measure_row", once)
    assert tiny() == 130
    out = capsys.readouterr().out
    assert "interrupted after 1 of 4 rows" in out
    assert "4x8x16" in out


def test_facts_are_not_empty() -> None:
    assert all(machine.facts().values())
    assert 0 <= machine.OtherProcesses().share() <= 1
    assert [machine.size_text(n) for n in (64, 2**20 * 3 // 2, 2**34)] == ["64 B", "1.5 MiB", "16 GiB"]


def test_a_disturbed_row_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    case, flat = rows.gemm(DType.F32, (4, 8, 16)), Ceilings(lambda what, size, n: RATES[what], 2**28)
    first = suite.measure_row(case, memory.Memory(case), [], 1, flat, 1e-3)
    measured = [rows.replace(first, disturbance=share, pace=1.0) for share in (0.5, 0.2, 0.01, 0.0)]
    monkeypatch.setattr(command, "measure_row", lambda *_: next(turns))
    for retries, order, wanted in (
        (0, measured, 0.5),
        (1, measured, 0.2),
        (2, measured, 0.01),
        (9, measured, 0.01),
        (1, measured[1::-1], 0.2),
    ):
        turns = iter(order)
        run = command._Run([], [], [1], 1e-3, retries, 0, [])
        run.ceilings = flat
        assert run._row(case, memory.Memory(case), 1).disturbance == wanted


@pytest.mark.parametrize(
    ("case", "says"),
    [
        (rows.gemm(DType.F16, (4, 8, 16)), "F16 matrices in a plain loop"),
        (rows.gemm(DType.BF16, (4, 8, 16)), "BF16 matrices as F32 copies"),
        (rows.in_place("add", DType.F16, (4, 8)), "F16 element by element"),
        (rows.in_place("mul", DType.BF16, (4, 8)), "BF16 element by element"),
    ],
    ids=["gemm-f16", "gemm-bf16", "add-f16", "mul-bf16"],
)
def test_what_numpy_does_with_halves_is_said(case: rows.Case, says: str) -> None:
    assert says in peers.NumPy().remark(case)


def test_progress_is_a_bar_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    times = iter([100.0, 130.0, 200.0])
    monkeypatch.setattr(report, "perf_counter", lambda: next(times))
    progress = Progress(3)
    progress.begin("the first row")
    progress.end("the first row's result")
    progress.begin("the second row")
    progress.end("the second row's result")
    progress.begin("the third row")
    progress.close()
    _, first, second, third, last = capsys.readouterr().err.split("\r\033[K")
    assert first == "[" + 30 * "." + "] the first row"
    assert second == "[" + 10 * "#" + 20 * "." + "] 60 s left the second row"
    assert third == "[" + 20 * "#" + 10 * "." + "] 50 s left the third row"
    assert last == ""


def test_progress_says_minutes_of_long_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    times = iter([0.0, 91.0])
    monkeypatch.setattr(report, "perf_counter", lambda: next(times))
    progress = Progress(4)
    progress.end("")
    progress.begin("more")
    assert capsys.readouterr().err.endswith("] 5 min left more")


# ---- arithmetic --------------------------------------------------------------------------------------------


def test_traffic_counts_each_operand_once() -> None:
    assert rows.gemm(DType.F32, (2, 3, 5)).traffic == 4 * (2 * 5 + 2 * 3 + 3 * 5)
    assert rows.gemm(DType.F16, (7, 2, 3, 5), rows.B_TRANSPOSED).traffic == 2 * 7 * (2 * 5 + 2 * 3 + 3 * 5)
    assert rows.gemm(DType.F16, (7, 2, 3, 5)).flops == 2 * 7 * 2 * 3 * 5
    assert rows.broadcast_row("add", DType.F32, (10, 20)).traffic == 4 * (2 * 200 + 20)
    assert rows.in_place("add", DType.F32, (10, 20)).traffic == 4 * 3 * 200
    assert rows.in_place("add", DType.F32, (10, 20)).footprint == 4 * 2 * 200
    assert rows.transposed_operand("add", DType.F64, (10, 20)).traffic == 8 * 3 * 200
    assert rows.add_rms_norm(DType.BF16, (10, 20)).traffic == 2 * (4 * 200 + 20)


def test_traffic_of_strides_is_whole_cache_lines() -> None:
    assert rows.strided("add", DType.F32, (10, 20)).traffic == 4 * (2 * 200 + 2 * 200)
    assert rows.strided("add", DType.F32, (10, 20)).operands[1].strides == (40, 2)
    assert rows.Operand((10,), (100,)).traffic(8) == 10 * 64
    assert rows.Operand((10, 1), (1, 100)).traffic(8) == 10 * 8


def test_roof_is_the_larger_of_computing_and_moving() -> None:
    ceilings = Ceilings(flat, 2**28)
    skinny = rows.gemm(DType.F32, (1, 2048, 2048))
    assert ceilings.roof(skinny, 1, 2) == Roof(skinny.traffic / 40e9, READ, pytest.approx(40e9))
    cube = rows.gemm(DType.F32, (512, 512, 512))
    assert ceilings.roof(cube, 1, 2) == Roof(2 * 512**3 / 200e9, FMA_F32, pytest.approx(20e9))
    assert ceilings.roof(rows.gemm(DType.F64, (512, 512, 512)), 1, 1).bound == FMA_F64
    assert ceilings.roof(rows.gemm(DType.BF16, (512, 512, 512)), 1, 1).bound == FMA_F32
    added = rows.elementwise("add", DType.F32, (2**20,))
    assert ceilings.roof(added, 1, 1) == Roof(3 * 2**22 / 10e9, COPY, pytest.approx(10e9))
    assert Roof(0.5, COPY, 1.0).percent(2.0) == 25


def test_ceilings_measured_while_a_cpu_was_away_are_not_kept() -> None:
    case, measured = rows.gemm(DType.F32, (4, 8, 16)), dict.fromkeys(RATES, 0)

    def measure(what: str, working_set: int, threads: int) -> float:
        measured[what] += 1
        return RATES[what] / (2 if measured[what] < 5 else 1)

    ceilings = Ceilings(measure, 2**28)
    ceilings.measure_all([(case, 1)], 2)
    assert ceilings.fma(DType.F32, 2) == RATES[FMA_F32]


def test_bandwidth_is_interpolated_between_powers_of_two() -> None:
    asked = []

    def measure(what: str, working_set: int, threads: int) -> float:
        asked.append(working_set)
        return 4e15 / working_set

    ceilings = Ceilings(measure, 2**30)
    assert ceilings.bandwidth(COPY, 2**21, 1) == pytest.approx(4e15 / 2**21)
    assert ceilings.bandwidth(COPY, 3 * 2**20, 1) == pytest.approx(4e15 / (3 * 2**20))
    assert set(asked) == {2**21, 2**22}
    assert ceilings.bandwidth(COPY, 1, 1) == pytest.approx(4e15 / SMALLEST)
    assert ceilings.bandwidth(COPY, 2**40, 1) == pytest.approx(4e15 / 2**30)


def test_one_thread_may_be_the_ceiling_of_what_is_small() -> None:
    """Waking a thread can take longer than the work."""
    ceilings = Ceilings(lambda what, working_set, threads: 30e9 / threads, 2**28)
    assert ceilings.bandwidth(COPY, 2**15, 2) == pytest.approx(30e9)
    assert ceilings.bandwidth(COPY, 2**25, 2) == pytest.approx(15e9)


def test_ratios() -> None:
    case = rows.gemm(DType.F32, (100, 100, 100))

    def took(seconds: float) -> timing.Timing:
        return timing.Timing(seconds, 0.0, 3)

    result = suite.Result(
        *(case, 1, 1, Roof(1e-3, FMA_F32, 1.0), took(2e-3)),
        {
            "slow": suite.PeerTime(took(8e-3), False, ""),
            "fast": suite.PeerTime(took(1e-3), False, ""),
            "hopeless": suite.PeerTime(took(10.0), True, "sorry"),
        },
    )
    assert result.ratio("slow") == 4
    assert result.ratio("fast") == 0.5
    assert result.best_peer == "fast"
    assert result.percent == 50
    assert result.rate(2e-3) == pytest.approx(1.0)
    assert result.as_json()["peers"]["slow"]["ratio"] == 4
    versions = {"slow": "1", "fast": "2", "hopeless": "3", "absent": "4"}
    text = Report(machine.facts(), versions, [], 1.0, 0, Ceilings(flat, 2**28), [1], [result]).text()
    (row,) = [line for line in text.splitlines() if line.startswith("gemm")]
    assert row.split()[-3:] == ["4.00", "0.5", "~5000"]
    assert "sorry." in text


def test_summary_is_median_and_interquartile_range() -> None:
    found = timing.summary([1.0, 2.0, 3.0, 4.0, 100.0])
    assert (found.seconds, found.spread, found.samples) == (3.0, pytest.approx(2 / 3), 5)
    assert timing.summary([7.0]) == timing.Timing(7.0, None, 1)
    assert timing.summary([5.0, 6.0, 7.0], [1.0, 2.0, 3.0]) == timing.Timing(4.0, 0.0, 3, 2.0)


def test_sets_hold_twice_the_cache_unless_memory_is_short() -> None:
    case = rows.elementwise("add", DType.F32, (1000,))  # 12,000 bytes
    streamed = rows.replace(case, streams=True)
    assert memory.sets_of(case, cache=100_000, memory=10**9) == 1
    assert memory.sets_of(streamed, cache=100_000, memory=10**9) == 17
    assert memory.sets_of(streamed, cache=100_000, memory=100_000) == 2
    assert memory.sets_of(streamed, cache=1_000, memory=10**9) == 1
    assert memory.sets_of(case, cache=1_000, memory=20_000) == 0


@pytest.mark.parametrize(
    ("gflops", "wake_up", "slow"), [(0.2, 0.0, True), (1e4, 0.008, False), (1e4, 0.0, False)]
)
def test_only_what_is_truly_slow_is_estimated(
    gflops: float, wake_up: float, slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library whose threads take milliseconds to wake is not slow."""

    class Library(peers.Peer):
        name = "library"

        def calls(self, case: rows.Case, memory: memory.Memory) -> list[timing.Call]:
            return [lambda: timing.sleep(wake_up + case.flops / gflops / 1e9)]

    class NoMemory:
        def __init__(self, case: rows.Case) -> None: ...

    monkeypatch.setattr(suite, "Memory", NoMemory)
    case = rows.gemm(DType.F16, (4096, 4096, 4096))
    estimate = suite._estimate(Library(), case, 2.0)
    assert (estimate is not None) == slow
    if estimate is not None:
        assert estimate >= case.flops / gflops / 1e9
    assert suite._estimate(Library(), rows.gemm(DType.F32, (4096, 4096, 4096)), 2.0) is None


# ---- turns -------------------------------------------------------------------------------------------------


def test_turns_alternate_and_go_round_the_sets() -> None:
    called: list[tuple[str, int]] = []

    def contender(name: str) -> timing.Contender:
        return timing.Contender(
            name, [lambda which=which: called.append((name, which)) for which in range(3)]
        )

    timings, failures = timing.take_turns([contender("one"), contender("two")], 1e-3)
    assert failures == {}
    assert list(timings) == ["one", "two"]
    assert all(one.samples >= timing.MIN_ROUNDS and one.seconds > 0 for one in timings.values())
    which = [number for _, number in called]
    assert which == [i % 3 for i in range(len(which))]
    names = [name for i, (name, _) in enumerate(called) if i == 0 or called[i - 1][0] != name]
    assert names[:4] == ["one", "two", "one", "two"]


@pytest.mark.parametrize(
    ("idle", "slowness", "calls"),
    [
        (0.0, 1, 1),
        (0.004, 1, 4),
        (1.0, 1, 1000 * timing.RAMP_SECONDS),
        (0.0, 2, 1000 * timing.WARM_UP_SECONDS / 2),
    ],
)
def test_cpus_that_slept_get_warm(
    monkeypatch: pytest.MonkeyPatch, idle: float, slowness: float, calls: float
) -> None:
    milliseconds = 0.0

    def call() -> None:
        nonlocal milliseconds
        milliseconds += slowness

    monkeypatch.setattr(timing, "perf_counter", lambda: milliseconds / 1000)
    one = timing._Turns(timing.Contender("one", [call]), warm_up=1, best=1e-3)
    one.get_warm(count(), idle)
    assert milliseconds == calls * slowness


def test_what_comes_after_a_turn_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    inside: list[bool] = []
    seconds = timing._seconds

    def timed(calls: list[timing.Call]) -> float:
        inside.append(True)
        took = seconds(calls)
        inside.pop()
        return took

    def after() -> None:
        assert not inside
        called.append("after")

    monkeypatch.setattr(timing, "_seconds", timed)

    contender = timing.Contender("one", [lambda: called.append("call")], after=after)
    timings, _ = timing.take_turns([contender], 1e-3)
    assert called.count("after") == timings["one"].samples >= timing.MIN_ROUNDS
    assert called[0] == "call" and called[-1] == "after"


def test_a_row_says_how_fast_the_cpus_were_meanwhile() -> None:
    slower = iter([100e9, 100e9, 100e9, *[60e9] * 1000])
    case = rows.gemm(DType.F32, (4, 8, 16))
    ceilings = Ceilings(lambda what, size, n: next(slower) if what == FMA_F32 else RATES[what], 2**28)
    result = suite.measure_row(case, memory.Memory(case), [], 1, ceilings, 1e-3)
    assert result.pace == pytest.approx(0.6)
    quiet = rows.replace(result, disturbance=suite.DISTURBED)
    assert quiet.disturbed and not rows.replace(quiet, pace=suite.SLOWED).disturbed
    assert rows.replace(quiet, pace=1.0, disturbance=2 * suite.DISTURBED).disturbed
    assert result.as_json()["fma_rate_of_ceiling"] == result.pace
    text = Report(machine.facts(), {}, [], 1.0, 0, ceilings, [1], [result]).text()
    (row,) = [line for line in text.splitlines() if line.startswith("gemm")]
    assert "4x8x16" in row and "!" in row and "60 %" in row
    assert "below 85 %" in text


def test_a_failing_contender_is_reported_and_the_others_measured() -> None:
    def fail() -> None:
        raise ValueError("not here\nsecond line")

    good = timing.Contender("good", [lambda: None])
    timings, failures = timing.take_turns([good, timing.Contender("bad", [fail])], 1e-3)
    assert list(timings) == ["good"]
    assert failures == {"bad": "ValueError: not here"}


def test_a_contender_as_slow_as_the_budget_is_called_once() -> None:
    calls = []

    def slow() -> None:
        calls.append(1)
        timing.sleep(1.2 * timing.LONG_SECONDS)

    timings, _ = timing.take_turns([timing.Contender("slow", [slow])], timing.LONG_SECONDS)
    assert timings["slow"].samples == len(calls) == 1


# ---- the contenders do the work they are timed for ---------------------------------------------------------

TINY_CASES = [
    *(rows.gemm(dtype, (5, 8, 6), layout) for dtype in rows.DTYPES["gemm"] for layout in rows.GEMM_LAYOUTS),
    *(
        rows.gemm(dtype, (3, 5, 8, 6), layout)
        for dtype in rows.DTYPES["gemm"]
        for layout in rows.GEMM_LAYOUTS
    ),
    *(
        layout(op, dtype, (6, 7))
        for op in ("add", "mul")
        for dtype in rows.DTYPES[op]
        for layout in (rows.elementwise, *rows._LAYOUTS)
    ),
    *(rows.add_rms_norm(dtype, (3, 40)) for dtype in rows.DTYPES["add_rms_norm"]),
    *(rows.rearrange(dtype, (3, 4, 5), (2, 0, 1)) for dtype in rows.DTYPES["rearrange"]),
]


def expected(case: rows.Case, operands: list[np.ndarray]) -> np.ndarray:
    """The last output, from inputs whose sums of products are exact."""
    first, second = (operand.copy() for operand in (*operands[case.n_outputs :], operands[-1])[:2])
    if case.op == "gemm":
        return (first.astype("f8") @ second.astype("f8")).astype(case.dtype.numpy)
    if case.op == "rearrange":
        return first
    return first * second if case.op == "mul" else first + second


def check(case: rows.Case, held: memory.Memory, contender: timing.Contender) -> None:
    """Run a contender on small integers and look at its outputs."""
    operands = held.numpy(0)
    if case.op != "add_rms_norm":
        rng = np.random.default_rng(1)
        for operand in operands:
            integers = rng.integers(0 if case.dtype is DType.U8 else -3, 4, operand.shape)
            operand[...] = integers[:1] if 0 in operand.strides else integers
    wanted = expected(case, operands)
    contender.calls[0]()
    got = operands[case.n_outputs - 1]
    if isinstance(contender.keep, tuple) and isinstance(contender.keep[1], np.ndarray):
        got = contender.keep[1].astype(case.dtype.numpy)  # a BLAS that writes F32
    assert_same_bits(
        np.ascontiguousarray(got), np.ascontiguousarray(wanted), f"{contender.name}: {case.name}"
    )
    if case.op == "add_rms_norm" and contender.name in (ours.NAME, "numpy"):  # torch's y is a new tensor
        assert_rms_norm(operands[0], got, operands[-1], rows.EPSILON)


@pytest.mark.parametrize("case", TINY_CASES, ids=lambda case: case.name.replace(" ", "-"))
def test_ours_computes_what_it_is_timed_for(case: rows.Case) -> None:
    pytest.importorskip("ml_dtypes")
    held = memory.Memory(case)
    check(case, held, ours.contender(case, held))


@pytest.mark.filterwarnings("default")  # what peers say when they are imported is theirs
@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("numpy", len(TINY_CASES)),
        ("torch", len(TINY_CASES)),
        ("torch.upcast", 8),
        ("mkl", 12),
        ("openblas", 8),
        ("numexpr", 30),
    ],
)
def test_peers_compute_what_they_are_timed_for(name: str, least: int) -> None:
    pytest.importorskip("ml_dtypes")
    found, reasons = peers.available([name])
    if not found:
        pytest.skip(reasons[0])
    found[0].set_threads(1)
    done = 0
    for case in TINY_CASES:
        held = memory.Memory(case)
        contender = found[0].contender(case, held)
        if contender is not None:
            check(case, held, contender)
            done += 1
    assert done >= least


def test_the_cost_of_a_call_is_taken_off_tiny_products() -> None:
    case = rows.replace(rows.gemm(DType.F32, (16, 16, 16)), small=True)
    result = suite.measure_row(case, memory.Memory(case), [], 1, Ceilings(flat, 2**28), 1e-3)
    assert result.timing.overhead > 0


# ---- what a call costs -------------------------------------------------------------------------------------


def test_overhead_shows_each_way_to_call(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["overhead", "--rounds", "1"]) == 0  # three are the least
    _, table = capsys.readouterr().out.split("\n\n")
    titles, *lines = table.splitlines()
    rows, _ = overhead._ladder()
    peer = next((row.name for row in rows if row.name == overhead._PEER), rows[0].name)
    assert titles.split() == ["call", "ns", "spread", "/", *peer.split()]
    assert [line[:45].rstrip() for line in lines] == [row.name for row in rows]
    for line in lines:
        nanoseconds, spread, ratio = line[45:].split()
        assert float(nanoseconds) > 10 and spread.endswith("%") and float(ratio) > 0
        assert line[:45].rstrip() != peer or ratio == "1.00"


def test_overhead_refusals(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["overhead", "--rounds", "-5"])
    assert "'-5' is no number of times" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "torch", None)
    assert command.main(["overhead", "--torch"]) == 1
    assert "torch is not installed" in capsys.readouterr().err


def test_overhead_in_torch_shows_pairs(capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    assert command.main(["overhead", "--torch", "--rounds", "1"]) == 0
    shown = {line[:45].rstrip(): line[45:].split() for line in capsys.readouterr().out.splitlines()}
    rows, names = overhead._torch_ladder()
    for theirs, own in zip(rows[::2], rows[1::2], strict=True):
        assert theirs.peer == own.peer == theirs.name == f"{own.name}: torch"
        assert shown[theirs.name][2] == "1.00"
        ratio = float(shown[own.name][0]) / float(shown[theirs.name][0])
        assert float(shown[own.name][2]) == pytest.approx(ratio, rel=0.01, abs=0.006)
        done = []
        for row in (own, theirs):
            names["z"].zero_()
            names["p"].grad = None
            result = eval(row.statement, dict(names))
            grad = names["p"].grad
            done.append([names["z"].clone() if result is None else result, *([] if grad is None else [grad])])
        torch.testing.assert_close(*done, rtol=1e-4, atol=1e-4)  # their norm has another epsilon


def test_a_row_counts_its_calls_and_not_what_comes_before() -> None:
    done: list[str] = []
    row = overhead.Row("a row", "for i in range(4): call()", 4, lambda: done.append("before"))
    assert 0 < row.timer({"call": lambda: done.append("call")})(3) < 1
    assert done == ["before", *["call"] * 4] * 3


@pytest.mark.parametrize("before", [None, lambda: None])
def test_the_time_is_that_of_one_call(
    before: Callable[[], None] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Eight:
        def __init__(self, statement: str, globals: dict[str, object]) -> None:
            self.timeit = lambda count: 8.0 * count

    monkeypatch.setattr(overhead, "Timer", Eight)
    assert overhead.Row("a row", "for i in range(4): pass", 4, before).timer({})(3) == 2.0


# ---- programs, recorded and not ----------------------------------------------------------------------------


def test_graph_lists_its_rows(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["graph", "--list"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert listed == [row.name for row in graphs.table()] and len(listed) == len(set(listed)) == 9
    assert command.main(["graph", "--list", "--only", "MLP", "--layers", "2"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "MLP, 2 layers, 16 tokens, F32"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--only", "nothing"], "no row has 'nothing' in its name"),
        (["--threads", "0"], "'0' is no number of threads"),
        (["--budget", "inf"], "'inf' is no number of seconds"),
        (["--width", "100"], "--width is a multiple of 64"),
        (["--budget", "nan"], "--budget"),
        (["--compare", "torch,jax"], "jax: there are torch, torch.compile"),
    ],
)
def test_graph_refusals(arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refusal:
        command.main(["graph", *arguments])
    assert refusal.value.code == 2
    assert sentence in capsys.readouterr().err


def test_graph_shows_each_way_to_run_a_program(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--width", "64", "--layers", "1", "--budget", "0.001", "--threads", "1", "--compare", ""]
    assert command.main(["graph", *arguments, "--only", "F32"]) == 0
    out = capsys.readouterr().out
    (titles,) = (line for line in out.splitlines() if line.startswith("program"))
    assert titles.split()[1:5] == ["calls", "eager", "graph", "fused"]
    for row in graphs.table(64, 1):
        assert (f"\n{row.name} " in out) == (row.dtype is DType.F32)
    assert "100 -> 100" in out and out.count("(1.00)") >= 5


@pytest.mark.parametrize("row", graphs.table(64, 2), ids=lambda row: row.name.replace(" ", "-"))
def test_programs_agree_with_torch(row: graphs.Row) -> None:
    found, reasons = peers.available(["torch"])
    if not found:
        pytest.skip(reasons[0])
    result = graphs.measure(row, found, 1, 1e-3)
    assert result.failures == {} and set(result.timings) == {"eager", "graph", "fused", "torch"}
    assert result.calls[0] >= result.calls[1] and result.arena <= result.naive


def test_results_that_differ_are_not_timed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found, reasons = peers.available(["torch"])
    if not found:
        pytest.skip(reasons[0])
    monkeypatch.setitem(graphs.TOLERANCE, DType.F32, -1.0)
    assert command.main(["graph", "--only", "adds", "--compare", "torch", "--budget", "0.001"]) == 1
    out = capsys.readouterr().out
    assert "100 adds of 8, F32: torch is 0.0e+00 away: not timed." in out


def test_a_peer_that_fails_at_a_program_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no compiler\nsecond line")

    monkeypatch.setattr(graphs, "_peer_call", fail)
    peer = peers.Torch.__new__(peers.Torch)
    monkeypatch.setattr(peers.Torch, "set_threads", lambda self, n: None)
    result = graphs.measure(graphs.table()[0], [peer], 1, 1e-3)
    assert result.failures == {"torch": "RuntimeError: no compiler"}
    text = graphs.text([result], ["torch"])
    assert "failed" in text and "torch failed in 100 adds of 8, F32: RuntimeError: no compiler" in text


def test_readme_has_what_the_tables_say() -> None:
    summary = runpy.run_path(str(ROOT / ".ci" / "bench" / "summary.py"))
    assert summary["table"]() in (ROOT / "README.md").read_text(encoding="utf-8")
