"""Why requests are late, from what engines say of prompts, queues, steps and pods."""

import math
from dataclasses import replace

import pytest

from fleet_builders import NOW_S, a_deployment_body, a_pod_body, a_sizing, a_state
from measured_builders import an_engine
from tonnage.control.input.memory import PodSpeed
from tonnage.control.input.state import Attainment
from tonnage.control.measure.causes import Evidence, longest_in_time, with_cause
from tonnage.control.report.reasons import REASONS
from tonnage.estimate.metrics import ATTAINMENT_SCRAPES, WINDOWS
from tonnage.estimate.samples import WindowRates
from tonnage.sizing.serving.replica import own_prefill_s

INF = math.inf
SIZING = a_sizing()
"""Prompts of 4,000 tokens, of which one takes 0.35 s alone, under a TTFT of 2 s at p95."""
OWN_S = own_prefill_s(SIZING.replica, SIZING.request.workload, SIZING.idle, 4000)
STEP_S = SIZING.at_capacity.step_s
"""34 ms: each request waits for the step in progress."""
RATE = 10.0
"""Requests/s of an engine."""
CALM = {
    "queue_s": 0.01,
    "prefill_s": OWN_S,
    "outside_s": 0.05,
    "cached": 0.0,
}
"""Means in seconds, and the share of prompt tokens that are cached."""


def an_engine_of(pod="a", *, late=0.0, tpot_late=0.0, rate=RATE, limit_s=2.0, **changes):
    """An engine whose requests wait, are prefilled and pass the server for so long in the mean.

    A figure that is None is one of an engine that has no such metric. ``ended``: as many requests,
    of those that start, end.
    """
    ended_per_s = rate * changes.pop("ended", 1.0)
    means = CALM | {name: changes.pop(name) for name in CALM.keys() & changes.keys()}
    known = [means["queue_s"] or 0.0, means["prefill_s"] or 0.0, means["outside_s"] or 0.0]
    told = {
        "seconds": 15.0 * (ATTAINMENT_SCRAPES - 1),
        "completed_per_s": rate,
        "in_flight_per_s": changes.pop("grown_per_s", 0.0),
        "rejected_per_s": changes.pop("rejected_per_s", 0.0),
        "started_per_s": rate,
        "started_prompt_tokens_per_s": 4000 * rate,
        "computed_prompt_tokens_per_s": 4000 * rate * (1 - means["cached"]),
    }
    if means["outside_s"] is not None:
        told["first_token_s_per_s"] = rate * sum(known)
    if means["queue_s"] is not None:
        told |= {"queue_s_per_s": ended_per_s * means["queue_s"], "queues_per_s": ended_per_s}
    if means["prefill_s"] is not None:
        told |= {
            "prefill_s_per_s": ended_per_s * means["prefill_s"],
            "prefills_per_s": ended_per_s,
        }
    engine = an_engine(
        pod,
        ttft_within={limit_s: (1 - late) * rate, INF: rate},
        tpot_within={0.05: (1 - tpot_late) * rate, INF: rate},
    )
    return replace(engine, windows=dict.fromkeys(WINDOWS, WindowRates(**told)), **changes)


def late(share, *, name="TTFT", limit_s=2.0, quantile=0.95, **changes):
    """So large a share of the requests misses a target."""
    return Attainment(
        name=name,
        quantile=quantile,
        limit_s=limit_s,
        fraction=1 - share,
        requests_per_s=2 * RATE,
        **changes,
    )


def a_speed(slower):
    return PodSpeed(node=None, slower=slower, mbu=0.3, mfu=0.3, seen_at_s=NOW_S)


