"""Whether an operator keeps what a cluster's objects say up to date, by its Lease."""

from collections.abc import Callable
from datetime import datetime
from typing import Final

from tonnage.cli.read.live import LiveCluster, Resource
from tonnage.cli.read.nested import block
from tonnage.cluster.errors import KubernetesError
from tonnage.cluster.kube import LEASES
from tonnage.cluster.lease import CLASS_LABEL, DURATION_S, NAME
from tonnage.units import format_s

USUAL: Final = "tonnage-system"
"""Namespace that the chart is installed in, where nobody says another."""
OVERDUE_S: Final = 4.0 * DURATION_S
"""Without a renewal, after which nobody leads: clocks differ, and a restart takes its time."""


def leases_of(cluster: LiveCluster, namespace: str = USUAL) -> list[Resource]:
    """Return the Leases of operators that serve all namespaces, and the one of a namespace.

    Those of a release in another namespace are the same Lease, where they serve the same class.

    Raises:
        KubernetesError: they may not be read.
    """
    shared = cluster.api.list(LEASES.path(None), label_selector=CLASS_LABEL)
    named: list[Resource] = [each for each in shared if each["metadata"].get("name") == NAME]
    if any(each["metadata"].get("namespace") == namespace for each in named):
        return named
    own = cluster.api.get(LEASES.path(namespace, NAME))
    return [*named, *([own] if own else [])]


def stale_note(read: Callable[[], list[Resource]], *, now_s: float) -> str | None:
    """Return a note that no operator renews its Lease, if none does; ``read``: those there are.

    The newest renewal counts: where several operators serve a cluster it says that one runs.
    """
    try:
        leases = read()
    except KubernetesError as error:
        return f"whether an operator runs is not known, its Lease cannot be read: {error}"
    times = filter(None, (block(each, "spec").get("renewTime") for each in leases))
    renewed_s = max((datetime.fromisoformat(each).timestamp() for each in times), default=None)
    if renewed_s is None:
        return "no operator has had a Lease here: showing the last written values"
    age_s = now_s - renewed_s
    if age_s <= OVERDUE_S:
        return None
    return f"no operator has renewed its Lease for {format_s(age_s)}: showing the last known values"
