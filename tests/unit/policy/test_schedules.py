"""Known events: when they are in force, over changes of the clock too, and what they ask for."""

from datetime import datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import a_sizing_request
from policy_builders import a_need
from tonnage.api.schedules import Schedule
from tonnage.policy.need import Capacity, raise_to_floor
from tonnage.sizing.schedules import events_within, shares_of_year
from tonnage.sizing.search import size
from tonnage.units import DAY_S, HOUR_S, significant

CAPACITY = Capacity(sizing=size(a_sizing_request()))
EACH = CAPACITY.each_requests_per_s(1)
LEAD_S = 300.0


def a_schedule(cron="0 8 * * 1-5", **changes):
    """Eight o'clock in Berlin on working days, for two hours: four replicas."""
    given = {"time_zone": "Europe/Berlin", "duration": "2h", "min_replicas": 4}
    return Schedule(cron=cron, **given | changes)


def unix_s(utc):
    return datetime.fromisoformat(f"{utc}+00:00").timestamp()


def events(*schedules, at, lead_s=LEAD_S):
    return events_within(schedules, now_s=unix_s(at), lead_s=lead_s)


def in_force(cron, *, at, **changes):
    return bool(events(a_schedule(cron, **changes), at=at, lead_s=0))


class TestWhen:
    """Friday, 2026-01-16: eight o'clock in Berlin is seven in UTC."""

    @pytest.mark.parametrize(
        ("at", "number"),
        [
            ("2026-01-16T06:54:59", 0),
            ("2026-01-16T06:55:00", 1),  # Ready at eight, if asked for now
            ("2026-01-16T07:00:00", 1),
            ("2026-01-16T08:59:59", 1),
            ("2026-01-16T09:00:00", 0),
            ("2026-01-17T07:30:00", 0),  # Saturday
            ("2026-01-19T07:30:00", 1),
        ],
    )
    def test_is_from_a_lead_before_until_the_end(self, at, number):
        assert len(events(a_schedule(), at=at)) == number

    def test_an_event_knows_its_times_and_whether_it_has_begun(self):
        [coming] = events(a_schedule(), at="2026-01-16T06:56:00")
        [running] = events(a_schedule(), at="2026-01-16T07:00:00")

        assert (coming.begins_s, coming.has_begun) == (unix_s("2026-01-16T07:00:00"), False)
        assert (running.ends_s, running.has_begun) == (unix_s("2026-01-16T09:00:00"), True)

    def test_one_that_begins_anew_before_it_ends_never_ends(self):
        over_and_over = a_schedule("*/30 * * * *", duration="31m")
        times = [f"2026-01-16T{hour:02}:{minute:02}:00" for hour in (3, 4) for minute in range(60)]

        assert [len(events(over_and_over, at=at, lead_s=0)) for at in times] == [1] * 120

    @pytest.mark.parametrize("minute", [0, 1, 30, 58, 59])
    def test_one_that_begins_each_minute_is_the_one_of_this_minute(self, minute):
        at = f"2026-01-16T07:{minute:02}:30"

        [event] = events(a_schedule("* * * * *", duration="1m"), at=at, lead_s=0)

        assert (event.begins_s, event.has_begun) == (unix_s(at) - 30, True)

    def test_one_that_began_a_week_ago_may_still_last(self):
        at = "2026-01-23T06:59:59"

        assert in_force("0 8 16 1 *", at=at, duration="168h")
        assert not in_force("0 8 16 1 *", at=at, duration="167h")

    def test_a_longer_lead_sees_farther(self):
        assert events(a_schedule(), at="2026-01-16T04:00:00", lead_s=3 * HOUR_S)
        assert not events(a_schedule(), at="2026-01-16T04:00:00", lead_s=3 * HOUR_S - 1)

    def test_each_schedule_has_its_own_event(self):
        first, second = a_schedule(), a_schedule("30 7 * * *", time_zone="Etc/UTC")

        found = events(first, second, at="2026-01-16T07:45:00")

        assert [each.schedule for each in found] == [first, second]

    def test_without_schedules_is_never(self):
        assert events(at="2026-01-16T07:45:00") == ()


