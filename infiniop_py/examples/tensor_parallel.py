"""A gated MLP shared out over processes, forward and backward::

    torchrun --nproc-per-node 2 -m infiniop_py.examples.tensor_parallel

The block is that of a decoder, made of this package's operators as torch's own::

    y, residual = add_rms_norm(x, residual, w_norm)
    result      = (gate(y) * up(y)) @ w_down^T + residual

Each process holds its columns of `gate` and `up` and its rows of `down`; one sum over all processes is all
they exchange, forward and backward. Every process computes the whole block, too, and compares results and
gradients. Processes talk by gloo on CPUs, by NCCL where there are NVIDIA GPUs; on those, the operators need a
backend for them. Exit status 1 if a result differs.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import infiniop_py.torch.sharding  # noqa: F401  registers the operators, and how they are shared out
from infiniop_py import device_count
from infiniop_py.torch import AddRMSNorm, Linear

WIDTH, HIDDEN, TOKENS = 256, 1024, 64


class Block(nn.Module):
    """What is above."""

    def __init__(self, width: int, hidden: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.norm = AddRMSNorm(width, dtype=dtype)
        self.gate = Linear(width, hidden, bias=False, dtype=dtype)
        self.up = Linear(width, hidden, bias=False, dtype=dtype)
        self.down = Linear(hidden, width, bias=True, dtype=dtype)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        operators = torch.ops.infiniop
        y, residual = self.norm(x, residual)
        hidden = operators.mul(self.gate(y), self.up(y))
        return operators.add(self.down(hidden), residual)


PLAN = {
    "gate": ColwiseParallel(),
    "up": ColwiseParallel(),
    "down": RowwiseParallel(),
}


def whole(x: Any) -> Tensor:
    """What all parts of a tensor make together."""
    return x.full_tensor() if isinstance(x, DTensor) else x


def worst(parts: Block, block: Block, x: Tensor, residual: Tensor) -> dict[str, float]:
    """The largest difference of the results and of each gradient, over the root of the mean square."""
    inputs = [[one.clone().requires_grad_() for one in (x, residual)] for _ in range(2)]
    results = [module(*given) for module, given in zip((parts, block), inputs)]
    for result in results:
        (result * torch.cos(result.detach())).sum().backward()  # gradients that differ from place to place
    pairs = {"result": (results[0], results[1])}
    pairs |= {name: (a.grad, b.grad) for name, a, b in zip(("d x", "d residual"), *inputs)}
    for (name, a), b in zip(parts.named_parameters(), block.parameters()):
        pairs[f"d {name}"] = (whole(a.grad), b.grad)
    return {
        name: float(((got - wanted).abs().max() / wanted.square().mean().sqrt()).detach())
        for name, (got, wanted) in pairs.items()
    }


def main() -> int:
    on_gpus = torch.cuda.is_available() and device_count("nvidia") > 0
    dist.init_process_group("nccl" if on_gpus else "gloo")
    try:
        rank, size = dist.get_rank(), dist.get_world_size()
        kind = "cuda" if on_gpus else "cpu"
        if on_gpus:
            torch.cuda.set_device(rank % torch.cuda.device_count())
        mesh = init_device_mesh(kind, (size,))
        torch.manual_seed(0)  # the same block and the same tokens in every process
        dtype = torch.float64
        block = Block(WIDTH, HIDDEN, dtype).to(kind)
        parts = Block(WIDTH, HIDDEN, dtype).to(kind)
        parts.load_state_dict(block.state_dict())
        parallelize_module(parts, mesh, PLAN)
        x, residual = torch.randn(2, TOKENS, WIDTH, dtype=dtype).to(kind)
        errors = worst(parts, block, x, residual)
        # Sums of HIDDEN products at most, in another order.
        bound = HIDDEN * torch.finfo(dtype).eps
        if rank == 0:
            print(f"{size} processes ({dist.get_backend()}), each with {HIDDEN // size} of {HIDDEN} columns")
            for name, error in errors.items():
                print(f"{name:14} differs by {error:.1e} of its size; {bound:.1e} may be")
        return int(not max(errors.values()) <= bound)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    # gloo's threads live as long as a mesh, which torch caches; one that gives a tensor back while the
    # interpreter takes itself apart ends the process with SIGABRT. So there is no such moment.
    os._exit(status)
