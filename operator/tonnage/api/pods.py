"""The parts of a spec that reach a pod: the engine, the template of the pods and what is beside."""

import re
from collections import Counter
from typing import Annotated, Literal

from pydantic import Field
from pydantic.alias_generators import to_snake

from tonnage.api.base import ApiModel, Checked, Rule, matches, rule
from tonnage.api.fields import (
    Argument,
    LabelName,
    LabelValue,
    NodeSelector,
    PodAnnotations,
    PodLabels,
    PodShare,
    Quantity,
    ResourceName,
)
from tonnage.api.hardware import Role
from tonnage.api.pod_rules import PodTemplate, rules
from tonnage.units import quantity

_Key = Annotated[str, Field(pattern="^[-._A-Za-z0-9]{1,253}$", max_length=253)]


class ConfigMapKey(ApiModel):
    """One key of a ConfigMap in the same namespace."""

    name: ResourceName
    """The name of the ConfigMap."""
    key: _Key
    """The key of the ConfigMap that has the text."""


class SecretKey(ApiModel):
    """One key of a Secret in the same namespace. It is named in the pod and never read here."""

    name: ResourceName
    """The name of the Secret."""
    key: _Key = "token"
    """The key of the Secret that has the token."""


class SecretKeyRef(ApiModel):
    """One key of a Secret in the same namespace. It is named in the pod and never read here."""

    name: ResourceName
    """The name of the Secret."""
    key: _Key
    """The key of the Secret."""


class PullSecret(ApiModel):
    """A Secret in the same namespace with which the kubelet pulls the image."""

    name: ResourceName
    """The name of the Secret, which has the type kubernetes.io/dockerconfigjson."""


_VARIABLE_PATTERN = "^[A-Za-z_][A-Za-z0-9_]{0,127}$"
_VARIABLE_MESSAGE = "must be a valid variable name, and not one that Tonnage or vLLM reserves"

VariableName = Annotated[
    str,
    Field(max_length=128),
    matches(
        _VARIABLE_PATTERN, _VARIABLE_MESSAGE, but=rules()["values"]["engineEnv"]["name"]["not"]
    ),
]


class SecretVariable(ApiModel):
    """An environment variable of the engine from a Secret, such as a key of an object store."""

    name: VariableName
    """The name of the variable. Names that Tonnage sets, such as HF_HOME, are refused."""
    secret_key_ref: SecretKeyRef
    """The Secret and key of the value. Tonnage names it in the pod and never reads it."""


_PRIORITY_MESSAGE = (
    "must not begin with system-: name a PriorityClass that is not the cluster's own"
)


def _checked_priority(name: str) -> str:
    if name.startswith("system-"):
        raise ValueError(_PRIORITY_MESSAGE)
    return name


PriorityName = Annotated[
    ResourceName,
    Checked(_checked_priority, (rule("!self.startsWith('system-')", _PRIORITY_MESSAGE),)),
]


class Toleration(ApiModel):
    """A taint that the pods accept."""

    rules = (
        Rule(
            "self.operator == 'Equal' || !has(self.value)",
            "operator Exists takes no value",
            lambda it: it.operator == "Equal" or it.value is None,
        ),
        Rule(
            "self.operator == 'Exists' || has(self.key)",
            "operator Equal needs a key",
            lambda it: it.operator == "Exists" or it.key is not None,
        ),
    )

    key: LabelName | None = None
    """The key of the taint. If absent, with operator Exists, every taint matches."""
    operator: Literal["Exists", "Equal"] = "Equal"
    """Equal matches the given value of the taint, Exists any value."""
    value: LabelValue | None = None
    """The value of the taint, for operator Equal."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """The effect of the taint. If absent, every effect matches."""


class NodeRequirement(ApiModel):
    """A requirement on a label of a node."""

    rules = (
        Rule(
            "self.operator in ['In', 'NotIn'] == (has(self.values) && size(self.values) > 0)",
            "operators In and NotIn need values, Exists and DoesNotExist take none",
            lambda it: (it.operator in {"In", "NotIn"}) == bool(it.values),
        ),
    )

    key: LabelName
    """The key of the node label."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"] = "In"
    """How the label is compared: In or NotIn ``values``, or whether it Exists or DoesNotExist."""
    values: Annotated[tuple[LabelValue, ...], Field(max_length=32)] = ()
    """The values that In and NotIn compare with."""


