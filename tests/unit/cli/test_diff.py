"""``tonnage diff``: pods, replicas, latency and cost before and after, and a budget."""

import copy
import json
import re
from contextlib import ExitStack

import pytest
import yaml

from api_server_double import serving
from cli_builders import SCALED, a_deployment, llama, run
from fleet_builders import R1, SITE, a_groups_body, a_manifest, recorded_by
from tonnage.api.objects import parse_model_deployment
from tonnage.catalog.gpu import built_in_gpus
from tonnage.cli.console import NO_CLUSTER
from tonnage.cli.results.planning import PlanContext, answer
from tonnage.manifests.children import deployment

LONGER = ("contextLength: 8192", "contextLength: 16384")
BUSIER = ("requestsPerSecond: 4", "requestsPerSecond: 6")
OBJECT = "/apis/tonnage.dev/v1alpha1/namespaces/serving/modeldeployments/llama-70b"
DEPLOYMENT = "/apis/apps/v1/namespaces/serving/deployments/llama-70b"
GROUPS_SERVED = "/apis/leaderworkerset.x-k8s.io/v1"
EACH_USD = 15.824
"""Two H200 at 63.296 / 8."""


ENOUGH = "gib: 300, workingSetTokens: 900000"


LABELLED = "  pods: {labels: {team: a}}\n"
ALLOCATOR = "  pods: {env: [{name: PYTORCH_CUDA_ALLOC_CONF, secretKeyRef: {name: a, key: b}}]}\n"


def with_auto(given):
    """The object with KV offload in mode Auto."""
    auto = f"    kvOffload: {{mode: Auto, {given}}}\n"
    return llama(("  hardware:\n", f"{auto}  hardware:\n"))


@pytest.fixture
def diff(tmp_path):
    """Return a function that compares two texts."""

    def compare(old, new, *options):
        paths = [tmp_path / "old.yaml", tmp_path / "new.yaml"]
        for path, text in zip(paths, (old, new), strict=True):
            path.write_text(text)
        return run("diff", *paths, *options)

    return compare


def figures(result):
    return json.loads(result.stdout)


