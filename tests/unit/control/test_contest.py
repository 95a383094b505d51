"""Two writers of one thing: what counts as a correction, when one gives way and for how long."""

from dataclasses import replace

import pytest

from fleet_builders import NOW_S
from tonnage.control.input.contest import (
    QUIET_S,
    WITHIN_S,
    Contest,
    Seen,
    overwritten,
    told,
    watched,
)

MINUTE_S = 60


def replicas(value, *managers, generation):
    return Seen(value=str(value), managers=managers, generation=generation, is_owned_whole=True)


def a_template(value, *managers, generation):
    return Seen(value=value, managers=managers, generation=generation, is_owned_whole=False)


def look(contest, seen, *, after_s=0, spec_generation=1):
    return watched(contest, seen, spec_generation=spec_generation, now_s=NOW_S + after_s)


def write(contest, value, *, after_s=0):
    return replace(overwritten(contest, now_s=NOW_S + after_s), ours=str(value))


def corrected(*after_s):
    """A contest over replicas: ours are 4, another makes 2 of them, and each time we write 4."""
    contest = look(Contest(), replicas(4, generation=1))
    for number, at_s in enumerate(after_s):
        contest = look(contest, replicas(2, "argocd", generation=2 * number + 2), after_s=at_s)
        contest = write(contest, 4, after_s=at_s)
        contest = look(contest, replicas(4, generation=2 * number + 3), after_s=at_s)
    return contest


def undone(contest, *, after_s, generation=100, value=2):
    """Another changes it once more."""
    return look(contest, replicas(value, "argocd", generation=generation), after_s=after_s)


class TestWhatCounts:
    def test_a_write_over_anothers_change_of_ours(self):
        assert corrected(0, 60).corrected_at_s == (NOW_S, NOW_S + 60)

    def test_no_write_over_what_was_never_ours(self):
        first = look(Contest(), replicas(2, "kubectl-create", generation=1))

        assert write(first, 4).corrected_at_s == ()

    def test_no_write_over_ours(self):
        assert write(look(Contest(), replicas(4, generation=1)), 5).corrected_at_s == ()

    def test_no_second_write_over_the_same_change_when_the_first_failed(self):
        seen = replicas(2, "argocd", generation=2)
        contest = write(look(look(Contest(), replicas(4, generation=1)), seen), 4)

        again = write(look(contest, seen, after_s=15), 4, after_s=15)

        assert again.corrected_at_s == (NOW_S,)

    def test_a_change_that_another_makes_before_we_look_again(self):
        # Our write and its undoing are two generations, and what is seen is the same.
        contest = write(undone(corrected(), after_s=0, generation=2), 4)

        again = write(undone(contest, after_s=15, generation=4), 4, after_s=15)

        assert again.corrected_at_s == (NOW_S, NOW_S + 15)

    def test_one_who_writes_what_we_wrote_undoes_nothing(self):
        same = look(corrected(), replicas(4, "argocd", generation=2))

        assert write(same, 5).corrected_at_s == ()


class TestGivingWay:
    def test_is_after_three_corrections_when_the_other_comes_back(self):
        two, three = corrected(0, 60), corrected(0, 60, 120)

        assert undone(two, after_s=180).held_at is None
        assert three.held_at is None
        assert undone(three, after_s=180).held_at == 1

    @pytest.mark.parametrize(
        ("after_s", "held"),
        [
            ((0, 300, 600), True),
            ((0, 300, 601), False),
            ((0, 590, 600), True),
            ((0, 601, 602, 603), True),
        ],
    )
    def test_takes_three_within_ten_minutes(self, after_s, held):
        contest = undone(corrected(*after_s), after_s=after_s[-1] + 15)

        assert (contest.held_at is not None) is held

    @pytest.mark.parametrize(("later_s", "held"), [(WITHIN_S, True), (WITHIN_S + 1, False)])
    def test_is_not_for_a_change_long_after(self, later_s, held):
        contest = undone(corrected(0, 60, 120), after_s=120 + later_s)

        assert (contest.held_at is not None) is held

    def test_names_who_and_how_often_and_from_what_to_what(self):
        contest = undone(corrected(0, 60, 120), after_s=180)

        assert told(contest, "replicas") == (
            "argocd changed the replicas from 4 to 2 after 3 corrections within 2.0 min: Tonnage "
            "does not write the replicas until the spec changes or nobody else changes the "
            "replicas for 30.0 min"
        )

    def test_is_told_of_nobody_who_was_corrected(self):
        assert told(corrected(0, 60, 120), "replicas") is None


