"""All rivals by name, each with what it is, its one knob and the values to sweep."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from tonnage.replay.rivals.aibrix import Apa, Kpa
from tonnage.replay.rivals.dynamo import Planner
from tonnage.replay.rivals.dynamo_classic import ClassicPlanner
from tonnage.replay.rivals.hpa_concurrency import Concurrency
from tonnage.replay.rivals.hpa_kv import KvUsage
from tonnage.replay.rivals.keda_bench import bench
from tonnage.replay.rivals.keda_epp import epp_queue, epp_saturation
from tonnage.replay.rivals.keda_queue import queue
from tonnage.replay.rivals.kubeai import kubeai
from tonnage.replay.rivals.llmd_slo import SloLaw
from tonnage.replay.rivals.llmd_token import token_law
from tonnage.replay.rivals.ray_serve import ray_serve
from tonnage.replay.rivals.rule import Rule
from tonnage.replay.rivals.skyserve import SkyServe
from tonnage.replay.rivals.static import Static
from tonnage.replay.rivals.true_rate import TrueRate
from tonnage.replay.rivals.wva1 import Saturation
from tonnage.replay.rivals.wva2 import TokenSaturation
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


KV_SHARES: Final = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
REQUESTS: Final = (8.0, 12.0, 16.0, 24.0, 32.0, 45.0, 64.0, 96.0)
LIMIT_SHARES: Final = (0.4, 0.55, 0.7, 0.85, 1.0, 1.2)

BASELINES: Final[Mapping[str, Rival]] = {
    "static": Rival(
        description="as many replicas as there are at the start",
        knob="times the replicas at the start",
        default=1.0,
        sweep=(),
        factory=lambda knob, _: Static(factor=knob),
    ),
    "hpa-kv": Rival(
        description="HPA on the KV cache usage of each pod",
        knob="KV usage of a replica",
        default=0.7,
        sweep=KV_SHARES,
        factory=lambda knob, _: KvUsage(target=knob),
    ),
    "hpa-concurrency": Rival(
        description="HPA on running and waiting requests of each pod",
        knob="requests of a replica",
        default=32,
        sweep=REQUESTS,
        factory=lambda knob, _: Concurrency(target=knob),
    ),
    "true-rate": Rival(
        description="arrivals of a minute over the true goodput, which it is handed",
        knob="share of the goodput to use",
        default=0.85,
        sweep=(0.5, 0.6, 0.7, 0.8, 0.85, 0.95),
        factory=lambda knob, _: TrueRate(load=knob),
    ),
}
KEDA: Final[Mapping[str, Rival]] = {
    "keda-queue": Rival(
        description="KEDA on waiting requests, as in vLLM's production-stack",
        knob="waiting requests of a replica",
        default=5,
        sweep=(0.5, 1, 2, 5, 10, 20),
        factory=lambda knob, _: queue(knob),
    ),
    "keda-epp-queue": Rival(
        description="KEDA on the queue of llm-d's router and on requests running",
        knob="running requests of a replica",
        default=16,
        sweep=REQUESTS,
        factory=lambda knob, _: epp_queue(knob),
    ),
    "keda-epp-saturation": Rival(
        description="KEDA on the saturation of llm-d's pool and on requests running",
        knob="running requests of a replica",
        default=16,
        sweep=REQUESTS,
        factory=lambda knob, _: epp_saturation(knob),
    ),
    "keda-bench": Rival(
        description="KEDA on KV usage and queue, one pod at a time, as llm-d benchmarks it",
        knob="KV usage of a replica",
        default=0.7,
        sweep=KV_SHARES,
        factory=lambda knob, _: bench(knob),
    ),
    "llmd-slo": Rival(
        description="llm-d's SLO-aware law on KEDA: P90 latencies over their limits",
        knob="share of the limit above which it goes up",
        default=0.55,
        sweep=(0.25, 0.35, 0.45, 0.55, 0.7, 0.85),
        factory=lambda knob, interval_s: SloLaw(threshold=knob, scrape_interval_s=interval_s),
    ),
    "llmd-token": Rival(
        description="llm-d's token-aware law on KEDA: seconds of prefill that wait, and KV usage",
        knob="seconds of prefill waiting for a replica",
        default=1.5,
        sweep=(0.25, 0.5, 1.0, 1.5, 3.0),
        factory=token_law,
    ),
}
PLANNERS: Final[Mapping[str, Rival]] = {
    "wva1": Rival(
        description="llm-d's Workload Variant Autoscaler, first analyzer: spare KV and queue",
        knob="KV usage of a saturated replica",
        default=0.8,
        sweep=(0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
        factory=lambda knob, interval_s: Saturation(full_kv=knob, scrape_interval_s=interval_s),
    ),
    "wva2": Rival(
        description="the same, second analyzer: tokens over the capacity in tokens",
        knob="utilization above which it goes up",
        default=0.85,
        sweep=(0.4, 0.55, 0.7, 0.85, 1.0),
        factory=lambda knob, interval_s: TokenSaturation(load=knob, scrape_interval_s=interval_s),
    ),
    "wva-queueing": Rival(
        description="the same, queueing model with a Kalman filter, which it ships switched off",
        knob="share of the SLO's limits to keep",
        default=1.0,
        sweep=LIMIT_SHARES,
        factory=lambda knob, interval_s: QueueingModel(share=knob, scrape_interval_s=interval_s),
    ),
    "wva-throughput": Rival(
        description="the same, throughput analyzer: output tokens over what a full cache makes",
        knob="utilization above which it goes up",
        default=0.85,
        sweep=(0.4, 0.55, 0.7, 0.85, 1.0),
        factory=lambda knob, interval_s: Throughput(load=knob, scrape_interval_s=interval_s),
    ),
    "dynamo-classic": Rival(
        description="NVIDIA Dynamo's first planner: a profile, corrected by what is measured",
        knob="share of the SLO's limits to keep",
        default=1.0,
        sweep=LIMIT_SHARES,
        factory=lambda knob, _: ClassicPlanner(share=knob),
    ),
    "dynamo-throughput": Rival(
        description="NVIDIA Dynamo's planner, throughput mode",
        knob="share of the SLO's limits to keep",
        default=1.0,
        sweep=LIMIT_SHARES,
        factory=lambda knob, _: Planner(has_load=False, has_throughput=True, share=knob),
    ),
    "dynamo-load": Rival(
        description="NVIDIA Dynamo's planner, load mode",
        knob="share of the limits to keep with one replica less",
        default=0.8,
        sweep=(0.3, 0.45, 0.6, 0.8, 0.95),
        factory=lambda knob, _: Planner(has_load=True, has_throughput=False, sensitivity=knob),
    ),
    "dynamo-hybrid": Rival(
        description="NVIDIA Dynamo's planner, load mode over the floor of throughput mode",
        knob="share of the limits to keep with one replica less",
        default=0.8,
        sweep=(0.3, 0.45, 0.6, 0.8, 0.95),
        factory=lambda knob, _: Planner(has_load=True, has_throughput=True, sensitivity=knob),
    ),
}


def _kpa(knob: float, _: float, *, sums: bool) -> Rule:
    return Kpa(target=knob, sums=sums)


SERVERS: Final[Mapping[str, Rival]] = {
    "aibrix-kpa": Rival(
        description="AIBrix's KPA on KV usage, as it is coded: the mean of pods",
        knob="KV usage of a replica",
        default=0.5,
        sweep=KV_SHARES,
        factory=partial(_kpa, sums=False),
    ),
    "aibrix-kpa-total": Rival(
        description="AIBrix's KPA on KV usage, as Knative means it: the sum of pods",
        knob="KV usage of a replica",
        default=0.5,
        sweep=KV_SHARES,
        factory=partial(_kpa, sums=True),
    ),
    "aibrix-apa": Rival(
        description="AIBrix's APA on KV usage",
        knob="KV usage of a replica",
        default=0.5,
        sweep=KV_SHARES,
        factory=lambda knob, _: Apa(target=knob),
    ),
    "kubeai": Rival(
        description="KubeAI: active requests of ten minutes",
        knob="active requests of a replica",
        default=100,
        sweep=(*REQUESTS, 100.0),
        factory=lambda knob, _: kubeai(knob),
    ),
    "ray": Rival(
        description="Ray Serve: ongoing requests of half a minute",
        knob="ongoing requests of a replica",
        default=2,
        sweep=(2.0, 5.0, *REQUESTS),
        factory=lambda knob, _: ray_serve(knob),
    ),
    "skyserve": Rival(
        description="SkyServe: arrivals of a minute over the goodput that is believed",
        knob="share of the goodput to use",
        default=1.0,
        sweep=(0.5, 0.6, 0.7, 0.85, 1.0),
        factory=lambda knob, _: SkyServe(load=knob),
    ),
}
RIVALS: Final[Mapping[str, Rival]] = {**BASELINES, **KEDA, **PLANNERS, **SERVERS}
