"""What the samples of one object's pods mean, given the model that they run.

What is late or waits because of the link between two roles, or of the other role.

Decode waits for caches over a link, which more replicas make no faster. Prefill keeps the blocks of
a prompt until decode has taken them, and a decode that is full takes none: where such blocks fill
half of a cache, more replicas of prefill only read more prompts that nobody takes.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from tonnage.api.objects import ModelDeployment
from tonnage.api.status import Reason
from tonnage.catalog.engine_speed import SpeedConstants
from tonnage.control.input.memory import ObjectMemory, PodMemory, ReportMemory
from tonnage.control.input.state import (
    NO_REPLICA,
    Attainment,
    Fleet,
    ModelState,
    Observed,
    PodView,
    Traffics,
    settled_pods,
)
from tonnage.control.measure.causes import Evidence, with_cause
from tonnage.estimate.demand import MeasuredDemand, attainment, measure_demand, measure_lengths
from tonnage.estimate.learner import PodWindow
from tonnage.estimate.metrics import BUSY_SCRAPES, COMPLETED, DECIDING, FAST_SCRAPES, SLOW_SCRAPES
from tonnage.estimate.planning_constants import Belief, step_ratio
from tonnage.estimate.samples import EngineSamples, mean_of
from tonnage.estimate.speed import BusyWindow, PromptShape, busy_window, prompt_shape
from tonnage.memoize import memoize
from tonnage.policy.situation import Metrics
from tonnage.sizing.plan import Sizing
from tonnage.sizing.request import SizingRequest
from tonnage.sizing.workload import Target
from tonnage.units import count_of, format_s, significant

SLOW_SHARE = 0.5
"""Of what planned transfers leave of a limit. Transfers that in the mean take that much longer make
requests late, however many replicas there are."""
UNTAKEN_SHARE = 0.5
"""Of a cache, from which on it is full of prompts that are not on their way."""


def without_waiting_for_decode(state: ModelState) -> ModelState:
    """Return the state in which requests that wait for decode are none that wait for capacity."""
    model = state.model
    if not isinstance(model, ModelDeployment) or model.spec.role != "prefill":
        return state
    engines = (
        replace(each, waiting=0.0, waiting_for_decode=each.waiting, untaken_share=share)
        if each.waiting is not None and (share := _untaken_share(each)) >= UNTAKEN_SHARE
        else each
        for each in state.engines
    )
    return replace(state, engines=tuple(engines))


def _untaken_share(each: EngineSamples) -> float:
    """Return the share of an engine's cache that no request which runs there has; 0: not known."""
    rates, tokens, usage = each.over(FAST_SCRAPES), each.kv_tokens, each.kv_usage_fraction
    if not (tokens and usage and each.mean_running is not None):
        return 0.0
    if not (rates.started_prompt_tokens_per_s and rates.started_per_s):
        return 0.0
    prompt_tokens = rates.started_prompt_tokens_per_s / rates.started_per_s
    return usage - each.mean_running * prompt_tokens / tokens


def untaken_reasons(engines: Iterable[EngineSamples]) -> tuple[Reason, ...]:
    """Say what is not counted as waiting for prefill."""
    full = [each for each in engines if each.untaken_share]
    if not full:
        return ()
    waiting = sum(each.waiting_for_decode for each in full)
    message = f"{significant(waiting)} queued for decode, not for prefill: {_untaken(full)}"
    return (Reason(code="DecodeBacklogged", message=message),)


def _untaken(full: Iterable[EngineSamples]) -> str:
    share = max(each.untaken_share for each in full)
    return f"prompts that decode has not loaded fill {share:.0%} of a KV cache"