class TestFiles:
    @pytest.mark.parametrize(
        ("before", "after"),
        [("Recommend", "Recommend"), ("Recommend", "Auto"), ("Auto", "Recommend"),
         ("Auto", "Paused")],
    )  # fmt: skip
    def test_no_pod_is_replaced_that_does_not_exist_or_that_nobody_writes(
        self, diff, before, after
    ):
        old = llama(("scaling: {", f"scaling: {{mode: {before}, "))
        new = llama(LONGER, ("scaling: {", f"scaling: {{mode: {after}, "))
        found = diff(old, new)

        assert "no pod is replaced" in found.stdout
        assert "--max-model-len" not in found.stdout

    @pytest.mark.parametrize(
        ("before", "after", "replicas", "created"),
        [
            ("Recommend", "Recommend", (0, 0), False),
            ("Recommend", "Auto", (0, 4), True),
            ("Auto", "Recommend", (4, 4), False),  # what runs stays
            ("Recommend", "Paused", (0, 0), False),
        ],
    )
    def test_what_creates_nothing_costs_nothing(self, diff, before, after, replicas, created):
        old, new = (llama(("scaling: {", f"scaling: {{mode: {each}, ")) for each in (before, after))
        data, text = figures(diff(old, new, "-o", "json")), diff(old, new).stdout
        [found] = data["objects"]

        assert (found["before"]["replicas"], found["after"]["replicas"]) == replicas
        assert data["usdPerHour"]["before"] == pytest.approx(replicas[0] * EACH_USD, abs=0.01)
        assert data["usdPerHour"]["after"] == pytest.approx(replicas[1] * EACH_USD, abs=0.01)
        assert ("4 replicas (8 H200) are created, no pod is replaced, 0.00 → 63.30" in text) is (
            created
        )

    def test_a_longer_context_replaces_every_pod_for_one_flag(self, diff):
        [found] = figures(diff(llama(), llama(LONGER), "-o", "json"))["objects"]

        assert found["kind"] == "changed"
        assert found["podsRolled"] == 4
        assert found["causes"] == ["spec.contextLength"]
        assert found["podChanges"] == [
            {
                "field": "spec.containers[vllm].args --max-model-len",
                "before": "8192",
                "after": "16384",
            }
        ]

    def test_what_auto_chooses_of_kv_offload_is_said_with_the_pods_that_it_replaces(self, diff):
        result = diff(with_auto("workingSetTokens: 900000"), with_auto(ENOUGH))
        [found] = figures(diff(with_auto("gib: 300"), with_auto(ENOUGH), "-o", "json"))["objects"]

        changed = [each["field"] for each in found["podChanges"]]
        assert "spec.containers[vllm].args --kv-offloading-size" in changed
        assert found["before"]["kvOffload"].startswith("Auto: off; model.kvOffload.workingSet")
        assert found["after"]["kvOffload"].startswith("Auto: on, 275 GiB a replica; worth it: ")
        assert "- KV offload: Auto: on, 275 GiB a replica; worth it: " in result.stdout

    def test_a_given_token_budget_replaces_every_pod_however_little_it_gains(self, diff):
        given = ('"0.33"}', '"0.33", maxNumBatchedTokens: 6000}')
        [found] = figures(diff(llama(), llama(given), "-o", "json"))["objects"]

        assert found["podsRolled"] == 4
        assert found["causes"] == ["spec.engine.maxNumBatchedTokens"]
        changes = {each["field"]: (each["before"], each["after"]) for each in found["podChanges"]}
        assert changes["spec.containers[vllm].args --max-num-batched-tokens"] == ("8192", "6000")

    def test_pods_in_a_spec_that_had_none_are_the_fields_that_are_given(self, diff):
        template = "  pods: {template: {spec: {priorityClassName: serving}}}\n"
        [found] = figures(diff(llama(), llama(("  hardware:\n", f"{template}  hardware:\n")),
                               "-o", "json"))["objects"]  # fmt: skip

        assert found["causes"] == ["spec.pods.template.spec.priorityClassName"]
        assert [each["field"] for each in found["podChanges"]] == ["spec.priorityClassName"]

    def test_more_demand_adds_replicas_and_replaces_none(self, diff):
        content = figures(diff(llama(), llama(BUSIER), "-o", "json"))
        [found] = content["objects"]

        assert (found["podsRolled"], found["podChanges"]) == (0, [])
        assert (found["before"]["replicas"], found["after"]["replicas"]) == (4, 6)
        assert content["usdPerHour"]["before"] == round(4 * EACH_USD, 2)
        assert content["usdPerHour"]["after"] == round(6 * EACH_USD, 2)
        assert found["after"]["price"]["instance"] == "p5en.48xlarge"
        assert set(found["after"]["latencies"]) == {"TTFT p95", "TPOT p95"}

    def test_an_slo_with_which_the_flags_stay_replaces_no_pod(self, diff):
        [found] = figures(diff(llama(), llama(("p95: 2s", "p95: 2001ms")), "-o", "json"))["objects"]

        assert found["podsRolled"] == 0
        assert [each["field"] for each in found["specChanges"]] == ["spec.slo.timeToFirstToken.p95"]

    def test_the_markdown_says_it_in_a_heading_a_table_and_causes(self, diff):
        text = diff(llama(), llama(LONGER, BUSIER)).stdout

        assert text.startswith(
            "### Tonnage: 1 of 1 ModelDeployment changes, 4 pods are replaced, "
            "63.30 → 94.94 USD per hour\n"
        )
        assert "| serving/llama-70b | changed | **4** | 4 → 6 | 63 | 63.30 → 94.94 |" in text
        assert "prices: AWS us-east-1, on demand, 2026-07; H200 p5en.48xlarge (8 GPUs)" in text
        assert "4 pods are replaced, because of `spec.contextLength`:" in text
        assert "args --max-model-len`: `8192` → `16384`" in text

    def test_nothing_changed_says_so(self, diff):
        result = diff(llama(), llama())

        assert result.exit_code == 0
        assert result.stdout == "### Tonnage: none of 1 ModelDeployment changes\n"

    def test_is_the_same_every_time(self, diff):
        texts = llama(), llama(LONGER)

        assert diff(*texts).stdout == diff(*texts).stdout

    def test_an_object_that_is_new_or_gone_is_told(self, diff):
        other = llama(("name: llama-70b", "name: other"))

        found = figures(diff(llama(), other, "-o", "json"))["objects"]

        assert [(each["name"], each["kind"], each["podsRolled"]) for each in found] == [
            ("serving/llama-70b", "removed", 0),
            ("serving/other", "added", 0),
        ]

    def test_an_empty_old_file_is_one_without_objects(self, diff):
        result = diff("", llama())

        assert result.exit_code == 0
        assert "| serving/llama-70b | added | 0 | - → 4 |" in result.stdout

    def test_a_scale_target_is_never_rolled(self, diff):
        def with_target(*changes):
            text = SCALED
            for old, new in changes:
                text = text.replace(old, new)
            return text + "---\n" + a_deployment()

        [found] = figures(diff(with_target(), with_target(BUSIER), "-o", "json"))["objects"]

        assert found["podsRolled"] == 0
        assert found["after"]["replicas"] > found["before"]["replicas"]

    def test_what_is_written_in_a_manifest_is_no_markdown(self, diff):
        evil = f"{llama()}  pods: {{annotations: {{note: '`@all`'}}}}\n"

        text = diff(llama(), evil).stdout

        assert re.search(r"`` [^\n]*`@all`[^\n]* ``", text)


