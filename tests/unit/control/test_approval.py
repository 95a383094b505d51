"""Mode Approve: what replaces pods or passes a stated cost waits, and only for its own digest."""

import json
from dataclasses import replace

import pytest

from fleet_builders import (
    NOW_S,
    SPEC,
    a_deployment_body,
    a_fleet,
    a_manifest,
    a_memory,
    a_model,
    a_sizing,
    a_state,
    assessed,
    managed_by,
    with_lengths,
)
from tonnage.catalog.models import read_model_config
from tonnage.control.decide.approval import Plan, replicas_within
from tonnage.control.report.conditions import conditions
from tonnage.control.report.status import report
from tonnage.control.write.writes import writes_for

EACH_USD = 15.824
"""Of one replica: two H200 at 63.296 / 8."""
LONGER = {"contextLength": 16_384, "generation": 2}
OTHER_SLO = {"timeToFirstToken": {"p95": "2001ms"}, "timePerOutputToken": {"p95": "50ms"}}
SMALL = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048,
    "intermediate_size": 8192, "num_attention_heads": 32, "num_key_value_heads": 8,
    "num_hidden_layers": 16, "head_dim": 64, "vocab_size": 128_256, "torch_dtype": "bfloat16",
    "max_position_embeddings": 131_072, "tie_word_embeddings": True, "hidden_act": "silu",
}  # fmt: skip
"""The config.json of a model of one billion parameters."""
SOME_DIGEST = "0123456789abcdef"


def a_waiting_manifest(*, approve=None, stated=None, **changes):
    scaling = {"mode": "Approve", "minReplicas": 1, "maxReplicas": 8}
    scaling |= {"approvalAboveUsdPerHour": stated} if stated else {}
    manifest = a_manifest(scaling=scaling, **changes)
    manifest["metadata"]["annotations"] = {"tonnage.dev/approve": approve} if approve else {}
    return manifest


def found_for(manifest, *, free_gpus=None, memory=None, **changes):
    state = a_state(manifest, **changes)
    fleet = a_fleet(state)
    return assessed(state, fleet=fleet, free_gpus=free_gpus, memory=memory)


def written(found):
    fleet = a_fleet(found.state)
    return writes_for(found, report(found, fleet), fleet)[0]


def shown(found):
    told = conditions(found, a_fleet(found.state), now="2026-01-02T00:00:00Z")
    return {each.type: each for each in told}


def said(kind, found):
    condition = shown(found).get(kind)
    return condition and (condition.status, condition.reason)


def test_nothing_is_asked_for_where_the_chart_only_scales():
    state = a_state(a_waiting_manifest(**LONGER), live=a_deployment_body())
    fleet = a_fleet(state, settings={"mode": "scaleOnly"})

    found = assessed(state, fleet=fleet)

    assert found.refusal.code == "ScaleOnly"
    assert said("Approved", found) == ("Unknown", "PlanInvalid")


def the_digest(found):
    [proposal] = found.proposals
    return proposal.digest


class TestDigest:
    def digest(self, *, flags=None, replicas=0, replaced=None, has_host_cache=False, **changes):
        model, sizing = a_model(**changes), a_sizing()
        request = replace(sizing.request, has_host_cache=has_host_cache)
        sizing = replace(sizing, request=request, flags=flags or sizing.flags)
        return Plan(model, sizing, replaced).digest(replicas)

    def test_is_sixteen_digits_and_the_same_every_time(self):
        assert self.digest() == self.digest()
        assert len(self.digest()) == 16

    def test_has_the_replicas_that_pass_the_stated_cost_and_covers_them(self):
        four, five = self.digest(replicas=4), self.digest(replicas=5)

        assert (four[16:], five[16:]) == ("-4", "-5")
        assert len({four[:16], five[:16], self.digest()}) == 3

    @pytest.mark.parametrize("given", [None, SOME_DIGEST, SOME_DIGEST + "-7"])
    def test_is_worked_out_at_most_once_to_compare_it_with_the_annotation(self, given):
        state, asked = a_state(a_waiting_manifest(approve=given)), []

        class Counted(Plan):
            def digest(self, replicas):
                asked.append(replicas)
                return super().digest(replicas)

        assert Counted(state.model, a_sizing()).approved_replicas(state) is None
        assert len(asked) <= 1

    def test_differs_by_object_generation_spec_gpus_replicas_and_what_is_replaced(self):
        flags = a_sizing().flags
        four = replace(flags, parallelism=replace(flags.parallelism, tensor=4))
        seven = replace(flags, max_num_seqs=7)
        digests = {
            self.digest(),
            self.digest(uid="another"),
            self.digest(generation=2),
            self.digest(contextLength=16_384),
            self.digest(flags=four),
            self.digest(replicas=4),
            self.digest(replaced=flags),
            self.digest(replaced=seven),
        }

        assert len(digests) == 8

    def test_names_the_host_cache_where_the_spec_leaves_it_open(self):
        def both(**cache):
            model = SPEC["model"] | {"kvOffload": {"workingSetTokens": 9, "gib": 9} | cache}
            return {self.digest(model=model, has_host_cache=each) for each in (True, False)}

        assert len(both(mode="Auto")) == 2
        assert len(both()) == 1
        assert self.digest(engine={"version": "0.33"}) == "cdf7631182757eb5"

    @pytest.mark.parametrize(
        "measured",
        [{"max_num_seqs": 7}, {"max_num_batched_tokens": 4096}, {"gpu_memory_utilization": 0.8}],
    )
    def test_does_not_follow_flags_which_follow_what_is_measured(self, measured):
        flags = a_sizing().flags

        assert self.digest(flags=replace(flags, **measured)) == self.digest()
        assert self.digest(flags=replace(flags, **measured), replaced=flags) == self.digest(
            replaced=flags
        )


