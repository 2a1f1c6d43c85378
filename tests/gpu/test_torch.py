"""The operators on torch's CUDA tensors: against float64, on torch's streams, and in its graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

import infiniop_py as ip

torch = pytest.importorskip("torch", reason="needs torch")
DEVICE = "cuda"

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device"),
]

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
#: Half a unit in the last place of an element, relative; of what is computed in, the same for F32 and F64.
ROUNDING = {
    torch.float16: 2.0**-11,
    torch.bfloat16: 2.0**-8,
    torch.float32: 2.0**-24,
    torch.float64: 2.0**-53,
}
EPSILON = 2.0**-17


def normal(*shape: int, dtype: Any = torch.float32, seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).to(DEVICE)


#: How an operand lies in the memory behind it: what gives the memory's shape, and the view of it.
LAYOUTS: dict[str, tuple[Callable[[tuple[int, ...]], tuple[int, ...]], Callable[[Any], Any]]] = {
    "compact": (lambda shape: shape, lambda x: x),
    "shifted": (lambda shape: (*shape[:-1], shape[-1] + 1), lambda x: x[..., 1:]),
    "steps": (lambda shape: (*shape[:-1], 3 * shape[-1]), lambda x: x[..., 1::3]),
    "transposed": (lambda shape: shape[::-1], lambda x: x.permute(*range(x.ndim)[::-1])),
    "rows apart": (lambda shape: (*shape[:-1], shape[-1] + 5), lambda x: x[..., :-5]),
}
GUARD = 96


class Placed:
    """An operand in a layout, in memory with guards before and after it that hold NaN like all that is no
    element of it."""

    def __init__(self, shape: tuple[int, ...], dtype: Any, layout: str, values: Any = None) -> None:
        outer, of = LAYOUTS[layout]
        size = torch.Size(outer(shape)).numel()
        # An odd number of elements before it: not even 4 bytes are sure to be aligned.
        self._memory = torch.full((size + 2 * GUARD + 1,), float("nan"), dtype=dtype, device=DEVICE)
        self._of = lambda flat: of(flat[GUARD + 1 : GUARD + 1 + size].view(outer(shape)))
        self.x = self._of(self._memory)
        if values is not None:
            self.x.copy_(values)

    def need_guards(self) -> None:
        """Nothing beside the elements was written, and each of them was."""
        assert not self.x.isnan().any(), "an element was not written"
        inside = torch.zeros_like(self._memory, dtype=torch.bool)
        self._of(inside).fill_(True)
        assert self._memory[~inside].isnan().all(), "memory beside the output was written"


def need_close(got: Any, exact: Any, error: Any) -> None:
    """`got` is `exact`, up to an error of what was computed and the rounding to its own type."""
    bound = error + (error + exact.abs()) * ROUNDING[got.dtype] + 2.0**-24  # below F16's normal numbers
    assert ((got.double() - exact).abs() <= bound).all()


class Op(NamedTuple):
    """An operator, what it is called with, and what it must give in float64."""

    outputs: tuple[tuple[int, ...], ...]
    inputs: tuple[tuple[int, ...], ...]
    call: Callable[..., object]  # outputs first
    exact: Callable[..., tuple[Any, ...]]  # of the outputs before the call and the inputs, in float64
    terms: int  # roundings of a result, but for the last one


def _norm(*x: Any) -> tuple[Any, ...]:
    _, _, a, b, weight = x
    total = a + b
    return total * (total.square().mean(-1, keepdim=True) + EPSILON).rsqrt() * weight, total


OPS = {
    "add": Op(((33, 47),), ((33, 47), (33, 47)), ip.add_, lambda c, a, b: (a + b,), 0),
    "add, broadcast": Op(((33, 47),), ((47,), (33, 1)), ip.add_, lambda c, a, b: (a + b,), 0),
    "mul": Op(((5, 9, 70),), ((5, 9, 70), (9, 1)), ip.mul_, lambda c, a, b: (a * b,), 0),
    "rearrange": Op(((70, 41),), ((70, 41),), ip.rearrange_, lambda y, x: (x,), 0),
    "gemm": Op(((65, 40),), ((65, 130), (130, 40)), ip.gemm_, lambda c, a, b: (a @ b,), 131),
    "gemm, one row": Op(((1, 300),), ((1, 129), (129, 300)), ip.gemm_, lambda c, a, b: (a @ b,), 130),
    "gemm, batches": Op(((3, 20, 30),), ((3, 20, 64), (64, 30)), ip.gemm_, lambda c, a, b: (a @ b,), 65),
    "add_rms_norm": Op(
        ((7, 1000), (7, 1000)), ((7, 1000), (7, 1000), (1000,)),
        lambda *x: ip.add_rms_norm_(*x, EPSILON), _norm, 1010,
    ),
}  # fmt: skip


def errors(name: str, op: Op, dtype: Any, wide: list[Any], exact: tuple[Any, ...]) -> list[Any]:
    """How far what is computed may be from the exact results before it is rounded to the outputs' type."""
    unit = op.terms * ROUNDING[torch.float64 if dtype == torch.float64 else torch.float32]
    if name.startswith("gemm"):
        a, b = wide
        return [2 * unit * (a.abs() @ b.abs())]  # twice: the reference rounds, too
    if name == "add_rms_norm":  # of the sum as it was rounded; the norm passes on no more than the rounding
        return [2 * (unit + 2 * ROUNDING[dtype]) * exact[0].abs(), torch.zeros_like(exact[1])]
    return [ROUNDING[torch.float64] * abs(x) for x in exact]


