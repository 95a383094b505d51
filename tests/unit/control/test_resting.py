"""Decisions that stand: what rests, what wakes it, and that nothing else comes of it."""

from copy import copy, deepcopy
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet_builders import (
    NOW_S,
    a_deployment_body,
    a_fleet,
    a_manifest,
    a_model,
    a_pod_body,
    a_sizing,
    a_state,
    engines_at,
)
from measured_builders import steady_lengths
from tonnage.control.alike import SAME
from tonnage.control.decide.rollout import STANDS_S
from tonnage.control.input.contest import Fate
from tonnage.control.input.state import Memory
from tonnage.control.resting import LONGEST_S, LOOK_S
from tonnage.control.size import chosen
from tonnage.control.tick import tick, with_carried
from tonnage.control.write.carried import Carried
from tonnage.control.write.writes import CHILDREN_CHECK_S
from tonnage.estimate.forecast import Score
from tonnage.estimate.posterior import MemoryReport
from tonnage.estimate.ways import BIN_S, DAY_S
from tonnage.fleet.views import deployment_view, model_view, pod_view

TICK_S = 15.0
LEVEL_TICKS = 60
"""Until nothing is awaited any more: no window, no gauge, no evidence of speed."""
GOODPUT = a_sizing().goodput_requests_per_s
HELD = Carried(is_held=True, template=Fate.UNDONE)


class Object:
    """One object that the operator decides, and its cluster, which does at once what is asked."""

    def __init__(self, name="llama", *, replicas=2, namespace="serving", rests=True, **spec):
        self.manifest = a_manifest(name, namespace=namespace, **spec)
        self.model = a_model(name, namespace=namespace, **spec)
        self.live = a_deployment_body(self.model, replicas=replicas)
        self.status, self.arrived, self.rests = {}, 0.0, rests
        self.replicas = []
        """At each tick."""
        self.decided = []
        """(tick, replicas wanted) where it was another number."""

    def state(self, load, now_s, **engine):
        replicas = self.live["spec"]["replicas"]
        names = [f"{self.model.name}-{number}" for number in range(replicas)]
        self.arrived += load * GOODPUT * TICK_S
        told = {"arrived": self.arrived, "scraped_at_s": now_s - 5} | engine
        view = replace(
            model_view(self.manifest | {"status": self.status}), namespace=self.model.namespace
        )
        pods = [a_pod_body(name, model=self.model, ready_for_s=7200) for name in names]
        return replace(
            a_state(self.manifest, replicas=1),
            view=view,
            deployment=deployment_view(self.live),
            pods=tuple(map(pod_view, pods)),
            engines=engines_at(load, names, **told) if names else (),
        )

    def carry_out(self, writes):
        if writes is None:
            return
        if writes.status:
            self.status = writes.status.to_dict()
        if writes.scale:
            generation = self.live["metadata"]["generation"] + 1
            self.live["metadata"]["generation"] = generation
            number = writes.scale.replicas
            self.live["spec"]["replicas"] = number
            self.live["status"] = {"observedGeneration": generation} | dict.fromkeys(
                ("replicas", "updatedReplicas", "readyReplicas"), number
            )


def serving_more(sizing):
    """The plan with a slot more, by which each replica serves a fifth more."""
    flags = replace(sizing.flags, max_num_seqs=sizing.flags.max_num_seqs + 1)
    more = 1.2 * sizing.goodput.requests_per_s
    return replace(sizing, flags=flags, goodput=replace(sizing.goodput, requests_per_s=more))


