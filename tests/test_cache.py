"""LRUCache and OpCache: what is a hit, what goes first, and who keeps a descriptor alive."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from live import Live

import infiniop_py as ip


class SameHash:
    """Equal to its like, with one hash for all."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SameHash) and self.value == other.value

    def __hash__(self) -> int:
        return 1


def test_a_hit_compares_keys_and_not_hashes() -> None:
    cache: ip.LRUCache[int] = ip.LRUCache(capacity=50)
    for value in range(50):
        cache.put(SameHash(value), value)
    assert [cache.get(SameHash(value)) for value in range(50)] == list(range(50))
    assert cache.get(SameHash(50)) is None
    assert cache.cache_info() == (50, 1, 0, 50, 50)


def test_the_least_recently_used_goes_first() -> None:
    cache: ip.LRUCache[int] = ip.LRUCache(capacity=3)
    for key in "abc":
        cache.put(key, 0)  # one value for all keys: age belongs to keys
    assert cache.get("a") == 0
    cache.put("d", 0)
    assert list(cache) == ["c", "a", "d"]
    cache.put("c", 1)
    cache.put("e", 0)
    assert list(cache) == ["d", "c", "e"]
    assert cache.cache_info().evictions == 2


def test_repeated_hits_keep_the_order() -> None:
    cache: ip.LRUCache[str] = ip.LRUCache(capacity=2)
    cache.put("a", "x")
    cache.put("b", "y")
    for _ in range(3):
        assert cache.get("a") == "x"
    cache.put("c", "z")
    assert "a" in cache and "b" not in cache and len(cache) == 2


def test_a_value_may_be_none_and_is_still_a_hit() -> None:
    cache: ip.LRUCache[None] = ip.LRUCache()
    cache.put("a", None)
    assert cache.get("a") is None and cache.hits == 1 and cache.misses == 0


def test_capacity() -> None:
    cache: ip.LRUCache[int] = ip.LRUCache(capacity=4)
    for key in range(4):
        cache.put(key, key)
    cache.set_capacity(2)
    assert list(cache) == [2, 3] and cache.cache_info().capacity == 2
    cache.set_capacity(0)
    cache.put("a", 1)
    assert len(cache) == 0
    with pytest.raises(ip.ParamError, match="capacity is -1"):
        cache.set_capacity(-1)
    with pytest.raises(ip.OperandError, match=r"capacity is 1\.5"):
        cache.set_capacity(1.5)  # type: ignore[arg-type]


def test_what_is_evicted_or_cleared_is_let_go() -> None:
    class Value:
        alive = 0

        def __init__(self) -> None:
            Value.alive += 1

        def __del__(self) -> None:
            Value.alive -= 1

    cache: ip.LRUCache[Value] = ip.LRUCache(capacity=2)
    for key in range(5):
        cache.put(key, Value())
        assert Value.alive == min(key + 1, 2)
    cache.set_capacity(0)
    assert Value.alive == 0
    cache.set_capacity(2)
    cache.put(0, Value())
    cache.clear()
    assert Value.alive == 0


def test_the_first_eviction_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    cache: ip.LRUCache[int] = ip.LRUCache(capacity=1, name="mul on CPU:0")
    with caplog.at_level(logging.INFO, "infiniop_py"):
        for key in range(4):
            cache.put(key, key)
    assert [record.getMessage() for record in caplog.records] == [
        "mul on CPU:0: more than 1 different layouts in use, so some are planned again and again; "
        "set_capacity(n) makes room"
    ]


# ---- the operators' caches -------------------------------------------------------------------------------


@pytest.fixture
def cache() -> ip.OpCache:
    """This thread's cache for add, empty and with its usual capacity."""
    cache = ip.Add.cache()
    cache.clear()
    cache.set_capacity(100)
    return cache


def counts(cache: ip.OpCache, call: Any) -> tuple[int, int]:
    """How many hits and misses a call makes."""
    before = cache.cache_info()
    call()
    after = cache.cache_info()
    return after.hits - before.hits, after.misses - before.misses


def test_a_layout_is_planned_once(cache: ip.OpCache) -> None:
    x = np.ones((2, 3), "f4")
    assert counts(cache, lambda: ip.add(x, x)) == (0, 1)
    assert counts(cache, lambda: ip.add(x.copy(), x + 1)) == (1, 0)
    assert counts(cache, lambda: ip.add_(np.empty_like(x), x, x)) == (1, 0)


def test_tensors_and_arrays_share_plans(cache: ip.OpCache) -> None:
    x = np.ones((2, 3), "f4")
    assert counts(cache, lambda: ip.add(x, x)) == (0, 1)
    assert counts(cache, lambda: ip.add(ip.ones((2, 3)), ip.from_numpy(x))) == (1, 0)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(lambda: np.ones((2, 3), "f8"), id="dtype"),
        pytest.param(lambda: np.ones((3, 2), "f4"), id="shape"),
        pytest.param(lambda: np.ones((3, 2), "f4").T, id="strides"),
        pytest.param(lambda: np.ones((2, 6), "f4")[:, ::2], id="gaps"),
        pytest.param(lambda: np.broadcast_to(np.ones(3, "f4"), (2, 3)), id="broadcast"),
    ],
)
def test_another_layout_is_another_plan(cache: ip.OpCache, other: Any) -> None:
    x = np.ones((2, 3), "f4")
    ip.add(x, x)
    y = other()
    assert counts(cache, lambda: ip.add(y, y)) == (0, 1)
    np.testing.assert_array_equal(ip.add(y, y), y + y)


