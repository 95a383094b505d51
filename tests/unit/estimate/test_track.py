"""What came to an engine, with pages in between that were none of it."""

import pytest

from tonnage.estimate.metrics import WINDOWS
from tonnage.estimate.track import (
    KEPT_SCRAPES,
    Reading,
    Readings,
    add_reading,
    is_plain,
    track_of,
)

INTERVAL_S = 15.0


def reading(number, arrived, *, running=0.0, waiting=0.0):
    at_s = INTERVAL_S * number
    return Reading(at_s=at_s, arrived=arrived, running=running, waiting=waiting)


def track(*arrived):
    readings = tuple(reading(number, each) for number, each in enumerate(arrived))
    return track_of(readings, interval_s=INTERVAL_S)


def per_s(found, *, least_s=0.0):
    return found.per_s(since_s=-1.0, least_s=least_s)


STEADY = (100, 110, 120, 130, 140, 150, 160, 170)
"""Ten requests in a scrape: two in three seconds."""


def spoiled(*places, by):
    return [by(each) if at in places else each for at, each in enumerate(STEADY)]


class TestAPageOfAnotherEngine:
    def test_is_not_there_where_all_is_well(self):
        found = track(*STEADY)

        assert found.odd_s == ()
        assert per_s(found) == pytest.approx(70 / 105)

    @pytest.mark.parametrize(
        "by",
        [lambda _: 0, lambda value: 100 * value, lambda value: value / 3, lambda value: 3 * value],
        ids=["zero", "hundredfold", "third", "threefold"],
    )
    @pytest.mark.parametrize("places", [(3,), (2, 5), (3, 4), (2, 3, 4)])
    def test_is_left_out(self, by, places):
        found = track(*spoiled(*places, by=by))

        assert found.odd_s == tuple(INTERVAL_S * place for place in places)
        assert per_s(found) == pytest.approx(70 / 105)

    @pytest.mark.parametrize("by", [lambda _: 0, lambda value: 100 * value])
    def test_is_left_out_as_the_newest_one(self, by):
        found = track(*spoiled(7, by=by))

        assert found.odd_s == (105.0,)
        assert found.totals[-1] == 60

    def test_is_left_out_as_the_first_one(self):
        found = track(*spoiled(0, by=lambda _: 0))

        assert found.odd_s == (0.0,)
        assert per_s(found) == pytest.approx(60 / 90)

    def test_leaves_the_gauges_of_the_last_that_was_its_own(self):
        readings = (*(reading(at, each) for at, each in enumerate(STEADY)), reading(8, 0))

        assert track_of(readings, interval_s=INTERVAL_S).sound[-1] == reading(7, 170)


class TestAnEngineThatBeginsAnew:
    def test_is_doubted_for_four_readings(self):
        found = track(*STEADY, 4, 14, 24, 34)

        assert found.totals[-1] == 70
        assert found.odd_s == (120.0, 135.0, 150.0, 165.0)

    def test_is_believed_at_the_fifth_with_all_that_came(self):
        found = track(*STEADY, 4, 14, 24, 34, 44)

        assert found.totals[-1] == 70 + 44
        assert found.odd_s == (120.0,)


class TestACrowd:
    def test_that_runs_or_waits_is_believed_at_once(self):
        before = [reading(at, each) for at, each in enumerate(STEADY)]
        crowd = reading(8, 480, running=100, waiting=200)

        found = track_of((*before, crowd), interval_s=INTERVAL_S)

        assert found.odd_s == ()
        assert found.totals[-1] == 380

    def test_that_is_served_at_once_is_believed_as_it_goes_on(self):
        one, two = track(*STEADY, 320), track(*STEADY, 320, 470)

        assert one.odd_s == (120.0,), "150 in a scrape where 10 came before"
        assert two.odd_s == ()
        assert two.totals[-1] == 370

    @pytest.mark.parametrize(("ended", "odd_s"), [(1500, ()), (1520, (120.0, 135.0, 150.0))])
    def test_of_more_than_a_hundred_a_second_is_impossible(self, ended, odd_s):
        first = STEADY[-1] + ended

        assert track(*STEADY, first, first + 10, first + 20).odd_s == odd_s

    def test_that_no_engine_can_serve_is_not_believed(self):
        found = track(*STEADY, *(1_000_000 + 10 * at for at in range(8)))

        assert found.totals[-1] == 70


class TestRequestsThatVanish:
    def test_few_of_those_in_flight_are_no_new_beginning(self):
        found = track_of(
            (reading(0, 100, running=40), reading(1, 94, running=30), reading(2, 104)),
            interval_s=INTERVAL_S,
        )

        assert found.odd_s == ()
        assert found.totals[-1] == 10


class TestReadingsThatFollowEachOther:
    def is_plain(self, *arrived, newest=()):
        readings = [*(reading(at, each) for at, each in enumerate(arrived)), *newest]
        return is_plain(Readings(readings), interval_s=INTERVAL_S)

    def test_are_the_engines_own(self):
        assert self.is_plain(*STEADY)
        assert self.is_plain(*range(100, 400, 30))
        assert self.is_plain(*STEADY, newest=[reading(8, 480, running=100, waiting=200)])

    def test_are_none_across_a_sudden_growth_or_a_fall(self):
        assert not self.is_plain(*STEADY, 500)
        assert not self.is_plain(*STEADY, 4)
        assert not self.is_plain(*range(100, 250, 30), 720)

    def test_grow_by_four_times_the_usual_and_twenty_at_most(self):
        # Ten in a scrape are usual.
        assert self.is_plain(*STEADY, STEADY[-1] + 4 * 10 + 20)
        assert not self.is_plain(*STEADY, STEADY[-1] + 4 * 10 + 21)

    def test_tell_what_has_ended(self):
        assert reading(0, 100, running=30, waiting=20).num_ended == 50


class TestTheRate:
    def test_is_of_the_readings_since_a_time(self):
        assert track(*STEADY).per_s(since_s=40, least_s=0) == pytest.approx((170 - 130) / 60)


class TestATimeThatWasHardlyWatched:
    def test_tells_nothing(self):
        found = track(100, 110)

        assert per_s(found, least_s=15) == pytest.approx(10 / 15)
        assert per_s(found, least_s=30) is None
        assert found.per_s(since_s=14, least_s=0) is None, "one reading"
        assert track(100).per_s(since_s=100, least_s=0) is None


class TestReadings:
    def noted(self, *numbers):
        found = Readings()
        for number in numbers:
            found = add_reading(found, reading(number, 0), interval_s=INTERVAL_S)
        return [each.at_s / INTERVAL_S for each in found]

    def test_are_kept_once_for_each_scrape(self):
        assert self.noted(1, 2, 2, 3) == [1, 2, 3]

    def test_are_dropped_when_too_old_to_matter(self):
        assert self.noted(*range(KEPT_SCRAPES + 3)) == [*range(3, KEPT_SCRAPES + 3)]

    def test_are_of_the_longest_window_and_eight_before_it(self):
        assert self.noted(*range(100)) == [*range(100 - WINDOWS[-1] - 8, 100)]

    def test_begin_anew_when_the_clock_was_set_back(self):
        assert self.noted(5, 6, 2) == [2]
