"""Data-parallel ranks: each schedules for itself, and all step together."""

import pytest

from tonnage.engine import Engine, EngineGroup, EngineLimits, Request, RequestError, simulate

LIMITS = EngineLimits(
    max_num_seqs=4, max_num_batched_tokens=64, num_blocks=64, block_size=16, max_model_len=256
)


def a_group(num_ranks=2, step_time=lambda batches: 1.0):
    return EngineGroup(LIMITS, step_time, num_ranks=num_ranks)


def a_request(name, *, prompt=16, output=4, arrival_s=0.0):
    return Request(id=name, prompt_tokens=prompt, output_tokens=output, arrival_s=arrival_s)


def test_a_request_goes_to_the_rank_with_the_least_to_do():
    group = a_group(num_ranks=3)
    for name in "abcd":
        group.submit(a_request(name))

    assert [rank.num_waiting for rank in group.ranks] == [2, 1, 1]


def test_one_that_waits_counts_as_four_that_run():
    group = a_group()
    for name in "abcdef":
        group.submit(a_request(name, output=9))
    group.step()
    group.ranks[1].abort("b")
    group.ranks[1].abort("d")
    group.submit(a_request("waits"))  # one runs there, three on the other rank

    group.submit(a_request("next"))

    assert [rank.num_waiting for rank in group.ranks] == [1, 1]


def test_a_prompt_on_one_rank_holds_up_all():
    def step_time(batches):
        return 1.0 + 0.1 * max(batch.prefill_tokens for batch in batches)

    requests = [a_request("a", output=3), a_request("b", output=1, arrival_s=0.5)]
    completions = {each.id: each for each in simulate(a_group(step_time=step_time), requests)}

    # Both prompts take 16 * 0.1 s and a step; the last token of "a" a step.
    assert completions["a"].e2e_s == pytest.approx(2.6 + 2.6 + 1.0)
    assert completions["b"].queue_s == pytest.approx(2.6 - 0.5)


def test_a_step_time_is_told_what_each_rank_works_on():
    seen = []

    def step_time(batches):
        seen.append([(b.num_decoding, b.context_tokens, b.prefill_tokens) for b in batches])
        return 1.0

    simulate(a_group(step_time=step_time), [a_request("a", prompt=70, output=2)])

    assert seen == [
        [(0, 0, 64), (0, 0, 0)],
        [(0, 0, 6), (0, 0, 0)],
        [(1, 71, 0), (0, 0, 0)],
    ]


def test_a_group_of_one_is_an_engine():
    requests = [
        a_request(str(number), prompt=10 + 7 * number % 90, output=1 + number % 5, arrival_s=number)
        for number in range(30)
    ]

    group = EngineGroup(LIMITS, lambda batches: 0.5 + batches[0].num_decoding, num_ranks=1)
    engine = Engine(LIMITS, lambda num_decoding, *_: 0.5 + num_decoding)

    assert simulate(group, requests) == simulate(engine, requests)


def test_an_idle_group_cannot_step():
    with pytest.raises(RequestError, match="no request"):
        a_group().step()
