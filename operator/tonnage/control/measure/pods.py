"""What is remembered of an object's pods and replicas from tick to tick."""

from collections.abc import Iterator
from dataclasses import replace

from tonnage.control.input.memory import ControllerLag, PodMemory, RolloutProgress
from tonnage.control.input.state import DeploymentView, Fleet, ModelState, PodView
from tonnage.control.measure.traffic import pods_named
from tonnage.estimate.metrics import WINDOWS
from tonnage.estimate.posterior import PodStart
from tonnage.settings import Settings

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
    return PodMemory(
        ready=frozenset(ready),
        loading=frozenset(pod.uid for pod in state.pods if _is_loading(pod, known)),
        present=present,
        last_pod_removed_at_s=known.last_pod_removed_at_s
        if known.present <= present
        else fleet.now_s,
        lost_at_s=fleet.now_s if has_lost else known.lost_at_s,
        lost=pods_named(lost, state.pods) if has_lost else known.lost,
        replicas=asked,
        stepped=_last_step(known, asked, fleet.now_s) or known.stepped,
        window_start=_window_began(known, asked, fleet),
        rolling=_rolling(known.rolling, state, fleet.now_s),
        template=_template(known, state),
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


def _is_loading(pod: PodView, known: PodMemory) -> bool:
    """Tell whether a pod has not been Ready since it was made, as far as was seen and it tells."""
    is_new = known.replicas is None or pod.uid not in known.present
    has_loaded = not is_new and pod.uid not in known.loading
    return not (pod.is_ready or pod.was_ready or has_loaded)


def _template(known: PodMemory, state: ModelState) -> tuple[str, str] | None:
    live = state.deployment
    if live is None or live.observed_generation < live.generation:
        return known.template
    return live.uid, live.template_digest


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


def _last_step(known: PodMemory, asked: int, now_s: float) -> tuple[float, int] | None:
    before = known.replicas
    return None if before is None or before == asked else (now_s, before)


def _window_began(known: PodMemory, asked: int, fleet: Fleet) -> tuple[float, int] | None:
    if window_base(known, fleet) is not None:
        return known.window_start
    return _last_step(known, asked, fleet.now_s) or known.window_start
