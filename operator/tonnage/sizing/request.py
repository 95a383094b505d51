"""The request that a plan answers, put together from a spec and from what is known."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from tonnage.api.spec import Demand as DemandSpec
from tonnage.api.spec import Spec
from tonnage.catalog.config.formats.quantization import WEIGHT_FORMATS
from tonnage.catalog.engine import CacheRules, KnownEngine, find_engine
from tonnage.catalog.engine_speed import TEXTBOOK_SPEED, SpeedConstants, prior_speed
from tonnage.catalog.gpu import Gpu, find_gpu
from tonnage.catalog.models import built_in_model, read_model_config
from tonnage.catalog.shape import CompressedAttention, ModelShape, WeightFormat
from tonnage.sizing.expected import (
    expected_demand,
    expected_speculation,
    expected_workload,
    promised,
)
from tonnage.sizing.speculation import Speculation
from tonnage.sizing.split import Parallelism
from tonnage.sizing.switches import DEFAULT_SWITCHES, EngineSwitches, switches_in
from tonnage.sizing.workload import Demand, Routing, Slo, Workload
from tonnage.units import format_bytes, format_si, significant

Origin = Literal["given", "looked up", "guessed", "measured"]
KV_ELEMENT_BYTES = {"bf16": 2, "fp8": 1}
DIGEST_LENGTH = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One figure that the answer stands on, written for a person, and where it comes from."""

    name: str
    value: str
    origin: Origin


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """The engine flags that decide capacity, as they run."""

    max_num_seqs: int
    max_num_batched_tokens: int
    gpu_memory_utilization: float
    parallelism: Parallelism


@dataclass(frozen=True, slots=True, kw_only=True)
class SizingRequest:
    """Everything that a plan depends on."""

    shape: ModelShape
    gpu: Gpu
    engine: KnownEngine
    speed: SpeedConstants
    weights: WeightFormat
    kv_format: str
    context_tokens: int
    workload: Workload
    slo: Slo
    demand: Demand
    num_gpus: int | None = None
    max_replicas: int | None = None
    """A split whose replicas for the demand exceed this is not large enough."""
    routing: Routing = Routing.SERVICE
    arrival_scv: float = 1.0
    flags: Flags | None = None
    """Flags that run and stay: capacity is asked for them. None: they are to be chosen."""
    measured_kv_tokens: float | None = None
    """Of one data-parallel rank, as a running engine with these flags reports it."""
    engine_digest: str = ""
    """Of the image and the user's own flags: they change speed and memory too."""
    switches: EngineSwitches = DEFAULT_SWITCHES
    """Among the user's own flags, those that move the cache in a known way."""
    speculation: Speculation | None = None
    """None: each step gives each sequence one token."""
    is_textbook: bool = False
    inputs: tuple[Input, ...] = ()

    @property
    def kv_element_bytes(self) -> int:
        return KV_ELEMENT_BYTES[self.kv_format]

    @property
    def cache_rules(self) -> CacheRules:
        """How the engine cuts the cache; layers with a state keep one for each guessed token."""
        rules = self.switches.rules(self.engine.constants.cache)
        drafted = self.speculation.num_draft_tokens if self.speculation else 0
        return replace(rules, state_blocks=rules.state_blocks + drafted)


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
    engine_version: str | None = None,
) -> Known:
    """Return the catalogue's figures for a spec.

    ``model_config``: the text of a config.json that replaces the built-in one.
    ``engine_version``: of a scale target, whose spec has no engine.

    Raises:
        CatalogError: a model, class or version is unknown, or a config.json is not understood.
    """
    if model_config is None:
        shape = built_in_model(spec.model.id)
    else:
        shape = read_model_config(model_config, name=spec.model.id)
    version = spec.engine.known_version if spec.engine else engine_version
    weights = spec.model.weights
    return Known(
        shape=shape,
        gpu=find_gpu(spec.hardware.gpu, gpus),
        engine=find_engine(version or ""),
        weights=shape.weight_format if weights == "auto" else WEIGHT_FORMATS[weights],
    )


def ask(spec: Spec, known: Known) -> SizingRequest:
    """Make the request of a spec: what it expects, and the priors for all that is learned."""
    request = SizingRequest(
        shape=known.shape,
        gpu=known.gpu,
        engine=known.engine,
        speed=_prior(known.shape, known.gpu, known.weights),
        weights=known.weights,
        kv_format=kv_cache_format(spec.model.kv_cache, known.shape),
        context_tokens=spec.context_length,
        workload=expected_workload(spec),
        slo=promised(spec),
        demand=expected_demand(spec.demand),
        num_gpus=spec.hardware.gpus_per_replica,
        max_replicas=spec.scaling.max_replicas,
        engine_digest=_engine_digest(spec),
        switches=switches_in(spec.engine.args) if spec.engine else DEFAULT_SWITCHES,
        routing=Routing(spec.scaling.routing),
        arrival_scv=float(spec.demand.arrival_scv) if spec.demand else 1.0,
        speculation=expected_speculation(spec),
    )
    return replace(request, inputs=(*_spec_inputs(spec), *_catalog_inputs(request, spec)))


def _prior(shape: ModelShape, gpu: Gpu, weights: WeightFormat) -> SpeedConstants:
    return prior_speed(gpu, weights, has_experts=shape.has_experts)


def with_prior(request: SizingRequest) -> SizingRequest:
    """Return the request with the prior for its GPU and weights, which may have been replaced."""
    if request.is_textbook:
        return request
    return replace(request, speed=_prior(request.shape, request.gpu, request.weights))


def _engine_digest(spec: Spec) -> str:
    if spec.engine is None:
        return ""
    guess = spec.engine.speculative
    guessed = (guess.method, str(guess.tokens)) if guess else ()
    return digest_of((spec.engine.image or "", *spec.engine.args, *guessed))


