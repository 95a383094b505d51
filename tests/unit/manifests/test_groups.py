"""Replicas over several nodes: what LeaderWorkerSet gets, by the version of vLLM."""

from dataclasses import replace

import pytest
import yaml

from fleet_builders import R1, SITE, a_model, a_model_over_nodes, a_sizing
from tonnage.manifests.changes import FieldOwners, list_differences, template_changes
from tonnage.manifests.children import NotServableError, deployment, pod_monitor, service
from tonnage.manifests.names import (
    GROUPS,
    INDEX_LABEL,
    TOPOLOGY_ANNOTATION,
    num_nodes_in,
    template_in,
)
from tonnage.manifests.protection import protections
from tonnage.sizing.split import Parallelism

DRAIN_S = 240
"""Whatever the longest answer takes by today's constants."""
OVER_NODES = Parallelism(tensor=8, pipeline=2)
RANKS = {"gpu": "H100", "gpusPerReplica": 16, "nodeLink": "400Gb/s"}


def sized(model, split=OVER_NODES):
    """The arithmetic's answer, with one batch size and split whatever its constants are today."""
    sizing = a_sizing(model)
    return replace(sizing, flags=replace(sizing.flags, max_num_seqs=48, parallelism=split))


def made(model=None, *, split=OVER_NODES, site=SITE):
    model = model or a_model_over_nodes()
    return deployment(model, sized(model, split), site, drain_s=DRAIN_S)


def container(role, manifest=None):
    template = template_in(manifest or made())[f"{role}Template"]
    [only] = template["spec"]["containers"]
    return only


def value(flag, args):
    return args[args.index(flag) + 1]


def test_deepseek_r1_over_two_nodes_of_eight_h100(golden):
    model = a_model_over_nodes()

    golden("vllm-deepseek-r1-groups", made(model), service(model, 2), pod_monitor(model, SITE, 2))


def test_deepseek_r1_as_data_parallel_ranks_on_two_nodes(golden):
    model = a_model_over_nodes(hardware=RANKS)

    golden("vllm-deepseek-r1-ranks", made(model, split=Parallelism(data=16)))


class TestArguments:
    @pytest.mark.parametrize("role", ["leader", "worker"])
    def test_of_data_parallel_ranks_leave_their_nodes_to_the_engine(self, role):
        manifest = made(a_model_over_nodes(hardware=RANKS), split=Parallelism(data=16))
        args = container(role, manifest)["args"]

        assert value("--data-parallel-size", args) == "16"
        assert value("--nnodes", args) == "2"
        assert "--enable-expert-parallel" in args
        assert [each for each in args if each.startswith("--data-p")] == ["--data-parallel-size"]
        assert container(role, manifest)["resources"]["limits"]["nvidia.com/gpu"] == "8"

    def test_join_the_nodes_without_ray(self):
        for role, rank in (("leader", "0"), ("worker", "$(LWS_WORKER_INDEX)")):
            args = container(role)["args"]

            assert value("--nnodes", args) == "2"
            assert value("--node-rank", args) == rank
            assert value("--master-addr", args) == "$(LWS_LEADER_ADDRESS)"
            assert value("--master-port", args) == "29501"
            assert not any("ray" in each for each in args)

    def test_differ_by_rank_and_by_who_answers(self):
        leader, worker = (container(role)["args"] for role in ("leader", "worker"))

        assert set(worker) - set(leader) == {"--headless", "$(LWS_WORKER_INDEX)"}
        assert set(leader) <= {*worker, "0"}

    @pytest.mark.parametrize("version", ["0.12", "0.18", "0.33"])
    def test_are_those_of_every_version_that_knows_them(self, version):
        model = a_model_over_nodes(engine={"version": version})

        assert "--nnodes" in container("leader", made(model))["args"]

    def test_of_one_node_have_none_of_it(self):
        model = a_model()
        [only] = deployment(model, a_sizing(model), SITE)["spec"]["template"]["spec"]["containers"]

        assert not {"--nnodes", "--node-rank", "--master-addr", "--headless"} & set(only["args"])


class TestPods:
    def test_hold_the_gpus_of_a_node_each(self):
        for role in ("leader", "worker"):
            assert container(role)["resources"]["limits"]["nvidia.com/gpu"] == "8"

    def test_have_a_port_and_probes_where_requests_are_answered_only(self):
        asked = {"ports", "startupProbe", "livenessProbe", "readinessProbe"}

        assert asked <= container("leader").keys()
        assert not asked & container("worker").keys()

    def test_are_told_to_prometheus_where_requests_are_answered_only(self):
        template = template_in(made(site=replace(SITE, has_pod_monitors=False)))

        annotations = template["leaderTemplate"]["metadata"]["annotations"]
        assert annotations["prometheus.io/scrape"] == "true"
        assert "annotations" not in template["workerTemplate"]["metadata"]

    def test_have_the_same_time_to_finish(self):
        leader, worker = (
            template_in(made())[f"{role}Template"]["spec"] for role in ("leader", "worker")
        )

        assert leader["terminationGracePeriodSeconds"] == 270
        assert worker["terminationGracePeriodSeconds"] == 270

    def test_of_a_group_are_made_at_once_and_made_anew_together(self):
        spec = made()["spec"]

        assert spec["startupPolicy"] == "LeaderCreated"
        assert spec["leaderWorkerTemplate"]["restartPolicy"] == "RecreateGroupOnPodRestart"
        assert spec["networkConfig"] == {"subdomainPolicy": "UniquePerReplica"}

    @pytest.mark.parametrize("surge", [0, 1])
    def test_are_replaced_as_those_of_a_deployment(self, surge):
        model = a_model_over_nodes(pods={"maxSurge": surge})

        rolling = made(model)["spec"]["rolloutStrategy"]["rollingUpdateConfiguration"]
        assert rolling == {"maxSurge": surge, "maxUnavailable": 1 - surge}

    def test_are_spread_by_their_leaders(self):
        spread = [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}]
        template = template_in(made(a_model_over_nodes(pods={"topologySpreadConstraints": spread})))

        [found] = template["leaderTemplate"]["spec"]["topologySpreadConstraints"]
        assert found["labelSelector"]["matchLabels"][INDEX_LABEL] == "0"
        assert found["matchLabelKeys"] == ["leaderworkerset.sigs.k8s.io/template-revision-hash"]
        assert "topologySpreadConstraints" not in template["workerTemplate"]["spec"]

    def test_of_a_group_are_put_together_where_it_is_asked(self):
        manifest = made(a_model_over_nodes(pods={"groupTopology": "example.com/rack"}))
        holders = [manifest, *GROUPS.templates(template_in(manifest))]

        asked = [each["metadata"]["annotations"].get(TOPOLOGY_ANNOTATION) for each in holders]
        assert asked == ["example.com/rack"] * 3
        assert TOPOLOGY_ANNOTATION not in str(made())


