"""What the probes say, also beside clients that say nothing."""

import asyncio
import contextlib
import socket
import threading

import pytest
import requests

from tonnage.cluster.queries import Answers
from tonnage.estimate.fleet_scrapes import Answered
from tonnage.fleet.heartbeat import (
    LOOP,
    MOST_CLIENTS,
    SLOW_S,
    STALE_S,
    UNREADY_S,
    WATCHES,
    Heartbeat,
    serve,
)
from tonnage.fleet.watches import Watches, look


@pytest.fixture(scope="module")
def heartbeat():
    return Heartbeat(clock=lambda: 0.0)


@pytest.fixture(scope="module")
def address(heartbeat):
    server = serve(heartbeat, host="127.0.0.1", port=0)
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def ask(address, path, method="GET"):
    answer = requests.request(method, address + path, timeout=5)
    return answer.status_code, answer.text


class TestBeating:
    @pytest.mark.parametrize(
        ("passed_s", "alive"), [(0, True), (STALE_S - 1, True), (STALE_S, False)]
    )
    def test_a_loop_that_ends_no_tick_is_dead(self, passed_s, alive):
        times = iter([0.0, float(passed_s)])

        assert Heartbeat(clock=lambda: next(times)).is_alive() is alive

    def test_a_beat_counts_from_now(self):
        times = iter([0.0, 500.0, 500.0 + STALE_S - 1])
        heartbeat = Heartbeat(clock=lambda: next(times))

        heartbeat.beat()

        assert heartbeat.is_alive()

    def test_a_loop_that_has_nothing_to_do_is_not_dead(self):
        times = iter([0.0, 3600.0 + SLOW_S - 1])

        assert Heartbeat(clock=lambda: next(times), tick_s=3600).is_alive()

    def test_a_loop_that_ends_ticks_of_which_none_goes_through_is_given_up(self):
        now = [0.0]
        heartbeat = Heartbeat(clock=lambda: now[0])
        heartbeat.note_ready()
        for now[0], alive in ((UNREADY_S - 1.0, True), (float(UNREADY_S), False)):
            heartbeat.beat()
            heartbeat.is_ready = False

            assert heartbeat.is_alive() is alive

    def test_a_tick_of_slow_steps_is_alive_and_one_that_is_stuck_in_a_step_is_not(self):
        now = [0.0]
        heartbeat = Heartbeat(clock=lambda: now[0])
        for name in ("relist", "observe", "act"):
            heartbeat.step(name)
            now[0] += STALE_S - 1.0
            assert heartbeat.is_alive()

        now[0] += 1.0
        assert not heartbeat.is_alive()

    def test_steps_of_ticks_that_end_in_a_bug_are_no_sign_of_life(self):
        now = [0.0]
        heartbeat = Heartbeat(clock=lambda: now[0])
        while now[0] < STALE_S:
            assert heartbeat.is_alive()
            now[0] += 15.0
            heartbeat.step("observe")
            heartbeat.fail()

        assert not heartbeat.is_alive()

    def test_nobody_is_ended_for_an_api_server_that_is_away(self):
        now = [0.0]
        heartbeat = Heartbeat(clock=lambda: now[0])
        for now[0] in range(0, 4 * UNREADY_S, 60):
            heartbeat.beat()
            heartbeat.fail(is_server_away=True)

            assert heartbeat.is_alive()

    def test_waiting_for_the_api_server_takes_nothing_off_the_time_for_a_tick(self):
        now = [0.0]
        heartbeat = Heartbeat(clock=lambda: now[0])
        heartbeat.rest(LOOP)
        now[0] = 2.0 * UNREADY_S

        assert heartbeat.is_alive()

        heartbeat.begin()
        now[0] += STALE_S - 1.0

        assert heartbeat.is_alive()

    def test_the_watches_have_no_interval_to_wait_for(self):
        now = [0.0]
        heartbeat = Heartbeat(clock=lambda: now[0], tick_s=3600)
        heartbeat.beat(WATCHES)
        now[0] = float(STALE_S)

        assert not heartbeat.is_alive()

    def test_what_rests_is_not_waited_for(self):
        now = [0.0]
        heartbeat = Heartbeat(clock=lambda: now[0])
        heartbeat.beat(WATCHES)
        now[0] = STALE_S - 1.0
        heartbeat.beat()
        now[0] = float(STALE_S)

        assert not heartbeat.is_alive()

        heartbeat.rest(WATCHES)

        assert heartbeat.is_alive()


class Halt:
    """What somebody waits in until the test goes on."""

    def __init__(self):
        self.reached, self.over = threading.Event(), threading.Event()

    def stand(self):
        self.reached.set()
        self.over.wait(30)


