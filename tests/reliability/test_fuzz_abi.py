"""The fuzzer's corpus on the libraries as they are: programs of calls, each held to a model of the headers.

What fuzzing finds becomes a line of native/fuzz/abi.corpus; fuzz_abi.py looks for more.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import _compiler
import pytest
from _library import ROOT, library_folder
from fuzz_abi import CORPUS, lines
from isas import ISAS


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("fuzz") / "replay"
    folder = library_folder()
    sources = [ROOT / "native" / "fuzz" / name for name in ("fuzz_abi.cc", "model.cc", "replay.cc")]
    flags = (
        "-std=c++17",
        "-O1",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-ffp-contract=off",
        f"-I{folder / 'include'}",
    )
    libraries = (f"-L{folder}", "-linfiniop", "-linfinirt", f"-Wl,-rpath,{folder}")
    _compiler.run([_compiler.compiler("c++"), *flags, *sources, "-o", target, *libraries])
    return target


@pytest.mark.parametrize("stream_bytes", ["", "1"])  # results past the caches: as large ones are, or all
@pytest.mark.parametrize("isa", ISAS)
def test_corpus(isa: str, stream_bytes: str, program: Path, record_property: Callable[..., None]) -> None:
    environment = {"INFINIOP_MAX_ISA": isa} | (
        {"INFINIOP_STREAM_BYTES": stream_bytes} if stream_bytes else {}
    )
    used, tried = _compiler.run([program, CORPUS], **environment).split()
    record_property("cases", int(tried))
    assert int(tried) == len(lines()) > 100
    assert ISAS.index(used) <= ISAS.index(isa)
