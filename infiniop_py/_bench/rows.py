"""The rows: what is measured, as data. A `Case` is one row; `table` lists them all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from ..dtypes import DType

CACHE_LINE = 64
HALVES = frozenset((DType.F16, DType.BF16))
EPSILON = 2.0**-17  # of add_rms_norm: near 1e-5, and the same number in F32 and F64

#: Names of the operands of each operator, outputs first, and how many outputs there are.
OPERANDS = {
    "gemm": (("c", "a", "b"), 1),
    "add": (("c", "a", "b"), 1),
    "mul": (("c", "a", "b"), 1),
    "add_rms_norm": (("y", "residual_out", "a", "b", "weight"), 2),
    "rearrange": (("y", "x"), 1),
}


@dataclass(frozen=True)
class Operand:
    """Shape and strides in elements; strides are not negative."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def span(self) -> int:
        """Elements from the first to the last, both included."""
        return 1 + sum((size - 1) * stride for size, stride in zip(self.shape, self.strides))

    def traffic(self, itemsize: int) -> int:
        """Bytes that must be moved: each element once, and with it what is left of its cache line."""
        steps = [stride for size, stride in zip(self.shape, self.strides) if stride and size > 1]
        count = prod(size for size, stride in zip(self.shape, self.strides) if stride)
        return count * max(itemsize, min(CACHE_LINE, min(steps, default=1) * itemsize))


def dense(*shape: int) -> Operand:
    """Row-major."""
    return Operand(shape, tuple(prod(shape[i + 1 :]) for i in range(len(shape))))


def permuted(operand: Operand, order: Sequence[int]) -> Operand:
    """The same elements with the dimensions in another order."""
    return Operand(tuple(operand.shape[i] for i in order), tuple(operand.strides[i] for i in order))


@dataclass(frozen=True)
class Case:
    """One row.

    shape     what the row is called: of gemm ([batch,] M, K, N), of others that of an operand
    layout    how operands lie in memory, in words
    buffers   which piece of memory each operand lies in: equal numbers are an output in place of an input
    flops     0 where only the bytes count
    streams   meant to come from memory: measured on several sets of operands in turn
    small     so short that the cost of calling C from Python must be taken off
    """

    op: str
    dtype: DType
    shape: tuple[int, ...]
    layout: str
    operands: tuple[Operand, ...]
    buffers: tuple[int, ...]
    flops: int = 0
    streams: bool = False
    small: bool = False

    @property
    def n_outputs(self) -> int:
        return OPERANDS[self.op][1]

    @property
    def shape_text(self) -> str:
        return "x".join(map(str, self.shape))

    @property
    def name(self) -> str:
        return f"{self.op} {self.dtype} {self.shape_text} {self.layout}"

    @property
    def traffic(self) -> int:
        """Bytes that must be moved: every operand once."""
        return sum(operand.traffic(self.dtype.itemsize) for operand in self.operands)

    @property
    def written(self) -> int:
        """Those of them that are written."""
        return sum(operand.traffic(self.dtype.itemsize) for operand in self.operands[: self.n_outputs])

    @property
    def buffer_bytes(self) -> tuple[int, ...]:
        """Bytes of each piece of memory."""
        return tuple(
            self.dtype.itemsize
            * max(operand.span for operand, used in zip(self.operands, self.buffers) if used == buffer)
            for buffer in range(max(self.buffers) + 1)
        )

    @property
    def footprint(self) -> int:
        """Bytes of memory that one call touches."""
        return sum(self.buffer_bytes)

    @property
    def mostly_reads(self) -> bool:
        """Is so little written that reading alone is the limit?"""
        return 8 * self.written < self.traffic

    def probes(self) -> Iterator[Case]:
        """The same problem, small and then larger: to find out first whether a peer would take minutes. Only
        products of halves can, because there is BLAS for the others everywhere.
        """
        if self.op != "gemm" or self.dtype not in HALVES:
            return
        *batch, m, k, n = self.shape
        scale, probe = 1, None
        while probe != self.shape:
            probe = (*batch, min(m, 64 * scale), min(k, 256 * scale), min(n, 256 * scale))
            yield gemm(self.dtype, probe, self.layout)
            scale *= 2


