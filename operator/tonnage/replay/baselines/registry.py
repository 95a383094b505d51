"""The rivals of ``tonnage replay`` by name: what each is, and its one knob."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from tonnage.replay.baselines.hpa import Concurrency, epp_queue
from tonnage.replay.baselines.llmd_slo import SloLaw
from tonnage.replay.baselines.rule import Rule
from tonnage.replay.baselines.wva import Throughput

Factory = Callable[[float, float], Rule]
"""Makes a fresh rule of the knob's value and the seconds between scrapes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """One way to scale, with the one knob that it has here."""

    description: str
    knob: str
    default: float
    """As its project ships it, unless its module says otherwise."""
    factory: Factory


RIVALS: Final[Mapping[str, Rival]] = {
    "hpa-concurrency": Rival(
        description="HPA on running and waiting requests of each pod",
        knob="requests of a replica",
        default=32,
        factory=lambda knob, _: Concurrency(target=knob),
    ),
    "keda-epp-queue": Rival(
        description="KEDA on the queue of llm-d's router and on requests running",
        knob="running requests of a replica",
        default=16,
        factory=lambda knob, _: epp_queue(knob),
    ),
    "llmd-slo": Rival(
        description="llm-d's SLO-aware law on KEDA: P90 latencies over their limits",
        knob="share of the limit above which it goes up",
        default=0.55,
        factory=lambda knob, interval_s: SloLaw(threshold=knob, scrape_interval_s=interval_s),
    ),
    "wva-throughput": Rival(
        description="llm-d's WVA, throughput analyzer: output tokens over what a full cache makes",
        knob="utilization above which it goes up",
        default=0.85,
        factory=lambda knob, interval_s: Throughput(load=knob, scrape_interval_s=interval_s),
    ),
}
