"""A sizing as the objects that status holds: the same on the command line and in the cluster."""

import math
from collections.abc import Iterator
from typing import Any, Final, assert_never

from tonnage.api.spec import Spec
from tonnage.api.status import (
    MESSAGE_LENGTH,
    EstimateStatus,
    InputStatus,
    ParallelismStatus,
    PlanStatus,
    Reason,
    ReasonStatus,
)
from tonnage.catalog.engine import KnownEngine, newest_version
from tonnage.catalog.shape import (
    Attention,
    CompressedAttention,
    GroupedAttention,
    LatentAttention,
    StateAttention,
)
from tonnage.memoize import memoize
from tonnage.sizing.bill import bill, inputs_with_price
from tonnage.sizing.cost import cents, fleet_usd_per_hour
from tonnage.sizing.errors import DoesNotFitError, SizingError, SLOInfeasibleError
from tonnage.sizing.memory.layout import LoggedFigures
from tonnage.sizing.offload import (
    Offload,
    asked_offload,
    auto_obstacle,
    held_as_planned,
    host_cache_gib,
)
from tonnage.sizing.plan import Sizing, requests_per_s_asked
from tonnage.sizing.provenance import Input, Origin
from tonnage.sizing.request import SizingRequest
from tonnage.sizing.serving.replica import typical_ttft_s
from tonnage.sizing.step_time.speeds import ridge_flop_per_byte
from tonnage.sizing.step_time.step import StepTime
from tonnage.units import count_of, format_bytes, format_s, significant

DIGITS = 4
ASSUMED = "Assumed"


def round_estimate(value: float, digits: int = DIGITS) -> float:
    """Keep so many digits as an estimate deserves; what is written then moves only when it does.

    >>> round_estimate(0.0123456), round_estimate(1234567)
    (0.01235, 1235000)
    """
    if value == 0 or not math.isfinite(value):
        return 0.0
    return round(value, digits - 1 - math.floor(math.log10(abs(value))))


def bottleneck_of(step: StepTime) -> str:
    """Name what a step spends most of its time on."""
    parts = {
        "MemoryBandwidth": step.memory_s if step.is_memory_bound else 0.0,
        "Compute": 0.0 if step.is_memory_bound else step.compute_s,
        "Prefill": step.prefill_s,
        "Overhead": step.overhead_s,
        "Communication": step.communication_s,
    }
    return max(parts, key=lambda name: parts[name])


def ridge(sizing: Sizing) -> float:
    """Return flop per byte at which this GPU's compute and memory balance."""
    speeds = sizing.replica.model.speeds
    return ridge_flop_per_byte(
        peak_flop_per_s=speeds.peak_flop_per_s, memory_bytes_per_s=speeds.memory_bytes_per_s
    )


def intensity(sizing: Sizing) -> float:
    """Return flop per byte of decode at the load line."""
    step = sizing.at_capacity.step
    return step.decode_flop / step.decode_bytes


@memoize
def usd_per_hour(sizing: Sizing, replicas: int) -> float | None:
    """Return the cost of so many replicas; None where the class has no price in USD."""
    gpu, each = sizing.request.gpu, sizing.parallelism.num_gpus
    if gpu.price.currency != "USD":
        return None
    return fleet_usd_per_hour(gpu, gpus_per_replica=each, replicas=replicas)


def plan_status(
    sizing: Sizing, *, replicas: int | None = None, reasons: tuple[Reason, ...] = ()
) -> PlanStatus:
    """Return ``status.plan``; ``replicas`` as decided, else as the arithmetic says."""
    flags, split = sizing.flags, sizing.flags.parallelism
    return PlanStatus(
        replicas=sizing.replicas if replicas is None else replicas,
        max_num_seqs=flags.max_num_seqs,
        max_num_batched_tokens=flags.max_num_batched_tokens,
        max_num_queued_reqs=flags.max_num_queued_reqs,
        max_num_queued_tokens=flags.max_num_queued_tokens,
        gpus_per_replica=split.num_gpus,
        parallelism=ParallelismStatus(
            tensor=split.tensor,
            pipeline=split.pipeline,
            data=split.data,
            context=split.context if split.context > 1 else None,
        ),
        limited_by=sizing.limited_by,
        reasons=tuple(
            ReasonStatus(code=code, message=message[:MESSAGE_LENGTH])
            for code, message in reasons or sizing_reasons(sizing)
        ),
    )


