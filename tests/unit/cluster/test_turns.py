"""Whose question is next, by who has a place and for how long it had one."""

import pytest

from tonnage.cluster.questions import QuerySet, Standing
from tonnage.cluster.turns import MOST_PLACES, Turns, shares

USUAL, APART, DOUBTED = Standing


def a_set(name, *, num_questions=3, **more):
    asked = {f"{name}{number}": f"text of {name}{number}" for number in range(num_questions)}
    return QuerySet(expressions=asked, namespaces=(name,), **({"num_pods": 1} | more))


def turns(*sets, patience_s=10.0):
    return Turns(sets, patience_s=patience_s)


def begun(asking, number, now_s=0.0):
    return [asking.begin(now_s) for _ in range(number)]


def names(questions):
    return [each and each.name for each in questions]


class TestBegin:
    def test_each_question_is_asked_once(self):
        asking = turns(a_set("a", num_questions=2), a_set("b", num_questions=1))
        found = begun(asking, 4)

        assert sorted(names(found[:3])) == ["a0", "a1", "b0"]
        assert found[3] is None
        assert {each.text for each in found[:3]} == {"text of a0", "text of a1", "text of b0"}

    def test_every_set_has_two_places_before_one_has_three(self):
        asking = turns(a_set("a"), a_set("b"))

        assert names(begun(asking, 5)) == ["a0", "a1", "b0", "b1", "a2"]

    def test_every_set_that_is_apart_has_one_before_one_has_two(self):
        asking = turns(a_set("a", standing=APART), a_set("b", standing=APART))

        assert names(begun(asking, 4)) == ["a0", "b0", "a1", "b1"]

    def test_a_set_goes_on_before_the_next_one_begins(self):
        asking = turns(a_set("a"), a_set("b"), a_set("c"))
        first, *_ = begun(asking, 4)
        first.end(1.0)

        assert asking.begin(1.0).name == "a2"

    @pytest.mark.parametrize(("took_s", "follows"), [(9.9, "a1"), (10.1, "b0")])
    def test_one_that_had_the_time_of_a_question_comes_after_the_others(self, took_s, follows):
        asking = turns(a_set("a"), a_set("b"), patience_s=10.0)
        asking.begin(0.0).end(took_s)

        assert asking.begin(took_s).name == follows

    def test_what_is_under_way_counts_too(self):
        asking = turns(a_set("a"), a_set("b", num_questions=5), patience_s=10.0)
        _, second, *others = begun(asking, 4)
        for each in (second, *others):
            each.end(1.0)

        assert names(begun(asking, 3, 12.0)) == ["b2", "b3", "b4"]

    def test_one_that_answers_steadily_has_its_turn_until_it_is_through(self):
        asking = turns(a_set("a", num_questions=20), a_set("b"), patience_s=10.0)
        for number in range(20):
            question = asking.begin(2.0 * number)
            assert question.name == f"a{number}"
            question.end(2.0 * number + 2.0)


class TestPlaces:
    def test_those_apart_have_some_while_others_wait(self):
        evil = [a_set(name, standing=APART) for name in "abcd"]
        found = names(begun(turns(*evil, a_set("z", num_questions=9)), 6))

        assert found == ["a0", "b0", "z0", "z1", "z2", "z3"]
        assert MOST_PLACES[APART] == 2

    def test_those_doubted_have_one_of_these(self):
        sets = [a_set("a", standing=DOUBTED), a_set("b", standing=DOUBTED)]
        others = [a_set("c", standing=APART), a_set("d", standing=APART), a_set("z")]

        assert names(begun(turns(*sets, *others), 4)) == ["a0", "c0", "z0", "z1"]

    @pytest.mark.parametrize("standing", [APART, DOUBTED])
    def test_they_have_all_where_nobody_else_waits(self, standing):
        asking = turns(a_set("a", standing=standing), a_set("z", num_questions=1))

        assert sorted(names(begun(asking, 4))) == ["a0", "a1", "a2", "z0"]


class TestHope:
    def late(self, standing, *, num_late, num_answered=0):
        account = turns(a_set("a", standing=standing)).begin(0.0).account
        account.num_late, account.num_answered = num_late, num_answered
        return account

    @pytest.mark.parametrize(
        ("standing", "num_late", "num_answered", "is_hopeless"),
        [
            (USUAL, 0, 0, False),
            (USUAL, 1, 0, False),
            (USUAL, 2, 0, True),
            (APART, 2, 1, False),
            (DOUBTED, 0, 0, False),
            (DOUBTED, 1, 5, True),
        ],
    )
    def test_ends_with_some_that_are_late(self, standing, num_late, num_answered, is_hopeless):
        account = self.late(standing, num_late=num_late, num_answered=num_answered)

        assert account.is_hopeless is is_hopeless

    def test_ends_sooner_where_as_many_wait_already(self):
        asking = turns(a_set("a"))
        account = asking.begin(0.0).account
        begun(asking, 2)
        account.num_late = 1

        assert account.is_hopeless


class TestShares:
    def test_one_set_may_take_all(self):
        assert shares([a_set("a", num_pods=5)]) == [1.0]

    def test_are_half_alike_and_half_by_pods(self):
        assert shares([a_set("a", num_pods=300), a_set("b", num_pods=100)]) == [0.625, 0.375]

    def test_are_alike_without_pods(self):
        assert shares([a_set("a", num_pods=0), a_set("b", num_pods=0)]) == [0.5, 0.5]
