"""Range queries: in parts, and what goes wrong is said with what the server says of it."""

import pytest

from http_double import Reply, json_reply, serving
from tonnage.cluster.calls import PrometheusError
from tonnage.cluster.ranges import ANSWER_BYTES, POINTS, Steps, ask_range
from tonnage.settings import Settings

STEPS = Steps(from_s=1_000_000.0, step_s=60.0, number=3)


def result(*series, **more):
    content = {"resultType": "matrix", "result": list(series)}
    return json_reply({"status": "success", "data": content, **more})


def one(values, **labels):
    return {"metric": labels, "values": [[at_s, str(value)] for at_s, value in values]}


def ask(answer, *, steps=STEPS, **settings):
    with serving(answer) as server:
        found = ask_range(Settings(prometheus_url=server.url, **settings), "up", steps)
    return found, server.asked


def refusal(answer):
    with pytest.raises(PrometheusError) as caught:
        ask(answer)
    return caught.value


def test_values_are_those_of_the_steps_that_end_then():
    found, (asked,) = ask(
        lambda _: result(one([(1_000_060, 4), (1_000_180, 6)], pod="a"), one([(1_000_120, 5)]))
    )

    assert found == [({"pod": "a"}, {0: 4.0, 2: 6.0}), ({}, {1: 5.0})]
    assert asked.path == "/api/v1/query_range"
    assert asked.query == {
        "query": "up", "start": "1000060.000", "end": "1000180.000", "step": "60",
    }  # fmt: skip


def test_a_long_time_is_asked_in_parts_and_each_step_once():
    number = 2 * POINTS + 5

    def answer(asked):
        start, end = float(asked.query["start"]), float(asked.query["end"])
        times = range(int(start), int(end) + 1, 60)
        assert len(times) <= POINTS
        return result(one([(at_s, at_s) for at_s in times]))

    ((_, points),), asked = ask(answer, steps=Steps(from_s=0.0, step_s=60.0, number=number))

    assert len(asked) == 3
    assert points == {n: 60.0 * (n + 1) for n in range(number)}


def test_what_is_no_finite_number_is_missing():
    values = [(1_000_060, "NaN"), (1_000_120, "+Inf"), (1_000_180, 1)]

    assert ask(lambda _: result(one(values)))[0] == [({}, {2: 1.0})]


def test_a_token_is_sent_and_never_to_where_a_redirect_leads(tmp_path):
    (tmp_path / "token").write_text("secret\n")
    _, (asked,) = ask(lambda _: result(), prometheus_token_file=str(tmp_path / "token"))
    assert asked.headers["Authorization"] == "Bearer secret"

    moved = refusal(lambda _: Reply(status=302, headers={"Location": "http://127.0.0.1:9/"}))
    assert (moved.reason, "answered 302" in str(moved)) == ("QueryRefused", True)


def test_what_the_server_says_of_a_query_is_passed_on():
    said = json_reply({"status": "error", "error": "1:5: parse error: unexpected <by>"}, 400)

    assert str(refusal(lambda _: said)).endswith("answered 400: 1:5: parse error: unexpected <by>")


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (json_reply({"status": "success", "data": {"resultType": "vector"}}), "BadAnswer"),
        (json_reply({"status": "success", "data": {"resultType": "matrix"}}), "BadAnswer"),
        (json_reply(["no", "object"]), "BadAnswer"),
        (Reply(body=b"<html>"), "BadAnswer"),
        (result({"metric": {}, "values": [["now", "1"]]}), "BadAnswer"),
        (result({"metric": {}, "values": [[1]]}), "BadAnswer"),
        (Reply(status=503, body=b"<html>"), "QueryRefused"),
        (result(warnings=["a store did not answer"]), "MetricsPartial"),
        (Reply(body=b" " * (ANSWER_BYTES + 1)), "ResponseTooLarge"),
    ],
)
def test_an_answer_that_is_none_is_refused(reply, reason):
    assert refusal(lambda _: reply).reason == reason


def test_a_server_that_is_not_there_is_named():
    with pytest.raises(PrometheusError, match=r"http://127.0.0.1:9/.* cannot be reached") as caught:
        ask_range(Settings(prometheus_url="http://127.0.0.1:9"), "up", STEPS)

    assert caught.value.reason == "PrometheusUnreachable"
