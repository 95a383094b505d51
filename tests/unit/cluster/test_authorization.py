"""Who asks Prometheus: every kind of credentials by both clients, and what goes wrong."""

import base64
import json
import threading
import time
from urllib.parse import urlsplit

import pytest

from fault_world import a_world
from http_double import Reply, answering, json_reply, serving
from page_builders import for_everybody
from tonnage.cluster.authorization import Authorization
from tonnage.cluster.calls import PrometheusError
from tonnage.cluster.prometheus import Prometheus
from tonnage.cluster.queries import QuerySet
from tonnage.cluster.ranges import Steps, ask_range
from tonnage.fleet.settings_file import read_settings
from tonnage.settings import Settings

EMPTY = json_reply({"status": "success", "data": {"resultType": "matrix", "result": []}})
SECRET = "pa55-w0rd-s3cret"  # noqa: S105  (a test's own)
BASIC = "Basic " + base64.b64encode(f"123456:{SECRET}".encode()).decode()


@pytest.fixture
def folder(tmp_path):
    for name, text in {"user": "123456", "secret": SECRET}.items():
        (tmp_path / name).write_text(text + "\n")
    return tmp_path


def basic(folder):
    return {"basic": {"usernameFile": f"{folder}/user", "passwordFile": f"{folder}/secret"}}


def oauth2(folder, url, **more):
    files = {"clientIdFile": f"{folder}/user", "clientSecretFile": f"{folder}/secret"}
    return {"oauth2": {"tokenUrl": f"{url}/token", **files, **more}}


def a_token(text="t-1", **more):
    return json_reply({"access_token": text, "token_type": "Bearer", "expires_in": 3600, **more})


def settings_of(url, auth=None, **more):
    return Settings(prometheus_url=url, prometheus_auth=auth, **more)


def by_loop(settings):
    return Prometheus(settings).ask([QuerySet(expressions={"up": "up"})], for_everybody())


def by_library(settings):
    return ask_range(settings, "up", Steps(from_s=1_000_000.0, step_s=60.0, number=1))


def problem_of(ask, settings):
    """Return (reason, message) of what a question fails with."""
    try:
        return ask(settings).problems["up"]
    except PrometheusError as error:
        return error.reason, str(error)


@pytest.fixture(params=[by_loop, by_library], ids=["loop", "library"])
def ask(request):
    return request.param


def renewed(settings, **more):
    found = Authorization(settings=settings, **more)
    found.renew()
    return found


def sent(found):
    return found.headers()


def refusal(settings, **more):
    with pytest.raises(PrometheusError) as caught:
        renewed(settings, **more)
    assert SECRET not in str(caught.value)
    assert caught.value.reason == "PrometheusUnreachable"
    return str(caught.value)


class TestFiles:
    def test_user_and_password_are_those_of_the_files_now(self, ask, folder):
        with serving(answering(EMPTY)) as server:
            settings = settings_of(server.url, basic(folder))
            ask(settings)
            (folder / "secret").write_text("n:ew")
            ask(settings)

        got = [each.headers["Authorization"] for each in server.asked]
        assert got == [BASIC, "Basic " + base64.b64encode(b"123456:n:ew").decode()]

    def test_headers_go_with_a_token(self, ask, folder):
        auth = {
            "headers": {"X-Scope-OrgID": "team-a|team-b"},
            "headerFiles": {"X-Api-Key": f"{folder}/secret"},
        }
        with serving(answering(EMPTY)) as server:
            ask(settings_of(server.url, auth, prometheus_token_file=f"{folder}/secret"))

        [asked] = server.asked
        assert asked.headers["X-Scope-OrgID"] == "team-a|team-b"
        assert asked.headers["X-Api-Key"] == SECRET
        assert asked.headers["Authorization"] == f"Bearer {SECRET}"

    def test_nothing_is_sent_to_where_a_redirect_leads(self, ask, folder):
        with serving(answering(EMPTY)) as other:
            moved = Reply(status=307, headers={"Location": other.url})
            with serving(answering(moved)) as server:
                reason, _ = problem_of(ask, settings_of(server.url, basic(folder)))

        assert (reason, other.asked) == ("QueryRefused", [])

    @pytest.mark.parametrize(
        ("content", "said"),
        [(None, "No such file or directory"), (b" \n", "is empty"), (b"\xff", "no text")],
    )
    def test_a_file_that_cannot_be_read_is_named_with_its_setting(self, folder, content, said):
        (folder / "secret").unlink()
        if content is not None:
            (folder / "secret").write_bytes(content)

        told = refusal(settings_of("https://p.test", basic(folder)))

        assert told.startswith("settings.prometheusAuth.basic.passwordFile: ")
        assert told.endswith(said)

    def test_a_value_that_no_header_may_have_is_refused_and_not_shown(self, folder):
        (folder / "secret").write_text(f"{SECRET}\r\nX-Other: 1")
        auth = {"headerFiles": {"X-Api-Key": f"{folder}/secret"}}

        assert "characters that no header may have" in refusal(settings_of("https://p.test", auth))

    def test_a_refusal_says_where_to_look(self, ask, folder):
        with serving(answering(Reply(status=401, body=SECRET.encode()))) as server:
            _, told = problem_of(ask, settings_of(server.url, basic(folder)))

        assert "401: check prometheusTokenFile and prometheusAuth of the settings" in told
        assert SECRET not in told


