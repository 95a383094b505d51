"""The parts of a spec that reach a pod: the engine, and the closed set of pod fields."""

import re
from collections import Counter
from typing import Annotated, Final, Literal, get_args

from pydantic import Field

from tonnage.api.base import ApiModel, Rule
from tonnage.api.fields import (
    Argument,
    LabelName,
    NodeSelector,
    PodAnnotations,
    PodLabels,
    Quantity,
    ResourceName,
)
from tonnage.api.placement import NodeRequirement, PriorityName, Toleration, TopologySpread, User
from tonnage.api.protection import DisruptionBudget, EngineNetwork
from tonnage.api.references import PullSecret, SecretKey, SecretKeyRef, SecretVariable
from tonnage.units import quantity

_TAG_VERSION = ":v?[0-9]{1,4}[.][0-9]{1,4}([.+-][A-Za-z0-9._+-]{0,100})?$"


class Speculative(ApiModel):
    """Speculative decoding: draft tokens, which one step of the model verifies together."""

    method: Literal["mtp", "ngram"]
    """mtp: draft layers of the checkpoint; ngram: a search in the text so far."""
    tokens: Annotated[int, Field(ge=1, le=16)]
    """Draft tokens for each sequence in each step."""
    accepted_percent: Annotated[int, Field(ge=0, le=100)]
    """How often a draft token is accepted when those before it were: by model and traffic."""


Role = Literal["prefill", "decode"]
ROLES: Final[tuple[Role, ...]] = get_args(Role)


class EngineSpec(ApiModel):
    """The serving engine. Its version decides flags, memory constants and metric names."""

    rules = (
        Rule(
            f"has(self.version) || (has(self.image) && self.image.matches('{_TAG_VERSION}'))",
            "version is required unless the image tag is a version",
            lambda it: it.version or re.search(_TAG_VERSION, it.image or "", re.ASCII),
        ),
        Rule(
            "!has(self.args) || self.args.all(a, self.args.exists_one(b, "
            "b.split('=')[0] == a.split('=')[0]))",
            "a flag must not be repeated[: {}]",
            lambda it: not it.repeated_flags,
            "args",
            figures=(("", lambda it: ", ".join(it.repeated_flags)),),
        ),
    )

    version: (
        Annotated[str, Field(pattern="^[0-9]{1,4}[.][0-9]{1,4}([.][0-9]{1,4})?$", max_length=14)]
        | None
    ) = None
    """vLLM version, such as 0.33."""
    image: (
        Annotated[str, Field(pattern="^[a-z0-9][A-Za-z0-9._:/@-]{0,254}$", max_length=255)] | None
    ) = None
    """Container image; absent: the vLLM release image of that version."""
    args: Annotated[tuple[Argument, ...], Field(max_length=32)] = ()
    """Further flags, one ``--flag=value`` each, from a list of allowed ones."""
    max_num_batched_tokens: Annotated[int, Field(ge=32, le=1_048_576)] | None = None
    """Tokens of one step, ``--max-num-batched-tokens``: prompts are read in chunks of as many.
    Absent: the default of vLLM for the GPU, or another where that serves more."""
    speculative: Speculative | None = None
    """Speculative decoding; absent: each step gives each sequence one token."""
    queue: Literal["fcfs", "newestFirst"] = "fcfs"
    """Who is admitted first. fcfs: who came first. newestFirst: who came in the newest stretch of
    time, 1.25 times the shortest TTFT target; requests that are late already wait for a lull."""
    admission: Literal["all", "inTime"] = "all"
    """Who may wait for a first token. all: everybody. inTime: while more prompt tokens wait than
    are served in 0.8 of the strictest TTFT target, who comes would be late and is refused at once,
    with status 503. Needs vLLM 0.32, which counts who is refused."""
    role: Role | None = None
    """Which part of each request the replicas serve; absent: all of it. prefill: they read prompts,
    and hand the KV cache over; decode: they take it and make the answer. One ModelDeployment for
    each role, and a proxy that sends every request to both. ``demand`` is of whole requests; the
    SLO counts from when an engine of the role gets one."""

    @property
    def repeated_flags(self) -> list[str]:
        """Of the arguments, those that are given twice."""
        flags = Counter(argument.partition("=")[0] for argument in self.args)
        return sorted(flag for flag, number in flags.items() if number > 1)

    @property
    def known_version(self) -> str:
        """The version given, or the one in the image tag."""
        return self.version or (self.image or "").rpartition(":")[2].removeprefix("v")


def _unique(field: str, key: str, attributes: tuple[str, str]) -> Rule:
    """Return the rule that no elements of a field share a key; ``attributes``: of both."""
    elements, name = attributes
    each = f"self.{field}.all(a, self.{field}.exists_one(b, b.{key} == a.{key}))"

    def holds(it: "Pods") -> bool:
        found = [getattr(each, name) for each in getattr(it, elements)]
        return len(set(found)) == len(found)

    return Rule(f"!has(self.{field}) || {each}", f"{key} must not be repeated", holds, field)


