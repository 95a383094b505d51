"""The status: what it shows, and when it is worth a write."""

import json
import math
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import a_prior
from fleet_builders import (
    NOW_S,
    a_deployment_body,
    a_fleet,
    a_manifest,
    a_memory,
    a_pod_body,
    a_sizing,
    a_state,
    assessed,
    no_config,
    with_lengths,
)
from measured_builders import a_posterior, an_engine
from strategies import numbers
from tonnage.api.status import MAX_DECISIONS, Condition, Status
from tonnage.catalog.config.formats.quantization import FP8
from tonnage.control.input.memory import Memory, ReportMemory
from tonnage.control.input.times import rfc3339
from tonnage.control.report.calibrated import MIN_WINDOWS
from tonnage.control.report.status import (
    facts,
    figures,
    figures_moved,
    is_moved,
    memory_from_status,
    report,
)
from tonnage.control.tick import tick
from tonnage.estimate.calibration import Calibrations, Scope, speed_key
from tonnage.estimate.posterior import ObjectPosterior

EACH = a_sizing().goodput_requests_per_s
KV_TOKENS = a_sizing().kv_tokens
INF = float("inf")
MINUTE_S = 60
AT = "2026-11-22T09:00:00Z"


def reported(state=None, *, memory=None, now_s=NOW_S, fleet=None, **changes):
    """The report on one object in one tick; ``memory``: of the object, or of its last report."""
    known = {"calibrations": changes.pop("known", Calibrations())}
    state = as_planned(state or a_state(**changes))
    seen = a_fleet(state, now_s=now_s, settings={"speed_range": 0}, **known, **(fleet or {}))
    if isinstance(memory, ReportMemory):
        memory = a_memory(state, reported=memory)
    return report(assessed(state, memory=memory, fleet=seen), seen)


def as_planned(state):
    """The state with engines that report the cache that is planned with."""
    return replace(
        state, engines=tuple(replace(each, kv_tokens=KV_TOKENS) for each in state.engines)
    )


def written(state, told):
    """The object as it stands after a write of its status."""
    return replace(state, view=replace(state.view, status=json.dumps(told.status.to_dict())))


HELD = {
    "model": {
        "id": "meta-llama/Llama-3.3-70B-Instruct",
        "weights": "fp8",
        "kvOffload": {"gib": 300, "workingSetTokens": 900_000},
    }
}
"""A KV cache in host memory."""
DECODE = {
    "engine": {"version": "0.33", "role": "decode"},
    "hardware": {"gpu": "H200", "parallelism": {"tensor": 1}},
    "slo": {"timePerOutputToken": {"p95": "50ms"}},
}


SECTIONS = {
    "replicas": ("ready",),
    "plan": ("replicas",),
    "estimate": ("kvTokens",),
    "measured": ("queueDepth",),
    "calibration": ("windows",),
    "decisions": ("time",),
    "conditions": ("status",),
    "display": ("mbu",),
}
"""Of a status, each with a field that another version may write in another form."""
KEPT = {
    "measured": lambda memory: memory.reported.shown,
    "calibration": lambda memory: memory.sizing.asked_speed,
    "decisions": lambda memory: memory.reported.decisions,
    "conditions": lambda memory: memory.reported.conditions,
}
"""What goes on from a section of the status."""


def of_another_version(state, section, fields):
    """The object with these fields in a section of its status; empty: beside all of them."""
    status = json.loads(state.view.status)
    place = status[section] if section else status
    for each in place if isinstance(place, list) else [place]:
        each.update(fields)
    return replace(state, view=replace(state.view, status=json.dumps(status)))


def offload_message(result):
    """What the plan says of it; None: nothing."""
    found = [each.message for each in result.status.plan.reasons if each.code == "KVOffload"]
    return found[0] if found else None


def kept_busy(usage):
    return tuple(an_engine(pod, kv_usage_fraction=usage) for pod in "ab")


def gauges_moved(before, after):
    return figures_moved(figures(before), figures(after))


def in_mode(mode, **changes):
    scaling = {"mode": mode, "minReplicas": 1, "maxReplicas": 8}
    return a_state(a_manifest(scaling=scaling), **changes)


