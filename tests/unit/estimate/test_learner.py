"""Constants of a step, learned from windows: what moves them, how far, and how sure they are."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from measured_builders import a_machine, a_window, slowed
from strategies import numbers
from tonnage.estimate.learner import (
    BAND,
    LARGEST_STEP,
    SHARES,
    PodWindow,
    age,
    constants_of,
    deviation_of_step,
    learn,
    prior_posterior,
    quantile_z,
    slow_end,
)
from tonnage.estimate.posterior import SpeedPosterior, is_positive_semidefinite
from tonnage.estimate.speed import predicted_gap_s, prefill_share, with_speed

MACHINE = a_machine()
CONSTANTS = MACHINE.constants
PRIOR = prior_posterior(CONSTANTS, spread_fraction=0.2)
MINUTE_S, HOUR_S, DAY_S = 60.0, 3600.0, 86_400.0
APART = (
    {"decoding": 2, "context_tokens": 300, "prompts_per_s": 0.5},
    {"decoding": 10, "context_tokens": 6000, "prompts_per_s": 2},
    {"decoding": 25, "context_tokens": 1000, "prompts_per_s": 6},
    {"decoding": 60, "context_tokens": 7000, "prompts_per_s": 1},
)
"""States that differ as much as an engine's may."""
ONE = ({"decoding": 25},)


def hidden(overhead=1.0, bandwidth=1.0, prefill=1.0):
    """A machine whose constants are so many times those of the prior."""
    constants = with_speed(
        CONSTANTS,
        (
            overhead,
            bandwidth * CONSTANTS.bandwidth_efficiency,
            prefill * CONSTANTS.prefill_efficiency,
        ),
    )
    return replace(MACHINE, constants=constants)


def a_pod(*windows, pod="a"):
    return PodWindow(pod=pod, model=MACHINE, engines=windows)


def after(windows, *, known=PRIOR, from_s=0.0):
    """What is known after these windows of one pod, a minute each."""
    for number, window in enumerate(windows, start=1):
        known = learn(known, PRIOR, [a_pod(window)], now_s=from_s + number * MINUTE_S)
    return known


def taught(truth, *, states=APART, windows=60):
    """What is known after an engine was in these states in turn."""
    made = [a_window(truth, **state) for state in states]
    return after([made[number % len(made)] for number in range(windows)])


def ratios(known):
    """The three constants over those of the prior."""
    return (
        known.overhead_factor,
        known.bandwidth_efficiency / CONSTANTS.bandwidth_efficiency,
        known.prefill_efficiency / CONSTANTS.prefill_efficiency,
    )


def gap_ratio(known, window):
    """The gap as it is believed in the state of a window, over that measured."""
    believed = replace(MACHINE, constants=constants_of(known, CONSTANTS))
    return predicted_gap_s(believed, window) / window.gap_s


def longer(factor, **state):
    """A window of the prior's machine whose gaps were so many times as long."""
    window = a_window(MACHINE, **({"decoding": 25} | state))
    return replace(window, gap_s=factor * window.gap_s, prefill_s=None)


KNOWN = after([longer(1.0)] * 30)
"""After half an hour of what was believed: sure of the step of 25 sequences, to half a percent."""


def log_gap_variance(known, window):
    """The doubt of the logarithm of a gap in the state of a window, by differences of 2 %."""

    def log_gap(name, by):
        moved = replace(known, **{name: math.exp(by) * getattr(known, name)})
        return math.log(gap_ratio(moved, window))

    names = ("overhead_factor", "bandwidth_efficiency", "prefill_efficiency")
    o, b, f = ((log_gap(name, 0.01) - log_gap(name, -0.01)) / 0.02 for name in names)
    oo, ob, of, bb, bf, ff = known.covariance
    return o * o * oo + b * b * bb + f * f * ff + 2 * (o * b * ob + o * f * of + b * f * bf)


