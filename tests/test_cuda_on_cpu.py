"""The NVIDIA backend's sources with their kernels run on the CPU (native/tests/cuda): the tests of a device,
and the backend contract, under both schedules of a block's threads.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PLUGIN = ROOT / "build" / "native-release" / "tests" / "cuda_on_cpu.so"

pytestmark = pytest.mark.skipif(not PLUGIN.is_file(), reason=f"no {PLUGIN}; run ./build_native.sh --tests")

#: A fair schedule takes any thread that can run, a greedy one lets a warp run ahead.
SCHEDULES = ["greedy=0,seed=3", "greedy=1,seed=4"]


def run(*command: str, **environment: str) -> str:
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    variables |= {"PYTHONPATH": str(ROOT), **environment}
    done = subprocess.run(
        [sys.executable, "-m", *command],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
        cwd=ROOT,
        env=variables,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_what_is_tested_on_a_device(schedule: str) -> None:
    said = run(
        *("pytest", "-q", "-p", "no:cacheprovider", "tests/gpu/test_device.py"),
        INFINIOP_BACKEND_PATH=str(PLUGIN),
        INFINI_FAKE_CUDA=schedule,
    )
    assert " passed" in said and "skipped" not in said


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_backend_contract(schedule: str) -> None:
    said = run(
        *("infiniop_py", "conformance", str(PLUGIN), "--quick", "--max-elements", "20000"),
        INFINI_FAKE_CUDA=schedule,
    )
    assert "verdict" in said and "0 refused" in said.splitlines()[-1]


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("driver=0", "no NVIDIA driver is installed"),
        ("driver=12080,count_error=35", "supports CUDA 12.8, needed 13.0 or later"),
        ("count_error=100", "sees no device"),
        ("devices=0", "sees no device"),
        ("count_error=3", "does not start"),
        ("capability=75", "no device has compute capability 8.0 or later; the newest has 7.5"),
    ],
)
def test_what_cannot_be_used_is_a_reason(setting: str, reason: str) -> None:
    code = "import infiniop_py as ip; print(ip.device_count('nvidia')); ip.set_device('nvidia')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "INFINIOP_BACKEND_PATH": str(PLUGIN), "INFINI_FAKE_CUDA": setting},
    )
    assert (
        done.stdout == "0\n"
        and f"DeviceError: infinirtSetDevice: no backend for NVIDIA: {PLUGIN}: " in done.stderr
    )
    assert reason in done.stderr


def test_memory_without_pools() -> None:
    """As on devices that have none."""
    said = run(*("infiniop_py", "conformance", str(PLUGIN), "-k", "rule-memory"), INFINI_FAKE_CUDA="pools=0")
    assert "verdict" in said and "OK" in said.splitlines()[-1]


_SCOPES = """
import ctypes, sys
import numpy as np, infiniop_py as ip
a = np.arange(6, dtype="f4").reshape(2, 3)
at = ctypes.CDLL(sys.argv[1]).fakeCudartDevice
x = ip.from_numpy(a).to("cuda:1")
assert at() == 0, "a copy"
with ip.Stream("cuda:1") as stream:
    y = ip.gemm(ip.add(x, x), ip.rearrange(x.T))
    stream.synchronize()
np.testing.assert_array_equal(y.to("cpu").numpy(), 2 * a @ a.T)
assert at() == 0, "operators and a stream"
with ip.Graph() as graph:
    z = ip.mul(x, x)
graph.run()
np.testing.assert_array_equal(z.to("cpu").numpy(), a * a)
del x, y, z, stream, graph
assert at() == 0, "a graph, and what it frees"
ip.set_device("cuda:1")
assert at() == 1, "the device that was asked for"
ip.Tensor.empty((2, 3), "F32", "cuda:0")
assert at() == 1 and ip.get_device() is ip.Device("cuda:1")
"""


def test_what_other_code_takes_for_the_current_device_stays() -> None:
    environment = {**os.environ, "INFINIOP_BACKEND_PATH": str(PLUGIN)}
    command = [sys.executable, "-c", _SCOPES, str(PLUGIN)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stderr


_CAPTURED = """
import sys, threading
import numpy as np, infiniop_py as ip
from infiniop_py._native import check, ffi, lib
s, t = ip.Stream("cuda:0"), ip.Stream("cuda:0")
n = 40 << 20
x, y = ip.ones(n, "U8", "cuda:0"), ip.zeros(n, "U8", "cuda:0")
ip.synchronize("cuda:0")
def capture():
    ip.set_device("cuda:0")
    check(lib.infinirtStreamBeginCapture(t.pointer, 2))
thread = threading.Thread(target=capture)
thread.start(); thread.join()
with s:
    y.copy_(x)  # queued
del x  # which the device cannot be waited for now
z = ip.empty(n, "U8", "cuda:0")
ip.set_device("cuda:0")
check(lib.infinirtMemset(z._pointer, 7, n))
s.synchronize()
first = np.zeros(4, "u1")
check(lib.infinirtMemcpyAsync(ffi.from_buffer(first), y._pointer, 4, 2, s.pointer))
s.synchronize()
assert first.tolist() == [1] * 4, first
"""


def test_memory_is_not_reused_while_the_device_cannot_be_waited_for() -> None:
    environment = {**os.environ, "INFINIOP_BACKEND_PATH": str(PLUGIN)}
    command = [sys.executable, "-c", _CAPTURED]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stderr
