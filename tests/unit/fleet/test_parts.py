"""In which parts a fleet is asked for, and whom a failure sets apart."""

from dataclasses import replace

import pytest

from tonnage.cluster.questions import NOBODY, Answers, Standing
from tonnage.fleet.apart import (
    ALONE_S,
    EVERYBODY,
    MOST_ALONE_S,
    REMEMBERED_S,
    Apart,
    after_round,
    first_cut_off,
)
from tonnage.fleet.parts import MOST_ALONE, MOST_WELL, PART_NAMES, PART_PODS, parts_of

LATE = ("QueryTimeout", "no whole answer within 10 s")
REFUSED = ("QueryRefused", "Prometheus refused a query with status 422")
OVER = ("TickTimeout", "not answered within the 20 s of a tick")
LARGE = ("ResponseTooLarge", "an answer exceeds 1 bytes")
THREE = {"blue": 600, "green": 300, "red": 900}
"""Blue and green share a part."""


def expressions(namespaces):
    named = "|".join(namespaces) or "all"
    return {name: f"{name} of {named}" for name in ("up", "down")}


def pods(**numbers):
    return [(name, f"pod-{number}") for name, total in numbers.items() for number in range(total)]


def asked(known, aparts=None, now_s=0.0):
    """The namespaces of each part."""
    return [each.namespaces for each in parts_of(expressions, known, aparts or {}, now_s)]


class Rounds:
    """One round after the other, 15 s apart."""

    def __init__(self, known):
        self.known, self.aparts, self.now_s = known, {}, 0.0

    def parts(self):
        return parts_of(expressions, self.known, self.aparts, self.now_s)

    @property
    def named(self):
        names = sorted(each.namespaces for each in self.parts())
        return [each for each in names if each != (NOBODY,)]

    def all_failed(self, problem=None, *, after_s=15.0, **answers):
        """A round of all at once, in which this failed."""
        assert self.named == [()]
        said = Answers(problems={"up": problem} if problem else {}, series={"down": []}, **answers)
        self.aparts = after_round(self.aparts, self.parts(), said, now_s=self.now_s)
        self.now_s += after_s
        return self

    def failing(self, problems, *, after_s=15.0):
        """Two rounds in which these failed: the first one may be chance."""
        return self.round(problems, after_s=0).round(problems, after_s=after_s)

    @property
    def alone(self):
        """Namespaces, whether the fleet is watched or not."""
        found = {name for name, each in self.aparts.items() if each.is_alone(self.now_s)}
        return found - {EVERYBODY}

    @property
    def doubted(self):
        return {
            name
            for each in self.parts()
            if each.standing == Standing.DOUBTED
            for name in each.namespaces
        }

    def round(self, problems=None, *, after_s=15.0, **answers):
        """``problems``: by namespace, of ``up``; a part has those of each of its own."""
        sets, problems = self.parts(), problems or {}
        failed = {
            f"up@{name}": problems[evil]
            for each in sets
            for evil in problems.keys() & set(each.namespaces)
            for name in each.namespaces
        }
        said = Answers(series={"down": []}, problems=failed, **answers)
        self.aparts = after_round(self.aparts, sets, said, now_s=self.now_s)
        self.now_s += after_s
        return self


