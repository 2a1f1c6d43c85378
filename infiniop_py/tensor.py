"""``Tensor``: memory of a device seen with a shape, strides and an element type.

A tensor owns a share of its storage; views share it, and the last one that goes gives the memory back, on
its device. Views never copy; what copies says so. Arithmetic is done by the operators above this module,
which bind themselves here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache, lru_cache, wraps
from math import isfinite
from numbers import Integral, Real
from operator import index as as_index
from types import EllipsisType
from typing import Any, TypeAlias, TypeVar, cast
from weakref import ref

import numpy as np

from . import _dlpack, errors
from ._layout import (
    MAX_BYTES,
    Layout,
    Shape,
    as_shape,
    count,
    element_strides,
    extent,
    interned,
    is_row_major,
    need_memory,
    need_steps,
    row_major,
    same_elements,
)
from ._native import address as address_of
from ._native import check, ffi, lib
from ._native import pointer as as_pointer
from .device import (
    CPU,
    LEGACY,
    Device,
    DeviceLike,
    DeviceType,
    Stream,
    as_device,
    call_on,
    device_scope,
    get_stream,
    memory_error,
    places,
    refuse_pickle,
    runtime_entry,
    stream_at,
    thread,
)
from .dtypes import DType, as_dtype, from_numpy_dtype
from .errors import shown

__all__ = ["Tensor", "arange", "empty", "from_blob", "from_dlpack", "from_numpy", "ones", "randn", "zeros"]

#: What an operator needs of one operand: its device, its layout, the pointer to its element (0, ..., 0).
View: TypeAlias = tuple[Device, Layout, Any]

Index: TypeAlias = "int | slice | EllipsisType | tuple[int | slice | EllipsisType | None, ...] | None"


_new = object.__new__


class _Storage:
    """A range of bytes on a device: allocated here and released with the last tensor, or borrowed from
    `owner`.

    Tensors keep no account of the streams that work with them, nor could they of those of other libraries
    that share the memory. So it is released by ``infinirtFree``, which waits until what is queued on the
    device is done, and never in the order of one stream.
    """

    __slots__ = ("__weakref__", "_address", "device", "nbytes", "owner")

    def __init__(self, device: Device, address: int | None, nbytes: int, owner: object) -> None:
        self.device = device
        self._address = address  # None: what is in the place that owns the memory
        self.nbytes = nbytes
        self.owner = owner

    @property
    def address(self) -> int:
        """Of the first byte."""
        if self._address is None:
            place: Any = self.owner
            self._address = address_of(place[0])
        return self._address


@cache
def _allocator(device: Device) -> Callable[[int], Any]:
    """A function that allocates so many bytes and returns their place, or None if that fails."""
    # The device's own table needs no current device.
    place, allocate = places(device, "void *", "free_device"), runtime_entry(device, "malloc_device")

    def make(nbytes: int) -> Any:
        made = place()
        return None if nbytes and allocate(made, nbytes) else made

    return make


def _allocate_again(device: Device, nbytes: int, what: str) -> Any:
    """What failed, by the function that says why: the place if it does not fail now."""
    if nbytes > MAX_BYTES:
        raise errors.OutOfMemoryError(
            f"{what}: cannot allocate {nbytes} bytes on {device}: no address space is so large"
        )
    place = places(device, "void *", "free_device")()
    status = call_on(device, lib.infinirtMalloc, place, nbytes)
    if status:
        raise memory_error(what, nbytes, device, status)
    return place


class _Operators:
    """The operators tensors are computed with; they live in a higher layer and put themselves here."""

    add: Callable[[Any, Any], Any]
    mul: Callable[[Any, Any], Any]
    gemm: Callable[[Any, Any], Any]
    add_: Callable[[Any, Any, Any], Any]
    mul_: Callable[[Any, Any, Any], Any]
    gemm_: Callable[[Any, Any, Any], Any]
    rearrange_: Callable[[Any, Any], Any]
    copy_: Callable[[Any, Any], Any]
    as_tensor: Callable[[str, str, Any], Tensor]
    stream_order: Callable[[str, Device, Iterable[Any]], Any]
    knows: Callable[[object], bool]


operators = _Operators()


class _HostView:
    """What ``numpy.asarray`` makes an array of; the array keeps it, and so the storage, alive."""

    __slots__ = ("__array_interface__", "_storage")

    def __init__(self, tensor: Tensor, typestr: str) -> None:
        self._storage = tensor._storage
        _, shape, strides = tensor._view[1]
        self.__array_interface__ = {
            "version": 3,
            "typestr": typestr,
            "shape": shape,
            "strides": strides,
            "data": (tensor.data_ptr, not tensor._writable),
        }


_MOST_VIEWS = 1 << 12
ViewMethod = TypeVar("ViewMethod", bound="Callable[..., Tensor]")


def _remembered(method: ViewMethod) -> ViewMethod:
    """Decorator of a method whose view begins where the tensor does, and has a layout that follows from the
    tensor's and some ints: a view like one before costs a tenth.
    """
    layouts: dict[tuple[Layout, tuple[int, ...]], Layout] = {}

    @wraps(method)
    def view(self: Tensor, *arguments: Any) -> Tensor:
        ints = arguments[0] if len(arguments) == 1 and type(arguments[0]) is tuple else arguments
        for one in ints:
            if type(one) is not int:  # what equals an int may be refused
                return method(self, *arguments)
        key = self._view[1], ints
        layout = layouts.get(key)
        if layout is not None:
            return Tensor._on(self._storage, layout, self._pointer, self._writable)
        made = method(self, *arguments)
        if made._storage is self._storage:  # no copy
            if len(layouts) >= _MOST_VIEWS:
                layouts.clear()
            layouts[key] = made._view[1]
        return made

    return cast("ViewMethod", view)


class Tensor:
    """An n-dimensional array on a device.

    Make one with :meth:`empty`, :meth:`zeros`, :meth:`ones`, :meth:`arange`, :meth:`randn`,
    :meth:`from_numpy` or :meth:`from_blob`. Shapes and strides count elements. NumPy reads a CPU tensor
    without a copy (``numpy.asarray``). ``+``, ``*`` and ``@`` with an array of NumPy's are this library's
    operators, whichever is on the left; ``==`` tells whether two Tensors are one object.

    >>> x = Tensor.arange(6, dtype="F32").reshape(2, 3)
    >>> x.T.shape, x.T.strides
    ((3, 2), (1, 3))
    >>> (x + x).tolist()
    [[0.0, 2.0, 4.0], [6.0, 8.0, 10.0]]
    """

    __slots__ = ("__weakref__", "_layout", "_pointer", "_storage", "_view", "_writable")

    _storage: _Storage
    _view: View
    _writable: bool
    # What is asked first, so that a call like one before needs no more of a tensor: the view's layout, or
    # None where there is more to look at: on other devices and on read-only memory.
    _layout: Layout | None
    _pointer: Any

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = (), **options: Any
    ) -> Any:
        """NumPy's functions with a Tensor among their inputs. Those of the operators ``+``, ``*`` and ``@``,
        which NumPy's arrays come here for, are this library's; others read the values as an array does.
        """
        if any(isinstance(one, Tensor) for one in out):
            return NotImplemented
        name = _OF_UFUNCS.get(ufunc)
        if name is None or method != "__call__" or options:
            arrays = [np.asarray(x) if isinstance(x, Tensor) else x for x in inputs]
            if isinstance(options.get("where"), Tensor):
                options["where"] = np.asarray(options["where"])
            return getattr(ufunc, method)(*arrays, **({"out": out} if out else {}), **options)
        if not all(map(_is_operand, inputs)):
            return NotImplemented
        return getattr(operators, f"{name}_")(*out, *inputs) if out else getattr(operators, name)(*inputs)

    def __init__(self) -> None:
        raise errors.OperandError(
            "Tensor() makes nothing: use Tensor.empty, zeros, ones, arange, randn, from_numpy or from_blob"
        )

    @staticmethod
    def _make(storage: _Storage, layout: Layout, address: int, writable: bool) -> Tensor:
        return Tensor._on(storage, interned(*layout), as_pointer(address), writable)

    @staticmethod
    def _on(storage: _Storage, layout: Layout, pointer: Any, writable: bool) -> Tensor:
        """Of an interned layout."""
        self: Tensor = _new(Tensor)
        device = storage.device
        self._storage = storage
        self._pointer = pointer
        self._view = (device, layout, pointer)
        self._writable = writable
        self._layout = layout if writable and device is CPU else None
        return self

    # ---- making ------------------------------------------------------------------------------------------

    @staticmethod
    def empty(shape: int | Iterable[int], dtype: Any = "F32", device: DeviceLike | None = None) -> Tensor:
        """Return a row-major tensor with undefined contents, by default on the thread's current device."""
        return allocate(as_dtype(dtype, "empty"), as_shape("empty", shape), as_device(device))

    @staticmethod
    def zeros(shape: int | Iterable[int], dtype: Any = "F32", device: DeviceLike | None = None) -> Tensor:
        """Return a row-major tensor filled with zero bits."""
        out = allocate(as_dtype(dtype, "zeros"), as_shape("zeros", shape), as_device(device), "zeros")
        stream = get_stream(out.device)
        with device_scope(out.device):
            check(lib.infinirtMemsetAsync(out._view[2], 0, out.nbytes, stream.pointer))
        return out

    @staticmethod
    def ones(shape: int | Iterable[int], dtype: Any = "F32", device: DeviceLike | None = None) -> Tensor:
        """Return a row-major tensor filled with ones. BF16 needs the extra ``[bf16]``."""
        parsed = as_dtype(dtype, "ones")
        sizes = as_shape("ones", shape)
        values = _made("ones", lambda: np.ones(count(sizes), parsed.numpy))
        return _upload("ones", sizes, parsed, as_device(device), values)

    @staticmethod
    def arange(
        start: float,
        stop: float | None = None,
        step: float = 1,
        *,
        dtype: Any = None,
        device: DeviceLike | None = None,
    ) -> Tensor:
        """Return ``start, start + step, ...`` below `stop` (one argument: from 0 to it), as I64, or F32 if
        one is a float. ParamError for numbers that `dtype` has no room for.
        """
        if stop is None:
            start, stop = 0, start
        for name, value in (("start", start), ("stop", stop), ("step", step)):
            _need_finite("arange", name, value)
        if step == 0:
            raise errors.ParamError("arange: step is 0")
        if dtype is None:
            dtype = "I64" if all(isinstance(value, Integral) for value in (start, stop, step)) else "F32"
        parsed = as_dtype(dtype, "arange")
        numpy = parsed.numpy
        given = _made("arange", lambda: np.arange(start, stop, step))
        for value in given[:1].tolist() + given[-1:].tolist():  # the others lie between these
            _need_room("arange", value, parsed)
        values = _made("arange", lambda: given.astype(numpy))
        return _upload("arange", values.shape, parsed, as_device(device), values)

    @staticmethod
    def randn(
        shape: int | Iterable[int],
        dtype: Any = "F32",
        device: DeviceLike | None = None,
        *,
        seed: int | None = None,
    ) -> Tensor:
        """Return normally distributed numbers of mean 0 and variance 1 (floating types); the same seed, the
        same numbers.
        """
        parsed = as_dtype(dtype, "randn")
        if not parsed.is_float:
            raise errors.DTypeError(f"randn: dtype is {parsed}, needs F16, BF16, F32 or F64")
        sizes = as_shape("randn", shape)
        numpy = parsed.numpy
        try:
            generator = np.random.default_rng(seed)
        except (TypeError, ValueError):
            raise errors.ParamError(
                f"randn: seed is {shown(seed)}, needs an int of at least 0, or None"
            ) from None
        values = _made("randn", lambda: generator.standard_normal(count(sizes)).astype(numpy))
        return _upload("randn", sizes, parsed, as_device(device), values)

    @staticmethod
    def from_numpy(array: np.ndarray[Any, Any]) -> Tensor:
        """Return a CPU tensor on the array's own memory: a change of one is seen in the other.

        The tensor of a read-only array is read-only. DTypeError for types this library does not know,
        StrideError for strides that are no multiple of the item size, ParamError for unaligned memory.
        """
        if not is_array_type(type(array)):
            raise errors.OperandError(f"from_numpy: array is a {type(array).__name__}, needs a NumPy array")
        return of_array("from_numpy", "array", array)

    @staticmethod
    def from_dlpack(source: Any) -> Tensor:
        """Return a tensor on the memory of any object with ``__dlpack__`` and ``__dlpack_device__``: no copy.

        Ranks 0 to 16, any strides, every element type that DLPack and this library have in common. The
        tensor is read-only if the source says that it is, and keeps the memory alive. DTypeError,
        DeviceError and ParamError say what cannot be taken.
        """
        if not hasattr(source, "__dlpack__") or not hasattr(source, "__dlpack_device__"):
            raise errors.OperandError(
                f"from_dlpack: source is a {type(source).__name__}, needs an object with __dlpack__ and "
                "__dlpack_device__"
            )
        try:
            return tensor_of(source)
        except errors.InfiniopError as error:
            raise type(error)(f"from_dlpack: source {error}", status=error.status) from error.__cause__

    @staticmethod
    def from_blob(
        pointer: int,
        shape: int | Iterable[int],
        dtype: Any = "F32",
        *,
        strides: Iterable[int] | None = None,
        device: DeviceLike = CPU,
        owner: object = None,
    ) -> Tensor:
        """Return a tensor on memory of somebody else.

        `pointer` is the address of the element with index (0, ..., 0); `strides` count elements (None:
        row-major). `owner` is kept alive as long as the tensor; without one, the caller sees to it that the
        memory stays.
        """
        parsed = as_dtype(dtype, "from_blob")
        sizes = as_shape("from_blob", shape)
        need_steps("from_blob", sizes, parsed.itemsize)
        steps = (
            row_major(sizes, parsed.itemsize)
            if strides is None
            else _byte_strides("from_blob", strides, sizes, parsed)
        )
        layout = (parsed, sizes, steps)
        low, high = extent(layout)
        try:
            address = as_index(pointer)
        except TypeError:
            raise errors.OperandError(f"from_blob: pointer is {shown(pointer)}, needs an int") from None
        if address == 0 and low != high:
            raise errors.NullPointerError(f"from_blob: pointer is 0, but shape {sizes} has elements")
        if not 0 <= address + low <= address + high < 2**64:
            raise errors.ParamError(
                f"from_blob: pointer {shown(address)} with shape {sizes} leaves the address space"
            )
        return Tensor._make(
            _Storage(as_device(device), address + low, high - low, owner), layout, address, True
        )

    # ---- what it is --------------------------------------------------------------------------------------

    @property
    def device(self) -> Device:
        """Where the memory is."""
        return self._view[0]

    @property
    def dtype(self) -> DType:
        """The element type."""
        return self._view[1][0]

    @property
    def shape(self) -> Shape:
        """Sizes, in elements."""
        return self._view[1][1]

    @property
    def strides(self) -> Shape:
        """Strides, in elements; may be zero or negative."""
        itemsize = self.itemsize
        return tuple(stride // itemsize for stride in self._view[1][2])

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self._view[1][1])

    @property
    def size(self) -> int:
        """Number of elements."""
        return count(self._view[1][1])

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self._view[1][0].itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements, gaps not counted."""
        return self.size * self.itemsize

    @property
    def data_ptr(self) -> int:
        """Address of the element with index (0, ..., 0)."""
        return address_of(self._view[2])

    @property
    def writable(self) -> bool:
        """False for tensors on read-only NumPy arrays, which no operator writes to."""
        return self._writable

    def is_contiguous(self) -> bool:
        """Do the elements lie one after the other in row-major order?"""
        return is_row_major(self._view[1])

    def __len__(self) -> int:
        if not self.shape:
            raise errors.OperandError("len() of a Tensor without dimensions")
        return self.shape[0]

    # ---- views -------------------------------------------------------------------------------------------

    def _derive(self, shape: Shape, strides: tuple[int, ...], offset: int = 0) -> Tensor:
        """A view of the same storage; strides and offset in bytes, already known to stay inside."""
        return Tensor._make(
            self._storage, (self.dtype, shape, strides), self.data_ptr + offset, self._writable
        )

    @_remembered
    def permute(self, *dims: Any) -> Tensor:
        """Return a view with its dimensions in another order: ``permute(2, 0, 1)`` or ``permute((2, 0,
        1))``.
        """
        order = [self._dim("permute", dim) for dim in _flat(dims)]
        if sorted(order) != list(range(self.ndim)):
            raise errors.ShapeError(
                f"permute: dims are {tuple(order)}; needs each of the {self.ndim} dimensions once"
            )
        _, shape, strides = self._view[1]
        return self._derive(tuple(shape[d] for d in order), tuple(strides[d] for d in order))

    def transpose(self, dim0: int, dim1: int) -> Tensor:
        """Return a view with two dimensions swapped."""
        order = list(range(self.ndim))
        dim0, dim1 = self._dim("transpose", dim0), self._dim("transpose", dim1)
        order[dim0], order[dim1] = dim1, dim0
        return self.permute(*order)

    @property
    @_remembered
    def T(self) -> Tensor:
        """A view with the dimensions in reverse order."""
        return self.permute(*reversed(range(self.ndim)))

    @_remembered
    def view(self, *shape: Any) -> Tensor:
        """Return a view with another shape of the same size; one size may be -1. StrideError if that needs
        a copy.
        """
        sizes = self._reshaped("view", shape)
        strides = _view_strides(self._view[1], sizes)
        if strides is None:
            raise errors.StrideError(
                f"view: shape {self.shape} with strides {self.strides} cannot be seen as {sizes} without "
                "a copy; "
                "reshape copies"
            )
        return self._derive(sizes, strides)

    @_remembered
    def reshape(self, *shape: Any) -> Tensor:
        """Return the same elements, in row-major order, with another shape: a view where possible, else a
        copy.
        """
        sizes = self._reshaped("reshape", shape)
        strides = _view_strides(self._view[1], sizes)
        if strides is None:
            return self.contiguous().reshape(sizes)
        return self._derive(sizes, strides)

    def narrow(self, dim: int, start: int, length: int) -> Tensor:
        """Return a view of the `length` elements from `start` on in one dimension."""
        dim = self._dim("narrow", dim)
        size = self.shape[dim]
        start, length = _as_int("narrow", "start", start), _as_int("narrow", "length", length)
        if not (start >= 0 and length >= 0 and start + length <= size):
            raise errors.TensorIndexError(
                f"narrow: elements {shown(start)} to {shown(start + length)} of dimension {dim}, which has "
                f"{size} (shape {self.shape})"
            )
        return self[(slice(None),) * dim + (slice(start, start + length),)]

    def squeeze(self, dim: int | None = None) -> Tensor:
        """Return a view without the dimensions of size 1, or without one of them."""
        if dim is not None:
            dim = self._dim("squeeze", dim)
            if self.shape[dim] != 1:
                raise errors.ShapeError(
                    f"squeeze: dimension {dim} of shape {self.shape} has size {self.shape[dim]}, needs 1"
                )
        _, shape, strides = self._view[1]
        keep = [d for d in range(self.ndim) if (shape[d] != 1 if dim is None else d != dim)]
        return self._derive(tuple(shape[d] for d in keep), tuple(strides[d] for d in keep))

    def unsqueeze(self, dim: int) -> Tensor:
        """Return a view with a new dimension of size 1 before dimension `dim`."""
        ndim = self.ndim + 1
        dim = _as_int("unsqueeze", "dim", dim)
        if not -ndim <= dim < ndim:
            raise errors.TensorIndexError(
                f"unsqueeze: dim is {shown(dim)}, needs {-ndim} to {ndim - 1} (shape {self.shape})"
            )
        return self[(slice(None),) * (dim % ndim) + (None,)]

    def as_strided(self, shape: int | Iterable[int], strides: Iterable[int], offset: int = 0) -> Tensor:
        """Return a view with any shape and strides, in elements, that stays inside the storage; else
        StrideError.

        `offset` counts elements from this tensor's element (0, ..., 0), and may be negative.
        """
        sizes = as_shape("as_strided", shape)
        need_steps("as_strided", sizes, self.itemsize)
        steps = _byte_strides("as_strided", strides, sizes, self.dtype)
        shift = _as_int("as_strided", "offset", offset) * self.itemsize
        low, high = extent((self.dtype, sizes, steps))
        begin = self.data_ptr + shift - self._storage.address
        if low != high and not (begin + low >= 0 and begin + high <= self._storage.nbytes):
            raise errors.StrideError(
                f"as_strided: shape {sizes} with strides {tuple(s // self.itemsize for s in steps)} and "
                f"offset {shown(offset)} "
                f"uses bytes {shown(begin + low)} to {shown(begin + high)} of a storage of "
                f"{self._storage.nbytes}"
            )
        return self._derive(sizes, steps, shift if low != high else 0)

    def __getitem__(self, index: Index) -> Tensor:
        """Return a view: integers, slices of any step, ``...`` and ``None``. Index arrays and masks are not
        taken.
        """
        items = index if isinstance(index, tuple) else (index,)
        given = sum(item is not None and item is not Ellipsis for item in items)
        dots = sum(item is Ellipsis for item in items)
        if given > self.ndim or dots > 1:
            raise errors.TensorIndexError(f"index {shown(index)} has too many parts for shape {self.shape}")
        _, shape, strides = self._view[1]
        sizes: list[int] = []
        steps: list[int] = []
        offset = dim = 0
        for item in items if dots else (*items, Ellipsis):
            if item is None:
                sizes.append(1)
                steps.append(0)
            elif item is Ellipsis:
                skip = self.ndim - given
                sizes.extend(shape[dim : dim + skip])
                steps.extend(strides[dim : dim + skip])
                dim += skip
            elif isinstance(item, slice):
                try:
                    start, stop, step = item.indices(shape[dim])
                except (TypeError, ValueError) as error:
                    raise errors.OperandError(f"index {shown(index)}: {error}") from None
                length = len(range(start, stop, step))
                offset += start * strides[dim] if length else 0
                sizes.append(length)
                steps.append(strides[dim] * step if length > 1 else strides[dim])
                dim += 1
            else:
                offset += self._at(dim, item) * strides[dim]
                dim += 1
        return self._derive(tuple(sizes), tuple(steps), offset if 0 not in sizes else 0)

    def _at(self, dim: int, item: object) -> int:
        if isinstance(item, (bool, np.bool_)) or not hasattr(item, "__index__"):
            raise errors.OperandError(
                f"index is {shown(item)} ({type(item).__name__}); "
                "a Tensor takes integers, slices, ... and None"
            )
        size = self.shape[dim]
        try:
            position = as_index(item)
        except TypeError as error:
            raise errors.OperandError(f"index is {shown(item)}: {error}") from None
        if not -size <= position < size:
            raise errors.TensorIndexError(
                f"index {shown(position)} is out of range for dimension {dim} of shape {self.shape}"
            )
        return position % size

    def __setitem__(self, index: Index, value: Tensor | np.ndarray[Any, Any]) -> None:
        self[index].copy_(value)

    def __iter__(self) -> Iterator[Tensor]:
        if not self.shape:
            raise errors.OperandError("a Tensor without dimensions cannot be iterated over")
        return (self[i] for i in range(self.shape[0]))

    def _dim(self, op: str, dim: int) -> int:
        value = _as_int(op, "dim", dim)
        if not -self.ndim <= value < self.ndim:
            raise errors.TensorIndexError(
                f"{op}: dim is {shown(value)}, but shape {self.shape} has {self.ndim} dimensions"
            )
        return value % self.ndim

    def _reshaped(self, op: str, shape: tuple[Any, ...]) -> Shape:
        sizes = [_as_int(op, "size", size) for size in _flat(shape)]
        if sizes.count(-1) == 1:
            rest = count(tuple(size for size in sizes if size != -1))
            if rest > 0 and self.size % rest == 0:
                sizes[sizes.index(-1)] = self.size // rest
        if min(sizes, default=0) < 0 or count(tuple(sizes)) != self.size:
            raise errors.ShapeError(
                f"{op}: {self.size} elements of shape {self.shape} do not make shape {shown(tuple(sizes))}"
            )
        out = as_shape(op, sizes)
        need_steps(op, out, self.itemsize)
        return out

    # ---- copies ------------------------------------------------------------------------------------------

    def contiguous(self) -> Tensor:
        """Return this tensor if it is row-major, else a row-major copy."""
        if self.is_contiguous():
            return self
        out = allocate(self.dtype, self.shape, self.device, "contiguous")
        operators.rearrange_(out, self)
        return out

    def to(self, device: DeviceLike) -> Tensor:
        """Return this tensor if it is on `device`, else a row-major copy there. Waits until the copy is
        done, which comes after the work that is queued on this thread's streams of the two devices. Between
        two devices it goes through memory of the host.

        >>> Tensor.ones(3).to("cpu").device
        Device('CPU:0')
        """
        target = as_device(device)
        if target is self.device:
            return self
        refuse_while_recording("to")
        source = self.contiguous()
        out = allocate(self.dtype, self.shape, target, "to")
        _transfer(out, source)
        return out

    def copy_(self, source: Tensor | np.ndarray[Any, Any]) -> Tensor:
        """Copy the elements of a tensor or array of the same shape and dtype, on any device, to this one;
        returns it.

        Source and destination must not overlap, except that copying a tensor to itself does nothing.
        """
        given, source = source, operators.as_tensor("copy_", "source", source)
        if source.shape != self.shape:
            raise errors.ShapeError(
                f"copy_: source is {source.shape}, destination is {self.shape}; nothing is broadcast"
            )
        if source.dtype is not self.dtype:
            raise errors.DTypeError(
                f"copy_: source is {source.dtype}, destination is {self.dtype}; nothing is converted"
            )
        if not self._writable:
            raise errors.ParamError(f"copy_: destination of shape {self.shape} is read-only")
        same_place = source._view[::2] == self._view[::2]
        if same_place and same_elements(self._view[1], source._view[1]):
            return self
        if source.device is self.device:
            operators.copy_(self, source if source.device is CPU else given)
            return self
        refuse_while_recording("copy_")
        with operators.stream_order("copy_", source.device, () if source.device is CPU else (given,)):
            if self.is_contiguous():
                _transfer(self, source.contiguous())
            else:
                operators.copy_(self, source.to(self.device))
        return self

    def numpy(self) -> np.ndarray[Any, Any]:
        """Return a NumPy array on the same memory, also while a graph is being recorded, when what has been
        computed there is yet to come. DeviceError unless the tensor is on the CPU; DTypeError for types NumPy
        has not.
        """
        if self.device is not CPU:
            raise errors.DeviceError(f"numpy: the tensor is on {self.device}; use .to('cpu') first")
        return _as_array(self, self.dtype.numpy)

    def __dlpack_device__(self) -> tuple[int, int]:
        return _dlpack.device_code(self.device)

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A DLPack capsule of this memory, or of a row-major copy if `copy` is True. For ``from_dlpack`` of
        other libraries.

        On a device, work that the consumer queues on its `stream` afterwards waits for what is queued on
        this thread's: a number of a stream, None or 1 for the legacy default one, 2 for the default one of
        each thread, -1 to wait for nothing. On the CPU it is None.

        ParamError for a read-only tensor where the consumer knows no such thing (`max_version` below 1.0),
        StrideError for negative strides, at which some consumers end the process: take ``.contiguous()``.
        """
        refuse_while_recording("__dlpack__")
        here = self.__dlpack_device__()
        if dl_device is not None and not (isinstance(dl_device, tuple) and dl_device == here):
            raise errors.DeviceError(
                f"__dlpack__: dl_device is {shown(dl_device)}, but the tensor is on {self.device}; "
                "use .to() first"
            )
        if self.device is CPU and stream is not None:
            raise errors.ParamError(
                f"__dlpack__: stream is {shown(stream)}, but the CPU has none: needs None"
            )
        consumer = None if self.device is CPU else _consumer(self.device, stream)
        tensor = self
        if copy:
            tensor = allocate(self.dtype, self.shape, self.device, "__dlpack__")
            operators.rearrange_(tensor, self)
        strides = tensor._view[1][2]
        if min(strides, default=0) < 0:
            if tensor.size and any(stride < 0 and size > 1 for size, stride in zip(tensor.shape, strides)):
                raise errors.StrideError(
                    f"__dlpack__: shape {self.shape} has negative strides {self.strides}, at which some "
                    "consumers end the process; use .contiguous() first"
                )
            # They lead to no element, but who knows what a consumer does with them.
            tensor = tensor._derive(tensor.shape, tuple(map(abs, strides)))
        typestr = "<c16" if self.itemsize == 16 else f"<u{self.itemsize}"
        try:
            memory = np.asarray(_HostView(tensor, typestr))
        except ValueError as error:
            raise errors.ShapeError(f"__dlpack__: shape {self.shape}: {error}") from None
        if consumer is not None and consumer.handle != (own := get_stream(self.device)).handle:
            consumer.wait_stream(own)
        return _dlpack.export(memory, self.dtype, self.device, max_version)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The tensor for libraries that speak version 3 of Numba's protocol. AttributeError, so that
        ``hasattr`` is False, unless the tensor is on an NVIDIA device and its element type has a NumPy dtype;
        BF16 has none that others know.

        ``stream`` is that of this thread: whoever works on the memory on another one waits for it first.
        GraphError while recording.
        """
        numpy = self.dtype._numpy
        if self.device.type is not DeviceType.NVIDIA:
            raise AttributeError(
                f"__cuda_array_interface__: the tensor is on {self.device}, needs an NVIDIA device"
            )
        if numpy is None or self.dtype is DType.BF16:
            raise AttributeError(f"__cuda_array_interface__: {self.dtype} has no typestr there; use DLPack")
        refuse_while_recording("__cuda_array_interface__")
        return {
            "version": 3,
            "shape": self.shape,
            "typestr": numpy.str,
            "data": (self.data_ptr if self.size else 0, not self._writable),
            "strides": None if self.is_contiguous() else self._view[1][2],
            "stream": get_stream(self.device).handle or LEGACY,
        }

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        refuse_while_recording("reading values")
        array = self.numpy()
        if dtype is not None and np.dtype(dtype) != array.dtype:
            if copy is False:
                raise errors.ParamError(
                    f"a Tensor of {self.dtype} cannot become an array of {np.dtype(dtype)} without a copy"
                )
            return array.astype(dtype)
        return array.copy() if copy else array

    def _values(self) -> np.ndarray[Any, Any]:
        """The elements as a NumPy array for people: BF16 widened to F32, types NumPy has not as raw bytes."""
        refuse_while_recording("reading values")
        host = self.to(CPU)
        if host.dtype is DType.BF16:
            bits = _as_array(host, np.dtype("uint16"))
            return (bits.astype("uint32") << 16).view("float32")
        return _as_array(host, host.dtype._numpy or np.dtype((np.void, host.itemsize)))

    def item(self) -> Any:
        """Return the only element as a Python number."""
        if self.size != 1:
            raise errors.ShapeError(f"item: shape {self.shape} has {self.size} elements, needs one")
        return self._values().item()

    def tolist(self) -> Any:
        """Return the elements as nested lists of Python numbers."""
        return self._values().tolist()

    def __bool__(self) -> bool:
        if self.size != 1:
            raise errors.ParamError(f"the truth value of a Tensor of shape {self.shape} is ambiguous")
        return bool(self._number("bool"))

    def __float__(self) -> float:
        return float(self._number("float"))

    def __int__(self) -> int:
        return int(self._number("int"))

    def _number(self, what: str) -> Any:
        """The only element, of a type that Python has a number for."""
        value = self.item()
        if isinstance(value, bytes):
            raise errors.DTypeError(f"{what}: the element is {self.dtype}, of which Python has no number")
        return value

    def __repr__(self) -> str:
        if thread.recording is not None:
            values = f"<no values while recording>, shape={self.shape}"
            return f"Tensor({values}, dtype={self.dtype}, device={self.device})"
        text = np.array2string(self._values(), separator=", ", prefix="Tensor(")
        shape = "" if self.size else f", shape={self.shape}"
        return f"Tensor({text}{shape}, dtype={self.dtype}, device={self.device})"

    __reduce__ = refuse_pickle

    # ---- operators ---------------------------------------------------------------------------------------

    def __add__(self, other: Any) -> Any:
        return operators.add(self, other) if _is_operand(other) else NotImplemented

    def __radd__(self, other: Any) -> Any:
        return operators.add(other, self) if _is_operand(other) else NotImplemented

    def __iadd__(self, other: Any) -> Any:
        return operators.add_(self, self, other) if _is_operand(other) else NotImplemented

    def __mul__(self, other: Any) -> Any:
        return operators.mul(self, other) if _is_operand(other) else NotImplemented

    def __rmul__(self, other: Any) -> Any:
        return operators.mul(other, self) if _is_operand(other) else NotImplemented

    def __imul__(self, other: Any) -> Any:
        return operators.mul_(self, self, other) if _is_operand(other) else NotImplemented

    def __matmul__(self, other: Any) -> Any:
        return operators.gemm(self, other) if _is_operand(other) else NotImplemented

    def __rmatmul__(self, other: Any) -> Any:
        return operators.gemm(other, self) if _is_operand(other) else NotImplemented


def _is_operand(other: object) -> bool:
    return isinstance(other, (Tensor, np.ndarray)) or operators.knows(other)


_OF_UFUNCS = {np.add: "add", np.multiply: "mul", np.matmul: "gemm"}

empty = Tensor.empty
zeros = Tensor.zeros
ones = Tensor.ones
arange = Tensor.arange
randn = Tensor.randn
from_numpy = Tensor.from_numpy
from_dlpack = Tensor.from_dlpack
from_blob = Tensor.from_blob


def _consumer(device: Device, stream: object) -> Stream | None:
    """The stream that a consumer of DLPack names; None if nothing is to wait."""
    if stream is None:
        return stream_at(device, LEGACY)
    if not isinstance(stream, int) or isinstance(stream, bool):
        raise errors.OperandError(f"__dlpack__: stream is {shown(stream)}, needs an int, or None")
    if stream == -1:
        return None
    if not 0 < stream < 2**64:
        raise errors.ParamError(
            f"__dlpack__: stream is {shown(stream)}, which DLPack does not allow: needs 1 or 2 for a default "
            "one, the number of a stream, or -1 for none"
        )
    return stream_at(device, stream)


def _device_numbers(source: Any) -> tuple[int, int]:
    kind, index = source.__dlpack_device__()
    return as_index(kind), as_index(index)


def tensor_of(source: Any) -> Tensor:
    """A tensor on the memory of an object with ``__dlpack__``, ready for this thread's stream. Messages begin
    with a verb.
    """
    package, is_array = package_of(type(source)), isinstance(source, np.ndarray)
    if is_array and not is_array_type(type(source)):
        raise errors.OperandError(f"is a {type(source).__name__}, whose memory does not say everything")
    if package == "torch" and source.is_neg():  # its capsule does not say so
        raise errors.ParamError("is a torch tensor whose negation is still to be done; use x.resolve_neg()")
    device = _dlpack.device_of(*_dlpack.asked(source, "__dlpack_device__", _device_numbers, source))
    stream = None if device is CPU else get_stream(device).handle or LEGACY
    capsule = _dlpack.asked(source, "__dlpack__", _dlpack.capsule_of, source, device, stream)
    found = _dlpack.read(capsule)
    layout = (found.dtype, found.shape, found.strides)
    low, high = need_memory(layout, found.address)
    owner = (capsule, pinned(source)) if is_array else capsule
    storage = _Storage(found.device, found.address + low, high - low, owner)
    writable = found.writable and package not in _IMMUTABLE
    return Tensor._make(storage, layout, found.address, writable)


def is_array_type(kind: type) -> bool:
    """Is `kind` an array type whose memory says everything? A masked array's does not."""
    return issubclass(kind, np.ndarray) and not any(base.__name__ == "MaskedArray" for base in kind.__mro__)


