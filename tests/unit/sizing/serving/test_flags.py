"""The flags that a split is given: as many slots as the memory bears, and those that run stay."""

from dataclasses import replace

import pytest

from builders import a_gpu, a_shape, a_sizing_request, a_workload, an_slo
from tonnage.catalog.engine import batch_defaults, find_engine
from tonnage.catalog.engine_speed import prior_speed
from tonnage.catalog.gpu import built_in_gpus, find_gpu
from tonnage.catalog.models import built_in_model
from tonnage.explain.report import estimate_status, logged_figures, plan_status
from tonnage.explain.words import explain
from tonnage.sizing.errors import DoesNotFitError
from tonnage.sizing.options import EngineSwitches
from tonnage.sizing.parallelism.draft import rank_of
from tonnage.sizing.plan import size_with
from tonnage.sizing.request import Flags
from tonnage.sizing.search import size
from tonnage.sizing.serving.flags import TIE, FlagSearch, largest_fitting, replica_under, trial_of
from tonnage.sizing.serving.goodput import Length, goodput
from tonnage.sizing.serving.load_line import tpot_ceiling
from tonnage.sizing.split import Parallelism
from tonnage.sizing.workload import Demand, Lengths, Slo
from tonnage.units import GB, GIB

RUNNING_SEQS = 256
ONE_GPU = Parallelism()
REQUEST_BYTES = 8192 * 131_072
"""Of ``a_shape``: one request of the maximum length, 1 GiB."""


def flags_that_run(**changes):
    flags = Flags(
        max_num_seqs=RUNNING_SEQS,
        max_num_batched_tokens=2048,
        gpu_memory_utilization=0.92,
        parallelism=Parallelism(),
    )
    return replace(flags, **changes)


class TestSlots:
    """Logits of a large vocabulary: each slot takes memory that the cache might have."""

    WIDE = a_shape(vocab_size=4_000_000, tied_embeddings=True)
    """46.7 GB of weights, and 4.1 GB for one copy of the logits of 256 slots."""
    ENGINE = find_engine("0.11")
    """Times no kernel on a copy of the table of embeddings."""

    def test_are_fewer_where_many_do_not_fit(self):
        # 92% of 56 GB leave 4.8 GB beside the weights.
        request = a_sizing_request(
            shape=self.WIDE, gpu=a_gpu(memory_bytes=56 * GB), slo=Slo(), num_gpus=1,
            engine=self.ENGINE,
        )  # fmt: skip
        many = replace(request, flags=flags_that_run())

        sizing = size(request)

        assert size(many).memory_doubt
        assert 1 <= sizing.flags.max_num_seqs < RUNNING_SEQS
        assert sizing.budget.kv_pool_bytes > REQUEST_BYTES

    def test_are_as_many_as_the_cache_holds_or_one_more_would_not_fit(self):
        request = a_sizing_request(
            shape=self.WIDE, gpu=a_gpu(memory_bytes=56 * GB), slo=Slo(), num_gpus=1,
            engine=self.ENGINE,
        )  # fmt: skip

        sizing = size(request)

        seqs = sizing.flags.max_num_seqs
        assert seqs <= sizing.memory_ceiling_typical + 1

    def test_are_refused_when_not_even_one_fits(self):
        request = a_sizing_request(shape=self.WIDE, gpu=a_gpu(memory_bytes=50 * GB), num_gpus=1)

        with pytest.raises(DoesNotFitError, match="GiB short before any KV cache"):
            size(request)

    @pytest.mark.parametrize(
        ("model_id", "gpu", "num_gpus", "version", "context_tokens"),
        [
            ("Qwen/Qwen3.5-35B-A3B", "A100-40GB", 2, "0.11", 8192),
            ("Qwen/Qwen3.5-9B", "L4", 1, "0.11", 8192),
            ("google/gemma-2-9b", "L4", 1, "0.33", 2048),
        ],
    )
    def test_of_models_with_large_vocabularies_on_small_gpus(
        self, model_id, gpu, num_gpus, version, context_tokens
    ):
        request = a_built_in_request(model_id, gpu, version, context_tokens=context_tokens)

        sizing = size_with(request, Parallelism(tensor=num_gpus))

        assert sizing.flags.max_num_seqs < 64
        assert sizing.memory_ceiling_longest >= 1


