"""What is learned from busy engines, and from which ones nothing is."""

from dataclasses import replace

import pytest

from fleet_builders import (
    NOW_S,
    a_deployment_body,
    a_fleet,
    a_manifest,
    a_model,
    a_pod_body,
    a_request_of,
    a_sizing,
    a_state,
    assessed,
)
from measured_builders import an_engine
from tonnage.control.input.memory import ReportMemory
from tonnage.control.learn.believed import learn_from, observation, own_kv_tokens
from tonnage.control.measure.causes import utilization
from tonnage.control.measure.traffic import observe_engines, reported_kv_tokens
from tonnage.estimate import planning_constants
from tonnage.estimate.calibration import Calibrations, Scope, memory_key, speed_key
from tonnage.estimate.learner import constants_of
from tonnage.estimate.speed import varied_share
from tonnage.sizing.plan import size_with
from tonnage.sizing.search import size
from tonnage.sizing.split import Parallelism
from tonnage.sizing.step_time.step import Step

SIZING = a_sizing()
PRIOR = SIZING.request.speed
BELIEF = assessed().chosen.belief
SPEED = Scope("serving", speed_key(SIZING.request, SIZING.flags))
MEMORY = Scope("serving", memory_key(SIZING.request, SIZING.flags))
KV_TOKENS = 600_000
WINDOW_S = 60
DECODING, CONTEXT = 24, 5000


def the_step(slower=1.0):
    """A token meets the 24 that decode in the mean, and one more as far as these vary."""
    time, answer_tokens = None, SIZING.request.workload.output_tokens
    for _ in range(30):
        lasting_s = answer_tokens * slower * (time.total_s if time else 0.02)
        met = DECODING + varied_share(WINDOW_S, lasting_s)
        time = SIZING.replica.model.step(Step(num_sequences=met, context_tokens=met * CONTEXT))
    return time


def a_busy_engine(pod="a", *, slower=1.0, **changes):
    """An engine without new prompts, whose steps take so many times what the prior says."""
    step_s = slower * the_step(slower).total_s
    busy = {
        "running": DECODING,
        "mean_running": DECODING,
        "kv_tokens": KV_TOKENS,
        "kv_usage_fraction": DECODING * CONTEXT / KV_TOKENS,
        "computed_prompt_tokens_per_s": 0,
        "token_gaps_per_s": DECODING / step_s,
        "token_gap_s_per_s": DECODING,
        "prefills_per_s": None,
        "prefill_s_per_s": None,
    }
    return an_engine(pod, **(busy | changes))


def learned(found, fleet, known, last=None):
    """Return what is known after a tick, and when each key last moved."""
    said = [observation(each) for each in found]
    return learn_from([each for each in said if each], known, last or {}, fleet)[:2]


def known_after(state, *, before=None):
    fleet = a_fleet(state)
    known, _ = learned([assessed(state)], fleet, before or Calibrations())
    return known


def step_ratio(known, scope=SPEED):
    """The time of the step of ``a_busy_engine`` as it is believed, over that of the prior."""
    work = Step(num_sequences=DECODING + 1, context_tokens=(DECODING + 1) * CONTEXT)
    model = SIZING.replica.model
    believed = replace(model, constants=constants_of(known.speed[scope], PRIOR))
    return believed.step(work).total_s / model.step(work).total_s


