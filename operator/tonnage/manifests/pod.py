"""The pod template of a vLLM replica, as a GPU cluster runs it."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

from tonnage.api.objects import ModelDeployment
from tonnage.api.pod_rules import HTTP_PORT
from tonnage.api.pod_template import deprecated_fields, given_template, merged
from tonnage.api.pods import Pods, User
from tonnage.api.spec import Spec
from tonnage.api.status import Reason
from tonnage.manifests.arguments import (
    Serving,
    engine_arguments,
    host_cache_room_gib,
    role_environment,
    with_host_cache,
)
from tonnage.manifests.drain import PRE_STOP_S, grace_period_s
from tonnage.manifests.names import CONTAINER, Manifest, Workload, labels
from tonnage.manifests.queue import queue_command, queue_environment
from tonnage.manifests.scheduling import GPU_TAINT, affinity, place, together
from tonnage.sizing.request import Flags
from tonnage.units import GB, GIB, MINUTE_S

DEPRECATED = "DeprecatedFields"
USER_ID = 2000
"""The user of vLLM's non-root images."""
NAME_OF_ANY_USER = "vllm"
"""torch asks for the user's name while it is imported, and fails where there is none: vLLM's images
have had a user 2000 since 0.22, and an id that is given need not be in any."""
PROBE_S = 10
SLOW_LOAD_BYTES_PER_S = 0.5 * GB
SLOW_TOUCH_BYTES_PER_S = 2 * GB
MIN_STARTUP_S = 30 * MINUTE_S
COMPILE_S = 5 * MINUTE_S


@dataclass(frozen=True, slots=True, kw_only=True)
class PodFigures:
    """What a template needs beside the spec: all of it decided or looked up."""

    flags: Flags
    serving: Serving
    weights_bytes: float
    """Of the whole model: the start-up budget grows with it."""
    product_labels: tuple[str, ...]
    annotate_scrape: bool
    """No PodMonitor there: tell Prometheus by annotation."""
    workload: Workload
    """What the pods are part of."""

    @property
    def startup_s(self) -> float:
        """That a replica may take to start."""
        return startup_budget_s(self.weights_bytes, self.serving.host_cache_gib * GIB)


def startup_budget_s(weights_bytes: float, host_cache_bytes: float = 0) -> float:
    """Return how long a replica may take from container start to healthy.

    Twice the time to load the weights at a slow 0.5 GB/s, to touch a cache in host memory at a slow
    2 GB/s and to compile, never below half an hour, since the first start downloads.

    Sources:
        [vllm-source] docs/deployment/k8s.md: too small a budget kills a loading engine.
    """
    loads_s = weights_bytes / SLOW_LOAD_BYTES_PER_S
    touches_s = host_cache_bytes / SLOW_TOUCH_BYTES_PER_S
    return max(MIN_STARTUP_S, 2 * (loads_s + touches_s + COMPILE_S))


def pod_template(
    name: str, spec: Spec, figures: PodFigures, *, is_worker: bool = False
) -> Manifest:
    """Return the pod template: one vLLM container, with the template of the user merged onto it.

    ``is_worker``: of a pod on a further node of a replica. Nobody asks it, scrapes it or probes it:
    where it ends, all pods of its group are recreated.
    """
    pods = spec.pods or Pods()
    metadata: Manifest = {"labels": labels(name)}
    scraped = {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(HTTP_PORT),
        "prometheus.io/path": "/metrics",
    }
    is_scraped = figures.annotate_scrape and not is_worker
    if own := (scraped if is_scraped else {}) | together(pods):
        metadata["annotations"] = own
    own_pod, given = _pod_spec(spec, figures, is_worker=is_worker), given_template(pods)
    template = merged({"metadata": metadata, "spec": own_pod}, given)
    _finish(template["spec"], spec, figures)
    place(template["spec"], own_pod, name, figures.workload, is_worker=is_worker)
    return template


def deprecation(model: ModelDeployment) -> tuple[Reason, ...]:
    """Name the fields of ``pods`` that go in 0.3, and the template that makes the same pods."""
    fields = deprecated_fields(model.spec.pods)
    if not fields:
        return ()
    named = f"deprecated, removed in 0.3: {', '.join(fields)}"
    instead = json.dumps(given_template(model.spec.pods))
    message = f"{named}; use pods.template: {instead}, which replaces no pod"
    return (Reason(code=DEPRECATED, message=message),)


def _pod_spec(spec: Spec, figures: PodFigures, *, is_worker: bool) -> Manifest:
    pods = spec.pods or Pods()
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": grace_period_s(figures.serving.drain_s),
        "securityContext": _security(pods),
        "tolerations": [dict(GPU_TAINT)],
        "containers": [_container(spec, figures, is_worker=is_worker)],
        "volumes": _volumes(pods, figures.serving),
        **affinity(pods, figures.product_labels),
    }


def _security(pods: Pods) -> Manifest:
    user = pods.user or User(id=USER_ID, group=USER_ID)
    ids = {"runAsUser": user.id, "runAsGroup": user.group, "fsGroup": user.group}
    return {
        "runAsNonRoot": True,
        **{name: number for name, number in ids.items() if number is not None},
    }


