"""Arrays in named memory layouts, each inside a larger buffer whose other elements are watched.

An element of the buffer that is not an element of the view holds a guard pattern: a NaN for floating dtypes,
so that a stray read shows in the result, with unusual bits, so that a stray write shows in the buffer. With
`edge`, the first or last byte of the view is the first or last accessible byte: touching the page next to it
is a fault.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Shape = tuple[int, ...]

_ALIGNMENT = 64
_GUARD_ELEMENTS = 67  # odd, so that rows that follow each other are not all aligned alike
_PAGE = mmap.PAGESIZE
_PROT_NONE, _PROT_READ = 0, 1

# NaNs by dtype name; other dtypes get 0xA5 in every byte.
_GUARD_WORDS = {
    "float16": 0x7D5A,
    "bfloat16": 0x7FE5,
    "float32": 0x7FE5A5A5,
    "float64": 0x7FF8A5A5A5A5A5A5,
}


def _row_major(shape: Shape) -> Shape:
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def _in_memory_order(shape: Shape, order: tuple[int, ...]) -> Shape:
    """Strides of a compact array whose axes lie in memory as `order` says, outermost first."""
    compact = _row_major(tuple(shape[axis] for axis in order))
    return tuple(compact[order.index(axis)] for axis in range(len(shape)))


def _column_major(shape: Shape) -> Shape:
    return _in_memory_order(shape, tuple(reversed(range(len(shape)))))


def _transposed(shape: Shape) -> Shape:
    axes = tuple(range(len(shape)))
    return _in_memory_order(shape, axes[:-2] + axes[-2:][::-1])


def _rotated(shape: Shape) -> Shape:
    axes = tuple(range(len(shape)))
    return _in_memory_order(shape, axes[1:] + axes[:1])


def _swapped(shape: Shape) -> Shape:
    """Axes in reverse but for the last: outer strides out of order, rows still compact."""
    axes = tuple(range(len(shape)))
    return _in_memory_order(shape, axes[:-1][::-1] + axes[-1:])


def _padded(shape: Shape) -> Shape:
    return _row_major((*shape[:-1], shape[-1] + 3)) if shape else ()


def _padded_columns(shape: Shape) -> Shape:
    *outer, rows, cols = _padded((*shape[:-2], shape[-1], shape[-2]))
    return (*outer, cols, rows)


def _column(shape: Shape) -> Shape:
    """x[..., :n] of rows five times as long; x[:, :1] when n is 1."""
    return _row_major((*shape[:-1], 5 * shape[-1])) if shape else ()


def _sliced(shape: Shape) -> Shape:
    """x[::2, ::2] of an array twice as large in every dimension."""
    return tuple(2 * stride for stride in _row_major(tuple(2 * size for size in shape)))


def _every(step: int) -> Callable[[Shape], Shape]:
    """x[..., ::step]"""
    return lambda shape: (*_row_major((*shape[:-1], step * shape[-1]))[:-1], step)


def _pixels(channels: int) -> Callable[[Shape], Shape]:
    """x[:, :m].T of pixels of so many channels, whose first m are taken."""
    return lambda shape: (1, channels)


def _turned(shape: Shape) -> Shape:
    """numpy.rot90(x)"""
    *outer, row, column = _transposed(shape)
    return (*outer, -row, column)


def _sliced_rows(shape: Shape) -> Shape:
    """x[::2, :]: every outer dimension with a step, the last compact."""
    compact = _row_major(tuple(2 * size for size in shape[:-1]) + shape[-1:])
    return tuple(2 * stride for stride in compact[:-1]) + compact[-1:]


def _reversed(shape: Shape) -> Shape:
    return tuple(-stride for stride in _row_major(shape))


def _reversed_rows(shape: Shape) -> Shape:
    compact = _row_major(shape)
    return tuple(-stride for stride in compact[:-1]) + compact[-1:]


def _mirrored(shape: Shape) -> Shape:
    compact = _row_major(shape)
    return compact[:-1] + tuple(-stride for stride in compact[-1:])


def _odd_ones(shape: Shape) -> Shape:
    """Compact, but every dimension of size 1 has a stride that would lead far away."""
    odd = (977, 0, -5, 2**40)
    return tuple(
        odd[i % 4] if n == 1 else s for i, (n, s) in enumerate(zip(shape, _row_major(shape), strict=True))
    )


def _first_zero(shape: Shape) -> Shape:
    return (0, *_row_major(shape)[1:]) if shape else ()


def _last_zero(shape: Shape) -> Shape:
    return (*_row_major((*shape[:-1], 1))[:-1], 0) if shape else ()


def _all_zero(shape: Shape) -> Shape:
    return (0,) * len(shape)


def _window(shape: Shape) -> Shape:
    """Elements shared along anti-diagonals, as sliding windows over a vector have them."""
    return (1,) * len(shape)


# Element strides for a shape, by name.
LAYOUTS: dict[str, Callable[[Shape], Shape]] = {
    "C": _row_major,
    "F": _column_major,
    "T": _transposed,
    "rotated": _rotated,
    "swapped": _swapped,
    "padded": _padded,
    "column": _column,
    "sliced": _sliced,
    "sliced_rows": _sliced_rows,
    "reversed": _reversed,
    "reversed_rows": _reversed_rows,
    "mirrored": _mirrored,
    "offset": _row_major,  # starts one element past an aligned address
    "odd_ones": _odd_ones,
    "first_zero": _first_zero,
    "last_zero": _last_zero,
    "all_zero": _all_zero,
    "window": _window,
}
# By name too, for rows of their own: they differ from others in what is computed with vectors.
_SPECIAL: dict[str, Callable[[Shape], Shape]] = {"turned": _turned, "padded_columns": _padded_columns}
_SPECIAL |= {f"every_{step}": _every(step) for step in (3, 4, 5)}
_SPECIAL |= {f"pixels_{channels}": _pixels(channels) for channels in (3, 4, 5, 9)}
INPUT_ONLY = ("first_zero", "last_zero", "all_zero", "window")
OUTPUT_LAYOUTS = tuple(name for name in LAYOUTS if name not in INPUT_ONLY)
ROW_LAYOUTS = ("C", "swapped", "padded", "column", "sliced_rows", "reversed_rows", "offset", "odd_ones")


def bits(x: Array) -> Array:
    """The elements of `x` in row-major order as unsigned integers (two per 16-byte element)."""
    return np.ascontiguousarray(x).reshape(-1).view(f"u{min(8, x.dtype.itemsize)}")


def assert_same_words(got: Array, expected: Array, what: str) -> None:
    """Equal shape and elements. NumPy says what differs, and takes ten times as long where nothing does."""
    if not np.array_equal(got, expected):
        np.testing.assert_array_equal(got, expected, what)


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _mprotect(address: int, size: int, protection: int) -> None:
    if _libc().mprotect(ctypes.c_void_p(address), ctypes.c_size_t(size), protection) != 0:
        raise OSError(ctypes.get_errno(), "mprotect")


def _aligned_bytes(size: int) -> Array:
    raw = np.empty(size + _ALIGNMENT, np.uint8)
    skip = -raw.__array_interface__["data"][0] % _ALIGNMENT
    return raw[skip : skip + size]


def _bytes_between_dead_pages(size: int) -> Array:
    """At least `size` bytes, a whole number of pages, between two pages that fault when touched."""
    pages = max(1, -(-size // _PAGE))
    mapping = mmap.mmap(-1, (pages + 2) * _PAGE)
    everything = np.frombuffer(mapping, np.uint8)  # keeps the mapping alive
    address = everything.__array_interface__["data"][0]
    _mprotect(address, _PAGE, _PROT_NONE)
    _mprotect(address + (pages + 1) * _PAGE, _PAGE, _PROT_NONE)
    return everything[_PAGE : (pages + 1) * _PAGE]


class Guarded:
    """One operand: `view` is the array; the rest of its buffer is guard."""

    def __init__(self, shape: Shape, dtype: npt.DTypeLike, layout: str = "C", edge: str = "") -> None:
        """edge: "" for guards on both sides, "begin" or "end" for an inaccessible page at that side."""
        self.dtype = np.dtype(dtype)
        self.layout, self.edge = layout, edge
        strides = (LAYOUTS.get(layout) or _SPECIAL[layout])(shape)
        empty = 0 in shape
        steps = [] if empty else [(n - 1) * s for n, s in zip(shape, strides, strict=True)]
        low = sum(step for step in steps if step < 0)
        extent = 0 if empty else sum(abs(step) for step in steps) + 1

        itemsize = self.dtype.itemsize
        if edge:
            self._bytes = _bytes_between_dead_pages(extent * itemsize)
            front = 0 if edge == "begin" else len(self._bytes) // itemsize - extent
        else:
            front = -(-_GUARD_ELEMENTS * itemsize // _ALIGNMENT) * _ALIGNMENT // itemsize + (
                layout == "offset"
            )
            self._bytes = _aligned_bytes((front + extent + _GUARD_ELEMENTS) * itemsize)
        self._first = front - low
        self._words = self._bytes.view(f"u{min(8, itemsize)}")
        self._guard = _GUARD_WORDS.get(self.dtype.name, int.from_bytes(b"\xa5" * min(8, itemsize), "little"))
        self._words[...] = self._guard

        self.view: Array = np.ndarray(
            shape, self.dtype, self._bytes.data, self._first * itemsize, tuple(s * itemsize for s in strides)
        )
        outside = np.ones(len(self._bytes) // itemsize, np.bool_)
        np.ndarray(shape, np.bool_, outside.data, self._first, strides)[...] = False
        self._outside = outside if itemsize <= 8 else outside.repeat(itemsize // 8)
        self._sealed = self._words

    @property
    def memory(self) -> Array:
        """All bytes of the buffer."""
        return self._bytes

    def seal(self) -> None:
        """Remember the contents for `assert_unchanged`; at an edge, make writing to them fault."""
        self._sealed = self._words.copy()
        if self.edge:
            _mprotect(self._bytes.__array_interface__["data"][0], len(self._bytes), _PROT_READ)

    def assert_unchanged(self, name: str) -> None:
        assert_same_words(self._words, self._sealed, f"{name} is an input and was written to")

    def assert_guards_intact(self, name: str) -> None:
        hit = np.flatnonzero(self._outside & (self._words != self._guard))
        if hit.size:
            first = int(hit[0]) // max(1, self.dtype.itemsize // 8) - self._first
            raise AssertionError(
                f"{name}: {hit.size} words outside the view were written; the first is {first} elements from"
                f" element (0, ..., 0); shape {self.view.shape}, byte strides {self.view.strides}"
            )