def pinned(array: np.ndarray[Any, Any]) -> object:
    """What holds an array's memory in its place: NumPy resizes no array that has a weak reference, even where
    it is told not to count references.
    """
    owner: Any = array
    base: Any = array.base
    while isinstance(base, (np.ndarray, memoryview)):
        owner, base = base, base.base if isinstance(base, np.ndarray) else base.obj
    return ref(owner)


def borrowed(device: Device, layout: Layout, pointer: Any, owner: object, writable: bool) -> Tensor:
    """A tensor on the memory behind a pointer, which `owner` keeps."""
    low, high = extent(layout)
    address = address_of(pointer)
    return Tensor._make(_Storage(device, address + low, high - low, owner), layout, address, writable)


def of_array(op: str, name: str, array: np.ndarray[Any, Any]) -> Tensor:
    """A tensor on an array's own memory."""
    dtype = from_numpy_dtype(array.dtype, f"{op}: dtype of {name}")
    layout = (dtype, array.shape, array.strides)
    element_strides(op, name, layout)
    if not array.flags.aligned:
        raise errors.ParamError(
            f"{op}: {name} is not aligned to its element type; copy it to an array of its own"
        )
    address = int(array.__array_interface__["data"][0])
    low, high = extent(layout)
    storage = _Storage(CPU, address + low, high - low, (array, pinned(array)))
    return Tensor._make(storage, layout, address, array.flags.writeable)


