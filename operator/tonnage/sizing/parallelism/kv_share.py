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
    attended_tokens: float | None = None
    """Of those held that are read and worked on at most. None: all of them."""
    index_bytes_per_token: float = 0.0
    """Of ``bytes_per_token``, what chooses: read for every token held."""
    index_flop_per_pair: float = 0.0
    """Of one query token on the key of each token held."""
    state_bytes: float = 0.0
    """Of one sequence, whatever its length: read and written in each step."""
    num_layers: int = 1
    """On all stages."""
    stage_fraction: Fraction = Fraction(1)
    """Of these layers that the stage has."""
    is_latent: bool = False
    stays_wide: bool = False
    """Skipped where the type of the cache is narrower than 16 bits."""
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
        """Return how many of a sequence's tokens these layers keep."""
        if self.window_tokens is None:
            return context_tokens
        return min(context_tokens, self.window_tokens)

    def tokens_attended(self, context_tokens: float) -> float:
        """Return how many of those a token attends to."""
        stored = self.tokens_held(context_tokens)
        return stored if self.attended_tokens is None else min(stored, self.attended_tokens)

    def decode_flop(self, context_tokens: float) -> float:
        """Return the attention work of one decoded token in a context of so many."""
        return self._flop(context_tokens, self.flop_per_pair)

    def prefill_flop(self, context_tokens: float) -> float:
        """Return the attention work of one prompt token with so many before it."""
        decoding, each = self.flop_per_pair, self.prefill_flop_per_pair
        return self._flop(context_tokens, decoding if each is None else each)

    def _flop(self, context_tokens: float, flop_per_pair: float) -> float:
        chosen = self.tokens_attended(context_tokens) * flop_per_pair
        return chosen + self.tokens_held(context_tokens) * self.index_flop_per_pair

    def read_bytes(self, context_tokens: float) -> float:
        """Return what one decode step moves for a sequence: its cache, and its state twice."""
        attended_bytes = self.bytes_per_token - self.index_bytes_per_token
        return (
            attended_bytes * self.tokens_attended(context_tokens)
            + self.index_bytes_per_token * self.tokens_held(context_tokens)
            + 2 * self.state_bytes
        )
