"""An object with two roles in its place: what is made of it, when, and what it says."""

from copy import deepcopy
from dataclasses import replace
from itertools import pairwise

import pytest

from fleet_builders import NOW_S, a_deployment_body, a_fleet, a_manifest, a_model, a_state
from tonnage.api.objects import parse_model_deployment
from tonnage.control.input.memory import Memory
from tonnage.control.input.state import ModelState
from tonnage.control.input.writers import Result, WriteKind
from tonnage.control.series import gauges
from tonnage.control.tick import tick, with_results
from tonnage.fleet.views import model_view
from tonnage.sizing.errors import SearchAbandonedError

LONG_PROMPTS = {
    "requestsPerSecond": 20,
    "promptTokens": {"mean": 6000},
    "outputTokens": {"mean": 100, "p99": 100},
}


def an_object(topology=None, **spec):
    asked = {
        "model": {"id": "meta-llama/Llama-3.1-8B-Instruct"},
        "hardware": {"gpu": "H100", "parallelism": {"tensor": 1}},
        "slo": {"timeToFirstToken": {"p95": "2s"}, "timePerOutputToken": {"p95": "20ms"}},
        "demand": LONG_PROMPTS,
        "scaling": {"maxReplicas": 16},
        "topology": topology or {},
    }
    return a_manifest(**(asked | spec))


def there(roles):
    """Return what is observed of the objects of roles."""
    return {
        body["spec"]["engine"]["role"]: ModelState(
            view=model_view(body),
            model=parse_model_deployment(
                {key: value for key, value in body.items() if key != "status"}
            ),
        )
        for body in roles
    }


def ticked(manifest, *, roles=(), replicas=None, memory=None, fleet=None, **changes):
    """Return what a tick writes for an object, and what it remembers."""
    live = a_deployment_body(a_model(), replicas=2) if replicas else None
    state = a_state(manifest, replicas=replicas, live=live, roles=there(roles), **changes)
    outcome = tick(a_fleet(state, **fleet or {}), memory or Memory())
    assert outcome.faults == ()
    (writes,) = outcome.writes
    return writes, outcome.memory


def as_made(writes, *, generation=1, **status):
    """Return the objects of roles as the API server has them after a write."""
    return [
        deepcopy(each.manifest)
        | {
            "metadata": each.manifest["metadata"]
            | {"uid": f"uid-of-{each.name}", "generation": generation},
            "status": {"observedGeneration": generation} | status,
        }
        for each in writes.roles
    ]


def conditions(writes):
    return {each.type: each for each in writes.status.conditions}


def a_condition(kind, status, reason="Why", message="why"):
    return {"type": kind, "status": status, "reason": reason, "message": message}


@pytest.fixture(scope="module")
def made():
    return ticked(an_object())[0]