class TestSpeed:
    def test_is_told_by_what_was_said_since_it_was_last_asked_for(self):
        fleet = a_fleet(a_state(engines=(a_busy_engine(),)))
        said = [observation(assessed(each)) for each in fleet.models]
        later = replace(fleet, now_s=NOW_S + 60)

        known, last, _ = learn_from(said, Calibrations(), {}, fleet)
        again, last_again, _ = learn_from(said, known, last, replace(later, said_at_s=NOW_S))
        anew, *_ = learn_from(said, known, last, later)

        assert (again, last_again) == (known, last)
        assert anew.speed[SPEED].num_windows == 2

    @pytest.mark.parametrize(("gone_s", "is_known"), [(3585, True), (3600, False)])
    def test_of_which_nobody_has_said_anything_for_an_hour_is_forgotten(self, gone_s, is_known):
        fleet = a_fleet(a_state(engines=(a_busy_engine(),)))
        said = [observation(assessed(each)) for each in fleet.models]
        known, last, _ = learn_from(said, Calibrations(), {}, fleet)

        _, last, _ = learn_from([], known, last, replace(fleet, now_s=fleet.now_s + gone_s))

        assert (SPEED in last) is is_known

    def test_moves_towards_what_the_steps_show(self):
        engines = tuple(a_busy_engine(pod, slower=1.2) for pod in "ab")

        known = known_after(a_state(engines=engines))

        assert 1.1 < step_ratio(known) < 1.2
        assert known.speed[SPEED].num_windows == 1
        assert known.speed[SPEED].learned_at_s == NOW_S

    def test_of_an_engine_as_it_was_believed_moves_nothing(self):
        known = known_after(a_state(engines=(a_busy_engine(),)))

        assert step_ratio(known) == pytest.approx(1, abs=1e-9)
        assert known.speed[SPEED].num_windows == 1

    def test_of_two_engines_that_disagree_is_the_one_that_is_believed_more(self):
        one = known_after(a_state(engines=(a_busy_engine("a", slower=1.05),)))
        two = known_after(
            a_state(engines=(a_busy_engine("a", slower=1.05), a_busy_engine("b", slower=1.1525)))
        )

        # The second is surer, and so nearer.
        assert step_ratio(one) < step_ratio(two) < 1.051

    def test_comes_to_the_truth_and_stays(self):
        state = a_state(engines=(a_busy_engine(slower=1.3),))
        known, last = Calibrations(), {}
        for window in range(20):
            fleet = a_fleet(state, now_s=NOW_S + WINDOW_S * window, calibrations=known)
            known, last = learned([assessed(state, fleet=fleet)], fleet, known, last)

        assert step_ratio(known) == pytest.approx(1.3, rel=2e-3)
        assert known.speed[SPEED].num_windows == 20

    @pytest.mark.parametrize(
        "change",
        [
            {"age_s": 200},
            {"age_s": None},
            {"token_gaps_per_s": 0},
            {"token_gaps_per_s": 99 / WINDOW_S, "token_gap_s_per_s": 1},
            {"token_gap_s_per_s": None},
            {"computed_prompt_tokens_per_s": None},
            {"running": 3, "in_flight_per_s": -0.5},  # 33 at first: the batch drains
            {"token_gap_s_per_s": 70},  # of 53 slots
        ],
        ids=str,
    )
    def test_is_not_learned_from_an_engine_that_does_not_show_it(self, change):
        state = a_state(engines=(a_busy_engine(slower=1.2, **change),))

        assert known_after(state).speed == {}

    def test_is_learned_at_the_length_that_is_expected_where_the_cache_does_not_say_it(self):
        state = a_state(engines=(a_busy_engine(slower=1.2, kv_tokens=None),))

        assert SPEED in known_after(state).speed

    def test_is_not_learned_while_a_replica_warms_up(self):
        engines = (a_busy_engine(slower=1.2),)

        young = a_state(pods=[a_pod_body("a", ready_for_s=59)], engines=engines)
        warm = a_state(pods=[a_pod_body("a", ready_for_s=61)], engines=engines)

        assert known_after(young).speed == {}
        assert SPEED in known_after(warm).speed

    def test_is_not_learned_from_a_pod_that_is_taken_away(self):
        going = a_pod_body("a")
        going["metadata"]["deletionTimestamp"] = "2026-01-02T00:00:00Z"
        state = a_state(pods=[going], engines=(a_busy_engine(slower=1.2),))

        assert known_after(state).speed == {}

    def test_of_a_pod_with_twenty_invented_engines_is_one_vote_of_three(self):
        invented = [a_busy_engine("a", engine=str(each), slower=1.5) for each in range(20)]
        honest = [a_busy_engine(pod) for pod in "bc"]
        state = a_state(replicas=3, engines=(*invented, *honest))

        assert step_ratio(known_after(state)) == pytest.approx(1, abs=1e-9)

    def test_of_an_impossible_step_leaves_what_is_known(self):
        state = a_state(engines=(a_busy_engine(slower=20),))

        assert step_ratio(known_after(state)) == pytest.approx(1, abs=1e-9)


