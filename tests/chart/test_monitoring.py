"""Alerts and the dashboard of the chart: they ask for what is really there."""

import json
import re
import subprocess

import pytest
import yaml

import debian_programs
from helm import CHART
from own_metrics import (
    FAULTS,
    LABEL,
    NAME,
    OF_GPUS,
    OF_THE_OPERATOR,
    SELECTOR,
    exposed,
    of_vllm,
    told,
)
from tonnage.control.series import FAMILIES
from tonnage.fleet.heartbeat import OBJECT_LABELS

VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
DASHBOARD = json.loads((CHART / "files/dashboard.json").read_text())
PLACEHOLDERS = {"$__rate_interval": "5m", "$namespace": ".*", "$name": ".*"}
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
QUERIES = [
    *(target["expr"] for panel in PANELS for target in panel["targets"]),
    *(each["expr"] for each in DASHBOARD["annotations"]["list"]),
    *(each["query"]["query"] for each in DASHBOARD["templating"]["list"] if "definition" in each),
]
ON = {"prometheusRule": {"create": True}, "dashboard": {"create": True}}


def rule(manifests):
    [only] = [each for each in manifests if each["kind"] == "PrometheusRule"]
    return only


def alerts(manifests):
    [group] = rule(manifests)["spec"]["groups"]
    return {each["alert"]: each for each in group["rules"]}


def labels_of(name, page):
    """Return the labels that a metric of the operator has, `le` of histograms apart."""
    family = FAMILIES.get(name.removesuffix("_total"))
    own = {*OBJECT_LABELS, *family.labels} if family else page[name]
    return own | {"job", "instance", "namespace", "pod"}


def check_known(expression):
    """Assert that every metric and label in it is one of the operator, vLLM or DCGM."""
    page = exposed()
    names = set(NAME.findall(expression))
    assert names
    assert names <= {*page, *of_vllm(), *OF_GPUS}
    for name, matchers in SELECTOR.findall(expression):
        assert set(LABEL.findall(matchers)) <= labels_of(name, page), name


def parsed(expression):
    promql = pytest.importorskip("promql_parser", reason="promql-parser is not installed")
    for name, value in PLACEHOLDERS.items():
        expression = expression.replace(name, value)
    return promql.parse(expression)


@pytest.mark.parametrize("query", QUERIES)
def test_the_dashboard_asks_for_metrics_and_labels_that_are_there(query: str):
    check_known(query)


@pytest.mark.parametrize("query", [each for each in QUERIES if "label_values" not in each])
def test_prometheus_understands_the_queries_of_the_dashboard(query: str):
    assert parsed(query)


OF_NO_OBJECT = re.compile(
    "tonnage_(tick|failed|objects_without|conflicts|status_failures)|label_values"
)
"""Queries about the operator, or of the names themselves."""


@pytest.mark.parametrize("query", QUERIES)
def test_the_dashboard_asks_of_the_objects_that_are_chosen(query: str):
    if not OF_NO_OBJECT.search(query):
        assert "$namespace" in query
        assert "$name" in query.replace("$namespace", "")


@pytest.mark.parametrize(
    "metric",
    [
        "vllm:request_time_per_output_token_seconds_bucket",
        "vllm:kv_cache_usage_perc",
        "vllm:num_preemptions_total",
    ],
)
def test_the_dashboard_shows_what_tells_a_full_engine(metric: str):
    assert [query for query in QUERIES if metric in query]


def pod_name(name: str, template_hash: str = "5d8f9c7b6d", random: str = "x7k2p") -> str:
    """Return a pod's name as the API server generates it: cut so that 5 characters follow.

    Sources:
        kubernetes: staging/src/k8s.io/apiserver/pkg/storage/names/generate.go, of at most 63.
    """
    return f"{name}-{template_hash}-"[:58] + random


LONGEST = "llama-3-3-70b-instruct-for-the-chat-of-customers-nrw"


@pytest.mark.parametrize("name", ["llama", *(LONGEST[:length] for length in (46, 47, 50, 52))])
def test_a_pod_is_counted_for_its_own_object_only(name: str):
    queries = [query for query in QUERIES if "pod=~" in query]
    pattern = {found for query in queries for found in re.findall(r'pod=~"([^"]+)"', query)}
    [of_pods] = {each.replace("$name", name) for each in pattern}
    before = name.rpartition("-")[0] or "lla"
    [of_others] = {each.replace("$name", before) for each in pattern}
    named = {found for query in queries for found in re.findall(r'"pod", "([^"]+)"', query)}
    [label] = named

    for template_hash in ("5d8f9c7b6d", "9c7b6d"):
        pod = pod_name(name, template_hash)
        assert re.fullmatch(of_pods, pod)
        assert re.fullmatch(label, pod)[1] == name
        assert not re.fullmatch(of_others, pod)
    assert not re.fullmatch(of_pods, pod_name(f"{name}-70b"))


def test_a_miss_of_one_percent_shows_beside_one_of_half():
    [panel] = [each for each in PANELS if "tonnage_slo_attainment" in each["targets"][0]["expr"]]
    defaults = panel["fieldConfig"]["defaults"]

    assert panel["targets"][0]["expr"].startswith("1 - ")
    assert "max" not in defaults or defaults["max"] is None
    assert defaults["custom"]["scaleDistribution"] == {
        "type": "symlog", "log": 10, "linearThreshold": 0.001,
    }  # fmt: skip


