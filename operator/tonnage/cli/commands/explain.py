"""``tonnage explain``: why a live object runs as it does, from its status alone."""

import json

import click

from tonnage.cli.answers.chain import chain
from tonnage.cli.commands.options import CLUSTER_EXIT_CODES, access_options
from tonnage.cli.console import output, show
from tonnage.cli.read.live import connect, read_one
from tonnage.cli.text.chain import explained

HELP = f"""Show how the operator arrived at the replicas of a ModelDeployment.

Reads the status of the object: metrics, calibration, capacity of one replica, limits on the number
of replicas, and the last decisions. Changes nothing.

\b
Examples:
  tonnage explain llama -n serving
  tonnage explain llama -o json | jq .correction

{CLUSTER_EXIT_CODES}"""


@click.command(help=HELP)
@click.argument("name")
@click.option("-n", "--namespace", help="Namespace. Default: the one of the context.")
@click.option(
    "-o", "--output", "form", type=click.Choice(["text", "json"]), default="text", show_default=True
)
@access_options
def explain(
    *, name: str, namespace: str | None, form: str, context: str | None, kubeconfig: str | None
) -> None:
    cluster = connect(kubeconfig=kubeconfig, context=context)
    links = chain(read_one(cluster, namespace=namespace or cluster.namespace, name=name))
    if form == "json":
        click.echo(json.dumps(links, indent=2, ensure_ascii=False))
    else:
        show(output(), explained(links))
