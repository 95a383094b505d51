"""``model.kvOffload`` in mode Auto: chosen with the plan, kept while it runs, measured by day."""

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
    a_state,
    answer_to,
    assessed,
    managed_by,
    remembering,
)
from measured_builders import an_engine
from tonnage.api.objects import parse_model_deployment
from tonnage.catalog.gpu import built_in_gpus
from tonnage.control.input.memory import Memory
from tonnage.control.measure.host_cache import asked_of, counted
from tonnage.control.report.status import report
from tonnage.control.tick import tick
from tonnage.estimate.host_cache import HostCacheDay, HostCacheShare
from tonnage.estimate.posterior import ObjectPosterior
from tonnage.manifests.arguments import argument_pairs
from tonnage.manifests.names import FLAGS_ANNOTATION
from tonnage.sizing.request import ask, look_up
from tonnage.units import DAY_S, GIB, HOUR_S

WORTH_IT, WITHIN = 900_000, 100_000
"""Tokens: the cache of a replica has 545,000."""
WINDOW_S = 60
FLAG = "--kv-offloading-size"
ALLOCATOR = {
    "env": [{"name": "PYTORCH_CUDA_ALLOC_CONF", "secretKeyRef": {"name": "a", "key": "b"}}]
}

OVER_NODES = {"hardware": {"gpu": "H200", "gpusPerReplica": 16}}
DEAR = {
    "model": {
        "id": "meta-llama/Llama-3.1-70B-Instruct",
        "kvOffload": {"mode": "Auto", "gib": 2000, "workingSetTokens": 1_000_000},
    },
    "hardware": {"gpu": "H100"},
    "contextLength": 16_384,
    "slo": {"timeToFirstToken": {"p95": "8s"}, "timePerOutputToken": {"p95": "150ms"}},
    "demand": {
        "requestsPerSecond": "0.3",
        "promptTokens": {"mean": 2000, "p99": 8000},
        "outputTokens": {"mean": 800},
    },
}
"""Three pipeline stages, or four ranks without any."""


def auto(working_set_tokens=WORTH_IT, *, gib=300, **spec):
    given = {"gib": gib, "workingSetTokens": working_set_tokens}
    cache = {"mode": "Auto"} | {key: value for key, value in given.items() if value is not None}
    return a_manifest(**{"model": SPEC["model"] | {"kvOffload": cache}} | spec)


def running(manifest, *, has_cache):
    """Our Deployment as it was made for a spec, with the cache or without."""
    model = parse_model_deployment(manifest)
    request = ask(model.spec, look_up(model.spec, built_in_gpus()), has_host_cache=has_cache)
    return a_deployment_body(model, sizing=answer_to(request))


def verdict_of(found, state):
    """What the plan in status says of it."""
    plan = report(found, a_fleet(state)).status.plan
    return next((each.message for each in plan.reasons if each.code == "KVOffload"), None)


def cache_gib(template):
    [container] = template["spec"]["template"]["spec"]["containers"]
    size = dict(argument_pairs(container["args"])).get(FLAG)
    return size and int(size)


def gave(manifest, share):
    """What is known of an object whose cache gave so much of the prompts."""
    spec = parse_model_deployment(manifest).spec
    return ObjectPosterior(host_cache=HostCacheShare(asked=asked_of(spec), fraction=share))


