"""``tonnage plan --from-cluster``: what runs, what it costs, and what its demand would take."""

import json
from contextlib import ExitStack

import pytest
import yaml

from api_server_double import serving
from cli_builders import SCALED, SMALL, a_deployment, run
from fleet_builders import SITE
from tonnage.api.objects import parse_model_deployment
from tonnage.catalog.gpu import built_in_gpus
from tonnage.cli.results.planning import PlanContext, answer
from tonnage.manifests.children import deployment

MODELS = "/apis/tonnage.dev/v1alpha1/namespaces/serving/modeldeployments"
DEPLOYMENTS = "/apis/apps/v1/namespaces/serving/deployments"
ARGUMENTS = [
    "meta-llama/Llama-3.1-8B-Instruct", "--max-model-len=8192", "--max-num-seqs=64",
    "--tensor-parallel-size=2",
]  # fmt: skip
H100_USD = 6.88
PRODUCT = "nvidia.com/gpu.product"


def foreign(args=ARGUMENTS, *, replicas=6, gpus="2", **spec):
    """A Deployment of somebody else, as the API server holds it."""
    body = yaml.safe_load(a_deployment(args=args))
    (container,) = body["spec"]["template"]["spec"]["containers"]
    container["resources"] = {"limits": {"nvidia.com/gpu": gpus}}
    body["metadata"] |= {"uid": "uid", "generation": 1}
    body["spec"] |= {"replicas": replicas, "selector": {"matchLabels": {"app": "my-vllm"}}}
    body["spec"]["template"]["spec"] |= {"nodeSelector": {PRODUCT: "NVIDIA-H100-80GB-HBM3"}} | spec
    return body


@pytest.fixture
def plan(tmp_path):
    """Return a function that plans what a cluster with these objects runs under a name."""
    with ExitStack() as stack:
        serve = stack.enter_context(serving(tmp_path))

        def ask(name, answers, *options, more=None):
            served = {path: (200, body) for path, body in answers.items()} | (more or {})
            kubeconfig = serve(served)
            return run("plan", "--from-cluster", name, "--kubeconfig", kubeconfig, *options)

        yield ask


def ask_of(plan, body, *options):
    return plan("my-vllm", {f"{DEPLOYMENTS}/my-vllm": body}, *options)


def figures(result):
    assert result.stdout, result.stderr
    (found,) = json.loads(result.stdout)
    return found


def said(result):
    return " ".join(result.stdout.split())


LOAD = ("--rps", "20", "--prompt", "2000", "--output", "200", "--ttft", "2s", "--tpot", "50ms")


def test_a_deployment_is_planned_with_nothing_to_write(plan):
    found = figures(ask_of(plan, foreign(), *LOAD, "-o", "json"))
    today, same, other = (found["fleets"][name] for name in ("running", "sameFlags", "otherFlags"))

    # 6 replicas of two GPUs run: 6 x 2 x 6.88 x 730.5 = 60,310.08 USD a month
    assert (today["replicas"], today["gpus"], today["maxNumSeqs"]) == (6, 12, 64)
    assert today["perMonth"]["gpuHours"] == 8766.0
    assert today["perMonth"]["cost"] == pytest.approx(60_310.08)
    assert same["maxNumSeqs"] == 64
    assert 1 <= same["replicas"] < 6
    assert same["perMonth"]["cost"] == pytest.approx(same["replicas"] * 2 * H100_USD * 730.5)
    # 20 requests/s take two of one GPU each, at 11.6 of each
    assert (other["replicas"], other["gpus"]) == (2, 2)
    assert found["plan"]["replicas"] == same["replicas"]
    assert found["metadata"] == {"name": "my-vllm", "namespace": "serving"}