class TestNothingToApprove:
    def test_is_said_while_nothing_waits(self):
        assert said("Approved", found_for(a_waiting_manifest())) == ("True", "NothingToApprove")

    @pytest.mark.parametrize("mode", ["Auto", "Recommend", "Paused"])
    def test_no_other_mode_has_the_condition(self, mode):
        manifest = a_manifest(scaling={"mode": mode, "maxReplicas": 8})

        assert said("Approved", found_for(manifest)) is None

    def test_it_scales_as_auto_does(self):
        assert written(found_for(a_waiting_manifest(), load=3.5)).scale.replicas == 5

    def test_a_new_object_is_created(self):
        made = written(found_for(a_waiting_manifest(), replicas=None))

        assert made.template is not None
        assert made.first_replicas == a_sizing().replicas

    def test_a_spec_that_asks_for_the_same_pods_does_not_wait(self):
        manifest = a_waiting_manifest(slo=OTHER_SLO, generation=2)
        found = found_for(manifest, live=a_deployment_body())

        assert found.proposals == ()
        assert written(found).template is not None


class TestPodsThatWouldRoll:
    def waiting(self, approve=None, **changes):
        manifest = a_waiting_manifest(approve=approve, **LONGER)
        return found_for(manifest, **({"live": a_deployment_body()} | changes))

    def test_wait_and_the_fields_are_named(self):
        found = self.waiting()
        condition = shown(found)["Approved"]

        assert written(found).template is None
        assert (condition.status, condition.reason) == ("False", "RolloutNeedsApproval")
        assert "2 pods are replaced for" in condition.message
        assert "--max-model-len 8192 -> 16384" in condition.message
        assert f"annotate tonnage.dev/approve={the_digest(found)}" in condition.message

    def test_shake_no_other_condition(self):
        found = self.waiting()

        assert said("Ready", found) == ("True", "MinimumReady")
        assert said("Reconciling", found) is None
        assert said("Stalled", found) is None

    def test_are_told_in_status_and_by_a_warning(self):
        found = self.waiting()
        made = written(found)

        assert [each.digest for each in made.status.proposals] == [the_digest(found)]
        assert made.status.display.reason == "ApprovalNeeded"
        assert [each.reason for each in made.event_records if each.is_warning] == [
            "RolloutNeedsApproval"
        ]

    def test_leave_what_runs_to_be_scaled_by_its_own_figures(self):
        found = self.waiting(load=3.5)

        assert found.sizing.request.context_tokens == 8192
        assert written(found).scale.replicas == 5

    def test_leave_what_runs_to_be_scaled_where_todays_requests_are_too_long_for_it(self):
        demand = {
            "requestsPerSecond": 4,
            "promptTokens": {"mean": 9000},
            "outputTokens": {"mean": 1000},
        }
        longer = a_waiting_manifest(contextLength=32_768, generation=2, demand=demand)
        found = found_for(longer, live=a_deployment_body(), load=3.5)

        assert found.refusal is None
        assert written(found).scale.replicas == 5

    def test_leave_what_runs_to_be_scaled_by_its_own_config(self):
        own = {"id": "org/small", "config": {"configMapKeyRef": {"name": "c", "key": "k"}}}
        small = found_for(
            a_waiting_manifest(generation=2, model=own),
            live=a_deployment_body(),
            load=3.5,
            model_config=read_model_config(json.dumps(SMALL), name="org/small"),
        )

        assert said("Approved", small) == ("False", "RolloutNeedsApproval")
        assert small.sizing.request.shape.name == a_sizing().request.shape.name
        assert written(small).scale.replicas == 5

    def test_roll_once_their_digest_is_approved(self):
        approved = self.waiting(approve=the_digest(self.waiting()))

        assert written(approved).template is not None
        assert written(approved).rolls
        assert approved.sizing.request.context_tokens == 16_384
        assert said("Approved", approved) == ("True", "PlanApproved")

    def test_stay_approved_after_they_rolled(self):
        digest = the_digest(self.waiting())
        manifest = a_waiting_manifest(approve=digest, **LONGER)
        rolled = a_deployment_body(a_model(**LONGER), sizing=self.waiting(approve=digest).sizing)

        found = found_for(manifest, live=rolled)

        assert found.template is None
        assert said("Approved", found) == ("True", "PlanApproved")

    def test_stay_approved_when_answers_turn_out_longer(self):
        digest = the_digest(self.waiting())
        manifest = a_waiting_manifest(approve=digest, **LONGER)
        state = with_lengths(a_state(manifest, live=a_deployment_body()), 100, 3000)
        approved = assessed(state, fleet=a_fleet(state))

        assert approved.sizing.flags != self.waiting(approve=digest).sizing.flags
        assert written(approved).template is not None
        assert said("Approved", approved) == ("True", "PlanApproved")

    @pytest.mark.parametrize(
        ("approve", "reason"),
        [
            (SOME_DIGEST, "ApprovalStale"),
            ("yes", "ApprovalMalformed"),
            ("0123456789ABCDEF", "ApprovalMalformed"),
            (SOME_DIGEST + "\n", "ApprovalMalformed"),
            (SOME_DIGEST + "-7", "ApprovalStale"),
            (SOME_DIGEST + "-0", "ApprovalMalformed"),
            (SOME_DIGEST + "-07", "ApprovalMalformed"),
            (SOME_DIGEST + "-7777777", "ApprovalMalformed"),
            (SOME_DIGEST + "-\u0667", "ApprovalMalformed"),
        ],
    )
    def test_wait_for_their_own_digest_and_no_other(self, approve, reason):
        found = self.waiting(approve=approve)

        assert written(found).template is None
        assert said("Approved", found) == ("False", reason)

    def test_wait_again_after_another_change_of_the_spec(self):
        digest = the_digest(self.waiting())
        later = a_waiting_manifest(approve=digest, contextLength=16_384, generation=3)

        found = found_for(later, live=a_deployment_body())

        assert written(found).template is None
        assert said("Approved", found) == ("False", "ApprovalStale")

    def test_a_digest_in_the_status_approves_nothing(self):
        manifest = a_waiting_manifest(approve=SOME_DIGEST, **LONGER)
        proposals = [{"digest": SOME_DIGEST, "reason": "RolloutNeedsApproval", "message": ""}]
        manifest["status"] = {"proposals": proposals}

        assert written(found_for(manifest, live=a_deployment_body())).template is None

    def test_where_it_is_not_recorded_what_runs_nothing_is_touched(self):
        live = a_deployment_body()
        del live["metadata"]["annotations"]["tonnage.dev/spec"]

        found = self.waiting(live=live, load=3.5)
        made = written(found)

        assert (made.scale, made.template) == (None, None)
        assert said("PlanValid", found) == ("False", "RunningSpecUnknown")
        assert "annotate tonnage.dev/approve=" in shown(found)["PlanValid"].message

    def test_an_edit_by_somebody_else_stays_until_approved(self):
        fields = managed_by("tonnage", "f:template") + managed_by("kubectl-edit", "f:template")
        live = a_deployment_body(managedFields=fields)
        live["spec"]["template"]["spec"]["containers"][0]["image"] = "other:v0.33.0"

        found = found_for(a_waiting_manifest(), live=live)
        approved = found_for(a_waiting_manifest(approve=the_digest(found)), live=live)

        assert written(found).template is None
        assert "image other:v0.33.0 -> vllm/vllm-openai:v0.33.0" in shown(found)["Approved"].message
        assert written(approved).template is not None


