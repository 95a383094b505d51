"""When kept and broken promises say something of capacity, and when something else explains it."""

import math
from dataclasses import replace

import pytest

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
    engines_at,
    remembering,
)
from measured_builders import an_engine, missed_before, with_figures
from tonnage.api.objects import parse_model_deployment
from tonnage.control.input.memory import GoodputMemory, Memory, PodSpeed
from tonnage.control.learn.attainment import factor_reasons
from tonnage.control.tick import tick
from tonnage.estimate.attainment import (
    AttainmentCounts,
    TargetCounts,
)
from tonnage.estimate.metrics import WINDOWS
from tonnage.estimate.posterior import ObjectPosterior, Trial
from tonnage.estimate.stored import dump, load
from tonnage.manifests.children import spec_digest

SIZING = a_sizing()
GOODPUT = SIZING.goodput_requests_per_s
INF = math.inf
WINDOW_S = 120


def a_busy_state(*, load=0.9, late=0.4, pods=None, **changes):
    """Two replicas at a load; of their requests so many miss the TTFT target of 2 s."""
    rate = load * GOODPUT
    within = {2.0: (1 - late) * rate, INF: rate}
    told = {"ttft_within": within} | {
        name: changes.pop(name) for name in ("waiting", "age_s") if name in changes
    }
    engines = engines_at(2 * load, "ab", **told)
    return a_state(pods=pods, engines=engines, **changes)


def after(state=None, *, memory=None, now_s=NOW_S, **remembered):
    """What is remembered of an object after one more tick."""
    state = state or a_busy_state()
    memory = memory or remembering(a_memory(state), tally=missed_before())
    known = remembering(memory, **remembered)
    return assessed(state, memory=known, fleet=a_fleet(state, now_s=now_s)).memory


def factor(*args, **changes):
    return after(*args, **changes).posterior.goodput_factor


class TestJudging:
    def test_lowers_capacity_where_too_many_are_late_at_a_load_that_should_do(self):
        found = after()

        # Eight times as many are late as may be.
        lowered = 0.9 / 8 ** (1 / SIZING.goodput.steepness)
        assert found.posterior.goodput_factor == pytest.approx(lowered, rel=0.01)
        assert "for TTFT p95 at 90% of the expected capacity" in found.goodput.reason
        assert found.posterior.judged_at_s == NOW_S

    def test_asks_for_more_replicas_once_and_waits_for_them(self):
        state = a_busy_state()
        first = after(state)
        trial, memory = first.posterior.trial, first
        for window in range(1, 10):
            memory = after(state, memory=memory, now_s=NOW_S + WINDOW_S * window)

        assert (trial.target, trial.replicas, trial.factor) == ("TTFT p95", 2, 1.0)
        assert trial.late_share == pytest.approx(0.4, rel=0.01)
        assert trial.requests_per_s_each == pytest.approx(0.9 * GOODPUT)
        assert memory.posterior.goodput_factor == first.posterior.goodput_factor < 1
        assert memory.posterior.trial == trial

    def test_takes_a_step_back_that_has_not_helped(self):
        trial = Trial(
            target="TTFT p95",
            late_share=0.4,
            replicas=1,
            requests_per_s_each=1.8 * GOODPUT,
            factor=1.0,
        )
        low = ObjectPosterior(goodput_factor=0.9, num_judged=1, judged_at_s=NOW_S, trial=trial)

        found = after(a_busy_state(load=0.7), posterior=low, tally=AttainmentCounts())

        assert found.posterior.goodput_factor == pytest.approx(1.0)
        assert "more replicas do not help" in found.goodput.reason

    def test_leaves_capacity_where_promises_are_kept(self):
        assert factor(a_busy_state(late=0.0, load=0.7)) == 1

    def test_raises_capacity_where_they_are_kept_at_high_load_for_long(self):
        state, memory = a_busy_state(late=0.0, load=0.97), None
        for window in range(10):
            memory = after(state, memory=memory, now_s=NOW_S + WINDOW_S * window)

        assert 1 < memory.posterior.goodput_factor < 1.3

    def test_raises_it_not_in_the_first_window_after_a_step(self):
        state = a_busy_state(late=0.0, load=0.97)

        def after_windows(stepped_s_ago):
            memory = None
            for window in range(10):
                now_s = NOW_S + WINDOW_S * window
                stepped = (now_s - stepped_s_ago, 1)
                memory = after(state, memory=memory, now_s=now_s, stepped=stepped)
            return memory.posterior.goodput_factor

        assert after_windows(WINDOW_S - 1) == 1
        assert after_windows(WINDOW_S + 1) > 1

    def test_is_once_a_window(self):
        assert factor(judged_at_s=NOW_S - 119) == 1
        assert factor(judged_at_s=NOW_S - 121) < 1

    def test_takes_more_replicas_in_the_next_tick(self):
        state = a_busy_state(load=0.95)
        first = assessed(state, memory=remembering(a_memory(state), tally=missed_before()))
        later = a_fleet(state, now_s=NOW_S + 15)

        second = assessed(state, memory=first.memory, fleet=later)

        # 1.9 replicas' worth at less than 0.95 of what one serves: more than two.
        assert first.decision.replicas == 2
        assert second.decision.replicas == 3
        assert "CapacityAdjusted" in [reason.code for reason in second.decision.notes]

    def test_is_kept_where_constants_are_kept(self):
        state = a_busy_state()

        known = remembering(a_memory(state), tally=missed_before())
        outcome = tick(a_fleet(state), Memory(objects={state.view.uid: known}))

        assert outcome.memory.calibrations.objects[state.view.uid].goodput_factor < 1

    def test_goes_on_after_a_restart_from_what_was_kept(self):
        state = a_busy_state(late=0.0, load=0.5)
        own = ObjectPosterior(goodput_factor=0.7, num_judged=300, judged_at_s=NOW_S)
        known = replace(a_fleet().calibrations, objects={state.view.uid: own})

        [found] = tick(a_fleet(state, calibrations=known), Memory()).found

        assert found.chosen.goodput_factor == pytest.approx(0.7)


