"""Tensors for other libraries: the same memory, alive as long as anybody has it, given back once."""

from __future__ import annotations

import ctypes
import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from _kinds import import_jax

import infiniop_py as ip
from infiniop_py import _dlpack
from infiniop_py._conformance.cases import DTYPES
from infiniop_py._conformance.layouts import bits

torch = pytest.importorskip("torch")

Array = np.ndarray[Any, Any]
NEW, OLD = b"dltensor_versioned", b"dltensor"


def name_of(capsule: Any) -> bytes:
    get = ctypes.pythonapi.PyCapsule_GetName
    get.argtypes, get.restype = (ctypes.py_object,), ctypes.c_char_p
    return get(capsule)  # type: ignore[no-any-return]


def to_jax(tensor: Any) -> Any:
    return import_jax().numpy.from_dlpack(tensor)


CONSUMERS: dict[str, Callable[[Any], Any]] = {
    "numpy": np.from_dlpack,
    "torch": torch.from_dlpack,
    "jax": to_jax,
    "ours": ip.from_dlpack,
}


def values(array: Any) -> Array:
    if isinstance(array, torch.Tensor) and array.dtype is torch.bfloat16:
        array = array.view(torch.int16)
    return np.asarray(array)


@pytest.mark.parametrize("consumer", CONSUMERS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (5,), (3, 4), (0, 3), (2, 1, 3)], ids=str)
def test_round_trip(consumer: str, dtype: str, shape: tuple[int, ...]) -> None:
    if consumer == "numpy" and dtype == "bf16":
        pytest.skip("NumPy's from_dlpack has no BF16")
    rng = np.random.default_rng(0)
    x = rng.integers(0, 2 if dtype == "bool" else 100, shape).astype(DTYPES[dtype])
    got = CONSUMERS[consumer](ip.from_numpy(x))
    assert tuple(got.shape) == shape
    if consumer != "torch" or dtype != "bf16":
        assert str(got.dtype).removeprefix("torch.") in (x.dtype.name, dtype.upper())
    np.testing.assert_array_equal(bits(values(got)), bits(x))
    back = ip.from_dlpack(got)
    assert back.dtype is ip.from_numpy(x).dtype and back.shape == shape
    np.testing.assert_array_equal(bits(np.asarray(back)), bits(x))


@pytest.mark.parametrize("consumer", ["numpy", "torch", "ours"])
def test_strides_and_memory_are_the_same(consumer: str) -> None:
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    for view in (x.T, x[::2, 1::2], x[1], np.broadcast_to(x[0], (3, 6)), x[:1, :1], x[:, :1]):
        t = ip.from_numpy(view)
        got = CONSUMERS[consumer](t)
        np.testing.assert_array_equal(values(got), view)
        assert ip.from_dlpack(got).data_ptr == t.data_ptr
    shared = CONSUMERS[consumer](ip.from_numpy(x))
    shared[0, 0] = np.array(-7, np.float32) if consumer == "ours" else -7
    assert x[0, 0] == -7


def test_rank_16() -> None:
    shape = (1, 2) + (1,) * 13 + (3,)
    t = ip.arange(6, dtype="F32").reshape(shape)
    for consumer in (np.from_dlpack, torch.from_dlpack, ip.from_dlpack):
        got = consumer(t)
        assert tuple(got.shape) == shape and values(got).ravel().tolist() == [0, 1, 2, 3, 4, 5]


def test_negative_strides_are_refused() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    for view in (x[::-1], x[:, ::-1], x[::-1, ::-2]):
        for consumer in (np.from_dlpack, ip.from_dlpack, lambda t: t.__dlpack__()):
            with pytest.raises(ip.StrideError, match=r"__dlpack__: shape \(2, \d\) has negative strides"):
                consumer(ip.from_numpy(view))
        np.testing.assert_array_equal(np.from_dlpack(ip.from_numpy(view).contiguous()), view)
        copied = ip.from_numpy(view).__dlpack__(copy=True)
        assert _dlpack.read(copied).strides == (view.shape[1] * 4, 4)


@pytest.mark.parametrize("shape", [(1, 3), (0, 3), (3, 0), (1, 1)], ids=str)
def test_strides_that_lead_nowhere(shape: tuple[int, ...]) -> None:
    """Where no element follows, a stride may be anything; consumers get one that none of them minds."""
    memory = np.arange(3, dtype=np.float32)
    strides = tuple(-5 if size <= 1 else 1 for size in shape)
    t = ip.from_blob(memory.__array_interface__["data"][0], shape, strides=strides, owner=memory)
    for consumer in CONSUMERS.values():
        got = consumer(t)
        assert tuple(got.shape) == shape
        np.testing.assert_array_equal(values(got), memory[: t.size].reshape(shape))
    assert min(_dlpack.read(t.__dlpack__()).strides) >= 0


def test_versions_of_the_capsule() -> None:
    t = ip.ones(3)
    for max_version, name in (
        (None, OLD),
        ((0, 8), OLD),
        ((1, 0), NEW),
        ((1, 3), NEW),
        ((2, 0), NEW),
        ([1, 1], NEW),
    ):
        capsule = t.__dlpack__(max_version=max_version)  # type: ignore[arg-type]
        assert name_of(capsule) == name
        assert _dlpack.read(capsule)[2:] == ((3,), (4,), t.data_ptr, True)
    for wrong in (1, "1.0", (1,), ("1", "0"), (1, 0, 0), (1.5, 0)):
        with pytest.raises(ip.OperandError, match=r"^__dlpack__: max_version is "):
            t.__dlpack__(max_version=wrong)  # type: ignore[arg-type]


