"""What a table of measurements says of the machine, and what other processes do on it meanwhile."""

from __future__ import annotations

import os
import platform
import re
from datetime import datetime
from time import perf_counter, process_time

import numpy as np

from .._facts import cpu_model, first_match
from .._machine import caches
from .._native import library_path, version
from ..cpu import cpu_isa

SLOWED = 0.85  # of the FMA ceiling: below that, CPUs are too slow for a measurement to be worth much
DISTURBED = 0.05  # share of the CPUs that others may have before a measurement is worth little


def compiler() -> str:
    """The compiler that built the library, which leaves its name there; "unknown" if it was removed."""
    match = re.search(
        rb"GCC: \([^)\0]*\) [0-9.]+|(?:[A-Z][A-Za-z]+ )?clang version [0-9.]+", library_path.read_bytes()
    )
    return match[0].decode("ascii") if match else "unknown"


class OtherProcesses:
    """How much of the CPUs goes to others while this one measures."""

    def __init__(self) -> None:
        self._start = self._now()

    @staticmethod
    def _now() -> tuple[float, float, float]:
        """Wall time, all CPUs' busy time and this process's, in seconds."""
        fields = [int(field) for field in first_match(r"^cpu +([0-9 ]+)$", "/proc/stat").split()]
        # user, nice, system, idle, iowait, irq, softirq, steal
        busy = sum(fields[:8]) - sum(fields[3:5])
        return perf_counter(), busy / os.sysconf("SC_CLK_TCK"), process_time()

    def share(self) -> float:
        """Since this object was made: 0 to 1; 0 where the system does not tell."""
        wall, busy, own = (now - then for now, then in zip(self._now(), self._start))
        return min(1.0, max(0.0, (busy - own) / (wall * (os.cpu_count() or 1))))


def facts() -> dict[str, str]:
    """What a table of measurements must say about where they come from."""
    try:
        cpus = len(os.sched_getaffinity(0))
    except AttributeError:  # not on this system
        cpus = os.cpu_count() or 1
    return {
        "cpu": cpu_model(),
        "cpus": str(cpus),
        "caches": ", ".join(f"L{level} {size_text(size)}" for level, size in caches()) or "unknown",
        "isa": cpu_isa(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "compiler": compiler(),
        "infiniop_py": version,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "date": datetime.now().astimezone().date().isoformat(),
    }


def size_text(n: float) -> str:
    """Bytes with a binary unit."""
    for unit in ("B", "KiB", "MiB"):
        if n < 1024:
            return f"{n:.3g} {unit}"
        n /= 1024
    return f"{n:.3g} GiB"
