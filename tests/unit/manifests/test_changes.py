"""Which fields of a pod template roll pods: what server-side apply would change, and no more."""

import copy
import json

import pytest

from fleet_builders import SITE, a_model, a_sizing
from tonnage.manifests.changes import Change, template_changes
from tonnage.manifests.children import deployment, running_model
from tonnage.manifests.names import SPEC_ANNOTATION

OWNED = {
    "f:metadata": {"f:labels": {"f:app.kubernetes.io/name": {}}},
    "f:spec": {
        "f:containers": {
            'k:{"name":"vllm"}': {
                ".": {},
                "f:args": {},
                "f:env": {'k:{"name":"HOME"}': {".": {}, "f:name": {}, "f:value": {}}},
                "f:name": {},
                "f:ports": {
                    'k:{"containerPort":8000,"protocol":"TCP"}': {".": {}, "f:name": {}},
                },
            }
        },
        "f:nodeSelector": {},
        "f:priorityClassName": {},
        "f:volumes": {'k:{"name":"shm"}': {".": {}, "f:emptyDir": {"f:sizeLimit": {}}}},
    },
}
"""As the API server writes it down."""
ARGS = ["org/model", "--max-num-seqs", "53", "--enable-x", "--seed=7"]


def a_template(args=ARGS, **spec):
    container = {
        "name": "vllm",
        "args": list(args),
        "env": [{"name": "HOME", "value": "/cache"}],
        "ports": [{"name": "http", "containerPort": 8000}],
    }
    shm = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}}
    return {
        "metadata": {"labels": {"app.kubernetes.io/name": "vllm"}},
        "spec": {"containers": [container], "volumes": [shm]} | spec,
    }


def as_stored(template):
    """The template with what the API server and others add."""
    stored = copy.deepcopy(template)
    stored["metadata"]["annotations"] = {"kubectl.kubernetes.io/restartedAt": "now"}
    stored["spec"] |= {"restartPolicy": "Always", "dnsPolicy": "ClusterFirst"}
    [container] = stored["spec"]["containers"]
    container["env"].append({"name": "SOMEBODYS", "value": "own"})
    container["ports"][0]["protocol"] = "TCP"
    container["imagePullPolicy"] = "IfNotPresent"
    stored["spec"]["volumes"][0]["emptyDir"]["sizeLimit"] = "8192Mi"
    return stored


def changed(wanted, live=None, owned=OWNED):
    return [
        str(each) for each in template_changes(live or as_stored(a_template()), wanted, owned=owned)
    ]


def test_defaults_of_the_api_server_and_fields_of_others_are_no_change():
    assert changed(a_template()) == []


def test_a_flag_is_told_with_both_values():
    wanted = a_template(["org/model", "--max-num-seqs", "64", "--enable-x", "--seed=7"])

    assert changed(wanted) == ["spec.containers[vllm].args --max-num-seqs 53 -> 64"]


def test_flags_that_come_and_go_are_told_apart():
    wanted = a_template(["org/other", "--max-num-seqs", "53", "--seed=7", "--dtype", "float16"])

    assert changed(wanted) == [
        "spec.containers[vllm].args --dtype float16 is new",
        "spec.containers[vllm].args --enable-x  goes",
        "spec.containers[vllm].args MODEL org/model -> org/other",
    ]


def test_another_order_of_flags_rolls_pods_as_well():
    assert (
        len(changed(a_template(["org/model", "--seed=7", "--enable-x", "--max-num-seqs", "53"])))
        == 1
    )


@pytest.mark.parametrize("amount", ["8Gi", "8192Mi"])
def test_an_amount_in_another_form_is_the_same(amount):
    shm = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": amount}}

    assert changed(a_template(volumes=[shm])) == []


def test_another_amount_is_a_change():
    shm = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "9Gi"}}

    assert changed(a_template(volumes=[shm])) == [
        "spec.volumes[shm].emptyDir.sizeLimit 8192Mi -> 9Gi"
    ]


