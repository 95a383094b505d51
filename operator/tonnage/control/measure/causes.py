"""Why requests are late, and how busy GPUs are: what engines say of prompts, queues and steps.

Histograms tell one figure each, and no two of one request. So shares are bounds: of prompts that
are late alone between two buckets, of requests that wait by their histogram and by their mean. What
nothing explains has no known cause.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from operator import itemgetter
from statistics import fmean, median, median_high
from typing import Final

from tonnage.api.status import Reason
from tonnage.catalog.engine_speed import SpeedConstants
from tonnage.control.input.memory import PodSpeed
from tonnage.control.input.state import (
    Assessment,
    Attainment,
    Chosen,
    Fleet,
    PodView,
    settled_pods,
)
from tonnage.estimate.demand import attainment, interpolate, with_bounds
from tonnage.estimate.learner import PodWindow
from tonnage.estimate.metrics import ATTAINMENT_SCRAPES, PROMPT_BOUNDS
from tonnage.estimate.samples import EngineSamples, mean_of
from tonnage.estimate.speed import observed_mbu, observed_mfu, predicted_gap_s
from tonnage.memoize import memoize
from tonnage.sizing.plan import Sizing
from tonnage.sizing.serving.replica import own_prefill_s, serving_s
from tonnage.units import format_s

MOST: Final = 0.5
"""Share of what is late, or of a limit, from which on something is the cause."""
SLOW_POD: Final = 0.15
"""By which a pod's steps may be longer than those of the others."""
CLEARLY: Final = 1.5
UNEVEN, DEVIATIONS = 1.25, 4.0
"""Times the requests of the other pods, and deviations by chance, that one has more."""
COLD, COLD_S = 0.1, 900.0
"""Share of prompt tokens that a pod has not cached and others have, while it is Ready for less."""
PRECISION: Final = 0.01
AS_MANY: Final = 0.8
"""Of the requests that start, that end in the same time where the two are alike."""
SOME: Final = 0.1
"""Of a limit, that a request may wait at least: what its own prompt takes is a mean."""
SMALL: Final = 1e-9
NOBODY: Final = Reason("TargetMissed", "the cause is not known")
LOAD: Final = ("Queued", "SlowSteps")
"""Causes that fewer requests for each replica mend."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What is known of the engines of one object beside who was late."""

    engines: Sequence[EngineSamples]
    pods: Sequence[PodView]
    speeds: Mapping[str, PodSpeed]
    sizing: Sizing
    now_s: float
    before: str
    """Reason of the condition ``SLOMet``: another cause has to be clearly larger."""
    longer: float = 0.0
    """By which steps are learned to be longer than expected at first, as a logarithm."""
    misses_tpot: bool = False


def with_cause(each: Attainment, known: Evidence) -> Attainment:
    """Return how a target fared, with the cause of most of what is late, and what load makes late.

    The share that load makes late is 0 where its cause is another.
    """
    late = 1 - each.fraction
    if late <= 0 or each.cause:
        return each
    if found := _of_some_pods(each, known):
        return replace(each, cause=found)
    if each.name == "TPOT":
        message = "steps take longer than planned, or more requests run than planned"
        return replace(each, cause=Reason("SlowSteps", message), late_by_load=late)
    times = _times(known)
    least, alone, why_alone = _late_alone(each, known)
    is_near = late < least <= CLEARLY * late  # by chance: they are counted at other times
    if least > late:  # so they were in time: engines are faster, or have these prompts cached
        least = alone = 0.0
    rest = max(0.0, late - each.refused_fraction - alone)
    why_rest = _of_rest(rest, each, known, times)
    if why_rest is NOBODY and is_near:
        why_rest = why_alone
    by_load = rest if why_rest.code in LOAD else 0.0
    refused = Reason("RequestsRefused", f"{each.refused_fraction:.1%} were refused")
    if by_load and (found := _of_steps(each, known)):
        why_rest = found
    shares = {refused: each.refused_fraction, why_alone: min(alone, late), why_rest: rest}
    cause = max(shares, key=lambda e: shares[e] * (CLEARLY if e.code == known.before else 1.0))
    if cause is not why_alone and alone > 1 - each.quantile:  # so no replicas meet the target
        cause = cause._replace(message=f"{cause.message}; {why_alone.message}")
    return replace(each, cause=cause, late_alone=least, late_by_load=by_load)


