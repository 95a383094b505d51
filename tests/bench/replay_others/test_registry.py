import pytest

from replay_others.registry import ALL, OTHERS
from rival_builders import DURATION_S, simulated
from slo_shares import slo_shares
from tonnage.replay.policy import RIVALS

pytestmark = pytest.mark.thorough


def test_the_benchmark_compares_what_the_product_compares_and_more():
    assert ALL.keys() == RIVALS.keys() | OTHERS.keys()
    assert not RIVALS.keys() & OTHERS.keys()


@pytest.mark.parametrize("name", OTHERS)
def test_a_rival_runs_and_stays_within_the_limits(name):
    record = simulated(OTHERS[name])

    assert record.faults == []
    assert all(1 <= moment.replicas <= 6 for moment in record.moments)
    assert slo_shares(record, 0, DURATION_S).num_requests == record.cluster.traffic.num_requests


@pytest.mark.parametrize("name", ALL)
def test_a_rival_starts_anew_in_each_run(name):
    rival = ALL[name]

    assert rival.factory(rival.default, 15.0) is not rival.factory(rival.default, 15.0)
