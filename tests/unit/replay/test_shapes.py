from functools import partial

import pytest

from tonnage.replay.traffic import SHAPES
from tonnage.sizing.workload import Lengths, Workload

WORKLOAD = Workload(prompt=Lengths(mean_tokens=500, p99_tokens=1500), output_tokens=100)


def drawn(name, rate=4.0, **changes):
    return SHAPES[name].draw(WORKLOAD, rate, context_tokens=32_768, **changes)


def count(found, from_s, until_s):
    return sum(from_s <= at_s < until_s for at_s in found.arrival_s)


def mean(values):
    return sum(values) / len(values)


AROUND = [name for name, each in SHAPES.items() if name != "diurnal"]


@pytest.mark.parametrize("name", AROUND)
def test_a_shape_brings_the_mean_rate_of_the_spec(name):
    found = drawn(name)

    # Poisson, of 14,400 requests or more.
    assert found.num_requests / found.duration_s == pytest.approx(4.0, rel=0.04)
    assert len(found.too_long_s) == 0


def test_a_step_goes_from_half_to_one_and_a_half_times_the_rate():
    found = drawn("step")

    assert count(found, 0, 1800) == pytest.approx(2 * 1800, rel=0.06)
    assert count(found, 1800, 3600) == pytest.approx(6 * 1800, rel=0.06)


def test_a_ramp_takes_an_hour():
    rate = SHAPES["ramp"].rate

    assert [rate(4.0, at_s) for at_s in (0, 900, 2700, 4500, 5000)] == [2.0, 2.0, 4.0, 6.0, 6.0]


def test_a_day_swings_around_the_rate():
    found = SHAPES["diurnal"]

    assert found.duration_s == 86_400
    assert found.rate(0.5, 21_600) == pytest.approx(0.8)
    assert found.rate(0.5, 64_800) == pytest.approx(0.2)


def test_lengths_drift_to_four_times_and_the_rate_stays():
    traffic = drawn("drift")
    first = [n for n, at_s in enumerate(traffic.arrival_s) if at_s < 1800]
    last = [n for n, at_s in enumerate(traffic.arrival_s) if at_s >= 5400]

    assert mean([traffic.prompt_tokens[n] for n in first]) == pytest.approx(500, rel=0.05)
    assert mean([traffic.prompt_tokens[n] for n in last]) == pytest.approx(2000, rel=0.05)
    assert mean([traffic.output_tokens[n] for n in last]) == pytest.approx(400, rel=0.06)
    assert len(last) == pytest.approx(4 * 1800, rel=0.05)


def test_bursts_are_five_times_as_dense_and_shorter_than_a_cold_start():
    rate = partial(SHAPES["bursts"].rate, 4.0)

    assert rate(285) == 5 * rate(100) == rate(585)
    assert rate(300) == rate(100)