class Played:
    """Ticks of a fleet of such objects, one after the other."""

    def __init__(self, *objects, rests=True):
        self.objects, self.rests = objects or (Object(),), rests
        self.now_s, self.memory, self.outcome = NOW_S, Memory(), None

    def tick(self, load=1.5, *, fleet=None, change=None, has_room=True, **engine):
        """``change``: of the first object's state. Without room replicas alone are written."""
        self.now_s += TICK_S
        states = [each.state(load, self.now_s, **engine) for each in self.objects]
        if change:
            states[0] = change(states[0])
        world = a_fleet(*states, now_s=self.now_s, calibrations=self.memory.calibrations)
        world = replace(world, **(fleet or {}))
        before = self.memory if self.rests else replace(self.memory, resting={})
        self.outcome = tick(world, before)
        limited = [each for each in self.outcome.writes if each.num_limited]
        held = {} if has_room else {each.uid: HELD for each in limited}
        self.memory = with_carried(self.outcome, held, before=before, now_s=self.now_s)
        writes = {
            each.uid: replace(each, status=None) if each.uid in held else each
            for each in self.outcome.writes
        }
        for each in self.objects:
            each.carry_out(writes.get(each.model.uid))
            each.replicas.append(each.live["spec"]["replicas"])
        return self.outcome

    def at_rest(self, load=1.5, ticks=LEVEL_TICKS, **more):
        """Let time pass until the next tick finds every object at rest."""
        for _ in range(ticks):
            self.tick(load, **more)
        for _ in range(40):
            rests = self.memory.resting.values()
            soonest_s = min((each.look_at_s for each in rests), default=0.0)
            if len(rests) == len(self.objects) and soonest_s > self.now_s + 2 * TICK_S:
                return self
            self.tick(load, **more)
        raise AssertionError("it does not come to rest")


@pytest.fixture(scope="module")
def rested():
    """One that rests; each test goes on from there."""
    return Played().at_rest()


@pytest.fixture
def played(rested):
    """The same with a life of its own."""
    mine = copy(rested)
    mine.objects = tuple(copy(each) for each in rested.objects)
    for each in mine.objects:
        each.live, each.replicas = deepcopy(each.live), list(each.replicas)
    return mine


def test_an_object_that_wants_what_runs_is_not_decided_in_every_tick(played):
    before = played.outcome

    outcome = played.tick()

    assert (outcome.num_decided, outcome.num_asked, outcome.writes) == (0, 0, ())
    assert outcome.found[0].decision == before.found[0].decision
    assert outcome.found[0].decision.replicas == played.objects[0].replicas[-1]


def test_it_is_decided_every_ten_minutes_whatever_else(played):
    decided_at_s = []
    for _ in range(160):
        if played.tick().num_decided:
            decided_at_s.append(played.now_s)

    apart_s = [after - before for before, after in pairwise(decided_at_s)]
    assert LOOK_S < max(apart_s) <= LONGEST_S
    assert len(decided_at_s) <= 2 * 160 * TICK_S / LONGEST_S


def test_an_object_whose_template_a_webhook_rewrites_rests_too():
    mine = Object()
    mine.live["spec"]["template"]["spec"]["containers"][0]["image"] = "mirror.test/vllm:v0.33.0"
    played = Played(mine)
    for _ in range(80):
        played.tick()

    assert sum(played.tick().num_decided for _ in range(40)) <= 1
    assert played.memory.objects["uid-of-llama"].conditions["Drifted"].status == "True"


def test_at_rest_demand_is_noted_and_arrivals_are_counted_every_minute(played):
    rests = 0
    for _ in range(80):
        rests += not played.tick().num_decided

    assert rests > 60
    memory = played.memory.objects["uid-of-llama"]
    for noted_s in ([at for at, _ in memory.history.recent], [at.at_s for at in memory.counted]):
        apart_s = [after - before for before, after in pairwise(noted_s[-16:])]
        assert max(apart_s) < 2 * LOOK_S
    assert played.now_s - memory.judged_at_s <= 2 * LOOK_S + TICK_S


def test_at_rest_children_are_held_against_what_is_wanted_when_it_is_time():
    played, checked_s = Played().at_rest(), []
    for _ in range(160):
        outcome = played.tick()
        if any(each.check_children for each in outcome.writes):
            checked_s.append((played.now_s, outcome.num_decided))

    apart_s = [after - before for (before, _), (after, _) in pairwise(checked_s)]
    assert 0 in {decided for _, decided in checked_s}
    assert 240 <= min(apart_s) <= max(apart_s) <= CHILDREN_CHECK_S + TICK_S


