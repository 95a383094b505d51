"""One rank's share of a model: the plain numbers from which memory and step time follow."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property

from tonnage.catalog.cache_types import WIDE_CACHE, StoredCache
from tonnage.catalog.engine import CURRENT_CACHE_RULES, CacheRules
from tonnage.catalog.engine_limits import format_of_experts
from tonnage.catalog.parameters import attention_parameters, counted_bytes, ffn_parts
from tonnage.catalog.shape import (
    Attention,
    DenseFfn,
    GroupedAttention,
    LatentAttention,
    LayerGroup,
    ModelShape,
    MoeFfn,
    StateAttention,
    WeightFormat,
)
from tonnage.sizing.parallelism.kernels import EXCHANGES, EXPERTS_LAUNCHES, model_kernels
from tonnage.sizing.parallelism.kv import KvShare, exchange_bytes, kv_shares
from tonnage.sizing.parallelism.rules import VOCAB_ALIGNMENT, has_whole_experts
from tonnage.sizing.split import Parallelism, on_rank
from tonnage.units import round_up

ABSORBED_BYTES = 2
NOT_LOADED = frozenset({"draft", "skipped"})


MXFP4_HIDDEN_ALIGNMENT = 256
MXFP4_INNER_ALIGNMENT = 128
FLOP_PER_PARAMETER = 2


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
            self.other_bytes = sum(each for name, each in loaded if not counted.get(name))
            self._factors = {
                name: each / counted[name] for name, each in loaded if counted.get(name)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertShare:
    """The experts of the layers of one kind on one rank."""

    num_experts: int
    experts_per_token: int
    resident_bytes: float
    flop_per_token: float = 0.0
    """Of one rank's tokens, wherever their experts are."""
    slice_width: float = math.inf
    """Of an expert's inner width, what a rank multiplies by."""
    num_ranks: int = 1
    """Over which whole experts are spread."""
    is_padded: bool = False
    """Its matrices are larger than in the checkpoint: the kernels take certain sizes only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterShare:
    """The slots for LoRA adapters on one rank."""

    number: int
    each_bytes: float
    """Of one slot, beside the layers."""
    vocabulary_bytes: float = 0.0
    """Of one slot, beside the embedding and the logits."""
    doubtful_bytes: float = 0.0
    """The same where it is not known whether the engine allocates it."""

    @property
    def resident_bytes(self) -> float:
        return self.number * (self.each_bytes + self.vocabulary_bytes)

    def num_used(self, num_sequences: float) -> float:
        """Return how many adapters so many sequences use, each of which picks one at random.

        >>> round(AdapterShare(number=8, each_bytes=1.0).num_used(8), 2)
        5.25
        """
        missed: float = (1 - 1 / self.number) ** num_sequences
        return self.number * (1 - missed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """What one rank of one pipeline stage holds, reads and computes.

    A model given only by its totals (as napkin arithmetic does) is a shard too: fill in the
    bytes and leave the rest at its default.
    """

    weights_bytes: float
    """Resident, on the fullest rank."""
    dense_read_bytes: float
    """Read in every step whatever the batch: all but experts and the embedding table."""
    head_bytes: float = 0.0
    """Of these, what turns a hidden state into logits."""
    experts: tuple[ExpertShare, ...] = ()
    kv: tuple[KvShare, ...] = ()
    flop_per_token: float = 0.0
    """Matrix products of one token on this rank: two per active parameter."""
    head_flop_per_token: float = 0.0
    """Those that make logits, which a prompt needs for its last token only."""
    wide_flop_per_token: float = 0.0
    """Those of matrices in 16 bits beside quantized ones, in the layers."""
    context_exchange_bytes: float = 0.0
    """That decode context parallelism moves to and from this rank for one token, in all layers."""
    num_kernels: float = 0.0
    """Launched in every step but for routed experts, in kernels of the smallest kind."""
    num_launches: float = 0.0
    """Kernels of a step without CUDA graphs, whatever their kind: of exchanges and experts too."""
    num_scaled_products: float = 0.0
    """Products of quantized matrices outside the routed experts: each needs its scales."""
    num_cached_heads: float = 0.0
    """KV heads on this rank, of all layers together: attention has work to begin for each."""
    num_split_norms: float = 0.0
    """Layers whose queries and keys are normed over heads that tensor parallelism splits: an
    exchange more."""
    num_layers: int = 0
    num_moe_layers: int = 0
    hidden_size: int = 0
    parallelism: Parallelism = field(default_factory=Parallelism)
    adapters: AdapterShare | None = None
    draft: "Shard | None" = None
    """What one further pass of a draft layer reads and computes. None: nothing drafts."""

    @property
    def expert_flop_per_token(self) -> float:
        """Those of routed experts: the work of one rank's tokens, wherever their experts are."""
        return sum(share.flop_per_token for share in self.experts)


