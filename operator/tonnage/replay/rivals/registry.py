"""The rivals of ``tonnage replay`` by name.

Each has what it is, its one knob and the values to sweep.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from tonnage.replay.rivals.dynamo_classic import ClassicPlanner
from tonnage.replay.rivals.hpa_concurrency import Concurrency
from tonnage.replay.rivals.keda_epp import epp_queue
from tonnage.replay.rivals.llmd_slo import SloLaw
from tonnage.replay.rivals.ray_serve import ray_serve
from tonnage.replay.rivals.rule import Rule
from tonnage.replay.rivals.scaling_manager import ScalingManager
from tonnage.replay.rivals.wva_queueing import QueueingModel
from tonnage.replay.rivals.wva_throughput import Throughput

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
    knows_truth: bool = False
    """It is handed the goodput of a replica as it is."""


REQUESTS: Final = (8.0, 12.0, 16.0, 24.0, 32.0, 45.0, 64.0, 96.0)
LIMIT_SHARES: Final = (0.4, 0.55, 0.7, 0.85, 1.0, 1.2)
LOADS: Final = (0.4, 0.55, 0.7, 0.85, 1.0)

RIVALS: Final[Mapping[str, Rival]] = {
    "hpa-concurrency": Rival(
        description="HPA on running and waiting requests of each pod",
        knob="requests of a replica",
        default=32,
        sweep=REQUESTS,
        factory=lambda knob, _: Concurrency(target=knob),
    ),
    "keda-epp-queue": Rival(
        description="KEDA on the queue of llm-d's router and on requests running",
        knob="running requests of a replica",
        default=16,
        sweep=REQUESTS,
        factory=lambda knob, _: epp_queue(knob),
    ),
    "llmd-slo": Rival(
        description="llm-d's SLO-aware law on KEDA: P90 latencies over their limits",
        knob="share of the limit above which it goes up",
        default=0.55,
        sweep=(0.25, 0.35, 0.45, 0.55, 0.7, 0.85),
        factory=lambda knob, interval_s: SloLaw(threshold=knob, scrape_interval_s=interval_s),
    ),
    "wva-queueing": Rival(
        description="llm-d's WVA, queueing model with a Kalman filter, which it ships switched off",
        knob="share of the SLO's limits to keep",
        default=1.0,
        sweep=LIMIT_SHARES,
        factory=lambda knob, interval_s: QueueingModel(share=knob, scrape_interval_s=interval_s),
    ),
    "wva-throughput": Rival(
        description="llm-d's WVA, throughput analyzer: output tokens over what a full cache makes",
        knob="utilization above which it goes up",
        default=0.85,
        sweep=LOADS,
        factory=lambda knob, interval_s: Throughput(load=knob, scrape_interval_s=interval_s),
    ),
    "llm-scaling-manager": Rival(
        description="a fork of WVA: tokens in the cache, and the rate that full replicas showed",
        knob="utilization above which it goes up",
        default=0.85,
        sweep=LOADS,
        factory=lambda knob, interval_s: ScalingManager(load=knob, scrape_interval_s=interval_s),
    ),
    "dynamo-classic": Rival(
        description="NVIDIA Dynamo's first planner: a profile, corrected by what is measured",
        knob="share of the SLO's limits to keep",
        default=1.0,
        sweep=LIMIT_SHARES,
        factory=lambda knob, _: ClassicPlanner(share=knob),
    ),
    "ray": Rival(
        description="Ray Serve: ongoing requests of half a minute",
        knob="ongoing requests of a replica",
        default=2,
        sweep=(2.0, 5.0, *REQUESTS),
        factory=lambda knob, _: ray_serve(knob),
    ),
}
