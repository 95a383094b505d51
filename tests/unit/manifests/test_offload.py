"""``model.kvOffload``: what is rendered for it, and who may not have one."""

from dataclasses import replace

import kubernetes_validate
import pytest

from builders import a_latent_attention, a_layer_group, a_shape
from fleet_builders import SITE, a_model
from tonnage.api.objects import InvalidSpecError
from tonnage.catalog.gpu import UnsupportedEngineError, built_in_gpus
from tonnage.manifests.arguments import argument_pairs
from tonnage.manifests.children import NotServableError, deployment, spec_digest
from tonnage.sizing.errors import InvalidParallelismError
from tonnage.sizing.parallelism.draft import splits_for
from tonnage.sizing.request import ask, look_up
from tonnage.sizing.search import size
from tonnage_lab.emulator.arguments import parse

HARDWARE = {"gpu": "H200", "gpusPerReplica": 2, "parallelism": {"tensor": 2}}


def a_model_with(kv_offload, *, version="0.33", args=(), **spec):
    model = {"id": "meta-llama/Llama-3.3-70B-Instruct", "weights": "fp8"}
    given = {
        "model": {**model, **({"kvOffload": kv_offload} if kv_offload else {})},
        "engine": {"version": version, **({"args": list(args)} if args else {})},
        "hardware": HARDWARE,
    }
    return a_model(**(given | spec))


def asked(model):
    return ask(model.spec, look_up(model.spec, built_in_gpus()))


def made(kv_offload, **spec):
    model = a_model_with(kv_offload, **spec)
    return deployment(model, size(asked(model)), SITE)


def pod_of(manifest):
    return manifest["spec"]["template"]["spec"]


def room(pod):
    """Return the size of /dev/shm, and what the container asks for."""
    [shm] = [each["emptyDir"]["sizeLimit"] for each in pod["volumes"] if each["name"] == "shm"]
    return shm, pod["containers"][0]["resources"].get("requests", {}).get("memory")


def test_the_engine_gets_the_memory_and_the_pod_has_it():
    manifest = made({"gib": 200})
    pod = pod_of(manifest)
    [only] = pod["containers"]
    flags = dict(argument_pairs(only["args"]))

    assert flags["--kv-offloading-size"] == "200"
    assert flags["--kv-offloading-backend"] == "native"
    assert room(pod) == ("208Gi", "201Gi")
    assert parse(["serve", *only["args"]]).host_cache_gib == 200
    kubernetes_validate.validate(manifest, "1.33", strict=True)


def test_what_the_spec_asks_of_memory_is_beside_it():
    pods = {"memory": "64Gi", "memoryLimit": "80Gi", "sharedMemory": "500Mi"}
    pod = pod_of(made({"gib": 1024}, pods=pods))
    resources = pod["containers"][0]["resources"]

    # Two ranks map 1,024 GiB each: 8 bytes of page table for 4 KiB are 4 GiB.
    assert resources["requests"]["memory"] == f"{64 + 1024 + 4}Gi"
    assert resources["limits"]["memory"] == f"{80 + 1024 + 4}Gi"
    assert room(pod)[0] == f"{500 + 1024 * 1024}Mi"


def test_a_pod_that_has_only_a_limit_asks_for_that_and_the_cache():
    pod = pod_of(made({"gib": 200}, pods={"memoryLimit": "80Gi"}))

    # Without the cache the API server takes the limit as what is asked for.
    assert room(pod)[1] == "281Gi" == pod["containers"][0]["resources"]["limits"]["memory"]


def test_each_data_parallel_rank_gets_its_part():
    hardware = {"gpu": "H200", "parallelism": {"tensor": 2, "pipeline": 1, "data": 2}}
    model = {"id": "Qwen/Qwen3-30B-A3B", "kvOffload": {"gib": 201}}
    pod = pod_of(made(None, model=model, hardware=hardware))
    flags = dict(argument_pairs(pod["containers"][0]["args"]))

    assert flags["--data-parallel-size"] == "2"
    assert flags["--kv-offloading-size"] == "100.5"
    assert room(pod)[0] == "209Gi"


def test_it_is_as_large_as_the_working_set_where_only_that_is_said():
    flags = dict(
        argument_pairs(pod_of(made({"workingSetTokens": 900_000}))["containers"][0]["args"])
    )

    # 80 layers, 8 heads of 128, 16 bits: 320 KiB a token.
    assert flags["--kv-offloading-size"] == "275"


def test_a_working_set_that_no_host_holds_is_refused():
    with pytest.raises(NotServableError, match="takes 305176 GiB of host memory, at most 65536"):
        made({"workingSetTokens": 10**9})


