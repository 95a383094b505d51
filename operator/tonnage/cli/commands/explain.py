"""``tonnage explain``: why a live object runs as it does, from its status alone; the glossary."""

import json
import time

import click

from tonnage.cli.answers.chain import chain
from tonnage.cli.answers.glossary import glossary
from tonnage.cli.commands.options import CLUSTER_EXIT_CODES, access_options, format_option
from tonnage.cli.console import output, remark, show
from tonnage.cli.read.leading import leases_of, stale_note
from tonnage.cli.read.live import connect, read_one
from tonnage.cli.text.chain import chain_report
from tonnage.cli.text.glossary import terms

HELP = f"""Show how the operator arrived at the replicas of a ModelDeployment.

Reads the status of the object: metrics, calibration, capacity of one replica, limits on the number
of replicas, and the last decisions. Changes nothing. With --glossary instead of NAME, prints the
terms of plans and status; that needs no cluster.

\b
Examples:
  tonnage explain llama -n serving
  tonnage explain --glossary
  tonnage explain llama -o json | jq .correction

{CLUSTER_EXIT_CODES}"""


@click.command(help=HELP)
@click.argument("name", required=False)
@click.option(
    "--glossary",
    "is_glossary",
    is_flag=True,
    help="Print what the terms mean, with vLLM's flags and metrics, instead of an object.",
)
@click.option("-n", "--namespace", help="Namespace. Default: the one of the context.")
@format_option("text", "json")
@access_options
def explain(  # noqa: PLR0913  (one argument per option)
    *,
    name: str | None,
    is_glossary: bool,
    namespace: str | None,
    form: str,
    context: str | None,
    kubeconfig: str | None,
) -> None:
    if is_glossary and name is not None:
        raise click.UsageError("give NAME or --glossary, not both")
    if is_glossary:
        _print_glossary(form)
        return
    if name is None:
        raise click.UsageError("give the NAME of a ModelDeployment, or --glossary")
    cluster = connect(kubeconfig=kubeconfig, context=context)
    links = chain(read_one(cluster, namespace=namespace or cluster.namespace, name=name))
    if form == "json":
        click.echo(json.dumps(links, indent=2, ensure_ascii=False))
    else:
        show(output(), chain_report(links))
    if note := stale_note(lambda: leases_of(cluster), now_s=time.time()):
        remark(f"Note: {note}")


def _print_glossary(form: str) -> None:
    if form == "json":
        click.echo(json.dumps(glossary(), indent=2, ensure_ascii=False))
    else:
        show(output(), terms(glossary()))