# ---- one case of each kind ---------------------------------------------------------------------------------

CONTIGUOUS = "contiguous"
A_TRANSPOSED = "a transposed"
B_TRANSPOSED = "b transposed"


def _case(op: str, dtype: DType, shape: tuple[int, ...], layout: str, *operands: Operand) -> Case:
    return Case(op, dtype, shape, layout, operands, tuple(range(len(operands))))


def gemm(dtype: DType, shape: tuple[int, ...], layout: str = CONTIGUOUS) -> Case:
    """([batch,] M, K, N); a transposed a lies in memory as ([batch,] K, M), b as ([batch,] N, K)."""
    *batch, m, k, n = shape

    def matrix(rows: int, columns: int, *, transposed: bool) -> Operand:
        if not transposed:
            return dense(*batch, rows, columns)
        return permuted(dense(*batch, columns, rows), (*range(len(batch)), len(batch) + 1, len(batch)))

    a = matrix(m, k, transposed=layout == A_TRANSPOSED)
    b = matrix(k, n, transposed=layout == B_TRANSPOSED)
    return replace(_case("gemm", dtype, shape, layout, dense(*batch, m, n), a, b), flops=2 * prod(shape))


def elementwise(op: str, dtype: DType, shape: tuple[int, ...]) -> Case:
    """Three arrays of one row-major shape."""
    return _case(op, dtype, shape, CONTIGUOUS, *[dense(*shape)] * 3)


def in_place(op: str, dtype: DType, shape: tuple[int, ...]) -> Case:
    return replace(elementwise(op, dtype, shape), layout="in place", buffers=(0, 0, 1))


def broadcast_row(op: str, dtype: DType, shape: tuple[int, ...]) -> Case:
    """b is one row for all rows."""
    row = Operand(shape, (0,) * (len(shape) - 1) + (1,))
    return _case(op, dtype, shape, "b broadcast row", dense(*shape), dense(*shape), row)


def strided(op: str, dtype: DType, shape: tuple[int, ...]) -> Case:
    """a is every second column of an array twice as wide."""
    wide = dense(*shape[:-1], 2 * shape[-1])
    return _case(
        op, dtype, shape, "a[:, ::2]", dense(*shape), Operand(shape, (*wide.strides[:-1], 2)), dense(*shape)
    )


def transposed_operand(op: str, dtype: DType, shape: tuple[int, ...]) -> Case:
    a = permuted(dense(*shape[::-1]), tuple(range(len(shape)))[::-1])
    return _case(op, dtype, shape, A_TRANSPOSED, dense(*shape), a, dense(*shape))


def add_rms_norm(dtype: DType, shape: tuple[int, ...]) -> Case:
    return _case("add_rms_norm", dtype, shape, CONTIGUOUS, *[dense(*shape)] * 4, dense(shape[-1]))


def rearrange(dtype: DType, shape: tuple[int, ...], order: Sequence[int]) -> Case:
    """A row-major array of `shape`, copied with its dimensions in another order."""
    x = permuted(dense(*shape), order)
    layout = "transpose" if tuple(order) == (1, 0) else f"-> ({','.join(map(str, order))})"
    return _case("rearrange", dtype, shape, layout, dense(*x.shape), x)


# ---- the table ---------------------------------------------------------------------------------------------

_GEMM_DTYPES = (DType.F32, DType.F64, DType.BF16, DType.F16)
_HALVES_AND_F32 = (DType.F32, DType.F16, DType.BF16)
_ELEMENTWISE_DTYPES = (DType.F32, DType.F16, DType.BF16, DType.I32)
_EACH_SIZE = (DType.U8, DType.F16, DType.F32, DType.F64)  # 1, 2, 4, 8 bytes
GEMM_LAYOUTS = (CONTIGUOUS, B_TRANSPOSED, A_TRANSPOSED)
_LAYOUTS = (in_place, broadcast_row, strided, transposed_operand)

