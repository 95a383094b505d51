"""What others made of a pod template: said as long as it stands, whoever did it and however."""

import json
from dataclasses import replace

import pytest

from fleet_builders import (
    a_deployment_body,
    a_fleet,
    a_manifest,
    a_model,
    a_state,
    managed_by,
    recorded_by,
)
from tonnage.control.input.memory import Memory
from tonnage.control.tick import tick
from tonnage.manifests.changes import KEYS
from tonnage.manifests.names import SPEC_ANNOTATION, TEMPLATE_ANNOTATION


def container(body):
    return body["spec"]["template"]["spec"]["containers"][0]


def without_probe(body):
    del container(body)["readinessProbe"]


def with_another_image(body):
    container(body)["image"] = "example.test/other:1"
    body["metadata"]["managedFields"] += managed_by("kubectl-edit", "f:template")


def with_an_annotation(body):
    body["spec"]["template"]["metadata"]["annotations"] = {"injected": "yes"}


def by_another_version(body):
    body["metadata"]["annotations"][TEMPLATE_ANNOTATION] = "0" * 16
    without_probe(body)


def by_a_release_without_a_command(body):
    """As templates were before a 16-bit cache was written as auto."""
    engine = container(body)
    del engine["command"]
    args = engine["args"]
    del args[args.index("--dtype") : args.index("--dtype") + 2]
    args[args.index("--kv-cache-dtype") + 1] = "bfloat16"
    engine["env"] = [each for each in engine["env"] if each["name"] not in {"USER", "LOGNAME"}]
    body["metadata"]["annotations"][TEMPLATE_ANNOTATION] = "ea9755ee4f579013"


def untouched(body):
    pass


def with_field_manager_tonnage(body):
    container(body)["image"] = "example.test/other:1"
    [fields] = managed_by("tonnage", "f:template")
    body["metadata"]["managedFields"].append(fields | {"operation": "Update"})


def with_few_slots(body):
    """As a webhook sets it, or who applies under our name."""
    arguments = container(body)["args"]
    arguments[arguments.index("--max-num-seqs") + 1] = "7"


def fields_of(value, name=""):
    """As the API server writes down who set a value."""
    if isinstance(value, dict):
        return {f"f:{key}": fields_of(below, key) for key, below in value.items()}
    if not isinstance(value, list) or name not in KEYS:
        return {}
    keys = [{key: each.get(key, "TCP") for key in KEYS[name]} for each in value]
    return {
        "k:" + json.dumps(key, separators=(",", ":")): {".": {}, **fields_of(each)}
        for key, each in zip(keys, value, strict=True)
    }


def ours():
    """The entry of what we applied."""
    spec = a_deployment_body()["spec"]["template"]["spec"]
    return an_entry("tonnage", fields_of(spec), operation="Apply")


def an_entry(manager, fields, operation="Update"):
    template = {"f:spec": {"f:template": {"f:spec": fields}}}
    return {"manager": manager, "operation": operation, "fieldsV1": template}


def as_stored(body):
    """With what the API server fills in, which belongs to nobody."""
    spec = body["spec"]["template"]["spec"]
    spec |= {"restartPolicy": "Always", "dnsPolicy": "ClusterFirst"}
    spec["schedulerName"] = "default-scheduler"
    container(body)["imagePullPolicy"] = "IfNotPresent"
    container(body)["terminationMessagePath"] = "/dev/termination-log"
    container(body)["ports"][0]["protocol"] = "TCP"
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        container(body)[probe]["successThreshold"] = 1
        container(body)[probe]["httpGet"]["scheme"] = "HTTP"
    body["metadata"]["managedFields"] = [ours(), *recorded_by()]


def with_a_miner(body):
    as_stored(body)
    spec = body["spec"]["template"]["spec"]
    spec["hostNetwork"] = True
    spec["containers"].append({"name": "miner", "image": "example.test/miner:1"})
    container(body)["env"].append({"name": "LD_PRELOAD", "value": "/evil.so"})
    fields = {
        "f:hostNetwork": {},
        "f:containers": {
            'k:{"name":"miner"}': {".": {}, "f:image": {}, "f:name": {}},
            'k:{"name":"vllm"}': {"f:env": {'k:{"name":"LD_PRELOAD"}': {".": {}, "f:name": {}}}},
        },
    }
    body["metadata"]["managedFields"].append(an_entry("mallory", fields))


