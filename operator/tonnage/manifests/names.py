"""Names, labels and annotations that Tonnage puts on what it creates."""

from typing import Any, Final

from tonnage.api.base import GROUP, KIND, VERSION
from tonnage.api.pod_rules import ENGINE

Manifest = dict[str, Any]

MANAGED_LABEL: Final = "tonnage.dev/managed"
"""The one watch selector: on our objects and pods, and on a scale target and its pods."""
ADOPT_LABEL: Final = "tonnage.dev/adopt"
"""On a Deployment that nobody controls: UID of the ModelDeployment that it is handed over to."""
OWNER_LABEL: Final = "tonnage.dev/model-deployment"
DIGEST_ANNOTATION: Final = "tonnage.dev/spec-digest"
"""On our Deployment: digest of the spec that its template was made from."""
FLAGS_ANNOTATION: Final = "tonnage.dev/flags"
"""On our Deployment: the capacity flags of its template, to correct drift from."""
DRAIN_ANNOTATION: Final = "tonnage.dev/drain-seconds"
"""On our Deployment: what its pods get to finish what they answer, to correct drift from."""
SPEC_ANNOTATION: Final = "tonnage.dev/spec"
"""On our Deployment: the part of the spec that its template was made from, to go on with it."""
TEMPLATE_ANNOTATION: Final = "tonnage.dev/template-digest"
"""On our Deployment: digest of its pod template as we wrote it, to tell what others edited."""
APPROVE_ANNOTATION: Final = "tonnage.dev/approve"
"""On a ModelDeployment: digest of the plan that its user agrees to."""
DELETION_COST_ANNOTATION: Final = "controller.kubernetes.io/pod-deletion-cost"
"""On pods of our Deployments: a ReplicaSet takes those with the lowest away first."""
QUEUE_MODULE: Final = "tonnage_queue"
"""What gives each request its priority, where the queue admits the newest first."""
MODULE_VARIABLE: Final = "TONNAGE_QUEUE_MODULE"
"""The source of that module."""
MIDDLEWARE: Final = f"{QUEUE_MODULE}.NewestFirst"
CLASS_VARIABLE: Final = "TONNAGE_QUEUE_CLASS_S"
"""Time in which arrivals make a class, for that module."""
CONTAINER: Final = ENGINE
"""The engine's container in our pods."""
MANAGER: Final = "tonnage"
SCALE_MANAGER: Final = "tonnage-scale"
API_VERSION: Final = f"{GROUP}/{VERSION}"


def labels(name: str) -> dict[str, str]:
    """Return the labels of everything that belongs to a ModelDeployment; a fresh dict."""
    return {
        "app.kubernetes.io/name": "vllm",
        "app.kubernetes.io/instance": name,
        "app.kubernetes.io/managed-by": "tonnage",
        **selector(name),
    }


def selector(name: str) -> dict[str, str]:
    """Return the labels that select the pods of a ModelDeployment."""
    return {MANAGED_LABEL: "true", OWNER_LABEL: name}


def field_of_pod(path: str) -> dict[str, str]:
    """Return a reference to a field of the pod, with what the API server would add.

    It is one value: without its ``apiVersion`` the live one would be another writer's.
    """
    return {"apiVersion": "v1", "fieldPath": path}


def owner_reference(*, name: str, uid: str) -> dict[str, object]:
    """Return the reference by which the garbage collector finds what we created.

    ``blockOwnerDeletion`` false: true would ask for the right to update finalizers.
    """
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": name,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }
