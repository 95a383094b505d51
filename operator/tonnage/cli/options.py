"""Options that several commands have."""

import math
from typing import Final

import click

from tonnage.units import MILLION


def _finite(_: click.Context, __: click.Parameter, value: float | None) -> float | None:
    if value is not None and not (math.isfinite(value) and 0 < value <= MILLION):
        raise click.BadParameter(f"{value} is not between 0 and {MILLION}")
    return value


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
