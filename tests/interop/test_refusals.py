"""What is no operand: each refusal names the operator and the operand, and nothing is written."""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Callable
from typing import Any

import children
import numpy as np
import pytest
from _producers import Interface, Producer

import infiniop_py as ip

Array = np.ndarray[Any, Any]
SHAPE = (2, 2)

OPERATORS = {
    "add": (ip.add_, 1, 2),
    "mul": (ip.mul_, 1, 2),
    "gemm": (ip.gemm_, 1, 2),
    "add_rms_norm": (lambda y, r, a, b: ip.add_rms_norm_(y, r, a, b, np.ones(2, "f4")), 2, 2),
    "rearrange": (ip.rearrange_, 1, 1),
}
NAMES = {
    "add": "c a b",
    "mul": "c a b",
    "gemm": "c a b",
    "add_rms_norm": "y residual_out a b",
    "rearrange": "y x",
}


def refused(operand: Any, error: type[ip.InfiniopError], message: str, *, as_output: bool = True) -> None:
    """In every place of every operator, and in the functional forms."""
    for name, (call, n_outputs, n_inputs) in OPERATORS.items():
        names = NAMES[name].split()
        for place in range(n_outputs + n_inputs):
            if place < n_outputs and not as_output:
                continue
            operands: list[Any] = [np.full(SHAPE, 7, "f4") for _ in range(n_outputs)]
            operands += [np.ones(SHAPE, "f4") for _ in range(n_inputs)]
            operands[place] = operand
            with pytest.raises(error, match=rf"^{name}: (dtype of )?{names[place]} .*{message}"):
                call(*operands)
            for array in operands[:n_outputs]:
                assert array is operand or (array == 7).all()
    x = np.ones(SHAPE, "f4")
    functions: list[tuple[str, Callable[[], object]]] = [
        ("add: b", lambda: ip.add(x, operand)),
        ("gemm: c", lambda: ip.gemm(x, x, 1.0, 1.0, c=operand)),
        ("add_rms_norm: weight", lambda: ip.add_rms_norm(x, x, operand)),
        ("rearrange: x", lambda: ip.rearrange(operand)),
    ]
    for start, function in functions:
        operator, name = start.split(": ")
        with pytest.raises(error, match=rf"^{operator}: (dtype of )?{name} .*{message}"):
            function()


# ---- NumPy and Python ------------------------------------------------------------------------------------

NO_ARRAYS = [
    None, "abc", b"abcd", [1.0, 2.0], (1.0,), 3.0, 1, True, np.float32(3), np.int64(3), np.bool_(True),
    object(), np, memoryview(b"abcd"), bytearray(4), range(3), {}, np.ma.ones(SHAPE, "f4"), np.dtype("f4"),
    np.ndarray, ip.Tensor, ip.DType.F32,
]  # fmt: skip


@pytest.mark.parametrize("operand", NO_ARRAYS, ids=lambda operand: repr(operand).partition(" at 0x")[0][:20])
def test_no_array_at_all(operand: Any) -> None:
    wanted = f"is an? {type(operand).__name__}, needs a"
    # None is how the functional forms are told of nothing.
    if operand is None:
        with pytest.raises(ip.OperandError, match=r"^add: b is a NoneType"):
            ip.add(np.ones(2), None)
        for call in (ip.add_, ip.mul_, ip.gemm_):
            with pytest.raises(ip.OperandError, match=r"^\w+: c is a NoneType"):
                call(None, np.ones(SHAPE), np.ones(SHAPE))
        return
    refused(operand, ip.OperandError, wanted)


DTYPES = [">f4", ">i2", ">c8", "U1", "S3", "O", "M8[s]", "m8[s]", "V4", [("a", "f4")], np.longdouble]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dtypes_of_numpy(dtype: Any) -> None:
    array = np.zeros(SHAPE, dtype)
    message = (
        "byte order; convert it with" if str(dtype).startswith(">") else "no element type of this library"
    )
    refused(array, ip.DTypeError, message)
    if not array.dtype.hasobject and array.dtype.names is None:
        refused(Interface(array), ip.DTypeError, message)


