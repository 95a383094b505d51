"""The history of demand through a restart: what is kept, in how many bytes, and when."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies import numbers
from tonnage.estimate.forecast import PATTERN_S, DemandPeak, History, Score, forecast
from tonnage.estimate.kept_history import (
    MOST,
    BinRow,
    figures,
    from_stored,
    is_news,
    row,
    to_stored,
)
from tonnage.estimate.ways import BIN_S, DAY_S, LAST, WAYS, WEEK_S

NOW_S = 2000 * WEEK_S
NOW = int(NOW_S // BIN_S)
"""The bin that has just begun."""
A_DAY = int(DAY_S // BIN_S)
RECORD = {LAST: Score(loss=50, weight=50), "the day before": Score(loss=1, weight=50)}


WILD = (90.0, 0.0, 0.0, 0.0, 0.0, 30.0)
"""A quarter of all notes stood more than 15 % above the plan."""
RETURNS = ((100.0, 50.0), (0.0, 90.0), (0.0, 150.0), (0.0, 200.0))
"""Who held for six starts was never short."""


def a_pattern(*demands, until=NOW, notes=10):
    """Means of the bins before one, the oldest first; None: nobody noted it."""
    first = until - len(demands)
    return {first + at: (each, notes) for at, each in enumerate(demands) if each is not None}


def peaks(*ratios, until=NOW):
    first = until - len(ratios)
    return tuple(
        DemandPeak(bin=first + at, ratio=each, demand=2.0, height=2.0 * each)
        for at, each in enumerate(ratios)
    )


def keep(history=None, *, unit="k", requests_per_s=2.5, now_s=NOW_S, **parts):
    known = history or History(**parts)
    return to_stored(known, unit=unit, unit_requests_per_s=requests_per_s, now_s=now_s)


def means(history):
    return {at: mean for at, (mean, _) in history.pattern.items()}


class TestRow:
    @given(st.dictionaries(st.integers(0, 2000), st.just(0.0) | numbers(1e-4, 1e4), max_size=50))
    def test_is_read_within_a_quarter_of_a_percent_of_what_was_written(self, values):
        assert figures(row(values)) == pytest.approx(values, rel=0.0023)

    def test_is_two_letters_for_each_bin_between_the_first_and_the_last(self):
        assert len(row({100: 1.0, 250: 2.0}).text) == 2 * 151

    def test_of_nothing_is_empty(self):
        assert figures(row({})) == {}

    def test_has_no_bin_that_nobody_noted(self):
        assert figures(row({1: 0.0, 3: 0.0})) == {1: 0.0, 3: 0.0}

    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1.0])
    def test_has_no_figure_that_is_none(self, value):
        assert figures(row({1: value})) == {}

    @pytest.mark.parametrize(("value", "read"), [(1e300, MOST), (1e-9, 0.0), (0.0, 0.0)])
    def test_ends_where_its_scale_does(self, value, read):
        assert figures(row({1: value})) == pytest.approx({1: read})

    @given(st.text("ABCxyz059-_", max_size=40).filter(lambda text: len(text) % 2 == 0))
    def test_says_nothing_that_cannot_be_whatever_its_letters(self, text):
        assert all(0 <= value <= 1.0001 * MOST for value in figures(BinRow(text=text)).values())

    @pytest.mark.parametrize("text", ["A", "AB!C", "AB C", "ÄB", "AAA"])
    def test_is_refused_with_other_letters_or_half_a_figure(self, text):
        with pytest.raises(ValueError, match=r"not found|half a figure"):
            figures(BinRow(text=text))


class TestWhatIsKept:
    def test_are_the_means_the_peaks_and_the_record(self):
        history = History(
            pattern=a_pattern(1.0, 2.0),
            peaks=peaks(1.5, 3.0),
            scores=RECORD,
            rises=WILD,
            held=RETURNS,
        )

        again = from_stored(keep(history), now_s=NOW_S)

        assert (again.rises, again.held) == (WILD, RETURNS)

        assert means(again) == pytest.approx({NOW - 2: 1.0, NOW - 1: 2.0}, rel=0.0023)
        assert [each.bin for each in again.peaks] == [NOW - 2, NOW - 1]
        assert [each.ratio for each in again.peaks] == pytest.approx([1.5, 3.0], rel=0.0023)
        assert [each.demand for each in again.peaks] == pytest.approx([2.0, 2.0], rel=0.0023)
        assert again.scores == RECORD

    def test_forecasts_as_what_it_was_made_of(self):
        # 4 replicas a day ago, 6 an hour later; 8 now: 12 in an hour.
        pattern = a_pattern(*[4.0] * 3, *[6.0] * 7, until=NOW - A_DAY + 9)
        history = History(pattern=pattern, scores=RECORD)
        again = from_stored(keep(history), now_s=NOW_S)

        found = forecast(again, at_s=NOW_S, demand=8.0, lead_s=3600)

        assert found.origin.startswith("the day before")
        assert found.demand == pytest.approx(12.0, rel=0.01)
        assert forecast(history, at_s=NOW_S, demand=8.0, lead_s=3600) == replace(
            found, demand=pytest.approx(found.demand, rel=0.01)
        )

    def test_is_no_bin_that_has_not_ended(self):
        assert means(
            from_stored(keep(pattern=a_pattern(1.0, 9.0, until=NOW + 1)), now_s=NOW_S)
        ) == {NOW - 1: pytest.approx(1.0, rel=0.0023)}

    def test_while_nobody_watched_is_missing_and_not_nothing(self):
        # Kept, then down for three hours: what came a day ago is known, what came since is not.
        before = keep(pattern=a_pattern(*[4.0] * 2 * A_DAY), scores=RECORD)

        again = from_stored(before, now_s=NOW_S + 3 * 3600)

        assert max(again.pattern) == NOW - 1
        assert 0.0 not in means(again).values()
        later_s = NOW_S + DAY_S  # a day after what nobody watched began
        assert forecast(again, at_s=later_s, demand=4.0, lead_s=3600).origin == LAST

    def test_is_no_older_than_eight_days_and_peaks_than_one(self):
        history = History(pattern=a_pattern(1.0), peaks=peaks(2.0))

        def after(passed_s):
            again = from_stored(keep(history), now_s=NOW_S + passed_s)
            return len(again.pattern), len(again.peaks)

        assert after(DAY_S - BIN_S) == (1, 1)
        assert after(DAY_S) == (1, 0)
        assert after(PATTERN_S) == (0, 0)

    def test_of_a_clock_that_was_ahead_is_nothing(self):
        again = from_stored(keep(pattern=a_pattern(1.0)), now_s=NOW_S - DAY_S)

        assert again.pattern == {}

    def test_of_a_clock_that_jumped_is_no_longer_than_eight_days(self):
        pattern = a_pattern(1.0) | a_pattern(1.0, until=NOW + 10**9) | a_pattern(1.0, until=2)

        assert len(keep(pattern=pattern).means.text) == 2

    def test_is_no_record_of_a_way_that_is_none(self):
        assert keep(scores={"by the stars": Score(loss=1, weight=2)}).scores == {}
        assert set(RECORD) <= set(WAYS)


class TestNews:
    def test_is_not_a_load_that_stays(self):
        steady = keep(pattern=a_pattern(*[3.0] * A_DAY))

        assert not is_news(None, steady)
        assert not is_news(keep(pattern=a_pattern(3.0, until=NOW - 6)), steady)

    def test_is_not_that_nothing_came(self):
        assert not is_news(None, keep(pattern=a_pattern(*[0.0] * 6)))
        assert not is_news(None, keep())

    @pytest.mark.parametrize(
        ("demand", "is_new"), [(2.73, False), (3.27, False), (2.67, True), (3.33, True)]
    )
    def test_is_a_change_by_a_tenth(self, demand, is_new):
        before, after = a_pattern(3.0, until=NOW - 1), a_pattern(3.0, demand)

        assert is_news(keep(pattern=before), keep(pattern=after)) is is_new

    def test_is_not_a_change_by_less_than_a_quarter_of_a_replica(self):
        before, after = a_pattern(0.2, until=NOW - 1), a_pattern(0.2, 0.44)

        assert not is_news(keep(pattern=before), keep(pattern=after))

    @pytest.mark.parametrize(("demand", "is_new"), [(2.7, False), (2.8, True)])
    def test_is_not_what_chance_makes_of_few_requests(self, demand, is_new):
        # 1.5 replicas of 0.05 requests/s: 45 in ten minutes, so 4 x sqrt(2 x 1.5 / 30) = 1.26.
        before, after = a_pattern(1.5, until=NOW - 1), a_pattern(1.5, demand)

        found = is_news(
            keep(pattern=before, requests_per_s=0.05), keep(pattern=after, requests_per_s=0.05)
        )

        assert found is is_new

    def test_is_not_what_was_kept_before(self):
        pattern = a_pattern(1.0, 9.0)

        assert not is_news(keep(pattern=pattern), keep(pattern=pattern, now_s=NOW_S + 1800))

    def test_is_the_end_of_a_slow_rise(self):
        # 5 % in each hour: the third exceeds a tenth of what was kept.
        before = keep(pattern=a_pattern(10.0, until=NOW - 3))

        assert not is_news(before, keep(pattern=a_pattern(10.0, 10.5, until=NOW - 2)))
        assert is_news(before, keep(pattern=a_pattern(10.0, 10.5, 10.9, 11.4)))

    def test_are_bursts_that_a_reserve_is_kept_for(self):
        # Six bins of a record, half of them twice what was planned for.
        calm, bursts = peaks(*[1.0] * 6), peaks(*[1.0, 2.0] * 3)

        assert is_news(keep(peaks=calm), keep(peaks=bursts))
        assert is_news(None, keep(peaks=bursts))
        assert not is_news(None, keep(peaks=calm))

    def test_are_rises_that_ask_for_another_headroom(self):
        assert is_news(None, keep(rises=WILD))
        assert not is_news(keep(rises=WILD), keep(rises=WILD))

    def test_is_a_demand_that_comes_back(self):
        assert is_news(None, keep(held=RETURNS))
        assert not is_news(keep(held=RETURNS), keep(held=RETURNS))

    def test_are_other_engines(self):
        pattern = a_pattern(3.0)

        assert is_news(keep(pattern=pattern), keep(pattern=pattern, unit="other"))
