import math

import pytest

from tonnage.replay.prometheus import SimulatedPrometheus
from tonnage.replay.query import Query
from tonnage.settings import Settings

SETTINGS = Settings(prometheus_url="http://prometheus.test:9090")
ENGINE = (("engine", "0"),)
TICK_S = 1000.0


def asked(query, samples, *, labels=ENGINE, at_s=TICK_S):
    """The answers to one query after scrapes of (time, value) of one series; None: it failed."""
    found = SimulatedPrometheus(SETTINGS, {"q": query})
    for scraped_s, value in samples:
        page = None if value is None else {("m", labels): value}
        found.take("serving", "a", scraped_s, page)
    return found.ask(at_s)["q"]


def value_of(function, samples, *, scrapes=4, **more):
    """The value of a function over so many scrapes of 15 s; None: there is none."""
    answers = asked(Query(metric="m", function=function, scrapes=scrapes), samples, **more)
    return answers[0].value if answers else None


def after_940(values, first_s=5.0):
    return [(940 + first_s + 15 * index, value) for index, value in enumerate(values)]


def test_a_rate_extrapolates_to_both_edges_of_its_window():
    # 9 in 45 s between the samples; 5 s before and 10 s behind are within 1.1 intervals.
    assert value_of("rate", after_940([100, 103, 106, 109])) == pytest.approx(9 * 60 / 45 / 60)


def test_a_rate_extrapolates_no_further_back_than_to_where_the_counter_was_zero():
    # 2 at 0.2/s was zero 10 s earlier; from 3 s after the window's start that is before it: 3 s.
    assert value_of("rate", after_940([2, 5, 8, 11])) == pytest.approx(9 * 60 / 45 / 60)
    # 0.4 was zero 2 s before.
    assert value_of("rate", after_940([0.4, 3.4, 6.4, 9.4])) == pytest.approx(9 * 57 / 45 / 60)
    assert value_of("rate", after_940([0, 3, 6, 9])) == pytest.approx(9 * 55 / 45 / 60)


def test_a_rate_extrapolates_by_half_an_interval_where_samples_are_far_from_an_edge():
    # 35 s before the first of two: half an interval counts, 7.5 s; 10 s behind count whole.
    assert value_of("rate", after_940([50, 53], first_s=35)) == pytest.approx(
        3 * (15 + 7.5 + 10) / 15 / 60
    )


def test_a_rate_goes_over_a_reset_as_a_counter_that_began_anew():
    # 10 -> 13, lost, 2 -> 5: 3 + 2 + 3.
    assert value_of("rate", after_940([10, 13, 2, 5])) == pytest.approx(8 * 60 / 45 / 60)


def test_a_delta_is_no_counter():
    assert value_of("delta", after_940([9, 6, 3, 0])) == pytest.approx(-9 * 60 / 45)
    assert value_of("delta", after_940([0, 3, 6, 9])) == pytest.approx(9 * 60 / 45)


def test_a_slope_is_that_of_the_line_of_least_squares():
    assert value_of("deriv", after_940([1, 4, 7, 10])) == pytest.approx(0.2)
    # Times -22.5, -7.5, 7.5, 22.5 around their mean: (22.5 * 6 + 7.5 * 2) / 1125.
    assert value_of("deriv", after_940([0, 2, 0, 6])) == pytest.approx((22.5 * 6 - 7.5 * 2) / 1125)


@pytest.mark.parametrize("function", ["rate", "delta", "deriv"])
def test_one_sample_has_no_slope(function):
    assert value_of(function, after_940([5])) is None


def test_means_and_least_values_are_of_the_samples_in_the_window():
    samples = [(925, 1000), *after_940([4, 8, 6, 10])]

    assert value_of("avg_over_time", samples) == 7
    assert value_of("min_over_time", samples) == 4
    assert value_of("max_over_time", samples) == 10


def test_a_window_is_open_at_its_start_and_closed_at_its_end():
    samples = [(940, 1), (955, 2), (970, 3), (985, 4), (1000, 5)]

    assert value_of("count_over_time", samples) == 4
    assert value_of("min_over_time", samples) == 2


def test_a_longer_window_sees_more():
    samples = [(940 - 15 * index, index) for index in range(59, -5, -1)]

    assert value_of("count_over_time", samples, scrapes=60) == 60


def test_an_instant_is_the_newest_sample_of_five_minutes():
    assert value_of(None, [(700.1, 3)]) == 3
    assert value_of(None, [(700.0, 3)]) is None
    assert value_of("timestamp", [(970, 3), (985, 4)]) == 985


def test_a_failed_scrape_hides_an_instant_and_not_a_window():
    samples = [(955, 1), (970, 2), (985, None)]

    assert value_of(None, samples) is None
    assert value_of("timestamp", samples) is None
    assert value_of("avg_over_time", samples) == 1.5


def test_an_answer_that_is_no_number_is_none():
    assert value_of(None, [(985, math.nan)]) is None
    assert value_of("rate", after_940([1, 2, 3, math.nan])) is None
    assert value_of("avg_over_time", after_940([1, math.nan, 3, 4])) is None
    assert value_of("min_over_time", after_940([math.nan, 2, 3, 4])) == 2


