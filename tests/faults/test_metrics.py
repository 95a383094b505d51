"""Prometheus fails as the fault table says: a real server, the real observer and tick.

Two objects, each with two replicas and load for one: a fleet that is well goes down to one each.
"""

import logging
import threading

import pytest

from fault_world import (
    BOTH,
    LIMITS,
    LITTLE,
    LONG,
    MUCH,
    PATIENT,
    SHORT,
    a_world,
    always,
    failing,
)
from fleet_builders import a_manifest, a_model, a_pod_body
from http_double import Reply
from tonnage.cluster.queries import query_of
from tonnage.estimate.metrics import DECIDING, LATENCIES, QUERIES, SCRAPES
from tonnage.fleet import scrape
from tonnage.fleet.store import Kind

PAGE = "page-of-the-proxy"
FEWER = {"blue": 1, "green": 1}


class TestAFleetThatIsWell:
    def test_goes_down(self):
        with a_world() as world:
            assert world.tick(LONG) == {"blue": 1, "green": 1}
            assert world.conditions()["blue"][:2] == ("True", "Scraped")
            assert world.fleet.problems == {}


class TestRow1PrometheusIsDown:
    def test_keeps_replicas_however_long_and_recovers_by_itself(self):
        with a_world() as world:
            world.api.fault = failing(always(Reply(status=503)))
            held = world.tick(20)
            status = world.conditions()["blue"][:2]
            world.api.fault = failing(always(None))
            after = world.tick(LONG)

        assert held == BOTH
        assert status == ("False", "QueryRefused")
        assert after == {"blue": 1, "green": 1}

    def test_says_within_two_ticks_that_nobody_listens(self):
        with a_world(url="http://127.0.0.1:9") as world:
            decided = world.tick()

            status, reason, _ = world.conditions()["green"]

        assert min(decided.values()) >= 2
        assert (status, reason) == ("False", "PrometheusUnreachable")
        assert world.fleet.metrics_problem[0] == "PrometheusUnreachable"


class TestRow2PrometheusHangs:
    def hang(self, world):
        def reply(name, limited):
            world.server.stopping.wait(10)
            return Reply()

        return reply

    def test_for_one_query_that_only_shows_and_all_is_decided(self):
        with a_world(limits=PATIENT) as world:
            assert world.tick(4) == BOTH
            world.api.fault = failing(self.hang(world), LATENCIES)

            assert world.tick(2) == {"blue": 1, "green": 1}

            assert {query_of(key) for key in world.fleet.problems} == {LATENCIES}
            assert world.fleet.metrics_problem is None
            assert world.rates() == {"blue": [LITTLE] * 2, "green": [LITTLE] * 2}

    def test_for_what_decides_and_nothing_goes_down(self):
        with a_world() as world:
            world.api.fault = failing(always(Reply(status=502)), *DECIDING)

            assert world.tick(LONG) == BOTH

            assert {query_of(key) for key in world.fleet.problems} == set(DECIDING)
            assert world.conditions()["blue"][0] == "False"

    def test_for_all_and_the_tick_ends_at_its_deadline(self):
        with a_world(limits=SHORT) as world:
            world.api.fault = failing(self.hang(world))

            assert world.tick(3) == BOTH

            assert world.fleet.metrics_problem[0] == "QueryTimeout"
            assert {query_of(key) for key in world.fleet.problems} >= set(QUERIES)


class TestRow3PrometheusIsSlow:
    def test_and_answers_within_its_time_are_used(self):
        with a_world() as world:
            slow = lambda name, limited: world.server.stopping.wait(0.3) and None  # noqa: E731
            assert world.tick(4) == BOTH
            world.api.fault = failing(slow, *DECIDING)

            assert world.tick(2) == {"blue": 1, "green": 1}

    def test_and_is_asked_as_often_for_500_objects_as_for_two(self):
        with a_world() as world:
            world.api.asked.clear()
            for number in range(500):
                world.store.note(Kind.MODEL, None, a_manifest(f"m{number}", namespace="blue"))
            snapshot = world.store.snapshot()
            now_s = world.api.now_s
            world.observer.begin_round(snapshot, now_s, threading.Event())
            world.observer.observe(snapshot, world.memory.calibrations, now_s)

            assert len(world.api.asked) == len(QUERIES)


class TestRow4PrometheusAnswersSomethingElse:
    @pytest.mark.parametrize(
        ("reply", "reason"),
        [
            (Reply(status=500, body=PAGE.encode() * 10_000), "QueryRefused"),
            (Reply(status=502, body=f"<html>{PAGE}</html>".encode()), "QueryRefused"),
            (Reply(body=f"<html>{PAGE}: sign in</html>".encode()), "BadAnswer"),
            (Reply(body=b'{"status":"success","data":{"resultType":"matrix","re'), "BadAnswer"),
            (
                Reply(body=PAGE.encode() * 100),
                "BadAnswer",
            ),  # all together below the bytes of a tick
        ],
    )
    def test_and_replicas_are_kept_with_a_short_reason(self, reply, reason, caplog):
        with a_world() as world, caplog.at_level(logging.INFO):
            world.api.fault = failing(always(reply))

            assert world.tick(LONG) == BOTH

            status, told, message = world.conditions()["blue"]

        assert (status, told) == ("False", reason)
        assert len(message) <= 200
        assert PAGE not in f"{world.outcome} {caplog.text}"
        assert len([each for each in caplog.records if "metrics:" in each.message]) <= 3


