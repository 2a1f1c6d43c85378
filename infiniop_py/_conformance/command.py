"""The command line of ``python -m infiniop_py conformance``."""

from __future__ import annotations

import argparse
import faulthandler
import math
import os
import shlex
import sys
import textwrap
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from time import perf_counter

from .._facts import show
from .._native import check, ffi, lib
from ..device import DeviceType, device_count
from ..errors import InfiniopError
from .cases import CASES, DTYPES, OPERANDS, Case
from .device import Device, Fault, NotApplicable, Refused
from .rows import run_row
from .rules import RULES, Context, Rule

_SHOWN_FAULTS = 10
_SHOWN_REFUSALS = 3  # of an operator
_QUICK_SHARE, _QUICK_ELEMENTS = 25, 100_000

_DESCRIPTION = """
Loads a backend plugin and holds it to the contract of infini_backend.h: the rules of memory, streams, events,
threads and capture on each of its devices, and the table of operator cases on the first, every result against
exact or float64 references. NOT_IMPLEMENTED with a sentence counts as refused. Exit status 0 without faults.
"""


def _elements_at_most(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no number of elements")
    return int(text)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m infiniop_py conformance", description=_DESCRIPTION.strip())
    add = made.add_argument
    add("plugin", nargs="?", metavar="PLUGIN.so", help="the plugin")
    add("--op", action="append", choices=tuple(OPERANDS), help="this operator alone; may be repeated")
    add(
        "-k",
        "--cases",
        metavar="PATTERN",
        help="rows and rules of this name, or whose names contain it; * stands for anything",
    )
    add(
        "--quick",
        action="store_true",
        help=f"of the rows one in {_QUICK_SHARE}, always the same, with at most {_QUICK_ELEMENTS} elements",
    )
    add(
        "--max-elements",
        type=_elements_at_most,
        metavar="N",
        help="leave out rows whose operands have more elements in all",
    )
    add("--device", type=int, metavar="N", help="this device alone (all for rules, the first for rows)")
    add("--list", action="store_true", help="print the names of what would be run")
    add("-v", "--verbose", action="store_true", help="print each name before it is run")
    return made


# ---- what is run -------------------------------------------------------------------------------------------


def _wanted(name: str, pattern: str | None, known: Iterable[str]) -> bool:
    """Is it the name itself, or, where that is none, does it contain the pattern?"""
    if pattern is None or name == pattern:
        return True
    return pattern not in known and fnmatchcase(name, f"*{pattern}*")


@cache
def table() -> dict[str, Case]:
    """The rows. Those at the edges of pages, which only the host has, are run without, and once."""
    found: dict[str, Case] = {}
    for case in CASES.values():
        inner = replace(case, edge="")
        found.setdefault(inner.name, inner)
    return found


@dataclass
class Selection:
    """What the options choose, and of how many rows they leave out."""

    rules: list[Rule]
    rows: list[Case]
    left_out: Counter[str] = field(default_factory=Counter)


def _elements(case: Case) -> int:
    return sum(map(math.prod, case.shapes))


def _is_quick(case: Case) -> bool:
    return zlib.crc32(case.name.encode()) % _QUICK_SHARE == 0 and _elements(case) <= _QUICK_ELEMENTS


def select(options: argparse.Namespace) -> Selection:
    """What they leave of the rules and the rows."""
    ops = options.op or list(OPERANDS)
    known = {rule.name for rule in RULES} | set(table())
    rules = [rule for rule in RULES if (rule.op or ops[0]) in ops]
    found = Selection([rule for rule in rules if _wanted(rule.name, options.cases, known)], [])
    for name, case in table().items():
        if case.op not in ops or not _wanted(name, options.cases, known):
            continue
        if 0 in case.shapes[0]:
            found.left_out["what they compute has no element, which never reaches a backend"] += 1
        elif not {case.dtype, case.weight_dtype or case.dtype} <= set(DTYPES):
            found.left_out["BF16 needs the package ml_dtypes: pip install 'infiniop_py[bf16]'"] += 1
        elif options.max_elements is not None and _elements(case) > options.max_elements:
            found.left_out[f"--max-elements {options.max_elements}"] += 1
        elif options.quick and not _is_quick(case):
            found.left_out["--quick"] += 1
        else:
            found.rows.append(case)
    return found


# ---- the plugin --------------------------------------------------------------------------------------------


def load(plugin: str) -> DeviceType:
    """Load a plugin and return the slot that it fills."""
    path = str(Path(plugin).resolve())
    check(lib.infinirtLoadBackend(os.fsencode(path)))
    info = ffi.new("InfiniBackendInfo *")
    for kind in DeviceType:
        check(lib.infinirtGetBackendInfo(kind, info))
        if os.fsdecode(ffi.string(info.path)) == path:
            name, version = (ffi.string(text).decode(errors="replace") for text in (info.name, info.version))
            devices = device_count(kind)
            count = "1 device" if devices == 1 else f"{devices} devices"
            show("backend", f"{name} {version}, {kind.name}, {count}")
            return kind
    raise AssertionError(f"no slot is filled by {path}")


# ---- running -----------------------------------------------------------------------------------------------


class Progress:
    """A bar on a terminal; nothing elsewhere."""

    def __init__(self, total: int, verbose: bool) -> None:
        self._total, self._done, self._verbose = total, 0, verbose
        self._bar = sys.stderr.isatty() and not verbose
        self._shown = 0.0

    def begin(self, name: str) -> None:
        self._done += 1
        if self._verbose:
            print(name, flush=True)
        elif self._bar and ((now := perf_counter()) - self._shown > 0.1 or name.startswith("rule-")):
            self._shown = now
            full = 30 * self._done // self._total
            line = f"[{'#' * full:30}] {self._done} of {self._total} {name}"
            print(f"\r{line[:118]:118}", end="", file=sys.stderr)

    def close(self) -> None:
        if self._bar:
            print(f"\r{'':118}\r", end="", file=sys.stderr)


@dataclass
class Report:
    """What came of everything."""

    outcomes: dict[str, Counter[str]] = field(default_factory=dict)  # of an operator's rows
    refusals: dict[str, Counter[str]] = field(default_factory=dict)  # of an operator: sentence -> rows
    faults: list[tuple[str, str]] = field(default_factory=list)  # name, what is wrong
    rules: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)  # of a device
    left_out: Counter[str] = field(default_factory=Counter)


