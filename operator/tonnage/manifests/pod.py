"""The pod template of a vLLM replica, as a GPU cluster runs it."""

import json
import math
from copy import deepcopy
from dataclasses import dataclass
from typing import Final

from tonnage.api.objects import ModelDeployment
from tonnage.api.pod_rules import HTTP_PORT
from tonnage.api.pod_template import deprecated_fields, given_template, merged
from tonnage.api.pods import Pods, User
from tonnage.api.spec import Spec
from tonnage.api.status import Reason
from tonnage.manifests.arguments import (
    PodFigures,
    engine_arguments,
    host_cache_room_gib,
    role_environment,
    with_host_cache,
)
from tonnage.manifests.names import (
    CONTAINER,
    TOPOLOGY_ANNOTATION,
    Manifest,
    Workload,
    labels,
    workload_over,
)
from tonnage.memoize import memoize
from tonnage.sizing.plan import Sizing
from tonnage.sizing.serving.replica import typical_ttft_s
from tonnage.units import GB, GIB, MINUTE_S, round_up

COMMAND: Final = ("vllm", "serve")
"""Said for every image: the entrypoint of 0.11.0 is another server, which takes no model by its
place and would serve its own default."""
PRE_STOP_S: Final = 15
"""Time for endpoints and routers to forget a pod before its engine is told to stop."""
EXIT_S: Final = 15
"""For the processes of an engine that has nothing left to do."""
LEAST_DRAIN_S: Final = 45
MOST_GRACE_S: Final = 600
"""A pod that hangs holds its GPUs for as long, and a node that is drained waits for it."""
MOST_DRAIN_S: Final = MOST_GRACE_S - PRE_STOP_S - EXIT_S
STEP_S: Final = 15
SLACK: Final = 0.1
"""By which an answer may outlast what pods give it before that counts as too little: both stand on
estimates, and engines restart for another one."""
EXPONENTIAL_P99: Final = -math.log(0.01)
"""Times the mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LongestAnswer:
    """The answer that 99 of 100 are no longer than, on an engine that is full."""

    tokens: float
    first_token_s: float
    token_s: float

    @property
    def seconds(self) -> float:
        return self.first_token_s + self.tokens * self.token_s

    def outlasts(self, drain_s: float) -> bool:
        """Tell whether it would be cut off by more than estimates are sure of."""
        return self.seconds > (1 + SLACK) * drain_s


def longest_answer_tokens(spec: Spec, mean_tokens: float) -> float:
    """Return the p99 of an answer's tokens, within the maximum length.

    Around the mean stays the spread that the spec gives, else that of the exponential distribution
    which sizing takes answers to have.
    """
    given = spec.demand.output_tokens if spec.demand else None
    spread = given.p99 / given.mean if given and given.p99 else EXPONENTIAL_P99
    return min(mean_tokens * spread, float(spec.context_length))


@memoize
def longest_answer(spec: Spec, sizing: Sizing) -> LongestAnswer:
    """Return the longest answer expected: its first token at the SLO's limit, the rest at capacity.

    Without a limit the first token comes when that of a mean prompt does.
    """
    request, state = sizing.request, sizing.at_capacity
    limits_s = [target.limit_s for target in request.slo.ttft]
    return LongestAnswer(
        tokens=longest_answer_tokens(spec, request.workload.output_tokens),
        first_token_s=max(limits_s)
        if limits_s
        else typical_ttft_s(sizing.replica, request.workload, state),
        token_s=state.tpot_s,
    )


def drain_time_s(answer: LongestAnswer, *, running_s: int | None) -> int:
    """Return the seconds that an engine gets to finish what it answers.

    ``running_s``: what the pods that run give it, which stays as long as it is enough: a longer
    time costs nothing, since an engine that is empty ends. None: there are none.
    """
    if running_s is not None and not answer.outlasts(running_s):
        return running_s
    return min(MOST_DRAIN_S, max(LEAST_DRAIN_S, round_up(math.ceil(answer.seconds), STEP_S)))


def grace_period_s(drain_s: int) -> int:
    """Return ``terminationGracePeriodSeconds``, which counts from a pod's deletion."""
    return PRE_STOP_S + drain_s + EXIT_S


