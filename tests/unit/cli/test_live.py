"""``tonnage explain``: what it shows, and every way in which it cannot.

A server on loopback gives the answers that an API server gives; the real one is asked in
tests/cluster.
"""

import io
import json

import pytest
import yaml
from rich.console import Console

from api_server_double import a_kubeconfig, serving
from cli_builders import LLAMA, plan, run
from tonnage.api.status import Status
from tonnage.cli.commands.explain import chain_report
from tonnage.cli.read.live import stale_note

COLLECTION = "/apis/tonnage.dev/v1alpha1/modeldeployments"
NAMESPACED = "/apis/tonnage.dev/v1alpha1/namespaces/serving/modeldeployments"
GROUP = "/apis/tonnage.dev/v1alpha1"
KINDS = {"kind": "APIResourceList", "resources": [{"name": "modeldeployments"}]}
TIME = "2026-11-20T06:00:00Z"


def a_figure(value):
    return {"value": value, "source": "prometheus", "changedAt": TIME}


def a_condition(kind, status, reason, message):
    named = {"type": kind, "status": status, "reason": reason, "message": message}
    return {**named, "lastTransitionTime": TIME}


def a_constant(prior, learned, planned, doubt):
    figures = {"prior": prior, "learned": learned, "planned": planned}
    return {**figures, "deviationFraction": doubt}


def a_calibration(**changes):
    """What an operator that has watched for half an hour writes."""
    return {
        "evidence": "Namespace",
        "corroboratingNamespaces": 2,
        "windows": 37,
        "busySteps": 12345,
        "changedAt": TIME,
        "overheadFactor": a_constant(1.0, 1.31, 1.36, 0.03),
        "bandwidthEfficiency": a_constant(0.82, 0.774, 0.744, 0.02),
        "prefillEfficiency": a_constant(0.443, 0.401, 0.386, 0.04),
        "stepTime": a_constant(1.0, 1.118, 1.161, 0.031),
        "requestsPerSecond": 0.88,
        "priorRequestsPerSecond": 0.978,
        "goodputFactor": 0.95,
        "judgedRequests": 4200,
        "judgedAt": TIME,
        "goodputFactorReason": "-5% capacity: 310 of 4200 requests missed TPOT p95",
        "kvTokens": 590000,
        "priorKvTokens": 593354,
        "coldStartSeconds": 95.0,
        "coldStartDeviationSeconds": 12.0,
        "nodeWaitSeconds": 42.0,
        "coldStarts": 3,
        **changes,
    }


NOTHING_LEARNED = {
    "evidence": "Prior",
    "corroboratingNamespaces": 0,
    "windows": 0,
    "busySteps": 0,
    "overheadFactor": a_constant(1.0, 1.0, 1.2, 0.28),
    "bandwidthEfficiency": a_constant(0.82, 0.82, 0.68, 0.14),
    "prefillEfficiency": a_constant(0.443, 0.443, 0.37, 0.28),
    "stepTime": a_constant(1.0, 1.0, 1.2, 0.142),
    "requestsPerSecond": 0.7,
    "priorRequestsPerSecond": 0.7,
    "goodputFactor": 1.0,
    "judgedRequests": 0,
    "goodputFactorReason": "",
    "priorKvTokens": 593354,
    "coldStarts": 0,
}


def a_model(*, name="llama-70b", **status):
    """Return a live object in the middle of a rise; the plan is a real one."""
    (planned,) = json.loads(plan(LLAMA, options=["-o", "json"]).stdout)
    planned["plan"]["reasons"] = [
        {"code": "Capacity", "message": "1.23 requests/s per replica"},
        {"code": "Demand", "message": "2.10 requests/s (measured) at 0.47 per replica need 5"},
        {"code": "Backlog", "message": "42 waiting, to be drained in 60.0 s, need 7"},
        {"code": "CapacityUncertain", "message": "planned for steps 4% longer than expected"},
        {"code": "StepCap", "message": "at most 4 more in one step: 6"},
    ]
    step = "2.10 requests/s need 5; at most 4 more in one step: 6"
    decision = {"time": TIME, "fromReplicas": 2, "toReplicas": 6, "code": "StepCap"}
    full = {
        "observedGeneration": 3,
        "replicas": {"desired": 6, "current": 2, "ready": 2, "summary": "2/6"},
        "plan": planned["plan"],
        "estimate": planned["estimate"],
        "measured": {
            "requestsPerSecond": a_figure(2.1),
            "queueDepth": a_figure(42),
            "memoryBandwidthUtilization": a_figure(0.612),
            "stepSeconds": a_figure(0.0431),
            "ttftAttainment": a_figure(0.81),
        },
        "calibration": a_calibration(),
        "decisions": [{**decision, "message": step}],
        "conditions": [
            a_condition("Ready", "True", "MinimumReady", "2 replicas ready"),
            a_condition("ScalingLimited", "True", "StepCap", "at most 4 more in one step: 6"),
            a_condition(
                "SLOMet", "False", "TargetMissed", "TTFT 81.0% of requests within the limit"
            ),
            a_condition("SpeedPlausible", "False", "SlowPod", "pod x on node y takes 20% longer"),
        ],
        "display": {"reason": "StepCap"},
    }
    manifest = yaml.safe_load(LLAMA)
    manifest["metadata"] = {"name": name, "namespace": "serving", "generation": 3}
    return {**manifest, "status": {**full, **status}}