def _in_short(fault: BaseException) -> str:
    """NumPy's messages have lines of their own."""
    return " ".join(str(fault).split())[:400]


def _run_rule(rule: Rule, at_hand: Context, report: Report) -> None:
    at_hand.refused.clear()
    outcome, remark = "passed", ""
    try:
        at_hand.device.use()
        rule.check(at_hand)
        remark = "; ".join(f"refused: {text}" for text in at_hand.refused)
    except Refused as sentence:
        outcome, remark = "refused", str(sentence)
    except NotApplicable as reason:
        outcome, remark = "-", str(reason)
    except (Fault, AssertionError) as fault:
        outcome, remark = "FAILED", rule.summary
        report.faults.append((f"{rule.name} on {at_hand.device}", _in_short(fault)))
    report.rules[rule.name, str(at_hand.device)] = outcome, remark


def _run_rows(device: Device, rows: list[Case], report: Report, progress: Progress) -> None:
    device.use()
    with Device.handle() as handle, Device.stream() as stream:
        for case in rows:
            progress.begin(case.name)
            outcomes = report.outcomes.setdefault(case.op, Counter())
            try:
                run_row(handle, case, stream)
                outcomes["passed"] += 1
            except Refused as sentence:
                outcomes["refused"] += 1
                report.refusals.setdefault(case.op, Counter())[str(sentence)] += 1
            except NotApplicable:
                report.left_out["they take more memory than is free on the device"] += 1
            except (Fault, AssertionError) as fault:
                outcomes["failed"] += 1
                report.faults.append((case.name, _in_short(fault)))


def run(kind: DeviceType, options: argparse.Namespace, chosen: Selection) -> Report:
    """Run the rules on every device asked for, and the rows on the first of them."""
    indices = range(device_count(kind)) if options.device is None else [options.device]
    devices = {index: Device(kind, index) for index in range(device_count(kind))}
    report = Report(left_out=chosen.left_out)
    progress = Progress(len(indices) * len(chosen.rules) + len(chosen.rows), options.verbose)
    try:
        for index in indices:
            device = devices[index]
            others = [devices[other] for other in devices if other != index]
            at_hand = Context(device, others, options.op or list(OPERANDS))
            for rule in chosen.rules:
                progress.begin(f"{rule.name} on {device}")
                _run_rule(rule, at_hand, report)
        if chosen.rows:
            try:
                _run_rows(devices[indices[0]], chosen.rows, report, progress)
            except (Fault, Refused) as fault:
                report.faults.append(("before the first row", _in_short(fault)))
    finally:
        progress.close()
        lib.infinirtSetDevice(DeviceType.CPU, 0)
    return report


