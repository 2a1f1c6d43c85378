"""Each entry of a plugin answers each status, and some that are none; started by test_libraries.py.

    python _plugin_child.py <shared object of failing_plugin.c> <some or all statuses>

Whatever is done meanwhile raises an exception of the package with that status, or succeeds; nothing that the
package made is lost, and afterwards all works as before. Prints the number of calls.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "abi"))

import numpy as np
from _library import FakeCounts

import infiniop_py as ip
from infiniop_py import _native
from infiniop_py.graph_operator import OPERATORS

TABLES = ("InfiniRuntimeTable", "InfiniOpTable")
STATUSES = (*ip.Status, 9, 14, 99, -1, 2**31 - 1, -(2**31))
SOME_STATUSES = (0, 1, 99)
# What these do not give back, or set free to be given back, is the plugin's own loss.
GIVE_BACK = (
    *("stream_destroy", "event_destroy", "free_device", "destroy", "graph_destroy", "graph_exec_destroy"),
    "stream_end_capture",
)

host = np.arange(6, dtype="f4").reshape(2, 3)


def graph() -> None:
    x = ip.ones((2, 3), device="qy:0")
    with ip.Graph() as recorded:
        y = ip.add(x, x)
    for _ in range(2):
        recorded.run()
    assert y.to("cpu").tolist() == [[2] * 3] * 2


def operators() -> None:
    x = ip.from_numpy(host).to("qy:0")
    np.testing.assert_array_equal(ip.gemm(x, x.T).to("cpu").numpy(), host @ host.T)
    np.testing.assert_array_equal(ip.add(x, x).to("cpu").numpy(), host + host)


def streams() -> None:
    with ip.Stream("qy:1") as stream:
        event = ip.Event("qy:1")
        event.record()
        stream.wait_event(event)
        event.synchronize()
        assert event.query() and event.elapsed_time(event) == 0
        stream.synchronize()


def devices() -> None:
    ip.set_device("qy:1")
    assert ip.get_device() is ip.Device("qy:1")
    ip.synchronize()
    ip.zeros(3)


CALLS: dict[str, Callable[[], None]] = {call.__name__: call for call in (graph, operators, streams, devices)}


def attempt(call: Callable[[], None], status: int) -> None:
    try:
        call()
    except ip.InfiniopError as error:
        # Devices that cannot be counted are not there.
        assert error.status in (status, ip.Status.DEVICE_NOT_FOUND) or not status, (error.status, str(error))
    except AssertionError:
        assert not status  # "succeeds" without doing anything: a result that is wrong is the plugin's
    finally:
        ip.set_device("cpu")


def clear() -> None:
    for op in OPERATORS.values():
        op.cache().clear()
    gc.collect()


def main(path: str, which: str) -> None:
    _native.check(_native.lib.infinirtLoadBackend(path.encode()))
    plugin = ctypes.CDLL(path)
    calls = 0
    for table, name in enumerate(TABLES):
        for field, about in _native.ffi.typeof(name).fields:
            if about.type.kind == "primitive":
                continue
            for status in STATUSES if which == "all" else SOME_STATUSES:
                clear()
                before = FakeCounts.of(plugin)
                plugin.failingPluginFail(table, ctypes.c_size_t(about.offset), status)
                for what, call in CALLS.items():
                    print(f"{field} answers {int(status)}: {what}", file=sys.stderr, flush=True)
                    attempt(call, status)
                    calls += 1
                clear()
                plugin.failingPluginRestore()
                after = FakeCounts.of(plugin)
                if status and field not in GIVE_BACK:
                    assert (after.plans, after.streams, after.events) == (
                        before.plans,
                        before.streams,
                        before.events,
                    )
                    assert (
                        after.device_graphs + after.graph_execs == before.device_graphs + before.graph_execs
                    )
                for call in CALLS.values():
                    call()
                    ip.set_device("cpu")
    print(calls)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
