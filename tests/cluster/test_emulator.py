"""The engine emulator as a program, and as pods under load that a real Prometheus scrapes."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import contextmanager

import pytest

from pod_lab import OPERATOR, SERVE, a_deployment, a_lab, a_service, eventually, ready_addresses
from tonnage_lab import prometheus
from tonnage_lab.load import LoadTarget, background_load
from tonnage_lab.load_client import LengthDistribution, RequestShape, attainment, quantile, within
from tonnage_lab.load_endpoints import PodChoice, ServiceRef
from tonnage_lab.processes import free_ports
from tonnage_lab.runner.__main__ import obstacle

pytestmark = pytest.mark.lab
needs_root = pytest.mark.skipif(obstacle() is not None, reason=str(obstacle()))

STEP_S = 0.02
TRUTH = {"kv_tokens": 65536, "load_s": 0.2, "step": {"per_step_s": STEP_S}}


@contextmanager
def a_program(folder, *flags, **truth):
    """Run the emulator as a program of its own; yields it and its address."""
    (folder / "truth.json").write_text(json.dumps(TRUTH | truth))
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "tonnage_lab.emulator", "serve", *SERVE]
    program = subprocess.Popen(  # noqa: S603
        [*command, "--host", "127.0.0.1", "--port", str(port), *flags],
        env={
            **os.environ,
            "PYTHONPATH": str(OPERATOR),
            "TONNAGE_LAB_TRUTH": str(folder / "truth.json"),
        },
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield program, f"http://127.0.0.1:{port}"
    finally:
        program.kill()
        program.communicate()


def status_of(url):
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:  # refused, or reset while the listener closes
        return None


def complete(url, max_tokens, answers):
    body = json.dumps({"prompt": [1, 2, 3], "max_tokens": max_tokens}).encode()
    request = urllib.request.Request(  # noqa: S310
        f"{url}/v1/completions", body, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
        answers.append(json.load(answer))


def num_running(url):
    with urllib.request.urlopen(f"{url}/metrics", timeout=5) as page:  # noqa: S310
        for line in page.read().decode().splitlines():
            if line.startswith("vllm:num_requests_running{"):
                return float(line.rpartition(" ")[2])
    return None


def test_it_answers_503_while_it_loads_and_200_from_then_on(tmp_path):
    with a_program(tmp_path, load_s=1.0) as (_, url):
        eventually(lambda: status_of(f"{url}/health") is not None, "it listens")
        loading = status_of(f"{url}/health"), status_of(f"{url}/metrics")
        eventually(lambda: status_of(f"{url}/health") == 200, "it is loaded")

    assert loading == (503, 503)


def test_sigterm_drains_what_is_in_flight_and_takes_nothing_new(tmp_path):
    answers = []
    with a_program(tmp_path, "--shutdown-timeout", "20") as (program, url):
        eventually(lambda: status_of(f"{url}/health") == 200, "it is loaded")
        client = threading.Thread(target=complete, args=(url, 50, answers))
        client.start()
        eventually(lambda: num_running(url) == 1, "the request runs")
        program.send_signal(signal.SIGTERM)
        eventually(lambda: status_of(f"{url}/health") is None, "it takes no connection")
        client.join()
        code = program.wait(timeout=10)

    assert answers[0]["usage"]["completion_tokens"] == 50
    assert code == 0


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (["--max-num-sequences", "4"], 2, "unrecognized arguments: --max-num-sequences 4"),
        (["--max-num-batched-tokens", "9"], 1, "max_num_batched_tokens (9) is below"),
    ],
)
def test_what_vllm_would_not_start_with_ends_it_and_is_named(tmp_path, flags, code, message):
    with a_program(tmp_path, *flags) as (program, _):
        _, said = program.communicate(timeout=20)

    assert program.returncode == code
    assert message in said


@pytest.fixture
def lab(kubectl, administrator, namespace, tmp_path):
    with a_lab(kubectl, administrator, namespace, tmp_path, truth=TRUTH) as made:
        made.apply(
            a_deployment(
                made,
                2,
                args=[*SERVE, "--shutdown-timeout", "20"],
                lifecycle={"preStop": {"exec": {"command": ["sleep", "15"]}}},  # cut off earlier
            ),
            a_service(),
        )
        eventually(lambda: len(ready_addresses(made)) == 2, "two endpoints", timeout_s=60)
        yield made


def a_load(lab, **changes):
    target = LoadTarget(
        kubeconfig=lab.kubectl.kubeconfig,
        service=ServiceRef(namespace=lab.namespace, name="m", port_name="http"),
    )
    shape = RequestShape(
        model="m",
        prompt=LengthDistribution(mean_tokens=50),
        output=LengthDistribution(mean_tokens=20, exponential=True, maximum_tokens=100),
        **({"routing": PodChoice.LEAST_OUTSTANDING} | changes),
    )
    return background_load(target, shape)


def is_of_hidden_speed(records):
    median_s = quantile([each.tpot_s for each in records], 0.5)
    is_steady = attainment(records, ttft_s=0.5, tpot_s=2 * STEP_S) > 0.9
    return is_steady and STEP_S * 0.9 < median_s < STEP_S * 1.5


def test_of_several_nodes_the_first_serves_when_the_other_has_come(tmp_path):
    (port,) = free_ports(1)
    nodes = ["--nnodes", "2", "--master-addr", "127.0.0.1", "--master-port", str(port)]
    with a_program(tmp_path, *nodes, load_s=0.0) as (_, url):
        eventually(lambda: answered(f"{url}/health") == 503, "it waits")
        with a_program(tmp_path, *nodes, "--node-rank", "1", "--headless") as (_, other):
            eventually(lambda: answered(f"{url}/health") == 200, "it serves")

            assert answered(f"{other}/health") is None


def answered(url):
    try:
        return status_of(url)
    except OSError:
        return None


@needs_root
def test_load_reaches_every_pod_at_the_hidden_speed_and_its_rate_can_change(lab):
    with a_load(lab) as control:
        control.requests_per_s = 10
        eventually(lambda: len(control.records) >= 20, "twenty requests have ended")
        control.requests_per_s = 30
        since_s = time.time() + 0.2
        eventually(lambda: len(within(control.records, since_s=since_s)) >= 60, "sixty more")
        eventually(
            lambda: is_of_hidden_speed(control.records[-60:]),
            "sixty requests for which this machine had time",
            timeout_s=120,
        )
    due = within(control.records, since_s=since_s)
    span_s = max(each.start_s for each in due) - since_s

    assert all(each.is_complete for each in control.records)
    assert len({each.pod for each in control.records}) == 2
    assert len(due) / span_s == pytest.approx(30, rel=0.5)


@needs_root
def test_users_who_wait_for_their_answers_never_have_more_in_flight_than_they_are(lab):
    with a_load(lab) as control:
        control.num_users = 4
        eventually(lambda: len(control.records) >= 40, "forty requests have ended")
    ends = sorted((each.start_s, each.start_s + each.e2e_s) for each in control.records)
    most = max(sum(start <= at < end for start, end in ends) for at, _ in ends)

    assert most <= 4


@needs_root
def test_scaling_down_under_load_loses_no_request(lab):
    with a_load(lab, routing=PodChoice.RANDOM) as control:
        control.requests_per_s = 20
        eventually(lambda: len(control.records) >= 20, "twenty requests have ended")
        lab.kubectl("scale", "deployment/m", "--replicas=1", "-n", lab.namespace)
        eventually(lambda: len(lab.pods()) == 1, "one pod is left")

    assert [each for each in control.records if not each.is_complete] == []


@needs_root
def test_prometheus_measures_the_hidden_step_time(lab, control_plane, programs):
    url = prometheus.start(control_plane, scrape_interval_s=1, program=programs["prometheus"])
    latency = "vllm:inter_token_latency_seconds"
    selector = f'{{namespace="{lab.namespace}"}}[5s]'
    query = f"sum(rate({latency}_sum{selector})) / sum(rate({latency}_count{selector}))"

    def measured_s():
        parameters = urllib.parse.urlencode({"query": query})
        with urllib.request.urlopen(f"{url}/api/v1/query?{parameters}", timeout=5) as answer:  # noqa: S310
            found = json.load(answer)["data"]["result"]
        return float(found[0]["value"][1]) if found else None

    with a_load(lab) as control:
        control.num_users = 4
        eventually(
            lambda: STEP_S * 0.98 < (measured_s() or 0) < STEP_S * 1.5,
            "five seconds in which this machine let the engine step in time",
            timeout_s=120,
        )
    control_plane.group.stop("prometheus")
