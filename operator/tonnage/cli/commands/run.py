"""``tonnage run``: the operator itself."""

import importlib
import sys

import click

HELP = """Run the operator in this process.

This is what the operator's pod runs. The settings file has the content of "settings" in the values
of the Helm chart.

\b
Example:
  tonnage run --config /etc/tonnage/settings.yaml
"""


@click.command(help=HELP)
@click.option(
    "--config",
    "settings_file",
    required=True,
    type=click.Path(exists=True, dir_okay=False),
    help="YAML file with the settings of the operator.",
)
def run(settings_file: str) -> None:
    operator = importlib.import_module("tonnage.main")  # slow: it brings Kopf and the clients
    sys.exit(operator.run(settings_file))
