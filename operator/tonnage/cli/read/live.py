"""ModelDeployments of a live cluster, read and never written; every failure is one line."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from typing import Any, Final

import yaml
from kubernetes import config

from tonnage.api.base import GROUP, PLURAL
from tonnage.cli.console import EXIT_INFEASIBLE, NO_CLUSTER, NO_CRD, NO_RIGHTS, Failure
from tonnage.cli.read.manifest import block
from tonnage.cluster.calls import KubernetesError
from tonnage.cluster.kube import LEASES, MODEL_DEPLOYMENTS, KubeApi, load_client
from tonnage.cluster.lease import CLASS_LABEL, DURATION_S, NAME
from tonnage.units import format_s

Resource = Mapping[str, Any]

NO_KUBECONFIG = (yaml.YAMLError, TypeError, ValueError, AttributeError)
"""What the client's loader raises for a file that is something else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveCluster:
    """A connection, and the namespace that its context names."""

    api: KubeApi
    namespace: str


def connect(*, kubeconfig: str | None, context: str | None) -> LiveCluster:
    """Connect as kubectl would, or with the rights of the pod that this runs in."""
    try:
        api = KubeApi(load_client(kubeconfig, context))
        return LiveCluster(api=api, namespace=_namespace(kubeconfig, context))
    except (KubernetesError, *NO_KUBECONFIG) as error:
        named = f"kubeconfig {kubeconfig}: " if kubeconfig else ""
        raise Failure(f"{named}{error}", NO_CLUSTER) from error


def _namespace(kubeconfig: str | None, context: str | None) -> str:
    try:
        contexts, active = config.list_kube_config_contexts(  # type: ignore[no-untyped-call]
            config_file=kubeconfig
        )
    except config.ConfigException:
        return "default"  # in a pod there is no kubeconfig
    chosen = next((each for each in contexts if each["name"] == context), active)
    return str(chosen["context"].get("namespace") or "default")


def read_one(cluster: LiveCluster, *, namespace: str, name: str) -> Resource:
    with failures(f"get {PLURAL}.{GROUP} {name} in namespace {namespace}"):
        found = cluster.api.get(MODEL_DEPLOYMENTS.path(namespace, name))
        if found is None and not cluster.api.serves(MODEL_DEPLOYMENTS):
            raise _no_kind()
    if found is None:
        raise Failure(
            f"there is no ModelDeployment {name} in namespace {namespace}", EXIT_INFEASIBLE
        )
    return found


@contextmanager
def failures(request: str) -> Iterator[None]:
    """Turn what can go wrong with a cluster into one line and an exit code."""
    try:
        yield
    except KubernetesError as error:
        match error.status:
            case 0:  # rather what the connection failed with than that it was tried again
                cause = getattr(error.__cause__, "reason", None) or error
                raise Failure(f"no cluster answers: {cause}", NO_CLUSTER) from error
            case HTTPStatus.UNAUTHORIZED | HTTPStatus.FORBIDDEN:
                raise Failure(f"no right to {request}: {error}", NO_RIGHTS) from error
            case HTTPStatus.NOT_FOUND:
                raise _no_kind() from error
            case _:
                raise Failure(f"the API server refused: {error}", NO_CLUSTER) from error


def _no_kind() -> Failure:
    return Failure(
        f"the cluster has no {PLURAL}.{GROUP}: install the chart, or the kind alone with "
        "'tonnage crd | kubectl apply -f -'",
        NO_CRD,
    )


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