def test_what_could_not_be_written_at_rest_is_decided_anew(played):
    while not any(each.check_children for each in played.outcome.writes):
        played.tick()
    assert not played.outcome.num_decided

    fate = {"uid-of-llama": Carried(has_failed=True)}
    played.memory = with_carried(played.outcome, fate, before=Memory(), now_s=played.now_s)

    assert played.tick().num_decided == 1


def test_at_rest_nothing_is_noted_between_two_looks(played):
    before = played.memory.objects["uid-of-llama"]

    assert played.tick().memory.objects["uid-of-llama"] is before


def test_a_look_notes_the_pages_of_every_tick_since_the_last_one(played):
    while played.memory.resting["uid-of-llama"].look_at_s > played.now_s + TICK_S:
        played.tick()
    before = played.memory.objects["uid-of-llama"].tracks

    after = played.tick().memory.objects["uid-of-llama"].tracks

    assert len(after) == played.objects[0].replicas[-1]
    for key, readings in after.items():
        times_s = [each.at_s for each in readings]
        new_s = [at_s for at_s in times_s if at_s > before[key].last.at_s]
        assert len(new_s) == LOOK_S / TICK_S
        assert {later - earlier for earlier, later in pairwise(times_s)} == {TICK_S}


def test_what_wakes_was_needed_until_the_tick_before(played):
    before = played.memory.objects["uid-of-llama"].recent_needs[-1]
    for _ in range(3):
        played.tick()

    needs = played.tick(0.2).memory.objects["uid-of-llama"].recent_needs

    assert [(each.at_s, each.replicas) for each in needs[-2:]] == [
        (played.now_s - TICK_S, before.replicas),
        (played.now_s, 1),
    ]


def test_a_gain_that_has_to_stand_is_waited_for_at_rest(played, monkeypatch):
    monkeypatch.setattr(chosen, "_better_slots", lambda _, found: serving_more(found.sizing))
    seen_s, num_decided = None, 0
    for _ in range(300):
        num_decided += played.tick().num_decided
        memory = played.memory.objects["uid-of-llama"]
        if memory.posterior.slots_moved_at_s is not None:
            break
        if seen_s is None and memory.better_since_s is not None:
            seen_s, num_decided = played.now_s, 0

    assert memory.posterior.slots_moved_at_s == seen_s + STANDS_S
    assert num_decided <= 2 * STANDS_S / LONGEST_S


