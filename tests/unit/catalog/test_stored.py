"""A checkpoint's tensors by the parts of the model, beside what its configuration gives."""

import math
from dataclasses import replace

import pytest

from builders import a_layer_group, a_shape, an_expert_ffn
from checkpoint_builders import a_checkpoint, llama_tensors
from tonnage.catalog.config.formats.quantization import BF16
from tonnage.catalog.models import built_in_model
from tonnage.catalog.parameters import counted_bytes, num_parameters
from tonnage.catalog.shape import StateAttention
from tonnage.catalog.stored import apply_checkpoint, tensor_parts, weights_by_part

# Names as the publishers of these families wrote them; {L} is a layer, ... the rest of the name.
PARTS = {
    "embedding": """
        model.embed_tokens.weight  model.language_model.embed_tokens.weight
        language_model.model.embed_tokens.weight  tok_embeddings.weight  transformer.wte.weight
        backbone.embeddings.weight  gpt_neox.embed_in.weight  embed.weight
        transformer.word_embeddings.weight  model.embed_tokens.qweight  model.embed_tokens.scales
    """,
    "head": """
        lm_head.weight  language_model.lm_head.weight  output.weight  head.weight
        embed_out.weight  transformer.output_layer.weight  lm_head.weight_scale  lm_head.qweight
    """,
    "tables": """
        model.language_model.embed_tokens_per_layer.weight  layers.1.engram.embed.weight
        model.layers.1.ple.ple_embedding.ngram_embedding.weight
    """,
    "attention": """
        model.layers.0.self_attn.q_proj.weight  model.layers.0.self_attn.qkv_proj.weight
        model.layers.0.self_attn.o_proj.weight_scale_inv  model.layers.0.self_attn.k_proj.bias
        model.layers.0.self_attn.kv_a_proj_with_mqa.qweight  model.layers.0.self_attn.sinks
        model.layers.0.self_attn.indexer.wq_b.weight  model.layers.0.self_attn.k_proj.k_scale
        model.language_model.layers.0.self_attn.v_proj.g_idx  layers.0.attention.wq.weight
        language_model.model.layers.0.self_attn.q_proj.qzeros  layers.0.attn.wq_a.scale
        layers.0.attn.compressor.wkv.weight  backbone.layers.0.mixer.q_proj.weight
        transformer.h.0.self_attention.query_key_value.weight  transformer.h.0.attn.c_attn.weight
        layers.0.attn.attn_sink
    """,
    "state_attention": """
        model.layers.0.linear_attn.in_proj_qkvz.weight  model.layers.0.linear_attn.A_log
        model.layers.0.linear_attn.conv1d.weight  model.layers.0.mamba.in_proj.weight
        backbone.layers.0.mixer.in_proj.weight  backbone.layers.0.mixer.D
        backbone.layers.0.mixer.conv1d.bias  model.layers.0.conv.in_proj.weight
    """,
    "dense_ffn": """
        model.layers.0.mlp.gate_proj.weight  model.layers.0.mlp.gate_up_proj.weight
        model.layers.0.mlp.down_proj.weight_scale  model.layers.0.mlp.up_proj.weight_packed
        layers.0.feed_forward.w1.weight  backbone.layers.0.mixer.down_proj.weight
        transformer.h.0.mlp.dense_h_to_4h.weight  model.decoder.layers.0.fc1.weight
    """,
    "experts": """
        model.layers.0.mlp.experts.17.gate_proj.weight_scale_inv
        model.layers.0.mlp.experts.gate_up_proj_blocks  model.layers.0.mlp.experts.down_proj_scales
        model.layers.0.mlp.experts.gate_up_proj_bias  model.layers.0.mlp.experts.down_proj
        model.layers.0.block_sparse_moe.experts.3.w1.weight  layers.0.ffn.experts.0.w1.scale
        language_model.model.layers.0.feed_forward.experts.gate_up_proj
        backbone.layers.0.mixer.experts.5.up_proj.weight  model.layers.0.moe.gate_proj.weight
        model.layers.0.experts.gate_up_proj  model.layers.0.block_sparse_moe.input_linear.weight
        layers.0.experts.0.w1.weight
    """,
    "shared_experts": """
        model.layers.0.mlp.shared_experts.up_proj.weight  model.layers.0.share_expert.up_proj.weight
        model.layers.0.mlp.shared_expert.down_proj.weight  layers.0.shared_experts.w1.weight
        language_model.model.layers.0.feed_forward.shared_expert.gate_proj.weight
        backbone.layers.0.mixer.shared_experts.up_proj.weight
        model.layers.0.shared_mlp.input_linear.weight  model.layers.0.mlp.shared_mlp.up_proj.weight
    """,
    "replicated": """
        model.norm.weight  transformer.ln_f.weight  backbone.norm_f.weight  norm.weight
        model.layers.0.input_layernorm.weight  model.layers.0.self_attn.q_norm.weight
        model.layers.0.linear_attn.norm.weight  transformer.h.0.ln_1.bias  layers.0.ffn_norm.weight
        model.layers.0.mlp.gate.weight  model.layers.0.mlp.gate.e_score_correction_bias
        model.layers.0.mlp.router.bias  model.layers.0.mlp.shared_expert_gate.weight
        model.layers.0.block_sparse_moe.e_score_correction_bias  model.layers.0.router.proj.weight
        backbone.layers.0.mixer.gate.weight  backbone.layers.0.mixer.fc1_latent_proj.weight
        layers.0.gate.weight  layers.0.ffn.gate.tid2eid  layers.0.hc_attn_fn  hc_head_base
        model.layers.0.layer_scalar  model.layers.0.altup.modality_router.weight
        model.per_layer_model_projection.weight  model.layers.0.moe.router_bias
    """,
    "encoders": """
        visual.blocks.0.attn.qkv.weight  model.visual.merger.mlp.0.weight
        vision_tower.vision_model.encoder.layers.40.mlp.fc1.weight
        model.vision_tower.transformer.layers.0.attention.q_proj.weight
        multi_modal_projector.linear_1.weight  mm_projector.proj.0.weight  mlp1.1.weight
        vision_model.encoder.layers.0.attn.qkv.weight  model.audio_tower.conv1.weight
        thinker.audio_tower.layers.40.self_attn.q_proj.weight  thinker.visual.patch_embed.weight
        model.embed_vision.embedding_projection.weight  model.image_newline
        vision_language_adapter.w_in.weight  vision_encoder.layers.0.feed_forward.w1.weight
    """,
    "draft": """
        model.layers.4.self_attn.q_proj.weight  model.layers.4.shared_head.head.weight
        model.layers.4.embed_tokens.weight  model.layers.5.mlp.experts.0.up_proj.weight
        mtp.layers.0.mlp.gate.weight  mtp.fc.weight  mtp.0.e_proj.weight
        model.mtp_layers.0.self_attn.q_proj.weight  model.language_model.layers.4.eh_proj.weight
    """,
    "skipped": """
        talker.model.layers.0.self_attn.q_proj.weight  token2wav.code2wav_dit_model.proj.weight
        model.layers.0.self_attn.rotary_emb.inv_freq
    """,
    "other": """
        score.weight  model.layers.0.secret.weight  model.layers.weight  weight
        model.layers.x.self_attn.q_proj.weight  model.layers.999999.mlp.up_proj.weight
    """,
}
NAMES = [(name, part) for part, names in PARTS.items() for name in names.split()]


