"""Prometheus, asked many questions at once: each fails by itself, all end at one deadline.

No redirects, no proxies, no body in any message, and limits on time, bytes and series that hold
whatever the server sends: see ``QueryLimits``.
"""

import asyncio
import ssl
import time
import zlib
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from urllib.parse import urlencode

import aiohttp

from tonnage.cluster.authorization import CREDENTIALS, authorization
from tonnage.cluster.calls import PrometheusError
from tonnage.cluster.queries import Answer, AnswerReader, Answers, QuerySet, SetUnderWay, bad_answer
from tonnage.estimate.fleet_scrapes import FleetScrapes
from tonnage.settings import Settings
from tonnage.units import KIB, MIB

PIECE_BYTES = 64 * KIB
LATE, UNREACHABLE = "QueryTimeout", "PrometheusUnreachable"
THROTTLED = "QueryThrottled"
CUT_OFF = "TickTimeout"
"""The tick was over first."""
GIVE_UP = 4
"""Failures, or one late question, of a set without an answer after which its rest is not asked."""
GZIP_BITS = zlib.MAX_WBITS | 16


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryLimits:
    """What asking may take, whatever the server does."""

    request_s: float = 10
    """For one question, from the name look-up to the last byte of the answer."""
    all_s: float = 20
    """For all questions of a tick: what is not answered then was not measured."""
    num_parallel: int = 4
    """Questions at once. One that hangs holds up its own place only."""
    answer_bytes: int = 32 * MIB
    """Of one answer, unpacked."""
    all_bytes: int = 64 * MIB
    """Of all answers of a tick together."""
    pod_bytes: int = 32 * KIB
    """Of all answers of a tick, for each pod that is asked for: large fleets have large answers."""
    kept_bytes: int = 64 * MIB
    """Of memory for what is kept of all answers of a tick, or ``pod_bytes`` where that is more."""
    answer_series: int = 200_000


class Prometheus:
    """Instant queries against one server."""

    def __init__(
        self,
        settings: Settings,
        *,
        limits: QueryLimits | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._settings, self._limits, self._now = settings, limits or QueryLimits(), now
        self._url = f"{settings.prometheus_url.rstrip('/')}/api/v1/query"
        self._authorization = authorization(settings)

    def ask(self, sets: Sequence[QuerySet], scrapes: FleetScrapes) -> Answers:
        """Ask everything; what fails is named in the result, and nothing is raised.

        Blocks until all is answered or the deadline of the tick is over, which begins when there
        are credentials: those of ``authorization`` have their own.
        """
        try:
            self._authorization.renew()
        except PrometheusError as error:
            return _failed(sets, error)
        loop = asyncio.new_event_loop()
        try:
            return loop.run_until_complete(self._ask(sets, scrapes))
        finally:
            loop.close()  # asyncio.run would wait for a name look-up that hangs

    async def _ask(self, sets: Sequence[QuerySet], scrapes: FleetScrapes) -> Answers:
        try:
            session = self._session()
        except OSError as error:
            return _failed(sets, _unreachable(error))
        async with session:
            asking = QueryRound(
                post=lambda text: self._post(session, text),
                scrapes=scrapes,
                limits=self._limits,
                now=self._now,
                answers=Answers(),
            )
            await asking.ask(sets)
        if asking.is_unauthorized:
            self._authorization.forget()
        return asking.answers

    def _post(
        self, session: aiohttp.ClientSession, text: str
    ) -> "aiohttp.client._RequestContextManager":
        form = {
            "query": text,
            # One more, so that an answer that was cut is refused. Prometheus 3 knows it; what does
            # not sends all series, and reading ends there.
            "limit": str(self._limits.answer_series + 1),
            "nocache": "1",  # VictoriaMetrics answers of now, not of 30 s ago
        }
        body = urlencode(form).encode()
        headers = self._authorization.headers()
        headers["Content-Type"] = "application/x-www-form-urlencoded"
        return session.post(self._url, data=body, headers=headers, allow_redirects=False)

    def _session(self) -> aiohttp.ClientSession:
        """Return a session for one tick; certificates are read again for each.

        Raises:
            OSError: one of the files cannot be read.
        """
        authority, own = self._settings.prometheus_ca_file, self._authorization.certificate
        context: ssl.SSLContext | bool = True
        if self._url.startswith("https:"):
            context = ssl.create_default_context(cafile=authority)
            if own:
                context.load_cert_chain(*own)
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._limits.num_parallel, ssl=context),
            headers={"Accept-Encoding": "gzip"},
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
            auto_decompress=False,
            trust_env=False,
        )


