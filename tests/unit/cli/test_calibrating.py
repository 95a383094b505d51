"""From timed loads to a calibration, and a replay against its prediction: values alone."""

from array import array
from dataclasses import replace

import pytest

from endpoint_double import MODEL
from tonnage.catalog.gpu import built_in_gpus
from tonnage.cli.answers.calibrating import (
    calibrate,
    calibration_of,
    hopes_of,
    typical_error,
)
from tonnage.cli.answers.loads import Room, loads_for
from tonnage.cli.answers.replayed import Targets, compare_with_model
from tonnage.cli.commands.calibration_plan import subject_of
from tonnage.cli.console import Failure
from tonnage.cli.load.replaying import ScheduledRequest, Sent
from tonnage.cli.load.stream import RequestResult, RequestSize
from tonnage.cli.load.sweep import LoadMeasurement
from tonnage.estimate.calibration_file import speed_posterior_of
from tonnage.estimate.learner import constants_of
from tonnage.estimate.speed import with_speed
from tonnage.sizing.request import Flags
from tonnage.sizing.split import Parallelism
from tonnage.sizing.step_time.step import Step

OUTSIDE_S = 0.004
ROOM = Room(context_tokens=8192, max_concurrency=16, max_seconds=300, max_ttft_s=30)


@pytest.fixture
def subject():
    return subject_of(
        {"id": MODEL}, Parallelism(), built_in_gpus(), gpu="L4", engine_version="0.33",
        context_tokens=8192,
    )  # fmt: skip


def test_ranks_over_nodes_are_not_fitted():
    with pytest.raises(Failure, match=r"^--data-parallel 16 is over several nodes, each of 8 GPUs"):
        subject_of(
            {"id": "deepseek-ai/DeepSeek-R1"}, Parallelism(data=16), built_in_gpus(), gpu="H100",
            engine_version="0.33", context_tokens=8192,
        )  # fmt: skip


def measured_on(model, load):
    """What a load shows on an engine behind a network of 4 ms."""
    if load.kind == "prefill":
        prompt = load.prompt_tokens
        work = Step(
            num_sequences=1, context_tokens=0, prefill_tokens=prompt,
            prefill_context_tokens=prompt / 2,
        )  # fmt: skip
        return LoadMeasurement(load=load, seconds=model.step(work).total_s + OUTSIDE_S, num_steps=3)
    context = load.sequences * (load.prompt_tokens + 20)
    work = Step(num_sequences=load.sequences, context_tokens=context)
    return LoadMeasurement(
        load=load, seconds=model.step(work).total_s, num_steps=60, context_tokens=context
    )


@pytest.fixture
def engine(subject):
    """The same engine with overheads of 3, bandwidth 0.6 and prefill 0.3."""
    constants = with_speed(subject.model.constants, overhead=3, bandwidth=0.6, prefill=0.3)
    return replace(subject.model, constants=constants)


@pytest.fixture
def found(subject, engine):
    loads = loads_for(ROOM, hopes_of(subject.model))
    return calibrate(subject, [measured_on(engine, load) for load in loads])


def test_constants_and_what_passes_outside_are_told_apart(found):
    # Overheads are 2.5 of 16 ms of a step of one: what passes outside takes a little of them.
    assert found.fit.overhead_factor == pytest.approx(3, rel=0.1)
    assert found.fit.bandwidth_efficiency == pytest.approx(0.6, rel=0.02)
    assert found.fit.prefill_efficiency == pytest.approx(0.3, rel=0.03)
    # A prompt of 16 tokens takes about 1 ms longer than a step of one sequence.
    assert found.outside_s == pytest.approx(OUTSIDE_S, abs=0.0015)
    assert typical_error(found.points, "decode", is_prior=True) > 0.3
    assert typical_error(found.points, "decode", is_prior=False) < 0.005


def test_the_file_says_what_could_not_be_seen(found):
    file = calibration_of(
        found, measured_at_s=1.0, num_requests=9, has_metrics=False, remarks=("alone",)
    )

    assert (file.has_metrics, file.cache, file.remarks) == (False, None, ("alone",))
    assert file.observed.mbu_fraction == pytest.approx(0.45, abs=0.1)
    assert file.observed.mfu_fraction < 0.3  # and no remark of its own: the fit leaves nothing


def test_the_learner_means_the_same_by_the_constants_of_a_file(found, subject):
    file = calibration_of(found, measured_at_s=1.0, num_requests=9, has_metrics=True)

    known = speed_posterior_of(file)

    assert constants_of(known, subject.request.speed) == found.request.speed