@pytest.mark.parametrize(("name", "part"), NAMES, ids=[name for name, _ in NAMES])
def test_a_name_tells_the_part_of_a_model_of_four_layers(name, part):
    assert tensor_parts([name], num_layers=4)[name].part == part


def test_attention_with_a_decay_is_linear_and_its_neighbour_is_not():
    names = ["model.layers.0.self_attn.A_log", "model.layers.0.self_attn.q_proj.weight"]
    other = "model.layers.1.self_attn.q_proj.weight"

    found = tensor_parts([*names, other], num_layers=4)

    assert [found[name].part for name in names] == ["state_attention", "state_attention"]
    assert found[other].part == "attention"


def test_a_dense_block_beside_experts_is_shared_and_one_in_another_layer_is_not():
    names = ["model.layers.1.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight"]

    found = tensor_parts([*names, "model.layers.1.experts.up_proj"], num_layers=4)

    assert [found[name].part for name in names] == ["shared_experts", "dense_ffn"]


def test_llama_8b_has_the_bytes_that_its_index_claims():
    weights = weights_by_part(a_checkpoint(llama_tensors()), num_layers=32)

    assert weights.loaded_bytes == 16_060_522_496  # total_size in the index on the hub
    assert weights.embedding == 2 * 128_256 * 4096
    assert weights.attention == 2 * 32 * 2 * 4096 * (4096 + 1024)
    assert weights.replicated == 2 * 65 * 4096
    assert weights.notes == ()


