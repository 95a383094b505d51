"""Which namespaces are watched: those that can be read, also when that changes."""

import asyncio
from urllib.parse import urlsplit

import aiohttp
import kopf
import pytest

from fleet_builders import a_manifest
from http_double import Reply, a_kubeconfig, json_reply, new_certificates, serving, showing
from kube_double import KubeDouble
from loop_builders import a_loop, a_world
from tonnage.cluster.calls import KubernetesError
from tonnage.fleet import watches as watching
from tonnage.fleet.lists import RELISTED
from tonnage.fleet.store import Store
from tonnage.fleet.watches import Watches, log_in, look
from tonnage.settings import Settings


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


class TestAWatchThatFails:
    def test_begins_again_after_pauses_that_double(self):
        pauses = []
        watches = Watches(wait=pauses.append)
        failures = [KubernetesError("ERROR 500", status=500)] * 7

        def watch(_):
            if failures:
                raise failures.pop()

        watches.keep(lambda: ("blue",), watch)

        assert pauses == [1, 2, 4, 8, 16, 30, 30]

    def test_is_forgotten_when_the_next_ones_end_without_a_failure(self):
        pauses, endings = [], ["fails", "stale", "fails", "ends"]
        watches = Watches(wait=pauses.append)

        def watch(_):
            ending = endings.pop(0)
            if ending == "stale":
                watches.stale.set()
            if ending == "fails":
                raise KubernetesError("ERROR 500", status=500)

        watches.keep(lambda: ("blue",), watch)

        assert pauses == [1, 0, 1]

    @pytest.mark.parametrize(
        ("error", "has_frames"),
        [(KubernetesError("we may not watch pods", status=403), False), (OSError("no"), True)],
    )
    def test_is_one_line_where_a_right_was_taken(self, caplog, error, has_frames):
        failures, watches = [error], Watches(wait=lambda _: None)

        def watch(_):
            if failures:
                raise failures.pop()

        watches.keep(lambda: ("blue",), watch)

        [record] = caplog.records
        assert str(error) in str(record.msg)
        assert bool(record.exc_info) is has_frames

    def test_ends_with_the_process(self):
        watches = Watches(wait=pytest.fail)

        def watch(_):
            watches.end()
            raise KubernetesError("ERROR 500", status=500)

        watches.keep(lambda: ("blue",), watch)


@pytest.mark.parametrize(("namespaces", "is_stale"), [(set(), False), ({"blue"}, True)])
def test_begins_anew_without_what_cannot_be_read_any_more(namespaces, is_stale):
    watches = Watches()
    watches.begin(("blue", "green"))

    watches.note_readable(namespaces)

    assert watches.stale.is_set() is is_stale


@pytest.mark.parametrize("kind", [each.plural for _, each, _ in RELISTED])
def test_a_namespace_of_which_one_kind_may_not_be_read_is_not_watched(kind):
    def refused(verb, path):
        if verb == "list" and path.endswith(f"/green/{kind}"):
            raise KubernetesError("not yours", status=403)

    settings = Settings(prometheus_url="http://prometheus.test", namespaces=("blue", "green"))

    assert watching.readable_namespaces(KubeDouble(fail=refused), settings) == ("blue",)


class TestANamespaceInWhichNothingMayBeWritten:
    def test_is_left_out_and_named(self):
        world = a_world(a_manifest(namespace="blue"), a_manifest(namespace="green"))
        world.kube.read_only = {"green"}
        loop = a_loop(world, namespaces=("blue", "green"))

        loop.tick()

        assert loop.lists.unlisted == {"green": "no right to patch modeldeployments/status"}

    @pytest.mark.parametrize("namespaces", [(), ("blue",), ("blue", "green")])
    def test_ends_the_tick_where_it_is_all_of_them(self, namespaces):
        world = a_world(a_manifest(namespace="blue"))
        world.kube.read_only = {*namespaces} or {None}
        loop = a_loop(world, namespaces=namespaces)

        with pytest.raises(KubernetesError, match="no right to patch modeldeployments/status"):
            loop.tick()

        assert world.kube.writes == []


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


