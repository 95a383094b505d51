"""A fleet of simulated engines under one stream of requests, and how many promises it kept."""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

from coasting import CoastingEngine, Served, StepTime

from tonnage.engine import EngineLimits, Request
from tonnage.sizing.parallelism.shard import Shard
from tonnage.sizing.serving.steady import Replica
from tonnage.sizing.step_time.step import Step
from tonnage.sizing.workload import Routing, Slo, Workload

NORMAL = NormalDist()


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """A stream of requests: how bursty it comes, and how long each is."""

    workload: Workload
    context_tokens: int
    arrival_scv: float = 1.0
    """Squared coefficient of variation of the (gamma) times between arrivals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """One request before its arrival is scaled to a rate. The same draws serve every rate."""

    at: float
    """In mean times between arrivals."""
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int


def draws(traffic: Traffic, num_requests: int, seed: int) -> list[Draw]:
    """Return requests whose lengths spread evenly over their distributions, in random order.

    One length from each of as many slices of equal probability: the moments of a long-tailed
    distribution are then those of the sample, which those of independent draws are far from.
    """
    gaps = random.Random(f"{seed} gaps")  # noqa: S311
    prompts, outputs = (_even(num_requests, f"{seed} {name}") for name in ("prompts", "outputs"))
    at, found = 0.0, []
    for prompt, output in zip(prompts, outputs, strict=True):
        at += gaps.gammavariate(1 / traffic.arrival_scv, traffic.arrival_scv)
        found.append(_draw(traffic, at, prompt, output))
    slower = num_requests / at
    return [replace(draw, at=draw.at * slower) for draw in found]


def _even(count: int, seed: str) -> list[float]:
    chance = random.Random(seed)  # noqa: S311
    shares = [(slot + chance.random()) / count for slot in range(count)]
    chance.shuffle(shares)
    return shares


def _draw(traffic: Traffic, at: float, prompt_share: float, output_share: float) -> Draw:
    workload = traffic.workload
    prompt = workload.prompt
    output = max(1, round(_output(workload, output_share)))
    tokens = prompt.mean_tokens * _lognormal(prompt.sigma, prompt_share)
    output = min(output, traffic.context_tokens - 2)
    tokens = max(2, min(round(tokens), traffic.context_tokens - output))
    cached = min(tokens - 1, round(tokens * workload.cached_fraction))
    return Draw(at=at, prompt_tokens=tokens, output_tokens=output, cached_tokens=cached)


def _output(workload: Workload, share: float) -> float:
    if workload.output_second_moment is None:
        return -workload.output_tokens * math.log1p(-share)
    scv = workload.output_second_moment / workload.output_tokens**2 - 1
    return workload.output_tokens * _lognormal(math.sqrt(math.log1p(max(0.0, scv))), share)


def _lognormal(sigma: float, share: float) -> float:
    """Return the quantile of a lognormal distribution with mean 1."""
    return math.exp(sigma * NORMAL.inv_cdf(share) - sigma**2 / 2) if sigma else 1.0


def requests(found: Sequence[Draw], requests_per_s: float) -> Iterator[Request]:
    for number, draw in enumerate(found):
        yield Request(
            id=str(number),
            prompt_tokens=draw.prompt_tokens,
            output_tokens=draw.output_tokens,
            cached_tokens=draw.cached_tokens,
            arrival_s=draw.at / requests_per_s,
        )


def step_time_of(replica: Replica) -> StepTime:
    """Return the step time of a replica as the engine model asks for it, remembered.

    A decode step is a line in its context tokens.
    """

    def exact(num_decoding: float, context_tokens: float, prefill: float, earlier: float) -> float:
        step = Step(
            num_sequences=num_decoding,
            context_tokens=context_tokens,
            prefill_tokens=prefill,
            prefill_context_tokens=earlier,
        )
        return replica.step(step).total_s

    lines = _Lines(replica)
    if replica.shard.experts or _has_windows(replica.shard):
        return lambda n, c, p, earlier: exact(n, c, p, earlier) if p else lines(n, c)
    none_s = exact(1, 0, 0, 0)
    each_s = (exact(1, 0, 1000, 0) - none_s) / 1000
    pair_s = (exact(1, 0, 1000, 1000) - exact(1, 0, 1000, 0)) / 1e6
    return lambda n, c, p, earlier: lines(n, c) + p * (each_s + earlier * pair_s)


class _Lines:
    """Decode steps, by their number of sequences."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._known: dict[int, tuple[float, float]] = {}

    def __call__(self, num_decoding: int, context_tokens: int) -> float:
        known = self._known.get(num_decoding)
        if known is None:
            known = self._known[num_decoding] = self._line(num_decoding)
        none_s, more_s = known
        return none_s + more_s * context_tokens

    def _line(self, num_decoding: int) -> tuple[float, float]:
        tokens = 1024 * max(1, num_decoding)
        none_s, some_s = (
            self._replica.step(Step(num_sequences=num_decoding, context_tokens=context)).total_s
            for context in (0, tokens)
        )
        return none_s, (some_s - none_s) / tokens


