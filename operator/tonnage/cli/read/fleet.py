"""What runs under a name in a cluster, as manifests that a plan can be made of."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeVar

from tonnage.api.base import KIND
from tonnage.api.objects import InvalidSpecError, ModelDeployment, parse_model_deployment
from tonnage.catalog.config.keys.decoder import ModelConfigError
from tonnage.catalog.models import with_second_file
from tonnage.cli.console import EXIT_INFEASIBLE, NO_RIGHTS, Failure, failing, remark
from tonnage.cli.read.live import LiveCluster, failures
from tonnage.cli.read.manifest import ManifestObject, Manifests, block, sort_by_kind
from tonnage.cli.read.spec_overrides import MOST_REPLICAS, longest_context
from tonnage.cluster.kube import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    LEADER_WORKER_SETS,
    MODEL_DEPLOYMENTS,
    NODES,
    PODS,
    Resource,
)
from tonnage.control.input.state import DeploymentView
from tonnage.estimate.posterior import Three
from tonnage.fleet.children import RESOURCES
from tonnage.fleet.views import deployment_view
from tonnage.manifests.arguments import engine_flags
from tonnage.manifests.children import flags_from_annotation
from tonnage.manifests.names import API_VERSION, NAME_LABEL, WORKLOADS
from tonnage.manifests.pod import PRODUCT_LABEL
from tonnage.manifests.target import TargetEngine, engine_of
from tonnage.sizing.request import Flags
from tonnage.units import engine_integer

Answer = TypeVar("Answer")
Object = Mapping[str, Any]
ROLLS: Final = "which pods roll is read from the specs alone"
USUAL_CONTEXT: Final = 8192
"""Of a model that is not in the catalogue, where no flag says it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveObject:
    """One ModelDeployment as it is in the cluster."""

    model: ModelDeployment
    workload: Mapping[str, Any] | None
    """Of its own name, or its scale target; None: there is none, or no right to read it."""
    config: str | None
    """The config.json that its spec refers to."""
    planned: Three | None = None

    @property
    def view(self) -> DeploymentView | None:
        found = self.workload
        return deployment_view(found, WORKLOADS[found["kind"]]) if found else None


def read_live(cluster: LiveCluster, *, namespace: str, name: str) -> LiveObject | None:
    """Return an object with what runs for it; None: there is none of that name.

    Raises:
        Failure: the cluster cannot be asked, or this version cannot read the object.
    """
    found = _get(cluster, MODEL_DEPLOYMENTS, namespace, name)
    return _live(cluster, found) if found else None


def _live(cluster: LiveCluster, found: Object) -> LiveObject:
    namespace, name = found["metadata"]["namespace"], found["metadata"]["name"]
    with failing(InvalidSpecError, where=f"{namespace}/{name} in the cluster: "):
        model = parse_model_deployment(found, tolerate_unknown=True)
    target, groups = model.spec.scale_target, LEADER_WORKER_SETS
    kind, workload_name = (RESOURCES[target.kind], target.name) if target else (DEPLOYMENTS, name)
    workload = _if_allowed(lambda: _get(cluster, kind, namespace, workload_name), ROLLS)
    if not (workload or target) and _if_allowed(lambda: _serves(cluster, groups), ROLLS):
        workload = _if_allowed(lambda: _get(cluster, groups, namespace, name), ROLLS)
    return LiveObject(
        model=model,
        workload=workload,
        config=_config(cluster, model),
        planned=_planned_constants(found),
    )


def _get(cluster: LiveCluster, kind: Resource, namespace: str, name: str) -> Object | None:
    with failures(f"get {kind.plural} {name} in namespace {namespace}"):
        return cluster.api.get(kind.path(namespace, name))


def _serves(cluster: LiveCluster, kind: Resource) -> bool:
    with failures(f"ask whether {kind.plural} are served"):
        return cluster.api.serves(kind)


def _if_allowed(ask: Callable[[], Answer], what_then: str = "") -> Answer | None:
    """Return what the cluster answers; None where we have no right to ask, with a note if any."""
    try:
        return ask()
    except Failure as failure:
        if failure.exit_code != NO_RIGHTS:
            raise
        if what_then:
            remark(f"Note: {failure.message}; {what_then}")
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
    data = block(_get(cluster, CONFIG_MAPS, model.namespace, reference.name), "data")
    text = data.get(reference.key)
    with failing(ModelConfigError, where=f"ConfigMap {reference.name}: "):
        return with_second_file(text, data.get) if isinstance(text, str) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningFleet:
    """A ModelDeployment, or one made of a workload, and what runs for it."""

    manifests: Manifests
    view: DeploymentView
    config: str | None = None
    """The config.json that its spec refers to."""
    planned: Three | None = None
    """The constants that the operator plans it with."""
    flags: Flags | None = None
    """As the operator recorded them; None: those of its arguments count."""


