"""Mean lengths: steady while nothing changes, and quick when the shape of requests does."""

from dataclasses import replace

import pytest
from hypothesis import given

from measured_builders import an_engine, of_lengths, steady_lengths
from strategies import numbers
from tonnage.estimate.lengths import MeasuredLengths, measure_lengths

FAST, SLOW = 8, 60


def measured(*lengths):
    """Lengths of engines that each tell of these windows, scraped every 15 s."""
    return measure_lengths([an_engine(lengths=each) for each in lengths], scrape_interval_s=15)


def changed(**fast):
    """What is measured of 2,000 and 500 tokens over 15 minutes, and of others since two."""
    return measured({SLOW: of_lengths(), FAST: of_lengths(**fast)})


class TestSteady:
    def test_are_tokens_over_the_requests_that_finished(self):
        assert measured(steady_lengths(2000, 500)) == MeasuredLengths(
            prompt_tokens=2000, output_tokens=500, cached_fraction=0
        )

    def test_weigh_each_engine_by_its_requests(self):
        lengths = measured(steady_lengths(2000, 500, per_s=2), steady_lengths(200, 100, per_s=6))

        assert lengths.prompt_tokens == pytest.approx((2 * 2000 + 6 * 200) / 8)
        assert lengths.output_tokens == pytest.approx((2 * 500 + 6 * 100) / 8)

    def test_of_prompts_are_those_that_started(self):
        # Long prompts have started that did not finish yet.
        window = replace(of_lengths(), started_prompt_tokens_per_s=2 * 3000)

        assert measured({SLOW: window}).prompt_tokens == 3000

    @pytest.mark.parametrize("missing", ["started_per_s", "started_prompt_tokens_per_s"])
    def test_of_prompts_are_those_that_finished_where_nothing_else_is_known(self, missing):
        window = replace(of_lengths(), finished_prompt_tokens_per_s=2 * 1500, **{missing: None})

        assert measured({SLOW: window}).prompt_tokens == 1500

    def test_the_cached_share_is_what_was_started_and_not_computed(self):
        lengths = measured(steady_lengths(2000, 500, computed_tokens=500))

        assert lengths.cached_fraction == 0.75

    @pytest.mark.parametrize(("computed", "cached"), [(0, 0.99), (2500, 0)])
    def test_the_cached_share_stays_a_share(self, computed, cached):
        assert measured(steady_lengths(2000, computed_tokens=computed)).cached_fraction == cached

    def test_are_believed_from_twenty_requests(self):
        assert measured(steady_lengths(per_s=20.1 / 900))
        assert measured(steady_lengths(per_s=19.9 / 900)) is None

    @pytest.mark.parametrize("missing", ["finished_per_s", "finished_output_tokens_per_s"])
    def test_are_missing_when_a_counter_is(self, missing):
        assert measured({SLOW: replace(of_lengths(), **{missing: None})}) is None

    def test_are_missing_where_no_tokens_were_counted(self):
        assert measured(steady_lengths(2000, 0)) is None
        assert measured(steady_lengths(0, 500)) is None

    def test_are_missing_without_engines(self):
        assert measured() is None
        assert measured({}) is None

    def test_nothing_is_cached_where_the_engine_does_not_say(self):
        window = replace(of_lengths(), computed_prompt_tokens_per_s=None)

        assert measured({SLOW: window}).cached_fraction == 0


class TestChange:
    @pytest.mark.parametrize("factor", [4, 0.25])
    def test_of_the_shape_by_four_is_believed_from_twenty_requests_in_two_minutes(self, factor):
        lengths = changed(prompt_tokens=2000 * factor, output_tokens=500 * factor, per_s=21 / 120)

        assert lengths.prompt_tokens == pytest.approx(2000 * factor)
        assert lengths.output_tokens == pytest.approx(500 * factor)

    @pytest.mark.parametrize(
        ("requests", "share"),
        [
            (25, 0.0),  # ln 4/3 is 0.29, a standard error 1.5 / sqrt(25) = 0.30
            (108, 0.5),  # two standard errors of 0.144
            (300, 1.0),  # more than three of 0.087
        ],
    )
    def test_by_a_third_is_believed_the_more_the_more_requests_show_it(self, requests, share):
        found = changed(output_tokens=2000 / 3, per_s=requests / 120)

        assert found.output_tokens == pytest.approx(500 * (4 / 3) ** share, rel=0.002)

    def test_that_few_requests_show_moves_nothing(self):
        assert changed(prompt_tokens=8000, output_tokens=2000, per_s=19 / 120) == measured(
            steady_lengths()
        )

    def test_of_prompts_leaves_outputs_as_they_are(self):
        lengths = changed(prompt_tokens=8000)

        assert (lengths.prompt_tokens, lengths.output_tokens) == (8000, 500)

    def test_of_the_cached_share_is_believed_though_prompts_are_as_long(self):
        lengths = changed(computed_tokens=200)

        assert lengths.prompt_tokens == 2000
        assert lengths.cached_fraction == pytest.approx(0.9)

    def test_of_a_cached_share_that_was_there_before_is_to_the_new_one(self):
        half, most = of_lengths(computed_tokens=1000), of_lengths(computed_tokens=200)

        assert measured({SLOW: half, FAST: most}).cached_fraction == pytest.approx(0.9)
        assert measured({SLOW: most, FAST: half}).cached_fraction == pytest.approx(0.5)

    def test_to_shorter_outputs_is_not_believed_while_requests_pile_up(self):
        # 2/s start and 1/s finish: the short ones, and the long ones are still on their way.
        short = replace(of_lengths(), finished_per_s=1, finished_output_tokens_per_s=100)

        assert measured({SLOW: of_lengths(), FAST: short}).output_tokens == 500

    def test_to_shorter_outputs_is_not_believed_in_the_first_half_minute_of_a_step(self):
        # 15/s became 30/s: of 2,400 in two minutes a tenth is on its way. Chance makes 2 % of it.
        short = replace(
            of_lengths(output_tokens=450, per_s=20), finished_per_s=18,
            finished_output_tokens_per_s=18 * 450,
        )  # fmt: skip

        assert measured({SLOW: of_lengths(), FAST: short}).output_tokens == 500

    def test_to_shorter_outputs_is_believed_where_as_many_finish_as_start(self):
        short = of_lengths(output_tokens=450, per_s=20)

        assert measured({SLOW: of_lengths(), FAST: short}).output_tokens == pytest.approx(450)

    def test_to_longer_outputs_is_believed_while_requests_pile_up(self):
        long = replace(of_lengths(), finished_per_s=1, finished_output_tokens_per_s=2000)

        assert measured({SLOW: of_lengths(), FAST: long}).output_tokens == 2000

    def test_is_not_needed_where_only_the_slow_window_is_known(self):
        assert measured({SLOW: of_lengths()}) == measured(steady_lengths())

    @given(numbers(1, 1e6), numbers(1, 1e6), numbers(0.001, 100))
    def test_is_never_beyond_what_the_windows_say(self, prompt, output, per_s):
        lengths = changed(prompt_tokens=prompt, output_tokens=output, per_s=per_s)

        assert is_between(lengths.prompt_tokens, 2000, prompt)
        assert is_between(lengths.output_tokens, 500, output)
        assert 0 <= lengths.cached_fraction <= 0.99


def is_between(value, one, other):
    low, high = sorted((one, other))
    return low * (1 - 1e-9) <= value <= high * (1 + 1e-9)