class TestWhoBelieves:
    """A tenant can make its engines say anything: they teach its own namespace."""

    def after(self, *namespaces, windows=1):
        """What is known when engines in each of these show steps of 1.3 times the time."""
        states = [
            a_state(
                a_manifest(f"of-{name}", namespace=name, uid=name),
                live=a_deployment_body(a_model(f"of-{name}", namespace=name, uid=name)),
                engines=(a_busy_engine(slower=1.3),),
            )
            for name in namespaces
        ]
        known, last = Calibrations(), {}
        for window in range(windows):
            fleet = a_fleet(*states, now_s=NOW_S + WINDOW_S * window, calibrations=known)
            known, last = learned([assessed(e, fleet=fleet) for e in states], fleet, known, last)
        return known

    def believed(self, known, namespace):
        manifest = a_manifest(namespace=namespace)
        state = a_state(manifest, live=a_deployment_body(a_model(namespace=namespace)))
        return assessed(state, fleet=a_fleet(state, calibrations=known)).chosen.belief

    def believed_ratio(self, known, namespace):
        held = self.believed(known, namespace)
        return planning_constants.step_ratio(held.posterior, held.prior)

    def test_what_one_namespace_shows_is_believed_there_alone(self):
        known = self.after("liar", windows=10)

        assert self.believed_ratio(known, "liar") > 1.05
        assert self.believed_ratio(known, "serving") == 1
        assert not self.believed(known, "serving").is_measured

    def test_two_namespaces_convince_a_third(self):
        known = self.after("blue", "green", windows=10)

        assert self.believed_ratio(known, "serving") > 1.05

    def test_two_namespaces_that_have_seen_little_convince_nobody(self):
        known = self.after("blue", "green", windows=3)

        assert self.believed_ratio(known, "serving") == 1


def own_tokens(*reported):
    """What an object believes whose pods report so many tokens each."""
    engines = (
        a_busy_engine(pod, kv_tokens=each)
        for pod, each in zip("abc"[: len(reported)], reported, strict=True)
    )
    state = a_state(replicas=len(reported), engines=tuple(engines))
    return own_kv_tokens(
        observe_engines(state, a_fleet(state), SIZING, BELIEF, ReportMemory()), SIZING
    )


