"""What starts teach: a vote each, beside what was expected, within what a clock can tell."""

import pytest

from tonnage.estimate.posterior import ObjectPosterior, PodStart, with_starts

NOTHING = ObjectPosterior()


def after(*starts_s, known=NOTHING, waited_s=0, expected_s=240):
    starts = [PodStart(waited_s=waited_s, took_s=each) for each in starts_s]
    return with_starts(known, starts, expected_s=expected_s)


def test_the_first_start_is_one_vote_beside_what_was_expected():
    known = after(60)

    assert known.cold_start_s == pytest.approx((240 + 60) / 2)
    assert known.cold_start_deviation_s == pytest.approx((240 - 60) / 2)
    assert known.num_starts == 1


def test_the_second_moves_the_mean_a_third_of_the_way_and_those_after_it_three_tenths():
    assert after(60, 60).cold_start_s == pytest.approx(150 - 90 / 3)
    assert after(60, 60, 60).cold_start_s == pytest.approx(120 - 0.3 * 60)


def test_starts_that_are_alike_are_believed_in_the_end():
    known = after(*[600] * 20)

    assert known.cold_start_s == pytest.approx(600, rel=0.01)
    assert known.cold_start_deviation_s < 15


@pytest.mark.parametrize("took_s", [-360, 0, 7201, 1_296_000])
def test_a_start_that_no_clock_can_have_told_teaches_nothing(took_s):
    # A node's clock ten minutes behind, less than a second, and a pod of fifteen days.
    assert after(took_s) is NOTHING


def test_a_start_of_a_second_is_one():
    assert after(1).cold_start_s == (240 + 1) / 2


def test_a_start_counts_for_three_times_the_mean_at_most():
    known = after(7200, known=ObjectPosterior(cold_start_s=100, num_starts=9))

    assert known.cold_start_s == pytest.approx(100 + 0.3 * 200)


@pytest.mark.parametrize(("waited_s", "mean_s"), [(60, 30), (900, 450), (10_800, 450), (-5, 0)])
def test_a_wait_for_a_node_counts_for_a_quarter_of_an_hour_at_most(waited_s, mean_s):
    known = after(240, waited_s=waited_s)

    assert known.node_wait_s == pytest.approx(mean_s)
    assert (known.cold_start_s, known.cold_start_deviation_s) == (240, 0)


def test_what_is_expected_counts_for_no_more_than_the_longest_start():
    assert after(7200, expected_s=86_400).cold_start_s == pytest.approx(7200)
