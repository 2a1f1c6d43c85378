"""Python threads: native calls release the GIL, numbers of threads, threadpoolctl."""

from __future__ import annotations

import ctypes
import sys
import textwrap
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator

import children
import numpy as np
import pytest

import infiniop_py as ip
from infiniop_py import _native


def in_thread(work: Callable[[], None]) -> None:
    """Run `work` in a thread of its own; what it raises is raised here."""
    raised: list[BaseException] = []

    def body() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]


# ---- the GIL ---------------------------------------------------------------------------------------------


class Stepper:
    """A thread that counts steps, and gives the GIL away after each.

    While it lives the interpreter takes the GIL from no one, so that it steps only while another thread has
    given it away.
    """

    def __init__(self) -> None:
        self.steps = 0
        self._stop = False
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stop:
            self.steps += 1
            time.sleep(0)

    def __enter__(self) -> Stepper:
        self._interval = sys.getswitchinterval()
        sys.setswitchinterval(1000)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop = True
        sys.setswitchinterval(self._interval)
        self._thread.join()

    def steps_during(self, call: Callable[[], object]) -> int:
        before = self.steps
        call()
        return self.steps - before


@pytest.fixture
def stepper() -> Iterator[Stepper]:
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        pytest.skip("this Python runs without a GIL")
    with Stepper() as made:
        yield made


#: More than the few that fit into the short calls around the long one.
ENOUGH = 5
#: Tries on a machine that has no CPU left for the stepper.
TRIES = 50


def _long_calls() -> dict[str, Callable[[], object]]:
    """Each some milliseconds long with one thread; a step takes less than a tenth of one."""
    x = np.ones((3000, 2000), "f4")
    square, weight = np.ones((800, 800), "f4"), np.ones(2000, "f4")
    y, z, product = np.empty_like(x), np.empty_like(x), np.empty_like(square)
    with ip.Graph() as graph:
        ip.gemm_(product, square, square)
    return {
        "gemm": lambda: ip.gemm_(product, square, square),
        "add": lambda: ip.add_(y, x, x),
        "mul": lambda: ip.mul_(y, x, x),
        "add_rms_norm": lambda: ip.add_rms_norm_(y, z, x, x, weight),
        "rearrange": lambda: ip.rearrange_(y.reshape(2000, 3000), x.T),
        "graph": graph.run,
    }


@pytest.mark.parametrize("name", ["gemm", "add", "mul", "add_rms_norm", "rearrange", "graph"])
def test_native_calls_release_the_gil(name: str, stepper: Stepper) -> None:
    call = _long_calls()[name]
    with ip.num_threads(1):
        assert any(stepper.steps_during(call) >= ENOUGH for _ in range(TRIES))


def test_the_stepper_sees_a_call_that_keeps_the_gil(stepper: Stepper) -> None:
    """The test above would pass for anything if steps were counted all the time."""
    keeps = ctypes.PyDLL(str(_native.library_path)).infiniopMeasureCpuCeiling
    keeps.argtypes = [ctypes.c_int, ctypes.c_size_t, ctypes.POINTER(ctypes.c_double)]
    rate = ctypes.c_double()
    assert stepper.steps_during(lambda: keeps(2, 0, rate)) == 0
    assert rate.value > 0


@pytest.mark.parametrize("count", [1, 2])
def test_four_threads_with_four_problems(count: int, num_threads: Callable[[int], None]) -> None:
    """All at once what they are one after the other, bit for bit."""
    num_threads(count)
    start = threading.Barrier(4)
    wanted: list[list[bytes]] = []
    got: dict[int, list[bytes]] = {}

    def solve(seed: int) -> list[bytes]:
        rng = np.random.default_rng(seed)
        size = 90 + 7 * seed
        results = []
        for i in range(6):
            dtype = ("f2", "f4", "f8")[(seed + i) % 3]
            a, b = rng.standard_normal((2, size + i, size + i)).astype(dtype)
            h = ip.gemm(a, b.T)
            y, residual = ip.add_rms_norm(h, ip.mul(a, b), np.ones(size + i, dtype))
            results.append(ip.rearrange(ip.add(y.T, residual)).tobytes())
        return results

    def work(seed: int) -> None:
        start.wait()
        got[seed] = solve(seed)

    wanted = [solve(seed) for seed in range(4)]
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [got[seed] for seed in range(4)] == wanted


# ---- the number of threads -------------------------------------------------------------------------------


def test_limits_nest_and_end_with_exceptions(num_threads: Callable[[int], None]) -> None:
    num_threads(7)
    one = ip.num_threads(1)
    with one:
        with pytest.raises(KeyError), ip.num_threads(3):
            with one:  # entered a second time
                assert ip.get_num_threads() == 1
            assert ip.get_num_threads() == 3
            raise KeyError
        assert ip.get_num_threads() == 1
        ip.set_num_threads(6)  # of the process: this thread's own limit holds
        assert ip.get_num_threads() == 1
    assert ip.get_num_threads() == 6
    with one:  # and again
        assert ip.get_num_threads() == 1
    assert ip.get_num_threads() == 6


