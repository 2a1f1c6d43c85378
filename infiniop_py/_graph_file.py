"""The file that ``Graph.save`` writes and ``Graph.load`` reads. Nothing in it is ever executed.

All numbers are little-endian, all sizes and strides count bytes, except `shape`, which counts elements::

    0        8 bytes  "INFGRAPH"
    8        u32      version: 1
    12       u32      CRC-32 of the header (that of zlib, gzip and PNG)
    16       u64      n, bytes of the header, at most 2**24
    24       n bytes  header, JSON in UTF-8
             zeros    up to a multiple of 64
             data     of each buffer of kind "constant", in their order, each followed by zeros up to a
                      multiple of 64, after the last of which the file ends

The header is an object of three members::

    {"buffers": [{"kind": "zero", "bytes": 24},
                 {"kind": "constant", "bytes": 36, "crc32": "1c291ca3"},
                 {"kind": "scratch", "bytes": 24}],
     "arrays":  {"x": {"buffer": 0, "offset": 0, "dtype": "F32", "shape": [2, 3], "strides": [12, 4]}},
     "nodes":   [{"op": "gemm", "operands": [OPERAND, OPERAND, OPERAND],
                  "scalars": {"alpha": "3ff0000000000000", "beta": "0000000000000000"}}]}

*buffers* are pieces of memory that share no byte. That of a "constant" begins as what the file holds, its
CRC-32 is written in 8 hexadecimal digits; that of a "zero" begins as zeros; "scratch" exists in the graph
alone, and the first node that touches it writes all of it and reads nothing of it. A buffer starts at an
address that is a multiple of 64.

*arrays* are what has a name: 1 to 255 printable characters (those of ``str.isprintable``) without ``"`` and
backslash. They lie in buffers that are not scratch.

*nodes* are the calls in the order in which they were recorded, before fusion. `op` is the name in
``infiniop.h`` in lower case ("gemm", "gemm_add", "gemm_mul", "add", "mul",
"add_rms_norm", "rearrange"), `operands` are in the order
there, outputs first, and `scalars` are the 16 hexadecimal digits of an IEEE binary64, the most significant
first, so that each has its bits.

An array or OPERAND is a view of a buffer: `offset` is where its element (0, ..., 0) is. All its elements lie
in the buffer, at multiples of the element type's alignment. One without elements has neither `buffer` nor
`offset`. There are at most 64 dimensions; the names of element types are those of ``DType``.

The header has no other members, no number that is not an integer within 64 bits with sign, and no backslash.
What a later version adds has another version number.
"""

from __future__ import annotations

import json
import os
import re
import stat
import struct
import sys
import zlib
from bisect import bisect_right, insort
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from errno import EISDIR
from io import FileIO
from operator import index
from reprlib import Repr
from typing import Any, NamedTuple

import numpy as np

from ._files import as_path
from ._layout import Layout, count, extent, interned, need_steps, row_major
from ._native import buffer as memory_at
from ._native import pointer as as_pointer
from ._native_op import NATIVE, refuse
from ._program import Node, Range, buffer_at, covers, range_of, virtual
from .device import CPU, Device
from .dtypes import DType, all_dtypes
from .errors import (
    GraphError,
    InfiniopError,
    OperandError,
    OutOfMemoryError,
    UnsupportedError,
    shown,
)
from .graph_operator import OPERATORS
from .tensor import Tensor, borrowed

MAGIC = b"INFGRAPH"
VERSION = 1
ALIGNMENT = 64  # of buffers in memory and in the file
PREAMBLE = struct.Struct("<8sIIQ")
MOST_HEADER = 1 << 24
#: Native calls of all nodes: a few bytes of header may ask for more than any memory holds.
MOST_RUNS = 1 << 16

_ELEMENTS = 16  # bytes, that of the largest element type
_INT64_MAX = (1 << 63) - 1
_MOST_DIMS = 64
_MOST_ADDRESSES = 1 << 47
_CHUNK = 1 << 26
_KINDS = ("constant", "zero", "scratch")
_DTYPES = {dtype.name: dtype for dtype in all_dtypes()}
_VIEW = {"dtype", "shape", "strides"}
_PLACED = _VIEW | {"buffer", "offset"}


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _is_name(name: str) -> bool:
    return 0 < len(name) <= 255 and name.isprintable() and not {'"', "\\"} & set(name)


def _need_little_endian(what: str) -> None:
    if sys.byteorder != "little":
        raise UnsupportedError(f"{what}: files are little-endian, and this machine is not")


# ---- saving ------------------------------------------------------------------------------------------------