class TestStandingStill:
    @pytest.fixture
    def halt(self):
        made = Halt()
        yield made
        made.over.set()

    def test_of_our_loop_is_told_with_the_place_where_it_stands(self, halt, caplog):
        now = [0.0]
        heartbeat = Heartbeat(clock=lambda: now[0])
        thread = threading.Thread(target=halt.stand, name=LOOP, daemon=True)
        thread.start()
        halt.reached.wait(30)
        for now[0], is_told in ((SLOW_S - 1.0, False), (float(SLOW_S), True)):
            assert heartbeat.is_alive()
            assert ("thread is stuck" in caplog.text) is is_told

        assert heartbeat.is_alive()
        [record] = caplog.records
        assert record.msg.fields["thread"] == LOOP
        assert "stand (" in record.msg.fields["at"]
        assert __file__ in record.msg.fields["at"]

    def test_of_the_event_loop_of_the_watches_is_death_and_told(self, halt, caplog):
        now = [0.0]
        heartbeat = Heartbeat(clock=lambda: now[0])
        watches = Watches(beat=lambda: heartbeat.beat(threading.current_thread().name))

        async def turn():
            turning = asyncio.create_task(look(watches, asyncio.Event(), authority=lambda: None))
            await asyncio.sleep(0)
            halt.stand()
            turning.cancel()

        thread = threading.Thread(target=lambda: asyncio.run(turn()), name="kopf", daemon=True)
        thread.start()
        halt.reached.wait(30)
        now[0] = float(STALE_S)
        heartbeat.beat()

        assert not heartbeat.is_alive()
        [record] = caplog.records
        assert record.msg.fields["thread"] == "kopf"
        assert " < turn (" in record.msg.fields["at"]


class TestAnswers:
    def test_are_counted(self):
        heartbeat = Heartbeat()
        failed = {"scrapes": ("QueryTimeout", ""), "scrapes@blue": ("QueryTimeout", "")}
        for clock_skew_s in (None, -600.0):
            heartbeat.note_answers(
                Answers(
                    answered=Answered(num_dropped=2),
                    problems=failed,
                    bytes_read=1234,
                    clock_skew_s=clock_skew_s,
                )
            )

        value = heartbeat.registry.get_sample_value
        assert value("tonnage_failed_queries_total", {"query": "scrapes"}) == 4
        assert value("tonnage_dropped_samples_total") == 4
        assert value("tonnage_answer_bytes") == 1234
        assert value("tonnage_clock_skew_seconds") == -600


class TestServing:
    def test_liveness_and_readiness_are_told(self, heartbeat, address):
        assert ask(address, "/healthz") == (200, "ok")
        assert ask(address, "/readyz") == (503, "not ok")

        heartbeat.note_ready()

        assert ask(address, "/readyz") == (200, "ok")

    def test_metrics_of_its_own_are_told(self, heartbeat, address):
        heartbeat.leads.set(1)

        status, text = ask(address, "/metrics")

        assert status == 200
        assert "tonnage_leader 1.0" in text
        assert "tonnage_failed_ticks_total 0.0" in text

    @pytest.mark.parametrize(
        ("method", "path", "status"),
        [
            ("GET", "/", 404),
            ("GET", "/../etc/passwd", 404),
            ("GET", "/healthz/x", 404),
            ("POST", "/healthz", 405),
            ("DELETE", "/metrics", 405),
        ],
    )
    def test_nothing_else_is(self, address, method, path, status):
        assert ask(address, path, method)[0] == status

    def test_a_client_that_says_nothing_holds_nobody_up(self, address):
        host, port = address.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))):
            assert ask(address, "/healthz") == (200, "ok")

    @pytest.mark.parametrize(
        ("head", "status"),
        [
            (b"GET /" + 70_000 * b"x" + b" HTTP/1.1\r\n\r\n", b"414"),
            (b"GET /healthz HTTP/1.1\r\nX: " + 70_000 * b"x" + b"\r\n\r\n", b"431"),
            (b"GET /healthz HTTP/1.1\r\n" + 200 * b"X: y\r\n" + b"\r\n", b"431"),
        ],
        ids=["path", "header", "headers"],
    )
    def test_a_head_without_end_is_refused(self, address, head, status):
        host, port = address.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=5) as connection:
            connection.sendall(head)
            assert connection.recv(64).split()[1] == status

    def test_a_hundred_clients_that_say_nothing_hold_nobody_up(self, address):
        host, port = address.removeprefix("http://").split(":")
        with contextlib.ExitStack() as stack:
            for _ in range(100):
                stack.enter_context(socket.create_connection((host, int(port)), timeout=5))

            assert ask(address, "/healthz") == (200, "ok")

    def test_no_more_than_so_many_clients_stay(self, address):
        host, port = address.removeprefix("http://").split(":")
        with contextlib.ExitStack() as stack:
            silent = [
                stack.enter_context(socket.create_connection((host, int(port)), timeout=5))
                for _ in range(MOST_CLIENTS + 50)
            ]
            assert ask(address, "/healthz") == (200, "ok")

            # The first are sent away at once, long before their time is over.
            assert [each.recv(1) for each in silent[:50]] == 50 * [b""]
            silent[-1].setblocking(False)
            with pytest.raises(BlockingIOError):
                silent[-1].recv(1)
