"""What is learned from busy engines, and from which ones nothing is."""

from dataclasses import replace

import pytest

from fleet_builders import (
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
from measured_builders import an_engine, with_efficiency
from tonnage.control.learning import learn_from, observation
from tonnage.control.measure import observe_engines, reported_kv_tokens
from tonnage.estimate.calibration import Calibrations, memory_key, speed_key
from tonnage.sizing.plan import size, size_with
from tonnage.sizing.split import Parallelism
from tonnage.sizing.step_time.step import Step

SIZING = a_sizing()
PRIOR = SIZING.request.speed.bandwidth_efficiency
SPEED = speed_key(SIZING.request, SIZING.flags)
MEMORY = memory_key(SIZING.request, SIZING.flags)
KV_TOKENS = 600_000
SEQUENCES, CONTEXT = 24, 120_000


def a_busy_engine(pod="a", *, efficiency=PRIOR, **changes):
    """An engine whose steps take exactly as long as this efficiency makes them."""
    work = Step(num_sequences=SEQUENCES, context_tokens=CONTEXT)
    step_s = with_efficiency(SIZING.replica.model, efficiency).step(work).total_s
    busy = {
        "kv_tokens": KV_TOKENS,
        "kv_usage_fraction": CONTEXT / KV_TOKENS,
        "computed_prompt_tokens_per_s": 0,
        "steps_per_s": 1 / step_s,
        "token_gaps_per_s": SEQUENCES / step_s,
        "token_gap_s_per_s": SEQUENCES,
    }
    return an_engine(pod, **(busy | changes))


def learned(found, fleet, known, last=None):
    """Return what is known after a tick, and when each key last moved."""
    said = [observation(each, fleet) for each in found]
    return learn_from([each for each in said if each], known, last or {}, fleet)


def known_after(state, *, before=None):
    fleet = a_fleet(state)
    known, _ = learned([assessed(state)], fleet, before or Calibrations())
    return known


class TestSpeed:
    def test_moves_towards_what_the_steps_show(self):
        engines = tuple(a_busy_engine(pod, efficiency=0.7) for pod in "ab")

        known = known_after(a_state(engines=engines))

        assert known.speed[SPEED].bandwidth_efficiency == pytest.approx(PRIOR + 0.4 * (0.7 - PRIOR))
        assert known.speed[SPEED].busy_steps > 1000

    def test_of_several_engines_counts_once(self):
        one = known_after(a_state(engines=(a_busy_engine("a", efficiency=0.7),)))
        two = known_after(
            a_state(
                engines=(a_busy_engine("a", efficiency=0.65), a_busy_engine("b", efficiency=0.75))
            )
        )

        assert two.speed[SPEED].bandwidth_efficiency == pytest.approx(
            one.speed[SPEED].bandwidth_efficiency
        )

    def test_comes_to_the_truth_and_stays(self):
        state = a_state(engines=(a_busy_engine(efficiency=0.6),))
        known = Calibrations()
        for _ in range(60):
            fleet = a_fleet(state, calibrations=known)
            known, _ = learned([assessed(state, fleet=fleet)], fleet, known)

        assert known.speed[SPEED].bandwidth_efficiency == pytest.approx(0.6, rel=1e-3)

    @pytest.mark.parametrize(
        "change",
        [
            {"age_s": 200},
            {"age_s": None},
            {"steps_per_s": 0.1},
            {"kv_tokens": None},
            {"token_gaps_per_s": 0},
            {"steps_per_s": 3.0},  # steps ran for a small part of the window: the edge of a burst
        ],
    )
    def test_is_not_learned_from_an_engine_that_does_not_show_it(self, change):
        state = a_state(engines=(a_busy_engine(efficiency=0.6, **change),))

        assert known_after(state).speed == {}

    def test_is_not_learned_while_a_replica_warms_up(self):
        engines = (a_busy_engine(efficiency=0.6),)

        young = a_state(pods=[a_pod_body("a", ready_for_s=59)], engines=engines)
        warm = a_state(pods=[a_pod_body("a", ready_for_s=61)], engines=engines)

        assert known_after(young).speed == {}
        assert SPEED in known_after(warm).speed

    def test_of_an_impossible_step_leaves_what_is_known(self):
        state = a_state(engines=(a_busy_engine(efficiency=0.1),))

        assert known_after(state).speed[SPEED].bandwidth_efficiency == PRIOR


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
        assert known.memory[memory_key(SIZING.request, flags)].kv_tokens == 9_000

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
        state = a_state(
            self.wide(), live=a_deployment_body(), engines=(a_busy_engine(efficiency=0.6),)
        )

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
        first = a_state(engines=(a_busy_engine(efficiency=0.6),))
        other = a_manifest("other")
        second = a_state(
            other,
            live=a_deployment_body(a_model("other")),
            engines=(a_busy_engine(efficiency=0.6),),
        )
        fleet = a_fleet(first, second)

        both, _ = learned([assessed(first), assessed(second)], fleet, Calibrations())

        assert list(both.speed) == [SPEED]
        one = known_after(first).speed[SPEED]
        assert both.speed[SPEED].bandwidth_efficiency == pytest.approx(one.bandwidth_efficiency)
        assert both.speed[SPEED].busy_steps == pytest.approx(2 * one.busy_steps)

    def test_a_key_moves_once_per_window_however_often_it_is_looked_at(self):
        state = a_state(engines=(a_busy_engine(efficiency=0.7),))
        fleet = a_fleet(state)
        once, last = learned([assessed(state)], fleet, Calibrations())

        again, _ = learned([assessed(state)], fleet, once, last)

        assert again == once


class TestObserved:
    def observed(self, *engines, **changes):
        state = a_state(engines=engines, **changes)
        return observe_engines(state, a_fleet(state), SIZING)

    def test_step_time_and_utilization_are_means_over_busy_engines(self):
        seen = self.observed(a_busy_engine("a"), a_busy_engine("b", steps_per_s=0.1))

        work = Step(num_sequences=SEQUENCES, context_tokens=CONTEXT)
        step = SIZING.replica.model.step(work)
        assert seen.step_s == pytest.approx(step.total_s)
        bandwidth = SIZING.replica.model.speeds.memory_bytes_per_s
        assert seen.mbu == pytest.approx(step.decode_bytes / step.total_s / bandwidth)

    def test_of_an_idle_fleet_are_none(self):
        seen = self.observed(a_busy_engine("a", token_gaps_per_s=0))

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

    def test_cache_of_a_replica_is_that_of_all_its_ranks(self):
        sizing = deepseek("0.33", Parallelism(data=8))
        state = a_state(engines=(a_busy_engine("a", kv_tokens=5000),))

        assert observe_engines(state, a_fleet(state), sizing).kv_tokens == 40_000


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
