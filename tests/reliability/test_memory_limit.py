"""With no memory left in the process, operators say so by name, write nothing, and work again afterwards."""

from __future__ import annotations

import sys
from collections.abc import Callable

import children
import heap
import pytest

_CHILD = """
import re, resource
import numpy as np, infiniop_py as ip

n = 3000
half, single, small = np.ones((n, n), "f2"), np.ones((n, n), "f4"), np.ones((8, 8), "f4")
out = np.full((n, n), 7, "f2")
with ip.Graph() as recorded:
    ip.gemm_(out, half, half)

def record():
    with ip.Graph():
        ip.add(single, single)

CASES = {
    "empty": lambda: ip.empty((n, n)),
    "add": lambda: ip.add(single, single),
    "mul": lambda: ip.mul(single, single),
    "gemm": lambda: ip.gemm(half, half),
    "gemm: workspace": lambda: ip.gemm_(out, half, half),
    "gemm: workspace ": lambda: ip.gemm.plan(out, half, half)(),
    "add_rms_norm": lambda: ip.add_rms_norm(single, single, single[0]),
    "rearrange": lambda: ip.rearrange(single.T),
    "add ": record,
}
ip.add(small, small)
with open("/proc/self/status") as status:
    size = int(re.search(r"VmSize:\\s+(\\d+)", status.read())[1]) * 1024
unlimited = resource.getrlimit(resource.RLIMIT_AS)
for times in range(3):
    resource.setrlimit(resource.RLIMIT_AS, (size + (4 << 20), unlimited[1]))
    for name, call in CASES.items():
        try:
            call()
        except ip.OutOfMemoryError as error:
            assert str(error).startswith(f"{name.strip()}: cannot allocate "), (name, str(error))
        else:
            raise AssertionError(f"{name}: there was memory")
        assert out.min() == out.max() == 7 and ip.add(small, small)[0, 0] == 2
    resource.setrlimit(resource.RLIMIT_AS, unlimited)
ip.gemm_(out, half, half)
assert out.min() == out.max() == n
print(len(CASES) * 3)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.skipif(not heap.counts(), reason="an allocator of another kind takes address space as it likes")
def test_no_memory_left(record_property: Callable[..., None]) -> None:
    record_property("cases", int(children.run(_CHILD)))
