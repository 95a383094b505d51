"""A plan, or a reasoned no, as text for a person."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

import yaml
from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.constrain import Constrain
from rich.text import Text

from tonnage.cli.console import printable
from tonnage.cli.results import plan_summary as words
from tonnage.cli.results.beside import FLEETS, HOURS, SCALER
from tonnage.cli.results.plan_summary import BATCH_NOTE, BATCH_NUMBERS, batch_rows
from tonnage.cli.results.planning import CANNOT_RUN, Planned, Refused
from tonnage.cli.text.layout import (
    DIM,
    INDENT,
    Tiles,
    fitting_table,
    grid,
    heading,
    indent,
    section,
    table,
)
from tonnage.explain.demand_outcome import both_written, demand_rows, price_notes
from tonnage.explain.report import assumptions_written
from tonnage.explain.words import Answer, inputs
from tonnage.manifests.names import MANAGED_LABEL
from tonnage.sizing.memory.ceiling import BudgetPart
from tonnage.sizing.plan import Sizing
from tonnage.units import (
    GIB,
    HOURS_PER_MONTH,
    KIB,
    MIB,
    count_of,
    format_bytes,
    format_s,
    significant,
)

Figures = Mapping[str, Any]
NO_PRICE: Final = "no price"
PER_HOUR: Final = {"per hour": "perHour", "per hour\nwhole": "perHourWhole"}
PAID: Final = {"shared": "costShared", "whole": "costWhole"}
NOTE: Final = (
    f"A month has {HOURS_PER_MONTH:g} h, all like these. Replicas are created {{}} before the step "
    "that needs them and removed at its end. What the operator adds, headroom and the time that "
    "replicas stay, 'tonnage replay' simulates."
)
WITH: Final = {"running": "today", "sameFlags": "the same flags", "otherFlags": "other flags"}


def beside_report(answer: Planned, console: Console) -> Iterator[RenderableType]:
    """Yield what was asked beside a plan, in the order of the question."""
    if fleets := answer.beside.get(FLEETS):
        yield from _today(fleets, answer.replicas, console)
    if made := answer.beside.get(SCALER):
        written: str = yaml.safe_dump(made, sort_keys=False)
        target = made["spec"]["scaleTarget"]
        title = (
            f"The ModelDeployment that advises, and in mode Auto scales, {target['kind']} "
            f"{target['name']}, once it and its pod template have the label "
            f'{MANAGED_LABEL}: "true"'
        )
        yield from section(title, indent(Text(written.rstrip(), no_wrap=True, overflow="ignore")))
    if hours := answer.beside.get(HOURS):
        yield from _hours(hours, answer.replicas, console)


def _today(
    fleets: Mapping[str, Figures], needed: int, console: Console
) -> Iterator[RenderableType]:
    running = fleets["running"]
    rows = [
        {
            "with": f"{WITH[name]}, {each['parallelism']}",
            "replicas": str(each["replicas"]),
            "GPUs": str(each["gpus"]),
            **{f"per month\n{way}": _usd(each["perMonth"], key) for way, key in PAID.items()},
            **{
                f"saves\n{way}": ""
                if each is running
                else _usd(running["perMonth"], key, each["perMonth"])
                for way, key in PAID.items()
            },
            "sustain": f"{significant(each['sustainedRequestsPerSecond'])}/s",
            "max-num-\nseqs": str(each["maxNumSeqs"]),
        }
        for name, each in fleets.items()
    ]
    shown = fitting_table(rows, names=["with"], console=console, indent=INDENT)
    yield from section("What runs today, and what the demand takes", *map(indent, shown))
    if running["replicas"] < needed:
        short = f"What runs is too little: its flags need {count_of(needed, 'replica')}"
        yield indent(Text(short, style="yellow"))


def _hours(found: Figures, most: int, console: Console) -> Iterator[RenderableType]:
    steps, peak = found["steps"], found["peak"]
    varied, constant = (found["perMonth"][name] for name in ("byHour", "constant"))
    saved = constant["gpuHours"] - varied["gpuHours"]
    with_events = ", with scaling.schedules" if found["schedules"] else ""
    fewest, highest = (pick(each["replicas"] for each in steps) for pick in (min, max))
    rows = {
        "peak": f"{significant(peak['requestsPerSecond'])} requests/s at {peak['at']}; mean "
        f"{significant(found['meanRequestsPerSecond'])}",
        "by the hour": f"{fewest} to {count_of(highest, 'replica')}{with_events}: {_month(varied)}",
        "constant": f"{count_of(most, 'replica')}{with_events}: {_month(constant)}",
        "saves": f"{saved:,.0f} GPU-hours, {saved / constant['gpuHours']:.0%} of them, "
        f"{_cost(constant, varied)}",
    }
    title = f"{found['source']}, {count_of(len(steps), 'step')} of {format_s(found['stepSeconds'])}"
    yield from section(f"Demand by the hour: {printable(title)}", indent(grid(rows.items())))
    if short := found["stepsAboveMaxReplicas"]:
        needs = count_of(short, "step needs", "steps need")
        yield indent(Text(f"{needs} more than maxReplicas", style="yellow"))
    yield indent(Text(NOTE.format(format_s(found["startUpSeconds"])), style=DIM))
    unit = varied["currency"]
    runs = (list(some) for _, some in groupby(steps, key=lambda step: step["replicas"]))
    times = [
        {
            "from": run[0]["at"],
            "requests/s": significant(max(each["requestsPerSecond"] for each in run)),
            **{name: str(run[0][name.lower()]) for name in ("replicas", "GPUs")},
            **{
                name: NO_PRICE if (usd := run[0][key]) is None else f"{usd:.2f} {unit}"
                for name, key in PER_HOUR.items()
            },
        }
        for run in runs
    ]
    yield Text()
    yield from map(indent, fitting_table(times, names=["from"], console=console, indent=INDENT))


def _month(month: Figures) -> str:
    unit = month["currency"]
    each = unit and f"; {month['perMillionTokens']:.2f} {unit} per million output tokens"
    return f"{month['gpuHours']:,.0f} GPU-hours, {_cost(month)}{each or ''}"


def _net(month: Figures, key: str, other: Figures | None = None) -> str:
    """Write what a month costs; ``other``: by how much less another one does."""
    return f"{month[key] - (other[key] if other else 0):,.0f}"


def _usd(month: Figures, key: str, other: Figures | None = None) -> str:
    return NO_PRICE if month["cost"] is None else f"{_net(month, key, other)} {month['currency']}"


def _cost(month: Figures, other: Figures | None = None) -> str:
    if month["cost"] is None:
        return NO_PRICE
    shared, whole = (_net(month, key, other) for key in PAID.values())
    return both_written(shared, whole, f"{month['currency']} a month")


BAR_CELLS: Final = 60
NARROWEST: Final = 0.05
"""Of a spread in the amount's unit: less would read as nothing."""
UNIT_BYTES: Final = {"TiB": KIB * GIB, "GiB": GIB, "MiB": MIB, "KiB": KIB, "B": 1}
LEGEND_WIDTH: Final = 77
"""What an indented legend may take of a screen of 80 columns."""
LEGEND_GAP: Final = 3
MARKS: Final = {
    "weights": ("█", "W", "blue"),
    "adapters": ("▧", "L", "bright_blue"),
    "activations": ("▓", "A", "magenta"),
    "runtime": ("▒", "R", "yellow"),
    "CUDA graphs": ("░", "G", "cyan"),
    "KV cache": ("▚", "K", "green"),
    "unused": ("·", ".", DIM),
}
OTHER_MARK: Final = ("▞", "O", "red")


