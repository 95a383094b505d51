"""``tonnage diagnose``: one file with what a report needs, and nothing else that may be read."""

import json

import pytest
import yaml

from cli_builders import run
from diagnose_builders import ANSWERS, HIDDEN, OWN, POD, SERVING, Cluster, files_of, items, named
from http_double import Reply, json_reply, serving


@pytest.fixture
def diagnose(tmp_path):
    return lambda cluster, *options: files_of(cluster, tmp_path, *options)


def test_everything_that_a_bug_report_needs_is_in_it(diagnose):
    result, files = diagnose(Cluster())

    assert result.exit_code == 0
    assert set(files) == {
        "about.yaml", "modeldeployments.yaml", "deployments.yaml", "replicasets.yaml", "pods.yaml",
        "events.yaml", "operator/deployments.yaml", "operator/pods.yaml", "operator/settings.yaml",
        "operator/calibration.yaml", "operator/lease.yaml", f"operator/{POD}.log",
        f"operator/{POD}.previous.log", f"operator/{POD}.metrics.txt",
    }  # fmt: skip
    about = yaml.safe_load(files["about.yaml"])
    assert (about["tonnage"], about["kubernetes"]) == ("0.2.0", "v1.36.4")
    assert about["not read"] == []
    assert "tickS: 15" in files["operator/settings.yaml"]
    assert "learned" in files["operator/calibration.yaml"]
    assert "tonnage_leader 1.0" in files[f"operator/{POD}.metrics.txt"]
    assert "SLOMet" in files["modeldeployments.yaml"]


def test_groups_over_nodes_are_in_it_where_the_cluster_serves_them(diagnose):
    def set_of(name):
        labels = {"leaderworkerset.sigs.k8s.io/name": name}
        return {"metadata": {"name": f"{name}-0", "labels": labels}}

    kind, sets = "/apis/leaderworkerset.x-k8s.io/v1", "/apis/apps/v1/namespaces/serving"
    served = {
        kind: {"resources": [{"name": "leaderworkersets"}]},
        f"{kind}/namespaces/serving/leaderworkersets": items(named("r1")),
        f"{sets}/statefulsets": items(set_of("r1"), set_of("of-somebody-else")),
    }

    _, files = diagnose(Cluster(ANSWERS | served))

    assert "name: r1\n" in files["leaderworkersets.yaml"]
    assert "r1-0" in files["statefulsets.yaml"]
    assert "of-somebody-else" not in files["statefulsets.yaml"]


def test_nothing_secret_is_in_it_and_nothing_of_others(diagnose):
    _, files = diagnose(Cluster())

    everything = json.dumps(files)
    assert HIDDEN not in everything
    assert "HF_TOKEN" in files["deployments.yaml"]
    assert "event=decision" in files[f"operator/{POD}.log"]
    assert "of somebody else" not in everything
    assert "of-somebody-else" not in files["operator/settings.yaml"]


def test_nothing_is_written_to_the_cluster_and_no_secret_is_read(diagnose):
    cluster = Cluster()

    diagnose(cluster)

    assert {each.method for each in cluster.asked} == {"GET"}
    assert [each.path for each in cluster.asked if "/secrets" in each.path] == []


@pytest.mark.parametrize("part", ["/log", "/proxy/", "configmaps", "events", "leases", "/pods"])
def test_what_may_not_be_read_is_named_and_the_rest_is_there(diagnose, part):
    result, files = diagnose(Cluster(forbidden=(part,)))

    assert result.exit_code == 0
    assert "forbidden for you" in " ".join(yaml.safe_load(files["about.yaml"])["not read"])
    assert "Note: not read: " in result.stderr
    assert "SLOMet" in files["modeldeployments.yaml"]


def test_an_operator_that_is_not_found_is_told_with_the_options(diagnose):
    result, _ = diagnose(Cluster(), "--operator-namespace", "elsewhere")

    assert result.exit_code == 0
    assert "no pod of the operator in namespace elsewhere" in result.stderr
    assert "--operator-namespace" in result.stderr


def test_without_the_right_to_read_objects_nothing_is_written(diagnose):
    result, files = diagnose(Cluster(forbidden=("modeldeployments",)))

    assert result.exit_code == 6
    assert files == {}
    assert result.stderr.count("\n") == 1


def without(part):
    return {path: found for path, found in ANSWERS.items() if part not in path}


LISTED = "/apis/coordination.k8s.io/v1/leases"


def test_where_there_is_no_lease_the_file_says_why(diagnose):
    result, files = diagnose(Cluster(without("leases") | {LISTED: items()}))

    assert files["operator/lease.yaml"] == (
        "# there is no Lease tonnage-operator in namespace tonnage-system, and none of an "
        "operator that serves all namespaces: none has run, or its namespace was deleted\n"
    )
    assert "there is no Lease tonnage-operator" in result.stderr


