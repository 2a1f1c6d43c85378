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
[paths]
package =
    {package}
    */infiniop_py
[report]
omit = */_infiniop_cffi.py
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
        "-DINFINIOP_ISAS=native",
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
    settings.write_text(_SETTINGS.format(build=BUILD, package=ROOT / "infiniop_py"))
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


def report_native(missing: bool) -> None:
    """What the compiler computes, as it does tables of kernels, has no code that could run. The branches of
    a template count once.
    """
    tool = re.sub(r"clang\+\+", "llvm-{}", clang())
    merged = BUILD / "native.profdata"
    raw = sorted((BUILD / "counts").iterdir())
    subprocess.run([tool.format("profdata"), "merge", "-o", merged, *raw], check=True)
    libraries = [BUILD / "lib" / "libinfiniop.so", "-object", BUILD / "lib" / "libinfinirt.so"]
    options = [f"-instr-profile={merged}", "-ignore-filename-regex=/usr/", "-show-instantiations=false"]
    command = [tool.format("cov"), "show", "-show-branches=count", *options, *libraries]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    lines: dict[str, bool] = {}  # reached?
    branches: dict[str, bool] = {}
    file, computed = "", False
    for line in shown.splitlines():
        if line.startswith("/"):
            file = os.path.relpath(line.rstrip(":"), ROOT)
        elif found := re.match(r"\s*(\d+)\|\s*(\d\S*)\|(.*)", line):
            number, count, text = found.groups()
            computed = computed or (count == "0" and text.startswith("constexpr ") and text.endswith("{"))
            if not computed:
                lines[f"{file}:{number}: {text}"] = count != "0"
            computed = computed and text != "}"
        elif found := re.search(r"Branch \((\d+:\d+)\): \[True: ([^,]+), False: ([^\]]+)\]", line):
            for way, count in zip(("true", "false"), found.groups()[1:]):
                name = f"{file}:{found[1]}: never {way}"
                branches[name] = branches.get(name, computed) or count != "0"
    for what, reached in (("lines", lines), ("branches", branches)):
        missed = [name for name in reached if not reached[name]]
        if missing:
            print("\n".join(missed))
        share = 100 * (1 - len(missed) / len(reached))
        print(f"native: {len(reached)} {what}, {len(missed)} not reached: {share:.1f} %")


def report(missing: bool) -> None:
    report_native(missing)
    python = [sys.executable, "-m", "coverage"]
    settings = f"--rcfile={BUILD / 'coveragerc'}"
    subprocess.run([*python, "combine", "-q", "--append", settings], check=False)  # some end while they write
    subprocess.run([*python, "report", settings, *(["--show-missing"] if missing else [])], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--missing", action="store_true", help="name what is not reached")
    parser.add_argument("--more", action="store_true", help="add to what an earlier run has reached")
    arguments, tests = parser.parse_known_args()
    build()
    if not arguments.more:
        shutil.rmtree(BUILD / "counts", ignore_errors=True)
        for old in BUILD.glob("python*"):
            old.unlink()
    run(tests)
    report(arguments.missing)


if __name__ == "__main__":
    main()
