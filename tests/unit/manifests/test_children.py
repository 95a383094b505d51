"""The objects of one ModelDeployment, as real YAML and as rules that hold for all of them."""

from dataclasses import replace

import kubernetes_validate
import pytest
import yaml

from builders import BF16, FP8
from fleet_builders import SITE, a_model, a_sizing, example
from tonnage.catalog.config.formats.quantization import WEIGHT_FORMATS
from tonnage.manifests.children import (
    NotServableError,
    deployment,
    pod_monitor,
    service,
    spec_digest,
)
from tonnage.manifests.names import labels, selector
from tonnage.manifests.pod import startup_budget_s
from tonnage.sizing.split import Parallelism
from tonnage.units import GB

KUBERNETES = "1.33"
LLAMA = a_model(
    engine={"version": "0.33", "args": ["--enable-auto-tool-choice", "--tool-call-parser=hermes"]},
    pods={
        "nodeSelector": {"pool": "inference"},
        "tolerations": [{"key": "team", "value": "chat", "effect": "NoSchedule"}],
        "modelCacheClaim": "weights",
        "huggingFaceTokenSecret": {"name": "hugging-face"},
        "cpu": "8",
        "memory": "64Gi",
        "priorityClassName": "serving",
        "runtimeClassName": "nvidia",
    },
)
DEEPSEEK = example("deepseek-v3-h200")
BOTH = pytest.mark.parametrize("model", [LLAMA, DEEPSEEK], ids=["llama", "deepseek"])
DRAIN_S = 210
"""Whatever the longest answer takes by today's constants."""
OFFERED = pytest.mark.parametrize("has_pod_monitors", [True, False])


def sized(model):
    """The arithmetic's answer, with one batch size and split whatever its constants are today."""
    sizing = a_sizing(model)
    flags = replace(sizing.flags, max_num_seqs=48, parallelism=Parallelism(tensor=2))
    if model is DEEPSEEK:  # eight API servers, of which each counts tokens for itself
        ranks = Parallelism(data=8)
        flags = replace(
            flags, parallelism=ranks, max_num_queued_reqs=400, max_num_queued_tokens=None
        )
    return replace(sizing, flags=flags)


def objects(model, site=SITE):
    made = deployment(model, sized(model), site, drain_s=DRAIN_S)
    return made, service(model), pod_monitor(model, site)


def template(model, site=SITE):
    return objects(model, site)[0]["spec"]["template"]


def container(model, site=SITE):
    [only] = template(model, site)["spec"]["containers"]
    return only


def keys(value):
    """Every key at every depth."""
    match value:
        case dict():
            return set(value) | {key for each in value.values() for key in keys(each)}
        case list():
            return {key for each in value for key in keys(each)}
        case _:
            return set()


class TestGolden:
    def test_a_dense_model_over_two_gpus_with_everything_that_pods_may_say(self, golden):
        golden("vllm-llama-tp2", *objects(LLAMA))

    def test_a_mixture_of_experts_over_the_ranks_of_a_node(self, golden):
        golden("vllm-deepseek-dp8", *objects(DEEPSEEK))


class TestEveryManifest:
    @BOTH
    @OFFERED
    def test_is_valid_to_the_letter(self, model, has_pod_monitors):
        site = replace(SITE, has_pod_monitors=has_pod_monitors)

        for manifest in objects(model, site)[:2]:
            kubernetes_validate.validate(manifest, KUBERNETES, strict=True)

    @BOTH
    def test_leaves_replicas_to_the_scale_subresource(self, model):
        assert "replicas" not in keys(list(objects(model)))

    @BOTH
    def test_is_the_same_to_the_byte_for_the_same_input(self, model):
        first, second = (yaml.safe_dump_all(objects(model)) for _ in range(2))

        assert first == second

    @BOTH
    def test_shares_no_part_with_another(self, model):
        # A shared dict would show as an anchor, and an edit of one would show in the other.
        assert "&id" not in yaml.safe_dump_all(objects(model))

    @BOTH
    def test_is_owned_by_the_model_deployment_and_does_not_block_its_deletion(self, model):
        for manifest in objects(model):
            [owner] = manifest["metadata"]["ownerReferences"]

            assert (owner["kind"], owner["name"]) == ("ModelDeployment", model.name)
            assert (owner["uid"], owner["controller"]) == (model.uid, True)
            assert owner["blockOwnerDeletion"] is False

    @BOTH
    def test_selects_exactly_what_the_pods_carry(self, model):
        made, reached, scraped = objects(model)

        on_pods = made["spec"]["template"]["metadata"]["labels"]
        assert selector(model.name).items() <= on_pods.items()
        assert made["spec"]["selector"]["matchLabels"] == selector(model.name)
        assert reached["spec"]["selector"] == selector(model.name)
        assert scraped["spec"]["selector"]["matchLabels"] == selector(model.name)


