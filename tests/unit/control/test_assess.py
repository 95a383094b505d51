"""One object in one tick: how far its figures are trusted, what it needs, what is remembered."""

import math
from dataclasses import replace

import pytest

from fleet_builders import (
    CRASH_LOOPING,
    NOW_S,
    SPEC,
    UNSCHEDULABLE,
    a_deployment_body,
    a_fleet,
    a_manifest,
    a_memory,
    a_model,
    a_pod_body,
    a_sizing,
    a_state,
    assessed,
    at,
    failures,
    first_replicas,
    remembering,
    uids_of,
    with_lengths,
)
from measured_builders import an_engine, without_arrivals
from tonnage.control.assess import size_object
from tonnage.control.decide.outlook import retry_at_s
from tonnage.control.input.memory import UnschedulableBackoff
from tonnage.control.input.sizing_cache import SizingCache
from tonnage.control.input.writers import Cause, WriteKind
from tonnage.control.measure.traffic import measure_traffic
from tonnage.estimate.posterior import ObjectPosterior
from tonnage.estimate.samples import EngineSamples
from tonnage.policy.need import CurrentTraffic
from tonnage.policy.situation import Metrics
from tonnage.settings import Settings
from tonnage.sizing.errors import SearchAbandonedError

EACH = a_sizing().goodput_requests_per_s
DOWN = ("PrometheusUnreachable", "Prometheus: ConnectTimeout")
HELD_TWO = {"needs": 2}
QUICK = {"posterior": ObjectPosterior(cold_start_s=60, num_starts=3)}
"""Pods that start within a minute: the settings alone say how long a lower need must hold."""


def codes(found):
    return [reason.code for reason in found.decision.reasons]


def trusted(state, *, memory=None, **fleet):
    return measure_traffic(state, a_fleet(state, **fleet), memory or a_memory(state))


class TestTrust:
    def test_is_complete_when_every_ready_pod_reports(self):
        traffics = trusted(a_state(load=1))

        assert (traffics.metrics, traffics.why.code) == (Metrics.COMPLETE, "Scraped")
        assert traffics.demand.requests_per_s == pytest.approx(EACH)
        assert "2 pods" in traffics.why.message

    def test_is_lost_when_prometheus_does_not_answer(self):
        traffics = trusted(a_state(engines=()), metrics_problem=DOWN)

        assert (traffics.metrics, traffics.why.code, traffics.why.message) == (
            Metrics.MISSING,
            *DOWN,
        )

    def test_is_lost_without_any_series_and_hints_why(self):
        traffics = trusted(a_state(engines=()))

        assert (traffics.metrics, traffics.why.code) == (Metrics.MISSING, "MetricsMissing")
        assert "PodMonitor" in traffics.why.message

    def test_is_lost_when_one_pod_is_silent_and_names_it(self):
        traffics = trusted(a_state(engines=(an_engine("a"),)))

        assert (traffics.metrics, traffics.why.code) == (Metrics.MISSING, "MetricsIncomplete")
        assert traffics.why.message == "no fresh series of b"

    def test_is_lost_when_one_pod_is_silent_and_names_its_node(self):
        state = a_state(engines=(an_engine("a"),))
        pods = tuple(replace(pod, node_name="n2") for pod in state.pods)

        assert trusted(replace(state, pods=pods)).why.message == "no fresh series of b on n2"

    def test_is_lost_when_one_pod_is_stale_and_names_it(self):
        # Prometheus answers five minutes long with the last value.
        traffics = trusted(a_state(engines=(an_engine("a"), an_engine("b", age_s=200))))

        assert (traffics.metrics, traffics.why.code) == (Metrics.MISSING, "MetricsIncomplete")
        assert traffics.why.message == "no fresh series of b"

    def test_is_lost_when_all_are_stale(self):
        stale = (an_engine("a", age_s=200), an_engine("b", age_s=None))

        assert trusted(a_state(engines=stale)).why.code == "MetricsMissing"

    def test_a_pod_that_just_became_ready_need_not_report(self):
        pods = [a_pod_body("a"), a_pod_body("b", ready_for_s=29)]

        assert trusted(a_state(pods=pods, engines=(an_engine("a"),))).metrics is Metrics.COMPLETE

    def test_a_pod_that_has_been_ready_for_two_scrapes_must(self):
        pods = [a_pod_body("a"), a_pod_body("b", ready_for_s=31)]

        assert trusted(a_state(pods=pods, engines=(an_engine("a"),))).metrics is Metrics.MISSING

    def test_a_pod_that_is_being_deleted_need_not_report(self):
        leaving = a_pod_body("b")
        leaving["metadata"]["deletionTimestamp"] = "2026-01-02T00:00:00Z"

        state = a_state(pods=[a_pod_body("a"), leaving], engines=(an_engine("a"),))

        assert trusted(state).metrics is Metrics.COMPLETE

    @pytest.mark.parametrize(
        ("traffic", "metrics"),
        [(None, Metrics.NEVER), (CurrentTraffic(requests_per_s=3), Metrics.MISSING)],
    )
    def test_without_a_ready_replica_depends_on_whether_there_ever_was_one(self, traffic, metrics):
        state = a_state(pods=[a_pod_body("a", ready_for_s=None)], engines=())

        assert trusted(state, memory=a_memory(state, measured=traffic)).metrics is metrics

    def test_lengths_stay_as_last_known_when_nothing_finishes(self):
        state = with_lengths(a_state())
        known = measure_traffic(a_state(), a_fleet(), a_memory(state)).lengths

        assert known.prompt_tokens == 4000
        assert trusted(state, memory=a_memory(state, lengths=known)).lengths == known

    def test_lengths_are_not_believed_before_a_rate_is_told(self):
        # A scrape came between the queries: the windows of completions had none yet.
        state = with_lengths(a_state(), 16_000, 4000)
        silent = replace(state, engines=tuple(without_arrivals(each) for each in state.engines))

        assert trusted(state).lengths.prompt_tokens == 16_000
        assert trusted(silent).demand is None
        assert trusted(silent).lengths is None
        known = a_memory(silent, measured=CurrentTraffic(requests_per_s=2))
        assert trusted(silent, memory=known).lengths.prompt_tokens == 16_000
        assert assessed(silent).decision.replicas == assessed(a_state(engines=())).decision.replicas