def evidence(*engines, ready_for_s=None, speeds=None, before="", **changes):
    """Of pods that serve for an hour, or for as long as is said by name."""
    ready = dict.fromkeys((each.pod for each in engines), 3600) | (ready_for_s or {})
    bodies = [a_pod_body(pod, ready_for_s=since_s) for pod, since_s in ready.items()]
    known = Evidence(
        engines=engines,
        pods=a_state(pods=bodies, live=a_deployment_body()).pods,
        speeds={pod: a_speed(slower) for pod, slower in (speeds or {}).items()},
        sizing=SIZING,
        now_s=NOW_S,
        before=before,
    )
    return replace(known, **changes)


def cause(attainment, *engines, **changes):
    """Return the code of the cause."""
    return with_cause(attainment, evidence(*engines, **changes)).cause.code


def two(**changes):
    return tuple(an_engine_of(pod, **changes) for pod in "ab")


class TestQueued:
    def test_is_what_waits_for_long_in_the_mean(self):
        found = with_cause(late(0.3), evidence(*two(late=0.3, queue_s=1.0)))

        assert found.cause.code == "Queued"
        assert "requests wait 1.00 s on average" in found.cause.message
        assert found.late_by_load == pytest.approx(0.3)

    @pytest.mark.parametrize(("grown_per_s", "kept"), [(RATE / 2, "67%"), (RATE, "50%")])
    def test_says_what_refusals_keep_of_what_comes(self, grown_per_s, kept):
        request = replace(SIZING.request, may_refuse=True)
        waits = two(late=0.3, queue_s=1.0, grown_per_s=grown_per_s)

        found = with_cause(late(0.3), evidence(*waits, sizing=replace(SIZING, request=request)))

        assert found.cause.message.endswith(
            "; engine.admission: inTime, which refuses (503) those that would be late, keeps about "
            f"{kept} in time"
        )

    def test_says_nothing_of_refusals_where_no_more_comes_than_is_served(self):
        request = replace(SIZING.request, may_refuse=True)
        waits = two(late=0.3, queue_s=1.0)

        found = with_cause(late(0.3), evidence(*waits, sizing=replace(SIZING, request=request)))

        assert "admission" not in found.cause.message

    def test_is_nothing_that_waits_too_short_to_make_so_many_late(self):
        # By their mean at most one in sixteen can have waited for the 1.6 s that are left.
        assert cause(late(0.3), *two(late=0.3, queue_s=0.1)) == "TargetMissed"
        assert cause(late(0.1), *two(late=0.1, queue_s=0.1 + STEP_S)) == "Queued"

    @pytest.mark.parametrize("limit_s", [0.25, 0.5, 0.75, 1.0])
    def test_is_no_wait_for_the_step_in_progress(self, limit_s):
        missed = late(0.3, limit_s=limit_s)

        def waits(queue_s):
            return cause(missed, *two(late=0.3, limit_s=limit_s, queue_s=queue_s))

        assert waits(STEP_S) == "TargetMissed"
        assert waits(STEP_S + 0.3 * limit_s) == "Queued"

    @pytest.mark.parametrize(("within_s", "code"), [(9.9, "TargetMissed"), (6.0, "Queued")])
    def test_is_nothing_that_waits_in_time_by_the_histogram(self, within_s, code):
        told = two(late=0.3, queue_s=1.0, queue_within={1.5: within_s, INF: RATE})

        assert cause(late(0.3), *told) == code

    def test_is_by_what_waits_where_those_that_ended_have_not_waited(self):
        ended = {"queue_s": 0.01, "queue_within": {1.5: RATE, INF: RATE}}

        growing = two(late=0.3, waiting=30, outside_s=3.0, **ended)
        found = with_cause(late(0.3), evidence(*growing))

        assert found.cause.message.startswith("requests wait 3.00 s on average")
        assert found.late_by_load == pytest.approx(0.3)
        assert cause(late(0.3), *two(late=0.3, **ended)) == "TargetMissed"

    @pytest.mark.parametrize("within", [{2.0: RATE, INF: RATE}, {INF: RATE}, {}])
    def test_is_by_the_mean_where_no_bound_is_below_what_is_left(self, within):
        assert cause(late(0.3), *two(late=0.3, queue_s=1.0, queue_within=within)) == "Queued"

    def test_is_taken_for_the_cause_by_engines_without_a_figure_of_it(self):
        found = with_cause(late(0.3), evidence(*two(late=0.3, queue_s=None)))

        assert found.cause.code == "Queued"
        assert found.cause.message == "requests wait for a replica that has others"


