"""The bench of a real engine: what it takes over from an object, and what it asks."""

import pytest
from vllm_cpu import Figure, in_loop_s, in_words, line, middle, with_learned

from builders import a_replica, a_workload
from tonnage.api.status import CalibrationStatus, LearnedConstant
from tonnage.catalog.engine_speed import TEXTBOOK_SPEED
from tonnage.estimate.learner import constants_of
from tonnage.estimate.posterior import SpeedPosterior
from tonnage_lab.load_client import RequestRecord

pytestmark = pytest.mark.thorough

PRIOR = TEXTBOOK_SPEED
LEARNED = SpeedPosterior(
    overhead_factor=3.0,
    bandwidth_efficiency=0.5,
    prefill_efficiency=0.8,
    covariance=(0.01, 0, 0, 0.04, 0, 0.09),
)


def a_constant(prior: float, learned: float) -> LearnedConstant:
    return LearnedConstant(prior=prior, learned=learned, planned=learned, deviation_fraction=0.1)


def a_calibration() -> dict:
    """Return what stands in an object that has learned, as the API server gives it back."""
    written = CalibrationStatus(
        evidence="Namespace",
        corroborating_namespaces=0,
        windows=12,
        busy_steps=900,
        overhead_factor=a_constant(1.0, LEARNED.overhead_factor),
        bandwidth_efficiency=a_constant(1.0, LEARNED.bandwidth_efficiency),
        prefill_efficiency=a_constant(1.0, LEARNED.prefill_efficiency),
        step_time=a_constant(1.0, 1.5),
        requests_per_second=1.0,
        prior_requests_per_second=1.5,
        prior_kv_tokens=65_536,
    )
    return written.model_dump(by_alias=True, mode="json")


def test_what_an_object_learned_stands_for_the_prior_as_in_the_operator():
    assert with_learned(PRIOR, a_calibration()) == constants_of(LEARNED, PRIOR)


def test_what_was_learned_is_said_with_its_prior_and_its_evidence():
    said = in_words(a_calibration())

    assert "bandwidthEfficiency 0.5 (prior 1, +-10%)" in said
    assert said.endswith("Namespace, 12 windows, 900 steps")


def test_every_prediction_stands_beside_the_one_measurement():
    figure = Figure(kind="TPOT", number=4, predicted_s=lambda each: each, measured_s=0.05)

    assert line(figure, [0.06, 0.045]).split() == [
        "TPOT", "4", "0.0500", "0.0600", "+20.0%", "0.0450", "-10.0%",
    ]  # fmt: skip


def test_users_who_wait_for_answers_are_predicted_by_the_engine_model():
    tpot_s, ttft_s = (
        in_loop_s(a_replica(), workload=a_workload(), users=4, kind=kind)
        for kind in ("tpot", "ttft")
    )

    assert 0 < tpot_s < ttft_s


def test_answers_of_one_token_have_no_tpot_and_do_not_count():
    records = [
        RequestRecord(start_s=0, prompt_tokens=1, output_tokens=2, status=200, tpot_s=tpot_s)
        for tpot_s in (0.1, None, 0.3, 0.2)
    ]

    assert middle(records, "tpot_s") == 0.2


@pytest.mark.parametrize("name", ["overheadFactor", "bandwidthEfficiency", "prefillEfficiency"])
def test_a_calibration_without_a_constant_is_an_error_and_not_the_prior(name):
    found = a_calibration()
    del found[name]

    with pytest.raises(KeyError, match=name):
        with_learned(PRIOR, found)