Post = Callable[[str], "aiohttp.client._RequestContextManager"]


@dataclass(slots=True, kw_only=True)
class QueryRound:
    """The questions of one tick under way."""

    post: Post
    scrapes: FleetScrapes
    limits: QueryLimits
    now: Callable[[], float]
    answers: Answers
    is_unauthorized: bool = False
    """Prometheus does not accept who we are."""
    _end_s: float = 0.0
    """By the event loop's clock."""

    async def ask(self, sets: Sequence[QuerySet]) -> None:
        """Ask everything, each of a few places one question after the other."""
        self._end_s = clock_s() + self.limits.all_s
        under_way = self._under_way(sets)
        async with asyncio.TaskGroup() as places:
            for _ in range(self.limits.num_parallel):
                places.create_task(self._ask_in_turn(under_way))

    def _under_way(self, sets: Sequence[QuerySet]) -> Sequence[SetUnderWay]:
        """Return the sets with what each may take: half of all alike, half by its pods."""
        num_pods = sum(each.num_pods for each in sets)
        weights = [max(1, each.num_pods) for each in sets]
        of_pods = self.limits.pod_bytes * num_pods
        shares = [(1 / len(sets) + weight / sum(weights)) / 2 for weight in weights]
        return [
            SetUnderWay(
                queries=each,
                most_bytes=max(self.limits.all_bytes, of_pods) * share,
                most_kept_bytes=max(self.limits.kept_bytes, of_pods) * share,
                waiting=deque(each.expressions.items()),
            )
            for each, share in zip(sets, shares, strict=True)
        ]

    async def _ask_in_turn(self, under_way: Sequence[SetUnderWay]) -> None:
        while waiting := [each for each in under_way if each.waiting]:
            part = min(waiting, key=lambda each: each.turn)
            name, text = part.waiting.popleft()
            part.num_under_way += 1
            try:
                outcome = await self._ask_before_the_end(text, part)
            except PrometheusError as error:
                part.failures.append(error.reason)
                self.answers.fail(name, part.queries, error)
            else:
                part.num_answered += 1
                self.answers.add(name, part.queries, outcome)
            part.num_under_way -= 1

    async def _ask_before_the_end(self, text: str, part: SetUnderWay) -> Answer:
        if not part.num_answered and (LATE in part.failures or len(part.failures) >= GIVE_UP):
            raise PrometheusError("not queried: none before was answered", reason=part.failures[-1])
        if clock_s() >= self._end_s:
            raise self._cut_off(part)
        slow_at_s = clock_s() + self.limits.request_s / 4
        try:
            async with asyncio.timeout_at(self._end_s):
                return await self._ask_twice(text, part)
        except TimeoutError as error:
            part.is_slow |= clock_s() > slow_at_s
            raise self._cut_off(part) from error
        except (aiohttp.ClientError, OSError) as error:
            raise _unreachable(error) from error
        finally:
            part.is_slow |= clock_s() > slow_at_s

    def _cut_off(self, part: SetUnderWay) -> PrometheusError:
        """Return that the end of the round came first: a set that is slow is late by itself."""
        message = f"not answered within the {self.limits.all_s:g} s of a tick"
        return PrometheusError(message, reason=LATE if part.is_slow else CUT_OFF)

    async def _ask_twice(self, text: str, part: SetUnderWay) -> Answer:
        """Ask, and once more where the connection broke before there was an answer."""
        limit_s = self.limits.request_s
        try:
            async with asyncio.timeout(limit_s):
                try:
                    return await self._ask_once(text, part)
                except aiohttp.ClientConnectionError:
                    return await self._ask_once(text, part)
        except TimeoutError as error:
            raise PrometheusError(f"no full answer within {limit_s:g} s", reason=LATE) from error

    async def _ask_once(self, text: str, part: SetUnderWay) -> Answer:
        reader = AnswerReader(self.scrapes, max_series=self.limits.answer_series)
        sent_at_s, num_bytes = self.now(), 0
        async with self.post(text) as response:
            if response.status != HTTPStatus.OK:
                message = f"Prometheus refused a query with status {response.status}"
                if response.status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
                    self.is_unauthorized = True
                    message += f": {CREDENTIALS}"
                is_throttled = response.status == HTTPStatus.TOO_MANY_REQUESTS
                raise PrometheusError(message, reason=THROTTLED if is_throttled else "QueryRefused")
            async with aclosing(_decompress(response)) as pieces:
                async for piece in pieces:
                    num_bytes += len(piece)
                    self._pay(part, len(piece), num_bytes)
                    reader.feed(piece)
        date_s = None
        try:
            is_partial = reader.end(most_kept_bytes=part.most_kept_bytes - part.kept_bytes)
        finally:
            part.kept_bytes += reader.answered.kept_bytes
        with suppress(ValueError, OverflowError):  # by the server's own clock
            date_s = parsedate_to_datetime(response.headers.get("Date", "")).timestamp()
        skew_s = skew(date_s, sent_at_s=sent_at_s, received_at_s=self.now())
        return reader.answered, is_partial, skew_s

    def _pay(self, part: SetUnderWay, amount_bytes: int, num_bytes: int) -> None:
        """Count a piece of an answer of which so many bytes were read."""
        if num_bytes > self.limits.answer_bytes:
            message = f"an answer exceeds {self.limits.answer_bytes} bytes"
            raise PrometheusError(message, reason="ResponseTooLarge")
        self.answers.bytes_read += amount_bytes
        part.num_bytes += amount_bytes
        if part.num_bytes > part.most_bytes:
            message = "the answers of this tick together exceed the limit of bytes"
            raise PrometheusError(message, reason="ResponseTooLarge")


