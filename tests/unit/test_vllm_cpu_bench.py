"""The bench of a real engine: what it takes over from an object, and what it asks."""

import json
from dataclasses import asdict

import pytest
from vllm_cpu import learned, middle

from tonnage.catalog.engine_speed import TEXTBOOK_SPEED
from tonnage.lab.load_records import RequestRecord

PRIOR = asdict(TEXTBOOK_SPEED) | {"per_step_s": 0.002, "per_kernel_s": 4e-6}


def constants_after(tmp_path, calibration):
    path = tmp_path / "object.json"
    path.write_text(json.dumps({"status": {"calibration": calibration}}))
    return learned(type(TEXTBOOK_SPEED)(**PRIOR), path)


def test_what_was_learned_stands_for_the_prior(tmp_path):
    found = constants_after(
        tmp_path,
        {"bandwidthEfficiency": 0.5, "prefillEfficiency": 0.9, "overheadFactor": 3, "busySteps": 9},
    )

    assert (found.bandwidth_efficiency, found.prefill_efficiency) == (0.5, 0.9)
    assert (found.per_step_s, found.per_kernel_s) == pytest.approx((0.006, 12e-6))


def test_an_object_that_learned_one_constant_leaves_the_others(tmp_path):
    found = constants_after(tmp_path, {"bandwidthEfficiency": 0.5})

    assert asdict(found) == PRIOR | {"bandwidth_efficiency": 0.5}


def test_answers_of_one_token_have_no_tpot_and_do_not_count():
    records = [
        RequestRecord(start_s=0, prompt_tokens=1, output_tokens=2, status=200, tpot_s=tpot_s)
        for tpot_s in (0.1, None, 0.3, 0.2)
    ]

    assert middle(records, "tpot_s") == 0.2
