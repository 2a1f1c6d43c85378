"""The operators on DTensors, in 2 and 4 real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import timedelta
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from children import ROOT

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)

TIMEOUT_S = 240


def torchrun(n: int, *program: str) -> str:
    """What the processes print that run a program; fails with what they say."""
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={n}",
        *program,
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "tests"), str(Path(__file__).parent)])
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("n", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_a_block_shared_out(n: int) -> None:
    """Forward and backward, against one process."""
    said = torchrun(n, "-m", "infiniop_py.examples.tensor_parallel")
    assert said.startswith(f"{n} processes (gloo)")
    assert said.count("differs by") == 8


def test_every_rule() -> None:
    assert "every rule" in torchrun(2, __file__, "rules")


# ---- in the processes --------------------------------------------------------------------------------------


def alone(operator: Any, arguments: list[Any]) -> Any:
    """The result of a call, which must not need other processes."""
    from torch.distributed.tensor.debug import CommDebugMode

    with CommDebugMode() as mode:
        result = operator(*arguments)
    assert mode.get_total_counts() == 0, mode.get_comm_counts()
    return result


def rules() -> None:
    """Each rule's operands are computed with where they lie, and make what the rule says they make."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Replicate, distribute_tensor

    sharding = import_module("infiniop_py.torch.sharding")
    dist = torch.distributed
    dist.init_process_group("gloo", timeout=timedelta(seconds=TIMEOUT_S))
    n, rank = dist.get_world_size(), dist.get_rank()
    mesh = init_device_mesh("cpu", (n,))
    torch.manual_seed(1)

    def distribute(x: Any, placement: Any) -> Any:
        if not isinstance(placement, Partial):
            return distribute_tensor(x, mesh, [placement])
        # Parts that differ, and make x together.
        part = x * (rank + 1) / (n * (n + 1) / 2)
        return DTensor.from_local(part, mesh, [placement], run_check=False)

    def randn(*shape: int) -> Any:
        return torch.randn(shape, dtype=torch.float64)

    calls = [
        ("gemm", [randn(8, 4), randn(4, 12)]),
        ("gemm", [randn(8, 4), randn(4, 12), 2.0, 0.5, randn(8, 12)]),
        ("gemm", [randn(4, 8, 4), randn(4, 12)]),
        ("gemm", [randn(4, 1, 8, 4), randn(8, 4, 12)]),
        ("add", [randn(8, 4), randn(8, 4)]),
        ("add", [randn(8, 1), randn(4, 1, 4)]),
        ("mul", [randn(8, 1), randn(4, 1, 4)]),
        ("add_rms_norm", [randn(4, 8, 4), randn(4, 8, 4), randn(4)]),
        ("add_rms_norm", [randn(8, 4), randn(8, 4), randn(4), 0.5]),
        ("rearrange", [randn(8, 4).mT]),
    ]
    seen = 0
    for name, arguments in calls:
        operator = getattr(torch.ops.infiniop, name).default
        wanted = operator(*arguments)
        for results, placements in sharding._RULES[name](*arguments):
            shared = [
                distribute(x, placement) if isinstance(x, torch.Tensor) else x
                for x, placement in zip(arguments, placements, strict=True)
            ]
            got = alone(operator, shared)
            for x, y, placement in zip(
                *[one if name == "add_rms_norm" else [one] for one in (got, wanted)], results
            ):
                assert x.placements == (placement,), (
                    f"{name}: {placements} made {x.placements}, not {placement}"
                )
                torch.testing.assert_close(x.full_tensor(), y)
            seen += 1
        # Whatever else operands are: they are redistributed.
        tensors = [i for i, x in enumerate(arguments) if isinstance(x, torch.Tensor)]
        for placements in product([Replicate(), Partial()], repeat=len(tensors)):
            shared = list(arguments)
            for i, placement in zip(tensors, placements):
                shared[i] = distribute(arguments[i], placement)
            got = operator(*shared)
            for x, y in zip(*[one if name == "add_rms_norm" else [one] for one in (got, wanted)]):
                torch.testing.assert_close(x.full_tensor(), y)
    assert seen >= 40
    dist.barrier()
    if rank == 0:
        print(f"every rule: {seen}")
    dist.destroy_process_group()


if __name__ == "__main__":
    rules()
    sys.stdout.flush()
    os._exit(0)  # for what infiniop_py.examples.tensor_parallel says of gloo's threads