def page_of(prometheus, pod, page, at_s=990.0):
    prometheus.take("serving", pod, at_s, page)


def test_labels_are_those_of_pod_and_engine_and_the_ones_kept():
    query = Query(metric="m", own_labels=("reason",))
    found = asked(query, [(985, 7)], labels=(("engine", "0"), ("model", "x"), ("reason", "r")))

    assert found[0].labels == {"namespace": "serving", "pod": "a", "engine": "0", "reason": "r"}
    assert found[0].evaluated_at_s == TICK_S


def test_series_that_differ_in_other_labels_only_are_aggregated():
    page = {("m", (("engine", "0"), ("x", "1"))): 3.0, ("m", (("engine", "0"), ("x", "2"))): 4.0}
    values = {}
    for aggregation in ("max", "sum", "min", "group"):
        prometheus = SimulatedPrometheus(
            SETTINGS, {"q": Query(metric="m", aggregation=aggregation)}
        )
        page_of(prometheus, "a", page)
        values[aggregation] = [each.value for each in prometheus.ask(TICK_S)["q"]]

    assert values == {"max": [4.0], "sum": [7.0], "min": [3.0], "group": [1.0]}


def test_a_fallback_counts_where_the_metric_itself_has_no_series():
    query = Query(metric="new", matchers='reason="capacity"', fallbacks=("old",))
    prometheus = SimulatedPrometheus(SETTINGS, {"q": query})
    capacity, deferred = (("engine", "0"), ("reason", "capacity")), (("reason", "deferred"),)
    page_of(prometheus, "a", {("new", capacity): 1.0, ("new", deferred): 9.0, ("old", ENGINE): 5.0})
    page_of(prometheus, "b", {("old", ENGINE): 6.0})

    assert {each.labels["pod"]: each.value for each in prometheus.ask(TICK_S)["q"]} == {
        "a": 1.0,
        "b": 6.0,
    }


def test_histogram_bounds_are_chosen_by_a_pattern():
    prometheus = SimulatedPrometheus(SETTINGS, {"q": Query(metric="m", own_labels=("le",))})
    bounds = ("0.5", "1.0", "2.0", "+Inf")
    page_of(prometheus, "a", {("m", (*ENGINE, ("le", le))): 1.0 for le in bounds})

    found = prometheus.ask(TICK_S, le_matchers={"q": 'le=~"1[.]0|[+]Inf"'})

    assert [each.labels["le"] for each in found["q"]] == ["1.0", "+Inf"]


def test_a_pod_that_is_gone_has_no_series():
    prometheus = SimulatedPrometheus(SETTINGS, {"q": Query(metric="m")})
    page_of(prometheus, "a", {("m", ENGINE): 1.0})
    prometheus.drop("serving", "a")

    assert prometheus.ask(TICK_S)["q"] == []


def test_old_samples_are_dropped_and_those_of_the_longest_window_are_not():
    prometheus = SimulatedPrometheus(
        SETTINGS, {"q": Query(metric="m", function="rate", scrapes=60)}
    )
    for index in range(2000):
        prometheus.take("serving", "a", 15.0 * index + 5, {("m", ENGINE): 6.0 * index})
        if index % 500 == 499:
            (answer,) = prometheus.ask(15.0 * (index + 1))["q"]
            assert answer.value == pytest.approx(0.4)


def test_a_series_that_comes_later_is_found_and_had_no_samples_before():
    prometheus = SimulatedPrometheus(SETTINGS, {"q": Query(metric="m", function="count_over_time")})
    old, new = ("m", (("engine", "0"),)), ("m", (("engine", "1"),))
    page_of(prometheus, "a", {old: 1.0}, at_s=970.0)
    first = prometheus.ask(TICK_S)["q"]
    page_of(prometheus, "a", {new: 2.0, old: 1.0}, at_s=985.0)

    assert [each.value for each in first] == [1]
    assert {each.labels["engine"]: each.value for each in prometheus.ask(TICK_S)["q"]} == {
        "0": 2,
        "1": 1,
    }


def test_a_reset_before_the_window_or_at_its_first_sample_is_none_of_it():
    # 9 fell to 3 at 945 s, the first sample; 3 in 45 s after it. A window of 75 s sees the fall.
    samples = [(930, 9), *after_940([3, 4, 5, 6])]

    assert value_of("resets", samples) == 0
    assert value_of("resets", samples, scrapes=5) == 1
    assert value_of("increase", samples) == pytest.approx(3 * 60 / 45)


def test_what_was_dropped_does_not_shift_what_is_known_of_resets():
    prometheus = SimulatedPrometheus(
        SETTINGS, {"q": Query(metric="m", function="resets", scrapes=5)}
    )
    for index in range(500):
        prometheus.take("serving", "a", 15.0 * index, {("m", ENGINE): float(index % 100)})
        if index:
            (answer,) = prometheus.ask(15.0 * index)["q"]
            # Five samples: a fall is among them from the scrape in which it is to three later.
            assert answer.value == (index >= 100 and index % 100 < 4)
