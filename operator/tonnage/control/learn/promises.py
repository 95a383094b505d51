"""Promises kept and broken, as evidence about what one object's replicas serve."""

import math
from collections.abc import Iterator

from tonnage.api.status import Reason
from tonnage.control.input.state import Assessment, Chosen, Fleet, ObjectMemory, Observed
from tonnage.control.learn.learning import is_settled, own_kv_tokens
from tonnage.control.measure.bursts import burst_factor, burst_share, holds_burst, judge_bursts
from tonnage.control.measure.saturation import served_at_most
from tonnage.estimate.burst_factor import HIGHEST, BurstWindow
from tonnage.estimate.calibration import is_material, memory_key
from tonnage.estimate.metrics import ATTAINMENT_SCRAPES
from tonnage.estimate.promise import OVERLOAD, Tally, Verdict, Window, given_back, held_to, judged
from tonnage.policy.situation import Metrics
from tonnage.sizing.plan import Sizing
from tonnage.units import counted, significant
from tonnage.values import replace

MOVED = 0.02
"""Of goodput, by which the learner has moved it: what was late then is its evidence."""
STANDING_WINDOWS = 2
"""For which requests have waited all along: a queue that stands."""
DRAIN_TOLERANCE = 2.0
"""Times the time that a queue should take to be served, for which it is an overload's."""
LONGEST_DRAIN_S = 1800.0
"""After which a queue that is still there is no overload's."""
QUEUED = 1.0
"""Requests that wait at each replica, from which on there is a queue."""


