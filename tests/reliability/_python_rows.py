"""Public functions and methods of the package, with arguments that they take and that they must refuse.

A row is a callable, legal arguments, and for each of them what else may come: labelled values, with the
exceptions that must be raised for them; none: the call succeeds.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

import infiniop_py as ip
from infiniop_py import (
    DeviceError,
    DTypeError,
    GraphError,
    OperandError,
    ParamError,
    ShapeError,
    StrideError,
    TensorIndexError,
)

Errors = tuple[type[BaseException], ...]


class Choice(NamedTuple):
    """A value, or what makes one, and the exceptions that must come of it."""

    value: Any
    errors: Errors = ()


Choices = dict[str, Choice]


@dataclass
class Row:
    """A callable: made anew for each call, since it may be a method of what the call changes. Choices of "()"
    are those of calling it at all.
    """

    make: Callable[[], Callable[..., Any]]
    choices: dict[str, Choices]
    says: str | tuple[str, ...] = ()  # what its messages begin with, besides those about devices
    legal: dict[str, Any] = field(default_factory=dict)
    undo: Callable[[], None] = lambda: None
    pairs: bool = True  # what is right and wrong of one parameter does not depend on another


class _Liar:
    """Says that it is an index, a path, a number and an array, and then is none."""

    def __index__(self) -> int:
        raise TypeError("no index")

    def __fspath__(self) -> str:
        raise TypeError("no path")

    def __len__(self) -> int:
        raise TypeError("no length")

    def __repr__(self) -> str:
        return "<a liar>"


#: What no function takes, or few.
JUNK: dict[str, Any] = {
    "None": None,
    "True": True,
    "float": 1.5,
    "nan": float("nan"),
    "complex": 1j,
    "str": "junk",
    "empty": "",
    "nul": "a\0b",
    "surrogate": "\ud800",
    "long": "x" * 10_000,
    "bytes": b"\x01",
    "list": ["junk"],
    "deep": [[[1]]],
    "dict": {},
    "set": {1},
    "object": object(),
    "liar": _Liar(),
    "type": int,
    "function": len,
    "module": types,
    "array": np.ones(3),
    "huge": 2**70,
    "-huge": -(2**70),
    "digits": 10**5000,
}
TEXTS = ("str", "empty", "nul", "surrogate", "long")
HUGE = ("huge", "-huge", "digits")


def kind(default: Errors | type[BaseException], /, *legal: str, **special: Any) -> Choices:
    """JUNK, refused with `default` but for labels that are legal, or have errors of their own in `special`:
    "texts" and "huge" stand for several."""

    def errors_of(label: str) -> Errors:
        if label in legal:
            return ()
        for group, labels in (("texts", TEXTS), ("huge", HUGE)):
            if label in labels and group in special and label not in special:
                label = group
        found = special.get(label, default)
        return found if isinstance(found, tuple) else (found,)

    return {label: Choice(value, errors_of(label)) for label, value in JUNK.items()}


def also(choices: Choices, /, *legal: Any, **refused: Any) -> Choices:
    """Choices with more: legal values, and values by the name of what they are refused with."""
    more = {f"legal-{i}": Choice(value) for i, value in enumerate(legal)}
    for name, values in refused.items():
        errors = (getattr(ip, name),)
        more |= {f"{name}-{i}": Choice(value, errors) for i, value in enumerate(values)}
    return {**choices, **more}


# ---- kinds of parameters -----------------------------------------------------------------------------------


def ints(out_of_range: type[BaseException], *legal: str, **special: Any) -> Choices:
    """What ``operator.index`` takes."""
    return kind(OperandError, "True", *legal, huge=out_of_range, **special)


EXACT_INT = kind(OperandError, huge=ParamError)
CAPACITY = also(kind(OperandError, "huge", "digits", **{"-huge": ParamError}), 0, ParamError=[-1])
SHAPE = also(
    kind(OperandError, "True", "bytes", "dict", "set", huge=ShapeError, empty=()),
    *(2, (), (1,) * 30, np.int64(2), (0, 2**40), range(3), [np.int8(1)]),
    ShapeError=[-1, (2, -1), (2**64,), (0, 2**62, 2**62), (0, -1)],
    OutOfMemoryError=[(2**60,), (2**31, 2**31), (2**62, 2**62), (2**63 - 1,)],
    OperandError=[(2, 1.5), ((1,),), (None,), "22", [2.0]],
)
DTYPE = also(
    kind(DTypeError, "type", "bytes"),  # as NumPy takes them
    *("F16", "I32", np.int8, "float32", ip.DType.F64, np.dtype("u2")),
    DTypeError=[">f4", "M8[s]", "f4,i4", "O", "U3", "(", "(2,", "f4,", [("a", "f4"), ("a", "f4")], -1, "V4",
                {"names": ["a"]}, "longdouble", "f4\0", ("f4", -1), ("f4", 2**70)],
)  # fmt: skip


def _devices(*absent: Any) -> Choices:
    """Names of devices, of which `absent` are not there."""
    return also(
        kind(OperandError, "None", texts=(DeviceError, ParamError), huge=DeviceError),
        *("cpu", "CPU:0", ip.Device("cpu"), ip.DeviceType.CPU, 0, ("cpu", 0)),
        *(() if absent else ABSENT),
        DeviceError=[*absent, 77, -1, "cpu:" + "9" * 30, ("junk", 0)],
        ParamError=["cpu:", "cpu:-1", "cpu:x", "cpu:0:0", "cpu:" + "9" * 5000],
        OperandError=[("cpu", 1.5), ("cpu", "0"), ("cpu", 0, 0), ()],
    )


ABSENT = ("qy", "qy:3", "cpu:1", ("cpu", 1), ip.Device("qy", 1))
DEVICE = _devices(*ABSENT)
NAMED_DEVICE = _devices()  # where it need not be there
DEVICE_TYPE = also(
    kind((DeviceError, OperandError)),
    *("cpu", "CPU", "cuda", 0, 9, ip.DeviceType.QY),
    DeviceError=["junk", "cpu:0", 10, -1],
)
FINITE = kind(OperandError, "True", "float", nan=ParamError, huge=ParamError)
ANYTHING = kind(())
FLAG = kind(())  # only its truth is asked, which all of JUNK can tell
FLAG["array"] = FLAG["liar"] = Choice(True)


# ---- what is called ----------------------------------------------------------------------------------------


def tensor() -> ip.Tensor:
    return ip.Tensor.arange(6, dtype="F32").reshape(2, 3)


def event() -> ip.Event:
    made = ip.Event("cpu")
    made.record()
    return made


X, Y = np.ones((2, 3), "f4"), np.full((2, 3), 2, "f4")
Z = np.zeros((2, 3), "f4")


def graph() -> ip.Graph:
    with ip.Graph() as made:
        ip.add_(Z, X, Y)
        made.name(x=X, z=Z)
    return made


def _cache() -> ip.LRUCache[Any]:
    made: ip.LRUCache[Any] = ip.LRUCache(3)
    made.put("a", 1)
    return made


def _dispatcher() -> ip.OpDispatcher:
    made = ip.OpDispatcher("own")
    made.register_device("cpu", print)
    return made


STREAM = kind(OperandError, "None")
EVENT = also(kind(OperandError), event())
HASHABLE = kind((), list=TypeError, deep=TypeError, dict=TypeError, set=TypeError, array=TypeError)
FUNCTION = kind(OperandError, "type", "function")
IMPLEMENTATION = also(FUNCTION, ip.OpImpl(len, len), OperandError=[ip.OpImpl(1, 2), ip.OpImpl(len, len, 3)])
DEVICE_TYPES = also(
    kind((OperandError, DeviceError), "dict", "bytes"),
    "cpu",
    ["cpu", "qy"],
    ("cpu",),
    DeviceError=[77, ["x"]],
)
DEVICE_TYPES["set"] = Choice({1})
PATH = kind((OperandError, OSError, ParamError, GraphError), "str", "bytes")
FUSE = also(kind(ParamError), "exact", "fast", "none")
ARRAY = also(kind(OperandError), X)
DIMS = also(kind((OperandError, TensorIndexError, ShapeError)), *((0, 1), (1, 0), [1, 0], (-1, 0)))
STRIDES = also(  # of (1, 2) elements
    kind((OperandError, StrideError)),
    *((3, 1), [0, 0], (100, 1), (2**60, -0)),
    StrideError=[(1,), (0, 6), (0, -1), (2**62, 0), (0, 2**60), (2**70, 0)],
)

_START = {"start": 0, "stop": 4, "step": 1}
_KIND_OF_NEW = {"shape": SHAPE, "dtype": DTYPE, "device": DEVICE}


def _new(name: str, **more: Choices) -> Row:
    return Row(lambda: getattr(ip.Tensor, name), {**_KIND_OF_NEW, **more}, name, {"shape": (2, 3)})


def _restore_device() -> None:
    ip.set_device("cpu")


def _restore_threads() -> None:
    ip.set_num_threads(0)


def _recording_stops() -> None:
    with suppress(ip.GraphError):
        ip.stop_graph_recording()


def _set_item(index: Any, value: Any) -> None:
    tensor()[index] = value


INDEX = also(
    kind((OperandError, TensorIndexError), "None", object=OperandError),
    *(0, -1, slice(None), ..., (0, 1), (slice(None, None, -1), None), np.int64(1), ()),
    TensorIndexError=[2, -3, (0, 3), (0, 0, 0), (..., ...)],
    OperandError=[1.5, (0, "x"), slice("x"), slice(None, None, 0), np.array([0]), [0], np.True_],
)
SOURCE = also(
    kind(OperandError, array=(ShapeError, DTypeError)),
    *(X, tensor()),
    ShapeError=[np.ones(3, "f4")],
    DTypeError=[np.ones((2, 3)), np.ones((2, 3), ">f4"), np.empty((2, 3), "O")],
)
SIZES = also(
    kind((OperandError, ShapeError, TensorIndexError)), (3, 2), [6], (6, 1), (-1, 2), (1,) * 20 + (6,)
)
ROWS: dict[str, Row] = {
    # ---- tensors
    "empty": _new("empty"),
    "zeros": _new("zeros"),
    "ones": _new("ones"),
    "randn": Row(
        lambda: ip.randn,
        {
            **_KIND_OF_NEW,
            "dtype": also(kind(DTypeError), "F16", float, DTypeError=["I32", "BYTE", "C64", ">f4"]),
            "seed": also(
                kind(ParamError, "None", "True", "deep", huge=(), **{"-huge": ParamError}), 0, [1, 2]
            ),
        },
        "randn",
        {"shape": (2, 3)},
    ),
    "arange": Row(
        lambda: ip.arange,
        {
            "start": FINITE,
            "stop": {**FINITE, "None": Choice(4)},
            "step": also(FINITE, 2, -1, ParamError=[0, 0.0]),
            "dtype": {**DTYPE, "None": Choice(None)},
            "device": DEVICE,
        },
        "arange",
        _START,
    ),
    "from_numpy": Row(
        lambda: ip.from_numpy,
        {
            "array": also(
                kind(OperandError, "array"),
                np.ones((0, 3)),
                DTypeError=[np.ones(3, ">f4"), np.empty(2, "O"), np.zeros(2, "M8[s]"), np.zeros(2, "V4")],
                ParamError=[np.zeros(17, "u1")[1:].view("f4")],
                StrideError=[np.ndarray((3,), "f4", np.zeros(64, "u1").data, 0, (6,))],
            )
        },
        "from_numpy",
        {"array": X},
    ),
    "from_dlpack": Row(
        lambda: ip.from_dlpack,
        {"source": {**ARRAY, "array": Choice(np.ones(3))}},
        "from_dlpack",
        {"source": X},
    ),
    "from_blob": Row(
        lambda: ip.from_blob,
        {
            "pointer": also(
                ints(ParamError, "True"),
                np.int64(X.ctypes.data),
                NullPointerError=[0],
                ParamError=[-8, 2**64 - 4],
            ),
            "shape": {
                **SHAPE,
                **also({}, (2**60,), ShapeError=[(2**31, 2**31), (2**62, 2**62), (2**63 - 1,)]),
                **{f"OutOfMemoryError-{i}": Choice(2) for i in range(4)},
            },
            "dtype": DTYPE,
            "strides": also(
                kind((OperandError, StrideError), "None", "bytes", "set"),
                *((1,), (0,), (-1,), (2**40,)),
                StrideError=[(1, 1), (), (2**62,)],
            ),
            "device": NAMED_DEVICE,
            "owner": ANYTHING,
        },
        "from_blob",
        {"pointer": X.ctypes.data, "shape": (2,)},
    ),
    "Tensor": Row(lambda: ip.Tensor, {"()": {"now": Choice(None, (OperandError,))}}, "Tensor()"),
    "DType": Row(lambda: ip.DType, {"()": {"now": Choice(None, (OperandError,))}}, "DType()"),
    "Tensor.permute": Row(lambda: tensor().permute, {"dims": DIMS}, "permute", {"dims": (1, 0)}),
    "Tensor.transpose": Row(
        lambda: tensor().transpose,
        {name: ints(TensorIndexError) for name in ("dim0", "dim1")},
        "transpose",
        {"dim0": 0, "dim1": -1},
    ),
    "Tensor.view": Row(lambda: tensor().view, {"shape": SIZES}, "view", {"shape": (3, 2)}),
    "Tensor.reshape": Row(lambda: tensor().T.reshape, {"shape": SIZES}, "reshape", {"shape": (2, 3)}),
    "Tensor.narrow": Row(
        lambda: tensor().narrow,
        {name: also(ints(TensorIndexError), TensorIndexError=[-3, 4]) for name in ("dim", "start", "length")},
        "narrow",
        {"dim": 1, "start": 0, "length": 1},
    ),
    "Tensor.squeeze": Row(
        lambda: tensor().unsqueeze(0).squeeze,
        {
            "dim": also(
                {**ints(TensorIndexError), "None": Choice(None), "True": Choice(True, (ShapeError,))},
                0,
                -3,
                ShapeError=[1],
                TensorIndexError=[3, -4],
            )
        },
        "squeeze",
        {},
    ),
    "Tensor.unsqueeze": Row(
        lambda: tensor().unsqueeze,
        {"dim": also(ints(TensorIndexError), 2, -3, TensorIndexError=[3, -4])},
        "unsqueeze",
        {"dim": 0},
    ),
    "Tensor.as_strided": Row(
        lambda: tensor().as_strided,
        {
            "shape": kind((OperandError, ShapeError, StrideError)),
            "strides": STRIDES,
            "offset": also(ints(StrideError), 1, StrideError=[-1, 6]),
        },
        "as_strided",
        {"shape": (1, 2), "strides": (3, 1), "offset": 0},
    ),
    "Tensor.to": Row(lambda: tensor().to, {"device": DEVICE}, (), {"device": "cpu"}),
    "Tensor.__getitem__": Row(lambda: tensor().__getitem__, {"index": INDEX}, "index", {"index": 0}),
    "Tensor.__setitem__": Row(
        lambda: _set_item,
        {"index": kind((OperandError, TensorIndexError, ShapeError)), "value": SOURCE},
        ("index", "copy_"),
        {"index": ..., "value": X},
    ),
    "Tensor.__array__": Row(
        lambda: tensor().__array__,
        {"dtype": kind((TypeError, ValueError), "None", "type", "bytes", "dict"), "copy": FLAG},
        (),
        {},
    ),
    "Tensor.__dlpack__": Row(
        lambda: tensor().__dlpack__,
        {
            "stream": kind(ParamError, "None"),
            "max_version": also(kind((OperandError, ParamError), "None"), (1, 0), (0, 8), (9, 9)),
            "dl_device": also(kind(DeviceError, "None"), (1, 0), DeviceError=[(2, 0), (1, 1)]),
            "copy": FLAG,
        },
        "__dlpack__",
        {},
    ),
    # ---- devices
    "set_device": Row(
        lambda: ip.set_device,
        {
            "device": {**DEVICE, "None": Choice(None, (OperandError,))},
            "index": also(
                {**kind((OperandError, ParamError), huge=DeviceError), "None": Choice(None)},
                0,
                DeviceError=[1, -1],
            ),
        },
        (),
        {"device": "cpu"},
        _restore_device,
        pairs=False,
    ),
    "device_count": Row(lambda: ip.device_count, {"type": DEVICE_TYPE}, "device type", {}),
    "get_stream": Row(lambda: ip.get_stream, {"device": NAMED_DEVICE}, (), {}),
    "synchronize": Row(lambda: ip.synchronize, {"device": DEVICE}, (), {}),
    "Device": Row(
        lambda: ip.Device,
        {
            "spec": {**NAMED_DEVICE, "None": Choice(None, (OperandError,))},
            "index": also(
                {**kind((OperandError, ParamError), huge=DeviceError), "None": Choice(None)},
                0,
                7,
                DeviceError=[-1, 2**31],
            ),
        },
        (),
        {"spec": "cpu"},
        pairs=False,
    ),
    "DeviceType": Row(lambda: ip.DeviceType, {"value": kind(ValueError, "True")}, (), {"value": 0}),
    "Stream": Row(lambda: ip.Stream, {"device": DEVICE}, (), {}),
    "Stream.wait_event": Row(
        lambda: ip.Stream("cpu").wait_event, {"event": EVENT}, "Stream.wait_event", {"event": event()}
    ),
    "Stream.wait_stream": Row(
        lambda: ip.Stream("cpu").wait_stream,
        {"other": also(kind(OperandError), ip.Stream("cpu"))},
        "Stream.wait_stream",
        {"other": ip.Stream("cpu")},
    ),
    "Stream.from_handle": Row(  # of a family that has no devices, which is said last
        lambda: ip.Stream.from_handle,
        {
            "()": {"now": Choice(None, (DeviceError,))},
            "device": kind((DeviceError, OperandError, ParamError)),
            "stream": also(kind(OperandError, huge=ParamError), ParamError=[-1, 2**64], DeviceError=[0, 2]),
        },
        "Stream.from_handle",
        {"device": "kunlun", "stream": 5},
    ),
    "Stream.__exit__": Row(
        lambda: lambda: ip.Stream("cpu").__exit__(None, None, None),
        {"()": {"now": Choice(None, (ParamError,))}},
        "<Stream",
    ),
    "Event": Row(lambda: ip.Event, {"device": DEVICE, "timing": FLAG, "blocking": FLAG}, (), {}),
    "Event.record": Row(
        lambda: event().record, {"stream": also(STREAM, ip.Stream("cpu"))}, "Event.record", {}
    ),
    "Event.elapsed_time": Row(
        lambda: event().elapsed_time,
        {"end": also(EVENT, ParamError=[ip.Event("cpu")])},
        "Event.elapsed_time",
        {"end": event()},
    ),
    # ---- threads
    "set_num_threads": Row(
        lambda: ip.set_num_threads,
        {"n": also(EXACT_INT, 0, 1, 10**6, ParamError=[-1, 2**31])},
        "set_num_threads",
        {"n": 1},
        _restore_threads,
    ),
    "num_threads": Row(
        lambda: ip.num_threads, {"n": also(EXACT_INT, 1, ParamError=[0, -1, 2**31])}, "num_threads", {"n": 1}
    ),
    "num_threads.__exit__": Row(
        lambda: ip.num_threads(1).__exit__, {"()": {"now": Choice(None, (ParamError,))}}, "num_threads"
    ),
    # ---- caches and dispatchers
    "LRUCache": Row(lambda: ip.LRUCache, {"capacity": CAPACITY, "name": ANYTHING}, "capacity", {}),
    "LRUCache.get": Row(lambda: _cache().get, {"key": HASHABLE}, (), {"key": "a"}),
    "LRUCache.put": Row(
        lambda: _cache().put, {"key": HASHABLE, "value": ANYTHING}, (), {"key": 1, "value": 2}
    ),
    "LRUCache.set_capacity": Row(lambda: _cache().set_capacity, {"n": CAPACITY}, "capacity", {"n": 1}),
    "LRUCache.__contains__": Row(lambda: _cache().__contains__, {"key": HASHABLE}, (), {"key": "a"}),
    "OpCache": Row(lambda: ip.OpCache, {"capacity": CAPACITY, "name": ANYTHING}, "capacity", {}),
    "OpCache.get_cache": Row(lambda: ip.OpCache().get_cache, {"device": NAMED_DEVICE}, (), {"device": "cpu"}),
    "OpCache.set_capacity": Row(lambda: ip.OpCache().set_capacity, {"n": CAPACITY}, "capacity", {"n": 1}),
    "OpDispatcher": Row(lambda: ip.OpDispatcher, {"name": ANYTHING}, (), {"name": "own"}),
    "OpDispatcher.register_device": Row(
        lambda: _dispatcher().register_device,
        {"type": DEVICE_TYPES, "impl": IMPLEMENTATION, "override_existing": FLAG},
        ("own: device type", "an implementation", "OpImpl"),
        {"type": "cpu", "impl": len},
    ),
    "OpDispatcher.register_all": Row(
        lambda: _dispatcher().register_all,
        {"impl": IMPLEMENTATION, "override_existing": FLAG},
        ("an implementation", "OpImpl"),
        {"impl": len},
    ),
    "OpDispatcher.lookup": Row(
        lambda: _dispatcher().lookup,
        {
            "type": also(
                kind(DeviceError), "cpu", "CPU", 0, DeviceError=["qy", "cuda", 9, -1, ip.DeviceType.QY]
            )
        },
        "own: no implementation",
        {"type": "cpu"},
    ),
    "OpDispatcher.implementation": Row(
        lambda: _dispatcher().implementation,
        {"type": also(kind((DeviceError, OperandError)), 0, ip.DeviceType.CPU, DeviceError=[9, -1, 10, -10])},
        "own: no implementation",
        {"type": ip.DeviceType.CPU},
    ),
    # ---- graphs
    "GraphOperator": Row(lambda: ip.GraphOperator, {"()": {"now": Choice(None, (TypeError,))}}),
    "Graph": Row(lambda: ip.Graph, {"fuse": FUSE}, "Graph", {}),
    "Graph.name": Row(lambda: graph().name, {"x": kind(OperandError, "array")}, "Graph.name", {"x": X}),
    "Graph.bind": Row(
        lambda: graph().bind,
        {
            "x": also(
                kind(OperandError, array=DTypeError),
                Y,
                ShapeError=[np.ones(3, "f4")],
                DTypeError=[np.ones((2, 3))],
                StrideError=[np.ones((3, 2), "f4").T],
            ),
            "nobody": {"array": Choice(X, (OperandError,)), "None": Choice(None, (OperandError,))},
        },
        "Graph.bind",
        {"x": Y},
    ),
    "Graph.save": Row(
        lambda: graph().save,
        {
            "path": PATH,
            "contents": also(
                kind(OperandError, "None", "dict"), [], ["x"], OperandError=[["y"], [["x"]], [1]]
            ),
        },
        "Graph.save",
        {"path": "PATH"},
    ),
    "Graph.load": Row(
        lambda: ip.Graph.load,
        {
            "path": also(PATH, GraphError=["/dev/null"]),
            "fuse": FUSE,
            "max_bytes": kind(OperandError, huge=(), **{"-huge": GraphError, "True": GraphError}),
        },
        "Graph",
        {"path": "SAVED"},
    ),
    "Graph.memory_report": Row(
        lambda: graph().memory_report, {"device": {**NAMED_DEVICE, "None": Choice(None)}}, (), {}
    ),
    "Graph.profile": Row(
        lambda: graph().profile,
        {
            "n": also(
                kind(OperandError, **{"-huge": ParamError}, huge=ip.OutOfMemoryError), ParamError=[0, -1]
            ),
            "trace": {**PATH, "None": Choice(None)},
        },
        "Graph.profile",
        {"n": 1},
    ),
    "Graph.to_dot": Row(lambda: graph().to_dot, {"fused": FLAG}, (), {}),
    "Graph.to_svg": Row(
        lambda: graph().to_svg, {"path": {**PATH, "None": Choice(None)}, "fused": FLAG}, "Graph.to_svg", {}
    ),
    "start_graph_recording": Row(lambda: ip.start_graph_recording, {}, (), {}, _recording_stops),
    "stop_graph_recording": Row(
        lambda: ip.stop_graph_recording,
        {"()": {"now": Choice(None, (GraphError,))}},
        "no graph is being recorded",
    ),
}
