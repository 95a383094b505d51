"""Prometheus, asked many questions at once: each fails by itself, all end at one deadline.

No redirects, no proxies, no body in any message, and limits on time, bytes and series that hold
whatever the server sends: see ``Limits``.
"""

import asyncio
import ssl
import time
import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path

import aiohttp

from tonnage.cluster.answer import AnswerReader, Kept, LabelSets, bad_answer
from tonnage.cluster.errors import PrometheusError
from tonnage.cluster.questions import Answers, Gathering, Outcome, QuerySet
from tonnage.settings import Settings
from tonnage.units import KIB, MIB

PIECE_BYTES = 64 * KIB
HOPELESS = 2
"""Questions of a set that are late, and none answered, before the rest is not asked."""
LATE, UNREACHABLE = "QueryTimeout", "PrometheusUnreachable"
GZIP_BITS = zlib.MAX_WBITS | 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
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

    @property
    def asked_series(self) -> int:
        """Most series that a server is asked for: one more, so that one that was cut is refused.

        Prometheus 3 knows ``limit``; what does not sends all of them, and reading ends there.
        """
        return self.answer_series + 1


@dataclass(slots=True, kw_only=True)
class _Account:
    """What one set of questions may still take, and how it fares."""

    left_bytes: int
    most_late: int
    num_answered: int = 0
    num_late: int = 0

    def pay(self, amount_bytes: int) -> None:
        self.left_bytes -= amount_bytes
        if self.left_bytes < 0:
            message = "the answers of this tick exceed the bytes that they may take together"
            raise PrometheusError(message, reason="ResponseTooLarge")

    def check_hope(self) -> None:
        """Raise where the rest would only wait as long as the first ones did."""
        if self.num_late >= self.most_late and not self.num_answered:
            message = "not asked: nothing before was answered in time"
            raise PrometheusError(message, reason=LATE)


