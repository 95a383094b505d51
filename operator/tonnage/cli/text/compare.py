"""GPU classes compared, as text for a person: the ranking, then each class in figures."""

from collections.abc import Iterator
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.text import Text

from tonnage.cli.console import printable
from tonnage.cli.results.comparing import NO_PRICE, OTHER_CLOUD, SEVERAL_NODES, Compared
from tonnage.cli.results.plan_summary import BOUND_BY
from tonnage.cli.text.layout import (
    DIM,
    INDENT,
    Tiles,
    fitting_table,
    grid,
    heading,
    indent,
    section,
)
from tonnage.cli.text.plan import batch_table
from tonnage.explain.demand_outcome import (
    DemandOutcome,
    at_demand,
    demand_rows,
    missing_price,
    nodes_written,
    per_hour_written,
    price_notes,
)
from tonnage.explain.report import bottleneck_of
from tonnage.sizing.bill import Bill
from tonnage.sizing.compare import Choice
from tonnage.sizing.plan import requests_per_s_asked
from tonnage.sizing.request import spread_of
from tonnage.sizing.serving.replica import typical_ttft_s
from tonnage.units import count_of, format_bytes, format_s, significant

LEFT_OUT: Final = {
    SEVERAL_NODES: "for replicas over several nodes",
    NO_PRICE: "for want of a price",
    OTHER_CLOUD: "priced by another cloud (--cloud NAME ranks one)",
}
"""Why a class is not ranked, for people."""
UNKNOWN: Final = "-"
BEYOND: Final = "*"
NAMES: Final = ("#", "class")
FAR: Final = 10
"""Times the cost of the first: a class that nobody named is a line from there on, and no row."""


def comparison_report(found: Compared, console: Console) -> Iterator[RenderableType]:
    deployment, selection = found.deployment, found.selection
    number = len(selection.choices) + len(selection.refused)
    classes = count_of(number, "GPU class", "GPU classes")
    name = f"{deployment.namespace}/{deployment.name}: {deployment.spec.model.id} on {classes}"
    yield heading(name)
    yield Text(headline(found), style="green" if found.selection.choices else "red")
    if found.selection.choices:
        yield Text()
        yield Text(ranked_by(found), style="bold")
        far = _far(found)
        rows = [
            dict(row_cells(number, each))
            for number, each in enumerate(found.selection.choices, 1)
            if each not in far
        ]
        yield from map(indent, fitting_table(rows, names=NAMES, console=console, indent=INDENT))
        yield from (indent(Text(note, style=DIM)) for note in notes(found))
    if found.selection.refused:
        refused = (
            (each.gpu.name, Text(printable(each.message).partition(";")[0], style=DIM))
            for each in found.selection.refused
        )
        yield Group(*section("Refused", indent(grid(refused))))
    for choice in found.in_full:
        yield Text()
        yield from _class(found, choice)


def _class(found: Compared, choice: Choice) -> Iterator[RenderableType]:
    number = found.selection.choices.index(choice) + 1
    yield Text(f"{number}. {choice.gpu.name}: {_runs(choice)}", style="bold")
    num_gpus = choice.sizing.flags.parallelism.num_gpus
    raised = "" if choice.is_within_bounds else f"; spec.scaling.maxReplicas: {choice.replicas}"
    change = f"spec.hardware: {{gpu: {choice.gpu.name}, gpusPerReplica: {num_gpus}}}{raised}"
    yield indent(Text(change))
    yield Tiles(tuple(class_rows(choice)))
    yield indent(batch_table(choice.sizing), above=1)


def headline(found: Compared) -> str:
    """Return the answer in a line: the first class of the ranking."""
    if not found.selection.choices:
        return "No: none of these classes can serve it"
    first = found.selection.choices[0]
    what = "costs least" if first.bill else "takes the fewest GPUs; no price is known"
    raised = "" if first.is_within_bounds else f"; maxReplicas {first.most} must be raised for it"
    return f"{first.gpu.name} {what}: {in_short(first)}{raised}{_other_winner(found)}"


