"""Promises kept and broken, as evidence about what one object's replicas serve, in bursts too.

What engines serve while requests wait at them all along is no more, whatever is believed. It needs
no promise to be judged, so it holds under overload too, where a step time that no formula
expresses would else go unseen until what waits is served.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from statistics import median

from tonnage.api.status import Reason
from tonnage.control.input.memory import DemandMemory, GoodputMemory
from tonnage.control.input.state import Assessment, Chosen, Fleet, Observed, settled_pods
from tonnage.control.learn.believed import is_settled, own_kv_tokens
from tonnage.control.measure.attained import ledger_after
from tonnage.estimate.attainment import (
    OVERLOAD,
    AttainmentCounts,
    SloWindow,
    TargetResult,
    cap_to_throughput,
    given_back,
    judge_window,
)
from tonnage.estimate.burstiness import (
    FIRST,
    HIGHEST,
    BurstWindow,
    add_window,
    factor_after,
)
from tonnage.estimate.calibration import is_material, memory_key
from tonnage.estimate.forecast import reserve, usual, without_chance
from tonnage.estimate.metrics import ATTAINMENT_SCRAPES
from tonnage.estimate.posterior import ObjectPosterior
from tonnage.estimate.samples import EngineSamples
from tonnage.memoize import memoize
from tonnage.policy.situation import Metrics
from tonnage.sizing.plan import Sizing
from tonnage.units import count_of, significant

MIN_REQUESTS = 50.0
"""Of a replica in a window, before it says how many it serves: known to 15 %."""
QUEUE_SHARE, LEAST_QUEUE = 0.1, 4.0
"""Of the requests that are served in the window, and requests, that wait at an engine at both ends
of it: a shorter queue comes and goes below what the engine can serve."""


def served_at_most(found: Assessment, chosen: Chosen, fleet: Fleet) -> tuple[float, float] | None:
    """Return the requests/s of the replica in the middle, and how many, if some waited all along.

    One at which none waited, or of which that is not known, may serve more than any: a slow pod
    among them says nothing of the others. None where the one in the middle is such. Answers that
    have become longer end later: what counts is the larger of the requests that end and of the
    tokens that are made, over those of a request.
    """
    window_s = ATTAINMENT_SCRAPES * fleet.settings.scrape_interval_s
    warm = settled_pods(found.state.pods, now_s=fleet.windows_end_s, after_s=2 * window_s)
    by_pod: dict[str, list[float | None]] = {}
    for each in found.state.engines:
        if each.pod in warm and each.is_fresh:
            by_pod.setdefault(each.pod, []).append(_served_per_s(each, chosen, window_s))
    most = [
        sum(math.inf if each is None else each for each in by_pod.get(pod, [None])) for pod in warm
    ]
    each_per_s = median(most) if most else math.inf
    number = each_per_s * window_s
    return (each_per_s, number) if MIN_REQUESTS <= number < math.inf else None


def _served_per_s(each: EngineSamples, chosen: Chosen, window_s: float) -> float | None:
    """Return the requests/s of an engine at which some waited all along; None: not known, or no."""
    window, gaps_per_s = each.over(ATTAINMENT_SCRAPES), each.busy.token_gaps_per_s
    if each.running is None or each.waiting is None:
        return None
    grown, ended = window.in_flight_per_s, window.completed_per_s
    if grown is None or ended is None or gaps_per_s is None:
        return None
    tokens = chosen.sizing.request.workload.output_tokens
    served_per_s = max(ended, gaps_per_s / max(1.0, tokens - 1))
    backlog = each.running + each.waiting
    queue = min(backlog, backlog - window_s * grown) - each.running
    least = max(LEAST_QUEUE, QUEUE_SHARE * served_per_s * window_s)
    return served_per_s if queue >= least else None


DEFAULT_QUANTILE = 0.95
"""Of promises, for a reserve where there are none."""


@memoize
def promised_quantile(sizing: Sizing) -> float:
    slo = sizing.request.slo
    targets: Iterable[float] = (each.quantile for each in (*slo.ttft, *slo.tpot))
    return max(targets, default=DEFAULT_QUANTILE)


def burst_share(known: DemandMemory, sizing: Sizing) -> float:
    """Return what counts of bursts tell above the usual, as a share of it; 0: too few to expect."""
    return reserve(known.history, quantile=promised_quantile(sizing))


def burst_factor(learned: ObjectPosterior) -> float:
    """Return by how much bursts are taken to be higher than counts tell."""
    return FIRST if learned.burst_factor is None else learned.burst_factor


def reserved_requests_per_s(known: DemandMemory, learned: ObjectPosterior, sizing: Sizing) -> float:
    """Return the rate to plan for bursts; 0: none."""
    share = burst_share(known, sizing)
    usually = usual(known.history) if share else None
    if usually is None:
        return 0.0
    return (1 + burst_factor(learned) * share) * usually * sizing.most_requests_per_s


def judge_bursts(
    known: GoodputMemory, learned: ObjectPosterior, window: BurstWindow, *, is_too_few: bool
) -> tuple[GoodputMemory, ObjectPosterior]:
    """Count what a window says of bursts, and move their factor if it says enough.

    ``is_too_few``: fewer replicas serve than the reserve asks for. What is late in a burst then
    says nothing of the reserve.
    """
    if window.is_burst and is_too_few:
        return known, learned
    tally, before = add_window(known.burst_tally, window), burst_factor(learned)
    factor = factor_after(before, tally) if window.is_burst else before
    if factor == before:
        return replace(known, burst_tally=tally), learned
    return replace(known, burst_tally={}), replace(learned, burst_factor=factor)


MOVED = 0.02
"""Of goodput, by which the learner has moved it: what was late then is its evidence."""
DRAIN_TOLERANCE = 2.0
"""Times the time that a queue should take to be served, for which it is an overload's."""
LONGEST_DRAIN_S = 1800.0
"""After which a queue that is still there is no overload's."""
LONGEST_JUDGED = 2.0
"""Windows, for which the requests of the last one are counted where a tick is late."""
QUEUED = 1.0
"""Requests that wait at each replica, from which on there is a queue."""


