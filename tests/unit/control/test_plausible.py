"""Whether engines are no faster than they can be: what is said, and of which pod."""

import math
from dataclasses import replace

import pytest

from fleet_builders import (
    NOW_S,
    a_fleet,
    a_memory,
    a_pod_body,
    a_sizing,
    a_state,
    remembering,
)
from fleet_builders import assessed as assess_one
from measured_builders import a_posterior, an_engine
from tonnage.api.status import Condition
from tonnage.control.input.memory import PodSpeed
from tonnage.control.measure.causes import utilization
from tonnage.control.report.calibrated import (
    KEPT_S,
    MIN_WINDOWS,
    speed_plausible,
    with_speeds,
)
from tonnage.estimate.calibration import Calibrations, Scope, speed_key


def a_speed(*, behind=1.0, mbu=0.5, mfu=0.1, **changes):
    """A pod that was seen often."""
    speed = PodSpeed(
        node="node-1",
        slower=math.log(behind),
        mbu=mbu,
        mfu=mfu,
        seen_at_s=NOW_S,
        windows=MIN_WINDOWS,
    )
    return replace(speed, **changes)


def that_was(status, *, generation=None):
    """The condition as it was at the last tick."""
    return Condition(
        type="SpeedPlausible",
        status=status,
        reason="Before",
        message="",
        last_transition_time="2026-01-01T00:00:00Z",
        observed_generation=generation,
    )


def judged(*speeds, learned=None, before=None, generation=None):
    """What is said of pods with these speeds."""
    state = a_state()
    known = {f"pod-{at}": speed for at, speed in enumerate(speeds)}
    conditions = {"SpeedPlausible": that_was(before, generation=generation)} if before else {}
    memory = a_memory(state, speeds=known, conditions=conditions)
    sizing = a_sizing()
    scope = Scope("serving", speed_key(sizing.request, sizing.flags))
    calibrations = Calibrations(speed={scope: learned} if learned else {})
    fleet = a_fleet(state, calibrations=calibrations, settings={"speed_range": 0})
    return speed_plausible(assess_one(state, memory=memory, fleet=fleet), known)


class TestWhatIsPossible:
    def test_says_the_figures(self):
        found = judged(a_speed(mbu=0.5), a_speed(mbu=0.5))

        assert (found.state, found.reason) == ("True", "Plausible")
        assert found.message == "MBU 50%, MFU 10%"

    def test_is_left_by_clearly_more_than_it_is_come_back_to(self):
        near = a_speed(mbu=0.98), a_speed(mbu=0.98)

        assert judged(*near, before="True").state == "True"
        assert judged(*near, before="False").state == "False"
        assert judged(a_speed(mbu=0.96), a_speed(mbu=0.96), before="False").state == "True"

    @pytest.mark.parametrize(("figure", "value"), [("mbu", 1.02), ("mfu", 1.3)])
    def test_nothing_is_faster_than_the_hardware(self, figure, value):
        found = judged(a_speed(**{figure: value}), a_speed(**{figure: value}))

        assert (found.state, found.reason) == ("False", "FasterThanPossible")
        assert f"{figure.upper()} {value:.0%}" in found.message

    def test_two_of_three_pods_decide_what_the_figure_is(self):
        liar = a_speed(mbu=40.0, behind=0.01)

        assert judged(a_speed(), liar, a_speed()).state == "True"


class TestConstants:
    def test_at_the_bound_of_the_learner_are_named(self):
        slow = a_posterior(overhead_factor=5.0, learned_at_s=NOW_S)

        found = judged(a_speed(), a_speed(), learned=slow)

        assert (found.state, found.reason) == ("False", "ConstantOutOfRange")
        assert "overhead factor 5.00, plausible are 0.20 to 5.00" in found.message

    def test_an_efficiency_above_one_is_named_when_it_is_sure(self):
        sure, vague = (
            a_posterior(
                bandwidth_efficiency=1.2,
                covariance=(0.01, 0.0, 0.0, deviation**2, 0.0, 0.01),
                learned_at_s=NOW_S,
            )
            for deviation in (0.02, 0.2)
        )

        assert judged(a_speed(), learned=sure).reason == "ConstantOutOfRange"
        assert judged(a_speed(), learned=vague).state == "True"


