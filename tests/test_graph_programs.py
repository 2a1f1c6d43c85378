"""Random programs: the replay of a graph equals eager calls bit for bit, whatever is held, shared or
overwritten; and the machinery that says so sees what it should."""

from __future__ import annotations

import re
import weakref
from typing import Any

import numpy as np
import programs
import pytest
from programs import (
    MODES,
    Array,
    Buffer,
    Failure,
    Program,
    buffer,
    check,
    differences,
    generate,
    repaired,
    report,
    shrunk,
)
from shadow import FLOATS, INTEGERS, OTHERS, Avoid, Refused

import infiniop_py as ip

_BLOCK = 50


@pytest.mark.parametrize(
    "mode, roundings, first",
    [(mode, roundings, first) for mode, roundings, n in MODES for first in range(0, n, _BLOCK)],
)
def test_replay_equals_eager_on_random_programs(mode: dict[str, Any], roundings: float, first: int) -> None:
    for seed in range(first, first + _BLOCK):
        found = report(generate(seed), mode, roundings)
        if found is not None:
            pytest.fail(found, pytrace=False)


def test_a_seed_always_gives_the_same_program() -> None:
    for seed in range(20):
        assert str(generate(seed)) == str(generate(seed))


def test_programs_hold_what_they_are_made_for() -> None:
    seen: set[str] = set()
    dtypes: set[str] = set()
    nothing = 0
    for seed in range(400):
        program = generate(seed)
        seen |= program.features
        dtypes |= {one.dtype for one in program.buffers}
        nothing += "no result held, no input updated" in program.features
        assert repaired(program) == program, "a program consists of lines that pass"
    assert dtypes == {*FLOATS, *INTEGERS, *OTHERS}
    assert nothing < 40
    for feature in (
        "rearrange feeds an operator",
        "heads split",
        "copy added to its own source",
        "product added to its own operand",
        "source overwritten between copy and use",
        "product feeds add or mul",
        "operand overwritten between product and add or mul",
        "decoder layers",
        "residual updated in place",
        "gemm with several batch dimensions",
        "gemm with a broadcast batch",
        "gemm with c=",
        "gemm_ accumulates",
        "filled piece by piece, then read",
        "output written twice",
        "output into a slice of a result",
        "output into a slice of a buffer",
        "inputs share a buffer",
        "input updated",
        "input with memory of its own",
        "dropped input",
        "constant made while recording",
        "dropped at once",
        "held by a view only",
        "no result held",
        "one tensor as several operands",
        "refused call",
        "rebound name",
        "several dtypes",
        "reshape that copies",
        "plan",
    ):
        assert feature in seen, feature


# ---- the machinery -----------------------------------------------------------------------------------------

_SIMPLE = Program(
    1,
    (Buffer("b0", "float32", 12),),
    ("x1 = b0[0:6].reshape((2, 3))", "x2 = ip.from_numpy(b0[6:12].reshape((2, 3)))"),
    ("v3 = ip.add(x1, x2)", "v4 = ip.mul(v3, x2)", "v5 = ip.rearrange(v3.T)", "ip.add_(x1, x1, v4)"),
)


class _RunsTwice(ip.Graph):
    def run(self) -> None:
        super().run()
        super().run()


class _NeverRuns(ip.Graph):
    def run(self) -> None:
        pass


class _RunsOnce(ip.Graph):
    ran = False

    def run(self) -> None:
        if not self.ran:
            super().run()
        self.ran = True


class _RunsWhenRecorded(ip.Graph):
    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        self.run()


