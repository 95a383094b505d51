"""Which splits are tried, and the rules by which the engine refuses others."""

from dataclasses import replace

import pytest

from builders import (
    BF16,
    a_latent_attention,
    a_layer_group,
    a_shape,
    a_sizing_request,
    an_attention,
    an_expert_ffn,
)
from tonnage.api.hardware import ParallelSizes
from tonnage.catalog.engine import find_engine
from tonnage.catalog.gpu import CatalogError, built_in_gpus, find_gpu
from tonnage.catalog.models import built_in_model, model_names
from tonnage.catalog.shape import StateAttention
from tonnage.explain.report import attention_name, estimate_status
from tonnage.explain.words import explain
from tonnage.sizing.errors import SizingError
from tonnage.sizing.parallelism.rules import broken_rules, candidates, explain_no_candidate
from tonnage.sizing.request import Flags, kv_cache_format
from tonnage.sizing.search import size
from tonnage.sizing.split import Parallelism
from tonnage.sizing.workload import Slo

STATE = StateAttention(
    kind="kimi_delta",
    num_key_heads=32,
    num_value_heads=32,
    key_head_dim=128,
    value_head_dim=128,
    conv_kernel=4,
    state_element_bytes=4,
)


def rules(attention, **split):
    shape = a_shape(groups=(a_layer_group(attention=attention),))
    return list(broken_rules(shape, BF16, Parallelism(**split)))


def asked(shape, *, has_node_link=False, **changes):
    link = 50e9 if has_node_link else None
    request = a_sizing_request(shape=shape, weights=shape.weight_format, node_link_bytes_per_s=link)
    return replace(request, **changes)


def tried(model_id, num_gpus=8):
    shape = built_in_model(model_id)
    splits = candidates(asked(shape, num_gpus=num_gpus))
    return {str(split) for split in splits}


def with_sizes(model_id="Qwen/Qwen3-235B-A22B", num_gpus=None, *, has_node_link=False, **sizes):
    given = {"num_gpus": num_gpus, "sizes": ParallelSizes(**sizes)}
    found = candidates(asked(built_in_model(model_id), has_node_link=has_node_link, **given))
    return [str(split) for split in found]


R1 = "deepseek-ai/DeepSeek-R1"


RANKS = Flags(
    max_num_seqs=16,
    max_num_batched_tokens=2048,
    gpu_memory_utilization=0.92,
    parallelism=Parallelism(data=16),
)


class TestRanksOverNodes:
    def test_are_tried_where_it_is_known_what_the_link_moves(self):
        assert with_sizes(R1, 16) == ["TP8 x PP2"]
        assert with_sizes(R1, 16, has_node_link=True) == ["TP8 x PP2", "DP16"]

    def test_are_tried_of_what_has_no_cache_that_tensor_ranks_copy_if_asked_for(self):
        assert with_sizes(num_gpus=16, has_node_link=True) == ["TP8 x PP2"]
        assert "TP2 x DP8" in with_sizes(num_gpus=16, has_node_link=True, data=8)
        assert with_sizes(num_gpus=16, data=8) == []

    def test_are_each_within_one(self):
        assert with_sizes(R1, 48, has_node_link=True, data=4) == []
        assert "TP4 x DP4" in with_sizes(R1, 16, has_node_link=True, data=4)

    @pytest.mark.parametrize(
        ("num_gpus", "data", "has_node_link", "why"),
        [
            (16, 16, False, "DP 16 exceeds a node of 8 GPUs: set hardware.nodeLink, what a GPU"),
            (64, 4, True, "DP 4 x 16 GPUs fills no whole number of nodes, each a node of 8 GPUs"),
            (12, 12, True, "DP 12 x 1 GPU fills no whole number of nodes, each a node of 8 GPUs"),
        ],
    )  # fmt: skip
    def test_are_refused_by_name(self, num_gpus, data, has_node_link, why):
        given = {"num_gpus": num_gpus, "sizes": ParallelSizes(data=data)}
        request = asked(built_in_model(R1), has_node_link=has_node_link, **given)

        assert why in explain_no_candidate(request)

    def test_that_run_without_a_known_link_are_sized_and_the_guess_is_named(self):
        shape = built_in_model(R1)
        request = a_sizing_request(shape=shape, weights=shape.weight_format, flags=RANKS)

        guessed, known = (
            "".join(line for each in explain(size(asked)) for line in each.lines)
            for asked in (request, replace(request, node_link_bytes_per_s=50e9))
        )

        assert "link between nodes: 450.00 GB/s a GPU guessed" in guessed
        assert "link between nodes" not in known

    def test_without_experts_exchange_nothing(self):
        shape = a_shape(groups=(a_layer_group(attention=a_latent_attention()),))

        found = candidates(a_sizing_request(shape=shape, num_gpus=16))

        assert "DP16" in {str(split) for split in found}


