"""What a rank holds beside its layers, and how far files differ from what is counted."""

from collections.abc import Mapping

from tonnage.catalog.engine import CacheRules
from tonnage.catalog.parameters import counted_bytes
from tonnage.catalog.shape import LatentAttention, ModelShape, WeightFormat
from tonnage.sizing.split import Parallelism

ABSORBED_BYTES = 2
NOT_LOADED = frozenset({"draft", "skipped"})


class StoredFactors:
    """How much larger each part of a checkpoint is in its files than by count; 1 without files."""

    def __init__(self, shape: ModelShape) -> None:
        self._factors: Mapping[str, float] = {}
        self.other_bytes = 0
        """Of tensors of no known part, or of one that nothing is counted for: on every rank, to be
        safe."""
        if shape.stored is not None:
            counted = counted_bytes(shape)
            loaded = [each for each in shape.stored.parts() if each[0] not in NOT_LOADED]
            self.other_bytes = sum(part.num_bytes for name, part in loaded if not counted.get(name))
            self._factors = {
                name: part.num_bytes / counted[name] for name, part in loaded if counted.get(name)
            }

    def factor(self, part: str) -> float:
        return self._factors.get(part, 1.0)


def beside_layers_parameters(
    shape: ModelShape, parallelism: Parallelism, stored: StoredFactors
) -> float:
    """Return what stands outside the layers, beside embedding and head.

    Norms and rotary tables are on every rank, further tables are split. Encoders count
    whole on every rank. vLLM splits most of their matrices (0.11 to 0.33, without
    ``mm-encoder-tp-mode``), and profiles the encoder with the largest image or video, whose size no
    config.json tells: what a rank is spared stands for that profile. On one GPU the profile is not
    counted.

    Sources:
        [vllm-source] config/multimodal.py, v1/worker/gpu_model_runner.py;
        [kv-logs] Qwen 3.8 27B on two GPUs, Qwen 3 VL 235B on eight: with whole encoders the pools
        printed are met within 0.1 GiB, with split ones missed by 0.4 to 0.9.
    """
    encoders = shape.encoder_parameters * stored.factor("encoders")
    tables = shape.table_parameters * stored.factor("tables") / parallelism.tensor
    norms = shape.vector_parameters * stored.factor("replicated")
    return encoders + norms + shape.rotary_elements + (0 if shape.tables_on_host else tables)


def absorbed_bytes(
    shape: ModelShape, weights: WeightFormat, rules: CacheRules, parallelism: Parallelism
) -> float:
    """Return what latent attention keeps for decoding beside the checkpoint's own matrices.

    A second copy of the up-projections in 16 bits; in older engines products of two matrices.

    Sources:
        [vllm-source] model_executor/layers/attention/mla_attention.py (after loading).
    """
    each_bytes = weights.bytes_per_parameter if rules.merges_latent_projections else ABSORBED_BYTES
    return each_bytes * sum(
        num_layers
        * (attention.num_heads // parallelism.tensor)
        * _absorbed_per_head(attention, shape.hidden_size, rules)
        for num_layers, attention in shape.attentions()
        if isinstance(attention, LatentAttention)
    )


def _absorbed_per_head(attention: LatentAttention, hidden: int, rules: CacheRules) -> int:
    if not rules.merges_latent_projections:
        return attention.kv_lora_rank * (attention.qk_nope_head_dim + attention.value_head_dim)
    queries = attention.q_lora_rank or hidden
    return attention.kv_lora_rank * (queries + hidden) + queries * attention.qk_rope_head_dim