def test_read_only() -> None:
    x = np.ones(3, np.float32)
    x.flags.writeable = False
    t = ip.from_numpy(x)
    assert not _dlpack.read(t.__dlpack__(max_version=(1, 0))).writable
    assert not np.from_dlpack(t).flags.writeable and not ip.from_dlpack(t).writable
    for max_version in (None, (0, 5)):
        with pytest.raises(ip.ParamError, match=r"^__dlpack__: .*read-?only"):
            t.__dlpack__(max_version=max_version)
        assert _dlpack.read(t.__dlpack__(max_version=max_version, copy=True)).writable
    assert _dlpack.read(t.__dlpack__(max_version=(1, 0), copy=True)).writable


def test_copies() -> None:
    t = ip.arange(6, dtype="F32").reshape(2, 3)
    assert _dlpack.read(t.T.__dlpack__(copy=False)).address == t.data_ptr
    assert _dlpack.read(t.T.__dlpack__(copy=None)).strides == (4, 12)
    copied = np.from_dlpack(t.T, copy=True)
    assert copied.strides == (8, 4) and not np.shares_memory(copied, t.numpy())
    np.testing.assert_array_equal(copied, t.T.numpy())


def test_devices_and_streams() -> None:
    t = ip.ones(3)
    assert t.__dlpack_device__() == (1, 0)
    assert np.from_dlpack(t, device="cpu").tolist() == [1, 1, 1]
    assert _dlpack.read(t.__dlpack__(dl_device=(1, 0))).address == t.data_ptr
    with pytest.raises(
        ip.DeviceError, match=r"^__dlpack__: dl_device is \(2, 0\), but the tensor is on CPU:0"
    ):
        t.__dlpack__(dl_device=(2, 0))
    for wrong in (1, "cpu", (1,), (None, 0)):
        with pytest.raises(ip.InfiniopError, match=r"^__dlpack__: dl_device is "):
            t.__dlpack__(dl_device=wrong)  # type: ignore[arg-type]
    for stream in (-1, 0, 1, 2):
        with pytest.raises(ip.ParamError, match=rf"^__dlpack__: stream is {stream}, but the CPU has none"):
            t.__dlpack__(stream=stream)


def test_types_without_a_number() -> None:
    for dtype in ("BYTE", "F8", "C16"):
        with pytest.raises(ip.DTypeError, match=rf"^__dlpack__: DLPack has no element type for {dtype}"):
            ip.empty(3, dtype).__dlpack__()
    capsule = _dlpack.read(ip.empty(3, "C32").__dlpack__())
    assert capsule.dtype is ip.DType.C32 and torch.from_dlpack(ip.zeros(3, "C32")).dtype is torch.complex32


def test_not_while_recording() -> None:
    t = ip.ones(3)
    with ip.Graph(), pytest.raises(ip.GraphError, match=r"^__dlpack__: not while a graph is being recorded"):
        torch.from_dlpack(t)


# ---- lifetime --------------------------------------------------------------------------------------------


class Memory(np.ndarray):  # type: ignore[type-arg]
    """An array that can be watched."""


def watched() -> tuple[ip.Tensor, weakref.ref[Any]]:
    memory = np.arange(1000, dtype=np.float32).view(Memory)
    return ip.from_numpy(memory)[1:], weakref.ref(memory)


@pytest.mark.parametrize("max_version", [None, (1, 0)], ids=["old", "versioned"])
def test_a_capsule_that_nobody_takes_keeps_and_releases_the_memory(max_version: Any) -> None:
    t, alive = watched()
    capsule = t.__dlpack__(max_version=max_version)
    del t
    gc.collect()
    assert alive() is not None
    del capsule
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("consumer", CONSUMERS)
def test_a_consumer_keeps_and_releases_the_memory(consumer: str) -> None:
    t, alive = watched()
    got = CONSUMERS[consumer](t)
    del t
    gc.collect()
    if consumer != "jax":  # copies what lies at an address it does not like
        assert alive() is not None
    np.testing.assert_array_equal(values(got), np.arange(1, 1000))
    part = got[5:7]
    del got
    gc.collect()
    assert values(part).tolist() == [6, 7]
    del part
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("consumer", CONSUMERS)
def test_results_outlive_their_tensors(consumer: str) -> None:
    """Memory that this library allocated, seen by nobody but the consumer."""
    made = [CONSUMERS[consumer](ip.add(np.full(1 << 12, i, "f4"), np.ones(1 << 12, "f4"))) for i in range(9)]
    made = [CONSUMERS[consumer](ip.from_numpy(values(one).copy()) + ip.zeros(1 << 12)) for one in made]
    gc.collect()
    for i, one in enumerate(made):
        np.testing.assert_array_equal(values(one), np.full(1 << 12, i + 1, np.float32))


def test_storage_goes_with_the_last_of_all() -> None:
    t = ip.ones(10)
    storage = weakref.finalize(t, lambda: None)
    capsules = [t.__dlpack__(), t.__dlpack__(max_version=(1, 0))]
    taken = [consumer(t) for consumer in CONSUMERS.values()]
    del t
    gc.collect()
    assert not storage.alive  # the Tensor itself is gone, its storage is not
    del capsules
    for one in taken:
        assert values(one).tolist() == [1] * 10