def until_stopped(server):
    """Pieces of a watch that says nothing."""
    server.stopping.wait()
    yield b""


def test_our_watches_end_with_those_of_kopf_which_waits_for_none_of_them(tmp_path, monkeypatch):
    # Else each stop takes five seconds longer, for which the Lease is held.
    monkeypatch.setattr(watching, "END_S", 3.0)
    monkeypatch.setattr(watching, "LOOK_S", 0.1)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    looks = []

    def beat():
        asked = [each.path for each in server.asked if each.query.get("watch")]
        is_under_way = len(asked) == len(RELISTED) - 1 and "/apis" in {
            each.path for each in server.asked
        }
        looks.extend([1] if is_under_way else [])
        if len(looks) == 3:  # Kopf has read its answers
            watches.stale.set()

    watches = Watches(beat=beat)

    def answer(asked):
        if asked.query.get("watch"):
            return Reply(pieces=until_stopped(server))
        return json_reply(
            {"groups": [], "versions": [], "resources": []}, **{"Content-Type": "application/json"}
        )

    with serving(answer) as server:
        (tmp_path / "kubeconfig").write_text(a_kubeconfig(server.url))
        asyncio.run(watching.watch((), Store(), "me", watches))

    assert watches.stale.is_set()


@pytest.fixture
def account(tmp_path, monkeypatch):
    """The folder of a ServiceAccount, and a context for what serves under its authority."""
    issued = new_certificates(tmp_path / "pki")
    (tmp_path / "token").write_text("old")
    (tmp_path / "ca.crt").write_bytes(issued.ca.read_bytes())
    monkeypatch.setattr(watching, "SERVICE_ACCOUNT", tmp_path)
    return tmp_path, showing(issued.server)


def in_a_pod(ask, server, monkeypatch):
    """Ask with the session that Kopf is given there for a server."""
    parts = urlsplit(server.url)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", parts.hostname)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(parts.port))

    async def run():
        given = await log_in(settings=kopf.OperatorSettings())
        async with given.aiohttp_session as session:
            await ask(session)

    asyncio.run(run())


def test_a_refused_token_ends_no_session_and_the_next_request_carries_another(account, monkeypatch):
    folder, tls = account

    def answer(asked):
        return Reply(status=200 if asked.headers["Authorization"] == "Bearer new" else 401)

    with serving(answer, tls=tls) as server:

        async def ask(session):
            with pytest.raises(aiohttp.ClientConnectionError, match="401"):
                await session.get(server.url)
            (folder / "token").write_text("new")
            assert (await session.get(server.url)).status == 200

        in_a_pod(ask, server, monkeypatch)


def test_a_token_goes_to_no_other_host_by_a_redirect(account, monkeypatch):
    _, tls = account
    with serving(lambda _: Reply()) as other:
        away = Reply(status=302, headers={"Location": other.url})
        with serving(lambda _: away, tls=tls) as server:

            async def ask(session):
                assert (await session.get(server.url)).status == 200

            in_a_pod(ask, server, monkeypatch)

        assert server.asked[0].headers["Authorization"] == "Bearer old"
        assert other.asked[0].headers["Authorization"] is None


def test_what_a_kubeconfig_says_holds_for_the_process(tmp_path, monkeypatch):
    path = tmp_path / "kubeconfig"
    monkeypatch.setenv("KUBECONFIG", str(path))

    async def ask(url):
        given = await log_in(settings=kopf.OperatorSettings())
        path.write_text("{")
        async with given.aiohttp_session as session:
            assert (await session.get(url)).status == 200

    with serving(lambda _: Reply()) as server:
        path.write_text(a_kubeconfig(server.url))
        asyncio.run(ask(server.url))

        assert server.asked[0].headers["Authorization"] == "Bearer secret"
