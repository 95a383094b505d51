"""What Tonnage keeps at what cost on a small fixed set, so that no change makes it worse unseen.

8 billion parameters on H100, p95 targets (searches for p99 take twice as long), engines as fast as
believed, cold starts of two minutes, one seed. The bounds are what was measured, less 0.5
percentage points of the requests kept and plus 3 % of the GPU-hours. A change that is better moves
them; one that trades the one for the other says so where it moves them. Seeds differ by more than
that: where a change that should not matter fails, compare several with ``tests/bench/replay.py``.
"""

from dataclasses import dataclass, replace

import pytest
from replay_cases import CHAT, manifest

from tonnage.api.objects import parse_model_deployment
from tonnage.replay.cluster import StartupTime
from tonnage.replay.policies import Scenario
from tonnage.replay.policy import Policy
from tonnage.replay.simulation import SyntheticWorkload, TraceWorkload, first_plan
from tonnage.replay.traces import Trace, window_of
from tonnage.replay.traffic import SHAPES, SWING, Traffic, TrafficSource, diurnal, traffic
from tonnage.sizing.expected import expected_workload
from tonnage.units import HOUR_S


def a_scenario(requests_per_s):
    """The requests are those of the spec until others are put in their place."""
    model = parse_model_deployment(manifest(CHAT, requests_per_s, quantile="p95"))
    return Scenario(
        model=model,
        requests=SyntheticWorkload(shape=SHAPES["steady"], requests_per_s=requests_per_s),
        start=StartupTime(mean_s=120.0),
        planned=first_plan(model),
        target=0.95,
    )


def shape(name, requests_per_s):
    return replace(
        a_scenario(requests_per_s),
        requests=SyntheticWorkload(shape=SHAPES[name], requests_per_s=requests_per_s),
    )


def of_trace(found: Traffic, duration_s) -> TraceWorkload:
    trace = Trace(
        arrival_s=found.arrival_s,
        prompt_tokens=found.prompt_tokens,
        output_tokens=found.output_tokens,
    )
    return TraceWorkload(trace=window_of(trace, until_s=duration_s), duration_s=duration_s)


def drift_without_its_end(requests_per_s):
    """Until lengths have grown; what follows would take as long again to search."""
    found, duration_s = shape("drift", requests_per_s), 1.5 * HOUR_S
    return replace(found, requests=of_trace(found.drawn, duration_s))


def day_of_two_hours(requests_per_s):
    found, duration_s = a_scenario(requests_per_s), 2.0 * HOUR_S
    drawn = traffic(
        TrafficSource(
            rate=diurnal(requests_per_s, swing=SWING, period_s=duration_s),
            shapes=[(0.0, expected_workload(found.model.spec))],
        ),
        duration_s=duration_s,
        context_tokens=found.model.spec.context_length,
    )
    return replace(found, requests=of_trace(drawn, duration_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    least_kept: float
    most_gpu_hours: float


@pytest.mark.parametrize(
    ("make", "bounds"),
    [
        pytest.param(
            lambda: shape("step", 10.0),
            # Measured: 91.89 %, 2.365. Where the first start of 120 s was believed whole, not as a
            # vote beside the 240 s expected, this seed kept 92.98 % at 2.482.
            Bounds(least_kept=0.9139, most_gpu_hours=2.436),
            id="step",
        ),
        pytest.param(
            lambda: drift_without_its_end(2.5),
            Bounds(least_kept=0.9862, most_gpu_hours=2.322),  # measured: 99.11 %, 2.254
            id="drift",
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            lambda: day_of_two_hours(10.0),
            Bounds(least_kept=0.9950, most_gpu_hours=4.788),  # measured: 100.00 %, 4.649
            id="diurnal",
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            lambda: shape("bursts", 10.0),
            # Measured: 95.49 %, 4.650. Where the reserve was not held to the height of bursts this
            # seed kept 96.04 % at 4.462; six seeds 96.1 % at 4.54 in the mean, now 95.7 at 4.50.
            Bounds(least_kept=0.9499, most_gpu_hours=4.790),
            id="bursts",
        ),
    ],
)
def test_no_change_keeps_less_or_costs_more_unseen(make, bounds):
    found = make().outcome_of(Policy(name="tonnage"))

    assert found.faults == ()
    assert found.judged.attainment >= bounds.least_kept
    assert found.judged.gpu_hours <= bounds.most_gpu_hours
