"""What a user writes: the spec of a ModelDeployment, and the single source of its CRD schema."""

from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal

from pydantic import Field

from tonnage.api.base import ApiModel, Rule
from tonnage.api.fields import (
    Duration,
    ModelId,
    OperatorClass,
    Percent,
    Rate,
    Revision,
    Tokens,
    Window,
)
from tonnage.api.hardware import ROLES, Hardware, Role, RoleOptions, Topology
from tonnage.api.pods import UNTEMPLATED, ConfigMapKey, EngineSpec, Pods, ScaleTarget
from tonnage.api.schedules import Schedule
from tonnage.units import seconds

MAX_NAME_LENGTH = 52
"""A Deployment adds an 11-character hash to the names of its pods' labels: 63 in all."""
NAME_PATTERN = f"^[a-z]([-a-z0-9]{{0,{MAX_NAME_LENGTH - 2}}}[a-z0-9])?$"
NAME_MESSAGE = (
    f"must be a DNS label of at most {MAX_NAME_LENGTH} characters that starts with a letter"
)
MAX_TOPOLOGY_NAME_LENGTH = MAX_NAME_LENGTH - len("-prefill")
TOPOLOGY_NAME_MESSAGE = (
    f"must have at most {MAX_TOPOLOGY_NAME_LENGTH} characters with spec.topology, which creates "
    "NAME-prefill and NAME-decode"
)


class ConfigSource(ApiModel):
    """Where a config.json stands for a model that the catalogue lacks."""

    config_map_key_ref: ConfigMapKey
    """The ConfigMap in the same namespace that has the config.json, and the key in it."""


class Adapters(ApiModel):
    """LoRA adapters. Buffers for them stand on every GPU, whether any is loaded or not."""

    number: Annotated[int, Field(ge=1, le=256)]
    """The number of adapters that one step can use, ``--max-loras``."""
    rank: Literal[8, 16, 32, 64, 128, 256, 320, 512]
    """The largest rank of the adapters, ``--max-lora-rank``. Smaller ranks take as much memory."""


MOST_HOST_GIB = 65_536
"""Of one replica."""


class KvOffload(ApiModel):
    """A KV cache in the memory of the host, behind that of the GPUs."""

    rules = (
        Rule(
            "(has(self.mode) && self.mode == 'Auto') || has(self.gib) || "
            "(has(self.workingSetTokens) && self.workingSetTokens > 0)",
            "set gib (of host memory) or workingSetTokens above 0: they size this cache",
            lambda it: it.is_auto or it.gib is not None or it.working_set_tokens,
        ),
    )

    mode: Literal["Always", "Auto"] = "Always"
    """Always offloads. Auto offloads if workingSetTokens exceed the free part of the GPUs' cache,
    fit into host memory, and the plan costs no more. Changing the mode alone restarts no pod."""
    gib: Annotated[int, Field(ge=1, le=MOST_HOST_GIB)] | None = None
    """Host memory in GiB for all ranks of a replica; in mode Auto the maximum. If absent, it is
    the size of workingSetTokens, and in mode Auto the limit of the GPU class. Prompts that are
    never reused are copied into it too."""
    working_set_tokens: Annotated[int, Field(ge=0, le=10**12)] | None = None
    """Distinct prompt tokens that later requests to the same replica reuse as prefixes. A plan
    then says whether the cache is worth its copies; in mode Auto the cache has this size."""

    @property
    def is_auto(self) -> bool:
        return self.mode == "Auto"


class Model(ApiModel):
    """The model that is served."""

    id: ModelId
    """The Hugging Face id of the model: organisation/name. Or the absolute path of a folder in the
    container, which pods.template mounts; it needs config."""
    revision: Revision | None = None
    """The commit, tag or branch on the Hugging Face Hub. Use a commit in production."""
    weights: Literal["auto", "bfloat16", "float16", "fp8", "int8", "int4", "mxfp4", "nvfp4"] = (
        "auto"
    )
    """The precision of the weights. auto reads it from the checkpoint's config.json."""
    kv_cache: Literal["auto", "bfloat16", "float16", "fp8"] = "auto"
    """The precision of the KV cache. auto follows the model; the Deployment has the result."""
    config: ConfigSource | None = None
    """The config.json of a model that is not in the catalogue."""
    adapters: Adapters | None = None
    """The LoRA adapters that can be served with the model. If absent, none can."""
    kv_offload: KvOffload | None = None
    """A KV cache in host memory. If absent, prefixes evicted from the GPUs are recomputed."""