class FleetReader(NamedTuple):
    """Reads what has a name in a namespace."""

    cluster: LiveCluster
    namespace: str
    name: str

    def read(self, model_id: str | None, gpu: str | None) -> RunningFleet:
        """Return what runs; ``model_id``, ``gpu``: where its manifest does not say them.

        Raises:
            Failure: there is nothing of that name, or it does not say which model or GPUs.
        """
        if found := _if_allowed(lambda: self._get(MODEL_DEPLOYMENTS, self.name)):
            return self._of_model(found)
        body = self._get(DEPLOYMENTS, self.name) or _if_allowed(
            lambda: self._get(LEADER_WORKER_SETS, self.name)
        )
        if body is None:
            raise Failure(
                f"there is no {KIND}, {' or '.join(WORKLOADS)} {self.name} in namespace "
                f"{self.namespace}",
                EXIT_INFEASIBLE,
            )
        return self._of_workload(body, model_id, gpu)

    def _get(self, kind: Resource, name: str) -> Object | None:
        return _get(self.cluster, kind, self.namespace, name)

    def _config_maps(self, workload: Object) -> list[Object]:
        """Return those that decide the arguments of a workload's engine."""
        kind = WORKLOADS[workload["kind"]]
        names = engine_of(kind, block(workload, "spec", kind.template)).config_maps
        return [each for name in names if (each := self._get(CONFIG_MAPS, name))]

    def _of_model(self, found: Object) -> RunningFleet:
        live = _live(self.cluster, found)
        if live.model.spec.topology:
            raise Failure(f"{self.name} has two roles: take {self.name}-prefill or -decode")
        if live.view is None:
            raise Failure(f"nothing runs for {self.name}; plan -f takes its manifest")
        target = live.workload if live.model.spec.scale_target else None
        objects = (found, target, *self._config_maps(target)) if target else (found,)
        return RunningFleet(
            manifests=_manifests(objects),
            view=live.view,
            config=live.config,
            planned=live.planned,
            flags=None if target else flags_from_annotation(live.view.flags or ""),
        )

    def _of_workload(self, body: Object, model_id: str | None, gpu: str | None) -> RunningFleet:
        kind = WORKLOADS[body["kind"]]
        template = block(body, "spec", kind.template)
        maps = self._config_maps(body)
        data = {each["metadata"]["name"]: block(each, "data") for each in maps}
        engine = engine_of(kind, template, data)
        found = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"name": self.name, "namespace": self.namespace},
            "spec": {
                **_model(engine, model_id),
                "hardware": {"gpu": gpu or self._gpu(body, next(kind.templates(template)))},
                "scaling": {"maxReplicas": MOST_REPLICAS},
                "scaleTarget": {"kind": kind.kind, "name": self.name},
            },
        }
        return RunningFleet(
            manifests=_manifests((found, body, *maps)), view=deployment_view(body, kind)
        )

    def _gpu(self, body: Object, template: Object) -> str:
        """Return the class that pods ask for by the label of NVIDIA's operator, or run on."""
        named = block(template, "spec", "nodeSelector").get(PRODUCT_LABEL)
        found = {named} if named else set(self._products(body))
        if len(found) != 1:
            some = ", ".join(sorted(found)) or "no Ready pod runs on a node with that label"
            raise Failure(f"{self.name}: label {PRODUCT_LABEL}: {some}; name the class with --gpu")
        return str(found.pop())

    def _products(self, body: Object) -> Iterator[str]:
        labels = block(body, "spec", "selector", "matchLabels") or {NAME_LABEL: self.name}
        selector = ",".join(f"{key}={value}" for key, value in labels.items())
        with failures(f"list pods in namespace {self.namespace} and get their nodes"):
            pods = self.cluster.api.list(PODS.path(self.namespace), label_selector=selector)
            names = {name for pod in pods if (name := block(pod, "spec").get("nodeName"))}
            for name in names:
                node = self.cluster.api.get(NODES.path(None, name)) or {}
                if product := block(node, "metadata", "labels").get(PRODUCT_LABEL):
                    yield product


def _manifests(objects: Iterable[Object]) -> Manifests:
    resources = [ManifestObject(source="the cluster", line=0, content=each) for each in objects]
    return sort_by_kind(resources, [])


def _model(engine: TargetEngine, model_id: str | None) -> dict[str, Any]:
    """Return what the arguments say of the model: its name, quantized weights, longest request."""
    flags = engine_flags(engine.arguments)
    after_values = (
        word
        for before, word in pairwise(("=", *engine.arguments))
        if not word.startswith("-") and ("=" in before or not before.startswith("-"))
    )
    name = model_id or flags.get("--model") or next(after_values, None)
    if not name:
        why = engine.problem or "its arguments do not say which model"
        raise Failure(f"{why}: name the model with --model")
    try:
        tokens = engine_integer(flags.get("--max-model-len", "auto"))
    except ValueError:
        tokens = longest_context({"model": {"id": name}}) or USUAL_CONTEXT
    weights = {"weights": "fp8"} if flags.get("--quantization", flags.get("-q")) == "fp8" else {}
    return {"model": {"id": name, **weights}, "contextLength": tokens}
