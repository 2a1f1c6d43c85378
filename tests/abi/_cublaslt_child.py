"""The steps of test_cuda_gemm.py, each run in a process of its own, where INFINIOP_BACKEND_PATH names the
NVIDIA backend that runs on the CPU and INFINIOP_CUBLASLT_PATH the fake cublasLt.

python _cublaslt_child.py <step> [<argument> ...]
"""

from __future__ import annotations

import collections
import ctypes
import itertools
import os
import random
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import _library
import numpy as np
from _library import NVIDIA, SUCCESS, Library, pointer
from _ops import DTYPES, FLOATS, OPS, Abi, DeviceMemory, Layout, Memory, Op, decode, encode, expected

PRODUCTS = ("gemm", "gemm_add", "gemm_mul")


def use(lib: Library, device_id: int = 0) -> Abi:
    assert lib.infinirtSetDevice(NVIDIA, device_id) == SUCCESS, lib.message()
    return Abi(lib)


class Counts(ctypes.Structure):
    """What fakeCublasLtGetCounts writes."""

    _fields_ = [("alive", ctypes.c_int64), ("products", ctypes.c_int64), ("handles", ctypes.c_int64)]

    @classmethod
    def now(cls) -> Counts:
        counts = cls()
        ctypes.CDLL(os.environ["INFINIOP_CUBLASLT_PATH"]).fakeCublasLtGetCounts(ctypes.byref(counts))
        return counts


def shifted(layout: Layout, elements: int, values: Any = None) -> Memory:
    """Memory whose first element lies some elements behind a multiple of 64 bytes on the device, too."""
    kind = type("Shifted", (Memory,), {"GUARD": 64 + elements * DTYPES[layout.dtype].size})
    made: Memory = kind(layout, values)
    return made


class Problem:
    """One product: descriptor, memory on host and device, a workspace of exactly the size asked for."""

    def __init__(self, abi: Abi, op: Op, memory: dict[str, Memory], workspace_shift: int = 0) -> None:
        self.abi, self.op, self.memory = abi, op, memory
        layouts = {name: one.layout for name, one in memory.items()}
        self.desc = abi.created(op, layouts)
        text = ctypes.c_char_p()
        lib = abi.lib
        assert lib.infiniopGetDescriptorPlan(self.desc, ctypes.byref(text)) == SUCCESS, lib.message()
        self.plan = (text.value or b"").decode()
        self.device = {name: DeviceMemory(lib, one) for name, one in memory.items()}
        self.workspace_size = abi.workspace_size(op, self.desc)
        self._block = pointer()
        assert lib.infinirtMalloc(ctypes.byref(self._block), self.workspace_size + workspace_shift) == SUCCESS
        self.workspace = (self._block.value or 0) + workspace_shift

    @property
    def pointers(self) -> dict[str, int]:
        return {name: one.pointer for name, one in self.device.items()}

    def run(self, alpha: float = 1.0, beta: float = 0.0, stream: Any = None) -> int:
        return self.abi.run(
            self.op, self.desc, self.pointers, self.workspace, self.workspace_size, alpha, beta, stream
        )

    def check(self, alpha: float, beta: float, what: object) -> None:
        """Downloads the output: its elements are right, and no other byte is changed. What is not read may
        be NaN.
        """
        name = self.op.outputs[0]
        held = self.memory[name]
        dtype = held.layout.dtype
        clean = {n: shifted(m.layout, 0, np.nan_to_num(m.values)) for n, m in self.memory.items()}
        wanted = decode(encode(expected(self.op, clean, alpha, beta)[name], dtype), dtype)
        before = held.bytes.copy()
        self.device[name].download()
        got = held.values
        assert np.array_equal(got, wanted), f"{what}\n{self.plan}\ngot\n{got}\nwanted\n{wanted}"
        held.array[...] = 0
        after = held.bytes.copy()
        held.bytes[...] = before
        held.array[...] = 0
        assert np.array_equal(after, held.bytes), f"{what}\n{self.plan}\nbytes beside C were written"

    def close(self) -> None:
        for one in self.device.values():
            one.free()
        assert self.abi.lib.infinirtFree(self._block) == SUCCESS
        assert self.abi.destroy(self.op, self.desc) == SUCCESS


# ---- problems ------------------------------------------------------------------------------------


