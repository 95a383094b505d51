"""The PromQL of tests, on numbers that follow from Prometheus' own rules by hand."""

import pytest

from promql import answer, recorded, reduced
from tonnage.estimate.demand import count_arrivals
from tonnage.estimate.joined import join
from tonnage.estimate.metrics import WINDOWS, queries
from tonnage.settings import Settings


def points(*values, first_s=100, every_s=10):
    return [(first_s + every_s * number, value) for number, value in enumerate(values)]


class TestRate:
    @pytest.mark.parametrize(
        ("values", "window_s", "at_s", "increase"),
        [
            # 30 in 30 s, 6 s from the start of the window and 4 s from its end: 40 in 40 s.
            ((50, 60, 70, 80), 40, 134, 40),
            # The series began within the window: half a gap back, and to its end.
            ((50, 60, 70, 80), 100, 134, 30 + 5 + 4),
            # It ended within: half a gap on.
            ((50, 60, 70, 80), 100, 195, 30 + 5 + 5),
            # Two units are reached in 2 s: no farther back than zero.
            ((2, 12, 22, 32), 40, 134, 30 + 2 + 4),
            ((0, 10, 20, 30), 40, 134, 30 + 4),
            # A reset: what was counted before and after.
            ((50, 60, 5, 15), 40, 134, (10 + 5 + 10) * 40 / 30),
            ((50, 50, 50, 50), 40, 134, 0),
        ],
    )
    def test_extrapolates_as_prometheus_does(self, values, window_s, at_s, increase):
        found = reduced("increase", points(*values), window_s=window_s, at_s=at_s)

        assert found == pytest.approx(increase)
        assert reduced("rate", points(*values), window_s=window_s, at_s=at_s) == pytest.approx(
            increase / window_s
        )

    @pytest.mark.parametrize(
        ("values", "delta"), [((0, 10, 20, 30), 40), ((30, 20, 10, 0), -40), ((5, 9, 2, 5), 0)]
    )
    def test_of_a_gauge_knows_neither_zero_nor_resets(self, values, delta):
        assert reduced("delta", points(*values), window_s=40, at_s=134) == pytest.approx(delta)

    @pytest.mark.parametrize("name", ["rate", "increase", "delta"])
    def test_of_one_sample_is_none(self, name):
        assert reduced(name, points(1), window_s=40, at_s=134) is None

    def test_a_mean_and_a_count_are_of_the_samples(self):
        assert reduced("avg_over_time", points(1, 2, 6), window_s=40, at_s=134) == 3
        assert reduced("count_over_time", points(1, 2, 6), window_s=40, at_s=134) == 3


class TestAnswer:
    PAGE = recorded(
        (10.0 * number, [("x", {"pod": "a", "le": le}, number + float(le)) for le in "12"])
        for number in range(1, 7)
    )

    def one(self, text, at_s=61.0):
        [series] = answer(self.PAGE, text, at_s)
        return series

    def test_of_a_maximum_keeps_the_labels_that_are_named(self):
        series = self.one("max by (pod) (x)")

        assert (series.labels, series.value, series.evaluated_at_s) == ({"pod": "a"}, 8, 61)

    def test_of_a_matcher_is_of_whole_values(self):
        assert self.one('max by (pod) (x{le=~"1|12"})').value == 7
        assert answer(self.PAGE, 'max by (pod) (x{le="3"})', 61) == []

    def test_of_an_alternative_fills_what_is_missing(self):
        assert self.one("max by (pod) (y) or max by (pod) (x)").value == 8
        assert self.one("max by (pod) (x) or group by (pod) (x)").value == 8

    def test_of_a_timestamp_is_that_of_the_newest_scrape(self):
        assert self.one("max by (pod) (timestamp(x))").value == 60

    def test_windows_are_open_to_the_left(self):
        assert self.one("max by (pod) (count_over_time(x[20s]))", 60).value == 2

    def test_a_series_that_the_last_scrape_lacks_is_stale(self):
        page = recorded([(10, [("x", {}, 1.0)]), (20, [("y", {}, 1.0)])])

        assert answer(page, "max by (pod) (x)", 19) != []
        assert answer(page, "max by (pod) (x)", 21) == []

    def test_what_is_not_understood_is_refused(self):
        with pytest.raises(NotImplementedError, match="sum"):
            answer(self.PAGE, "sum(x) / 2", 61)


