"""The programs that come with the package: they succeed, and the demo notices wrong results."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.resources import files

import numpy as np
import pytest

from infiniop_py import DType, Graph, _demo, gemm
from infiniop_py.examples import digits

TINY = (256, 320)  # hidden, intermediate; not multiples of each other, two heads
TENSORS = ("residual", "y", "gate", "up", "h", "down", "out", "heads")


def run_python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=120)


def tiny_run(dtype: DType, seed: int = 3) -> tuple[_demo.Layer, _demo.Results, _demo.Array]:
    """A layer, the results of a run of it, and its heads in float64."""
    rng = np.random.default_rng(seed)
    arrays = _demo.random_inputs(rng, 5, TINY[0]) | _demo.random_weights(rng, *TINY)
    layer = _demo.Layer(**_demo.converted(arrays, dtype))
    results = _demo.Results(layer)
    _demo.run_layer(layer, results)
    return layer, results, _demo.exact_layer(_demo.Layer(**arrays))


# ---- the programs succeed --------------------------------------------------------------------------------


def test_demo_prints_its_table() -> None:
    script = (
        f"import sys; from infiniop_py import _demo;_demo.SMALL = {TINY}; sys.exit(_demo.main(['--quick']))"
    )
    done = run_python("-c", script)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = re.findall(
        r"^ +256 +320 +(1|64) (F32|F16|BF16) +(eager|graph|fused) +([\d.]+) ", done.stdout, re.M
    )
    assert {row[:3] for row in rows} == {
        (tokens, dtype, mode)
        for tokens in ("1", "64")
        for dtype in ("F32", "F16", "BF16")
        for mode in ("eager", "graph", "fused")
    }
    assert len(rows) == 18
    assert all(0 < float(row[3]) <= 1 for row in rows)
    assert done.stdout.rstrip().endswith("passed: 18 rows")
    assert "[8/8]" in done.stderr and "\r" not in done.stderr  # not a terminal: lines


def test_demo_without_ml_dtypes_skips_bf16_and_says_why() -> None:
    script = (
        "import sys; sys.modules['ml_dtypes'] = None; from infiniop_py import _demo;"
        f"_demo.SMALL = {TINY}; sys.exit(_demo.main(['--quick']))"
    )
    done = run_python("-c", script)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^BF16 is skipped: .*infiniop_py\[bf16\]", done.stdout, re.M)
    assert done.stdout.rstrip().endswith("passed: 12 rows")


def test_digits_reaches_its_accuracy() -> None:
    done = run_python("-m", "infiniop_py.examples.digits")
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(r"test accuracy ([\d.]+)%", done.stdout)
    assert found and float(found[1]) >= 95, done.stdout


def test_digits_fails_below_its_accuracy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(digits, "EPOCHS", 0)
    assert digits.main() == 1
    assert "FAILED" in capsys.readouterr().out


def test_digits_data_is_the_whole_set_with_its_licence() -> None:
    pixels, labels = digits.load()
    assert pixels.shape == (1797, 64) and pixels.dtype == np.float32
    assert (pixels.min(), pixels.max()) == (0, 16)
    np.testing.assert_array_equal(np.bincount(labels), [178, 182, 177, 183, 181, 182, 181, 179, 174, 180])
    licence = (files("infiniop_py.examples") / "digits_LICENSE.txt").read_text(encoding="utf-8")
    assert "CC BY 4.0" in licence and "Alpaydin" in licence


def test_digits_gradients_are_those_of_the_loss() -> None:
    """In F64, against the complex-step derivative Im(loss(p + ih)) / h, which cancels nothing and truncates
    h**2 = 1e-40."""
    rng = np.random.default_rng(0)
    p = {name: value.astype(np.float64) for name, value in digits.new_parameters(rng).items()}
    x, labels = rng.standard_normal((16, 64)), rng.integers(0, 10, 16)
    before = {name: value.copy() for name, value in p.items()}
    velocity = {name: np.zeros_like(value) for name, value in p.items()}
    digits.train_step(p, velocity, x, labels)

    def loss(q: digits.Parameters) -> complex:
        gate = x @ q["w_gate"]
        h = gate / (1 + np.exp(-gate)) * (x @ q["w_up"])
        scores = h @ q["w_out"] + q["b_out"]
        return complex(np.mean(np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(16), labels]))

    step = 1e-20
    alpha = float(np.float32(-digits.RATE / len(x)))  # gemm's scalars are F32
    for name, value in before.items():
        direction = rng.standard_normal(value.shape)
        slope = loss(before | {name: value + 1j * step * direction}).imag / step
        gradient = velocity[name] / (alpha * len(x))
        # Each of the sums below is as long as an inner dimension of the way there and back.
        roundings = 64 + digits.HIDDEN + 10 + digits.HIDDEN + len(x) + value.size
        magnitude = np.linalg.norm(gradient) * np.linalg.norm(direction)
        assert magnitude > 0
        assert abs(np.sum(gradient * direction) - slope) <= roundings * 2.0**-53 * magnitude, name


# ---- the demo notices what is wrong ----------------------------------------------------------------------


def test_a_layer_s_operations_are_those_of_its_products() -> None:
    case = _demo.Case(hidden=8, intermediate=32, tokens=5, dtype=DType.F32)
    assert case.operations == 3 * (2 * 5 * 8 * 32)


def test_an_error_of_exactly_its_bound_is_the_last_that_is_right() -> None:
    assert _demo.Check({"x": 1.0, "y": 0.5}, 0.0).ok
    assert not _demo.Check({"x": 0.5, "y": np.nextafter(1.0, 2.0)}, 0.0).ok


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_right_results_are_inside_their_bounds(dtype: str) -> None:
    check = _demo.check_layer(*tiny_run(getattr(DType, dtype)))
    assert tuple(check.ratios) == TENSORS
    assert check.ok and check.ratios["heads"] == 0
    assert check.drift > 0


@pytest.mark.parametrize("tensor", TENSORS)
@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_one_wrong_element_is_outside_its_bound(dtype: str, tensor: str) -> None:
    layer, results, exact = tiny_run(getattr(DType, dtype))
    array = getattr(results, tensor)
    largest = np.unravel_index(np.argmax(np.abs(array.astype(np.float64))), array.shape)
    array[largest] *= array.dtype.type(1.03125)  # 8 units of BF16's last place
    check = _demo.check_layer(layer, results, exact)
    assert check.ratios[tensor] > 1 and not check.ok


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_result_that_is_no_number_is_outside_its_bound(value: float) -> None:
    layer, results, exact = tiny_run(DType.F16)
    results.down[2, 3] = value
    check = _demo.check_layer(layer, results, exact)
    assert check.ratios["down"] == np.inf and not check.ok


def test_a_gemm_cut_to_bf16_is_outside_the_bound_of_f32() -> None:
    """What a library with reduced-precision accumulation would do, silently."""
    layer, results, exact = tiny_run(DType.F32)
    bits = results.down.view(np.uint32)
    bits &= np.uint32(0xFFFF0000)
    assert _demo.check_layer(layer, results, exact).ratios["down"] > 1


def test_same_bits_sees_one_bit() -> None:
    _, one, _ = tiny_run(DType.F32)
    _, other, _ = tiny_run(DType.F32)
    assert _demo.same_bits(one, other)
    one.gate[0, 0], other.gate[0, 0] = 0.0, -0.0
    assert not _demo.same_bits(one, other)


def wrong_gemm(a: _demo.Array, b: _demo.Array, *, out: _demo.Array | None = None) -> _demo.Array:
    result: _demo.Array = gemm(a[:, :-1], b[:-1], out=out)  # the last product is missing
    return result


class WrongGraph(Graph):
    """Forgets to run."""

    def run(self) -> None:
        pass


@pytest.mark.parametrize(
    ("name", "wrong", "said"),
    [("gemm", wrong_gemm, "OUTSIDE ITS BOUND"), ("Graph", WrongGraph, "NOT THE BITS OF EAGER")],
)
def test_main_fails_on_wrong_results(
    name: str,
    wrong: Callable[..., object],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(_demo, "SMALL", TINY)
    monkeypatch.setattr(_demo, "DTYPES", (DType.F32,))
    monkeypatch.setattr(_demo, name, wrong)
    assert _demo.main(["--quick"]) == 1
    shown = capsys.readouterr().out
    assert said in shown and "FAILED" in shown


def test_progress_is_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    progress = _demo.Progress(2)
    progress.step("first")
    progress.step("second")
    progress.close()
    assert terminal.getvalue().count("\n") == 0
    assert "#" * 15 + "." * 15 + "] second" in terminal.getvalue()
