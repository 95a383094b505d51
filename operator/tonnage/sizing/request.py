"""The request that a plan answers, put together from a spec and from what is known."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Final

from tonnage.api.hardware import ParallelSizes, Role
from tonnage.api.schedules import Schedule
from tonnage.api.spec import Spec
from tonnage.catalog.cache_types import CACHE_TYPES, StoredCache, names_of
from tonnage.catalog.config.formats.quantization import WEIGHT_FORMATS
from tonnage.catalog.engine import CacheRules, KnownEngine, find_engine, parse_version
from tonnage.catalog.engine_limits import (
    board_refusals,
    flag_refusals,
    method_assumptions,
    needs_bf16,
    products_in,
)
from tonnage.catalog.engine_speed import TEXTBOOK_SPEED, RunMode, SpeedConstants, prior_speed
from tonnage.catalog.gpu import Gpu, UnsupportedEngineError, boards_named, check_nodes, find_gpu
from tonnage.catalog.model_names import says_format
from tonnage.catalog.models import built_in_model, overrides_in, read_model_config
from tonnage.catalog.shape import (
    Assumption,
    CompressedAttention,
    ModelShape,
    WeightFormat,
)
from tonnage.catalog.speed_range import speed_spread
from tonnage.memoize import memoize
from tonnage.sizing.errors import InvalidParallelismError
from tonnage.sizing.expected import (
    expected_adapters,
    expected_demand,
    expected_speculation,
    expected_workload,
    may_refuse_late,
    refusals,
    refuses_late,
    slo_of,
    transfer_s_of,
)
from tonnage.sizing.options import (
    DEFAULT_SWITCHES,
    Adapters,
    EngineSwitches,
    Speculation,
    switches_in,
)
from tonnage.sizing.provenance import (
    Figure,
    Input,
    Origin,
    arrivals_input,
    assumed_inputs,
    demand_written,
    engine_input,
    format_input,
    given_input,
    gpu_input,
    host_cache_written,
    lengths_inputs,
    most_times,
    schedules_written,
    speed_input,
    targets_written,
    with_changed,
)
from tonnage.sizing.split import Parallelism
from tonnage.sizing.workload import Demand, Routing, Slo, Workload

HALF_TYPES = {"bf16": "bfloat16", "fp16": "float16"}
"""As the engine calls them, by the format of weights."""
DIGEST_LENGTH = 12
SINCE_CONTEXT_RANKS_HAND_OVER = (0, 29)
EXPERT_ARGUMENT: Final = "--enable-expert-parallel"


ANY_SIZES: Final = ParallelSizes()


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """The engine flags that decide capacity, as they run."""

    max_num_seqs: int
    max_num_batched_tokens: int
    gpu_memory_utilization: float
    parallelism: Parallelism
    kv_cache_bytes: int | None = None
    """Of one GPU: with it the engine does not look at ``gpu_memory_utilization``. None: it profiles
    what is left."""
    num_gpu_blocks: int | None = None
    """Of the cache of one rank, whatever memory was found for it. None: as many as that holds."""
    max_num_queued_reqs: int | None = None
    """Running and waiting in all ranks of an engine, above which it refuses. None: never."""
    max_num_queued_tokens: int | None = None
    """Of prompts without a first token, from which on an API server refuses; an engine has one for
    each data-parallel rank. None: never."""
    context_tokens: int | None = None
    """Of a request, where the cache holds no more. None: as the spec says."""
    is_cured: bool = False
    """With others no engine started: these stay until the spec changes."""

    @property
    def refuse_requests(self) -> bool:
        """Whether an engine refuses any."""
        return bool(self.max_num_queued_reqs or self.max_num_queued_tokens)


@dataclass(frozen=True, kw_only=True)
class SizingRequest:
    """Everything that a plan depends on."""

    shape: ModelShape
    gpu: Gpu
    engine: KnownEngine
    speed: SpeedConstants
    weights: WeightFormat
    kv_format: str
    """A key of ``CACHE_TYPES``."""
    context_tokens: int
    workload: Workload
    slo: Slo
    demand: Demand
    num_gpus: int | None = None
    sizes: ParallelSizes = ANY_SIZES
    """Of the split, as the spec gives them."""
    min_replicas: int = 1
    max_replicas: int | None = None
    """A split whose replicas for the demand exceed this is taken where those of all do."""
    routing: Routing = Routing.SERVICE
    arrival_scv: float = 1.0
    refuses_late: bool = False
    """Engines refuse who would get a first token too late."""
    may_refuse: bool = False
    """They accept everybody, and ``engine.admission`` can change that."""
    flags: Flags | None = None
    """Flags that run and stay: capacity is asked for them. None: they are to be chosen."""
    has_started: bool = True
    """A replica was Ready with these flags, so it holds a request. False: they are in a file."""
    measured_kv_tokens: float | None = None
    """Of one data-parallel rank, as a running engine with these flags reports it."""
    engine_digest: str = ""
    """Of the image and the user's own flags: they change speed and memory too."""
    switches: EngineSwitches = DEFAULT_SWITCHES
    """Among the user's own flags, those that move the cache in a known way."""
    speculation: Speculation | None = None
    """None: each step gives each sequence one token."""
    adapters: Adapters | None = None
    """None: LoRA is off."""
    max_num_batched_tokens: int | None = None
    """As the spec has it: flags that are to be chosen have this. None: it is chosen too."""
    role: Role | None = None
    """Which part of each request the replicas serve; None: all of it."""
    has_host_cache: bool = False
    """A KV cache in host memory is behind that of the GPUs."""
    node_link_bytes_per_s: float | None = None
    """Of one GPU to other nodes; None: no data-parallel ranks are over several."""
    schedules: tuple[Schedule, ...] = ()
    """Known events that are paid for beside the demand; the operator follows them by the clock."""
    transfer_s: float = 0.0
    """In which the KV cache of a mean prompt comes from another engine: part of TTFT."""
    inputs: tuple[Input, ...] = ()

    def __hash__(self) -> int:
        return _hash_of(self)

    @property
    def cache(self) -> StoredCache:
        known = CACHE_TYPES[self.kv_format]
        since = known.plain_sparse_since.get(self.gpu.generation)
        if since and parse_version(self.engine.minor) >= parse_version(since):
            known = replace(known, sparse_entry_bytes=None)
        return StoredCache(type=known, skipped=self.switches.wide_cache)

    def spreads(self, split: Parallelism) -> bool:
        """Tell whether data-parallel ranks of a split are on several nodes."""
        return split.data > 1 and split.num_gpus > self.gpu.gpus_per_node

    def crosses_nodes(self, split: Parallelism) -> bool:
        """Tell whether a split's data-parallel ranks exchange tokens between nodes."""
        return self.shape.has_experts and self.spreads(split)

    @property
    def other_node_bytes_per_s(self) -> float:
        """Of one GPU to a replica elsewhere; not given: as to others of its node."""
        return self.node_link_bytes_per_s or self.gpu.interconnect_bytes_per_s

    @property
    def is_within_node(self) -> bool:
        """Neither stages nor further nodes are planned: nobody has seen their cache moved."""
        return self.role is not None or self.has_host_cache

    @property
    def shares_context(self) -> bool:
        """Ranks may share out a context: not where what they cache is moved in a way not proven.

        Sources:
            [vllm-source] kv_connector/v1/nixl/tp_mapping.py knows such ranks since 0.29;
            v1/kv_offload/config.py: nobody has seen them copied to the host.
        """
        hands_over = parse_version(self.engine.minor) >= SINCE_CONTEXT_RANKS_HAND_OVER
        return not self.has_host_cache and (self.role is None or hands_over)

    @property
    def drafts_by_ngram(self) -> bool:
        return self.speculation is not None and self.speculation.method == "ngram"

    @property
    def products(self) -> str:
        """The precision in which the engine multiplies quantized matrices."""
        return products_in(self.gpu, self.weights, self.engine.minor)

    @property
    def dtype(self) -> str:
        """The 16-bit type that the engine computes in, ``--dtype``; a 16-bit cache has it too."""
        return dtype_of(self.shape, self.weights, self.gpu)

    @property
    def cache_rules(self) -> CacheRules:
        """How the engine cuts the cache; layers with a state keep one for each draft token."""
        rules = self.switches.rules(self.engine.constants.cache)
        if self.speculation is None:
            return rules
        drafted = self.speculation.num_draft_tokens
        return replace(rules, state_blocks=rules.state_blocks + drafted, state_draft_tokens=drafted)