class Percentiles(ApiModel):
    """A latency that a share of the requests must not exceed."""

    rules = (
        Rule(
            "has(self.p50) || has(self.p90) || has(self.p95) || has(self.p99)",
            "needs one of p50, p90, p95, p99",
            lambda it: it.targets(),
        ),
    )

    p50: Duration | None = None
    """The limit that 50 % of the requests must meet, such as 50ms, 1.5s or 5m; at most 1h."""
    p90: Duration | None = None
    """The limit that 90 % of the requests must meet, such as 50ms, 1.5s or 5m; at most 1h."""
    p95: Duration | None = None
    """The limit that 95 % of the requests must meet, such as 50ms, 1.5s or 5m; at most 1h."""
    p99: Duration | None = None
    """The limit that 99 % of the requests must meet, such as 50ms, 1.5s or 5m; at most 1h."""

    def targets(self) -> dict[float, float]:
        """Return {quantile: limit in seconds}."""
        given = {0.50: self.p50, 0.90: self.p90, 0.95: self.p95, 0.99: self.p99}
        return {quantile: seconds(limit) for quantile, limit in given.items() if limit is not None}


class AttainmentTarget(ApiModel):
    """The share of requests that must be in time over a window: the rest is the error budget."""

    percent: Percent | None = None
    """The percentage of requests that must meet the limit of the highest percentile of each
    latency. If absent, it is that percentile, such as 95 for p95."""
    window: Window = "24h"
    """The sliding window over which requests are counted, from 1h to 168h."""


class Slo(ApiModel):
    """SLO targets on latency. Without any, the model is served offline: at the memory ceiling."""

    rules = (
        Rule(
            "!has(self.attainment) || has(self.timeToFirstToken) || has(self.timePerOutputToken)",
            "attainment needs a target: timeToFirstToken or timePerOutputToken",
            lambda it: it.time_to_first_token or it.time_per_output_token or not it.attainment,
        ),
    )

    time_to_first_token: Percentiles | None = None
    """Limits on the time from a request to its first token (TTFT), by percentile."""
    time_per_output_token: Percentiles | None = None
    """Limits on the mean time between the output tokens of a request (TPOT), by percentile."""
    attainment: AttainmentTarget | None = None
    """The error budget. If absent, its window is a day, with each target at its percentile."""


class TokenCounts(ApiModel):
    """A distribution of token counts."""

    rules = (
        Rule(
            "!has(self.p99) || self.p99 >= self.mean",
            "p99[ {}] must not be below mean[ {}]",
            lambda it: it.p99 is None or it.p99 >= it.mean,
            figures=(("self.p99", lambda it: it.p99), ("self.mean", lambda it: it.mean)),
        ),
    )

    mean: Tokens
    """The mean number of tokens of a request."""
    p99: Tokens | None = None
    """The number of tokens that 99 % of the requests do not exceed. If absent, every prompt has the
    mean length, and the lengths of outputs have an exponential distribution."""


_RATES = ("requestsPerSecond", "tokensPerSecond", "tokensPerDay", "concurrentUsers")


