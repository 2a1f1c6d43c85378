"""Arrays without values, on which a program can be tried: which views share which elements, what has been
written, and what the operators must refuse.

A ``Shadow`` stands for a NumPy array or a Tensor, and ``namespace()`` for the modules that programs use. The
state of each element says whether its value is determined by the program, so that a program that passes here
gives the same values in each run, however often it ran before and whatever the memory held.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
from numpy.lib.stride_tricks import as_strided

Shape = tuple[int, ...]

FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = tuple(f"{sign}int{bits}" for bits in (8, 16, 32, 64) for sign in ("", "u"))
NUMBERS = FLOATS + INTEGERS
OTHERS = ("bool", "complex64", "complex128")  # which only rearrange takes

#: The element types by their names in the library.
TENSOR_DTYPES = {
    "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
    "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64",
    "uint8": "U8", "uint16": "U16", "uint32": "U32", "uint64": "U64",
    "bool": "BOOL", "complex64": "C64", "complex128": "C128",
}  # fmt: skip
_NUMPY_DTYPES = {tensor: numpy for numpy, tensor in TENSOR_DTYPES.items()}

# States of an element. A constant is made while a graph is recorded, once for all runs: what a run has read
# of it, no run may write, or the next run would read something else than the first.
UNSET, SET, CONSTANT, CONSTANT_READ = range(4)


class Refused(Exception):
    """The library must refuse this call."""


class Avoid(Exception):
    """Programs are not to do this: its outcome is not determined, or of no interest."""


class Root:
    """What all views of one memory have in common."""

    __slots__ = ("dtype", "magnitude", "origin", "widest", "written")

    def __init__(self, dtype: str, origin: str, widest: float, magnitude: float | None = 0.0) -> None:
        self.dtype = dtype
        self.origin = origin  # "buffer", "input", "result" or "constant"
        self.widest = widest  # how far from 0 the magnitude may get
        self.written = False
        self.magnitude = magnitude  # about the binary logarithm of the values; None while there are none


class Shadow:
    """An array (`tensor` False) or a Tensor without values."""

    __slots__ = ("root", "state", "tensor", "writable")

    only_layouts: ClassVar[bool] = False  # while a call is planned: nothing is read or written

    def __init__(self, state: np.ndarray[Any, Any], root: Root, tensor: bool, writable: bool = True) -> None:
        self.state, self.root, self.tensor, self.writable = state, root, tensor, writable

    @property
    def shape(self) -> Shape:
        return self.state.shape

    @property
    def ndim(self) -> int:
        return self.state.ndim

    @property
    def size(self) -> int:
        return self.state.size

    @property
    def strides(self) -> Shape:
        return self.state.strides  # an element is a byte here

    @property
    def dtype(self) -> str:
        return self.root.dtype

    # ---- views -------------------------------------------------------------------------------------------

    def _view(self, state: np.ndarray[Any, Any]) -> Shadow:
        return Shadow(state, self.root, self.tensor, self.writable)

    def _of(self, tensor: bool) -> None:
        if self.tensor is not tensor:
            raise Avoid

    @property
    def T(self) -> Shadow:
        return self._view(self.state.T)

    def transpose(self, *axes: int) -> Shadow:
        self._of(False)
        return self._view(self.state.transpose(axes))

    def permute(self, *axes: int) -> Shadow:
        self._of(True)
        return self._view(self.state.transpose(axes))

    def reshape(self, shape: int | Shape) -> Shadow:
        out = self.state.reshape(shape)
        if not self.size or np.may_share_memory(out, self.state):
            return self._view(out)
        self._of(True)  # NumPy would copy at once, a Tensor by an operator
        return rearrange(self).reshape(shape)

    def unsqueeze(self, dim: int) -> Shadow:
        self._of(True)
        return self._view(np.expand_dims(self.state, dim))

    def squeeze(self, dim: int) -> Shadow:
        self._of(True)
        return self._view(np.squeeze(self.state, dim))

    def narrow(self, dim: int, start: int, length: int) -> Shadow:
        self._of(True)
        return self[(slice(None),) * dim + (slice(start, start + length), ...)]

    def as_strided(self, shape: Shape, strides: Shape) -> Shadow:
        self._of(True)
        return self._view(as_strided(self.state, shape, strides))

    def __getitem__(self, index: Any) -> Shadow:
        state = self.state[index]
        if not isinstance(state, np.ndarray):
            raise Avoid  # a scalar, not a view
        return self._view(state)

    def numpy(self) -> Shadow:
        self._of(True)
        return Shadow(self.state, self.root, False, self.writable)

    # ---- operators ---------------------------------------------------------------------------------------

    def copy_(self, source: Shadow) -> Shadow:
        self._of(True)
        if not _is_same(self, source):
            return rearrange_(self, source)
        if self.strides != source.strides:
            raise Avoid
        return self

    def __setitem__(self, index: Any, value: Shadow) -> None:
        self[index].copy_(value)

    def __add__(self, other: Shadow) -> Shadow:
        return add(*_with_tensor(self, other))

    def __mul__(self, other: Shadow) -> Shadow:
        return mul(*_with_tensor(self, other))

    def __matmul__(self, other: Shadow) -> Shadow:
        return gemm(*_with_tensor(self, other))

    def __iadd__(self, other: Shadow) -> Shadow:
        self._of(True)
        return add_(self, self, other)

    def __imul__(self, other: Shadow) -> Shadow:
        self._of(True)
        return mul_(self, self, other)

    # ---- elements ----------------------------------------------------------------------------------------

    def is_set(self) -> bool:
        return bool(self.state.all())

    def _read(self) -> None:
        if Shadow.only_layouts:
            return
        if not self.is_set():
            raise Avoid
        self.state[self.state == CONSTANT] = CONSTANT_READ

    @property
    def magnitude(self) -> float:
        return self.root.magnitude or 0.0

    def _write(self, magnitude: float) -> None:
        if Shadow.only_layouts:
            return
        if (self.state == CONSTANT_READ).any():
            raise Avoid
        if not self.size:
            return
        root = self.root
        if root.dtype in FLOATS and abs(magnitude) > root.widest:
            raise Avoid
        self.state[...] = SET
        root.written = True
        root.magnitude = magnitude if root.magnitude is None else max(root.magnitude, magnitude)


class Plan:
    """A planned call that the program holds."""

    def __init__(self, run: Callable[..., Shadow], *operands: Any) -> None:
        self._run, self._operands, self.output = run, operands, operands[0]
        Shadow.only_layouts = True
        try:
            self()
        finally:
            Shadow.only_layouts = False

    def __call__(self) -> Shadow:
        return self._run(*self._operands)


def _with_tensor(a: Shadow, b: Shadow) -> tuple[Shadow, Shadow]:
    if not (a.tensor or b.tensor):
        raise Avoid  # NumPy would compute at once
    return a, b


def _shares(x: Shadow, y: Shadow) -> bool:
    return x.root is y.root and bool(np.shares_memory(x.state, y.state))


def _is_same(x: Shadow, y: Shadow) -> bool:
    """Are the elements of both the same, in the same order?"""
    return (
        x.root is y.root
        and x.shape == y.shape
        and x.state.ctypes.data == y.state.ctypes.data
        and all(n == 1 or s == t for n, s, t in zip(x.shape, x.strides, y.strides))
    )


def _need(legal: bool) -> None:
    if not legal:
        raise Refused


def _need_output(c: Shadow, may_be: tuple[Shadow, ...], others: tuple[Shadow, ...]) -> None:
    """An output may be exactly one of some operands, and shares no memory with the others."""
    _need(c.writable and not any(n > 1 and s == 0 for n, s in zip(c.shape, c.strides) if c.size))
    for one in may_be:
        _need(_is_same(c, one) or not _shares(c, one))
    for one in others:
        _need(not _shares(c, one))


def _result(inputs: tuple[Shadow, ...], shape: Shape, dtype: str) -> Shadow:
    root = Root(dtype, "result", max(one.root.widest for one in inputs), None)
    return Shadow(np.zeros(shape, np.int8), root, any(one.tensor for one in inputs))


def _broadcast(state: np.ndarray[Any, Any], shape: Shape) -> np.ndarray[Any, Any]:
    """``np.broadcast_to``, but writable: reading leaves a mark."""
    return as_strided(state, shape, np.broadcast_to(state, shape).strides)


def _broadcast_shape(*shapes: Shape) -> Shape:
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        raise Refused from None


def _elementwise(c: Shadow | None, a: Shadow, b: Shadow, magnitude: float) -> Shadow:
    _need(a.dtype == b.dtype and a.dtype in NUMBERS)
    shape = _broadcast_shape(a.shape, b.shape)
    if c is None:
        c = _result((a, b), shape, a.dtype)
    _need(c.shape == shape and c.dtype == a.dtype)
    _need_output(c, tuple(one._view(_broadcast(one.state, shape)) for one in (a, b)), ())
    a._read()
    b._read()
    c._write(magnitude)
    return c


def add_(c: Shadow | None, a: Shadow, b: Shadow) -> Shadow:
    return _elementwise(c, a, b, max(a.magnitude, b.magnitude) + 0.5)


def mul_(c: Shadow | None, a: Shadow, b: Shadow) -> Shadow:
    return _elementwise(c, a, b, a.magnitude + b.magnitude)


def add(a: Shadow, b: Shadow, *, out: Shadow | None = None) -> Shadow:
    return add_(out, a, b)


def mul(a: Shadow, b: Shadow, *, out: Shadow | None = None) -> Shadow:
    return mul_(out, a, b)


def gemm(
    a: Shadow,
    b: Shadow,
    alpha: float = 1.0,
    beta: float = 0.0,
    *,
    c: Shadow | None = None,
    out: Shadow | None = None,
) -> Shadow:
    _need(a.dtype == b.dtype and a.dtype in FLOATS)
    _need(a.ndim >= 2 and b.ndim >= 2 and a.shape[-1] == b.shape[-2])
    shape = (*_broadcast_shape(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    inputs = (a, b) if c is None else (a, b, c)
    if out is None:
        out = _result(inputs, shape, a.dtype)
    _need(out.shape == shape and out.dtype == a.dtype)
    _need(beta == 0 or c is not None)
    if c is not None:
        _need(c.shape == shape and c.dtype == a.dtype)
    _need_output(out, (), (a, b))
    depth = a.shape[-1]
    magnitude = a.magnitude + b.magnitude + math.log2(abs(alpha) or 1) + math.log2(depth or 1) / 2
    a._read()
    b._read()
    if c is not None and beta != 0:
        _need(not _shares(out, c) or _is_same(out, c))
        c._read()
        magnitude = max(magnitude, c.magnitude + math.log2(abs(beta))) + 0.5
    out._write(magnitude)
    return out


def gemm_(c: Shadow, a: Shadow, b: Shadow, alpha: float = 1.0, beta: float = 0.0) -> Shadow:
    return gemm(a, b, alpha, beta, c=c if beta != 0 else None, out=c)


def _norm(
    outputs: tuple[Shadow | None, Shadow | None], a: Shadow, b: Shadow, weight: Shadow
) -> tuple[Shadow, Shadow]:
    weights = FLOATS[:3] if a.dtype in FLOATS[:2] else (a.dtype,)
    _need(a.dtype == b.dtype and a.dtype in FLOATS and weight.dtype in weights)
    _need(a.ndim >= 1 and a.shape == b.shape and weight.shape == a.shape[-1:])
    y, residual = (_result((a, b, weight), a.shape, a.dtype) if given is None else given for given in outputs)
    for one in (y, residual, a, b, weight):
        _need(one is weight or (one.shape == a.shape and one.dtype == a.dtype))
        if one.shape[-1] < 2 or not one.size:
            continue
        _need(one.strides[-1] == 1)
    _need_output(y, (a, b), (weight, residual))
    _need_output(residual, (a, b), (weight, y))
    for one in (a, b, weight):
        one._read()
    residual._write(max(a.magnitude, b.magnitude) + 0.5)
    y._write(weight.magnitude)
    return y, residual


def add_rms_norm(
    a: Shadow,
    b: Shadow,
    weight: Shadow,
    epsilon: float = 1e-5,
    *,
    out: Shadow | None = None,
    residual_out: Shadow | None = None,
) -> tuple[Shadow, Shadow]:
    return _norm((out, residual_out), a, b, weight)


def add_rms_norm_(
    y: Shadow, residual_out: Shadow, a: Shadow, b: Shadow, weight: Shadow, epsilon: float = 1e-5
) -> tuple[Shadow, Shadow]:
    return _norm((y, residual_out), a, b, weight)


def rearrange(x: Shadow, *, out: Shadow | None = None) -> Shadow:
    if out is None:
        out = _result((x,), x.shape, x.dtype)
    _need(out.shape == x.shape and out.dtype == x.dtype)
    _need_output(out, (), (x,))
    x._read()
    out._write(x.magnitude)
    return out


def rearrange_(y: Shadow, x: Shadow) -> Shadow:
    return rearrange(x, out=y)


def refused(call: Callable[[], Any]) -> None:
    """Programs say so where a call is refused."""
    try:
        call()
    except Refused:
        return
    raise Avoid


for _function, _in_place in ((add, add_), (mul, mul_), (gemm, gemm_), (rearrange, rearrange_)):
    _function.plan = partial(Plan, _in_place)  # type: ignore[attr-defined]


def namespace(widest: float) -> dict[str, Any]:
    """What a program sees under the names of its modules."""

    def made(tensor: bool, origin: str, state: int) -> Callable[..., Shadow]:
        def make(shape: Any, dtype: str) -> Shadow:
            name = _NUMPY_DTYPES[dtype] if tensor else dtype
            root = Root(name, origin, widest, 0.0 if state else None)
            return Shadow(np.full(shape, state, np.int8), root, tensor)

        return make

    def arange(stop: int, *, dtype: str) -> Shadow:
        return made(True, "constant", CONSTANT)(stop, dtype)

    def values(shape: Any, dtype: str, seed: int) -> Shadow:
        return made(False, "input", SET)(shape, dtype)

    def broadcast_to(x: Shadow, shape: Shape) -> Shadow:
        x._of(False)
        return Shadow(_broadcast(x.state, shape), x.root, False, False)

    def from_numpy(x: Shadow) -> Shadow:
        x._of(False)
        return Shadow(x.state, x.root, True, x.writable)

    functions = (
        add, add_, mul, mul_, gemm, gemm_, add_rms_norm, add_rms_norm_, rearrange, rearrange_, from_numpy,
        arange,
    )  # fmt: skip
    ip = SimpleNamespace(**{function.__name__: function for function in functions})
    numpy = SimpleNamespace(broadcast_to=broadcast_to)
    for module, tensor in ((ip, True), (numpy, False)):
        # Nobody writes to an empty array but the operators, so that it is as much a result as theirs.
        module.empty = made(tensor, "result", UNSET)
        module.zeros = made(tensor, "constant", CONSTANT)
        module.ones = made(tensor, "constant", CONSTANT)
    return {"ip": ip, "np": numpy, "values": values, "refused": refused}