def test_labels_are_a_fresh_dict_each_time():
    labels("a")["more"] = "x"

    assert "more" not in labels("a")


class TestPods:
    @BOTH
    def test_meet_the_restricted_pod_security_standard(self, model):
        pod = template(model)["spec"]
        engine = container(model)

        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] > 0
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert engine["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        }
        assert not keys(pod) & {"hostNetwork", "hostPID", "hostIPC", "hostPath", "hostPort"}
        assert {kind for each in pod["volumes"] for kind in each} <= {
            "name",
            "emptyDir",
            "persistentVolumeClaim",
        }

    @BOTH
    def test_hold_no_credentials_of_the_cluster(self, model):
        pod = template(model)["spec"]

        assert pod["automountServiceAccountToken"] is False
        assert pod["enableServiceLinks"] is False
        assert "serviceAccountName" not in pod

    def test_name_the_secret_and_never_hold_it(self):
        [token] = [each for each in container(LLAMA)["env"] if each["name"] == "HF_TOKEN"]

        assert token["valueFrom"]["secretKeyRef"] == {"name": "hugging-face", "key": "token"}

    @BOTH
    def test_ask_for_the_gpus_of_the_plan(self, model):
        num_gpus = a_sizing(model).flags.parallelism.num_gpus

        assert container(model)["resources"]["limits"] == {"nvidia.com/gpu": str(num_gpus)}

    def test_go_to_nodes_with_the_class_of_gpu(self):
        affinity = template(LLAMA)["spec"]["affinity"]["nodeAffinity"]
        [term] = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        [match] = term["matchExpressions"]

        assert match["key"] == "nvidia.com/gpu.product"
        assert "NVIDIA-H200" in match["values"]

    def test_go_anywhere_when_the_class_has_no_label(self):
        sizing = a_sizing(LLAMA)
        gpu = replace(sizing.request.gpu, product_labels=())
        plain = replace(sizing, request=replace(sizing.request, gpu=gpu))

        assert "affinity" not in deployment(LLAMA, plain, SITE)["spec"]["template"]["spec"]

    def test_are_scraped_by_annotation_where_there_are_no_pod_monitors(self):
        alone = replace(SITE, has_pod_monitors=False)

        assert template(LLAMA, alone)["metadata"]["annotations"]["prometheus.io/scrape"] == "true"
        assert "annotations" not in template(LLAMA)["metadata"]

    def test_leave_the_last_lines_of_their_log_where_they_crash(self):
        [container] = template(LLAMA)["spec"]["containers"]

        assert container["terminationMessagePolicy"] == "FallbackToLogsOnError"

    def test_have_time_to_finish_what_they_answer(self):
        pod = template(LLAMA)["spec"]
        [drain_s] = pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1:]
        arguments = pod["containers"][0]["args"]
        shutdown_s = arguments[arguments.index("--shutdown-timeout") + 1]

        assert pod["terminationGracePeriodSeconds"] > int(drain_s) + int(shutdown_s)

    def test_keep_nothing_without_a_claim(self):
        volumes = {each["name"]: each for each in template(a_model())["spec"]["volumes"]}

        assert volumes["cache"] == {"name": "cache", "emptyDir": {}}


