"""What Argo CD and Flux make of an object: its Lua is run, kstatus is a table of rules.

The objects are what the operator would write: found and reported as it does.
"""

from pathlib import Path

import pytest
import yaml

from fleet_builders import (
    CRASH_LOOPING,
    NOW_S,
    UNSCHEDULABLE,
    a_deployment_body,
    a_fleet,
    a_manifest,
    a_memory,
    a_pod_body,
    a_state,
    assessed,
    managed_by,
)
from tonnage.api.crd import crd
from tonnage.api.objects import InvalidSpecError
from tonnage.control.input.writers import FieldOwnership, Part
from tonnage.control.report.status import report

GITOPS = Path(__file__).parents[3] / "deploy/gitops"
ARGOCD = GITOPS / "argocd"
LONGER = {"contextLength": 16_384, "generation": 2}


def in_mode(mode, *, stated=None, **changes):
    scaling = {"mode": mode, "minReplicas": 1, "maxReplicas": 8}
    scaling |= {"approvalAboveUsdPerHour": stated} if stated else {}
    return a_manifest(scaling=scaling, **changes)


def reported(manifest=None, **state):
    """The object with the status that the operator writes."""
    manifest = manifest or a_manifest()
    found_state = a_state(manifest, **state)
    fleet = a_fleet(found_state)
    status = report(assessed(found_state, fleet=fleet), fleet).status
    return manifest | {"status": status.to_dict()}


def unseen():
    """An object that was just created: the API server fills in what the CRD says."""
    [version] = crd()["spec"]["versions"]
    default = version["schema"]["openAPIV3Schema"]["properties"]["status"]["default"]
    return a_manifest() | {"status": default}


def rolling():
    body = a_deployment_body()
    body["status"]["updatedReplicas"] = 1
    return body


def stuck():
    body = rolling()
    problem = {"type": "Progressing", "status": "False", "message": "deadline exceeded"}
    body["status"]["conditions"] = [problem]
    return body


SECRET = {"reason": "CreateContainerConfigError", "message": 'secret "hf" not found'}
NOT_STARTED = {
    "ready_for_s": None,
    "containerStatuses": [{"name": "vllm", "state": {"waiting": SECRET}}],
}


def contested():
    """What another writer's template is rolled out of, while Tonnage leaves it alone."""
    manifest, live = a_manifest(), rolling()
    live["metadata"]["managedFields"] += managed_by("argo", "f:template")
    live["spec"]["template"]["spec"]["containers"][0]["image"] = "theirs/vllm:v0.33.0"
    left = Part(longest_s=9e4, times=3, edited_at_s=NOW_S, reapplied_at_s=NOW_S, generation=1)
    state = a_state(manifest, live=live)
    writers = FieldOwnership(deployment_uid="uid-of-deployment-llama", template=left)
    known = a_memory(state, writers=writers)
    fleet = a_fleet(state)
    status = report(assessed(state, memory=known, fleet=fleet), fleet).status
    return manifest | {"status": status.to_dict()}


def few(*pods):
    return {
        "live": a_deployment_body(replicas=1, ready=0),
        "pods": list(pods),
        "engines": (),
    }


STATES = {
    "not looked at yet": (unseen, "Progressing", "InProgress"),
    "of another generation": (
        lambda: reported() | {"metadata": a_manifest(generation=2)["metadata"]},
        "Progressing",
        "InProgress",
    ),
    "being created": (lambda: reported(replicas=None), "Progressing", "InProgress"),
    "at rest": (lambda: reported(load=1.5), "Healthy", "Current"),
    "scaling up": (
        lambda: reported(load=5, live=a_deployment_body(replicas=5, ready=2)),
        "Healthy",
        "Current",
    ),
    "a new spec is due": (
        lambda: reported(a_manifest(**LONGER), live=a_deployment_body()),
        "Progressing",
        "InProgress",
    ),
    "rolling": (lambda: reported(live=rolling()), "Progressing", "InProgress"),
    "a rollout is stuck": (lambda: reported(live=stuck()), "Degraded", "Failed"),
    "an invalid spec": (
        lambda: reported(model=InvalidSpecError("spec.hardware: missing")),
        "Degraded",
        "Failed",
    ),
    "what does not fit": (
        lambda: reported(
            a_manifest(hardware={"gpu": "L4", "gpusPerReplica": 1}, generation=2),
            live=a_deployment_body(),
        ),
        "Degraded",
        "Failed",
    ),
    "a name that is taken": (
        lambda: reported(live=a_deployment_body(ownerReferences=[])),
        "Degraded",
        "Failed",
    ),
    "containers that crash": (
        lambda: reported(**few(a_pod_body("a", **CRASH_LOOPING))),
        "Degraded",
        "InProgress",
    ),
    "a Secret is missing": (
        lambda: reported(**few(a_pod_body("a", **NOT_STARTED))),
        "Degraded",
        "InProgress",
    ),
    "another's template is rolled out": (contested, "Degraded", "Current"),
    "no GPU is free": (
        lambda: reported(**few(a_pod_body("a", **UNSCHEDULABLE))),
        "Progressing",
        "InProgress",
    ),
    "another autoscaler": (
        lambda: reported(conflicting_autoscaler="HorizontalPodAutoscaler llama"),
        "Degraded",
        "Current",
    ),
    "only recommended": (
        lambda: reported(in_mode("Recommend"), replicas=None),
        "Healthy",
        "Current",
    ),
    "paused": (lambda: reported(in_mode("Paused")), "Suspended", "Current"),
    "pods wait for approval": (
        lambda: reported(in_mode("Approve", **LONGER), live=a_deployment_body()),
        "Suspended",
        "Current",
    ),
    "cost waits for approval": (
        lambda: reported(in_mode("Approve", stated="32"), load=3.5),
        "Suspended",
        "Current",
    ),
    "nothing to approve": (lambda: reported(in_mode("Approve")), "Healthy", "Current"),
}
"""Each state of an object: how it is made, what Argo CD says of it, and what Flux does."""
EVERY_STATE = pytest.mark.parametrize("name", STATES)