def remembered_load(found: Assessment, chosen: Chosen, fleet: Fleet) -> ObjectMemory:
    """Note overload and queues: what is late because of these says nothing about capacity.

    An overload lasts until the queue that it left is served, or should be.
    """
    memory, demand = found.memory, found.traffics.demand
    if demand is None:
        return memory
    load = _load(found, chosen)
    is_overloaded = load is None or load > OVERLOAD
    is_queued = demand.waiting >= QUEUED * max(1, _serving(found))
    drained_by_s, expected_s = memory.drained_by_s, fleet.now_s + _drain_s(found, chosen)
    if is_overloaded and is_queued:
        drained_by_s = expected_s
    elif drained_by_s is not None:
        drained_by_s = min(drained_by_s, expected_s)
    is_draining = is_queued and drained_by_s is not None and fleet.now_s < drained_by_s
    queued_since_s = fleet.windows_end_s if memory.queued_since_s is None else memory.queued_since_s
    return replace(
        memory,
        overloaded_at_s=fleet.now_s if is_overloaded or is_draining else memory.overloaded_at_s,
        drained_by_s=drained_by_s if is_draining else None,
        queued_since_s=queued_since_s if is_queued and not is_draining else None,
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


def judge(found: Assessment, chosen: Chosen, observed: Observed, fleet: Fleet) -> ObjectMemory:
    """Count how promises fared in the last window; move the factor on goodput if they say so."""
    memory, sizing = _with_kv(found, chosen, observed), chosen.sizing
    window_s = ATTAINMENT_SCRAPES * fleet.settings.scrape_interval_s
    if fleet.windows_end_s - memory.judged_at_s < window_s:
        return memory
    before, goodput = memory.judged_goodput, sizing.goodput_requests_per_s
    memory = replace(memory, judged_at_s=fleet.windows_end_s, judged_goodput=goodput)
    if before and abs(math.log(goodput / before)) > MOVED:
        posterior = given_back(memory.posterior, goodput / before)
        memory = replace(memory, posterior=posterior, tally=_restarted(memory.tally))
        return _held_to_served(memory, found, chosen, fleet)
    held = _held_to_served(memory, found, chosen, fleet)
    if held is not memory:
        return held
    load = _load(found, chosen)
    if load is None or not _is_calm(found, chosen, memory, fleet):
        return memory
    verdicts = tuple(_verdicts(observed, window_s))
    if burst_share(memory, sizing):
        is_burst = holds_burst(memory, fleet, window_s)
        window = BurstWindow(verdicts=verdicts, is_burst=is_burst, seconds=window_s)
        memory = judge_bursts(memory, chosen, window, serving=_serving(found))
        if is_burst and burst_factor(memory) < HIGHEST:
            return memory  # what was late says something of the reserve, not of goodput
    queued_since_s = memory.queued_since_s
    judgement = judged(
        memory.posterior,
        memory.tally,
        Window(
            verdicts=verdicts,
            load=load,
            seconds=window_s,
            requests_per_s_each=load * _each(found, sizing) * chosen.goodput_factor,
            steepness=sizing.goodput.steepness,
            is_queue_standing=queued_since_s is not None
            and fleet.windows_end_s - queued_since_s >= STANDING_WINDOWS * window_s,
            may_raise=memory.stepped is None or fleet.windows_end_s - memory.stepped[0] > window_s,
        ),
        now_s=fleet.now_s,
    )
    return replace(
        memory,
        posterior=judgement.posterior,
        tally=judgement.tally,
        factor_reason=judgement.reason or memory.factor_reason,
    )


def _held_to_served(
    memory: ObjectMemory, found: Assessment, chosen: Chosen, fleet: Fleet
) -> ObjectMemory:
    """Lower the factor to what replicas at which requests wait all along were seen to serve."""
    served = served_at_most(found, chosen, fleet) if is_settled(found) else None
    if served is None:
        return memory
    most = replace(chosen.capacity, goodput_factor=1.0).most_requests_per_s
    posterior = held_to(
        memory.posterior,
        ratio=served.requests_per_s / most,
        num_requests=served.num_requests,
        now_s=fleet.now_s,
    )
    if posterior is memory.posterior:
        return memory
    reason = (
        f"{significant(served.requests_per_s)} requests/s were served by a replica at which "
        f"others waited all along, {significant(most)} should be"
    )
    tally = _restarted(memory.tally)
    return replace(memory, posterior=posterior, tally=tally, factor_reason=reason)


def factor_reasons(memory: ObjectMemory, factor: float) -> tuple[Reason, ...]:
    """Say what kept or broken promises change, and why."""
    if abs(factor - 1) < MOVED:
        return ()
    number = memory.posterior.num_judged
    stands_on = (
        f"{factor:.0%} of what the step time says is served, by "
        f"{counted(round(number), 'request')} judged"
    )
    message = f"{stands_on}; {memory.factor_reason}"
    return (Reason(code="PromisesJudged", message=message.rstrip("; ")),)


def _restarted(tally: Tally) -> Tally:
    return Tally(began=tally.began, is_futile=tally.is_futile)


def _serving(found: Assessment) -> int:
    return sum(pod.is_ready and not pod.is_deleting for pod in found.state.pods)


def _each(found: Assessment, sizing: Sizing) -> float:
    """Return what one of the replicas that are there serves by the arithmetic, in requests/s."""
    number = max(1, _serving(found))
    return sizing.sustained_requests_per_s(number) / number


def _load(found: Assessment, chosen: Chosen) -> float | None:
    """Return demand over what the replicas that are there should serve; None: not known."""
    demand, serving = found.traffics.demand, _serving(found)
    each = _each(found, chosen.sizing) * chosen.goodput_factor
    if demand is None or found.traffics.metrics is not Metrics.COMPLETE or not serving:
        return None
    return demand.requests_per_s / (serving * each) if each > 0 else None


def _is_calm(found: Assessment, chosen: Chosen, memory: ObjectMemory, fleet: Fleet) -> bool:
    """Tell whether nothing else explains what was late: a start, an overload or what it left."""
    settings, now_s = fleet.settings, fleet.windows_end_s
    window_s = ATTAINMENT_SCRAPES * settings.scrape_interval_s
    ready_s = max((pod.ready_at_s or now_s for pod in found.state.pods), default=now_s)
    overloaded_s = -math.inf if memory.overloaded_at_s is None else memory.overloaded_at_s
    after_start = now_s - ready_s > window_s
    after_overload = now_s - overloaded_s > window_s + settings.backlog_drain_s
    return is_settled(found) and chosen.problem is None and after_start and after_overload


def _verdicts(observed: Observed, window_s: float) -> Iterator[Verdict]:
    for each in observed.attainments:
        number = each.requests_per_s * window_s
        yield Verdict(
            target=f"{each.name} p{100 * each.quantile:g}",
            quantile=each.quantile,
            num_requests=number,
            late=number * (1 - each.fraction),
        )


def _with_kv(found: Assessment, chosen: Chosen, observed: Observed) -> ObjectMemory:
    """Keep what the object's own pods report of their cache."""
    memory = found.memory
    if not is_settled(found):
        return memory
    tokens = own_kv_tokens(observed, chosen.sizing)
    key = memory_key(chosen.sizing.request, chosen.sizing.flags)
    own = memory.posterior
    before = own.kv_tokens if own.memory_key == key else None
    if tokens is None or not is_material(before, tokens):
        return memory
    return replace(memory, posterior=replace(own, memory_key=key, kv_tokens=tokens))
