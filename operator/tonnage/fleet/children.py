"""The objects beside a Deployment: made, brought to what is wanted, and taken away again.

One write where something differs, none where nothing does. What is not ours is left alone.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from tonnage.cluster.errors import HeldBackError, KubernetesError
from tonnage.cluster.kube import (
    DISRUPTION_BUDGETS,
    NETWORK_POLICIES,
    POD_MONITORS,
    SERVICES,
    KubeApi,
    Resource,
)
from tonnage.control.writes import Writes
from tonnage.manifests.children import Site, pod_monitor, service
from tonnage.manifests.difference import differs, without_rivals
from tonnage.manifests.names import MANAGER, Manifest
from tonnage.manifests.protection import protections

LOG = logging.getLogger("tonnage.children")
RESOURCES: Final[Mapping[str, Resource]] = {
    "Service": SERVICES,
    "PodMonitor": POD_MONITORS,
    "PodDisruptionBudget": DISRUPTION_BUDGETS,
    "NetworkPolicy": NETWORK_POLICIES,
}


class NotOursError(HeldBackError):
    """An object of the name that we need belongs to somebody else: only a person can resolve it."""

    @property
    def is_refusal(self) -> bool:
        return True


class NoPathError(NotOursError):
    """The Service of our name leads elsewhere: no request comes to the replicas by it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Children:
    """Writes the children of one object at a time."""

    kube: KubeApi
    """Fenced: each attempt at a write asks whether it is still ours to make."""
    site: Site

    def protect(self, writes: Writes) -> None:
        """Bring what protects the pods, which comes before them, and remove what no longer does.

        Raises:
            WorldError: what was asked for cannot be had, so no pod is made without it.
        """
        if not writes.check_children or writes.model is None:
            return
        for kind, wanted in protections(writes.model, self.site).items():
            if wanted is None:
                if writes.check_leftovers:
                    self._remove(kind, writes)
            elif not self._bring(wanted, writes):
                raise NotOursError(f"{kind} {writes.label} is not ours: it is left alone")

    def publish(self, writes: Writes) -> None:
        """Bring that by which clients and scrapers find the pods.

        Raises:
            NoPathError: the Service is somebody else's. What else can be brought is.
        """
        if not writes.check_children or writes.model is None:
            return
        is_reached = self._bring(service(writes.model), writes)
        monitor = pod_monitor(writes.model, self.site) if self.site.has_pod_monitors else None
        if monitor and not self._bring(monitor, writes):
            LOG.warning("object=%s PodMonitor of that name is not ours: left alone", writes.label)
        if not is_reached:
            raise NoPathError(f"Service {writes.label} is not ours: it is left alone")

    def _bring(self, wanted: Manifest, writes: Writes) -> bool:
        """Write a child if it is not there or differs; tell whether it is ours."""
        path = RESOURCES[wanted["kind"]].path(writes.namespace, writes.name)
        live = self.kube.get(path)
        if live is None:
            self.kube.apply(path, wanted, manager=MANAGER, force=False)
            return True
        if controller_uid(live) != writes.uid:
            return False
        if differs(wanted, live, manager=MANAGER):
            self._correct(path, wanted, live)
            LOG.info("object=%s applied %s", writes.label, wanted["kind"])
        return True

    def _correct(self, path: str, wanted: Manifest, live: Manifest) -> None:
        """Apply what is wanted over what stands there.

        Beside what somebody else wrote it may be invalid, as a second port of one name is: then
        that goes first.
        """
        uid = {"uid": live["metadata"]["uid"]}
        pinned = wanted | {"metadata": wanted["metadata"] | uid}
        try:
            self.kube.apply(path, pinned, manager=MANAGER, force=True)
        except KubernetesError as error:
            spec = without_rivals(wanted, live)
            if error.status != HTTPStatus.UNPROCESSABLE_ENTITY or spec is None:
                raise
            self.kube.merge_patch(path, {"metadata": uid, "spec": spec}, manager=MANAGER)
            self.kube.apply(path, pinned, manager=MANAGER, force=True)

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
        if live is None or controller_uid(live) != writes.uid:
            return
        self.kube.delete(path, uid=live["metadata"]["uid"])
        LOG.info("object=%s deleted %s", writes.label, kind)


def controller_uid(live: Manifest) -> Any:
    """Return the UID of the object that controls another; None: nobody does."""
    owners = live["metadata"].get("ownerReferences") or ()
    return next((owner["uid"] for owner in owners if owner.get("controller")), None)