def _container(spec: Spec, figures: PodFigures, *, is_worker: bool) -> Manifest:
    engine, pods, serving = spec.engine, spec.pods or Pods(), figures.serving
    ports = {"ports": [{"name": "http", "containerPort": HTTP_PORT}]}
    image = engine.image if engine and engine.image else default_image(spec)
    num_gpus = figures.flags.parallelism.num_gpus // serving.num_nodes
    return {
        "name": CONTAINER,
        "image": image,
        "command": queue_command(figures.serving.queue_class_s),
        "args": engine_arguments(spec, figures.flags, serving, is_worker=is_worker),
        **({} if is_worker else ports),
        "env": environment(pods, queue_environment(figures.serving.queue_class_s)),
        "resources": {"limits": {"nvidia.com/gpu": str(num_gpus)}},
        **({} if is_worker else _probes(figures.startup_s)),
        "terminationMessagePolicy": "FallbackToLogsOnError",  # else there is none
        "lifecycle": {"preStop": {"exec": {"command": ["sleep", str(PRE_STOP_S)]}}},
        "securityContext": _confined(),
        "volumeMounts": [
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 - shared memory of NCCL
            {"name": "cache", "mountPath": "/cache"},
        ],
    }


def _finish(pod: Manifest, spec: Spec, figures: PodFigures) -> None:
    """Add to a merged pod what Tonnage says whatever the user's template does."""
    pod["securityContext"].setdefault("seccompProfile", {"type": "RuntimeDefault"})
    engine, *others = pod["containers"]
    engine |= {
        "env": [*engine["env"], *role_environment(spec)],
        "securityContext": engine["securityContext"] | _confined(),
    }
    _make_room(engine["resources"], figures)
    pod["containers"] = [engine, *map(_without_gpus, others)]
    if "initContainers" in pod:
        pod["initContainers"] = [_without_gpus(each) for each in pod["initContainers"]]
    if account := pod.get("serviceAccountName"):
        # The API server keeps this old name of the field beside it. Were it not ours too, it would
        # stay when the other goes, and bring it back.
        pod["serviceAccount"] = account


def _without_gpus(container: Manifest) -> Manifest:
    """Return a further container as Pod Security ``restricted`` asks for it, which sees no GPU.

    Where nvidia is the default runtime, an image that has the variable, as CUDA's do, is given all
    GPUs of the node, and none for ``void``.
    """
    hidden = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}
    return {
        **container,
        "env": [hidden, *container.get("env", [])],
        "securityContext": container.get("securityContext", {}) | _confined(),
    }


def _confined() -> Manifest:
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def _make_room(resources: Manifest, figures: PodFigures) -> None:
    """Add a cache in host memory to what the user asks for."""
    gib = host_cache_room_gib(figures.serving.host_cache_gib, figures.flags.parallelism.tensor)
    if not gib:
        return
    limits, requests = resources["limits"], resources.setdefault("requests", {})
    asked = requests.get("memory") or limits.get("memory", "")  # as the API server has it
    requests["memory"] = with_host_cache(asked, gib)
    if "memory" in limits:
        limits["memory"] = with_host_cache(limits["memory"], gib)


def default_image(spec: Spec) -> str:
    """Return the release image of the version asked for."""
    version = spec.engine.known_version if spec.engine else ""
    parts = [*version.split("."), "0", "0"][:3]
    return f"vllm/vllm-openai:v{'.'.join(parts)}"


def _probes(startup_s: float) -> Manifest:
    def health(period_s: int, failures: int) -> Manifest:
        return {
            "httpGet": {"path": "/health", "port": "http"},
            "periodSeconds": period_s,
            "failureThreshold": failures,
            "timeoutSeconds": 5,
        }

    budget = math.ceil(startup_s / PROBE_S)
    return {
        "startupProbe": health(PROBE_S, budget),
        "livenessProbe": health(PROBE_S, 3),
        "readinessProbe": health(PROBE_S // 2, 3),
    }


def _volumes(pods: Pods, serving: Serving) -> list[Manifest]:
    size = with_host_cache(pods.shared_memory, serving.host_cache_gib)
    shm: Manifest = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": size}}
    if pods.model_cache_claim:
        claim = {"claimName": pods.model_cache_claim}
        return [shm, {"name": "cache", "persistentVolumeClaim": claim}]
    return [shm, {"name": "cache", "emptyDir": {}}]


def environment(pods: Pods, more: Mapping[str, str]) -> list[Manifest]:
    """Return the variables of the engine's container; ``more``: further plain ones.

    Sources:
        [vllm-source] vllm/envs.py VLLM_API_KEY; entrypoints/openai/server_utils.py
        AuthenticationMiddleware: paths that begin with /v1 ask for the key, no others.
    """
    plain = {
        "HOME": "/cache/home",
        "HF_HOME": "/cache/huggingface",
        "VLLM_CACHE_ROOT": "/cache/vllm",
        "USER": NAME_OF_ANY_USER,
        "LOGNAME": NAME_OF_ANY_USER,
        **more,
    }
    secrets = {
        "HF_TOKEN": pods.hugging_face_token_secret,
        "VLLM_API_KEY": pods.api_key_secret,
    }
    return [
        *({"name": name, "value": value} for name, value in plain.items()),
        *(
            {"name": name, "valueFrom": {"secretKeyRef": {"name": of.name, "key": of.key}}}
            for name, of in secrets.items()
            if of
        ),
    ]
