"""Both roles in sequence: what the client of a request sees of two queues and a link."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings

from builders import a_replica, a_shard, a_workload, an_slo
from strategies import numbers
from tonnage.sizing.parallelism.kv_share import KvShare
from tonnage.sizing.serving.handover import Roles, hand_over
from tonnage.sizing.split import Parallelism
from tonnage.sizing.workload import Routing
from trials import a_server_of, a_trial

FAST = 1e15


def latency(handover, quantile=0.5):
    return next(each for each in handover.result.latencies if each.quantile == quantile)


def some_roles(prefill, decode, **changes):
    roles = Roles(
        prefill=prefill, decode=decode, num_prefill=1, num_decode=1, link_bytes_per_s=FAST
    )
    return replace(roles, **changes)


def two_servers(prefill_s, decode_s, **changes):
    """Roles of one slot each, of which a request takes so many seconds, and their traffic."""
    first, second = a_server_of(prefill_s), a_server_of(decode_s)
    return second, some_roles(first.replica, second.replica, **changes)


def test_a_faster_server_behind_a_slower_one_never_makes_anybody_wait():
    slow, fast = two_servers(0.1, 0.1), two_servers(0.1, 0.02)

    for (trial, roles), own_s in ((slow, 0.1), (fast, 0.02)):
        handover = hand_over(trial, roles, 4.0)

        assert handover.held_s == pytest.approx(0.0, abs=1e-6)
        assert latency(handover).ttft_s >= 0.1 + own_s


def test_the_mean_wait_is_that_of_the_first_queue():
    # M/D/1 at 60 %: half of all come to a busy server and wait rho s / (2 (1 - rho)) in the mean.
    trial, roles = two_servers(0.1, 0.02)

    handover = hand_over(trial, roles, 6.0)

    assert latency(handover, 0.95).ttft_s == pytest.approx(0.12 + 0.30, rel=0.15)


def test_a_slower_server_behind_keeps_blocks_and_requests_waiting():
    trial, roles = two_servers(0.02, 0.1)

    handover = hand_over(trial, roles, 6.0)

    # M/D/1 again, nearly: the first server hardly changes how they come.
    assert handover.held_s == pytest.approx(0.6 * 0.1 / (2 * 0.4), rel=0.2)


def test_the_cache_of_a_prompt_takes_its_bytes_over_the_link():
    # 2,000 tokens of 128 KiB in blocks of 16.
    replica = a_replica(max_num_seqs=64)
    roles = some_roles(replica, replica, link_bytes_per_s=1e9)

    assert roles.sent_bytes(2000) == 2000 * 131_072
    assert roles.transfer_s(2000) == pytest.approx(0.262144)


def test_a_slow_link_makes_the_first_token_as_much_later():
    trial, replica = a_trial(), a_replica(max_num_seqs=64)
    roles = some_roles(replica, replica)

    fast, slow = (
        latency(hand_over(trial, replace(roles, link_bytes_per_s=link), 0.05))
        for link in (FAST, 1e9)
    )

    assert slow.ttft_s - fast.ttft_s == pytest.approx(0.262144, rel=0.02)
    assert slow.tpot_s == pytest.approx(fast.tpot_s, rel=0.02)


def test_decode_beside_no_prompts_is_as_fast_as_its_step():
    trial, replica = a_trial(), a_replica(max_num_seqs=64)

    beside, apart = (
        latency(hand_over(trial, some_roles(replica, replica), 3.0), 0.95),
        latency(hand_over(trial, some_roles(replica, replica), 0.05), 0.95),
    )

    assert apart.tpot_s < beside.tpot_s < 2 * apart.tpot_s


def test_a_link_that_is_too_slow_fills_the_cache_of_prefill_and_keeps_no_target():
    trial, replica = a_trial(), a_replica(max_num_seqs=64)

    handover = hand_over(trial, some_roles(replica, replica, link_bytes_per_s=0.3e9), 3.0)

    assert handover.prefill_kv_usage > 1
    assert handover.ratio > 1


def test_percentiles_of_two_queues_do_not_add_up():
    trial, roles = two_servers(0.1, 0.1, num_prefill=2, num_decode=2)

    handover = hand_over(trial, roles, 14.0)
    first = hand_over(trial, replace(roles, decode=a_server_of(1e-6).replica), 14.0)
    second = hand_over(trial, replace(roles, prefill=a_server_of(1e-6).replica), 14.0)

    together, added = (
        latency(handover, 0.95).ttft_s,
        latency(first, 0.95).ttft_s + latency(second, 0.95).ttft_s,
    )
    assert together < 0.9 * added


def test_each_of_many_replicas_does_as_one():
    replica = a_replica(max_num_seqs=64)
    few, many = (
        latency(hand_over(a_trial(), some_roles(replica, replica, num_prefill=n, num_decode=n), n))
        for n in (4, 64)
    )

    assert many.ttft_s == pytest.approx(few.ttft_s, rel=0.05)
    assert many.tpot_s == pytest.approx(few.tpot_s, rel=0.05)


@pytest.mark.parametrize("routing", Routing)
def test_each_rank_has_a_link_of_its_own(routing):
    # 250 MiB a prompt at 3 requests/s: one link is busy for 79 % of the time, two half as long.
    trial = replace(a_trial(), routing=routing)
    one, two = (
        a_replica(max_num_seqs=64, shard=a_shard(parallelism=Parallelism(data=ranks)))
        for ranks in (1, 2)
    )
    held_s = {
        name: hand_over(trial, some_roles(each, each, link_bytes_per_s=1e9), 3.0).held_s
        for name, each in (("one", one), ("two ranks", two))
    }

    assert held_s["two ranks"] < 0.75 * held_s["one"]


@pytest.mark.parametrize(("decode_bytes", "sent_bytes"), [(32_768, 131_072), (131_072, 524_288)])
def test_each_decode_rank_takes_its_part_or_a_copy_of_all(decode_bytes, sent_bytes):
    four = a_shard(parallelism=Parallelism(tensor=4), kv=(KvShare(bytes_per_token=decode_bytes),))
    roles = some_roles(a_replica(), a_replica(shard=four))

    assert roles.taken_bytes(1600) == 1600 * decode_bytes
    assert roles.sent_bytes(1600) == 1600 * sent_bytes


@settings(max_examples=10)
@given(numbers(1_000, 20_000), numbers(1.5, 20))
def test_a_faster_link_keeps_no_blocks_longer(link_bytes_per_s, factor):
    trial, roles = two_servers(0.02, 0.01)  # a block of one token has 16 bytes
    slow = replace(roles, link_bytes_per_s=link_bytes_per_s)
    fast = replace(slow, link_bytes_per_s=factor * link_bytes_per_s)

    assert hand_over(trial, fast, 10.0).held_s <= hand_over(trial, slow, 10.0).held_s


@pytest.mark.parametrize("quantile", [0.5, 0.99])
def test_more_traffic_makes_no_first_token_earlier(quantile):
    trial = a_trial(slo=an_slo(ttft_s=2, tpot_s=0.02, quantile=quantile))
    replica = a_replica(max_num_seqs=64)
    roles = some_roles(replica, replica)

    waits_s = [latency(hand_over(trial, roles, rate), quantile).ttft_s for rate in (0.5, 2.0, 4.0)]

    assert waits_s == sorted(waits_s)


def test_answers_of_one_token_have_no_tpot_to_miss():
    workload = a_workload(output_tokens=1, output_second_moment=1.0)
    trial = a_trial(workload=workload)
    replica = a_replica(max_num_seqs=64)

    handover = hand_over(trial, some_roles(replica, replica), 1.0)

    assert latency(handover).tpot_s is None
    assert math.isfinite(handover.held_s)
