"""Mean lengths: steady while nothing changes, and quick when the shape of requests does."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from measured_builders import an_engine, of_lengths, steady_lengths, with_lengths
from strategies import numbers
from tonnage.estimate.demand import MeasuredLengths, measure_lengths
from tonnage.estimate.metrics import WINDOWS
from tonnage.estimate.samples import WindowRates

BUSY, FAST, SLOW = 4, 8, 60


def measured(*lengths):
    """Lengths of engines that each tell of these windows, scraped every 15 s."""
    return measure_lengths([an_engine(lengths=each) for each in lengths])


counts = st.integers(0, 1000)


@st.composite
def of_any_lengths(draw):
    """A window in which as many begin and end as may be, one request/s ends or none."""
    window = of_lengths(draw(numbers(1, 1e5)), draw(numbers(1, 1e5)), per_s=1)
    ended = draw(st.sampled_from([0, 1]))
    return window._replace(
        started_per_s=draw(st.integers(0, 50)),
        finished_per_s=ended,
        finished_output_tokens_per_s=ended * window.finished_output_tokens_per_s,
    )


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

    def test_weigh_an_engine_that_was_watched_for_less_by_the_requests_of_that_time(self):
        # 2 requests/s at each: 1,770 of the old engine in 885 s, 30 of the new one in 15 s.
        engines = [
            an_engine("old", lengths={SLOW: of_lengths(2000, 500)}),
            an_engine("new", lengths={SLOW: of_lengths(200, 100, computed_tokens=0)}, seconds=15),
        ]
        lengths = measure_lengths(engines)

        assert lengths.prompt_tokens == pytest.approx((1770 * 2000 + 30 * 200) / 1800)
        assert lengths.output_tokens == pytest.approx((1770 * 500 + 30 * 100) / 1800)
        assert lengths.cached_fraction == pytest.approx(30 * 200 / (1770 * 2000 + 30 * 200))

    def test_of_an_engine_that_just_began_are_believed_from_the_twenty_that_it_saw(self):
        few, enough = (
            measure_lengths([an_engine(lengths=steady_lengths(per_s=each / 15), seconds=15)])
            for each in (19.9, 20.1)
        )

        assert few is None
        assert enough.output_tokens == pytest.approx(500)

    def test_of_prompts_are_those_that_started(self):
        # Long prompts have started that did not finish yet.
        window = of_lengths()._replace(started_prompt_tokens_per_s=2 * 3000)

        assert measured({SLOW: window}).prompt_tokens == 3000

    @pytest.mark.parametrize("missing", ["started_per_s", "started_prompt_tokens_per_s"])
    def test_of_prompts_are_those_that_finished_where_nothing_else_is_known(self, missing):
        window = of_lengths()._replace(finished_prompt_tokens_per_s=2 * 1500, **{missing: None})

        assert measured({SLOW: window}).prompt_tokens == 1500

    def test_the_cached_share_is_what_was_started_and_not_computed(self):
        lengths = measured(steady_lengths(2000, 500, computed_tokens=500))

        assert lengths.cached_fraction == 0.75

    @pytest.mark.parametrize(("computed", "cached"), [(0, 0.99), (2500, 0)])
    def test_the_cached_share_stays_a_share(self, computed, cached):
        assert measured(steady_lengths(2000, computed_tokens=computed)).cached_fraction == cached

    def test_are_believed_from_twenty_requests(self):
        assert measured(steady_lengths(per_s=20.1 / 885))
        assert measured(steady_lengths(per_s=19.9 / 885)) is None

    @pytest.mark.parametrize("missing", ["finished_per_s", "finished_output_tokens_per_s"])
    def test_are_missing_when_a_counter_is(self, missing):
        assert measured({SLOW: of_lengths()._replace(**{missing: None})}) is None

    def test_are_missing_where_no_tokens_were_counted(self):
        assert measured(steady_lengths(2000, 0)) is None
        assert measured(steady_lengths(0, 500)) is None

    def test_are_missing_without_engines(self):
        assert measured() is None
        assert measured({}) is None

    def test_nothing_is_cached_where_the_engine_does_not_say(self):
        window = of_lengths()._replace(computed_prompt_tokens_per_s=None)

        assert measured({SLOW: window}).cached_fraction == 0


class TestChange:
    @pytest.mark.parametrize("factor", [4, 0.25])
    def test_of_the_shape_by_four_is_believed_from_twenty_requests_in_two_minutes(self, factor):
        lengths = changed(prompt_tokens=2000 * factor, output_tokens=500 * factor, per_s=21 / 105)

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
        found = changed(output_tokens=2000 / 3, per_s=requests / 105)

        assert found.output_tokens == pytest.approx(500 * (4 / 3) ** share, rel=0.002)

    def test_that_few_requests_show_moves_nothing(self):
        assert changed(prompt_tokens=8000, output_tokens=2000, per_s=19 / 105) == measured(
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

    @pytest.mark.parametrize(("ended", "believed"), [(50, 200), (100, 400), (125, 500), (400, 500)])
    def test_to_shorter_outputs_is_believed_less_while_requests_pile_up(self, ended, believed):
        # 40/s start and 20/s finish: the short ones, and the long ones are still on their way.
        # So at least four times as long, up to what they were before.
        short = of_lengths(output_tokens=ended, per_s=20)._replace(started_per_s=40)

        assert measured({SLOW: of_lengths(), FAST: short}).output_tokens == pytest.approx(believed)

    def test_to_shorter_outputs_stays_believed_where_somewhat_more_begin(self):
        # The replicas that are left of a fleet get what went to those that are gone.
        short = of_lengths(output_tokens=100, per_s=20)._replace(started_per_s=22)

        assert measured({SLOW: of_lengths(), FAST: short}).output_tokens == pytest.approx(121)

    def test_to_shorter_outputs_is_to_no_shorter_ones_where_more_end_than_began(self):
        short = of_lengths(output_tokens=200, per_s=20)._replace(started_per_s=10)

        assert measured({SLOW: of_lengths(), FAST: short}).output_tokens == pytest.approx(200)

    def test_is_told_by_engines_that_say_what_began_and_what_ended(self):
        # The second says nothing of what ended: all that it began would else pile up.
        short = of_lengths(output_tokens=100, per_s=20)
        silent = WindowRates(started_per_s=100, started_prompt_tokens_per_s=200_000)
        found = measured({SLOW: of_lengths(), FAST: short}, {SLOW: of_lengths(), FAST: silent})

        assert found.output_tokens == pytest.approx(100)

    def test_to_shorter_outputs_is_not_believed_in_the_first_half_minute_of_a_step(self):
        # 15/s became 30/s: of 2,400 in two minutes a tenth is on its way.
        short = of_lengths(output_tokens=450, per_s=20)._replace(
            finished_per_s=18,
            finished_output_tokens_per_s=18 * 450,
        )  # fmt: skip

        assert measured({SLOW: of_lengths(), FAST: short}).output_tokens == 500

    def test_to_shorter_outputs_is_believed_where_as_many_finish_as_start(self):
        short = of_lengths(output_tokens=450, per_s=20)

        assert measured({SLOW: of_lengths(), FAST: short}).output_tokens == pytest.approx(450)

    def test_to_longer_outputs_is_believed_while_requests_pile_up(self):
        long = of_lengths()._replace(finished_per_s=1, finished_output_tokens_per_s=2000)

        assert measured({SLOW: of_lengths(), FAST: long}).output_tokens == 2000

    def test_is_not_needed_where_only_the_slow_window_is_known(self):
        assert measured({SLOW: of_lengths()}) == measured(steady_lengths())

    @given(numbers(1, 1e6), numbers(1, 1e6), numbers(0.001, 100))
    def test_is_never_beyond_what_the_windows_say(self, prompt, output, per_s):
        lengths = changed(prompt_tokens=prompt, output_tokens=output, per_s=per_s)

        assert is_between(lengths.prompt_tokens, 2000, prompt)
        assert is_between(lengths.output_tokens, 500, output)
        assert 0 <= lengths.cached_fraction <= 0.99

    @given(
        windows=st.dictionaries(st.sampled_from([BUSY, FAST]), of_any_lengths()),
        running=counts,
        waiting=counts,
        came=st.tuples(counts, st.integers(-100, 100)),
        gap_s=numbers(0.001, 1),
    )
    def test_is_a_figure_whatever_else_is_told(self, windows, running, waiting, came, gap_s):
        engine = an_engine(
            running=running,
            waiting=waiting,
            completed_per_s=came[0],
            in_flight_per_s=came[1],
            token_gap_s_per_s=gap_s,
            token_gaps_per_s=1,
        )
        told = with_lengths(engine, {SLOW: of_lengths(), **windows})
        lengths = measure_lengths([told])

        longest = max([500, *(each.finished_output_tokens_per_s for each in windows.values())])
        assert 0 < lengths.output_tokens <= max(longest, 900 / gap_s) * (1 + 1e-9)
        assert 0 < lengths.prompt_tokens < math.inf
        assert 0 <= lengths.cached_fraction <= 0.99


class TestShape:
    """What the shortest window says."""

    def shaped(self, **shape):
        before = {SLOW: of_lengths(), FAST: of_lengths()}
        return measured({**before, BUSY: of_lengths(**shape)})

    def test_of_requests_by_four_is_believed_within_a_minute(self):
        assert self.shaped(prompt_tokens=500, output_tokens=2000) == MeasuredLengths(
            prompt_tokens=pytest.approx(500),
            output_tokens=pytest.approx(2000),
            cached_fraction=0,
        )

    @pytest.mark.parametrize(
        ("requests", "share"),
        [
            (108, 0.0),  # ln 4/3 is 0.29, two standard errors of 1.5 / sqrt(108) = 0.144
            (244, 0.5),  # three of 0.096
            (440, 1.0),  # more than four of 0.0715
        ],
    )
    def test_takes_more_than_a_change_to_be_believed(self, requests, share):
        found = self.shaped(output_tokens=2000 / 3, per_s=requests / 45)

        assert found.output_tokens == pytest.approx(500 * (4 / 3) ** share, rel=0.005)

    def test_of_longer_prompts_waits_for_the_answers_that_go_with_them(self):
        # Of which three quarters come from the cache, too: neither is told without the other.
        found = self.shaped(prompt_tokens=8000, computed_tokens=2000 / 4)

        assert (found.prompt_tokens, found.cached_fraction) == (2000, 0)

    def test_starts_from_what_the_fast_window_says(self):
        fast = of_lengths(output_tokens=1000, per_s=20)
        windows = {SLOW: of_lengths(), FAST: fast, BUSY: of_lengths(output_tokens=990)}

        assert measured(windows).output_tokens == pytest.approx(1000)


class TestRunning:
    """Answers that were 500 tokens, 40 ms each, run for 20 s; then they become longer."""

    def of_running(self, running, /, *, other=None, **changes):
        """Lengths where 10 requests/s came at each time and 9 of them ended in the last minute."""
        window = of_lengths(per_s=9)._replace(started_per_s=10)
        base = {
            "completed_per_s": 10,
            "token_gap_s_per_s": running,
            "token_gaps_per_s": running / 0.04,
            "prefill_s_per_s": 0,
        }
        engine = an_engine(**{"running": running, **base, **changes})
        engines = [engine]
        if other:
            gaps = {"token_gaps_per_s": other["running"] / 0.04}
            engines.append(an_engine(**base | gaps | other))
        windows = {SLOW: of_lengths(per_s=10), BUSY: window}
        told = [with_lengths(each, windows) for each in engines]
        return measure_lengths(told).output_tokens

    @pytest.mark.parametrize("age_s", [60, 90, 200])
    def test_answers_are_as_long_as_those_that_run_had_time_for(self, age_s):
        assert self.of_running(10 * age_s) == pytest.approx(age_s / 0.04, rel=0.02)

    def test_no_time_is_told_within_the_shortest_window(self):
        assert self.of_running(440) == 500  # 44 s of arrivals, which may have come at once

    def test_arrivals_of_each_window_tell_their_own_time(self):
        # 10/s in the last minute, and 2/s before that.
        steps = dict(zip(WINDOWS, (10, 10 * 45 / 105 + 2 * 60 / 105, 5, 5), strict=True))
        arrivals = {
            each: WindowRates(completed_per_s=per_s, in_flight_per_s=0, rejected_per_s=0)
            for each, per_s in steps.items()
        }

        assert self.of_running(550, arrivals=arrivals) == pytest.approx(95 / 0.04, rel=0.08)

    def test_of_several_engines_all_run_and_all_that_came_count(self):
        # One replica was added of late: few run there, and its tokens come twice as fast.
        assert self.of_running(900, other={"running": 300, "token_gap_s_per_s": 150}) == (
            pytest.approx((1200 / 20) / (1050 / 30_000), rel=0.02)
        )

    def test_gaps_of_an_engine_count_by_the_time_that_it_was_watched(self):
        # 1,200 run, as many as came in 105 s to the one, and in its 15 s to the other.
        other = {"running": 300, "token_gap_s_per_s": 150, "seconds": 15}
        gap_s = (45 * 900 + 15 * 150) / (45 * 900 / 0.04 + 15 * 300 / 0.04)

        assert self.of_running(900, other=other) == pytest.approx(105 / gap_s)

    def test_who_waits_came_last(self):
        assert self.of_running(500, waiting=400) == pytest.approx(50 / 0.04, rel=0.02)

    def test_nothing_is_told_where_more_wait_than_run(self):
        """By priorities, those that wait may have come before those that run."""
        assert self.of_running(900, waiting=901) == 500

    def test_the_time_of_prefill_is_none_of_it(self):
        assert self.of_running(900, prefill_s_per_s=20) == pytest.approx(80 / 0.04, rel=0.02)

    @pytest.mark.parametrize(
        "missing",
        [
            {"token_gaps_per_s": None},
            {"token_gap_s_per_s": None},
            {"running": None},
            {"waiting": None},
            {"completed_per_s": None},
            {"in_flight_per_s": None},
        ],
    )
    def test_nothing_is_told_of_an_engine_that_lacks_a_figure(self, missing):
        assert self.of_running(900, **missing) == 500

    def test_answers_are_longer_where_none_ended_in_the_last_minute(self):
        none = WindowRates(started_per_s=10, finished_per_s=0, finished_output_tokens_per_s=0)
        long = an_engine(running=900, completed_per_s=10, token_gaps_per_s=500)
        told = with_lengths(long, {SLOW: of_lengths(per_s=10), BUSY: none})

        assert measure_lengths([told]).output_tokens > 2000

    def test_nothing_is_told_where_more_end_than_begin(self):
        # What is left of a burst runs on, and nobody comes.
        window = of_lengths(per_s=9)._replace(started_per_s=8)
        left = an_engine(running=900, completed_per_s=1)
        told = with_lengths(left, {SLOW: of_lengths(), BUSY: window})

        assert measure_lengths([told]).output_tokens == 500

    def test_chance_is_not_taken_for_longer_answers(self):
        # 1,300 tokens have run 52 s where 20 do: a standard error is a third.
        window = {SLOW: of_lengths(output_tokens=1300, per_s=0.3)}
        window[BUSY] = window[SLOW]._replace(started_per_s=0.4)
        few = an_engine(running=20, completed_per_s=0.3, token_gaps_per_s=500)
        told = with_lengths(few, window)

        assert measure_lengths([told]).output_tokens == 1300


def is_between(value, one, other):
    low, high = sorted((one, other))
    return low * (1 - 1e-9) <= value <= high * (1 + 1e-9)
