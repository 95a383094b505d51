"""A trace drawn of counts: what came in each minute, and how long it was."""

from dataclasses import replace
from itertools import pairwise

import pytest

from tonnage.replay.measured_traffic import (
    MOST_REQUESTS,
    CountedError,
    MeasuredTraffic,
    Span,
    Spread,
    trace_of,
)

INFINITE = float("inf")
SPREAD = Spread(bounds=(0, 100, 200, 500), counts=(50, 30, 20), mean_tokens=150)


def found(requests, **changes):
    span = Span(selector="", from_s=0, num_steps=len(requests), step_s=60)
    windows = span.num_windows
    whole = MeasuredTraffic(
        span=span, requests=tuple(requests), missing=(), prompts=(SPREAD,) * windows,
        outputs=(SPREAD,) * windows, mean_pods=1.0, model_name=None,
    )  # fmt: skip
    return replace(whole, **changes)


def drawn(*arguments, **changes):
    return trace_of(found(*arguments, **changes), longest_tokens=8192)


def test_each_minute_has_as_many_requests_as_came_in_order_of_arrival():
    trace = drawn([30.0, 0.0, 600.0])
    by_minute = [sum(m <= at_s // 60 < m + 1 for at_s in trace.arrival_s) for m in range(3)]

    assert by_minute == [30, 0, 600]
    assert all(a <= b for a, b in pairwise(trace.arrival_s))


def test_parts_of_requests_come_as_often_as_they_should():
    # 1,000 minutes of 1.25 requests: a deviation of 14.
    assert len(drawn([1.25] * 1000)) == pytest.approx(1250, abs=60)


def test_lengths_have_the_mean_and_the_bins_that_were_counted():
    trace = drawn([40_000.0])

    for lengths in (trace.prompt_tokens, trace.output_tokens):
        assert sum(lengths) / len(lengths) == pytest.approx(150, rel=0.01)
        # 100 itself is drawn of both bins around it.
        assert sum(each < 100 for each in lengths) / len(lengths) == pytest.approx(0.5, abs=0.02)
        assert sum(each <= 200 for each in lengths) / len(lengths) == pytest.approx(0.8, abs=0.02)
        assert 1 <= min(lengths) <= max(lengths) <= 500


def test_the_open_bin_ends_at_the_longest_request():
    spread = Spread(bounds=(0, 100, INFINITE), counts=(0, 10), mean_tokens=4000)
    trace = drawn([5000.0], prompts=(spread,))

    assert min(trace.prompt_tokens) >= 100
    assert 8000 < max(trace.prompt_tokens) <= 8192
    assert sum(trace.prompt_tokens) / len(trace) == pytest.approx(4000, rel=0.02)


def test_lengths_change_with_the_window():
    longer = Spread(bounds=(0, 1000), counts=(1,), mean_tokens=600)
    trace = drawn([100.0] * 20, prompts=(SPREAD, longer))
    after = [p for at_s, p in zip(trace.arrival_s, trace.prompt_tokens, strict=True) if at_s > 600]

    assert sum(after) / len(after) == pytest.approx(600, rel=0.08)


def test_a_mean_beyond_its_bins_is_taken_to_lie_at_their_edge():
    spread = Spread(bounds=(0, 100), counts=(1,), mean_tokens=180)

    assert max(drawn([100.0], prompts=(spread,)).prompt_tokens) <= 100


def test_the_same_seed_draws_the_same_trace_and_another_another():
    one = found([60.0] * 10)

    assert trace_of(one, longest_tokens=8192) == trace_of(one, longest_tokens=8192)
    assert trace_of(one, longest_tokens=8192) != trace_of(one, longest_tokens=8192, seed=1)


def test_more_requests_than_a_replay_takes_are_refused_before_they_are_drawn():
    with pytest.raises(CountedError, match="30 million requests came, 20 million are replayed"):
        drawn([MOST_REQUESTS * 0.75] * 2)