def with_late_caches(
    attainments: Iterable[Attainment], engines: Iterable[EngineSamples], request: SizingRequest
) -> Iterator[Attainment]:
    """Note what makes TTFT late and is no lack of replicas."""
    known = tuple(engines)
    full = [each for each in known if each.untaken_share]
    is_decode = request.role == "decode"
    waiting = [each for each in known if is_decode and each.mean_deferred is not None]
    started = sum(each.ttft_within.get(math.inf, 0.0) for each in waiting)
    # How long the mean request waits for its cache: those that do, over those that come.
    wait_s = sum(each.mean_deferred or 0.0 for each in waiting) / started if started else 0.0
    for each in attainments:
        remaining_s = each.limit_s - request.transfer_s
        late = ""
        if full:
            late = _untaken(full)
        elif wait_s - request.transfer_s > SLOW_SHARE * remaining_s:
            late = f"KV caches take {format_s(wait_s)} to arrive"
        message = f"{late}: more replicas do not help"
        yield replace(each, cause=Reason("CachesLate", message)) if late else each


SETTLE_SCRAPES = 2
"""A replica need not have reported in its first scrape intervals."""
CUT_OFF_SCRAPES = 8
"""In which what a lost pod had in flight comes again: 40 s for its node, and a shortest window."""
UNSEEN, UNSEEN_SCRAPES = "quarter of an hour", 8
"""More scrapes than so many are missing of a pod that served before the first that is known."""
INCOMPLETE = "MetricsIncomplete"
"""Of some pods Prometheus says nothing, or too little."""
MOST_NAMED = 3
"""Pods in one message."""
MIN_USAGE = 0.002
"""Of a cache, below which its share of a request says nothing about lengths."""


def measure_traffic(state: ModelState, fleet: Fleet, memory: ObjectMemory) -> Traffics:
    """Return demand and how far it can be trusted; lengths stay as last known without traffic.

    Until a rate was told, lengths are not believed: the rate that the spec expects, in requests of
    other lengths than it was written for, is nobody's demand.
    """
    interval_s = fleet.settings.scrape_interval_s
    ready = settled_pods(state.pods, now_s=fleet.windows_end_s, after_s=SETTLE_SCRAPES * interval_s)
    demand = measure_demand(
        state.engines,
        ready_pods=ready,
        longest_s=fleet.windows_end_s - memory.pods.last_pod_removed_at_s,
        in_flight_of_lost_pods=in_flight_of_lost_pods(state, fleet, memory.pods),
        dispersion=max(1.0, memory.traffic.arrival_scv or 1.0),
    )
    has_rate = demand is not None or memory.traffic.measured is not None
    seen = measure_lengths(state.engines) if has_rate else None
    metrics, why = _trust(state, fleet, memory, demand, ready)
    lengths = seen or memory.traffic.lengths
    return Traffics(metrics=metrics, why=why, demand=demand, lengths=lengths)


def _unseen_before(state: ModelState, fleet: Fleet) -> frozenset[str]:
    """Return the pods that served before their first scrape that is known, if that is not long ago.

    What came to them before is in no window: demand may have been higher a moment ago.
    """
    interval_s = fleet.settings.scrape_interval_s
    ready_s = {pod.name: pod.ready_at_s for pod in state.pods if pod.ready_at_s is not None}
    return frozenset(
        each.pod
        for each in state.engines
        if each.span_s is not None
        and each.span_s < (SLOW_SCRAPES - UNSEEN_SCRAPES) * interval_s
        and fleet.windows_end_s - ready_s.get(each.pod, math.inf)
        > each.span_s + UNSEEN_SCRAPES * interval_s
    )


def in_flight_of_lost_pods(state: ModelState, fleet: Fleet, pods: PodMemory) -> float:
    """Return the requests that pods had in flight when they were last scraped, and lost of late.

    Clients send them again, to the others. A pod that leaves by our own hand answers what it has,
    and so does one that is scraped after it was seen not to be Ready.
    """
    lost = {pod.name for pod in state.pods if not (pod.is_ready or pod.is_deleting)}
    longest_s = CUT_OFF_SCRAPES * fleet.settings.scrape_interval_s
    last_s = [(each, fleet.windows_end_s - (each.age_s or 0.0)) for each in state.engines]
    return sum(
        (each.running or 0.0) + (each.waiting or 0.0)
        for each, at_s in last_s
        if each.pod in lost
        and (each.age_s or 0.0) <= longest_s
        and (each.pod in pods.ready or (pods.lost_at_s is not None and at_s <= pods.lost_at_s))
    )


