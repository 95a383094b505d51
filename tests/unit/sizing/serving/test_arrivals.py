"""The requests that a replica is tried with: as many, as long and as bursty as asked."""

import math
from itertools import pairwise
from statistics import fmean, pvariance

import pytest

from builders import a_workload
from tonnage.sizing.serving.trial import requests
from tonnage.sizing.workload import Lengths

COUNT = 20_000
SPREAD = Lengths(mean_tokens=2_000, p99_tokens=8_000)


def drawn(workload=None, *, scv=1.0, context=131_072, count=COUNT):
    return requests(workload or a_workload(), arrival_scv=scv, context_tokens=context, count=count)


def scv_of(values):
    return pvariance(values) / fmean(values) ** 2


def gaps(found):
    at = [0.0, *found.at]
    return [after - before for before, after in pairwise(at)]


@pytest.mark.parametrize("scv", [0.25, 1.0, 4.0, 9.0])
def test_gaps_between_arrivals_vary_as_asked(scv):
    found = gaps(drawn(scv=scv))

    assert fmean(found) == pytest.approx(1)
    # Of 20,000 gamma gaps: the fourth moment of the widest leaves some 6 % of doubt.
    assert scv_of(found) == pytest.approx(scv, rel=0.1)


def test_the_last_request_comes_after_as_many_mean_gaps_as_there_are_requests():
    assert drawn(count=500).at[-1] == pytest.approx(500)


def test_at_a_rate_they_come_that_often():
    table = drawn(count=500).table(4.0)

    assert table.arrival_s[499] == pytest.approx(500 / 4)


def test_the_same_requests_come_at_every_rate():
    slow, fast = drawn().table(1.0), drawn().table(8.0)

    assert list(slow.prompt_tokens) == list(fast.prompt_tokens)
    assert list(slow.output_tokens) == list(fast.output_tokens)
    assert all(
        late == pytest.approx(8 * early)
        for late, early in zip(slow.arrival_s, fast.arrival_s, strict=True)
    )


def test_prompts_have_the_mean_and_the_p99_of_the_workload():
    found = sorted(drawn(a_workload(prompt=SPREAD)).prompt_tokens)

    assert fmean(found) == pytest.approx(2_000, rel=0.005)
    assert found[int(0.99 * COUNT)] == pytest.approx(8_000, rel=0.02)
    assert scv_of(found) == pytest.approx(SPREAD.scv, rel=0.05)


def test_prompts_without_a_p99_are_all_of_one_length():
    assert set(drawn().prompt_tokens) == {2_000}


def test_outputs_are_exponential_where_only_their_mean_is_known():
    found = sorted(drawn().output_tokens)

    assert fmean(found) == pytest.approx(500, rel=0.005)
    assert scv_of(found) == pytest.approx(1, rel=0.02)
    assert found[int(0.95 * COUNT)] == pytest.approx(500 * math.log(20), rel=0.01)


@pytest.mark.parametrize("scv", [0.0, 0.5, 3.0])
def test_outputs_have_the_second_moment_that_was_measured(scv):
    found = drawn(a_workload(output_second_moment=500**2 * (1 + scv))).output_tokens

    assert fmean(found) == pytest.approx(500, rel=0.01)
    assert scv_of(found) == pytest.approx(scv, rel=0.05, abs=1e-6)


def test_none_is_longer_than_the_engine_takes():
    found = drawn(a_workload(prompt=SPREAD, output_tokens=1_000), context=4_000)

    pairs = list(zip(found.prompt_tokens, found.output_tokens, strict=True))
    assert max(prompt + output for prompt, output in pairs) == 4_000
    assert min(min(pair) for pair in pairs) >= 1


def test_a_cached_share_of_each_prompt_needs_no_prefill():
    found = drawn(a_workload(prompt=SPREAD, cached_fraction=0.5))

    assert sum(found.cached_tokens) / sum(found.prompt_tokens) == pytest.approx(0.5, rel=1e-3)


def test_of_a_prompt_that_is_all_cached_a_token_is_computed():
    found = drawn(a_workload(cached_fraction=1.0), count=10)

    assert set(found.cached_tokens) == {1_999}


def test_a_router_chooses_evenly():
    shares = drawn().routes

    assert min(shares) >= 0
    assert max(shares) < 1
    assert fmean(shares) == pytest.approx(0.5, abs=0.01)


def test_arrivals_prompts_and_outputs_are_independent():
    found = drawn(a_workload(prompt=SPREAD))
    columns = (gaps(found), found.prompt_tokens, found.output_tokens, found.routes)

    for number, one in enumerate(columns):
        for other in columns[number + 1 :]:
            assert abs(correlation(one, other)) < 0.03  # four standard errors


def correlation(one, other):
    mean, others = fmean(one), fmean(other)
    together = fmean((x - mean) * (y - others) for x, y in zip(one, other, strict=True))
    return together / math.sqrt(pvariance(one) * pvariance(other))


def test_what_is_cut_off_at_the_longest_is_not_made_up_for():
    found = drawn(a_workload(prompt=SPREAD), context=3_000)

    assert fmean(found.prompt_tokens) < 2_000
