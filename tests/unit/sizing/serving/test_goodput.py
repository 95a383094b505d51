"""Goodput: against queues of known answer, its laws, its memory and its error."""

import math
from dataclasses import replace
from statistics import fmean, pstdev

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from builders import a_prior, a_replica, a_workload, an_slo, with_constants, with_model
from tonnage.sizing.serving import trial as draws
from tonnage.sizing.serving.goodput import (
    GRID,
    Found,
    Length,
    RateSearch,
    goodput,
    requests_needed,
    requests_to_fill,
    runs_of,
    with_rounded_inputs,
)
from tonnage.sizing.serving.load_line import bound_requests_per_s
from tonnage.sizing.workload import Lengths
from trials import a_server_of, a_trial

SEARCHED = 1.04
"""Two searches at medium length may end this far apart."""


class AbandonedError(Exception):
    """The deadline of a test."""


class Counter:
    """Counts the runs of a search, and ends it before one too many."""

    def __init__(self, most=math.inf):
        self.runs, self.most = 0, most

    def __call__(self):
        if self.runs >= self.most:
            raise AbandonedError
        self.runs += 1


def searched(trial, length=Length.MEDIUM, **more):
    guess = bound_requests_per_s(trial.replica, trial.workload, trial.slo)
    return goodput(trial, guess, length=length, **more)


def late_md1(rho, wait):
    """Return P(W > wait) of M/D/1 by Erlang's sum, in services."""
    total = sum(
        (rho * (k - wait)) ** k / math.factorial(k) * math.exp(-rho * (k - wait))
        for k in range(math.floor(wait) + 1)
    )
    return 1 - (1 - rho) * total


def highest_md1(wait, q):
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if late_md1(middle, wait) <= 1 - q else (low, middle)
    return low


class TestAQueueWithOneServer:
    @pytest.mark.parametrize(("ttft_s", "q"), [(0.2, 0.9), (0.3, 0.95), (0.6, 0.95), (0.6, 0.99)])
    def test_is_served_up_to_the_rate_of_the_formula(self, ttft_s, q):
        found = goodput(a_server_of(0.1, slo=an_slo(ttft_s=ttft_s, quantile=q)), 5.0)

        # A step of 0.1 s, so TTFT beyond the limit is a wait beyond the limit less one service.
        by_hand = highest_md1(ttft_s / 0.1 - 1, q) / 0.1
        assert found.requests_per_s == pytest.approx(by_hand, rel=0.03)
        assert found.limited_by in {"TimeToFirstToken", "MaxNumSeqs"}

    def test_that_may_grow_is_served_up_to_all_of_its_time(self):
        # One token each: no answer has a TPOT, and only the backlog ends the rate. A queue counts
        # as growing where 3 % of the time of a run is waited at its end.
        found = goodput(a_server_of(0.1, slo=an_slo(tpot_s=1)), 3.0)

        assert found.requests_per_s == pytest.approx(10, rel=0.04)

    def test_that_is_too_slow_alone_is_served_at_no_rate(self):
        found = goodput(a_server_of(0.1, slo=an_slo(ttft_s=0.05)), 5.0)

        assert found.requests_per_s == 0

    @pytest.mark.parametrize("guess", [0.01, 1.0, 100.0])
    def test_is_found_from_any_guess(self, guess):
        trial = a_server_of(0.1 + guess / 1e6, slo=an_slo(ttft_s=0.3))

        assert goodput(trial, guess).requests_per_s == pytest.approx(
            highest_md1(2, 0.95) / 0.1, rel=0.03
        )


