"""The chain behind a live object as text for a person."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tonnage.cli.console import printable
from tonnage.cli.read.nested import Object, block, objects
from tonnage.cli.text.layout import DIM, grid, heading, indent, section
from tonnage.units import count_of, format_s, significant

NOTHING: Final = "nothing yet"
MEASURED: Final = {
    "requestsPerSecond": "requests/s",
    "promptTokens": "prompt tokens",
    "outputTokens": "output tokens",
    "queueDepth": "queue",
    "refusedPerSecond": "refused/s",
    "running": "running",
    "stepSeconds": "step time",
    "memoryBandwidthUtilization": "MBU",
    "modelFlopsUtilization": "MFU",
    "kvTokens": "KV tokens",
    "ttftAttainment": "TTFT attained",
    "tpotAttainment": "TPOT attained",
    "errorBudgetLeft": "error budget left",
    "coldStartSeconds": "cold start",
}
SHARES: Final = frozenset(
    {
        "memoryBandwidthUtilization",
        "modelFlopsUtilization",
        "ttftAttainment",
        "tpotAttainment",
        "errorBudgetLeft",
    }
)
CONSTANTS: Final = {
    "overheadFactor": "overheads",
    "bandwidthEfficiency": "bandwidth efficiency",
    "prefillEfficiency": "prefill efficiency",
    "stepTime": "step time",
}
EVIDENCE: Final = {
    "Namespace": "this namespace's own engines",
    "OtherNamespaces": "other namespaces, which agree",
    "Prior": "nobody",
}
LEAST_CHANGE: Final = 0.0005
GOOD: Final = frozenset({"Reconciling", "Stalled", "ScalingLimited"})
"""Conditions that are well when they are False."""


def chain_report(links: Mapping[str, Any]) -> RenderableType:
    """Return every link of the chain, in order."""
    sections = (
        ("Signal: what is measured", _grid(_signal(links["signal"]))),
        ("Correction: what was learned from it", _learning(links["correction"])),
        ("Sizing: what one replica can do", _grid(_sizing(links["sizing"]))),
        ("Caps: what bounds the replicas", _grid(_caps(links["caps"]))),
        ("Decision: what was done", _grid(_decision(links["decision"]))),
    )
    parts: list[RenderableType] = [_title(links), _headline(links)]
    for number, (title, body) in enumerate(sections, start=1):
        parts += section(f"{number}. {title}", body)
    return Group(*parts)


def _title(links: Mapping[str, Any]) -> RenderableType:
    metadata = links["metadata"]
    name = f"{metadata['namespace']}/{metadata['name']}"
    title = f"{name}: {links['model']} on {links['gpu']}, mode {links['mode']}"
    return heading(printable(title))


def _headline(links: Mapping[str, Any]) -> Text:
    if links["observedGeneration"] is None:
        return Text("the operator has not looked at this object yet", style="yellow")
    replicas, plan = links["decision"]["replicas"], links["sizing"]["plan"]
    parts = [f"{count_of(replicas.get('summary', '0/0'), 'replica')} ready"]
    if plan:
        parts.append(f"max-num-seqs {plan.get('maxNumSeqs')}, limited by {plan.get('limitedBy')}")
    if links["observedGeneration"] != links["metadata"]["generation"]:
        parts.append("the last change of the spec is not looked at yet")
    return Text("; ".join(parts))


Row = tuple[str | Text, str | Text]


def _grid(rows: Iterable[Row]) -> Padding:
    return indent(grid(list(rows) or [[Text(NOTHING, style=DIM)]]))


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


def _learning(link: Mapping[str, Any]) -> RenderableType:
    """Return whose evidence it is, a row for each constant, and what is of this object alone."""
    known = link["calibration"]
    parts = [_grid(_evidence(known))] if known else []
    rows = [(name, block(known, key)) for key, name in CONSTANTS.items()]
    if any(constant for _, constant in rows):
        parts.append(_constants(rows))
    return Group(*parts, _grid(_correction(link)))


def _evidence(known: Object) -> Iterator[Row]:
    source, others = known.get("evidence"), known.get("corroboratingNamespaces", 0)
    if not known.get("windows"):
        yield "evidence", "nothing measured yet: the prior holds"
        return
    whose = EVIDENCE.get(str(source), str(source))
    same = f"; {count_of(others, 'other namespace')} measured the same"
    also = same if others and source == "Namespace" else ""
    windows = count_of(f"{known['windows']:,}", "window")
    steps = count_of(f"{known.get('busySteps', 0):,}", "busy step")
    yield "evidence", printable(f"{windows}, {steps}, of {whose}{also}")
    if known.get("changedAt"):
        yield "last window", printable(str(known["changedAt"]))


def _constants(rows: Iterable[tuple[str, Object]]) -> Padding:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style=DIM)
    table.add_column("")
    for title in ("prior", "learned", "change", "doubt", "planned with"):
        table.add_column(title, justify="right")
    for name, constant in rows:
        if not constant:
            continue
        prior, learned = constant["prior"], constant["learned"]
        table.add_row(
            name,
            f"{prior:.3f}",
            f"{learned:.3f}",
            f"{learned / prior - 1:+.1%}" if prior else "",
            f"{constant['deviationFraction']:.1%}",
            f"{constant['planned']:.3f}",
        )
    return indent(table)


def _correction(link: Mapping[str, Any]) -> Iterator[Row]:
    known = link["calibration"]
    if known:
        yield from _effects(known)
        yield from _own(known)
    yield from _reasons(link)
    yield from _conditions(link)
    for each in link["measuredInputs"]:
        if known and each.get("name") == "bandwidth efficiency":
            continue  # said above, with its prior
        yield (
            printable(str(each.get("name"))),
            Text(printable(f"{each.get('value')} (measured)"), style="green"),
        )


def _effects(known: Object) -> Iterator[Row]:
    """Say what all of it changes in the plan, and how SLO attainment adjusts that."""
    now, before = known.get("requestsPerSecond"), known.get("priorRequestsPerSecond")
    if now is not None and before:
        change = f"{now / before - 1:+.1%}" if abs(now / before - 1) >= LEAST_CHANGE else "as now"
        yield (
            "requests/s planned",
            f"{significant(now)} per replica; by the prior {significant(before)} ({change})",
        )
    factor, judged = known.get("goodputFactor", 1.0), known.get("judgedRequests", 0)
    if judged:
        when = f", last {known['judgedAt']}" if known.get("judgedAt") else ""
        requests = count_of(f"{judged:,}", "request")
        yield "goodput factor", printable(f"{factor:.2f}, from {requests} judged{when}")
        if known.get("goodputFactorReason"):
            yield "", printable(str(known["goodputFactorReason"]))
    elif known.get("goodputFactor") is not None:
        yield "goodput factor", f"{factor:.2f}: no promise gave a reason to change it"


def _own(known: Object) -> Iterator[Row]:
    """Say what the object's own pods showed: their cache, and how long they take to start."""
    if known.get("kvTokens"):
        tokens, before = known["kvTokens"], known.get("priorKvTokens")
        was = f", estimated were {before:,}" if before else ""
        yield "KV tokens of a rank", f"{tokens:,} reported by its own engines{was}"
    elif known.get("priorKvTokens"):
        yield "KV tokens of a rank", f"{known['priorKvTokens']:,} estimated: none reported yet"
    if known.get("coldStartSeconds") is not None:
        deviation = known.get("coldStartDeviationSeconds")
        doubt = "" if deviation is None else f", standard deviation {format_s(deviation)}"
        starts = count_of(known.get("coldStarts", 0), "start")
        mean = format_s(known["coldStartSeconds"])
        yield "cold start", f"{mean}{doubt}, scheduled to Ready in {starts} of its own pods"
        yield "wait for a node", f"{format_s(known.get('nodeWaitSeconds') or 0.0)} before that"


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
