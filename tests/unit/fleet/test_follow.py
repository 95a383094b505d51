"""How a watch goes on: from a bookmark on, and else from the beginning."""

import asyncio
import json
from types import SimpleNamespace

import aiohttp
import pytest

from fleet_builders import a_deployment_body
from http_double import Reply, json_reply, serving
from tonnage.cluster.calls import KubernetesError
from tonnage.cluster.kube import DEPLOYMENTS
from tonnage.cluster.pages import MOST_OBJECT_BYTES
from tonnage.fleet import watches as following
from tonnage.fleet.bounded import bounded_responses
from tonnage.fleet.store import Kind, Store
from tonnage.fleet.watches import Follower, end_all

KEY = ("serving", "llama")
BOOKMARK = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "70"}}}


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    monkeypatch.setattr(following, "RETRY_S", 0.001)


def event(kind="ADDED", **metadata):
    return {"type": kind, "object": a_deployment_body(resourceVersion="50", **metadata)}


def error(code):
    return {"type": "ERROR", "object": {"kind": "Status", "code": code, "message": "too old"}}


def told(*events):
    return Reply(body=b"".join(json.dumps(each).encode() + b"\n" for each in events))


def followed(*replies, until=None):
    """Follow until all replies were given; return the store and what was asked."""
    store, left = Store(), list(replies)

    async def run(server, has_given_all):
        session = aiohttp.ClientSession(response_class=bounded_responses())
        follower = Follower(
            store=store,
            kind=Kind.DEPLOYMENT,
            resource=DEPLOYMENTS,
            namespace="serving",
            selector="a=b",
        )
        async with session:
            given = SimpleNamespace(server=server.url, aiohttp_session=session)
            task = asyncio.create_task(follower.follow(given))
            waiting = asyncio.create_task(has_given_all.wait())
            await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            await end_all({task})

    async def serve():
        has_given_all, loop = asyncio.Event(), asyncio.get_running_loop()

        def answer(_):
            if not left:
                loop.call_soon_threadsafe(has_given_all.set)
                return told()
            return left.pop(0)

        with serving(answer) as server:
            await run(server, has_given_all)
            return server.asked[: len(replies) + 1]

    return store, asyncio.run(serve())


def versions(asked):
    return [each.query.get("resourceVersion") for each in asked]


def test_begins_with_all_that_is_there():
    store, asked = followed(told(event()))

    assert KEY in store.snapshot().deployments
    assert asked[0].path == "/apis/apps/v1/namespaces/serving/deployments"
    assert asked[0].query == {
        "watch": "true",
        "allowWatchBookmarks": "true",
        "timeoutSeconds": "540",
        "labelSelector": "a=b",
    }


def test_what_is_told_first_comes_in_no_order_so_it_is_not_gone_on_from():
    _, asked = followed(told(event()))

    assert versions(asked) == [None, None]


def test_goes_on_from_a_bookmark_and_from_what_comes_after_it():
    _, asked = followed(told(event(), BOOKMARK), told(event("MODIFIED")), told())

    assert versions(asked) == [None, "70", "50", "50"]


@pytest.mark.parametrize("gone", [told(error(410)), told(error(500)), Reply(status=410)])
def test_begins_anew_where_its_version_is_gone(gone):
    store, asked = followed(told(BOOKMARK), gone)

    assert versions(asked) == [None, "70", None]
    assert store.has_gap.is_set(), "what vanished meanwhile is looked for"


def test_asks_for_no_list_where_it_goes_on():
    store, _ = followed(told(BOOKMARK), told(event()))

    assert not store.has_gap.is_set()


@pytest.mark.parametrize("status", [401, 404, 429, 500, 503])
def test_asks_again_where_it_is_refused_and_lets_go_of_its_version_in_the_end(status):
    refusal = Reply(status=status)
    _, asked = followed(told(BOOKMARK), refusal, refusal, refusal)

    assert versions(asked) == [None, "70", "70", "70", None]


def test_ends_where_it_is_forbidden():
    with pytest.raises(KubernetesError, match="no right to watch deployments in serving") as caught:
        followed(json_reply({"kind": "Status"}, status=403))

    assert caught.value.status == 403


def test_what_is_deleted_goes():
    store, _ = followed(told(event(), event("DELETED")))

    assert store.snapshot().deployments == {}


@pytest.mark.parametrize("line", [b"{", b"[" * 100_000, b'{"type":"ADDED","object":[]}'])
def test_what_cannot_be_read_holds_up_nothing(line):
    body = told(BOOKMARK).body + line + b"\n" + told(event()).body
    store, asked = followed(Reply(body=body))

    assert KEY in store.snapshot().deployments
    assert versions(asked) == [None, "50"]


def test_an_object_that_is_too_large_is_known_by_name_and_others_are_read():
    large = event(annotations={"note": "x" * MOST_OBJECT_BYTES})
    other = event(name="other")
    store, _ = followed(told(event(), large, other))

    assert store.snapshot().deployments.keys() == {("serving", "other")}
    assert store.snapshot().oversized == {KEY: len(json.dumps(large["object"]))}


def test_a_line_that_ends_with_the_connection_is_not_taken():
    whole = told(event()).body
    store, _ = followed(Reply(body=whole[:-1]))

    assert store.snapshot().deployments == {}
