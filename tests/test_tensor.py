"""Tensor: making, looking at it in other ways, copying, and trading memory with NumPy."""

from __future__ import annotations

import copy
import ctypes
import gc
import pickle
import weakref
from typing import Any

import numpy as np
import pytest

import infiniop_py as ip
from infiniop_py.dtypes import all_dtypes

NUMPY = {"BOOL": "?", "I8": "i1", "I16": "i2", "I32": "i4", "I64": "i8", "U8": "u1", "U16": "u2", "U32": "u4",
         "U64": "u8", "F16": "f2", "F32": "f4", "F64": "f8", "C64": "c8", "C128": "c16"}  # fmt: skip


def tensor(*shape: int) -> ip.Tensor:
    return ip.arange(int(np.prod(shape)), dtype="F32").reshape(shape)


def array(*shape: int) -> Any:
    return np.arange(int(np.prod(shape)), dtype="f4").reshape(shape)


def same(got: ip.Tensor, wanted: Any) -> None:
    """Equal values through the tensor's own strides, in the layout NumPy would give."""
    assert got.shape == wanted.shape
    np.testing.assert_array_equal(got.numpy(), wanted)
    assert got.tolist() == wanted.tolist()


# ---- element types ---------------------------------------------------------------------------------------


def test_dtype_table() -> None:
    sizes = {dtype.name: dtype.itemsize for dtype in all_dtypes()}
    assert list(sizes.values()) == [1, 1, 1, 2, 4, 8, 1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 8, 16, 2]
    assert [dtype.code for dtype in all_dtypes()] == list(range(1, 20))
    for name, numpy in NUMPY.items():
        dtype = getattr(ip.DType, name)
        assert dtype.numpy == np.dtype(numpy) and dtype.itemsize == dtype.numpy.itemsize
        assert ip.empty(1, numpy).dtype is dtype and ip.empty(1, name).dtype is dtype


def test_dtypes_exist_once() -> None:
    assert pickle.loads(pickle.dumps(ip.DType.BF16)) is ip.DType.BF16
    assert copy.deepcopy(ip.DType.F16) is ip.DType.F16
    assert ip.empty(1, "bfloat16").dtype is ip.DType.BF16
    assert {dtype for dtype in all_dtypes() if dtype.is_float} == {
        ip.DType.F16,
        ip.DType.BF16,
        ip.DType.F32,
        ip.DType.F64,
    }


@pytest.mark.parametrize("bad", ["f3", ">f4", "M8[s]", "O", "U3", object(), "i4,i4"])
def test_unknown_dtypes(bad: Any) -> None:
    with pytest.raises(ip.DTypeError):
        ip.empty(3, bad)


@pytest.mark.parametrize("name", ["BYTE", "F8", "C16", "C32"])
def test_types_numpy_has_not(name: str) -> None:
    t = ip.zeros((2, 3), name)
    assert name in repr(t) and t.nbytes == 6 * t.itemsize
    assert t.T.contiguous().shape == (3, 2)
    with pytest.raises(ip.DTypeError, match=f"{name} has no NumPy dtype"):
        t.numpy()


# ---- making ----------------------------------------------------------------------------------------------