class Demand(ApiModel):
    """Expected traffic: what holds until traffic is measured, and a peak that stays."""

    rules = (
        Rule(
            f"[{', '.join(f'has(self.{name})' for name in _RATES)}].filter(x, x).size() <= 1",
            f"at most one of {', '.join(_RATES)}",
            lambda it: len(it.rates_given) <= 1,
        ),
        Rule(
            "!has(self.dutyCyclePercent) || has(self.concurrentUsers)",
            "dutyCyclePercent needs concurrentUsers",
            lambda it: it.duty_cycle_percent is None or it.concurrent_users is not None,
        ),
        Rule(
            f"!has(self.peakPercent) || {' || '.join(f'has(self.{name})' for name in _RATES)}",
            f"peakPercent needs one of {', '.join(_RATES)}",
            lambda it: it.peak_percent is None or it.rates_given,
        ),
    )

    requests_per_second: Rate | None = None
    """Requests that arrive per second, such as 4 or "0.5"."""
    tokens_per_second: Rate | None = None
    """Output tokens generated per second."""
    tokens_per_day: Rate | None = None
    """Output tokens generated per day, spread evenly over the day."""
    concurrent_users: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    """Closed-loop clients: each sends its next request after its last one is answered."""
    duty_cycle_percent: Annotated[int, Field(ge=1, le=100)] | None = None
    """The percentage of the time that a client waits for an output. If absent, it is 100."""
    peak_percent: Annotated[int, Field(ge=100, le=10_000)] | None = None
    """The peak rate in percent of demand's rate, for peaks that come faster than a replica starts.
    Tonnage keeps replicas for this peak at all times, even where it measures less."""
    prompt_tokens: TokenCounts
    """The lengths of prompts, including tokens that the prefix cache has."""
    output_tokens: TokenCounts
    """The lengths of outputs."""
    cached_prompt_percent: Annotated[int, Field(ge=0, le=99)] = 0
    """The percentage of prompt tokens that the prefix cache has, so that they are not computed."""
    cache_transfer: Duration | None = None
    """The transfer time of a mean prompt's KV cache from prefill. It is part of the TTFT of
    ``engine.role: decode``, which requires it."""
    arrival_scv: Annotated[int, Field(ge=1, le=100)] = 1
    """The burstiness: the squared coefficient of variation (CV²) of the times between requests.
    1 is Poisson arrivals; 4 is four times their variance, a gamma process of shape 1/4."""

    @property
    def mean_tokens(self) -> int:
        """Of a whole request."""
        return self.prompt_tokens.mean + self.output_tokens.mean

    @property
    def rates_given(self) -> list[Rate]:
        """Of the ways to say how much comes, those that are used."""
        rates = (
            self.requests_per_second,
            self.tokens_per_second,
            self.tokens_per_day,
            self.concurrent_users,
        )
        return [rate for rate in rates if rate is not None]


_TOO_MANY = "has(each.minReplicas) && each.minReplicas > self.maxReplicas"


class Scaling(ApiModel):
    """What Tonnage may change, and the limits on the number of replicas."""

    rules = (
        Rule(
            "self.minReplicas <= self.maxReplicas",
            "minReplicas[ {}] must not exceed maxReplicas[ {}]",
            lambda it: it.min_replicas <= it.max_replicas,
            figures=(
                ("self.minReplicas", lambda it: it.min_replicas),
                ("self.maxReplicas", lambda it: it.max_replicas),
            ),
        ),
        Rule(
            f"!has(self.schedules) || !self.schedules.exists(each, {_TOO_MANY})",
            "minReplicas[ {}] of a schedule must not exceed maxReplicas[ {}]",
            lambda it: it.most_scheduled <= it.max_replicas,
            figures=(
                (
                    f"self.schedules.filter(each, {_TOO_MANY})[0].minReplicas",
                    lambda it: it.most_scheduled,
                ),
                ("self.maxReplicas", lambda it: it.max_replicas),
            ),
        ),
    )

    mode: Literal["Auto", "Recommend", "Approve", "Paused"] = "Auto"
    """Auto creates the workload and scales it. Recommend only writes the plan to the status. Paused
    only writes the status, and keeps the last plan. Approve acts as Auto, but a change that
    replaces pods, or costs more than approvalAboveUsdPerHour, waits for the annotation
    tonnage.dev/approve with the digest that the condition Approved names."""
    approval_above_usd_per_hour: Rate | None = None
    """In mode Approve, more replicas than this cost buys wait for approval; with ``topology``, each
    role has this limit. If absent, only changes that replace pods wait."""
    min_replicas: Annotated[int, Field(ge=1, le=1000)] = 1
    """The minimum number of replicas. They run without traffic too, so it cannot be 0."""
    max_replicas: Annotated[int, Field(ge=1, le=1000)]
    """The maximum number of replicas, which limits the cost."""
    routing: Literal["Service", "LeastOutstanding"] = "Service"
    """How requests reach replicas: Service picks one at random; LeastOutstanding is a router of
    yours that picks the replica with the fewest requests in flight."""
    priority: Annotated[int, Field(ge=-1000, le=1000)] = 0
    """The priority for GPUs of the operator's budget (settings.maxGpus). Objects with a higher
    number grow first; no running replica is removed for them."""
    schedules: Annotated[tuple[Schedule, ...], Field(max_length=20)] = ()
    """Known events that need more replicas. If several overlap, the highest counts."""

    @property
    def most_scheduled(self) -> int:
        """The highest ``minReplicas`` of a schedule."""
        return max((each.min_replicas or 0 for each in self.schedules), default=0)


_TARGET_FIXED = (
    "has(self.scaleTarget) == has(oldSelf.scaleTarget) && "
    "(!has(self.scaleTarget) || (self.scaleTarget.name == oldSelf.scaleTarget.name && "
    "self.scaleTarget.kind == oldSelf.scaleTarget.kind && "
    "has(self.scaleTarget.role) == has(oldSelf.scaleTarget.role) && "
    "(!has(self.scaleTarget.role) || self.scaleTarget.role == oldSelf.scaleTarget.role)))"
)