def cells(amounts: Sequence[float], num_cells: int) -> list[int]:
    """Share cells out in proportion, at least one for each amount; the largest takes the rest.

    >>> cells([70, 1, 29], 10)
    [6, 1, 3]
    """
    total = sum(amounts)
    shared = [max(1, round(amount / total * num_cells)) for amount in amounts]
    shared[shared.index(max(shared))] += num_cells - sum(shared)
    return shared


def memory_parts(sizing: Sizing) -> list[BudgetPart]:
    """Return what the memory of one GPU is divided into."""
    budget = sizing.budget
    cache = BudgetPart(
        name="KV cache", num_bytes=budget.kv_pool_bytes, spread_bytes=budget.kv_pool_spread_bytes
    )
    unused = BudgetPart(name="unused", num_bytes=budget.unused_bytes)
    return [part for part in (*budget.parts, cache, unused) if part.num_bytes > 0]


def memory_bar(sizing: Sizing, *, is_ascii: bool = False, width: int = LEGEND_WIDTH) -> Group:
    """Return a bar of one GPU's memory and, below it, what its parts are and how sure that is."""
    segments = memory_parts(sizing)
    total = f" {format_bytes(sizing.budget.total_bytes)}"
    num_cells = min(BAR_CELLS, width - len(total))
    shares = cells([segment.num_bytes for segment in segments], num_cells)
    bar, entries = Text(), []
    for segment, share in zip(segments, shares, strict=True):
        *marks, style = MARKS.get(segment.name, OTHER_MARK)
        mark = marks[1 if is_ascii else 0]
        bar.append(mark * share, style=style)
        amount = bytes_with_spread(segment.num_bytes, segment.spread_bytes, is_ascii=is_ascii)
        entries.append(Text.assemble((mark, style), f" {segment.name} {amount}"))
    bar.append(total)
    legend = Columns(entries, padding=(0, LEGEND_GAP))
    return Group(bar, Constrain(legend, min(width, LEGEND_WIDTH)))


