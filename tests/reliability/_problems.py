"""Problems for operators, legal and not: a legal one, then up to three things done to its layouts."""

from __future__ import annotations

import random
from collections.abc import Callable

from _ops import DTYPES, Op, row_major
from _rules import Operand

SIZES = (0, 1, 2, 3, 5, 17, 2**31, 2**32, 2**53, 2**60, 2**61, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
STRIDES = (0, 1, -1, 2, -3, 7, 2**31, -(2**32), 2**59, 2**60, -(2**61), 2**62, 2**63 - 1, 1 - 2**63, -(2**63))
NUMBERS = (*range(-1, 22), 2**31 - 1, -(2**31))  # of dtypes

Operands = dict[str, Operand]
Random = random.Random


def _clipped(stride: int) -> int:
    return min(max(stride, -(2**63)), 2**63 - 1)


# ---- legal ones --------------------------------------------------------------------------------------------


def _shapes(r: Random, op: Op) -> dict[str, tuple[int, ...]]:
    if op.name.startswith("gemm"):
        m, n, k = (r.choice((0, 1, 2, 3, 5)) if r.random() < 0.5 else r.randint(1, 4) for _ in range(3))
        batch = r.choice(((), (), (1,), (2,), (3,), (0,)))
        a, b = (r.choice((batch, (1,), ())) for _ in "ab")
        others = op.operands[1:]
        made = dict.fromkeys(op.operands, (*batch, m, n))  # also an epilogue's d
        return made | {others[0]: (*a, m, k), others[1]: (*b, k, n)}
    norm = op.name == "add_rms_norm"
    rank = r.choice((1, 2, 3, 8) if norm else (0, 1, 2, 3, 4, 16))
    shape = tuple(r.choice((0, 1, 1, 2, 3, 3, 4) if rank < 8 else (1, 1, 1, 1, 2)) for _ in range(rank))
    return {name: shape[-1:] if name == "weight" else shape for name in op.operands}


def _strides(
    r: Random, shape: tuple[int, ...], *, is_output: bool, keep_last: bool
) -> tuple[int, ...] | None:
    """Row-major, in another order, with gaps, backwards, and of inputs with zeros."""
    rank = len(shape)
    if r.random() < 0.25:
        return None
    loops = rank - 1 if keep_last and rank else rank
    order = [*r.sample(range(loops), loops), *range(loops, rank)]
    gap = r.choice((1, 1, 2, 3))
    steps = [0] * rank
    step = 1
    for d in reversed(order):
        steps[d] = step * r.choice((1, 1, -1)) if d < loops else step
        step *= max(1, shape[d])
        if d >= loops or not keep_last:
            step *= gap
            steps[d] *= 1 if keep_last else gap
    for d in range(loops):
        if shape[d] <= 1 and r.random() < 0.3:
            steps[d] = r.choice(STRIDES)  # where no step is taken
        elif not is_output and r.random() < 0.15:
            steps[d] = 0
    return tuple(steps)


def legal(r: Random, op: Op) -> Operands:
    """A small problem that every rule allows."""
    dtype = DTYPES[r.choice(op.dtypes)].number
    keep_last = op.name == "add_rms_norm"
    operands = {
        name: Operand(dtype, shape, _strides(r, shape, is_output=name in op.outputs, keep_last=keep_last))
        for name, shape in _shapes(r, op).items()
    }
    if keep_last and DTYPES["f16"].size == _size(dtype):
        weight = DTYPES[r.choice(("f16", "bf16", "f32"))].number
        operands["weight"] = operands["weight"]._replace(dtype=weight)
    return operands


def _size(number: int) -> int:
    return next((dtype.size for dtype in DTYPES.values() if dtype.number == number), 1)


# ---- what is done to them ----------------------------------------------------------------------------------


def _one(r: Random, operands: Operands, change: Callable[[Operand], Operand]) -> None:
    name = r.choice(list(operands))
    operands[name] = change(operands[name])


def _explicit(x: Operand) -> list[int]:
    return [_clipped(s) for s in (row_major(x.shape) if x.strides is None else x.strides)]


def _one_dtype(r: Random, operands: Operands) -> None:
    _one(r, operands, lambda x: x._replace(dtype=r.choice(NUMBERS)))


def _all_dtypes(r: Random, operands: Operands) -> None:
    number = r.choice(NUMBERS)
    for name, x in operands.items():
        operands[name] = x._replace(dtype=number)


def _one_size(r: Random, operands: Operands) -> None:
    def change(x: Operand) -> Operand:
        if not x.shape:
            return x
        d, shape = r.randrange(len(x.shape)), list(x.shape)
        shape[d] = r.choice((*SIZES, min(shape[d] + 1, SIZES[-1]), max(shape[d], 5) - 1))
        return x._replace(shape=tuple(shape))

    _one(r, operands, change)


def _common_size(r: Random, operands: Operands) -> None:
    """A dimension of all operands, counted from the end: with strides as they were, row-major, or 0."""
    back, size, how = r.randint(1, 3), r.choice(SIZES), r.choice(("kept", "row-major", "zero", "none"))
    for name, x in operands.items():
        if len(x.shape) < back:
            continue
        d = len(x.shape) - back
        shape = (*x.shape[:d], size, *x.shape[d + 1 :])
        strides = _explicit(x) if how in ("kept", "zero") else _explicit(Operand(x.dtype, shape))
        if how == "zero":
            strides[d] = 0
        operands[name] = Operand(x.dtype, shape, None if how == "none" else tuple(strides))


def _hidden(r: Random, operands: Operands) -> None:
    """Sizes of all dimensions that overflow together; maybe behind stride 0, maybe behind a size of 0."""
    rank = r.randint(2, 4)
    shape = [r.choice((2**31, 2**32, 2**40, 2**62, 2**63 - 1)) for _ in range(rank)]
    if r.random() < 0.5:
        shape[r.randrange(rank)] = r.choice((0, 1))
    strides = r.choice((None, (0,) * rank, (1,) * rank, (*(0,) * (rank - 1), 1)))
    for name, x in operands.items():
        operands[name] = Operand(x.dtype, tuple(shape), strides)


def _one_rank(r: Random, operands: Operands) -> None:
    def change(x: Operand) -> Operand:
        how, strides = r.choice(("drop", "one", "more", "17", "none")), _explicit(x)
        if how == "drop" and x.shape:
            return x._replace(shape=x.shape[1:], strides=tuple(strides[1:]))
        if how == "17":
            return x._replace(shape=(1,) * 17, strides=r.choice((None, (0,) * 17)))
        if how == "none":
            return x._replace(shape=(), strides=())
        return x._replace(shape=(1 if how == "one" else 2, *x.shape), strides=(r.choice(STRIDES), *strides))

    _one(r, operands, change)


def _one_stride(r: Random, operands: Operands) -> None:
    def change(x: Operand) -> Operand:
        strides = _explicit(x)
        if strides:
            strides[r.randrange(len(strides))] = r.choice(STRIDES)
        return x._replace(strides=tuple(strides))

    _one(r, operands, change)


def _small_strides(r: Random, operands: Operands) -> None:
    """Elements close together, on top of each other or not."""
    _one(r, operands, lambda x: x._replace(strides=tuple(r.randint(-6, 6) for _ in x.shape)))


def _output_strides(r: Random, operands: Operands) -> None:
    name = next(iter(operands))
    x = operands[name]
    steps = tuple(r.choice((0, 1, 2, 3, 5, 7, 11)) * r.choice((1, -1)) for _ in x.shape)
    operands[name] = x._replace(strides=steps)


CHANGES = (
    _one_dtype,
    _all_dtypes,
    _one_size,
    _common_size,
    _hidden,
    _one_rank,
    _one_stride,
    _small_strides,
    _output_strides,
)


def problem(r: Random, op: Op) -> Operands:
    """A problem with nothing to three things done to it."""
    operands = legal(r, op)
    for _ in range(r.choice((0, 1, 1, 1, 2, 3))):
        r.choice(CHANGES)(r, operands)
    return operands