def _has_windows(shard: Shard) -> bool:
    return any(kind.window_tokens is not None for kind in shard.kv)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Engines of one kind, and what spreads requests over them."""

    limits: EngineLimits
    step_time: StepTime
    num_replicas: int = 1
    routing: Routing = Routing.SERVICE

    def serve(self, arrivals: Iterator[Request], seed: int = 0) -> Iterator[Served]:
        """Yield the requests as they end, roughly in that order."""
        engines = [CoastingEngine(self.limits, self.step_time) for _ in range(self.num_replicas)]
        pick = self._pick(engines, random.Random(f"{seed} routes"))  # noqa: S311
        for request in arrivals:
            pick(request.arrival_s).submit(request)
            yield from _ended(engines)
        for engine in engines:
            engine.advance(math.inf if engine.num_outstanding == 0 else 1e18)
        yield from _ended(engines)

    def _pick(
        self, engines: Sequence[CoastingEngine], routes: random.Random
    ) -> Callable[[float], CoastingEngine]:
        if self.routing is Routing.SERVICE or self.num_replicas == 1:
            return lambda _: routes.choice(engines)

        def least(now_s: float) -> CoastingEngine:
            for engine in engines:
                if engine.next_event_s <= now_s:
                    engine.advance(now_s)
            fewest = min(engine.num_outstanding for engine in engines)
            return routes.choice([each for each in engines if each.num_outstanding == fewest])

        return least


def _ended(engines: Sequence[CoastingEngine]) -> Iterator[Served]:
    for engine in engines:
        if engine.completed:
            yield from engine.completed
            engine.completed.clear()


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What became of the requests after the warm-up."""

    num_requests: int
    ttft_misses: tuple[int, ...]
    """By promise."""
    tpot_misses: tuple[int, ...]
    num_tpot: int
    """Requests of more than one token: the others have no TPOT."""
    num_preemptions: int

    def excess(self, slo: Slo) -> float:
        """Return the worst ratio of misses to those allowed: above 1 a promise is broken."""
        ratios = [0.0]
        for promise, misses in zip(slo.ttft, self.ttft_misses, strict=True):
            ratios.append(misses / self.num_requests / (1 - promise.quantile))
        for promise, misses in zip(slo.tpot, self.tpot_misses, strict=True):
            ratios.append(misses / max(1, self.num_tpot) / (1 - promise.quantile))
        return max(ratios)

    def ttft_share(self, slo: Slo) -> float:
        return max(
            (m / self.num_requests / (1 - p.quantile))
            for p, m in zip(slo.ttft, self.ttft_misses, strict=True)
        )


def kept(
    fleet: Fleet, found: Sequence[Draw], requests_per_s: float, slo: Slo, *, warm_up: int
) -> Kept:
    """Serve the draws at a rate and count; ends early once far more misses than allowed."""
    counted = len(found) - warm_up
    stop = [4 * (1 - p.quantile) * counted + 20 for p in (*slo.ttft, *slo.tpot)]
    ttft, tpot = [0] * len(slo.ttft), [0] * len(slo.tpot)
    num_tpot = num_preemptions = num_seen = 0
    for served in fleet.serve(requests(found, requests_per_s)):
        if int(served.request.id) < warm_up:
            continue
        num_seen += 1
        num_preemptions += served.num_preemptions
        for index, promise in enumerate(slo.ttft):
            ttft[index] += served.ttft_s > promise.limit_s
        tpot_s = served.tpot_s
        if tpot_s is not None:
            num_tpot += 1
            for index, promise in enumerate(slo.tpot):
                tpot[index] += tpot_s > promise.limit_s
        if any(m > s for m, s in zip((*ttft, *tpot), stop, strict=True)):
            num_tpot, num_seen = max(num_tpot, counted), counted
            break
    return Kept(
        num_requests=max(1, num_seen),
        ttft_misses=tuple(ttft),
        tpot_misses=tuple(tpot),
        num_tpot=num_tpot,
        num_preemptions=num_preemptions,
    )
