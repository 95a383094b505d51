"""Layers that attend to chosen tokens or compressed entries, or read another layer's cache."""

from dataclasses import replace
from typing import Any

import pytest

from builders import a_latent_attention, an_attention
from tonnage.catalog.config.keys.decoder import ModelConfigError, UnknownArchitectureError
from tonnage.catalog.config.read import shape_from_config
from tonnage.catalog.models import built_in_config, built_in_model
from tonnage.catalog.parameters import attention_parameters, num_active_parameters, num_parameters
from tonnage.catalog.shape import (
    Attention,
    CompressedAttention,
    DenseFfn,
    GroupedAttention,
    Indexer,
    LatentAttention,
    ModelShape,
    MoeFfn,
)
from tonnage.units import GB

SPARSE = [
    "deepseek-ai/DeepSeek-V3.2",
    "deepseek-ai/DeepSeek-V4-Flash",
    "deepseek-ai/DeepSeek-V4-Pro",
    "zai-org/GLM-5",
    "zai-org/GLM-5.2",
    "MiniMaxAI/MiniMax-M3",
]

# Parameters of the classes in transformers 5.23, built without weights; and the biases of the
# routers, which these classes do not count as parameters: layers with experts times experts.
EXACT = {
    "deepseek-ai/DeepSeek-V3.2": 671_877_929_216 + 58 * 256,
    "deepseek-ai/DeepSeek-V4-Flash": 284_332_230_231 + 43 * 256,
    "deepseek-ai/DeepSeek-V4-Pro": 1_572_997_179_491 + 61 * 384,
    "zai-org/GLM-5": 743_911_199_232 + 75 * 256,
    "zai-org/GLM-5.2": 743_377_000_704 + 75 * 256,
    "MiniMaxAI/MiniMax-M3": 426_174_565_632 + 57 * 128,
}

# model, billion parameters, cache bytes per token in 16 bits without index keys, bytes of index
# keys. From a table that an independent counter made.
TABLE = [
    ("deepseek-ai/DeepSeek-V3.2", 671.88, 70_272, 8052),
    ("zai-org/GLM-5", 743.91, 89_856, 10_296),
    ("zai-org/GLM-5.2", 743.91, 89_856, 2772),
    ("MiniMaxAI/MiniMax-M3", 425.95, 122_880, 57 * 2 * 128),
]


def read(name: str, **changes: Any) -> ModelShape:
    """Read a built-in model with keys of its text part changed; None takes a key out."""
    config = built_in_config(name)
    block = config.get("text_config", config)
    block |= changes
    for key in [key for key, value in changes.items() if value is None]:
        del block[key]
    return shape_from_config(config, name="m")


def indexers(shape: ModelShape) -> list[Indexer | None]:
    """Return the indexer of each layer."""
    return [
        attention.indexer
        for num_layers, attention in shape.attentions()
        if isinstance(attention, GroupedAttention | LatentAttention | CompressedAttention)
        for _ in range(num_layers)
    ]


def cache_elements(attention: Attention) -> int:
    if isinstance(attention, LatentAttention):
        return attention.kv_lora_rank + attention.qk_rope_head_dim
    assert isinstance(attention, GroupedAttention)
    return attention.num_kv_heads * (attention.head_dim + attention.num_value_dims)


@pytest.mark.parametrize("model", SPARSE)
def test_every_parameter_of_the_reference_class_is_counted(model: str) -> None:
    assert num_parameters(built_in_model(model)) == EXACT[model]


@pytest.mark.parametrize(("model", "total", "cache", "index"), TABLE)
def test_totals_and_cache_agree_with_the_table(
    model: str, total: float, cache: int, index: int
) -> None:
    shape = built_in_model(model)

    assert num_parameters(shape) == pytest.approx(total * GB, rel=0.01)
    assert 2 * sum(n * cache_elements(a) for n, a in shape.attentions()) == cache
    assert sum(indexer.key_bytes for indexer in indexers(shape) if indexer) == index


@pytest.mark.parametrize(
    ("model", "total", "active"),
    [("deepseek-ai/DeepSeek-V4-Flash", 284, 13), ("deepseek-ai/DeepSeek-V4-Pro", 1573, 49)],
)
def test_deepseek_v4_has_the_published_size(model: str, total: int, active: int) -> None:
    shape = built_in_model(model)
    embedding = shape.vocab_size * shape.hidden_size

    assert num_parameters(shape) == pytest.approx(total * GB, rel=0.01)
    assert num_active_parameters(shape) - embedding == pytest.approx(active * GB, rel=0.03)


def test_an_index_key_has_a_byte_per_element_and_a_scale_of_four() -> None:
    indexer = Indexer(num_heads=64, head_dim=128, key_bytes=132)

    assert indexers(built_in_model("deepseek-ai/DeepSeek-V3.2")) == [indexer] * 61


