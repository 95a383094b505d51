"""KEDA on waiting requests alone, as vLLM's own chart ships it.

Follows vllm-project/production-stack helm/values.yaml (2026-08-05): a threshold of 5, polled every
15 s. Its query has one series for each pod, where the scaler wants one value: they are summed here.
"""

from replay_others.keda import total_of
from tonnage.replay.rivals.keda import Keda
from tonnage.replay.rivals.rule import gauges


def queue(threshold: float) -> Keda:
    """Return the trigger, with so many requests waiting for each replica."""
    return Keda(triggers=((total_of("waiting"), threshold),), table=gauges("waiting"))
