"""For how long namespaces that hold up Prometheus keep others from their answers."""

import random

import pytest

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
        found.append(sum(name.startswith("team-") and name[-1].isdigit() for name in lacking))
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

    @pytest.mark.parametrize("evil_s", [HANGS_S, 9.9])
    def test_that_are_in_both_halves_cost_no_more(self, evil_s):
        evil = ["aaa", "zzz"]
        found = others_lacking(fleet(26, evil, pods_each=3), 6, takes=taking(evil, evil_s))

        assert found[3:] == [0] * 3

    def test_where_prometheus_is_slow_there_is_one_round_of_parts(self):
        asked = fleet(100, (), pods_each=5)
        num_parts = []
        for _ in range(5):
            asked.round(lambda *_: 9.0)
            num_parts.append(len(asked.sets))

        assert num_parts == [1, 3, 1, 1, 1]


class TestAFleetOfParts:
    def test_that_hang_cost_a_part_two_rounds_and_some_of_it_a_few_more(self):
        found = others_lacking(fleet(100, pods_each=30), 12)

        assert found[:2] == [ONE_PART] * 2
        assert max(found[2:]) <= ONE_PART // 2
        assert found[6:] == [0] * 6

    def test_of_which_each_has_one_that_hangs_all_have_answers_after_some_rounds(self):
        evil = ["aaa", "team-110x", "team-250x", "zzz"]
        found = others_lacking(fleet(300, evil, pods_each=10), 10, takes=taking(evil))

        assert found[0] == 300
        assert found[6:] == [0] * 4

    def test_that_answer_one_query_and_hang_then_do_not_either(self):
        def takes(name, queries):
            return HANGS_S if touched(FOUR, queries) and name != "timestamp" else ANSWERS_S

        found = others_lacking(fleet(100, pods_each=30), 10, takes=takes)

        assert found[7:] == [0] * 3

    def test_that_hang_now_and_then_cost_all_of_a_part_two_rounds_only(self):
        found = others_lacking(fleet(100, pods_each=30), 39, every=3)

        assert found[:6] == [ONE_PART, 0, 0, ONE_PART, 0, 0]
        assert max(found[6:]) <= ONE_PART // 2

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

    def num_parts(self, refused_share, status, *, pods_each):
        chance = random.Random(1)  # noqa: S311
        asked, num_parts = fleet(100, (), pods_each=pods_each), []
        for _ in range(36):
            asked.round(
                lambda *_: ANSWERS_S,
                status=lambda *_: status if chance.random() < refused_share else 200,
            )
            num_parts.append(len(asked.sets))
        return num_parts

    @pytest.mark.parametrize(("pods_each", "usual"), [(5, 1), (50, 5)])
    def test_that_say_so_never_split_it(self, pods_each, usual):
        assert set(self.num_parts(0.2, 429, pods_each=pods_each)) == {usual}

    @pytest.mark.parametrize(("pods_each", "usual"), [(5, 1), (50, 5)])
    @pytest.mark.parametrize("refused_share", [0.2, 0.5])
    def test_split_it_for_a_few_rounds_only(self, pods_each, usual, refused_share):
        found = self.num_parts(refused_share, 503, pods_each=pods_each)

        assert sum(each > usual + 2 for each in found) <= 3


class TestTooManyParts:
    """Of which each takes more than a quarter of a round, and no namespace is at fault."""

    @pytest.mark.parametrize(("num_parts", "answers_s"), [(4, 1.9), (10, 0.9)])
    def test_some_are_through_in_each_round_and_all_in_some(self, num_parts, answers_s):
        asked = fleet(20 * num_parts, (), pods_each=50)
        found = [asked.round(lambda *_: answers_s) for _ in range(8)]

        assert all(len(each) < 20 * num_parts for each in found)
        assert set.intersection(*found) == set()