def batch_table(sizing: Sizing) -> Group:
    """Return the batches as a table, and below it what is to be said of some of them."""
    found = table(numbers=BATCH_NUMBERS)
    found.add_column("bound by", no_wrap=True)
    rows = batch_rows(sizing)
    for row in rows:
        found.add_row(*row.cells, style="bold" if row.is_load_line else "")
    remarks = [f"{row.cells[0]} decoding: {row.remark}" for row in rows if row.remark]
    return Group(found, *(Text(each, style=DIM) for each in (*remarks, BATCH_NOTE)))


def bytes_with_spread(num_bytes: float, spread_bytes: float, *, is_ascii: bool = False) -> str:
    """Write an amount of memory and, where it is known, how far it may be off.

    The spread is in the amount's unit, or in its own where that suits it better.

    >>> bytes_with_spread(41.2 * GIB, 0.6 * GIB), bytes_with_spread(41.2 * GIB, 5 * MIB)
    ('41.2 GiB ± 0.6', '41.2 GiB ± 5.0 MiB')
    >>> bytes_with_spread(266 * MIB, 532 * MIB)  # not below zero
    '266.0 MiB, at most 798.0 MiB'
    """
    amount = format_bytes(num_bytes)
    if spread_bytes <= 0:
        return amount
    if spread_bytes >= num_bytes:
        return f"{amount}, at most {format_bytes(num_bytes + spread_bytes)}"
    in_unit = spread_bytes / UNIT_BYTES[amount.split()[1]]
    reads_well = NARROWEST <= in_unit < KIB
    spread = f"{in_unit:.1f}" if reads_well else format_bytes(spread_bytes)
    return f"{amount} {'+-' if is_ascii else '±'} {spread}"


