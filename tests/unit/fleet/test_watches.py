"""Which namespaces are watched: those that can be read, also when that changes."""

import asyncio

import aiohttp
import kopf
import pytest

from fleet_builders import a_manifest
from http_double import Reply, a_kubeconfig, serving
from loop_builders import a_loop, a_world
from tonnage.cluster.errors import KubernetesError
from tonnage.fleet import watches as watching
from tonnage.fleet.watches import Watches, log_in, look


def test_ends_when_a_watch_ends_and_all_that_can_be_read_was_watched():
    watches, watched = Watches(), []
    watches.keep(lambda: ("blue", "green"), watched.append)

    assert watched == [("blue", "green")]


def test_begins_anew_with_a_namespace_that_can_be_read_again():
    watches, watched = Watches(), []
    found = iter([("blue",), ("blue", "green")])

    def watch(namespaces):
        watched.append(namespaces)
        watches.note_readable({"blue", "green"})

    watches.keep(lambda: next(found), watch)

    assert watched == [("blue",), ("blue", "green")]


def test_begins_nothing_anew_when_the_process_is_told_to_stop():
    watches, watched = Watches(), []

    def watch(namespaces):
        watched.append(namespaces)
        watches.note_readable({"green"})
        watches.end()

    watches.keep(lambda: ("blue",), watch)

    assert watched == [("blue",)]


@pytest.mark.parametrize("namespaces", [set(), {"blue"}])
def test_what_cannot_be_read_any_more_begins_nothing_anew(namespaces):
    # Kopf ends the process for it.
    watches = Watches()
    watches.begin(("blue", "green"))

    watches.note_readable(namespaces)

    assert not watches.stale.is_set()


def test_the_loop_tells_after_each_list_what_can_be_read():
    world = a_world(a_manifest(namespace="blue"))
    loop = a_loop(world, namespaces=("blue", "green"))
    loop.lists.readable = (told := []).append

    def refused(verb, path):
        if verb == "list" and "/green/" in path:
            raise KubernetesError("not yours", status=403)

    world.kube.fail = refused
    loop.tick()
    world.kube.fail = lambda verb, path: None
    world.now_s += 301
    loop.tick()

    assert told == [{"blue"}, {"blue", "green"}]


@pytest.mark.parametrize(
    ("told", "begins"), [([b"old", b"old", b"new"], True), ([b"old", None, b"old"], False)]
)
def test_another_authority_begins_the_watches_anew_and_a_file_that_is_gone_does_not(
    told, begins, monkeypatch, caplog
):
    caplog.set_level("INFO")
    monkeypatch.setattr(watching, "LOOK_S", 0)
    watches, stop, left = Watches(), asyncio.Event(), list(told)

    def authority():
        if len(left) == 1:
            watches.stale.set()  # as if for another reason, so that it ends
        return left.pop(0)

    asyncio.run(look(watches, stop, authority=authority))

    assert left == []
    assert stop.is_set()
    assert ("authority of the API server has changed" in caplog.text) is begins


def test_a_refused_token_ends_no_session_and_the_next_request_carries_another(
    tmp_path, monkeypatch
):
    path = tmp_path / "kubeconfig"
    monkeypatch.setenv("KUBECONFIG", str(path))

    def answer(asked):
        return Reply(status=200 if asked.headers["Authorization"] == "Bearer new" else 401)

    async def ask(url):
        given = await log_in(settings=kopf.OperatorSettings())
        async with given.aiohttp_session as session:
            with pytest.raises(aiohttp.ClientConnectionError, match="401"):
                await session.get(url)
            path.write_text(a_kubeconfig(url).replace("secret", "new"))
            assert (await session.get(url)).status == 200

    with serving(answer) as server:
        path.write_text(a_kubeconfig(server.url))
        asyncio.run(ask(server.url))