class TestNeed:
    def test_follows_what_is_measured(self):
        found = assessed(load=3.5, replicas=2)

        assert found.decision.replicas == 5  # one for what will wait until they are Ready
        assert "need 4" in found.decision.message
        assert "(measured)" in found.decision.message

    def test_drains_a_queue(self):
        # What one replica serves in 1500 s waits: two serve 510 s of it until another could be
        # Ready (240 s and a tick), which leaves 990 to drain in 217 s, and 0.2 requests/s come.
        most = a_sizing().most_requests_per_s
        waiting = tuple(an_engine(pod, waiting=most * 750, completed_per_s=0.1) for pod in "ab")

        found = assessed(engines=waiting)

        assert found.decision.replicas == 5
        assert codes(found) == ["Backlog", "Demand"]

    def test_follows_what_was_last_measured_when_nothing_is(self):
        state = a_state(engines=())
        memory = a_memory(state, measured=CurrentTraffic(requests_per_s=3.5 * EACH))

        found = assessed(state, memory=memory)

        assert found.decision.replicas == 4
        assert "(last measured)" in found.decision.reasons[0].message

    def test_follows_the_spec_when_nothing_was_ever_measured(self):
        state = a_state(engines=())

        found = assessed(state)

        assert found.decision.replicas == a_sizing().replicas
        assert "(expected by spec.demand)" in found.decision.reasons[0].message

    def test_begins_with_room_for_what_nobody_has_measured(self):
        found = assessed(replicas=None)

        assert found.decision.replicas == first_replicas() > a_sizing().replicas
        assert codes(found) == ["Headroom", "Demand"]
        assert "15% more" in (said := found.decision.reasons[0].message)
        assert said.endswith("need 5, 1 more (15.82 USD per hour)")

    @pytest.mark.parametrize(
        ("spec", "settings"),
        [
            ({"scaling": {"minReplicas": 1, "maxReplicas": 4}}, {}),
            ({"scaling": {"mode": "Approve", "maxReplicas": 8}}, {}),
            ({"scaling": {"mode": "Recommend", "maxReplicas": 8}}, {}),
            ({}, {"max_gpus": 100}),
        ],
    )
    def test_begins_with_its_plan_where_more_would_break_a_bound(self, spec, settings):
        state = a_state(a_manifest(**spec), replicas=None)
        found = assessed(state, fleet=a_fleet(state, settings=settings))

        assert found.decision.replicas == a_sizing().replicas
        assert codes(found) == ["Demand"]

    def test_of_a_part_of_the_pods_may_raise(self):
        found = assessed(engines=(an_engine("a", completed_per_s=3.5 * EACH),))

        assert found.decision.replicas == 5