def test_epsilon_is_part_of_the_key_and_alpha_is_not() -> None:
    x, w = np.full((2, 3), 2, "f8"), np.ones(3)
    cache = ip.AddRMSNorm.cache()
    cache.clear()
    assert counts(cache, lambda: ip.add_rms_norm(x, x, w, 0.0)) == (0, 1)
    assert counts(cache, lambda: ip.add_rms_norm(x, x, w, 48.0)) == (0, 1)
    assert counts(cache, lambda: ip.add_rms_norm(x, x, w, 0.0)) == (1, 0)
    for found in ((0, 1), (1, 0), (1, 0)):  # no two are equal
        assert counts(cache, lambda: ip.add_rms_norm(x, x, w, float("nan"))) == found
    assert counts(cache, lambda: ip.add_rms_norm(x, x, w, np.float32("nan"))) == (1, 0)
    np.testing.assert_array_equal(ip.add_rms_norm(x, x, w, 48.0)[0], np.full((2, 3), 0.5))
    gemm = ip.Gemm.cache()
    ip.gemm(x, x.T, 1.0)
    assert counts(gemm, lambda: ip.gemm(x, x.T, 2.0)) == (1, 0)


def test_layouts_that_a_bad_hash_would_confuse(cache: ip.OpCache) -> None:
    """The pair of strides that collides in a well-known hash of this interface."""
    base = np.arange(64 * 64, dtype="f4").reshape(64, 64)
    row, column = np.broadcast_to(base[0], (64, 64)), np.broadcast_to(base[:, :1], (64, 64))
    for one in (row, column, row.T, column.T, base, base.T):
        np.testing.assert_array_equal(ip.add(one, base), one + base)


def test_capacity_and_eviction(cache: ip.OpCache) -> None:
    assert cache.cache_info().capacity == 100
    cache.set_capacity(3)
    before = cache.cache_info()
    for size in range(5):
        x = np.ones(size + 1, "f4")
        np.testing.assert_array_equal(ip.add(x, x), x + x)
    after = cache.cache_info()
    assert (after.size, after.evictions - before.evictions, after.capacity) == (3, 2, 3)
    assert len(cache.get_cache("cpu")) == 3 and cache.get_cache("cpu") is cache.get_cache(ip.Device("cpu"))


def test_capacity_0_plans_every_call(cache: ip.OpCache) -> None:
    x = np.ones(3)
    cache.set_capacity(0)
    for _ in range(2):
        assert counts(cache, lambda: ip.add(x, x)) == (0, 1)
    assert cache.cache_info().size == 0


def test_descriptors_live_as_long_as_someone_needs_them(cache: ip.OpCache, live: Live) -> None:
    before = live.descriptors()
    x, out = np.arange(5.0), np.empty(5)
    call = ip.Add(out, x, x)
    with ip.Graph() as graph:
        ip.add(np.ones(6), np.ones(6))
    cache.clear()
    assert cache.cache_info().size == 0 and live.descriptors() == before + 2
    call.run()
    np.testing.assert_array_equal(out, x + x)
    del call
    assert live.descriptors() == before + 1
    del graph
    assert live.descriptors() == before


def test_a_thread_has_its_own_cache_and_takes_it_along(live: Live) -> None:
    before = live.descriptors()
    seen: list[Any] = []

    def work() -> None:
        for size in range(1, 4):
            ip.add(np.ones(size), np.ones(size))
        seen.append(ip.Add.cache().cache_info())
        seen.append(live.descriptors())

    mine = ip.Add.cache().cache_info()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(0, 3, 0, 3, 100), before + 3]
    assert live.descriptors() == before
    assert ip.Add.cache().cache_info() == mine


@pytest.mark.parametrize("between", ["before the key", "behind it"])
def test_what_goes_while_there_is_made_room(between: str) -> None:
    """As by a signal's handler that uses the cache, between finding the oldest entry and dropping it."""

    class Interrupted(dict[Any, Any]):
        def __iter__(self) -> Iterator[Any]:
            keys = super().__iter__()
            oldest = next(super().__iter__())
            del self[oldest]
            return keys if between == "before the key" else iter([oldest])

    cache: ip.LRUCache[int] = ip.LRUCache(2)
    cache.entries = Interrupted({"a": (1,), "b": (2,)})
    cache.put("c", 3)
    assert cache.get("c") == 3 and cache.get("a") is None and len(cache) <= 2


def test_what_went_since_the_look_stays_away() -> None:
    cache: ip.LRUCache[str] = ip.LRUCache(2)
    cache.put("a", "A")
    cache.put("b", "B")
    entry = cache.entries["a"]
    cache.clear()
    cache.use("a", entry)
    assert len(cache) == 0 and cache.cache_info().hits == 1
