"""What ends a load test: errors, latency, somebody else's requests, a cache, several servers."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from tonnage.cli.console import Failure
from tonnage.cli.load.endpoint import EndpointProbe
from tonnage.cli.load.engine_page import EnginePage
from tonnage.cli.load.stream import RequestResult
from tonnage.units import count_of, format_s

MOST_ERRORS: Final = 0.02
MOST_CACHED: Final = 0.05
READINGS: Final = 5
"""Of the page before any load, each over a connection of its own."""
BETWEEN_S: Final = 0.1
SETTLING: Final = 20
"""Readings, at that interval, in which an engine may still count what it has answered."""
CONTINUE: Final = "--yes measures beside them"


class StoppedError(Exception):
    """The load test is refused, or was ended; nothing is written. The message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How far a load test may go."""

    max_ttft_s: float
    may_share: bool = False
    """Others may be served meanwhile."""
    num_engines: int = 1
    """Data-parallel ranks behind the URL."""


class EngineWatch:
    """Knows what was sent, and holds it against what the engine says it did."""

    def __init__(self, probe: EndpointProbe, bounds: Bounds) -> None:
        self.bounds = bounds
        self.num_sent = self.num_failed = self.num_cut = 0
        self.first: EnginePage | None = None
        """Before any load; None: the endpoint shows no metrics."""
        self.others = 0.0
        """Requests that were not ours."""
        self._probe = probe

    async def begin(self) -> None:
        """Read the page some times before any load.

        Raises:
            StoppedError: several servers answer, or others are served.
        """
        pages = [await self._page()]
        if pages[0] is None:
            return
        for _ in range(READINGS - 1):
            await asyncio.sleep(BETWEEN_S)
            pages.append(await self._page())
        known = [page for page in pages if page is not None]
        if len(known) < len(pages):
            raise StoppedError(
                f"/metrics answers {len(known)} of {len(pages)} times: a router is in front of "
                "several servers; measure one replica"
            )
        self._check_one_server(known)
        self.first = known[-1]
        if self.first.drafts:
            raise StoppedError("the engine drafts tokens: its steps cannot be timed from outside")
        self._check_alone(known)

    def _check_one_server(self, pages: list[EnginePage]) -> None:
        servers = sorted(frozenset().union(*(page.servers for page in pages)))
        kinds = {server.partition(" ")[0] for server in servers}
        counts = [page.succeeded or 0.0 for page in pages]
        if len(servers) > len(kinds):
            raise StoppedError(
                f"a router is in front of several replicas ({'; '.join(servers)}); measure one"
            )
        if counts != sorted(counts):
            raise StoppedError(
                "a router is in front of several replicas: counters of /metrics fall; measure one"
            )
        most = max(len(page.engines) for page in pages)
        if most > self.bounds.num_engines:
            raise StoppedError(
                f"/metrics shows {count_of(most, 'engine')}, --data-parallel says "
                f"{self.bounds.num_engines}: "
                "either it is another split, or a router is in front of several replicas"
            )

    def _check_alone(self, pages: list[EnginePage]) -> None:
        in_flight = max(page.in_flight for page in pages)
        came = (pages[-1].succeeded or 0.0) - (pages[0].succeeded or 0.0)
        self.others = max(in_flight, came)
        if self.others and not self.bounds.may_share:
            raise StoppedError(
                f"others are being served: {count_of(f'{in_flight:.0f}', 'request')} in the "
                f"engine, {came:.0f} ended while it was watched; {CONTINUE}"
            )

    def note(self, answers: Iterable[RequestResult]) -> None:
        """Take what became of requests.

        Raises:
            StoppedError: too many failed, or one waited too long.
        """
        for answer in answers:
            self.num_sent += 1
            self.num_failed += not answer.is_complete
            limit = f"--max-ttft {format_s(self.bounds.max_ttft_s)}"
            if answer.is_late:
                raise StoppedError(f"no token within {limit}")
            if answer.is_complete and answer.ttft_s > self.bounds.max_ttft_s:
                raise StoppedError(f"a first token took {format_s(answer.ttft_s)}, {limit}")
            self._check_errors(answer)

    def _check_errors(self, answer: RequestResult) -> None:
        if answer.status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
            raise StoppedError(f"the endpoint answers {answer.status}: the API key is refused")
        if not answer.is_complete and self.num_failed > MOST_ERRORS * self.num_sent:
            raise StoppedError(
                f"{self.num_failed} of {count_of(self.num_sent, 'request')} failed, more than "
                f"{MOST_ERRORS:.0%}; the last: {answer.error}"
            )

    def note_cut(self, number: int) -> None:
        """Take requests that were given up for want of time: no failure of the engine."""
        self.num_sent += number
        self.num_cut += number

    async def check(self) -> None:
        """Hold what was sent so far against the engine's own counters.

        Raises:
            StoppedError: they say that others were served, several servers answered, or prompts
                were found in a cache.
        """
        if self.first is None:
            return
        page = await self._wait_until_counted(self.first)
        if page.servers != self.first.servers:
            raise StoppedError(
                f"another server answers ({'; '.join(sorted(page.servers))}): a router stands "
                "before several replicas, or the engine was started again"
            )
        self._check_count(page, self.first)
        self._check_cache(page, self.first)

    async def _wait_until_counted(self, first: EnginePage) -> EnginePage:
        """Return a page on which all that was answered is counted, or the last one tried."""
        page = first
        for _ in range(SETTLING):
            read = await self._page()
            if read is None:
                raise StoppedError("/metrics does not answer any more")
            page = read
            if (page.succeeded or 0.0) - (first.succeeded or 0.0) >= self._num_complete:
                break
            await asyncio.sleep(BETWEEN_S)
        return page

    @property
    def _num_complete(self) -> int:
        return self.num_sent - self.num_failed - self.num_cut

    def _check_count(self, page: EnginePage, first: EnginePage) -> None:
        if page.succeeded is None or first.succeeded is None:
            return
        counted = page.succeeded - first.succeeded
        if counted < self._num_complete:
            raise StoppedError(
                f"the engine counts {counted:.0f} of our "
                f"{count_of(self._num_complete, 'request')}: a router is in front of several "
                "replicas; measure one"
            )
        self.others = max(self.others, counted - self.num_sent)
        if counted > self.num_sent and not self.bounds.may_share:
            raise StoppedError(
                "others are being served: "
                f"{count_of(f'{counted - self.num_sent:.0f}', 'request')} beside our "
                f"{self.num_sent}; {CONTINUE}"
            )

    def _check_cache(self, page: EnginePage, first: EnginePage) -> None:
        if page.looked_up_tokens is None or page.cached_tokens is None:
            return
        asked = page.looked_up_tokens - (first.looked_up_tokens or 0.0)
        cached = page.cached_tokens - (first.cached_tokens or 0.0)
        if cached > MOST_CACHED * asked:
            raise StoppedError(
                f"{cached:.0f} of {asked:.0f} prompt tokens came from the prefix cache, more than "
                f"{MOST_CACHED:.0%}, though every prompt is random: the times would mean nothing"
            )

    async def _page(self) -> EnginePage | None:
        try:
            return await self._probe.page()
        except Failure as failure:
            raise StoppedError(failure.message) from failure