class TestSlowSteps:
    def test_are_a_prefill_that_takes_longer_than_alone(self):
        found = with_cause(late(0.3), evidence(*two(late=0.3, prefill_s=OWN_S + 0.7)))

        assert found.cause.code == "SlowSteps"
        assert found.cause.message == "prefill takes 1.05 s, alone it would take 346 ms"
        assert found.late_by_load == pytest.approx(0.3)

    def test_are_none_where_it_takes_as_long_as_alone(self):
        assert cause(late(0.3), *two(late=0.3)) == "TargetMissed"
        assert cause(late(0.3), *two(late=0.3, prefill_s=OWN_S / 2)) == "TargetMissed"

    def test_are_no_cause_where_the_wait_is_longer(self):
        assert cause(late(0.3), *two(late=0.3, prefill_s=OWN_S + 0.7, queue_s=1.5)) == "Queued"

    @pytest.mark.parametrize(
        ("longer", "misses_tpot", "grown_per_s", "code"),
        [
            (0.3, True, 3.0, "SlowSteps"),
            # 35 % of 20 requests/s are most of what is missing, up to 14.
            (0.3, True, 15.0, "Queued"),
            (0.3, False, 3.0, "Queued"),
            (0.1, True, 1.0, "Queued"),
        ],
    )
    def test_make_requests_wait_that_would_be_served_at_the_expected_speed(
        self, longer, misses_tpot, grown_per_s, code
    ):
        engines = two(late=0.3, queue_s=1.0, grown_per_s=grown_per_s / 2)
        known = evidence(*engines, longer=longer, misses_tpot=misses_tpot)
        found = with_cause(late(0.3), known)

        assert found.cause.code == code
        assert found.late_by_load == pytest.approx(0.3)

    def test_are_learned_and_seen_together(self):
        engines = two(late=0.3, queue_s=1.0, grown_per_s=1.0)
        seen = {"a": 0.1, "b": 0.1}

        assert cause(late(0.3), *engines, longer=0.1, misses_tpot=True, speeds=seen) == "SlowSteps"

    def test_are_all_that_makes_a_later_token_late(self):
        found = with_cause(late(0.2, name="TPOT", limit_s=0.05), evidence(*two(tpot_late=0.2)))

        assert found.cause.code == "SlowSteps"
        assert found.late_by_load == pytest.approx(0.2)


