"""``tonnage top``: all models of a cluster in one table, live."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.text import Text

from tonnage.cli.commands.options import (
    CLUSTER_EXIT_CODES,
    AccessOptions,
    namespace_option,
    option,
    takes,
)
from tonnage.cli.console import Failure, output, printable, remark, show
from tonnage.cli.read.leading import leases_of, stale_note
from tonnage.cli.read.live import Resource, read_all
from tonnage.cli.read.nested import block, objects
from tonnage.cli.text.parts import parts
from tonnage.units import HOUR_S, significant

UNKNOWN: Final = "-"
WIDE: Final = 130
"""Narrower screens show fewer columns."""

HELP = f"""Show the ModelDeployments of a namespace, or of the cluster, live.

Demand and capacity are requests per second: what arrives, and what the ready replicas can serve
within the SLO. MBU is the measured memory bandwidth utilization; step is the learned time of a
step over that of the prior, eff the learned bandwidth efficiency, factor the one by which SLO
attainment adjusts capacity; TTFT and TPOT are the percentage of requests that meet their
target. A note says so where no operator renews its Lease, and the figures are those of before.

\b
Examples:
  tonnage top -A
  tonnage top -n serving --interval 2
  tonnage top -A --once > models.txt

{CLUSTER_EXIT_CODES}"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopOptions:
    """What the command was given."""

    namespace: str | None = namespace_option()
    is_all: bool = option("-A", "--all-namespaces", is_flag=True, help="All namespaces.")
    once: bool = option(
        "--once",
        is_flag=True,
        help="Print the table once; the default when the output is not a terminal.",
    )
    interval_s: float = option(
        "--interval",
        type=click.FloatRange(min=1, max=HOUR_S),
        default=5,
        help="Seconds between updates.",
    )
    access: AccessOptions


@click.command(help=HELP)
@takes(TopOptions)
def top(*, options: TopOptions) -> None:
    cluster, is_all = options.access.connect(), options.is_all
    chosen = None if is_all else options.namespace or cluster.namespace
    console = output(is_wide=True)

    def read() -> list[RenderableType]:
        return tables(read_all(cluster, namespace=chosen), console, has_namespaces=is_all)

    def noted() -> str | None:
        return stale_note(lambda: leases_of(cluster), now_s=time.time())

    if not options.once and console.is_terminal:
        _watch(console, lambda: [*read(), *_notes(noted())], options.interval_s)
        return
    show(console, Group(*read()))
    if note := noted():
        remark(f"Note: {note}")


def _notes(note: str | None) -> list[Text]:
    """Say below the tables that their figures are old, where they are."""
    return [Text(note, style="yellow")] if note else []


def _watch(console: Console, read: Callable[[], list[RenderableType]], interval_s: float) -> None:
    """Show the newest tables until Ctrl-C; a read that fails leaves the last ones and says so."""
    shown = read()
    with Live(Group(*shown), console=console, auto_refresh=False, screen=True) as live:
        try:
            while True:
                time.sleep(interval_s)
                failed: list[Text] = []
                try:
                    shown = read()
                except Failure as failure:
                    failed = [Text(failure.message, style="red")]
                live.update(Group(*shown, *failed), refresh=True)
        except KeyboardInterrupt:
            return


def tables(
    resources: Sequence[Resource], console: Console, *, has_namespaces: bool
) -> list[RenderableType]:
    """Return a row for each ModelDeployment: in one table, or in several on a narrow screen."""
    if not resources:
        return [Text("there is no ModelDeployment")]
    is_wide = console.width >= WIDE
    columns = [column for column in COLUMNS if is_wide or not column.is_extra]
    rows = []
    for resource in resources:
        row = {column.name: printable(column.value(resource)) for column in columns}
        if has_namespaces:
            namespace = printable(str(block(resource, "metadata").get("namespace")))
            row["name"] = f"{namespace}/{row['name']}"
        rows.append(row)
    styles = ["yellow" if _problem_reasons(resource) else "" for resource in resources]
    found = parts(rows, names=["name"], words=WORDS, console=console, styles=styles, is_ruled=False)
    return [Padding(table, (1 if number else 0, 0, 0, 0)) for number, table in enumerate(found)]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopColumn:
    """A column, and where its value stands in an object."""

    name: str
    value: Callable[[Resource], str]
    is_extra: bool = False


def _text(*path: str, absent: str = UNKNOWN) -> Callable[[Resource], str]:
    *parents, last = path
    return lambda resource: str(block(resource, *parents).get(last, absent))


def _number(*path: str, form: str = "") -> Callable[[Resource], str]:
    *parents, last = path

    def value(resource: Resource) -> str:
        number = block(resource, *parents).get(last)
        if not isinstance(number, int | float):
            return UNKNOWN
        return form.format(number) if form else significant(number)

    return value


def _measured_value(name: str, form: str = "") -> Callable[[Resource], str]:
    return _number("status", "measured", name, "value", form=form)


def _learned_value(name: str) -> Callable[[Resource], str]:
    return _number("status", "calibration", name, "learned", form="{:.2f}")


def _model(resource: Resource) -> str:
    return _text("spec", "model", "id")(resource).rpartition("/")[2]


def _capacity(resource: Resource) -> str:
    """Return the requests/s of the replicas that are ready, by all that was learned."""
    each = block(resource, "status", "calibration").get("requestsPerSecond")
    if each is None:
        each = block(resource, "status", "estimate").get("requestsPerSecond")
    ready = block(resource, "status", "replicas").get("ready")
    if not isinstance(each, int | float) or not isinstance(ready, int):
        return UNKNOWN
    return significant(each * ready)


def _reason(resource: Resource) -> str:
    shown = block(resource, "status", "display").get("reason")
    return str(shown or ", ".join(_problem_reasons(resource)))


def _problem_reasons(resource: Resource) -> list[str]:
    """Return the reasons of conditions that say that something is wrong."""
    return [
        str(each.get("reason"))
        for each in objects(block(resource, "status"), "conditions")
        if (each.get("type"), each.get("status")) in {("Stalled", "True"), ("Ready", "False")}
    ]


WORDS: Final = frozenset({"name", "model", "GPU", "mode", "reason"})
COLUMNS: Final = (
    TopColumn(name="name", value=_text("metadata", "name")),
    TopColumn(name="model", value=_model, is_extra=True),
    TopColumn(name="GPU", value=_text("spec", "hardware", "gpu")),
    TopColumn(name="mode", value=_text("spec", "scaling", "mode", absent="Auto"), is_extra=True),
    TopColumn(name="ready", value=_text("status", "replicas", "summary")),
    TopColumn(name="seqs", value=_text("status", "plan", "maxNumSeqs")),
    TopColumn(name="demand", value=_measured_value("requestsPerSecond")),
    TopColumn(name="capacity", value=_capacity),
    TopColumn(name="queue", value=_measured_value("queueDepth", "{:.0f}")),
    TopColumn(name="MBU", value=_measured_value("memoryBandwidthUtilization", "{:.0%}")),
    TopColumn(name="step", value=_learned_value("stepTime")),
    TopColumn(name="eff", value=_learned_value("bandwidthEfficiency"), is_extra=True),
    TopColumn(
        name="factor", value=_number("status", "calibration", "goodputFactor", form="{:.2f}")
    ),
    TopColumn(name="TTFT", value=_measured_value("ttftAttainment", "{:.1%}")),
    TopColumn(name="TPOT", value=_measured_value("tpotAttainment", "{:.1%}")),
    TopColumn(name="reason", value=_reason),
)
