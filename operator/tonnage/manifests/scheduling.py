"""Where the pods of a replica may run: nodes of the GPU class, and what a user adds to that."""

from copy import deepcopy
from typing import Final

from tonnage.api.pods import NodeRequirement, Pods
from tonnage.manifests.names import TOPOLOGY_ANNOTATION, Manifest, Workload

PRODUCT_LABEL = "nvidia.com/gpu.product"
GPU_TAINT: Final = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
"""Of GPU nodes: every engine accepts it."""
REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"


def together(pods: Pods) -> dict[str, str]:
    """Return the annotation by which a group has all its nodes in one place, with no other group.

    The pods have it too: a change of the LeaderWorkerSet's own annotation rolls none of them.

    Sources:
        [lws-source] pkg/webhooks/pod_webhook.go SetExclusiveAffinities (the pod's), and
        pkg/controllers/pod_controller.go Reconcile: workers are made where their leader is, once it
        has a node (the LeaderWorkerSet's).
    """
    return {TOPOLOGY_ANNOTATION: pods.group_topology} if pods.group_topology else {}


def affinity(pods: Pods, product_labels: tuple[str, ...]) -> Manifest:
    """Return the field of a pod by which its node has the GPU class, if a node must."""
    expressions = _gpu_nodes(pods, product_labels)
    if not expressions:
        return {}
    terms = {"nodeSelectorTerms": [{"matchExpressions": expressions}]}
    return {"affinity": {"nodeAffinity": {REQUIRED: terms}}}


def place(pod: Manifest, own: Manifest, name: str, workload: Workload, *, is_worker: bool) -> None:
    """Have a merged pod keep to nodes of the GPU class, and its replicas spread.

    Each term of the user's is held beside ours. Replicas are what is spread, so the workers of one
    are not; where a constraint does not say over which pods, a rollout spreads its own.
    """
    if "affinity" in own:
        [ours] = own["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
        required = pod["affinity"]["nodeAffinity"][REQUIRED]
        terms = [each for each in required["nodeSelectorTerms"] if each is not ours]
        required["nodeSelectorTerms"] = [_both(ours, each) for each in terms] or [ours]
    spread = pod.pop("topologySpreadConstraints", [])
    if spread and not is_worker:
        over = {
            "labelSelector": {"matchLabels": workload.engines(name)},
            "matchLabelKeys": [workload.revision_label],
        }
        pod["topologySpreadConstraints"] = [
            each if "labelSelector" in each else {**each, **deepcopy(over)} for each in spread
        ]


def _both(ours: Manifest, theirs: Manifest) -> Manifest:
    """Return a term of nodes that are both; a fresh one, which YAML writes out."""
    expressions = [*ours["matchExpressions"], *theirs.get("matchExpressions", [])]
    return deepcopy({**theirs, "matchExpressions": expressions})


def _gpu_nodes(pods: Pods, product_labels: tuple[str, ...]) -> list[Manifest]:
    """Return what a node must be to have the GPU class: as the user says, else by its label."""
    if pods.gpu_nodes is not None:
        return [_expression(each) for each in pods.gpu_nodes]
    if not product_labels:
        return []
    return [{"key": PRODUCT_LABEL, "operator": "In", "values": list(product_labels)}]


def _expression(requirement: NodeRequirement) -> Manifest:
    values = {"values": list(requirement.values)} if requirement.values else {}
    return {"key": requirement.key, "operator": requirement.operator, **values}
