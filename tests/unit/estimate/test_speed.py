"""What a measured step says about the bandwidth that was achieved, and how it is learned."""

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from builders import a_replica, a_shard, a_workload, some_speeds
from measured_builders import a_busy_step, a_machine, an_engine, with_efficiency
from strategies import numbers
from tonnage.catalog.engine_speed import TEXTBOOK_SPEED
from tonnage.estimate.speed import (
    HIGHEST,
    PromptShape,
    SpeedCalibration,
    busy_step,
    learn,
    observed_efficiency,
    observed_mbu,
)
from tonnage.sizing.serving.steady import prefill_context_tokens, steady_state
from tonnage.sizing.split import Parallelism

PRIOR = 0.8
PROMPTS = PromptShape(context_tokens=1000, chunk_tokens=2000)
efficiencies = numbers(0.3, 0.95)


def a_step_of(samples, *, parallelism=None):
    return busy_step(
        samples,
        window_s=60,
        kv_tokens=100_000,
        prompts=PROMPTS,
        parallelism=parallelism or Parallelism(),
    )


class TestBusyStep:
    def test_is_the_mean_gap_between_tokens_and_the_work_per_step(self):
        # 20 s of gaps in 500 gaps: 40 ms. 500 gaps in 25 steps: 20 sequences.
        step = a_step_of(an_engine())

        assert step.step_s == pytest.approx(0.040)
        assert step.num_steps == 25 * 60
        assert step.work.num_sequences == 20
        assert step.work.context_tokens == 0.5 * 100_000
        assert step.work.prefill_tokens == 4000 / 25

    @pytest.mark.parametrize(
        "missing",
        [
            "token_gap_s_per_s",
            "token_gaps_per_s",
            "steps_per_s",
            "kv_usage_fraction",
            "computed_prompt_tokens_per_s",
        ],
    )
    def test_is_unknown_where_a_figure_is_missing(self, missing):
        assert a_step_of(an_engine(**{missing: None})) is None

    @pytest.mark.parametrize("zero", ["token_gap_s_per_s", "token_gaps_per_s", "steps_per_s"])
    def test_is_unknown_on_an_idle_engine(self, zero):
        assert a_step_of(an_engine(**{zero: 0})) is None

    def test_needs_fifty_steps(self):
        few = {"token_gaps_per_s": 16, "computed_prompt_tokens_per_s": 0}

        assert a_step_of(an_engine(steps_per_s=49 / 60, **few)) is None
        assert a_step_of(an_engine(steps_per_s=50 / 60, **few))

    def test_needs_one_and_a_half_sequences_exactly(self):
        assert a_step_of(an_engine(token_gaps_per_s=25 * 1.5))

    def test_needs_more_than_one_sequence_at_a_time(self):
        assert a_step_of(an_engine(token_gaps_per_s=25 * 1.4)) is None
        assert a_step_of(an_engine(token_gaps_per_s=25 * 1.6))

    def test_tokens_that_come_together_are_of_one_sequence(self):
        guessed = an_engine(token_gaps_per_s=200, output_tokens_per_s=500)

        assert a_step_of(guessed).work.num_sequences == 200 / 25

    def test_a_step_without_new_prompts_is_a_step_all_the_same(self):
        assert a_step_of(an_engine(computed_prompt_tokens_per_s=0)).work.prefill_tokens == 0

    def test_of_one_data_parallel_rank_stands_for_the_work_of_all(self):
        # The formula splits a replica's work over its ranks; an engine reports its own share.
        step = a_step_of(an_engine(), parallelism=Parallelism(data=8))

        assert step.work.num_sequences == 8 * 20
        assert step.work.context_tokens == 8 * 50_000
        assert step.work.prefill_tokens == 8 * 160

    def test_over_pipeline_stages_holds_one_microbatch_of_each(self):
        # A sequence is in one microbatch at a time, and its cache in all stages. Four of them pass
        # in the 40 ms between two tokens of a sequence.
        samples = an_engine(
            steps_per_s=100,
            token_gaps_per_s=2000,
            token_gap_s_per_s=80,
            computed_prompt_tokens_per_s=16_000,
        )

        step = a_step_of(samples, parallelism=Parallelism(pipeline=4))

        assert step.work.num_sequences == 4 * 20
        assert step.work.context_tokens == 50_000
        assert step.work.prefill_tokens == 4 * 160

    @pytest.mark.parametrize(
        ("steps_per_s", "split", "busy"),
        [
            (25, Parallelism(), 1.0),  # of 40 ms each
            (10, Parallelism(), 0.4),
            (20, Parallelism(data=2), 0.8),
            (40, Parallelism(pipeline=4), 0.4),  # four microbatches pass in one round of 40 ms
            (30, Parallelism(), 1.0),
        ],
    )
    def test_knows_how_much_of_the_window_was_busy(self, steps_per_s, split, busy):
        samples = an_engine(steps_per_s=steps_per_s)

        assert a_step_of(samples, parallelism=split).busy_fraction == pytest.approx(busy)

    def test_holds_the_context_of_busy_time(self):
        # Half of the window is idle and its cache empty: the steps saw twice the mean.
        samples = an_engine(steps_per_s=12.5, kv_usage_fraction=0.2)

        assert a_step_of(samples).work.context_tokens == pytest.approx(0.4 * 100_000)


