"""Prometheus, when it answers and in all the ways in which it does not."""

import gzip
import json
import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import format_datetime
from functools import cache
from math import inf
from pathlib import Path

import pytest

from http_double import Reply, answering, json_reply, new_certificates, serving, showing
from page_builders import for_everybody, labels_of, pages_of
from tonnage.cluster.prometheus import Prometheus, QueryLimits, skew
from tonnage.cluster.queries import QuerySet
from tonnage.settings import Settings
from tonnage.units import MIB

LONGEST_MESSAGE = 200
NOW_S = 1_767_312_000.0
BUCKET = "vllm:time_to_first_token_seconds_bucket"


def a_result(*samples, **more):
    """An answer; samples are (labels beside those of an engine, [time, value])."""
    of_engine = labels_of("running", ("serving", "a"))
    result = [{"metric": of_engine | labels, "values": [value]} for labels, value in samples]
    data = {"resultType": "matrix", "result": result}
    return {"status": "success", "data": data, **more}


ONE = json_reply(a_result(({"pod": "a"}, [1000.5, "3.5"])))


def a_prometheus(server, *, now=time.time, settings=(), **limits):
    known = Settings(prometheus_url=server.url, **dict(settings))
    return Prometheus(known, limits=QueryLimits(**({"answer_bytes": 10_000} | limits)), now=now)


def told(answers):
    """What was sampled last, by namespace and pod."""
    by_pod = {key[:2]: pages_of(rows) for key, rows in answers.answered.engines.items()}
    return {pod: pages[max(pages)][0] for pod, pages in by_pod.items()}


def ask(server, *names, **more):
    """Ask a query of each name; its expression is the name."""
    asked = QuerySet(expressions={name: name for name in names or ("up",)})
    return a_prometheus(server, **more).ask([asked], for_everybody())


def asked(*replies, **more):
    with serving(answering(*replies)) as server:
        return ask(server, **more)


def by_query(replies):
    """Answer each query by the reply of its name, or as its function says."""

    def answer(request):
        reply = replies[request.form["query"]]
        return reply(request) if callable(reply) else reply

    return answer


def after(server, wait_s):
    server.stopping.wait(wait_s)
    return ONE


def refused(*replies, **more):
    """The reason that these replies give; the message is short whatever they hold."""
    answers = asked(*replies, **more)

    assert answers.queries == set()
    reason, message = answers.problems["up"]
    assert len(message) <= LONGEST_MESSAGE
    assert "secret" not in message
    return reason


class TestAnswers:
    def test_are_samples_with_value_and_time(self):
        [(key, rows)] = asked(ONE).answered.engines.items()

        assert key == ("serving", "a", "0")
        assert pages_of(rows) == {1000.5: {0: 3.5}}

    def test_may_be_empty(self):
        assert asked(json_reply(a_result())).queries == {"up"}

    def test_may_come_compressed(self):
        packed = Reply(body=gzip.compress(ONE.body), headers={"Content-Encoding": "gzip"})

        answers = asked(packed)

        assert len(told(answers)) == 1
        assert answers.bytes_read == len(ONE.body)

    def test_may_come_slowly_within_the_deadline(self):
        with serving(lambda _: after(server, 0.9)) as server:
            answers = ask(server, request_s=5, all_s=5)

        assert len(told(answers)) == 1

    @pytest.mark.parametrize("more", [{"warnings": ["a store is down"]}, {"isPartial": True}])
    def test_that_are_not_whole_are_answers_and_named(self, more):
        answers = asked(json_reply(a_result(({"pod": "a"}, [1000, "1"]), **more)))

        assert len(told(answers)) == 1
        assert answers.partial == {"up"}

    def test_count_what_is_no_figure(self):
        samples = [({"pod": text}, [1000, text]) for text in ("NaN", "+Inf", "1e400", "7")]

        answers = asked(json_reply(a_result(*samples)))

        assert list(told(answers).values()) == [inf] * 3 + [7]
        assert answers.answered.num_dropped == 3

    def test_of_two_namespaces_are_one_of_a_query(self):
        sets = [
            QuerySet(expressions={"up": name}, namespaces=(name,), num_pods=1)
            for name in ("blue", "green", "red")
        ]
        replies = {
            "blue": json_reply(a_result(({"namespace": "blue"}, [1000, "1"]))),
            "green": Reply(status=500),
            "red": json_reply(a_result(({"namespace": "red"}, [1000, "1"]), isPartial=True)),
        }
        with serving(by_query(replies)) as server:
            answers = a_prometheus(server).ask(sets, for_everybody())

        assert {namespace for namespace, _ in told(answers)} == {"blue", "red"}
        assert set(answers.problems) == {"up@green"}
        assert answers.partial == {"up@red"}