def a_built_in_request(model_id, gpu, version, **changes):
    shape, found = built_in_model(model_id), find_gpu(gpu, built_in_gpus())
    request = a_sizing_request(
        shape=shape,
        weights=shape.weight_format,
        kv_format=shape.kv_cache_format,
        gpu=found,
        engine=find_engine(version),
        slo=Slo(),
        speed=prior_speed(found, shape.weight_format),
    )
    return replace(request, **changes)


def a_completion_request(model_id):
    """Code completion: long prompts, answers of 28 tokens, TTFT 2 s and TPOT 50 ms at p99."""
    workload = a_workload(prompt=Lengths(mean_tokens=2_048, p99_tokens=7_436))
    return a_built_in_request(
        model_id,
        "H100",
        "0.33",
        workload=replace(workload, output_tokens=28),
        slo=an_slo(ttft_s=2, tpot_s=0.05, quantile=0.99),
        num_gpus=1,
    )


def searched(request, split=ONE_GPU):
    return best_of(request, split, lambda: None)


def best_of(request, split, on_search):
    shard = rank_of(request, split)
    search, widest = FlagSearch(request, shard, on_search), largest_fitting(request, shard)
    return search.refine(search.coarse(widest))


def serves(request, flags, split=ONE_GPU):
    """Return what a replica serves under these flags, by runs of medium length."""
    replica = replica_under(request, rank_of(request, split), flags)
    return goodput(trial_of(request, replica), 1.0, length=Length.MEDIUM).requests_per_s


class TestFewSlots:
    """Where a prompt takes as long as many answers: one slot more or less is half the fleet."""

    SHORT = a_built_in_request(
        "meta-llama/Llama-3.1-8B-Instruct",
        "H100",
        "0.33",
        context_tokens=32_768,
        workload=a_workload(prompt=Lengths(mean_tokens=8_000), output_tokens=100),
        slo=an_slo(ttft_s=1, tpot_s=0.020),
        demand=Demand(requests_per_s=4),
        num_gpus=1,
    )
    LONG = replace(
        SHORT,
        context_tokens=131_072,
        workload=a_workload(prompt=Lengths(mean_tokens=100_000), output_tokens=100),
        slo=an_slo(ttft_s=20),
        demand=Demand(requests_per_s=0.2),
    )

    def test_of_prompts_of_8000_are_seven_on_three_replicas_at_most(self):
        sizing = size(self.SHORT)

        assert sizing.flags.max_num_seqs == 7
        assert sizing.replicas <= 3

    def test_of_prompts_of_100_000_take_15_replicas_at_most(self):
        sizing = size(self.LONG)

        assert 1 <= sizing.flags.max_num_seqs <= sizing.memory_ceiling_typical
        assert sizing.replicas <= 15

    def test_serve_within_three_hundredths_of_the_best_of_all(self):
        chosen = searched(self.SHORT).flags

        best = max(serves(self.SHORT, replace(chosen, max_num_seqs=seqs)) for seqs in range(1, 13))

        assert serves(self.SHORT, chosen) >= 0.97 * best