def gpt_oss_tensors(*, num_layers=24, num_experts=32, hidden=2880):
    tensors = {
        "model.embed_tokens.weight": ("BF16", (201_088, hidden)),
        "lm_head.weight": ("BF16", (201_088, hidden)),
        "model.norm.weight": ("BF16", (hidden,)),
    }
    for layer in range(num_layers):
        block = f"model.layers.{layer}"
        for name, rows, columns in (
            ("q", 4096, hidden),
            ("k", 512, hidden),
            ("v", 512, hidden),
            ("o", hidden, 4096),
        ):
            tensors[f"{block}.self_attn.{name}_proj.weight"] = ("BF16", (rows, columns))
            tensors[f"{block}.self_attn.{name}_proj.bias"] = ("BF16", (rows,))
        tensors |= {
            f"{block}.self_attn.sinks": ("BF16", (64,)),
            f"{block}.mlp.router.weight": ("BF16", (num_experts, hidden)),
            f"{block}.mlp.router.bias": ("BF16", (num_experts,)),
            f"{block}.input_layernorm.weight": ("BF16", (hidden,)),
            f"{block}.post_attention_layernorm.weight": ("BF16", (hidden,)),
        }
        for name, rows in (("gate_up_proj", 2 * hidden), ("down_proj", hidden)):
            experts = f"{block}.mlp.experts.{name}"
            tensors[f"{experts}_blocks"] = ("U8", (num_experts, rows, 90, 16))
            tensors[f"{experts}_scales"] = ("U8", (num_experts, rows, 90))
            tensors[f"{experts}_bias"] = ("BF16", (num_experts, rows))
    return tensors


def test_gpt_oss_20b_has_the_bytes_that_its_index_claims():
    weights = weights_by_part(a_checkpoint(gpt_oss_tensors()), num_layers=24)

    # Blocks of 16 bytes and a scale hold 32 numbers; a bias of two bytes for each row.
    rows = 24 * 32 * 3 * 2880
    assert weights.loaded_bytes == 13_761_264_768  # total_size in the index on the hub
    assert weights.experts == rows * (90 * 17 + 2)


def test_draft_layers_and_what_is_skipped_are_stored_but_not_loaded():
    tensors = {
        "model.layers.0.mlp.up_proj.weight": ("BF16", (8, 8)),
        "model.layers.1.mlp.up_proj.weight": ("BF16", (8, 4)),
        "talker.model.layers.0.mlp.up_proj.weight": ("BF16", (8, 2)),
    }
    weights = weights_by_part(a_checkpoint(tensors), num_layers=1)

    assert weights.loaded_bytes == 128
    assert weights.draft == 64
    assert weights.skipped == 32


def test_numbers_of_32_bits_are_loaded_in_16_but_scales_and_norms_stay():
    tensors = {
        "model.layers.0.mlp.up_proj.weight": ("F32", (8, 8)),
        "model.layers.0.mlp.experts.gate_up_proj": ("F32", (2, 4, 4)),
        "model.layers.0.self_attn.o_proj.weight": ("F8_E4M3", (8, 8)),
        "model.layers.0.self_attn.o_proj.weight_scale_inv": ("F32", (1, 1)),
        "model.layers.0.input_layernorm.weight": ("F32", (8,)),
        "model.layers.0.self_attn.k_proj.qweight": ("I32", (2, 2)),
    }
    weights = weights_by_part(a_checkpoint(tensors), num_layers=1)

    assert weights.shared_experts == 64 * 2
    assert weights.experts == 32 * 2
    assert weights.attention == 64 + 4 + 16
    assert weights.replicated == 32
    assert weights.notes == ("numbers of 32 and 64 bits are loaded in 16: 192 B less than the "
                             "files have",)  # fmt: skip


def test_names_that_no_rule_knows_are_counted_and_listed():
    names = [f"secret.{number}" for number in range(7)] + ["a\x1b[31m" + "b" * 200]
    weights = weights_by_part(a_checkpoint(dict.fromkeys(names, ("U8", (3,)))), num_layers=1)

    assert weights.other == 24
    (note,) = weights.notes
    assert note.endswith("'secret.0', 'secret.1', 'secret.2', 'secret.3' and 3 more")
    assert r"'a\x1b[31m" in note
    assert "\x1b" not in note
    assert "b" * 81 not in note


def test_every_tensor_belongs_to_one_part():
    tensors = {name: ("U8", (1,)) for name, _ in NAMES}
    weights = weights_by_part(a_checkpoint(tensors), num_layers=4)

    assert sum(num_bytes for _, num_bytes in weights.parts()) == len(NAMES)


def test_a_shape_takes_the_weights_of_its_files_and_says_that_they_agree():
    shape = a_shape()  # the dimensions of Llama 3.1 8B, without its norms
    applied = apply_checkpoint(shape, weights_by_part(a_checkpoint(llama_tensors()), num_layers=32))

    assert applied.stored.loaded_bytes == 16_060_522_496
    assert applied.notes == ("weights agree: 15.0 GiB in the files, 15.0 GiB by config.json",)
    assert replace(applied, stored=None, notes=()) == shape


