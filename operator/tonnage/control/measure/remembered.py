"""What is remembered of one object's traffic, pods and replicas from tick to tick.

A length that is measured differs in every tick, and each other question is another search. So what
was asked last is asked again while the figure is within 3 % of it; beyond that the nearest on a
grid of 3 % is taken. Objects with like traffic so ask the same. Lengths that are 3 % too short give
a goodput that is 1 to 3 % too high, all of them at once, with the cached share, 4 to 6 % (8B and
70B models on H100 and H200, 0 to 80 % cached); a search of few slots has a standard error of 5 %.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from tonnage.api.objects import ModelDeployment
from tonnage.control.input.memory import (
    ControllerLag,
    ObjectMemory,
    PodMemory,
    RolloutProgress,
    TrafficMemory,
)
from tonnage.control.input.state import Assessment, DeploymentView, Fleet, ModelState, PodView
from tonnage.control.measure.traffic import pods_named
from tonnage.estimate.burstiness import add_count, arrival_scv
from tonnage.estimate.demand import MeasuredLengths
from tonnage.estimate.forecast import is_burst, without_chance
from tonnage.estimate.metrics import WINDOWS
from tonnage.estimate.planning_constants import BAND
from tonnage.estimate.posterior import PodStart, with_starts
from tonnage.policy.need import CurrentTraffic
from tonnage.policy.situation import Metrics
from tonnage.settings import Settings
from tonnage.sizing.expected import expected_workload
from tonnage.sizing.nearby import SEARCH_GRID_RATIO
from tonnage.sizing.workload import Workload
from tonnage.units import nearest

SILENT_S = 60.0
"""Within which a controller sees what was written, as a rule."""


def with_pods(known: PodMemory, state: ModelState, fleet: Fleet) -> PodMemory:
    """Remember which pods are there, which were lost, and when replicas changed."""
    ready = _ready(state)
    present = frozenset(pod.uid for pod in state.pods)
    asked = state.replicas
    # Fewer than are asked for: what an update replaced, or scaling down took away, is no loss.
    lost = known.ready - set(ready)
    has_lost = bool(lost) and len(ready) < asked
    before = known.replicas
    step = None if before is None or before == asked else (fleet.now_s, before)
    live, template = state.deployment, known.template
    if live and live.observed_generation >= live.generation:
        template = live.uid, live.template_digest
    has_began = window_base(known, fleet) is not None
    has_loaded = known.present - known.loading
    return PodMemory(
        ready=frozenset(ready),
        loading=frozenset(
            pod.uid
            for pod in state.pods
            if not (pod.is_ready or pod.was_ready or pod.uid in has_loaded)
        ),
        present=present,
        last_pod_removed_at_s=known.last_pod_removed_at_s
        if known.present <= present
        else fleet.now_s,
        lost_at_s=fleet.now_s if has_lost else known.lost_at_s,
        lost=pods_named(lost, state.pods) if has_lost else known.lost,
        replicas=asked,
        stepped=step or known.stepped,
        window_start=known.window_start if has_began else step or known.window_start,
        rolling=_rolling(known.rolling, state, fleet.now_s),
        template=template,
        behind=_behind(known.behind, state.deployment, fleet.now_s),
    )


def starts_of(known: PodMemory, state: ModelState) -> Iterator[PodStart]:
    """Yield the starts that ended since the last tick.

    A pod that was Ready before, or at first sight, tells nothing of its start.
    """
    is_first = known.replicas is None
    for pod in _ready(state).values():
        is_new = not is_first and pod.uid not in known.present
        was_seen = pod.uid in known.loading or is_new
        scheduled_s, ready_s = pod.scheduled_at_s, pod.ready_at_s
        if was_seen and not pod.has_restarted and scheduled_s is not None and ready_s is not None:
            yield PodStart(waited_s=scheduled_s - pod.created_at_s, took_s=ready_s - scheduled_s)


def _ready(state: ModelState) -> dict[str, PodView]:
    return {pod.name: pod for pod in state.pods if pod.is_ready and not pod.is_deleting}


def _behind(
    before: ControllerLag | None, live: DeploymentView | None, now_s: float
) -> ControllerLag | None:
    if live is None or live.observed_generation >= live.generation:
        return None
    if before is None or before.generation != live.observed_generation:
        return ControllerLag(generation=live.observed_generation, since_s=now_s)
    return replace(before, is_long=now_s - before.since_s >= SILENT_S)


def _rolling(
    before: RolloutProgress | None, state: ModelState, now_s: float
) -> RolloutProgress | None:
    """Return how far the pods of a Deployment have been replaced; None: they are not."""
    live = state.deployment
    if live is None or not live.is_rolling:
        return None
    if before is None or before.template != live.template_digest:
        before = RolloutProgress(template=live.template_digest, updated=0, ready=0, at_s=now_s)
    has_more = live.updated > before.updated or live.ready > before.ready
    return replace(
        before,
        updated=max(before.updated, live.updated),
        ready=max(before.ready, live.ready),
        at_s=now_s if has_more else before.at_s,
    )


def pace_s(settings: Settings) -> float:
    """Return the time in which the effect of a step shows in the rates."""
    return WINDOWS[0] * settings.scrape_interval_s


def window_base(known: PodMemory, fleet: Fleet) -> int | None:
    """Return the replicas before the first change of the rate window that this moment is in."""
    began = known.window_start
    is_within = began is not None and fleet.now_s - began[0] < pace_s(fleet.settings)
    return began[1] if began and is_within else None


def steady(value: float, asked: float) -> float:
    """Return the figure to ask with; both are positive.

    >>> steady(4100, asked=4000)
    4000
    >>> round(steady(4200, asked=4000))
    4170
    """
    return asked if abs(value - asked) <= BAND * asked else nearest(value, ratio=1 + BAND)


def steady_lengths(measured: MeasuredLengths, asked: MeasuredLengths) -> MeasuredLengths:
    """Return the lengths to ask with. Of a prompt, the share that is computed is what costs."""
    was_computed = 1 - asked.cached_fraction
    computed = steady(1 - measured.cached_fraction, was_computed)
    return MeasuredLengths(
        prompt_tokens=steady(measured.prompt_tokens, asked.prompt_tokens),
        output_tokens=steady(measured.output_tokens, asked.output_tokens),
        cached_fraction=asked.cached_fraction if computed == was_computed else 1 - computed,
    )


def near_lengths(asked: MeasuredLengths, expected: MeasuredLengths) -> MeasuredLengths:
    """Return the lengths on a coarse grid around those that the spec expects."""
    near = partial(nearest, ratio=SEARCH_GRID_RATIO)
    computed = near(1 - asked.cached_fraction, origin=1 - expected.cached_fraction)
    return MeasuredLengths(
        prompt_tokens=near(asked.prompt_tokens, origin=expected.prompt_tokens),
        output_tokens=near(asked.output_tokens, origin=expected.output_tokens),
        cached_fraction=1 - min(1.0, computed),
    )


def lengths_of(workload: Workload) -> MeasuredLengths:
    """Return what the spec expects as if it were measured: the first that is asked with."""
    return MeasuredLengths(
        prompt_tokens=workload.prompt.mean_tokens,
        output_tokens=workload.output_tokens,
        cached_fraction=workload.cached_fraction,
    )


def with_observed(found: Assessment, fleet: Fleet) -> ObjectMemory:
    """Remember the pods that are there, how they started, and what is measured of the traffic."""
    state, memory = found.state, found.memory
    starts, expected_s = starts_of(memory.pods, state), fleet.settings.cold_start_s
    return replace(
        memory,
        pods=with_pods(memory.pods, state, fleet),
        traffic=_with_traffic(found, fleet),
        posterior=with_starts(memory.posterior, starts, expected_s=expected_s),
    )


def _with_traffic(found: Assessment, fleet: Fleet) -> TrafficMemory:
    known, traffics = _with_arrivals(found, fleet), found.traffics
    demand, is_whole = traffics.demand, traffics.metrics is Metrics.COMPLETE
    asked, model = known.asked_lengths, found.state.model
    if traffics.lengths and isinstance(model, ModelDeployment):
        # Those of the spec until what is measured has left them.
        asked = asked or lengths_of(expected_workload(model.spec))
        asked = steady_lengths(traffics.lengths, asked)
    blind_since_s = fleet.now_s if known.blind_since_s is None else known.blind_since_s
    measured = CurrentTraffic(requests_per_s=demand.requests_per_s) if demand else None
    has_come = known.served_since_s is None and measured and measured.requests_per_s > 0
    return replace(
        known,
        measured=measured if is_whole else known.measured or measured,
        lengths=traffics.lengths,
        asked_lengths=asked,
        served_since_s=fleet.now_s if has_come else known.served_since_s,
        was_whole=known.was_whole or is_whole,
        # Who never had them in this process lost none.
        blind_since_s=blind_since_s if known.was_whole and traffics.is_blind else None,
    )


def _with_arrivals(of: Assessment, fleet: Fleet) -> TrafficMemory:
    """Count what came since the last window; regular arrivals today promise none tomorrow.

    Windows in which replicas came or went count others than the rest. So do those that hold a
    burst, for which there is the reserve, and those beside it, that may hold its edge.
    """
    memory, demand, known = of.memory, of.traffics.demand, of.memory.traffic
    count = demand.newest if demand else None
    if count is None or of.traffics.metrics is not Metrics.COMPLETE:
        return known
    model, at_s = of.state.model, fleet.windows_end_s
    if not isinstance(model, ModelDeployment):
        return known
    given = float(model.spec.demand.arrival_scv) if model.spec.demand else 1.0
    believed = given if known.arrival_scv is None else known.arrival_scv
    most, history = memory.demand.most_requests_per_s, memory.demand.history
    sure_per_s = without_chance(count.requests, scv=believed) / count.seconds
    if most and is_burst(history, sure=sure_per_s / most):
        since_s = at_s - count.seconds
        clear = tuple(each for each in known.counted if each.at_s <= since_s)
        return replace(known, counted=clear, burst_at_s=at_s)
    is_beside = known.burst_at_s is not None and at_s - count.seconds < known.burst_at_s
    if is_beside or not _is_steady(of, fleet):
        return known
    counted = add_count(known.counted, at_s=at_s, count=count.requests, seconds=count.seconds)
    found = max(1.0, arrival_scv(counted, believed, given=given))
    return replace(known, counted=counted, arrival_scv=None if found == given else found)


def _is_steady(found: Assessment, fleet: Fleet) -> bool:
    """Tell whether no replica came or went in the last window."""
    at_s, pods = fleet.windows_end_s, found.memory.pods
    ready_s = max((pod.ready_at_s or at_s for pod in found.state.pods), default=at_s)
    changed_s = max(ready_s, pods.last_pod_removed_at_s, pods.stepped[0] if pods.stepped else 0.0)
    return at_s - changed_s > (WINDOWS[0] + 1) * fleet.settings.scrape_interval_s
