"""A better max-num-seqs is taken when it is worth a restart, and not before it is time."""

from dataclasses import replace

import pytest

from fleet_builders import (
    NOW_S,
    a_deployment_body,
    a_fleet,
    a_manifest,
    a_memory,
    a_state,
    assessed,
    failures,
    remembering,
)
from tonnage.api.pods import Pods
from tonnage.control.assess import concluded
from tonnage.control.decide.budget import RemainingBudget
from tonnage.control.decide.rollout import (
    EVERYWHERE,
    STABLE_S,
    is_rolling,
    reach,
    without_rollout,
)
from tonnage.control.decide.template import roll_written
from tonnage.control.input.memory import FlagSearchResult, Memory, RolloutProgress
from tonnage.control.input.writers import WriteKind
from tonnage.control.tick import tick
from tonnage.estimate.calibration import Calibrations
from tonnage.estimate.posterior import ObjectPosterior
from tonnage.manifests.children import flags_from_annotation
from tonnage.manifests.names import FLAGS_ANNOTATION
from tonnage.policy.situation import Metrics

STOOD = {"better_since_s": NOW_S - STABLE_S}


def moved(at_s):
    return {"posterior": ObjectPosterior(slots_moved_at_s=at_s)}


def an_object(*, gain=0.2, slots=50, running=None, memory=None, mode="Auto", **changes):
    """Two replicas, calm, for which so many slots would serve so much more than those that run."""
    found = assessed(
        a_state(a_manifest(scaling={"mode": mode, "maxReplicas": 8}), load=2, **changes)
    )
    sizing = found.chosen.sizing
    flags = sizing.flags if running is None else replace(sizing.flags, max_num_seqs=running)
    sizing = replace(sizing, flags=flags)
    better = replace(
        sizing,
        flags=replace(flags, max_num_seqs=slots),
        goodput=replace(sizing.goodput, requests_per_s=(1 + gain) * sizing.goodput.requests_per_s),
    )
    held = found.chosen.belief.asked
    asked = FlagSearchResult(at_s=NOW_S, flags=flags, asked=held, sizing=better)
    return replace(
        found,
        chosen=replace(found.chosen, sizing=sizing, better_asked=asked),
        decision=replace(found.decision, replicas=2),
        memory=remembering(found.memory, **(STOOD if memory is None else memory)),
    )


def with_budget(found, tokens):
    """Return an object whose better flags have so many tokens in a step, too."""
    asked = found.chosen.better_asked
    flags = replace(asked.sizing.flags, max_num_batched_tokens=tokens)
    asked = replace(asked, sizing=replace(asked.sizing, flags=flags))
    return replace(found, chosen=replace(found.chosen, better_asked=asked))


def rolled(found, *, free_gpus=None, is_rolling=False, **settings):
    fleet = a_fleet(found.state, settings=settings)
    left = RemainingBudget(gpus=free_gpus, is_rolling=is_rolling)
    return concluded(found, found.chosen, found.decision, fleet, left)


def said(found):
    [message] = [each.message for each in found.decision.notes if each.code == "MaxNumSeqs"]
    return message