@pytest.mark.parametrize(("ffn", "word"), [(14336, "agree"), (14700, "agree"), (14900, "differ")])
def test_two_percent_apart_is_the_same(ffn, word):
    # 364 columns more are 1.8 % of the bytes, 564 are 2.8 %.
    weights = weights_by_part(a_checkpoint(llama_tensors(ffn=ffn)), num_layers=32)

    (note,) = apply_checkpoint(a_shape(), weights).notes
    assert note.startswith(f"weights {word}: ")


def test_weights_that_differ_are_said_part_by_part():
    tensors = llama_tensors(dtype="F8_E4M3")
    tensors["visual.patch_embed.proj.weight"] = ("BF16", (1024, 1024, 1024))
    applied = apply_checkpoint(a_shape(), weights_by_part(a_checkpoint(tensors), num_layers=32))

    (note,) = applied.notes
    assert note == (
        "weights differ: 9.5 GiB in the files, 15.0 GiB by config.json: "
        "embedding 501.0 MiB and 1002.0 MiB; head 501.0 MiB and 1002.0 MiB; "
        "attention 1.2 GiB and 2.5 GiB; dense_ffn 5.2 GiB and 10.5 GiB; "
        "replicated 260.0 KiB and 0 B; encoders 2.0 GiB and 0 B"
    )


def test_a_tied_head_in_the_files_is_not_loaded():
    shape = a_shape(tied_embeddings=True)
    applied = apply_checkpoint(shape, weights_by_part(a_checkpoint(llama_tensors()), num_layers=32))

    assert applied.stored.head == 0
    assert applied.stored.skipped == 2 * 128_256 * 4096
    assert applied.stored.loaded_bytes == 16_060_522_496 - 2 * 128_256 * 4096
    assert applied.notes[0] == "the files have a head of 1002.0 MiB that is tied: not loaded"


def test_a_head_that_the_files_lack_is_said():
    tensors = llama_tensors()
    del tensors["lm_head.weight"]
    weights = weights_by_part(a_checkpoint(tensors), num_layers=32)

    missing = "config.json has a head of its own, the files have none"
    assert apply_checkpoint(a_shape(), weights).notes[0] == missing
    assert missing not in apply_checkpoint(a_shape(tied_embeddings=True), weights).notes


def test_counted_parts_are_those_of_the_formulas():
    mamba = StateAttention(
        kind="mamba2",
        num_key_heads=8,
        num_value_heads=64,
        key_head_dim=128,
        value_head_dim=64,
        conv_kernel=4,
        state_element_bytes=4,
    )
    shape = a_shape(
        groups=(
            a_layer_group(num_layers=2, vector_parameters=10),
            a_layer_group(
                num_layers=3, attention=None, ffn=an_expert_ffn(shared_intermediate_size=512)
            ),
            a_layer_group(num_layers=1, attention=mamba, ffn=None),
        ),
        weight_format=replace(
            a_shape().weight_format, bytes_per_parameter=0.5, own=(("attention", BF16),)
        ),
        vector_parameters=7,
    )
    counted = counted_bytes(shape)

    assert counted["embedding"] == counted["head"] == 2 * 128_256 * 4096
    assert counted["attention"] == 2 * 2 * 4096 * (32 + 8 + 8 + 32) * 128
    assert counted["dense_ffn"] == 2 * 0.5 * 3 * 4096 * 14336
    assert counted["experts"] == 3 * 0.5 * 128 * 3 * 4096 * 1536
    assert counted["shared_experts"] == 3 * 0.5 * 3 * 4096 * 512
    assert counted["replicated"] == 2 * (2 * 10 + 7 + 3 * 4096 * 128)
    # In: gate of 4096, channels of 4096 + 2 * 1024, a step per head. Out: 4096. Convolution.
    assert counted["state_attention"] == 0.5 * (4096 * (4096 + 6144 + 64 + 4096) + 4 * 6144)


def test_experts_may_be_counted_in_a_format_of_their_own():
    plain = a_shape().weight_format
    weights = plain.with_parts({"experts": replace(plain, bytes_per_parameter=0.5)})
    shape = a_shape(groups=(a_layer_group(ffn=an_expert_ffn()),), weight_format=weights)

    assert counted_bytes(shape)["experts"] == 32 * 0.5 * 128 * 3 * 4096 * 1536
    assert counted_bytes(shape)["attention"] == 32 * 2 * 4096 * (32 + 8 + 8 + 32) * 128


@pytest.mark.parametrize(
    "name", ["meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen3-30B-A3B", "google/gemma-2-9b"]
)
def test_counted_bytes_in_16_bits_are_two_per_parameter(name):
    shape = built_in_model(name)

    assert math.isclose(sum(counted_bytes(shape).values()), 2 * num_parameters(shape))
