"""Backend plugins: how they are found and refused, and two devices with memory of their own.

The plugin is native/tests/fake_backend.c, compiled here with and without faults. What is loaded stays for
the life of a process, so each test is a step of _backend_child.py in a process of its own.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import _child
import _compiler
import pytest
from _library import BAD_PARAM, ROOT, Library

CHILD = "_backend_child.py"
Plugin = Callable[..., Path]


@pytest.fixture(scope="session")
def plugin(tmp_path_factory: pytest.TempPathFactory, lib: Library) -> Plugin:
    """plugin("FAKE_ABI=99") -> path of the plugin compiled so; each kind is compiled once."""
    folder = tmp_path_factory.mktemp("plugins")
    made: dict[tuple[str, ...], Path] = {}

    def build(*defines: str) -> Path:
        if defines not in made:
            target = folder / f"fake{len(made)}.so"
            made[defines] = _compiler.build_plugin(lib.folder / "include", target, *defines)
        return made[defines]

    return build


# ---- loading -------------------------------------------------------------------------------------


def test_load_by_call(plugin: Plugin) -> None:
    _child.run(CHILD, "loaded", plugin())


def test_a_plugin_that_asks_for_its_device_while_it_is_loaded(plugin: Plugin) -> None:
    path = plugin("FAKE_ASKS=1")
    _child.run(CHILD, "loaded", path)
    _child.run(CHILD, "found_by_itself", path, INFINIOP_BACKEND_PATH=path)


def test_a_plugin_that_forks_while_it_is_loaded(plugin: Plugin) -> None:
    path = plugin("FAKE_FORKS=1")
    _child.run(CHILD, "loaded", path)
    _child.run(CHILD, "one_load_under_threads", path, INFINIOP_BACKEND_PATH=path)


def test_load_by_environment(plugin: Plugin) -> None:
    _child.run(CHILD, "found_by_itself", plugin(), INFINIOP_BACKEND_PATH=plugin())


def test_the_environment_lists_several(plugin: Plugin, tmp_path: Path) -> None:
    """What is no plugin is passed over, and so are a relative and an empty entry."""
    text = tmp_path / "text.so"
    text.write_text("not a shared object")
    listed = f"{tmp_path / 'missing.so'}:{text}::fake.so:{plugin('FAKE_ABI=99')}:{plugin()}"
    _child.run(CHILD, "found_by_itself", plugin(), INFINIOP_BACKEND_PATH=listed)


def test_found_beside_the_library(plugin: Plugin, lib: Library, tmp_path: Path) -> None:
    moved = tmp_path / "lib"
    shutil.copytree(lib.folder, moved)
    shutil.copy(plugin(), moved / "libinfini_qy.so")
    _child.run(CHILD, "found_by_itself", moved / "libinfini_qy.so", INFINIOP_LIBRARY=moved / "libinfiniop.so")
    shutil.copy(plugin("FAKE_SLOT=INFINI_DEVICE_MOORE"), moved / "libinfini_qy.so")
    words = (moved / "libinfini_qy.so", "another slot")
    _child.run(CHILD, "not_found", *words, INFINIOP_LIBRARY=moved / "libinfiniop.so")


def test_found_beside_the_library_wherever_the_process_goes(
    plugin: Plugin, lib: Library, tmp_path: Path
) -> None:
    shutil.copytree(lib.folder, tmp_path / "lib")
    shutil.copy(plugin(), tmp_path / "lib" / "libinfini_qy.so")
    _child.run(CHILD, "found_after_chdir", tmp_path)


NO_PIE = """
#include <stdio.h>
#include "infini_backend.h"
#include "infinirt.h"
static int each(infiniStatus_t (*function)(void)) { return function(); }
int main(int argc, char **argv) {
    (void)argv;
    InfiniBackendInfo info;
    if (each(argc > 5 ? infinirtDeviceSynchronize : infinirtInit) != INFINI_STATUS_SUCCESS) return 1;
    if (infinirtGetBackendInfo(INFINI_DEVICE_QY, &info) != INFINI_STATUS_SUCCESS) return 2;
    puts(info.available ? info.path : info.reason);
    return 0;
}
"""


def test_found_beside_the_library_by_a_program_that_has_its_functions_addresses(
    plugin: Plugin, lib: Library, tmp_path: Path
) -> None:
    """One at a fixed address, whose own table of functions they are in."""
    folder = tmp_path / "lib"
    shutil.copytree(lib.folder, folder)
    shutil.copy(plugin(), folder / "libinfini_qy.so")
    (tmp_path / "main.c").write_text(NO_PIE)
    _compiler.run(
        [
            *(_compiler.compiler(), "-no-pie", "-fno-pic", "-O1", f"-I{folder / 'include'}"),
            *(
                tmp_path / "main.c",
                "-o",
                tmp_path / "main",
                f"-L{folder}",
                "-linfinirt",
                f"-Wl,-rpath,{folder}",
            ),
        ]
    )
    assert _compiler.run([tmp_path / "main"]).strip() == str(folder / "libinfini_qy.so")


def test_one_load_under_threads(plugin: Plugin) -> None:
    _child.run(CHILD, "one_load_under_threads", plugin(), INFINIOP_BACKEND_PATH=plugin())


def test_a_taken_slot(plugin: Plugin) -> None:
    _child.run(CHILD, "taken", plugin(), plugin("FAKE_WORKSPACE=32"))


def test_empty_slots() -> None:
    _child.run(CHILD, "empty_slots")


# name: what the plugin is compiled with, the status of infinirtLoadBackend, words of the reason
FAULTS: dict[str, tuple[str, int, tuple[str, ...]]] = {
    "abi-of-tomorrow": ("FAKE_ABI=99", BAD_PARAM, ("abi", "99")),
    "abi-0": ("FAKE_ABI=0", BAD_PARAM, ("abi", "0")),
    "backend-size": ("FAKE_STRUCT_SIZE=8", BAD_PARAM, ("size", "8")),
    "no-name": ("FAKE_NAME=NULL", BAD_PARAM, ("InfiniBackend", "incomplete")),
    "no-version": ("FAKE_VERSION=NULL", BAD_PARAM, ("InfiniBackend", "incomplete")),
    "runtime-table-size": ("FAKE_RUNTIME_SIZE=16", BAD_PARAM, ("size", "16")),
    "op-table-size": ("FAKE_OPS_SIZE=4", BAD_PARAM, ("size", "4")),
    "runtime-table-incomplete": ("FAKE_MEM_INFO=NULL", BAD_PARAM, ("InfiniRuntimeTable", "incomplete")),
    "op-table-incomplete": ("FAKE_OP_RUN=NULL", BAD_PARAM, ("InfiniOpTable", "incomplete")),
    "entry-says-no": ("FAKE_ENTRY_NULL=1", BAD_PARAM, ("NULL",)),
    "claims-the-cpu": ("FAKE_SLOT=0", BAD_PARAM, ("cpu",)),
    "claims-no-device-type": ("FAKE_SLOT=10", BAD_PARAM, ("10",)),
    "claims-a-negative-type": ("FAKE_SLOT=-1", BAD_PARAM, ("-1",)),
    "probe-7": ("FAKE_PROBE=7", 7, ("no device answers",)),
    "probe-8": ("FAKE_PROBE=8", 8, ("no device answers",)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_plugin_is_refused(plugin: Plugin, fault: str) -> None:
    define, status, words = FAULTS[fault]
    _child.run(CHILD, "refused", plugin(define), status, *words)


@pytest.mark.parametrize("fault", ["runtime-table-size", "probe-7"])
def test_the_slot_keeps_the_reason(plugin: Plugin, fault: str) -> None:
    """Given by call or by environment, and told again when the device is asked for."""
    define, _, words = FAULTS[fault]
    _child.run(CHILD, "reason_is_kept", plugin(define), *words)
    _child.run(CHILD, "not_found", str(plugin(define)), INFINIOP_BACKEND_PATH=plugin(define))


def test_a_good_plugin_after_a_bad_one(plugin: Plugin) -> None:
    _child.run(CHILD, "after_a_bad_one", plugin("FAKE_ABI=99"), plugin())
    _child.run(CHILD, "after_a_bad_one", plugin("FAKE_PROBE=7"), plugin())


def not_plugins(lib: Library, folder: Path) -> dict[str, Path]:
    """Name -> path of something that is no plugin."""
    text, cut, empty = folder / "text.so", folder / "cut.so", folder / "empty.so"
    text.write_text("not a shared object")
    cut.write_bytes((lib.folder / "libinfinirt.so").read_bytes()[:1000])
    empty.touch()
    return {
        "missing": folder / "missing.so",
        "directory": folder,
        "text": text,
        "cut-short": cut,
        "empty": empty,
        "another-library": lib.folder / "libinfiniop.so",
    }


NOT_PLUGINS = ("missing", "directory", "text", "cut-short", "empty", "another-library")


@pytest.mark.parametrize("name", NOT_PLUGINS)
def test_what_is_no_plugin_is_refused(lib: Library, tmp_path: Path, name: str) -> None:
    path = not_plugins(lib, tmp_path)[name]
    _child.run(CHILD, "refused", path, BAD_PARAM, path)
    _child.run(CHILD, "not_found", path, INFINIOP_BACKEND_PATH=path)


@pytest.mark.parametrize("path", ["fake.so", "./fake.so", "../fake.so", "", "~/fake.so"])
def test_a_path_must_be_absolute(path: str) -> None:
    _child.run(CHILD, "refused", path, BAD_PARAM, "absolute")


def test_a_plugin_whose_devices_cannot_be_counted(plugin: Plugin) -> None:
    """No devices, which is no error; the CPU works on."""
    _child.run(CHILD, "no_devices", plugin("FAKE_COUNT=7"), "does not count")
    _child.run(CHILD, "no_devices", plugin("FAKE_COUNT=7", "FAKE_SILENT=1"), "DEVICE_NOT_INITIALIZED")


# ---- devices, memory, operators ------------------------------------------------------------------

STEPS = (
    "devices",
    "memory",
    "streams_and_events",
    "operators",
    "other_device_current",
    "wrong_memory",
    "workspace",
    "zero_sizes",
    "graphs",
    "captured",
    "first_run_on_a_dead_stream",
    "append_after_a_run",
    "graph_that_never_runs",
    "graphs_that_record_nothing",
    "two_graphs",
    "capture_of_the_caller",
    "overlap",
    "misaligned",
    "threads",
)


@pytest.mark.parametrize("step", STEPS)
def test_two_devices(plugin: Plugin, step: str) -> None:
    _child.run(CHILD, step, plugin())


FAILING = {
    "device_does_not_start": "FAKE_SET_DEVICE=7",
    "refuses_create": "FAKE_CREATE=INFINI_STATUS_NOT_IMPLEMENTED",
    "fails_at_run": "FAKE_RUN=INFINI_STATUS_INTERNAL_ERROR",
    "run_fails": "FAKE_RUN=INFINI_STATUS_INTERNAL_ERROR",
    "launch_fails_later": "FAKE_LAUNCHES=1",
    "capture_not_offered": "FAKE_CAPTURE=0",
}


@pytest.mark.parametrize("step", FAILING)
def test_a_backend_that_fails(plugin: Plugin, step: str) -> None:
    _child.run(CHILD, step, plugin(FAILING[step]))


# What the plugin is compiled with: how many captures come to an end, and words of the reason.
UNCAPTURED: dict[str, tuple[int, tuple[str, ...]]] = {
    "FAKE_STREAM_CREATE=1": (0, ("creating a stream", "fake: no more streams")),
    "FAKE_BEGIN_CAPTURE=2": (0, ("beginning the capture", "fake: no capture today")),
    "FAKE_UNCAPTURABLE=INFINI_OP_ADD": (1, ("call 1, add", "fake: this operator cannot be captured")),
    "FAKE_UNCAPTURABLE=INFINI_OP_MUL": (1, ("call 2, mul", "fake: this operator cannot be captured")),
    "FAKE_END_CAPTURE=1": (0, ("ending the capture", "fake: the capture came to nothing")),
    "FAKE_STREAM_DESTROY=1": (1, ("destroying the stream", "fake: the stream went badly")),
    "FAKE_INSTANTIATE=1": (1, ("instantiating", "fake: the graph cannot be launched (node 0 is at fault)")),
    "FAKE_LAUNCHES=0": (1, ("first launch", "fake: no launch today")),
    "FAKE_UNCAPTURABLE=INFINI_OP_MUL FAKE_END_CAPTURE=1": (0, ("call 2, mul",)),
    "FAKE_BEGIN_CAPTURE=2 FAKE_SILENT=1": (0, ("beginning the capture: NOT_IMPLEMENTED",)),
}


@pytest.mark.parametrize("fault", UNCAPTURED)
def test_a_graph_that_cannot_be_captured_runs_op_by_op(plugin: Plugin, fault: str) -> None:
    captures, words = UNCAPTURED[fault]
    _child.run(CHILD, "not_captured", plugin(*fault.split()), captures, *words)


@pytest.mark.parametrize("value", ["1", "0", ""])
def test_capture_can_be_switched_off(plugin: Plugin, value: str) -> None:
    if value:
        _child.run(CHILD, "capture_switched_off", plugin(), "INFINIOP_NO_CAPTURE", INFINIOP_NO_CAPTURE=value)
    else:
        _child.run(CHILD, "captured", plugin(), INFINIOP_NO_CAPTURE=value)


def test_the_plugin_links_against_nothing_of_this_project(plugin: Plugin) -> None:
    """It resolves what it needs at run time, so it can be built before and apart from the libraries."""
    source = (ROOT / "native" / "tests" / "fake_backend.c").read_text(encoding="utf-8")
    assert "dlsym" in source
    assert b"libinfinirt.so" not in plugin().read_bytes()