class TestTheFixedPoint:
    def test_the_first_status_is_written(self):
        assert reported().status

    def test_the_same_again_is_not(self):
        state = a_state(load=1.5)
        told = reported(state)
        for minute in range(1, MIN_WINDOWS):  # then its speed is judged too
            state = written(state, told) if told.status else state
            told = reported(state, memory=told.memory, now_s=NOW_S + minute * MINUTE_S)

        now_s = NOW_S + MIN_WINDOWS * MINUTE_S
        again = reported(written(state, told), memory=told.memory, now_s=now_s)

        assert again.status is None

    @settings(max_examples=6)
    @given(
        st.lists(st.tuples(numbers(0.97, 1.03), numbers(0.97, 1.03)), min_size=1, max_size=12),
    )
    def test_a_load_that_wavers_by_a_few_percent_asks_for_no_write(self, ticks):
        state = a_state(load=1.5)
        told = reported(state)
        for number in range(MIN_WINDOWS):  # then its speed is judged too
            told = reported(state, memory=told.memory, now_s=NOW_S + number)
        told = reported(state, memory=told.memory, now_s=NOW_S + MINUTE_S)
        state = written(state, told)
        for number, (load, length) in enumerate(ticks, start=2):
            state = written(state, told) if told.status else state
            engines = a_state(load=1.5 * load).engines
            wavering = with_lengths(replace(state, engines=engines), 4000 * length, 1000 * length)
            told = reported(wavering, memory=told.memory, now_s=NOW_S + number * MINUTE_S)

            assert told.status is None

    def test_a_restart_of_the_operator_asks_for_no_write(self):
        state = a_state(load=1.5)
        told = reported(state, memory=memory_from_status(state.view, now_s=NOW_S))
        state = written(state, told)

        memory = memory_from_status(state.view, now_s=NOW_S + MINUTE_S)
        again = reported(state, memory=memory, now_s=NOW_S + MINUTE_S)

        assert again.status is None

    def test_what_is_not_known_while_its_history_is_awaited_asks_for_no_write(self):
        scaling = {"minReplicas": 2, "maxReplicas": 8}
        state = a_state(a_manifest(scaling=scaling), load=0.5)
        state = written(state, reported(state))
        young = replace(state, engines=tuple(replace(e, span_s=30.0) for e in state.engines))

        def after_a_restart(state, *awaited, outage=None):
            memory = memory_from_status(state.view, now_s=NOW_S + 900)
            fleet = {"history_awaited": frozenset(awaited), "metrics_problem": outage}
            return reported(state, memory=memory, now_s=NOW_S + 900, fleet=fleet)

        told = after_a_restart(young, "serving")
        [metrics] = [each for each in told.conditions if each.type == "MetricsAvailable"]
        assert metrics.status == "True"
        assert told.status is None
        [metrics] = [
            each for each in after_a_restart(young).status.conditions if each.type == metrics.type
        ]
        assert (metrics.status, metrics.reason) == ("False", "MetricsIncomplete")
        away = ("PrometheusUnreachable", "")
        dark = after_a_restart(young, "serving", outage=away).status
        assert away[0] in [each.reason for each in dark.conditions]
        changed = replace(young, view=replace(young.view, generation=2))
        first = after_a_restart(changed, "serving")
        assert first.status.display.reason == "MetricsMissing"
        changed = written(replace(changed, engines=state.engines), first)
        again = reported(changed, memory=first.memory, now_s=NOW_S + 915)
        assert again.status.display.reason == "MinReplicas"
        assert (first.memory.is_provisional, again.memory.is_provisional) == (True, False)


class TestWhatIsWrittenAtOnce:
    def changed(self, before, after):
        """Is a status written when the object changes from one state to another?"""
        told = reported(before)
        again = reported(written(after, told), memory=told.memory, now_s=NOW_S + 1)
        return again.status is not None

    def test_another_number_of_replicas(self):
        assert self.changed(a_state(load=1.5), a_state(load=3.5))

    def test_a_replica_that_is_lost(self):
        assert self.changed(a_state(), a_state(live=a_deployment_body(ready=1)))

    def test_a_condition_that_turns(self):
        assert self.changed(a_state(), a_state(engines=()))

    def test_a_new_generation(self):
        assert self.changed(a_state(), a_state(a_manifest(generation=2)))

    def test_a_gauge_waits_for_its_minute(self):
        before, after = a_state(load=1.1), a_state(load=1.9)
        told = reported(before)
        later = written(after, told)

        soon = reported(later, memory=told.memory, now_s=NOW_S + 1)
        due = reported(later, memory=told.memory, now_s=NOW_S + MINUTE_S)

        assert soon.status is None
        assert due.status


