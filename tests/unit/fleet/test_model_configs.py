"""Files of ConfigMaps: how often they are read, how much of them, and what is kept."""

import json

import pytest

from bad_input import LLAMA_8B
from fleet_builders import NOW_S, a_manifest, a_model, no_config
from kube_double import KubeDouble
from tonnage.catalog.models import read_model_config
from tonnage.catalog.shape import ModelShape
from tonnage.cluster.calls import KubernetesError
from tonnage.fleet.references import AGE_S, MOST_BYTES, ModelConfigs, place_of
from tonnage.fleet.views import model_view

PLACE = "/api/v1/namespaces/serving/configmaps/my-model"
TICK_S = 15
WIDE, NARROW = (json.loads(LLAMA_8B) | {"vocab_size": size} for size in (64_000, 32_000))


def holding(config):
    return {"data": {"config.json": config if isinstance(config, str) else json.dumps(config)}}


class Reading:
    """An object that refers to a ConfigMap, and the times at which the API server was asked."""

    def __init__(self, body=None):
        self.asked_s, self.now_s = [], NOW_S
        self.kube = KubeDouble([] if body is None else [(PLACE, body)])
        self.kube.fail = lambda verb, path: self.asked_s.append(self.now_s - NOW_S)
        self.configs = ModelConfigs(kube=self.kube, tick_s=TICK_S)

    def at(self, after_s=0, **spec):
        """The shape, or why there is none, so many seconds after the first look."""
        reference = {"configMapKeyRef": {"name": "my-model", "key": "config.json"}}
        body = a_manifest(model={"id": "my/model", "config": reference}, **spec)
        self.now_s = NOW_S + after_s
        return self.configs.of(model_view(body), parse(body), self.now_s)


def parse(body):
    metadata = body["metadata"]
    return a_model(generation=metadata["generation"], model=body["spec"]["model"])


def test_a_shape_is_all_that_is_kept():
    assert Reading(holding(WIDE)).at() == read_model_config(json.dumps(WIDE), name="my/model")


def test_one_that_is_no_model_says_so_each_time():
    assert Reading(holding("{}")).at().code == "ModelConfig"


def test_a_further_key_says_how_weights_are_quantized():
    second = json.dumps({"quantization": {"quant_algo": "NVFP4", "exclude_modules": ["lm_head"]}})
    body = {"data": {"config.json": LLAMA_8B, "hf_quant_config.json": second}}
    shape = Reading(body).at()

    assert shape.weight_format.name == "nvfp4"

    body["data"]["hf_quant_config.json"] = "{"
    bad = Reading(body).at()

    assert bad.code == "ModelConfig"
    assert "hf_quant_config.json" in bad.message


@pytest.mark.parametrize("size", [MOST_BYTES, MOST_BYTES + 1])
def test_no_more_than_a_mib_is_read(size):
    text = LLAMA_8B + " " * (size - len(LLAMA_8B))

    found = Reading(holding(text)).at()

    assert isinstance(found, ModelShape) == (size <= MOST_BYTES)
    if size > MOST_BYTES:
        assert found == no_config(
            "config.json of ConfigMap my-model in serving has 1048577 bytes; at most 1048576 are "
            "read"
        )


@pytest.mark.parametrize("body", [None, {}, {"data": None}, {"data": {"other": "{}"}}])
def test_one_that_is_not_there_is_named(body):
    found = Reading(body).at()

    assert found == no_config("ConfigMap my-model has no key config.json in serving")


def test_it_is_read_again_after_a_while_or_for_another_spec():
    reading = Reading(holding(WIDE))
    reading.at()
    reading.kube.put(PLACE, holding(NARROW))

    sizes = [
        reading.at(after_s, generation=generation).vocab_size
        for after_s, generation in [(AGE_S - 1, 1), (AGE_S, 1), (AGE_S + 1, 1), (AGE_S + 2, 2)]
    ]

    assert sizes == [64_000, 32_000, 32_000, 32_000]
    assert reading.asked_s == [0, AGE_S, AGE_S + 2]


@pytest.mark.parametrize("before", [None, "{}", "x" * (MOST_BYTES + 1)])
def test_one_that_comes_late_or_is_mended_is_seen_in_the_next_tick(before):
    reading = Reading(None if before is None else holding(before))
    for after_s in range(0, 3600, TICK_S):
        reading.at(after_s)
    reading.kube.put(PLACE, holding(WIDE))

    assert reading.at(3600) == read_model_config(json.dumps(WIDE), name="my/model")


def test_who_names_many_that_are_missing_waits_for_them_and_nobody_else():
    reading = Reading()
    reading.configs._files.num_missing.update(serving=50, other=5000)
    for after_s in range(0, 600, TICK_S):
        reading.at(after_s)

    assert reading.asked_s == [0, 150, 300, 450]


def test_one_that_was_read_holds_while_it_cannot_be_read():
    reading = Reading(holding(WIDE))
    before = reading.at()

    def down(verb, path):
        raise KubernetesError("down", status=0)

    reading.kube.fail = down

    assert reading.at(AGE_S) == before


def test_one_that_never_could_be_read_is_a_problem():
    reading = Reading()

    def denied(verb, path):
        raise KubernetesError("forbidden", status=403)

    reading.kube.fail = denied

    assert reading.at() == no_config("ConfigMap my-model: forbidden")


def test_what_nobody_names_any_more_is_forgotten():
    reading = Reading(holding(WIDE))
    reading.at()
    reading.configs.forget([], [])
    reading.at(1)

    assert reading.asked_s == [0, 1]


def test_a_spec_without_a_config_has_no_place():
    assert place_of(a_model()) is None
