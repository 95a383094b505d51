"""One writer at a time: a Lease, held on a monotonic clock, which every write asks.

The client library's elector lets a hung renewal go on leading, so this one is our own: leading
ends when the renewal is overdue, whether or not anything answered.

Releases that serve the whole cluster and one class of objects contend for one Lease, whatever
their namespaces: the oldest that is labelled with the class, by the API server's word.
"""

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from tonnage.cluster.calls import ConflictError, Object, WorldError, WriteFencedError
from tonnage.cluster.kube import LEASES, KubeApi

DURATION_S = 15
RENEW_S = 5.0
NAME = "tonnage-operator"
CLASS_LABEL = "tonnage.dev/operator-class"
"""On the Lease of a release that serves the whole cluster; empty: of those without a class."""
SETTLE_S = RENEW_S
"""For so long a Lease of a class that nobody ever held is looked at before it is taken: by then one
that is made at the same time and counts as older, by another clock say, is seen."""
MOST_TRANSITIONS = 2_147_483_647
"""That the API server takes."""


class Leadership:
    """Whether this process may write."""

    def __init__(
        self,
        kube: KubeApi,
        *,
        namespace: str,
        identity: str,
        cluster_class: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``cluster_class``: what is served in the whole cluster; None: some namespaces are."""
        self._kube, self._identity, self._clock = kube, identity, clock
        self._namespace, self._class = namespace, cluster_class
        self._place = namespace
        """Of the Lease that we contend for."""
        self._unheld: tuple[str, float] | None = None
        """The Lease of our class that nobody ever held, by UID, and when we first saw it."""
        self._renewed_at: float | None = None
        self.holder: str | None = None
        """Who held the Lease when it was last read."""
        self.problem: str | None = "the Lease has not been read yet"
        """Why it was not read or written the last time, if so."""
        self.is_unanswered = False
        """That was because the API server is busy or away."""
        self._seen: tuple[str, float] | None = None
        """Another holder's renewal and when we first saw it: its clock is not ours."""

    def is_leader(self) -> bool:
        """Tell whether the Lease was renewed recently enough to write now."""
        return self._renewed_at is not None and self._clock() - self._renewed_at < DURATION_S

    def check(self) -> None:
        """Stop before a write that is not ours to make, by our clock: the API server is not asked.

        Who takes the Lease by force is seen at the next renewal; our own wait for the deadline.

        Raises:
            WriteFencedError: somebody else may lead by now.
        """
        if not self.is_leader():
            raise WriteFencedError("the Lease was lost: nothing is written")

    def maintain(self) -> bool:
        """Acquire or renew the Lease when that is due; return whether we lead."""
        if self._renewed_at is not None and self._clock() - self._renewed_at < RENEW_S:
            return True
        asked_at = self._clock()
        try:
            has_lease = self._try()
        except ConflictError:
            return self.is_leader()
        except WorldError as error:
            self.problem, self.is_unanswered = str(error), error.is_overload
            return self.is_leader()
        self.problem, self.is_unanswered = None, False
        self._renewed_at = asked_at if has_lease else None
        return has_lease

    def release(self) -> None:
        """Let the next process lead at once."""
        if not self.is_leader():
            return
        path = LEASES.path(self._place, NAME)
        lease = self._kube.get(path)
        if lease and (lease.get("spec") or {}).get("holderIdentity") == self._identity:
            lease["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
            self._kube.replace(path, lease)
        self._renewed_at = None

    @property
    def _own_path(self) -> str:
        return LEASES.path(self._namespace, NAME)

    def _try(self) -> bool:
        if self._class is None:
            lease = self._kube.get(self._own_path)
            if lease is not None:  # no other release is to look at it
                (lease["metadata"].get("labels") or {}).pop(CLASS_LABEL, None)
        else:
            lease = self._oldest(self._class)
            if lease is None:
                self._offer(self._class)
                return False
        if lease is None:
            self._make(self._spec({}))
            self.holder = self._identity
            return True
        spec = lease.get("spec") or {}
        self.holder = spec.get("holderIdentity") or None
        if self._is_settling(lease) or not self._may_take(spec):
            return False
        lease["spec"] = self._spec(spec)
        # It carries its resourceVersion.
        self._kube.replace(LEASES.path(self._place, NAME), lease)
        self.holder = self._identity
        return True

    def _oldest(self, cluster_class: str) -> Object | None:
        """Return the Lease of a class, by which all of its releases take turns."""
        selector = f"{CLASS_LABEL}={cluster_class}"
        leases = self._kube.list(LEASES.path(None), label_selector=selector)
        named = [each for each in leases if each["metadata"]["name"] == NAME]
        oldest = min(named, key=_age_of, default=None)
        place = oldest["metadata"]["namespace"] if oldest else self._namespace
        if place != self._place:
            self._place, self._seen = place, None
        return oldest

    def _offer(self, cluster_class: str) -> None:
        """Put up a Lease for our class, for others to see before anybody holds it."""
        lease, label = self._kube.get(self._own_path), {CLASS_LABEL: cluster_class}
        self.holder = None
        if lease is None:
            self._make({}, labels=label)
            return
        lease["metadata"]["labels"] = (lease["metadata"].get("labels") or {}) | label
        self._kube.replace(self._own_path, lease)

    def _make(self, spec: Mapping[str, Any], **metadata: Any) -> None:
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": NAME, "namespace": self._namespace} | metadata,
            "spec": spec,
        }
        self._kube.create(LEASES.path(self._namespace), body)

    def _is_settling(self, lease: Object) -> bool:
        """Tell whether an older one may turn up yet, which another process would take."""
        if self._class is None or (lease.get("spec") or {}).get("acquireTime"):
            return False
        uid = lease["metadata"]["uid"]
        if self._unheld is None or self._unheld[0] != uid:
            self._unheld = uid, self._clock()
        return self._clock() - self._unheld[1] < SETTLE_S

    def _may_take(self, spec: dict[str, Any]) -> bool:
        holder, renewal = spec.get("holderIdentity"), str(spec.get("renewTime"))
        if not holder or holder == self._identity:
            return True
        if self._seen is None or self._seen[0] != renewal:
            self._seen = (renewal, self._clock())
            return False
        # Without a renewal a holder leads no longer than we would.
        claimed_s = float(spec.get("leaseDurationSeconds") or DURATION_S)
        duration_s = claimed_s if 0 < claimed_s < DURATION_S else DURATION_S
        return self._clock() - self._seen[1] > duration_s

    def _spec(self, before: dict[str, Any]) -> dict[str, Any]:
        now = datetime.fromtimestamp(time.time(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        is_ours = before.get("holderIdentity") == self._identity
        return {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": DURATION_S,
            "acquireTime": (before.get("acquireTime") if is_ours else None) or now,
            "renewTime": now,
            "leaseTransitions": min(
                MOST_TRANSITIONS, int(before.get("leaseTransitions") or 0) + (not is_ours)
            ),
        }


def _age_of(lease: Object) -> tuple[str, str]:
    """Return what the oldest has least of; within a second the first namespace by name."""
    metadata = lease["metadata"]
    return metadata.get("creationTimestamp") or "", metadata["namespace"]
