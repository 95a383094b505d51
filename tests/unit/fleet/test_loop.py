"""The loop called as a function: from nothing to a fleet at rest, and what disturbs it."""

import copy
import gc
import json
import logging
import math
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from typing import ClassVar

import pytest

from fleet_builders import a_manifest, a_sizing, first_replicas
from loop_builders import a_loop, a_world, condition, replicas_of, served, status_of, tick
from measured_builders import samples_of, slowed
from tonnage.cluster.calls import KubernetesError, PrometheusError
from tonnage.cluster.kube import AUTOSCALERS, DEPLOYMENTS, MODEL_DEPLOYMENTS
from tonnage.control.input import sizing_cache
from tonnage.estimate.past import LABEL
from tonnage.estimate.speed import prompt_shape
from tonnage.fleet.lists import RELIST_S
from tonnage.fleet.past import PastReader
from tonnage.fleet.store import Kind

EACH = a_sizing().goodput_requests_per_s
FIRST_REPLICAS = first_replicas()
OBJECT = MODEL_DEPLOYMENTS.path("serving", "llama")
DECISION = "event=decision "
CALIBRATION = "/api/v1/namespaces/tonnage-system/configmaps/tonnage-calibration"


def failing_lists(verb, path):
    if verb == "list":
        raise KubernetesError("no", status=500)


def refusing(part):
    """Let nothing of these paths be written."""

    def fail(verb, path):
        if verb == "apply" and part in path:
            raise KubernetesError("forbidden", status=403)

    return fail


class TestFromNothing:
    def test_the_first_tick_makes_everything(self):
        world = a_world()

        done = tick(a_loop(world), world)

        assert done == [
            "apply deployments/llama",
            "patch deployments/llama/scale",
            "apply services/llama",
            "apply podmonitors/llama",
            "apply modeldeployments/llama/status",
            "create events",
        ]
        assert replicas_of(world) == FIRST_REPLICAS
        assert condition(world, "Reconciling") == ("True", "RollingOut")

    def test_the_second_tick_writes_nothing_more_than_what_it_sees(self):
        world = a_world()
        loop = a_loop(world)
        tick(loop, world)

        done = tick(loop, world)

        assert done in ([], ["apply modeldeployments/llama/status"])
        assert tick(loop, world) == []

    def test_a_usual_start_is_no_warning(self):
        world = a_world()
        loop = a_loop(world)
        tick(loop, world)
        world.serve(ready=False)
        for _ in range(8):  # weights are loaded
            tick(loop, world)
        pods = world.serve(ready_at_s=world.now_s)
        for _ in range(4):  # until the first scrape
            tick(loop, world)
        world.completions_per_s |= dict.fromkeys(pods, 0.9)
        for _ in range(20):
            tick(loop, world)

        told = [call.body["type"] for call in world.kube.writes if "/events" in call.path]
        assert condition(world, "Ready") == ("True", "MinimumReady")
        assert set(told) == {"Normal"}


class TestAtRest:
    def test_nothing_is_written(self):
        loop, world = served()

        assert [tick(loop, world) for _ in range(30)] == [[]] * 30
        assert condition(world, "Ready") == ("True", "MinimumReady")

    def test_nothing_is_left_for_the_garbage_collector(self):
        loop, world = served()
        tick(loop, world)
        gc.collect()

        tick(loop, world)

        assert gc.isenabled()
        assert gc.collect() == 0

    def test_nothing_is_written_after_a_restart_either(self):
        _, world = served()
        restarted = a_loop(world)
        restarted.start_leading()

        assert [tick(restarted, world) for _ in range(3)] == [[]] * 3

    def test_a_restart_says_nothing_of_a_window_in_which_nothing_could_go(self):
        scaling = {"minReplicas": 3, "maxReplicas": 8}
        loop, world = served(a_manifest(demand=None, scaling=scaling), load_per_pod=0.1)
        for _ in range(120):
            tick(loop, world)
        said = condition(world, "ScalingLimited"), status_of(world)["display"]["reason"]
        restarted = a_loop(world)
        restarted.start_leading()
        tick(restarted, world)

        assert said == (("True", "MinReplicas"), "MinReplicas")
        assert (condition(world, "ScalingLimited"), status_of(world)["display"]["reason"]) == said
        assert [tick(restarted, world) for _ in range(60)] == [[]] * 60

    def test_nothing_is_written_when_the_store_wakes_it_often(self):
        loop, world = served()

        assert [tick(loop, world, after_s=1) for _ in range(20)] == [[]] * 20