def correlation(known):
    o, ob, _, b, _, _ = known.covariance
    return ob / math.sqrt(o * b)


class TestConvergence:
    @pytest.mark.parametrize(
        "truth",
        [(1.5, 0.85, 0.8), (0.7, 1.1, 1.2), (1.0, 0.8, 1.0), (2.0, 0.9, 0.7), (1.0, 1.0, 1.0)],
        ids=str,
    )
    def test_is_to_the_hidden_constants_where_states_differ(self, truth):
        found = ratios(taught(hidden(*truth), windows=120))

        assert found[0] == pytest.approx(truth[0], rel=0.10)
        assert found[1] == pytest.approx(truth[1], rel=0.03)
        assert found[2] == pytest.approx(truth[2], rel=0.02)

    @pytest.mark.parametrize("truth", [(1.5, 0.85, 0.8), (0.7, 1.1, 1.2)], ids=str)
    def test_is_within_its_own_doubt(self, truth):
        known = taught(hidden(*truth), windows=120)
        o, _, _, b, _, f = known.covariance

        for value, wanted, variance in zip(ratios(known), truth, (o, b, f), strict=True):
            assert abs(math.log(value / wanted)) <= 2.5 * math.sqrt(variance)

    def test_of_one_state_knows_its_step_and_not_what_it_is_made_of(self):
        truth = hidden(2.0, 0.9, 0.7)

        known = taught(truth, states=ONE)

        assert gap_ratio(known, a_window(truth, **ONE[0])) == pytest.approx(1, abs=1e-3)
        assert abs(math.log(ratios(known)[0] / 2.0)) > 0.2
        # A longer overhead and less bandwidth say the same: what is shared is tied.
        assert correlation(known) > 0.8

    def test_of_states_that_differ_lets_them_come_apart(self):
        assert correlation(taught(hidden())) < correlation(taught(hidden(), states=ONE)) - 0.1

    def test_of_steps_without_prompts_leaves_what_prompts_take(self):
        known = taught(hidden(1.2, 0.9, 0.5), states=ONE)

        assert ratios(known)[2] == pytest.approx(1, abs=0.06)
        assert known.covariance[5] == pytest.approx(PRIOR.covariance[5], rel=1e-3)

    def test_counts_windows_and_steps(self):
        window = longer(1.0)

        known = after([window] * 3)

        assert known.num_windows == 3
        # 25 decode in the mean: the mean token meets a step of nearly 26.
        assert known.num_steps == pytest.approx(3 * window.num_gaps / 26, rel=0.01)
        assert known.learned_at_s == 3 * MINUTE_S


class TestBounds:
    @pytest.mark.parametrize("factor", [1 / 20, 20])
    def test_a_constant_stays_within_its_band_whatever_lasts(self, factor):
        truth = replace(MACHINE, constants=slowed(CONSTANTS, factor))
        window = a_window(truth, decoding=25)

        found = ratios(after([window] * 300))

        for ratio, band in zip(found, BAND, strict=True):
            assert 1 / band - 1e-9 <= ratio <= band + 1e-9

    @pytest.mark.parametrize(("factor", "band"), [(20, (5, 1 / 2.5)), (1 / 20, (1 / 5, 2.5, 2.5))])
    def test_an_engine_that_cannot_be_is_at_the_ends_of_the_band(self, factor, band):
        window = a_window(replace(MACHINE, constants=slowed(CONSTANTS, factor)), decoding=25)

        assert ratios(after([window] * 300))[: len(band)] == pytest.approx(band)

    @given(st.lists(numbers(0.05, 20), min_size=1, max_size=30))
    @settings(max_examples=25, deadline=None)
    def test_no_window_moves_a_constant_by_more_than_the_largest_step(self, factors):
        # A window has two figures, gaps and prefills: each may move by one step.
        state = {"decoding": 25, "prompts_per_s": 4}
        base, known = a_window(MACHINE, **state), PRIOR
        for number, factor in enumerate(factors, start=1):
            window = replace(base, gap_s=factor * base.gap_s)
            moved = after([window], known=known, from_s=number * MINUTE_S)

            for before, now in zip(ratios(known), ratios(moved), strict=True):
                assert abs(math.log(now / before)) <= 2 * LARGEST_STEP + 1e-9
            known = moved


