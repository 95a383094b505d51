"""Conditions as kstatus and people read them."""

import itertools
from dataclasses import replace

import pytest

from fleet_builders import (
    CRASH_LOOPING,
    NOW_S,
    UNSCHEDULABLE,
    a_deployment_body,
    a_deployment_of_a_config_map,
    a_fleet,
    a_manifest,
    a_memory,
    a_pod_body,
    a_sizing,
    a_state,
    failures,
    no_config,
)
from fleet_builders import assessed as assess_one
from measured_builders import an_engine
from tonnage.api.objects import InvalidSpecError
from tonnage.api.status import Condition
from tonnage.control.input.times import rfc3339
from tonnage.control.input.writers import Cause, WriteKind
from tonnage.control.report.conditions import conditions
from tonnage.fleet.views import deployment_view

EACH = a_sizing().goodput_requests_per_s
NOW, BEFORE = rfc3339(NOW_S), rfc3339(NOW_S - 1000)
INF = float("inf")


def waiting(reason, message):
    """A container, as the kubelet writes of it, that does not start."""
    return {"name": "vllm", "state": {"waiting": {"reason": reason, "message": message}}}


def a_condition(kind, status, reason="Before"):
    return Condition(
        type=kind, status=status, reason=reason, message="", last_transition_time=BEFORE
    )


KV_TOKENS = round(a_sizing().kv_tokens)


def assessed(state=None, *, fleet=None, **changes):
    """Assessed by plans that stand on the middle of what is believed."""
    known = {name: changes.pop(name) for name in ("memory", "free_gpus") if name in changes}
    state = state or a_state(**changes)
    fleet = fleet or a_fleet(state, settings={"speed_range": 0})
    return assess_one(state, fleet=fleet, **known)


def shown(found=None, *, now=NOW, fleet=None, **state):
    """Conditions by type."""
    found = found or assessed(a_state(**state))
    return {each.type: each for each in conditions(found, fleet or a_fleet(found.state), now=now)}


def said(kind, found=None, **state):
    """(status, reason) of one condition; None when it is absent."""
    condition = shown(found, **state).get(kind)
    return condition and (condition.status, condition.reason)


def in_mode(mode, **changes):
    scaling = {"mode": mode, "minReplicas": 1, "maxReplicas": 8}
    return a_state(a_manifest(scaling=scaling), **changes)


def with_pool(state, *kv_tokens):
    """The state with pods that report so many tokens of KV cache, in turn."""
    reports = itertools.cycle(kv_tokens)
    return replace(
        state, engines=tuple(replace(each, kv_tokens=next(reports)) for each in state.engines)
    )


UNSEEN = a_deployment_body()
UNSEEN["status"]["observedGeneration"] = 2
"""Of generation 3."""


def template_of(body):
    live = deployment_view(body)
    return live.uid, live.template_digest


class TestAtRest:
    def test_a_served_object_is_ready_and_nothing_is_under_way(self):
        found = assessed(with_pool(a_state(load=1.5), KV_TOKENS))

        assert {kind: each.status for kind, each in shown(found).items()} == {
            "Ready": "True",
            "PlanValid": "True",
            "MetricsAvailable": "True",
            "CapacityAvailable": "True",
            "ScalingActive": "True",
            "ScalingLimited": "False",
            "SLOMet": "Unknown",
            "ErrorBudget": "Unknown",
            "SpeedPlausible": "Unknown",
            "KVCapacityAsPlanned": "True",
            "Drifted": "False",
            "CalibrationStored": "True",
        }

    def test_all_are_of_this_generation(self):
        found = assessed(a_state(a_manifest(generation=4)))

        assert {each.observed_generation for each in shown(found).values()} == {4}


class TestTransitionTimes:
    def test_move_with_the_status(self):
        state = a_state()
        memory = a_memory(state, conditions={"Ready": a_condition("Ready", "False")})

        assert shown(assessed(state, memory=memory))["Ready"].last_transition_time == NOW

    def test_stay_with_the_status_whatever_the_reason(self):
        state = a_state()
        memory = a_memory(state, conditions={"Ready": a_condition("Ready", "True")})

        ready = shown(assessed(state, memory=memory))["Ready"]

        assert ready.last_transition_time == BEFORE
        assert ready.reason == "MinimumReady"