Operand = tuple[Layout, int]  # with an address


class Named(NamedTuple):
    """An array that has a name."""

    device: Device
    layout: Layout
    address: int


def _is_dense(layout: Layout) -> bool:
    """Do the elements fill the bytes between the first and the last one, each of them once?"""
    dtype, shape, strides = layout
    step = dtype.itemsize
    for stride, size in sorted((abs(stride), size) for stride, size in zip(strides, shape) if size != 1):
        if stride != step:
            return False
        step *= size
    return True


class _Covered:
    """Memory of which all elements are known to be set."""

    def __init__(self, operands: Iterable[Operand] = ()) -> None:
        self._operands: set[tuple[Any, ...]] = set()
        self._dense: list[tuple[int, int]] = []  # in order, apart from each other
        for operand in operands:
            self.add(*operand)

    def add(self, layout: Layout, address: int) -> None:
        if self.has(layout, address):
            return
        self._operands.add((*layout, address))
        if not _is_dense(layout):
            return
        low, high = (address + end for end in extent(layout))
        first = bisect_right(self._dense, low, key=lambda one: one[1] + 1)  # touching ones become one
        last = bisect_right(self._dense, high, key=lambda one: one[0])
        if first < last:
            low, high = min(low, self._dense[first][0]), max(high, self._dense[last - 1][1])
            del self._dense[first:last]
        insort(self._dense, (low, high))

    def has(self, layout: Layout, address: int) -> bool:
        if (*layout, address) in self._operands:
            return True
        low, high = (address + end for end in extent(layout))
        i = bisect_right(self._dense, low, key=lambda one: one[0]) - 1
        return i >= 0 and high <= self._dense[i][1]


class _Region:
    """Real memory that operands and named arrays touch, in one piece."""

    def __init__(self, low: int, high: int) -> None:
        self.low = low // _ELEMENTS * _ELEMENTS  # so that everything in it stays aligned
        self.high = high
        self.sources: list[Operand] = []  # of what is to be saved

    @property
    def nbytes(self) -> int:
        return self.high - self.low

    def contents(self) -> list[Any]:
        """The bytes, in pieces. What no source has is zero: it may be anybody's, or nobody's."""
        ranges = [range_of(CPU, *source) for source in self.sources]
        _, low, high = whole = Range(CPU, min(one.low for one in ranges), max(one.high for one in ranges))
        if any(one == whole and _is_dense(layout) for one, (layout, _) in zip(ranges, self.sources)):
            return [bytes(low - self.low), memory_at(as_pointer(low), high - low), bytes(self.high - high)]
        out = np.zeros(self.nbytes, np.uint8)
        for layout, address in self.sources:
            low, high = (address + end for end in extent(layout))
            copied = _elements(layout, out, address - self.low)
            copied[...] = _elements(layout, memory_at(as_pointer(low), high - low), address - low)
        return [out]


def _elements(layout: Layout, memory: Any, offset: int) -> np.ndarray[Any, Any]:
    dtype, shape, strides = layout
    elements: np.ndarray[Any, Any] = np.ndarray(shape, f"V{dtype.itemsize}", memory, offset, strides)
    return elements


class _Memory:
    """The buffers of a program, numbered as operands come, so that one program makes one file."""

    def __init__(self, nodes: Sequence[Node], sizes: Mapping[int, int], arrays: Iterable[Operand]) -> None:
        self._sizes = sizes
        self._numbers: dict[int | _Region, int] = {}  # virtual buffers by number
        ranges = [one for node in nodes for one in node.ranges if buffer_at(one.low) is None]
        ranges += [range_of(CPU, *array) for array in arrays]
        merged: list[list[int]] = []
        for _, low, high in sorted((one for one in ranges if one.low < one.high), key=lambda one: one[1:]):
            if merged and low < merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], high)
            else:
                merged.append([low, high])
        self._starts = [low for low, _ in merged]
        self._regions = [_Region(low, high) for low, high in merged]

    def region(self, address: int) -> _Region:
        """The region of an operand at a real address."""
        return self._regions[bisect_right(self._starts, address) - 1]

    def view(self, layout: Layout, address: int) -> dict[str, Any]:
        """An operand as the file has it."""
        dtype, shape, strides = layout
        if len(shape) > _MOST_DIMS:
            raise GraphError(f"an array has {len(shape)} dimensions, needs at most {_MOST_DIMS}")
        out: dict[str, Any] = {"dtype": dtype.name, "shape": list(shape), "strides": list(strides)}
        if 0 in shape:
            return out
        k = buffer_at(address)
        what = self.region(address) if k is None else k
        start = what.low if isinstance(what, _Region) else virtual(what)
        number = self._numbers.setdefault(what, len(self._numbers))
        return {"buffer": number, "offset": address - start, **out}

    def buffers(self) -> list[dict[str, Any]]:
        """All that views were taken of."""
        out: list[dict[str, Any]] = []
        for what in self._numbers:
            if not isinstance(what, _Region):
                out.append({"kind": "scratch", "bytes": self._sizes[what]})
            elif what.sources:
                out.append({"kind": "constant", "bytes": what.nbytes, "crc32": "00000000"})
            else:
                out.append({"kind": "zero", "bytes": what.nbytes})
        return out

    def constants(self) -> list[_Region]:
        return [what for what in self._numbers if isinstance(what, _Region) and what.sources]


