"""``python -m infiniop_py COMMAND``."""

from __future__ import annotations

import sys
from importlib import import_module

from ._facts import reader_may_stop
from .errors import LibraryError

#: command -> (module whose main(argv) runs it, what it does). A module is imported only when it is asked for.
COMMANDS = {
    "info": ("infiniop_py._info", "versions, paths, CPU, threads, devices, and a self-test"),
    "doctor": ("infiniop_py._info", "the same as info"),
    "config": ("infiniop_py._config", "flags and folders for a C or C++ compiler, CMake and pkg-config"),
    "demo": ("infiniop_py._demo", "one decoder layer's residual and MLP path, checked and timed"),
    "bench": ("infiniop_py._bench.command", "this library against its peers and this machine's limits"),
    "scale": ("infiniop_py._scale.command", "what a model would take on several devices, predicted"),
    "conformance": ("infiniop_py._conformance.command", "a backend plugin, held to the contract"),
}


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit status."""
    with reader_may_stop():
        try:
            return _run(sys.argv[1:] if argv is None else argv)
        except LibraryError as error:
            print(f"infiniop_py: {error}", file=sys.stderr)
            return 1


def _run(arguments: list[str]) -> int:
    if arguments and arguments[0] in COMMANDS:
        return int(import_module(COMMANDS[arguments[0]][0]).main(arguments[1:]))
    wants_help = arguments[:1] in (["-h"], ["--help"])
    out = sys.stdout if wants_help else sys.stderr
    if arguments and not wants_help:
        print(f"unknown command {arguments[0]!r}", file=out)
    print("usage: python -m infiniop_py COMMAND [--help]\n", file=out)
    for name, (_, summary) in COMMANDS.items():
        print(f"  {name:11} {summary}", file=out)
    return 0 if wants_help else 2


if __name__ == "__main__":
    sys.exit(main())