def _of_some_pods(each: Attainment, known: Evidence) -> Reason | None:
    """Return what one pod, or those that began of late, make late; None: all make it.

    Of pods that served for all of the window.
    """
    window_s = ATTAINMENT_SCRAPES * known.engines[0].scrape_interval_s
    warm = settled_pods(known.pods, now_s=known.now_s, after_s=window_s)
    within = {"TTFT": "ttft_within", "TPOT": "tpot_within"}[each.name]
    requests, late = dict[str, float](), dict[str, float]()
    for engine in known.engines:
        requests_within = getattr(engine, within)
        fraction = attainment([requests_within], limit_s=each.limit_s)
        if engine.pod in warm and fraction is not None:
            pod, number = engine.pod, requests_within[math.inf]
            refused = engine.refused_per_s if each.refused_fraction else 0.0
            requests[pod] = requests.get(pod, 0.0) + number + refused
            late[pod] = late.get(pod, 0.0) + number * (1 - fraction) + refused
    all_late = sum(late.values())

    def explain(pods: Iterable[str]) -> bool:
        """Tell whether most of what is late is at some pods, the others in time but for chance."""
        own, others = late.keys() & set(pods), late.keys() - set(pods)
        number, rest = (window_s * sum(each[pod] for pod in others) for each in (requests, late))
        may_be = (1 - each.quantile) * number
        return bool(all_late and own and others) and rest <= min(
            may_be + DEVIATIONS * math.sqrt(may_be), MOST * window_s * all_late
        )

    worst = max(late, key=late.__getitem__, default="")
    if explain([worst]):
        behind = steps_behind({p: each for p, each in known.speeds.items() if p in late}, worst)
        if behind > SLOW_POD:
            return slow_pod(worst, behind, known.speeds)
        usual = (sum(requests.values()) - requests[worst]) / (len(requests) - 1)
        by_chance = DEVIATIONS * math.sqrt(usual / window_s)
        if requests[worst] > max(UNEVEN * usual, usual + by_chance):
            message = (
                f"{worst} gets {requests[worst]:.3g} requests/s, the others {usual:.3g}: a router "
                "that knows what each replica has spreads them"
            )
            return Reason("UnevenRouting", message)
    return _of_cold_pods(known, warm, explain)


def slow_pod(pod: str, behind: float, speeds: Mapping[str, PodSpeed]) -> Reason:
    """Say how much longer the steps of a pod are; ``behind``: a logarithm."""
    node = speeds[pod].node if pod in speeds else None
    where = f"{pod} on node {node}" if node else pod
    message = (
        f"steps of {where} take {math.expm1(behind):.0%} longer than those of the others: delete "
        "it, and look for throttling, other load or a slower link on its node"
    )
    return Reason("SlowPod", message)


def _of_steps(each: Attainment, known: Evidence) -> Reason | None:
    """Return whose steps make requests wait at all pods; None: they would wait all the same.

    As fast as the others, or as expected, they would serve most of what is missing. What waits and
    becomes no more is of what has made it.
    """
    windows = [(engine.pod, engine.over(ATTAINMENT_SCRAPES)) for engine in known.engines]
    missing_per_s = sum(window.in_flight_per_s or 0.0 for _, window in windows)
    missing_per_s += each.refused_fraction * each.requests_per_s
    worst, behind = slowest(known.speeds)
    longer = known.longer + median_high([e.slower for e in known.speeds.values()] or [0.0])
    message = f"steps take {math.expm1(longer):.0%} longer than expected, so fewer are served"
    for cause, more, pods in (
        (slow_pod(worst, behind, known.speeds), behind, {worst}),
        (Reason("SlowSteps", message), known.misses_tpot * longer, {pod for pod, _ in windows}),
    ):
        served_per_s = sum(w.completed_per_s or 0.0 for pod, w in windows if pod in pods)
        is_most = math.expm1(more) * served_per_s >= MOST * missing_per_s
        if more > SLOW_POD and is_most and (missing_per_s > 0 or known.before == cause.code):
            return cause
    return None


