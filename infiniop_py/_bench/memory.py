"""The operands of a row in memory: one or several sets of them, the same for every contender."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from .._machine import available_memory, last_level_cache
from ..dtypes import DType
from .machine import size_text
from .rows import CACHE_LINE, Case, Operand

Array: TypeAlias = "np.ndarray[Any, Any]"

_BLOCK = 65521  # a prime number of values, repeated: rows of a matrix differ
#: The relative distance between 1 and the next number.
_STEPS = {DType.F16: 2.0**-10, DType.BF16: 2.0**-7, DType.F32: 2.0**-23, DType.F64: 2.0**-52}
_BY_SIZE = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def sets_of(case: Case, cache: int | None = None, memory: int | None = None) -> int:
    """How many sets of operands a row goes round: one, or if it is to come from memory, as many as hold
    twice what the last-level cache does and a quarter of the memory can take. 0 if not even one fits.
    """
    cache = last_level_cache() if cache is None else cache
    memory = available_memory() if memory is None else memory
    if case.footprint > memory // 2:
        return 0
    if not case.streams:
        return 1
    return max(1, min(-(-2 * cache // case.footprint), memory // 4 // case.footprint))


def too_large(case: Case) -> str:
    """What is said of a row of which not one set fits."""
    return f"{case.name} is left out: it needs {size_text(case.footprint)} of memory"


def encode(values: Array, dtype: DType) -> Array:
    """Values as `dtype`'s bits, in unsigned integers of its size. BF16 by rounding F32, so that no optional
    package is needed.
    """
    if dtype is DType.BF16:
        wide = values.astype(np.float32).view(np.uint32)
        encoded: Array = ((wide + 0x7FFF + ((wide >> 16) & 1)) >> 16).astype(np.uint16)
    else:
        encoded = values.astype(dtype.numpy).view(_BY_SIZE[dtype.itemsize])
    return encoded


def _values(case: Case, buffer: int, rng: np.random.Generator) -> Array:
    """Numbers that stay normal however often an operator is repeated in place."""
    if len(set(case.buffers)) < len(case.buffers) and buffer == case.buffers[-1]:
        if case.op == "mul":
            return np.ones(_BLOCK)
        # so small that a + b rounds to a
        return np.full(_BLOCK, _STEPS.get(case.dtype, 0.0) / 8)
    if not case.dtype.is_float:
        return rng.integers(0, 100, _BLOCK)
    signs: Array = rng.choice([-1.0, 1.0], _BLOCK)
    return rng.uniform(1, 2, _BLOCK) * signs


class Memory:
    """Sets of operands of one row, filled with random numbers, each `offset` bytes, whole
    elements, behind the start of a cache line.
    """

    def __init__(self, case: Case, sets: int = 1, seed: int = 0, offset: int = 0) -> None:
        self.case = case
        self.sets = sets
        self.offset = offset
        rng = np.random.default_rng(seed)
        self._buffers = [
            [self._filled(size, _values(case, i, rng)) for i, size in enumerate(case.buffer_bytes)]
            for _ in range(sets)
        ]

    def _filled(self, nbytes: int, values: Array) -> Array:
        raw = np.empty(nbytes + 2 * CACHE_LINE, np.uint8)
        start = -raw.ctypes.data % CACHE_LINE + self.offset
        buffer = raw[start : start + nbytes].view(_BY_SIZE[self.case.dtype.itemsize])
        block = encode(values, self.case.dtype)
        whole = len(buffer) // len(block) * len(block)
        buffer[:whole].reshape(-1, len(block))[:] = block
        buffer[whole:] = block[: len(buffer) - whole]
        return buffer

    def storage(self, which: int, operand: int) -> tuple[Array, Operand]:
        """The memory of an operand in one set, as unsigned integers of its element size, and its layout."""
        return self._buffers[which][self.case.buffers[operand]], self.case.operands[operand]

    def address(self, which: int, operand: int) -> int:
        """Of its first element."""
        return int(self.storage(which, operand)[0].ctypes.data)

    def numpy(self, which: int) -> list[Array]:
        """The operands of one set as NumPy arrays. DTypeError where NumPy misses BF16."""
        dtype, itemsize = self.case.dtype.numpy, self.case.dtype.itemsize
        arrays = []
        for i in range(len(self.case.operands)):
            buffer, layout = self.storage(which, i)
            strides = tuple(stride * itemsize for stride in layout.strides)
            arrays.append(np.ndarray(layout.shape, dtype, buffer, 0, strides))
        return arrays