class TestTheFirstPlan:
    def test_has_it_where_the_working_set_is_worth_it(self):
        state = a_state(auto(), replicas=None)
        found = assessed(state)

        assert cache_gib(found.template) == 275
        record = json.loads(found.template["metadata"]["annotations"][FLAGS_ANNOTATION])
        assert record["hostCache"] == 275
        assert verdict_of(found, state).startswith(
            "Auto: on, 275 GiB a replica; worth it: the working"
        )

    def test_has_none_where_the_gpus_hold_it(self):
        state = a_state(auto(WITHIN), replicas=None)
        found = assessed(state)

        assert cache_gib(found.template) is None
        assert "hostCache" not in found.template["metadata"]["annotations"][FLAGS_ANNOTATION]
        assert verdict_of(found, state).startswith(
            "Auto: off; not worth it: the working set of 100,000"
        )

    @pytest.mark.parametrize(
        ("manifest", "why"),
        [
            (auto(gib=200), "takes 274.7 GiB of host memory, there are 200.0 GiB"),
            (auto(None), "Auto: off; model.kvOffload.workingSetTokens is not given"),
            (auto(gib=None), "Auto: off; model.kvOffload.gib is not given, nor is host_cache_by"),
            (auto(engine={"version": "0.30"}), "kvOffload needs engine.version 0.31"),
            (auto(pods=ALLOCATOR), "does not go with pods.env PYTORCH_CUDA_ALLOC_CONF"),
        ],
    )
    def test_says_why_it_has_none(self, manifest, why):
        state = a_state(manifest, replicas=None)
        found = assessed(state)

        assert found.refusal is None
        assert cache_gib(found.template) is None
        assert why in verdict_of(found, state)

    def test_asks_the_gpu_class_where_the_spec_does_not_say_how_much_there_is(self):
        gpus = {
            name: replace(each, host_cache_bytes=150 * GIB)
            for name, each in built_in_gpus().items()
        }
        state = a_state(auto(gib=None), replicas=None)

        found = assessed(state, fleet=a_fleet(state, gpus=gpus))

        assert cache_gib(found.template) == 275

    @pytest.mark.parametrize(
        ("manifest", "why"),
        [
            (
                auto(hardware={"gpu": "H200", "parallelism": {"tensor": 1, "pipeline": 2}}),
                "Auto: off; hardware.parallelism.pipeline: no KV cache of pipeline stages is moved",
            ),
            (auto(9_000_000, gib=4000, **OVER_NODES), "; no plan has it: "),
            (auto(**DEAR), "; the plan with it costs 27.52 USD per hour, the plan without it 20."),
        ],
    )
    def test_says_why_the_plan_with_it_is_not_taken(self, manifest, why):
        state = a_state(manifest, replicas=None)
        found = assessed(state)

        assert FLAG not in json.dumps(found.template)
        assert why in verdict_of(found, state)
        assert "what runs" not in verdict_of(found, state)


class TestWhatRuns:
    @pytest.mark.parametrize(
        ("working_set_tokens", "has_cache", "verdict"),
        [
            (WORTH_IT, False, "Auto: off; worth it: "),
            (WITHIN, True, "Auto: on, 31 GiB a replica; not worth it: "),
        ],
    )
    def test_stays_whatever_the_verdict_has_become(self, working_set_tokens, has_cache, verdict):
        manifest = auto(working_set_tokens)
        state = a_state(manifest, live=running(manifest, has_cache=has_cache))

        found = assessed(state)

        assert found.template is None
        assert found.sizing.request.has_host_cache is has_cache
        assert verdict_of(found, state).startswith(verdict)
        assert verdict_of(found, state).endswith(
            "what runs stays until the spec asks for other engines, within 10% even then"
        )

    @pytest.mark.parametrize("has_cache", [True, False])
    def test_stays_when_only_pods_change(self, has_cache):
        live = running(auto(), has_cache=has_cache)
        state = a_state(auto(pods={"labels": {"team": "a"}}), live=live)

        found = assessed(state)

        assert found.changes
        assert (cache_gib(found.template) is not None) is has_cache

    def test_goes_where_no_engine_can_have_it_any_more(self):
        state = a_state(auto(pods=ALLOCATOR), live=running(auto(), has_cache=True))

        assert cache_gib(assessed(state).template) is None

    @pytest.mark.parametrize("has_cache", [True, False])
    def test_stays_while_the_working_set_of_a_new_spec_is_near_the_limit(self, has_cache):
        state = a_state(auto(), replicas=None)
        holds = int(
            verdict_of(assessed(state), state)
            .partition("beyond the ")[2]
            .split()[0]
            .replace(",", "")
        )
        live = running(auto(), has_cache=has_cache)

        near, far = (
            assessed(a_state(auto(round(share * holds)), live=live)) for share in (1.05, 1.2)
        )

        assert near.sizing.request.has_host_cache is has_cache
        assert far.sizing.request.has_host_cache

    @pytest.mark.parametrize(
        ("share", "gib", "takes"),
        [(1.01, 300, 275), (1.1, 400, 275), (0.7, 300, 275), (1.2, 400, 330), (0.8, 250, 220)],
    )
    def test_has_the_same_size_while_that_holds_about_the_working_set(self, share, gib, takes):
        live = running(auto(), has_cache=True)
        state = a_state(auto(round(share * WORTH_IT), gib=gib), live=live)

        found = assessed(state)

        assert cache_gib(found.template) == takes
        assert bool(found.changes) is (takes != 275)
        assert verdict_of(found, state).startswith(f"Auto: on, {takes} GiB a replica; worth it: ")

    def test_has_the_recorded_size_where_the_spec_does_not_change(self):
        grown = auto(round(1.01 * WORTH_IT))
        made = assessed(a_state(grown, live=running(auto(), has_cache=True))).template
        manifest = json.loads(json.dumps(made))
        manifest["metadata"] |= {"uid": "uid-of-deployment", "generation": 1}

        found = assessed(a_state(grown, live=running(auto(), has_cache=True) | manifest))

        assert found.template is None

    def test_comes_back_as_it_was_where_somebody_edited_it(self):
        live = running(auto(), has_cache=True)
        [container] = live["spec"]["template"]["spec"]["containers"]
        at = container["args"].index(FLAG)
        del container["args"][at : at + 4]
        live["metadata"]["managedFields"] += managed_by("kubectl-edit", "f:template")

        found = assessed(a_state(auto(), live=live))

        assert cache_gib(found.template) == 275

    def test_is_not_taken_from_a_template_that_somebody_wrote(self):
        live = running(auto(WITHIN), has_cache=False)
        [container] = live["spec"]["template"]["spec"]["containers"]
        container["args"] += [FLAG, "9"]

        assert not assessed(a_state(auto(WITHIN), live=live)).sizing.request.has_host_cache


