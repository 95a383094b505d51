"""In which parts a fleet is queried, and who is queried alone after a failure."""

import pytest

from tonnage.cluster.queries import Answers
from tonnage.fleet.scrape import (
    ALONE_S,
    PART_NAMES,
    PART_PODS,
    alone_after,
    first_kept_waiting,
    parts_of,
    still_alone,
)

LATE = ("QueryTimeout", "no full answer within 10 s")
REFUSED = ("QueryRefused", "Prometheus refused a query with status 422")
OVER = ("TickTimeout", "not answered within the 20 s of a tick")
LARGE = ("ResponseTooLarge", "an answer exceeds 1 bytes")
BAD = ("BadAnswer", "no answer of a query API")


def expressions(namespaces):
    named = "|".join(namespaces) or "all"
    return {name: f"{name} of {named}" for name in ("up", "down")}


def pods(**numbers):
    return [(name, f"pod-{number}") for name, total in numbers.items() for number in range(total)]


THREE = pods(blue=600, green=300, red=900)
"""Blue and green share a part."""
SMALL = pods(blue=1, green=1, red=1)


def asked(known, alone=(), now_s=0.0, **more):
    """The namespaces of each part."""
    still = still_alone(dict(alone), now_s)
    return [each.namespaces for each in parts_of(expressions, known, still, **more)]


def after(known, alone=(), *, now_s=0.0, partial=(), **problems):
    """Who is alone after a round, by the problem of ``up`` in a namespace, or in ``everything``."""
    alone, everything = dict(alone), problems.pop("everything", None)
    named = {f"up@{name}": problem for name, problem in problems.items()}
    found = Answers(
        problems=named | ({"up": everything} if everything else {}),
        partial=frozenset(partial),
    )
    sets = parts_of(expressions, known, still_alone(alone, now_s))
    return alone_after(alone, sets, known, found, now_s)


class TestParts:
    def test_up_to_a_thousand_pods_there_is_one_of_all(self):
        assert PART_PODS == 1000
        [whole] = parts_of(expressions, pods(blue=999, green=1), {})

        assert (whole.namespaces, whole.num_pods) == ((), 1000)
        assert whole.expressions["up"] == "up of all"

    def test_beyond_that_there_is_one_for_every_thousand_of_whole_namespaces(self):
        known = pods(blue=600, green=300, red=101, teal=1200, white=400, zinc=600)
        sets = parts_of(expressions, known, {})

        assert [(each.namespaces, each.num_pods) for each in sets] == [
            (("blue", "green"), 900),
            (("red",), 101),
            (("teal",), 1200),
            (("white", "zinc"), 1000),
        ]
        assert sets[0].expressions["up"] == "up of blue|green"

    @pytest.mark.parametrize(
        ("num_names", "sizes"), [(32, [0]), (33, [32, 1]), (100, [32, 32, 32, 4])]
    )
    def test_a_part_names_no_more_namespaces_than_some(self, num_names, sizes):
        known = pods(**{f"team-{number:03}": 1 for number in range(num_names)})

        assert PART_NAMES == 32
        assert list(map(len, asked(known))) == sizes

    @pytest.mark.parametrize("name", ['x"} or vector(1) #', "a|b", ".*", "A", "a" * 64, ""])
    def test_what_is_no_name_of_a_namespace_gets_into_no_query(self, name):
        known = [(name, "a"), *pods(blue=PART_PODS, red=1)]

        assert asked(known, {name: 600.0}) == [("blue",), ("red",)]

    def test_of_nobody_is_one_of_all(self):
        assert asked([]) == [()]

    def test_who_is_alone_has_one_and_the_others_are_together(self):
        alone = {"green": 600.0, "gone": 600.0}

        assert asked(SMALL, alone, 0.0) == [("blue", "red"), ("green",)]
        assert asked(SMALL, alone, 600.0) == [()]
        assert asked(pods(green=1), alone, 0.0) == [()]

    def test_who_failed_last_comes_last(self):
        alone = {"blue": 615.0, "green": 600.0, "red": 600.0}

        assert asked(SMALL, alone, 15.0) == [("green",), ("red",), ("blue",)]
        assert asked(SMALL, alone, 15.0, first="red") == [("red",), ("green",), ("blue",)]

    def test_begin_with_the_one_that_was_kept_waiting(self):
        known = pods(blue=900, green=900, red=900)
        order = parts_of(expressions, known, {}, first="green")

        assert [each.namespaces for each in order] == [("green",), ("red",), ("blue",)]
        problems = {"up@green": LATE, "down@green": OVER, "down@red": OVER, "up@blue": REFUSED}
        assert first_kept_waiting(order, Answers(problems=problems)) == "red"
        assert first_kept_waiting(order, Answers(problems={"up@green": LATE})) == ""


class TestAlone:
    @pytest.mark.parametrize("problem", [LATE, REFUSED, LARGE, BAD])
    def test_are_the_namespaces_of_a_part_of_which_a_query_failed_for_ten_minutes(self, problem):
        assert ALONE_S == 600
        alone = after(THREE, blue=problem, green=problem)

        assert alone == {"blue": 600.0, "green": 600.0}
        assert asked(THREE, alone, 15.0) == [("red",), ("blue",), ("green",)]
        assert after(THREE, alone, now_s=600.0) == {}

    def test_are_all_of_a_fleet_of_one_part(self):
        assert after(SMALL, everything=LATE) == {"blue": 600.0, "green": 600.0, "red": 600.0}

    def test_are_those_of_whom_an_answer_was_not_whole(self):
        assert set(after(THREE, partial=["up@blue", "up@green"])) == {"blue", "green"}
        assert len(after(SMALL, partial=["up"])) == 3

    @pytest.mark.parametrize("reason", ["PrometheusUnreachable", "QueryThrottled"])
    def test_is_nobody_for_what_no_namespace_can_bring_about(self, reason):
        assert after(THREE, blue=(reason, ""), green=(reason, "")) == {}
        assert after(SMALL, everything=(reason, "")) == {}

    def test_is_nobody_who_was_kept_waiting(self):
        assert after(THREE, red=OVER) == {}

    def test_is_who_came_first_and_is_not_through(self):
        assert after(SMALL, everything=OVER).keys() == {"blue", "green", "red"}
        assert after(THREE, blue=OVER, green=OVER).keys() == {"blue", "green"}

    def test_is_for_longer_who_still_fails(self):
        alone = dict.fromkeys(("blue", "green", "red"), 600.0)

        assert after(SMALL, alone, now_s=15.0, green=LARGE) == alone | {"green": 615.0}

    def test_are_only_those_that_fail_where_the_time_is_too_short(self):
        alone = dict.fromkeys(("blue", "green", "red"), 600.0)

        assert after(SMALL, alone, now_s=15.0, green=LATE, red=OVER) == {"green": 615.0}
