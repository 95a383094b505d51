"""``tonnage crd``: the definition of the ModelDeployment kind."""

import json

import click

from tonnage.api.crd import json_schema, render_crd

HELP = """Print the CustomResourceDefinition of ModelDeployment, or its JSON Schema for editors.

\b
Examples:
  tonnage crd | kubectl apply --server-side -f -
  tonnage crd --json-schema > modeldeployment.schema.json
"""


@click.command(help=HELP)
@click.option(
    "--json-schema", "is_schema", is_flag=True, help="Print a JSON Schema of manifests instead."
)
def crd(*, is_schema: bool) -> None:
    if is_schema:
        click.echo(json.dumps(json_schema(), indent=2))
    else:
        click.echo(render_crd(), nl=False)
