"""Random programs of the operators, run eagerly and as a replayed graph, and compared bit for bit.

A program is Python source: lines that make its inputs, as views of guarded buffers or in memory of their
own, and lines that compute. What runs is what is printed, so a program that fails can be pasted. Each line
was tried on shadows (``shadow.py``) before it became part of the program.

    PYTHONPATH=. python tests/programs.py --count 100000       look for failures, from seed 0 on
    PYTHONPATH=. python tests/programs.py --first 5000 --count 10 --verbose   say each seed before it runs
    PYTHONPATH=. python tests/programs.py --seed 17            run one; a failure is made small and printed
    PYTHONPATH=. python tests/programs.py --seed 17 --print    print it, without running it
    PYTHONPATH=. python tests/programs.py --count 2000 --stats what programs hold, and how long they take

``--mode '{"fuse": "fast"}' --roundings 64`` gives Graph these arguments, and lets results differ by so many
units of roundoff of the largest value that occurred.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import json
import math
import random
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from types import CodeType
from typing import Any

import ml_dtypes
import numpy as np
import shadow
from shadow import FLOATS, INTEGERS, OTHERS, SET, TENSOR_DTYPES, Avoid, Plan, Refused, Root, Shadow

import infiniop_py as ip
from infiniop_py._conformance.layouts import bits

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]

#: Arguments of Graph that the test runs programs with, the roundings by which results may then differ, in
#: units of roundoff of the largest value that occurred (0: not by a bit), and how many programs.
MODES: list[tuple[dict[str, Any], float, int]] = [
    ({}, 0, 2000),
    ({"fuse": "none"}, 0, 300),
    ({"fuse": "fast"}, 64, 300),
]

_ROUNDS = 3
_GUARD_BYTES = 192
_GUARD = 0xA5
_SPECIAL = 16  # seeds divisible by it give special values here and there
_WIDEST = 8.0  # magnitudes of values, in powers of two, that programs keep to, special ones excepted
_ROUNDOFF = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}


class Failure(AssertionError):
    """A program did not do the same in both ways."""


# ---- contents ----------------------------------------------------------------------------------------------


def values(shape: int | Shape, dtype: str, seed: int) -> Array:
    """Contents from a seed: floats of order 1 (and NaN, inf, -0, ... if the seed is divisible by 16), else
    random bits.
    """
    kind = np.dtype(dtype)
    rng = np.random.default_rng(seed)
    count = math.prod(shape) if isinstance(shape, tuple) else shape
    if dtype in FLOATS:
        out = rng.standard_normal(count, np.float64 if dtype == "float64" else np.float32).astype(kind)
        if seed % _SPECIAL == 0 and count:
            limits = ml_dtypes.finfo(kind)
            special = (np.nan, np.inf, -np.inf, -0.0, 0.0, limits.max, limits.smallest_subnormal)
            for at in rng.integers(0, count, 1 + count // 16):
                out[at] = special[rng.integers(len(special))]
    elif dtype == "bool":
        out = rng.integers(0, 2, count).astype(kind)
    else:
        out = np.frombuffer(bytearray(rng.bytes(count * kind.itemsize)), kind)
    return out.reshape(shape)


def _guarded(size: int, dtype: str) -> tuple[Array, Array]:
    """All bytes of a buffer, and its elements, which have guards around them."""
    raw = np.full(size * np.dtype(dtype).itemsize + 2 * _GUARD_BYTES, _GUARD, np.uint8)
    return raw, raw[_GUARD_BYTES : len(raw) - _GUARD_BYTES].view(dtype)


def buffer(size: int, dtype: str, seed: int) -> Array:
    """A buffer of a program, with its first contents."""
    inner = _guarded(size, dtype)[1]
    inner[...] = values(size, dtype, seed)
    return inner


def refused(call: Callable[[], Any]) -> type[ip.InfiniopError]:
    """Run a call that must be refused; returns the exception's type."""
    try:
        call()
    except ip.InfiniopError as error:
        return type(error)
    raise Failure("a call was not refused")


# ---- programs ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Buffer:
    """Memory that inputs are views of. Its contents change between the runs."""

    name: str
    dtype: str
    size: int


@dataclass(frozen=True)
class Program:
    """Lines of Python: `setup` runs before the recording, `body` is recorded."""

    seed: int
    buffers: tuple[Buffer, ...]
    setup: tuple[str, ...]
    body: tuple[str, ...]
    features: frozenset[str] = frozenset()

    @property
    def widest(self) -> float:
        return math.inf if self.seed % _SPECIAL == 0 else _WIDEST

    def contents(self, index: int, round_: int) -> int:
        """The seed of what a buffer holds in a round."""
        return self.seed + _SPECIAL * (1 + index + 1000 * round_)

    def __str__(self) -> str:
        lines = [
            f"# seed {self.seed}",
            "import numpy as np",
            "from programs import buffer, refused, values",
            "",
            "import infiniop_py as ip",
            "",
        ]
        for i, one in enumerate(self.buffers):
            if one.size:
                lines.append(f'{one.name} = buffer({one.size}, "{one.dtype}", {self.contents(i, 0)})')
        lines += self.setup
        lines.append("with ip.Graph() as graph:  # without this line, and the last: eagerly")
        lines += [f"    {line}" for line in self.body or ("pass",)]
        lines.append("graph.run()")
        return "\n".join(lines)


@lru_cache(maxsize=1 << 14)
def _code(line: str) -> CodeType:
    return compile(line, f"<{line}>", "exec")


def _shadows(program: Program) -> dict[str, Any]:
    env = shadow.namespace(program.widest)
    for one in program.buffers:
        root = Root(one.dtype, "buffer", program.widest)
        env[one.name] = Shadow(np.full(one.size, SET, np.int8), root, False)
    return env


def trace(program: Program) -> dict[str, Any]:
    """The program's variables at its end, as shadows."""
    env = _shadows(program)
    for line in program.setup:
        _set_up(line, env)
    for line in program.body:
        exec(_code(line), env)
    return env


def _set_up(line: str, env: dict[str, Any]) -> None:
    exec(_code(line), env)
    made = env[line.partition(" ")[0]].root
    if made.origin == "result":  # of an operator, but before the recording
        made.origin = "input"


def _names_in(lines: Iterable[str]) -> set[str]:
    """The program's own names: a letter and a number."""
    return set(re.findall(r"\b[bvxp]\d+\b", "\n".join(lines)))


def repaired(program: Program) -> Program:
    """The program without the lines that are of no use when others are gone."""
    env = _shadows(program)

    def kept(lines: tuple[str, ...], run: Callable[[str], None]) -> Iterator[str]:
        for line in lines:
            try:
                run(line)
            except Exception:  # also what views of another shape than before do not take
                continue
            yield line

    setup = tuple(kept(program.setup, lambda line: _set_up(line, env)))
    body = tuple(kept(program.body, lambda line: exec(_code(line), env)))
    return replace(program, setup=setup, body=body)


