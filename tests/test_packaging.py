"""The sdist, the wheel and every way to install them: in environments of their own, without a network.

The native libraries are compiled once, in an unpacked sdist, and every installation starts from there.
"""

from __future__ import annotations

import email.message
import email.parser
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import children
import pytest

import infiniop_py

ROOT = children.ROOT
MEBIBYTE = 1 << 20
EXTRAS = {"bf16", "cublas", "torch", "jax", "bench", "plot", "test"}
#: What the libraries may need: the C++ runtime of the system, and no OpenMP runtime.
NEEDED = {"libinfinirt.so", "libstdc++.so.6", "libgcc_s.so.1", "libm.so.6", "libc.so.6"}
NEEDED |= {"libdl.so.2", "libpthread.so.0"}  # part of libc.so.6 since glibc 2.34

WHERE = "import infiniop_py as p, infiniop_py._native as n; print(p.__file__); print(n.library_path)"


class Run(NamedTuple):
    """What came of a program."""

    status: int
    output: str  # both streams


def attempt(command: list[object], cwd: Path, **variables: str) -> Run:
    """Run a program in an environment that knows of no other installation, index or compiler setting.

    But for a launcher: a compiler cache, which must not see that `cwd` is another folder, has what is built
    here from the builds before.
    """
    env = {
        name: value
        for name, value in os.environ.items()
        if name.endswith("_COMPILER_LAUNCHER")
        or (
            not name.startswith(("PIP_", "PYTHON", "INFINIOP_", "CMAKE_", "SKBUILD_"))
            and name != "VIRTUAL_ENV"
        )
    }
    env |= {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    env["CCACHE_BASEDIR"] = str(cwd)
    # cmake and ninja may lie beside the tests' Python only
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", "")])
    env |= variables
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
        check=False,
    )
    return Run(done.returncode, done.stdout)


def run(command: list[object], cwd: Path, **variables: str) -> str:
    done = attempt(command, cwd, **variables)
    assert done.status == 0, f"{' '.join(map(str, command))}\n{done.output}"
    return done.output


def distributions(*names: str) -> dict[str, metadata.Distribution]:
    """The named distributions of this environment and all that they require."""
    requirements = pytest.importorskip("packaging.requirements")
    found: dict[str, metadata.Distribution] = {}
    wanted = list(names)
    while wanted:
        name = wanted.pop()
        if name in found:
            continue
        try:
            found[name] = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            pytest.skip(f"{name} is not installed; it comes with pip install -e '.[test]'")
        for text in found[name].requires or ():
            requirement = requirements.Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                wanted.append(requirement.name)
    return found


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what must be there before this package is: its dependencies, pip and the build backend.

    Links into this environment, whose other packages, an installed infiniop_py above all, stay out of sight.
    """
    folder = tmp_path_factory.mktemp("packages")
    for name, distribution in distributions("numpy", "cffi", "pip", "scikit-build-core").items():
        tops = {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}
        if not tops:
            pytest.skip(f"{name} has no list of its files, so that it cannot be linked to")
        for top in tops:
            (folder / top).symlink_to(Path(str(distribution.locate_file(top))))
    return folder


def environment(folder: Path, packages: Path) -> Path:
    """The Python of a new virtual environment that sees `packages` and nothing else."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    site = next(folder.glob("lib/python*/site-packages"))
    (site / "packages.pth").write_text(f"{packages}\n")
    return folder / "bin" / "python"


class Built(NamedTuple):
    """What was made of the source tree."""

    sdist: Path
    tree: Path  # the sdist, unpacked, and built in
    wheel: Path


