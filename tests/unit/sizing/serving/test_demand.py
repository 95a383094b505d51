"""What requests meet at the demand asked: percentiles, load, and what a single one meets."""

import pytest

from builders import a_replica, a_workload, an_slo
from tonnage.sizing.serving.goodput import goodput
from tonnage.sizing.serving.staffing import service_at
from tonnage.sizing.serving.trial import SHOWN
from tonnage.sizing.workload import Lengths, Routing
from trials import a_server_of, a_trial

SERVICE, POOLED = Routing.SERVICE, Routing.LEAST_OUTSTANDING
ONE_LENGTH = a_workload(
    prompt=Lengths(mean_tokens=1_000), output_tokens=50, output_second_moment=2500.0
)
TRIAL = a_trial(replica=a_replica(max_num_seqs=16), workload=ONE_LENGTH, slo=an_slo(ttft_s=0.3))


def test_at_next_to_no_load_every_percentile_is_that_of_one_alone():
    found = service_at(TRIAL, 0.01, 1, SERVICE)

    # 16 GB at 3 TB/s, and 1,000 tokens of 16 GFLOP at 1 PFLOP/s; lengths are rounded to 1 %.
    alone_s = 16e9 / 3e12 + 1_000 * 16e9 / 1e15
    assert [each.ttft_s for each in found.latencies] == pytest.approx([alone_s] * 3, rel=0.01)
    assert found.at(0.5).tpot_s == pytest.approx((16e9 + 1_025 * 131_072) / 3e12, rel=0.01)


def test_shows_the_percentiles_of_the_slo_beside_the_usual_ones():
    found = service_at(a_trial(slo=an_slo(ttft_s=2, quantile=0.9)), 1.0, 1, SERVICE)

    assert [each.quantile for each in found.latencies] == sorted({0.9, *SHOWN})


def test_more_demand_is_more_load_and_later():
    light, heavy = service_at(TRIAL, 2.0, 1, SERVICE), service_at(TRIAL, 12.0, 1, SERVICE)

    assert light.at(0.95).ttft_s < heavy.at(0.95).ttft_s
    assert light.busy < heavy.busy <= 1
    assert light.running < heavy.running
    assert light.kv_usage < heavy.kv_usage


@pytest.mark.parametrize("routing", [SERVICE, POOLED])
def test_at_goodput_the_percentile_of_the_target_is_about_its_limit(routing):
    rate = goodput(TRIAL, 10.0).requests_per_s

    found = service_at(TRIAL, rate, 1, routing)

    assert found.at(0.95).ttft_s == pytest.approx(0.3, rel=0.05)


def test_replicas_behind_a_service_each_meet_their_part_of_the_rate():
    one, four = service_at(TRIAL, 5.0, 1, SERVICE), service_at(TRIAL, 20.0, 4, SERVICE)

    assert four.latencies == one.latencies
    assert (four.requests_per_s, four.num_replicas) == (20.0, 4)


def test_pooled_replicas_wait_less():
    alone, pooled = service_at(TRIAL, 40.0, 4, SERVICE), service_at(TRIAL, 40.0, 4, POOLED)

    assert pooled.at(0.95).ttft_s < alone.at(0.95).ttft_s


def test_of_more_replicas_than_are_run_together_each_has_as_much_to_do():
    many, most = service_at(TRIAL, 320.0, 32, POOLED), service_at(TRIAL, 640.0, 64, POOLED)

    assert most.latencies == many.latencies


def test_answers_of_one_token_have_no_tpot():
    found = service_at(a_server_of(0.1, slo=an_slo(ttft_s=0.5)), 3.0, 1, SERVICE)

    assert {each.tpot_s for each in found.latencies} == {None}
    assert found.busy == pytest.approx(0.3, rel=0.03)