def place(op: Op, dtype: Any, layout: str) -> tuple[list[Placed], list[Placed]]:
    outputs = [Placed(shape, dtype, layout) for shape in op.outputs]
    inputs = [
        Placed(shape, dtype, layout, normal(*shape, dtype=dtype, seed=i)) for i, shape in enumerate(op.inputs)
    ]
    return outputs, inputs


def need_results(name: str, op: Op, dtype: Any, outputs: list[Any], inputs: list[Any]) -> None:
    wide = [x.double() for x in inputs]
    exact = op.exact(*[None] * len(outputs), *wide)
    for got, wanted, error in zip(outputs, exact, errors(name, op, dtype, wide, exact), strict=True):
        need_close(got, wanted, error)


#: add_rms_norm needs rows whose elements lie side by side.
PLACES = [
    (name, layout)
    for name in OPS
    for layout in LAYOUTS
    if name != "add_rms_norm" or layout not in ("steps", "transposed")
]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(("name", "layout"), PLACES)
def test_against_float64(name: str, layout: str, dtype: Any) -> None:
    op = OPS[name]
    outputs, inputs = place(op, dtype, layout)
    before = [x.x.clone() for x in inputs]
    op.call(*(x.x for x in outputs), *(x.x for x in inputs))
    for output in outputs:
        output.need_guards()
    for x, was in zip(inputs, before):
        assert torch.equal(x.x, was), "an input was written"
        x.need_guards()
    need_results(name, op, dtype, [x.x for x in outputs], before)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_gemm_with_an_addend(dtype: Any) -> None:
    a, b, c = normal(40, 33, dtype=dtype), normal(33, 50, dtype=dtype), normal(40, 50, dtype=dtype, seed=3)
    wide = 0.5 * (a.double() @ b.double()) - 2 * c.double()
    sizes = 0.5 * (a.double().abs() @ b.double().abs()) + 2 * c.double().abs()
    unit = ROUNDING[torch.float64 if dtype == torch.float64 else torch.float32]
    got = ip.gemm(a, b, 0.5, -2.0, c=c)
    assert got.device.type == DEVICE
    need_close(got, wide, 80 * unit * sizes)
    ip.gemm_(c, a, b, 0.5, -2.0)
    assert torch.equal(got, c)


def test_outputs_that_are_inputs() -> None:
    a, b = normal(70, 33), normal(70, 33, seed=1)
    x = a.clone()
    ip.add_(x, x, b)
    assert torch.equal(x, a + b)
    ip.mul_(x, x, x)
    assert torch.equal(x, (a + b) * (a + b))
    residual, weight = b.clone(), normal(33, seed=2)
    wanted = ip.add_rms_norm(a, b, weight, EPSILON)
    y = torch.full_like(a, float("nan"))
    ip.add_rms_norm_(y, residual, a, residual, weight, EPSILON)
    assert torch.equal(y, wanted[0]) and torch.equal(residual, wanted[1])
    memory = normal(100)
    before = memory.clone()
    with pytest.raises(ip.InfiniopError, match="overlap"):
        ip.add_(memory[1:51], memory[:50], memory[50:])
    assert torch.equal(memory, before)


def test_on_a_stream_of_torch_without_waiting() -> None:
    """What torch queues before and after on the same stream is in order with the calls, and the host waits
    only at the end."""
    n = 1024
    a, b = normal(n, n), normal(n, n, seed=1)
    wanted = torch.relu((a + 1) + b) * 2
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    early = False  # once at least: the first calls are planned, and memory is got
    for _ in range(5):
        with torch.cuda.stream(stream):
            x = torch.full_like(a, float("nan"))
            torch.cuda._sleep(20_000_000)  # some ten milliseconds, in which nothing is there yet
            x.copy_(a + 1)
            y = ip.add(x, b)
            x.fill_(float("nan"))
            torch.relu_(y)
            ip.mul_(y, y, torch.full((1,), 2.0, device=DEVICE))
            early |= not stream.record_event().query()
        stream.synchronize()
        assert torch.equal(y, wanted)
    assert early, "the host waited for the device each time"