class TestMaterial:
    @pytest.mark.parametrize(
        ("name", "before", "after", "moved"),
        [
            ("stepSeconds", 0.040, 0.043, False),
            ("stepSeconds", 0.040, 0.045, True),
            ("queueDepth", 0, 2, False),
            ("queueDepth", 0, 3, True),
            ("queueDepth", 100, 105, False),
            ("queueDepth", 16, 20, False),  # the root of 20 is 4.5
            ("running", 18, 20.5, False),
            ("running", 18, 23, True),
            ("running", 180, 205, True),
            ("requestsPerSecond", 0, 0.05, False),
            ("requestsPerSecond", 10, 8, True),
            ("kvTokens", 0, 0, False),
        ],
    )
    def test_is_ten_percent_more_than_the_floor_and_more_than_chance(
        self, name, before, after, moved
    ):
        assert is_moved(name, before, after) is moved
        assert is_moved(name, after, before) is moved

    def test_a_gauge_that_appears_or_vanishes_is_news(self):
        with_step = {"measured": {"stepSeconds": {"value": 0.04}}}

        assert gauges_moved({}, with_step)
        assert gauges_moved(with_step, {"measured": {}})
        assert not gauges_moved(with_step, with_step)

    def test_the_order_in_which_they_stand_says_nothing(self):
        step, queue = {"stepSeconds": {"value": 0.04}}, {"queueDepth": {"value": 9}}

        assert not gauges_moved({"measured": step | queue}, {"measured": queue | step})

    def test_doubt_that_shrinks_with_evidence_is_none(self):
        before = {
            "calibration": {"prefillEfficiency": {"learned": 0.46, "deviationFraction": 0.08}}
        }
        after = {"calibration": {"prefillEfficiency": {"learned": 0.46, "deviationFraction": 0.04}}}

        assert not gauges_moved(before, after)

    def test_counters_and_words_are_no_gauges(self):
        before = {"calibration": {"busySteps": 5, "changedAt": "a"}, "estimate": {"x": None}}
        after = {"calibration": {"busySteps": 5000, "changedAt": "b"}}

        assert not gauges_moved(before, after)

    def test_reasons_and_messages_are_no_facts(self):
        status = reported().status
        other = [
            each.model_copy(update={"message": "y", "last_transition_time": "z"})
            for each in status.conditions
        ]
        plan = status.plan.model_copy(update={"reasons": (), "limited_by": "KVCache"})
        changed = status.model_copy(update={"plan": plan, "conditions": tuple(other)})

        assert facts(changed) == facts(status)

    def test_a_condition_that_is_none_of_ours_is_no_fact(self):
        # No apply takes it away: the status would be written for ever.
        def said(**kinds):
            conditions = (
                Condition(type=kind, status=state, reason="Up", message="", last_transition_time=AT)
                for kind, state in kinds.items()
            )
            return facts(Status(conditions=tuple(conditions)))

        assert said(Ready="True", Blessed="True") == said(Ready="True")
        assert said(Ready="False", Blessed="True") != said(Ready="True")


class TestThePlan:
    def test_says_whether_a_cache_in_host_memory_is_worth_it(self):
        messages = [
            offload_message(reported(a_state(a_manifest(**HELD), engines=kept_busy(usage))))
            for usage in (0.25, 0.75)
        ]

        held = [
            int(re.search(r"beyond the ([\d,]+) that", each)[1].replace(",", ""))
            for each in messages
        ]
        assert all(
            each.startswith("worth it: the working set of 900,000 tokens") for each in messages
        )
        assert held == [pytest.approx(share * KV_TOKENS, rel=0.001) for share in (0.75, 0.25)]

    def test_says_nothing_of_it_before_engines_say_how_full_they_are(self):
        assert offload_message(reported(a_state(a_manifest(**HELD), engines=()))) is None

    def test_says_nothing_of_one_whose_working_set_nobody_knows(self):
        model = {**HELD["model"], "kvOffload": {"gib": 300}}
        assert offload_message(reported(a_state(a_manifest(model=model)))) is None


