"""The scrapes and the estimate of arrivals against a recording of a real engine.

217 requests over 212 s to vLLM 0.32, scraped every 2 s: a quiet minute, 90 s at 2.2 requests/s,
which is more than it can do, and another quiet minute. The recording is too large for this
repository.
"""

from pathlib import Path
from statistics import fmean

import pytest
from recording import report

from recordings import read_watched
from tonnage.estimate.demand import count_arrivals, measure_demand
from tonnage.estimate.metrics import WINDOWS
from tonnage.estimate.pages import COLUMNS

RECORDING = Path(__file__).parents[4] / "shared" / "vllm" / "recording"
pytestmark = pytest.mark.skipif(
    not RECORDING.exists(), reason=f"the recording of a real engine is not at {RECORDING}"
)


@pytest.fixture(scope="module")
def watched():
    return read_watched(RECORDING)


@pytest.fixture(scope="module")
def found(watched):
    return report(watched, watched.phases())


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
def test_arrivals_are_those_of_the_log(found, phase):
    rate = found["phases"][phase]["arrival_rate"]

    assert abs(rate["counted"]["error"]) < 0.02
    assert abs(rate["as_read"]["windows_within"]["error"]) < 0.06


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


def test_mean_lengths_are_those_of_the_log(found):
    for part in (*found["phases"], found["whole"]):
        assert abs(part["prompt_tokens"]["error"]) < 0.02
        assert abs(part["output_tokens"]["error"]) < 0.02


def test_mean_lengths_of_every_scrape_are_those_of_the_log_in_the_slow_window(found):
    for spread in found["whole"]["lengths_as_read"].values():
        assert spread["scrapes"] > 70
        assert spread["largest_size"] < 0.02


def test_the_queue_is_what_cannot_run_yet(found):
    for phase in found["phases"]:
        queue = phase["queue"]["waiting"]
        assert queue["mean_size_of_error"] < 0.2
        assert queue["estimated_most"] == pytest.approx(queue["log_most"], abs=1)


def test_attainment_on_a_bound_is_that_of_the_log_and_between_bounds_near(found):
    for phase in found["phases"]:
        for share in phase["attainment"].values():
            assert abs(share["error"]) < (0.01 if share["is_bucket_bound"] else 0.08)


def test_the_step_time_is_the_gap_that_clients_see(watched):
    busy = [each.tpot_s for each in watched.log if 70 < each.arrival_s < 140 and each.tpot_s]
    gaps = [seen(watched, at_s)[1] for at_s in range(82, 150, 2)]

    step_s = fmean(each.busy.token_gap_s_per_s / each.busy.token_gaps_per_s for each in gaps)

    assert step_s == pytest.approx(fmean(busy), rel=0.1)