class TestAmongNeighbours:
    """Where a slot less or more is 4 to 20 % of the goodput: experts, bursts, 28 tokens."""

    REQUEST = a_built_in_request(
        "Qwen/Qwen3-30B-A3B",
        "H100",
        "0.33",
        context_tokens=16_384,
        workload=a_workload(prompt=Lengths(mean_tokens=300, p99_tokens=750), output_tokens=28),
        slo=an_slo(ttft_s=2, tpot_s=0.030),
        arrival_scv=4.0,
        num_gpus=1,
    )

    def test_none_serves_a_twentieth_more(self):
        # At the rate that 18 slots keep in a short run 14 have the fewest late, at theirs 16.
        chosen = searched(self.REQUEST).flags
        near = range(chosen.max_num_seqs - 2, chosen.max_num_seqs + 4)

        served = {seqs: serves(self.REQUEST, replace(chosen, max_num_seqs=seqs)) for seqs in near}

        assert served[chosen.max_num_seqs] >= 0.95 * max(served.values())

    def test_more_are_taken_than_tpot_allows_to_decode_where_these_serve_more(self):
        # Answers that are all alike: in the mean some slots are empty, or in prefill.
        alike = a_workload(
            prompt=Lengths(mean_tokens=300), output_tokens=1_500, output_second_moment=1_500**2
        )
        request = a_built_in_request(
            "meta-llama/Llama-3.1-8B-Instruct",
            "H100",
            "0.33",
            workload=alike,
            slo=an_slo(ttft_s=0.5, tpot_s=0.0087),
            num_gpus=1,
        )

        chosen = searched(request)

        ceiling = int(tpot_ceiling(chosen.replica, alike, request.slo))
        few = replace(chosen.flags, max_num_seqs=ceiling)
        assert chosen.flags.max_num_seqs > ceiling
        assert serves(request, chosen.flags) >= 1.03 * serves(request, few)

    def test_short_runs_try_more_slots_than_tpot_allows_to_decode(self):
        # 1.7 decoding keep 30 ms in the mean: with one slot a third is served of what two serve.
        request = a_built_in_request(
            "google/gemma-3-27b-it",
            "L40S",
            "0.33",
            workload=a_workload(prompt=Lengths(mean_tokens=4_000), output_tokens=150),
            slo=an_slo(ttft_s=2, tpot_s=0.030),
        )
        shard = rank_of(request, Parallelism(tensor=8))
        search, widest = FlagSearch(request, shard, lambda: None), largest_fitting(request, shard)

        short = search.coarse(widest)

        assert widest.flags.max_num_seqs == 1
        assert short.flags.max_num_seqs == 2
        found = search.refine(short).goodput.requests_per_s
        assert short.goodput.requests_per_s == pytest.approx(found, rel=0.1)

    @pytest.mark.parametrize(
        ("ties", "start", "most", "slots"),
        [
            (range(34, 200), 100, 100, 40),  # of 100, 90, 81, ... 40, 36, 32 the fewest is 36
            (range(34, 200), 36, 36, 36),  # the memory ceiling
            (range(34, 38), 36, 100, 36),  # 40 serve less
        ],
    )
    def test_one_step_from_the_fewest_is_taken(self, ties, start, most, slots):
        class Known(FlagSearch):
            def _ties(self, best, max_num_seqs):
                return max_num_seqs in ties

        shard = rank_of(self.REQUEST, ONE_GPU)
        widest = largest_fitting(replace(self.REQUEST, max_num_batched_tokens=1024), shard)
        best = replace(widest, flags=replace(widest.flags, max_num_seqs=start))

        assert Known(self.REQUEST, shard, lambda: None)._fewest(best, most) == slots


