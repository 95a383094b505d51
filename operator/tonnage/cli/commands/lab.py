"""``tonnage lab`` is of the package ``tonnage_lab``, which wheel and image leave out."""

import importlib
from typing import Final

import click

from tonnage.cli.console import NO, Failure

LAB: Final = "tonnage_lab"
ABSENT: Final = (
    "the lab comes with a checkout of the sources: run make demo there, or install it with "
    "pip install -e '.[lab]'"
)


@click.command("lab", add_help_option=False, context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1)
def absent(arguments: tuple[str, ...]) -> None:  # noqa: ARG001  (whatever the lab would take)
    raise Failure(ABSENT, NO)


def lab_command(package: str = LAB) -> click.Command:
    """Return the command of the lab, or, where the lab is missing, what says so."""
    try:
        command: click.Command = importlib.import_module(f"{package}.command").lab
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        return absent
    return command


lab: Final = lab_command()
