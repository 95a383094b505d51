"""What the closed set of ``spec.pods`` becomes in a pod template, field by field."""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import kubernetes_validate
import pytest

from fleet_builders import (
    SITE,
    a_deployment_body,
    a_fleet,
    a_manifest,
    a_model,
    a_sizing,
    a_state,
)
from pod_fields import EVERY_POD_FIELD, STORE
from tonnage.api.objects import InvalidSpecError
from tonnage.control.input.memory import Memory
from tonnage.control.tick import tick
from tonnage.manifests.children import deployment, spec_digest
from tonnage.manifests.names import TEMPLATE_ANNOTATION, labels, selector

KUBERNETES = "1.33"


def made(**pods):
    model = a_model(pods=pods) if pods else a_model()
    sizing = a_sizing()  # with one batch size, whatever today's constants say
    pinned = replace(sizing, flags=replace(sizing.flags, max_num_seqs=48))
    return deployment(model, pinned, SITE, drain_s=210)


def template(**pods):
    return made(**pods)["spec"]["template"]


def pod(**pods):
    return template(**pods)["spec"]


def container(**pods):
    [only] = pod(**pods)["containers"]
    return only


def environment(**pods):
    return {each["name"]: each for each in container(**pods)["env"]}


def test_everything_at_once_is_valid_to_the_letter():
    kubernetes_validate.validate(made(**EVERY_POD_FIELD), KUBERNETES, strict=True)


def test_everything_at_once_as_yaml(golden):
    golden("vllm-llama-pods", made(**EVERY_POD_FIELD))


@pytest.mark.parametrize("field", sorted(EVERY_POD_FIELD))
def test_each_field_stands_alone(field):
    kubernetes_validate.validate(made(**{field: EVERY_POD_FIELD[field]}), KUBERNETES, strict=True)


CLAIMED = {"modelCacheClaim": "weights"}
SHARED = {**CLAIMED, "compileCache": "Claim"}


def values_of(**pods):
    return {name: each.get("value", "") for name, each in environment(**pods).items()}


def run_python(tmp_path, variables):
    """Run Python with a claim that has a module which each start imports from the home."""
    folders = {"/cache": tmp_path / "claim", "/tonnage": tmp_path / "pod"}
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    modules = folders["/cache"] / "home/.local/lib" / version / "site-packages"
    modules.mkdir(parents=True)
    (modules / "usercustomize.py").write_text("print('code of the claim')")
    here = {name: re.sub("^/(cache|tonnage)", lambda it: str(folders[it[0]]), value)
            for name, value in variables.items()}  # fmt: skip
    program = Path(sys.base_prefix) / "bin/python3"  # a virtual environment has no folder of a user
    ended = subprocess.run(  # noqa: S603
        [program, "-c", "print('started')"], env=here, capture_output=True, text=True, check=True
    )
    return ended.stdout.splitlines()


class TestAClaimThatOthersWrite:
    def test_is_imported_where_it_is_the_home(self, tmp_path):
        assert run_python(tmp_path, {"HOME": "/cache/home"}) == ["code of the claim", "started"]

    @pytest.mark.parametrize("pods", [CLAIMED, SHARED])
    def test_has_nothing_that_python_imports(self, tmp_path, pods):
        assert run_python(tmp_path, values_of(**pods)) == ["started"]
        assert run_python(tmp_path / "again", {**values_of(**pods), "HOME": "/cache/home"}) == [
            "started"
        ]

    def test_has_the_weights_and_nothing_else(self):
        on_the_claim = {name for name, value in values_of(**CLAIMED).items() if "/cache" in value}

        assert on_the_claim == {"HF_HOME"}
        assert {"name": "tonnage", "emptyDir": {}} in pod(**CLAIMED)["volumes"]

    def test_has_what_is_compiled_where_the_spec_asks_for_it(self):
        own, shared = values_of(**CLAIMED), values_of(**SHARED)

        assert spec_digest(a_model(pods=SHARED)) != spec_digest(a_model(pods=CLAIMED))
        assert (own["VLLM_CACHE_ROOT"], shared["VLLM_CACHE_ROOT"]) == (
            "/tonnage/vllm",
            "/cache/vllm",
        )
        assert {name for name, value in shared.items() if "/cache" in value} == {
            "HF_HOME", "VLLM_CACHE_ROOT", "FLASHINFER_WORKSPACE_BASE", "TRITON_CACHE_DIR",
        }  # fmt: skip

    def test_is_the_home_of_pods_of_before_until_their_spec_changes(self):
        live = a_deployment_body(a_model(pods=CLAIMED))
        live["metadata"]["annotations"][TEMPLATE_ANNOTATION] = "of an earlier version"
        [engine] = live["spec"]["template"]["spec"]["containers"]
        engine["env"] = [{"name": "HOME", "value": "/cache/home"}]
        stays, changes = (
            tick(a_fleet(a_state(a_manifest(pods=CLAIMED, **more), live=live)), Memory()).writes
            for more in ({}, {"contextLength": 16_384, "generation": 2})
        )

        assert [each.template for each in stays if each.template] == []
        [engine] = changes[0].template["spec"]["template"]["spec"]["containers"]
        assert {"name": "HOME", "value": "/tonnage/home"} in engine["env"]

    def test_is_what_a_folder_of_the_pod_is_without_one(self):
        """Templates of before stay as they are: their folder is the pod's own."""
        assert values_of(maxSurge=0)["HOME"] == "/cache/home"
        assert {"name": "cache", "emptyDir": {}} in pod(maxSurge=0)["volumes"]


