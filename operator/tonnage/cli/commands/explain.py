"""``tonnage explain``: why a live object runs as it does, from its status alone."""

import json

import click

from tonnage.cli.answers.chain import chain
from tonnage.cli.commands.options import CLUSTER_EXIT_CODES, access_options
from tonnage.cli.console import output, show
from tonnage.cli.read.live import connect, read_one
from tonnage.cli.text.chain import explained

HELP = f"""Say why a model runs as it does: from what is measured to the replicas that run.

Reads the status of one ModelDeployment and writes nothing: the signal that is measured, the
correction that was learned from it, the sizing of one replica, the caps, and the decision.

\b
Examples:
  tonnage explain llama -n serving
  tonnage explain llama -o json | jq .correction

{CLUSTER_EXIT_CODES}"""


@click.command(help=HELP)
@click.argument("name")
@click.option("-n", "--namespace", help="Absent: the one of the context.")
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
