"""New objects of which each asks another question, through the whole loop, in memory."""

import time
from dataclasses import dataclass, field

from fleet_builders import NOW_S, a_manifest
from kube_double import KubeDouble
from loop_builders import a_loop_asking, show
from tonnage.cluster.kube import MODEL_DEPLOYMENTS
from tonnage.cluster.questions import Answers
from tonnage.fleet.loop import Loop

NUM_NAMESPACES = 20
TICK_S = 15.0
MOST_TICKS = 10_000
PROMPTS, SPEC_TTFT_MS = 100, 2000


def a_spec(question: int) -> dict:
    """Return lengths and SLO that no other question has."""
    prompt, ttft_ms = 1000 + 25 * (question % PROMPTS), SPEC_TTFT_MS + question // PROMPTS
    return {
        "demand": {
            "requestsPerSecond": 1,
            "promptTokens": {"mean": prompt, "p99": 2 * prompt},
            "outputTokens": {"mean": 300},
        },
        "slo": {"timeToFirstToken": {"p95": f"{ttft_ms}ms"}, "timePerOutputToken": {"p95": "50ms"}},
    }


@dataclass(kw_only=True)
class NewFleet:
    """Objects that nothing was made for; Prometheus knows nothing of them."""

    number: int
    kube: KubeDouble = field(default_factory=KubeDouble)
    now_s: float = NOW_S
    leads: bool = True

    def __post_init__(self) -> None:
        for each in range(self.number):
            name, namespace = f"m{each:05}", f"team-{each % NUM_NAMESPACES:02}"
            body = a_manifest(name, namespace=namespace, **a_spec(each))
            self.kube.put(MODEL_DEPLOYMENTS.path(namespace, name), body)

    def loop(self) -> Loop:
        return a_loop_asking(lambda sets, kept: Answers(), self, writes_per_s=1000)

    def num_planned(self) -> int:
        bodies = self.kube.list(MODEL_DEPLOYMENTS.path(None))
        return sum(bool((each.get("status") or {}).get("plan")) for each in bodies)


def measured(number: int) -> dict[str, float]:
    """Tick until every object has a plan; return ticks, and CPU and wall seconds of them."""
    fleet = NewFleet(number=number)
    loop, walls, cpu_s = fleet.loop(), list[float](), 0.0
    while fleet.num_planned() < number and len(walls) < MOST_TICKS:
        fleet.now_s += TICK_S
        show(loop, fleet)
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        loop.tick()
        walls.append(time.perf_counter() - began_s)
        cpu_s += time.process_time() - began_cpu_s
    return {
        "ticks": len(walls),
        "longest_s": max(walls),
        "mean_s": sum(walls) / len(walls),
        "cpu_s": cpu_s,
        "budget_s": loop.settings.search_budget_s,
    }
