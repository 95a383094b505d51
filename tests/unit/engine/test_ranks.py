"""Data-parallel ranks: each schedules for itself, and all step together."""

from dataclasses import replace

import pytest

from engine_builders import advanced, an_engine, costs, crowded, limits, table
from tonnage.engine.core import Engine


def waiting(engine):
    return [len(rank.waiting) for rank in engine.ranks]


def test_a_request_goes_to_the_rank_with_the_least_to_do():
    engine = an_engine(table(*[(0, 16, 4)] * 4), num_ranks=3)

    assert waiting(engine) == [2, 1, 1]


def test_submit_tells_which_rank_a_request_waits_on():
    engine = Engine(limits(num_ranks=3), costs(), table(*[(0, 16, 4)] * 4))

    assert [engine.submit(number) for number in range(4)] == [0, 1, 2, 0]


def test_one_that_waits_counts_as_four_that_run():
    rows = table(*[(0, 16, 9)] * 8)
    engine = Engine(limits(num_ranks=2), costs(), rows)
    for number in range(6):
        engine.submit(number)
    engine.step()
    for number in (1, 3):
        engine.abort(number)
    engine.submit(6)  # one runs there, three on the other rank
    engine.submit(7)

    assert waiting(engine) == [1, 1]


def test_a_prompt_on_one_rank_holds_up_all():
    prices = replace(costs(1.0, prefill_s_per_token=0.1), own_prefill_s_per_token=0.1)
    rows = table((0, 16, 3), (0.5, 16, 1))
    served = advanced(Engine(limits(num_ranks=2), prices, rows)).table

    # Both prompts take 16 * 0.1 s and a step; the last token of the first a step.
    assert list(served.ended_s) == pytest.approx([2.6 + 2.6 + 1.0, 2.6 + 2.6])
    assert served.started_s[1] == pytest.approx(2.6)


@pytest.mark.parametrize(("own_s", "expected_s"), [(0.1, 1 + 32 * 0.1), (0.0, 1 + 48 * 0.1)])
def test_prompt_tokens_cost_on_their_own_rank_or_on_all(own_s, expected_s):
    prices = replace(costs(1.0, prefill_s_per_token=0.1), own_prefill_s_per_token=own_s)
    engine = an_engine(table((0, 32, 1), (0, 16, 1)), prices, num_ranks=2)

    assert engine.step() == pytest.approx(expected_s)


def test_the_slowest_rank_counts_and_sequences_of_all():
    prices = costs(1.0, per_sequence_s=100.0, kv_s_per_token=0.01)
    engine = an_engine(table((0, 64, 9), (0, 20, 9), (0, 30, 9)), prices, num_ranks=2)
    engine.step()
    engine.step()

    # The first rank has the second chunk of 64 + 30 to do, so only two decode at first.
    assert engine.step() == 1 + 300 + 0.01 * (66 + 31)


def test_each_rank_has_slots_and_blocks_of_its_own():
    engine = an_engine(table(*[(0, 100, 60)] * 6), num_ranks=2, max_num_seqs=2, num_blocks=16)
    for _ in range(9):
        engine.step()

    assert [rank.num_running for rank in engine.ranks] == [2, 2]
    assert waiting(engine) == [1, 1]
    # Two sequences of 100 prompt tokens, 7 blocks each as long as they have at most 112.
    assert [rank.free_blocks for rank in engine.ranks] == [2, 2]


def test_one_request_at_a_time_is_served_as_by_one_rank():
    figures, rows = crowded(1)
    rows = [(100.0 * number, *row[1:]) for number, row in enumerate(rows)]
    one, among = (
        advanced(Engine(limits(**figures, num_ranks=num_ranks), costs(), table(*rows)))
        for num_ranks in (1, 3)
    )

    assert list(among.table.ended_s) == list(one.table.ended_s)


def test_drafts_of_ranks_are_drawn_apart():
    rows = table((0, 1, 101), (0, 1, 101))
    engine = an_engine(rows, num_ranks=2, num_draft_tokens=3, acceptance_rate=0.5)
    differ = 0
    while engine.num_outstanding == 2:
        engine.step()
        differ += engine.emitted(0) != engine.emitted(1)

    assert differ > 0
