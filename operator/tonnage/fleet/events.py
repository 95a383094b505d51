"""Events about a ModelDeployment, as the API server takes them."""

from tonnage.api.spec import KIND
from tonnage.control.report.happenings import Happening
from tonnage.control.write.writes import Writes
from tonnage.manifests.names import API_VERSION, Manifest


def event(writes: Writes, happening: Happening, now: str) -> Manifest:
    """Return the Event that tells of a happening. ``now``: as Kubernetes writes it."""
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"generateName": f"{writes.name}-", "namespace": writes.namespace},
        "eventTime": now.replace("Z", ".000000Z"),
        "type": "Warning" if happening.is_warning else "Normal",
        "reason": happening.reason,
        "action": "Plan",
        "note": happening.message[:1024],
        "reportingController": "tonnage.dev/operator",
        "reportingInstance": "tonnage",
        "regarding": {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "name": writes.name,
            "namespace": writes.namespace,
            "uid": writes.uid,
        },
    }