def _need_portable(nodes: Sequence[Node], named: Mapping[str, Named]) -> None:
    """Refuse what a file cannot hold."""
    for i, node in enumerate(nodes):
        if node.device is not CPU:
            raise GraphError(
                f"call {i}, {node.name} of {node.described()}, is not on {CPU}: graphs of other devices "
                "are not saved"
            )
        op = OPERATORS.get(node.native.name)
        if node.foreign is not None or op is None:
            raise GraphError(
                f"call {i}, {node.name} of {node.described()}, has an implementation of its own, which a "
                "file cannot hold"
            )
    for name, array in named.items():
        if array.device is not CPU:
            raise GraphError(f"array {name!r} is on {array.device}, needs to be on {CPU}")


def _first_reads(nodes: Sequence[Node], known: _Covered) -> list[Operand]:
    """What nodes read of real memory before it is known to be set."""
    out = []
    for node in nodes:
        operands = list(zip(node.layouts, node.addresses, node.ranges))
        for layout, address, what in operands[len(operands) - len(node.reads) :]:
            is_real = what.low < what.high and buffer_at(address) is None
            if is_real and not known.has(layout, address):
                out.append((layout, address))
                known.add(layout, address)
        for layout, address, what in operands[: node.n_outputs]:
            if what.low < what.high and buffer_at(address) is None:
                known.add(layout, address)
    return out


def _outputs(nodes: Sequence[Node], named: Mapping[str, Named]) -> dict[str, Operand]:
    """Names for what nodes write outside of named arrays: output0, output1, ... in the order of writing."""
    written: dict[tuple[Any, ...], Operand] = {}
    for node in nodes:
        for layout, address, what in zip(node.layouts, node.addresses, node.writes):
            if what.low < what.high and buffer_at(address) is None:
                written.setdefault((*layout, address), (layout, address))
    seen = _Covered((array.layout, array.address) for array in named.values())
    chosen = set()
    # The largest first: a part of an output is not one of its own.
    for layout, address in sorted(written.values(), key=lambda one: -count(one[0][1]) * one[0][0].itemsize):
        if not seen.has(layout, address):
            seen.add(layout, address)
            chosen.add((*layout, address))
    free = (name for i in range(len(named) + len(chosen)) if (name := f"output{i}") not in named)
    return {next(free): operand for key, operand in written.items() if key in chosen}


def _digits(value: float) -> str:
    return struct.pack(">d", value).hex()


def _scalars(node: Node) -> dict[str, str]:
    op = OPERATORS[node.native.name]
    names, values = op.param_names + op.scalar_names, node.params + node.scalars
    assert len(names) == len(values)
    return {name: _digits(value) for name, value in zip(names, values)}


def _encoded(header: dict[str, Any]) -> bytes:
    return json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()


def save(
    path: Any,
    nodes: Sequence[Node],
    sizes: Mapping[int, int],
    named: Mapping[str, Named],
    contents: Collection[str],
) -> None:
    """Write a program as recorded, with what its named arrays of `contents` hold.

    `sizes` are the bytes of the virtual buffers. OSError is left to pass.
    """
    target = as_path("Graph.save", path)
    _need_little_endian("Graph.save")
    try:
        _need_portable(nodes, named)
        if sum(node.runs for node in nodes) > MOST_RUNS:
            raise GraphError(f"the calls need more than {MOST_RUNS:,} native ones, the most that is loaded")
        memory = _Memory(nodes, sizes, ((array.layout, array.address) for array in named.values()))
        given = {name: (array.layout, array.address) for name, array in named.items()}
        kept = [given[name] for name in contents if 0 not in given[name][0][1]]
        for layout, address in kept + _first_reads(nodes, _Covered(given.values())):
            memory.region(address).sources.append((layout, address))
        arrays = given | _outputs(nodes, named)
        views = {name: memory.view(*operand) for name, operand in arrays.items()}
        calls = [
            {
                "op": node.native.name,
                "operands": [memory.view(*operand) for operand in zip(node.layouts, node.addresses)],
                "scalars": _scalars(node),
            }
            for node in nodes
        ]
        header = {"buffers": memory.buffers(), "arrays": views, "nodes": calls}
        # Calls have been checked by their operators, arrays have only been given names.
        buffers = [_buffer(i, item) for i, item in enumerate(header["buffers"])]
        for name, item in views.items():
            _array(name, item, buffers)
        if len(_encoded(header)) > MOST_HEADER:
            raise GraphError(
                f"{len(nodes):,} calls make a header of {len(_encoded(header)):,} bytes, of which there may "
                f"be {MOST_HEADER:,}"
            )
    except GraphError as error:
        raise GraphError(f"Graph.save: {target}: {error}") from None
    _replace(target, header, memory.constants())


def _replace(path: str, header: dict[str, Any], regions: Sequence[_Region]) -> None:
    """Write a file beside the old one, and put it in its place once it is complete and on the disk."""
    target = os.path.realpath(path)  # a link goes on being one
    if os.path.exists(target) and not os.path.isfile(target):
        if os.path.isdir(target):
            raise IsADirectoryError(EISDIR, os.strerror(EISDIR), path)
        raise GraphError(f"Graph.save: {path} is no regular file")
    folder = os.path.dirname(target)
    beside = os.path.join(folder, f".infgraph-{os.urandom(8).hex()}.tmp")
    mode = stat.S_IMODE(os.stat(target).st_mode) if os.path.exists(target) else None
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        with open(os.open(beside, flags, 0o666 if mode is None else 0o600), "wb") as file:
            # Who may read the old one may read the new one. Some file systems have one mode for all.
            if mode is not None and stat.S_IMODE(os.fstat(file.fileno()).st_mode) != mode:
                os.fchmod(file.fileno(), mode)
            _write(file, header, regions)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, target)
    except BaseException as error:
        if os.path.exists(beside):
            os.unlink(beside)
        if isinstance(error, OSError):
            error.filename, error.filename2 = path, None  # that of the temporary file says nothing
        raise
    # The new file is in place. Not every file system can say when a folder is on the disk.
    with suppress(OSError):
        entry = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(entry)
        finally:
            os.close(entry)


def _write(file: Any, header: dict[str, Any], regions: Sequence[_Region]) -> None:
    size = len(_encoded(header))
    file.seek(_aligned(PREAMBLE.size + size))
    constants = [buffer for buffer in header["buffers"] if buffer["kind"] == "constant"]
    for region, buffer in zip(regions, constants):
        crc = 0
        for piece in region.contents():
            view = memoryview(piece)
            for at in range(0, len(view), _CHUNK):
                # Copied, so that what is written is what was counted, whoever changes it meanwhile.
                chunk = bytes(view[at : at + _CHUNK])
                crc = zlib.crc32(chunk, crc)
                file.write(chunk)
        file.write(bytes(_aligned(region.nbytes) - region.nbytes))
        buffer["crc32"] = f"{crc:08x}"
    encoded = _encoded(header)
    assert len(encoded) == size
    file.seek(0)
    file.write(PREAMBLE.pack(MAGIC, VERSION, zlib.crc32(encoded), size))
    file.write(encoded.ljust(_aligned(PREAMBLE.size + size) - PREAMBLE.size, b"\0"))


# ---- loading -----------------------------------------------------------------------------------------------

_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 60


def _shown(value: object) -> str:
    return _SHORT.repr(value)


class Loaded(NamedTuple):
    """A program from a file, and its memory."""

    nodes: list[Node]
    sizes: dict[int, int]
    kept: list[tuple[Range, Tensor, bool]]  # real memory; who keeps it; is it an output?
    arrays: dict[str, Tensor]
    contents: frozenset[str]  # the arrays whose contents came with the file


class _Buffer(NamedTuple):
    kind: str
    nbytes: int
    crc: int


class _View(NamedTuple):
    layout: Layout
    buffer: int | None  # None if there are no elements
    offset: int


