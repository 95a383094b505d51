"""What runs is scaled on by the spec that it was made from, where the spec of today is refused."""

import pytest

from fleet_builders import (
    NOW_S,
    a_deployment_body,
    a_fleet,
    a_manifest,
    a_memory,
    a_model,
    a_sizing,
    a_state,
    assess,
    assessed,
    managed_by,
    no_config,
    remembering,
)
from tonnage.control.decide.budget import growth_gpus
from tonnage.control.input.memory import Memory
from tonnage.control.input.sizing_cache import SizingCache
from tonnage.control.learn.believed import observation
from tonnage.control.report.conditions import conditions
from tonnage.control.report.status import report
from tonnage.control.size.question import as_it_runs
from tonnage.control.tick import tick, with_results
from tonnage.control.write.writes import writes_for
from tonnage.sizing.errors import SearchAbandonedError

UNKNOWN_GPU = {"hardware": {"gpu": "H900"}}
WIDER = {"hardware": {"gpu": "H200", "gpusPerReplica": 4}}
SIZING = a_sizing()
"""Two GPUs for each replica."""
CLAIMED = {"pods": {"modelCacheClaim": "weights"}}
MADE_WITH = a_deployment_body(a_model(**CLAIMED), sizing=SIZING)
SHARED, OF_A_NODE = ("ReadWriteMany",), ("ReadWriteOnce",)


def a_refused(spec=None, *, load=2.3, replicas=2, live=None, **changes):
    spec = {"scaling": {}} | (spec or UNKNOWN_GPU)
    spec["scaling"] = {"minReplicas": 1, "maxReplicas": 8} | spec["scaling"]
    manifest = a_manifest(generation=2, **spec)
    live = live or a_deployment_body(sizing=SIZING, replicas=replicas)
    return a_state(manifest, live=live, load=load, replicas=replicas, **changes)


def carried_out(state, **settings):
    """(writes, {condition: (status, reason)}) of one look at an object."""
    fleet = a_fleet(state, settings=settings)
    found = assessed(state, fleet=fleet)
    told = conditions(found, fleet, now="2026-01-02T00:00:00Z")
    writes = writes_for(found, report(found, fleet), fleet)[0]
    return writes, {each.type: (each.status, each.reason) for each in told}


class TestASpecThatIsRefused:
    def test_keeps_nothing_that_runs_from_growing(self):
        writes, told = carried_out(a_refused())

        assert (writes.scale.seen, writes.scale.replicas) == (2, 3)
        assert told["ScalingActive"] == ("True", "ScalingWhatRuns")

    def test_is_told_as_before_and_changes_neither_pods_nor_children(self):
        writes, told = carried_out(a_refused())

        assert (writes.template, writes.check_children) == (None, False)
        assert told["PlanValid"] == ("False", "UnknownGpu")
        assert told["Stalled"] == ("True", "UnknownGpu")
        assert told["Ready"] == ("False", "UnknownGpu")

    def test_counts_with_the_bounds_of_today(self):
        writes, _ = carried_out(a_refused({**UNKNOWN_GPU, "scaling": {"maxReplicas": 3}}, load=5))

        assert writes.scale.replicas == 3

    def test_writes_nothing_where_only_status_is_wanted(self):
        writes, told = carried_out(a_refused({**UNKNOWN_GPU, "scaling": {"mode": "Recommend"}}))

        assert writes.scale is None
        assert told["ScalingActive"] == ("False", "PlanInvalid")

    def test_scales_nothing_that_the_chart_gives_no_right_to(self):
        writes, told = carried_out(a_refused(), mode="scaleOnly")

        assert writes.scale is None
        assert told["PlanValid"] == ("False", "UnknownGpu")
        assert told["ScalingActive"] == ("False", "PlanInvalid")

    def test_shows_no_plan_and_teaches_nothing(self):
        found = assessed(a_refused())

        assert report(found, a_fleet(found.state)).status.plan is None
        assert found.observed.pods
        assert observation(found) is None

    @pytest.mark.parametrize("made_from", [None, "", "{}", "[]", '{"model": 3}'])
    def test_scales_nothing_of_which_nobody_wrote_down_what_it_is(self, made_from):
        body = a_deployment_body(sizing=SIZING)
        annotations = body["metadata"]["annotations"]
        annotations.pop("tonnage.dev/spec")
        annotations |= {} if made_from is None else {"tonnage.dev/spec": made_from}

        writes, told = carried_out(a_refused(live=body))

        assert writes.scale is None
        assert told["ScalingActive"] == ("False", "PlanInvalid")

    def test_scales_no_deployment_of_another_by_what_that_was_made_from(self):
        theirs = a_deployment_body(a_model("other"), sizing=SIZING)
        target = {"engine": None, "scaleTarget": {"name": "other"}}

        assert carried_out(a_refused(target, live=theirs))[0].scale is None

    def test_scales_nothing_where_somebody_else_has_the_name(self):
        foreign = a_deployment_body(sizing=SIZING, ownerReferences=[])

        writes, told = carried_out(a_refused(live=foreign))

        assert writes.scale is None
        assert told["PlanValid"] == ("False", "NameConflict")


