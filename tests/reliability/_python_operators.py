"""Operators of the package called with hostile operands, and the exceptions that must come of it.

A place for an operand has a shape; what is put there is named by what is wrong with it. Shapes are such that
any other fits nowhere.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from _python_rows import JUNK, Errors

import infiniop_py as ip
from infiniop_py import DTypeError, OperandError, ParamError, ShapeError, StrideError

Array = np.ndarray[Any, Any]
SLACK = 64  # elements behind an array, so that another one can begin inside it


class Place(NamedTuple):
    """Where an operand goes: its legal shape, and whether it is written."""

    shape: tuple[int, ...]
    is_output: bool = False


class Entry(NamedTuple):
    """A way to call an operator."""

    op: str  # as in messages
    call: Callable[..., Any]
    places: dict[str, Place]
    scalars: tuple[str, ...] = ()
    aliases: tuple[tuple[str, str], ...] = ()  # outputs that may be exactly an input
    none: Mapping[str, Errors] = MappingProxyType({})  # what comes of None in some places
    fixed: bool = False  # the layouts of operands are those of a plan
    python: bool = False  # an operator of the language, which has words of its own for what is no array


def _memory(shape: tuple[int, ...], dtype: Any = "f4") -> Array:
    """An array with room behind it."""
    size = int(np.prod(shape, dtype=np.int64))
    flat = np.arange(1, size + SLACK + 1, dtype=np.int64).astype(dtype)
    return flat[:size].reshape(shape)


def _misaligned(shape: tuple[int, ...]) -> Array:
    size = int(np.prod(shape))
    return np.zeros(4 * size + 4, "u1")[1 : 4 * size + 1].view("f4").reshape(shape)


def _odd_steps(shape: tuple[int, ...]) -> Array:
    record = np.zeros(shape, [("a", "i1"), ("b", "f4")])
    odd: Array = record["b"]  # five bytes apart
    return odd


def _readonly(shape: tuple[int, ...]) -> Array:
    array = _memory(shape)
    array.flags.writeable = False
    return array


def _repeated(shape: tuple[int, ...]) -> Array:
    return np.lib.stride_tricks.as_strided(_memory(shape), shape, (0, *(4,) * (len(shape) - 1)))


class _Raises:
    """Looks like an array until it is asked."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __dlpack_device__(self) -> tuple[int, int]:
        raise self._error

    def __dlpack__(self, **_: Any) -> Any:
        raise self._error


class _Pretends:
    def __init__(self, **interface: Any) -> None:
        self.__array_interface__ = interface


#: By what is wrong: what makes an operand for a shape, and the exceptions for an input and for an output.
WRONG: dict[str, tuple[Callable[[tuple[int, ...]], Any], Errors, Errors]] = {
    **{
        f"junk {label}": (lambda shape, value=value: value, (OperandError,), (OperandError,))
        for label, value in JUNK.items()
        if label != "array"
    },
    "scalar": (lambda shape: np.float32(1), (OperandError,), (OperandError,)),
    "masked": (lambda shape: np.ma.ones(shape, "f4"), (OperandError,), (OperandError,)),
    **{
        f"dtype {dtype}": (lambda shape, dtype=dtype: np.zeros(shape, dtype), (DTypeError,), (DTypeError,))
        for dtype in ("f8", "f2", "i4", "?", "c8", ">f4", "O", "M8[s]", "S4", "U1", "V4", "g", "i4,i4")
    },
    "misaligned": (_misaligned, (ParamError,), (ParamError,)),
    "odd steps": (_odd_steps, (StrideError, ParamError), (StrideError, ParamError)),
    "larger": (lambda shape: _memory(tuple(n + 1 for n in shape)), (ShapeError,), (ShapeError,)),
    "reversed shape": (lambda shape: _memory((7, *shape[::-1])), (ShapeError,), (ShapeError,)),
    "no elements": (lambda shape: _memory((0, *shape[1:])), (ShapeError,), (ShapeError,)),
    "rank 17": (lambda shape: np.ones((1,) * 17, "f4"), (ShapeError,), (ShapeError,)),
    "rank 17 tensor": (lambda shape: ip.ones((1,) * 17), (ShapeError,), (ShapeError,)),
    "readonly": (_readonly, (), (ParamError,)),
    "readonly tensor": (lambda shape: ip.from_numpy(_readonly(shape)), (), (ParamError,)),
    "repeated": (_repeated, (), (StrideError,)),
    "raises": (lambda shape: _Raises(ValueError("no")), (ip.InfiniopError,), (ip.InfiniopError,)),
    "raises KeyError": (lambda shape: _Raises(KeyError("no")), (ip.InfiniopError,), (ip.InfiniopError,)),
    "pretends nothing": (lambda shape: _Pretends(), (ip.InfiniopError,), (ip.InfiniopError,)),
    "pretends": (
        lambda shape: _Pretends(shape=shape, typestr="<f4", version=3, data=("x", False)),
        (ip.InfiniopError,),
        (ip.InfiniopError,),
    ),
    "pretends steps": (
        lambda shape: _Pretends(shape=shape, typestr="<f4", version=3, data=(8, False), strides=("x",)),
        (ip.InfiniopError,),
        (ip.InfiniopError,),
    ),
    "pretends memory": (
        lambda shape: _Pretends(shape=(-1,) * len(shape), typestr="<f4", version=3, data=(8, False)),
        (ip.InfiniopError,),
        (ip.InfiniopError,),
    ),
}
#: What is right, though unusual.
RIGHT: dict[str, Callable[[tuple[int, ...]], Any]] = {
    "tensor": lambda shape: ip.from_numpy(_memory(shape)),
    "backwards": lambda shape: _memory(shape)[::-1],
    "apart": lambda shape: _memory((2 * shape[0], *shape[1:]))[::2],
}
SCALARS: dict[str, tuple[Any, Errors]] = {
    **{f"junk {label}": (value, (OperandError,)) for label, value in JUNK.items()},
    **{
        f"junk {label}": (JUNK[label], errors)
        for label, errors in (
            ("True", ()),
            ("float", ()),
            ("nan", ()),
            ("huge", ()),
            ("-huge", ()),
            ("digits", (ParamError,)),
        )
    },
    "inf": (float("inf"), ()),
    "fraction": (Fraction(1, 3), ()),
    "float32": (np.float32(2), ()),
    "beyond": (10**400, (ParamError,)),
}

