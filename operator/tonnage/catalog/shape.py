"""The shape of a model: what decides its bytes and its work, independent of any config format."""

from collections.abc import Iterator
from dataclasses import dataclass


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
    values_are_keys: bool = False
    """There is no value projection: the cache still holds both."""

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


Attention = GroupedAttention | LatentAttention


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


Ffn = DenseFfn | MoeFfn


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGroup:
    """So many layers of one kind."""

    num_layers: int
    attention: Attention
    ffn: Ffn
    vector_parameters: int = 0
    """Norms, biases and the like of one layer: small, and never quantized."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFormat:
    """How the checkpoint stores its weights.

    ``bytes_per_parameter`` holds for the matrices that are quantized, with their scales counted
    in; embedding, head, norms and routers stay at two bytes, and so does every part named in
    ``unquantized``.
    """

    name: str
    """bf16, fp8, int8, int4, mxfp4, nvfp4."""
    bytes_per_parameter: float
    compute: str
    """The precision in which matrices are multiplied: a key of ``Gpu.peak_flop_per_s``."""
    unquantized: frozenset[str] = frozenset()
    """Of ``attention``, ``dense_ffn``, ``experts``, ``shared_experts``."""


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
    kv_cache_format: str = "bf16"
    """What vLLM's ``auto`` means for this checkpoint: bf16 or fp8."""
    digest: str = ""
    """Of the configuration that this was read from: part of every calibration key."""
    vector_parameters: int = 0
    """Of the norms outside the layers."""
    notes: tuple[str, ...] = ()
    """What the configuration has and this shape leaves out."""

    @property
    def num_layers(self) -> int:
        return sum(group.num_layers for group in self.groups)

    @property
    def num_heads(self) -> int:
        return max(group.attention.num_heads for group in self.groups)

    def attentions(self) -> Iterator[tuple[int, Attention]]:
        """Yield (number of layers, attention) for each group."""
        return ((group.num_layers, group.attention) for group in self.groups)
