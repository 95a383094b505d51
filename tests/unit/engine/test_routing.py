"""A router in front of engines: by chance, or to the one with the least to do."""

import random
from statistics import mean

import pytest

from engine_builders import costs, limits, table
from tonnage.engine.core import Engine
from tonnage.engine.routing import POOLED, serve
from tonnage.sizing.workload import Routing


def test_the_router_goes_by_the_name_that_the_spec_has():
    assert POOLED == Routing.LEAST_OUTSTANDING


def engines(rows, count, **changes):
    return [Engine(limits(**changes), costs(1.0), rows) for _ in range(count)]


def run(rows, count, routing, draws, **changes):
    serve(engines(rows, count, **changes), rows, routing, draws)
    return rows


def test_a_random_router_takes_the_engine_that_the_draw_falls_on():
    rows = table(*[(0, 16, 1)] * 4)
    made = engines(rows, 4, max_num_seqs=1)
    serve(made, rows, Routing.SERVICE, [0.0, 0.26, 0.3, 0.99])

    # The second and third share the second engine, one at a time; nothing falls on the third.
    assert [engine.num_steps for engine in made] == [1, 2, 0, 1]
    assert list(rows.ended_s) == [1, 1, 2, 1]


def test_the_engine_with_the_fewest_requests_is_taken():
    rows = table((0, 16, 10), (1, 16, 2), (2, 16, 1), (3.5, 16, 1))
    run(rows, 2, Routing.LEAST_OUTSTANDING, [0.0] * 4, max_num_seqs=1)

    # The second engine gets the second request, since the first has one; the third comes while
    # both have one, and the draw says the first; when the fourth comes only the second is idle.
    assert list(rows.ended_s) == [10, 3, 11, 4.5]


@pytest.mark.parametrize(("draw", "chosen"), [(0.0, 0), (0.34, 1), (0.99, 2)])
def test_the_draw_breaks_ties(draw, chosen):
    rows = table((0, 16, 5))
    made = engines(rows, 3)
    serve(made, rows, Routing.LEAST_OUTSTANDING, [draw])

    assert [engine.num_steps for engine in made] == [5 * (n == chosen) for n in range(3)]


def test_ties_are_broken_among_those_with_the_fewest_only():
    rows = table((0, 16, 9), (1, 16, 1), (1, 16, 1))
    made = engines(rows, 3)
    serve(made, rows, Routing.LEAST_OUTSTANDING, [0.4, 0.99, 0.99])

    # The first goes to the middle one; the others to the last, then the first.
    assert [engine.num_steps for engine in made] == [1, 9, 1]


def test_one_engine_serves_all_whatever_the_draws():
    rows = table(*[(0, 16, 1)] * 3)
    run(rows, 1, Routing.SERVICE, [0.99] * 3, max_num_seqs=1)

    assert list(rows.ended_s) == [1, 2, 3]


@pytest.mark.parametrize("num_engines", [2, 4])
def test_knowing_the_load_waits_less_than_chance(num_engines):
    chance = random.Random(7)  # noqa: S311 -- a scenario has no secrets
    arrival_s, rows = 0.0, []
    for _ in range(8000):
        arrival_s += chance.expovariate(0.8 * num_engines)
        rows.append((arrival_s, 60, 1))
    draws = [chance.random() for _ in rows]
    random_s, least_s = (
        mean(
            start - arrival
            for start, arrival in zip(served.started_s, served.arrival_s, strict=True)
        )
        for served in (
            run(table(*rows), num_engines, routing, draws, max_num_seqs=1) for routing in Routing
        )
    )

    # Behind chance each is a queue of its own: M/D/1 with 1 s, 0.8 / (2 (1 - 0.8)) = 2 s; behind
    # one queue for both it were M/D/2, about half of M/M/2's 1.78 s [kimura1994].
    assert random_s == pytest.approx(2.0, rel=0.15)
    assert least_s < random_s / 1.8
