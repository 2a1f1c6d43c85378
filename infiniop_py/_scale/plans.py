"""How a model may be shared out over devices, and what each way comes to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .collectives import Link, all_reduce
from .models import Model
from .work import Phase, Rates, Work, head, layer


@dataclass(frozen=True)
class Plan:
    """`tp` devices share each matrix, `pp` groups of them the layers, `dp` groups of those the sequences."""

    tp: int
    pp: int
    dp: int

    def __str__(self) -> str:
        return f"tp={self.tp} pp={self.pp} dp={self.dp}"


@dataclass(frozen=True)
class Job:
    """What is asked: `batch` prompts of `prompt` tokens, and then tokens up to `context` of each."""

    batch: int
    prompt: int
    context: int
    itemsize: int


def plans(model: Model, devices: int, batch: int) -> Iterator[Plan]:
    """All that use every device and divide what they share evenly, but for layers and sequences."""
    for tp in range(1, devices + 1):
        if devices % tp or model.heads % tp or model.ffn % tp or model.vocab % tp:
            continue
        if model.kv_heads % tp and tp % model.kv_heads:
            continue
        for pp in range(1, devices // tp + 1):
            dp = devices // tp // pp
            if tp * pp * dp == devices and pp <= model.layers and dp <= batch:
                yield Plan(tp, pp, dp)


def ceil_div(x: int, y: int) -> int:
    return -(-x // y)


@dataclass(frozen=True)
class Memory:
    """Bytes of the device that holds most."""

    weights: float
    cache: float  # of keys and values, when all sequences are as long as they get
    activations: float

    @property
    def total(self) -> float:
        return self.weights + self.cache + self.activations


def memory(model: Model, plan: Plan, job: Job) -> Memory:
    layers, sequences = ceil_div(model.layers, plan.pp), ceil_div(job.batch, plan.dp)
    ends = 2 if plan.pp == 1 else 1  # embedding and vocabulary
    weights = (layers * model.layer_parameters + ends * model.vocab * model.hidden) / plan.tp
    kv = 2 * max(model.kv_heads // plan.tp, 1) * model.head_dim
    together = sequences if plan.pp == 1 else 1
    wide = 4 * model.hidden + (3 * model.ffn + 2 * model.heads * model.head_dim) / plan.tp
    return Memory(
        job.itemsize * weights,
        float(job.itemsize * kv * layers * sequences * job.context),
        job.itemsize * together * job.prompt * wide,
    )


@dataclass(frozen=True)
class Prediction:
    """What a phase takes, in seconds, by what takes it."""

    phase: str
    tokens: int  # of all sequences
    parts: dict[str, float]  # gemm, attention, elementwise, all-reduce, hand over, idle

    @property
    def seconds(self) -> float:
        return sum(self.parts.values())

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds


@dataclass(frozen=True)
class Machine:
    rates: Rates
    link: Link


def messages(model: Model, phase: Phase, tp: int, itemsize: int, link: Link) -> tuple[float, str]:
    """Seconds that the two sums over the devices of a layer take, and by which algorithm."""
    if tp == 1:
        return 0.0, ""
    seconds, name = all_reduce(float(phase.tokens * model.hidden * itemsize), tp, link)
    return 2 * seconds, name


def _stage(model: Model, plan: Plan, phase: Phase, itemsize: int, machine: Machine) -> dict[str, float]:
    """One pass of the longest stage, the last, for what goes through it at once."""
    layers = ceil_div(model.layers, plan.pp)
    parts = dict.fromkeys(("gemm", "attention", "elementwise", "all-reduce", "hand over", "idle"), 0.0)
    calls: list[tuple[int, Work]] = [(layers, one) for one in layer(model, phase, plan.tp, itemsize)]
    calls += [(1, one) for one in head(model, phase, plan.tp, itemsize)]
    for times, one in calls:
        parts[one.kind] += times * one.seconds(machine.rates)
    parts["all-reduce"] = layers * messages(model, phase, plan.tp, itemsize, machine.link)[0]
    if plan.pp > 1:
        parts["hand over"] = machine.link.send(phase.tokens * model.hidden * itemsize / plan.tp)
    return parts


def split(name: str, plan: Plan, job: Job) -> tuple[Phase, int]:
    """What goes through a stage at once, in "prefill" or "decode", and how many times something does."""
    sequences = ceil_div(job.batch, plan.dp)
    if name == "prefill":
        at_once, waves = (sequences, 1) if plan.pp == 1 else (1, sequences)
        return Phase(at_once, job.prompt, 0), waves
    waves = min(plan.pp, sequences)
    return Phase(ceil_div(sequences, waves), 1, job.context - 1), waves


def prefill(model: Model, plan: Plan, job: Job, machine: Machine) -> Prediction:
    """All prompts of a group at once; with stages one after the other, each stage idle until the first comes
    and after the last has gone.
    """
    phase, waves = split("prefill", plan, job)
    parts = _stage(model, plan, phase, job.itemsize, machine)
    one = sum(parts.values())
    parts = {name: waves * seconds for name, seconds in parts.items()}
    parts["idle"] = (plan.pp - 1) * one
    return Prediction("prefill", job.batch * job.prompt, parts)


def decode(model: Model, plan: Plan, job: Job, machine: Machine) -> Prediction:
    """One token of each sequence, the last that fits. With stages, as many parts of the group as there are
    stages go round, so that each stage has one of them; a token of each takes a whole round.
    """
    phase, waves = split("decode", plan, job)
    parts = _stage(model, plan, phase, job.itemsize, machine)
    one = sum(parts.values())
    parts = {name: waves * seconds for name, seconds in parts.items()}
    parts["idle"] = (plan.pp - waves) * one
    return Prediction("decode", job.batch, parts)


@dataclass(frozen=True)
class Outcome:
    plan: Plan
    memory: Memory
    fits: bool
    prefill: Prediction
    decode: Prediction


def outcomes(model: Model, devices: int, job: Job, machine: Machine, capacity: float | None) -> list[Outcome]:
    """Of all plans. Without a capacity all fit."""
    found = []
    for plan in plans(model, devices, job.batch):
        need = memory(model, plan, job)
        fits = capacity is None or need.total <= capacity
        found.append(
            Outcome(plan, need, fits, prefill(model, plan, job, machine), decode(model, plan, job, machine))
        )
    return found


def best(found: list[Outcome], phase: str) -> Outcome | None:
    """The one that fits with the most tokens per second; of several alike the one with the fewest stages."""
    fitting = [one for one in found if one.fits]
    return min(
        fitting,
        key=lambda one: (getattr(one, phase).seconds, one.plan.pp, one.plan.tp),
        default=None,
    )