class TestTheGate:
    @pytest.mark.parametrize("factor", [0.01, 0.5, 1.3, 2, 100])
    def test_one_window_that_cannot_be_moves_nothing(self, factor):
        found = after([longer(factor)], known=KNOWN, from_s=1800)

        assert ratios(found) == ratios(KNOWN)
        assert deviation_of_step(found) >= deviation_of_step(KNOWN)

    def test_nor_do_two_with_a_good_one_between(self):
        found = after([longer(1.5), longer(1.0), longer(1.5)], known=KNOWN, from_s=1800)

        assert gap_ratio(found, longer(1.0)) == pytest.approx(1, abs=5e-3)

    def test_two_in_a_row_that_are_slower_are_a_new_regime(self):
        one, two = (after([longer(1.3)] * n, known=KNOWN, from_s=1800) for n in (1, 2))

        assert gap_ratio(one, longer(1.0)) == pytest.approx(1)
        assert gap_ratio(two, longer(1.0)) > 1.15

    def test_of_faster_ones_it_takes_three(self):
        two, three = (after([longer(0.75)] * n, known=KNOWN, from_s=1800) for n in (2, 3))

        assert gap_ratio(two, longer(1.0)) == pytest.approx(1)
        assert gap_ratio(three, longer(1.0)) < 0.9

    def test_one_slower_and_one_faster_are_none(self):
        found = after([longer(1.5), longer(0.6), longer(1.5)], known=KNOWN, from_s=1800)

        assert ratios(found) == ratios(KNOWN)

    @pytest.mark.parametrize("factor", [0.6, 0.8, 1.25, 1.5, 2.0])
    def test_a_new_regime_is_known_within_a_quarter_of_an_hour(self, factor):
        truth = replace(MACHINE, constants=slowed(CONSTANTS, factor))
        window = a_window(truth, decoding=25)

        found = after([window] * 15, known=KNOWN, from_s=1800)

        assert gap_ratio(found, window) == pytest.approx(1, abs=0.05)

    def test_of_a_prefill_that_cannot_be_moves_a_little_and_is_no_surer(self):
        base = a_window(MACHINE, decoding=25, prompts_per_s=4)
        known = after([base] * 30)

        found = after([replace(base, prefill_s=10 * base.prefill_s)], known=known, from_s=1800)
        as_believed = after([base], known=known, from_s=1800)

        assert ratios(found)[2] < ratios(known)[2]
        assert ratios(found)[2] > 0.8 * ratios(known)[2]
        assert deviation_of_step(found) >= deviation_of_step(as_believed)

    def test_of_a_prefill_that_cannot_be_moves_as_much_as_one_that_just_can(self):
        base = a_window(MACHINE, decoding=25, prompts_per_s=4)
        known = after([base] * 30)

        def moved(by):
            window = replace(base, prefill_s=math.exp(by) * base.prefill_s)
            return -math.log(ratios(after([window], known=known, from_s=1800))[2])

        steps = [later - before for before, later in pairwise(moved(0.02 * n) for n in range(40))]
        assert max(steps) == pytest.approx(steps[0], rel=0.05)
        assert moved(5.0) == pytest.approx(moved(0.8))

    def test_a_new_regime_leaves_half_of_the_doubt_there_was_at_first(self):
        sure = replace(KNOWN, covariance=(1e-6, 0, 0, 1e-6, 0, 1e-6))

        found = after([longer(1.3)] * 2, known=sure, from_s=1800)

        # No prompts came, so nothing is learned of what they take.
        assert found.covariance[5] == pytest.approx(0.5 * PRIOR.covariance[5], rel=0.01)