#: Packages whose arrays never change, although their capsules do not say so, as those of before DLPack 1.0
#: cannot.
_IMMUTABLE = frozenset(("jax", "jaxlib", "pyarrow", "tensorflow"))


def package_of(kind: type) -> str:
    """The top-level package that a class is from."""
    return kind.__module__.partition(".")[0]


def refuse_while_recording(what: str) -> None:
    """Refuse what a recording cannot hold: it would see values that have not been computed yet."""
    if thread.recording is not None:
        raise errors.GraphError(
            f"{what}: not while a graph is being recorded, because nothing has been computed yet"
        )


def allocate(dtype: DType, shape: Shape, device: Device, what: str = "empty") -> Tensor:
    """A row-major tensor with undefined contents, for `what`."""
    if 0 in shape:
        need_steps(what, shape, dtype.itemsize)
    return allocate_as(interned(dtype, shape, row_major(shape, dtype.itemsize)), device, what)


def allocate_as(layout: Layout, device: Device, what: str) -> Tensor:
    """The same of an interned layout, which is row-major."""
    nbytes = _size(layout)
    place = _allocator(device)(nbytes) if nbytes <= MAX_BYTES else None
    if place is None:
        place = _allocate_again(device, nbytes, what)
    storage = _Storage(device, None, nbytes, place)
    if thread.recording is not None:
        thread.recording._allocated(storage, device, storage.address, nbytes)
    return Tensor._on(storage, layout, place[0], True)


