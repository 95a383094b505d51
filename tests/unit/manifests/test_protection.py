"""PodDisruptionBudget and NetworkPolicy of the engines, as real YAML and as rules that hold."""

from dataclasses import replace

import kubernetes_validate
import pytest

from fleet_builders import SITE, a_model
from tonnage.api.pods import DisruptionBudget
from tonnage.manifests.children import pod_monitor, site_of
from tonnage.manifests.names import labels, selector
from tonnage.manifests.protection import evictable_from, protections
from tonnage.settings import Settings

KUBERNETES = "1.33"
SCRAPED = replace(SITE, scraper_namespaces=("monitoring", "observability"))
FROM_SCRAPERS = {
    "namespaceSelector": {
        "matchExpressions": [
            {
                "key": "kubernetes.io/metadata.name",
                "operator": "In",
                "values": ["monitoring", "observability"],
            }
        ]
    }
}
GATEWAY = {"namespaceSelector": {"team": "edge"}, "podSelector": {"app": "gateway"}}
BATCH = {"podSelector": {"app": "batch"}}


def policy(site=SITE, **asked):
    return protections(a_model(pods={"networkPolicy": asked}), site)["NetworkPolicy"]


def budget(**asked):
    return protections(a_model(pods={"disruptionBudget": asked}), SITE)["PodDisruptionBudget"]


def test_everything_as_yaml(golden):
    model = a_model(
        pods={
            "disruptionBudget": {"maxUnavailable": "25%"},
            "networkPolicy": {"clients": [GATEWAY, BATCH], "egressPorts": [443]},
        }
    )

    golden("vllm-llama-protection", *protections(model, SCRAPED).values())


@pytest.mark.parametrize(
    "made",
    [
        budget(minAvailable=2),
        budget(maxUnavailable="50%"),
        policy(),
        policy(SCRAPED),
        policy(clients=[GATEWAY, BATCH], egressPorts=[443]),
        policy(egressPorts=[]),
    ],
    ids=str,
)
def test_each_is_valid_to_the_letter_ours_and_about_our_pods(made):
    kubernetes_validate.validate(made, KUBERNETES, strict=True)

    found = made["spec"].get("selector") or made["spec"]["podSelector"]
    assert found == {"matchLabels": selector("llama")}
    assert made["metadata"]["labels"] == labels("llama")
    [owner] = made["metadata"]["ownerReferences"]
    assert (owner["uid"], owner["controller"]) == ("uid-of-llama", True)


def test_nothing_is_made_that_is_not_asked_for():
    assert set(protections(a_model(), SITE).values()) == {None}
    assert set(protections(a_model(pods={"cpu": "8"}), SITE).values()) == {None}


def test_no_engine_starts_before_its_policy():
    assert list(protections(a_model(), SITE)) == ["NetworkPolicy", "PodDisruptionBudget"]


class TestBudget:
    @pytest.mark.parametrize(
        "asked", [{"minAvailable": 2}, {"maxUnavailable": 1}, {"maxUnavailable": "25%"}]
    )
    def test_holds_what_is_asked_for(self, asked):
        assert asked.items() <= budget(**asked)["spec"].items()

    def test_lets_go_of_engines_that_answer_nobody(self):
        assert budget(minAvailable=1)["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


class TestPolicy:
    def test_lets_in_clients_and_scrapers_on_the_port_of_requests_and_metrics(self):
        [rule] = policy(SCRAPED, clients=[GATEWAY, BATCH])["spec"]["ingress"]

        assert rule == {
            "from": [
                FROM_SCRAPERS,
                {
                    "namespaceSelector": {"matchLabels": {"team": "edge"}},
                    "podSelector": {"matchLabels": {"app": "gateway"}},
                },
                {"podSelector": {"matchLabels": {"app": "batch"}}},
            ],
            "ports": [{"port": 8000, "protocol": "TCP"}],
        }

    def test_without_peers_lets_in_nobody(self):
        # A rule whose list of peers is empty would let everybody in.
        spec = policy()["spec"]

        assert spec["policyTypes"] == ["Ingress"]
        assert "ingress" not in spec

    def test_bounds_what_goes_out_only_where_ports_are_given(self):
        assert "egress" not in policy(clients=[BATCH])["spec"]
        assert policy(egressPorts=[])["spec"]["policyTypes"] == ["Ingress", "Egress"]

    def test_always_lets_names_be_looked_up(self):
        dns = [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]

        assert policy(egressPorts=[])["spec"]["egress"] == [{"ports": dns}]
        assert policy(egressPorts=[443])["spec"]["egress"] == [
            {"ports": [*dns, {"port": 443, "protocol": "TCP"}]}
        ]


class TestSite:
    SETTINGS = Settings(
        prometheus_url="http://prometheus.test",
        scrape_interval_s=30,
        pod_monitor_labels={"release": "kube-prometheus-stack"},
        scraper_namespaces=("monitoring",),
    )

    def test_is_what_an_administrator_says(self):
        site = site_of(self.SETTINGS, has_pod_monitors=True)

        made = pod_monitor(a_model(), site)
        assert made["metadata"]["labels"] == labels("llama") | {"release": "kube-prometheus-stack"}
        assert made["spec"]["podMetricsEndpoints"][0]["interval"] == "30s"
        assert policy(site)["spec"]["ingress"][0]["from"][0]["namespaceSelector"][
            "matchExpressions"
        ][0]["values"] == ["monitoring"]

    def test_is_a_value_like_the_settings(self):
        same, other = self.SETTINGS.model_copy(), Settings(prometheus_url="http://prometheus.test")

        assert {self.SETTINGS: "found"}[same] == "found"
        assert other not in {self.SETTINGS: "found"}

    @pytest.mark.parametrize("name", labels("llama"))
    def test_takes_no_label_of_ours(self, name):
        with pytest.raises(ValueError, match=f"label {name} is Tonnage's own"):
            Settings(prometheus_url="http://prometheus.test", pod_monitor_labels={name: "x"})

    @pytest.mark.parametrize("labels", [{"a b": "x"}, {"a": "x y"}, {"a\n": "x"}, {"": "x"}])
    def test_takes_no_label_that_is_none(self, labels):
        with pytest.raises(ValueError, match="pod"):
            Settings(prometheus_url="http://prometheus.test", pod_monitor_labels=labels)

    @pytest.mark.parametrize("field", ["namespaces", "scraper_namespaces"])
    def test_takes_no_namespace_twice(self, field):
        with pytest.raises(ValueError, match="a must not be repeated"):
            Settings(prometheus_url="http://prometheus.test", **{field: ("a", "b", "a")})


@pytest.mark.parametrize(
    ("asked", "least"),
    [
        ({"minAvailable": 1}, 2),
        ({"minAvailable": 2}, 3),
        ({"minAvailable": "1%"}, 2),  # a share of one pod is one pod
        ({"minAvailable": "50%"}, 2),
        ({"minAvailable": "51%"}, 3),  # of 2 both, of 3 two
        ({"minAvailable": "90%"}, 10),
        ({"minAvailable": "99%"}, 100),
        ({"maxUnavailable": 1}, 1),
        ({"maxUnavailable": "1%"}, 1),
    ],
    ids=str,
)
def test_a_budget_lets_a_pod_go_from_so_many_on(asked, least):
    assert evictable_from(DisruptionBudget.model_validate(asked)) == least