class TestStartup:
    def test_takes_half_an_hour_at_least(self):
        assert startup_budget_s(0) == 1800

    def test_grows_with_the_weights(self):
        # 700 GB at 0.5 GB/s and 5 minutes to compile, twice.
        assert startup_budget_s(700 * GB) == 2 * (1400 + 300)

    @BOTH
    def test_is_what_the_probe_allows_and_less_than_the_rollout_does(self, model):
        probe = container(model)["startupProbe"]
        allowed_s = probe["periodSeconds"] * probe["failureThreshold"]
        sizing = a_sizing(model)
        weights = sizing.shard.weights_bytes * sizing.flags.parallelism.num_gpus

        assert allowed_s >= startup_budget_s(weights)
        assert deployment(model, sizing, SITE)["spec"]["progressDeadlineSeconds"] > allowed_s


@pytest.mark.parametrize(
    ("engine", "image"),
    [
        ({"version": "0.33"}, "vllm/vllm-openai:v0.33.0"),
        ({"version": "0.33.1"}, "vllm/vllm-openai:v0.33.1"),
        ({"image": "mirror.test/vllm:v0.33.0"}, "mirror.test/vllm:v0.33.0"),
        ({"version": "0.33", "image": "mirror.test/vllm@sha256:ab"}, "mirror.test/vllm@sha256:ab"),
    ],
)
def test_the_image_is_the_one_given_or_the_release_of_the_version(engine, image):
    assert container(a_model(engine=engine))["image"] == image


@pytest.mark.parametrize(
    ("interval_s", "written"), [(15, "15s"), (0.5, "500ms"), (1.2, "1200ms"), (3600, "3600s")]
)
def test_the_scrape_interval_is_one_that_prometheus_can_read(interval_s, written):
    site = replace(SITE, scrape_interval_s=interval_s)

    [endpoint] = pod_monitor(a_model(), site)["spec"]["podMetricsEndpoints"]
    assert endpoint["interval"] == written


def test_a_pod_is_scraped_of_so_much_and_no_more():
    spec = pod_monitor(a_model(), SITE)["spec"]

    # A recorded engine of vLLM 0.32 tells 430 samples, of at most 37 labels.
    assert 16 * 430 < spec["sampleLimit"] <= 50_000
    assert 37 < spec["labelLimit"] <= 64


def stored_as(sizing, stored, asked):
    shape = replace(sizing.request.shape, weight_format=stored)
    return replace(sizing, request=replace(sizing.request, shape=shape, weights=asked))


class TestWeights:
    @pytest.mark.parametrize("stored", [BF16, WEIGHT_FORMATS["float16"]], ids=["bf16", "fp16"])
    def test_of_sixteen_bits_are_made_fp8_while_loading(self, stored):
        sizing = stored_as(a_sizing(), stored, FP8)

        arguments = deployment(a_model(), sizing, SITE)["spec"]["template"]["spec"]["containers"][
            0
        ]["args"]
        assert arguments[arguments.index("--quantization") + 1] == "fp8"

    def test_as_stored_need_no_flag(self):
        sizing = stored_as(a_sizing(), FP8, FP8)

        assert "--quantization" not in yaml.safe_dump(deployment(a_model(), sizing, SITE))

    @pytest.mark.parametrize("asked", ["int4", "int8", "nvfp4"])
    def test_that_no_engine_makes_are_refused(self, asked):
        sizing = stored_as(a_sizing(), BF16, WEIGHT_FORMATS[asked])

        with pytest.raises(NotServableError, match=r"name a checkpoint that has .* weights"):
            deployment(a_model(), sizing, SITE)


def test_a_replica_over_several_nodes_is_refused_in_numbers():
    sizing = a_sizing()
    small = replace(sizing.request.gpu, gpus_per_node=1)
    spread = replace(sizing, request=replace(sizing.request, gpu=small))

    with pytest.raises(NotServableError, match=r"needs 2 GPUs, a node of H200 has 1"):
        deployment(a_model(), spread, SITE)


class TestDigest:
    def test_is_of_what_the_template_is_made_from(self):
        assert spec_digest(a_model(contextLength=4096 * 4)) != spec_digest(a_model())

    @pytest.mark.parametrize(
        "changes",
        [
            {"scaling": {"mode": "Paused", "minReplicas": 2, "maxReplicas": 9}},
            {"demand": None},
            {"generation": 7},
            {"uid": "another"},
        ],
    )
    def test_does_not_change_with_what_the_template_does_not_hold(self, changes):
        assert spec_digest(a_model(**changes)) == spec_digest(a_model())