@memoize  # of the sizing: a copy of what it is memoized on would hold the copies before it
def estimate_status(sizing: Sizing, replicas: int | None) -> EstimateStatus:
    """Return ``status.estimate``: what the arithmetic expects of one replica and of the fleet."""
    number = sizing.replicas if replicas is None else replicas
    one, found = _estimate_of_one(sizing), bill(sizing, replicas=number)
    if found is None or found.currency != "USD":
        return one
    cost = {
        "usd_per_hour": cents(found.usd_per_hour),
        "usd_per_million_tokens": round_estimate(found.usd_per_million_tokens),
    }
    return one.model_copy(update=cost)


@memoize
def _estimate_of_one(sizing: Sizing) -> EstimateStatus:
    """Return the same but what replicas cost."""
    workload, state = sizing.request.workload, sizing.at_capacity
    ceiling = sizing.slo_ceiling
    low, high = sizing.kv_tokens_range
    return EstimateStatus(
        weights_bytes_per_gpu=round(sizing.shard.weights_bytes),
        kv_bytes_per_token=round(sum(share.bytes_per_token for share in sizing.shard.kv)),
        kv_tokens=math.floor(sizing.kv_tokens),
        kv_tokens_low=math.floor(low),
        kv_tokens_high=math.floor(high),
        concurrency_at_context_length=round_estimate(sizing.memory_ceiling_longest),
        concurrency_at_typical_length=round_estimate(sizing.memory_ceiling_typical),
        slo_concurrency=None if ceiling is None else round_estimate(ceiling),
        requests_per_second=round_estimate(sizing.goodput_requests_per_s),
        tokens_per_second=round_estimate(sizing.output_tokens_per_s),
        time_to_first_token_seconds=round_estimate(typical_ttft_s(sizing.replica, workload, state)),
        time_per_output_token_seconds=round_estimate(state.tpot_s),
        bottleneck=bottleneck_of(state.step),
        intensity_flop_per_byte=round_estimate(intensity(sizing)),
        ridge_flop_per_byte=round_estimate(ridge(sizing)),
        inputs=tuple(
            InputStatus(
                name=each.name,
                value=each.value,
                origin=each.origin.value,
                effect=each.effect or None,
                replaced_by=each.replaced_by or None,
            )
            for each in inputs_with_price(sizing)
        ),
    )


@memoize
def batch_reasons(sizing: Sizing) -> tuple[Reason, Reason]:
    """Say with numbers what set the batch."""
    state, flags, log = sizing.at_capacity, sizing.flags, logged_figures(sizing)
    capacity = (
        f"{goodput_written(sizing)} by a replica alone: "
        f"{significant(state.num_decoding)} decoding at {format_s(state.step_s)} per step, "
        f"stopped by {sizing.limited_by}"
    )
    slots = (
        f"max-num-seqs {flags.max_num_seqs}: {significant(state.num_running)} run on average; the "
        f"cache holds {significant(sizing.memory_ceiling_typical)}; {_printed_by(sizing)} "
        f"{significant(log.kv_tokens)} tokens, maximum concurrency "
        f"{significant(log.max_concurrency)}"
    )
    return Reason(code="Capacity", message=capacity), Reason(code="Slots", message=slots)


def sizing_reasons(sizing: Sizing) -> tuple[Reason, ...]:
    reasons: tuple[Reason, ...] = batch_reasons(sizing)
    rate = requests_per_s_asked(sizing)
    if rate is not None:
        message = (
            f"{rate_written(sizing, rate)} over "
            f"{significant(sizing.staffing.each(sizing.replicas))} per replica need "
            f"{sizing.replicas}"
        )
        reasons = (*reasons, Reason(code="Demand", message=message))
    return (*reasons, *memory_reasons(sizing), *start_reasons(sizing), *assumption_reasons(sizing))