@pytest.fixture
def a_cluster(tmp_path):
    """Return a function that serves {path: (status, body)} and returns a kubeconfig for it."""
    with serving(tmp_path) as serve:
        yield serve


def test_the_example_is_a_status_that_the_operator_could_write():
    Status.model_validate_json(json.dumps(a_model()["status"]))


def test_explain_shows_the_chain_from_signal_to_decision(a_cluster):
    kubeconfig = a_cluster({f"{NAMESPACED}/llama-70b": (200, a_model())})
    result = run("explain", "llama-70b", "--kubeconfig", kubeconfig)
    text = " ".join(result.stdout.split())

    assert result.exit_code == 0
    for expected in (
        "2/6 replicas ready",
        "1. Signal: what is measured requests per second 2.10",
        "memory bandwidth utilization 61.2%",
        "evidence Namespace",
        "windows 37 busy steps 12,345",
        "overhead factor prior 1.00, learned 1.31, planned 1.36, deviation fraction 3.0%",
        "bandwidth efficiency prior 0.820, learned 0.774, planned 0.744, deviation fraction 2.0%",
        "requests per second 0.880 prior requests per second 0.978",
        "goodput factor 0.950 judged requests 4,200",
        "-5% capacity: 310 of 4200 requests missed TPOT p95",
        "kv tokens 590,000 prior kv tokens 593,354",
        "cold start 95.00 s cold start deviation 12.00 s node wait 42.00 s",
        "CapacityUncertain planned for steps 4% longer than expected",
        "SpeedPlausible False (SlowPod): pod x on node y takes 20% longer",
        "Demand 2.10 requests/s (measured) at 0.47 per replica need 5",
        "4. Caps: what bounds the replicas replicas 1 to 8 StepCap at most 4 more in one step: 6",
        "5. Decision: what was done replicas 6 desired, 2 current, 2 ready",
        "2 -> 6 StepCap: 2.10 requests/s need 5",
    ):
        assert expected in text


@pytest.mark.parametrize("status", [None, {"observedGeneration": -1}], ids=["none", "default"])
def test_an_object_that_was_never_looked_at_says_so(a_cluster, status):
    model = a_model() | {"status": status}
    kubeconfig = a_cluster({f"{NAMESPACED}/llama-70b": (200, model)})
    result = run("explain", "llama-70b", "--kubeconfig", kubeconfig)

    assert result.exit_code == 0
    assert "the operator has not looked at this object yet" in result.stdout


def explained(a_cluster, model):
    """What `explain` prints of a model, in one line."""
    kubeconfig = a_cluster({f"{NAMESPACED}/llama-70b": (200, model)})
    return " ".join(run("explain", "llama-70b", "--kubeconfig", kubeconfig).stdout.split())


def test_a_prior_is_not_called_learned(a_cluster):
    model = a_model(calibration=NOTHING_LEARNED)
    Status.model_validate_json(json.dumps(model["status"]))

    text = explained(a_cluster, model)
    for expected in (
        "evidence Prior",
        "bandwidth efficiency prior 0.820, learned 0.820, planned 0.680, deviation fraction 14.0%",
        "requests per second 0.700 prior requests per second 0.700",
        "prior kv tokens 593,354",
    ):
        assert expected in text


def test_a_calibration_of_a_former_version_is_still_explained(a_cluster):
    former = {"bandwidthEfficiency": 0.774, "priorBandwidthEfficiency": 0.82, "busySteps": 9}
    kubeconfig = a_cluster({f"{NAMESPACED}/llama-70b": (200, a_model(calibration=former))})

    assert run("explain", "llama-70b", "--kubeconfig", kubeconfig).exit_code == 0


def test_a_status_of_another_shape_still_has_a_chain():
    odd = {"metadata": [], "spec": None, "status": {"plan": 1, "conditions": "x", "decisions": [1]}}

    console = Console(file=io.StringIO(), width=100)
    console.print(chain_report(odd))

    assert "5. Decision: what was done" in console.file.getvalue()


LEASES = "/apis/coordination.k8s.io/v1/leases"
OWN_LEASE = "/apis/coordination.k8s.io/v1/namespaces/tonnage-system/leases/tonnage-operator"


