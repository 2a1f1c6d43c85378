"""The operators on DTensors: which placements of operands need no communication, and what the result's is.

Importing this registers the rules with torch. What follows holds for each dimension of the mesh; operands
with other placements are redistributed to the cheapest of these first, as with torch's own operators.

======================  ===========================================================================
``gemm``                rows of a, columns of b, batches, or the inner dimension, which makes a sum
                        that is still to be done (``Partial``); c as the result
``add``                 any dimension of both; sums still to be done
``mul``                 any dimension of both; one sum still to be done
``add_rms_norm``        rows; the weight is the same everywhere
``rearrange``           any dimension; a sum still to be done
======================  ===========================================================================

Operands that are broadcast along the dimension are the same everywhere. The forms that write an operand have
no rules. This uses an interface of torch that it calls experimental.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.distributed.tensor import Partial, Placement, Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding

from . import _library  # noqa: F401  registers the operators

Placements = list[Placement | None]
#: Of the results, and of the arguments, None for those that are no tensors.
Rule = tuple[Placements, Placements]

_SAME = Replicate()


def _part(operand: Any, shape: tuple[int, ...], d: int) -> Placement:
    """The placement of an operand where dimension `d` of what it is broadcast to, `shape`, is shared out."""
    own = d - (len(shape) - operand.ndim)
    return Shard(own) if own >= 0 and operand.shape[own] == shape[d] != 1 else _SAME


def _gemm_rules(a: Any, b: Any, *rest: Any) -> Iterator[Rule]:
    shape = (*torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    n = len(shape)

    def rule(result: Placement, of_a: Placement, of_b: Placement) -> Rule:
        scalars: Placements = [None] * min(len(rest), 2)
        addend: list[Placement | None] = [result if rest[2] is not None else None] if len(rest) > 2 else []
        return [result], [of_a, of_b, *scalars, *addend]

    yield rule(_SAME, _SAME, _SAME)
    yield rule(Shard(n - 2), Shard(a.ndim - 2), _SAME)
    yield rule(Shard(n - 1), _SAME, Shard(b.ndim - 1))
    yield rule(Partial(), Shard(a.ndim - 1), Shard(b.ndim - 2))
    for d in range(n - 2):
        yield rule(
            Shard(d), _part(a, (*shape[:-1], a.shape[-1]), d), _part(b, (*shape[:-2], *b.shape[-2:]), d)
        )


def _elementwise_rules(a: Any, b: Any) -> Iterator[Rule]:
    shape = torch.broadcast_shapes(a.shape, b.shape)
    yield [_SAME], [_SAME, _SAME]
    for d in range(len(shape)):
        yield [Shard(d)], [_part(a, shape, d), _part(b, shape, d)]


def _add_rules(a: Any, b: Any) -> Iterator[Rule]:
    yield from _elementwise_rules(a, b)
    yield [Partial()], [Partial(), Partial()]


def _mul_rules(a: Any, b: Any) -> Iterator[Rule]:
    yield from _elementwise_rules(a, b)
    yield [Partial()], [Partial(), _SAME]
    yield [Partial()], [_SAME, Partial()]


def _norm_rules(a: Any, b: Any, weight: Any, *epsilon: Any) -> Iterator[Rule]:
    for rows in (_SAME, *map(Shard, range(a.ndim - 1))):
        yield [rows, rows], [rows, rows, _SAME, *[None] * len(epsilon)]


def _copy_rules(x: Any) -> Iterator[Rule]:
    for placement in (_SAME, Partial(), *map(Shard, range(x.ndim))):
        yield [placement], [placement]


_RULES: dict[str, Callable[..., Iterator[Rule]]] = {
    "gemm": _gemm_rules,
    "add": _add_rules,
    "mul": _mul_rules,
    "add_rms_norm": _norm_rules,
    "rearrange": _copy_rules,
}

for _name, _rules in _RULES.items():
    register_sharding(getattr(torch.ops.infiniop, _name).default)(
        lambda *args, rules=_rules: list(rules(*args))
    )
