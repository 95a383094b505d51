"""The time for searches in a tick: those without an answer keep what runs, and come first."""

import json
from dataclasses import replace
from itertools import count

from fleet_builders import (
    a_deployment_body,
    a_fleet,
    a_manifest,
    a_model,
    a_sizing,
    a_state,
    with_lengths,
)
from measured_builders import a_posterior
from tonnage.control.input.memory import Memory
from tonnage.control.input.sizing_cache import SizingCache, SizingRefused
from tonnage.control.tick import tick
from tonnage.estimate.calibration import Calibrations, Scope, speed_key
from tonnage.sizing.errors import SearchAbandonedError, SizingError
from tonnage.sizing.serving.trial import requests

SIZING = a_sizing()
NEVER_ASKED = count(2001)
INTERVAL_S = 60
"""Between status writes for gauges alone, by default."""


def a_question(tpot="50ms"):
    """SLO targets that no test has asked about, so that nothing is remembered."""
    ttft = f"{next(NEVER_ASKED)}ms"
    return {"timeToFirstToken": {"p95": ttft}, "timePerOutputToken": {"p95": tpot}}


def runs():
    """Runs of the engine model so far: each draws its requests, or finds them drawn."""
    found = requests.cache_info()
    return found.hits + found.misses


def after(calls):
    """A budget that is spent after so many calls."""
    left = iter(range(calls))

    def on_search():
        if next(left, None) is None:
            raise SearchAbandonedError("the time is spent")

    return on_search


SPENT = after(0)


def new(name, slo=None, **spec):
    return a_state(a_manifest(name, slo=slo or a_question(), **spec), replicas=None)


def running(name, slo=None, **changes):
    """An object that runs the flags of ``a_model``, for a spec that was applied."""
    slo = slo or a_question()
    body = a_deployment_body(a_model(name, slo=slo), sizing=SIZING)
    return a_state(a_manifest(name, slo=slo), live=body, **changes)


def written(state, outcome):
    """The object with the status that a tick wrote for it."""
    [status] = [each.status for each in outcome.writes if each.uid == state.view.uid]
    return replace(state, view=replace(state.view, status=json.dumps(status.to_dict())))


def copies(state, number):
    """The same object under other names."""
    for index in range(number):
        view = replace(state.view, name=f"m{index}", uid=f"uid-of-m{index}")
        yield replace(state, view=view, deployment=replace(state.deployment, owner_uid=view.uid))


def drifted(state, ratio):
    """The same with answers that are so many times as long."""
    return with_lengths(state, 4000, 1000 * ratio)


def later(fleet, seconds=15):
    return replace(fleet, now_s=fleet.now_s + seconds)


def waiting(outcome):
    return [each.state.view.name for each in outcome.found if each.pending]


def conditions(outcome):
    """{type: (status, reason)} of the only object."""
    [found] = outcome.memory.objects.values()
    return {kind: (each.status, each.reason) for kind, each in found.reported.conditions.items()}


