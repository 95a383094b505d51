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
)
from tonnage.api.status import Reason
from tonnage.control.rollout import STANDS_S, is_rolling, with_rollout
from tonnage.control.state import BetterAsked
from tonnage.manifests.children import flags_from_annotation
from tonnage.manifests.names import FLAGS_ANNOTATION
from tonnage.policy.situation import Metrics

STOOD = {"better_since_s": NOW_S - STANDS_S}


def an_object(*, gain=0.2, memory=None, mode="Auto", **changes):
    """Two replicas, calm, for which 50 slots would serve so much more than those that run."""
    found = assessed(
        a_state(a_manifest(scaling={"mode": mode, "maxReplicas": 8}), load=2, **changes)
    )
    running = found.chosen.sizing
    better = replace(
        running,
        flags=replace(running.flags, max_num_seqs=50),
        goodput=replace(
            running.goodput, requests_per_s=(1 + gain) * running.goodput.requests_per_s
        ),
    )
    asked = BetterAsked(at_s=NOW_S, flags=running.flags, sizing=better)
    said = Reason(code="MaxNumSeqs", message="by what is measured, ...")
    return replace(
        found,
        chosen=replace(found.chosen, better_asked=asked),
        decision=replace(found.decision, replicas=2, reasons=(said, *found.decision.reasons)),
        memory=replace(found.memory, **(STOOD if memory is None else memory)),
    )


def rolled(found, *, free_gpus=None, is_rolling=False, **settings):
    fleet = a_fleet(found.state, settings=settings)
    return with_rollout(found, fleet, free_gpus=free_gpus, is_rolling=is_rolling)


def said(found):
    [message] = [each.message for each in found.decision.reasons if each.code == "MaxNumSeqs"]
    return message


class TestARollout:
    def test_takes_the_flags_that_gain_and_says_so(self):
        found = rolled(an_object())

        flags = flags_from_annotation(found.template["metadata"]["annotations"][FLAGS_ANNOTATION])
        assert flags.max_num_seqs == found.sizing.flags.max_num_seqs == 50
        assert "max-num-seqs 50 serves 20% more per replica" in said(found)
        assert said(found).endswith("engines are replaced one by one")
        assert (found.memory.better_since_s, found.memory.slots_moved_at_s) == (None, NOW_S)

    def test_begins_to_wait_when_the_gain_is_first_seen(self):
        found = rolled(an_object(memory={}))

        assert found.template is None
        assert found.memory.better_since_s == NOW_S
        assert "the gain has to stand for 30.0 min" in said(found)

    def test_forgets_a_gain_that_went(self):
        found = rolled(an_object(gain=0.09))

        assert found.template is None
        assert found.memory.better_since_s is None

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

    def test_is_not_proposed_before_its_gain_has_stood(self):
        found = rolled(an_object(mode="Approve", memory={}))

        assert found.proposals == ()

    def test_is_rare(self):
        recent = an_object(memory=STOOD | {"slots_moved_at_s": NOW_S - 3600})
        old = an_object(memory=STOOD | {"slots_moved_at_s": NOW_S - 6 * 3600})

        assert rolled(recent).template is None
        assert "360.0 min lie between two such rollouts" in said(rolled(recent))
        assert rolled(old).template is not None

    def test_waits_for_another_one_in_the_fleet(self):
        found = rolled(an_object(), is_rolling=True)

        assert found.template is None
        assert "another rollout is under way" in said(found)

    @pytest.mark.parametrize(("free_gpus", "goes"), [(None, True), (2, True), (1, False)])
    def test_needs_gpus_for_the_pod_that_comes_first(self, free_gpus, goes):
        found = rolled(an_object(), free_gpus=free_gpus)

        assert (found.template is not None) is goes
        assert goes or "takes 2 GPUs, the budget leaves 1" in said(found)

    def test_waits_while_demand_grows(self):
        calm = an_object()
        growing = replace(calm, decision=replace(calm.decision, replicas=3))
        overloaded = replace(calm, memory=replace(calm.memory, overloaded_at_s=NOW_S - 60))

        assert rolled(growing).template is None
        assert rolled(overloaded).template is None
        assert "demand grows" in said(rolled(growing))

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


def test_a_fleet_rolls_while_pods_of_an_older_template_are_there():
    rolling = a_deployment_body()
    rolling["status"]["updatedReplicas"] = 1

    assert is_rolling(a_fleet(a_state(live=rolling)))
    assert not is_rolling(a_fleet(a_state()))
    assert a_memory(a_state()).slots_moved_at_s is None
