"""The engine model against a slow engine that shares no code with it."""

import math
import random
from collections import deque
from statistics import fmean

import pytest

import reference_engine as slow
from engine_builders import advanced, costs, crowded, limits, table, windowed
from tonnage.engine.core import Engine

PRICES = {"per_sequence_s": 5e-4, "kv_s_per_token": 1e-5, "prefill_s_per_token": 1e-4}
STEP_S = 0.01
WINDOW = 80
WORK_S = (0.004, 2e-5)
CASES = {
    "dense": {},
    "windows": {"window": WINDOW},
    "reads and work": {"window": WINDOW, "work_s": WORK_S},
    "ranks": {"num_ranks": 3},
    "block tables and states": {"num_tables": 2, "fixed_blocks": 3},
    "a full table and two of windows": {"num_tables": 3, "window_tables": 2, "window_blocks": 6},
    "tables of windows, and a price with one": {
        "num_tables": 2,
        "window_tables": 2,
        "window_blocks": 5,
        "window": WINDOW,
    },
}


def price_s(tokens, slope_s, window):
    """What a window leaves of a context, or a prompt, costs in full, what is beyond a quarter."""
    within = tokens if window is None else min(tokens, window)
    return slope_s * (within + (tokens - within) / 4)


def step_time(window=None, work_s=None):
    """The costs as a formula, said once more."""
    kv_s = PRICES["kv_s_per_token"]

    def rank_s(batch):
        reads_s = sum(price_s(context, kv_s, window) for context in batch.contexts)
        if work_s:
            reads_s = max(reads_s, work_s[0] + work_s[1] * batch.context_tokens)
        if window is None:
            return reads_s
        return reads_s + sum(
            tokens * price_s(before + tokens / 2, kv_s / 10, window)
            for before, tokens in batch.chunks
        )

    def step_s(batches):
        num_decoding = sum(batch.num_decoding for batch in batches)
        prefill = sum(batch.prefill_tokens for batch in batches)
        return (
            STEP_S
            + PRICES["per_sequence_s"] * num_decoding
            + PRICES["prefill_s_per_token"] * prefill
            + max(map(rank_s, batches))
        )

    return step_s


def reference(rows, figures, case):
    drafted = case.get("num_draft_tokens", 0)
    windows = case.get("window_tables", 0)
    tables = (slow.BlockTable(block_tokens=16),) * (case.get("num_tables", 1) - windows)
    tables += (slow.BlockTable(most_blocks=case.get("window_blocks")),) * windows
    if "fixed_blocks" in case:
        tables += (slow.BlockTable(state_blocks=case["fixed_blocks"]),)
    the_limits = slow.EngineLimits(
        **figures,
        num_draft_tokens=drafted,
        tables=tables,
    )
    time_of = step_time(case.get("window"), case.get("work_s"))
    group = slow.EngineGroup(
        the_limits,
        time_of,
        num_ranks=case.get("num_ranks", 1),
        accepted=drafts(case, random.Random(1)),  # noqa: S311 -- a scenario has no secrets
    )
    requests = [
        slow.Request(
            number=number,
            arrival_s=arrival_s,
            prompt_tokens=prompt,
            output_tokens=output,
            cached_tokens=cached,
        )
        for number, (arrival_s, prompt, output, cached) in enumerate(rows)
    ]
    return simulate(group, time_of, requests)


def drafts(case, chance):
    """Draw in each step how many draft tokens are right."""

    def accepted(*_):
        right = 0
        while right < case.get("num_draft_tokens", 0):
            if chance.random() >= case["acceptance_rate"]:
                break
            right += 1
        return right

    return accepted


