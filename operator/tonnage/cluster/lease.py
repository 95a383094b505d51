"""One writer at a time: a Lease, held on a monotonic clock and checked before every write.

The client library's elector lets a hung renewal go on leading, so this one is our own: leading
ends when the renewal is overdue, whether or not anything answered.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from tonnage.cluster.errors import ConflictError, WorldError
from tonnage.cluster.kube import LEASES, KubeApi

DURATION_S = 15
RENEW_S = 5.0
NAME = "tonnage-operator"
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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kube, self._identity, self._clock = kube, identity, clock
        self._namespace = namespace
        self._renewed_at: float | None = None
        self.holder: str | None = None
        """Who held the Lease when it was last read."""
        self.problem: str | None = None
        """Why it was not read or written the last time, if so."""
        self._seen: tuple[str, float] | None = None
        """Another holder's renewal and when we first saw it: its clock is not ours."""

    def is_leader(self) -> bool:
        """Tell whether the Lease was renewed recently enough to write now."""
        return self._renewed_at is not None and self._clock() - self._renewed_at < DURATION_S

    def maintain(self) -> bool:
        """Acquire or renew the Lease when that is due; return whether we lead."""
        if self._renewed_at is not None and self._clock() - self._renewed_at < RENEW_S:
            return True
        asked_at = self._clock()
        try:
            held = self._try()
        except ConflictError:
            return self.is_leader()
        except WorldError as error:
            self.problem = str(error)
            return self.is_leader()
        self.problem = None
        self._renewed_at = asked_at if held else None
        return held

    def release(self) -> None:
        """Let the next process lead at once."""
        if not self.is_leader():
            return
        lease = self._kube.get(self._path(NAME))
        if lease and (lease.get("spec") or {}).get("holderIdentity") == self._identity:
            lease["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
            self._kube.replace(self._path(NAME), lease)
        self._renewed_at = None

    def _path(self, name: str | None = None) -> str:
        return LEASES.path(self._namespace, name)

    def _try(self) -> bool:
        lease = self._kube.get(self._path(NAME))
        if lease is None:
            metadata = {"name": NAME, "namespace": self._namespace}
            self._kube.create(
                self._path(),
                {
                    "apiVersion": "coordination.k8s.io/v1",
                    "kind": "Lease",
                    "metadata": metadata,
                    "spec": self._spec({}),
                },
            )
            self.holder = self._identity
            return True
        spec = lease.get("spec") or {}
        self.holder = spec.get("holderIdentity") or None
        if not self._may_take(spec):
            return False
        lease["spec"] = self._spec(spec)
        self._kube.replace(self._path(NAME), lease)  # carries its resourceVersion
        self.holder = self._identity
        return True

    def _may_take(self, spec: dict[str, Any]) -> bool:
        holder, renewal = spec.get("holderIdentity"), str(spec.get("renewTime"))
        if not holder or holder == self._identity:
            return True
        if self._seen is None or self._seen[0] != renewal:
            self._seen = (renewal, self._clock())
            return False
        return self._clock() - self._seen[1] > _duration_s(spec)

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


def _duration_s(spec: dict[str, Any]) -> float:
    """Return for how long a holder leads without a renewal: no longer than we would."""
    claimed_s = float(spec.get("leaseDurationSeconds") or DURATION_S)
    return claimed_s if 0 < claimed_s < DURATION_S else DURATION_S