@pytest.fixture(scope="session")
def built(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The sdist of the source tree and the wheel of the sdist. This compiles everything."""
    if not (ROOT / "pyproject.toml").is_file():
        pytest.skip("these tests do not lie in a source tree")
    for program, names in {"a C++ compiler": ("c++", "g++", "clang++"), "cmake": ("cmake",)}.items():
        where = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        if not any(shutil.which(name, path=where) for name in names):
            pytest.skip(f"{program} is not installed")
    folder = tmp_path_factory.mktemp("dist")
    python = environment(folder / "venv", packages)
    make = "import sys; from scikit_build_core import build; build.build_sdist(sys.argv[1])"
    run([python, "-c", make, folder], ROOT)
    (sdist,) = folder.glob("*.tar.gz")
    run(["tar", "xzf", sdist], folder)
    tree = folder / sdist.name.removesuffix(".tar.gz")
    run([python, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "-w", folder, tree], folder)
    (wheel,) = folder.glob("*.whl")
    return Built(sdist, tree, wheel)


@pytest.fixture(scope="session")
def installed(built: Built, packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the wheel, installed where there is no compiler and no cmake."""
    folder = tmp_path_factory.mktemp("installed")
    python = environment(folder / "venv", packages)
    alone = str(python.parent)
    assert not any(shutil.which(name, path=alone) for name in ("cc", "c++", "gcc", "clang", "cmake", "ninja"))
    run([python, "-m", "pip", "install", "--no-deps", built.wheel], folder, PATH=alone)
    return python


def source_files(*folders: str) -> set[str]:
    """The files of the source tree that travel, as seen from its root."""
    return {
        str(path.relative_to(ROOT))
        for folder in folders
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and not {"__pycache__", "_lib"} & set(path.relative_to(ROOT).parts)
    }


# ---- what is in them -------------------------------------------------------------------------------------


def test_the_sdist_holds_the_sources_alone(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = source_files("native", "infiniop_py", "tests")
    assert len(wanted) > 100
    assert wanted | {"pyproject.toml", "README.md", "LICENSE", "build_native.sh"} <= names
    # made by a build, or of use in the repository only
    assert not [
        name for name in names if re.search(r"(^|/)(_lib|build|dist|\.ci|__pycache__)/|\.(so|o)$", name)
    ]


def test_one_wheel_serves_every_python(built: Built) -> None:
    version = re.escape(infiniop_py.__version__)
    assert re.fullmatch(rf"infiniop_py-{version}-py3-none-(many)?linux_\w+\.whl", built.wheel.name)
    with zipfile.ZipFile(built.wheel) as wheel:
        text = wheel.read(f"infiniop_py-{infiniop_py.__version__}.dist-info/WHEEL").decode()
    assert "Root-Is-Purelib: false" in text
    tags = re.findall(r"^Tag: (.*)$", text, flags=re.MULTILINE)
    assert [f"infiniop_py-{infiniop_py.__version__}-{tag}" for tag in tags] == [built.wheel.stem]
    assert built.wheel.stat().st_size < 13 * MEBIBYTE // 4


def test_the_wheel_holds_the_package_alone(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as wheel:
        names = set(wheel.namelist())
    wanted = source_files("infiniop_py")
    assert "infiniop_py/py.typed" in wanted
    libraries = {
        f"infiniop_py/_lib/{name}" for name in ("libinfiniop.so", "libinfinirt.so", "_infiniop_cffi.py")
    }
    headers = {f"infiniop_py/_lib/include/{path.name}" for path in (ROOT / "native" / "include").glob("*.h")}
    assert wanted | libraries | headers <= names
    rest = names - wanted - libraries - headers
    build_files = r"infiniop_py/_lib/(cmake/infiniop/[\w-]+\.cmake|pkgconfig/infiniop\.pc)"
    allowed = rf"{build_files}|infiniop_py-[\d.]+\.dist-info/.*"
    assert not [name for name in rest if not re.fullmatch(allowed, name)]


def test_the_wheel_tells_nothing_of_the_machine_it_was_built_on(built: Built) -> None:
    folders = {built.tree, built.tree.parent, ROOT, Path(sys.prefix), Path(sys.base_prefix), Path.home()}
    # /usr and /root are words of their own
    paths = [re.escape(os.fsencode(folder)) for folder in folders if len(folder.parts) > 2]
    anywhere = re.compile(b"|".join(paths))
    # what the build made may name no place of people's files at all
    made = re.compile(rb"/(home|root|tmp|build|work|mnt|opt|Users|__w)/[\w.]+")
    (cache,) = built.tree.glob("build/*/CMakeCache.txt")
    assert anywhere.search(cache.read_bytes())  # where they are, they are found
    with zipfile.ZipFile(built.wheel) as wheel:
        for name in wheel.namelist():
            content = wheel.read(name)
            assert not anywhere.search(content), name
            assert not ("/_lib/" in name and made.search(content)), name


@pytest.mark.parametrize("name", ["libinfiniop.so", "libinfinirt.so"])
def test_the_wheel_needs_the_system_alone(built: Built, name: str, tmp_path: Path) -> None:
    if shutil.which("readelf") is None:
        pytest.skip("readelf (binutils) is not installed")
    with zipfile.ZipFile(built.wheel) as wheel:
        library = wheel.extract(f"infiniop_py/_lib/{name}", tmp_path)
    text = subprocess.run(["readelf", "-d", library], check=True, capture_output=True, text=True).stdout
    needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", text))
    assert "libc.so.6" in needed
    assert {need for need in needed if not need.startswith("ld-linux")} <= NEEDED
    assert set(re.findall(r"\((?:RUNPATH|RPATH)\).*\[(.*)\]", text)) <= {"$ORIGIN"}


@pytest.mark.slow
def test_wheels_with_and_without_the_nvidia_backend(built: Built, packages: Path, tmp_path: Path) -> None:
    """From the same tree, one after the other: its build folder forgets what was asked for before."""
    if not any(os.environ.get(name) for name in ("CUDACXX", "CUDA_HOME")) and shutil.which("nvcc") is None:
        pytest.skip("nvcc is not installed")
    python = environment(tmp_path / "venv", packages)
    defines = {"INFINIOP_CUDA": "ON", "INFINIOP_CUDA_ARCHITECTURES": "90-real"}
    asked = [f"--config-settings=cmake.define.{name}={value}" for name, value in defines.items()]
    plugin = "infiniop_py/_lib/libinfini_cuda.so"
    wheels = []
    for name, options in (("with", asked), ("without", [])):
        folder = tmp_path / name
        make = [
            python,
            "-m",
            "pip",
            "wheel",
            "--no-build-isolation",
            "--no-deps",
            "-w",
            folder,
            *options,
            ".",
        ]
        run(make, built.tree)
        wheels += folder.glob("*.whl")
        with zipfile.ZipFile(wheels[-1]) as wheel:
            assert (plugin in wheel.namelist()) == (name == "with")
            assert {"infiniop_py/_lib/libinfiniop.so", "infiniop_py/_lib/libinfinirt.so"} < set(
                wheel.namelist()
            )
            if name == "with":
                library = wheel.extract(plugin, tmp_path)
                assert os.fsencode(built.tree) not in wheel.read(plugin)
    if shutil.which("readelf") is not None:
        text = subprocess.run(["readelf", "-d", library], check=True, capture_output=True, text=True).stdout
        needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", text))
        assert {need for need in needed if not need.startswith("ld-linux")} <= NEEDED
    run([python, "-m", "pip", "install", "--no-deps", wheels[0]], tmp_path)
    (line,) = re.findall(
        r"^NVIDIA .*$", run([python, "-m", "infiniop_py", "info"], tmp_path), flags=re.MULTILINE
    )
    assert "there is no" not in line
    if not Path("/dev/nvidiactl").exists():
        assert re.search(r"not available: \S*/libinfini_cuda\.so: no NVIDIA driver is installed", line)


def headers_of(wheel: Path) -> email.message.Message:
    with zipfile.ZipFile(wheel) as archive:
        name = f"infiniop_py-{infiniop_py.__version__}.dist-info/METADATA"
        return email.parser.Parser().parsestr(archive.read(name).decode())


def test_metadata(built: Built) -> None:
    requirements = pytest.importorskip("packaging.requirements")
    told = headers_of(built.wheel)
    assert told["Version"] == infiniop_py.__version__
    assert told["Requires-Python"] == ">=3.10"
    assert set(told.get_all("Provides-Extra", [])) == EXTRAS
    parsed = [requirements.Requirement(text) for text in told.get_all("Requires-Dist", [])]
    plain = {requirement.name for requirement in parsed if requirement.marker is None}
    assert plain == {"numpy", "cffi"}
    for extra in EXTRAS:
        chosen = [r for r in parsed if r.marker is not None and r.marker.evaluate({"extra": extra})]
        assert chosen, extra


# ---- every way to install them ---------------------------------------------------------------------------


def test_the_wheel_runs_without_a_compiler(installed: Path, tmp_path: Path) -> None:
    alone = str(installed.parent)
    package, library = run([installed, "-c", WHERE], tmp_path, PATH=alone).splitlines()
    environment = installed.parent.parent
    assert Path(package).is_relative_to(environment) and Path(library).is_relative_to(environment)
    run([installed, "-m", "infiniop_py", "info"], tmp_path, PATH=alone)
    run([installed, "-m", "infiniop_py", "demo", "--quick"], tmp_path, PATH=alone)


@pytest.mark.parametrize("options", [(), ("-e",)], ids=["pip install .", "pip install -e ."])
def test_install_from_the_sources(
    built: Built, packages: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    """Without a network: the build requirements are there, as with --no-build-isolation they have to be."""
    python = environment(tmp_path / "venv", packages)
    flags = ["--no-deps", "--no-build-isolation", *options]
    run([python, "-m", "pip", "install", *flags, "."], built.tree)
    package, library = run([python, "-c", WHERE], tmp_path).splitlines()
    assert Path(package).is_relative_to(built.tree if options else tmp_path / "venv")
    assert Path(library).is_relative_to(tmp_path / "venv")
    run([python, "-m", "infiniop_py", "info"], tmp_path)
    run([python, "-m", "infiniop_py", "info"], built.tree)


def test_the_root_of_a_clone(built: Built, installed: Path, packages: Path, tmp_path: Path) -> None:
    """It has the sources, but no libraries: those of an installation serve, or the error says what to do."""
    package, library = run([installed, "-c", WHERE], built.tree).splitlines()
    assert Path(package).is_relative_to(built.tree)
    assert Path(library).is_relative_to(installed.parent.parent)
    python = environment(tmp_path / "venv", packages)
    done = attempt([python, "-c", WHERE], built.tree, LD_LIBRARY_PATH="")
    assert done.status == 1
    assert f"{built.tree}/infiniop_py/_lib: no such file" in done.output
    assert "./build_native.sh" in done.output.splitlines()[-1]


# ---- what cannot be installed ----------------------------------------------------------------------------

NO_COMPILER = {"CC": "/nowhere/cc", "CXX": "/nowhere/c++"}


def test_without_a_compiler_the_remedy_is_one_sentence(built: Built, packages: Path, tmp_path: Path) -> None:
    python = environment(tmp_path / "venv", packages)
    command = [python, "-m", "pip", "install", "--no-deps", "--no-build-isolation", built.sdist]
    done = attempt(command, tmp_path, **NO_COMPILER)
    assert done.status == 1
    told = " ".join(done.output.split())
    assert "No C++ compiler was found. Install one (Debian, Ubuntu: apt install g++) or name it in" in told
    (lines,) = re.findall(r"\[(\d+) lines of output\]", told)  # the build's own
    assert int(lines) < 16


def test_build_native_without_a_compiler() -> None:
    script = ROOT / "build_native.sh"
    if not script.is_file():
        pytest.skip("these tests do not lie in a source tree")
    done = attempt([script], ROOT, **NO_COMPILER)
    assert done.status == 1
    (line,) = done.output.splitlines()
    assert "no C++ compiler was found (/nowhere/c++)" in line and "apt install g++" in line


def test_an_older_python_is_refused() -> None:
    """A clone's root is on the path, whatever pip would have refused."""
    code = "import sys; sys.version_info = (3, 9, 18, 'final', 0); import infiniop_py"
    done = children.attempt(code)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last == "ImportError: infiniop_py needs Python 3.10 or newer; this is Python 3.9.18"


def test_a_real_older_python_is_refused() -> None:
    """It must be able to read the sentence: no newer syntax comes before it."""
    tried = 0
    for name in ("python3.9", "python3.8", "python3.7", "python3.6", "python2.7"):
        program = shutil.which(name)
        if program is None or attempt([program, "-c", ""], ROOT).status != 0:
            continue
        done = attempt([program, "-B", "-c", "import infiniop_py"], ROOT)
        assert done.status == 1
        last = done.output.splitlines()[-1]
        assert re.fullmatch(
            r"ImportError: infiniop_py needs Python 3\.10 or newer; this is Python [\d.]+", last
        )
        tried += 1
    if tried == 0:
        pytest.skip("no Python older than 3.10 is installed")