class TestSizesThatAreGiven:
    def test_of_all_sizes_one_split_is_left(self):
        assert with_sizes(tensor=2, pipeline=2, data=2) == ["TP2 x PP2 x DP2"]

    def test_the_sizes_that_are_absent_are_chosen(self):
        assert with_sizes(tensor=4) == ["TP4", "TP4 x PP2"]
        assert with_sizes(pipeline=2) == ["PP2", "TP2 x PP2", "TP4 x PP2", "TP8 x PP2"]
        assert with_sizes(data=2, pipeline=1) == ["DP2", "TP2 x DP2", "TP4 x DP2"]

    def test_a_replica_has_the_gpus_that_are_asked_for_as_well(self):
        assert with_sizes(num_gpus=8, tensor=2) == ["TP2 x PP4"]
        assert with_sizes(num_gpus=8, data=4, pipeline=1) == ["TP2 x DP4"]

    def test_a_size_that_is_no_power_of_two_is_tried_as_it_is(self):

        assert with_sizes("microsoft/phi-4", tensor=1, pipeline=5) == ["PP5"]

    def test_experts_in_slices_leave_out_what_needs_whole_ones(self):
        # DeepSeek-V3 is also tried as DP8, whose ranks hold whole experts.
        deepseek = "deepseek-ai/DeepSeek-V3"
        free, sliced = with_sizes(deepseek, 8), with_sizes(deepseek, 8, expert=False)

        assert "DP8" in free
        assert sliced == [split for split in free if split != "DP8"]
        assert with_sizes(deepseek, 8, expert=True) == free


class TestDecodeContextParallel:
    def test_shares_latent_attention_out(self):
        assert rules(a_latent_attention(), tensor=8, context=8) == []

    def test_divides_the_tensor_parallel_ranks(self):
        assert rules(a_latent_attention(), tensor=8, context=3) == ["DCP 3 does not divide TP 8"]

    def test_takes_the_copies_of_grouped_heads(self):
        # 8 ranks hold two copies of each of 4 KV heads.
        attention = an_attention(num_kv_heads=4)

        assert rules(attention, tensor=8, context=2) == []
        assert "exceeds the 2 copies" in rules(attention, tensor=8, context=4)[0]

    def test_says_one_copy_of_one_head(self):
        attention = an_attention(num_kv_heads=1)

        assert "makes of 1 KV head" in rules(attention, tensor=8, context=16)[-1]

    def test_divides_the_queries_of_a_kv_head(self):
        # 24 heads in 8 groups of 3; 16 ranks would hold two copies of each.
        attention = an_attention(num_heads=48, num_kv_heads=16)

        assert rules(attention, tensor=32, context=2)[-1] == (
            "DCP 2 does not divide the 3 query heads per KV head"
        )

    @pytest.mark.parametrize(
        ("attention", "words"),
        [
            (a_latent_attention(chosen_tokens=2048), "sparse latent attention"),
            (an_attention(num_kv_heads=1, window_tokens=1024), r"window layers (1024 tokens)"),
            (STATE, "beside the layers with a state (kimi_delta)"),
        ],
    )
    def test_does_not_work_everywhere(self, attention, words):
        assert rules(attention, tensor=8, context=8)[-1].endswith(words)


class TestTried:
    @pytest.mark.parametrize("model_id", ["deepseek-ai/DeepSeek-V3", "moonshotai/Kimi-K2-Instruct"])
    def test_with_a_latent_cache_are_both_ways_to_hold_it_once(self, model_id):
        assert {"TP8", "DP8", "TP8 x DCP8"} <= tried(model_id)

    @pytest.mark.parametrize(
        "model_id",
        [
            "deepseek-ai/DeepSeek-V3.2",
            "deepseek-ai/DeepSeek-V4-Flash",
            "moonshotai/Kimi-K3",
            "cyankiwi/Kimi-Linear-48B-A3B-Instruct-AWQ-4bit",
        ],
    )
    def test_with_one_that_cannot_be_shared_out_is_data_parallel_attention(self, model_id):
        splits = tried(model_id)

        assert {"TP8", "DP8"} <= splits
        assert not any("DCP" in split for split in splits)

    def test_without_a_latent_cache_are_tensor_and_pipeline_alone(self):
        assert tried("meta-llama/Llama-3.3-70B-Instruct") == {
            "TP8",
            "TP4 x PP2",
            "TP2 x PP4",
            "PP8",
        }

    def test_with_states_beside_it_hold_more_on_data_parallel_ranks(self):
        groups = (
            a_layer_group(num_layers=24, attention=STATE, ffn=an_expert_ffn()),
            a_layer_group(num_layers=8, attention=a_latent_attention(), ffn=an_expert_ffn()),
        )
        shape = a_shape(groups=groups)

        splits = candidates(a_sizing_request(shape=shape, num_gpus=4))

        assert Parallelism(data=4) in splits


@pytest.mark.parametrize("model_id", model_names())
def test_every_model_is_planned_and_explained_or_refused(model_id):
    shape = built_in_model(model_id)
    request = a_sizing_request(
        shape=shape,
        gpu=find_gpu("H200", built_in_gpus()),
        engine=find_engine("0.33"),
        weights=shape.weight_format,
        kv_format=kv_cache_format("auto", shape, "0.33"),
        context_tokens=4096,
        num_gpus=8,
        slo=Slo(),
    )
    try:
        sizing = size(request)
    except (CatalogError, SizingError) as refusal:
        pytest.skip(str(refusal))

    assert len(explain(sizing)) == 5
    assert estimate_status(sizing, None).kv_tokens > 0
    assert attention_name(sizing)
