"""Devices, streams, events; and what happens with a second device, in processes that load the test
backend."""

from __future__ import annotations

import pickle
import textwrap
import threading
from pathlib import Path

import children
import pytest

import infiniop_py as ip


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        (("cpu",), "CPU:0"), (("CPU:0",), "CPU:0"), (("cuda:1",), "NVIDIA:1"), (("nvidia", 3), "NVIDIA:3"),
        ((ip.DeviceType.QY,), "QY:0"), ((9, 1), "QY:1"), ((("qy", 1),), "QY:1"), (("npu:2",), "ASCEND:2"),
    ],
    ids=str,
)  # fmt: skip
def test_device_names(spec: tuple[object, ...], name: str) -> None:
    device = ip.Device(*spec)  # type: ignore[arg-type]
    assert str(device) == name and repr(device) == f"Device('{name}')" and ip.Device(name) is device
    assert pickle.loads(pickle.dumps(device)) is device
    assert ip.Device(device) is device and device.type.name == name.split(":")[0]


@pytest.mark.parametrize("spec", ["", "cpu:", "cpu:-1", "cpu:1:2", "cpu 0"])
def test_names_that_are_none(spec: str) -> None:
    with pytest.raises(ip.InfiniopError, match="device"):
        ip.Device(spec)


def test_cpu_is_there_and_current() -> None:
    assert ip.device_count() == ip.device_count("cpu") == ip.device_count(ip.DeviceType.CPU) == 1
    assert ip.get_device() is ip.Device("cpu")
    ip.set_device("cpu", 0)
    ip.synchronize()


def test_a_failed_set_device_changes_nothing() -> None:
    for bad, status in (
        ("cpu:1", ip.Status.DEVICE_NOT_FOUND),
        ("kunlun", ip.Status.DEVICE_TYPE_NOT_SUPPORTED),
    ):
        with pytest.raises(ip.DeviceError) as caught:
            ip.set_device(bad)
        assert caught.value.status == status
        assert ip.get_device() is ip.Device("cpu")


def test_an_empty_slot_has_no_devices_and_says_why() -> None:
    assert ip.device_count("kunlun") == 0
    with pytest.raises(ip.DeviceError, match="libinfini_kunlun"):
        ip.empty(3, device="kunlun")


def test_streams() -> None:
    default = ip.get_stream()
    assert (
        default is ip.get_stream("cpu") and default.device is ip.Device("cpu") and "default" in repr(default)
    )
    one, two = ip.Stream(), ip.Stream("cpu")
    with one:
        assert ip.get_stream() is one
        with two, one:
            assert ip.get_stream() is one
        assert ip.get_stream() is one
        seen: list[bool] = []
        thread = threading.Thread(target=lambda: seen.append(ip.get_stream() is one))
        thread.start()
        thread.join()
        assert seen == [False]
    assert ip.get_stream() is default
    one.synchronize()
    default.synchronize()


def test_events() -> None:
    start, end = ip.Event(), ip.Event(blocking=True)
    assert start.query()
    with pytest.raises(ip.ParamError):
        start.elapsed_time(end)
    start.record()
    ip.gemm(ip.ones((200, 200)), ip.ones((200, 200)))
    end.record(ip.Stream())
    ip.get_stream().wait_event(end)
    end.synchronize()
    assert end.query() and 0 < start.elapsed_time(end) < 60_000
    quick = ip.Event(timing=False)
    quick.record()
    with pytest.raises(ip.ParamError):
        start.elapsed_time(quick)


# ---- two devices -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return children.build_fake_backend(tmp_path_factory.mktemp("backend"))


PROLOGUE = """
import ctypes, gc, threading
import numpy as np
import infiniop_py as ip
cpu, q0, q1 = ip.Device("cpu"), ip.Device("qy:0"), ip.Device("qy:1")
rng = np.random.default_rng(0)
def ints(*shape): return rng.integers(-4, 5, shape).astype("f4")
def on(device, array): return ip.from_numpy(array).to(device)
def same(tensor, array): np.testing.assert_array_equal(tensor.to("cpu").numpy(), array)
def refused(call, error=ip.DeviceError):
    try: call()
    except error as e: return str(e)
    raise AssertionError("not refused")
"""

