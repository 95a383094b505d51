"""What the layers of one kind keep of a sequence on one GPU."""

from dataclasses import dataclass
from fractions import Fraction

from tonnage.catalog.engine import StateCacheKind


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerBlock:
    """A block of one layer, where the model decides its size."""

    tokens: int
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KvShare:
    """The cache of the layers of one kind on one rank of the fullest pipeline stage."""

    bytes_per_token: float = 0.0
    """Of all these layers on the stage, as attention reads them."""
    window_tokens: int | None = None
    is_chunked: bool = False
    flop_per_pair: float = 0.0
    """Attention work of one query token on one cached token: scores and weighted sum."""
    prefill_flop_per_pair: float | None = None
    """The same in prefill, where it differs."""
    state_bytes: float = 0.0
    """Of one sequence, whatever its length: read and written in each step."""
    num_layers: int = 1
    """On all stages."""
    stage_fraction: Fraction = Fraction(1)
    """Of these layers that the stage has."""
    is_latent: bool = False
    state_kind: StateCacheKind | None = None
    block: LayerBlock | None = None
    """None: the engine chooses the size of its blocks."""

    def page_bytes(self, block_tokens: int) -> int:
        """Return the bytes of one layer in a block of so many tokens, or of its state."""
        layers = float(self.num_layers * self.stage_fraction)
        if self.state_bytes:
            return round(self.state_bytes / layers)
        return round(self.bytes_per_token / layers * block_tokens)

    def tokens_held(self, context_tokens: float) -> float:
        """Return how many of a sequence's tokens these layers keep and read."""
        if self.window_tokens is None:
            return context_tokens
        return min(context_tokens, self.window_tokens)

    def prefill_flop(self, context_tokens: float) -> float:
        """Return the attention work of one prompt token that attends to so many."""
        decoding = self.flop_per_pair
        each = self.prefill_flop_per_pair
        return self.tokens_held(context_tokens) * (decoding if each is None else each)

    def read_bytes(self, context_tokens: float) -> float:
        """Return what one decode step moves for a sequence: its cache, and its state twice."""
        return self.bytes_per_token * self.tokens_held(context_tokens) + 2 * self.state_bytes