class TopologySpread(ApiModel):
    """How the pods of one revision spread over the values of a node label."""

    max_skew: Annotated[int, Field(ge=1, le=100)] = 1
    """The maximum difference between the numbers of pods in two topology domains."""
    topology_key: LabelName
    """The node label of the topology domains, such as topology.kubernetes.io/zone."""
    when_unsatisfiable: Literal["ScheduleAnyway", "DoNotSchedule"] = "ScheduleAnyway"
    """ScheduleAnyway is a preference. With DoNotSchedule a pod waits if no node satisfies it."""


class User(ApiModel):
    """The user and group of the engine, which never runs as root. Without spec.pods.user: 2000.

    With it, Tonnage sets the fields that are here and leaves the others to the cluster: OpenShift
    takes them from the range of the namespace, other clusters from the image.
    """

    id: Annotated[int, Field(ge=1, le=2_147_483_647)] | None = None
    """The user id of the engine, not 0. If absent, the cluster chooses."""
    group: Annotated[int, Field(ge=0, le=2_147_483_647)] | None = None
    """The group id of the engine and of its volumes. If absent, the cluster chooses."""


class DisruptionBudget(ApiModel):
    """Limits on evictions, such as those of a node that is drained."""

    rules = (
        Rule(
            "has(self.minAvailable) != has(self.maxUnavailable)",
            "needs one of minAvailable, maxUnavailable",
            lambda it: (it.min_available is None) != (it.max_unavailable is None),
        ),
    )

    min_available: PodShare | None = None
    """Pods that must stay available during evictions, such as 2 or 90%. The fleet keeps at least as
    many replicas as allow one eviction: 3 for 2, 10 for 90%."""
    max_unavailable: PodShare | None = None
    """The number of pods, or a percentage of them, that may be evicted at once."""


class Peer(ApiModel):
    """Pods that may connect to the engines, by their labels, their namespace's labels, or both."""

    rules = (
        Rule(
            "(has(self.namespaceSelector) && size(self.namespaceSelector) > 0) || "
            "(has(self.podSelector) && size(self.podSelector) > 0)",
            "needs namespaceSelector or podSelector",
            lambda it: it.namespace_selector or it.pod_selector,
        ),
    )

    namespace_selector: NodeSelector = Field(default_factory=dict)
    """Labels of the namespaces. If absent, only the object's own namespace."""
    pod_selector: NodeSelector = Field(default_factory=dict)
    """Labels of the pods. If absent, all pods of those namespaces."""


Port = Annotated[int, Field(ge=1, le=65_535)]


class EngineNetwork(ApiModel):
    """Who may connect to the engines, and where these may connect to. All else is blocked."""

    clients: Annotated[tuple[Peer, ...], Field(max_length=16)] = ()
    """Pods that may send requests to the engines, and read their metrics on the same port.

    Prometheus must be among them, unless the operator's settings name its namespace.
    """
    egress_ports: Annotated[tuple[Port, ...], Field(max_length=32)] | None = None
    """TCP ports that engines may connect to besides DNS, such as 443. If absent, to all ports."""


_TAG_VERSION = ":v?[0-9]{1,4}[.][0-9]{1,4}([.+-][A-Za-z0-9._+-]{0,100})?$"


class Speculative(ApiModel):
    """Speculative decoding: draft tokens, which one step of the model verifies together."""

    method: Literal["mtp", "ngram"]
    """The source of draft tokens: draft layers of the checkpoint (mtp) or repeated text (ngram)."""
    tokens: Annotated[int, Field(ge=1, le=16)]
    """The number of draft tokens per sequence and step."""
    accepted_percent: Annotated[int, Field(ge=0, le=100)]
    """The percentage of draft tokens accepted, of those whose predecessors were all accepted."""


