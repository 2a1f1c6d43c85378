"""Graph files that are damaged or made to harm; started by test_graph_files.py.

    python _graph_file_child.py <folder> <stride>

In a process of little memory, which hears whatever Python tells of what is imported, executed or unpickled
(sys.addaudithook). A file is refused by a GraphError that names it, or loaded and run, where what it says is
harmless. Prints the number of files.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import resource
import socket
import sys
import zipfile
import zlib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

import infiniop_py as ip
from infiniop_py._graph_file import PREAMBLE

MEMORY = 160 << 20  # bytes that loading may take; headers have up to 16 MiB
VALUES = (0x00, 0x01, 0x20, 0x22, 0x2C, 0x2D, 0x30, 0x39, 0x5B, 0x5D, 0x7B, 0x7D, 0x7F, 0x80, 0xFF)
#: What reading a file has no business with.
HARMFUL = (
    *("exec", "compile", "import", "pickle.", "marshal.", "ctypes.", "socket.", "subprocess."),
    *("os.system", "os.exec", "os.fork", "os.remove", "os.rename", "os.mkdir"),
)


class Touched:
    """What a pickle would do that is loaded."""

    def __reduce__(self) -> Any:
        return exec, ("import os; os.environ['TOUCHED'] = '1'",)


def small(folder: Path) -> tuple[bytes, dict[str, bytes]]:
    """A graph in a file, and what it computes."""
    w = np.arange(1, 5, dtype="<f4").reshape(2, 2)
    x = np.ones((2, 2), "f4")
    with ip.Graph() as graph:
        graph.name(x=x)
        y = ip.add(ip.gemm(x, w), x)
        graph.name(y=y)
    graph.save(folder / "small", contents=["x"])
    graph.run()
    return (folder / "small").read_bytes(), {"x": x.tobytes(), "y": y.tobytes()}


def repaired(content: bytearray, end: int) -> bytes:
    """With a CRC that is right, so that what is behind the check gets to see the damage."""
    header = bytes(content[PREAMBLE.size : end])
    content[12:16] = zlib.crc32(header).to_bytes(4, "little")
    return bytes(content)


def damaged(good: bytes, stride: int) -> Iterator[bytes]:
    """Every truncation, and every byte with each of several values, with and without the header's own CRC."""
    end = PREAMBLE.size + PREAMBLE.unpack_from(good)[3]
    for size in range(0, len(good), stride):
        yield good[:size]
    for at in range(0, len(good), stride):
        for value in VALUES:
            bad = bytearray(good)
            bad[at] = value
            yield bytes(bad)
            if PREAMBLE.size <= at < end:
                yield repaired(bad, end)


