"""The store against lists: a watch is silent about what vanished while it was being re-listed."""

import logging
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus

from tonnage.cluster.calls import KubernetesError, Object
from tonnage.cluster.kube import (
    AUTOSCALERS,
    DEPLOYMENTS,
    LEADER_WORKER_SETS,
    MODEL_DEPLOYMENTS,
    POD_MONITORS,
    PODS,
    REPLICA_SETS,
    STATEFUL_SETS,
    KubeApi,
    Resource,
)
from tonnage.cluster.pages import reduce_object
from tonnage.control.input.times import age_s
from tonnage.fleet.background import BackgroundTask, unheard
from tonnage.fleet.bounded import slim_model
from tonnage.fleet.logs import Line
from tonnage.fleet.store import Kind, Store
from tonnage.manifests.names import MANAGED_LABEL, NAME_LABEL
from tonnage.units import format_s

LOG = logging.getLogger("tonnage.lists")
RELIST_S = 300
WAIT_S = 60.0
"""For lists: a tick that waits for them longer fails, and the next goes on waiting."""
LONGEST_UNLISTED_S = 2 * RELIST_S
"""After which nothing is decided before the lists are read."""
NAMESPACE_GONE = frozenset({HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND})
"""What is said of a namespace that was deleted, and our rights in it with it."""
RELISTED: Sequence[tuple[Kind, Resource, str]] = (
    (Kind.MODEL, MODEL_DEPLOYMENTS, ""),
    (Kind.DEPLOYMENT, DEPLOYMENTS, f"{MANAGED_LABEL}=true"),
    (Kind.REPLICA_SET, REPLICA_SETS, f"{MANAGED_LABEL}=true"),
    (Kind.POD, PODS, f"{MANAGED_LABEL}=true"),
    (Kind.AUTOSCALER, AUTOSCALERS, ""),
)
OF_GROUPS: Sequence[tuple[Kind, Resource, str]] = (
    (Kind.GROUPS, LEADER_WORKER_SETS, f"{MANAGED_LABEL}=true"),
    (Kind.STATEFUL_SET, STATEFUL_SETS, NAME_LABEL),
)
"""Where the cluster has LeaderWorkerSets."""
LOOK_S = 60.0
"""How often that is asked: somebody installs them, or takes them away."""


def reads_groups(kube: KubeApi, namespaces: Collection[str]) -> bool:
    """Tell whether the cluster has LeaderWorkerSets, and we may read them wherever Deployments."""

    def may(resource: Resource, namespace: str | None) -> bool:
        return all(kube.may(verb, resource, namespace) for verb in ("list", "watch"))

    return kube.serves(LEADER_WORKER_SETS) and all(
        may(resource, namespace)
        for namespace in namespaces or (None,)
        if may(DEPLOYMENTS, namespace)
        for _, resource, _ in OF_GROUPS
    )


