"""Answers of few tokens: what TPOT leaves of them is bounded from above, by what the run counts."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import a_replica, a_sizing_request, a_workload, an_slo
from tonnage.explain.words import explain
from tonnage.sizing.errors import SLOInfeasibleError
from tonnage.sizing.parallelism.draft import rank_of
from tonnage.sizing.plan import outline_of
from tonnage.sizing.request import Flags
from tonnage.sizing.search import size
from tonnage.sizing.serving.flags import replica_under, trial_of
from tonnage.sizing.serving.goodput import Length, runs_of
from tonnage.sizing.serving.load_line import (
    bound_requests_per_s,
    can_be_missed,
    one_token_share,
    top_requests_per_s,
    tpot_ceiling,
    undisturbed_share,
)
from tonnage.sizing.serving.replica import steady_state, undisturbed_tpot_s
from tonnage.sizing.serving.trial import TrialRun
from tonnage.sizing.split import Parallelism
from tonnage.sizing.workload import Lengths, Target
from trials import a_trial

ABOVE = 1.02
"""A bound: coarse runs tell a rate to this."""
RARE = 0.01
"""Of what a replica serves at most: requests alone."""


def one_token_mostly(**changes):
    """Nine answers in ten of one token, as a classifier's with an explanation now and then."""
    return a_workload(output_tokens=1.0, output_second_moment=1.0, **changes)


@st.composite
def short_requests(draw):
    """Answers of 1 to 30 tokens in the mean, under any slots, budget and percentile."""
    mean, scv = draw(st.floats(1, 30)), draw(st.sampled_from([None, 0.0, 0.5, 1.5, 4.0]))
    prompt, spread = draw(st.sampled_from([100, 500, 2_000])), draw(st.sampled_from([1, 3]))
    workload = a_workload(
        prompt=Lengths(mean_tokens=prompt, p99_tokens=spread * prompt),
        output_tokens=mean,
        output_second_moment=None if scv is None else mean**2 * (1 + scv),
    )
    quantile, ttft_s = draw(st.sampled_from([0.5, 0.9, 0.99])), draw(st.sampled_from([None, 1, 5]))
    flags = Flags(
        max_num_seqs=draw(st.sampled_from([1, 2, 6, 16, 64, 256])),
        max_num_batched_tokens=draw(st.sampled_from([512, 2_048, 8_192])),
        gpu_memory_utilization=0.92,
        parallelism=Parallelism(),
    )
    limit_s = draw(st.sampled_from([0.004, 0.008, 0.012, 0.02, 0.05]))
    slo = an_slo(tpot_s=limit_s, ttft_s=ttft_s, quantile=quantile)
    return a_sizing_request(workload=workload, slo=slo, flags=flags)


def is_kept(request, requests_per_s):
    replica = replica_under(request, rank_of(request, Parallelism()), request.flags)
    trial = trial_of(request, replica)
    rate = requests_per_s or RARE * top_requests_per_s(replica, request.workload)
    return runs_of(trial, Length.COARSE).outcome(rate).ratio <= 1


class TestTheBound:
    @settings(max_examples=150)
    @given(short_requests())
    def test_is_never_below_a_rate_that_a_run_keeps(self, request):
        try:
            most = ABOVE * outline_of(request, Parallelism()).bound_requests_per_s
        except SLOInfeasibleError:
            most = 0.0

        assert not is_kept(request, most)

    def test_is_of_no_tpot_where_more_answers_than_asked_for_have_one_token(self):
        # 1 - exp(-1.515 / 1) = 78 % of exponential answers of one token in the mean.
        workload = a_workload(output_tokens=1.0)

        for quantile, is_limited in ((0.5, False), (0.77, False), (0.79, True)):
            slo = an_slo(tpot_s=0.001, quantile=quantile)
            assert (tpot_ceiling(a_replica(), workload, slo) is not None) == is_limited
            bound = bound_requests_per_s(a_replica(), workload, slo)
            assert (bound < top_requests_per_s(a_replica(), workload)) == is_limited

    def test_is_of_steps_without_prompts_where_most_answers_meet_none(self):
        # Half of the answers have at most 2 tokens after the first: few prompts come beside them.
        workload, slo = a_workload(output_tokens=4), an_slo(tpot_s=0.012, quantile=0.5)

        ceiling = tpot_ceiling(a_replica(), workload, slo)

        mean_s = steady_state(a_replica(), workload, ceiling).tpot_s
        assert undisturbed_tpot_s(a_replica(), workload, ceiling) < 0.012 < mean_s
        assert undisturbed_share(a_replica(), workload, ceiling) == pytest.approx(0.5, abs=1e-3)

    def test_of_long_answers_is_that_of_the_mean_step_at_any_percentile(self):
        half, most = (
            tpot_ceiling(a_replica(), a_workload(), an_slo(tpot_s=0.02, quantile=quantile))
            for quantile in (0.5, 0.99)
        )

        assert half == most


