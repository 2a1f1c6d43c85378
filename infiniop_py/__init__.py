"""Operators on strided arrays: gemm, add, mul, add_rms_norm and rearrange, and gemm followed by add or mul.

They take NumPy arrays and :class:`Tensor` and answer in kind; what is wrong with a call is said before
anything is written. See the functions for shapes, dtypes and aliasing, and ``errors`` for the exceptions.

A native call is not interrupted, and a whole graph is one: handlers of signals run, and KeyboardInterrupt
comes, right after it.

>>> import numpy as np
>>> import infiniop_py as ip
>>> ip.gemm(np.ones((2, 3), "f4"), np.ones((3, 2), "f4"))
array([[3., 3.],
       [3., 3.]], dtype=float32)
"""

import sys

# First, in words that an older Python can read: pip refuses to install there, but a clone can be imported.
if sys.version_info < (3, 10):  # noqa: UP036
    raise ImportError(
        "infiniop_py needs Python 3.10 or newer; this is Python " + ".".join(map(str, sys.version_info[:3]))
    )

import sys as _sys

from . import errors

try:
    from ._native import version as __version__
except errors.LibraryError as _error:
    from ._facts import end_command as _end_command

    _end_command(_error)  # `python -m infiniop_py info` has more to say than a traceback
    raise
from ._paths import get_include, get_library_dir
from .cache import CacheInfo, LRUCache, OpCache
from .cpu import cpu_isa, get_num_threads, num_threads, set_num_threads
from .device import (
    Device,
    DeviceType,
    Event,
    Stream,
    device_count,
    get_device,
    get_stream,
    set_device,
    synchronize,
)
from .dispatcher import OpDispatcher, OpImpl
from .dtypes import DType
from .errors import (
    DeviceError,
    DTypeError,
    GraphError,
    InfiniopError,
    InternalError,
    LibraryError,
    NullPointerError,
    OperandError,
    OutOfMemoryError,
    ParamError,
    ShapeError,
    Status,
    StrideError,
    TensorIndexError,
    UnsupportedError,
    WorkspaceError,
)
from .graph import (
    Graph,
    MemoryReport,
    is_graph_recording,
    start_graph_recording,
    stop_graph_recording,
)
from .graph_operator import GraphOperator
from .ops import (
    Add,
    AddRMSNorm,
    Gemm,
    GemmAdd,
    GemmMul,
    Mul,
    Rearrange,
    add,
    add_,
    add_rms_norm,
    add_rms_norm_,
    gemm,
    gemm_,
    gemm_add,
    gemm_mul,
    mul,
    mul_,
    rearrange,
    rearrange_,
)
from .tensor import Tensor, arange, empty, from_blob, from_dlpack, from_numpy, ones, randn, zeros

if hasattr(_sys.modules.get("threadpoolctl"), "register"):  # 3.2 or newer, and the program uses it
    from .interop import threadpoolctl as _threadpoolctl  # noqa: F401

__all__ = [
    "Add",
    "AddRMSNorm",
    "CacheInfo",
    "DType",
    "DTypeError",
    "Device",
    "DeviceError",
    "DeviceType",
    "Event",
    "Gemm",
    "GemmAdd",
    "GemmMul",
    "Graph",
    "GraphError",
    "GraphOperator",
    "InfiniopError",
    "InternalError",
    "LRUCache",
    "LibraryError",
    "MemoryReport",
    "Mul",
    "NullPointerError",
    "OpCache",
    "OpDispatcher",
    "OpImpl",
    "OperandError",
    "OutOfMemoryError",
    "ParamError",
    "Rearrange",
    "ShapeError",
    "Status",
    "Stream",
    "StrideError",
    "Tensor",
    "TensorIndexError",
    "UnsupportedError",
    "WorkspaceError",
    "__version__",
    "add",
    "add_",
    "add_rms_norm",
    "add_rms_norm_",
    "arange",
    "cpu_isa",
    "device_count",
    "empty",
    "errors",
    "from_blob",
    "from_dlpack",
    "from_numpy",
    "gemm",
    "gemm_",
    "gemm_add",
    "gemm_mul",
    "get_device",
    "get_include",
    "get_library_dir",
    "get_num_threads",
    "get_stream",
    "is_graph_recording",
    "mul",
    "mul_",
    "num_threads",
    "ones",
    "randn",
    "rearrange",
    "rearrange_",
    "set_device",
    "set_num_threads",
    "start_graph_recording",
    "stop_graph_recording",
    "synchronize",
    "zeros",
]
