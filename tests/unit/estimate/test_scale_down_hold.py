"""How long replicas are held, by hand: notes a minute apart."""

import pytest

from tonnage.estimate.forecasters import BIN_S
from tonnage.estimate.headroom import NOTHING_HELD, STARTS, held_starts, highest, with_held

START_S = 1000 * BIN_S


def after(*notes, held=NOTHING_HELD, times=1):
    """Each: what replicas stood for that were held for 3, 6, 12, 24 starts, and what came."""
    for provisioned_for, came in notes * times:
        held = with_held(held, provisioned_for, came=came)
    return held


class TestTheRecord:
    def test_is_of_what_was_short_and_what_was_held_for_nothing(self):
        held = after(((4.0, 6.0, 8.0, 9.0), 8.0))

        assert held == ((4.0, 0.0), (2.0, 0.0), (0.0, 0.0), (0.0, 1.0))

    def test_leaves_out_what_headroom_is_for(self):
        # 15 % above 4 are 4.6.
        assert after(((4.0, 4.0, 4.0, 4.0), 4.5)) == NOTHING_HELD
        assert after(((4.0, 4.0, 4.0, 4.0), 4.7))[0][0] == pytest.approx(0.7)

    def test_forgets_within_days(self):
        once = after(((4.0, 8.0, 8.0, 9.0), 8.0))
        later = after(((8.0, 8.0, 8.0, 8.0), 8.0), held=once, times=1440)

        assert later[0][0] == pytest.approx(4.0 / 2.71828, rel=0.01)
        assert later[3][1] == pytest.approx(1.0 / 2.71828, rel=0.01)

    def test_takes_no_note_that_was_planned_before_there_was_any(self):
        assert with_held(NOTHING_HELD, (), came=3.0) == NOTHING_HELD


class TestHowLongReplicasAreHeld:
    def test_is_three_starts_where_nothing_is_known_or_nothing_ever_came_back(self):
        fell = after(((4.0, 6.0, 8.0, 8.0), 4.0), times=100)

        assert held_starts(NOTHING_HELD, quantile=0.99) == 3
        assert held_starts(fell, quantile=0.99) == 3

    def test_is_as_long_as_being_short_costs_more(self):
        # In 60 minutes 4 replicas are short in two, or held in 50 and more: 99 x 8 against 200.
        back = ((4.0, 8.0, 8.0, 8.0), 8.0)
        hour = (back, back, *((((4.0, 8.0, 8.0, 8.0), 4.0),) * 50))

        assert held_starts(after(*hour), quantile=0.99) == 6
        assert held_starts(after(*hour), quantile=0.9) == 3  # 9 x 8 are less than 200

    def test_is_no_longer_under_a_promise_that_is_higher_still(self):
        # 0.1 short cost 9.9 at most, by a price of 99; 20 are held.
        held = ((0.1, 0.0), *((0.0, 20.0),) * 3)

        assert held_starts(held, quantile=0.9999) == held_starts(held, quantile=1.0) == 3

    def test_is_as_long_under_a_promise_that_is_higher_still_as_under_p99(self):
        # One short costs 99, nine tenths of which are 89.1.
        def held(over):
            return ((1.0, 0.0), *((0.0, over),) * 3)

        for quantile in (0.99, 0.9999, 1.0):
            assert held_starts(held(89.0), quantile=quantile) == 6
            assert held_starts(held(89.2), quantile=quantile) == 3

    def test_is_no_longer_for_a_jump_that_no_holding_helps(self):
        jump = ((4.0, 4.0, 4.0, 4.0), 8.0)
        fell = ((4.0, 4.5, 5.0, 6.0), 4.0)

        assert held_starts(after(jump, *(fell,) * 20), quantile=0.99) == 3

    def test_is_no_longer_for_less_than_a_tenth(self):
        assert held_starts(((1.0, 0.0), (0.91, 0.0), (0.91, 0.0), (0.91, 0.0)), quantile=0.99) == 3
        assert held_starts(((1.0, 0.0), (0.89, 0.0), (0.89, 0.0), (0.89, 0.0)), quantile=0.99) == 6


class TestTheHighestDemand:
    def test_is_that_of_so_many_starts_until_now(self):
        # A start of two minutes: 6, 12, 24 and 48 minutes ago at most.
        recent = [(START_S - 60 * ago, float(ago)) for ago in range(59, -1, -1)]

        assert highest(recent, {}, at_s=START_S, lead_s=120) == (6.0, 12.0, 24.0, 48.0)

    def test_is_read_off_means_of_ten_minutes_beyond_the_last_hour(self):
        # A start of ten minutes: 30, 60, 120 and 240 minutes; the bins before are 61 and more ago.
        recent = [(START_S - 60 * ago, 1.0) for ago in range(60, -1, -1)]
        pattern = {1000 - ago: (float(ago), 10) for ago in range(40)}

        assert highest(recent, pattern, at_s=START_S, lead_s=600) == (1.0, 1.0, 12.0, 24.0)

    def test_is_nothing_before_any_note(self):
        assert highest([], {}, at_s=START_S, lead_s=120) == (0.0,) * len(STARTS)
