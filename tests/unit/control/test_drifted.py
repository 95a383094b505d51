"""What others made of a pod template: said as long as it stands, whoever did it and however."""

import pytest

from fleet_builders import a_deployment_body, a_fleet, a_manifest, a_model, a_state, managed_by
from tonnage.control.state import Memory
from tonnage.control.tick import tick
from tonnage.manifests.names import TEMPLATE_ANNOTATION


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


def untouched(body):
    pass


def told(change=untouched, *, manifest=None, memory=None):
    """(the condition, the memory afterwards)."""
    body = a_deployment_body()
    change(body)
    outcome = tick(a_fleet(a_state(manifest, live=body)), memory or Memory())
    conditions = outcome.memory.objects["uid-of-llama"].conditions
    return conditions.get("Drifted"), outcome.memory


@pytest.mark.parametrize(
    ("change", "status", "reason"),
    [
        (untouched, "False", "AsWritten"),
        (with_an_annotation, "False", "AsWritten"),
        (without_probe, "True", "TemplateEdited"),
        (with_another_image, "True", "TemplateEdited"),
        (by_another_version, "Unknown", "WrittenOtherwise"),
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

    assert condition.message.startswith("somebody wrote spec.containers[vllm].readinessProbe away")


def test_lasts_over_a_restart_and_ends_with_the_edit():
    first, memory = told(without_probe)
    again, _ = told(without_probe)
    after, _ = told(untouched, memory=memory)

    assert [each.status for each in (first, again, after)] == ["True", "True", "False"]


def test_is_not_judged_while_another_spec_is_due():
    condition, _ = told(manifest=a_manifest(contextLength=16_384, generation=2))

    assert condition is None


def test_is_not_told_anew_where_the_spec_is_refused():
    said = {
        "type": "Drifted",
        "status": "False",
        "reason": "AsWritten",
        "message": "the pod template is as Tonnage wrote it",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
        "observedGeneration": 1,
    }
    refused = a_manifest(slo={"timeToFirstToken": {"p95": "1ms"}}, generation=2)
    condition, memory = told(without_probe, manifest=refused | {"status": {"conditions": [said]}})

    assert memory.objects["uid-of-llama"].conditions["PlanValid"].reason == "SLOInfeasible"
    assert condition is None


def test_is_recorded_with_every_template():
    made = a_deployment_body(a_model())

    assert len(made["metadata"]["annotations"][TEMPLATE_ANNOTATION]) == 16
