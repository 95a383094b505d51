"""A tick of a fleet as a function of values: what it writes, remembers, and says of own bugs."""

import math
from dataclasses import replace

import pytest

from fleet_builders import (
    NOW_S,
    a_deployment_body,
    a_fleet,
    a_manifest,
    a_model,
    a_sizing,
    a_state,
    first_replicas,
)
from measured_builders import steady_lengths, with_figures
from tonnage.catalog.gpu import built_in_gpus
from tonnage.control.input.finding import bug_message, fault_id
from tonnage.control.input.memory import Memory
from tonnage.control.learn.believed import observation
from tonnage.control.tick import assess_fleet, tick
from tonnage.estimate.calibration import Calibrations

FIRST_REPLICAS = first_replicas()


class Explosive(dict):
    """A catalogue in which one class of GPU is a bug."""

    def __contains__(self, name):
        if name == "BROKEN":
            raise RuntimeError("a bug")
        return super().__contains__(name)


def running(name, **changes):
    return a_state(a_manifest(name), live=a_deployment_body(a_model(name)), **changes)


def test_the_same_values_give_the_same_outcome():
    fleet = a_fleet(running("a", load=3), a_state(a_manifest("b"), replicas=None))

    assert tick(fleet, Memory()) == tick(fleet, Memory())


def test_what_is_remembered_is_of_the_objects_that_there_are():
    first = tick(a_fleet(running("a"), running("b")), Memory())

    second = tick(a_fleet(running("b")), first.memory)

    assert set(first.memory.objects) == {"uid-of-a", "uid-of-b"}
    assert set(second.memory.objects) == {"uid-of-b"}


def test_a_bug_in_planning_one_object_is_told_and_the_others_are_planned():
    broken = a_state(a_manifest("a", hardware={"gpu": "BROKEN"}), replicas=None)
    fleet = a_fleet(broken, a_state(a_manifest("b"), replicas=None))

    outcome = tick(replace(fleet, gpus=Explosive(built_in_gpus())), Memory())

    [fault] = outcome.faults
    assert (fault.key, fault.consequence) == (("serving", "a"), "internal error")
    assert str(fault.error) == "a bug"
    assert outcome.found[0].refusal.code == "InternalError"
    assert outcome.writes[1].first_replicas == FIRST_REPLICAS


def test_a_bug_in_writing_one_object_is_told_and_leaves_what_is_remembered():
    observed = tick(a_fleet(running("a"), running("b")), Memory()).memory
    known = observed.objects["uid-of-a"]
    known = replace(known, reported=replace(known.reported, decisions="a bug"))
    before = replace(observed, objects=observed.objects | {"uid-of-a": known})

    outcome = tick(a_fleet(running("a"), running("b")), before)

    [fault] = outcome.faults
    assert (fault.key, fault.consequence) == (("serving", "a"), "nothing written")
    assert [writes.name for writes in outcome.writes] == ["b"]
    assert outcome.memory.objects["uid-of-a"] == outcome.found[0].memory


def test_a_bug_in_what_is_told_of_one_object_is_told_by_its_status():
    observed = tick(a_fleet(running("a"), running("b")), Memory()).memory
    known = observed.objects["uid-of-a"]
    bad = replace(known.reported, gauges={"queueDepth": "a bug"}, looked_at_s=None)
    remembered = replace(known, reported=bad)

    outcome = tick(
        a_fleet(running("a"), running("b")),
        replace(observed, objects=observed.objects | {"uid-of-a": remembered}),
    )

    [fault] = outcome.faults
    assert (fault.key, fault.consequence) == (("serving", "a"), "nothing written")
    told = next(writes for writes in outcome.writes if writes.name == "a")
    conditions = {each.type: each.reason for each in told.status.conditions}
    assert conditions["PlanValid"] == "InternalError"
    assert (told.scale, told.template) == (None, None)


def test_a_bug_in_reading_one_object_freezes_it_alone():
    error = RuntimeError("a bug")
    broken = running("a", load=9, bug=error)

    outcome = tick(a_fleet(broken, running("b")), Memory())

    [fault] = outcome.faults
    assert (fault.key, fault.error) == (("serving", "a"), error)
    first, second = outcome.writes
    assert (first.scale, first.template) == (None, None)
    assert second.status.plan is not None


def test_a_bug_in_recalling_one_object_freezes_it_alone():
    stored = Calibrations(objects={"uid-of-a": "a bug"})
    fleet = replace(a_fleet(running("a", load=9), running("b")), calibrations=stored)

    outcome = tick(fleet, Memory(calibrations=stored))

    [fault] = outcome.faults
    assert fault.key == ("serving", "a")
    first, second = outcome.writes
    assert (first.scale, first.template) == (None, None)
    assert second.status.plan is not None


