"""What a user writes: the spec of a ModelDeployment, and the single source of its CRD schema."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from pydantic.config import JsonDict

from tonnage.api.base import ApiModel, rule, rules
from tonnage.api.fields import (
    Duration,
    HubId,
    OperatorClass,
    Percent,
    Rate,
    Revision,
    Tokens,
    Window,
)
from tonnage.api.hardware import Hardware
from tonnage.api.pods import ROLES, UNTEMPLATED, EngineSpec, Pods, Role, ScaleTarget
from tonnage.api.references import ConfigMapKey
from tonnage.api.schedules import Schedule
from tonnage.api.topology import RoleOptions, Topology
from tonnage.units import seconds

MAX_NAME_LENGTH = 52
"""A Deployment adds an 11-character hash to the names of its pods' labels: 63 in all."""
NAME_PATTERN = f"^[a-z]([-a-z0-9]{{0,{MAX_NAME_LENGTH - 2}}}[a-z0-9])?$"
NAME_MESSAGE = (
    f"must be a DNS label of at most {MAX_NAME_LENGTH} characters that starts with a letter"
)
MAX_TOPOLOGY_NAME_LENGTH = MAX_NAME_LENGTH - len("-prefill")
TOPOLOGY_NAME_MESSAGE = (
    f"must have at most {MAX_TOPOLOGY_NAME_LENGTH} characters with spec.topology, whose roles are "
    "called NAME-prefill and NAME-decode"
)


class ConfigSource(ApiModel):
    """Where a config.json stands for a model that the catalogue lacks."""

    config_map_key_ref: ConfigMapKey
    """The ConfigMap, in the same namespace, and its key."""


class Adapters(ApiModel):
    """LoRA adapters. Buffers for them stand on every GPU, whether any is loaded or not."""

    number: Annotated[int, Field(ge=1, le=256)]
    """That one step may use, ``--max-loras``."""
    rank: Literal[8, 16, 32, 64, 128, 256, 320, 512]
    """The largest of theirs, ``--max-lora-rank``: smaller ones take as much."""


MOST_HOST_GIB = 65_536
"""Of one replica."""
_NO_HOST_MEMORY = "needs gib, or workingSetTokens above 0, which say how much it takes"
_IS_AUTO = "(has(self.mode) && self.mode == 'Auto')"


class KvOffload(ApiModel):
    """A KV cache in the memory of the host, behind that of the GPUs."""

    model_config = rules(
        rule(
            f"{_IS_AUTO} || has(self.gib) || "
            "(has(self.workingSetTokens) && self.workingSetTokens > 0)",
            _NO_HOST_MEMORY,
        ),
    )

    mode: Literal["Always", "Auto"] = "Always"
    """Auto: where workingSetTokens exceed what the GPUs' cache holds beside running requests, and
    host memory holds them, and the plan costs no more with it. Another choice alone replaces no
    pods."""
    gib: Annotated[int, Field(ge=1, le=MOST_HOST_GIB)] | None = None
    """Memory of the host for it, in GiB, of a replica with all its ranks; absent: what
    workingSetTokens take. Prompts that never come again pass through it, too. In mode Auto the most
    that it may take; absent: what the GPU class says."""
    working_set_tokens: Annotated[int, Field(ge=0, le=10**12)] | None = None
    """Tokens of different prompts that later requests to one replica begin with again. With it a
    plan says whether the cache is worth its copies; in mode Auto it has their size."""

    @property
    def is_auto(self) -> bool:
        return self.mode == "Auto"

    @model_validator(mode="after")
    def _sized(self) -> "KvOffload":
        if not self.is_auto and self.gib is None and not self.working_set_tokens:
            raise ValueError(_NO_HOST_MEMORY)
        return self


