"""The Kubernetes API as plain dicts: a few verbs, time-outs on each, retries only where safe.

Typed models drop fields that they do not know and cost several times the memory, so the client
is used for its credentials, TLS and connection pool, and bodies stay dicts.
"""

import json
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import quote, urlencode

import msgspec
from kubernetes import client, config
from urllib3.exceptions import HTTPError, ReadTimeoutError
from urllib3.util.retry import Retry

from tonnage.cluster.calls import (
    ATTEMPTS,
    MESSAGE_LENGTH,
    MOST_BYTES,
    NO_SERVER,
    RETRIED,
    Call,
    KubernetesError,
    Object,
    TooLargeError,
    WorldError,
    read_body,
    refusal,
)
from tonnage.cluster.pages import Reduce, read_object, read_page, reduce_object, without_depths
from tonnage.units import MIB

TIMEOUT_S = (5, 10)
"""To connect, to read."""
RETRY_S = 0.5
"""Before the second attempt; so much more before each further one."""
JITTER = 0.5
"""Most of a pause that chance adds to it."""
MOST_CONNECTIONS = 40
"""That are kept: more than there are threads that write and read at once."""
CHUNK = 100
"""Objects in one answer to a list. As it is parsed, one of Kubernetes' takes ten times the memory
of what is kept of it, and what a list leaves free is never given back whole."""
FIRST_CHUNK = 10
"""Objects in the first answer; while they are small there are twice as many in each further one."""
PAGE_BYTES = 8 * MIB
"""Of one answer to a list: of larger ones fewer objects are asked for."""
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
ANYTHING = "*/*"


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of object and where the API serves it."""

    prefix: str
    plural: str

    def path(self, namespace: str | None, name: str | None = None, sub: str | None = None) -> str:
        """Return the path of a collection, an object or a subresource."""
        parts = [self.prefix]
        parts += ["namespaces", quote(namespace, safe="")] if namespace else []
        parts += [part for part in (self.plural, quote(name or "", safe=""), sub) if part]
        return "/" + "/".join(parts)


MODEL_DEPLOYMENTS = Resource("apis/tonnage.dev/v1alpha1", "modeldeployments")
DEPLOYMENTS = Resource("apis/apps/v1", "deployments")
REPLICA_SETS = Resource("apis/apps/v1", "replicasets")
STATEFUL_SETS = Resource("apis/apps/v1", "statefulsets")
LEADER_WORKER_SETS = Resource("apis/leaderworkerset.x-k8s.io/v1", "leaderworkersets")
SERVICES = Resource("api/v1", "services")
PODS = Resource("api/v1", "pods")
NODES = Resource("api/v1", "nodes")
CONFIG_MAPS = Resource("api/v1", "configmaps")
CLAIMS = Resource("api/v1", "persistentvolumeclaims")
DISRUPTION_BUDGETS = Resource("apis/policy/v1", "poddisruptionbudgets")
NETWORK_POLICIES = Resource("apis/networking.k8s.io/v1", "networkpolicies")
POD_MONITORS = Resource("apis/monitoring.coreos.com/v1", "podmonitors")
AUTOSCALERS = Resource("apis/autoscaling/v2", "horizontalpodautoscalers")
LEASES = Resource("apis/coordination.k8s.io/v1", "leases")
EVENTS = Resource("apis/events.k8s.io/v1", "events")
ACCESS_REVIEWS = Resource("apis/authorization.k8s.io/v1", "selfsubjectaccessreviews")


def load_client(kubeconfig: str | None = None, context: str | None = None) -> client.ApiClient:
    """Return a client with the pod's ServiceAccount, or with a kubeconfig outside a cluster.

    Raises:
        KubernetesError: neither is there.
    """
    settings = client.Configuration()
    # Tries are ours: the connection pool would follow redirects, and would wait as long as a
    # Retry-After says.
    settings.retries = Retry(0)
    settings.connection_pool_maxsize = MOST_CONNECTIONS
    is_in_pod = "KUBERNETES_SERVICE_HOST" in os.environ and kubeconfig is None and context is None
    try:
        if is_in_pod:
            config.load_incluster_config(client_configuration=settings)  # type: ignore[no-untyped-call]
            return client.ApiClient(settings)
        config.load_kube_config(  # type: ignore[no-untyped-call]
            kubeconfig, context, client_configuration=settings
        )
    except (config.ConfigException, OSError) as error:
        raise KubernetesError(f"no cluster to talk to: {error}", status=0) from error
    return client.ApiClient(settings)


Fence = Callable[[], None]
"""Asked before each attempt at a write; raises where it is not to be made."""


@dataclass(slots=True)
class Heard:
    """When the API server last answered anything: it is there, whoever waits for it in vain."""

    at_s: float = -1.0


class KubeApi:
    """One long-lived connection to the API server."""

    def __init__(
        self,
        api: client.ApiClient,
        *,
        sleep: Callable[[float], None] = time.sleep,
        chance: Callable[[], float] = random.random,
        timeout_s: tuple[float, float] = TIMEOUT_S,
    ) -> None:
        self._api, self._sleep, self._chance, self._timeout_s = api, sleep, chance, timeout_s
        self._fences: tuple[Fence, ...] = ()
        self._is_hasty = False
        self._heard = Heard()

    def with_fence(self, fence: Fence) -> "KubeApi":
        """Return the same connection, on which each attempt at a write asks this as well.

        What held when a write was decided may not hold when it is tried again, seconds later.
        """
        same = copy(self)
        same._fences = (*self._fences, fence)
        return same

    def hasty(self) -> "KubeApi":
        """Return the same connection, which waits for no busy server: it says so at once."""
        same = copy(self)
        same._is_hasty = True
        return same

    def check(self) -> None:
        """Ask every fence, as before a write; the first, which is the Lease, once more at the end.

        The others read from the API server, and the Lease may be lost while they wait for it.
        """
        again = self._fences[:1] if len(self._fences) > 1 else ()
        for fence in (*self._fences, *again):
            fence()

    def get(self, path: str) -> Object | None:
        """Return an object, None when there is none of that name."""
        found = self.document(path)
        if found is not None and not found.get("metadata"):
            raise KubernetesError(f"GET {path}: no object", status=0)
        return found

    def document(self, path: str) -> Object | None:
        """Return what is served as JSON and may be no object, such as the server's version."""
        try:
            return self._request(Call("GET", path))
        except KubernetesError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return None
            raise

    def text(self, path: str, **query: str) -> str:
        """Return what is served as text: a pod's log, or a page behind a proxy."""
        return self._answer(Call("GET", path, query=query, accept=ANYTHING)).decode(
            errors="replace"
        )

    def list(
        self, path: str, *, label_selector: str = "", reduce: Reduce = reduce_object
    ) -> Iterator[Object]:
        """Yield every object of a collection, read in chunks of objects and of bytes.

        One that is larger than an object may be is reduced.
        """
        query = {"labelSelector": label_selector} if label_selector else {}
        chunk = FIRST_CHUNK
        while True:
            try:
                data = self._answer(_listing(path, query, chunk))
            except KubernetesError as error:
                if not _is_of_the_chunk(error, chunk):
                    raise
                chunk = FIRST_CHUNK if chunk > FIRST_CHUNK else chunk // 2
                continue
            try:
                page = read_page(data)
                yield from (read_object(each, reduce) for each in page.items or ())
            except (ValueError, RecursionError) as error:
                raise KubernetesError(f"GET {path}: no JSON object", status=0) from error
            if page.items is msgspec.UNSET:
                raise KubernetesError(f"GET {path}: no list", status=0)
            query["continue"] = (page.metadata or {}).get("continue") or ""
            if not query["continue"]:
                return
            chunk = min(CHUNK, 2 * chunk) if len(data) < PAGE_BYTES // 4 else chunk

    def apply(self, path: str, body: Object, *, manager: str, force: bool) -> Object:
        """Apply server-side. The body's ``metadata.uid`` keeps a deleted object deleted.

        A field that the API server does not know is refused by its path, and never dropped.
        """
        query = {"fieldManager": manager, "force": str(force).lower(), "fieldValidation": "Strict"}
        return self._request(Call("PATCH", path, body=body, query=query, content_type=APPLY))

    def merge_patch(self, path: str, body: Object, *, manager: str) -> Object:
        query = {"fieldManager": manager}
        return self._request(Call("PATCH", path, body=body, query=query, content_type=MERGE))

    def create(self, path: str, body: Object) -> Object:
        """Create an object. Not retried: a lost answer would create it twice."""
        return self._request(Call("POST", path, body=body, attempts=1))

    def replace(self, path: str, body: Object) -> Object:
        """Replace an object that is ours alone and carries its resourceVersion."""
        return self._request(Call("PUT", path, body=body))

    def delete(self, path: str, *, uid: str) -> None:
        """Delete an object, and no namesake of it; one that is gone already is no failure."""
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}
        try:
            self._request(Call("DELETE", path, body=body))
        except KubernetesError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise

    def serves(self, resource: Resource) -> bool:
        group = self.document("/" + resource.prefix)
        kinds = (group or {}).get("resources") or ()
        return any(kind.get("name") == resource.plural for kind in kinds)

    def may(self, verb: str, resource: Resource, namespace: str | None, *, sub: str = "") -> bool:
        """Tell whether we have a right in a namespace, or everywhere, as far as that is told."""
        group = resource.prefix.split("/")[1] if resource.prefix.startswith("apis/") else ""
        attributes = {
            "verb": verb,
            "group": group,
            "resource": resource.plural,
            "subresource": sub,
            "namespace": namespace or "",
        }
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        try:
            review = self._request(Call("POST", ACCESS_REVIEWS.path(None), body=body))
        except KubernetesError as error:
            if error.status in {HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND}:
                return True
            raise
        return (review.get("status") or {}).get("allowed") is not False

    def _request(self, call: Call) -> Object:
        data = self._answer(call)
        with suppress(ValueError, RecursionError):
            if isinstance(parsed := json.loads(without_depths(data)), dict):
                return parsed
        raise KubernetesError(f"{call.method} {call.path}: not a JSON object", status=0)

    def _answer(self, call: Call) -> bytes:
        is_write, attempt = call.method != "GET", 1
        if is_write:
            self.check()
        while True:
            try:
                return self._once(call)
            except KubernetesError as error:
                is_busy = self._is_hasty and error.status == HTTPStatus.TOO_MANY_REQUESTS
                if error.retry_after_s is None or attempt >= call.attempts or is_busy:
                    raise
                # A herd that was refused at once must not return at once.
                pause_s = max(error.retry_after_s, RETRY_S * attempt)
                self._sleep(pause_s * (1 + JITTER * self._chance()))
                attempt += 1
                if is_write:
                    self._check_again(error)

    def _check_again(self, error: KubernetesError) -> None:
        """Ask before another attempt; what the last one came to is all that is known then."""
        try:
            self.check()
        except WorldError as held:
            message = f"{error}; not tried again: {held}"[:MESSAGE_LENGTH]
            is_alone = error.is_alone
            raise KubernetesError(message, status=error.status, is_alone=is_alone) from held

    def _once(self, call: Call) -> bytes:
        headers = {"Accept": call.accept, "Content-Type": call.content_type}
        url = f"{self._api.configuration.host}{call.path}"
        url += f"?{urlencode(call.query)}" if call.query else ""
        self._api.update_params_for_auth(
            headers, [], ["BearerToken"], call.path, call.method, call.body
        )
        headers["User-Agent"] = self._api.user_agent
        asked_at_s = time.monotonic()
        try:
            answer = self._api.call_api(
                call.method, url, headers, call.body, _request_timeout=self._timeout_s
            )
            data = read_body(call, answer.response)
        except HTTPError as error:
            reason = getattr(error, "reason", None) or error
            message = f"{call.method} {call.path}: {type(reason).__name__}"
            is_alone = self._heard.at_s > asked_at_s
            unanswered = KubernetesError(message, status=0, is_alone=is_alone)
            # A write that hung for seconds will hang again: a webhook's.
            if call.method == "GET" or not isinstance(reason, ReadTimeoutError):
                unanswered.retry_after_s = 0.0
            raise unanswered from error
        if answer.status not in NO_SERVER:
            self._heard.at_s = time.monotonic()
        if not HTTPStatus.OK <= answer.status < HTTPStatus.MULTIPLE_CHOICES:
            is_alone = self._heard.at_s > asked_at_s
            raise refusal(call, answer.status, data, answer.headers, is_alone=is_alone)
        return data


def _listing(path: str, query: Mapping[str, str], chunk: int) -> Call:
    most_bytes = PAGE_BYTES if chunk > 1 else MOST_BYTES
    attempts = 1 if chunk > FIRST_CHUNK else ATTEMPTS
    query = {**query, "limit": str(chunk)}
    return Call("GET", path, query=query, most_bytes=most_bytes, attempts=attempts)


def _is_of_the_chunk(error: KubernetesError, chunk: int) -> bool:
    """Tell whether fewer objects may be had: of large ones an answer does not come in time."""
    is_unanswered = error.status == 0 or error.status in RETRIED
    return chunk > 1 and (
        isinstance(error, TooLargeError) or (chunk > FIRST_CHUNK and is_unanswered)
    )