def slowest(speeds: Mapping[str, PodSpeed]) -> tuple[str, float]:
    """Return the pod whose steps are the longest beside those of the others, and by how much."""
    behind = {pod: steps_behind(speeds, pod) for pod in sorted(speeds)}
    return max(behind.items(), key=itemgetter(1), default=("", 0.0))


def steps_behind(speeds: Mapping[str, PodSpeed], pod: str) -> float:
    """Return by how much the steps of a pod are longer than in the middle of the others.

    A logarithm. Of an even number the slower of the two: one that seems too fast makes nobody else
    slow. 0: its speed is not known, or no other's is.
    """
    others = [each.slower for name, each in speeds.items() if name != pod]
    return speeds[pod].slower - median_high(others) if pod in speeds and others else 0.0


def _of_cold_pods(
    known: Evidence, warm: Set[str], explain: Callable[[Iterable[str]], bool]
) -> Reason | None:
    old = settled_pods(known.pods, now_s=known.now_s, after_s=COLD_S)
    if not explain(warm - old):
        return None
    of_new, of_old = (
        _cached_share(each for each in known.engines if each.pod in pods)
        for pods in (warm - old, old)
    )
    if of_new is None or of_old is None or of_old - of_new < COLD:
        return None
    message = (
        f"{of_new:.0%} of prompt tokens are cached at new replicas, {of_old:.0%} at the others: "
        "it passes as their caches fill"
    )
    return Reason("ColdPrefix", message)


def _cached_share(engines: Iterable[EngineSamples]) -> float | None:
    windows = [each.over(ATTAINMENT_SCRAPES) for each in engines]
    computed = mean_of(
        (w.seconds, w.computed_prompt_tokens_per_s, w.started_prompt_tokens_per_s) for w in windows
    )
    return None if computed is None else 1 - computed


