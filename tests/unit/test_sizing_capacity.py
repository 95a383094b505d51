"""Predicted against simulated capacity on a tenth of the grid, and fleets of the size asked for."""

from itertools import islice
from statistics import median

import pytest
from capacity import QUICK_EVERY, row_of
from capacity_grid import cases
from staffing import verdict

from tonnage.sizing.workload import Routing

SMALL = 0.1
"""Of the requests of the full bench: what is simulated is then uncertain by some 5 %."""


@pytest.fixture(scope="module")
def quick():
    poisson = (case for case in cases(0.95) if case.request.arrival_scv == 1)
    return list(islice(poisson, 0, 10 * QUICK_EVERY // 2, QUICK_EVERY // 2))


def test_the_quick_grid_binds_in_more_than_one_way(quick):
    assert len({case.sizing.line.limited_by for case in quick}) > 1


def test_predicted_capacity_is_near_what_the_engine_model_serves(quick):
    errors = [abs(row_of(case, 0.95, scale=SMALL).error) for case in quick]

    # The whole grid: see tests/bench/capacity.md; what is simulated here strays by itself.
    assert median(errors) <= 0.05
    assert sum(error <= 0.15 for error in errors) >= len(errors) - 1


@pytest.mark.parametrize("routing", list(Routing))
def test_two_replicas_suffice_where_the_rule_asks_for_two_and_one_does_not(quick, routing):
    found = [verdict(case, routing, 2) for case in quick[:4]]

    assert all(each.suffices and each.is_needed for each in found)
