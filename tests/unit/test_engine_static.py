"""Static batching: a batch waits for its longest member."""

import pytest

from tonnage.engine import Request
from tonnage.engine.static import simulate_static


def a_request(name, *, prompt=100, output=1, arrival_s=0.0, cached=0):
    return Request(
        id=name,
        prompt_tokens=prompt,
        output_tokens=output,
        arrival_s=arrival_s,
        cached_tokens=cached,
    )


def one_second(num_decoding, context_tokens, prefill_tokens):
    return 1.0


def test_all_members_leave_with_the_longest():
    short, long = simulate_static(
        [a_request("short", output=2), a_request("long", output=10)],
        batch_size=2,
        step_time=one_second,
    )

    assert short.e2e_s == long.e2e_s == 10
    assert short.ttft_s == long.ttft_s == 1


def test_the_next_batch_starts_when_the_one_before_has_ended():
    requests = [a_request("a", output=5), a_request("b", output=3)]

    first, second = simulate_static(requests, batch_size=1, step_time=one_second)

    assert second.queue_s == first.e2e_s == 5
    assert second.e2e_s == 8


def test_a_batch_starts_with_its_last_arrival():
    requests = [a_request("late", arrival_s=7.0), a_request("early", arrival_s=2.0)]

    early, late = simulate_static(requests, batch_size=2, step_time=one_second)

    assert (early.id, early.queue_s, late.queue_s) == ("early", 5, 0)


def test_finished_members_go_on_as_padding():
    seen = []

    def step_time(num_decoding, context_tokens, prefill_tokens):
        seen.append((num_decoding, context_tokens, prefill_tokens))
        return 1.0

    requests = [a_request("a", prompt=10, output=1), a_request("b", prompt=20, output=3, cached=5)]
    simulate_static(requests, batch_size=2, step_time=step_time)

    assert seen == [(0, 0, 25), (2, 32, 0), (2, 34, 0)]


def test_time_per_token_is_over_the_tokens_after_the_first():
    (one,) = simulate_static([a_request("a", output=1)], batch_size=1, step_time=one_second)
    (five,) = simulate_static([a_request("a", output=5)], batch_size=1, step_time=one_second)

    assert one.tpot_s is None
    assert five.tpot_s == pytest.approx(1.0)