class TestTheSearch:
    def test_takes_the_smaller_flag_of_those_that_serve_as_much(self):
        # Half of the 32 slots that TPOT allows are never used by answers as short as these.
        request = a_sizing_request(
            workload=a_workload(output_tokens=50), num_gpus=1, max_num_batched_tokens=8192
        )
        widest = largest_fitting(request, rank_of(request, Parallelism()))

        chosen = searched(request)

        assert chosen.flags.max_num_seqs <= 0.6 * widest.flags.max_num_seqs
        assert serves(request, chosen.flags) >= TIE * 0.98 * serves(request, widest.flags)

    def test_never_takes_more_slots_than_the_cache_holds(self):
        for memory in (22, 30, 80):
            request = a_sizing_request(
                gpu=a_gpu(memory_bytes=memory * GB), slo=an_slo(ttft_s=20, tpot_s=0.5), num_gpus=1
            )

            chosen = searched(request)

            held = chosen.replica.sequences_held(request.workload.mean_context_tokens)
            assert 1 <= chosen.flags.max_num_seqs <= max(1, held)

    @pytest.mark.parametrize(
        ("tpot_s", "tokens"),
        [
            (0.5, 8_192),  # the default: 270 ms of prompts
            (0.1, 4_096),
            (0.06, 2_048),
            (0.05, 1_024),
            (0.008, 8_192),  # 512 take 24 ms: no budget keeps it, and none serves more
        ],
    )
    def test_takes_the_largest_token_budget_whose_prompts_keep_tpot(self, tpot_s, tokens):
        request = a_sizing_request(slo=an_slo(ttft_s=2, tpot_s=tpot_s), num_gpus=1)

        assert searched(request).flags.max_num_batched_tokens == tokens

    def test_takes_a_small_token_budget_where_long_steps_cost_slots(self):
        # A whole prompt beside it breaks the TPOT of an answer this short: under the default
        # budget few slots serve most, and requests wait at the door.
        request = a_completion_request("meta-llama/Llama-3.1-8B-Instruct")
        given = replace(
            request, max_num_batched_tokens=batch_defaults(request.gpu).max_num_batched_tokens
        )

        chosen, few = searched(request), searched(given)

        assert chosen.flags.max_num_batched_tokens < few.flags.max_num_batched_tokens
        assert chosen.flags.max_num_seqs > few.flags.max_num_seqs
        assert serves(request, chosen.flags) >= 1.4 * serves(request, few.flags)

    @pytest.mark.parametrize(
        "model_id",
        [
            "Qwen/Qwen3.5-9B",  # prompts are cut at blocks of hundreds of tokens, one in a step
            "google/gemma-4-12b-it",  # an item of 2,496 tokens has to be whole in a step
        ],
    )
    def test_takes_no_smaller_token_budget_where_the_engine_would_not_start(self, model_id):
        request = a_completion_request(model_id)

        tokens = searched(request).flags.max_num_batched_tokens

        assert tokens >= batch_defaults(request.gpu).max_num_batched_tokens

    def test_offline_takes_all_that_fit(self):
        request = a_sizing_request(slo=Slo(), num_gpus=1)

        chosen = searched(request)

        held = chosen.replica.sequences_held(request.workload.mean_context_tokens)
        assert chosen.flags.max_num_seqs == int(held)

    def test_that_is_abandoned_goes_on_with_what_was_found(self):
        request = a_sizing_request(slo=an_slo(ttft_s=1.93, tpot_s=0.047), num_gpus=1)
        left, found = [0], None

        def on_search():
            left[0] -= 1
            if left[0] < 0:
                raise TimeoutError

        attempts = 0
        while found is None:
            attempts += 1
            left[0] = 3
            try:
                found = best_of(request, Parallelism(), on_search)
            except TimeoutError:
                continue

        assert attempts > 2
        assert found == searched(request)