def test_layers_that_share_a_choice_have_no_indexer_and_are_sparse_all_the_same() -> None:
    shape = built_in_model("zai-org/GLM-5.2")

    found = indexers(shape)

    assert (len(found), sum(indexer is not None for indexer in found)) == (78, 21)
    assert all(isinstance(a, LatentAttention) and a.is_sparse for _, a in shape.attentions())


@pytest.mark.parametrize(
    "changes",
    [
        {"indexer_types": None},  # every fourth from the third on, as the other keys say
        {"indexer_types": None, "index_topk_pattern": "FFF" + "SSSF" * 18 + "SSS"},
    ],
)
def test_the_layers_that_share_may_be_given_in_three_ways(changes: dict[str, Any]) -> None:
    assert read("zai-org/GLM-5.2", **changes).groups == built_in_model("zai-org/GLM-5.2").groups


def test_an_indexer_is_whole_on_every_rank() -> None:
    whole = a_latent_attention(num_heads=128)
    indexer = Indexer(num_heads=64, head_dim=128, key_bytes=132)

    added = {
        attention_parameters(replace(a, indexer=indexer), hidden_size=7168)
        - attention_parameters(a, hidden_size=7168)
        for a in (whole, replace(whole, num_heads=16))
    }

    assert added == {1536 * 64 * 128 + 7168 * (128 + 64)}


def test_minimax_m3_is_dense_first_and_then_chooses_blocks() -> None:
    shape = built_in_model("MiniMaxAI/MiniMax-M3")
    attention = GroupedAttention(num_heads=64, num_kv_heads=4, head_dim=128)
    indexer = Indexer(num_heads=4, head_dim=128, key_bytes=256)

    assert [(g.num_layers, g.attention, g.ffn) for g in shape.groups] == [
        (3, attention, DenseFfn(intermediate_size=12_288)),
        (
            57,
            replace(attention, indexer=indexer, chosen_tokens=16 * 128),
            MoeFfn(
                num_experts=128,
                experts_per_token=4,
                expert_intermediate_size=3072,
                shared_intermediate_size=3072,
            ),
        ),
    ]


def test_an_index_of_grouped_attention_has_queries_and_one_key() -> None:
    indexer = Indexer(num_heads=4, head_dim=128, key_bytes=256)

    with_index = attention_parameters(an_attention(indexer=indexer), hidden_size=6144)

    assert with_index - attention_parameters(an_attention(), hidden_size=6144) == 6144 * 5 * 128


@pytest.mark.parametrize(
    ("model", "expected", "bytes_per_token"),
    [
        ("deepseek-ai/DeepSeek-V4-Flash", {None: 2, 4: 21, 128: 20}, 3850),
        ("deepseek-ai/DeepSeek-V4-Pro", {4: 30, 128: 31}, 5511),
    ],
)
def test_compressed_layers_share_entries_and_keep_a_window(
    model: str, expected: dict[int | None, int], bytes_per_token: int
) -> None:
    layers: dict[int | None, int] = {}
    entries = 0.0
    for num_layers, attention in built_in_model(model).attentions():
        assert isinstance(attention, CompressedAttention)
        assert attention.window_tokens == 128
        assert (attention.indexer is not None) == (attention.compress_ratio == 4)
        ratio = attention.compress_ratio
        layers[ratio] = layers.get(ratio, 0) + num_layers
        if ratio:
            index = attention.indexer.key_bytes if attention.indexer else 0
            entries += num_layers * (584 + index) / ratio

    assert layers == expected
    assert int(entries) == bytes_per_token


def test_what_compresses_and_what_mixes_streams_is_whole_on_every_rank() -> None:
    by_ratio = {
        group.attention.compress_ratio: group.replicated_parameters
        for group in built_in_model("deepseek-ai/DeepSeek-V4-Flash").groups
        if isinstance(group.attention, CompressedAttention)
    }
    mixes = 2 * (24 * (4 * 4096 + 1) + 3)

    assert by_ratio == {
        None: mixes,
        4: mixes + 2 * 2 * (512 + 128) * 4096,  # overlapping stretches; an index key beside
        128: mixes + 2 * 512 * 4096,
    }