def test_making() -> None:
    t = ip.Tensor.empty((2, 3), np.float64)
    assert (t.shape, t.strides, t.ndim, t.size, t.itemsize, t.nbytes) == ((2, 3), (3, 1), 2, 6, 8, 48)
    assert t.dtype is ip.DType.F64 and t.device is ip.Device("cpu") and t.writable and t.data_ptr % 64 == 0
    assert ip.zeros(3).tolist() == [0, 0, 0] and ip.ones((2, 1), "I8").tolist() == [[1], [1]]
    assert ip.ones(2, "BF16").tolist() == [1, 1]
    assert ip.arange(3).tolist() == [0, 1, 2] and ip.arange(3).dtype is ip.DType.I64
    assert ip.arange(1, 2, 0.5).tolist() == [1, 1.5] and ip.arange(1, 2, 0.5).dtype is ip.DType.F32
    assert ip.arange(5, 0, -2, dtype="I8").tolist() == [5, 3, 1]
    assert ip.randn((3, 4), "F16", seed=1).tolist() == ip.randn((3, 4), "F16", seed=1).tolist()
    assert ip.randn(4, seed=1).tolist() != ip.randn(4, seed=2).tolist()
    assert ip.empty(()).shape == () and ip.empty((0, 3)).tolist() == []


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: ip.empty((2, -1)), ip.ShapeError, "empty: shape is (2, -1), sizes must not be negative"),
        (lambda: ip.empty((2, 1.5)), ip.OperandError, "empty: shape is (2, 1.5), needs ints"),
        (lambda: ip.empty("ab"), ip.OperandError, "empty: shape is 'ab'"),
        (lambda: ip.empty((2**40, 2**40)), ip.OutOfMemoryError, "empty: cannot allocate"),
        (lambda: ip.empty(2**55), ip.OutOfMemoryError, "bytes on CPU:0"),
        (lambda: ip.arange(1, 2, 0), ip.ParamError, "arange: step is 0"),
        (lambda: ip.randn(3, "I32"), ip.DTypeError, "randn: dtype is I32"),
        (lambda: ip.from_numpy([1.0]), ip.OperandError, "from_numpy: array is a list"),
        (lambda: ip.from_numpy(np.ones(2, ">f4")), ip.DTypeError, "from_numpy: dtype of array is '>f4'"),
        (lambda: ip.from_numpy(np.zeros(9, "u1")[1:].view("f8")), ip.ParamError, "not aligned"),
        (lambda: ip.from_numpy(np.zeros(4, "u1,f4")["f1"]), ip.StrideError, "not multiples"),
        (lambda: ip.from_blob(0, (2,)), ip.NullPointerError, "pointer is 0, but shape (2,) has elements"),
        (lambda: ip.from_blob(1.5, (2,)), ip.OperandError, "pointer is 1.5"),
        (lambda: ip.from_blob(8, (2,), strides=(1, 1)), ip.StrideError, "2 strides for shape (2,)"),
        (lambda: ip.from_blob(8, (2,), "F64", strides=(-2,)), ip.ParamError, "leaves the address space"),
        (lambda: ip.Tensor(), ip.OperandError, "Tensor() makes nothing"),
    ],
)
def test_not_making(call: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error) as caught:
        call()
    assert says in str(caught.value)


# ---- NumPy -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", NUMPY.values())
def test_memory_is_shared_both_ways(dtype: str) -> None:
    x = np.zeros((3, 4), dtype)
    for view in (x, x.T, x[::2, ::-1], x[1:1], x[:, 0], x[1, 2, ...]):
        t = ip.from_numpy(view)
        back = t.numpy()
        assert back.dtype == x.dtype and back.shape == view.shape
        if view.size:
            assert t.data_ptr == view.__array_interface__["data"][0] and back.strides == view.strides
            back[...] = 1
            assert (view == 1).all()
            view[...] = 0
            assert not back.any()
    assert np.shares_memory(np.asarray(ip.from_numpy(x)), x)


def test_bfloat16_memory_is_shared() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = np.arange(4).astype(ml_dtypes.bfloat16)
    t = ip.from_numpy(x[::-1])
    assert t.dtype is ip.DType.BF16 and t.numpy().dtype == x.dtype and t.tolist() == [3, 2, 1, 0]
    assert np.shares_memory(t.numpy(), x) and ip.from_numpy(x).reshape(2, 2)[1, 0].item() == 2.0


def test_array_protocol() -> None:
    t = tensor(2, 2)
    assert np.shares_memory(np.asarray(t), t.numpy())
    assert not np.shares_memory(np.array(t), t.numpy())
    assert np.asarray(t, "f8").dtype == "f8" and np.sqrt(t).shape == (2, 2)
    with pytest.raises(ip.ParamError, match="without a copy"):
        t.__array__("f8", copy=False)