def a_state_of(names, *, load, late=0.4, **figures):
    """So many replicas; of the requests of each a share misses the TTFT target of 2 s."""
    rate = load * GOODPUT
    figures |= {"ttft_within": {2.0: (1 - late) * rate, INF: rate}}
    engines = engines_at(len(names) * load, names, **figures)
    return a_state(pods=[a_pod_body(name) for name in names], engines=engines)


class TestAfterARestart:
    """What is stored is read by another process, which remembers nothing."""

    def run(self, state, outcome, windows, *, since_s):
        """Tick once a window, with the speed that was expected; return the last outcome."""
        for window in range(windows):
            known = replace(outcome.calibrations, speed={})
            fleet = a_fleet(state, calibrations=known, now_s=since_s + WINDOW_S * window)
            outcome = tick(fleet, outcome).memory
        return outcome

    def restarted(self, memory):
        return Memory(calibrations=load(dump(memory.calibrations)).calibrations)

    def lowered(self):
        state = a_state_of("ab", load=0.9)
        known = {state.view.uid: remembering(a_memory(state), tally=missed_before())}
        return self.run(state, Memory(objects=known), 1, since_s=NOW_S)

    def of(self, memory):
        [own] = memory.calibrations.objects.values()
        return own

    def test_a_step_that_has_not_helped_is_undone_with_its_reason(self):
        first = self.lowered()
        state = a_state_of("abcd", load=0.45)
        memory = self.run(state, self.restarted(first), 5, since_s=NOW_S + 600)

        assert self.of(first).goodput_factor < 1
        assert self.of(memory).goodput_factor == pytest.approx(1.0, rel=1e-3)
        assert self.of(memory).trial is None
        [each] = memory.objects.values()
        assert "more replicas do not help: 40.00% missed TTFT p95 with 4 replicas" in (
            each.goodput.reason
        )
        # What it has shown outlives another one: as many are late, and nothing is tried again.
        later = self.run(state, self.restarted(memory), 9, since_s=NOW_S + 1800)
        assert self.of(later).goodput_factor == pytest.approx(1.0, rel=1e-3)

    def test_nothing_is_lowered_before_more_replicas_have_served(self):
        first = self.lowered()
        state = a_state_of("ab", load=0.7)
        memory = self.run(state, self.restarted(first), 20, since_s=NOW_S + 600)

        assert self.of(memory).goodput_factor == pytest.approx(self.of(first).goodput_factor)
        assert self.of(memory).trial.replicas == 2

    def test_without_a_trial_capacity_is_lowered_as_it_is_for_any(self):
        first = self.lowered()
        [uid] = first.calibrations.objects
        own = replace(self.of(first), trial=None)
        without = replace(first.calibrations, objects={uid: own})
        state = a_state_of("ab", load=0.7)
        known = Memory(calibrations=without)
        memory = self.run(state, self.restarted(known), 20, since_s=NOW_S + 600)

        assert self.of(memory).goodput_factor < 0.9 * own.goodput_factor

    @pytest.mark.parametrize(("windows", "is_judged"), [(1, False), (5, False), (12, True)])
    def test_what_an_overload_has_left_says_nothing_of_capacity(self, windows, is_judged):
        # Nobody has seen the queue begin. It should be gone in twice 60 / 0.3 s: within 580 s with
        # the window, and what is served until then.
        arrivals = {"completed_per_s": GOODPUT, "in_flight_per_s": -0.3 * GOODPUT}
        state = a_state_of("ab", load=0.7, waiting=60 * GOODPUT, **arrivals)
        memory = self.run(state, Memory(), windows, since_s=NOW_S)

        assert (self.of(memory).goodput_factor < 1) is is_judged