class TestMaking:
    def test_there_is_one_object_for_each_role_and_nothing_beside_it(self, made):
        assert [each.name for each in made.roles] == ["llama-prefill", "llama-decode"]
        assert made.template is None
        assert not made.check_children

    def test_each_is_owned_and_has_its_part_of_the_spec(self, made):
        prefill, decode = (each.manifest for each in made.roles)
        (owner,) = prefill["metadata"]["ownerReferences"]

        assert (owner["uid"], owner["controller"]) == ("uid-of-llama", True)
        assert prefill["spec"]["engine"] == {"version": "0.33", "role": "prefill"}
        assert prefill["spec"]["slo"] == {"timeToFirstToken": {"p95": "1936ms"}}
        assert decode["spec"]["slo"] == {
            "timeToFirstToken": {"p95": "64ms"},
            "timePerOutputToken": {"p95": "20ms"},
        }
        assert decode["spec"]["demand"]["cacheTransfer"] == "2ms"
        for each in (prefill, decode):
            assert each["spec"]["hardware"] == {
                "gpu": "H100",
                "parallelism": {"tensor": 1, "data": 1},
            }
            assert "topology" not in each["spec"]

    def test_bounds_of_a_role_replace_those_of_both(self):
        own = {"prefill": {"minReplicas": 2}, "decode": {"maxReplicas": 3}}
        writes, _ = ticked(an_object(own))

        assert [each.manifest["spec"]["scaling"] for each in writes.roles] == [
            {"minReplicas": 2, "maxReplicas": 16},
            {"maxReplicas": 3},
        ]

    def test_nothing_is_written_once_they_are_as_they_should_be(self, made):
        writes, _ = ticked(an_object(), roles=as_made(made))

        assert writes.roles == ()

    def test_one_that_was_edited_is_reapplied_and_what_others_added_stays(self, made):
        prefill, decode = as_made(made)
        edited = deepcopy(decode)
        edited["spec"]["slo"]["timePerOutputToken"]["p95"] = "1s"
        added = deepcopy(prefill)
        added["spec"]["pods"] = {"nodeSelector": {"zone": "a"}}

        writes, _ = ticked(an_object(), roles=[added, edited])

        assert [each.role for each in writes.roles] == ["decode"]

    def test_what_the_spec_no_longer_has_is_taken_away(self, made):
        before, _ = ticked(an_object(pods={"nodeSelector": {"zone": "a"}}))

        writes, _ = ticked(an_object(), roles=as_made(before))

        assert len(writes.roles) == 2, "what is there has all of it, and a node selector"

    def test_the_split_that_runs_stays_where_another_would_be_planned_now(self):
        any_split = {"gpu": "H100"}
        wide = {"gpu": "H100", "parallelism": {"tensor": 2}}
        before, _ = ticked(an_object(hardware=wide))

        writes, _ = ticked(an_object(hardware=any_split), roles=as_made(before))
        fresh, _ = ticked(an_object(hardware=any_split))

        assert [
            each.manifest["spec"]["hardware"]["parallelism"]["tensor"] for each in fresh.roles
        ] == [1, 1]
        assert writes.roles == ()

    def test_more_gpus_of_a_replica_are_taken_though_fewer_run(self):
        one, two = ({"gpu": "H100", "gpusPerReplica": number} for number in (1, 2))
        before, _ = ticked(an_object(hardware=one))

        writes, _ = ticked(an_object(hardware=two), roles=as_made(before))

        assert [
            each.manifest["spec"]["hardware"]["parallelism"]["tensor"] for each in writes.roles
        ] == [2, 2]

    def test_another_gpu_is_split_anew(self, made):
        writes, _ = ticked(an_object(hardware={"gpu": "H200"}), roles=as_made(made))

        assert {each.manifest["spec"]["hardware"]["gpu"] for each in writes.roles} == {"H200"}


def an_edited_role(made):
    roles = as_made(made)
    roles[1]["spec"]["slo"]["timePerOutputToken"]["p95"] = "1s"
    return roles


class TestAnEditOfARole:
    def test_of_its_split_is_no_plan(self, made):
        roles = as_made(made)
        roles[1]["spec"]["hardware"]["parallelism"]["tensor"] = 4
        writes, _ = ticked(an_object(hardware={"gpu": "H100"}), roles=roles)

        assert {
            each.manifest["spec"]["hardware"]["parallelism"]["tensor"] for each in writes.roles
        } == {1}

    def test_is_named_and_is_no_change_under_way(self, made):
        said = conditions(ticked(an_object(), roles=an_edited_role(made))[0])

        assert said["Drifted"].reason == "SpecEdited"
        assert "llama-decode spec.slo.timePerOutputToken.p95" in said["Drifted"].message
        assert "Reconciling" not in said

    def test_that_comes_back_is_reapplied_once_in_five_minutes(self, made):
        roles, memory, written_s, now_s = an_edited_role(made), None, [], NOW_S
        while now_s < NOW_S + 900:
            writes, memory = ticked(an_object(), roles=roles, memory=memory, fleet={"now_s": now_s})
            written_s += [now_s - NOW_S] if writes.roles else []
            now_s += 15
        pauses_s = [after - before for before, after in pairwise(written_s)]

        assert written_s[0] == 0
        assert len(pauses_s) >= 2
        assert all(240 <= each <= 315 for each in pauses_s)

    def test_adds_no_variable_to_those_that_the_spec_has(self):
        pods = {"env": [{"name": "A", "secretKeyRef": {"name": "some", "key": "a"}}]}
        allowed = {"settings": {"pod_templates": True}}
        roles = as_made(ticked(an_object(pods=pods), fleet=allowed)[0])
        roles[1]["spec"]["pods"]["env"].append(pods["env"][0] | {"name": "B"})
        writes, _ = ticked(an_object(pods=pods), roles=roles, fleet=allowed)

        assert [each.role for each in writes.roles] == ["decode"]

    def test_that_could_not_be_written_over_is_written_over_in_the_next_tick(self, made):
        state = a_state(an_object(), replicas=None, roles=there(an_edited_role(made)))
        outcome = tick(a_fleet(state), Memory())
        held = {state.view.uid: {WriteKind.TEMPLATE: Result()}}
        memory = with_results(outcome, held, before=Memory(), now_s=NOW_S)
        later = {"now_s": NOW_S + 15}
        writes, _ = ticked(an_object(), roles=an_edited_role(made), memory=memory, fleet=later)

        assert [each.role for each in writes.roles] == ["decode"]

    def test_is_forgotten_when_it_stays_away(self, made):
        _, memory = ticked(an_object(), roles=an_edited_role(made))
        for later_s in (60, 400):
            later = {"now_s": NOW_S + later_s}
            _, memory = ticked(an_object(), roles=as_made(made), memory=memory, fleet=later)
        writes, _ = ticked(an_object(), roles=an_edited_role(made), memory=memory, fleet=later)

        assert [each.role for each in writes.roles] == ["decode"]


