"""Kinds of arrays as the tests need them: made on a NumPy array's memory, and read back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from _producers import Interface, Producer

import infiniop_py as ip

Array = np.ndarray[Any, Any]


class Kind(NamedTuple):
    """`wrap` makes an array of the kind on the same memory, or says by None that the kind has no such array;
    `values` reads a result's elements back.
    """

    wrap: Callable[[Array], Any]
    values: Callable[[Any], Array]
    result: Callable[[], type]
    as_output: bool = True


def _torch() -> Any:
    return pytest.importorskip("torch")


def import_jax() -> Any:
    """JAX with 64-bit types. Not while tests are collected: see conftest.py."""
    jax = pytest.importorskip("jax")
    jax.config.update("jax_enable_x64", True)
    return jax


def to_torch(array: Array) -> Any:
    """A torch tensor on the array's memory. torch's own conversion knows no BF16 and no negative strides."""
    if any(stride < 0 for stride in array.strides):
        return None
    torch = _torch()
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def from_torch(tensor: Any) -> Array:
    """The elements of a torch tensor, on its memory."""
    if tensor.dtype is _torch().bfloat16:
        return np.asarray(tensor.view(_torch().int16).numpy().view(ip.DType.BF16.numpy))
    return np.asarray(tensor.numpy())


KINDS = {
    "torch": Kind(to_torch, from_torch, lambda: _torch().Tensor),  # type: ignore[no-any-return]
    "jax": Kind(
        lambda array: import_jax().numpy.array(array),
        np.asarray,
        lambda: type(import_jax().numpy.zeros(1)),
        as_output=False,
    ),
    "tensor": Kind(ip.from_numpy, np.asarray, lambda: ip.Tensor),
    "dlpack": Kind(Producer, np.asarray, lambda: ip.Tensor),
    "dlpack-old": Kind(lambda array: Producer(array, versioned=False), np.asarray, lambda: ip.Tensor),
    "array-interface": Kind(
        lambda array: None if array.dtype.name == "bfloat16" else Interface(array),
        np.asarray,
        lambda: np.ndarray,
    ),
}
