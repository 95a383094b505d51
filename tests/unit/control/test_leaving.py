"""Which replicas go: as many as are to, with the least to do."""

from dataclasses import replace

import pytest

from fleet_builders import (
    UNSCHEDULABLE,
    a_deployment_body,
    a_fleet,
    a_manifest,
    a_pod_body,
    a_state,
    assessed,
)
from measured_builders import an_engine
from tonnage.control.decide.situation import costs_to_go, pod_loads
from tonnage.control.report.status import report
from tonnage.control.write.writes import writes_for
from tonnage.fleet.pods import pod_view

COST = "controller.kubernetes.io/pod-deletion-cost"
INTERVAL_S = 15
TARGET = {"engine": None, "scaleTarget": {"name": "llama"}}


def a_pod(name, *, cost=None, deleting=False, **changes):
    body = a_pod_body(name, **changes)
    body["metadata"] |= {"annotations": {COST: cost}} if cost is not None else {}
    body["metadata"] |= {"deletionTimestamp": "2026-01-02T00:00:00Z"} if deleting else {}
    return body


def engines(**loads):
    return tuple(an_engine(pod, running=load, waiting=0) for pod, load in loads.items())


BUSY = {"a": 30, "b": 10, "c": 20}


def marked(num_kept, pods=None, loads=None):
    """{pod: cost} of the marks for a scale-down to so many."""
    bodies = [a_pod(name) for name in "abc"] if pods is None else pods
    state = a_state(pods=bodies, engines=engines(**(BUSY if loads is None else loads)))
    costs = costs_to_go(state, num_kept)
    assert all(each.uid == f"uid-of-{each.pod}" for each in costs)
    return {each.pod: each.cost for each in costs}


class TestWhoGoes:
    @pytest.mark.parametrize(
        ("num_kept", "costs"), [(3, {}), (2, {"b": -1}), (1, {"b": -1, "c": -1})]
    )
    def test_are_those_with_the_fewest_requests(self, num_kept, costs):
        assert marked(num_kept) == costs

    def test_what_waits_counts_as_what_runs(self):
        waits = (an_engine("a", running=1, waiting=30), an_engine("b", running=20, waiting=0))
        state = a_state(pods=[a_pod("a"), a_pod("b")], engines=waits)

        [cost] = costs_to_go(state, 1)

        assert cost.pod == "b"

    def test_the_load_of_a_pod_is_that_of_all_its_engines(self):
        ranks = (*engines(a=5, b=8), replace(engines(a=5)[0], engine="1"))

        assert pod_loads(ranks) == {"a": 10, "b": 8}

    @pytest.mark.parametrize("lack", [{"running": None}, {"waiting": None}, {"age_s": 600}])
    def test_a_pod_that_is_not_measured_is_not_idle(self, lack):
        silent = replace(engines(c=0)[0], **lack)
        state = a_state(
            pods=[a_pod(name) for name in "abc"], engines=(*engines(a=30, b=10), silent)
        )

        [cost] = costs_to_go(state, 2)

        assert cost.pod == "b"

    def test_nobody_is_marked_where_nobody_is_measured(self):
        assert marked(1, loads={}) == {}

    def test_a_pod_that_is_not_ready_goes_unmarked_before_all_others(self):
        starting = [a_pod("a"), a_pod("b"), a_pod("c", ready_for_s=None)]
        waiting = [a_pod("a"), a_pod("b"), a_pod("c", **UNSCHEDULABLE)]

        assert marked(2, starting) == marked(2, waiting) == {}
        assert marked(1, starting) == {"b": -1}

    def test_a_pod_that_goes_already_counts_no_more(self):
        assert marked(2, [a_pod("a"), a_pod("b", deleting=True), a_pod("c")]) == {}


class TestMarks:
    def test_are_not_written_again(self):
        assert marked(2, [a_pod("a"), a_pod("b", cost="-1"), a_pod("c")]) == {}

    def test_go_below_one_that_is_left_of_a_step_that_was_not_made(self):
        assert marked(2, [a_pod("a", cost="-1"), a_pod("b"), a_pod("c")]) == {"b": -2}
        assert marked(2, [a_pod("a", cost="-1"), a_pod("b", cost="-1"), a_pod("c")]) == {"b": -2}
        assert marked(2, [a_pod("a", cost="-1"), a_pod("b", cost="-2"), a_pod("c")]) == {}

    def test_are_negative_where_somebody_marked_the_others(self):
        assert marked(2, [a_pod("a", cost="7"), a_pod("b"), a_pod("c", cost="7")]) == {}
        assert marked(2, [a_pod(name, cost="7") for name in "abc"]) == {"b": -1}

    def test_that_are_no_number_count_as_none(self):
        assert pod_view(a_pod("a", cost="x")).deletion_cost == 0
        assert pod_view(a_pod("a", cost="-3")).deletion_cost == -3


def scale_of(state):
    fleet = a_fleet(state)
    found = assessed(state, fleet=fleet)
    return writes_for(found, report(found, fleet), fleet)[0].scale


class TestAScaleDown:
    def test_marks_one_pod_of_ours(self):
        state = a_state(replicas=3, load=1)
        loads = [replace(each, running=n) for n, each in zip((9, 3, 6), state.engines, strict=True)]

        scale = scale_of(replace(state, engines=tuple(loads)))

        assert scale.replicas == 2
        assert [(each.pod, each.cost) for each in scale.costs] == [("b", -1)]

    def test_never_marks_the_pods_of_a_scale_target(self):
        live = a_deployment_body(replicas=3, ownerReferences=[])

        scale = scale_of(a_state(a_manifest(**TARGET), replicas=3, load=1, live=live))

        assert scale.replicas == 2
        assert scale.costs == ()

    def test_marks_no_group_since_that_with_the_highest_index_goes(self):
        state = a_state(replicas=3, load=1)
        groups = replace(state.deployment, kind="LeaderWorkerSet")

        scale = scale_of(replace(state, deployment=groups))

        assert (scale.kind, scale.replicas, scale.costs) == ("LeaderWorkerSet", 2, ())

    def test_marks_nobody_when_it_is_none(self):
        assert scale_of(a_state(replicas=2, load=5)).costs == ()