class TestWhereNothingIsMade:
    def test_the_mode_forbids_it(self):
        scaling = {"mode": "Recommend", "maxReplicas": 16}
        writes, _ = ticked(an_object(scaling=scaling))

        assert writes.roles == ()
        assert conditions(writes)["Ready"].reason == "StatusOnly"

    def test_and_roles_that_there_are_follow_the_mode(self, made):
        scaling = {"mode": "Paused", "maxReplicas": 16}
        writes, _ = ticked(an_object(scaling=scaling), roles=as_made(made)[:1])

        (only,) = writes.roles
        assert (only.role, only.manifest["spec"]["scaling"]["mode"]) == ("prefill", "Paused")

    def test_the_operator_only_scales(self):
        writes, _ = ticked(an_object(), fleet={"settings": {"mode": "scaleOnly"}})

        assert writes.roles == ()
        assert conditions(writes)["PlanValid"].reason == "ScaleOnly"

    def test_the_operator_recommends(self, made):
        """The spec is read as Recommend then: the verdict, and no role is made or changed."""
        advised = an_object(scaling={"mode": "Recommend", "maxReplicas": 16})
        fleet = {"settings": {"mode": "recommend"}}
        fresh, _ = ticked(advised, fleet=fleet)
        stale = {**as_made(made)[0], "spec": as_made(made)[0]["spec"] | {"contextLength": 16384}}
        left, _ = ticked(advised, roles=[stale], fleet=fleet)

        assert (fresh.roles, left.roles) == ((), ())
        assert conditions(fresh)["PlanValid"].message.startswith("two roles: ")

    def test_the_name_of_a_role_is_taken(self, made):
        prefill, decode = as_made(made)
        other = decode | {"metadata": decode["metadata"] | {"ownerReferences": []}}
        writes, _ = ticked(an_object(), roles=[prefill, other])

        assert writes.roles == ()
        assert conditions(writes)["Stalled"].reason == "NameConflict"

    def test_one_fleet_runs_already(self):
        writes, _ = ticked(an_object(), replicas=2)

        assert writes.roles == ()
        assert conditions(writes)["Stalled"].reason == "NameConflict"
        assert "serves both roles" in conditions(writes)["Stalled"].message

    def test_engines_hand_nothing_over(self):
        writes, _ = ticked(an_object(engine={"version": "0.20"}))

        assert conditions(writes)["PlanValid"].reason == "UnsupportedEngine"

    def test_the_object_is_about_to_go(self, made):
        body = an_object()
        view = replace(model_view(body), deleted_at_s=0.0)
        writes, _ = ticked(body, roles=as_made(made)[:1], view=view)

        assert writes.roles == ()