class TestStatedCost:
    """Two replicas run; 32 USD per hour pay for two at 15.824, 80 for five.

    Four sustain the load, and a fifth drains what waits until they are Ready.
    """

    def growing(self, *, stated="32", approve=None, load=3.5, **changes):
        return found_for(a_waiting_manifest(stated=stated, approve=approve), load=load, **changes)

    def test_growth_within_it_never_waits(self):
        found = self.growing(stated="80")

        assert written(found).scale.replicas == 5
        assert said("Approved", found) == ("True", "NothingToApprove")

    def test_growth_beyond_it_waits_with_both_amounts(self):
        found = self.growing()
        condition = shown(found)["Approved"]

        assert written(found).scale is None
        assert (condition.status, condition.reason) == ("False", "CostExceeded")
        assert (
            "5 replicas cost 79.12 USD per hour, above approvalAboveUsdPerHour 32"
            in condition.message
        )
        assert "above approvalAboveUsdPerHour 32: 2 run until" in condition.message
        assert said("ScalingLimited", found) == ("True", "ApprovalNeeded")

    def test_growth_goes_as_far_as_the_cost_allows(self):
        assert written(self.growing(stated="50")).scale.replicas == 3  # 47.47

    def test_growth_goes_on_once_it_is_approved(self):
        approved = self.growing(approve=the_digest(self.growing()))

        assert written(approved).scale.replicas == 5
        assert said("Approved", approved) == ("True", "PlanApproved")

    def test_approved_for_more_it_may_be_less_and_not_the_reverse(self):
        five, six = the_digest(self.growing()), the_digest(self.growing(load=5.5))

        assert five != six
        assert written(self.growing(approve=six)).scale.replicas == 5
        more = self.growing(approve=five, load=5.5)
        assert written(more).scale.replicas == 5
        assert said("Approved", more) == ("False", "ApprovalStale")

    @pytest.mark.parametrize("written_over", ["-6", "-8", ""])
    def test_an_approval_whose_number_was_changed_approves_nothing(self, written_over):
        five = the_digest(self.growing())
        forged = self.growing(approve=five.removesuffix("-5") + written_over)

        assert five.endswith("-5")
        assert written(forged).scale is None
        assert said("Approved", forged) == ("False", "ApprovalStale")

    def test_what_is_asked_for_is_the_most_of_the_last_window(self):
        state = a_state(a_waiting_manifest(stated="32"), load=3.5)
        memory = a_memory(state, recent_needs=((NOW_S - 60, 7),))

        found = assessed(state, fleet=a_fleet(state), memory=memory)

        assert found.proposals[0].digest == Plan(state.model, found.sizing).digest(7)

    def test_what_runs_above_it_is_not_taken_away(self):
        assert written(self.growing(stated="16", load=1.5)).scale is None

    def test_going_down_never_waits(self):
        assert written(self.growing(stated="16", load=1, replicas=4)).scale.replicas == 3

    def test_a_new_object_beyond_it_is_not_created(self):
        made = written(found_for(a_waiting_manifest(stated="15.81"), replicas=None))

        assert (made.template, made.scale) == (None, None)

    def test_is_kept_to_the_cent(self):
        model = a_model(
            scaling={"mode": "Approve", "maxReplicas": 8, "approvalAboveUsdPerHour": "47.47"}
        )

        assert replicas_within(model, a_sizing()) == 3

    def test_a_class_without_a_price_pays_for_none(self):
        model = a_model(
            scaling={"mode": "Approve", "maxReplicas": 8, "approvalAboveUsdPerHour": 1000}
        )
        sizing = a_sizing()
        free = replace(sizing.request.gpu, price=type(sizing.request.gpu.price)())
        unpriced = replace(sizing, request=replace(sizing.request, gpu=free))

        assert replicas_within(model, unpriced) == 0

    def test_growth_that_is_approved_approves_no_other_pods(self):
        # Both plans keep the flags that run.
        def found(approve=None):
            manifest = a_waiting_manifest(stated="32", approve=approve, **LONGER)
            return found_for(manifest, load=3.5, live=a_deployment_body())

        roll, growth = found().proposals

        assert (roll.reason, growth.reason) == ("RolloutNeedsApproval", "CostExceeded")
        assert written(found(growth.digest)).scale.replicas == 5
        assert written(found(growth.digest)).template is None
        rolls = written(found(roll.digest))
        assert rolls.template is not None
        assert rolls.scale is None


def test_the_annotation_is_no_part_of_what_is_parsed():
    state = a_state(a_waiting_manifest(approve=SOME_DIGEST))

    assert state.view.approve == SOME_DIGEST
    assert "approve" not in json.loads(state.view.manifest)["metadata"]