def test_every_family_of_an_object_is_on_the_dashboard_but_these():
    shown = {name.removesuffix("_total") for query in QUERIES for name in NAME.findall(query)}

    assert set(FAMILIES) - shown == {
        "tonnage_calibration_doubt", "tonnage_max_num_batched_tokens",
        "tonnage_max_num_seqs", "tonnage_model_flops_utilization",
        "tonnage_replicas_current",
    }  # fmt: skip


def test_panels_have_a_text_a_unit_and_a_place_of_their_own():
    places = set()
    for panel in PANELS:
        place = panel["gridPos"]
        cells = {(place["x"] + dx, place["y"]) for dx in range(place["w"])}
        assert not cells & places, panel["title"]
        assert place["x"] + place["w"] <= 24
        places |= cells
        assert panel["description"].endswith(".")
        assert panel["type"] == "table" or panel["fieldConfig"]["defaults"]["unit"]
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)


def test_the_data_source_is_the_one_that_is_chosen_everywhere():
    found = {json.dumps(each) for each in sources(DASHBOARD)}

    assert found == {json.dumps({"type": "prometheus", "uid": "${datasource}"})}


def sources(node):
    if isinstance(node, dict):
        if isinstance(node.get("datasource"), dict):
            yield node["datasource"]
        for each in node.values():
            yield from sources(each)
    elif isinstance(node, list):
        for each in node:
            yield from sources(each)


@pytest.mark.parametrize("alert", FAULTS)
def test_a_fault_is_a_condition_that_its_alert_selects_and_a_healthy_object_has_none(alert):
    text = (CHART / "templates/prometheusrule.yaml").read_text()
    [expression] = re.findall(rf"alert: {alert}\n\s+expr: >-\n\s+(.+)", text)
    [(_, matchers)] = SELECTOR.findall(expression)

    def selected(changes):
        [series] = told(changes).objects
        found = (each.labels for each in series.gauges if each.family == "tonnage_condition")
        return [labels for labels in found if matches(matchers, labels)]

    assert len(selected(FAULTS[alert])) == 1
    assert selected({}) == []


def matches(matchers, labels):
    """Tell whether a condition has the labels that a selector asks for."""
    named = dict(zip(("type", "status", "reason"), labels, strict=True))
    asked = re.findall(r'(\w+)(=~|!=|=)"([^"]*)"', matchers)
    return all(
        (re.fullmatch(value, named[name]) is not None) == (operator != "!=")
        for name, operator, value in asked
    )


class TestRendered:
    pytestmark = pytest.mark.lab

    def test_neither_is_there_unless_it_is_asked_for(self, helm):
        manifests = helm.template()

        assert [each for each in manifests if each["kind"] == "PrometheusRule"] == []
        assert [each for each in manifests if "dashboard" in each["metadata"]["name"]] == []

    def test_the_dashboard_is_rendered_as_it_is_with_the_label_of_the_sidecar(self, helm):
        found = helm.template(dashboard={"create": True, "annotations": {"grafana_folder": "LLM"}})
        [only] = [each for each in found if each["metadata"]["name"].endswith("-dashboard")]

        assert only["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert only["metadata"]["annotations"] == {"grafana_folder": "LLM"}
        assert json.loads(only["data"]["tonnage.json"]) == DASHBOARD

    def test_there_is_an_alert_for_each_fault(self, helm):
        assert set(alerts(helm.template(**ON))) == {*FAULTS, *OF_THE_OPERATOR}

    def test_alerts_ask_for_metrics_and_labels_that_are_there(self, helm):
        for alert in alerts(helm.template(**ON)).values():
            check_known(alert["expr"])
            assert parsed(alert["expr"])

    def test_times_severities_and_labels_are_values(self, helm):
        changed = {
            "create": True,
            "labels": {"release": "prometheus"},
            "tickAgeS": 42,
            "alerts": {"sloMissed": {"for": "1h", "severity": "page"}},
        }

        manifests = helm.template(prometheusRule=changed)

        found = alerts(manifests)
        assert rule(manifests)["metadata"]["labels"]["release"] == "prometheus"
        assert found["TonnageSLOMissed"]["for"] == "1h"
        assert found["TonnageSLOMissed"]["labels"] == {"severity": "page"}
        assert (
            found["TonnageConflict"]["for"] == VALUES["prometheusRule"]["alerts"]["conflict"]["for"]
        )
        assert "< 42" in found["TonnageOperatorBlind"]["expr"]

    def test_the_labels_of_objects_stand_above_those_of_the_operators_pod(self, helm):
        manifests = helm.template(podMonitor={"create": True}, serviceMonitor={"create": True})
        ends = [
            end
            for each in manifests
            for end in each.get("spec", {}).get("podMetricsEndpoints", ())
            or (each.get("spec", {}).get("endpoints", ()))
        ]

        assert [end["honorLabels"] for end in ends] == [True, True]

    def test_promtool_takes_the_rules(self, helm, tmp_path):
        program = debian_programs.find("promtool")
        if program is None:
            pytest.skip("promtool is neither on the PATH nor to be had from Debian")
        rules = tmp_path / "rules.yaml"
        rules.write_text(yaml.safe_dump(rule(helm.template(**ON))["spec"]))

        done = subprocess.run(  # noqa: S603
            [program, "check", "rules", "--lint-fatal", rules],
            capture_output=True, text=True, check=False,
        )  # fmt: skip

        assert (done.returncode, done.stderr) == (0, "")
        assert f"{len(FAULTS) + len(OF_THE_OPERATOR)} rules found" in done.stdout
