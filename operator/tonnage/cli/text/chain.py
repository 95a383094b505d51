"""The chain behind a live object as text for a person."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from tonnage.cli.answers.chain import Object, block, objects
from tonnage.cli.console import printable
from tonnage.units import format_s, significant

INDENT: Final = 3
DIM: Final = "dim"
NOTHING: Final = "nothing yet"
MEASURED: Final = {
    "requestsPerSecond": "requests/s",
    "promptTokens": "prompt tokens",
    "outputTokens": "output tokens",
    "queueDepth": "queue",
    "running": "running",
    "stepSeconds": "step time",
    "memoryBandwidthUtilization": "MBU",
    "kvTokens": "KV tokens",
    "ttftAttainment": "TTFT attained",
    "tpotAttainment": "TPOT attained",
    "coldStartSeconds": "cold start",
}
SHARES: Final = frozenset({"memoryBandwidthUtilization", "ttftAttainment", "tpotAttainment"})
GOOD: Final = frozenset({"Reconciling", "Stalled", "ScalingLimited"})
"""Conditions that are well when they are False."""


def explained(links: Mapping[str, Any]) -> RenderableType:
    """Return every link of the chain, in order."""
    sections = (
        ("Signal: what is measured", _signal(links["signal"])),
        ("Correction: what was learned from it", _correction(links["correction"])),
        ("Sizing: what one replica can do", _sizing(links["sizing"])),
        ("Caps: what bounds the replicas", _caps(links["caps"])),
        ("Decision: what was done", _decision(links["decision"])),
    )
    parts: list[RenderableType] = [_title(links), _headline(links)]
    for number, (title, rows) in enumerate(sections):
        parts += [Text(), Text(f"{number + 1}. {title}", style="bold"), _grid(rows)]
    return Group(*parts)


def _title(links: Mapping[str, Any]) -> Rule:
    metadata = links["metadata"]
    name = f"{metadata['namespace']}/{metadata['name']}"
    title = f"{name}: {links['model']} on {links['gpu']}, mode {links['mode']}"
    return Rule(Text(printable(title), style="bold"), align="left", style=DIM)


def _headline(links: Mapping[str, Any]) -> Text:
    if links["observedGeneration"] is None:
        return Text("the operator has not looked at this object yet", style="yellow")
    replicas, plan = links["decision"]["replicas"], links["sizing"]["plan"]
    parts = [f"{replicas.get('summary', '0/0')} replicas ready"]
    if plan:
        parts.append(f"max-num-seqs {plan.get('maxNumSeqs')}, limited by {plan.get('limitedBy')}")
    if links["observedGeneration"] != links["metadata"]["generation"]:
        parts.append("the last change of the spec is not looked at yet")
    return Text("; ".join(parts))


Row = tuple[str | Text, str | Text]


def _grid(rows: Iterable[Row]) -> Padding:
    grid = Table.grid(padding=(0, 2, 0, 0))
    for name, value in rows:
        grid.add_row(name, value)
    if not grid.rows:
        grid.add_row(Text(NOTHING, style=DIM))
    return Padding(grid, (0, 0, 0, INDENT), expand=False)


def _signal(link: Mapping[str, Any]) -> Iterator[Row]:
    for key, name in MEASURED.items():
        figure = block(link["measured"], key)
        if figure:
            since = printable(f"({figure.get('source')}, since {figure.get('changedAt')})")
            yield name, Text.assemble(_amount(key, figure), " ", (since, DIM))
    yield from _conditions(link)


def _amount(key: str, figure: Object) -> str:
    value = float(figure.get("value", 0.0))
    if key in SHARES:
        return f"{value:.1%}"
    return format_s(value) if key.endswith("Seconds") else significant(value)


def _correction(link: Mapping[str, Any]) -> Iterator[Row]:
    calibration = link["calibration"]
    if calibration:
        learned = calibration["bandwidthEfficiency"]
        prior = calibration["priorBandwidthEfficiency"]
        steps = calibration.get("busySteps", 0)
        if steps:
            origin = (
                f"learned from {steps:,} busy steps, prior {prior:.3f} ({learned / prior - 1:+.1%})"
            )
        else:
            origin = "the prior: nothing measured yet"
        yield "bandwidth efficiency", f"{learned:.3f}, {origin}"
        if calibration.get("changedAt"):
            yield "last moved", str(calibration["changedAt"])
    for each in link["measuredInputs"]:
        if calibration and each.get("name") == "bandwidth efficiency":
            continue  # said above, with its prior
        yield (
            printable(str(each.get("name"))),
            Text(printable(f"{each.get('value')} (measured)"), style="green"),
        )


def _sizing(link: Mapping[str, Any]) -> Iterator[Row]:
    estimate, plan = link["estimate"], link["plan"]
    if estimate:
        yield "requests/s", significant(estimate["requestsPerSecond"])
        yield "output tokens/s", significant(estimate["tokensPerSecond"])
        tpot, ttft = estimate["timePerOutputTokenSeconds"], estimate["timeToFirstTokenSeconds"]
        yield "at capacity", f"TPOT {format_s(tpot)}, TTFT {format_s(ttft)}"
        yield "bottleneck", str(estimate["bottleneck"])
    if plan:
        split = block(plan, "parallelism")
        named = ", ".join(f"{name} {size}" for name, size in split.items())
        yield "GPUs per replica", f"{plan.get('gpusPerReplica')} ({named})"
    yield from _reasons(link)
    yield from _conditions(link)
    for each in link["inputs"]:
        text = printable(f"{each.get('value')} ({each.get('origin')})")
        yield Text(printable(str(each.get("name"))), style=DIM), Text(text, style=DIM)


def _caps(link: Mapping[str, Any]) -> Iterator[Row]:
    yield "replicas", f"{link['minReplicas']} to {link['maxReplicas']}"
    yield from _reasons(link)
    yield from _conditions(link)


def _decision(link: Mapping[str, Any]) -> Iterator[Row]:
    replicas = link["replicas"]
    if replicas:
        counts = (replicas.get(name) for name in ("desired", "current", "ready"))
        yield "replicas", "{} desired, {} current, {} ready".format(*counts)
    for each in objects(link, "decisions"):
        change = f"{each.get('fromReplicas')} -> {each.get('toReplicas')} {each.get('code')}: "
        yield printable(str(each.get("time"))), printable(f"{change}{each.get('message')}")
    yield from _conditions(link)


def _reasons(link: Mapping[str, Any]) -> Iterator[Row]:
    for each in link["reasons"]:
        yield printable(str(each.get("code"))), printable(str(each.get("message")))


def _conditions(link: Mapping[str, Any]) -> Iterator[Row]:
    for each in link["conditions"]:
        name, state = str(each.get("type")), str(each.get("status"))
        is_well = state == ("False" if name in GOOD else "True")
        style = "" if is_well else "yellow"
        text = f"{state} ({each.get('reason')}): {each.get('message')}"
        yield Text(printable(name), style=style), Text(printable(text), style=style)
