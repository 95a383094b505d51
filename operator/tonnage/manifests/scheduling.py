"""Where the pods of a replica may run: nodes of the GPU class, and what a user adds to that."""

from tonnage.api.placement import NodeRequirement
from tonnage.api.pods import Pods
from tonnage.manifests.names import Manifest
from tonnage.manifests.workload import TOPOLOGY_ANNOTATION, Workload

PRODUCT_LABEL = "nvidia.com/gpu.product"


def scheduling(
    name: str, pods: Pods, product_labels: tuple[str, ...], workload: Workload, *, is_worker: bool
) -> Manifest:
    """Return the fields of a pod that choose its node; those that say nothing are left out.

    Replicas are what is spread, so the workers of one are not.
    """
    optional = {
        "affinity": _affinity(_gpu_nodes(pods, product_labels)),
        "nodeSelector": dict(pods.node_selector),
        "priorityClassName": pods.priority_class_name,
        "runtimeClassName": pods.runtime_class_name,
        "topologySpreadConstraints": [] if is_worker else _spread(name, pods, workload),
    }
    return {key: value for key, value in optional.items() if value}


def together(pods: Pods) -> dict[str, str]:
    """Return the annotation by which a group has all its nodes in one place, with no other group.

    The pods have it too: a change of the LeaderWorkerSet's own annotation rolls none of them.

    Sources:
        [lws-source] pkg/webhooks/pod_webhook.go SetExclusiveAffinities (the pod's), and
        pkg/controllers/pod_controller.go Reconcile: workers are made where their leader is, once it
        has a node (the LeaderWorkerSet's).
    """
    return {TOPOLOGY_ANNOTATION: pods.group_topology} if pods.group_topology else {}


def tolerations(pods: Pods) -> list[Manifest]:
    """Return the taints that pods accept: that of GPU nodes, and those of the user."""
    of_gpus = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    return [of_gpus, *(each.to_dict() for each in pods.tolerations)]


def _affinity(expressions: list[Manifest]) -> Manifest:
    if not expressions:
        return {}
    terms = {"nodeSelectorTerms": [{"matchExpressions": expressions}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


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


def _spread(name: str, pods: Pods, workload: Workload) -> list[Manifest]:
    """Return the constraints, each over the pods of one revision: a rollout spreads its own."""
    return [
        {
            **each.to_dict(),
            "labelSelector": {"matchLabels": workload.engines(name)},
            "matchLabelKeys": [workload.revision_label],
        }
        for each in pods.topology_spread_constraints
    ]
