"""What capsules of others may say, and what is refused: read before a single element is touched."""

from __future__ import annotations

import ctypes
import gc
import weakref
from typing import Any

import numpy as np
import pytest
from _producers import CUDA, Producer, old_style

import infiniop_py as ip

Array = np.ndarray[Any, Any]


def array(*shape: int, dtype: str = "f4") -> Array:
    return np.arange(1, np.prod(shape, dtype=int) + 1).reshape(shape).astype(dtype)


@pytest.mark.parametrize("versioned", [False, True], ids=["old", "versioned"])
def test_the_same_memory(versioned: bool) -> None:
    x = array(3, 4)[::-1, ::2]
    t = ip.from_dlpack(Producer(x, versioned=versioned))
    assert (t.shape, t.strides, t.dtype, t.data_ptr) == (
        (3, 2), (-4, 2), ip.DType.F32, x.__array_interface__["data"][0],
    )  # fmt: skip
    assert t.writable and t.device is ip.Device("cpu")
    t[0] = np.zeros(2, "f4")
    assert x[0].tolist() == [0, 0]


@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (2, 0, 3), (1,) * 16], ids=str)
@pytest.mark.parametrize("versioned", [False, True], ids=["old", "versioned"])
def test_no_strides_mean_row_major(shape: tuple[int, ...], versioned: bool) -> None:
    x = array(*shape)
    t = ip.from_dlpack(Producer(x, versioned=versioned, strides=None))
    assert t.shape == shape and t.is_contiguous()
    np.testing.assert_array_equal(np.asarray(ip.rearrange(t)), x)