@dataclass(slots=True, kw_only=True)
class Lists:
    """Checks the store against lists, beside the loop unless the last are long ago."""

    store: Store
    kube: KubeApi
    namespaces: Collection[str]
    """That are named in the settings; none: all are read."""
    work: BackgroundTask[dict[str, str]] = field(default_factory=BackgroundTask)
    """The lists being read: come to the namespaces that may not be, and why."""
    readable: Callable[[Collection[str]], None] = unheard
    """Takes the namespaces that could be read, of those that are named."""
    watch_groups: Callable[[bool], None] = unheard
    """Takes whether the cluster has LeaderWorkerSets."""
    has_groups: bool = False
    """It has, and we may read them, as far as is known."""
    has_pod_monitors: bool = False
    missed: tuple[bool, bool] = (False, False)
    """Which of the two was not there when it was last asked: once more, and it is gone."""
    looked_at_s: float = 0.0
    unlisted: Mapping[str, str] = field(default_factory=dict)
    """Namespaces that could not be read the last time, and what the API server said."""
    checked_at_s: float = 0.0

    def check(self, now_s: float) -> None:
        """Begin to read them where it is time, and take over what was read.

        Raises:
            KubernetesError: the API server fails, or lets us read no namespace at all.
        """
        self._look(now_s)
        since_s = age_s(self.checked_at_s, now_s)
        if self.work.is_free and (since_s >= RELIST_S or self.store.has_gap.is_set()):
            self.store.has_gap.clear()
            self.work.begin(self._reconcile)
        if since_s >= LONGEST_UNLISTED_S:
            self.work.wait(WAIT_S)
            if self.work.is_under_way:
                raise KubernetesError(f"no lists within {format_s(WAIT_S)}: none is read", status=0)
        try:
            refused = self.work.take()
        except Exception:  # they are due again
            self.checked_at_s = 0.0
            self.store.changed.clear()  # all of it is looked at when the lists are read again
            raise
        if refused is not None:
            self._note(refused)
            self.checked_at_s = now_s

    def _look(self, now_s: float) -> None:
        """Ask whether there are LeaderWorkerSets to read, and PodMonitors to make.

        Where the first changed all lists are due. What cannot be asked is as it was. They are gone
        when two ticks in a row say so.
        """
        if age_s(self.looked_at_s, now_s) < LOOK_S:
            return
        self.looked_at_s = now_s
        try:
            has_groups = reads_groups(self.kube, self.namespaces)
            has_pod_monitors = self.kube.serves(POD_MONITORS)
        except KubernetesError as error:
            what = "not known whether LeaderWorkerSets and PodMonitors are served"
            LOG.warning(Line(what, message=str(error)))
            return
        missed = self.has_groups > has_groups, self.has_pod_monitors > has_pod_monitors
        if any(map(operator.gt, missed, self.missed)):
            self.missed, self.looked_at_s = missed, 0.0
            return
        self.missed = (False, False)
        if has_groups != self.has_groups:
            state = "are read" if has_groups else "do not exist, or may not be read"
            LOG.info(Line(f"LeaderWorkerSets {state}"))
            self.has_groups = has_groups
            self.store.has_gap.set()
        if has_pod_monitors != self.has_pod_monitors:
            LOG.info(Line(f"PodMonitors {'are made' if has_pod_monitors else 'do not exist'}"))
            self.has_pod_monitors = has_pod_monitors
        self.watch_groups(has_groups)

    def forget(self) -> None:
        """Begin anew: lists of before say nothing of now."""
        self.work.drop()
        self.checked_at_s = self.looked_at_s = 0.0

    def _note(self, refused: Mapping[str, str]) -> None:
        for namespace in refused.keys() - self.unlisted.keys():
            LOG.error(Line("not served", namespace=namespace, message=refused[namespace]))
        for namespace in self.unlisted.keys() - refused.keys():
            LOG.info(Line("served again", namespace=namespace))
        self.unlisted = refused
        self.readable(set(self.namespaces) - refused.keys())

    def _reconcile(self) -> dict[str, str]:
        """Read all lists into the store; return the namespaces that may not be read, and why."""
        refused: dict[str, str] = {}
        for kind, resource, selector in RELISTED:
            self._take_over(kind, self._list(resource, selector, refused), refused)
        for kind, resource, selector in OF_GROUPS:
            unread = dict(refused)
            listed = self._list(resource, selector, unread) if self.has_groups else ()
            try:
                self._take_over(kind, listed, unread)
            except KubernetesError as error:
                if error.status not in NAMESPACE_GONE:
                    raise
                self.looked_at_s = 0.0  # taken away, or the right to read them
        for namespace in self.namespaces or (None,):
            self._check_rights(namespace, refused)
        return refused

    def _take_over(self, kind: Kind, listed: Iterable[Object], unlisted: Collection[str]) -> None:
        if ghosts := self.store.reconcile(kind, listed, unlisted=unlisted):
            LOG.warning(Line("ghosts removed from the store", kind=kind, ghosts=ghosts))
            self.store.changed.set()

    def _check_rights(self, namespace: str | None, refused: dict[str, str]) -> None:
        """Add a namespace of which no status may be written: what is decided would reach nobody.

        Raises:
            KubernetesError: that is so everywhere.
        """
        if namespace in refused or self.kube.may(
            "patch", MODEL_DEPLOYMENTS, namespace, sub="status"
        ):
            return
        why = "no right to patch modeldeployments/status"
        if namespace is None:
            raise KubernetesError(why, status=HTTPStatus.FORBIDDEN)
        refused[namespace] = why
        if len(refused) == len(self.namespaces):
            raise KubernetesError(f"{why} in any namespace", status=HTTPStatus.FORBIDDEN)

    def _list(self, resource: Resource, selector: str, refused: dict[str, str]) -> Iterator[Object]:
        """Yield a kind's objects; a namespace that may not be read is added to ``refused``."""
        for namespace in self.namespaces or (None,):
            try:
                yield from self.kube.list(
                    resource.path(namespace),
                    label_selector=selector,
                    reduce=slim_model if resource is MODEL_DEPLOYMENTS else reduce_object,
                )
            except KubernetesError as error:
                if namespace is None or error.status not in NAMESPACE_GONE:
                    raise
                refused[namespace] = str(error)
                if len(refused) == len(self.namespaces):
                    raise
