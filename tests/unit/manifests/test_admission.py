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
from tonnage.sizing.expected import may_refuse_late
from tonnage.sizing.request import ask, look_up
from tonnage.sizing.serving.flags import ChosenFlags, trial_of, with_queue_limits
from tonnage.sizing.serving.load_line import queue_limits, top_requests_per_s
from tonnage.sizing.serving.replica import own_prefill_s, running_limit
from tonnage.sizing.serving.trial import refused_share
from tonnage.sizing.workload import Lengths, Slo, Target

IN_TIME = {"version": "0.33", "admission": "inTime"}


def refusing(tokens=8100, reqs=70):
    sizing = a_sizing()
    limits = {"max_num_queued_tokens": tokens, "max_num_queued_reqs": reqs}
    return replace(sizing, flags=replace(sizing.flags, **limits))


def within(limit_s):
    return Slo(ttft=(Target(quantile=0.99, limit_s=limit_s),))


def arguments(sizing):
    made = deployment(a_model(engine=IN_TIME), sizing, SITE)
    [only] = made["spec"]["template"]["spec"]["containers"]
    return only["args"]


def test_the_engine_gets_both_limits_of_its_queue():
    written = arguments(refusing())

    assert written[written.index("--max-num-queued-tokens") + 1] == "8100"
    assert written[written.index("--max-num-queued-reqs") + 1] == "70"
    assert not any(each.startswith("--max-num-queued") for each in arguments(a_sizing()))


def test_all_is_the_default_and_changes_no_digest():
    given = {"version": "0.33", "admission": "all"}

    assert spec_digest(a_model(engine=given)) == spec_digest(a_model(engine={"version": "0.33"}))


@pytest.mark.parametrize(("written", "read"), [("8100", 8100), ("8k", 8000), ("8K", 8192)])
def test_what_runs_is_read_back_as_the_engine_reads_it(written, read):
    args = ["--max-num-seqs=8", "--max-num-batched-tokens=64", f"--max-num-queued-tokens={written}"]
    args += ["--max_num_queued_reqs", "12"]
    flags = read_flags(args, default_utilization=0.9)

    assert flags is not None
    assert (flags.max_num_queued_tokens, flags.max_num_queued_reqs) == (read, 12)
    assert without_capacity_flags(args) == ()


@pytest.mark.parametrize("limit", ["tokens=0", "reqs=0", "reqs=1k"])
def test_an_engine_that_refuses_everybody_is_none_that_can_be_sized(limit):
    args = ["--max-num-seqs=8", "--max-num-batched-tokens=64", f"--max-num-queued-{limit}"]

    assert read_flags(args, default_utilization=0.9) is None


def test_the_record_of_what_runs_holds_it():
    flags = refusing().flags

    assert flags_from_annotation(write_flags(flags)) == flags
    assert not {"maxNumQueuedTokens", "maxNumQueuedReqs"} & {
        *json.loads(write_flags(a_sizing().flags))
    }


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


def test_prefill_may_refuse():
    hardware = {"gpu": "H100", "gpusPerReplica": 1, "parallelism": {"tensor": 1}}
    slo = {"timeToFirstToken": {"p95": "2s"}}

    model = a_model(engine=IN_TIME | {"role": "prefill"}, hardware=hardware, slo=slo)

    assert model.spec.engine.admission == "inTime"


def test_decode_may_not_refuse_what_prefill_has_computed():
    with pytest.raises(InvalidSpecError, match=r"engine\.admission: .*prefill has computed"):
        a_model(engine=IN_TIME | {"role": "decode"})


def test_requests_wait_for_four_fifths_of_the_strictest_target_at_the_pace_of_a_full_replica():
    replica, workload = a_sizing().replica, a_sizing().request.workload
    slo = Slo(ttft=(Target(quantile=0.5, limit_s=1.0), *within(4.0).ttft))
    waiting = 0.8 * 4.0 * top_requests_per_s(replica, workload)

    number, _ = queue_limits(replica, workload, slo)

    assert number - running_limit(replica, workload) == pytest.approx(waiting, rel=0.05, abs=1)
    assert queue_limits(replica, workload, Slo()) == (None, None)


def test_prompts_wait_for_the_target_at_the_pace_at_which_a_full_batch_reads():
    sizing = a_sizing()
    replica, workload = sizing.replica, sizing.request.workload
    full = sizing.at_capacity

    _, tokens = queue_limits(replica, workload, within(40.0))

    read_s = tokens / 4000 * own_prefill_s(replica, workload, full, 4000)
    assert read_s == pytest.approx(40.0, rel=0.2)