def test_what_we_set_and_set_no_more_goes():
    live = as_stored(a_template(nodeSelector={"pool": "a", "zone": "b"}, priorityClassName="high"))

    assert changed(a_template(nodeSelector={"pool": "a"}), live) == [
        "spec.nodeSelector.zone b goes",
        "spec.priorityClassName high goes",
    ]


def test_a_variable_of_ours_goes_and_that_of_another_stays():
    wanted = a_template()
    wanted["spec"]["containers"][0]["env"] = [{"name": "HF_HOME", "value": "/x"}]

    assert changed(wanted) == [
        'spec.containers[vllm].env[HF_HOME] {"name": "HF_HOME", "value": "/x"} is new',
        "spec.containers[vllm].env[HOME] there goes",
    ]


def test_where_nothing_is_ours_nothing_goes():
    live = as_stored(a_template(priorityClassName="high"))

    assert changed(a_template(), live, owned=None) == []


def test_between_two_of_our_own_everything_that_differs_counts():
    before, after = a_template(priorityClassName="high"), a_template(runtimeClassName="nvidia")

    assert template_changes(before, after) == (
        Change(field="spec.priorityClassName", before="high", after=None),
        Change(field="spec.runtimeClassName", before=None, after="nvidia"),
    )


def test_a_longer_context_rolls_pods_for_one_flag_and_more_users_for_none():
    longer, busier = a_model(contextLength=16_384), a_model(scaling={"maxReplicas": 9})
    before, after, same = (
        deployment(model, a_sizing(), SITE, drain_s=60)["spec"]["template"]
        for model in (a_model(), longer, busier)
    )

    assert [str(each) for each in template_changes(before, after)] == [
        "spec.containers[vllm].args --max-model-len 8192 -> 16384"
    ]
    assert template_changes(before, same) == ()


class TestWhatRuns:
    def test_is_read_back_from_what_was_recorded_with_todays_bounds(self):
        made = deployment(a_model(), a_sizing(), SITE)
        recorded = made["metadata"]["annotations"][SPEC_ANNOTATION]
        today = a_model(
            contextLength=16_384,
            slo={"timeToFirstToken": {"p95": "1s"}},
            scaling={"minReplicas": 2, "maxReplicas": 9},
        )

        running = running_model(today, recorded)

        assert running.spec.context_length == 8192
        assert running.spec.slo.to_dict() == {"timeToFirstToken": {"p95": "1s"}}
        assert running.spec.scaling.max_replicas == 9
        assert (running.name, running.uid) == (today.name, today.uid)

    def test_is_read_without_a_demand_that_is_too_long_for_it(self):
        made = deployment(a_model(), a_sizing(), SITE)
        recorded = made["metadata"]["annotations"][SPEC_ANNOTATION]
        demand = {"promptTokens": {"mean": 9000}, "outputTokens": {"mean": 1000}}
        today = a_model(contextLength=32_768, demand={"requestsPerSecond": 4, **demand})

        running = running_model(today, recorded)

        assert running.spec.context_length == 8192
        assert running.spec.demand is None

    @pytest.mark.parametrize("recorded", [None, "", "[]", "{", json.dumps({"model": 7})])
    def test_is_unknown_where_nothing_sensible_is_recorded(self, recorded):
        assert running_model(a_model(), recorded) is None


def test_the_value_of_a_flag_that_is_a_secret_is_not_told():
    before, after = a_template([*ARGS, "--api-key", "sk-one"]), a_template([*ARGS])
    other = a_template([*ARGS, "--api-key", "sk-two"])

    assert template_changes(before, after) == (
        Change(field="spec.containers[vllm].args --api-key", before="[redacted]", after=None),
    )
    assert template_changes(before, other) == (
        Change(
            field="spec.containers[vllm].args --api-key", before="[redacted]", after="[redacted]"
        ),
    )
