"""Whose words mean what: schedulers and API servers as they write them."""

import pytest

from tonnage.control.observe.starting import why_refused, why_unschedulable
from tonnage.control.report.reasons import REASONS

NODES = "0/4 nodes are available: "
NOT_PREEMPTED = " preemption: 0/4 nodes are available: 4 Preemption is not helpful for scheduling."
FORBIDDEN = 'pods "llama-5d-x" is forbidden: '


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("4 Insufficient nvidia.com/gpu.", "InsufficientGPU"),
        ("1 Insufficient cpu, 3 Insufficient nvidia.com/gpu.", "InsufficientGPU"),
        ("4 Insufficient nvidia.com/mig-3g.40gb.", "InsufficientGPU"),
        ("4 Insufficient cpu.", "InsufficientResources"),
        ("2 Insufficient ephemeral-storage, 2 Insufficient memory.", "InsufficientResources"),
        ('persistentvolumeclaim "weights" not found.', "VolumeUnavailable"),
        ("pod has unbound immediate PersistentVolumeClaims.", "VolumeUnavailable"),
        ("4 node(s) had volume node affinity conflict.", "VolumeUnavailable"),
        ("4 node(s) had untolerated taint {nvidia.com/gpu: present}.", "NoNodeFits"),
        ("4 node(s) didn't match Pod's node affinity/selector.", "NoNodeFits"),
        ("", "NoNodeFits"),
    ],
)
def test_what_no_node_takes(said, reason):
    assert why_unschedulable(f"{NODES}{said}{NOT_PREEMPTED}") == reason
    assert reason in REASONS


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("exceeded quota: gpus, requested: requests.nvidia.com/gpu=1", "QuotaExceeded"),
        ("failed quota: all: must specify limits.memory", "QuotaExceeded"),
        ('violates PodSecurity "restricted:latest": runAsNonRoot != true', "PodSecurityRefused"),
        ("no PriorityClass with name high was found", "PriorityClassMissing"),
        ('pod rejected: RuntimeClass "nvidia" not found', "RuntimeClassMissing"),
        ("error looking up service account serving/default: not found", "PodsRefused"),
    ],
)
def test_what_is_not_even_made(said, reason):
    assert why_refused(f"{FORBIDDEN}{said}") == reason
    assert reason in REASONS
