"""The pod template of a vLLM replica, as a GPU cluster runs it."""

import math
from dataclasses import dataclass
from typing import Any

from tonnage.api.pods import Pods
from tonnage.api.spec import Spec
from tonnage.manifests.arguments import Serving, engine_arguments
from tonnage.manifests.drain import PRE_STOP_S, grace_period_s
from tonnage.manifests.names import labels
from tonnage.sizing.request import Flags
from tonnage.units import GB, MINUTE_S

Manifest = dict[str, Any]

HTTP_PORT = 8000
USER_ID = 2000
"""The user of vLLM's non-root images."""
PROBE_S = 10
SLOW_LOAD_BYTES_PER_S = 0.5 * GB
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


def startup_budget_s(weights_bytes: float) -> float:
    """Return how long a replica may take from container start to healthy.

    Twice the time to load the weights at a slow 0.5 GB/s and to compile, never below half an
    hour, since the first start downloads.

    Sources:
        [vllm-source] docs/deployment/k8s.md: too small a budget kills a loading engine.
    """
    return max(MIN_STARTUP_S, 2 * (weights_bytes / SLOW_LOAD_BYTES_PER_S + COMPILE_S))


def pod_template(name: str, spec: Spec, figures: PodFigures) -> Manifest:
    """Return the pod template: one vLLM container and nothing of the user's but the closed set."""
    metadata: Manifest = {"labels": labels(name)}
    if figures.annotate_scrape:
        metadata["annotations"] = {
            "prometheus.io/scrape": "true",
            "prometheus.io/port": str(HTTP_PORT),
            "prometheus.io/path": "/metrics",
        }
    return {"metadata": metadata, "spec": _pod_spec(spec, figures)}


def _pod_spec(spec: Spec, figures: PodFigures) -> Manifest:
    pods = spec.pods or Pods()
    tolerations = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    pod: Manifest = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": grace_period_s(figures.serving.drain_s),
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER_ID,
            "runAsGroup": USER_ID,
            "fsGroup": USER_ID,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "tolerations": tolerations + [each.to_dict() for each in pods.tolerations],
        "containers": [_container(spec, pods, figures)],
        "volumes": _volumes(pods),
    }
    if figures.product_labels:
        pod["affinity"] = _affinity(figures.product_labels)
    optional = {
        "nodeSelector": dict(pods.node_selector),
        "priorityClassName": pods.priority_class_name,
        "runtimeClassName": pods.runtime_class_name,
    }
    return pod | {key: value for key, value in optional.items() if value}


def _affinity(product_labels: tuple[str, ...]) -> Manifest:
    term = {"key": "nvidia.com/gpu.product", "operator": "In", "values": list(product_labels)}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [term]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


def _container(spec: Spec, pods: Pods, figures: PodFigures) -> Manifest:
    engine = spec.engine
    image = engine.image if engine and engine.image else default_image(spec)
    return {
        "name": "vllm",
        "image": image,
        "args": engine_arguments(spec, figures.flags, figures.serving),
        "ports": [{"name": "http", "containerPort": HTTP_PORT}],
        "env": _environment(pods),
        "resources": _resources(pods, figures.flags.parallelism.num_gpus),
        **_probes(figures.weights_bytes),
        "lifecycle": {"preStop": {"exec": {"command": ["sleep", str(PRE_STOP_S)]}}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 - shared memory of NCCL
            {"name": "cache", "mountPath": "/cache"},
        ],
    }


def default_image(spec: Spec) -> str:
    """Return the release image of the version asked for."""
    version = spec.engine.known_version if spec.engine else ""
    parts = [*version.split("."), "0", "0"][:3]
    return f"vllm/vllm-openai:v{'.'.join(parts)}"


def _environment(pods: Pods) -> list[Manifest]:
    environment: list[Manifest] = [
        {"name": "HOME", "value": "/cache/home"},
        {"name": "HF_HOME", "value": "/cache/huggingface"},
        {"name": "VLLM_CACHE_ROOT", "value": "/cache/vllm"},
    ]
    if secret := pods.hugging_face_token_secret:
        reference = {"secretKeyRef": {"name": secret.name, "key": secret.key}}
        environment.append({"name": "HF_TOKEN", "valueFrom": reference})
    return environment


def _resources(pods: Pods, num_gpus: int) -> Manifest:
    requests = {"cpu": pods.cpu, "memory": pods.memory}
    resources: Manifest = {"limits": {"nvidia.com/gpu": str(num_gpus)}}
    asked = {name: amount for name, amount in requests.items() if amount}
    return resources | ({"requests": asked} if asked else {})


def _probes(weights_bytes: float) -> Manifest:
    def health(period_s: int, failures: int) -> Manifest:
        return {
            "httpGet": {"path": "/health", "port": "http"},
            "periodSeconds": period_s,
            "failureThreshold": failures,
            "timeoutSeconds": 5,
        }

    budget = math.ceil(startup_budget_s(weights_bytes) / PROBE_S)
    return {
        "startupProbe": health(PROBE_S, budget),
        "livenessProbe": health(PROBE_S, 3),
        "readinessProbe": health(PROBE_S // 2, 3),
    }


def _volumes(pods: Pods) -> list[Manifest]:
    shm: Manifest = {
        "name": "shm",
        "emptyDir": {"medium": "Memory", "sizeLimit": pods.shared_memory},
    }
    if pods.model_cache_claim:
        claim = {"claimName": pods.model_cache_claim}
        return [shm, {"name": "cache", "persistentVolumeClaim": claim}]
    return [shm, {"name": "cache", "emptyDir": {}}]
