"""``pause``, ``resume`` and ``approve``: what a user does to a live object, with own rights."""

from dataclasses import dataclass
from typing import Any, Final

import click

from tonnage.cli.commands.options import (
    CLUSTER_EXIT_CODES,
    AccessOptions,
    argument,
    namespace_option,
    takes,
)
from tonnage.cli.console import NO, Failure, remark
from tonnage.cli.read.live import LiveCluster, Resource, failures, read_one
from tonnage.cli.read.nested import block, objects
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectOptions:
    """Which object is meant."""

    name: str = argument()
    namespace: str | None = namespace_option()
    access: AccessOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """An object, and where it is."""

    cluster: LiveCluster
    namespace: str
    name: str
    content: Resource

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def mode(self) -> str:
        return str(block(self.content, "spec", "scaling").get("mode") or "Auto")

    def patch(self, *, annotations: dict[str, str | None], mode: str | None = None) -> None:
        change: dict[str, Any] = {"metadata": {"annotations": annotations}}
        if mode is not None:
            change["spec"] = {"scaling": {"mode": mode}}
        with failures(f"patch modeldeployments {self.name} in namespace {self.namespace}"):
            path = MODEL_DEPLOYMENTS.path(self.namespace, self.name)
            self.cluster.api.merge_patch(path, change, manager=MANAGER)


def _find(options: ObjectOptions) -> _Found:
    cluster = options.access.connect()
    place, name = options.namespace or cluster.namespace, options.name
    found = read_one(cluster, namespace=place, name=name)
    return _Found(cluster=cluster, namespace=place, name=name, content=found)


@click.command(help=PAUSE_HELP)
@takes(ObjectOptions)
def pause(*, options: ObjectOptions) -> None:
    found = _find(options)
    if found.mode == PAUSED:
        remark(f"{found} is paused already")
        return
    found.patch(mode=PAUSED, annotations={MODE_ANNOTATION: found.mode})
    _warn_of_git(found.content)
    click.echo(f"{found} paused; it was {found.mode}")


@click.command(help=RESUME_HELP)
@takes(ObjectOptions)
def resume(*, options: ObjectOptions) -> None:
    found = _find(options)
    if found.mode != PAUSED:
        remark(f"{found} is not paused: its mode is {found.mode}")
        return
    before = str(block(found.content, "metadata", "annotations").get(MODE_ANNOTATION) or "")
    if not before:
        raise Failure(
            f"{found} was not paused by this command, so the mode to go back to is not "
            "known: set spec.scaling.mode",
            NO,
        )
    found.patch(mode=before, annotations={MODE_ANNOTATION: None})
    _warn_of_git(found.content)
    click.echo(f"{found} goes on in mode {before}")


@click.command(help=APPROVE_HELP)
@takes(ObjectOptions)
@click.argument("digest", required=False)
def approve(*, options: ObjectOptions, digest: str | None) -> None:
    found = _find(options)
    proposal = _proposal(found, digest)
    found.patch(annotations={APPROVE_ANNOTATION: proposal["digest"]})
    click.echo(f"{found}: approved {proposal['digest']}: {proposal.get('message', '')}")


def _proposal(found: _Found, digest: str | None) -> Resource:
    """Return the plan that is meant.

    Raises:
        Failure: none waits, or it is not clear which.
    """
    if found.mode != APPROVE:
        raise Failure(f"{found}: mode is {found.mode}, in which nothing waits for approval", NO)
    waiting = objects(block(found.content, "status"), "proposals")
    meant = [each for each in waiting if digest in {None, each.get("digest")}]
    if len(meant) == 1:
        return meant[0]
    if not waiting:
        raise Failure(f"{found}: no plan waits", NO)
    plans = "; ".join(f"{each.get('digest')}: {each.get('message')}" for each in waiting)
    raise Failure(f"{found}: name the DIGEST of a plan that waits: {plans}", NO)


def _warn_of_git(found: Resource) -> None:
    """Say that a tool which keeps the object as Git has it may undo the change."""
    marks = {*block(found, "metadata", "annotations"), *block(found, "metadata", "labels")}
    tools = {tool for prefix, tool in GIT_TOOLS.items() if any(m.startswith(prefix) for m in marks)}
    for tool in sorted(tools):
        remark(f"Note: {tool} syncs this object from Git, and may undo this")
