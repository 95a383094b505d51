"""An object of a live cluster with the Deployment that runs for it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tonnage.api.objects import InvalidSpecError, ModelDeployment, parse_model_deployment
from tonnage.cli.console import NO_RIGHTS, Failure, remark
from tonnage.cli.read.live import LiveCluster, failures
from tonnage.cli.read.manifest import ManifestObject
from tonnage.cluster.kube import CONFIG_MAPS, DEPLOYMENTS, MODEL_DEPLOYMENTS
from tonnage.control.input.state import DeploymentView
from tonnage.fleet.views import deployment_view


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveObject:
    """One ModelDeployment as it stands in the cluster."""

    model: ModelDeployment
    deployment: Mapping[str, Any] | None
    """Of its own name, or its scale target; None: there is none, or no right to read it."""
    config: str | None
    """The config.json that its spec refers to."""
    planned: tuple[float, float, float] | None = None
    """Overhead factor, bandwidth and prefill efficiency that the operator plans with."""

    @property
    def view(self) -> DeploymentView | None:
        return deployment_view(self.deployment) if self.deployment else None

    @property
    def target(self) -> ManifestObject | None:
        """The Deployment as a file would hold it."""
        if self.deployment is None:
            return None
        return ManifestObject(source="cluster", line=0, content=self.deployment)


def read_live(cluster: LiveCluster, *, namespace: str, name: str) -> LiveObject | None:
    """Return an object with what runs for it; None: there is none of that name.

    Raises:
        Failure: the cluster cannot be asked, or this version cannot read the object.
    """
    with failures(f"get modeldeployments {name} in namespace {namespace}"):
        found = cluster.api.get(MODEL_DEPLOYMENTS.path(namespace, name))
    if found is None:
        return None
    try:
        model = parse_model_deployment(found, tolerate_unknown=True)
    except InvalidSpecError as error:
        raise Failure(f"{namespace}/{name} in the cluster: {error}") from error
    target = model.spec.scale_target
    return LiveObject(
        model=model,
        deployment=_deployment(cluster, namespace, target.name if target else name),
        config=_config(cluster, model),
        planned=_planned_constants(found),
    )


def _deployment(cluster: LiveCluster, namespace: str, name: str) -> Mapping[str, Any] | None:
    try:
        with failures(f"get deployments {name} in namespace {namespace}"):
            return cluster.api.get(DEPLOYMENTS.path(namespace, name))
    except Failure as failure:
        if failure.exit_code != NO_RIGHTS:
            raise
        remark(f"Note: {failure.message}; which pods roll is taken from the specs alone")
        return None


def _planned_constants(found: Mapping[str, Any]) -> tuple[float, float, float] | None:
    """Return the constants in the status; None where no plan was made, or another version's."""
    calibration = (found.get("status") or {}).get("calibration") or {}
    names = ("overheadFactor", "bandwidthEfficiency", "prefillEfficiency")
    overhead, bandwidth, prefill = (
        (calibration.get(name) or {}).get("planned") or 0.0 for name in names
    )
    is_known = min(overhead, bandwidth, prefill) > 0
    return (float(overhead), float(bandwidth), float(prefill)) if is_known else None


def _config(cluster: LiveCluster, model: ModelDeployment) -> str | None:
    source = model.spec.model.config
    if source is None:
        return None
    reference = source.config_map_key_ref
    with failures(f"get configmaps {reference.name} in namespace {model.namespace}"):
        found = cluster.api.get(CONFIG_MAPS.path(model.namespace, reference.name)) or {}
    text = (found.get("data") or {}).get(reference.key)
    return text if isinstance(text, str) else None


def owned_fields(view: DeploymentView) -> Mapping[str, Any] | None:
    """Return what our field manager owns of the template, as the API server says."""
    found: Mapping[str, Any] | None = json.loads(view.template_fields)
    return found
