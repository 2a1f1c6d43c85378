"""What the operators with a matrix product share: shapes, and batches of any rank."""

from __future__ import annotations

from itertools import product

from .._layout import Layout, Shape, broadcast_to, count
from .._native_op import Problem
from ..errors import ParamError, ShapeError


def product_shape(op: str, a: Shape, b: Shape) -> Shape:
    """The shape of ``a @ b``."""
    for name, shape in (("a", a), ("b", b)):
        if len(shape) < 2:
            raise ShapeError(
                f"{op}: {name} is {shape}, needs 2 or more dimensions; a vector is a matrix with one row "
                "or column"
            )
    if a[-1] != b[-2]:
        raise ShapeError(
            f"{op}: inner dimensions differ: a is {a}, b is {b}; a.shape[-1] must equal b.shape[-2]"
        )
    lead_a, lead_b = a[:-2], b[:-2]
    if lead_a == lead_b or not lead_b:
        return (*a[:-1], b[-1])
    rank = max(len(lead_a), len(lead_b))
    sizes = []
    for size_a, size_b in zip((1,) * (rank - len(lead_a)) + lead_a, (1,) * (rank - len(lead_b)) + lead_b):
        if size_a != size_b and 1 not in (size_a, size_b):
            raise ShapeError(
                f"{op}: batch dimensions do not broadcast: a is {a}, b is {b}; all but the last two must "
                "be equal or 1"
            )
        sizes.append(size_b if size_a == 1 else size_a)
    return (*sizes, a[-2], b[-1])


def missing_addend(beta: float, instead: str = "") -> ParamError:
    """The refusal of a beta without a c."""
    return ParamError(f"gemm: beta is {beta}, but there is no c to add; pass c{instead}")


def product_flops(result: Shape, a: Shape) -> int:
    """Multiplications and additions of a product."""
    return 2 * count(result) * a[-1]


def most_batches(result: Shape) -> int:
    """Runs that :func:`as_batches` may ask for at most."""
    lead = result[:-2]
    return count(lead) // max(lead) if count(lead) and lead else 1


def as_batches(layouts: tuple[Layout, ...]) -> Problem:
    """Reduce any number of batch dimensions to the one that C knows, and a list of runs for those that
    remain.

    The first layout is the result's. Neighbouring dimensions are merged where one stride walks through both
    in all operands.
    """
    lead = layouts[0][1][:-2]
    wide = [broadcast_to(layout, lead + layout[1][-2:]) for layout in layouts]
    merged: list[tuple[int, tuple[int, ...]]] = []  # (size, byte strides of the operands)
    if 0 in lead:
        merged.append((0, (0,) * len(wide)))
    else:
        for size, steps in zip(lead, zip(*(layout[2][:-2] for layout in wide))):
            if size == 1:
                continue
            if merged and merged[-1][1] == tuple(size * step for step in steps):
                merged[-1] = (merged[-1][0] * size, steps)
            else:
                merged.append((size, steps))
    # C gets the longest dimension; the others become runs.
    inner = [merged.pop(max(range(len(merged)), key=lambda i: merged[i][0]))] if merged else []
    reduced = tuple(
        (
            dtype,
            tuple(size for size, _ in inner) + shape[-2:],
            tuple(steps[i] for _, steps in inner) + strides[-2:],
        )
        for i, (dtype, shape, strides) in enumerate(wide)
    )
    if not merged:
        return Problem(reduced)
    offsets = tuple(
        tuple(sum(at * steps[i] for at, (_, steps) in zip(position, merged)) for i in range(len(wide)))
        for position in product(*(range(size) for size, _ in merged))
    )
    return Problem(reduced, offsets)