class TestBetweenAnswers:
    """A tick within 15 s of the last answers of Prometheus."""

    def changed(self, loop, world, name, *, after_s=1):
        """Write another spec, and tick; return what was written, and UIDs of what was decided."""
        body, before = world.kube.objects[MODEL_DEPLOYMENTS.path("serving", name)], loop.memory
        body["metadata"]["generation"] += 1
        body["spec"]["pods"] = {"cpu": f"{body['metadata']['generation']}m"}
        done = tick(loop, world, after_s=after_s)
        return done, {
            uid for uid, each in loop.memory.objects.items() if each is not before.objects[uid]
        }

    def test_what_changed_is_decided_and_the_rest_is_as_it_was(self):
        loop, world = served(a_manifest("a"), a_manifest("b"))

        done, decided = self.changed(loop, world, "a")

        assert "apply deployments/a" in done
        assert decided == {"uid-of-a"}

    def test_nothing_is_searched_again_for_the_rest(self, monkeypatch):
        monkeypatch.setattr(sizing_cache, "REMEMBERED", 0)
        loop, world = served(
            a_manifest("a"), a_manifest("b", slo={"timePerOutputToken": {"p95": "60ms"}})
        )
        before = loop.memory.answers

        self.changed(loop, world, "a")

        assert len(before) > 1
        assert before.keys() <= loop.memory.answers.keys()

    def test_all_are_decided_by_the_next_answers(self):
        loop, world = served(a_manifest("a"), a_manifest("b"))

        assert self.changed(loop, world, "a", after_s=15)[1] == {"uid-of-a", "uid-of-b"}

    def test_the_pace_is_that_of_ticks_that_decide_all(self):
        loop, world = served(a_manifest("a"), a_manifest("b"))
        before_s = world.now_s
        self.changed(loop, world, "a")
        between_s = loop.ticked_at_s[-1]
        tick(loop, world)

        assert (between_s, loop.ticked_at_s[-1]) == (before_s, world.now_s)

    def test_what_could_not_be_written_is_decided_again(self):
        loop, world = served(a_manifest("a"), a_manifest("b"))
        world.kube.fail = refusing("deployments/b")
        self.changed(loop, world, "b")

        assert self.changed(loop, world, "a")[1] == {"uid-of-a", "uid-of-b"}

    def test_a_decision_is_counted_once(self):
        loop, world = served(a_manifest("a"), a_manifest("b"))
        told = []
        loop.tell = told.append
        for pod in world.completions_per_s:
            world.completions_per_s[pod] = 1.6 * EACH
        tick(loop, world)
        self.changed(loop, world, "a")

        counts = [[each.key for each in told.objects if each.counts] for told in told]
        assert counts == [[("serving", "a"), ("serving", "b")], []]