class TestReady:
    def test_counts_against_the_smallest_fleet_allowed(self):
        scaling = {"minReplicas": 2, "maxReplicas": 8}
        manifest = a_manifest(scaling=scaling)

        enough = a_state(manifest, live=a_deployment_body(replicas=4, ready=2))
        few = a_state(manifest, live=a_deployment_body(replicas=4, ready=1))

        assert said("Ready", assessed(enough)) == ("True", "MinimumReady")
        assert said("Ready", assessed(few)) == ("False", "WaitingForReplicas")

    def test_pods_of_the_old_template_do_not_count(self):
        rolling = a_deployment_body(replicas=2, ready=2)
        rolling["status"] |= {"updatedReplicas": 0}

        assert said("Ready", live=rolling)[0] == "False"

    def test_scaling_alone_never_shakes_it(self):
        state = a_state(live=UNSEEN)
        known = a_memory(state, template=template_of(UNSEEN))

        assert said("Ready", live=UNSEEN)[0] == "True"
        assert said("Ready", assessed(state, memory=known))[0] == "True"
        assert said("Reconciling", assessed(state, memory=known)) is None

    def test_counts_no_pod_before_the_controller_has_seen_the_template(self):
        # What it counts as updated is of the template before.
        state = a_state(live=UNSEEN)
        before = a_deployment_body(sizing=a_sizing(contextLength=16_384))
        known = a_memory(state, template=template_of(before))

        found = assessed(state, memory=known)

        assert said("Ready", found) == ("False", "WaitingForReplicas")
        assert "generation 2 of 3" in shown(found)["Ready"].message
        assert said("Reconciling", found) == ("True", "RollingOut")

    def test_a_process_that_begins_meanwhile_goes_on_with_what_the_status_says(self):
        state = a_state(live=UNSEEN)
        conditions = {"Reconciling": a_condition("Reconciling", "True")}

        found = assessed(state, memory=a_memory(state, conditions=conditions))

        assert said("Ready", found) == ("False", "WaitingForReplicas")
        assert said("Reconciling", found) == ("True", "RollingOut")

    def test_what_the_controller_has_seen_is_remembered(self):
        state = a_state()
        unseen = a_state(live=UNSEEN)

        assert assessed(state).memory.pods.template == template_of(a_deployment_body())
        assert assessed(unseen).memory.pods.template is None

    def test_names_what_keeps_containers_from_running(self):
        live = a_deployment_body(replicas=1, ready=0)
        found = assessed(a_state(live=live, pods=[a_pod_body("a", **CRASH_LOOPING)], engines=()))

        assert said("Ready", found) == ("False", "PodsFailing")
        message = "0 replicas ready, minReplicas 1; pod a does not start: CrashLoopBackOff"
        assert shown(found)["Ready"].message == message

    def test_names_the_pod_that_has_no_node(self):
        live = a_deployment_body(replicas=1, ready=0)
        found = assessed(a_state(live=live, pods=[a_pod_body("a", **UNSCHEDULABLE)], engines=()))

        assert said("Ready", found) == ("False", "WaitingForReplicas")
        assert "; pod a waits for a node: 0/4 nodes" in shown(found)["Ready"].message

    def test_without_a_deployment_waits_for_it_unless_none_is_wanted(self):
        assert said("Ready", replicas=None) == ("False", "NotDeployed")
        recommended = assessed(in_mode("Recommend", replicas=None))
        assert said("Ready", recommended) == ("True", "StatusOnly")