class TestOAuth2:
    def test_a_token_is_fetched_by_the_client_and_used_until_shortly_before_its_end(self, folder):
        now = [1000.0]
        with serving(answering(a_token("t-1"), a_token("t-2"))) as server:
            auth = oauth2(folder, server.url, scopes=["a", "b"], parameters={"audience": "m"})
            found = Authorization(settings=settings_of("https://p.test", auth), now=lambda: now[0])
            got = []
            for now[0] in (1000.0, 1001.0, 4539.0, 4540.0, 4541.0):
                found.renew()
                got.append(sent(found)["Authorization"])

        assert got == ["Bearer t-1"] * 3 + ["Bearer t-2"] * 2
        first, _ = server.asked
        assert (first.method, first.path) == ("POST", "/token")
        assert first.form == {
            "grant_type": "client_credentials", "scope": "a b", "audience": "m",
        }  # fmt: skip
        assert first.headers["Authorization"] == BASIC

    def test_a_client_that_is_not_known_by_its_header_is_named_in_the_form(self, folder):
        # As golang.org/x/oauth2 finds out, with which Prometheus and KEDA ask.
        def answer(asked):
            right = asked.form.get("client_id"), asked.form.get("client_secret")
            return a_token() if right == ("123456", SECRET) else Reply(status=401)

        with serving(answer) as server:
            found = renewed(settings_of("https://p.test", oauth2(folder, server.url)))

        assert sent(found)["Authorization"] == "Bearer t-1"
        assert ["Authorization" in each.headers for each in server.asked] == [True, False]

    def test_both_clients_share_a_token(self, folder):
        with serving(answering(a_token())) as issuer, serving(answering(EMPTY)) as server:
            settings = settings_of(server.url, oauth2(folder, issuer.url))
            by_loop(settings)
            by_library(settings)

        assert len(issuer.asked) == 1
        assert [each.headers["Authorization"] for each in server.asked] == ["Bearer t-1"] * 2

    def test_a_token_that_is_refused_is_replaced_in_the_next_tick(self, folder):
        with (
            serving(answering(a_token("t-1"), a_token("t-2"))) as issuer,
            serving(answering(Reply(status=401), EMPTY)) as server,
        ):
            settings = settings_of(server.url, oauth2(folder, issuer.url))
            ticks = [by_loop(settings) for _ in range(2)]

        assert [each.queries for each in ticks] == [set(), {"up"}]
        assert server.asked[1].headers["Authorization"] == "Bearer t-2"

    def test_while_the_endpoint_is_away_a_token_is_used_to_its_end(self, folder):
        now = [0.0]
        with serving(answering(a_token(expires_in="100"), Reply(status=503))) as server:
            auth = oauth2(folder, server.url)
            found = Authorization(settings=settings_of("https://p.test", auth), now=lambda: now[0])
            for now[0] in (0.0, 49.0, 51.0, 99.0):
                found.renew()
            now[0] = 100.0
            with pytest.raises(PrometheusError, match="answered 503"):
                found.renew()

        assert len(server.asked) == 4

    @pytest.mark.parametrize(
        ("reply", "said"),
        [
            (json_reply({"error": "invalid_client", "error_description": SECRET}, 401),
             "answered 401 (invalid_client): check the client and its scopes"),
            (json_reply({"error": SECRET}, 400), "answered 400: check"),
            (json_reply({"error": [SECRET]}, 400), "answered 400: check"),
            (Reply(status=302, headers={"Location": "http://127.0.0.1:9/"}), "answered 302"),
            (Reply(body=b"<html>"), "answered without an access_token"),
            (Reply(body=b"[" * 60_000), "answered without an access_token"),
            (json_reply({"access_token": "a\r\nb"}), "answered without an access_token"),
            (json_reply({"access_token": 3}), "answered without an access_token"),
            (Reply(body=b" " * 70_000), "ValueError"),
        ],
    )  # fmt: skip
    def test_an_answer_without_a_token_says_what_to_do(self, folder, reply, said):
        with serving(answering(reply)) as server:
            told = refusal(settings_of("https://p.test", oauth2(folder, server.url)))

        assert f"{urlsplit(server.url).netloc} of settings.prometheusAuth.oauth2" in told
        assert said in told

    @pytest.mark.parametrize("life", [None, 0, -5, "soon", 1e400, [1]])
    def test_a_token_without_a_known_life_is_asked_for_again_after_some_minutes(self, folder, life):
        now = [0.0]
        with serving(lambda _: Reply(body=json.dumps(token).encode())) as server:
            token = {"access_token": "t"} | ({} if life is None else {"expires_in": life})
            found = Authorization(
                settings=settings_of("https://p.test", oauth2(folder, server.url)),
                now=lambda: now[0],
            )
            for now[0] in (0.0, 200.0, 250.0):
                found.renew()

        assert len(server.asked) == 2

    def test_an_endpoint_that_hangs_ends_at_its_deadline(self, folder):
        stop = threading.Event()

        def drip():
            while not stop.wait(0.02):
                yield b" "

        with serving(lambda _: Reply(pieces=drip())) as server:
            settings = settings_of("https://p.test", oauth2(folder, server.url))
            began_s = time.monotonic()
            told = refusal(settings, limit_s=0.3)
            stop.set()

        assert "gave no answer within 0.3 s" in told
        assert time.monotonic() - began_s < 10

    def test_a_tick_ends_without_an_answer_and_says_why(self, folder):
        with serving(answering(EMPTY)) as server:
            answers = by_loop(settings_of(server.url, oauth2(folder, "http://127.0.0.1:9")))

        assert answers.problems["up"] == (
            "PrometheusUnreachable",
            "the token endpoint 127.0.0.1:9 of settings.prometheusAuth.oauth2: "
            "ClientConnectorError",
        )
        assert server.asked == []


