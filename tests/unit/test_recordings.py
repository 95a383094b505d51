"""The phases that are found in a recording of an engine."""

import random
from itertools import accumulate

import pytest

from recordings import change_points


class TestChangePoints:
    def test_are_where_the_rate_changes(self):
        assert change_points([1] * 30 + [6] * 40 + [1] * 30) == [0, 30, 70, 100]

    def test_are_none_in_a_steady_stream(self):
        chance = random.Random(1)  # noqa: S311
        for _ in range(20):
            gaps = accumulate(chance.expovariate(2) for _ in range(1000))
            counts = [0] * 200
            for at_s in gaps:
                if at_s < 200:
                    counts[int(at_s)] += 1
            assert change_points(counts) == [0, 200]

    @pytest.mark.parametrize("counts", [[0], [3, 0], [0] * 50])
    def test_are_none_in_a_short_or_empty_one(self, counts):
        assert change_points(counts) == [0, len(counts)]
