"""What the samples of one object's pods mean, given the model that they run."""

from collections.abc import Iterable, Iterator, Mapping

from tonnage.control.state import (
    Attainment,
    Fleet,
    ModelState,
    ObjectMemory,
    Observed,
    PodView,
    Traffics,
)
from tonnage.estimate.demand import (
    MeasuredDemand,
    attainment,
    is_fresh,
    measure_demand,
    measure_lengths,
)
from tonnage.estimate.metrics import LONG_SCRAPES, RATE_SCRAPES
from tonnage.estimate.samples import EngineSamples
from tonnage.estimate.speed import BusyStep, PromptShape, busy_step, observed_mbu
from tonnage.policy.situation import Metrics
from tonnage.sizing.plan import Sizing
from tonnage.sizing.serving.steady import prefill_context_tokens
from tonnage.sizing.workload import Target

SETTLE_SCRAPES = 2
"""A replica need not have reported in its first scrape intervals."""
WARM_UP_SCRAPES = RATE_SCRAPES
"""Its speed is not believed while its windows still hold the time of starting up."""


def settled(pods: Iterable[PodView], *, now_s: float, after_s: float) -> frozenset[str]:
    """Return the names of pods that have been Ready for so long."""
    return frozenset(
        pod.name
        for pod in pods
        if pod.ready_at_s is not None and not pod.is_deleting and now_s - pod.ready_at_s >= after_s
    )


def measure_traffic(state: ModelState, fleet: Fleet, memory: ObjectMemory) -> Traffics:
    """Return demand and how far it can be trusted; lengths stay as last known without traffic."""
    interval_s = fleet.settings.scrape_interval_s
    ready = settled(state.pods, now_s=fleet.now_s, after_s=SETTLE_SCRAPES * interval_s)
    fresh = [each for each in state.engines if is_fresh(each, scrape_interval_s=interval_s)]
    stale = frozenset(
        each.pod for each in state.engines if not is_fresh(each, scrape_interval_s=interval_s)
    )
    demand = measure_demand(fresh, ready_pods=ready, stale_pods=stale)
    lengths = measure_lengths(state.long, window_s=LONG_SCRAPES * interval_s) or memory.lengths
    metrics, reason, message = _trust(fleet, memory, demand, ready)
    return Traffics(metrics=metrics, reason=reason, message=message, demand=demand, lengths=lengths)


def _trust(
    fleet: Fleet,
    memory: ObjectMemory,
    demand: MeasuredDemand | None,
    ready: frozenset[str],
) -> tuple[Metrics, str, str]:
    if fleet.metrics_problem:
        return Metrics.MISSING, *fleet.metrics_problem
    if not ready:
        known = Metrics.NEVER if memory.traffic is None else Metrics.MISSING
        return known, "NoReplicaYet", "no replica has been Ready for long enough to be scraped"
    if demand is None:
        hint = "is the PodMonitor selected by Prometheus, and is its pod label the pod's name?"
        return Metrics.MISSING, "MetricsMissing", f"no fresh series of {len(ready)} pods: {hint}"
    if not demand.is_complete:
        silent = ", ".join(sorted(ready - demand.reporting)[:3])
        return Metrics.MISSING, "MetricsIncomplete", f"no fresh series of {silent}"
    return Metrics.COMPLETE, "Scraped", f"{len(ready)} pods report"


def observe_engines(state: ModelState, fleet: Fleet, sizing: Sizing) -> Observed:
    """Return the gauges that people look at; None where no engine was busy or asked."""
    busy = list(busy_steps(state, fleet, sizing))
    slo = sizing.request.slo
    return Observed(
        step_s=_mean([each.step_s for each in busy]),
        mbu=_mean([observed_mbu(sizing.replica.model, each) for each in busy]),
        kv_tokens=_kv_tokens_of_replica(state, sizing),
        attainments=(
            *_attainments("TTFT", [e.ttft_within for e in state.engines], slo.ttft),
            *_attainments("TPOT", [e.tpot_within for e in state.engines], slo.tpot),
        ),
    )


def reported_kv_tokens(samples: EngineSamples, sizing: Sizing) -> float | None:
    """Return the tokens of one rank's cache in requests of the maximum length, as reported.

    Engines before 0.24 report blocks, those of all their data-parallel ranks in one sum; how many
    tokens a block stands for follows from our own layout of the cache.

    Sources:
        [vllm-source] v1/engine/core_client.py, v1/engine/utils.py (the sum).
    """
    if samples.kv_tokens or not samples.num_gpu_blocks:
        return samples.kv_tokens or None
    replica, context_tokens = sizing.replica, sizing.request.context_tokens
    blocks = samples.num_gpu_blocks / replica.model.dp_size
    return blocks * context_tokens / replica.blocks_reserved(context_tokens)


def _kv_tokens_of_replica(state: ModelState, sizing: Sizing) -> float | None:
    """Return what the cache of the smallest replica holds; each rank reports its own."""
    found = (reported_kv_tokens(each, sizing) for each in state.engines)
    reported = [tokens for tokens in found if tokens]
    return min(reported) * sizing.flags.parallelism.data if reported else None


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _attainments(
    name: str, within: list[Mapping[float, float]], targets: tuple[Target, ...]
) -> Iterator[Attainment]:
    for target in targets:
        fraction = attainment(within, limit_s=target.limit_s)
        if fraction is not None:
            yield Attainment(name=name, quantile=target.quantile, fraction=fraction)


def busy_steps(state: ModelState, fleet: Fleet, sizing: Sizing) -> Iterator[BusyStep]:
    interval_s = fleet.settings.scrape_interval_s
    workload = sizing.request.workload
    prompts = PromptShape(
        context_tokens=prefill_context_tokens(workload),
        chunk_tokens=min(workload.new_prompt_tokens, sizing.flags.max_num_batched_tokens),
    )
    warm = settled(state.pods, now_s=fleet.now_s, after_s=WARM_UP_SCRAPES * interval_s)
    for each in state.engines:
        kv_tokens = reported_kv_tokens(each, sizing)
        if each.pod in warm and is_fresh(each, scrape_interval_s=interval_s) and kv_tokens:
            step = busy_step(
                each,
                window_s=RATE_SCRAPES * interval_s,
                kv_tokens=kv_tokens,
                prompts=prompts,
                parallelism=sizing.flags.parallelism,
            )
            if step:
                yield step
