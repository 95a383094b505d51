"""``tonnage explain``: why a live object runs as it does, from its status alone; the glossary."""

import time
from dataclasses import dataclass

import click

from tonnage.cli.commands.options import (
    CLUSTER_EXIT_CODES,
    AccessOptions,
    argument,
    namespace_option,
    option,
    takes,
)
from tonnage.cli.console import output, remark, show
from tonnage.cli.read.live import leases_of, read_one, stale_note
from tonnage.cli.text.explain import chain_report, glossary
from tonnage.explain.glossary import GLOSSARY

HELP = f"""Show how the operator arrived at the replicas of a ModelDeployment.

Reads the status of the object: metrics, calibration, capacity of one replica, limits on the number
of replicas, and the last decisions. Changes nothing. With --glossary instead of NAME, prints the
terms of plans and status; that needs no cluster.

\b
Examples:
  tonnage explain llama -n serving
  tonnage explain --glossary

{CLUSTER_EXIT_CODES}"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainOptions:
    """What the command was given."""

    # fmt: off
    name: str | None = argument(required=False)
    is_glossary: bool = option("--glossary", is_flag=True,
        help="Print what the terms mean, with vLLM's flags and metrics, instead of an object.")
    namespace: str | None = namespace_option()
    access: AccessOptions
    # fmt: on


@click.command(help=HELP)
@takes(ExplainOptions)
def explain(*, options: ExplainOptions) -> None:
    name = options.name
    if options.is_glossary and name is not None:
        raise click.UsageError("give NAME or --glossary, not both")
    if options.is_glossary:
        show(output(), glossary(GLOSSARY))
        return
    if name is None:
        raise click.UsageError("give the NAME of a ModelDeployment, or --glossary")
    cluster = options.access.connect()
    found = read_one(cluster, namespace=options.namespace or cluster.namespace, name=name)
    show(output(), chain_report(found))
    if note := stale_note(lambda: leases_of(cluster), now_s=time.time()):
        remark(f"Note: {note}")
