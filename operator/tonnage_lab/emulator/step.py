"""What a step of the engine did on one data-parallel rank, kept until the step has lasted."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """The tokens of a prompt, and where they come from."""

    tokens: int
    cached_tokens: int = 0
    is_taken: bool = False
    """From another engine that has read it. vLLM counts all of it so, though the last token is
    computed again (`tests/proof/test_real_engines.py`)."""

    @property
    def taken_tokens(self) -> int:
        return self.tokens if self.is_taken else 0

    @property
    def local_tokens(self) -> int:
        """Those that this engine's own cache holds."""
        return 0 if self.is_taken else self.cached_tokens

    @property
    def computed_tokens(self) -> int:
        return self.tokens - self.taken_tokens - self.local_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Emission:
    """The tokens that one request gets from a step."""

    number: int
    num_tokens: int
    context_tokens: int
    """Of its prompt and its answer, before them."""
    prompt_tokens: int
    """Of the prompt whose prefill ends with the step; 0 for any later token."""
    is_prefill: bool
    """The step computed its prompt, or computed it again, instead of decoding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStep:
    """What one step did. Requests are named by number."""

    started: tuple[int, ...]
    """Scheduled for the first time: their queueing ended when the step began."""
    preempted: tuple[int, ...]
    emissions: tuple[Emission, ...]
    finished: frozenset[int]
    prefill_tokens: int
    """Prompt tokens computed, and output tokens recomputed after a preemption."""
    left_waiting: int
    """Requests that the step's schedule left in the queue."""

    @property
    def decoding(self) -> tuple[Emission, ...]:
        return tuple(each for each in self.emissions if not each.is_prefill)

    @property
    def prompt_tokens(self) -> int:
        """Of the requests whose prefill ended, cached ones included."""
        return sum(each.prompt_tokens for each in self.emissions)

    @property
    def generated_tokens(self) -> int:
        return sum(each.num_tokens for each in self.emissions)

    @property
    def context_tokens(self) -> int:
        """Tokens that decoding sequences attended to, together."""
        return sum(each.context_tokens for each in self.decoding)