@memoize
def _hash_of(request: SizingRequest) -> int:
    """Return the hash of all fields: answers are looked up by requests again and again."""
    return hash(tuple(getattr(request, each.name) for each in fields(request)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What the catalogue holds about a spec's model, GPU and engine."""

    shape: ModelShape
    gpu: Gpu
    engine: KnownEngine
    weights: WeightFormat


def look_up(
    spec: Spec,
    gpus: Mapping[str, Gpu],
    *,
    model_config: str | None = None,
    shape: ModelShape | None = None,
    engine_version: str | None = None,
) -> Known:
    """Return the catalogue's figures for a spec.

    ``model_config``: the text of a config.json that replaces the built-in one; ``shape``: what one
    said that was read before.
    ``engine_version``: of a scale target, whose spec has no engine.

    Raises:
        CatalogError: a model, class or version is unknown, or a config.json is not understood.
    """
    overrides = overrides_in(spec.engine.args if spec.engine else ())
    if model_config is not None:
        shape = read_model_config(model_config, name=spec.model.id, overrides=overrides)
    shape = _as_named(shape or built_in_model(spec.model.id, overrides), spec.model.weights)
    version = spec.engine.known_version if spec.engine else engine_version
    _refuse_arguments(spec, shape, version or "")
    for each in (spec.pods and spec.pods.gpu_nodes) or ():
        check_nodes(each.key, each.values if each.operator == "In" else ())
    boards = boards_named(spec.hardware.gpu, gpus)
    refused = [list(board_refusals(version or "", board)) for board in boards]
    if len(boards) > 1 and all(refused):  # of a name that means several
        raise UnsupportedEngineError(f"engine.version {version}: {refused[0][-1]}")
    gpu, engine = find_gpu(spec.hardware.gpu, gpus), find_engine(version or "")
    needed = method_assumptions(shape.quant_method, engine.minor)
    shape = replace(shape, assumptions=(*shape.assumptions, *needed))
    stored = shape.weight_format  # asked for by a name that it has, too
    weights = WEIGHT_FORMATS.get(spec.model.weights, stored)
    weights = stored if weights.name in stored.names else weights
    known = Known(shape=shape, gpu=gpu, engine=engine, weights=weights)
    _refuse_half_types(spec, gpu, dtype_of(shape, known.weights, gpu))
    for reason in refusals(spec, known.engine.minor, shape, gpu):
        raise UnsupportedEngineError(reason)
    return known


def _as_named(shape: ModelShape, asked: str) -> ModelShape:
    """Return a shape in the format that is asked for, where its name says it and no file another.

    Its publisher may say in another file than config.json how the weights are stored.
    """
    is_plain = not shape.quant_method and shape.weight_format.name in HALF_TYPES
    if not is_plain or asked not in WEIGHT_FORMATS or not says_format(shape.name, asked):
        return shape
    assumed = Assumption(
        about="weights",
        taken=f"{asked}, as model.weights and the name of the model say and config.json does not: "
        "modules that stay in 16 bits are not known",
        effect="memory",
        replaced_by="hf_quant_config.json beside config.json (--model-config FOLDER, or a further "
        "key of its ConfigMap)",
    )
    return replace(
        shape,
        weight_format=WEIGHT_FORMATS[asked],
        assumptions=(*(each for each in shape.assumptions if each.about != "weights"), assumed),
    )


def _refuse_arguments(spec: Spec, shape: ModelShape, version: str) -> None:
    """Refuse arguments that the version does not know, or with which it refuses the model.

    And whole experts that are asked for where there are none, or where they are asked not to be.

    Sources:
        [vllm-source] config/model.py _verify_with_expert_parallelism.
    """
    arguments = spec.engine.args if spec.engine else ()
    for reason in flag_refusals(version, arguments):
        raise UnsupportedEngineError(f"engine.args: {reason}, engine.version is {version}")
    is_expert = (spec.hardware.parallelism or ANY_SIZES).expert
    has_argument = EXPERT_ARGUMENT in arguments
    if has_argument and is_expert is False:
        raise UnsupportedEngineError(
            f"hardware.parallelism.expert: false contradicts engine.args: {EXPERT_ARGUMENT}"
        )
    asked = f"engine.args: {EXPERT_ARGUMENT}" if has_argument else "hardware.parallelism.expert"
    if not shape.has_experts and (has_argument or is_expert):
        raise UnsupportedEngineError(
            f"{asked} needs a model with experts, {spec.model.id} has none"
        )


def without_stages(sizes: ParallelSizes) -> ParallelSizes:
    """Return the sizes of a split whose cache can be moved.

    Raises:
        InvalidParallelismError: pipeline stages are asked for.

    Sources:
        [vllm-source] kv_connector/v1/nixl: pipeline stages are refused by the engine that pulls.
        v1/core/kv_cache_utils.py: of host memory each stage is counted as the first.
    """
    if (sizes.pipeline or 1) > 1:
        raise InvalidParallelismError(
            "hardware.parallelism.pipeline: no KV cache of pipeline stages is moved, so neither "
            "engine.role nor model.kvOffload goes with them"
        )
    return sizes.model_copy(update={"pipeline": 1})


def _refuse_half_types(spec: Spec, gpu: Gpu, dtype: str) -> None:
    """Refuse a 16-bit type that is asked for by name where the engine computes in the other.

    ``dtype``: that; ``auto`` means float16 on a board without bf16.

    Sources:
        [vllm-source] platforms/cuda.py check_if_supports_dtype.
    """
    asked = {"model.weights": spec.model.weights, "model.kvCache": spec.model.kv_cache}
    for key, value in asked.items():
        if value == "bfloat16" and not gpu.has_bf16:
            raise UnsupportedEngineError(
                f"{key}: bfloat16 needs compute capability 8.0, which {gpu.name} has not; leave it "
                "out for float16"
            )
        if value in HALF_TYPES.values() and value != dtype and spec.scale_target is None:
            raise UnsupportedEngineError(
                f"{key}: {value} is not the type that {spec.model.id} is computed in, which is "
                f"{dtype}, and 16-bit weights and caches have that type; leave it out"
            )


def dtype_of(shape: ModelShape, weights: WeightFormat, gpu: Gpu) -> str:
    """Return the 16-bit type to compute in: of the board, the kind of model, the weights asked for.

    Else the checkpoint's own.

    Sources:
        [vllm-source] config/model.py _get_and_verify_dtype: any checkpoint is cast to what
        ``--dtype`` says; _FLOAT16_NOT_SUPPORTED_MODELS.
    """
    if not gpu.has_bf16:
        return "float16"
    if needs_bf16(shape.model_type):
        return "bfloat16"
    return HALF_TYPES.get(weights.name, shape.dtype)


def ask(spec: Spec, known: Known, *, has_host_cache: bool = False) -> SizingRequest:
    """Make the request of a spec: what it expects, and the priors for all that is learned.

    ``has_host_cache``: with the KV cache in host memory that the spec leaves open (Auto).

    Raises:
        InvalidParallelismError: the spec asks for a split whose cache cannot be moved.
    """
    sizes, role = spec.hardware.parallelism or ANY_SIZES, spec.role
    given = spec.model.kv_offload
    has_host_cache = given is not None and (has_host_cache or not given.is_auto)
    request = SizingRequest(
        shape=known.shape,
        gpu=known.gpu,
        engine=known.engine,
        speed=TEXTBOOK_SPEED,  # until all is known that the prior depends on
        weights=known.weights,
        kv_format=kv_cache_format(spec.model.kv_cache, known.shape, known.engine.minor),
        context_tokens=spec.context_length,
        workload=expected_workload(spec),
        slo=slo_of(spec),
        demand=expected_demand(spec.demand),
        num_gpus=spec.hardware.gpus_per_replica,
        sizes=without_stages(sizes) if role or has_host_cache else sizes,
        min_replicas=spec.scaling.min_replicas,
        max_replicas=spec.scaling.max_replicas,
        engine_digest=_engine_digest(spec, has_host_cache=has_host_cache),
        switches=switches_in(spec.engine.args) if spec.engine else DEFAULT_SWITCHES,
        routing=Routing(spec.scaling.routing),
        arrival_scv=float(spec.demand.arrival_scv) if spec.demand else 1.0,
        refuses_late=refuses_late(spec),
        may_refuse=may_refuse_late(spec, known.engine.minor),
        speculation=expected_speculation(spec),
        adapters=expected_adapters(spec),
        max_num_batched_tokens=spec.engine.max_num_batched_tokens if spec.engine else None,
        role=role,
        has_host_cache=has_host_cache,
        node_link_bytes_per_s=spec.hardware.node_link_bytes_per_s,
        transfer_s=transfer_s_of(spec),
    )
    request = with_prior(request)
    return replace(request, inputs=(*_spec_inputs(spec, request), *_catalog_inputs(request, spec)))


def _spec_inputs(spec: Spec, request: SizingRequest) -> Iterator[Input]:
    """Yield what a spec says, or leaves to be guessed, in the order of the plan.

    ``request``: that was made of it.
    """
    scv = spec.demand.arrival_scv if spec.demand else 1
    tokens = request.max_num_batched_tokens
    offload, link = spec.model.kv_offload, spec.hardware.node_link
    yield given_input(Figure.CONTEXT, f"{request.context_tokens} tokens")
    yield given_input(Figure.SLO, targets_written(request.slo))
    yield from lengths_inputs(request.workload, Origin.GIVEN if spec.demand else Origin.GUESSED)
    of_engine = {
        Figure.ADAPTERS: request.adapters,
        Figure.SPECULATION: request.speculation,
        Figure.CHUNK: tokens and f"{tokens} tokens per step",
        Figure.DEMAND: demand_written(spec.demand, request.demand),
    }
    yield from (given_input(figure, str(value)) for figure, value in of_engine.items() if value)
    yield arrivals_input(scv, request.routing, Origin.GUESSED if scv == 1 else Origin.GIVEN)
    others = {
        Figure.ADMISSION: request.refuses_late and "refuses what would be late",
        Figure.ROLE: spec.role,
        Figure.HOST_CACHE: offload and host_cache_written(offload),
        Figure.NODE_LINK: link and f"{link} of a GPU",
        Figure.SCHEDULES: schedules_written(spec.scaling.schedules),
    }
    yield from (given_input(figure, str(value)) for figure, value in others.items() if value)


def prior_of(request: SizingRequest) -> SpeedConstants:
    """Return the constants that hold before any of this request's are learned."""
    runner = request.engine.runner_of(request.shape, by_ngram=request.drafts_by_ngram)
    is_async = request.cache_rules.schedules_async
    run = RunMode(
        kv_format=request.kv_format,
        minor=request.engine.minor,
        schedules_async=is_async,
        has_second_runner=not request.shape.has_experts and runner is not None,
        overlaps_stages=request.engine.overlaps_stages(
            schedules_async=is_async, has_second_runner=runner is not None
        ),
    )
    return prior_speed(request.gpu, request.weights, run)


def spread_of(request: SizingRequest, split: Parallelism | None = None) -> float:
    """Return by which fraction a step may be off its prior, either way, eight times in ten.

    ``split``: where it is known; None: as the spec has it.
    """
    return _spread(request, split.pipeline if split else request.sizes.pipeline or 1)


@memoize
def _spread(request: SizingRequest, stages: int) -> float:
    spread = speed_spread(request.gpu, request.weights, request.shape, stages)
    return max(spread, most_times(request.inputs, "time") - 1)


def unstarted(request: SizingRequest, flags: Flags) -> SizingRequest:
    """Return the request with flags that were chosen, and that nothing has run with yet.

    The limits of the queue are not among them: they go with the speed.
    """
    chosen = replace(flags, max_num_queued_reqs=None, max_num_queued_tokens=None)
    return replace(request, flags=chosen, has_started=False)


def with_prior(request: SizingRequest) -> SizingRequest:
    """Return the request with the prior for its GPU and weights, which may have been replaced."""
    return replace(request, speed=prior_of(request))


def _engine_digest(spec: Spec, *, has_host_cache: bool) -> str:
    if spec.engine is None:
        return ""
    parts = [spec.engine.image or "", *spec.engine.args]
    if (spec.hardware.parallelism or ANY_SIZES).expert and EXPERT_ARGUMENT not in parts[1:]:
        parts.append(EXPERT_ARGUMENT)
    if drafts := spec.engine.speculative:
        parts += [drafts.method, str(drafts.tokens)]
    if adapters := expected_adapters(spec):
        parts.append(f"adapters {adapters}")
    if spec.engine.role:
        parts.append(f"role {spec.engine.role}")
    return digest_of([*parts, "host cache"] if has_host_cache else parts)


def digest_of(parts: Iterable[str]) -> str:
    """Return a short digest of texts, in their order."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:DIGEST_LENGTH]


def on_gpu(request: SizingRequest, gpu: Gpu) -> SizingRequest:
    """Return the same request for another class: split, flags and all that was measured are open.

    Raises:
        MissingFigureError: the class has no peak for weights like these.
    """
    moved = with_prior(
        replace(request, gpu=gpu, num_gpus=None, flags=None, measured_kv_tokens=None)
    )
    changed = (gpu_input(gpu, moved.products), _speed_input(moved))
    return replace(moved, inputs=with_changed(request.inputs, *changed))


def kv_cache_format(asked: str, shape: ModelShape, minor: str) -> str:
    """Resolve ``spec.model.kvCache``; 16-bit formats cost the same.

    A version that does not know the type of the checkpoint's cache keeps it in 16 bits.

    Sources:
        [vllm-source] models/deepseek_v4/attention.py _resolve_dsv4_kv_cache_dtype: auto is fp8;
        utils/torch_utils.py MODELOPT_TO_VLLM_KV_CACHE_DTYPE_MAP.
    """
    own = shape.kv_cache_format if shape.kv_cache_format in names_of(minor) else "bf16"
    automatic = "fp8" if shape.has_kind(CompressedAttention) else own
    return {"auto": automatic, "fp8": "fp8"}.get(asked, "bf16")


def _catalog_inputs(request: SizingRequest, spec: Spec) -> Iterator[Input]:
    yield gpu_input(request.gpu, request.products)
    yield format_input(Figure.WEIGHTS, request.weights.described, asked=spec.model.weights)
    yield format_input(Figure.KV_CACHE, request.kv_format, asked=spec.model.kv_cache)
    yield engine_input(request.engine)
    yield _speed_input(request)
    yield from assumed_inputs((*request.shape.assumptions, *cache_speed(request.kv_format)))


def cache_speed(kv_format: str) -> Iterator[Assumption]:
    """Yield what is taken for attention over a cache of a type that was not measured."""
    if not CACHE_TYPES[kv_format].measured_as:
        yield Assumption(
            about="KV cache",
            taken=f"{kv_format}: attention was not measured, it counts as slow as over 16 bits",
            effect="time",
            replaced_by="the first Ready pod's own speed",
        )


def _speed_input(request: SizingRequest) -> Input:
    is_prior = request.speed == prior_of(request)
    return speed_input(request.speed, Origin.LOOKED_UP if is_prior else Origin.MEASURED)