class TestMisfit:
    """What no constants explain, where an engine changes again and again."""

    def again(self, ago_s, *, factor=1.3):
        """Two windows that make a regime, so long after the last one."""
        known = replace(KNOWN, regime_at_s=1800 + 2 * MINUTE_S - ago_s)
        return after([longer(factor)] * 2, known=known, from_s=1800)

    @pytest.mark.parametrize("ago_s", [599, 2401])
    def test_is_none_where_the_engine_still_changes_or_did_long_ago(self, ago_s):
        assert self.again(ago_s).misfit == 0

    def test_is_none_at_the_first_change(self):
        found = after([longer(1.3)] * 2, known=KNOWN, from_s=1800)

        assert (found.misfit, found.surprise, found.regime_at_s) == (0, 0, 1920)

    @pytest.mark.parametrize(("factor", "residual"), [(1.3, math.log(1.3)), (math.exp(2), 1.0)])
    def test_is_three_tenths_of_the_square_of_what_comes_soon_again(self, factor, residual):
        assert self.again(1200, factor=factor).misfit == pytest.approx(
            math.sqrt(0.3 * residual**2), rel=0.01
        )

    def test_is_half_of_its_square_after_35_minutes(self):
        found = after([longer(1.0)] * 35, known=replace(KNOWN, misfit=0.1), from_s=1800)

        assert found.misfit**2 == pytest.approx(0.5 * 0.1**2, rel=0.02)

    def test_makes_windows_teach_less_by_its_square(self):
        def untaught(misfit):
            """What a window shows over what is learned of it: 1 and its doubt over that before."""
            found = after([longer(1.01)], known=replace(KNOWN, misfit=misfit), from_s=1800)
            return math.log(1.01) / math.log(gap_ratio(found, longer(1.0)))

        without = untaught(0.0)
        assert untaught(0.02) - without == pytest.approx(4 * (untaught(0.01) - without), rel=0.02)

    def test_is_doubt_beside_that_of_constants_which_is_one_percent_at_least(self):
        sure = replace(PRIOR, covariance=(0.0,) * 6)

        assert deviation_of_step(sure) == 0.01
        assert deviation_of_step(replace(sure, misfit=0.1)) == pytest.approx(math.hypot(0.01, 0.1))


class TestOneWindow:
    def test_moves_a_step_by_its_share_of_all_doubt(self):
        window = longer(1.05)
        before = log_gap_variance(PRIOR, window)

        moved = math.log(gap_ratio(after([window]), window) / gap_ratio(PRIOR, window))

        assert moved == pytest.approx(math.log(1.05) * before / (before + 0.02**2), rel=0.01)

    def test_teaches_as_much_as_noise_and_the_chance_of_its_prompts_leave(self):
        base = a_window(MACHINE, decoding=25, prompts_per_s=6)
        window = replace(base, prefill_s=None)

        before, now = (log_gap_variance(known, window) for known in (PRIOR, after([window])))

        share = prefill_share(MACHINE, window)
        chance = share**2 * (1 + window.prompts.scv) / window.num_prefills
        assert 1 / now - 1 / before == pytest.approx(1 / (0.02**2 + chance), rel=0.01)


