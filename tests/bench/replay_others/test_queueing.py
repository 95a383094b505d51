import math
from dataclasses import replace

import pytest

from replay_others.inside import IdleRequest
from replay_others.wva_queueing import (
    QueueingModel,
    QueueServer,
    Speed,
    _means,
    first_guess,
    new_filter,
)
from rival_builders import FLAGS, a_signal
from tonnage.replay.baselines.wva import MeanRequest

SERVER = QueueServer(
    speed=Speed(alpha_s=0.01, beta_s=1e-5, gamma_s=1e-7),
    shape=MeanRequest(input_tokens=1000, output_tokens=100),
    max_batch=64,
)

ALONE = IdleRequest(input_tokens=2000, output_tokens=201, ttft_s=0.2, itl_s=0.01)


def test_a_step_costs_for_each_request_and_a_prompt_for_its_tokens():
    # 1e-5 x 1100 / 101 + 1e-7 x 1050 = 2.1391e-4 for each of ten
    assert SERVER.step_s(10) == pytest.approx(0.0121391, rel=1e-5)
    assert SERVER.prefill_s(10) == pytest.approx(0.0121391 + 1.01e-5 * 1000, rel=1e-5)
    assert SERVER.decode_s(10) == pytest.approx(0.0121391 + 1e-5 + 1.05e-4, rel=1e-5)
    assert SERVER.rate(10) == pytest.approx(10 / (0.0222391 + 100 * 0.0122541), rel=1e-5)


def test_a_request_alone_waits_for_nothing():
    found = SERVER.latencies(1e-6, SERVER.rates())

    # prefill(0) + decode(0); (prefill(1) + 100 decode(1) - prefill(0)) / 100
    assert found.ttft_s == pytest.approx(0.0201 + 0.010115, rel=1e-4)
    assert found.itl_s == pytest.approx((0.02031391 + 1.032891 - 0.0201) / 100, rel=1e-4)


def test_one_server_at_half_its_rate_has_one_request_in_the_mean():
    # rho / (1 - rho) = 1
    in_system, served, lost = _means(0.5, [1.0])

    assert (in_system, served) == pytest.approx((1.0, 0.5))
    assert lost < 1e-20


def test_a_large_batch_overflows_nothing():
    in_system, served, lost = _means(1e9, [1.0] * 1024)

    assert in_system == pytest.approx(1124, rel=1e-3)
    assert served == pytest.approx(1024, rel=1e-3)
    assert lost == pytest.approx(1.0, rel=1e-3)


def test_the_best_rate_is_the_highest_within_both_limits():
    best = SERVER.best_rate(ttft_s=1.0, itl_s=0.015)

    rates = SERVER.rates()
    assert SERVER.latencies(best, rates).itl_s == pytest.approx(0.015, rel=1e-4)
    assert SERVER.latencies(best, rates).ttft_s <= 1.0
    assert SERVER.best_rate(ttft_s=1.0, itl_s=math.inf) > best


def test_the_first_guess_explains_a_request_alone():
    found = first_guess(ALONE)

    # 0.9 x 0.01; 0.191 / 2000 = 9.55e-5; (0.001 - 9.55e-5) / 2100
    assert found.alpha_s == pytest.approx(0.009)
    assert found.gamma_s == pytest.approx(4.307e-7, rel=1e-3)
    assert found.beta_s + found.gamma_s == pytest.approx(9.55e-5)


def the_first_two(state):
    return state[0], state[1]


def test_an_observation_near_what_is_due_is_believed_by_how_sure_both_are():
    known = new_filter((1.0, 1.0, 1.0))

    # 0.0025 + 0.0025 of doubt, against (0.05 x 1.05 / 1.96)^2 = 7.175e-4 of error
    assert known.update((1.05, 1.0), the_first_two)
    assert known.state == pytest.approx([1 + 0.05 * 0.005 / 0.0057175, 1.0, 1.0], rel=1e-4)


def test_an_observation_far_from_it_is_refused_and_leaves_doubt():
    known = new_filter((1.0, 1.0, 1.0))

    # 1 / (0.005 + 0.0026) = 131
    assert not known.update((2.0, 1.0), the_first_two)
    assert known.state == [1.0, 1.0, 1.0]
    assert known.covariance[0][0] == pytest.approx(0.005)


def test_replicas_are_the_rate_over_the_best_rate():
    shape = {"input": [4000.0], "output": [402.0], "finished": [2.0]}
    rule = QueueingModel(share=1.0, scrape_interval_s=15, probe=lambda _: ALONE)
    assert rule.replicas(a_signal(2, **shape)) == 2

    found = rule.replicas(replace(a_signal(2, at_s=15, **shape), arrived=150))

    alpha_s, beta_s, gamma_s = rule.filter.state
    server = QueueServer(
        speed=Speed(alpha_s=alpha_s, beta_s=beta_s, gamma_s=gamma_s),
        shape=MeanRequest(input_tokens=2000, output_tokens=201),
        max_batch=FLAGS.max_num_seqs,
    )
    assert found == math.ceil(10 / server.best_rate(ttft_s=2.0, itl_s=0.05)) > 2