_IN_TIME = "has(self.engine) && has(self.engine.admission) && self.engine.admission == 'inTime'"
"""CEL of engines that refuse what would be late."""
_ROLE = (
    "(has(self.engine) && has(self.engine.role) ? self.engine.role : "
    "has(self.scaleTarget) && has(self.scaleTarget.role) ? self.scaleTarget.role : '')"
)
"""CEL of the role that engines have; empty: they serve all of each request."""


def _has_ttft(spec: "Spec") -> bool:
    return spec.slo is not None and spec.slo.time_to_first_token is not None


def _refuses_late(spec: "Spec") -> bool:
    return spec.engine is not None and spec.engine.admission == "inTime"


def _has_no_stages(spec: "Spec") -> bool:
    split = spec.hardware.parallelism
    return split is None or (split.pipeline or 1) == 1


_ADMISSION_RULES = (
    Rule(
        f"!({_IN_TIME}) || (has(self.slo) && has(self.slo.timeToFirstToken))",
        "inTime needs slo.timeToFirstToken, from which it derives the limits of the queue",
        lambda it: not _refuses_late(it) or _has_ttft(it),
        "engine.admission",
    ),
    Rule(
        f"!({_IN_TIME}) || ({_ROLE} != 'decode' && !has(self.topology))",
        "admission must be all with engine.role decode or topology: decode could refuse requests "
        "that prefill has computed",
        lambda it: not _refuses_late(it) or not (it.role == "decode" or it.topology),
        "engine.admission",
    ),
)


def _of_role(condition: str, message: str, holds: Callable[["Spec"], object], field: str) -> Rule:
    """Return a rule for objects whose engines have a role."""
    cel = f"{_ROLE} == '' || {condition}"
    return Rule(cel, message, lambda it: it.role is None or holds(it), field)


_ROLE_RULES = (
    _of_role(
        f"{_ROLE} != 'prefill' || !has(self.slo) || !has(self.slo.timePerOutputToken)",
        "timePerOutputToken must not be set with role prefill: it is a target of decode",
        lambda it: it.role != "prefill" or it.slo is None or it.slo.time_per_output_token is None,
        "slo.timePerOutputToken",
    ),
    _of_role(
        "has(self.scaleTarget) || "
        "(has(self.hardware.parallelism) && has(self.hardware.parallelism.tensor) && "
        "(!has(self.hardware.parallelism.pipeline) || "
        "self.hardware.parallelism.pipeline == 1))",
        "engine.role needs parallelism.tensor (prefill: at most that of decode) and no pipeline",
        lambda it: (
            it.scale_target
            or (it.hardware.parallelism and it.hardware.parallelism.tensor and _has_no_stages(it))
        ),
        "hardware",
    ),
    _of_role(
        "!has(self.demand) || !has(self.demand.concurrentUsers)",
        "concurrentUsers must not be set with engine.role: set a rate",
        lambda it: it.demand is None or it.demand.concurrent_users is None,
        "demand.concurrentUsers",
    ),
    _of_role(
        "!has(self.pods) || !has(self.pods.networkPolicy)",
        "networkPolicy must not be set with engine.role: the ports of transfers are unknown",
        lambda it: it.pods is None or it.pods.network_policy is None,
        "pods.networkPolicy",
    ),
    _of_role(
        "!has(self.model.kvOffload)",
        "kvOffload must not be set with engine.role: vLLM has one KV connector",
        lambda it: it.model.kv_offload is None,
        "model.kvOffload",
    ),
)


def _beside(condition: str, message: str, holds: Callable[["Spec"], object], field: str) -> Rule:
    """Return a rule for what goes with ``topology``."""
    cel = f"!has(self.topology) || ({condition})"
    return Rule(cel, message, lambda it: it.topology is None or holds(it), field)