class TestNoTime:
    def test_for_a_new_object_it_waits_and_is_not_stalled(self):
        outcome = tick(a_fleet(new("a")), Memory(), on_search=after(3))

        told = conditions(outcome)
        assert waiting(outcome) == ["a"]
        assert told["PlanValid"] == ("Unknown", "PlanPending")
        assert told["Reconciling"] == ("True", "PlanPending")
        assert "Stalled" not in told
        [writes] = outcome.writes
        assert (writes.template, writes.scale) == (None, None)
        assert writes.status.display.reason == "PlanPending"

    def test_for_an_object_that_runs_it_is_neither_scaled_nor_told(self):
        state = running("a", load=1.5)
        first = tick(a_fleet(state), Memory())
        fleet = later(a_fleet(drifted(written(state, first), 1.5)))

        outcome = tick(fleet, first.memory, on_search=SPENT)

        assert waiting(outcome) == ["a"]
        assert conditions(outcome) == conditions(first)
        [writes] = outcome.writes
        assert (writes.scale, writes.template, writes.status) == (None, None, None)

    def test_for_long_it_is_told_with_the_plan_that_stands_there(self):
        state = running("a", load=1.5)
        first = tick(a_fleet(state), Memory())
        fleet = later(a_fleet(drifted(written(state, first), 1.5)))
        second = tick(fleet, first.memory, on_search=SPENT)

        third = tick(later(fleet, INTERVAL_S), second.memory, on_search=SPENT)

        told = conditions(third)
        assert told.pop("PlanValid") == ("True", "PlanPending")
        assert told.items() <= conditions(first).items()
        [before], [writes] = first.writes, third.writes
        assert writes.status.plan == before.status.plan
        assert writes.status.estimate == before.status.estimate
        [condition] = [each for each in writes.status.conditions if each.type == "PlanValid"]
        assert condition.message == (
            "the capacity search has waited for 60 s: the time is spent; "
            "2 replicas stay as they are"
        )

    def test_for_a_changed_spec_it_is_not_said_to_be_ready(self):
        slo = a_question()
        state = running("a", slo)
        first = tick(a_fleet(state), Memory())
        changed = a_manifest("a", slo=slo, generation=2, contextLength=7000)
        live = a_deployment_body(a_model("a", slo=slo), sizing=SIZING)

        outcome = tick(a_fleet(a_state(changed, live=live)), first.memory, on_search=SPENT)

        told = conditions(outcome)
        assert told["Reconciling"] == ("True", "PlanPending")
        assert told["Ready"] == ("False", "SpecPending")

    def test_says_nothing_of_it_when_the_search_has_ended(self):
        fleet = a_fleet(running("a"))
        first = tick(fleet, Memory(), on_search=SPENT)

        second = tick(later(fleet), first.memory)

        assert waiting(second) == []
        assert conditions(second)["PlanValid"] == ("True", "Planned")
        assert second.memory.objects["uid-of-a"].sizing.waiting_since_s is None


class TestSomeTime:
    def test_one_run_in_each_tick_comes_to_the_plan_of_a_search_in_one_go(self):
        fleet, memory, ticks = a_fleet(new("a")), Memory(), 0
        while not (outcome := tick(fleet, memory, on_search=after(2))).found[0].chosen:
            fleet, memory, ticks = later(fleet), outcome.memory, ticks + 1

        whole = tick(a_fleet(new("b", fleet.models[0].model.spec.slo.to_dict())), Memory())
        assert ticks > 10
        assert outcome.found[0].sizing.flags == whole.found[0].sizing.flags

    def test_is_for_those_first_that_waited_longest(self):
        calls = count()
        tick(a_fleet(running("z")), Memory(), on_search=lambda: next(calls))
        for_one = next(calls)
        fleet, memory, ended = a_fleet(*map(running, "abcd")), Memory(), []
        for _ in range(16):
            outcome = tick(fleet, memory, on_search=after(for_one))
            names = set("abcd") - set(waiting(outcome))
            ended.append(names)
            # Whoever has an answer asks something else in the next tick.
            states = (
                running(each.view.name) if each.view.name in names else each
                for each in fleet.models
            )
            fleet, memory = later(replace(fleet, models=tuple(states))), outcome.memory

        turns = "".join(name for names in ended for name in sorted(names))
        assert len(turns) >= 8
        assert turns.startswith("abcdabcd")