class TestQuestions:
    def test_are_posted_as_they_are(self):
        with serving(answering(ONE)) as server:
            ask(server, 'up{pod="a&b"}')

        [request] = server.asked
        assert (request.method, request.path) == ("POST", "/api/v1/query")
        assert request.form == {"query": 'up{pod="a&b"}', "limit": "200001", "nocache": "1"}
        assert "Authorization" not in request.headers

    def test_carry_the_token_that_stands_in_the_file_now(self, tmp_path):
        token = tmp_path / "token"
        with serving(answering(ONE)) as server:
            prometheus = a_prometheus(server, settings={"prometheus_token_file": str(token)})
            for text in ("first\n", "second\n"):
                token.write_text(text)
                prometheus.ask([QuerySet(expressions={"up": "up"})], for_everybody())

        sent = [request.headers["Authorization"] for request in server.asked]
        assert sent == ["Bearer first", "Bearer second"]

    def test_ignore_the_proxies_of_the_environment(self, monkeypatch):
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")

        assert asked(ONE).problems == {}

    def test_are_not_more_than_some_at_once(self):
        running, most, lock = 0, 0, threading.Lock()

        def answer(_):
            nonlocal running, most
            with lock:
                running += 1
                most = max(most, running)
            server.stopping.wait(0.05)
            with lock:
                running -= 1
            return ONE

        with serving(answer) as server:
            answers = ask(server, *map(str, range(12)), num_parallel=3)

        assert len(answers.queries) == 12
        assert most == 3


class TestIsolation:
    def test_one_that_fails_leaves_the_others(self):
        replies = {"a": ONE, "b": Reply(status=500, body=b"secret"), "c": ONE}
        with serving(by_query(replies)) as server:
            answers = ask(server, *replies)

        assert set(answers.queries) == {"a", "c"}
        assert answers.problems == {
            "b": ("QueryRefused", "Prometheus refused a query with status 500")
        }

    def test_one_that_hangs_costs_its_own_time_only(self):
        def hang(_):
            server.stopping.wait(10)
            return Reply()

        replies = {"hangs": hang} | {str(number): ONE for number in range(9)}
        with serving(by_query(replies)) as server:
            answers = ask(server, *replies, request_s=0.5, all_s=5)

        assert len(answers.queries) == 9
        assert answers.problems == {"hangs": ("QueryTimeout", "no full answer within 0.5 s")}

    def without_answer(self, names, **limits):
        """The namespaces that lack an answer to ten queries; all of those of ``evil`` hang."""

        def answer(request):
            if request.form["query"].startswith("evil"):
                server.stopping.wait(10)
            return ONE

        sets = [
            QuerySet(
                expressions={str(number): f"{name}{number}" for number in range(10)},
                namespaces=(name,),
                num_pods=1,
            )
            for name in names
        ]
        with serving(answer) as server:
            answers = a_prometheus(server, **limits).ask(sets, for_everybody())
        assert len(answers.queries) == 10
        return {key.partition("@")[2] for key in answers.problems}

    def test_a_namespace_of_which_all_hang_leaves_the_others(self):
        names = ("evil", "blue", "red", "white", "black")

        assert self.without_answer(names, request_s=0.3, all_s=2) == {"evil"}

    def test_a_namespace_that_is_flooded_takes_the_bytes_of_no_other(self):
        samples = [({"pod": f"p{number}"}, [1000, "1"]) for number in range(30)]
        replies = dict.fromkeys(("evil", "blue", "red"), json_reply(a_result(*samples)))
        num_bytes = len(replies["blue"].body)
        sets = [
            QuerySet(
                expressions={str(number): name for number in range(9 if name == "evil" else 2)},
                namespaces=(name,),
                num_pods=1,
            )
            for name in replies
        ]
        with serving(by_query(replies)) as server:
            asking = a_prometheus(server, all_bytes=6 * num_bytes, pod_bytes=0)
            answers = asking.ask(sets, for_everybody())

        assert {key.partition("@")[2] for key in answers.problems} == {"evil"}
        assert {reason for reason, _ in answers.problems.values()} == {"ResponseTooLarge"}

    def test_all_end_at_the_deadline_of_the_tick(self):
        with serving(lambda _: after(server, 0.3)) as server:
            began_s = time.monotonic()
            answers = ask(server, *map(str, range(40)), request_s=5, all_s=1)
            took_s = time.monotonic() - began_s

        assert took_s < 2  # 40 questions of 0.3 s, four at once, would take 3 s
        assert 4 <= len(answers.queries) <= 12
        assert set(answers.queries) | set(answers.problems) == set(map(str, range(40)))
        assert answers.problems["39"] == ("TickTimeout", "not answered within the 1 s of a tick")

    def test_where_all_hang_the_first_ones_are_enough(self):
        def hang(_):
            server.stopping.wait(10)
            return Reply()

        with serving(hang) as server:
            began_s = time.monotonic()
            answers = ask(server, *map(str, range(40)), request_s=0.5, all_s=10)
            took_s = time.monotonic() - began_s

        assert took_s < 2
        assert len(server.asked) == 4
        assert {reason for reason, _ in answers.problems.values()} == {"QueryTimeout"}
        assert answers.problems["39"][1] == "not queried: none before was answered"


