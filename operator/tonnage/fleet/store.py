"""The informer store: what the watches last said, kept slim. A hint, checked against lists."""

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from itertools import chain
from typing import Any

from tonnage.cluster.pages import MOST_OBJECT_BYTES, oversized_bytes
from tonnage.control.input.state import DeploymentView, ModelView, PodView
from tonnage.fleet.logs import Line
from tonnage.fleet.pods import as_group, pod_view
from tonnage.fleet.views import (
    AutoscalerView,
    OversizedView,
    ReplicaSetView,
    View,
    autoscaler_view,
    deployment_view,
    model_view,
    replica_set_view,
)
from tonnage.manifests.names import GROUPS, WORKLOADS

LOG = logging.getLogger("tonnage.store")
Key = tuple[str, str]
"""(namespace, name)"""
Owner = tuple[str, str]
"""(namespace, uid)"""


class Kind(StrEnum):
    """What is watched."""

    MODEL = "models"
    DEPLOYMENT = "deployments"
    GROUPS = "groups"
    """LeaderWorkerSets, where the cluster has them."""
    POD = "pods"
    REPLICA_SET = "replica_sets"
    STATEFUL_SET = "stateful_sets"
    """Of LeaderWorkerSets."""
    AUTOSCALER = "autoscalers"


OF_WORKLOADS = (Kind.DEPLOYMENT, Kind.GROUPS)
OF_SETS = (Kind.REPLICA_SET, Kind.STATEFUL_SET)
PROJECTIONS: Mapping[Kind, Callable[[Mapping[str, Any]], View]] = {
    Kind.MODEL: model_view,
    Kind.DEPLOYMENT: deployment_view,
    Kind.GROUPS: partial(deployment_view, workload=GROUPS),
    Kind.POD: pod_view,
    Kind.REPLICA_SET: replica_set_view,
    Kind.STATEFUL_SET: replica_set_view,
    Kind.AUTOSCALER: autoscaler_view,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The store at one moment."""

    models: Mapping[Key, ModelView]
    deployments: Mapping[Key, DeploymentView]
    groups: Mapping[Key, DeploymentView]
    pods: Mapping[Key, PodView]
    replica_sets: Mapping[Key, ReplicaSetView]
    stateful_sets: Mapping[Key, ReplicaSetView]
    autoscalers: Mapping[Key, AutoscalerView]

    pods_by_deployment: Mapping[Owner, tuple[PodView, ...]]
    """By namespace and uid of the workload, sorted by name; workers by that of their leader."""
    oversized: Mapping[Key, int] = field(default_factory=dict)
    """Workloads of which no more than the name is known, and their bytes."""

    def of_kind(self, kind: str) -> Mapping[Key, DeploymentView]:
        return self.groups if WORKLOADS[kind].is_group else self.deployments

    def workload(self, key: Key, owner_uid: str) -> DeploymentView | None:
        """Return the workload of a name: that of the owner before any other."""
        found = [each[key] for each in (self.deployments, self.groups) if key in each]
        return next(
            (each for each in found if each.owner_uid == owner_uid), next(iter(found), None)
        )

    def replicas_of(self, deployment: DeploymentView, now_s: float) -> tuple[PodView, ...]:
        """Return one pod for each replica, whatever their labels say: of a group the leader."""
        num_nodes = deployment.num_nodes
        pods = self.pods_by_deployment.get((deployment.namespace, deployment.uid), ())
        if num_nodes == 1:
            return pods
        workers = (self.pods_by_deployment.get((pod.namespace, pod.uid), ()) for pod in pods)
        return tuple(
            as_group(leader, each, num_nodes=num_nodes, now_s=now_s)
            for leader, each in zip(pods, workers, strict=True)
        )


def by_deployment(
    pods: Iterable[PodView], replica_sets: Iterable[ReplicaSetView]
) -> Mapping[Owner, tuple[PodView, ...]]:
    """Join pods to workloads through the sets that own them, once for the whole fleet.

    Pods that are over count no more, as for their ReplicaSet. Owners are of the same namespace.
    Who writes an owner elsewhere names any uid: the API server checks none, and the garbage
    collector leaves what a finalizer holds.
    """
    owners = owners_of(replica_sets)
    found: dict[Owner, list[PodView]] = defaultdict(list)
    for pod in sorted(pods, key=lambda pod: pod.name):
        owner = owners.get((pod.namespace, pod.replica_set_uid or ""))
        if owner and not pod.is_over:
            found[pod.namespace, owner].append(pod)
    return {owner: tuple(each) for owner, each in found.items()}


def owners_of(replica_sets: Iterable[View]) -> dict[Owner, str | None]:
    """Return the UID of what controls each set of pods, by namespace and UID."""
    return {
        (each.namespace, each.uid): each.deployment_uid
        for each in replica_sets
        if isinstance(each, ReplicaSetView)
    }


class Store:
    """Views by kind and key, with a signal when one that matters changed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._views: dict[Kind, dict[Key, View]] = defaultdict(dict)
        self._noted: dict[Kind, set[Key]] = {}
        """By kind: what the watch spoke of since a list of it was begun."""
        self._served: tuple[Container[Key], Container[Owner]] | None = None
        """Workloads that objects name, and the same by UID; None: not known yet."""
        self._deployment_uids: dict[Owner, str | None] = {}
        """Of what owns a set of pods."""
        self._snapshot: Snapshot | None = None
        """The last one, while it is still so."""
        self.has_gap = threading.Event()
        """Set when a watch begins without a version: what happened before is found by a list."""
        self.changed = threading.Event()
        """Set when a view changed in a way that a decision can depend on."""

    def serve(self, deployments: Container[Key], owners: Container[Owner]) -> None:
        """Be woken by these Deployments and their pods alone, beside the objects themselves.

        ``owners``: the same by UID, as far as they were seen.

        Anybody may put our label on what is theirs: what flaps there wakes nobody.
        """
        with self._lock:
            self._served = deployments, owners

    def note(self, kind: Kind, event_type: str | None, body: Mapping[str, Any]) -> None:
        """Take in one watch event."""
        view = _project(kind, body)
        if view is None:
            return  # what was known of it stays
        key = (view.namespace, view.name)
        with self._lock:
            self._noted.setdefault(kind, set()).add(key)
            before = self._views[kind].get(key)
            is_deleted = event_type == "DELETED"
            if not is_deleted and before == view:
                return
            self._snapshot = None
            if not is_deleted:
                _tell_size(kind, before, view)
                self._views[kind][key] = view
                is_news = _without_echo(before) != _without_echo(view)
            else:
                if before is None or before.uid == view.uid:
                    self._views[kind].pop(key, None)
                is_news = before is not None
            if isinstance(view, ReplicaSetView):
                self._deployment_uids[view.namespace, view.uid] = view.deployment_uid
            is_news = is_news and self._is_served(kind, view)
        if is_news:
            self.changed.set()

    def _is_served(self, kind: Kind, view: View) -> bool:
        namespace = view.namespace
        if self._served is None or isinstance(view, ModelView):
            return True
        deployments, owners = self._served
        if isinstance(view, OversizedView | DeploymentView):
            return kind in OF_WORKLOADS and (namespace, view.name) in deployments
        if isinstance(view, AutoscalerView):
            return (namespace, view.target_name) in deployments
        owner = (
            view.deployment_uid
            if isinstance(view, ReplicaSetView)
            else self._deployment_uids.get((namespace, view.replica_set_uid or ""))
        )
        return (namespace, owner or "") in owners

    def reconcile(
        self,
        kind: Kind,
        listed: Iterable[Mapping[str, Any]],
        *,
        unlisted: Container[str] = frozenset(),
    ) -> int:
        """Replace a kind by a full list; return how many ghosts were found.

        The list is read here: what the watch says meanwhile is newer. ``unlisted``: namespaces that
        turn out to be missing in it while it is read.
        """
        with self._lock:
            self._noted[kind] = set()
        views, unread = dict[Key, View](), set[Key]()
        for body in listed:
            view = _project(kind, body)
            if view is None:
                unread.add(_key_of(body))
            else:
                views[view.namespace, view.name] = view
        with self._lock:
            known, self._snapshot = self._views[kind], None
            newer = self._noted[kind] | unread | {key for key in known if key[0] in unlisted}
            ghosts = [
                key
                for key, view in known.items()
                if key not in newer and (key not in views or views[key].uid != view.uid)
            ]
            for key in newer:
                views.pop(key, None)
            for key, view in views.items():
                _tell_size(kind, known.get(key), view)
            # A view that did not change stays: what was found by it has it, too.
            same = {key for key, view in views.items() if known.get(key) == view}
            self._views[kind] = views | {key: known[key] for key in {*newer, *same} & known.keys()}
            if kind in OF_SETS:
                sets = (self._views[each].values() for each in OF_SETS)
                self._deployment_uids = owners_of(chain.from_iterable(sets))
        return len(ghosts)

    def snapshot(self) -> Snapshot:
        """Return everything as it is now; the same again where nothing changed."""
        with self._lock:
            if self._snapshot is None:
                self._snapshot = _snapshot(self._views)
            return self._snapshot


def _snapshot(known: Mapping[Kind, Mapping[Key, View]]) -> Snapshot:
    views: dict[str, Any] = {
        str(kind): {
            key: view
            for key, view in known.get(kind, {}).items()
            if not isinstance(view, OversizedView)
        }
        for kind in Kind
    }
    sets = chain.from_iterable(views[each].values() for each in OF_SETS)
    large = chain.from_iterable(known.get(each, {}).items() for each in OF_WORKLOADS)
    return Snapshot(
        **views,
        pods_by_deployment=by_deployment(views[Kind.POD].values(), sets),
        oversized={key: view.num_bytes for key, view in large if isinstance(view, OversizedView)},
    )


def _project(kind: Kind, body: Mapping[str, Any]) -> View | None:
    """Return the view of an object; a bug in that must not stop the others."""
    try:
        num_bytes = oversized_bytes(body)
        if num_bytes is None or kind is Kind.MODEL:
            return PROJECTIONS[kind](body)
        namespace, name = _key_of(body)
        uid = body["metadata"].get("uid") or ""
        return OversizedView(namespace=namespace, name=name, uid=uid, num_bytes=num_bytes)
    except Exception:
        LOG.exception(Line("cannot be read", kind=kind, object="/".join(_key_of(body))))
        return None


def _tell_size(kind: Kind, before: View | None, view: View) -> None:
    """Write a line of what is too large, once."""
    if _is_large(view) and not _is_large(before):
        size = f"{view.num_bytes} bytes" if isinstance(view, OversizedView) else "it is too large"
        message = f"{size}: beyond {MOST_OBJECT_BYTES} nothing but its name is read"
        LOG.warning(
            Line("too large", kind=kind, object=f"{view.namespace}/{view.name}", message=message)
        )


def _is_large(view: View | None) -> bool:
    return isinstance(view, OversizedView) or (isinstance(view, ModelView) and view.is_oversized)


def _key_of(body: Mapping[str, Any]) -> Key:
    metadata = body.get("metadata") or {}
    return metadata.get("namespace", ""), metadata.get("name", "")


def _without_echo(view: View | None) -> View | None:
    """Leave out what changes with every write of our own status, and how large it is."""
    if isinstance(view, OversizedView):
        return replace(view, num_bytes=0)
    return replace(view, status="") if isinstance(view, ModelView) else view