class TestFlagsThatRun:
    """An engine that runs has shown that it holds a request, whatever the estimate."""

    SHORT = a_sizing_request(gpu=a_gpu(memory_bytes=18 * GB), slo=an_slo(tpot_s=0.5), num_gpus=1)
    """16.06 GB of weights in 16.56 GB: nothing is left by the estimate."""

    def test_are_not_refused_where_flags_to_be_chosen_are(self):
        with pytest.raises(DoesNotFitError):
            size(self.SHORT)

        sizing = size(replace(self.SHORT, flags=flags_that_run()))

        assert sizing.replica.kv_pool_bytes == REQUEST_BYTES
        assert sizing.memory_ceiling_longest == 1

    def test_say_by_how_much_the_estimate_is_wrong(self):
        sizing = size(replace(self.SHORT, flags=flags_that_run()))

        [reason] = [
            each
            for each in plan_status(sizing).reasons
            if each.code == "MemoryEstimateBelowRunning"
        ]
        assert "one request is assumed to fit" in reason.message
        assert "15.4 GiB usable (92% of 16.8 GiB) - 15.0 GiB weights" in reason.message
        assert "one request of 8192 tokens needs 1.0 GiB" in reason.message
        assert reason.message in explain(sizing)[0].lines

    def test_hold_one_request_at_least_in_the_range_too(self):
        status = estimate_status(size(replace(self.SHORT, flags=flags_that_run())), None)

        assert status.kv_tokens_low == status.kv_tokens == 8192
        assert status.kv_tokens_high >= 8192

    def test_keep_the_estimate_where_it_leaves_more(self):
        sizing = size(a_sizing_request(flags=flags_that_run()))

        assert sizing.replica.kv_pool_bytes == sizing.budget.kv_pool_bytes > 40 * GIB
        assert sizing.memory_doubt is None

    @pytest.mark.parametrize("told", [1e-300, 1, 8191])
    def test_hold_one_request_whatever_is_told_of_their_cache(self, told):
        sizing = size(replace(self.SHORT, flags=flags_that_run(), measured_kv_tokens=told))

        assert sizing.kv_tokens == 8192

    def test_of_a_measured_cache_leave_no_doubt(self):
        sizing = size(replace(self.SHORT, flags=flags_that_run(), measured_kv_tokens=20_000))

        assert sizing.memory_doubt is None
        assert sizing.kv_tokens == pytest.approx(20_000)


