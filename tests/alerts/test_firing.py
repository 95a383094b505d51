"""Every alert of the chart fires in a real Prometheus for its fault, and no other does.

    pytest -m alerts tests/alerts

The page that is scraped is the operator's own, filled by ticks that see a healthy object, then the
fault, then a healthy object again. Alerts need hold for a second instead of minutes.
"""

import time
from dataclasses import dataclass, field

import pytest
import requests
from prometheus_client import generate_latest

from alerting import PROGRAM, alerting, rules_of_chart
from http_double import Reply, serving
from own_metrics import ALONGSIDE, DOWN, FAULTS, HEALTHY, told
from tonnage.fleet.heartbeat import Heartbeat
from tonnage.fleet.settings_file import SettingsFile

pytestmark = [
    pytest.mark.alerts,
    pytest.mark.lab,
    pytest.mark.skipif(PROGRAM is None, reason="needs prometheus: python -m tonnage_lab builds it"),
]
NAMES = (
    "sloMissed", "errorBudgetBurnt", "metricsMissing", "noCapacity", "conflict", "rolloutStuck",
    "stalled", "calibrationOutOfRange", "operatorBlind", "settingsRefused",
)  # fmt: skip
TICK_AGE_S = 180
TIMEOUT_S = 30
SEEN = 5
"""Scrapes."""
SETTINGS = "prometheusUrl: http://prometheus.monitoring:9090\n"


@dataclass(kw_only=True)
class Operator:
    """The page of an operator, and the clock by which its ticks are old."""

    now_s: float = 0.0
    is_down: bool = False
    heartbeat: Heartbeat = field(init=False)

    def __post_init__(self):
        self.heartbeat = Heartbeat(lambda: self.now_s)
        self.heartbeat.settings_valid.set(1)

    def page(self, _):
        if self.is_down:
            return Reply(status=503)
        headers = {"Content-Type": "text/plain; version=0.0.4"}
        return Reply(body=generate_latest(self.heartbeat.registry), headers=headers)

    def tick(self, changes=HEALTHY, **fleet):
        self.heartbeat.exporter.note(told(changes, **fleet))


@dataclass(frozen=True, kw_only=True)
class Watched:
    """An operator and the Prometheus that scrapes it."""

    operator: Operator
    url: str

    def alerts(self):
        """{alert: state} now: pending or firing."""
        found = requests.get(f"{self.url}/api/v1/alerts", timeout=5).json()["data"]["alerts"]
        return {each["labels"]["alertname"]: each for each in found}

    def firing(self):
        return {name for name, each in self.alerts().items() if each["state"] == "firing"}

    def until_firing(self, names):
        """Wait until these fire and no other; return them."""
        end_s = time.monotonic() + TIMEOUT_S
        while (found := self.firing()) != names:
            assert time.monotonic() < end_s, f"{found} fire, not {names}"
            time.sleep(0.2)
        return self.alerts()

    def scrapes(self):
        query = {"query": "count_over_time(tonnage_tick_age_seconds[1h])"}
        found = requests.get(f"{self.url}/api/v1/query", params=query, timeout=5).json()
        return sum(float(each["value"][1]) for each in found["data"]["result"])


@pytest.fixture(scope="module")
def rules(tmp_path_factory):
    """The rules as the chart renders them, with short times."""
    short = {name: {"for": "1s"} for name in NAMES}
    return rules_of_chart(tmp_path_factory.mktemp("helm"), alerts=short, tickAgeS=TICK_AGE_S)


@pytest.fixture(scope="module")
def watched(rules, tmp_path_factory):
    operator = Operator()
    operator.tick()
    folder = tmp_path_factory.mktemp("prometheus")
    with serving(operator.page) as server, alerting(folder, server.url, rules) as url:
        yield Watched(operator=operator, url=url)


def test_nothing_fires_for_a_healthy_object(watched):
    end_s = time.monotonic() + TIMEOUT_S
    while watched.scrapes() < SEEN or watched.alerts():  # it is blind until the first scrape
        assert time.monotonic() < end_s, "nothing is scraped"
        time.sleep(0.2)
    while watched.scrapes() < 2 * SEEN:
        assert watched.alerts() == {}
        assert time.monotonic() < end_s, "nothing is scraped"
        time.sleep(0.2)


@pytest.mark.parametrize("alert", FAULTS)
def test_a_fault_fires_its_alert_which_ends_with_it(watched, alert):
    watched.operator.tick(FAULTS[alert])
    fired = watched.until_firing({alert} | ALONGSIDE.get(alert, set()))[alert]

    assert (fired["labels"]["namespace"], fired["labels"]["name"]) == ("serving", "llama")
    assert "serving/llama" in fired["annotations"]["summary"]

    watched.operator.tick()
    watched.until_firing(set())


def test_an_operator_without_answers_is_blind(watched):
    watched.operator.tick({"engines": ()}, metrics_problem=DOWN)
    watched.until_firing({"TonnageOperatorBlind", "TonnageMetricsMissing"})

    watched.operator.tick()
    watched.until_firing(set())


def test_an_operator_that_completes_no_tick_is_blind(watched):
    watched.operator.now_s += TICK_AGE_S
    watched.until_firing({"TonnageOperatorBlind"})

    watched.operator.tick()
    watched.until_firing(set())


def test_an_operator_that_does_not_answer_is_blind(watched):
    watched.operator.is_down = True
    watched.until_firing({"TonnageOperatorBlind"})

    watched.operator.is_down = False
    watched.until_firing(set())


def test_settings_that_the_next_process_refuses_are_told(watched, tmp_path):
    settings = tmp_path / "settings.yaml"
    settings.write_text(SETTINGS)
    edited = SettingsFile(str(settings), watched.operator.heartbeat.settings_valid)
    settings.write_text(f"{SETTINGS}tickS: never\n")
    edited.look()
    watched.until_firing({"TonnageSettingsRefused"})

    settings.write_text(f"{SETTINGS}tickS: 20\n")
    edited.look()
    watched.until_firing(set())
