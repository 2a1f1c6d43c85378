"""torch's autograd: what it saved and an operator of ours overwrites must make backward raise, not lie."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import infiniop_py as ip

torch = pytest.importorskip("torch")

CHANGED = "modified by an inplace operation"


def saved(*shape: int) -> tuple[Any, Any]:
    """A tensor that autograd saved for backward, and the loss that it was saved for."""
    leaf = torch.ones(*shape, requires_grad=True)
    factor = torch.full(shape, 2.0)
    return factor, (leaf * factor).sum()


ONES = torch.ones(2, 2)
WRITES: dict[str, Callable[[Any], object]] = {
    "add_": lambda x: ip.add_(x, ONES, ONES),
    "add out": lambda x: ip.add(ONES, ONES, out=x),
    "mul_": lambda x: ip.mul_(x, ONES, ONES),
    "gemm_": lambda x: ip.gemm_(x, ONES, ONES),
    "gemm out": lambda x: ip.gemm(ONES, ONES, 1.0, 1.0, c=ONES, out=x),
    "gemm_ of numpy": lambda x: ip.gemm_(x, np.eye(2, dtype="f4"), ONES),
    "rearrange_": lambda x: ip.rearrange_(x, ONES),
    "add_rms_norm_ y": lambda x: ip.add_rms_norm_(x, ONES.clone(), ONES, ONES, ONES[0]),
    "add_rms_norm_ residual": lambda x: ip.add_rms_norm_(ONES.clone(), x, ONES, ONES, ONES[0]),
    "add_rms_norm out": lambda x: ip.add_rms_norm(ONES, ONES, ONES[0], out=x),
    "add_rms_norm residual_out": lambda x: ip.add_rms_norm(ONES, ONES, ONES[0], residual_out=x),
    "class": lambda x: ip.Add(x, ONES, ONES).run(),
    "execute": lambda x: ip.Rearrange.execute(x, ONES),
    "a view": lambda x: ip.add_(x[:1], ONES[:1], ONES[:1]),
}


@pytest.mark.parametrize("name", WRITES)
def test_backward_refuses_what_was_overwritten(name: str) -> None:
    for _ in range(2):  # planned, and like a call before
        x, loss = saved(2, 2)
        WRITES[name](x)
        with pytest.raises(RuntimeError, match=CHANGED):
            loss.backward()


def test_each_run_of_a_planned_call_counts() -> None:
    x = torch.zeros(2, 2)
    call = ip.Add(x, ONES, ONES)
    leaf = torch.ones(2, 2, requires_grad=True)
    loss = (leaf * x).sum()
    call.run()
    with pytest.raises(RuntimeError, match=CHANGED):
        loss.backward()


def test_recording_does_not_count_and_each_replay_does() -> None:
    x = torch.zeros(2, 2)
    version = x._version
    with ip.Graph() as graph:
        ip.add_(x, ONES, ONES)
        ip.mul_(x, x, ONES)
    assert x._version == version
    for _ in range(2):
        leaf = torch.ones(2, 2, requires_grad=True)
        loss = (leaf * x).sum()
        graph.run()
        with pytest.raises(RuntimeError, match=CHANGED):
            loss.backward()


READS: dict[str, Callable[[Any], object]] = {
    "add": lambda x: ip.add(x, x),
    "gemm with addend": lambda x: ip.gemm(x, x, 1.0, 1.0, c=x),
    "add_rms_norm": lambda x: ip.add_rms_norm(x, x, x[0]),
    "rearrange": lambda x: ip.rearrange(x),
    "copy_": lambda x: ip.zeros((2, 2)).copy_(x),
    "setitem": lambda x: ip.zeros((2, 2)).__setitem__(..., x),
    "operator": lambda x: ip.ones((2, 2)) + x,
    "from_dlpack": lambda x: ip.from_dlpack(x),
}


@pytest.mark.parametrize("name", READS)
def test_reading_changes_no_version(name: str) -> None:
    x, loss = saved(2, 2)
    READS[name](x)
    loss.backward()


def test_an_implementation_in_python_counts_its_outputs_only(own: Any) -> None:
    def add(c: ip.Tensor, a: ip.Tensor, b: ip.Tensor) -> None:
        np.add(a.numpy(), b.numpy(), out=c.numpy())

    x, loss = saved(2, 2)
    y, other = saved(2, 2)
    own(ip.Add, add)
    ip.add_(x, y, y)
    assert x.tolist() == [[4, 4], [4, 4]]
    other.backward()
    with pytest.raises(RuntimeError, match=CHANGED):
        loss.backward()


REFUSED: dict[str, Callable[[Any], object]] = {
    "shape": lambda x: ip.add_(x, ONES[:1], ONES[:1, :1]),
    "dtype": lambda x: ip.add_(x, ONES.double(), ONES.double()),
    "overlap": lambda x: ip.gemm_(x, x, ONES),
    "rank": lambda x: ip.add_rms_norm_(x, ONES.clone(), ONES, ONES, ONES),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_call_changes_no_version(name: str) -> None:
    x, loss = saved(2, 2)
    with pytest.raises(ip.InfiniopError):
        REFUSED[name](x)
    loss.backward()


def test_requires_grad() -> None:
    leaf = torch.ones(2, 2, requires_grad=True)
    with pytest.raises(ip.ParamError, match=r"^add: a is a torch tensor that requires grad"):
        ip.add(leaf, ONES)
    with pytest.raises(ip.ParamError, match=r"^mul: c is a torch tensor that requires grad"):
        ip.mul_(leaf, ONES, ONES)
    with torch.no_grad():
        result = ip.add(leaf, ONES)
        assert ip.add_(leaf, ONES, ONES) is leaf
    assert not result.requires_grad and result.tolist() == leaf.tolist() == [[2, 2], [2, 2]]
    assert ip.add(leaf.detach(), ONES).tolist() == [[3, 3], [3, 3]]


def test_inference_tensors() -> None:
    """They have no version to count."""
    with torch.inference_mode():
        x = torch.ones(3)
        y = ip.add(x, x)
        assert y.is_inference() and ip.mul_(y, y, y) is y
    assert ip.add_(x, y, y) is x  # outside of the mode, too
    assert x.tolist() == [8, 8, 8]
    with torch.inference_mode():
        plain = ip.add_(ONES.clone(), ONES, ONES)
    assert plain.tolist() == [[2, 2], [2, 2]]
