"""Options that several commands have."""

import math
from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from tonnage.units import MILLION, seconds

if TYPE_CHECKING:
    from tonnage.estimate.calibration_file import CalibrationFile


def positive(_: click.Context, __: click.Parameter, value: float | None) -> float | None:
    """Take a rate that is one."""
    if value is not None and not (math.isfinite(value) and 0 < value <= MILLION):
        raise click.BadParameter(f"{value} is not between 0 and {MILLION}")
    return value


def duration(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    """Take a duration as manifests have it, as it is written."""
    if value is not None:
        _seconds(_, __, value)
    return value


def _seconds(_: click.Context, __: click.Parameter, value: str | None) -> float | None:
    try:
        return None if value is None else seconds(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def duration_option(
    name: str, destination: str, help_text: str, default: str | None = None
) -> Callable[..., Any]:
    """Return an option that takes a duration as manifests do, and gives seconds."""
    return click.option(
        name,
        destination,
        metavar="DURATION",
        default=default,
        show_default=default is not None,
        callback=_seconds,
        help=help_text,
    )


PRICE_OPTIONS: Final = (
    click.option("--price", "single_prices", multiple=True, metavar="NAME=AMOUNT",
        help="Your price of a GPU class, per GPU and hour; may be repeated."),
    click.option("--prices", "price_file", metavar="FILE",
        help="Your price list: a line 'NAME: AMOUNT' for each class, or 'NAME: {onDemand: AMOUNT, "
        "spot: AMOUNT, reserved: AMOUNT}' with any of them, per GPU and hour; and 'currency: EUR'. "
        "Classes that are not in it have no price."),
    click.option("--rate", metavar="NAME",
        help="Which rate of --prices: onDemand (the default where any class has it), spot, "
        "reserved, reserved1Year, reserved3Years or a name of yours."),
    click.option("--currency", metavar="CODE",
        help="Currency of your prices, a label. Default: USD, or as --prices says."),
)  # fmt: skip
"""Of a buyer's own prices."""


def with_options(
    command: Callable[..., None], options: tuple[Callable[..., Any], ...]
) -> Callable[..., None]:
    """Add options to a command, in the order of its help."""
    for option in reversed(options):
        command = option(command)
    return command


def with_group(
    command: Callable[..., None], options: tuple[Callable[..., Any], ...], name: str, kind: type
) -> Callable[..., None]:
    """Add options to a command, which gets them as one argument: a data class of their names."""

    @wraps(command)
    def grouped(**given: Any) -> None:
        taken = {each.name: given.pop(each.name) for each in fields(kind)}
        command(**{name: kind(**taken)}, **given)

    return with_options(grouped, options)


CLUSTER_EXIT_CODES: Final = """\
Exit codes: 0 success; 2 not found; 3 invalid input; 4 the cluster cannot be reached; 5 it does not
have the ModelDeployment CRD; 6 access denied (RBAC); 1 unexpected error.
"""

filename_option: Final = click.option(
    "-f",
    "--filename",
    "names",
    multiple=True,
    required=True,
    metavar="FILE|DIR|-",
    help="File or folder with manifests; may be repeated. '-' reads standard input.",
)


def format_option(*forms: str, more: str = "") -> Callable[..., Any]:
    """Return ``-o``, which means the format of what is printed in every command.

    ``forms``: the first is the default. ``more``: what they hold.
    """
    return click.option(
        "-o",
        "--format",
        "form",
        type=click.Choice(forms),
        default=forms[0],
        show_default=True,
        help=f"Output format. {more}".rstrip(),
    )


output_option: Final = format_option(
    "text",
    "json",
    "yaml",
    "markdown",
    "csv",
    more="json and yaml have all figures, markdown and csv a row for each answer.",
)
html_option: Final = click.option(
    "--html",
    "page_file",
    metavar="FILE|-",
    help="Write an HTML page with charts; '-' writes it to standard output instead of the text.",
)


def _folder(_: click.Context, __: click.Parameter, value: Path | None) -> Path | None:
    """Take a folder; names of classes were meant for another option."""
    if value is not None and not value.is_dir():
        hint = f"; to name GPU classes write --gpu {value}" if "/" not in str(value) else ""
        raise click.BadParameter(f"there is no folder {value}{hint}")
    return value


gpus_option: Final = click.option(
    "--gpus",
    "gpus_folder",
    type=click.Path(path_type=Path),
    callback=_folder,
    help="Folder with TOML files of GPU classes, to add classes or to set prices.",
)
textbook_option: Final = click.option(
    "--textbook", is_flag=True, help="Use nominal memory, no overhead, and an efficiency of 1."
)
model_config_option: Final = click.option(
    "--model-config",
    "config_file",
    metavar="FILE",
    help="config.json of the model, instead of the one in the catalogue.",
)
calibration_option: Final = click.option(
    "--calibration",
    "calibration_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Constants that 'tonnage calibrate' measured, instead of those of the catalogue.",
)


def calibration_in(path: Path | None) -> "CalibrationFile | None":
    """Return what the file of ``calibration_option`` holds, if one is given."""
    if path is None:
        return None
    from tonnage.cli.read.calibration import read_calibration  # noqa: PLC0415  (slow)

    return read_calibration(path)


calibrations_option: Final = click.option(
    "--calibration",
    "calibration_files",
    type=click.Path(path_type=Path),
    metavar="FILE",
    multiple=True,
    help="Constants that 'tonnage calibrate' measured on one of the classes, instead of those of "
    "the catalogue; may be repeated.",
)
requests_per_second_option: Final = click.option(
    "--requests-per-second",
    "requests_per_s",
    type=float,
    callback=positive,
    help="Requests per second, instead of the demand in the spec.",
)


def access_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say which cluster is meant."""
    for option in (
        click.option("--context", help="Context of the kubeconfig. Default: the current context."),
        click.option(
            "--kubeconfig", metavar="FILE", help="Path to the kubeconfig. Default: as for kubectl."
        ),
    ):
        command = option(command)
    return command
