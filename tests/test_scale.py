"""``python -m infiniop_py scale``: what it predicts, against what can be counted by hand or measured."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from infiniop_py import DType
from infiniop_py._bench import rows
from infiniop_py._scale import command, report, validate
from infiniop_py._scale.collectives import Link, all_reduce, ring_all_reduce, tree_all_reduce
from infiniop_py._scale.models import MODELS, Model
from infiniop_py._scale.plans import Job, Machine, Plan, best, decode, memory, outcomes, plans, prefill
from infiniop_py._scale.work import Phase, Rates, Work, attention, gemm, layer

TINY = Model(layers=4, hidden=8, heads=4, kv_heads=2, head_dim=2, ffn=16, vocab=12)
JOB = Job(batch=8, prompt=6, context=10, itemsize=2)
FREE = 1e30  # a rate at which nothing takes time
EXAMPLE = (
    "--model",
    "llama-70b",
    "--devices",
    "8",
    "--link",
    "450GB/s",
    "--mem",
    "4.3TB/s",
    "--flops",
    "790T",
)


# ---- shapes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("llama-7b", 6_738_415_616),
        ("llama-13b", 13_015_864_320),
        ("llama-70b", 68_976_648_192),
        ("llama3-8b", 8_030_261_248),
        ("llama3-70b", 70_553_706_496),
        ("llama3-405b", 405_853_388_800),
        ("mistral-7b", 7_241_732_096),
    ],
)
def test_models_have_as_many_parameters_as_published(name: str, parameters: int) -> None:
    assert MODELS[name].parameters == parameters


# ---- work --------------------------------------------------------------------------------------------------


def test_a_product_is_counted() -> None:
    work = gemm("", 3, 4, 5, 2)
    assert (work.flops, work.bytes, work.shape) == (120, 2 * (12 + 20 + 15), "3x4x5")


@pytest.mark.parametrize("phase", [Phase(3, 5, 0), Phase(2, 1, 9), Phase(1, 4, 7)], ids=str)
def test_attention_is_counted(phase: Phase) -> None:
    """Query by query."""
    keys = [phase.past + i + 1 for _ in range(phase.sequences) for i in range(phase.new)]
    work = attention(phase, heads=4, kv_heads=2, head_dim=8, itemsize=2)
    assert work.flops == sum(4 * 2 * 8 * 2 * n for n in keys)
    q_and_results = 2 * phase.tokens * 4 * 8
    assert work.bytes == 2 * (q_and_results + 2 * phase.sequences * (phase.past + phase.new) * 2 * 8)


def test_time_is_between_the_longer_and_the_sum() -> None:
    work = Work("", "gemm", "", flops=100.0, bytes=30.0)
    rates = Rates(flops=10.0, mem=10.0, stream=1.0, call=0.5)
    assert work.seconds(rates) == 10.5
    assert work.seconds(replace(rates, overlap=0.0)) == 13.5
    assert work.seconds(replace(rates, overlap=0.5)) == 12.0
    assert replace(work, kind="elementwise").seconds(rates) == 30.5
    assert work.bound(rates) == "flops"
    assert replace(work, kind="elementwise").bound(rates) == "memory"
    assert work.bound(replace(rates, call=20.0)) == "call"


@pytest.mark.parametrize("tp", [2, 4, 8])
@pytest.mark.parametrize("phase", [Phase(2, 16, 0), Phase(4, 1, 99)], ids=str)
def test_devices_share_the_work_of_a_layer(tp: int, phase: Phase) -> None:
    """All but the norms and the bytes of activations that each needs."""
    model = MODELS["llama-70b"]
    alone, shared = layer(model, phase, 1, 2), layer(model, phase, tp, 2)
    for one, part in zip(alone, shared, strict=True):
        assert one.name == part.name
        if part.name == "add_rms_norm":
            assert part == one
        else:
            assert part.flops * tp == one.flops
            assert one.bytes <= part.bytes * tp
    products = sum(work.flops for work in alone if work.kind == "gemm")
    weights = model.layer_parameters - 2 * model.hidden
    assert products == 2 * phase.tokens * weights


# ---- collectives -------------------------------------------------------------------------------------------


def test_a_ring_and_a_tree() -> None:
    assert ring_all_reduce(12.0, 4, Link(1.0, 0.0)) == 2 * 3 * 3.0
    assert ring_all_reduce(12.0, 4, Link(FREE, 1.0)) == pytest.approx(6.0)
    assert tree_all_reduce(12.0, 4, Link(1.0, 0.0)) == 2 * 2 * 12.0
    assert tree_all_reduce(12.0, 5, Link(FREE, 1.0)) == pytest.approx(6.0)
    assert all_reduce(1e9, 8, Link(1e9, 1e-6))[1] == "ring"
    assert all_reduce(8.0, 8, Link(1e9, 1e-6))[1] == "tree"
    for reduce in (ring_all_reduce, tree_all_reduce):
        assert reduce(12.0, 1, Link(1.0, 1.0)) == 0


# ---- plans -------------------------------------------------------------------------------------------------


def test_plans_use_every_device_and_share_evenly() -> None:
    assert {(plan.tp, plan.pp, plan.dp) for plan in plans(TINY, 4, 8)} == {
        (1, 1, 4), (1, 2, 2), (1, 4, 1), (2, 1, 2), (2, 2, 1), (4, 1, 1),
    }  # fmt: skip
    assert not list(plans(TINY, 5, 2))  # five layers or five sequences there are not
    assert [plan.dp for plan in plans(TINY, 4, 1)] == [1, 1, 1]
    three = replace(TINY, heads=6, kv_heads=4, ffn=18, vocab=12)  # three keys of four cannot be shared
    assert all(plan.tp != 3 for plan in plans(three, 3, 3))


def test_memory_is_counted() -> None:
    alone = memory(TINY, Plan(1, 1, 1), JOB)
    assert alone.weights == 2 * (TINY.parameters - TINY.hidden)  # but the last norm
    assert alone.cache == 2 * 2 * TINY.kv_heads * TINY.head_dim * TINY.layers * JOB.batch * JOB.context
    of_70b = memory(MODELS["llama-70b"], Plan(1, 1, 1), Job(1, 1, 1, 2))
    assert of_70b.cache == 327_680  # of a token, in BF16
    half = memory(TINY, Plan(2, 1, 1), JOB)
    assert (half.weights, half.cache) == (alone.weights / 2, alone.cache / 2)
    assert memory(TINY, Plan(4, 1, 1), JOB).cache == half.cache  # two heads of keys cannot be quartered
    staged = memory(TINY, Plan(1, 2, 1), JOB)
    assert staged.weights == TINY.layers * TINY.layer_parameters + 2 * TINY.vocab * TINY.hidden
    assert staged.cache == alone.cache / 2
    assert memory(TINY, Plan(1, 1, 4), JOB).cache == alone.cache / 4
    assert alone.total == alone.weights + alone.cache + alone.activations


#: A machine where only flops take time, one second each.
COMPUTING = Machine(Rates(1.0, FREE, FREE), Link(FREE, 0.0))


def _flops(phase: Phase, tp: int, layers: int) -> float:
    works = layer(TINY, phase, tp, 2)
    products = sum(work.flops for work in works if work.kind != "elementwise")
    elementwise = sum(work.flops for work in works if work.kind == "elementwise")
    return layers * (products + elementwise) + 2 * phase.sequences * TINY.hidden * TINY.vocab / tp


def test_phases_take_what_their_operators_take() -> None:
    machine = COMPUTING
    one = prefill(TINY, Plan(1, 1, 1), JOB, machine)
    assert one.seconds == pytest.approx(_flops(Phase(8, 6, 0), 1, 4))
    assert one.tokens_per_second == pytest.approx(48 / one.seconds)
    assert prefill(TINY, Plan(2, 1, 4), JOB, machine).seconds == pytest.approx(_flops(Phase(2, 6, 0), 2, 4))
    step = decode(TINY, Plan(1, 1, 2), JOB, machine)
    assert step.seconds == pytest.approx(_flops(Phase(4, 1, 9), 1, 4))
    assert step.tokens_per_second == pytest.approx(8 / step.seconds)


def test_stages_work_one_after_the_other() -> None:
    machine = COMPUTING
    stage = _flops(Phase(1, 6, 0), 1, 2)  # two of four layers, for a prompt
    staged = prefill(TINY, Plan(1, 2, 1), JOB, machine)
    assert staged.seconds == pytest.approx((8 + 1) * stage) and staged.parts["idle"] == pytest.approx(stage)
    turn = _flops(Phase(4, 1, 9), 1, 2)  # half of the sequences
    assert decode(TINY, Plan(1, 2, 1), JOB, machine).seconds == pytest.approx(2 * turn)
    single = decode(TINY, Plan(1, 4, 1), replace(JOB, batch=1), machine)
    assert single.seconds == pytest.approx(4 * _flops(Phase(1, 1, 9), 1, 1))
    assert single.parts["idle"] == pytest.approx(0.75 * single.seconds)


def test_messages_take_time() -> None:
    machine = Machine(Rates(FREE, FREE, FREE), Link(1.0, 0.0))
    nbytes = 8 * 6 * TINY.hidden * 2
    summed = prefill(TINY, Plan(2, 1, 1), JOB, machine)
    assert summed.parts["all-reduce"] == pytest.approx(4 * 2 * nbytes)  # layers; two, 2 * (n - 1) / n
    handed = prefill(TINY, Plan(1, 2, 1), JOB, machine)
    assert handed.parts["all-reduce"] == 0
    assert handed.parts["hand over"] == pytest.approx(nbytes)
    assert prefill(TINY, Plan(1, 1, 2), JOB, machine).seconds == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("faster", ["flops", "mem", "stream", "call", "overlap", "rate", "latency"])
def test_a_better_machine_is_never_slower(faster: str) -> None:
    rates, link = Rates(1e12, 1e11, 2e11, 0.5, 1e-5), Link(1e10, 1e-5)
    of = link if faster in ("rate", "latency") else rates
    value = getattr(of, faster)
    better_value = 1.0 if faster == "overlap" else value / 2 if faster in ("call", "latency") else 2 * value
    changed = replace(of, **{faster: better_value})
    better = Machine(rates, changed) if of is link else Machine(changed, link)
    model = MODELS["llama-7b"]
    job = Job(8, 512, 1024, 2)
    some = 0
    for before, after in zip(
        outcomes(model, 8, job, Machine(rates, link), None),
        outcomes(model, 8, job, better, None),
        strict=True,
    ):
        for phase in ("prefill", "decode"):
            was, now = getattr(before, phase).seconds, getattr(after, phase).seconds
            assert now <= was
            some += now < was
    assert some


def test_the_best_is_the_fastest_that_fits() -> None:
    machine = Machine(Rates(790e12, 4.3e12, 4.3e12, 1.0, 3e-6), Link(450e9, 5e-6))
    job = Job(16, 2048, 4096, 2)
    model = MODELS["llama-70b"]
    found = outcomes(model, 8, job, machine, None)
    for phase in ("prefill", "decode"):
        winner = best(found, phase)
        assert winner is not None
        assert getattr(winner, phase).seconds == min(getattr(one, phase).seconds for one in found)
    small = outcomes(model, 8, job, machine, 80e9)
    assert {one.fits for one in small} == {False, True}
    winner = best(small, "prefill")
    assert winner is not None and winner.plan == Plan(2, 1, 4) and winner.memory.total <= 80e9
    assert best(outcomes(model, 8, job, machine, 1e9), "decode") is None


# ---- the command -------------------------------------------------------------------------------------------


def test_the_example_is_the_readmes() -> None:
    readme = Path(__file__).parents[1] / "README.md"
    assert f"python -m infiniop_py scale {' '.join(EXAMPLE)}" in readme.read_text(encoding="utf-8")


def test_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "scale.json"
    assert command.main([*EXAMPLE, "--json", str(file)]) == 0
    out = capsys.readouterr().out
    assert "given, not measured: 790 TFLOP/s of products, 4.3 TB/s of memory, 450 GB/s between devices" in out
    assert "assumed: 5 us a message, 3 us a call, overlap 1 of computing and memory" in out
    assert "predicted" in out
    assert "best for prefill: tp=1 pp=1 dp=8, " in out and "best for decode: tp=8 pp=1 dp=1, " in out
    found = json.loads(file.read_text())
    assert found["best"] == {
        "prefill": {"tp": 1, "pp": 1, "dp": 8},
        "decode": {"tp": 8, "pp": 1, "dp": 1},
    }
    assert len(found["plans"]) == out.count("tp=") - 4
    for plan in found["plans"]:
        for phase in ("prefill", "decode"):
            parts = plan[phase]["parts_seconds"]
            assert sum(parts.values()) == pytest.approx(plan[phase]["seconds"])


def test_the_rows_of_a_layer_add_up(capsys: pytest.CaptureFixture[str]) -> None:
    machine = Machine(Rates(790e12, 4.3e12, 4.3e12, 1.0, 3e-6), Link(450e9, 5e-6))
    job, plan = Job(16, 2048, 4096, 2), Plan(8, 1, 1)
    model = MODELS["llama-70b"]
    rows_of = report.layer_rows(model, "decode", plan, job, machine)
    *parts, (_, _, _, _, _, total, _) = rows_of
    units = {"us": 1e-6, "ms": 1e-3}

    def seconds(text: str) -> float:
        value, unit = text.split()
        return float(value) * units[unit]

    assert sum(seconds(row[5]) for row in parts) == pytest.approx(seconds(total), rel=0.01)
    whole = decode(model, plan, job, machine).seconds
    assert 80 * seconds(total) < whole < 80 * seconds(total) * 1.02  # and the vocabulary


def test_calls_and_messages_may_cost_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([*EXAMPLE, "--latency", "0", "--call", "0us"]) == 0
    assert "0 s a message, 0 s a call" in capsys.readouterr().out


def test_a_file_that_fails_leaves_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    assert command.main([*EXAMPLE, "--json", "/dev/full", "--plot", str(tmp_path / "scale.svg")]) == 1
    assert "/dev/full is not written: No space left on device" in capsys.readouterr().err
    assert (tmp_path / "scale.svg").stat().st_size


def test_what_is_given_is_not_assumed(capsys: pytest.CaptureFixture[str]) -> None:
    command.main([*EXAMPLE, "--latency", "2us", "--call", "1us", "--overlap", "0.8", "--capacity", "80GB"])
    out = capsys.readouterr().out
    assert "assumed" not in out and "2 us a message, 1 us a call, overlap 0.8" in out
    assert "142 GB (too much)" in out and "best for prefill: tp=2 pp=1 dp=4" in out
    command.main([*EXAMPLE, "--capacity", "1GB"])
    assert capsys.readouterr().out.count("nothing fits") == 2


def test_a_model_of_ones_own(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = "layers=4,hidden=8,heads=4,kv_heads=2,head_dim=2,ffn=16,vocab=12"
    assert command.model(sizes) == TINY
    assert command.main(["--model", sizes, *EXAMPLE[2:4], *EXAMPLE[4:], "--dtype", "f32"]) == 0
    assert "a model, F32" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--model is needed, or --validate"),
        (EXAMPLE[:-2], "--flops is needed"),
        ((*EXAMPLE, "--model", "gpt"), "'gpt' is no model; there are llama-7b"),
        ((*EXAMPLE, "--model", "layers=4,hidden=8"), "is no model"),
        ((*EXAMPLE, "--mem", "fast"), "'fast' is no quantity; it looks like 450GB/s"),
        ((*EXAMPLE, "--mem", "0"), "is no quantity"),
        ((*EXAMPLE, "--mem", "1e999"), "is no quantity"),
        ((*EXAMPLE, "--mem", "4.3TFLOP/s"), "is no quantity"),
        ((*EXAMPLE, "--devices", "0"), "is no number from 1"),
        ((*EXAMPLE, "--overlap", "2"), "is no number from 0 to 1"),
        ((*EXAMPLE, "--context", "5"), "--context is 5, needs at least the 2048 tokens of --prompt"),
        ((*EXAMPLE, "--devices", "97"), "no plan shares this model out over 97 devices and 16 sequences"),
        ((*EXAMPLE, "--dtype", "I8"), "invalid choice"),
        ((*EXAMPLE, "--call", "soon"), "'soon' is no quantity; it looks like 5us"),
        ((*EXAMPLE, "--json", "/nowhere/at/all.json"), "'/nowhere/at/all.json' cannot be written"),
        (("--validate", "--json", "/dev/null"), "--json is of a prediction for --model; --validate only"),
        (("--validate", "--plot", "unwritten.png"), "--plot is of a prediction for --model"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(
    arguments: Sequence[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        command.main(list(arguments))
    assert message in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("text", "value"),
    [("450GB/s", 450e9), ("4.3TB/s", 4.3e12), ("790T", 790e12), ("5us", 5e-6), ("2.5", 2.5), ("3 kB/s", 3e3)],
)
def test_quantities(text: str, value: float) -> None:
    assert command.quantity("B/s", "FLOP/s", "s")(text) == pytest.approx(value)


def test_the_plot(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "matplotlib", None)
        assert command.main([*EXAMPLE, "--plot", str(tmp_path / "none.png")]) == 0
        captured = capsys.readouterr()
        assert "pip install 'infiniop_py[plot]'" in captured.err and "best for decode" in captured.out
    pytest.importorskip("matplotlib")
    file = tmp_path / "scale.png"
    assert command.main([*EXAMPLE, "--plot", str(file)]) == 0
    assert file.read_bytes().startswith(b"\x89PNG")


# ---- against what can be measured --------------------------------------------------------------------------


@pytest.mark.parametrize("overlap", [0.0, 0.25, 1.0])
def test_rates_are_found_and_all_else_follows(overlap: float) -> None:
    """On a machine that does as the model says."""
    machine = Rates(2e11, 3e10, 4e10, overlap)

    def seconds(case: rows.Case) -> float:
        kind = "gemm" if case.op == "gemm" else "elementwise"
        return Work("", kind, "", float(case.flops), float(case.traffic)).seconds(machine)

    for dtype in validate.DTYPES:
        known = validate.rates(dtype, seconds)
        assert known.mem == pytest.approx(machine.mem, rel=0.15)  # a row that reads computes a little
        found, left_out = validate.work_rows(dtype, known, seconds)
        assert len({row.name for row in found}) == len(found) >= 25 and not left_out
        assert validate.median_error(found) < 0.03


def test_errors_are_relative() -> None:
    found = [validate.Row("", predicted, 2.0) for predicted in (1.0, 2.0, 4.0)]
    assert [row.error for row in found] == [-0.5, 0.0, 1.0] and validate.median_error(found) == 0.5


def test_rows_are_rows_of_bench() -> None:
    """What is counted here is what ``bench`` counts."""
    for dtype in validate.DTYPES:
        for work, case in validate.cases(dtype):
            assert case.traffic == work.bytes
            assert case.op != "gemm" or (case.flops == work.flops and case.layout == rows.B_TRANSPOSED)


def test_a_row_is_measured() -> None:
    seconds = validate.timer(0.01)(rows.elementwise("mul", DType.F32, (1000,)))
    assert 1e-8 < seconds < 1e-2


def test_rows_without_memory_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    big = max((case for _, case in validate.cases(DType.F32)), key=lambda case: case.footprint)
    monkeypatch.setattr(validate, "measured", lambda engine, n: None)
    monkeypatch.setattr(validate, "Memory", lambda case, sets: None)
    monkeypatch.setattr(validate.ours, "contender", lambda case, memory: case)
    monkeypatch.setattr(
        *(validate.timing, "take_turns"),
        lambda cases, budget: ({validate.ours.NAME: validate.timing.Timing(1.0, 0.0, 3)}, {}),
    )
    monkeypatch.setattr(validate, "sets_of", lambda case: int(case.footprint < big.footprint))
    assert f"{big.name} is left out: it needs " in (text := validate.run(0.1)) and "median error, F32" in text
    monkeypatch.setattr(validate, "sets_of", lambda case: 0)
    assert "of memory. Without its rate nothing is predicted for BF16." in validate.run(0.1)


def test_a_link_is_found() -> None:
    exact = Link(2e9, 1e-5)
    steps = [(n, exact.send(n), 0.0) for n in (1 << 12, 1 << 20, 1 << 26)]
    found = validate.link(steps)
    assert found.rate == pytest.approx(exact.rate) and found.latency == pytest.approx(1e-5, rel=0.3)


@pytest.mark.parametrize("engine", ["gloo", "mpi"])
def test_processes_are_measured(engine: str) -> None:
    found = validate.measured(engine, 2)
    if found is None:
        pytest.skip(f"{engine} is not installed")
    sizes = [nbytes for nbytes, _, _ in found]
    assert sizes == sorted(sizes) and sizes[-1] == 1 << 26
    assert all(step > 0 and reduced > 0 for _, step, reduced in found)
    assert found[-1][1] > found[0][1]  # more bytes take longer
    compared = validate.collective_rows(engine, 2, found)
    assert [row.measured for row in compared] == [reduced for _, _, reduced in found]


def test_the_report(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    machine = Rates(2e11, 3e10, 4e10, 0.5)

    def fake(budget: float) -> Any:
        assert budget == 0.25
        return lambda case: Work(
            "", "gemm" if case.op == "gemm" else "elementwise", "", float(case.flops), float(case.traffic)
        ).seconds(machine)

    link = Link(1e9, 1e-4)
    steps = [(n, link.send(n), 2 * all_reduce(float(n), 2, link)[0]) for n in (1 << 12, 1 << 26)]
    monkeypatch.setattr(validate, "timer", fake)
    monkeypatch.setattr(validate, "measured", lambda engine, n: steps if engine == "gloo" else None)
    assert command.main(["--validate", "--budget", "250ms"]) == 0
    out = capsys.readouterr().out
    assert "mpi is not installed: not measured" in out
    assert out.count("measured here, gloo, a ring of ") == 2
    assert "median error of 58 operators: " in out and "-50%" in out