@lru_cache(maxsize=4096)
def _size(layout: Layout) -> int:
    """In bytes."""
    return count(layout[1]) * layout[0].itemsize


def _upload(what: str, shape: Shape, dtype: DType, device: Device, values: np.ndarray[Any, Any]) -> Tensor:
    """A row-major tensor with the values of an array of the same element type."""
    out = allocate(dtype, shape, device, what)
    _transfer(out, Tensor.from_numpy(values))
    return out


def _made(what: str, values: Callable[[], np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """An array that NumPy makes, if there is room for it."""
    try:
        return values()
    except (MemoryError, ValueError, OverflowError) as error:  # the others: more bytes than addresses
        raise errors.OutOfMemoryError(f"{what}: {error}") from None


def _need_room(op: str, value: float, dtype: DType) -> None:
    """Refuse a number that is too large for a type."""
    numpy = dtype.numpy
    if numpy.kind in "iu":
        limits = np.iinfo(numpy)
        fits = limits.min <= int(value) <= limits.max
    else:  # BF16's kind is "V"
        with np.errstate(over="ignore"):
            fits = numpy.kind == "b" or bool(np.isfinite(np.asarray(value).astype(numpy)))
    if not fits:
        raise errors.ParamError(f"{op}: {shown(value)} is too large for {dtype}")


def _need_finite(op: str, name: str, value: object) -> None:
    """Refuse what is no finite number that NumPy can count with."""
    if not isinstance(value, Real):
        raise errors.OperandError(
            f"{op}: {name} is {shown(value)} ({type(value).__name__}), needs a real number"
        )
    if isinstance(value, Integral):
        if not -(2**63) <= int(value) < 2**63:
            raise errors.ParamError(f"{op}: {name} is {shown(value)}, needs an int of 64 bits")
        return
    try:
        finite = isfinite(value)
    except OverflowError:
        finite = False
    if not finite:
        raise errors.ParamError(f"{op}: {name} is {value}, needs a finite number")


def _transfer(destination: Tensor, source: Tensor) -> None:
    """Copy the bytes of one row-major tensor to another, on any two devices; waits."""
    nbytes = source.nbytes
    if not nbytes:
        return
    here, there = source.device, destination.device
    to, start = destination._view[2], source._view[2]
    if here is CPU:
        _copy(there, to, start, nbytes, lib.INFINIRT_MEMCPY_H2H if there is CPU else lib.INFINIRT_MEMCPY_H2D)
    elif there is CPU:
        _copy(here, to, start, nbytes, lib.INFINIRT_MEMCPY_D2H)
    else:
        # Not every pair of devices reaches each other's memory; the host reaches both.
        staging = ffi.new("char[]", nbytes)
        _copy(here, staging, start, nbytes, lib.INFINIRT_MEMCPY_D2H)
        _copy(there, to, staging, nbytes, lib.INFINIRT_MEMCPY_H2D)


def _copy(device: Device, to: Any, start: Any, nbytes: int, kind: int) -> None:
    """Copy after what is queued on the thread's stream of a device, and wait. A copy without a stream comes
    after the work of the default one alone.
    """
    stream = get_stream(device)
    with device_scope(device):
        try:
            check(lib.infinirtMemcpyAsync(to, start, nbytes, kind, stream.pointer))
        finally:  # a signal's handler may raise, and let go of the memory
            check(lib.infinirtStreamSynchronize(stream.pointer))


def _as_array(tensor: Tensor, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    try:
        if not tensor.size:
            array = np.empty(tensor.shape, dtype)
            array.flags.writeable = tensor._writable
            return array
        raw: np.ndarray[Any, Any] = np.asarray(_HostView(tensor, f"|V{dtype.itemsize}"))
    except ValueError:
        raise errors.ShapeError(
            f"numpy: shape has {tensor.ndim} dimensions, more than NumPy has: {tensor.shape}"
        ) from None
    # A dtype of the same size changes nothing but the meaning of the bytes, whatever the strides.
    return raw.view(dtype)


def _as_int(op: str, name: str, value: Any) -> int:
    try:
        return as_index(value)
    except TypeError:
        raise errors.OperandError(f"{op}: {name} is {shown(value)}, needs an int") from None


def _flat(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Accept both f(1, 2) and f((1, 2))."""
    if len(arguments) == 1 and isinstance(arguments[0], (tuple, list)):
        return tuple(arguments[0])
    return arguments


def _byte_strides(op: str, strides: Iterable[int], shape: Shape, dtype: DType) -> tuple[int, ...]:
    if not isinstance(strides, Iterable):
        raise errors.OperandError(f"{op}: strides is {shown(strides)}, needs ints")
    steps = tuple(_as_int(op, "stride", stride) * dtype.itemsize for stride in strides)
    if len(steps) != len(shape):
        raise errors.StrideError(f"{op}: {len(steps)} strides for shape {shape}, needs {len(shape)}")
    for step in steps:
        if abs(step) > MAX_BYTES:
            raise errors.StrideError(f"{op}: strides have one of {shown(step)} bytes, needs less than 2**63")
    return steps


def _view_strides(layout: Layout, sizes: Shape) -> tuple[int, ...] | None:
    """Byte strides under which `layout` shows the shape `sizes` of the same number of elements; None if
    there are none.
    """
    dtype, shape, strides = layout
    if 0 in shape:
        return row_major(sizes, dtype.itemsize)
    # Runs of dimensions that one stride walks through, innermost first: [elements left, stride].
    runs: list[list[int]] = []
    for size, stride in zip(reversed(shape), reversed(strides)):
        if size == 1:
            continue
        if runs and stride == runs[-1][0] * runs[-1][1]:
            runs[-1][0] *= size
        else:
            runs.append([size, stride])
    out: list[int] = []
    step = dtype.itemsize
    runs.reverse()
    for size in reversed(sizes):
        if size == 1:
            out.append(step)
            continue
        if not runs or runs[-1][0] % size:
            return None
        run = runs[-1]
        step = run[1]
        out.append(step)
        run[0] //= size
        run[1] *= size
        step = run[1]
        if run[0] == 1:
            runs.pop()
    return tuple(reversed(out))
