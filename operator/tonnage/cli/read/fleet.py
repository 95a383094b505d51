"""What runs under a name in a cluster, as manifests that a plan can be made of."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from tonnage.api.group import KIND
from tonnage.catalog.gpu import CatalogError
from tonnage.catalog.models import built_in_model
from tonnage.cli.console import EXIT_INFEASIBLE, Failure
from tonnage.cli.read.live import LiveCluster, failures
from tonnage.cli.read.manifest import ManifestObject, Manifests, sort_by_kind
from tonnage.cli.read.nested import block
from tonnage.cli.read.running import read_live
from tonnage.cli.read.spec_overrides import MOST_REPLICAS
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
from tonnage.fleet.views import workload_view
from tonnage.manifests.arguments import engine_flags
from tonnage.manifests.children import flags_from_annotation
from tonnage.manifests.names import API_VERSION
from tonnage.manifests.scheduling import PRODUCT_LABEL
from tonnage.manifests.target import TargetEngine, engine_of
from tonnage.manifests.workload import WORKLOADS
from tonnage.sizing.request import Flags
from tonnage.units import engine_integer

USUAL_CONTEXT: Final = 8192
"""Of a model that is not in the catalogue, where no flag says it."""
Object = Mapping[str, Any]


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
        found = self._get(MODEL_DEPLOYMENTS, self.name)
        if found is not None:
            return self._of_model(found)
        kinds = (DEPLOYMENTS, LEADER_WORKER_SETS)
        body = next((each for kind in kinds if (each := self._get(kind, self.name))), None)
        if body is None:
            raise Failure(
                f"there is no {KIND}, {' or '.join(WORKLOADS)} {self.name} in namespace "
                f"{self.namespace}",
                EXIT_INFEASIBLE,
            )
        return self._of_workload(body, model_id, gpu)

    def _get(self, kind: Resource, name: str) -> Object | None:
        with failures(f"get {kind.plural} {name} in namespace {self.namespace}"):
            return self.cluster.api.get(kind.path(self.namespace, name))

    def _of_model(self, found: Object) -> RunningFleet:
        live = read_live(self.cluster, namespace=self.namespace, name=self.name)
        if block(found, "spec").get("topology"):
            raise Failure(f"{self.name} has two roles: take {self.name}-prefill or -decode")
        if live is None or live.view is None:
            raise Failure(f"nothing runs for {self.name}; plan -f takes its manifest")
        target = live.target if live.model.spec.scale_target else None
        objects = [_from_cluster(found), *([target] if target else [])]
        return RunningFleet(
            manifests=sort_by_kind(objects, []),
            view=live.view,
            config=live.config,
            planned=live.planned,
            flags=None if target else flags_from_annotation(live.view.flags or ""),
        )

    def _of_workload(self, body: Object, model_id: str | None, gpu: str | None) -> RunningFleet:
        kind = WORKLOADS[body["kind"]]
        template = block(body, "spec", kind.template)
        names = engine_of(kind, template).config_maps
        maps = [each for name in names if (each := self._get(CONFIG_MAPS, name))]
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
        objects = [_from_cluster(each) for each in (found, body, *maps)]
        return RunningFleet(manifests=sort_by_kind(objects, []), view=workload_view(body, kind))

    def _gpu(self, body: Object, template: Object) -> str:
        """Return the class that pods ask for by the label of NVIDIA's operator, or run on."""
        named = block(template, "spec", "nodeSelector").get(PRODUCT_LABEL)
        found = {named} if named else set(self._products(body))
        if len(found) != 1:
            some = ", ".join(sorted(found)) or "no Ready pod runs on a node with that label"
            raise Failure(f"{self.name}: label {PRODUCT_LABEL}: {some}; name the class with --gpu")
        return str(found.pop())

    def _products(self, body: Object) -> Iterator[str]:
        labels = block(body, "spec", "selector", "matchLabels")
        selector = ",".join(f"{key}={value}" for key, value in labels.items())
        with failures(f"list pods in namespace {self.namespace} and get their nodes"):
            pods = self.cluster.api.list(PODS.path(self.namespace), label_selector=selector)
            names = {name for pod in pods if (name := block(pod, "spec").get("nodeName"))}
            for name in names if labels else ():
                node = self.cluster.api.get(NODES.path(None, name)) or {}
                if product := block(node, "metadata", "labels").get(PRODUCT_LABEL):
                    yield product


def _from_cluster(content: Object) -> ManifestObject:
    return ManifestObject(source="the cluster", line=0, content=content)


def _model(engine: TargetEngine, model_id: str | None) -> dict[str, Any]:
    """Return what the arguments say of the model: its name, quantized weights, longest request."""
    flags = engine_flags(engine.arguments)
    first = next(iter(engine.arguments), "-")
    name = model_id or (flags.get("--model") if first.startswith("-") else first)
    if not name:
        why = engine.problem or "its arguments do not say which model"
        raise Failure(f"{why}: name the model with --model")
    try:
        tokens = engine_integer(flags.get("--max-model-len", "auto"))
    except ValueError:
        try:
            tokens = built_in_model(name).max_position_tokens or USUAL_CONTEXT
        except CatalogError:
            tokens = USUAL_CONTEXT
    weights = {"weights": "fp8"} if flags.get("--quantization", flags.get("-q")) == "fp8" else {}
    return {"model": {"id": name, **weights}, "contextLength": tokens}
