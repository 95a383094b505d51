"""``python -m tonnage_lab``: control plane, engines and load on this machine, without Docker."""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import click
from rich.console import Console

from tonnage.cli.console import UNEXPECTED, Failure, needs_extra
from tonnage.units import HOUR_S

MODULES: Final = frozenset({"matplotlib", "trustme"})

HELP = """Run a test cluster on this machine: control plane, Prometheus, engine emulators.

Needs no Docker. The programs are downloaded, or built in some minutes, once.

\b
Examples:
  python -m tonnage_lab demo      run the demo, then stop everything
  python -m tonnage_lab up        start a cluster and leave it
  python -m tonnage_lab status
  python -m tonnage_lab down
"""
FOLDER = click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the lab's files. Default: $TONNAGE_LAB, else a folder in your home.",
)


@contextmanager
def lab_errors() -> Iterator[None]:
    """Turn a missing extra, and whatever the lab cannot do, into one message."""
    with needs_extra("-e '.[lab]'", "the lab", MODULES):
        from tonnage_lab.processes import LabError  # noqa: PLC0415  (needs the extra)

        try:
            yield
        except LabError as error:
            raise LabFailure(str(error)) from error


class LabFailure(click.ClickException):
    """What the lab could not do; the last lines of a program's log stay lines."""

    exit_code = UNEXPECTED


@click.group(help=HELP)
def lab() -> None:
    pass


@lab.command()
@FOLDER
@click.option("--bare", is_flag=True, help="Start the control plane and Prometheus only.")
def up(folder: Path | None, *, bare: bool) -> None:
    """Start a cluster: control plane, Prometheus, a GPU node and the operator."""
    with lab_errors():
        from tonnage_lab import progress, site, state  # noqa: PLC0415

        parts = (state.start_prometheus,) if bare else (site.as_part(site.STANDARD),)
        step = progress.on_console(Console(stderr=True))
        started = state.up(step, folder=folder, parts=parts)
        for name, address in started.addresses.items():
            click.echo(f"{name:12} {address}")
        click.echo(f"export KUBECONFIG={started.kubeconfig}")


@lab.command()
@FOLDER
def down(folder: Path | None) -> None:
    """Stop the cluster. Its logs are kept."""
    with lab_errors():
        from tonnage_lab import state  # noqa: PLC0415

        folder = folder or state.default_folder()
        found = state.load(folder)
        if found is None:
            raise Failure(f"there is no lab in {folder}")
        num_running = sum(state.status(found).values())
        state.down(found)
        click.echo(f"stopped {num_running} processes; logs are in {folder / 'logs'}")


@lab.command()
@FOLDER
def status(folder: Path | None) -> None:
    """Show the state of the cluster. Exit code 2 if it does not run."""
    with lab_errors():
        from tonnage_lab import state  # noqa: PLC0415

        found = state.load(folder or state.default_folder())
        members = state.status(found) if found else {}
        if found is None or not any(members.values()):
            raise Failure("no lab runs; start one with 'python -m tonnage_lab up'")
        for name, is_alive in members.items():
            click.echo(f"{name:24} {'runs' if is_alive else 'ended'}")
        click.echo(f"export KUBECONFIG={found.kubeconfig}")


@lab.command()
def build() -> None:
    """Find, download or build the lab's programs, and print their paths."""
    with lab_errors():
        from tonnage_lab import assets, progress  # noqa: PLC0415

        found = assets.ensure(step=progress.on_console(Console(stderr=True)))
        for name, path in found.items():
            click.echo(f"{name:24} {path}")


@lab.command()
@click.option(
    "--picture",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Write a chart of demand, replicas, queue, SLO attainment and MBU over time.",
)
@click.option("--keep/--no-keep", default=False, help="Keep the cluster running afterwards.")
@click.option(
    "--cluster",
    type=click.Choice(["local", "kind"]),
    default="local",
    show_default=True,
    help="local: processes of this machine. kind: needs Docker and root; --keep does not apply.",
)
@click.option(
    "--scrape-interval",
    "scrape_interval_s",
    type=click.IntRange(min=1, max=HOUR_S),
    help="Prometheus scrape interval in seconds.",
)
@click.option(
    "--engine",
    type=click.Choice(["emulator", "vllm"]),
    default="emulator",
    show_default=True,
    help="vllm: real vLLM for CPU, a core per replica; 6 GB of packages, installed once.",
)
def demo(
    *,
    picture: Path | None,
    keep: bool,
    cluster: str,
    scrape_interval_s: int | None,
    engine: str,
) -> None:
    """Run the demo: an example under load, and how the operator scales it."""
    with lab_errors():
        story = importlib.import_module("tonnage_lab.demo")
        stages = importlib.import_module("tonnage_lab.scenario")
        chosen = {} if scrape_interval_s is None else {"scrape_interval_s": scrape_interval_s}
        sys.exit(
            story.run_demo(
                picture=picture,
                keep=keep,
                cluster=cluster,
                engine=stages.EngineKind(engine),
                **chosen,
            )
        )
