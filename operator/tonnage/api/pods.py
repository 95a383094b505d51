"""The parts of a spec that reach a pod: the engine, the template of the pods and what is beside."""

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
from tonnage.api.pod_rules import PodTemplate
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
    """The pods of the engines: a template that is merged onto ours, and what Tonnage acts on."""

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

    template: PodTemplate | None = None
    """A part of a PodTemplateSpec, which is merged onto the one that Tonnage writes, containers,
    volumes and variables by name. The engine's container is called vllm. A field that Tonnage sets
    itself, or that opens the node or its GPUs to a pod, is refused by its path."""
    model_cache_claim: ResourceName | None = None
    """The PersistentVolumeClaim that holds weights and compile cache, mounted at /cache; without it
    each pod downloads and compiles anew."""
    hugging_face_token_secret: SecretKey | None = None
    """The Secret with the token by which weights are downloaded, as HF_TOKEN: the pod names it, and
    Tonnage never reads it."""
    api_key_secret: SecretKeyRef | None = None
    """The Secret with the key that requests under /v1 must bring as a bearer token; /health and
    /metrics need none."""
    shared_memory: Quantity = "8Gi"
    """The size limit of /dev/shm, by which the processes of an engine exchange data."""
    user: User | None = None
    gpu_nodes: Annotated[tuple[NodeRequirement, ...], Field(max_length=8)] | None = None
    """The labels of nodes that have the GPU class, where the cloud does not set the label
    nvidia.com/gpu.product; all of them must hold, and an empty list takes any node."""
    group_topology: LabelName | None = None
    """A label of nodes, such as that of a rack: the nodes of a replica over several have one value
    of it, and no other replica runs there. Absent: any nodes."""
    max_surge: Annotated[int, Field(ge=0, le=1)] = 1
    """How many pods run beyond the replicas while these are replaced. With 0 a pod goes before its
    successor starts, where no GPU is free for both."""
    disruption_budget: DisruptionBudget | None = None
    """The PodDisruptionBudget that bounds how many pods an eviction takes away at once, as when a
    node is drained; absent: none is made."""
    network_policy: EngineNetwork | None = None
    """The NetworkPolicy that says who may reach the engines, and what they may reach; absent: none
    is made."""

    node_selector: NodeSelector = Field(default_factory=dict)
    """Deprecated, goes in 0.3: write template.spec.nodeSelector."""
    tolerations: Annotated[tuple[Toleration, ...], Field(max_length=16)] = ()
    """Deprecated, goes in 0.3: write template.spec.tolerations."""
    cpu: Quantity | None = None
    """Deprecated, goes in 0.3: write resources.requests of container vllm in template.spec."""
    memory: Quantity | None = None
    """Deprecated, goes in 0.3: write resources.requests of container vllm in template.spec."""
    priority_class_name: PriorityName | None = None
    """Deprecated, goes in 0.3: write template.spec.priorityClassName."""
    runtime_class_name: ResourceName | None = None
    """Deprecated, goes in 0.3: write template.spec.runtimeClassName."""
    cpu_limit: Quantity | None = None
    """Deprecated, goes in 0.3: write resources.limits of container vllm in template.spec."""
    memory_limit: Quantity | None = None
    """Deprecated, goes in 0.3: write resources.limits of container vllm in template.spec."""
    ephemeral_storage: Quantity | None = None
    """Deprecated, goes in 0.3: write resources.requests of container vllm in template.spec."""
    ephemeral_storage_limit: Quantity | None = None
    """Deprecated, goes in 0.3: write resources.limits of container vllm in template.spec."""
    topology_spread_constraints: Annotated[tuple[TopologySpread, ...], Field(max_length=4)] = ()
    """Deprecated, goes in 0.3: write template.spec.topologySpreadConstraints."""
    service_account_name: ResourceName | None = None
    """Deprecated, goes in 0.3: write template.spec.serviceAccountName."""
    image_pull_secrets: Annotated[tuple[PullSecret, ...], Field(max_length=8)] = ()
    """Deprecated, goes in 0.3: write template.spec.imagePullSecrets."""
    env: Annotated[tuple[SecretVariable, ...], Field(max_length=32)] = ()
    """Deprecated, goes in 0.3: write env of container vllm in template.spec.containers."""
    fs_group_change_policy: Literal["Always", "OnRootMismatch"] | None = None
    """Deprecated, goes in 0.3: write template.spec.securityContext.fsGroupChangePolicy."""
    labels: PodLabels = Field(default_factory=dict)
    """Deprecated, goes in 0.3: write template.metadata.labels."""
    annotations: PodAnnotations = Field(default_factory=dict)
    """Deprecated, goes in 0.3: write template.metadata.annotations."""


DEPRECATED = (
    *("node_selector", "tolerations", "cpu", "memory", "priority_class_name"),
    *("runtime_class_name", "cpu_limit", "memory_limit", "ephemeral_storage"),
    *("ephemeral_storage_limit", "topology_spread_constraints", "service_account_name"),
    *("image_pull_secrets", "env", "fs_group_change_policy", "labels", "annotations"),
)
"""What 0.3 has no more: ``pod_template.given_template`` alone reads it."""
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
