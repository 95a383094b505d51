"""What becomes of a rate: queues whose answer is known, and what is counted of a run."""

import math
from dataclasses import replace
from statistics import fmean

import pytest

from builders import a_replica, a_workload, an_slo
from tonnage.sizing.options import Speculation
from tonnage.sizing.serving.trial import BLOCKS, Count, TrialRun, engine_limits
from tonnage.sizing.workload import Lengths, Routing, Slo, Target
from trials import a_server_of, a_trial


def waits_longer(rho, wait, service=1.0):
    """Return P(W > wait) of M/D/1 by Erlang's sum: ``F(t) = (1 - rho) * sum of (-1)^k ...``."""
    rate, total = rho / service, 0.0
    for k in range(math.floor(wait / service) + 1):
        x = rate * (k * service - wait)
        total += x**k / math.factorial(k) * math.exp(-x)
    return 1 - (1 - rho) * total


def quantile(values, q):
    return values[math.ceil(q * len(values)) - 1]


def latencies_s(run):
    """TTFT and TPOT of the requests that count, each in ascending order."""
    return tuple(map(sorted, run.table.latencies_s(range(run.first, run.last))))


class TestOneServer:
    """One slot, one output token and a step of 100 ms: M/D/1."""

    @pytest.mark.parametrize("rho", [0.3, 0.6, 0.8])
    def test_lets_as_many_wait_as_the_formula_says(self, rho):
        run = TrialRun(a_server_of(0.1), rho / 0.1, 40_000)
        first_s, _ = latencies_s(run)

        for wait in (0.5, 1.0, 2.0):
            late = sum(each - 0.1 > 0.1 * wait for each in first_s) / len(first_s)
            assert late == pytest.approx(waits_longer(rho, wait), rel=0.06, abs=0.004)

    @pytest.mark.parametrize("rho", [0.3, 0.6])
    def test_keeps_them_as_long_in_the_mean(self, rho):
        first_s, _ = latencies_s(TrialRun(a_server_of(0.1), rho / 0.1, 40_000))

        # Pollaczek and Khinchine: rho / (2 * (1 - rho)) services, and one's own.
        assert fmean(first_s) == pytest.approx(0.1 * (1 + rho / (2 * (1 - rho))), rel=0.03)

    def test_is_busy_for_its_share_of_the_time(self):
        outcome = TrialRun(a_server_of(0.1), 6.0, 20_000).outcome()

        assert outcome.busy == pytest.approx(0.6, rel=0.02)

    def test_of_two_replicas_behind_a_service_is_the_same_with_half_the_rate(self):
        two = a_server_of(0.1, num_replicas=2, routing=Routing.SERVICE)

        first_s, _ = latencies_s(TrialRun(two, 12.0, 40_000))

        assert fmean(first_s) == pytest.approx(0.1 * (1 + 0.6 / (2 * 0.4)), rel=0.04)

    def test_waits_less_where_two_replicas_pool(self):
        pooled = a_server_of(0.1, num_replicas=2, routing=Routing.LEAST_OUTSTANDING)

        first_s, _ = latencies_s(TrialRun(pooled, 12.0, 20_000))

        assert fmean(first_s) < 0.1 * (1 + 0.6 / (2 * 0.4)) * 0.8


def test_a_request_alone_takes_its_prefill_and_its_steps():
    # One in 1,000 s. 16 GB of weights at 3 TB/s are 5.33 ms; 2,000 prompt tokens of 16 GFLOP at
    # 1 PFLOP/s 32 ms; a token reads its context of 131,072 bytes each as well.
    one_length = a_workload(output_tokens=3, output_second_moment=9.0)
    first_s, tpot_s = latencies_s(TrialRun(a_trial(workload=one_length), 1e-3, 100))

    assert quantile(first_s, 0.5) == pytest.approx(16e9 / 3e12 + 2000 * 16e9 / 1e15)
    by_hand_s = (16e9 + 2001.5 * 131_072) / 3e12
    assert quantile(tpot_s, 0.5) == pytest.approx(by_hand_s, rel=1e-6)


def test_requests_of_one_token_count_and_keep_tpot_as_in_the_histogram_of_vllm():
    one = a_workload(output_tokens=1, output_second_moment=1.0)
    run = TrialRun(a_trial(workload=one), 1.0, 1_000)
    ttft, tpot = run.outcome().counts

    assert set(latencies_s(run)[1]) == {0.0}
    assert (sum(tpot.late), tpot.counted) == (0, ttft.counted)


