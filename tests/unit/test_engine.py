"""The engine model: what one step does, and what a schedule must never do."""

import math
import random
from statistics import mean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tonnage.engine import Engine, EngineLimits, LimitsError, Request, RequestError, simulate


def limits(**changes):
    defaults = {
        "max_num_seqs": 4,
        "max_num_batched_tokens": 64,
        "num_blocks": 64,
        "block_size": 16,
        "max_model_len": 256,
    }
    return EngineLimits(**(defaults | changes))


def constant(step_s):
    return lambda num_decoding, context_tokens, prefill_tokens: step_s


def an_engine(step_time=None, **changes):
    return Engine(limits(**changes), step_time or constant(0.01))


def a_request(name="a", prompt=16, output=4, **changes):
    return Request(id=name, prompt_tokens=prompt, output_tokens=output, **changes)


def run_to_the_end(engine):
    results = []
    while not engine.idle:
        results.append(engine.step())
    return results


@pytest.mark.parametrize(
    ("prompt", "output", "steps"),
    [
        (64, 1, 1),  # the step that ends the prefill emits the first token
        (64, 5, 1 + 4),
        (65, 5, 2 + 4),  # 64 + 1
        (200, 10, 4 + 9),  # 64 + 64 + 64 + 8
    ],
)
def test_one_request_alone_takes_its_prefill_chunks_and_one_step_for_each_later_token(
    prompt, output, steps
):
    (completion,) = simulate(an_engine(), [a_request(prompt=prompt, output=output)])

    assert completion.e2e_s == pytest.approx(steps * 0.01)
    assert completion.ttft_s == pytest.approx(math.ceil(prompt / 64) * 0.01)


@pytest.mark.parametrize("output", [1, 2, 50])
def test_one_request_alone_takes_exactly_what_the_formula_adds_up_to(output):
    def step_time(num_decoding, context_tokens, prefill_tokens):
        return 10 + num_decoding + context_tokens / 8 + prefill_tokens / 4

    (completion,) = simulate(an_engine(step_time), [a_request(prompt=150, output=output)])

    # Chunks of 64, 64 and 22; then one step for each later token, over 151, 152, ... tokens.
    assert completion.ttft_s == 3 * 10 + 150 / 4
    later_s = sum(10 + 1 + (150 + number) / 8 for number in range(1, output))
    assert completion.e2e_s == completion.ttft_s + later_s


@pytest.mark.parametrize("share", [0.3, 0.5, 0.8])
@pytest.mark.parametrize(
    "one_at_a_time",
    [{"max_num_seqs": 1}, {"max_num_seqs": 8, "max_num_batched_tokens": 60}],
    ids=["one slot", "prompts that fill a step"],
)
def test_requests_served_one_by_one_wait_as_behind_one_server(share, one_at_a_time):
    chance = random.Random(f"{share}")  # noqa: S311 -- a scenario has no secrets
    arrival_s, requests = 0.0, []
    for number in range(40_000):
        arrival_s += chance.expovariate(share)
        requests.append(a_request(str(number), prompt=60, output=1, arrival_s=arrival_s))

    completions = simulate(an_engine(constant(1.0), **one_at_a_time), requests)

    waits_s = [each.queue_s for each in completions]
    batches_s = [mean(waits_s[start : start + 1000]) for start in range(0, len(waits_s), 1000)]
    error_s = stdev(batches_s) / math.sqrt(len(batches_s))
    # M/D/1 with jobs of 1 s: rho / (2 (1 - rho)). Batch means give the standard error.
    expected_s = share / (2 * (1 - share))
    assert abs(mean(waits_s) - expected_s) <= 3 * error_s
    assert error_s <= 0.04 * expected_s


def test_a_step_costs_what_the_step_time_says_for_its_decodes_context_and_prefill():
    seen = []

    def step_time(num_decoding, context_tokens, prefill_tokens):
        seen.append((num_decoding, context_tokens, prefill_tokens))
        return 1.0

    engine = an_engine(step_time)
    engine.submit(a_request("a", prompt=10, output=3))
    engine.step()
    engine.submit(a_request("b", prompt=20, output=1))
    run_to_the_end(engine)

    assert seen == [(0, 0, 10), (1, 11, 20), (1, 12, 0)]


