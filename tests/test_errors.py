"""One row per way to be wrong: the exception, its status, its words, and outputs untouched."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import infiniop_py as ip
from infiniop_py import errors, workspace

BUILTIN = {
    "ParamError": ValueError,
    "NullPointerError": ValueError,
    "ShapeError": ValueError,
    "StrideError": ValueError,
    "TensorIndexError": IndexError,
    "OperandError": TypeError,
    "DTypeError": TypeError,
    "DeviceError": RuntimeError,
    "UnsupportedError": NotImplementedError,
    "WorkspaceError": RuntimeError,
    "InternalError": RuntimeError,
    "OutOfMemoryError": MemoryError,
    "GraphError": RuntimeError,
    "LibraryError": ImportError,
}
CLASSES = [getattr(errors, name) for name in errors.__all__ if name not in ("Status", "InfiniopError")]


def test_the_tree_is_the_table() -> None:
    assert {cls.__name__ for cls in CLASSES} == set(BUILTIN)
    for cls in CLASSES:
        assert re.search(rf"[├└]── {cls.__name__}\b", errors.__doc__ or ""), f"{cls.__name__} is not drawn"


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_each_is_also_a_builtin_and_pickles(cls: type[ip.InfiniopError]) -> None:
    error = cls("what went wrong", status=7)
    assert isinstance(error, ip.InfiniopError) and isinstance(error, BUILTIN[cls.__name__])
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is cls and str(copy) == "what went wrong" and copy.status == 7
    assert cls().status in set(errors.Status)


@pytest.mark.parametrize("status", [s for s in errors.Status if s], ids=lambda s: s.name)
def test_every_status_has_a_class(status: errors.Status) -> None:
    error = errors.from_status(status, "text")
    assert error.status == status and str(error) == "text"
    assert type(error).status == status or type(error) is ip.DeviceError


def test_an_unknown_status_is_internal() -> None:
    assert type(errors.from_status(99, "")) is ip.InternalError and errors.from_status(99, "").status == 99


# ---- calls that are refused ------------------------------------------------------------------------------


def f4(*shape: int) -> np.ndarray[Any, Any]:
    return np.ones(shape, "f4")


def readonly(*shape: int) -> np.ndarray[Any, Any]:
    array = f4(*shape)
    array.flags.writeable = False
    return array


def odd_strides() -> np.ndarray[Any, Any]:
    """F32 elements at every sixth byte."""
    return np.ndarray((4,), "f4", np.zeros(64, "u1").data, 0, (6,))


def unaligned() -> np.ndarray[Any, Any]:
    return np.zeros(17, "u1")[1:].view("f4")


def spread(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """An array with two elements at one address."""
    return np.lib.stride_tricks.as_strided(x, (2, 3), (0, 4))


@dataclass
class Row:
    name: str
    call: Callable[[], object]
    error: type[ip.InfiniopError]
    says: str


X, Y = f4(2, 3), f4(3, 4)
BASE = f4(8)

ROWS = [
    # operands of a wrong kind
    Row(
        "list",
        lambda: ip.add([1.0], f4(1)),
        ip.OperandError,
        "add: a is a list, needs a NumPy array or a Tensor",
    ),
    Row("none", lambda: ip.add_(None, f4(1), f4(1)), ip.OperandError, "add: c is a NoneType"),
    Row("number", lambda: ip.mul(f4(1), 2.0), ip.OperandError, "mul: b is a float"),
    Row("numpy-scalar", lambda: ip.mul(f4(1), np.float32(2)), ip.OperandError, "mul: b is a float32"),
    Row("masked", lambda: ip.add(np.ma.ones(3), np.ones(3)), ip.OperandError, "add: a is a MaskedArray"),
    Row(
        "weight-none",
        lambda: ip.add_rms_norm(X, X, None),
        ip.OperandError,
        "add_rms_norm: weight is a NoneType",
    ),
    Row("y-none", lambda: ip.add_rms_norm_(None, X, X, X, f4(3)), ip.OperandError, "add_rms_norm: y is None"),
    Row("x-str", lambda: ip.rearrange("x"), ip.OperandError, "rearrange: x is a str"),
    Row(
        "alpha-str",
        lambda: ip.gemm(X, Y, "1"),
        ip.OperandError,
        "gemm: alpha is '1' (str), needs a real number",
    ),
    Row("beta-complex", lambda: ip.gemm(X, Y, 1, 1j, c=f4(2, 4)), ip.OperandError, "gemm: beta is 1j"),
    Row(
        "epsilon",
        lambda: ip.add_rms_norm(X, X, f4(3), None),
        ip.OperandError,
        "add_rms_norm: epsilon is None",
    ),
    # element types
    Row(
        "mixed",
        lambda: ip.add(f4(3), np.ones(3)),
        ip.DTypeError,
        "add: dtypes differ: a is F32, b is F64",
    ),
    Row(
        "mixed-c",
        lambda: ip.add_(np.ones(3), f4(3), f4(3)),
        ip.DTypeError,
        "add: dtypes differ: c is F64, a is F32",
    ),
    Row(
        "mixed-gemm-c",
        lambda: ip.gemm(X, Y, 1, 1, c=np.ones((2, 4))),
        ip.DTypeError,
        "gemm: dtypes differ: c is F64",
    ),
    Row("big-endian", lambda: ip.add(f4(3), np.ones(3, ">f4")), ip.DTypeError, "add: dtype of b is '>f4'"),
    Row(
        "datetime",
        lambda: ip.rearrange(np.zeros(3, "M8[s]")),
        ip.DTypeError,
        "rearrange: dtype of x is datetime64[s]",
    ),
    Row("object", lambda: ip.add(np.array([None]), f4(1)), ip.DTypeError, "add: dtype of a is object"),
    Row("record", lambda: ip.rearrange(np.zeros(3, "i4,i4")), ip.DTypeError, "rearrange: dtype of x is"),
    Row("string", lambda: ip.rearrange(np.array(["ab"])), ip.DTypeError, "rearrange: dtype of x is <U2"),
    Row("longdouble", lambda: ip.mul(np.ones(1, "g"), np.ones(1, "g")), ip.DTypeError, "mul: dtype of a is"),
    Row("bool-add", lambda: ip.add(np.ones(3, "?"), np.ones(3, "?")), ip.DTypeError, "add: a has dtype BOOL"),
    Row(
        "bool-out",
        lambda: ip.add(np.ones(3, "?"), np.ones(3, "?"), out=np.ones(3, "?")),
        ip.DTypeError,
        "add: out has dtype BOOL",
    ),
    Row(
        "int-gemm",
        lambda: ip.gemm(np.ones((2, 2), "i4"), np.ones((2, 2), "i4")),
        ip.DTypeError,
        "gemm: a has dtype I32, needed F16, BF16, F32 or F64",
    ),
    Row(
        "int-norm",
        lambda: ip.add_rms_norm(*[np.ones(3, "i4")] * 3),
        ip.DTypeError,
        "add_rms_norm: a has dtype I32",
    ),
    Row(
        "weight-wide",
        lambda: ip.add_rms_norm(X, X, np.ones(3)),
        ip.DTypeError,
        "weight is F64, but with F32 operands",
    ),
    # shapes
    Row(
        "inner",
        lambda: ip.gemm(f4(2, 3), f4(4, 5)),
        ip.ShapeError,
        "gemm: inner dimensions differ: a is (2, 3), b is (4, 5); a.shape[-1] must equal b.shape[-2]",
    ),
    Row(
        "vector-a",
        lambda: ip.gemm(f4(3), f4(3, 4)),
        ip.ShapeError,
        "gemm: a is (3,), needs 2 or more dimensions",
    ),
    Row(
        "vector-b",
        lambda: ip.gemm(f4(2, 3), f4(3)),
        ip.ShapeError,
        "gemm: b is (3,), needs 2 or more dimensions",
    ),
    Row(
        "batch",
        lambda: ip.gemm(f4(2, 2, 3), f4(3, 3, 4)),
        ip.ShapeError,
        "gemm: batch dimensions do not broadcast: a is",
    ),
    Row(
        "gemm-out",
        lambda: ip.gemm(X, Y, out=f4(4, 2)),
        ip.ShapeError,
        "gemm: out is (4, 2), but the result is (2, 4)",
    ),
    Row(
        "gemm-c",
        lambda: ip.gemm(X, Y, 1, 1, c=f4(4)),
        ip.ShapeError,
        "gemm: c is (4,), but the result is (2, 4)",
    ),
    Row("gemm-c-unused", lambda: ip.gemm(X, Y, c=f4(1, 4)), ip.ShapeError, "gemm: c is (1, 4)"),
    Row(
        "gemm_-c",
        lambda: ip.gemm_(f4(1, 2, 4), X, Y),
        ip.ShapeError,
        "gemm: c is (1, 2, 4), but the result is (2, 4)",
    ),
    Row(
        "broadcast",
        lambda: ip.add(X, f4(4)),
        ip.ShapeError,
        "add: shapes do not broadcast: a is (2, 3), b is (4,)",
    ),
    Row(
        "add-out",
        lambda: ip.add(X, f4(3), out=f4(3)),
        ip.ShapeError,
        "add: out is (3,), but a (2, 3) and b (3,) make (2, 3)",
    ),
    Row(
        "add-larger",
        lambda: ip.mul_(X, f4(3), f4(3)),
        ip.ShapeError,
        "mul: c is (2, 3), but a (3,) and b (3,) make (3,)",
    ),
    Row("norm-b", lambda: ip.add_rms_norm(X, f4(3), f4(3)), ip.ShapeError, "b is (3,), weight is (3,)"),
    Row("norm-weight", lambda: ip.add_rms_norm(X, X, f4(2)), ip.ShapeError, "weight is (2,)"),
    Row(
        "norm-scalar",
        lambda: ip.add_rms_norm(f4(), f4(), f4()),
        ip.ShapeError,
        "add_rms_norm: a has 0 dimensions, needs 1 to 8: ()",
    ),
    Row(
        "norm-rank",
        lambda: ip.add_rms_norm(f4(*[1] * 9), f4(*[1] * 9), f4(1)),
        ip.ShapeError,
        "add_rms_norm: a has 9 dimensions, needs 1 to 8",
    ),
    Row(
        "rearrange", lambda: ip.rearrange_(f4(3, 2), X), ip.ShapeError, "rearrange: y is (3, 2), x is (2, 3)"
    ),
    Row(
        "rank-17",
        lambda: ip.rearrange(f4(*[1] * 17)),
        ip.ShapeError,
        f"rearrange: x has 17 dimensions, needs 0 to 16: {(1,) * 17}",
    ),
    Row(
        "rank-17-of-b",
        lambda: ip.mul(f4(2), f4(*[1] * 17)),
        ip.ShapeError,
        f"mul: b has 17 dimensions, needs 0 to 16: {(1,) * 17}",
    ),
    Row(
        "rank-17-copied",
        lambda: ip.zeros((1,) * 17).copy_(ip.ones((1,) * 17)),
        ip.ShapeError,
        "copy_: source has 17 dimensions",
    ),
    # strides and alignment
    Row(
        "odd-strides",
        lambda: ip.add(odd_strides(), odd_strides()),
        ip.StrideError,
        "has strides of (6,) bytes, which are",
    ),
    Row(
        "self-overlap",
        lambda: ip.add(X, X, out=spread(f4(8))),
        ip.StrideError,
        "add: elements of output out overlap each other",
    ),
    Row(
        "self-overlap-copy_",
        lambda: ip.ones(8).as_strided((2, 3), (0, 1)).copy_(X),
        ip.StrideError,
        "copy_: elements of output destination overlap each other",
    ),
    Row(
        "norm-stride",
        lambda: ip.add_rms_norm(f4(2, 6)[:, ::2], f4(2, 3), f4(3)),
        ip.StrideError,
        "add_rms_norm: ",
    ),
    Row(
        "norm-stride-out",
        lambda: ip.add_rms_norm(f4(2, 3), f4(2, 3), f4(3), out=f4(2, 6)[:, ::2]),
        ip.StrideError,
        "add_rms_norm: the last stride of out is 2, needed 1",
    ),
    Row("unaligned", lambda: ip.add(unaligned(), f4(4)), ip.ParamError, "add: a with shape (4,) at 0x"),
    Row(
        "unaligned-out",
        lambda: ip.add(f4(4), f4(4), out=unaligned()),
        ip.ParamError,
        "add: out with shape (4,) at 0x",
    ),
    # outputs
    Row(
        "readonly-out",
        lambda: ip.add(X, X, out=readonly(2, 3)),
        ip.ParamError,
        "add: out with shape (2, 3) is read-only",
    ),
    Row(
        "readonly-c",
        lambda: ip.gemm_(readonly(2, 4), X, Y),
        ip.ParamError,
        "gemm: c with shape (2, 4) is read-only",
    ),
    Row(
        "readonly-y",
        lambda: ip.rearrange_(readonly(3), f4(3)),
        ip.ParamError,
        "rearrange: y with shape (3,) is read-only",
    ),
    Row(
        "readonly-res",
        lambda: ip.add_rms_norm(X, X, f4(3), residual_out=readonly(2, 3)),
        ip.ParamError,
        "residual_out",
    ),
    Row(
        "overlap-add",
        lambda: ip.add(BASE[1:], BASE[1:], out=BASE[:-1]),
        ip.ParamError,
        "add: out with shape (7,) overlaps a with shape (7,)",
    ),
    Row(
        "overlap-add_",
        lambda: ip.add_(BASE[:-1], f4(7), BASE[1:]),
        ip.ParamError,
        "add: c with shape (7,) overlaps b with shape (7,)",
    ),
    Row(
        "overlap-rearrange-out",
        lambda: ip.rearrange(BASE[:4], out=BASE[1:5]),
        ip.ParamError,
        "rearrange: out with shape (4,) overlaps x with shape (4,)",
    ),
    Row(
        "overlap-copy_",
        lambda: ip.from_numpy(BASE[:4]).copy_(BASE[1:5]),
        ip.ParamError,
        "copy_: destination with shape (4,) overlaps source with shape (4,)",
    ),
    Row(
        "overlap-norm",
        lambda: ip.add_rms_norm(BASE[:6], BASE[:6], f4(6), residual_out=BASE[1:7]),
        ip.ParamError,
        "add_rms_norm: residual_out with shape (6,) overlaps a with shape (6,)",
    ),
    Row(
        "overlap-gemm",
        lambda: ip.gemm_(BASE[:4].reshape(2, 2), BASE[2:6].reshape(2, 2), f4(2, 2)),
        ip.ParamError,
        "gemm: c",
    ),
    Row("overlap-rearrange", lambda: ip.rearrange_(BASE[:4], BASE[:4]), ip.ParamError, "rearrange: "),
    Row(
        "overlap-y-res",
        lambda: ip.add_rms_norm(X, X, f4(3), out=BASE[:6].reshape(2, 3), residual_out=BASE[2:].reshape(2, 3)),
        ip.ParamError,
        "add_rms_norm: ",
    ),
    Row(
        "out-overlaps-c",
        lambda: ip.gemm(f4(2, 2), f4(2, 2), 1, 1, c=BASE[:4].reshape(2, 2), out=BASE[2:6].reshape(2, 2)),
        ip.ParamError,
        "gemm: out with shape (2, 2) overlaps c with shape (2, 2)",
    ),
    Row(
        "out-overlaps-a-before-c-is-copied",
        lambda: ip.gemm(BASE[:4].reshape(2, 2), f4(2, 2), 1, 1, c=f4(2, 2), out=BASE[2:6].reshape(2, 2)),
        ip.ParamError,
        "gemm: out with shape (2, 2) overlaps a with shape (2, 2)",
    ),
    Row(
        "c-missing",
        lambda: ip.gemm(X, Y, 1.0, 0.5),
        ip.ParamError,
        "gemm: beta is 0.5, but there is no c to add",
    ),
    # devices
    Row(
        "device-name", lambda: ip.Device("tpu"), ip.DeviceError, "device type is 'tpu'; known are cpu, nvidia"
    ),
    Row("device-form", lambda: ip.Device("cpu:x"), ip.ParamError, "device is 'cpu:x'; needs a form such as"),
    Row("device-kind", lambda: ip.Device(1.5), ip.OperandError, "device is 1.5"),
    Row("device-index", lambda: ip.set_device("cpu", 7), ip.DeviceError, "7"),
    Row(
        "device-twice",
        lambda: ip.Device("cpu:0", 1),
        ip.ParamError,
        "Device: index is 1, but cpu:0 already has one",
    ),
    # numbers no machine has room for
    Row(
        "alpha-huge",
        lambda: ip.gemm(X, Y, 10**400),
        ip.ParamError,
        "gemm: alpha is an int of 1329 bits, needs",
    ),
    Row("size-huge", lambda: ip.empty((0, 2**70)), ip.ShapeError, "empty: shape has a size of"),
    Row("sizes-beside-0", lambda: ip.empty((0, 2**40, 2**40)), ip.ShapeError, "empty: shape is (0, 10995"),
    Row(
        "reshaped-beside-0", lambda: ip.empty((0, 3)).reshape(0, 2**70), ip.ShapeError, "reshape: shape has a"
    ),
    Row("ones-huge", lambda: ip.ones(2**50), ip.OutOfMemoryError, "ones: "),
    Row("randn-huge", lambda: ip.randn(2**50), ip.OutOfMemoryError, "randn: "),
    Row("arange-huge", lambda: ip.arange(2**50), ip.OutOfMemoryError, "arange: "),
    Row("arange-huger", lambda: ip.arange(1e300), ip.OutOfMemoryError, "arange: "),
    Row("arange-too-large-an-int", lambda: ip.arange(2**70, 2**70 + 3), ip.ParamError, "arange: start is"),
    Row(
        "result-huge",
        lambda: ip.gemm(np.empty((2**25, 0), "f4"), np.empty((0, 2**25), "f4")),
        ip.OutOfMemoryError,
        "gemm: ",
    ),
    Row(
        "result-huger",
        lambda: ip.gemm(np.empty((2**40, 0), "f4"), np.empty((0, 2**40), "f4")),
        ip.OutOfMemoryError,
        "gemm: ",
    ),
    Row(
        "arange-str",
        lambda: ip.arange("a"),
        ip.OperandError,
        "arange: stop is 'a' (str), needs a real number",
    ),
    Row(
        "arange-complex", lambda: ip.arange(3j), ip.OperandError, "arange: stop is 3j (complex), needs a real"
    ),
    Row("arange-nan", lambda: ip.arange(float("nan")), ip.ParamError, "arange: stop is nan, needs a finite"),
    Row(
        "arange-inf", lambda: ip.arange(0, float("inf")), ip.ParamError, "arange: stop is inf, needs a finite"
    ),
    Row(
        "numpy-rank-100",
        lambda: ip.ones((1,) * 100).numpy(),
        ip.ShapeError,
        "numpy: shape has 100 dimensions",
    ),
    Row(
        "blob-huge", lambda: ip.from_blob(4096, (2**61,)), ip.ShapeError, "from_blob: shape is (2305843009213"
    ),
    Row(
        "blob-huge-repeated",
        lambda: ip.from_blob(4096, (2**61,), strides=(0,)),
        ip.ShapeError,
        "from_blob: shape is (2305843009213",
    ),
    Row("strided-huge", lambda: ip.ones(1).as_strided((2**62,), (0,)), ip.ShapeError, "as_strided: shape is"),
    Row(
        "stride-huge",
        lambda: ip.ones(1).as_strided((1,), (2**70,)),
        ip.StrideError,
        "as_strided: strides have one",
    ),
    Row(
        "randn-seed",
        lambda: ip.randn(2, seed=-1),
        ip.ParamError,
        "randn: seed is -1, needs an int of at least",
    ),
    Row(
        "numpy-rank-100-empty",
        lambda: ip.empty((0,) * 100).numpy(),
        ip.ShapeError,
        "numpy: shape has 100 dim",
    ),
    # streams, events and registries
    Row(
        "elapsed",
        lambda: ip.Event().elapsed_time(3),
        ip.OperandError,
        "Event.elapsed_time: end is 3, needs an",
    ),
    Row(
        "event-record",
        lambda: ip.Event().record("x"),
        ip.OperandError,
        "Event.record: stream is 'x', needs a Stream",
    ),
    Row(
        "wait",
        lambda: ip.Stream().wait_event(None),
        ip.OperandError,
        "Stream.wait_event: event is None, needs",
    ),
    Row("get-cache", lambda: ip.Add.cache().get_cache([1]), ip.OperandError, "device is [1] (list)"),
    Row(
        "register-none",
        lambda: ip.OpDispatcher("op").register_device(None, f4),
        ip.OperandError,
        "op: device type is None, needs a DeviceType, a name or several",
    ),
    Row(
        "pickle-dispatcher",
        lambda: pickle.dumps(ip.Add.dispatcher()),
        ip.OperandError,
        "OpDispatcher: cannot be pickled",
    ),
    Row("capacity-huge", lambda: ip.LRUCache(-(10**5000)), ip.ParamError, "capacity is an int of 16610 bits"),
    # arrays whose memory does not say everything, and types that are none
    Row(
        "masked-from_numpy",
        lambda: ip.from_numpy(np.ma.masked_array([1.0, 2.0], [0, 1])),
        ip.OperandError,
        "from_numpy: array is a MaskedArray",
    ),
    Row(
        "masked-from_dlpack",
        lambda: ip.from_dlpack(np.ma.masked_array([1.0, 2.0], [0, 1])),
        ip.OperandError,
        "from_dlpack: source is a MaskedArray, whose memory does not say everything",
    ),
    Row("dtype-None", lambda: ip.zeros(2, None), ip.DTypeError, "dtype is None; needs one of"),
    # names that are not ours to give a meaning
    Row(
        "run-self",
        lambda: ip.Add(f4(1), f4(1), f4(1)).run(self=f4(1)),
        ip.OperandError,
        "there is no operand 'self'",
    ),
    Row("name-self", lambda: ip.Graph().name(self=f4(1)), ip.GraphError, "Graph.name: the graph is new"),
    # threads
    Row(
        "threads-0",
        lambda: ip.num_threads(0).__enter__(),
        ip.ParamError,
        "num_threads: n is 0, needs at least 1",
    ),
    Row("threads-negative", lambda: ip.set_num_threads(-1), ip.ParamError, "set_num_threads: n is -1"),
    Row(
        "threads-2**31",
        lambda: ip.set_num_threads(2**31),
        ip.ParamError,
        "n is 2147483648, needs less than 2",
    ),
    Row("threads-kind", lambda: ip.set_num_threads(2.0), ip.OperandError, "set_num_threads: n is 2.0"),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_refused(row: Row) -> None:
    kept = [array.copy() for array in (X, Y, BASE)]
    with pytest.raises(row.error) as caught:
        row.call()
    assert type(caught.value) is row.error
    assert row.says in str(caught.value)
    assert caught.value.status == row.error.status or row.error is ip.DeviceError
    for array, before in zip((X, Y, BASE), kept):
        np.testing.assert_array_equal(array, before)


def misaligned(*shape: int) -> np.ndarray[Any, Any]:
    """F32 elements one byte beside where they belong."""
    return np.zeros(4 * int(np.prod(shape)) + 1, "u1")[1:].view("f4").reshape(shape)


@pytest.mark.parametrize("which", ["a", "b", "c", "out"])
@pytest.mark.parametrize("recording", [False, True], ids=["eager", "recording"])
def test_an_addend_is_not_copied_before_all_is_checked(which: str, recording: bool) -> None:
    """gemm with both c and out is two native calls, of which both or none take place."""
    operands = {name: f4(2, 2) for name in ("a", "b", "c", "out")} | {which: misaligned(2, 2)}
    a, b, c, out = operands.values()
    c[...] = 7
    before = out.copy()

    def call() -> None:
        with pytest.raises(
            ip.ParamError, match=rf"gemm: {which} with shape \(2, 2\) at 0x\w+ is not aligned"
        ):
            ip.gemm(a, b, 1.0, 1.0, c=c, out=out)

    if recording:
        with ip.Graph() as graph:
            call()
        assert len(graph) == 0
        graph.run()
    else:
        call()
    np.testing.assert_array_equal(out, before)


def test_an_addend_is_not_copied_without_a_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    def reserve(self: object, nbytes: int, op: str) -> None:
        if nbytes:
            raise ip.OutOfMemoryError("no workspace")

    monkeypatch.setattr(workspace.Workspace, "reserve", reserve)
    # many shapes, because it is the kernel's affair which products need a workspace
    sizes = [(64, 64, 64), (3, 300, 5), (200, 200, 200), (1, 512, 512)]
    refused = 0
    for m, k, n in sizes:
        out = np.zeros((m, n), "f2")
        try:
            ip.gemm(np.ones((m, k), "f2"), np.ones((k, n), "f2").T.copy().T, 1, 1, c=out + 7, out=out)
        except ip.OutOfMemoryError:
            refused += 1
            assert not out.any()
    assert refused


def test_row_names_are_unique() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize("kind", ["numpy", "tensor"])
def test_the_same_refusal_for_a_second_call(kind: str) -> None:
    """A refused layout leaves nothing in the cache that would let the next call through."""
    a, b = f4(2, 3), f4(4, 5)
    if kind == "tensor":
        a, b = ip.from_numpy(a), ip.from_numpy(b)  # type: ignore[assignment]
    for _ in range(2):
        with pytest.raises(ip.ShapeError, match="inner dimensions differ"):
            ip.gemm(a, b)


def test_a_failed_call_leaves_the_cache_and_the_next_call_alone() -> None:
    size = ip.Add.cache().cache_info().size
    with pytest.raises(ip.DTypeError):
        ip.add(np.ones(11, "?"), np.ones(11, "?"))
    assert ip.Add.cache().cache_info().size == size
    np.testing.assert_array_equal(ip.add(f4(2), f4(2)), np.full(2, 2, "f4"))