def test_the_lease_that_a_release_of_another_namespace_began_with_is_read(diagnose):
    elsewhere = {"metadata": {"name": "tonnage-operator", "namespace": "before"}}
    _, files = diagnose(Cluster(without("leases") | {LISTED: items(elsewhere)}))

    assert yaml.safe_load(files["operator/lease.yaml"]) == elsewhere


def test_the_last_lines_of_the_log_are_asked_for(diagnose):
    cluster = Cluster()

    diagnose(cluster)

    logs = [each.query for each in cluster.asked if each.path.endswith("/log")]
    assert logs == [{"tailLines": "5000"}, {"tailLines": "5000", "previous": "true"}]


@pytest.mark.parametrize(
    ("target", "complaint"),
    [
        ("report.zip", "ends in .tar.gz"),
        ("there.tar.gz", "exists, and is not overwritten"),
        ("nowhere/report.tar.gz", "there is no folder"),
    ],
)
def test_a_file_that_cannot_be_is_refused_before_anything_is_read(tmp_path, target, complaint):
    (tmp_path / "there.tar.gz").write_text("kept")

    result = run("diagnose", "--kubeconfig", "/nowhere", "--save", tmp_path / target)

    assert result.exit_code == 3
    assert complaint in result.stderr
    assert (tmp_path / "there.tar.gz").read_text() == "kept"


def test_the_file_is_its_owners_alone(diagnose, tmp_path):
    diagnose(Cluster())

    assert (tmp_path / "report.tar.gz").stat().st_mode & 0o777 == 0o600


def a_series(name, **labels):
    return {"metric": {"__name__": name} | labels, "values": [[0, "1"]]}


def a_prometheus(*series):
    return json_reply({"status": "success", "data": {"resultType": "matrix", "result": series}})


RUNNING = "vllm:num_requests_running"
STORED = (
    a_series(RUNNING, namespace="serving", pod="a"),
    a_series(RUNNING, namespace="serving", pod="of-nobody"),
    a_series(f"kserve_{RUNNING}", namespace="serving", pod="b"),
    a_series(
        RUNNING,
        namespace="monitoring",
        pod="collector",
        kubernetes_namespace="serving",
        kubernetes_pod_name="c",
    ),
)


def serving_pods(settings="tickS: 15\n"):
    pods = ({"metadata": {"namespace": "serving", "name": name}} for name in "abcd")
    config = named("tonnage", data={"settings.yaml": settings})
    return Cluster(
        ANSWERS | {f"/api/v1/{SERVING}/pods": items(*pods), f"{OWN}/configmaps/tonnage": config}
    )


def test_series_that_would_join_pods_are_named_with_the_setting_that_reads_them(diagnose):
    with serving(lambda _: a_prometheus(*STORED)) as server:
        result, files = diagnose(serving_pods(), "--prometheus", server.url)

    assert result.exit_code == 0, result.output
    said = [line for line in result.stderr.splitlines() if line.startswith("Series: ")]
    assert said == [
        "Series: vllm: by kubernetes_namespace and kubernetes_pod_name: 1 of 4 pods, not read: set "
        "settings.otherSeries: {labels: [{namespace: kubernetes_namespace, pod: "
        "kubernetes_pod_name}]}",
        "Series: vllm: by namespace and pod: 1 of 4 pods, read",
        "Series: kserve_vllm: by namespace and pod: 1 of 4 pods, not read: set "
        "settings.otherSeries: {prefixes: [kserve_]}",
    ]
    assert "1 of 4 pods" in files["series.txt"]


def test_series_are_read_where_the_settings_say_so_and_their_selector_counts(diagnose):
    settings = (
        "{prometheusUrl: http://p.test, prometheusSelector: 'cluster=\"eu\"', otherSeries: "
        "{prefixes: [kserve_], "
        "labels: [{namespace: kubernetes_namespace, pod: kubernetes_pod_name}]}}"
    )
    with serving(lambda _: a_prometheus(*STORED)) as server:
        result, _ = diagnose(serving_pods(settings), "--prometheus", server.url)

    assert "not read: set" not in result.stderr
    assert server.asked[0].query["query"] == f'{{__name__=~".*{RUNNING}",cluster="eu"}}'


def test_no_series_and_no_prometheus_are_said(diagnose, tmp_path):
    with serving(lambda _: a_prometheus()) as server:
        result, _ = diagnose(serving_pods(), "--prometheus", server.url)
    assert f"no series *{RUNNING} names one of 4 pods" in result.stderr

    (tmp_path / "report.tar.gz").unlink()
    with serving(lambda _: Reply(status=401)) as server:
        result, _ = diagnose(serving_pods(), "--prometheus", server.url)
    assert result.exit_code == 3
    assert "answered 401: check prometheusTokenFile and prometheusAuth" in result.stderr
