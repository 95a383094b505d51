"""The kinds of object that run replicas, and where each of them keeps what is read of it.

A replica is a pod of a Deployment, or a group of pods of a LeaderWorkerSet: a leader, which answers
requests, and workers on further nodes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tonnage.manifests.names import Manifest, selector

NAME_LABEL: Final = "leaderworkerset.sigs.k8s.io/name"
"""On what a LeaderWorkerSet makes: whose it is."""
INDEX_LABEL: Final = "leaderworkerset.sigs.k8s.io/worker-index"
"""On a pod of a group: 0 is the leader's."""
TOPOLOGY_ANNOTATION: Final = "leaderworkerset.sigs.k8s.io/exclusive-topology"
"""On a LeaderWorkerSet: the label of nodes by which its pods are put together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A kind of object that runs replicas."""

    kind: str
    api_version: str
    template: str
    """The field of its spec by which pods are replaced when it changes."""
    pods: tuple[str, ...]
    """Fields of that with a pod template each, the leader's first; none: it is one itself."""
    revision_label: str
    """On pods: those of one revision have the same."""
    is_group: bool = False

    def templates(self, template: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """Yield the pod templates, that of the pod which answers requests first.

        A LeaderWorkerSet of somebody else may have none for leaders: they are as workers.
        """
        if not self.pods:
            yield template
        for name in self.pods:
            yield template.get(name) or template.get(self.pods[-1]) or {}

    def engines(self, name: str) -> dict[str, str]:
        """Return the labels of the pods of a ModelDeployment that answer requests."""
        return selector(name) | ({INDEX_LABEL: "0"} if self.is_group else {})


DEPLOYMENT: Final = Workload(
    kind="Deployment",
    api_version="apps/v1",
    template="template",
    pods=(),
    revision_label="pod-template-hash",
)
GROUPS: Final = Workload(
    kind="LeaderWorkerSet",
    api_version="leaderworkerset.x-k8s.io/v1",
    template="leaderWorkerTemplate",
    pods=("leaderTemplate", "workerTemplate"),
    revision_label="leaderworkerset.sigs.k8s.io/template-revision-hash",
    is_group=True,
)


def workload_over(num_nodes: int) -> Workload:
    """Return what runs replicas over so many nodes each."""
    return GROUPS if num_nodes > 1 else DEPLOYMENT


WORKLOADS: Final[Mapping[str, Workload]] = {each.kind: each for each in (DEPLOYMENT, GROUPS)}


def template_in(manifest: Manifest) -> Manifest:
    """Return the part of a workload by which pods are replaced when it changes."""
    template: Manifest = manifest["spec"][WORKLOADS[manifest["kind"]].template]
    return template


def num_nodes_in(manifest: Manifest) -> int:
    """Return over how many nodes each replica of a workload runs: a pod on each."""
    return int(template_in(manifest).get("size", 1))