def kstatus(resource):
    """Return what kstatus says of an object of a kind that it does not know.

    Sources:
        fluxcd/cli-utils pkg/kstatus/status: generic.go checkGenericProperties, core.go, status.go.
    """
    status, metadata = resource.get("status") or {}, resource["metadata"]
    observed = status.get("observedGeneration")
    if observed is not None and observed != metadata["generation"]:
        return "InProgress"
    conditions = status.get("conditions") or ()
    for each in conditions:
        if (each["type"], each["status"]) == ("Reconciling", "True"):
            return "InProgress"
        if (each["type"], each["status"]) == ("Stalled", "True"):
            return "Failed"
    for each in conditions:
        if each["type"] == "Ready":
            return "Current" if each["status"] == "True" else "InProgress"
    return "Current"


@EVERY_STATE
def test_flux_reads_each_state(name):
    make, _, expected = STATES[name]

    assert kstatus(make()) == expected


@pytest.fixture(scope="module")
def lua():
    """Return a function that runs a file on an object, and returns what it does."""
    lupa = pytest.importorskip("lupa.lua51", reason="Argo CD's Lua is 5.1: pip install lupa")

    def run(path, resource):
        runtime = lupa.LuaRuntime(register_eval=False, unpack_returned_tuples=True)
        for library in ("os", "io", "debug", "package", "require", "python"):
            runtime.globals()[library] = None  # Argo CD gives a script none of these
        runtime.globals()["obj"] = runtime.table_from(resource, recursive=True)
        return plain(runtime.execute(path.read_text()), lupa.lua_type)

    return run


def plain(value, lua_type):
    if lua_type(value) != "table":
        return value
    items = {key: plain(each, lua_type) for key, each in value.items()}
    return list(items.values()) if items and set(items) == set(range(1, len(items) + 1)) else items


@EVERY_STATE
def test_argo_cd_reads_each_state(lua, name):
    make, expected, _ = STATES[name]

    found = lua(ARGOCD / "health.lua", make())

    assert found["status"] == expected
    assert found["message"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "a Secret is missing",
            "CreateContainerConfigError: pod a does not start: CreateContainerConfigError: "
            'secret "hf" not found',
        ),
        (
            "no GPU is free",
            "InsufficientGPU: pod a waits for a node: 0/4 nodes are available: 4 Insufficient "
            "nvidia.com/gpu.",
        ),
        ("another's template is rolled out", "ConflictingWriter: argo"),
        ("rolling", "RollingOut: the Deployment is being updated to the spec"),
    ],
)
def test_argo_cd_tells_the_cause_before_what_is_under_way(lua, name, message):
    resource = STATES[name][0]()

    assert lua(ARGOCD / "health.lua", resource)["message"].startswith(message)


def test_all_four_states_of_argo_cd_occur():
    assert {health for _, health, _ in STATES.values()} == {
        "Healthy",
        "Progressing",
        "Degraded",
        "Suspended",
    }


@pytest.mark.parametrize(
    ("name", "enabled"),
    [
        ("at rest", {"pause"}),
        ("paused", {"resume"}),
        ("pods wait for approval", {"approve", "pause"}),
    ],
)
def test_actions_are_there_when_they_make_sense(lua, name, enabled):
    found = lua(ARGOCD / "actions/discovery.lua", STATES[name][0]())

    assert {action for action, each in found.items() if not each["disabled"]} == enabled


def test_approving_writes_the_digest_of_the_plan_that_waits(lua):
    resource = STATES["pods wait for approval"][0]()
    [proposal] = resource["status"]["proposals"]

    found = lua(ARGOCD / "actions/approve.lua", resource)

    assert found["metadata"]["annotations"] == {"tonnage.dev/approve": proposal["digest"]}
    assert found["spec"] == resource["spec"]


@pytest.mark.parametrize("mode", ["Auto", "Approve", "Recommend"])
def test_a_paused_object_goes_on_in_the_mode_that_it_had(lua, mode):
    paused = lua(ARGOCD / "actions/pause.lua", in_mode(mode))
    resumed = lua(ARGOCD / "actions/resume.lua", paused)

    assert paused["spec"]["scaling"]["mode"] == "Paused"
    assert resumed["spec"] == in_mode(mode)["spec"]
    assert not resumed["metadata"]["annotations"]


def test_the_config_map_holds_these_very_scripts():
    data = yaml.safe_load((ARGOCD / "argocd-cm.yaml").read_text())["data"]
    actions = yaml.safe_load(data["resource.customizations.actions.tonnage.dev_ModelDeployment"])

    def same(text, name):
        return text.strip() == (ARGOCD / name).read_text().strip()

    assert same(data["resource.customizations.health.tonnage.dev_ModelDeployment"], "health.lua")
    assert same(actions["discovery.lua"], "actions/discovery.lua")
    assert [each["name"] for each in actions["definitions"]] == ["approve", "pause", "resume"]
    for each in actions["definitions"]:
        assert same(each["action.lua"], f"actions/{each['name']}.lua")


def test_an_application_leaves_alone_what_others_write():
    application = yaml.safe_load((ARGOCD / "application.yaml").read_text())["spec"]
    ignored = {each["kind"]: each["jsonPointers"] for each in application["ignoreDifferences"]}

    assert ignored == {"Deployment": ["/spec/replicas"], "ModelDeployment": ["/spec/scaling/mode"]}
    assert "RespectIgnoreDifferences=true" in application["syncPolicy"]["syncOptions"]
