"""The pod template of a vLLM replica, as a GPU cluster runs it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tonnage.api.placement import User
from tonnage.api.pods import Pods
from tonnage.api.references import SecretKey, SecretKeyRef
from tonnage.api.spec import Spec
from tonnage.manifests.arguments import Serving, engine_arguments
from tonnage.manifests.drain import PRE_STOP_S, grace_period_s
from tonnage.manifests.names import CONTAINER, Manifest, labels
from tonnage.manifests.offload import host_cache_room_gib, with_host_cache
from tonnage.manifests.queue import queue_command, queue_environment
from tonnage.manifests.role import role_environment
from tonnage.manifests.scheduling import scheduling, together, tolerations
from tonnage.manifests.workload import Workload
from tonnage.sizing.request import Flags
from tonnage.units import GB, GIB, MINUTE_S

HTTP_PORT = 8000
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
    """Return the pod template: one vLLM container and nothing of the user's but the closed set.

    ``is_worker``: of a pod on a further node of a replica. Nobody asks it, scrapes it or probes it:
    where it ends, all pods of its group are recreated.
    """
    pods = spec.pods or Pods()
    metadata: Manifest = {"labels": labels(name) | pods.labels}
    scraped = {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(HTTP_PORT),
        "prometheus.io/path": "/metrics",
    }
    is_scraped = figures.annotate_scrape and not is_worker
    own = (scraped if is_scraped else {}) | together(pods)
    if annotations := own | pods.annotations:
        metadata["annotations"] = annotations
    return {"metadata": metadata, "spec": _pod_spec(name, spec, figures, is_worker=is_worker)}


def _pod_spec(name: str, spec: Spec, figures: PodFigures, *, is_worker: bool) -> Manifest:
    pods = spec.pods or Pods()
    pod: Manifest = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": grace_period_s(figures.serving.drain_s),
        "securityContext": _security(pods),
        "tolerations": tolerations(pods),
        "containers": [_container(spec, figures, is_worker=is_worker)],
        "volumes": _volumes(pods, figures.serving),
        **scheduling(name, pods, figures.product_labels, figures.workload, is_worker=is_worker),
    }
    if pods.service_account_name:
        pod["serviceAccountName"] = pods.service_account_name
        # The API server keeps this old name of the field beside it. Were it not ours too, it would
        # stay when the other goes, and bring it back.
        pod["serviceAccount"] = pods.service_account_name
    if pods.image_pull_secrets:
        pod["imagePullSecrets"] = [each.to_dict() for each in pods.image_pull_secrets]
    return pod


def _security(pods: Pods) -> Manifest:
    user = pods.user or User(id=USER_ID, group=USER_ID)
    ids = {"runAsUser": user.id, "runAsGroup": user.group, "fsGroup": user.group}
    return {
        "runAsNonRoot": True,
        **{name: number for name, number in ids.items() if number is not None},
        **_of_volumes(pods),
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _of_volumes(pods: Pods) -> Manifest:
    policy = pods.fs_group_change_policy
    return {"fsGroupChangePolicy": policy} if policy else {}


def _container(spec: Spec, figures: PodFigures, *, is_worker: bool) -> Manifest:
    engine, pods, serving = spec.engine, spec.pods or Pods(), figures.serving
    ports = {"ports": [{"name": "http", "containerPort": HTTP_PORT}]}
    image = engine.image if engine and engine.image else default_image(spec)
    return {
        "name": CONTAINER,
        "image": image,
        "command": queue_command(spec),
        "args": engine_arguments(spec, figures.flags, serving, is_worker=is_worker),
        **({} if is_worker else ports),
        "env": [*environment(pods, queue_environment(spec)), *role_environment(spec)],
        "resources": _resources(pods, figures),
        **({} if is_worker else _probes(figures.startup_s)),
        "terminationMessagePolicy": "FallbackToLogsOnError",  # else there is none
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


def _resources(pods: Pods, figures: PodFigures) -> Manifest:
    gib = host_cache_room_gib(figures.serving.host_cache_gib, figures.flags.parallelism.tensor)
    asked = pods.memory or (pods.memory_limit if gib else None)  # as the API server has it
    requests = {
        "cpu": pods.cpu,
        "memory": with_host_cache(asked or "", gib),
        "ephemeral-storage": pods.ephemeral_storage,
    }
    limits = {
        "nvidia.com/gpu": str(figures.flags.parallelism.num_gpus // figures.serving.num_nodes),
        "cpu": pods.cpu_limit,
        "memory": pods.memory_limit and with_host_cache(pods.memory_limit, gib),
        "ephemeral-storage": pods.ephemeral_storage_limit,
    }
    resources = {"limits": _non_empty(limits), "requests": _non_empty(requests)}
    return {kind: amounts for kind, amounts in resources.items() if amounts}


def _non_empty(amounts: Mapping[str, str | None]) -> dict[str, str]:
    return {name: amount for name, amount in amounts.items() if amount}


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
        **{each.name: each.secret_key_ref for each in pods.env},
    }
    return [
        *({"name": name, "value": value} for name, value in plain.items() if name not in secrets),
        *(_from_secret(name, source) for name, source in secrets.items() if source),
    ]


def _from_secret(name: str, source: SecretKey | SecretKeyRef) -> Manifest:
    reference = {"name": source.name, "key": source.key}
    return {"name": name, "valueFrom": {"secretKeyRef": reference}}