def _other_winner(found: Compared) -> str:
    """Say what costs least by the other way to pay, where that is another class or split."""
    other = found.otherwise
    if other is None or other.bill is None:
        return ""
    first, cost = found.selection.choices[0].bill, other.bill
    is_share = first is not None and first.hour.is_whole
    way = "as a share of full instances" if is_share else "in whole instances"
    usd = cost.usd_per_hour_shared if is_share else cost.usd_per_hour_whole
    return f"; {way} {other.gpu.name} costs least, {usd:.2f}: {_runs(other)}"


def _runs(choice: Choice) -> str:
    split = choice.sizing.flags.parallelism
    return f"{count_of(choice.replicas, 'replica')} of {count_of(split.num_gpus, 'GPU')} ({split})"


def in_short(choice: Choice) -> str:
    """Return what runs, how full it is and what it costs for the demand, in a line."""
    gpus = _runs(choice)
    asked = at_demand(choice.sizing, choice.replicas)
    load = f", {asked.load:.1%} loaded" if asked else ""
    found = choice.bill
    if found is None:
        return f"{gpus}{load}"
    tokens = found.usd_per_million_tokens_asked or found.usd_per_million_tokens
    nodes = "".join(f" ({line})" for line in nodes_written(found))
    return (
        f"{gpus}{load}, {per_hour_written(found)}{nodes}, {tokens:.2f} {found.currency} per "
        "million output tokens"
    )


def ranked_by(found: Compared) -> str:
    aim = "offline, at the memory ceiling" if found.request.slo.is_offline else "within the SLO"
    first = found.selection.choices[0]
    unit = f"{first.bill.currency} " if first.bill else "number of GPUs, not "
    if requests_per_s_asked(first.sizing) is None:
        return f"Ranked by {unit}per million output tokens {aim}; no demand is given"
    return f"Ranked by {unit}per hour for the demand, {aim}"


def notes(found: Compared) -> Iterator[str]:
    """Yield what must be known to read the ranking."""
    choices = found.selection.choices
    if bound := [choice for choice in choices if not choice.is_within_bounds]:
        needs = ", ".join(f"{each.gpu.name} (needs {each.replicas})" for each in bound)
        yield (
            f"{BEYOND} ignores maxReplicas {bound[0].most}, so that classes can be compared: "
            f"{needs}"
        )
    yield from _price_notes(found)
    for reason, words in LEFT_OUT.items():
        if others := [name for name, each in found.left_out.items() if each["reason"] == reason]:
            yield f"excluded, {words}: {', '.join(others)}; --gpu NAME shows one"
    if names := too_close(found):
        yield (f"{', '.join(names)}: within the model error; a measurement may change their order")
    if found.deployment.spec.topology:
        yield "ranked as one fleet for both roles; 'tonnage plan' answers for each"
    offload = found.deployment.spec.model.kv_offload
    if offload is not None and offload.is_auto:
        yield "without a KV cache in host memory: 'tonnage plan' says what Auto chooses"
    if len(found.in_full) < len(choices):
        shown = ", ".join(each.gpu.name for each in found.in_full)
        yield f"in full below: {shown}; --gpu NAME,NAME shows others"


def _far(found: Compared) -> list[Choice]:
    """Return the classes that cost many times the first, where nobody named any."""
    first, *others = found.selection.choices
    by_tokens = requests_per_s_asked(first.sizing) is None

    def cost(bill: Bill) -> float:
        return bill.usd_per_million_tokens if by_tokens else bill.usd_per_hour

    if found.are_named or first.bill is None:
        return []
    most = FAR * cost(first.bill)
    return [each for each in others if each.bill and cost(each.bill) > most]