def _trust(
    state: ModelState,
    fleet: Fleet,
    memory: ObjectMemory,
    demand: MeasuredDemand | None,
    ready: frozenset[str],
) -> tuple[Metrics, Reason]:
    """Tell how far demand can be trusted: what is there may raise the fleet, if not lower it."""
    if lack := _unanswered(fleet, state.view.namespace):
        return Metrics.MISSING, lack
    number = count_of(len(ready), "pod reports", "pods report")
    if not ready:
        known = Metrics.NEVER if memory.traffic.measured is None else Metrics.MISSING
        message = "no replica has been Ready for long enough to be scraped"
        return known, Reason(NO_REPLICA, message)
    if demand is None:
        message = f"{number} no {COMPLETED}: does this engine version name it otherwise?"
        if not any(each.is_fresh for each in state.engines):
            hint = "is the PodMonitor selected by Prometheus, and is its pod label the pod's name?"
            message = f"no fresh series of {count_of(len(ready), 'pod')}: {hint}"
        return Metrics.MISSING, Reason("MetricsMissing", message)
    if silent := ready - demand.reporting:
        message = f"no fresh series of {pods_named(silent, state.pods)}"
        return Metrics.MISSING, Reason(INCOMPLETE, message)
    if young := _unseen_before(state, fleet):
        message = f"{pods_named(young, state.pods)}: samples of less than the last {UNSEEN}"
        return Metrics.MISSING, Reason(INCOMPLETE, message)
    return Metrics.COMPLETE, Reason("Scraped", number)


def _unanswered(fleet: Fleet, namespace: str) -> Reason | None:
    """Return the first query of demand that has no whole answer.

    Without it the figure may be too small, and look complete.
    """
    if fleet.metrics_problem:
        return Reason(*fleet.metrics_problem)
    for query, problem in fleet.unanswered(DECIDING, namespace):
        if problem:
            return Reason(problem[0], f"{query}: {problem[1]}")
        message = f"{query}: partial result, a store behind Prometheus did not answer"
        return Reason("MetricsPartial", message)
    return None


def pods_named(names: Iterable[str], pods: Iterable[PodView]) -> str:
    """Name some pods, each with its node where that is known."""
    nodes = {pod.name: pod.node_name for pod in pods}
    placed_pods = (
        f"{name} on {node}" if (node := nodes.get(name)) else name for name in sorted(names)
    )
    return ", ".join(list(placed_pods)[:MOST_NAMED])


def observe_engines(
    state: ModelState, fleet: Fleet, sizing: Sizing, belief: Belief, reported: ReportMemory
) -> Observed:
    """Return what engines say of speed, caches and targets.

    ``reported``: with speeds of pods and the condition of targets, as last told.
    """
    slo, engines = sizing.request.slo, state.engines
    kv_reports = _reports_of_pods(state, sizing)
    ttft = _attainments(
        "TTFT",
        [e.ttft_within for e in engines],
        slo.ttft,
        sum(e.refused_per_s for e in engines if e.ttft_within),
    )
    tpot = tuple(_attainments("TPOT", [e.tpot_within for e in engines], slo.tpot))
    known = Evidence(
        engines=engines,
        pods=state.pods,
        speeds=reported.speeds,
        sizing=sizing,
        now_s=fleet.windows_end_s,
        before=before.reason if (before := reported.conditions.get("SLOMet")) else "",
        longer=math.log(step_ratio(belief.posterior, belief.prior)),
        misses_tpot=any(each.fraction < each.quantile for each in tpot),
    )
    attainments = (*with_late_caches(ttft, engines, sizing.request), *tpot)
    return Observed(
        windows=lambda: _pod_windows(state, fleet, sizing, belief.constants),
        kv_tokens=min(kv_reports) * sizing.flags.parallelism.data if kv_reports else None,
        kv_reports=tuple(kv_reports),
        attainments=tuple(with_cause(each, known) for each in attainments),
    )