class TestResuming:
    held = undone(corrected(0, 60, 120), after_s=180)

    def test_is_when_the_spec_changes(self):
        same = replicas(2, "argocd", generation=100)

        assert look(self.held, same, after_s=195).held_at == 1
        assert look(self.held, same, after_s=195, spec_generation=2).held_at is None

    @pytest.mark.parametrize(("quiet_s", "held"), [(QUIET_S - 1, True), (QUIET_S, False)])
    def test_is_when_the_other_has_been_quiet(self, quiet_s, held):
        contest = undone(self.held, after_s=180 + quiet_s)

        assert (contest.held_at is not None) is held

    def test_waits_as_long_again_for_one_who_is_not_quiet(self):
        busy = undone(self.held, after_s=1000, generation=101, value=3)

        assert undone(busy, after_s=180 + QUIET_S, generation=101, value=3).held_at == 1
        assert undone(busy, after_s=1000 + QUIET_S, generation=101, value=3).held_at is None

    def test_our_own_writes_of_other_fields_are_no_change_of_the_others(self):
        # A template that is applied meanwhile counts as a generation of the Deployment too.
        applied = undone(self.held, after_s=1000, generation=101)

        assert undone(applied, after_s=180 + QUIET_S, generation=101).held_at is None

    def test_begins_to_count_anew(self):
        again = undone(self.held, after_s=180 + QUIET_S)

        assert write(again, 4, after_s=180 + QUIET_S).corrected_at_s == (NOW_S + 180 + QUIET_S,)

    def test_is_not_put_off_by_a_clock_that_is_set_back(self):
        back = undone(self.held, after_s=-7200)

        assert undone(back, after_s=-7200 + QUIET_S).held_at is None


class TestATemplate:
    """Others may own parts of it that we never set: ours then stands beside theirs."""

    def test_as_our_own_write_left_it_is_ours(self):
        ours = look(Contest(), a_template("ours", generation=1))
        edited = look(ours, a_template("edited", "kubectl", generation=2))
        applied = replace(overwritten(edited, now_s=NOW_S), awaited=("edited", 3))

        mended = look(applied, a_template("mended", "kubectl", generation=3))

        assert edited.change.became == "edited"
        assert (mended.ours, mended.change.is_over) == ("mended", True)
        assert overwritten(mended, now_s=NOW_S + 15).corrected_at_s == (NOW_S,)

    def test_that_was_changed_more_often_than_we_wrote_is_the_others(self):
        ours = look(Contest(), a_template("ours", generation=1))
        edited = look(ours, a_template("edited", "kubectl", generation=2))
        applied = replace(overwritten(edited, now_s=NOW_S), awaited=("edited", 3))

        newer = look(applied, a_template("newer", "kubectl", generation=4), after_s=15)

        assert newer.change.became == "newer"
        assert overwritten(newer, now_s=NOW_S + 15).corrected_at_s == (NOW_S, NOW_S + 15)

    def test_that_keeps_what_another_added_is_no_new_change_when_replicas_change(self):
        ours = look(Contest(), a_template("ours", generation=1))
        added = look(ours, a_template("added", "kubectl", generation=2))
        applied = replace(overwritten(added, now_s=NOW_S), awaited=("added", 3))

        scaled = look(applied, a_template("added", "kubectl", generation=9))

        assert overwritten(scaled, now_s=NOW_S + 15).corrected_at_s == (NOW_S,)