def with_a_miner_of_nobody(body):
    with_a_miner(body)
    body["metadata"]["managedFields"] = recorded_by()


def by_two(body):
    """One adds what is harmless, another takes a probe away."""
    as_stored(body)
    body["spec"]["template"]["spec"]["hostAliases"] = [{"ip": "10.0.0.9", "hostnames": ["a"]}]
    fields = {"f:hostAliases": {'k:{"ip":"10.0.0.9"}': {".": {}, "f:hostnames": {}}}}
    body["metadata"]["managedFields"].append(an_entry("istio", fields))
    del container(body)["livenessProbe"]


def outcome_of(change=untouched, *, manifest=None, memory=None, **spec):
    body = a_deployment_body()
    change(body)
    state = a_state(manifest or a_manifest(**spec), live=body)
    return tick(a_fleet(state), memory or Memory())


def told(*arguments, **changes):
    """(the condition, the memory afterwards)."""
    outcome = outcome_of(*arguments, **changes)
    conditions = outcome.memory.objects["uid-of-llama"].reported.conditions
    return conditions.get("Drifted"), outcome.memory


def template_written(*arguments, **changes):
    [writes] = outcome_of(*arguments, **changes).writes or [None]
    return writes and writes.template


def in_mode(mode, **spec):
    return a_manifest(scaling={"mode": mode, "minReplicas": 1, "maxReplicas": 8}, **spec)


@pytest.mark.parametrize(
    ("change", "status", "reason"),
    [
        (untouched, "False", "AsWritten"),
        (as_stored, "False", "AsWritten"),
        (with_an_annotation, "False", "AsWritten"),
        (without_probe, "True", "TemplateEdited"),
        (with_another_image, "True", "TemplateEdited"),
        (with_field_manager_tonnage, "True", "TemplateEdited"),
        (with_a_miner, "True", "TemplateEdited"),
        (with_a_miner_of_nobody, "True", "TemplateEdited"),
        (by_another_version, "Unknown", "UnknownBaseline"),
        (by_a_release_without_a_command, "Unknown", "UnknownBaseline"),
    ],
)
def test_is_what_differs_of_what_we_wrote(change, status, reason):
    condition, _ = told(change)

    assert (condition.status, condition.reason) == (status, reason)


def test_names_the_field_both_values_and_who():
    condition, _ = told(with_another_image)

    image = container(a_deployment_body())["image"]
    assert condition.message == (
        "kubectl-edit wrote containers[vllm].image example.test/other:1, ours: " + image
    ).replace("containers", "spec.containers")


def test_names_what_was_taken_away():
    condition, _ = told(without_probe)

    assert condition.message.startswith("somebody removed spec.containers[vllm].readinessProbe")


def test_names_nobody_who_only_used_our_name():
    condition, _ = told(with_field_manager_tonnage)

    assert condition.message.startswith("somebody as tonnage wrote spec.containers[vllm].image")


def test_names_what_was_added_and_by_whom():
    condition, _ = told(with_a_miner)

    assert condition.message == (
        "mallory added spec.containers[miner], spec.containers[vllm].env[LD_PRELOAD], "
        "spec.hostNetwork true"
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("dnsConfig", {"nameservers": ["203.0.113.7"]}),
        ("dnsPolicy", "None"),
        ("hostAliases", [{"ip": "203.0.113.7", "hostnames": ["models.test"]}]),
        ("hostUsers", False),
        ("priorityClassName", "system-node-critical"),
        ("schedulerName", "theirs"),
    ],
)
def test_names_what_no_api_server_fills_in_though_nobody_owns_it(field, value):
    def with_it(body):
        as_stored(body)
        body["spec"]["template"]["spec"][field] = value

    condition, _ = told(with_it)

    assert condition.status == "True"
    assert f"somebody added spec.{field}" in condition.message


def test_names_for_each_field_only_who_wrote_that():
    condition, _ = told(by_two)

    assert condition.message.startswith("somebody removed spec.containers[vllm].livenessProbe")
    assert condition.message.endswith("; istio added spec.hostAliases")


def test_lasts_over_a_restart_and_ends_with_the_edit():
    first, memory = told(without_probe)
    again, _ = told(without_probe)
    after, _ = told(untouched, memory=memory)

    assert [each.status for each in (first, again, after)] == ["True", "True", "False"]


