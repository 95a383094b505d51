"""What a plan is asked with: the same until what is believed has clearly left it."""

from dataclasses import replace

import pytest

from builders import a_prior
from measured_builders import a_posterior
from tonnage.estimate.learner import prior_posterior, slow_end
from tonnage.estimate.planning_constants import Belief, has_left, planning_constants_now, step_ratio

CONSTANTS = a_prior()
PRIOR = prior_posterior(CONSTANTS, spread_fraction=0.2)
SURE = a_posterior(covariance=(0.0,) * 6)


def asked(posterior, last=None, *, key="k", share=0.0, now_s=100.0):
    return planning_constants_now(posterior, last, key=key, share=share, now_s=now_s)


def of(**factors):
    """``SURE`` with some constants so many times theirs."""
    return replace(SURE, **{name: each * getattr(SURE, name) for name, each in factors.items()})


class TestAsked:
    def test_is_the_middle_and_the_slow_end_of_what_is_believed(self):
        found = asked(PRIOR, share=0.8)

        assert found.middle == PRIOR
        assert found.slow == slow_end(PRIOR, share=0.8)
        assert (found.key, found.since_s) == ("k", 100)

    @pytest.mark.parametrize(
        "near",
        [
            {"bandwidth_efficiency": 1.06},  # half of a step
            {"bandwidth_efficiency": 0.945},
            {"overhead_factor": 1.15},  # a fifth
            {"prefill_efficiency": 1.10},  # three tenths
        ],
        ids=str,
    )
    def test_stays_within_three_percent_of_a_step(self, near):
        first = asked(SURE)

        assert asked(of(**near), first, now_s=200) is first

    @pytest.mark.parametrize(("factor", "is_taken"), [(1.05, True), (1.07, False), (1000, False)])
    def test_goes_on_from_the_constants_of_a_status_within_the_same_band(self, factor, is_taken):
        known = of(bandwidth_efficiency=factor).constants

        found = asked(SURE, known)

        assert found.slow.constants == pytest.approx(known if is_taken else SURE.constants)
        assert found.middle == SURE

    @pytest.mark.parametrize(
        "far",
        [
            {"bandwidth_efficiency": 1.065},
            {"bandwidth_efficiency": 0.94},
            {"overhead_factor": 1.17},
            {"prefill_efficiency": 0.90},
            # Each alone would stay; together they make a step 4 % longer.
            {"overhead_factor": 1.10, "bandwidth_efficiency": 0.96},
        ],
        ids=str,
    )
    def test_moves_beyond(self, far):
        first = asked(SURE)

        moved = asked(of(**far), first, now_s=200)

        assert (moved.middle, moved.since_s) == (of(**far), 200)

    def test_stays_within_one_percent_once_the_same_was_asked_for_ten_minutes(self):
        # Half of a step: 1.5 % shorter, and 0.7 %.
        first, far, near = (
            asked(SURE),
            of(bandwidth_efficiency=1.03),
            of(bandwidth_efficiency=1.014),
        )

        assert asked(far, first, now_s=699) is first
        assert asked(far, first, now_s=700).since_s == 700
        assert asked(near, first, now_s=700) is first

    def test_moves_where_two_constants_change_against_each_other(self):
        # A typical step is as long as before, one of long contexts is not.
        shifted = of(overhead_factor=1.30, bandwidth_efficiency=1.11)

        assert has_left(shifted, SURE)
        assert asked(shifted, asked(SURE)).middle == shifted

    def test_moves_as_doubt_becomes_less(self):
        first = asked(PRIOR, share=0.8)
        surer = replace(PRIOR, covariance=tuple(0.25 * each for each in PRIOR.covariance))

        assert asked(surer, first, share=0.8).slow == slow_end(surer, share=0.8)

    def test_of_another_key_is_asked_anew(self):
        assert asked(SURE, asked(SURE), key="other", now_s=200).since_s == 200


class TestBelief:
    def held(self, posterior, *, share=0.0):
        return Belief(
            constants=CONSTANTS,
            prior=PRIOR,
            widest=PRIOR,
            posterior=posterior,
            asked=asked(posterior, share=share),
        )

    def test_of_the_prior_is_not_measured(self):
        held = self.held(PRIOR, share=0.8)

        assert not held.is_measured
        assert step_ratio(held.posterior, held.prior) == pytest.approx(1)
        assert step_ratio(held.asked.slow, held.posterior) == pytest.approx(1.2)

    def test_says_how_much_longer_a_step_is_than_the_prior_said(self):
        slower = replace(
            PRIOR,
            overhead_factor=1.3,
            bandwidth_efficiency=PRIOR.bandwidth_efficiency / 1.3,
            prefill_efficiency=PRIOR.prefill_efficiency / 1.3,
            num_windows=1,
        )

        assert self.held(slower).is_measured
        held = self.held(slower)

        assert step_ratio(held.posterior, held.prior) == pytest.approx(1.3)
        assert step_ratio(held.asked.slow, held.posterior) == pytest.approx(1)

    def test_gives_constants_that_sizing_takes(self):
        assert self.held(PRIOR).constants_at(PRIOR) == CONSTANTS
