"""Graphs in files: what is loaded computes what was saved, bit for bit, and a hostile file is refused with a
sentence."""

from __future__ import annotations

import copy
import errno
import json
import os
import random
import re
import stat
import struct
import sys
import threading
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import children
import numpy as np
import pytest

import infiniop_py as ip
from infiniop_py import _graph_file, graph
from infiniop_py._conformance.cases import DTYPES
from infiniop_py._graph_file import MOST_HEADER, MOST_RUNS, PREAMBLE
from infiniop_py.graph_operator import OPERATORS

Array = np.ndarray[Any, Any]
Header = dict[str, Any]

FLOATS = ("f16", "bf16", "f32", "f64")
INTEGERS = ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64")


def ones(*shape: int) -> Array:
    return np.ones(shape, "f4")


def bits(array: Any) -> bytes:
    return np.asarray(array).tobytes()


def unpacked(path: Path) -> tuple[Header, bytes]:
    """The header of a file, and its data."""
    raw = path.read_bytes()
    _, _, _, size = PREAMBLE.unpack_from(raw)
    end = PREAMBLE.size + size
    return json.loads(raw[PREAMBLE.size : end]), raw[-(-end // 64) * 64 :]


def packed(header: Header | bytes, data: bytes = b"") -> bytes:
    """A file with such a header, whose own CRC-32 is right."""
    text = header if isinstance(header, bytes) else json.dumps(header, ensure_ascii=False).encode()
    start = PREAMBLE.pack(b"INFGRAPH", 1, zlib.crc32(text), len(text)) + text
    return start.ljust(-(-len(start) // 64) * 64, b"\0") + data


def loaded_and_both_run(g: ip.Graph, path: Path) -> ip.Graph:
    g.save(path)
    loaded = ip.Graph.load(path)
    loaded.run()
    g.run()
    return loaded


# ---- round trips -------------------------------------------------------------------------------------------


class _Program:
    """A random program on views of a few arrays, some named, some constants, some of the graph alone."""

    def __init__(self, seed: int, dtype: str) -> None:
        self.rng, self.dtype = random.Random(seed), dtype
        self.n = self.rng.randrange(1, 6)
        self.inputs = {name: self.memory() for name in ("x", "y", "z")}
        self.constants = [self.memory() for _ in range(3)]
        self.named: dict[str, Any] = {}
        with ip.Graph(fuse=self.rng.choice(["none", "exact"])) as self.graph:
            pool = [*self.inputs.values(), *self.constants]
            while len(self.graph) < 6:
                try:
                    result = self.call(*(self.view(self.rng.choice(pool)) for _ in range(4)))
                except (ip.ParamError, ip.StrideError):  # overlaps, and norms of rows with gaps
                    continue
                if result is not None:
                    pool.append(result)
                    if self.rng.random() < 0.3:
                        self.named[f"result{len(self.named)}"] = result
            del pool, result
        self.graph.name(**self.inputs, **self.named)

    def memory(self) -> ip.Tensor:
        values = [self.rng.randrange(-3, 4) for _ in range(self.n * self.n + 2)]
        start = self.rng.randrange(3)
        array = np.array(values).astype(DTYPES[self.dtype])
        return ip.from_numpy(array[start : start + self.n**2].reshape(self.n, self.n))

    def view(self, x: ip.Tensor) -> ip.Tensor:
        kind = self.rng.randrange(6)
        if kind == 0:
            return x.T
        if kind == 1:
            return x[::-1]
        if kind == 2 and self.n > 1:  # a row for all, or a column
            return x[:1].as_strided((self.n, self.n), (0, x.strides[1]))
        return x

    def call(self, c: Any, a: Any, b: Any, d: Any) -> Any:
        """A call of a random operator; its result if that is a new one."""
        alpha, beta = self.rng.choice([1.0, -0.5]), self.rng.choice([0.0, 1.0, 0.25])
        calls: dict[str, Callable[[], Any]] = {
            "add": lambda: ip.add(a, b),
            "mul": lambda: ip.mul(a, b),
            "rearrange": lambda: ip.rearrange(a),
            "add_": lambda: ip.add_(c, a, b),
            "mul_": lambda: ip.mul_(c, a, b),
            "rearrange_": lambda: ip.rearrange_(c, a),
        }
        if self.dtype in FLOATS:
            calls |= {
                "gemm": lambda: ip.gemm(a, b, alpha),
                "gemm_add": lambda: ip.gemm_add(a, b, d, alpha),
                "gemm_mul": lambda: ip.gemm_mul(a, b, d, alpha),
                "addend": lambda: ip.gemm(a, b, alpha, beta, c=d),
                "norm": lambda: ip.add_rms_norm(a, b, d[0], 1e-3)[self.rng.randrange(2)],
                "batch": lambda: self.batch(a, b),
                "gemm_": lambda: ip.gemm_(c, a, b, alpha, beta),
                "norm_": lambda: ip.add_rms_norm_(c, d, a, b, a[0]),
            }
        kind = self.rng.choice(list(calls))
        result = calls[kind]()
        return None if kind.endswith("_") else result

    def batch(self, a: Any, b: Any) -> Any:
        """A product that needs more than one native call."""
        wide = a.as_strided((2, 3, self.n, self.n), (0, 0, *a.strides))
        out = ip.empty((3, 2, self.n, self.n), self.dtype.upper()).permute(1, 0, 2, 3)
        return ip.gemm(wide, b, out=out)[1, 0]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
def test_what_is_loaded_computes_what_was_saved(tmp_path: Path, dtype: str) -> None:
    for seed in range(60 if dtype in FLOATS else 15):
        program = _Program(seed, dtype)
        path = tmp_path / f"{seed}.graph"
        program.graph.save(path)
        loaded = ip.Graph.load(path, fuse=random.Random(seed).choice(["none", "exact"]))
        assert len(loaded) == len(program.graph)
        known = program.graph.tensors
        for name in program.inputs:
            loaded.tensors[name].copy_(known[name])
        for _ in range(2):
            program.graph.run()
            loaded.run()
            for name, tensor in known.items():
                if name in program.inputs or name in program.named:
                    assert bits(loaded.tensors[name]) == bits(tensor), (seed, name)
        again = tmp_path / "again.graph"
        loaded.save(again)
        third = ip.Graph.load(again)
        for name, tensor in loaded.tensors.items():
            third.tensors[name].copy_(tensor)
        loaded.run()
        third.run()
        for name, tensor in loaded.tensors.items():
            assert bits(third.tensors[name]) == bits(tensor), (seed, name)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_is_moved(tmp_path: Path, dtype: str) -> None:
    raw = np.random.default_rng(1).integers(0, 2, 6 * DTYPES[dtype].itemsize, np.uint8)
    constant = raw.view(DTYPES[dtype]).reshape(2, 3)
    with ip.Graph() as g:
        y = ip.rearrange(constant.T)
    loaded = loaded_and_both_run(g, tmp_path / "g")
    assert bits(loaded.tensors["output0"]) == bits(y) == bits(np.ascontiguousarray(constant.T))


def test_scalars_keep_their_bits(tmp_path: Path) -> None:
    strange = struct.unpack(">d", bytes.fromhex("7ff8000000000123"))[0]
    values = [0.1, -0.0, 1e-320, float("inf"), strange]
    c, a = np.zeros((1, 1)), np.ones((1, 1))
    with ip.Graph() as g:
        for value in values:
            ip.gemm_(c, a, a, value, -value)
        _ = ip.add_rms_norm(a, a, np.ones(1), 0.1)
    g.save(tmp_path / "g")
    loaded = ip.Graph.load(tmp_path / "g")
    for node, value in zip(loaded._nodes, values):
        assert struct.pack("<2d", *node.scalars) == struct.pack("<2d", value, -value)
    assert loaded._nodes[-1].params == (0.1,) and loaded._nodes[-1].scalars == ()


def test_every_operator_names_its_scalars() -> None:
    x = ones(2, 2)
    calls = (
        ip.gemm.plan(x, x + 1, x + 1),
        ip.gemm_add.plan(x, x + 1, x + 1, x + 2),
        ip.gemm_mul.plan(x, x + 1, x + 1, x + 2),
        ip.add_rms_norm.plan(x, x + 1, x + 2, x + 2, x[0] + 1),
    )
    assert {call.name for call in calls} | {"add", "mul", "rearrange"} == OPERATORS.keys()
    for call in calls:
        assert OPERATORS[call.native.name] is type(call)
        assert len(call.param_names) == len(call.params) and len(call.scalar_names) == len(call.scalars)


def test_aliasing_stays(tmp_path: Path) -> None:
    """Views that overlap, and what is written through one and read through another."""
    memory = np.arange(12, dtype="f4")
    with ip.Graph() as g:
        g.name(memory=memory, tail=memory[6:])
        ip.add_(memory[:6], memory[:6], memory[6:])
        ip.mul_(memory[3:9:2], memory[3:9:2], memory[2:8:2])
        y = ip.add(memory[::-1], memory)
    g.save(tmp_path / "g")
    loaded = ip.Graph.load(tmp_path / "g")
    assert set(loaded.tensors) == {"memory", "tail", "output0"}
    loaded.tensors["memory"].copy_(memory)
    assert loaded.tensors["tail"].tolist() == [6, 7, 8, 9, 10, 11]
    loaded.run()
    g.run()
    assert bits(loaded.tensors["output0"]) == bits(y) and bits(loaded.tensors["memory"]) == bits(memory)


def test_no_elements(tmp_path: Path) -> None:
    x, w, none = ones(2, 0), ones(0, 3), ones(0, 4)
    with ip.Graph() as g:
        g.name(x=x, none=none)
        y = ip.gemm(x, w)
        z = ip.add(none, none)
    g.save(tmp_path / "g")
    loaded = ip.Graph.load(tmp_path / "g")
    loaded.tensors["output0"].numpy()[:] = 9
    loaded.run()
    assert loaded.tensors["output0"].shape == y.shape and not loaded.tensors["output0"].numpy().any()
    assert loaded.tensors["none"].shape == z.shape
    with ip.Graph() as empty:
        pass
    empty.save(tmp_path / "empty")
    loaded = ip.Graph.load(tmp_path / "empty")
    loaded.run()
    assert len(loaded) == 0 and not loaded.tensors


def test_another_process_computes_the_same(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    x, w, scale = (rng.standard_normal(shape).astype("f4") for shape in ((4, 8), (8, 8), (8,)))
    with ip.Graph() as g:
        g.name(x=x)
        y, residual = ip.add_rms_norm(ip.gemm(x, w), x, scale)
        g.name(y=y)
    g.save(tmp_path / "g")
    g.run()
    code = f"""
import numpy as np, infiniop_py as ip
g = ip.Graph.load({str(tmp_path / "g")!r})
g.tensors["x"].numpy()[:] = np.frombuffer(bytes.fromhex({bits(x).hex()!r}), "f4").reshape(4, 8)
g.run()
print(g.tensors["y"].numpy().tobytes().hex(), g.tensors["output0"].numpy().tobytes().hex())
"""
    assert children.run(code).split() == [bits(y).hex(), bits(residual).hex()]


# ---- what is saved -----------------------------------------------------------------------------------------


def recorded() -> tuple[ip.Graph, dict[str, Array]]:
    """y = (x @ w) * s + x, with y += of a state; x and w named."""
    arrays = {"x": ones(2, 3), "w": 2 * ones(3, 3), "s": 3 * ones(3), "total": 4 * ones(2, 3)}
    with ip.Graph() as g:
        g.name(x=arrays["x"], w=arrays["w"])
        y = ip.add(ip.mul(ip.gemm(arrays["x"], arrays["w"]), arrays["s"]), arrays["x"])
        ip.add_(arrays["total"], arrays["total"], y)
    arrays["y"] = y
    return g, arrays


def test_named_inputs_are_empty_and_the_rest_is_constant(tmp_path: Path) -> None:
    g, arrays = recorded()
    g.save(tmp_path / "g")
    arrays["s"][:] = 99
    loaded = ip.Graph.load(tmp_path / "g")
    assert set(loaded.tensors) == {"x", "w", "output0", "output1"}
    assert not loaded.tensors["x"].numpy().any() and not loaded.tensors["w"].numpy().any()
    assert not loaded.tensors["output0"].numpy().any()
    assert loaded.tensors["output1"].tolist() == [[4] * 3] * 2  # state
    loaded.bind(x=ones(2, 3), w=2 * ones(3, 3))
    loaded.run()
    assert loaded.tensors["output0"].tolist() == [[19] * 3] * 2
    assert loaded.tensors["output1"].tolist() == [[23] * 3] * 2


def test_contents_of_named_arrays_are_saved_if_asked_for(tmp_path: Path) -> None:
    g, arrays = recorded()
    with pytest.raises(ip.OperandError, match="contents has 'q': no array has that name"):
        g.save(tmp_path / "g", contents=["w", "q"])
    g.save(tmp_path / "g", contents=["w"])
    for _ in range(2):  # what came with a file goes into the next one
        loaded = ip.Graph.load(tmp_path / "g")
        assert loaded.tensors["w"].tolist() == arrays["w"].tolist() and not loaded.tensors["x"].numpy().any()
        assert loaded.tensors["output1"].tolist() == [[4] * 3] * 2
        loaded.save(tmp_path / "g")
    loaded.save(tmp_path / "g", contents=[])
    loaded = ip.Graph.load(tmp_path / "g")
    assert not loaded.tensors["w"].numpy().any() and not loaded.tensors["output1"].numpy().any()
    loaded.tensors["x"].numpy()[:] = 1
    loaded.tensors["w"].numpy()[:] = 2
    loaded.run()
    assert loaded.tensors["output0"].tolist() == [[19] * 3] * 2


def test_nothing_but_what_is_read_gets_into_a_file(tmp_path: Path) -> None:
    """Neither the gaps between the elements of a constant, nor what was in an output."""
    secret = b"the rest of the array"
    raw = np.frombuffer(bytearray(secret * 40), "u1")[: 30 * 28]
    table = raw.view("f4").reshape(30, 7)
    table[:, 2] = 5
    with ip.Graph() as g:
        y = ip.add(table[:, 2], table[::-1, 2])
    y.view("u1")[: len(secret)] = np.frombuffer(secret, "u1")
    g.save(tmp_path / "g")
    content = (tmp_path / "g").read_bytes()
    assert secret[:8] not in content and content.count(struct.pack("<f", 5)) == 30
    loaded = ip.Graph.load(tmp_path / "g")
    loaded.run()
    assert loaded.tensors["output0"].tolist() == [10] * 30


def test_views_of_named_arrays_have_no_contents(tmp_path: Path) -> None:
    x = ones(4, 4)
    with ip.Graph() as g:
        g.name(x=x)
        _ = ip.add(x.T, x[::-1]), ip.add(x[2:], x[:2]), ip.mul(x[:, 1], x[:, 3])
    g.save(tmp_path / "g")
    header, data = unpacked(tmp_path / "g")
    assert [buffer["kind"] for buffer in header["buffers"]] == ["zero"] * 4 and not data


def test_a_named_part_does_not_take_the_rest_with_it(tmp_path: Path) -> None:
    slab = np.arange(8, dtype="f4").reshape(2, 4)
    with ip.Graph() as g:
        g.name(x=slab[0])
        y = ip.add(slab, slab)
    loaded = loaded_and_both_run(g, tmp_path / "g")
    assert bits(loaded.tensors["output0"]) == bits(y)


def test_neighbours_are_buffers_of_their_own(tmp_path: Path) -> None:
    slab = np.arange(8, dtype="f4").reshape(2, 4)
    with ip.Graph() as g:
        g.name(x=slab[0])
        _ = ip.add(slab[0], slab[1])
    g.save(tmp_path / "g")
    header, data = unpacked(tmp_path / "g")
    assert [buffer["kind"] for buffer in header["buffers"]] == ["zero", "zero", "constant"]
    assert data == slab[1].tobytes().ljust(64, b"\0")


def test_outputs_without_names_get_some(tmp_path: Path) -> None:
    x, out = ones(4), np.zeros((3, 4), "f4")
    with ip.Graph() as g:
        g.name(x=x, output1=x)
        ip.add_(out[0], x, x)
        ip.mul_(out[0, :2], out[0, :2], x[:2])  # a part of the one before
        ip.rearrange_(out[1:], np.broadcast_to(x, (2, 4)))
        hidden = ip.add(x, x)
        y = ip.mul(hidden, hidden)
        del hidden
    g.save(tmp_path / "g")
    loaded = ip.Graph.load(tmp_path / "g")
    names = {name: tensor.shape for name, tensor in loaded.tensors.items()}
    assert names == {"x": (4,), "output1": (4,), "output0": (4,), "output2": (2, 4), "output3": (4,)}
    loaded.tensors["x"].numpy()[:] = 3
    loaded.run()
    assert loaded.tensors["output3"].tolist() == [36] * 4 and y.shape == (4,)


def test_one_program_makes_one_file(tmp_path: Path) -> None:
    files = set()
    memory = [np.empty(2000, "f4") for _ in range(5)]  # so that addresses differ
    for i in range(5):
        g, arrays = recorded()
        g.save(tmp_path / "g")
        files.add((tmp_path / "g").read_bytes())
        memory.append(np.empty(100 * i, "f4"))
        memory.append(arrays["x"])
    assert len(files) == 1


def test_a_bound_graph_is_saved_as_it_is_bound(tmp_path: Path) -> None:
    g, arrays = recorded()
    g.bind(arrays["s"], 5 * ones(3))
    g.bind(w=7 * ones(3, 3))
    g.save(tmp_path / "g", contents=["w"])
    loaded = ip.Graph.load(tmp_path / "g")
    loaded.tensors["x"].numpy()[:] = 1
    loaded.run()
    assert loaded.tensors["output0"].tolist() == [[106] * 3] * 2


def test_a_loaded_graph_plans_its_memory(tmp_path: Path) -> None:
    x = ones(1000)
    with ip.Graph(fuse="none") as g:
        y = x
        for _ in range(20):
            y = ip.add(y, x)
    g.name(x=x, y=y)
    g.save(tmp_path / "g")
    loaded = ip.Graph.load(tmp_path / "g", fuse="none")
    assert loaded.memory_report() == g.memory_report()
    held = np.zeros(1000, "f4")
    loaded.bind(x=2 * x, y=held)
    loaded.run()
    assert held.tolist() == [42] * 1000 and loaded.tensors["y"] is not y
    with pytest.raises(ip.ParamError, match="fuse is 'quick'"):
        ip.Graph.load(tmp_path / "g", fuse="quick")


def test_large_arrays_and_addresses_between_alignments(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(_graph_file, "_CHUNK", 1000)
    rng = np.random.default_rng(0)
    memory = rng.standard_normal(5001)
    for array in (memory[1:], memory[:0:-1], memory[1::2], memory[1:].reshape(50, 100).T):
        with ip.Graph() as g:
            y = ip.add(array, array)
        loaded = loaded_and_both_run(g, tmp_path / "g")
        assert bits(loaded.tensors["output0"]) == bits(y)


# ---- what is not saved -------------------------------------------------------------------------------------


def test_a_graph_that_is_not_recorded_is_not_saved(tmp_path: Path) -> None:
    g = ip.Graph()
    with pytest.raises(ip.GraphError, match=r"Graph.save: the graph is new"):
        g.save(tmp_path / "g")
    with g:
        with pytest.raises(ip.GraphError, match=r"Graph.save: the graph is recording"):
            g.save(tmp_path / "g")
        with pytest.raises(ip.GraphError, match=r"Graph.load: not while a graph is being recorded"):
            ip.Graph.load(tmp_path / "g")
    assert not os.listdir(tmp_path)


def test_implementations_of_ones_own_are_not_saved_and_not_passed_over(tmp_path: Path, own: Any) -> None:
    x = ones(4)
    with ip.Graph() as native:
        _ = ip.mul(x, x)
    native.save(tmp_path / "g")
    own(ip.Mul, lambda c, a, b: None)
    with ip.Graph() as g:
        _ = ip.mul(ip.add(x, x), x)
    with pytest.raises(
        ip.GraphError, match=r"own: call 1, mul of result F32\[4\].*an implementation of its own"
    ):
        g.save(tmp_path / "own")
    with pytest.raises(ip.GraphError, match=r"nodes\[0\]: mul has an implementation of its own"):
        ip.Graph.load(tmp_path / "g")
    assert os.listdir(tmp_path) == ["g"]


_ELSEWHERE = """
import sys, infiniop_py as ip
x = ip.zeros(4, device="qy:0")
with ip.Graph() as g:
    y = ip.add(x, x)
for named in (False, True):
    if named:
        with ip.Graph() as g:
            g.name(x=x)
    try:
        g.save(sys.argv[1] if len(sys.argv) > 1 else "g")
    except ip.GraphError as error:
        print(error)
"""


def test_other_devices_are_not_saved(tmp_path: Path) -> None:
    library = children.build_fake_backend(tmp_path)
    said = children.run(_ELSEWHERE, cwd=tmp_path, INFINIOP_BACKEND_PATH=str(library)).splitlines()
    assert said == [
        "Graph.save: g: call 0, add of result F32[4], a F32[4], b F32[4] on QY:0, is not on CPU:0: graphs of "
        "other devices are not saved",
        "Graph.save: g: array 'x' is on QY:0, needs to be on CPU:0",
    ]
    assert not (tmp_path / "g").exists()


@pytest.mark.parametrize("name", ["", 'a"b', "a\\b", "a\nb", "x" * 256, "\ud800"])
def test_names_that_need_escapes_are_refused(tmp_path: Path, name: str) -> None:
    x = ones(2)
    with ip.Graph() as g:
        g.name(**{name: x})
        _ = ip.add(x, x)
    with pytest.raises(
        ip.GraphError, match=r"Graph.save: .*: arrays: the name .* needs to be 1 to 255 printable"
    ):
        g.save(tmp_path / "g")


def test_arrays_that_could_not_be_loaded_are_refused(tmp_path: Path) -> None:
    packed_rows = np.zeros(3, [("a", "u1"), ("b", "f4")])["b"]
    x = ones(2)
    for strange, message in (
        (packed_rows, "needs multiples of the alignment"),
        (ip.zeros([1] * 65), "an array has 65 dimensions, needs at most 64"),
    ):
        with ip.Graph() as g:
            g.name(x=strange)
            _ = ip.add(x, x)
        with pytest.raises(ip.GraphError, match=message):
            g.save(tmp_path / "g")


@pytest.mark.parametrize("name", ["self", "a b", "größe[0].w", "{}", "x" * 255])
def test_names_of_any_other_kind_are_kept(tmp_path: Path, name: str) -> None:
    x = ones(2)
    with ip.Graph() as g:
        _ = ip.add(x, x)
    g._names[name] = g._names.get(name) or _named(x)
    g.save(tmp_path / "g")
    assert ip.Graph.load(tmp_path / "g").tensors[name].shape == (2,)


def _named(x: Array) -> Any:
    with ip.Graph() as g:
        g.name(x=x)
    return g._names["x"]


def test_limits_of_the_file(tmp_path: Path, monkeypatch: Any) -> None:
    g, _ = recorded()
    g.save(tmp_path / "g")
    size = PREAMBLE.unpack_from((tmp_path / "g").read_bytes())[3]
    monkeypatch.setattr(_graph_file, "MOST_HEADER", size)
    g.save(tmp_path / "g")
    ip.Graph.load(tmp_path / "g")
    monkeypatch.setattr(_graph_file, "MOST_HEADER", size - 1)
    with pytest.raises(ip.GraphError, match=f"4 calls make a header of {size:,} bytes"):
        g.save(tmp_path / "g")
    with pytest.raises(ip.GraphError, match=f"the header has {size:,} bytes, of which there may be"):
        ip.Graph.load(tmp_path / "g")
    monkeypatch.setattr(_graph_file, "MOST_HEADER", size)
    monkeypatch.setattr(_graph_file, "MOST_RUNS", 3)
    with pytest.raises(ip.GraphError, match="the calls need more than 3 native ones"):
        g.save(tmp_path / "g")
    with pytest.raises(ip.GraphError, match=r"nodes\[3\]: with it the calls need more than 3 native ones"):
        ip.Graph.load(tmp_path / "g")
    monkeypatch.setattr(_graph_file, "MOST_RUNS", 4)
    g.save(tmp_path / "g")
    ip.Graph.load(tmp_path / "g")


def test_big_endian_machines_say_so(tmp_path: Path, monkeypatch: Any) -> None:
    g, _ = recorded()
    monkeypatch.setattr(sys, "byteorder", "big")
    for call in (g.save, ip.Graph.load):
        with pytest.raises(ip.UnsupportedError, match="files are little-endian"):
            call(tmp_path / "g")


# ---- paths, disks, threads ---------------------------------------------------------------------------------


def test_paths(tmp_path: Path) -> None:
    g, _ = recorded()
    g.save(os.fsencode(tmp_path / "bytes"))
    ip.Graph.load(str(tmp_path / "bytes"))
    os.mkfifo(tmp_path / "pipe")
    for action in (g.save, ip.Graph.load):
        with pytest.raises(FileNotFoundError) as caught:
            action(tmp_path / "missing" / "g")
        assert caught.value.filename == str(tmp_path / "missing" / "g")
        with pytest.raises(IsADirectoryError) as caught:
            action(str(tmp_path))
        assert caught.value.filename == str(tmp_path)
        with pytest.raises(ip.GraphError, match=r"pipe:? .*is no regular file"):
            action(tmp_path / "pipe")
        with pytest.raises(ip.OperandError, match=r"path is 3\.5, needs a str or a path object"):
            action(3.5)
        with pytest.raises(ip.ParamError, match="null character"):
            action("a\0b")
    with pytest.raises(ip.OperandError, match="max_bytes is '1', needs an int"):
        ip.Graph.load(tmp_path / "bytes", max_bytes="1")
    assert sorted(os.listdir(tmp_path)) == ["bytes", "pipe"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write everything")
def test_no_permission(tmp_path: Path) -> None:
    g, _ = recorded()
    g.save(tmp_path / "g")
    (tmp_path / "g").chmod(0)
    with pytest.raises(PermissionError):
        ip.Graph.load(tmp_path / "g")
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(PermissionError):
            g.save(tmp_path / "other")
    finally:
        tmp_path.chmod(0o700)


@pytest.mark.parametrize("step", ["fsync", "replace", "urandom"])
def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: Any, step: str) -> None:
    g, _ = recorded()
    target = tmp_path / "g"
    target.write_bytes(b"old")

    def fails(*_: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, step, fails)
        with pytest.raises(OSError, match="No space left"):
            g.save(target)
    assert target.read_bytes() == b"old" and os.listdir(tmp_path) == ["g"]
    g.save(target)
    g.run()
    assert len(ip.Graph.load(target)) == 4 and os.listdir(tmp_path) == ["g"]


def test_links_and_modes(tmp_path: Path) -> None:
    g, _ = recorded()
    (tmp_path / "folder").mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "folder" / "g")
    before = os.umask(0o027)
    try:
        g.save(link)
    finally:
        os.umask(before)
    assert link.is_symlink() and (tmp_path / "folder" / "g").stat().st_mode & 0o777 == 0o640
    ip.Graph.load(link)


def test_saved_between_runs_of_another_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state is never saved while a run is halfway through it."""
    total, x = np.zeros(1 << 16, "f4"), np.ones(1 << 16, "f4")
    with ip.Graph(fuse="none") as g:
        ip.add_(total[: 1 << 15], total[: 1 << 15], x[: 1 << 15])
        ip.add_(total[1 << 15 :], total[1 << 15 :], x[1 << 15 :])
    g.name(total=total)
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            with suppress(ip.GraphError):  # while it is saved
                g.run()
            time.sleep(1e-3)

    thread = threading.Thread(target=work)
    thread.start()
    saved = 0
    try:
        deadline = time.monotonic() + 20
        while saved < 10 and time.monotonic() < deadline:
            try:
                g.save(tmp_path / "g", contents=["total"])
            except ip.GraphError as error:
                assert "another thread is running this graph" in str(error)
                time.sleep(1e-4)
                continue
            saved += 1
            values = ip.Graph.load(tmp_path / "g").tensors["total"].numpy()
            assert values.min() == values.max()
    finally:
        stop.set()
        thread.join()
    assert saved
    monkeypatch.setitem(g._users, graph._generation, [])
    with pytest.raises(ip.GraphError, match=r"Graph.save: another thread is running this graph"):
        g.save(tmp_path / "g")
    monkeypatch.undo()
    g.save(tmp_path / "g")
    g.run()


# ---- hostile files -----------------------------------------------------------------------------------------


def small() -> tuple[Header, bytes]:
    """c = a @ b; d = c + a in place, with c scratch, and the data of b."""

    def at(buffer: int, offset: int = 0, shape: Any = (2, 2), strides: Any = (8, 4)) -> Header:
        return {
            "buffer": buffer,
            "offset": offset,
            "dtype": "F32",
            "shape": list(shape),
            "strides": list(strides),
        }

    data = np.arange(1, 5, dtype="<f4").tobytes()
    header = {
        "buffers": [
            {"kind": "zero", "bytes": 32},
            {"kind": "constant", "bytes": 16, "crc32": f"{zlib.crc32(data):08x}"},
            {"kind": "scratch", "bytes": 16},
        ],
        "arrays": {"a": at(0), "d": at(0, 16)},
        "nodes": [
            {
                "op": "gemm",
                "operands": [at(2), at(0), at(1)],
                "scalars": {"alpha": "3ff0000000000000", "beta": "0" * 16},
            },
            {"op": "add", "operands": [at(0, 16), at(2), at(0)], "scalars": {}},
        ],
    }
    return header, data.ljust(64, b"\0")


def refusal(path: Path, content: bytes, **options: Any) -> str:
    path.write_bytes(content)
    with pytest.raises(ip.GraphError) as caught:
        ip.Graph.load(path, **options)
    message = str(caught.value)
    assert message.startswith(f"Graph.load: {path}: ") and not ip.is_graph_recording()
    return message


def test_the_small_file_is_loaded(tmp_path: Path) -> None:
    """Else everything below would be refused for one reason."""
    (tmp_path / "g").write_bytes(packed(*small()))
    g = ip.Graph.load(tmp_path / "g")
    g.tensors["a"].numpy()[:] = np.eye(2)
    g.run()
    assert g.tensors["d"].tolist() == [[2, 2], [3, 5]]


def put(*keys: Any) -> Callable[[Header], None]:
    """Put the last of them where the others lead."""
    *keys, last, value = keys  # type: ignore[assignment]

    def change(header: Header) -> None:
        for key in keys:
            header = header[key]
        if value is ...:
            del header[last]
        elif last == "+":
            header.append(value)
        else:
            header[last] = value

    return change


def both(*changes: Callable[[Header], None]) -> Callable[[Header], None]:
    def change(header: Header) -> None:
        for one in changes:
            one(header)

    return change


OPERAND = ("nodes", 0, "operands", 1)
BIG = 1 << 62
BROKEN: dict[str, tuple[Callable[[Header], None], str]] = {
    # the header itself
    "no nodes": (put("nodes", ...), r"the header has the keys \['arrays', 'buffers'\], needs"),
    "another key": (put("__metadata__", {}), "the header has the keys"),
    "nodes object": (put("nodes", {}), r"nodes is \{\}, needs a list"),
    "buffers string": (put("buffers", "x"), "buffers is 'x', needs a list"),
    "arrays list": (put("arrays", []), r"arrays is \[\], needs an object"),
    # buffers
    "buffer number": (put("buffers", 0, 7), r"buffers\[0\] is 7, needs an object"),
    "buffer kind": (put("buffers", 0, "kind", "code"), r"buffers\[0\].kind is 'code', needs one of constant"),
    "buffer no kind": (put("buffers", 0, "kind", ...), r"buffers\[0\].kind is None, needs a string"),
    "buffer kind list": (put("buffers", 0, "kind", []), r"buffers\[0\].kind is \[\], needs a string"),
    "buffer bytes text": (put("buffers", 0, "bytes", "8"), r"buffers\[0\].bytes is '8', needs an integer"),
    "buffer bytes true": (put("buffers", 0, "bytes", True), r"bytes is True, needs an integer"),
    "buffer bytes null": (put("buffers", 0, "bytes", None), r"bytes is None, needs an integer"),
    "buffer bytes 0": (put("buffers", 0, "bytes", 0), r"bytes is 0, needs 1 to"),
    "buffer bytes negative": (put("buffers", 0, "bytes", -8), r"bytes is -8, needs 1 to"),
    "buffer bytes huge": (put("buffers", 0, "bytes", BIG), r"buffers: they have .* no address space"),
    "buffer bytes large": (put("buffers", 0, "bytes", 1 << 40), r"but max_bytes is 4,294,967,296"),
    "scratch bytes large": (put("buffers", 2, "bytes", 1 << 40), r"but max_bytes is 4,294,967,296"),
    "buffer bytes 2**63": (put("buffers", 0, "bytes", 1 << 63), "needs integers between"),
    "buffer bytes small": (
        put("buffers", 0, "bytes", 31),
        r"uses bytes 16 to 32 of buffers\[0\], which has 31",
    ),
    "buffer with data": (put("buffers", 0, "crc32", "00000000"), r"buffers\[0\] has the keys"),
    "crc missing": (put("buffers", 1, "crc32", ...), r"buffers\[1\] has the keys"),
    "crc wrong": (
        put("buffers", 1, "crc32", "00000000"),
        r"buffers\[1\]: its data have the CRC-32 .* damaged",
    ),
    "crc short": (put("buffers", 1, "crc32", "0"), r"buffers\[1\].crc32 is '0', needs 8 hexadecimal digits"),
    "crc upper": (put("buffers", 1, "crc32", "ABCDEF01"), "needs 8 hexadecimal digits"),
    "crc newline": (put("buffers", 1, "crc32", "0000000\n"), "the header has a backslash"),
    "crc number": (put("buffers", 1, "crc32", 0), "crc32 is 0, needs a string"),
    "constant large": (
        put("buffers", 1, "bytes", 65),
        r"but its header describes .* of which 65 are constants",
    ),
    "constant huge": (put("buffers", 1, "bytes", BIG), r"but its header describes"),
    "one more constant": (
        put("buffers", "+", {"kind": "constant", "bytes": 1, "crc32": "0" * 8}),
        r"but its header describes",
    ),
    "constant gone": (put("buffers", 1, {"kind": "zero", "bytes": 16}), r"but its header describes"),
    "no buffers": (put("buffers", []), r"but its header describes"),
    # arrays
    "array null": (put("arrays", "a", None), r"arrays\['a'\] is None, needs an object"),
    "array scratch": (put("arrays", "a", "buffer", 2), r"arrays\['a'\].buffer is 2, which is scratch"),
    "array no name": (put("arrays", "", {}), "the name '' needs to be"),
    "array long name": (put("arrays", "x" * 256, {}), "the name 'xxx.* needs to be 1 to 255"),
    "array outside": (put("arrays", "d", "offset", 20), r"arrays\['d'\] uses bytes 20 to 36"),
    # operands
    "operand list": (put(*OPERAND, []), r"nodes\[0\]: gemm: a is \[\], needs an object"),
    "operand empty": (put(*OPERAND, {}), r"nodes\[0\]: gemm: a has the keys \[\], needs"),
    "operand no buffer": (put(*OPERAND, "buffer", ...), "gemm: a has the keys"),
    "operand no offset": (put(*OPERAND, "offset", ...), "gemm: a has the keys"),
    "operand no dtype": (put(*OPERAND, "dtype", ...), "gemm: a has the keys"),
    "operand more": (put(*OPERAND, "name", "x"), "gemm: a has the keys"),
    "buffer of operand": (put(*OPERAND, "buffer", 3), "gemm: a.buffer is 3, needs 0 to 2"),
    "buffer negative": (put(*OPERAND, "buffer", -1), "gemm: a.buffer is -1, needs 0 to 2"),
    "buffer null": (put(*OPERAND, "buffer", None), "gemm: a.buffer is None, needs an integer"),
    "offset false": (put(*OPERAND, "offset", False), "gemm: a.offset is False, needs an integer"),
    "offset negative": (put(*OPERAND, "offset", -4), "gemm: a.offset is -4, needs 0 to 31"),
    "offset huge": (put(*OPERAND, "offset", BIG), "gemm: a.offset is"),
    "offset over": (
        put(*OPERAND, "offset", 20),
        r"gemm: a uses bytes 20 to 36 of buffers\[0\], which has 32",
    ),
    "offset odd": (put(*OPERAND, "offset", 2), "gemm: a has offset 2 .* multiples of the alignment 4 of F32"),
    "strides odd": (put(*OPERAND, "strides", [8, 2]), r"strides \[8, 2\], needs multiples of the alignment"),
    "strides over": (put(*OPERAND, "strides", [28, 4]), r"gemm: a uses bytes 0 to 36"),
    "strides under": (put(*OPERAND, "strides", [-8, 4]), r"gemm: a uses bytes -8 to 8"),
    "strides 2**62": (put(*OPERAND, "strides", [BIG, 4]), r"gemm: a uses bytes"),
    "strides text": (put(*OPERAND, "strides", "88"), "gemm: a.strides is '88', needs a list"),
    "strides nested": (put(*OPERAND, "strides", [[8], 4]), r"gemm: a.strides is \[8\], needs an integer"),
    "strides few": (put(*OPERAND, "strides", [8]), "gemm: a has 2 sizes and 1 strides"),
    "shape null": (put(*OPERAND, "shape", None), "gemm: a.shape is None, needs a list"),
    "shape true": (put(*OPERAND, "shape", [True, 2]), "gemm: a.shape is True, needs an integer"),
    "shape negative": (put(*OPERAND, "shape", [-1, 2]), "gemm: a.shape is -1, needs 0 to"),
    "shape over": (put(*OPERAND, "shape", [5, 2]), "gemm: a uses bytes 0 to 40"),
    "shape huge": (
        both(put(*OPERAND, "shape", [BIG, 2]), put(*OPERAND, "strides", [0, 4])),
        r"gemm: a: shape is .* make more than 2\*\*63 - 1 bytes",
    ),
    "shape other": (put(*OPERAND, "shape", [2, 1]), "gemm: inner dimensions differ"),
    "rank": (both(put(*OPERAND, "shape", [1] * 65), put(*OPERAND, "strides", [4] * 65)), "at most 64"),
    "rank 17": (
        both(
            *(put("nodes", 1, "operands", i, "shape", [1] * 17) for i in range(3)),
            *(put("nodes", 1, "operands", i, "strides", [4] * 17) for i in range(3)),
        ),
        r"nodes\[1\]: add: a has 17 dimensions, needs 0 to 16",
    ),
    "no elements placed": (put(*OPERAND, "shape", [0, 2]), "gemm: a, which has no elements, has the keys"),
    "dtype": (put(*OPERAND, "dtype", "float32"), "gemm: a.dtype is 'float32', needs one of BYTE"),
    "dtype list": (put(*OPERAND, "dtype", []), r"gemm: a.dtype is \[\], needs a string"),
    "dtype mixed": (put(*OPERAND, "dtype", "I32"), "gemm: dtypes differ"),
    "dtype not taken": (
        both(*(put("nodes", 0, "operands", i, "dtype", "I32") for i in range(3))),
        r"nodes\[0\]: gemm: ",
    ),
    # nodes
    "node text": (put("nodes", 0, "gemm"), r"nodes\[0\]: it is 'gemm', needs an object"),
    "node more": (put("nodes", 0, "module", "os"), r"nodes\[0\]: it has the keys"),
    "node no scalars": (put("nodes", 1, "scalars", ...), r"nodes\[1\]: it has the keys"),
    "op unknown": (put("nodes", 0, "op", "eval"), r"nodes\[0\]: op is 'eval', needs one of"),
    "op null": (put("nodes", 0, "op", None), r"nodes\[0\]: op is None, needs a string"),
    "op other": (put("nodes", 1, "op", "rearrange"), r"nodes\[1\]: operands has 3 of them, needs 2: y, x"),
    "operands few": (put("nodes", 0, "operands", 2, ...), r"nodes\[0\]: operands has 2 of them, needs 3"),
    "operands object": (put("nodes", 0, "operands", {}), r"nodes\[0\]: operands is \{\}, needs a list"),
    "scalars missing": (put("nodes", 0, "scalars", {}), r"nodes\[0\]: scalars has the keys \[\], needs"),
    "scalars more": (put("nodes", 1, "scalars", "alpha", "0" * 16), r"nodes\[1\]: scalars has the keys"),
    "scalars list": (put("nodes", 1, "scalars", []), r"nodes\[1\]: scalars is \[\], needs an object"),
    "scalar number": (put("nodes", 0, "scalars", "alpha", 1), "scalars.alpha is 1, needs a string"),
    "scalar short": (put("nodes", 0, "scalars", "alpha", "3ff"), "scalars.alpha is '3ff', needs 16 hex"),
    "scalar sign": (put("nodes", 0, "scalars", "beta", "-" + "0" * 15), "scalars.beta is '-000"),
    "scalar digits of others": (put("nodes", 0, "scalars", "beta", "٠" * 16), "scalars.beta is "),
    "scratch read": (
        put("nodes", 0, "operands", 1, "buffer", 2),
        r"nodes\[0\]: gemm: a reads buffers\[2\], scratch that no node has written",
    ),
    "scratch read as addend": (
        put("nodes", 0, "scalars", "beta", "3ff0000000000000"),
        r"nodes\[0\]: gemm: c reads buffers\[2\], scratch that no node has written",
    ),
    "scratch written in part": (
        both(put("buffers", 2, "bytes", 20), put("nodes", 0, "operands", 0, "strides", [8, 4])),
        r"gemm: c is the first to write buffers\[2\], scratch, and must write all of its 20 bytes",
    ),
    "order": (lambda header: header["nodes"].reverse(), r"nodes\[0\]: add: a reads buffers\[2\], scratch"),
    "output overlaps itself": (
        put("nodes", 1, "operands", 0, "strides", [0, 4]),
        r"nodes\[1\]: add: c with shape \(2, 2\) has strides .* overlap each other",
    ),
    "output overlaps itself otherwise": (
        both(
            put("buffers", 0, "bytes", 64),
            put("arrays", {}),
            *(put("nodes", 1, "operands", i, "shape", [3, 2]) for i in range(3)),
            put("nodes", 1, "operands", 0, "strides", [8, 8]),
            put("nodes", 1, "operands", 1, "strides", [0, 0]),
            put("nodes", 1, "operands", 2, "strides", [0, 0]),
        ),
        r"nodes\[1\]: add: elements of output c overlap each other",
    ),
    "output overlaps input": (
        put("nodes", 1, "operands", 0, "offset", 8),
        r"nodes\[1\]: add: c .*overlaps b",
    ),
}


@pytest.mark.parametrize("row", BROKEN)
def test_broken_headers(tmp_path: Path, row: str) -> None:
    change, pattern = BROKEN[row]
    header, data = small()
    change(header)
    message = refusal(tmp_path / "g", packed(header, data))
    assert re.search(pattern, message), message
    assert len(message) < 600


HEADER = json.dumps(small()[0]).encode()
TEXTS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "the header is not JSON"),
    "null": (b"null", "the header is None, needs an object"),
    "not JSON": (HEADER[:-1] + b",}", "the header is not JSON"),
    "brackets": (HEADER[:-1], "quotes or brackets that do not match"),
    "quote": (HEADER.replace(b'"add"', b'"add'), "quotes or brackets that do not match|not JSON"),
    "twice": (HEADER.replace(b'"op": "add"', b'"op": "add", "op": "mul"'), "the key 'op' twice in one"),
    "array twice": (HEADER.replace(b'"d": {', b'"a": {'), "the key 'a' twice in one object"),
    "float": (HEADER.replace(b'"bytes": 32', b'"bytes": 32.0'), "the header has the number '32.0'"),
    "exponent": (HEADER.replace(b'"bytes": 32', b'"bytes": 1e99'), "the header has the number '1e99'"),
    "NaN": (HEADER.replace(b'"bytes": 32', b'"bytes": NaN'), "the header has the number 'NaN'"),
    "Infinity": (HEADER.replace(b'"bytes": 32', b'"bytes": -Infinity'), "the header has the number '-Inf"),
    "digits": (HEADER.replace(b'"bytes": 32', b'"bytes": ' + b"9" * 100_000), "has the number '999"),
    "2**63": (HEADER.replace(b'"bytes": 32', b'"bytes": 9223372036854775808'), "needs integers between"),
    "escape": (HEADER.replace(b'"add"', rb'"\u0061dd"'), "the header has a backslash"),
    "surrogate": (HEADER.replace(b'"d":', b'"\xed\xa0\x80":'), "the header is not UTF-8"),
    "control": (HEADER.replace(b'"d":', b'"\x01":'), "the header is not JSON"),
    "not printable": (HEADER.replace(b'"d":', "\"\u202ed\":".encode()), "needs to be 1 to 255 printable"),
    "mark": (b"\xef\xbb\xbf" + HEADER, "the header is not JSON"),
    "two": (HEADER + HEADER, "the header is not JSON"),
    "deep lists": (b"[    " * 1_000_000 + b"    ]" * 1_000_000, "nested too deeply"),
    "deep objects": (b'{"aaaaa":' * 500_000 + b"0" + b"}" * 500_000, "nested too deeply"),
    "deep both": (b'[{"aaaaaaaaa":' * 100_000 + b"0" + b"}]" * 100_000, "nested too deeply"),
    "many lists": (b'{"nodes":[' + b"[]," * 1_000_000 + b"[]]}", "has 2,000,006 brackets in 3,000,014 bytes"),
    "many keys": (
        b'{"arrays":{' + b",".join(b'"%d":0' % i for i in [*range(200_000), 199_999]) + b"}}",
        "the key '199999' twice in one object",
    ),
    "UTF-16": (HEADER.decode().encode("utf-16"), "not UTF-8|not JSON|do not match"),
}  # fmt: skip


@pytest.mark.parametrize("row", TEXTS)
def test_broken_texts(tmp_path: Path, row: str) -> None:
    text, pattern = TEXTS[row]
    message = refusal(tmp_path / "g", packed(text, small()[1]))
    assert re.search(pattern, message), message
    assert len(message) < 600


def test_the_bytes_around_the_header(tmp_path: Path) -> None:
    path, good = tmp_path / "g", packed(*small())
    size = len(good)
    start = PREAMBLE.size
    end = start + len(HEADER)
    assert "has 0 bytes, needs 24" in refusal(path, b"")
    assert "has 23 bytes, needs 24" in refusal(path, good[:23])
    assert "begins with b'INFGRAPh', needs b'INFGRAPH'" in refusal(path, b"INFGRAPh" + good[8:])
    assert "has version 2, needs 1" in refusal(path, good[:8] + b"\2" + good[9:])
    assert "the header has the CRC-32" in refusal(path, good[:12] + b"\0\0\0\0" + good[16:])
    for nbytes in (MOST_HEADER + 1, 1 << 63, (1 << 64) - 1):
        message = refusal(path, good[:16] + nbytes.to_bytes(8, "little") + good[24:])
        assert f"the header has {nbytes:,} bytes, of which there may be" in message
    assert "its header ends after" in refusal(path, good[:16] + size.to_bytes(8, "little") + good[24:])
    assert "behind the header are not zero" in refusal(path, good[:end] + b"\1" + good[end + 1 :])
    assert "behind the data of buffers[1] are not zero" in refusal(path, good[:-1] + b"\1")
    assert "its data have the CRC-32" in refusal(path, good[:-64] + b"\1" + good[-63:])
    for wrong in (good + b"\0", good + bytes(64), good[:-1], good[:-64]):
        assert f"the file has {len(wrong)} bytes, but its header describes {size}" in refusal(
            path, wrong
        ).replace(",", "").replace("bytes but", "bytes, but")


def test_dimensions_up_to_the_limit(tmp_path: Path) -> None:
    x = ip.ones([2] + [1] * 63)
    with ip.Graph() as g:
        g.name(x=x)
    g.save(tmp_path / "g")
    assert ip.Graph.load(tmp_path / "g").tensors["x"].shape == x.shape


def test_memory_is_limited(tmp_path: Path) -> None:
    """Exactly: zeros, scratch and the largest workspace, but no constants, whose bytes the file has."""
    path = tmp_path / "g"
    x, w = ones(3, 4), ones(4, 4)[:, ::-1].T
    with ip.Graph(fuse="none") as g:
        g.name(x=x)
        y = ip.mul(ip.gemm(x, w), x)
        g.name(y=y)
    g.save(path)
    workspace = g._nodes[0].plan.workspace_size
    assert workspace
    needed = 3 * x.nbytes + workspace
    ip.Graph.load(path, max_bytes=needed)
    message = refusal(path, path.read_bytes(), max_bytes=needed - 1)
    assert (
        f"needs {needed:,} bytes of memory beyond its constants, but max_bytes is {needed - 1:,}" in message
    )
    header, data = small()
    header["buffers"] += [{"kind": kind, "bytes": 1 << 31} for kind in ("zero", "scratch")]
    assert "but max_bytes is 4,294,967,296" in refusal(path, packed(header, data))


def test_no_memory_is_taken_for_a_file_that_is_refused(tmp_path: Path, monkeypatch: Any) -> None:
    def zeros(*_: Any) -> Any:
        raise MemoryError

    header, data = small()
    broken = copy.deepcopy(header)
    broken["nodes"][1]["operands"][0]["offset"] = 8
    monkeypatch.setattr(np, "zeros", zeros)
    assert "overlaps" in refusal(tmp_path / "g", packed(broken, data))
    (tmp_path / "g").write_bytes(packed(header, data))
    with pytest.raises(ip.OutOfMemoryError, match=r"Graph.load: .*g: cannot allocate a buffer of 32 bytes"):
        ip.Graph.load(tmp_path / "g")


def product(lead: list[int], strides: list[int], m: int = 1) -> Header:
    """A product with such batch dimensions of c, all of whose other operands repeat."""
    nbytes = sum((size - 1) * step for size, step in zip(lead, strides)) + 4
    rows = {"shape": [*lead, m, 1], "strides": [*strides, 4, 4], "dtype": "F32"}
    wide = {**rows, "strides": [0] * len(lead) + [4, 4], "buffer": 1, "offset": 0}
    b = {**wide, "shape": [1, 1], "strides": [4, 4]}
    c = {**rows, "buffer": 0, "offset": 0}
    if not m:
        c, wide = rows, {**rows}
    return {
        "buffers": [{"kind": "zero", "bytes": nbytes}, {"kind": "zero", "bytes": 4}],
        "arrays": {},
        "nodes": [{"op": "gemm", "operands": [c, wide, b], "scalars": {"alpha": "0" * 16, "beta": "0" * 16}}],
    }


def test_a_few_bytes_do_not_make_many_calls(tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "g"
    # No two of these dimensions can be one, since there are gaps between them.
    header = product([260, 260, 260], [261 * 261 * 16, 261 * 8, 4])
    assert "gemm needs more than 65,536 native calls" in refusal(path, packed(header), max_bytes=1 << 40)
    header = product([150, 150, 150], [151 * 151 * 16, 151 * 8, 4])
    header["nodes"] *= 3
    message = refusal(path, packed(header), max_bytes=1 << 40)
    assert f"nodes[2]: with it the calls need more than {MOST_RUNS:,} native ones" in message
    header = product([2, 3, 4], [16 * 7, 5 * 4, 4])
    path.write_bytes(packed(header))
    assert ip.Graph.load(path)._nodes[0].runs == 6
    with monkeypatch.context() as patched:
        patched.setattr(_graph_file, "MOST_RUNS", 6)
        ip.Graph.load(path)
        patched.setattr(_graph_file, "MOST_RUNS", 5)
        refusal(path, packed(header))
    for lead in ([BIG, BIG], [BIG, 2], [1 << 31, 1 << 31], [1 << 40, 1 << 21], [BIG]):
        for step in (0, 8, BIG):
            header = product(lead, [step] * len(lead), m=0)
            header["buffers"][0]["bytes"] = 4
            refusal(path, packed(header))


# ---- fuzz --------------------------------------------------------------------------------------------------


def test_every_flipped_bit_and_every_truncation_is_refused(tmp_path: Path) -> None:
    path, good = tmp_path / "g", packed(*small())
    rng = random.Random(5)
    for i in range(len(good)):
        bad = bytearray(good)
        bad[i] ^= 1 << rng.randrange(8)
        refusal(path, bytes(bad))
        refusal(path, good[:i])


def test_who_may_read_a_file_may_read_the_next_one(tmp_path: Path) -> None:
    path, x = tmp_path / "g", np.ones(2, "f4")
    with ip.Graph() as graph:
        ip.add(x, x)
    for mode in (0o600, 0o640):
        graph.save(path)
        path.chmod(mode)
        graph.save(path)
        assert stat.S_IMODE(path.stat().st_mode) == mode