def shard_of(  # noqa: PLR0913  (a model, how it is stored, and how it is split)
    shape: ModelShape,
    *,
    weights: WeightFormat,
    cache: StoredCache = WIDE_CACHE,
    parallelism: Parallelism,
    rules: CacheRules = CURRENT_CACHE_RULES,
    keeps_experts_whole: bool = False,
) -> Shard:
    """Return the share of the fullest rank.

    ``keeps_experts_whole``: ranks share experts out also where each could have a slice of all.

    Counts norms, routers and MLA's down-projections as replicated; the embedding and the head as
    split over the tensor-parallel ranks. A pipeline stage is the largest number of layers and the
    larger of embedding and head.
    """
    fraction = stage_fraction(shape.num_layers, parallelism.pipeline)
    stage = float(fraction)
    is_split = parallelism.tensor > 1
    stored, kernels = StoredFactors(shape), model_kernels(shape, weights, is_split=is_split)
    is_whole = has_whole_experts(shape, weights, parallelism, is_asked=keeps_experts_whole)
    slices = 1 if is_whole else parallelism.tensor
    groups = [
        _GroupShare(group, shape.hidden_size, weights, parallelism, stored, slices)
        for group in shape.groups
    ]
    num_layers = math.ceil(fraction * shape.num_layers)
    num_moe_layers = math.ceil(
        fraction * sum(g.num_layers for g in shape.groups if isinstance(g.ffn, MoeFfn))
    )
    wide_bytes = weights.wide_bytes_per_parameter
    rows = round_up(shape.vocab_size, VOCAB_ALIGNMENT)
    table_bytes = rows * shape.hidden_size * wide_bytes / parallelism.tensor
    head_bytes = table_bytes * stored.factor("embedding")
    if not shape.tied_embeddings:
        narrowing = weights.part_bytes_per_parameter("head") / wide_bytes
        head_bytes = table_bytes * narrowing * stored.factor("head")
    layers_bytes = stage * sum(group.dense_bytes for group in groups)
    experts = tuple(share for group in groups for share in group.experts(stage))
    head_parameters = shape.vocab_size * shape.hidden_size / parallelism.tensor
    active = stage * sum(group.active_parameters for group in groups) + head_parameters
    both_tables = parallelism.pipeline == 1 and not shape.tied_embeddings
    return Shard(
        weights_bytes=layers_bytes
        + sum(share.resident_bytes for share in experts)
        + head_bytes
        + (table_bytes * stored.factor("embedding") if both_tables else 0)
        + beside_layers_parameters(shape, parallelism, stored) * wide_bytes
        + stored.other_bytes
        + stage * absorbed_bytes(shape, weights, rules, parallelism),
        dense_read_bytes=layers_bytes + head_bytes,
        head_bytes=head_bytes,
        experts=experts,
        kv=tuple(
            kv_shares(
                shape,
                cache=cache,
                parallelism=parallelism,
                stage_fraction=fraction,
                rules=rules,
            )
        ),
        context_exchange_bytes=stage * _exchange_bytes(shape, parallelism),
        flop_per_token=FLOP_PER_PARAMETER * active,
        head_flop_per_token=FLOP_PER_PARAMETER * head_parameters,
        wide_flop_per_token=FLOP_PER_PARAMETER
        * stage
        * sum(group.wide_parameters for group in groups),
        num_kernels=stage * kernels.total,
        num_launches=stage * kernels.launches
        + EXPERTS_LAUNCHES * num_moe_layers
        + EXCHANGES * num_layers * is_split,
        num_scaled_products=stage * kernels.scaled_products,
        num_cached_heads=stage * _cached_heads(shape, parallelism.tensor),
        num_split_norms=stage * _wide_norms(shape) if is_split else 0.0,
        num_layers=num_layers,
        num_moe_layers=num_moe_layers,
        hidden_size=shape.hidden_size,
        parallelism=parallelism,
    )