def without_unused_buffers(program: Program) -> Program:
    """Those that are left keep their places, so that they keep their contents; the others have none."""
    used = _names_in(program.setup)
    kept = tuple(one if one.name in used else replace(one, size=0) for one in program.buffers)
    return replace(program, buffers=kept)


# ---- both ways ---------------------------------------------------------------------------------------------


class World:
    """One set of a program's buffers and inputs."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.refusals: list[type] = []
        self.env: dict[str, Any] = {"np": np, "ip": ip, "values": values, "refused": self._refused}
        self.raw: list[Array] = []
        self.inner: list[Array] = []
        for one in program.buffers:
            raw, inner = _guarded(one.size, one.dtype)
            self.raw.append(raw)
            self.inner.append(inner)
            self.env[one.name] = inner
        self.fill(0)
        for line in program.setup:
            exec(_code(line), self.env)

    def _refused(self, call: Callable[[], Any]) -> None:
        self.refusals.append(refused(call))

    def fill(self, round_: int) -> None:
        """Give the buffers the contents of a round."""
        for i, (one, inner) in enumerate(zip(self.program.buffers, self.inner)):
            inner[...] = values(one.size, one.dtype, self.program.contents(i, round_))

    def execute(self, env: dict[str, Any], watch: Callable[[Any], None] | None = None) -> None:
        self.refusals.clear()
        for line in self.program.body:
            try:
                exec(_code(line), env)
            except ip.InfiniopError as error:
                raise Failure(f"refused: {line}\n{type(error).__name__}: {error}") from None
            if watch is not None:
                for name in _code(line).co_names:
                    watch(env.get(name))


def _array(value: Any) -> Array | None:
    """The array of a variable, on its own memory."""
    if isinstance(value, ip.GraphOperator):
        value = value.operands[0]
    if isinstance(value, ip.Tensor):
        return value.numpy()
    return value if isinstance(value, np.ndarray) else None


class _Largest:
    """The largest finite absolute value seen."""

    def __init__(self) -> None:
        self.value = 0.0

    def __call__(self, value: Any) -> None:
        array = _array(value)
        if array is not None and array.dtype.name in FLOATS:
            wide = np.abs(_wide(array))
            self.value = max(self.value, float(np.max(wide, initial=0.0, where=np.isfinite(wide))))


def _wide(array: Array) -> Array:
    with np.errstate(invalid="ignore"):  # signalling NaNs in memory that nobody has written
        return array.astype(np.float64)


def differences(got: Array, wanted: Array, where: Array | None, allowed: float = 0.0) -> Array:
    """Where, as flat indices, two arrays differ by more than `allowed`; a NaN equals any NaN."""
    if got.shape != wanted.shape or got.dtype != wanted.dtype:
        raise Failure(f"{got.dtype}{got.shape} in place of {wanted.dtype}{wanted.shape}")
    parts = (2,) if got.dtype.itemsize == 16 else ()
    differ = bits(got).reshape(got.size, *parts) != bits(wanted).reshape(got.size, *parts)
    if parts:
        differ = differ.any(axis=1)
    if where is not None:
        differ &= where.reshape(-1)
    at = np.flatnonzero(differ)
    if at.size and got.dtype.name in FLOATS:
        x, y = (_wide(one.reshape(-1)[at]) for one in (got, wanted))
        with np.errstate(invalid="ignore"):  # inf - inf
            equal = np.isnan(x) & np.isnan(y) | (np.abs(x - y) <= allowed if allowed else False)
        at = at[~equal]
    return at


def _need_equal(
    what: str, got: Array, wanted: Array, where: Array | None, roundings: float, largest: float
) -> None:
    allowed = roundings * _ROUNDOFF.get(got.dtype.name, 0.0) * largest
    at = differences(got, wanted, where, allowed)
    if at.size:
        first = np.unravel_index(at[0], got.shape)
        raise Failure(
            f"{what}: {at.size} of {got.size} elements differ, the first at {tuple(map(int, first))}: "
            f"{got[first]!r}, eagerly {wanted[first]!r}"
        )


def _spoil(array: Array, where: Array) -> None:
    """Overwrite elements with other bits."""
    if array.flags.writeable and where.any():
        if array.dtype.itemsize == 16:
            array[where] = complex(math.nan, 1234.5)
        else:
            np.copyto(array.view(f"u{array.dtype.itemsize}"), 0x7B, where=where, casting="unsafe")


def _churned(sizes: Iterable[int] = ()) -> list[Array]:
    """Memory that was given back, if the allocator thinks so, in the hands of somebody else."""
    out = [np.full(size, _GUARD, np.uint8) for size in (24, 64, 200, 600, 4000, *sizes)]
    for size in sizes:
        out.append(ip.empty(size, "U8").numpy())
        out[-1][...] = _GUARD
    return out


def check(program: Program, mode: dict[str, Any] | None = None, roundings: float = 0.0) -> None:
    """Run a program eagerly and as a graph, on several contents; Failure if they differ.

    Round 0 runs on the first contents, round 1 on others, round 2 on what round 1 has left.
    """
    finals = {
        name: one.output if isinstance(one, Plan) else one
        for name, one in trace(program).items()
        if isinstance(one, (Shadow, Plan))
    }
    eager = World(program)
    # Some programs are recorded twice: two graphs, which run in turn, have nothing in common.
    worlds = [World(program) for _ in range(2 if program.seed % 5 == 0 else 1)]
    graphs, held = [], []
    for world in worlds:
        graph = ip.Graph(**(mode or {}))
        with graph:
            world.execute(world.env)
        for one, inner, untouched in zip(program.buffers, world.inner, eager.inner):
            _need_equal(f"{one.name}, when recorded", inner, untouched, None, 0, 0)
        graphs.append(graph)
        # From here on the results are held as Tensors and arrays, or as arrays on the same memory alone.
        held.append({name: world.env[name] for name in finals if name[0] != "b"})
        if program.seed % 2:
            held[-1] = {name: _array(value) for name, value in held[-1].items()}
        world.env.clear()
        if program.seed % 16 == 3:
            gc.collect()
    others = _churned()
    largest = _Largest()
    for round_ in range(_ROUNDS):
        if round_ == 1:
            for one in (eager, *worlds):
                one.fill(round_)
        if round_ == 2 and program.seed % 4 < 2:
            # What nobody holds any more, nobody looks at; the memory may be somebody else's now.
            sizes = []
            for variables in held:
                for name in list(variables)[::2]:
                    if finals[name].root.origin == "result":
                        sizes.append(finals[name].size * np.dtype(finals[name].dtype).itemsize)
                        del variables[name]
            others += _churned(sizes)
        env = dict(eager.env)
        eager.execute(env, largest if roundings else None)
        for one, raw in zip(program.buffers, eager.raw):
            largest(raw[_GUARD_BYTES : len(raw) - _GUARD_BYTES].view(one.dtype))
        for world, graph, variables in zip(worlds, graphs, held):
            for name, value in variables.items():
                if finals[name].root.origin in ("result", "constant"):
                    # What the program sets it must set again in each run.
                    _spoil(_array(value), finals[name].state == SET)  # type: ignore[arg-type]
            if round_ == 2 and program.seed % 7 == 0:
                thread = threading.Thread(target=graph.run)
                thread.start()
                thread.join()
            else:
                graph.run()
            _compare(f"round {round_}", program, world, eager, variables, env, finals, roundings, largest)
    # Results outlive their graph.
    del graph, variables
    graphs.clear()
    others += _churned()
    for world, variables in zip(worlds, held):
        _compare("without the graph", program, world, eager, variables, env, finals, roundings, largest)
    for array in others:
        if (array != _GUARD).any():
            raise Failure(f"memory of somebody else was written, {array.nbytes} bytes in size")


def _compare(
    when: str,
    program: Program,
    world: World,
    eager: World,
    variables: dict[str, Any],
    env: dict[str, Any],
    finals: dict[str, Shadow],
    roundings: float,
    largest: _Largest,
) -> None:
    if world.refusals != eager.refusals:
        raise Failure(f"{when}: refused with {world.refusals}, eagerly {eager.refusals}")
    for one, got, wanted, raw in zip(program.buffers, world.inner, eager.inner, world.raw):
        _need_equal(f"{when}: buffer {one.name}", got, wanted, None, roundings, largest.value)
        for side, guard in (("before", raw[:_GUARD_BYTES]), ("after", raw[-_GUARD_BYTES:])):
            if (guard != _GUARD).any():
                raise Failure(f"{when}: the memory {side} buffer {one.name} was written")
    for name, variable in variables.items():
        got, wanted = _array(variable), _array(env[name])
        assert got is not None and wanted is not None
        _need_equal(f"{when}: {name}", got, wanted, finals[name].state != 0, roundings, largest.value)


# ---- making programs ---------------------------------------------------------------------------------------


def generate(seed: int) -> Program:
    """The program of a seed."""
    return _Writer(seed).program()


class _Writer:
    """Writes one program: proposes lines, and keeps those that the shadows let pass."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = rand = random.Random(seed)
        self.empty_program = Program(seed, (), (), ())
        self.env = _shadows(self.empty_program)
        self.buffers: list[Buffer] = []
        self.setup: list[str] = []
        self.body: list[str] = []
        self.features: set[str] = set()
        self.may_rebind = False  # may a result take a name that had another meaning?
        self.n_names = 0
        self.n_operators = 0
        self.dtype = rand.choice(FLOATS) if rand.random() < 0.8 else rand.choice(INTEGERS + OTHERS)
        self.tensors = rand.choice((0.0, 0.5, 0.8, 1.0))  # share of inputs that are Tensors
        self.forget = rand.choices((0.0, 0.3, 0.7, 1.0), (25, 30, 33, 12))[0]  # share of results not held
        palette = (1, 2, 3, 4, 5, 6, 8, 12, 16, 17)
        if rand.random() < 0.06:
            palette = (1, 7, 24, 33, 48, 70)
        self.sizes = rand.choices(palette, k=3) + ([0] if rand.random() < 0.08 else [])

    def program(self) -> Program:
        rand = self.random
        wanted = rand.choice((1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 18, 22))
        favourite = rand.choice(list(self.steps()))
        for _ in range(4 * wanted):
            if self.n_operators >= wanted:
                break
            steps = self.steps()
            weights = [weight + 8 * (step is favourite) for step, weight in steps.items()]
            (step,) = rand.choices(list(steps), weights)
            self.may_rebind = step in (_Writer.elementwise, _Writer.gemm, _Writer.rearrange)
            step(self)
        self._forget_at_the_end()
        used = _names_in(self.body)
        setup = tuple(line for line in self.setup if line.partition(" ")[0] in used)
        body, features = tuple(self.body), frozenset(self.features)
        return without_unused_buffers(Program(self.seed, tuple(self.buffers), setup, body, features))

    # ---- lines -------------------------------------------------------------------------------------------

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def emit(self, line: str, operators: int = 1) -> bool:
        try:
            exec(_code(line), self.env)
        except (Avoid, Refused):
            return False
        self.body.append(line)
        self.n_operators += operators
        return True

    def peek(self, expression: str) -> Shadow:
        return eval(_code_of_expression(expression), self.env)  # type: ignore[no-any-return]

    def name(self, first: str = "v") -> str:
        self.n_names += 1
        return f"{first}{self.n_names}"

    def result(self, expression: str) -> str | None:
        """A line that gives a name to a new result; sometimes one that had another meaning."""
        name = self.name()
        if (
            self.may_rebind
            and self.chance(0.2)
            and (mine := [one for one in self.variables() if one[0] == "v"])
        ):
            name = self.random.choice(mine)
            self.features.add("rebound name")
        return name if self.emit(f"{name} = {expression}") else None

    def drop(self, *names: str | None, share: float | None = None) -> None:
        """Forget results, or not."""
        for name in names:
            if name in self.env and self.chance(self.forget if share is None else share):
                self.emit(f"del {name}", 0)
                self.features.add("dropped at once")

    def _forget_at_the_end(self) -> None:
        names = [name for name in self.env if re.fullmatch(r"[vxp]\d+", name)]
        results = [name for name in names if name[0] == "v" and self.env[name].root.origin == "result"]
        for name in names:
            if name in results[-1:] and self.forget < 1:
                continue
            if name[0] != "x" and self.chance(self.forget):
                self.emit(f"del {name}", 0)
            elif name[0] == "x" and self.chance(0.15) and name in _names_in(self.body):
                self.emit(f"del {name}", 0)
                self.features.add("dropped input")
        roots = [one.root for one in self.env.values() if isinstance(one, Shadow)]
        held = any(root.origin == "result" for root in roots)
        updated = any(root.written and root.origin in ("buffer", "input") for root in roots)
        if updated:
            self.features.add("input updated")
        if not held:
            self.features.add("no result held" if updated else "no result held, no input updated")

    # ---- operands ----------------------------------------------------------------------------------------

    def variables(self, dtype: str | None = None) -> list[str]:
        return [
            name
            for name, one in self.env.items()
            if isinstance(one, Shadow) and name[0] != "b" and (dtype is None or one.dtype == dtype)
        ]

    def readable(self) -> list[str]:
        return [name for name in self.variables(self.dtype) if self.env[name].is_set()]

    def recent(self, names: list[str]) -> str:
        return self.random.choice(names[-3:] if self.chance(0.6) else names)

    def size(self) -> int:
        return self.random.choice(self.sizes) if self.chance(0.9) else self.random.randint(1, 9)

    def shape(self, least: int = 0) -> Shape:
        rank = max(least, self.random.choices((0, 1, 2, 3, 4), (1, 3, 8, 4, 2))[0])
        shape = tuple(self.size() for _ in range(rank))
        return shape if math.prod(shape) <= 6000 else shape[-max(1, least) :]

    def new_input(self, shape: Shape, dtype: str | None = None) -> str:
        """A new input: a view of a buffer, of a buffer that has views already, or memory of its own."""
        dtype = dtype or self.dtype
        rand = self.random
        name = self.name("x")
        kind = rand.choices(("buffer", "shared", "tensor", "array", "constant"), (56, 22, 10, 6, 6))[0]
        if kind == "constant" and dtype not in OTHERS:
            return self._new_constant(shape, dtype)
        layout = rand.choices(("C", "T", "stepped", "padded", "reversed"), (50, 20, 10, 10, 10))[0]
        whole, view = shape, ""
        if layout == "T":
            whole, view = shape[::-1], ".T"
        elif layout == "stepped" and shape:
            whole, view = (*shape[:-1], 2 * shape[-1]), "[..., ::2]"
        elif layout == "padded" and shape:
            whole, view = (*shape[:-1], shape[-1] + 3), "[..., 1:-2]"
        elif layout == "reversed" and shape:
            view = "[::-1]"
        if kind in ("tensor", "array"):
            source = f'values({whole}, "{dtype}", {self.seed + _SPECIAL * (500 + self.n_names)}){view}'
            if kind == "tensor":
                source = f"ip.rearrange(ip.from_numpy({source}))"
            self.features.add("input with memory of its own")
        else:
            count = math.prod(whole)
            fits = [one for one in self.buffers if one.dtype == dtype and one.size >= count]
            if kind == "shared" and fits:
                one = rand.choice(fits)
                self.features.add("inputs share a buffer")
            else:
                one = Buffer(f"b{len(self.buffers)}", dtype, count + rand.choice((0, 0, 1, 4)))
                self.buffers.append(one)
                widest = self.empty_program.widest
                self.env[one.name] = Shadow(
                    np.full(one.size, SET, np.int8), Root(dtype, "buffer", widest), False
                )
            start = rand.randint(0, one.size - count)
            source = f"{one.name}[{start}:{start + count}].reshape({whole}){view}"
            if self.chance(self.tensors):
                source = f"ip.from_numpy({source})"
        line = f"{name} = {source}"
        _set_up(line, self.env)
        self.setup.append(line)
        return name

    def _new_constant(self, shape: Shape, dtype: str) -> str:
        name = self.name()
        if self.chance(0.3):
            source = f"np.ones({shape}, {dtype!r})"
        elif self.chance(0.4) and 0 not in shape and math.prod(shape) < 100:
            source = f'ip.arange({math.prod(shape)}, dtype="{TENSOR_DTYPES[dtype]}").reshape({shape})'
        else:
            source = f'ip.{self.random.choice(("ones", "zeros"))}({shape}, "{TENSOR_DTYPES[dtype]}")'
        assert self.emit(f"{name} = {source}", 0)
        self.features.add("constant made while recording")
        return name

    def any_operand(self, least: int = 0) -> str:
        """Anything to read, of at least this rank."""
        names = [name for name in self.readable() if least <= self.env[name].ndim <= 5]
        if not names or self.chance(0.08):
            return self.new_input(self.shape(least))
        operand = self.recent(names)
        return self.view(operand, least) if self.chance(0.3) else operand

    def view(self, operand: str, least: int = 0) -> str:
        """A view of a view ... of an operand."""
        for _ in range(self.random.choice((1, 1, 2, 3))):
            one = self.peek(operand)
            expression = self._one_view(operand, one)
            if expression is not None and len(expression) < 90:
                new = self.peek(expression)
                if least <= new.ndim <= 5 and new.size <= 6000:
                    operand = expression
        if self.chance(0.3) and len(operand) > 4:
            name = self.name()
            assert self.emit(f"{name} = {operand}", 0)
            operand = name
            self.features.add("named view")
        return operand

    def _one_view(self, x: str, one: Shadow) -> str | None:
        rand, shape = self.random, one.shape
        ways = ["slice", "slice", "T", "permute", "reshape", "reshape", "broadcast", "kind", "unsqueeze"]
        way = rand.choice(ways)
        self.features.add(f"view: {way}")
        if way == "T":
            return f"{x}.T"
        if way == "permute" and one.ndim:
            order = rand.sample(range(one.ndim), one.ndim)
            return f"{x}.{'permute' if one.tensor else 'transpose'}({', '.join(map(str, order))})"
        if way == "reshape":
            return self._reshape(x, one)
        if way == "slice" and one.ndim:
            parts = [self._part(size) for size in shape]
            if self.chance(0.1):
                parts.insert(rand.randrange(len(parts) + 1), "None")
            return f"{x}[{', '.join([*parts, '...'])}]"
        if way == "broadcast":
            wide = tuple(rand.choice((2, 3)) if n == 1 else n for n in shape)
            wide = (rand.choice((2, 3)), *wide) if wide == shape and one.ndim < 4 else wide
            if not one.tensor:
                return f"np.broadcast_to({x}, {wide})"
            strides = np.broadcast_to(one.state, wide).strides
            return f"{x}.as_strided({wide}, {strides})"
        if way == "kind":
            return f"{x}.numpy()" if one.tensor else f"ip.from_numpy({x})"
        if way == "unsqueeze" and one.tensor and one.ndim:
            if 1 in shape and self.chance(0.5):
                return f"{x}.squeeze({shape.index(1)})"
            if shape[0] > 1 and self.chance(0.5):
                return f"{x}.narrow(0, 1, {rand.randint(1, shape[0] - 1)})"
            return f"{x}.unsqueeze({rand.randrange(one.ndim + 1)})"
        return None

    def _part(self, size: int) -> str:
        ways = [":", ":", ":", "::-1", "::2", "::-2"]
        if size:
            ways += ["1:", ":-1", str(self.random.randrange(size)), f":{(size + 1) // 2}"]
        return self.random.choice(ways)

    def _reshape(self, x: str, one: Shadow) -> str | None:
        shape = one.shape
        if not one.ndim or self.chance(0.2):
            wanted: Shape = (one.size,)
        elif one.ndim >= 2 and self.chance(0.4):
            at = self.random.randrange(one.ndim - 1)
            wanted = (*shape[:at], shape[at] * shape[at + 1], *shape[at + 2 :])
        else:
            at = self.random.randrange(one.ndim)
            factors = [n for n in range(2, shape[at]) if shape[at] % n == 0]
            if not factors or one.ndim > 3:
                return None
            n = self.random.choice(factors)
            wanted = (*shape[:at], n, shape[at] // n, *shape[at + 1 :])
        copies = one.size and not np.may_share_memory(one.state.reshape(wanted), one.state)
        if copies:
            if not one.tensor or not one.is_set():
                return None
            self.features.add("reshape that copies")
        return f"{x}.reshape({wanted})"

    def sliced(self, name: str, shape: Shape) -> str | None:
        """A slice of a variable that has the shape, the last dimensions of a larger one."""
        one = self.env[name]
        if one.ndim < len(shape) or one.ndim > len(shape) + 1:
            return None
        parts = []
        if one.ndim > len(shape):
            if not one.shape[0]:
                return None
            parts.append(str(self.random.randrange(one.shape[0])))
        for size, wanted in zip(one.shape[len(parts) :], shape):
            if size < wanted:
                return None
            if size >= 2 * wanted and wanted and self.chance(0.3):
                parts.append(f":{2 * wanted}:2")
            elif size > wanted:
                start = self.random.randint(0, size - wanted)
                parts.append(f"{start}:{start + wanted}")
            else:
                parts.append(self.random.choice((":", ":", "::-1")))
        if all(part == ":" for part in parts):
            return name
        return f"{name}[{', '.join([*parts, '...'])}]"

    def operand(self, shape: Shape, new: float = 0.2) -> str:
        """Something to read of this shape."""
        if not self.chance(new):
            names = self.readable()
            fits = [name for name in names if self.env[name].shape == shape]
            fits += [f"{name}.T" for name in names if self.env[name].shape == shape[::-1] and len(shape) > 1]
            if not fits or self.chance(0.15):
                fits = [part for name in names if (part := self.sliced(name, shape)) is not None]
            if fits:
                return self.recent(fits)
        return self.new_input(shape)

    def droppable(self, shape: Shape) -> Shape:
        """A shape that broadcasts to `shape`."""
        if self.chance(0.55):
            return shape
        out = tuple(1 if self.chance(0.3) else size for size in shape)
        return out[self.random.randint(0, len(out)) :]

    def target(self, shape: Shape) -> str:
        """Something to write of this shape."""
        names = [name for name in self.variables(self.dtype) if self.env[name].writable]
        fits = [name for name in names if self.env[name].shape == shape]
        fits += [f"{name}.T" for name in names if self.env[name].shape == shape[::-1] and len(shape) > 1]
        if not fits or self.chance(0.4):
            fits += [part for name in names if (part := self.sliced(name, shape)) is not None]
        if fits and self.chance(0.8):
            target = self.random.choice(fits)
            if "[" in target:
                origin = self.peek(target).root.origin
                self.features.add(f"output into a slice of a {origin}")
            return target
        if self.chance(0.5):
            return self.new_input(shape)
        return self.new_empty(shape)

    def new_empty(self, shape: Shape) -> str:
        name = self.name()
        if self.chance(0.8):
            line = f'{name} = ip.empty({shape}, "{TENSOR_DTYPES[self.dtype]}")'
        else:
            line = f"{name} = np.empty({shape}, {self.dtype!r})"
        assert self.emit(line, 0)
        return name

    # ---- steps -------------------------------------------------------------------------------------------

    def elementwise(self, a: str | None = None) -> str | None:
        """``add`` or ``mul`` in all their forms; the name of the result, if it is a new one."""
        rand = self.random
        op = rand.choice(("add", "add", "mul"))
        sign = "+" if op == "add" else "*"
        a = a or self.any_operand()
        shape = self.peek(a).shape
        b = a if self.chance(0.06) else self.operand(self.droppable(shape))
        if a == b:
            self.features.add("one tensor as several operands")
        one, other = self.peek(a), self.peek(b)
        if self.chance(0.4):
            a, b, one, other = b, a, other, one
        shape = np.broadcast_shapes(one.shape, other.shape)
        form = rand.choices(("new", "sign", "out", "in place", "isign", "plan"), (40, 15, 15, 20, 8, 5))[0]
        if form == "sign" and (one.tensor or other.tensor):
            return self.result(f"{a} {sign} {b}")
        if form == "out":
            self.write(shape, lambda out: f"ip.{op}({a}, {b}, out={out})")
        elif form == "in place":
            if self.emit(f"ip.{op}_({a}, {a}, {b})"):
                kind = "a view of a" if "[" in a or "." in a else "a"
                self.features.add(f"in place on {kind} {one.root.origin}")
        elif form == "isign" and one.tensor and a.isidentifier():
            if self.emit(f"{a} {sign}= {b}"):
                self.features.add("+= or *=")
        elif form == "plan":
            self.plan(op, shape, f"{a}, {b}")
        else:
            return self.result(f"ip.{op}({a}, {b})")
        return None

    def plan(self, op: str, shape: Shape, inputs: str) -> None:
        out = self.target(shape)
        name = self.name("p")
        if self.chance(0.5):
            done = self.emit(f"ip.{op}.plan({out}, {inputs})()")
        else:
            done = self.emit(f"{name} = ip.{op}.plan({out}, {inputs})", 0) and self.emit(f"{name}()")
        if done:
            self.features.add("plan")

    def write(self, shape: Shape, line: Callable[[str], str]) -> str | None:
        """A line with an output; where that is refused, perhaps just so."""
        out = self.target(shape)
        if self.emit(line(out)):
            self.features.add("out=")
            return out
        if self.chance(0.25):
            self._refused(line(out))
        return None

    def _refused(self, call: str) -> None:
        if self.emit(f"refused(lambda: {call})", 0):
            self.features.add("refused call")

    def gemm(self, a: str | None = None) -> str | None:
        rand = self.random
        if a is None and self.chance(0.15):
            a = self.operand((rand.choice((1, 2, 3)), rand.choice((2, 3)), self.size(), self.size()))
        a = a or self.any_operand(2)
        shape = self.peek(a).shape
        *lead, m, k = shape
        n = self.size()
        batch = rand.choices(((), tuple(lead), self.droppable(tuple(lead))), (5, 3, 2))[0]
        if not lead and self.chance(0.1):
            batch = (rand.choice((2, 3)),)
        b = self.operand((*batch, k, n)) if self.chance(0.5) else self.swapped(self.operand((*batch, n, k)))
        if self.chance(0.15) and not batch and not lead:  # the other way round
            b2 = self.operand((n, m))
            a, b, shape = b2, a, (n, m)
        return self.product(a, b)

    def product(self, a: str, b: str) -> str | None:
        rand = self.random
        one, other = self.peek(a), self.peek(b)
        shape = (
            *np.broadcast_shapes(one.shape[:-2], other.shape[:-2]),
            one.shape[-2],
            other.shape[-1],
        )
        if math.prod(shape) > 20000:
            return None
        if len(shape) > 3:
            self.features.add("gemm with several batch dimensions")
        if len(shape) > 2 and one.shape[:-2] != other.shape[:-2]:
            self.features.add("gemm with a broadcast batch")
        alpha = rand.choice((1.0, 1.0, 1.0, 0.5, -0.25, 0.125, 0.0))
        beta = rand.choice((1.0, 1.0, 0.5, -2.0, 0.0))
        form = rand.choices(
            ("new", "sign", "c", "out", "out c", "in place", "plan"), (40, 8, 14, 10, 6, 18, 3)
        )[0]
        if form == "sign" and (one.tensor or other.tensor):
            return self.result(f"{a} @ {b}")
        if form in ("c", "out c"):
            c = self.operand(shape)
            self.features.add("gemm with c=")
            if form == "c":
                return self.result(f"ip.gemm({a}, {b}, {alpha}, {beta}, c={c})")
            self.write(shape, lambda out: f"ip.gemm({a}, {b}, {alpha}, {beta}, c={c}, out={out})")
        elif form == "out":
            self.write(shape, lambda out: f"ip.gemm({a}, {b}, {alpha}, out={out})")
        elif form == "in place":
            line = f"ip.gemm_({{}}, {a}, {b}, {alpha}, {beta})"
            if self.write(shape, line.format) and beta:
                self.features.add("gemm_ accumulates")
        elif form == "plan":
            self.plan("gemm", shape, f"{a}, {b}, {alpha}, {beta}")
        else:
            scalars = "" if alpha == 1 or self.chance(0.5) else f", {alpha}"
            return self.result(f"ip.gemm({a}, {b}{scalars})")
        return None

    def swapped(self, x: str) -> str:
        """The matrices transposed."""
        one = self.peek(x)
        if one.ndim == 2:
            return f"{x}.T"
        order = [*range(one.ndim - 2), one.ndim - 1, one.ndim - 2]
        return f"{x}.{'permute' if one.tensor else 'transpose'}({', '.join(map(str, order))})"

    def norm(self) -> None:
        rand = self.random
        names = [
            name
            for name in self.readable()
            if self.env[name].ndim and (self.env[name].strides[-1] == 1 or self.env[name].shape[-1] < 2)
        ]
        a = self.recent(names) if names else self.new_input(self.shape(1))
        shape = self.env[a].shape
        b = a if self.chance(0.05) else self.operand(shape)
        width = shape[-1:]
        if self.dtype in FLOATS[:2] and self.chance(0.4):
            weight = self.new_input(width, rand.choice(FLOATS[:3]))
        else:
            weight = self.operand(width)
        epsilon = rand.choice(("1e-05", "1e-05", "0.5"))
        form = rand.choices(("new", "residual", "out", "both", "in place"), (40, 20, 10, 10, 20))[0]
        y, residual = self.name(), self.name()
        call = f"ip.add_rms_norm({a}, {b}, {weight}, {epsilon}"
        self.features.add("add_rms_norm")
        if form == "in place":
            y, residual = rand.choice(((a, b), (b, a)))
            if self.emit(f"ip.add_rms_norm_({y}, {residual}, {a}, {b}, {weight}, {epsilon})"):
                self.features.add("residual updated in place")
            return
        if form == "residual" and self.chance(0.6):
            out, form = f", residual_out={b}", "new"
            self.features.add("residual updated in place")
        elif form == "residual":
            out = f", residual_out={self.target(shape)}"
        elif form == "out":
            out = f", out={self.target(shape)}"
        elif form == "both":
            out = f", out={self.target(shape)}, residual_out={self.target(shape)}"
        else:
            out = ""
        if self.emit(f"{y}, {residual} = {call}{out})") and self.chance(0.5):
            self.drop(y if self.chance(0.5) else residual)

    def rearrange(self, x: str | None = None) -> str | None:
        if x is None:
            x = self.any_operand()
            x = self.view(x) if self.chance(0.5) else x
        form = self.random.choices(("new", "out", "copy", "plan"), (65, 22, 6, 4))[0]
        if form == "out":
            template = self.random.choice(("ip.rearrange({x}, out={y})", "ip.rearrange_({y}, {x})"))
            self.write(self.peek(x).shape, lambda y: template.format(x=x, y=y))
        elif form == "copy":
            template = self.random.choice(("{y}.copy_({x})", "{y}[...] = {x}"))
            y = self.target(self.peek(x).shape)
            if self.emit(template.format(x=x, y=y)):
                self.features.add("copy_")
        elif form == "plan":
            self.plan("rearrange", self.peek(x).shape, x)
        else:
            return self.result(f"ip.rearrange({x})")
        return None

    # ---- what fusion looks for ---------------------------------------------------------------------------

    def fill_and_read(self) -> None:
        """A buffer filled piece by piece, then read as a whole."""
        shape = self.shape(1)
        rows = shape[0]
        if rows < 2:
            return
        at = self.random.randrange(1, rows)
        if self.chance(0.25) and self.dtype not in OTHERS:
            whole = self._new_constant(shape, self.dtype)
        else:
            whole = self.new_empty(shape)
        pieces = [(f"{whole}[:{at}]", (at, *shape[1:])), (f"{whole}[{at}:]", (rows - at, *shape[1:]))]
        self.random.shuffle(pieces)
        for piece, its in pieces:
            if self.dtype in OTHERS or self.chance(0.6):
                self.emit(f"ip.rearrange_({piece}, {self.operand(its)})")
            elif self.dtype in FLOATS and len(its) >= 2 and self.chance(0.6):
                k = self.size()
                self.emit(
                    f"ip.gemm_({piece}, {self.operand((*its[:-1], k))}, {self.operand((k, its[-1]))}, 0.5)"
                )
            else:
                self.emit(f"ip.add_({piece}, {self.operand(its)}, {self.operand(self.droppable(its))})")
        if self.chance(0.3):
            self.emit(f"ip.rearrange_({pieces[0][0]}, {self.operand(pieces[0][1])})")
            self.features.add("output written twice")
        if self.env[whole].is_set():
            self.features.add("filled piece by piece, then read")
            self.use(whole)
        self.drop(whole)

    def use(self, x: str) -> str | None:
        """An operator that reads x."""
        one = self.peek(x)
        if self.dtype in OTHERS:
            return self.rearrange(x)
        if self.dtype in FLOATS and one.ndim >= 2 and self.chance(0.5):
            return self.gemm(x)
        return self.elementwise(x)

    def rearranged_operand(self) -> None:
        """A copy of a transposed view feeds an operator, by itself or through another view."""
        if self.chance(0.4):
            heads, width, tokens = self.size() or 2, self.size() or 3, self.size()
            x = self.operand((tokens, heads * width), 0.3)
            one = self.peek(x)
            if one.size and not np.may_share_memory(one.state.reshape((tokens, heads, width)), one.state):
                return
            permute = "permute" if one.tensor else "transpose"
            source = f"{x}.reshape(({tokens}, {heads}, {width})).{permute}(1, 0, 2)"
            self.features.add("heads split")
        else:
            x = self.any_operand(1)
            one = self.peek(x)
            back = one.ndim < 2 or self.chance(0.3)
            source = f"{x}[::-1]" if back else self.swapped(x)
        copy = self.result(f"ip.rearrange({source})")
        if copy is None:
            return
        if self.env[copy].shape == self.peek(x).shape and self.dtype not in OTHERS and self.chance(0.4):
            if self.emit(f"ip.add_({x}, {x}, {copy})"):
                self.features.add("copy added to its own source")
            self.drop(copy)
            return
        if self.chance(0.25):
            name = re.findall(r"\b[vx]\d+\b", x)[0]
            if self.dtype in OTHERS or self.chance(0.5):
                done = self.emit(f"ip.rearrange_({name}, {self.operand(self.env[name].shape)})")
            else:
                done = self.emit(f"ip.add_({name}, {name}, {name})")
            if done:
                self.features.add("source overwritten between copy and use")
        used = self.view(copy) if self.chance(0.3) else copy
        result = self.use(used)
        if self.chance(0.15):
            self.use(used)
        self.features.add("rearrange feeds an operator")
        self.drop(copy)
        self.drop(result, share=self.forget / 3)

    def product_and_more(self) -> None:
        """A product, then an elementwise operator on it, then perhaps another."""
        a = self.any_operand(2)
        k = self.peek(a).shape[-1]
        n = k if self.chance(0.25) else self.size()
        b = self.operand((k, n)) if self.chance(0.5) else self.operand((n, k)) + ".T"
        scalars = self.random.choice(("", "", ", 0.5", ", -0.25"))
        product = self.result(f"ip.gemm({a}, {b}{scalars})")
        if product is not None and self.peek(a).shape == self.env[product].shape and self.chance(0.6):
            op = self.random.choice(("add", "mul"))
            order = self.random.choice((f"{a}, {product}", f"{product}, {a}"))
            if self.emit(f"ip.{op}_({a}, {order})"):
                self.features.add("product added to its own operand")
            self.drop(product)
            return
        if self.chance(0.12) and product is not None:
            self.use(product)  # a second reader, before the one that could be one with the product
        for _ in range(self.random.choice((1, 1, 2))):
            if product is None:
                return
            shape = self.env[product].shape
            other = self.operand(self.droppable(shape))
            if self.chance(0.2):
                changed = self.random.choice((other, a, b))
                factor = self.operand(self.peek(changed).shape)
                if self.emit(f"ip.mul_({changed}, {changed}, {factor})"):
                    self.features.add("operand overwritten between product and add or mul")
            x = self.view(product) if self.chance(0.12) else product
            operands = f"{x}, {other}" if self.chance(0.6) else f"{other}, {x}"
            if x != product:
                operands = f"{x}, {self.operand(self.peek(x).shape)}"
            op = self.random.choice(("add", "add", "mul"))
            way = self.random.choices(("new", "in place", "out"), (60, 22, 18))[0]
            self.features.add("product feeds add or mul")
            if way == "in place":
                self.emit(f"ip.{op}_({product}, {operands})")
                continue
            if way == "out":
                self.write(
                    self.peek(x).shape,
                    lambda out, op=op, operands=operands: f"ip.{op}({operands}, out={out})",
                )
                self.drop(product)
                return
            result = self.result(f"ip.{op}({operands})")
            if result != product:
                self.drop(product)
            product = result

    def layers(self) -> None:
        """Layers like a decoder's, with a residual that goes through."""
        rand = self.random
        tokens, heads, width = rand.choice((1, 2, 3, 5)), rand.choice((1, 2, 3)), rand.choice((2, 4, 8))
        wide, inner = heads * width, rand.choice((3, 6, 8))
        x, residual = self.operand((tokens, wide), 0.5), self.operand((tokens, wide), 0.7)
        y: str | None
        self.features.add("decoder layers")

        def gemm(a: str, shape: Shape, more: str = "") -> str:
            turned = self.chance(0.6)
            weight = f"{self.operand(shape[::-1], 0.3)}.T" if turned else self.operand(shape, 0.3)
            scale = f", {shape[0] ** -0.5:.3f}" if not more else ""
            return self.need(f"ip.gemm({a}, {weight}{scale}{more})")

        def split(a: str) -> str:
            permute = "permute" if self.env[a].tensor else "transpose"
            source = f"{a}.reshape(({tokens}, {heads}, {width})).{permute}(1, 0, 2)"
            if self.chance(0.7):
                out = self.need(f"ip.rearrange({source})")
                self.drop(a)
                return out
            return source

        try:
            for _ in range(rand.choice((1, 1, 2))):
                y, new = self.name(), self.name()
                where = f", residual_out={residual}" if self.chance(0.4) else ""
                weight = self.operand((wide,))
                if not self.emit(f"{y}, {new} = ip.add_rms_norm({x}, {residual}, {weight}{where})"):
                    return
                if residual != new and residual in self.env and residual[0] == "v":
                    self.drop(residual)
                residual = new
                q, k, v = (split(gemm(y, (wide, wide))) for _ in range(3))
                scores = self.need(f"ip.gemm({q}, {self.swapped(k)}, 0.25)")
                if self.chance(0.6):
                    mask = self.operand(self.droppable((tokens, tokens)))
                    old, scores = scores, self.need(f"ip.mul({scores}, {mask})")
                    self.drop(old)
                mixed = self.need(f"ip.gemm({scores}, {v})")
                self.drop(*(one for one in (q, k, v, scores) if one.isidentifier()))
                permute = "permute" if self.env[mixed].tensor else "transpose"
                merged = self.need(f"ip.rearrange({mixed}.{permute}(1, 0, 2)).reshape(({tokens}, {wide}))")
                self.drop(mixed, y)
                if self.chance(0.5):
                    x = gemm(merged, (wide, wide), f", 0.5, 1.0, c={residual}")
                else:
                    x = gemm(merged, (wide, wide))
                    bias = self.operand(rand.choice(((wide,), (tokens, wide))))
                    old, x = x, self.need(f"ip.add({x}, {bias})")
                    self.drop(old)
                self.drop(merged)
                up, gate = gemm(x, (wide, inner)), gemm(x, (wide, inner))
                hidden = self.need(f"ip.mul({gate}, {up})")
                self.drop(up, gate)
                old, x = x, gemm(hidden, (inner, wide))
                self.drop(hidden, old)
        except Avoid:
            return

    def need(self, expression: str) -> str:
        name = self.name()
        if not self.emit(f"{name} = {expression}"):
            raise Avoid
        return name

    def nested(self) -> None:
        """A result that has no name."""
        a = self.any_operand()
        shape = self.peek(a).shape
        b = self.operand(shape)
        if self.dtype in OTHERS:
            self.result(f"ip.rearrange(ip.rearrange({a}).T)")
        else:
            self.result(f"ip.add(ip.mul({a}, {b}), {self.operand(self.droppable(shape))})")
        self.features.add("nested call")

    def refuse(self) -> None:
        """A call that must be refused."""
        a = self.any_operand(1)
        one = self.peek(a)
        way = self.random.choice(("overlap", "shape", "dtype", "itself", "product"))
        if self.dtype in OTHERS or way == "product":
            self._refused(f"ip.rearrange_({a}, {a})" if one.size else f"ip.gemm({a}, {a})")
        elif way == "overlap" and one.shape[0] > 2:
            self._refused(f"ip.add_({a}[1:], {a}[:-1], {a}[1:])")
        elif way == "shape":
            self._refused(f"ip.add({a}, {self.new_input((one.shape[-1] + 2,))})")
        elif way == "dtype":
            other = "float32" if self.dtype != "float32" else "float64"
            self._refused(f"ip.mul({a}, {self.new_input(one.shape, other)})")
        else:
            self._refused(f"ip.add({a}, {a}, out=np.broadcast_to({a}[:1], {one.shape}))")

    def update(self) -> None:
        """An input, or a view of one, is updated in place, and read afterwards, perhaps by another name."""
        names = [name for name in self.readable() if name[0] == "x" and self.env[name].writable]
        x = self.recent(names) if names else self.new_input(self.shape())
        if x[0] != "x":
            return
        view = self.view(x) if self.chance(0.5) else x
        shape = self.peek(view).shape
        if self.dtype in OTHERS or self.chance(0.2):
            done = self.emit(f"ip.rearrange_({view}, {self.operand(shape)})")
        elif self.dtype in FLOATS and len(shape) >= 2 and self.chance(0.4):
            k = self.size()
            a, b = self.operand((*shape[:-1], k)), self.operand((k, shape[-1]))
            done = self.emit(f"ip.gemm_({view}, {a}, {b}, 0.5, {self.random.choice((1.0, -0.5))})")
        else:
            op = self.random.choice(("add", "add", "mul"))
            done = self.emit(f"ip.{op}_({view}, {view}, {self.operand(self.droppable(shape))})")
        if done and self.chance(0.6):
            root = self.env[x].root
            self.use(self.random.choice([one for one in self.readable() if self.env[one].root is root]))

    def name_view(self) -> None:
        names = self.variables(self.dtype)
        if not names:
            return
        name = self.recent(names)
        expression = self._one_view(name, self.env[name])
        if expression is None or self.peek(expression).size > 6000:
            return
        new = self.name()
        if self.emit(f"{new} = {expression}", 0):
            self.features.add("named view")
            if self.env[name].root.origin == "result" and self.chance(self.forget):
                self.emit(f"del {name}", 0)
                self.features.add("held by a view only")

    def change_dtype(self) -> None:
        """What follows has another element type."""
        if self.chance(0.6):
            self.dtype = self.random.choice(FLOATS if self.chance(0.7) else INTEGERS + OTHERS)
            self.features.add("several dtypes")

    def steps(self) -> dict[Callable[[_Writer], Any], int]:
        """What the program may go on with, and how often."""
        every: dict[Callable[[_Writer], Any], int] = {
            _Writer.rearrange: 4,
            _Writer.rearranged_operand: 11,
            _Writer.update: 5,
            _Writer.name_view: 5,
            _Writer.fill_and_read: 3,
            _Writer.nested: 1,
            _Writer.change_dtype: 1,
            _Writer.refuse: 1,
        }
        if self.dtype not in OTHERS:
            every[_Writer.elementwise] = 10
        if self.dtype in FLOATS:
            every |= {_Writer.gemm: 9, _Writer.norm: 4, _Writer.product_and_more: 15, _Writer.layers: 1}
        return every


@lru_cache(maxsize=1 << 14)
def _code_of_expression(expression: str) -> CodeType:
    return compile(expression, f"<{expression}>", "eval")


# ---- making failures small ---------------------------------------------------------------------------------


def failure_of(program: Program, mode: dict[str, Any] | None = None, roundings: float = 0.0) -> str | None:
    """What is wrong with a program; None if nothing is."""
    try:
        check(program, mode, roundings)
    except Exception as error:  # whatever it is, it is what we look for
        return f"{type(error).__name__}: {error}"
    return None


def shrunk(program: Program, fails: Callable[[Program], Any]) -> Program:
    """A smaller program that still fails: without lines, and without what these leave of no use."""
    for part in ("body", "setup"):
        lines = getattr(program, part)
        size = max(1, len(lines) // 2)
        while lines:
            at = 0
            while at < len(lines):
                smaller = repaired(replace(program, **{part: lines[:at] + lines[at + size :]}))
                if len(smaller.body) + len(smaller.setup) < len(program.body) + len(program.setup) and fails(
                    smaller
                ):
                    program, lines = smaller, getattr(smaller, part)
                else:
                    at += size
            if size == 1:
                break
            size //= 2
    smaller = without_unused_buffers(program)
    return smaller if fails(smaller) else program


def report(program: Program, mode: dict[str, Any] | None = None, roundings: float = 0.0) -> str | None:
    """None if a program passes; else what is wrong, and a small program with that fault."""
    found = failure_of(program, mode, roundings)
    if found is None:
        return None
    small = shrunk(program, lambda one: failure_of(one, mode, roundings))
    options = f" --mode '{json.dumps(mode)}' --roundings {roundings}" if mode else ""
    return (
        f"seed {program.seed}: {found}\nmade small: {failure_of(small, mode, roundings)}\n\n{small}\n\n"
        f"again: python tests/programs.py --seed {program.seed}{options}"
    )


# ---- by hand -----------------------------------------------------------------------------------------------


def _stats(seeds: range) -> None:
    features: Counter[str] = Counter()
    dtypes: Counter[str] = Counter()
    operators: list[int] = []
    made = ran = 0.0
    finite = total = 0
    for seed in seeds:
        start = time.perf_counter()
        program = generate(seed)
        middle = time.perf_counter()
        check(program)
        ran += time.perf_counter() - middle
        made += middle - start
        features.update(program.features)
        dtypes.update({one.dtype for one in program.buffers})
        world = World(program)
        with ip.Graph() as graph:
            world.execute(world.env)
        operators.append(len(graph))
        graph.run()
        for value in world.env.values():
            array = _array(value)
            if array is not None and array.dtype.name in FLOATS:
                total += array.size
                wide = _wide(array)
                finite += int(np.count_nonzero(np.isfinite(wide) & (wide != 0)))
    n = len(seeds)
    spread = np.percentile(operators, (0, 10, 25, 50, 75, 90, 100)).astype(int)
    print(f"{n} programs; recorded operators at 0, 10, 25, 50, 75, 90, 100 %: {', '.join(map(str, spread))}")
    print(f"{1e3 * made / n:.1f} ms to make a program, {1e3 * ran / n:.1f} ms to check it")
    print(f"{100 * finite / max(1, total):.1f} % of the floats that are held at the end are finite and not 0")
    for title, counts in (("feature", features), ("dtype of a buffer", dtypes)):
        print(f"\n{title:50} share of programs")
        for name, count in counts.most_common():
            print(f"{name:50} {100 * count / n:5.1f} %")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seed", type=int, help="this program alone")
    parser.add_argument("--first", type=int, default=0, help="the first seed of several (0)")
    parser.add_argument("--count", type=int, default=2000, help="how many (2000)")
    parser.add_argument("--mode", type=json.loads, default={}, help="arguments of Graph, as JSON")
    parser.add_argument("--roundings", type=float, default=0.0, help="how far results may differ (0)")
    parser.add_argument("--print", action="store_true", help="print the programs, do not run them")
    parser.add_argument("--stats", action="store_true", help="say what the programs hold")
    parser.add_argument("--verbose", action="store_true", help="say each seed before it runs")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first failure")
    args = parser.parse_args()
    faulthandler.enable()
    seeds = (
        range(args.first, args.first + args.count) if args.seed is None else range(args.seed, args.seed + 1)
    )
    if args.stats:
        _stats(seeds)
        return 0
    failed = 0
    start = time.perf_counter()
    for seed in seeds:
        if args.verbose:
            print(f"seed {seed}", flush=True)
        program = generate(seed)
        if args.print:
            print(program)
            continue
        found = report(program, args.mode, args.roundings)
        if found is not None:
            failed += 1
            print(found, flush=True)
            if not args.keep_going:
                return 1
    if not args.print:
        print(f"{len(seeds)} programs, {failed} failed, {time.perf_counter() - start:.1f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