class TestWhatIsMeasured:
    def test_replaces_no_pods_by_itself(self):
        manifest = auto()
        state = a_state(manifest, live=running(manifest, has_cache=True))

        found = assessed(state, memory=a_memory(state, posterior=gave(manifest, 0.004)))

        assert found.template is None
        assert verdict_of(found, state).endswith(
            "0.4% of prompt tokens came from it on a day, halved for each day since, "
            "its copies take 2% to pay; it goes with the next change of the pod template"
        )

    def test_takes_it_away_when_pods_are_replaced_anyway(self):
        changed = auto(pods={"labels": {"team": "a"}})
        state = a_state(changed, live=running(auto(), has_cache=True))

        little, much = (
            assessed(state, memory=a_memory(state, posterior=gave(changed, share)))
            for share in (0.004, 0.3)
        )

        assert cache_gib(little.template) is None
        assert not little.sizing.request.has_host_cache
        assert verdict_of(little, state).startswith("Auto: off; worth it: ")
        assert cache_gib(much.template) == 275
        assert verdict_of(much, state).startswith("Auto: on, 275 GiB a replica; worth it: ")

    def test_takes_nothing_away_with_a_change_that_replaces_no_pods(self):
        changed = auto(pods={"maxSurge": 0})
        state = a_state(changed, live=running(auto(), has_cache=True))

        found = assessed(state, memory=a_memory(state, posterior=gave(changed, 0.004)))

        assert found.changes == ()
        assert cache_gib(found.template) == 275

    def test_keeps_it_away_until_the_spec_says_something_new_of_it(self):
        live = running(auto(), has_cache=False)
        same, other = auto(engine={"version": "0.32"}), auto(2 * WORTH_IT, gib=900)
        states = [a_state(each, live=live) for each in (same, other)]

        later, asked = (
            assessed(state, memory=a_memory(state, posterior=gave(auto(), 0.004)))
            for state in states
        )

        assert cache_gib(later.template) is None
        assert verdict_of(later, states[0]).startswith("Auto: off; worth it: ")
        assert cache_gib(asked.template) == 550

    def test_is_said_as_what_is_left_of_a_day(self):
        manifest = auto()
        state = a_state(manifest, live=running(manifest, has_cache=True))
        memory = watched(auto(), moved=0.0, memory=a_memory(state, posterior=gave(auto(), 0.3)))

        found = assessed(state, memory=memory)

        assert verdict_of(found, state).endswith(
            "15.0% of prompt tokens came from it on a day, halved for each day since"
        )

    def test_is_said_of_a_cache_that_the_spec_gives_too(self):
        manifest = a_manifest(model=SPEC["model"] | {"kvOffload": {"gib": 300}})
        state = a_state(manifest)

        found = assessed(state, memory=a_memory(state, posterior=gave(manifest, 0.004)))

        assert verdict_of(found, state) == (
            "0.4% of prompt tokens came from it on a day, halved for each day since, "
            "its copies take 2% to pay; take the field out"
        )


