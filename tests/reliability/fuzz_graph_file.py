"""Fuzzes the loader of graph files: a file is refused with a sentence, or loaded; then it runs and is saved.

    python tests/reliability/fuzz_graph_file.py [--seconds 60] [--seed 0]

Mutants know the container: they change the values of a header, give it parts of another one, or damage bytes,
and the CRCs are right except where they are what is damaged. A mutant that is refused with a new sentence, or
loaded with calls that are new, is mutated further. The same seed tries the same files.
"""

from __future__ import annotations

import argparse
import copy
import faulthandler
import json
import random
import re
import resource
import struct
import tempfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import infiniop_py as ip
from infiniop_py._graph_file import PREAMBLE
from infiniop_py.dtypes import all_dtypes

MOST_BYTES = 1 << 20  # that a graph may need
MOST_FLOPS = 1 << 22  # that are run
SECONDS = 60  # after which a file hangs


class File(NamedTuple):
    """A header, as an object or as its text, and the data behind it."""

    header: Any
    data: bytes

    def packed(self) -> bytes:
        text = self.header
        if not isinstance(text, bytes):
            text = json.dumps(text, ensure_ascii=False, separators=(",", ":")).encode(
                "utf-8", "surrogatepass"
            )
        start = PREAMBLE.pack(b"INFGRAPH", 1, zlib.crc32(text), len(text)) + text
        return start.ljust(-(-len(start) // 64) * 64, b"\0") + self.data


def unpacked(raw: bytes) -> File:
    end = PREAMBLE.size + PREAMBLE.unpack_from(raw)[3]
    return File(json.loads(raw[PREAMBLE.size : end]), raw[-(-end // 64) * 64 :])


def seeds(folder: Path) -> Iterator[File]:
    """Files of graphs of every operator, kind of buffer and kind of layout."""
    x, w, one = (np.arange(n, dtype="f4").reshape(-1, 2) for n in (4, 4, 2))
    half = np.arange(6, dtype="f2")

    def network(g: ip.Graph) -> None:
        hidden = ip.gemm_add(x, w, np.ones((2, 2), "f4"), 0.5)
        y, r = ip.add_rms_norm(ip.mul(hidden, hidden), x, one[0], 1e-3)
        g.name(x=x, y=y, r=r)

    def views(g: ip.Graph) -> None:
        y = ip.rearrange(half.reshape(2, 3).T)
        ip.add_(half[::-2], half[::-2], np.broadcast_to(half[:1], 3))
        g.name(y=y, empty=np.zeros((0, 3), "i2"))

    def batches(g: ip.Graph) -> None:
        out = ip.empty((3, 2, 2, 2), "F32").permute(1, 0, 2, 3)
        ip.gemm(ip.from_numpy(x).as_strided((2, 3, 2, 2), (0, 0, 2, 1)), w, out=out)
        ip.gemm_mul(out[0], w, np.broadcast_to(one, (3, 2, 2)))

    def in_place(g: ip.Graph) -> None:
        c = np.ones((2, 2), "f4")
        g.name(c=c)
        ip.gemm_(c, x, w, -1.0, 2.0)
        ip.add_(c, c, c)

    for program in (network, views, batches, in_place):
        with ip.Graph() as graph:
            program(graph)
        path = folder / "seed"
        graph.save(path, contents=["x"] if program is network else None)
        yield unpacked(path.read_bytes())


# ---- mutants -----------------------------------------------------------------------------------------------

_NASTY = (
    *(0, 1, -1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 32, 33, 64, -4, -8, 1 << 31, 1 << 32, 1 << 62, -1 << 62),
    *((1 << 63) - 1, 1 - (1 << 63), 1 << 64, 0.5, True, None, "", "F64", "I8", "F16", "BYTE", "C128", "BF16"),
    *("gemm", "gemm_mul", "add", "mul", "rearrange", "add_rms_norm", "scratch", "zero", "constant", "\ud800"),
    *([], {}, [0], [1, 2], [2, 2], [8, 4], [4, 4], [0, 2], [0, 0], [-4, 4], [1 << 62, 4], [1 << 62, 1 << 62]),
    *([1] * 17, [2] * 16, [1] * 65, [2, 2, 2], "7ff0000000000000", "7ff8000000000001", "8000000000000000"),
)

_PIECES = (*(bytes([one]) for one in b'0-"{}[],:e.\0\xff'), b"\\u0000", b"[" * 99)


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) in a header."""
    found = []
    for key in range(len(value)) if isinstance(value, list) else list(value):
        found.append((value, key))
        if isinstance(value[key], (list, dict)):
            found += _places(value[key])
    return found


def _change(rng: random.Random, header: Any, other: Any) -> None:
    places = _places(header)
    if not places:
        return
    if rng.random() < 0.5:  # sizes and offsets: most others are refused for one reason
        places = [one for one in places if type(one[0][one[1]]) is int] or places
    where, key = rng.choice(places)
    kind = rng.randrange(10)
    if kind == 0:
        del where[key]
    elif kind == 1:
        where[key] = copy.deepcopy(rng.choice(places)[0])
    elif kind == 2 and isinstance(where, list):
        where.insert(rng.randrange(len(where) + 1), copy.deepcopy(where[key]))
    elif kind == 3 and isinstance(where, dict):
        where[rng.choice(["", "x" * 256, "y\n", key + "'", "kind"])] = copy.deepcopy(where[key])
    elif kind < 6 and (parts := _places(other)):  # of another file, from a like place
        alike = [one for one in parts if one[1] == key] or parts
        container, at = rng.choice(alike)
        where[key] = copy.deepcopy(container[at])
    elif type(where[key]) is int and kind < 9:
        where[key] += rng.choice([-8, -4, -2, -1, 1, 2, 4, 8])
    else:
        where[key] = copy.deepcopy(rng.choice(_NASTY))


def mutant(rng: random.Random, loaded: list[File], refused: list[File]) -> tuple[File, bytes]:
    """A file and its bytes, which are not those of the file where they were damaged at last."""
    corpus = loaded if not refused or rng.random() < 0.8 else refused
    header, data = copy.deepcopy(rng.choice(corpus))
    if isinstance(header, bytes):
        header = bytearray(header)
    else:
        if rng.random() < 0.1:
            dtype = rng.choice(["F16", "BF16", "F64", "I8", "I32", "U16", "C128"])
            header = json.loads(json.dumps(header).replace('"F32"', f'"{dtype}"'))
        for _ in range(rng.choice((0, 1, 1, 1, 2, 3, 5))):
            other = rng.choice(corpus).header
            _change(rng, header, {} if isinstance(other, bytes) else other)
        if rng.random() < 0.05:
            header = bytearray(File(header, b"").packed()[PREAMBLE.size :].rstrip(b"\0"))
    if isinstance(header, bytearray):
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(header) + 1)
            header[at : at + rng.randrange(3)] = rng.choice(_PIECES)
        header = bytes(header)
    if rng.random() < 0.1:
        data = rng.choice([data[:-64], data + bytes(64), data[: rng.randrange(len(data) + 1)]])
    file = File(header, data)
    raw = bytearray(file.packed())
    if rng.random() < 0.1:
        kind = rng.randrange(4)
        at = rng.randrange(len(raw))
        if kind == 0:
            raw[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del raw[at:]
        elif kind == 2:
            raw[at:at] = bytes(rng.randrange(1, 65))
        else:
            struct.pack_into(
                "<Q", raw, 16, rng.choice([0, 1, 1 << 24, (1 << 24) + 1, 1 << 62, (1 << 64) - 1])
            )
    return file, bytes(raw)


# ---- what must be true of each -----------------------------------------------------------------------------


_ITEMSIZES = {dtype.name: dtype.itemsize for dtype in all_dtypes()}


def need_inside(header: Any) -> None:
    """All that a file names lies in its buffers, which would else be memory of somebody else."""
    for view in (*header["arrays"].values(), *(one for node in header["nodes"] for one in node["operands"])):
        if 0 in view["shape"]:
            continue
        steps = [(size - 1) * stride for size, stride in zip(view["shape"], view["strides"])]
        low = view["offset"] + sum(step for step in steps if step < 0)
        end = view["offset"] + sum(step for step in steps if step > 0) + _ITEMSIZES[view["dtype"]]
        assert 0 <= low < end <= header["buffers"][view["buffer"]]["bytes"], view


def check(path: Path, raw: bytes) -> str:
    """Load a file and say what came of it, without its numbers: two files of one kind say the same."""
    path.write_bytes(raw)
    try:
        graph = ip.Graph.load(path, max_bytes=MOST_BYTES)
    except ip.GraphError as error:
        start = f"Graph.load: {path}: "
        assert str(error).startswith(start) and len(str(error)) < 4000
        return re.sub(r"[-\d,]+|(['\"]).*?\1", "#", str(error).removeprefix(start))[:120]
    need_inside(unpacked(raw).header)
    again, third = path.with_name("again"), path.with_name("third")
    graph.save(again, contents=list(graph.tensors))
    loaded = ip.Graph.load(again, max_bytes=1 << 30)
    loaded.save(third)
    assert third.read_bytes() == again.read_bytes(), "saved again, it is another file"
    if sum(node.flops for node in graph._nodes) < MOST_FLOPS:
        graph.run()
        loaded.run()
        for name, tensor in graph.tensors.items():
            assert tensor.numpy().tobytes() == loaded.tensors[name].numpy().tobytes(), (
                f"{name} has other bits"
            )
    assert not ip.is_graph_recording()
    return "loaded " + " ".join(sorted({_kind(node) for node in graph._nodes}))


def _kind(node: Any) -> str:
    """A call by what its operands are like."""
    kinds = []
    for dtype, shape, strides in node.layouts:
        signs = {"-" if step < 0 else "0" if step == 0 else "" for step in strides}
        kinds.append(f"{dtype.name}{len(shape)}{''.join(sorted(signs))}{'e' if 0 in shape else ''}")
    return f"{node.name}({','.join(kinds)})"


def fuzz(
    seed: int, folder: Path, most: float = float("inf"), seconds: float = float("inf")
) -> tuple[int, int, int]:
    """How many files were tried, of how many kinds, and how many of them were loaded."""
    rng, path = random.Random(seed), folder / "mutant"
    corpora: tuple[list[File], list[File]] = ([], list(seeds(folder)))  # refused, loaded
    kinds = {check(path, file.packed()) for file in corpora[True]}
    assert all(kind.startswith("loaded ") for kind in kinds), kinds
    tried = loaded = 0
    end = time.monotonic() + seconds
    while tried < most and time.monotonic() < end:
        file, raw = mutant(rng, corpora[True], corpora[False])
        faulthandler.dump_traceback_later(SECONDS, exit=True)
        try:
            kind = check(path, raw)
        except BaseException:
            print(f"after {tried} files of seed {seed}:\n{raw!r}")
            raise
        finally:
            faulthandler.cancel_dump_traceback_later()
        good = kind.startswith("loaded ")
        tried += 1
        loaded += good
        if kind not in kinds:
            kinds.add(kind)
            corpora[good].append(file)
    return tried, len(kinds), loaded


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    # Memory that a file asks for beyond what it may is not there: MemoryError, which nothing here expects.
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), -1))
    with tempfile.TemporaryDirectory() as name, np.errstate(all="ignore"):
        tried, kinds, loaded = fuzz(arguments.seed, Path(name), seconds=arguments.seconds)
    print(f"graph files: {tried:,} in {arguments.seconds:.0f} s, {loaded:,} loaded, {kinds} kinds of answers")


if __name__ == "__main__":
    main()
