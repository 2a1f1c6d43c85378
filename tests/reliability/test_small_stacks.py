"""Threads with small stacks: all operators, by themselves and from Python."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import _compiler
import children
import numpy as np
import pytest
from everything import Caught, all_operators_once

import infiniop_py as ip
from infiniop_py import _native
from infiniop_py._conformance.cases import DTYPES, FLOATS

Record = Callable[[str, object], None]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sizes of stacks are those of Linux")

ISAS = ("amx_bf16", "avx512_bf16", "avx2", "portable")
#: What infiniop.h promises to be enough for a call; and for one from Python, with what checks it.
NATIVE, PYTHON = 96 << 10, 160 << 10


def calls() -> Iterator[Callable[[], Any]]:
    """Layouts for every kernel: rows, columns, transposes, few rows, batches."""
    for dtype in (DTYPES[name] for name in FLOATS):
        x = (np.arange(90_000).reshape(300, 300) % 7).astype(dtype)
        batch = x[:, :288].reshape(300, 12, 24)
        for a, b in ((x, x), (x.T, x), (x, x.T), (x[::2, ::2], x[1::2, ::2]), (x[:, ::-1], x)):
            yield lambda a=a, b=b: ip.add(a, b)
            yield lambda a=a, b=b: ip.mul(a, b)
            yield lambda a=a: ip.rearrange(a)
            yield lambda a=a, b=b: ip.gemm(a, b.T)
            yield lambda a=a, b=b: ip.gemm(a[:1], b.T)
            yield lambda a=a, b=b: ip.gemm(a[:7], b.T, 0.5, 2.0, c=a[:7, : b.shape[0]])
            yield lambda a=a, b=b: ip.gemm_add(a, b.T, a[:, :1])
            yield lambda a=a, b=b: ip.gemm_mul(a, b.T, a[:, :1])
        yield lambda batch=batch: ip.gemm(batch, batch.transpose(0, 2, 1))
        yield lambda batch=batch: ip.rearrange(batch.transpose(2, 0, 1))
        yield lambda x=x: ip.add_rms_norm(x, x, x[0])
        yield lambda x=x: ip.add_rms_norm(x.reshape(6, -1), x.reshape(6, -1), x.reshape(6, -1)[0])


def natively(library: str) -> None:
    small = ctypes.CDLL(library)
    small.run_on_small_stack.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    graph_run = _native.address(_native.lib.infiniopGraphRun)
    runs = 0
    for threads in (1, 2):
        ip.set_num_threads(threads)
        for call in calls():
            with ip.Graph(fuse="none") as graph:
                result = call()
            (executor,) = graph._program.steps
            assert small.run_on_small_stack(graph_run, _native.address(executor.pointer), NATIVE) == 0
            first = [np.array(x) for x in (result if isinstance(result, tuple) else (result,))]
            graph.run()
            for x, y in zip(first, result if isinstance(result, tuple) else (result,)):
                assert x.tobytes() == y.tobytes()
            runs += 1
    print(runs)


@pytest.mark.parametrize("isa", ISAS)
def test_native_threads(isa: str, tmp_path: Path, record_property: Record) -> None:
    library = tmp_path / "small_stack.so"
    flags = ("-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC")
    source = Path(__file__).with_name("small_stack.c")
    _compiler.run([_compiler.compiler(), *flags, source, "-o", library, "-lpthread"])
    environment = {"INFINIOP_MAX_ISA": isa, "INFINIOP_STREAM_BYTES": "1"}
    record_property("cases", int(children.call(natively, str(library), **environment)))


def from_python() -> None:
    threading.stack_size(PYTHON)
    made = 0
    for call in calls():
        Caught(call).finish()
        made += 1
    for i in range(8):
        Caught(lambda i=i: all_operators_once(seed=i, size=i)).finish()  # type: ignore[misc]
    print(made)


@pytest.mark.parametrize("isa", ISAS)
def test_python_threads(isa: str, record_property: Record) -> None:
    environment = {"INFINIOP_MAX_ISA": isa, "INFINIOP_STREAM_BYTES": "1", "OPENBLAS_NUM_THREADS": "1"}
    record_property("cases", int(children.call(from_python, **environment)))