def clock_s() -> float:
    return asyncio.get_running_loop().time()


def skew(date_s: float | None, *, sent_at_s: float, received_at_s: float) -> float | None:
    """Return by how much Prometheus' clock is ahead of ours; None: it gave no time.

    The whole second that it gives lies between question and answer where the clocks agree.
    """
    if date_s is None:
        return None
    if sent_at_s - 1 < date_s <= received_at_s:
        return 0.0
    return date_s - (sent_at_s if date_s < sent_at_s else received_at_s)


async def _decompress(response: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
    """Yield the body in pieces of bounded size, however far a compressed one expands."""
    encoding = response.headers.get("Content-Encoding", "identity").lower()
    if encoding not in {"identity", "gzip"}:
        raise bad_answer()
    unzip = zlib.decompressobj(GZIP_BITS) if encoding == "gzip" else None
    async for packed in response.content.iter_any():
        if unzip is None:
            yield packed
            continue
        remaining = packed
        try:
            while remaining and not unzip.eof:
                yield unzip.decompress(remaining, PIECE_BYTES)
                remaining = unzip.unconsumed_tail
        except zlib.error as error:
            raise bad_answer() from error


def _failed(sets: Sequence[QuerySet], problem: PrometheusError) -> Answers:
    """Return that nothing was asked, and why."""
    answers = Answers()
    for each in sets:
        for name in each.expressions:
            answers.fail(name, each, problem)
    return answers


def _unreachable(error: Exception) -> PrometheusError:
    return PrometheusError(f"Prometheus: {type(error).__name__}", reason=UNREACHABLE)
