"""``infiniop_py.jax``: what infiniop_py computes, under jit, vmap, grad and shard_map."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import children
import numpy as np
import pytest

import infiniop_py as ip

jax = pytest.importorskip("jax")
jnp = import_module("jax.numpy")
ours = import_module("infiniop_py.jax")
DTYPES = ("float16", "bfloat16", "float32", "float64")


@pytest.fixture(autouse=True)
def wide() -> Any:
    with jax.enable_x64(True):
        yield


def randn(*shape: int, dtype: str = "float64", seed: int = 3) -> Any:
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape)).astype(dtype)


def with_addend(a: Any, b: Any, c: Any) -> Any:
    return ours.gemm(a, b, 1.5, 0.5, c=c)


#: What is called, the function of the package that it is, and the shapes of operands.
CALLS: dict[str, tuple[Callable[..., Any], Callable[..., Any], list[tuple[int, ...]]]] = {
    "gemm": (ours.gemm, ip.gemm, [(3, 4), (4, 5)]),
    "gemm, c": (with_addend, lambda a, b, c: ip.gemm(a, b, 1.5, 0.5, c=c), [(2, 3, 4), (4, 5), (2, 3, 5)]),
    "gemm, c unread": (
        lambda a, b, c: ours.gemm(a, b, c=c), lambda a, b, c: ip.gemm(a, b), [(3, 4), (4, 5), (3, 5)],
    ),
    "gemm, one a": (ours.gemm, ip.gemm, [(3, 4), (2, 4, 5)]),
    "gemm, several runs": (ours.gemm, ip.gemm, [(2, 1, 3, 4), (5, 4, 2)]),
    "gemm, nothing": (ours.gemm, ip.gemm, [(3, 0), (0, 5)]),
    "add": (ours.add, ip.add, [(3, 1), (2, 1, 4)]),
    "mul": (ours.mul, ip.mul, [(4,), (2, 3, 1)]),
    "add_rms_norm": (
        lambda *of: ours.add_rms_norm(*of, 0.25), lambda *of: ip.add_rms_norm(*of, 0.25),
        [(2, 3, 4), (2, 3, 4), (4,)],
    ),
    "rearrange": (ours.rearrange, lambda x: ip.rearrange(x.T), [(2, 3, 4)]),
    "rearrange, axes": (
        lambda x: ours.rearrange(x, (1, 2, 0)), lambda x: ip.rearrange(x.transpose(1, 2, 0)), [(2, 3, 4)],
    ),
}  # fmt: skip


def operands(name: str, dtype: str) -> list[Any]:
    return [randn(*shape, dtype=dtype, seed=i) for i, shape in enumerate(CALLS[name][2])]


def as_tuple(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)


def assert_same_bits(got: Any, wanted: Any) -> None:
    for x, y in zip(as_tuple(got), as_tuple(wanted), strict=True):
        assert isinstance(x, jax.Array) and x.dtype == y.dtype and x.shape == y.shape
        assert np.asarray(x).tobytes() == np.ascontiguousarray(y).tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CALLS)
def test_results_are_those_of_the_package(name: str, dtype: str) -> None:
    function, plainly, _ = CALLS[name]
    given = operands(name, dtype)
    wanted = plainly(*map(np.asarray, given))
    assert_same_bits(function(*given), wanted)
    assert_same_bits(jax.jit(function)(*given), wanted)


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "uint64"])
def test_integers(dtype: str) -> None:
    a, b = np.arange(12).reshape(3, 4).astype(dtype), np.arange(4).astype(dtype)
    assert_same_bits(jax.jit(ours.add)(a, b), a + b)
    assert_same_bits(ours.mul(a, b), a * b)
    assert_same_bits(ours.rearrange(jnp.asarray(a)), ip.rearrange(a.T))


def test_an_addend_that_is_needed_again() -> None:
    """XLA copies it, as the product is written over it."""
    a, b, c = operands("gemm, c", "float32")
    product, same = jax.jit(lambda a, b, c: (with_addend(a, b, c), c + 1))(a, b, c)
    assert_same_bits(product, ip.gemm(*map(np.asarray, (a, b)), 1.5, 0.5, c=np.asarray(c)))
    assert_same_bits(same, np.asarray(c) + 1)


# ---- vmap --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CALLS)
def test_vmap(name: str) -> None:
    """Of any of the operands, against one call after the other."""
    function, _, shapes = CALLS[name]
    for chosen in range(1, 2 ** len(shapes)):
        along = [i % 2 if chosen >> i & 1 else None for i in range(len(shapes))]  # where the batch is
        given = [
            randn(*(shape if at is None else (*shape[:at], 3, *shape[at:])), dtype="float32", seed=i)
            for i, (shape, at) in enumerate(zip(shapes, along))
        ]
        got = as_tuple(jax.jit(jax.vmap(function, in_axes=along))(*given))
        for item in range(3):
            alone = [x if at is None else jnp.take(x, item, axis=at) for x, at in zip(given, along)]
            assert_same_bits(tuple(x[item] for x in got), as_tuple(function(*alone)))


def test_vmap_of_vmap() -> None:
    a, b = randn(6, 3, 4, dtype="float32"), randn(5, 4, 2, dtype="float32")
    got = jax.vmap(jax.vmap(ours.gemm, (None, 0)), (0, None))(a, b)
    assert_same_bits(got, ip.gemm(np.asarray(a)[:, None], np.asarray(b)))


def test_a_vmap_is_one_call() -> None:
    """Not one for each item, but where the weight of a norm differs from item to item."""

    def calls(function: Any, *given: Any) -> int:
        return str(jax.jit(function).lower(*given).as_text()).count("@infiniop")

    a, b = randn(6, 3, 4, dtype="float32"), randn(6, 4, 2, dtype="float32")
    assert calls(jax.vmap(ours.gemm), a, b) == 1
    assert calls(jax.vmap(ours.gemm, (0, None)), a, b[0]) == 1
    assert calls(jax.vmap(ours.add_rms_norm, (0, 0, None)), a, a, a[0, 0]) == 1
    assert "while" not in str(jax.jit(jax.vmap(ours.mul)).lower(a, a).as_text())


# ---- derivatives -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CALLS)
def test_derivatives(name: str) -> None:
    """Of the results, and of the derivatives, against differences."""
    import_module("jax.test_util").check_grads(
        CALLS[name][0], operands(name, "float64"), order=2, modes=["rev"]
    )


def test_the_derivative_by_the_addend_has_the_beta_of_the_product() -> None:
    """F32's, whatever is computed in."""
    a, b, c = (jnp.ones(shape) for shape in ((3, 4), (4, 5), (3, 5)))
    d = jax.grad(lambda c: ours.gemm(a, b, 1.0, 0.1, c=c).sum())(c)
    assert d.dtype == "float64" and (d == float(np.float32(0.1))).all()