class TestLongPrompts:
    """Under 400 ms the longest prompt that comes in time on an idle replica has 4,052 tokens."""

    LIMIT_S = 0.4

    def found(self, share, prompts, **changes):
        told = two(late=share, limit_s=self.LIMIT_S, prompts_within=prompts, **changes)
        return with_cause(late(share, limit_s=self.LIMIT_S), evidence(*told))

    def test_are_those_that_are_late_alone(self):
        found = self.found(0.1, {2e3: 9.0, 5e3: 9.0, 1e4: 10.0, INF: 10.0})

        assert found.cause.code == "LongPrompts"
        assert found.cause.message.startswith("10.0% of prompts have over 4,0")
        assert "take longer than 400 ms on an idle replica" in found.cause.message
        assert found.late_by_load == 0

    def test_are_bounds_between_two_buckets(self):
        found = self.found(0.15, {2e3: 8.0, 5e3: 9.0, 1e4: 10.0, INF: 10.0})

        assert found.cause.message.startswith("10.0% to 20.0% of prompts ")
        # Only the lower one is certain.
        assert found.late_alone == pytest.approx(0.1)

    def test_leave_what_waits_to_load(self):
        found = self.found(0.3, {2e3: 9.0, 5e3: 9.0, 1e4: 10.0, INF: 10.0}, queue_s=1.0)

        assert found.cause.code == "Queued"
        assert found.late_by_load == pytest.approx(0.2)
        # They alone miss the target, so that is said too.
        assert "; 10.0% of prompts have over 4,0" in found.cause.message

    def test_are_not_said_beside_another_cause_where_so_many_may_be_late(self):
        found = self.found(0.3, {2e3: 9.6, 5e3: 9.6, 1e4: 10.0, INF: 10.0}, queue_s=1.0)

        assert found.late_alone == pytest.approx(0.04)
        assert "prompts" not in found.cause.message

    @pytest.mark.parametrize(("share", "alone"), [(0.01, 0.0), (0.09, 0.0), (0.11, 0.1)])
    def test_are_none_where_fewer_are_late_than_are_certain_to_be(self, share, alone):
        # Ten of a hundred are long: where fewer are late, engines are faster than the table.
        prompts = {2e3: 9.0, 5e3: 9.0, 1e4: 10.0, INF: 10.0}
        found = self.found(share, prompts, queue_s=1.0)

        assert found.late_alone == pytest.approx(alone)
        assert found.late_by_load == pytest.approx(share - alone)
        assert found.cause.code == ("LongPrompts" if alone else "Queued")

    @pytest.mark.parametrize(
        ("share", "code"), [(0.06, "TargetMissed"), (0.07, "LongPrompts"), (0.09, "LongPrompts")]
    )
    def test_are_what_nothing_else_makes_late_where_by_chance_fewer_are(self, share, code):
        # Prompts are counted at the end of a request, first tokens before: windows differ.
        found = self.found(share, {2e3: 9.0, 5e3: 9.0, 1e4: 10.0, INF: 10.0})

        assert (found.cause.code, found.late_by_load) == (code, 0)

    def test_are_not_all_that_are_above_a_ladder_that_ends_below_the_context(self):
        """Of 8,192 tokens, as engines have it: 7,635 come within 750 ms."""
        told = two(late=0.1, limit_s=0.75, queue_s=1.0, prompts_within={5e3: 9.0, INF: 10.0})
        found = with_cause(late(0.1, limit_s=0.75), evidence(*told))

        # Of the tenth above 5,000 tokens as many are above 7,635 as of usual prompts.
        most, longest = (
            1 - SIZING.request.workload.prompt.share_within(each)
            for each in (5e3, longest_in_time(SIZING, 0.75))
        )
        above = 0.1 * longest / most
        assert found.cause.code == "Queued"
        assert found.late_alone == pytest.approx(0.0)
        assert found.late_by_load == pytest.approx(0.1 - above)
        assert 0.002 < above < 0.003

    @pytest.mark.parametrize("limit_s", [1.0, 2.0])
    def test_are_none_where_the_longest_that_may_come_is_in_time(self, limit_s):
        told = two(late=0.3, limit_s=limit_s, queue_s=1.0, prompts_within={5e3: 1.0, INF: 10.0})
        found = with_cause(late(0.3, limit_s=limit_s), evidence(*told))

        assert (found.cause.code, found.late_alone) == ("Queued", 0)
        assert found.late_by_load == pytest.approx(0.3)

    @pytest.mark.parametrize("prompts", [{}, {INF: 10.0}, {1e3: 0.0, INF: 0.0}, {1e3: 9.0}])
    def test_are_none_of_engines_that_do_not_tell_them(self, prompts):
        found = self.found(0.3, prompts, queue_s=1.0)

        assert found.cause.code == "Queued"
        assert found.late_by_load == pytest.approx(0.3)

    def test_are_shares_of_what_the_engines_that_tell_them_serve(self):
        told = an_engine_of("a", late=0.1, limit_s=0.4, prompts_within={5e3: 27.0, INF: 30.0})
        more = an_engine_of("b", late=0.1, limit_s=0.4, prompts_within={5e3: 10.0, INF: 10.0})
        blind = an_engine_of("c", late=0.1, limit_s=0.4)

        found = with_cause(late(0.1, limit_s=0.4), evidence(told, more, blind))

        # 3 of 40 are over 5,000; of the 37 others two fifths are within 2,000.
        assert found.cause.message.startswith("7.5% to 63.0% of prompts ")


