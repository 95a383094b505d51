"""Forecasts by hand: notes a minute apart, a lead of five minutes unless another is given."""

import math
from dataclasses import replace

import pytest

from tonnage.estimate.forecast import (
    DemandPeak,
    DemandSample,
    Forecast,
    History,
    PendingForecast,
    forecast,
    is_burst,
    observe_demand,
    rescale,
    reserve,
    usual,
    without_chance,
)
from tonnage.estimate.forecasters import BIN_S, DAY_S, LAST, RISE, WEEK_S
from tonnage.estimate.headroom import FIRST, KeptRecord, Score, add_forecast_error, headroom

START_S = 2000 * WEEK_S
LEAD_S = 300.0


def a_note(at_s, rate, *, peak=None, planned=None, lead_s=LEAD_S):
    return DemandSample(
        at_s=START_S + at_s,
        demand=rate,
        sure=rate,
        peak=rate if peak is None else peak,
        planned=rate if planned is None else planned,
        lead_s=lead_s,
    )


def after(rate, minutes, *, history=None, since=0, peak=None):
    """A history of notes, ``rate`` being a function of seconds."""
    history = history or History()
    for minute in range(since, since + minutes):
        at_s = 60.0 * minute
        shown = None if peak is None else peak(at_s)
        history = observe_demand(history, a_note(at_s, rate(at_s), peak=shown))
    return history


def a_due(*, due_s=300, noted_s=0, base=1.0, **changes):
    """A forecast that is due, made when the fleet was planned for ``base``."""
    due = PendingForecast(
        noted_s=START_S + noted_s,
        due_s=START_S + due_s,
        forecasts={},
        base=base,
        peak_s=START_S + noted_s,
    )
    return replace(due, **changes)


def notes_of(demands):
    """Notes by the seconds at which they were taken."""
    return tuple((START_S + at_s, demand) for at_s, demand in demands.items())


def forecast_at(history, at_s, rate, *, lead_s=LEAD_S):
    return forecast(history, at_s=START_S + at_s, demand=rate, lead_s=lead_s)


