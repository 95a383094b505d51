"""``approve``: agreeing to a plan that waits, with the rights of the user."""

from dataclasses import dataclass
from typing import Final

import click

from tonnage.cli.commands.options import (
    CLUSTER_EXIT_CODES,
    AccessOptions,
    argument,
    namespace_option,
    takes,
)
from tonnage.cli.console import EXIT_INFEASIBLE, Failure
from tonnage.cli.read.live import Resource, failures, read_one
from tonnage.cli.read.manifest import block, objects
from tonnage.cluster.kube import MODEL_DEPLOYMENTS
from tonnage.control.input.state import APPROVE
from tonnage.manifests.names import APPROVE_ANNOTATION

MANAGER: Final = "kubectl-tonnage"
HELP: Final = f"""Approve the pending plan of a ModelDeployment in mode Approve.

DIGEST is the one that the condition Approved names; it is optional if one plan waits.

\b
Examples:
  kubectl tonnage approve llama -n serving
  kubectl tonnage approve llama 41c09f3a5b7d2e68

{CLUSTER_EXIT_CODES}"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApproveOptions:
    """Which plan of which object is meant."""

    name: str = argument()
    digest: str | None = argument(required=False)
    namespace: str | None = namespace_option()
    access: AccessOptions


@click.command(help=HELP)
@takes(ApproveOptions)
def approve(*, options: ApproveOptions) -> None:
    cluster = options.access.connect()
    namespace, name = options.namespace or cluster.namespace, options.name
    found = read_one(cluster, namespace=namespace, name=name)
    proposal = _proposal(found, f"{namespace}/{name}", options.digest)
    change = {"metadata": {"annotations": {APPROVE_ANNOTATION: proposal["digest"]}}}
    with failures(f"patch modeldeployments {name} in namespace {namespace}"):
        path = MODEL_DEPLOYMENTS.path(namespace, name)
        cluster.api.merge_patch(path, change, manager=MANAGER)
    message = f"approved {proposal['digest']}: {proposal.get('message', '')}"
    click.echo(f"{namespace}/{name}: {message}")


def _proposal(found: Resource, name: str, digest: str | None) -> Resource:
    mode = block(found, "spec", "scaling").get("mode") or "Auto"
    if mode != APPROVE:
        raise Failure(
            f"{name}: mode is {mode}, in which nothing waits for approval", EXIT_INFEASIBLE
        )
    waiting = objects(block(found, "status"), "proposals")
    meant = [each for each in waiting if digest in {None, each.get("digest")}]
    if len(meant) == 1:
        return meant[0]
    if not waiting:
        raise Failure(f"{name}: no plan waits", EXIT_INFEASIBLE)
    plans = "; ".join(f"{each.get('digest')}: {each.get('message')}" for each in waiting)
    raise Failure(f"{name}: name the DIGEST of a plan that waits: {plans}", EXIT_INFEASIBLE)
