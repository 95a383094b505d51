"""What a step of the engine did on one data-parallel rank, kept until the step has lasted."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """The tokens of a prompt, and where they come from."""

    tokens: int
    local_tokens: int = 0
    """Those that the cache of the engine's GPUs holds."""
    taken_tokens: int = 0
    """Those whose cache comes from elsewhere. vLLM counts all of a prompt so that another engine
    has read, though the last token is computed again (`tests/proof/test_real_engines.py`)."""
    tier: Literal["p2p", "host"] | None = None
    """Where what no GPU of the engine holds is looked up: at another engine, or in the host's
    memory."""

    @property
    def cached_tokens(self) -> int:
        """Those that no step computes."""
        return min(self.local_tokens + self.taken_tokens, self.tokens - 1)

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
    def is_empty(self) -> bool:
        """True where there was nothing to do on the rank, or no room for it."""
        return not (self.emissions or self.prefill_tokens or self.preempted)

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
