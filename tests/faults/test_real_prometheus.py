"""The queries against a real Prometheus that scrapes pages of two engines."""

import time
from contextlib import ExitStack, contextmanager
from functools import partial
from http import HTTPStatus
from itertools import chain

import pytest
import requests
import yaml

import debian_programs
from http_double import Reply, serving
from tonnage.cluster.calls import PrometheusError
from tonnage.cluster.prometheus import Prometheus, QueryLimits
from tonnage.cluster.queries import QuerySet
from tonnage.cluster.ranges import Steps, ask_range
from tonnage.estimate.fleet_scrapes import FleetScrapes
from tonnage.estimate.metrics import QUERIES, WINDOWS, queries
from tonnage.estimate.samples import fleet_samples
from tonnage.fleet.scrape import parts_of
from tonnage.settings import Settings
from tonnage_lab import assets
from tonnage_lab.processes import ProcessGroup, answers, free_ports

PROGRAM = assets.find("prometheus", assets.asset_paths())
VICTORIA_METRICS = debian_programs.find("victoria-metrics")
pytestmark = pytest.mark.skipif(
    PROGRAM is None, reason="needs prometheus: python -m tonnage_lab builds it"
)
SCRAPE_S = 1
PODS = (("blue", "llama-0"), ("green", "mixtral-0"))
PAGE = """
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="x"}} 3
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{{engine="0",model_name="x"}} {waiting}
# TYPE vllm:request_success_total counter
vllm:request_success_total{{engine="0",finished_reason="stop",model_name="x"}} {seconds}
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{{engine="0",kv_cache_size_tokens="100000",num_gpu_blocks="6250"}} 1
"""


def is_guarded(url):
    """Tell whether a server is there that asks who one is."""

    def ready():
        try:
            return requests.get(f"{url}/-/ready", timeout=1).status_code == HTTPStatus.UNAUTHORIZED
        except requests.RequestException:
            return False

    return ready


@contextmanager
def prometheus_of(tmp_path, engines, command=None, ready=lambda url: answers(f"{url}/-/ready")):
    """A Prometheus with one target for each pod; yields its address and its process group."""
    (port,) = free_ports(1)
    targets = [
        {
            "targets": [url.removeprefix("http://")],
            "labels": {"namespace": space, "pod": pod, **dict([more] if more else [])},
        }
        for (space, pod, *more), url in engines.items()
        for more in [more[0] if more else None]
    ]
    configuration = tmp_path / "prometheus.yaml"
    scraping = {"scrape_interval": f"{SCRAPE_S}s", "scrape_timeout": f"{SCRAPE_S}s"}
    jobs = [{"job_name": "engines", "static_configs": targets}]
    configuration.write_text(yaml.safe_dump({"global": scraping, "scrape_configs": jobs}))
    url = f"http://127.0.0.1:{port}"
    group = ProcessGroup(logs=tmp_path)
    asked = (command or of_prometheus)(configuration, tmp_path / "data", f"127.0.0.1:{port}")
    group.start("prometheus", asked)
    try:
        group.wait_until(ready(url), what="Prometheus", timeout_s=60, needs=("prometheus",))
        yield url, group
    finally:
        group.stop_all()


def of_prometheus(configuration, data, address):
    flags = [f"--config.file={configuration}", f"--storage.tsdb.path={data}"]
    return [PROGRAM, *flags, f"--web.listen-address={address}", "--log.level=warn"]


def of_victoria_metrics(configuration, data, address):
    flags = [f"-promscrape.config={configuration}", f"-storageDataPath={data}"]
    return [VICTORIA_METRICS, *flags, f"-httpListenAddr={address}", "-loggerLevel=WARN"]


def expressions(settings, namespaces=()):
    return queries(settings, ttft_limits_s=[2.0], tpot_limits_s=[0.05], namespaces=namespaces)