class TestBudget:
    @pytest.mark.parametrize(("most", "code"), [("94.94", 0), ("94.91", 7)])
    def test_is_kept_to_the_cent(self, diff, most, code):
        result = diff(llama(), llama(BUSIER), "--max-usd-per-hour", most)

        assert result.exit_code == code
        assert ("Over budget" in result.stdout) == (code == 7)

    def test_counts_all_objects_together(self, diff):
        two = llama() + "---\n" + llama(("name: llama-70b", "name: other"))

        assert diff(two, two, "--max-usd-per-hour", "126").exit_code == 7  # 2 * 63.30

    def test_a_class_without_a_price_is_over_any(self, diff):
        # The catalogue has no price for it.
        text = llama(
            ("gpu: H200", "gpu: A40"),
            ("p95: 2s", "p95: 60s"),
            ("maxReplicas: 8", "maxReplicas: 400"),
            ("p95: 50ms", "p95: 500ms"),
            ("weights: fp8", "weights: auto"),
            ("gpusPerReplica: 2", "gpusPerReplica: 4"),
        )

        result = diff("", text, "--max-usd-per-hour", "100000")

        assert result.exit_code == 7
        assert "a price or a plan is missing" in result.stdout


class TestRefused:
    def test_what_cannot_be_served_is_exit_code_2_with_the_reason(self, diff):
        result = diff(llama(), llama(("gpu: H200", "gpu: L4")))

        assert result.exit_code == 2
        assert "**Cannot be served** (DoesNotFit)" in result.stdout
        assert "63.30 → ? USD per hour" in result.stdout

    def test_too_few_replicas_are_exit_code_2(self, diff):
        result = diff(llama(), llama(("maxReplicas: 8", "maxReplicas: 3")))

        assert result.exit_code == 2
        assert "4 replicas are needed, 3 are allowed" in result.stdout

    @pytest.mark.parametrize("arguments", [["one"], ["a", "b", "c"], ["a", "b", "--from-cluster"]])
    def test_the_wrong_number_of_files_is_a_usage_error(self, arguments):
        assert run("diff", *arguments).exit_code == 3

    @pytest.mark.parametrize("broken", ["{", llama() + "  unheardOf: 1\n"])
    @pytest.mark.parametrize("is_old", [True, False])
    def test_a_broken_file_is_named_and_nothing_of_it_looks_removed(self, diff, broken, is_old):
        result = diff(broken, llama()) if is_old else diff(llama(), broken)

        assert result.exit_code == 3
        assert ("old.yaml" if is_old else "new.yaml") in result.stderr
        assert result.stdout == ""


def a_live(text=None, *, replicas=7, **template):
    """The Deployment that runs for a manifest, as the API server holds it."""
    model = parse_model_deployment(yaml.safe_load(text or llama()))
    planned = answer(model, PlanContext(gpus=built_in_gpus()))
    made = deployment(model, planned.sizing, SITE)
    made["metadata"] |= {"uid": "uid", "generation": 1}
    made["spec"]["replicas"] = replicas
    spec = made["spec"]["template"]["spec"]
    spec |= {"restartPolicy": "Always", "schedulerName": "default-scheduler"} | template
    fields = {"f:spec": {"f:template": {"f:spec": {"f:containers": {}}}}}
    made["metadata"]["managedFields"] = [{"manager": "tonnage", "fieldsV1": fields}, *recorded_by()]
    return made