FRESH, OLD = "2999-01-01T00:00:00.000000Z", "2026-11-20T06:00:00.000000Z"
OLD_S = 1_795_154_400.0
UNHELD = "no operator has had a Lease here: showing the last written values"
OVERDUE = "no operator has renewed its Lease for 30.0 min: showing the last known values"


def a_lease(renewed, *, namespace="tonnage-system", name="tonnage-operator", holder="a"):
    spec = {"holderIdentity": holder, "renewTime": renewed}
    return {"metadata": {"name": name, "namespace": namespace}, "spec": spec}


@pytest.mark.parametrize(
    ("leases", "age_s", "note"),
    [
        ([a_lease(OLD)], 60, None),
        ([a_lease(OLD), a_lease(FRESH, namespace="capacity")], 1800, None),
        ([a_lease(OLD)], 1800, OVERDUE),
        ([a_lease(OLD, holder="")], 1800, OVERDUE),
        ([a_lease(None)], 1800, UNHELD),
        ([], 1800, UNHELD),
    ],
    ids=["renewed", "in another namespace", "uninstalled", "given back", "never held", "none"],
)
def test_the_newest_renewal_of_a_lease_tells_whether_an_operator_runs(leases, age_s, note):
    assert stale_note(lambda: leases, now_s=OLD_S + age_s) == note


@pytest.mark.parametrize(
    ("listed", "own", "note"),
    [
        ([a_lease(FRESH)], None, ""),
        ([], a_lease(FRESH), ""),
        ([a_lease(OLD)], None, "Note: no operator has renewed its Lease for"),
        ([a_lease(FRESH, name="another")], None, "Note: no operator has had a Lease"),
    ],
    ids=["renewed", "of some namespaces", "uninstalled", "of another program"],
)
def test_figures_that_no_operator_brings_up_to_date_are_told(a_cluster, listed, own, note):
    answers = {
        f"{NAMESPACED}/llama-70b": (200, a_model()),
        LEASES: (200, {"metadata": {}, "items": listed}),
    } | ({OWN_LEASE: (200, own)} if own else {})

    result = run("explain", "llama-70b", "--kubeconfig", a_cluster(answers))

    assert result.exit_code == 0
    assert result.stderr.startswith(note)
    assert bool(result.stderr) is bool(note)


def test_leases_that_may_not_be_read_are_told(a_cluster):
    answers = {
        f"{NAMESPACED}/llama-70b": (200, a_model()),
        LEASES: (403, {"message": "leases is forbidden"}),
    }

    result = run("explain", "llama-70b", "--kubeconfig", a_cluster(answers))

    assert result.exit_code == 0
    assert result.stderr.startswith("Note: whether an operator runs is not known")


FORBIDDEN = {"message": 'modeldeployments.tonnage.dev is forbidden: User "x" cannot list'}


@pytest.mark.parametrize(
    ("answers", "exit_code", "expected"),
    [
        ({COLLECTION: (403, FORBIDDEN)}, 6, "no right to list modeldeployments.tonnage.dev in all"),
        ({COLLECTION: (401, {"message": "Unauthorized"})}, 6, "no right to list"),
        ({}, 5, "the cluster has no modeldeployments.tonnage.dev: install the chart"),
        ({COLLECTION: (400, b"<html>")}, 4, "the API server refused"),
    ],
)
def test_diagnose_says_in_one_line_why_it_cannot_list(a_cluster, answers, exit_code, expected):
    result = run("diagnose", "-A", "--kubeconfig", a_cluster(answers))

    assert result.exit_code == exit_code
    assert expected in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("answers", "exit_code", "expected"),
    [
        ({GROUP: (200, KINDS)}, 2, "there is no ModelDeployment x in namespace serving"),
        ({}, 5, "the cluster has no modeldeployments.tonnage.dev"),
        ({f"{NAMESPACED}/x": (403, FORBIDDEN)}, 6, "no right to get"),
    ],
)
def test_explain_says_in_one_line_why_it_cannot(a_cluster, answers, exit_code, expected):
    result = run("explain", "x", "--kubeconfig", a_cluster(answers))

    assert result.exit_code == exit_code
    assert expected in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_cluster_that_is_not_there_is_named_with_the_reason(tmp_path):
    result = run("explain", "x", "--kubeconfig", a_kubeconfig(tmp_path, "http://127.0.0.1:1"))

    assert result.exit_code == 4
    assert "no cluster answers" in result.stderr
    assert "Connection refused" in result.stderr


@pytest.mark.parametrize("content", [None, "a: [\n", "hello\n", "apiVersion: v1\nkind: Config\n"])
def test_a_kubeconfig_that_is_none_is_said_in_one_line(tmp_path, content):
    path = tmp_path / "kubeconfig"
    if content is not None:
        path.write_text(content)
    result = run("explain", "x", "--kubeconfig", path)

    assert result.exit_code == 4
    assert "kubeconfig" in result.stderr
    assert result.stderr.count("\n") == 1