class TestIsDecidedAnew:
    @pytest.mark.parametrize(
        "engine",
        [
            {"waiting": 1},
            {"running": 21},
            {"ttft_within": {2.0: 1.9, float("inf"): 2.0}},
            {"tpot_within": {0.05: 1.0, float("inf"): 2.0}},
            {"kv_tokens": 1e5},
            {"token_gap_s_per_s": 21},
            {"mean_running": None},
            {"num_resets": 1.0},
            {"age_s": 100.0},
            {"age_s": None},
            {"lengths": steady_lengths(4000, 1100)},
            {"completions_per_s": None},
        ],
        ids=str,
    )
    def test_where_an_engine_says_something_else(self, played, engine):
        assert played.tick(**engine).num_decided == 1

    @pytest.mark.parametrize("load", [1.5 * (1 + 2 * SAME), 1.5 * (1 - 2 * SAME), 0.0, 9.0])
    def test_where_demand_is_another(self, played, load):
        assert played.tick(load).num_decided == 1

    def test_where_small_steps_add_up(self, played):
        steps = (1 + 0.4 * SAME, 1 + 0.8 * SAME, 1 + 1.2 * SAME)

        assert [played.tick(1.5 * step).num_decided for step in steps] == [0, 0, 1]

    @pytest.mark.parametrize(
        "change",
        [
            lambda state: replace(state, engines=state.engines[:1]),
            lambda state: replace(state, pods=state.pods[:1]),
            lambda state: replace(state, pods=(*state.pods[:1], replace(state.pods[1], uid="x"))),
            lambda state: replace(state, view=replace(state.view, generation=2)),
            lambda state: replace(state, view=replace(state.view, approve="x")),
            lambda state: replace(state, deployment=replace(state.deployment, replicas=7)),
            lambda state: replace(state, deployment=replace(state.deployment, generation=9)),
            lambda state: replace(state, deployment=None),
            lambda state: replace(state, conflicting_autoscaler="HorizontalPodAutoscaler x"),
            lambda state: replace(state, config_problem="gone"),
            lambda state: replace(state, bug=RuntimeError("a bug")),
        ],
    )
    def test_where_the_cluster_says_something_else(self, played, change):
        assert played.tick(change=change).num_decided == 1

    @pytest.mark.parametrize(
        "fleet",
        [
            {"metrics_problem": ("PrometheusUnreachable", "no answer")},
            {"problems": {"waiting": ("QueryFailed", "no")}},
            {"problems": {"waiting@serving": ("QueryFailed", "no")}},
            {"partial": frozenset({"waiting@serving"})},
            {"unlisted": {"serving": "forbidden"}},
            {"state_problem": ("CalibrationUnreadable", "no")},
            {"has_pod_monitors": False},
            {"gpus": {}},
        ],
        ids=str,
    )
    def test_where_the_fleet_is_another(self, played, fleet):
        assert played.tick(fleet=fleet).num_decided == 1

    @pytest.mark.parametrize("factor", [0.9, 1.1])
    def test_where_its_engines_are_believed_to_be_of_another_speed(self, played, factor):
        known = played.memory.calibrations
        [scope] = known.speed
        speed = known.speed[scope]
        moved = replace(speed, bandwidth_efficiency=factor * speed.bandwidth_efficiency)

        outcome = played.tick(fleet={"calibrations": known.with_speed({scope: moved})})

        assert outcome.num_decided == 1

    def test_where_others_report_another_cache(self, played):
        known, [rest] = played.memory.calibrations, played.memory.resting.values()
        [scope] = known.speed
        cache = rest.observation.memory
        assert cache.namespace == scope.namespace

        report = MemoryReport(kv_tokens=1e5, reported_at_s=NOW_S)
        outcome = played.tick(fleet={"calibrations": known.with_memory({cache: report})})

        assert outcome.num_decided == 1

    def test_where_the_clock_was_set_back(self, played):
        played.now_s -= 3600

        assert played.tick().num_decided == 1


class TestStands:
    def test_where_figures_waver_within_the_band(self, played):
        assert played.tick(1.5 * (1 + 0.9 * SAME)).num_decided == 0

    @pytest.mark.parametrize(
        "fleet",
        [
            {"problems": {"waiting@other": ("QueryFailed", "no")}},
            {"partial": frozenset({"waiting@other"})},
            {"unlisted": {"other": "forbidden"}},
            {"clock_skew_s": 3.0},
        ],
        ids=str,
    )
    def test_where_another_namespace_has_trouble(self, played, fleet):
        assert played.tick(fleet=fleet).num_decided == 0


class TestDoesNotRest:
    """What waits for its time is decided until that has come."""

    def ticks(self, played, load=1.5, number=4, **more):
        return [played.tick(load, **more).num_decided for _ in range(number)]

    def test_where_replicas_are_held(self):
        played = Played(Object(replicas=4))

        assert self.ticks(played, number=8) == [1] * 8  # walks down, after its window
        assert {each.live["spec"]["replicas"] for each in played.objects} == {4}

    def test_where_metrics_are_missing(self, played):
        assert self.ticks(played, completions_per_s=None) == [1] * 4

    def test_where_a_pod_is_not_ready(self, played):
        def loading(state):
            return replace(state, pods=(replace(state.pods[0], is_ready=False), *state.pods[1:]))

        assert self.ticks(played, change=loading) == [1] * 4


def test_objects_that_were_decided_together_come_apart():
    scaling = {"mode": "Recommend", "minReplicas": 1, "maxReplicas": 8}
    bodies = [a_manifest(f"m{number:02}", scaling=scaling) for number in range(24)]
    statuses, memory, decided = [{} for _ in bodies], Memory(), []
    for number in range(2 + int(LONGEST_S / TICK_S)):
        states = [
            replace(a_state(body, replicas=None), view=model_view(body | {"status": status}))
            for body, status in zip(bodies, statuses, strict=True)
        ]
        outcome = tick(a_fleet(*states, now_s=NOW_S + number * TICK_S), memory)
        told = {each.uid: each.status.to_dict() for each in outcome.writes if each.status}
        statuses = [
            told.get(body["metadata"]["uid"], status)
            for body, status in zip(bodies, statuses, strict=True)
        ]
        memory, decided = outcome.memory, [*decided, outcome.num_decided]

    assert decided[:2] == [24, 24]
    assert max(decided[2:]) <= 6
    assert sum(decided[2:]) >= 22


