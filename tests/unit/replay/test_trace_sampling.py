from array import array
from itertools import pairwise

import pytest

from tonnage.replay.traces import Trace, drawn_from, duration_of, times, window_of


def a_trace(*rows):
    """Requests as (arrival, prompt, output)."""
    arrival_s, prompts, outputs = zip(*rows, strict=True)
    return Trace(
        arrival_s=array("d", arrival_s),
        prompt_tokens=array("q", prompts),
        output_tokens=array("q", outputs),
    )


def even(number, *, every_s=1.0, from_s=0.0):
    return a_trace(*((from_s + k * every_s, 100 + k % 3, 10) for k in range(number)))


def drawn(trace, **changes):
    return drawn_from(trace, **{"duration_s": 120.0, "context_tokens": 1000} | changes)


def test_a_window_counts_from_the_first_request_and_begins_at_0():
    part = window_of(even(100, from_s=5000.0), 10.0, 30.0)

    assert list(part.arrival_s) == [float(k) for k in range(20)]
    assert list(part.prompt_tokens[:3]) == [101, 102, 100]  # those of requests 10 to 12


def test_a_window_without_requests_says_how_long_the_trace_is():
    with pytest.raises(ValueError, match="99 s long"):
        window_of(even(100), 200.0)


def test_traffic_lasts_to_the_end_of_the_window_or_of_the_last_minute():
    trace = even(100, from_s=5000.0)  # 99 s

    assert duration_of(trace) == 120.0
    assert duration_of(trace, 30.0) == 90.0
    assert duration_of(trace, 30.0, 70.0) == 40.0


def test_a_share_of_a_trace_is_of_its_own_requests_and_another_with_another_seed():
    trace = even(4000)
    thin, other = (times(trace, 0.25, duration_s=4000.0, seed=seed) for seed in (0, 1))

    # A binomial of 4000 and 1/4 deviates by 27.
    assert len(thin) == pytest.approx(1000, abs=110)
    assert set(thin.arrival_s) <= set(trace.arrival_s)
    assert thin.arrival_s != other.arrival_s
    assert thin == times(trace, 0.25, duration_s=4000.0, seed=0)


def test_copies_come_near_what_they_copy_and_within_the_traffic():
    trace = even(200)
    found = times(trace, 3.0, duration_s=200.0, seed=0)

    assert len(found) == 600
    assert set(trace.arrival_s) <= set(found.arrival_s)
    assert all(0 <= at_s < 200 for at_s in found.arrival_s)
    assert all(early <= late for early, late in pairwise(found.arrival_s))


def test_once_is_the_trace_itself():
    trace = even(10)

    assert times(trace, 1.0, duration_s=10.0, seed=3) is trace


def test_requests_beyond_the_context_are_not_served_but_remembered():
    found = drawn(a_trace((1, 900, 100), (2, 901, 100), (3, 50, 960)))

    assert list(found.arrival_s) == [1.0]
    assert list(found.too_long_s) == [2.0, 3.0]
    assert found.num_requests == 3


def test_a_share_of_each_prompt_is_cached_but_never_all_of_it():
    found = drawn(a_trace((1, 100, 10), (2, 1, 10)), cached_fraction=0.995)

    assert list(found.cached_tokens) == [99, 0]


def test_traffic_has_the_mean_request():
    trace = a_trace(*((k / 2, 100, 10) for k in range(120)), (90, 300, 30), (100, 500, 50))

    (start_s, shape), *others = drawn(trace, duration_s=110.0).shapes
    assert (start_s, others) == (0.0, [])
    assert shape.prompt.mean_tokens == pytest.approx((120 * 100 + 300 + 500) / 122)
    assert shape.prompt.p99_tokens == 300  # the 121st of 122
    assert shape.output_second_moment == pytest.approx((120 * 100 + 900 + 2500) / 122)


def test_windows_in_which_nobody_came_are_like_the_one_before():
    trace = a_trace((700, 100, 10), (2500, 300, 30))
    shapes = drawn(trace, duration_s=3600.0).shapes

    assert [(start_s, shape.prompt.mean_tokens) for start_s, shape in shapes] == [
        (0.0, 100),
        (2400.0, 300),
    ]


def test_of_a_trace_that_is_too_long_throughout_nothing_is_served():
    found = drawn(a_trace((1, 900, 101)))

    assert len(found.arrival_s) == 0
    assert found.num_requests == 1