def packed(header: bytes, data: bytes = b"") -> bytes:
    start = PREAMBLE.pack(b"INFGRAPH", 1, zlib.crc32(header), len(header)) + header
    return start.ljust(-(-len(start) // 64) * 64, b"\0") + data


def hostile(good: bytes) -> Iterator[bytes]:
    """Other formats, and headers that ask for a lot."""
    evil = pickle.dumps(Touched())
    yield evil
    yield packed(evil)
    array = io.BytesIO()
    np.save(array, np.array([Touched()], object), allow_pickle=True)
    yield array.getvalue()
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("header.json", bytes(32 << 20))
        archive.writestr("../../escape", b"x")
    yield bomb.getvalue()
    yield packed(bomb.getvalue())
    yield zlib.compress(good)
    yield b"#!/bin/sh\ntouch touched\n"
    yield b"\x7fELF" + good
    end = PREAMBLE.size + PREAMBLE.unpack_from(good)[3]
    header, data = json.loads(good[PREAMBLE.size : end]), good[-(-end // 64) * 64 :]
    for n in (1 << 20, 1 << 31, 1 << 40, (1 << 63) - 1):
        for buffer in range(len(header["buffers"])):
            changed = json.loads(json.dumps(header))
            changed["buffers"][buffer]["bytes"] = n
            yield packed(json.dumps(changed).encode(), data)
        for what in ("shape", "strides", "offset"):
            changed = json.loads(json.dumps(header))
            changed["nodes"][0]["operands"][1][what] = n if what == "offset" else [n, n]
            yield packed(json.dumps(changed).encode(), data)
        changed = json.loads(json.dumps(header))
        none = {"dtype": "F32", "shape": [0, n], "strides": [n, n]}
        changed["nodes"] = [{"op": "add", "operands": [none] * 3, "scalars": {}}]
        yield packed(json.dumps(changed).encode(), data)
    for name in ("../../x", "/etc/passwd", "__class__", "x\0y", "${HOME}", "%s%n", "\u202e"):
        changed = json.loads(json.dumps(header))
        changed["arrays"][name] = changed["arrays"].pop("x")
        yield packed(json.dumps(changed, ensure_ascii=False).encode(), data)
    for op in ("__import__", "os.system", "eval", "Gemm", "gemm\n", "GEMM"):
        changed = json.loads(json.dumps(header))
        changed["nodes"][0]["op"] = op
        yield packed(json.dumps(changed, ensure_ascii=False).encode(), data)
    yield packed(b"[" * (1 << 24))
    yield packed(b'{"a":' * (1 << 21))
    buffer = b'{"kind":"scratch","bytes":1},'
    yield packed(b'{"buffers":[' + buffer * (1 << 18) + b'{}],"arrays":{},"nodes":[]}')
    yield packed(b'{"buffers":[],"arrays":{},"nodes":[' + b"0," * (1 << 22) + b"0]}")
    yield packed(b" " * (1 << 24))
    yield packed(b'"' + b"x" * ((1 << 24) - 2) + b'"')


heard: list[str] = []
listening = False


def hear(event: str, _: object) -> None:
    if listening and event.startswith(HARMFUL):
        heard.append(event)


def limit_memory() -> None:
    with open("/proc/self/statm") as numbers:
        now = int(numbers.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY, resource.RLIM_INFINITY))


def no_files(folder: Path) -> int:
    """What a path may lead to besides; nobody waits for what never comes."""
    loop, pipe, door, link = (folder / name for name in ("loop", "pipe", "socket", "link"))
    loop.symlink_to(loop.name)
    os.mkfifo(pipe)
    link.symlink_to(pipe.name)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(door))
    paths = (loop, pipe, link, door, folder, Path("/dev/zero"), Path("/proc/self/mem"), Path("/x" * 5000))
    for path in paths:
        try:
            ip.Graph.load(path)
        except (ip.GraphError, OSError) as error:
            assert str(path) in str(error), error
        else:
            raise AssertionError(path)
    for path in (loop, pipe, door, link):
        path.unlink()
    return len(paths)


def main(folder: Path, stride: int) -> None:
    global listening
    good, wanted = small(folder)
    path = folder / "file"
    path.write_bytes(good)
    ip.Graph.load(path)  # imports what it needs
    sys.addaudithook(hear)
    limit_memory()
    n = loaded = 0
    for content in chain([good], hostile(good), damaged(good, stride)):
        path.write_bytes(content)
        n += 1
        listening = True
        try:
            graph = ip.Graph.load(path, max_bytes=1 << 20)
        except ip.GraphError as error:
            assert str(error).startswith(f"Graph.load: {path}: ") and len(str(error)) < 700, str(error)
        else:
            loaded += 1
            graph.run()
            for tensor in graph.tensors.values():
                tensor.numpy().tobytes()
            if content == good:
                assert {name: one.numpy().tobytes() for name, one in graph.tensors.items()} == wanted
        listening = False
        assert not heard, (heard, content[:200])
    n += no_files(folder)
    listening = True
    exec("pass")
    assert heard, "nothing is heard"
    assert "TOUCHED" not in os.environ and sorted(os.listdir(folder)) == ["file", "small"]
    assert 1 < loaded < n
    print(n)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