class TestReadyOfWhatIsRefused:
    """Pods of the spec before go on, and are no sign that this one is carried out."""

    def test_is_false_for_the_reason_why_the_spec_is_refused(self):
        changed = a_manifest(contextLength=16_384, generation=2)
        found = assessed(
            a_state(changed, live=a_deployment_body(), model_config=no_config("no such key"))
        )

        assert said("Ready", found) == ("False", "ModelConfigMissing")
        assert shown(found)["Ready"].message == shown(found)["PlanValid"].message

    def test_is_false_where_the_spec_cannot_be_read(self):
        found = assessed(a_state(model=InvalidSpecError("spec.hardware: missing")))

        assert said("Ready", found) == ("False", "InvalidSpec")

    def test_counts_pods_where_they_are_of_this_very_spec(self):
        assert said("Ready", assessed(a_state(model_config=no_config("no such key")))) == (
            "True",
            "MinimumReady",
        )

    @pytest.mark.parametrize(
        "command", [["sh", "-c", "./start.sh"], ["nginx", "-g", "daemon off;"]]
    )
    def test_is_false_where_a_scale_target_is_no_engine_that_tells_its_flags(self, command):
        body = a_deployment_body(annotations={}, ownerReferences=[], name="web")
        [container] = body["spec"]["template"]["spec"]["containers"]
        container |= {"command": command, "args": []}
        target = a_manifest(engine=None, scaleTarget={"name": "web"}, hardware={"gpu": "H200"})
        found = assessed(a_state(target, live=body))

        assert found.state.deployment.ready == 2, "as many as it asks for"
        assert said("Ready", found) == ("False", "FlagsUnknown")
        assert shown(found)["Ready"].message == shown(found)["PlanValid"].message

    def test_is_unknown_where_what_runs_cannot_be_read(self):
        state = a_state()
        found = assessed(state, fleet=a_fleet(state, unlisted={"serving": "403"}))

        assert said("Ready", found) == ("Unknown", "NamespaceUnreadable")
        assert said("CapacityAvailable", found) == ("Unknown", "NamespaceUnreadable")
        assert said("PlanValid", found) == ("False", "NamespaceUnreadable")

    def test_keeps_telling_of_a_service_that_leads_elsewhere(self):
        # The next process finds that in the status alone.
        state = a_state()
        memory = a_memory(
            state,
            failures=failures(WriteKind.CHILDREN, "Service llama is not ours", cause=Cause.NO_PATH),
        )
        found = assessed(state, memory=memory, fleet=a_fleet(state, unlisted={"serving": "403"}))

        assert said("Ready", found) == ("False", "NoTrafficPath")


class TestAChangeThatTouchesNoPod:
    """Another SLO with which the flags stay: only what is recorded with the template changes."""

    CHANGED = a_manifest(
        generation=2,
        slo={"timeToFirstToken": {"p95": "2001ms"}, "timePerOutputToken": {"p95": "50ms"}},
    )

    def test_is_written_and_shakes_no_condition(self):
        found = assessed(a_state(self.CHANGED, live=a_deployment_body()))

        assert found.template is not None
        assert found.changes == ()
        assert said("Ready", found) == ("True", "MinimumReady")
        assert said("Reconciling", found) is None


class TestReconciling:
    def test_while_the_first_deployment_is_made(self):
        assert said("Reconciling", replicas=None) == ("True", "RollingOut")

    def test_while_a_new_spec_is_carried_out(self):
        changed = a_manifest(contextLength=16_384, generation=2)

        assert said("Reconciling", assessed(a_state(changed, live=a_deployment_body()))) == (
            "True",
            "RollingOut",
        )

    def test_names_what_pods_are_replaced_for(self):
        changed = a_manifest(contextLength=16_384, generation=2)
        found = assessed(a_state(changed, live=a_deployment_body()))

        assert (
            "2 pods are replaced for spec.containers[vllm].args --max-model-len 8192 -> 16384"
            in shown(found)["Reconciling"].message
        )

    def test_while_an_update_goes_on(self):
        rolling = a_deployment_body()
        rolling["status"]["updatedReplicas"] = 1

        assert said("Reconciling", live=rolling) == ("True", "RollingOut")

    def test_not_while_the_fleet_grows_or_shrinks(self):
        growing = a_state(load=5, live=a_deployment_body(replicas=5, ready=2))
        shrinking = a_state(replicas=4, load=1)

        assert said("Reconciling", assessed(growing)) is None
        assert said("Reconciling", assessed(shrinking)) is None

    @pytest.mark.parametrize("mode", ["Recommend", "Paused"])
    def test_not_where_nothing_is_written(self, mode):
        assert said("Reconciling", assessed(in_mode(mode, replicas=None))) is None

    def test_not_beside_a_conflicting_autoscaler(self):
        beside = a_state(replicas=2, conflicting_autoscaler="HorizontalPodAutoscaler x")

        assert said("Reconciling", assessed(beside)) is None