class TestFailures:
    def test_nobody_listens(self):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        prometheus = Prometheus(Settings(prometheus_url=f"http://127.0.0.1:{port}"))

        answers = prometheus.ask([QuerySet(expressions={"up": "up"})], for_everybody())

        assert answers.problems["up"][0] == "PrometheusUnreachable"

    def test_it_drips(self):
        def drips():
            while not server.stopping.wait(0.05):
                yield b" "

        with serving(lambda _: Reply(pieces=drips())) as server:
            began_s = time.monotonic()
            answers = ask(server, request_s=0.5, all_s=5)
            took_s = time.monotonic() - began_s

        assert answers.problems["up"][0] == "QueryTimeout"
        assert 0.5 <= took_s < 4  # all have 5 s

    def test_it_drips_its_headers(self):
        with dripping_headers() as url:
            prometheus = Prometheus(Settings(prometheus_url=url), limits=QueryLimits(request_s=0.5))
            began_s = time.monotonic()
            answers = prometheus.ask([QuerySet(expressions={"up": "up"})], for_everybody())
            took_s = time.monotonic() - began_s

        assert answers.problems["up"][0] == "QueryTimeout"
        assert took_s < 1.5

    @pytest.mark.parametrize("status", [202, 400, 422, 500, 502, 503])
    def test_it_refuses_with_a_long_page(self, status):
        page = b"<html>secret " + b"x" * 200_000

        assert refused(Reply(status=status, body=page), answer_bytes=MIB) == "QueryRefused"

    def test_it_takes_no_more_queries_for_now(self):
        assert refused(Reply(status=429)) == "QueryThrottled"

    def test_a_refusal_is_not_asked_again(self):
        with serving(answering(Reply(status=503, headers={"Retry-After": "60"}))) as server:
            ask(server)

        assert len(server.asked) == 1

    def test_it_leads_elsewhere(self):
        with serving(answering(ONE)) as metadata:
            to = Reply(status=302, headers={"Location": f"{metadata.url}/latest/meta-data"})

            assert refused(to) == "QueryRefused"

        assert metadata.asked == []

    @pytest.mark.parametrize(
        "body",
        [
            b"<html>secret: sign in</html>",
            b"",
            b'{"status": "success", "data": {"resu',
            ONE.body[:-1],
            ONE.body + b"{}",
            b"[]",
            b"null",
            b"7",
            b'"text"',
            b"{}",
            b'{"status": "success", "data": null}',
            b'{"status": "success", "data": {"resultType": "vector"}}',
            b'{"status": "success", "data": {"resultType": "vector", "result": null}}',
            b'{"status": "success", "data": {"resultType": "vector", "result": 7}}',
            b'{"status": "success", "data": {"resultType": "vector", "result": {}}}',
            b'{"status": "success", "data": {"resultType": "scalar", "result": [1, "1"]}}',
            b'{"status": "success", "data": {"resultType": "vector", "result": []}}',
            b'{"status": "error", "errorType": "bad_data", "error": "secret"}',
            b'{"data": {"resultType": "vector", "result": []}}',
            b"\xff\xfe\xff",
            b"[" * 9000,
            b'{"a":' * 1500,
        ],
    )
    def test_it_answers_something_else(self, body):
        assert refused(Reply(body=body)) == "BadAnswer"

    def test_it_answers_too_many_bytes(self):
        samples = [({"pod": f"p{number}"}, [1000, "1"]) for number in range(500)]

        assert refused(json_reply(a_result(*samples))) == "ResponseTooLarge"

    def test_it_answers_too_many_series(self):
        samples = [({"pod": f"p{number}"}, [1000, "1"]) for number in range(51)]

        assert refused(json_reply(a_result(*samples)), answer_series=50) == "QueryTooLarge"

    @pytest.mark.parametrize(
        ("num_series", "problems"),
        [(50, set()), (51, {"QueryTooLarge"}), (2000, {"QueryTooLarge"})],
    )
    def test_a_server_that_knows_the_limit_sends_no_more_and_none_is_lost_silently(
        self, num_series, problems
    ):
        samples = [({"pod": f"p{number}"}, [1000, "1"]) for number in range(2000)]

        def limited(request):
            most = int(request.form["limit"])
            cut = {"warnings": ["results truncated due to limit"]} if num_series > most else {}
            return json_reply(a_result(*samples[: min(num_series, most)], **cut))

        with serving(limited) as server:
            found = ask(server, answer_series=50)

        assert {reason for reason, _ in found.problems.values()} == problems
        assert found.partial == set()
        assert len(told(found)) == (0 if problems else num_series)

    def test_one_label_is_as_long_as_an_answer(self):
        long = json_reply(a_result(({"pod": "a" * MIB}, [1000, "1"]), ({"pod": "b"}, [1000, "2"])))
        with serving(answering(long)) as server:
            found = ask(server, answer_bytes=32 * MIB)

        assert told(found)["serving", "b"] == 2

    def test_it_answers_too_much_once_unpacked(self):
        bomb = gzip.compress(json.dumps(a_result(({"pod": "a" * 10**6}, [1, "1"]))).encode())
        assert len(bomb) < 10_000

        packed = Reply(body=bomb, headers={"Content-Encoding": "gzip"})

        assert refused(packed) == "ResponseTooLarge"

    @pytest.mark.parametrize(
        ("encoding", "body"), [("br", ONE.body), ("gzip", ONE.body), ("gzip", b"\x1f\x8b\x08")]
    )
    def test_it_is_packed_in_another_way(self, encoding, body):
        assert refused(Reply(body=body, headers={"Content-Encoding": encoding})) == "BadAnswer"

    def test_all_answers_together_are_too_much(self):
        samples = [({"pod": f"p{number}"}, [1000, "1"]) for number in range(30)]
        large = json_reply(a_result(*samples))
        names = [str(number) for number in range(10)]
        all_bytes = int(3.5 * len(large.body))

        with serving(answering(large)) as server:
            answers = ask(server, *names, num_parallel=1, all_bytes=all_bytes)

        assert sorted(answers.queries) == ["0", "1", "2"]
        assert {reason for reason, _ in answers.problems.values()} == {"ResponseTooLarge"}
        assert len(answers.problems) == 7

    def test_it_breaks_off(self):
        broken = Reply(body=b"{", headers={"Content-Length": "100"})

        assert refused(broken) == "PrometheusUnreachable"

    def test_the_token_cannot_be_read(self, tmp_path):
        settings = {"prometheus_token_file": str(tmp_path / "token")}

        assert refused(ONE, settings=settings) == "PrometheusUnreachable"

    def test_the_next_tick_works_again(self):
        with serving(answering(Reply(status=500), ONE)) as server:
            prometheus = a_prometheus(server)
            ticks = [
                prometheus.ask([QuerySet(expressions={"up": "up"})], for_everybody())
                for _ in range(2)
            ]

        assert [tick.queries for tick in ticks] == [set(), {"up"}]