def test_one_long_prompt_leaves_room_for_those_behind_it():
    """A limit of mean prompts refused everybody while one of twenty times the mean was read."""
    replica, workload = a_sizing().replica, a_sizing().request.workload
    chat = replace(workload, prompt=Lengths(mean_tokens=750, p99_tokens=13_700))

    number, tokens = queue_limits(replica, chat, within(4.0))

    mean_prompts = 0.8 * 4.0 * top_requests_per_s(replica, chat) * 750
    assert mean_prompts < 13_700 < tokens
    assert number < running_limit(replica, chat) + tokens / 750


def test_next_to_nobody_is_refused_at_a_load_that_fits():
    """Of the limit of mean prompts alone it was one in forty."""
    request, replica = a_sizing().request, a_sizing().replica
    chat = replace(
        request.workload,
        prompt=Lengths(mean_tokens=750, p99_tokens=9_000),
        output_tokens=1500.0,
    )
    top = top_requests_per_s(replica, chat)
    trial = trial_of(replace(request, workload=chat), replica)
    number, tokens = queue_limits(replica, chat, within(2.0))

    def refused(requests, tokens):
        return refused_share(trial, 0.8 * top, 10_000, most_requests=requests, most_tokens=tokens)

    assert refused(0, 0) == 0
    assert refused(0, int(max(4, 0.8 * 2.0 * top) * 750)) > 0.02
    assert refused(number, tokens) < 0.001


def test_four_requests_may_wait_in_any_case_and_a_long_prompt_beside_them():
    replica, workload = a_sizing().replica, a_sizing().request.workload

    number, tokens = queue_limits(replica, workload, within(0.01))

    assert (number - running_limit(replica, workload), tokens) == (4, round(tokens, -2))
    assert tokens == pytest.approx(workload.prompt.quantile(0.99) + 4 * 4000, rel=0.05)


def test_ranks_count_requests_together_and_prompts_each_for_itself():
    """So a limit of tokens would be that of one server, and who chooses it is not known."""
    replica, workload = a_sizing().replica, a_sizing().request.workload
    shard = replica.model.shard
    shard = replace(shard, parallelism=replace(shard.parallelism, data=2))
    ranks = replace(replica, model=replace(replica.model, shard=shard))

    number, tokens = queue_limits(ranks, workload, within(8.0))

    assert tokens is None
    assert number > running_limit(ranks, workload) > running_limit(replica, workload)


def test_what_runs_has_its_limits_and_a_plan_those_it_would_have():
    spec = a_model(engine=IN_TIME, slo={"timeToFirstToken": {"p95": "8s"}}).spec
    request, sizing = ask(spec, look_up(spec, built_in_gpus())), refusing(500, 60)
    live = replace(request, flags=sizing.flags)

    def limits(asked):
        chosen = ChosenFlags(flags=a_sizing().flags, replica=sizing.replica)
        found = with_queue_limits(asked, chosen)
        return found.max_num_queued_reqs, found.max_num_queued_tokens

    assert limits(live) == (60, 500)
    assert limits(request) == queue_limits(sizing.replica, request.workload, request.slo)
    assert limits(a_sizing().request) == (None, None)


def test_where_prompts_take_all_of_the_budget_of_ranks_those_that_run_count_and_no_free_slots():
    replica, workload = a_sizing().replica, a_sizing().request.workload
    shard = replica.model.shard
    shard = replace(shard, parallelism=replace(shard.parallelism, data=8))
    ranks = replace(replica, model=replace(replica.model, shard=shard))
    prefill = replace(workload, output_tokens=1.0)

    number, _ = queue_limits(ranks, prefill, within(2.0))

    assert number < 0.5 * running_limit(ranks, prefill)


@pytest.mark.parametrize(("tokens", "reqs"), [(8100, None), (None, 70), (8100, 70)])
def test_either_limit_refuses(tokens, reqs):
    assert refusing(tokens, reqs).flags.refuse_requests
    assert not refusing(None, None).flags.refuse_requests


@pytest.mark.parametrize(
    ("may", "engine", "slo"),
    [
        (True, {}, {"timeToFirstToken": {"p95": "2s"}}),
        (True, {"role": "prefill"}, {"timeToFirstToken": {"p95": "2s"}}),
        (False, {"role": "decode"}, {"timePerOutputToken": {"p95": "50ms"}}),
        (False, {"version": "0.31"}, {"timeToFirstToken": {"p95": "2s"}}),
        (False, {"admission": "inTime"}, {"timeToFirstToken": {"p95": "2s"}}),
        (False, {}, {"timePerOutputToken": {"p95": "50ms"}}),
    ],
)
def test_is_offered_where_it_would_do_something_and_is_not_set(may, engine, slo):
    engine = {"version": "0.33"} | engine

    hardware = {"gpu": "H200", "gpusPerReplica": 2, "parallelism": {"tensor": 2}}
    spec = a_model(engine=engine, slo=slo, hardware=hardware).spec

    assert may_refuse_late(spec, engine["version"]) is may