def load(path: Any, max_bytes: Any) -> Loaded:
    """Read a program. GraphError for whatever is wrong with the file; OSError is left to pass."""
    source = as_path("Graph.load", path)
    _need_little_endian("Graph.load")
    try:
        most = index(max_bytes)
    except TypeError:
        raise OperandError(f"Graph.load: max_bytes is {shown(max_bytes)}, needs an int") from None
    with open(source, "rb", buffering=0, opener=_open_at_once) as file:
        status = os.fstat(file.fileno())
        try:
            if not stat.S_ISREG(status.st_mode):
                raise GraphError("it is no regular file")
            return _load(file, status.st_size, most)
        except OutOfMemoryError as error:
            raise OutOfMemoryError(f"Graph.load: {source}: {error}") from None
        except MemoryError:
            raise OutOfMemoryError(f"Graph.load: {source}: no memory is left to read the header") from None
        except InfiniopError as error:
            raise GraphError(f"Graph.load: {source}: {error}") from None


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a pipe has no one at its other end


def _load(file: FileIO, size: int, max_bytes: int) -> Loaded:
    header, data_at = _read_header(file, size)
    buffers = [_buffer(i, item) for i, item in enumerate(header["buffers"])]
    constants = [buffer.nbytes for buffer in buffers if buffer.kind == "constant"]
    needed = data_at + sum(map(_aligned, constants))
    if needed != size:
        raise GraphError(
            f"the file has {size:,} bytes, but its header describes {needed:,}, of which {sum(constants):,} "
            "are constants"
        )
    starts = [1 << 12]  # somewhere, to check calls before there is memory
    for buffer in buffers:
        starts.append(starts[-1] + _aligned(buffer.nbytes))
    if starts[-1] >= _MOST_ADDRESSES:
        raise GraphError(f"buffers: they have {starts[-1]:,} bytes, which no address space holds")
    extra = sum(buffer.nbytes for buffer in buffers if buffer.kind != "constant")
    _need_room(extra, max_bytes)
    arrays = {name: _array(name, item, buffers) for name, item in header["arrays"].items()}
    nodes: list[tuple[Node, list[_View]]] = []
    set_scratch: set[int] = set()
    runs = 0
    for i, item in enumerate(header["nodes"]):
        try:
            node, views = _node(item, buffers, starts)
            _need_set(node, views, buffers, starts, set_scratch)
            runs += node.runs
            if runs > MOST_RUNS:
                raise GraphError(f"with it the calls need more than {MOST_RUNS:,} native ones")
            refuse(node)
        except OutOfMemoryError:
            raise
        except InfiniopError as error:
            raise GraphError(f"nodes[{i}]: {error}") from None
        nodes.append((node, views))
    _need_room(extra + max((node.plan.workspace_size for node, _ in nodes), default=0), max_bytes)
    return _placed(file, buffers, nodes, arrays)


def _need_room(extra: int, max_bytes: int) -> None:
    if extra > max_bytes:
        raise GraphError(
            f"the graph needs {extra:,} bytes of memory beyond its constants, but max_bytes is {max_bytes:,}"
        )


def _placed(
    file: FileIO,
    buffers: Sequence[_Buffer],
    nodes: Sequence[tuple[Node, list[_View]]],
    arrays: Mapping[str, _View],
) -> Loaded:
    """Give checked buffers their memory and their contents."""
    memory = {i: _zeros(buffer.nbytes) for i, buffer in enumerate(buffers) if buffer.kind != "scratch"}
    for i, buffer in enumerate(buffers):
        if buffer.kind == "constant":
            _read_data(file, i, buffer, memory[i])
    scratch = {i: k for k, i in enumerate(i for i in range(len(buffers)) if i not in memory)}

    def address(view: _View) -> int:
        if view.buffer is None:
            return 0
        if view.buffer in scratch:
            return virtual(scratch[view.buffer]) + view.offset
        return memory[view.buffer].data_ptr + view.offset

    placed = [node.at([address(view) for view in views]) for node, views in nodes]
    kept = [
        (what, memory[view.buffer], i < node.n_outputs)
        for node, (_, views) in zip(placed, nodes)
        for i, (what, view) in enumerate(zip(node.ranges, views))
        if view.buffer is not None and view.buffer in memory
    ]
    tensors = {
        name: borrowed(
            CPU,
            view.layout,
            as_pointer(address(view)),
            None if view.buffer is None else memory[view.buffer],
            True,
        )
        for name, view in arrays.items()
    }
    with_contents = frozenset(
        name
        for name, view in arrays.items()
        if view.buffer is not None and buffers[view.buffer].kind == "constant"
    )
    sizes = {k: buffers[i].nbytes for i, k in scratch.items()}
    return Loaded(placed, sizes, kept, tensors, with_contents)


# ---- the bytes