def test_the_text_says_what_is_saved(plan):
    text = ask_of(plan, foreign(), *LOAD).stdout
    rows = [
        line.split() for line in text.splitlines() if line.strip().startswith(("today", "other"))
    ]

    assert rows[0][:4] == ["today,", "TP2", "6", "12"]
    # Three of four pairs of an instance of eight GPUs: 2 x 8 x 6.88 x 730.5 in whole ones.
    assert rows[0][4:8] == ["60,310", "USD", "80,413", "USD"]
    assert rows[1][:5] == ["other", "flags,", "TP1", "2", "2"]
    assert rows[1][9:13] == ["50,258", "USD", "70,362", "USD"]  # 60,310.08 - 2 x 6.88 x 730.5


def test_too_few_replicas_are_said(plan):
    text = ask_of(plan, foreign(replicas=1), *LOAD).stdout

    assert "What runs is too little: its flags need 2 replicas" in text


def test_without_a_demand_it_is_refused_with_the_options_that_say_it(plan):
    result = ask_of(plan, foreign())

    assert result.exit_code == 3
    assert "give --rps, --demand-file or --prometheus" in result.stderr


def test_a_demand_by_the_hour_is_planned_of_what_runs(plan, tmp_path):
    (tmp_path / "day.json").write_text("[5, 20]")
    options = [each for each in LOAD if each not in {"--rps", "20"}]
    found = figures(
        ask_of(plan, foreign(), *options, "--demand-file", tmp_path / "day.json", "-o", "json")
    )

    most = found["fleets"]["sameFlags"]["replicas"]
    assert [each["replicas"] for each in found["demandByHour"]["steps"]] == [1, most]


def test_gpus_are_those_of_the_nodes_that_pods_run_on(plan):
    pods = {"metadata": {}, "items": [{"metadata": {"name": "a"}, "spec": {"nodeName": "n1"}}]}
    node = {"metadata": {"name": "n1", "labels": {PRODUCT: "NVIDIA-L40S"}}}
    answers = {
        f"{DEPLOYMENTS}/my-vllm": foreign(nodeSelector={}),
        "/api/v1/namespaces/serving/pods": pods,
        "/api/v1/nodes/n1": node,
    }
    found = figures(plan("my-vllm", answers, *LOAD, "-o", "json"))
    named = figures(plan("my-vllm", answers, *LOAD, "--gpu", "H100", "-o", "json"))

    assert found["fleets"]["running"]["perMonth"]["cost"] != pytest.approx(60_310.08)
    assert named["fleets"]["running"]["perMonth"]["cost"] == pytest.approx(60_310.08)


def test_a_part_of_a_gpu_is_refused_by_its_label_and_by_its_resource(plan):
    slices = "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb"
    of_label = ask_of(plan, foreign(nodeSelector={PRODUCT: slices}), *LOAD)
    body = foreign()
    [container] = body["spec"]["template"]["spec"]["containers"]
    container["resources"]["limits"] = {"nvidia.com/mig-3g.40gb": 1}
    of_resource = ask_of(plan, body, *LOAD, "--gpu", "H100")

    assert (of_label.exit_code, of_resource.exit_code) == (3, 3)
    assert f"hardware.gpu '{slices}' is a MIG slice, which Tonnage does" in said(of_label)
    assert "asks for nvidia.com/mig-3g.40gb, a MIG slice, which Tonnage" in said(of_resource)


def test_gpus_that_nothing_names_are_asked_for(plan):
    answers = {
        f"{DEPLOYMENTS}/my-vllm": foreign(nodeSelector={}),
        "/api/v1/namespaces/serving/pods": {"metadata": {}, "items": []},
    }
    result = plan("my-vllm", answers, *LOAD)

    assert result.exit_code == 3
    assert "name the class with --gpu" in result.stderr


def test_a_model_that_arguments_do_not_name_is_asked_for(plan):
    result = ask_of(plan, foreign(["--max-num-seqs=64"]), *LOAD)
    named = ask_of(plan, foreign(["--max-num-seqs=64", "--model", ARGUMENTS[0]]), *LOAD)

    assert result.exit_code == 3
    assert "name the model with --model" in result.stderr
    assert named.exit_code == 0


