"""``tonnage top``: all models of a cluster in one table, live."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tonnage.cli.answers.chain import block, objects
from tonnage.cli.commands.options import CLUSTER_EXIT_CODES, access_options
from tonnage.cli.console import Failure, output, printable, remark, show
from tonnage.cli.read.leading import leases_of, outdated
from tonnage.cli.read.live import connect, read_all
from tonnage.units import HOUR_S, significant

UNKNOWN: Final = "-"
WIDE: Final = 130
"""Narrower screens show fewer columns."""

HELP = f"""Show the ModelDeployments of a namespace, or of the cluster, live.

Demand and capacity are requests per second: what arrives, and what the ready replicas can serve
within the SLO. MBU is the measured memory bandwidth utilization; step is the learned time of a
step over that of the prior, eff the learned bandwidth efficiency, kept the factor by which SLO
attainment adjusts capacity; TTFT and TPOT are the percentage of requests that meet their
target. A note says so where no operator renews its Lease, and the figures are those of before.

\b
Examples:
  tonnage top -A
  tonnage top -n serving --interval 2
  tonnage top -A --once > models.txt

{CLUSTER_EXIT_CODES}"""


@click.command(help=HELP)
@click.option("-n", "--namespace", help="Namespace. Default: the one of the context.")
@click.option("-A", "--all-namespaces", "is_all", is_flag=True, help="All namespaces.")
@click.option(
    "--once",
    is_flag=True,
    help="Print the table once; the default when the output is not a terminal.",
)
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(min=1, max=HOUR_S),
    default=5,
    show_default=True,
    help="Seconds between updates.",
)
@access_options
def top(  # noqa: PLR0913  (one argument per option)
    *,
    namespace: str | None,
    is_all: bool,
    once: bool,
    interval_s: float,
    context: str | None,
    kubeconfig: str | None,
) -> None:
    cluster = connect(kubeconfig=kubeconfig, context=context)
    chosen = None if is_all else namespace or cluster.namespace
    console = output(is_wide=True)

    def read() -> Table:
        found = read_all(cluster, namespace=chosen)
        return table(found, has_namespaces=is_all, is_wide=console.width >= WIDE)

    def noted() -> str | None:
        return outdated(lambda: leases_of(cluster), now_s=time.time())

    if not once and console.is_terminal:
        _watch(console, lambda: _captioned(read(), noted()), interval_s)
        return
    show(console, read())
    if note := noted():
        remark(f"Note: {note}")


def _captioned(shown: Table, note: str | None) -> Table:
    """Say below a table that its figures are old, where they are."""
    if note:
        shown.caption = Text(note, style="yellow")
    return shown


def _watch(console: Console, read: Callable[[], Table], interval_s: float) -> None:
    """Show the newest table until Ctrl-C; a read that fails leaves the last one and says so."""
    shown = read()
    with Live(shown, console=console, auto_refresh=False, screen=True) as live:
        try:
            while True:
                time.sleep(interval_s)
                try:
                    shown = read()
                except Failure as failure:
                    shown.caption = Text(failure.message, style="red")
                live.update(shown, refresh=True)
        except KeyboardInterrupt:
            return


def table(
    resources: Sequence[Mapping[str, Any]], *, has_namespaces: bool, is_wide: bool = True
) -> Table:
    """Return a row for each ModelDeployment."""
    shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    columns = [column for column in COLUMNS if is_wide or not column.is_extra]
    for column in columns:
        is_word = column.name in WORDS
        justify: Literal["left", "right"] = "left" if is_word else "right"
        shown.add_column(column.name, justify=justify, no_wrap=True, min_width=len(column.name))
    for resource in resources:
        cells = [printable(column.value(resource)) for column in columns]
        if has_namespaces:
            cells[0] = f"{printable(str(block(resource, 'metadata').get('namespace')))}/{cells[0]}"
        shown.add_row(*cells, style="yellow" if _broken(resource) else "")
    if not resources:
        shown.caption = "there is no ModelDeployment"
    return shown


Resource = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
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


def _measured(name: str, form: str = "") -> Callable[[Resource], str]:
    return _number("status", "measured", name, "value", form=form)


def _learned(name: str) -> Callable[[Resource], str]:
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
    return str(shown or ", ".join(_broken(resource)))


def _broken(resource: Resource) -> list[str]:
    """Return the reasons of conditions that say that something is wrong."""
    return [
        str(each.get("reason"))
        for each in objects(block(resource, "status"), "conditions")
        if (each.get("type"), each.get("status")) in {("Stalled", "True"), ("Ready", "False")}
    ]


WORDS: Final = frozenset({"name", "model", "GPU", "mode", "reason"})
COLUMNS: Final = (
    Column(name="name", value=_text("metadata", "name")),
    Column(name="model", value=_model, is_extra=True),
    Column(name="GPU", value=_text("spec", "hardware", "gpu")),
    Column(name="mode", value=_text("spec", "scaling", "mode", absent="Auto"), is_extra=True),
    Column(name="ready", value=_text("status", "replicas", "summary")),
    Column(name="seqs", value=_text("status", "plan", "maxNumSeqs")),
    Column(name="demand", value=_measured("requestsPerSecond")),
    Column(name="capacity", value=_capacity),
    Column(name="queue", value=_measured("queueDepth", "{:.0f}")),
    Column(name="MBU", value=_measured("memoryBandwidthUtilization", "{:.0%}")),
    Column(name="step", value=_learned("stepTime")),
    Column(name="eff", value=_learned("bandwidthEfficiency"), is_extra=True),
    Column(name="kept", value=_number("status", "calibration", "goodputFactor", form="{:.2f}")),
    Column(name="TTFT", value=_measured("ttftAttainment", "{:.1%}")),
    Column(name="TPOT", value=_measured("tpotAttainment", "{:.1%}")),
    Column(name="reason", value=_reason),
)