CUBES = (256, 512, 1024, 2048, 4096)
TALL = tuple((m, 4096, 4096) for m in (128, 256, 512, 1024))
SKINNY_ROWS = (1, 4, 16, 32)
SKINNY_WEIGHTS = ((2048, 2048), (4096, 4096), (4096, 11008))
BATCHED = ((32, 64, 128, 96), (64, 128, 64, 128))
LAYERS = ((128, 128, 128), (300, 300, 64), (4096, 64, 64))  # of small networks, and their gradients
# Of a token and of an image: with the keys, which lie transposed, and with the values.
ATTENTION = (
    ((32, 1, 128, 2048), B_TRANSPOSED),
    ((32, 1, 2048, 128), CONTIGUOUS),
    ((16, 197, 64, 197), B_TRANSPOSED),
    ((16, 197, 197, 64), CONTIGUOUS),
)
NARROW = ((64, 3072, 16), (134, 3216, 68))
SHORT_K = ((2048, 4, 100), (4096, 16, 4096))  # with a C that stays in the caches, and one that does not
SHORT_ROWS = ((13824, 6), (20000, 16), (400000, 50))  # less than a vector, a few of them, and past the caches
TINY = (16, 32, 64)
IN_CACHE, IN_MEMORY = (1000, 1000), (8000, 8000)  # 1e6 and 64e6 elements


def _gemms() -> Iterator[Case]:
    for dtype in _GEMM_DTYPES:
        for cube_or_tall in (*((n, n, n) for n in CUBES), *TALL):
            yield gemm(dtype, cube_or_tall)
    for dtype in _HALVES_AND_F32:
        for weights in SKINNY_WEIGHTS:
            for m in SKINNY_ROWS:
                for layout in (CONTIGUOUS, B_TRANSPOSED):
                    case = gemm(dtype, (m, *weights), layout)
                    yield replace(case, streams=m == 1 and weights == SKINNY_WEIGHTS[-1])
    for dtype in (DType.F32, DType.BF16):
        for layer in LAYERS:
            for layout in GEMM_LAYOUTS:
                yield gemm(dtype, layer, layout)
    for dtype in _HALVES_AND_F32:
        for items, layout in ATTENTION:
            yield gemm(dtype, items, layout)
    for dtype in (DType.F32, DType.BF16):
        for narrow in NARROW:
            yield gemm(dtype, narrow)
    for dtype in _HALVES_AND_F32:
        for short in SHORT_K:
            yield gemm(dtype, short)
    for dtype in _GEMM_DTYPES:
        for shape in BATCHED:
            yield gemm(dtype, shape)
        for n in TINY:
            yield replace(gemm(dtype, (n, n, n)), small=True)


def _elementwise() -> Iterator[Case]:
    for op in ("add", "mul"):
        for dtype in _ELEMENTWISE_DTYPES:
            for shape in (IN_CACHE, IN_MEMORY):
                streams = shape is IN_MEMORY
                yield replace(elementwise(op, dtype, (shape[0] * shape[1],)), streams=streams)
                if op == "add" or not streams:
                    for layout in _LAYOUTS:
                        yield replace(layout(op, dtype, shape), streams=streams)
    for dtype in (DType.F32, DType.F16):
        for shape in SHORT_ROWS:
            yield replace(broadcast_row("add", dtype, shape), streams=shape == SHORT_ROWS[-1])


def _norms() -> Iterator[Case]:
    for dtype in _HALVES_AND_F32:
        yield add_rms_norm(dtype, (128, 4096))
        yield replace(add_rms_norm(dtype, (4096, 4096)), streams=True)


def _rearranges() -> Iterator[Case]:
    for dtype in _EACH_SIZE:
        for n in (2000, 2001, 4096):
            yield rearrange(dtype, (n, n), (1, 0))
    for dtype in (DType.F16, DType.F32):
        yield rearrange(dtype, (32, 128, 32, 128), (0, 2, 1, 3))
        yield rearrange(dtype, (8, 512, 32, 128), (0, 2, 3, 1))
        yield rearrange(dtype, (3, 4, 50, 50, 5, 7), (5, 4, 3, 2, 1, 0))
    for dtype in (DType.U8, DType.F32):  # an image: its pixels' channels to planes, and back
        yield rearrange(dtype, (1000, 1000, 3), (2, 0, 1))
        yield rearrange(dtype, (3, 1000, 1000), (1, 2, 0))


