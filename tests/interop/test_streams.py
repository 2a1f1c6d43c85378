"""Operators on arrays of libraries with streams of their own: which stream a call runs on, and that whatever
else is queued comes before it or after it.

The device is the test backend in the NVIDIA slot, which runs what is queued as late as it may, and what
should have waited for something else before that.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

import children
import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("backend")
    return children.build_fake_backend(folder, "-DFAKE_SLOT=INFINI_DEVICE_NVIDIA", "-DFAKE_LAZY=1")


PROLOGUE = f"""
import ctypes, gc, os, sys, threading
sys.path[:0] = [{str(HERE)!r}, {str(HERE.parent)!r}, {str(HERE.parent / "abi")!r}]
import numpy as np, infiniop_py as ip
from _libraries import *
from _library import FakeCounts
from _producers import CudaInterface
install_torch(); install_cupy()
gpu, one = ip.Device("nvidia:0"), ip.Device("cuda:1")
plugin = ctypes.CDLL(os.environ["INFINIOP_BACKEND_PATH"])
x, w = np.arange(12, dtype="f4").reshape(3, 4), np.arange(20, dtype="f4").reshape(4, 5)
same = np.testing.assert_array_equal
def on(values, device=gpu): return ip.from_numpy(np.ascontiguousarray(values)).to(device)
X = on(x)
class quietly:
    "The host waits for nothing, and streams for as many events as are given."
    def __init__(self, waits=0): self.waits = waits
    def __enter__(self): self.before = FakeCounts.of(plugin)
    def __exit__(self, kind, *_):
        after = FakeCounts.of(plugin)
        if kind is None:
            assert after.host_waits == self.before.host_waits, "the host has waited"
            waits = after.waits - self.before.waits
            assert waits == self.waits, (waits, self.waits)
def pending(stream):
    event = ip.Event(stream.device); event.record(stream)
    return not event.query()
def refused(call, error):
    try: call()
    except error as e: return str(e)
    raise AssertionError("not refused")