class TestDecisions:
    def test_are_kept_with_their_reasons(self):
        [decision] = reported(load=3.5, replicas=2).status.decisions

        assert (decision.from_replicas, decision.to_replicas) == (2, 5)
        assert decision.time == rfc3339(NOW_S)
        assert decision.code == "Backlog"
        assert "requests/s (measured)" in decision.message

    def test_that_change_nothing_are_none(self):
        assert reported(load=1.5, replicas=2).status.decisions == ()

    def test_are_noted_once_while_they_are_carried_out(self):
        state = a_state(load=3.5)
        told = reported(state)

        again = reported(state, memory=told.memory, now_s=NOW_S + 15)

        assert again.status.decisions == told.status.decisions

    def test_are_the_last_five_newest_first(self):
        known = ReportMemory()
        for number in range(1, MAX_DECISIONS + 3):
            state = a_state(replicas=number, load=number + 1)
            known = reported(
                state, memory=a_memory(state, ready=frozenset(), reported=known)
            ).memory

        assert [each.from_replicas for each in known.decisions] == [7, 6, 5, 4, 3]

    def test_are_made_in_recommend_mode_as_they_would_have_been(self):
        told = reported(in_mode("Recommend", load=3.5))

        assert told.status.decisions[0].to_replicas == 5
        assert told.status.replicas.desired == 2

    def test_are_not_made_while_paused(self):
        assert reported(in_mode("Paused", load=3.5)).status.decisions == ()


class TestPaused:
    def test_keeps_the_plan_that_it_was_paused_with(self):
        running = a_state(load=3.5)
        told = reported(running)
        paused = written(in_mode("Paused", load=1), told)

        first = reported(paused, memory=told.memory)
        later = reported(paused, memory=first.memory, now_s=NOW_S + 3600)

        assert told.status.plan.replicas == 5
        assert first.status.plan == told.status.plan
        assert later.status.plan == told.status.plan

    def test_keeps_it_over_a_restart(self):
        told = reported(a_state(load=3.5))
        paused = written(in_mode("Paused", load=1), told)

        after = reported(paused, memory=memory_from_status(paused.view, now_s=NOW_S))

        assert after.status.plan == told.status.plan

    def test_keeps_the_first_one_it_makes_when_there_was_none(self):
        first = reported(in_mode("Paused", load=3.5))
        later = reported(in_mode("Paused", load=1), memory=first.memory)

        assert first.status.plan.replicas == 5
        assert later.status.plan == first.status.plan

    def test_follows_again_when_it_is_let_go(self):
        paused = reported(in_mode("Paused", load=3.5))

        freed = reported(a_state(load=1.5), memory=paused.memory)

        assert freed.status.plan.replicas == 2

    @pytest.mark.parametrize(
        "status",
        [
            {"plan": {"replicas": 3}},
            {"plan": {"replicas": "many"}},
            {"plan": {"replicas": 3, "fieldOfTomorrow": 1}},
        ],
    )
    def test_makes_a_plan_where_the_one_that_stands_there_cannot_be_read(self, status):
        paused = in_mode("Paused", load=3.5)
        paused = replace(paused, view=replace(paused.view, status=json.dumps(status)))

        assert reported(paused).status.plan.replicas == 5


