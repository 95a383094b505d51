"""Replicas over several nodes on an API server that has the CRD of LeaderWorkerSet 0.9."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lws
from fleet_builders import SITE, a_manifest, a_model_over_nodes, a_sizing
from site_lab import CRDS, until
from tonnage.api.objects import parse_model_deployment
from tonnage.cluster.kube import LEADER_WORKER_SETS, MODEL_DEPLOYMENTS, KubeApi, load_client
from tonnage.control.input.state import DeploymentView
from tonnage.control.write.writes import Scale, Writes
from tonnage.fleet.act import Writer
from tonnage.fleet.views import deployment_view
from tonnage.manifests.changes import FieldOwners, list_differences, template_changes
from tonnage.manifests.children import deployment, service
from tonnage.manifests.names import GROUPS, MANAGER, SCALE_MANAGER, Manifest, template_in
from tonnage_lab import controlplane
from tonnage_lab.controlplane import ControlPlane

pytestmark = pytest.mark.lab

MODEL = a_model_over_nodes(
    pods={
        "cpu": "8",
        "memory": "64Gi",
        "sharedMemory": "32Gi",
        "modelCacheClaim": "weights",
        "topologySpreadConstraints": [{"topologyKey": "zone"}],
        "groupTopology": "example.com/rack",
    }
)


@pytest.fixture(scope="module")
def plane(
    tmp_path_factory: pytest.TempPathFactory, programs: dict[str, Path]
) -> Iterator[ControlPlane]:
    """A control plane of its own: others are to have no LeaderWorkerSets."""
    folder = tmp_path_factory.mktemp("plane-with-groups")
    crd = lws.copy_crd(tmp_path_factory.mktemp("crds"))
    made = controlplane.start(folder, programs=programs, crds=CRDS)
    made.kubectl("apply", "--server-side", "-f", crd)
    until(
        lambda: "leaderworkersets" in made.kubectl("api-resources", "-o", "name"),
        "the API server serves them",
        told=lambda: made.kubectl("get", "-f", crd, "-o", "jsonpath={.status}"),
    )
    made.kubectl("create", "namespace", "serving")
    yield made
    made.stop()


@pytest.fixture(scope="module")
def api(plane: ControlPlane) -> Iterator[KubeApi]:
    client = load_client(str(plane.kubeconfig))
    yield KubeApi(client)
    client.close()


PATH = LEADER_WORKER_SETS.path("serving", MODEL.name)


def wanted() -> Manifest:
    made = deployment(MODEL, a_sizing(MODEL), SITE)
    made["metadata"].pop("ownerReferences")  # of an object that is not there
    return made


def view_of(api: KubeApi) -> DeploymentView:
    live = api.get(PATH)
    assert live is not None
    return deployment_view(live, GROUPS)


def test_discovery_finds_them(api: KubeApi):
    assert api.serves(LEADER_WORKER_SETS)


def test_what_is_rendered_is_taken_to_the_letter(plane: ControlPlane):
    made = [wanted(), service(MODEL, 2)]
    made[1]["metadata"].pop("ownerReferences")

    said = plane.kubectl(
        "create", "--dry-run=server", "--validate=strict", "-n", "serving", "-f", "-",
        text=json.dumps({"apiVersion": "v1", "kind": "List", "items": made}),
    )  # fmt: skip

    assert said.splitlines() == [
        "leaderworkerset.leaderworkerset.x-k8s.io/r1 created (server dry run)",
        "service/r1 created (server dry run)",
    ]


def test_is_no_roll_and_no_drift_when_it_is_read_back(api: KubeApi):
    api.apply(PATH, wanted(), manager=MANAGER, force=False)
    view = view_of(api)
    live, owned = json.loads(view.template), json.loads(view.template_fields)

    assert template_changes(live, template_in(wanted()), owned=owned) == ()
    assert list_differences(live, template_in(wanted()), FieldOwners(ours=owned)) == ()
    assert (view.replicas, view.num_nodes, view.gpus_per_replica) == (1, 2, 16)
    assert view.template_managers == frozenset()


def test_is_scaled_by_its_subresource_and_applied_again_without_a_word_of_replicas(api: KubeApi):
    api.apply(PATH, wanted(), manager=MANAGER, force=False)
    scale: Any = api.get(f"{PATH}/scale")
    body = {
        "metadata": {"resourceVersion": scale["metadata"]["resourceVersion"]},
        "spec": {"replicas": 3},
    }

    api.merge_patch(f"{PATH}/scale", body, manager=SCALE_MANAGER)
    api.apply(PATH, wanted(), manager=MANAGER, force=True)

    assert scale["spec"]["replicas"] == 1
    assert scale["metadata"]["uid"] == view_of(api).uid
    assert (view_of(api).replicas, view_of(api).replicas_managers) == (3, ())


def test_the_edit_of_another_is_named_with_its_field(api: KubeApi):
    api.apply(PATH, wanted(), manager=MANAGER, force=True)
    api.merge_patch(
        PATH,
        {"spec": {"leaderWorkerTemplate": {"size": 3}}},
        manager="kubectl-edit",
    )
    view = view_of(api)
    owners = tuple((name, fields) for name, fields in json.loads(view.template_owners))
    hands = FieldOwners(ours=json.loads(view.template_fields), others=owners)

    [change] = list_differences(json.loads(view.template), template_in(wanted()), hands)
    assert (change.field, change.before, change.after) == ("size", "3", "2")
    assert change.by == ("kubectl-edit",)
    api.apply(PATH, wanted(), manager=MANAGER, force=True)
    assert view_of(api).num_nodes == 2


def test_one_of_somebody_else_is_scaled_and_otherwise_left_alone(plane: ControlPlane, api: KubeApi):
    theirs, path = wanted(), LEADER_WORKER_SETS.path("serving", "theirs")
    theirs["metadata"] = {"name": "theirs", "labels": {"tonnage.dev/managed": "true"}}
    del theirs["spec"]["leaderWorkerTemplate"]["leaderTemplate"]
    target = {"kind": "LeaderWorkerSet", "name": "theirs"}
    asks = a_manifest("asks", engine=None, scaleTarget=target, namespace="serving")
    del asks["metadata"]["uid"]
    for each in (theirs, asks):
        plane.kubectl("create", "-n", "serving", "-f", "-", text=json.dumps(each))
    model = parse_model_deployment(api.get(MODEL_DEPLOYMENTS.path("serving", "asks")) or {})
    before = api.get(path) or {}
    view = deployment_view(before, GROUPS)

    scale = Scale(deployment="theirs", uid=view.uid, kind=view.kind, seen=1, replicas=3)
    writes = Writes(namespace="serving", name="asks", uid=model.uid, model=model, scale=scale)
    failed = Writer(kube=api, site=SITE).act([writes], now="2026-01-01T00:00:00Z")

    after = api.get(path) or {}
    assert model.uid not in failed
    assert view.is_opted_in
    assert after["spec"] == before["spec"] | {"replicas": 3}
    assert deployment_view(after, GROUPS).replicas_managers == ()
