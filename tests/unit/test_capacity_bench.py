"""Predicted against simulated goodput on some workloads, and that the simulated is what it says."""

import math
from itertools import islice
from statistics import median

import numpy as np
import pytest
from capacity import predicted, true_goodput, truth_of
from capacity_grid import BURSTS, DATA_PARALLEL, FEW, OVERFLOW, SPECULATION, cases
from fleet import Fleet, Load, Traffic

from reference_engine import EngineLimits
from tonnage.sizing.workload import Lengths, Slo, Target, Workload

pytestmark = pytest.mark.thorough

FEW_REQUESTS = 2000
"""With so few the truth is uncertain by some 4 %."""
SPECIAL = {FEW, BURSTS, OVERFLOW, SPECULATION, DATA_PARALLEL}


class OneSecond:
    """Of every step that has a prompt in it."""

    attention_s = prompt_attention_s = np.zeros(100)

    def decode_s(self, num_decoding):
        return 1.0

    def mixed_s(self, num_decoding, prefill_tokens, own_tokens):
        return 1.0


def waits_no_longer(rate, wait_s):
    """The waiting time behind one server of 1 s with random arrivals: Erlang's sum."""
    return (1 - rate) * sum(
        (rate * (k - wait_s)) ** k / math.factorial(k) * math.exp(-rate * (k - wait_s))
        for k in range(math.floor(wait_s) + 1)
    )


@pytest.mark.parametrize("guess", [0.2, 1.0])
def test_the_goodput_of_one_server_is_the_one_of_its_queue(guess):
    slo = Slo(
        ttft=(Target(quantile=0.95, limit_s=3.5),), tpot=(Target(quantile=0.95, limit_s=1.0),)
    )
    limits = EngineLimits(max_num_seqs=1, max_num_batched_tokens=64, num_blocks=8, max_model_len=96)
    workload = Workload(prompt=Lengths(mean_tokens=60), output_tokens=1, output_second_moment=1)
    load = Load(
        traffic=Traffic(workload=workload, context_tokens=96),
        num_requests=10_000,
        crowd=1,
        num_blocks=10,
    )

    truth = true_goodput(Fleet(limits=limits, figures=OneSecond()), load, slo, guess=guess)

    assert truth is not None
    assert truth.error < 0.02
    # A wait of 2.5 s and the step itself.
    misses = 1 - waits_no_longer(truth.requests_per_s, 2.5)
    slope = 4  # of misses in the rate, here
    assert math.log(misses / 0.05) / slope == pytest.approx(0, abs=3 * truth.error)


@pytest.fixture(scope="module")
def plain():
    """The first workloads of which nothing is special."""
    return [
        case
        for case in islice(cases(0.95), 20)
        if not case.request.flags and not SPECIAL & set(case.groups(max_num_seqs=8))
    ][:4]


def test_predicted_goodput_is_near_what_the_reference_engine_serves(plain):
    errors = []
    for case in plain:
        found = predicted(case)
        truth = truth_of(case, found, FEW_REQUESTS, goal=math.inf)
        errors.append(abs(found.requests_per_s / truth.requests_per_s - 1))

    # The whole grid: see tests/bench/capacity.md; what is simulated here strays by itself.
    assert median(errors) <= 0.05