# ---- what is printed ---------------------------------------------------------------------------------------


def _wrapped(text: str, indent: str) -> str:
    return textwrap.fill(text, 118, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)


def _rule_lines(report: Report) -> Iterator[str]:
    devices = list(dict.fromkeys(device for _, device in report.rules))
    names = list(dict.fromkeys(name for name, _ in report.rules))
    if names:
        yield f"\n{'rule':34}" + "".join(f"{device:>12}" for device in devices)
    for name in names:
        found = [report.rules[name, device] for device in devices]
        yield f"{name:34}" + "".join(f"{outcome:>12}" for outcome, _ in found)
        for remark in dict.fromkeys(remark for _, remark in found if remark):
            yield _wrapped(remark, "    ")


def _row_lines(report: Report) -> Iterator[str]:
    columns = ("passed", "refused", "failed")
    if report.outcomes:
        yield f"\n{'operator':14}" + "".join(f"{column:>9}" for column in columns)
    for op, outcomes in report.outcomes.items():
        yield f"{op:14}" + "".join(f"{outcomes[column]:9}" for column in columns)
    for op, sentences in report.refusals.items():
        yield f"\n{op}: refused"
        for sentence, count in sentences.most_common(_SHOWN_REFUSALS):
            yield _wrapped(f"{count}: {sentence}", "  ")
        if len(sentences) > _SHOWN_REFUSALS:
            yield f"  and {len(sentences) - _SHOWN_REFUSALS} sentences more"
    if report.left_out:
        yield "\nrows left out"
    for reason, count in report.left_out.items():
        yield f"{count:6}: {reason}"


def _faults(report: Report) -> str:
    return "1 fault" if len(report.faults) == 1 else f"{len(report.faults)} faults"


def _fault_lines(report: Report, plugin: str) -> Iterator[str]:
    if report.faults:
        rest = f", the first {_SHOWN_FAULTS}" if len(report.faults) > _SHOWN_FAULTS else ""
        yield f"\n{_faults(report)}{rest}:"
    for name, text in report.faults[:_SHOWN_FAULTS]:
        yield f"  {name}"
        yield _wrapped(text, "    ")
        words = "python", "-m", "infiniop_py", "conformance", plugin, "--cases", name.partition(" on ")[0]
        yield f"    again: {os.fsencode(shlex.join(words)).decode(errors='backslashreplace')}"


def _verdict(report: Report) -> str:
    rows = Counter[str]()
    for outcomes in report.outcomes.values():
        rows += outcomes
    rules = Counter(outcome for outcome, _ in report.rules.values())
    text = (
        f"rules: {rules['passed']} held, {rules['refused']} refused, {rules['-']} do not apply; "
        f"rows: {rows['passed']} passed, {rows['refused']} refused"
    )
    return f"FAILED: {_faults(report)}; {text}" if report.faults else f"OK: {text}"


def main(argv: list[str]) -> int:
    """Run the command; returns the exit status."""
    options = parser().parse_args(argv)
    chosen = select(options)
    if not chosen.rules and not chosen.rows:
        parser().error("no rule and no row is left by these options")
    if options.list:
        for rule in chosen.rules:
            print(f"{rule.name}: {rule.summary}")
        for case in chosen.rows:
            print(case.name)
        return 0
    if options.plugin is None:
        parser().error("which plugin?")
    if sys.__stderr__ is not None:
        faulthandler.enable(sys.__stderr__)  # where a plugin crashes; --verbose says in which row
    start = perf_counter()
    try:
        kind = load(options.plugin)
    except InfiniopError as error:
        print(f"infiniop_py: {error}", file=sys.stderr)
        return 1
    count = device_count(kind)
    if options.device is not None and not 0 <= options.device < count:
        parser().error(f"--device {options.device}: there are {count} devices")
    if count == 0:
        show("verdict", "FAILED: the backend has no device here")
        return 1
    report = run(kind, options, chosen)
    for line in (*_rule_lines(report), *_row_lines(report), *_fault_lines(report, options.plugin)):
        print(line)
    print()
    show("time", f"{perf_counter() - start:.1f} s")
    show("verdict", _verdict(report))
    return 1 if report.faults else 0