class TestASlowPod:
    def test_is_named_with_its_node(self):
        found = judged(a_speed(), a_speed(behind=1.2, node="node-7"), a_speed())

        assert (found.state, found.reason) == ("False", "SlowPod")
        assert "steps of pod-1 on node node-7 take 20% longer" in found.message

    @pytest.mark.parametrize(("behind", "state"), [(1.14, "True"), (1.16, "False")])
    def test_of_two_is_the_slower_one_by_more_than_fifteen_percent(self, behind, state):
        assert judged(a_speed(), a_speed(behind=behind)).state == state

    def test_cannot_be_told_of_one(self):
        assert judged(a_speed(behind=1.4)).state == "True"

    def test_without_a_node_is_named_alone(self):
        found = judged(a_speed(), a_speed(behind=1.5, node=None))

        assert "steps of pod-1 take 50% longer" in found.message


class TestWhatIsRemembered:
    def after(self, *ticks, pods="ab"):
        """What is remembered after ticks, each {pod: gap in seconds}."""
        state = a_state(pods=[a_pod_body(pod) for pod in pods])
        memory = a_memory(state)
        for at, gaps in enumerate(ticks):
            engines = tuple(
                an_engine(
                    pod,
                    token_gap_s_per_s=20,
                    token_gaps_per_s=20 / gap_s,
                    computed_prompt_tokens_per_s=160 / gap_s,
                )
                for pod, gap_s in gaps.items()
            )
            now = replace(state, engines=engines)
            fleet = a_fleet(now, now_s=NOW_S + 15 * at, settings={"speed_range": 0})
            found = assess_one(now, memory=memory, fleet=fleet)
            used = utilization(found, found.chosen, fleet)
            memory = remembering(found.memory, speeds=with_speeds(found, used.speeds, fleet.now_s))
        return memory.reported.speeds

    def test_is_how_far_a_pod_is_behind_the_prediction(self):
        speeds = self.after({"a": 0.040, "b": 0.048})

        assert math.exp(speeds["b"].slower - speeds["a"].slower) == pytest.approx(1.2, rel=0.05)
        assert speeds["a"].mbu == pytest.approx(1.2 * speeds["b"].mbu, rel=0.05)

    def test_moves_by_a_part_of_what_is_new(self):
        one, two = self.after({"a": 0.040}), self.after({"a": 0.040}, {"a": 0.080})
        new = self.after({"a": 0.080})

        expected = one["a"].slower + 0.3 * (new["a"].slower - one["a"].slower)
        assert two["a"].slower == pytest.approx(expected)
        assert two["a"].windows == 2

    def test_outlasts_a_quiet_time_but_not_a_long_one(self):
        quiet = [{} for _ in range(2)]
        long = [{} for _ in range(math.ceil(KEPT_S / 15))]

        assert set(self.after({"a": 0.040}, *quiet)) == {"a"}
        assert set(self.after({"a": 0.040}, *long)) == set()

    def test_is_not_judged_before_it_was_seen_often(self):
        found = judged(a_speed(mbu=9.0, windows=MIN_WINDOWS - 1))

        assert (found.state, found.reason) == ("Unknown", "NotBusy")

    @pytest.mark.parametrize("status", ["True", "False"])
    def test_leaves_what_was_said_of_the_spec_until_it_is_judged_anew(self, status):
        young = a_speed(mbu=9.0, windows=MIN_WINDOWS - 1)

        found = judged(young, before=status, generation=1)
        of_another_spec = judged(young, before=status, generation=0)
        idle = judged(before=status, generation=1)

        assert (found.state, found.reason) == (status, "Before")
        assert of_another_spec.reason == idle.reason == "NotBusy"