def _read(file: FileIO, nbytes: int) -> bytes:
    out = b""
    while len(out) < nbytes:
        piece = file.read(nbytes - len(out))
        if not piece:
            raise GraphError("the file became shorter while it was read")
        out += piece
    return out


def _read_header(file: FileIO, size: int) -> tuple[dict[str, Any], int]:
    """The header, of which no more is known than that it has three lists, and where the data begin."""
    if size < PREAMBLE.size:
        raise GraphError(f"the file has {size} bytes, needs {PREAMBLE.size} before its header")
    magic, version, crc, nbytes = PREAMBLE.unpack(_read(file, PREAMBLE.size))
    if magic != MAGIC:
        raise GraphError(f"the file begins with {magic!r}, needs {MAGIC!r}: it holds no graph")
    if version != VERSION:
        raise GraphError(f"the file has version {version}, needs {VERSION}")
    if nbytes > MOST_HEADER:
        raise GraphError(f"the header has {nbytes:,} bytes, of which there may be {MOST_HEADER:,}")
    data_at = _aligned(PREAMBLE.size + nbytes)
    if data_at > size:
        raise GraphError(f"the file has {size:,} bytes, but its header ends after {data_at:,}")
    text = _read(file, data_at - PREAMBLE.size)
    _need_zeros("the header", text[nbytes:])
    text = text[:nbytes]
    if zlib.crc32(text) != crc:
        raise GraphError(f"the header has the CRC-32 {zlib.crc32(text):08x}, needs {crc:08x}: it is damaged")
    header = _need_keys("the header", _parsed(text), {"buffers", "arrays", "nodes"})
    for key, kind in (("buffers", list), ("arrays", dict), ("nodes", list)):
        _need_kind(key, header[key], kind)
    return header, data_at


def _need_zeros(what: str, padding: bytes) -> None:
    if padding.strip(b"\0"):
        raise GraphError(f"the bytes behind {what} are not zero")


def _read_data(file: FileIO, i: int, buffer: _Buffer, memory: Tensor) -> None:
    view = memory.numpy().data
    at = crc = 0
    while at < len(view):
        got = file.readinto(view[at : at + _CHUNK])
        if not got:
            raise GraphError("the file became shorter while it was read")
        crc = zlib.crc32(view[at : at + got], crc)
        at += got
    if crc != buffer.crc:
        raise GraphError(
            f"buffers[{i}]: its data have the CRC-32 {crc:08x}, needs {buffer.crc:08x}: they are damaged"
        )
    _need_zeros(f"the data of buffers[{i}]", _read(file, _aligned(at) - at))


def _zeros(nbytes: int) -> Tensor:
    """Aligned memory, of which the system gives what is touched."""
    try:
        raw = np.zeros(nbytes + ALIGNMENT, np.uint8)
    except (MemoryError, ValueError):
        raise OutOfMemoryError(f"cannot allocate a buffer of {nbytes:,} bytes") from None
    start = -raw.__array_interface__["data"][0] % ALIGNMENT
    return Tensor.from_numpy(raw[start : start + nbytes])


# ---- the header

#: Numbers with a sign and at most 19 digits; everything else JSON calls a number is refused.
_INT = re.compile(r"-?\d{1,19}")


def _parsed(text: bytes) -> Any:
    if b"\\" in text:
        raise GraphError("the header has a backslash; no name needs one")
    # More than there is depth for would be found by the parser, but not before it runs out of stack. Each
    # round takes away a level at least, and the deepest there is has six.
    brackets = _brackets(text)
    if len(brackets) > len(text) // 4:  # "[],[],[]" takes 50 times its bytes; a graph has a bracket in 6
        raise GraphError(f"the header has {len(brackets):,} brackets in {len(text):,} bytes, needs fewer")
    for _ in range(6):
        brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
    if brackets:
        raise GraphError("the header has quotes or brackets that do not match, or are nested too deeply")
    try:
        return json.loads(
            text.decode(),
            parse_int=_parsed_int,
            parse_float=_refused_number,
            parse_constant=_refused_number,
            object_pairs_hook=_parsed_object,
        )
    except UnicodeDecodeError as error:
        raise GraphError(f"the header is not UTF-8: {error}") from None
    except json.JSONDecodeError as error:
        raise GraphError(f"the header is not JSON: {error}") from None


_IS_BRACKET = np.isin(np.arange(256), list(b"[]{}"))