def test_two_streams() -> None:
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    a = normal(512, 512)
    torch.cuda.synchronize()
    with torch.cuda.stream(first):
        torch.cuda._sleep(2_000_000)
        x = ip.add(a, a)
    second.wait_stream(first)
    with torch.cuda.stream(second):
        y = ip.mul(x, a)
    torch.cuda.synchronize()
    assert torch.equal(y, (a + a) * a)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", OPS)
def test_captured_by_torch_and_replayed(name: str, dtype: Any) -> None:
    op = OPS[name]
    placed_outputs, placed_inputs = place(op, dtype, "rows apart")
    outputs, inputs = [x.x for x in placed_outputs], [x.x for x in placed_inputs]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # so that its workspace is there
        op.call(*outputs, *inputs)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        op.call(*outputs, *inputs)
    for seed in (10, 20, 30):
        for i, x in enumerate(inputs):
            x.copy_(normal(*x.shape, dtype=dtype, seed=seed + i))
        for x in outputs:
            x.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        for output in placed_outputs:
            output.need_guards()
        need_results(name, op, dtype, outputs, inputs)


def test_the_package_s_own_graph() -> None:
    x, b = normal(64, 64), normal(64, 64, seed=1)
    out = torch.empty_like(x)
    with ip.Graph() as graph:
        ip.mul_(out, ip.add(x, b), b)
    stream = torch.cuda.Stream()
    for seed in (5, 6, 7):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            x.copy_(normal(64, 64, seed=seed))
            out.fill_(float("nan"))
            graph.run()
            assert torch.equal(out, (x + b) * b)


@pytest.mark.parametrize("dtype", (*FLOATS, torch.int32, torch.uint8, torch.complex64), ids=str)
def test_dlpack_both_ways(dtype: Any) -> None:
    x = normal(6, 10).mul(8).abs().to(dtype)[:, 1::2]
    ours = ip.from_dlpack(x)
    assert ours.device == ip.Device(DEVICE) and ours.data_ptr == x.data_ptr()
    assert torch.equal(torch.from_dlpack(ip.rearrange(ours)), x)
    back = torch.from_dlpack(ours)
    assert back.data_ptr() == x.data_ptr() and back.stride() == x.stride() and torch.equal(back, x)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):  # waits for the thread's stream of ours
        assert torch.equal(torch.from_dlpack(ip.rearrange(ours)), x)


class Interface:
    """Nothing but the interface, with the stream that torch works on."""

    def __init__(self, x: Any) -> None:
        self.__cuda_array_interface__ = {
            **x.__cuda_array_interface__,
            "version": 3,
            "stream": torch.cuda.current_stream().cuda_stream or 1,
        }
        self._kept = x


def test_cuda_array_interface_both_ways() -> None:
    a, b = normal(30, 20), normal(20, 30, seed=1)
    got = ip.add(Interface(a), Interface(b.T))
    assert type(got) is ip.Tensor
    assert torch.equal(torch.as_tensor(got, device=DEVICE), a + b.T)
    out = torch.full_like(a, float("nan"))
    ip.mul_(Interface(out), Interface(a), Interface(a))
    assert torch.equal(out, a * a)
    part = torch.as_tensor(got[::2, 1:], device=DEVICE)
    assert part.data_ptr() == got.data_ptr + 4 and torch.equal(part, (a + b.T)[::2, 1:])


def test_operators_of_torch() -> None:
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13):
        pytest.skip(f"infiniop_py.torch needs torch 2.13, this is {torch.__version__}")
    import infiniop_py.torch  # noqa: F401

    ops, dtype = torch.ops.infiniop, torch.float32
    a, b, weight = normal(20, 30), normal(20, 30, seed=1), normal(30, seed=2)
    assert torch.equal(ops.add(a, b), ip.add(a, b)) and torch.equal(ops.mul(a, b), a * b)
    assert torch.equal(ops.rearrange(a.T), a.T)
    assert torch.equal(ops.gemm(a, b.T), ip.gemm(a, b.T))
    for got, wanted in zip(ops.add_rms_norm(a, b, weight), ip.add_rms_norm(a, b, weight), strict=True):
        assert torch.equal(got, wanted)
    c = torch.empty(20, 30, dtype=dtype, device=DEVICE)
    ops.add_(c, a, b)
    assert torch.equal(c, a + b)
    x, y = (normal(5, 6, dtype=torch.float64, seed=i).requires_grad_() for i in range(2))
    torch.ops.infiniop.gemm(x, y.T).sum().backward()
    torch.testing.assert_close(x.grad, y.detach().sum(0).expand(5, 6))