CHANGE = "change in the spec"
SAVINGS = {
    False: ("For the same demand at a lower cost, the most saved first", CHANGE),
    True: ("If prompts share their beginnings, which no field makes them do", "what they share"),
}
"""What a spec brings about, and what only the traffic does."""
ORIGIN_STYLE = {
    "given": "",
    "looked up": "",
    "guessed": "yellow",
    "assumed": "yellow",
    "measured": "green",
}


def first_report(answer: Planned | Refused) -> Iterator[RenderableType]:
    """Yield what is known at once: the headline and figures at the demand, or why it is no."""
    spec = answer.deployment.spec
    yield heading(f"{words.object_label(answer)}: {spec.model.id} on {spec.hardware.gpu}")
    if isinstance(answer, Refused):
        yield Text(f"No ({answer.code}): {printable(answer.message)}", style="red")
        yield from _assumed(answer.assumed)
        return
    style = "yellow" if words.is_short(answer) or words.obstacles(answer) else "green"
    yield Text(words.headline(answer), style=style)
    yield from _assumed(assumptions_written(answer.sizing.request))
    begin = words.begin_written(answer)
    acts = answer.deployment.spec.scaling.mode in {"Auto", "Approve"}
    at_first = (("begins", f"{'' if acts else 'in mode Auto '}with {begin}"),) if begin else ()
    yield Tiles((*demand_rows(answer.sizing, answer.replicas), *at_first))


def plan_report(answer: Planned, console: Console) -> RenderableType:
    """Return what costs less, questions in order, inputs, plan."""
    sizing = answer.sizing
    figures: dict[int, RenderableType] = {
        0: memory_bar(sizing, is_ascii=console.options.ascii_only, width=console.width - INDENT),
        2: batch_table(sizing),
    }
    parts: list[RenderableType] = []
    for is_traffic, (title, head) in SAVINGS.items():
        if found := [each for each in answer.savings if each.is_traffic == is_traffic]:
            cells = map(words.saving_cells, found)
            parts += section(title, _changes(words.SAVING_NUMBERS, cells, head))
    for number, each in enumerate(words.questions(answer)):
        parts += _question(number + 1, each, figures.get(number))
    given = (
        (name, value, Text(origin, style=ORIGIN_STYLE.get(origin, "")))
        for name, value, origin in inputs(sizing)
    )
    parts += section("Assumptions", indent(grid(given)))
    summary = grid(words.summary(answer).items())
    for reason in answer.reasons:
        style = "yellow" if reason.code in {"MaxReplicas", CANNOT_RUN} else ""
        summary.add_row(Text(reason.code, style=style), Text(reason.message, style=style))
    parts += section("Plan", indent(summary))
    return Group(*parts)


def _changes(
    numbers: Iterable[str], rows: Iterable[tuple[str, ...]], head: str = CHANGE
) -> RenderableType:
    found = table(head, numbers=numbers)
    for row in rows:
        found.add_row(*row)
    return indent(found)


def _question(
    number: int, answer: Answer, figure: RenderableType | None
) -> Iterator[RenderableType]:
    yield from section(f"{number}. {answer.question}", indent(Text(answer.answer)))
    if answer.lines:
        # Continued lines hang below their first word.
        lines = ((Text("-", style=DIM), Text(line, style=DIM)) for line in answer.lines)
        yield indent(grid(lines, gap=1))
    if figure is not None:
        yield indent(figure, above=1)


def _assumed(written: Iterable[str]) -> list[Text]:
    return [Text(f"assumed: {printable(each)}", style="yellow") for each in written]


def refusal_report(answer: Refused) -> RenderableType:
    """Return what would make the no a yes."""
    offers = (("\n".join(each.changes), *words.offer_numbers(each)) for each in answer.offers)
    hours = (
        (each.sizing.request.gpu.name, cost.hour) for each in answer.offers if (cost := each.bill)
    )
    return Group(
        *section("Ways out, the cheapest first", _changes(words.OFFER_NUMBERS, offers)),
        *(indent(Text(note, style=DIM)) for note in price_notes(hours)),
    )
