"""``torch.ops.infiniop``: what infiniop_py computes, in torch's autograd, autocast and compiler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from threading import Thread
from typing import Any

import children
import numpy as np
import pytest

import infiniop_py as ip

torch = pytest.importorskip("torch")
ours = import_module("infiniop_py.torch")
OPS = torch.ops.infiniop
GENERATOR = torch.Generator().manual_seed(7)


def randn(*shape: int, dtype: Any = torch.float64, grad: bool = False) -> Any:
    return torch.randn(shape, generator=GENERATOR, dtype=torch.float64).to(dtype).requires_grad_(grad)


def operands(*shapes: Sequence[int], dtype: Any = torch.float64, grad: bool = True) -> list[Any]:
    return [randn(*shape, dtype=dtype, grad=grad) for shape in shapes]


def transposed(tensors: list[Any]) -> list[Any]:
    return [x.detach().mT.requires_grad_(x.requires_grad) for x in tensors]


#: An operator and what it is called with.
CALLS: dict[str, tuple[str, Callable[..., list[Any]]]] = {
    "gemm": ("gemm", lambda **of: operands((3, 4), (4, 5), **of)),
    "gemm, scaled": ("gemm", lambda **of: [*operands((3, 4), (4, 5), **of), 0.5]),
    "gemm, transposed": ("gemm", lambda **of: transposed(operands((4, 3), (5, 4), **of))),
    "gemm, one b": ("gemm", lambda **of: operands((2, 3, 4), (4, 5), **of)),
    "gemm, one a": ("gemm", lambda **of: operands((3, 4), (2, 4, 5), **of)),
    "gemm, batches": ("gemm", lambda **of: operands((2, 1, 3, 4), (5, 4, 2), **of)),
    "gemm, c": ("gemm", lambda **of: _with_addend(*operands((2, 3, 4), (4, 5), (2, 3, 5), **of))),
    "gemm, c unread": ("gemm", lambda **of: _with_addend(*operands((3, 4), (4, 5), (3, 5), **of), 0.0)),
    "add": ("add", lambda **of: operands((3, 4), (3, 4), **of)),
    "add, broadcast": ("add", lambda **of: operands((3, 1), (2, 1, 4), **of)),
    "mul": ("mul", lambda **of: operands((3, 4), (3, 4), **of)),
    "mul, broadcast": ("mul", lambda **of: operands((4,), (2, 3, 1), **of)),
    "add_rms_norm": ("add_rms_norm", lambda **of: operands((2, 3, 4), (2, 3, 4), (4,), **of)),
    "add_rms_norm, epsilon": ("add_rms_norm", lambda **of: [*operands((3, 4), (3, 4), (4,), **of), 0.25]),
    "rearrange": ("rearrange", lambda **of: transposed(operands((3, 4), **of))),
}  # fmt: skip


def _with_addend(a: Any, b: Any, c: Any, beta: float = 0.5) -> list[Any]:
    return [a, b, 1.5, beta, c]


def call_of(name: str, **of: Any) -> tuple[Any, list[Any]]:
    operator, make = CALLS[name]
    return getattr(OPS, operator).default, make(**of)


def plainly(operator: str, arguments: list[Any]) -> Any:
    """The function of the package, on the same tensors without their history."""
    detached = [x.detach() if isinstance(x, torch.Tensor) else x for x in arguments]
    if operator == "gemm" and len(detached) == 5:
        return ip.gemm(*detached[:4], c=detached[4])
    return getattr(ip, operator)(*detached)


def as_tuple(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_results_are_those_of_the_package(name: str, dtype: Any) -> None:
    operator, arguments = call_of(name, dtype=dtype)
    for got, wanted in zip(
        as_tuple(operator(*arguments)), as_tuple(plainly(CALLS[name][0], arguments)), strict=True
    ):
        assert torch.equal(got, wanted) and got.dtype == dtype and got.is_contiguous()


#: What is written, and the operands behind it.
WRITING: dict[str, Callable[[], tuple[list[Any], list[Any]]]] = {
    "gemm_": lambda: (operands((3, 5), grad=False), [*operands((3, 4), (4, 5), grad=False), 1.5, 0.5]),
    "add_": lambda: (operands((3, 4), grad=False), operands((3, 1), (4,), grad=False)),
    "mul_": lambda: (operands((3, 4), grad=False), operands((3, 1), (4,), grad=False)),
    "add_rms_norm_": lambda: (
        operands((3, 4), (3, 4), grad=False),
        [*operands((3, 4), (3, 4), (4,), grad=False), 0.25],
    ),
    "rearrange_": lambda: (operands((3, 4), grad=False), transposed(operands((4, 3), grad=False))),
}


@pytest.mark.parametrize("name", WRITING)
def test_operands_are_written(name: str) -> None:
    outputs, inputs = WRITING[name]()
    expected = [x.clone() for x in outputs]
    getattr(ip, name)(*expected, *inputs)
    versions = [x._version for x in outputs]
    assert getattr(OPS, name)(*outputs, *inputs) is None
    for x, wanted, version in zip(outputs, expected, versions):
        assert torch.equal(x, wanted)
        assert x._version > version, "autograd does not see that what it saved has changed"


@pytest.mark.parametrize("name", WRITING)
def test_what_requires_grad_is_not_written(name: str) -> None:
    outputs, inputs = WRITING[name]()
    outputs[0].requires_grad_()
    before = outputs[0].detach().clone()
    with pytest.raises(ip.ParamError, match=rf"{name[:-1]}: \w+ is a torch tensor that requires grad"):
        getattr(OPS, name)(*outputs, *inputs)
    assert torch.equal(outputs[0].detach(), before)
    with torch.no_grad():
        getattr(OPS, name)(*outputs, *inputs)


@pytest.mark.parametrize("name", WRITING)
def test_opcheck_of_what_writes(name: str) -> None:
    outputs, inputs = WRITING[name]()
    torch.library.opcheck(getattr(OPS, name).default, (*outputs, *inputs))


@pytest.mark.parametrize("name", CALLS)
def test_opcheck(name: str) -> None:
    operator, arguments = call_of(name, dtype=torch.float32)
    torch.library.opcheck(operator, tuple(arguments))


#: Torch compiles some of its own rules by what it calls deprecated, and its vmap has none for these.
forward_mode = pytest.mark.filterwarnings(
    "ignore:.torch.jit.script. is deprecated:DeprecationWarning",
    "ignore:There is a performance drop:UserWarning",
)


@forward_mode
@pytest.mark.parametrize("name", CALLS)
def test_derivatives(name: str) -> None:
    """Of the results, and of the derivatives."""
    operator, arguments = call_of(name)
    torch.autograd.gradcheck(operator, arguments, check_forward_ad=True)
    torch.autograd.gradgradcheck(operator, arguments, check_fwd_over_rev=True)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("of", range(3))
def test_derivatives_by_one_operand(name: str, of: int) -> None:
    operator, arguments = call_of(name)
    tensors = [x for x in arguments if isinstance(x, torch.Tensor)]
    if of >= len(tensors):
        return
    everything = torch.autograd.grad(
        sum(x.sin().sum() for x in as_tuple(operator(*arguments))), tensors, allow_unused=True
    )
    alone = [x.detach() if isinstance(x, torch.Tensor) and x is not tensors[of] else x for x in arguments]
    (got,) = torch.autograd.grad(
        sum(x.sin().sum() for x in as_tuple(operator(*alone))), [tensors[of]], allow_unused=True
    )
    assert (got is None) == (everything[of] is None)
    assert got is None or torch.equal(got, everything[of])


@forward_mode
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("of", range(3))
def test_derivatives_in_forward_mode_by_one_operand(name: str, of: int) -> None:
    """That of the results in one direction, as the derivatives by the operands have it."""
    operator, arguments = call_of(name)
    at = [i for i, x in enumerate(arguments) if isinstance(x, torch.Tensor)]
    if of >= len(at):
        return
    primals = [x.detach() if isinstance(x, torch.Tensor) else x for x in arguments]

    def work(x: Any) -> Any:
        return as_tuple(operator(*primals[: at[of]], x, *primals[at[of] + 1 :]))

    x = primals[at[of]]
    direction = torch.ones_like(x).cumsum(-1)
    _, got = torch.func.jvp(work, (x,), (direction,))
    wanted = torch.func.jacrev(work)(x)
    for tangent, jacobian in zip(got, wanted, strict=True):
        torch.testing.assert_close(tangent, (jacobian * direction).flatten(tangent.ndim).sum(-1))


@forward_mode
def test_torchs_transforms() -> None:
    a, b = operands((3, 4), (4, 2), grad=False)

    def ours(a: Any) -> Any:
        return OPS.mul(OPS.gemm(a, b), OPS.gemm(a, b)).sum()

    def theirs(a: Any) -> Any:
        return ((a @ b) * (a @ b)).sum()

    for transform in (torch.func.grad, torch.func.hessian, torch.func.jacrev):
        torch.testing.assert_close(transform(ours)(a), transform(theirs)(a))
    batch = randn(5, 3, 4)
    torch.testing.assert_close(torch.func.vmap(ours)(batch), torch.func.vmap(theirs)(batch))


def test_what_was_kept_goes_after_the_first_derivative() -> None:
    a, b = operands((3, 4), (3, 4))
    product = OPS.mul(a, b)
    product.sum().backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        product.sum().backward()
    y, residual = OPS.add_rms_norm(a, b, randn(4))
    assert y.grad_fn is residual.grad_fn and y.grad_fn.name() == "Infiniop_add_rms_norm"
    y.sum().backward(retain_graph=True)
    y.sum().backward()


@pytest.mark.parametrize("of", [0, 1])
def test_one_result_of_the_norm_is_enough(of: int) -> None:
    tensors = operands((3, 4), (3, 4), (4,))
    torch.autograd.gradcheck(lambda *of_call: OPS.add_rms_norm(*of_call)[of], tensors)
    a, _, weight = tensors
    d_weight = torch.autograd.grad(OPS.add_rms_norm(a, a, weight)[of].sum(), weight, allow_unused=True)[0]
    assert (d_weight is None) == (of == 1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_derivatives_in_few_bits(name: str, dtype: Any) -> None:
    """Those in F64, but for roundings: of the result and of what a derivative is made of, 8 at most."""
    operator, arguments = call_of(name, dtype=dtype)
    wide = [x.detach().double().requires_grad_() if isinstance(x, torch.Tensor) else x for x in arguments]
    grads = []
    for given in (arguments, wide):
        results = as_tuple(operator(*given))
        tensors = [x for x in given if isinstance(x, torch.Tensor)]
        grads.append(torch.autograd.grad([x.sum() for x in results], tensors, allow_unused=True))
    for x, got, wanted in zip(tensors, *grads):
        assert (got is None) == (wanted is None)
        if got is not None:
            assert got.dtype == dtype and got.shape == x.shape
            error = (got.double() - wanted).abs().max()
            assert error <= 8 * torch.finfo(dtype).eps * wanted.abs().max().clamp(min=1)


def test_a_half_product_sums_over_batches_before_it_rounds() -> None:
    """2048 + 1 is no F16: one after the other, they would stay 2048."""
    a, b = torch.ones(4, 1, 1, dtype=torch.float16), torch.ones(1, 1, dtype=torch.float16, requires_grad=True)
    a[0] = 2048.0
    OPS.gemm(a, b).sum().backward()
    assert b.grad.item() == 2052  # of 2051, to even


@pytest.mark.parametrize("name", ["gemm", "mul"])
@pytest.mark.parametrize("of", [0, 1])
def test_what_no_derivative_needs_is_not_kept(name: str, of: int) -> None:
    """An operand may be written, or let go, if the other one is none of which there is a derivative."""
    tensors = operands((4, 4), (4, 4), grad=False)
    other = tensors[1 - of].clone()
    leaf = tensors[of].requires_grad_()
    tensors[of] = 1 * leaf
    result = getattr(OPS, name)(*tensors)
    with torch.no_grad():
        tensors[of].zero_()
    result.sum().backward()
    ones = torch.ones(4, 4, dtype=torch.float64)
    wanted = other if name == "mul" else ones @ other.mT if of == 0 else other.mT @ ones
    torch.testing.assert_close(leaf.grad, wanted)


def test_autograd_sees_that_what_it_saved_was_overwritten() -> None:
    a, b = operands((3, 4), (3, 4), grad=False)
    a.requires_grad_()
    product = OPS.mul(a, b)
    OPS.add_(b, b, b)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


@pytest.fixture
def compiler() -> Any:
    """torch's, which keeps what it has compiled of a function by its code."""
    torch.compiler.reset()
    yield torch.compile
    torch.compiler.reset()