class TestMemory:
    def test_is_what_the_engines_report(self):
        engines = (a_busy_engine("a", kv_tokens=600_000), a_busy_engine("b", kv_tokens=590_000))

        known = known_after(a_state(engines=engines))

        assert known.memory[MEMORY].kv_tokens == 590_000

    def test_is_not_believed_far_from_the_estimate(self):
        assert known_after(a_state(engines=(a_busy_engine(kv_tokens=16),))).memory == {}

    def test_is_learned_where_the_estimate_would_refuse_what_runs(self):
        # Of 36 GiB that each GPU may use the weights take 33: no room for a request of 1.25 GiB.
        manifest = a_manifest()
        flags = replace(SIZING.flags, gpu_memory_utilization=0.26)
        live = a_deployment_body(sizing=replace(SIZING, flags=flags))
        state = a_state(manifest, live=live, engines=(a_busy_engine(kv_tokens=9_000),))

        found = assessed(state)
        known = known_after(state)

        assert found.sizing.memory_doubt
        assert known.memory[Scope("serving", memory_key(SIZING.request, flags))].kv_tokens == 9_000

    def test_of_the_object_itself_is_believed_however_far_from_the_estimate(self):
        state = a_state(engines=(a_busy_engine(kv_tokens=20_000),))

        first = assessed(state)
        second = assessed(state, memory=first.memory)

        assert first.sizing.kv_tokens == pytest.approx(SIZING.kv_tokens)
        assert second.sizing.kv_tokens == pytest.approx(20_000)
        assert known_after(state).memory == {}

    def test_of_the_object_itself_is_that_of_the_pod_in_the_middle(self):
        assert own_tokens(590_000, 600_000, 16) == 590_000

    def test_of_two_pods_that_differ_is_the_smaller(self):
        assert own_tokens(590_000, 600_000) == 590_000

    def test_of_a_pod_is_that_of_its_smallest_rank(self):
        ranks = (a_busy_engine("a", engine="1", kv_tokens=500_000), a_busy_engine("a"))
        state = a_state(engines=ranks)

        observed = observe_engines(state, a_fleet(state), SIZING, BELIEF, ReportMemory())

        assert own_kv_tokens(observed, SIZING) == 500_000

    def test_of_more_than_the_memory_of_a_gpu_is_no_report(self):
        # 150.8 GB over 80 layers of 4 heads of 128, twice, in 2 B: 163,840 B each.
        most = SIZING.request.gpu.memory_bytes / 163_840

        assert own_tokens(0.999 * most) == pytest.approx(0.999 * most)
        assert own_tokens(1.001 * most) is None

    def test_of_a_silent_pod_is_none(self):
        assert own_tokens(None) is None

    def test_of_several_objects_is_the_smallest(self):
        first = a_state(engines=(a_busy_engine(kv_tokens=600_000),))
        second = a_state(
            a_manifest("other"),
            live=a_deployment_body(a_model("other")),
            engines=(a_busy_engine(kv_tokens=500_000),),
        )

        known, _ = learned(
            [assessed(first), assessed(second)], a_fleet(first, second), Calibrations()
        )

        assert known.memory[MEMORY].kv_tokens == 500_000

    def test_stays_as_it_is_for_a_small_difference(self):
        first = known_after(a_state(engines=(a_busy_engine(kv_tokens=600_000),)))
        then = known_after(a_state(engines=(a_busy_engine(kv_tokens=605_000),)), before=first)

        assert then.memory == first.memory


class TestWhoseFigures:
    """Constants are kept by what runs: nothing that runs otherwise may be filed there."""

    def wide(self):
        """The user asks for 16-bit weights while the pods still run fp8."""
        return a_manifest(
            model={"id": "meta-llama/Llama-3.3-70B-Instruct"},
            hardware={"gpu": "H200", "gpusPerReplica": 2},
            generation=2,
        )

    def test_of_pods_that_run_another_spec_are_not_learned(self):
        state = a_state(self.wide(), live=a_deployment_body(), engines=(a_busy_engine(slower=1.2),))

        assert known_after(state) == Calibrations()

    def test_of_a_plan_that_is_only_recommended_are_not_learned(self):
        recommended = self.wide() | {}
        recommended["spec"]["scaling"] = {"mode": "Recommend", "maxReplicas": 8}
        state = a_state(recommended, live=a_deployment_body(), engines=(a_busy_engine(),))

        assert known_after(state) == Calibrations()

    def test_are_not_learned_during_an_update(self):
        rolling = a_deployment_body()
        rolling["status"]["updatedReplicas"] = 1

        assert known_after(a_state(live=rolling, engines=(a_busy_engine(),))) == Calibrations()

    def test_of_a_refused_object_are_not_learned(self):
        state = a_state(live=a_deployment_body(ownerReferences=[]), engines=(a_busy_engine(),))

        assert known_after(state) == Calibrations()

    def test_are_shared_by_objects_that_run_the_same(self):
        first = a_state(engines=(a_busy_engine(slower=1.2),))
        other = a_manifest("other")
        second = a_state(
            other,
            live=a_deployment_body(a_model("other")),
            engines=(a_busy_engine(slower=1.2),),
        )
        fleet = a_fleet(first, second)

        both, _ = learned([assessed(first), assessed(second)], fleet, Calibrations())

        assert list(both.speed) == [SPEED]
        one = known_after(first).speed[SPEED]
        assert both.speed[SPEED].num_windows == one.num_windows
        assert both.speed[SPEED].num_steps == pytest.approx(2 * one.num_steps)

    def test_a_key_moves_once_per_window_however_often_it_is_looked_at(self):
        state = a_state(engines=(a_busy_engine(slower=1.2),))
        fleet = a_fleet(state)
        once, last = learned([assessed(state)], fleet, Calibrations())

        again, _ = learned([assessed(state)], fleet, once, last)

        assert again == once