class TestTraffic:
    def test_more_of_it_adds_replicas_in_one_step(self):
        loop, world = served()
        for pod in world.completions_per_s:
            world.completions_per_s[pod] = 1.6 * EACH

        done = tick(loop, world, after_s=60)

        assert "patch deployments/llama/scale" in done
        assert replicas_of(world) == math.ceil(1.6 * FIRST_REPLICAS)

    def test_less_of_it_takes_a_quarter_away_at_a_time_and_late(self):
        loop, world = served()
        for pod in world.completions_per_s:
            world.completions_per_s[pod] = 0.1
        tick(loop, world, after_s=60)  # all of the shortest window is past it
        numbers = []
        for _ in range(200):
            tick(loop, world)
            numbers.append(replicas_of(world))
            world.serve()

        window = 3 * 600 // 15  # its pods took 600 s to start
        assert numbers[: window - 1] == [FIRST_REPLICAS] * (window - 1)
        assert numbers[-1] == 1
        steps = {(before, before - after) for before, after in pairwise(numbers)}
        assert all(step in {0, math.ceil(before / 4)} for before, step in steps)

    def test_nothing_happens_while_prometheus_is_down(self):
        loop, world = served()
        world.completions_per_s = dict.fromkeys(world.completions_per_s, 0.0)
        world.is_down = True

        done = [write for _ in range(100) for write in tick(loop, world)]

        assert replicas_of(world) == FIRST_REPLICAS
        assert condition(world, "MetricsAvailable") == ("False", "PrometheusUnreachable")
        assert [write for write in done if "scale" in write] == []
        assert len(done) <= 4  # the status and an Event, not one in each tick

    def test_nothing_happens_while_half_of_the_pods_are_silent(self):
        loop, world = served()
        pods = sorted(world.completions_per_s)
        world.completions_per_s = dict.fromkeys(pods[:2], 0.01)

        for _ in range(60):
            tick(loop, world)

        assert replicas_of(world) == FIRST_REPLICAS

    def test_a_loss_of_pods_is_no_loss_of_demand(self):
        loop, world = served()
        alive = world.serve(replicas=1)
        world.completions_per_s = {alive[0]: 0.9 * EACH}

        for _ in range(19):  # less than a window
            tick(loop, world)

        assert replicas_of(world) == FIRST_REPLICAS


def in_use(world, *names):
    """GPUs that these Deployments ask for, two for each replica."""
    places = [DEPLOYMENTS.path("serving", name) for name in names]
    found = [world.kube.objects[place] for place in places if place in world.kube.objects]
    return sum(2 * each["spec"]["replicas"] for each in found)


class TestBudget:
    NAMES = ("a", "b", "c")

    def grown(self, max_gpus):
        world = a_world(*(a_manifest(name) for name in self.NAMES))
        loop = a_loop(world, max_gpus=max_gpus)
        for _ in range(3):
            tick(loop, world)
        return world

    @pytest.mark.parametrize("max_gpus", [1, 2, 3, 7, 8, 9, 20, 24, 100])
    def test_is_never_exceeded(self, max_gpus):
        assert in_use(self.grown(max_gpus), *self.NAMES) <= max_gpus

    def test_is_shared_in_order(self):
        planned = a_sizing().replicas
        world = self.grown(2 * planned + 2)

        assert [in_use(world, name) for name in self.NAMES] == [2 * planned, 2, 0]
        assert condition(world, "CapacityAvailable", "c") == ("False", "GPUBudget")

    def test_lowered_below_what_runs_takes_nothing_away(self):
        loop, world = served()
        loop.observer.settings = loop.settings.model_copy(update={"max_gpus": 2})

        tick(loop, world)

        assert replicas_of(world) == FIRST_REPLICAS

    def test_counts_what_an_invalid_object_still_runs(self):
        loop, world = served(a_manifest("a"), a_manifest("b"), max_gpus=16)
        broken = world.kube.objects[MODEL_DEPLOYMENTS.path("serving", "a")]
        broken["spec"]["scaling"] = {}
        for pod in world.completions_per_s:
            world.completions_per_s[pod] = 1.6 * EACH

        tick(loop, world)

        assert in_use(world, "a", "b") <= 16

    def test_a_passive_object_takes_nothing_from_the_others(self):
        passive = a_manifest("a", scaling={"mode": "Recommend", "maxReplicas": 8})
        world = a_world(passive, a_manifest("b"))

        tick(a_loop(world, max_gpus=8), world)

        assert in_use(world, "b") == 8


