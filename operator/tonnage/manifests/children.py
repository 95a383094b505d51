"""The objects of one ModelDeployment: its workload, Service, PodMonitor. No replicas anywhere."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from tonnage.api.objects import ModelDeployment
from tonnage.api.pod_rules import HTTP_PORT
from tonnage.api.pods import Pods
from tonnage.api.spec import MAX_NAME_LENGTH, MOST_HOST_GIB, KvOffload, Model, Spec
from tonnage.catalog.engine_limits import automatic_cache, nodes_refusal
from tonnage.estimate.metrics import prometheus_duration
from tonnage.manifests.arguments import PodFigures, is_runnable
from tonnage.manifests.names import (
    DIGEST_ANNOTATION,
    DRAIN_ANNOTATION,
    FLAGS_ANNOTATION,
    GROUPS,
    OWNER_LABEL,
    SPEC_ANNOTATION,
    TEMPLATE_ANNOTATION,
    Manifest,
    labels,
    owner_reference,
    selector,
    template_in,
    workload_over,
)
from tonnage.manifests.pod import (
    drain_time_s,
    longest_answer,
    pod_template,
    startup_budget_s,
    together,
)
from tonnage.memoize import memoize
from tonnage.settings import Settings
from tonnage.sizing.checks import use_of
from tonnage.sizing.offload import host_cache_gib
from tonnage.sizing.parallelism.rules import has_whole_experts
from tonnage.sizing.plan import Sizing
from tonnage.sizing.request import HALF_TYPES, Flags, SizingRequest
from tonnage.sizing.split import Parallelism
from tonnage.units import count_of

DIGEST_LENGTH = 16
REMEMBERED = 4096
"""Annotations that are parsed once: most ticks see the same ones again."""
HOST_CACHE = "hostCache"
"""Among the flags of the annotation."""


class NotServableError(Exception):
    """The plan holds on paper, but Tonnage cannot write it as a manifest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What the cluster offers that decides how a manifest is written."""

    has_pod_monitors: bool
    scrape_interval_s: float
    has_groups: bool = True
    """It serves LeaderWorkerSets."""
    monitor_labels: Mapping[str, str] = field(default_factory=dict)
    """Further labels of PodMonitors, by which a Prometheus selects them."""
    scraper_namespaces: tuple[str, ...] = ()
    """Where the pods run that scrape engines."""


def site_of(settings: Settings, *, has_pod_monitors: bool) -> Site:
    """Return what an administrator says about the cluster."""
    return Site(
        has_pod_monitors=has_pod_monitors,
        scrape_interval_s=settings.scrape_interval_s,
        monitor_labels=settings.pod_monitor_labels,
        scraper_namespaces=settings.scraper_namespaces,
    )


def spec_digest(model: ModelDeployment) -> str:
    """Return a digest of the part of the spec that a template is made from."""
    return _digest_of(model.spec)


@memoize
def _digest_of(spec: Spec) -> str:
    return _digest(json.dumps(spec.to_digestible(), sort_keys=True))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_LENGTH]


def without_queue(recorded: dict[str, str]) -> dict[str, str]:
    """Return what is recorded of a template without ``engine.queue``, which 0.2.0 had.

    Its pods are the same without: those that run stay until another field replaces them.
    """
    made = _made_part(recorded.get("made_from")) if "digest" in recorded else None
    engine = made and made.get("engine")
    if not isinstance(engine, dict) or not engine.pop("queue", None):
        return recorded
    text = json.dumps(made, sort_keys=True)
    return recorded | {"made_from": text, "digest": _digest(text)}


def deployment(
    model: ModelDeployment, sizing: Sizing, site: Site, *, drain_s: int | None = None
) -> Manifest:
    """Return the workload for a plan, without ``replicas``: those go through ``/scale`` only.

    A Deployment, or a LeaderWorkerSet where a replica takes more GPUs than a node has. ``drain_s``:
    that its pods get to finish what they answer; None: the longest answer says.

    Raises:
        NotServableError: the engine's version or the cluster runs no replica over several nodes, or
            the plan asks for weights that no engine makes on load.
    """
    if drain_s is None:
        drain_s = drain_time_s(longest_answer(model.spec, sizing), running_s=None)
    figures = _figures(model.spec.model, sizing, site, drain_s)
    placed, workload = together(model.spec.pods or Pods()), workload_over(figures.num_nodes)
    if workload.is_group:
        _check_group(model, figures.num_nodes)
    elif placed:
        raise NotServableError(
            f"pods.groupTopology needs a replica over several nodes: {sizing.flags.parallelism} "
            f"takes one of {count_of(sizing.request.gpu.gpus_per_node, 'GPU')}"
        )
    annotations = {
        **placed,
        DIGEST_ANNOTATION: spec_digest(model),
        FLAGS_ANNOTATION: write_flags(figures.flags, figures.host_cache_gib),
        DRAIN_ANNOTATION: str(drain_s),
        SPEC_ANNOTATION: json.dumps(model.spec.to_digestible(), sort_keys=True),
    }
    made = {
        "apiVersion": workload.api_version,
        "kind": workload.kind,
        "metadata": metadata_of(model) | {"annotations": annotations},
        "spec": _groups(model, figures) if workload.is_group else _pods(model, figures),
    }
    annotations[TEMPLATE_ANNOTATION] = _digest(json.dumps(template_in(made), sort_keys=True))
    return made


def _pods(model: ModelDeployment, figures: PodFigures) -> Manifest:
    """Return the spec of a Deployment: each replica is a pod."""
    budget_s = startup_budget_s(figures.weights_bytes, figures.host_cache_gib)
    return {
        "progressDeadlineSeconds": math.ceil(budget_s) + 600,
        "strategy": {"type": "RollingUpdate", "rollingUpdate": _rolling(model)},
        "selector": {"matchLabels": selector(model.name)},
        "template": pod_template(model.name, model.spec, figures),
    }


def _groups(model: ModelDeployment, figures: PodFigures) -> Manifest:
    """Return the spec of a LeaderWorkerSet: each replica is a group of as many pods as nodes.

    A leader is Ready when the workers have joined it, so these are made before. With a headless
    Service for each group none has the name of ours.

    Sources:
        [lws-source] pkg/controllers/leaderworkerset_controller.go reconcileHeadlessServices,
        pod_controller.go Reconcile.
    """
    return {
        "startupPolicy": "LeaderCreated",
        "networkConfig": {"subdomainPolicy": "UniquePerReplica"},
        "rolloutStrategy": {
            "type": "RollingUpdate",
            "rollingUpdateConfiguration": _rolling(model),
        },
        "leaderWorkerTemplate": {
            "size": figures.num_nodes,
            "restartPolicy": "RecreateGroupOnPodRestart",
            "leaderTemplate": pod_template(model.name, model.spec, figures),
            "workerTemplate": pod_template(model.name, model.spec, figures, is_worker=True),
        },
    }


def _rolling(model: ModelDeployment) -> Manifest:
    surge = (model.spec.pods or Pods()).max_surge
    return {"maxSurge": surge, "maxUnavailable": 1 - surge}


def service(model: ModelDeployment, num_nodes: int = 1) -> Manifest:
    """Return the Service through which clients reach the replicas."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata_of(model),
        "spec": {
            "type": "ClusterIP",  # else nobody takes back what another makes of it
            "selector": workload_over(num_nodes).engines(model.name),
            "ports": [{"name": "http", "port": HTTP_PORT, "targetPort": "http"}],
        },
    }