class Model(ApiModel):
    """What is served."""

    id: HubId
    """Hugging Face id, organisation and name."""
    revision: Revision | None = None
    """Commit, tag or branch on the hub; a commit in production."""
    weights: Literal["auto", "bfloat16", "float16", "fp8", "int8", "int4", "mxfp4", "nvfp4"] = (
        "auto"
    )
    """Precision of the weights; auto: what the checkpoint's config says."""
    kv_cache: Literal["auto", "bfloat16", "float16", "fp8"] = "auto"
    """Precision of the KV cache; auto is resolved and written into the manifest."""
    config: ConfigSource | None = None
    """A config.json for a model that the catalogue lacks."""
    adapters: Adapters | None = None
    """LoRA adapters that are served beside the model; absent: none can be."""
    kv_offload: KvOffload | None = None
    """A KV cache in the memory of the host; absent: what leaves that of the GPUs is computed
    again."""


class Percentiles(ApiModel):
    """A latency that a share of the requests must not exceed."""

    model_config = rules(
        rule(
            "has(self.p50) || has(self.p90) || has(self.p95) || has(self.p99)",
            "needs one of p50, p90, p95, p99",
        ),
    )

    p50: Duration | None = None
    """Limit that 50 of 100 requests meet, such as 50ms, 1.5s or 5m; at most 1h."""
    p90: Duration | None = None
    """Limit that 90 of 100 requests meet, such as 50ms, 1.5s or 5m; at most 1h."""
    p95: Duration | None = None
    """Limit that 95 of 100 requests meet, such as 50ms, 1.5s or 5m; at most 1h."""
    p99: Duration | None = None
    """Limit that 99 of 100 requests meet, such as 50ms, 1.5s or 5m; at most 1h."""

    @model_validator(mode="after")
    def _one_at_least(self) -> "Percentiles":
        if not self.targets():
            raise ValueError("needs one of p50, p90, p95, p99")
        return self

    def targets(self) -> dict[float, float]:
        """Return {quantile: limit in seconds}."""
        given = {0.50: self.p50, 0.90: self.p90, 0.95: self.p95, 0.99: self.p99}
        return {quantile: seconds(limit) for quantile, limit in given.items() if limit is not None}


class AttainmentTarget(ApiModel):
    """The share of requests that must be in time over a window: the rest is the error budget."""

    percent: Percent | None = None
    """Of the requests, that must be within the limit of the highest percentile of each latency;
    absent: the percentile itself, such as 95 of p95."""
    window: Window = "24h"
    """Over which requests are counted, from 1h to 168h; it ends now."""


class Slo(ApiModel):
    """SLO targets on latency. Without any, the model is served offline: at the memory ceiling."""

    model_config = rules(
        rule(
            "!has(self.attainment) || has(self.timeToFirstToken) || has(self.timePerOutputToken)",
            "attainment needs a target: timeToFirstToken or timePerOutputToken",
        ),
    )

    time_to_first_token: Percentiles | None = None
    """TTFT: from a request until its first token, by percentiles."""
    time_per_output_token: Percentiles | None = None
    """TPOT: the mean time of a request between its tokens, by percentiles."""
    attainment: AttainmentTarget | None = None
    """Over which window the targets are to be kept; absent: each at its percentile over a day."""

    @model_validator(mode="after")
    def _attainment_has_a_target(self) -> "Slo":
        if self.attainment and not (self.time_to_first_token or self.time_per_output_token):
            raise ValueError("attainment needs a target: timeToFirstToken or timePerOutputToken")
        return self


class TokenCounts(ApiModel):
    """A distribution of token counts."""

    model_config = rules(
        rule(
            "!has(self.p99) || self.p99 >= self.mean",
            "p99 must not be below mean",
            messageExpression="'p99 %d must not be below mean %d'.format([self.p99, self.mean])",
        )
    )

    mean: Tokens
    """Mean tokens of a request."""
    p99: Tokens | None = None
    """Tokens that 99 of 100 requests do not exceed; absent: every prompt has the mean, outputs are
    exponential."""

    @model_validator(mode="after")
    def _check_order(self) -> "TokenCounts":
        if self.p99 is not None and self.p99 < self.mean:
            raise ValueError(f"p99 {self.p99} must not be below mean {self.mean}")
        return self


_RATES = ("requestsPerSecond", "tokensPerSecond", "tokensPerDay", "concurrentUsers")