class TestCounts:
    def test_of_late_requests_are_those_of_the_latencies(self):
        run = TrialRun(a_trial(), 8.0, 4_000)
        ttft, tpot = run.outcome().counts
        first_s, tpot_s = latencies_s(run)

        assert sum(ttft.late) == sum(each > 2 for each in first_s)
        assert sum(tpot.late) == pytest.approx(sum(each > 0.020 for each in tpot_s), abs=1)
        assert (ttft.counted, tpot.counted) == (len(first_s), len(tpot_s))

    def test_are_in_proportion_to_what_may_be_late(self):
        target = Target(quantile=0.95, limit_s=1)
        count = Count(target=target, is_ttft=True, late=(10,) * BLOCKS, counted=3_200)

        assert count.ratio == pytest.approx(1)
        assert count.standard_error == 0

    def test_tell_nothing_of_an_error_where_none_is_late(self):
        target = Target(quantile=0.95, limit_s=1)

        count = Count(target=target, is_ttft=True, late=(0,) * BLOCKS, counted=100)

        assert count.ratio == 0
        assert math.isinf(count.standard_error)

    def test_have_the_error_of_a_poisson_number_where_parts_are_independent(self):
        # 4, 6, 4, ...: of 80 late the parts say a variance of 16 * 16 / 15.
        target = Target(quantile=0.95, limit_s=1)
        count = Count(target=target, is_ttft=True, late=(4, 6) * (BLOCKS // 2), counted=1_600)

        assert count.standard_error == pytest.approx(math.sqrt(16 * 16 / 15) / 80)


class TestABacklog:
    def test_grows_where_more_comes_than_is_served(self):
        assert TrialRun(a_server_of(0.1), 12.0, 8_000).outcome().backlog > 1

    def test_does_not_where_less_comes(self):
        assert TrialRun(a_server_of(0.1), 8.0, 8_000).outcome().backlog < 0.1

    def test_alone_decides_without_a_target(self):
        offline = a_server_of(0.1, slo=Slo())

        assert TrialRun(offline, 12.0, 8_000).outcome().ratio > 1
        assert TrialRun(offline, 8.0, 8_000).outcome().ratio < 1


class TestTheLimits:
    def test_are_the_flags_and_the_cache_in_blocks(self):
        replica = a_replica(max_num_seqs=64, kv_pool_bytes=1_000 * 16 * 131_072)

        limits = engine_limits(a_trial(replica=replica))

        assert limits.max_num_seqs == 64
        assert limits.max_num_batched_tokens == 8192
        # 2,500 tokens of a typical sequence take 157 blocks of 16: a 157th of 1,000 is lost.
        assert limits.num_blocks == pytest.approx(1_000, rel=0.01)

    def test_hold_the_longest_request_whatever_the_estimate(self):
        limits = engine_limits(a_trial(replica=a_replica(max_num_seqs=4, kv_pool_bytes=1e6)))

        assert limits.num_blocks == 8192 // 16

    def test_never_have_more_slots_than_tokens(self):
        drafts = Speculation(method="ngram", num_draft_tokens=3, acceptance_rate=0.5)
        replica = a_replica(max_batched_tokens=100, speculation=drafts, max_num_seqs=64)

        assert engine_limits(a_trial(replica=replica)).max_num_seqs == 25


def test_the_requests_that_fill_and_drain_the_batch_are_not_counted():
    run = TrialRun(a_trial(), 6.0, 4_000)

    assert run.first >= 2 * run.peak_running
    assert run.last <= 4_000 - run.peak_running


def test_the_cache_is_the_fuller_the_longer_the_requests():
    short = TrialRun(a_trial(), 4.0, 2_000).outcome()
    longer = a_workload(prompt=Lengths(mean_tokens=4_000))
    long = TrialRun(a_trial(workload=longer), 4.0, 2_000).outcome()

    # Little: each request holds some 2,500 (4,500) of 381,000 tokens while it decodes.
    held = 2_500 * 131_072 / 50e9
    assert short.kv_usage == pytest.approx(short.running * held, rel=0.1)
    assert long.kv_usage > 1.5 * short.kv_usage


def test_a_small_cache_preempts():
    small = a_replica(max_num_seqs=64, kv_pool_bytes=50_000 * 131_072)
    trial = a_trial(replica=small, slo=an_slo(tpot_s=1))

    roomy = replace(trial, replica=a_replica(max_num_seqs=64))
    assert TrialRun(trial, 8.0, 2_000).table.num_preempted() > 0
    assert TrialRun(roomy, 2.0, 2_000).table.num_preempted() == 0


@pytest.mark.parametrize("rate", [6.0, 8.0, 12.0])
@pytest.mark.parametrize("most_ratio", [0.5, 1.0, 3.0])
def test_a_run_with_a_bound_ends_only_where_its_ratio_is_above_it(rate, most_ratio):
    trial = a_trial(slo=an_slo(ttft_s=0.5, tpot_s=0.03))
    whole, bounded = (
        TrialRun(trial, rate, 4_000, most_ratio=most) for most in (math.inf, most_ratio)
    )

    assert not whole.is_cut
    if bounded.is_cut:
        assert whole.outcome().ratio > most_ratio
    else:
        assert bounded.outcome() == whole.outcome()


def test_a_run_far_above_its_bound_ends_early():
    run = TrialRun(a_trial(), 40.0, 4_000, most_ratio=1.0)

    assert run.is_cut
    assert sum(each > 0 for each in run.table.started_s) < 1_500
