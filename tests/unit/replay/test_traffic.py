from itertools import pairwise

import pytest

from rival_builders import piecewise
from tonnage.replay.traffic import TrafficSource, diurnal, traffic
from tonnage.sizing.workload import Lengths, Workload

SHORT = Workload(prompt=Lengths(mean_tokens=500, p99_tokens=1500), output_tokens=100)
LONG = Workload(prompt=Lengths(mean_tokens=4000), output_tokens=400, cached_fraction=0.5)


def drawn(rate, shapes=((0.0, SHORT),), *, duration_s=2000.0, scv=1.0, seed=0):
    source = TrafficSource(rate=rate, shapes=shapes, arrival_scv=scv)
    return traffic(source, duration_s=duration_s, context_tokens=8192, seed=seed)


def mean(values):
    return sum(values) / len(values)


def test_as_many_come_as_the_rate_says_and_as_often_in_a_burst():
    found = drawn(piecewise([(0, 5.0), (1000, 10.0)]))

    early = sum(at_s < 1000 for at_s in found.arrival_s)
    assert early == pytest.approx(5000, rel=0.05)
    assert found.num_requests - early == pytest.approx(10_000, rel=0.05)
    assert list(found.arrival_s) == sorted(found.arrival_s)


def test_a_diurnal_rate_brings_most_at_its_peak():
    found = drawn(diurnal(10, swing=0.6, period_s=2000))

    by_quarter = [
        sum(q * 500 <= at_s < (q + 1) * 500 for at_s in found.arrival_s) for q in range(4)
    ]
    # The mean of a quarter is 10 +- 6 * 2 / pi.
    assert by_quarter == pytest.approx([6910, 6910, 3090, 3090], rel=0.06)


@pytest.mark.parametrize("scv", [1.0, 4.0])
def test_gaps_vary_as_much_as_is_asked(scv):
    arrival_s = drawn(lambda _: 10, scv=scv).arrival_s
    gaps = [late - early for early, late in pairwise(arrival_s)]

    variance = mean([gap**2 for gap in gaps]) - mean(gaps) ** 2
    assert variance / mean(gaps) ** 2 == pytest.approx(scv, rel=0.1)


def test_lengths_are_of_the_shape_of_their_time():
    found = drawn(lambda _: 10, ((0.0, SHORT), (1000.0, LONG)))

    split = sum(at_s <= 1000 for at_s in found.arrival_s)
    assert mean(found.prompt_tokens[:split]) == pytest.approx(500, rel=0.03)
    assert mean(found.output_tokens[:split]) == pytest.approx(100, rel=0.03)
    assert set(found.prompt_tokens[split:]) == {4000}
    assert set(found.cached_tokens[split:]) == {2000}
    assert mean(found.output_tokens[split:]) == pytest.approx(400, rel=0.03)
    assert found.shapes == ((0.0, SHORT), (1000.0, LONG))


def test_a_seed_tells_all_and_another_one_nothing():
    assert drawn(lambda _: 5).arrival_s == drawn(lambda _: 5).arrival_s
    assert drawn(lambda _: 5).arrival_s != drawn(lambda _: 5, seed=1).arrival_s