class Demand(ApiModel):
    """Expected traffic: what holds until traffic is measured, and a peak that stays."""

    model_config = rules(
        rule(
            f"[{', '.join(f'has(self.{name})' for name in _RATES)}].filter(x, x).size() <= 1",
            f"at most one of {', '.join(_RATES)}",
        ),
        rule(
            "!has(self.dutyCyclePercent) || has(self.concurrentUsers)",
            "dutyCyclePercent needs concurrentUsers",
        ),
        rule(
            f"!has(self.peakPercent) || {' || '.join(f'has(self.{name})' for name in _RATES)}",
            f"peakPercent needs one of {', '.join(_RATES)}",
        ),
    )

    requests_per_second: Rate | None = None
    """Requests per second, such as 4 or "0.5"."""
    tokens_per_second: Rate | None = None
    """Output tokens per second."""
    tokens_per_day: Rate | None = None
    """Output tokens per day, spread evenly over the day."""
    concurrent_users: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    """Users who each wait for an answer before they ask again."""
    duty_cycle_percent: Annotated[int, Field(ge=1, le=100)] | None = None
    """Share of the time that a user waits for an answer; 100 when absent."""
    peak_percent: Annotated[int, Field(ge=100, le=10_000)] | None = None
    """The peak that may come sooner than a replica starts, in percent of the rate that is given:
    replicas for it are planned, and stay whatever is measured."""
    prompt_tokens: TokenCounts
    """Tokens of a prompt, those that the prefix cache holds included."""
    output_tokens: TokenCounts
    """Tokens of an answer."""
    cached_prompt_percent: Annotated[int, Field(ge=0, le=99)] = 0
    """Share of the prompt tokens that the prefix cache holds."""
    cache_transfer: Duration | None = None
    """Time in which the KV cache of a mean prompt comes from prefill: part of the TTFT of
    ``engine.role: decode``, which needs it."""
    arrival_scv: Annotated[int, Field(ge=1, le=100)] = 1
    """Squared coefficient of variation of the times between requests: 1 at random (Poisson), more
    in bursts; a gamma process of shape 1/4 has 4."""

    @model_validator(mode="after")
    def _one_rate(self) -> "Demand":
        rates = (
            self.requests_per_second,
            self.tokens_per_second,
            self.tokens_per_day,
            self.concurrent_users,
        )
        if sum(rate is not None for rate in rates) > 1:
            raise ValueError(f"at most one of {', '.join(_RATES)}")
        if self.duty_cycle_percent is not None and self.concurrent_users is None:
            raise ValueError("dutyCyclePercent needs concurrentUsers")
        if self.peak_percent is not None and all(rate is None for rate in rates):
            raise ValueError(f"peakPercent needs one of {', '.join(_RATES)}")
        return self


_TOO_MANY = "has(each.minReplicas) && each.minReplicas > self.maxReplicas"


class Scaling(ApiModel):
    """What Tonnage may do, and within which bounds."""

    model_config = rules(
        rule(
            "self.minReplicas <= self.maxReplicas",
            "minReplicas must not exceed maxReplicas",
            messageExpression="'minReplicas %d must not exceed maxReplicas %d'.format("
            "[self.minReplicas, self.maxReplicas])",
        ),
        rule(
            f"!has(self.schedules) || !self.schedules.exists(each, {_TOO_MANY})",
            "minReplicas of a schedule must not exceed maxReplicas",
            messageExpression="'minReplicas %d of a schedule must not exceed maxReplicas %d'"
            f".format([self.schedules.filter(each, {_TOO_MANY})[0].minReplicas, "
            "self.maxReplicas])",
        ),
    )

    mode: Literal["Auto", "Recommend", "Approve", "Paused"] = "Auto"
    """Auto: template and scale. Recommend: status only. Paused: as Recommend, plan frozen.

    Approve: as Auto, but what replaces pods, or passes approvalAboveUsdPerHour, waits for the
    annotation tonnage.dev/approve with the digest that the condition Approved names.
    """
    approval_above_usd_per_hour: Rate | None = None
    """In mode Approve: replicas that cost more wait; absent: only what replaces pods does. With
    ``topology`` of each role."""
    min_replicas: Annotated[int, Field(ge=1, le=1000)] = 1
    """Replicas that run without traffic too; never 0."""
    max_replicas: Annotated[int, Field(ge=1, le=1000)]
    """The most replicas that may run. Required: cost is never unbounded, whatever traffic comes."""
    routing: Literal["Service", "LeastOutstanding"] = "Service"
    """What spreads requests: a plain Service (random), or a router that knows the load."""
    priority: Annotated[int, Field(ge=-1000, le=1000)] = 0
    """Who gets GPUs of the fleet's budget first: the higher number. Nobody's are taken away."""
    schedules: Annotated[tuple[Schedule, ...], Field(max_length=20)] = ()
    """Known events. Of several at once the one that asks for most counts."""

    @model_validator(mode="after")
    def _check_order(self) -> "Scaling":
        if self.min_replicas > self.max_replicas:
            raise ValueError(
                f"minReplicas {self.min_replicas} must not exceed maxReplicas {self.max_replicas}"
            )
        for each in self.schedules:
            if (each.min_replicas or 0) > self.max_replicas:
                raise ValueError(
                    f"minReplicas {each.min_replicas} of a schedule must not exceed maxReplicas "
                    f"{self.max_replicas}"
                )
        return self


