"""KEDA as in the benchmarks of llm-d's autoscaler: KV usage 0.7 and queue 2, one pod at a time.

Follows llm-d/llm-d-workload-variant-autoscaler docs/benchmark.md: one pod more in 180 s, one less
in 300 s.
"""

from typing import Final

from replay_others.keda import DOWN_BY_ONE, UP_BY_ONE, total_of
from tonnage.replay.rivals.hpa import Hpa
from tonnage.replay.rivals.keda import Keda
from tonnage.replay.rivals.rule import gauges

QUEUE_THRESHOLD: Final = 2.0


def bench(kv_usage: float) -> Keda:
    """Return both triggers, with this threshold for the KV usage of a replica."""
    return Keda(
        triggers=((total_of("kv_usage"), kv_usage), (total_of("waiting"), QUEUE_THRESHOLD)),
        table=gauges("kv_usage", "waiting"),
        hpa=Hpa(up=UP_BY_ONE, down=DOWN_BY_ONE),
    )