def test_what_is_said_of_the_working_set_replaces_no_pods():
    with_it, other, without = (
        spec_digest(a_model_with({"gib": 200, **said}))
        for said in ({"workingSetTokens": 1}, {"workingSetTokens": 2}, {})
    )

    assert with_it == other == without
    assert spec_digest(a_model_with({"workingSetTokens": 1})) != spec_digest(
        a_model_with({"workingSetTokens": 2})
    )


def test_a_pod_has_longer_to_start_with_it():
    def failures(manifest):
        return pod_of(manifest)["containers"][0]["startupProbe"]["failureThreshold"]

    # At 2 GB/s, twice: 8,000 GiB take 8,590 s, in probes of 10 s.
    assert failures(made({"gib": 200})) == failures(made(None)) == 180
    assert 859 < failures(made({"gib": 8_000})) < 859 + 100


def test_without_it_nothing_is_rendered():
    pod = pod_of(made(None))

    assert not any("offloading" in each for each in pod["containers"][0]["args"])
    assert room(pod) == ("8Gi", None)


def test_it_replaces_pods_and_what_is_learned_is_of_it_alone():
    with_it, without = (asked(a_model_with(each)) for each in ({"gib": 200}, None))

    assert with_it.engine_digest != without.engine_digest
    assert asked(a_model_with({"gib": 300})).engine_digest == with_it.engine_digest


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"kv_offload": {"gib": 200}, "version": "0.30"}, "kvOffload needs engine.version 0.31"),
        (
            {"kv_offload": {"gib": 200}, "args": ["--no-enable-prefix-caching"]},
            "--no-enable-prefix-caching",
        ),
        (
            {
                "kv_offload": None,
                "model": {"id": "google/gemma-3-27b-it", "kvOffload": {"gib": 200}},
            },
            "layers with a window or a state",
        ),
        (
            {
                "kv_offload": {"gib": 10},
                "hardware": {"gpu": "GB10", "gpusPerReplica": 1},
            },
            "the memory of GB10 is that of its host",
        ),
        (
            {
                "kv_offload": {"gib": 10},
                "pods": {
                    "env": [
                        {
                            "name": "PYTORCH_CUDA_ALLOC_CONF",
                            "secretKeyRef": {"name": "a", "key": "b"},
                        }
                    ]
                },
            },
            "does not go with the variable PYTORCH_CUDA_ALLOC_CONF",
        ),
    ],
)
def test_what_no_engine_can_is_refused(given, why):
    with pytest.raises(UnsupportedEngineError, match=why):
        asked(a_model_with(**given))


def test_pipeline_stages_are_refused_and_not_chosen():
    stages = {"gpu": "H200", "parallelism": {"pipeline": 2}}
    with pytest.raises(InvalidParallelismError, match="pipeline"):
        asked(a_model_with({"gib": 200}, hardware=stages))

    several = asked(a_model_with({"gib": 200}, hardware={"gpu": "H200", "gpusPerReplica": 16}))
    with pytest.raises(InvalidParallelismError, match="kvOffload takes no pipeline"):
        size(several)

    open_split = asked(a_model_with({"gib": 200}, hardware={"gpu": "H200", "gpusPerReplica": 2}))
    assert {each.pipeline for each in splits_for(replace(open_split, num_gpus=2))} == {1}


@pytest.mark.parametrize(
    ("version", "moved", "is_shared"),
    [
        ("0.33", {}, True),
        ("0.33", {"has_host_cache": True}, False),
        ("0.33", {"role": "decode"}, True),
        ("0.28", {"role": "decode"}, False),  # its connector knows no such ranks
    ],
)
def test_ranks_share_out_a_context_only_where_its_cache_is_moved_right(version, moved, is_shared):
    latent = a_shape(groups=(a_layer_group(attention=a_latent_attention()),))
    given = asked(a_model_with(None, hardware={"gpu": "H200"}, version=version))
    request = replace(given, shape=latent, **moved)

    assert any(each.context > 1 for each in splits_for(replace(request, num_gpus=2))) is is_shared


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"kv_offload": {"gib": 0}}, "model.kvOffload.gib"),
        (
            {"kv_offload": {"workingSetTokens": 0}},
            "workingSetTokens above 0",
        ),
        ({"kv_offload": None, "model": {"id": "a/b", "kvOffload": {}}}, "workingSetTokens above 0"),
        (
            {"kv_offload": {"gib": 1}, "engine": {"version": "0.33", "role": "prefill"}},
            "kvOffload must not be set with engine.role",
        ),
        (
            {"kv_offload": {"gib": 1}, "engine": None, "scaleTarget": {"name": "mine"}},
            "kvOffload must not be set with scaleTarget",
        ),
    ],
)
def test_what_means_nothing_is_refused(spec, why):
    with pytest.raises(InvalidSpecError, match=why):
        a_model_with(**spec)
