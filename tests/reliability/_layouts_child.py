"""Creates operator descriptors from layouts of a generator; started by test_hostile.py.

    python _layouts_child.py <shared object of failing_malloc.c, or ""> <seed> <problems> <operator> [...]

Each problem is put both ways, as tensor descriptors and as numbers. Prints the number of calls, and how many
problems had each status.
"""

from __future__ import annotations

import ctypes
import json
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "abi"))

from _checked import Checked
from _library import BAD_TENSOR_STRIDES, SUCCESS, pointer
from _ops import OPS, Op, signed_sizes, sizes
from _problems import Operands, problem
from _rules import (
    MAX_RANK,
    Operand,
    is_contrived,
    problem_faults,
    read_numbers,
    row_major_bytes,
    tensor_faults,
)

INT64 = range(-(2**63), 2**63)
UNWRITTEN = 0xA5A5A5A5A5A5A5A5


class Creator:
    def __init__(self, shim: str, seed: int) -> None:
        self.checked = Checked(shim)
        self.random = random.Random(seed)
        self.handle = pointer()
        assert self.checked.lib.infiniopCreateHandle(ctypes.byref(self.handle)) == SUCCESS
        self.desc = ctypes.c_uint64()
        self.size = ctypes.c_uint64()
        self.statuses: Counter[int] = Counter()
        self.contrived = 0

    def _destroy(self, name: str, what: Any) -> int:
        status, kept = self.checked.plain(name, [what])
        assert status == SUCCESS
        return kept

    # ---- as tensor descriptors ---------------------------------------------------------------------------

    def by_descriptors(self, op: Op, operands: Operands) -> None:
        tensors: list[ctypes.c_void_p] = []
        for x in operands.values():
            made = self._tensor(x)
            if made is None:
                break
            tensors.append(made)
        else:
            self._operator(op, operands, tensors)
        for tensor in tensors:
            self._destroy("infiniopDestroyTensorDescriptor", tensor)

    def _tensor(self, x: Operand) -> ctypes.c_void_p | None:
        name = "infiniopCreateTensorDescriptor"
        made = ctypes.c_uint64(UNWRITTEN)
        strides = None if x.strides is None else signed_sizes(x.strides)
        shape = sizes([n % 2**64 for n in x.shape])
        arguments = [ctypes.addressof(made), len(x.shape), shape, strides, x.dtype]
        status = self.checked.call(name, arguments, list(tensor_faults(x)), watched=[made, shape])
        self.statuses[status] += status != SUCCESS
        return ctypes.c_void_p(made.value) if status == SUCCESS else None

    def _operator(self, op: Op, operands: Operands, tensors: list[ctypes.c_void_p]) -> None:
        scalars = [1e-5] if op.has_epsilon else []
        arguments = [self.handle, ctypes.addressof(self.desc), *tensors, *scalars]
        self._create(f"infiniopCreate{op.c_name}Descriptor", op, arguments, operands, [])

    # ---- as numbers ---------------------------------------------------------------------------------------

    def by_numbers(self, op: Op, operands: Operands) -> None:
        flat: list[int] = []
        for x in operands.values():
            strides = list(row_major_bytes(x))
            if strides and self.random.random() < 0.05:
                strides[self.random.randrange(len(strides))] += 1  # no multiple of most element sizes
            flat += [x.dtype, len(x.shape), *((n + 2**63) % 2**64 - 2**63 for n in x.shape), *strides]
        if not all(number in INT64 for number in flat):
            return  # not to be said in numbers
        n = len(flat) + (self.random.choice((-2, -1, 1, 2)) if self.random.random() < 0.03 else 0)
        room = len(op.operands) * (2 + 2 * MAX_RANK)
        numbers = (ctypes.c_int64 * (max(room, len(flat)) + 2))(*flat)
        told, faults = read_numbers(op, [*flat, *[0] * (len(numbers) - len(flat))], n)
        arguments = [self.handle, ctypes.addressof(self.desc), ctypes.addressof(self.size), op.name.encode()]
        self._create(
            "infiniopCreateDescriptor", op, [*arguments, numbers, n, 1e-5], told, faults, watched=[numbers]
        )

    # ---- both ---------------------------------------------------------------------------------------------

    def _create(
        self, name: str, op: Op, arguments: list[Any], told: Operands, faults: list[Any], watched: Any = ()
    ) -> None:
        self.desc.value = self.size.value = UNWRITTEN
        contrived = False
        if len(told) == len(op.operands):
            faults = [*faults, *problem_faults(op, told)]
            contrived = is_contrived(op, told)
            self.contrived += contrived and not faults

        def undo() -> int:
            made = ctypes.c_void_p(self.desc.value)
            return self._destroy(f"infiniopDestroy{op.c_name}Descriptor", made)

        status = self.checked.call(
            name,
            arguments,
            faults,
            begins=[op.name],
            watched=[self.desc, self.size, *watched],
            undo=undo,
            also=[BAD_TENSOR_STRIDES] if contrived else [],  # a search that exceeds its budget
        )
        self.statuses[status] += 1


def main(shim: str, seed: int, n: int, names: list[str]) -> None:
    creator = Creator(shim, seed)
    for name in names:
        for _ in range(n):
            operands = problem(creator.random, OPS[name])
            print(name, operands, file=sys.stderr, flush=True)
            creator.by_descriptors(OPS[name], operands)
            creator.by_numbers(OPS[name], operands)
    creator.checked.state_is_unchanged()
    assert creator.checked.lib.infiniopDestroyHandle(creator.handle) == SUCCESS
    counts = {"calls": creator.checked.calls, "contrived": creator.contrived}
    print(json.dumps({**counts, "statuses": creator.statuses}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
