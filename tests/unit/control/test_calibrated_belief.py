"""What an object plans with where an engine of its key was calibrated."""

from dataclasses import replace

import pytest

from fleet_builders import NOW_S, a_fleet, a_memory, a_sizing, a_state, assessed, unmeasured
from measured_builders import a_posterior
from tonnage.api.status import Reason
from tonnage.control.input.state import Observed
from tonnage.control.learn.believed import (
    asked_with,
    belief,
    doubt_reasons,
    learn_from,
    observation,
    with_known_cache,
)
from tonnage.estimate.calibration import Calibrations, Scope, memory_key, speed_key
from tonnage.estimate.calibration_file import LoadTest, ReportedCache, key_of
from tonnage.estimate.learner import (
    PodWindow,
    constants_of,
    deviation_of_step,
    prior_posterior,
    slow_end,
)
from tonnage.estimate.planning_constants import step_ratio
from tonnage.estimate.posterior import MemoryReport, ObjectPosterior
from tonnage.estimate.speed import BusyWindow, PromptShape, predicted_gap_s
from tonnage.sizing.provenance import Figure, Origin
from tonnage.sizing.request import spread_of
from tonnage.sizing.split import Parallelism
from tonnage.sizing.step_time.step import Step

SIZING = a_sizing()
REQUEST, FLAGS = SIZING.request, SIZING.flags
PRIOR = prior_posterior(REQUEST.speed, spread_fraction=spread_of(REQUEST))
TESTED = a_posterior(
    overhead_factor=2.5,
    bandwidth_efficiency=0.55,
    prefill_efficiency=0.3,
    covariance=(1e-4, 0.0, 0.0, 1e-4, 0.0, 1e-4),
    learned_at_s=NOW_S - 90 * 86_400,
)
"""Measured on 2025-10-04, to one percent."""
SHARE = 0.8
MINE, KEY = "serving", speed_key(REQUEST, FLAGS)


def held_with(files=None, *, flags=FLAGS, speed=None):
    state = a_state()
    fleet = a_fleet(
        state,
        settings={"speed_range": SHARE},
        calibration_files=files or {},
        calibrations=Calibrations(speed=speed or {}),
    )
    return belief(REQUEST, flags, unmeasured(state, a_memory(state)), fleet)


def files_for(split=FLAGS.parallelism, request=REQUEST):
    return as_tested(TESTED, split, request)


def as_tested(speed, split=FLAGS.parallelism, request=REQUEST, cache=None):
    return {key_of(request, split).identity: LoadTest(speed=speed, cache=cache)}


def means(posterior):
    return (
        posterior.overhead_factor,
        posterior.bandwidth_efficiency,
        posterior.prefill_efficiency,
    )


def test_an_object_with_a_calibrated_engine_plans_with_its_constants():
    held, without = held_with(files_for()), held_with()

    asked = asked_with(REQUEST, held, held.asked.slow)

    assert asked.speed == constants_of(slow_end(TESTED, share=SHARE), REQUEST.speed)
    middle = constants_of(TESTED, REQUEST.speed)
    assert asked.speed.bandwidth_efficiency == pytest.approx(middle.bandwidth_efficiency, rel=0.01)
    assert asked.speed.per_step_s == pytest.approx(2.5 * REQUEST.speed.per_step_s, rel=0.01)
    assert step_ratio(without.asked.slow, without.posterior) - 1 == pytest.approx(
        spread_of(REQUEST)
    )
    assert step_ratio(held.asked.slow, held.posterior) - 1 < 0.01


def test_its_inputs_say_by_what_and_when_it_was_measured():
    held = held_with(files_for())

    [speed] = [
        each
        for each in asked_with(REQUEST, held, held.asked.slow).inputs
        if each.figure is Figure.SPEED
    ]

    assert speed.value.endswith(", measured by calibrate, 2025-10-04")
    assert speed.origin is Origin.MEASURED
    assert not held.is_measured


def test_the_reason_for_a_margin_names_it_too():
    doubtful = replace(TESTED, covariance=(0.0, 0.0, 0.0, 0.01, 0.0, 0.0))
    held = held_with(as_tested(doubtful))

    [reason] = doubt_reasons(held, share=SHARE)

    assert reason == Reason(
        code="CapacityUncertain",
        message="measured by calibrate, 2025-10-04: plan adds 7% to step time (80% interval)",
    )


def test_it_does_not_age():
    held = held_with(files_for())

    assert deviation_of_step(held.posterior) == pytest.approx(deviation_of_step(TESTED))


def test_what_it_left_open_is_no_more_in_doubt_than_without_it():
    vague = replace(TESTED, covariance=(1e-4, 0.0, 0.0, 1e-4, 0.0, 9.0))
    held = held_with(as_tested(vague))

    assert held.posterior.variances == pytest.approx((1e-4, 1e-4, PRIOR.covariance[5]))


@pytest.mark.parametrize(
    "files",
    [
        files_for(Parallelism(pipeline=2)),
        files_for(request=replace(REQUEST, kv_format="fp8")),
    ],
    ids=["another split", "another format"],
)
def test_another_engines_is_not_believed(files):
    held = held_with(files)

    assert held.prior == held.posterior == PRIOR
    assert held.calibrated_at_s is None


def test_an_open_split_has_the_catalogues_prior():
    assert held_with(files_for(), flags=None).posterior == PRIOR


def test_a_namespaces_own_evidence_stands_above_it():
    own = a_posterior(overhead_factor=1.2, num_windows=1, learned_at_s=NOW_S)

    held = held_with(files_for(), speed={Scope(MINE, KEY): own})

    assert means(held.posterior) == means(own)
    assert held.is_measured
    assert held.calibrated_at_s is None
    assert means(held.prior) == means(TESTED)


