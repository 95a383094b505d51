"""A real Prometheus that holds two hours of a fleet: ``tonnage replay`` replays what came to it."""

import json
import time

import pytest

from cli_builders import SMALL, run
from prometheus_blocks import NEEDED, line, prometheus_with

pytestmark = NEEDED
SCRAPE_S, HOURS_S = 15, 7200
PODS, REPLICAS = ("small-a", "small-b"), ("prometheus-0", "prometheus-1")
BOUNDS, SHARES = (1000, 2000, 5000), (0.25, 0.75, 1.0)
MEANS = {"prompt": 1800, "generation": 210}


def ended(passed_s):
    """Requests that one pod has ended: 2/s for an hour, then 6/s."""
    return 2.0 * passed_s + 4.0 * max(0.0, passed_s - HOURS_S / 2)


def labels(pod, replica, **more):
    own = {"engine": "0", "instance": f"{pod}:8000", "model_name": "served", "namespace": "serving"}
    return own | {"pod": pod, "prometheus_replica": replica} | more


def families(began_s):
    """Yield each family as OpenMetrics: kind, name, and lines by series in order of time."""

    def lines(name, value, **more):
        for pod in PODS:
            for replica in REPLICAS:  # each of the two delivers every series
                its = labels(pod, replica, **more)
                for passed_s in range(0, HOURS_S + 1, SCRAPE_S):
                    yield line(name, its, value(passed_s), began_s + passed_s)

    yield "gauge", "vllm:num_requests_running", lines("vllm:num_requests_running", lambda _: 4)
    yield "gauge", "vllm:num_requests_waiting", lines("vllm:num_requests_waiting", lambda _: 0)
    success = "vllm:request_success_total"
    yield "counter", "vllm:request_success", lines(success, ended, finished_reason="stop")
    for kind, mean in MEANS.items():
        name = f"vllm:request_{kind}_tokens"
        yield (
            "histogram",
            name,
            [
                each
                for le, share in zip((*BOUNDS, "+Inf"), (*SHARES, 1.0), strict=True)
                for each in lines(f"{name}_bucket", lambda s, k=share: k * ended(s), le=le)
            ]
            + [
                *lines(f"{name}_count", ended),
                *lines(f"{name}_sum", lambda s, m=mean: m * ended(s)),
            ],
        )


@pytest.fixture
def url(tmp_path):
    """Return the address of a Prometheus that was given the last two hours at once."""
    with prometheus_with(tmp_path, families(int(time.time()) - HOURS_S)) as address:
        yield address


def replay(url, *arguments):
    return run(
        "replay", "-f", "-", "--prometheus", url, "--last", "110m", "--policy", "static:2",
        "--seeds", 1, "--processes", 1, "-o", "json", *arguments, text=SMALL,
    )  # fmt: skip


def test_what_a_fleet_was_asked_is_replayed_once_though_two_prometheus_tell_of_it(url):
    result = replay(url)
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    (run_,) = found["cases"][0]["policies"][0]["runs"]
    rates = [point["requestsPerSecond"] for point in run_["series"]]

    assert found["ranReplicas"] == len(PODS)
    assert run_["durationSeconds"] == pytest.approx(110 * 60, abs=60)
    # Two pods: 4/s until an hour ago, 12/s since.
    assert run_["requests"] == pytest.approx(50 * 60 * 4 + 60 * 60 * 12, rel=0.02)
    assert sum(rates[:40]) / 40 == pytest.approx(4, rel=0.05)
    assert sum(rates[-40:]) / 40 == pytest.approx(12, rel=0.05)
    assert "Note: traffic of served" in result.stderr


def test_matchers_that_name_nothing_are_shown(url):
    result = replay(url, "--selector", 'pod="other"')

    assert result.exit_code == 3
    assert 'no vllm:request_success_total{pod="other"}' in result.stderr


def test_what_prometheus_says_of_broken_matchers_is_shown(url):
    result = replay(url, "--selector", "pod=other")

    assert result.exit_code == 3
    assert "answered 400" in result.stderr
    assert "parse error" in result.stderr