_M = (2, 3)
_SUM = {"a": Place(_M), "b": Place(_M)}
_PRODUCT = {"a": Place((2, 5)), "b": Place((5, 3))}
_NORM = {"a": Place(_M), "b": Place(_M), "weight": Place((3,))}
_ON_INPUTS = (("c", "a"), ("c", "b"), ("out", "a"), ("out", "b"))
_NORM_ON = tuple((x, y) for x in ("y", "residual_out", "out") for y in ("a", "b"))
_OUT = Place(_M, True)


def _planned(op: Any) -> Callable[..., Any]:
    """A call that is planned, and run twice."""

    def call(**arguments: Any) -> None:
        plan = op(**arguments)
        plan.run()
        plan()

    return call


def _executed(op: Any) -> Callable[..., Any]:
    def call(**arguments: Any) -> None:
        operands = [arguments.pop(name) for name in op.operand_names]
        op.execute(*operands, **arguments)

    return call


def _in_other_operands(op: Any) -> Callable[..., Any]:
    """A planned call that is run with these operands instead of its own."""

    def call(**arguments: Any) -> None:
        own = {name: _memory(PLANS[op][name].shape) for name in op.operand_names}
        op(**own).run(**arguments)

    return call


PLANS: dict[Any, dict[str, Place]] = {
    ip.Add: {"c": _OUT, **_SUM},
    ip.Mul: {"c": _OUT, **_SUM},
    ip.Gemm: {"c": _OUT, **_PRODUCT},
    ip.GemmAdd: {"y": _OUT, **_PRODUCT, "d": Place(_M)},
    ip.GemmMul: {"y": _OUT, **_PRODUCT, "d": Place(_M)},
    ip.AddRMSNorm: {"y": _OUT, "residual_out": _OUT, **_NORM},
    ip.Rearrange: {"y": _OUT, "x": Place(_M)},
}
_ALIASES = {ip.Add: _ON_INPUTS, ip.Mul: _ON_INPUTS, ip.AddRMSNorm: _NORM_ON}
_SCALARS = {
    ip.Gemm: ("alpha", "beta"),
    ip.GemmAdd: ("alpha",),
    ip.GemmMul: ("alpha",),
    ip.AddRMSNorm: ("epsilon",),
}


