"""Everything that a decision on replicas may depend on, and what it is."""

from dataclasses import dataclass
from enum import StrEnum

from tonnage.api.status import Reason


class Metrics(StrEnum):
    """How much is known about the traffic of an object."""

    COMPLETE = "Complete"
    """Every replica that is Ready reported, freshly."""
    MISSING = "Missing"
    """Some or all figures are missing or stale."""
    NEVER = "Never"
    """No replica has been Ready long enough to report anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Replicas that the arithmetic asks for."""

    replicas: int
    """For the demand and the backlog."""
    replicas_with_margin: int
    """For somewhat more than the demand: what scaling down must leave."""
    reasons: tuple[Reason, ...]
    floor: int = 0
    """Of known events, whatever is measured."""
    planned_requests_per_s: float | None = None
    """What comes, or is expected to, with headroom, bursts and events; None: not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """Gathered once; never fetched later. Times are unix seconds."""

    now_s: float
    current: int
    """Replicas that the Deployment asks for; 0: there is none yet."""
    given_up: int
    """Pods that no node has taken for so long that none is expected to."""
    placed: int
    """The other pods: what no node takes is asked for beyond these."""
    retry_at_s: float | None
    """Until when nothing is added, after such pods were given back."""
    minimum: int
    maximum: int
    need: Need
    metrics: Metrics
    recent_needs: tuple[tuple[float, int], ...]
    """(time, replicas with margin) as long as replicas are held, this moment included."""
    watching_since_s: float
    """Since when this process has seen the object."""
    lost_at_s: float | None
    """When a Ready replica was last lost without being scaled away."""
    is_replacing: bool
    """What came in the place of that replica is not Ready yet."""
    draining: tuple[float, float] | None
    """(requests that an overload left waiting, time by which they should be served)"""
    awaited: int | None
    """Replicas for spec.demand, while a fleet has had no traffic yet, or only just."""
    stepped: tuple[float, int] | None
    """(time, replicas before) of the last change of the Deployment's replicas."""
    window_base: int | None
    """Replicas before the first change of the rate window that this moment is in."""
    gpus_per_replica: int
    free_budget_gpus: int | None
    """GPUs that the fleet may still take; None: no budget is set."""
    scale_down_window_s: float
    """The least time for which a lower need must have held before replicas are taken away."""
    hold_s: float
    """For which it must have held by what is known of this demand."""
    max_scale_up_replicas: int
    pace_s: float
    """Time in which the effect of a step shows in the rates."""
    lost_pods: str = ""
    """Which they were, and on which nodes."""
    unplaced_reason: str = "InsufficientGPU"
    """Why no node takes those pods, or took them when they were given back."""
    refused: Reason | None = None
    """Why more pods would not run: they are refused, or those that are do not start."""
    uncounted_gpus: str | None = None
    """What of the fleet the budget cannot count."""
    blackout: str | None = None
    """What much of the fleet lost at once, if it did."""
    is_blind: bool = False
    """The object's own pods lack series that they should have."""
    evictable: tuple[int, str] | None = None
    """(replicas from which on the object's own disruption budget lets one go, what it says)"""
    approved: tuple[int, str] | None = None
    """(replicas that the stated cost, or an approval, pays for, what more would cost)"""
    is_rolling: bool = False
    """Pods are being replaced, or are about to be, and none waits for a GPU."""
    left: Reason | None = None
    """Why the number is left to another writer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Replicas, and why."""

    replicas: int
    reasons: tuple[Reason, ...] = ()
    """The rule that moved the number last, then those before it down to the demand."""
    limited_by: str | None = None
    """Code of the last bound that moved the number; None: it is the need."""
    is_limited: bool = False
    """That bound is a limit of the cluster, the user or the administrator."""
    notes: tuple[Reason, ...] = ()
    """What else there is to say of the replicas: it moved no number."""

    @property
    def message(self) -> str:
        """All that moved the number, the last of it first."""
        return "; ".join(reason.message for reason in self.reasons)
