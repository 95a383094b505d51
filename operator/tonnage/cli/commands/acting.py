"""``pause``, ``resume`` and ``approve``: what a user does to a live object, with own rights."""

from collections.abc import Callable
from typing import Any, Final

import click

from tonnage.cli.answers.chain import block, objects
from tonnage.cli.commands.options import CLUSTER_EXIT_CODES, access_options
from tonnage.cli.console import NO, Failure, remark
from tonnage.cli.read.live import LiveCluster, Resource, connect, failures, read_one
from tonnage.cluster.kube import MODEL_DEPLOYMENTS
from tonnage.control.input.state import APPROVE
from tonnage.manifests.names import APPROVE_ANNOTATION

MANAGER: Final = "kubectl-tonnage"
MODE_ANNOTATION: Final = "tonnage.dev/mode-before-pause"
"""The mode that a paused object goes back to."""
PAUSED: Final = "Paused"
GIT_TOOLS: Final = {
    "argocd.argoproj.io/": "Argo CD",
    "kustomize.toolkit.fluxcd.io/": "Flux",
    "helm.toolkit.fluxcd.io/": "Flux",
}
PAUSE_HELP: Final = f"""Freeze a ModelDeployment: nothing is written but its status.

Sets spec.scaling.mode to Paused, and notes the mode to go back to in an annotation.

\b
Example:
  kubectl tonnage pause llama -n serving

{CLUSTER_EXIT_CODES}"""
RESUME_HELP: Final = f"""Let a paused ModelDeployment go on, in the mode that it was paused in.

\b
Example:
  kubectl tonnage resume llama -n serving

{CLUSTER_EXIT_CODES}"""
APPROVE_HELP: Final = f"""Agree to the plan that a ModelDeployment in mode Approve waits with.

DIGEST is what the condition Approved names; it may be left out where one plan waits.

\b
Examples:
  kubectl tonnage approve llama -n serving
  kubectl tonnage approve llama 41c09f3a5b7d2e68

{CLUSTER_EXIT_CODES}"""


def _on_object(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say which object is meant."""
    command = access_options(command)
    command = click.option("-n", "--namespace", help="Namespace. Default: the one of the context.")(
        command
    )
    return click.argument("name")(command)


@click.command(help=PAUSE_HELP)
@_on_object
def pause(*, name: str, namespace: str | None, context: str | None, kubeconfig: str | None) -> None:
    cluster = connect(kubeconfig=kubeconfig, context=context)
    place = namespace or cluster.namespace
    found = read_one(cluster, namespace=place, name=name)
    mode = _mode(found)
    if mode == PAUSED:
        remark(f"{place}/{name} is paused already")
        return
    _patch(cluster, place, name, mode=PAUSED, annotations={MODE_ANNOTATION: mode})
    _warn_of_git(found)
    click.echo(f"{place}/{name} paused; it was {mode}")


@click.command(help=RESUME_HELP)
@_on_object
def resume(
    *, name: str, namespace: str | None, context: str | None, kubeconfig: str | None
) -> None:
    cluster = connect(kubeconfig=kubeconfig, context=context)
    place = namespace or cluster.namespace
    found = read_one(cluster, namespace=place, name=name)
    if _mode(found) != PAUSED:
        remark(f"{place}/{name} is not paused: its mode is {_mode(found)}")
        return
    before = str(block(found, "metadata", "annotations").get(MODE_ANNOTATION) or "")
    if not before:
        raise Failure(
            f"{place}/{name} was not paused by this command, so the mode to go back to is not "
            "known: set spec.scaling.mode",
            NO,
        )
    _patch(cluster, place, name, mode=before, annotations={MODE_ANNOTATION: None})
    _warn_of_git(found)
    click.echo(f"{place}/{name} goes on in mode {before}")


@click.command(help=APPROVE_HELP)
@_on_object
@click.argument("digest", required=False)
def approve(
    *,
    name: str,
    digest: str | None,
    namespace: str | None,
    context: str | None,
    kubeconfig: str | None,
) -> None:
    cluster = connect(kubeconfig=kubeconfig, context=context)
    place = namespace or cluster.namespace
    proposal = _proposal(read_one(cluster, namespace=place, name=name), f"{place}/{name}", digest)
    _patch(cluster, place, name, annotations={APPROVE_ANNOTATION: proposal["digest"]})
    click.echo(f"{place}/{name}: approved {proposal['digest']}: {proposal.get('message', '')}")


def _proposal(found: Resource, name: str, digest: str | None) -> Resource:
    """Return the plan that is meant.

    Raises:
        Failure: none waits, or it is not clear which.
    """
    if _mode(found) != APPROVE:
        raise Failure(f"{name}: mode is {_mode(found)}, in which nothing waits for approval", NO)
    waiting = objects(block(found, "status"), "proposals")
    meant = [each for each in waiting if digest in {None, each.get("digest")}]
    if len(meant) == 1:
        return meant[0]
    if not waiting:
        raise Failure(f"{name}: no plan waits", NO)
    plans = "; ".join(f"{each.get('digest')}: {each.get('message')}" for each in waiting)
    raise Failure(f"{name}: name the DIGEST of a plan that waits: {plans}", NO)


def _mode(found: Resource) -> str:
    return str(block(found, "spec", "scaling").get("mode") or "Auto")


def _patch(
    cluster: LiveCluster,
    namespace: str,
    name: str,
    *,
    annotations: dict[str, str | None],
    mode: str | None = None,
) -> None:
    change: dict[str, Any] = {"metadata": {"annotations": annotations}}
    if mode is not None:
        change["spec"] = {"scaling": {"mode": mode}}
    with failures(f"patch modeldeployments {name} in namespace {namespace}"):
        cluster.api.merge_patch(MODEL_DEPLOYMENTS.path(namespace, name), change, manager=MANAGER)


def _warn_of_git(found: Resource) -> None:
    """Say that a tool which keeps the object as Git has it may undo the change."""
    marks = {*block(found, "metadata", "annotations"), *block(found, "metadata", "labels")}
    tools = {tool for prefix, tool in GIT_TOOLS.items() if any(m.startswith(prefix) for m in marks)}
    for tool in sorted(tools):
        remark(f"Note: {tool} syncs this object from Git, and may undo this")
