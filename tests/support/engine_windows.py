"""An engine of the engine model under a load, and what Prometheus would see of it."""

import random
from array import array
from dataclasses import replace
from functools import cache

from questions import catalog_request

from tonnage.engine.core import Engine
from tonnage.engine.table import RequestTable
from tonnage.estimate.metrics import BUSY_SCRAPES
from tonnage.estimate.samples import EngineSamples, WindowRates
from tonnage.estimate.speed import busy_window, prompt_shape
from tonnage.sizing.search import size
from tonnage.sizing.serving.flags import trial_of
from tonnage.sizing.serving.trial import engine_limits, requests
from tonnage.sizing.step_time.model import step_costs
from tonnage.sizing.workload import Lengths, Slo, Target, Workload

CHAT = Workload(prompt=Lengths(mean_tokens=800, p99_tokens=4000), output_tokens=300)


@cache
def a_catalog_sizing(model, *, gpu="H100", workload=CHAT, tokens=8192):
    """A plan of one GPU and a token budget: TTFT 1 s and TPOT 40 ms at p95."""
    slo = Slo(
        ttft=(Target(quantile=0.95, limit_s=1.0),), tpot=(Target(quantile=0.95, limit_s=0.040),)
    )
    request = catalog_request(model, gpu, workload, context_tokens=16384)
    return size(replace(request, slo=slo, num_gpus=1, max_num_batched_tokens=tokens))


class Served:
    """One engine and requests that come by chance, at so many per second from 0 on."""

    def __init__(self, sizing, rate, *, until_s, seed=1):
        self.sizing = sizing
        trial = trial_of(sizing.request, sizing.replica)
        limits = engine_limits(trial)
        count = int(1.2 * rate * until_s) + 100
        drawn = requests(
            trial.workload, arrival_scv=1, context_tokens=trial.context_tokens, count=count
        )
        chance = random.Random(seed)  # noqa: S311 -- a scenario has no secrets
        order = chance.sample(range(count), count)
        self.arrivals = array("d", [0.0] * count)
        at_s = 0.0
        for number in range(count):
            at_s += chance.expovariate(rate)
            self.arrivals[number] = at_s
        columns = (drawn.prompt_tokens, drawn.output_tokens, drawn.cached_tokens)
        self.table = RequestTable(
            *([column[number] for number in order] for column in columns), self.arrivals
        )
        costs = step_costs(
            sizing.replica.model,
            max_num_seqs=limits.max_num_seqs,
            max_batched_tokens=limits.max_num_batched_tokens,
        )
        self.engine = Engine(limits, costs, self.table, 1)
        self.block_tokens = limits.block_size
        self.sent = 0

    def advance(self, until_s):
        while self.arrivals[self.sent] <= until_s:
            self.engine.advance(self.arrivals[self.sent])
            self.engine.submit(self.sent)
            self.sent += 1
        self.engine.advance(until_s)

    def counters(self):
        """(token gaps, seconds of them, prompt tokens, prefills, seconds of them)"""
        table, started = self.table, [n for n in range(self.sent) if self.table.first_token_s[n]]
        ended = [number for number in started if table.ended_s[number]]
        running = [number for number in started if not table.ended_s[number]]
        return (
            sum(table.output_tokens[n] - 1 for n in ended)
            + sum(self.engine.emitted(n) - 1 for n in running),
            self.engine.decoding_s,
            sum(table.prompt_tokens[n] - table.cached_tokens[n] for n in started),
            len(ended),
            sum(table.first_token_s[n] - table.started_s[n] for n in ended),
        )

    def window(self, from_s, until_s):
        """What the engine did between two times; its queue as it was at both ends."""
        self.advance(from_s)
        before, backlog = self.counters(), self.engine.num_outstanding
        held, looks = 0.0, 40
        for look in range(1, looks + 1):
            self.advance(from_s + (until_s - from_s) * look / looks)
            [rank] = self.engine.ranks
            held += (rank.num_blocks - rank.free_blocks) * self.block_tokens / looks
        window_s = until_s - from_s
        gaps, gap_s, tokens, prefills, prefill_s = (
            (late - early) / window_s for late, early in zip(self.counters(), before, strict=True)
        )
        growth = (self.engine.num_outstanding - backlog) / window_s
        busy = WindowRates(
            seconds=window_s,
            completed_per_s=prefills,
            in_flight_per_s=growth,
            token_gaps_per_s=gaps,
            token_gap_s_per_s=gap_s,
            computed_prompt_tokens_per_s=tokens,
            prefills_per_s=prefills,
            prefill_s_per_s=prefill_s,
        )
        samples = EngineSamples(
            pod="a",
            engine="0",
            running=rank.num_running,
            waiting=self.engine.num_outstanding - rank.num_running,
            scrape_interval_s=window_s / BUSY_SCRAPES,
            windows={BUSY_SCRAPES: busy},
        )
        workload, flags = self.sizing.request.workload, self.sizing.flags
        return busy_window(
            samples,
            window_s=window_s,
            context_tokens=held / gap_s,
            prompts=prompt_shape(workload, max_batched_tokens=flags.max_num_batched_tokens),
            flags=flags,
        )