def drain_allowed_s(grace_s: int) -> int:
    """Return the time to finish that a grace period leaves pods like ours."""
    return max(0, grace_s - PRE_STOP_S - EXIT_S)


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


def startup_budget_s(weights_bytes: float, host_cache_gib: float = 0) -> float:
    """Return how long a replica may take from container start to healthy.

    Twice the time to load the weights at a slow 0.5 GB/s, to touch a cache in host memory at a slow
    2 GB/s and to compile, never below half an hour, since the first start downloads.

    Sources:
        [vllm-source] docs/deployment/k8s.md: too small a budget kills a loading engine.
    """
    loads_s = weights_bytes / SLOW_LOAD_BYTES_PER_S
    touches_s = host_cache_gib * GIB / SLOW_TOUCH_BYTES_PER_S
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
    workload = workload_over(figures.num_nodes)
    place(template["spec"], own_pod, name, workload, is_worker=is_worker)
    return template


def deprecation(model: ModelDeployment) -> tuple[Reason, ...]:
    """Name the fields of ``pods`` that go in 0.3, and the template that makes the same pods."""
    fields = deprecated_fields(model.spec.pods)
    if not fields:
        return ()
    named = f"deprecated, removed in 0.3: {', '.join(fields)}"
    instead = json.dumps(given_template(model.spec.pods))
    message = f"{named}; use pods.template: {instead}, which makes the same pods"
    return (Reason(code=DEPRECATED, message=message),)


