"""The CRD on the real API server: installs, shows, prunes, and keeps immutable fields."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pydantic import BaseModel

from bad_input import ABSENT, GOOD, manifest
from pod_fields import EVERY_POD_FIELD
from pod_templates import REAL
from tonnage.api.crd import crd
from tonnage.api.objects import parse_model_deployment
from tonnage.api.pods import Pods
from tonnage.api.status import Status
from tonnage_lab.kubectl import Kubectl
from tonnage_lab.processes import LabError

pytestmark = pytest.mark.lab

NAME = "modeldeployments.tonnage.dev"
EXAMPLES = sorted((Path(__file__).parents[2] / "deploy/examples").glob("*.yaml"))
TARGET = manifest(("spec.engine", ABSENT), ("spec.scaleTarget", {"name": "web"}))
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def figure(value: float):
    return {"value": value, "source": "inter-token latency", "changedAt": NOW}


FULL_STATUS = {
    "observedGeneration": 1,
    "replicas": {"desired": 4, "current": 4, "ready": 3, "summary": "3/4"},
    "plan": {
        "replicas": 4,
        "maxNumSeqs": 71,
        "maxNumBatchedTokens": 8192,
        "maxNumQueuedReqs": 70,
        "maxNumQueuedTokens": 9800,
        "gpusPerReplica": 2,
        "parallelism": {"tensor": 2, "pipeline": 1, "data": 1, "context": 2},
        "limitedBy": "TimePerOutputToken",
        "reasons": [{"code": "Demand", "message": "4 requests/s over 1.2 per replica"}],
    },
    "estimate": {
        "weightsBytesPerGpu": 35_000_000_000,
        "kvBytesPerToken": 163_840,
        "kvTokens": 500_000,
        "kvTokensLow": 480_000,
        "kvTokensHigh": 520_000,
        "concurrencyAtContextLength": 61.0,
        "concurrencyAtTypicalLength": 111.5,
        "sloConcurrency": 71.25,
        "requestsPerSecond": 1.2,
        "tokensPerSecond": 1200.0,
        "timeToFirstTokenSeconds": 0.8,
        "timePerOutputTokenSeconds": 0.045,
        "bottleneck": "memory",
        "intensityFlopPerByte": 60.0,
        "ridgeFlopPerByte": 206.0,
        "usdPerHour": 28.0,
        "usdPerMillionTokens": 6.5,
        "inputs": [
            {"name": "model", "value": "32 layers, each attends to all tokens",
             "origin": "assumed", "effect": "memory", "replacedBy": "the first Ready pod"},
            {"name": "contextLength", "value": "8192 tokens", "origin": "given"},
        ],
    },
    "measured": {
        name: figure(0.5)
        for name in (
            "requestsPerSecond", "promptTokens", "outputTokens", "queueDepth", "running",
            "stepSeconds", "memoryBandwidthUtilization", "modelFlopsUtilization", "dramActive",
            "engineBandwidthUtilization", "preemptionsPerRequest", "kvTokens", "ttftAttainment",
            "tpotAttainment", "errorBudgetLeft", "coldStartSeconds", "movedPromptFraction",
            "refusedPerSecond",
        )
    },
    "calibration": {
        "evidence": "Namespace", "corroboratingNamespaces": 1, "windows": 12, "busySteps": 9000,
        "changedAt": NOW,
        **{
            name: {"prior": 0.65, "learned": 0.7, "planned": 0.69, "deviationFraction": 0.02}
            for name in ("overheadFactor", "bandwidthEfficiency", "prefillEfficiency", "stepTime")
        },
        "requestsPerSecond": 1.2, "priorRequestsPerSecond": 1.1,
        "goodputFactor": 0.9, "judgedRequests": 400, "judgedAt": NOW,
        "goodputFactorReason": "9 of 100 were late",
        "kvTokens": 500_000, "priorKvTokens": 490_000,
        "coldStartSeconds": 60.0, "coldStartDeviationSeconds": 5.0, "coldStarts": 3,
        "nodeWaitSeconds": 12.0,
    },
    "decisions": [
        {"time": NOW, "fromReplicas": 3, "toReplicas": 4, "code": "Demand", "message": "more"}
    ],
    "conditions": [
        {
            "type": "Ready", "status": "True", "reason": "MinimumReady", "message": "3 of 1 ready",
            "lastTransitionTime": NOW, "observedGeneration": 1,
        }
    ],
    "display": {
        "mbu": "62 %", "queue": "0", "slo": "99 %", "reason": "Steady", "problem": "pod a waits",
    },
    "proposals": [{"digest": "0123456789abcdef", "reason": "RolloutNeedsApproval", "message": "2"}],
}  # fmt: skip


def create(kubectl: Kubectl, namespace: str, content=GOOD) -> None:
    kubectl("create", "-n", namespace, "-f", "-", text=json.dumps(content))


def patch(kubectl: Kubectl, namespace: str, change, *more: str) -> str:
    return kubectl(
        "patch", "mdep/llama", "-n", namespace, "--type=merge", "-p", json.dumps(change), *more
    )


def stored(kubectl: Kubectl, namespace: str):
    return kubectl.get("mdep", "llama", "-n", namespace)


def test_it_is_established_and_structural(kubectl: Kubectl):
    status = kubectl.get("crd", NAME)["status"]

    conditions = {each["type"]: each["status"] for each in status["conditions"]}
    assert conditions["Established"] == "True"
    assert conditions["NamesAccepted"] == "True"
    assert "NonStructuralSchema" not in conditions
    assert status["storedVersions"] == ["v1alpha1"]


def test_the_api_server_keeps_the_schema_as_it_was_written(kubectl: Kubectl):
    kept = kubectl.get("crd", NAME)["spec"]["versions"][0]

    written = crd()["spec"]["versions"][0]
    assert kept["schema"] == written["schema"]
    assert kept["additionalPrinterColumns"] == written["additionalPrinterColumns"]


def test_rules_fit_their_cost_budget_and_the_server_warns_of_nothing(kubectl: Kubectl):
    # The estimate is made on every write of a CRD; a warning would stand on standard error.
    renamed = json.dumps(crd()).replace("modeldeployments", "modeldeploymentcopies")
    renamed = renamed.replace('"modeldeployment"', '"modeldeploymentcopy"').replace("mdep", "mdec")
    renamed = renamed.replace("ModelDeployment", "ModelDeploymentCopy")

    said = kubectl("create", "--dry-run=server", "--warnings-as-errors", "-f", "-", text=renamed)

    assert "created (server dry run)" in said


def test_defaults_are_filled_in_by_the_api_server(kubectl: Kubectl, namespace: str):
    create(kubectl, namespace)

    spec = stored(kubectl, namespace)["spec"]
    assert spec["scaling"] == {
        "maxReplicas": 8, "minReplicas": 1, "mode": "Auto", "priority": 0, "routing": "Service",
    }  # fmt: skip
    assert (spec["model"]["kvCache"], spec["demand"]["cachedPromptPercent"]) == ("auto", 0)


OVER_NODES = {"groupTopology": "example.com/rack"}
"""What only a replica over several nodes may have."""
TEMPLATED = {"template": REAL["a loader from S3, with keys of a Secret"]}


def test_every_field_of_the_pods_is_taken_and_comes_back(kubectl: Kubectl, namespace: str):
    # Quantities written differently compare by what they mean.
    asked = EVERY_POD_FIELD | TEMPLATED | OVER_NODES | {"cpu": "1", "cpuLimit": "1000m", "user": {}}
    create(kubectl, namespace, manifest(("spec.pods", asked)))

    kept = stored(kubectl, namespace)
    assert parse_model_deployment(kept).spec.pods == Pods.model_validate_json(json.dumps(asked))
    assert set(kept["spec"]["pods"]) == set(asked) | {"sharedMemory"}


def test_the_pods_tried_above_have_every_field():
    assert set(EVERY_POD_FIELD | TEMPLATED | OVER_NODES) | {"sharedMemory"} == {
        field.alias for field in Pods.model_fields.values()
    }


def test_every_field_of_the_status_comes_back(kubectl: Kubectl, namespace: str):
    Status.model_validate_json(json.dumps(FULL_STATUS))
    create(kubectl, namespace)

    patch(kubectl, namespace, {"status": FULL_STATUS}, "--subresource=status")

    assert stored(kubectl, namespace)["status"] == FULL_STATUS


def absent(model: BaseModel, path: str = "status") -> list[str]:
    """Return the fields that are not set, however deep."""
    found = []
    for name in type(model).model_fields:
        value = getattr(model, name)
        first = value[0] if isinstance(value, tuple) and value else value
        if first is None or first == ():
            found.append(f"{path}.{name}")
        elif isinstance(first, BaseModel):
            found += absent(first, f"{path}.{name}")
    return found


def test_the_status_tried_above_has_every_field():
    assert absent(Status.model_validate_json(json.dumps(FULL_STATUS))) == []


def test_status_is_written_apart_from_the_spec(kubectl: Kubectl, namespace: str):
    create(kubectl, namespace, {**GOOD, "status": FULL_STATUS})
    patch(kubectl, namespace, {"status": FULL_STATUS})

    # Of an object that no operator has seen kstatus would say that it is done.
    assert stored(kubectl, namespace)["status"] == {"observedGeneration": -1}

    change = {"status": FULL_STATUS, "spec": {"contextLength": 7168}}
    patch(kubectl, namespace, change, "--subresource=status")
    after = stored(kubectl, namespace)
    assert after["status"]["display"]["mbu"] == "62 %"
    assert (after["spec"]["contextLength"], after["metadata"]["generation"]) == (8192, 1)


def test_a_status_that_is_none_is_refused(kubectl: Kubectl, namespace: str):
    create(kubectl, namespace)
    condition = FULL_STATUS["conditions"][0]

    for wrong in (
        {"conditions": [condition, condition]},
        {"conditions": [{**condition, "status": "Perhaps"}]},
        {"conditions": [{**condition, "message": "x" * 40_000}]},
        {"decisions": FULL_STATUS["decisions"] * 6},
    ):
        with pytest.raises(LabError, match=r"status\.(conditions|decisions)"):
            patch(kubectl, namespace, {"status": wrong}, "--subresource=status")


WRONG = {
    "reason": "CreateContainerConfigError",
    "problem": 'pod a does not start: CreateContainerConfigError: secret "hf" not found',
}


def test_kubectl_get_shows_what_matters(kubectl: Kubectl, namespace: str):
    create(kubectl, namespace)
    patch(kubectl, namespace, {"status": FULL_STATUS}, "--subresource=status")

    header, row = kubectl("get", "mdep", "-n", namespace).splitlines()

    assert header.split() == [
        "NAME", "MODEL", "GPU", "MODE", "REPLICAS", "MAX-SEQS", "MBU", "QUEUE", "SLO", "REASON",
        "AGE", "PROBLEM",
    ]  # fmt: skip
    [*shown, _age, problem] = row.split(maxsplit=13)
    assert " ".join(shown) == (
        "llama meta-llama/Llama-3.3-70B-Instruct H200 Auto 3/4 71 62 % 0 99 % Steady"
    )
    assert problem == "pod a waits"
    patch(kubectl, namespace, {"status": {"display": WRONG}}, "--subresource=status")
    [_, told] = kubectl("get", "mdep", "-n", namespace).splitlines()
    assert told.endswith(f"  {WRONG['problem']}")
    wide = kubectl("get", "mdep", "-n", namespace, "-o", "wide")
    assert "TimePerOutputToken" in wide
    assert "llama" in kubectl("get", "tonnage", "-n", namespace)


def test_kubectl_explain_tells_what_a_field_means(kubectl: Kubectl):
    assert "which limits the cost" in " ".join(
        kubectl("explain", "mdep.spec.scaling.maxReplicas").split()
    )
    assert "at maximum concurrency" in " ".join(kubectl("explain", "mdep.spec.slo").split())


@pytest.mark.parametrize(
    ("before", "change"),
    [
        (TARGET, {"spec": {"scaleTarget": {"name": "other"}}}),
        (TARGET, {"spec": {"scaleTarget": None, "engine": {"version": "0.33"}}}),
        (GOOD, {"spec": {"scaleTarget": {"name": "web"}, "engine": None}}),
    ],
    ids=["changed", "removed", "added"],
)
def test_a_scale_target_is_for_life(kubectl: Kubectl, namespace: str, before, change):
    create(kubectl, namespace, before)

    with pytest.raises(LabError, match="scaleTarget cannot be added, changed or removed"):
        patch(kubectl, namespace, change)


@pytest.mark.parametrize(
    "change",
    [
        {"spec": {"contextLength": 16384}},
        {"spec": {"scaling": {"mode": "Paused", "maxReplicas": 9}}},
        {"spec": {"slo": None, "demand": None}},
        {"spec": {"pods": {"nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-H200"}}}},
        {"spec": {"pods": {"tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}]}}},
        {"spec": {"pods": {"tolerations": [{"operator": "Exists"}]}}},
        {"spec": {"model": {"revision": "6f6073b423013f6a7d4d9f39144961bfbfbc386b"}}},
        {"spec": {"model": {"revision": "refs/pr/1"}}},
        {"spec": {"engine": {"version": None, "image": "vllm/vllm-openai:v0.33.1"}}},
        {"spec": {"engine": {"args": ["--enable-expert-parallel", "--seed=1"]}}},
        {"spec": {"hardware": {"parallelism": {"tensor": 2, "expert": True}}}},
        {"spec": {"hardware": {"gpusPerReplica": 8, "parallelism": {"tensor": 4, "pipeline": 2,
                                                                   "data": 1}}}},
        {"spec": {"engine": {"args": ['--limit-mm-per-prompt={"image": 0}']}}},
        {"spec": {"demand": {"requestsPerSecond": "0.5"}}},
        {"spec": {"demand": {"requestsPerSecond": None, "tokensPerDay": 999_999_999_999}}},
        {"spec": {"demand": {"requestsPerSecond": None, "concurrentUsers": 500}}},
        {"spec": {"slo": {"timeToFirstToken": {"p99": "1h"}, "timePerOutputToken": None}}},
        {"spec": {"slo": {"timeToFirstToken": {"p50": "0.050s", "p99": "1.5s"}}}},
        {"metadata": {"labels": {"team": "chat"}}},
    ],
    ids=lambda change: json.dumps(change)[:60],
)  # fmt: skip
def test_what_is_allowed_is_allowed(kubectl: Kubectl, namespace: str, change):
    create(kubectl, namespace)

    assert "patched" in patch(kubectl, namespace, change)


def test_the_longest_name_is_allowed(kubectl: Kubectl, namespace: str):
    create(kubectl, namespace, manifest(("metadata.name", "a" * 52)))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_taken_as_it_is(kubectl: Kubectl, namespace: str, path: Path):
    said = kubectl("create", "--dry-run=server", "-n", namespace, "-f", path)

    assert "modeldeployment.tonnage.dev" in said