class TestWhatSomebodyMadeOfTheTemplate:
    def test_are_flags_that_what_runs_is_sized_by(self):
        body = a_deployment_body(sizing=SIZING, managedFields=managed_by("kubectl", "f:template"))
        arguments = body["spec"]["template"]["spec"]["containers"][0]["args"]
        arguments[arguments.index("--max-num-seqs") + 1] = "4"

        found = assessed(a_refused(live=body))

        assert found.template is None
        assert found.sizing.flags.max_num_seqs == 4

    def test_are_gpus_that_its_replicas_take_of_the_budget(self):
        body = a_deployment_body(sizing=SIZING)
        container = body["spec"]["template"]["spec"]["containers"][0]
        container["resources"]["limits"]["nvidia.com/gpu"] = "8"

        found = assessed(a_refused(live=body, load=5), free_gpus=8)

        assert (found.decision.replicas, found.decision.limited_by) == (3, "GPUBudget")
        assert growth_gpus(found, a_fleet(found.state)) == 8


def spent():
    raise SearchAbandonedError("no time is left")


class TestASearchForWhatRuns:
    def test_keeps_the_refusal_and_its_turn(self):
        asker = SizingCache(on_search=spent)
        state = a_refused()

        found = assess(state, a_fleet(state), a_memory(state), free_gpus=None, asker=asker)

        assert (found.refusal.code, found.decision) == ("UnknownGpu", None)
        assert found.memory.sizing.waiting_since_s == NOW_S

    def test_keeps_its_turn_while_the_budget_refuses(self):
        state = a_refused(WIDER)
        fleet, known = a_fleet(state), SizingCache()
        generation = state.view.generation
        waited = remembering(
            a_memory(state), waiting_since_s=NOW_S - 60, waiting_generation=generation
        )
        assert assess(state, fleet, waited, free_gpus=99, asker=known).template

        asker = SizingCache(known.all_answers, on_search=spent)
        found = assess(state, fleet, waited, free_gpus=0, asker=asker)

        assert (found.refusal.code, found.decision) == ("GPUBudget", None)
        assert found.memory.sizing.waiting_since_s == NOW_S - 60


class TestAsItRuns:
    def test_is_the_model_of_before_with_what_is_asked_of_it_today(self):
        slo = {"timePerOutputToken": {"p95": "70ms"}}

        running = as_it_runs(a_refused({**UNKNOWN_GPU, "slo": slo})).model

        assert running.spec.hardware == a_model().spec.hardware
        assert running.spec.slo.time_per_output_token.p95 == "70ms"

    def test_needs_no_config_and_no_claim_that_came_with_the_spec_of_today(self):
        claimed = {"pods": {"modelCacheClaim": "weights"}, **UNKNOWN_GPU}
        state = a_refused(
            claimed, model_config=no_config("no such ConfigMap"), claim_modes=OF_A_NODE
        )

        running = as_it_runs(state)

        assert (running.model_config, running.claim_modes) == (None, None)

    def test_has_the_claim_that_stays(self):
        running = as_it_runs(a_refused(CLAIMED | UNKNOWN_GPU, live=MADE_WITH, claim_modes=SHARED))

        assert running.claim_modes == SHARED

    def test_is_not_known_of_a_claim_that_the_spec_of_today_does_not_name(self):
        other = {"pods": {"modelCacheClaim": "shared"}} | UNKNOWN_GPU

        assert as_it_runs(a_refused(other, live=MADE_WITH, claim_modes=SHARED)) is None


class Waiting:
    """Six replicas of two GPUs each; the spec asks for four each, of the twelve that there are."""

    def __init__(self, load):
        self.load, self.replicas, self.memory = load, 6, Memory()
        self.now_s, self.revision = a_fleet().now_s, 3

    def tick(self):
        self.now_s, self.revision = self.now_s + 60, self.revision + 1
        scaling = {"minReplicas": 1, "maxReplicas": 8}
        manifest = a_manifest(generation=2, scaling=scaling, **WIDER)
        body = a_deployment_body(sizing=SIZING, replicas=self.replicas, generation=self.revision)
        state = a_state(manifest, live=body, replicas=self.replicas, load=self.load)
        fleet = a_fleet(state, now_s=self.now_s, settings={"max_gpus": 12})
        outcome = tick(fleet, self.memory)
        self.memory = with_results(outcome, {}, before=self.memory, now_s=self.now_s)
        [writes] = outcome.writes
        if writes.scale:
            self.replicas = writes.scale.replicas
        return writes

    def said(self, kind):
        found = self.memory.objects["uid-of-llama"].reported.conditions[kind]
        return found.status, found.reason


class TestASpecThatTheBudgetHasNoRoomFor:
    def test_waits_until_the_load_leaves_room_and_is_then_carried_out(self):
        story = Waiting(load=0.5)

        ticks = [story.tick() for _ in range(120)]

        at = next(number for number, writes in enumerate(ticks) if writes.template)
        assert all(writes.template is None for writes in ticks[:at])
        assert story.replicas * 2 <= 12 - story.replicas * 2  # the wider ones fit beside

    def test_waits_for_as_long_as_the_load_needs_what_runs(self):
        story = Waiting(load=5.5)

        ticks = [story.tick() for _ in range(120)]

        assert story.replicas == 6
        assert not any(writes.template for writes in ticks)
        assert story.said("PlanValid") == ("False", "GPUBudget")
        assert story.said("ScalingActive") == ("True", "ScalingWhatRuns")

    def test_asks_with_the_same_speed_from_tick_to_tick(self):
        story = Waiting(load=5.5)

        story.tick()
        since_s = story.memory.objects["uid-of-llama"].sizing.asked_speed.since_s
        story.tick()

        assert story.memory.objects["uid-of-llama"].sizing.asked_speed.since_s == since_s