class TestWhatElseExplainsIt:
    @pytest.mark.parametrize(("ready_for_s", "judged"), [(None, False), (119, False), (121, True)])
    def test_a_pod_that_has_just_begun_to_serve(self, ready_for_s, judged):
        pods = [a_pod_body("a"), a_pod_body("b", ready_for_s=ready_for_s)]
        load = 0.9 if ready_for_s else 0.45  # one alone serves both shares

        assert (factor(a_busy_state(pods=pods, load=load)) < 1) is judged

    @pytest.mark.parametrize("ago_s", [0, 119, 121])
    def test_another_number_of_replicas_does_not_excuse_those_who_serve(self, ago_s):
        assert factor(stepped=(NOW_S - ago_s, 1)) < 1

    def test_an_overload(self):
        found = after(a_busy_state(load=1.2))

        assert found.posterior.goodput_factor == 1
        assert found.goodput.overloaded_at_s == NOW_S

    @pytest.mark.parametrize(("ago_s", "judged"), [(15, False), (179, False), (181, True)])
    def test_what_an_overload_has_left(self, ago_s, judged):
        # The window of 120 s and a minute to drain.
        assert (factor(overloaded_at_s=NOW_S - ago_s) < 1) is judged

    def test_an_update_that_rolls_out(self):
        rolling = a_deployment_body()
        rolling["status"]["updatedReplicas"] = 1

        assert factor(a_busy_state(live=rolling)) == 1

    def test_a_spec_that_is_not_carried_out_yet(self):
        changed = a_manifest(contextLength=16_384, generation=2)

        assert factor(a_busy_state(manifest=changed, live=a_deployment_body())) == 1

    def test_an_slo_that_no_rate_keeps(self):
        strict = {"timeToFirstToken": {"p95": "2s"}, "timePerOutputToken": {"p95": "10ms"}}
        manifest = a_manifest(slo=strict)
        sizing = replace(a_sizing(), flags=SIZING.flags)
        live = a_deployment_body(sizing=sizing)
        live["metadata"]["annotations"]["tonnage.dev/spec-digest"] = digest_of(manifest)
        state = a_busy_state(manifest=manifest, live=live)

        found = assessed(state)

        assert found.chosen.problem
        assert found.memory.posterior.goodput_factor == 1

    def test_figures_of_which_a_part_is_missing(self):
        state = a_busy_state()
        silent = replace(state, engines=state.engines[:1])

        assert factor(silent) == 1