_TARGET_FIXED = (
    "has(self.scaleTarget) == has(oldSelf.scaleTarget) && "
    "(!has(self.scaleTarget) || self.scaleTarget == oldSelf.scaleTarget)"
)

_NEEDS_TTFT = "newestFirst needs slo.timeToFirstToken, which says how long a class of arrivals is"
_NEEDS_WAIT = "inTime needs slo.timeToFirstToken, which says how long a request may wait"
_REFUSED_APART = (
    "admission must be all where prefill and decode are apart: one would refuse what the other read"
)
_SINGLE_OUTPUT = "prefill makes one token of each answer: timePerOutputToken is a target of decode"
_NEEDS_TENSOR = (
    "engine.role needs parallelism.tensor, of prefill at most that of decode, and no pipeline"
)
_NO_USERS = "users wait for both roles: engine.role needs a rate"
_UNKNOWN_PORTS = (
    "networkPolicy must not be set with engine.role: the ports of transfers are unknown"
)
_ONE_CONNECTOR = "kvOffload must not be set with engine.role: vLLM has one KV connector"
_OWN_FLAGS = "kvOffload must not be set beside scaleTarget: its template stays untouched"
_IN_TIME = "has(self.engine) && has(self.engine.admission) && self.engine.admission == 'inTime'"
"""CEL of engines that refuse what would be late."""
_BUDGET = "self.pods.disruptionBudget"
_KEPT = f"{_BUDGET}.minAvailable"
_ROLE = (
    "(has(self.engine) && has(self.engine.role) ? self.engine.role : "
    "has(self.scaleTarget) && has(self.scaleTarget.role) ? self.scaleTarget.role : '')"
)
"""CEL of the role that engines have; empty: they serve all of each request."""


def _role_rule(condition: str, message: str, field: str) -> JsonDict:
    """Return a rule for objects whose engines have a role."""
    return rule(f"{_ROLE} == '' || {condition}", message, fieldPath=field)


def _lets_a_pod_go(most: str) -> str:
    """Return the CEL of a disruption budget that lets one of ``most`` replicas go."""
    is_number = f"has(self.pods) && has({_BUDGET}) && has({_KEPT}) && type({_KEPT}) == int"
    return f"!({is_number}) || {_KEPT} < {most}"


_TOPOLOGY_FIXED = "has(self.topology) == has(oldSelf.topology)"
_BEYOND_ROLE = "must not exceed maxReplicas of a role, by topology or scaling"
_MIN_OF_ROLE = f"minReplicas of a role {_BEYOND_ROLE}"
_SCHEDULE_OF_ROLE = f"minReplicas of a schedule {_BEYOND_ROLE}"
_BUDGET_OF_ROLE = (
    "disruptionBudget.minAvailable must be below maxReplicas of a role, by topology or scaling: no "
    "pod could ever go"
)


