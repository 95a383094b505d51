"""A plan's promise, held against vLLM 0.26 on an H100 with the flags of that plan.

Of each request ``tests/bench/h100_of_a_plan.csv`` has when it came, its tokens, TTFT and TPOT
(decision 72): prompts of 4,000 tokens, 3.412 requests/s for 65 s, then 22 % more for 60 s, then
45 % more for 45 s. One has no first token: its connection broke.
"""

import csv
from array import array
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from fleet_builders import a_model
from tonnage.catalog.gpu import built_in_gpus
from tonnage.engine.core import Engine
from tonnage.engine.routing import serve
from tonnage.engine.table import RequestTable
from tonnage.replay.ground_truth import scale_costs
from tonnage.sizing.parallelism.draft import rank_of
from tonnage.sizing.request import Flags, ask, look_up
from tonnage.sizing.serving.flags import replica_under, trial_of
from tonnage.sizing.serving.trial import engine_costs, engine_limits
from tonnage.sizing.split import Parallelism
from tonnage.sizing.workload import Routing

PROMPT_TOKENS = 4000
TTFT_S, TPOT_S = 2.0, 0.050
PARTS_S = [(0, 65), (65, 125), (125, 170)]
FLAGS = Flags(
    max_num_seqs=94,
    max_num_batched_tokens=1024,
    gpu_memory_utilization=0.92,
    parallelism=Parallelism(),
)


@cache
def requests():
    with (Path(__file__).parents[1] / "bench/h100_of_a_plan.csv").open() as file:
        return list(csv.DictReader(file))


@cache
def simulated(factor):
    """Return TTFT and TPOT of each request; ``factor``: step time over the predicted one."""
    spec = a_model(
        model={"id": "meta-llama/Llama-3.1-8B-Instruct"},
        hardware={"gpu": "H100", "gpusPerReplica": 1},
        engine={"version": "0.26"},
    ).spec
    request = replace(ask(spec, look_up(spec, built_in_gpus())), flags=FLAGS)
    trial = trial_of(request, replica_under(request, rank_of(request, FLAGS.parallelism), FLAGS))
    arrivals = array("d", [float(row["arrival_s"]) for row in requests()])
    outputs = array("q", [int(row["output_tokens"]) for row in requests()])
    table = RequestTable(
        array("q", [PROMPT_TOKENS] * len(outputs)),
        outputs,
        array("q", bytes(8 * len(outputs))),
        arrivals,
    )
    costs = scale_costs(engine_costs(trial.replica, FLAGS.max_num_seqs), factor)
    engine = Engine(engine_limits(trial), costs, table, 0)
    serve([engine], table, Routing.SERVICE, [0.0] * len(outputs))
    times = zip(arrivals, table.first_token_s, table.ended_s, outputs, strict=True)
    return [(first - came, (end - first) / max(1, n - 1)) for came, first, end, n in times]


def measured():
    return [(float(row["ttft_s"] or "inf"), float(row["tpot_ms"] or 0) / 1e3) for row in requests()]


def during(part, pairs):
    rows = zip(requests(), pairs, strict=True)
    return [pair for row, pair in rows if part[0] <= float(row["arrival_s"]) < part[1]]


def p95(values):
    return sorted(values)[int(0.95 * len(values))]


@pytest.mark.parametrize("part", PARTS_S)
def test_what_the_plan_promises_is_kept_at_45_percent_more_too(part):
    seen = during(part, measured())

    kept = sum(ttft <= TTFT_S and tpot <= TPOT_S for ttft, tpot in seen)
    assert kept >= 0.99 * len(seen)


@pytest.mark.parametrize("part", PARTS_S)
def test_the_plan_errs_to_the_safe_side_and_within_what_it_states_of_a_step(part):
    """A step may be 15 % shorter: with that, more is promised than was kept."""
    ttft, tpot = (list(each) for each in zip(*during(part, measured()), strict=True))
    slow, fast = (during(part, simulated(factor)) for factor in (1.0, 1 / 1.15))

    assert p95([each[0] for each in fast]) < p95(ttft) < p95([each[0] for each in slow])
    assert p95([each[1] for each in fast]) < p95(tpot) < p95([each[1] for each in slow])


@pytest.mark.parametrize("part", PARTS_S)
def test_one_factor_on_all_steps_gives_every_percentile(part):
    ttft, tpot = (list(each) for each in zip(*during(part, measured()), strict=True))
    said = during(part, simulated(0.93))

    assert p95([each[0] for each in said]) == pytest.approx(p95(ttft), rel=0.15)
    assert p95([each[1] for each in said]) == pytest.approx(p95(tpot), rel=0.06)
