"""This library at the C level: prepared descriptors and pointers, so that Python's share is one call."""

from __future__ import annotations

from functools import partial
from typing import Any

from .._native import NULL, check, pointer
from .._native_op import Problem, create
from ..device import CPU
from ..dtypes import DType
from ..ops import Add, AddRMSNorm, Gemm, Mul, Rearrange
from ..tensor import allocate
from .calls import doing_nothing
from .memory import Memory
from .rows import EPSILON, Case
from .timing import Contender

NAME = "infiniop"
_OPERATORS = {operator.name: operator for operator in (Gemm, Add, Mul, AddRMSNorm, Rearrange)}
_PARAMS = {"add_rms_norm": (EPSILON,)}  # fixed by the descriptor
_SCALARS = {"gemm": (1.0, 0.0)}  # of each run

#: The type of gemm's run function. Only gemm has rows where the cost of a call from Python matters.
_GEMM = "int(*)(void *, void *, size_t, void *, const void *, const void *, float, float, void *)"


def contender(case: Case, memory: Memory) -> Contender:
    """This library's calls for a row."""
    operator = _OPERATORS[case.op]
    layouts = tuple(
        (case.dtype, operand.shape, tuple(stride * case.dtype.itemsize for stride in operand.strides))
        for operand in case.operands
    )
    descriptor = create(
        operator.native, case.op, operator.operand_names, CPU, Problem(layouts), _PARAMS.get(case.op, ())
    )
    head: tuple[Any, ...] = (descriptor.pointer,)
    scratch = None
    if operator.native.has_workspace:
        size = descriptor.workspace_size
        scratch = allocate(DType.U8, (size,), CPU)
        head = (descriptor.pointer, pointer(scratch.data_ptr) if size else NULL, size)
    calls = []
    arguments: tuple[Any, ...] = ()
    for which in range(memory.sets):
        operands = [pointer(memory.address(which, i)) for i in range(len(case.operands))]
        arguments = (*head, *operands, *_SCALARS.get(case.op, ()), NULL)
        calls.append(partial(operator.native.run, *arguments))
    overhead = partial(doing_nothing(_GEMM), *arguments) if case.small else None

    def prepare() -> None:
        for call in calls:
            check(call())

    return Contender(NAME, calls, overhead, prepare, (descriptor, scratch, memory))