def _with_load(found: Assessment, chosen: Chosen, fleet: Fleet) -> GoodputMemory:
    """Note overload and queues: what is late because of these says nothing about capacity.

    An overload lasts until the queue that it left is served, or should be.
    """
    known, demand = found.memory.goodput, found.traffics.demand
    if demand is None:
        return known
    newest = demand.newest
    sure = [without_chance(newest.requests, scv=1) / newest.seconds] if newest else []
    load = _load(found, chosen, *sure)  # of the shortest window: a mean has no burst
    is_overloaded = load is None or load > OVERLOAD * chosen.goodput_factor
    is_queued = demand.waiting >= QUEUED * max(1, _serving(found))
    drained_by_s, expected_s = known.drained_by_s, fleet.now_s + _drain_s(found, chosen)
    if is_overloaded and is_queued:
        drained_by_s = expected_s
    elif drained_by_s is not None:
        drained_by_s = min(drained_by_s, expected_s)
    is_draining = is_queued and drained_by_s is not None and fleet.now_s < drained_by_s
    return replace(
        known,
        overloaded_at_s=fleet.now_s if is_overloaded or is_draining else known.overloaded_at_s,
        drained_by_s=drained_by_s if is_draining else None,
    )


def _drain_s(found: Assessment, chosen: Chosen) -> float:
    """Return the time that the longest queue should take at most, beside its share of demand."""
    demand, live = found.traffics.demand, found.state.deployment
    if demand is None or live is None:
        return 0.0
    spare = chosen.capacity.most_requests_per_s - demand.requests_per_s / max(1, live.replicas)
    if spare <= 0:
        return LONGEST_DRAIN_S
    return min(LONGEST_DRAIN_S, DRAIN_TOLERANCE * demand.longest_queue / spare)


Judged = tuple[GoodputMemory, ObjectPosterior]


def judge(found: Assessment, chosen: Chosen, observed: Observed, fleet: Fleet) -> Judged:
    """Count how promises fared in the last window; move the factor on goodput if they say so."""
    known, learned = _with_load(found, chosen, fleet), _with_kv(found, chosen, observed)
    now_s, window_s = fleet.windows_end_s, ATTAINMENT_SCRAPES * fleet.settings.scrape_interval_s
    if now_s - known.judged_at_s < window_s:
        return known, learned
    goodput = chosen.sizing.goodput_requests_per_s, _asked(chosen)
    was, asked = known.judged_goodput or goodput
    ratio = goodput[0] / was if asked == goodput[1] else 1.0
    since_s = now_s - known.judged_at_s if known.judged_at_s else window_s
    judged_s = min(since_s, LONGEST_JUDGED * window_s)
    ledger = ledger_after(known.ledger, observed, chosen, at_s=now_s, judged_s=judged_s)
    known = replace(known, judged_at_s=now_s, judged_goodput=goodput, ledger=ledger)
    if abs(math.log(ratio)) > MOVED:
        learned, known = given_back(learned, ratio), replace(known, tally=AttainmentCounts())
        return _held_to_served(known, learned, found, chosen, fleet)
    capped = _held_to_served(known, learned, found, chosen, fleet)
    load = _load(found, chosen, *(each.requests_per_s for each in observed.attainments))
    if capped[1] is not learned or load is None or not _is_calm(found, known, chosen, fleet):
        return capped
    verdicts = tuple(_verdicts(observed, window_s))
    if burst_share(found.memory.demand, chosen.sizing):
        burst_at_s = found.memory.traffic.burst_at_s
        is_burst = burst_at_s is not None and fleet.now_s - burst_at_s <= window_s
        window = BurstWindow(verdicts=verdicts, is_burst=is_burst, seconds=window_s)
        reserved = reserved_requests_per_s(
            found.memory.demand, found.memory.posterior, chosen.sizing
        )
        is_too_few = _serving(found) < chosen.capacity.replicas(reserved)
        known, learned = judge_bursts(known, learned, window, is_too_few=is_too_few)
        if is_burst and burst_factor(learned) < HIGHEST:
            return known, learned  # what was late says something of the reserve, not of goodput
    stepped = found.memory.pods.stepped
    judgement = judge_window(
        learned,
        known.tally,
        SloWindow(
            verdicts=verdicts,
            load=load,
            replicas=_serving(found),
            seconds=window_s,
            requests_per_s_each=load * _each(found, chosen.sizing),
            steepness=chosen.sizing.goodput.steepness,
            may_raise=stepped is None or now_s - stepped[0] > window_s,
        ),
        now_s=fleet.now_s,
    )
    reason = judgement.reason or known.reason
    return replace(known, tally=judgement.tally, reason=reason), judgement.posterior