def test_unaligned_memory() -> None:
    array, x = np.zeros(17, np.uint8)[1:].view("f4").reshape(SHAPE), np.ones(SHAPE, "f4")
    for operand in (array, Interface(array)):
        for call, operands in (
            (ip.add_, (operand, x, x)),
            (ip.gemm, (operand, x)),
            (ip.rearrange, (operand,)),
        ):
            with pytest.raises(ip.ParamError, match=r"^\w+: (c|a|x) with shape \(2, 2\) at 0x\w+ is not al"):
                call(*operands)
    assert not array.any()


def test_strides_of_records() -> None:
    array, x = np.zeros(SHAPE, [("a", "i1"), ("b", "f4")])["b"], np.ones(SHAPE, "f4")
    for operand in (array, Interface(array)):
        for call, operands in (
            (ip.add_, (operand, x, x)),
            (ip.mul, (x, operand)),
            (ip.rearrange, (operand,)),
        ):
            with pytest.raises(
                ip.StrideError, match=r"^\w+: (c|b|x) with shape \(2, 2\) has strides of \(10,"
            ):
                call(*operands)
    assert not array.any()


@pytest.mark.parametrize("shape", [(2, 2), (1, 2), (2, 1)])
def test_tensors_on_records(shape: tuple[int, ...]) -> None:
    record = [("a", "i1"), ("b", "f4")]
    with pytest.raises(ip.StrideError, match=r"has strides of \(\d+, 5\) bytes, which are not multiples"):
        ip.from_numpy(np.zeros(shape, record)["b"])
    # What takes no step may have any.
    assert ip.from_numpy(np.ones((0, *shape), record)["b"]).shape == (0, *shape)
    assert ip.from_numpy(np.ones((1, 1), np.dtype([("b", "f4"), ("a", "i1", 3)]))["b"]).tolist() == [[1]]


def test_a_subclass_whose_transpose_is_a_copy() -> None:
    """Its memory is its own all the same."""

    class Own(np.ndarray):  # type: ignore[type-arg]
        @property
        def T(self) -> Any:
            return np.array(self).T.copy()

        def transpose(self, *axes: Any) -> Any:
            return self.T

    x = np.asfortranarray(np.arange(6.0).reshape(2, 3)).view(Own)
    ip.add_(x, x, np.ones((2, 3)))
    assert np.asarray(x).tolist() == [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]


def test_subclasses_of_numpy_arrays() -> None:
    class Own(np.ndarray):  # type: ignore[type-arg]
        pass

    x = np.ones(SHAPE, "f4").view(Own)
    assert ip.add(x, x).tolist() == [[2, 2], [2, 2]]
    assert ip.mul_(x, x, x) is x


@pytest.mark.parametrize("fields", [{"shape": (2,), "strides": (1, 2)}, {"typestr": "what"}, {"shape": (-1,)},
                                    {"data": None}, {"shape": "ab"}], ids=str)  # fmt: skip
def test_broken_interfaces(fields: dict[str, Any]) -> None:
    refused(Interface(np.ones(SHAPE, "f4"), **fields), ip.InfiniopError, "")


def test_interfaces_of_objects() -> None:
    class Interfaced:
        __array_interface__ = np.array([None]).__array_interface__

    with pytest.raises(ip.InfiniopError, match=r"^add: b is"):
        ip.add(np.ones(1), Interfaced())


# ---- torch -----------------------------------------------------------------------------------------------


def _subclass(torch: Any) -> Any:
    class Wrapper(torch.Tensor):  # type: ignore[misc]
        @staticmethod
        def __new__(cls: Any, inner: Any) -> Any:
            return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

        @classmethod
        def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            raise AssertionError("not called")

    return Wrapper(torch.ones(SHAPE))


def _fake(torch: Any) -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.ones(SHAPE)


