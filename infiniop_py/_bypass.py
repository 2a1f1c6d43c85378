"""When code that runs calls on the CPU past Python, such as torch's kernels, must ask Python instead."""

from __future__ import annotations

from collections.abc import Callable

#: Called in a thread with True before it records calls, and with False after.
when_recording: list[Callable[[bool], object]] = []

#: Called with the name of an operator when an implementation of it for the CPU is registered.
when_implemented: list[Callable[[str], object]] = []