class TestOneRequestAlone:
    SLOW = an_slo(tpot_s=0.001)
    """Below any step."""

    def test_of_one_token_keeps_any_tpot(self):
        request = a_sizing_request(workload=one_token_mostly(), slo=self.SLOW, num_gpus=1)

        sizing = size(request)

        assert sizing.goodput_requests_per_s > 0.8 * sizing.most_requests_per_s
        assert sizing.slo_ceiling is None
        assert any(
            "enough outputs of one token keep TPOT" in line
            for answer in explain(sizing)
            for line in answer.lines
        )

    def test_of_two_tokens_is_refused_with_the_step_it_takes(self):
        request = a_sizing_request(workload=a_workload(output_tokens=2), slo=self.SLOW, num_gpus=1)

        with pytest.raises(SLOInfeasibleError, match=r"timePerOutputToken: .* the SLO is 1\.00 ms"):
            size(request)

    def test_is_refused_by_the_prompt_at_the_percentile_of_ttft(self):
        # A logarithmic spread of 1.6: half of the prompts have less than 0.3 times the mean.
        prompt = Lengths(mean_tokens=2_000, p99_tokens=16_000)
        limit_s = 0.050  # 2,000 tokens take 67 ms, 600 of them 34
        request = a_sizing_request(
            workload=one_token_mostly(prompt=prompt),
            slo=an_slo(ttft_s=limit_s, quantile=0.5),
            num_gpus=1,
        )

        assert size(request).goodput_requests_per_s > 0
        with pytest.raises(SLOInfeasibleError):
            size(replace(request, slo=an_slo(ttft_s=limit_s, quantile=0.9)))


class TestTheShares:
    @pytest.mark.parametrize("scv", [None, 0.0, 0.5, 4.0])
    @pytest.mark.parametrize("mean", [1.0, 1.3, 2.0, 5.0, 40.0])
    def test_of_one_token_are_those_that_a_run_draws(self, mean, scv):
        second = None if scv is None else mean**2 * (1 + scv)
        trial = a_trial(workload=a_workload(output_tokens=mean, output_second_moment=second))
        table = TrialRun(trial, 1.0, 4_000).table

        drawn = sum(length == 1 for length in table.output_tokens) / 4_000

        assert drawn <= one_token_share(trial.workload) + 1e-3
        assert one_token_share(trial.workload) == pytest.approx(drawn, abs=0.012)

    def test_of_one_token_are_all_or_none_where_answers_are_alike(self):
        for tokens, share in ((1, 1.0), (2, 0.0)):
            workload = a_workload(output_tokens=tokens, output_second_moment=tokens**2)
            assert one_token_share(workload) == share
            target = Target(quantile=0.5, limit_s=1)
            assert can_be_missed(workload, target) == (share == 0)

    def test_undisturbed_are_those_that_end_before_a_prompt_comes(self):
        # Ten sequences of 11 tokens bring a prompt every 1.1 steps; each stays for ten after one.
        alike = a_workload(output_tokens=11, output_second_moment=121)

        found = undisturbed_share(a_replica(), alike, 10)

        assert found == pytest.approx(math.exp(-10 * 10 / 11))
