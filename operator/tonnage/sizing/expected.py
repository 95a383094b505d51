"""What a spec expects of traffic, SLO and engine, and what of that no engine of its version has."""

from collections.abc import Iterator
from typing import Final

from tonnage.api.pod_template import given_template, variables_in
from tonnage.api.spec import Demand as DemandSpec
from tonnage.api.spec import Percentiles, Spec
from tonnage.catalog.engine import parse_version
from tonnage.catalog.gpu import Gpu
from tonnage.catalog.shape import Attention, GroupedAttention, LatentAttention, ModelShape
from tonnage.memoize import memoize
from tonnage.sizing.options import ADAPTER_FILES, WITHOUT_SLOTS, Adapters, Speculation, switches_in
from tonnage.sizing.workload import Demand, Lengths, Slo, Target, Workload
from tonnage.units import DAY_S, seconds

PERCENT = 100
GUESSED_PROMPT_TOKENS = 2048
GUESSED_OUTPUT_TOKENS = 512


@memoize
def slo_of(spec: Spec) -> Slo:
    """Return the SLO targets of a spec."""
    if spec.slo is None:
        return Slo()
    ttft, tpot = spec.slo.time_to_first_token, spec.slo.time_per_output_token
    return Slo(ttft=_targets(ttft), tpot=_targets(tpot))


def _targets(given: Percentiles | None) -> tuple[Target, ...]:
    limits = given.targets() if given else {}
    return tuple(Target(quantile=q, limit_s=limit_s) for q, limit_s in limits.items())


def refuses_late(spec: Spec) -> bool:
    """Tell whether engines refuse who would get a first token too late."""
    return spec.engine is not None and spec.engine.admission == "inTime"


def may_refuse_late(spec: Spec, minor: str) -> bool:
    """Tell whether ``engine.admission: inTime`` is open to a spec that accepts every request."""
    is_whole = spec.role != "decode" and not spec.topology
    is_counted = parse_version(minor) >= SINCE_COUNTED_REFUSALS
    ours = spec.engine is not None and spec.engine.admission == "all"
    return ours and is_whole and is_counted and bool(slo_of(spec).ttft)


def expected_workload(spec: Spec) -> Workload:
    """Return the lengths that the spec expects, or a guess: of what engines of its role serve."""
    return _whole_requests(spec).of_role(spec.role)


def transfer_s_of(spec: Spec) -> float:
    """Return how long decode waits for the cache of a mean prompt; 0 for all others."""
    given = spec.demand.cache_transfer if spec.demand else None
    return seconds(given) if given and spec.role == "decode" else 0.0


def _whole_requests(spec: Spec) -> Workload:
    demand = spec.demand
    if demand is None:
        return Workload(
            prompt=Lengths(mean_tokens=min(GUESSED_PROMPT_TOKENS, spec.context_length / 2)),
            output_tokens=min(GUESSED_OUTPUT_TOKENS, spec.context_length / 4),
        )
    output, prompt = (
        Lengths(mean_tokens=given.mean, p99_tokens=given.p99, longest_tokens=spec.context_length)
        for given in (demand.output_tokens, demand.prompt_tokens)
    )
    return Workload(
        prompt=prompt,
        output_tokens=output.mean_tokens,
        cached_fraction=demand.cached_prompt_percent / PERCENT,
        output_second_moment=None if output.p99_tokens is None else output.second_moment,
        given_output_p99_tokens=output.p99_tokens,
    )


def expected_speculation(spec: Spec) -> Speculation | None:
    """Return how the engine drafts tokens, and how many are expected to be accepted."""
    given = spec.engine.speculative if spec.engine else None
    if given is None:
        return None
    return Speculation(
        method=given.method,
        num_draft_tokens=given.tokens,
        acceptance_rate=given.accepted_percent / PERCENT,
    )


def expected_adapters(spec: Spec) -> Adapters | None:
    """Return the slots for LoRA adapters; None: there are none."""
    given = spec.model.adapters
    return None if given is None else Adapters(number=given.number, rank=given.rank)


def expected_demand(demand: DemandSpec | None) -> Demand:
    """Return the traffic to plan for, as a rate or as requests in flight: its peak, if given."""
    if demand is None:
        return Demand()
    output, peak = demand.output_tokens.mean, (demand.peak_percent or PERCENT) / PERCENT
    if demand.requests_per_second is not None:
        return _at_peak(float(demand.requests_per_second), peak)
    if demand.tokens_per_second is not None:
        return _at_peak(float(demand.tokens_per_second) / output, peak)
    if demand.tokens_per_day is not None:
        return _at_peak(float(demand.tokens_per_day) / DAY_S / output, peak)
    if demand.concurrent_users is not None:
        duty_fraction = (demand.duty_cycle_percent or PERCENT) / PERCENT
        return Demand(
            concurrency=peak * demand.concurrent_users * duty_fraction,
            duty_fraction=duty_fraction,
            peak_ratio=peak,
        )
    return Demand()


def _at_peak(requests_per_s: float, peak: float) -> Demand:
    return Demand(requests_per_s=peak * requests_per_s, peak_ratio=peak)