class TestObservedMbu:
    def test_is_bytes_over_time_over_bandwidth(self):
        # 16 GB of weights and 40,000 tokens of 131,072 B in 10 ms, of 3 TB/s: 21.24 GB of 30 GB.
        machine = a_machine()
        step = replace(a_busy_step(machine), step_s=0.010)

        assert observed_mbu(machine, step) == pytest.approx(0.7081, abs=1e-4)

    def test_counts_the_bytes_of_a_rank_and_not_of_the_replica(self):
        # Two ranks, each with half of the sequences, as long as one alone with that half.
        two = a_machine(shard=a_shard(parallelism=Parallelism(data=2)))

        alone = observed_mbu(a_machine(), replace(a_busy_step(a_machine()), step_s=0.010))
        both = a_busy_step(two, num_sequences=40, context_tokens=80_000)

        assert observed_mbu(two, replace(both, step_s=0.010)) == pytest.approx(alone)

    def test_of_an_engine_that_is_all_memory_is_its_efficiency(self):
        machine = a_machine(constants=replace(TEXTBOOK_SPEED, bandwidth_efficiency=0.7))

        assert observed_mbu(machine, a_busy_step(machine)) == pytest.approx(0.7)


class TestObservedEfficiency:
    @given(efficiencies, numbers(2, 64), numbers(100, 8000), numbers(0, 200))
    def test_recovers_the_efficiency_that_made_the_step(self, truth, n, context, prefill):
        hidden = with_efficiency(a_machine(), truth)
        step = a_busy_step(
            hidden,
            num_sequences=n,
            context_tokens=n * context,
            prefill_tokens=prefill,
            prefill_context_tokens=500,
            prefill_chunk_tokens=2000,
        )

        seen = observed_efficiency(a_machine(), step)

        assume(seen is not None)  # too much prefill to tell
        assert seen == pytest.approx(truth)

    @pytest.mark.parametrize(
        "split", [Parallelism(tensor=4), Parallelism(pipeline=2), Parallelism(data=8)]
    )
    def test_recovers_it_over_several_gpus(self, split):
        machine = a_machine(shard=a_shard(parallelism=split))
        step = a_busy_step(with_efficiency(machine, 0.55), num_sequences=64, context_tokens=1e5)

        assert observed_efficiency(machine, step) == pytest.approx(0.55)

    def test_recovers_it_beside_prompts_that_are_each_on_one_of_many_ranks(self):
        # What the load line takes for a steady state, as each rank reports its share of it.
        split = Parallelism(data=8)
        machine, workload = a_machine(shard=a_shard(parallelism=split)), a_workload()
        hidden = with_efficiency(machine, 0.55)
        replica = replace(a_replica(), model=hidden)
        state = steady_state(replica, workload, 64)
        samples = an_engine(
            steps_per_s=1 / state.step_s,
            token_gaps_per_s=8 / state.step_s,
            token_gap_s_per_s=8,
            computed_prompt_tokens_per_s=state.prefill_tokens_per_step / 8 / state.step_s,
            kv_usage_fraction=8 * workload.mean_context_tokens / 100_000,
        )
        prompts = PromptShape(
            context_tokens=prefill_context_tokens(workload),
            chunk_tokens=workload.new_prompt_tokens,
        )

        step = busy_step(
            samples, window_s=60, kv_tokens=100_000, prompts=prompts, parallelism=split
        )

        assert observed_efficiency(machine, step) == pytest.approx(0.55)

    def test_does_not_depend_on_what_was_learned_before(self):
        step = a_busy_step(with_efficiency(a_machine(), 0.6))

        seen = {
            round(observed_efficiency(with_efficiency(a_machine(), known), step), 9)
            for known in (0.4, 0.8, 0.95)
        }

        assert seen == {0.6}

    @pytest.mark.parametrize(("busy_fraction", "tells"), [(0.89, False), (0.91, True)])
    def test_says_nothing_at_the_edge_of_a_burst(self, busy_fraction, tells):
        step = replace(a_busy_step(a_machine()), busy_fraction=busy_fraction)

        assert (observed_efficiency(a_machine(), step) is not None) is tells

    def test_says_something_at_nine_tenths_busy_exactly(self):
        assert observed_efficiency(
            a_machine(), replace(a_busy_step(a_machine()), busy_fraction=0.9)
        )

    def test_says_nothing_of_a_step_that_took_no_time(self):
        textbook = a_machine(constants=TEXTBOOK_SPEED)

        assert observed_efficiency(textbook, replace(a_busy_step(textbook), step_s=0)) is None

    @pytest.mark.parametrize(("prefill_tokens", "tells"), [(420, True), (460, False)])
    def test_says_nothing_where_prompts_take_more_than_half_of_the_step(
        self, prefill_tokens, tells
    ):
        # 16 GB + 40,000 * 131,072 B at 3 TB/s are 7.081 ms: 442.6 tokens of 16 us.
        textbook = a_machine(constants=TEXTBOOK_SPEED)
        step = a_busy_step(textbook, prefill_tokens=prefill_tokens, prefill_chunk_tokens=2_000)

        assert (observed_efficiency(textbook, step) is not None) is tells

    def test_says_nothing_where_overhead_alone_explains_the_step(self):
        step = replace(a_busy_step(a_machine()), step_s=1e-5)

        assert observed_efficiency(a_machine(), step) is None

    def test_says_nothing_where_prefill_fills_most_of_the_step(self):
        step = a_busy_step(a_machine(), prefill_tokens=4000, prefill_chunk_tokens=4000)

        assert observed_efficiency(a_machine(), step) is None

    def test_says_nothing_where_compute_sets_the_pace(self):
        slow_compute = a_machine(speeds=some_speeds(peak_flop_per_s=1e12))

        assert observed_efficiency(slow_compute, a_busy_step(slow_compute)) is None


