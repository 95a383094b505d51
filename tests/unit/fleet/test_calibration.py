"""The calibration ConfigMap: what is written when, and what is never overwritten or lost."""

import json
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest

from kube_double import KubeDouble, led
from measured_builders import a_posterior
from tonnage.cluster.calls import KubernetesError
from tonnage.estimate.calibration import Calibrations, Scope
from tonnage.estimate.posterior import MemoryReport, ObjectPosterior
from tonnage.estimate.stored import dump
from tonnage.fleet.calibration import CalibrationConfigMap
from tonnage.units import DAY_S, KIB

PREFIX = "/api/v1/namespaces/tonnage-system/configmaps/tonnage-calibration"
SHARED = PREFIX
NOW_S = 1_800_000_000
MINUTE_S = 60
BLUE = Scope("blue", "k")
UID = "0f9a6e1c-0d7d-4b0e-9f44-0a3a0ad4f3a1"
KNOWN = Calibrations(
    speed={BLUE: a_posterior(learned_at_s=NOW_S)},
    memory={Scope("blue", "m"): MemoryReport(kv_tokens=70_000, reported_at_s=NOW_S)},
    objects={UID: ObjectPosterior(goodput_factor=0.9, num_judged=40, cold_start_s=61.5)},
)


@dataclass
class Failing:
    """Raises for the paths that are named, by verb."""

    paths: dict = field(default_factory=dict)
    status: int = 503

    def __call__(self, verb, path):
        if any(path.startswith(each) for each in self.paths.get(verb, ())):
            raise KubernetesError(f"{verb} {path}: {self.status}", status=self.status)


def a_config_map(text):
    return {"metadata": {}, "data": {"calibration.json": text}}


def a_store(kube=None, *, leads=True):
    kube = led(KubeDouble() if kube is None else kube, lambda: leads)
    return CalibrationConfigMap(kube, namespace="tonnage-system")


def keep(store, known, *, after_s=0, live=None, **how):
    live = {UID: "blue"} if live is None else live
    return told(store, store.keep(known, NOW_S + after_s, live=live, **how))


def told(store, known):
    """What is known after reading or writing, and what was wrong with that."""
    return SimpleNamespace(calibrations=known, problem=store.problem, unstored=store.unstored)


def loaded(store):
    return told(store, store.read())


def text_of(kube, path=SHARED):
    return kube.objects[path]["data"]["calibration.json"]


def faster(known, factor, scope=BLUE):
    before = known.speed[scope]
    return known.with_speed(
        {scope: replace(before, bandwidth_efficiency=factor * before.bandwidth_efficiency)}
    )