MOST_SAMPLES = 50_000
"""Of one scrape of a pod, which fails beyond: an engine tells some 500, a pod of sixteen 8,000. A
pod that invents labels is then silent, and no other notices."""
MOST_LABELS = 64
"""Of one series: those of a cache's configuration have some 40, with what a scrape adds."""


def pod_monitor(model: ModelDeployment, site: Site, num_nodes: int = 1) -> Manifest:
    """Return the PodMonitor by which a Prometheus operator scrapes the replicas."""
    interval = prometheus_duration(site.scrape_interval_s)
    endpoint = {"port": "http", "path": "/metrics", "interval": interval}
    metadata = metadata_of(model)
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": metadata | {"labels": {**site.monitor_labels, **metadata["labels"]}},
        "spec": {
            "selector": {"matchLabels": workload_over(num_nodes).engines(model.name)},
            "podMetricsEndpoints": [endpoint],
            "podTargetLabels": [OWNER_LABEL],
            "sampleLimit": MOST_SAMPLES,
            "labelLimit": MOST_LABELS,
        },
    }


def metadata_of(model: ModelDeployment) -> Manifest:
    """Return the metadata of what belongs to a ModelDeployment: it goes when that goes."""
    return {
        "name": model.name,
        "namespace": model.namespace,
        "labels": labels(model.name),
        "ownerReferences": [owner_reference(name=model.name, uid=model.uid)],
    }


