"""Arithmetic on layouts: element type, shape and strides, without any memory.

Strides are kept in bytes here, as NumPy gives them, so that reading an array costs no division.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import prod
from operator import index
from typing import Any, TypeAlias

import numpy as np

from .dtypes import DType
from .errors import DTypeError, NullPointerError, OperandError, ParamError, ShapeError, StrideError, shown

Shape: TypeAlias = tuple[int, ...]
#: element type, shape, strides in bytes. Equal layouts compare equal, whatever kind of array they describe.
Layout: TypeAlias = tuple[DType, Shape, tuple[int, ...]]


class _Interned(tuple):  # type: ignore[type-arg]
    """A layout of which there is one object: equal to its like, and found in a dictionary by where it is."""

    __slots__ = ()
    __hash__ = object.__hash__


@lru_cache(maxsize=1 << 14)
def interned(dtype: DType, shape: Shape, strides: tuple[int, ...]) -> Layout:
    """The one Layout of its kind, so that keys made of layouts cost little to look up.

    One that was forgotten and made again only misses what it was a key of: hashes differ, equality does not.
    """
    return _Interned((dtype, tuple(shape), strides))


MAX_BYTES = 2**63 - 1
#: Of an operand, in C.
MAX_RANK = 16
#: The name of an output that the caller did not give. Its dtype, shape and device come from the inputs, so
#: messages speak of those instead.
RESULT = "result"
_MAX_OVERLAP_WORK = 1_000_000


@lru_cache(maxsize=4096)
def row_major(shape: Shape, itemsize: int) -> tuple[int, ...]:
    """The strides in bytes of a row-major array."""
    strides = []
    step = itemsize
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def is_row_major(layout: Layout) -> bool:
    """Do the elements lie one after the other in row-major order? Strides of unit dimensions do not
    matter.
    """
    dtype, shape, strides = layout
    step = dtype.itemsize
    if 0 in shape:
        return True
    for size, stride in zip(reversed(shape), reversed(strides)):
        if size != 1:
            if stride != step:
                return False
            step *= size
    return True


def same_elements(x: Layout, y: Layout) -> bool:
    """Are the elements of both at the same places, if the first ones are? Strides that take no step do not
    matter.
    """
    if x[:2] != y[:2]:
        return False
    return 0 in x[1] or all(size == 1 or a == b for size, a, b in zip(x[1], x[2], y[2]))


def extent(layout: Layout) -> tuple[int, int]:
    """First byte and end of the bytes used, relative to the element with index (0, ..., 0)."""
    dtype, shape, strides = layout
    if 0 in shape:
        return 0, 0
    low, high = 0, dtype.itemsize
    for size, stride in zip(shape, strides):
        reach = (size - 1) * stride
        if reach < 0:
            low += reach
        else:
            high += reach
    return low, high


def element_strides(op: str, name: str, layout: Layout) -> tuple[int, ...]:
    """Strides in elements; those of dimensions that take no step are normalised."""
    dtype, shape, strides = layout
    if 0 in shape:
        return row_major(shape, 1)
    out = []
    for size, stride in zip(shape, strides):
        if size == 1:
            out.append(0)
            continue
        if stride % dtype.itemsize:
            raise StrideError(
                f"{op}: {name} with shape {shape} has strides of {strides} bytes, which are not multiples "
                "of its "
                f"element size {dtype.itemsize} ({dtype.name}); copy it to an array of its own"
            )
        out.append(stride // dtype.itemsize)
    return tuple(out)


def as_shape(op: str, shape: int | Iterable[int]) -> Shape:
    """Check sizes given by a caller."""
    try:
        sizes = tuple([index(size) for size in shape]) if isinstance(shape, Iterable) else (index(shape),)
    except TypeError:
        raise OperandError(f"{op}: shape is {shown(shape)}, needs ints") from None
    for size in sizes:
        if abs(size) > MAX_BYTES:
            raise ShapeError(f"{op}: shape has a size of {shown(size)}, needs less than 2**63")
    if any(size < 0 for size in sizes):
        raise ShapeError(f"{op}: shape is {sizes}, sizes must not be negative")
    return sizes


def need_steps(op: str, shape: Shape, itemsize: int) -> None:
    """Refuse a shape that no memory is needed for, but whose row-major strides have no number in C."""
    if prod(size for size in shape if size) * itemsize > MAX_BYTES:
        raise ShapeError(
            f"{op}: shape is {shape}, of which the sizes other than 0 make more than 2**63 - 1 bytes"
        )


def need_rank(
    op: str, names: Sequence[str], layouts: Sequence[Layout], least: int = 0, most: int = MAX_RANK
) -> None:
    """Refuse operands of too few or too many dimensions."""
    for name, (_, shape, _) in zip(names, layouts):
        if not least <= len(shape) <= most:
            raise ShapeError(f"{op}: {name} has {len(shape)} dimensions, needs {least} to {most}: {shape}")


def broadcast(op: str, names: Sequence[str], shapes: Sequence[Shape]) -> Shape:
    """The common shape of operands under NumPy's broadcasting rules."""
    first = shapes[0]
    if all(shape == first for shape in shapes):
        return first
    rank = max(map(len, shapes))
    sizes = []
    for column in zip(*((1,) * (rank - len(shape)) + shape for shape in shapes)):
        wanted = {size for size in column if size != 1}
        if len(wanted) > 1:
            raise ShapeError(
                f"{op}: shapes do not broadcast: {listed(names, shapes)}; sizes must be equal or 1, from "
                "the last "
                "dimension on"
            )
        sizes.append(wanted.pop() if wanted else 1)
    return tuple(sizes)


