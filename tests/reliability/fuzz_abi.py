r"""Fuzzes the C interface with libFuzzer, from the inputs in native/fuzz/abi.corpus; needs Clang.

    python tests/reliability/fuzz_abi.py                  60 seconds of CPUs, shared among kinds of kernels
    python tests/reliability/fuzz_abi.py --seconds 3600 --corpus FOLDER
                                                          goes on with what an earlier run found, and keeps it
    python tests/reliability/fuzz_abi.py --plain ...      without sanitizers: several times the inputs
    python tests/reliability/fuzz_abi.py --minimise FOLDER
                                                          makes native/fuzz/abi.corpus of what FOLDER reaches

native/fuzz/fuzz_abi.cc is the harness: bytes become a sequence of calls, a model of the headers says what
each must answer and write. An input that fails is left in build/fuzz and shown as a line for the corpus,
which the normal tests run on the libraries as they are (test_fuzz_abi.py). What was run at length once is in
native/fuzz/LOG.md.

AFL++ takes the same harness:

    CXX=afl-clang-fast++ cmake -S native -B build/afl -DINFINIOP_FUZZ=ON -DCMAKE_BUILD_TYPE=None
    cmake --build build/afl --target fuzz_abi
    ASAN_OPTIONS=abort_on_error=1:symbolize=0:allocator_may_return_null=1 \
        afl-fuzz -i FOLDER -o OUT -m none -- build/afl/fuzz_abi
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CORPUS = ROOT / "native" / "fuzz" / "abi.corpus"
BUILD, PLAIN, PORTABLE = (ROOT / "build" / name for name in ("fuzz", "fuzz_plain", "fuzz_portable"))
MOST_BYTES = 160  # of an input: a dozen calls
WAYS = {
    "portable": {"INFINIOP_MAX_ISA": "portable"},
    "AVX2": {"INFINIOP_MAX_ISA": "avx2"},
    "AVX2, results past the caches": {"INFINIOP_MAX_ISA": "avx2", "INFINIOP_STREAM_BYTES": "1"},
    "the best of this CPU": {},
}
_HEAD = """\
# Inputs of native/fuzz/fuzz_abi.cc in hexadecimal digits; made by tests/reliability/fuzz_abi.py --minimise.
"""


def lines() -> list[str]:
    """The committed inputs, without remarks."""
    rows = (line.partition("#")[0].strip() for line in CORPUS.read_text().splitlines())
    return [row for row in rows if row]


def unpack(folder: Path) -> None:
    for i, line in enumerate(lines()):
        (folder / f"{i:04}").write_bytes(bytes.fromhex(line))


def clang() -> str:
    names = (os.environ.get("CXX", ""), "clang++", *(f"clang++-{n}" for n in range(25, 13, -1)))
    compiler = next((name for name in names if "clang" in name and shutil.which(name)), None)
    if compiler is None:
        sys.exit("no clang++ was found (Debian, Ubuntu: apt install clang)")
    return compiler


def build(folder: Path) -> Path:
    options = ["-DINFINIOP_FUZZ=ON", f"-DINFINIOP_FUZZ_PLAIN={'ON' if folder == PLAIN else 'OFF'}"]
    options += ["-DINFINIOP_ISAS="] * (folder == PORTABLE)
    configure = ["cmake", "-S", ROOT / "native", "-B", folder, "-DCMAKE_BUILD_TYPE=None", *options]
    make = ["cmake", "--build", folder, "--target", "fuzz_abi", "--parallel", str(os.cpu_count())]
    subprocess.run(configure, check=True, env={**os.environ, "CXX": clang()}, stdout=subprocess.DEVNULL)
    subprocess.run(make, check=True, stdout=subprocess.DEVNULL)
    return folder / "fuzz_abi"


def fuzz(program: Path, corpus: Path, way: str, seconds: float, most_bytes: int) -> bool:
    options = [
        f"-max_total_time={max(1, round(seconds))}",
        f"-max_len={most_bytes}",
        "-len_control=0",
        # Of a corpus of thousands, weighing each input by how rare it is takes more time than running it.
        "-entropic=0",
        "-use_counters=0",
        "-timeout=60",
        "-print_final_stats=1",
        f"-artifact_prefix={program.parent}/",
    ]
    done = subprocess.run(
        [program, *options, corpus],
        check=False,
        env={**os.environ, **WAYS[way]},
        capture_output=True,
        text=True,
        errors="replace",
    )
    executed = re.search(r"number_of_executed_units: (\d+)", done.stderr)
    print(f"{way}: {int(executed[1]) if executed else 0:,} inputs in {seconds:.0f} s", flush=True)
    if done.returncode == 0:
        return True
    print("\n".join(line for line in done.stderr.splitlines()[-80:] if not line.startswith("#")))
    for path in re.findall(r"Test unit written to (.*)", done.stderr):
        print(f"a line for {CORPUS.relative_to(ROOT)}:\n{Path(path).read_bytes().hex()}")
    return False


def minimise(program: Path, found: Path) -> None:
    """Keeps an input for each edge of the program that any reaches, and the lines that have remarks."""
    old = CORPUS.read_text().splitlines() if CORPUS.exists() else []
    remarked = [line for line in old if "#" in line[1:]]
    with tempfile.TemporaryDirectory() as name:
        options = ["-set_cover_merge=1", "-use_counters=0", f"-max_len={MOST_BYTES}"]
        watched = {**os.environ, **WAYS["AVX2"]}  # the kernels of the best instruction sets are not
        subprocess.run([program, *options, name, found], check=True, env=watched, capture_output=True)
        inputs = sorted((path.read_bytes() for path in Path(name).iterdir()), key=lambda one: (len(one), one))
    CORPUS.write_text(_HEAD + "".join(f"{line}\n" for line in [*remarked, *(one.hex() for one in inputs)]))
    print(f"{len(inputs)} inputs, {sum(map(len, inputs)):,} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--corpus", type=Path, metavar="FOLDER")
    parser.add_argument("--plain", action="store_true", help="without sanitizers")
    parser.add_argument(
        "--portable", action="store_true", help="with the portable kernels alone, built in half the time"
    )
    parser.add_argument("--bytes", type=int, default=MOST_BYTES, help="of an input, at most")
    parser.add_argument("--minimise", type=Path, metavar="FOLDER")
    arguments = parser.parse_args()
    program = build(PLAIN if arguments.plain else PORTABLE if arguments.portable else BUILD)
    ways = ["portable"] if arguments.portable else list(WAYS)
    if arguments.minimise:
        return minimise(program, arguments.minimise)
    with tempfile.TemporaryDirectory() as name:
        corpus = arguments.corpus or Path(name)
        corpus.mkdir(parents=True, exist_ok=True)
        unpack(corpus)
        each = arguments.seconds / len(ways)
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as a_way_a_cpu:
            right = list(a_way_a_cpu.map(lambda way: fuzz(program, corpus, way, each, arguments.bytes), ways))
    sys.exit(0 if all(right) else 1)


if __name__ == "__main__":
    main()
