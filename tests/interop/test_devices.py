"""Arrays on CUDA devices, by fakes: without a backend a refusal that says so; with the test backend in the
NVIDIA slot the operators run on their "device" addresses, which the host cannot touch.
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import children
import numpy as np
import pytest
from _producers import CUDA, CudaInterface, Producer

import infiniop_py as ip

HERE = Path(__file__).parent
no_device = pytest.mark.skipif(
    ip.device_count("nvidia") > 0, reason="a device is there; what is tested is how its absence is told"
)


@no_device
@pytest.mark.parametrize("stream", [None, 1, 2, 77])
def test_without_a_backend(stream: int | None) -> None:
    interface = CudaInterface(ip.ones(3), stream=stream)
    capsule = Producer(np.ones(3, np.float32), device_type=CUDA)
    x = np.ones(3, np.float32)
    for source in (interface, capsule):
        for call, times in ((ip.add, 2), (ip.mul_, 3), (ip.rearrange, 1)):
            with pytest.raises(ip.DeviceError, match=r"libinfini_(cuda|nvidia)|NVIDIA"):
                call(*[source] * times)
    with pytest.raises(ip.DeviceError, match="CPU:0 vs NVIDIA:0 in add: a on CPU:0, b on NVIDIA:0"):
        ip.add(x, capsule)
    assert x.tolist() == [1, 1, 1]


BROKEN: dict[str, tuple[dict[str, Any], type[ip.InfiniopError], str]] = {
    "stream 0": (
        {"stream": 0},
        ip.ParamError,
        "names stream 0, which the CUDA array interface does not allow",
    ),
    "mask": ({"mask": object()}, ip.OperandError, "has a mask, which no operator here knows"),
    "byte order": ({"typestr": ">f4"}, ip.DTypeError, "has elements whose dtype is '>f4'"),
    "no dtype": ({"typestr": "what"}, ip.OperandError, "whose __cuda_array_interface__ failed: TypeError"),
    "object": ({"typestr": "|O"}, ip.DTypeError, "has elements whose dtype is object"),
    "data": ({"data": None}, ip.OperandError, "whose __cuda_array_interface__ failed"),
    "shape": ({"shape": ("3",)}, ip.OperandError, "whose __cuda_array_interface__ failed"),
    "strides": ({"strides": (4, 4)}, ip.StrideError, r"has 2 strides for shape \(3,\)"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_interfaces(name: str) -> None:
    fields, error, message = BROKEN[name]
    source = CudaInterface(ip.ones(3), **fields)
    for call, operand in ((ip.add, "a"), (ip.mul, "a"), (ip.rearrange, "x")):
        with pytest.raises(error, match=f"^{call.__name__}: {operand} .*{message}"):
            call(*[source] * (1 if call is ip.rearrange else 2))
    with pytest.raises(error, match=f"^add: c .*{message}"):
        ip.add_(source, np.ones(3, "f4"), np.ones(3, "f4"))


def test_an_interface_that_misses_a_part() -> None:
    source = CudaInterface(ip.ones(3))
    del source.__cuda_array_interface__["typestr"]
    with pytest.raises(
        ip.OperandError, match=r"^add: a is a CudaInterface whose __cuda_array_interface__ failed: Key"
    ):
        ip.add(source, source)


# ---- with a device ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return children.build_fake_backend(tmp_path_factory.mktemp("backend"), "-DFAKE_SLOT=INFINI_DEVICE_NVIDIA")


PROLOGUE = f"""
import gc, sys, weakref
sys.path.insert(0, {str(HERE)!r})
import numpy as np, infiniop_py as ip
from _producers import CUDA, CudaInterface, Producer
gpu, one = ip.Device("cuda"), ip.Device("cuda:1")
assert ip.device_count("nvidia") == 2
def on(x, device=gpu): return ip.from_numpy(np.ascontiguousarray(x)).to(device)
def back(t): assert type(t) is ip.Tensor and t.device.type is ip.DeviceType.NVIDIA; return t.to("cpu").numpy()
class OnDevice(Producer):
    "A capsule on the memory of a Tensor of a device."
    def __init__(self, tensor, **fields):
        self.tensor = tensor
        like = np.empty(tensor.shape, tensor.dtype.numpy)
        super().__init__(like, data=tensor.data_ptr, strides=tensor.strides, device_type=CUDA,
                         device_id=tensor.device.index, **fields)
    def named(self, index): self._fields["device_id"] = index; return self
class Interfaced(CudaInterface):
    def __init__(self, tensor, **fields):
        super().__init__(tensor, **fields)
        self.device = type("D", (), dict(id=tensor.device.index))
def refused(call, error):
    try: call()
    except error as e: return str(e)
    raise AssertionError("not refused")