class Asking:
    """Asks again and again, and keeps what was scraped."""

    def __init__(self, settings, pods=PODS):
        self.settings, self.scrapes = settings, FleetScrapes(settings)
        self.asked_s = time.time()
        self.prometheus = Prometheus(settings, limits=QueryLimits(request_s=5, all_s=20))
        self.scrapes.expect(frozenset(pods))

    def ask(self, sets=None):
        known = sets or [QuerySet(expressions=expressions(self.settings))]
        answers = self.prometheus.ask(known, self.scrapes)
        self.scrapes.add(answers.answered)
        self.asked_s = time.time()
        return answers

    def by_pod(self):
        return fleet_samples(self.scrapes, self.asked_s)

    def engines(self):
        return [each for one in self.by_pod().values() for each in one]

    def until(self, condition, *, timeout_s=30):
        """Ask again until a condition of the engines holds; return the answers it is true of."""
        end_s = time.monotonic() + timeout_s
        while True:
            found = self.ask()
            if condition(self.engines()):
                return found
            assert time.monotonic() < end_s, "it never came to be"
            time.sleep(0.2)


def rate_of(engine, scrapes=WINDOWS[0]):
    return engine.over(scrapes).completed_per_s


def is_complete(found):
    """Tell whether both engines have been answered of, by counters and gauges."""
    if not all(each.windows for each in found):
        return False
    figures = [(rate_of(each), each.running, each.waiting, each.kv_tokens) for each in found]
    return len(figures) == len(PODS) and None not in chain(*figures)


def is_of_now(found):
    """Tell whether they are complete, with a scrape of three seconds ago."""
    return is_complete(found) and all(each.is_fresh for each in found)


def test_every_query_is_understood_and_what_ends_is_missing_not_zero(tmp_path):
    page = {"text": PAGE, "waiting": "2"}

    def metrics(_):
        text = page["text"].format(waiting=page["waiting"], seconds=time.time())
        return Reply(body=text.encode(), headers={"Content-Type": "text/plain; version=0.0.4"})

    with (
        serving(metrics) as blue,
        serving(metrics) as green,
        prometheus_of(tmp_path, {PODS[0]: blue.url, PODS[1]: green.url}) as (url, group),
    ):
        settings = Settings(prometheus_url=url, scrape_interval_s=SCRAPE_S)

        asking = Asking(settings)

        whole = asking.until(is_complete)
        assert (whole.problems, whole.partial, whole.answered.num_dropped) == ({}, set(), 0)
        assert whole.queries == set(QUERIES)
        assert abs(whole.clock_skew_s) < 5
        for engine in asking.engines():
            assert 0 < rate_of(engine) < 2
            assert (engine.waiting, engine.running, engine.kv_tokens) == (2, 3, 100_000)
            assert 0 <= engine.age_s < 3 * SCRAPE_S

        alone = {namespace: 1.0 for namespace, _ in PODS}
        in_parts = asking.ask(parts_of(partial(expressions, settings), PODS, alone))
        assert in_parts.problems == {}
        assert len(asking.engines()) == len(PODS)

        page["waiting"] = "NaN"
        dropped = asking.until(lambda found: [each.waiting for each in found] == [None, None])
        assert dropped.problems == {}

        page["text"] = "no metrics {waiting} {seconds}"
        gone = asking.until(lambda found: not any(each.windows for each in found))
        assert gone.problems == {}

        group.stop("prometheus")
        assert {reason for reason, _ in asking.ask().problems.values()} == {"PrometheusUnreachable"}


def test_series_with_another_prefix_join_their_pods(tmp_path):
    def page(text):
        def metrics(_):
            body = text.format(waiting=2, seconds=time.time()).encode()
            return Reply(body=body, headers={"Content-Type": "text/plain; version=0.0.4"})

        return metrics

    with (
        serving(page(PAGE)) as blue,
        serving(page(PAGE.replace("vllm:", "kserve_vllm:"))) as green,
        prometheus_of(tmp_path, {PODS[0]: blue.url, PODS[1]: green.url}) as (url, _),
    ):
        others = {
            "prefixes": ["kserve_"],
            "labels": [{"namespace": "kubernetes_namespace", "pod": "kubernetes_pod_name"}],
        }
        settings = Settings(prometheus_url=url, scrape_interval_s=SCRAPE_S, other_series=others)
        asking = Asking(settings)

        whole = asking.until(is_complete)
        alone = {namespace: 1.0 for namespace, _ in PODS}
        in_parts = asking.ask(parts_of(partial(expressions, settings), PODS, alone))

        assert (whole.problems, in_parts.problems) == ({}, {})
        assert len(asking.engines()) == len(PODS)