class TestAnswers:
    def test_steady_traffic_runs_nothing(self):
        fleet, memory = a_fleet(running("a"), new("b")), Memory()
        memory = tick(fleet, memory).memory
        before = runs()

        for step in range(20):
            states = [drifted(state, 1 + 0.02 * (-1) ** step) for state in fleet.models]
            outcome = tick(later(a_fleet(*states)), memory, on_search=SPENT)
            memory = outcome.memory

        assert waiting(outcome) == []
        assert runs() == before

    def test_another_rate_of_requests_runs_nothing(self):
        slo = a_question()
        memory = tick(a_fleet(running("a", slo)), Memory()).memory
        before, needs = runs(), []

        for load in (0.5, 2, 5, 7.3):
            outcome = tick(a_fleet(running("a", slo, load=load)), memory, on_search=SPENT)
            needs.append(outcome.found[0].decision.reasons[0].message)

        assert len(set(needs)) == 4
        assert runs() == before

    def test_of_a_thousand_objects_that_ask_the_same_cost_one_search(self):
        calls = count()
        tick(a_fleet(running("a")), Memory(), on_search=lambda: next(calls))
        for_one, calls = next(calls), count()
        fleet = a_fleet(*copies(running("b"), 1000))

        outcome = tick(fleet, Memory(), on_search=lambda: next(calls))

        assert waiting(outcome) == []
        assert next(calls) <= 1.5 * for_one
        assert len(outcome.memory.answers) == 1

    def test_are_remembered_when_they_are_asked_again_after_a_while(self):
        first = tick(a_fleet(running("a"), running("b")), Memory())
        second = tick(a_fleet(first.found[1].state), first.memory)

        states = [each.state for each in first.found]
        third = tick(a_fleet(*states), second.memory, on_search=SPENT)

        assert len(second.memory.answers) == 2
        assert waiting(third) == []

    def test_are_forgotten_from_the_one_that_was_asked_first(self):
        request = a_sizing().request
        questions = [replace(request, context_tokens=number) for number in range(1, 1203)]
        asker = SizingCache(
            dict.fromkeys(questions[:2], SizingRefused(kind=SizingError, message="no"))
        )
        asker.answers = dict.fromkeys(
            questions[2:801], SizingRefused(kind=SizingError, message="no")
        )

        assert list(asker.all_answers) == questions[1:801]
        asker.answers = dict.fromkeys(questions[2:], SizingRefused(kind=SizingError, message="no"))
        assert list(asker.all_answers) == questions[2:]

    def test_that_say_no_are_remembered_too(self):
        fleet = a_fleet(new("a", {"timePerOutputToken": {"p95": "1ms"}}))
        first = tick(fleet, Memory())

        second = tick(fleet, first.memory, on_search=SPENT)

        assert first.found[0].refusal.code == "SLOInfeasible"
        assert second.found[0].refusal == first.found[0].refusal

    def test_chosen_flags_ask_nothing_more_when_they_run(self):
        slo = a_question()
        first = tick(a_fleet(new("a", slo)), Memory())
        sizing, before = first.found[0].sizing, runs()
        live = a_deployment_body(a_model("a", slo=slo), sizing=sizing)

        second = tick(a_fleet(a_state(a_manifest("a", slo=slo), live=live)), first.memory)

        assert len(first.memory.answers) == 2  # flags in the middle, replicas at the slow end
        assert second.found[0].sizing.flags == sizing.flags
        assert runs() == before


class TestLearnedSpeed:
    def asked(self, memory, efficiency):
        key = speed_key(SIZING.request, SIZING.flags)
        known = Calibrations(
            speed={Scope("serving", key): a_posterior(bandwidth_efficiency=efficiency)}
        )
        outcome = tick(a_fleet(self.state, calibrations=known), memory)
        [found] = outcome.found
        return outcome.memory, found.sizing.request.speed.bandwidth_efficiency

    state = running("a")

    def test_is_asked_with_as_it_was_until_a_step_is_three_percent_off(self):
        # Half of a step depends on bandwidth: 6.1 % off are 3 % of a step.
        memory, first = self.asked(Memory(), 0.70)
        memory, near = self.asked(memory, 0.743)
        memory, far = self.asked(memory, 0.7445)

        assert (first, near, far) == (0.70, 0.70, 0.7445)


class TestWhatGoesOn:
    """Whether another tick at once would end a search: else none is worth its time."""

    def test_is_a_search_that_was_begun(self):
        fleet = a_fleet(new("a"))
        first = tick(fleet, Memory(), on_search=after(2))

        assert waiting(first) == ["a"]
        assert first.is_searching
        assert not tick(later(fleet, 1), first.memory).is_searching

    def test_is_none_that_found_no_time(self):
        assert not tick(a_fleet(new("a")), Memory(), on_search=SPENT).is_searching

    def test_is_none_of_an_object_that_cannot_be_read_meanwhile(self):
        fleet = a_fleet(new("a"))
        first = tick(fleet, Memory(), on_search=after(2))
        unread = replace(later(fleet, 1), unlisted={"serving": "forbidden"})

        second = tick(unread, first.memory)

        assert second.memory.objects["uid-of-a"].sizing.waiting_since_s is not None
        assert not second.is_searching