class TestScalingDown:
    def test_takes_one_away_when_fewer_were_needed_for_a_window(self):
        found = assessed(a_state(replicas=4, load=1))

        assert found.decision.replicas == 3
        assert codes(found) == ["ScaleDownRateLimited", "Demand"]

    @pytest.mark.parametrize(
        ("change", "code"),
        [
            ({"metrics_problem": DOWN}, "MetricsMissing"),
            ({}, None),
        ],
    )
    def test_never_happens_without_metrics(self, change, code):
        state = a_state(replicas=4, load=1)

        found = assessed(state, fleet=a_fleet(state, **change))

        assert found.decision.replicas == (3 if code is None else 4)
        assert code is None or code in codes(found)

    def test_waits_for_a_whole_window_after_the_start(self):
        state = a_state(replicas=4, load=1)
        memory = a_memory(state, since_s=NOW_S - 299)

        assert codes(assessed(state, memory=memory))[0] == "WarmingUp"

    def test_waits_for_the_traffic_that_the_spec_expects(self):
        demand = SPEC["demand"] | {"requestsPerSecond": f"{3.5 * EACH:.2f}"}
        state = a_state(a_manifest(demand=demand), replicas=4, load=1)

        def after(served_s):
            memory = a_memory(state, served_since_s=NOW_S - served_s, **QUICK)
            return assessed(state, memory=memory)

        assert "WaitingForTraffic" in codes(after(15))
        assert after(15).decision.replicas == 4
        assert after(3600).decision.replicas == 3

    def test_waits_as_long_as_more_were_needed(self):
        state = a_state(replicas=4, load=1)
        memory = a_memory(state, needs=4)

        assert codes(assessed(state, memory=memory))[0] == "Stabilizing"

    def test_forgets_what_was_needed_before_the_window(self):
        state = a_state(replicas=4, load=1)
        memory = a_memory(state, recent_needs=((NOW_S - 301, 9), (NOW_S - 30, 2)), **QUICK)

        found = assessed(state, memory=memory)

        assert found.decision.replicas == 3
        [need] = found.memory.decided.recent_needs
        assert (need.at_s, need.replicas) == (NOW_S, 2)

    def test_waits_three_starts_where_these_take_long(self):
        # 3 * (200 s and a tick of 15 s) = 645 s.
        slow = {"posterior": ObjectPosterior(cold_start_s=200, num_starts=3)}

        def after(seconds):
            state = a_state(replicas=4, load=1)
            recent = ((NOW_S - seconds, 9), (NOW_S - 30, 2))
            return assessed(state, memory=a_memory(state, recent_needs=recent, **slow)).decision

        assert after(644).limited_by == "Stabilizing"
        assert after(646).replicas == 3

    def test_begins_its_window_anew_after_a_gap_without_ticks(self):
        state = a_state(replicas=4, load=1)
        memory = a_memory(state, recent_needs=((NOW_S - 290, 2), (NOW_S - 200, 2)))

        found = assessed(state, memory=memory)

        assert found.decision.replicas == 4
        assert found.decision.limited_by == "WarmingUp"

    @pytest.mark.parametrize(
        ("pace_s", "limited_by"), [(0, "WarmingUp"), (70, "ScaleDownRateLimited")]
    )
    def test_goes_on_with_its_window_where_all_ticks_are_slow(self, pace_s, limited_by):
        # 70 s between two ticks: more than four times the 15 s that are set.
        state = a_state(replicas=4, load=1)
        memory = a_memory(state, recent_needs=((NOW_S - 140, 2), (NOW_S - 70, 2)), **QUICK)

        found = assessed(state, memory=memory, fleet=a_fleet(state, pace_s=pace_s))

        assert found.decision.limited_by == limited_by

    def test_goes_on_with_its_window_after_it_waited_for_a_search(self):
        def abandon():
            raise SearchAbandonedError("5 s of each tick are for searches")

        state = a_state(replicas=4, load=1)
        recent = ((NOW_S - 290, 2), (NOW_S - 150, 2), (NOW_S - 15, 2))
        memory = a_memory(state, recent_needs=recent, **QUICK)
        for tick in range(20):
            fleet = a_fleet(state, now_s=NOW_S + 15 * tick)
            found = size_object(state, fleet, memory, SizingCache(on_search=abandon))
            memory = found.memory
            assert found.pending

        later = assessed(state, memory=memory, fleet=a_fleet(state, now_s=NOW_S + 15 * 20))

        needs = [each.at_s - NOW_S for each in memory.decided.recent_needs]
        assert needs == [-290, -150, 15 * 19]
        assert later.decision.replicas == 3

    def test_waits_for_a_whole_window_after_metrics_came_back(self):
        # What was not measured was not seen to be unnecessary.
        state = a_state(replicas=4, load=1)
        known = a_memory(state, **QUICK)
        dark = assessed(state, memory=known, fleet=a_fleet(state, metrics_problem=DOWN)).memory

        def after(seconds):
            later = [NOW_S + each for each in range(15, seconds + 1, 15)]
            memory = dark
            for now_s in later:
                found = assessed(state, memory=memory, fleet=a_fleet(state, now_s=now_s))
                memory = found.memory
            return found.decision

        assert after(285).limited_by == "Stabilizing"
        assert after(300).replicas == 3

    def test_goes_on_while_a_pod_waits_for_a_gpu(self):
        pods = [*(a_pod_body(name) for name in "abc"), a_pod_body("d", **UNSCHEDULABLE)]
        state = a_state(replicas=4, pods=pods, engines=tuple(an_engine(n) for n in "abc"))
        idle = tuple(an_engine(each.pod, completed_per_s=0.1) for each in state.engines)

        assert assessed(replace(state, engines=idle)).decision.replicas == 3


OTHER = {"contextLength": 16384}


