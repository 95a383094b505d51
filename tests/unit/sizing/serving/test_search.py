"""Where a growing quantity crosses zero: known roots, and how often it is asked."""

import math

import pytest

from tonnage.sizing.serving.load_line import PRECISION, crossing


@pytest.mark.parametrize("root", [1e-3, 0.3, 5.0, 9.9])
def test_is_at_the_root_of_a_smooth_excess(root):
    assert crossing(lambda x: math.log(x / root), 10.0) == pytest.approx(root, rel=1e-3)


def test_takes_a_few_calls_where_the_excess_is_smooth():
    asked = []

    crossing(lambda x: asked.append(x) or math.log(x / 3), 10.0)

    assert len(asked) <= 12


def test_is_just_below_a_leap():
    found = crossing(lambda x: 1.0 if x > 3 else -1.0, 10.0)

    assert 3 * (1 - 2 * PRECISION) <= found <= 3


def test_is_nothing_where_the_excess_is_never_below():
    assert crossing(lambda x: 1.0, 10.0) == 0
