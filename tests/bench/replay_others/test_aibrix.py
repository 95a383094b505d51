import pytest

from replay_others.aibrix import Apa, Kpa, Window
from rival_builders import a_signal

pytestmark = pytest.mark.thorough


def after(rule, usages, *, asked=4):
    """What it asks for after these mean usages, one each 10 s, of so many pods long there."""
    rule.window.changed_s = -300.0
    for n, usage in enumerate(usages):
        found = rule.replicas(a_signal(asked, at_s=10.0 * n, kv_usage=[usage] * asked))
    return found


def test_the_kpa_as_coded_asks_for_two_replicas_however_many_are_full():
    # 0.9 / 0.5 = 1.8, not below half of 4
    assert after(Kpa(target=0.5), [0.9]) == 2
    assert after(Kpa(target=0.5), [0.9], asked=3) == 2


def after_three_minutes(early, late):
    """What the KPA asks four replicas to be after two minutes of one usage and one of another."""
    usages = [early] * 12 + [late] * 6
    known = [(10.0 * n, usage) for n, usage in enumerate(usages[:-1])]
    rule = Kpa(target=0.5, window=Window(values=known, changed_s=-300.0))
    return rule.replicas(a_signal(4, at_s=170.0, kv_usage=[late] * 4))


def test_the_kpa_never_goes_down_in_a_panic():
    # 0.333 in the mean of three minutes, 0.6 in that of one: 1.8 times.
    assert after_three_minutes(0.2, 0.6) == 2
    # 0.433 and 0.9: 2.08 times.
    assert after_three_minutes(0.2, 0.9) == 4


def test_the_apa_multiplies_what_there_is():
    assert after(Apa(target=0.5), [0.9]) == 8  # 4 x 1.8 = 7.2
    assert after(Apa(target=0.5), [0.45]) == 4  # exactly a tenth below
    assert after(Apa(target=0.5), [0.1]) == 2  # 0.8, but not below half


def test_the_apa_means_over_three_minutes():
    # (17 x 0.5 + 1.0) / 18 = 0.528
    assert after(Apa(target=0.5), [0.5] * 17 + [1.0]) == 4


def test_nothing_goes_down_within_five_minutes_of_a_change():
    rule = Apa(target=0.5)
    assert rule.replicas(a_signal(4, kv_usage=[0.9] * 4)) == 8

    found = [
        rule.replicas(a_signal(8, at_s=at_s, kv_usage=[0.0] * 8)) for at_s in (200.0, 290.0, 300.0)
    ]
    assert found == [8, 8, 4]


def test_nothing_goes_down_within_five_minutes_of_the_start():
    rule = Apa(target=0.5)
    found = [rule.replicas(a_signal(4, at_s=at_s, kv_usage=[0.0] * 4)) for at_s in (0.0, 290, 300)]

    assert found == [4, 4, 2]