class TestTheList:
    def test_is_read_at_the_start_without_any_watch(self):
        world = a_world()
        loop = a_loop(world)

        loop.tick()

        assert replicas_of(world) == FIRST_REPLICAS

    def test_finds_what_the_watches_missed_within_five_minutes(self):
        loop, world = served()
        del world.kube.objects[OBJECT]

        world.now_s += RELIST_S
        found = loop.tick()

        assert found == ()

    def test_is_read_at_once_where_a_watch_begins_anew(self):
        loop, world = served()
        del world.kube.objects[OBJECT]

        loop.store.has_gap.set()
        found = loop.tick()

        assert found == ()
        assert not loop.store.has_gap.is_set()

    def test_finds_that_a_conflicting_autoscaler_is_gone(self):
        loop, world = served()
        place = AUTOSCALERS.path("serving", "other")
        target = {"scaleTargetRef": {"kind": "Deployment", "name": "llama"}}
        metadata = {"name": "other", "namespace": "serving"}
        body = world.kube.put(place, {"metadata": metadata, "spec": target})
        loop.store.note(Kind.AUTOSCALER, "ADDED", body)
        loop.tick()
        assert condition(world, "ScalingActive") == ("False", "ConflictingScaler")

        del world.kube.objects[place]  # and no watch says so
        world.now_s += RELIST_S
        loop.tick()

        assert condition(world, "ScalingActive") == ("True", "Scaling")

    def test_goes_on_beside_the_loop_once_it_was_done(self):
        loop, world = served()
        waiting = []
        loop.lists.work.start = waiting.append  # until the test does it
        asked = []
        world.kube.fail = lambda verb, path: asked.append(path) if verb == "list" else None
        world.now_s += RELIST_S

        loop.tick()
        assert (len(waiting), asked) == (1, [])
        loop.tick()
        assert len(waiting) == 1
        waiting.pop()()
        loop.tick()

        assert len(asked) == 5
        assert (loop.lists.checked_at_s, waiting) == (world.now_s, [])

    def test_that_failed_is_waited_for(self):
        loop, world = served()
        world.kube.fail = failing_lists
        world.now_s += RELIST_S

        for _ in range(2):
            with pytest.raises(KubernetesError):
                loop.tick()

    def test_stays_within_the_namespaces_that_are_served(self):
        world = a_world()
        asked = []
        world.kube.fail = lambda verb, path: asked.append(path) if verb == "list" else None

        a_loop(world, namespaces=("blue", "green")).tick()

        assert all("/namespaces/blue/" in path or "/namespaces/green/" in path for path in asked)
        assert len(asked) == 10

    def test_leaves_out_a_namespace_that_may_not_be_read_and_names_it(self, caplog):
        manifests = [a_manifest(), a_manifest("other", namespace="gone")]
        world, loop = a_world(), None
        for each in manifests:
            namespace, name = each["metadata"]["namespace"], each["metadata"]["name"]
            world.kube.put(MODEL_DEPLOYMENTS.path(namespace, name), each)
        loop = a_loop(world, namespaces=("gone", "serving"))
        loop.store.note(Kind.MODEL, "ADDED", manifests[1])

        def fail(verb, path):
            if verb == "list" and "/namespaces/gone/" in path:
                raise KubernetesError("403 forbidden", status=403)

        world.kube.fail = fail
        found = {each.state.view.key: each for each in loop.tick()}

        assert replicas_of(world) == FIRST_REPLICAS
        assert found["gone", "other"].refusal.code == "NamespaceUnreadable"
        assert "namespace=gone" in caplog.text

        world.kube.fail = lambda verb, path: None
        world.now_s += RELIST_S
        found = {each.state.view.key: each for each in loop.tick()}
        assert found["gone", "other"].refusal is None

    @pytest.mark.parametrize(
        ("namespaces", "status"), [((), 403), (("serving",), 403), (("serving", "other"), 500)]
    )
    def test_that_cannot_be_read_at_all_ends_the_tick(self, namespaces, status):
        world = a_world()

        def fail(verb, path):
            if verb == "list" and "/other/" not in path:
                raise KubernetesError("no", status=status)

        world.kube.fail = fail
        with pytest.raises(KubernetesError):
            a_loop(world, namespaces=namespaces).tick()


