"""``engine.admission: inTime``: what is rendered for it, and what runs when the spec changes."""

import json
from dataclasses import replace

import pytest

from fleet_builders import SITE, a_model, a_sizing
from tonnage.api.objects import InvalidSpecError
from tonnage.catalog.gpu import UnsupportedEngineError, built_in_gpus
from tonnage.manifests.arguments import read_flags, without_capacity_flags
from tonnage.manifests.children import (
    deployment,
    flags_from_annotation,
    running_model,
    spec_digest,
    write_flags,
)
from tonnage.manifests.names import SPEC_ANNOTATION
from tonnage.sizing.request import ask, look_up
from tonnage.sizing.serving.flags import max_queued_tokens_of
from tonnage.sizing.serving.load_line import max_queued_tokens, top_requests_per_s
from tonnage.sizing.workload import Slo, Target

IN_TIME = {"version": "0.33", "admission": "inTime"}


def refusing(number=8100):
    sizing = a_sizing()
    return replace(sizing, flags=replace(sizing.flags, max_num_queued_tokens=number))


def arguments(sizing):
    made = deployment(a_model(engine=IN_TIME), sizing, SITE)
    [only] = made["spec"]["template"]["spec"]["containers"]
    return only["args"]


def test_the_engine_is_told_how_many_tokens_may_wait():
    told = arguments(refusing())

    assert told[told.index("--max-num-queued-tokens") + 1] == "8100"
    assert "--max-num-queued-tokens" not in arguments(a_sizing())


def test_all_is_the_default_and_changes_no_digest():
    given = {"version": "0.33", "admission": "all"}

    assert spec_digest(a_model(engine=given)) == spec_digest(a_model(engine={"version": "0.33"}))


@pytest.mark.parametrize(("written", "read"), [("8100", 8100), ("8k", 8000), ("8K", 8192)])
def test_what_runs_is_read_back_as_the_engine_reads_it(written, read):
    args = ["--max-num-seqs=8", "--max-num-batched-tokens=64", f"--max-num-queued-tokens={written}"]
    flags = read_flags(args, default_utilization=0.9)

    assert flags is not None
    assert flags.max_num_queued_tokens == read
    assert without_capacity_flags(args) == ()


def test_an_engine_that_refuses_everybody_is_none_that_can_be_sized():
    args = ["--max-num-seqs=8", "--max-num-batched-tokens=64", "--max-num-queued-tokens=0"]

    assert read_flags(args, default_utilization=0.9) is None


def test_the_record_of_what_runs_holds_it():
    flags = refusing().flags

    assert flags_from_annotation(write_flags(flags)) == flags
    assert "maxNumQueuedTokens" not in json.loads(write_flags(a_sizing().flags))


def test_what_runs_is_sized_with_the_slo_of_its_time():
    model = a_model(engine=IN_TIME)
    made = deployment(model, refusing(), SITE)["metadata"]["annotations"][SPEC_ANNOTATION]
    today = a_model(engine={"version": "0.33"}, slo={"timePerOutputToken": {"p95": "50ms"}})

    assert running_model(today, made).spec.slo.time_to_first_token is not None


@pytest.mark.parametrize("slo", [None, {"timePerOutputToken": {"p95": "50ms"}}])
def test_without_a_ttft_target_it_is_refused_by_name(slo):
    with pytest.raises(InvalidSpecError, match=r"engine\.admission: inTime needs slo\.timeToFi"):
        a_model(engine=IN_TIME, slo=slo)


@pytest.mark.parametrize("version", ["0.28", "0.29", "0.31"])
def test_versions_that_do_not_count_refusals_are_refused(version):
    spec = a_model(engine=IN_TIME | {"version": version}).spec

    with pytest.raises(UnsupportedEngineError, match=r"0\.32; 0\.\d\d does not count"):
        look_up(spec, built_in_gpus())


def test_it_is_four_fifths_of_the_strictest_target_at_the_pace_of_a_full_replica():
    replica, request = a_sizing().replica, a_sizing().request
    rate = top_requests_per_s(replica, request.workload)
    slo = Slo(ttft=(Target(quantile=0.5, limit_s=1.0), Target(quantile=0.99, limit_s=4.0)))
    tokens = 0.8 * 4.0 * rate * 4000

    assert max_queued_tokens(replica, request.workload, slo) == pytest.approx(tokens, rel=0.05)
    assert max_queued_tokens(replica, request.workload, Slo()) == 0


def test_four_prompts_may_wait_in_any_case_and_nobody_is_refused_where_ranks_count_apart():
    replica, request = a_sizing().replica, a_sizing().request
    shard = replica.model.shard
    shard = replace(shard, parallelism=replace(shard.parallelism, data=2))
    ranks = replace(replica, model=replace(replica.model, shard=shard))
    slo = Slo(ttft=(Target(quantile=0.99, limit_s=8.0),))
    tight = Slo(ttft=(Target(quantile=0.99, limit_s=0.3),))

    assert max_queued_tokens(replica, request.workload, slo) > 4 * 4000
    assert max_queued_tokens(replica, request.workload, tight) == 4 * 4000
    assert max_queued_tokens(ranks, request.workload, slo) == 0


def test_what_runs_has_what_it_was_told_and_a_plan_what_it_would_be():
    spec = a_model(engine=IN_TIME, slo={"timeToFirstToken": {"p95": "8s"}}).spec
    request, sizing = ask(spec, look_up(spec, built_in_gpus())), refusing(500)

    told = replace(request, flags=sizing.flags)
    assert max_queued_tokens_of(told, sizing.replica) == 500
    assert max_queued_tokens_of(request, sizing.replica) > 500
    assert max_queued_tokens_of(a_sizing().request, sizing.replica) == 0
