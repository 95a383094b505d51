"""The scrapes and the estimate of arrivals against a recording of a real engine.

217 requests over 212 s to vLLM 0.32, scraped every 2 s: a quiet minute, 90 s at 2.2 requests/s,
which is more than it can do, and another quiet minute. The recording is too large for this
repository.
"""

import math
from pathlib import Path
from statistics import fmean, quantiles

import pytest

from recordings import POD, read_watched
from tonnage.estimate.demand import attainment, count_arrivals, measure_demand, measure_lengths
from tonnage.estimate.metrics import BUCKETS, COLUMNS, SLOW_SCRAPES, WINDOWS, bounds_near

RECORDING = Path(__file__).parents[4] / "shared" / "vllm" / "recording"
pytestmark = pytest.mark.skipif(
    not RECORDING.exists(), reason=f"the recording of a real engine is not at {RECORDING}"
)
LENGTHS = {
    "prompt_tokens": ("started_prompt_tokens", "started", "first_token_at_s"),
    "output_tokens": ("finished_output_tokens", "finished", "ended_at_s"),
}
"""(tokens, requests, when the engine counts both)"""
LATENCIES = {"ttft": ("ttft_s", "first_token_at_s"), "tpot": ("tpot_s", "ended_at_s")}
"""(latency, when the engine counts it)"""


@pytest.fixture(scope="module")
def watched():
    return read_watched(RECORDING)


def counted_at(watched, time, first_s, last_s):
    """Return the requests of the log that the engine counted within a time."""
    return watched.of_log(lambda each: getattr(each, time), first_s, last_s)


def seen(watched, at_s):
    scrape_s = max(each for each in watched.recording.scrapes_s if each <= at_s)
    [samples] = watched.seen(scrape_s)
    return scrape_s, samples


def test_a_real_engine_has_every_metric_of_the_table(watched):
    metrics = set(watched.recording.series)

    assert {column.name for column in COLUMNS if not metrics & {*column.metrics}} == set()


def test_a_real_engine_gives_every_figure(watched):
    _, samples = seen(watched, 120)

    missing = [name for name in samples.__slots__ if getattr(samples, name) is None]
    assert missing == ["dram_active_fraction"]  # there was no exporter of GPUs


def test_phases_are_found_where_the_load_changed(watched):
    # It changed at 60 s and at 150 s, and requests come by chance.
    [_, (start_s, end_s), _] = watched.phases()

    assert start_s == pytest.approx(60, abs=8)
    assert end_s == pytest.approx(150, abs=8)


@pytest.mark.parametrize("phase", [0, 1, 2], ids=["quiet", "saturated", "quiet again"])
def test_arrivals_are_those_of_the_log(watched, phase):
    first_s, last_s = watched.phases()[phase]
    requests, logged, _, _ = watched.counted(first_s, last_s)
    read = [
        (scrape_s, measure_demand(watched.seen(scrape_s), ready_pods=frozenset({POD["pod"]})))
        for scrape_s in watched.scrapes_within(first_s, last_s)
    ]
    own = [(at_s, each) for at_s, each in read if each and at_s - each.window_s >= first_s]
    true = fmean(watched.num_logged(at_s - e.window_s, at_s) / e.window_s for at_s, e in own)

    assert requests == pytest.approx(logged, rel=0.02)
    assert fmean(each.requests_per_s for _, each in own) == pytest.approx(true, rel=0.06)


def test_every_count_is_that_of_the_log_but_for_requests_on_the_way(watched):
    for scrapes in WINDOWS:
        for scrape_s in watched.recording.scrapes_s[WINDOWS[-1] :: 5]:
            _, samples = seen(watched, scrape_s)
            count = count_arrivals([samples], scrapes)

            logged = watched.num_logged(scrape_s - count.seconds, scrape_s)
            assert count.requests == pytest.approx(logged, abs=4.5)


def test_completions_alone_would_miss_what_piles_up(watched):
    # While the queue builds up, from 108 s to 122 s.
    scrape_s, samples = seen(watched, 122)

    logged = watched.num_logged(scrape_s - 14, scrape_s) / 14
    demand = measure_demand([samples], ready_pods=frozenset("a"))

    assert samples.over(8).completed_per_s < 0.75 * logged
    assert demand.requests_per_s == pytest.approx(logged, rel=0.15)


