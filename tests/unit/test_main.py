"""The operator's process: how it starts, and its two threads, which no failure ends."""

import os
import subprocess
import sys
from dataclasses import dataclass, field

import pytest

from calibration_builders import KEY, a_file
from http_double import a_kubeconfig, json_reply, serving
from kube_double import KubeDouble
from tonnage.cluster.calls import KubernetesError, WorldError
from tonnage.cluster.kube import MODEL_DEPLOYMENTS
from tonnage.control.series import FleetSeries
from tonnage.estimate.calibration import Calibrations
from tonnage.estimate.calibration_file import dump
from tonnage.fleet.heartbeat import UNREADY_S, Heartbeat
from tonnage.fleet.watches import readable_namespaces
from tonnage.main import SHORTEST_TICK_S, build, keep_deciding, keep_leading
from tonnage.settings import Settings
from tonnage_lab.processes import free_ports

AS_NOBODY_KNOWN = ("unshare", "--user", "--map-user=65532")
"""The user of the chart and the image, whom no passwd file knows, with our rights to files."""
NAMES_OF_A_USER = {"HOME", "USER", "LOGNAME", "LNAME", "USERNAME"}


def can_map_users():
    command = [*AS_NOBODY_KNOWN, "true"]
    try:
        return subprocess.run(command, check=False, capture_output=True).returncode == 0  # noqa: S603
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not can_map_users(), reason="no unshare, or no right to map a user's number")
def test_the_operator_starts_as_a_user_without_a_name(tmp_path):
    (probe_port,) = free_ports(1)
    settings, kubeconfig = tmp_path / "settings.yaml", tmp_path / "kubeconfig"
    settings.write_text(f"prometheusUrl: http://127.0.0.1:1\nprobePort: {probe_port}\n")
    command = [*AS_NOBODY_KNOWN, sys.executable, "-m", "tonnage", "run", "--config", str(settings)]
    nameless = {name: text for name, text in os.environ.items() if name not in NAMES_OF_A_USER}
    agents = set()

    def answer(asked):
        """Know our kind alone, and end the operator as soon as Kopf asks for something."""
        agents.add(agent := asked.headers["User-Agent"].partition("/")[0])
        if agent == "kopf":
            operator.kill()
        if asked.path.endswith(f"/{MODEL_DEPLOYMENTS.prefix}"):
            return json_reply({"resources": [{"name": MODEL_DEPLOYMENTS.plural}]})
        return json_reply({"kind": "Status", "message": "not found"}, status=404)

    with serving(answer) as server:
        kubeconfig.write_text(a_kubeconfig(server.url))
        operator = subprocess.Popen(  # noqa: S603
            command, env=nameless | {"KUBECONFIG": str(kubeconfig)}, stderr=subprocess.PIPE
        )
        with operator:
            try:
                _, said = operator.communicate(timeout=60)
            finally:
                operator.kill()

    assert "kopf" in agents, said.decode()


@dataclass
class Stop:
    """An event that is set after so many rounds and never waits."""

    rounds: int
    waited_s: list = field(default_factory=list)

    def is_set(self):
        return self.rounds <= 0

    def wait(self, seconds):
        self.rounds -= 1
        self.waited_s.append(seconds)


@dataclass
class Script:
    """Does one thing after the other: raises what is an exception, returns the rest."""

    steps: list
    done: int = 0

    def __call__(self):
        step = self.steps[min(self.done, len(self.steps) - 1)]
        self.done += 1
        if isinstance(step, Exception):
            raise step
        return step


@dataclass
class Leading:
    problem: str | None = None
    is_unanswered: bool = False
    holder: str | None = None
    maintain: Script = field(default_factory=lambda: Script([True]))
    is_leader: Script = field(default_factory=lambda: Script([True]))
    release: Script = field(default_factory=lambda: Script([None]))
    check: Script = field(default_factory=lambda: Script([None]))


@dataclass
class Changed:
    waited_s: list = field(default_factory=list)
    cleared: int = 0

    def clear(self):
        self.cleared += 1

    def wait(self, seconds):
        self.waited_s.append(seconds)


@dataclass
class Deciding:
    """Stands for the loop."""

    tick: Script = field(default_factory=lambda: Script([()]))
    start_leading: Script = field(default_factory=lambda: Script([None]))
    changed: Changed = field(default_factory=Changed)
    tick_s: float = 15
    num_held: int = 0

    def pause_s(self):
        return self.tick_s

    end: Script = field(default_factory=lambda: Script([None]))

    @property
    def calibration(self):
        return self

    @property
    def store(self):
        return self

    @property
    def settings(self):
        return self


class Kube:
    """A cluster without the Prometheus Operator."""

    def with_fence(self, _):
        return self

    def serves(self, resource):
        return False