class TestVotes:
    def pods(self, *factors):
        return [a_pod(longer(factor), pod=str(n)) for n, factor in enumerate(factors)]

    def test_are_the_median_of_pods(self):
        found = learn(KNOWN, PRIOR, self.pods(1.01, 1.01, 50), now_s=1860)
        honest = learn(KNOWN, PRIOR, self.pods(1.01, 1.01, 1.01), now_s=1860)

        assert ratios(found) == pytest.approx(ratios(honest))

    @pytest.mark.parametrize(("factors", "both"), [((1.01, 1.03), 1.01), ((0.97, 0.99), 0.99)])
    def test_of_two_that_disagree_teach_what_both_say(self, factors, both):
        found = learn(KNOWN, PRIOR, self.pods(*factors), now_s=1860)
        agreed = learn(KNOWN, PRIOR, self.pods(both, both), now_s=1860)

        assert ratios(found) == pytest.approx(ratios(agreed))

    def test_of_twenty_engines_in_one_pod_are_one(self):
        liar = a_pod(*[longer(1.05)] * 20, pod="liar")

        found = learn(KNOWN, PRIOR, [liar, *self.pods(1.0, 1.0)], now_s=1860)

        assert ratios(found) == pytest.approx(ratios(KNOWN), abs=1e-9)

    def test_of_engines_within_a_pod_are_their_median_too(self):
        mixed = a_pod(longer(1.01), longer(1.01), longer(30))

        found = learn(KNOWN, PRIOR, [mixed], now_s=1860)

        assert ratios(found) == pytest.approx(
            ratios(after([longer(1.01)], known=KNOWN, from_s=1800))
        )

    def test_of_more_pods_are_surer_up_to_four(self):
        one, four, forty = (
            deviation_of_step(learn(PRIOR, PRIOR, self.pods(*[1.0] * n), now_s=60))
            for n in (1, 4, 40)
        )

        assert four < one
        assert forty == pytest.approx(four)

    def test_of_nobody_leave_everything_as_it_is(self):
        assert learn(KNOWN, PRIOR, [], now_s=9e9) is KNOWN
        assert learn(KNOWN, PRIOR, [a_pod()], now_s=9e9) is KNOWN

    def test_of_a_pod_without_prefills_count_for_gaps_alone(self):
        base = a_window(MACHINE, decoding=25, prompts_per_s=4)

        silent = after([replace(base, prefill_s=None)])
        told = after([base])

        assert silent.covariance[5] > told.covariance[5]


class TestAge:
    def test_lets_doubt_grow(self):
        hour, day = (age(KNOWN, PRIOR, now_s=KNOWN.learned_at_s + s) for s in (HOUR_S, DAY_S))

        assert deviation_of_step(KNOWN) < deviation_of_step(hour) < deviation_of_step(day)
        # 3 % after an hour, of the bandwidth alone.
        assert hour.covariance[3] == pytest.approx(KNOWN.covariance[3] + 0.03**2)

    def test_leaves_no_more_doubt_than_there_was_at_first(self):
        year = age(KNOWN, PRIOR, now_s=KNOWN.learned_at_s + 365 * DAY_S)

        for at in (0, 3, 5):
            assert year.covariance[at] <= PRIOR.covariance[at] * (1 + 1e-9)
        assert year.covariance[3] == pytest.approx(PRIOR.covariance[3])
        assert deviation_of_step(year) <= deviation_of_step(PRIOR) * (1 + 1e-9)

    def test_changes_no_constant(self):
        assert ratios(age(KNOWN, PRIOR, now_s=1e9)) == ratios(KNOWN)

    def test_of_what_nobody_learned_is_none(self):
        narrow = replace(PRIOR, covariance=tuple(0.25 * each for each in PRIOR.covariance))

        assert age(narrow, PRIOR, now_s=1e9).covariance == narrow.covariance

    def test_of_a_clock_that_went_back_is_none(self):
        assert age(KNOWN, PRIOR, now_s=0).covariance == pytest.approx(KNOWN.covariance)