HASHED = "$2b$12$hNf2lSsxfm0.i4a.1kVpSOVyBCfIB51VRjgBUyv6kdnyTlgWj81Ay"
"""Of the password "test", from Prometheus' own guide to basic authentication."""


def test_with_user_and_password_it_answers_both_clients_and_without_neither(tmp_path):
    web = tmp_path / "web.yaml"
    web.write_text(yaml.safe_dump({"basic_auth_users": {"admin": HASHED}}))
    for name in ("admin", "test"):
        (tmp_path / name).write_text(f"{name}\n")
    files = {"usernameFile": f"{tmp_path}/admin", "passwordFile": f"{tmp_path}/test"}

    def guarded(*asked):
        return [*of_prometheus(*asked), f"--web.config.file={web}"]

    with prometheus_of(tmp_path, {}, guarded, ready=is_guarded) as (url, _):
        known = Settings(prometheus_url=url, prometheus_auth={"basic": files})
        unknown = Settings(prometheus_url=url)

        assert Asking(known).ask().problems == {}
        assert {reason for reason, _ in Asking(unknown).ask().problems.values()} == {"QueryRefused"}
        now = Steps(from_s=time.time() - 60, step_s=15, number=4)
        assert ask_range(known, "vector(1)", now)[0][1] == dict.fromkeys(range(4), 1.0)
        with pytest.raises(PrometheusError, match=r"answered 401: .*prometheusAuth"):
            ask_range(unknown, "vector(1)", now)


@pytest.mark.skipif(VICTORIA_METRICS is None, reason="needs Debian's victoria-metrics")
def test_victoria_metrics_answers_of_now_and_not_of_its_latency_offset(tmp_path):
    """It answers of 30 s ago where nobody asks for more: ten times what is fresh here."""

    def metrics(_):
        text = PAGE.format(waiting="2", seconds=time.time())
        return Reply(body=text.encode(), headers={"Content-Type": "text/plain; version=0.0.4"})

    with (
        serving(metrics) as blue,
        serving(metrics) as green,
        prometheus_of(tmp_path, {PODS[0]: blue.url, PODS[1]: green.url}, of_victoria_metrics) as (
            url,
            _,
        ),
    ):
        settings = Settings(prometheus_url=url, scrape_interval_s=SCRAPE_S)

        asking = Asking(settings)
        found = asking.until(is_of_now, timeout_s=25)  # before which an offset answers nothing

    assert (found.problems, found.partial, found.answered.num_dropped) == ({}, set(), 0)
    assert abs(found.clock_skew_s) < 5
    for engine in asking.engines():
        assert 0 < rate_of(engine) < 2
        assert (engine.waiting, engine.running, engine.kv_tokens) == (2, 3, 100_000)


def page(*lines):
    """Serve these lines; each may be a function of the time since the first answer."""
    began_s = time.time()

    def metrics(_):
        passed_s = time.time() - began_s
        text = "\n".join(line(passed_s) if callable(line) else line for line in lines) + "\n"
        return Reply(body=text.encode(), headers={"Content-Type": "text/plain; version=0.0.4"})

    return metrics


RUNNING = 'vllm:num_requests_running{engine="0"} 3'
WAITING = 'vllm:num_requests_waiting{engine="0"} 0'
COMPLETED = 'vllm:request_success_total{engine="0",finished_reason="stop"}'
RATE = 10.0
RESTART_S = 7.0
FROZEN_S = 6.0


def completed(passed_s):
    return f"{COMPLETED} {100 + RATE * passed_s}"


def completed_since_a_restart(passed_s):
    began = passed_s - RESTART_S if passed_s > RESTART_S else 100 + passed_s
    return f"{COMPLETED} {RATE * began}"


def frozen(line, began_s):
    """The samples of an exporter that says when they are of, and stops after some seconds."""

    def at(passed_s):
        shown_s = min(passed_s, FROZEN_S)
        text = line(shown_s) if callable(line) else line
        return f"{text} {int((began_s + shown_s) * 1000)}"

    return at