class TestGivenCache:
    """``--kv-cache-memory-bytes`` and ``--num-gpu-blocks-override``: the engine does not profile.

    ``a_shape`` is Llama 3.1 8B: 131,072 bytes of cache a token, 2 MiB a block of 16.
    """

    TEN_GIB = flags_that_run(kv_cache_bytes=10_737_418_240)

    @pytest.mark.parametrize(
        ("given", "tokens"),
        [
            ({"kv_cache_bytes": 10_737_418_240}, 81_920),
            ({"kv_cache_bytes": 10_000_000_000}, 76_288),  # 4,768 whole blocks
            ({"num_gpu_blocks": 5120}, 81_920),
            ({"num_gpu_blocks": 2048, "kv_cache_bytes": 10_737_418_240}, 32_768),
        ],
    )
    def test_is_as_large_as_the_flag_says(self, given, tokens):
        sizing = size(a_sizing_request(flags=flags_that_run(**given)))
        status = estimate_status(sizing, None)

        assert sizing.replica.kv_pool_bytes == sizing.budget.kv_pool_bytes == tokens * 131_072
        assert status.kv_tokens == status.kv_tokens_low == status.kv_tokens_high == tokens
        assert sizing.budget.kv_pool_spread_bytes == 0
        assert logged_figures(sizing).kv_tokens == tokens

    def test_given_in_blocks_has_the_tokens_of_the_block_size(self):
        switches = EngineSwitches(block_tokens=32)
        request = a_sizing_request(flags=flags_that_run(num_gpu_blocks=2560), switches=switches)

        assert size(request).kv_tokens == 81_920

    def test_is_that_of_the_catalogues_llama(self):
        llama = built_in_model("meta-llama/Llama-3.1-8B-Instruct")

        assert size(a_sizing_request(shape=llama, flags=self.TEN_GIB)).kv_tokens == 81_920

    def test_does_not_depend_on_utilization(self):
        low, high = (
            size(a_sizing_request(flags=replace(self.TEN_GIB, gpu_memory_utilization=share)))
            for share in (0.3, 0.95)
        )

        assert low.kv_tokens == high.kv_tokens == 81_920
        assert low.memory_doubt is high.memory_doubt is None

    @pytest.mark.parametrize(
        ("split", "tokens"),
        [
            (Parallelism(tensor=2), 163_840),  # half the heads on each GPU
            (Parallelism(pipeline=2), 163_840),  # half the layers
            (Parallelism(data=2), 163_840),  # a cache of its own on each
        ],
    )
    def test_is_given_for_each_gpu(self, split, tokens):
        flags = replace(self.TEN_GIB, parallelism=split)

        assert size(a_sizing_request(flags=flags)).kv_tokens == tokens

    @pytest.mark.parametrize(
        ("split", "tokens"),
        [
            (Parallelism(tensor=2), 81_920),  # blocks of half the bytes
            (Parallelism(pipeline=2), 81_920),
            (Parallelism(data=2), 163_840),
        ],
    )
    def test_in_blocks_has_as_many_on_each_rank(self, split, tokens):
        flags = flags_that_run(num_gpu_blocks=5120, parallelism=split)

        assert size(a_sizing_request(flags=flags)).kv_tokens == tokens

    @pytest.mark.parametrize(
        ("given", "flag"),
        [
            ({"kv_cache_bytes": 536_870_912}, "--kv-cache-memory-bytes 536870912"),
            ({"num_gpu_blocks": 256}, "--num-gpu-blocks-override 256"),
        ],
    )
    def test_is_refused_where_it_holds_no_request(self, given, flag):
        request = a_sizing_request(flags=flags_that_run(**given))

        with pytest.raises(DoesNotFitError) as refusal:
            size(request)

        assert str(refusal.value).startswith(f"KV cache of 512.0 MiB, given by {flag}, beside ")
        assert "one request of 8192 tokens needs 1.0 GiB of KV cache" in str(refusal.value)

    def test_is_refused_where_no_gpu_of_the_class_holds_it(self):
        request = a_sizing_request(flags=flags_that_run(kv_cache_bytes=107_374_182_400))

        with pytest.raises(DoesNotFitError, match=r"100\.0 GiB, given by .* GiB too much"):
            size(request)

    def test_is_doubted_where_the_rest_leaves_less(self):
        # 70 GiB beside 15 GiB of weights, of 74.5 GiB.
        sizing = size(a_sizing_request(flags=flags_that_run(kv_cache_bytes=75_161_927_680)))

        [reason] = [
            each
            for each in plan_status(sizing).reasons
            if each.code == "MemoryEstimateBelowRunning"
        ]
        assert sizing.kv_tokens == 573_440
        assert "the cache that is given is assumed to fit" in reason.message
        assert "GiB too much" in reason.message

    def test_that_is_measured_is_what_was_measured(self):
        small = flags_that_run(kv_cache_bytes=536_870_912)
        sizing = size(a_sizing_request(flags=small, measured_kv_tokens=20_000))

        assert sizing.kv_tokens == pytest.approx(20_000)
        assert "measured on a running replica" in explain(sizing)[0].answer

    def test_is_said_to_be_given(self):
        sizing = size(a_sizing_request(flags=self.TEN_GIB))
        fit = explain(sizing)[0]

        assert fit.answer.endswith(
            "10.0 GiB per GPU for the KV cache, given: --kv-cache-memory-bytes 10737418240"
        )
        assert fit.lines[0].startswith(
            "KV pool = 10.0 GiB, given by --kv-cache-memory-bytes 10737418240, beside 15.0 GiB "
        )
        assert not any("90% interval" in line for line in fit.lines)


@pytest.mark.parametrize(
    ("gpu", "tokens"),
    [("B200", 16_384), ("H100", 8192), ("A100-80GB", 2048), ("GB10", 2048), ("L4", 2048)],
)
def test_tokens_per_step_are_what_the_engine_takes_for_the_class(gpu, tokens):
    assert batch_defaults(find_gpu(gpu, built_in_gpus())).max_num_batched_tokens == tokens
