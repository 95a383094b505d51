"""What a pod takes GPUs by: counted, or named where it cannot be."""

import pytest

from tonnage.fleet.pods import num_gpus, uncounted_gpus


def a_pod(*limits, **spec):
    return {"containers": [{"resources": {"limits": each}} for each in limits]} | spec


def test_gpus_of_all_containers_count():
    assert num_gpus(a_pod({}, {"nvidia.com/gpu": "4"}, {"nvidia.com/gpu": "1"})) == 5


def test_init_containers_count_as_far_as_they_take_more():
    many = a_pod({"nvidia.com/gpu": "8"})["containers"]

    assert num_gpus(a_pod({"nvidia.com/gpu": "2"}, initContainers=many)) == 8
    assert num_gpus(a_pod({"nvidia.com/gpu": "9"}, initContainers=many)) == 9


@pytest.mark.parametrize(
    "name",
    [
        "nvidia.com/mig-1g.10gb",
        "nvidia.com/gpu.shared",
        "nvidia.com/gpumem",
        "amd.com/gpu",
        "gpu.intel.com/xe",
        "habana.ai/gaudi",
        "google.com/tpu",
        "aws.amazon.com/neuron",
        "huawei.com/Ascend910",
        "volcano.sh/vgpu-number",
        "deviceclass.resource.kubernetes.io/mig.nvidia.com",
    ],
)
def test_other_accelerators_are_named(name):
    assert uncounted_gpus(a_pod({name: "1", "cpu": "4"})) == (name,)
    assert uncounted_gpus(a_pod({}, initContainers=a_pod({name: "1"})["containers"])) == (name,)


def test_devices_that_are_claimed_are_named():
    claims = [{"name": "gpu", "resourceClaimTemplateName": "one-h200"}]

    assert uncounted_gpus(a_pod({}, resourceClaims=claims)) == ("resourceClaim gpu",)


def test_an_amount_that_is_no_plain_number_is_named():
    assert uncounted_gpus(a_pod({"nvidia.com/gpu": "1k"})) == ("nvidia.com/gpu 1k",)


@pytest.mark.parametrize(
    "limits",
    [
        {},
        {"nvidia.com/gpu": "8"},
        {"nvidia.com/gpu": 8},
        {"rdma/hca": "1", "nvidia.com/hostdev": "1", "cpu": "1", "hugepages-2Mi": "1Gi"},
    ],
)
def test_what_is_counted_or_no_gpu_is_not_named(limits):
    assert uncounted_gpus(a_pod(limits)) == ()


def test_a_pod_of_any_form_is_read():
    for spec in ({}, {"containers": None}, a_pod(None), {"containers": [{"resources": None}]}):
        assert (num_gpus(spec), uncounted_gpus(spec)) == (0, ())
