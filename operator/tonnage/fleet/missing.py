"""When what an object names and nobody has made yet is looked for again."""

from collections import Counter
from collections.abc import Iterable
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


class Ages:
    """When what objects name is read again: by how many of it are missing in its namespace."""

    def __init__(self, tick_s: float) -> None:
        self._tick_s, self._num_missing = tick_s, Counter[str]()

    def count(self, missing: Iterable[str]) -> None:
        """Take the namespaces in which something is missing, each as often as it is."""
        self._num_missing = Counter(missing)

    def is_due(self, namespace: str, age_s: float, *, is_missing: bool) -> bool:
        """Tell whether to read again; ``age_s``: since it was read, less than 0 by a clock set."""
        again_s = look_again_s(self._num_missing[namespace], tick_s=self._tick_s)
        return not 0 <= age_s < (again_s if is_missing else AGE_S)