class TestWithoutRoomToWrite:
    """A decision waits as it is: a herd would else be decided anew in each tick of its start."""

    def waiting(self, ticks=LEVEL_TICKS):
        """One whose replicas are right, and of which nothing else could ever be written."""
        played, first = Played(), True
        for _ in range(ticks):
            first = played.tick(has_room=False)
        while not first.num_decided:
            first = played.tick(has_room=False)
        return played, first

    def test_it_is_offered_again_and_not_decided(self):
        played, first = self.waiting()

        again = played.tick(has_room=False)

        assert again.num_decided == 0
        assert again.writes == first.writes
        assert again.writes[0].status is not None

    def test_it_is_remembered_as_if_it_had_been_decided_anew(self):
        waiting, decided = Played(), Played(rests=False)
        for played in (waiting, decided):
            for _ in range(3):
                played.tick(has_room=False, **UNSAID)
            played.tick(**UNSAID)
            played.tick(**UNSAID)

        [one], [other] = (played.memory.objects.values() for played in (waiting, decided))
        assert one.conditions.keys() == other.conditions.keys()
        assert one.told.keys() == other.told.keys()
        assert [each.to_replicas for each in one.decisions] == [
            each.to_replicas for each in other.decisions
        ]
        assert one.tracks == other.tracks
        assert one.recent_needs == other.recent_needs

    def test_once_written_it_is_decided_anew(self):
        played, _ = self.waiting()

        told = played.tick()

        assert told.num_decided == 0
        assert played.objects[0].status
        assert played.tick().num_decided == 1

    def test_it_waits_for_a_minute_at_most(self):
        played, _ = self.waiting()

        assert [played.tick(has_room=False).num_decided for _ in range(4)] == [0, 0, 0, 1]

    def test_what_changes_is_decided_at_once(self):
        played, _ = self.waiting()

        assert played.tick(3.0, has_room=False).num_decided == 1

    def test_replicas_do_not_wait(self):
        played = Played(Object(replicas=1))
        played.tick(3.0, has_room=False)

        assert played.objects[0].replicas[-1] > 1

    @pytest.mark.parametrize("refused", [True, False])
    def test_what_failed_is_decided_anew(self, refused):
        played, _ = self.waiting()
        before, outcome = played.memory, played.tick(has_room=False)
        failed = {"uid-of-llama": Carried(has_failed=True, refused="no" if refused else None)}
        played.memory = with_carried(outcome, failed, before=before, now_s=played.now_s)

        assert played.tick().num_decided == 1

    def test_a_check_of_children_that_is_due_waits_too(self, played):
        played.tick(has_room=False)
        while not played.tick(has_room=False).writes:
            pass

        waited = [played.tick(has_room=False) for _ in range(2)]

        assert [each.num_decided for each in waited] == [0, 0]
        assert all(each.writes[0].check_children for each in waited)

    def test_known_events_do_not_wait(self):
        schedules = [{"cron": "0 8 * * *", "duration": "2h", "minReplicas": 4, "timeZone": "UTC"}]
        scaling = {"minReplicas": 1, "maxReplicas": 8, "schedules": schedules}
        played = Played(Object(scaling=scaling))

        assert [played.tick(has_room=False).num_decided for _ in range(3)] == [1, 1, 1]


def rises(replicas):
    return [at for at in range(1, len(replicas)) if replicas[at] > replicas[at - 1]]