def test_what_is_not_there_is_exit_code_2(plan):
    result = plan("nothing", {}, *LOAD)

    assert result.exit_code == 2
    assert "no ModelDeployment, Deployment or LeaderWorkerSet nothing in namespace" in result.stderr


def test_a_version_that_the_image_hides_can_be_given(plan):
    hidden = foreign()
    hidden["spec"]["template"]["spec"]["containers"][0]["image"] = "registry.test/own:v7"
    result = ask_of(plan, hidden, *LOAD)
    given = ask_of(plan, hidden, *LOAD, "--set", "scaleTarget.engineVersion=0.33")

    assert result.exit_code == 3
    assert "scaleTarget.engineVersion" in result.output
    assert given.exit_code == 0


def test_who_may_not_see_other_kinds_still_sees_a_deployment(plan):
    forbidden = {f"{MODELS}/my-vllm": (403, {"message": "no"})}
    answers = {f"{DEPLOYMENTS}/my-vllm": foreign()}
    result = plan("my-vllm", answers, *LOAD, "-o", "json", more=forbidden)

    assert figures(result)["fleets"]["running"]["replicas"] == 6


def test_flags_in_a_config_map_are_read_from_the_cluster(plan):
    body = foreign([ARGUMENTS[0], "--config", "/etc/vllm/vllm.yaml"])
    pod = body["spec"]["template"]["spec"]
    pod["volumes"] = [{"name": "flags", "configMap": {"name": "flags"}}]
    pod["containers"][0]["volumeMounts"] = [{"name": "flags", "mountPath": "/etc/vllm"}]
    flags = "max-num-seqs: 32\ntensor-parallel-size: 2\nmax-model-len: 4096\n"
    answers = {
        f"{DEPLOYMENTS}/my-vllm": body,
        "/api/v1/namespaces/serving/configmaps/flags": {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "flags", "namespace": "serving"},
            "data": {"vllm.yaml": flags},
        },
    }
    found = figures(plan("my-vllm", answers, *LOAD, "-o", "json"))

    assert found["fleets"]["running"]["maxNumSeqs"] == 32


def test_a_leader_worker_set_is_a_replica_of_its_pods(plan):
    (container,) = foreign()["spec"]["template"]["spec"]["containers"]
    args = ["-tp=2", "-pp=2", "--nnodes=2", "--node-rank=0", "--max-num-seqs=64"]
    pod = {"spec": {"containers": [container | {"args": [ARGUMENTS[0], *args]}]}}
    body = {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": "my-vllm", "namespace": "serving", "uid": "uid"},
        "spec": {"replicas": 3, "leaderWorkerTemplate": {"size": 2, "workerTemplate": pod}},
    }
    path = "/apis/leaderworkerset.x-k8s.io/v1/namespaces/serving/leaderworkersets/my-vllm"
    found = figures(plan("my-vllm", {path: body}, *LOAD, "--gpu", "H100", "-o", "json"))

    # three groups of two pods with two GPUs each
    running = found["fleets"]["running"]
    assert (running["replicas"], running["gpus"]) == (3, 12)


def ours(text, *, replicas):
    """The Deployment that the operator made for a manifest."""
    model = parse_model_deployment(yaml.safe_load(text))
    made = deployment(model, answer(model, PlanContext(gpus=built_in_gpus())).sizing, SITE)
    made["metadata"] |= {"uid": "uid", "generation": 1}
    made["spec"]["replicas"] = replicas
    return made


def test_a_model_deployment_is_planned_with_its_demand_and_the_flags_that_run(plan):
    answers = {
        f"{MODELS}/small": yaml.safe_load(SMALL),
        f"{DEPLOYMENTS}/small": ours(SMALL, replicas=5),
    }
    found = figures(plan("small", answers, "-o", "json"))
    more = figures(plan("small", answers, "--rps", "20", "-o", "json"))

    # 8 requests/s take one replica of one GPU, 20 take two; five run
    assert found["fleets"]["running"]["perMonth"]["cost"] == pytest.approx(
        5 * H100_USD * 730.5, abs=0.01
    )
    assert found["fleets"]["sameFlags"]["replicas"] == 1
    assert more["fleets"]["sameFlags"]["replicas"] == 2