def test_a_template_of_an_earlier_release_stays_until_the_spec_changes():
    change = by_a_release_without_a_command

    assert template_written(change) is None
    made = template_written(change, manifest=a_manifest(**LONGER))
    [engine] = made["spec"]["template"]["spec"]["containers"]
    assert engine["command"][-2:] == ["vllm", "serve"]
    assert engine["args"][engine["args"].index("--kv-cache-dtype") + 1] == "auto"


LONGER = {"contextLength": 16_384, "generation": 2}
REFUSED = {"slo": {"timeToFirstToken": {"p95": "1ms"}}, "generation": 2}


class TestWhatStandsForAnotherSpec:
    """It is judged by the spec that it was made from, whatever becomes of the present one."""

    @pytest.mark.parametrize(
        ("change", "status"), [(untouched, "False"), (with_another_image, "True")]
    )
    @pytest.mark.parametrize(
        "manifest",
        [a_manifest(**LONGER), a_manifest(**REFUSED), in_mode("Paused", **LONGER)],
        ids=["due", "refused", "paused"],
    )
    def test_is_judged(self, manifest, change, status):
        condition, _ = told(change, manifest=manifest)

        assert condition.status == status

    def test_is_told_anew_after_it_was_refused(self):
        _, memory = told()
        condition, memory = told(with_another_image, manifest=a_manifest(**REFUSED), memory=memory)

        assert (
            memory.objects["uid-of-llama"].reported.conditions["PlanValid"].reason
            == "SLOInfeasible"
        )
        assert condition.status == "True"

    def test_is_not_judged_where_nobody_wrote_down_what_it_was_made_from(self):
        def nameless(body):
            del body["metadata"]["annotations"][SPEC_ANNOTATION]

        condition, _ = told(nameless, manifest=a_manifest(**LONGER))

        assert (condition.status, condition.reason) == ("Unknown", "UnknownBaseline")


class TestWhatIsUndone:
    """As soon as it is seen, by a process that has just begun too."""

    @pytest.mark.parametrize(
        "change",
        [without_probe, with_another_image, with_field_manager_tonnage, with_few_slots, by_two],
    )
    def test_is_what_we_wrote_and_another_made_something_else_of(self, change):
        written = template_written(change)

        assert written["spec"]["template"] == a_deployment_body()["spec"]["template"]

    def test_is_an_edit_that_could_not_be_judged_at_first(self):
        body = a_deployment_body()
        with_another_image(body)
        fleet = replace(a_fleet(a_state(a_manifest(), live=body)), gpus={})
        first = tick(fleet, Memory())

        manifest = a_manifest(generation=2)
        written = template_written(with_another_image, manifest=manifest, memory=first.memory)

        assert (
            first.memory.objects["uid-of-llama"].reported.conditions["Drifted"].status == "Unknown"
        )
        assert written["spec"]["template"] == a_deployment_body()["spec"]["template"]

    @pytest.mark.parametrize("change", [untouched, as_stored, with_an_annotation, with_a_miner])
    def test_is_nothing_that_stands_beside_it(self, change):
        assert template_written(change) is None

    @pytest.mark.parametrize("mode", ["Paused", "Recommend", "Approve"])
    def test_is_nothing_where_the_mode_does_not_let(self, mode):
        condition, _ = told(without_probe, manifest=in_mode(mode))

        assert template_written(without_probe, manifest=in_mode(mode)) is None
        assert condition.status == "True"

    def test_is_nothing_that_was_edited_before_an_upgrade(self):
        def edited_before(body):
            by_another_version(body)
            with_another_image(body)

        condition, memory = told(edited_before)

        assert template_written(edited_before) is None
        assert template_written(edited_before, memory=memory) is None
        assert condition.message.endswith("; kubectl-edit wrote fields of it")

    def test_is_an_edit_after_an_upgrade(self):
        _, memory = told(by_another_version)

        def edited_after(body):
            by_another_version(body)
            with_another_image(body)

        assert template_written(edited_after, memory=memory) is not None


def test_is_recorded_with_every_template():
    made = a_deployment_body(a_model())

    assert len(made["metadata"]["annotations"][TEMPLATE_ANNOTATION]) == 16