class TestObserved:
    def observed(self, *engines, **changes):
        state = a_state(engines=engines, **changes)
        return observe_engines(state, a_fleet(state), SIZING, BELIEF, ReportMemory())

    def used(self, *engines):
        state = a_state(engines=engines)
        found = assessed(state)
        chosen = replace(found.chosen, sizing=SIZING)
        return utilization(replace(found, observed=self.observed(*engines)), chosen, a_fleet(state))

    def test_step_time_and_utilization_are_means_over_busy_engines(self):
        seen = self.used(a_busy_engine("a"), a_busy_engine("b", token_gaps_per_s=0))

        step = the_step()
        assert seen.step_s == pytest.approx(step.total_s)
        bandwidth = SIZING.replica.model.speeds.memory_bytes_per_s
        assert seen.mbu == pytest.approx(step.decode_bytes / step.total_s / bandwidth)

    def test_of_an_idle_fleet_are_none(self):
        seen = self.used(a_busy_engine("a", token_gaps_per_s=0))

        assert (seen.step_s, seen.mbu) == (None, None)

    def test_cache_is_that_of_the_smallest_replica(self):
        seen = self.observed(a_busy_engine("a", kv_tokens=5000), a_busy_engine("b", kv_tokens=4000))

        assert seen.kv_tokens == 4000

    def test_targets_are_judged_over_all_engines(self):
        fast = {2.0: 100.0, float("inf"): 100.0}
        slow = {2.0: 80.0, float("inf"): 100.0}

        seen = self.observed(
            a_busy_engine("a", ttft_within=fast), a_busy_engine("b", ttft_within=slow)
        )

        [ttft] = seen.attainments
        assert (ttft.name, ttft.quantile, ttft.fraction) == ("TTFT", 0.95, 0.9)

    def test_who_was_refused_is_late_though_no_histogram_has_it(self):
        within = {2.0: 100.0, float("inf"): 100.0}

        [ttft] = self.observed(
            a_busy_engine("a", ttft_within=within, rejected_per_s=50.0),
            a_busy_engine("b", ttft_within=within),
        ).attainments
        assert (ttft.fraction, ttft.requests_per_s) == (0.8, 250.0)
        assert ttft.refused_fraction == 0.2

    def test_where_everybody_is_refused_nobody_is_in_time(self):
        within = {2.0: 0.0, float("inf"): 0.0}

        [ttft] = self.observed(
            a_busy_engine("a", ttft_within=within, rejected_per_s=5.0)
        ).attainments
        assert (ttft.fraction, ttft.requests_per_s) == (0.0, 5.0)

    def test_refusals_of_an_engine_without_a_histogram_are_not_judged_alone(self):
        assert self.observed(a_busy_engine("a", rejected_per_s=5.0)).attainments == ()

    def test_cache_of_a_replica_is_that_of_all_its_ranks(self):
        sizing = deepseek("0.33", Parallelism(data=8))
        state = a_state(engines=(a_busy_engine("a", kv_tokens=5000),))

        assert (
            observe_engines(state, a_fleet(state), sizing, BELIEF, ReportMemory()).kv_tokens
            == 40_000
        )