def watched(manifest, *, has_cache=True, until_s=DAY_S, memory=None, **rates):
    """The memory after windows of a minute each, in which engines say so."""
    said = {
        f"{name}_prompt_tokens_per_s": rate
        for name, rate in ({"moved": 40.0, "started": 1000.0} | rates).items()
    }
    engines = tuple(an_engine(pod, **said) for pod in "ab")
    state = a_state(manifest, live=running(manifest, has_cache=has_cache), engines=engines)
    memory, sizing = memory or a_memory(state), assessed(state).sizing
    for number in range(until_s // WINDOW_S + 1):
        fleet = a_fleet(state, now_s=NOW_S + number * WINDOW_S)
        day, share = counted(memory, state, fleet, sizing)
        posterior = replace(memory.posterior, host_cache=share)
        memory = remembering(memory, host_cache=day, posterior=posterior)
    return memory


def test_a_day_of_ticks_that_gave_nothing_takes_it_away_with_the_next_rollout():
    live = running(auto(), has_cache=True)
    gave_nothing = {"moved_prompt_tokens_per_s": 0.0, "started_prompt_tokens_per_s": 1000.0}
    state = a_state(auto(), live=live)
    engines = tuple(replace(each, **gave_nothing) for each in state.engines)
    state, memory = replace(state, engines=engines), Memory()
    for at_s in range(0, DAY_S + 4 * WINDOW_S, 2 * WINDOW_S):
        outcome = tick(a_fleet(state, now_s=NOW_S + at_s), memory)
        assert [each.template for each in outcome.writes] == [None]
        memory = outcome.memory
    changed = a_state(auto(pods={"labels": {"team": "a"}}), live=live, engines=engines)

    [writes] = tick(a_fleet(changed, now_s=NOW_S + at_s), memory).writes

    assert cache_gib(writes.template) is None


class TestWhatIsAsked:
    def test_has_the_same_digest_in_every_release(self):
        assert asked_of(parse_model_deployment(auto()).spec) == "89321a64923c"

    @pytest.mark.parametrize(
        "spec",
        [
            {"hardware": SPEC["hardware"] | {"nodeLink": "50GB/s"}},
            {"engine": {"version": "0.32"}},
            {"model": SPEC["model"] | {"kvOffload": {"gib": 300, "workingSetTokens": WORTH_IT}}},
        ],
    )
    def test_is_the_same_with_what_says_nothing_of_it(self, spec):
        asked, other = (parse_model_deployment(each).spec for each in (auto(), auto(**spec)))

        assert asked_of(asked) == asked_of(other)

    @pytest.mark.parametrize(
        "manifest", [auto(gib=200), auto(hardware=SPEC["hardware"] | {"gpu": "H100"})]
    )
    def test_is_another_with_other_memory(self, manifest):
        asked, other = (parse_model_deployment(each).spec for each in (auto(), manifest))

        assert asked_of(asked) != asked_of(other)


class TestADay:
    def test_is_remembered_when_it_is_whole(self):
        assert watched(auto()).posterior.host_cache == HostCacheShare(
            asked=asked_of(parse_model_deployment(auto()).spec), fraction=pytest.approx(0.04)
        )
        assert watched(auto(), until_s=23 * HOUR_S).posterior.host_cache is None

    def test_lasts_until_the_cache_was_filled_and_could_be_used(self):
        # 10 tokens/s are 864,000 a day, twice the working set 1,800,000: two days and an hour.
        assert (
            watched(auto(), moved=0.0, started=10.0, until_s=2 * DAY_S).posterior.host_cache is None
        )
        assert watched(auto(), moved=0.0, started=10.0, until_s=3 * DAY_S).posterior.host_cache

    def test_lasts_so_long_for_what_host_memory_holds_where_no_working_set_is_given(self):
        always = a_manifest(model=SPEC["model"] | {"kvOffload": {"gib": 275}})

        for days, is_whole in ((2, False), (3, True)):
            after = watched(always, moved=0.0, started=10.0, until_s=days * DAY_S)
            assert (after.posterior.host_cache is not None) is is_whole

    def test_without_traffic_says_nothing(self):
        assert (
            watched(auto(), moved=0.0, started=0.0, until_s=2 * DAY_S).posterior.host_cache is None
        )

    def test_in_which_engines_say_nothing_is_none(self):
        assert watched(auto(), moved=None, until_s=2 * DAY_S).posterior.host_cache is None

    def test_without_the_cache_is_none(self):
        known = gave(auto(), 0.1)
        state = a_state(auto())
        memory = a_memory(state, posterior=known)

        after = watched(auto(), has_cache=False, moved=0.0, until_s=2 * DAY_S, memory=memory)

        assert after.posterior.host_cache == known.host_cache

    def test_that_gave_nothing_halves_what_days_before_gave(self):
        state = a_state(auto())
        memory = a_memory(state, posterior=gave(auto(), 0.3))

        after = watched(auto(), moved=0.0, memory=memory)

        assert after.posterior.host_cache.fraction == 0.15

    def test_of_another_cache_begins_anew(self):
        state = a_state(auto())
        known = HostCacheDay(asked="another", counted_at_s=NOW_S, watched_s=DAY_S, started_tokens=9)
        memory = remembering(a_memory(state, posterior=gave(auto(gib=999), 0.3)), host_cache=known)

        after = watched(auto(), moved=0.0, memory=memory)

        assert after.posterior.host_cache.fraction == 0.0

    def test_has_no_tokens_of_the_time_without_ticks(self):
        day = HostCacheDay(asked="k", counted_at_s=0.0)

        after = day.with_window(moved_per_s=1.0, started_per_s=2.0, at_s=DAY_S, longest_s=120.0)

        assert (after.watched_s, after.moved_tokens, after.started_tokens) == (120.0, 120.0, 240.0)
