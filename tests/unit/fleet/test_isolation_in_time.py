"""For how long namespaces that hold up Prometheus keep others from their answers."""

import random

import pytest

from tonnage.fleet.parts import MOST_ALONE
from virtual_time import FleetInTime

HANGS_S, ANSWERS_S = 60.0, 0.15
"""A round has a dozen queries here; a real one has five times as many, a fifth as long each."""
ONE_PART = 33
"""Others that are asked for with those that are evil, of 30 pods each."""
FOUR = [f"evil-{number}" for number in range(4)]


def fleet(num_others, evil=FOUR, *, pods_each):
    others = {f"team-{number:03}": pods_each for number in range(num_others)}
    return FleetInTime(others | dict.fromkeys(evil, 1))


def touched(evil, queries):
    return not queries.namespaces or not set(evil).isdisjoint(queries.namespaces)


def taking(evil, evil_s=HANGS_S):
    """How long each query takes where it is also about one of these."""
    return lambda name, queries: evil_s if touched(evil, queries) else ANSWERS_S


def others_lacking(asked, num_rounds, *, takes=None, every=1, **more):
    """How many others lack an answer, round by round."""
    hang, nobody = takes or taking(FOUR), taking(())
    found = []
    for number in range(num_rounds):
        lacking = asked.round(hang if number % every == 0 else nobody, **more)
        found.append(sum(name.startswith("team-") for name in lacking))
    return found


class TestAFleetOfOnePart:
    @pytest.mark.parametrize("evil", [FOUR[:1], FOUR], ids=["one", "four"])
    def test_that_hang_cost_two_rounds(self, evil):
        found = others_lacking(fleet(26, evil, pods_each=3), 6, takes=taking(evil))

        assert found[2:] == [0] * 4

    def test_that_make_answers_slow_cost_three(self):
        evil = FOUR[:1]
        asked = fleet(100, evil, pods_each=5)

        assert others_lacking(asked, 6, takes=taking(evil, 9.0))[3:] == [0] * 3

    def test_that_make_a_query_refused_cost_three(self):
        def status(name, queries):
            return 422 if name == "waiting" and touched(FOUR[:1], queries) else 200

        asked = fleet(100, FOUR[:1], pods_each=5)

        assert others_lacking(asked, 6, takes=taking(()), status=status)[3:] == [0] * 3

    def test_where_prometheus_is_slow_there_is_one_round_of_two_parts(self):
        asked = fleet(100, (), pods_each=5)
        num_parts = []
        for _ in range(5):
            asked.round(lambda *_: 9.0)
            num_parts.append(len(asked.sets))

        assert num_parts == [1, 2, 1, 1, 1]


class TestAFleetOfParts:
    def test_that_hang_cost_a_third_of_a_part_a_second_round_and_nobody_a_fifth(
        self,
    ):
        found = others_lacking(fleet(100, pods_each=30), 10)

        assert found[0] == ONE_PART
        assert max(found[1:]) <= ONE_PART // 3
        assert found[4:] == [0] * 6

    def test_that_answer_one_query_and_hang_then_do_not_either(self):
        def takes(name, queries):
            return HANGS_S if touched(FOUR, queries) and name != "timestamp" else ANSWERS_S

        found = others_lacking(fleet(100, pods_each=30), 10, takes=takes)

        assert found[5:] == [0] * 5

    def test_that_hang_now_and_then_cost_no_more_than_that_either(self):
        found = others_lacking(fleet(100, pods_each=30), 40, every=3)

        assert max(found[1:]) <= ONE_PART // 3

    def test_a_round_is_no_longer_than_the_time_between_two_once_it_is_known_who_hangs(self):
        asked = fleet(26, FOUR[:1], pods_each=3)
        others_lacking(asked, 5, takes=taking(FOUR[:1]))

        assert asked.took_s < 15

    @pytest.mark.parametrize("answers_s", [0.02, 0.4])
    def test_at_any_speed_of_prometheus_everybody_else_has_answers_in_every_second_round(
        self, answers_s
    ):
        asked = fleet(100, FOUR[:1], pods_each=50)
        takes = lambda _, queries: HANGS_S if touched(FOUR[:1], queries) else answers_s  # noqa: E731
        found = others_lacking(asked, 12, takes=takes)

        assert found[3:].count(0) >= 5


class TestRefusalsAtRandom:
    """Of a gateway that is short of room: they are for nobody's series."""

    @pytest.mark.parametrize("pods_each", [5, 50])
    def test_split_the_fleet_for_a_few_rounds_only(self, pods_each):
        chance = random.Random(1)  # noqa: S311
        asked, num_parts = fleet(100, (), pods_each=pods_each), []
        for _ in range(36):
            asked.round(
                lambda *_: ANSWERS_S, status=lambda *_: 429 if chance.random() < 0.2 else 200
            )
            num_parts.append(len(asked.sets))

        assert max(num_parts) >= MOST_ALONE
        assert sum(each > num_parts[0] for each in num_parts) <= 3
