"""The reasons that may be labels: all that the code gives, and nothing that others say."""

import ast
import re
from pathlib import Path

import pytest

import tonnage
from tonnage.control.report.conditions import CONDITION_TYPES
from tonnage.control.report.reasons import OTHER, REASONS, label_reason
from tonnage.manifests.pod import DEPRECATED

PACKAGE = Path(tonnage.__file__).parent
SOURCES = [
    *sorted({*(PACKAGE / "control").rglob("*.py")} - {PACKAGE / "control/report/reasons.py"}),
    *sorted((PACKAGE / "policy").glob("*.py")),
    PACKAGE / "cluster/prometheus.py",
    PACKAGE / "cluster/queries.py",
    PACKAGE / "fleet/calibration.py",
    PACKAGE / "manifests/target.py",
]
NO_REASONS = {
    "Approve", "Approved", "Attainment", "Auto", "BandwidthEfficiency",
    "CalibrationStored", "CapacityAvailable", "Complete", "ConfigMap", "Date",
    "Drifted", "ErrImagePull", "Error", "ErrorBudget", "False", "KVCache", "KVCapacityAsPlanned",
    "MetricsAvailable", "Missing", "Never",
    "OverheadFactor", "PlanValid", "PrefillEfficiency", "PriorityClass", "Progressing", "Ready",
    "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod", "Recommend", "Reconciling",
    "ReplicaFailure", "RollingPods", "RunContainerError", "RuntimeClass", "SLOMet", "Scaled",
    "ScalingActive", "ScalingLimited", "SpeedPlausible", "Stalled", "StepTime", "True", "Unknown",
}  # fmt: skip
"""Words that look like one: types of conditions, modes, headers, other enums."""


def words(path):
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_every_reason_in_the_code_is_known_and_no_other():
    code = re.compile(r"[A-Z][A-Za-z]*[a-z][A-Za-z]*")
    found = {word for path in SOURCES for word in words(path) if code.fullmatch(word)}

    assert found - REASONS - {OTHER} == NO_REASONS
    assert found | refusals() | {DEPRECATED} >= REASONS


def refusals():
    """The errors of sizing, catalogue and manifests, by the reason that they become."""
    return {
        node.name.removesuffix("Error")
        for folder in ("sizing", "catalog", "manifests")
        for path in (PACKAGE / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and node.name.endswith("Error")
    }


def test_every_error_that_refuses_an_object_has_a_known_reason():
    caught = {"Command", "Refused", "SearchAbandoned", "SeveralNodes"}
    assert refusals() - REASONS == caught


def test_a_type_of_a_condition_is_no_reason():
    assert not REASONS & CONDITION_TYPES.keys()


@pytest.mark.parametrize("foreign", ["", "Exceeded quota: gpus", "tenant-a", "Missed "])
def test_words_of_others_are_one_label(foreign):
    assert label_reason(foreign) == OTHER