def _brackets(text: bytes) -> bytes:
    """The brackets outside of strings; a quote behind them if the last string has no end."""
    codes = np.frombuffer(text, np.uint8)
    quotes = np.cumsum(codes == ord('"'), dtype=np.uint8)  # modulo 256, which leaves odd numbers odd
    found: bytes = codes[(quotes % 2 == 0) & _IS_BRACKET[codes]].tobytes()
    return found + b'"' * int(quotes[-1:].sum() % 2)


def _parsed_int(text: str) -> int:
    return int(text) if _INT.fullmatch(text) and abs(int(text)) < 1 << 63 else _refused_number(text)


def _refused_number(text: str) -> int:
    raise GraphError(f"the header has the number {_shown(text)}, needs integers between -2**63 and 2**63")


def _parsed_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise GraphError(f"the header has the key {_shown(twice)} twice in one object")
    return out


def _need_kind(what: str, value: Any, kind: type) -> Any:
    if type(value) is not kind:  # True is an int to isinstance
        raise GraphError(f"{what} is {_shown(value)}, needs {_KIND_NAMES[kind]}")
    return value


_KIND_NAMES = {list: "a list", dict: "an object", int: "an integer", str: "a string"}


def _need_keys(what: str, value: Any, keys: Collection[str]) -> dict[str, Any]:
    out: dict[str, Any] = _need_kind(what, value, dict)
    if out.keys() != set(keys):
        raise GraphError(f"{what} has the keys {_shown(sorted(out))}, needs {sorted(keys)}")
    return out


def _need_int(what: str, value: Any, least: int, most: int) -> int:
    number: int = _need_kind(what, value, int)
    if not least <= number <= most:
        raise GraphError(f"{what} is {number}, needs {least} to {most}")
    return number


def _need_digits(what: str, value: Any, digits: int) -> str:
    text: str = _need_kind(what, value, str)
    if not re.fullmatch(f"[0-9a-f]{{{digits}}}", text):
        raise GraphError(f"{what} is {_shown(text)}, needs {digits} hexadecimal digits")
    return text


def _one_of(what: str, value: Any, known: Collection[str]) -> str:
    text: str = _need_kind(what, value, str)
    if text not in known:
        raise GraphError(f"{what} is {_shown(text)}, needs one of {', '.join(known)}")
    return text


def _buffer(i: int, item: Any) -> _Buffer:
    what = f"buffers[{i}]"
    kind = _one_of(f"{what}.kind", _need_kind(what, item, dict).get("kind"), _KINDS)
    _need_keys(what, item, {"kind", "bytes", "crc32"} if kind == "constant" else {"kind", "bytes"})
    nbytes = _need_int(f"{what}.bytes", item["bytes"], 1, _INT64_MAX)
    crc = int(_need_digits(f"{what}.crc32", item["crc32"], 8), 16) if kind == "constant" else 0
    return _Buffer(kind, nbytes, crc)


def _array(name: str, item: Any, buffers: Sequence[_Buffer]) -> _View:
    if not _is_name(name):
        raise GraphError(
            f"arrays: the name {_shown(name)} needs to be 1 to 255 printable characters without quotes and "
            "backslashes"
        )
    view = _view(f"arrays[{_shown(name)}]", item, buffers)
    if view.buffer is not None and buffers[view.buffer].kind == "scratch":
        raise GraphError(
            f"arrays[{_shown(name)}].buffer is {view.buffer}, which is scratch: it has no contents to name"
        )
    return view


def _view(what: str, item: Any, buffers: Sequence[_Buffer]) -> _View:
    """A view of a buffer, all of whose elements lie inside."""
    dtype, shape, strides = _layout(what, item)
    layout = interned(dtype, shape, strides)
    if 0 in shape:
        _need_keys(f"{what}, which has no elements,", item, _VIEW)
        return _View(layout, None, 0)
    _need_keys(what, item, _PLACED)
    if not buffers:
        raise GraphError(f"{what}.buffer is {_shown(item['buffer'])}, but there are no buffers")
    number = _need_int(f"{what}.buffer", item["buffer"], 0, len(buffers) - 1)
    nbytes = buffers[number].nbytes
    offset = _need_int(f"{what}.offset", item["offset"], 0, nbytes - 1)
    low, high = extent(layout)
    if not 0 <= offset + low <= offset + high <= nbytes:
        raise GraphError(
            f"{what} uses bytes {offset + low} to {offset + high} of buffers[{number}], which has {nbytes}"
        )
    steps = [stride for size, stride in zip(shape, strides) if size > 1]
    if any(number % dtype.alignment for number in (offset, *steps)):
        raise GraphError(
            f"{what} has offset {offset} and strides {_shown(steps)}, needs multiples of the alignment "
            f"{dtype.alignment} of {dtype}"
        )
    return _View(layout, number, offset)


