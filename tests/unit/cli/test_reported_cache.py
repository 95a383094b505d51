"""A plan with a calibration whose engine reported its KV cache."""

import pytest

from calibration_builders import a_file
from cli_builders import answered
from tonnage.estimate.calibration_file import ReportedCache, key_of
from tonnage.sizing.provenance import Figure, Input, Origin

PLANNED = answered()
KEY = key_of(PLANNED.sizing.request, PLANNED.sizing.flags.parallelism)
UTILIZATION = PLANNED.sizing.flags.gpu_memory_utilization
CONTEXT_TOKENS = 8192
TOLD = Input(figure=Figure.KV_CACHE, value="400,000 tokens of a rank", origin=Origin.MEASURED)


def planned(**cache):
    told = {
        "tokens": 400_000.0,
        "max_model_len": CONTEXT_TOKENS,
        "gpu_memory_utilization": UTILIZATION,
    }
    reported = ReportedCache(**told | cache)
    return answered(calibration=a_file(key=KEY, cache=reported)).sizing


def test_plans_for_what_was_reported():
    sizing = planned()

    assert sizing.kv_tokens_range == (sizing.kv_tokens, sizing.kv_tokens), "measured: no doubt"
    assert sizing.kv_tokens == pytest.approx(400_000, rel=0.001)
    assert TOLD in sizing.request.inputs
    assert sizing.flags.parallelism == PLANNED.sizing.flags.parallelism


@pytest.mark.parametrize(
    "other",
    [
        {"max_model_len": CONTEXT_TOKENS - 1},
        {"gpu_memory_utilization": UTILIZATION - 0.02},
        {"gpu_memory_utilization": None},
    ],
    ids=["another length", "another share of the memory", "a share that nobody told"],
)
def test_plans_for_the_estimate_where_the_engine_was_started_otherwise(other):
    sizing = planned(**other)

    assert sizing.kv_tokens == pytest.approx(PLANNED.sizing.kv_tokens, rel=0.02)
    assert sizing.request.measured_kv_tokens is None
    assert TOLD not in sizing.request.inputs