class TestStatus:
    def test_waits_for_roles_that_say_nothing_yet(self, made):
        writes, _ = ticked(an_object(), roles=as_made(made))
        said = conditions(writes)

        assert (said["Ready"].status, said["Ready"].reason) == ("False", "RolesPending")
        assert "Reconciling" not in said

    def test_is_under_way_while_they_are_made(self, made):
        said = conditions(made)

        assert said["Reconciling"].message == "being made or updated: prefill, decode"
        assert said["Ready"].reason == "RolesPending"

    @pytest.mark.parametrize(
        ("states", "expected"),
        [
            (("True", "True"), "True"),
            (("True", "False"), "False"),
            (("Unknown", "True"), "Unknown"),
        ],
    )
    def test_is_ready_when_both_are(self, made, states, expected):
        roles = as_made(made)
        for body, state in zip(roles, states, strict=True):
            body["status"]["conditions"] = [a_condition("Ready", state, message=f"is {state}")]
        said = conditions(ticked(an_object(), roles=roles)[0])["Ready"]

        assert said.status == expected
        assert said.message == f"llama-prefill: is {states[0]}; llama-decode: is {states[1]}"

    def test_says_nothing_by_what_a_role_said_of_an_earlier_spec(self, made):
        met = [a_condition("Ready", "True")]
        roles = as_made(made, observedGeneration=0, conditions=met)

        assert conditions(ticked(an_object(), roles=roles)[0])["Ready"].reason == "RolesPending"

    @pytest.mark.parametrize(
        ("cells", "expected"),
        [(("met", "met"), "met"), (("", "TPOT 93%"), "TPOT 93%"), (("", ""), ""),
         (("TTFT 90%", "TPOT 93%"), "TTFT 90%, TPOT 93%")],
    )  # fmt: skip
    def test_shows_what_either_role_misses(self, made, cells, expected):
        roles = as_made(made)
        for body, cell in zip(roles, cells, strict=True):
            body["status"]["display"] = {"slo": cell}
        display = ticked(an_object(), roles=roles)[0].status.display

        assert (display.slo, display.reason) == (expected, "Topology")

    def test_leaves_series_of_replicas_to_the_roles(self, made):
        state = a_state(an_object(), replicas=None)
        outcome = tick(a_fleet(state), Memory())
        (found,) = outcome.found
        names = {each.family for each in gauges(found, outcome.memory.objects["uid-of-llama"])}

        assert "tonnage_condition" in names
        assert not {each for each in names if each.startswith("tonnage_replicas")}

    def test_stalls_where_one_does(self, made):
        roles = as_made(made)
        roles[1]["status"]["conditions"] = [a_condition("Stalled", "True", "WriteRefused")]
        said = conditions(ticked(an_object(), roles=roles)[0])

        assert said["Stalled"].reason == "WriteRefused"
        assert said["Stalled"].message == "llama-decode: why"

    def test_misses_the_slo_where_one_does(self, made):
        roles = as_made(made, conditions=[a_condition("SLOMet", "True", "TargetsMet")])
        roles[0]["status"]["conditions"] = [a_condition("SLOMet", "False", "TargetMissed")]
        said = conditions(ticked(an_object(), roles=roles)[0])

        assert (said["SLOMet"].status, said["SLOMet"].reason) == ("False", "TargetMissed")

    def test_counts_the_replicas_of_both(self, made):
        roles = as_made(made)
        for body, ready in zip(roles, (1, 2), strict=True):
            body["status"]["replicas"] = {
                "desired": 2, "current": 2, "ready": ready, "summary": f"{ready}/2"
            }  # fmt: skip
        replicas = ticked(an_object(), roles=roles)[0].status.replicas

        assert (replicas.desired, replicas.ready, replicas.summary) == (4, 3, "1/2 + 2/2")

    @pytest.mark.parametrize(("generation", "is_ready"), [(1, "True"), (2, "False")])
    def test_is_as_ready_as_its_roles_unless_a_new_spec_is_refused(
        self, made, generation, is_ready
    ):
        roles = as_made(made, conditions=[a_condition("Ready", "True", "MinimumReady")])
        refused = an_object(engine={"version": "0.20"}, generation=generation)
        said = conditions(ticked(refused, roles=roles)[0])

        assert said["Ready"].status == is_ready
        assert (said["PlanValid"].status, said["Stalled"].status) == ("False", "True")

    def test_is_under_way_while_a_new_spec_waits_for_its_search(self, made):
        roles = as_made(made, conditions=[a_condition("Ready", "True", "MinimumReady")])
        later = an_object(generation=2, demand=LONG_PROMPTS | {"requestsPerSecond": 10})
        state = a_state(later, replicas=None, roles=there(roles))

        def abandon():
            raise SearchAbandonedError("no time")

        (writes,) = tick(a_fleet(state), Memory(), on_search=abandon).writes
        said = conditions(writes)

        assert (said["Ready"].status, said["Reconciling"].reason) == ("False", "PlanPending")
        assert writes.status.replicas.summary == "0/0 + 0/0"

    def test_has_no_valid_plan_where_a_role_has_none(self, made):
        roles = as_made(made, conditions=[a_condition("PlanValid", "True")])
        roles[0]["status"]["conditions"] = [a_condition("PlanValid", "False", "SLOInfeasible")]
        said = conditions(ticked(an_object(), roles=roles)[0])["PlanValid"]

        assert (said.status, said.reason) == ("False", "SLOInfeasible")
        assert said.message.startswith("llama-prefill: why; ")

    def test_posts_no_event_of_what_a_role_posts_itself(self, made):
        bad = [a_condition(kind, "False") for kind in ("SLOMet", "CapacityAvailable", "PlanValid")]
        roles = as_made(made, conditions=[*bad, a_condition("Stalled", "True")])
        writes, _ = ticked(an_object(), roles=roles)

        assert conditions(writes)["SLOMet"].status == "False"
        assert writes.event_records == ()