@pytest.mark.parametrize("limit_s", [0.05, 0.2, 0.4, 0.6])
def test_a_longer_prompt_than_the_longest_in_time_is_late_on_an_idle_replica(limit_s):
    replica, workload = SIZING.replica, SIZING.request.workload
    constants = replica.model.constants

    def alone_s(tokens):
        server_s = constants.per_request_s + constants.per_prompt_token_s * tokens
        return own_prefill_s(replica, workload, SIZING.idle, tokens) + server_s

    longest = longest_in_time(SIZING, limit_s)

    assert alone_s(longest) <= limit_s < alone_s(1.01 * longest)


def test_the_longest_prompt_in_time_is_within_what_a_request_may_have():
    assert longest_in_time(SIZING, 1e-6) == 1
    assert longest_in_time(SIZING, 1e6) == SIZING.request.context_tokens


class TestServerDelay:
    @pytest.mark.parametrize(("outside_s", "code"), [(1.1, "ServerDelay"), (0.9, "TargetMissed")])
    def test_is_more_than_half_of_the_limit_outside_of_the_engine(self, outside_s, code):
        found = with_cause(late(0.3), evidence(*two(late=0.3, outside_s=outside_s)))

        assert (found.cause.code, found.late_by_load) == (code, 0)

    def test_is_none_that_is_less_than_what_requests_wait(self):
        # Queue times are of those that ended, first tokens of others: their difference is small.
        assert cause(late(0.3), *two(late=0.3, outside_s=1.5, queue_s=1.4)) == "ServerDelay"
        assert cause(late(0.3), *two(late=0.3, outside_s=1.5, queue_s=1.6)) == "Queued"

    def test_says_how_long(self):
        found = with_cause(late(0.3), evidence(*two(late=0.3, outside_s=1.5)))

        assert found.cause.message.startswith("1.50 s of the time to the first token pass outside")
        assert "more replicas do not help" in found.cause.message

    def test_is_none_where_a_queue_grows(self):
        # Who ended has not waited; who started waited for as long as 30 requests take at 10/s.
        growing = two(late=0.3, outside_s=3.0, waiting=30)

        assert cause(late(0.3), *growing) == "Queued"
        assert cause(late(0.3), *two(late=0.3, outside_s=3.0, waiting=3)) == "ServerDelay"

    @pytest.mark.parametrize("missing", ["queue_s", "prefill_s", "outside_s"])
    def test_is_none_of_engines_that_do_not_tell_a_part_of_it(self, missing):
        told = {"outside_s": 1.5} | {missing: None}

        assert cause(late(0.3), *two(late=0.3, **told)) != "ServerDelay"

    @pytest.mark.parametrize("missing", ["queue_s", "outside_s"])
    def test_is_none_where_one_engine_of_several_does_not_tell_it(self, missing):
        blind = an_engine_of("b", late=0.3, **({"outside_s": 1.5} | {missing: None}))

        assert cause(late(0.3), an_engine_of("a", late=0.3, outside_s=1.5), blind) != "ServerDelay"

    @pytest.mark.parametrize(("ended", "is_delay"), [(0.5, False), (0.79, False), (0.81, True)])
    def test_is_none_of_a_burst_whose_requests_have_not_ended(self, ended, is_delay):
        # Their first tokens count already, their waits only once they have ended.
        found = cause(late(0.3), *two(late=0.3, outside_s=1.5, ended=ended))

        assert (found == "ServerDelay") is is_delay

    def test_leaves_less_for_the_wait(self):
        # 0.9 s outside and 0.35 s of its own leave 0.75 s of 2 s.
        assert cause(late(0.3), *two(late=0.3, queue_s=0.2)) == "TargetMissed"
        assert cause(late(0.3), *two(late=0.3, queue_s=0.2, outside_s=0.9)) == "Queued"


