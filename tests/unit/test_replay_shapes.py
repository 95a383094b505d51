"""The shapes that only the replay benchmark has."""

import pytest
from replay_cases import ALL_SHAPES, SWAPS, llmd

from tonnage.sizing.workload import Lengths, Workload

pytestmark = pytest.mark.thorough

WORKLOAD = Workload(prompt=Lengths(mean_tokens=500, p99_tokens=1500), output_tokens=100)


def drawn(name, times=1.0, **changes):
    return ALL_SHAPES[name].draw(WORKLOAD, times, context_tokens=32_768, **changes)


def count(found, from_s, until_s):
    return sum(from_s <= at_s < until_s for at_s in found.arrival_s)


def mean(values):
    return sum(values) / len(values)


def test_the_scored_profile_of_llm_d_is_exact():
    trace = llmd()

    assert len(trace) == 12_480 == 2 * 330 + (4 + 6 + 8 + 10 + 4) * 360 + 1 * 300
    assert list(trace.arrival_s[:3]) == [0.0, 0.5, 1.0]
    assert trace.arrival_s[660] == 330.0
    assert trace.arrival_s[-1] == 2429.0
    assert (min(trace.prompt_tokens), max(trace.prompt_tokens)) == (3500, 4500)
    assert (min(trace.output_tokens), max(trace.output_tokens)) == (900, 1100)
    assert mean(trace.prompt_tokens) == pytest.approx(4000, abs=10)
    assert mean(trace.output_tokens) == pytest.approx(1000, abs=3)


def test_a_profile_may_be_scaled_and_its_rate_is_not_the_specs():
    found = drawn("llmd", times=0.5)

    assert found.num_requests == 6240
    assert found.duration_s == 2430


@pytest.mark.parametrize("name", SWAPS)
def test_a_swap_brings_its_own_rate_and_one_length_in_each_stage(name):
    swap, found = SWAPS[name], drawn(name)
    traffic = found
    lengths = zip(traffic.prompt_tokens, traffic.output_tokens, strict=True)

    assert found.duration_s == 2 * swap.stage_s
    # Poisson, of 2,880 requests or more.
    assert found.num_requests / found.duration_s == pytest.approx(swap.requests_per_s, rel=0.05)
    for at_s, each in zip(traffic.arrival_s, lengths, strict=True):
        assert each == swap.stages[at_s >= swap.stage_s]


def test_a_swap_may_be_scaled_and_what_is_longer_than_the_context_is_told():
    found = drawn("swap", times=2.0)
    assert found.num_requests == pytest.approx(26_400, rel=0.03)

    short = ALL_SHAPES["swap"].draw(WORKLOAD, 1.0, context_tokens=6999)
    assert len(short.too_long_s) == count(drawn("swap"), 0, 1100)