class TestRecalled:
    def test_takes_up_decisions_and_the_times_of_conditions(self):
        told = reported(load=3.5)
        state = written(a_state(), told)

        memory = memory_from_status(state.view, now_s=NOW_S + 5)

        assert memory.reported.decisions == told.status.decisions
        assert set(memory.reported.conditions) == {each.type for each in told.status.conditions}
        assert (memory.uid, memory.decided.since_s) == ("uid-of-llama", NOW_S + 5)

    @pytest.mark.parametrize("section", sorted({"", *SECTIONS}))
    def test_goes_on_from_a_status_with_fields_that_only_another_version_knows(self, section):
        state = a_state(load=3.5)
        state = written(state, reported(state, memory=memory_from_status(state.view, now_s=NOW_S)))
        other = of_another_version(state, section, {"ofTomorrow": {"value": 1}})
        now_s = NOW_S + MINUTE_S
        memory = memory_from_status(other.view, now_s=now_s)

        assert other.view.status != state.view.status
        assert memory == memory_from_status(state.view, now_s=now_s)
        assert reported(other, memory=memory, now_s=now_s).status is None

    @pytest.mark.parametrize("section", SECTIONS)
    def test_loses_no_more_than_the_section_that_it_cannot_read(self, section):
        state = a_state()
        state = written(state, reported(load=3.5))
        other = of_another_version(state, section, {each: {} for each in SECTIONS[section]})
        whole, left = (memory_from_status(each.view, now_s=NOW_S) for each in (state, other))
        lost = {each for each in KEPT if KEPT[each](left) != KEPT[each](whole)}

        assert lost == {each for each in KEPT if each == section}

    def test_takes_up_nothing_that_a_decision_could_depend_on(self):
        memory = memory_from_status(written(a_state(), reported(load=3.5)).view, now_s=NOW_S)

        assert memory.traffic.measured is None
        assert memory.traffic.lengths is None
        assert memory.decided.recent_needs == ()

    def test_takes_up_the_constants_of_the_plan_for_this_spec(self):
        told = reported(load=1.5)
        view = written(a_state(), told).view
        planned = told.status.calibration.bandwidth_efficiency.planned

        memory = memory_from_status(view, now_s=NOW_S)
        edited = replace(view, generation=view.generation + 1)

        assert memory.sizing.asked_speed[1] == planned
        assert memory_from_status(edited, now_s=NOW_S).sizing.asked_speed is None

    @pytest.mark.parametrize("status", [{}, {"decisions": 7}, {"fieldOfTomorrow": 1}])
    def test_begins_anew_where_another_version_wrote(self, status):
        view = replace(a_state().view, status=json.dumps(status))

        assert memory_from_status(view, now_s=NOW_S).reported.decisions == ()

    @pytest.mark.parametrize(
        "status", [{"measured": [1]}, {"estimate": "x"}, {"measured": {"a": [1]}}]
    )
    def test_is_written_over_where_it_has_another_shape(self, status):
        state = a_state()
        state = replace(state, view=replace(state.view, status=json.dumps(status)))

        outcome = tick(a_fleet(state), Memory())

        [writes] = outcome.writes
        assert writes.status.conditions
        assert outcome.faults == ()

    @pytest.mark.parametrize("time", ["0000-01-01T00:00:00Z", "2026-01-01T00:00:00+99:99"])
    def test_begins_anew_where_somebody_wrote_a_time_that_is_none(self, time):
        # The API server takes both; the first look at an object is in everybody's tick.
        condition = {"type": "Ready", "status": "False", "reason": "X", "message": ""}
        status = {"conditions": [condition | {"lastTransitionTime": time}]}
        view = replace(a_state().view, status=json.dumps(status))

        assert memory_from_status(view, now_s=NOW_S).reported.conditions == {}


class TestMeasured:
    def test_shows_each_figure_with_its_source_and_time(self):
        rate = reported(load=1.5).status.measured.requests_per_second

        assert rate.value == pytest.approx(1.5 * EACH, rel=1e-3)
        assert rate.source == "completions and backlog"
        assert rate.changed_at == rfc3339(NOW_S)

    def test_keeps_value_and_time_until_it_moves(self):
        first = reported(load=1.5)
        near = reported(a_state(load=1.55), memory=first.memory, now_s=NOW_S + 15)

        assert near.status.measured.requests_per_second == (
            first.status.measured.requests_per_second
        )

    def test_of_an_object_without_replicas_is_nothing(self):
        assert reported(replicas=None).status.measured is None

    def test_of_several_targets_shows_the_strictest_as_it_is(self):
        slo = {"timeToFirstToken": {"p50": "500ms", "p95": "5s"}}
        within = {0.5: 10.0, 5.0: 98.0, INF: 100.0}
        engines = tuple(an_engine(pod, ttft_within=within) for pod in "ab")

        told = reported(a_state(a_manifest(slo=slo), engines=engines, live=a_deployment_body()))

        assert told.status.measured.ttft_attainment.value == 0.98

    @pytest.mark.parametrize("given", [HELD, DECODE])
    def test_shows_what_share_of_prompts_came_from_elsewhere_where_that_may_be(self, given):
        counted = {"started_prompt_tokens_per_s": 400.0}
        engines = tuple(
            an_engine(pod, moved_prompt_tokens_per_s=moved, seconds=watched_s, **counted)
            for pod, moved, watched_s in (("a", 100.0, 45), ("b", 300.0, 15))
        )

        held, without = (
            reported(a_state(a_manifest(**spec), engines=engines)).status.measured
            for spec in (given, {})
        )

        assert held.moved_prompt_fraction.value == (45 * 100 + 15 * 300) / (60 * 400)
        assert held.moved_prompt_fraction.source == "vllm:prompt_tokens_by_source"
        assert without.moved_prompt_fraction is None

    def test_of_figures_beyond_all_measure_is_still_a_status(self):
        # A tenant's pod may expose whatever it likes.
        engines = tuple(an_engine(pod, waiting=1e15, running=1e15) for pod in "ab")

        told = reported(a_state(engines=engines))

        assert Status.model_validate_json(told.status.model_dump_json())


