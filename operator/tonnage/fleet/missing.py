"""When what an object names and nobody has made yet is looked for again."""

from typing import Final

AGE_S: Final = 300.0
"""What is there is read again after this time."""
MOST_READS: Final = 5.0
"""Of what is missing in a namespace, in a tick: who names thousands waits, and nobody else."""


def look_again_s(num_missing: int, *, tick_s: float) -> float:
    """Return the time between two looks for each of so many that are missing in a namespace.

    >>> look_again_s(1, tick_s=15), look_again_s(50, tick_s=15), look_again_s(5000, tick_s=15)
    (15.0, 150.0, 300.0)
    """
    return min(AGE_S, tick_s * max(1.0, num_missing / MOST_READS))
