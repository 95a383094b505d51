"""Requests to try a replica with: the same draws for every rate, fixed by a seed.

Arrivals are a renewal process whose gaps are gamma distributed, with the squared variation that the
spec gives; lengths spread evenly over their distributions. What does not depend on the workload is
drawn once for each number of requests.
"""

from array import array
from dataclasses import dataclass
from functools import lru_cache

from tonnage.engine.chance import (
    Chance,
    cut,
    exponentials,
    lengths,
    lognormal,
    parts,
    passed,
    scaled,
)
from tonnage.engine.table import RequestTable
from tonnage.sizing.workload import NORMAL, Workload

SEED = 36
"""Of those tried, the one whose arrivals make queues wait most like any others."""
REMEMBERED = 12
"""Draws, of 6 MB each where a run is the longest: a plan takes fewer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """Requests before their arrivals are scaled to a rate."""

    at: "array[float]"
    """In mean gaps between arrivals."""
    prompt_tokens: "array[int]"
    output_tokens: "array[int]"
    cached_tokens: "array[int]"
    routes: "array[float]"
    """Shares by which a router chooses."""

    def table(self, requests_per_s: float) -> RequestTable:
        """Return them as they arrive at a rate."""
        arrival_s = scaled(self.at, 1 / requests_per_s)
        return RequestTable(self.prompt_tokens, self.output_tokens, self.cached_tokens, arrival_s)


@lru_cache(maxsize=REMEMBERED)
def requests(
    workload: Workload, *, arrival_scv: float, context_tokens: int, count: int
) -> Requests:
    """Return so many requests of a workload, none longer than the engine takes."""
    outputs = _outputs(workload, context_tokens, count)
    prompt = workload.prompt
    longest = min(prompt.longest_tokens, context_tokens - 1)
    normals = _normals(count, SEED + 1) if prompt.sigma else array("d", bytes(8 * count))
    drawn = lognormal(normals, prompt.mean_tokens, prompt.sigma, longest)
    prompts = cut(drawn, outputs, context_tokens)
    return Requests(
        at=_arrivals(count, arrival_scv),
        prompt_tokens=prompts,
        output_tokens=outputs,
        cached_tokens=parts(prompts, workload.cached_fraction),
        routes=_routes(count),
    )


def _outputs(workload: Workload, context_tokens: int, count: int) -> "array[int]":
    mean, sigma = workload.output_tokens, workload.output_sigma
    longest = max(1, context_tokens - 1)
    if sigma is not None:
        return lognormal(_normals(count, SEED + 2), mean, sigma, longest)
    return lengths(_exponentials(count), mean, longest)


@lru_cache(maxsize=16)
def _normals(count: int, seed: int) -> "array[float]":
    return array("d", map(NORMAL.inv_cdf, Chance(seed).even_shares(count)))


@lru_cache(maxsize=8)
def _exponentials(count: int) -> "array[float]":
    return exponentials(Chance(SEED + 3).even_shares(count))


@lru_cache(maxsize=16)
def _arrivals(count: int, arrival_scv: float) -> "array[float]":
    """Return when requests arrive, in mean gaps; the last after as many gaps as there are."""
    return passed(Chance(SEED + 4).gamma_gaps(count, 1 / arrival_scv))


@lru_cache(maxsize=8)
def _routes(count: int) -> "array[float]":
    return Chance(SEED + 5).shares(count)
