"""infiniopGraph*: calls appended once, with every check of the operator's run, and replayed in one call."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping

import numpy as np
import pytest
from _library import BAD_PARAM, CPU, NULL_POINTER, SUCCESS, Library, pointer
from _ops import OPS, Abi, Layout, Memory, Op, example


class Graph:
    """A graph, and the workspaces of the calls in it."""

    def __init__(self, abi: Abi) -> None:
        self.abi = abi
        self.lib = abi.lib
        self.graph = pointer()
        assert self.lib.infiniopCreateGraph(abi.handle, ctypes.byref(self.graph)) == SUCCESS, (
            self.lib.message()
        )
        self._workspaces: list[ctypes.c_void_p] = []

    def append(
        self,
        op: Op,
        desc: ctypes.c_void_p,
        pointers: Mapping[str, int | None],
        count: int | None = None,
        /,
        alpha: float = 1.0,
        beta: float = 0.0,
    ) -> int:
        size = self.abi.workspace_size(op, desc)
        workspace = pointer()
        assert self.lib.infinirtMalloc(ctypes.byref(workspace), size) == SUCCESS
        self._workspaces.append(workspace)
        listed = [pointers[name] for name in op.operands]
        operands = (ctypes.c_void_p * (len(listed) + 2))(*listed)
        n = len(listed) if count is None else count
        status: int = self.lib.infiniopGraphAppend(
            self.graph, desc, workspace, size, operands, n, alpha, beta
        )
        # The executor copies the list: what the caller does with it afterwards is of no effect.
        operands[:] = [None] * len(operands)
        return status

    def run(self) -> int:
        status: int = self.lib.infiniopGraphRun(self.graph, None)
        return status

    def close(self) -> None:
        assert self.lib.infiniopDestroyGraph(self.graph) == SUCCESS, self.lib.message()
        for workspace in self._workspaces:
            assert self.lib.infinirtFree(workspace) == SUCCESS


@pytest.fixture
def graph(abi: Abi) -> Iterator[Graph]:
    made = Graph(abi)
    yield made
    made.close()


def pointers(memory: Mapping[str, Memory]) -> dict[str, int | None]:
    return {name: held.pointer for name, held in memory.items()}


def test_an_empty_graph_runs(graph: Graph) -> None:
    assert graph.run() == SUCCESS


def test_nothing_runs_before_run(abi: Abi, graph: Graph) -> None:
    for op in OPS.values():
        memory = example(op, op.layouts())
        before = {name: held.bytes.tobytes() for name, held in memory.items()}
        desc = abi.created(op, op.layouts())
        assert graph.append(op, desc, pointers(memory)) == SUCCESS, abi.lib.message()
        assert abi.destroy(op, desc) == SUCCESS
        assert {name: held.bytes.tobytes() for name, held in memory.items()} == before


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
def test_replay_is_bit_equal_to_direct_calls(abi: Abi, graph: Graph, dtype: str) -> None:
    """add_rms_norm -> gemm -> mul in place -> add -> rearrange; the descriptors destroyed before the run."""
    rows, depth = Layout((7, 33), None, dtype), Layout((33,), None, dtype)
    square = Layout((33, 33), None, dtype)
    shapes = {"x": rows, "r": rows, "n": rows, "s": rows, "w": depth, "m": square, "g": rows, "o": rows}
    shapes["t"] = Layout((33, 7), None, dtype)
    random = np.random.default_rng(11)
    eager = {name: Memory(at, random.standard_normal(at.shape)) for name, at in shapes.items()}
    replay = {name: Memory(at) for name, at in shapes.items()}
    transposed = Layout((7, 33), (1, 7), dtype)
    steps = [
        ("add_rms_norm", {"y": "n", "residual_out": "s", "a": "x", "b": "r", "weight": "w"}, {}),
        ("gemm", {"c": "g", "a": "n", "b": "m"}, {"alpha": 0.5, "beta": 2.0}),
        ("mul", {"c": "g", "a": "g", "b": "s"}, {}),
        ("add", {"c": "o", "a": "g", "b": "x"}, {}),
        ("rearrange", {"y": "t", "x": "o"}, {}),
    ]
    calls = []
    for name, operands, factors in steps:
        op = OPS[name]
        layouts = {operand: shapes[buffer] for operand, buffer in operands.items()}
        if name == "rearrange":
            layouts["y"] = transposed
        desc, gone = abi.created(op, layouts), abi.created(op, layouts)
        where: dict[str, int | None] = {
            operand: replay[buffer].pointer for operand, buffer in operands.items()
        }
        assert graph.append(op, gone, where, **factors) == SUCCESS, abi.lib.message()
        assert abi.destroy(op, gone) == SUCCESS
        where = {operand: eager[buffer].pointer for operand, buffer in operands.items()}
        calls.append((op, desc, where, factors))
    for _ in range(3):
        for name, held in eager.items():
            held.array[...] = Memory(shapes[name], random.standard_normal(shapes[name].shape)).array
            replay[name].bytes[:] = held.bytes
        for op, desc, where, factors in calls:
            assert abi.run_in(op, desc, where, **factors) == SUCCESS, abi.lib.message()
        assert graph.run() == SUCCESS, abi.lib.message()
        for name, held in eager.items():
            assert replay[name].bytes.tobytes() == held.bytes.tobytes(), name
    for op, desc, _, _ in calls:
        assert abi.destroy(op, desc) == SUCCESS


def test_the_handle_may_be_destroyed_first(lib: Library) -> None:
    assert lib.infinirtSetDevice(CPU, 0) == SUCCESS
    abi = Abi(lib)
    graph = Graph(abi)
    op = OPS["add"]
    memory = example(op, op.layouts())
    desc = abi.created(op, op.layouts())
    abi.close()
    assert graph.append(op, desc, pointers(memory)) == SUCCESS, lib.message()
    assert abi.destroy(op, desc) == SUCCESS
    assert graph.run() == SUCCESS, lib.message()
    np.testing.assert_array_equal(memory["c"].array, memory["a"].array + memory["b"].array)
    graph.close()


@pytest.mark.parametrize("count", [0, 1, 2, 4, 5, 2**32, 2**64 - 1])
def test_wrong_number_of_operands(abi: Abi, graph: Graph, count: int) -> None:
    op = OPS["add"]
    memory = example(op, op.layouts())
    desc = abi.created(op, op.layouts())
    assert graph.append(op, desc, pointers(memory), count) == BAD_PARAM
    assert "add" in abi.lib.message() and "3" in abi.lib.message()
    assert abi.destroy(op, desc) == SUCCESS


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_append_checks_what_run_checks(abi: Abi, graph: Graph, op: Op) -> None:
    """NULL, misaligned and overlapping operands are refused at append; the graph stays as it was."""
    memory = example(op, op.layouts())
    before = {name: held.bytes.tobytes() for name, held in memory.items()}
    desc = abi.created(op, op.layouts())
    legal = pointers(memory)
    for name in op.operands:
        for wrong, status in ((None, NULL_POINTER), (memory[name].pointer + 1, BAD_PARAM)):
            abi.lib.clear_message()
            assert graph.append(op, desc, {**legal, name: wrong}) == status
            assert op.name in abi.lib.message()
    for name in op.inputs:
        # One element along: never the exact alias that some operators allow.
        shifted = {**legal, name: memory[op.outputs[0]].pointer + 4}
        assert graph.append(op, desc, shifted) == BAD_PARAM, name
    assert graph.run() == SUCCESS, abi.lib.message()
    assert {name: held.bytes.tobytes() for name, held in memory.items()} == before, (
        "a refused call was appended"
    )
    assert abi.destroy(op, desc) == SUCCESS


def test_append_of_what_is_no_operator(abi: Abi, graph: Graph) -> None:
    op = OPS["add"]
    memory = example(op, op.layouts())
    dead = abi.created(op, op.layouts())
    assert abi.destroy(op, dead) == SUCCESS
    tensor = abi.tensor(Layout((2, 3)))
    append = abi.lib.infiniopGraphAppend
    operands = (ctypes.c_void_p * 3)(*pointers(memory).values())
    for wrong in (dead, tensor, abi.handle, graph.graph):
        assert append(graph.graph, wrong, None, 0, operands, 3, 1.0, 0.0) == BAD_PARAM
    assert graph.run() == SUCCESS
    assert abi.lib.infiniopDestroyTensorDescriptor(tensor) == SUCCESS


def test_a_graph_of_many_calls(abi: Abi, graph: Graph) -> None:
    """A running sum: 1,000 calls in their order, and again from where they ended."""
    op = OPS["add"]
    layouts = {name: Layout((3,), None, "i64") for name in op.operands}
    total, one = Memory(layouts["c"], 0), Memory(layouts["b"], 1)
    desc = abi.created(op, layouts)
    where: dict[str, int | None] = {"c": total.pointer, "a": total.pointer, "b": one.pointer}
    for _ in range(1000):
        assert graph.append(op, desc, where) == SUCCESS, abi.lib.message()
    assert abi.destroy(op, desc) == SUCCESS
    for wanted in (1000, 2000):
        assert graph.run() == SUCCESS
        assert total.array.tolist() == [wanted] * 3


def test_the_cpu_runs_op_by_op(graph: Graph) -> None:
    """Which a graph knows before its first run and says no differently after it."""
    text = ctypes.c_char_p()
    for _ in range(2):
        assert graph.lib.infiniopGraphDescribe(graph.graph, ctypes.byref(text)) == SUCCESS
        assert text.value == b"op by op: the device has no capture"
        assert graph.run() == SUCCESS


def test_operands_without_elements(abi: Abi, graph: Graph) -> None:
    op = OPS["add"]
    desc = abi.created(op, dict.fromkeys(op.operands, Layout((0, 3))))
    assert graph.append(op, desc, dict.fromkeys(op.operands)) == SUCCESS, abi.lib.message()
    assert graph.run() == SUCCESS
    assert abi.destroy(op, desc) == SUCCESS


def test_a_dead_graph(abi: Abi) -> None:
    dead = Graph(abi)
    dead.close()
    assert abi.lib.infiniopGraphRun(dead.graph, None) == BAD_PARAM
    assert abi.lib.infiniopDestroyGraph(dead.graph) == BAD_PARAM
    assert abi.lib.infiniopDestroyGraph(None) == SUCCESS