class TestStalled:
    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            ({"live": a_deployment_body(ownerReferences=[])}, "NameConflict"),
            (
                {"model_config": no_config("no such key"), "live": a_deployment_of_a_config_map()},
                "ModelConfigMissing",
            ),
            ({"model": InvalidSpecError("spec.hardware: missing")}, "InvalidSpec"),
        ],
    )
    def test_while_a_person_must_help(self, change, reason):
        found = assessed(a_state(**change))

        assert said("Stalled", found) == ("True", reason)
        assert said("PlanValid", found) == ("False", reason)
        assert said("ScalingActive", found) == ("False", "PlanInvalid")
        assert said("SLOMet", found) == ("Unknown", "PlanInvalid")

    def test_while_an_update_does_not_come_through(self):
        stuck = a_deployment_body()
        stuck["status"]["conditions"] = [
            {"type": "Progressing", "status": "False", "message": "deadline exceeded"}
        ]

        found = assessed(a_state(live=stuck))

        assert said("Stalled", found) == ("True", "RolloutStuck")
        assert shown(found)["Stalled"].message == "deadline exceeded"

    @pytest.mark.parametrize(("updated", "expected"), [(0, ("True", "RolloutPaused")), (2, None)])
    def test_while_somebody_holds_a_rollout(self, updated, expected):
        held = a_deployment_body()
        held["spec"]["paused"] = True
        held["status"]["updatedReplicas"] = updated

        found = assessed(a_state(live=held))

        assert said("Stalled", found) == expected
        assert said("Reconciling", found) is None

    def test_what_to_do_for_a_rollout_that_is_held_is_said(self):
        held = a_deployment_body()
        held["spec"]["paused"] = True
        held["status"]["updatedReplicas"] = 0

        assert shown(live=held)["Stalled"].message == (
            "2 of 2 pods are not replaced, since somebody set spec.paused of Deployment llama: "
            "kubectl rollout resume deployment/llama -n serving"
        )

    def test_not_while_the_owner_of_a_scale_target_holds_its_rollout(self):
        held = a_deployment_body(ownerReferences=[])
        held["spec"]["paused"] = True
        held["status"]["updatedReplicas"] = 0
        target = {"engine": None, "scaleTarget": {"name": "llama"}}

        assert said("Stalled", assessed(a_state(a_manifest(**target), live=held))) is None

    def test_while_the_api_server_refuses_our_writes(self):
        state = a_state()
        found = assessed(state, memory=a_memory(state, failures=failures(WriteKind.TEMPLATE)))

        assert said("Stalled", found) == ("True", "WriteRefused")
        assert shown(found)["Stalled"].message == "denied by a webhook"

    def test_is_absent_otherwise(self):
        assert said("Stalled") is None

    def test_messages_stay_short(self):
        found = assessed(a_state(model_config=no_config("x" * 5000)))

        assert len(shown(found)["Stalled"].message) == 1024


class TestMetricsAvailable:
    def test_says_why_not(self):
        state = a_state(engines=())
        down = ("PrometheusUnreachable", "Prometheus: ReadTimeout")

        found = assessed(state, fleet=a_fleet(state, metrics_problem=down))

        assert said("MetricsAvailable", found) == ("False", "PrometheusUnreachable")
        assert shown(found)["MetricsAvailable"].message == "Prometheus: ReadTimeout"

    def test_is_unknown_before_any_replica_was_ready(self):
        assert said("MetricsAvailable", replicas=None) == ("Unknown", "NoReadyReplica")

    def test_stays_true_where_only_what_is_learned_from_lacks_an_answer(self):
        state = a_state()
        slow = {"latencies": ("QueryTimeout", "no answer in 20 s")}
        fleet = a_fleet(state, problems=slow, partial=frozenset({"gpus@serving"}))

        [found] = [shown(assessed(state, fleet=fleet), fleet=fleet)["MetricsAvailable"]]

        assert (found.status, found.reason) == ("True", "MetricsDegraded")
        assert "latencies (QueryTimeout: no answer in 20 s)" in found.message
        assert "gpus (partial)" in found.message

    def test_says_nothing_of_queries_for_other_namespaces(self):
        state = a_state()
        fleet = a_fleet(state, problems={"scrapes@others": ("QueryTimeout", "late")})

        found = shown(assessed(state, fleet=fleet), fleet=fleet)["MetricsAvailable"]

        assert found.reason == "Scraped"