BY_PRIORITY: Final = "--scheduling-policy=priority"
SINCE_SAFE_PRIORITIES: Final = (0, 12)
"""Versions before take up a preempted request as if its cache were still there."""
SINCE_SHORT_LEASES: Final = (0, 22)
SINCE_COUNTED_REFUSALS: Final = (0, 32)
SINCE_WHOLE_HOST_CACHES: Final = (0, 31)
BESIDE_HOST_CACHE: Final = {"PYTORCH_CUDA_ALLOC_CONF", "VLLM_USE_SIMPLE_KV_OFFLOAD"}
"""Variables with which an engine does not start, or keeps another cache."""


def refusals(spec: Spec, minor: str, shape: ModelShape, gpu: Gpu) -> Iterator[str]:
    """Yield why an engine cannot be as asked; ``minor``: of its version.

    Sources:
        [vllm-source] v1/core/sched/scheduler.py schedule: 0.11 leaves the tokens of a victim that
        was scheduled in this step scheduled, and counts them as computed. config/scheduler.py
        max_num_queued_tokens since 0.29; v1/metrics/loggers.py record_admission_rejection since
        0.32: refusals that nobody counts hide demand.
    """
    version = parse_version(minor)
    if refuses_late(spec) and version < SINCE_COUNTED_REFUSALS:
        yield (
            f"engine.admission: inTime needs engine.version 0.32; {minor} does not count the "
            "requests that it refuses, so the more it refused the less demand would be seen"
        )
    arguments = spec.engine.args if spec.engine else ()
    if BY_PRIORITY in arguments and version < SINCE_SAFE_PRIORITIES:
        yield (
            f"engine.args: {BY_PRIORITY} needs engine.version 0.12; {minor} answers wrongly after "
            "it has preempted a request by its priority"
        )
    if not spec.model.adapters and any(each.startswith(ADAPTER_FILES) for each in arguments):
        yield f"engine.args: {ADAPTER_FILES} needs model.adapters: {WITHOUT_SLOTS}"
    if spec.role or spec.topology:
        yield from role_refusals(spec, minor, shape)
    if spec.model.kv_offload and not spec.model.kv_offload.is_auto:
        yield from offload_refusals(spec, minor, shape, gpu)


def role_refusals(spec: Spec, minor: str, shape: ModelShape) -> Iterator[str]:
    """Refuse roles where nobody can tell what waits for what, or caches are not handed over.

    Sources:
        [vllm-source] v1/metrics/loggers.py: num_requests_waiting_by_reason since 0.20.
        [vllm-nixl-usage] since 0.22 a cache that nobody takes is given up after 30 s, before that
        after 480 s.
    """
    if parse_version(minor) < SINCE_SHORT_LEASES:
        yield (
            f"engine.role needs engine.version 0.22: {minor} holds a cache for 480 s that nobody "
            "takes"
        )
    if not hands_over(shape):
        yield (
            "engine.role: not every version hands over the cache of layers with a window or a state"
            f", as in {spec.model.id}"
        )
    if spec.role == "decode" and slo_of(spec).ttft and not transfer_s_of(spec):
        yield (
            "engine.role: decode with slo.timeToFirstToken needs demand.cacheTransfer, a part of it"
        )


def offload_refusals(spec: Spec, minor: str, shape: ModelShape, gpu: Gpu) -> Iterator[str]:
    """Refuse a KV cache in host memory where engines end on it, or nobody can tell what it holds.

    Sources:
        [vllm-source] v1/kv_offload/cpu/spec.py, shared_offload_region.py, config.py: until 0.20 the
        flags end the start, until 0.26 the memory is up to twice what is asked for, until 0.28 a
        restart leaves it behind, until 0.30 from 512 GiB on a worker ends.
    """
    if parse_version(minor) < SINCE_WHOLE_HOST_CACHES:
        yield (
            f"model.kvOffload needs engine.version 0.31: {minor} does not start with it, takes "
            "more memory than it is given, or loses it at a restart"
        )
    if not hands_over(shape):
        yield (
            "model.kvOffload: what host memory holds of layers with a window or a state is not "
            f"known, and {spec.model.id} has some"
        )
    if gpu.is_unified:
        yield f"model.kvOffload: the memory of {gpu.name} is that of its host"
    if others := BESIDE_HOST_CACHE & variables_in(given_template(spec.pods)):
        yield f"model.kvOffload does not go with the variable {min(others)}"
    if switches_in(spec.engine.args if spec.engine else ()).prefix_caching is False:
        yield (
            "model.kvOffload holds prompts that come again: --no-enable-prefix-caching computes "
            "them anew"
        )


def hands_over(shape: ModelShape) -> bool:
    """Tell whether engines move all that attention of this model keeps, to others or to the host.

    Sources:
        [vllm-nixl] of layers with windows or a state it depends on the version.
    """
    return all(_keeps_every_token(each) for _, each in shape.attentions())


def _keeps_every_token(attention: Attention) -> bool:
    match attention:
        case GroupedAttention():
            return attention.window_tokens is None
        case LatentAttention():
            return attention.chosen_tokens is None
    return False
