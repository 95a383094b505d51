"""For how long a namespace that holds up Prometheus keeps others from their answers."""

import pytest

from virtual_time import FleetInTime

HANGS_S, ANSWERS_S = 60.0, 0.15
"""A round has a dozen queries here; a real one has five times as many, a fifth as long each."""
ONE_PART = 32
"""Namespaces of 30 pods or fewer that are asked together."""
ONE = ["evil"]
SOON, NONE = [0] * 4, [0] * 5


def fleet(num_others, evil=ONE, *, pods_each):
    others = {f"team-{number:03}": pods_each for number in range(num_others)}
    return FleetInTime(others | dict.fromkeys(evil, 1))


def touched(evil, queries):
    return not queries.namespaces or not set(evil).isdisjoint(queries.namespaces)


def taking(evil, evil_s=HANGS_S):
    """How long each query takes where it is also about one of these."""
    return lambda name, queries: evil_s if touched(evil, queries) else ANSWERS_S


def others_lacking(asked, num_rounds, *, takes=None, every=1, **more):
    """How many others lack an answer, round by round."""
    hang, nobody = takes or taking(ONE), taking(())
    found = []
    for number in range(num_rounds):
        lacking = asked.round(hang if number % every == 0 else nobody, **more)
        found.append(sum(name.startswith("team-") for name in lacking))
    return found


class TestOneNamespaceCostsItsPartOneRound:
    @pytest.mark.parametrize("evil_s", [HANGS_S, 9.0])
    @pytest.mark.parametrize(("others", "pods_each"), [(26, 3), (100, 5), (100, 30)])
    def test_that_hangs_or_is_slow(self, others, pods_each, evil_s):
        found = others_lacking(fleet(others, pods_each=pods_each), 6, takes=taking(ONE, evil_s))

        assert 0 < found[0] < ONE_PART
        assert found[1:] == NONE

    @pytest.mark.parametrize(("others", "pods_each"), [(26, 3), (100, 30)])
    def test_of_whom_a_query_is_refused(self, others, pods_each):
        def status(name, queries):
            return 422 if name == "waiting" and touched(ONE, queries) else 200

        asked = fleet(others, pods_each=pods_each)
        found = others_lacking(asked, 6, takes=taking(()), status=status)

        assert 0 < found[0] < ONE_PART
        assert found[1:] == NONE

    def test_that_hangs_now_and_then(self):
        found = others_lacking(fleet(100, pods_each=30), 39, every=3)

        assert 0 < found[0] < ONE_PART
        assert set(found[1:]) == {0}

    def test_that_answers_one_query_and_hangs_then(self):
        def takes(name, queries):
            return HANGS_S if touched(ONE, queries) and name != "timestamp" else ANSWERS_S

        assert others_lacking(fleet(26, pods_each=30), 6, takes=takes)[1:] == NONE

    def test_and_a_round_is_no_longer_than_the_time_between_two_after_the_second(self):
        asked = fleet(12, pods_each=3)
        others_lacking(asked, 4)

        assert asked.took_s < 16


class TestMoreOfThem:
    def test_in_one_part_cost_some_of_it_two(self):
        evil = [f"evil-{number}" for number in range(4)]
        found = others_lacking(fleet(100, evil, pods_each=30), 6, takes=taking(evil))

        assert found[0] < ONE_PART
        assert found[1] <= ONE_PART // 2
        assert found[2:] == SOON

    def test_in_four_parts_cost_all_of_them_some_more(self):
        evil = ["aaa", "sly-110", "team-110-evil", "zzz"]
        found = others_lacking(fleet(300, evil, pods_each=10), 14, takes=taking(evil))

        assert found[0] <= 4 * ONE_PART
        assert found[10:] == [1] * 4  # one of those that hang


class TestPrometheusIsSlow:
    def test_for_each_query_and_all_are_together_again_where_the_time_is_too_short(self):
        asked = fleet(20, (), pods_each=5)
        asked.round(lambda *_: ANSWERS_S, status=lambda name, _: 503 if name == "waiting" else 200)
        num_parts = []
        for _ in range(3):
            asked.round(lambda *_: 1.0)
            num_parts.append(len(asked.sets))

        assert num_parts == [20, 1, 1]

    @pytest.mark.parametrize(("num_parts", "answers_s"), [(4, 1.9), (10, 0.9)])
    def test_for_all_parts_and_some_are_through_in_each_round_and_all_in_some(
        self, num_parts, answers_s
    ):
        asked = fleet(20 * num_parts, (), pods_each=50)
        found = [asked.round(lambda *_: answers_s) for _ in range(8)]

        assert all(len(each) < 20 * num_parts for each in found)
        assert set.intersection(*found) == set()


def test_prometheus_that_rejects_queries_for_now_is_asked_no_more():
    asked = fleet(100, (), pods_each=50)
    for _ in range(6):
        asked.round(lambda *_: ANSWERS_S, status=lambda *_: 429)

    assert len(asked.sets) == 5
