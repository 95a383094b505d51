"""What an object believes of its engines, what it is staffed for, and how that is said."""

from dataclasses import replace

import pytest

from fleet_builders import a_fleet, a_manifest, a_sizing, a_state, assessed
from measured_builders import a_posterior
from tonnage.estimate.calibration import Calibrations, Scope, speed_key
from tonnage.estimate.learner import deviation_of_step
from tonnage.estimate.posterior import ObjectPosterior
from tonnage.sizing.request import spread_of

SIZING = a_sizing()
KEY = speed_key(SIZING.request, SIZING.flags)
SPREAD = spread_of(SIZING.request)
CAUTIOUS = {"speed_range": 0.8}
SURE = (0.0001, 0.0, 0.0, 0.0001, 0.0, 0.0001)


def planned(state=None, *, settings=None, known=None, memory=None):
    state = state or a_state(load=1.5)
    fleet = a_fleet(state, settings=settings or {}, calibrations=known or Calibrations())
    return assessed(state, fleet=fleet, memory=memory)


def learned(**changes):
    prior = SIZING.request.speed
    posterior = a_posterior(
        **{
            "bandwidth_efficiency": prior.bandwidth_efficiency,
            "prefill_efficiency": prior.prefill_efficiency,
            "covariance": SURE,
            "learned_at_s": 0,
        }
        | changes
    )
    return Calibrations(speed={Scope("serving", KEY): posterior})


def codes(found):
    return [reason.code for reason in found.decision.notes]


class TestAnUnmeasuredObject:
    def test_is_staffed_for_the_slow_end_of_the_prior(self):
        state = a_state(load=1.9)

        middle, slow = planned(state), planned(state, settings=CAUTIOUS)

        assert middle.decision.replicas == 2
        assert slow.decision.replicas > 2
        assert slow.sizing.goodput_requests_per_s < 0.85 * middle.sizing.goodput_requests_per_s

    def test_takes_every_part_of_a_step_for_longer_by_the_spread_of_its_class(self):
        prior = SIZING.request.speed

        speed = planned(settings=CAUTIOUS).sizing.request.speed

        assert prior.bandwidth_efficiency / speed.bandwidth_efficiency == pytest.approx(1 + SPREAD)
        assert prior.prefill_efficiency / speed.prefill_efficiency == pytest.approx(1 + SPREAD)
        assert speed.per_step_s / prior.per_step_s == pytest.approx(1 + SPREAD)

    def test_says_so_with_numbers(self):
        [reason] = [
            each
            for each in planned(settings=CAUTIOUS).decision.notes
            if each.code == "CapacityUncertain"
        ]

        assert reason.message == (f"unmeasured: plan adds {SPREAD:.0%} to step time (80% interval)")

    def test_of_no_range_stands_on_the_middle_and_says_nothing(self):
        found = planned()

        assert found.sizing.request.speed == SIZING.request.speed
        assert "CapacityUncertain" not in codes(found)

    def test_falls_back_to_the_middle_where_the_slow_end_keeps_no_promise(self):
        # One request alone takes 13.8 ms a token by the prior, and 15.9 at the slow end.
        slo = {"timeToFirstToken": {"p95": "2s"}, "timePerOutputToken": {"p95": "15ms"}}
        state = a_state(a_manifest(slo=slo), replicas=None)

        middle, slow = planned(state), planned(state, settings=CAUTIOUS)

        assert middle.refusal is None
        assert slow.refusal is None
        assert slow.sizing.request.speed == SIZING.request.speed


class TestAMeasuredObject:
    def test_loses_its_doubt_as_evidence_comes(self):
        known = learned(num_windows=20)

        found = planned(known=known, settings=CAUTIOUS)

        assert "CapacityUncertain" not in codes(found)
        assert found.sizing.goodput_requests_per_s == pytest.approx(
            SIZING.goodput_requests_per_s, rel=0.05
        )

    def test_with_doubt_left_says_on_how_much_it_stands(self):
        known = learned(num_windows=7, covariance=(0.01, 0.0, 0.0, 0.01, 0.0, 0.01))

        [reason] = [
            each
            for each in planned(known=known, settings=CAUTIOUS).decision.notes
            if each.code == "CapacityUncertain"
        ]

        # A tenth on each: 6.2 % of a step, and 1.28 times that.
        assert "plan adds 8% to step time" in reason.message
        assert reason.message.startswith("7 windows of evidence")

    def test_says_that_its_speed_is_measured(self):
        [speed] = [
            each
            for each in planned(known=learned()).sizing.request.inputs
            if each.name == "bandwidth efficiency"
        ]

        assert speed.origin == "measured"

    def test_of_old_evidence_doubts_it_again(self):
        fresh = planned(known=learned(learned_at_s=a_fleet().now_s))
        old = planned(known=learned(learned_at_s=a_fleet().now_s - 30 * 86_400))

        assert deviation_of_step(fresh.chosen.belief.posterior) == pytest.approx(0.01)
        assert deviation_of_step(old.chosen.belief.posterior) > 0.05


class TestItsOwnCache:
    def test_is_believed_for_the_flags_that_it_was_reported_with(self):
        state = a_state(load=1.5)
        found = planned(state)
        own = ObjectPosterior(memory_key="another", kv_tokens=20_000)

        other = planned(state, memory=replace(found.memory, posterior=own))

        assert other.sizing.kv_tokens == pytest.approx(SIZING.kv_tokens)