class TestRefusals:
    def test_of_a_version_before_there_were_nodes_names_the_first_that_has_them(self):
        with pytest.raises(NotServableError) as refused:
            made(a_model_over_nodes(engine={"version": "0.11"}))

        assert str(refused.value) == (
            "TP8 x PP2 needs 16 GPUs, a node of H100 has 8: vLLM runs a replica over several nodes "
            "without Ray (--nnodes) from 0.12 on, not 0.11"
        )

    def test_of_a_cluster_without_leader_worker_sets_names_what_to_install(self):
        with pytest.raises(NotServableError, match=r"\(leaderworkerset.x-k8s.io/v1\) is not inst"):
            made(site=replace(SITE, has_groups=False))

    @pytest.mark.parametrize(
        "split",
        [
            Parallelism(tensor=16),
            Parallelism(tensor=8, pipeline=2, data=2),
            Parallelism(tensor=16, data=2),
            Parallelism(data=12),
        ],
        ids=str,
    )
    def test_of_ranks_that_are_not_within_a_node(self, split):
        with pytest.raises(NotServableError, match="pipeline stages on whole nodes"):
            made(split=split)

    def test_of_a_place_for_groups_where_a_replica_takes_one_node(self):
        model = a_model(pods={"groupTopology": "example.com/rack"})

        with pytest.raises(NotServableError, match=r"pods.groupTopology .* takes one of 8 GPUs"):
            deployment(model, a_sizing(), SITE)

    @pytest.mark.parametrize(("length", "is_refused"), [(50, False), (51, True)])
    def test_of_a_name_with_which_no_worker_could_be_made(self, length, is_refused):
        model = a_model(**R1 | {"name": "r" * length})

        if is_refused:
            with pytest.raises(NotServableError, match="it may have 50"):
                made(model)
        else:
            assert made(model)["metadata"]["name"] == "r" * length


class TestWhatIsBesideThem:
    def test_a_budget_lets_one_pod_go_where_one_more_group_is_ready_than_stays(self):
        """While one of three loads, its worker is Ready: 5 pods are, and none may go."""
        model = a_model_over_nodes(pods={"disruptionBudget": {"minAvailable": 2}})

        spec = protections(model, SITE, 2)["PodDisruptionBudget"]["spec"]
        assert spec["minAvailable"] == 5
        assert INDEX_LABEL not in spec["selector"]["matchLabels"]

    @pytest.mark.parametrize("field", ["minAvailable", "maxUnavailable"])
    def test_a_share_of_pods_is_no_budget_of_groups(self, field):
        model = a_model_over_nodes(pods={"disruptionBudget": {field: "50%"}})

        with pytest.raises(NotServableError, match="a replica over 2 nodes has 2: say how many"):
            made(model)

    def test_a_network_policy_lets_the_pods_of_a_group_reach_each_other(self):
        model = a_model_over_nodes(pods={"networkPolicy": {"egressPorts": [443]}})
        own = {"podSelector": {"matchLabels": service(model)["spec"]["selector"]}}

        spec = protections(model, SITE, 2)["NetworkPolicy"]["spec"]
        assert {"from": [own]} in spec["ingress"]
        assert {"to": [own]} in spec["egress"]
        assert "&id" not in yaml.safe_dump(spec)


class TestChanges:
    def test_of_either_template_replace_groups(self):
        before, after = template_in(made()), template_in(made())
        after["workerTemplate"]["spec"]["containers"][0]["image"] = "another"

        [change] = template_changes(before, after)
        assert change.field == "workerTemplate.spec.containers[vllm].image"

    def test_of_others_to_the_labels_of_a_template_are_no_drift(self):
        live = template_in(made())
        live["leaderTemplate"]["metadata"]["annotations"] = {"restarted-at": "now"}
        live["leaderTemplate"]["spec"]["hostNetwork"] = True
        ours = {"f:leaderTemplate": {}, "f:workerTemplate": {}}
        ours["f:leaderTemplate"] = {"f:metadata": {"f:labels": {}}, "f:spec": {"f:containers": {}}}
        others = {"f:leaderTemplate": {"f:metadata": {"f:annotations": {}}}}

        found = list_differences(
            live, template_in(made()), FieldOwners(ours=ours, others=(("kubectl", others),))
        )
        assert [each.field for each in found] == ["leaderTemplate.spec.hostNetwork"]


def test_the_number_of_nodes_is_read_back():
    assert num_nodes_in(made()) == 2
    assert num_nodes_in(deployment(a_model(), a_sizing(), SITE)) == 1