class TestParts:
    def test_up_to_a_thousand_pods_there_is_one_of_all(self):
        assert PART_PODS == 1000
        [whole] = parts_of(expressions, pods(blue=999, green=1), {}, 0.0)

        assert (whole.namespaces, whole.num_pods) == ((), 1000)
        assert whole.expressions["up"] == "up of all"

    def test_beyond_that_there_is_one_for_every_thousand_of_whole_namespaces(self):
        known = pods(blue=600, green=300, red=101, teal=1200, white=400, zinc=600)
        sets = parts_of(expressions, known, {}, 0.0)

        assert [(each.namespaces, each.num_pods) for each in sets] == [
            (("blue", "green"), 900),
            (("red",), 101),
            (("teal",), 1200),
            (("white", "zinc"), 1000),
        ]
        assert sets[0].expressions["up"] == "up of blue|green"

    def test_a_part_names_no_more_namespaces_than_some(self):
        known = pods(**{f"team-{number:04}": 1 for number in range(1001)})

        assert max(map(len, asked(known))) == PART_NAMES
        assert sorted(name for part in asked(known) for name in part) == sorted(
            name for name, _ in known
        )

    @pytest.mark.parametrize("name", ['x"} or vector(1) #', "a|b", ".*", "A", "a" * 64, ""])
    def test_what_is_no_name_of_a_namespace_gets_into_no_query(self, name):
        known = [(name, "a"), *pods(blue=PART_PODS, red=1)]

        assert asked(known) == [("blue",), ("red",)]

    def test_of_nobody_is_one_of_all(self):
        assert asked([]) == [()]

    def test_who_is_apart_is_alone_and_the_others_are_together(self):
        aparts = {"green": Apart(until_s=600.0, for_s=600.0)}
        small = pods(blue=1, green=1, red=1)

        assert asked(small, aparts, 0.0) == [("blue", "red"), ("green",)]
        assert asked(small, aparts, 600.0) == [()]
        assert asked(pods(blue=1), aparts, 0.0) == [()]

    def test_there_are_never_more_than_some_of_those_and_each_is_in_one(self):
        names = [f"team-{number}" for number in range(100)]
        aparts = {name: Apart(until_s=1.0, for_s=1.0) for name in names}
        found = asked([(name, "a") for name in names], aparts)

        assert len(found) == MOST_ALONE
        assert sorted(name for part in found for name in part) == sorted(names)
        assert max(map(len, found)) == 4

    def test_who_went_well_alone_shares_parts_where_time_is_short(self):
        known = pods(**{f"team-{number:02}": 1 for number in range(40)})
        late = Apart(until_s=600.0, for_s=600.0, num_failed=1)
        well = {name: replace(late, num_failed=0) for name, _ in known}
        aparts = well | {"team-00": late, "team-01": late}
        short = parts_of(expressions, known, aparts, 0.0, first="team-07")

        assert len(asked(known, aparts)) == MOST_ALONE
        assert len(short) == MOST_WELL + 2
        assert {("team-00",), ("team-01",)} <= {each.namespaces for each in short}

    def test_begin_with_the_one_that_was_kept_waiting(self):
        known = pods(blue=900, green=900, red=900)
        order = parts_of(expressions, known, {}, 0.0, first="green")
        over = ("TickTimeout", "not answered within the 20 s of a tick")

        assert [each.namespaces for each in order] == [("green",), ("red",), ("blue",)]
        problems = {"up@green": LATE, "down@green": over, "down@red": over, "up@blue": REFUSED}
        assert first_cut_off(order, Answers(problems=problems)) == "red"
        assert first_cut_off(order, Answers(problems={"up@green": LATE})) == ""

    def test_of_a_fleet_that_is_watched_are_halves_and_one_of_nobody(self):
        aparts = {EVERYBODY: Apart(until_s=600.0, for_s=600.0)}
        known = pods(blue=1, green=2, red=1, white=2)

        assert asked(known, aparts) == [(NOBODY,), ("blue", "green"), ("red", "white")]
        assert asked(known, aparts, 600.0) == [()]
        assert asked(pods(blue=3), aparts) == [()]