TORCH: dict[str, tuple[Callable[[Any], Any], type[ip.InfiniopError], str]] = {
    "grad": (
        lambda t: t.ones(SHAPE, requires_grad=True),
        ip.ParamError,
        r"requires grad.* use x\.detach\(\)",
    ),
    "grad of a result": (lambda t: t.ones(SHAPE, requires_grad=True) * 2, ip.ParamError, "requires grad"),
    "parameter": (lambda t: t.nn.Parameter(t.ones(SHAPE)), ip.ParamError, "requires grad"),
    "sparse": (
        lambda t: t.ones(SHAPE).to_sparse(),
        ip.OperandError,
        r"layout torch\.sparse_coo, needs torch\.str",
    ),
    "sparse csr": (lambda t: t.ones(SHAPE).to_sparse_csr(), ip.OperandError, r"layout torch\.sparse_csr"),
    "mkldnn": (lambda t: t.ones(SHAPE).to_mkldnn(), ip.OperandError, r"layout torch\._mkldnn"),
    "conj": (lambda t: t.ones(SHAPE, dtype=t.complex64).conj(), ip.ParamError, r"x\.resolve_conj\(\)"),
    "neg": (lambda t: t.ones(SHAPE, dtype=t.complex64).conj().imag, ip.ParamError, r"x\.resolve_neg\(\)"),
    "meta": (lambda t: t.ones(SHAPE, device="meta"), ip.DeviceError, "is a torch tensor on meta"),
    "quantized": (
        lambda t: t.quantize_per_tensor(t.ones(SHAPE), 0.1, 0, t.qint8),
        ip.DTypeError,
        r"torch\.qint8",
    ),
    "float8": (lambda t: t.ones(SHAPE).to(t.float8_e4m3fn), ip.DTypeError, r"torch\.float8_e4m3fn"),
    "float8 of two": (lambda t: t.ones(SHAPE).to(t.float8_e5m2), ip.DTypeError, r"torch\.float8_e5m2"),
    "nested": (
        lambda t: t.nested.nested_tensor([t.ones(2), t.ones(1)]),
        ip.OperandError,
        "without memory of its own",
    ),
    "jagged": (
        lambda t: t.nested.nested_tensor([t.ones(2), t.ones(1)], layout=t.jagged),
        ip.OperandError,
        "is a NestedTensor, whose memory is not its own",
    ),
    "fake": (_fake, ip.OperandError, "is a FakeTensor, whose memory is not its own"),
    "wrapper": (_subclass, ip.OperandError, "is a Wrapper, whose memory is not its own"),
    "zeros without memory": (lambda t: t._efficientzerotensor(SHAPE), ip.InfiniopError, "NULL|memory"),
}


