"""GPU classes compared, in words: what text and pages say alike."""

from collections.abc import Iterator
from typing import Final

from tonnage.cli.answers.batches import BOUNDS
from tonnage.cli.answers.comparing import Compared
from tonnage.cli.answers.plan_words import counted
from tonnage.cli.console import printable
from tonnage.explain.choosing import aspects
from tonnage.explain.report import bottleneck
from tonnage.explain.validation import Unconfirmed, unconfirmed
from tonnage.sizing.compare import Choice, RefusedClass
from tonnage.sizing.plan import requests_per_s_asked
from tonnage.sizing.request import spread_of
from tonnage.sizing.serving.ttft import typical_ttft_s
from tonnage.units import format_s, significant

WORDS: Final = frozenset({"class", "split", "bound by"})
"""Columns of words; the others are numbers."""
CLASS: Final = "class"
TAKES: Final = (
    "split", "replicas", "GPUs", "max-num-\nseqs", "USD per\nhour", "USD per\nM tokens",
)  # fmt: skip
GIVES: Final = ("TPOT", "TTFT", "tokens/s\nreplica", "tokens/s\nGPU", "bound by")
RANKING: Final = (
    *TAKES[:4], *GIVES, *TAKES[4:],
)  # fmt: skip
"""In the order of the request: what runs, how fast that is, what it costs."""
UNKNOWN: Final = "-"
BEYOND: Final = "*"


def headline(found: Compared) -> str:
    """Return the answer in a line: the first class of the ranking."""
    if not found.selection.choices:
        return "No: none of these classes can serve it"
    first = found.selection.choices[0]
    what = "costs least" if first.bill else "takes the fewest GPUs; no price is known"
    return f"{first.gpu.name} {what}: {in_short(first)}"


def in_short(choice: Choice) -> str:
    """Return what runs and what it costs, in a line."""
    split = choice.sizing.flags.parallelism
    gpus = f"{counted(choice.replicas, 'replica')} of {counted(split.num_gpus, 'GPU')} ({split})"
    found = choice.bill
    if found is None:
        return gpus
    return (
        f"{gpus}, {found.usd_per_hour:.2f} USD per hour, {found.usd_per_million_tokens:.2f} USD "
        "per million output tokens"
    )


def as_written(found: Compared) -> str:
    """Return what the manifest's own class and split would do, and its rank."""
    own = found.as_written
    if isinstance(own, RefusedClass):
        return f"As the manifest stands, {own.gpu.name} will not do: {printable(own.message)}"
    same = next((each for each in found.selection.choices if each.gpu == own.gpu), None)
    if same is None:
        return f"As the manifest stands, {own.gpu.name}: {in_short(own)}"
    rank = f"rank {found.selection.choices.index(same) + 1}"
    if in_short(same) == in_short(own):
        return f"As the manifest stands, {own.gpu.name}: {rank}, just as below"
    return (
        f"As the manifest stands, {own.gpu.name}: {in_short(own)}; {rank} is the same class with "
        "its best split"
    )


def ranked_by(found: Compared) -> str:
    """Say what the order stands for."""
    aim = "offline, at the memory ceiling" if found.is_offline else "within the SLO"
    if requests_per_s_asked(found.selection.choices[0].sizing) is None:
        return f"By USD per million output tokens {aim}; no demand is given"
    return f"By USD per hour for the demand, {aim}"


def notes(found: Compared) -> Iterator[str]:
    """Yield what must be known to read the ranking."""
    choices = found.selection.choices
    if not all(choice.is_within_bounds for choice in choices):
        yield f"{BEYOND} more replicas than maxReplicas {found.request.max_replicas} allows"
    if not all(choice.bill for choice in choices):
        yield "classes without a price stand after those with one, by number of GPUs"
    if names := too_close(found):
        yield (
            f"{', '.join(names)}: closer than the estimate of their speed is sure; a measurement "
            "may change their order"
        )
    if len(found.in_full) < len(choices):
        yield "in full below: the cheapest and the manifest's own; --gpu NAME,NAME shows others"


def too_close(found: Compared) -> list[str]:
    """Return the classes that cost little more than the first, where there are such."""
    first, *others = found.selection.choices
    cheapest = first.bill
    if cheapest is None or found.request.is_textbook:
        return []
    sure = spread_of(first.sizing.request)
    names = [
        other.gpu.name
        for other in others
        if other.bill
        and other.bill.usd_per_hour
        < cheapest.usd_per_hour * (1 + max(sure, spread_of(other.sizing.request)))
    ]
    return [first.gpu.name, *names] if names else []


def row_cells(number: int, choice: Choice) -> Iterator[tuple[str, str]]:
    """Yield (column, cell) of a row of the ranking."""
    sizing, state, found = choice.sizing, choice.sizing.at_capacity, choice.bill
    is_offline = sizing.request.slo.is_offline
    first_s = typical_ttft_s(sizing.replica, sizing.request.workload, state)
    yield "#", str(number)
    yield CLASS, choice.gpu.name
    yield "split", str(sizing.flags.parallelism)
    yield "replicas", f"{choice.replicas}{'' if choice.is_within_bounds else BEYOND}"
    yield "GPUs", str(choice.num_gpus)
    yield "max-num-\nseqs", str(sizing.flags.max_num_seqs)
    yield "TPOT", format_s(state.tpot_s)
    yield "TTFT", UNKNOWN if is_offline else format_s(first_s)
    yield "tokens/s\nreplica", significant(sizing.output_tokens_per_s)
    yield "tokens/s\nGPU", significant(choice.tokens_per_s_per_gpu)
    yield "bound by", BOUNDS[bottleneck(sizing)]
    yield "USD per\nhour", f"{found.usd_per_hour:.2f}" if found else UNKNOWN
    yield "USD per\nM tokens", f"{found.usd_per_million_tokens:.2f}" if found else UNKNOWN


def to_write(choice: Choice) -> str:
    """Return what the manifest has to say for this choice."""
    num_gpus = choice.sizing.flags.parallelism.num_gpus
    return f"spec.hardware: {{gpu: {choice.gpu.name}, gpusPerReplica: {num_gpus}}}"


def class_aspects(found: Compared, choice: Choice) -> Iterator[tuple[str, str]]:
    """Yield (aspect, figures in words); of what is to be validated only what others lack."""
    *earlier, last = aspects(choice)
    yield from ((aspect.name, str(aspect)) for aspect in earlier)
    own = [each for each in unconfirmed(choice.sizing) if each not in in_common(found)]
    said = "; ".join(f"{each.name}: {each.value}" for each in own)
    yield last.name, said or "as for every class, below"


def in_common(found: Compared) -> tuple[Unconfirmed, ...]:
    """Return what must be validated for every class that is shown in full, in the same words."""
    first, *others = [unconfirmed(choice.sizing) for choice in found.in_full]
    return tuple(each for each in first if all(each in other for other in others))


def validated(found: Compared) -> Iterator[Unconfirmed]:
    """Yield every unconfirmed figure once; where classes differ, without its value."""
    common = in_common(found)
    seen: set[str] = set()
    for choice in found.in_full:
        for each in unconfirmed(choice.sizing):
            name = each.name.replace(choice.gpu.name, "class").strip()
            if name not in seen:
                seen.add(name)
                value = each.value if each in common else "differs"
                yield Unconfirmed(
                    name=name, value=value, origin=each.origin, confirmed_by=each.confirmed_by
                )