def test_the_target_of_a_model_deployment_is_what_runs(plan):
    body = yaml.safe_load(a_deployment())
    body["metadata"] |= {"uid": "uid", "generation": 1}
    body["spec"]["replicas"] = 3
    answers = {
        f"{MODELS}/llama-70b": yaml.safe_load(SCALED),
        f"{DEPLOYMENTS}/my-vllm": body,
    }
    found = figures(plan("llama-70b", answers, "-o", "json"))["fleets"]

    # no limits of the pod say its GPUs: those of --tensor-parallel-size=2
    assert (found["running"]["replicas"], found["running"]["gpus"]) == (3, 6)
    assert found["sameFlags"]["maxNumSeqs"] == 48


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            ("scaling: {", "topology: {prefill: {}, decode: {}}\n  scaling: {"),
            "-prefill or -decode",
        ),
        (("demand:\n    requestsPerSecond: 8", "demand:"), "give --rps"),
    ],
)
def test_what_a_model_deployment_lacks_is_said(plan, change, said):
    answers = {
        f"{MODELS}/small": yaml.safe_load(SMALL.replace(*change)),
        f"{DEPLOYMENTS}/small": ours(SMALL, replicas=5),
    }
    result = plan("small", answers)

    assert result.exit_code == 3
    assert said in result.stderr


def test_where_nothing_runs_its_manifest_is_asked_for(plan):
    result = plan("small", {f"{MODELS}/small": yaml.safe_load(SMALL)})

    assert result.exit_code == 3
    assert "nothing runs for small" in result.stderr


def test_files_and_a_cluster_are_not_planned_together(plan):
    result = plan("small", {}, "-f", "model.yaml")

    assert result.exit_code == 3
    assert "leave one out" in result.stderr


PROXY = {"name": "proxy", "image": "nginx:1.29"}