def table() -> list[Case]:
    """All rows."""
    return [*_gemms(), *_elementwise(), *_norms(), *_rearranges()]


#: A row of each kind, for a first impression.
QUICK = frozenset((
    "gemm F32 512x512x512 contiguous",
    "gemm F32 1024x1024x1024 contiguous",
    "gemm F64 512x512x512 contiguous",
    "gemm F16 512x512x512 contiguous",
    "gemm BF16 512x512x512 contiguous",
    "gemm F32 4x2048x2048 contiguous",
    "gemm BF16 1x2048x2048 b transposed",
    "gemm F32 32x64x128x96 contiguous",
    "gemm F32 32x32x32 contiguous",
    "add F32 1000000 contiguous",
    "add BF16 1000000 contiguous",
    "add F32 1000x1000 a transposed",
    "mul I32 1000000 contiguous",
    "add_rms_norm F32 128x4096 contiguous",
    "add_rms_norm BF16 128x4096 contiguous",
    "rearrange F32 2000x2000 transpose",
    "rearrange F16 8x512x32x128 -> (0,2,3,1)",
))  # fmt: skip


# ---- what is asked for -------------------------------------------------------------------------------------

#: Ranks of the shapes that a user may name for rows that are not in the table: least and most.
RANKS = {"gemm": (3, 4), "add": (1, 8), "mul": (1, 8), "add_rms_norm": (1, 8), "rearrange": (2, 8)}
DTYPES = {
    "gemm": _GEMM_DTYPES,
    "add": (*_ELEMENTWISE_DTYPES, DType.F64),
    "mul": (*_ELEMENTWISE_DTYPES, DType.F64),
    "add_rms_norm": _GEMM_DTYPES,
    "rearrange": _EACH_SIZE,
}


def own_cases(op: str, dtype: DType, shape: tuple[int, ...]) -> list[Case]:
    """The rows for a shape of the user's own. ValueError if the operator has none for it."""
    least, most = RANKS[op]
    if not least <= len(shape) <= most:
        raise ValueError(f"{op} takes {least} to {most} sizes, not {'x'.join(map(str, shape))}")
    if dtype not in DTYPES[op]:
        raise ValueError(f"{op} is not measured in {dtype}")
    if op == "gemm":
        small = max(shape) <= max(TINY)
        return [replace(gemm(dtype, shape, layout), small=small) for layout in GEMM_LAYOUTS]
    if op == "add_rms_norm":
        return [add_rms_norm(dtype, shape)]
    if op == "rearrange":
        return [rearrange(dtype, shape, tuple(range(len(shape)))[::-1])]
    layouts = _LAYOUTS if len(shape) == 2 else _LAYOUTS[:1]
    return [elementwise(op, dtype, shape), *(layout(op, dtype, shape) for layout in layouts)]


def select(
    ops: Sequence[str], dtypes: Sequence[DType], shapes: Sequence[tuple[int, ...]], *, quick: bool = False
) -> list[Case]:
    """The rows asked for; an empty list of ops, dtypes or shapes asks for all of them.

    A shape that is in no row of these ops gets rows of its own. ValueError if that needs to know the op, or
    if nothing is left.
    """
    rows = [case for case in table() if not ops or case.op in ops]
    wanted = [case for case in rows if not dtypes or case.dtype in dtypes]
    if shapes:
        found = [case for case in wanted if case.shape in shapes]
        for shape in shapes:
            if any(case.shape == shape for case in wanted):
                continue
            if not ops:
                text = "x".join(map(str, shape))
                raise ValueError(f"no row has the shape {text}; to measure it, name the op")
            for op in ops:
                for dtype in dtypes or DTYPES[op]:
                    found += own_cases(op, dtype, shape)
        wanted = found
    elif quick:
        wanted = [case for case in wanted if case.name in QUICK] or wanted[:3]
    if not wanted:
        raise ValueError("no row is of these ops and dtypes")
    return wanted
