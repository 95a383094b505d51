"""What a step costs, as figures, and how the engine adds them up."""

from dataclasses import replace

import pytest

from engine_builders import an_engine, costs, limits, table
from tonnage.engine.core import Engine
from tonnage.engine.limits import LimitsError
from tonnage.engine.step_costs import PrefillGrid, linear_costs

GRID = PrefillGrid(
    num_decoding=(0, 2, 10),
    prefill_tokens=(0.0, 10.0, 30.0),
    seconds=((0.0, 100.0, 200.0), (0.0, 300.0, 600.0), (0.0, 300.0, 700.0)),
)


def test_linear_costs_are_a_step_in_plain_seconds():
    made = linear_costs(
        per_step_s=0.5,
        per_sequence_s=0.25,
        kv_s_per_token=0.125,
        prefill_s_per_token=2.0,
        max_num_seqs=3,
    )

    assert list(made.base_s) == [0.5, 0.75, 1.0, 1.25]
    assert made.memory_slope_s == (0.125,)
    assert made.prefill.seconds == ((0.0, 2.0), (0.0, 2.0))


def test_tables_of_different_lengths_are_refused():
    with pytest.raises(LimitsError, match=r"\[65, 65, 2, 65\]"):
        replace(costs(), compute_s=[0.0, 0.0])


@pytest.mark.parametrize("knots", [(), (16,)])
def test_the_first_knot_must_be_at_no_tokens(knots):
    with pytest.raises(LimitsError, match="the first knot is at 0 tokens"):
        replace(costs(), knots_tokens=knots)


@pytest.mark.parametrize(
    ("decoding", "prompt", "prefill_s"),
    [
        (0, 10, 100),
        (0, 5, 50),  # half way to the first column
        (0, 20, 150),  # half way between the columns
        (0, 50, 300),  # beyond the last the line goes on
        (1, 10, 200),  # half way between the rows
        (2, 10, 300),
        (6, 30, 650),  # half way between the rows
    ],
)
def test_prompt_tokens_cost_what_the_grid_says_with_lines_between(decoding, prompt, prefill_s):
    rows = table(*[(0, 1, 99)] * decoding, (0, prompt, 1))
    engine = Engine(limits(max_num_seqs=20), replace(costs(1.0), prefill=GRID), rows)
    for number in range(decoding):
        engine.submit(number)
    engine.step()
    engine.submit(decoding)
    step_s = engine.step()

    assert (engine.ranks[0].num_decoding, engine.ranks[0].prefill_tokens) == (decoding, prompt)
    assert step_s == pytest.approx(1 + prefill_s)


def test_context_counts_several_times_where_stages_wait_for_each_other():
    prices = replace(costs(1.0, kv_s_per_token=0.5), context_factor=[4.0, 4.0, 2.0] + [1.0] * 62)
    one, two = (an_engine(table(*[(0, 10, 9)] * count), prices) for count in (1, 2))
    for engine in (one, two):
        engine.step()

    assert one.step() == 1 + 4 * 0.5 * 11
    assert two.step() == 1 + 2 * 0.5 * 22