class TestWhatIsKept:
    def test_is_what_the_next_process_reads(self):
        kube = KubeDouble()
        keep(a_store(kube), KNOWN)

        read = loaded(a_store(kube))

        assert read.calibrations == KNOWN
        assert read.problem is None

    def test_is_what_a_leader_reads_that_led_before(self):
        kube = KubeDouble()
        first, second = a_store(kube), a_store(kube)
        loaded(first)
        keep(first, KNOWN)
        loaded(second)
        keep(second, faster(KNOWN, 1.1), after_s=MINUTE_S)

        assert loaded(first).calibrations == faster(KNOWN, 1.1)

    def test_is_written_by_server_side_apply_as_ours(self):
        kube = KubeDouble()

        keep(a_store(kube), KNOWN)

        assert {call.path for call in kube.writes} == {SHARED}
        assert {(call.verb, call.manager, call.force) for call in kube.writes} == {
            ("apply", "tonnage", True)
        }

    def test_is_written_once_while_nothing_moves(self):
        kube = KubeDouble()
        store = a_store(kube)
        for minute in range(10):
            keep(store, KNOWN, after_s=minute * MINUTE_S)

        assert len(kube.writes) == 1

    def test_is_nothing_where_nothing_was_learned(self):
        kube = KubeDouble()
        store = a_store(kube)
        loaded(store)

        kept = keep(store, Calibrations())

        assert kube.writes == []
        assert (kept.calibrations, kept.problem) == (Calibrations(), None)

    def test_at_the_end_is_all_of_it_however_little_moved(self):
        kube = KubeDouble()
        store, little = a_store(kube), faster(KNOWN, 1.001)
        keep(store, KNOWN)
        keep(store, little, after_s=2 * MINUTE_S)
        assert loaded(a_store(kube)).calibrations == KNOWN

        keep(store, little, after_s=2 * MINUTE_S + 1, is_last=True)

        read, wanted = (each.speed[BLUE] for each in (loaded(a_store(kube)).calibrations, little))
        assert read.bandwidth_efficiency == pytest.approx(wanted.bandwidth_efficiency, rel=1e-6)

    def test_at_the_end_is_not_written_where_it_stands_there(self):
        kube = KubeDouble()
        keep(a_store(kube), KNOWN)
        store = a_store(kube)

        keep(store, store.read(), is_last=True)

        assert len(kube.writes) == 1

    def test_is_not_written_again_after_a_restart(self):
        kube = KubeDouble()
        keep(a_store(kube), KNOWN)
        store = a_store(kube)

        keep(store, store.read(), after_s=MINUTE_S)

        assert len(kube.writes) == 1

    @pytest.mark.parametrize(("factor", "num_writes"), [(1.019, 1), (1.021, 2)])
    def test_is_written_when_a_constant_moved_by_two_percent(self, factor, num_writes):
        kube = KubeDouble()
        store, known = a_store(kube), replace(KNOWN, objects={})
        keep(store, known)

        keep(store, faster(known, factor), after_s=MINUTE_S)

        assert len(kube.writes) == num_writes

    def test_is_written_once_a_minute_at_most(self):
        kube = KubeDouble()
        store, known = a_store(kube), replace(KNOWN, objects={})
        for second in range(0, 180, 15):
            known = faster(known, 1.05)
            keep(store, known, after_s=second)

        assert len(kube.writes) == 3

    def test_is_not_written_by_a_process_that_lost_the_lease(self):
        kube = KubeDouble()

        kept = keep(a_store(kube, leads=False), KNOWN)

        assert kube.writes == []
        assert kept.calibrations == KNOWN
        assert "the Lease was lost" in kept.problem.message


class TestAClockThatWasSetBack:
    def test_saves_what_moved_at_once(self):
        kube = KubeDouble()
        store = a_store(kube)
        loaded(store)
        keep(store, KNOWN)

        keep(store, faster(KNOWN, 1.1), after_s=-DAY_S)

        assert loaded(a_store(kube)).calibrations == faster(KNOWN, 1.1)

    def test_and_forward_and_back_tells_what_was_mended_for_no_day(self):
        kube = KubeDouble([(PREFIX, a_config_map("not JSON"))])
        store = a_store(kube)
        loaded(store)
        keep(store, KNOWN, after_s=DAY_S)

        assert keep(store, KNOWN).problem is None


class TestANewerState:
    TEXT = '{"version": 5, "constants": "as nobody knows yet"}'

    def test_is_never_overwritten_and_learning_goes_on_in_memory(self):
        kube = KubeDouble([(SHARED, a_config_map(self.TEXT))])
        store = a_store(kube)
        assert loaded(store).calibrations == Calibrations()

        for minute in range(5):
            kept = keep(store, faster(KNOWN, 1.1**minute), after_s=minute * MINUTE_S)

        assert text_of(kube) == self.TEXT
        assert kube.writes == []
        assert kept.calibrations == faster(KNOWN, 1.1**4)

    def test_is_told_for_as_long_as_it_is_there(self):
        kube = KubeDouble([(SHARED, a_config_map(self.TEXT))])
        store = a_store(kube)

        first = loaded(store).problem
        later = keep(store, KNOWN, after_s=100 * MINUTE_S).problem

        assert first == later
        assert first.code == "NewerVersion"
        assert "tonnage-calibration: version 5" in first.message


