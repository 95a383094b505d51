"""Options that several commands have."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Final

import click

from tonnage.units import MILLION


def _finite(_: click.Context, __: click.Parameter, value: float | None) -> float | None:
    if value is not None and not (math.isfinite(value) and 0 < value <= MILLION):
        raise click.BadParameter(f"{value} is not between 0 and {MILLION}")
    return value


CLUSTER_EXIT_CODES: Final = """\b
Exit codes: 0 done; 2 there is no such object; 3 no cluster answers; 4 the cluster has no
ModelDeployment kind; 5 no right to read it; 1 unexpected.
"""

filename_option: Final = click.option(
    "-f",
    "--filename",
    "names",
    multiple=True,
    required=True,
    metavar="FILE|DIR|-",
    help="Manifests to read; may be repeated. '-' is standard input.",
)
output_option: Final = click.option(
    "-o",
    "--output",
    "form",
    type=click.Choice(["text", "json", "yaml"]),
    default="text",
    show_default=True,
    help="json and yaml have plan and estimate as status has them.",
)
html_option: Final = click.option(
    "--html",
    "page_file",
    metavar="FILE|-",
    help="Write a page with pictures; '-' prints it in place of the text.",
)
gpus_option: Final = click.option(
    "--gpus",
    "gpus_folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of TOML files with GPU classes, or prices, that are added or overridden.",
)
textbook_option: Final = click.option(
    "--textbook", is_flag=True, help="Nominal memory, no overhead, efficiency 1: napkin arithmetic."
)
model_config_option: Final = click.option(
    "--model-config",
    "config_file",
    metavar="FILE",
    help="A config.json that replaces the one of the catalogue.",
)
requests_per_second_option: Final = click.option(
    "--requests-per-second",
    "requests_per_s",
    type=float,
    callback=_finite,
    help="Demand that replaces the one of the spec.",
)


def access_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say which cluster is meant."""
    for option in (
        click.option("--context", help="Context of the kubeconfig; absent: its current one."),
        click.option("--kubeconfig", metavar="FILE", help="Absent: as kubectl finds it."),
    ):
        command = option(command)
    return command
