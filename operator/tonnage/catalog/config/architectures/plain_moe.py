"""Kinds of plain transformer with experts: in every layer, or in all but the first."""

from collections.abc import Mapping
from dataclasses import replace

from tonnage.catalog.config.architectures.plain import BIASED_NORMS, NORM_AND_BIAS, PLAIN
from tonnage.catalog.config.architectures.traits import Architecture
from tonnage.catalog.config.layers import attention, ffn
from tonnage.catalog.config.layers import families as family

_BAILING = Architecture(
    attention=attention.full,
    ffn=family.wide_shared_expert,
    output_bias=False,
    qk_norm="by key",
    names={"attention_bias": "use_qkv_bias", "n_shared_experts": "num_shared_experts"},
    only={"use_bias": False},
    module_names={"attention": "attention"},
)

PLAIN_MOE: Mapping[str, Architecture] = {
    "bailing_moe": _BAILING,
    "bailing_moe_v2": replace(_BAILING, router_bias=True),
    "dbrx": Architecture(
        attention=attention.full,
        ffn=ffn.all_experts,
        names={
            **PLAIN["mpt"].names,
            "intermediate_size": "ffn_config.ffn_hidden_size",
            "num_experts": "ffn_config.moe_num_experts",
            "num_experts_per_tok": "ffn_config.moe_top_k",
        },
    ),
    "deepseek": Architecture(attention=attention.full, ffn=ffn.dense_then_experts),
    "dots1": Architecture(
        attention=family.windows_late,
        ffn=ffn.dense_then_experts,
        qk_norm="head",
        router_bias=True,
        defaults={"max_window_layers": 62, "num_key_value_heads": 32},
    ),
    "ernie4_5_moe": Architecture(
        attention=attention.plain,
        ffn=family.experts_between,
        is_tied=True,
        router_bias=True,
        names={
            "num_experts": "moe_num_experts",
            "num_experts_per_tok": "moe_k",
            "n_shared_experts": "moe_num_shared_experts",
        },
        only={"use_bias": False},
        defaults={"num_key_value_heads": 4},
    ),
    "glm4v_moe_text": replace(PLAIN["glm"], ffn=ffn.dense_then_experts, router_bias=True),
    "granitemoe": replace(PLAIN["granite"], ffn=ffn.all_experts),
    "granitemoeshared": replace(PLAIN["granite"], ffn=ffn.all_experts),
    "hunyuan_v1_moe": replace(
        PLAIN["hunyuan_v1_dense"],
        ffn=family.experts_by_layer,
        names={
            "chosen_by_layer": "moe_topk",
            "widths_by_layer": "moe_intermediate_size",
            "num_shared_by_layer": "num_shared_expert",
        },
    ),
    "olmoe": replace(PLAIN["olmo2"], ffn=ffn.all_experts),
    "phimoe": Architecture(
        attention=attention.plain,
        ffn=ffn.all_experts,
        num_norms=BIASED_NORMS,
        num_outer_norms=NORM_AND_BIAS,
        defaults={"num_key_value_heads": 8},
        outer=family.head_bias_by_key,
    ),
    "qwen2_moe": Architecture(
        attention=family.alternating_if_used,
        ffn=ffn.sparse_steps_and_shared,
        output_bias=False,
        has_shared_gate=True,
        names={"attention_bias": "qkv_bias"},
        defaults={"attention_bias": True, "num_key_value_heads": 16},
    ),
}