@pytest.fixture
def against(tmp_path):
    """Return a function that compares a file with what a cluster answers."""
    with ExitStack() as stack:
        serve = stack.enter_context(serving(tmp_path))

        def compare(answers, new, *options):
            path = tmp_path / "new.yaml"
            path.write_text(new)
            kubeconfig = serve(answers)
            return run("diff", "--from-cluster", path, "--kubeconfig", kubeconfig, *options)

        yield compare


class TestFromACluster:
    def answers(self, live=None, text=None):
        return {
            OBJECT: (200, yaml.safe_load(text or llama())),
            DEPLOYMENT: (200, live or a_live(text)),
        }

    def test_the_pods_that_run_are_counted(self, against):
        [found] = figures(against(self.answers(), llama(LONGER), "-o", "json"))["objects"]

        assert found["podsRolled"] == 7
        assert [each["field"] for each in found["podChanges"]] == [
            "spec.containers[vllm].args --max-model-len"
        ]

    def test_what_stands_there_is_no_change(self, against):
        assert "none of 1 ModelDeployment changes" in against(self.answers(), llama()).stdout

    def test_the_flags_that_run_are_kept(self, against):
        live = a_live()
        flags = json.loads(live["metadata"]["annotations"]["tonnage.dev/flags"])
        flags["maxNumSeqs"] = 52
        live["metadata"]["annotations"]["tonnage.dev/flags"] = json.dumps(flags)
        [container] = live["spec"]["template"]["spec"]["containers"]
        container["args"][container["args"].index("--max-num-seqs") + 1] = "52"

        [found] = figures(against(self.answers(live), llama(LONGER), "-o", "json"))["objects"]

        assert found["after"]["maxNumSeqs"] == 52
        assert [each["field"] for each in found["podChanges"]] == [
            "spec.containers[vllm].args --max-model-len"
        ]

    @pytest.mark.parametrize(
        ("change", "is_slower"), [(LONGER, True), (("gpu: H200", "gpu: H100"), False)]
    )
    def test_is_planned_as_the_operator_does_where_the_engines_are_the_same(
        self, against, change, is_slower
    ):
        # Steps that take so much longer need more replicas; on another class they are not known.
        learned = {"overheadFactor": 1.2, "bandwidthEfficiency": 0.66, "prefillEfficiency": 0.36}
        calibration = {name: {"planned": value} for name, value in learned.items()}
        model = yaml.safe_load(llama()) | {"status": {"calibration": calibration}}
        answers = self.answers() | {OBJECT: (200, model)}

        [found] = figures(against(answers, llama(change), "-o", "json"))["objects"]

        assert (found["before"]["replicas"] > 4) == is_slower

    def test_what_auto_chose_stays_where_pods_alone_change(self, against):
        text = with_auto(ENOUGH)
        live = a_live(text)
        flags = json.loads(live["metadata"]["annotations"]["tonnage.dev/flags"])
        del flags["hostCache"]
        live["metadata"]["annotations"]["tonnage.dev/flags"] = json.dumps(flags)

        found = figures(against(self.answers(live, text), f"{text}{LABELLED}", "-o", "json"))[
            "objects"
        ]

        assert found[0]["podsRolled"] == 7
        assert found[0]["after"]["kvOffload"].startswith("Auto: off; worth it: ")
        assert "what runs stays" in found[0]["after"]["kvOffload"]

    def test_what_auto_chose_goes_with_pods_that_it_does_not_go_with(self, against):
        text = with_auto(ENOUGH)

        [found] = figures(against(self.answers(None, text), f"{text}{ALLOCATOR}", "-o", "json"))[
            "objects"
        ]

        assert found["after"]["kvOffload"].startswith("Auto: off; model.kvOffload does not go with")
        assert "spec.containers[vllm].args --kv-offloading-size" in [
            each["field"] for each in found["podChanges"]
        ]

    def test_a_scale_target_that_the_cluster_alone_has_is_read_there(self, against):
        target = yaml.safe_load(a_deployment())
        target["metadata"] |= {"labels": {"tonnage.dev/managed": "true"}, "uid": "uid"}
        answers = {
            OBJECT: (200, yaml.safe_load(SCALED)),
            DEPLOYMENT.replace("llama-70b", "my-vllm"): (200, target),
        }

        assert "none of 1 ModelDeployment changes" in against(answers, SCALED).stdout

    def test_roles_that_run_keep_their_splits(self, against):
        topology = ("  engine:", "  topology: {kvLink: 50GB/s}\n  engine:")
        apart = llama(("    gpusPerReplica: 2\n", ""), topology)
        spec = yaml.safe_load(apart)["spec"]
        del spec["topology"]
        answers = {OBJECT: (200, yaml.safe_load(apart))}
        for role in ("prefill", "decode"):
            own = copy.deepcopy(spec)
            own["engine"]["role"] = role
            own["hardware"]["parallelism"] = {"tensor": 4, "data": 1}
            own["slo"] = {"timeToFirstToken": {"p95": "1s"}}
            own["demand"] |= {"cacheTransfer": "20ms"} if role == "decode" else {}
            body = yaml.safe_load(apart) | {"spec": own}
            body["metadata"] = {"name": f"llama-70b-{role}", "namespace": "serving"}
            live = a_live(yaml.safe_dump(body))
            answers |= {
                f"{OBJECT}-{role}": (200, body),
                f"{DEPLOYMENT}-{role}": (200, live),
            }
        found = figures(against(answers, apart, "-o", "json"))["objects"]

        names = ["serving/llama-70b-prefill", "serving/llama-70b-decode"]
        assert [each["name"] for each in found] == names
        assert [each["after"]["gpus"] / each["after"]["replicas"] for each in found] == [4, 4]

    def test_an_object_that_the_cluster_lacks_is_new(self, against):
        [found] = figures(against({}, llama(), "-o", "json"))["objects"]

        assert found["kind"] == "added"

    def test_without_the_right_to_read_deployments_the_specs_are_compared(self, against):
        answers = {
            OBJECT: (200, yaml.safe_load(llama())),
            DEPLOYMENT: (403, {"message": "no"}),
        }

        result = against(answers, llama(LONGER), "-o", "json")

        assert figures(result)["objects"][0]["podsRolled"] == 4
        assert "read from the specs alone" in result.stderr

    def test_a_group_over_nodes_is_compared_with_the_leader_worker_set_that_runs(self, against):
        text = yaml.safe_dump(a_manifest(**R1))
        live = a_groups_body(replicas=2)
        containers = {"f:spec": {"f:containers": {}}}
        fields = {"f:leaderTemplate": containers, "f:workerTemplate": containers}
        entry = live["metadata"]["managedFields"][0]
        entry["fieldsV1"] = {"f:spec": {"f:leaderWorkerTemplate": fields}}
        answers = {
            OBJECT.replace("llama-70b", "r1"): (200, yaml.safe_load(text)),
            GROUPS_SERVED: (200, {"resources": [{"name": "leaderworkersets"}]}),
            f"{GROUPS_SERVED}/namespaces/serving/leaderworkersets/r1": (200, live),
        }
        longer = text.replace("contextLength: 16384", "contextLength: 32768")

        [found] = figures(against(answers, longer, "-o", "json"))["objects"]

        assert "none of 1 ModelDeployment changes" in against(answers, text).stdout
        assert found["podsRolled"] == 2 * 2
        assert {each["field"] for each in found["podChanges"]} == {
            f"{part}.spec.containers[vllm].args --max-model-len"
            for part in ("leaderTemplate", "workerTemplate")
        }

    def test_without_the_right_to_discovery_the_specs_are_compared(self, against):
        answers = {OBJECT: (200, yaml.safe_load(llama())), GROUPS_SERVED: (403, {"message": "no"})}

        result = against(answers, llama(LONGER), "-o", "json")

        assert figures(result)["objects"][0]["podsRolled"] == 4
        assert "no right to ask whether leaderworkersets are served" in result.stderr

    def test_a_discovery_that_fails_is_one_line(self, against):
        answers = {OBJECT: (200, yaml.safe_load(llama())), GROUPS_SERVED: (503, {"message": "no"})}

        result = against(answers, llama(LONGER), "-o", "json")

        assert result.exit_code == NO_CLUSTER
        assert "the API server refused" in result.stderr

    def test_a_scale_target_is_no_leader_worker_set(self, against):
        model = yaml.safe_load(SCALED)
        path = OBJECT.replace("llama-70b", model["metadata"]["name"])
        answers = {path: (200, model), GROUPS_SERVED: (503, {"message": "no"})}

        result = against(answers, SCALED + "---\n" + a_deployment())

        assert "none of 1 ModelDeployment changes" in result.stdout, result.stderr

    def test_a_manifest_without_a_namespace_is_meant_for_that_of_the_context(self, against):
        bare = llama(("  namespace: serving\n", ""))

        assert "none of 1 ModelDeployment changes" in against(self.answers(), bare).stdout