def learned(*observations, start=PRIOR, prior=PRIOR):
    known = SpeedCalibration(bandwidth_efficiency=start)
    for observed in observations:
        known = learn(known, observed, prior=prior, num_steps=100)
    return known


class TestLearning:
    def test_moves_four_tenths_of_the_way(self):
        assert learned(0.72).bandwidth_efficiency == pytest.approx(0.80 - 0.4 * 0.08)

    def test_moves_by_eight_percent_of_the_prior_at_most(self):
        assert learned(0.40).bandwidth_efficiency == pytest.approx(0.80 - 0.08 * 0.80)
        assert learned(0.98, start=0.4).bandwidth_efficiency == pytest.approx(0.40 + 0.08 * 0.80)

    def test_counts_the_steps_that_it_stands_on(self):
        assert learned(0.7, 0.7, 0.7).busy_steps == 300

    @pytest.mark.parametrize("outlier", [0.0, 0.2, 1.5, 100.0])
    def test_drops_what_no_gpu_could_have_done(self, outlier):
        # The band is 0.32 to 0.98; half again beyond it, 0.213 and 1.47, is an error.
        assert learned(outlier) == SpeedCalibration(bandwidth_efficiency=PRIOR)

    @pytest.mark.parametrize(("observed", "nearest"), [(0.25, 0.32), (1.4, 0.98)])
    def test_clips_what_is_a_little_beyond_the_band(self, observed, nearest):
        assert learned(*[observed] * 200).bandwidth_efficiency == pytest.approx(nearest)

    def test_goes_a_quarter_beyond_the_prior_at_most(self):
        # 1.25 * 0.6 is far from the 0.98 that no engine exceeds.
        assert learned(*[0.9] * 200, start=0.6, prior=0.6).bandwidth_efficiency == pytest.approx(
            0.75
        )

    @given(numbers(0.33, 0.98))
    def test_converges_to_a_steady_truth(self, truth):
        assert learned(*[truth] * 60).bandwidth_efficiency == pytest.approx(truth, rel=1e-3)

    @given(st.lists(st.floats(), max_size=50), numbers(0.3, 0.95))
    def test_never_leaves_the_band_nor_jumps(self, observations, prior):
        known = SpeedCalibration(bandwidth_efficiency=prior)
        for observed in observations:
            after = learn(known, observed, prior=prior, num_steps=1)

            assert abs(after.bandwidth_efficiency - known.bandwidth_efficiency) <= 0.0801 * prior
            assert 0.4 * prior - 1e-9 <= after.bandwidth_efficiency <= HIGHEST + 1e-9
            known = after

    def test_one_bad_window_among_good_ones_is_forgotten(self):
        steady = [0.7] * 40

        assert learned(*steady, 0.3, *steady).bandwidth_efficiency == pytest.approx(0.7, rel=0.01)
