"""A histogram of a page: many values are counted at once."""

from bisect import bisect_left
from collections.abc import Collection, Sequence
from itertools import accumulate

from tonnage.replay.prometheus import Labels, SeriesKey


class Histogram:
    """Counts by upper bound, and their sum."""

    def __init__(self, name: str, labels: Labels, bounds: Sequence[float] = ()) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        self._sum_key, self._count_key = (f"{name}_sum", labels), (f"{name}_count", labels)
        names = [*map(str, map(float, bounds)), "+Inf"] if bounds else []
        self._keys = [(f"{name}_bucket", (*labels, ("le", le))) for le in names]

    @property
    def sum(self) -> float:
        return self._sum

    def observe(self, values: Collection[float]) -> None:
        """Count some more values; the sum is that of adding one by one."""
        if self._keys:
            for value in values:
                self._counts[bisect_left(self._bounds, value)] += 1
        else:
            self._counts[0] += len(values)
        for value in values:
            self._sum += value

    def show(self, page: dict[SeriesKey, float]) -> None:
        below = list(accumulate(self._counts))
        page[self._sum_key], page[self._count_key] = self._sum, below[-1]
        if self._keys:
            page.update(zip(self._keys, below, strict=True))
