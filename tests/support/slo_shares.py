"""What share of the requests of a simulation kept each target, over part of its time."""

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from tonnage.replay.cluster import Record
from tonnage.sizing.expected import slo_of


@dataclass(frozen=True, slots=True, kw_only=True)
class SloShares:
    """Shares of requests within the limit, by target of TTFT and of TPOT, in the spec's order."""

    num_requests: int
    ttft: tuple[float, ...]
    tpot: tuple[float, ...]
    worst_ratio: float
    """Late requests over those allowed, of the target that is missed most."""


def slo_shares(record: Record, from_s: float, until_s: float) -> SloShares:
    """Return how the requests that came within a time fared; those never served were late."""
    slo = slo_of(record.cluster.model.spec)
    arrival_s = record.cluster.traffic.arrival_s
    table = record.cluster.table
    first_s, ended_s = memoryview(table.first_token_s), memoryview(table.ended_s)
    output = table.output_tokens
    ttft, tpot = array("d"), array("d")
    for number, at_s in enumerate(arrival_s):
        if from_s <= at_s < until_s:
            ttft.append(first_s[number] - at_s if first_s[number] else math.inf)
            later = output[number] - 1
            if later and ended_s[number]:
                tpot.append((ended_s[number] - first_s[number]) / later)
            elif later:
                tpot.append(math.inf)
    shares = [
        tuple(_share(values, target.limit_s) for target in targets)
        for values, targets in ((ttft, slo.ttft), (tpot, slo.tpot))
    ]
    allowed = [1 - target.quantile for target in (*slo.ttft, *slo.tpot)]
    found = [*shares[0], *shares[1]]
    ratios = [(1 - share) / most for share, most in zip(found, allowed, strict=True)]
    return SloShares(
        num_requests=len(ttft),
        ttft=shares[0],
        tpot=shares[1],
        worst_ratio=max(ratios, default=0.0),
    )


def _share(values: Sequence[float], limit_s: float) -> float:
    return sum(value <= limit_s for value in values) / len(values) if values else 1.0