class TestACorruptedState:
    @pytest.fixture
    def kube(self):
        return KubeDouble([(SHARED, a_config_map('{"version": 3, "speed": {"bl'))])

    def test_is_set_aside_once_before_it_is_overwritten(self, kube):
        store = a_store(kube)
        loaded(store)
        keep(store, KNOWN)
        keep(store, faster(KNOWN, 1.1), after_s=MINUTE_S)

        paths = [call.path for call in kube.writes]
        assert paths == [f"{PREFIX}-corrupt-0", SHARED, SHARED]
        aside = kube.objects[f"{PREFIX}-corrupt-0"]["data"]
        assert aside == {
            "calibration.json": '{"version": 3, "speed": {"bl',
            "source": "tonnage-calibration",
        }
        assert loaded(a_store(kube)).calibrations == faster(KNOWN, 1.1)

    def test_is_told_from_its_reading_until_an_hour_after_it_was_mended(self, kube):
        store = a_store(kube)
        told = loaded(store).problem
        mended = keep(store, KNOWN).problem
        hour = [keep(store, KNOWN, after_s=after_s).problem for after_s in (3599, 3600)]

        assert told == (
            "Corrupted",
            "ConfigMap tonnage-calibration: not JSON: JSONDecodeError: "
            "learning starts again, a copy goes to tonnage-calibration-corrupt-0",
        )
        assert (mended, hour) == (told, [told, None])

    @pytest.mark.parametrize("version", ["not JSON", '{"version": 99}'])
    def test_is_told_no_more_once_it_is_deleted(self, version):
        kube = KubeDouble([(PREFIX, a_config_map(version))])
        store = a_store(kube)
        before = loaded(store).problem
        assert keep(store, Calibrations(), after_s=30).problem == before
        del kube.objects[PREFIX]

        assert keep(store, Calibrations(), after_s=90).problem is None
        assert keep(store, KNOWN, after_s=150).problem is None
        assert loaded(a_store(kube)).calibrations == KNOWN

    def test_that_was_mended_is_not_overwritten_while_it_cannot_be_read(self, kube):
        store = a_store(kube)
        loaded(store)
        keep(store, Calibrations())
        kube.put(SHARED, a_config_map(dump(KNOWN)))
        kube.fail = Failing({"get": [PREFIX]})
        kept = keep(store, faster(KNOWN, 1.1), after_s=MINUTE_S)

        assert kube.writes == []
        assert "not read" in kept.problem.message
        kube.fail = Failing()
        kept = keep(store, Calibrations(), after_s=2 * MINUTE_S)
        assert kept.calibrations == loaded(a_store(kube)).calibrations == KNOWN

    def test_is_read_again_each_minute(self, kube):
        store = a_store(kube)
        loaded(store)
        asked = []
        kube.fail = lambda verb, path: asked.append(verb)
        for at_s in range(0, 181, 5):
            keep(store, Calibrations(), after_s=at_s)

        assert asked == ["get"] * 4

    def test_stays_while_there_is_no_copy_of_it(self, kube):
        before = text_of(kube)
        kube.fail = Failing({"apply": [f"{PREFIX}-corrupt"]}, status=403)
        store = a_store(kube)
        loaded(store)

        kept = keep(store, KNOWN)

        assert text_of(kube) == before
        assert kept.calibrations == KNOWN
        assert "not written" in kept.problem.message

    def test_is_copied_once_also_where_the_overwriting_fails(self, kube):
        store = a_store(kube)
        loaded(store)
        kube.fail = lambda verb, path: (
            Failing({"apply": [SHARED]})(verb, path + "$") if (path == SHARED) else None
        )
        keep(store, KNOWN)
        kube.fail = Failing()
        keep(store, KNOWN, after_s=MINUTE_S)

        paths = [call.path for call in kube.writes]
        assert paths == [f"{PREFIX}-corrupt-0", SHARED]

    @pytest.mark.parametrize("data", [None, {}, {"other": "x"}, {"calibration.json": ""}])
    def test_is_not_one_that_is_empty(self, data):
        kube = KubeDouble([(SHARED, {"metadata": {}, "data": data})])

        assert loaded(a_store(kube)).problem is None


def test_entries_that_are_none_are_dropped_alone_and_told():
    kube = KubeDouble()
    keep(a_store(kube), KNOWN)
    state = json.loads(text_of(kube))
    state["speed"]["blue"]["bad"] = {"bandwidthEfficiency": -1}
    kube.put(SHARED, a_config_map(json.dumps(state)))

    read = loaded(a_store(kube))

    assert read.calibrations == KNOWN
    assert read.problem.code == "EntriesDropped"
    assert "1 entry dropped as impossible" in read.problem.message