class TestKvCapacity:
    """Against an estimate of some 590,000 tokens."""

    def test_as_estimated_says_both_figures(self):
        found = shown(assessed(with_pool(a_state(), KV_TOKENS - 1000)))["KVCapacityAsPlanned"]

        assert found.status == "True"
        assert f"{KV_TOKENS - 1000:,} KV tokens" in found.message
        assert f"the estimate was {KV_TOKENS:,}" in found.message

    @pytest.mark.parametrize("tokens", [100_000, 4 * KV_TOKENS + 100_000])
    def test_far_from_it_says_that_it_is_used_for_this_object_or_that_it_cannot_be(self, tokens):
        found = shown(assessed(with_pool(a_state(), tokens)))["KVCapacityAsPlanned"]

        is_small = tokens < KV_TOKENS
        assert (found.status, found.reason) == (
            "False",
            "FarFromEstimate" if is_small else "MoreThanMemory",
        )
        assert ("used for this object" if is_small else "not used") in found.message

    def test_one_liar_among_three_pods_changes_nothing(self):
        state = with_pool(a_state(replicas=3), 10, KV_TOKENS, KV_TOKENS)

        assert said("KVCapacityAsPlanned", assessed(state)) == ("True", "AsPlanned")

    def test_is_unknown_without_a_report_or_while_pods_change(self):
        silent = with_pool(a_state(), None)
        rolling = a_deployment_body()
        rolling["status"]["updatedReplicas"] = 1

        assert said("KVCapacityAsPlanned", assessed(silent)) == ("Unknown", "NoReport")
        rolled = assessed(with_pool(a_state(live=rolling), 600_000))
        assert said("KVCapacityAsPlanned", rolled) == ("Unknown", "RollingOut")


class TestCalibrationStored:
    def test_says_why_what_is_learned_is_not_kept(self):
        state = a_state()
        newer = ("NewerVersion", "ConfigMap tonnage-calibration: version 9")

        told = shown(assessed(state), fleet=a_fleet(state, state_problem=newer))

        assert (told["CalibrationStored"].status, told["CalibrationStored"].reason) == (
            "False",
            "NewerVersion",
        )
        assert told["CalibrationStored"].message == newer[1]


