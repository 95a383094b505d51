"""A simulated Prometheus: what it keeps, and what it answers to rivals."""

import pytest

from tonnage.replay.prometheus import Query, SimulatedPrometheus, rate
from tonnage.settings import Settings

SETTINGS = Settings(prometheus_url="http://prometheus.test:9090")
COUNTER, GAUGE = "vllm:request_success_total", "vllm:num_requests_running"
POD = ("serving", "a")
REASONS = ("stop", "length")


def a_page(number, *, gauge=3.0):
    page = {(COUNTER, (("engine", "0"), ("finished_reason", r))): 10.0 * number for r in REASONS}
    return page | {(GAUGE, (("engine", "0"),)): gauge}


def scraped(number, query, *, failed=()):
    prometheus = SimulatedPrometheus(SETTINGS, {"asked": query})
    for scrape in range(number):
        page = None if scrape in failed else a_page(scrape)
        prometheus.take(*POD, 15.0 * scrape, page)
    return prometheus


def values(prometheus, at_s):
    return [each.value for each in prometheus.ask(at_s)["asked"]]


def test_a_gauge_is_as_the_newest_scrape_has_it_and_missing_after_one_that_failed():
    query = Query(metric=GAUGE)

    assert values(scraped(3, query), 35.0) == [3]
    assert values(scraped(3, query, failed=[2]), 35.0) == []
    assert values(scraped(3, query), 30.0 + 300.0) == []


def test_a_rate_is_of_each_label_that_is_kept_else_the_largest():
    by_reason = Query(metric=COUNTER, over=rate, scrapes=4, own_labels=("finished_reason",))

    assert values(scraped(9, by_reason), 120.0) == pytest.approx([10 / 15] * 2)
    alone = Query(metric=COUNTER, over=rate, scrapes=4)
    [series] = scraped(9, alone).ask(120.0)["asked"]
    assert series.labels == {"namespace": "serving", "pod": "a", "engine": "0"}


@pytest.mark.parametrize(
    ("points", "per_s"),
    [
        ([(15, 100), (30, 130), (45, 160), (60, 190)], 2.0),
        ([(15, 100), (30, 130), (45, 10), (60, 40)], (30 + 10 + 30) * 60 / 45 / 60),
        ([(15, 0), (30, 30), (45, 60), (60, 90)], 1.5),
        ([(15, 5), (30, 5)], 0.0),
        ([(15, 5)], None),
    ],
    ids=["to both ends", "over a fall", "not below zero", "none", "of one scrape"],
)
def test_a_rate_is_extrapolated_as_prometheus_does(points, per_s):
    assert rate(points, 60.0, 60.0) == (per_s if per_s is None else pytest.approx(per_s))


def test_a_window_passes_over_scrapes_that_failed():
    query = Query(metric=COUNTER, over=lambda points, *_: points[-1][1], scrapes=4)

    assert values(scraped(5, query, failed=[4]), 60.0) == [30]


def test_pages_are_given_out_as_they_are_until_the_pod_is_gone():
    prometheus = scraped(4, Query(metric=GAUGE))
    [target] = prometheus.targets.values()
    key = (GAUGE, (("engine", "0"),))

    assert target.points(key, 15.0) == [(30.0, 3.0), (45.0, 3.0)]
    prometheus.drop(*POD)
    assert prometheus.targets == {}


def test_pages_are_kept_as_long_as_a_query_reaches():
    prometheus = scraped(100, Query(metric=GAUGE, over=rate, scrapes=60))
    [target] = prometheus.targets.values()

    assert len(target.pages) == 60
