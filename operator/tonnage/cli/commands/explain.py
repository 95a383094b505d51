"""``tonnage explain``: why a live object runs as it does, from its status alone; the glossary."""

import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import click
from rich.console import Group, RenderableType
from rich.table import Column
from rich.text import Text

from tonnage.api.crd import UNSEEN
from tonnage.cli.commands.options import (
    CLUSTER_EXIT_CODES,
    AccessOptions,
    argument,
    namespace_option,
    option,
    takes,
)
from tonnage.cli.console import output, printable, remark, show
from tonnage.cli.read.live import leases_of, read_one, stale_note
from tonnage.cli.read.manifest import Object, block, objects
from tonnage.cli.text.layout import DIM, grid, heading, indent, section
from tonnage.control.report.conditions import CONDITION_TYPES
from tonnage.explain.glossary import GLOSSARY, VLLM_NAMES
from tonnage.units import count_of, format_s, significant

HELP = f"""Show how the operator arrived at the replicas of a ModelDeployment.

Reads the status of the object: metrics, calibration, capacity of one replica, limits on the number
of replicas, and the last decisions. Changes nothing. With --glossary instead of NAME, prints the
terms of plans and status; that needs no cluster.

\b
Examples:
  tonnage explain llama -n serving
  tonnage explain --glossary

{CLUSTER_EXIT_CODES}"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainOptions:
    # fmt: off
    name: str | None = argument(required=False)
    is_glossary: bool = option("--glossary", is_flag=True,
        help="Print what the terms mean, with vLLM's flags and metrics, instead of an object.")
    namespace: str | None = namespace_option()
    access: AccessOptions
    # fmt: on


Row = tuple[str | Text, str | Text]
SHARES: Final = ("Fraction", "Utilization", "Attainment", "BudgetLeft")
"""What the names of figures end with that are shares of a whole."""
ESTIMATE: Final = (
    "requestsPerSecond", "tokensPerSecond", "timePerOutputTokenSeconds", "timeToFirstTokenSeconds",
    "kvTokens", "bottleneck",
)  # fmt: skip
LINKS: Final = {
    **dict.fromkeys(
        ("CapacityUncertain", "KVCacheCalibrated", "CapacityAdjusted", "MaxNumSeqs"), "correction"
    ),
    **dict.fromkeys(
        ("Capacity", "Slots", "DecodeBacklogged", "Demand", "Backlog", "NoDemand"), "sizing"
    ),
}
"""To which link the reason of a plan belongs; any other bounds the replicas."""


def chain_report(resource: Object) -> RenderableType:
    """Return what the status says, in the order in which the operator arrived at it."""
    status = block(resource, "status")
    parts: list[RenderableType] = [heading(_title(resource)), _headline(resource, status)]
    scaling = block(resource, "spec", "scaling")
    bounds = f"{scaling.get('minReplicas', 1)} to {scaling.get('maxReplicas')}"
    links: dict[str, tuple[str, Iterable[Row]]] = {
        "signal": ("Signal: what is measured", _measured(status)),
        "correction": ("Correction: what was learned from it", _learned(status)),
        "sizing": ("Sizing: what one replica can do", _sizing(status)),
        "caps": ("Caps: what bounds the replicas", [("replicas", bounds)]),
        "decision": ("Decision: what was done", _decided(status)),
    }
    for number, (link, (title, rows)) in enumerate(links.items(), start=1):
        shown = [*rows, *_reasons(status, link), *_conditions(status, link)]
        body = grid(shown or [(Text("nothing yet", style=DIM), "")])
        parts += section(f"{number}. {title}", indent(body))
    return Group(*parts)


def _title(resource: Object) -> str:
    metadata, spec = block(resource, "metadata"), block(resource, "spec")
    what = f"{block(spec, 'model').get('id')} on {block(spec, 'hardware').get('gpu')}"
    mode = block(spec, "scaling").get("mode", "Auto")
    return printable(f"{metadata.get('namespace')}/{metadata.get('name')}: {what}, mode {mode}")


def _headline(resource: Object, status: Object) -> Text:
    seen = status.get("observedGeneration")
    if seen in {None, UNSEEN["observedGeneration"]}:
        return Text("the operator has not looked at this object yet", style="yellow")
    plan, ready = block(status, "plan"), block(status, "replicas").get("summary", "0/0")
    parts = [f"{count_of(ready, 'replica')} ready"]
    if plan:
        parts.append(f"max-num-seqs {plan.get('maxNumSeqs')}, limited by {plan.get('limitedBy')}")
    if seen != block(resource, "metadata").get("generation"):
        parts.append("the last change of the spec is not looked at yet")
    return Text("; ".join(parts))


def _measured(status: Object) -> Iterator[Row]:
    for name, figure in block(status, "measured").items():
        if "value" in block(figure):
            since = printable(f"({figure.get('source')}, since {figure.get('changedAt')})")
            yield _words(name), Text.assemble(_written(name, figure["value"]), " ", (since, DIM))


def _learned(status: Object) -> Iterator[Row]:
    for name, value in block(status, "calibration").items():
        yield _words(name), _written(name, value)
    yield from _inputs(status, is_measured=True)


def _sizing(status: Object) -> Iterator[Row]:
    for part, names in (("estimate", ESTIMATE), ("plan", ("gpusPerReplica", "parallelism"))):
        found = block(status, part)
        yield from ((_words(name), _written(name, found[name])) for name in names if name in found)
    yield from _inputs(status, is_measured=False)


def _inputs(status: Object, *, is_measured: bool) -> Iterator[Row]:
    for each in objects(block(status, "estimate"), "inputs"):
        if (each.get("origin") == "measured") == is_measured:
            said = printable(f"{each.get('value')} ({each.get('origin')})")
            yield (
                printable(str(each.get("name"))),
                Text(said, style="green" if is_measured else DIM),
            )


def _decided(status: Object) -> Iterator[Row]:
    replicas = block(status, "replicas")
    if replicas:
        counts = (replicas.get(name) for name in ("desired", "current", "ready"))
        yield "replicas", "{} desired, {} current, {} ready".format(*counts)
    for each in objects(status, "decisions"):
        change = f"{each.get('fromReplicas')} -> {each.get('toReplicas')} {each.get('code')}: "
        yield printable(str(each.get("time"))), printable(f"{change}{each.get('message')}")


def _reasons(status: Object, link: str) -> Iterator[Row]:
    for each in objects(block(status, "plan"), "reasons"):
        if LINKS.get(str(each.get("code")), "caps") == link:
            yield printable(str(each.get("code"))), printable(str(each.get("message")))


def _conditions(status: Object, link: str) -> Iterator[Row]:
    """Yield the conditions of one link, in the order in which a status has them."""
    found = {each.get("type"): each for each in objects(status, "conditions")}
    for kind in CONDITION_TYPES.values():
        if kind.link == link and (each := found.get(kind.name)):
            is_bad = kind.rank > 0 and each.get("status") == kind.bad_when
            text = f"{each.get('status')} ({each.get('reason')}): {each.get('message')}"
            yield kind.name, Text(printable(text), style="yellow" if is_bad else "")


def _words(name: str) -> str:
    """Return the name of a field in words.

    >>> _words("timeToFirstTokenSeconds"), _words("kvTokens")
    ('time to first token', 'kv tokens')
    """
    return printable(re.sub("([A-Z])", r" \1", name.removesuffix("Seconds")).lower())


def _written(name: str, value: object) -> str:
    """Write a figure in its unit, and a mapping as its figures."""
    if isinstance(value, Mapping):
        return ", ".join(f"{_words(key)} {_written(key, each)}" for key, each in value.items())
    if not isinstance(value, int | float):
        return printable(str(value))
    if name.endswith("Seconds"):
        return format_s(value)
    if name.endswith(SHARES):
        return f"{value:.1%}"
    return f"{value:,}" if isinstance(value, int) else significant(value)


def glossary() -> RenderableType:
    """Lay out terms and meanings; what vLLM calls it is on a line of its own."""
    rows = []
    for name, meaning in GLOSSARY.items():
        vllm = f"\nvLLM: {VLLM_NAMES[name]}" if name in VLLM_NAMES else ""
        rows.append((Text(name, style="bold"), Text.assemble(meaning, (vllm, DIM))))
    return grid(rows, Column(no_wrap=True), Column(overflow="fold"))


@click.command(help=HELP)
@takes(ExplainOptions)
def explain(*, options: ExplainOptions) -> None:
    name = options.name
    if options.is_glossary and name is not None:
        raise click.UsageError("give NAME or --glossary, not both")
    if options.is_glossary:
        show(output(), glossary())
        return
    if name is None:
        raise click.UsageError("give the NAME of a ModelDeployment, or --glossary")
    cluster = options.access.connect()
    found = read_one(cluster, namespace=options.namespace or cluster.namespace, name=name)
    show(output(), chain_report(found))
    if note := stale_note(lambda: leases_of(cluster), now_s=time.time()):
        remark(f"Note: {note}")
