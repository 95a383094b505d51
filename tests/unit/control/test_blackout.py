"""The fleet's circuit breaker: many objects that lose their metrics at once."""

from dataclasses import replace

import pytest

from fleet_builders import (
    NOW_S,
    a_deployment_body,
    a_fleet,
    a_manifest,
    a_memory,
    a_model,
    a_state,
)
from tonnage.control.decide.blackout import LASTS_S, LEAST_OBJECTS, ONCE_S, blackouts, loss_of
from tonnage.control.input.memory import Memory
from tonnage.control.report.conditions import conditions
from tonnage.control.tick import assess_fleet, tick
from tonnage.policy.need import CurrentTraffic

RECOMMEND = {"mode": "Recommend", "minReplicas": 1, "maxReplicas": 16}
MUCH = 6.0
"""Times what one replica serves: with headroom it takes eight of them, and two run."""
LITTLE = 0.1
"""One serves that."""
ALWAYS = {"cron": "* * * * *", "duration": "2h", "minReplicas": 5}


def an_object(name, *, load=MUCH, told_by=2, **spec):
    """``told_by``: how many of its two replicas, all Ready, have series."""
    live = a_deployment_body(a_model(name))
    state = a_state(a_manifest(name, **spec), live=live, load=load)
    return replace(state, engines=state.engines[:told_by])


def fleet_of(*, blind, others, load=MUCH):
    names = [f"m{number}" for number in range(blind + others)]
    return [
        an_object(name, load=load, told_by=0 if number < blind else 2)
        for number, name in enumerate(names)
    ]


def assessed(states, *, since_s=None, **changes):
    """Of a fleet that was seen whole. ``since_s``: since when each of the blind is; None: now."""
    memories = {
        state.view.uid: a_memory(
            state,
            measured=CurrentTraffic(requests_per_s=1.0),
            was_whole=True,
            recent_needs=((NOW_S - 600, 1), (NOW_S - 15, 1)),
            blind_since_s=since_s[number] if since_s and not state.engines else None,
        )
        for number, state in enumerate(states)
    }
    return assess_fleet(a_fleet(*states, **changes), Memory(objects=memories))


def replicas(found):
    return [each.decision.replicas for each in found]


def scaling(each):
    shown = {c.type: c for c in conditions(each, a_fleet(each.state), now="2026-01-01T00:00:00Z")}
    return shown["ScalingActive"].status, shown["ScalingActive"].reason


class TestManyAtOnce:
    def test_and_nothing_is_taken_away_of_those_that_see(self):
        found = assessed(fleet_of(blind=3, others=3, load=LITTLE))

        assert replicas(found) == [2] * 6
        seeing = found[-1]
        assert (seeing.need.replicas, seeing.decision.limited_by) == (1, "MetricsOutage")
        assert scaling(seeing) == ("True", "MetricsOutage")
        assert seeing.decision.reasons[0].message.startswith(
            "3 of 6 objects lost their metrics within 5.0 min: until they are back, or 2026-"
        )

    def test_and_who_sees_is_raised_by_its_own_series(self):
        *_, seeing = assessed(fleet_of(blind=3, others=3))

        assert (seeing.decision.replicas, seeing.decision.limited_by) == (8, "MaxReplicas")

    def test_and_who_is_blind_itself_is_not_raised_by_what_is_left(self):
        half_blind = [an_object(name, told_by=1) for name in ("m0", "m1", "m2")]

        found = assessed(half_blind)

        assert replicas(found) == [2, 2, 2]
        assert {each.decision.limited_by for each in found} == {"MetricsOutage"}
        assert {scaling(each) for each in found} == {("False", "MetricsOutage")}

    def test_and_the_floors_of_schedules_and_min_replicas_hold(self):
        blind = [an_object(name, told_by=1) for name in ("m0", "m1")]
        bounds = {"minReplicas": 1, "maxReplicas": 8}
        planned = an_object("m2", told_by=1, scaling=bounds | {"schedules": [ALWAYS]})
        least = an_object("m3", told_by=1, scaling=bounds | {"minReplicas": 4})

        assert replicas(assessed([*blind, planned, least])) == [2, 2, 5, 4]

    def test_and_it_ends_half_an_hour_after_the_loss(self):
        states = [an_object(name, told_by=0) for name in ("m0", "m1", "m2")]
        seeing = an_object("m3", load=LITTLE)

        held = assessed([*states, seeing], since_s=[NOW_S - LASTS_S + 1] * 4)
        ended = assessed([*states, seeing], since_s=[NOW_S - LASTS_S] * 4)

        assert [found[-1].blackout is None for found in (held, ended)] == [False, True]
        assert [found[-1].decision.replicas for found in (held, ended)] == [2, 1]

    @pytest.mark.parametrize("blind", [0, LEAST_OBJECTS - 1])
    def test_are_more_than_a_few(self, blind):
        *_, seeing = assessed(fleet_of(blind=blind, others=1))

        assert (seeing.blackout, scaling(seeing)) == (None, ("True", "Scaling"))

    @pytest.mark.parametrize(("others", "are_held"), [(7, True), (8, False)])
    def test_are_three_tenths_of_the_fleet_at_least(self, others, are_held):
        *_, seeing = assessed(fleet_of(blind=3, others=others))

        assert (seeing.blackout is not None) is are_held

    def test_are_not_those_that_went_blind_one_after_the_other(self):
        *_, seeing = assessed(
            fleet_of(blind=3, others=3),
            since_s=[NOW_S - 3 * ONCE_S, NOW_S - ONCE_S, NOW_S, 0, 0, 0],
        )

        assert seeing.blackout is None