_TOPOLOGY_RULES = (
    _beside(
        "has(self.slo) && has(self.slo.timeToFirstToken) && has(self.slo.timePerOutputToken)",
        "topology needs both timeToFirstToken and timePerOutputToken",
        lambda it: it.slo and it.slo.time_to_first_token and it.slo.time_per_output_token,
        "slo",
    ),
    _beside(
        "has(self.demand) && !has(self.demand.concurrentUsers) && "
        f"({' || '.join(f'has(self.demand.{name})' for name in _RATES[:-1])})",
        f"topology needs one of {', '.join(_RATES[:-1])}",
        lambda it: it.demand and it.demand.rates_given and it.demand.concurrent_users is None,
        "demand",
    ),
    _beside(
        "!has(self.demand) || !has(self.demand.cacheTransfer)",
        "cacheTransfer must not be set with topology, which computes it",
        lambda it: it.demand is None or it.demand.cache_transfer is None,
        "demand",
    ),
    _beside(
        "!has(self.scaleTarget)",
        "topology must not be set with scaleTarget",
        lambda it: it.scale_target is None,
        "topology",
    ),
    _beside(
        "!has(self.engine) || !has(self.engine.role)",
        "engine.role must not be set with topology, which runs both roles",
        lambda it: it.engine is None or it.engine.role is None,
        "engine",
    ),
    _beside(
        "!has(self.model.kvOffload)",
        "kvOffload must not be set with topology: vLLM has one KV connector",
        lambda it: it.model.kv_offload is None,
        "model",
    ),
    _beside(
        "!has(self.pods) || !has(self.pods.networkPolicy)",
        "networkPolicy must not be set with topology: the ports of transfers are unknown",
        lambda it: it.pods is None or it.pods.network_policy is None,
        "pods",
    ),
    _beside(
        "!has(self.hardware.parallelism) || !has(self.hardware.parallelism.pipeline) || "
        "self.hardware.parallelism.pipeline == 1",
        "parallelism.pipeline must be 1 with topology: KV caches of stages cannot be transferred",
        _has_no_stages,
        "hardware",
    ),
)


def _lets_a_pod_go(most: str) -> str:
    budget = "self.pods.disruptionBudget"
    kept = f"{budget}.minAvailable"
    is_number = f"has(self.pods) && has({budget}) && has({kept}) && type({kept}) == int"
    return f"!({is_number}) || {kept} < {most}"


def _bounds_of(role: Role) -> Iterator[Rule]:
    """Yield rules for the bounds that a role has, its own or those of both."""
    own = f"self.topology.{role}"
    least, most = (
        f"(has({own}) && has({own}.{bound}) ? {own}.{bound} : self.scaling.{bound})"
        for bound in ("minReplicas", "maxReplicas")
    )
    many = f"has(each.minReplicas) && each.minReplicas > {most}"

    yield _beside(
        f"{least} <= {most}",
        f"minReplicas of role {role} must not exceed its maxReplicas, in topology or scaling",
        lambda it: it.bounds_of(role)[0] <= it.bounds_of(role)[1],
        f"topology.{role}",
    )
    yield _beside(
        f"!has(self.scaling.schedules) || !self.scaling.schedules.exists(each, {many})",
        f"minReplicas of a schedule must not exceed maxReplicas of role {role}",
        lambda it: it.scaling.most_scheduled <= it.bounds_of(role)[1],
        "scaling.schedules",
    )
    yield _beside(
        _lets_a_pod_go(most),
        f"disruptionBudget.minAvailable must be below maxReplicas of role {role}: else no pod "
        "can ever be evicted",
        lambda it: it.pods_to_stay < it.bounds_of(role)[1],
        "pods.disruptionBudget",
    )


def _within_context(name: str, counts: Callable[[Demand], TokenCounts]) -> Rule:
    """Return the rule that a p99 of tokens is within the maximum length."""
    return Rule(
        f"!has(self.demand) || !has(self.demand.{name}.p99) || "
        f"self.demand.{name}.p99 <= self.contextLength",
        f"{name}.p99[ {{}}] exceeds contextLength[ {{}}]",
        lambda it: it.demand is None or (counts(it.demand).p99 or 0) <= it.context_length,
        f"demand.{name}.p99",
        figures=(("", lambda it: counts(it.demand).p99), ("", lambda it: it.context_length)),
    )


_LENGTHS_RULES = (
    _within_context("promptTokens", lambda it: it.prompt_tokens),
    _within_context("outputTokens", lambda it: it.output_tokens),
    Rule(
        "!has(self.demand) || self.demand.promptTokens.mean + self.demand.outputTokens.mean "
        "<= self.contextLength",
        "promptTokens.mean + outputTokens.mean[ = {}] exceed contextLength[ {}]",
        lambda it: it.demand is None or it.demand.mean_tokens <= it.context_length,
        "demand",
        figures=(
            (
                "self.demand.promptTokens.mean + self.demand.outputTokens.mean",
                lambda it: it.demand.mean_tokens,
            ),
            ("self.contextLength", lambda it: it.context_length),
        ),
    ),
)