def test_decodes_come_before_prefill_and_both_stay_within_the_token_budget():
    engine = an_engine(max_num_batched_tokens=8)
    for name in "abc":
        engine.submit(a_request(name, prompt=2, output=9))
    engine.step()
    engine.submit(a_request("d", prompt=40, output=1))
    result = engine.step()

    assert (result.num_decoding, result.prefill_tokens) == (3, 5)
    assert result.emitted == ("a", "b", "c")


def test_no_more_than_max_num_seqs_run_and_the_rest_waits():
    engine = an_engine(max_num_seqs=2)
    for name in "abc":
        engine.submit(a_request(name))
    engine.step()

    assert (engine.num_running, engine.num_waiting) == (2, 1)


def test_the_first_in_the_queue_is_not_overtaken_by_a_smaller_one_that_would_fit():
    engine = an_engine(num_blocks=16, max_num_batched_tokens=256)
    engine.submit(a_request("a", prompt=160, output=8))  # 10 of 16 blocks
    engine.step()
    engine.submit(a_request("big", prompt=112, output=8))  # 7 blocks
    engine.submit(a_request("small", prompt=16, output=8))
    result = engine.step()

    assert result.started == ()
    assert engine.num_waiting == 2


def test_a_prompt_is_admitted_only_when_all_of_it_fits_although_one_chunk_would():
    engine = an_engine(num_blocks=16, max_num_batched_tokens=32)
    engine.submit(a_request("a", prompt=32, output=20))
    engine.step()
    engine.submit(a_request("b", prompt=224, output=2))  # 14 blocks; 13 are free from now on

    assert engine.step().started == ()


def test_a_watermark_keeps_blocks_free_beside_others_but_admits_into_an_empty_engine():
    engine = an_engine(num_blocks=16, max_num_batched_tokens=256, watermark_blocks=8)
    engine.submit(a_request("a", prompt=160, output=8))
    engine.submit(a_request("b", prompt=16, output=8))

    assert engine.step().started == ("a",)


def test_the_newest_is_preempted_when_blocks_run_out_and_recomputed_from_the_start():
    # 4 blocks of 4 tokens; two prompts of 8 fill them, so the first decode finds no block.
    engine = an_engine(num_blocks=4, block_size=4, max_model_len=16)
    engine.submit(a_request("old", prompt=8, output=4))
    engine.submit(a_request("new", prompt=8, output=4))
    first, second = engine.step(), engine.step()
    rest = run_to_the_end(engine)

    assert first.emitted == ("old", "new")
    assert second.preempted == ("new",)
    assert second.emitted == ("old",)
    # "old" ends with its 4th token; then "new" recomputes its prompt and its one token.
    assert [result.emitted for result in rest] == [("old",), ("old",), *[("new",)] * 3]
    assert rest[2].prefill_tokens == 9


def test_a_preempted_request_is_counted_once_in_the_prompt_tokens():
    engine = an_engine(num_blocks=4, block_size=4, max_model_len=16)
    for name in ("old", "new"):
        engine.submit(a_request(name, prompt=8, output=4))
    run_to_the_end(engine)

    assert engine.counters.num_preemptions == 1
    assert engine.counters.prompt_tokens == 16
    assert engine.counters.generation_tokens == 8


def test_cached_prompt_tokens_hold_blocks_but_cost_no_prefill():
    engine = an_engine()
    engine.submit(a_request(prompt=48, output=2, cached_tokens=32))
    result = engine.step()

    assert result.prefill_tokens == 16
    assert result.prompt_tokens == 48
    assert engine.num_used_blocks == 3
    assert engine.counters.cached_prompt_tokens == 32


def test_an_aborted_request_gives_its_blocks_back_wherever_it_was():
    engine = an_engine(max_num_seqs=1)
    engine.submit(a_request("running"))
    engine.submit(a_request("waiting"))
    engine.step()

    assert engine.abort("waiting")
    assert engine.abort("running")
    assert not engine.abort("running")
    assert engine.idle
    assert engine.num_used_blocks == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompt": 250, "output": 7}, "250 prompt and 7 output tokens exceed max_model_len"),
        ({"prompt": 0}, "0 prompt and 4 output tokens"),
        ({"prompt": 16, "cached_tokens": 16}, "16 cached tokens of 16"),
    ],
)
def test_a_request_that_can_never_be_served_is_refused_with_its_numbers(changes, message):
    with pytest.raises(RequestError, match=message):
        an_engine().submit(a_request(**changes))


