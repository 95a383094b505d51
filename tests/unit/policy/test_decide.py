"""From figures to replicas: one table of situations, and the laws that hold in all of them."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy_builders import NOW_S, PACE_S, WINDOW_S, a_need, a_situation
from strategies import numbers
from tonnage.policy.decide import (
    RULES,
    await_traffic,
    cap_step_up,
    decide,
    give_back_what_finds_no_node,
    hold_in_a_blackout,
    keep_gpu_budget,
    keep_in_a_rollout,
    keep_within_bounds,
    leave_to_another_writer,
    let_a_replica_go,
    never_lower_on_missing_data,
    no_growth_where_no_pod_would_run,
    wait_for_approval,
    walk_down,
)
from tonnage.policy.situation import Metrics
from tonnage.units import format_s

JUST_STARTED = {"watching_since_s": NOW_S - WINDOW_S + 1}
JUST_LOST = {"lost_at_s": NOW_S - 60}
QUOTA = ("QuotaExceeded", "pods are refused: exceeded quota: gpus, used: 8, limited: 8")
REFUSED = {"refused": QUOTA}
DARK = {"blackout": "3 of 4 objects lost their metrics within 5.0 min"}
BLIND = DARK | {"is_blind": True}
HELD = a_situation(current=5, need=2, recent=[9, 2])
DRAINABLE = {"evictable": (3, "pods.disruptionBudget.minAvailable 2")}
RATE_LIMITED, PARKED = "ScaleDownRateLimited", "ScaledToZeroExternally"
NO_LIMITS = {
    "ConflictingWriter", "Cooldown", "Draining", "MetricsMissing", "MetricsOutage", "ReplicaLost",
    "RolloutInProgress", "Stabilizing", "WaitingForTraffic", "WarmingUp", RATE_LIMITED, PARKED,
}  # fmt: skip
"""Patience, and who else is at it: of all others the condition ScalingLimited speaks."""
UNCOUNTED = {"free_budget_gpus": 100, "uncounted_gpus": "amd.com/gpu of Deployment a/b"}


@pytest.mark.parametrize(
    ("situation", "replicas", "codes"),
    [
        # Need.
        (a_situation(current=4, need=4), 4, []),
        (a_situation(current=2, need=5), 5, []),
        (a_situation(current=0, need=3), 3, []),
        # Down: a quarter at a time, and only what was not needed for a whole window.
        (a_situation(current=5, need=2), 3, [RATE_LIMITED]),
        (a_situation(current=4, need=2), 3, [RATE_LIMITED]),
        (a_situation(current=16, need=2), 12, [RATE_LIMITED]),
        (a_situation(current=3, need=2), 2, []),
        (a_situation(current=5, need=2, recent=[5, 2]), 5, ["Stabilizing"]),
        (a_situation(current=5, need=2, recent=[9, 2]), 5, ["Stabilizing"]),
        (a_situation(current=5, need=2, recent=[4, 2]), 4, ["Stabilizing"]),
        (a_situation(current=3, need=a_need(2, with_margin=3)), 3, ["Stabilizing"]),
        (a_situation(current=5, need=2, recent=[]), 5, ["Stabilizing"]),
        (a_situation(current=5, need=2, **JUST_STARTED), 5, ["WarmingUp"]),
        (a_situation(current=5, need=2, **JUST_LOST), 5, ["ReplicaLost"]),
        (a_situation(current=5, need=2, lost_at_s=NOW_S - WINDOW_S), 3, [RATE_LIMITED]),
        # What an overload left waiting is served by all there are.
        (a_situation(current=5, need=2, draining=(300, NOW_S + 60)), 5, ["Draining"]),
        (a_situation(current=5, need=6, draining=(300, NOW_S + 60)), 6, []),
        # As many as the object's own disruption budget takes, so that a node can be drained.
        (a_situation(current=1, need=1, **DRAINABLE), 3, ["DisruptionBudget"]),
        (a_situation(current=3, need=1, **DRAINABLE, recent=[9, 2]), 3, ["DisruptionBudget"]),
        (a_situation(current=4, need=4, **DRAINABLE), 4, []),
        (a_situation(current=1, need=1, minimum=4, **DRAINABLE), 4,
         ["DisruptionBudget", "MinReplicas"]),
        (a_situation(current=1, need=1, free_budget_gpus=2, **DRAINABLE), 2,
         ["DisruptionBudget", "GPUBudget"]),
        # At the minimum there is nothing to walk down: no window is told that ends unseen.
        (a_situation(current=5, need=2, minimum=5), 5, ["MinReplicas"]),
        (a_situation(current=5, need=2, minimum=5, **JUST_STARTED), 5, ["MinReplicas"]),
        (a_situation(current=5, need=2, minimum=5, **JUST_LOST), 5, ["MinReplicas"]),
        (a_situation(current=5, need=2, minimum=5, recent=[9, 2]), 5, ["MinReplicas"]),
        (a_situation(current=5, need=2, minimum=4, **JUST_STARTED), 5, ["WarmingUp"]),
        # What replaces a replica that was lost long ago still loads.
        (a_situation(current=5, need=2, lost_at_s=0, is_replacing=True), 5, ["ReplicaLost"]),
        (a_situation(current=5, need=2, lost_at_s=0, is_replacing=False), 3, [RATE_LIMITED]),
        # Provisioned ahead of its first traffic.
        (a_situation(current=5, need=2, awaited=5), 5, [RATE_LIMITED, "WaitingForTraffic"]),
        (a_situation(current=5, need=2, awaited=9), 5, [RATE_LIMITED, "WaitingForTraffic"]),
        (a_situation(current=5, need=2, awaited=3), 3, [RATE_LIMITED]),
        (a_situation(current=2, need=5, awaited=9), 5, []),
        # Nothing of that holds back growth.
        (a_situation(current=2, need=5, **JUST_STARTED), 5, []),
        (a_situation(current=2, need=5, **JUST_LOST), 5, []),
        # Missing data holds or raises.
        (a_situation(current=5, need=2, metrics=Metrics.MISSING), 5, ["MetricsMissing"]),
        (a_situation(current=5, need=7, metrics=Metrics.MISSING), 7, []),
        # Pace upwards.
        (a_situation(current=2, need=15), 10, ["StepCap"]),
        (a_situation(current=9, need=19), 18, ["StepCap"]),
        (a_situation(current=0, need=15), 8, ["StepCap"]),
        (a_situation(current=8, need=15, window_base=0), 8, ["StepCap"]),
        (a_situation(current=0, need=15, minimum=12), 12, ["StepCap", "MinReplicas"]),
        # Pods that no node takes: while they may yet be taken they hold nothing back, ...
        (a_situation(current=4, need=6), 6, []),
        # ... then they are given back at once, whatever is needed, and asked for again later.
        (a_situation(current=4, need=6, given_up=1, placed=3), 3, ["InsufficientGPU"]),
        # Of a rollout's pods the one too many finds no node: all that serve stay.
        (a_situation(current=4, need=6, given_up=1, placed=4), 4, ["InsufficientGPU"]),
        (a_situation(current=4, need=2, given_up=1, placed=3), 3, [RATE_LIMITED]),
        (a_situation(current=8, need=2, given_up=1, placed=7), 6, [RATE_LIMITED]),
        (a_situation(current=4, need=6, retry_at_s=NOW_S + 1), 4, ["InsufficientGPU"]),
        (a_situation(current=4, need=6, retry_at_s=NOW_S), 6, []),
        (a_situation(current=4, need=2, retry_at_s=NOW_S + 1), 3, [RATE_LIMITED]),
        # Pods that the API server refuses: the same.
        (a_situation(current=4, need=6, **REFUSED), 4, ["QuotaExceeded"]),
        (a_situation(current=4, need=2, **REFUSED), 3, [RATE_LIMITED]),
        (a_situation(current=4, need=4, **REFUSED), 4, []),
        (a_situation(current=1, need=1, minimum=3, **REFUSED), 3, ["MinReplicas"]),
        # The user's bounds.
        (a_situation(current=6, need=9, maximum=8), 8, ["MaxReplicas"]),
        (a_situation(current=3, need=1, minimum=3), 3, ["MinReplicas"]),
        (a_situation(current=4, need=1, minimum=4, metrics=Metrics.MISSING), 4, ["MetricsMissing"]),
        (a_situation(current=1, need=1, minimum=3), 3, ["MinReplicas"]),
        (a_situation(current=9, need=9, maximum=4), 4, ["MaxReplicas"]),
        (
            a_situation(current=9, need=9, maximum=4, metrics=Metrics.MISSING),
            4,
            ["MaxReplicas"],
        ),
        # The administrator's budget: 2 GPUs per replica.
        (a_situation(current=4, need=6, free_budget_gpus=4), 6, []),
        (a_situation(current=4, need=6, free_budget_gpus=3), 5, ["GPUBudget"]),
        (a_situation(current=4, need=6, free_budget_gpus=0), 4, ["GPUBudget"]),
        (a_situation(current=4, need=6, free_budget_gpus=-7), 4, ["GPUBudget"]),
        (a_situation(current=0, need=1, free_budget_gpus=1), 0, ["GPUBudget"]),
        (a_situation(current=1, need=1, minimum=3, free_budget_gpus=2), 2,
         ["MinReplicas", "GPUBudget"]),
        (a_situation(current=4, need=4, free_budget_gpus=-7), 4, []),
        (a_situation(current=5, need=2, free_budget_gpus=0), 3, [RATE_LIMITED]),
        # GPUs that it cannot count.
        (a_situation(current=4, need=6, **UNCOUNTED), 4, ["GPUsUncounted"]),
        (a_situation(current=0, need=1, **UNCOUNTED), 0, ["GPUsUncounted"]),
        (a_situation(current=4, need=2, **UNCOUNTED), 3, [RATE_LIMITED]),
        (a_situation(current=4, need=6, **UNCOUNTED | {"free_budget_gpus": None}), 6, []),
        # Much of the fleet is blind: what there is stays, but for what the user allows.
        (a_situation(current=4, need=6, **DARK), 6, []),
        (a_situation(current=4, need=2, **DARK), 4, ["MetricsOutage"]),
        (a_situation(current=1, need=3, **BLIND), 1, ["MetricsOutage"]),
        (a_situation(current=4, need=6, **BLIND), 4, ["MetricsOutage"]),
        (a_situation(current=4, need=2, **BLIND), 4, ["MetricsOutage"]),
        (a_situation(current=4, need=4, **BLIND), 4, []),
        (a_situation(current=0, need=3, **BLIND), 3, []),
        (a_situation(current=2, need=a_need(6, floor=5), **BLIND), 5, ["MetricsOutage"]),
        (a_situation(current=2, need=a_need(5, floor=5), **BLIND), 5, []),
        (a_situation(current=2, need=6, minimum=3, **BLIND), 3, ["MetricsOutage", "MinReplicas"]),
        (a_situation(current=9, need=6, maximum=8, **BLIND), 8, ["MetricsOutage", "MaxReplicas"]),
        # Beyond the stated cost, until somebody agrees; what runs stays.
        (a_situation(current=2, need=6, approved=(3, "12.00")), 3, ["ApprovalNeeded"]),
        (a_situation(current=5, need=6, approved=(3, "12.00")), 5, ["ApprovalNeeded"]),
        (a_situation(current=2, need=3, approved=(3, "12.00")), 3, []),
        # While pods are replaced none goes, and more may come.
        (a_situation(current=4, need=2, is_rolling=True), 4, [RATE_LIMITED, "RolloutInProgress"]),
        (a_situation(current=4, need=6, is_rolling=True), 6, []),
        # Left to another writer, whatever is needed.
        (a_situation(current=0, need=3, left=(PARKED, "b")), 0, [PARKED]),
        (a_situation(current=5, need=5, left=("ConflictingWriter", "b")), 5, []),
        # Several at once, each in its order.
        (a_situation(current=4, need=30, maximum=20, free_budget_gpus=6), 7,
         ["StepCap", "GPUBudget"]),
        (a_situation(current=11, need=30, free_budget_gpus=100), 20,
         ["StepCap", "MaxReplicas"]),
    ],
)  # fmt: skip
def test_decides(situation, replicas, codes):
    decision = decide(situation)

    assert decision.replicas == replicas
    assert [reason.code for reason in decision.reasons] == [*reversed(codes), "Demand"]
    assert decision.limited_by == (codes[-1] if codes else None)
    assert decision.is_limited == (bool(codes) and codes[-1] not in NO_LIMITS)


def test_the_rules_speak_in_this_order():
    assert tuple(RULES) == (
        never_lower_on_missing_data,
        hold_in_a_blackout,
        walk_down,
        await_traffic,
        cap_step_up,
        give_back_what_finds_no_node,
        no_growth_where_no_pod_would_run,
        let_a_replica_go,
        keep_within_bounds,
        keep_gpu_budget,
        wait_for_approval,
        keep_in_a_rollout,
        leave_to_another_writer,
    )


@pytest.mark.parametrize(
    ("situation", "message"),
    [
        (a_situation(current=5, need=2, recent=[6]), "6 were needed in the last 5.0 min"),
        (a_situation(current=5, need=2, **JUST_LOST), "60.00 s ago"),
        (
            a_situation(current=5, need=2, **JUST_LOST, lost_pods="b on n2"),
            "a replica was lost 60.00 s ago (b on n2) and its demand with it",
        ),
        (a_situation(current=2, need=15), "at most 8 more in one step: 10"),
        (a_situation(current=6, need=9, maximum=8), "maxReplicas allows 8"),
        (
            a_situation(current=4, need=6, **REFUSED),
            "keeping 4: pods are refused: exceeded quota: gpus, used: 8, limited: 8",
        ),
        (
            a_situation(current=4, need=6, **UNCOUNTED),
            "the GPU budget cannot count amd.com/gpu of Deployment a/b, so no fleet grows",
        ),
        (
            a_situation(current=4, need=6, free_budget_gpus=3),
            "the GPU budget has 3 GPUs free, which is room for 1 more replica of 2 GPUs",
        ),
        (
            a_situation(current=4, need=6, free_budget_gpus=-2),
            "the GPU budget has 0 GPUs free, which is room for 0 more replicas of 2 GPUs",
        ),
        (
            a_situation(current=5, need=2, draining=(300, NOW_S + 60)),
            "300 still queued after an overload: no scale-down until they are served, for 60",
        ),
        (a_situation(current=3, need=6, retry_at_s=NOW_S + 60), "next try in 60.00 s"),
        (
            a_situation(current=5, need=2, lost_at_s=NOW_S - 60),
            "60.00 s ago and its demand with it: no scale-down",
        ),
        (
            a_situation(current=5, need=2, lost_at_s=NOW_S - 60, is_replacing=True),
            "its demand with it, its replacement still loads: no scale-down",
        ),
        (HELD, f"keeping 5: 9 were needed in the last {format_s(WINDOW_S)} (stabilization window)"),
        (
            replace(HELD, hold_s=2 * WINDOW_S),
            f"the last {format_s(2 * WINDOW_S)} (demand returned so often",
        ),
    ],
)
def test_reasons_carry_the_numbers(situation, message):
    assert message in decide(situation).reasons[0].message


def test_what_the_api_server_says_is_cut_to_what_a_reason_holds():
    refused = a_situation(current=4, need=6, refused=("QuotaExceeded", "x" * 5000))

    assert len(decide(refused).reasons[0].message) == 1024


times = numbers(0, 2 * WINDOW_S).map(lambda ago: NOW_S - ago)


@st.composite
def situations(draw, **fixed):
    minimum = draw(st.integers(1, 10))
    need = draw(st.integers(1, 50))
    wanted = a_need(need, with_margin=need + draw(st.integers(0, 5)))
    drawn = {
        "current": draw(st.integers(0, 40)),
        "given_up": draw(st.integers(0, 3)),
        "placed": draw(st.integers(0, 40)),
        "retry_at_s": draw(st.none() | times),
        "minimum": minimum,
        "maximum": draw(st.integers(minimum, 40)),
        "metrics": draw(st.sampled_from(Metrics)),
        "recent_needs": (
            *draw(st.lists(st.tuples(times, st.integers(1, 50)), max_size=5)),
            (NOW_S, wanted.replicas_with_margin),
        ),
        "watching_since_s": draw(times),
        "lost_at_s": draw(st.none() | times),
        "is_replacing": draw(st.booleans()),
        "awaited": draw(st.none() | st.integers(1, 50)),
        "stepped": draw(st.none() | st.tuples(times, st.integers(0, 40))),
        "refused": draw(st.none() | st.just(QUOTA)),
        "uncounted_gpus": draw(st.none() | st.just("amd.com/gpu")),
        "gpus_per_replica": draw(st.sampled_from([1, 2, 8])),
        "free_budget_gpus": draw(st.none() | st.integers(-20, 100)),
    }
    return replace(a_situation(need=wanted), **(drawn | fixed))


@given(situations())
def test_every_change_carries_a_reason_and_the_last_bound_comes_first(situation):
    decision = decide(situation)

    limits = [reason.code for reason in decision.reasons[:-1]]
    assert (decision.replicas != situation.need.replicas) <= bool(limits)
    assert decision.limited_by == (limits[0] if limits else None)


@given(situations(free_budget_gpus=None))
def test_stays_within_the_users_bounds(situation):
    assert situation.minimum <= decide(situation).replicas <= situation.maximum


@given(situations())
def test_never_exceeds_the_maximum_or_the_need_and_the_minimum(situation):
    allowed = max(situation.current, situation.need.replicas, situation.minimum)

    assert decide(situation).replicas <= max(situation.minimum, min(allowed, situation.maximum))


@given(situations(), st.sampled_from([Metrics.MISSING, Metrics.NEVER]))
def test_missing_data_never_lowers(situation, metrics):
    situation = replace(situation, metrics=metrics)

    kept = max(0, situation.current - situation.given_up)
    assert decide(situation).replicas >= min(kept, situation.maximum)


@given(situations(given_up=0))
def test_takes_a_quarter_away_at_a_time(situation):
    kept = math.floor(0.75 * situation.current)

    assert decide(situation).replicas >= min(kept, situation.maximum)


@given(situations(watching_since_s=NOW_S - WINDOW_S + 1, given_up=0))
def test_never_lowers_just_after_the_start(situation):
    assert decide(situation).replicas >= min(situation.current, situation.maximum)


@given(situations(lost_at_s=NOW_S - WINDOW_S + 1, given_up=0))
def test_never_lowers_just_after_a_loss(situation):
    assert decide(situation).replicas >= min(situation.current, situation.maximum)


@given(situations(given_up=0))
def test_never_takes_away_what_was_needed_within_the_window(situation):
    needed = max(replicas for _, replicas in situation.recent_needs)

    kept = min(situation.current, needed, situation.maximum)
    assert decide(situation).replicas >= kept


@given(situations(free_budget_gpus=0))
def test_an_exhausted_budget_allows_no_growth(situation):
    assert decide(situation).replicas <= max(situation.current, 0)


@given(situations())
def test_growth_stays_within_the_budget(situation):
    growth = max(0, decide(situation).replicas - situation.current)

    free = situation.free_budget_gpus
    assert free is None or growth * situation.gpus_per_replica <= max(0, free)


@given(situations(given_up=1))
def test_pods_that_no_node_takes_allow_no_growth_beyond_the_minimum(situation):
    allowed = max(situation.current, situation.minimum)

    assert decide(situation).replicas <= allowed


@given(situations(refused=QUOTA))
def test_refused_pods_allow_no_growth_beyond_the_minimum(situation):
    assert decide(situation).replicas <= max(situation.current, situation.minimum)


@given(situations(free_budget_gpus=100, uncounted_gpus="amd.com/gpu"))
def test_a_budget_that_cannot_be_counted_allows_no_growth(situation):
    assert decide(situation).replicas <= situation.current


@given(situations(), st.integers(1, 8))
def test_one_window_adds_no_more_than_a_step(situation, ticks):
    # Carried out tick after tick within one window, under a need that nothing satisfies.
    situation = replace(situation, need=a_need(1000), window_base=situation.current)
    current = situation.current
    for _ in range(ticks):
        current = decide(replace(situation, current=current)).replicas

    is_free = situation.current == 0 or situation.current < situation.minimum
    most = situation.current + max(situation.current, 8)
    assert is_free or current <= max(most, situation.minimum)


@given(situations(given_up=0), times)
def test_nothing_is_taken_away_before_the_last_step_shows(situation, at_s):
    situation = replace(situation, stepped=(max(at_s, NOW_S - PACE_S + 1), 3))

    assert decide(situation).replicas >= min(situation.current, situation.maximum)


@given(situations())
def test_the_same_situation_gives_the_same_decision(situation):
    assert decide(situation) == decide(situation)


@given(
    situations(
        given_up=0,
        retry_at_s=None,
        refused=None,
        free_budget_gpus=None,
        metrics=Metrics.COMPLETE,
    )
)
def test_following_decisions_comes_to_rest(situation):
    # Carried out again and again under a steady need, the number moves one way and then stays.
    settled = replace(situation, watching_since_s=0, lost_at_s=None, stepped=None)
    settled = replace(settled, awaited=None)
    settled = replace(settled, recent_needs=((NOW_S, settled.need.replicas_with_margin),))
    path = [settled.current]
    for _ in range(60):
        path.append(decide(replace(settled, current=path[-1])).replicas)

    assert path[-1] == path[-2]
    assert path in (sorted(path), sorted(path, reverse=True))
    assert decide(replace(settled, current=path[-1])).replicas == path[-1]


class TestPace:
    """A step is given the time in which its effect shows in the rates."""

    def test_no_second_step_down_before_the_first_shows(self):
        paced = decide(a_situation(current=4, need=1, stepped=(NOW_S - PACE_S + 1, 5)))
        later = decide(a_situation(current=4, need=1, stepped=(NOW_S - PACE_S - 1, 5)))

        assert (paced.replicas, paced.limited_by) == (4, "Cooldown")
        assert later.replicas == 3

    def test_the_cap_counts_from_where_the_window_began(self):
        first = decide(a_situation(current=2, need=20))
        again = decide(a_situation(current=10, need=20, window_base=2))
        later = decide(a_situation(current=10, need=20, stepped=(NOW_S - PACE_S - 1, 2)))

        assert [each.replicas for each in (first, again, later)] == [10, 10, 20]

    def test_a_fleet_of_which_nothing_is_ready_is_not_lowered(self):
        loading = a_situation(current=6, need=2, metrics=Metrics.NEVER)

        assert decide(loading).replicas == 6

    def test_a_step_shows_after_exactly_its_pace(self):
        assert decide(a_situation(current=4, need=1, stepped=(NOW_S - PACE_S, 5))).replicas == 3

    def test_the_cap_of_a_window_takes_nothing_away(self):
        # Two were there when the window began, twelve are now, and 2 + 8 are wanted.
        window = a_situation(current=12, window_base=2)

        [bound] = cap_step_up(window)

        assert (bound.at_least, bound.at_most) == (0, 12)


def test_a_process_that_has_watched_for_exactly_a_window_may_scale_down():
    watched = a_situation(current=5, need=2, watching_since_s=NOW_S - WINDOW_S)

    assert decide(watched).replicas == 3