def test_an_engine_faster_than_its_class_is_doubted(subject, engine):
    fast = replace(
        engine, speeds=replace(engine.speeds, memory_bytes_per_s=3e12, peak_flop_per_s=1e15)
    )
    loads = loads_for(ROOM, hopes_of(subject.model))
    found = calibrate(subject, [measured_on(fast, load) for load in loads])
    file = calibration_of(found, measured_at_s=1.0, num_requests=9, has_metrics=True)

    remarks = " ".join(file.remarks)

    assert "another GPU class or split than L4 TP1?" in remarks
    assert "observed MBU is" in remarks


def test_an_engine_of_another_form_is_told(subject, engine):
    slow = replace(engine, constants=replace(engine.constants, per_sequence_s=0.005))
    loads = loads_for(ROOM, hopes_of(subject.model))
    found = calibrate(subject, [measured_on(slow, load) for load in loads])
    file = calibration_of(found, measured_at_s=1.0, num_requests=9, has_metrics=True)

    assert "do not express this engine" in " ".join(file.remarks)


def a_sent(step_s, *, every_s=1.0, cut=()):
    """20 requests, one at a time; what was cut off has no answer."""
    asked = RequestSize(prompt_tokens=16, output_tokens=11)
    due = tuple(ScheduledRequest(at_s=every_s * number, asked=asked) for number in range(20))
    ended = {
        number: RequestResult(
            asked=asked,
            due_s=each.at_s,
            status=200,
            output_tokens=11,
            event_s=array("d", [each.at_s + OUTSIDE_S + step_s * k for k in range(1, 12)]),
        )
        for number, each in enumerate(due)
        if number not in cut
    }
    return Sent(
        requests=due, ended=ended, num_left=0, num_too_long=0, num_cut=len(cut), num_failed=0
    )


FLAGS = Flags(
    max_num_seqs=2,
    max_num_batched_tokens=2048,
    gpu_memory_utilization=0.9,
    parallelism=Parallelism(),
)


def test_a_replay_is_held_against_the_engine_model_and_the_slo(found, engine):
    step_s = engine.step(Step(num_sequences=1, context_tokens=20)).total_s

    result = compare_with_model(
        a_sent(1.1 * step_s), found, FLAGS, kv_tokens=100_000.0,
        limits=Targets(ttft_s=1.0, tpot_s=step_s),
    )  # fmt: skip

    assert result.requests_per_s == pytest.approx(1)
    assert result.measured.tpot_s == pytest.approx((1.1 * step_s,) * 3)
    assert result.predicted.tpot_s == pytest.approx((step_s,) * 3, rel=0.02)
    assert result.targets_met() == {"TTFT": True, "TPOT": False}
    validation = result.validation("2026-11-20")
    assert validation.requests == 20
    assert validation.tpot_p95_error_fraction == pytest.approx(1 / 1.1 - 1, abs=0.02)


def test_answers_of_one_token_count_in_the_percentiles_of_tpot(found):
    targets, long = Targets(ttft_s=None, tpot_s=None), a_sent(0.02)
    one = RequestSize(prompt_tokens=16, output_tokens=1)
    requests = tuple(replace(each, asked=one) for each in long.requests[:19]) + long.requests[19:]
    ended = {
        number: replace(each, asked=one, output_tokens=1, event_s=each.event_s[:1])
        if number < 19
        else each
        for number, each in long.ended.items()
    }

    result = compare_with_model(
        replace(long, requests=requests, ended=ended), found, FLAGS, kv_tokens=None, limits=targets
    )

    for latencies in (result.measured, result.predicted):
        assert latencies.tpot_s[:2] == (0, 0)
        assert latencies.tpot_s[2] > 0


def test_requests_that_were_cut_off_still_took_their_share(found):
    crowded = a_sent(0.02, every_s=0.001, cut=range(10))

    alone = compare_with_model(
        a_sent(0.02), found, FLAGS, kv_tokens=None, limits=Targets(ttft_s=None, tpot_s=None)
    )
    result = compare_with_model(
        crowded, found, FLAGS, kv_tokens=None, limits=Targets(ttft_s=None, tpot_s=None)
    )

    assert len(result.sent.ended) == 10
    # Two slots: the last waits for nine others of eleven tokens each.
    assert result.predicted.ttft_s[-1] > 9 * 10 * 0.018
    assert alone.predicted.ttft_s[-1] < 0.05
    assert result.targets_met() == {}