class TestForecast:
    def test_is_the_last_value_where_nothing_is_known(self):
        assert forecast_at(History(), 0, 4.0) == Forecast(demand=4.0, origin=LAST)

    def test_stays_the_last_value_under_a_constant_load(self):
        history = after(lambda _: 4.0, 180)

        assert forecast_at(history, 180 * 60, 4.0).origin == LAST

    def test_goes_on_by_the_trend_of_a_ramp_once_its_record_is_better(self):
        # One request/s more every ten minutes: half a one in a lead of five.
        def ramp(at_s):
            return 1 + at_s / 600

        late = after(ramp, 60)

        found = forecast_at(late, 3600, ramp(3600))
        assert found.demand == pytest.approx(7.5)
        assert found.origin == "trend, whose error was 100% below that of the last value"

    def test_goes_on_by_a_rise_that_lasts_before_there_is_any_record(self):
        # One more in ten minutes: at least 0.3 in 5, a minute to either side of all times left out.
        history = after(lambda at_s: 1 + at_s / 600, 20)

        found = forecast_at(history, 1200, 3.0)

        assert found.origin == RISE
        assert found.demand == pytest.approx(3.3)

    @pytest.mark.parametrize("minute", range(5, 40))
    def test_does_not_go_on_by_a_jump_whenever_it_is_looked_at(self, minute):
        # From 2 to 6, read as 4 in between.
        def jump(at_s):
            return 2.0 if at_s < 900 else 4.0 if at_s < 960 else 6.0

        history = after(jump, minute)
        rate = jump(60 * minute)

        assert forecast_at(history, 60 * minute, rate) == Forecast(demand=rate, origin=LAST)

    def test_keeps_no_headroom_for_a_jump_that_was_planned_for_in_its_midst(self):
        # Planned for 5 on the way from 2 to 6: a fifth more came, and it was the jump. From 4 to
        # 5 and 6 it would have been a rise.
        def above_plan(before):
            def rate(at_s):
                return before if at_s < 900 else 5.0 if at_s < 960 else 6.0

            return sum(after(rate, 40).kept.rises[3:])

        assert above_plan(2.0) == 0.0
        assert above_plan(4.0) > 0.9

    def test_keeps_headroom_for_a_ramp_that_is_steep_over_a_start(self):
        # Half as much again every ten minutes of an hour, then an hour of calm. In a start of ten
        # minutes and the two before, that is 63 %; in the four minutes around a plan 18 %.
        def ramp(at_s):
            return 10 * 1.5 ** (at_s / 600 if at_s < 3600 else 6)

        history = History()
        for minute in range(120):
            note = a_note(60 * minute, ramp(60 * minute), lead_s=600)
            history = observe_demand(history, note)

        assert headroom(history.kept.rises, quantile=0.95) == 0.15

    @pytest.mark.parametrize(("chance", "asked"), [(0.6, 0.0), (0.0, 0.05)])
    def test_keeps_no_headroom_for_what_chance_adds_to_a_count(self, chance, asked):
        # 10 in nine minutes of ten and 10.4 in the tenth: 4 %, if it is no chance.
        history = History()
        for minute in range(180):
            rate = 10.4 if minute % 10 == 7 else 10.0
            note = a_note(60 * minute, rate)
            history = observe_demand(history, replace(note, sure=rate - chance))

        assert headroom(history.kept.rises, quantile=0.99) == asked

    def test_keeps_no_headroom_for_a_plan_that_was_low_for_a_minute(self):
        # 9 in every fifth minute, else 10: no replica goes for a minute, so none is missed after.
        history = History()
        for minute in range(180):
            rate = 9.0 if minute % 5 == 2 else 10.0
            history = observe_demand(history, a_note(60 * minute, rate))

        assert headroom(history.kept.rises, quantile=0.99) == 0.0

    def test_keeps_no_headroom_for_what_stood_in_the_two_minutes_before_a_low_plan(self):
        # Planned for 8, with 10 two minutes before: 9 is a tenth less than the fleet stood for.
        recent = notes_of({-120: 10.0, -60: 8.0, 0: 8.0, 60: 8.0, 120: 8.0})

        history = observe_demand(History(recent=recent, due=(a_due(base=8.0),)), a_note(300, 9.0))

        assert history.kept.rises == add_forecast_error(FIRST, -0.1, risen=0.0)

    def test_goes_on_by_stages_of_six_minutes_where_a_start_takes_ten(self):
        # 3, 6 and 9: 3 in each half of 14 minutes.
        def stages(at_s):
            return 3.0 + 3.0 * (at_s // 360)

        found = forecast_at(after(stages, 15), 840, 9.0, lead_s=600)

        assert found.demand == pytest.approx(9 + 3 * 600 / 420)

    def test_does_not_go_on_by_bursts_on_a_level_that_stays(self):
        def bursty(at_s):
            return 9.0 if at_s % 300 == 240 else 3.0

        for minutes in range(10, 40):
            history = after(bursty, minutes)
            rate = bursty(60 * (minutes - 1))

            assert forecast_at(history, 60 * (minutes - 1), rate).demand == rate

    def test_of_a_rise_is_not_believed_where_it_has_misled(self):
        history = after(lambda at_s: 1 + at_s / 600, 20)
        bad = {LAST: Score(loss=50, weight=50), RISE: Score(loss=51, weight=50)}

        assert forecast_at(replace(history, kept=KeptRecord(record=bad)), 1200, 3.0).origin == LAST

    def test_of_a_trend_with_a_good_record_comes_before_a_rise_with_a_better_one(self):
        good = {LAST: Score(loss=50, weight=50), "trend": Score(loss=40, weight=50)}
        better = {**good, RISE: Score(loss=10, weight=50)}
        history = replace(after(lambda at_s: 1 + at_s / 600, 20), kept=KeptRecord(record=better))

        assert forecast_at(history, 1200, 3.0).origin.startswith("trend")

    def test_is_switched_off_where_the_trend_misleads(self):
        # Up and down every ten minutes: the trend is right never, the last value half of the time.
        def square(at_s):
            return 4.0 if at_s % 1200 < 600 else 8.0

        history = after(square, 240)

        assert forecast_at(history, 240 * 60, square(240 * 60)).origin == LAST

    def test_follows_the_day_before(self):
        def daily(at_s):
            return 10 + 6 * math.sin(math.tau * at_s / DAY_S)

        history = after(daily, 2 * 24 * 60)
        found = forecast_at(history, 2 * DAY_S, daily(2 * DAY_S), lead_s=3600)

        assert found.origin.startswith(("the day before", "trend"))
        known = replace(
            history,
            kept=KeptRecord(record={**history.kept.record, "trend": Score(loss=99, weight=99)}),
        )
        found = forecast_at(known, 2 * DAY_S, daily(2 * DAY_S), lead_s=3600)
        assert found.origin.startswith("the day before")
        assert found.demand == pytest.approx(daily(2 * DAY_S + 3600), rel=0.01)

    def test_moves_the_day_before_to_the_level_of_today(self):
        # 4 then and 6 an hour later; today it is 8: 12 in an hour.
        bins = {int((START_S + at_s) // BIN_S): (4.0, 10) for at_s in range(-1200, 1800, 600)}
        bins |= {int((START_S + at_s) // BIN_S): (6.0, 10) for at_s in range(2400, 6000, 600)}
        good = {LAST: Score(loss=50, weight=50), "the day before": Score(loss=1, weight=50)}
        history = History(pattern=bins, kept=KeptRecord(record=good))

        assert forecast_at(history, DAY_S, 8.0, lead_s=3600).demand == pytest.approx(12.0)

    @pytest.mark.parametrize(
        ("notes", "origin"),
        [(29, LAST), (30, "trend, whose error was 100% below that of the last value")],
    )
    def test_needs_a_record_of_half_an_hour(self, notes, origin):
        scores = {LAST: Score(loss=50, weight=notes), "trend": Score(loss=0, weight=notes)}
        history = replace(after(lambda at_s: at_s, 9), kept=KeptRecord(record=scores))

        assert forecast_at(history, 540, 540.0).origin == origin

    def test_is_not_by_a_way_that_missed_as_much_in_fewer_notes(self):
        # One a note, both of them.
        scores = {LAST: Score(loss=100, weight=100), "trend": Score(loss=40, weight=40)}
        history = replace(after(lambda _: 4.0, 20), kept=KeptRecord(record=scores))

        assert forecast_at(history, 1200, 4.0).origin == LAST

    def test_tells_of_no_gain_over_a_last_value_that_never_missed(self):
        scores = {LAST: Score(loss=0, weight=20), "trend": Score(loss=0, weight=50)}
        history = replace(after(lambda _: 4.0, 20), kept=KeptRecord(record=scores))

        assert forecast_at(history, 1200, 4.0).origin == (
            "trend, whose error was 0% below that of the last value"
        )

    def test_of_what_was_just_noted_is_the_one_that_was_noted_with_it(self):
        before = after(lambda _: 4.0, 20)
        newest = replace(before.due[-1], forecasts={LAST: 4.0, RISE: 7.0})
        history = replace(before, due=(*before.due[:-1], newest))

        assert forecast_at(history, 19 * 60, 4.0) == Forecast(demand=7.0, origin=RISE)
        assert forecast_at(history, 19 * 60, 4.0, lead_s=LEAD_S + 60) == Forecast(
            demand=4.0, origin=LAST
        )
        assert forecast_at(history, 19 * 60, 4.5) == Forecast(demand=4.5, origin=LAST)

    def test_of_a_trend_is_three_times_what_comes_at_most(self):
        good = {LAST: Score(loss=50, weight=50), "trend": Score(loss=1, weight=50)}
        history = replace(after(lambda at_s: at_s / 60, 10), kept=KeptRecord(record=good))

        assert forecast_at(history, 600, 10.0, lead_s=3000).demand == 30.0

    def test_too_low_by_one_counts_four_times_too_high_by_one(self):
        due = [
            PendingForecast(noted_s=START_S, due_s=START_S + 60, forecasts={name: value}, base=1.0)
            for name, value in (("low", 3.0), ("high", 5.0))
        ]
        history = observe_demand(History(due=tuple(due)), a_note(60, 4.0))

        assert history.kept.record["low"].loss == pytest.approx(
            4 * history.kept.record["high"].loss
        )

    def test_has_a_record_that_begins_with_its_first_note_and_fades_in_twelve_hours(self):
        due = a_due(forecasts={"new": 3.0, "known": 4.0})
        scores = {"known": Score(loss=100, weight=200)}

        found = observe_demand(
            History(due=(due,), kept=KeptRecord(record=scores)), a_note(300, 4.0)
        ).kept.record

        assert (found["new"].loss, found["new"].weight) == pytest.approx((0.8, 1))
        left = math.exp(-1 / 720)  # a minute of 12 hours
        assert found["known"].loss == pytest.approx(100 * left)
        assert found["known"].weight == pytest.approx(200 * left + 1)


class TestHistory:
    def test_takes_one_note_a_minute(self):
        history = observe_demand(observe_demand(History(), a_note(0, 1.0)), a_note(45, 9.0))

        assert history.recent == ((START_S, 1.0),)

    def test_keeps_an_hour_of_notes_and_eight_days_of_means(self):
        history = after(lambda _: 2.0, 9 * 24 * 60)

        assert len(history.recent) == 60
        assert len(history.pattern) == 8 * 24 * 6 + 1
        assert len(history.peaks) <= 24 * 6 + 1
        assert len(history.due) == 5

    @pytest.mark.parametrize("at_s", [-600, 3000])
    def test_begins_anew_where_the_clock_was_set_back_and_keeps_its_record(self, at_s):
        history = after(lambda _: 2.0, 60)
        back = observe_demand(history, a_note(at_s, 3.0))

        assert back.recent == ((START_S + at_s, 3.0),)
        assert back.kept.record == history.kept.record

    def test_scores_nothing_that_is_about_another_hour(self):
        history = after(lambda _: 100.0, 30)
        late = observe_demand(history, a_note(9 * 3600, 5.0))

        assert late.kept.record == history.kept.record
        assert late.peaks == history.peaks

    def test_forecasts_anew_where_a_start_got_shorter_by_the_time_since_the_last_note(self):
        before = after(lambda at_s: 4.0, 30)

        history = observe_demand(before, a_note(1800, 40.0, lead_s=LEAD_S - 60))

        assert [each.due_s for each in history.due[-2:]] == [START_S + 1740 + LEAD_S] * 2
        assert history.due[-1].forecasts[LAST] == 40.0

    def test_is_told_in_another_unit_where_replicas_serve_more(self):
        history = rescale(after(lambda _: 12.0, 30), 0.25)

        assert usual(history) == 3.0
        assert {mean for mean, _ in history.pattern.values()} == {3.0}
        assert history.due[0].forecasts[LAST] == history.due[0].base == 3.0
        assert {(each.demand, each.height) for each in history.peaks} == {(3.0, 3.0)}

    @pytest.mark.parametrize(("planned", "stays"), [(3.0, 6.0), (6.0, 3.0)])
    def test_takes_a_burst_to_rise_above_the_plan_and_what_stays(self, planned, stays):
        due = a_due(base=planned, peak=9.0)

        history = observe_demand(History(due=(due,)), a_note(300, stays))

        burst = DemandPeak(bin=int(START_S // BIN_S), ratio=9 / 6, demand=6.0, height=9.0)
        assert history.peaks == (burst,)

    def test_takes_a_lead_in_which_nothing_came_for_one_of_the_bin_in_which_it_began(self):
        history = observe_demand(History(due=(a_due(noted_s=540, due_s=600),)), a_note(600, 0.0))

        assert [each.bin for each in history.peaks] == [START_S // BIN_S]

    def test_has_no_bursts_above_nothing(self):
        assert after(lambda _: 0.0, 20).peaks == ()

    def test_stood_for_the_plan_or_for_what_was_held(self):
        # Planned for 10; held for 4, 4, 12 and 12: 8 came.
        due = a_due(base=10.0, highest=(4.0, 4.0, 12.0, 12.0))

        history = observe_demand(History(due=(due,)), a_note(300, 8.0))

        assert history.kept.held == ((0.0, 2.0), (0.0, 2.0), (0.0, 4.0), (0.0, 4.0))


class TestReserve:
    def bursty(self, at_s):
        return 3.0 if at_s % 600 == 300 else 1.0

    def test_follows_from_bursts_that_come_and_go_within_a_start(self):
        history = after(lambda _: 1.0, 240, peak=self.bursty)

        assert reserve(history, quantile=0.95) == pytest.approx(2.0)

    def test_is_none_for_a_load_that_does_not_waver(self):
        assert reserve(after(lambda _: 5.0, 240), quantile=0.99) == 0

    def test_is_none_for_a_rise_that_stays(self):
        def step(at_s):
            return 2.0 if at_s < 7200 else 6.0

        assert reserve(after(step, 240), quantile=0.99) == 0

    def test_is_none_for_one_burst(self):
        history = after(lambda _: 1.0, 240, peak=lambda at_s: 9.0 if at_s == 7200 else 1.0)

        assert reserve(history, quantile=0.99) == 0

    def test_is_kept_from_the_second_burst_on(self):
        # At 5 and 15 minutes; a lead of five minutes after each is it known to have been a burst.
        assert reserve(after(lambda _: 1.0, 14, peak=self.bursty), quantile=0.95) == 0
        assert reserve(after(lambda _: 1.0, 21, peak=self.bursty), quantile=0.95) == 2.0

    def test_takes_a_burst_that_many_leads_hold_for_one(self):
        # Half an hour of leads holds it.
        history = History()
        for minute in range(120):
            shown = 9.0 if minute == 50 else 1.0
            history = observe_demand(history, a_note(60 * minute, 1.0, peak=shown, lead_s=1800))

        assert max(each.ratio for each in history.peaks) == 9
        assert reserve(history, quantile=0.99) == 0

    def test_leaves_as_many_requests_in_higher_bursts_as_the_promise_allows(self):
        # 100 bins of 600 s at 1/s; four of them with a burst of 4, six with one of 2. At 99 % 600
        # requests may be late: a burst of 4 has 240 in a minute, two of them 480, three too many.
        # At 95 % 3000: all ten have 4 * 240 + 6 * 120 = 1680.
        ratios = [4.0] * 4 + [2.0] * 6 + [1.0] * 90
        peaks = tuple(
            DemandPeak(bin=number, ratio=ratio, demand=1.0, height=ratio)
            for number, ratio in enumerate(ratios)
        )

        assert reserve(History(peaks=peaks), quantile=0.99) == 3.0
        assert reserve(History(peaks=peaks), quantile=0.95) == 0.0

    def test_is_no_higher_than_bursts_were_where_traffic_comes_and_goes(self):
        # Four minutes of 10 after three of nothing much: a start lies between two quiet minutes.
        def coming(at_s):
            return 10.0 if at_s % 420 >= 180 else 0.1

        history = after(coming, 240)

        assert max(each.ratio for each in history.peaks) > 50
        assert (1 + reserve(history, quantile=0.99)) * usual(history) <= 10.0

    def test_is_no_higher_than_bursts_were_where_as_much_was_planned_for_at_another_hour(self):
        # Ten times 1, where 4 was planned for later: 10 at 4 as well.
        lows = [DemandPeak(bin=at, ratio=10.0, demand=1.0, height=10.0) for at in range(3)]
        highs = [DemandPeak(bin=at, ratio=1.0, demand=4.0, height=4.0) for at in range(3, 6)]
        recent = notes_of({60 * minute: 4.0 for minute in range(10)})

        history = History(peaks=(*lows, *highs), recent=recent)

        assert reserve(history, quantile=0.99) == 10 / 4 - 1

    def test_grows_with_what_usually_comes_beyond_what_was_planned_for(self):
        peaks = tuple(DemandPeak(bin=at, ratio=3.0, demand=4.0, height=12.0) for at in range(4))

        def at(demand):
            recent = tuple((60.0 * minute, demand) for minute in range(10))
            history = History(peaks=peaks, recent=recent)
            return (1 + reserve(history, quantile=0.99)) * usual(history)

        assert [at(2.0), at(4.0), at(8.0)] == pytest.approx([6.0, 12.0, 24.0])

    def test_is_as_large_a_share_at_night_as_bursts_of_the_day_were(self):
        demands = [10.0] * 72 + [1.0] * 72
        ratios = [3.0 if at % 7 == 0 else 1.0 for at in range(144)]
        peaks = tuple(
            DemandPeak(bin=at, ratio=ratio, demand=demand, height=ratio * demand)
            for at, (ratio, demand) in enumerate(zip(ratios, demands, strict=True))
        )

        def at(demand):
            recent = tuple((60.0 * minute, demand) for minute in range(10))
            return reserve(History(peaks=peaks, recent=recent), quantile=0.99)

        assert [at(10.0), at(2.0), at(1.0)] == pytest.approx([2.0, 2.0, 2.0])

    def test_forgets_after_a_day(self):
        history = after(lambda _: 1.0, 240, peak=self.bursty)
        later = after(lambda _: 1.0, 25 * 60, history=history, since=240)

        assert reserve(later, quantile=0.95) == 0


class TestBursts:
    def test_stand_out_from_what_usually_comes(self):
        history = after(lambda at_s: 9.0 if at_s == 540 else 4.0, 12)

        assert usual(history) == 4.0
        assert is_burst(history, sure=6.1)
        assert not is_burst(history, sure=6.0)

    def test_stand_out_from_the_last_ten_minutes(self):
        history = after(lambda at_s: 2.0 if at_s < 2700 else 4.0, 60)

        assert usual(history) == 4.0

    def test_are_not_known_before_anything_is_usual(self):
        assert usual(after(lambda _: 4.0, 5)) is None
        assert not is_burst(History(), sure=600)

    @pytest.mark.parametrize(
        ("count", "scv", "sure"), [(100, 1, 80), (100, 4, 60), (1, 1, 0), (0, 1, 0)]
    )
    def test_are_what_chance_leaves_of_a_count(self, count, scv, sure):
        assert without_chance(count, scv=scv) == sure