EngineVersion = Annotated[
    str, Field(pattern="^[0-9]{1,4}[.][0-9]{1,4}([.][0-9]{1,4})?$", max_length=14)
]


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

    version: EngineVersion | None = None
    """The vLLM version, such as 0.33."""
    image: (
        Annotated[str, Field(pattern="^[a-z0-9][A-Za-z0-9._:/@-]{0,254}$", max_length=255)] | None
    ) = None
    """The container image. If absent, vllm/vllm-openai with the tag of the version."""
    args: Annotated[tuple[Argument, ...], Field(max_length=32)] = ()
    """Further vLLM flags, each as ``--flag=value``. Only flags of a list are allowed."""
    max_num_batched_tokens: Annotated[int, Field(ge=32, le=1_048_576)] | None = None
    """The maximum tokens of one engine step, ``--max-num-batched-tokens``. If absent, Tonnage takes
    vLLM's default for the GPU, or another value that serves more requests."""
    speculative: Speculative | None = None
    """Speculative decoding. If absent, it is off."""
    admission: Literal["all", "inTime"] = "all"
    """Which requests an engine accepts: every one (all), or only those that it can start in time
    (inTime). With inTime, new requests get status 503 while those that are queued would take longer
    than the TTFT target of the highest percentile allows: ``--max-num-queued-reqs`` and
    ``--max-num-queued-tokens``. Needs vLLM 0.32 or newer."""
    role: Role | None = None
    """The role in disaggregated serving: prefill computes the KV cache of prompts, decode loads it
    and generates the output. If absent, the replicas do both. Each role is a ModelDeployment of its
    own, and your proxy has to send every request to prefill, then to decode. A request counts once
    in ``demand`` of each role. The SLO of a role counts from the time at which its engine gets a
    request."""

    @property
    def repeated_flags(self) -> list[str]:
        """Of the arguments, those that are given twice."""
        flags = Counter(argument.partition("=")[0] for argument in self.args)
        return sorted(flag for flag, number in flags.items() if number > 1)

    @property
    def known_version(self) -> str:
        """The version given, or the one in the image tag."""
        return self.version or (self.image or "").rpartition(":")[2].removeprefix("v")


def _unique(field: str, key: str) -> Rule:
    """Return the rule that no elements of a field share a key."""
    each = f"self.{field}.all(a, self.{field}.exists_one(b, b.{key} == a.{key}))"
    elements, shared = to_snake(field), to_snake(key)

    def holds(it: "Pods") -> bool:
        found = [getattr(each, shared) for each in getattr(it, elements)]
        return len(set(found)) == len(found)

    return Rule(f"!has(self.{field}) || {each}", f"{key} must not be repeated", holds, field)


def _within(name: str) -> Rule:
    """Return the rule that an amount does not exceed its limit."""
    limit = f"{name}Limit"
    request_field, limit_field = to_snake(name), to_snake(limit)

    def holds(it: "Pods") -> bool:
        asked, most = getattr(it, request_field), getattr(it, limit_field)
        return not asked or not most or quantity(asked) <= quantity(most)

    cel = f"quantity(self.{name}).compareTo(quantity(self.{limit})) <= 0"
    return Rule(
        f"!has(self.{name}) || !has(self.{limit}) || {cel}",
        f"{name} must not exceed {limit}",
        holds,
    )


