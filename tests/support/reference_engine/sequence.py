"""The engine's own notes on one request, and the pool of KV blocks."""

from dataclasses import dataclass

from reference_engine.limits import EngineLimits, Request


@dataclass(slots=True, kw_only=True, eq=False)
class Sequence:
    """How far one request has come. Mutable: it changes in every step."""

    request: Request
    num_emitted: int = 0
    num_computed: int = 0
    """Tokens whose keys and values are in the cache."""
    num_blocks: int = 0
    num_preemptions: int = 0
    num_decode_steps: int = 0
    prefilling: bool = True

    @property
    def num_known(self) -> int:
        """Prompt and output tokens known so far; the last one is not computed yet."""
        return self.request.prompt_tokens + self.num_emitted

    @property
    def num_pending(self) -> int:
        """Tokens to compute before the next one can be emitted; 1 while decoding."""
        return self.num_known - self.num_computed

    @property
    def num_missing(self) -> int:
        """Tokens of the answer that are still to come."""
        return self.request.output_tokens - self.num_emitted


class BlockPool:
    """Counts KV blocks. Identity does not matter, since nothing here shares blocks."""

    def __init__(self, limits: EngineLimits) -> None:
        self._limits = limits
        self.num_free = limits.num_blocks

    def grow(self, sequence: Sequence, num_tokens: int) -> bool:
        """Let a sequence hold ``num_tokens`` tokens; False, and no change, when blocks lack."""
        needed = self._limits.blocks_for(num_tokens) - sequence.num_blocks
        if needed > self.num_free:
            return False
        if needed > 0:
            self.num_free -= needed
            sequence.num_blocks += needed
        return True

    def release(self, sequence: Sequence) -> None:
        """Take all blocks of a sequence back."""
        self.num_free += sequence.num_blocks
        sequence.num_blocks = 0