class TestWhatStopsIt:
    """What half as much again of it moves: 16 GB of weights, 2,500 tokens of 128 KiB each."""

    def a_trial_of(self, num_sequences, slots, **changes):
        workload = a_workload(**changes)
        replica = a_replica(max_num_seqs=slots)
        each = replica.layout.bytes_of_sequence(workload.mean_context_tokens)
        replica = replace(replica, kv_pool_bytes=each * num_sequences)
        slo = replace(an_slo(ttft_s=2), tpot=an_slo(tpot_s=0.2).tpot)
        return a_trial(replica=replica, slo=slo, workload=workload)

    def gain(self, trial, **changes):
        more = replace(trial, replica=replace(trial.replica, **changes))
        return searched(more).requests_per_s / searched(trial).requests_per_s

    def test_is_the_cache_where_it_caps_the_slots_that_prompts_wait_for(self):
        trial = self.a_trial_of(24.5, slots=24)
        cache = 1.5 * trial.replica.kv_pool_bytes

        assert searched(trial).limited_by == "KVCache"
        assert self.gain(trial, max_num_seqs=36, kv_pool_bytes=cache) > 1.05

    def test_is_the_slots_where_the_cache_holds_more(self):
        trial = self.a_trial_of(60, slots=24)

        assert searched(trial).limited_by == "MaxNumSeqs"
        assert self.gain(trial, max_num_seqs=36) > 1.05

    def test_is_neither_where_prompts_wait_for_prefill(self):
        trial = self.a_trial_of(60.5, slots=60, output_tokens=5)
        cache = 1.5 * trial.replica.kv_pool_bytes

        assert searched(trial).limited_by == "TimeToFirstToken"
        assert self.gain(trial, max_num_seqs=90, kv_pool_bytes=cache) < 1.01


class TestAnSloOfTpotAlone:
    def test_is_limited_by_throughput_where_every_batch_is_fast_enough(self):
        # 8 slots: (16 GB + 8 * 2,500 * 131,072 B) / 3 TB/s is 6.2 ms, far below 100.
        trial = a_trial(replica=a_replica(max_num_seqs=8), slo=an_slo(tpot_s=0.1))

        found = searched(trial)

        bound = bound_requests_per_s(trial.replica, trial.workload, trial.slo)
        assert found.requests_per_s == pytest.approx(bound, rel=0.06)
        assert found.limited_by == "MaxNumSeqs"

    def test_is_limited_by_tpot_where_the_batch_outgrows_it(self):
        trial = a_trial(replica=a_replica(max_num_seqs=256), slo=an_slo(tpot_s=0.015))

        assert searched(trial).limited_by == "TimePerOutputToken"


class TestTheRate:
    def test_is_kept_and_a_tenth_more_is_not(self):
        trial = a_trial()
        rate = searched(trial).requests_per_s

        assert runs_of(trial, Length.MEDIUM).outcome(0.96 * rate).ratio <= 1
        assert runs_of(trial, Length.MEDIUM).outcome(1.1 * rate).ratio > 1

    def test_far_above_it_is_known_to_be_missed_without_a_whole_run(self):
        trial, runs = a_trial(slo=an_slo(ttft_s=0.41, tpot_s=1)), []
        tried = runs_of(trial, Length.MEDIUM, lambda: runs.append(1))

        assert tried.ratio_within(40.0) == math.inf
        assert tried.ratio_within(40.0, 0.5) == math.inf
        assert len(runs) == 1

        whole = tried.outcome(40.0).ratio
        assert tried.ratio_within(40.0, 2 * whole) == whole
        assert len(runs) == 2

    @pytest.mark.parametrize("ttft_s", [0.3, 0.5, 1.0, 2.0])
    @pytest.mark.parametrize("slots", [8, 64])
    def test_that_is_told_is_of_a_run_that_keeps_every_target(self, slots, ttft_s):
        trial = a_trial(replica=a_replica(max_num_seqs=slots), slo=an_slo(ttft_s=ttft_s, tpot_s=1))
        found = searched(trial, length=Length.FULL)

        assert found.requests_per_s > 0
        assert found.outcome.ratio <= 1

    def test_does_not_exceed_the_fluid_bound_by_more_than_its_doubt(self):
        trial = a_trial()

        bound = bound_requests_per_s(trial.replica, trial.workload, trial.slo)
        assert searched(trial).requests_per_s <= 1.15 * bound

    @settings(max_examples=8)
    @given(st.integers(1, 64), st.integers(500, 4_000), st.integers(20, 400), st.floats(1.2, 3))
    def test_is_never_lower_with_more_bandwidth(self, slots, prompt, output, factor):
        trial = a_trial(
            replica=a_replica(max_num_seqs=slots),
            workload=a_workload(prompt=Lengths(mean_tokens=prompt), output_tokens=output),
        )
        model = trial.replica.model
        speeds = replace(model.speeds, memory_bytes_per_s=factor * model.speeds.memory_bytes_per_s)
        faster = replace(trial, replica=with_model(trial.replica, speeds=speeds))

        before, after = searched(trial, Length.COARSE), searched(faster, Length.COARSE)

        assert after.requests_per_s >= before.requests_per_s / 1.08

    @settings(max_examples=8)
    @given(st.floats(2, 40), st.floats(1.2, 4))
    def test_is_never_lower_with_more_memory(self, requests_held, factor):
        few = a_replica(max_num_seqs=64, kv_pool_bytes=requests_held * 8192 * 131_072)
        many = replace(few, kv_pool_bytes=factor * few.kv_pool_bytes)

        before, after = (searched(a_trial(replica=each), Length.COARSE) for each in (few, many))

        assert after.requests_per_s >= before.requests_per_s / 1.08

    @pytest.mark.parametrize("name", ["ttft_s", "tpot_s"])
    def test_is_never_higher_under_a_shorter_target(self, name):
        targets = {"ttft_s": 2.0, "tpot_s": 0.020}
        rates = [
            searched(a_trial(slo=an_slo(**targets | {name: share * targets[name]}))).requests_per_s
            for share in (1.5, 1.0, 0.6)
        ]

        assert rates[0] * SEARCHED >= rates[1]
        assert rates[1] * SEARCHED >= rates[2]

    def test_is_never_higher_under_a_stricter_percentile(self):
        rates = [
            searched(a_trial(slo=an_slo(ttft_s=2, tpot_s=0.02, quantile=q))).requests_per_s
            for q in (0.5, 0.9, 0.99)
        ]

        assert rates == sorted(rates, reverse=True)

    def test_is_lower_for_bursts(self):
        even, bursty = a_trial(), a_trial(arrival_scv=8.0)

        assert searched(bursty).requests_per_s < searched(even).requests_per_s