def _entries() -> Iterator[tuple[str, Entry]]:
    none: dict[str, Errors]
    for name in ("add", "mul"):
        yield name, Entry(name, getattr(ip, name), {**_SUM, "out": _OUT}, (), _ON_INPUTS, {"out": ()})
        yield f"{name}_", Entry(name, getattr(ip, f"{name}_"), {"c": _OUT, **_SUM}, (), _ON_INPUTS)
    for name, shape, other in (("add", _M, _M), ("mul", _M, _M), ("matmul", (2, 5), (5, 3))):
        for method in (name, f"i{name}")[: 1 if name == "matmul" else 2]:
            # a tensor of this shape, and what the language puts beside it
            call = partial(_beside, getattr(operator, method), shape)
            op = "gemm" if name == "matmul" else name
            yield f"Tensor.__{method}__", Entry(op, call, {"b": Place(other)}, python=True)
    places = {**_PRODUCT, "c": Place(_M), "out": _OUT}
    # With another beta than 0, at which c is not read.
    none = {"c": (ParamError,), "out": ()}
    yield "gemm", Entry("gemm", partial(ip.gemm, beta=1.0), places, ("alpha", "beta"), (("out", "c"),), none)
    yield "gemm_", Entry("gemm", ip.gemm_, {"c": _OUT, **_PRODUCT}, ("alpha", "beta"))
    for name in ("gemm_add", "gemm_mul"):
        places = {**_PRODUCT, "d": Place(_M), "out": _OUT}
        yield name, Entry(name, getattr(ip, name), places, ("alpha",), (), {"out": ()})
    name, places = "add_rms_norm", {**_NORM, "out": _OUT, "residual_out": _OUT}
    none = {"out": (), "residual_out": ()}
    yield name, Entry(name, ip.add_rms_norm, places, ("epsilon",), _NORM_ON, none)
    yield "add_rms_norm_", Entry(name, ip.add_rms_norm_, PLANS[ip.AddRMSNorm], ("epsilon",), _NORM_ON)
    yield "rearrange", Entry("rearrange", ip.rearrange, {"x": Place(_M), "out": _OUT}, (), (), {"out": ()})
    yield "rearrange_", Entry("rearrange", ip.rearrange_, PLANS[ip.Rearrange])
    yield "Tensor.copy_", Entry("copy_", lambda source: ip.ones(_M).copy_(source), {"source": Place(_M)})
    for op, places in PLANS.items():
        rest = _SCALARS.get(op, ()), _ALIASES.get(op, ())
        yield op.__name__, Entry(op.name, _planned(op), places, *rest)
        yield f"{op.__name__}.execute", Entry(op.name, _executed(op), places, *rest)
        yield f"{op.__name__}.run", Entry(op.name, _in_other_operands(op), places, (), rest[1], fixed=True)


def _beside(function: Callable[..., Any], shape: tuple[int, ...], b: Any) -> Any:
    return function(ip.ones(shape), b)


ENTRIES = dict(_entries())


# ---- the calls ---------------------------------------------------------------------------------------------


class Trial(NamedTuple):
    """A call: its arguments, what is wrong with which of them, and the exceptions that must come of it."""

    arguments: dict[str, Any]
    wrong: dict[str, str]
    errors: set[type[BaseException]]
    names: set[str]  # of which a message uses one


def _operand(entry: Entry, name: str, label: str) -> tuple[Any, Errors]:
    place = entry.places[name]
    if label == "junk None" and name in entry.none:
        return None, entry.none[name]
    if label in RIGHT:
        # A plan's operands keep their layouts; the last steps of a norm's are 1.
        moved = label != "tensor" and (entry.fixed or len(place.shape) == 1)
        return RIGHT[label](place.shape), (StrideError,) if moved else ()
    make, as_input, as_output = WRONG[label]
    errors = as_output if place.is_output else as_input
    if label == "repeated" and (entry.fixed or len(place.shape) == 1):
        errors = (StrideError,)
    if entry.python and errors == (OperandError,):
        errors = (TypeError,)
    return make(place.shape), errors


def trials(entry: Entry, chooser: Any, pairs: int) -> Iterator[Trial]:
    """Nothing wrong, each wrong thing in each place, outputs on inputs, scalars, and two things at once."""
    labels = [*WRONG, *RIGHT]

    def legal() -> dict[str, Any]:
        return {name: _memory(place.shape) for name, place in entry.places.items()}

    def wrong(*chosen: tuple[str, str]) -> Trial:
        arguments, errors = legal(), set()
        for name, label in chosen:
            arguments[name], found = _operand(entry, name, label)
            errors |= set(found)
        blamed = entry.places if ShapeError in errors else [name for name, _ in chosen]
        return Trial(arguments, dict(chosen), errors, set(blamed))

    yield wrong()
    for name in entry.places:
        for label in labels:
            if not (entry.python and label == "scalar"):  # which NumPy answers
                yield wrong((name, label))
    outputs = [name for name, place in entry.places.items() if place.is_output]
    for output in outputs:
        for name in entry.places:
            if name == output:
                continue
            arguments = legal()
            arguments[output] = arguments[name].base[1:7].reshape(_M)
            yield Trial(arguments, {output: f"inside {name}"}, {ParamError}, {output, name})
            arguments = legal()
            arguments[output] = arguments[name].base[:6].reshape(_M)
            fits = (output, name) in entry.aliases
            yield Trial(arguments, {output: f"on {name}"}, set() if fits else {ParamError}, {output, name})
    for scalar in entry.scalars:
        for label, (value, found) in SCALARS.items():
            yield Trial({**legal(), scalar: value}, {scalar: label}, set(found), {scalar})
    refused = [label for label in WRONG if WRONG[label][1]]
    for _ in range(pairs if len(entry.places) > 1 else 0):
        first, second = chooser.sample(list(entry.places), 2)
        trial = wrong((first, chooser.choice(refused)), (second, chooser.choice(labels)))
        # Two of one kind may fit each other.
        if trial.errors not in ({ShapeError}, {DTypeError}) and "junk None" not in trial.wrong.values():
            yield trial
