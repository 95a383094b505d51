"""How long replicas are held, by hand: notes a minute apart."""

import pytest

from tonnage.estimate.holding import NOTHING_HELD, STARTS, held_starts, highest, with_held
from tonnage.estimate.ways import BIN_S

START_S = 1000 * BIN_S


def after(*notes, held=NOTHING_HELD, times=1, start=5):
    """Each: what replicas stood for that were held for 1, 2, 3, ... starts, and what came.

    ``start``: in notes.
    """
    for stood_for, came in notes * times:
        held = with_held(held, stood_for, came=came, notes_in_a_start=start)
    return held


def from_three(*stood_for):
    """Held for one and two starts, replicas stand for what they do with three."""
    return (stood_for[0], stood_for[0], *stood_for)


def usual(held):
    """The record without the two times that are in doubt."""
    return held[2:]


class TestTheRecord:
    def test_is_of_what_was_short_and_what_was_held_for_nothing(self):
        held = after((from_three(4.0, 6.0, 8.0, 9.0), 8.0))

        assert usual(held) == ((4.0, 0.0), (2.0, 0.0), (0.0, 0.0), (0.0, 1.0))

    def test_leaves_out_what_headroom_is_for(self):
        # 15 % above 4 are 4.6.
        assert usual(after(((4.0,) * 6, 4.5))) == usual(NOTHING_HELD)
        assert usual(after(((4.0,) * 6, 4.7)))[0][0] == pytest.approx(0.7)

    def test_forgets_within_days(self):
        once = after((from_three(4.0, 8.0, 8.0, 8.0), 8.0))
        later = after(((8.0,) * 6, 8.0), held=once, times=1440)

        assert usual(later)[0][0] == pytest.approx(4.0 / 2.71828, rel=0.01)

    def test_begins_with_a_doubt_of_what_is_shorter_than_usual(self):
        # A tenth of 8, in each of five notes.
        shorts = [short for short, _ in after(((8.0,) * 6, 8.0))]

        assert shorts == pytest.approx([4.0, 4.0, 0.0, 0.0, 0.0, 0.0], rel=1e-3)

    def test_takes_no_note_that_was_planned_before_there_was_any(self):
        assert after(((), 3.0)) == NOTHING_HELD


class TestHowLongReplicasAreHeld:
    def test_is_three_starts_where_nothing_is_known(self):
        assert held_starts(NOTHING_HELD, quantile=0.99) == 3
        assert held_starts(after(((8.0,) * 6, 8.0), times=100), quantile=0.99) == 3

    def test_is_less_where_demand_falls_and_does_not_come_back(self):
        # The doubt is 99 x 5 x 0.8 = 396; two starts more hold 2 for nothing in each note.
        fell = ((4.0, 5.0, 6.0, 8.0, 8.0, 8.0), 4.0)

        assert held_starts(after(fell, times=150), quantile=0.99) == 3
        assert held_starts(after(fell, times=250), quantile=0.99) == 1
        assert held_starts(after(fell, times=40), quantile=0.9) == 1  # 9 x 5 x 0.8 = 36

    def test_is_more_again_where_it_came_back(self):
        fell, back = ((4.0, 5.0, 6.0, 6.0, 6.0, 6.0), 4.0), ((4.0, 5.0, 6.0, 6.0, 6.0, 6.0), 6.0)

        assert held_starts(after(*(fell,) * 250, *(back,) * 5), quantile=0.99) == 3

    def test_is_as_long_as_being_short_costs_more(self):
        # In 60 minutes 4 replicas are short in two, or held in 50 and more: 99 x 8 against 200.
        back = (from_three(4.0, 8.0, 8.0, 8.0), 8.0)
        hour = (back, back, *(((from_three(4.0, 8.0, 8.0, 8.0)), 4.0),) * 50)

        assert held_starts(after(*hour), quantile=0.99) == 6
        assert held_starts(after(*hour), quantile=0.9) == 3  # 9 x 8 are less than 200

    def test_is_no_longer_for_a_jump_that_no_holding_helps(self):
        jump = ((4.0,) * 6, 8.0)
        fell = (from_three(4.0, 4.5, 5.0, 6.0), 4.0)

        assert held_starts(after(jump, *(fell,) * 20), quantile=0.99) == 3

    def test_is_no_longer_for_less_than_a_tenth(self):
        def of(usual_short, longer_short):
            return tuple((short, 0.0) for short in (9, 9, usual_short, *(longer_short,) * 3))

        assert held_starts(of(1.0, 0.91), quantile=0.99) == 3
        assert held_starts(of(1.0, 0.89), quantile=0.99) == 6


class TestTheHighestDemand:
    def test_is_that_of_so_many_starts_until_now(self):
        # A start of two minutes: 2, 4, 6, 12, 24 and 48 minutes ago at most.
        recent = [(START_S - 60 * ago, float(ago)) for ago in range(59, -1, -1)]

        assert highest(recent, {}, at_s=START_S, lead_s=120) == (2.0, 4.0, 6.0, 12.0, 24.0, 48.0)

    def test_is_read_off_means_of_ten_minutes_beyond_the_last_hour(self):
        # A start of ten minutes: 10 to 240 minutes; the bins before are 61 and more ago.
        recent = [(START_S - 60 * ago, 1.0) for ago in range(60, -1, -1)]
        pattern = {1000 - ago: (float(ago), 10) for ago in range(40)}

        assert highest(recent, pattern, at_s=START_S, lead_s=600) == (
            1.0,
            1.0,
            1.0,
            1.0,
            12.0,
            24.0,
        )

    def test_is_nothing_before_any_note(self):
        assert highest([], {}, at_s=START_S, lead_s=120) == (0.0,) * len(STARTS)