def test_it_stands_above_what_other_namespaces_say():
    others = a_posterior(num_windows=100)
    speed = {Scope(name, KEY): others for name in ("b", "c")}

    assert means(held_with(files_for(), speed=speed).posterior) == means(TESTED)
    assert means(held_with(speed=speed).posterior) == pytest.approx(means(others))


def a_window(model, posterior):
    """A minute of an engine that decodes 20 sequences, exactly as fast as it is believed to be."""
    step = Step(num_sequences=21, context_tokens=84_000)
    window = BusyWindow(
        gap_s=0.0,
        num_gaps=20_000,
        step=step,
        num_variance=0.0,
        prefill_s=None,
        num_prefills=20,
        prefill_step=step,
        prompts=PromptShape(
            new_tokens=4000,
            context_tokens=2000,
            scv=0,
            most_tokens=8192,
            chunks=1,
            answer_tokens=250,
        ),
        prompt_tokens_per_s=0,
        full_share=0.0,
    )
    truth = replace(model, constants=constants_of(posterior, model.constants))
    return replace(window, gap_s=predicted_gap_s(truth, window))


def learned_after(windows, *, slower=1.0):
    """What a namespace has learned after so many windows that began with the file."""
    state = a_state()
    settings = {"speed_range": SHARE}
    fleet = a_fleet(state, settings=settings, calibration_files=files_for())
    seen = observation(assessed(state, fleet=fleet))
    model = replace(SIZING.replica.model, constants=REQUEST.speed)
    window = a_window(model, TESTED)
    window = replace(window, gap_s=slower * window.gap_s)
    pods = (PodWindow(pod="a", model=model, engines=(window,)),)
    known, last = Calibrations(), {}
    for number in range(windows):
        now = replace(fleet, now_s=NOW_S + 60 * number)
        said = replace(seen, observed=Observed(windows=lambda: pods))
        known, last, _ = learn_from([said], known, last, now)
    return known.speed[seen.speed]


def test_the_learner_goes_on_from_it():
    after = learned_after(1)

    assert means(after) == pytest.approx(means(TESTED))
    assert after.num_windows == 1
    assert deviation_of_step(after) <= deviation_of_step(TESTED)


def test_an_engine_that_became_slower_than_its_file_is_believed_in_the_end():
    after = learned_after(12, slower=1.5)

    model = replace(SIZING.replica.model, constants=REQUEST.speed)
    believed_s, first_s = (a_window(model, each).gap_s for each in (after, TESTED))
    assert believed_s / first_s == pytest.approx(1.5, rel=0.05)


def test_old_evidence_is_no_more_in_doubt_than_the_file_alone():
    own = replace(TESTED, overhead_factor=2.4, num_windows=5, learned_at_s=NOW_S - 30 * 86_400)

    held = held_with(files_for(), speed={Scope(MINE, KEY): own})

    assert means(held.posterior) == pytest.approx(means(own))
    assert deviation_of_step(held.posterior) == pytest.approx(deviation_of_step(TESTED))


CACHE = ReportedCache(
    tokens=400_000.0,
    max_model_len=REQUEST.context_tokens,
    gpu_memory_utilization=FLAGS.gpu_memory_utilization,
)
MEMORY_KEY = memory_key(REQUEST, FLAGS)


def cache_known(*, own=None, reports=(), flags=FLAGS):
    """KV tokens that an object plans with whose engine was tested; own: what it reports itself."""
    state = a_state()
    files = as_tested(TESTED, cache=CACHE)
    known = {Scope(name, MEMORY_KEY): MemoryReport(kv_tokens=tokens) for name, tokens in reports}
    fleet = a_fleet(state, calibration_files=files, calibrations=Calibrations(memory=known))
    mine = ObjectPosterior(kv_tokens=own, memory_key=MEMORY_KEY if own else "")
    memory = a_memory(state, posterior=mine)
    return with_known_cache(REQUEST, flags, unmeasured(state, memory), fleet).measured_kv_tokens


class TestTheCacheOfALoadTest:
    def test_is_planned_with_until_engines_report(self):
        assert cache_known() == 400_000

    def test_stands_below_what_the_object_and_its_namespace_reported(self):
        assert cache_known(own=390_000) == 390_000
        assert cache_known(reports=[(MINE, 380_000)]) == 380_000

    def test_stands_above_what_other_namespaces_say(self):
        assert cache_known(reports=[(name, 300_000) for name in ("b", "c")]) == 400_000

    def test_is_none_of_an_engine_with_another_share_of_the_memory(self):
        assert cache_known(flags=replace(FLAGS, gpu_memory_utilization=0.5)) is None

    def test_moves_the_plan_and_says_so(self):
        found = self.planned(CACHE)

        assert found.chosen.sizing.kv_tokens == pytest.approx(400_000, rel=0.05)
        [message] = [r.message for r in found.decision.notes if r.code == "KVCacheCalibrated"]
        assert message == ("KV cache: 400,000 tokens of a rank, measured by calibrate, 2025-10-04")

    def test_without_one_is_not_spoken_of(self):
        found = self.planned(None)

        assert found.chosen.sizing.request.measured_kv_tokens is None
        assert "KVCacheCalibrated" not in {each.code for each in found.decision.notes}

    def planned(self, cache):
        state = a_state(engines=())
        fleet = a_fleet(state, calibration_files=as_tested(TESTED, cache=cache))
        return assessed(state, fleet=fleet)
