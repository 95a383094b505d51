"""The command line: its commands, each imported only when it is called."""

import importlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Final

import click

from tonnage.cli.console import printable


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A command that is not imported yet: where it is, and what it does in a line."""

    module: str
    summary: str


COMMANDS: Final[Mapping[str, Entry]] = {
    "plan": Entry(module="tonnage.cli.commands.plan", summary="Size the models of some manifests."),
    "compare": Entry(
        module="tonnage.cli.commands.compare",
        summary="Rank GPU classes for a model by what it costs.",
    ),
    "explain": Entry(
        module="tonnage.cli.commands.explain", summary="Say why a model runs as it does."
    ),
    "top": Entry(module="tonnage.cli.commands.top", summary="Watch all models of a cluster."),
    "catalog": Entry(
        module="tonnage.cli.commands.catalog", summary="List known GPU classes and models."
    ),
    "crd": Entry(module="tonnage.cli.commands.crd", summary="Print the CustomResourceDefinition."),
    "lab": Entry(module="tonnage.cli.commands.lab", summary="Run a cluster on this machine."),
    "run": Entry(module="tonnage.cli.commands.run", summary="Run the operator."),
}

HELP: Final = """Keep LLM serving at its load line: as many requests per GPU as the SLO allows.

\b
Examples:
  tonnage plan -f model.yaml           what it takes to serve a model, no cluster needed
  tonnage compare -f model.yaml        the same on every GPU class, the cheapest first
  tonnage crd | kubectl apply -f -     install the ModelDeployment kind
  tonnage top -A                       all models of a cluster, live
  tonnage explain llama -n serving     why a model runs as it does
  tonnage lab demo                     the whole loop on this machine

\b
Exit codes:
  0  done, and the answer is yes
  1  unexpected: a fault of Tonnage, or of the machine
  2  the answer is no, or the input is not valid
  3  no cluster answers
  4  the cluster has no ModelDeployment kind
  5  no rights
"""


class LazyGroup(click.Group):
    """A group whose commands are imported on demand: a plan must not wait for Kubernetes."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  (click's form)
        return list(COMMANDS)

    def get_command(
        self,
        ctx: click.Context,  # noqa: ARG002  (click's form)
        cmd_name: str,
    ) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(COMMANDS[cmd_name].module)
        command: click.Command = getattr(module, cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in COMMANDS.items()])


@click.group(
    cls=LazyGroup,
    help=HELP,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="tonnage", message="tonnage %(version)s")
def program() -> None:
    pass


def _report_bug(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    """Say in one line what nobody expected: users get no traceback unless they ask for it."""
    if "--traceback" in sys.argv:
        sys.__excepthook__(kind, error, traceback)
        return
    click.echo(
        f"Error: unexpected {kind.__name__}: {printable(str(error))}. This is a fault of Tonnage; "
        "with --traceback as the last word it says where",
        err=True,
    )


def main() -> None:
    """Run the command line; an unexpected error ends it with exit code 1 and one line."""
    sys.excepthook = _report_bug
    arguments = [argument for argument in sys.argv[1:] if argument != "--traceback"]
    program(args=arguments, prog_name="tonnage")