def test_a_limit_is_the_thread_s_own(num_threads: Callable[[int], None]) -> None:
    num_threads(5)
    limit = ip.num_threads(2)

    def other() -> None:
        assert ip.get_num_threads() == 5
        with limit, ip.num_threads(3):
            assert ip.get_num_threads() == 3
        assert ip.get_num_threads() == 5

    with limit:
        in_thread(other)
        assert ip.get_num_threads() == 2
    assert ip.get_num_threads() == 5


def test_a_function_can_be_limited(num_threads: Callable[[int], None]) -> None:
    num_threads(5)

    @ip.num_threads(2)
    def limited(depth: int = 0) -> int:
        return limited(depth - 1) if depth else ip.get_num_threads()

    assert (limited(), limited(3), ip.get_num_threads()) == (2, 2, 5)


def test_what_runs_later_cannot_be_limited() -> None:
    def generator() -> Iterator[int]:
        yield ip.get_num_threads()

    async def coroutine() -> int:
        return ip.get_num_threads()

    async def both() -> AsyncIterator[int]:
        yield ip.get_num_threads()

    for function in (generator, coroutine, both):
        with pytest.raises(ip.OperandError, match=r"num_threads\(1\): decorates .* returns before it runs"):
            ip.num_threads(1)(function)


def test_a_limit_that_is_refused_changes_nothing(num_threads: Callable[[int], None]) -> None:
    num_threads(5)
    for n in (0, -1, 2**31, True, 1.0, "2"):
        with pytest.raises(ip.InfiniopError, match="num_threads: n is"):
            ip.num_threads(n)  # type: ignore[arg-type]
    assert ip.get_num_threads() == 5


def _holding(n: int) -> Iterator[None]:
    with ip.num_threads(n):
        yield


def test_generators_that_end_out_of_order_leave_no_limit(num_threads: Callable[[int], None]) -> None:
    num_threads(5)
    one, two = _holding(1), _holding(2)
    next(one)
    next(two)
    assert ip.get_num_threads() == 2
    one.close()  # type: ignore[attr-defined]
    assert ip.get_num_threads() == 2
    two.close()  # type: ignore[attr-defined]
    assert ip.get_num_threads() == 5


def test_leaving_in_another_thread_is_an_error(num_threads: Callable[[int], None]) -> None:
    """It cannot take back the limit of the thread that entered, and must not touch its own."""
    num_threads(5)

    def starts() -> None:
        held = _holding(2)
        next(held)

        def ends() -> None:
            with ip.num_threads(3):
                with pytest.raises(ip.ParamError, match="another thread"):
                    held.close()  # type: ignore[attr-defined]
                assert ip.get_num_threads() == 3

        in_thread(ends)
        assert ip.get_num_threads() == 2

    in_thread(starts)
    assert ip.get_num_threads() == 5


# ---- threadpoolctl ---------------------------------------------------------------------------------------

needs_threadpoolctl = pytest.mark.skipif(
    children.attempt("from threadpoolctl import register").returncode != 0,
    reason="threadpoolctl 3.2 or newer is not installed",
)
OURS = (
    "def ours(): return [lib for lib in threadpoolctl.threadpool_info() if lib['user_api'] == 'infiniop']\n"
)
PROGRAMS = {
    "first": """
        import threadpoolctl
        import infiniop_py as ip
        (info,) = ours()
        assert info["internal_api"] == "infiniop" and info["version"] == ip.__version__, info
        assert info["filepath"].endswith("libinfiniop.so") and info["num_threads"] == ip.get_num_threads()
    """,
    "later": """
        import infiniop_py as ip
        import threadpoolctl
        assert ours() == []
        import infiniop_py.interop.threadpoolctl
        assert len(ours()) == 1
    """,
    "limits": """
        import threading
        import threadpoolctl
        import infiniop_py as ip
        limits = threadpoolctl.threadpool_limits
        ip.set_num_threads(4)
        with limits(1):
            assert ip.get_num_threads() == 1 == ours()[0]["num_threads"]
            with ip.num_threads(3):
                assert ip.get_num_threads() == 3
                with limits({"infiniop": 2}):
                    assert ip.get_num_threads() == 2
                assert ip.get_num_threads() == 3
            with limits({"blas": 2}):  # not for us: the limit of 1 stays
                assert ip.get_num_threads() == 1
            assert ip.get_num_threads() == 1
            seen = []
            thread = threading.Thread(target=lambda: seen.append(ip.get_num_threads()))
            thread.start(); thread.join()
            assert seen == [4]
        assert ip.get_num_threads() == 4
        ip.set_num_threads(6)  # the limit left nothing behind
        assert ip.get_num_threads() == 6
        outer = limits(5)
        inner = limits(3)
        inner.restore_original_limits()
        assert ip.get_num_threads() == 5
        outer.restore_original_limits()
        assert ip.get_num_threads() == 6
        limits(2)  # for good
        assert ip.get_num_threads() == 2
        try:
            limits({"infiniop": -1})
        except ip.ParamError:
            assert ip.get_num_threads() == 2
        else:
            raise AssertionError
    """,
}


@needs_threadpoolctl
@pytest.mark.parametrize("name", PROGRAMS)
def test_threadpoolctl(name: str) -> None:
    children.run(OURS + textwrap.dedent(PROGRAMS[name]))


def test_import_does_not_import_threadpoolctl() -> None:
    assert children.run("import infiniop_py, sys; print('threadpoolctl' in sys.modules)").strip() == "False"