class TestRolls:
    @pytest.mark.parametrize("field", ["disruptionBudget", "networkPolicy"])
    def test_what_stands_in_an_object_of_its_own_changes_no_template(self, field):
        plain, changed = a_model(), a_model(pods={field: EVERY_POD_FIELD[field]})

        assert template(**{field: EVERY_POD_FIELD[field]}) == template()
        assert spec_digest(changed) == spec_digest(plain)

    @pytest.mark.parametrize("field", ["disruptionBudget", "networkPolicy"])
    def test_nor_beside_other_fields(self, field):
        plain = a_model(pods={"cpu": "8"})

        assert spec_digest(
            a_model(pods={"cpu": "8", field: EVERY_POD_FIELD[field]})
        ) == spec_digest(plain)

    @pytest.mark.parametrize(
        "field",
        sorted(
            EVERY_POD_FIELD.keys()
            - {"compileCache", "disruptionBudget", "maxSurge", "networkPolicy"}
        ),
    )
    def test_every_other_field_changes_both(self, field):
        assert template(**{field: EVERY_POD_FIELD[field]}) != template()
        assert spec_digest(a_model(pods={field: EVERY_POD_FIELD[field]})) != spec_digest(a_model())


class TestReplacing:
    @pytest.mark.parametrize(
        ("pods", "surge", "unavailable"),
        [({}, 1, 0), ({"maxSurge": 1}, 1, 0), ({"maxSurge": 0}, 0, 1)],
    )
    def test_starts_a_pod_before_one_goes_unless_told_otherwise(self, pods, surge, unavailable):
        strategy = made(**pods)["spec"]["strategy"]["rollingUpdate"]

        assert strategy == {"maxSurge": surge, "maxUnavailable": unavailable}

    def test_otherwise_is_written_and_replaces_no_pod(self):
        assert template(maxSurge=0) == template()
        assert spec_digest(a_model(pods={"maxSurge": 0})) != spec_digest(a_model(pods={}))


class TestUser:
    def test_is_2000_unless_somebody_says_otherwise(self):
        security = pod()["securityContext"]

        assert (security["runAsUser"], security["runAsGroup"], security["fsGroup"]) == (2000,) * 3

    def test_is_the_one_given_and_never_root(self):
        security = pod(user={"id": 1_000_680_000, "group": 0})["securityContext"]

        assert (security["runAsUser"], security["runAsGroup"], security["fsGroup"]) == (
            1_000_680_000, 0, 0,
        )  # fmt: skip
        assert security["runAsNonRoot"] is True

    def test_is_left_to_the_platform_where_nothing_is_given(self):
        security = pod(user={})["securityContext"]

        assert security == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}

    @pytest.mark.parametrize("user", [None, {}, {"id": 5000}])
    def test_that_the_image_need_not_know_has_a_name(self, user):
        given = environment(user=user)

        assert (given["USER"]["value"], given["LOGNAME"]["value"]) == ("vllm", "vllm")

    def test_may_have_another_name_for_logging_in(self):
        env = pod(env=[{"name": "LOGNAME", "secretKeyRef": STORE}])["containers"][0]["env"]

        assert [each for each in env if each["name"] == "LOGNAME"] == [
            {"name": "LOGNAME", "valueFrom": {"secretKeyRef": STORE}}
        ]