class TestSlowPod:
    SPEEDS = {"a": 0.3, "b": 0.0, "c": 0.02}  # noqa: RUF012

    def found(self, a, b=0.0, *, speeds=None, **changes):
        engines = (
            an_engine_of("a", late=a),
            an_engine_of("b", late=b),
            an_engine_of("c", late=b),
        )
        known = evidence(*engines, speeds=self.SPEEDS if speeds is None else speeds, **changes)
        return with_cause(late((a + 2 * b) / 3), known)

    def test_is_one_whose_steps_take_longer_and_whose_requests_are_late(self):
        found = self.found(0.4)

        assert (found.cause.code, found.late_by_load) == ("SlowPod", 0)
        assert found.cause.message.startswith("steps of a take 32% longer")

    def test_is_none_where_the_others_are_late_too(self):
        assert self.found(0.4, 0.3).cause.code != "SlowPod"

    def test_is_one_where_by_chance_a_few_of_the_others_are_late(self):
        # Of their 2,400 requests 120 may be late, and 164 by chance.
        assert self.found(0.4, 0.065).cause.code == "SlowPod"
        assert self.found(0.4, 0.075).cause.code != "SlowPod"

    def test_is_none_whose_requests_are_in_time(self):
        assert self.found(0.0, 0.3).cause.code != "SlowPod"

    @pytest.mark.parametrize(
        "speeds",
        [
            {},
            {"a": 0.3},
            {"a": 0.14, "b": 0.0, "c": 0.0},
            {"b": 0.0, "c": 0.0},
            {"b": -0.3, "c": -0.3},
            {"a": 0.3, "b": 0.2, "c": 0.25},
        ],
    )
    def test_is_none_that_is_not_known_to_be_slower_than_the_others(self, speeds):
        assert self.found(0.4, speeds=speeds).cause.code != "SlowPod"

    def test_is_none_that_serves_for_less_than_the_window(self):
        assert self.found(0.4, ready_for_s={"a": 100}).cause.code != "SlowPod"
        assert self.found(0.4, ready_for_s={"a": 121}).cause.code == "SlowPod"

    def test_is_told_by_later_tokens_too(self):
        engines = (an_engine_of("a", tpot_late=0.4), an_engine_of("b"), an_engine_of("c"))
        missed = late(0.13, name="TPOT", limit_s=0.05)

        assert cause(missed, *engines, speeds=self.SPEEDS) == "SlowPod"
        # The later tokens of one say nothing of the first tokens of all.
        assert cause(late(0.13), *engines, speeds=self.SPEEDS) != "SlowPod"

    def test_does_not_make_late_what_was_refused(self):
        engines = (an_engine_of("a"), an_engine_of("b"), an_engine_of("c"))
        refused = late(0.2, refused_fraction=0.2)

        assert cause(refused, *engines, speeds=self.SPEEDS) == "RequestsRefused"

    @pytest.mark.parametrize(
        ("at_each", "code"),
        [((1.0, 1.0, 1.0), "RequestsRefused"), ((3.0, 0.0, 0.0), "SlowPod")],
    )
    def test_is_blamed_for_what_it_refuses_alone(self, at_each, code):
        engines = [
            an_engine_of(pod, rejected_per_s=refused)
            for pod, refused in zip("abc", at_each, strict=True)
        ]
        missed = late(3 / 33, refused_fraction=3 / 33)

        assert cause(missed, *engines, speeds=self.SPEEDS) == code

    @pytest.mark.parametrize(
        ("grown_per_s", "before", "code"),
        [
            # 32 % more of its 10 requests/s would be served if it were as fast as the others.
            (1.0, "", "SlowPod"),
            (6.4, "", "SlowPod"),
            (6.6, "", "Queued"),
            # What is being served has the cause that it came by.
            (-1.0, "SlowPod", "SlowPod"),
            (-1.0, "Queued", "Queued"),
        ],
    )
    def test_makes_all_wait_where_a_router_spreads_what_it_does_not_serve(
        self, grown_per_s, before, code
    ):
        engines = [an_engine_of(pod, late=0.3, queue_s=1.0, grown_per_s=0.0) for pod in "bc"]
        slow = an_engine_of("a", late=0.3, queue_s=1.0, grown_per_s=grown_per_s)
        known = evidence(slow, *engines, speeds=self.SPEEDS, before=before)
        found = with_cause(late(0.3), known)

        assert found.cause.code == code
        assert found.late_by_load == pytest.approx(0.3)