def speed_scope(namespace):
    sizing = a_sizing()
    return Scope(namespace, speed_key(sizing.request, sizing.flags))


class TestCalibration:
    def test_is_a_copy_with_its_prior(self):
        learned = a_posterior(bandwidth_efficiency=0.7, num_steps=1234.4, learned_at_s=NOW_S - 60)
        known = Calibrations(speed={speed_scope("serving"): learned})

        shown = reported(known=known).status.calibration

        assert shown.bandwidth_efficiency.learned == 0.7
        assert shown.bandwidth_efficiency.prior == a_prior(weights=FP8).bandwidth_efficiency
        assert shown.overhead_factor.prior == 1.0
        assert (shown.windows, shown.busy_steps) == (10, 1234)
        assert shown.changed_at == rfc3339(NOW_S - 60)
        assert (shown.evidence, shown.corroborating_namespaces) == ("Namespace", 0)

    def test_without_evidence_is_the_prior_and_changes_nothing(self):
        shown = reported().status.calibration

        prior = a_prior(weights=FP8).bandwidth_efficiency
        constant = shown.bandwidth_efficiency
        assert (constant.learned, constant.planned, constant.prior) == (prior, prior, prior)
        assert (shown.evidence, shown.windows, shown.changed_at) == ("Prior", 0, None)
        assert shown.prior_requests_per_second == shown.requests_per_second

    def test_says_what_slower_engines_change_in_the_plan(self):
        learned = a_posterior(bandwidth_efficiency=0.6, learned_at_s=NOW_S)
        known = Calibrations(speed={speed_scope("serving"): learned})

        shown = reported(known=known).status.calibration

        # 0.83 / 0.6 in the half of a step that reads memory
        assert 1.1 < shown.step_time.learned < 1.4
        by_the_prior = a_sizing().goodput_requests_per_s
        assert shown.prior_requests_per_second == pytest.approx(by_the_prior, rel=0.1)
        assert shown.requests_per_second < 0.9 * shown.prior_requests_per_second

    def test_plans_on_the_slow_end_of_what_is_in_doubt(self):
        state = as_planned(a_state())
        fleet = a_fleet(state, settings={"speed_range": 0.8})  # as it is set up by default

        shown = report(assessed(state, fleet=fleet), fleet).status.calibration

        assert shown.step_time.learned == 1.0
        assert shown.step_time.planned == pytest.approx(1.15, rel=0.01)
        assert shown.bandwidth_efficiency.planned < shown.bandwidth_efficiency.learned
        assert shown.prior_requests_per_second == shown.requests_per_second

    def test_counts_other_namespaces_and_says_when_they_are_believed(self):
        theirs = {speed_scope(name): a_posterior(learned_at_s=NOW_S) for name in ("a", "b")}

        others = reported(known=Calibrations(speed=theirs)).status.calibration
        both = Calibrations(speed=theirs | {speed_scope("serving"): a_posterior()})
        own = reported(known=both).status.calibration

        assert (others.evidence, others.corroborating_namespaces) == ("OtherNamespaces", 2)
        assert (own.evidence, own.corroborating_namespaces) == ("Namespace", 2)

    def test_has_what_is_of_this_object_alone(self):
        own = ObjectPosterior(
            goodput_factor=0.9, num_judged=420.0, judged_at_s=NOW_S, cold_start_s=95.0,
            cold_start_deviation_s=12.0, num_starts=3,
        )  # fmt: skip
        state = a_state()
        memory = a_memory(state, posterior=own, reason="-10% capacity: 60 of 420 late")

        shown = reported(state, memory=memory).status.calibration

        assert (shown.goodput_factor, shown.judged_requests) == (0.9, 420)
        assert shown.goodput_factor_reason == "-10% capacity: 60 of 420 late"
        assert (shown.cold_start_seconds, shown.cold_start_deviation_seconds) == (95.0, 12.0)
        assert (shown.kv_tokens, shown.prior_kv_tokens) == (math.floor(KV_TOKENS),) * 2

    def test_tells_how_long_its_pods_waited_for_a_node(self):
        own = ObjectPosterior(cold_start_s=95.0, node_wait_s=30.0, num_starts=3)
        state = a_state()
        memory = a_memory(state, posterior=own)

        shown = reported(state, memory=memory).status.to_dict()["calibration"]

        assert (shown["coldStartSeconds"], shown["nodeWaitSeconds"]) == (95.0, 30.0)
        assert shown["coldStarts"] == 3

    def test_tells_a_wait_of_nothing_and_none_before_the_first_start(self):
        state = a_state()
        at_once = ObjectPosterior(cold_start_s=95.0, num_starts=1)

        first = reported(state, memory=a_memory(state, posterior=at_once)).status.calibration

        assert first.node_wait_seconds == 0.0
        assert reported(state).status.calibration.node_wait_seconds is None

    def test_a_report_on_other_flags_is_not_shown(self):
        state = a_state(engines=())
        own = ObjectPosterior(memory_key="of other flags", kv_tokens=5.0)

        shown = reported(state, memory=a_memory(state, posterior=own)).status.calibration

        assert shown.kv_tokens is None

    def test_a_doubt_that_shrinks_asks_for_no_write(self):
        before = reported(known=learned_with(0.0004)).status.to_dict()
        after = reported(known=learned_with(0.0001)).status.to_dict()
        gone = reported().status.to_dict()

        assert before["calibration"] != after["calibration"]
        assert not gauges_moved(before, after)
        assert gauges_moved(before, gone)

    def test_more_of_the_same_evidence_asks_for_no_write(self):
        before = reported(known=learned_with(0.0004, num_windows=10, num_judged=10))
        after = reported(known=learned_with(0.0004, num_windows=99, num_judged=99))

        assert not gauges_moved(before.status.to_dict(), after.status.to_dict())


