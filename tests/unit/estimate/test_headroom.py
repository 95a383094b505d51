"""Headroom: what demand has risen by, as often as a promise cannot bear."""

from tonnage.estimate.headroom import EDGES, FIRST, UNSEEN, add_forecast_error, headroom


def after(*shares, times=1, rises=FIRST, risen=0.0):
    for _ in range(times):
        for share in shares:
            rises = add_forecast_error(rises, share, risen=risen)
    return rises


def test_before_any_note_it_is_a_twentieth_where_the_promise_is_strict():
    # Three of 30 notes, a third of whose requests is late: 3.3 %.
    assert headroom(FIRST, quantile=0.99) == 0.05
    assert headroom(FIRST, quantile=0.95) == 0.0


def test_calm_takes_it_back():
    assert headroom(after(-0.01, times=60), quantile=0.99) == 0.05
    assert headroom(after(-0.01, times=75), quantile=0.99) == 0.0  # 1 % of 105 are 1


def test_rises_that_few_notes_show_are_what_the_promise_allows():
    calm = after(0.0, times=300)

    # Of 330 a promise of 99 % bears ten notes, a third of each late, beside those three.
    assert headroom(after(0.12, times=5, rises=calm), quantile=0.99) == 0.0
    assert headroom(after(0.12, times=20, rises=calm), quantile=0.99) == 0.15


def test_it_is_the_edge_above_the_rises_and_no_more_than_the_last():
    assert headroom(after(0.01, times=100), quantile=0.99) == 0.02
    assert headroom(after(0.07, times=100), quantile=0.99) == 0.1
    assert headroom(after(0.4, times=100), quantile=0.99) == EDGES[-1]


def test_before_anything_is_measured_it_is_the_most_that_is_ever_kept():
    assert headroom(after(0.4, times=100), quantile=0.99) == UNSEEN


def test_a_jump_is_no_matter_of_headroom():
    assert after(2.0) == after(0.51) == FIRST
    assert after(0.49) != FIRST


def test_a_jump_that_was_half_seen_when_it_was_planned_for_is_none_either():
    # From 2 to 6, planned for 5: a fifth above that, and three times what came before.
    assert after(0.2, risen=2.0) == FIRST
    assert after(0.2, risen=0.4) != FIRST


def test_a_plan_that_saw_a_jump_coming_counts_as_calm():
    assert sum(after(0.0, risen=2.0)) > 30.9  # 30 before, a day's weight less of one


def test_a_day_later_little_is_left():
    wild = after(0.12, times=60)
    calm = after(0.0, times=4 * 1440, rises=wild)

    assert headroom(wild, quantile=0.99) == 0.15
    assert headroom(calm, quantile=0.99) == 0.0