def _price_notes(found: Compared) -> Iterator[str]:
    """Yield who costs far more, what the prices hold for, and why others are missing."""
    if far := _far(found):
        listed = "; ".join(f"{each.gpu.name} {in_short(each)}" for each in far)
        yield f"more than {FAR} times the cost of {found.selection.choices[0].gpu.name}: {listed}"
    hours = [(each.gpu.name, bill.hour) for each in found.selection.choices if (bill := each.bill)]
    yield from price_notes(hours)
    if len({hour.rent.provider for _, hour in hours if hour.rent and hour.rent.provider}) > 1:
        yield "prices of several clouds are compared: --cloud NAME compares within one"
    if any(hour.rent and hour.rent.num_gpus for _, hour in hours):
        yield "prices are per GPU of the smallest instance listed that holds a replica"
    if any(hour.is_whole for _, hour in hours):
        yield "whole nodes: the cost includes GPUs that no replica uses"
    if apart := [each for each in found.selection.choices if not each.bill]:
        yield "classes without a price come last, by number of GPUs"
        for choice in apart:
            if choice.gpu.price.offered or choice.gpu.price.missing:
                yield missing_price(choice.gpu, choice.sizing.parallelism.num_gpus)


def too_close(found: Compared) -> list[str]:
    """Return the classes that cost little more than the first, where there are such."""
    first, *others = found.selection.choices
    cheapest = first.bill
    if cheapest is None:
        return []
    sure = _spread(first)
    names = [
        other.gpu.name
        for other in others
        if other.bill
        and other.bill.usd_per_hour < cheapest.usd_per_hour * (1 + max(sure, _spread(other)))
    ]
    return [first.gpu.name, *names] if names else []


def _spread(choice: Choice) -> float:
    return spread_of(choice.sizing.request, choice.sizing.parallelism)


def row_cells(number: int, choice: Choice) -> Iterator[tuple[str, str]]:
    """Yield (column, cell) of a row of the ranking: all for the demand, where one is known."""
    sizing, state, found = choice.sizing, choice.sizing.at_capacity, choice.bill
    rate, asked = requests_per_s_asked(sizing), at_demand(sizing, choice.replicas)
    yield "#", str(number)
    yield "class", choice.gpu.name
    yield "split", str(sizing.flags.parallelism)
    yield "replicas", f"{choice.replicas}{'' if choice.is_within_bounds else BEYOND}"
    yield "GPUs", str(choice.num_gpus)
    sustained = sizing.sustained_requests_per_s(choice.replicas)
    yield "load", UNKNOWN if rate is None else f"{rate / sustained:.1%}"
    yield "per h\nshared", f"{found.usd_per_hour_shared:.2f}" if found else UNKNOWN
    yield "per h\nwhole", f"{found.usd_per_hour_whole:.2f}" if found else UNKNOWN
    per_million = found and (found.usd_per_million_tokens_asked or found.usd_per_million_tokens)
    yield "per M\ntokens", UNKNOWN if per_million is None else f"{per_million:.2f}"
    yield from _latency_cells(choice, asked)
    yield "tokens/s\nGPU", significant(choice.tokens_per_s_per_gpu)
    yield "bound by", BOUND_BY[bottleneck_of(state.step)]


def _latency_cells(choice: Choice, asked: DemandOutcome | None) -> Iterator[tuple[str, str]]:
    """Yield TTFT and TPOT at the demand at their strictest percentile, else typical at capacity."""
    sizing, slo = choice.sizing, choice.sizing.request.slo
    state = sizing.at_capacity
    first_s = typical_ttft_s(sizing.replica, sizing.request.workload, state)
    ttft_s, tpot_s = asked.at_strictest(slo) if asked else (None, None)
    has_no_second = asked is not None and slo.tpot and tpot_s is None
    yield "TTFT", UNKNOWN if slo.is_offline else format_s(first_s if ttft_s is None else ttft_s)
    yield "TPOT", UNKNOWN if has_no_second else format_s(state.tpot_s if tpot_s is None else tpot_s)


def class_rows(choice: Choice) -> Iterator[tuple[str, str]]:
    """Yield what a plan says of a class, and what a GPU holds."""
    yield from demand_rows(choice.sizing, choice.replicas)
    sizing, request = choice.sizing, choice.sizing.request
    yield (
        "memory",
        f"{format_bytes(sizing.shard.weights_bytes)} weights and "
        f"{format_bytes(sizing.replica.kv_pool_bytes)} KV cache per GPU, for "
        f"{significant(sizing.memory_ceiling_longest)} requests of {request.context_tokens} tokens "
        f"or {significant(sizing.memory_ceiling_typical)} of the "
        f"{significant(request.workload.mean_context_tokens)} that occur",
    )
