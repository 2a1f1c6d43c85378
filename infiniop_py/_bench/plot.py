"""The picture: every measured row under the roofs of this machine. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from .._ceilings import COPY, FMA_F32, FMA_F64, READ
from .report import Report, threads_text
from .suite import Result

_COLOURS = {"F32": "C0", "F64": "C1", "F16": "C2", "BF16": "C3", "I32": "C4", "U8": "C5"}
_MARKERS = {"gemm": "o", "add": "s", "mul": "D", "add_rms_norm": "^", "rearrange": "v"}


def draw(report: Report, path: str) -> None:
    """Write the picture to a file. One line of panels for each number of threads.

    Left, the roofline: GFLOP/s over FLOPs per byte, for rows that compute. Right, for rows that only move
    bytes: GB/s over the working set, under the copy and read rates measured at such sizes.
    """
    figure_class = import_module("matplotlib.figure").Figure  # no pyplot: nothing global, no display
    figure = figure_class(figsize=(15, 6.5 * len(report.threads)), layout="constrained")
    panels = figure.subplots(len(report.threads), 2, squeeze=False)
    for (left, right), threads in zip(panels, report.threads):
        rates = report.ceilings.measured(threads)
        results = [result for result in report.results if result.threads == threads]
        title = threads_text(threads)
        _compute_panel(left, [one for one in results if one.case.flops], rates, title)
        _memory_panel(right, [one for one in results if not one.case.flops], rates, title)
    facts = report.facts
    figure.suptitle(
        f"infiniop_py {facts['infiniop_py']} on {facts['cpu']}, {facts['isa']}, {facts['compiler']}, "
        f"{facts['date']}\nfilled: this library; hollow: the fastest peer",
        fontsize=11,
    )
    figure.savefig(path, dpi=120)


def _compute_panel(
    panel: Any, results: Sequence[Result], rates: Sequence[tuple[str, int, float]], title: str
) -> None:
    intensities = [one.case.flops / one.case.traffic for one in results] or [1.0]
    low, high = min(*intensities, 1.0) / 2, max(*intensities, 16.0) * 2
    peaks = {what: rate for what, size, rate in rates if what in (FMA_F32, FMA_F64)}
    for what, rate in peaks.items():
        panel.axhline(rate / 1e9, color="black", linewidth=1, linestyle="-" if what == FMA_F32 else ":")
        panel.annotate(f"{what} {rate / 1e9:.0f} GFLOP/s", (high, rate / 1e9), ha="right", va="bottom")
    # Each row has the bandwidth of its own working set: the slowest and the fastest bracket the roofs.
    bandwidths = sorted({one.roof.bandwidth for one in results})
    for bandwidth in dict.fromkeys(bandwidths[:1] + bandwidths[-1:]):
        peak = max(peaks.values(), default=bandwidth * high)
        corner = min(peak / bandwidth, high)
        heights = [low * bandwidth / 1e9, corner * bandwidth / 1e9]
        panel.plot([low, corner], heights, color="grey", linewidth=1)
        panel.annotate(
            f"  {bandwidth / 1e9:.3g} GB/s",
            (low, low * bandwidth / 1e9),
            ha="left",
            va="bottom",
            color="grey",
        )
    for one in results:
        _point(panel, one, one.case.flops / one.case.traffic)
    _finish(panel, f"gemm, {title}", "FLOPs per byte of operands", "GFLOP/s", (low, high))


def _memory_panel(
    panel: Any, results: Sequence[Result], rates: Sequence[tuple[str, int, float]], title: str
) -> None:
    for what, style in ((COPY, "-"), (READ, "--")):
        points = [(size, rate / 1e9) for name, size, rate in rates if name == what]
        if points:
            panel.plot(*zip(*points), style, color="black", linewidth=1, label=f"{what} ceiling")
    for one in results:
        _point(panel, one, one.working_set)
    _finish(panel, f"memory-bound rows, {title}", "working set, bytes", "GB/s", None)


def _point(panel: Any, result: Result, x: float) -> None:
    case = result.case
    style: dict[str, Any] = {
        "color": _COLOURS[case.dtype.name],
        "marker": _MARKERS[case.op],
        "linestyle": "none",
        "markersize": 5,
    }
    panel.plot([x], [result.rate(result.timing.seconds)], label=f"{case.op} {case.dtype}", **style)
    best = result.best_peer
    if best is not None:
        rate = result.rate(result.peers[best].timing.seconds)
        panel.plot([x], [rate], **style, markerfacecolor="none", alpha=0.7)


def _finish(panel: Any, title: str, x: str, y: str, limits: tuple[float, float] | None) -> None:
    panel.set(xscale="log", yscale="log", title=title, xlabel=x, ylabel=y)
    if limits is not None:
        panel.set_xlim(*limits)
    panel.grid(True, which="both", linewidth=0.3)
    handles = dict(zip(*reversed(panel.get_legend_handles_labels())))  # one of each label
    if handles:
        panel.legend(handles.values(), handles.keys(), fontsize=8, loc="best")
