"""The objects beside a Deployment: made, brought to what is wanted, and taken away again.

One write where something differs, none where nothing does. What is not ours is left alone.
"""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from http import HTTPStatus
from typing import Final

from tonnage.api.base import KIND
from tonnage.cluster.calls import KubernetesError, WorldError, WriteFencedError
from tonnage.cluster.kube import (
    DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    EVENTS,
    LEADER_WORKER_SETS,
    NETWORK_POLICIES,
    POD_MONITORS,
    SERVICES,
    KubeApi,
    Resource,
)
from tonnage.control.input.times import rfc3339
from tonnage.control.input.writers import SOMEBODY
from tonnage.control.report.event_records import EventRecord
from tonnage.control.write.writes import Writes
from tonnage.fleet.logs import Line
from tonnage.fleet.pods import controller_uid
from tonnage.manifests.changes import differs, edits, removal_patch
from tonnage.manifests.children import Site, pod_monitor, service
from tonnage.manifests.names import API_VERSION, DEPLOYMENT, GROUPS, MANAGER, Manifest
from tonnage.manifests.protection import protections

LOG = logging.getLogger("tonnage.children")
RESOURCES: Final[Mapping[str, Resource]] = {
    DEPLOYMENT.kind: DEPLOYMENTS,
    GROUPS.kind: LEADER_WORKER_SETS,
    "Service": SERVICES,
    "PodMonitor": POD_MONITORS,
    "PodDisruptionBudget": DISRUPTION_BUDGETS,
    "NetworkPolicy": NETWORK_POLICIES,
}


class NotOursError(WriteFencedError):
    """An object of the name that we need belongs to somebody else: only a person can resolve it."""

    is_refusal = is_of_object = True


class NoPathError(NotOursError):
    """The Service of our name leads elsewhere: no request comes to the replicas by it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Children:
    """Writes the children of one object at a time."""

    kube: KubeApi
    """Fenced: each attempt at a write asks whether it is still ours to make."""
    site: Site
    clock: Callable[[], float] = time.time

    def protect(self, writes: Writes) -> None:
        """Bring what protects the pods, which comes before them, and remove what no longer does.

        Raises:
            WorldError: what was asked for cannot be had, so no pod is made without it.
        """
        if not writes.check_children or writes.model is None:
            return
        for kind, wanted in protections(writes.model, self.site, writes.num_nodes).items():
            if wanted is None:
                if writes.check_leftovers:
                    self._remove(kind, writes)
            elif not self._bring(wanted, writes):
                raise NotOursError(f"{kind} {writes.label} exists, not made by Tonnage: unchanged")

    def publish(self, writes: Writes) -> None:
        """Bring that by which clients and scrapers find the pods.

        Raises:
            NoPathError: the Service is somebody else's. What else can be brought is.
        """
        if not writes.check_children or writes.model is None:
            return
        is_reached = self._bring(service(writes.model, writes.num_nodes), writes)
        if self.site.has_pod_monitors:
            monitor = pod_monitor(writes.model, self.site, writes.num_nodes)
            if not self._bring(monitor, writes):
                LOG.warning(Line("not ours: not changed", object=writes.label, kind="PodMonitor"))
        if not is_reached:
            raise NoPathError(f"Service {writes.label} exists, not made by Tonnage: unchanged")

    def _bring(self, wanted: Manifest, writes: Writes) -> bool:
        """Write a child if it is not there or differs; tell whether it is ours."""
        path = RESOURCES[wanted["kind"]].path(writes.namespace, writes.name)
        live = self.kube.get(path)
        if live is None:
            self.kube.apply(path, wanted, manager=MANAGER, force=False)
            if not writes.check_leftovers:  # children were looked at for this spec before
                self._post_event(writes, f"{wanted['kind']} {writes.name} was deleted: recreated")
            return True
        if controller_uid(live["metadata"]) != writes.uid:
            return False
        if differs(wanted, live, manager=MANAGER):
            if spec := removal_patch(wanted, live):  # what would make it invalid: a second port
                uid = {"uid": live["metadata"]["uid"]}
                self.kube.merge_patch(path, {"metadata": uid, "spec": spec}, manager=MANAGER)
            self.kube.apply(path, pinned(wanted, live), manager=MANAGER, force=True)
            LOG.info(Line("applied", object=writes.label, kind=wanted["kind"]))
            if edited := _edits_reapplied(wanted, live, writes):
                self._post_event(writes, edited)
        return True

    def _post_event(self, writes: Writes, message: str) -> None:
        """Post an Event of what somebody did to a child; the child is reapplied without it too."""
        LOG.warning(Line("child restored", object=writes.label, message=message))
        now = rfc3339(self.clock())
        happening = EventRecord(reason="ChildRestored", message=message, is_warning=True, at=now)
        body = event(writes, happening, now)
        try:
            self.kube.create(EVENTS.path(writes.namespace), body)
        except WorldError as error:
            LOG.warning(Line("no Event", object=writes.label, message=str(error)))

    def _remove(self, kind: str, writes: Writes) -> None:
        """Delete a child of ours that the spec asked for once.

        Without the right to look there can be none: who may not read it did not make it.
        """
        path = RESOURCES[kind].path(writes.namespace, writes.name)
        try:
            live = self.kube.get(path)
        except KubernetesError as error:
            if error.status != HTTPStatus.FORBIDDEN:
                raise
            return
        if live is None or controller_uid(live["metadata"]) != writes.uid:
            return
        self.kube.delete(path, uid=live["metadata"]["uid"])
        LOG.info(Line("deleted", object=writes.label, kind=kind))


def pinned(manifest: Manifest, live: Manifest) -> Manifest:
    """Return a manifest for the object that was read, and no other of its name."""
    return manifest | {"metadata": manifest["metadata"] | {"uid": live["metadata"]["uid"]}}


def event(writes: Writes, happening: EventRecord, now: str) -> Manifest:
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


def _edits_reapplied(wanted: Manifest, live: Manifest, writes: Writes) -> str | None:
    """Say which edits of others were reapplied; None: only our own manifest changed."""
    found = {
        field: managers
        for field, managers in edits(wanted, live, manager=MANAGER)
        if managers or not writes.check_leftovers
    }
    if not found:
        return None
    who = " and ".join(sorted(frozenset().union(*found.values()))) or SOMEBODY
    fields = ", ".join(found)
    return f"{wanted['kind']} {writes.name}: {who} edited {fields}: reapplied"