def learned_with(variance, *, num_windows=10, num_judged=0):
    """Calibrations of a slower engine, with such a variance of each logarithm."""
    learned = a_posterior(
        bandwidth_efficiency=0.6,
        covariance=(variance, 0.0, 0.0, variance, 0.0, variance),
        num_windows=num_windows,
        num_steps=1000 * num_windows,
        learned_at_s=NOW_S,
    )
    return Calibrations(
        speed={speed_scope("serving"): learned},
        objects={"uid-of-llama": ObjectPosterior(num_judged=num_judged)},
    )


class TestTheRest:
    def test_replicas_are_ready_over_desired(self):
        told = reported(a_state(load=3.5, live=a_deployment_body(replicas=2, ready=1)))

        assert told.status.replicas.summary == "1/5"

    def test_the_table_has_a_word_for_each_column(self):
        within = {2.0: 50.0, INF: 100.0}
        engines = tuple(an_engine(pod, waiting=3, ttft_within=within) for pod in "ab")

        display = reported(engines=engines).status.display

        assert display.queue == "6"
        assert display.slo == "TTFT 50%"
        assert display.reason == "Backlog"

    def test_what_is_wrong_is_the_reason_and_the_problem_of_the_table(self):
        secret = {"reason": "CreateContainerConfigError", "message": 'secret "hf" not found'}
        failing = {"containerStatuses": [{"name": "vllm", "state": {"waiting": secret}}]}
        live = a_deployment_body(replicas=1, ready=0)

        display = reported(
            live=live, pods=[a_pod_body("a", ready_for_s=None, **failing)], engines=()
        ).status.display

        assert display.reason == "CreateContainerConfigError"
        assert display.problem == (
            'pod a does not start: CreateContainerConfigError: secret "hf" not found'
        )

    def test_the_problem_is_one_short_line(self):
        said = "no node:\n" + "node " * 1000
        waits = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        stuck = a_pod_body("a", conditions=[waits | {"message": said}])

        problem = reported(pods=[stuck]).status.display.problem

        assert problem.startswith("pod a waits for a node: no node: node node")
        assert len(problem) == 160

    def test_a_missed_promise_is_a_problem_and_replicas_keep_their_reason(self):
        within = {2.0: 50.0, INF: 100.0}
        engines = tuple(an_engine(pod, waiting=3, ttft_within=within) for pod in "ab")

        display = reported(engines=engines).status.display

        assert display.reason == "Backlog"
        assert display.problem == (
            "TTFT: 50.0% within the limit, target 95% (requests wait for a replica that has others)"
        )

    @pytest.mark.parametrize(
        "state",
        [
            {"load": 1.5},
            {"replicas": None},
            {"live": a_deployment_body(replicas=1, ready=0), "pods": [], "engines": ()},
            {"manifest": a_manifest(scaling={"mode": "Recommend", "maxReplicas": 8})},
            {"manifest": a_manifest(scaling={"mode": "Paused", "maxReplicas": 8})},
        ],
        ids=["at rest", "not deployed yet", "its pods load", "mode Recommend", "mode Paused"],
    )
    def test_nothing_is_wrong_with_what_is_meant_so(self, state):
        assert reported(a_state(**state)).status.display.problem == ""

    def test_a_column_stays_short_whatever_an_engine_says(self):
        endless = tuple(an_engine(pod, waiting=1e300) for pod in "ab")

        assert reported(engines=endless).status.display.queue == "1000000000000000"

    def test_doubt_and_promises_are_told_with_numbers_after_what_decides(self):
        own = ObjectPosterior(goodput_factor=0.85, num_judged=400.0, judged_at_s=NOW_S)
        state = as_planned(a_state(load=3.5))
        fleet = a_fleet(state, settings={"speed_range": 0.8})  # as it is set up by default
        memory = a_memory(state, posterior=own)  # just restarted: why it moved is not known

        told = report(assessed(state, memory=memory, fleet=fleet), fleet)

        said = {each.code: each.message for each in told.status.plan.reasons}
        codes = list(said)
        assert codes.index("CapacityUncertain") > codes.index("Demand")
        assert "plan adds 15% to step time" in said["CapacityUncertain"]
        assert said["CapacityAdjusted"] == (
            "85% of what the step time allows are served, learned from 400 requests"
        )
        assert told.status.display.reason not in {"CapacityUncertain", "CapacityAdjusted"}

    def test_a_known_event_is_told_with_the_clock_of_its_zone(self):
        # Midnight in UTC is one o'clock in Berlin.
        event = {"cron": "0 1 * * *", "timeZone": "Europe/Berlin", "duration": "2h"}
        scaling = {"maxReplicas": 8, "schedules": [event | {"minReplicas": 5}]}

        told = reported(a_state(a_manifest(scaling=scaling))).status

        assert (told.plan.replicas, told.display.reason) == (5, "Schedule")
        assert told.plan.reasons[0].message == (
            "the event of 0 1 * * * Europe/Berlin lasts until 2026-01-02 03:00 CET: minReplicas 5"
        )

    def test_a_refusal_is_the_reason_in_the_table(self):
        told = reported(a_state(model_config=no_config("no such key")))

        assert told.status.display.reason == "ModelConfigMissing"
        assert told.status.plan is None

    def test_an_unknown_class_of_gpu_plans_nothing(self):
        told = reported(a_state(a_manifest(hardware={"gpu": "H900"}), live=a_deployment_body()))

        assert told.status.display.reason == "UnknownGpu"

    def test_is_within_what_the_crd_accepts(self):
        for state in (
            a_state(load=5),
            a_state(replicas=None),
            a_state(model_config=no_config("x" * 9000)),
        ):
            told = reported(state)

            assert Status.model_validate_json(told.status.model_dump_json())
