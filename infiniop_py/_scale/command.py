"""The command line of ``python -m infiniop_py scale``."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path

from .._bench.options import NEEDS_PLOT, can_plot, new_file, picture, write_all
from . import report, validate
from .collectives import Link
from .models import MODELS, Model
from .plans import Job, Machine, outcomes
from .work import Rates

_POWERS = {"": 0, "k": 3, "K": 3, "M": 6, "G": 9, "T": 12, "P": 15, "m": -3, "u": -6, "n": -9}  # of 10
_ITEMS = {"F16": 2, "BF16": 2, "F32": 4, "F64": 8}


def quantity(*units: str, zero: bool = False) -> Callable[[str], float]:
    """A positive number, or 0 if that may be, with a prefix and one of the units, which may be left out."""
    example = "5us" if units[0] == "s" else f"450G{units[0]}"
    pattern = re.compile(rf"([0-9.]+(?:e[+-]?[0-9]+)?)\s*([kKMGTPmun]?)(?:{'|'.join(units)})?", re.ASCII)

    def parse(text: str) -> float:
        match = pattern.fullmatch(text.strip())
        try:
            value = float(match[1]) * 10.0 ** _POWERS[match[2]] if match else -1.0
        except ValueError:
            value = -1.0
        if not 0 <= value < float("inf") or (value == 0 and not zero):
            raise argparse.ArgumentTypeError(f"{text!r} is no quantity; it looks like {example}")
        return value

    return parse


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1 << 24:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 to {1 << 24}")
    return int(text)


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 to 1")
    return value


def model(text: str) -> Model:
    """One of the table, or its sizes: layers=80,hidden=8192,..."""
    if text in MODELS:
        return MODELS[text]
    names = tuple(Model.__dataclass_fields__)
    try:
        sizes = {name: _count(size) for name, size in (part.split("=") for part in text.split(","))}
    except (ValueError, argparse.ArgumentTypeError):
        sizes = {}
    if sorted(sizes) != sorted(names):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no model; there are {', '.join(MODELS)}, or give "
            + ",".join(f"{n}=..." for n in names)
        )
    return Model(**sizes)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m infiniop_py scale",
        description="Predicts what a decoder takes on several devices, from the shapes of its operators, the "
        "rates that a device reaches, and what devices send each other; and finds the best way to share it "
        "out. With --validate it measures here how well it predicts, in about two minutes.",
    )
    add = parser.add_argument
    add("--model", type=model, metavar="NAME", help=f"of {', '.join(MODELS)}, or its sizes as name=size,...")
    add("--devices", type=_count, help="how many")
    add("--flops", type=quantity("FLOP/s", "FLOPS", "flop/s", "flops"), help="of products, such as 790T")
    add("--mem", type=quantity("B/s"), help="of a device's memory, such as 4.3TB/s")
    add("--link", type=quantity("B/s"), help="between devices, in each direction, such as 450GB/s")
    time = quantity("s", zero=True)
    add("--latency", type=time, default=None, help="of a message (assumed: 5us)")
    add("--call", type=time, default=None, help="what each operator costs besides (assumed: 3us)")
    add("--overlap", type=_share, default=None, help="of computing and memory, 0 to 1 (assumed: 1)")
    add(
        "--capacity",
        type=quantity("B"),
        default=None,
        help="of its memory (without it everything fits)",
    )
    add("--batch", type=_count, default=16, help="sequences (16)")
    add("--prompt", type=_count, default=2048, help="tokens of each prompt (2048)")
    add("--context", type=_count, default=4096, help="tokens of each sequence in the end (4096)")
    add("--dtype", type=str.upper, choices=tuple(_ITEMS), default="BF16", help="of everything (BF16)")
    add("--json", type=new_file, metavar="FILE", help="write everything predicted")
    add("--plot", type=picture, metavar="FILE.png", help="draw what takes the time; needs the extra [plot]")
    add("--validate", action="store_true", help="measure this machine, predict it, and compare")
    add(
        "--budget",
        type=quantity("s"),
        default=0.5,
        metavar="SECONDS",
        help="with --validate: for each row (0.5)",
    )
    return parser


_ASSUMED = {"latency": 5e-6, "call": 3e-6, "overlap": 1.0}


def main(argv: list[str]) -> int:
    """Run the command; returns the exit status."""
    parser = _parser()
    options = parser.parse_args(argv)
    if options.validate:
        for name in ("json", "plot"):
            if getattr(options, name) is not None:
                parser.error(f"--{name} is of a prediction for --model; --validate only prints what it finds")
        print(validate.run(options.budget), end="")
        return 0
    for name in ("model", "devices", "flops", "mem", "link"):
        if getattr(options, name) is None:
            parser.error(f"--{name} is needed, or --validate")
    if options.context < options.prompt:
        parser.error(
            f"--context is {options.context}, needs at least the {options.prompt} tokens of --prompt"
        )

    if options.plot and not can_plot():
        print(NEEDS_PLOT, file=sys.stderr)
        options.plot = None
    known = {name: getattr(options, name) for name in _ASSUMED}
    values = {name: _ASSUMED[name] if value is None else value for name, value in known.items()}
    shown = {
        "flops": f"{report.amount(options.flops, 'FLOP/s')} of products",
        "mem": f"{report.amount(options.mem, 'B/s')} of memory",
        "link": f"{report.amount(options.link, 'B/s')} between devices",
        "latency": f"{report.amount(values['latency'], 's')} a message",
        "call": f"{report.amount(values['call'], 's')} a call",
        "overlap": f"overlap {values['overlap']:g} of computing and memory",
    }
    assumed = [text for name, text in shown.items() if known.get(name, 0) is None]
    given = [text for name, text in shown.items() if known.get(name, 0) is not None]
    origins = [f"given, not measured: {', '.join(given)}"]
    if assumed:
        origins.append(f"assumed: {', '.join(assumed)}")
    origins.append("all times, rates of tokens and sizes of activations: predicted")

    job = Job(options.batch, options.prompt, options.context, _ITEMS[options.dtype])
    rates = Rates(options.flops, options.mem, options.mem, values["overlap"], values["call"])
    machine = Machine(rates, Link(options.link, values["latency"]))
    found = outcomes(options.model, options.devices, job, machine, options.capacity)
    if not found:
        parser.error(
            f"no plan shares this model out over {options.devices} devices and {options.batch} sequences"
        )
    name = next((name for name, one in MODELS.items() if one == options.model), "a model")
    title = (
        f"{name}, {options.dtype}, {report.amount(options.model.parameters, 'parameters')}; "
        f"{options.devices} device{'s' if options.devices > 1 else ''}; "
        f"{options.batch} sequences of {options.prompt} to {options.context} tokens"
    )
    print(report.text(title, origins, options.model, job, machine, found), end="")
    text = report.as_json(options.model, job, machine, origins, found)
    return write_all(
        [
            (options.json, lambda path: Path(path).write_text(text + "\n", encoding="utf-8")),
            (options.plot, lambda path: report.draw(title, found, path)),
        ]
    )