class Prometheus:
    """Instant queries against one server."""

    def __init__(
        self,
        settings: Settings,
        *,
        limits: Limits | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._settings, self._limits, self._now = settings, limits or Limits(), now
        self._labels: LabelSets | None = None
        self._url = f"{settings.prometheus_url.rstrip('/')}/api/v1/query"

    def ask(self, sets: Sequence[QuerySet], kept: Kept) -> Answers:
        """Ask everything; what fails is named in the result, and nothing is raised.

        Blocks until all is answered or the deadline of the tick is over.
        """
        loop = asyncio.new_event_loop()
        try:
            return loop.run_until_complete(self._ask(sets, kept))
        finally:
            loop.close()  # asyncio.run would wait for a name look-up that hangs

    async def _ask(self, sets: Sequence[QuerySet], kept: Kept) -> Answers:
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
            asking = _Asking(
                post=lambda text: session.post(
                    self._url,
                    data={"query": text, "limit": str(self._limits.asked_series)},
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
class _Asking:
    """The questions of one tick under way."""

    post: Post
    labels: LabelSets
    limits: Limits
    now: Callable[[], float]
    gathering: Gathering
    _places: asyncio.Semaphore = field(init=False)
    _end_s: float = field(init=False)
    """By the event loop's clock."""

    def __post_init__(self) -> None:
        self._places = asyncio.Semaphore(self.limits.num_parallel)
        self._end_s = asyncio.get_running_loop().time() + self.limits.all_s

    async def ask(self, sets: Sequence[QuerySet]) -> None:
        """Ask the sets side by side, so that one of which all hang does not hold up the others."""
        num_lines = max(1, self.limits.num_parallel // max(1, len(sets)))
        lines, doubted = [], []
        for each, share_bytes in zip(sets, shares(sets, self.limits), strict=True):
            most_late = 1 if each.is_doubted else max(1, HOPELESS // num_lines)
            account = _Account(left_bytes=share_bytes, most_late=most_late)
            waiting = iter(each.expressions.items())
            if each.is_doubted:
                doubted.append(self._ask_in_turn(each, waiting, account))
            else:
                lines += [self._ask_in_turn(each, waiting, account) for _ in range(num_lines)]
        await asyncio.gather(*lines, _one_by_one(doubted))

    async def _ask_in_turn(
        self, queries: QuerySet, waiting: Iterator[tuple[str, str]], account: _Account
    ) -> None:
        for name, text in waiting:
            try:
                account.check_hope()
                outcome = await self._ask_before_the_end(text, account)
            except PrometheusError as error:
                account.num_late += error.reason == LATE
                self.gathering.fail(name, queries, error)
            else:
                account.num_answered += 1
                self.gathering.add(name, queries, outcome)

    async def _ask_before_the_end(self, text: str, account: _Account) -> Outcome:
        try:
            async with asyncio.timeout_at(self._end_s), self._places:
                return await self._ask_twice(text, account)
        except TimeoutError as error:
            message = f"not answered within the {self.limits.all_s:g} s of a tick"
            raise PrometheusError(message, reason=LATE) from error
        except (aiohttp.ClientError, OSError) as error:
            raise _unreachable(error) from error

    async def _ask_twice(self, text: str, account: _Account) -> Outcome:
        """Ask, and once more where the connection broke before there was an answer."""
        limit_s = self.limits.request_s
        try:
            async with asyncio.timeout(limit_s):
                try:
                    return await self._ask_once(text, account)
                except aiohttp.ClientConnectionError:
                    return await self._ask_once(text, account)
        except TimeoutError as error:
            raise PrometheusError(f"no whole answer within {limit_s:g} s", reason=LATE) from error

    async def _ask_once(self, text: str, account: _Account) -> Outcome:
        reader = AnswerReader(self.labels, max_series=self.limits.answer_series)
        sent_at_s, num_bytes = self.now(), 0
        async with self.post(text) as response:
            if response.status != HTTPStatus.OK:
                message = f"Prometheus refused a query with status {response.status}"
                raise PrometheusError(message, reason="QueryRefused")
            async with aclosing(_unpacked(response)) as pieces:
                async for piece in pieces:
                    num_bytes += len(piece)
                    self._check_size(num_bytes)
                    account.pay(len(piece))
                    self.gathering.bytes_read += len(piece)
                    reader.feed(piece)
        answer = reader.end()
        skew_s = skew(reader.evaluated_at_s, sent_at_s=sent_at_s, received_at_s=self.now())
        return Outcome(answer=answer, clock_skew_s=skew_s)

    def _check_size(self, num_bytes: int) -> None:
        if num_bytes > self.limits.answer_bytes:
            message = f"an answer exceeds {self.limits.answer_bytes} bytes"
            raise PrometheusError(message, reason="ResponseTooLarge")


async def _one_by_one(lines: Iterable[Awaitable[None]]) -> None:
    for each in lines:
        await each


def shares(sets: Sequence[QuerySet], limits: Limits) -> list[int]:
    """Return the bytes that the answers to each set may take: half alike, half by its pods.

    One set that is flooded then leaves the others what they need.
    """
    num_pods = sum(each.num_pods for each in sets)
    half_bytes = max(limits.all_bytes, limits.pod_bytes * num_pods) // 2
    by_pod = half_bytes / max(1, num_pods)
    if num_pods == 0:
        return [2 * half_bytes // len(sets) for _ in sets]
    return [half_bytes // len(sets) + int(by_pod * each.num_pods) for each in sets]


def skew(evaluated_at_s: float | None, *, sent_at_s: float, received_at_s: float) -> float | None:
    """Return by how much Prometheus' clock is ahead of ours; None: it gave no time.

    What it gives lies between question and answer where the clocks agree.
    """
    if evaluated_at_s is None:
        return None
    return evaluated_at_s - min(max(evaluated_at_s, sent_at_s), received_at_s)


async def _unpacked(response: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
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