def test_what_others_set_in_ctypes_is_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The functions of ctypes.pythonapi are one for all modules, and so are their types."""
    array = np.arange(6.0)
    ip.from_dlpack(Producer(array))
    monkeypatch.setattr(ctypes.pythonapi.PyCapsule_GetPointer, "restype", None)
    monkeypatch.setattr(ctypes.pythonapi.PyCapsule_IsValid, "argtypes", (ctypes.c_int,))
    np.testing.assert_array_equal(ip.from_dlpack(Producer(array)).numpy(), array)


def test_byte_offset() -> None:
    x = array(6)
    t = ip.from_dlpack(Producer(x, shape=(4,), byte_offset=8))
    assert t.tolist() == [3, 4, 5, 6] and t.data_ptr == x.__array_interface__["data"][0] + 8


def test_read_only() -> None:
    x = array(3)
    source = Producer(x, read_only=True)
    t = ip.from_dlpack(source)
    assert not t.writable and not np.asarray(t).flags.writeable and not t[1:].writable
    for call in (lambda: ip.add_(source, x, x), lambda: ip.add(x, x, out=t), lambda: t.copy_(x)):
        with pytest.raises(ip.ParamError, match="is read-only"):
            call()
    with pytest.raises(ip.ParamError, match=r"^add_rms_norm: residual_out with shape \(1, 3\) is read-only"):
        ip.add_rms_norm_(x[None] + 1, Producer(x[None], read_only=True), x[None], x[None], x)
    assert x.tolist() == [1, 2, 3]
    assert ip.add(source, x).tolist() == [2, 4, 6]


@pytest.mark.parametrize("package", ["pyarrow", "tensorflow.python.framework"])
def test_arrays_that_never_change_and_do_not_say_so(package: str) -> None:
    kind = type("Immutable", (Producer,), {"__module__": package})
    x = array(3)
    source = kind(x, versioned=False)
    with pytest.raises(ip.ParamError, match="is read-only"):
        ip.add_(source, x, x)
    assert not ip.from_dlpack(source).writable
    assert ip.add(source, x, out=np.empty(3, "f4")).tolist() == [2, 4, 6]


def test_other_flags_are_none_of_ours() -> None:
    assert ip.from_dlpack(Producer(array(3), flags=2)).writable  # a copy was made


@pytest.mark.parametrize("minor", [0, 1, 3, 99])
def test_every_minor_version(minor: int) -> None:
    assert ip.from_dlpack(Producer(array(3), minor=minor)).tolist() == [1, 2, 3]


def test_memory_of_cuda_that_is_the_host_s() -> None:
    for kind in (3, 13):  # kDLCUDAHost, kDLCUDAManaged
        t = ip.from_dlpack(Producer(array(3), device_type=kind))
        assert t.device is ip.Device("cpu") and t.tolist() == [1, 2, 3]


# ---- asking ----------------------------------------------------------------------------------------------


def test_the_newest_version_is_asked_for_and_no_stream_on_the_cpu() -> None:
    source = Producer(array(3))
    ip.from_dlpack(source)
    assert source.asked == [{"max_version": (1, 3)}]


def test_a_producer_of_before_max_version() -> None:
    assert ip.from_dlpack(old_style(array(3))).tolist() == [1, 2, 3]
    assert ip.add(old_style(array(3)), array(3)).tolist() == [2, 4, 6]


def test_a_wrapper_around_one() -> None:
    inner = old_style(array(3))

    class Wrapper(Producer):
        def __dlpack__(self, **given: Any) -> Any:
            return inner.__dlpack__(**given)

    assert ip.from_dlpack(Wrapper(array(3))).tolist() == [1, 2, 3]


class Faulty(Producer):
    fault: Exception

    def __dlpack__(self, **given: Any) -> Any:
        self.asked.append(given)
        if given:
            raise self.fault
        return self.capsule()


@pytest.mark.parametrize(
    "fault",
    [TypeError("unhashable type: 'list'"), BufferError("it is busy"), ValueError("no"), KeyError("x")],
)
def test_errors_of_producers_are_told(fault: Exception) -> None:
    """Asked once: a TypeError from within is no sign of an old producer."""
    source = Faulty(array(3))
    source.fault = fault
    with pytest.raises(ip.OperandError, match=r"^add: b is a Faulty whose __dlpack__ failed: ") as caught:
        ip.add(array(3), source)
    assert str(fault) in str(caught.value) and type(fault).__name__ in str(caught.value)
    assert caught.value.__cause__ is fault and all(source.asked)
    with pytest.raises(ip.OperandError, match=r"^from_dlpack: source is a Faulty whose __dlpack__ failed"):
        ip.from_dlpack(source)


def test_errors_of_devices_are_told() -> None:
    class Lost(Producer):
        def __dlpack_device__(self) -> tuple[int, int]:
            raise AttributeError("'Lost' object has no attribute 'device'")

    with pytest.raises(ip.OperandError, match=r"^mul: a is a Lost whose __dlpack_device__ failed: Attr"):
        ip.mul(Lost(array(3)), array(3))


@pytest.mark.parametrize("device", [None, 1, (1,), (1, 0, 0), ("cpu", 0), (1.5, 0)], ids=repr)
def test_devices_that_are_none(device: Any) -> None:
    class Strange(Producer):
        def __dlpack_device__(self) -> Any:
            return device

    with pytest.raises(ip.InfiniopError, match=r"^add: a is "):
        ip.add(Strange(array(3)), array(3))


def test_half_a_protocol() -> None:
    class Device:
        def __dlpack_device__(self) -> tuple[int, int]:
            return 1, 0

    class Capsule:
        def __dlpack__(self) -> None: ...

    for source in (Device(), Capsule(), object(), None, [1.0]):
        with pytest.raises(ip.OperandError, match=r"^from_dlpack: source is a "):
            ip.from_dlpack(source)
        with pytest.raises(ip.OperandError, match=r"^add: a is a "):
            ip.add(source, array(3))


# ---- capsules that are refused ---------------------------------------------------------------------------


def test_what_is_no_capsule_or_was_used() -> None:
    class Strange(Producer):
        def __dlpack__(self, **given: Any) -> Any:
            return self.given

    source = Strange(array(3))
    used = Producer(array(3)).capsule()
    np.from_dlpack(
        type("Once", (), {"__dlpack__": lambda self, **_: used, "__dlpack_device__": lambda self: (1, 0)})()
    )
    for source.given in (None, 1, "dltensor", object(), used):  # type: ignore[attr-defined]
        with pytest.raises(ip.OperandError, match=r"^add: a gave no DLPack capsule, or one that was used"):
            ip.add(source, array(3))


HUGE = 2**63 - 1
#: what is wrong -> fields, exception, message
HOSTILE: dict[str, tuple[dict[str, Any], type[ip.InfiniopError], str]] = {
    "major version": ({"major": 2}, ip.ParamError, r"speaks DLPack 2\.0, but this library 1"),
    "no version": ({"major": 0}, ip.ParamError, r"speaks DLPack 0\.0"),
    "lanes": ({"lanes": 4}, ip.DTypeError, r"code 2, 32 bits and 4 lane"),
    "no lanes": ({"lanes": 0}, ip.DTypeError, r"0 lane"),
    "code": ({"code": 3}, ip.DTypeError, r"code 3, 32 bits"),  # kDLOpaqueHandle
    "float8": ({"code": 10, "bits": 8}, ip.DTypeError, r"code 10, 8 bits"),
    "bits": ({"bits": 24}, ip.DTypeError, r"code 2, 24 bits"),
    "device": ({"device_type": 7}, ip.DeviceError, r"device type 7 of DLPack"),  # kDLVulkan
    "no device": ({"device_type": -1}, ip.DeviceError, r"device type -1"),
    "rank": (
        {"ndim": 17, "shape": (1,) * 17, "strides": None},
        ip.ShapeError,
        "17 dimensions, needs at most 16",
    ),
    "wild rank": ({"ndim": 2**31 - 1}, ip.ShapeError, "2147483647 dimensions"),
    "negative rank": ({"ndim": -1}, ip.ShapeError, "-1 dimensions"),
    "no shape": ({"shape": None}, ip.NullPointerError, "no shape"),
    "negative size": ({"shape": (-3,), "strides": None}, ip.ShapeError, r"\(-3,\)"),
    "one negative size": ({"ndim": 2, "shape": (0, -1), "strides": None}, ip.ShapeError, r"\(0, -1\)"),
    "no memory": ({"data": None}, ip.NullPointerError, "no memory"),
    "no memory, but an offset": ({"data": None, "byte_offset": 64}, ip.NullPointerError, "no memory"),
    "past the end of addresses": ({"data": 2**64 - 8}, ip.ParamError, "address space"),
    "before the start": ({"data": 64, "strides": (-HUGE // 8,)}, ip.ParamError, "address space"),
    "offset past the end": ({"byte_offset": 2**64 - 16}, ip.ParamError, "address space"),
    "strides": ({"strides": (HUGE,)}, ip.StrideError, "stride"),
    "negative strides": ({"strides": (-HUGE - 1,)}, ip.StrideError, "stride"),
    "sizes": ({"shape": (HUGE,), "strides": None}, ip.InfiniopError, ""),
    "sizes without steps": ({"ndim": 2, "shape": (2**40, 2**40), "strides": (0, 0)}, ip.ShapeError, "shape"),
    "sizes without elements": (
        {"ndim": 3, "shape": (2**40, 2**40, 0), "strides": None},
        ip.ShapeError,
        "shape",
    ),
    "alignment": ({"byte_offset": 2, "shape": (2,)}, ip.ParamError, "not aligned to its element type F32"),
}


@pytest.mark.parametrize("versioned", [False, True], ids=["old", "versioned"])
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_capsules(name: str, versioned: bool) -> None:
    fields, error, message = HOSTILE[name]
    if "major" in fields and not versioned:
        pytest.skip("capsules of before 1.0 have no version")
    x = array(3)
    source = Producer(x, versioned=versioned, **fields)
    with pytest.raises(error, match=f"^from_dlpack: source .*{message}"):
        ip.from_dlpack(source)
    other = array(3)
    calls = [
        lambda: ip.add(other, source),
        lambda: ip.add_(source, other, other),
        lambda: ip.ones(3) + source,
    ]
    for call in calls:
        with pytest.raises(error, match=r"^add: (b|c) "):
            call()
    gc.collect()
    assert x.tolist() == [1, 2, 3]
    assert len(source.released) == source.made  # no capsule was kept


def test_legal_extremes() -> None:
    """Strides of dimensions with one element and memory of arrays with none say nothing."""
    x = array(3)
    assert ip.from_dlpack(Producer(x, shape=(1,), strides=(2**60,))).tolist() == [1]
    assert ip.from_dlpack(Producer(x, ndim=0, shape=None, strides=None)).tolist() == 1
    t = ip.from_dlpack(Producer(x, shape=(0,), data=None))
    assert t.shape == (0,) and ip.add(t, t).tolist() == []
    assert ip.from_dlpack(Producer(x, shape=(5,), strides=(0,))).tolist() == [1] * 5


# ---- lifetime --------------------------------------------------------------------------------------------


class Memory(np.ndarray):  # type: ignore[type-arg]
    """An array that can be watched."""


def test_the_tensor_keeps_the_memory_and_nothing_else_does() -> None:
    memory = array(4).view(Memory)
    alive = weakref.ref(memory)
    source = Producer(memory)
    t = ip.from_dlpack(source)
    released = source.released
    del source, memory
    gc.collect()
    part = t[1:3]
    del t
    gc.collect()
    assert alive() is not None and not released and part.tolist() == [2, 3]
    del part
    gc.collect()
    assert alive() is None and len(released) == 1


@pytest.mark.parametrize("versioned", [False, True], ids=["old", "versioned"])
def test_a_call_lets_each_capsule_go(versioned: bool) -> None:
    source = Producer(array(4), versioned=versioned)
    for _ in range(3):
        ip.add(source, source)
        ip.mul_(source, source, source)
        ip.rearrange(source)
    gc.collect()
    assert source.made == len(source.released) > 0


def test_a_graph_keeps_capsules_until_it_goes() -> None:
    source, x = Producer(array(4)), array(4)
    out = np.zeros(4, np.float32)
    with ip.Graph() as graph:
        ip.add(source, Producer(x.copy()), out=out)
    released = source.released
    values = source._array
    del source
    gc.collect()
    assert not released
    for first in (1.0, 5.0):
        values[0] = first
        graph.run()
        assert out.tolist() == [first + 1, 4, 6, 8]
    del graph
    gc.collect()
    assert released


def test_device_memory_needs_a_backend() -> None:
    source = Producer(array(3), device_type=CUDA)
    if ip.device_count("nvidia"):
        pytest.skip("this machine has such a device, and the address is not its")
    with pytest.raises(ip.DeviceError, match=r"nvidia|NVIDIA"):
        ip.add(source, source)
    with pytest.raises(ip.DeviceError, match="CPU:0 vs NVIDIA:0 in add: a on CPU:0, b on NVIDIA:0"):
        ip.add(array(3), source)