@pytest.mark.parametrize(
    ("changes", "algorithm", "experts"),
    [
        ({}, None, ("mxfp4", "fp8", 0.5 + 1 / 32)),
        ({"expert_dtype": None}, None, ("mxfp4", "fp8", 0.5 + 1 / 32)),  # the class's default
        ({}, "NVFP4", ("nvfp4", "fp4", 0.5 + 1 / 16)),
        ({"expert_dtype": "fp8"}, None, None),
    ],
)
def test_experts_may_have_a_format_of_their_own(
    changes: dict[str, Any], algorithm: str | None, experts: tuple[str, str, float] | None
) -> None:
    quantization = built_in_config("deepseek-ai/DeepSeek-V4-Flash")["quantization_config"]
    if algorithm:
        changes = changes | {"quantization_config": quantization | {"moe_quant_algo": algorithm}}

    weights = read("deepseek-ai/DeepSeek-V4-Flash", **changes).weight_format

    own = dict(weights.own).get("experts")
    assert weights.name == "fp8"
    assert (own and (own.name, own.compute, own.bytes_per_parameter)) == experts


def test_ratios_beyond_the_layers_are_not_read() -> None:
    ratios = built_in_config("deepseek-ai/DeepSeek-V4-Flash")["compress_ratios"][:43]

    exact, longer = (
        read("deepseek-ai/DeepSeek-V4-Flash", compress_ratios=ratios + more)
        for more in ([], [4, 0, 7])
    )

    assert longer.groups == exact.groups


@pytest.mark.parametrize(
    ("model", "changes", "message"),
    [
        ("deepseek-ai/DeepSeek-V3.2", {"index_n_heads": None}, "index_n_heads is missing"),
        ("deepseek-ai/DeepSeek-V3.2", {"q_lora_rank": None}, "q_lora_rank is missing"),
        ("zai-org/GLM-5.2", {"indexer_types": ["full"]}, "indexer_types has 1 entry"),
        ("zai-org/GLM-5.2", {"indexer_types": ["half"] * 78}, "indexer_types has 'half'"),
        (
            "deepseek-ai/DeepSeek-V4-Flash",
            {"compress_ratios": [4] * 42},
            "compress_ratios has 42 entries, but num_hidden_layers is 43",
        ),
        (
            "deepseek-ai/DeepSeek-V4-Flash",
            {"compress_ratios": [4] * 42 + [8]},
            "compress_ratios[42] = 8 is none of 0, 4, 128",
        ),
        ("MiniMaxAI/MiniMax-M3", {"moe_layer_freq": None}, "moe_layer_freq is missing"),
        (
            "MiniMaxAI/MiniMax-M3",
            {"sparse_attention_config": {"sparse_num_index_heads": 4, "sparse_index_dim": 128}},
            "sparse_attention_config.sparse_attention_freq is missing",
        ),
    ],
)
def test_what_contradicts_itself_is_named(
    model: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelConfigError) as refusal:
        read(model, **changes)

    assert message in str(refusal.value)


@pytest.mark.parametrize(
    ("model", "changes", "message"),
    [
        ("deepseek-ai/DeepSeek-V3", {"index_topk": 2048}, "sparse-attention indexers"),
        ("deepseek-ai/DeepSeek-V3.2", {"compress_ratios": [4] * 61}, "compressed caches"),
        ("deepseek-ai/DeepSeek-V3.2", {"hc_mult": 4}, "parallel residual streams"),
        ("deepseek-ai/DeepSeek-V4-Flash", {"vision_n_layers": 24}, "vision layers"),
        ("deepseek-ai/DeepSeek-V4-Flash", {"expert_dtype": "fp6"}, "experts with expert_dtype"),
        ("google/gemma-3-12b-it", {"num_kv_shared_layers": 10}, "layers that share a cache"),
    ],
)
def test_a_part_that_the_family_does_not_read_is_still_refused(
    model: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UnknownArchitectureError, match=message):
        read(model, **changes)


def test_chunks_of_llama_4_are_told_from_windows() -> None:
    llama = dict(built_in_model("Llama-4-Maverick-17B-128E-Instruct").attentions())
    gemma = built_in_model("google/gemma-3-12b-it").attentions()

    chunked = {a.window_tokens for a in llama.values() if isinstance(a, GroupedAttention)}

    assert chunked == {8192, None}
    assert all(
        a.is_chunked == (a.window_tokens is not None)
        for a in llama.values()
        if isinstance(a, GroupedAttention)
    )
    assert not any(isinstance(a, GroupedAttention) and a.is_chunked for _, a in gemma)


@pytest.mark.parametrize(
    ("model", "layers"),
    [
        ("deepseek-ai/DeepSeek-V3.2", 1),  # num_nextn_predict_layers
        ("Qwen/Qwen3.5-9B", 1),  # mtp_num_hidden_layers
        ("MiniMaxAI/MiniMax-M2.5", 3),  # num_mtp_modules
        ("moonshotai/Kimi-K2.5", 0),
        ("meta-llama/Llama-3.1-8B-Instruct", 0),
    ],
)
def test_layers_for_speculative_decoding_are_counted_beside_the_rest(
    model: str, layers: int
) -> None:
    assert built_in_model(model).num_draft_layers == layers