class TestUnevenRouting:
    def found(self, *rates, **changes):
        """The first pod's requests are late."""
        engines = [
            an_engine_of(pod, rate=rate, late=0.0 if number else 0.4)
            for number, (pod, rate) in enumerate(zip("abc", rates, strict=False))
        ]
        share = 0.4 * rates[0] / sum(rates)
        return with_cause(late(share), evidence(*engines, **changes))

    def test_is_one_pod_that_has_more_and_whose_requests_are_late(self):
        found = self.found(20.0, 11.0, 9.0)

        assert (found.cause.code, found.late_by_load) == ("UnevenRouting", 0)
        assert found.cause.message.startswith("a gets 20 requests/s, the others 10: ")

    @pytest.mark.parametrize(
        "rates",
        [
            (12.0, 10.0, 10.0),
            (8.0, 10.0, 10.0),
            # 2.4 and 1.2 requests in two minutes: chance.
            (0.02, 0.01, 0.01),
        ],
    )
    def test_is_none_that_has_as_many_but_for_chance(self, rates):
        assert self.found(*rates).cause.code != "UnevenRouting"

    def test_is_none_of_a_single_pod(self):
        assert self.found(20.0).cause.code != "UnevenRouting"

    def test_is_none_where_the_pod_is_slow(self):
        speeds = {"a": 0.4, "b": 0.0, "c": 0.0}

        assert self.found(20.0, 10.0, 10.0, speeds=speeds).cause.code == "SlowPod"

    def test_is_of_pods_with_several_engines_as_a_whole(self):
        # Two ranks of one pod have as many together as another pod.
        ranks = [replace(an_engine_of("a", rate=5.0, late=0.4), engine=each) for each in "01"]

        assert cause(late(0.2), *ranks, an_engine_of("b", rate=10.0)) != "UnevenRouting"
        assert cause(late(0.2), *ranks, an_engine_of("b", rate=5.0)) == "UnevenRouting"


class TestColdPrefix:
    def found(self, *, since_s=300, new=0.1, old=0.6, at_new=0.4, at_old=0.0):
        engines = (
            an_engine_of("a", late=at_new, cached=new),
            an_engine_of("b", late=at_new, cached=new),
            an_engine_of("c", late=at_old, cached=old),
        )
        ready = {"a": since_s, "b": since_s}
        return with_cause(late(0.2), evidence(*engines, ready_for_s=ready))

    def test_is_what_new_pods_have_not_cached(self):
        found = self.found()

        assert (found.cause.code, found.late_by_load) == ("ColdPrefix", 0)
        assert found.cause.message.startswith(
            "10% of prompt tokens are cached at new replicas, 60% at the others"
        )

    @pytest.mark.parametrize(
        "changes",
        [
            {"since_s": 901},
            {"since_s": 100},
            {"new": 0.55},
            {"new": 0.6, "old": 0.1},
            {"at_old": 0.4},
            {"at_new": 0.0, "at_old": 0.4},
        ],
    )
    def test_is_none_where_pods_are_old_or_have_cached_as_much_or_all_are_late(self, changes):
        assert self.found(**changes).cause.code != "ColdPrefix"

    def test_is_not_known_where_no_pod_is_old(self):
        engines = two(late=0.4, cached=0.1)

        assert cause(late(0.4), *engines, ready_for_s={"a": 300, "b": 400}) != "ColdPrefix"

    def test_is_none_of_engines_that_tell_no_cached_tokens(self):
        new, old = an_engine_of("a", late=0.4), an_engine_of("b")
        blind = {
            scrapes: window._replace(computed_prompt_tokens_per_s=None)
            for scrapes, window in new.windows.items()
        }

        found = cause(late(0.2), replace(new, windows=blind), old, ready_for_s={"a": 300})

        assert found != "ColdPrefix"