def stalled_by(outcome, name):
    """(reason, message) of the condition Stalled that is written for an object, if it is."""
    told = next(writes.status for writes in outcome.writes if writes.name == name)
    return next(((c.reason, c.message) for c in told.conditions if c.type == "Stalled"), None)


def test_a_bug_in_watching_for_blackouts_freezes_its_object_alone_until_it_is_gone():
    blind = replace(running("a"), engines=())
    fleet = a_fleet(blind, running("b", load=3))
    seen = tick(a_fleet(running("a"), running("b")), Memory()).memory
    odd = replace(
        seen.objects["uid-of-a"],
        traffic=replace(seen.objects["uid-of-a"].traffic, was_whole=True, blind_since_s="a bug"),
    )

    outcome = tick(fleet, replace(seen, objects=seen.objects | {"uid-of-a": odd}))
    next_one = tick(replace(fleet, now_s=NOW_S + 15), seen)

    [fault] = outcome.faults
    assert (fault.key, type(fault.error)) == (("serving", "a"), TypeError)
    first, second = outcome.writes
    assert (first.scale, second.scale.replicas) == (None, 4)
    assert stalled_by(outcome, "a") == ("InternalError", bug_message(fault.error))
    assert fault_id(fault.error) in bug_message(fault.error)
    assert next_one.faults == ()


def test_a_bug_in_learning_from_one_object_stops_neither_its_scaling_nor_the_others():
    apart = a_state(
        a_manifest("a", namespace="apart"),
        live=a_deployment_body(a_model("a", namespace="apart")),
        load=3,
    )
    fleet = a_fleet(apart, running("b", load=3))
    [heard, _] = [observation(each) for each in assess_fleet(fleet, Memory())]

    outcome = tick(fleet, Memory(learned_at_s={heard.speed: "a bug"}))
    next_one = tick(replace(fleet, now_s=NOW_S + 15), replace(outcome.memory, learned_at_s={}))

    [fault] = outcome.faults
    assert (fault.key, fault.consequence) == (("apart", "a"), "nothing learned")
    assert [writes.scale.replicas for writes in outcome.writes] == [4, 4]
    assert stalled_by(outcome, "a") == ("InternalError", bug_message(fault.error))
    assert stalled_by(outcome, "b") is None
    assert next_one.faults == ()


@pytest.mark.parametrize(
    "figures",
    [
        {"kv_tokens": 1e300},
        {"kv_tokens": 1e-300},
        {"token_gap_s_per_s": 1e-300, "token_gaps_per_s": 1e15},
        {"lengths": steady_lengths(4000, 0.01)},
        {"lengths": steady_lengths(0.01, 1000)},
        {"ttft_within": {1.0: 1e15, 2.5: 0.0, math.inf: 1.0}},
    ],
    ids=["huge-cache", "no-cache", "no-gap", "short-answers", "short-prompts", "fallen-bounds"],
)
def test_nonsense_that_pods_tell_is_no_bug(figures):
    state, memory = running("a"), Memory()
    broken = replace(state, engines=tuple(with_figures(each, **figures) for each in state.engines))

    for minute in range(4):
        outcome = tick(a_fleet(broken, now_s=NOW_S + 60 * minute), memory)
        memory = outcome.memory

        assert outcome.faults == ()
        assert outcome.found[0].refusal is None


def test_what_prometheus_said_is_smoothed_and_judged_once_in_however_many_ticks_it_is_decided_by():
    often = {"status_interval_s": 1}
    first = tick(a_fleet(running("a", load=1.0), said_at_s=NOW_S, settings=often), Memory())
    fleet = a_fleet(running("a", load=1.8), said_at_s=NOW_S + 15, settings=often)

    memories = [tick(replace(fleet, now_s=NOW_S + 15), first.memory).memory]
    for at_s in range(16, 20):
        memories.append(tick(replace(fleet, now_s=NOW_S + at_s), memories[-1]).memory)

    once, *_, again = (each.objects["uid-of-a"].reported for each in memories)
    assert once.gauges != first.memory.objects["uid-of-a"].reported.gauges
    assert again.gauges == once.gauges
    assert again.speeds == once.speeds
    assert {each.windows for each in again.speeds.values()} == {2}


def test_what_one_object_grows_by_the_next_cannot_have():
    states = [a_state(a_manifest(name), replicas=None) for name in "ab"]
    planned = a_sizing().replicas
    budget = {"max_gpus": 2 * planned + 2}

    first, second = assess_fleet(a_fleet(*states, settings=budget), Memory())

    assert (first.decision.replicas, second.decision.replicas) == (planned, 1)
    assert second.decision.limited_by == "GPUBudget"