def dcgm(pod):
    """What NVIDIA's exporter says of a GPU, beside its own pod's labels."""
    labels = f'UUID="GPU-1",exported_namespace="blue",exported_pod="{pod}"'
    return f"DCGM_FI_PROF_DRAM_ACTIVE{{{labels}}} 0.5"


CASES = {
    ("blue", "steady", ("replica", "a")): (RUNNING, WAITING, completed),
    ("blue", "steady", ("replica", "b")): (RUNNING, WAITING, completed),
    ("blue", "restarts"): (RUNNING, WAITING, completed_since_a_restart),
    ("blue", "renamed"): (
        RUNNING,
        WAITING,
        completed,
        'vllm:gpu_cache_usage_perc{engine="0"} 0.25',
        lambda s: f'vllm:time_per_output_token_seconds_sum{{engine="0"}} {s}',
        lambda s: f'vllm:time_per_output_token_seconds_count{{engine="0"}} {50 * s}',
    ),
    ("blue", "new-names"): (
        RUNNING,
        'vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 7',
        'vllm:num_requests_waiting_by_reason{engine="0",reason="deferred"} 9',
        'vllm:num_requests_waiting{engine="0"} 16',
        completed,
        'vllm:kv_cache_usage_perc{engine="0"} 0.25',
        lambda s: f'vllm:inter_token_latency_seconds_sum{{engine="0"}} {s}',
        lambda s: f'vllm:inter_token_latency_seconds_count{{engine="0"}} {50 * s}',
    ),
    ("gpu-operator", "dcgm-exporter-1"): (dcgm("steady"), dcgm("no-engine")),
    ("green", "no-exporter"): (dcgm("restarts"),),
}
OURS = frozenset({("blue", name) for name in ("steady", "restarts", "renamed", "new-names", "old")})


def test_frozen_restarted_doubled_and_renamed_series_are_told_apart(tmp_path):
    began_s = time.time()
    old = tuple(frozen(line, began_s) for line in (RUNNING, WAITING, completed))
    with ExitStack() as stack:
        urls = {
            key: stack.enter_context(serving(page(*lines))).url
            for key, lines in (CASES | {("blue", "old"): old}).items()
        }
        url, _ = stack.enter_context(prometheus_of(tmp_path, urls))
        settings = Settings(prometheus_url=url, scrape_interval_s=SCRAPE_S)
        seen, asking = [], Asking(settings, OURS)
        while time.time() < began_s + 13.5:
            asked_s = time.time() - began_s
            asking.ask()
            found = asking.by_pod()
            seen.append((asked_s, {pod: engines[0] for (_, pod), engines in found.items()}))
            time.sleep(0.25)

    _, last = seen[-1]
    assert rate_of(last["steady"]) == pytest.approx(RATE, rel=0.15), "not twice as much"
    assert (last["steady"].running, last["steady"].waiting) == (3, 0)
    assert last["steady"].dram_active_fraction == 0.5
    assert last["restarts"].dram_active_fraction is None, "a tenant's page says so"

    rates = [
        rate_of(each["restarts"])
        for _, each in seen
        if "restarts" in each and each["restarts"].windows
    ]
    assert max(rate for rate in rates if rate is not None) < 1.3 * RATE
    assert min(rate for rate in rates if rate is not None) >= 0
    assert rate_of(last["restarts"]) == pytest.approx(RATE, rel=0.15)

    for name, waiting in (("renamed", 0), ("new-names", 7)):
        assert last[name].waiting == waiting
        assert last[name].kv_usage_fraction == 0.25
        gap_s = last[name].busy.token_gap_s_per_s / last[name].busy.token_gaps_per_s
        assert gap_s == pytest.approx(0.02, rel=0.01)

    was_fresh = [
        each["old"].is_fresh
        for at_s, each in seen
        if "old" in each and each["old"].age_s is not None
    ]
    assert was_fresh[0]
    assert not was_fresh[-1]
    assert last["old"].age_s > 3 * SCRAPE_S