KINDS = {{TorchTensor: TORCH, CupyArray: CUPY, InterfaceArray: InterfaceArray.library}}
"""

PROGRAMS = {
    # A call is queued on the current stream of its operands' library, whatever that is.
    "one library": """
        for device in (gpu, one):
            for kind, library in KINDS.items():
                for stream in (library.current(device.index), ip.Stream(device), ip.Stream(device)):
                    with library.on(stream):
                        a, b = kind(x, device.index), kind(w, device.index)
                        y = kind(np.zeros((3, 5), "f4"), device.index)
                        before = FakeCounts.of(plugin)
                        # CuPy's waits for the stream that DLPack names, and the other way round.
                        side = 4 if kind is CupyArray and stream.handle else 0
                        with quietly(side): ip.gemm_(y, a, b)
                        assert pending(stream), (kind, stream)
                        assert FakeCounts.of(plugin).runs[device.index] == before.runs[device.index]
                        a.fill(-1)  # as soon as the call has returned
                        same(y.values(), x @ w)
    """,
    # A torch that does not tell the number of a stream alone.
    "one torch": """
        del sys.modules["torch"]._C._cuda_getCurrentRawStream
        stream = ip.Stream(gpu)
        with TORCH.on(stream):
            a, y = TorchTensor(x), TorchTensor(x)
            with quietly(): ip.add_(y, a, a)
            assert pending(stream)
            same(y.values(), x + x)
    """,
    "results": """
        stream = ip.Stream(gpu)
        with TORCH.on(stream):
            a = TorchTensor(x)
            with quietly(): y = ip.add(a, a)
            assert type(y) is TorchTensor and pending(stream) and ip.get_stream(gpu).handle == 0
            a.fill(9)
            with quietly(): z = ip.mul(y, y)
            y.fill(9)
            same(z.values(), 4 * x * x)
            with quietly(): ip.mul_(z, z, z)
            same(z.values(), 16 * x**4); assert z.written == 2
        with CUPY.on(stream):
            y = ip.rearrange(CupyArray(x))
            same(y.to("cpu").numpy(), x)  # on this library's stream, which waited
    """,
    "mixed": """
        t, c, i, s = (ip.Stream(gpu) for _ in range(4))
        with TORCH.on(t), CUPY.on(c), InterfaceArray.library.on(i):
            def make(): return TorchTensor(x), CupyArray(x + 1), InterfaceArray(x + 2)
            for order in ((0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)):
                arrays = make()
                a, b = (arrays[k] for k in order)
                out = make()[order[1]]
                ip.mul_(out, a, b)
                a.fill(-1); b.fill(-1); a.values(); b.values()
                same(out.values(), (x + order[0]) * (x + order[1]))
                assert not pending((t, c, i)[order[1]])
                # and with Tensors, which belong to the stream that is current here
                arrays = make()
                mine = ip.add(X, X)
                got = ip.mul(arrays[order[0]], mine)
                arrays[order[0]].fill(-1); arrays[order[0]].values(); mine.copy_(X)
                same(got.to("cpu").numpy(), 2 * x * (x + order[0]))
            a, b, _ = make()
            y = TorchTensor(x)
            with quietly(1 + 2): ip.add_(y, a, b)  # DLPack's wait; the event of c, and the event of t
            assert pending(t)
            b.fill(0); b.values(); same(y.values(), x + x + 1)
            # arrays of one kind that name different streams
            first, second = on(x), on(x)
            with quietly(2 + 2):
                ip.mul_(first, CudaInterface(first, stream=s.handle), CudaInterface(second, stream=t.handle))
    """,
    "a stream that was entered": """
        t, s = ip.Stream(gpu), ip.Stream(gpu)
        with TORCH.on(t):
            a = TorchTensor(x); y = TorchTensor(x)
            with s:
                with quietly(2): ip.add_(y, a, a)
                assert pending(s) and ip.get_stream(gpu) is s
            a.fill(-1); a.values()
            same(y.values(), x + x)
            a.fill(x)
            with ip.Stream.from_handle(gpu, t.handle), quietly(0): ip.add_(y, a, y)
            a.fill(-1)
            same(y.values(), 3 * x)
            with ip.Stream.from_handle(gpu, 0), quietly(2):  # the default one, asked for
                ip.add_(y, y, y)
            y.fill(1); same(y.values(), np.ones((3, 4)))
            with ip.Stream(one): ip.add_(y, y, y)  # says nothing of this device
            same(y.values(), np.full((3, 4), 2))
            # Tensors on streams of one's own
            with s: z = ip.add(X, X)
            s2 = ip.Stream(gpu)
            with quietly(1): s2.wait_stream(s)
            with s2: q = z * z
            with s2: same(q.to("cpu").numpy(), 4 * x * x)
            assert "the stream is on NVIDIA:0, the other on NVIDIA:1" in refused(
                lambda: s.wait_stream(ip.Stream(one)), ip.DeviceError)
            assert "other is 7, needs a Stream" in refused(lambda: s.wait_stream(7), ip.OperandError)
    """,
    "plans": """
        t = ip.Stream(gpu)
        for kind, library in KINDS.items():
            with library.on(t):
                a, b, y = kind(x), kind(w), kind(np.zeros((3, 5), "f4"))
                plan = ip.gemm.plan(y, a, b)
                for stream in (t, ip.Stream(gpu), ip.Stream(gpu)):
                    # It is the stream of the run that counts.
                    stream.wait_stream(t)
                    with library.on(stream):
                        a.fill(x + 1)
                        with quietly(kind is CupyArray): plan()  # DLPack is asked if it may be written
                        a.fill(-1)
                        same(y.values(), (x + 1) @ w)
                        a.fill(x + 2)
                        plan(2.0)
                        a.fill(-1)
                        same(y.values(), 2 * ((x + 2) @ w))
                        plan.run(a=kind(x))
                        same(y.values(), x @ w)
    """,
    "sums in two calls": """
        t = ip.Stream(gpu)
        with TORCH.on(t):
            a, b, c = TorchTensor(x), TorchTensor(w), TorchTensor(np.ones((3, 5), "f4"))
            ip.gemm(a, b, 1.0, 2.0, c=c)
            with quietly(): y = ip.gemm(a, b, 1.0, 2.0, c=c)
            c.fill(9); a.fill(9)
            same(y.values(), x @ w + 2)
        from infiniop_py import workspace
        assert [s.handle for s in workspace._pool.streams] == [t.handle]
    """,
    "graphs": """
        for kind, library in KINDS.items():
            t, u = ip.Stream(gpu), ip.Stream(gpu)
            with library.on(t):
                a, b = kind(x), kind(w)
                y = kind(np.zeros((3, 5), "f4"))
                with ip.Graph() as graph:
                    ip.add(ip.gemm(a, b), ip.gemm(a, b), out=y)
                before = FakeCounts.of(plugin)
                for stream in (t, t, u, ip.Stream(gpu)):
                    stream.wait_stream(t)
                    with library.on(stream):
                        a.fill(x + 3)
                        if stream is u:
                            with quietly(): graph.run()  # on it, wherever it was captured
                            assert pending(u)
                        else:
                            graph.run()
                        a.fill(-1)
                        same(y.values(), 2 * ((x + 3) @ w))
                    t.wait_stream(stream)
                after = FakeCounts.of(plugin)
                assert (after.captures - before.captures, after.launches - before.launches) == (1, 4)
                with ip.Stream.from_handle(gpu, u):  # one that another library has made, entered
                    a.fill(x)
                    with quietly(2): graph.run()
                    assert pending(u)
                a.fill(-1)
                same(y.values(), 2 * (x @ w))
                a.fill(x)
                graph.profile(2)
                same(y.values(), 2 * (x @ w))
                a.fill(x + 1)
                graph.profile(1)
                same(y.values(), 2 * ((x + 1) @ w))
                with ip.Graph() as graph: ip.add(y, y, out=y)
                y.fill(3); graph.profile(2); same(y.values(), np.full((3, 5), 12))
        library, t, u = InterfaceArray.library, ip.Stream(gpu), ip.Stream(one)
        with library.on(t), library.on(u):
            a, b = InterfaceArray(x), InterfaceArray(x, 1)
            with ip.Graph() as graph: ip.add(a, a, out=a); ip.mul(b, b, out=b)
            a.fill(x); b.fill(x); graph.run()
            assert pending(t) and pending(u)
            same(a.values(), x + x); same(b.values(), x * x)
            with quietly(): graph.run()
        with CUPY.on(t):  # no Tensor but the result
            a = CupyArray(x)
            with ip.Graph() as graph: z = ip.mul(ip.add(a, a), a)
            graph.run(); a.fill(0); a.values()
            same(z.to("cpu").numpy(), 2 * x * x)
        with TORCH.on(t):  # results that are Tensors, and memory that the graph alone has
            a, m = TorchTensor(x), on(w)
            with ip.Graph() as graph: z = ip.mul(ip.gemm(a, m), ip.gemm(a, m))
            assert type(z) is ip.Tensor
            graph.run(); a.fill(0)
            same(z.to("cpu").numpy(), (x @ w) ** 2)
            other = TorchTensor(x + 1)
            graph.bind(a, other)
            graph.run(); other.fill(0)
            same(z.to("cpu").numpy(), ((x + 1) @ w) ** 2)
            c = ip.empty((3, 4), device=gpu)
            with ip.Graph() as graph: c.copy_(other)
            other.fill(x); graph.run(); other.fill(0)
            same(c.to("cpu").numpy(), x)
    """,
    "implementations in Python": """
        seen = []
        def add(c, a, b):
            seen.append(ip.get_stream(gpu).handle)
            ip.mul_(c, a, b)
        ip.Add.dispatcher().register_device("nvidia", add)
        t = ip.Stream(gpu)
        with TORCH.on(t):
            a = TorchTensor(x)
            with quietly(): y = ip.add(a, a)
            assert seen == [t.handle] and pending(t)
            a.fill(-1); same(y.values(), x * x)
            with ip.Graph() as graph: ip.add(a, a, out=y)
            a.fill(x + 1); graph.run(); a.fill(-1)
            same(y.values(), (x + 1) ** 2)
            plan = ip.Add(y, a, a)
            a.fill(x + 2); plan(); plan.run(b=a); a.fill(-1)
            same(y.values(), (x + 2) ** 2)
            assert set(seen) == {t.handle}
        seen.clear()
        c = ip.Stream(gpu)
        with TORCH.on(t), CUPY.on(c):
            a, b = TorchTensor(x), CupyArray(x)
            ip.add_(a, a, b); ip.add_(b, a, b); ip.add(X, b); ip.add(X, a)
            with ip.Stream(gpu) as own: ip.add(a, b)
            assert seen == [t.handle, c.handle, c.handle, t.handle, own.handle]
        seen.clear()
        m = on(x); ip.add(m, m); assert seen == [0]
    """,
    "libraries that say nothing": """
        t = ip.Stream(gpu)
        unknown = UnknownArray.library
        with unknown.on(t):
            a, y = UnknownArray(x), UnknownArray(x)
            ip.add_(y, a, a)
            assert not pending(t) and not pending(ip.get_stream(gpu))
            a.fill(-1); same(y.values(), x + x)
            plan = ip.Mul(y, a, a)
            a.fill(x); plan(); a.fill(-1); same(y.values(), x * x)
            with ip.Graph() as graph: ip.add(a, a, out=y)
            a.fill(x + 1); graph.run(); a.fill(-1); same(y.values(), 2 * x + 2)
            source = on(x)
            a.fill(x)
            z = ip.add(a, source); a.fill(-1); same(z.to("cpu").numpy(), x + x)
            silent = CudaInterface(source)  # stream None
            before = FakeCounts.of(plugin).host_waits
            z = ip.add(silent, silent)
            assert FakeCounts.of(plugin).host_waits > before
            same(z.to("cpu").numpy(), x + x)
            with TORCH.on(ip.Stream(gpu)):
                b = TorchTensor(x); a.fill(x)
                z = on(x); ip.add(b, b)
                waits = FakeCounts.of(plugin).waits
                ip.add_(z, a, b); a.fill(-1); b.fill(-1)
                assert FakeCounts.of(plugin).waits == waits + 1  # DLPack's
                a.values(); same(z.to("cpu").numpy(), x + x)
            z = on(x)
            plan = ip.Mul(z, a, a)
            a.fill(x + 2); plan(); a.fill(-1); a.values()
            same(z.to("cpu").numpy(), (x + 2) ** 2)
    """,
    "copies": """
        t, s = ip.Stream(gpu), ip.Stream(gpu)
        with TORCH.on(t):
            for destination in (on(x), on(x, one), ip.zeros((3, 4)), on(np.zeros((4, 3), "f4"), one).T,
                                ip.zeros((4, 3)).T):
                a = TorchTensor(x + 5)
                destination.copy_(a)
                a.fill(-1)
                same(destination.to("cpu").numpy(), x + 5)
                del a  # before the next one is filled, because its release waits for the device
            a, fresh = TorchTensor(x), ip.empty((3, 4), device=gpu)
            with quietly(2): fresh.copy_(a)
        # to() comes after what is queued on the stream that is current here, not after the default one alone.
        with s:
            y = X + X
            assert pending(s)
            same(y.to("cpu").numpy(), x + x)
            y = y * y
            same(y.to(one).to("cpu").numpy(), 4 * x * x)
            z = ip.zeros((3, 4), device=gpu) + y
            same(z.to("cpu").numpy(), 4 * x * x)
            y.copy_(ip.ones((3, 4))); same((y + y).to("cpu").numpy(), np.full((3, 4), 2))
        y = on(x).to(gpu); assert y.to("nvidia:0") is y and y.to("cuda") is y
        assert y.to("cuda:1").device is one
    """,
    "dlpack": """
        s, c, late = ip.Stream(gpu), ip.Stream(gpu), ip.Stream(gpu)
        def read(t, stream):
            host = np.zeros(t.shape, "f4")
            queue_copy(stream, ffi.from_buffer(host), t._pointer, t.nbytes, lib.INFINIRT_MEMCPY_D2H)
            stream.synchronize()
            return host
        for ours in (ip.get_stream(gpu), s):
            for given in (None, 1, 2, c.handle):
                consumer = ip.Stream.from_handle(gpu, given or 0)
                with ours:
                    z = X + X
                    with quietly(0 if consumer.handle == ours.handle else 1): z.__dlpack__(stream=given)
                    same(read(z, consumer), x + x)
                    z = X * X
                    z.T.__dlpack__(stream=given, copy=False)
                    same(read(z, consumer), x * x)
        with s:
            del z  # now, and not when the next one is there: the device waits for all
            z = X + X
            with quietly(): z.__dlpack__(stream=-1)
            assert pending(s)
            class Once:
                def __dlpack__(self, **_): return z.T.__dlpack__(stream=late.handle, copy=True)
                def __dlpack_device__(self): return z.__dlpack_device__()
            copied = ip.from_dlpack(Once())
            same(read(copied, late), 2 * x.T)
            says = refused(lambda: z.__dlpack__(stream=0), ip.ParamError)
            assert "stream is 0, which DLPack does not allow" in says
            for wrong in (-2, 2**64): refused(lambda: z.__dlpack__(stream=wrong), ip.ParamError)
            for wrong in ("1", 1.0, True, s): refused(lambda: z.__dlpack__(stream=wrong), ip.OperandError)
        # in: the producer lets the stream that is current here wait
        with CUPY.on(c):
            for stream in (ip.get_stream(gpu), s):
                a = CupyArray(x)
                with stream:
                    with quietly(1): t = ip.from_dlpack(a)
                    y = t + t
                    same(y.to("cpu").numpy(), x + x)
                del a, t, y
    """,
    "cuda array interface": """
        s = ip.Stream(gpu)
        t = on(x)
        said = t.__cuda_array_interface__
        assert said == dict(version=3, shape=(3, 4), typestr="<f4", data=(t.data_ptr, False), strides=None,
                            stream=1), said
        with s: said = t[:, ::2].__cuda_array_interface__
        assert (said["strides"], said["stream"], said["shape"]) == ((16, 8), s.handle, (3, 2))
        assert t[::-1].__cuda_array_interface__["strides"] == (-16, 4)
        assert t[::-1].__cuda_array_interface__["data"][0] == t.data_ptr + 32
        assert t[:0].__cuda_array_interface__["data"] == (0, False)
        locked = ip.from_dlpack(Producer(x, data=t.data_ptr, device_type=CUDA, read_only=True))
        assert locked.__cuda_array_interface__["data"] == (t.data_ptr, True)
        typestrs = dict(BOOL="|b1", U8="|u1", I64="<i8", F16="<f2", C64="<c8")
        for dtype, typestr in typestrs.items():
            assert ip.empty(2, dtype, gpu).__cuda_array_interface__["typestr"] == typestr
        try: import ml_dtypes; ip.DType.BF16.numpy
        except ImportError: pass
        for dtype in ("BF16", "F8", "BYTE", "C32"):
            none = ip.empty(2, dtype, gpu)
            assert not hasattr(none, "__cuda_array_interface__")
            says = refused(lambda: none.__cuda_array_interface__, AttributeError)
            assert f"{dtype} has no typestr there; use DLPack" in says
        host = ip.ones(3)
        assert not hasattr(host, "__cuda_array_interface__")
        says = refused(lambda: host.__cuda_array_interface__, AttributeError)
        assert "the tensor is on CPU:0, needs an NVIDIA device" in says
        with ip.Graph():
            assert "while a graph" in refused(lambda: t.__cuda_array_interface__, ip.GraphError)
        class Taken:  # and back
            def __init__(self, tensor): self.tensor = tensor
            __cuda_array_interface__ = property(lambda self: self.tensor.__cuda_array_interface__)
        with s:
            y = t + t
            with quietly(): z = ip.mul(Taken(y), Taken(y))
        with s: same(z.to("cpu").numpy(), 4 * x * x)
        with s: y, z = t + t, Taken(t * t)
        assert z.__cuda_array_interface__["stream"] == 1
        for wrong, error in ((0, ip.ParamError), (-1, ip.ParamError), (2**64, ip.ParamError),
                             ("1", ip.OperandError), (True, ip.OperandError)):
            array = CudaInterface(t, stream=wrong)
            assert refused(lambda: ip.add(array, array), error).startswith("add: a names stream")
        array = InterfaceArray(x); plan = ip.Mul(on(x), array, array)
        InterfaceArray.__cuda_array_interface__ = CudaInterface(t, stream=0).__cuda_array_interface__
        assert "names stream 0" in refused(plan, ip.ParamError)
    """,
    "handles": """
        from types import SimpleNamespace as Has
        s = ip.Stream(gpu)
        assert s.handle > 2 and ip.get_stream(gpu).handle == 0 and s.__cuda_stream__() == (0, s.handle)
        assert ip.get_stream(gpu).__cuda_stream__() == (0, 1)
        streams = FakeCounts.of(plugin).streams
        for given in (s.handle, s, Has(cuda_stream=s.handle), Has(ptr=s.handle),
                      Has(__cuda_stream__=(0, s.handle)),
                      Has(__cuda_stream__=lambda: (0, s.handle), cuda_stream=5, ptr=5),
                      Has(cuda_stream=s.handle, device_index=0), Has(ptr=s.handle, device_id=-1)):
            again = ip.Stream.from_handle(gpu, given)
            assert again.handle == s.handle and again.device is gpu and hex(s.handle) in repr(again)
            with again: z = X + X; assert pending(s)
            again.synchronize(); assert not pending(s)
            del again, z
        gc.collect(); assert FakeCounts.of(plugin).streams == streams
        for default in (0, 1): assert ip.Stream.from_handle(gpu, default).handle == 0
        with ip.Stream.from_handle(gpu, 2) as each: z = X + X; assert pending(each) and each.handle == 2
        said = Has(__cuda_stream__=lambda: 1 // 0)
        assert "__cuda_stream__ failed: ZeroDivisionError" in refused(
            lambda: ip.Stream.from_handle(gpu, said), ip.OperandError)
        assert "version 1 of __cuda_stream__" in refused(
            lambda: ip.Stream.from_handle(gpu, Has(__cuda_stream__=(1, 5))), ip.ParamError)
        for wrong in (None, "5", 5.0, True, object(), Has(ptr=None), Has(__cuda_stream__=3)):
            assert "from_handle: stream is" in refused(
                lambda: ip.Stream.from_handle(gpu, wrong), ip.OperandError)
        for wrong in (-1, 2**64): refused(lambda: ip.Stream.from_handle(gpu, wrong), ip.ParamError)
        for name in ("device_index", "device_id"):
            assert "the stream is of device 1, but device is NVIDIA:0" in refused(
                lambda: ip.Stream.from_handle(gpu, Has(ptr=5, **{name: 1})), ip.DeviceError)
            assert ip.Stream.from_handle(one, Has(ptr=5, **{name: 1})).device is one
        refused(lambda: ip.Stream.from_handle("nvidia:2", 5), ip.DeviceError)
        refused(lambda: ip.Stream.from_handle("cpu", 5), ip.DeviceError)
        assert "is no stream of CUDA" in refused(ip.Stream("cpu").__cuda_stream__, ip.DeviceError)
        class Kept: ptr = s.handle
        kept = Kept(); import weakref; alive = weakref.ref(kept)
        again = ip.Stream.from_handle(gpu, kept); del kept; gc.collect(); assert alive() is not None
        del again; gc.collect(); assert alive() is None
    """,
    "caches and workspaces": """
        from infiniop_py import workspace
        def held(): return {(s.device, s.handle) for s in workspace._pool.streams}
        a, b = on(x), on(x, one)
        for t in (a, b, a, b, ip.from_numpy(x), ip.from_numpy(x)): ip.add(t, t)
        info = ip.Add.cache().cache_info()
        assert (info.misses, info.size) == (3, 3), info
        assert [len(ip.Add.cache().get_cache(d)) for d in ("cpu", "nvidia:0", "cuda:1")] == [1, 1, 1]
        assert held() == {(gpu, 0), (one, 0)}
        t, u = ip.Stream(gpu), ip.Stream(gpu)
        for stream in (t, u, t, u):
            with TORCH.on(stream): m = TorchTensor(x); ip.add(m, m)
        assert held() == {(gpu, 0), (one, 0), (gpu, t.handle), (gpu, u.handle)}
        assert len(workspace._pool.streams) == 4
        m = TorchTensor(x); ip.add(m, m)
        assert len(workspace._pool.streams) == 4  # the default one of torch is the same
        info = ip.Add.cache().cache_info(); assert info.misses == 3
        seen = []
        thread = threading.Thread(target=lambda: seen.append((ip.add(a, a), held())[1]))
        thread.start(); thread.join(); assert seen == [{(gpu, 0)}]
        # As many streams of others as one likes, and no more objects for them.
        many = [ip.Stream(gpu) for _ in range(80)]
        for stream in many:
            with TORCH.on(stream): ip.add(m, m)
        gc.collect(); assert len(held()) == 2 + 64
        for stream in (many[16], t):  # the oldest is used again, and another one comes
            with TORCH.on(stream): ip.add(m, m)
        assert held() >= {(gpu, stream.handle) for stream in (many[16], many[18], t)}
        assert (gpu, many[17].handle) not in held()
    """,
    "what an array interface cannot say": """
        t = on(x)
        for error, words, fields in (
            (ip.ShapeError, "sizes must not be negative", dict(shape=(-3,), strides=None)),
            (ip.StrideError, "needs less than 2**63", dict(shape=(3,), strides=(2**70,))),
            (ip.ShapeError, "more than 2**63", dict(shape=(2**40, 2**40), strides=None)),
            (ip.ParamError, "leaves the address space", dict(data=(2**64 + t.data_ptr, False))),
            (ip.ParamError, "is not aligned", dict(data=(t.data_ptr + 2, False))),
            (ip.NullPointerError, "but no memory", dict(data=(0, False))),
        ):
            wrong = CudaInterface(t, **fields)
            said = refused(lambda: ip.add(wrong, wrong), error)
            assert words in said and said.startswith("add: a "), said
    """,
    "ordered by a handler while streams are ordered": """
        from places import at_place
        folder, place = os.path.dirname(ip.__file__), 1
        s = [ip.Stream(gpu) for _ in range(4)]
        while True:
            y, z = on(0 * x), on(0 * x)
            ip.synchronize(gpu)
            with s[1]: ip.add_(y, X, X)
            found = at_place(place, folder, lambda: s[0].wait_stream(s[1]), lambda: s[2].wait_stream(s[3]))
            with s[0]: ip.add_(z, y, X)
            s[0].synchronize()
            same(z.to("cpu").numpy(), 3 * x, f"place {place}")
            if not found: break
            place += 1
        assert place > 10
    """,
    "interrupted when a call is over": """
        from places import interrupted
        folder, place = os.path.dirname(ip.__file__), 1
        ours, theirs = ip.Stream(gpu), ip.Stream(gpu)
        early = []
        while True:
            block = on(0 * x)
            ip.synchronize(gpu)
            out = CudaInterface(block, stream=theirs.handle)
            def call():
                with ours: ip.add_(out, X, X)
            found = interrupted(place, folder, call)
            with theirs: block.copy_(9 * x)
            theirs.synchronize(); ours.synchronize()
            if not (block.to("cpu").numpy() == 9 * x).all(): early.append(place)
            while ip.get_stream(gpu) is ours: ours.__exit__(None, None, None)
            if not found: break
            place += 1
        assert place > 20 and len(early) <= 1, early
    """,
    "released while it is used": """
        s = ip.Stream(gpu)
        with s:
            y = X + X
            z = y * y
            del y
            fresh = [on(np.full((3, 4), -1, "f4")) for _ in range(4)]
            same(z.to("cpu").numpy(), 4 * x * x)
        plan_gone = ip.Mul(z, z, z); plan_gone(); del plan_gone
        ip.Mul.cache().clear(); gc.collect()
        same(z.to("cpu").numpy(), 16 * x**4)
    """,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_streams(backend: Path, name: str) -> None:
    children.run(PROLOGUE + textwrap.dedent(PROGRAMS[name]), INFINIOP_BACKEND_PATH=str(backend))
