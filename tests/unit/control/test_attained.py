"""What is left of the error budget: counted by object, told, and counted on by the next process."""

import math
from dataclasses import replace

import pytest

from fleet_builders import NOW_S, a_fleet, a_manifest, a_memory, a_state, assessed, remembering
from measured_builders import an_engine
from tonnage.api.objects import parse_model_deployment
from tonnage.api.status import Condition
from tonnage.control.input.memory import Memory
from tonnage.control.input.times import rfc3339
from tonnage.control.tick import tick
from tonnage.estimate.budget import Ledger
from tonnage.estimate.past import Past
from tonnage.units import DAY_S, HOUR_S

INF = math.inf
WINDOW_S = 120
SLO = {"timeToFirstToken": {"p95": "2s"}, "timePerOutputToken": {"p95": "50ms"}}
EACH_PER_S = 5.0
UID = a_state().view.uid


def judged(*, late=0.0, slow=0.0):
    """Two engines of whose requests so large a share misses the target of TTFT, and of TPOT."""
    told = {
        "completed_per_s": EACH_PER_S,
        "ttft_within": {2.0: (1 - late) * EACH_PER_S, INF: EACH_PER_S},
        "tpot_within": {0.05: (1 - slow) * EACH_PER_S, INF: EACH_PER_S},
    }
    return tuple(an_engine(pod, **told) for pod in "ab")


def after(*, memory=None, now_s=NOW_S, attainment=None, **shares):
    """The assessment of one more tick; ``attainment``: of the spec."""
    slo = SLO if attainment is None else SLO | {"attainment": attainment}
    state = a_state(a_manifest(slo=slo), engines=judged(**shares))
    known = memory or a_memory(state)
    return assessed(state, memory=known, fleet=a_fleet(state, now_s=now_s))


def test_counts_the_requests_of_each_window_once():
    first = after(late=0.1)
    again = after(memory=first.memory, now_s=NOW_S + 15, late=0.1)
    next_one = after(memory=again.memory, now_s=NOW_S + WINDOW_S, late=0.1)

    requests = 2 * EACH_PER_S * WINDOW_S
    late = first.budget.num_late
    assert (first.budget.num_requests, late) == pytest.approx((requests, 0.1 * requests))
    assert again.budget == first.budget
    assert next_one.budget.num_requests == pytest.approx(2 * requests)


def test_a_late_tick_counts_what_came_since_the_last_one_up_to_two_windows():
    first = after(late=0.1)

    late = after(memory=first.memory, now_s=NOW_S + 1.5 * WINDOW_S, late=0.1)
    later = after(memory=first.memory, now_s=NOW_S + 20 * WINDOW_S, late=0.1)

    assert late.budget.num_requests == pytest.approx(2.5 * first.budget.num_requests)
    assert later.budget.num_requests == pytest.approx(3 * first.budget.num_requests)


def test_a_percent_is_of_the_highest_percentile_of_each_latency():
    slo = {
        "timeToFirstToken": {"p50": "500ms", "p99": "2s"},
        "timePerOutputToken": {"p95": "50ms"},
        "attainment": {"percent": 98},
    }
    state = a_state(a_manifest(slo=slo), engines=judged())

    allowed = {
        each.objective.limit: each.objective.allowed_share for each in assessed(state).budgets
    }

    assert allowed == pytest.approx({"TTFT 500 ms": 0.5, "TTFT 2.00 s": 0.02, "TPOT 50.0 ms": 0.02})


def test_is_of_the_percentile_of_each_target_over_a_day():
    budget = after(late=0.02, slow=0.04).budget

    assert (budget.objective.limit, budget.window_s) == ("TPOT 50.0 ms", 24 * HOUR_S)
    assert budget.left == pytest.approx(0.2)


def test_is_of_the_percent_and_the_window_of_the_spec():
    budget = after(late=0.02, attainment={"percent": "97.5", "window": "2h"}).budget

    assert (budget.objective.limit, budget.window_s) == ("TTFT 2.00 s", 2 * HOUR_S)
    assert budget.left == pytest.approx(0.2)