class TestCapacityAvailable:
    def test_names_what_the_scheduler_says(self):
        found = assessed(pods=[a_pod_body("a"), a_pod_body("b", **UNSCHEDULABLE)])

        assert said("CapacityAvailable", found) == ("False", "InsufficientGPU")
        message = shown(found)["CapacityAvailable"].message
        assert message.startswith("pod b waits for a node: 0/4 nodes are available: 4 Insuff")

    def test_counts_the_pods_that_find_no_node(self):
        found = assessed(pods=[a_pod_body(name, **UNSCHEDULABLE) for name in "bcd"])

        message = shown(found)["CapacityAvailable"].message
        assert message.startswith("pod b and 2 more wait for nodes: 0/4 nodes")

    @pytest.mark.parametrize(
        ("container", "reason", "told"),
        [
            (
                waiting("CreateContainerConfigError", 'secret "hugging-face" not found'),
                "CreateContainerConfigError",
                'CreateContainerConfigError: secret "hugging-face" not found',
            ),
            (
                waiting("ErrImagePull", "docker.io/vllm/vllm-openai:v9: not found"),
                "ImagePullBackOff",
                "ImagePullBackOff: docker.io/vllm/vllm-openai:v9: not found",
            ),
            (
                waiting("PostStartHookError", "sleep: not found"),
                "PodsFailing",
                "PodsFailing: PostStartHookError: sleep: not found",
            ),
        ],
    )
    def test_says_with_the_kubelets_words_why_a_pod_does_not_start(self, container, reason, told):
        failing = a_pod_body("b", ready_for_s=None, containerStatuses=[container])

        found = assessed(pods=[a_pod_body("a"), failing])

        assert said("CapacityAvailable", found) == ("False", reason)
        assert shown(found)["CapacityAvailable"].message == f"pod b does not start: {told}"
        assert said("Ready", found) == ("True", "MinimumReady")

    def test_of_what_has_no_node_and_what_does_not_start_it_tells_the_latter(self):
        pods = [a_pod_body("a", **UNSCHEDULABLE), a_pod_body("b", **CRASH_LOOPING)]

        assert said("CapacityAvailable", pods=pods) == ("False", "CrashLoopBackOff")

    def test_names_a_quota(self):
        refused = a_deployment_body()
        refused["status"]["conditions"] = [
            {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota: gpus"}
        ]

        found = assessed(live=refused)

        assert said("CapacityAvailable", found) == ("False", "QuotaExceeded")
        assert shown(found)["CapacityAvailable"].message == "exceeded quota: gpus"

    def test_names_what_else_is_missing(self):
        [stuck] = UNSCHEDULABLE["conditions"]
        body = a_pod_body("b", conditions=[stuck | {"message": "0/4 nodes: 4 Insufficient cpu."}])

        assert said("CapacityAvailable", pods=[body]) == ("False", "InsufficientResources")

    def test_names_the_budget(self):
        found = assessed(a_state(load=5), free_gpus=0)

        assert said("CapacityAvailable", found) == ("False", "GPUBudget")
        assert "budget has 0 GPUs free" in shown(found)["CapacityAvailable"].message


class TestScaling:
    @pytest.mark.parametrize(
        ("mode", "said_so"),
        [
            ("Auto", ("True", "Scaling")),
            ("Recommend", ("False", "RecommendOnly")),
            ("Paused", ("False", "Paused")),
        ],
    )
    def test_is_active_in_auto_mode_only(self, mode, said_so):
        assert said("ScalingActive", assessed(in_mode(mode))) == said_so

    def test_gives_way_to_a_conflicting_autoscaler_and_names_it(self):
        found = assessed(a_state(conflicting_autoscaler="HorizontalPodAutoscaler llama"))

        assert said("ScalingActive", found) == ("False", "ConflictingScaler")
        assert "HorizontalPodAutoscaler llama" in shown(found)["ScalingActive"].message

    def test_is_limited_by_what_the_user_or_the_cluster_sets(self):
        most = a_manifest(scaling={"minReplicas": 1, "maxReplicas": 3})

        found = assessed(a_state(most, load=5, live=a_deployment_body()))

        assert said("ScalingLimited", found) == ("True", "MaxReplicas")
        # Five for the demand, three for what will wait until they are Ready.
        message = shown(found)["ScalingLimited"].message
        assert message.startswith("maxReplicas allows 3; ")
        assert "needs 7; " in message

    def test_is_limited_by_a_disruption_budget_that_takes_more_replicas(self):
        pods = {"disruptionBudget": {"minAvailable": 2}}

        found = assessed(a_state(a_manifest(pods=pods), replicas=1, load=0.1))

        assert found.decision.replicas == 3
        assert said("ScalingLimited", found) == ("True", "DisruptionBudget")
        assert "pods.disruptionBudget.minAvailable 2 allows an eviction from 3 replicas on" in (
            shown(found)["ScalingLimited"].message
        )

    def test_is_limited_by_a_disruption_budget_that_no_number_of_replicas_meets(self):
        pods = {"disruptionBudget": {"minAvailable": "90%"}}
        scaling = {"minReplicas": 1, "maxReplicas": 9}

        found = assessed(a_state(a_manifest(pods=pods, scaling=scaling), replicas=2, load=1))

        assert found.decision.replicas == 2
        assert said("ScalingLimited", found) == ("True", "DisruptionBudget")
        assert shown(found)["ScalingLimited"].message == (
            "no node with a replica can be drained: pods.disruptionBudget.minAvailable 90% "
            "allows an eviction from 10 replicas on, maxReplicas allows 9"
        )

    def test_is_not_limited_by_patience(self):
        found = assessed(a_state(replicas=4, load=1))

        assert found.decision.limited_by == "ScaleDownRateLimited"
        assert said("ScalingLimited", found) == ("False", "WithinBounds")


def with_attainment(fraction):
    within = {2.0: fraction, INF: 1.0}
    return tuple(an_engine(pod, completed_per_s=EACH / 2, ttft_within=within) for pod in "ab")


class TestSloMet:
    def test_names_caches_that_are_late(self):
        manifest = a_manifest(
            engine={"version": "0.33", "role": "decode"},
            hardware={"gpu": "H200", "parallelism": {"tensor": 1}},
            demand={"requestsPerSecond": 1, "cacheTransfer": "80ms"}
            | {"promptTokens": {"mean": 4000}, "outputTokens": {"mean": 1000}},
        )
        engines = tuple(
            replace(each, mean_deferred=deferred)
            for each, deferred in zip(with_attainment(0.05), (3.0, 5.0), strict=True)
        )

        assert shown(manifest=manifest, engines=engines)["SLOMet"].message == (
            "TTFT: 5.0% within the limit, target 95% "
            "(KV caches take 4.00 s to arrive: more replicas do not help)"
        )

    @pytest.mark.parametrize(
        ("fraction", "status"), [(0.99, "True"), (0.95, "True"), (0.949, "False"), (0.5, "False")]
    )
    def test_is_the_share_within_the_limit(self, fraction, status):
        assert said("SLOMet", engines=with_attainment(fraction))[0] == status

    @pytest.mark.parametrize(
        ("before", "status"), [("True", "True"), ("False", "False"), ("Unknown", "False")]
    )
    def test_a_kept_target_is_missed_by_more_than_noise(self, before, status):
        state = a_state(engines=with_attainment(0.945))
        memory = a_memory(state, conditions={"SLOMet": a_condition("SLOMet", before)})

        assert said("SLOMet", assessed(state, memory=memory))[0] == status

    def test_says_what_was_missed_by_how_much(self):
        found = shown(engines=with_attainment(0.5))["SLOMet"]

        assert (found.reason, found.message) == (
            "Queued",
            "TTFT: 50.0% within the limit, target 95% "
            "(requests wait for a replica that has others)",
        )

    def test_has_the_cause_of_the_worst_target_as_its_reason(self):
        engines = tuple(
            replace(each, tpot_within={0.05: 80.0, INF: 100.0}) for each in with_attainment(0.9)
        )

        found = shown(engines=engines)["SLOMet"]

        # One in five is four times what may be, one in ten twice.
        assert found.reason == "SlowSteps"
        assert found.message == (
            "TTFT: 90.0% within the limit, target 95% (requests wait for a replica that has "
            "others); TPOT: 80.0% within the limit, target 95% (steps take longer than planned, "
            "or more requests run than planned)"
        )

    def test_leaves_a_cause_that_was_reported_until_another_is_larger_by_half(self):
        # Twelve of a hundred waited, and ten were refused.
        told = {"rejected_per_s": 0.1, "ttft_within": {2.0: 0.78, INF: 0.9}}
        engines = tuple(an_engine(pod, completed_per_s=EACH / 2, **told) for pod in "ab")
        state = a_state(engines=engines)
        before = a_condition("SLOMet", "False", reason="RequestsRefused")

        assert said("SLOMet", assessed(state)) == ("False", "Queued")
        reported = a_memory(state, conditions={"SLOMet": before})
        assert said("SLOMet", assessed(state, memory=reported)) == ("False", "RequestsRefused")

    def test_is_unknown_without_traffic(self):
        assert said("SLOMet") == ("Unknown", "NoTraffic")


class TestErrorBudget:
    def test_is_left_while_no_more_are_late_than_may_be(self):
        assert said("ErrorBudget", engines=with_attainment(0.95)) == ("True", "BudgetAvailable")

    def test_says_what_burnt_it(self):
        found = shown(engines=with_attainment(0.9))["ErrorBudget"]

        assert (found.status, found.reason) == ("False", "BudgetExhausted")
        assert found.message == (
            "TTFT 2.00 s: 10% of 240 requests in the last 24 h were late, 5% allowed; recently 10%"
        )

    @pytest.mark.parametrize(
        ("before", "fraction", "status"),
        [("True", 0.953, "True"), ("False", 0.953, "False"), ("False", 0.96, "True")],
    )
    def test_that_was_burnt_is_left_with_a_tenth_of_it(self, before, fraction, status):
        state = a_state(engines=with_attainment(fraction))
        memory = a_memory(state, conditions={"ErrorBudget": a_condition("ErrorBudget", before)})

        assert said("ErrorBudget", assessed(state, memory=memory))[0] == status

    def test_is_unknown_without_traffic(self):
        assert said("ErrorBudget") == ("Unknown", "NotJudged")


def test_an_invalid_object_still_has_all_its_conditions():
    found = assessed(a_state(model=InvalidSpecError("spec.hardware: missing"), replicas=None))

    assert set(shown(found)) >= {"Ready", "Stalled", "PlanValid", "MetricsAvailable"}
    assert shown(found)["PlanValid"].message == "spec.hardware: missing"