@pytest.mark.parametrize("name", TORCH)
def test_torch(name: str) -> None:
    torch = pytest.importorskip("torch")
    make, error, message = TORCH[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # prototypes and what is deprecated
        operand = make(torch)
    for _ in range(2):  # nothing of a refusal is remembered
        if name == "zeros without memory":
            with pytest.raises(error, match=f"^add: b .*{message}"):
                ip.add(np.ones(SHAPE, "f4"), operand)
        else:
            refused(operand, error, message)
    assert ip.add(torch.ones(2), torch.ones(2)).tolist() == [2, 2]


@pytest.mark.parametrize("way", ["make_fx", "jit"])
def test_torch_traced(way: str) -> None:
    """The traced program would have results that nothing computes."""
    torch = pytest.importorskip("torch")
    refusals = []

    def function(x: Any) -> Any:
        for call in (lambda: ip.add(x, x), lambda: ip.mul_(x, x, x)):
            with pytest.raises(ip.OperandError, match=r"that is traced.* infiniop_py\.torch") as raised:
                call()
            refusals.append(raised.value)
        return x + 1

    x = torch.ones(SHAPE)
    if way == "make_fx":
        traced = pytest.importorskip("torch.fx.experimental.proxy_tensor").make_fx(function)(x)
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what is deprecated
            traced = torch.jit.trace(function, (x,), check_trace=False)
    assert len(refusals) == 2 and torch.equal(traced(5 * x), 5 * x + 1)
    assert ip.add(x, x).tolist() == [[2, 2], [2, 2]]


def test_torch_tangents() -> None:
    torch = pytest.importorskip("torch")
    forward = torch.autograd.forward_ad
    with forward.dual_level():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own
            dual = forward.make_dual(torch.ones(SHAPE), torch.ones(SHAPE))
        refused(dual, ip.ParamError, r"with a tangent.* infiniop_py\.torch")
        assert ip.add(torch.ones(2), torch.ones(2)).tolist() == [2, 2]


def test_torch_resolved() -> None:
    torch = pytest.importorskip("torch")
    z = torch.tensor([1 + 2j, 3 - 4j]).conj()
    assert ip.rearrange(z.resolve_conj()).tolist() == [1 - 2j, 3 + 4j]
    assert ip.rearrange(z.imag.resolve_neg()).tolist() == [-2, 4]
    with pytest.raises(ip.ParamError, match=r"^from_dlpack: source is a torch tensor.* x\.resolve_neg\(\)"):
        ip.from_dlpack(z.imag)
    assert ip.from_dlpack(z.imag.resolve_neg()).tolist() == [-2, 4]
    parameter = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    assert type(ip.add(parameter, parameter)) is torch.Tensor


TRANSFORMS: dict[str, Callable[[Any, Callable[[Any], Any]], object]] = {
    "vmap": lambda torch, f: torch.func.vmap(f)(torch.ones(3, 2)),
    "grad": lambda torch, f: torch.func.grad(lambda x: f(x).sum())(torch.ones(2)),
    "jvp": lambda torch, f: torch.func.jvp(f, (torch.ones(2),), (torch.ones(2),)),
    "functionalize": lambda torch, f: torch.func.functionalize(f)(torch.ones(2)),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_torch_transforms(name: str) -> None:
    torch = pytest.importorskip("torch")
    for f in (lambda x: ip.add(x, x), lambda x: ip.add(np.ones(2, "f4"), x), lambda x: ip.rearrange(x)):
        with warnings.catch_warnings(), pytest.raises(ip.InfiniopError, match=r"^(add: (a|b)|rearrange: x) "):
            warnings.simplefilter("ignore")  # torch's own, about itself
            TRANSFORMS[name](torch, f)


# ---- JAX -------------------------------------------------------------------------------------------------


def _deleted(jax: Any) -> Any:
    array = jax.numpy.ones(SHAPE)
    array.delete()
    return array


JAX: dict[str, tuple[Callable[[Any], Any], str]] = {
    "deleted": (_deleted, "is a ArrayImpl whose __dlpack"),
    "int4": (lambda jax: jax.numpy.ones(SHAPE, "int4"), "S4 has no DLPack equivalent|no element type|code"),
    "float8": (lambda jax: jax.numpy.ones(SHAPE, "float8_e4m3fn"), "code 10, 8 bits|failed"),
    "key": (lambda jax: jax.random.key(0), "is a PRNGKeyArray, needs"),
    "shape": (lambda jax: jax.ShapeDtypeStruct(SHAPE, "float32"), "is a ShapeDtypeStruct, needs"),
}


@pytest.mark.parametrize("name", JAX)
def test_jax(name: str) -> None:
    make, message = JAX[name]
    refused(make(pytest.importorskip("jax")), ip.InfiniopError, message)


@pytest.mark.parametrize("transform", ["jit", "vmap", "grad"])
def test_jax_tracers(transform: str) -> None:
    jax = pytest.importorskip("jax")
    with pytest.raises(ip.OperandError, match=r"^add: a is a \w+Tracer, needs"):
        getattr(jax, transform)(lambda x: ip.add(x, x).sum())(jax.numpy.ones(SHAPE))


def test_jax_arrays_are_never_written() -> None:
    jax = pytest.importorskip("jax")
    a, x = jax.numpy.zeros(SHAPE, "float32"), np.ones(SHAPE, "f4")
    for call in (lambda: ip.add_(a, x, x), lambda: ip.gemm(x, x, out=a), lambda: ip.rearrange_(a, x),
                 lambda: ip.add_rms_norm(x, x, x[0], residual_out=a), lambda: ip.Add(a, x, x)):  # fmt: skip
        with pytest.raises(
            ip.ParamError, match=r"^\w+: \w+ with shape \(2, 2\) is read-only, but it is an output"
        ):
            call()
    assert not np.asarray(a).any()
    assert not ip.from_dlpack(a).writable


def test_jax_results_are_not_recorded() -> None:
    jax = pytest.importorskip("jax")
    a = jax.numpy.ones(SHAPE, "float32")
    with ip.Graph() as graph:
        for call in (lambda: ip.add(a, a), lambda: ip.add_rms_norm(a, a, a[0]), lambda: ip.gemm(a, a)):
            with pytest.raises(ip.GraphError, match=r"^\w+: a new ArrayImpl cannot be recorded.*pass out="):
                call()
        t = ip.add(a, ip.ones(SHAPE))
    graph.run()
    assert t.tolist() == [[2, 2], [2, 2]]


# ---- overlap ---------------------------------------------------------------------------------------------


def test_overlap_through_two_libraries() -> None:
    torch = pytest.importorskip("torch")
    memory = np.arange(20, dtype="f4")
    before = memory.copy()
    theirs = torch.from_numpy(memory)
    tensor = ip.from_dlpack(theirs)
    views: list[Callable[[slice], Any]] = [
        lambda part: memory[part],
        lambda part: theirs[part],
        lambda part: tensor[part],
        lambda part: Producer(memory[part]),
        lambda part: Interface(memory[part]),
    ]
    for first in views:
        for second in views:
            for call in (ip.add_, ip.mul_):
                with pytest.raises(ip.ParamError, match=r"^(add|mul): c with shape \(8,\) overlaps (a|b)"):
                    call(first(slice(0, 8)), second(slice(1, 9)), np.ones(8, "f4"))
            with pytest.raises(ip.ParamError, match=r"^rearrange: y with shape \(8,\) overlaps x"):
                ip.rearrange_(first(slice(0, 8)), second(slice(0, 16, 2)))
            np.testing.assert_array_equal(memory, before)
            # every other element: ranges meet, elements do not
            ip.rearrange_(first(slice(0, 20, 2)), second(slice(1, 20, 2)))
            np.testing.assert_array_equal(memory[::2], before[1::2])
            memory[...] = before
            # exactly the same memory is an alias that add allows
            ip.add_(first(slice(0, 8)), second(slice(0, 8)), np.ones(8, "f4"))
            np.testing.assert_array_equal(memory[:8], before[:8] + 1)
            memory[...] = before


def test_outputs_that_overlap_themselves() -> None:
    torch = pytest.importorskip("torch")
    x = torch.ones(2, 2)
    for out in (torch.zeros(1, 2).expand(2, 2), torch.zeros(3).as_strided((2, 2), (1, 1)),
                Producer(np.zeros(3, "f4"), ndim=2, shape=(2, 2), strides=(1, 1))):  # fmt: skip
        for call in (ip.add_, ip.gemm_):
            with pytest.raises(ip.StrideError, match=r"^(add|gemm): .*\bc overlap each other"):
                call(out, x, x)


def test_torch_ends_no_process() -> None:
    """torch ends the process at negative strides in a capsule; a Tensor with such strides makes none."""
    pytest.importorskip("torch")
    code = textwrap.dedent(
        """
        import numpy as np, torch, infiniop_py as ip
        t = ip.from_numpy(np.arange(6, dtype="f4").reshape(2, 3)[::-1, ::-1])
        try: torch.from_dlpack(t)
        except ip.StrideError as error: print(type(error).__name__)
        print(torch.from_dlpack(t.contiguous()).tolist())
        """
    )
    assert children.run(code) == "StrideError\n[[5.0, 4.0, 3.0], [2.0, 1.0, 0.0]]\n"