def broadcast_to(layout: Layout, shape: Shape) -> Layout:
    """The layout seen with a shape it broadcasts to: stride 0 where it repeats."""
    dtype, own, strides = layout
    if own == shape:
        return layout
    lead = len(shape) - len(own)
    steps = tuple(
        0 if size == 1 and wanted != 1 else stride for size, wanted, stride in zip(own, shape[lead:], strides)
    )
    return dtype, shape, (0,) * lead + steps


def listed(names: Sequence[str], values: Sequence[Any]) -> str:
    """``a is (2, 3), b is (4, 5)``, of what the caller gave."""
    return ", ".join(f"{name} is {value}" for name, value in zip(names, values) if name != RESULT)


def need_one_dtype(op: str, names: Sequence[str], layouts: Sequence[Layout]) -> None:
    """Refuse operands of different element types."""
    first = layouts[0][0]
    for layout in layouts:
        if layout[0] is not first:
            raise DTypeError(
                f"{op}: dtypes differ: {listed(names, [layout[0].name for layout in layouts])}; all must "
                "be the same "
                "(nothing is promoted)"
            )


def need_memory(layout: Layout, address: int) -> tuple[int, int]:
    """Refuse what another library says of an array where none can be so; return its extent. Messages begin
    with a verb.
    """
    dtype, shape, strides = layout
    if count(tuple(size or 1 for size in shape)) * dtype.itemsize > MAX_BYTES:
        raise ShapeError(f"has shape {shape}, which makes more than 2**63 - 1 bytes")
    if max(map(abs, strides), default=0) > MAX_BYTES:
        raise StrideError(f"has strides of {strides} bytes, needs less than 2**63")
    low, high = extent(layout)
    if low != high and not address:
        raise NullPointerError(f"has shape {shape}, but no memory")
    if not 0 <= address + low <= address + high < 2**64:
        raise ParamError(f"has shape {shape} at {address:#x}, which leaves the address space")
    if low != high and address % dtype.alignment:
        raise ParamError(f"with shape {shape} at {address:#x} is not aligned to its element type {dtype}")
    return low, high


def overlap(layout_x: Layout, address_x: int, layout_y: Layout, address_y: int) -> bool:
    """Do two operands share a byte? Exact; a search that is too hard counts as yes."""
    if 0 in layout_x[1] or 0 in layout_y[1]:
        return False
    x, y = (_bytes_at(layout, address) for layout, address in ((layout_x, address_x), (layout_y, address_y)))
    try:
        return bool(np.shares_memory(x, y, max_work=_MAX_OVERLAP_WORK))  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


def holds(layout_x: Layout, address_x: int, layout_y: Layout, address_y: int) -> bool:
    """Are all bytes of y among those of x? Exact; what is too hard to find out counts as no."""
    if layout_x == layout_y and address_x == address_y:
        return True
    (low_x, high_x), (low_y, high_y) = extent(layout_x), extent(layout_y)
    if address_y + low_y < address_x + low_x or address_y + high_y > address_x + high_x:
        return False
    between = _gaps(layout_x)
    return between is not None and not any(
        overlap(gap, address_x + offset, layout_y, address_y) for gap, offset in between
    )


@lru_cache(maxsize=4096)
def _gaps(layout: Layout) -> list[tuple[Layout, int]] | None:
    """The bytes between an operand's first and last one that are not its own, as layouts at offsets from its
    first element. None for elements that lie between those of other dimensions, with gaps left.
    """
    dtype, shape, strides = layout
    dims = sorted((abs(stride), size) for size, stride in zip(shape, strides) if size != 1 and stride)
    gaps: list[tuple[Layout, int]] = []
    end = dtype.itemsize  # of what the dimensions so far walk through
    low, _ = extent(layout)
    for d, (step, size) in enumerate(dims):
        if step < end and gaps:
            return None
        if step > end:
            outer = [(size - 1, step), *((n, stride) for stride, n in dims[d + 1 :])]
            sizes, steps = zip(*outer, (step - end, 1))
            gaps.append((interned(DType.U8, sizes, steps), low + end))
        end += (size - 1) * step
    return gaps


class _At:
    """Lets NumPy see addresses whose contents it must not touch."""

    def __init__(self, layout: Layout, address: int) -> None:
        dtype, shape, strides = layout
        self.__array_interface__ = {
            "version": 3,
            "typestr": f"|V{dtype.itemsize}",
            "shape": shape,
            "strides": strides,
            "data": (address, True),
        }


def _bytes_at(layout: Layout, address: int) -> Any:
    return np.asarray(_At(layout, address))


def count(shape: Shape) -> int:
    """Number of elements."""
    return prod(shape)
