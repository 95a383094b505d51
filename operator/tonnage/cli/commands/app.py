"""The command line: its commands, each imported only when it is called."""

import errno
import gc
import importlib
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final

import click

from tonnage.cli.console import (
    BAD_INPUT,
    INTERRUPTED,
    PIPE_CLOSED,
    UNEXPECTED,
    print_error,
    printable,
)

FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})

COMMANDS: Final[Mapping[str, str]] = {
    "plan": "Compute replicas and max-num-seqs for manifests.",
    "init": "Print the manifest of a line of options.",
    "diff": "Show which pods roll, and what replicas and cost become, between manifests.",
    "render": "Print the objects that the operator would apply.",
    "compare": "Rank GPU classes for a manifest by cost.",
    "explain": "Show why a ModelDeployment has its replicas, or what terms mean.",
    "diagnose": "Collect a bug report's files, without secrets.",
    "replay": "Simulate what autoscalers would have done with a trace.",
    "calibrate": "Fit the speed of an engine to a load test.",
    "catalog": "List the GPU classes and models in the catalogue.",
    "crd": "Print the CustomResourceDefinition.",
    "approve": "Approve the pending plan (mode Approve).",
    "run": "Run the operator.",
}
"""Each is in a module of its name, which is imported when it is called."""

HELP: Final = """Capacity for vLLM on Kubernetes: as many requests per GPU as the SLO allows.

\b
Examples:
  tonnage plan -f model.yaml           replicas, slots and cost; no cluster
  tonnage init --model ... --gpu H100  the manifest of a line of options
  tonnage diff old.yaml new.yaml       which pods roll, cost before and after
  tonnage render -f model.yaml         the objects that would be applied
  tonnage compare -f model.yaml        every GPU class, cheapest first
  tonnage replay x.csv -f model.yaml   what autoscalers would have done
  tonnage calibrate --result FILE ...  fit its speed to a load test
  tonnage crd | kubectl apply -f -     install the CustomResourceDefinition
  tonnage explain llama -n serving     why a ModelDeployment has its replicas
  tonnage explain --glossary           what the terms mean
  tonnage diagnose -A                  a bug report's files, without secrets

\b
Exit codes:
  0  success
  1  unexpected error
  2  infeasible: not servable, not within maxReplicas, not found
  3  the input is invalid
  4  the cluster cannot be reached
  5  the cluster does not have the ModelDeployment CRD
  6  access denied (RBAC)
  7  over budget (diff)
  130 and 141  ended by Ctrl-C, or because the reader of the output closed it
"""


class LazyGroup(click.Group):
    """A group whose commands are imported on demand: a plan must not wait for Kubernetes."""

    def make_context(self, *arguments: Any, **settings: Any) -> click.Context:
        with _exit_codes():
            return super().make_context(*arguments, **settings)

    def invoke(self, ctx: click.Context) -> Any:
        with _exit_codes():
            try:
                return super().invoke(ctx)
            finally:
                sys.stdout.flush()

    def get_command(
        self,
        ctx: click.Context,  # noqa: ARG002  (click's form)
        cmd_name: str,
    ) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        gc.disable()  # of what is imported nothing is ever garbage
        try:
            module = importlib.import_module(f"{__package__}.{cmd_name}")
            gc.freeze()
        finally:
            gc.enable()
        command: click.Command = getattr(module, cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@contextmanager
def _exit_codes() -> Iterator[None]:
    """Give each way in which a command may end its exit code, whatever click would make of it."""
    try:
        yield
    except click.UsageError as error:
        error.__dict__["exit_code"] = BAD_INPUT  # click declares it for the whole class
        raise
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        _drop_output()
        sys.exit(PIPE_CLOSED)
    except OSError as error:
        if error.errno not in FULL:
            raise
        _drop_output()
        print_error(f"{error.filename or 'the output'} cannot be written: {error.strerror}")
        sys.exit(UNEXPECTED)


def _drop_output() -> None:
    """Let what is still buffered go nowhere: at exit it would be written once more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


program: Final = click.version_option(package_name="tonnage", message="tonnage %(version)s")(
    LazyGroup(
        "program",
        commands=dict.fromkeys(COMMANDS, click.Command(None)),  # their names, for click's advice
        help=HELP,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
)


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
    _run("tonnage")


def kubectl() -> None:
    """Run the same as the plugin of kubectl, which finds it by the name ``kubectl-tonnage``."""
    is_completing = "_KUBECTL_TONNAGE_COMPLETE" in os.environ
    _run("kubectl-tonnage" if is_completing else "kubectl tonnage")


def _run(name: str) -> None:
    sys.excepthook = _report_bug
    arguments = [argument for argument in sys.argv[1:] if argument != "--traceback"]
    program(args=arguments, prog_name=name)
