"""``torch.ops.infiniop``: what infiniop_py computes, in torch's autograd, autocast and compiler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import children
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


@pytest.mark.parametrize("name", CALLS)
def test_derivatives(name: str) -> None:
    """Of the results, and of the derivatives."""
    operator, arguments = call_of(name)
    torch.autograd.gradcheck(operator, arguments)
    torch.autograd.gradgradcheck(operator, arguments)


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


def test_torch_is_not_imported_with_the_package() -> None:
    children.run("import sys, infiniop_py; assert 'torch' not in sys.modules")


def test_without_torch() -> None:
    children.run(
        "import sys; sys.modules['torch'] = None\n"
        "try: import infiniop_py.torch\n"
        "except ImportError as error: assert \"pip install 'infiniop_py[torch]'\" in str(error), error\n"
        "else: raise AssertionError"
    )
