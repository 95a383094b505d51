from dataclasses import replace

import pytest

from replay_others.dynamo import Planner
from replay_others.dynamo_model import Limits, StepModel, plane_through
from replay_others.inside import Pass
from rival_builders import a_signal

pytestmark = pytest.mark.thorough

PLANE = (0.01, 2e-5, 1e-7)
LIMITS = Limits(max_batched_tokens=8192, max_num_seqs=64, kv_tokens=100_000, ttft_s=2.0, itl_s=0.02)
BUSY = Pass(decode_tokens=90_000, num_decoding=45, queued_tokens=200_000)
"""25 chunks wait: 25 x (0.01 + 0.009) + 2e-5 x 200,000 = 4.5 s, of 2 s."""
CALM = Pass(decode_tokens=10_000, num_decoding=5)


def a_model(**changes):
    return StepModel(plane=PLANE, **changes)


def test_a_plane_goes_through_steps_that_lie_on_it():
    samples = [(p, kv, 0.01 + 2e-5 * p + 1e-7 * kv) for p in (0, 500, 4000) for kv in (0, 50_000)]

    assert plane_through(samples) == pytest.approx(PLANE)


def test_too_few_steps_steps_alike_and_steps_that_fall_give_no_plane():
    assert plane_through([(0, 0, 1), (1, 0, 2), (0, 1, 2), (1, 1, 3)]) is None
    assert plane_through([(5, 5, 1)] * 8) is None
    assert plane_through([(p, kv, 1 - 0.1 * kv) for p in (0, 1, 2) for kv in (0, 1, 2)]) is None


def test_of_many_samples_the_oldest_of_the_fullest_bucket_goes():
    model = StepModel()
    model.take(Pass(prefill_tokens=8000, decode_tokens=90_000, wall_s=0.2))
    for n in range(70):
        model.take(Pass(prefill_tokens=n, decode_tokens=n, wall_s=0.01 + 1e-6 * n))

    assert len(model.samples) == 64
    assert model.samples[0][0] == 8000
    assert model.samples[1][0] == 7


def test_a_prompt_waits_for_the_chunks_before_it_and_its_own():
    model = a_model()
    model.prompts.append(2000.0)

    # 8,192 and 3,808 tokens: 2 x (0.01 + 0.005) + 2e-5 x 12,000
    assert model.ttft_s(10_000, 50_000, LIMITS, 0.0) == pytest.approx(0.27)
    assert model.ttft_s(10_000, 50_000, LIMITS, 0.5) == pytest.approx(0.015 + 2e-5 * 6000)


def test_the_best_rate_is_that_of_the_largest_batch_in_time():
    # 0.01 + b (2e-5 x 10 + 1e-7 x 1,050) is 0.01976 at 32 and 0.020065 at 33.
    assert a_model().best_rate(1000, 100, LIMITS, 0.0) == pytest.approx(32 / (100 * 0.01976))


def test_a_batch_is_bounded_by_the_cache():
    small = replace(LIMITS, kv_tokens=21_000)

    assert a_model().best_rate(1000, 100, small, 0.0) == pytest.approx(20 / (100 * 0.0161))


def counted(at_s, finished, **changes):
    answers = {"finished": [finished / 2] * 2, "input_tokens": [0, 0], "output_tokens": [0, 0]}
    return a_signal(2, at_s=at_s, **answers, **changes)


def test_throughput_divides_what_finished_by_what_is_believed_until_it_has_learned():
    rule, found = Planner(passes=lambda _: {}), []
    for at_s in (0.0, 90.0, 180.0, 270.0):
        rule.replicas(counted(at_s, 30 * at_s))
        found.append(rule.floor)

    # 30/s over 10/s
    assert found == [1, 1, 3, 3]


def by_load(passes, *, asked=None, ready=None, **modes):
    by_pod = {f"pod-{n}": each for n, each in enumerate(passes)}
    rule = Planner(model=a_model(), passes=lambda _: by_pod, **modes)
    asked = asked or len(passes)
    return rule.replicas(a_signal(asked, ready=ready))


def test_load_adds_one_where_all_engines_are_late():
    assert by_load([BUSY, BUSY, BUSY]) == 4
    assert by_load([BUSY, BUSY, CALM]) == 3


def test_load_takes_one_away_where_the_others_stay_well_within():
    assert by_load([CALM, CALM, CALM]) == 2
    assert by_load([CALM]) == 1


def test_load_leaves_what_would_not_fit_the_cache():
    # 80,000 x 3 / 2 is beyond 100,000.
    full = Pass(decode_tokens=80_000, num_decoding=40)

    assert by_load([full, full, full]) == 3


def test_load_waits_while_replicas_are_on_their_way():
    assert by_load([BUSY, BUSY], asked=3, ready=2) == 3


def test_throughput_is_a_floor_under_load():
    assert by_load([CALM, CALM, CALM], floor=3) == 3
