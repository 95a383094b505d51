"""A real Prometheus that holds a day of a fleet: what an operator that starts reads of it."""

import time
from dataclasses import dataclass, replace

import pytest

from fleet_builders import a_manifest, a_state
from prometheus_blocks import NEEDED, line, prometheus_with
from tonnage.cluster.ranges import ask_range
from tonnage.estimate.forecasters import BIN_S
from tonnage.estimate.past import LABEL
from tonnage.fleet.past import PastReader
from tonnage.settings import Settings
from tonnage.units import HOUR_S, MINUTE_S

pytestmark = NEEDED
SCRAPE_S = 30
HOURS = 27
SLO = {"timeToFirstToken": {"p95": "2s"}, "attainment": {"window": "24h"}}
TTFT = "TTFT 2.00 s"
SHARES = {"1.0": 0.5, "2.0": 0.9, "2.5": 1.0, "+Inf": 1.0}
"""Of the requests, within each bound: a tenth is late."""
RUNNING, WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"
DONE, TTFT_METRIC = "vllm:request_success", "vllm:time_to_first_token_seconds"


@dataclass(frozen=True, kw_only=True)
class Engine:
    """One pod; what it counts goes by the hours from now on, below 0."""

    name: str = "llama"
    pod: str = "llama-a"
    namespace: str = "blue"
    per_s: float = 2.0
    burst: tuple[float, float] = (0.0, 0.0)
    """(hour at which it begins, further requests in two minutes)"""
    growth: tuple[float, float] = (0.0, 0.0)
    """(hour at which it begins, further requests that wait, in ten minutes)"""
    restarts_at: float = -HOURS
    hours: tuple[tuple[float, float], ...] = ((-HOURS, 0.0),)
    """In which it is scraped."""
    scrapers: tuple[str, ...] = ("prometheus-0",)
    has_queue: bool = True

    def done(self, hour):
        def since_start(at):
            begin, more = self.burst
            passed = min(max(0.0, (at - begin) * HOUR_S / 120), 1.0) if more else 0.0
            return self.per_s * (at + HOURS) * HOUR_S + more * passed

        begun = self.restarts_at if hour >= self.restarts_at else -HOURS
        return since_start(hour) - since_start(begun)

    def running(self, hour):
        return 0.0 if 0 <= hour - self.restarts_at < MINUTE_S / HOUR_S else 40.0

    def waiting(self, hour):
        begin, more = self.growth
        return more * min(max(0.0, (hour - begin) * HOUR_S / BIN_S), 1.0) if more else 0.0

    def lines(self, metric, value, now_s, **more):
        for number, scraper in enumerate(self.scrapers):
            labels = {
                "namespace": self.namespace,
                "pod": self.pod,
                "engine": "0",
                "model_name": "served",
                "prometheus_replica": scraper,
                **({LABEL: self.name} if self.name else {}),
                **more,
            }
            for step in range(HOURS * int(HOUR_S) // SCRAPE_S):
                passed_s = step * SCRAPE_S + 7 * number
                hour = passed_s / HOUR_S - HOURS
                if any(begin <= hour < end for begin, end in self.hours):
                    yield line(metric, labels, value(hour), now_s + hour * HOUR_S)


def families(engines, now_s):
    """Yield kind, name and lines of each family of these engines."""

    def of_each(metric, value, **more):
        return (
            each
            for engine in engines
            if metric != WAITING or engine.has_queue
            for each in engine.lines(metric, lambda hour, e=engine: value(e, hour), now_s, **more)
        )

    yield "gauge", RUNNING, of_each(RUNNING, Engine.running)
    yield "gauge", WAITING, of_each(WAITING, Engine.waiting)
    yield "counter", DONE, of_each(f"{DONE}_total", Engine.done, finished_reason="stop")
    yield (
        "histogram",
        TTFT_METRIC,
        (
            each
            for le, share in SHARES.items()
            for each in of_each(
                f"{TTFT_METRIC}_bucket", lambda e, hour, s=share: s * e.done(hour), le=le
            )
        ),
    )


FLEET = (
    # Two Prometheus replicas, one of which scrapes by two jobs, tell of the first pod.
    Engine(
        scrapers=("prometheus-0", "prometheus-1", "prometheus-2"),
        burst=(-6.0 - 180 / HOUR_S, 2400.0),
    ),
    Engine(pod="llama-b"),
    # Another namespace names its pod as it likes, and a pod without the label is nobody's.
    Engine(pod="llama-c", namespace="red", per_s=50.0),
    Engine(name="", pod="llama-d", per_s=50.0),
    Engine(name="restarted", pod="restarted-a", restarts_at=-3.0),
    Engine(name="growing", pod="growing-a", growth=(-4.0, 1800.0)),
    Engine(name="unqueued", pod="unqueued-a", has_queue=False),
    Engine(name="young", pod="young-a", hours=((-5.0, 0.0),)),
    Engine(name="broken", pod="broken-a", hours=((-HOURS, -10.0), (-7.0, 0.0))),
    Engine(name="ended", pod="ended-a", hours=((-HOURS, -2.0),)),
    Engine(name="quiet", pod="quiet-a", per_s=0.0),
)


def an_object(name, namespace="blue", *, created="2020-01-01T00:00:00Z"):
    state = a_state(a_manifest(name, slo=SLO))
    view = replace(state.view, namespace=namespace, uid=f"{namespace}/{name}", created=created)
    return replace(state, view=view)


def read(url, now_s, *states):
    settings = Settings(prometheus_url=url, scrape_interval_s=SCRAPE_S)
    reader = PastReader(ask=ask_range, settings=settings)
    reader.begin(now_s)
    assert reader.look(states, now_s) == frozenset()
    return reader.found


@pytest.fixture(scope="module")
def now_s():
    return time.time() // HOUR_S * HOUR_S


@pytest.fixture(scope="module")
def found(tmp_path_factory, now_s):
    """Return what is read of the fleet, by name."""
    names = dict.fromkeys(each.name for each in FLEET if each.name and each.namespace == "blue")
    folder = tmp_path_factory.mktemp("prometheus")
    with prometheus_with(folder, families(FLEET, now_s)) as url:
        pasts = read(url, now_s, *[an_object(name) for name in (*names, "unknown")])
    return {uid.partition("/")[2]: past for uid, past in pasts.items()}


def hour_of(bin_, now_s):
    return (bin_ * BIN_S - now_s) / HOUR_S


def test_what_several_scrapers_say_of_one_engine_counts_once(found, now_s):
    means = found["llama"].means
    usual = [each for at, each in means.items() if not -7 < hour_of(at, now_s) < -5]
    burst = int((now_s - 6 * HOUR_S) // BIN_S) - 1

    assert usual[1:] == pytest.approx([4.0] * (len(usual) - 1), rel=0.02)
    assert means[burst] == pytest.approx(4.0 + 2400 / 600, rel=0.05)
    assert max(means) == now_s // BIN_S - 1


def test_a_burst_is_a_peak_of_its_ten_minutes_alone(found, now_s):
    peaks, burst = dict(found["llama"].peaks), int((now_s - 6 * HOUR_S) // BIN_S) - 1

    assert peaks.pop(burst) == pytest.approx(4.0 + 2400 / 120, rel=0.1)
    assert max(peaks.values()) == pytest.approx(4.0, rel=0.05)
    assert len(peaks) == 143


def test_requests_are_in_time_or_late_once_and_none_is_missing(found, now_s):
    ledger = found["llama"].ledger
    at = int(now_s // HOUR_S) - 12

    assert ledger.is_whole(now_s)
    assert ledger.limits[TTFT][at] == pytest.approx((4 * 3600, 400 * 3.6), rel=0.02)


def test_counters_that_begin_anew_lose_little_and_raise_no_peak(found, now_s):
    past = found["restarted"]
    at = int((now_s - 3 * HOUR_S) // BIN_S)

    assert past.means[at] == pytest.approx(2.0, rel=0.1)
    assert max(past.peaks.values()) < 2.0 + 40 / (4 * SCRAPE_S) + 0.2
    assert past.peaks[at - 3] == pytest.approx(2.0, rel=0.02)


def test_what_waits_has_come_too(found, now_s):
    past = found["growing"]
    at = int((now_s - 4 * HOUR_S) // BIN_S)

    assert past.means[at] == pytest.approx(2.0, rel=0.02)
    assert past.peaks[at] == pytest.approx(2.0 + 3.0, rel=0.05)


def test_a_page_without_a_queue_has_peaks(found):
    assert max(found["unqueued"].peaks.values()) == pytest.approx(2.0, rel=0.05)
    assert len(found["unqueued"].peaks) == 144


@pytest.mark.parametrize(("name", "hours"), [("young", -5), ("broken", -7), ("ended", 0)])
def test_a_budget_says_since_when_it_counts_where_history_is_missing(found, now_s, name, hours):
    since_s = found[name].ledger.since_s

    assert now_s + hours * HOUR_S <= since_s <= now_s + hours * HOUR_S + 900
    assert not found[name].ledger.is_whole(now_s)


def test_who_was_asked_nothing_has_a_whole_budget(found, now_s):
    assert found["quiet"].ledger.is_whole(now_s)
    assert found["quiet"].ledger.limits == {}
    assert set(found["quiet"].means.values()) == {0.0}


def test_of_an_unknown_object_nothing_is_counted_before_now(found, now_s):
    assert found["unknown"].ledger.since_s == now_s
    assert not found["unknown"].means


def test_a_namespace_with_too_many_series_costs_no_other(tmp_path, now_s):
    many = [Engine(pod=f"llama-{at}", namespace="red") for at in range(12)]
    with prometheus_with(
        tmp_path, families([Engine(), *many], now_s), "--query.max-samples=30000"
    ) as url:
        past = read(url, now_s, an_object("llama"), an_object("llama", "red"))

    assert past["red/llama"].ledger.since_s == now_s
    assert not past["red/llama"].means
    assert past["blue/llama"].ledger.is_whole(now_s)
    assert past["blue/llama"].means
