"""The shape of a model: what decides its bytes and its work, independent of any config format."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import ClassVar, Final, Literal

Effect = Literal["memory", "time", "memory and time", "start"]
"""What is counted too large; start: nothing, but the engine refuses if it is not as assumed."""
Subject = Literal["model", "weights", "KV cache", "checkpoint", "GPU", "vLLM", "flags"]
USUAL_TIMES: Final = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumption:
    """One thing that was read and that no rule knows, and what is planned with instead.

    The bound never takes less memory or time than the truth, so what is planned fits. What has no
    such bound is refused.
    """

    about: Subject
    taken: str
    """What was read, and what is counted for it, with its number and unit: "model_type laguna:
    48 layers, each attends to all tokens"."""
    effect: Effect
    """What the bound makes too large, if anything."""
    replaced_by: str
    """What knows better: a file, a field with a value, or the first Ready pod's own report."""
    times: float = USUAL_TIMES
    """Times the truth that is counted at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredWeights:
    """Bytes in the files of a checkpoint, by the parts that ranks split differently.

    As the engine holds them: numbers of 32 and 64 bits in 16. Of the whole model, scales and zero
    points with the part that they belong to.
    """

    embedding: int = 0
    head: int = 0
    tables: int = 0
    """Further embedding tables, one row of which a token meets."""
    attention: int = 0
    state_attention: int = 0
    """Linear attention and state-space layers."""
    dense_ffn: int = 0
    experts: int = 0
    shared_experts: int = 0
    replicated: int = 0
    """Norms, routers and other small tensors that every rank holds whole."""
    encoders: int = 0
    """Vision and audio encoders and what projects them."""
    draft: int = 0
    """Layers for speculative decoding: loaded only when asked for."""
    skipped: int = 0
    """What the engine never loads: a speech decoder, tables of rotary angles, a tied head."""
    other: int = 0
    """Names that no rule here knows."""
    notes: tuple[str, ...] = ()

    def parts(self) -> Iterator[tuple[str, int]]:
        """Yield the bytes of every part by its name."""
        return ((each.name, getattr(self, each.name)) for each in fields(self)[:-1])

    @property
    def loaded_bytes(self) -> int:
        """Of all parts that are loaded for serving without speculative decoding."""
        return sum(num_bytes for _, num_bytes in self.parts()) - self.draft - self.skipped


OVERLAPPING_RATIO = 4
"""The one compression of DeepSeek V4 whose stretches of tokens overlap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexer:
    """What picks the tokens that a sparse layer attends to, and keeps a key of its own for each.

    Every rank holds it whole: neither its weights nor its keys are split.
    """

    num_heads: int
    head_dim: int
    key_bytes: int
    """That one token adds to the cache of one layer, whatever the format of the cache."""

    @property
    def flop_per_key(self) -> int:
        """Of one query token on one key: a score by every head."""
        return 2 * self.num_heads * self.head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedAttention:
    """Multi-head, grouped-query or multi-query attention, full or over a sliding window."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    value_head_dim: int | None = None
    """None: as ``head_dim``."""
    window_tokens: int | None = None
    """None: every earlier token is kept and read."""
    has_bias: bool = False
    """Query, key and value projections carry a bias vector."""
    has_output_gate: bool = False
    """The query projection is doubled to hold a gate."""
    has_wide_norms: bool = False
    """Queries and keys are normed over all heads together, not each head by itself."""
    values_are_keys: bool = False
    """There is no value projection: the cache still holds both."""
    query_rank: int | None = None
    """Width of the vector that queries are made of, on every rank whole. None: the model's."""
    owns_weights: bool = True
    """False: its matrices are those of another layer, counted outside the layers."""
    is_chunked: bool = False
    """The window is a chunk of fixed place (Llama 4), not one that slides."""
    owns_cache: bool = True
    """False: it reads the cache of an earlier layer and keeps none."""
    indexer: Indexer | None = None
    chosen_tokens: int | None = None
    """That are attended to at most, of all that are kept. None: all of them."""

    @property
    def num_value_dims(self) -> int:
        return self.head_dim if self.value_head_dim is None else self.value_head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention (MLA): one compressed vector and one rotary key per token."""

    num_heads: int
    kv_lora_rank: int
    qk_rope_head_dim: int
    qk_nope_head_dim: int
    value_head_dim: int
    q_lora_rank: int | None
    has_output_gate: bool = False
    chosen_tokens: int | None = None
    """That are attended to at most, chosen by this layer's indexer or an earlier one's."""
    indexer: Indexer | None = None

    @property
    def is_sparse(self) -> bool:
        return self.chosen_tokens is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedAttention:
    """Latent attention over a short window and one entry for every so many tokens (DeepSeek V4)."""

    num_heads: int
    head_dim: int
    qk_rope_head_dim: int
    q_lora_rank: int
    output_groups: int
    output_lora_rank: int
    window_tokens: int
    compress_ratio: int | None
    """Tokens behind the window that share one entry. None: the window is all there is."""
    indexer: Indexer | None = None
    """Its keys are compressed alike."""
    chosen_tokens: int | None = None
    """Behind the entries that are attended to at most. None: all of them."""

    @property
    def overlap(self) -> int:
        """Entries that one token takes part in: short stretches overlap by half."""
        return 2 if self.compress_ratio == OVERLAPPING_RATIO else 1

    @property
    def compressed_widths(self) -> tuple[int, ...]:
        """Of what is compressed: the entries, and the keys of an indexer."""
        if self.compress_ratio is None:
            return ()
        return (self.head_dim, self.indexer.head_dim) if self.indexer else (self.head_dim,)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateAttention:
    """Linear attention or a state-space layer: a state per sequence, nothing per token.

    The state is the tail of a short convolution over keys, queries and values, and one matrix of
    ``key_head_dim`` x ``value_head_dim`` per value head. For Mamba-2 a key head is a group and
    ``key_head_dim`` the size of its state. A convolution alone (LFM2) has no keys: both are 0.
    Mamba-1 has a state of ``key_head_dim`` for each channel, which alone passes the convolution;
    lightning attention (MiniMax) has a matrix per head and no convolution.
    """

    kind: Literal["gated_delta_net", "kimi_delta", "lightning", "mamba1", "mamba2", "short_conv"]
    num_key_heads: int
    num_value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_kernel: int
    state_element_bytes: int
    """Of the matrices: 4 for float32."""
    step_rank: int = 0
    """Mamba-1: width of the vector that the steps are made of."""
    has_full_rank_gate: bool = False
    """Kimi delta: the output gate is one matrix instead of two narrow ones."""
    indexer: ClassVar[None] = None
    chosen_tokens: ClassVar[None] = None
    """No tokens are chosen among: a state has none."""

    @property
    def num_heads(self) -> int:
        return self.num_value_heads

    @property
    def conv_dim(self) -> int:
        """Channels of the convolution."""
        keys = 2 * self.num_key_heads * self.key_head_dim
        if self.kind == "mamba1":
            keys = 0
        return keys + self.num_value_heads * self.value_head_dim


Attention = GroupedAttention | LatentAttention | CompressedAttention | StateAttention


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseFfn:
    """A feed-forward block that every token passes."""

    intermediate_size: int
    num_matrices: int = 3
    """3 with a gate (SwiGLU), 2 without."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeFfn:
    """A mixture of experts: each token passes ``experts_per_token`` of them and the shared ones."""

    num_experts: int
    experts_per_token: int
    expert_intermediate_size: int
    shared_intermediate_size: int = 0
    """Of all shared experts together."""
    num_matrices: int = 3
    expert_vector_parameters: int = 0
    """Biases of one expert."""
    latent_size: int | None = None
    """Experts work on a vector of this width, projected down and up once per layer."""


