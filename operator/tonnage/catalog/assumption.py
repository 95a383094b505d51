"""What no table has and nobody gave: the bound on the safe side that is counted in its place."""

from dataclasses import dataclass
from typing import Final, Literal

Effect = Literal["memory", "time", "memory and time", "start"]
"""What is counted too large; start: nothing, but the engine refuses if it is not as assumed."""
Subject = Literal["model", "weights", "KV cache", "checkpoint", "GPU", "vLLM", "flags"]
USUAL_TIMES: Final = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumption:
    """One thing that was read and that no rule knows, and what is planned with instead.

    The bound never takes less memory or time than the truth, so what is planned fits. What has no
    such bound is refused.
    """

    about: Subject
    taken: str
    """What was read, and what is counted for it, with its number and unit: "model_type laguna:
    48 layers, each attends to all tokens"."""
    effect: Effect
    """What the bound makes too large, if anything."""
    replaced_by: str
    """What knows better: a file, a field with a value, or the first Ready pod's own report."""
    times: float = USUAL_TIMES
    """Times the truth that is counted at most."""