def test_a_window_that_is_edited_keeps_what_was_counted():
    before = after(late=0.02)

    budget = after(memory=before.memory, now_s=NOW_S + WINDOW_S, attainment={"window": "6h"}).budget

    assert budget.window_s == 6 * HOUR_S
    assert budget.num_requests == pytest.approx(2 * before.budget.num_requests)


def test_what_was_late_for_another_limit_goes():
    memory = remembering(
        after(late=0.5).memory, ledger=Ledger(limits={"TTFT 1.00 s": {1: (100.0, 50.0)}})
    )

    found = after(memory=memory, now_s=NOW_S + WINDOW_S)

    assert set(found.memory.goodput.ledger.limits) == {"TTFT 2.00 s", "TPOT 50.0 ms"}


def test_no_metrics_count_nothing_and_keep_what_was_counted():
    before = after(late=0.1)
    state = replace(before.state, engines=())

    found = assessed(state, memory=before.memory, fleet=a_fleet(state, now_s=NOW_S + WINDOW_S))

    assert found.budget == before.budget


def test_an_edit_of_it_alone_replaces_no_pod():
    edited = SLO | {"attainment": {"percent": "99.5", "window": "168h"}}

    before, after_it = (parse_model_deployment(a_manifest(slo=slo)).spec for slo in (SLO, edited))

    assert before.to_digestible() == after_it.to_digestible()


def test_changes_no_number_of_replicas():
    burnt = {"TTFT 2.00 s": {int(NOW_S // HOUR_S): (10_000.0, 9_000.0)}}
    memory = remembering(after().memory, ledger=Ledger(limits=burnt))

    found = after(memory=memory, now_s=NOW_S + 15)

    assert found.budget.left < 0
    assert found.decision.replicas == after(now_s=NOW_S + 15).decision.replicas


class TestTheNextProcess:
    def ticked(self, *, memory=None, now_s=NOW_S, **fleet):
        state = a_state(a_manifest(slo=SLO), engines=judged(late=0.1))
        outcome = tick(a_fleet(state, now_s=now_s, **fleet), memory or Memory())
        return outcome.memory.objects[state.view.uid], outcome.memory

    def past(self, *, since_s, late=300.0):
        before = {"TTFT 2.00 s": {int(NOW_S // HOUR_S) - 2: (10_000.0, late)}}
        ledger = Ledger(limits=before, since_s=since_s)
        return {UID: Past(ledger=ledger)}

    def said(self, known):
        found = known.reported.conditions["ErrorBudget"]
        return found.status, found.reason

    def test_goes_on_with_what_prometheus_says_of_before(self):
        found, _ = self.ticked(pasts=self.past(since_s=NOW_S - 2 * DAY_S, late=900.0))

        requests = sum(each for each, _ in found.goodput.ledger.limits["TTFT 2.00 s"].values())
        assert requests == pytest.approx(10_000 + 2 * EACH_PER_S * WINDOW_S)
        assert self.said(found) == ("False", "BudgetExhausted")

    def test_says_nothing_new_before_prometheus_has(self):
        before = Condition(
            type="ErrorBudget",
            status="True",
            reason="BudgetAvailable",
            message="nothing was late",
            last_transition_time=rfc3339(NOW_S - HOUR_S),
        )
        known, memory = self.ticked(past_awaited=frozenset({UID}))
        known = replace(known, reported=replace(known.reported, conditions={"ErrorBudget": before}))
        memory = replace(memory, objects={UID: known})

        found, _ = self.ticked(memory=memory, now_s=NOW_S + 15, past_awaited=frozenset({UID}))

        assert self.said(found) == ("True", "BudgetAvailable")

    def test_counts_since_the_history_begins_and_is_never_full_before_the_window_is(self):
        since_s = NOW_S - 2 * HOUR_S

        found, _ = self.ticked(pasts=self.past(since_s=since_s, late=0.0))

        assert self.said(found) == ("Unknown", "CountedInPart")
        assert rfc3339(since_s) in found.reported.conditions["ErrorBudget"].message
        assert "errorBudgetLeft" not in found.reported.shown

    def test_is_burnt_by_a_part_of_the_window_too(self):
        found, _ = self.ticked(pasts=self.past(since_s=NOW_S - 2 * HOUR_S, late=9000.0))

        assert self.said(found) == ("False", "BudgetExhausted")