class TestFirstSight:
    """Of a process that begins, and of an object that is new: nothing was seen, so nothing lost."""

    def test_of_the_blind_holds_nobody(self):
        crowd = [an_object(f"m{number}", told_by=number % 2) for number in range(6)]

        outcome = tick(a_fleet(*crowd, an_object("m6")), Memory())

        *_, seeing = outcome.found
        assert {each.blackout for each in outcome.found} == {None}
        assert (seeing.decision.replicas, scaling(seeing)) == (8, ("True", "Scaling"))

    def test_holds_nobody_in_the_ticks_after_it_either(self):
        crowd = [an_object(f"m{number}", told_by=number % 2) for number in range(6)]
        first = tick(a_fleet(*crowd), Memory())

        outcome = tick(a_fleet(*crowd, now_s=NOW_S + 15), first.memory)

        assert {each.blackout for each in outcome.found} == {None}


class TestAnswersThatAreNotWhole:
    PARTIAL = frozenset({"scrapes"})

    def test_hold_no_raise_of_an_object_that_all_its_own_pods_tell_of(self):
        found = assessed(fleet_of(blind=0, others=4), partial=self.PARTIAL)

        assert replicas(found) == [8] * 4
        assert {each.blackout for each in found} == {None}

    def test_take_nothing_away(self):
        found = assessed(fleet_of(blind=0, others=4, load=LITTLE), partial=self.PARTIAL)

        assert replicas(found) == [2] * 4
        assert {each.decision.limited_by for each in found} == {"MetricsMissing"}


class TestNamespaces:
    """Of (namespace, blind?) for each object, told by what the loop remembers."""

    def dark(self, *objects):
        found = [
            replace(
                each,
                state=replace(each.state, view=replace(each.state.view, namespace=namespace)),
                memory=replace(
                    each.memory,
                    traffic=replace(each.memory.traffic, blind_since_s=NOW_S if is_blind else None),
                ),
            )
            for each, (namespace, is_blind) in zip(
                assessed([an_object(f"m{k}") for k in range(len(objects))]), objects, strict=True
            )
        ]
        return set(blackouts(loss_of(each, NOW_S) for each in found))

    def test_the_blind_of_one_hold_nothing_of_another(self):
        assert self.dark(*[("theirs", True)] * 3, *[("ours", False)] * 3) == {"theirs"}

    def test_where_half_of_them_went_blind_all_are_held(self):
        objects = [("a", True), ("b", True), ("b", True), ("c", False)]

        assert self.dark(*objects) == {"a", "b", "c"}

    def test_where_fewer_than_half_of_them_went_blind_each_is_held_for_itself(self):
        lost = [(name, True) for name in ("a", "b") for _ in range(3)]
        seen = [(name, False) for name in ("c", "d", "e")]

        assert self.dark(*lost, *seen) == {"a", "b"}

    def test_objects_that_only_look_on_do_not_count(self):
        watchers = [an_object(f"m{k}", told_by=0, scaling=RECOMMEND) for k in range(3)]

        assert not blackouts(loss_of(each, NOW_S) for each in assessed(watchers))


def test_an_object_that_tells_its_traffic_again_is_blind_no_longer():
    (found,) = assessed([an_object("m0")], since_s=[NOW_S - 60])
    (blind,) = assessed([an_object("m0", told_by=0)])

    assert found.memory.traffic.blind_since_s is None
    assert blind.memory.traffic.blind_since_s == NOW_S


def test_an_object_without_a_replica_to_scrape_lost_no_metrics():
    state = a_state(a_manifest("m0"), live=a_deployment_body(a_model("m0")), pods=[], engines=())
    (found,) = assessed([state])

    assert found.memory.traffic.blind_since_s is None