MUCH_MORE: Final = 1.02
"""Times what is served: what comes beyond that is no noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Times:
    """Means of requests, in seconds. None: not known."""

    queue_s: float | None
    prefill_s: float | None
    server_s: float = 0.0
    """That passes outside of the engine before the first token; 0 where it is not known."""
    is_growing: bool = False
    """Who came last waits longer than those that finished."""
    served: float | None = None
    """First tokens over requests that came: the mean share that can be in time. None: all, or not
    known."""


def _times(known: Evidence) -> _Times:
    windows = [each.over(ATTAINMENT_SCRAPES) for each in known.engines]
    queue_s = mean_of((w.seconds, w.queue_s_per_s, w.queues_per_s) for w in windows)
    prefill_s = mean_of((w.seconds, w.prefill_s_per_s, w.prefills_per_s) for w in windows)
    started_per_s, ended_per_s = (
        sum(each or 0.0 for each in rates)
        for rates in zip(*((w.started_per_s, w.queues_per_s) for w in windows), strict=True)
    )
    if queue_s is None or prefill_s is None or not started_per_s:
        return _Times(queue_s=queue_s, prefill_s=prefill_s)
    waited_s = max(queue_s, sum(e.waiting or 0.0 for e in known.engines) / started_per_s)
    known_of = [w for w in windows if None not in {w.completed_per_s, w.in_flight_per_s}]
    came_per_s = sum((w.completed_per_s or 0.0) + (w.in_flight_per_s or 0.0) for w in known_of)
    served_per_s = sum(w.started_per_s or 0.0 for w in known_of)
    found = _Times(
        queue_s=waited_s,
        prefill_s=prefill_s,
        is_growing=waited_s > queue_s,
        served=served_per_s / came_per_s if came_per_s > MUCH_MORE * served_per_s else None,
    )
    ttft_s = mean_of((w.seconds, w.first_token_s_per_s, w.started_per_s) for w in windows)
    tells_all = all(None not in {w.first_token_s_per_s, w.queue_s_per_s} for w in windows)
    if ttft_s is None or not tells_all or ended_per_s < AS_MANY * started_per_s:
        return found  # of others than those whose queue and prefill are known
    server_s = ttft_s - waited_s - prefill_s
    # Of what waits long, and is no mean of the same requests, it is a small difference.
    return replace(found, server_s=server_s) if server_s >= waited_s else found


def _late_alone(each: Attainment, known: Evidence) -> tuple[float, float, Reason]:
    """Return the least and the likely share of prompts that are late on an idle replica."""
    within = with_bounds(engine.prompts_within for engine in known.engines)
    number = sum(e[math.inf] for e in within)
    if not number:
        return 0.0, 0.0, NOBODY
    longest = longest_in_time(known.sizing, each.limit_s)
    context_tokens = float(known.sizing.request.context_tokens)
    if longest >= context_tokens:
        return 0.0, 0.0, NOBODY
    # The ladder of an engine ends below its longest prompt.
    within = [{**e, context_tokens: e[math.inf]} for e in within]
    at = bisect_left(PROMPT_BOUNDS, longest)
    low, high = (PROMPT_BOUNDS[at - 1] if at else 1.0), (*PROMPT_BOUNDS, math.inf)[at]
    at_low, at_longest, at_high = (
        sum(min(e[math.inf], interpolate(e, tokens)) for e in within) / number
        for tokens in (low, longest, high)
    )
    least, most = 1 - at_high, 1 - at_low
    # Between the bounds are usual prompts, of which few are the longest, and others anywhere.
    up_to = [known.sizing.request.workload.prompt.share_within(e) for e in (low, longest, high)]
    usual = min(most - least, up_to[2] - up_to[0])
    likely = least + (at_high - at_longest) * (1 - usual / max(most - least, SMALL))
    likely += usual * (up_to[2] - up_to[1]) / max(up_to[2] - up_to[0], SMALL)
    prompts = f"{least:.1%}" if least == most else f"{least:.1%} to {most:.1%}"
    message = (
        f"{prompts} of prompts have over {longest:,.0f} tokens and take longer than "
        f"{format_s(each.limit_s)} on an idle replica: more replicas do not help, tensor "
        "parallelism or a longer limit does"
    )
    return least, likely, Reason("LongPrompts", message)


@memoize
def longest_in_time(sizing: Sizing, limit_s: float) -> float:
    """Return the tokens of the longest prompt whose first token comes in time on an idle replica.

    >= 1; to 1 % of them.
    """
    replica, workload, idle = sizing.replica, sizing.request.workload, sizing.idle

    def is_in_time(tokens: float) -> bool:
        own_s = own_prefill_s(replica, workload, idle, tokens)
        return own_s + serving_s(replica, 0.0, tokens) <= limit_s

    low, high = 1.0, float(sizing.request.context_tokens)
    if is_in_time(high):
        return high
    while high / low > 1 + PRECISION:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if is_in_time(middle) else (low, middle)
    return low


def _of_rest(rest: float, each: Attainment, known: Evidence, times: _Times) -> Reason:
    """Return the cause of what is late, and neither refused nor late alone."""

    def least_of(code: str) -> float:
        return MOST / CLEARLY if known.before == code else MOST

    if times.server_s > least_of("ServerDelay") * each.limit_s:
        message = (
            f"{format_s(times.server_s)} of the time to the first token pass outside of the "
            "engine, at the API server, a tokenizer or a proxy: more replicas do not help"
        )
        return Reason("ServerDelay", message)
    sizing = known.sizing
    workload = sizing.request.workload
    own_s = own_prefill_s(sizing.replica, workload, sizing.idle, workload.prompt.mean_tokens)
    remaining_s = each.limit_s - times.server_s
    waiting = _late_in_queue(known, times, max(remaining_s - own_s, SOME * remaining_s))
    slower_s = 0.0 if times.prefill_s is None else max(0.0, times.prefill_s - own_s)
    slow = slower_s / remaining_s
    if waiting >= slow and waiting >= least_of("Queued") * rest:
        queue_s = "" if times.queue_s is None else f" {format_s(times.queue_s)} on average"
        message = f"requests wait{queue_s} for a replica that has others"
        if known.sizing.request.may_refuse and times.served is not None:
            message += (
                "; engine.admission: inTime, which refuses (503) those that would be late, keeps "
                f"about {times.served:.0%} in time"
            )
        return Reason("Queued", message)
    if slow >= least_of("SlowSteps") * rest:
        message = (
            f"prefill takes {format_s(own_s + slower_s)}, alone it would take {format_s(own_s)}"
        )
        return Reason("SlowSteps", message)
    return NOBODY


def _late_in_queue(known: Evidence, times: _Times, most_s: float) -> float:
    """Return the largest share of requests that can have waited for longer than so; 1: not known.

    No more than that many times the mean wait, but for the step in progress, which each waits for;
    and no more than are above a bucket below it.
    """
    step_s = known.sizing.at_capacity.step_s
    by_mean = 1.0 if times.queue_s is None else max(0.0, times.queue_s - step_s) / most_s
    within = with_bounds(engine.queue_within for engine in known.engines)
    number = sum(e[math.inf] for e in within)
    if times.is_growing or not number:
        return min(1.0, by_mean)
    below = [max((n for le, n in e.items() if le <= most_s), default=0.0) for e in within]
    return min(1.0, by_mean, 1 - sum(below) / number)


@dataclass(frozen=True, slots=True, kw_only=True)
class Utilization:
    """What busy engines show; None where none was busy, or none says it."""

    step_s: float | None = None
    mbu: float | None = None
    mfu: float | None = None
    dram_active: float | None = None
    """As DCGM says, over all time."""
    engine_mbu: float | None = None
    """By the engine's own count of bytes, over all time."""
    speeds: Mapping[str, PodSpeed] = field(default_factory=dict)
    """Of the pods that were busy, by name."""


