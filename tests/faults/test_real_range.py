"""A real Prometheus that holds two hours of a fleet: ``tonnage replay`` replays what came to it."""

import json
import subprocess
import time

import pytest
import yaml

import debian_programs
from cli_builders import SMALL, run
from tonnage_lab import assets
from tonnage_lab.processes import ProcessGroup, answers, free_ports

PROGRAM, TOOL = assets.find("prometheus", assets.asset_paths()), debian_programs.find("promtool")
pytestmark = [
    pytest.mark.skipif(PROGRAM is None, reason="needs prometheus: python -m tonnage_lab builds it"),
    pytest.mark.skipif(TOOL is None, reason="promtool is neither here nor to be had"),
]
SCRAPE_S, HOURS_S = 15, 7200
PODS, REPLICAS = ("small-a", "small-b"), ("prometheus-0", "prometheus-1")
BOUNDS, SHARES = (1000, 2000, 5000), (0.25, 0.75, 1.0)
MEANS = {"prompt": 1800, "generation": 210}


def ended(passed_s):
    """Requests that one pod has ended: 2/s for an hour, then 6/s."""
    return 2.0 * passed_s + 4.0 * max(0.0, passed_s - HOURS_S / 2)


def labels(pod, replica, **more):
    own = {"engine": "0", "instance": f"{pod}:8000", "model_name": "served", "namespace": "serving"}
    pairs = own | {"pod": pod, "prometheus_replica": replica} | more
    return ",".join(f'{name}="{value}"' for name, value in pairs.items())


def families(began_s):
    """Yield each family as OpenMetrics: kind, name, and lines by series in order of time."""

    def lines(name, value, **more):
        for pod in PODS:
            for replica in REPLICAS:  # each of the two delivers every series
                its = labels(pod, replica, **more)
                for passed_s in range(0, HOURS_S + 1, SCRAPE_S):
                    yield f"{name}{{{its}}} {value(passed_s):g} {began_s + passed_s}"

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
                line
                for le, share in zip((*BOUNDS, "+Inf"), (*SHARES, 1.0), strict=True)
                for line in lines(f"{name}_bucket", lambda s, k=share: k * ended(s), le=le)
            ]
            + [
                *lines(f"{name}_count", ended),
                *lines(f"{name}_sum", lambda s, m=mean: m * ended(s)),
            ],
        )


@pytest.fixture
def url(tmp_path):
    """Return the address of a Prometheus that was given the last two hours at once."""
    began_s = int(time.time()) - HOURS_S
    text = tmp_path / "fleet.openmetrics"
    with text.open("w") as file:
        for kind, name, lines in families(began_s):
            file.write(f"# TYPE {name} {kind}\n")
            file.writelines(f"{line}\n" for line in lines)
        file.write("# EOF\n")
    data = tmp_path / "data"
    told = ["tsdb", "create-blocks-from", "openmetrics", "--quiet", str(text), str(data)]
    subprocess.run([TOOL, *told], check=True, capture_output=True)  # noqa: S603
    configuration = tmp_path / "prometheus.yaml"
    configuration.write_text(yaml.safe_dump({"global": {"scrape_interval": "15s"}}))
    (port,) = free_ports(1)
    address = f"http://127.0.0.1:{port}"
    flags = [f"--config.file={configuration}", f"--storage.tsdb.path={data}", "--log.level=warn"]
    group = ProcessGroup(logs=tmp_path)
    group.start("prometheus", [PROGRAM, *flags, f"--web.listen-address=127.0.0.1:{port}"])
    try:
        group.wait_until(
            answers(f"{address}/-/ready"), what="Prometheus", timeout_s=60, needs=("prometheus",)
        )
        yield address
    finally:
        group.stop_all()


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
    assert "Note: counted of served" in result.stderr


def test_matchers_that_name_nothing_are_shown(url):
    result = replay(url, "--selector", 'pod="other"')

    assert result.exit_code == 3
    assert 'no vllm:request_success_total{pod="other"}' in result.stderr


def test_what_prometheus_says_of_broken_matchers_is_shown(url):
    result = replay(url, "--selector", "pod=other")

    assert result.exit_code == 3
    assert "answered 400" in result.stderr
    assert "parse error" in result.stderr
