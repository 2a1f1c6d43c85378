"""A legal argument list for every exported function, to break one argument of it at a time."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from _headers import Function, Parameter
from _library import CPU, SUCCESS, Library, pointer
from _ops import DTYPES, OPS, Abi, Layout, Memory, Op, signed_sizes, sizes

# What names an object of the libraries, and the kind of object it is. InfiniopDescriptor is any operator's.
OBJECTS = {
    "infiniopHandle_t": "handle",
    "infiniopTensorDescriptor_t": "tensor",
    "infiniopGraph_t": "graph",
    "infinirtStream_t": "stream",
    "infinirtEvent_t": "event",
    "infinirtGraph_t": "device graph",
    "infinirtGraphExec_t": "device graph",
    "const struct InfiniopDescriptor *": "gemm",
    **{f"infiniop{op.c_name}Descriptor_t": op.name for op in OPS.values()},
}

# Parameters of a pointer type that may be NULL, by function or for all ("*").
NULLABLE = {
    ("*", "stream"),
    ("*", "workspace"),  # when the size asked for is 0
    ("infiniopCreateTensorDescriptor", "strides"),
    ("infiniopGetVersion", "abi_version"),  # one of the two; a test of its own
    ("infiniopGetVersion", "version"),
    ("infinirtGetDevice", "device"),  # one of the two; a test of its own
    ("infinirtGetDevice", "device_id"),
    ("infinirtGraphInstantiate", "node"),
    ("infinirtSetLastError", "message"),
}

_UNDO = {
    "infinirtStreamCreate": "infinirtStreamDestroy",
    "infinirtEventCreate": "infinirtEventDestroy",
    "infinirtEventCreateWithFlags": "infinirtEventDestroy",
    "infinirtMalloc": "infinirtFree",
    "infinirtMallocAsync": "infinirtFree",
    "infinirtMallocHost": "infinirtFreeHost",
    "infiniopCreateDescriptor": "infiniopDestroyGemmDescriptor",
}


def releases(function: Function) -> bool:
    """Destroy and free functions take one object and accept NULL."""
    return function.name.startswith("infiniopDestroy") or function.name.endswith(
        ("Destroy", "infinirtFree", "infinirtFreeHost", "infinirtFreeAsync")
    )


def may_be_null(function: Function, parameter: Parameter) -> bool:
    if releases(function):
        return True
    if parameter.type.endswith("_t *"):  # a result
        return (function.name, parameter.name) in NULLABLE
    return ("*", parameter.name) in NULLABLE or (function.name, parameter.name) in NULLABLE


def operator_of(function: Function) -> Op | None:
    """The operator that a function is about; None for the others."""
    for op in OPS.values():
        about = {f"infiniop{op.c_name}", f"infiniopGet{op.c_name}WorkspaceSize"}
        about |= {f"infiniop{verb}{op.c_name}Descriptor" for verb in ("Create", "Destroy")}
        if function.name in about:
            return op
    return None


def numbers(layouts: dict[str, Layout]) -> Any:
    """What infiniopCreateDescriptor takes for operands."""
    flat = []
    for at in layouts.values():
        flat += [DTYPES[at.dtype].number, len(at.shape), *at.shape, *at.byte_strides]
    return (ctypes.c_int64 * len(flat))(*flat)


WORKSPACE = 1 << 20  # bytes; more than any operator asks for at the sizes of OPS


class Scene:
    """One live object of every kind, one destroyed object of every kind, and memory for the operators."""

    def __init__(self, lib: Library) -> None:
        self.lib = lib
        self.abi = Abi(lib)
        self.memory = {op.name: {n: Memory(at, 1.0) for n, at in op.legal.items()} for op in OPS.values()}
        self.tensors = {
            (op.name, n): self.abi.tensor(at) for op in OPS.values() for n, at in op.legal.items()
        }
        self.layouts = numbers(OPS["gemm"].layouts())
        self.live: dict[str, ctypes.c_void_p] = {}
        self.dead: dict[str, ctypes.c_void_p] = {}
        makers = self._makers()
        for kind, (make, _) in makers.items():
            self.live[kind] = make()
            self.dead[kind] = make()
        # Last, so that nothing is made at an address that has just become free.
        for kind, (_, destroy) in makers.items():
            assert destroy(self.dead[kind]) == SUCCESS, lib.message()
        assert lib.infinirtEventRecord(self.live["event"], None) == SUCCESS, lib.message()
        self._workspace = ctypes.create_string_buffer(WORKSPACE)
        self._kept: list[Any] = []

    def _makers(self) -> dict[str, tuple[Callable[[], ctypes.c_void_p], Callable[[ctypes.c_void_p], int]]]:
        lib = self.lib

        def maker(name: str, *arguments: Any) -> Callable[[], ctypes.c_void_p]:
            def make() -> ctypes.c_void_p:
                made = pointer()
                assert lib.functions[name](*arguments, ctypes.byref(made)) == SUCCESS, lib.message()
                return made

            return make

        def operator(op: Op) -> Callable[[], ctypes.c_void_p]:
            return lambda: self.abi.created(op, op.layouts())

        return {
            "handle": (maker("infiniopCreateHandle"), lib.infiniopDestroyHandle),
            "tensor": (lambda: self.abi.tensor(OPS["add"].legal["c"]), lib.infiniopDestroyTensorDescriptor),
            "graph": (maker("infiniopCreateGraph", self.abi.handle), lib.infiniopDestroyGraph),
            "stream": (maker("infinirtStreamCreate"), lib.infinirtStreamDestroy),
            "event": (maker("infinirtEventCreate"), lib.infinirtEventDestroy),
            **{
                op.name: (operator(op), lib.functions[f"infiniopDestroy{op.c_name}Descriptor"])
                for op in OPS.values()
            },
        }

    def close(self) -> None:
        for kind, (_, destroy) in self._makers().items():
            assert destroy(self.live[kind]) == SUCCESS, self.lib.message()
        for tensor in self.tensors.values():
            assert self.lib.infiniopDestroyTensorDescriptor(tensor) == SUCCESS, self.lib.message()
        self.abi.close()

    def _object(self, op: Op | None, parameter: Parameter) -> Any:
        kind = OBJECTS[parameter.type]
        if kind == "tensor" and op and (op.name, parameter.name) in self.tensors:
            return self.tensors[op.name, parameter.name]
        return self.live.get(kind)

    def _pointer(self, op: Op | None, parameter: Parameter) -> Any:
        if op and parameter.name in op.operands:
            return self.memory[op.name][parameter.name].pointer
        if parameter.name in ("x0", "x1", "x2"):
            return self.memory["gemm"][OPS["gemm"].operands[int(parameter.name[1])]].pointer
        if parameter.name == "op":
            return b"gemm"
        if parameter.name == "layouts":
            return self.layouts
        if parameter.name == "operands":
            gemm = self.memory["gemm"]
            return (ctypes.c_void_p * 3)(*(gemm[name].pointer for name in OPS["gemm"].operands))
        if parameter.name == "shape":
            return sizes((2, 3))
        if parameter.name == "strides":
            return signed_sizes((3, 1))
        if parameter.name == "workspace":
            return ctypes.addressof(self._workspace)
        if parameter.name in ("path", "message"):
            return b"/nonexistent/plugin.so"
        # A result, or memory: zeros, so that whoever frees what was not written frees NULL.
        buffer = ctypes.create_string_buffer(512)
        self._kept = [*self._kept[-16:], buffer]
        return ctypes.addressof(buffer)

    def argument(self, function: Function, parameter: Parameter) -> Any:
        """A legal value for one parameter, or NULL for an object that has to be released."""
        scalars: dict[str, Any] = {
            "device": CPU,
            "device_id": 0,
            "ndim": 2,
            "dtype": DTYPES["f32"].number,
            "n_operands": 3,
            "alpha": 1.0,
            "beta": 0.0,
            "epsilon": 1e-5,
            "size": 64,
            "bytes": 4096,
            "log_size": 64,
            "workspace_size": WORKSPACE,
            "n": len(self.layouts) if function.name == "infiniopCreateDescriptor" else 0,
        }
        op = operator_of(function)
        if releases(function) and parameter == function.parameters[0]:
            return None
        if parameter.type in OBJECTS:
            return self._object(op, parameter)
        if "*" in parameter.type:
            return self._pointer(op, parameter)
        return scalars.get(parameter.name, 0)

    def arguments(self, function: Function) -> list[Any]:
        return [self.argument(function, parameter) for parameter in function.parameters]

    def release(
        self, function: Function, arguments: list[Any], call: Callable[..., int] | None = None
    ) -> None:
        """Destroys or frees what a successful call made, by `call` of a function's name and arguments."""
        undo = _UNDO.get(function.name) or function.name.replace("infiniopCreate", "infiniopDestroy")
        if undo == function.name:
            return
        for parameter, argument in zip(function.parameters, arguments, strict=True):
            made = parameter.type.removesuffix(" *") in OBJECTS or parameter.type in (
                "void **",
                "struct InfiniopDescriptor **",
            )
            if made and parameter.type.endswith("*"):
                made_at = ctypes.c_void_p.from_address(argument)
                undone = call(undo, [made_at]) if call else self.lib.functions[undo](made_at)
                assert undone == SUCCESS, self.lib.message()
