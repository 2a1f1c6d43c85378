"""What devices send each other, and how long that takes.

A message costs a constant, and its bytes at a rate, in both directions at once (the model of Hockney, 1994;
collectives: Thakur, Rabenseifner and Gropp, 2005).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2


@dataclass(frozen=True)
class Link:
    """Between any two devices."""

    rate: float  # bytes per second in each direction
    latency: float  # seconds

    def send(self, nbytes: float) -> float:
        return self.latency + nbytes / self.rate


def ring_all_reduce(nbytes: float, n: int, link: Link) -> float:
    """Around a ring, a share each time: n - 1 times to sum up, and as often to hand on the sums."""
    return 2 * (n - 1) * link.send(nbytes / n)


def tree_all_reduce(nbytes: float, n: int, link: Link) -> float:
    """Up a binary tree and down again, everything each time."""
    return 2 * ceil(log2(n)) * link.send(nbytes) if n > 1 else 0.0


def all_reduce(nbytes: float, n: int, link: Link) -> tuple[float, str]:
    """The faster one, and its name."""
    ring, tree = ring_all_reduce(nbytes, n, link), tree_all_reduce(nbytes, n, link)
    return (tree, "tree") if tree < ring else (ring, "ring")
