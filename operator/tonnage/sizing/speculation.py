"""Speculative decoding: cheap draft tokens, which one step of the model verifies together."""

from dataclasses import dataclass
from typing import Literal

Method = Literal["mtp", "ngram"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """How many draft tokens each step verifies, and how many of them are accepted."""

    method: Method
    """mtp: draft layers of the checkpoint; ngram: a search in the text so far."""
    num_draft_tokens: int
    """For each sequence in each step."""
    acceptance_rate: float
    """Chance that a draft token is accepted when all before it were."""

    @property
    def tokens_per_step(self) -> float:
        return tokens_per_step(
            num_draft_tokens=self.num_draft_tokens, acceptance_rate=self.acceptance_rate
        )

    @property
    def scv(self) -> float:
        """Squared coefficient of variation of the tokens of a step."""
        return self._second_moment / self.tokens_per_step**2 - 1

    @property
    def _second_moment(self) -> float:
        rate, drafted = self.acceptance_rate, self.num_draft_tokens
        return sum((2 * position + 1) * rate**position for position in range(drafted + 1))

    def steps(self, tokens: float) -> float:
        """Return the steps that so many tokens take in the mean; the last gives more than is asked.

        A renewal process overshoots by ``(E[g^2] / E[g] - 1) / 2`` tokens of ``g`` a step.
        """
        beyond = (self._second_moment / self.tokens_per_step - 1) / 2
        return max(1.0, (tokens + beyond) / self.tokens_per_step)

    @property
    def tokens_verified(self) -> int:
        """Of each sequence in a step: the draft tokens, and the one behind the last of them."""
        return 1 + self.num_draft_tokens

    def __str__(self) -> str:
        return (
            f"{self.method}, {self.num_draft_tokens} drafted, {self.acceptance_rate:.0%} accepted: "
            f"{self.tokens_per_step:.2f} tokens per step"
        )


def tokens_per_step(*, num_draft_tokens: int, acceptance_rate: float) -> float:
    """Return the tokens that a sequence gets from a step in the mean.

    The draft tokens up to the first that is rejected, and one of the model itself::

        1 + a + a^2 + ... + a^k = (1 - a^(k + 1)) / (1 - a)

    ``acceptance_rate``: of a draft token when all before it were accepted, the same for each. What
    an engine counts as accepted over drafted is ``(tokens_per_step - 1) / k``, which is less.

    Sources:
        [leviathan2022] equation 1.

    >>> round(tokens_per_step(num_draft_tokens=3, acceptance_rate=0.8), 3)
    2.952
    """
    return sum(acceptance_rate**position for position in range(num_draft_tokens + 1))
