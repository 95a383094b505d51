"""LoRA adapters: what their slots take on a rank, and what they add to a step."""

import pytest

from cli_builders import SCALED, a_deployment, answered, llama, plan
from tonnage.catalog.models import built_in_model
from tonnage.sizing.errors import InvalidAdaptersError
from tonnage.sizing.options import Adapters, check_adapters
from tonnage.sizing.parallelism.draft import with_adapters
from tonnage.sizing.parallelism.shard import AdapterShare, shard_of
from tonnage.sizing.split import Parallelism

LLAMA_8B = built_in_model("meta-llama/Llama-3.1-8B-Instruct")
PEFT_PARAMETERS = 41_943_040
"""That PEFT prints as trainable for Llama 3 8B at rank 16 with adapters on all linear layers."""


def share(shape, *, tensor=1, pipeline=1, number=1, rank=16):
    split = Parallelism(tensor=tensor, pipeline=pipeline)
    bare = shard_of(shape, weights=shape.weight_format, parallelism=split)
    return with_adapters(bare, shape, Adapters(number=number, rank=rank)), bare


def test_a_slot_has_the_parameters_of_an_adapter_in_16_bits():
    adapted, _ = share(LLAMA_8B)

    assert adapted.adapters.each_bytes == 2 * PEFT_PARAMETERS
    # embedding and logits: 16 for each of 128,256 tokens and 4,096 features, twice, 2 bytes each
    assert adapted.adapters.vocabulary_bytes == 2 * 16 * 2 * (128_256 + 4_096)


def test_tensor_parallelism_splits_one_matrix_of_each_pair():
    adapted, _ = share(LLAMA_8B, tensor=2)

    # per layer: A of q, k, v whole and their B halved; A of o halved and its B whole; ...
    inputs = 3 * 4096 + 2048 + 2 * 4096 + 7168
    outputs = (2048 + 512 + 512) + 4096 + 2 * 7168 + 4096
    assert adapted.adapters.each_bytes == 2 * 16 * 32 * (inputs + outputs)


def test_a_pipeline_stage_has_the_slots_of_its_layers_and_one_table():
    adapted, _ = share(LLAMA_8B, pipeline=2)

    assert adapted.adapters.each_bytes == PEFT_PARAMETERS
    assert adapted.adapters.vocabulary_bytes == 2 * 16 * (128_256 + 4_096)


def test_matrices_that_are_one_in_the_model_share_a_narrow_one():
    phi = built_in_model("microsoft/phi-4")  # 40 layers, 5,120 wide, 10 KV heads of 128, 17,920
    adapted, _ = share(phi)

    inputs = 5120 + 5120 + 5120 + 17_920
    outputs = (5120 + 1280 + 1280) + 5120 + 2 * 17_920 + 5120
    assert adapted.adapters.each_bytes == 2 * 16 * 40 * (inputs + outputs)


def test_where_the_vocabulary_may_have_adapters_that_is_a_doubt_and_no_figure():
    qwen2 = built_in_model("Qwen/Qwen2-7B-Instruct")
    adapted, _ = share(qwen2)

    assert adapted.adapters.vocabulary_bytes == 0
    assert adapted.adapters.doubtful_bytes == 2 * 16 * 2 * (152_064 + 3_584)


def test_slots_are_set_aside_times_their_number_and_rank():
    one, _ = share(LLAMA_8B)
    many, _ = share(LLAMA_8B, number=8, rank=64)

    assert many.adapters.resident_bytes == 8 * 4 * one.adapters.resident_bytes


@pytest.mark.parametrize(
    ("num_sequences", "touched"), [(0, 0.0), (1, 1.0), (8, 8 * (1 - (7 / 8) ** 8)), (1e6, 8.0)]
)
def test_sequences_use_the_adapters_that_they_happen_to_choose(num_sequences, touched):
    assert AdapterShare(number=8, each_bytes=1.0).num_used(num_sequences) == pytest.approx(touched)


def test_two_products_more_are_launched_for_each_linear_layer():
    adapted, bare = share(LLAMA_8B)

    assert adapted.num_kernels - bare.num_kernels == 32 * 4 * 2 * 2
    assert adapted.flop_per_token - bare.flop_per_token == 2 * PEFT_PARAMETERS


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("Qwen/Qwen3-30B-A3B", "not known for models of the kind qwen3_moe, only for cohere"),
        ("deepseek-ai/DeepSeek-V3", "not known for models of the kind deepseek_v3"),
        ("google/gemma-3-4b-it", "not known for models of the kind gemma3,"),
    ],
)
def test_adapters_of_a_model_of_which_they_are_not_counted_are_refused(model, expected):
    with pytest.raises(InvalidAdaptersError, match=expected):
        check_adapters(built_in_model(model))


ADAPTED = ("    weights: fp8\n", "    weights: fp8\n    adapters: {number: 16, rank: 64}\n")


def test_a_plan_with_adapters_has_less_cache_and_longer_steps():
    bare, adapted = (answered(text).sizing for text in (llama(), llama(ADAPTED)))

    assert adapted.request.engine_digest != bare.request.engine_digest
    assert adapted.idle.step_s > bare.idle.step_s
    # 16 slots of rank 64 on each of two GPUs, where one more is not read by a request alone
    slots = adapted.shard.adapters.resident_bytes
    assert bare.budget.kv_pool_bytes - adapted.budget.kv_pool_bytes == pytest.approx(
        slots, rel=0.02
    )
    assert " GiB adapters - " in str(adapted.budget)


def test_drafts_beside_adapters_are_refused_as_the_engine_does():
    drafting = (
        '{version: "0.33"}',
        '{version: "0.33", speculative: {method: ngram, tokens: 2, acceptedPercent: 50}}',
    )
    result = plan(llama(ADAPTED, drafting))

    assert result.exit_code == 2
    assert "No (InvalidAdapters): model.adapters: vLLM does not combine LoRA" in result.stdout


def test_the_adapters_of_a_scale_target_are_read_from_its_flags():
    flags = ["--max-num-seqs=48", "--max-num-batched-tokens=8192", "--tensor-parallel-size=2"]
    lora = ["--enable-lora", "--max-loras=4", "--max-lora-rank", "32"]
    with_lora, without = (
        plan(SCALED, a_deployment(args=[*flags, *more])).stdout for more in (lora, [])
    )

    assert " adapters" in with_lora
    assert " adapters" not in without


def test_a_target_whose_adapters_are_not_counted_is_sized_without_them():
    text = SCALED.replace("meta-llama/Llama-3.3-70B-Instruct", "Qwen/Qwen3-30B-A3B")
    flags = ["--max-num-seqs=48", "--max-num-batched-tokens=8192", "--tensor-parallel-size=2"]
    result = plan(text.replace("weights: fp8", "weights: auto"),
                  a_deployment(args=[*flags, "--enable-lora"]))  # fmt: skip

    assert result.exit_code in {0, 2}
    assert "InvalidAdapters" not in result.stdout
    assert "none of it is counted" in " ".join(result.stdout.split())
