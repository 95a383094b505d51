"""``model.kvOffload`` in mode Auto: chosen with the plan, and unchanged while it runs."""

import json
from dataclasses import replace

import pytest

from fleet_builders import (
    SPEC,
    a_deployment_body,
    a_fleet,
    a_manifest,
    a_state,
    answer_to,
    assessed,
    managed_by,
)
from tonnage.api.objects import parse_model_deployment
from tonnage.catalog.gpu import built_in_gpus
from tonnage.control.report.status import report
from tonnage.manifests.arguments import argument_pairs
from tonnage.manifests.names import FLAGS_ANNOTATION
from tonnage.sizing.request import ask, look_up
from tonnage.units import GIB

WORTH_IT, WITHIN = 900_000, 100_000
"""Tokens: the cache of a replica has 545,000."""
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


def with_templates(state):
    """A fleet whose settings allow templates, and variables from Secrets."""
    return a_fleet(state, settings={"pod_templates": True})


def verdict_of(found, state):
    """What the plan in status says of it."""
    plan = report(found, a_fleet(state)).status.plan
    return next((each.message for each in plan.reasons if each.code == "KVOffload"), None)


def cache_gib(template):
    [container] = template["spec"]["template"]["spec"]["containers"]
    size = dict(argument_pairs(container["args"])).get(FLAG)
    return size and int(size)


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
            (auto(pods=ALLOCATOR), "does not go with the variable PYTORCH_CUDA_ALLOC_CONF"),
        ],
    )
    def test_says_why_it_has_none(self, manifest, why):
        state = a_state(manifest, replicas=None)
        found = assessed(state, fleet=with_templates(state))

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
            "what runs stays until the spec asks for other engines"
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

        assert cache_gib(assessed(state, fleet=with_templates(state)).template) is None

    @pytest.mark.parametrize(("share", "takes"), [(1.01, 278), (0.8, 220)])
    def test_has_the_size_of_the_working_set_of_a_new_spec(self, share, takes):
        state = a_state(auto(round(share * WORTH_IT)), live=running(auto(), has_cache=True))

        found = assessed(state)

        assert cache_gib(found.template) == takes
        assert verdict_of(found, state).startswith(f"Auto: on, {takes} GiB a replica; worth it: ")

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
