"""A file of ``tonnage calibrate``, as a value of which a test changes what it is about."""

from tonnage.estimate.calibration_file import (
    CalibrationFile,
    CalibrationKey,
    LearnedConstants,
    MeasuredPoint,
    ObservedUtilization,
)
from tonnage.sizing.split import Parallelism

KEY = CalibrationKey(
    model="meta-llama/Llama-3.3-70B-Instruct",
    model_digest="0123456789ab",
    weights="fp8",
    kv_cache="bf16",
    gpu="H200",
    parallelism=Parallelism(tensor=2),
    engine="0.33",
)


def a_file(**changes):
    """An engine with more overhead and less bandwidth than the catalogue expects."""
    point = MeasuredPoint(
        kind="decode", sequences=4, prompt_tokens=128, seconds=0.02, prior_error_fraction=-0.2,
        error_fraction=0.01,
    )  # fmt: skip
    values = {
        "date": "2026-11-20",
        "measured_at_s": 1.7e9,
        "key": KEY,
        "constants": LearnedConstants(
            overhead_factor=2.5,
            bandwidth_efficiency=0.6,
            prefill_efficiency=0.4,
            covariance=(0.1, 0.0, 0.0, 0.2, 0.0, 0.3),
        ),
        "requests": 60,
        "steps": 400,
        "points": (point, point),
        "observed": ObservedUtilization(mbu_fraction=0.5, mfu_fraction=0.3),
        "has_metrics": True,
    }
    return CalibrationFile(**values | changes)
