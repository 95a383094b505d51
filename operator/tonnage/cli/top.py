"""``tonnage top``: all models of a cluster in one table, live."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import click
from rich import box
from rich.console import Console, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tonnage.cli.chain import block, objects
from tonnage.cli.console import Failure, output, printable
from tonnage.cli.live import EXIT_CODES, access_options, connect, read_all
from tonnage.units import HOUR_S, significant

LEFT: Final = ("name", "model", "GPU", "mode")
RIGHT: Final = (
    "ready",
    "seqs",
    "demand",
    "capacity",
    "queue",
    "MBU",
    "eff",
    "prior",
    "TTFT",
    "TPOT",
)
UNKNOWN: Final = "-"

HELP = f"""Watch all models of a namespace, or of the cluster.

Demand and capacity are requests/s: what arrives, and what the replicas that are ready sustain
within the SLO. MBU is the observed memory bandwidth utilization, eff and prior the learned
bandwidth efficiency and where it started; TTFT and TPOT the shares of requests within their
limits.

\b
Examples:
  tonnage top -A
  tonnage top -n serving --interval 2
  tonnage top -A --once > models.txt

{EXIT_CODES}"""


@click.command(help=HELP)
@click.option("-n", "--namespace", help="Absent: the one of the context.")
@click.option("-A", "--all-namespaces", "is_all", is_flag=True, help="Every namespace.")
@click.option("--once", is_flag=True, help="Print the table once; so does a file or a pipe.")
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(min=1, max=HOUR_S),
    default=5,
    show_default=True,
    help="Seconds between two reads.",
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
        return table(read_all(cluster, namespace=chosen), has_namespaces=is_all)

    if once or not console.is_terminal:
        console.print(read())
    else:
        _watch(console, read, interval_s)


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


def table(resources: Sequence[Mapping[str, Any]], *, has_namespaces: bool) -> Table:
    """Return a row for each ModelDeployment."""
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for name in LEFT:
        shown.add_column(name, overflow="ellipsis")
    for name in RIGHT:
        shown.add_column(name, justify="right", no_wrap=True)
    shown.add_column("reason", overflow="ellipsis")
    for resource in resources:
        shown.add_row(*_cells(resource, has_namespaces=has_namespaces))
    if not resources:
        shown.caption = "there is no ModelDeployment"
    return shown


def _cells(resource: Mapping[str, Any], *, has_namespaces: bool) -> list[RenderableType]:
    metadata, spec, status = (block(resource, key) for key in ("metadata", "spec", "status"))
    name = str(metadata.get("name"))
    model = str(block(spec, "model").get("id"))
    calibration = block(status, "calibration")
    words = [
        f"{metadata.get('namespace')}/{name}" if has_namespaces else name,
        model.rpartition("/")[2],
        str(block(spec, "hardware").get("gpu")),
        str(block(spec, "scaling").get("mode", "Auto")),
        str(block(status, "replicas").get("summary", UNKNOWN)),
        str(block(status, "plan").get("maxNumSeqs", UNKNOWN)),
        _figure(status, "requestsPerSecond"),
        _capacity(status),
        _figure(status, "queueDepth", "{:.0f}"),
        _figure(status, "memoryBandwidthUtilization", "{:.0%}"),
        _number(calibration.get("bandwidthEfficiency"), "{:.2f}"),
        _number(calibration.get("priorBandwidthEfficiency"), "{:.2f}"),
        _figure(status, "ttftAttainment", "{:.1%}"),
        _figure(status, "tpotAttainment", "{:.1%}"),
    ]
    return [*(printable(word) for word in words), _reason(status)]


def _figure(status: Mapping[str, Any], name: str, form: str = "") -> str:
    return _number(block(status, "measured", name).get("value"), form)


def _number(value: object, form: str = "") -> str:
    if not isinstance(value, int | float):
        return UNKNOWN
    return form.format(value) if form else significant(value)


def _capacity(status: Mapping[str, Any]) -> str:
    """Return the requests/s of the replicas that are ready."""
    each = block(status, "estimate").get("requestsPerSecond")
    ready = block(status, "replicas").get("ready")
    if not isinstance(each, int | float) or not isinstance(ready, int):
        return UNKNOWN
    return significant(each * ready)


def _reason(status: Mapping[str, Any]) -> Text:
    reason = str(block(status, "display").get("reason") or "")
    broken = [
        str(each.get("reason"))
        for each in objects(status, "conditions")
        if (each.get("type"), each.get("status")) in {("Stalled", "True"), ("Ready", "False")}
    ]
    return Text(printable(reason or ", ".join(broken)), style="yellow" if broken else "")