class TestWhenTheServerFails:
    def test_what_was_not_read_is_not_overwritten_but_read_later(self):
        kube = KubeDouble()
        keep(a_store(kube), KNOWN)
        kube.fail = Failing({"get": [PREFIX]})
        store = a_store(kube)
        read = loaded(store)
        green = Scope("green", "k")
        learned = Calibrations().with_speed({green: a_posterior()})
        still = keep(store, learned)

        kube.fail = Failing()
        kept = keep(store, learned, after_s=MINUTE_S)

        assert (read.problem.code, still.problem.code) == ("Unreadable", "Unreadable")
        assert (read.calibrations, still.calibrations) == (Calibrations(), learned)
        assert kept.calibrations == KNOWN.with_speed({green: a_posterior()})
        assert kept.problem is None
        assert loaded(a_store(kube)).calibrations == kept.calibrations

    def test_what_was_learned_since_stands_above_what_is_read_later(self):
        kube = KubeDouble()
        keep(a_store(kube), KNOWN)
        store = a_store(kube)

        kept = keep(store, faster(KNOWN, 0.5))

        assert kept.calibrations == faster(KNOWN, 0.5)

    def test_nobody_is_asked_seventeen_times_who_does_not_answer(self):
        asked = []

        def fail(verb, path):
            asked.append(path)
            raise KubernetesError("nobody", status=0)

        store = a_store(KubeDouble(fail=fail))
        loaded(store)
        keep(store, KNOWN)

        assert len(asked) == 2

    def test_a_write_is_tried_again_after_a_minute_and_the_failure_forgotten(self):
        kube = KubeDouble()
        store, known = a_store(kube), replace(KNOWN, objects={})
        loaded(store)
        kube.fail = Failing({"apply": [SHARED]})
        failed = keep(store, known)
        kube.fail = Failing()
        early = keep(store, known, after_s=MINUTE_S - 1)
        assert kube.writes == []

        late = keep(store, known, after_s=MINUTE_S)

        assert (failed.problem.code, early.problem.code) == ("WriteFailed", "WriteFailed")
        assert late.problem is None
        assert loaded(a_store(kube)).calibrations == known

    def test_a_failure_is_forgotten_when_there_is_nothing_to_write_any_more(self):
        kube = KubeDouble()
        store = a_store(kube)
        keep(store, KNOWN)
        kube.fail = Failing({"apply": [SHARED]})
        keep(store, faster(KNOWN, 1.1), after_s=MINUTE_S)

        back = keep(store, KNOWN, after_s=2 * MINUTE_S)

        assert back.problem is None


class TestRoom:
    UIDS = tuple(f"{number:036}" for number in range(10_000))

    def learned(self):
        return {
            uid: ObjectPosterior(goodput_factor=0.8, judged_at_s=NOW_S - age)
            for age, uid in enumerate(self.UIDS)
        }

    def test_what_does_not_fit_is_gone_from_memory_too(self):
        kube, objects = KubeDouble(), self.learned()
        store = a_store(kube)
        loaded(store)

        kept = keep(store, Calibrations(objects=objects), live={self.UIDS[-1]: "blue"})

        left = kept.calibrations.objects
        assert 767 * KIB < len(text_of(kube)) <= 768 * KIB
        assert set(left) == {*self.UIDS[: len(left) - 1], self.UIDS[-1]}
        assert kept.unstored == frozenset()
        assert loaded(a_store(kube)).calibrations == kept.calibrations

    def test_an_object_that_is_there_and_does_not_fit_is_told_until_it_does(self):
        kube, objects = KubeDouble(), self.learned()
        store, live = a_store(kube), dict.fromkeys(self.UIDS, "blue")

        first = keep(store, Calibrations(objects=objects), live=live)
        second = keep(store, Calibrations(objects=objects), live=live, after_s=15)
        third = keep(store, Calibrations(objects={}), live=live, after_s=MINUTE_S)

        assert self.UIDS[-1] in first.unstored == second.unstored
        assert third.unstored == frozenset()

    def test_what_there_is_no_room_for_is_not_written_again_and_again(self):
        kube = KubeDouble()
        store = a_store(kube)

        for minute in range(3):
            keep(store, Calibrations(objects=self.learned()), after_s=minute * MINUTE_S)

        assert len(kube.writes) == 1