class TestCachesThatAreLate:
    """Of decode: they come over a link that more replicas make no faster."""

    MANIFEST = a_manifest(
        engine={"version": "0.33", "role": "decode"},
        hardware={"gpu": "H200", "parallelism": {"tensor": 1}},
        demand={"promptTokens": {"mean": 4000}, "outputTokens": {"mean": 1000}}
        | {"cacheTransfer": "80ms"},
    )
    SIZING = a_sizing(parse_model_deployment(MANIFEST))

    def assessed(self, wait_s, *, manifest=MANIFEST, sizing=SIZING, tpot_late=0.0):
        """Of two replicas, of whose requests nearly all miss TTFT."""
        rate = 0.45 * sizing.goodput_requests_per_s
        engines = engines_at(
            0.9,
            "ab",
            sizing=sizing,
            ttft_within={2.0: 0.05 * rate, INF: rate},
            tpot_within={0.05: (1 - tpot_late) * rate, INF: rate},
            mean_deferred=None if wait_s is None else wait_s * rate,
        )
        model = parse_model_deployment(manifest)
        live = a_deployment_body(model, sizing=sizing)
        state = a_state(manifest=manifest, engines=engines, live=live)
        return assessed(state, memory=remembering(a_memory(state), tally=missed_before()))

    @pytest.mark.parametrize(
        ("wait_s", "judged"),
        [(None, True), (0.0, True), (0.08, True), (1.0, True), (1.1, False), (9.0, False)],
    )
    def test_do_not_lower_what_replicas_serve(self, wait_s, judged):
        # Half of 2 s less the 80 ms that are planned is left for a slower link.
        found = self.assessed(wait_s)

        assert (found.memory.posterior.goodput_factor < 1) is judged
        assert (found.observed.attainments[0].cause.code == "CachesLate") is not judged

    def test_excuse_no_slow_steps(self):
        assert self.assessed(9.0, tpot_late=0.4).memory.posterior.goodput_factor < 1

    def test_are_none_of_an_engine_that_does_both(self):
        both = {"manifest": a_manifest(), "sizing": SIZING}

        assert self.assessed(9.0, **both).memory.posterior.goodput_factor < 1


def digest_of(manifest):
    return spec_digest(parse_model_deployment(manifest))


class TestWithTheLearner:
    """Late requests and longer steps are one evidence: it counts once."""

    OWN = ObjectPosterior(goodput_factor=0.8, num_judged=100, judged_at_s=NOW_S)

    def judged(self, ratio, **changes):
        """Return what was believed when promises were last judged: so many times goodput."""
        _, (served, flags, *others) = after(a_busy_state()).goodput.judged_goodput
        served = replace(served, workload=changes.pop("workload", served.workload))
        scv = changes.pop("arrival_scv", others[0])
        return ratio * GOODPUT, (served, replace(flags, **changes), scv, *others[1:])

    def test_what_it_has_moved_is_given_back_and_not_judged(self):
        found = after(
            posterior=self.OWN,
            judged_goodput=self.judged(1.1),
            tally=AttainmentCounts(
                targets={"x": TargetCounts(num_requests=20, late=3, allowed=1, expected=1)},
            ),
        )

        # Goodput fell by a tenth since: so much of the fifth is the learner's.
        assert found.posterior.goodput_factor == pytest.approx(0.88)
        assert found.goodput.tally == AttainmentCounts()
        assert found.goodput.judged_goodput[0] == pytest.approx(GOODPUT)

    def test_what_it_has_hardly_moved_is_judged(self):
        found = after(a_busy_state(load=0.75), posterior=self.OWN, judged_goodput=self.judged(1.01))

        assert found.posterior.goodput_factor < 0.8

    def test_a_faster_engine_leaves_a_low_factor(self):
        found = after(posterior=self.OWN, judged_goodput=self.judged(0.8))

        # Broken promises have shown a rate: it is the same of a goodput that is higher.
        assert found.posterior.goodput_factor == pytest.approx(0.8 * 0.8)

    @pytest.mark.parametrize("changed", ["lengths", "arrivals", "slots"])
    def test_what_other_requests_or_flags_do_to_goodput_is_nothing_that_it_has_moved(self, changed):
        other = {
            "lengths": {"workload": replace(SIZING.request.workload, output_tokens=10.0)},
            "arrivals": {"arrival_scv": 8.0},
            "slots": {"max_num_seqs": 7},
        }[changed]

        calm = a_busy_state(late=0.0, load=0.5)
        found = after(calm, posterior=self.OWN, judged_goodput=self.judged(0.5, **other))

        assert found.posterior.goodput_factor >= 0.8


