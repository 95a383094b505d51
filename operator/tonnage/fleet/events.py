"""Events about a ModelDeployment, as the API server takes them."""

from hashlib import sha256

from tonnage.api.group import KIND
from tonnage.control.report.happenings import Happening
from tonnage.control.write.writes import Writes
from tonnage.manifests.names import API_VERSION, Manifest


def event(writes: Writes, happening: Happening, now: str) -> Manifest:
    """Return the Event that tells of a happening; posted twice, it has the same name.

    ``now``: as Kubernetes writes it.
    """
    known = "\n".join((writes.uid, happening.reason, happening.at, happening.message))
    name = f"{writes.name}.{sha256(known.encode()).hexdigest()[:16]}"
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": writes.namespace},
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
