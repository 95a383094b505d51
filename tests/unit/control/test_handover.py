"""What is late or waits because of the link between two roles, or of the other role."""

import math

import pytest

from fleet_builders import (
    a_deployment_body,
    a_fleet,
    a_manifest,
    a_memory,
    a_sizing,
    a_state,
    assessed,
    engines_at,
    remembering,
)
from measured_builders import missed_before, steady_lengths
from tonnage.api.objects import parse_model_deployment
from tonnage.control.report.status import report

INF = math.inf
CACHE_TOKENS = 100_000
LOAD = 1.8


def a_role(role):
    return a_manifest(
        engine={"version": "0.33", "role": role},
        hardware={"gpu": "H200", "parallelism": {"tensor": 1}},
        slo={"timeToFirstToken": {"p95": "2s"}},
        demand={"promptTokens": {"mean": 4000}, "outputTokens": {"mean": 1000}}
        | {"requestsPerSecond": 1, "cacheTransfer": "80ms"},
    )


def found(usage, running, *, role="prefill", waiting=400.0, **changes):
    """Return what is decided of two replicas at which requests wait, and nearly all are late."""
    manifest = a_role(role)
    model = parse_model_deployment(manifest)
    sizing = a_sizing(model)
    rate = LOAD * sizing.goodput_requests_per_s / 2
    full = {
        "waiting": waiting,
        "running": running,
        "mean_running": running,
        "kv_usage_fraction": usage,
        "kv_tokens": CACHE_TOKENS,
        "ttft_within": {2.0: 0.05 * rate, INF: rate},
        "lengths": steady_lengths(4000, 1),
    }
    engines = engines_at(LOAD, "ab", sizing=sizing, **full | changes)
    live = a_deployment_body(model, sizing=sizing)
    state = a_state(manifest=manifest, engines=engines, live=live)
    return assessed(state, memory=remembering(a_memory(state), tally=missed_before()))


def shown(assessment):
    return report(assessment, a_fleet(assessment.state)).status.measured


def reason(assessment):
    reasons = {each.code: each.message for each in assessment.decision.notes}
    return reasons.get("DecodeBacklogged")


class TestPromptsThatDecodeHasNotTaken:
    """Requests of 4,000 prompt tokens each in caches of 100,000."""

    def test_make_what_waits_for_their_room_no_lack_of_prefill(self):
        full = found(0.98, 1)

        assert full.decision.replicas == 2
        assert full.traffics.demand.waiting == 0
        assert shown(full).queue_depth.value == 800
        assert full.memory.posterior.goodput_factor == 1
        assert full.observed.attainments[0].cause.code == "CachesLate"
        assert reason(full) == (
            "800 queued for decode, not for prefill: prompts that decode has not "
            "loaded fill 94% of a KV cache"
        )

    @pytest.mark.parametrize(
        ("usage", "running"),
        [
            (0.98, 20),  # they run: the cache is full of what is being read
            (0.45, 0),  # on their way
            (0.1, 1),
        ],
    )
    def test_are_not_those_that_are_read_or_on_their_way(self, usage, running):
        full = found(usage, running)

        assert full.decision.replicas > 2
        assert full.memory.posterior.goodput_factor < 1
        assert reason(full) is None

    @pytest.mark.parametrize(
        "changes",
        [{"role": "decode"}, {"kv_tokens": None}, {"lengths": {}}, {"mean_running": None}],
    )
    def test_are_of_prefill_alone_and_known(self, changes):
        assert reason(found(0.98, 1, **changes)) is None