class TestARollout:
    def test_takes_the_flags_that_gain_and_says_so(self):
        found = rolled(an_object())

        flags = flags_from_annotation(found.template["metadata"]["annotations"][FLAGS_ANNOTATION])
        assert flags.max_num_seqs == found.sizing.flags.max_num_seqs == 50
        assert "max-num-seqs 50 serves 20% more per replica" in said(found)
        assert said(found).endswith("engines are replaced one by one")
        assert found.memory.decided.better_since_s is None
        assert found.memory.posterior.slots_moved_at_s == NOW_S

    def test_takes_the_token_budget_that_gains_with_the_slots(self):
        found = rolled(with_budget(an_object(), 1024))

        flags = flags_from_annotation(found.template["metadata"]["annotations"][FLAGS_ANNOTATION])
        assert flags.max_num_batched_tokens == 1024
        assert "max-num-seqs 50 and max-num-batched-tokens 1024 serves 20% more" in said(found)
        assert "max-num-batched-tokens 8192 that run" in said(found)

    def test_begins_to_wait_when_the_gain_is_first_seen(self):
        found = rolled(an_object(memory={}))

        assert found.template is None
        assert found.memory.decided.better_since_s == NOW_S
        assert "the gain must last 30.0 min first" in said(found)

    def test_forgets_a_gain_that_went(self):
        found = rolled(an_object(gain=0.09))

        assert found.template is None
        assert found.memory.decided.better_since_s is None

    def test_is_not_for_a_small_gain_unless_no_rate_keeps_the_slo(self):
        small = an_object(gain=0.01)
        hopeless = replace(small, chosen=replace(small.chosen, problem="no rate keeps the SLO"))

        assert rolled(small).template is None
        assert rolled(hopeless).template is not None

    def test_waits_for_approval_in_mode_approve(self):
        found = rolled(an_object(mode="Approve"))
        [proposal] = found.proposals

        assert found.template is None
        assert "--max-num-seqs" in proposal.message
        assert said(found).endswith("not yet: it waits for approval")

    def test_is_begun_once_it_is_approved(self):
        asked = an_object(mode="Approve")
        [proposal] = rolled(asked).proposals
        view = replace(asked.state.view, approve=proposal.digest)

        found = rolled(replace(asked, state=replace(asked.state, view=view)))

        assert found.template is not None
        assert found.proposals == ()

    def test_stays_approved_when_another_number_turns_out_better(self):
        asked = an_object(mode="Approve")
        [proposal] = rolled(asked).proposals
        view = replace(asked.state.view, approve=proposal.digest)
        later = an_object(mode="Approve", slots=52)

        found = rolled(replace(later, state=replace(later.state, view=view)))

        flags = flags_from_annotation(found.template["metadata"]["annotations"][FLAGS_ANNOTATION])
        assert flags.max_num_seqs == 52

    def test_that_was_approved_once_approves_no_second_one(self):
        first = an_object(mode="Approve")
        [proposal] = rolled(first).proposals
        second = an_object(mode="Approve", running=50, slots=60)
        view = replace(second.state.view, approve=proposal.digest)

        found = rolled(replace(second, state=replace(second.state, view=view)))

        assert found.template is None
        assert found.proposals[0].digest != proposal.digest

    def test_is_not_proposed_before_its_gain_has_stood(self):
        found = rolled(an_object(mode="Approve", memory={}))

        assert found.proposals == ()

    def test_is_rare(self):
        recent = an_object(memory=STOOD | moved(NOW_S - 3600))
        old = an_object(memory=STOOD | moved(NOW_S - 6 * 3600))

        assert rolled(recent).template is None
        assert "the last such rollout was less than 360.0 min ago" in said(rolled(recent))
        assert rolled(old).template is not None

    def test_waits_for_another_one_in_the_fleet(self):
        found = rolled(an_object(), is_rolling=True)

        assert found.template is None
        assert "another rollout is in progress" in said(found)

    @pytest.mark.parametrize(
        ("replicas", "surge", "goes"), [(1, 1, True), (1, 0, False), (2, 0, True)]
    )
    def test_never_takes_the_only_replica_away_first(self, replicas, surge, goes):
        live = a_deployment_body(replicas=replicas)
        found = an_object(live=live)
        spec = found.chosen.model.spec.model_copy(update={"pods": Pods(max_surge=surge)})
        model = replace(found.chosen.model, spec=spec)
        decision = replace(found.decision, replicas=replicas)
        found = rolled(replace(found, chosen=replace(found.chosen, model=model), decision=decision))

        assert (found.template is not None) is goes
        assert ("pods.maxSurge 0 would remove the only replica" in said(found)) is not goes

    def test_needs_the_gpus_that_somebody_took_off_the_pods_that_run(self):
        live = a_deployment_body(replicas=2)
        container = live["spec"]["template"]["spec"]["containers"][0]
        container["resources"]["limits"]["nvidia.com/gpu"] = "1"
        kept = replace(an_object(live=live), template=None, changes=())  # by the budget
        found = rolled(kept, free_gpus=1)

        assert found.template is None
        assert "need 2 GPUs more than the GPU budget has free" in said(found)

    def test_needs_no_gpus_where_a_pod_goes_before_its_successor_comes(self):
        found = an_object()
        spec = found.chosen.model.spec.model_copy(update={"pods": Pods(max_surge=0)})
        model = replace(found.chosen.model, spec=spec)
        found = rolled(replace(found, chosen=replace(found.chosen, model=model)), free_gpus=0)

        assert found.template is not None

    @pytest.mark.parametrize(("free_gpus", "goes"), [(None, True), (2, True), (1, False)])
    def test_needs_gpus_for_the_pod_that_comes_first(self, free_gpus, goes):
        found = rolled(an_object(), free_gpus=free_gpus)

        assert (found.template is not None) is goes
        assert goes or "needs 2 GPUs, the GPU budget has 1 free" in said(found)

    def test_waits_while_demand_grows(self):
        calm = an_object()
        growing = replace(calm, decision=replace(calm.decision, replicas=3))
        overloaded = replace(
            calm,
            memory=replace(
                calm.memory, goodput=replace(calm.memory.goodput, overloaded_at_s=NOW_S - 60)
            ),
        )

        assert rolled(growing).template is None
        assert rolled(overloaded).template is None
        assert "demand grows" in said(rolled(growing))

    def test_waits_while_another_writer_keeps_the_replicas_below_the_need(self):
        found = an_object()
        replicas = replace(found.memory.writers.replicas, edit="argo wrote 2", in_backoff=True)
        writers = replace(found.memory.writers, replicas=replicas)
        left = replace(found, memory=replace(found.memory, writers=writers))

        assert rolled(found).template is not None
        assert "not yet: demand grows" in said(rolled(left))

    @pytest.mark.parametrize("kind", [WriteKind.TEMPLATE, WriteKind.STATUS])
    def test_waits_until_a_write_that_failed_is_tried_again(self, kind):
        waiting = an_object(memory=STOOD | {"failures": failures(kind)})
        due = an_object(memory=STOOD | {"failures": failures(kind, at_s=NOW_S)})

        assert "not yet: the last write of the object failed" in said(rolled(waiting))
        assert rolled(waiting).memory.posterior.slots_moved_at_s is None
        assert rolled(due).template is not None

    def test_waits_for_data(self):
        calm = an_object()
        blind = replace(calm, traffics=replace(calm.traffics, metrics=Metrics.MISSING))

        assert rolled(blind).template is None

    @pytest.mark.parametrize("mode", ["Recommend", "Paused"])
    def test_is_for_nobody_else_to_decide(self, mode):
        assert rolled(an_object(mode=mode)).template is None
        assert rolled(an_object(), mode="scaleOnly").template is None

    def test_is_none_where_nothing_gains(self):
        found = assessed(a_state(load=2))

        assert rolled(found).template is None