class TestTheQueueOfAnOverload:
    SPARE = SIZING.most_requests_per_s - 0.5 * GOODPUT
    """Requests/s that each of two replicas serves beside half a load."""

    def left(self, *queues, load=0.5, **remembered):
        """What is remembered of two replicas at which so many wait, after an overload."""
        state = a_busy_state(load=load, late=0.0)
        pairs = zip(state.engines, queues, strict=True)
        engines = tuple(replace(each, waiting=waiting) for each, waiting in pairs)
        known = {"drained_by_s": NOW_S + 1700} | remembered
        return after(replace(state, engines=engines), **known)

    def test_begins_with_it(self):
        assert self.left(300, 300, load=1.2, drained_by_s=None).goodput.drained_by_s > NOW_S

    def test_is_given_twice_the_time_that_the_longest_one_takes_beside_its_share(self):
        # Nobody else serves what waits at a replica: 400 at one take as long as 400 at each.
        expected_s = 2 * 400 / self.SPARE

        assert self.left(400, 400).goodput.drained_by_s == pytest.approx(NOW_S + expected_s)
        assert self.left(0, 400).goodput.drained_by_s == pytest.approx(NOW_S + expected_s)

    def test_is_none_any_more_once_it_should_be_served_or_is(self):
        assert self.left(400, 400, drained_by_s=NOW_S).goodput.drained_by_s is None
        assert self.left(0, 1).goodput.drained_by_s is None

    def test_without_an_overload_is_another(self):
        assert self.left(400, 400, drained_by_s=None).goodput.drained_by_s is None

    def test_takes_no_replica_away(self):
        state = a_busy_state(load=0.1, late=0.0, waiting=20)
        known = remembering(a_memory(state), drained_by_s=NOW_S + 60)

        found = assessed(state, memory=known).decision

        assert found.replicas == 2
        assert found.reasons[0].code == "Draining"
        assert "40 still queued after an overload: no scale-down" in found.reasons[0].message


class TestOtherCauses:
    """What is late for another cause than load moves nothing, however long it lasts."""

    def after_an_hour(self, state, **remembered):
        memory = after(state, **remembered)
        for window in range(1, 30):
            memory = after(state, memory=memory, now_s=NOW_S + WINDOW_S * window)
        return memory

    @pytest.mark.parametrize("load", [0.5, 0.9])
    def test_a_constant_delay_of_the_server(self, load):
        rate = load * GOODPUT
        outside = {"first_token_s_per_s": 1.9 * rate, "started_per_s": rate}
        outside |= {"queue_s_per_s": 0.01 * rate, "queues_per_s": rate}
        outside |= {"prefill_s_per_s": 0.3 * rate, "prefills_per_s": rate}
        state = a_busy_state(load=load)
        engines = tuple(
            replace(each, windows={w: each.over(w)._replace(**outside) for w in WINDOWS})
            for each in state.engines
        )

        found = self.after_an_hour(replace(state, engines=engines))

        assert found.posterior.goodput_factor == 1
        assert found.posterior.trial is None

    def test_one_slow_pod(self):
        rate = 0.7 * GOODPUT
        slow, other = a_busy_state(load=0.7).engines
        engines = (slow, replace(other, ttft_within={2.0: rate, INF: rate}))
        state = replace(a_busy_state(load=0.7), engines=engines)
        speeds = {
            pod: PodSpeed(node=None, slower=slower, mbu=0.3, mfu=0.3, seen_at_s=NOW_S)
            for pod, slower in (("a", 0.4), ("b", 0.0))
        }

        assert self.after_an_hour(state, speeds=speeds).posterior.goodput_factor == 1
        assert self.after_an_hour(state).posterior.goodput_factor < 1

    @pytest.mark.parametrize("load", [0.5, 0.8, 0.95])
    def test_what_a_rule_refuses(self, load):
        """One in five; who is answered is in time. Neither is it less, nor more, that is served."""
        rate = 0.8 * load * GOODPUT
        engines = engines_at(
            1.6 * load,
            "ab",
            ttft_within={2.0: rate, INF: rate},
            rejected_per_s=0.2 * load * GOODPUT,
        )
        state = replace(a_busy_state(load=load), engines=engines)
        known = assessed(state).observed.attainments[0]

        assert known.refused_fraction == pytest.approx(0.2)
        assert self.after_an_hour(state).posterior.goodput_factor == 1


