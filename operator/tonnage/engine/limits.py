"""What an engine may use, and the requests that it can never serve."""

from dataclasses import dataclass


class LimitsError(ValueError):
    """The limits contradict each other: such an engine would not start."""


class RequestError(ValueError):
    """The request can never be served by this engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """The limits of one engine; where it has data-parallel ranks, of each of them."""

    max_num_seqs: int
    """Sequences that run at once; those still in prefill count too."""
    max_num_batched_tokens: int
    """Tokens that one microbatch of a step computes, decode and prefill together."""
    num_blocks: int
    """KV blocks that sequences can hold (vLLM keeps one more for itself)."""
    block_size: int
    """Tokens per KV block."""
    max_model_len: int
    """Prompt and output tokens of the longest request."""
    num_tables: int = 1
    """Block tables that grow with a sequence: it takes so many blocks for each block of tokens."""
    fixed_blocks: int = 0
    """Beside them, that a sequence holds whatever its length, as its states."""
    window_tables: int = 0
    """Of the block tables, those of a window: they stop to grow."""
    window_blocks: int = 0
    """What each of those holds at most."""
    num_draft_tokens: int = 0
    """Drafted for each decoding sequence in each step, and verified in it."""
    acceptance_rate: float = 0.0
    """Chance that a draft token is right when all before it were."""
    num_ranks: int = 1
    """Data-parallel ranks, which step together; each has a queue and a cache of its own."""
    max_queued_reqs: int = 0
    """Running and waiting on all ranks, above which the engine refuses. 0: never."""
    max_queued_tokens: int = 0
    """Of prompts without a first token, from which on a rank refuses who comes. 0: never."""

    def __post_init__(self) -> None:
        """Refuse what vLLM refuses at start-up."""
        if min(self.max_num_seqs, self.block_size, self.max_model_len, self.num_ranks) < 1:
            raise LimitsError(f"every limit must be at least 1: {self}")
        if not 0 <= self.window_tables <= self.num_tables:
            raise LimitsError(f"{self.window_tables} of {self.num_tables} tables have a window")
        if self.max_num_batched_tokens < self.max_num_seqs * self.tokens_verified:
            raise LimitsError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) is below "
                f"max_num_seqs ({self.max_num_seqs}) x {self.tokens_verified}: not every sequence "
                "could decode"
            )
        if self.num_blocks < self.blocks_for(self.max_model_len):
            raise LimitsError(
                f"one request of max_model_len ({self.max_model_len}) needs "
                f"{self.blocks_for(self.max_model_len)} KV blocks, there are {self.num_blocks}"
            )

    @property
    def tokens_verified(self) -> int:
        """Of a decoding sequence in a step: the draft tokens, and the one after the last."""
        return 1 + self.num_draft_tokens

    def blocks_for(self, num_tokens: int) -> int:
        """Return the KV blocks that a sequence of this length occupies, rounded up."""
        blocks = -(-num_tokens // self.block_size)
        beyond = max(0, blocks - self.window_blocks)
        return self.fixed_blocks + self.num_tables * blocks - self.window_tables * beyond

    def check(self, *, prompt_tokens: int, output_tokens: int, cached_tokens: int = 0) -> None:
        """Say why a request can never be served, if so.

        Raises:
            RequestError: a length is out of range.
        """
        if prompt_tokens < 1 or output_tokens < 1:
            raise RequestError(
                f"{prompt_tokens} prompt and {output_tokens} output tokens; both must be at least 1"
            )
        if not 0 <= cached_tokens < prompt_tokens:
            raise RequestError(
                f"{cached_tokens} cached tokens of {prompt_tokens} in the prompt; at least one "
                "must be computed"
            )
        if prompt_tokens + output_tokens > self.max_model_len:
            raise RequestError(
                f"{prompt_tokens} prompt and {output_tokens} output tokens exceed max_model_len "
                f"({self.max_model_len})"
            )
