"""The rivals that only the benchmark compares, by name, and all that it compares."""

from collections.abc import Mapping
from typing import Final

from replay_others.dynamo_classic import ClassicPlanner
from replay_others.inside import ReadsEngines, TrueRate
from replay_others.ray_serve import RayServe
from replay_others.scaling_manager import ScalingManager
from replay_others.wva2 import TokenSaturation
from replay_others.wva_queueing import QueueingModel
from tonnage.replay.policy import RIVALS, Rival

KNOWS_TRUTH: Final = "true-rate"

OTHERS: Final[Mapping[str, Rival]] = {
    "true-rate": Rival(
        description="arrivals of a minute over the true goodput, which it is handed",
        knob="share of the goodput to use",
        default=0.85,
        factory=lambda knob, _: TrueRate(load=knob),
    ),
    "wva-queueing": Rival(
        description="llm-d's WVA, queueing model with a Kalman filter, which it ships switched off",
        knob="share of the SLO's limits to keep",
        default=1.0,
        factory=lambda knob, interval_s: QueueingModel(share=knob, scrape_interval_s=interval_s),
    ),
    "llm-scaling-manager": Rival(
        description="a fork of WVA: tokens in the cache, and the rate that full replicas showed",
        knob="utilization above which it goes up",
        default=0.85,
        factory=lambda knob, interval_s: ScalingManager(load=knob, scrape_interval_s=interval_s),
    ),
    "dynamo-classic": Rival(
        description="NVIDIA Dynamo's first planner: a profile, corrected by what is measured",
        knob="share of the SLO's limits to keep",
        default=1.0,
        factory=lambda knob, _: ReadsEngines(ClassicPlanner(share=knob)),
    ),
    "wva2": Rival(
        description="llm-d's WVA, second analyzer: tokens over the capacity in tokens",
        knob="utilization above which it goes up",
        default=0.85,
        factory=lambda knob, interval_s: TokenSaturation(load=knob, scrape_interval_s=interval_s),
    ),
    "ray": Rival(
        description="Ray Serve: ongoing requests of half a minute",
        knob="ongoing requests of a replica",
        default=2,
        factory=lambda knob, _: RayServe(target=knob),
    ),
}
ALL: Final[Mapping[str, Rival]] = {**RIVALS, **OTHERS}