class TestReplicasAtWhichRequestsWaitAllAlong:
    """Each replica serves ``load`` of what it should, and ``waiting`` more wait at both ends."""

    WARM = tuple(a_pod_body(name, ready_for_s=600) for name in "ab")

    def seen(self, *, load=0.5, waiting=200, now_s=NOW_S, changes=None, pods=WARM, **remembered):
        state = a_busy_state(load=load, late=0.0, waiting=waiting, pods=pods)
        told = {"token_gaps_per_s": load * GOODPUT * 999} | (changes or {})
        engines = tuple(with_figures(each, **told) for each in state.engines)
        return after(replace(state, engines=engines), now_s=now_s, **remembered)

    MOST = SIZING.most_requests_per_s / GOODPUT

    def test_serve_no_more_whatever_is_believed(self):
        found = self.seen(load=0.6)

        assert found.posterior.goodput_factor == pytest.approx(0.6 / self.MOST, rel=0.01)
        assert "a replica whose queue was never empty served" in found.goodput.reason

    def test_are_believed_under_overload_too(self):
        found = self.seen(load=0.6, overloaded_at_s=NOW_S)

        assert found.posterior.goodput_factor == pytest.approx(0.6 / self.MOST, rel=0.01)

    def test_are_believed_while_the_learner_moves_goodput(self):
        before = TestWithTheLearner().judged(0.5)
        found = self.seen(load=0.6, judged_goodput=before)

        assert found.posterior.goodput_factor == pytest.approx(0.6 / self.MOST, rel=0.01)

    def test_are_most_of_them_not_one_slow_pod(self):
        queued = a_busy_state(load=0.5, late=0.0, waiting=200, pods=self.WARM)
        (slow, other) = (
            with_figures(each, token_gaps_per_s=0.5 * GOODPUT * 999) for each in queued.engines
        )
        (idle, _) = a_busy_state(load=0.6, late=0.0, waiting=0, pods=self.WARM).engines
        well = replace(idle, pod=other.pod)

        found = after(replace(queued, engines=(slow, well)))

        assert found.posterior.goodput_factor == 1

    def test_are_not_those_at_which_few_wait(self):
        assert self.seen(load=0.5, waiting=3).posterior.goodput_factor == 1

    def test_are_not_those_that_began_to_queue(self):
        began = an_engine(completed_per_s=0.5 * GOODPUT, in_flight_per_s=200 / WINDOW_S)
        found = self.seen(load=0.5, changes={"windows": began.windows})

        assert found.posterior.goodput_factor == 1

    def test_are_not_those_that_have_just_become_ready(self):
        young = tuple(a_pod_body(name, ready_for_s=200) for name in "ab")

        assert self.seen(pods=young).posterior.goodput_factor == 1

    def test_whose_answers_became_longer_are_judged_by_their_tokens(self):
        found = self.seen(load=0.5, changes={"token_gaps_per_s": 0.98 * self.MOST * GOODPUT * 999})

        assert found.posterior.goodput_factor == 1


class TestReasons:
    def test_are_given_where_it_matters(self):
        known = GoodputMemory(reason="-14% capacity: 9 of 10 were late")

        [reason] = factor_reasons(known, ObjectPosterior(), 0.861)

        assert reason.code == "CapacityAdjusted"
        assert reason.message == (
            "86% of what the step time allows are served, learned from 0 requests; "
            "-14% capacity: 9 of 10 were late"
        )

    def test_are_none_where_nothing_moved(self):
        assert factor_reasons(GoodputMemory(), ObjectPosterior(), 0.985) == ()

    def test_after_a_restart_say_what_is_known(self):
        [reason] = factor_reasons(GoodputMemory(), ObjectPosterior(), 0.8)

        assert reason.message.startswith("80% of what the step time allows are served, learned")