def utilization(found: Assessment, chosen: Chosen, fleet: Fleet) -> Utilization:
    """Return the means over engines, and how each pod fares beside what is believed."""
    pods = found.observed.pods if found.observed else ()
    used = {
        pod.pod: [(observed_mbu(pod.model, e), observed_mfu(pod.model, e)) for e in pod.engines]
        for pod in pods
    }
    active = (each.dram_active_fraction for each in found.state.engines)
    nominal = chosen.sizing.replica.model.speeds.memory_bytes_per_s
    believed = chosen.belief.constants_at(chosen.belief.posterior)
    nodes = {each.name: each.node_name for each in found.state.pods}
    return Utilization(
        step_s=_mean(each.gap_s for pod in pods for each in pod.engines),
        mbu=_mean(mbu for of_pod in used.values() for mbu, _ in of_pod),
        mfu=_mean(mfu for of_pod in used.values() for _, mfu in of_pod),
        dram_active=_mean(each for each in active if each is not None),
        engine_mbu=_mean(
            (each.read_bytes_per_s + each.write_bytes_per_s) / nominal
            for each in (engine.busy for engine in found.state.engines)
            if each.read_bytes_per_s is not None and each.write_bytes_per_s is not None
        ),
        speeds={
            pod.pod: PodSpeed(
                node=nodes.get(pod.pod),
                slower=_slower(pod, believed),
                mbu=median(mbu for mbu, _ in used[pod.pod]),
                mfu=median(mfu for _, mfu in used[pod.pod]),
                seen_at_s=fleet.windows_end_s,
            )
            for pod in pods
        },
    )


def _slower(pod: PodWindow, constants: SpeedConstants) -> float:
    """Return the logarithm of the gap between tokens over the one believed.

    Of several engines the one in the middle.
    """
    model = replace(pod.model, constants=constants)
    return median(math.log(each.gap_s / predicted_gap_s(model, each)) for each in pod.engines)


def _mean(values: Iterable[float]) -> float | None:
    known: Sequence[float] = tuple(values)
    return fmean(known) if known else None
