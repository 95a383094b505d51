import pytest

from rival_builders import a_signal
from tonnage.replay.baselines.hpa import Behavior, Hpa, Rate, for_pods, for_total


def asked_by_turns(hpa, turns, *, start, about=None):
    """What becomes of what metrics ask for, by time; each follows from the one before."""
    now, found = start, []
    for at_s, wanted in turns:
        now = hpa.replicas(a_signal(now, at_s=at_s, about=about), wanted)
        found.append(now)
    return found


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.9, 0.9, 0.9, 0.9], 6),  # 3.6 / 0.7 = 5.14
        ([0.76, 0.76, 0.76, 0.76], 4),  # 1.086 of the target is within a tenth
        ([0.2, 0.2, 0.2, 0.2], 2),  # 0.8 / 0.7 = 1.14
        ([0.7, 0.7, 0.7, 0.7], 4),
    ],
)
def test_the_mean_of_pods_is_brought_to_the_target(values, expected):
    assert for_pods(values, 0.7, a_signal(4)) == expected


def test_pods_without_a_value_count_as_zero_on_the_way_up():
    # 2 x 1.0 / 0.7 = 2.86 over 4 pods is 0.71 of the target: the other direction, so nothing.
    assert for_pods([1.0, 1.0], 0.7, a_signal(4)) == 4
    # 3 x 1.4 / 0.7 = 6 over 4 pods is 1.5.
    assert for_pods([1.4, 1.4, 1.4], 0.7, a_signal(4)) == 6


def test_pods_without_a_value_count_as_on_target_on_the_way_down():
    # 0.2 / 0.7 + 2 = 2.29, where without them it were 1.
    assert for_pods([0.1, 0.1], 0.7, a_signal(4)) == 3


def test_an_external_metric_is_shared_by_all_replicas():
    assert for_total(21.0, 5, a_signal(4, ready=2)) == 4  # 1.05 of the target
    assert for_total(23.0, 5, a_signal(4, ready=2)) == 5
    assert for_total(0.0, 5, a_signal(4)) == 0


def test_nothing_answered_changes_nothing():
    assert for_pods([], 0.7, a_signal(4)) == 4
    assert for_total(None, 5, a_signal(4)) == 4


def test_it_goes_up_at_once_by_the_higher_of_four_pods_and_twice_as_many():
    assert asked_by_turns(Hpa(), [(0, 50), (15, 50), (30, 50)], start=1) == [5, 10, 20]


def test_it_goes_down_when_five_minutes_of_recommendations_allow():
    turns = [(15 * n, 2) for n in range(22)]
    found = asked_by_turns(Hpa(), turns, start=6)

    # The number it began with, 6, counts as recommended at 0: it is out of the window at 300.
    assert found[:20] == [6] * 20
    assert found[20:] == [2, 2]


def test_one_high_recommendation_holds_it_up_for_the_window():
    turns = [(15 * n, 5 if n == 10 else 2) for n in range(40)]
    found = asked_by_turns(Hpa(), turns, start=6)

    assert found.index(5) == 20
    assert found.index(2) == 30


def test_a_window_on_the_way_up_takes_the_lowest_of_it():
    up = Behavior(window_s=30.0, rates=(Rate(fraction=1.0, period_s=60.0),))
    found = asked_by_turns(Hpa(up=up), [(0, 8), (15, 7), (30, 8), (45, 9)], start=4)

    # At 30 the first 4 is out of the window, but not what was recommended at 15.
    assert found == [4, 4, 7, 8]


def test_a_rate_counts_what_was_added_within_its_period():
    up = Behavior(window_s=0.0, rates=(Rate(pods=1, period_s=180.0),))
    turns = [(60 * n, 9) for n in range(7)]

    assert asked_by_turns(Hpa(up=up), turns, start=1) == [2, 2, 2, 3, 3, 3, 4]


def test_a_rate_counts_what_was_taken_away_within_its_period():
    down = Behavior(window_s=0.0, rates=(Rate(pods=1, period_s=120.0),))
    turns = [(60 * n, 1) for n in range(5)]

    assert asked_by_turns(Hpa(down=down), turns, start=6) == [5, 5, 4, 4, 3]


def test_it_stays_within_the_limits_of_the_object():
    about = {"min_replicas": 3, "max_replicas": 6}

    assert asked_by_turns(Hpa(), [(0, 50)], start=4, about=about) == [6]
    assert asked_by_turns(Hpa(), [(0, 0), (300, 0)], start=4, about=about) == [4, 3]