@pytest.mark.parametrize("name", [name for name in CALLS if name != "gemm, nothing"])
def test_derivatives_in_batches(name: str) -> None:
    function, _, shapes = CALLS[name]
    given = [randn(3, *shape, seed=i) for i, shape in enumerate(shapes)]

    def loss(*of: Any) -> Any:
        return sum(jnp.sin(x).sum() for x in as_tuple(function(*of)))

    gradient = jax.grad(loss, argnums=tuple(range(len(shapes))))
    got = jax.vmap(gradient)(*given)
    for item in range(3):
        for x, y in zip(got, gradient(*(x[item] for x in given)), strict=True):
            np.testing.assert_allclose(x[item], y, rtol=1e-12, atol=1e-12)


def test_half_products_sum_over_batches_before_they_round() -> None:
    """2048 + 1 is no F16: one after the other, they would stay 2048."""
    a = jnp.ones((4, 1, 1), "float16").at[0].set(2048)
    b = jnp.ones((1, 1), "float16")
    assert jax.grad(lambda b: ours.gemm(a, b).sum())(b).item() == 2052  # of 2051, to even


# ---- several devices ---------------------------------------------------------------------------------------


def shared_out() -> None:
    """On two devices of this host: results and derivatives are those on one."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("i",))
    assert mesh.size == 2
    P = jax.sharding.PartitionSpec

    def summed(a: Any, b: Any) -> Any:
        return jax.lax.psum(ours.gemm(a, b), "i")

    rows, everywhere = P("i"), P()
    a, b = randn(8, 6), randn(6, 4, seed=1)
    cases: list[tuple[Any, Any, Any, Any, list[Any]]] = [
        (ours.gemm, ours.gemm, (rows, everywhere), rows, [a, b]),
        (ours.gemm, ours.gemm, (everywhere, P(None, "i")), P(None, "i"), [a, b]),
        (summed, ours.gemm, (P(None, "i"), rows), everywhere, [a, b]),
        (with_addend, with_addend, (rows, everywhere, rows), rows, [a, b, randn(8, 4)]),
        (ours.add, ours.add, (rows, everywhere), rows, [a, a[0]]),
        (ours.mul, ours.mul, (rows, rows), rows, [a, a]),
        (ours.add_rms_norm, ours.add_rms_norm, (rows, rows, everywhere), (rows, rows), [a, a, a[0]]),
        (ours.rearrange, ours.rearrange, (rows,), P(None, "i"), [a]),
    ]
    for inner, plainly, of_operands, of_results, given in cases:
        function = jax.jit(jax.shard_map(inner, mesh=mesh, in_specs=of_operands, out_specs=of_results))

        def loss(function: Any, *of: Any) -> Any:
            return sum(jnp.sin(x).sum() for x in as_tuple(function(*of)))

        everything = tuple(range(1, 1 + len(given)))
        for got, wanted in (
            (as_tuple(function(*given)), as_tuple(plainly(*given))),
            (jax.grad(loss, everything)(function, *given), jax.grad(loss, everything)(plainly, *given)),
        ):
            for x, y in zip(got, wanted, strict=True):
                np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=1e-12, atol=1e-12)


def with_two_devices() -> None:
    with jax.enable_x64(True):
        shared_out()


def test_shard_map() -> None:
    children.call(with_two_devices, XLA_FLAGS="--xla_force_host_platform_device_count=2")


def with_another_current_device() -> None:
    a = randn(3, 4, dtype="float32")
    ip.set_device("qy:1")
    assert_same_bits(jax.jit(ours.add)(a, a), np.asarray(a + a))
    assert ip.get_device() == ip.Device("qy:1")


def test_the_current_device_is_none_of_its_business(tmp_path: Path) -> None:
    children.call(
        with_another_current_device, INFINIOP_BACKEND_PATH=str(children.build_fake_backend(tmp_path))
    )


# ---- what is wrong -----------------------------------------------------------------------------------------


def test_what_does_not_fit_is_refused_when_it_is_traced() -> None:
    a, b = randn(3, 4, dtype="float32"), randn(4, 5, dtype="float16")
    with pytest.raises(ip.ShapeError, match="gemm: inner dimensions differ"):
        jax.jit(ours.gemm)(a, a)
    with pytest.raises(ip.DTypeError, match="gemm: dtypes differ: a is F32, b is F16"):
        ours.gemm(a, b)
    with pytest.raises(ip.ParamError, match=r"beta is 2\.0, but there is no c"):
        ours.gemm(a, a.T, beta=2.0)
    with pytest.raises(ip.ShapeError, match=r"gemm: c is \(3,\), but the result is \(3, 3\)"):
        ours.gemm(a, a.T, 1.0, 1.0, c=a[:, 0])
    with pytest.raises(ip.ShapeError, match=r"gemm: c is \(3,\), but the result is \(3, 3\)"):
        ours.gemm(a, a.T, 1.0, 0.0, c=a[:, 0])  # which is not read, but would not fit
    with pytest.raises(ip.ShapeError, match="add_rms_norm: shapes do not fit"):
        ours.add_rms_norm(a, a, a[0, :2])
    with pytest.raises(ip.ShapeError, match=r"add: shapes do not broadcast: a is \(3, 4\), b is \(3, 3\)"):
        ours.add(a, a[:, :3])
    integers, flags = jnp.ones((2, 2), jnp.int32), jnp.ones(2, bool)
    for call, operand in ((ours.gemm, integers), (ours.add, flags)):
        with pytest.raises(ip.DTypeError, match=r"I32|BOOL"):
            jax.eval_shape(call, operand, operand)
    with pytest.raises(ip.ParamError, match=r"rearrange: axes is \(0, 0\), needs each of \(0, 1\) once"):
        ours.rearrange(a, (0, 0))
    for axes in (1, (1.0, 0.0)):
        with pytest.raises(ip.OperandError, match=r"rearrange: axes is .*, needs ints"):
            ours.rearrange(a, axes)


def test_axes_may_count_from_the_end() -> None:
    x = randn(2, 3, 4, dtype="float32")
    assert (ours.rearrange(x, (-1, 0, -2)) == jnp.transpose(x, (-1, 0, -2))).all()


def test_no_more_functions_are_kept_than_a_limit() -> None:
    kept = import_module("infiniop_py.jax._functions")
    for function in (kept._product, kept._norm, kept._transpose):
        assert 0 < (function.cache_info().maxsize or 0) < 1 << 16


def test_without_jax() -> None:
    children.run(
        "import sys; sys.modules['jax'] = None\n"
        "try: import infiniop_py.jax\n"
        "except ImportError as error: assert \"pip install 'infiniop_py[jax]'\" in str(error), error\n"
        "else: raise AssertionError"
    )