class Spec(ApiModel):
    """What a ModelDeployment asks for."""

    rules = (
        Rule(
            "!has(self.scaleTarget) || !(has(self.engine) || has(self.pods))",
            "engine and pods must not be set with scaleTarget",
            lambda it: it.scale_target is None or not (it.engine or it.pods),
        ),
        Rule(
            "has(self.scaleTarget) || has(self.engine)",
            "engine is required without scaleTarget",
            lambda it: it.scale_target or it.engine,
        ),
        *_ADMISSION_RULES,
        *_ROLE_RULES,
        Rule(
            "!has(self.scaleTarget) || !has(self.model.kvOffload)",
            "kvOffload must not be set with scaleTarget, whose template Tonnage does not change",
            lambda it: it.scale_target is None or it.model.kv_offload is None,
            "model.kvOffload",
        ),
        Rule(_TARGET_FIXED, "scaleTarget cannot be added, changed or removed", None),
        Rule(
            "has(self.topology) == has(oldSelf.topology)",
            "topology cannot be added or removed",
            None,
        ),
        *_TOPOLOGY_RULES,
        *(each for role in ROLES for each in _bounds_of(role)),
        *_LENGTHS_RULES,
        Rule(
            _lets_a_pod_go("self.scaling.maxReplicas"),
            "disruptionBudget.minAvailable must be below maxReplicas: else no pod can be evicted",
            lambda it: it.pods_to_stay < it.scaling.max_replicas,
            "pods.disruptionBudget",
        ),
    )

    model: Model
    """The model that is served."""
    hardware: Hardware
    """The GPU class, and the parallelism of a replica over GPUs."""
    context_length: Annotated[int, Field(ge=16, le=16_777_216)]
    """The maximum tokens of a request, prompt and output together: ``--max-model-len``."""
    slo: Slo | None = None
    """The latency targets. If absent, the model is served offline, at maximum concurrency."""
    demand: Demand | None = None
    """The expected traffic, used until traffic is measured; ``peakPercent`` also afterwards."""
    scaling: Scaling
    """What Tonnage may change, and the limits on the number of replicas."""
    engine: EngineSpec | None = None
    """The serving engine, vLLM. It is required without scaleTarget."""
    pods: Pods | None = None
    """The pods of the engines: a template to merge into Tonnage's own, and further options."""
    scale_target: ScaleTarget | None = None
    """An existing Deployment or LeaderWorkerSet to scale instead of creating one. Its pod template
    is not changed."""
    topology: Topology | None = None
    """Serves prefill and decode on separate replicas. ``minReplicas`` and ``maxReplicas`` then
    count for each role. If absent, one fleet serves both."""
    operator_class: OperatorClass | None = None
    """Only the operator with this class acts on the object. If absent, the one without a class."""

    @property
    def role(self) -> Role | None:
        """Which part of each request the replicas serve; None: all of it."""
        if self.scale_target:
            return self.scale_target.role
        return self.engine.role if self.engine else None

    def bounds_of(self, role: Role) -> tuple[int, int]:
        """Return the fewest and the most replicas of a role: its own bounds, or those of both."""
        own = self.topology.options_of(role) if self.topology else RoleOptions()
        both = self.scaling
        return own.min_replicas or both.min_replicas, own.max_replicas or both.max_replicas

    @property
    def pods_to_stay(self) -> int:
        """Pods that the disruption budget has stay; 0: no number of them."""
        budget = self.pods.disruption_budget if self.pods else None
        given = budget.min_available if budget else None
        return given if isinstance(given, int) else 0

    def to_digestible(self) -> dict[str, Any]:
        """Return the part of the spec that a pod template is made from."""
        given, said = self.model.kv_offload, dict[str, dict[str, set[str]]]()
        if given and given.gib is not None and not given.is_auto:
            said = {"model": {"kv_offload": {"working_set_tokens"}}}
        digestible = self.model_dump(
            mode="json",
            include={"model", "hardware", "context_length", "engine", "pods", "slo"},
            exclude={"pods": set(UNTEMPLATED), "slo": {"attainment"}, **said},
            exclude_defaults=True,  # a field added later must not change what stands
            exclude_none=True,
        )
        if digestible.get("pods") == {} and self.pods != Pods():
            del digestible["pods"]  # they say nothing that a template holds
        return digestible
