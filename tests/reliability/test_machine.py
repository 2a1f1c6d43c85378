"""What the libraries read of the machine: files as kernels, containers and nobody write them."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _compiler
import children
import heap
import numpy as np
import pytest

import infiniop_py as ip
from infiniop_py import _native, cpu

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="reads what Linux tells"),
    heap.unsanitized("no other library may be preloaded"),
]
V2, V1 = "/sys/fs/cgroup", "/sys/fs/cgroup/cpu/cpu.cfs"
CPUS = len(os.sched_getaffinity(0))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> str:
    return _compiler.shared_library(Path(__file__).with_name("files.c"), tmp_path_factory.mktemp("files"))


def found() -> None:
    free, total = (_native.ffi.new("size_t *") for _ in range(2))
    status = _native.lib.infinirtGetMemInfo(0, 0, free, total)
    message = _native.ffi.string(_native.lib.infiniopGetLastErrorMessage()).decode()
    print(json.dumps([ip.get_num_threads(), cpu.num_threads_reason(), status, free[0], total[0], message]))


def on(machine: dict[str, str], files: str, folder: Path, **environment: str) -> list[Any]:
    """What a process finds where these are the files of /proc and /sys."""
    for name, text in machine.items():
        path = Path(f"{folder}{name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    variables = {"INFINIOP_NUM_THREADS": "", "OMP_NUM_THREADS": "", "OPENBLAS_NUM_THREADS": "1"} | environment
    return list(json.loads(children.call(found, LD_PRELOAD=files, FAKE_ROOT=str(folder), **variables)))


QUOTAS: dict[str, tuple[dict[str, str], float]] = {
    "no files": ({}, 0),
    "unlimited": ({"/proc/self/cgroup": "0::/\n", f"{V2}/cpu.max": "max 100000\n"}, 0),
    "of a container": ({"/proc/self/cgroup": "0::/\n", f"{V2}/cpu.max": "150000 100000\n"}, 1.5),
    "half a CPU": ({f"{V2}/cpu.max": "50000 100000\n"}, 0.5),
    "of the group": ({"/proc/self/cgroup": "0::/a\n", f"{V2}/a/cpu.max": "20000 100000\n"}, 0.2),
    "of the group above": (
        {
            "/proc/self/cgroup": "0::/a/b/c\n",
            f"{V2}/a/cpu.max": "30000 100000\n",
            f"{V2}/a/b/c/cpu.max": "max 1\n",
        },
        0.3,
    ),
    "the least of all": (
        {
            "/proc/self/cgroup": "12:cpu:/x\n1:name=systemd:/y\n0::/a/b\n",
            f"{V2}/cpu.max": "90000 100000\n",
            f"{V2}/a/cpu.max": "70000 100000\n",
            f"{V2}/a/b/cpu.max": "80000 100000\n",
            f"{V2}/x/cpu.max": "10000 100000\n",
        },
        0.7,
    ),
    "version 1": ({f"{V1}_quota_us": "25000\n", f"{V1}_period_us": "50000\n"}, 0.5),
    "version 1, unlimited": ({f"{V1}_quota_us": "-1\n", f"{V1}_period_us": "100000\n"}, 0),
    "version 1, no period": ({f"{V1}_quota_us": "25000\n"}, 0),
    "version 1, a period of nothing": ({f"{V1}_quota_us": "25000\n", f"{V1}_period_us": "0\n"}, 0),
    "both versions": (
        {f"{V2}/cpu.max": "40000 100000\n", f"{V1}_quota_us": "10000\n", f"{V1}_period_us": "100000\n"},
        0.1,
    ),
    "no numbers": ({"/proc/self/cgroup": "0::", f"{V2}/cpu.max": "much\n", f"{V1}_quota_us": "x\n"}, 0),
    "one number": ({f"{V2}/cpu.max": "50000\n"}, 0),
    "no quota": ({f"{V2}/cpu.max": "0 100000\n"}, 0),
    "a period of nothing": ({f"{V2}/cpu.max": "50000 0\n"}, 0),
    "less than nothing": ({f"{V2}/cpu.max": "-50000 100000\n"}, 0),
    "a line without an end": ({"/proc/self/cgroup": "0::/a", f"{V2}/a/cpu.max": "20000 100000"}, 0.2),
}


@pytest.mark.parametrize(("machine", "quota"), QUOTAS.values(), ids=QUOTAS)
def test_quotas_of_processors(
    machine: dict[str, str], quota: float, files: str, tmp_path: Path, record_property: Callable[..., None]
) -> None:
    threads, reason, *_ = on(machine, files, tmp_path)
    limit = f"control group quota of {quota:.4g} CPUs" if quota else "no quota"
    assert reason == f"{CPUS} CPU{'s' * (CPUS > 1)} in the affinity mask, {limit}"
    assert threads == (min(CPUS, 2 if quota > 1 else 1) if quota else CPUS)
    record_property("cases", 1)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"INFINIOP_NUM_THREADS": "1"}, "INFINIOP_NUM_THREADS=1, {}"),
        ({"OMP_NUM_THREADS": "1"}, "OMP_NUM_THREADS=1, {}"),
        ({"INFINIOP_NUM_THREADS": "1", "OMP_NUM_THREADS": "2"}, "INFINIOP_NUM_THREADS=1, {}"),
        ({"INFINIOP_NUM_THREADS": "5000"}, "{}, and INFINIOP_NUM_THREADS=1024 asks for more"),
        ({"INFINIOP_NUM_THREADS": "10 or so"}, "{}, and INFINIOP_NUM_THREADS=10 asks for more"),
        ({"INFINIOP_NUM_THREADS": "-3"}, "{}"),
        ({"OMP_NUM_THREADS": "many"}, "{}"),
        ({"INFINIOP_NUM_THREADS": "1e3"}, "{}"),
        ({"INFINIOP_NUM_THREADS": "1.5"}, "{}"),
        ({"OMP_NUM_THREADS": "1,2"}, "OMP_NUM_THREADS=1, {}"),
    ],
)
def test_variables_ask_for_less(
    variables: dict[str, str], expected: str, files: str, tmp_path: Path, record_property: Callable[..., None]
) -> None:
    threads, reason, *_ = on({f"{V2}/cpu.max": "150000 100000\n"}, files, tmp_path, **variables)
    least = min(CPUS, 2)
    machine = f"{CPUS} CPU{'s' * (CPUS > 1)} in the affinity mask, control group quota of 1.5 CPUs"
    assert reason == expected.format(machine)
    assert threads == (1 if expected.startswith(("INF", "OMP")) else least)
    record_property("cases", 1)


@pytest.mark.parametrize(("mask_bytes", "cpus"), [(129, CPUS), (131072, CPUS), (131073, 1)])
def test_masks_of_large_machines(
    mask_bytes: int, cpus: int, files: str, tmp_path: Path, record_property: Callable[..., None]
) -> None:
    """The kernel refuses a mask that is shorter than its own; a million processors are enough."""
    threads, reason, *_ = on({}, files, tmp_path, MASK_BYTES=str(mask_bytes))
    assert (threads, reason) == (cpus, f"{cpus} CPU{'s' * (cpus > 1)} in the affinity mask, no quota")
    record_property("cases", 1)


MEMORY = {"/proc/meminfo": "MemTotal:  1000 kB\nMemFree:  1 kB\nMemAvailable:  600 kB\nHugePages_Total: 7\n"}
USED, STATISTICS, OF_V1 = f"{V2}/memory.current", f"{V2}/memory.stat", f"{V2}/memory/memory"
KB = 1024
LIMITS: dict[str, tuple[dict[str, str], int, int]] = {
    "no limit": (MEMORY, 600 * KB, 1000 * KB),
    "max": (MEMORY | {f"{V2}/memory.max": "max\n"}, 600 * KB, 1000 * KB),
    "more than there is": (MEMORY | {f"{V2}/memory.max": "1024001\n"}, 600 * KB, 1000 * KB),
    "as much as there is": (MEMORY | {f"{V2}/memory.max": "1024000\n"}, 600 * KB, 1000 * KB),
    "a limit": (
        MEMORY | {f"{V2}/memory.max": "300000\n", USED: "100000\n"},
        200_000,
        300_000,
    ),
    "nothing used": (MEMORY | {f"{V2}/memory.max": "300000\n"}, 300_000, 300_000),
    "beyond the limit": (MEMORY | {f"{V2}/memory.max": "3000\n", USED: "9000\n"}, 0, 3000),
    "files it would give up": (
        MEMORY
        | {f"{V2}/memory.max": "300000\n", USED: "250000\n"}
        | {STATISTICS: "anon 9\ninactive_file 100000\nfile 7\n"},
        150_000,
        300_000,
    ),
    "more of them than it has": (
        MEMORY | {f"{V2}/memory.max": "300000\n", USED: "10\n", STATISTICS: "inactive_file 100000\n"},
        300_000,
        300_000,
    ),
    "of the group above": (
        MEMORY
        | {
            "/proc/self/cgroup": "0::/a/b\n",
            f"{V2}/a/memory.max": "200000\n",
            f"{V2}/a/memory.current": "150000\n",
            f"{V2}/a/b/memory.max": "400000\n",
            f"{V2}/a/b/memory.current": "20000\n",
        },
        50_000,
        200_000,
    ),
    "the least of all": (
        MEMORY
        | {
            "/proc/self/cgroup": "0::/a/b\n",
            f"{V2}/a/memory.max": "500000\n",
            f"{V2}/a/memory.current": "470000\n",
            f"{V2}/a/b/memory.max": "400000\n",
            f"{V2}/a/b/memory.current": "20000\n",
        },
        30_000,
        400_000,
    ),
    "version 1": (
        MEMORY
        | {
            f"{OF_V1}.limit_in_bytes": "300000\n",
            f"{OF_V1}.usage_in_bytes": "250000\n",
            f"{OF_V1}.stat": "inactive_file 1\ntotal_inactive_file 50000\n",
        },
        100_000,
        300_000,
    ),
    "version 1, no limit": (
        MEMORY | {f"{OF_V1}.limit_in_bytes": "9223372036854771712\n"},
        600 * KB,
        1000 * KB,
    ),
    "the system has less": (MEMORY | {f"{V2}/memory.max": "1000000\n"}, 600 * KB, 1_000_000),
    "an old kernel": ({"/proc/meminfo": "MemTotal: 8 kB\n"}, 0, 8 * KB),
}


@pytest.mark.parametrize(("machine", "free", "total"), LIMITS.values(), ids=LIMITS)
def test_memory(
    machine: dict[str, str],
    free: int,
    total: int,
    files: str,
    tmp_path: Path,
    record_property: Callable[..., None],
) -> None:
    assert on(machine, files, tmp_path)[2:5] == [0, free, total]
    record_property("cases", 1)


def test_no_memory_file(files: str, tmp_path: Path, record_property: Callable[..., None]) -> None:
    *_, status, free, total, message = on({}, files, tmp_path)
    assert status == ip.errors.InternalError.status and free == total == 0
    assert message == "infinirtGetMemInfo: /proc/meminfo cannot be read"
    record_property("cases", 1)


def planned() -> None:
    """What is said of a product in blocks, whose sizes go by the second-level cache."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("infiniop_py")
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    x = np.zeros((1000, 1000), "f4")
    ip.gemm(x, x)
    print(next(line for line in said if line.startswith("gemm planned")))


def asked_first_by_a_thread_on_one_processor() -> None:
    def pinned() -> None:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        ip.get_num_threads()

    thread = threading.Thread(target=pinned)
    thread.start()
    thread.join()
    print(ip.get_num_threads())


def asked_first_by_the_main_thread() -> None:
    print(ip.get_num_threads())


def test_the_number_of_threads_does_not_depend_on_who_asks_first() -> None:
    usual = children.call(asked_first_by_the_main_thread)
    assert children.call(asked_first_by_a_thread_on_one_processor) == usual


def test_cache_sizes_that_are_no_numbers(record_property: Callable[..., None]) -> None:
    """As if they were not given; 0 is a number."""
    usual = children.call(planned, INFINIOP_L2_BYTES=None)
    assert children.call(planned, INFINIOP_L2_BYTES="0") != usual
    for value in ("", "abc", "nan", "-1", "0M"):
        assert children.call(planned, INFINIOP_L2_BYTES=value) == usual
    record_property("cases", 5)
