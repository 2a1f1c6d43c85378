"""torch tensors as operands, by their own accessors, which cost a tenth of DLPack."""

from __future__ import annotations

import re
from functools import cache, lru_cache
from typing import Any

from .._layout import Layout, Shape, interned
from .._native import VOID_POINTER, cast
from ..device import CPU, Device, DeviceType
from ..dtypes import DType, all_dtypes
from ..errors import DeviceError, DTypeError, OperandError, OutOfMemoryError, ParamError
from ..tensor import View
from ._adapter import Adapter

#: Where torch's name is not our NumPy dtype's.
_NAMES = {"BF16": "bfloat16", "C32": "complex32"}


@cache
def _dtypes(torch: Any) -> dict[Any, DType]:
    found: dict[Any, DType] = {}
    for dtype in all_dtypes():
        name = _NAMES.get(dtype.name) or (dtype._numpy.name if dtype._numpy is not None else "")
        if name and hasattr(torch, name):
            found[getattr(torch, name)] = dtype
    return found


def from_torch_dtype(torch: Any, own: Any) -> DType:
    """The DType of an imported torch's dtype."""
    dtype = _dtypes(torch).get(own)
    if dtype is None:
        raise DTypeError(f"is a torch tensor of {own}, which is no element type of this library")
    return dtype


@cache
def adapter(torch: Any) -> Adapter:
    """The adapter of an imported torch."""
    of_dtype = {dtype: own for own, dtype in _dtypes(torch).items()}
    plain, strided, empty = torch.Tensor, torch.strided, torch.empty
    is_grad_enabled = torch.is_grad_enabled
    increment_version = torch.autograd.graph.increment_version
    forward_ad, jit_state = torch.autograd.forward_ad, torch._C._get_tracing_state
    has_tangents = torch._C._is_fwd_grad_enabled
    dispatch_mode, proxies = torch._C._get_dispatch_mode, torch._C._TorchDispatchModeKey.PROXY

    @lru_cache(maxsize=1 << 14)
    def layout(own: Any, shape: Shape, strides: tuple[int, ...]) -> Layout:
        dtype = from_torch_dtype(torch, own)
        return interned(dtype, shape, tuple(stride * dtype.itemsize for stride in strides))

    @cache
    def device_of(own: Any) -> Device:
        if own.type == "cuda":
            return Device(DeviceType.NVIDIA, own.index)
        raise DeviceError(f"is a torch tensor on {own}, which this library does not know")

    def view(tensor: Any) -> View:
        if tensor.layout is not strided:
            raise OperandError(f"is a torch tensor of layout {tensor.layout}, needs torch.strided")
        if tensor.requires_grad and is_grad_enabled():
            raise ParamError(
                "is a torch tensor that requires grad, which no operator here records; use x.detach() or "
                "torch.no_grad()"
            )
        if tensor.is_conj() or tensor.is_neg():
            raise ParamError(
                "is a torch tensor whose conjugation or negation is still to be done; use x.resolve_conj() "
                "or x.resolve_neg()"
            )
        if jit_state() is not None or dispatch_mode(proxies) is not None:
            raise OperandError(
                "is a torch tensor of a program that is traced, which does not see what operators here "
                "compute; use those of infiniop_py.torch"
            )
        if (
            forward_ad._current_level >= 0
            and has_tangents()
            and forward_ad.unpack_dual(tensor).tangent is not None
        ):
            raise ParamError(
                "is a torch tensor with a tangent, which no operator here has a derivative for; use those of "
                "infiniop_py.torch"
            )
        device = CPU if tensor.is_cpu else device_of(tensor.device)
        try:
            address, shape, strides = tensor.data_ptr(), tensor.shape, tensor.stride()
        except RuntimeError as error:  # inside of torch's transforms and compilers, and tensors of tensors
            raise OperandError(f"is a torch tensor without memory of its own: {error}") from None
        return device, layout(tensor.dtype, shape, strides), cast(VOID_POINTER, address)

    def count_write(tensor: Any) -> None:
        # So that autograd sees that what it saved has changed, as it does with torch's own operators.
        if not tensor.is_inference():
            increment_version(tensor)

    def allocate(dtype: DType, shape: Shape, device: Device, what: str) -> Any:
        where = "cpu" if device is CPU else f"cuda:{device.index}"
        try:
            return empty(shape, dtype=of_dtype[dtype], device=where)
        except RuntimeError as error:
            if not re.search("out of memory|allocate memory|overflow", str(error)):
                raise
            reason = str(error).partition("\n")[0]
            raise OutOfMemoryError(f"{what}: cannot allocate {shape} of {dtype}: {reason}") from None

    def fresh(layout: Layout) -> tuple[Any, Any]:
        made = empty(layout[1], dtype=of_dtype[layout[0]], device="cpu")
        if type(made) is not plain:  # what torch's modes make
            raise OperandError(f"{type(made).__name__} is no plain tensor")
        try:
            address = made.data_ptr()
        except RuntimeError as error:
            raise OperandError(f"a new tensor has no memory of its own: {error}") from None
        return made, cast(VOID_POINTER, address)

    def memory(tensor: Any) -> object:
        # `x.data = y` and Module.to() give a tensor another one.
        return tensor.untyped_storage()

    # Where torch has it, the number alone: to make a torch.cuda.Stream costs more than to launch a kernel.
    raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)

    def stream(tensor: Any, device: Device) -> int:
        handle: int
        if raw_stream is None:
            handle = torch.cuda.current_stream(device.index).cuda_stream
        else:
            handle = raw_stream(device.index)
        return handle

    return Adapter(
        *(view, lambda tensor: True, allocate),
        rank=1,
        count_write=count_write,
        memory=memory,
        stream=stream,
        fresh=fresh,
    )


def need_memory(torch: Any, op: str, name: str, kind: type) -> None:
    """Refuse subclasses whose instances are no memory, such as distributed and fake tensors."""
    if kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:  # type: ignore[attr-defined]
        raise OperandError(
            f"{op}: {name} is a {kind.__name__}, whose memory is not its own; pass the plain tensor in it"
        )
