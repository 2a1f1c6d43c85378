"""torch and CuPy as far as this library asks them: arrays on the memory of a test device, which those
libraries work on in streams of their own.

What they do is queued on their current stream and nowhere else, as the real ones do. With a device that runs
what is queued as late as it may, a wait that is missing shows in the values.
"""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from _producers import CUDA, CudaInterface, Producer

import infiniop_py as ip
from infiniop_py._native import check, ffi, lib
from infiniop_py.device import device_scope

Array = np.ndarray[Any, Any]
_kept: list[Any] = []  # buffers of copies that may not have been made yet


class Library:
    """What a library has of streams: a current one for each device, the default one at first."""

    def __init__(self) -> None:
        self._current: dict[int, ip.Stream] = {}

    def current(self, index: int) -> ip.Stream:
        return self._current.get(index) or ip.Stream.from_handle(("nvidia", index), 0)

    @contextlib.contextmanager
    def on(self, stream: ip.Stream) -> Iterator[ip.Stream]:
        before = self._current.get(stream.device.index)
        self._current[stream.device.index] = stream
        try:
            yield stream
        finally:
            del self._current[stream.device.index]
            if before is not None:
                self._current[stream.device.index] = before


TORCH, CUPY = Library(), Library()


def queue_copy(stream: ip.Stream, to: Any, start: Any, nbytes: int, kind: int) -> None:
    with device_scope(stream.device):
        check(lib.infinirtMemcpyAsync(to, start, nbytes, kind, stream.pointer))


class OnDevice:
    """Row-major memory of a device, and what a library does with it on its current stream."""

    library: Library

    def __init__(self, values: Array, index: int = 0) -> None:
        self.tensor = ip.empty(values.shape, values.dtype, ("nvidia", index))
        self.index = index
        self.fill(values)

    @property
    def _stream(self) -> ip.Stream:
        return self.library.current(self.index)

    def fill(self, values: Array | float) -> None:
        """Queue new values."""
        tensor = self.tensor
        host = np.ascontiguousarray(np.broadcast_to(values, tensor.shape), tensor.dtype.numpy)
        start = ffi.from_buffer(host)
        _kept.append((host, start))
        queue_copy(self._stream, tensor._pointer, start, tensor.nbytes, lib.INFINIRT_MEMCPY_H2D)

    def values(self) -> Array:
        """What is there when the library's current stream is done."""
        tensor = self.tensor
        host = np.full(tensor.shape, 77, tensor.dtype.numpy)
        queue_copy(
            self._stream, ffi.from_buffer(host), tensor._pointer, tensor.nbytes, lib.INFINIRT_MEMCPY_D2H
        )
        self._stream.synchronize()
        return host


# ---- torch -----------------------------------------------------------------------------------------------


class TorchDevice(NamedTuple):
    type: str
    index: int


class TorchTensor(OnDevice):
    """What ``interop/_torch.py`` reads of a torch.Tensor."""

    library = TORCH
    __torch_dispatch__ = None
    layout = "strided"
    requires_grad = is_cpu = False

    def __init__(self, values: Array, index: int = 0) -> None:
        super().__init__(values, index)
        self.shape = values.shape
        self.dtype = f"torch.{values.dtype.name}"
        self.device = TorchDevice("cuda", index)
        self.written = 0

    def stride(self) -> tuple[int, ...]:
        return self.tensor.strides

    def data_ptr(self) -> int:
        return self.tensor.data_ptr

    def untyped_storage(self) -> object:
        return self.tensor

    def is_conj(self) -> bool:
        return False

    is_neg = is_inference = is_conj


def _torch_empty(shape: tuple[int, ...], *, dtype: str, device: str) -> TorchTensor:
    made = TorchTensor.__new__(TorchTensor)
    made.index = int(device.removeprefix("cuda:"))
    made.tensor = ip.empty(shape, dtype.removeprefix("torch."), ("nvidia", made.index))
    made.shape, made.dtype, made.written = shape, dtype, 0
    made.device = TorchDevice("cuda", made.index)
    return made


def _count_write(tensor: TorchTensor) -> None:
    tensor.written += 1


def install_torch() -> None:
    assert "torch" not in sys.modules
    torch: Any = types.ModuleType("torch")
    torch.Tensor = TorchTensor
    torch.strided = "strided"
    torch.float32 = "torch.float32"
    torch.is_grad_enabled = lambda: True
    torch.autograd = types.SimpleNamespace(
        graph=types.SimpleNamespace(increment_version=_count_write),
        forward_ad=types.SimpleNamespace(_current_level=-1),
    )
    torch.empty = _torch_empty
    torch.cuda = types.SimpleNamespace(
        current_stream=lambda index: types.SimpleNamespace(cuda_stream=TORCH.current(index).handle)
    )
    torch._C = types.SimpleNamespace(
        _cuda_getCurrentRawStream=lambda index: TORCH.current(index).handle,
        _get_tracing_state=lambda: None,
        _is_fwd_grad_enabled=lambda: True,
        _get_dispatch_mode=lambda key: None,
        _TorchDispatchModeKey=types.SimpleNamespace(PROXY=0),
    )
    sys.modules["torch"] = torch


# ---- CuPy, and libraries of which nothing is known -------------------------------------------------------


class UnknownArray(OnDevice):
    """``__dlpack__`` with streams, of a library that tells nobody of its current one."""

    library = Library()

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, self.index

    def __dlpack__(self, *, stream: int, **_: Any) -> Any:
        consumer = ip.Stream.from_handle(self.tensor.device, stream)
        if consumer.handle != self._stream.handle:
            consumer.wait_stream(self._stream)
        like = np.empty(self.tensor.shape, self.tensor.dtype.numpy)
        return Producer(
            like, data=self.tensor.data_ptr, device_type=CUDA, device_id=self.tensor.device.index
        ).capsule()


class CupyArray(UnknownArray):
    """A cupy.ndarray."""

    library = CUPY


def install_cupy() -> None:
    assert "cupy" not in sys.modules
    cupy: Any = types.ModuleType("cupy")
    cupy.ndarray = CupyArray
    cupy.cuda = types.SimpleNamespace(
        get_current_stream=lambda index: types.SimpleNamespace(ptr=CUPY.current(index).handle)
    )
    sys.modules["cupy"] = cupy


class InterfaceArray(OnDevice):
    """An array with ``__cuda_array_interface__``, which names its library's current stream."""

    library = Library()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        made = CudaInterface(self.tensor, stream=self._stream.handle or 1)
        return made.__cuda_array_interface__

    @property
    def device(self) -> Any:
        return types.SimpleNamespace(id=self.index)