@contextmanager
def dripping_headers():
    """A server that sends a header of one letter every 50 ms, for ever."""
    stopping = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def drip():
            client, _ = listening.accept()
            with client:
                client.sendall(b"HTTP/1.1 200 OK\r\n")
                while not stopping.wait(0.05):
                    try:
                        client.sendall(b"a: b\r\n")
                    except OSError:
                        return

        thread = threading.Thread(target=drip)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            stopping.set()
            thread.join()


@pytest.fixture
def issued(tmp_path):
    return new_certificates(tmp_path / "pki")


class TestTls:
    @pytest.fixture
    def server(self, issued):
        with serving(answering(ONE), tls=showing(issued.server)) as server:
            yield server

    def test_of_an_authority_that_is_given_is_believed(self, server, issued):
        answers = ask(server, settings={"prometheus_ca_file": str(issued.ca)})

        assert answers.problems == {}
        assert len(told(answers)) == 1

    def test_of_any_other_is_refused(self, server):
        assert ask(server).problems["up"] == (
            "PrometheusUnreachable",
            "Prometheus: ClientConnectorCertificateError",
        )

    def test_without_the_file_of_the_authority_is_not_tried(self, server, tmp_path):
        answers = ask(server, settings={"prometheus_ca_file": str(tmp_path / "ca.pem")})

        assert answers.problems["up"][0] == "PrometheusUnreachable"
        assert server.asked == []


