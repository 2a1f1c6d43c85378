"""Descriptor caches: ``LRUCache``, and ``OpCache``, which holds one per device.

A key is a tuple of the real arguments (element type, shape and strides of every operand, and the scalars
fixed at creation). Keys are compared, not their hashes: the hash only finds the place to look. Evicting or
clearing drops the cache's reference and nothing else, so that what is in use lives on.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any, Generic, NamedTuple, TypeVar

from ._log import logger
from .device import Device, DeviceLike, as_device
from .errors import OperandError, ParamError, shown

__all__ = ["CacheInfo", "LRUCache", "OpCache"]

CAPACITY = 100

T = TypeVar("T")


class CacheInfo(NamedTuple):
    """Counts since the cache was made, and how many entries it has and may have."""

    hits: int
    misses: int
    evictions: int
    size: int
    capacity: int


def _checked_capacity(n: int) -> int:
    if not isinstance(n, int) or isinstance(n, bool):
        raise OperandError(f"capacity is {shown(n)}, needs an int")
    if n < 0:
        raise ParamError(f"capacity is {shown(n)}, needs at least 0")
    return n


class LRUCache(Generic[T]):
    """A dictionary that forgets its least recently used entry when it is full. Not for several threads at
    once.

    >>> cache = LRUCache(capacity=2)
    >>> for key in "abc":
    ...     cache.put(key, key.upper())
    >>> cache.get("a"), cache.get("c")
    (None, 'C')
    """

    __slots__ = ("_capacity", "entries", "evictions", "hits", "misses", "name", "newest")

    def __init__(self, capacity: int = CAPACITY, name: str = "cache") -> None:
        self.name = name
        self._capacity = _checked_capacity(capacity)
        # Oldest first. A value is boxed, so that "is it the newest?" is a question about the entry and not
        # the value.
        self.entries: dict[Hashable, tuple[T]] = {}
        self.newest: tuple[T] | None = None
        self.hits = self.misses = self.evictions = 0

    def get(self, key: Hashable) -> T | None:
        """Return the value and make it the most recently used, or None."""
        entry = self.entries.get(key)
        if entry is None:
            self.misses += 1
            return None
        self.use(key, entry)
        return entry[0]

    def use(self, key: Hashable, entry: tuple[T]) -> None:
        """Count a hit of an entry and make it the most recently used: :meth:`get` for those who looked into
        `entries` themselves.
        """
        self.hits += 1
        # Moving to the end costs two more look-ups; repeated calls of one layout do not pay them. What was
        # evicted or cleared since the look, by a finalizer or a signal handler, stays away.
        if entry is not self.newest and self.entries.pop(key, None) is not None:
            self.entries[key] = self.newest = entry

    def put(self, key: Hashable, value: T) -> None:
        """Insert or replace a value, as the most recently used. With capacity 0 nothing is kept."""
        entries = self.entries
        entries.pop(key, None)
        if len(entries) >= self._capacity:
            self._shrink(max(self._capacity - 1, 0))
            if self._capacity == 0:
                return
        entries[key] = self.newest = (value,)

    def set_capacity(self, n: int) -> None:
        """Set how many entries are kept; the oldest go if there are more."""
        self._capacity = _checked_capacity(n)
        self._shrink(n)

    def clear(self) -> None:
        """Drop all entries; the counts stay."""
        self.newest = None
        self.entries.clear()

    def cache_info(self) -> CacheInfo:
        """Return the counts."""
        return CacheInfo(self.hits, self.misses, self.evictions, len(self.entries), self._capacity)

    def _shrink(self, size: int) -> None:
        entries = self.entries
        while len(entries) > size:
            if self.evictions == 0:
                logger.info(
                    "%s: more than %d different layouts in use, so some are planned again and again; "
                    "set_capacity(n) makes room",
                    self.name,
                    self._capacity,
                )
            try:
                entries.pop(next(iter(entries)), None)
            except (RuntimeError, StopIteration):
                continue  # a signal's handler has used the cache since the look
            self.evictions += 1
        if not entries:
            self.newest = None

    def __len__(self) -> int:
        return len(self.entries)

    def __contains__(self, key: Hashable) -> bool:
        return key in self.entries

    def __iter__(self) -> Iterator[Hashable]:
        """Keys, the least recently used first."""
        return iter(list(self.entries))


class OpCache:
    """The caches of one operator in one thread: an :class:`LRUCache` for every device it has been used on."""

    def __init__(self, capacity: int = CAPACITY, name: str = "cache") -> None:
        self.name = name
        self._capacity = _checked_capacity(capacity)
        self._caches: dict[Any, LRUCache[Any]] = {}

    def get_cache(self, device: DeviceLike) -> LRUCache[Any]:
        """Return the cache of one device."""
        try:
            return self._caches[device]
        except (KeyError, TypeError):
            pass  # a new device, another name of one, or none
        known: Device = as_device(device)
        return self._caches.setdefault(known, LRUCache(self._capacity, f"{self.name} on {known}"))

    def set_capacity(self, n: int) -> None:
        """Set how many entries are kept for each device."""
        self._capacity = _checked_capacity(n)
        for cache in self._caches.values():
            cache.set_capacity(n)

    def clear(self) -> None:
        """Drop every device's entries."""
        for cache in self._caches.values():
            cache.clear()

    def cache_info(self) -> CacheInfo:
        """Return the counts of all devices together; the capacity is that of one."""
        infos = [cache.cache_info() for cache in self._caches.values()]
        hits, misses, evictions, size = (sum(info[i] for info in infos) for i in range(4))
        return CacheInfo(hits, misses, evictions, size, self._capacity)