SETTINGS = Settings(prometheus_url="http://prometheus.test:9090")


def engine_of(finished, running, waiting, *, first=0, last=100):
    """A recording of an engine scraped every 15 s, with gauges and one counter by the scrape."""

    def samples(number):
        labels = {"namespace": "serving", "pod": "a", "engine": "0"}
        yield "vllm:request_success_total", labels | {"finished_reason": "stop"}, finished(number)
        yield "vllm:num_requests_running", labels, running(number)
        yield "vllm:num_requests_waiting", labels, waiting(number)

    return recorded((15.0 * number, samples(number)) for number in range(first, last))


def counted(recording, scrapes, after_s):
    asked = queries(SETTINGS, ttft_limits_s=(), tpot_limits_s=())
    at_s = recording.scrapes_s[-1] + after_s
    answers = {name: answer(recording, text, at_s) for name, text in asked.items()}
    engines = join(answers, SETTINGS).engines["serving", "a"]
    return count_arrivals(engines, scrapes, scrape_interval_s=15)


@pytest.mark.parametrize("scrapes", WINDOWS)
@pytest.mark.parametrize("after_s", [0.5, 7, 14])
class TestIdentity:
    """Completions and growth over the same scrapes are the arrivals between them."""

    def test_holds_while_a_queue_builds_up(self, scrapes, after_s):
        # 30 finish between two scrapes, 50 come: the rest waits.
        recording = engine_of(lambda n: 1000 + 30 * n, lambda n: 8, lambda n: 20 * n)

        count = counted(recording, scrapes, after_s)

        assert count.requests == pytest.approx(50 * (scrapes - 1))
        assert count.seconds == 15 * (scrapes - 1)

    def test_holds_for_counts_that_waver(self, scrapes, after_s):
        arrived = [50 * n + 7 * (n * n % 5) for n in range(100)]
        finished = [max(0, 50 * n - 40 + 3 * (n % 7)) for n in range(100)]
        recording = engine_of(
            lambda n: 5000 + finished[n], lambda n: 8, lambda n: arrived[n] - finished[n]
        )

        count = counted(recording, scrapes, after_s)

        assert count.requests == pytest.approx(arrived[-1] - arrived[-scrapes])

    def test_holds_for_an_engine_that_began_ten_scrapes_ago(self, scrapes, after_s):
        recording = engine_of(
            lambda n: 30 * (n - 90), lambda n: min(8, n - 90), lambda n: 2 * (n - 90), first=90
        )

        count = counted(recording, scrapes, after_s)

        seen = min(scrapes, 10)
        arrived = [30 * n + min(8, n) + 2 * n for n in range(10)]
        assert count.requests == pytest.approx(arrived[-1] - arrived[-seen])
        assert count.seconds == 15 * (seen - 1)


@pytest.mark.parametrize("ago", range(1, 6))
def test_a_restart_of_the_engine_is_no_spike_and_not_negative(ago):
    # 30 come between two scrapes. So many scrapes ago the batch was lost, and filled up again.
    since = [30 * (number - 100 + ago) for number in range(100)]
    recording = engine_of(
        lambda n: 30 * n if since[n] < 0 else max(0, since[n] - 40),
        lambda n: 40 if since[n] < 0 else min(40, since[n]),
        lambda n: 0,
    )

    for scrapes in WINDOWS:
        count = counted(recording, scrapes, after_s=7)
        assert 0 <= count.per_s < 2.01
    assert counted(recording, 60, after_s=7).per_s > 1.9