def simulate(group, time_of, requests):
    """Serve requests; which rank gets one is chosen when it comes, also during a step.

    The reference's own clock chooses when the step ends: with one rank it is the same.
    """
    served = [slow.Served(request) for request in requests]
    now_s, coming = 0.0, deque(requests)
    while coming or not group.idle:
        if group.idle:
            now_s = max(now_s, coming[0].arrival_s)
        while coming and coming[0].arrival_s <= now_s:
            group.submit(coming.popleft())
        batches = [rank.schedule() for rank in group.ranks]
        began_s, now_s = now_s, now_s + time_of(batches)
        while coming and coming[0].arrival_s < now_s:
            group.submit(coming.popleft())
        for rank, batch in zip(group.ranks, batches, strict=True):
            note(served, rank.compute(batch, now_s - began_s), began_s, now_s)
    return served


def note(served, result, began_s, now_s):
    for number in result.started:
        served[number].started_s = began_s
    for number in result.preempted:
        served[number].num_preemptions += 1
    for number in result.emitted:
        if math.isnan(served[number].first_token_s):
            served[number].first_token_s = now_s
    for number in result.finished:
        served[number].ended_s = now_s


def model(rows, figures, case):
    changes = {name: case[name] for name in case if name not in {"window", "work_s"}}
    prices = costs(STEP_S, **PRICES)
    if "window" in case:
        work = case.get("work_s", (0.0, 0.0))
        prices = windowed(case["window"], compute=work, per_step_s=STEP_S, **PRICES)
    return advanced(Engine(limits(**figures, **changes), prices, table(*rows))).table


def overloaded(seed):
    """Return limits and requests of which more come than can be served."""
    figures, rows = crowded(seed)
    figures["max_num_batched_tokens"] = max(60, figures["max_num_batched_tokens"])
    return figures, [(arrival_s / 4, *lengths) for arrival_s, *lengths in rows]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", range(8))
def test_every_request_starts_and_ends_when_the_reference_says(seed, name):
    figures, rows = crowded(seed)
    figures["max_num_batched_tokens"] = max(60, figures["max_num_batched_tokens"])
    if "num_tables" in CASES[name]:
        figures["num_blocks"] = 2 * figures["num_blocks"] + 9

    assert_both_say_the_same(rows, figures, CASES[name])


def assert_both_say_the_same(rows, figures, case):
    expected = reference(rows, figures, case)
    served = model(rows, figures, case)

    assert list(served.preemptions) == [each.num_preemptions for each in expected]
    for column in ("started_s", "first_token_s", "ended_s"):
        times_s = [getattr(each, column) for each in expected]
        assert list(getattr(served, column)) == pytest.approx(times_s, rel=1e-9, abs=1e-9)


def test_the_scenarios_queue_and_preempt():
    preemptions = waits = 0
    for seed in range(8):
        figures, rows = crowded(seed)
        served = model(rows, figures, {})
        preemptions += sum(served.preemptions)
        waits += sum(
            start - arrival > 1
            for start, arrival in zip(served.started_s, served.arrival_s, strict=True)
        )

    assert preemptions > 50
    assert waits > 100


@pytest.mark.parametrize(("drafted", "rate"), [(1, 0.9), (3, 0.7)])
def test_draft_tokens_serve_in_the_mean_as_where_each_step_draws_them(drafted, rate):
    """The model draws the steps of an answer at once, and spreads its tokens evenly over them."""
    case = {"num_draft_tokens": drafted, "acceptance_rate": rate}
    expected, found = [], []
    for seed in range(8):
        figures, rows = crowded(seed)
        figures |= {"max_num_seqs": 20, "max_num_batched_tokens": 300, "num_blocks": 400}
        slow_s = [each.ended_s for each in reference(rows, figures, case)]
        fast_s = model(rows, figures, case).ended_s
        expected += [end - row[0] for end, row in zip(slow_s, rows, strict=True)]
        found += [end - row[0] for end, row in zip(fast_s, rows, strict=True)]

    # 1,200 answers: the draws of both spread the mean by less than a percent.
    assert fmean(found) == pytest.approx(fmean(expected), rel=0.02)
    ranked = sorted(found)[int(0.95 * len(found))], sorted(expected)[int(0.95 * len(found))]
    assert ranked[0] == pytest.approx(ranked[1], rel=0.03)