def _asked(chosen: Chosen) -> object:
    """Return what goodput hangs on, but for what the learner moves."""
    served, asked = replace(chosen.replica_goodput, requests_per_s=0.0), chosen.sizing.request
    return served, chosen.sizing.flags, asked.arrival_scv, asked.routing


def _held_to_served(
    known: GoodputMemory, learned: ObjectPosterior, found: Assessment, chosen: Chosen, fleet: Fleet
) -> Judged:
    """Lower the factor to what replicas at which requests wait all along were seen to serve."""
    served = served_at_most(found, chosen, fleet) if is_settled(found) else None
    if served is None:
        return known, learned
    served_per_s, num_requests = served
    most = replace(chosen.capacity, goodput_factor=1.0).most_requests_per_s
    ratio = served_per_s / most
    capped = cap_to_throughput(learned, ratio=ratio, num_requests=num_requests, now_s=fleet.now_s)
    if capped is learned:
        return known, learned
    reason = (
        f"a replica whose queue was never empty served {significant(served_per_s)} "
        f"requests/s, {significant(most)} were expected"
    )
    return replace(known, tally=AttainmentCounts(), reason=reason), capped


def factor_reasons(
    known: GoodputMemory, learned: ObjectPosterior, factor: float
) -> tuple[Reason, ...]:
    """Say what kept or broken promises change, and why."""
    if abs(factor - 1) < MOVED:
        return ()
    message = f"{factor:.0%} of what the step time allows are served, learned from "
    message += f"{count_of(round(learned.num_judged), 'request')}; {known.reason}"
    return (Reason(code="CapacityAdjusted", message=message.rstrip("; ")),)


def _serving(found: Assessment) -> int:
    return sum(pod.is_ready and not pod.is_deleting for pod in found.state.pods)


def _each(found: Assessment, sizing: Sizing) -> float:
    """Return what one of the replicas that are there serves by the arithmetic, in requests/s."""
    number = max(1, _serving(found))
    return sizing.sustained_requests_per_s(number) / number


def _load(found: Assessment, chosen: Chosen, *judged_per_s: float) -> float | None:
    """Return demand over what the step time says that the replicas serve; None: not known.

    ``judged_per_s``: requests/s of which latencies are judged, where these are more.
    """
    demand, serving = found.traffics.demand, _serving(found)
    each = _each(found, chosen.sizing)
    if demand is None or found.traffics.metrics is not Metrics.COMPLETE or not serving:
        return None
    return max((demand.requests_per_s, *judged_per_s)) / (serving * each) if each > 0 else None


def _is_calm(found: Assessment, known: GoodputMemory, chosen: Chosen, fleet: Fleet) -> bool:
    """Tell whether nothing else explains what was late: a start, an overload or what it left."""
    settings, now_s = fleet.settings, fleet.windows_end_s
    window_s = ATTAINMENT_SCRAPES * settings.scrape_interval_s
    ready_s = max((pod.ready_at_s or now_s for pod in found.state.pods), default=now_s)
    overloaded_s = -math.inf if known.overloaded_at_s is None else known.overloaded_at_s
    after_start = now_s - ready_s > window_s
    after_overload = now_s - overloaded_s > window_s + settings.backlog_drain_s
    return is_settled(found) and chosen.problem is None and after_start and after_overload


def _verdicts(observed: Observed, window_s: float) -> Iterator[TargetResult]:
    """Yield how many requests were answered, and how many of these load has made late."""
    for each in observed.attainments:
        answered = each.requests_per_s * window_s * (1 - each.refused_fraction)
        late = each.requests_per_s * window_s * max(0.0, 1 - each.fraction - each.late_alone)
        yield TargetResult(
            target=f"{each.name} p{100 * each.quantile:g}",
            quantile=each.quantile,
            num_requests=answered,
            late=late,
            late_by_load=each.requests_per_s * window_s * each.late_by_load,
        )


def _with_kv(found: Assessment, chosen: Chosen, observed: Observed) -> ObjectPosterior:
    own = found.memory.posterior
    if not is_settled(found):
        return own
    tokens = own_kv_tokens(observed, chosen.sizing)
    key = memory_key(chosen.sizing.request, chosen.sizing.flags)
    before = own.kv_tokens if own.memory_key == key else None
    if tokens is None or not is_material(before, tokens):
        return own
    return replace(own, memory_key=key, kv_tokens=tokens)