class TestAfterARound:
    @pytest.mark.parametrize("problem", [LATE, REFUSED, LARGE])
    def test_that_failed_for_one_part_its_namespaces_are_alone_for_ten_minutes(self, problem):
        rounds = Rounds(pods(**THREE)).failing({"blue": problem})

        assert rounds.alone == {"blue", "green"}
        assert rounds.named == [("blue",), ("green",), ("red",)]
        assert rounds.round(after_s=ALONE_S).alone == set()

    def test_that_failed_once_nobody_is_alone_and_the_fleet_is_watched(self):
        rounds = Rounds(pods(**THREE)).round({"blue": LATE})

        assert rounds.alone == set()
        assert (NOBODY,) in asked(rounds.known, rounds.aparts, rounds.now_s)
        other = Answers(problems={"down@blue": LATE, "down@green": LATE})
        aparts = after_round(rounds.aparts, rounds.parts(), other, now_s=rounds.now_s)
        assert set(aparts) == {EVERYBODY}

    def test_that_was_not_whole_for_one_part_too(self):
        named = frozenset({"up@blue", "up@green"})
        twice = Rounds(pods(**THREE)).round(partial=named).round(partial=named)

        assert twice.alone == {"blue", "green"}
        everywhere = named | {"up@red", f"up@{NOBODY}"}
        twice = Rounds(pods(**THREE)).round(partial=everywhere).round(partial=everywhere)
        assert twice.alone == set()

    @pytest.mark.parametrize("problem", [LATE, REFUSED, LARGE])
    def test_that_failed_for_each_part_but_not_about_nobody_all_are(self, problem):
        found = Rounds(pods(**THREE)).failing({"blue": problem, "red": problem})

        assert found.alone == {*THREE}

    @pytest.mark.parametrize("problem", [LATE, REFUSED])
    def test_that_failed_about_nobody_too_nobody_is_alone(self, problem):
        everywhere = {"blue": problem, "red": problem, NOBODY: problem}

        assert Rounds(pods(**THREE)).failing(everywhere).alone == set()

    def test_that_was_over_before_they_were_asked_nobody_is_trusted_more(self):
        rounds = Rounds(pods(**THREE)).failing({"blue": LARGE}).round({"blue": LARGE})
        before = rounds.aparts["blue"]
        assert before.num_failed == 2

        assert rounds.round({"blue": OVER, NOBODY: OVER}).aparts["blue"] == before
        assert rounds.round().aparts["blue"].num_failed == 0

    def test_that_was_over_before_they_were_asked_although_it_answers_quickly_they_are(self):
        assert Rounds(pods(**THREE)).failing({"blue": OVER}).alone == {"blue", "green"}
        slow = {"blue": OVER, NOBODY: OVER}
        assert Rounds(pods(**THREE)).failing(slow).alone == set()

    @pytest.mark.parametrize("reason", ["PrometheusUnreachable", "QueryThrottled"])
    def test_for_which_no_namespace_can_be_blamed_nobody_is_alone(self, reason):
        assert Rounds(pods(**THREE)).failing({"blue": (reason, "")}).aparts == {}

    def test_in_which_it_still_fails_alone_it_stays_so_for_as_long_as_before(self):
        rounds = Rounds(pods(**THREE)).failing({"blue": LARGE}).round({"blue": LARGE})

        assert rounds.aparts["blue"] == Apart(until_s=15.0 + ALONE_S, for_s=ALONE_S, num_failed=2)

    def test_in_which_it_was_late_by_the_limits_of_those_in_doubt_it_stays_no_longer(self):
        rounds = Rounds(pods(**THREE)).failing({"blue": LATE}).round({"blue": LATE})
        before = rounds.aparts["blue"]

        assert rounds.doubted == {"blue"}
        assert rounds.round({"blue": LATE}).aparts["blue"] == before
        assert rounds.round({"blue": REFUSED}).aparts["blue"].until_s > before.until_s

    def test_who_fails_again_is_alone_for_twice_as_long_up_to_a_day(self):
        rounds, lasted_s = Rounds(pods(**THREE)), []
        for _ in range(12):
            rounds.failing({"blue": LARGE}, after_s=0)
            lasted_s.append(rounds.aparts["blue"].until_s - rounds.now_s)
            rounds.now_s = rounds.aparts["blue"].until_s

        assert lasted_s[:3] == [ALONE_S, 2 * ALONE_S, 4 * ALONE_S]
        assert lasted_s[-1] == MOST_ALONE_S

    def test_that_went_well_a_day_later_it_begins_anew(self):
        rounds = Rounds(pods(**THREE)).failing({"blue": LARGE}, after_s=ALONE_S + REMEMBERED_S)
        rounds.round(after_s=0).failing({"blue": LARGE}, after_s=0)

        assert rounds.aparts["blue"].for_s == ALONE_S

    def test_of_many_that_share_parts_nobody_shares_one_with_who_fails_after_some_more(self):
        evil = {f"team-{number:03}" for number in (3, 35, 70, 204)}
        names = [f"team-{number:03}" for number in range(300)]
        rounds = Rounds([(name, "a") for name in names])
        rounds.aparts = {name: Apart(until_s=600.0, for_s=600.0, num_failed=1) for name in names}
        for _ in range(5):
            rounds.round(dict.fromkeys(evil, LARGE))

        assert {(name,) for name in evil} <= set(rounds.named)
        assert len(rounds.named) == MOST_ALONE

    def test_who_fails_among_fewer_too_is_doubted_until_it_answers(self):
        rounds = Rounds(pods(**THREE)).failing({"blue": LATE})
        assert rounds.doubted == set()

        assert rounds.round({"blue": LATE}).doubted == {"blue"}
        assert rounds.round().doubted == set()

    def test_of_another_query_are_asked_for_although_some_fail_alike(self):
        rounds = Rounds(pods(blue=1, green=1)).all_failed(LATE)
        rounds.round({"blue": LATE, "green": LATE, NOBODY: LATE})
        said = Answers(problems={"up": LATE, "down": LATE})
        rounds.aparts = after_round(rounds.aparts, rounds.parts(), said, now_s=rounds.now_s)

        assert rounds.named == [("blue",), ("green",)]