def test_calibration_files_reach_the_fleet_and_a_bad_one_stops_nothing(tmp_path, caplog):
    (tmp_path / "good.json").write_text(dump(a_file()))
    (tmp_path / "bad.json").write_text("{}")
    settings = Settings(prometheus_url="http://prometheus.test", calibration_folder=str(tmp_path))

    loop = build(settings, Kube(), Leading())
    fleet = loop.observer.observe(loop.store.snapshot(), Calibrations(), 0.0)

    assert list(fleet.calibration_files) == [KEY.identity]
    assert f"{tmp_path / 'bad.json'}" in caplog.text


@pytest.mark.parametrize(
    ("refused", "found"),
    [((), ("blue", "green")), (("green",), ("blue",)), (("blue", "green"), ("blue", "green"))],
)
def test_a_namespace_that_may_not_be_read_is_not_watched(refused, found, caplog):
    def fail(verb, path):
        if any(f"/namespaces/{each}/" in path for each in refused):
            raise KubernetesError("403 forbidden", status=403)

    settings = Settings(prometheus_url="http://prometheus.test", namespaces=("blue", "green"))

    assert readable_namespaces(KubeDouble(fail=fail), settings) == found
    assert all(f'event="not watched" namespace={each} ' in caplog.text for each in refused)


def value(heartbeat, name):
    return heartbeat.registry.get_sample_value(name)


class TestLeading:
    @pytest.mark.parametrize("failure", [WorldError("down"), RuntimeError("a bug")])
    def test_goes_on_after_a_failure(self, failure):
        leading = Leading(maintain=Script([failure, True]))

        keep_leading(leading, Stop(rounds=5))

        assert leading.maintain.done == 5

    def test_lets_go_of_the_lease_at_the_end(self):
        leading = Leading()

        keep_leading(leading, Stop(rounds=1))

        assert leading.release.done == 1

    def test_ends_also_when_the_lease_cannot_be_let_go(self):
        keep_leading(Leading(release=Script([KubernetesError("down", status=0)])), Stop(rounds=1))


def decided(deciding=None, leading=None, *, rounds=3):
    deciding, heartbeat = deciding or Deciding(), Heartbeat(clock=lambda: 0.0)
    stop = Stop(rounds=rounds)
    keep_deciding(deciding, leading or Leading(), heartbeat, stop)
    return deciding, heartbeat, stop