class TestSkew:
    @pytest.mark.parametrize(
        ("date_s", "skew_s"),
        [(None, None), (98, -2), (99.5, 0), (100, 0), (105, 0), (110, 0), (170, 60)],
    )
    def test_is_what_lies_outside_of_asking(self, date_s, skew_s):
        assert skew(date_s, sent_at_s=100, received_at_s=110) == skew_s

    def test_is_told_with_the_answers(self):
        date = format_datetime(datetime.fromtimestamp(NOW_S - 600, UTC), usegmt=True)
        late = json_reply(a_result(), Date=date)

        assert asked(late, now=lambda: NOW_S).clock_skew_s == -600


MEMORY = """
import sys
from page_builders import for_everybody
from tonnage.cluster.prometheus import Prometheus, QueryLimits
from tonnage.cluster.queries import QuerySet
from tonnage.settings import Settings

def rss_bytes(name):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))

limits = QueryLimits(request_s=120, all_s=120)
prometheus = Prometheus(Settings(prometheus_url=sys.argv[1]), limits=limits)
kept = for_everybody()
if sys.argv[2] != "all":
    kept.expect(frozenset({("team-0", "nobody")}))
prometheus.ask([QuerySet(expressions={"small": "small"})], kept)
before = rss_bytes("VmRSS")
answers = prometheus.ask([QuerySet(expressions={"large": "large"}, num_pods=9_500)], kept)
print(len(answers.answered.engines), answers.bytes_read, rss_bytes("VmHWM") - before)
"""


def large_pieces(num_series):
    """An answer of buckets of 0.16 kB each."""
    yield b'{"status":"success","data":{"resultType":"matrix","result":['
    for number in range(num_series):
        pod, bucket = divmod(number, 15)
        labels = (
            f'"__name__":"{BUCKET}","engine":"0","le":"{bucket / 40}","namespace":"team-{pod % 7}"'
        )
        labels += f',"pod":"meta-llama-llama-3-3-70b-instruct-6c9f8b7d5d-{pod:05}"'
        comma = "," if number else ""
        yield f'{comma}{{"metric":{{{labels}}},"values":[[{NOW_S},"{number / 7}"]]}}'.encode()
    yield b"]}}"


@cache
def large_body():
    return b"".join(large_pieces(142_500))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc of Linux")
class TestMemory:
    @pytest.mark.parametrize(
        ("pods", "num_kept", "bound_mib"), [("all", 9_500, 120), ("ours", 0, 60)]
    )
    def test_an_answer_of_30_mib_stays_small(self, pods, num_kept, bound_mib):
        large = large_body()
        assert 29 * MIB < len(large) < 32 * MIB
        replies = {"small": json_reply(a_result()), "large": Reply(body=large)}
        with serving(by_query(replies)) as server:
            done = subprocess.run(  # noqa: S603 - our own program
                [sys.executable, "-c", MEMORY, server.url, pods],
                capture_output=True,
                check=True,
                text=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )

        found, bytes_read, grown_bytes = map(int, done.stdout.split())
        assert (found, bytes_read) == (num_kept, len(large))
        assert grown_bytes < bound_mib * MIB
