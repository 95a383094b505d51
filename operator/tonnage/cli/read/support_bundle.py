"""The parts of a bug report, read from a cluster one by one, so that one may fail."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from tonnage.cli.read.live import LiveCluster, Resource, leases_of, read_all
from tonnage.cli.read.nested import block, objects
from tonnage.cluster.calls import KubernetesError
from tonnage.cluster.kube import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    EVENTS,
    LEADER_WORKER_SETS,
    PODS,
    REPLICA_SETS,
    STATEFUL_SETS,
)
from tonnage.cluster.kube import Resource as Kind
from tonnage.cluster.lease import NAME as LEASE
from tonnage.fleet.calibration import NAME as CALIBRATION
from tonnage.manifests.names import MANAGED_LABEL, NAME_LABEL
from tonnage.units import MIB

OPERATOR: Final = "app.kubernetes.io/name=tonnage"
PORT: Final = "http"
"""Name of the port of the operator's probes and metrics."""
EVENTS_FILE: Final = "events.yaml"
METRICS_ENDING: Final = ".metrics.txt"
MOST_LOG_CHARS: Final = 4 * MIB
"""The last of a log: what is before them is left out."""
LOG_LINES: Final = "5000"
VOLUMES: Final = frozenset({"settings", "gpus", "calibrations"})
"""What else an administrator mounts may hold anything."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is to be read."""

    namespace: str | None
    """Of the ModelDeployments; None: all."""
    operator_namespace: str
    operator_selector: str = OPERATOR


@dataclass(slots=True)
class SupportBundle:
    """What was read, as it is: of it a report writes what ``cli.results.shown`` names."""

    cluster: LiveCluster
    objects: dict[str, Sequence[Resource]] = field(default_factory=dict)
    """By the file that they are to be in."""
    texts: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def attempt(self, what: str, read: Callable[[], T], otherwise: T) -> T:
        try:
            return read()
        except KubernetesError as error:
            self.problems.append(f"{what}: {error}")
            return otherwise

    def list(self, what: str, path: str, selector: str = "") -> list[Resource]:
        api = self.cluster.api
        return self.attempt(what, lambda: list(api.list(path, label_selector=selector)), [])

    def keep(self, file: str, found: Iterable[Resource]) -> None:
        self.objects[file] = list(found)

    def text(self, file: str, path: str, **query: str) -> None:
        content = self.attempt(file, lambda: self.cluster.api.text(path, **query), None)
        if content is not None:
            self.texts[file] = content[-MOST_LOG_CHARS:]


def read_evidence(cluster: LiveCluster, wanted: Wanted) -> SupportBundle:
    """Read what may be read.

    Raises:
        Failure: the cluster does not answer, or has no ModelDeployments to be read.
    """
    models = read_all(cluster, namespace=wanted.namespace)
    reading = SupportBundle(cluster)
    reading.keep("modeldeployments.yaml", models)
    _read_serving(reading, wanted.namespace, models)
    _read_operator(reading, wanted)
    return reading


def _read_serving(
    reading: SupportBundle, namespace: str | None, models: Sequence[Resource]
) -> None:
    """Read what serves: workloads and pods of ours with what joins them, and Events about them."""
    names = {_name(each) for each in models}

    def keep(kind: Kind, selector: str = f"{MANAGED_LABEL}=true") -> None:
        found = reading.list(kind.plural, kind.path(namespace), selector)
        if kind is STATEFUL_SETS:  # those of LeaderWorkerSets have none of our labels
            found = [
                each for each in found if block(each, "metadata", "labels").get(NAME_LABEL) in names
            ]
        names.update(_name(each) for each in found)
        reading.keep(f"{kind.plural}.yaml", found)

    for kind in (DEPLOYMENTS, REPLICA_SETS, PODS):
        keep(kind)
    if reading.attempt("groups", lambda: reading.cluster.api.serves(LEADER_WORKER_SETS), False):
        keep(LEADER_WORKER_SETS)
        keep(STATEFUL_SETS, NAME_LABEL)
    events = reading.list("events", EVENTS.path(namespace))
    reading.keep(EVENTS_FILE, (each for each in events if _about(each) in names))


def _about(event: Resource) -> str:
    return str(block(event, "regarding").get("name", ""))


def _read_operator(reading: SupportBundle, wanted: Wanted) -> None:
    namespace, selector = wanted.operator_namespace, wanted.operator_selector
    found = reading.list("operator", DEPLOYMENTS.path(namespace), selector)
    pods = reading.list("operator's pods", PODS.path(namespace), selector)
    if not pods:
        reading.problems.append(
            f"no pod of the operator in namespace {namespace} with {selector}: see "
            "--operator-namespace and --operator-selector"
        )
    reading.keep("operator/deployments.yaml", found)
    reading.keep("operator/pods.yaml", pods)
    reading.keep("operator/settings.yaml", _config_maps(reading, namespace, _settings_of(found)))
    reading.keep("operator/calibration.yaml", _config_maps(reading, namespace, [CALIBRATION]))
    _read_lease(reading, namespace)
    for pod in pods:
        _read_pod(reading, namespace, pod)


def _read_lease(reading: SupportBundle, namespace: str) -> None:
    """Read who leads, or led last; where there is no Lease the file says so."""
    file, before = "operator/lease.yaml", len(reading.problems)
    none: list[Resource] = []
    leases = reading.attempt("lease", lambda: leases_of(reading.cluster, namespace), none)
    if leases:
        reading.keep(file, leases)
        return
    if len(reading.problems) == before:
        reading.problems.append(
            f"there is no Lease {LEASE} in namespace {namespace}, and none of an operator that "
            "serves all namespaces: none has run, or its namespace was deleted"
        )
    reading.texts[file] = f"# {reading.problems[-1]}\n"


def _config_maps(
    reading: SupportBundle, namespace: str, names: Iterable[str]
) -> Iterator[Resource]:
    """Yield the ConfigMaps of these names that are there."""
    for name in names:
        path = CONFIG_MAPS.path(namespace, name)
        found = reading.attempt(name, lambda path=path: reading.cluster.api.get(path), None)  # type: ignore[misc]
        if found is not None:
            yield found


def _settings_of(deployments: Iterable[Resource]) -> Iterator[str]:
    """Yield the names of the ConfigMaps of the chart's own that the operator mounts."""
    for each in deployments:
        for volume in objects(block(each, "spec", "template", "spec"), "volumes"):
            config_map = block(volume, "configMap")
            if volume.get("name") in VOLUMES and config_map.get("name"):
                yield str(config_map["name"])


def _read_pod(reading: SupportBundle, namespace: str, pod: Resource) -> None:
    name = _name(pod)
    log = PODS.path(namespace, name, "log")
    reading.text(f"operator/{name}.log", log, tailLines=LOG_LINES)
    statuses = objects(block(pod, "status"), "containerStatuses")
    if any(each.get("restartCount") for each in statuses):
        reading.text(f"operator/{name}.previous.log", log, tailLines=LOG_LINES, previous="true")
    port = next(_ports(pod), None)
    if port is not None:
        page = PODS.path(namespace, f"{name}:{port}", "proxy/metrics")
        reading.text(f"operator/{name}{METRICS_ENDING}", page)


def _ports(pod: Resource) -> Iterator[int]:
    for container in objects(block(pod, "spec"), "containers"):
        for port in objects(container, "ports"):
            if port.get("name") == PORT:
                yield int(port["containerPort"])


def _name(found: Resource) -> str:
    return str(block(found, "metadata").get("name"))