def test_a_short_window_would_read_anything(watched):
    # At 0.3 requests/s, 6 s hold none, one or three.
    short, chosen = [], []
    for scrape_s in watched.scrapes_within(192, 212):
        _, samples = seen(watched, scrape_s)
        demand = measure_demand([samples], ready_pods=frozenset("a"))
        short.append(count_arrivals([samples], 4).per_s)
        chosen.append(demand.requests_per_s)

    assert max(short) > 2.9 * min(short)
    assert max(chosen) < 1.7 * min(chosen)


def test_mean_lengths_are_those_of_the_log(watched):
    scrapes_s = watched.recording.scrapes_s
    for span in (*watched.phases(), (scrapes_s[0], scrapes_s[-1])):
        for name, (tokens, requests, time) in LENGTHS.items():
            logged = fmean(getattr(each, name) for each in counted_at(watched, time, *span))
            assert watched.mean_tokens(tokens, requests, *span) == pytest.approx(logged, rel=0.02)


@pytest.mark.parametrize("name", LENGTHS)
def test_mean_lengths_of_every_scrape_are_those_of_the_log_in_the_slow_window(watched, name):
    window_s, told = (SLOW_SCRAPES - 1) * watched.interval_s, 0
    for at_s in watched.recording.scrapes_s:
        lengths = measure_lengths(watched.seen(at_s))
        logged = counted_at(watched, LENGTHS[name][2], at_s - window_s, at_s)
        if lengths and logged:
            told += 1
            true = fmean(getattr(each, name) for each in logged)
            assert getattr(lengths, name) == pytest.approx(true, rel=0.02)
    assert told > 70


def test_the_queue_is_what_cannot_run_yet(watched):
    # The log does not say which of the requests in flight run: as many as ever ran together.
    running, waiting = "vllm:num_requests_running", "vllm:num_requests_waiting"
    scrapes_s = watched.recording.scrapes_s
    slots = max(watched.gauge(running, at_s) for at_s in scrapes_s)
    for phase in watched.phases():
        within_s = watched.scrapes_within(*phase)
        told = [watched.gauge(waiting, at_s) for at_s in within_s]
        logged = [max(0.0, watched.in_flight(at_s) - slots) for at_s in within_s]
        assert fmean(abs(a - b) for a, b in zip(told, logged, strict=True)) < 0.2
        assert max(told) == pytest.approx(max(logged), abs=1)


@pytest.mark.parametrize("latency", LATENCIES)
def test_attainment_on_a_bound_is_that_of_the_log_and_between_bounds_near(watched, latency):
    value, time = LATENCIES[latency]
    [metric] = (metric for metric, name in BUCKETS.items() if name == latency)
    ladder = {float(dict(labels)["le"]) for labels in watched.recording.series[metric]}
    values = [getattr(each, value) for each in watched.log]
    for at in (9, 17, 18):  # p50, p90 and p95
        limit_s = quantiles(values, n=20)[at]
        exact_s = min(ladder - {math.inf}, key=lambda le: abs(math.log(le / limit_s)))
        for phase in watched.phases():
            logged = [getattr(each, value) for each in counted_at(watched, time, *phase)]
            grown = watched.grown(metric, *phase)
            by_bound = {float(dict(labels)["le"]): each for labels, each in grown.items()}
            for asked_s, most in ((exact_s, 0.01), (float(f"{limit_s:.2g}"), 0.08)):
                near = bounds_near(*([asked_s] if each == latency else [] for each in LATENCIES))
                kept = {le: each for le, each in by_bound.items() if le in {*near, math.inf}}
                true = fmean(each <= asked_s for each in logged)
                assert attainment([kept], limit_s=asked_s) == pytest.approx(true, abs=most)


def test_the_step_time_is_the_gap_that_clients_see(watched):
    busy = [each.tpot_s for each in watched.log if 70 < each.arrival_s < 140 and each.tpot_s]
    gaps = [seen(watched, at_s)[1] for at_s in range(82, 150, 2)]

    step_s = fmean(each.busy.token_gap_s_per_s / each.busy.token_gaps_per_s for each in gaps)

    assert step_s == pytest.approx(fmean(busy), rel=0.1)
