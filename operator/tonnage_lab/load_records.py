"""What became of each request, and how many met their SLO targets. Pure."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from http import HTTPStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """One request as its client saw it."""

    start_s: float
    """When it was due, in seconds since the epoch."""
    prompt_tokens: int
    output_tokens: int
    status: int | None = None
    """Of the HTTP answer; None when there was none."""
    ttft_s: float | None = None
    tpot_s: float | None = None
    """None without an answer. Of one token 0, as vLLM's histogram observes it."""
    e2e_s: float | None = None
    pod: str = ""
    error: str = ""

    @property
    def is_complete(self) -> bool:
        """True when all tokens came."""
        return self.status == HTTPStatus.OK and not self.error


def within(
    records: Iterable[RequestRecord], *, since_s: float = -math.inf, until_s: float = math.inf
) -> list[RequestRecord]:
    """Return the requests that were due in a window of time."""
    return [each for each in records if since_s <= each.start_s < until_s]


def attainment(
    records: Iterable[RequestRecord],
    *,
    ttft_s: float = math.inf,
    tpot_s: float = math.inf,
    since_s: float = -math.inf,
    until_s: float = math.inf,
) -> float | None:
    """Return the share of the requests due in a window that met both SLO targets.

    A request that failed met none. None when no request was due.
    """
    due = within(records, since_s=since_s, until_s=until_s)
    if not due:
        return None
    return sum(_meets_slo(each, ttft_s=ttft_s, tpot_s=tpot_s) for each in due) / len(due)


def _meets_slo(record: RequestRecord, *, ttft_s: float, tpot_s: float) -> bool:
    if not record.is_complete or record.ttft_s is None or record.tpot_s is None:
        return False
    return record.ttft_s <= ttft_s and record.tpot_s <= tpot_s


def quantile(values: Iterable[float | None], fraction: float) -> float | None:
    """Return the smallest value that this share of the values does not exceed; None without any.

    >>> quantile([3, 1, None, 2], 0.5), quantile([], 0.5)
    (2, None)
    """
    known = sorted(value for value in values if value is not None)
    if not known:
        return None
    return known[max(0, math.ceil(fraction * len(known)) - 1)]
