"""The operators on CuPy's arrays: against float64, on CuPy's streams, in graphs, beside torch's tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import infiniop_py as ip

cupy = pytest.importorskip("cupy", reason="needs CuPy")

pytestmark = pytest.mark.gpu

FLOATS = ("float16", "float32", "float64")
#: Half a unit in the last place of an element, relative.
ROUNDING = {"float16": 2.0**-11, "float32": 2.0**-24, "float64": 2.0**-53}
BUSY_BYTES = 1 << 28


def values(*shape: int, dtype: str = "float32", seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def need_close(got: Any, exact: np.ndarray[Any, Any], error: float, dtype: str) -> None:
    """`got` is an array of CuPy's that holds `exact`, up to an error relative to the largest element and one
    rounding."""
    assert isinstance(got, cupy.ndarray) and got.dtype == dtype and got.shape == exact.shape
    bound = error * np.abs(exact).max() + ROUNDING[dtype] * np.abs(exact)
    assert np.all(np.abs(got.get().astype("float64") - exact) <= bound)


class Busy:
    """Keeps a stream of CuPy's at work for some milliseconds."""

    def __init__(self) -> None:
        self._from = cupy.zeros(BUSY_BYTES, dtype="uint8")
        self._to = cupy.empty_like(self._from)
        cupy.cuda.Device().synchronize()

    def __call__(self, stream: Any) -> None:
        for _ in range(20):
            self._to.data.copy_from_device_async(self._from.data, BUSY_BYTES, stream)


@pytest.fixture(scope="module")
def busy() -> Busy:
    return Busy()


@pytest.mark.parametrize("dtype", FLOATS)
def test_operators(dtype: str) -> None:
    a, b, w = (
        values(33, 40, dtype=dtype),
        values(33, 40, dtype=dtype, seed=1),
        values(40, dtype=dtype, seed=2),
    )
    x, y, wide_a, wide_b = *map(cupy.asarray, (a, b)), a.astype("float64"), b.astype("float64")
    need_close(ip.add(x, y), wide_a + wide_b, 0, dtype)
    need_close(ip.mul(x, y), wide_a * wide_b, 0, dtype)
    need_close(ip.rearrange(x.T), wide_a.T, 0, dtype)
    # The error bound of a sum of n products; F16 is summed in F32.
    summed = 40 * 2 * ROUNDING["float64" if dtype == "float64" else "float32"] * 40
    need_close(ip.gemm(x, y.T), wide_a @ wide_b.T, summed, dtype)
    z, residual = ip.add_rms_norm(x, y, cupy.asarray(w), epsilon=2.0**-17)
    sums = wide_a + wide_b
    need_close(residual, sums, 0, dtype)
    exact = sums / np.sqrt((sums**2).mean(axis=1, keepdims=True) + 2.0**-17) * w.astype("float64")
    need_close(z, exact, summed + 2 * ROUNDING[dtype], dtype)


def test_views_and_outputs() -> None:
    """Strided views, and outputs in place; what lies between the elements of a view stays."""
    a, b = values(20, 31), values(20, 31, seed=1)
    x, y, out = cupy.asarray(a), cupy.asarray(b), cupy.asarray(np.full((20, 62), -7, "float32"))
    assert ip.add(x, y, out=out[:, ::2]).data.ptr == out.data.ptr
    got = out.get()
    assert np.array_equal(got[:, ::2], a + b) and np.all(got[:, 1::2] == -7)
    ip.mul_(x, x, y)
    assert np.array_equal(x.get(), a * b)
    ip.rearrange_(out[:, 1::2], y)
    assert np.array_equal(out.get()[:, 1::2], b)


def test_current_stream(busy: Busy) -> None:
    """Operators are queued on CuPy's current stream: behind what fills their inputs there, before what reads
    their results."""
    old, new = np.zeros((257, 129), "float32"), values(257, 129)
    a, y, source = cupy.asarray(old), cupy.asarray(old), cupy.asarray(new)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        busy(stream)
        a.data.copy_from_device_async(source.data, a.nbytes, stream)
        ip.add_(y, a, a)
        z = ip.mul(a, a)
        assert not stream.done, "the operators waited for the stream"
        a.data.memset_async(0, a.nbytes, stream)
        got = y.get(stream=stream), z.get(stream=stream)
    assert np.array_equal(got[0], new + new) and np.array_equal(got[1], new * new)


def test_graph(busy: Busy) -> None:
    """A graph runs on CuPy's current stream, and reads what its arrays hold then."""
    first, second = values(64, 64), values(64, 64, seed=1)
    a, y = cupy.asarray(first), cupy.empty((64, 64), "float32")
    source = cupy.asarray(second)
    with ip.Graph() as graph:
        ip.add(a, a, out=y)
        ip.mul(y, a, out=y)
    stream = cupy.cuda.Stream(non_blocking=True)
    graph.run()
    assert np.array_equal(y.get(), 2 * first * first)
    with stream:
        busy(stream)
        a.data.copy_from_device_async(source.data, a.nbytes, stream)
        graph.run()
        got = y.get(stream=stream)
    assert np.array_equal(got, 2 * second * second)


def test_exchange() -> None:
    """Tensors and CuPy's arrays share memory both ways."""
    a = values(5, 7)
    tensor = ip.Tensor.from_numpy(a).to("nvidia:0")
    for shared in (cupy.from_dlpack(tensor), cupy.asarray(tensor)):
        assert shared.data.ptr == tensor.data_ptr and np.array_equal(shared.get(), a)
    x = cupy.asarray(a)
    back = ip.Tensor.from_dlpack(x)
    assert back.data_ptr == x.data.ptr and back.device == ip.Device("nvidia:0")
    assert np.array_equal(back.to("cpu").numpy(), a)


def test_beside_torch(busy: Busy) -> None:
    """An operand of CuPy's and one of torch's, each filled on a stream of its own library's."""
    torch = pytest.importorskip("torch", reason="needs torch")
    a, b = values(300, 70), values(300, 70, seed=1)
    x, source, y = cupy.zeros((300, 70), "float32"), cupy.asarray(a), torch.zeros(300, 70, device="cuda")
    filling = torch.asarray(b, device="cuda")
    torch.cuda.synchronize()
    c, t = cupy.cuda.Stream(non_blocking=True), torch.cuda.Stream()
    with c, torch.cuda.stream(t):
        busy(c)
        x.data.copy_from_device_async(source.data, x.nbytes, c)
        y.copy_(filling)
        ip.add_(y, y, x)
        got = y.cpu().numpy()
    assert np.array_equal(got, a + b)