class TestRow5AnAnswerIsPartial:
    def partial(self, world, *names, namespaces=(), **more):
        whole = world.api.reply
        more = more or {"isPartial": True}
        return failing(
            lambda name, limited: whole(name, limited, **more), *names, namespaces=namespaces
        )

    @pytest.mark.parametrize("more", [{"isPartial": True}, {"warnings": ["a store is down"]}])
    def test_and_nothing_goes_down(self, more):
        with a_world() as world:
            world.api.fault = self.partial(world, **more)

            assert world.tick(LONG) == BOTH

            assert {query_of(key) for key in world.fleet.partial} == set(QUERIES)
            assert world.conditions()["blue"][:2] == ("False", "MetricsPartial")

    def test_and_what_it_says_may_raise_the_fleet(self):
        with a_world(load=MUCH) as world:
            world.api.fault = self.partial(world)

            decided = world.tick(LONG)

        assert min(decided.values()) > 2

    def test_of_a_query_that_only_shows_and_all_is_decided(self):
        with a_world() as world:
            world.api.fault = self.partial(world, LATENCIES)

            assert world.tick(LONG) == {"blue": 1, "green": 1}


class TestRow6NothingIsThere:
    def test_and_that_is_missing_not_zero(self):
        with a_world() as world:
            world.api.completions_per_s = {}

            assert world.tick(LONG) == BOTH

            status, reason, message = world.conditions()["blue"]

        assert (status, reason) == ("False", "MetricsMissing")
        assert "PodMonitor" in message


class TestRow7NothingIsThereForSomePods:
    SILENT = ("blue", "llama-1")

    def test_and_nothing_goes_down_there(self):
        with a_world() as world:
            del world.api.completions_per_s[self.SILENT]

            assert world.tick(LONG) == {"blue": 2, "green": 1}

            status, reason, message = world.conditions()["blue"]
        assert (status, reason) == ("False", "MetricsIncomplete")
        assert "llama-1" in message

    def test_and_who_reports_may_still_raise_the_fleet(self):
        with a_world(load=MUCH) as world:
            del world.api.completions_per_s[self.SILENT]

            assert world.tick(LONG)["blue"] > 2

    @pytest.mark.parametrize("names", ["completed", "queued", "waiting queued", "running"])
    def test_of_one_figure_and_nothing_goes_down_there(self, names):
        missing = dict.fromkeys(names.split())
        with a_world(of_pod={self.SILENT: missing}) as world:
            assert world.tick(LONG) == {"blue": 2, "green": 1}

    def test_in_their_last_scrape_alone_and_the_ones_before_count(self):
        with a_world(of_pod={self.SILENT: {"late_s": 20.0}}) as world:
            assert world.tick(LONG) == {"blue": 1, "green": 1}


class TestRow8SamplesThatAreNoNumbers:
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            *(
                ("completed", value)
                for value in ("NaN", "+Inf", "-Inf", "-5", "1e308", "1e400", "many")
            ),
            ("waiting", "NaN"),
            ("waiting", "-5"),
        ],
    )
    def test_are_missing(self, name, value):
        with a_world() as world:
            world.api.figures = {name: value}
            told = []
            world.observer.tell = told.append

            assert world.tick(LONG) == BOTH

        assert (told[-1].answered.num_dropped > 0) == (value not in {"-5", "1e308"})