def some_layout(rng: random.Random, shape: Sequence[int], dtype: str, is_output: bool) -> Layout:
    """Any layout of a shape: any order of the dimensions in memory, gaps, backwards, and where it is an input
    dimensions that repeat.
    """
    kind = rng.choice(("compact", "compact", "padded", "padded", "any"))
    order = list(range(len(shape)))
    if rng.random() < 0.5:
        order[-2:] = order[:-3:-1]  # transposed
    if kind == "any":
        rng.shuffle(order)
    strides = [0] * len(shape)
    step = rng.choice((1, 1, 1, 2, 3)) if kind == "any" else 1
    for d in reversed(order):
        strides[d] = step
        gap = {"compact": 0, "padded": rng.choice((0, 1, 3, 8)), "any": rng.randrange(3)}[kind]
        step *= shape[d] + gap
        if rng.random() < 0.3:
            step = (step + 7) // 8 * 8
    for d, n in enumerate(shape):
        if kind == "any" and rng.random() < 0.2:
            strides[d] = -strides[d]
        if not is_output and rng.random() < (0.25 if len(shape) == 3 and d == 0 else 0.04):
            strides[d] = 0
        if n == 1:
            strides[d] = rng.choice((0, 1, -1, 7, 10**12))
    return Layout(tuple(shape), tuple(strides), dtype)


def some_size(rng: random.Random) -> int:
    return rng.choice((1, 8, 16, 32, rng.randrange(1, 10), rng.randrange(1, 41), rng.randrange(1, 41)))


def some_problem(rng: random.Random, abi: Abi, alpha: float, beta: float) -> Problem:
    op = OPS[rng.choice(("gemm", "gemm", "gemm_add", "gemm_mul"))]
    dtype = rng.choice(FLOATS)
    m, n, k = (some_size(rng) for _ in range(3))
    batch = rng.choice((0, 0, 1, 2, 3, 4))
    lead = [batch] if batch else []
    shapes = {op.outputs[0]: [*lead, m, n]}
    for name, shape in (("a", [m, k]), ("b", [k, n])):
        front: list[int] = rng.choice(([], [1], lead, lead, lead)) if batch else []
        shapes[name] = [*front, *shape]
    if "d" in op.operands:
        shapes["d"] = [*lead, m, n]
    numbers = np.random.default_rng(rng.getrandbits(32))
    memory = {}
    for name, shape in shapes.items():
        is_output = name == op.outputs[0]
        layout = some_layout(rng, shape, dtype, is_output)
        unread = (is_output and (beta == 0 or op.name != "gemm")) or (alpha == 0 and name in "ab")
        values = np.full(shape, np.nan) if unread else numbers.integers(-3, 4, shape)
        aligned = rng.random() < 0.5
        memory[name] = shifted(layout, 0 if aligned else rng.randrange(9), values)
    return Problem(abi, op, memory, rng.choice((0, 0, 1, 2, 24, 100)))


def randomly(lib: Library, seed: str, count: str) -> None:
    """Problems of every layout, all of them cublasLt's."""
    rng = random.Random(int(seed))
    abi = use(lib, 1)
    seen: collections.Counter[str] = collections.Counter()
    stream = pointer()
    assert lib.infinirtStreamCreate(ctypes.byref(stream)) == SUCCESS
    for number in range(int(count)):
        alpha = rng.choice((1.0, 1.0, 1.0, 2.0, 2.0, -1.0, -1.0, 0.5, 0.5, 0.0))
        beta = rng.choice((0.0, 0.0, 1.0, -2.0, 0.5))
        problem = some_problem(rng, abi, alpha, beta)
        what = (number, problem.op.name, alpha, beta, {n: m.layout for n, m in problem.memory.items()})
        on = rng.choice((None, stream))
        before = Counts.now().products
        assert problem.run(alpha, beta, on) == SUCCESS, f"{what}\n{problem.plan}\n{lib.message()}"
        multiplied = Counts.now().products - before
        assert lib.infinirtStreamSynchronize(on) == SUCCESS, f"{what}\n{problem.plan}\n{lib.message()}"
        assert problem.plan.startswith("cublasLt "), (what, problem.plan, lib.message())
        assert multiplied == (alpha != 0), (what, problem.plan)
        problem.check(alpha, beta if problem.op.name == "gemm" else 0.0, what)
        seen[problem.plan.split(", ", 1)[1]] += 1
        problem.close()
    for way, ops in itertools.product(("C = A B", "C^T = B^T A^T"), ("NN", "NT", "TN", "TT")):
        assert any(way in plan and ops in plan for plan in seen), f"{way} {ops} never came: {seen}"
    for operand in "abc":
        assert any(f"{operand} copied" in plan for plan in seen), f"{operand} was never copied: {seen}"
    assert any("copied" not in plan for plan in seen)
    assert lib.infinirtStreamDestroy(stream) == SUCCESS
    assert (Counts.now().alive, Counts.now().handles) == (0, 1)