def _of_role(role: str, bound: str) -> str:
    """Return the CEL of a bound that a role has."""
    own = f"self.topology.{role}"
    given = f"has({own}) && has({own}.{bound})"
    return f"({given} ? {own}.{bound} : self.scaling.{bound})"


def _bounds_of_roles() -> Iterator[JsonDict]:
    """Yield rules for the bounds that each role has."""
    for role in ROLES:
        least, most = _of_role(role, "minReplicas"), _of_role(role, "maxReplicas")
        many = f"has(each.minReplicas) && each.minReplicas > {most}"
        rules_of_role = (
            (f"{least} <= {most}", _MIN_OF_ROLE, f".topology.{role}"),
            (
                f"!has(self.scaling.schedules) || !self.scaling.schedules.exists(each, {many})",
                _SCHEDULE_OF_ROLE,
                ".scaling.schedules",
            ),
            (_lets_a_pod_go(most), _BUDGET_OF_ROLE, ".pods.disruptionBudget"),
        )
        for condition, message, field in rules_of_role:
            yield rule(f"!has(self.topology) || ({condition})", message, fieldPath=field)


_TOPOLOGY_RULES = (
    (
        "has(self.slo) && has(self.slo.timeToFirstToken) && has(self.slo.timePerOutputToken)",
        "topology needs both timeToFirstToken, which the roles share, and timePerOutputToken",
        "slo",
    ),
    (
        "has(self.demand) && !has(self.demand.concurrentUsers) && "
        f"({' || '.join(f'has(self.demand.{name})' for name in _RATES[:-1])})",
        f"topology needs one of {', '.join(_RATES[:-1])}",
        "demand",
    ),
    (
        "!has(self.demand) || !has(self.demand.cacheTransfer)",
        "cacheTransfer must not be set with topology, which computes it",
        "demand",
    ),
    ("!has(self.scaleTarget)", "topology must not be set beside scaleTarget", "topology"),
    (
        "!has(self.engine) || !has(self.engine.role)",
        "engine.role must not be set with topology, which has both",
        "engine",
    ),
    (
        "!has(self.model.kvOffload)",
        "kvOffload must not be set with topology: vLLM has one KV connector",
        "model",
    ),
    (
        "!has(self.pods) || !has(self.pods.networkPolicy)",
        "networkPolicy must not be set with topology: the ports of transfers are unknown",
        "pods",
    ),
    (
        "!has(self.hardware.parallelism) || !has(self.hardware.parallelism.pipeline) || "
        "self.hardware.parallelism.pipeline == 1",
        "parallelism.pipeline must be 1 with topology: no KV cache of pipeline stages is moved",
        "hardware",
    ),
)
"""(CEL, message, field): what goes with ``topology``."""


