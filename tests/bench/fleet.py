"""Streams of requests, fleets of reference engines, and how many targets they kept."""

import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import NormalDist, stdev

from reference_engine import EngineLimits, Request, Served
from reference_fast import Drafts, FastServer, StepFigures
from tonnage.sizing.request import SizingRequest
from tonnage.sizing.workload import Slo, Target, Workload

NORMAL = NormalDist()
FIRST_SEED = 1000
"""Of the truth: the product's are others."""
WARM_UP_RESIDENCES = 4
WARM_UP = 300
TAIL = 50
HOPELESS = 4.0
"""Misses over those allowed of a whole block, beyond which the others are not served."""
LEAST_RATIO = 0.05
"""Of misses over those allowed: fewer say no more about where the limit is."""
CLEAR = 0.7
"""Logarithm of misses over those allowed that one block must exceed, and so many of its standard
errors, for the others to be spared."""
CLEAR_ERRORS = 4
LEAST_CLEAR = 2
"""Blocks."""
MOST_REMEMBERED = 10
"""Blocks: more are drawn anew each time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What of a request for a sizing is its stream: how bursty it comes, how long each is."""

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


def draws(traffic: Traffic | SizingRequest, num_requests: int, seed: int) -> list[Draw]:
    """Return requests whose lengths spread evenly over their distributions, in random order.

    One length from each of as many slices of equal probability: the moments of a long-tailed
    distribution are then those of the sample, which those of independent draws are far from.
    """
    gaps = random.Random(f"{seed} gaps")  # noqa: S311
    prompts, outputs = (_even(num_requests, f"{seed} {name}") for name in ("prompts", "outputs"))
    scv, times, at = traffic.arrival_scv, [], 0.0
    for _ in range(num_requests):
        at += gaps.expovariate(1) if scv == 1 else gaps.gammavariate(1 / scv, scv)
        times.append(at)
    slower = num_requests / at
    drawn = zip(times, prompts, outputs, strict=True)
    return [_draw(traffic, time * slower, prompt, output) for time, prompt, output in drawn]


def _even(count: int, seed: str) -> list[float]:
    chance = random.Random(seed)  # noqa: S311
    shares = [(slot + chance.random()) / count for slot in range(count)]
    chance.shuffle(shares)
    return shares