def _pod_spec(spec: Spec, figures: PodFigures, *, is_worker: bool) -> Manifest:
    pods = spec.pods or Pods()
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": grace_period_s(figures.drain_s),
        "securityContext": _security(pods),
        "tolerations": [dict(GPU_TAINT)],
        "containers": [_container(spec, figures, is_worker=is_worker)],
        "volumes": _volumes(pods, figures),
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
    engine, pods = spec.engine, spec.pods or Pods()
    ports = {"ports": [{"name": "http", "containerPort": HTTP_PORT}]}
    image = engine.image if engine and engine.image else default_image(spec)
    num_gpus = figures.flags.parallelism.num_gpus // figures.num_nodes
    budget_s = startup_budget_s(figures.weights_bytes, figures.host_cache_gib)
    return {
        "name": CONTAINER,
        "image": image,
        "command": list(COMMAND),
        "args": engine_arguments(spec, figures, is_worker=is_worker),
        **({} if is_worker else ports),
        "env": environment(pods),
        "resources": {"limits": {"nvidia.com/gpu": str(num_gpus)}},
        **({} if is_worker else _probes(budget_s)),
        "terminationMessagePolicy": "FallbackToLogsOnError",  # else there is none
        "lifecycle": {"preStop": {"exec": {"command": ["sleep", str(PRE_STOP_S)]}}},
        "securityContext": _confined(),
        "volumeMounts": [
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 - shared memory of NCCL
            {"name": "cache", "mountPath": "/cache"},
            *([{"name": "tonnage", "mountPath": OWN}] if pods.model_cache_claim else ()),
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
    gib = host_cache_room_gib(figures.host_cache_gib, figures.flags.parallelism.tensor)
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


def _volumes(pods: Pods, figures: PodFigures) -> list[Manifest]:
    size = with_host_cache(pods.shared_memory, figures.host_cache_gib)
    shm: Manifest = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": size}}
    if pods.model_cache_claim:
        claim = {"claimName": pods.model_cache_claim}
        own: Manifest = {"name": "tonnage", "emptyDir": {}}
        return [shm, {"name": "cache", "persistentVolumeClaim": claim}, own]
    return [shm, {"name": "cache", "emptyDir": {}}]


OWN: Final = "/tonnage"
CLAIMED: Final = {"HF_MODULES_CACHE": f"{OWN}/modules", "PYTHONNOUSERSITE": "1"}
"""Of pods with a claim. Modules of a model's repository would be below HF_HOME."""
SHARED: Final = {
    "VLLM_CACHE_ROOT": "/cache/vllm",
    "FLASHINFER_WORKSPACE_BASE": "/cache/home",
    "TRITON_CACHE_DIR": "/cache/home/.triton/cache",
}
"""Where what was compiled has been on claims since 0.1."""


def environment(pods: Pods) -> list[Manifest]:
    """Return the variables of the engine's container.

    On a claim, which others may write, are the weights: nothing that Python imports, and what was
    compiled only where the spec asks for it. Without one /cache is the pod's own.

    Sources:
        [vllm-source] vllm/envs.py VLLM_API_KEY; entrypoints/openai/server_utils.py
        AuthenticationMiddleware: paths that begin with /v1 ask for the key, no others;
        VLLM_CACHE_ROOT: what torch.compile and DeepGEMM make.
    """
    own = OWN if pods.model_cache_claim else "/cache"
    plain = {
        "HOME": f"{own}/home",
        "HF_HOME": "/cache/huggingface",
        "VLLM_CACHE_ROOT": f"{own}/vllm",
        "USER": NAME_OF_ANY_USER,
        "LOGNAME": NAME_OF_ANY_USER,
        **(CLAIMED if pods.model_cache_claim else {}),
        **(SHARED if pods.compile_cache == "Claim" else {}),
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


PRODUCT_LABEL = "nvidia.com/gpu.product"
GPU_TAINT: Final = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
"""Of GPU nodes: every engine accepts it."""
REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"


def together(pods: Pods) -> dict[str, str]:
    """Return the annotation by which a group has all its nodes in one place, with no other group.

    The pods have it too: a change of the LeaderWorkerSet's own annotation rolls none of them.

    Sources:
        [lws-source] pkg/webhooks/pod_webhook.go SetExclusiveAffinities (the pod's), and
        pkg/controllers/pod_controller.go Reconcile: workers are made where their leader is, once it
        has a node (the LeaderWorkerSet's).
    """
    return {TOPOLOGY_ANNOTATION: pods.group_topology} if pods.group_topology else {}


def affinity(pods: Pods, product_labels: tuple[str, ...]) -> Manifest:
    """Return the field of a pod by which its node has the GPU class, if a node must.

    As the user says, else by its label.
    """
    own = {"key": PRODUCT_LABEL, "operator": "In", "values": list(product_labels)}
    expressions: list[Manifest] = [own] if product_labels else []
    if pods.gpu_nodes is not None:
        expressions = [
            {name: value for name, value in each.to_dict().items() if value}
            for each in pods.gpu_nodes
        ]
    if not expressions:
        return {}
    terms = {"nodeSelectorTerms": [{"matchExpressions": expressions}]}
    return {"affinity": {"nodeAffinity": {REQUIRED: terms}}}


def place(pod: Manifest, own: Manifest, name: str, workload: Workload, *, is_worker: bool) -> None:
    """Have a merged pod keep to nodes of the GPU class, and its replicas spread.

    Each term of the user's is held beside ours. Replicas are what is spread, so the workers of one
    are not; where a constraint does not say over which pods, a rollout spreads its own.
    """
    if "affinity" in own:
        [ours] = own["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
        required = pod["affinity"]["nodeAffinity"][REQUIRED]
        terms = [each for each in required["nodeSelectorTerms"] if each is not ours]
        for each in terms:  # fresh ones, which YAML writes out
            more = each.get("matchExpressions", [])
            each["matchExpressions"] = deepcopy([*ours["matchExpressions"], *more])
        required["nodeSelectorTerms"] = terms or [ours]
    spread = pod.pop("topologySpreadConstraints", [])
    if spread and not is_worker:
        over = {
            "labelSelector": {"matchLabels": workload.engines(name)},
            "matchLabelKeys": [workload.revision_label],
        }
        pod["topologySpreadConstraints"] = [
            each if "labelSelector" in each else {**each, **deepcopy(over)} for each in spread
        ]
