"""An object of a live cluster with what runs for it: a Deployment or a LeaderWorkerSet."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from tonnage.api.objects import InvalidSpecError, ModelDeployment, parse_model_deployment
from tonnage.catalog.config.keys.decoder import ModelConfigError
from tonnage.catalog.models import with_second_file
from tonnage.cli.console import NO_RIGHTS, Failure, failing, remark
from tonnage.cli.read.live import LiveCluster, failures
from tonnage.cli.read.manifest import ManifestObject
from tonnage.cli.read.nested import block
from tonnage.cluster.kube import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    LEADER_WORKER_SETS,
    MODEL_DEPLOYMENTS,
    Resource,
)
from tonnage.control.input.state import DeploymentView
from tonnage.estimate.posterior import Three
from tonnage.fleet.children import RESOURCES
from tonnage.fleet.views import workload_view
from tonnage.manifests.workload import WORKLOADS

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveObject:
    """One ModelDeployment as it stands in the cluster."""

    model: ModelDeployment
    workload: Mapping[str, Any] | None
    """Of its own name, or its scale target; None: there is none, or no right to read it."""
    config: str | None
    """The config.json that its spec refers to."""
    planned: Three | None = None

    @property
    def view(self) -> DeploymentView | None:
        found = self.workload
        return workload_view(found, WORKLOADS[found["kind"]]) if found else None

    @property
    def target(self) -> ManifestObject | None:
        """The Deployment or LeaderWorkerSet as a file would hold it."""
        if self.workload is None:
            return None
        return ManifestObject(source="cluster", line=0, content=self.workload)


def read_live(cluster: LiveCluster, *, namespace: str, name: str) -> LiveObject | None:
    """Return an object with what runs for it; None: there is none of that name.

    Raises:
        Failure: the cluster cannot be asked, or this version cannot read the object.
    """
    with failures(f"get modeldeployments {name} in namespace {namespace}"):
        found = cluster.api.get(MODEL_DEPLOYMENTS.path(namespace, name))
    if found is None:
        return None
    with failing(InvalidSpecError, where=f"{namespace}/{name} in the cluster: "):
        model = parse_model_deployment(found, tolerate_unknown=True)
    target = model.spec.scale_target
    return LiveObject(
        model=model,
        workload=(
            _read(cluster, RESOURCES[target.kind], namespace, target.name)
            if target
            else _workload(cluster, namespace, name)
        ),
        config=_config(cluster, model),
        planned=_planned_constants(found),
    )


def _workload(cluster: LiveCluster, namespace: str, name: str) -> Mapping[str, Any] | None:
    found = _read(cluster, DEPLOYMENTS, namespace, name)
    if found is not None:
        return found
    kind = LEADER_WORKER_SETS
    is_served = _answer(f"ask whether {kind.plural} are served", lambda: cluster.api.serves(kind))
    return _read(cluster, kind, namespace, name) if is_served else None


def _read(
    cluster: LiveCluster, kind: Resource, namespace: str, name: str
) -> Mapping[str, Any] | None:
    request = f"get {kind.plural} {name} in namespace {namespace}"
    return _answer(request, lambda: cluster.api.get(kind.path(namespace, name)))


def _answer(request: str, ask: Callable[[], Answer]) -> Answer | None:
    """Return what the cluster answers; None, with a note, where we have no right to ask."""
    try:
        with failures(request):
            return ask()
    except Failure as failure:
        if failure.exit_code != NO_RIGHTS:
            raise
        remark(f"Note: {failure.message}; which pods roll is read from the specs alone")
        return None


def _planned_constants(found: Mapping[str, Any]) -> Three | None:
    """Return the constants in the status; None where no plan was made, or another version's."""
    names = ("overheadFactor", "bandwidthEfficiency", "prefillEfficiency")
    overhead, bandwidth, prefill = (
        float(block(found, "status", "calibration", name).get("planned") or 0.0) for name in names
    )
    planned = overhead, bandwidth, prefill
    return planned if min(planned) > 0 else None


def _config(cluster: LiveCluster, model: ModelDeployment) -> str | None:
    source = model.spec.model.config
    if source is None:
        return None
    reference = source.config_map_key_ref
    with failures(f"get configmaps {reference.name} in namespace {model.namespace}"):
        found = cluster.api.get(CONFIG_MAPS.path(model.namespace, reference.name))
    data = block(found, "data")
    text = data.get(reference.key)
    with failing(ModelConfigError, where=f"ConfigMap {reference.name}: "):
        return with_second_file(text, data.get) if isinstance(text, str) else None