class TestRefused:
    def test_is_what_is_in_no_histogram(self):
        found = with_cause(late(0.2, refused_fraction=0.2), evidence(*two()))

        assert (found.cause.code, found.late_by_load) == ("RequestsRefused", 0)
        assert found.cause.message == "20.0% were refused"

    def test_leaves_what_waits_to_load(self):
        found = with_cause(late(0.3, refused_fraction=0.2), evidence(*two(late=0.125, queue_s=1.0)))

        assert found.cause.code == "RequestsRefused"
        assert found.late_by_load == pytest.approx(0.1)


class TestWhatIsKnownAlready:
    def test_is_left_as_it_is(self):
        given = with_cause(late(0.3), evidence(*two(late=0.3, queue_s=1.0))).cause
        known = late(0.3, cause=given)

        assert with_cause(known, evidence(*two(late=0.3, outside_s=1.5))) is known

    def test_is_nothing_where_nothing_is_late(self):
        calm = late(0.0)

        assert with_cause(calm, evidence(*two(queue_s=5.0))) is calm


class TestAnotherCause:
    """A cause that was reported stays until another is larger by half."""

    @pytest.mark.parametrize(
        ("before", "waits", "code"),
        [
            ("", 0.12, "Queued"),
            ("RequestsRefused", 0.12, "RequestsRefused"),
            ("RequestsRefused", 0.16, "Queued"),
            ("", 0.08, "RequestsRefused"),
            ("Queued", 0.08, "Queued"),
            ("Queued", 0.06, "RequestsRefused"),
            ("TargetsMet", 0.12, "Queued"),
        ],
    )
    def test_has_to_be_larger_by_half(self, before, waits, code):
        missed = late(0.1 + waits, refused_fraction=0.1)
        engines = two(late=waits / 0.9, queue_s=1.0)

        found = with_cause(missed, evidence(*engines, before=before))

        assert found.cause.code == code
        # What load makes late is the same whatever is reported.
        assert found.late_by_load == pytest.approx(waits)

    @pytest.mark.parametrize(
        ("code", "changes"),
        [
            # Of 2 s half is 1 s, and of that two thirds are 0.67 s.
            ("ServerDelay", {"outside_s": 0.8}),
            ("SlowSteps", {"prefill_s": OWN_S + 0.24}),
            ("Queued", {"queue_s": STEP_S + 0.2}),
        ],
    )
    def test_stays_while_it_is_two_thirds_of_what_makes_it_one(self, code, changes):
        missed, engines = late(0.3), two(late=0.3, **changes)

        assert cause(missed, *engines, before=code) == code
        assert cause(missed, *engines, before="SLOMet") == "TargetMissed"
        calm = two(late=0.3)
        assert cause(missed, *calm, before=code) == "TargetMissed"


class TestUnknown:
    def test_lowers_nothing(self):
        found = with_cause(late(0.3), evidence(*two(late=0.3)))

        assert found.cause.code == "TargetMissed"
        assert found.cause.message == "the cause is not known"
        assert found.late_by_load == 0


def test_each_cause_is_explained_in_the_documentation():
    causes = {"Queued", "SlowSteps", "LongPrompts", "ServerDelay", "SlowPod", "UnevenRouting"}
    causes |= {"ColdPrefix", "RequestsRefused", "CachesLate", "TargetMissed"}

    assert causes <= REASONS
