"""``tonnage crd``: the definition of the ModelDeployment kind."""

import click

from tonnage.api.crd import render_crd

HELP = """Print the CustomResourceDefinition of ModelDeployment.

\b
Example:
  tonnage crd | kubectl apply --server-side -f -
"""


@click.command(help=HELP)
def crd() -> None:
    click.echo(render_crd(), nl=False)
