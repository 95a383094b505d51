"""What an engine may use, and what is asked of it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockTable:
    """The blocks that the layers of one kind hold of a sequence."""

    block_tokens: int = 16
    most_blocks: int | None = None
    """What a window leaves. None: every token is kept."""
    state_blocks: int = 0
    """Held whatever the length, instead of blocks of tokens."""

    def blocks_for(self, num_tokens: int) -> int:
        if self.state_blocks:
            return self.state_blocks
        blocks = -(-num_tokens // self.block_tokens)
        return blocks if self.most_blocks is None else min(blocks, self.most_blocks)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """The limits of one engine, that is of one data-parallel rank."""

    max_num_seqs: int
    """Sequences that run at once; those still in prefill count too."""
    max_num_batched_tokens: int
    """Tokens that one step computes, decode and prefill together."""
    num_blocks: int
    """KV blocks that sequences can hold."""
    max_model_len: int
    """Prompt and output tokens of the longest request."""
    tables: tuple[BlockTable, ...] = (BlockTable(),)
    watermark_blocks: int = 0
    """Blocks left free when a sequence is admitted beside others."""
    num_draft_tokens: int = 0
    """Drafted for each decoding sequence in each step, and verified in it."""

    def __post_init__(self) -> None:
        """Refuse limits under which a schedule would get stuck.

        Raises:
            ValueError: they contradict each other.
        """
        if self.max_num_batched_tokens < self.max_num_seqs * self.tokens_verified:
            raise ValueError(f"not every sequence could decode: {self}")
        if self.num_blocks < self.blocks_for(self.max_model_len):
            raise ValueError(f"the longest request does not fit: {self}")

    @property
    def tokens_verified(self) -> int:
        """Of a decoding sequence in a step: the drafts, and the one behind the last of them."""
        return 1 + self.num_draft_tokens

    def blocks_for(self, num_tokens: int) -> int:
        """Return the blocks that a sequence of this length holds."""
        return sum(table.blocks_for(num_tokens) for table in self.tables)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request with its output length, which a real engine learns only at the end."""

    number: int
    prompt_tokens: int
    output_tokens: int
    arrival_s: float = 0.0
    cached_tokens: int = 0
    """Prompt tokens found in the prefix cache: they hold blocks but need no prefill."""