class TestScalingDownBesideAnotherTemplate:
    def of(self, mode="Auto", **failed):
        """Return what is decided for six replicas of another template, of which one is needed."""
        scaling = {"mode": mode, "maxReplicas": 8}
        live = a_deployment_body(a_model(), replicas=6)
        state = a_state(a_manifest(scaling=scaling, **OTHER), live=live, replicas=6, load=1)
        known = {"failures": failures(WriteKind.TEMPLATE, **failed)} if failed else {}
        return assessed(state, memory=a_memory(state, needs=1, **known)).decision

    def test_waits_for_a_template_that_is_written(self):
        assert (self.of().replicas, self.of().limited_by) == (6, "RolloutInProgress")

    def test_does_not_wait_for_one_that_is_not_ours_to_write(self):
        assert self.of("Recommend").replicas < 6

    @pytest.mark.parametrize("cause", [Cause.REFUSED, Cause.FAILED, Cause.BUG])
    def test_does_not_wait_for_one_that_fails_again_and_again(self, cause):
        assert self.of(cause=cause, times=50).replicas < 6


class TestGrowth:
    BUSY = an_engine("a", completed_per_s=5 * EACH)

    def test_goes_on_while_a_pod_may_yet_find_a_node(self):
        pods = [a_pod_body("a"), a_pod_body("b", ready_for_s=None, **UNSCHEDULABLE)]

        found = assessed(pods=pods, engines=(self.BUSY,))

        assert found.decision.replicas >= 5

    def test_gives_back_what_no_node_takes_and_asks_again_later_each_time(self):
        pods = [a_pod_body("a"), a_pod_body("b", **UNSCHEDULABLE)]
        alone = a_state(replicas=1, pods=pods[:1], engines=(self.BUSY,))

        first = assessed(pods=pods, engines=(self.BUSY,))
        after = assessed(alone, memory=first.memory)
        back = after.memory.decided.given_back
        due = replace(
            after.memory,
            decided=replace(after.memory.decided, given_back=replace(back, at_s=NOW_S - 900)),
        )
        again = assessed(alone, memory=due)
        stuck = assessed(pods=pods, engines=(self.BUSY,), memory=again.memory)
        twice = assessed(alone, memory=stuck.memory)

        assert (first.decision.replicas, first.decision.limited_by) == (1, "InsufficientGPU")
        assert (back.at_s, back.times) == (NOW_S, 1)
        assert (after.decision.replicas, after.decision.limited_by) == (1, "InsufficientGPU")
        assert "next try in 15.0 min" in after.decision.reasons[0].message
        assert again.decision.replicas >= 5
        assert (stuck.decision.replicas, stuck.memory.decided.given_back.times) == (1, 1)
        back = twice.memory.decided.given_back
        assert retry_at_s(back, Settings(prometheus_url="http://p")) == NOW_S + 1800

    def test_counts_what_it_gives_back_once_however_many_ticks_that_takes(self):
        pods = [a_pod_body("a"), a_pod_body("b", **UNSCHEDULABLE)]
        stuck = a_state(replicas=2, pods=pods, engines=(self.BUSY,))
        fewer = a_state(replicas=1, pods=pods, engines=(self.BUSY,))  # the pod still goes

        # The write takes five ticks, and its pod five more.
        looks = self.looked_at([stuck] * 5 + [fewer] * 5)

        assert [back.times for back in looks] == [0] * 5 + [1] * 5
        assert {back.at_s for back in looks[5:]} == {NOW_S + 5 * 15}

    def test_counts_pods_that_are_given_up_one_after_the_other_once(self):
        pods = [a_pod_body("a"), a_pod_body("b", **UNSCHEDULABLE)]
        states = [a_state(replicas=n, pods=pods, engines=(self.BUSY,)) for n in (4, 3, 3, 2)]

        assert [back.times for back in self.looked_at(states)] == [0, 1, 1, 1]

    def test_is_no_more_put_off_once_all_that_is_wanted_has_nodes(self):
        # Hours later one replica is enough, and none waits.
        pods = [a_pod_body("a")]
        few = an_engine("a", completed_per_s=0.1)
        back = UnschedulableBackoff(at_s=NOW_S - 3600, times=3, placed=1)
        known = a_memory(a_state(pods=pods), given_back=back)
        asked = assessed(replicas=1, pods=pods, engines=(self.BUSY,), memory=known)
        calm = assessed(replicas=1, pods=pods, engines=(few,), memory=known)
        early = remembering(known, given_back=replace(back, at_s=NOW_S - 3599))

        assert asked.decision.replicas > 1
        assert asked.memory.decided.given_back == back  # more are wanted, and wait
        assert calm.memory.decided.given_back is None
        assert assessed(replicas=1, pods=pods, memory=early).memory.decided.given_back is not None

    def looked_at(self, states):
        memory, looks = a_memory(states[0]), []
        for number, state in enumerate(states):
            fleet = a_fleet(state, now_s=NOW_S + 15 * number)
            memory = assessed(state, memory=memory, fleet=fleet).memory
            looks.append(memory.decided.given_back)
        return looks

    @pytest.mark.parametrize(
        ("said", "reason"),
        [
            ('0/2 nodes: persistentvolumeclaim "cache" not found.', "VolumeUnavailable"),
            ("0/2 nodes: 2 Insufficient cpu.", "InsufficientResources"),
            ("0/2 nodes: untolerated taint {volume-maintenance: true}.", "NoNodeFits"),
        ],
    )
    def test_gives_back_what_no_node_takes_for_the_reason_that_is_told(self, said, reason):
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        stuck = {"conditions": [condition | {"message": said}]}
        pods = [a_pod_body("a"), a_pod_body("b", **stuck)]
        alone = a_state(replicas=1, pods=pods[:1], engines=(self.BUSY,))

        first = assessed(pods=pods, engines=(self.BUSY,))
        after = assessed(alone, memory=first.memory)

        assert (first.decision.replicas, first.decision.limited_by) == (1, reason)
        assert (after.decision.replicas, after.decision.limited_by) == (1, reason)

    @pytest.mark.parametrize(
        ("said", "reason"),
        [
            ('violates PodSecurity "restricted:latest"', "PodSecurityRefused"),
            ("no PriorityClass with name gold was found", "PriorityClassMissing"),
            ("exceeded quota: gpus", "QuotaExceeded"),
        ],
    )
    def test_waits_where_pods_are_refused_for_the_reason_that_is_told(self, said, reason):
        live = a_deployment_body(replicas=1)
        failed = {"type": "ReplicaFailure", "status": "True", "message": said}
        live["status"]["conditions"] = [failed]

        found = assessed(live=live, pods=[a_pod_body("a")], engines=(self.BUSY,))

        assert (found.decision.replicas, found.decision.limited_by) == (1, reason)

    @pytest.mark.parametrize(
        ("num_ready", "num_failing", "grows"),
        [(0, 1, False), (1, 1, True), (1, 2, False), (8, 2, True), (8, 3, False)],
    )
    def test_grows_beside_few_pods_that_do_not_start_and_not_beside_many(
        self, num_ready, num_failing, grows
    ):
        nodes = [{} for _ in range(num_failing)]
        found, current = self.beside_pods_that_fail(num_ready, nodes)

        assert (found.decision.replicas > current) is grows
        assert (found.decision.limited_by == "CrashLoopBackOff") is not grows

    @pytest.mark.parametrize(
        ("num_ready", "nodes", "grows"),
        [
            (1, "xx", True),
            (2, "xxxx", True),
            (1, "xy", False),
            (8, "xxyyz", False),
            (0, "x", False),
        ],
    )
    def test_grows_beside_one_node_on_which_no_pod_starts_whatever_their_number(
        self, num_ready, nodes, grows
    ):
        # The node with free GPUs is the one where pods fail, so that each further one comes there.
        specs = [{"spec": {"nodeName": node}} for node in nodes]
        found, current = self.beside_pods_that_fail(num_ready, specs)

        assert (found.decision.replicas > current) is grows
        assert (found.decision.limited_by == "CrashLoopBackOff") is not grows

    def beside_pods_that_fail(self, num_ready, specs):
        """Return what is found of pods that are Ready and such that are not, and their number."""
        names = [f"a{number}" for number in range(num_ready + len(specs))]
        pods = [
            *(a_pod_body(name) for name in names[:num_ready]),
            *(
                a_pod_body(name, **CRASH_LOOPING) | spec
                for name, spec in zip(names[num_ready:], specs, strict=True)
            ),
        ]
        current = len(pods)
        need = 2 * current
        demand = SPEC["demand"] | {"requestsPerSecond": f"{EACH * need:.2f}"}
        manifest = a_manifest(demand=demand, scaling={"maxReplicas": 40})
        state = a_state(
            manifest,
            live=a_deployment_body(replicas=current, ready=num_ready),
            pods=pods,
            engines=tuple(
                an_engine(name, completed_per_s=EACH * need / num_ready)
                for name in names[:num_ready]
            ),
        )

        loading = uids_of(names[num_ready:])
        return assessed(state, memory=a_memory(state, loading=loading)), current

    def test_pods_that_fail_after_they_were_ready_hold_back_no_growth(self):
        pods = [a_pod_body("a"), *(a_pod_body(name, **CRASH_LOOPING) for name in "bcd")]
        known = a_memory(
            a_state(pods=pods),
            present=uids_of("abcd"),
            loading=frozenset(),
            ready=frozenset("abcd"),
        )

        found = assessed(replicas=4, pods=pods, engines=(self.BUSY,), memory=known)

        assert found.decision.limited_by != "CrashLoopBackOff"

    def test_counts_as_found_again_what_a_node_takes(self):
        pods = [a_pod_body("a"), a_pod_body("b")]
        known = a_memory(
            a_state(pods=pods), given_back=UnschedulableBackoff(at_s=NOW_S, times=3, placed=1)
        )

        found = assessed(pods=pods, engines=(self.BUSY,), memory=known)

        assert found.memory.decided.given_back is None

    def test_counts_replicas_that_are_still_starting(self):
        # Three of four load their weights: the need is four, and it does not become eight.
        starting = [a_pod_body(name, ready_for_s=None) for name in "bcd"]
        state = a_state(
            replicas=4,
            pods=[a_pod_body("a"), *starting],
            engines=(an_engine("a", completed_per_s=3.5 * EACH),),
        )

        assert assessed(state).decision.replicas == 4

    def test_stays_within_the_budget(self):
        found = assessed(a_state(replicas=2, load=5), free_gpus=2)

        assert found.decision.replicas == 3
        assert found.decision.limited_by == "GPUBudget"

    def test_does_not_grow_while_the_api_server_refuses_pods(self):
        quota = {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota: gpus"}
        refused = a_deployment_body()
        refused["status"]["conditions"] = [quota]

        found = assessed(a_state(live=refused, load=5))

        assert (found.decision.replicas, found.decision.limited_by) == (2, "QuotaExceeded")
        assert found.decision.reasons[0].message.endswith("exceeded quota: gpus")


class TestKnownEvents:
    """It is midnight in UTC, and a replica takes four minutes and a tick to start."""

    def manifest(self, cron, *, maximum=8, **event):
        schedule = {"cron": cron, "duration": "1h", **event}
        return a_manifest(scaling={"maxReplicas": maximum, "schedules": [schedule]})

    def among_two(self, cron, *, free_gpus=None, **event):
        """Two replicas, which the demand needs."""
        return assessed(a_state(self.manifest(cron, **event), load=2), free_gpus=free_gpus)

    def among_four(self, cron, **event):
        """Four replicas, of which the demand needs one."""
        return assessed(a_state(self.manifest(cron, **event), replicas=4))

    @pytest.mark.parametrize(
        ("cron", "replicas", "last"),
        [
            ("4 0 * * *", 5, "Schedule"),
            ("5 0 * * *", 2, "Demand"),
            ("0 0 * * *", 5, "Schedule"),
            ("1 23 * * *", 5, "Schedule"),
            ("0 23 * * *", 2, "Demand"),
        ],
    )
    def test_have_their_replicas_ready_when_they_begin_and_until_they_end(
        self, cron, replicas, last
    ):
        found = self.among_two(cron, minReplicas=5)

        assert (found.decision.replicas, codes(found)[0]) == (replicas, last)

    def test_are_known_a_learned_start_ahead(self):
        # 300 s and a tick: five minutes ahead is near enough, and six are not.
        def wanted(cron):
            state = a_state(self.manifest(cron, minReplicas=5), load=2)
            slow = a_memory(state, posterior=ObjectPosterior(cold_start_s=300, num_starts=9))
            return assessed(state, memory=slow).decision.replicas

        assert [wanted(cron) for cron in ("5 0 * * *", "6 0 * * *")] == [5, 2]

    def test_may_name_a_rate(self):
        found = self.among_two("0 0 * * *", requestsPerSecond=f"{3.5 * EACH:.4f}")

        assert found.decision.replicas == 4
        assert found.decision.reasons[0].message.endswith("per replica need 4")

    def test_of_a_rate_are_planned_for_and_no_burst(self):
        rate = round(3.5 * EACH, 4)

        found = self.among_two("0 0 * * *", requestsPerSecond=str(rate))

        in_replicas = pytest.approx(rate / found.sizing.most_requests_per_s)
        assert [due.base for due in found.memory.demand.history.due] == [in_replicas]

    def test_need_no_metrics(self):
        # The demand that the spec expects needs five.
        state = a_state(self.manifest("0 0 * * *", minReplicas=6), engines=())

        found = assessed(state, fleet=a_fleet(state, metrics_problem=DOWN))

        assert (found.decision.replicas, codes(found)[0]) == (6, "Schedule")

    def test_need_no_demand(self):
        manifest = self.manifest("0 0 * * *", minReplicas=5)
        del manifest["spec"]["demand"]

        found = assessed(a_state(manifest, replicas=None, engines=()))

        assert found.decision.replicas == 5
        assert codes(found)[:2] == ["Schedule", "NoDemand"]

    def test_go_no_further_than_the_users_maximum(self):
        found = self.among_two("0 0 * * *", requestsPerSecond=f"{20 * EACH:.4f}")

        assert (found.decision.replicas, found.decision.limited_by) == (8, "MaxReplicas")

    def test_go_no_further_than_the_budget(self):
        # Two GPUs are left, of which one replica takes both.
        found = self.among_two("0 0 * * *", minReplicas=5, free_gpus=2)

        assert (found.decision.replicas, found.decision.limited_by) == (3, "GPUBudget")

    def test_go_no_faster_than_a_step(self):
        found = self.among_two("0 0 * * *", minReplicas=20, maximum=30)

        assert (found.decision.replicas, found.decision.limited_by) == (10, "StepCap")

    @pytest.mark.parametrize("cron", ["0 0 * * *", "4 0 * * *"])
    def test_hold_no_more_than_their_replicas(self, cron):
        assert self.among_four(cron, minReplicas=4).decision.replicas == 4
        assert self.among_four(cron, minReplicas=2).decision.replicas == 3

    def test_that_are_over_let_the_fleet_walk_down(self):
        found = self.among_four("0 23 * * *", minReplicas=4)

        assert found.decision.replicas == 3
        assert codes(found)[0] == "ScaleDownRateLimited"

    def test_count_as_needed_for_a_window_after_their_end(self):
        during = self.among_four("1 23 * * *", minReplicas=4)

        last = during.memory.decided.recent_needs[-1]
        assert (last.at_s, last.replicas) == (NOW_S, 4)


class TestLosses:
    def lost(self, *, before, after, replicas):
        pods = [a_pod_body(name) for name in after]
        state = a_state(replicas=replicas, pods=pods, engines=())
        memory = a_memory(state, ready=frozenset(before))
        return assessed(state, memory=memory).memory.pods.lost_at_s

    def test_of_a_ready_pod_are_noted(self):
        assert self.lost(before="ab", after="a", replicas=2) == NOW_S

    def test_by_scaling_down_are_none(self):
        assert self.lost(before="abc", after="ab", replicas=2) is None

    def test_are_noted_while_the_fleet_grows(self):
        # One dies in the tick in which two more were asked for.
        assert self.lost(before="ab", after="a", replicas=4) == NOW_S

    def test_are_noted_while_the_fleet_shrinks(self):
        assert self.lost(before="abcd", after="ab", replicas=3) == NOW_S

    def test_by_an_update_that_has_replaced_them_are_none(self):
        assert self.lost(before="ab", after="bc", replicas=2) is None

    def test_name_the_pod_and_its_node(self):
        state = a_state(replicas=2, pods=[a_pod_body("a"), a_pod_body("b", ready_for_s=None)])
        pods = tuple(replace(pod, node_name=f"node-of-{pod.name}") for pod in state.pods)
        memory = a_memory(state, ready=frozenset("ab"))

        found = assessed(replace(state, pods=pods), memory=memory)

        assert found.memory.pods.lost == "b on node-of-b"
        message = next(
            each.message for each in found.decision.reasons if each.code == "ReplicaLost"
        )
        assert "(b on node-of-b)" in message

    def test_cut_off_what_was_in_flight_which_is_sent_again_and_came_once(self):
        # 4 requests/s for two; b is lost with 220 in flight, and a gets these and 90 held up.
        pods = [a_pod_body("a"), a_pod_body("b", ready_for_s=None)]
        survivor = an_engine("a", completed_per_s=2, in_flight_per_s=400 / 45)
        state = a_state(replicas=2, pods=pods, engines=(survivor,))
        last = EngineSamples(
            pod="b", engine="0", scrape_interval_s=15, age_s=60, running=200, waiting=20
        )
        state = replace(state, engines=(survivor, last))
        memory = a_memory(state, ready=frozenset("ab"))

        def rate(memory):
            return assessed(state, memory=memory).traffics.demand.requests_per_s

        assert rate(a_memory(state)) == pytest.approx(10.9, abs=0.05)
        assert rate(memory) == pytest.approx(6.0)

    def test_are_forgotten_after_a_window(self):
        state = a_state(replicas=4, load=1)
        recent = a_memory(state, lost_at_s=NOW_S - 299, **QUICK)
        past = a_memory(state, lost_at_s=NOW_S - 301, **QUICK)

        assert codes(assessed(state, memory=recent))[0] == "ReplicaLost"
        assert codes(assessed(state, memory=past))[0] == "ScaleDownRateLimited"


class TestMemory:
    def test_keeps_the_last_complete_measurement(self):
        state = a_state(load=2)
        complete = assessed(state).memory
        silent = replace(state, engines=state.engines[:1])

        kept = assessed(silent, memory=complete).memory

        assert complete.traffic.measured.requests_per_s == pytest.approx(2 * EACH)
        assert kept.traffic.measured == complete.traffic.measured

    def test_takes_a_part_when_there_is_nothing_better(self):
        found = assessed(engines=(an_engine("a", completed_per_s=1.5),))

        assert found.memory.traffic.measured.requests_per_s == 1.5

    def test_learns_how_long_a_replica_takes_to_start(self):
        state = a_state(pods=[a_pod_body("a"), a_pod_body("b")])
        fresh = a_memory(state, ready=frozenset(), loading=uids_of("a"))
        fresh = remembering(fresh, present=uids_of("a"))  # the other came since

        first = assessed(state, memory=fresh).memory
        again = assessed(state, memory=first).memory

        # One vote of 600 s beside the 240 s that are expected, and a third of the way once more.
        assert first.posterior.cold_start_s == pytest.approx(480)
        assert again.posterior == first.posterior
        assert again.posterior.num_starts == 2

    def test_learns_nothing_from_a_pod_that_was_ready_before(self):
        # At first sight, and of one that lost a probe: it is Ready since then, not since its start.
        state = a_state(pods=[a_pod_body("a")])
        first = remembering(a_memory(state), replicas=None, present=frozenset())
        lost = a_memory(state, ready=frozenset())

        for memory in (remembering(first, ready=frozenset()), lost):
            assert assessed(state, memory=memory).memory.posterior.num_starts == 0

    def test_learns_from_a_pod_that_has_the_name_of_one_before(self):
        # As a leader that is made anew.
        state = a_state(pods=[a_pod_body("a")])
        known = a_memory(state, present=frozenset({"uid-of-the-one-before"}))

        assert assessed(state, memory=known).memory.posterior.num_starts == 1

    def test_learns_nothing_from_a_pod_whose_container_began_again(self):
        again = [{"name": "vllm", "restartCount": 1, "state": {"running": {}}}]
        state = a_state(pods=[a_pod_body("a", containerStatuses=again)])
        loading = a_memory(state, ready=frozenset(), loading=uids_of("a"))

        assert assessed(state, memory=loading).memory.posterior.num_starts == 0

    def test_learns_nothing_where_it_begins_beside_a_pod_that_was_ready_before(self):
        # Five days old, not Ready for ten minutes, and Ready again in the next tick.
        days_s, ready = 5 * 86_400, a_pod_body("a", ready_for_s=15)
        scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": at(days_s)}
        unready = {"type": "Ready", "status": "False", "lastTransitionTime": at(600)}
        ready["metadata"]["creationTimestamp"] = at(days_s)
        dead = ready | {"status": {"conditions": [unready, scheduled]}}
        ready["status"]["conditions"][1] = scheduled
        before = a_state(pods=[dead])
        first = remembering(a_memory(before), replicas=None, present=frozenset())

        seen = assessed(before, memory=first).memory
        after = assessed(a_state(pods=[ready]), memory=seen).memory

        assert after.posterior == ObjectPosterior()

    def test_keeps_the_wait_for_a_node_apart_from_the_start(self):
        # Created three hours before a node took it, and Ready 90 s after that.
        pod = a_pod_body("a", ready_for_s=15)
        pod["metadata"]["creationTimestamp"] = at(15 + 90 + 10_800)
        pod["status"]["conditions"][1]["lastTransitionTime"] = at(15 + 90)
        state = a_state(pods=[pod])
        loading = a_memory(state, ready=frozenset(), loading=uids_of("a"))

        memory = assessed(state, memory=loading).memory

        # One vote beside 240 s of start and no wait; a wait counts for a quarter of an hour.
        assert memory.posterior.cold_start_s == pytest.approx(165)
        assert memory.posterior.node_wait_s == pytest.approx(450)

    def test_smooths_how_long_starts_take(self):
        state = a_state(pods=[a_pod_body("a")])
        known = ObjectPosterior(cold_start_s=200, num_starts=9)
        memory = a_memory(state, ready=frozenset(), loading=uids_of("a"), posterior=known)

        after = assessed(state, memory=memory).memory.posterior

        # This one took 600 s: three tenths of the way.
        assert after.cold_start_s == pytest.approx(320)
        assert after.cold_start_deviation_s == pytest.approx(400 * math.sqrt(0.3 * 0.7))

    def test_is_not_needed_to_decide_safely(self):
        state = a_state(replicas=4, load=1)
        nothing = a_memory(state, since_s=NOW_S, recent_needs=(), ready=frozenset())

        assert assessed(state, memory=nothing).decision.replicas == 4


def test_assessing_is_a_function_of_what_it_is_given():
    state = a_state(load=3)
    memory = a_memory(state)

    first, second = (assessed(state, memory=memory) for _ in range(2))

    assert (first.decision, first.memory, first.template) == (
        second.decision,
        second.memory,
        second.template,
    )


def test_modes_are_what_the_spec_says():
    for mode in ("Auto", "Recommend", "Paused"):
        scaling = {"mode": mode, "minReplicas": 1, "maxReplicas": 8}

        assert assessed(a_state(a_manifest(scaling=scaling))).mode == mode


def test_a_replica_that_serves_short_requests_serves_more_of_them():
    state = a_state(load=1, live=a_deployment_body())

    found = assessed(with_lengths(state, 100, 50))

    assert found.sizing.goodput_requests_per_s > 5 * EACH


class TestArrivalsCounted:
    def test_are_of_the_shortest_window(self):
        # Three gaps between four scrapes, 15 s apart, at what one replica serves.
        [window] = assessed(a_state()).memory.traffic.counted

        assert (window.at_s, window.seconds) == (NOW_S, 45)
        assert window.count == pytest.approx(45 * EACH)

    def test_are_not_none_where_no_answer_came_for_that_window(self):
        told = a_state()
        without = tuple(without_arrivals(each, 4) for each in told.engines)

        found = assessed(replace(told, engines=without))

        assert found.traffics.demand.requests_per_s == pytest.approx(EACH)
        assert found.memory.traffic.counted == ()
        assert [due.peak for due in found.memory.demand.history.due] == [0]