def _within(name: str, attribute: str) -> Rule:
    """Return the rule that an amount does not exceed its limit."""
    limit = f"{name}Limit"

    def holds(it: "Pods") -> bool:
        asked, most = getattr(it, attribute), getattr(it, f"{attribute}_limit")
        return not asked or not most or quantity(asked) <= quantity(most)

    cel = f"quantity(self.{name}).compareTo(quantity(self.{limit})) <= 0"
    return Rule(
        f"!has(self.{name}) || !has(self.{limit}) || {cel}",
        f"{name} must not exceed {limit}",
        holds,
    )


class Pods(ApiModel):
    """The part of the pods that a user decides: a closed set, not a pod template."""

    rules = (
        _within("cpu", "cpu"),
        _within("memory", "memory"),
        _within("ephemeralStorage", "ephemeral_storage"),
        _unique(
            "topologySpreadConstraints",
            "topologyKey",
            ("topology_spread_constraints", "topology_key"),
        ),
        _unique("imagePullSecrets", "name", ("image_pull_secrets", "name")),
        _unique("env", "name", ("env", "name")),
    )

    node_selector: NodeSelector = Field(default_factory=dict)
    """Labels that a node must have, beside its GPU class."""
    tolerations: Annotated[tuple[Toleration, ...], Field(max_length=16)] = ()
    """Taints that the pods accept, beside nvidia.com/gpu."""
    model_cache_claim: ResourceName | None = None
    """PersistentVolumeClaim for weights and compile cache."""
    hugging_face_token_secret: SecretKey | None = None
    """Token by which weights are downloaded, as HF_TOKEN: named in the pod, never read here."""
    cpu: Quantity | None = None
    """CPUs that a pod requests; absent: none are requested."""
    memory: Quantity | None = None
    """Memory of the host that a pod requests; absent: none is requested."""
    shared_memory: Quantity = "8Gi"
    """Size limit of /dev/shm."""
    priority_class_name: PriorityName | None = None
    """PriorityClass of the pods: which others they may preempt."""
    runtime_class_name: ResourceName | None = None
    """RuntimeClass of the pods, such as nvidia."""
    cpu_limit: Quantity | None = None
    """CPUs that a pod may use at most; absent: no limit."""
    memory_limit: Quantity | None = None
    """Memory of the host that a pod may use at most: one that takes more is killed."""
    ephemeral_storage: Quantity | None = None
    """Disk of the node that a pod asks for: without a claim, weights are downloaded to it."""
    ephemeral_storage_limit: Quantity | None = None
    """A pod that takes more is evicted."""
    gpu_nodes: Annotated[tuple[NodeRequirement, ...], Field(max_length=8)] | None = None
    """Which nodes have the GPU class, all of these, in place of nvidia.com/gpu.product: clouds
    label GPUs differently. Empty: any node."""
    topology_spread_constraints: Annotated[tuple[TopologySpread, ...], Field(max_length=4)] = ()
    """How the pods spread over zones or nodes; absent: by the defaults of the scheduler."""
    group_topology: LabelName | None = None
    """Label of nodes, as of a rack: where a replica takes several nodes, all have one value of it,
    and no group of another replica is there. Absent: any nodes."""
    service_account_name: ResourceName | None = None
    """For pull secrets and a cloud's identity. Its token is not mounted."""
    image_pull_secrets: Annotated[tuple[PullSecret, ...], Field(max_length=8)] = ()
    """Secrets with which the kubelet pulls the image."""
    env: Annotated[tuple[SecretVariable, ...], Field(max_length=32)] = ()
    """Variables from Secrets, such as the keys of an object store."""
    api_key_secret: SecretKeyRef | None = None
    """Key that requests under /v1 must bring as a bearer token; /health and /metrics need none."""
    user: User | None = None
    fs_group_change_policy: Literal["Always", "OnRootMismatch"] | None = None
    """OnRootMismatch: a large claim is not walked through at each start."""
    labels: PodLabels = Field(default_factory=dict)
    """Further labels of the pods, such as those that an InferencePool selects."""
    annotations: PodAnnotations = Field(default_factory=dict)
    """Further annotations of the pods, such as those of a service mesh."""
    max_surge: Annotated[int, Field(ge=0, le=1)] = 1
    """Pods beyond the replicas while they are replaced. 0: one is taken away before its
    successor starts, where no GPU is free for both."""
    disruption_budget: DisruptionBudget | None = None
    """PodDisruptionBudget: how far evictions may go, as of a node that is drained; absent: none."""
    network_policy: EngineNetwork | None = None
    """NetworkPolicy: who may reach the engines, and what they may reach; absent: none."""


UNTEMPLATED = frozenset({"disruption_budget", "network_policy"})
"""What of it stands in objects of its own: a change restarts nothing."""


class ScaleTarget(ApiModel):
    """An existing Deployment or LeaderWorkerSet whose template stays untouched."""

    kind: Literal["Deployment", "LeaderWorkerSet"] = "Deployment"
    """Whose replicas are pods, or groups of pods of which the leader answers."""
    name: ResourceName
    """It is labelled tonnage.dev/managed: "true" by its owner."""
    role: Role | None = None
    """Which part of each request its engines serve, as ``engine.role`` says of ours: they have a KV
    connector; absent: all of it."""