class TestInVain:
    def alone(self, number):
        rounds = Rounds(pods(**{f"team-{number}": 1 for number in range(number)}))
        apart = Apart(until_s=600.0, for_s=600.0, num_failed=1)
        rounds.aparts = {name: apart for name, _ in rounds.known}
        return rounds

    def test_are_parts_where_more_than_half_of_all_fail_alone_and_nobody_is_for_ten_minutes(self):
        rounds = self.alone(15)
        rounds.round({f"team-{number}": LATE for number in range(8)})
        assert rounds.named == [()]

        assert rounds.all_failed(LATE).named == [()]
        rounds.now_s += ALONE_S
        assert len(rounds.all_failed(LATE).named) == 2

    @pytest.mark.parametrize(("number", "failing"), [(16, 8), (8, 7)])
    def test_are_no_fewer_nor_of_fewer(self, number, failing):
        rounds = self.alone(number)
        rounds.round({f"team-{each}": LATE for each in range(failing)})

        assert rounds.alone == {name for name, _ in rounds.known}


class TestHalves:
    @pytest.mark.parametrize("problem", [LATE, REFUSED, LARGE])
    def test_are_asked_for_after_a_failure_of_all_and_alone_who_is_in_one_that_fails(self, problem):
        rounds = Rounds(pods(blue=1, green=1, red=1, white=1)).all_failed(problem)

        assert rounds.named == [("blue", "green"), ("red", "white")]
        assert rounds.round({"white": problem}).alone == {"red", "white"}
        assert rounds.round().named == [("blue",), ("green",), ("red",), ("white",)]

    def test_that_was_not_whole_too(self):
        rounds = Rounds(pods(blue=1, green=1)).all_failed(partial=frozenset({"up"}))

        assert rounds.named == [("blue",), ("green",)]

    def test_are_not_after_one_that_no_namespace_can_bring_about(self):
        nobody = ("PrometheusUnreachable", "Prometheus: ClientConnectorError")

        assert Rounds(pods(blue=1, green=1)).all_failed(nobody).named == [()]

    def test_that_fail_alike_are_together_for_ten_minutes(self):
        rounds = Rounds(pods(blue=1, green=1)).all_failed(LATE)
        rounds.round({"blue": LATE, "green": LATE, NOBODY: LATE})
        assert rounds.named == [()]

        assert rounds.all_failed(LATE).named == [()]
        rounds.now_s += ALONE_S
        assert rounds.all_failed(LATE).named == [("blue",), ("green",)]

    def test_of_which_none_fails_are_together_again_after_ten_minutes_and_then_twice_as_long(self):
        rounds = Rounds(pods(blue=1, green=1)).all_failed(LATE, after_s=0).round(after_s=ALONE_S)
        assert rounds.named == [()]

        rounds.all_failed(LATE, after_s=ALONE_S)
        assert rounds.named == [("blue",), ("green",)]
        rounds.now_s += ALONE_S
        assert rounds.named == [()]
