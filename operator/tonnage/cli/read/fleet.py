"""What runs under a name in a cluster, as manifests that a plan can be made of."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeVar

from tonnage.api.base import KIND
from tonnage.api.objects import InvalidSpecError, ModelDeployment, parse_model_deployment
from tonnage.api.spec import NAME_PATTERN
from tonnage.catalog.config.keys.decoder import ModelConfigError
from tonnage.catalog.engine import is_vllm_image
from tonnage.catalog.models import with_second_file
from tonnage.cli.console import EXIT_INFEASIBLE, NO_RIGHTS, Failure, failing, remark
from tonnage.cli.read.live import LiveCluster, failures
from tonnage.cli.read.manifest import ManifestObject, Manifests, block, objects, sort_by_kind
from tonnage.cli.read.spec_overrides import MOST_REPLICAS, longest_context, name_of
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
from tonnage.manifests.pod import PRODUCT_LABEL, REQUIRED
from tonnage.manifests.target import TargetEngine, engine_of, has_gpus
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
    believed: Three | None = None

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
        planned=_constants(found, "planned"),
        believed=_constants(found, "learned"),
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


def _constants(found: Mapping[str, Any], which: str) -> Three | None:
    """Return the constants in the status; None where no plan was made, or another version's."""
    names = ("overheadFactor", "bandwidthEfficiency", "prefillEfficiency")
    overhead, bandwidth, prefill = (
        float(block(found, "status", "calibration", name).get(which) or 0.0) for name in names
    )
    constants = overhead, bandwidth, prefill
    return constants if min(constants) > 0 else None


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
    is_made: bool = False
    """Nobody wrote its ModelDeployment."""


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
        these = (found, target, *self._config_maps(target)) if target else (found,)
        return RunningFleet(
            manifests=_manifests(these),
            view=live.view,
            config=live.config,
            planned=live.planned,
            flags=None if target else flags_from_annotation(live.view.flags or ""),
        )

    def _of_workload(self, body: Object, model_id: str | None, gpu: str | None) -> RunningFleet:
        if gpu is None:
            named = _products_asked(next(_templates(body)))
            named = named if len(named) == 1 else set(self._products(body))
            with failing(Failure, where=f"{self.name}: "):
                gpu = _only(named, "no Ready pod runs on a node with that label")
        maps = self._config_maps(body)
        return _fleet_of(body, maps, _model(_engine_in(body, maps), model_id), gpu)

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


def fleets_in(
    manifests: Manifests, model_id: str | None, gpu: str | None
) -> tuple[list[RunningFleet], list[str]]:
    """Return what the workloads of vLLM among manifests run, and why some cannot be planned.

    Others are named. ``model_id``, ``gpu``: where a manifest does not say them.
    """
    fleets, problems = dict[tuple[str, str], RunningFleet](), list[str]()
    for each in manifests.deployments.values():
        beside = manifests.config_maps.values()
        maps = [one.content for one in beside if one.namespace == each.namespace]
        metadata = {"uid": "", **block(each.content, "metadata"), "namespace": each.namespace}
        body = {**each.content, "metadata": metadata}
        where = f"{each.location}: {each.kind} {each.name}"
        place = each.namespace, _own_name(each.name)
        try:
            engine = _engine_in(body, maps)
            if not _is_vllm(engine):
                why, _, _ = engine.problem.partition(":")
                remark(f"Note: {where} runs no vLLM{why and f' ({why})'}: skipped")
                continue
            asked = _products_asked(next(_templates(body)))
            named = gpu or _only(asked, "no node selector or affinity asks for it")
            found = _fleet_of(body, maps, _model(engine, model_id), named)
            if place in fleets:
                problems.append(f"{where}: another workload has its namespace and name")
            fleets.setdefault(place, found)
        except Failure as failure:
            problems.append(f"{where}: {failure.message}")
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            problems.append(f"{where} is not as an API server has it: {error}")
    return [*fleets.values()], problems


def _is_vllm(engine: TargetEngine) -> bool:
    """Tell whether a container is an engine: others have arguments too, and no GPU."""
    return is_vllm_image(engine.image) or bool(engine.arguments and has_gpus(engine.resources))


def _templates(body: Object) -> Iterator[Object]:
    kind = WORKLOADS[body["kind"]]
    yield from kind.templates(block(body, "spec", kind.template))


def _engine_in(body: Object, maps: Iterable[Object]) -> TargetEngine:
    kind = WORKLOADS[body["kind"]]
    data = {each["metadata"]["name"]: block(each, "data") for each in maps}
    return engine_of(kind, block(body, "spec", kind.template), data)


def _products_asked(template: Object) -> set[str]:
    """Return the values of the label of NVIDIA's operator that nodes of a pod must have."""
    spec = block(template, "spec")
    named = [block(spec, "nodeSelector").get(PRODUCT_LABEL)]
    for term in objects(block(spec, "affinity", "nodeAffinity", REQUIRED), "nodeSelectorTerms"):
        for each in objects(term, "matchExpressions"):
            if (each.get("key"), each.get("operator")) == (PRODUCT_LABEL, "In"):
                named += each.get("values") or ()
    return {str(each) for each in named if each}


def _only(products: set[str], why_none: str) -> str:
    if len(products) != 1:
        some = ", ".join(sorted(products)) or why_none
        raise Failure(f"label {PRODUCT_LABEL}: {some}; name the class with --gpu")
    return next(iter(products))


def _fleet_of(body: Object, maps: Sequence[Object], model: Object, gpu: str) -> RunningFleet:
    """Return a workload of somebody else, and what would scale it, with these fields of a model."""
    kind = WORKLOADS[body["kind"]]
    name = body["metadata"]["name"]
    found = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": _own_name(name), "namespace": body["metadata"]["namespace"]},
        "spec": {
            **model,
            "hardware": {"gpu": gpu},
            "scaling": {"maxReplicas": MOST_REPLICAS},
            "scaleTarget": {"kind": kind.kind, "name": name},
        },
    }
    return RunningFleet(
        manifests=_manifests((found, body, *maps)), view=deployment_view(body, kind), is_made=True
    )


def _own_name(name: str) -> str:
    """Return the name of a workload as one of ours may be: shorter, and without dots."""
    return name if re.fullmatch(NAME_PATTERN, name) else name_of(name)


def _manifests(found: Iterable[Object]) -> Manifests:
    resources = [ManifestObject(source="what runs", line=0, content=each) for each in found]
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
