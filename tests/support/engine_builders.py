"""Engines, limits, costs and requests with defaults, and two ways to run them."""

import random
from dataclasses import replace

from tonnage.engine.core import Engine
from tonnage.engine.limits import EngineLimits
from tonnage.engine.step_costs import linear_costs
from tonnage.engine.table import RequestTable


def limits(**changes):
    defaults = {
        "max_num_seqs": 4,
        "max_num_batched_tokens": 64,
        "num_blocks": 64,
        "block_size": 16,
        "max_model_len": 256,
    }
    return EngineLimits(**(defaults | changes))


def costs(per_step_s=0.01, *, max_num_seqs=64, **prices):
    return linear_costs(per_step_s=per_step_s, max_num_seqs=max_num_seqs, **prices)


def windowed(window_tokens, *, compute=(0.0, 0.0), **prices):
    """Contexts beyond a window cost a quarter; ``compute``: of a step, and of a token, beside it.

    The engine takes the longer of memory and compute.
    """
    linear = costs(**prices)
    (slope_s,) = linear.memory_slope_s
    step_s, token_s = compute
    return replace(
        linear,
        compute_s=[step_s] * len(linear.base_s),
        knots_tokens=(0, window_tokens),
        memory_price_s=(0.0, slope_s * window_tokens),
        memory_slope_s=(slope_s, slope_s / 4),
        compute_price_s=(0.0, token_s * window_tokens),
        compute_slope_s=(token_s, token_s),
        pairs_slope_s=(slope_s / 10, slope_s / 40),
    )


def table(*rows):
    """Requests of (arrival, prompt, output) or (arrival, prompt, output, cached)."""
    rows = [(*row, 0)[:4] for row in rows]
    arrival_s, prompt, output, cached = zip(*rows, strict=True)
    return RequestTable(prompt, output, cached, arrival_s)


def an_engine(requests, the_costs=None, *, seed=0, **changes):
    """Return a logged engine to which all requests have been submitted at once."""
    engine = Engine(limits(**changes), the_costs or costs(), requests, seed, is_logged=True)
    for number in range(requests.size):
        engine.submit(number)
    return engine


def advanced(engine):
    """Serve the table as goodput does: as many steps at once as are alike. Return the engine."""
    for number in range(engine.table.size):
        engine.advance(engine.table.arrival_s[number])
        engine.submit(number)
    engine.advance(float("inf"))
    return engine


def stepped(engine):
    """Serve the table as the emulator does: step by step. Yield after each."""
    arrivals, number = engine.table.arrival_s, 0
    while number < engine.table.size or engine.num_outstanding:
        while number < engine.table.size and (
            arrivals[number] <= engine.now_s or not engine.num_outstanding
        ):
            engine.submit(number)
            number += 1
        engine.step()
        yield engine


def crowded(seed, *, count=150):
    """Return limits and requests that crowd the slots, the token budget or the cache, as it falls.

    Requests are (arrival, prompt, output, cached).
    """
    chance = random.Random(seed)  # noqa: S311 -- a scenario has no secrets
    figures = {
        "max_num_seqs": chance.choice((2, 5, 20)),
        "max_num_batched_tokens": chance.choice((20, 64, 300)),
        "num_blocks": chance.choice((20, 40, 200)),
        "max_model_len": 300,
    }
    arrival_s, rows = 0.0, []
    for _ in range(count):
        arrival_s += chance.expovariate(chance.choice((1, 3, 8)))
        prompt, output = chance.randint(1, 150), chance.randint(1, 100)
        cached = chance.choice((0, 0, prompt // 2))
        rows.append((arrival_s, prompt, output, cached))
    return figures, rows
