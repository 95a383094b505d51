"""The images and the ServiceAccounts that an administrator lets specs name."""

import pytest
from pydantic import ValidationError

from fleet_builders import (
    a_deployment_body,
    a_fleet,
    a_manifest,
    a_model,
    a_sizing,
    a_state,
    assessed,
)
from pod_templates import a_container, sidecar
from tonnage.control.report.conditions import conditions
from tonnage.control.report.status import report
from tonnage.control.size.allowed import is_allowed
from tonnage.control.write.writes import writes_for
from tonnage.fleet.references import parse_manifest
from tonnage.fleet.views import model_view
from tonnage.settings import Settings

DIGEST = f"sha256:{'0' * 64}"
MINE = {"engine": {"version": "0.33", "image": "registry.test/mine/vllm:v0.33.0"}}
REMOTE = {"engine": {"version": "0.33", "args": ["--trust-remote-code"]}}
READER = {"pods": {"serviceAccountName": "model-reader"}}


class TestAnImage:
    @pytest.mark.parametrize(
        ("image", "prefix"),
        [
            ("vllm/vllm-openai", "vllm/vllm-openai"),
            ("vllm/vllm-openai:v0.33.0", "vllm/vllm-openai"),
            (f"vllm/vllm-openai@{DIGEST}", "vllm/vllm-openai"),
            (f"vllm/vllm-openai:v0.33.0@{DIGEST}", "vllm/vllm-openai"),
            ("vllm/vllm-openai:v0.33.0", "vllm"),
            ("docker.io/vllm/vllm-openai:v0.33.0", "vllm/vllm-openai"),
            ("index.docker.io/vllm/vllm-openai:v0.33.0", "vllm/vllm-openai"),
            ("vllm/vllm-openai:v0.33.0", "docker.io/vllm"),
            ("engine:v0.33.0", "library"),
            ("busybox:1", "busybox"),
            (f"busybox@{DIGEST}", "busybox"),
            ("busybox/any:1", "busybox"),
            ("docker.io/library/busybox:1", "busybox"),
            ("engine:v0.33.0", "docker.io"),
            ("docker.io/engine:v0.33.0", "library/engine"),
            ("registry.test/ml/vllm:v0.33.0", "registry.test"),
            ("registry.test/ml/vllm:v0.33.0", "registry.test/ml"),
            ("registry.test:5000/ml/vllm:v0.33.0", "registry.test:5000"),
            ("registry:5000/ml/vllm:v0.33.0", "registry:5000/ml/vllm"),
            ("localhost/vllm:v0.33.0", "localhost"),
        ],
    )
    def test_is_allowed_below_a_repository_that_is(self, image, prefix):
        assert is_allowed(image, ("elsewhere.test", prefix))

    @pytest.mark.parametrize(
        ("image", "prefix"),
        [
            ("vllm/vllm-openai-mine:v0.33.0", "vllm/vllm-openai"),
            ("vllm/vllm:v0.33.0", "vllm/vllm-openai"),
            ("vllm-openai:v0.33.0", "vllm/vllm-openai"),
            ("registry.test/vllm/vllm-openai:v0.33.0", "vllm/vllm-openai"),
            ("registry.test/ml:v0.33.0", "registry.test/ml/vllm"),
            ("registry.test.evil.test/ml/vllm:v0.33.0", "registry.test"),
            ("registry.test:5000/ml/vllm:v0.33.0", "registry.test"),
            ("registry.test/ml/vllm:v0.33.0", "registry.test:5000"),
            ("evil/registry.test/ml/vllm:v0.33.0", "registry.test"),
            ("registry.test:v0.33.0", "registry.test"),
            (f"evil/engine@{DIGEST}", "vllm"),
            ("vllmevil/engine:v0.33.0", "vllm"),
            ("busyboxevil", "busybox"),
            ("evil/busybox", "busybox"),
            ("busybox.evil.test/busybox", "busybox"),
            ("busybox:5000/busybox", "busybox"),
            ("registry.test/library/busybox", "busybox"),
            ("busybox/evil", "docker.io/library/busybox"),
        ],
    )
    def test_is_not_allowed_for_a_name_that_only_looks_alike(self, image, prefix):
        assert not is_allowed(image, (prefix,))

    def test_is_not_allowed_where_nothing_is_listed(self):
        assert not is_allowed("vllm/vllm-openai:v0.33.0", ())

    @pytest.mark.parametrize("prefix", ["", "*", "vllm/", "/vllm", "vllm/engine:v1", "a@b", "A/b"])
    def test_is_listed_by_its_repository_alone(self, prefix):
        with pytest.raises(ValidationError, match="engineImages"):
            Settings(prometheusUrl="http://prometheus.test", engineImages=[prefix])


def refused(spec, **settings):
    """(writes, {condition: (status, reason)}, message) of an object of which nothing runs."""
    state = a_state(a_manifest(**spec), replicas=None)
    fleet = a_fleet(state, settings=settings)
    found = assessed(state, fleet=fleet)
    told = {each.type: each for each in conditions(found, fleet, now="2026-01-02T00:00:00Z")}
    return writes_for(found, report(found, fleet), fleet)[0], told["PlanValid"]


