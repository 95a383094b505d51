"""Prometheus, asked many questions at once: each fails by itself, all end at one deadline.

No redirects, no proxies, no body in any message, and limits on time, bytes and series that hold
whatever the server sends: see ``QueryLimits``.
"""

import asyncio
import ssl
import time
import zlib
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path
from typing import Self

import aiohttp

from tonnage.cluster.answer import AnswerReader, LabelSets, SeriesFilter, bad_answer
from tonnage.cluster.errors import PrometheusError
from tonnage.cluster.questions import Answers, Gathering, QueryResult, QuerySet, Standing
from tonnage.cluster.turns import Account, RunningQuery, Turns
from tonnage.settings import Settings
from tonnage.units import KIB, MIB

PIECE_BYTES = 64 * KIB
LATE, UNREACHABLE = "QueryTimeout", "PrometheusUnreachable"
THROTTLED = "QueryThrottled"
CUT_OFF = "TickTimeout"
"""The tick was over first, and that is not for what this set itself took."""
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
    answer_series: int = 200_000

    def doubting(self) -> Self:
        """Return those of sets that are doubted, which make no round last longer.

        What answers more slowly would not be through with all of its questions in time.
        """
        return replace(self, request_s=self.request_s / 4, all_s=self.all_s / 2)

    @property
    def asked_series(self) -> int:
        """Most series that a server is asked for: one more, so that one that was cut is refused.

        Prometheus 3 knows ``limit``; what does not sends all of them, and reading ends there.
        """
        return self.answer_series + 1


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
        self._labels: LabelSets | None = None
        self._url = f"{settings.prometheus_url.rstrip('/')}/api/v1/query"

    def ask(self, sets: Sequence[QuerySet], kept: SeriesFilter) -> Answers:
        """Ask everything; what fails is named in the result, and nothing is raised.

        Blocks until all is answered or the deadline of the tick is over.
        """
        loop = asyncio.new_event_loop()
        try:
            return loop.run_until_complete(self._ask(sets, kept))
        finally:
            loop.close()  # asyncio.run would wait for a name look-up that hangs

    async def _ask(self, sets: Sequence[QuerySet], kept: SeriesFilter) -> Answers:
        gathering = Gathering()
        self._labels = self._labels.for_next(kept) if self._labels else LabelSets(kept)
        try:
            session = self._session()
        except OSError as error:
            problem = _unreachable(error)
            for each in sets:
                for name in each.expressions:
                    gathering.fail(name, each, problem)
            return gathering.answers()
        async with session:
            asking = QueryRound(
                post=lambda text: session.post(
                    self._url,
                    data={
                        "query": text,
                        "limit": str(self._limits.asked_series),
                        "nocache": "1",  # VictoriaMetrics answers of now, not of 30 s ago
                    },
                    allow_redirects=False,
                ),
                labels=self._labels,
                limits=self._limits,
                now=self._now,
                gathering=gathering,
            )
            await asking.ask(sets)
        return gathering.answers()

    def _session(self) -> aiohttp.ClientSession:
        """Return a session for one tick; token and certificates are read again for each.

        Raises:
            OSError: one of the files cannot be read.
        """
        headers = {"Accept-Encoding": "gzip"}
        if file := self._settings.prometheus_token_file:
            headers["Authorization"] = f"Bearer {Path(file).read_text().strip()}"
        is_encrypted = self._url.startswith("https:")
        authority = self._settings.prometheus_ca_file
        context = ssl.create_default_context(cafile=authority) if is_encrypted else True
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._limits.num_parallel, ssl=context),
            headers=headers,
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
    labels: LabelSets
    limits: QueryLimits
    now: Callable[[], float]
    gathering: Gathering
    _all_bytes: int = 0
    _begun_s: float = 0.0
    """By the event loop's clock."""

    async def ask(self, sets: Sequence[QuerySet]) -> None:
        """Ask everything, each of a few places one question after the other."""
        num_pods = sum(each.num_pods for each in sets)
        self._all_bytes = max(self.limits.all_bytes, self.limits.pod_bytes * num_pods)
        self._begun_s = clock_s()
        turns = Turns(sets, patience_s=self.limits.request_s)
        async with asyncio.TaskGroup() as places:
            for _ in range(self.limits.num_parallel):
                places.create_task(self._ask_in_turn(turns))

    async def _ask_in_turn(self, turns: Turns) -> None:
        while question := turns.begin(clock_s()):
            account = question.account
            try:
                outcome = await self._ask_before_the_end(question)
            except PrometheusError as error:
                account.num_late += error.reason == LATE
                self.gathering.fail(question.name, account.queries, error)
            else:
                account.num_answered += 1
                self.gathering.add(question.name, account.queries, outcome)
            finally:
                question.end(clock_s())

    async def _ask_before_the_end(self, question: RunningQuery) -> QueryResult:
        account, limits = question.account, self._limits_of(question.account)
        if account.is_hopeless:
            message = "not asked: nothing before was answered in time"
            raise PrometheusError(message, reason=LATE)
        end_s = self._begun_s + limits.all_s
        if clock_s() >= end_s:
            raise self._cut_off(account)
        try:
            async with asyncio.timeout_at(end_s):
                return await self._ask_twice(question.text, account)
        except TimeoutError as error:
            raise self._cut_off(account) from error
        except (aiohttp.ClientError, OSError) as error:
            raise _unreachable(error) from error

    def _limits_of(self, account: Account) -> QueryLimits:
        is_doubted = account.queries.standing == Standing.DOUBTED
        return self.limits.doubting() if is_doubted else self.limits

    def _cut_off(self, account: Account) -> PrometheusError:
        """Return what is said of a question that the end came before.

        A set that had its share of the time, and one question more, was late by itself.
        """
        limits = self._limits_of(account)
        share_s = account.share * self.limits.num_parallel * self.limits.all_s
        is_late = account.taken_s(clock_s()) > share_s + limits.request_s
        message = f"not answered within the {limits.all_s:g} s of a tick"
        return PrometheusError(message, reason=LATE if is_late else CUT_OFF)

    async def _ask_twice(self, text: str, account: Account) -> QueryResult:
        """Ask, and once more where the connection broke before there was an answer."""
        limit_s = self._limits_of(account).request_s
        try:
            async with asyncio.timeout(limit_s):
                try:
                    return await self._ask_once(text, account)
                except aiohttp.ClientConnectionError:
                    return await self._ask_once(text, account)
        except TimeoutError as error:
            raise PrometheusError(f"no whole answer within {limit_s:g} s", reason=LATE) from error

    async def _ask_once(self, text: str, account: Account) -> QueryResult:
        reader = AnswerReader(self.labels, max_series=self.limits.answer_series)
        sent_at_s, num_bytes = self.now(), 0
        async with self.post(text) as response:
            if response.status != HTTPStatus.OK:
                message = f"Prometheus refused a query with status {response.status}"
                is_throttled = response.status == HTTPStatus.TOO_MANY_REQUESTS
                raise PrometheusError(message, reason=THROTTLED if is_throttled else "QueryRefused")
            async with aclosing(_decompress(response)) as pieces:
                async for piece in pieces:
                    num_bytes += len(piece)
                    self._check_size(num_bytes)
                    self._pay(account, len(piece))
                    reader.feed(piece)
        answer = reader.end()
        skew_s = skew(reader.evaluated_at_s, sent_at_s=sent_at_s, received_at_s=self.now())
        return QueryResult(answer=answer, clock_skew_s=skew_s)

    def _pay(self, account: Account, amount_bytes: int) -> None:
        self.gathering.bytes_read += amount_bytes
        account.num_bytes += amount_bytes
        if account.num_bytes > account.share * self._all_bytes:
            message = "the answers of this tick exceed the bytes that they may take together"
            raise PrometheusError(message, reason="ResponseTooLarge")

    def _check_size(self, num_bytes: int) -> None:
        if num_bytes > self.limits.answer_bytes:
            message = f"an answer exceeds {self.limits.answer_bytes} bytes"
            raise PrometheusError(message, reason="ResponseTooLarge")


def clock_s() -> float:
    """Return the time of the event loop that runs."""
    return asyncio.get_running_loop().time()


def skew(evaluated_at_s: float | None, *, sent_at_s: float, received_at_s: float) -> float | None:
    """Return by how much Prometheus' clock is ahead of ours; None: it gave no time.

    What it gives lies between question and answer where the clocks agree.
    """
    if evaluated_at_s is None:
        return None
    return evaluated_at_s - min(max(evaluated_at_s, sent_at_s), received_at_s)


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
        left = packed
        try:
            while left and not unzip.eof:
                yield unzip.decompress(left, PIECE_BYTES)
                left = unzip.unconsumed_tail
        except zlib.error as error:
            raise bad_answer() from error


def _unreachable(error: Exception) -> PrometheusError:
    return PrometheusError(f"Prometheus: {type(error).__name__}", reason=UNREACHABLE)
