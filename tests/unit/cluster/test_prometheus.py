"""Prometheus, when it answers and in all the ways in which it does not."""

import gzip
import json
import math
import socket

import pytest

from http_double import Reply, answering, json_reply, serving
from tonnage.cluster.errors import PrometheusError
from tonnage.cluster.prometheus import Prometheus
from tonnage.settings import Settings

LONGEST_MESSAGE = 200


def a_result(*samples, **more):
    result = [{"metric": labels, "value": value} for labels, value in samples]
    data = {"resultType": "vector", "result": result}
    return {"status": "success", "data": data, **more}


def ask(server, *, timeout_s=5, max_answer_bytes=10_000, **settings):
    known = Settings(prometheus_url=server.url, **settings)
    prometheus = Prometheus(known, timeout_s=timeout_s, max_answer_bytes=max_answer_bytes)
    return prometheus.query("up")


def asked(*replies, **settings):
    with serving(answering(*replies)) as server:
        return ask(server, **settings)


def refused(*replies, **settings):
    """The error that these replies give; its message is short whatever they hold."""
    with pytest.raises(PrometheusError) as caught:
        asked(*replies, **settings)

    assert len(str(caught.value)) <= LONGEST_MESSAGE
    return caught.value


class TestAnswers:
    def test_are_series_with_labels_value_and_time(self):
        [series] = asked(json_reply(a_result(({"pod": "a"}, [1000.5, "3.5"]))))

        assert series.labels == {"pod": "a"}
        assert (series.value, series.evaluated_at_s) == (3.5, 1000.5)

    def test_may_be_empty(self):
        assert asked(json_reply(a_result())) == []

    @pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "1e400", "", "many"])
    def test_lose_samples_that_are_no_finite_number(self, value):
        kept = ({"pod": "kept"}, [1000, "1"])

        found = asked(json_reply(a_result(({"pod": "a"}, [1000, value]), kept)))

        assert [each.labels["pod"] for each in found] == ["kept"]

    @pytest.mark.parametrize("at_s", [math.nan, math.inf])
    def test_lose_samples_of_no_time(self, at_s):
        assert asked(json_reply(a_result(({}, [at_s, "1"])))) == []

    @pytest.mark.parametrize(
        "item",
        [
            {},
            {"metric": {}},
            {"metric": None, "value": [1, "1"]},
            {"metric": {}, "value": None},
            {"metric": {}, "value": [1]},
            {"metric": {}, "values": [[1, "1"]]},
            [],
            None,
            7,
        ],
    )
    def test_lose_what_is_no_sample(self, item):
        answer = {"status": "success", "data": {"resultType": "vector", "result": [item]}}

        assert asked(json_reply(answer)) == []

    def test_hold_labels_of_text_only(self):
        labels = {"pod": "a", "n": 1, "list": ["x"], "nothing": None}

        [series] = asked(json_reply(a_result((labels, [1000, "1"]))))

        assert series.labels == {"pod": "a"}

    def test_with_warnings_are_answers(self):
        answer = a_result(({"pod": "a"}, [1000, "1"]), warnings=["a store is down"])

        assert len(asked(json_reply(answer))) == 1


class TestQuestions:
    def test_are_posted_as_they_are(self):
        with serving(answering(json_reply(a_result()))) as server:
            ask(server)

        [request] = server.asked
        assert (request.method, request.path) == ("POST", "/api/v1/query")
        assert request.query == {"query": "up"}
        assert "Authorization" not in request.headers

    def test_carry_the_token_that_stands_in_the_file_now(self, tmp_path):
        token = tmp_path / "token"
        with serving(answering(json_reply(a_result()))) as server:
            known = Settings(prometheus_url=server.url, prometheus_token_file=str(token))
            prometheus = Prometheus(known)
            for text in ("first\n", "second\n"):
                token.write_text(text)
                prometheus.query("up")

        sent = [request.headers["Authorization"] for request in server.asked]
        assert sent == ["Bearer first", "Bearer second"]

    def test_ignore_the_proxies_of_the_environment(self, monkeypatch):
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")

        assert asked(json_reply(a_result())) == []


class TestFailures:
    def test_nobody_listens(self):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        known = Settings(prometheus_url=f"http://127.0.0.1:{port}")

        with pytest.raises(PrometheusError) as caught:
            Prometheus(known).query("up")

        assert caught.value.reason == "PrometheusUnreachable"

    def test_it_hangs(self):
        def hang(_):
            server.stopping.wait(10)
            return Reply()

        with serving(hang) as server, pytest.raises(PrometheusError) as caught:
            ask(server, timeout_s=0.2)

        assert caught.value.reason == "PrometheusUnreachable"
        assert len(server.asked) == 1

    @pytest.mark.parametrize("status", [400, 422, 429, 500, 502, 503])
    def test_it_refuses_with_a_long_page(self, status):
        page = b"<html>secret " + b"x" * 200_000

        error = refused(Reply(status=status, body=page), max_answer_bytes=10**6)

        assert error.reason == "QueryRefused"
        assert "secret" not in str(error)

    def test_a_refusal_is_not_asked_again(self):
        with serving(answering(Reply(status=503, headers={"Retry-After": "60"}))) as server:
            with pytest.raises(PrometheusError):
                ask(server)

            assert len(server.asked) == 1

    def test_it_leads_elsewhere(self):
        elsewhere = answering(json_reply(a_result()))
        with serving(elsewhere) as metadata:
            to = Reply(status=302, headers={"Location": f"{metadata.url}/latest/meta-data"})
            error = refused(to)

        assert error.reason == "QueryRefused"
        assert metadata.asked == []

    @pytest.mark.parametrize(
        "body",
        [
            b"<html>Sign in</html>",
            b"",
            b'{"status": "success", "data": {"resu',
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
            b'{"status": "error", "errorType": "bad_data", "error": "parse error"}',
            b"\xff\xfe\xff",
            b"[" * 9000,
        ],
    )
    def test_it_answers_something_else(self, body):
        assert refused(Reply(body=body)).reason == "BadAnswer"

    def test_it_answers_too_much(self):
        samples = [({"pod": f"p{number}"}, [1000, "1"]) for number in range(500)]

        assert refused(json_reply(a_result(*samples))).reason == "ResponseTooLarge"

    def test_it_answers_too_much_once_unpacked(self):
        bomb = gzip.compress(json.dumps(a_result(({"pod": "a" * 10**6}, [1, "1"]))).encode())
        assert len(bomb) < 10_000

        error = refused(Reply(body=bomb, headers={"Content-Encoding": "gzip"}))

        assert error.reason == "ResponseTooLarge"

    def test_it_breaks_off(self):
        error = refused(Reply(body=b"{", headers={"Content-Length": "100"}))

        assert error.reason in {"PrometheusUnreachable", "BadAnswer"}

    def test_the_token_cannot_be_read(self, tmp_path):
        missing = str(tmp_path / "token")

        error = refused(json_reply(a_result()), prometheus_token_file=missing)

        assert error.reason == "PrometheusUnreachable"

    def test_the_next_query_works_again(self):
        with serving(answering(Reply(status=500), json_reply(a_result()))) as server:
            prometheus = Prometheus(Settings(prometheus_url=server.url))
            with pytest.raises(PrometheusError):
                prometheus.query("up")

            assert prometheus.query("up") == []
