"""What an engine may use, and what it refuses."""

import pytest

from engine_builders import limits
from tonnage.engine.limits import LimitsError, RequestError


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_num_batched_tokens": 3}, r"max_num_batched_tokens \(3\) is below max_num_seqs"),
        (
            {"max_num_batched_tokens": 15, "num_draft_tokens": 3},
            r"\(15\) is below max_num_seqs \(4\) x 4: not every sequence",
        ),
        ({"num_blocks": 15}, "needs 16 KV blocks, there are 15"),
        ({"max_num_seqs": 0}, "at least 1"),
        ({"num_ranks": 0}, "at least 1"),
    ],
)
def test_limits_that_contradict_each_other_are_refused_with_their_numbers(changes, message):
    with pytest.raises(LimitsError, match=message):
        limits(**changes)


def test_limits_that_just_suffice_are_taken():
    just = limits(max_num_batched_tokens=16, num_draft_tokens=3, num_blocks=16)

    assert just.tokens_verified == 4


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ((250, 7, 0), "250 prompt and 7 output tokens exceed max_model_len"),
        ((0, 4, 0), "0 prompt and 4 output tokens"),
        ((4, 0, 0), "4 prompt and 0 output tokens"),
        ((16, 4, 16), "16 cached tokens of 16"),
        ((16, 4, -1), "-1 cached tokens of 16"),
    ],
)
def test_a_request_that_can_never_be_served_is_refused_with_its_numbers(asked, message):
    prompt, output, cached = asked
    with pytest.raises(RequestError, match=message):
        limits().check(prompt_tokens=prompt, output_tokens=output, cached_tokens=cached)


def test_a_request_of_exactly_the_longest_length_is_taken():
    limits().check(prompt_tokens=250, output_tokens=6, cached_tokens=249)


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (16, 1), (17, 2), (160, 10)])
def test_blocks_are_rounded_up(tokens, blocks):
    assert limits().blocks_for(tokens) == blocks


@pytest.mark.parametrize(("tokens", "blocks"), [(1, 5), (16, 5), (17, 7)])
def test_each_block_table_takes_blocks_and_a_sequence_holds_those_of_its_states(tokens, blocks):
    assert limits(num_tables=2, fixed_blocks=3).blocks_for(tokens) == blocks
