"""The bench against a request log, on a log that the reference engine wrote itself."""

import random
from statistics import median

import pytest
from replay_recording import (
    ENGINES,
    Bench,
    Recorded,
    StepConstants,
    by_fast_reference,
    by_reference,
    by_time,
    compared,
)

from reference_engine import EngineLimits, Request

pytestmark = pytest.mark.thorough

LIMITS = EngineLimits(max_num_seqs=4, max_num_batched_tokens=256, num_blocks=200, max_model_len=400)
TRUE = StepConstants(
    per_step_s=0.02,
    per_sequence_s=0.001,
    per_context_token_s=2e-6,
    per_prefill_token_s=4e-4,
    per_request_s=0.01,
)


@pytest.fixture
def bench():
    chance, at_s, found = random.Random(1), 0.0, []  # noqa: S311 -- a scenario has no secrets
    for number in range(60):
        at_s += chance.expovariate(1.2)
        request = Request(
            number=number,
            prompt_tokens=chance.randint(10, 300),
            output_tokens=chance.randint(2, 90),
            arrival_s=at_s,
        )
        found.append(Recorded(request=request, ttft_s=0.0, e2e_s=0.0))
    blank = Bench(found=found, limits=LIMITS, replay=by_fast_reference)
    return Bench(found=blank.predicted(TRUE), limits=LIMITS, replay=by_fast_reference)


def test_both_engines_replay_a_log_alike(bench):
    stepping = Bench(found=bench.found, limits=LIMITS, replay=by_reference)

    assert set(ENGINES.values()) == {by_fast_reference, by_reference}
    for one, other in zip(stepping.predicted(TRUE), bench.found, strict=True):
        assert one.ttft_s == pytest.approx(other.ttft_s)
        assert one.e2e_s == pytest.approx(other.e2e_s)


def test_constants_fitted_on_one_half_serve_the_other_half_alike(bench):
    first, second = bench.halves((0, 0))
    predicted = bench.predicted(bench.fitted(first))

    off = [abs(predicted[each].e2e_s / bench.found[each].e2e_s - 1) for each in second]
    assert median(off) <= 0.05
    assert len(compared(bench.found, predicted, second)) == 3
    assert by_time(bench.found, bench.found).startswith("0 s 1.00")


def test_a_time_that_is_left_out_is_in_neither_half(bench):
    first, second = bench.halves((10, 20))

    arrivals_s = [bench.found[number].request.arrival_s for number in (*first, *second)]
    assert not any(10 <= each < 20 for each in arrivals_s)
    assert max(arrivals_s[: len(first)]) < min(arrivals_s[len(first) :])