class TestWhatIsRemembered:
    def test_an_abandoned_search_goes_on_where_it_stopped(self):
        trial = a_trial(slo=an_slo(ttft_s=1.71, tpot_s=0.0191))
        whole = Counter()
        rate = searched(replace(trial, slo=trial.slo), on_search=whole).requests_per_s
        other = a_trial(slo=an_slo(ttft_s=1.71, tpot_s=0.0191), context_tokens=8191)
        parts = []

        for _ in range(100):
            counter = Counter(most=2)
            parts.append(counter)
            try:
                found = searched(other, on_search=counter)
                break
            except AbandonedError:
                continue

        assert len(parts) > 1
        # One token less of context changes no request here: as many runs, the same digits.
        assert sum(each.runs for each in parts) == whole.runs
        assert found.requests_per_s == rate

    def test_the_same_question_runs_nothing(self):
        trial, counter = a_trial(slo=an_slo(ttft_s=1.72)), Counter()
        first = searched(trial)

        assert searched(trial, on_search=counter) == first
        assert counter.runs == 0

    def test_a_longer_answer_is_kept_beside_a_coarse_one(self):
        trial, counter = a_trial(slo=an_slo(ttft_s=1.73)), Counter()
        searched(trial, Length.COARSE)
        medium = searched(trial, Length.MEDIUM)

        assert searched(trial, Length.COARSE, on_search=counter) is not medium
        assert counter.runs == 0

    def test_what_differs_by_less_than_it_can_matter_is_the_same_question(self):
        trial, counter = a_trial(slo=an_slo(ttft_s=1.74)), Counter()
        replica = with_rounded_inputs(trial).replica
        searched(replace(trial, replica=replica))
        near = replace(replica, kv_pool_bytes=1.002 * replica.kv_pool_bytes)

        searched(replace(trial, replica=near), on_search=counter)

        assert counter.runs == 0


class TestRounding:
    def test_moves_each_figure_by_half_a_step_of_the_grid_at_most(self):
        trial = a_trial(
            replica=a_replica(constants=a_prior(), max_num_seqs=64),
            workload=a_workload(prompt=Lengths(mean_tokens=1_987, p99_tokens=7_777)),
        )
        rounded = with_rounded_inputs(trial)

        pairs = (
            (rounded.workload.prompt.mean_tokens, 1_987),
            (rounded.workload.prompt.p99_tokens, 7_777),
            (rounded.workload.output_tokens, 500),
            (rounded.replica.kv_pool_bytes, 50e9),
        )
        for found, asked in pairs:
            assert abs(math.log(found / asked)) <= math.log(GRID) / 2 + 1e-9
        assert with_rounded_inputs(rounded) == rounded

    @pytest.mark.parametrize("prompt", [1_013, 1_987])
    @pytest.mark.parametrize("output", [97, 303])
    def test_costs_a_hundredth_at_most(self, prompt, output):
        trial = a_trial(
            replica=a_replica(constants=a_prior(), max_num_seqs=48, kv_pool_bytes=41.3e9),
            workload=a_workload(prompt=Lengths(mean_tokens=prompt), output_tokens=output),
            slo=an_slo(ttft_s=1.5, tpot_s=0.030),
        )
        exact = RateSearch(trial, Found(), lambda: None, length=Length.FULL).goodput(5.0)

        rounded = goodput(trial, 5.0)

        error = abs(rounded.requests_per_s / exact.requests_per_s - 1)
        assert error <= 0.01 + 2 * exact.standard_error