def deepseek(version, split):
    """A model whose blocks are of 64 tokens: 128 of them hold one request of 8,192."""
    return split_on_h200("deepseek-ai/DeepSeek-V3", version, split, context_tokens=8192)


def split_on_h200(model_id, version, split, *, context_tokens):
    model = a_model(
        model={"id": model_id},
        hardware={"gpu": "H200"},
        contextLength=context_tokens,
        slo=None,
        engine={"version": version},
    )
    return size_with(a_request_of(model), split)


class TestReportedTokens:
    """Figures of one rank in requests of the maximum length, from the labels of each version."""

    @pytest.mark.parametrize("version", ["0.24", "0.33"])
    def test_are_what_the_engine_says_where_it_says_them(self, version):
        said = an_engine(kv_tokens=640_000, num_gpu_blocks=80_000)

        assert reported_kv_tokens(said, deepseek(version, Parallelism(data=8))) == 640_000

    @pytest.mark.parametrize(
        ("split", "num_gpu_blocks", "tokens"),
        [
            # 10,000 / 128 = 78.125 requests of 8,192 tokens
            (Parallelism(tensor=8), 10_000, 640_000),
            # Each rank keeps every other token: a block of it stands for 128 tokens.
            (Parallelism(tensor=8, context=2), 10_000, 1_280_000),
            # The front-end adds up what its eight ranks say.
            (Parallelism(data=8), 80_000, 640_000),
        ],
        ids=["TP8", "DCP2", "DP8"],
    )
    def test_follow_from_the_blocks_before_that(self, split, num_gpu_blocks, tokens):
        said = an_engine(kv_tokens=None, num_gpu_blocks=num_gpu_blocks)

        assert reported_kv_tokens(said, deepseek("0.19", split)) == tokens

    def test_of_windows_count_what_a_request_keeps(self):
        sizing = split_on_h200("google/gemma-4-31B", "0.19", Parallelism(), context_tokens=32_768)

        tokens = reported_kv_tokens(an_engine(kv_tokens=None, num_gpu_blocks=26_877), sizing)

        # Ten layers see everything, in blocks of 32 tokens: 1,024. Five groups of ten keep 1,023
        # tokens and the 8,192 of a step, in blocks of 16, and begin within one: 577 each.
        # 26,877 / (1,024 + 5 * 577) = 6.876 requests; 26,877 * 16 were 430,032 tokens.
        assert tokens == pytest.approx(26_877 / 3909 * 32_768)
        assert sizing.kv_tokens == pytest.approx(tokens, rel=0.1)

    def test_are_none_where_nothing_is_said(self):
        sizing = deepseek("0.19", Parallelism(tensor=8))

        assert reported_kv_tokens(an_engine(kv_tokens=None), sizing) is None

    def test_are_learned_from_blocks_alone(self):
        # 8,192 tokens are 512 blocks of 16, so 37,500 blocks are 600,000 tokens.
        engine = a_busy_engine(kv_tokens=None, num_gpu_blocks=37_500)
        state = a_state(a_manifest(engine={"version": "0.19"}), engines=(engine,))

        known = known_after(state)

        [memory] = known.memory.values()
        assert memory.kv_tokens == 600_000
        assert len(known.speed) == 1

    def test_learned_from_blocks_give_the_plan_the_pool_that_was_reported(self):
        sizing = deepseek("0.19", Parallelism(tensor=8))
        tokens = reported_kv_tokens(an_engine(kv_tokens=None, num_gpu_blocks=10_000), sizing)

        learned = replace(sizing.request, flags=sizing.flags, measured_kv_tokens=tokens)

        # 64 tokens of 576 elements of 2 B in 61 layers
        assert size(learned).replica.kv_pool_bytes == pytest.approx(10_000 * 64 * 576 * 2 * 61)
