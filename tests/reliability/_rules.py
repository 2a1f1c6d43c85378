"""What the C interface must answer to an argument list: an oracle that asks the library nothing.

It is made from the headers. Sizes, strides and addresses are Python's integers, so nothing overflows here.
A fault is a status and the names of which a message must use one; a call with several faults may be
refused for any of them, and one without succeeds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, NamedTuple

from _calls import OBJECTS, may_be_null, operator_of, releases
from _headers import Function
from _library import (
    BAD_PARAM,
    BAD_TENSOR_DTYPE,
    BAD_TENSOR_SHAPE,
    BAD_TENSOR_STRIDES,
    DEVICE_NOT_FOUND,
    DEVICE_TYPE_NOT_SUPPORTED,
    DEVICE_TYPES,
    INSUFFICIENT_WORKSPACE,
    INTERNAL_ERROR,
    NOT_IMPLEMENTED,
    NULL_POINTER,
    is_pointer,
)
from _ops import DTYPES, OPS, Layout, Op, row_major

LARGEST = 2**63 - 1  # of ptrdiff_t
MAX_RANK = 16
BY_NUMBER = {dtype.number: dtype for dtype in DTYPES.values()}
HALVES = {DTYPES["f16"].number, DTYPES["bf16"].number}


class Fault(NamedTuple):
    status: int
    names: frozenset[str]


def fault(status: int, *names: str) -> Fault:
    return Fault(status, frozenset(names))


# ---- layouts -----------------------------------------------------------------------------------------------


class Operand(NamedTuple):
    """An operand as a caller describes it, right or wrong: strides in elements, None for row-major."""

    dtype: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None

    @classmethod
    def of(cls, layout: Layout) -> Operand:
        return cls(DTYPES[layout.dtype].number, layout.shape, layout.strides)


def tensor_faults(x: Operand) -> Iterator[Fault]:
    """What is wrong with one operand by itself."""
    if x.dtype not in BY_NUMBER:
        yield fault(BAD_TENSOR_DTYPE, "dtype")
    if len(x.shape) > MAX_RANK:
        yield fault(BAD_TENSOR_SHAPE, "rank")
    itemsize = BY_NUMBER[x.dtype].size if x.dtype in BY_NUMBER else 1
    counted = math.prod(n for n in x.shape if n)  # a zero does not hide an overflow
    unit = itemsize if x.strides is None else 1
    if any(not 0 <= n <= LARGEST for n in x.shape) or counted * unit > LARGEST:
        yield fault(BAD_TENSOR_SHAPE, "size", "elements")
    elif x.strides is not None and 0 not in x.shape:
        span = sum((n - 1) * abs(s) for n, s in zip(x.shape, x.strides, strict=True))
        if (span + 1) * itemsize > LARGEST:
            yield fault(BAD_TENSOR_STRIDES, "stride")


def overlaps_itself(shape: Sequence[int], strides: Sequence[int]) -> bool | None:
    """Have two elements one address? None where that is hard to say."""
    if 0 in shape:
        return False
    dims = sorted((abs(s), n) for n, s in zip(shape, strides, strict=True) if n > 1)
    reach, apart = 0, True
    for stride, n in dims:
        apart = apart and stride > reach
        reach += stride * (n - 1)
    if apart:
        return False
    if math.prod(n for _, n in dims) > reach + 1:
        return True
    for (s, n), (t, m) in itertools.combinations(dims, 2):
        if s == 0 or (t // math.gcd(s, t) < n and s // math.gcd(s, t) < m):
            return True
    if math.prod(n for _, n in dims) > 4096:
        return None
    places = [sum(steps) for steps in itertools.product(*([i * s for i in range(n)] for s, n in dims))]
    return len(set(places)) < len(places)


def _dtypes(op: Op, x: Mapping[str, Operand]) -> Iterator[Fault]:
    lead = op.operands[0]
    if BY_NUMBER.get(x[lead].dtype) not in [DTYPES[name] for name in op.dtypes]:
        yield fault(BAD_TENSOR_DTYPE, lead)
    for name in op.operands[1:]:
        mixed = op.name == "add_rms_norm" and name == "weight" and x[lead].dtype in HALVES
        if x[name].dtype not in ({*HALVES, DTYPES["f32"].number} if mixed else {x[lead].dtype}):
            yield fault(BAD_TENSOR_DTYPE, lead, name)


def _alike(op: Op, x: Mapping[str, Operand], names: Iterable[str]) -> Iterator[Fault]:
    lead = op.operands[0]
    for name in names:
        if x[name].shape != x[lead].shape:
            yield fault(BAD_TENSOR_SHAPE, lead, name)


def _product(op: Op, x: Mapping[str, Operand]) -> Iterator[Fault]:
    c, a, b = op.operands[:3]
    ranks = [fault(BAD_TENSOR_SHAPE, name) for name in (c, a, b) if len(x[name].shape) not in (2, 3)]
    yield from ranks
    if not ranks:
        rows, inner = x[a].shape[-2:]
        inner_b, columns = x[b].shape[-2:]
        batch, *others = [x[name].shape[0] if len(x[name].shape) == 3 else 1 for name in (c, a, b)]
        fits = x[c].shape[-2:] == (rows, columns) and inner == inner_b
        if not fits or any(other not in (1, batch) for other in others):
            yield fault(BAD_TENSOR_SHAPE, c, a, b)
    yield from _alike(op, x, op.operands[3:])


def _norm(op: Op, x: Mapping[str, Operand]) -> Iterator[Fault]:
    if not 1 <= len(x["y"].shape) <= 8:
        yield fault(BAD_TENSOR_SHAPE, "y")
    yield from _alike(op, x, ("residual_out", "a", "b"))
    if x["weight"].shape != x["y"].shape[-1:]:
        yield fault(BAD_TENSOR_SHAPE, "weight")
    for name in op.operands:
        shape, strides = x[name].shape, x[name].strides
        if shape and shape[-1] > 1 and 0 not in shape and strides is not None and strides[-1] != 1:
            yield fault(BAD_TENSOR_STRIDES, name)


def _elementwise(op: Op, x: Mapping[str, Operand]) -> Iterator[Fault]:
    yield from _alike(op, x, op.operands[1:])


_FITTING = {
    "gemm": _product,
    "gemm_add": _product,
    "gemm_mul": _product,
    "add": _elementwise,
    "mul": _elementwise,
    "rearrange": _elementwise,
    "add_rms_norm": _norm,
}


def problem_faults(op: Op, x: Mapping[str, Operand]) -> Iterator[Fault]:
    """What is wrong with operands together, each of which is right by itself."""
    yield from _dtypes(op, x)
    yield from _FITTING[op.name](op, x)
    for name in op.outputs:
        shape, strides = x[name].shape, x[name].strides
        if strides is not None and overlaps_itself(shape, strides):
            yield fault(BAD_TENSOR_STRIDES, name)


def is_contrived(op: Op, x: Mapping[str, Operand]) -> bool:
    """May the library give up and call it an overlap?"""
    return any(
        x[name].strides is not None and overlaps_itself(x[name].shape, x[name].strides or ()) is None
        for name in op.outputs
    )


def read_numbers(op: Op, numbers: Sequence[int], n: int) -> tuple[dict[str, Operand], list[Fault]]:
    """The operands in the numbers of infiniopCreateDescriptor, as far as they can be told, and the faults."""
    operands: dict[str, Operand] = {}
    faults: list[Fault] = []
    at = 0
    for name in op.operands:
        if at + 2 > n:
            return operands, [*faults, fault(BAD_PARAM, "layouts")]
        dtype, rank = numbers[at : at + 2]
        if dtype not in BY_NUMBER:
            faults.append(fault(BAD_TENSOR_DTYPE, name))
        if not 0 <= rank <= MAX_RANK:
            faults.append(fault(BAD_TENSOR_SHAPE, name))
        if at + 2 + 2 * max(0, rank) > n:
            faults.append(fault(BAD_PARAM, "layouts"))
        if not 0 <= rank <= MAX_RANK or at + 2 + 2 * rank > n:
            return operands, faults
        itemsize = BY_NUMBER[dtype].size if dtype in BY_NUMBER else 1
        shape = tuple(numbers[at + 2 : at + 2 + rank])
        steps = numbers[at + 2 + rank : at + 2 + 2 * rank]
        at += 2 + 2 * rank
        if 0 not in shape and any(s % itemsize for n_d, s in zip(shape, steps, strict=True) if n_d > 1):
            faults.append(fault(BAD_TENSOR_STRIDES, name))
        operands[name] = x = Operand(dtype, shape, tuple(s // itemsize for s in steps))
        faults += [fault(one.status, name) for one in tensor_faults(x)]
    if at != n:
        faults.append(fault(BAD_PARAM, "layouts"))
    return operands, faults


# ---- memory ------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def touched(layout: Layout) -> frozenset[int]:
    """Every byte of the elements, from the address of element (0, ..., 0)."""
    steps = [
        [i * s for i in range(n)] for n, s in zip(layout.shape, layout.byte_strides, strict=True)
    ]  # of no dimensions: one element
    starts = {sum(index) for index in itertools.product(*steps)}
    return frozenset(start + i for start in starts for i in range(DTYPES[layout.dtype].size))


@lru_cache(maxsize=1024)
def _bounds(layout: Layout) -> tuple[int, int]:
    return min(touched(layout), default=0), max(touched(layout), default=-1)


def _share_a_byte(x: Layout, p: int, y: Layout, q: int) -> bool:
    (low, high), (low_y, high_y) = _bounds(x), _bounds(y)
    if p + high < q + low_y or q + high_y < p + low:
        return False
    return any(byte + p - q in touched(y) for byte in touched(x))


def _same(x: Layout, y: Layout) -> bool:
    return x.shape == y.shape and x.dtype == y.dtype and x.byte_strides == y.byte_strides


def run_faults(
    op: Op,
    layouts: Mapping[str, Layout],
    pointers: Mapping[str, int],
    workspace: int,
    workspace_size: int,
    needed: int,
) -> Iterator[Fault]:
    """What is wrong with the pointers of a run; 0 is NULL."""
    if workspace_size < needed:
        yield fault(INSUFFICIENT_WORKSPACE, "workspace")
    if workspace == 0 and needed:
        yield fault(NULL_POINTER, "workspace")
    for name, pointer in pointers.items():
        if pointer == 0 and 0 not in layouts[name].shape:
            yield fault(NULL_POINTER, name)
        if pointer % DTYPES[layouts[name].dtype].alignment:
            yield fault(BAD_PARAM, name)
    for output in op.outputs:
        for name in op.operands[op.operands.index(output) + 1 :]:
            x, y = layouts[output], layouts[name]
            p, q = pointers[output], pointers[name]
            if (output, name) in op.in_place and p == q and _same(x, y):
                continue
            if p and q and _share_a_byte(x, p, y, q):
                yield fault(BAD_PARAM, output, name)


# ---- arguments ---------------------------------------------------------------------------------------------


@dataclass
class Value:
    """An argument, and what is known of it."""

    raw: Any
    kind: str = ""  # of a live object
    layout: Any = None  # a tensor descriptor's Layout; an operator descriptor's, by operand
    needed: int = 0  # an operator descriptor's workspace, in bytes

    @property
    def address(self) -> int:
        return int(getattr(self.raw, "value", self.raw) or 0)


class Arguments:
    """The arguments of a call, by parameter."""

    def __init__(self, function: Function, values: Sequence[Value]) -> None:
        self.function = function
        self.values = {p.name: value for p, value in zip(function.parameters, values, strict=True)}

    def __getitem__(self, name: str) -> Value:
        return self.values[name]

    def get(self, name: str, otherwise: Any = None) -> Any:
        return self.values[name].raw if name in self.values else otherwise


CPU_ONLY = range(1)
#: Function, parameter, the values it takes on a machine without plugins, the status of all others.
DOMAINS: list[tuple[str, str, Collection[Any], int]] = [
    ("*", "kind", range(4), BAD_PARAM),
    ("*", "mode", range(3), BAD_PARAM),
    ("*", "flags", range(4), BAD_PARAM),
    ("*", "device", range(DEVICE_TYPES), DEVICE_TYPE_NOT_SUPPORTED),
    ("*SetDevice", "device", CPU_ONLY, DEVICE_TYPE_NOT_SUPPORTED),
    ("*UseDevice", "device", CPU_ONLY, DEVICE_TYPE_NOT_SUPPORTED),
    ("*GetMemInfo", "device", CPU_ONLY, DEVICE_TYPE_NOT_SUPPORTED),
    ("*GetDeviceResourceSnapshot", "device", CPU_ONLY, DEVICE_TYPE_NOT_SUPPORTED),
    ("*GetBackend", "device", CPU_ONLY, DEVICE_TYPE_NOT_SUPPORTED),
    ("*", "device_id", range(1), DEVICE_NOT_FOUND),
    ("*SetNumThreads*", "n", range(2**31), BAD_PARAM),
    ("*MeasureCpuCeiling", "what", range(4), BAD_PARAM),
    ("*CreateDescriptor", "op", {name.encode() for name in OPS}, BAD_PARAM),
    ("*LoadBackend", "path", (), BAD_PARAM),
    ("*Malloc*", "size", range(2**57), INTERNAL_ERROR),  # more than any address space has
]
#: What the CPU cannot do, but for releasing NULL.
UNAVAILABLE = ("*Capture", "infinirtGraph*", "*ResourceSnapshot")
#: Either of two results will do.
ONE_OF = {"infiniopGetVersion": ("abi_version", "version"), "infinirtGetDevice": ("device", "device_id")}
#: Functions of the runtime, with the parameters that say how much there is to do and what else they look at.
NOTHING_TO_DO = [
    ("infinirtMalloc*", "size", ("ptr",)),
    ("infinirtMemcpy*", "size", ("kind",)),
    ("infinirtMemset*", "size", ()),
    ("infinirtFreeAsync", "ptr", ()),
]


def _looked_at(call: Arguments) -> Collection[str]:
    """The parameters that are looked at: few of those of a call that has nothing to do."""
    for pattern, parameter, others in NOTHING_TO_DO:
        if fnmatchcase(call.function.name, pattern) and not call[parameter].address:
            return others
    return call.values


def _nulls(call: Arguments) -> Iterator[Fault]:
    function = call.function
    op = operator_of(function)
    operands = op.operands if op else ("x0", "x1", "x2")
    for parameter in function.parameters:
        if not is_pointer(parameter.type) or call[parameter.name].raw is not None:
            continue
        if may_be_null(function, parameter) or (parameter.name == "shape" and call.get("ndim") == 0):
            continue
        if parameter.type == "infinirtStream_t" or (parameter.name == "log" and call.get("log_size") == 0):
            continue
        if parameter.type in ("void *", "const void *") and parameter.name in operands:
            continue  # that is a question of its elements
        yield fault(NULL_POINTER, parameter.name)
    names = ONE_OF.get(function.name)
    if names and all(call[name].raw is None for name in names):
        yield fault(NULL_POINTER, *names)


def _objects(call: Arguments) -> Iterator[Fault]:
    for parameter in call.function.parameters:
        kind, value = OBJECTS.get(parameter.type), call[parameter.name]
        if kind is None or value.raw is None:
            continue
        kinds = list(OPS) if parameter.type == "const struct InfiniopDescriptor *" else [kind]
        if value.kind not in kinds:
            yield fault(BAD_PARAM, parameter.name)
    if fnmatchcase(call.function.name, "infinirtFree*") and call["ptr"].raw is not None:
        yield fault(BAD_PARAM, "ptr")  # live memory is not among the values


def _domains(call: Arguments) -> Iterator[Fault]:
    for pattern, name, legal, status in DOMAINS:
        if name in call.values and fnmatchcase(call.function.name, pattern):
            value = call.get(name)
            if value is not None and not is_pointer_to_result(call.function, name) and value not in legal:
                yield fault(status, name)
    if call.function.name == "infiniopMeasureCpuCeiling" and call.get("what") in (0, 1):
        if not call.get("bytes") >= 64:
            yield fault(BAD_PARAM, "bytes")
        elif call.get("bytes") >= 2**57:
            yield fault(INTERNAL_ERROR, "bytes")


def _described(call: Arguments) -> Iterator[Fault]:
    """Descriptors of tensors and of operators."""
    name = call.function.name
    if name == "infiniopCreateTensorDescriptor":
        rank, shape, strides = (call.get(key) for key in ("ndim", "shape", "strides"))
        told = tuple(shape)[:rank] if shape is not None and rank <= MAX_RANK else ()
        steps = None if strides is None else tuple(strides)[: len(told)]
        if rank > MAX_RANK:
            yield fault(BAD_TENSOR_SHAPE, "rank")
        yield from tensor_faults(Operand(call.get("dtype"), told, steps))
    elif name == "infiniopCreateDescriptor":
        op = OPS.get((call.get("op") or b"").decode(errors="replace"))
        numbers = call.get("layouts")
        if op is not None and numbers is not None:
            operands, faults = read_numbers(op, list(numbers), call.get("n"))
            yield from faults
            if len(operands) == len(op.operands):
                yield from problem_faults(op, operands)
    else:
        op = operator_of(call.function)
        if op and name == f"infiniopCreate{op.c_name}Descriptor":
            layouts = {operand: call[operand].layout for operand in op.operands}
            if all(call[operand].kind == "tensor" for operand in op.operands):
                yield from problem_faults(op, {key: Operand.of(at) for key, at in layouts.items()})


def _runs(call: Arguments) -> Iterator[Fault]:
    function = call.function
    op = operator_of(function)
    runs = op is not None and function.name == f"infiniop{op.c_name}"
    if not runs and function.name not in ("infiniopRun3", "infiniopGraphAppend"):
        return
    desc = call["desc"]
    if desc.kind not in OPS or (runs and op and desc.kind != op.name):
        return  # that is the fault, and what the pointers should be nobody knows
    op = OPS[desc.kind]
    if function.name == "infiniopRun3":
        if len(op.operands) != 3:
            yield fault(BAD_PARAM, "operands")
            return
        raw = [call[f"x{i}"].address for i in range(3)]
    elif runs:
        raw = [call[name].address for name in op.operands]
    else:
        if call.get("n_operands") != len(op.operands):
            yield fault(BAD_PARAM, "operands")
        if call.get("operands") is None:
            return
        raw = [pointer or 0 for pointer in call.get("operands")][: len(op.operands)]
    workspace = call["workspace"].address if "workspace" in call.values else 0
    size = call.get("workspace_size", 0 if op.has_workspace else 2**64 - 1)
    pointers = dict(zip(op.operands, raw, strict=True))
    yield from run_faults(op, desc.layout, pointers, workspace, size, desc.needed)


def _unavailable(call: Arguments) -> Iterator[Fault]:
    function = call.function
    nothing = releases(function) and call[function.parameters[0].name].raw is None
    if not nothing and any(fnmatchcase(function.name, pattern) for pattern in UNAVAILABLE):
        yield Fault(NOT_IMPLEMENTED, frozenset())


RULES = (_nulls, _objects, _domains, _described, _runs, _unavailable)


def is_pointer_to_result(function: Function, name: str) -> bool:
    """Does the function write there?"""
    (c_type,) = (p.type for p in function.parameters if p.name == name)
    reads = (
        "void *",
        "const void *",
        "const char *",
        "const size_t *",
        "const ptrdiff_t *",
        "const int64_t *",
    )
    return c_type.endswith("*") and c_type not in (*reads, "void * const *", *OBJECTS)


def faults_of(call: Arguments) -> list[Fault]:
    """Everything that is wrong with a call of an exported function; nothing: it succeeds."""
    looked_at = _looked_at(call)
    found = [one for rule in RULES for one in rule(call)]
    if looked_at is not call.values:
        found = [one for one in found if one.names & set(looked_at)]
    return found


def row_major_bytes(x: Operand) -> tuple[int, ...]:
    """Byte strides of an operand, right or wrong."""
    itemsize = BY_NUMBER[x.dtype].size if x.dtype in BY_NUMBER else 1
    return tuple(s * itemsize for s in (row_major(x.shape) if x.strides is None else x.strides))