@memoize
def assumption_reasons(sizing: Sizing) -> tuple[Reason, ...]:
    """Say what is counted for parts that no rule knows, and what replaces each."""
    written = assumptions_written(sizing.request)
    return tuple(Reason(code=ASSUMED, message=each) for each in written)


def assumptions_written(request: SizingRequest) -> tuple[str, ...]:
    """Write what a request assumes, each in a sentence."""
    assumed = (each for each in request.inputs if each.origin is Origin.ASSUMED)
    return (*_of_version(request.engine), *map(_assumption_written, assumed))


def _of_version(engine: KnownEngine) -> Iterator[str]:
    """Say that nobody has read a version's rules, and whose are taken."""
    if engine.is_guess:
        newest = newest_version()
        yield (
            f"vLLM {engine.minor}: newer than {newest}, the newest version whose rules are known; "
            f"memory, speed and flags are those of {newest}"
        )


def _printed_by(sizing: Sizing) -> str:
    """Name the version whose log the figures are of, as far as its rules are known."""
    engine = sizing.request.engine
    return f"vLLM {newest_version() if engine.is_guess else engine.minor} will print"


def moved_by(request: SizingRequest, refusal: type[SizingError]) -> str:
    """Name the assumptions without which a refusal may be none; empty: there are none."""
    moved = {DoesNotFitError: "memory", SLOInfeasibleError: "time"}.get(refusal)
    moving = [each for each in request.inputs if moved and moved in each.effect]
    return "".join(f"; assumed {_assumption_written(each)}" for each in moving)


def _assumption_written(assumed: Input) -> str:
    """Write an assumption, its effect and its cure in a sentence."""
    effect = f"{assumed.effect} may be up to {assumed.times - 1:.0%} too large"
    if assumed.effect == "start":
        effect = "otherwise vLLM does not start"
    return f"{assumed.name}: {assumed.value}; {effect}; {assumed.replaced_by} replaces this"


def rate_written(sizing: Sizing, requests_per_s: float) -> str:
    """Write a rate that is asked for, and whether it is that of the peak."""
    peak = " at the peak" if sizing.request.demand.is_peak else ""
    return f"{significant(requests_per_s)} requests/s{peak}"


def goodput_written(sizing: Sizing) -> str:
    """Write the goodput of a replica with its standard error.

    The digits of the rate are kept as they are: the error says how many of them mean something.
    """
    rate = f"{significant(sizing.goodput_requests_per_s)} requests/s"
    error = sizing.goodput.standard_error
    return f"{rate} (standard error {error:.1%})" if error else rate


@memoize
def memory_reasons(sizing: Sizing) -> tuple[Reason, ...]:
    """Say by how much the estimate is too high where it would refuse what runs."""
    doubt = sizing.memory_doubt
    if doubt is None:
        return ()
    fits = "the cache that is given" if sizing.budget.given_pool else "one request"
    runs = "the replicas run, so " if sizing.request.has_started else ""
    message = f"{runs}{fits} is assumed to fit; by the estimate {doubt}"
    return (Reason(code="MemoryEstimateBelowRunning", message=message),)


def start_reasons(sizing: Sizing) -> tuple[Reason, ...]:
    """Say why engines with these flags will not start, or may not."""
    return tuple(Reason(code=each.code, message=each.message) for each in sizing.start_doubts)


def attention_name(sizing: Sizing) -> str:
    kinds = (_kind(attention) for _, attention in sizing.request.shape.attentions())
    return ", ".join(dict.fromkeys(kinds))


def _kind(attention: Attention) -> str:
    match attention:
        case LatentAttention():
            return "sparse latent (MLA)" if attention.is_sparse else "latent (MLA)"
        case CompressedAttention():
            return f"compressed, window of {attention.window_tokens}"
        case StateAttention():
            return f"state ({attention.kind})"
        case GroupedAttention(window_tokens=None):
            heads = count_of(attention.num_heads, "head")
            return f"{heads}, {count_of(attention.num_kv_heads, 'KV head')}"
        case GroupedAttention():
            name = "chunks" if attention.is_chunked else "window"
            return f"{name} of {attention.window_tokens}"
        case _:
            assert_never(attention)


