"""The flags that a split is given: as many slots as the memory bears, and those that run stay."""

from dataclasses import replace

import pytest

from builders import a_gpu, a_shape, a_sizing_request, an_slo
from tonnage.catalog.engine import default_batched_tokens, find_engine
from tonnage.catalog.gpu import built_in_gpus, find_gpu
from tonnage.catalog.models import built_in_model
from tonnage.explain.report import estimate_status, plan_status
from tonnage.explain.words import explain
from tonnage.sizing.errors import DoesNotFitError
from tonnage.sizing.plan import size, size_with
from tonnage.sizing.request import Flags
from tonnage.sizing.serving.flags import FIRST_GUESS_SEQS
from tonnage.sizing.split import Parallelism
from tonnage.sizing.workload import Slo
from tonnage.units import GB, GIB

REQUEST_BYTES = 8192 * 131_072
"""Of ``a_shape``: one request of the promised length, 1 GiB."""


def flags_that_run(**changes):
    flags = Flags(
        max_num_seqs=FIRST_GUESS_SEQS,
        max_num_batched_tokens=2048,
        gpu_memory_utilization=0.92,
        parallelism=Parallelism(),
    )
    return replace(flags, **changes)


class TestSlots:
    """Logits of a large vocabulary: each slot takes memory that the cache might have."""

    WIDE = a_shape(vocab_size=4_000_000, tied_embeddings=True)
    """46.7 GB of weights, and 4.1 GB for one copy of the logits of 256 slots."""

    def test_are_fewer_where_the_first_guess_does_not_fit(self):
        # 92% of 56 GB leave 4.8 GB beside the weights.
        request = a_sizing_request(
            shape=self.WIDE, gpu=a_gpu(memory_bytes=56 * GB), slo=Slo(), num_gpus=1
        )
        guess = replace(request, flags=flags_that_run())

        sizing = size(request)

        assert size(guess).memory_doubt
        assert 1 <= sizing.flags.max_num_seqs < FIRST_GUESS_SEQS
        assert sizing.budget.kv_pool_bytes > REQUEST_BYTES

    def test_are_as_many_as_the_cache_holds_or_one_more_would_not_fit(self):
        request = a_sizing_request(
            shape=self.WIDE, gpu=a_gpu(memory_bytes=56 * GB), slo=Slo(), num_gpus=1
        )

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
            ("Qwen/Qwen3.5-9B", "L4", 1, "0.33", 8192),
            ("google/gemma-2-9b", "L4", 1, "0.33", 4096),
        ],
    )
    def test_of_models_with_large_vocabularies_on_small_gpus(
        self, model_id, gpu, num_gpus, version, context_tokens
    ):
        request = a_built_in_request(model_id, gpu, version, context_tokens=context_tokens)

        sizing = size_with(request, Parallelism(tensor=num_gpus))

        assert sizing.flags.max_num_seqs < 64
        assert sizing.memory_ceiling_promised >= 1


def a_built_in_request(model_id, gpu, version, **changes):
    shape = built_in_model(model_id)
    return a_sizing_request(
        shape=shape,
        weights=shape.weight_format,
        kv_format=shape.kv_cache_format,
        gpu=find_gpu(gpu, built_in_gpus()),
        engine=find_engine(version),
        slo=Slo(),
        **changes,
    )


class TestFlagsThatRun:
    """An engine that runs has shown that it holds a request, whatever the estimate."""

    SHORT = a_sizing_request(gpu=a_gpu(memory_bytes=18 * GB), slo=an_slo(tpot_s=0.5), num_gpus=1)
    """16.06 GB of weights in 16.56 GB: nothing is left by the estimate."""

    def test_are_not_refused_where_flags_to_be_chosen_are(self):
        with pytest.raises(DoesNotFitError):
            size(self.SHORT)

        sizing = size(replace(self.SHORT, flags=flags_that_run()))

        assert sizing.replica.kv_pool_bytes == REQUEST_BYTES
        assert sizing.memory_ceiling_promised == 1

    def test_say_by_how_much_the_estimate_is_wrong(self):
        sizing = size(replace(self.SHORT, flags=flags_that_run()))

        [reason] = [
            each
            for each in plan_status(sizing).reasons
            if each.code == "MemoryEstimateBelowRunning"
        ]
        assert "one request is taken to fit" in reason.message
        assert "15.4 GiB usable (92% of 16.8 GiB) - 15.0 GiB weights" in reason.message
        assert "one request of 8192 tokens needs 1.0 GiB" in reason.message
        assert reason.message in explain(sizing)[0].lines

    def test_hold_one_request_at_least_in_the_range_too(self):
        status = estimate_status(size(replace(self.SHORT, flags=flags_that_run())))

        assert status.kv_tokens_low == status.kv_tokens == 8192
        assert status.kv_tokens_high >= 8192

    def test_keep_the_estimate_where_it_leaves_more(self):
        sizing = size(a_sizing_request(flags=flags_that_run()))

        assert sizing.replica.kv_pool_bytes == sizing.budget.kv_pool_bytes > 40 * GIB
        assert sizing.memory_doubt is None

    def test_of_a_measured_cache_leave_no_doubt(self):
        sizing = size(replace(self.SHORT, flags=flags_that_run(), measured_kv_tokens=20_000))

        assert sizing.memory_doubt is None
        assert sizing.kv_tokens == pytest.approx(20_000)


@pytest.mark.parametrize(
    ("gpu", "tokens"),
    [("B200", 16_384), ("H100", 8192), ("A100-80GB", 2048), ("GB10", 2048), ("L4", 2048)],
)
def test_tokens_per_step_are_what_the_engine_takes_for_the_class(gpu, tokens):
    assert default_batched_tokens(find_gpu(gpu, built_in_gpus())) == tokens
