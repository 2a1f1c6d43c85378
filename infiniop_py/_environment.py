"""The environment variables of this package, where whoever set them may be trusted."""

from __future__ import annotations

import os
import struct
import sys
from pathlib import Path

_AT_SECURE = 23


def _has_more_rights_than_its_caller() -> bool:
    """Is this a setuid or setgid process, or what else the dynamic linker calls secure (AT_SECURE)?"""
    if hasattr(os, "geteuid") and (os.getuid(), os.getgid()) != (os.geteuid(), os.getegid()):
        return True
    try:
        auxiliary = Path("/proc/self/auxv").read_bytes()
    except PermissionError:  # nor may such a process read this
        return True
    except OSError:
        return False
    return bool(dict(struct.iter_unpack("@NN", auxiliary)).get(_AT_SECURE, 0))


def variable(name: str) -> str:
    """The value of a variable. "" where Python ignores its own (``-E``, ``-I``), and in setuid processes."""
    value = os.environ.get(name, "")
    return "" if value and (sys.flags.ignore_environment or _has_more_rights_than_its_caller()) else value