class Spec(ApiModel):
    """What a ModelDeployment asks for."""

    model_config = rules(
        rule(
            "!has(self.scaleTarget) || !(has(self.engine) || has(self.pods))",
            "engine and pods must not be set beside scaleTarget",
        ),
        rule("has(self.scaleTarget) || has(self.engine)", "engine is required without scaleTarget"),
        rule(
            "!has(self.engine) || !has(self.engine.queue) || self.engine.queue != 'newestFirst' || "
            "(has(self.slo) && has(self.slo.timeToFirstToken))",
            _NEEDS_TTFT,
            fieldPath=".engine.queue",
        ),
        rule(
            f"!({_IN_TIME}) || (has(self.slo) && has(self.slo.timeToFirstToken))",
            _NEEDS_WAIT,
            fieldPath=".engine.admission",
        ),
        rule(
            f"!({_IN_TIME}) || ({_ROLE} == '' && !has(self.topology))",
            _REFUSED_APART,
            fieldPath=".engine.admission",
        ),
        _role_rule(
            f"{_ROLE} != 'prefill' || !has(self.slo) || !has(self.slo.timePerOutputToken)",
            _SINGLE_OUTPUT,
            ".slo.timePerOutputToken",
        ),
        _role_rule(
            "has(self.scaleTarget) || "
            "(has(self.hardware.parallelism) && has(self.hardware.parallelism.tensor) && "
            "(!has(self.hardware.parallelism.pipeline) || "
            "self.hardware.parallelism.pipeline == 1))",
            _NEEDS_TENSOR,
            ".hardware",
        ),
        _role_rule(
            "!has(self.demand) || !has(self.demand.concurrentUsers)",
            _NO_USERS,
            ".demand.concurrentUsers",
        ),
        _role_rule(
            "!has(self.pods) || !has(self.pods.networkPolicy)",
            _UNKNOWN_PORTS,
            ".pods.networkPolicy",
        ),
        _role_rule("!has(self.model.kvOffload)", _ONE_CONNECTOR, ".model.kvOffload"),
        rule(
            "!has(self.scaleTarget) || !has(self.model.kvOffload)",
            _OWN_FLAGS,
            fieldPath=".model.kvOffload",
        ),
        rule(_TARGET_FIXED, "scaleTarget cannot be added, changed or removed"),
        rule(_TOPOLOGY_FIXED, "topology cannot be added or removed"),
        *(
            rule(f"!has(self.topology) || ({condition})", message, fieldPath=f".{field}")
            for condition, message, field in _TOPOLOGY_RULES
        ),
        *_bounds_of_roles(),
        *(
            rule(
                f"!has(self.demand) || !has(self.demand.{name}.p99) || "
                f"self.demand.{name}.p99 <= self.contextLength",
                f"{name}.p99 exceeds contextLength",
                fieldPath=f".demand.{name}.p99",
            )
            for name in ("promptTokens", "outputTokens")
        ),
        rule(
            "!has(self.demand) || self.demand.promptTokens.mean + self.demand.outputTokens.mean "
            "<= self.contextLength",
            "promptTokens.mean + outputTokens.mean exceed contextLength",
            messageExpression="'promptTokens.mean + outputTokens.mean = %d exceed contextLength "
            "%d'.format([self.demand.promptTokens.mean + self.demand.outputTokens.mean, "
            "self.contextLength])",
            fieldPath=".demand",
        ),
        rule(
            _lets_a_pod_go("self.scaling.maxReplicas"),
            "disruptionBudget.minAvailable must be below maxReplicas: no pod could ever go",
            fieldPath=".pods.disruptionBudget",
        ),
    )

    model: Model
    """What is served."""
    hardware: Hardware
    """The GPU class, and how a replica is split over GPUs."""
    context_length: Annotated[int, Field(ge=16, le=16_777_216)]
    """The maximum length of a request, prompt and output: ``--max-model-len``."""
    slo: Slo | None = None
    """SLO targets on latency; absent: offline, at the memory ceiling."""
    demand: Demand | None = None
    """Expected traffic: it holds until traffic is measured, ``peakPercent`` from then on, too."""
    scaling: Scaling
    """What Tonnage may do, and within which bounds."""
    engine: EngineSpec | None = None
    """The serving engine, whose version decides flags, memory constants and metric names; required
    without scaleTarget."""
    pods: Pods | None = None
    """The part of the pods that a user decides: a closed set, not a pod template."""
    scale_target: ScaleTarget | None = None
    """An existing Deployment or LeaderWorkerSet to scale instead of making one; its template stays
    untouched."""
    topology: Topology | None = None
    """Prefill and decode apart; absent: one fleet for both. ``minReplicas`` and ``maxReplicas`` are
    of a role then."""
    operator_class: OperatorClass | None = None
    """Only the release of Tonnage with this class acts; absent: the one without a class."""

    @model_validator(mode="after")
    def _consistent(self) -> "Spec":
        if self.scale_target and (self.engine or self.pods):
            raise ValueError("engine and pods must not be set beside scaleTarget")
        if not self.scale_target and not self.engine:
            raise ValueError("engine is required without scaleTarget")
        if self.scale_target and self.model.kv_offload:
            raise ValueError(f"model.{_OWN_FLAGS}")
        self._check_queue()
        self._check_role()
        self._check_topology()
        self._check_lengths()
        self._check_budget()
        return self

    @property
    def role(self) -> Role | None:
        """Which part of each request the replicas serve; None: all of it."""
        if self.scale_target:
            return self.scale_target.role
        return self.engine.role if self.engine else None

    def _check_queue(self) -> None:
        if self.engine is None:
            return
        has_ttft = self.slo and self.slo.time_to_first_token
        if self.engine.queue == "newestFirst" and not has_ttft:
            raise ValueError(f"engine.queue: {_NEEDS_TTFT}")
        if self.engine.admission == "inTime":
            if not has_ttft:
                raise ValueError(f"engine.admission: {_NEEDS_WAIT}")
            if self.role or self.topology:
                raise ValueError(f"engine.admission: {_REFUSED_APART}")

    def _check_role(self) -> None:
        role = self.role
        if role is None:
            return
        if self.model.kv_offload:
            raise ValueError(f"model.{_ONE_CONNECTOR}")
        if role == "prefill" and self.slo and self.slo.time_per_output_token:
            raise ValueError(f"slo.timePerOutputToken: {_SINGLE_OUTPUT}")
        split = self.hardware.parallelism
        is_open = split is None or split.tensor is None or (split.pipeline or 1) > 1
        if is_open and not self.scale_target:
            raise ValueError(f"hardware: {_NEEDS_TENSOR}")
        if self.demand and self.demand.concurrent_users is not None:
            raise ValueError(f"demand.concurrentUsers: {_NO_USERS}")
        if self.pods and self.pods.network_policy:
            raise ValueError(f"pods.{_UNKNOWN_PORTS}")

    def _check_topology(self) -> None:
        if self.topology is None:
            return
        slo, demand, split = self.slo, self.demand, self.hardware.parallelism
        has_rate = demand is not None and (
            demand.requests_per_second or demand.tokens_per_second or demand.tokens_per_day
        )
        holds = (
            slo is not None and slo.time_to_first_token and slo.time_per_output_token,
            has_rate,
            demand is None or demand.cache_transfer is None,
            self.scale_target is None,
            self.engine is None or self.engine.role is None,
            self.model.kv_offload is None,
            self.pods is None or self.pods.network_policy is None,
            split is None or (split.pipeline or 1) == 1,
        )
        for is_so, (_, message, field) in zip(holds, _TOPOLOGY_RULES, strict=True):
            if not is_so:
                raise ValueError(f"{field}: {message}")
        for role in ROLES:
            self._check_bounds(role, self.topology.options_of(role))

    def _check_bounds(self, role: Role, own: RoleOptions) -> None:
        most = own.max_replicas or self.scaling.max_replicas
        if (own.min_replicas or self.scaling.min_replicas) > most:
            raise ValueError(f"topology.{role}: {_MIN_OF_ROLE}")
        if any((each.min_replicas or 0) > most for each in self.scaling.schedules):
            raise ValueError(f"scaling.schedules: {_SCHEDULE_OF_ROLE}")
        if self._lets_no_pod_go(most):
            raise ValueError(f"pods.{_BUDGET_OF_ROLE}")

    def _lets_no_pod_go(self, most: int) -> bool:
        """Tell whether the disruption budget takes as many pods as there may be."""
        budget = self.pods.disruption_budget if self.pods else None
        available = budget.min_available if budget else None
        return isinstance(available, int) and available >= most

    def _check_budget(self) -> None:
        if self._lets_no_pod_go(self.scaling.max_replicas):
            raise ValueError(
                "pods.disruptionBudget.minAvailable must be below maxReplicas: no pod could ever go"
            )

    def _check_lengths(self) -> None:
        if self.demand:
            prompt, output = self.demand.prompt_tokens, self.demand.output_tokens
            total = prompt.mean + output.mean
            if total > self.context_length:
                raise ValueError(
                    f"demand: promptTokens.mean + outputTokens.mean = {total} exceed "
                    f"contextLength {self.context_length}"
                )
            for name, counts in (("promptTokens", prompt), ("outputTokens", output)):
                if (counts.p99 or 0) > self.context_length:
                    raise ValueError(
                        f"demand: {name}.p99 {counts.p99} exceeds contextLength "
                        f"{self.context_length}"
                    )

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