def simple(
    abi: Abi, op: str = "gemm", dtype: str = "f32", size: int = 16, shift: int = 0, **strides: Sequence[int]
) -> Problem:
    """A product of `size` x `size` x `size` of small integers, with C of NaNs."""
    numbers = np.random.default_rng(3)
    memory = {}
    for name in OPS[op].operands:
        layout = Layout((size, size), tuple(strides[name]) if name in strides else None, dtype)
        values = np.nan if name == OPS[op].outputs[0] else numbers.integers(-3, 4, (size, size))
        memory[name] = shifted(layout, shift, values)
    return Problem(abi, OPS[op], memory)


def declined(lib: Library, *words: str) -> None:
    """The next implementation is asked, the sentence says why, and the result is right."""
    abi = use(lib)
    for op, dtype in itertools.product(PRODUCTS, FLOATS):
        lib.clear_message()
        problem = simple(abi, op, dtype)
        assert "cublasLt" not in problem.plan, problem.plan
        assert problem.plan, "what runs it says so"
        for word in words:
            assert word in lib.message(), f"{word!r} is not in {lib.message()!r}"
        assert problem.run() == SUCCESS, lib.message()
        problem.check(1, 0, (op, dtype))
        problem.close()


def missing(lib: Library) -> None:
    """What was tried is said, and what to do."""
    declined(
        lib, "libcublasLt.so.13", "libcublasLt.so.12", "pip install nvidia-cublas", "INFINIOP_CUBLASLT_PATH"
    )


def taken(lib: Library, version: str = "13.1", path: str = "") -> None:
    """The library is found. `path`: after it was loaded by another."""
    if path:
        ctypes.CDLL(path)
    problem = simple(use(lib))
    assert problem.plan.startswith(f"cublasLt {version},"), (problem.plan, lib.message())
    assert problem.run() == SUCCESS, lib.message()
    problem.check(1, 0, "taken")


def failing(lib: Library, status: str, *words: str) -> None:
    """An error of a run reaches the caller."""
    problem = simple(use(lib))
    assert problem.plan.startswith("cublasLt "), problem.plan
    assert problem.run() == int(status), lib.message()
    for word in words:
        assert word in lib.message(), f"{word!r} is not in {lib.message()!r}"


def workspace(lib: Library, mebibytes: str) -> None:
    """An algorithm that takes all that it is offered gets that much, and an address of its own choice."""
    abi = use(lib)
    offered = int(mebibytes) << 20
    problem = simple(abi)
    assert offered <= problem.workspace_size < offered + 256, problem.workspace_size
    copied = simple(abi, a=(32, 2))
    assert offered + 16 * 16 * 4 <= copied.workspace_size < offered + 16 * 16 * 4 + 256, copied.workspace_size
    for one in (problem, copied):
        assert one.run() == SUCCESS, lib.message()
        one.check(1, 0, mebibytes)
    shapes = {"c": Layout((3, 16, 16)), "a": Layout((3, 16, 16), (0, 32, 2)), "b": Layout((3, 16, 16))}
    repeated = Problem(abi, OPS["gemm"], {name: shifted(layout, 0, 1) for name, layout in shapes.items()})
    assert repeated.workspace_size == copied.workspace_size, "one item is copied"


def empty(lib: Library) -> None:
    """Without K there is nothing to multiply."""
    abi = use(lib)
    for beta, was in ((0.0, np.nan), (2.0, 3.0)):
        shapes = {"c": (16, 16), "a": (16, 0), "b": (0, 16)}
        lib.clear_message()
        problem = Problem(abi, OPS["gemm"], {n: shifted(Layout(s), 0, was) for n, s in shapes.items()})
        assert "cublasLt" not in problem.plan, problem.plan
        assert "K is 0" in lib.message(), lib.message()
        assert problem.run(1.0, beta) == SUCCESS, lib.message()
        problem.check(1, beta, beta)


def none_needed(lib: Library) -> None:
    """Where nothing is copied and no algorithm wants one, there is no workspace."""
    problem = simple(use(lib))
    assert problem.workspace_size == 0
    status = lib.infiniopGemm(problem.desc, None, 0, *(problem.pointers[n] for n in "cab"), 1.0, 0.0, None)
    assert status == SUCCESS, lib.message()
    problem.check(1, 0, "no workspace")


def alignment(lib: Library) -> None:
    """No algorithm takes less than 16 bytes: other pointers go to the tiled kernel, and so do layouts that
    are never aligned.
    """
    abi = use(lib)
    for dtype in FLOATS:
        aligned, odd = simple(abi, dtype=dtype), simple(abi, dtype=dtype, shift=1)
        for problem, products in ((aligned, 1), (odd, 0)):
            assert (
                problem.plan.startswith("cublasLt ") and "tiled, if a pointer is not aligned" in problem.plan
            )
            before = Counts.now().products
            assert problem.run() == SUCCESS, lib.message()
            assert Counts.now().products - before == products, (dtype, products)
            problem.check(1, 0, (dtype, products))
        row = 16 + 16 // DTYPES[dtype].size  # an odd multiple of 16 bytes
        assert simple(abi, dtype=dtype, a=(row, 1)).plan.startswith("cublasLt "), lib.message()
        never = simple(abi, dtype=dtype, a=(17, 1))
        assert "cublasLt" not in never.plan, never.plan
        copied = simple(abi, dtype=dtype, size=15, a=(31, 2), b=(31, 2), c=(31, 2))  # padded to be aligned
        assert copied.plan.startswith("cublasLt "), copied.plan
        for problem in (never, copied):
            assert problem.run() == SUCCESS, lib.message()
            problem.check(1, 0, dtype)


