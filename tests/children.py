"""Python programs in processes of their own, for what must not happen in the one that runs the tests."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

import infiniop_py

ROOT = Path(infiniop_py.__file__).resolve().parent.parent


def run(code: str, *flags: str, cwd: Path | None = None, **environment: str | None) -> str:
    """Run `code` and return what it printed; a failure shows its standard error. None removes a variable."""
    done = attempt(code, *flags, cwd=cwd, **environment)
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert done.stderr == "", done.stderr
    return done.stdout


def attempt(
    code: str, *flags: str, cwd: Path | None = None, **environment: str | None
) -> subprocess.CompletedProcess[str]:
    """Run `code` and return whatever came of it."""
    env = dict(os.environ)
    env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), env.get("PYTHONPATH"))))
    for name, value in environment.items():
        if value is None:
            env.pop(name, None)
        else:
            env[name] = value
    command = [sys.executable, "-W", "error", *flags, "-c", code]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=120, check=False)


def call(function: Callable[..., object], *arguments: object, **environment: str | None) -> str:
    """Call a function of a test's module in a process of its own; return what it printed."""
    module = function.__module__
    call = f"import {module}; {module}.{function.__name__}(*{arguments!r})"
    return run(f"import sys; sys.path[:] = {sys.path!r}; {call}", "-X", "faulthandler", **environment)


def forked(work: Callable[[], object], patience_s: float = 60) -> None:
    """Run `work` in a forked child; fail when it raises, crashes or does not end in time."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking while threads run is what is tested
        pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException as error:
            os.write(2, f"in the child: {error!r}\n".encode())
        finally:
            os._exit(status)
    deadline = time.monotonic() + patience_s
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            break
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGABRT)  # faulthandler, where it is on, says where
            os.waitpid(pid, 0)
            raise AssertionError(f"the child hangs: killed after {patience_s} s")
        time.sleep(0.005)
    assert status == 0, f"the child ended with wait status {status}"


def build_fake_backend(folder: Path, *flags: str) -> Path:
    """Compile the test-only backend: devices QY:0 and QY:1, unless flags say otherwise, with memory that the
    host cannot touch.
    """
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")
    source = ROOT / "native" / "tests" / "fake_backend.c"
    if compiler is None or not source.is_file():
        pytest.skip("the test backend needs a C compiler and the source tree")
    library = folder / "libfake_backend.so"
    include = source.parent.parent / "include"
    subprocess.run(
        [
            compiler,
            "-shared",
            "-fPIC",
            *flags,
            "-I",
            str(include),
            str(source),
            "-o",
            str(library),
            "-ldl",
            "-lpthread",
        ],
        check=True,
    )
    return library
