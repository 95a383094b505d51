"""The queries and the estimate of arrivals against a recording of a real engine.

217 requests over 212 s to vLLM 0.32, scraped every 2 s: a quiet minute, 90 s at 2.2 requests/s,
which is more than it can do, and another quiet minute. The recording is too large for this
repository.
"""

import bisect
import gzip
import json
import re
from collections import defaultdict
from pathlib import Path
from statistics import fmean, linear_regression

import pytest

from tonnage.estimate.demand import measure_demand, measure_lengths
from tonnage.estimate.metrics import RATE_SCRAPES, TABLE
from tonnage.estimate.samples import Series, join
from tonnage.settings import Settings

RECORDING = Path(__file__).parents[4] / "shared" / "vllm" / "recording"
SCRAPE_S = 2
SETTINGS = Settings(prometheus_url="http://prometheus.test:9090", scrape_interval_s=SCRAPE_S)
LINE = re.compile(r"(?P<name>[\w:]+)\{(?P<labels>.*)\} (?P<value>\S+)")
LABEL = re.compile(r'(\w+)="([^"]*)"')
METRICS = {name for query in TABLE.values() for name in (query.metric, *query.fallbacks)}

pytestmark = pytest.mark.skipif(
    not RECORDING.exists(), reason=f"the recording of a real engine is not at {RECORDING}"
)


@pytest.fixture(scope="module")
def scrapes():
    """[(seconds, {(metric, labels): value})]"""
    found = []
    with gzip.open(RECORDING / "scrapes.txt.gz", "rt") as lines:
        for line in lines:
            if line.startswith("# scrape_at_s"):
                found.append((float(line.split()[2]), {}))
            elif (match := LINE.match(line)) and match["name"] in METRICS:
                labels = tuple(LABEL.findall(match["labels"]))
                found[-1][1][match["name"], labels] = float(match["value"])
    return found


@pytest.fixture(scope="module")
def requests():
    text = (RECORDING / "requests.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def evaluated(query, scrapes, at_s):
    """What Prometheus answers for one query of the table."""
    window_s = query.scrapes * SCRAPE_S
    start = bisect.bisect(scrapes, at_s - window_s, key=lambda scrape: scrape[0])
    end = bisect.bisect(scrapes, at_s, key=lambda scrape: scrape[0])
    points = defaultdict(list)
    wanted = set(LABEL.findall(query.matchers))
    for seconds, values in scrapes[start:end]:
        for (metric, labels), value in values.items():
            if metric == query.metric and wanted <= set(labels):
                points[labels].append((seconds, value))
    return [
        Series(
            labels={**dict(labels), "namespace": "test", "pod": "a"},
            value=reduced(query.function, each),
            evaluated_at_s=at_s,
        )
        for labels, each in points.items()
    ]


def reduced(function, points):
    (first_s, first), (last_s, last) = points[0], points[-1]
    match function:
        case None:
            return last
        case "timestamp":
            return last_s
        case "avg_over_time":
            return fmean(value for _, value in points)
        case "deriv":
            return linear_regression(*zip(*points, strict=True)).slope
        case "rate":
            return (last - first) / (last_s - first_s)


def seen(scrapes, at_s):
    """The samples of the one engine and its lengths at this moment."""
    answers = {name: evaluated(query, scrapes, at_s) for name, query in TABLE.items()}
    found = join(answers, SETTINGS)
    [samples] = found.engines["test", "a"]
    return samples, found.long["test", "a"]


def moments(scrapes, first_s=RATE_SCRAPES * SCRAPE_S):
    return [seconds for seconds, _ in scrapes if seconds >= first_s]


def test_a_real_engine_has_every_metric_of_the_table(scrapes):
    answers = {name: evaluated(query, scrapes, 120) for name, query in TABLE.items()}

    assert [name for name, answer in answers.items() if not answer] == []


def test_a_real_engine_gives_every_figure(scrapes):
    samples, _ = seen(scrapes, 120)

    missing = [name for name in samples.__slots__ if getattr(samples, name) is None]
    assert missing == []


def estimates(scrapes, requests):
    """[(estimated, true, completed)] requests/s at each scrape, over its four scrapes."""
    arrivals_s = [each["arrival_s"] for each in requests]
    times_s = [seconds for seconds, _ in scrapes]
    for at_s in moments(scrapes):
        samples, _ = seen(scrapes, at_s)
        end = times_s.index(at_s)
        start_s = times_s[end - RATE_SCRAPES + 1]
        true = sum(start_s < each <= at_s for each in arrivals_s) / (at_s - start_s)
        demand = measure_demand([samples], ready_pods=frozenset({"a"}))
        yield demand.requests_per_s, true, samples.completions_per_s


def test_arrivals_are_estimated_within_six_tenths_of_a_request_per_second(scrapes, requests):
    errors = [abs(estimated - true) for estimated, true, _ in estimates(scrapes, requests)]

    assert max(errors) < 0.6
    assert fmean(errors) < 0.12


def test_completions_alone_would_be_three_times_as_wrong(scrapes, requests):
    found = list(estimates(scrapes, requests))

    ours = fmean(abs(estimated - true) for estimated, true, _ in found)
    theirs = fmean(abs(completed - true) for _, true, completed in found)
    assert theirs > 3 * ours


def test_all_estimates_together_count_the_requests(scrapes, requests):
    # Each scrape stands for its 2 s: the area under the estimates is the number of requests.
    total = sum(estimated for estimated, _, _ in estimates(scrapes, requests)) * SCRAPE_S

    assert total == pytest.approx(len(requests), rel=0.05)


def test_lengths_are_those_of_the_requests_that_finished(scrapes, requests):
    # At the end everything has finished, and the long window of 120 s holds the busy phase.
    at_s = moments(scrapes)[-1]
    ended = [r for r in requests if r["arrival_s"] + r["e2e_s"] > at_s - 120]

    lengths = measure_lengths(seen(scrapes, at_s)[1], window_s=120)

    assert lengths.prompt_tokens == pytest.approx(fmean(r["prompt_tokens"] for r in ended), rel=0.1)
    assert lengths.output_tokens == pytest.approx(fmean(r["output_tokens"] for r in ended), rel=0.1)
    assert lengths.cached_fraction < 0.1


def test_the_step_time_is_the_gap_that_clients_see(scrapes, requests):
    busy = [
        (r["e2e_s"] - r["ttft_s"]) / (r["output_tokens"] - 1)
        for r in requests
        if 70 < r["arrival_s"] < 140 and r["output_tokens"] > 20
    ]
    gaps = [seen(scrapes, at_s)[0] for at_s in moments(scrapes) if 80 < at_s < 150]

    step_s = fmean(each.token_gap_s_per_s / each.token_gaps_per_s for each in gaps)

    assert step_s == pytest.approx(fmean(busy), rel=0.1)