def test_read_only_stays_read_only() -> None:
    x = np.zeros(3, "f4")
    x.flags.writeable = False
    t = ip.from_numpy(x)
    assert not t.writable and not t[1:].writable and not t.numpy().flags.writeable
    with pytest.raises(ip.ParamError, match="read-only"):
        t.copy_(ip.ones(3))
    with pytest.raises(ip.ParamError, match="read-only"):
        ip.add_(t, t, t)


def test_memory_lives_as_long_as_anyone_sees_it() -> None:
    x = np.ones(1000, "f4")
    gone = weakref.ref(x)
    t = ip.from_numpy(x)[10:20]
    del x
    gc.collect()
    assert gone() is not None and t.tolist() == [1] * 10
    back = t.numpy()
    del t
    assert gone() is not None and back.sum() == 10
    del back
    gc.collect()
    assert gone() is None
    kept = ip.ones(1000).numpy()
    ip.zeros(1000)
    assert kept.sum() == 1000


def test_from_blob() -> None:
    class Owner:
        pass

    memory = (ctypes.c_float * 12)(*range(12))
    owner = Owner()
    gone = weakref.ref(owner)
    t = ip.from_blob(ctypes.addressof(memory), (3, 4), owner=owner)
    same(t, array(3, 4))
    same(ip.from_blob(ctypes.addressof(memory) + 44, (4,), strides=(-3,)), array(12)[11::-3])
    assert ip.from_blob(0, (0, 2)).shape == (0, 2)
    view = t[1]
    del owner, t
    assert gone() is not None
    del view
    assert gone() is None
    t = ip.from_blob(ctypes.addressof(memory), (3,), "F32")
    with pytest.raises(ip.StrideError, match="a storage of 12"):
        t.as_strided((4,), (1,))


# ---- views -----------------------------------------------------------------------------------------------

INDICES = [
    0, -1, -3, (-3, -3, -3), slice(None), slice(1, None), slice(None, None, -1), slice(5, 1, -2), slice(2, 2),
    ..., None, (), (1, 2),
    (0, ..., -1), (..., 1), (slice(None), 1), (None, 0, None), (slice(None, None, 2), slice(3, None, -1), 2),
    (1, slice(None), slice(0, 0)), (..., slice(1, 3), None), (0, 0, 0), (-1, -1, -1), (np.int64(1),),
    slice(-9, 9, 3),
]  # fmt: skip


@pytest.mark.parametrize("index", INDICES, ids=str)
@pytest.mark.parametrize("base", ["rows", "columns"])
def test_indexing_is_numpy_s(index: Any, base: str) -> None:
    t, x = tensor(3, 4, 5), array(3, 4, 5)
    if base == "columns":
        t, x = t.permute(2, 0, 1)[:, :, ::-1], x.transpose(2, 0, 1)[:, :, ::-1]
    got = t[index]
    same(got, x[index])
    if got.size:
        view = x[(*index, ...) if isinstance(index, tuple) and ... not in index else index]  # never a scalar
        steps = view.__array_interface__["data"][0] - x.__array_interface__["data"][0]
        assert got.data_ptr - t.data_ptr == steps