class TestANamespaceThatFloods:
    def flood(self):
        """Answers of which each is larger than one may be."""
        item = '{"metric":{"namespace":"green","pod":"mixtral-0","engine":"%d"},"values":[]}'
        result = ",".join(item % number for number in range(6000))
        head = '{"status":"success","data":{"resultType":"matrix","result":['
        body = f"{head}{result}]}}}}".encode()
        assert len(body) > LIMITS.answer_bytes
        return failing(always(Reply(body=body)), namespaces=("green",))

    def test_of_a_large_fleet_fails_alone(self, monkeypatch):
        monkeypatch.setattr(scrape, "PART_PODS", 3)
        with a_world() as world:
            world.api.fault = self.flood()

            assert world.tick(LONG) == {"blue": 1, "green": 2}

            assert world.rates()["blue"] == [LITTLE] * 2
            assert {key.partition("@")[2] for key in world.fleet.problems} == {"green"}
            assert world.conditions()["blue"][0] == "True"
            assert world.conditions()["green"][:2] == ("False", "ResponseTooLarge")

    def test_of_a_small_fleet_fails_alone_from_the_second_tick_on(self):
        with a_world() as world:
            world.api.fault = self.flood()

            first, blind = world.tick(after_s=15), world.fleet.metrics_problem
            later = world.tick(LONG)

        assert (first, blind[0]) == (BOTH, "ResponseTooLarge")
        assert later == {"blue": 1, "green": 2}

    def test_whenever_it_is_asked_with_the_others_does_so_once_in_ten_minutes(self):
        with a_world() as world:
            flood = self.flood()
            world.api.fault = lambda name, limited: None if limited else flood(name, limited)

            seen = [(world.tick(), world.fleet.metrics_problem) for _ in range(21)]

        assert [number for number, (_, problem) in enumerate(seen) if problem] == [0, 10, 20]
        assert [seen[number][0] for number in (9, 10, 19)] == [FEWER, BOTH, FEWER]

    def hanging(self, world):
        def hang(name, limited):
            world.server.stopping.wait(10)
            return Reply()

        return failing(hang, namespaces=("green",))

    def test_that_hangs_holds_up_no_other(self, monkeypatch):
        monkeypatch.setattr(scrape, "PART_PODS", 3)
        with a_world(limits=PATIENT) as world:
            assert world.tick(4) == BOTH
            world.api.fault = self.hanging(world)

            assert world.tick(2) == {"blue": 1, "green": 2}
            assert world.rates()["blue"] == [LITTLE] * 2

    def test_that_hangs_in_a_small_fleet_holds_up_the_others_for_one_tick(self):
        with a_world(limits=SHORT) as world:
            world.api.fault = self.hanging(world)

            assert world.tick(after_s=15) == BOTH
            assert {each[0] for each in world.conditions().values()} == {"False"}
            assert world.tick(LONG) == {"blue": 1, "green": 2}

    def test_of_whom_a_query_is_refused_in_a_small_fleet_fails_alone(self):
        with a_world() as world:
            refused = always(Reply(status=422))
            world.api.fault = failing(refused, SCRAPES, namespaces=("green",))

            assert world.tick(after_s=15) == BOTH
            assert world.conditions()["blue"][0] == "False"
            assert world.tick(LONG) == {"blue": 1, "green": 2}
            assert set(world.fleet.problems) == {"scrapes@green"}


class TestRow10SeriesOfPodsThatAreGone:
    def test_count_for_nobody(self):
        with a_world() as world:
            world.api.completions_per_s |= {("blue", "gone"): 50.0, ("red", "llama-0"): 50.0}

            assert world.tick(LONG) == {"blue": 1, "green": 1}


class TestRow12SeriesThatComeTwice:
    @pytest.mark.parametrize("by", ["prometheus_replica", "__proto__"])
    def test_count_once(self, by):
        with a_world(load=0.6) as world:
            assert world.tick(LONG) == BOTH
            once = [each.traffics.demand for each in world.outcome.found]
            world.api.copies = ({by: "a"}, {by: "b"})

            assert world.tick(LONG) == BOTH
            assert [each.traffics.demand for each in world.outcome.found] == once


class TestRow13AMetricHasAnotherName:
    def test_that_nobody_knows_and_it_is_missing_and_named(self):
        with a_world(figures={"completed": None}) as world:
            decided = world.tick(LONG)

            status, reason, message = world.conditions()["green"]
        assert min(decided.values()) >= 2
        assert (status, reason) == ("False", "MetricsMissing")
        assert "no vllm:request_success_total" in message


class TestRow14TheClockOfPrometheusIsOff:
    @pytest.mark.parametrize("skew_s", [-600, 600])
    def test_and_that_is_said_and_nothing_done(self, skew_s, caplog):
        with caplog.at_level(logging.INFO), a_world(ahead_s=skew_s) as world:
            assert world.tick(LONG) == {"blue": 1, "green": 1}

        assert world.fleet.clock_skew_s == skew_s
        lines = [each for each in caplog.messages if "clock of Prometheus" in each]
        assert len(lines) == 1

    @pytest.mark.parametrize("jump_s", [-3600, 3600])
    def test_or_both_jump_and_nothing_is_done_at_once(self, jump_s):
        with a_world() as world:
            assert world.tick(2) == BOTH
            world.api.now_s += jump_s

            assert world.tick(2) == BOTH
            assert world.tick(2 * LONG) == {"blue": 1, "green": 1}


class TestRow16ANodeDiesWithItsPods:
    def test_and_what_they_served_is_no_lower_need_for_a_window(self):
        objects = (("blue", "llama"),)
        with a_world(objects=objects, replicas=3, load=0.7) as world:
            assert world.tick(LONG) == {"blue": 3}
            lost_s = world.api.now_s
            for number in (1, 2):
                body = a_pod_body(f"llama-{number}", model=a_model(), ready_for_s=None)
                body["metadata"]["namespace"] = "blue"
                world.store.note(Kind.POD, None, body)
                del world.api.completions_per_s["blue", f"llama-{number}"]
            decided = [
                (world.api.now_s - lost_s, world.tick(after_s=30)["blue"]) for _ in range(16)
            ]

        assert {replicas for after_s, replicas in decided if after_s < 300} == {3}
        assert decided[-1][1] == 2