class TestSettings:
    @pytest.mark.parametrize(
        ("text", "said"),
        [
            (f"prometheusUrl: https://me:{SECRET}@p.test",
             "prometheusUrl: has a user or password: give them as files in prometheusAuth.basic"),
            (f"prometheusAuth: {{headers: {{Authorization: Basic {SECRET}}}}}",
             "header Authorization may be a secret: name a file of it in headerFiles"),
            (f"prometheusAuth: {{headers: {{X-Api-Key: {SECRET}}}}}", "headerFiles"),
            ("prometheusAuth: {headers: {Host: a}}", "header Host is set by the client itself"),
            (f'prometheusAuth: {{headers: {{X-A: "{SECRET}\\n"}}}}', "prometheusAuth.headers."),
            (f"prometheusAuth: Bearer {SECRET}", "prometheusAuth: "),
            (f"prometheusAuth: {{basic: {{username: me, password: {SECRET}}}}}",
             "prometheusAuth.basic.password: unknown field"),
            (f"prometheusAuth: {{headerFiles: {{X-A: {SECRET}}}}}", "prometheusAuth.headerFiles"),
            ("prometheusTokenFile: /a\n"
             "prometheusAuth: {basic: {usernameFile: /b, passwordFile: /c}}",
             "prometheusTokenFile and prometheusAuth.basic each set the same header"),
            ("prometheusAuth: {sigv4: {region: eu-1}}", "prometheusAuth.sigv4: unknown field"),
        ],
    )  # fmt: skip
    def test_what_cannot_be_is_refused_and_no_secret_shown(self, tmp_path, text, said):
        path = tmp_path / "settings.yaml"
        path.write_text(text if "Url" in text else f"prometheusUrl: https://p.test\n{text}")

        with pytest.raises(ValueError, match=r"settings\.yaml: ") as caught:
            read_settings(str(path))

        assert said in str(caught.value)
        assert SECRET not in str(caught.value)

    def test_settings_are_the_same_by_value(self, folder):
        settings, again = (
            settings_of("https://p.test", basic(folder) | {"headers": {"X-Scope-OrgID": "a"}})
            for _ in range(2)
        )

        assert hash(settings) == hash(again)
        assert SECRET not in str(settings.model_dump(mode="json", by_alias=True))


class TestTicks:
    """A tick of the fleet with each kind: the gate before Prometheus lets nobody else in."""

    @pytest.fixture
    def gate(self, folder):
        def expected(headers):
            return (
                headers["Authorization"] in {BASIC, "Bearer t-1", f"Bearer {SECRET}"}
                or headers["X-Api-Key"] == SECRET
            )

        with a_world() as world:

            def answer(asked):
                return world.api(asked) if expected(asked.headers) else Reply(status=401)

            with serving(answer) as server:
                yield server

    def given(self, kind, folder, issuer):
        return {
            "nothing": {},
            "token": {"prometheus_token_file": f"{folder}/secret"},
            "basic": {"prometheus_auth": basic(folder)},
            "header": {"prometheus_auth": {"headerFiles": {"X-Api-Key": f"{folder}/secret"}}},
            "oauth2": {"prometheus_auth": oauth2(folder, issuer.url)},
        }[kind]

    @pytest.mark.parametrize("kind", ["nothing", "token", "basic", "header", "oauth2"])
    def test_metrics_are_there_with_credentials_only(self, kind, folder, gate):
        with serving(answering(a_token())) as issuer:
            settings = self.given(kind, folder, issuer)
            with a_world(url=gate.url, settings=settings) as world:
                found = world.conditions()

        statuses = {status for status, _, _ in found.values()}
        assert statuses == {"False" if kind == "nothing" else "True"}
        if kind == "nothing":
            assert {message for _, _, message in found.values()} != set()
            assert all("check prometheusTokenFile" in message for _, _, message in found.values())
