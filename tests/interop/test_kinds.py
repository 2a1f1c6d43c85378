"""Frameworks come when their arrays come: what is imported, what Tensor's own methods take, and BF16."""

from __future__ import annotations

import sys
import textwrap
from typing import Any

import children
import ml_dtypes
import numpy as np
import pytest
from _kinds import KINDS
from _producers import Interface, Producer

import infiniop_py as ip
from infiniop_py._conformance.layouts import bits

FRAMEWORKS = ("torch", "jax", "jaxlib", "cupy", "ml_dtypes", "ctypes")


def test_calls_on_numpy_and_tensors_import_no_framework() -> None:
    code = f"""
        import sys, numpy
        before = set(sys.modules)
        import infiniop_py as ip
        x = numpy.ones(3, "f4")
        class Interface:
            __array_interface__ = x.__array_interface__
        t = ip.ones(3) + x
        ip.add(x, Interface())
        with ip.Graph() as graph:
            ip.mul_(t, t, t)
        graph.run()
        for wrong in (None, "x", [1.0], 1.0, numpy.ma.ones(3)):
            try: ip.add(x, wrong)
            except TypeError: pass
            else: raise AssertionError(wrong)
        print(*sorted(set({FRAMEWORKS!r}) & (set(sys.modules) - before)))
    """
    assert children.run(textwrap.dedent(code)) == "\n"


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_a_framework_imported_afterwards(framework: str) -> None:
    pytest.importorskip(framework)
    make, result = {
        "torch": ("torch.ones(3)", "torch.Tensor"),
        "jax": ("jax.numpy.ones(3)", "type(jax.numpy.ones(3))"),
    }[framework]
    children.run(
        textwrap.dedent(
            f"""
            import numpy as np, infiniop_py as ip
            x = np.ones(3, "f4")
            ip.add(x, x), ip.ones(3) + x
            import {framework}
            y = ip.add({make}, x)
            assert type(y) is {result} and y.tolist() == [2, 2, 2]
            assert (ip.ones(3) + y).tolist() == [3, 3, 3]
            """
        )
    )


# ---- the methods of Tensor -------------------------------------------------------------------------------

FOREIGN = ["torch", "jax", "dlpack", "array-interface"]


@pytest.mark.parametrize("kind", FOREIGN)
def test_operators_of_a_tensor(kind: str) -> None:
    wrap = KINDS[kind].wrap
    x = np.array([[1, 2], [3, 4]], np.float32)
    t, other = ip.from_numpy(x.copy()), wrap(x)
    for got, wanted in ((t + other, x + x), (t * other, x * x), (t @ other, x @ x)):
        assert type(got) is ip.Tensor
        np.testing.assert_array_equal(np.asarray(got), wanted)
    t += other
    np.testing.assert_array_equal(np.asarray(t), x + x)
    t *= other
    np.testing.assert_array_equal(np.asarray(t), (x + x) * x)
    assert t.copy_(other) is t
    np.testing.assert_array_equal(np.asarray(t), x)
    t[0] = wrap(x[1])
    t[:, 1:] = wrap(np.full((2, 1), 7, np.float32))
    np.testing.assert_array_equal(np.asarray(t), [[3, 7], [3, 7]])


def test_operators_with_numpy_on_either_side() -> None:
    x = np.array([[1, 2], [3, 4]], np.float32)
    t = ip.from_numpy(x.copy())
    for got, wanted in ((x + t, x + x), (x * t, x * x), (x @ t, x @ x), (t @ x, x @ x)):
        assert type(got) is ip.Tensor
        np.testing.assert_array_equal(np.asarray(got), wanted)


@pytest.mark.parametrize("kind", ["dlpack", "array-interface"])
def test_reflected_operators(kind: str) -> None:
    x = np.array([[1, 2], [3, 4]], np.float32)
    left, t = KINDS[kind].wrap(x), ip.from_numpy(2 * x)
    for got, wanted in ((left + t, x + 2 * x), (left * t, x * 2 * x), (left @ t, x @ (2 * x))):
        np.testing.assert_array_equal(np.asarray(got), wanted)


@pytest.mark.parametrize("other", [1, 2.0, [1, 2, 3], None, "abc"], ids=repr)
def test_operators_leave_what_is_no_array(other: Any) -> None:
    with pytest.raises(TypeError):
        ip.ones(3) + other
    with pytest.raises(TypeError):
        other @ ip.ones((3, 3))