@pytest.mark.parametrize(
    ("index", "error"),
    [
        (3, IndexError), (-4, IndexError), ((0, 0, 0), IndexError), ((..., ...), IndexError),
        (True, TypeError),
        (1.0, TypeError), ([0, 1], TypeError), (np.array([0]), TypeError), ("a", TypeError),
        (slice("a"), TypeError),
        (slice(None, None, 0), TypeError),
    ],
    ids=str,
)  # fmt: skip
def test_indexing_refuses(index: Any, error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        tensor(3, 2)[index]
    assert isinstance(caught.value, ip.InfiniopError)


def test_assignment() -> None:
    t = tensor(3, 4)
    t[1:, ::2] = np.full((2, 2), -1, "f4")
    t[0] = t[2]
    t[0] += tensor(4)
    wanted = array(3, 4)
    wanted[1:, ::2] = -1
    wanted[0] = wanted[2]
    wanted[0] += array(4)
    same(t, wanted)
    with pytest.raises(ip.ShapeError, match=r"source is \(4,\), destination is \(3, 4\)"):
        t[...] = tensor(4)
    with pytest.raises(ip.DTypeError, match="source is F64"):
        t[0] = np.ones(4)
    with pytest.raises(ip.OperandError, match="source is a float"):
        t[0] = 1.0  # type: ignore[call-overload]


def test_permutations() -> None:
    t, x = tensor(2, 3, 4), array(2, 3, 4)
    same(t.permute(2, 0, 1), x.transpose(2, 0, 1))
    same(t.permute((0, -1, 1)), x.transpose(0, 2, 1))
    same(t.transpose(0, -1), x.swapaxes(0, 2))
    same(t.T, x.T)
    same(tensor(), array())
    for bad in ((0, 1), (0, 0, 1), (0, 1, 2, 2)):
        with pytest.raises(ip.ShapeError, match="permute"):
            t.permute(*bad)
    with pytest.raises(IndexError, match="transpose: dim is 3, but shape"):
        t.transpose(0, 3)


def test_squeeze_and_narrow() -> None:
    t, x = tensor(1, 3, 1, 2), array(1, 3, 1, 2)
    same(t.squeeze(), x.squeeze())
    same(t.squeeze(-2), x.squeeze(2))
    for dim in range(-5, 5):
        same(t.unsqueeze(dim), np.expand_dims(x, dim))
    same(t.narrow(1, 1, 2), x[:, 1:3])
    same(t.narrow(-1, 2, 0), x[..., 2:])
    with pytest.raises(ip.ShapeError, match="dimension 1 of shape"):
        t.squeeze(1)
    with pytest.raises(IndexError):
        t.unsqueeze(5)
    for start, length in ((2, 2), (-1, 1), (0, -1), (4, 0)):
        with pytest.raises(IndexError, match="narrow"):
            t.narrow(1, start, length)


@pytest.mark.parametrize(
    "shape", [(24,), (-1,), (6, 4), (2, 3, 4), (4, -1), (1, 24, 1), (2, 2, 2, 3), (3, 8), (12, 2)]
)
@pytest.mark.parametrize("base", ["rows", "columns", "steps", "lines"])
def test_reshape(shape: tuple[int, ...], base: str) -> None:
    """A view exactly where NumPy makes one, else a copy; view() refuses the latter."""
    t, x = {
        "rows": (tensor(2, 3, 4), array(2, 3, 4)),
        "columns": (tensor(4, 3, 2).T, array(4, 3, 2).T),
        "steps": (tensor(2, 3, 8)[..., ::2], array(2, 3, 8)[..., ::2]),
        "lines": (tensor(2, 6, 4)[:, ::2], array(2, 6, 4)[:, ::2]),
    }[base]
    wanted = x.reshape(shape)
    same(t.reshape(shape), wanted)
    same(t.reshape(*shape), wanted)
    if np.shares_memory(wanted, x):
        same(t.view(shape), wanted)
        assert t.view(shape).data_ptr == t.data_ptr == t.reshape(shape).data_ptr
    else:
        assert t.reshape(shape).data_ptr != t.data_ptr
        with pytest.raises(ip.StrideError, match="without a copy"):
            t.view(shape)


def test_reshape_of_nothing_and_of_one() -> None:
    same(ip.empty((0, 3)).reshape(3, 0, 5), np.empty((3, 0, 5)))
    same(tensor(1, 1).reshape(()), array(1, 1).reshape(()))
    same(tensor().reshape(1, 1), array().reshape(1, 1))
    for shape in ((5,), (-1, -1), (-1, 5), (-2, -3), (0, -1)):
        with pytest.raises(ip.ShapeError, match="reshape: 6 elements"):
            tensor(2, 3).reshape(shape)
    with pytest.raises(ip.OperandError, match=r"reshape: size is 2\.0"):
        tensor(2, 3).reshape(2.0, 3)


def test_as_strided_stays_inside() -> None:
    t = tensor(3, 4)
    same(t.as_strided((2, 2), (1, 4), 1), array(12)[[1, 5, 2, 6]].reshape(2, 2))
    same(t[2].as_strided((3,), (-4,), 3), array(12)[[11, 7, 3]])
    same(t.as_strided((5, 2), (0, 11)), np.tile(np.array([0, 11], "f4"), (5, 1)))
    same(t.as_strided((12,), (1,)), array(12))
    assert t.as_strided((0, 9), (99, 99), 99).shape == (0, 9)
    for shape, strides, offset in (
        ((13,), (1,), 0),
        ((12,), (1,), 1),
        ((2,), (-1,), 0),
        ((1,), (1,), -1),
        ((2, 2), (8, 4), 0),
    ):
        with pytest.raises(ip.StrideError, match="of a storage of 48"):
            t.as_strided(shape, strides, offset)
    with pytest.raises(ip.StrideError, match="1 strides for shape"):
        t.as_strided((2, 2), (1,))


def test_contiguity() -> None:
    t = tensor(2, 3)
    assert t.is_contiguous() and t.contiguous() is t
    assert not t.T.is_contiguous() and t.T.contiguous().is_contiguous()
    same(t.T.contiguous(), array(2, 3).T)
    assert t.as_strided((1, 2), (5, 1)).is_contiguous() and tensor(3, 1).T.is_contiguous()
    assert ip.empty((0, 3)).T.is_contiguous()


# ---- values ----------------------------------------------------------------------------------------------


def test_values() -> None:
    t = tensor(2, 2)
    assert (
        t[1, 1].item() == 3.0
        and float(t[1, 0]) == 2.0
        and int(t[0, 1]) == 1
        and bool(t[1, 1])
        and not bool(t[0, 0])
    )
    assert len(t) == 2 and [row.tolist() for row in t] == [[0, 1], [2, 3]]
    assert ip.arange(2, dtype="BOOL").tolist() == [False, True]
    with pytest.raises(ip.ShapeError, match="has 4 elements, needs one"):
        t.item()
    with pytest.raises(ip.ParamError, match="ambiguous"):
        bool(t)
    for call in (len, iter):
        with pytest.raises(ip.OperandError):
            call(t[0, 0])  # type: ignore[operator]


def test_repr_shows_values() -> None:
    assert repr(tensor(2, 2)) == "Tensor([[0., 1.],\n        [2., 3.]], dtype=F32, device=CPU:0)"
    assert repr(ip.ones(2, "BF16").T) == "Tensor([1., 1.], dtype=BF16, device=CPU:0)"
    assert repr(ip.empty((0, 2), "I8")) == "Tensor([], shape=(0, 2), dtype=I8, device=CPU:0)"
    assert repr(ip.arange(3)[1]) == "Tensor(1, dtype=I64, device=CPU:0)"
    assert "..." in repr(ip.zeros(5000))


def test_copy() -> None:
    t = ip.zeros((2, 3))
    assert t.copy_(tensor(3, 2).T) is t
    same(t, array(3, 2).T)
    assert t.copy_(t) is t
    with pytest.raises(ip.ParamError, match="overlap"):
        t[0, 1:].copy_(t[0, :2])
    assert t.to("cpu") is t


def test_tensors_do_not_pickle() -> None:
    for thing in (tensor(2), ip.Stream(), ip.Event(), ip.Graph(), ip.Add(tensor(2), tensor(2), tensor(2))):
        with pytest.raises(ip.OperandError, match="cannot be pickled or copied"):
            pickle.dumps(thing)
        with pytest.raises(ip.OperandError):
            copy.copy(thing)


def test_numpys_operators_with_a_tensor_are_this_librarys() -> None:
    a = alias = np.ones(3, "f4")
    t = tensor(3)
    for made in (a + t, t + a, np.add(a, t), a * t, np.multiply(t, a), np.eye(3, dtype="f4") @ t[:, None]):
        assert type(made) is ip.Tensor
    a += t
    a *= t
    assert a is alias and a.tolist() == [0, 2, 6]
    matrix = alias = np.eye(3, dtype="f4")
    matrix @= ip.ones((3, 3))
    assert matrix is alias and (matrix == 1).all()
    with pytest.raises(ip.ShapeError, match="outputs are never resized"):
        a += ip.ones((2, 3))


@pytest.mark.parametrize("scalar", [2.0, np.float32(2), np.float64(2), np.int64(2)], ids=repr)
def test_no_number_is_an_operand(scalar: Any) -> None:
    t = alias = tensor(3)
    for call in (lambda: t * scalar, lambda: scalar * t, lambda: t + scalar, lambda: scalar + t):
        with pytest.raises(TypeError):
            call()
    with pytest.raises(TypeError):
        t *= scalar
    assert t is alias and t.tolist() == [0, 1, 2]


def test_other_functions_of_numpy_read_the_values() -> None:
    t, out = tensor(3), np.zeros(3, "f4")
    assert np.sum(t) == np.add.reduce(t) == 3
    np.testing.assert_array_equal(np.exp(t), np.exp(array(3)))
    assert not np.subtract(t, array(3)).any()
    assert np.add(t, t, dtype="f8").tolist() == [0, 2, 4]
    assert np.sum(array(3), where=ip.from_numpy(np.array([True, False, True]))) == 2
    assert np.negative(t, out=out) is out and out.tolist() == [0, -1, -2]
    assert (t == array(3)).all()
    assert (array(3) == t).all()
    with pytest.raises(TypeError):
        np.negative(array(3), out=t)


def test_a_tensor_is_copied_to_itself_whatever_the_strides_of_one_row() -> None:
    t = tensor(2, 3)
    t[0:1] = t[0][None]
    assert t[0:1].copy_(t[0][None]).tolist() == [[0, 1, 2]]
    with pytest.raises(ip.ParamError, match="overlap"):
        t[0:1].copy_(t.reshape(6)[1:4][None])


@pytest.mark.parametrize("dtype", ["BYTE", "F8", "C16", "C32"])
def test_what_python_has_no_number_for_has_no_truth_value(dtype: str) -> None:
    for call in (bool, float, int):
        with pytest.raises(ip.DTypeError, match=f"{call.__name__}: the element is {dtype}"):
            call(ip.zeros(1, dtype))


@pytest.mark.parametrize(
    ("arguments", "dtype", "number"),
    [((300,), "U8", "299"), ((-3, 0), "U8", "-3"), ((70000,), "F16", "69999"), ((0, 3e19, 1e19), "I64", "2e"),
     ((-129, 0), "I8", "-129"), ((2**31, 2**31 + 1), "I32", "2147483648"), ((1e39, 2e39, 1e39), "C64", "1e"),
     ((3.5e38, 3.6e38, 1e37), "BF16", "3.5e"), ((0, -5e38, -1e38), "BF16", "-4e")],
)  # fmt: skip
def test_ranges_of_numbers_that_a_type_has_no_room_for(
    arguments: tuple[float, ...], dtype: str, number: str
) -> None:
    with pytest.raises(ip.ParamError, match=f"arange: {number}.* is too large for {dtype}"):
        ip.arange(*arguments, dtype=dtype)


def test_ranges_up_to_the_last_number_of_a_type() -> None:
    assert ip.arange(254, 256, dtype="U8").tolist() == [254, 255]
    assert ip.arange(-128, -126, dtype="I8").tolist() == [-128, -127]
    assert ip.arange(65504, 65505, dtype="F16").tolist() == [65504]
    assert ip.arange(2.0**127, 2.0**127 * 1.5, 2.0**127, dtype="BF16").tolist() == [2.0**127]
    assert ip.arange(1e300, 2e300, 1e300, dtype="C128").tolist() == [1e300]
    assert ip.arange(5, 5, dtype="U8").tolist() == []