def stage_fraction(num_layers: int, pipeline: int) -> Fraction:
    """Return the share of the layers that the fullest of so many stages has, exactly.

    >>> stage_fraction(29, 2)
    Fraction(15, 29)
    """
    return Fraction(-(-num_layers // pipeline), num_layers)


def _exchange_bytes(shape: ModelShape, parallelism: Parallelism) -> float:
    return sum(
        num_layers * exchange_bytes(on_rank(attention, parallelism.tensor), parallelism.context)
        for num_layers, attention in shape.attentions()
    )


def _cached_heads(shape: ModelShape, tensor: int) -> float:
    return sum(
        num_layers * max(1.0, attention.num_kv_heads / tensor)
        for num_layers, attention in shape.attentions()
        if isinstance(attention, GroupedAttention)
    )


def _wide_norms(shape: ModelShape) -> int:
    return sum(
        num_layers
        for num_layers, attention in shape.attentions()
        if isinstance(attention, GroupedAttention) and attention.has_wide_norms
    )


@dataclass(frozen=True)
class _GroupShare:
    """The layers of one kind on one rank: parameters by how they are stored and split."""

    group: LayerGroup
    hidden: int
    weights: WeightFormat
    parallelism: Parallelism
    stored: StoredFactors
    expert_slices: int

    @cached_property
    def attention(self) -> int:
        if self.group.attention is None:
            return 0
        mine = on_rank(_as_loaded(self.group.attention), self.parallelism.tensor)
        return attention_parameters(mine, hidden_size=self.hidden)

    def _bytes(self, part: str) -> float:
        return self.weights.part_bytes_per_parameter(part) * self.stored.factor(part)

    @property
    def dense_bytes(self) -> float:
        attention = self.attention * self._bytes(_attention_part(self.group))
        vectors = self.group.vector_parameters + self.group.replicated_parameters
        wide = vectors * self._bytes("replicated")
        return self.group.num_layers * (attention + wide + self._ffn_bytes())

    def _ffn_bytes(self) -> float:
        ffn, tensor = self.group.ffn, self.parallelism.tensor
        parts = ffn_parts(ffn, hidden_size=self.hidden) if ffn else ()
        return sum(
            number * self._bytes(part) / (1 if part == "replicated" else tensor)
            for part, number in parts
            if part != "experts"
        )

    def experts(self, stage: float) -> Iterator[ExpertShare]:
        ffn = self.group.ffn
        if isinstance(ffn, MoeFfn):
            ranks = self.parallelism.tensor * self.parallelism.data
            loaded, stored = self._expert_parameters(ffn), self._stored_expert_parameters(ffn)
            each = loaded * self._bytes("experts")
            each += ffn.expert_vector_parameters * self.weights.wide_bytes_per_parameter
            layers = stage * self.group.num_layers
            yield ExpertShare(
                num_experts=ffn.num_experts,
                experts_per_token=ffn.experts_per_token,
                resident_bytes=layers * each * ffn.num_experts / ranks,
                flop_per_token=FLOP_PER_PARAMETER * layers * self._routed_parameters(ffn),
                slice_width=ffn.expert_intermediate_size / self.expert_slices,
                num_ranks=ranks // self.expert_slices,
                is_padded=loaded > stored,
            )

    def _stored_expert_parameters(self, ffn: MoeFfn) -> float:
        return ffn.num_matrices * (ffn.latent_size or self.hidden) * ffn.expert_intermediate_size

    def _expert_parameters(self, ffn: MoeFfn) -> float:
        """Return an expert's matrices; those in mxfp4 are padded to what its kernels take.

        Sources:
            [vllm-source] model_executor/layers/quantization/mxfp4.py;
            [kv-logs] 65.97 GiB of gpt-oss-120b, whose checkpoint has 60.8.
        """
        width, inner = ffn.latent_size or self.hidden, ffn.expert_intermediate_size
        if format_of_experts(self.weights) == "mxfp4":
            tensor = self.parallelism.tensor
            width = round_up(width, MXFP4_HIDDEN_ALIGNMENT)
            inner = tensor * round_up(math.ceil(inner / tensor), MXFP4_INNER_ALIGNMENT)
        return ffn.num_matrices * width * inner

    @property
    def active_parameters(self) -> float:
        """Parameters on this rank that one token is multiplied with."""
        return sum(number for _, number in self._active())

    @property
    def wide_parameters(self) -> float:
        """Those among them that are in 16 bits, but for experts."""
        weights = self.weights
        return sum(
            number
            for part, number in self._active()
            if part != "experts"
            and weights.part_bytes_per_parameter(part) >= weights.wide_bytes_per_parameter
        )

    def _active(self) -> Iterator[tuple[str, float]]:
        """Yield the parameters that one token is multiplied with, by the part they belong to."""
        number, ffn = self.group.num_layers, self.group.ffn
        yield _attention_part(self.group), number * self.attention
        match ffn:
            case DenseFfn():
                inner = ffn.intermediate_size / self.parallelism.tensor
                yield "dense_ffn", number * ffn.num_matrices * self.hidden * inner
            case MoeFfn():
                inner = ffn.shared_intermediate_size / self.parallelism.tensor
                yield "shared_experts", number * ffn.num_matrices * self.hidden * inner
                yield "narrowing", number * 2 * self.hidden * (ffn.latent_size or 0)
                yield "experts", number * self._routed_parameters(ffn)

    def _routed_parameters(self, ffn: MoeFfn) -> float:
        stored = self._stored_expert_parameters(ffn)
        return stored * ffn.experts_per_token / self.parallelism.tensor


def _as_loaded(attention: Attention) -> Attention:
    """Return the attention with values of its own: keys that are values are loaded as both.

    Sources:
        [vllm-source] model_executor/models/gemma4.py: one matrix for queries, keys and values.
    """
    if isinstance(attention, GroupedAttention) and attention.values_are_keys:
        return replace(attention, values_are_keys=False)
    return attention


def _attention_part(group: LayerGroup) -> str:
    return "state_attention" if isinstance(group.attention, StateAttention) else "attention"