def drawn_anew(seed):
    """Forget what is drawn and remembered, and draw with another seed."""
    draws.requests.cache_clear()
    for cached in (draws._normals, draws._exponentials, draws._arrivals, draws._routes):
        cached.cache_clear()
    return seed


@pytest.mark.parametrize("arrival_scv", [1.0, 4.0])
def test_the_standard_error_is_how_far_other_draws_stray(monkeypatch, arrival_scv):
    trial = a_trial(
        replica=a_replica(max_num_seqs=24),
        workload=a_workload(prompt=Lengths(mean_tokens=1_000), output_tokens=100),
        slo=an_slo(ttft_s=0.5, tpot_s=0.030),
        arrival_scv=arrival_scv,
    )
    found = []
    try:
        for seed in range(8):
            monkeypatch.setattr(draws, "SEED", drawn_anew(100 * seed))
            found.append(
                RateSearch(
                    with_rounded_inputs(trial), Found(), lambda: None, length=Length.MEDIUM
                ).goodput(20)
            )
    finally:
        monkeypatch.undo()
        drawn_anew(0)

    rates = [each.requests_per_s for each in found]
    scatter, told = pstdev(rates) / fmean(rates), fmean(each.standard_error for each in found)
    assert 0.4 <= told / scatter <= 2.5


@pytest.mark.parametrize(
    ("q", "length", "expected"),
    [
        # 900 of which may be late: a twentieth of 18,000; never below 8,000 or above 50,000.
        (0.95, Length.FULL, 18_000),
        (0.5, Length.FULL, 8_000),
        (0.99, Length.FULL, 50_000),
        (0.95, Length.COARSE, 2_000),
        (0.99, Length.MEDIUM, 16_000),
    ],
)
def test_a_run_has_the_requests_that_the_percentile_needs(q, length, expected):
    assert requests_needed(an_slo(ttft_s=1, quantile=q), length) == expected


def test_and_four_for_each_slot_in_powers_of_two():
    wide = a_trial(replica=a_replica(max_num_seqs=130), slo=an_slo(ttft_s=2))

    assert requests_to_fill(a_trial(slo=an_slo(ttft_s=2))) == 4 * 64
    assert requests_to_fill(wide) == 1_024


def test_fewer_where_tpot_leaves_fewer():
    # (16 GB + n * 2,500 * 131,072 B) / 3 TB/s: 7 ms leave some 12, and 4 * 12 are below the least.
    wide = a_replica(max_num_seqs=130)

    assert requests_to_fill(a_trial(replica=wide, slo=an_slo(ttft_s=2, tpot_s=0.007))) == 256


def test_a_constant_of_the_speed_that_is_learned_is_rounded_and_others_are_not():
    assume_prior = a_prior()
    replica = with_constants(a_replica(constants=assume_prior), bandwidth_efficiency=0.8012)

    rounded = with_rounded_inputs(a_trial(replica=replica)).replica.model.constants

    assert rounded.bandwidth_efficiency != 0.8012
    assert rounded.per_step_s == assume_prior.per_step_s
    assert rounded.per_kernel_s == assume_prior.per_kernel_s


@settings(max_examples=6)
@given(st.integers(1, 24), st.floats(0.3, 4))
def test_the_outcome_told_is_from_near_the_rate_found(slots, ttft_s):
    trial = a_trial(
        replica=a_replica(max_num_seqs=slots),
        workload=a_workload(output_tokens=50),
        slo=an_slo(ttft_s=ttft_s),
    )
    found = searched(trial, Length.COARSE)
    assume(found.requests_per_s > 0)

    # Of two slots near saturation the late requests double within 3 % of the rate.
    assert abs(math.log(found.outcome.ratio)) < max(1.5, 0.06 * found.steepness)
    assert 0 < found.outcome.busy <= 1