class TestASpecThatNamesWhatIsNotAllowed:
    @pytest.mark.parametrize(
        ("spec", "settings", "reason", "message"),
        [
            (
                MINE,
                {},
                "ImageNotAllowed",
                "engine.image registry.test/mine/vllm:v0.33.0: the operator's "
                "settings.engineImages allows vllm/vllm-openai",
            ),
            (
                {},
                {"engine_images": ("registry.test",)},
                "ImageNotAllowed",
                "engine.version asks for the image vllm/vllm-openai:v0.33.0: the operator's "
                "settings.engineImages allows registry.test",
            ),
            (
                READER,
                {},
                "ServiceAccountNotAllowed",
                "serviceAccountName of pods model-reader: the operator's "
                "settings.serviceAccountNames allows none",
            ),
            (
                {"pods": {"template": {"spec": {"serviceAccountName": "model-reader"}}}},
                {"pod_templates": True},
                "ServiceAccountNotAllowed",
                "serviceAccountName of pods model-reader: the operator's "
                "settings.serviceAccountNames allows none",
            ),
            (
                {"pods": {"template": {}}},
                {},
                "TemplateNotAllowed",
                "pods.template: the operator's settings.podTemplates is false",
            ),
            (
                {"pods": {"env": [{"name": "CC", "secretKeyRef": {"name": "s", "key": "k"}}]}},
                {},
                "TemplateNotAllowed",
                "pods.env: the operator's settings.podTemplates is false",
            ),
            *(
                (
                    {"engine": {"version": "0.33", "args": ["--seed=1", argument]}},
                    {},
                    "RemoteCodeNotAllowed",
                    "engine.args --trust-remote-code: the operator's settings.trustRemoteCode is "
                    "false",
                )
                for argument in ("--trust-remote-code", "--trust-remote-code=true")
            ),
            (
                {"pods": {"template": sidecar()}},
                {"pod_templates": True, "engine_images": ("vllm/vllm-openai", "registry.test")},
                "ImageNotAllowed",
                "pods.template.spec.containers[0].image registry.test/side:1: the operator's "
                "settings.sidecarImages allows none",
            ),
            (
                {"pods": {"template": {"spec": {"initContainers": [a_container()]}}}},
                {"pod_templates": True, "sidecar_images": ("registry.test/other",)},
                "ImageNotAllowed",
                "pods.template.spec.initContainers[0].image registry.test/side:1: the operator's "
                "settings.sidecarImages allows registry.test/other",
            ),
        ],
    )
    def test_is_refused_by_field_and_setting_and_nothing_is_made(
        self, spec, settings, reason, message
    ):
        writes, told = refused(spec, **settings)

        assert (told.status, told.reason, told.message) == ("False", reason, message)
        assert (writes.template, writes.check_children, writes.scale) == (None, False, None)

    @pytest.mark.parametrize(
        ("spec", "settings"),
        [
            (MINE, {"engine_images": ("registry.test/mine",)}),
            (READER, {"service_account_names": ("model-reader",)}),
            ({"pods": {"serviceAccountName": "default"}}, {}),
            (REMOTE, {"trust_remote_code": True}),
            (
                {"pods": {"template": sidecar()}},
                {"pod_templates": True, "sidecar_images": ("registry.test/side",)},
            ),
        ],
    )
    def test_is_carried_out_where_the_settings_list_it(self, spec, settings):
        writes, told = refused(spec, **settings)

        assert told.status == "True"
        assert writes.template


MISTAKEN = {"pods": {"template": {"spec": {"hostNetwork": True}}}}
"""What an API server without our policies stores."""


@pytest.mark.parametrize(
    ("ran", "spec", "reason"),
    [
        (MINE, MINE, "ImageNotAllowed"),
        (READER, READER, "ServiceAccountNotAllowed"),
        (REMOTE, REMOTE, "RemoteCodeNotAllowed"),
        ({}, MISTAKEN, "InvalidSpec"),
        ({"pods": {"template": sidecar()}}, MISTAKEN, "InvalidSpec"),
    ],
)
def test_what_ran_before_its_spec_was_refused_is_scaled_on(ran, spec, reason):
    live = a_deployment_body(a_model(**ran), sizing=a_sizing(), replicas=2)
    scaling = {"scaling": {"minReplicas": 1, "maxReplicas": 8}}
    model = parse_manifest(model_view(a_manifest(**spec, **scaling)).manifest)
    state = a_state(a_manifest(**ran), model=model, live=live, load=2.3, replicas=2)
    found = assessed(state)
    told = {each.type: each for each in conditions(found, a_fleet(state), now="2026-01-02")}
    writes = writes_for(found, report(found, a_fleet(state)), a_fleet(state))[0]

    assert (told["PlanValid"].status, told["PlanValid"].reason) == ("False", reason)
    assert told["Ready"].status == ("True" if ran == spec else "False")
    assert told["ScalingActive"].reason == "ScalingWhatRuns"
    assert (writes.template, writes.check_children) == (None, False)
    assert (writes.scale.seen, writes.scale.replicas) == (2, 3)
