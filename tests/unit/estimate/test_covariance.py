"""Whether six numbers are a covariance, by an eigenvalue solver, and what is made of others."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies import numbers
from tonnage.estimate.posterior import WIDE_VARIANCE, is_positive_semidefinite, repair

UPPER = np.triu_indices(3)


def matrix(triangle):
    a, b, c, d, e, f = triangle
    return np.array([[a, b, c], [b, d, e], [c, e, f]])


def smallest_eigenvalue(triangle):
    return float(np.linalg.eigvalsh(matrix(triangle))[0])


factors = st.lists(numbers(-1, 1), min_size=9, max_size=9).map(
    lambda values: np.array(values).reshape(3, 3)
)


@given(factors)
def test_a_covariance_stays_as_it_is(factor):
    covariance = tuple(map(float, (factor @ factor.T + 1e-4 * np.eye(3))[UPPER]))

    assert repair(covariance) == (covariance, True)


@given(st.lists(numbers(-2, 2), min_size=6, max_size=6))
def test_what_comes_out_is_always_a_covariance(entries):
    found, was_sound = repair(entries)

    assert smallest_eigenvalue(found) >= -1e-9
    if not was_sound:
        assert found[1] == found[2] == found[4] == 0
        assert all(found[each] >= max(WIDE_VARIANCE, entries[each]) for each in (0, 3, 5))


@pytest.mark.parametrize(
    ("entries", "is_one"),
    [
        ((1, 0, 0, 1, 0, 1), True),
        ((1, 1, 1, 1, 1, 1), True),
        ((0, 0, 0, 0, 0, 0), True),
        ((0, 0.1, 0, 1, 0, 1), False),  # the first does not vary, so it varies with nothing
        ((-1, 0, 0, 1, 0, 1), False),
        ((1, 2, 0, 1, 0, 1), False),
        ((1, 0.9, -0.9, 1, 0.9, 1), False),  # each pair may be, all three may not
    ],
)
def test_every_minor_counts(entries, is_one):
    assert is_positive_semidefinite(entries) is is_one


def test_correlations_that_rounding_made_too_strong_are_weakened():
    found, was_sound = repair((1.0, 1.0000000004, 0, 1.0, 0, 1.0))

    assert was_sound
    assert found[1] == pytest.approx(1, abs=2e-6)
    assert is_positive_semidefinite(found)