def test_an_id_in_use_is_refused():
    engine = an_engine()
    engine.submit(a_request("a"))

    with pytest.raises(RequestError, match="already in the engine"):
        engine.submit(a_request("a"))


def test_an_idle_engine_cannot_step():
    with pytest.raises(RequestError, match="no request"):
        an_engine().step()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_num_batched_tokens": 3}, r"max_num_batched_tokens \(3\) is below max_num_seqs"),
        ({"num_blocks": 15}, "needs 16 KV blocks, there are 15"),
        ({"max_num_seqs": 0}, "at least 1"),
    ],
)
def test_limits_that_contradict_each_other_are_refused_with_their_numbers(changes, message):
    with pytest.raises(LimitsError, match=message):
        limits(**changes)


def test_a_request_that_arrives_during_a_step_waits_for_its_end():
    engine = an_engine(constant(1.0))
    first, second = simulate(
        engine,
        [a_request("a", output=3), a_request("b", output=1, arrival_s=0.25)],
    )[::-1]

    assert (first.id, second.id) == ("a", "b")
    assert second.queue_s == pytest.approx(0.75)
    assert second.ttft_s == pytest.approx(1.75)
    assert second.tpot_s is None
    assert first.tpot_s == pytest.approx(1.0)


def test_time_jumps_over_an_idle_gap():
    completions = simulate(
        an_engine(constant(1.0)),
        [a_request("a", output=1), a_request("b", output=1, arrival_s=100.0)],
    )

    assert [each.e2e_s for each in completions] == pytest.approx([1.0, 1.0])


arrivals = st.lists(
    st.builds(
        lambda prompt, output, gap: (prompt, output, gap),
        st.integers(1, 60),
        st.integers(1, 40),
        st.floats(0, 0.1),
    ),
    min_size=1,
    max_size=25,
)
small_limits = st.builds(
    limits,
    max_num_seqs=st.integers(1, 8),
    max_num_batched_tokens=st.integers(8, 64),
    num_blocks=st.integers(25, 60),
    block_size=st.sampled_from([4, 8]),
    max_model_len=st.just(100),
    watermark_blocks=st.integers(0, 3),
)


def as_requests(shapes):
    now_s = 0.0
    requests = []
    for number, (prompt, output, gap_s) in enumerate(shapes):
        now_s += gap_s
        requests.append(a_request(str(number), prompt, output, arrival_s=now_s))
    return requests


@given(small_limits, arrivals)
def test_blocks_are_conserved_and_every_step_keeps_its_limits(the_limits, shapes):
    engine = Engine(the_limits, constant(0.01))
    for request in as_requests(shapes):
        engine.submit(request)
    while not engine.idle:
        result = engine.step()

        assert 0 <= engine.num_used_blocks <= the_limits.num_blocks
        assert engine.num_running <= the_limits.max_num_seqs
        assert result.num_decoding + result.prefill_tokens > 0
        assert result.num_decoding + result.prefill_tokens <= the_limits.max_num_batched_tokens
    assert engine.num_used_blocks == 0


@given(small_limits, arrivals)
def test_every_request_is_finished_once_with_all_its_tokens(the_limits, shapes):
    engine = Engine(the_limits, constant(0.01))
    requests = as_requests(shapes)
    completions = simulate(engine, requests)

    assert sorted(each.id for each in completions) == sorted(each.id for each in requests)
    assert engine.counters.generation_tokens == sum(each.output_tokens for each in requests)
    assert engine.counters.prompt_tokens == sum(each.prompt_tokens for each in requests)
    assert engine.counters.num_finished == len(requests)


@given(small_limits, arrivals)
def test_first_come_first_served(the_limits, shapes):
    engine = Engine(the_limits, constant(0.01))
    requests = as_requests(shapes)
    started = []
    for request in requests:
        engine.submit(request)
    while not engine.idle:
        started += engine.step().started

    assert started == [each.id for each in requests]


@given(small_limits, arrivals)
def test_preemption_happens_only_when_the_pool_is_short(the_limits, shapes):
    requests = as_requests(shapes)
    needed = [
        the_limits.blocks_for(each.prompt_tokens + each.output_tokens - 1) for each in requests
    ]
    largest_batch = sum(sorted(needed)[-the_limits.max_num_seqs :])
    engine = Engine(the_limits, constant(0.01))
    simulate(engine, requests)

    if largest_batch <= the_limits.num_blocks:
        assert engine.counters.num_preemptions == 0
