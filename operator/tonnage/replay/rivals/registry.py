"""All rivals by name, each with what it follows, its one knob and the values to sweep."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from tonnage.replay.rivals.hpa_concurrency import Concurrency
from tonnage.replay.rivals.llmd_slo import SloLaw
from tonnage.replay.rivals.rule import Rule

Factory = Callable[[float, float], Rule]
"""Makes a fresh rule of the knob's value and the seconds between scrapes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """One way to scale, with the one knob that it has here."""

    description: str
    knob: str
    default: float
    """As its project ships it, unless its module says otherwise."""
    sweep: tuple[float, ...]
    factory: Factory


RIVALS: Final[Mapping[str, Rival]] = {
    "hpa-concurrency": Rival(
        description="HPA on running and waiting requests of each pod",
        knob="requests of a replica",
        default=32,
        sweep=(8, 12, 16, 24, 32, 45, 64, 96),
        factory=lambda knob, _: Concurrency(target=knob),
    ),
    "llmd-slo": Rival(
        description="llm-d's SLO-aware law on KEDA: P90 latencies over their limits",
        knob="share of the limit above which it goes up",
        default=0.55,
        sweep=(0.25, 0.35, 0.45, 0.55, 0.7, 0.85),
        factory=lambda knob, interval_s: SloLaw(threshold=knob, scrape_interval_s=interval_s),
    ),
}
