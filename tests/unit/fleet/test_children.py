"""What somebody did to a child is put back, and told."""

import pytest

from fleet_builders import NOW_S, SITE, a_model
from kube_double import KubeDouble
from tonnage.cluster.calls import KubernetesError
from tonnage.cluster.kube import SERVICES
from tonnage.control.write.writes import Writes
from tonnage.fleet.children import Children

SERVICE = SERVICES.path("serving", "llama")


@pytest.fixture
def kube():
    """With all children, as Tonnage left them."""
    made = KubeDouble()
    look(made, is_new=True)
    made.writes.clear()
    return made


def look(kube, *, is_new=False):
    writes = Writes(
        namespace="serving",
        name="llama",
        uid="uid-of-llama",
        model=a_model(),
        check_children=True,
        check_leftovers=is_new,
    )
    Children(kube=kube, site=SITE, clock=lambda: NOW_S).publish(writes)


def edit(kube, field, value, *, manager="kubectl"):
    """As the API server notes it: who changes a field takes it over."""
    service = kube.objects[SERVICE]
    service["spec"][field] = value
    service["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"].pop(f"f:{field}", None)
    fields = {"f:spec": {f"f:{field}": {}}}
    entry = {"manager": manager, "operation": "Update", "fieldsV1": fields}
    service["metadata"]["managedFields"].append(entry)


def told(kube):
    return [call.body["note"] for call in kube.writes if call.verb == "create"]


@pytest.mark.parametrize("is_new", [False, True], ids=["known spec", "new spec"])
def test_an_edit_is_told_with_its_fields_and_who_made_it(kube, is_new, caplog):
    edit(kube, "selector", {"app": "theirs"})
    edit(kube, "externalIPs", ["192.0.2.1"], manager="mallory")

    look(kube, is_new=is_new)

    said = "Service llama: kubectl and mallory edited spec.selector, spec.externalIPs"
    assert told(kube) == [f"{said}: reapplied"]
    assert f'object=serving/llama message="{said}' in caplog.text
    [event] = [call.body for call in kube.writes if call.verb == "create"]
    assert (event["reason"], event["type"]) == ("ChildRestored", "Warning")
    assert event["eventTime"] == "2026-01-02T00:00:00.000000Z"
    assert event["regarding"]["uid"] == "uid-of-llama"
    assert kube.objects[SERVICE]["spec"]["selector"]["tonnage.dev/model-deployment"] == "llama"


def test_a_field_that_nobody_has_any_more_is_somebodys_edit_of_a_spec_that_is_known(kube):
    spec = kube.objects[SERVICE]["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"]
    del kube.objects[SERVICE]["spec"]["selector"], spec["f:selector"]

    look(kube)

    assert told(kube) == ["Service llama: somebody edited spec.selector: reapplied"]


def test_a_field_that_an_earlier_version_did_not_write_is_nobodys_edit(kube):
    spec = kube.objects[SERVICE]["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"]
    del spec["f:type"]

    look(kube, is_new=True)

    assert [call.short for call in kube.writes] == ["apply services/llama"]


def test_a_child_that_is_gone_is_told_where_it_had_been(kube):
    del kube.objects[SERVICE]

    look(kube)

    assert told(kube) == ["Service llama was deleted: recreated"]
    assert SERVICE in kube.objects


def test_it_is_put_back_where_no_event_can_be_written(kube):
    edit(kube, "selector", {"app": "theirs"})

    def fail(verb, path):
        if verb == "create":
            raise KubernetesError("no right", status=403)

    kube.fail = fail
    look(kube)

    assert kube.objects[SERVICE]["spec"]["selector"]["tonnage.dev/model-deployment"] == "llama"