def num_nodes_of(sizing: Sizing) -> int:
    return -(-sizing.parallelism.num_gpus // sizing.request.gpu.gpus_per_node)


def _figures(model: Model, sizing: Sizing, site: Site, drain_s: int) -> PodFigures:
    request, split = sizing.request, sizing.flags.parallelism
    num_nodes = num_nodes_of(sizing)
    if num_nodes > 1:
        _check_groups(sizing, site)
    return PodFigures(
        flags=sizing.flags,
        dtype=request.dtype,
        kv_cache_dtype=_kv_cache_dtype(request),
        constants=request.engine.constants,
        has_whole_experts=has_whole_experts(
            request.shape, request.weights, split, is_asked=bool(request.sizes.expert)
        ),
        drain_s=drain_s,
        quantization=_quantization(sizing),
        num_nodes=num_nodes,
        host_cache_gib=_host_cache_gib(model.kv_offload, sizing)
        if model.kv_offload and request.has_host_cache
        else 0,
        weights_bytes=sizing.shard.weights_bytes * split.num_gpus,
        product_labels=request.gpu.product_labels,
        annotate_scrape=not site.has_pod_monitors,
    )


def _host_cache_gib(given: KvOffload, sizing: Sizing) -> int:
    """Return the memory of the host that a replica gets for its cache."""
    gib = host_cache_gib(given, sizing)
    if gib > MOST_HOST_GIB:
        raise NotServableError(
            f"model.kvOffload.workingSetTokens {given.working_set_tokens} takes {gib} GiB of host "
            f"memory, at most {MOST_HOST_GIB} may be given"
        )
    return gib


def _check_groups(sizing: Sizing, site: Site) -> None:
    """Refuse a replica over several nodes that cannot be run."""
    request, split = sizing.request, sizing.flags.parallelism
    node = request.gpu.gpus_per_node
    asked = (
        f"{split} needs {count_of(split.num_gpus, 'GPU')}, a node of {request.gpu.name} has {node}"
    )
    alone = split.tensor * split.pipeline if split.data > 1 else split.tensor
    if split.num_gpus % node or node % alone:
        raise NotServableError(
            f"{asked}: over several nodes Tonnage runs data-parallel ranks or pipeline stages on "
            "whole nodes, each within one"
        )
    if refused := nodes_refusal(request.engine.minor):
        raise NotServableError(f"{asked}: {refused}")
    if not site.has_groups:
        raise NotServableError(
            f"{asked}, and {GROUPS.kind} ({GROUPS.api_version}) is not installed in this cluster, "
            "or Tonnage may not list it: once it may, the plan is applied"
        )


def _check_group(model: ModelDeployment, num_nodes: int) -> None:
    """Refuse a name with which no worker could be made, and a budget of pods for replicas.

    The workers of a group have a StatefulSet named by the group, which adds a hash to that.
    """
    longest = f"{model.name}-{model.spec.scaling.max_replicas}"
    if len(longest) > MAX_NAME_LENGTH:
        most = MAX_NAME_LENGTH - len(longest) + len(model.name)
        raise NotServableError(
            f"the name {model.name} has {len(model.name)} characters: where a replica runs over "
            f"several nodes, and maxReplicas is {model.spec.scaling.max_replicas}, it may have "
            f"{most}, since the names of its groups are longer"
        )
    budget = (model.spec.pods or Pods()).disruption_budget
    share = budget and (budget.min_available or budget.max_unavailable)
    if isinstance(share, str):
        raise NotServableError(
            f"pods.disruptionBudget: {share} would be of pods, and a replica over "
            f"{count_of(num_nodes, 'node')} has {num_nodes}: say how many replicas"
        )


def _kv_cache_dtype(request: SizingRequest) -> str:
    """Return ``--kv-cache-dtype``: by name only what the engine does not take from ``--dtype``.

    Sources:
        [vllm-source] csrc quant_utils.cuh DISPATCH_BY_KV_CACHE_DTYPE: until 0.19 the kernels that
        write the cache know auto and fp8, and no 16-bit type by its name.
    """
    if request.kv_format != "bf16":
        return request.kv_format
    return "auto" if automatic_cache(use_of(request)) == "bf16" else request.dtype


def _quantization(sizing: Sizing) -> str | None:
    """Return ``--quantization`` for weights that the checkpoint does not already have.

    Only fp8 can be made from 16-bit weights while loading; every other format needs a checkpoint.
    """
    asked, stored = sizing.request.weights.name, sizing.request.shape.weight_format.name
    if asked == stored or {asked, stored} <= set(HALF_TYPES):
        return None
    if asked == "fp8" and stored in HALF_TYPES:
        return "fp8"
    raise NotServableError(
        f"model.weights {asked}: {sizing.request.shape.name} is a {stored} checkpoint, and the "
        f"engine makes only fp8 from 16-bit weights; name a checkpoint that has {asked} weights"
    )


def write_flags(flags: Flags, host_cache_gib: int = 0) -> str:
    """Write for the annotation what is chosen, and what a host cache has; 0: there is none."""
    split = flags.parallelism
    figures = {
        "maxNumSeqs": flags.max_num_seqs,
        "maxNumBatchedTokens": flags.max_num_batched_tokens,
        "gpuMemoryUtilization": flags.gpu_memory_utilization,
        "tensor": split.tensor,
        "pipeline": split.pipeline,
        "data": split.data,
        "context": split.context if split.context > 1 else 0,
        "kvCacheBytes": flags.kv_cache_bytes,
        "numGpuBlocks": flags.num_gpu_blocks,
        "maxNumQueuedReqs": flags.max_num_queued_reqs,
        "maxNumQueuedTokens": flags.max_num_queued_tokens,
        "contextTokens": flags.context_tokens,
        "isCured": flags.is_cured,
        HOST_CACHE: host_cache_gib,
    }
    return json.dumps({name: figure for name, figure in figures.items() if figure})


@lru_cache(maxsize=REMEMBERED)
def has_recorded_cache(text: str | None) -> bool:
    """Tell whether what runs has a KV cache in host memory, by the annotation."""
    return bool((_made_part(text) or {}).get(HOST_CACHE))


def flags_from_annotation(text: str) -> Flags | None:
    """Read flags back from the annotation; None when it is not one of ours."""
    try:
        figures = json.loads(text)
        flags = Flags(
            max_num_seqs=int(figures["maxNumSeqs"]),
            max_num_batched_tokens=int(figures["maxNumBatchedTokens"]),
            gpu_memory_utilization=float(figures["gpuMemoryUtilization"]),
            parallelism=Parallelism(
                tensor=int(figures["tensor"]),
                pipeline=int(figures["pipeline"]),
                data=int(figures["data"]),
                context=int(figures.get("context", 1)),
            ),
            kv_cache_bytes=_count(figures.get("kvCacheBytes")),
            num_gpu_blocks=_count(figures.get("numGpuBlocks")),
            max_num_queued_reqs=_count(figures.get("maxNumQueuedReqs")),
            max_num_queued_tokens=_count(figures.get("maxNumQueuedTokens")),
            context_tokens=_count(figures.get("contextTokens")),
            is_cured=bool(figures.get("isCured")),
        )
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    return flags if is_runnable(flags) else None


def differs_in_pods(model: ModelDeployment, made_from: str | None) -> bool:
    """Tell whether what runs was made from this spec but for its ``pods``, by the annotation.

    Nothing is sized by these. Where nobody can read what it was made from, the answer is no.
    """
    made, asked = _made_part(made_from), model.spec.to_digestible()
    return made is not None and {**made, "pods": None} == {**asked, "pods": None}


def replaces_pods(model: ModelDeployment, made_from: str | None) -> bool:
    """Tell whether ``pods`` differ in what a pod template holds."""
    specs = (_made_part(made_from) or {}, model.spec.to_digestible())
    made, asked = ({**(spec.get("pods") or {}), "maxSurge": None} for spec in specs)
    return made != asked


def _made_part(made_from: str | None) -> dict[str, Any] | None:
    try:
        made = json.loads(made_from or "")
    except (ValueError, RecursionError):
        return None
    return made if isinstance(made, dict) else None


def running_model(model: ModelDeployment, made_from: str | None) -> ModelDeployment | None:
    """Return the model whose engines run, by the annotation: with today's SLO, demand and bounds.

    With the SLO of its time where the engines refuse by that, or had another role. Without the
    demand where that is too long for what runs. None: nobody wrote down what they were made from,
    or it has a form of another version.
    """
    spec = model.spec.to_dict()
    for today in (("slo", "scaling", "demand"), ("slo", "scaling")):
        kept = {key: spec[key] for key in today if key in spec}
        try:
            made = _made_part(made_from) or {}
            engine, role = made.get("engine") or {}, (spec.get("engine") or {}).get("role")
            slo = made.get("slo", {})
            if engine.get("admission") is not None or engine.get("role") != role:
                given = (spec.get("slo") or {}).get("attainment")  # no engine goes by it
                kept["slo"] = slo | ({"attainment": given} if given else {})
            pods = {key: value for key, value in made.items() if key not in {"slo", "demand"}}
            found = Spec.model_validate_json(json.dumps(pods | kept), extra="ignore")
        except (ValueError, AttributeError, KeyError, TypeError, RecursionError):
            continue
        return replace(model, spec=found)
    return None


def _count(figure: Any) -> int | None:
    """Return a flag that annotations of before do not have, and of engines that profile."""
    return None if figure is None else int(figure)