def _draw(
    traffic: Traffic | SizingRequest, at: float, prompt_share: float, output_share: float
) -> Draw:
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
            number=number,
            prompt_tokens=draw.prompt_tokens,
            output_tokens=draw.output_tokens,
            cached_tokens=draw.cached_tokens,
            arrival_s=draw.at / requests_per_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Requests of one seed: those before and behind the ones that count are only company."""

    found: Sequence[Draw]
    first: int
    counted: int

    @property
    def end(self) -> int:
        return self.first + self.counted


@dataclass(frozen=True, kw_only=True)
class Load:
    """What a fleet is tried with: independent blocks, each from its own seed."""

    traffic: Traffic | SizingRequest
    num_requests: int
    """Counted in all blocks together."""
    crowd: int
    """Requests that the fleet runs at most."""
    num_blocks: int
    first_seed: int = FIRST_SEED
    _known: dict[int, Block] = field(default_factory=dict, init=False, repr=False)

    def block(self, number: int) -> Block:
        if number >= MOST_REMEMBERED:
            return self._drawn(self.first_seed + number)
        known = self._known.get(number)
        if known is None:
            known = self._known[number] = self._drawn(self.first_seed + number)
        return known

    def _drawn(self, seed: int) -> Block:
        # A queue behind few slots forgets its beginning no sooner than one behind many.
        warm_up = WARM_UP_RESIDENCES * self.crowd + int(WARM_UP * self.traffic.arrival_scv)
        counted = math.ceil(self.num_requests / self.num_blocks)
        return Block(
            found=draws(self.traffic, warm_up + counted + self.crowd + TAIL, seed),
            first=warm_up,
            counted=counted,
        )


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """One replica of the reference engine."""

    limits: EngineLimits
    figures: StepFigures
    num_ranks: int = 1
    drafts: Drafts | None = None

    def serve(self, arrivals: Iterable[Request]) -> Iterator[Served]:
        """Yield requests as they end, roughly in that order."""
        server = FastServer(self.limits, self.figures, num_ranks=self.num_ranks, drafts=self.drafts)
        for request in arrivals:
            server.submit(request)
            yield from server.completed
            server.completed.clear()
        server.advance(math.inf)
        yield from server.completed


@dataclass(slots=True, kw_only=True)
class Kept:
    """What became of the requests that count."""

    ttft_misses: list[int]
    """By target."""
    tpot_misses: list[int]
    num_requests: int = 0
    num_preemptions: int = 0

    def count(self, served: Served, slo: Slo) -> bool:
        """Count a request; True where it is late."""
        self.num_requests += 1
        self.num_preemptions += served.num_preemptions
        is_late = _count(self.ttft_misses, slo.ttft, served.ttft_s)
        # An answer of one token counts with 0, as in vLLM's histogram.
        return is_late | _count(self.tpot_misses, slo.tpot, served.tpot_s or 0.0)

    def is_beyond(self, most: Sequence[float]) -> bool:
        misses = (*self.ttft_misses, *self.tpot_misses)
        return any(each > limit for each, limit in zip(misses, most, strict=True))

    def ratios(self, slo: Slo) -> tuple[float, float]:
        """Return misses over those allowed: of the worst target on TTFT, and on TPOT."""
        ttft, tpot = (
            max(
                (misses / max(1, self.num_requests) / (1 - target.quantile))
                for target, misses in zip(targets, found, strict=True)
            )
            for targets, found in ((slo.ttft, self.ttft_misses), (slo.tpot, self.tpot_misses))
        )
        return ttft, tpot

    def excess(self, slo: Slo) -> float:
        """Return the logarithm of the worse of these: positive where a target is missed."""
        return math.log(max(*self.ratios(slo), LEAST_RATIO))


def _count(misses: list[int], targets: Sequence[Target], value_s: float) -> bool:
    is_late = False
    for index, target in enumerate(targets):
        if value_s > target.limit_s:
            misses[index] += 1
            is_late = True
    return is_late


def kept(fleet: Fleet, block: Block, requests_per_s: float, slo: Slo) -> Kept:
    """Serve a block at a rate and count; ends early where far more miss than may."""
    seen = Kept(ttft_misses=[0] * len(slo.ttft), tpot_misses=[0] * len(slo.tpot))
    most = [HOPELESS * (1 - each.quantile) * block.counted for each in (*slo.ttft, *slo.tpot)]
    for served in fleet.serve(requests(block.found, requests_per_s)):
        if not block.first <= served.request.number < block.end:
            continue
        if seen.count(served, slo) and seen.is_beyond(most):
            # As if none of the others were late: so it stays a lower bound.
            seen.num_requests = block.counted
        if seen.num_requests == block.counted:
            break
    return seen


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a load at one rate, block by block."""

    slo: Slo
    by_block: tuple[Kept, ...] = field(repr=False)

    @cached_property
    def total(self) -> Kept:
        found = self.by_block
        return Kept(
            ttft_misses=[sum(each) for each in zip(*(k.ttft_misses for k in found), strict=True)],
            tpot_misses=[sum(each) for each in zip(*(k.tpot_misses for k in found), strict=True)],
            num_requests=sum(each.num_requests for each in found),
            num_preemptions=sum(each.num_preemptions for each in found),
        )

    @property
    def excess(self) -> float:
        return self.total.excess(self.slo)

    @property
    def error(self) -> float:
        """Standard error of the excess, by how far the blocks differ."""
        ttft, tpot = self.total.ratios(self.slo)
        binding = 0 if ttft >= tpot else 1
        ratios = [each.ratios(self.slo)[binding] for each in self.by_block]
        if len(ratios) < 2 or not max(ttft, tpot):
            return math.inf
        return stdev(ratios) / math.sqrt(len(ratios)) / max(ttft, tpot)


def outcome(
    fleet: Fleet, load: Load, requests_per_s: float, slo: Slo, *, is_whole: bool = False
) -> Outcome:
    """Serve all blocks at a rate; if not the whole, only the first where they leave no doubt."""
    found: list[Kept] = []
    for number in range(load.num_blocks):
        block = load.block(number)
        found.append(kept(fleet, block, requests_per_s, slo))
        so_far = Outcome(slo=slo, by_block=tuple(found))
        if not is_whole and _is_clear(so_far):
            return so_far
    return so_far


def _is_clear(so_far: Outcome) -> bool:
    """Tell whether the blocks served already say on which side of the targets the rate is.

    Two at least: a queue near its capacity is long for a whole block, or not at all.
    """
    if len(so_far.by_block) < LEAST_CLEAR:
        return False
    total = so_far.total
    misses = max(1, *total.ttft_misses, *total.tpot_misses)
    error = max(1 / math.sqrt(misses), so_far.error if math.isfinite(so_far.error) else 0.0)
    return abs(so_far.excess) > CLEAR + CLEAR_ERRORS * error