def digest_of(parts: Iterable[str]) -> str:
    """Return a short digest of texts, in their order."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:DIGEST_LENGTH]


def as_textbook(request: SizingRequest) -> SizingRequest:
    """Return the request as napkin arithmetic puts it: nominal figures, no overhead."""
    efficiency = Input(name="efficiency", value="1, no overhead", origin="given")
    nominal = (_nominal_memory_input(request), efficiency)
    unused = (f"GPU {request.gpu.name}", "bandwidth efficiency", f"vLLM {request.engine.minor}")
    kept = tuple(each for each in request.inputs if each.name not in unused)
    return replace(request, speed=TEXTBOOK_SPEED, is_textbook=True, inputs=(*kept, *nominal))


def on_gpu(request: SizingRequest, gpu: Gpu) -> SizingRequest:
    """Return the same request for another class: split, flags and all that was measured are open.

    Raises:
        MissingFigureError: the class has no peak for weights like these.
    """
    moved = with_prior(
        replace(request, gpu=gpu, num_gpus=None, flags=None, measured_kv_tokens=None)
    )
    before, after = _gpu_inputs(request), _gpu_inputs(moved)
    changes = {old.name: new for old, new in zip(before, after, strict=True)}
    inputs = tuple(changes.get(each.name, each) for each in request.inputs)
    return replace(moved, inputs=inputs)


def kv_cache_format(asked: str, shape: ModelShape) -> str:
    """Resolve ``spec.model.kvCache``; 16-bit formats cost the same.

    Sources:
        [vllm-source] models/deepseek_v4/attention.py _resolve_dsv4_kv_cache_dtype: auto is fp8.
    """
    kinds = (attention for _, attention in shape.attentions())
    is_compressed = any(isinstance(kind, CompressedAttention) for kind in kinds)
    automatic = "fp8" if is_compressed else shape.kv_cache_format
    return {"auto": automatic, "fp8": "fp8"}.get(asked, "bf16")


def _spec_inputs(spec: Spec) -> tuple[Input, ...]:
    workload = expected_workload(spec)
    lengths = (
        f"{significant(workload.prompt.mean_tokens)} prompt ({workload.cached_fraction:.0%} "
        f"cached) + {significant(workload.output_tokens)} output tokens"
    )
    slo = promised(spec)
    promises = [f"TTFT {each}" for each in slo.ttft] + [f"TPOT {each}" for each in slo.tpot]
    return (
        Input(name="contextLength", value=f"{spec.context_length} tokens", origin="given"),
        Input(name="SLO", value=", ".join(promises) or "none: offline", origin="given"),
        Input(name="lengths", value=lengths, origin="given" if spec.demand else "guessed"),
        *_speculation_input(spec),
        Input(name="demand", value=_demand_written(spec.demand), origin="given"),
        _arrivals_input(spec),
    )


def _arrivals_input(spec: Spec) -> Input:
    scv = spec.demand.arrival_scv if spec.demand else 1
    words = "Poisson" if scv == 1 else f"bursts of squared variation {scv}"
    origin: Origin = "guessed" if scv == 1 else "given"
    return Input(name="arrivals", value=f"{words}, through a {spec.scaling.routing}", origin=origin)


def _speculation_input(spec: Spec) -> tuple[Input, ...]:
    speculation = expected_speculation(spec)
    if speculation is None:
        return ()
    return (Input(name="speculation", value=str(speculation), origin="given"),)


def _demand_written(demand: DemandSpec | None) -> str:
    """Write the demand in the words of the spec, where these are not a rate of requests."""
    rate = expected_demand(demand)
    if demand is None or demand.tokens_per_day is None:
        return str(rate)
    return f"{float(demand.tokens_per_day):,.0f} output tokens per day = {rate}"


def _catalog_inputs(request: SizingRequest, spec: Spec) -> tuple[Input, ...]:
    weights = request.weights
    weights_origin: Origin = "looked up" if spec.model.weights == "auto" else "given"
    kv_origin: Origin = "looked up" if spec.model.kv_cache == "auto" else "given"
    engine_origin: Origin = "guessed" if request.engine.is_guess else "looked up"
    return (
        _gpu_input(request),
        Input(name="weights", value=weights.name, origin=weights_origin),
        Input(name="KV cache", value=request.kv_format, origin=kv_origin),
        Input(
            name=f"vLLM {request.engine.minor}",
            value=f"memory constants since {request.engine.constants.since}",
            origin=engine_origin,
        ),
        _speed_input(request),
    )


def _gpu_inputs(request: SizingRequest) -> tuple[Input, ...]:
    """Return the inputs that another class would change, in a fixed order."""
    return _gpu_input(request), _nominal_memory_input(request), _speed_input(request)


def _gpu_input(request: SizingRequest) -> Input:
    gpu = request.gpu
    peak = format_si(gpu.flop_per_s(request.weights.compute), "FLOP/s")
    memory = f"{format_bytes(gpu.memory_bytes)}, {format_si(gpu.memory_bytes_per_s, 'B/s')}, {peak}"
    return Input(name=f"GPU {gpu.name}", value=memory, origin="looked up")


def _nominal_memory_input(request: SizingRequest) -> Input:
    """Return what the brochure says: what textbook arithmetic stands on."""
    nominal_bytes = request.gpu.nominal_memory_bytes
    return Input(name="memory", value=format_bytes(nominal_bytes), origin="looked up")


def _speed_input(request: SizingRequest) -> Input:
    speed = request.speed
    is_prior = speed == _prior(request.shape, request.gpu, request.weights)
    return Input(
        name="bandwidth efficiency",
        value=significant(speed.bandwidth_efficiency),
        origin="looked up" if is_prior else "measured",
    )