class TestThePrior:
    @pytest.mark.parametrize("spread", [0.1, 0.18, 0.35])
    def test_holds_eight_of_ten_steps_within_its_spread(self, spread):
        prior = prior_posterior(CONSTANTS, spread_fraction=spread)

        # 1.2816 standard deviations on either side hold 80 %.
        assert deviation_of_step(prior) == pytest.approx(math.log1p(spread) / 1.28155, rel=1e-5)

    def test_knows_overheads_and_prefill_half_as_well_as_bandwidth(self):
        overhead, bandwidth, prefill = map(math.sqrt, PRIOR.variances)

        assert (overhead, prefill) == pytest.approx((2 * bandwidth, 2 * bandwidth))

    def test_is_of_no_window_and_the_constants_of_the_catalogue(self):
        assert constants_of(PRIOR, CONSTANTS) == CONSTANTS
        assert (PRIOR.num_windows, PRIOR.learned_at_s) == (0, 0)

    @pytest.mark.parametrize(("share", "deviations"), [(0.8, 1.2816), (0.6827, 1.0), (0, 0)])
    def test_quantiles_are_to_both_sides(self, share, deviations):
        assert quantile_z(share) == pytest.approx(deviations, abs=1e-4)


class TestTheSlowEnd:
    def test_of_the_prior_is_the_spread_of_its_table(self):
        o, b, f = ratios(slow_end(PRIOR, share=0.8))

        assert (o, b, f) == pytest.approx((1.2, 1 / 1.2, 1 / 1.2))

    @pytest.mark.parametrize("state", [*APART, *ONE], ids=str)
    def test_scales_every_part_of_a_step_by_one_factor(self, state):
        window = a_window(MACHINE, **state)

        assert gap_ratio(slow_end(PRIOR, share=0.8), window) == pytest.approx(1.2)

    def test_comes_near_the_middle_as_evidence_comes(self):
        known = taught(hidden(), windows=30)

        assert ratios(slow_end(known, share=0.8))[0] / known.overhead_factor < 1.05

    def test_of_no_range_is_the_middle(self):
        assert slow_end(PRIOR, share=0) == PRIOR


class TestTheCovariance:
    @given(st.lists(st.tuples(st.integers(0, 3), numbers(0.2, 5), numbers(0.2, 5)), max_size=80))
    @settings(max_examples=25, deadline=None)
    def test_stays_one_whatever_windows_come(self, draws):
        # Up to eighty windows of two updates each, in turn, of other states, lengths and ages.
        known = PRIOR
        for number, (state, gap, prefill) in enumerate(draws):
            base = a_window(MACHINE, **APART[state])
            window = replace(base, gap_s=gap * base.gap_s, prefill_s=prefill * base.prefill_s)
            at_s = (number + 1) * MINUTE_S * (1 + 50 * (number % 7 == 0))
            known = learn(known, PRIOR, [a_pod(window)], now_s=at_s)

            assert is_nearly_positive(known)
            assert known.covariance[3] <= PRIOR.covariance[3] * (1 + 1e-9)

    def test_stays_one_over_thousands_of_windows_that_agree(self):
        windows = [a_window(MACHINE, **state) for state in APART]
        known = PRIOR
        for number in range(2000):
            known = learn(known, PRIOR, [a_pod(windows[number % 4])], now_s=MINUTE_S * number)

        assert is_nearly_positive(known)
        assert min(known.covariance[at] for at in (0, 3, 5)) > 0


def is_nearly_positive(known: SpeedPosterior):
    """But for rounding: a ten-millionth of each correlation."""
    o, ob, of, b, bf, f = known.covariance
    kept = 1 - 1e-7
    return is_positive_semidefinite((o, kept * ob, kept * of, b, kept * bf, f))


def test_a_step_depends_on_the_constants_as_the_shares_say():
    window = a_window(MACHINE, decoding=40, prompts_per_s=6)
    more = math.exp(0.01)
    slopes = [
        math.log(gap_ratio(replace(PRIOR, **{name: more * getattr(PRIOR, name)}), window)) / 0.01
        for name in ("overhead_factor", "bandwidth_efficiency", "prefill_efficiency")
    ]

    assert [math.copysign(1, each) for each in slopes] == [math.copysign(1, s) for s in SHARES]
    assert sum(map(abs, SHARES)) == pytest.approx(1)
    assert sum(map(abs, slopes)) == pytest.approx(1, abs=0.05)