@pytest.mark.parametrize(
    "wrong, message",
    [
        (_RunsTwice, "round 0: buffer b0: 6 of 12 elements differ, the first at (0,)"),
        (_NeverRuns, "round 0: buffer b0: 6 of 12 elements differ"),
        (_RunsOnce, "round 1: buffer b0: 6 of 12 elements differ"),
        (_RunsWhenRecorded, "b0, when recorded: 6 of 12 elements differ"),
    ],
)
def test_a_wrong_replay_is_found(
    wrong: type[ip.Graph], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(_SIMPLE)
    monkeypatch.setattr(ip, "Graph", wrong)
    with pytest.raises(Failure, match=re.escape(message)):
        check(_SIMPLE)


def test_a_result_that_is_not_computed_again_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results are overwritten before each run, so that those of the last one do not pass for new."""
    same = Program(1, (), ('x1 = values((3,), "float32", 1)',), ("v2 = ip.add(x1, x1)",))
    check(same)
    monkeypatch.setattr(ip, "Graph", _RunsOnce)
    with pytest.raises(Failure, match="round 1: v2: 3 of 3 elements differ"):
        check(same)


@pytest.mark.parametrize("at, side", [(191, "before"), (-192, "after")])
def test_a_write_beside_a_buffer_is_found(at: int, side: str, monkeypatch: pytest.MonkeyPatch) -> None:
    guarded, everything = programs._guarded, []

    def watched(size: int, dtype: str) -> tuple[Array, Array]:
        raw, inner = guarded(size, dtype)
        everything.append(raw)
        return raw, inner

    class Stray(ip.Graph):
        def run(self) -> None:
            super().run()
            everything[-1][at] = 0

    monkeypatch.setattr(programs, "_guarded", watched)
    monkeypatch.setattr(ip, "Graph", Stray)
    with pytest.raises(Failure, match=f"round 0: the memory {side} buffer b0 was written"):
        check(_SIMPLE)


def test_a_refusal_that_differs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    both = Program(1, _SIMPLE.buffers, _SIMPLE.setup, ("refused(lambda: ip.add(x1, x2.T))",))
    check(both)
    real = programs.refused

    def told(call: Any) -> Any:
        kind = real(call)
        return ip.ParamError if ip.is_graph_recording() else kind

    monkeypatch.setattr(programs, "refused", told)
    with pytest.raises(Failure, match=r"refused with .*ParamError.*, eagerly .*ShapeError"):
        check(both)


@pytest.mark.parametrize(
    "lines",
    [
        ('v1 = ip.empty((2,), "F32")', "v2 = ip.add(v1, v1)"),
        ('v1 = ip.zeros((2,), "F32")', "ip.add_(v1, v1, v1)"),
        ('v1 = ip.zeros((2,), "F32")', "v2 = ip.add(v1, v1)", "ip.add_(v1, v2, v2)"),
    ],
    ids=["memory never written", "a constant updated", "a constant overwritten after it was read"],
)
def test_what_is_not_determined_is_no_program(lines: tuple[str, ...]) -> None:
    program = Program(1, (), (), lines)
    with pytest.raises(Avoid):
        programs.trace(program)
    assert repaired(program).body == lines[:-1]


def test_what_must_be_refused_is_known() -> None:
    for line in ("ip.add(x1, x2.T)", "ip.rearrange_(x1, x1)", "ip.gemm(x1, x2)", "ip.add_(x2.T, x2.T, x1)"):
        program = Program(1, _SIMPLE.buffers, _SIMPLE.setup, (line,))
        with pytest.raises(Refused):
            programs.trace(program)
        check(Program(1, _SIMPLE.buffers, _SIMPLE.setup, (f"refused(lambda: {line})",)))


def test_bits_are_compared_and_tolerance_has_a_unit() -> None:
    def found(x: float, y: float, allowed: float = 0.0, dtype: str = "f4") -> bool:
        return bool(differences(np.array([x], dtype), np.array([y], dtype), None, allowed).size)

    assert found(0.0, -0.0) and not found(np.nan, -np.nan) and found(np.nan, 1.0) and found(np.inf, 1.0)
    assert found(1.0, 1.5, 0.25) and not found(1.0, 1.5, 0.5) and found(np.nan, 1.0, 9.0)
    assert found(1, 2, 9.0, "i4") and found(1j, 2j, 9.0, "c16")
    got, wanted = np.zeros((2, 2), "f4"), np.array([[0, 1], [0, 2]], "f4")
    np.testing.assert_array_equal(differences(got, wanted, np.array([[True, False], [True, True]])), [3])


def test_what_a_program_drops_is_held_by_the_graph_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or else the graph would never be free to place it, or to leave it out."""
    add, made = ip.add, []

    def watched(*operands: Any) -> Any:
        made.append(weakref.ref(out := add(*operands)))
        return out

    lines = ("v3 = ip.add(x1, x2)", "v4 = ip.add(v3, x2)", "del v3", "refused(lambda: ip.add(v4, x2.T))")
    world = programs.World(Program(1, _SIMPLE.buffers, _SIMPLE.setup, lines))
    monkeypatch.setattr(ip, "add", watched)
    with ip.Graph() as graph:
        world.execute(world.env)
    del graph
    assert [one() is world.env.get(name) for one, name in zip(made, ("v3", "v4"))] == [True, True]
    assert made[0]() is None


def test_failures_are_made_small() -> None:
    small = shrunk(_SIMPLE, lambda one: any("mul" in line for line in one.body))
    assert small.body == _SIMPLE.body[:2] and small.setup == _SIMPLE.setup
    small = shrunk(_SIMPLE, lambda one: any("b0[6:12]" in line for line in one.setup))
    assert small.body == () and small.setup == _SIMPLE.setup[1:]


def test_a_printed_program_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ip, "Graph", _RunsTwice)
    found = report(_SIMPLE)
    assert found is not None
    text = found.partition("\n\n")[2].rpartition("\n\n")[0]
    assert (
        text
        == """\
# seed 1
import numpy as np
from programs import buffer, refused, values

import infiniop_py as ip

b0 = buffer(12, "float32", 17)
x1 = b0[0:6].reshape((2, 3))
x2 = ip.from_numpy(b0[6:12].reshape((2, 3)))
with ip.Graph() as graph:  # without this line, and the last: eagerly
    v3 = ip.add(x1, x2)
    v4 = ip.mul(v3, x2)
    ip.add_(x1, x1, v4)
graph.run()"""
    )
    monkeypatch.undo()
    env: dict[str, Any] = {}
    exec(text, env)
    np.testing.assert_array_equal(
        env["v3"].numpy(), buffer(12, "float32", 17)[:6].reshape(2, 3) + env["x2"].numpy()
    )


def test_programs_by_hand(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def said(*arguments: str) -> str:
        monkeypatch.setattr("sys.argv", ["programs.py", *arguments])
        assert programs.main() == 0
        return capsys.readouterr().out

    monkeypatch.setattr(programs.faulthandler, "enable", lambda: None)  # pytest has its own
    assert said("--seed", "5", "--print").startswith("# seed 5\nimport numpy as np\n")
    assert said("--first", "7", "--count", "2", "--verbose").startswith(
        "seed 7\nseed 8\n2 programs, 0 failed"
    )
    assert said("--count", "4", "--stats").startswith("4 programs; recorded operators")
    monkeypatch.setattr(ip, "Graph", _NeverRuns)
    monkeypatch.setattr("sys.argv", ["programs.py", "--seed", "5"])
    assert programs.main() == 1
    assert "again: python tests/programs.py --seed 5" in capsys.readouterr().out
