"""The rivals that only the benchmark compares, by name, and all that it compares."""

from collections.abc import Mapping
from typing import Final

from replay_others.aibrix import Apa, Kpa
from replay_others.dynamo import Planner
from replay_others.dynamo_classic import ClassicPlanner
from replay_others.hpa_kv import KvUsage
from replay_others.inside import ReadsEngines
from replay_others.keda_queue import queue
from replay_others.kubeai import kubeai
from replay_others.llmd_token import token_law
from replay_others.ray_serve import ray_serve
from replay_others.scaling_manager import ScalingManager
from replay_others.true_rate import TrueRate
from replay_others.wva1 import Saturation
from replay_others.wva2 import TokenSaturation
from replay_others.wva_queueing import QueueingModel
from tonnage.replay.rivals.registry import RIVALS, Rival

KNOWS_TRUTH: Final = "true-rate"
KV_SHARES: Final = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
REQUESTS: Final = (8.0, 12.0, 16.0, 24.0, 32.0, 45.0, 64.0, 96.0)
LIMIT_SHARES: Final = (0.4, 0.55, 0.7, 0.85, 1.0, 1.2)
LOADS: Final = (0.4, 0.55, 0.7, 0.85, 1.0)
SENSITIVITIES: Final = (0.3, 0.45, 0.6, 0.8, 0.95)

BASELINES: Final[Mapping[str, Rival]] = {
    "hpa-kv": Rival(
        description="HPA on the KV cache usage of each pod",
        knob="KV usage of a replica",
        default=0.7,
        factory=lambda knob, _: KvUsage(target=knob),
    ),
    "true-rate": Rival(
        description="arrivals of a minute over the true goodput, which it is handed",
        knob="share of the goodput to use",
        default=0.85,
        factory=lambda knob, _: TrueRate(load=knob),
    ),
}
KEDA: Final[Mapping[str, Rival]] = {
    "keda-queue": Rival(
        description="KEDA on waiting requests, as in vLLM's production-stack",
        knob="waiting requests of a replica",
        default=5,
        factory=lambda knob, _: queue(knob),
    ),
    "llmd-token": Rival(
        description="llm-d's token-aware law on KEDA: seconds of prefill that wait, and KV usage",
        knob="seconds of prefill waiting for a replica",
        default=1.5,
        factory=token_law,
    ),
}
PLANNERS: Final[Mapping[str, Rival]] = {
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
    "wva1": Rival(
        description="llm-d's Workload Variant Autoscaler, first analyzer: spare KV and queue",
        knob="KV usage of a saturated replica",
        default=0.8,
        factory=lambda knob, interval_s: Saturation(full_kv=knob, scrape_interval_s=interval_s),
    ),
    "wva2": Rival(
        description="the same, second analyzer: tokens over the capacity in tokens",
        knob="utilization above which it goes up",
        default=0.85,
        factory=lambda knob, interval_s: TokenSaturation(load=knob, scrape_interval_s=interval_s),
    ),
    "dynamo-hybrid": Rival(
        description="NVIDIA Dynamo's planner, in both of its modes, as by default",
        knob="share of the limits to keep with one replica less",
        default=0.8,
        factory=lambda knob, _: ReadsEngines(Planner(sensitivity=knob)),
    ),
}


SERVERS: Final[Mapping[str, Rival]] = {
    "ray": Rival(
        description="Ray Serve: ongoing requests of half a minute",
        knob="ongoing requests of a replica",
        default=2,
        factory=lambda knob, _: ray_serve(knob),
    ),
    "aibrix-kpa": Rival(
        description="AIBrix's KPA on KV usage",
        knob="KV usage of a replica",
        default=0.5,
        factory=lambda knob, _: ReadsEngines(Kpa(target=knob)),
    ),
    "aibrix-apa": Rival(
        description="AIBrix's APA on KV usage",
        knob="KV usage of a replica",
        default=0.5,
        factory=lambda knob, _: ReadsEngines(Apa(target=knob)),
    ),
    "kubeai": Rival(
        description="KubeAI: active requests of ten minutes",
        knob="active requests of a replica",
        default=100,
        factory=lambda knob, _: kubeai(knob),
    ),
}
OTHERS: Final[Mapping[str, Rival]] = {**BASELINES, **KEDA, **PLANNERS, **SERVERS}
ALL: Final[Mapping[str, Rival]] = {**RIVALS, **OTHERS}
SWEEPS: Final[Mapping[str, tuple[float, ...]]] = {
    "hpa-concurrency": REQUESTS,
    "keda-epp-queue": REQUESTS,
    "llmd-slo": (0.25, 0.35, 0.45, 0.55, 0.7, 0.85),
    "wva-queueing": LIMIT_SHARES,
    "wva-throughput": LOADS,
    "llm-scaling-manager": LOADS,
    "dynamo-classic": LIMIT_SHARES,
    "ray": (2.0, 5.0, *REQUESTS),
    "hpa-kv": KV_SHARES,
    "true-rate": (0.5, 0.6, 0.7, 0.8, 0.85, 0.95),
    "keda-queue": (0.5, 1, 2, 5, 10, 20),
    "llmd-token": (0.25, 0.5, 1.0, 1.5, 3.0),
    "wva1": (0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
    "wva2": LOADS,
    "dynamo-hybrid": SENSITIVITIES,
    "aibrix-kpa": KV_SHARES,
    "aibrix-apa": KV_SHARES,
    "kubeai": (*REQUESTS, 100.0),
}
"""Values of each knob that are tried for the frontier of cost and attainment."""
