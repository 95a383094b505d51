"""One engine group: the model of its steps, its cache, and the flags that bound its batch."""

from dataclasses import dataclass

from tonnage.catalog.engine import CURRENT_CACHE_RULES, CacheRules
from tonnage.sizing.memory.ceiling import sequences_held
from tonnage.sizing.memory.layout import DEFAULT_BLOCK_TOKENS, CacheLayout, cache_layout
from tonnage.sizing.step_time.model import StepTimeModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One engine group: how fast it steps, and what it has room for."""

    model: StepTimeModel
    kv_pool_bytes: float
    """Per rank."""
    max_batched_tokens: int
    max_num_seqs: int | None = None
    """None: to be chosen."""
    block_tokens: int = DEFAULT_BLOCK_TOKENS
    cache_rules: CacheRules = CURRENT_CACHE_RULES

    def prefill_room(self, num_decoding: float) -> float:
        """Return the tokens per step that decoding leaves one rank for prefill."""
        return max(
            1.0,
            self.max_batched_tokens
            - num_decoding * self.model.tokens_verified / self.model.dp_size,
        )

    @property
    def layout(self) -> CacheLayout:
        return cache_layout(
            self.model.shard.kv,
            block_tokens=self.block_tokens * self.model.shard.parallelism.context,
            rules=self.cache_rules,
        )

    def sequences_held(self, context_tokens: float) -> float:
        """Return how many decoding sequences of this length the cache of all ranks holds."""
        each = self.layout.bytes_of_sequence(context_tokens)
        sequences = sequences_held(pool_bytes=self.kv_pool_bytes, bytes_per_sequence=each)
        return sequences * self.model.dp_size

    def requests_reserved(self, context_tokens: int) -> float:
        """Return how many requests of this length all ranks admit at once, each kept whole.

        What the engine logs as its maximum concurrency: a request that is still in prefill keeps
        more of a window than one that decodes.
        """
        blocks = self.kv_pool_bytes / self.layout.bytes_per_block
        return blocks / self.blocks_reserved(context_tokens) * self.model.dp_size

    def blocks_reserved(self, context_tokens: int) -> int:
        """Return the blocks of one rank that a request of this length may need."""
        layout, pipeline = self.layout, self.model.shard.parallelism.pipeline
        in_flight_tokens = layout.in_flight_tokens(self.max_batched_tokens, pipeline)
        return layout.blocks_reserved(context_tokens, in_flight_tokens=in_flight_tokens)

    def bytes_per_reported_token(self, context_tokens: int) -> float:
        """Return the cache bytes of one rank behind each token, in requests of this length.

        So engines since 0.24 count in the label ``kv_cache_size_tokens``.

        Sources:
            [vllm-source] config/cache.py, v1/core/kv_cache_utils.py get_kv_cache_capacity.
        """
        tokens_per_block = context_tokens / self.blocks_reserved(context_tokens)
        return self.layout.bytes_per_block / tokens_per_block