def logged_figures(sizing: Sizing) -> LoggedFigures:
    """Return the figures that each data-parallel rank of the engine logs."""
    replica = sizing.replica
    layout, split = replica.layout, sizing.flags.parallelism
    return layout.logged_figures(
        int(replica.kv_pool_bytes // layout.bytes_per_block),
        context_tokens=sizing.request.context_tokens,
        in_flight_tokens=layout.in_flight_tokens(
            sizing.flags.max_num_batched_tokens, split.pipeline
        ),
    )


def logged_lines(sizing: Sizing) -> Iterator[str]:
    """Yield what to look for in the log of a start."""
    figures = logged_figures(sizing)
    each = " on each data-parallel rank" if sizing.flags.parallelism.data > 1 else ""
    yield (
        f"{_printed_by(sizing)} {figures.kv_tokens:,} tokens, "
        f"maximum concurrency {figures.max_concurrency:.2f}{each}"
    )


OFFLOAD: Final = "KVOffload"
"""Code of a plan's reason."""


def offload_verdict(offload: Offload) -> str:
    """Say in a line whether a cache in host memory is worth it, and why."""
    gpu = f"the {offload.gpu_tokens:,.0f} that a replica's GPU cache holds beside running requests"
    host = f"{format_bytes(offload.needed_bytes)} of host memory"
    working = f"the working set of {offload.working_set_tokens:,.0f} tokens"
    if offload.fits_gpu:
        return f"not worth it: {working} is within {gpu}"
    if not offload.is_worth_it:
        return f"not worth it: {working} takes {host}, there are {format_bytes(offload.host_bytes)}"
    return f"worth it: {working} is beyond {gpu}, and takes {host}"


def offload_reasons(
    spec: Spec, sizing: Sizing, *, held_fraction: float | None = None, why: str = ""
) -> tuple[Reason, ...]:
    """Say of replicas whether their cache in host memory is worth it, and what Auto chose.

    ``held_fraction``: of the GPU cache, by running requests; None: not measured. ``why``: the
    choice is another than the verdict.
    """
    given = spec.model.kv_offload
    if given is None:
        return ()
    parts = []
    if given.is_auto:
        is_on = sizing.request.has_host_cache
        parts.append(
            f"Auto: on, {host_cache_gib(given, sizing)} GiB a replica" if is_on else "Auto: off"
        )
    obstacle = auto_obstacle(spec, sizing.request) if given.is_auto else None
    if obstacle is None and given.is_auto and held_fraction is None:
        held_fraction = held_as_planned(sizing)
    if obstacle is not None:
        parts.append(obstacle)
    elif held_fraction is not None and (offload := asked_offload(given, sizing, held_fraction)):
        parts.append(offload_verdict(offload))
        is_other = given.is_auto and offload.is_worth_it != sizing.request.has_host_cache
        if why and is_other:
            parts.append(why)
    return (Reason(code=OFFLOAD, message="; ".join(parts)),) if parts else ()


def offload_figures(
    spec: Spec, sizing: Sizing, *, held_fraction: float, why: str = ""
) -> dict[str, Any] | None:
    """Return the same of a plan as data; None: there is nothing to say."""
    given = spec.model.kv_offload
    reasons = offload_reasons(spec, sizing, held_fraction=held_fraction, why=why)
    if given is None or not reasons:
        return None
    parts = {"message": reasons[0].message}
    auto = {"isOn": sizing.request.has_host_cache} if given.is_auto else {}
    offload = asked_offload(given, sizing, held_fraction)
    if offload is None or (given.is_auto and auto_obstacle(spec, sizing.request)):
        return parts | auto
    return {
        "isWorthIt": offload.is_worth_it,
        **parts,
        **auto,
        "workingSetTokens": round(offload.working_set_tokens),
        "gpuCacheTokens": round(offload.gpu_tokens),
        "hostBytesNeeded": round(offload.needed_bytes),
    }
