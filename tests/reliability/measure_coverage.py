"""Lines and branches that the tests reach, of the native sources and of the package.

    python tests/reliability/measure_coverage.py [--missing] [pytest arguments]

Builds the libraries with Clang's counters into build/coverage, with the kernels this machine can run, runs
the C++ tests, and runs pytest on those libraries under coverage.py (pip install coverage). Processes that the
tests start, fork or kill count too: native counters live in a file that they map, and coverage.py starts with
every interpreter. Without arguments all tests are run, which takes a few times as long as plainly.
mutants.py takes from build/coverage which test reaches which line, and how long it takes.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys

from fuzz_abi import ROOT, clang

sys.path.insert(0, str(ROOT / "tests"))

from isas import usable

BUILD = ROOT / "build" / "coverage"
_FLAGS = "-O1 -fprofile-instr-generate -fcoverage-mapping -mllvm -runtime-counter-relocation"
_SETTINGS = """\
[run]
branch = true
dynamic_context = test_function
parallel = true
source_pkgs = infiniop_py
data_file = {build}/python
patch = subprocess, _exit, fork
[report]
exclude_also =
    if TYPE_CHECKING:
    raise NotImplementedError
    @overload
"""


def build() -> None:
    configure = [
        "cmake",
        "-S",
        ROOT / "native",
        "-B",
        BUILD,
        "-DCMAKE_BUILD_TYPE=None",
        f"-DCMAKE_CXX_FLAGS={_FLAGS}",
    ]
    configure += [
        "-DINFINIOP_FLAT_INSTALL=ON",
        "-DINFINIOP_TESTS=ON",
        f"-DINFINIOP_ISAS={';'.join(usable()[1:])}",
        f"-DPython_EXECUTABLE={sys.executable}",
    ]
    subprocess.run(configure, check=True, env={**os.environ, "CXX": clang()}, stdout=subprocess.DEVNULL)
    subprocess.run(
        ["cmake", "--build", BUILD, "--parallel", str(os.cpu_count())], check=True, stdout=subprocess.DEVNULL
    )
    install = ["cmake", "--install", BUILD, "--prefix", BUILD / "lib"]
    subprocess.run(install, check=True, stdout=subprocess.DEVNULL)


def run(tests: list[str]) -> None:
    settings = BUILD / "coveragerc"
    settings.write_text(_SETTINGS.format(build=BUILD))
    environment = {
        **os.environ,
        "INFINIOP_LIBRARY": str(BUILD / "lib"),
        "LLVM_PROFILE_FILE": str(BUILD / "counts" / "%m%c.profraw"),
    }
    for isa in usable():
        subprocess.run(
            ["ctest", "--test-dir", BUILD, "-Q"], check=True, env={**environment, "INFINIOP_MAX_ISA": isa}
        )
    command = [sys.executable, "-m", "coverage", "run", f"--rcfile={settings}", "-m", "pytest", *tests]
    command.append(f"--junitxml={BUILD / 'tests.xml'}")
    subprocess.run(command, check=False, cwd=ROOT, env=environment)  # tests that fail reach lines too


def report(missing: bool) -> None:
    tool = re.sub(r"clang\+\+", "llvm-{}", clang())
    merged = BUILD / "native.profdata"
    raw = sorted((BUILD / "counts").iterdir())
    subprocess.run([tool.format("profdata"), "merge", "-o", merged, *raw], check=True)
    libraries = [BUILD / "lib" / "libinfiniop.so", "-object", BUILD / "lib" / "libinfinirt.so"]
    options = [*libraries, f"-instr-profile={merged}", "-ignore-filename-regex=/usr/"]
    subprocess.run(
        [tool.format("cov"), "report", "-show-functions=0", "-show-region-summary=0", *options], check=True
    )
    if missing:
        with (BUILD / "native.txt").open("w") as file:
            subprocess.run(
                [tool.format("cov"), "show", "-show-branches=count", *options], check=True, stdout=file
            )
        print(f"each line: {BUILD / 'native.txt'}")
    python = [sys.executable, "-m", "coverage"]
    settings = f"--rcfile={BUILD / 'coveragerc'}"
    subprocess.run([*python, "combine", "-q", settings], check=True)
    subprocess.run([*python, "report", settings, *(["--show-missing"] if missing else [])], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--missing", action="store_true", help="name what is not reached")
    arguments, tests = parser.parse_known_args()
    build()
    shutil.rmtree(BUILD / "counts", ignore_errors=True)
    for old in BUILD.glob("python*"):
        old.unlink()
    run(tests)
    report(arguments.missing)


if __name__ == "__main__":
    main()