def moved_prompt_fraction(engines: Iterable[EngineSamples]) -> float | None:
    """Return the share of prompt tokens whose cache came from another engine or from the host."""
    moved = mean_of(
        (w.seconds, w.moved_prompt_tokens_per_s, w.started_prompt_tokens_per_s)
        for w in (each.busy for each in engines)
    )
    return None if moved is None else min(1.0, moved)


def _reports_of_pods(state: ModelState, sizing: Sizing) -> list[float]:
    """Return the tokens of one rank that each fresh pod reports, that of its smallest rank.

    A pod that is being deleted may run what its object no longer does.
    """
    staying = {pod.name for pod in state.pods if not pod.is_deleting}
    by_pod = dict[str, float]()
    for each in state.engines:
        tokens = reported_kv_tokens(each, sizing)
        if tokens and each.pod in staying and each.is_fresh:
            by_pod[each.pod] = min(tokens, by_pod.get(each.pod, tokens))
    return list(by_pod.values())


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


def _attainments(
    name: str,
    within: list[Mapping[float, float]],
    targets: tuple[Target, ...],
    refused_per_s: float = 0.0,
) -> Iterator[Attainment]:
    """Yield how targets fared; who was refused is in no histogram, and late."""
    answered = sum(each.get(math.inf, 0.0) for each in within)
    refused = refused_per_s / (answered + refused_per_s) if refused_per_s else 0.0
    for target in targets:
        fraction = attainment(within, limit_s=target.limit_s)
        if fraction is not None or refused:
            yield Attainment(
                name=name,
                quantile=target.quantile,
                limit_s=target.limit_s,
                fraction=(1 - refused) * (fraction or 0.0),
                requests_per_s=answered + refused_per_s,
                refused_fraction=refused,
            )


def _pod_windows(
    state: ModelState, fleet: Fleet, sizing: Sizing, prior: SpeedConstants
) -> tuple[PodWindow, ...]:
    """Return what the engines of each pod did over the last window, if it was Ready all along."""
    window_s = BUSY_SCRAPES * fleet.settings.scrape_interval_s
    warm = settled_pods(state.pods, now_s=fleet.windows_end_s, after_s=window_s)
    by_pod = dict[str, list[BusyWindow]]()
    for each in state.engines:
        if each.pod not in warm or not each.is_fresh:
            continue
        window = busy_window(
            each,
            window_s=window_s,
            context_tokens=_context_tokens(each, sizing),
            prompts=_prompts(sizing),
            flags=sizing.flags,
        )
        if window:
            by_pod.setdefault(each.pod, []).append(window)
    model = replace(sizing.replica.model, constants=prior)
    return tuple(
        PodWindow(pod=pod, model=model, engines=tuple(windows))
        for pod, windows in sorted(by_pod.items())
    )


@memoize
def _prompts(sizing: Sizing) -> PromptShape:
    most_tokens = sizing.flags.max_num_batched_tokens
    return prompt_shape(sizing.request.workload, max_batched_tokens=most_tokens)


def _context_tokens(samples: EngineSamples, sizing: Sizing) -> float:
    """Return the tokens that a running request has in the cache, by its share where that says it.

    Where windows or states bound what a request takes, tokens are no share of the cache.
    """
    tokens, usage = reported_kv_tokens(samples, sizing), samples.kv_usage_fraction
    running = samples.mean_running
    is_plain = all(not (kv.window_tokens or kv.state_bytes) for kv in sizing.shard.kv)
    if not (tokens and usage and running and is_plain and usage > MIN_USAGE):
        return sizing.request.workload.mean_context_tokens
    return min(usage * tokens / running, float(sizing.request.context_tokens))
