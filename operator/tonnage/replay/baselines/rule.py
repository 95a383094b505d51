"""What a rival is: a rule that sees what anybody could see, and says how many replicas."""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from tonnage.estimate.metrics import RUNNING, WAITING
from tonnage.replay.cluster import SimulatedCluster
from tonnage.replay.prometheus import Query, Series, rate
from tonnage.sizing.request import Flags
from tonnage.sizing.workload import Slo, Target

KV_USAGE: Final = "vllm:kv_cache_usage_perc"
ROUNDING: Final = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedPod:
    """A pod that was not taken away."""

    name: str
    age_s: float
    """Since it was created."""
    ready_for_s: float | None
    """None: it is not Ready yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signals:
    """What is seen of one object when its rule is asked. Missing is missing, never zero."""

    at_s: float
    asked: int
    """Replicas that the Deployment asks for."""
    pods: tuple[ObservedPod, ...]
    flags: Flags
    """That run, and stay."""
    min_replicas: int
    max_replicas: int
    slo: Slo
    kv_tokens: int
    """Of a replica, as its engine reports them."""
    believed_requests_per_s: float
    """Goodput of a replica as the plan has it: for rules that take a capacity as their input."""
    answers: Mapping[str, Sequence[Series]] = field(default_factory=dict)
    """By query, the series of these pods. Those of pods that were taken away are left out."""
    arrived: int = 0
    """Requests that ever came, as a router or proxy of one's own counts them."""
    in_flight: int = 0
    """Of those, that have not got their last token: engines hold them, or the router does."""
    waiting_at_router: int = 0
    """Requests that came while nobody was Ready."""
    pod_label: str = "pod"
    cluster: SimulatedCluster | None = None
    """What is simulated, with all that nobody could know: for experiments, no rival reads it."""

    def bounded(self, replicas: int) -> int:
        """Return the nearest number within the limits of the object."""
        return min(self.max_replicas, max(self.min_replicas, replicas))

    @property
    def told(self) -> "Signals":
        """Itself, for rules that were written for 0.2.0; goes in 0.3."""
        return self

    @property
    def ready(self) -> int:
        return sum(pod.ready_for_s is not None for pod in self.pods)

    @property
    def pending(self) -> int:
        """Pods that were created and are not Ready."""
        return len(self.pods) - self.ready

    def by_pod(self, query: str) -> dict[str, float]:
        """Return a value for each pod that has one, its series summed."""
        found: dict[str, float] = {}
        for series in self.answers.get(query, ()):
            pod = series.labels[self.pod_label]
            found[pod] = found.get(pod, 0.0) + series.value
        return found

    def total(self, query: str) -> float | None:
        """Return the sum over pods; None where none has a value."""
        found = self.by_pod(query)
        return sum(found.values()) if found else None

    def buckets(self, query: str) -> dict[float, float]:
        """Return what a histogram of all pods together holds, by upper bound."""
        found: dict[float, float] = {}
        for series in self.answers.get(query, ()):
            bound = float(series.labels["le"])
            found[bound] = found.get(bound, 0.0) + series.value
        return found


def limit_s(targets: Sequence[Target], quantile: float) -> float:
    """Return the limit of the target nearest to a quantile; infinite where none is promised."""
    if not targets:
        return math.inf
    return min(targets, key=lambda target: abs(target.quantile - quantile)).limit_s


class Rule(Protocol):
    """Says how many replicas one object should have; its fields are all that it remembers."""

    @property
    def interval_s(self) -> float:
        """Time from one question to the next."""

    @property
    def table(self) -> Mapping[str, Query]:
        """What it asks for."""

    def replicas(self, signals: Signals) -> int:
        """Return how many there should be; ``signals.asked`` where nothing is to change.

        Limits of the object need not be kept: whoever asks does that.
        """


GAUGES: Mapping[str, Query] = {
    "running": Query(metric=RUNNING),
    "waiting": Query(metric=WAITING),
    "kv_usage": Query(metric=KV_USAGE),
}
"""As the newest scrape has them."""


def gauges(*names: str) -> dict[str, Query]:
    return {name: GAUGES[name] for name in names}


def rates(metrics: Mapping[str, str], *, scrapes: int) -> dict[str, Query]:
    """Return the queries of their rates over so many scrapes."""
    return {
        name: Query(metric=f"vllm:{metric}", over=rate, scrapes=scrapes)
        for name, metric in metrics.items()
    }


def whole(replicas: float) -> int:
    """Round up, but not for what floats add to a whole number.

    >>> whole(3 * 0.7 / 0.7), whole(3.01)
    (3, 4)
    """
    return math.ceil(replicas - ROUNDING)


def scrapes_in(window_s: float, scrape_interval_s: float) -> int:
    """Return a window in scrapes, which is what a query counts in."""
    return max(1, round(window_s / scrape_interval_s))


@dataclass(slots=True, kw_only=True)
class Arrivals:
    """What a counter of arrivals said within a window."""

    window_s: float
    seen: deque[tuple[float, int]] = field(default_factory=deque)

    def requests_per_s(self, signals: Signals) -> float | None:
        """Take the newest count, and return the rate over the window; None: it is the first."""
        self.seen.append((signals.at_s, signals.arrived))
        while len(self.seen) > 1 and self.seen[1][0] <= signals.at_s - self.window_s:
            self.seen.popleft()
        (first_s, before), (last_s, now) = self.seen[0], self.seen[-1]
        return (now - before) / (last_s - first_s) if last_s > first_s else None