class TestDaylightSaving:
    """Berlin's clocks go from 02:00 to 03:00 on 2026-03-29 and from 03:00 to 02:00 on 10-25."""

    @pytest.mark.parametrize(
        ("at", "is_in_force"),
        [
            ("2026-03-27T06:59:59", False),
            ("2026-03-27T07:00:00", True),  # Friday, 08:00 CET
            ("2026-03-30T05:59:59", False),
            ("2026-03-30T06:00:00", True),  # Monday, 08:00 CEST
            ("2026-03-30T08:00:00", False),
            ("2026-10-23T06:00:00", True),  # Friday, 08:00 CEST
            ("2026-10-26T06:59:59", False),
            ("2026-10-26T07:00:00", True),  # Monday, 08:00 CET
        ],
    )
    def test_moves_with_the_clocks_of_its_zone(self, at, is_in_force):
        assert in_force("0 8 * * 1-5", at=at) == is_in_force

    @pytest.mark.parametrize(
        ("begins", "ends"),
        [
            ("2026-03-29T00:00:00", "2026-03-29T02:00:00"),  # 01:00 CET to 04:00 CEST
            ("2026-10-24T23:00:00", "2026-10-25T01:00:00"),  # 01:00 CEST to the second 02:00
        ],
    )
    def test_lasts_as_long_as_ever_over_a_change(self, begins, ends):
        [event] = events(a_schedule("0 1 * * *"), at=begins)

        assert (event.begins_s, event.ends_s) == (unix_s(begins), unix_s(ends))

    def test_what_would_begin_in_the_hour_that_is_skipped_begins_after_it(self):
        [event] = events(a_schedule("30 2 * * *"), at="2026-03-29T00:59:00")

        assert event.begins_s == unix_s("2026-03-29T01:00:00")

    @pytest.mark.parametrize(
        ("at", "is_in_force"),
        [
            ("2026-10-25T00:29:59", False),
            ("2026-10-25T00:30:00", True),  # the first 02:30
            ("2026-10-25T01:15:00", True),  # the second 02:15
            ("2026-10-25T01:29:59", True),
            ("2026-10-25T01:30:00", False),  # the second 02:30
            ("2026-10-25T02:15:00", False),
        ],
    )
    def test_what_begins_in_the_hour_that_comes_twice_does_so_once(self, at, is_in_force):
        assert in_force("30 2 * * *", at=at, duration="1h") == is_in_force

    def test_a_search_that_begins_in_the_second_of_two_hours_finds_nothing_past(self):
        # Two hours before is the second 02:15, and the next 02:30 that of the day after.
        assert not in_force("30 2 * * *", at="2026-10-25T03:15:00")
        assert in_force("30 2 * * *", at="2026-10-26T01:30:00")

    def test_utc_has_none(self):
        for at in ("2026-03-28T08:00:00", "2026-03-30T08:00:00", "2026-10-26T08:00:00"):
            assert in_force("0 8 * * *", at=at, time_zone="Etc/UTC", duration="1m")


