"""What is watched for the store, how we log in, and when all of that has to be begun anew."""

import asyncio
import json
import logging
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import kopf
from yarl import URL

from tonnage.cluster.calls import MESSAGE_LENGTH, PIECE_BYTES, KubernetesError, WorldError
from tonnage.cluster.kube import MODEL_DEPLOYMENTS, KubeApi, Resource
from tonnage.cluster.pages import Object
from tonnage.control.input.times import backoff_s
from tonnage.fleet.background import unheard
from tonnage.fleet.bounded import bounded_responses
from tonnage.fleet.lists import OF_GROUPS, RELISTED
from tonnage.fleet.logs import Line
from tonnage.fleet.store import Kind, Store
from tonnage.settings import Settings

LOG = logging.getLogger("tonnage.watches")
Answer = TypeVar("Answer")
LOOK_S = 1.0
"""How often it is asked whether something has changed of which nobody tells."""
PAGE = 20
"""ModelDeployments in an answer to Kopf's list: 31 MB of text where each has etcd's 1.5 MiB."""
IDLE_S = 0.1
"""For how long Kopf keeps the whole of an object after an event. With its five seconds all that the
first lists tell of was held at once."""
END_S = 30.0
"""In which Kopf ends once one of its tasks has; some of them may wait for one that is gone."""
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
"""After a watch that failed; each one twice as long as the one before."""
LASTING_S = 60.0
"""For which the watches ran, so that the next pause is the shortest again."""
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def register(registry: kopf.OperatorRegistry, store: Store) -> None:
    """Hand what Kopf watches to the store. Nothing else is registered, so nothing is written."""
    kopf.on.login(registry=registry)(log_in)
    kopf.on.startup(registry=registry)(_configure)

    async def note(*, event: kopf.RawEvent, **_: Any) -> None:
        store.note(Kind.MODEL, event["type"], event["object"])

    group, version = MODEL_DEPLOYMENTS.prefix.split("/")[1:]
    kopf.on.event(group, version, MODEL_DEPLOYMENTS.plural, registry=registry)(note)


async def log_in(**kwargs: Any) -> kopf.AiohttpSession | None:
    """Return a session that Kopf keeps for good; None: nothing says how to reach the API server.

    Of credentials that were once refused Kopf closes the session under all watches: some then hear
    nothing more. So a 401 is an answer like a 503 to it, which it asks again after its back-off,
    and each request reads the token of the pod, which rotates.
    """
    found = _account() or kopf.login_with_kubeconfig(**kwargs)
    if found is None:
        return None
    return kopf.AiohttpSession(
        server=found.server,
        default_namespace=found.default_namespace,
        aiohttp_session=aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=found.as_ssl_context()),
            headers=found.as_http_headers(),
            middlewares=(_send,),
            response_class=bounded_responses(),
            proxy=found.proxy_url,
            trust_env=found.trust_env,
        ),
    )