def test_copy_refuses_by_name() -> None:
    t = ip.zeros(3)
    with pytest.raises(ip.ShapeError, match=r"^copy_: source is \(2,\), destination is \(3,\)"):
        t.copy_(Producer(np.ones(2, np.float32)))
    with pytest.raises(ip.DTypeError, match=r"^copy_: source is F64, destination is F32"):
        t.copy_(Interface(np.ones(3)))
    with pytest.raises(ip.OperandError, match=r"^copy_: source is a list"):
        t.copy_([1.0, 2.0, 3.0])  # type: ignore[arg-type]
    big = Interface(np.ones(3, ">f4"))
    with pytest.raises(ip.DTypeError, match=r"^copy_: source is an array whose dtype is '>f4'"):
        t.copy_(big)  # type: ignore[arg-type]
    assert t.tolist() == [0, 0, 0]


# ---- BF16 ------------------------------------------------------------------------------------------------


def test_bf16_of_every_library_in_one_call() -> None:
    torch, jax = pytest.importorskip("torch"), pytest.importorskip("jax")
    values = np.array([[1.5, -2.0], [0.25, 3.0]]).astype(ml_dtypes.bfloat16)
    ours = torch.tensor([[1.5, -2.0], [0.25, 3.0]], dtype=torch.bfloat16)
    theirs = jax.numpy.asarray(values)
    for a, b in ((values, ours), (ours, theirs), (theirs, values), (ip.from_numpy(values), ours)):
        for got in (ip.add(a, b), ip.add(b, a), ip.gemm(a, b), ip.mul(b, a)):
            assert type(got) in (type(a), type(b))
    out = ip.zeros((2, 2), "BF16")
    y, residual = ip.add_rms_norm(values, ours, theirs[0], out=out)
    assert y is out and residual.dtype is torch.bfloat16
    np.testing.assert_array_equal(
        bits(np.asarray(residual.float()).astype("f4")), bits((values + values).astype("f4"))
    )


def test_bf16_without_ml_dtypes() -> None:
    """torch has a BF16 of its own, and so has DLPack."""
    pytest.importorskip("torch")
    children.run(
        textwrap.dedent(
            """
            import sys
            sys.modules["ml_dtypes"] = None
            import torch, infiniop_py as ip
            x = torch.tensor([1.0, 2.0, 3.5], dtype=torch.bfloat16)
            y = ip.add(x, x)
            assert y.dtype is torch.bfloat16 and y.tolist() == [2, 4, 7]
            assert ip.mul_(y, x, x) is y and y.tolist() == [1, 4, 12.25]
            t = ip.from_dlpack(x)
            assert t.dtype is ip.DType.BF16 and (t + x).tolist() == [2, 4, 7]
            back = torch.from_dlpack(t)
            assert back.data_ptr() == x.data_ptr() and back.dtype is torch.bfloat16
            try: ip.zeros(3, "BF16").numpy()
            except ip.DTypeError as error: assert "ml_dtypes" in str(error)
            else: raise AssertionError
            """
        )
    )


@pytest.mark.skipif(sys.platform != "linux", reason="uses the shell's exit status of a child")
def test_nothing_is_said_at_the_end_of_a_process() -> None:
    """Arrays, capsules, tensors and graphs that live to the end, whatever goes first."""
    pytest.importorskip("torch"), pytest.importorskip("jax")
    code = textwrap.dedent(
        """
        import numpy as np, torch, jax.numpy as jnp, infiniop_py as ip
        t = ip.ones(3)
        keep = [t, t.__dlpack__(), t.__dlpack__(max_version=(1, 0)), torch.from_dlpack(t), jnp.from_dlpack(t)]
        keep += [np.from_dlpack(t), torch.from_dlpack(t)]
        keep += [ip.from_dlpack(torch.ones(3)), ip.from_dlpack(jnp.ones(3))]
        with ip.Graph() as graph:
            y = ip.add(torch.ones(3), jnp.ones(3), out=t)
        graph.run()
        call = ip.Mul(t, torch.ones(3), np.ones(3, "f4"))
        loop = [keep, graph, call]
        loop.append(loop)
        np.kept, torch.kept, ip.kept = loop, ip.add(t, jnp.ones(3)), [torch.from_dlpack(ip.ones(3))]
        """
    )
    assert children.run(code) == ""