def _layout(what: str, item: Any) -> Layout:
    _need_kind(what, item, dict)
    if not item.keys() >= _VIEW:
        raise GraphError(f"{what} has the keys {_shown(sorted(item))}, needs {sorted(_PLACED)}")
    dtype: DType = _DTYPES[_one_of(f"{what}.dtype", item["dtype"], _DTYPES)]
    shape = _need_kind(f"{what}.shape", item["shape"], list)
    strides = _need_kind(f"{what}.strides", item["strides"], list)
    if len(shape) != len(strides) or len(shape) > _MOST_DIMS:
        raise GraphError(
            f"{what} has {len(shape)} sizes and {len(strides)} strides, needs as many, at most {_MOST_DIMS}"
        )
    sizes = tuple(_need_int(f"{what}.shape", size, 0, _INT64_MAX) for size in shape)
    steps = tuple(_need_int(f"{what}.strides", one, -_INT64_MAX, _INT64_MAX) for one in strides)
    need_steps(what, sizes, dtype.itemsize)
    return dtype, sizes, steps


def _node(item: Any, buffers: Sequence[_Buffer], starts: Sequence[int]) -> tuple[Node, list[_View]]:
    """A node that its operator takes, with addresses in buffers at `starts`."""
    _need_keys("it", item, {"op", "operands", "scalars"})
    op = OPERATORS[_one_of("op", item["op"], OPERATORS)]
    if op.dispatcher().implementation(CPU.type) is not NATIVE:
        raise GraphError(
            f"{op.name} has an implementation of its own on {CPU}; loaded graphs run the native ones"
        )
    operands = _need_kind("operands", item["operands"], list)
    if len(operands) != len(op.operand_names):
        raise GraphError(
            f"operands has {len(operands)} of them, needs {len(op.operand_names)}: "
            f"{', '.join(op.operand_names)}"
        )
    views = [_view(f"{op.name}: {name}", one, buffers) for name, one in zip(op.operand_names, operands)]
    layouts = tuple(map(_normal, (view.layout for view in views)))
    for name, (dtype, shape, strides) in zip(op.operand_names[: op.n_outputs], layouts):
        low, high = extent((dtype, shape, strides))
        # What the operator looks into is then no larger than the memory that has to be there for it.
        if count(shape) * dtype.itemsize > high - low:
            raise GraphError(
                f"{op.name}: {name} with shape {shape} has strides of {strides} bytes, under which its "
                "elements overlap each other, but it is an output"
            )
    if op.most_runs(layouts) > MOST_RUNS:
        raise GraphError(f"{op.name} needs more than {MOST_RUNS:,} native calls")
    names = op.param_names + op.scalar_names
    digits = _need_keys("scalars", item["scalars"], names)
    values = [
        struct.unpack(">d", bytes.fromhex(_need_digits(f"scalars.{name}", digits[name], 16)))[0]
        for name in names
    ]
    addresses = [0 if view.buffer is None else starts[view.buffer] + view.offset for view in views]
    split = len(op.param_names)
    return Node(op, CPU, layouts, addresses, tuple(values[:split]), tuple(values[split:])), views


def _normal(layout: Layout) -> Layout:
    """Strides of what has no elements may be any numbers, and operators make offsets of them."""
    dtype, shape, _ = layout
    return interned(dtype, shape, row_major(shape, dtype.itemsize)) if 0 in shape else layout


def _need_set(
    node: Node,
    views: Sequence[_View],
    buffers: Sequence[_Buffer],
    starts: Sequence[int],
    set_scratch: set[int],
) -> None:
    """Refuse to read scratch that holds nothing yet: it would be whatever memory held before."""

    def unset(operands: Sequence[_View]) -> Iterator[tuple[int, int]]:
        for i, view in enumerate(operands):
            k = view.buffer
            if k is not None and buffers[k].kind == "scratch" and k not in set_scratch:
                yield i, k

    skipped = len(views) - len(node.reads)
    for i, k in unset(views[skipped:]):
        raise GraphError(
            f"{node.name}: {node.names[skipped + i]} reads buffers[{k}], scratch that no node has written"
        )
    for i, k in list(unset(views[: node.n_outputs])):
        if not covers(views[i].layout, node.addresses[i], starts[k], buffers[k].nbytes):
            raise GraphError(
                f"{node.name}: {node.names[i]} is the first to write buffers[{k}], scratch, and must write "
                f"all of its {buffers[k].nbytes} bytes"
            )
        set_scratch.add(k)
