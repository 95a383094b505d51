"""No alert fires over an hour of the demo's load, with the times that the chart gives them.

    pytest -m alerts tests/alerts

The operator's own ticks run in the replay's model of a cluster; what its conditions were at each of
them is given to promtool, which evaluates the rules as Prometheus would.
"""

import itertools
import subprocess

import pytest
import yaml

import debian_programs
from alerting import rules_of_chart
from fleet_builders import example
from helm import NAMESPACE
from rival_builders import piecewise
from tonnage.replay.cluster import ReplayedModel, StartupTime
from tonnage.replay.ground_truth import GroundTruth
from tonnage.replay.simulation import Operator, Simulation
from tonnage.replay.traffic import TrafficSource, traffic
from tonnage.settings import Settings
from tonnage.sizing.expected import expected_workload
from tonnage.units import HOUR_S

PROGRAM = debian_programs.find("promtool")
pytestmark = [
    pytest.mark.alerts,
    pytest.mark.lab,
    pytest.mark.skipif(PROGRAM is None, reason="promtool is neither here nor to be had"),
]
SETTINGS = Settings(prometheus_url="http://prometheus.test:9090")
TICK_S = round(SETTINGS.tick_s)
LOAD = piecewise([(0, 3.0), (700, 9.0), (2200, 1.5)])
"""As expected, three times as much, then half: the demo's phases, stretched over an hour."""
SLOWER = GroundTruth(bandwidth_factor=0.72)
"""The engines of the demo: a bandwidth efficiency of 0.60 where the prior says 0.83."""
START = StartupTime(mean_s=120.0, jitter=0.2)


class Watching(Operator):
    """The operator, and the conditions of its object after each tick."""

    def __init__(self):
        super().__init__(SETTINGS)
        self.said = []

    def act(self, record, prometheus, at_s):
        super().act(record, prometheus, at_s)
        [known] = self.memory.objects.values()
        conditions = known.reported.conditions.values()
        self.said.append({(each.type, each.status, each.reason) for each in conditions})


@pytest.fixture(scope="module")
def conditions():
    """The conditions at each tick of an hour."""
    model, operator = example("demo"), Watching()
    source = TrafficSource(rate=LOAD, shapes=((0.0, expected_workload(model.spec)),))
    served = ReplayedModel(
        model=model,
        traffic=traffic(source, duration_s=HOUR_S, context_tokens=8192),
        truth=SLOWER,
        start=START,
    )
    Simulation(served, settings=SETTINGS, controller=operator).run(HOUR_S)
    return operator.said


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the rules as the chart renders them."""
    path = tmp_path_factory.mktemp("rules")
    (path / "rules.yaml").write_text(yaml.safe_dump(rules_of_chart(path)))
    return path


def series_of(said):
    """Return the input of promtool: a series for each condition, stale while it does not hold."""
    labels = 'namespace="serving",name="llama"'
    for kind, status, reason in sorted(set().union(*said)):
        held = [(kind, status, reason) in each for each in said]
        values = " ".join("1" if holds else "stale" for holds in held)
        own = f'type="{kind}",status="{status}",reason="{reason}"'
        yield {"series": f"tonnage_condition{{{labels},{own}}}", "values": values}
    for name, value in (("tonnage_tick_age_seconds", 5), ("tonnage_blind", 0)):
        values = f"{value}x{len(said)}"
        yield {"series": f'{name}{{namespace="{NAMESPACE}"}}', "values": values}


def checked(folder, said, expected):
    """Run promtool: these alerts fire at these times, and no other ever does."""
    rules = yaml.safe_load((folder / "rules.yaml").read_text())["groups"][0]["rules"]
    tests = [
        {
            "eval_time": f"{at_s}s",
            "alertname": rule["alert"],
            "exp_alerts": expected(rule, at_s),
        }
        for rule in rules
        for at_s in range(0, TICK_S * len(said), 4 * TICK_S)
    ]
    given = {
        "interval": f"{TICK_S}s",
        "input_series": list(series_of(said)),
        "alert_rule_test": tests,
    }
    whole = {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": f"{TICK_S}s",
        "tests": [given],
    }
    (folder / "tests.yaml").write_text(yaml.safe_dump(whole))
    return subprocess.run(  # noqa: S603
        [PROGRAM, "test", "rules", "tests.yaml"],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_the_hour_has_something_that_alerts_could_take_for_a_fault(conditions):
    assert len(conditions) >= HOUR_S / TICK_S
    seen = set().union(*conditions)
    assert ("SLOMet", "False") in {(kind, status) for kind, status, _ in seen}
    assert ("Ready", "False", "WaitingForReplicas") in seen
    assert conditions[-1] >= {
        ("SLOMet", "True", "TargetsMet"),
        ("MetricsAvailable", "True", "Scraped"),
    }


def test_no_alert_fires_over_an_hour_of_the_demos_load(conditions, folder):
    done = checked(folder, conditions, lambda rule, at_s: [])

    assert done.returncode == 0, done.stdout + done.stderr


def test_the_same_hour_with_a_missed_slo_does_fire_whatever_the_cause(conditions, folder):
    causes = itertools.cycle(("Queued", "SlowSteps", "TargetMissed"))
    worse = [
        {each for each in said if each[0] != "SLOMet"} | {("SLOMet", "False", next(causes))}
        for said in conditions
    ]

    done = checked(folder, worse, lambda rule, at_s: [])

    assert done.returncode == 1
    assert "TonnageSLOMissed" in done.stdout + done.stderr
    assert "TonnageNoCapacity" not in done.stdout + done.stderr