Ffn = DenseFfn | MoeFfn


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGroup:
    """So many layers of one kind. A layer may lack either half (Nemotron-H)."""

    num_layers: int
    attention: Attention | None
    ffn: Ffn | None
    vector_parameters: int = 0
    """Norms, biases and the like of one layer: small, and never quantized."""
    replicated_parameters: int = 0
    """Of one layer's matrices that every rank holds whole, in 16 bits: hyper-connections and
    other streams beside attention and feed-forward."""


HalfType = Literal["bfloat16", "float16"]
QUANTIZED_PARTS = frozenset(
    {"attention", "state_attention", "dense_ffn", "experts", "shared_experts"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFormat:
    """How the checkpoint stores its weights.

    ``bytes_per_parameter`` holds for the matrices that are quantized, with their scales counted
    in; embedding, head, norms, routers and what narrows the vector for experts stay at two bytes.
    """

    name: str
    """bf16, fp8, int8, int4, mxfp4, mxfp8, nvfp4, float32."""
    bytes_per_parameter: float
    block_size: int | None = None
    """Weights in a row that share a scale: a rank's share of a matrix must be whole blocks."""
    wide_bytes_per_parameter: float = 2.0
    """Of what is not quantized."""
    compute: str
    """The precision in which matrices are multiplied: a key of ``Gpu.peak_flop_per_s``."""
    traffic: float = 1.0
    """Bytes that a step moves for each byte of these weights: kernels may write whole matrices in
    16 bits before they multiply."""
    own: tuple[tuple[str, "WeightFormat"], ...] = ()
    """The formats of parts that have another than this one, those in 16 bits too: of
    ``QUANTIZED_PARTS``, and of the ``head``, which is wide if it is not here."""
    says_unquantized: bool = True
    """False: whoever made the checkpoint left some of these out, or none; nothing says which."""

    def of(self, part: str) -> "WeightFormat":
        """Return the format of one of the quantized parts."""
        return next((stored for name, stored in self.own if name == part), self)

    def with_parts(self, parts: Mapping[str, "WeightFormat"]) -> "WeightFormat":
        """Return this format with these parts in formats of their own."""
        return replace(self, own=tuple(sorted({**dict(self.own), **parts}.items())))

    def part_bytes_per_parameter(self, part: str) -> float:
        """Return the bytes of a parameter of one of these parts; of any other it is wide."""
        stored = self.of(part)
        if stored is self and part not in QUANTIZED_PARTS:
            return self.wide_bytes_per_parameter
        return stored.bytes_per_parameter

    @property
    def unquantized(self) -> frozenset[str]:
        """The parts that are in 16 bits beside others that are not."""
        wide = self.wide_bytes_per_parameter
        return frozenset(part for part, stored in self.own if stored.bytes_per_parameter >= wide)

    @property
    def names(self) -> frozenset[str]:
        """The names of all that it has but of what is in 16 bits beside others."""
        owns = (stored.name for part, stored in self.own if part not in self.unquantized)
        return frozenset({self.name, *owns})

    @property
    def described(self) -> str:
        """Return its name, and those of quantized parts that have another."""
        others: dict[str, list[str]] = {}
        for part, stored in self.own:
            if part not in self.unquantized and stored.name != self.name:
                others.setdefault(stored.name, []).append(part.replace("_", " "))
        named = (f"{' and '.join(parts)} {name}" for name, parts in others.items())
        return ", ".join((self.name, *named))

    @property
    def of_experts(self) -> "WeightFormat":
        """Return the format of routed experts."""
        return self.of("experts")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Everything about a model that sizing needs."""

    name: str
    hidden_size: int
    vocab_size: int
    tied_embeddings: bool
    groups: tuple[LayerGroup, ...]
    weight_format: WeightFormat
    """As the checkpoint has it; ``spec.model.weights`` may ask for another."""
    max_position_tokens: int | None
    """The longest context that the model was made for; None: the config does not say."""
    stretched_position_tokens: int | None = None
    """The same before 0.30, which stretched the length of the training by the factor of YaRN."""
    usual_position_tokens: int | None = None
    """That a server takes by itself: with LongRoPE that of the training. None: the longest."""
    dtype: HalfType = "bfloat16"
    """The 16-bit type of what is not quantized, and of the activations."""
    quant_method: str = ""
    """Of its ``quantization_config``; empty: none."""
    orders_activations: bool = False
    """Its groups of weights are in the order of their activations (``desc_act``)."""
    kv_cache_format: str = "bf16"
    """What vLLM's ``auto`` means for this checkpoint: bf16, fp8 or nvfp4."""
    model_type: str = ""
    """As its configuration calls it."""
    digest: str = ""
    """Of the configuration that this was read from: part of every calibration key."""
    vector_parameters: int = 0
    """Of the norms outside the layers."""
    rotary_elements: int = 0
    """Sines and cosines of all positions: in 16 bits on every rank."""
    encoder_parameters: int = 0
    """Of vision and audio encoders and what projects them, in 16 bits on every rank."""
    encoder_token_bytes: int = 0
    """That an encoder of images holds at its peak on every rank for each token that it makes. 0: no
    encoder, or one that is not known."""
    encoder_split_token_bytes: int = 0
    """The same of what tensor parallelism splits over the ranks: rows within its blocks."""
    encoder_item_tokens: int = 0
    """Tokens of the largest image."""
    num_uncounted_encoders: int = 0
    """Of which the configuration does not say how large they are: ``notes`` names them."""
    table_parameters: int = 0
    """Of further embedding tables, which are split over the ranks: looked up, never read whole."""
    tables_on_host: bool = False
    """Those tables are in the memory of the host: they take none of a GPU."""
    num_draft_layers: int = 0
    """For speculative decoding, in the checkpoint: loaded only when asked for."""
    stored: StoredWeights | None = None
    """From the files of the checkpoint. None: its bytes are counted from the shape."""
    notes: tuple[str, ...] = ()
    """What the configuration has and this shape leaves out."""
    assumptions: tuple[Assumption, ...] = ()
    """What is counted for parts of the configuration that no rule knows."""

    @property
    def num_layers(self) -> int:
        return sum(group.num_layers for group in self.groups)

    @property
    def has_experts(self) -> bool:
        return any(isinstance(group.ffn, MoeFfn) for group in self.groups)

    def has_kind(self, *kinds: type) -> bool:
        """Tell whether some of the layers have attention of one of these kinds."""
        return any(isinstance(attention, kinds) for _, attention in self.attentions())

    def attentions(self) -> Iterator[tuple[int, Attention]]:
        """Yield (number of layers, attention) for each group that has any."""
        return (
            (group.num_layers, group.attention)
            for group in self.groups
            if group.attention is not None
        )