def busy_figures(*, slower):
    """What an engine reports of which each part of a step takes so many times what is believed."""
    sizing = a_sizing()
    model = sizing.replica.model
    samples = samples_of(
        replace(model, constants=slowed(model.constants, slower)),
        flags=sizing.flags,
        prompts=prompt_shape(sizing.request.workload, max_batched_tokens=8192),
        context_tokens=sizing.request.workload.mean_context_tokens,
        decoding=20,
        prompts_per_s=2,
    )
    return {
        "token_gaps": samples.busy.token_gaps_per_s,
        "token_gap_s": samples.busy.token_gap_s_per_s,
    }


class TestCalibration:
    def test_is_written_when_a_constant_moved_and_at_most_once_a_minute(self):
        loop, world = served()
        state = json.loads(world.kube.objects[CALIBRATION]["data"]["calibration.json"])
        assert (state["speed"], state["memory"]) == ({}, {})
        world.kv_tokens = 600_000
        world.figures = {"llama-0": busy_figures(slower=1.1)}

        done = [tick(loop, world) for _ in range(120)]

        written = [number for number, each in enumerate(done) if "configmaps" in str(each)]
        assert written
        assert all(after - before >= 60 // 15 for before, after in pairwise(written))
        state = json.loads(world.kube.objects[CALIBRATION]["data"]["calibration.json"])
        [entry] = state["speed"]["serving"].values()
        # Two prompts of 4,000 tokens in each second: most of a step is theirs.
        prior = a_sizing().request.speed.prefill_efficiency
        # Figures that never move are heard every ten minutes only, once they were ten times.
        assert entry["prefill_efficiency"] == pytest.approx(prior / 1.1, rel=0.05)
        assert entry["num_windows"] > 8
        assert [entry["kv_tokens"] for entry in state["memory"]["serving"].values()] == [600_000]

    def test_is_taken_up_by_the_next_leader(self):
        loop, world = served()
        world.kv_tokens = 600_000
        for _ in range(9):  # two minutes, after which the status shows it
            tick(loop, world)

        restarted = a_loop(world)
        restarted.start_leading()

        [entry] = restarted.memory.calibrations.memory.values()
        assert entry.kv_tokens == 600_000
        assert tick(restarted, world) == []

    def test_of_the_last_minute_is_kept_at_the_end_by_who_leads(self):
        for leads in (True, False):
            loop, world = served()
            world.kv_tokens = 600_000
            tick(loop, world)
            before = copy.deepcopy(world.kube.objects[CALIBRATION])
            world.kv_tokens = 400_000
            assert tick(loop, world) == []
            world.leads = leads

            loop.end()

            assert (world.kube.objects[CALIBRATION] != before) is leads
            restarted = a_loop(world)
            restarted.start_leading()
            [entry] = restarted.memory.calibrations.memory.values()
            assert entry.kv_tokens == (400_000 if leads else 600_000)

    def test_that_did_not_move_is_not_written_at_the_end(self):
        loop, world = served()
        world.kv_tokens = 600_000
        tick(loop, world)
        before = len(world.kube.writes)

        loop.end()

        assert len(world.kube.writes) == before

    def test_that_cannot_be_read_is_left_aside(self):
        world = a_world()
        world.kube.put(CALIBRATION, {"metadata": {}, "data": {"calibration.json": "{"}})
        loop = a_loop(world)

        loop.start_leading()

        assert loop.memory.calibrations.speed == {}


class TestWhatIsStored:
    def test_a_state_of_a_later_version_is_told_on_every_object(self):
        _, world = served()
        assert condition(world, "CalibrationStored") == ("True", "Stored")
        later = {"calibration.json": json.dumps({"version": 99})}
        world.kube.put(CALIBRATION, {"data": later, "metadata": {"name": "tonnage-calibration"}})
        restarted = a_loop(world)
        restarted.start_leading()

        tick(restarted, world)

        assert condition(world, "CalibrationStored") == ("False", "NewerVersion")


class Past:
    """What Prometheus has of before: as many requests/s for all of it, all in time."""

    def __init__(self, requests_per_s, *, since_s=0.0):
        self.requests_per_s, self.since_s = requests_per_s, since_s

    def __call__(self, _, text, steps):
        first = max(0, math.ceil((self.since_s - steps.from_s) / steps.step_s))
        bounds = [{"le": "2.0"}, {"le": "+Inf"}] if "increase" in text else [{}]
        value = self.requests_per_s * (steps.step_s if "increase" in text else 1)
        values = dict.fromkeys(range(first, steps.number), value)
        return [({LABEL: "llama", **each}, values) for each in bounds]


class TestHistory:
    SLO: ClassVar = {"timeToFirstToken": {"p95": "2s"}}

    def lived(self, loop, world, *, hours, load):
        """Let hours pass at so many times what a replica sustains; return what was stored."""
        done = []
        for _ in range(round(60 * hours)):
            pods = world.serve()
            world.completions_per_s = dict.fromkeys(pods, load * EACH / len(pods))
            done += tick(loop, world, after_s=60)
        return [each for each in done if "tonnage-calibration" in each]

    def at_rest(self, **spec):
        manifest = a_manifest(**spec)
        manifest["metadata"]["creationTimestamp"] = "2025-01-01T00:00:00Z"
        return served(manifest, load_per_pod=EACH / FIRST_REPLICAS)

    def restarted(self, world, ask):
        loop = a_loop(world)
        loop.past = PastReader(ask=ask, settings=loop.settings)
        loop.start_leading()
        return loop

    def history(self, loop):
        [known] = loop.memory.objects.values()
        return known.demand.history

    def test_of_a_load_that_stays_is_stored_when_headroom_is_known_to_be_needless(self):
        loop, world = self.at_rest()

        assert len(self.lived(loop, world, hours=3, load=1)) <= 2
        assert self.lived(loop, world, hours=2, load=1) == []
        assert len(self.history(loop).pattern) > 3 * 6

    def test_of_the_week_comes_from_prometheus_at_the_start(self):
        loop, world = self.at_rest()
        self.lived(loop, world, hours=1, load=1)
        known = self.history(loop).kept.rises
        loop.end()
        restarted = self.restarted(world, Past(2 * EACH))

        tick(restarted, world)

        pattern = self.history(restarted).pattern
        assert len(pattern) >= 8 * 144
        assert pattern[min(pattern)][0] == pytest.approx(2, rel=0.2)
        assert self.history(restarted).kept.rises == pytest.approx(known, rel=0.05)
        assert restarted.past.found == {}

    def test_is_learned_anew_where_prometheus_has_none(self):
        _, world = self.at_rest(slo=self.SLO)
        restarted = self.restarted(world, lambda *_: [])

        self.lived(restarted, world, hours=1 / 60, load=1)

        assert len(self.history(restarted).pattern) == 1
        assert condition(world, "ErrorBudget") == ("Unknown", "CountedInPart")

    def test_that_cannot_be_read_costs_no_tick(self):
        _, world = self.at_rest()

        def ask(*_):
            raise PrometheusError("too large", reason="ResponseTooLarge")

        restarted = self.restarted(world, ask)

        assert not any("scale" in each for each in tick(restarted, world))
        assert self.history(restarted).pattern


class TestApproval:
    def test_is_asked_for_once_and_followed_when_it_comes(self):
        scaling = {"mode": "Approve", "minReplicas": 1, "maxReplicas": 8}
        loop, world = served(a_manifest(scaling=scaling))
        status = world.kube.objects[OBJECT]["status"]
        changed = a_manifest(scaling=scaling, contextLength=16_384, generation=2)
        world.kube.put(OBJECT, changed | {"status": status})

        asked = tick(loop, world)
        waiting = [tick(loop, world, after_s=60) for _ in range(3)]
        [proposal] = status_of(world)["proposals"]
        approved = world.kube.objects[OBJECT]
        approved["metadata"]["annotations"] = {"tonnage.dev/approve": proposal["digest"]}
        world.kube.put(OBJECT, approved)
        followed = tick(loop, world)

        assert asked == ["apply modeldeployments/llama/status", "create events"]
        assert waiting == [[], [], []]
        assert followed[:2] == [
            "apply modeldeployments/llama/status",  # says so first
            "apply deployments/llama",
        ]


class TestWhatIsTold:
    def decisions(self, caplog):
        return [each.msg.fields for each in caplog.records if str(each.msg).startswith(DECISION)]

    def test_a_decision_is_one_line_however_long_it_takes(self, caplog):
        caplog.set_level(logging.INFO, logger="tonnage.loop")
        world = a_world()
        world.kube.fail = refusing("/deployments/")
        loop = a_loop(world)

        for _ in range(5):
            tick(loop, world)

        [said] = self.decisions(caplog)
        assert (said["object"], said["replicas"], said["wanted"]) == (
            "serving/llama", 0, FIRST_REPLICAS,
        )  # fmt: skip
        assert (said["mode"], said["acts"], said["reason"]) == ("Auto", True, "Headroom")
        assert f"need {FIRST_REPLICAS}" in said["message"]

    def test_many_that_go_blind_at_once_are_one_line_and_their_return_another(self, caplog):
        caplog.set_level(logging.INFO, logger="tonnage.loop")
        names = [f"m{number}" for number in range(4)]
        world = a_world(*map(a_manifest, names))
        loop = a_loop(world)
        tick(loop, world)
        seen = dict.fromkeys([pod for name in names for pod in world.serve(name)], 2.0)
        blind = {pod: rate for pod, rate in seen.items() if pod.startswith("m0-")}
        for world.completions_per_s in (seen, blind, blind, seen):
            tick(loop, world, after_s=60)

        told = [each.msg for each in caplog.records if str(each.msg).startswith('event="scaling ')]
        assert [each.event for each in told] == ["scaling stopped", "scaling goes on"]
        assert {each.fields["namespace"] for each in told} == {"serving"}
        assert told[0].fields["message"].startswith("3 of 4 objects lost their metrics")

    def test_every_step_of_a_tick_is_measured(self):
        world, steps = a_world(), []
        loop = a_loop(world)
        loop.step = lambda name: nullcontext(steps.append(name))

        tick(loop, world)

        assert steps == ["relist", "ask", "observe", "decide", "act", "keep", "tell"]

    def test_a_tick_tells_the_series_of_its_objects(self):
        world, told = a_world(a_manifest("a"), a_manifest("b")), []
        loop = a_loop(world, metrics_objects=1)
        loop.tell = told.append

        tick(loop, world)

        [series] = told
        assert [each.key for each in series.objects] == [("serving", "a")]
        assert (series.num_objects, series.num_left_out) == (2, 1)

    def test_a_bug_in_telling_ends_no_tick(self, caplog):
        world = a_world()
        loop = a_loop(world)

        def fail(_):
            raise RuntimeError("a bug")

        loop.tell = fail
        tick(loop, world)

        assert replicas_of(world) == FIRST_REPLICAS
        assert "RuntimeError: a bug" in caplog.text