class TestFloor:
    AT = "2026-01-16T07:30:00"

    def raised(self, need, *schedules, at=AT):
        return raise_to_floor(a_need(need), CAPACITY, events(*schedules, at=at))

    def test_is_the_number_of_replicas_that_is_named(self):
        answer = self.raised(2, a_schedule())

        assert (answer.replicas, answer.replicas_with_margin) == (4, 4)
        assert [each.code for each in answer.reasons] == ["Demand", "Schedule"]
        assert answer.reasons[-1].message == (
            "the event of 0 8 * * 1-5 Europe/Berlin lasts until 2026-01-16 10:00 CET: minReplicas 4"
        )

    def test_says_when_an_event_that_is_to_come_begins(self):
        answer = self.raised(2, a_schedule(), at="2026-01-16T06:57:00")

        assert "begins 2026-01-16 08:00 CET: minReplicas 4" in answer.reasons[-1].message

    def test_is_what_a_rate_that_is_named_takes(self):
        rate = f"{2.5 * EACH:.4f}"
        known = a_schedule(min_replicas=None, requests_per_second=rate)

        answer = self.raised(2, known)

        assert answer.replicas == 3
        assert answer.planned_requests_per_s == float(rate)
        assert answer.reasons[-1].message.endswith(
            f"{significant(float(rate))} requests/s at {significant(EACH)} per replica need 3"
        )

    @pytest.mark.parametrize(("replicas", "floor"), [(2, 3), (3, 3), (5, 5)])
    def test_is_the_higher_of_both(self, replicas, floor):
        known = a_schedule(min_replicas=replicas, requests_per_second=f"{2.5 * EACH:.4f}")

        assert self.raised(1, known).replicas == floor

    def test_is_the_highest_of_events_at_once(self):
        low, high = a_schedule(min_replicas=3), a_schedule("0 7 * * *", min_replicas=6)

        assert self.raised(1, low, high).replicas == 6
        assert self.raised(1, high, low).replicas == 6

    @pytest.mark.parametrize("need", [4, 7])
    def test_lowers_nothing_and_says_nothing_where_as_much_is_needed(self, need):
        assert self.raised(need, a_schedule()) == a_need(need, floor=4)

    def test_keeps_a_margin_above_it(self):
        answer = raise_to_floor(
            a_need(3, with_margin=5), CAPACITY, events(a_schedule(), at=self.AT)
        )

        assert (answer.replicas, answer.replicas_with_margin) == (4, 5)

    def test_is_none_without_events(self):
        assert self.raised(2, a_schedule(), at="2026-01-16T12:00:00") == a_need(2)


def fields(low, high):
    number = st.integers(low, high).map(str)
    parts = st.tuples(st.integers(low, high), st.integers(low, high)).map(sorted)
    spans = parts.map(lambda pair: f"{pair[0]}-{pair[1]}")
    return st.one_of(st.just("*"), st.integers(1, 31).map(lambda step: f"*/{step}"), number, spans)


crons = st.tuples(fields(0, 59), fields(0, 23), fields(1, 28), fields(1, 12), fields(0, 7))


@settings(max_examples=50)
@given(crons.map(" ".join), st.sampled_from(["Europe/Berlin", "Australia/Lord_Howe", "Etc/UTC"]))
def test_every_schedule_begins_again(cron, zone):
    lead_s = 50 * 366 * DAY_S

    [event] = events(a_schedule(cron, time_zone=zone), at="2026-01-16T07:30:00", lead_s=lead_s)

    assert event.ends_s > unix_s("2026-01-16T07:30:00")


class TestTheYear:
    """Shares of a year in which so many replicas run, of two beside the schedules."""

    def shares(self, *schedules):
        [found] = shares_of_year(schedules, [2], round)
        return found

    def test_without_schedules_is_of_the_replicas_that_are_planned(self):
        assert self.shares() == {2: 1.0}

    def test_has_a_floor_for_as_long_as_it_lasts(self):
        nightly = a_schedule("0 20 * * *", duration="6h")

        assert self.shares(nightly) == pytest.approx({2: 0.75, 4: 0.25}, abs=1e-3)

    def test_counts_the_highest_of_those_that_overlap(self):
        long = a_schedule("0 8 * * *", duration="12h")
        peak = a_schedule("0 12 * * *", duration="3h", min_replicas=None, requests_per_second=7)

        found = self.shares(long, peak)
        assert found == pytest.approx({2: 12 / 24, 4: 9 / 24, 7: 3 / 24}, abs=1e-3)

    def test_is_not_lowered_by_a_floor_below_the_replicas(self):
        assert self.shares(a_schedule(min_replicas=1)) == {2: 1.0}

    @pytest.mark.parametrize("cron", ["* * * * *", "*/5 * * * *"])
    def test_is_filled_by_what_begins_again_before_it_ends(self, cron):
        assert self.shares(a_schedule(cron, duration="30m"))[4] > 0.99

    def test_has_what_comes_once_in_it(self):
        day = a_schedule("0 0 27 11 *", duration="24h")

        assert self.shares(day)[4] == pytest.approx(1 / 365)