class TestOfAFile:
    """What ``kubectl get deploy -o yaml`` prints, piped."""

    def piped(self, *bodies, options=()):
        text = "---\n".join(map(yaml.safe_dump, bodies))
        return run("plan", "-f", "-", *LOAD, *options, text=text)

    def named(self, name, **changes):
        body = foreign(**changes)
        body["metadata"]["name"] = name
        return body

    def test_is_planned_as_it_is_from_the_cluster(self, plan):
        of_file = figures(self.piped(foreign(), options=["-o", "json"]))
        of_cluster = figures(ask_of(plan, foreign(), *LOAD, "-o", "json"))

        assert of_file == of_cluster
        assert of_file["fleets"]["running"]["gpus"] == 12

    def test_has_the_modeldeployment_that_scales_it_which_gives_the_same_plan(self):
        found = figures(self.piped(foreign(), options=["-o", "json"]))
        made = found["modelDeployment"]
        parsed = parse_model_deployment(made)
        both = f"{yaml.safe_dump(made)}---\n{yaml.safe_dump(foreign())}"
        again = figures(run("plan", "-f", "-", "-o", "json", text=both))
        text = said(self.piped(foreign()))

        assert (parsed.spec.scaling.mode, parsed.spec.scaling.max_replicas) == ("Recommend", 12)
        assert parsed.spec.scale_target.name == "my-vllm"
        assert {**again["plan"], "reasons": []} == {**found["plan"], "reasons": []}
        assert "advises, and in mode Auto scales, Deployment my-vllm, once it and its" in text
        assert "scaling: mode: Recommend maxReplicas: 12 scaleTarget:" in text

    def test_of_several_each_of_vllm_is_planned_and_others_are_named(self):
        proxy = self.named("proxy")
        proxy["spec"]["template"]["spec"]["containers"] = [PROXY]
        bodies = {"apiVersion": "v1", "kind": "List",
                  "items": [self.named("one"), proxy, self.named("two", replicas=1)]}  # fmt: skip
        result = self.piped(bodies, options=["-o", "json"])
        found = json.loads(result.stdout)

        assert [each["metadata"]["name"] for each in found] == ["one", "two"]
        assert [each["fleets"]["running"]["replicas"] for each in found] == [6, 1]
        assert "Deployment proxy runs no vLLM (nothing in its command starts" in result.stderr

    def test_what_cannot_be_planned_ends_no_other(self):
        router = self.named("router")
        router["spec"]["template"]["spec"]["containers"] = [
            {"name": "router", "image": "lmcache/lmstack-router:v0.1", "args": ["--port=80"]}
        ]
        classless = self.named("classless", nodeSelector={})
        groups = self.named("one") | {"kind": "LeaderWorkerSet",
                                      "apiVersion": "leaderworkerset.x-k8s.io/v1"}  # fmt: skip
        template = groups["spec"].pop("template")
        groups["spec"]["leaderWorkerTemplate"] = {"size": 1, "workerTemplate": template}
        bodies = [self.named("one"), router, classless, groups, self.named("llama-3.1-8b"),
                  self.named("llama-3-1-8b")]  # fmt: skip
        result = self.piped(*bodies, options=["-o", "json"])
        found = json.loads(result.stdout)

        assert result.exit_code == 3
        assert [each["metadata"]["name"] for each in found] == ["one", "llama-3-1-8b"]
        assert found[1]["modelDeployment"]["spec"]["scaleTarget"]["name"] == "llama-3.1-8b"
        said = " ".join(result.stderr.split())
        assert "Deployment router runs no vLLM" in said
        assert "Deployment classless: label nvidia.com/gpu.product: no node selector" in said
        assert "Deployment llama-3-1-8b: another workload has its namespace and name" in said
        assert "LeaderWorkerSet one: another workload has its namespace and name" in said

    def test_keeps_what_was_asked_of_scaling(self):
        found = figures(
            self.piped(
                foreign(),
                options=[
                    "--set",
                    "scaling.routing=LeastOutstanding",
                    "--set",
                    "scaling.maxReplicas=3",
                    "-o",
                    "json",
                ],
            )
        )

        assert found["modelDeployment"]["spec"]["scaling"] == {
            "mode": "Recommend", "routing": "LeastOutstanding", "maxReplicas": 3,
        }  # fmt: skip

    def test_without_any_of_vllm_there_is_nothing_to_plan(self):
        proxy = self.named("proxy")
        proxy["spec"]["template"]["spec"]["containers"] = [PROXY]
        result = self.piped(proxy)

        assert result.exit_code == 3
        assert "no ModelDeployment of tonnage.dev, and no workload of vLLM, in -" in result.stderr

    def test_has_the_class_that_its_affinity_asks_for(self):
        affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [
                {"key": PRODUCT, "operator": "In", "values": ["NVIDIA-L40S"]}]}]}}}  # fmt: skip
        body = foreign(nodeSelector={}, affinity=affinity)
        found = figures(self.piped(body, options=["-o", "json"]))

        assert found["modelDeployment"]["spec"]["hardware"] == {"gpu": "NVIDIA-L40S"}

    def test_without_a_class_is_asked_for_one(self):
        refused = self.piped(foreign(nodeSelector={}))
        named = self.piped(foreign(nodeSelector={}), options=["--gpu", "H100"])

        assert refused.exit_code == 3
        assert "no node selector or affinity asks for it; name the class with --gpu" in (
            " ".join(refused.stderr.split())
        )
        assert named.exit_code == 0

    @pytest.mark.parametrize(
        "spec", [3, {"template": {"spec": {"containers": 3}}}, {"replicas": "x"}]
    )
    def test_that_no_api_server_would_take_is_refused_or_runs_no_vllm(self, spec):
        result = self.piped(foreign() | {"spec": spec}, options=["--gpu", "H100"])

        assert result.exit_code == 3
        assert "Traceback" not in result.stderr