def replacing(*, updated=1, ready=2, replicas=2, image="a", **status):
    """A Deployment of which so many pods are of the newest template."""
    body = a_deployment_body(replicas=replicas)
    body["spec"]["template"]["spec"]["containers"][0]["image"] = image
    body["status"] |= {"updatedReplicas": updated, "readyReplicas": ready, **status}
    return a_state(replicas=replicas, live=body)


@pytest.mark.parametrize(("num_nodes", "pods"), [(1, "2 pods are"), (2, "2 groups are")])
def test_a_roll_names_groups_where_a_replica_has_several_nodes(num_nodes, pods):
    live = replace(a_state().deployment, num_nodes=num_nodes)

    assert roll_written(live, ()).startswith(f"{pods} replaced")


class TestRolling:
    """Pods start in 300 s and a tick, so three starts are less than the half hour."""

    def counts(self, *looks, cold_start_s=285):
        """Whether a rollout that was looked at so, (seconds, state) each, keeps others waiting."""
        posterior = ObjectPosterior(cold_start_s=cold_start_s, num_starts=9)
        memory = a_memory(looks[0][1], posterior=posterior)
        counted = []
        for at_s, state in looks:
            fleet = a_fleet(state, now_s=NOW_S + at_s)
            found = assessed(state, memory=memory, fleet=fleet)
            memory = found.memory
            counted.append(is_rolling(found, fleet))
        return counted

    def test_is_true_while_pods_of_an_older_template_are_there(self):
        assert self.counts((0, replacing()), (60, a_state())) == [True, False]

    def test_ends_without_progress_for_half_an_hour(self):
        stuck = replacing()

        assert self.counts((0, stuck), (1785, stuck), (1800, stuck)) == [True, True, False]

    def test_goes_on_for_three_starts_where_they_are_slow(self):
        stuck = replacing()

        # 985 s and a tick of 15 s.
        assert self.counts((0, stuck), (2985, stuck), cold_start_s=985) == [True, True]
        assert self.counts((0, stuck), (3000, stuck), cold_start_s=985) == [True, False]

    def test_counts_from_the_last_pod_that_came(self):
        first = replacing(replicas=4, updated=1, ready=4)
        more = replacing(replicas=4, updated=2, ready=4)

        looks = ((0, first), (1500, more), (3285, more), (3300, more))
        assert self.counts(*looks) == [True, True, True, False]

    def test_is_not_kept_up_by_a_pod_that_comes_and_goes(self):
        without, with_it = replacing(ready=1), replacing(ready=2)

        looks = [(at_s, with_it if at_s % 600 == 0 else without) for at_s in range(0, 2400, 300)]
        assert self.counts(*looks) == [True] * 6 + [False] * 2

    def test_begins_anew_for_another_template(self):
        looks = ((0, replacing()), (1800, replacing(image="b")), (3600, replacing(image="b")))

        assert self.counts(*looks) == [True, True, False]

    def test_ends_where_kubernetes_says_that_its_deadline_passed(self):
        late = {"type": "Progressing", "status": "False", "message": "timed out progressing"}

        assert self.counts((0, replacing(conditions=[late]))) == [False]

    @pytest.mark.parametrize(
        ("memory", "where"),
        [
            ({}, "serving"),
            (moved(NOW_S - 3600), EVERYWHERE),
            (moved(NOW_S - 6 * 3600), "serving"),
        ],
    )
    def test_keeps_its_namespace_waiting_and_for_a_gain_everybody(self, memory, where):
        state = replacing()
        known = replace(a_memory(state), **memory)

        assert reach(assessed(state, memory=known), a_fleet(state)) == where

    def test_that_never_ends_keeps_no_other_object_waiting_for_ever(self):
        # The first is stuck; the other one has waited for half an hour with its better number.
        stuck, fleet = replacing(), a_fleet(replacing())
        found = assessed(stuck, fleet=fleet)
        old = RolloutProgress(
            template=stuck.deployment.template_digest, updated=1, ready=2, at_s=NOW_S - 1800
        )
        late = replace(
            found, memory=replace(found.memory, pods=replace(found.memory.pods, rolling=old))
        )

        assert is_rolling(found, fleet)
        assert not is_rolling(late, fleet)
        assert rolled(an_object(), is_rolling=is_rolling(late, fleet)).template is not None


def test_a_rollout_that_was_refused_did_not_begin():
    before = remembering(a_memory(a_state()), better_since_s=NOW_S - STABLE_S, **moved(NOW_S - 1e6))
    rolled_out = remembering(before, better_since_s=None, **moved(NOW_S))

    assert without_rollout(rolled_out, before) == before
    # Nothing else of what was learned in that tick is lost.
    judged = replace(rolled_out, posterior=replace(rolled_out.posterior, num_judged=9))
    assert without_rollout(judged, before).posterior.num_judged == 9
    assert without_rollout(before, before) is before
    assert without_rollout(before, None) is before


def test_the_last_rollout_is_known_to_the_next_process():
    state = a_state()

    def known(moved_at_s):
        objects = {state.view.uid: ObjectPosterior(slots_moved_at_s=moved_at_s)}
        calibrations = Calibrations(objects=objects)
        outcome = tick(a_fleet(state, calibrations=calibrations), Memory(calibrations=calibrations))
        return outcome.memory.objects[state.view.uid].posterior.slots_moved_at_s

    assert known(NOW_S - 3600) == NOW_S - 3600
    # Of a clock that was ahead: it would wait for longer than six hours.
    assert known(NOW_S + 1e9) == NOW_S