@pytest.mark.parametrize("name", CALLS)
def test_compiled_as_one_graph(name: str, compiler: Any) -> None:
    operator, arguments = call_of(name, dtype=torch.float32)

    def work(*given: Any) -> Any:
        return [2 * x for x in as_tuple(operator(*given))]

    tensors = [x for x in arguments if isinstance(x, torch.Tensor)]
    got, wanted = compiler(work, fullgraph=True, backend="aot_eager")(*arguments), work(*arguments)
    assert all(torch.equal(x, y) for x, y in zip(got, wanted, strict=True))
    grads = [
        torch.autograd.grad(sum(x.sum() for x in xs), tensors, allow_unused=True) for xs in (got, wanted)
    ]
    for x, y in zip(*grads):
        assert (x is None and y is None) or torch.equal(x, y)


@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`")
@pytest.mark.parametrize("name", ["gemm", "gemm_add", "add", "add_rms_norm", "rearrange"])
def test_functions_of_the_package_are_called_by_what_is_compiled(name: str, compiler: Any) -> None:
    x = torch.ones(2, 3)
    operands = {
        "gemm": (x, x.T),
        "gemm_add": (x, x.T, torch.ones(2, 2)),
        "add": (x, x),
        "add_rms_norm": (x, x, torch.ones(3)),
        "rearrange": (x.T,),
    }[name]

    def work(*given: Any) -> Any:
        return [result + 1 for result in as_tuple(getattr(ip, name)(*given))]

    compiled = compiler(work, backend="eager")
    for _ in range(3):
        assert all(torch.equal(got, wanted) for got, wanted in zip(compiled(*operands), work(*operands)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_norm_of_halves_with_a_wide_weight_is_compiled(dtype: Any, compiler: Any) -> None:
    norm, h = ours.AddRMSNorm(4), torch.arange(8.0, dtype=dtype).reshape(2, 4)
    assert norm.weight.dtype is torch.float32
    got = compiler(norm, fullgraph=True, backend="aot_eager")(h, h)
    assert all(torch.equal(x, y) for x, y in zip(got, norm(h, h)))
    with pytest.raises(ip.DTypeError, match="weight is F64, but with F16 operands it must be"):
        torch.ops.infiniop.add_rms_norm(*(x.to("meta") for x in (h.half(), h.half(), torch.ones(4).double())))


def test_gradients_of_many_results_at_once() -> None:
    a, b = (torch.rand(2, 3, 3, dtype=torch.float64) for _ in range(2))
    for y in (b, b[0]):  # a batch, and one matrix for all
        got, wanted = (
            torch.autograd.functional.jacobian(product, (a, y), vectorize=True)
            for product in (torch.ops.infiniop.gemm, torch.matmul)
        )
        assert all(torch.allclose(x, z) for x, z in zip(got, wanted))


@pytest.mark.filterwarnings(
    "ignore:.torch.jit.script_method. is deprecated:DeprecationWarning"
)  # torch's own
def test_compiled_by_inductor(compiler: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between operators that inductor makes code of, and where they write what it has made."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    norm, linear = ours.AddRMSNorm(8), ours.Linear(8, 6)

    def work(x: Any, residual: Any) -> Any:
        y, residual = norm(x.sin(), residual)
        z = linear(y).relu() * 2
        out = torch.zeros_like(z)
        OPS.mul_(out, z, z)
        return out + 1, OPS.rearrange(residual.mT)

    x, residual = operands((3, 8), (3, 8), dtype=torch.float32, grad=False)
    compiled = compiler(work, fullgraph=True)
    for rows in (3, 5, 7):  # the later ones of any size
        x, residual = operands((rows, 8), (rows, 8), dtype=torch.float32, grad=False)
        with torch.no_grad():
            for got, wanted in zip(compiled(x, residual), work(x, residual), strict=True):
                torch.testing.assert_close(got, wanted)  # inductor's sine is not torch's


def test_autocast() -> None:
    a, b = operands((3, 4), (4, 3), dtype=torch.float32)
    wide = randn(4, 3)
    half = randn(3, 4, dtype=torch.float16)
    weight = torch.ones(4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        product = OPS.gemm(a, b)
        added = OPS.gemm(a, b, 1.0, 1.0, randn(3, 3, dtype=torch.float32))
        assert product.dtype == added.dtype == torch.bfloat16
        assert torch.equal(product, OPS.gemm(a.bfloat16(), b.bfloat16()))
        assert OPS.gemm(wide.mT, wide).dtype == torch.float64
        for operator in (OPS.add, OPS.mul):
            assert operator(a, half).dtype == torch.float32
            assert operator(half.bfloat16(), half).dtype == torch.float32
            assert operator(half, half).dtype == torch.float16
            assert (
                operator(torch.ones(2, dtype=torch.int8), torch.ones(2, dtype=torch.int8)).dtype == torch.int8
            )
        assert OPS.add_rms_norm(a, half, weight)[0].dtype == torch.float32
        assert OPS.add_rms_norm(half, half, weight)[0].dtype == torch.float16
        assert OPS.add_rms_norm(a, a, weight.half())[1].dtype == torch.float32
        assert OPS.rearrange(half.mT).dtype == torch.float16
    with pytest.raises(ip.DTypeError):
        OPS.add(a, half)
    product.sum().backward()
    assert a.grad.dtype == torch.float32 and torch.equal(
        a.grad, b.detach().bfloat16().sum(1).float().expand(3, 4)
    )


def test_autocast_converts_a_weight_once() -> None:
    """Torch keeps what it has converted of a parameter until autocast ends."""
    weight = randn(4, 4, dtype=torch.float32, grad=True)
    x = randn(2, 4, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        first, second = OPS.gemm(x, weight), OPS.gemm(x, weight)
    kept = [y.grad_fn.next_functions[1][0] for y in (first, second)]
    assert kept[0] is kept[1] and kept[0].name() == "ToCopyBackward0"


# ---- past Python -------------------------------------------------------------------------------------------


def test_any_number_of_layouts() -> None:
    """More than there is place for, several times, in several threads at once."""
    shapes = [(m, n) for m in range(1, 20) for n in range(1, 20)]

    def work(failures: list[Any]) -> None:
        for _ in range(3):
            for m, n in shapes:
                x = torch.arange(m * n, dtype=torch.float32).reshape(m, n)
                if not torch.equal(OPS.add(x, x.T.contiguous().T), 2 * x):
                    failures.append((m, n))
                if not torch.equal(OPS.gemm(x, torch.eye(n)), x):
                    failures.append((m, n))

    failures: list[Any] = []
    threads = [Thread(target=work, args=(failures,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize(
    "shapes",
    [((2, 3), (3, 0)), ((2, 0), (0, 3)), ((0, 0), (0, 0)), ((2, 0, 3), (3, 0)), ((0, 3), (3, 2))],
    ids=str,
)
def test_derivatives_of_products_of_nothing(shapes: Any) -> None:
    mine, theirs = ([randn(*shape, grad=True) for shape in shapes] for _ in range(2))
    OPS.gemm(*mine).sum().backward()
    torch.matmul(*theirs).sum().backward()
    for x, y in zip(mine, theirs):
        assert torch.equal(x.grad, y.grad)
    for sizes in ((3, 0), (0, 3)):
        linear = ours.Linear(*sizes)
        linear(torch.ones(2, sizes[0])).sum().backward()
        assert linear.weight.grad.shape == sizes[::-1]


def test_the_derivative_of_a_norm_has_the_epsilon_of_the_norm() -> None:
    """Which is an F32: 1e-50 is 0 there."""
    a = torch.full((1, 4), 1e-30, dtype=torch.float64).requires_grad_()
    weight = torch.ones(4, dtype=torch.float64)
    y, _ = OPS.add_rms_norm(a, torch.zeros_like(a), weight, 1e-60)
    y[0, 0].backward()
    exact = torch.tensor([0.75, -0.25, -0.25, -0.25], dtype=torch.float64) * 1e30
    assert torch.allclose(a.grad[0], exact, rtol=1e-12)


def test_no_memory_for_a_result() -> None:
    for call in (
        lambda: ip.add(torch.ones(1).expand(2**45), torch.ones(1)),
        lambda: ip.gemm(torch.empty(2**40, 0), torch.empty(0, 2**40)),
    ):
        with pytest.raises(ip.OutOfMemoryError, match=r"^(add|gemm): cannot allocate"):
            call()


def test_epsilons_are_told_apart() -> None:
    a = torch.ones(2, 4)
    results = [OPS.add_rms_norm(a, a, a[0], epsilon)[0][0, 0].item() for epsilon in (0.0, 12.0, 0.0, -0.0)]
    assert results == [1.0, 0.5, 1.0, 1.0]


@pytest.mark.parametrize(
    "shapes",
    [
        ((2, 3, 4, 5), (2, 3, 5, 6)),
        ((2, 3, 4, 5), (5, 6)),
        ((4, 5), (2, 3, 5, 6)),
        ((2, 1, 4, 5), (1, 3, 5, 6)),
        ((1, 2, 1, 4, 5), (2, 3, 5, 6)),
    ],
    ids=str,
)
@pytest.mark.parametrize("swaps", [False, True])
def test_batches_of_any_layout(shapes: tuple[Any, Any], swaps: bool) -> None:
    a, b = operands(*shapes, dtype=torch.float32, grad=False)
    if swaps and a.ndim > 3:  # no one stride walks through its batches
        a = a.transpose(0, 1).contiguous().transpose(0, 1)
    got = OPS.gemm(a, b)
    assert torch.equal(got, ip.gemm(a, b)) and got.shape == (a @ b).shape
    out = torch.empty(*got.shape[:-1], 2 * got.shape[-1])[..., ::2]
    OPS.gemm_(out, a, b, 2.0)
    assert torch.equal(out, 2 * got)


def test_odd_operands() -> None:
    """What the kernels leave to Python, and what they need not."""
    empty = torch.empty(0, 3)
    assert OPS.add(empty, empty).shape == (0, 3)
    assert torch.equal(OPS.gemm(torch.empty(2, 0), torch.empty(0, 3)), torch.zeros(2, 3))
    assert OPS.gemm(torch.empty(0, 2, 4), torch.empty(4, 3)).shape == (0, 2, 3)
    assert OPS.add(torch.tensor(1.0), torch.tensor(2.0)).item() == 3
    x = torch.arange(4.0)
    assert torch.equal(OPS.add(torch._neg_view(x), x), torch.zeros(4))
    assert torch.equal(OPS.rearrange(torch.tensor([True, False])), torch.tensor([True, False]))
    imaginary = torch.conj(torch.tensor([1j, 2j])).imag
    assert torch.equal(OPS.add(imaginary, imaginary), torch.tensor([-2.0, -4.0]))
    assert torch.equal(OPS.rearrange(torch.tensor([1 + 2j]).conj()), torch.tensor([1 - 2j]))
    deep = torch.ones([1] * 17)
    with pytest.raises(ip.ShapeError, match="17 dimensions"):
        OPS.add(deep, deep)
    with pytest.raises(NotImplementedError, match="'SparseCPU' backend"):
        OPS.add(x.to_sparse(), x.to_sparse())
    assert OPS.gemm(x[None], x[:, None], 1e300).item() == float("inf")  # as alpha is in F32
    with pytest.raises(ip.DTypeError, match="a has dtype C64"):
        OPS.add(x.to(torch.complex64), x.to(torch.complex64))
    with pytest.raises(ip.ShapeError, match=r"add: c is \(4,\), but a \(2, 4\) and b \(4,\) make \(2, 4\)"):
        OPS.add_(x, x.expand(2, 4), x)
    with pytest.raises(ip.ShapeError, match="gemm: c is"):
        OPS.gemm(x[None], x[:, None], 1.0, 1.0, x)
    with torch.inference_mode():
        frozen = torch.ones(3)
        OPS.add_(frozen, frozen, frozen)
        assert torch.equal(frozen, torch.full((3,), 2.0))


def test_overlaps_are_refused_before_anything_is_written() -> None:
    x = torch.arange(8.0)
    before = x.clone()
    with pytest.raises(ip.ParamError, match=r"add: c with shape \(7,\) overlaps a with shape \(7,\)"):
        OPS.add_(x[1:], x[:-1], x[:-1])
    with pytest.raises(ip.StrideError, match="overlap"):
        OPS.rearrange_(x[:1].expand(4), x[:4])
    with pytest.raises(ip.ParamError, match=r"gemm: c .*overlaps a"):
        OPS.gemm_(x[:4].view(2, 2), x[:4].view(2, 2), x[4:].view(2, 2))
    assert torch.equal(x, before)
    OPS.add_(x, x, x)
    assert torch.equal(x, 2 * before)


def test_a_recording_takes_them() -> None:
    """In the thread that records, and in no other."""
    a, b = operands((3, 4), (3, 4), dtype=torch.float32, grad=False)
    out = torch.zeros(3, 4)
    elsewhere: list[Any] = []
    with ip.Graph() as graph:
        OPS.mul_(out, a, b)
        thread = Thread(target=lambda: elsewhere.append(OPS.add(a, b)))
        thread.start()
        thread.join()
    assert len(graph) == 1 and torch.equal(elsewhere[0], a + b)
    assert torch.equal(out, torch.zeros(3, 4)) and torch.equal(OPS.add(a, b), a + b)
    graph.run()
    assert torch.equal(out, a * b)


def test_a_recording_that_began_before_the_import() -> None:
    children.run(
        "import torch, infiniop_py as ip\n"
        "x = torch.ones(2); out = torch.zeros(2)\n"
        "with ip.Graph() as graph:\n"
        "    import infiniop_py.torch\n"
        "    torch.ops.infiniop.add_(out, x, x)\n"
        "assert len(graph) == 1 and out.tolist() == [0, 0], (len(graph), out)"
    )


def with_an_implementation_of_its_own() -> None:
    a = torch.ones(2, 3)
    assert torch.equal(OPS.add(a, a), 2 * a)
    calls = []

    def add(c: Any, a: Any, b: Any) -> None:
        calls.append(c.shape)
        np.asarray(c)[...] = 7

    ip.Add.dispatcher().register_device("cpu", add)
    assert torch.equal(OPS.add(a, a), 7 * a) and calls == [(2, 3)]
    assert torch.equal(OPS.mul(a, a), a) and torch.equal(OPS.gemm(a, a.T), 3 * torch.ones(2, 2))


def test_an_implementation_for_the_cpu_is_asked() -> None:
    children.call(with_an_implementation_of_its_own)


def test_one_that_came_before_the_import_is_asked_too() -> None:
    children.run(
        "import torch, numpy as np, infiniop_py as ip\n"
        "ip.Mul.dispatcher().register_device('cpu', lambda c, a, b: np.copyto(np.asarray(c), 7))\n"
        "import infiniop_py.torch\n"
        "assert torch.ops.infiniop.mul(torch.ones(2), torch.ones(2)).tolist() == [7, 7]"
    )


def with_another_current_device() -> None:
    a = torch.ones(3, 5)
    ip.set_device("qy:1")
    assert torch.equal(OPS.add(a, a), 2 * a)
    assert ip.get_device() == ip.Device("qy:1")


def test_the_current_device_is_none_of_its_business(tmp_path: Any) -> None:
    children.call(
        with_another_current_device, INFINIOP_BACKEND_PATH=str(children.build_fake_backend(tmp_path))
    )


def forks() -> None:
    x = torch.arange(90000.0).reshape(300, 300)
    wanted = [OPS.add(x, x).numpy(), OPS.gemm(x, x).numpy(), x.numpy().T]

    def work() -> None:  # torch's own threads do not survive a fork
        got = [OPS.add(x, x), OPS.gemm(x, x), OPS.rearrange(x.T)]
        for result, expected in zip(got, wanted, strict=True):
            assert np.array_equal(result.numpy(), expected)

    children.forked(work)


def test_after_fork() -> None:
    children.call(forks)  # JAX, if it has been imported here, objects


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(8,), (3, 8), (2, 3, 8)], ids=str)
def test_linear_stands_in_for_torchs(bias: bool, shape: tuple[int, ...]) -> None:
    theirs, mine = (kind(8, 5, bias=bias, dtype=torch.float64) for kind in (torch.nn.Linear, ours.Linear))
    mine.load_state_dict(theirs.state_dict())
    assert repr(mine) == repr(theirs)
    grads = []
    for module in (theirs, mine):
        x = torch.ones(shape, dtype=torch.float64).cumsum(-1).requires_grad_()
        y = module(x)
        grads.append([y, *torch.autograd.grad(y.sin().sum(), [x, *module.parameters()])])
    for got, wanted in zip(*grads, strict=True):
        torch.testing.assert_close(got, wanted)


def test_norm_stands_in_for_a_sum_and_torchs() -> None:
    mine, theirs = (
        ours.AddRMSNorm(8, 1e-3, dtype=torch.float64),
        torch.nn.RMSNorm(8, 1e-3, dtype=torch.float64),
    )
    with torch.no_grad():
        mine.weight.copy_(randn(8))
    theirs.load_state_dict(mine.state_dict())
    x, residual = operands((2, 3, 8), (2, 3, 8))
    y, total = mine(x, residual)
    torch.testing.assert_close(y, theirs(x + residual))
    assert torch.equal(total, x + residual)
    assert repr(mine) == "AddRMSNorm(8, eps=0.001)"


def test_tensors_that_do_not_fit_are_refused_in_the_words_of_the_package() -> None:
    a, b = operands((3, 4), (5, 4), dtype=torch.float32)
    with pytest.raises(ip.ShapeError, match="gemm: inner dimensions differ"):
        OPS.gemm(a, b)
    with pytest.raises(ip.DTypeError, match="mul: dtypes differ: a is F32, b is F16"):
        OPS.mul(a, a.half())
    with pytest.raises(ip.ParamError, match=r"beta is 2\.0, but there is no c"):
        OPS.gemm(a, b.mT, 1.0, 2.0)


def test_tensors_without_memory_are_refused_too() -> None:
    a, b = (torch.empty(3, 3, device="meta", dtype=dtype) for dtype in (torch.float32, torch.float16))
    for name in ("gemm", "add", "mul"):
        with pytest.raises(ip.DTypeError, match=f"{name}: dtypes differ: a is F32, b is F16"):
            getattr(OPS, name)(a, b)
    with pytest.raises(ip.DTypeError, match=r"add_rms_norm: weight is F16, but with F32"):
        OPS.add_rms_norm(a, a, b[0])
    with pytest.raises(ip.DTypeError, match=r"gemm: dtypes differ: c is F16, a is F32"):
        OPS.gemm(a, a, 1.0, 1.0, b)
    with pytest.raises(ip.ParamError, match=r"beta is 2\.0, but there is no c"):
        OPS.gemm(a, a, 1.0, 2.0)
    assert OPS.gemm(a, a, 1.0, 2.0, a).shape == (3, 3)
    with pytest.raises(ip.ShapeError, match=r"gemm: c is \(3,\), but the result is \(3, 3\)"):
        OPS.gemm(a, a, 1.0, 2.0, a[0])
    for name in ("add", "mul"):
        with pytest.raises(ip.ShapeError, match=rf"{name}: .* not broadcast: a is \(3, 3\), b is \(2, 3\)"):
            getattr(OPS, name)(a, a[:2])
    for given in ((a, a[:2], a[0]), (a, a, a), (a, a, a[0, :2]), (a[0, 0], a[0, 0], a[0])):
        with pytest.raises(
            ip.ShapeError, match=r"add_rms_norm: (shapes do not fit: a is \(3, 3\), b|a has 0)"
        ):
            OPS.add_rms_norm(*given)
    assert [x.shape for x in OPS.add_rms_norm(a, a, a[0])] == [(3, 3)] * 2


@forward_mode
def test_the_derivative_by_the_addend_has_the_beta_of_the_product() -> None:
    """F32's, whatever is computed in."""
    a, b, c = operands((3, 4), (4, 5), (3, 5), dtype=torch.float64)
    c.requires_grad_()
    beta = float(np.float32(0.1))
    (d,) = torch.autograd.grad(OPS.gemm(a, b, 1.0, 0.1, c).sum(), c)
    assert torch.equal(d, torch.full((3, 5), beta, dtype=torch.float64))
    _, tangent = torch.func.jvp(lambda c: OPS.gemm(a, b, 1.0, 0.1, c), (c.detach(),), (torch.ones_like(c),))
    assert torch.equal(tangent, d)


def test_torch_is_not_imported_with_the_package() -> None:
    children.run("import sys, infiniop_py; assert 'torch' not in sys.modules")


def test_without_torch() -> None:
    children.run(
        "import sys; sys.modules['torch'] = None\n"
        "try: import infiniop_py.torch\n"
        "except ImportError as error: assert \"pip install 'infiniop_py[torch]'\" in str(error), error\n"
        "else: raise AssertionError"
    )
