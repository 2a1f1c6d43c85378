"""The end of a process, whatever is still alive or going on: the exit status is right and nothing is said."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import children
import numpy as np
import pytest

import infiniop_py as ip

Record = Callable[[str, object], None]
KEPT: list[Any] = []  # what modules hold goes last


def everything() -> list[Any]:
    x = np.ones((60, 60), "f4")
    tensor = ip.ones((3, 3))
    with ip.Graph() as graph:
        y = ip.add(ip.gemm(x, x), x)
    graph.run()
    call = ip.Gemm(np.empty_like(x), x, x)
    call()
    return [
        x,
        y,
        tensor,
        tensor.T,
        graph,
        call,
        ip.Stream(),
        ip.Event(),
        ip.Gemm.cache(),
        tensor.__dlpack__(),
    ]


def forever(work: Callable[[], object]) -> None:
    """In daemon threads, of which at least one is inside of `work` when the process ends."""

    def again() -> None:
        while True:
            work()

    for _ in range(3):
        threading.Thread(target=again, daemon=True).start()
    time.sleep(0.02)


def alive() -> None:
    KEPT.extend(everything())


def cycles() -> None:
    loop = everything()
    loop.append(loop)
    loop.append(lambda: loop)


def recording() -> None:
    KEPT.append(ip.start_graph_recording())
    KEPT.append(ip.add(np.ones(3), np.ones(3)))


def daemons_in_operators() -> None:
    x = np.ones((300, 300))
    forever(lambda: ip.gemm(x, x))


def daemons_in_graphs() -> None:
    def own() -> None:
        _, _, _, _, graph, *_ = everything()
        for _ in range(50):
            graph.run()

    forever(own)


def daemons_that_create_and_register() -> None:
    def create() -> None:
        for op in (ip.Add, ip.Gemm):
            op.cache().clear()
            op.dispatcher().register_device("kunlun", lambda *_: None)
        everything()

    forever(create)


def a_thread_that_outlives_main() -> None:
    def late() -> None:
        time.sleep(0.03)
        KEPT.extend(everything())

    threading.Thread(target=late).start()


def at_exit() -> None:
    atexit.register(everything)
    alive()


class Late:
    """Computes when it is let go of."""

    def __del__(self, call: Callable[[], object] = everything) -> None:
        call()


def finalizers() -> None:
    loop: Any = Late()
    loop.me = loop
    Late()


def sys_exit_in_threads() -> None:
    def leave() -> None:
        everything()
        sys.exit(5)  # ends the thread

    for thread in [threading.Thread(target=leave) for _ in range(4)]:
        thread.start()
        thread.join()


def end_at_once() -> None:
    daemons_in_operators()
    os._exit(0)


WAYS = (
    alive, cycles, recording, daemons_in_operators, daemons_in_graphs, daemons_that_create_and_register,
    a_thread_that_outlives_main, at_exit, finalizers, sys_exit_in_threads, end_at_once,
)  # fmt: skip


def in_forked_children(repeats: int) -> None:
    """Each way, in children of a process that has imported everything: they end as any interpreter does."""
    done = 0
    for way in WAYS:
        for _ in range(repeats):
            said, errors = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.dup2(errors, 2)
                os.close(said)
                os.close(errors)
                way()
                sys.exit()  # what is above on the stack is in nobody's way
            os.close(errors)
            with open(said, "rb") as file:
                text = file.read()
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            assert (status, text) == (0, b""), f"{way.__name__}: exit status {status}\n{text.decode()}"
            done += 1
    print(done)


def test_in_forked_children(record_property: Record) -> None:
    record_property("cases", int(children.call(in_forked_children, 5, OPENBLAS_NUM_THREADS="1")))


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_in_a_process(way: Callable[[], None], record_property: Record) -> None:
    assert children.call(way, OPENBLAS_NUM_THREADS="1") == ""
    record_property("cases", 1)
