"""Calibration files: what is written comes back, and what is for something else is refused."""

import json
import re
from dataclasses import replace

import pytest

from calibration_builders import KEY, a_file
from fleet_builders import a_sizing
from tonnage.estimate.calibration_file import (
    ReportedCache,
    check_key,
    dump,
    load,
    reported_kv_tokens,
    speed_posterior_of,
)
from tonnage.estimate.errors import CalibrationFileError
from tonnage.sizing.options import Adapters
from tonnage.sizing.split import Parallelism


def test_what_is_written_comes_back():
    file = a_file(remarks=("one",))

    assert load(dump(file)) == file


def test_a_file_of_a_version_that_replayed_traffic_is_read():
    file = a_file()
    validation = {"date": "2026-11-20", "requests": 9, "ttftP95ErrorFraction": 0.04}
    before = {**file.to_dict(), "hasMetrics": True, "validation": validation}

    found = load(json.dumps(before))

    assert speed_posterior_of(found) == speed_posterior_of(file)
    assert "validation" not in json.loads(dump(found))


def test_its_key_stands_in_clear():
    key = json.loads(dump(a_file()))["key"]

    assert key["model"] == "meta-llama/Llama-3.3-70B-Instruct"
    assert key["parallelism"] == {"tensor": 2, "pipeline": 1, "data": 1, "context": 1}
    assert str(KEY) == (
        "meta-llama/Llama-3.3-70B-Instruct (0123456789ab), weights fp8, kvCache bf16, H200, TP2, "
        "vLLM 0.33"
    )


def test_it_is_written_for_people():
    text = dump(a_file(remarks=("Zürich",)))

    assert text.startswith('{\n  "version": 1,\n  "date"')
    assert "Zürich" in text


def test_the_learner_can_start_from_it():
    posterior = speed_posterior_of(a_file())

    assert (posterior.overhead_factor, posterior.bandwidth_efficiency) == (2.5, 0.6)
    assert posterior.prefill_efficiency == 0.4
    assert posterior.covariance == (0.1, 0.0, 0.0, 0.2, 0.0, 0.3)
    assert (posterior.num_windows, posterior.num_steps) == (2, 400)
    assert posterior.learned_at_s == 1.7e9


FLAGS = a_sizing().flags
REQUEST = a_sizing().request
CACHE = ReportedCache(
    tokens=400_000.0,
    max_model_len=REQUEST.context_tokens,
    gpu_memory_utilization=FLAGS.gpu_memory_utilization,
)


def test_an_engine_started_alike_has_the_cache_that_the_tested_one_reported():
    assert reported_kv_tokens(CACHE, REQUEST, FLAGS) == 400_000


@pytest.mark.parametrize(
    ("cache", "flags"),
    [
        (None, {}),
        ({"max_model_len": REQUEST.context_tokens + 1}, {}),
        ({"gpu_memory_utilization": None}, {}),
        ({"gpu_memory_utilization": FLAGS.gpu_memory_utilization - 0.01}, {}),
        ({}, {"kv_cache_bytes": 10**10}),
        ({}, {"num_gpu_blocks": 1000}),
    ],
)
def test_of_an_engine_started_otherwise_a_test_says_no_cache(cache, flags):
    told = None if cache is None else CACHE.model_copy(update=cache)

    assert reported_kv_tokens(told, REQUEST, replace(FLAGS, **flags)) is None


@pytest.mark.parametrize(
    "asked", [{"adapters": Adapters(number=8, rank=64)}, {"max_num_batched_tokens": 16_384}]
)
def test_of_an_engine_that_holds_more_beside_its_cache_a_test_says_no_cache(asked):
    assert reported_kv_tokens(CACHE, replace(REQUEST, **asked), FLAGS) is None


@pytest.mark.parametrize(
    "change",
    [
        {"model_digest": "ba9876543210"},
        {"weights": "bf16"},
        {"kv_cache": "fp8"},
        {"gpu": "H100"},
        {"parallelism": Parallelism(tensor=2, pipeline=2)},
        {"engine": "0.32"},
    ],
)
def test_another_key_is_refused_with_both(change):
    asked = KEY.model_copy(update=change)

    with pytest.raises(CalibrationFileError) as caught:
        check_key(a_file(), asked)

    assert str(KEY) in str(caught.value)
    assert str(asked) in str(caught.value)


def test_another_name_of_the_same_configuration_is_the_same_model():
    check_key(a_file(), KEY.model_copy(update={"model": "my/copy"}))


def changed(**changes):
    return json.dumps(json.loads(dump(a_file())) | changes)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "not a calibration file of version 1"),
        (changed()[:-1] + ', "steps": 7}', "not JSON: key 'steps' is given twice"),
        (changed().replace('"tensor": 2', '"tensor": 4, "tensor": 2'), "'tensor' is given twice"),
        (changed().replace('"tensor": 2', '"tensor": 0'), "key.parallelism: Value error, "),
        (changed().replace('"tensor": 2', '"tensor": 2.5'), "key.parallelism.tensor: "),
        (changed().replace('"tensor": 2', '"expert": 2'), "key.parallelism.expert: Unexpected"),
        (changed(requests=1e999), "requests: "),
        (changed(version=2), "not a calibration file of version 1: its version is 2"),
        (changed(extra=1), "extra: Extra inputs are not permitted"),
        (changed(requests=0), "requests: "),
        (changed(points=[]), "points: "),
        (changed(requests=0, points=[]), "requests: "),
        (changed(measuredAtS=-1), "measuredAtS: "),
        (
            changed(constants={"overheadFactor": 0, "bandwidthEfficiency": 0.5,
                               "prefillEfficiency": 0.5, "covariance": [0] * 6}),
            "constants.overheadFactor: ",
        ),
        (
            changed(constants={"overheadFactor": 1, "bandwidthEfficiency": 1.5,
                               "prefillEfficiency": 1, "covariance": [0] * 6}),
            "constants.bandwidthEfficiency: ",
        ),
        (changed().replace("0.6", "NaN"), "constants.bandwidthEfficiency: "),
        (
            changed(constants={"overheadFactor": 1, "bandwidthEfficiency": 0.5,
                               "prefillEfficiency": 1, "covariance": [0.1, 0.2, 0, 0.1, 0, 0.1]}),
            "constants.covariance: Value error, [0.1, 0.2, 0.0, 0.1, 0.0, 0.1] is not the covar",
        ),
    ],
)  # fmt: skip
def test_what_is_no_calibration_names_the_field(text, message):
    with pytest.raises(CalibrationFileError, match=re.escape(message)):
        load(text)