@pytest.mark.thorough
class TestTimeAlone:
    """What nothing but time brings comes to what rests as it does to what is always decided."""

    def both(self, *, change=lambda memory: memory, ticks=60, load=1.5, **spec):
        """One that rests and one that does not, from the same moment on, with what is changed."""
        found = []
        for rests in (True, False):
            played = Played(Object(**spec), rests=rests)
            for _ in range(LEVEL_TICKS):
                played.tick(load, **UNSAID)
            [(uid, memory)] = played.memory.objects.items()
            changed = replace(played.memory, objects={uid: change(memory)})
            played.memory = replace(changed, resting={})
            played.num_decided = sum(played.tick(load, **UNSAID).num_decided for _ in range(ticks))
            found.append(played)
        return found

    def test_a_promise_of_a_schedule_begins_in_its_tick(self):
        begins = datetime.fromtimestamp(NOW_S, UTC) + timedelta(minutes=30)
        cron = f"{begins.minute} {begins.hour} * * *"
        schedules = [{"cron": cron, "duration": "2h", "minReplicas": 4, "timeZone": "UTC"}]
        scaling = {"minReplicas": 1, "maxReplicas": 8, "schedules": schedules}

        rested, decided = self.both(scaling=scaling, ticks=120)

        assert rises(rested.objects[0].replicas) == rises(decided.objects[0].replicas) != []
        assert rested.num_decided < 0.7 * decided.num_decided

    def test_a_rise_that_the_day_before_tells_of_is_planned_for_within_a_minute(self):
        def as_yesterday(memory):
            demand = memory.history.recent[-1][1]
            now = int((NOW_S + LEVEL_TICKS * TICK_S) // BIN_S)
            day = int(DAY_S // BIN_S)
            pattern = {now - day + at: (demand * (1 if at < 3 else 4), 10) for at in range(-3, 30)}
            scores = {"last value": Score(loss=50.0, weight=50.0)}
            scores["the day before"] = Score(loss=1.0, weight=50.0)
            history = replace(memory.history, pattern=pattern, scores=scores)
            return replace(memory, history=history)

        rested, decided = self.both(change=as_yesterday, ticks=100)

        [one], [other] = rested.objects, decided.objects
        assert max(one.replicas) == max(other.replicas) > one.replicas[LEVEL_TICKS]
        late = rises(one.replicas)[0] - rises(other.replicas)[0]
        assert 0 <= late <= LOOK_S / TICK_S
        assert rested.num_decided < 0.7 * decided.num_decided

    def test_promises_that_are_broken_all_the_time_lower_goodput_as_soon(self):
        late = {"ttft_within": {2.0: 1.2, float("inf"): 2.0}}
        factors = []
        for rests in (True, False):
            played = Played(rests=rests)
            for _ in range(LEVEL_TICKS):
                played.tick(1.5, **UNSAID, **late)
            factors.append(played.memory.objects["uid-of-llama"].posterior.goodput_factor)

        assert factors[0] == pytest.approx(factors[1], rel=0.02)
        assert factors[0] < 0.95


UNSAID = {"token_gap_s_per_s": None, "token_gaps_per_s": None}
"""Nothing is learned of the speed: each other belief would be another search."""
loads = st.lists(
    st.tuples(st.sampled_from([0.0, 0.6, 1.3, 1.7, 2.6, 5.0]), st.integers(1, 20)),
    min_size=1,
    max_size=3,
)


@pytest.mark.thorough
@settings(max_examples=5)
@given(loads)
def test_what_rests_comes_to_the_same_as_what_is_decided_in_every_tick(history):
    resting, decided = Played(), Played(rests=False)
    for load, ticks in [*history, (history[-1][0], 40)]:
        for _ in range(ticks):
            resting.tick(load, **UNSAID)
            decided.tick(load, **UNSAID)

    [one], [other] = resting.objects, decided.objects
    assert one.replicas[-1] == other.replicas[-1]
    assert rises(one.replicas) == rises(other.replicas)
    late = LOOK_S // TICK_S
    changed = [
        [(each[at - 1], each[at]) for at in range(1, len(each)) if each[at] != each[at - 1]]
        for each in (one.replicas, other.replicas)
    ]
    assert changed[0] == changed[1]
    apart = sum(a != b for a, b in zip(one.replicas, other.replicas, strict=True))
    assert apart <= late * max(1, len(changed[1]))