class TestDeciding:
    def test_ticks_while_it_leads(self):
        deciding, heartbeat, _ = decided()

        assert deciding.tick.done == 3
        assert deciding.start_leading.done == 1
        assert value(heartbeat, "tonnage_leader") == 1
        assert value(heartbeat, "tonnage_tick_seconds_count") == 3

    def test_looks_at_what_may_be_edited_after_each_tick_also_after_one_that_failed(self):
        deciding, looks = Deciding(tick=Script([(), WorldError("down"), ()])), []
        keep_deciding(
            deciding,
            Leading(),
            Heartbeat(),
            Stop(rounds=3),
            lambda: looks.append(deciding.tick.done),
        )

        assert looks == [1, 2, 3]

    def test_tells_how_many_objects_wait_to_be_written(self):
        _, heartbeat, _ = decided(Deciding(num_held=7))

        assert value(heartbeat, "tonnage_held_objects") == 7

    def test_shows_nothing_any_more_when_another_leads(self):
        leading = Leading(is_leader=Script([True, False]))
        deciding, heartbeat = Deciding(), Heartbeat(clock=lambda: 0.0)
        told = FleetSeries(objects=(), num_objects=0, num_left_out=0, num_faults=0, is_blind=False)
        deciding.tick = lambda: heartbeat.exporter.note(told)
        shown = []
        stop = Stop(rounds=2)
        deciding.changed.wait = lambda _: shown.append(value(heartbeat, "tonnage_objects"))

        keep_deciding(deciding, leading, heartbeat, stop)

        assert shown == [0, None]

    def test_does_nothing_while_another_leads(self):
        deciding, heartbeat, _ = decided(leading=Leading(is_leader=Script([False])))

        assert (deciding.tick.done, deciding.start_leading.done) == (0, 0)
        assert value(heartbeat, "tonnage_leader") == 0
        assert heartbeat.is_ready

    @pytest.mark.parametrize(
        ("problem", "is_ready"), [(None, True), ("GET .../leases: 403 forbidden", False)]
    )
    def test_is_ready_to_wait_for_the_lead_where_the_lease_can_be_read(self, problem, is_ready):
        leading = Leading(problem=problem, is_leader=Script([False]))

        _, heartbeat, _ = decided(leading=leading)

        assert heartbeat.is_ready is is_ready

    @pytest.mark.parametrize("failure", [WorldError("LIST .../pods: 403"), RuntimeError("a bug")])
    def test_is_ready_after_a_tick_that_went_through_and_not_after_one_that_failed(self, failure):
        for steps, is_ready in [([()], True), ([(), failure], False), ([failure, ()], True)]:
            _, heartbeat, _ = decided(Deciding(tick=Script(steps)), rounds=2)

            assert heartbeat.is_ready is is_ready

    def test_says_once_when_the_lead_comes_or_goes(self, caplog):
        caplog.set_level("INFO")
        leading = Leading(holder="other", is_leader=Script([False, False, True, True, False]))

        decided(leading=leading, rounds=6)

        assert [each.msg.event for each in caplog.records] == [
            "not leading: other holds the Lease",
            "leading",
            "not leading: other holds the Lease",
        ]

    def test_takes_up_what_was_learned_each_time_it_begins_to_lead(self):
        leading = Leading(is_leader=Script([True, False, True]))

        deciding, _, _ = decided(leading=leading, rounds=5)

        assert deciding.start_leading.done == 2
        assert deciding.tick.done == 4

    def test_keeps_what_was_learned_last_when_it_ends_as_leader(self):
        for is_leader, ended in (([True], 1), ([True, False], 0), ([False, True], 1)):
            deciding, _, _ = decided(leading=Leading(is_leader=Script(is_leader)))

            assert deciding.end.done == ended

    def test_ends_also_when_that_cannot_be_kept(self):
        decided(Deciding(end=Script([RuntimeError("a bug")])))

    def test_does_not_tick_before_it_took_that_up(self):
        broken = Script([KubernetesError("down", status=0), None])

        deciding, _, _ = decided(Deciding(start_leading=broken), rounds=3)

        assert (deciding.start_leading.done, deciding.tick.done) == (2, 2)

    @pytest.mark.parametrize("failure", [WorldError("down"), RuntimeError("a bug")])
    def test_goes_on_after_a_failure_and_counts_it(self, failure):
        deciding, heartbeat, _ = decided(Deciding(tick=Script([failure, ()])))

        assert deciding.tick.done == 3
        assert value(heartbeat, "tonnage_failed_ticks_total") == 1

    def test_is_alive_when_the_world_fails_and_not_when_it_fails_itself(self):
        for failure, beats in ((WorldError("down"), True), (RuntimeError("a bug"), False)):
            times = iter([0.0, *[UNREADY_S - 1.0] * 100])
            heartbeat = Heartbeat(clock=lambda times=times: next(times))

            keep_deciding(Deciding(tick=Script([failure])), Leading(), heartbeat, Stop(rounds=2))

            assert heartbeat.is_alive() is beats

    def test_is_given_up_when_the_world_fails_for_a_quarter_of_an_hour(self, caplog):
        passed_s = [0.0]
        heartbeat = Heartbeat(clock=lambda: passed_s[0])
        keep_deciding(Deciding(), Leading(), heartbeat, Stop(rounds=1))
        for passed_s[0] in (UNREADY_S - 1.0, UNREADY_S + 1.0):
            keep_deciding(
                Deciding(tick=Script([WorldError("500")])), Leading(), heartbeat, Stop(rounds=1)
            )
            assert heartbeat.is_alive() is (passed_s[0] < UNREADY_S)

        assert "no tick went through for 15.0 min" in caplog.text

        keep_deciding(Deciding(), Leading(), heartbeat, Stop(rounds=1))
        assert heartbeat.is_alive()

    @pytest.mark.parametrize(
        ("deciding", "leading"),
        [
            ({"tick": KubernetesError("GET .../pods: ReadTimeoutError", status=0)}, {}),
            ({}, {"problem": "GET .../leases: ReadTimeoutError", "is_unanswered": True}),
        ],
    )
    def test_is_not_given_up_while_the_api_server_is_away(self, deciding, leading):
        passed_s = [0.0]
        heartbeat = Heartbeat(clock=lambda: passed_s[0])
        for passed_s[0] in range(0, 4 * UNREADY_S, 60):
            tick = {name: Script([error]) for name, error in deciding.items()}
            leads = {"is_leader": Script([False])} | leading if leading else {}
            keep_deciding(Deciding(**tick), Leading(**leads), heartbeat, Stop(rounds=1))

            assert heartbeat.is_alive()

    def test_waits_for_a_change_or_the_interval_but_never_less_than_the_shortest(self):
        deciding, _, stop = decided()

        assert stop.waited_s == [SHORTEST_TICK_S] * 3
        assert deciding.changed.waited_s == [15 - SHORTEST_TICK_S] * 3

    def test_looks_for_its_turn_often(self):
        deciding, _, _ = decided(leading=Leading(is_leader=Script([False])))

        assert deciding.changed.waited_s == [0] * 3
