"""Tables of what was predicted, and a plot."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from importlib import import_module
from typing import Any

from .models import Model
from .plans import Job, Machine, Memory, Outcome, Plan, Prediction, best, messages, split
from .work import layer

_PHASES = ("prefill", "decode")


def amount(value: float, unit: str) -> str:
    """With three digits and a prefix: 4.3 TB/s, 12.5 us."""
    for power, prefix in zip(range(15, -10, -3), ("P", "T", "G", "M", "k", "", "m", "u", "n")):
        factor = 10.0**power
        if value >= factor * 0.9995:
            return f"{value / factor:.3g} {prefix}{unit}"
    return f"{value:g} {unit}"


def table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The first column to the left, the others to the right."""
    lines = [list(titles), *map(list, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(titles))]
    return "\n".join(
        "  ".join(text.ljust(w) if i == 0 else text.rjust(w) for i, (text, w) in enumerate(zip(line, widths)))
        .rstrip()
        for line in lines
    )  # fmt: skip


def layer_rows(model: Model, name: str, plan: Plan, job: Job, machine: Machine) -> list[list[str]]:
    """The calls of one layer on one device: name, shape, work, bound, time and its share."""
    phase, _ = split(name, plan, job)
    works = layer(model, phase, plan.tp, job.itemsize)
    sent, algorithm = messages(model, phase, plan.tp, job.itemsize, machine.link)
    total = sum(one.seconds(machine.rates) for one in works) + sent
    rows = [
        [
            one.name, one.shape, amount(one.flops, "FLOP"), amount(one.bytes, "B"), one.bound(machine.rates),
            amount(one.seconds(machine.rates), "s"), f"{one.seconds(machine.rates) / total:.0%}",
        ]
        for one in works
    ]  # fmt: skip
    if sent:
        nbytes = float(phase.tokens * model.hidden * job.itemsize)
        name, shape = f"2 x all-reduce, {algorithm}", f"{phase.tokens}x{model.hidden}"
        rows.append([name, shape, "", amount(nbytes, "B"), "link", amount(sent, "s"), f"{sent / total:.0%}"])
    rows.append(["one layer", "", "", "", "", amount(total, "s"), ""])
    return rows


def _waits(prediction: Prediction) -> str:
    lost = sum(prediction.parts[name] for name in ("all-reduce", "hand over", "idle"))
    return f"{lost / prediction.seconds:.0%}"


def plan_rows(found: Sequence[Outcome]) -> list[list[str]]:
    rows = []
    for one in found:
        rows.append([
            str(one.plan), amount(one.memory.weights, "B"), amount(one.memory.cache, "B"),
            amount(one.memory.total, "B") + ("" if one.fits else " (too much)"),
            amount(one.prefill.seconds, "s"), f"{one.prefill.tokens_per_second:.0f}", _waits(one.prefill),
            amount(one.decode.seconds, "s"), f"{one.decode.tokens_per_second:.0f}", _waits(one.decode),
        ])  # fmt: skip
    return rows


def text(
    title: str, origins: Sequence[str], model: Model, job: Job, machine: Machine, found: list[Outcome]
) -> str:
    """Everything that is printed."""
    parts = [title, *origins, ""]
    for name in _PHASES:
        winner = best(found, name)
        if winner is None:
            continue
        does = (
            f"{job.batch} x {job.prompt} tokens" if name == "prefill" else f"{job.batch} x 1 token, the last"
        )
        parts += [
            f"{name}, {does}: a layer on each device with the best plan, {winner.plan}",
            table(
                ["operator", "shape", "work", "moved", "bound", "time", "share"],
                layer_rows(model, name, winner.plan, job, machine),
            ),
            "",
        ]
    parts.append(
        table(
            [
                "plan",
                "weights",
                "cache",
                "memory",
                "prefill",
                "tokens/s",
                "waits",
                "decode",
                "tokens/s",
                "waits",
            ],
            plan_rows(found),
        )
    )
    parts.append("")
    for name in _PHASES:
        winner = best(found, name)
        parts.append(
            f"best for {name}: nothing fits"
            if winner is None
            else f"best for {name}: {winner.plan}, {getattr(winner, name).tokens_per_second:.0f} tokens/s"
        )
    return "\n".join(parts) + "\n"


def as_json(model: Model, job: Job, machine: Machine, origins: Sequence[str], found: list[Outcome]) -> str:
    def memory(one: Memory) -> dict[str, float]:
        return {f"{name}_bytes": value for name, value in (*asdict(one).items(), ("total", one.total))}

    def prediction(one: Prediction) -> dict[str, Any]:
        return {
            "seconds": one.seconds,
            "tokens_per_second": one.tokens_per_second,
            "parts_seconds": one.parts,
        }

    winners = {name: best(found, name) for name in _PHASES}
    return json.dumps(
        {
            "model": {**asdict(model), "parameters": model.parameters},
            "job": asdict(job),
            "machine": asdict(machine),
            "origins": list(origins),
            "plans": [
                {
                    **asdict(one.plan),
                    "fits": one.fits,
                    "memory": memory(one.memory),
                    "prefill": prediction(one.prefill),
                    "decode": prediction(one.decode),
                }
                for one in found
            ],
            "best": {name: None if one is None else asdict(one.plan) for name, one in winners.items()},
        },
        indent=1,
    )


def draw(title: str, found: list[Outcome], file: str) -> None:
    """What takes the time of each plan, in both phases."""
    matplotlib: Any = import_module("matplotlib")
    matplotlib.use("Agg")
    pyplot: Any = import_module("matplotlib.pyplot")
    figure, both = pyplot.subplots(
        1, 2, figsize=(12, 1.5 + 0.4 * len(found)), layout="constrained", sharey=True
    )
    for axes, name in zip(both, _PHASES):
        predictions = [getattr(one, name) for one in found]
        names = [str(one.plan) + ("" if one.fits else " (too much memory)") for one in found]
        left = [0.0] * len(found)
        for part in predictions[0].parts:
            widths = [1e3 * one.parts[part] for one in predictions]
            axes.barh(names, widths, left=left, label=part)
            left = [a + b for a, b in zip(left, widths)]
        axes.set_title(name)
        axes.set_xlabel("ms, predicted")
    both[0].invert_yaxis()  # the axis of both
    both[1].legend(fontsize="small")
    figure.suptitle(title, fontsize="medium")
    figure.savefig(file, dpi=120)
    pyplot.close(figure)