x, w = np.arange(12, dtype="f4").reshape(3, 4), np.arange(4, dtype="f4")
"""

PROGRAMS = {
    "operators": """
        for device in (gpu, one):
            for wrap in (OnDevice, Interfaced):
                a, b, v = (wrap(on(value, device)) for value in (x, x + 1, w))
                np.testing.assert_array_equal(back(ip.add(a, b)), x + x + 1)
                np.testing.assert_array_equal(back(ip.mul(a, v)), x * w)
                np.testing.assert_array_equal(back(ip.gemm(a, wrap(on(x, device).T))), x @ x.T)
                part = wrap(on(x, device)[::-1, ::2])
                np.testing.assert_array_equal(back(ip.rearrange(part)), x[::-1, ::2])
                y, r = ip.add_rms_norm(a, b, v)
                np.testing.assert_array_equal(back(r), x + x + 1)
                np.testing.assert_array_equal(back(y), ip.add_rms_norm(x, x + 1, w)[0])
                out = on(np.zeros((3, 4), "f4"), device); given = wrap(out)
                assert ip.add_(given, a, b) is given and ip.get_device() is ip.Device("cpu")
                np.testing.assert_array_equal(back(out), x + x + 1)
                t = on(x, device)
                np.testing.assert_array_equal(back(t + b), x + x + 1)
                np.testing.assert_array_equal(back(t.copy_(b)), x + 1)
    """,
    "devices": """
        a, b = OnDevice(on(x)), Interfaced(on(x, one))
        said = refused(lambda: ip.add(a, b), ip.DeviceError)
        assert "NVIDIA:0 vs NVIDIA:1 in add: a on NVIDIA:0, b on NVIDIA:1" in said
        assert "NVIDIA:1 vs CPU:0 in mul" in refused(lambda: ip.mul(b, x), ip.DeviceError)
        assert "a device index is -1" in refused(lambda: ip.add(OnDevice(on(x)).named(-1), a), ip.DeviceError)
        t = on(x)
        for out in (Interfaced(t, data=(t.data_ptr, True)), OnDevice(t, read_only=True)):
            assert "c with shape (3, 4) is read-only" in refused(lambda: ip.add_(out, a, a), ip.ParamError)
        memory = on(np.arange(8, dtype="f4"))
        assert "overlaps a" in refused(
            lambda: ip.add_(OnDevice(memory[:4]), Interfaced(memory[1:5]), on(w)), ip.ParamError)
        ip.add_(OnDevice(memory[::2]), Interfaced(memory[1::2]), on(w))
        np.testing.assert_array_equal(back(memory)[::2], np.arange(1, 8, 2) + w)
    """,
    "streams": """
        a = OnDevice(on(x))
        ip.add(a, a)
        assert [given["stream"] for given in a.asked] == [1, 1], a.asked  # the legacy default one
        with ip.Stream(gpu) as stream:
            ip.rearrange(a)
        assert a.asked[-1]["stream"] not in (None, 0, 1) and a.asked[-1]["max_version"] == (1, 3)
        for stream in (None, 1, 2):
            np.testing.assert_array_equal(back(ip.add(*[Interfaced(on(x), stream=stream)] * 2)), x + x)
        assert "stream 0" in refused(lambda: ip.add(a, Interfaced(on(x), stream=0)), ip.ParamError)
    """,
    "export": """
        t = on(x, one)
        assert t.__dlpack_device__() == (2, 1)
        for stream in (None, 1, 2, -1):
            for max_version in (None, (1, 0)):
                class Once:
                    def __dlpack__(self, **_): return t.T.__dlpack__(stream=stream, max_version=max_version)
                    def __dlpack_device__(self): return t.__dlpack_device__()
                s = ip.from_dlpack(Once())
                assert s.device is one and s.data_ptr == t.data_ptr and s.strides == (1, 4)
                np.testing.assert_array_equal(back(s), x.T)
        assert "dl_device is (1, 0)" in refused(lambda: t.__dlpack__(dl_device=(1, 0)), ip.DeviceError)
        class Copied(Once):
            def __dlpack__(self, **_): return t.T.__dlpack__(copy=True)
        c = ip.from_dlpack(Copied())
        assert c.data_ptr != t.data_ptr and c.is_contiguous() and c.device is one
        np.testing.assert_array_equal(back(c), x.T)
        del t
        np.testing.assert_array_equal(back(s), x.T)
        assert "use .to('cpu') first" in refused(lambda: np.asarray(s), ip.DeviceError)
        refused(lambda: np.from_dlpack(s), (RuntimeError, ValueError, BufferError))
    """,
    "lifetime": """
        t = on(x); source = OnDevice(t); out = on(np.zeros((3, 4), "f4"))
        other = Interfaced(on(x))
        with ip.Graph() as graph:
            ip.add(source, other, out=out)
        released = source.released
        del source, t, other
        gc.collect()
        kept = [on(np.full((3, 4), 9e9, "f4")) for _ in range(8)]
        graph.run(); np.testing.assert_array_equal(back(out), x + x)
        del graph; gc.collect()
        assert released
    """,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_with_devices(backend: Path, name: str) -> None:
    children.run(PROLOGUE + textwrap.dedent(PROGRAMS[name]), INFINIOP_BACKEND_PATH=str(backend))
