"""These run on an NVIDIA device, or on the backend's sources on the CPU (tests/test_cuda_on_cpu.py). Where
there is neither they skip and say why.
"""

from __future__ import annotations

import pytest

import infiniop_py as ip


def _missing() -> str:
    """Why nothing here can run, "" if it can."""
    if ip.device_count("nvidia") > 0:
        return ""
    try:
        ip.set_device("nvidia")
    except ip.DeviceError as error:
        return str(error)
    return "no NVIDIA device"


@pytest.fixture(autouse=True, scope="session")
def device_is_there() -> None:
    reason = _missing()
    if reason:
        pytest.skip(reason)
