"""Runs a piece of a test in a process of its own, where it may load a backend or crash."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def run(script: str, *arguments: object, timeout: float = 60, **environment: str | Path) -> str:
    """Runs `script` (a file of this folder) and returns its stdout; fails with its stderr.

    INFINIOP_BACKEND_PATH is taken from `environment` only.
    """
    variables = {name: value for name, value in os.environ.items() if name != "INFINIOP_BACKEND_PATH"}
    variables |= {name: str(value) for name, value in environment.items()}
    command = [sys.executable, "-X", "faulthandler", str(HERE / script), *map(str, arguments)]
    done = subprocess.run(
        command,
        check=False,
        env=variables,
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=HERE.parents[1],
    )
    assert done.returncode == 0, (
        f"{script} {' '.join(map(str, arguments))} ended with {done.returncode}\n{done.stdout}{done.stderr}"
    )
    return done.stdout
