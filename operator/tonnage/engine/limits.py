"""What an engine may use, and what is asked of it."""

from dataclasses import dataclass


class LimitsError(ValueError):
    """The limits contradict each other: such an engine would not start."""


class RequestError(ValueError):
    """The request can never be served by this engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """The limits of one engine, that is of one data-parallel rank."""

    max_num_seqs: int
    """Sequences that run at once; those still in prefill count too."""
    max_num_batched_tokens: int
    """Tokens that one step computes, decode and prefill together."""
    num_blocks: int
    """KV blocks that sequences can hold (vLLM keeps one more for itself)."""
    block_size: int
    """Tokens per KV block."""
    max_model_len: int
    """Prompt and output tokens of the longest request."""
    watermark_blocks: int = 0
    """Blocks left free when a sequence is admitted beside others."""
    num_draft_tokens: int = 0
    """Guessed for each decoding sequence in each step, and judged in it."""

    def __post_init__(self) -> None:
        """Refuse what vLLM refuses at start-up."""
        if min(self.max_num_seqs, self.block_size, self.max_model_len) < 1:
            raise LimitsError(f"every limit must be at least 1: {self}")
        if self.max_num_batched_tokens < self.max_num_seqs * self.tokens_judged:
            raise LimitsError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) is below "
                f"max_num_seqs ({self.max_num_seqs}) x {self.tokens_judged}: not every sequence "
                "could decode"
            )
        if self.num_blocks < self.blocks_for(self.max_model_len):
            raise LimitsError(
                f"one request of max_model_len ({self.max_model_len}) needs "
                f"{self.blocks_for(self.max_model_len)} KV blocks, there are {self.num_blocks}"
            )

    @property
    def tokens_judged(self) -> int:
        """Of a decoding sequence in a step: the guesses, and the one behind the last of them."""
        return 1 + self.num_draft_tokens

    def blocks_for(self, num_tokens: int) -> int:
        """Return the KV blocks that a sequence of this length occupies, rounded up."""
        return -(-num_tokens // self.block_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request with its output length, which a real engine learns only at the end."""

    id: str
    prompt_tokens: int
    output_tokens: int
    arrival_s: float = 0.0
    cached_tokens: int = 0
    """Prompt tokens found in the prefix cache: they hold blocks but need no prefill."""

    def check(self, limits: EngineLimits) -> None:
        """Say why the request can never be served, if so.

        Raises:
            RequestError: a length is out of range.
        """
        if self.prompt_tokens < 1 or self.output_tokens < 1:
            raise RequestError(
                f"request {self.id}: {self.prompt_tokens} prompt and {self.output_tokens} output "
                "tokens; both must be at least 1"
            )
        if not 0 <= self.cached_tokens < self.prompt_tokens:
            raise RequestError(
                f"request {self.id}: {self.cached_tokens} cached tokens of "
                f"{self.prompt_tokens} in the prompt; at least one must be computed"
            )
        if self.prompt_tokens + self.output_tokens > limits.max_model_len:
            raise RequestError(
                f"request {self.id}: {self.prompt_tokens} prompt and {self.output_tokens} output "
                f"tokens exceed max_model_len ({limits.max_model_len})"
            )
