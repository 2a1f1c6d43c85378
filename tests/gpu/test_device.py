"""The package on an NVIDIA device: results against the CPU's or float64, and what only a device has: streams
whose work is done later, memory of its own, captured graphs.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import infiniop_py as ip
from infiniop_py._native import check, lib, pointer
from infiniop_py.device import device_scope

pytestmark = pytest.mark.gpu

Array = np.ndarray[Any, Any]
DEVICE = ip.Device("nvidia")
FLOATS: list[Any] = [np.dtype("f2"), np.dtype("f4"), np.dtype("f8")]
try:
    FLOATS.insert(1, ip.DType.BF16.numpy)
except ip.DTypeError as error:
    FLOATS.insert(1, pytest.param(None, id="bfloat16", marks=pytest.mark.skip(reason=str(error))))
#: Half a unit in the last place of an element, and of what it is computed in, relative.
ROUNDING = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}


def integers(*shape: int, dtype: Any = "f4", seed: int = 0, limit: int = 3) -> Array:
    """Small integers: their sums and products are exact in every type, in any order."""
    return np.random.default_rng((seed, *shape)).integers(-limit, limit + 1, shape).astype(dtype)


def normal(*shape: int, dtype: Any = "f4", seed: int = 0) -> Array:
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(dtype)


def there(array: Array) -> ip.Tensor:
    return ip.from_numpy(array).to(DEVICE)


def back(tensor: ip.Tensor) -> Array:
    return tensor.to("cpu").numpy()


def same(got: ip.Tensor, wanted: Array) -> None:
    assert got.device is DEVICE
    np.testing.assert_array_equal(
        back(got).view(f"u{wanted.dtype.itemsize}"), wanted.view(f"u{wanted.dtype.itemsize}")
    )


#: How an operand lies in memory, as a view of a device tensor twice as large in each dimension.
VIEWS: dict[str, Callable[[Any], Any]] = {
    "compact": lambda x: x[: x.shape[0] // 2, : x.shape[1] // 2],
    "steps": lambda x: x[::2, ::2],
    "reversed": lambda x: x[: x.shape[0] // 2][::-1, : x.shape[1] // 2],
    "shifted": lambda x: x[1 : 1 + x.shape[0] // 2, 1 : 1 + x.shape[1] // 2],
    "transposed": lambda x: x[: x.shape[0] // 2, : x.shape[1] // 2].T,
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("view", VIEWS)
def test_add_mul_and_rearrange_give_the_cpu_s_bits(view: str, dtype: np.dtype[Any]) -> None:
    n = 35
    a, b = normal(2 * n, 2 * n, dtype=dtype), normal(2 * n, 2 * n, dtype=dtype, seed=1)
    x, y = VIEWS[view](there(a)), there(b)[:n, n:]
    u, v = VIEWS[view](a), b[:n, n:]
    same(ip.add(x, y), ip.add(u, v))
    same(ip.mul(y, x), ip.mul(v, u))
    same(ip.rearrange(x), ip.rearrange(u))
    same(ip.add(x, y[0]), ip.add(u, v[0]))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (1, 300, 70), (4, 40, 257), (70, 3, 130), (67, 130, 65)], ids=str
)
def test_gemm_of_integers_is_exact(shape: tuple[int, int, int], dtype: np.dtype[Any]) -> None:
    m, n, k = shape
    limit = 1 if dtype.itemsize == 2 else 3
    a, b, c = (integers(*s, dtype=dtype, limit=limit, seed=i) for i, s in enumerate([(m, k), (k, n), (m, n)]))
    wide = a.astype("f8") @ b.astype("f8")
    nans = there(np.full((m, n), np.nan, dtype))
    same(ip.gemm(there(a), there(b), c=nans), wide.astype(dtype))  # beta is 0: c is not read
    same(
        ip.gemm(there(a), there(b.T.copy()).T, 2.0, -1.0, c=there(c)),
        (2 * wide - c.astype("f8")).astype(dtype),
    )
    same(ip.gemm(there(a.T.copy()).T, there(b), 0.0, 1.0, c=there(c)), c)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("d", [1, 33, 512, 1000, 4096, 70000])
def test_add_rms_norm(d: int, dtype: np.dtype[Any]) -> None:
    a, b, weight = (
        normal(3, d, dtype=dtype),
        normal(3, d, dtype=dtype, seed=1),
        normal(d, dtype=dtype, seed=2),
    )
    y, residual = ip.add_rms_norm(there(a), there(b), there(weight), 1e-5)
    total = ip.add(a, b)
    same(residual, total)
    x = total.astype("f8")
    wanted = x / np.sqrt(np.mean(x * x, -1, keepdims=True) + float(np.float32(1e-5))) * weight.astype("f8")
    sums = ROUNDING["float64" if dtype.itemsize == 8 else "float32"]
    # a sum of d squares, a division, a sum, a root, a reciprocal and two products; the reference rounds, too
    bound = (2 * (d + 8) * sums + 2 * ROUNDING[dtype.name]) * np.abs(wanted)
    assert (np.abs(back(y).astype("f8") - wanted) <= bound).all()


def test_in_place() -> None:
    a, b = normal(40, 30), normal(40, 30, seed=1)
    x = there(a)
    ip.add_(x, x, there(b))
    ip.mul_(x, there(b), x)
    same(x, (a + b) * b)


def test_work_of_a_stream_comes_before_the_copies_that_ask_for_it() -> None:
    a = normal(300, 200)
    with ip.Stream(DEVICE):
        x = there(a)
        for _ in range(5):
            x = ip.add(x, x)
        same(x, a * 32)
    same(ip.add(x, x), a * 64)


def test_two_streams_in_order() -> None:
    a = normal(100, 100)
    first, second = ip.Stream(DEVICE), ip.Stream(DEVICE)
    with first:
        x = ip.add(there(a), there(a))
    second.wait_stream(first)
    with second:
        same(ip.mul(x, x), (a + a) * (a + a))


def test_events() -> None:
    start, end, unmarked = ip.Event(DEVICE), ip.Event(DEVICE), ip.Event(DEVICE, timing=False)
    x = there(normal(200, 200))
    start.record()
    x = ip.add(x, x)
    end.record()
    end.synchronize()
    assert end.query() and start.elapsed_time(end) >= 0
    unmarked.record()
    unmarked.synchronize()
    with pytest.raises(ip.InfiniopError):
        start.elapsed_time(unmarked)


def program(x: Any, w: Any, scale: Any) -> Any:
    """Every operator, with views and an addend."""
    y, residual = ip.add_rms_norm(x, x, scale)
    h = ip.gemm(y, w)
    h = ip.mul(h, ip.rearrange(h[::-1]))
    ip.add_(h, h, scale)
    return ip.rearrange(ip.gemm(h, w, 0.5, 2.0, c=residual).T), residual


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_graph_is_captured_and_replayed_with_other_inputs(dtype: np.dtype[Any]) -> None:
    inputs = [
        normal(8, 16, dtype=dtype),
        normal(16, 16, dtype=dtype, seed=1),
        normal(16, dtype=dtype, seed=2),
    ]
    x, w, scale = map(there, inputs)
    with ip.Graph() as graph:
        results = program(x, w, scale)
    for stream in (ip.Stream(DEVICE), ip.Stream(DEVICE)):
        for seed in range(3):
            with stream:
                x.copy_(normal(8, 16, dtype=dtype, seed=seed + 10))
                graph.run()
                for got, wanted in zip(results, program(x, w, scale), strict=True):
                    same(got, back(wanted))


def test_memory_that_is_let_go_of_while_it_is_used() -> None:
    a = normal(100, 100)
    x = there(a)
    with ip.Stream(DEVICE):
        y = ip.add(x, x)
        del x
        for _ in range(5000):  # more than is kept before it is reused
            ip.Tensor.empty(1, "U8", DEVICE)
        same(y, a + a)


def test_a_copy_on_the_device_is_there_for_every_stream() -> None:
    a = normal(50, 50)
    x, y = there(a), there(np.zeros_like(a))
    with device_scope(DEVICE):
        check(lib.infinirtMemcpy(pointer(y.data_ptr), pointer(x.data_ptr), a.nbytes, lib.INFINIRT_MEMCPY_D2D))
    with ip.Stream(DEVICE):
        same(ip.add(y, y), a + a)


def test_threads_have_streams_of_their_own() -> None:
    faults: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            a, w = integers(20, 30, seed=seed), integers(30, 10, seed=seed + 1)
            with ip.Stream(DEVICE):
                for _ in range(10):
                    same(ip.add(ip.gemm(there(a), there(w)), there(a[:, :10].copy())), a @ w + a[:, :10])
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults


def test_devices_have_caches_of_their_own() -> None:
    if ip.device_count("nvidia") < 2:
        pytest.skip("one NVIDIA device")
    a = integers(7, 9)
    for index in (0, 1, 0, 1):
        x = ip.from_numpy(a).to(f"cuda:{index}")
        y = ip.gemm(x, ip.rearrange(x.T))
        assert y.device is ip.Device("nvidia", index)
        np.testing.assert_array_equal(y.to("cpu").numpy(), a @ a.T)
    with pytest.raises(ip.DeviceError, match=r"NVIDIA:0 vs NVIDIA:1|NVIDIA:1 vs NVIDIA:0"):
        ip.add(there(a), ip.from_numpy(a).to("nvidia:1"))


def test_memory_that_cannot_be_had() -> None:
    before = back(ip.add(there(normal(5)), there(normal(5))))
    with pytest.raises(ip.OutOfMemoryError, match="NVIDIA:0"):
        ip.Tensor.empty(1 << 50, "U8", DEVICE)
    np.testing.assert_array_equal(back(ip.add(there(normal(5)), there(normal(5)))), before)


def test_a_forked_child_is_told_to_use_spawn() -> None:
    x = there(normal(4))
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            ip.add(x, x)
            text = "computed"
        except ip.InfiniopError as error:
            text = str(error)
        os.write(write, text.encode())
        os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    said = os.read(read, 10000).decode()
    os.close(read)
    assert "spawn" in said and "forked" in said
    same(ip.add(x, x), normal(4) * 2)
