"""What engines serve while requests wait at them all along: no more, whatever is believed.

It needs no promise to be judged, so it holds under overload too, where a step time that no formula
expresses would else go unseen until what waits is served.
"""

import math
from statistics import median

from tonnage.control.input.state import Assessment, Chosen, Fleet, settled_pods
from tonnage.estimate.metrics import ATTAINMENT_SCRAPES
from tonnage.estimate.samples import EngineSamples

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