PROGRAMS = {
    "count": """
        assert ip.device_count("qy") == 2 and ip.get_device() is cpu
        ip.set_device("qy", 1)
        assert ip.get_device() is q1 and ip.empty(3).device is q1 and ip.get_stream().device is q1
        assert "2" in refused(lambda: ip.set_device("qy:2")) and ip.get_device() is q1
        seen = []
        t = threading.Thread(target=lambda: seen.append(ip.get_device())); t.start(); t.join()
        assert seen == [cpu]
    """,
    "released while another device is current": """
        from infiniop_py import _native
        for here in (cpu, q0, q1):
            for device in (cpu, q0, q1):
                mine = [ip.empty(3, device=device), ip.Stream(device), ip.Event(device)]
                ip.set_device(here)
                _native.lib.infinirtSetLastError(0, b"")
                while mine:
                    mine.pop()
                    assert _native.last_message() == "" and ip.get_device() is here
    """,
    "copies": """
        x = ints(4, 6)
        for chain in ((q0,), (q1,), (q0, q1), (q1, q0), (q0, cpu, q1)):
            t = ip.from_numpy(x)
            for device in chain:
                t = t.to(device)
                assert t.device is device and ip.get_device() is cpu
            same(t, x)
        t = on(q0, x)
        same(t.T[::-1, ::2], x.T[::-1, ::2])
        same(t.T.contiguous(), x.T)
        same(t.reshape(3, 8), x.reshape(3, 8))
        assert t[2].tolist() == x[2].tolist() and t[1, 1].item() == x[1, 1] and "QY:0" in repr(t)
        t[:, 1:3] = np.ones((4, 2), "f4")
        x[:, 1:3] = 1
        same(t, x)
        t[0] = on(q1, x)[3]
        x[0] = x[3]
        same(t, x)
        for call in (t.numpy, lambda: np.asarray(t)):
            assert "use .to('cpu') first" in refused(call)
        same(ip.zeros((2, 2), device="qy:1"), np.zeros((2, 2), "f4"))
        same(ip.arange(3, dtype="F32", device=q0), np.arange(3, dtype="f4"))
    """,
    "operators": """
        for here in (cpu, q0, q1):
            ip.set_device(here)
            for device in (q0, q1):
                a, b, w = ints(4, 6), ints(6, 5), ints(5)
                x, y, z = (on(device, v) for v in (a, b, w))
                g = ip.gemm(x, y)
                assert g.device is device and ip.get_device() is here
                same(g, a @ b)
                same(ip.add(g, z), a @ b + w)
                same(g * z, (a @ b) * w)
                same(ip.rearrange(g.T), (a @ b).T)
                same(ip.add_rms_norm(g, g, z)[1], 2 * (a @ b))
                same(ip.gemm(x, y, 2.0, 3.0, c=g), 5 * (a @ b))
                ip.gemm_(g, x, y, 1.0, 1.0)
                same(g, 2 * (a @ b))
                m, n = ints(3, 1, 2, 6), np.stack([b, b])
                same(ip.gemm(on(device, m), on(device, n)), m @ n)
                assert ip.get_device() is here
            np.testing.assert_array_equal(ip.gemm(np.eye(2), np.eye(2)), np.eye(2))
            assert ip.get_device() is here
    """,
    "mismatch": """
        h, d, e = ip.ones(3), ip.ones(3, device=q1), ip.ones(3, device=q0)
        def says(call): return refused(call).removeprefix("Tensor devices mismatch ")
        assert says(lambda: ip.add_(h, d, d)) == "CPU:0 vs QY:1 in add: c on CPU:0, a on QY:1, b on QY:1"
        assert says(lambda: ip.add(h, d)) == "CPU:0 vs QY:1 in add: a on CPU:0, b on QY:1"
        assert says(lambda: ip.mul(d, np.ones(3, "f4"))) == "QY:1 vs CPU:0 in mul: a on QY:1, b on CPU:0"
        assert "QY:0 vs QY:1 in add: out on QY:0" in says(lambda: ip.add(d, d, out=e))
        m = ip.ones((2, 2), device=q1)
        product = says(lambda: ip.gemm(m, m, 1, 1, c=ip.ones((2, 2))))
        assert product == "QY:1 vs CPU:0 in gemm: a on QY:1, b on QY:1, c on CPU:0"
        assert "in add_rms_norm: a on QY:1" in says(lambda: ip.add_rms_norm(m, m, ip.ones(2)))
        assert "in rearrange: y on QY:0, x on QY:1" in says(lambda: ip.rearrange_(e, d))
        assert refused(lambda: ip.add(h, d)).startswith("Tensor devices mismatch CPU:0 vs QY:1 in add: ")
        assert h.tolist() == [1, 1, 1] and ip.get_device() is cpu
    """,
    "caches": """
        x, y = ip.ones((3, 3), device=q0), ip.ones((3, 3), device=q1)
        cache = ip.Gemm.cache()
        for t in (x, y, x, y, ip.ones((3, 3))):
            ip.gemm(t, t)
        info = cache.cache_info()
        assert (info.hits, info.misses, info.size) == (2, 3, 3), info
        assert [len(cache.get_cache(d)) for d in ("cpu", "qy:0", q1)] == [1, 1, 1]
        ip.set_device(q0)
        cache.set_capacity(1)
        ip.gemm(y[:2], y)
        assert len(cache.get_cache(q1)) == 1 and cache.cache_info().evictions == 1
        cache.clear()
        assert cache.cache_info().size == 0 and ip.get_device() is q0
    """,
    "graphs": """
        x = on(q1, ints(4, 4)); h = ip.ones((4, 4))
        with ip.Graph() as g:
            y = x @ x + x; k = h + h; z = y * x; w = ip.gemm(x, x, 1.0, 1.0, c=z)
        for _ in range(2):
            x.copy_(ints(4, 4)); v = x.to(cpu).numpy()
            g.run()
            same(y, v @ v + v); same(w, v @ v + (v @ v + v) * v); same(k, np.full((4, 4), 2, "f4"))
            assert ip.get_device() is cpu
        with ip.Graph() as g:
            assert "not while a graph" in refused(lambda: x.to(cpu), ip.GraphError)
            assert "not while a graph" in refused(lambda: x.copy_(h), ip.GraphError)
    """,
    "python": """
        def add(c, a, b): c.copy_((a.to(cpu) * b.to(cpu)).to(c.device))
        ip.Add.dispatcher().register_device("qy", add)
        x = on(q1, ints(3)); v = x.to(cpu).numpy()
        same(x + x, v * v); np.testing.assert_array_equal(ip.add(v, v), v + v)
    """,
    "streams": """
        s = ip.Stream(q1); e, f = ip.Event(q1), ip.Event(q1)
        with s:
            assert ip.get_stream(q1) is s and ip.get_stream(q0) is not s
            e.record(); x = ip.ones((9, 9), device=q1); y = x @ x; f.record()
        f.synchronize(); s.synchronize(); ip.synchronize(q1)
        same(y, np.full((9, 9), 9, "f4")); assert e.elapsed_time(f) >= 0 and ip.get_device() is cpu
        assert "the event is on QY:1, the stream on CPU:0" in refused(lambda: e.record(ip.Stream("cpu")))
    """,
    "release": """
        fake = ctypes.CDLL(__import__("os").environ["INFINIOP_BACKEND_PATH"])
        def alive():
            gc.collect()
            counts = (ctypes.c_int64 * 64)(); fake.fakeBackendGetCounts(counts)
            names = "plans blocks0 blocks1 bytes0 bytes1 host_blocks streams events device_graphs graph_execs"
            names = (names + " broken_guards").split()
            return {name: count for name, count in zip(names, counts) if count}
        def work(size):
            ip.set_device(q0)
            x = ip.ones((size, size), device=q1); s = ip.Stream(q1); e = ip.Event(q1)
            with s: y = x @ x; e.record()
            with ip.Graph() as g: z = ip.add(y, x); ip.gemm(x, x)
            g.run(); same(z, np.full((size, size), size + 1, "f4"))
            assert alive()["plans"] == 2, alive()
            assert ip.get_device() is q0
        def in_thread(size):
            errors = []
            def body():
                try: work(size)
                except BaseException as e: errors.append(repr(e))
            t = threading.Thread(target=body); t.start(); t.join()
            assert not errors, errors
        for size in range(1, 4):
            in_thread(size)
            assert alive() == {}, alive()
        work(5)
        for op in (ip.Gemm, ip.Add): op.cache().clear()
        assert "plans" not in alive() and ip.get_device() is q0
    """,
    "out of memory": """
        assert "on QY:0" in refused(lambda: ip.empty(2**30, device=q0), ip.OutOfMemoryError)
        same(ip.ones(3, device=q0), np.ones(3, "f4")); assert ip.get_device() is cpu
        kept = [ip.empty(1 << 18, device=q0) for _ in range(20)]
        del kept
        for _ in range(200): ip.empty(1 << 20, device=q0)
    """,
    "exit": """
        t = ip.ones(3, device=q1); c = ip.Add(t, t, t); s = ip.Stream(q0)
        with ip.Graph() as g: u = t + t
        loop = [t, g]; loop.append(loop)
        ip.set_device(q0)
    """,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_with_two_devices(backend: Path, name: str) -> None:
    children.run(PROLOGUE + textwrap.dedent(PROGRAMS[name]), INFINIOP_BACKEND_PATH=str(backend))