class TestNodes:
    def test_of_the_users_choice_stand_in_place_of_the_product_label(self):
        affinity = pod(gpuNodes=EVERY_POD_FIELD["gpuNodes"])["affinity"]["nodeAffinity"]
        [term] = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]

        assert term["matchExpressions"] == [
            {
                "key": "cloud.google.com/gke-accelerator",
                "operator": "In",
                "values": ["nvidia-h200-141gb"],
            },
            {"key": "cloud.google.com/gke-spot", "operator": "DoesNotExist"},
        ]

    def test_may_be_any_where_there_is_one_kind(self):
        assert "affinity" not in pod(gpuNodes=[])

    def test_are_spread_over_by_the_pods_of_one_revision(self):
        [constraint] = pod(
            topologySpreadConstraints=[
                {"topologyKey": "zone", "maxSkew": 2, "whenUnsatisfiable": "DoNotSchedule"}
            ]
        )["topologySpreadConstraints"]

        assert constraint == {
            "maxSkew": 2,
            "topologyKey": "zone",
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": selector("llama")},
            "matchLabelKeys": ["pod-template-hash"],
        }


class TestSecrets:
    def test_are_named_and_never_held(self):
        from_secret = environment(
            env=[{"name": "AWS_ACCESS_KEY_ID", "secretKeyRef": STORE}],
            apiKeySecret={"name": "clients", "key": "api-key"},
        )

        assert from_secret["AWS_ACCESS_KEY_ID"]["valueFrom"] == {"secretKeyRef": STORE}
        assert from_secret["VLLM_API_KEY"]["valueFrom"] == {
            "secretKeyRef": {"name": "clients", "key": "api-key"}
        }
        assert "--api-key" not in container(apiKeySecret=EVERY_POD_FIELD["apiKeySecret"])["args"]

    @pytest.mark.parametrize("name", ["LDAP_PASSWORD", "HF_ENDPOINT", "HTTPS_PROXY", "NCCL_DEBUG"])
    def test_may_be_any_variable_that_decides_nothing_of_ours(self, name):
        assert name in environment(env=[{"name": name, "secretKeyRef": STORE}])

    def test_leave_health_and_metrics_without_a_key(self):
        # The engine asks for its key under /v1 only: probes and scrapes bring none.
        probe = container(apiKeySecret=EVERY_POD_FIELD["apiKeySecret"])["readinessProbe"]["httpGet"]

        assert probe == {"path": "/health", "port": "http"}

    def test_are_no_credentials_of_the_cluster_whatever_the_account(self):
        with_account = pod(serviceAccountName="model-reader")

        assert with_account["serviceAccountName"] == "model-reader"
        assert with_account["serviceAccount"] == "model-reader"  # or it stays when the other goes
        assert not {"serviceAccount", "serviceAccountName"} & pod().keys()
        assert with_account["automountServiceAccountToken"] is False


class TestLabels:
    def test_are_added_to_ours_and_the_selector_stays(self):
        changed = made(labels={"inference-pool": "chat"})

        on_pods = changed["spec"]["template"]["metadata"]["labels"]
        assert on_pods == labels("llama") | {"inference-pool": "chat"}
        assert changed["spec"]["selector"] == made()["spec"]["selector"]
        assert changed["metadata"]["labels"] == labels("llama")

    @pytest.mark.parametrize("name", labels("llama"))
    def test_of_ours_cannot_be_taken(self, name):
        with pytest.raises(InvalidSpecError, match=f"label {name} is reserved and must not be set"):
            a_model(pods={"labels": {name: "mine"}})


def test_limits_and_requests_stand_where_they_belong():
    assert container(**EVERY_POD_FIELD)["resources"] == {
        "limits": {
            "nvidia.com/gpu": "2",
            "cpu": "16",
            "memory": "96Gi",
            "ephemeral-storage": "40Gi",
        },
        "requests": {"cpu": "8", "memory": "64Gi", "ephemeral-storage": "20Gi"},
    }


def test_a_claim_that_is_large_need_not_be_walked_through():
    security = pod(fsGroupChangePolicy="OnRootMismatch")["securityContext"]

    assert security["fsGroupChangePolicy"] == "OnRootMismatch"
    assert "fsGroupChangePolicy" not in pod()["securityContext"]