async def _send(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    # Where it was redirected to another host, there is no such header any more, and must not be.
    account = _account() if aiohttp.hdrs.AUTHORIZATION in request.headers else None
    if account:
        request.headers.update(account.as_http_headers())
    response = await handler(request)
    if response.status == HTTPStatus.UNAUTHORIZED:
        response.release()
        raise aiohttp.ClientConnectionError("the API server refuses the token (401)")
    return response


def _account() -> kopf.ConnectionInfo | None:
    """Return those of the pod's ServiceAccount; None: this is no pod.

    Kopf's own login in a pod takes the API server's DNS name; the address that the kubelet puts
    into the environment works without DNS too.
    """
    host = os.environ.get("KUBERNETES_SERVICE_HOST")
    token = SERVICE_ACCOUNT / "token"
    if not host or not token.exists():
        return None
    address = f"[{host}]" if ":" in host else host
    return kopf.ConnectionInfo(
        server=f"https://{address}:{os.environ.get('KUBERNETES_SERVICE_PORT', '443')}",
        ca_path=str(SERVICE_ACCOUNT / "ca.crt"),
        scheme="Bearer",
        token=token.read_text().strip(),
    )


async def _configure(settings: kopf.OperatorSettings, **_: Any) -> None:
    """Set time-outs where Kopf has none, and turn off what would write or list too much."""
    settings.scanning.disabled = True
    settings.peering.standalone = True
    settings.posting.enabled = False
    settings.networking.connect_timeout = 10
    settings.networking.request_timeout = 60
    settings.watching.connect_timeout = 10
    settings.watching.server_timeout = 540
    settings.watching.client_timeout = 600
    settings.watching.inactivity_timeout = 70
    settings.watching.reconnect_backoff = 1.0
    settings.watching.chunk_size = PAGE
    settings.queueing.idle_timeout = IDLE_S


def _authority() -> Callable[[], bytes | None]:
    """Return what reads the file by which the API server's certificate is checked, if there is one.

    It gives nothing while somebody replaces the file.
    """
    found = _account() or kopf.login_with_kubeconfig(settings=kopf.OperatorSettings())
    path = Path(os.fsdecode(found.ca_path)) if found and found.ca_path else None

    def read() -> bytes | None:
        try:
            return path.read_bytes() if path else None
        except OSError:
            return None

    return read


@dataclass(slots=True, kw_only=True)
class Watches:
    """The namespaces that are watched now.

    ``beat`` is called while Kopf's event loop turns, ``rest`` when it is not asked to.
    """

    beat: Callable[[], None] = unheard
    rest: Callable[[], None] = unheard
    wait: Callable[[float], None] = time.sleep
    namespaces: tuple[str, ...] = ()
    has_groups: bool = False
    """LeaderWorkerSets are watched, too."""
    stale: threading.Event = field(default_factory=threading.Event)
    """Set when others can be read than are watched, or another authority is given."""
    _failures: int = 0
    _is_over: bool = False

    def begin(self, namespaces: tuple[str, ...]) -> None:
        self.namespaces = namespaces
        self.stale.clear()

    def note_readable(self, namespaces: Collection[str]) -> None:
        """Take in which namespaces could be listed: a watch that is refused ends all of them."""
        if namespaces and set(namespaces) != set(self.namespaces):
            self.stale.set()

    def note_groups(self, has_groups: bool) -> None:
        if has_groups != self.has_groups:
            self.stale.set()

    def end(self) -> None:
        """Begin none anew: the process was told to stop."""
        self._is_over = True

    def keep(
        self, find: Callable[[], tuple[str, ...]], watch: Callable[[tuple[str, ...]], None]
    ) -> None:
        """Watch what can be watched, until a watch ends though all of it is watched.

        A watch that fails ends all of them, and they begin again after a pause: Kopf takes an
        ERROR of the API server other than 410 for the end of the operator.
        """
        while True:
            self.begin(find())
            began_s = time.monotonic()
            try:
                watch(self.namespaces)
                self._failures = 0
            except Exception as error:
                lasted_s = time.monotonic() - began_s
                self._failures = 1 if lasted_s > LASTING_S else self._failures + 1
                self.stale.set()
                self._tell(error)
            self.rest()
            if self._is_over or not self.stale.is_set():
                return
            self.wait(self._pause_s())

    def _tell(self, error: Exception) -> None:
        """Write why the watches begin again; of a right that was taken there are no frames."""
        is_refused = getattr(error, "status", None) == HTTPStatus.FORBIDDEN
        line = Line("a watch failed, they begin again", pause_s=self._pause_s(), message=str(error))
        LOG.warning(line, exc_info=None if is_refused else error)

    def _pause_s(self) -> float:
        longest_s = LONGEST_PAUSE_S if self._failures else 0.0
        return backoff_s(self._failures, first_s=SHORTEST_PAUSE_S, longest_s=longest_s)


def when_reachable(ask: Callable[[], Answer]) -> Answer:
    """Return an answer as soon as the API server gives it; say once why it does not."""
    reported = ""
    while True:
        try:
            return ask()
        except WorldError as error:
            if str(error) != reported:
                LOG.warning("waiting for the API server: %s", error)
            reported = str(error)
            time.sleep(LOOK_S)


def require_served(kube: KubeApi) -> None:
    """Kopf looks for our kind once, when it begins.

    Raises:
        WorldError: the API server does not know it, or does not answer.
    """
    if not kube.serves(MODEL_DEPLOYMENTS):
        raise WorldError("it does not know modeldeployments.tonnage.dev, is the CRD installed?")


def followed(*, has_groups: bool) -> Sequence[tuple[Kind, Resource, str]]:
    """Return what is watched: (kind, resource, label selector)."""
    return [*RELISTED, *OF_GROUPS] if has_groups else RELISTED


def readable_namespaces(
    kube: KubeApi, settings: Settings, *, has_groups: bool = False
) -> tuple[str, ...]:
    """Return the namespaces to watch: without those of which we may not read every kind.

    A watch that is refused while we run ends all of them, and they begin again without it. All
    namespaces, where none may be read.
    """

    def is_refused(namespace: str) -> bool:
        try:
            for _, resource, selector in followed(has_groups=has_groups):
                next(iter(kube.list(resource.path(namespace), label_selector=selector)), None)
        except KubernetesError as error:
            LOG.warning(Line("not watched", namespace=namespace, message=str(error)))
            return error.status == HTTPStatus.FORBIDDEN
        return False

    found = tuple(each for each in settings.namespaces if not is_refused(each))
    return found or settings.namespaces


async def watch(namespaces: tuple[str, ...], store: Store, identity: str, watches: Watches) -> None:
    """Run Kopf until SIGTERM, until a watch fails, or until others are to be watched.

    Without an identity Kopf makes one of the user's name, which the uid of an image need not have.
    """
    registry = kopf.OperatorRegistry()
    register(registry, store)
    stop_flag = asyncio.Event()
    event_loop = asyncio.get_running_loop()

    def stop() -> None:
        watches.end()
        stop_flag.set()

    for signal_number in (signal.SIGTERM, signal.SIGINT):
        event_loop.add_signal_handler(signal_number, stop)
    looking = asyncio.create_task(look(watches, stop_flag))
    following = asyncio.create_task(_follow_all(namespaces, store, has_groups=watches.has_groups))
    ours = asyncio.all_tasks()
    tasks = await kopf.spawn_tasks(
        registry=registry,
        identity=identity,  # type: ignore[arg-type]  # Kopf does not export its NewType
        standalone=True,
        clusterwide=not namespaces,
        namespaces=namespaces,
        stop_flag=stop_flag,
    )
    ending = asyncio.create_task(kopf.run_tasks(tasks, ignored=ours))
    await asyncio.wait({*tasks, following}, return_when=asyncio.FIRST_COMPLETED)
    stop_flag.set()
    following.cancel()  # Kopf waits for tasks that it does not know
    await asyncio.wait({ending}, timeout=END_S)
    if not ending.done():
        raise TimeoutError(f"Kopf has not ended within {END_S:g} s")
    await ending
    looking.cancel()
    await end_all({following})


async def _follow_all(namespaces: tuple[str, ...], store: Store, *, has_groups: bool) -> None:
    """Watch everything but our own kind, until one may not be watched."""
    given = await log_in(settings=kopf.OperatorSettings())
    if given is None:
        return  # Kopf says so
    followers = [
        Follower(store=store, kind=kind, resource=resource, namespace=each, selector=selector)
        for kind, resource, selector in followed(has_groups=has_groups)
        if kind is not Kind.MODEL
        for each in namespaces or (None,)
    ]
    async with given.aiohttp_session:
        tasks = {asyncio.create_task(each.follow(given)) for each in followers}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end_all(tasks)


async def look(
    watches: Watches,
    stop_flag: asyncio.Event,
    *,
    authority: Callable[[], bytes | None] | None = None,
) -> None:
    """Tell that the event loop turns, and stop when the watches are to begin anew.

    Kopf reads the API server's authority once for each login, and would try for ever by one that
    was replaced; the connections of the loop read it from its file each time.
    """
    read = authority or _authority()
    trusted = read()
    while not watches.stale.is_set():
        watches.beat()
        await asyncio.sleep(LOOK_S)
        if (found := read()) is not None and found != trusted:
            LOG.info(Line("the certificate authority of the API server has changed"))
            watches.stale.set()
    LOG.info(Line("watching again"))
    stop_flag.set()


FOLLOW_LOG = logging.getLogger("tonnage.follow")
TIMEOUT = aiohttp.ClientTimeout(total=600, sock_connect=10, sock_read=70)
"""The API server sends a bookmark each minute: what is silent for longer is asked anew."""
SERVER_TIMEOUT_S = 540
RETRY_S = 1.0
"""Before a watch that ended is asked for again; twice as long after each that failed."""
LONGEST_RETRY_S = 30.0
FAILURES_OF_A_VERSION = 3
"""After which the version that a watch goes on from may be the cause."""
HEADERS = {"Accept": "application/json", "Accept-Encoding": "identity"}
CHANGES = frozenset({"ADDED", "MODIFIED", "DELETED"})


class _EndedError(Exception):
    """The watch ended with an error; it is begun again without a version."""


@dataclass(slots=True, kw_only=True)
class Follower:
    """A watch of what is kept small, of one kind, in one namespace or in all of them.

    One that begins without a version is first told of all that is there, so there is no list of its
    own; those versions come in no order, so none is gone on from before the API server has sent a
    bookmark. What vanished before it began is found by the lists of the loop, which are read then.
    What is large is reduced before it comes here (``bounded``).
    """

    store: Store
    kind: Kind
    resource: Resource
    namespace: str | None
    selector: str
    _version: str | None = None
    _failures: int = 0

    async def follow(self, given: kopf.AiohttpSession) -> None:
        """Watch for ever.

        Raises:
            KubernetesError: we may not.
        """
        while True:
            try:
                await self._watch(given)
            except (aiohttp.ClientError, TimeoutError, OSError, _EndedError) as error:
                self._note_failure(error)
            longest_s = backoff_s(self._failures + 1, first_s=RETRY_S, longest_s=LONGEST_RETRY_S)
            await asyncio.sleep(random.uniform(RETRY_S, longest_s))  # noqa: S311 - no secret

    def _note_failure(self, error: Exception) -> None:
        self._failures += 1
        if self._failures >= FAILURES_OF_A_VERSION or isinstance(error, _EndedError):
            self._version = None
            self.store.has_gap.set()
        FOLLOW_LOG.debug(
            Line("watch ended", kind=self.kind, message=f"{type(error).__name__}: {error}")
        )

    async def _watch(self, given: kopf.AiohttpSession) -> None:
        url = URL(f"{given.server.rstrip('/')}{self.resource.path(self.namespace)}", encoded=True)
        asked = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(SERVER_TIMEOUT_S),
            "labelSelector": self.selector,
            "resourceVersion": self._version or "",
        }
        url = url.with_query({name: value for name, value in asked.items() if value})
        async with given.aiohttp_session.get(url, headers=HEADERS, timeout=TIMEOUT) as answer:
            if answer.status == HTTPStatus.FORBIDDEN:
                where = f" in {self.namespace}" if self.namespace else ""
                message = f"no right to watch {self.resource.plural}{where}"
                raise KubernetesError(message, status=answer.status)
            if answer.status == HTTPStatus.GONE:
                raise _EndedError("the version is too old")
            answer.raise_for_status()
            async for line in answer.content.iter_chunked(PIECE_BYTES):
                self._take_line(line)

    def _take_line(self, line: bytes) -> None:
        try:
            record = json.loads(line)
            event, body = str(record["type"]), {**record["object"]}
        except (LookupError, TypeError, ValueError, RecursionError) as error:
            # of one object: the others go on
            message = f"{type(error).__name__}: {error}"[:MESSAGE_LENGTH]
            FOLLOW_LOG.warning(Line("an event cannot be read", kind=self.kind, message=message))
        else:
            self._take(event, body)
            self._failures = 0

    def _take(self, event: str, body: Object) -> None:
        if event in CHANGES:
            self.store.note(self.kind, event, body)
        elif event != "BOOKMARK":
            raise _EndedError(f"{event} {body.get('message')}"[:MESSAGE_LENGTH])
        if event == "BOOKMARK" or self._version is not None:
            self._version = (body.get("metadata") or {}).get("resourceVersion", self._version)


async def end_all(tasks: set[asyncio.Task[None]]) -> None:
    """Cancel them; raise what one of them ended with."""
    for each in tasks:
        each.cancel()
    for each in tasks:
        with suppress(asyncio.CancelledError):
            await each
