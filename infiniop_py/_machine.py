"""This machine's caches and memory."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from ._facts import first_match

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
DEFAULT_LAST_LEVEL_CACHE = 2**25  # where the system does not tell
DEFAULT_MEMORY = 2**32


def caches() -> Iterator[tuple[int, int]]:
    """(level, bytes) of the data caches that the first CPU sees."""
    for index in sorted(_CACHES.glob("index*")):
        level = first_match(r"^(\d+)$", f"{index}/level")
        size = re.fullmatch(r"(\d+)([KMG]?)", first_match(r"^(\w+)$", f"{index}/size"))
        if level and size and first_match(r"^(\w+)$", f"{index}/type") != "Instruction":
            yield int(level), int(size[1]) * _UNITS[size[2]]


def last_level_cache() -> int:
    """Bytes of the largest cache."""
    return max((size for _, size in caches()), default=DEFAULT_LAST_LEVEL_CACHE)


def available_memory() -> int:
    """Bytes this process may still allocate without making the system swap."""
    kilobytes = first_match(r"^MemAvailable:\s*(\d+) kB", "/proc/meminfo")
    return int(kilobytes) * 1024 if kilobytes else DEFAULT_MEMORY
