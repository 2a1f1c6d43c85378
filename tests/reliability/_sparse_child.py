"""Runs every operator on arrays that reach more than 2^32 elements far, of which few pages are touched;
started by test_sparse.py, once for each instruction set.

    python _sparse_child.py [<operator> ...]

The results must be those of the same arrays without holes. Prints the number of runs.
"""

from __future__ import annotations

import itertools
import math
import mmap
import sys
from collections.abc import Iterator

import numpy as np

from infiniop_py._conformance.cases import CALLS, DTYPES, FLOATS, INTEGERS, N_OUTPUTS, OPERANDS, Case
from infiniop_py._conformance.layouts import Array, Shape, bits

FAR = (1 << 32) + 5  # elements from the first to the last
MAP_NORESERVE = 0x4000
# Rows and columns enough for whole vectors, of every operand; for each way to compute a product; and several
# dimensions for each side of a transposition.
SHAPES: dict[str, tuple[tuple[Shape, ...], ...]] = {
    **dict.fromkeys(
        ("gemm", "gemm_add", "gemm_mul"),
        tuple(
            ((*batch, m, n), (*batch, m, k), (*batch, k, n), (*batch, m, n))
            for batch, m, n, k in (((), 3, 40, 17), ((), 40, 70, 20), ((3,), 9, 21, 18))
        ),
    ),
    "add_rms_norm": (((6, 33), (6, 33), (6, 33), (6, 33), (33,)),),
    **dict.fromkeys(("add", "mul", "rearrange"), (((6, 67),) * 3, ((4, 5, 6, 9),) * 3)),
}
NUMBERS = dict.fromkeys(OPERANDS, FLOATS) | dict.fromkeys(("add", "mul"), FLOATS + INTEGERS)
NUMBERS["rearrange"] = ("u8", "bf16", "f32", "i64", "c128")


def sparse(like: Array, axis: int, turned: bool, output: bool) -> Array:
    """The same elements, compact but for one axis along which they lie far apart; backwards if `turned`.
    Inputs are column-major where outputs are row-major."""
    steps = like.shape[axis] - 1
    others = like.size // like.shape[axis]
    step = max(FAR // steps, others)
    order = [d for d in range(like.ndim)[:: 1 if output else -1] if d != axis]
    strides = [0] * like.ndim
    for place, d in enumerate(order):
        strides[d] = math.prod(like.shape[e] for e in order[place + 1 :])
    strides[axis] = -step if turned else step
    reach = steps * step + others
    memory = mmap.mmap(-1, reach * like.itemsize, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    first = steps * step if turned else 0
    view: Array = np.ndarray(
        like.shape,
        like.dtype,
        memory,
        first * like.itemsize,
        tuple(stride * like.itemsize for stride in strides),
    )
    view[...] = like
    return view


def axes_of(op: str, name: str, shape: Shape) -> Iterator[int]:
    """Along which an operand may reach far."""
    rows_only = op == "add_rms_norm"  # whose last stride must be 1
    return (d for d in range(len(shape)) if not (rows_only and d == len(shape) - 1) and name != "weight")


def values(dtype: str, shape: Shape, rng: np.random.Generator) -> Array:
    return rng.integers(0, 5, shape).astype(DTYPES[dtype])


def main(operators: list[str]) -> None:
    rng, count = np.random.default_rng(7), 0
    for op in operators:
        names, case = OPERANDS[op], Case(op, "f32", ())
        outputs = names[: N_OUTPUTS[op]]
        for shapes, dtype in itertools.product(SHAPES[op], NUMBERS[op]):
            compact = {name: values(dtype, shape, rng) for name, shape in zip(names, shapes, strict=False)}
            wanted = {name: x.copy() for name, x in compact.items()}
            CALLS[op](case, wanted)
            ranks = [list(axes_of(op, name, x.shape)) for name, x in compact.items()]
            for turned in (False, True):
                # One operand reaches far, along each of its axes; and all do, along one or the other.
                one = [{n: axis} for n, axes in zip(names, ranks, strict=True) for axis in axes]
                every = [
                    {n: axes[end] for n, axes in zip(names, ranks, strict=True) if axes} for end in (0, -1)
                ]
                for far in one + every:
                    print(f"{op} {dtype} {shapes[0]} {far} {turned=}", file=sys.stderr, flush=True)
                    arrays = {
                        n: sparse(x, far[n], turned, n in outputs) if n in far else x.copy()
                        for n, x in compact.items()
                    }
                    CALLS[op](case, arrays)
                    for name in outputs:
                        np.testing.assert_array_equal(bits(arrays[name]), bits(wanted[name]), name)
                    count += 1
    print(count)


if __name__ == "__main__":
    main(sys.argv[1:])