class Pods(ApiModel):
    """The pods of the engines: a template to merge into Tonnage's own, and further options."""

    rules = (
        _within("cpu"),
        _within("memory"),
        _within("ephemeralStorage"),
        _unique("topologySpreadConstraints", "topologyKey"),
        _unique("imagePullSecrets", "name"),
        _unique("env", "name"),
        Rule(
            "!has(self.compileCache) || self.compileCache == 'Pod' || has(self.modelCacheClaim)",
            "compileCache Claim needs modelCacheClaim",
            lambda it: it.compile_cache == "Pod" or it.model_cache_claim,
        ),
    )

    template: PodTemplate | None = None
    """A partial PodTemplateSpec that is merged into Tonnage's own; containers, volumes and
    variables merge by name. The engine's container is named vllm. Fields that Tonnage sets, or that
    give a pod access to the node or its GPUs, are refused; the error names the field."""
    model_cache_claim: ResourceName | None = None
    """The PersistentVolumeClaim for the weights, mounted at /cache. If absent, each pod downloads
    them."""
    compile_cache: Literal["Pod", "Claim"] = "Pod"
    """Where vLLM keeps what it compiles: in the pod (Pod), so that each pod compiles again, or on
    the claim (Claim), for all pods that mount it. Engines run it as code: with Claim, whoever may
    write the claim runs code in them."""
    hugging_face_token_secret: SecretKey | None = None
    """The Secret with the Hugging Face token that downloads the weights. Pods get it as HF_TOKEN;
    Tonnage never reads it."""
    api_key_secret: SecretKeyRef | None = None
    """The Secret with the API key that requests to /v1 must send as a bearer token. /health and
    /metrics stay open."""
    shared_memory: Quantity = "8Gi"
    """The size limit of /dev/shm, through which the processes of an engine exchange data."""
    user: User | None = None
    gpu_nodes: Annotated[tuple[NodeRequirement, ...], Field(max_length=8)] | None = None
    """The label requirements that select nodes with the GPU class; a node must match all of them.
    If absent, the label nvidia.com/gpu.product selects. An empty list matches every node."""
    group_topology: LabelName | None = None
    """The node label of a topology domain, such as a rack. All nodes of a multi-node replica then
    have the same value, and no other multi-node replica runs there. If absent, any nodes serve."""
    max_surge: Annotated[int, Field(ge=0, le=1)] = 1
    """How many extra pods a rollout may start. With 0, a rollout removes a pod before it starts the
    new one: use 0 if no GPU is free for an extra pod."""
    disruption_budget: DisruptionBudget | None = None
    """The PodDisruptionBudget, which limits how many pods may be evicted at once, as when a node is
    drained. If absent, none is created."""
    network_policy: EngineNetwork | None = None
    """The NetworkPolicy, which limits who may connect to the engines, and where these may connect
    to. If absent, none is created."""

    node_selector: NodeSelector = Field(default_factory=dict)
    """Deprecated, removed in 0.3: use template.spec.nodeSelector."""
    tolerations: Annotated[tuple[Toleration, ...], Field(max_length=16)] = ()
    """Deprecated, removed in 0.3: use template.spec.tolerations."""
    cpu: Quantity | None = None
    """Deprecated, removed in 0.3: use resources.requests of container vllm in template.spec."""
    memory: Quantity | None = None
    """Deprecated, removed in 0.3: use resources.requests of container vllm in template.spec."""
    priority_class_name: PriorityName | None = None
    """Deprecated, removed in 0.3: use template.spec.priorityClassName."""
    runtime_class_name: ResourceName | None = None
    """Deprecated, removed in 0.3: use template.spec.runtimeClassName."""
    cpu_limit: Quantity | None = None
    """Deprecated, removed in 0.3: use resources.limits of container vllm in template.spec."""
    memory_limit: Quantity | None = None
    """Deprecated, removed in 0.3: use resources.limits of container vllm in template.spec."""
    ephemeral_storage: Quantity | None = None
    """Deprecated, removed in 0.3: use resources.requests of container vllm in template.spec."""
    ephemeral_storage_limit: Quantity | None = None
    """Deprecated, removed in 0.3: use resources.limits of container vllm in template.spec."""
    topology_spread_constraints: Annotated[tuple[TopologySpread, ...], Field(max_length=4)] = ()
    """Deprecated, removed in 0.3: use template.spec.topologySpreadConstraints."""
    service_account_name: ResourceName | None = None
    """Deprecated, removed in 0.3: use template.spec.serviceAccountName."""
    image_pull_secrets: Annotated[tuple[PullSecret, ...], Field(max_length=8)] = ()
    """Deprecated, removed in 0.3: use template.spec.imagePullSecrets."""
    env: Annotated[tuple[SecretVariable, ...], Field(max_length=32)] = ()
    """Deprecated, removed in 0.3: use env of container vllm in template.spec.containers."""
    fs_group_change_policy: Literal["Always", "OnRootMismatch"] | None = None
    """Deprecated, removed in 0.3: use template.spec.securityContext.fsGroupChangePolicy."""
    labels: PodLabels = Field(default_factory=dict)
    """Deprecated, removed in 0.3: use template.metadata.labels."""
    annotations: PodAnnotations = Field(default_factory=dict)
    """Deprecated, removed in 0.3: use template.metadata.annotations."""


_FIELDS = tuple(Pods.model_fields)
DEPRECATED = _FIELDS[_FIELDS.index("node_selector") :]
"""What 0.3 has no more: ``pod_template.given_template`` alone reads it."""
UNTEMPLATED = frozenset({"disruption_budget", "network_policy"})
"""What of it stands in objects of its own: a change restarts nothing."""


class ScaleTarget(ApiModel):
    """An existing Deployment or LeaderWorkerSet whose template stays untouched."""

    kind: Literal["Deployment", "LeaderWorkerSet"] = "Deployment"
    """The kind of the workload. A replica of a LeaderWorkerSet is a group of pods."""
    name: ResourceName
    """The name of the workload. It and its pods need the label tonnage.dev/managed: "true"."""
    role: Role | None = None
    """The role of its engines, as in ``engine.role``; they need a KV connector. If absent, they
    serve both prefill and decode."""
    engine_version: EngineVersion | None = None
    """The vLLM version of its image, such as 0.33. If absent, the tag of the image must tell it, as
    those of vllm/vllm-openai do. Change it when the image changes."""
