"""The fleet's circuit breaker: many objects that lose their metrics at once."""

from dataclasses import replace

import pytest

from fleet_builders import NOW_S, a_deployment_body, a_fleet, a_manifest, a_memory, a_model, a_state
from tonnage.control.blackout import LEAST_OBJECTS, ONCE_S, blackouts
from tonnage.control.conditions import conditions
from tonnage.control.tick import assess_fleet
from tonnage.policy.need import Traffic

RECOMMEND = {"mode": "Recommend", "minReplicas": 1, "maxReplicas": 16}
MUCH = 6.0
"""Times what one replica serves: more than the two that run."""


def an_object(name, *, load=MUCH, is_blind=False, **spec):
    live = a_deployment_body(a_model(name))
    state = a_state(a_manifest(name, **spec), live=live, load=load)
    return replace(state, engines=()) if is_blind else state


def fleet_of(*, blind, others):
    names = [f"m{number}" for number in range(blind + others)]
    return [an_object(name, is_blind=number < blind) for number, name in enumerate(names)]


def assessed(states, *, since_s=None):
    """``since_s``: when each of the blind was first seen to be; None: now."""
    memories = {
        state.view.uid: a_memory(
            state,
            traffic=Traffic(requests_per_s=1.0),
            blind_since_s=since_s[number] if since_s and not state.engines else None,
        )
        for number, state in enumerate(states)
    }
    return assess_fleet(a_fleet(*states), memories)


def replicas(found):
    return {each.decision.replicas for each in found if each.state.engines}


def scaling(found):
    fleet = a_fleet(*(each.state for each in found))
    shown = [{c.type: c for c in conditions(each, fleet, now="now")} for each in found]
    return {(each["ScalingActive"].status, each["ScalingActive"].reason) for each in shown}


class TestManyAtOnce:
    def test_and_nothing_is_scaled_and_that_is_said_of_all(self):
        found = assessed(fleet_of(blind=3, others=3))

        assert replicas(found) == {2}
        assert scaling(found) == {("False", "FleetBlind")}
        reason = found[-1].decision.reasons[-1]
        assert reason.code == "FleetBlind"
        assert reason.message.startswith("3 of 6 objects lost their metrics within 5.0 min")

    def test_and_it_lasts_as_long_as_they_are_blind(self):
        found = assessed(fleet_of(blind=3, others=3), since_s=[NOW_S - 40_000] * 6)

        assert replicas(found) == {2}

    @pytest.mark.parametrize("blind", [0, LEAST_OBJECTS - 1])
    def test_are_more_than_a_few(self, blind):
        found = assessed(fleet_of(blind=blind, others=1))

        assert min(replicas(found)) > 2
        assert scaling(found) == {("True", "Scaling")}

    @pytest.mark.parametrize(("others", "are_held"), [(7, True), (8, False)])
    def test_are_three_tenths_of_the_fleet_at_least(self, others, are_held):
        found = assessed(fleet_of(blind=3, others=others))

        assert (min(replicas(found)) == 2) is are_held

    def test_are_not_those_that_went_blind_one_after_the_other(self):
        found = assessed(
            fleet_of(blind=3, others=3),
            since_s=[NOW_S - 3 * ONCE_S, NOW_S - ONCE_S, NOW_S, 0, 0, 0],
        )

        assert min(replicas(found)) > 2


class TestNamespaces:
    """Of (namespace, blind?) for each object, told by what the loop remembers."""

    def dark(self, *objects):
        found = [
            replace(
                each,
                state=replace(each.state, view=replace(each.state.view, namespace=namespace)),
                memory=replace(each.memory, blind_since_s=NOW_S if is_blind else None),
            )
            for each, (namespace, is_blind) in zip(
                assessed([an_object(f"m{k}") for k in range(len(objects))]), objects, strict=True
            )
        ]
        return set(blackouts(found))

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
        watchers = [an_object(f"m{k}", is_blind=True, scaling=RECOMMEND) for k in range(3)]

        assert not blackouts(assessed(watchers))


def test_an_object_that_tells_its_traffic_again_is_blind_no_longer():
    (found,) = assessed([an_object("m0")], since_s=[NOW_S - 60])
    (blind,) = assessed([an_object("m0", is_blind=True)])

    assert found.memory.blind_since_s is None
    assert blind.memory.blind_since_s == NOW_S


def test_an_object_without_a_replica_to_scrape_lost_no_metrics():
    state = a_state(a_manifest("m0"), live=a_deployment_body(a_model("m0")), pods=[], engines=())
    (found,) = assessed([state])

    assert found.memory.blind_since_s is None