def precision(lib: Library, tf32: str, low: str) -> None:
    """What is given up, and what is not."""
    abi = use(lib)

    def one(dtype: str, a: Sequence[float]) -> float:
        shapes = {"c": (2, 2), "a": (2, len(a)), "b": (len(a), 2)}
        values = {"c": np.nan, "a": [a, a], "b": 1}
        memory = {n: shifted(Layout(s, None, dtype), 0, values[n]) for n, s in shapes.items()}
        problem = Problem(abi, OPS["gemm"], memory)
        assert problem.plan.startswith("cublasLt "), problem.plan
        assert problem.run() == SUCCESS, lib.message()
        problem.device["c"].download()
        return float(memory["c"].values[0, 0])

    fine = 1 + 2.0**-12
    assert one("f32", [fine]) == (1 if tf32 == "1" else fine)
    assert one("f64", [1 + 2.0**-40]) == 1 + 2.0**-40
    # The first half of K adds up to what the output's type rounds away.
    assert one("f16", [2048, 1, -2048, 0]) == (0 if low == "1" else 1)
    assert one("bf16", [256, 1, -256, 0]) == (0 if low == "1" else 1)
    assert one("f32", [2.0**24, 1, -(2.0**24), 0]) == 0
    assert one("f64", [2.0**24, 1, -(2.0**24), 0]) == 1


def captured(lib: Library) -> None:
    """Copies, product and what follows are captured, and replayed on what memory holds then."""
    abi = use(lib)
    numbers = np.random.default_rng(8)
    for op in PRODUCTS:
        out = OPS[op].outputs[0]
        problem = simple(abi, op, a=(32, 2), **{out: (40, 2)})
        assert "a copied" in problem.plan and "c copied" in problem.plan, problem.plan
        graph = pointer()
        assert lib.infiniopCreateGraph(abi.handle, ctypes.byref(graph)) == SUCCESS
        beta = 2.0 if op == "gemm" else 0.0  # the others have none, whatever is passed
        addresses = (ctypes.c_void_p * len(problem.pointers))(*problem.pointers.values())
        status = lib.infiniopGraphAppend(
            graph,
            problem.desc,
            problem.workspace,
            problem.workspace_size,
            addresses,
            len(addresses),
            1.0,
            2.0,
        )
        assert status == SUCCESS, lib.message()
        for _ in range(3):
            for name, memory in problem.memory.items():
                memory.array[...] = encode(numbers.integers(-3, 4, (16, 16)), "f32")
                problem.device[name].upload()
            assert lib.infiniopGraphRun(graph, None) == SUCCESS, lib.message()
            problem.check(1, beta, op)
        text = ctypes.c_char_p()
        assert lib.infiniopGraphDescribe(graph, ctypes.byref(text)) == SUCCESS
        assert (text.value or b"").startswith(b"captured, "), text.value
        assert lib.infiniopDestroyGraph(graph) == SUCCESS
        problem.close()


def threads(lib: Library) -> None:
    """The library is searched once and each device's handle made once, whoever comes first."""
    failures: list[BaseException] = []
    start = threading.Barrier(8)

    def work(number: int) -> None:
        try:
            abi = use(lib, number % 2)
            start.wait()
            for _ in range(5):
                problem = simple(abi, a=(32, 2))
                assert problem.plan.startswith("cublasLt "), problem.plan
                assert problem.run() == SUCCESS, lib.message()
                problem.check(1, 0, number)
                problem.close()
        except BaseException as e:
            failures.append(e)

    all_threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in all_threads:
        thread.start()
    for thread in all_threads:
        thread.join()
    assert not failures, failures
    assert (Counts.now().alive, Counts.now().handles) == (0, 2)


STEPS: dict[str, Callable[..., None]] = {
    f.__name__: f
    for f in (
        randomly,
        declined,
        missing,
        taken,
        failing,
        workspace,
        none_needed,
        empty,
        alignment,
        precision,
        captured,
        threads,
    )
}

if __name__ == "__main__":
    step, *arguments = sys.argv[1:]
    STEPS[step](_library.load(), *arguments)
