"""What the analyzers of llm-d's Workload Variant Autoscaler share.

Every 15 s an analyzer says how many replicas it desires, and an HPA on that gauge brings them:
AverageValue 1, 10 pods in 150 s, a window of 240 s on the way down, as in docs/benchmark.md.
Lengths are means over five minutes. In their favour the HPA's tolerance is
left out: from ten replicas on it would swallow a step of one, which analyzers wait for.
"""

import math
from dataclasses import dataclass, field
from typing import Final

from tonnage.replay.prometheus import Query
from tonnage.replay.rivals.hpa import Behavior, Hpa, Rate
from tonnage.replay.rivals.rule import Signals, rates, scrapes_in, whole

INTERVAL_S: Final = 15.0
PEAK_S: Final = 60.0
LENGTHS_S: Final = 300.0
BAND: Final = 0.70 / 0.85
"""Of the utilization below which it goes down over that above which it goes up."""
NEW_SHAPE: Final = 0.20
"""From which on either mean length is another."""
RATES: Final = (Rate(pods=10, period_s=150.0),)


@dataclass(slots=True, kw_only=True)
class Gauge:
    """The number desired, and the HPA that follows it."""

    hpa: Hpa = field(
        default_factory=lambda: Hpa(
            up=Behavior(window_s=0.0, rates=RATES), down=Behavior(window_s=240.0, rates=RATES)
        )
    )
    desired: int | None = None

    def replicas(self, signals: Signals, desired: int) -> int:
        told = signals.told
        self.desired = min(told.max_replicas, max(told.min_replicas, desired))
        return self.hpa.replicas(signals, self.desired)


def desired_replicas(signals: Signals, demand: float, each: float, *, load: float) -> int:
    """Return replicas of which demand takes ``load`` at most; ``each``: supply of one.

    What is missing is added to those that are there or on their way; what is spare of those that
    are Ready is taken away.
    """
    coming = signals.ready + signals.pending
    missing = demand / load - coming * each
    if missing > 0:
        return coming + whole(missing / each)
    spare = signals.ready * each - demand / (BAND * load)
    return coming - math.floor(max(0.0, spare) / each)


def lengths(scrape_interval_s: float) -> dict[str, Query]:
    """Return the queries of the lengths of requests that finished."""
    scrapes = scrapes_in(LENGTHS_S, scrape_interval_s)
    metrics = {
        "input": "request_prompt_tokens_sum",
        "output": "request_generation_tokens_sum",
        "finished": "request_generation_tokens_count",
    }
    return rates(metrics, scrapes=scrapes)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanRequest:
    """Mean tokens of a request; 0: none has finished."""

    input_tokens: float = 0.0
    output_tokens: float = 0.0


def shapes(signals: Signals) -> dict[str, MeanRequest]:
    """Return the mean request of each pod that has finished one."""
    inputs, outputs = signals.by_pod("input"), signals.by_pod("output")
    return {
        pod: MeanRequest(input_tokens=inputs[pod] / finished, output_tokens=outputs[pod] / finished)
        for pod, finished in signals.by_pod("finished").items()
        if finished > 0 and pod in inputs and pod in outputs
    }


def mean_shape(found: dict[str, MeanRequest]) -> MeanRequest:
    """Return the mean of pods."""
    if not found:
        return MeanRequest()
    each = found.values()
    return MeanRequest(
        input_tokens=sum(shape.input_tokens for shape in each) / len(found),
        output_tokens=sum(shape.output_tokens for shape in each) / len(found),
    )


def is_other(shape: MeanRequest, known: MeanRequest) -> bool:
    pairs = (
        (shape.input_tokens, known.input_tokens),
        (shape.output_tokens, known.output_tokens),
    )
    return any(abs(now - before) > NEW_SHAPE * before for now, before in pairs)
