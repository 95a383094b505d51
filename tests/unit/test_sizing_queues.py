"""Waiting: for a slot, for prefill, and how many replicas keep it short."""

from dataclasses import replace

import pytest

from builders import a_replica, a_workload, an_slo
from tonnage.sizing.errors import SLOInfeasibleError
from tonnage.sizing.staffing import Team, replicas_for
from tonnage.sizing.steady import load_line, steady_state
from tonnage.sizing.ttft import (
    Queueing,
    erlang_c,
    keeps_ttft,
    own_prefill_s,
    ttft_exceedance,
    typical_ttft_s,
)
from tonnage.sizing.workload import Lengths, Promise, Routing


def a_team(*, ttft_s=2.0, routing=Routing.SERVICE, slots=64, arrival_scv=1.0):
    slo = an_slo(ttft_s=ttft_s, tpot_s=0.050)
    line = load_line(a_replica(), a_workload(), slo)
    return Team(
        replica=a_replica(),
        workload=a_workload(),
        slo=slo,
        line=line,
        slots=slots,
        routing=routing,
        arrival_scv=arrival_scv,
    )


@pytest.mark.parametrize(
    ("servers", "offered", "waits"),
    [(1, 0.5, 0.5), (2, 1, 1 / 3), (5, 4, 0.5541), (10, 8, 0.4092)],  # tables of Erlang's C
)
def test_erlangs_formula_agrees_with_its_tables(servers, offered, waits):
    assert erlang_c(num_servers=servers, offered=offered) == pytest.approx(waits, abs=1e-4)


@pytest.mark.parametrize("offered", [4, 5])
def test_everybody_waits_where_the_load_is_all_that_the_servers_do(offered):
    assert erlang_c(num_servers=4, offered=offered) == 1


def test_erlangs_formula_holds_for_thousands_of_servers():
    assert 0 < erlang_c(num_servers=5000, offered=4950) < 1
    assert erlang_c(num_servers=5000, offered=10) == 0


def test_a_prompt_alone_takes_its_own_work_and_one_read_of_the_weights():
    idle = steady_state(a_replica(), a_workload(), 0)

    prefill_s = own_prefill_s(a_replica(), a_workload(), idle, 2000)

    assert prefill_s == pytest.approx(2000 * 16e9 / 1000e12 + 16e9 / 3e12)


def test_a_prompt_beyond_the_budget_takes_a_step_for_each_chunk():
    replica = a_replica(max_batched_tokens=500)
    idle = steady_state(replica, a_workload(), 0)

    prefill_s = own_prefill_s(replica, a_workload(), idle, 2000)

    assert prefill_s == pytest.approx(2000 * 16e9 / 1000e12 + 4 * 16e9 / 3e12)


def test_cached_tokens_need_no_prefill():
    workload = a_workload(cached_fraction=0.75)
    idle = steady_state(a_replica(), workload, 0)

    prefill_s = own_prefill_s(a_replica(), workload, idle, 2000)

    assert prefill_s == pytest.approx(500 * 16e9 / 1000e12 + 16e9 / 3e12)


def test_a_promise_shorter_than_ones_own_prefill_is_always_broken():
    state = steady_state(a_replica(), a_workload(), 10)
    promise = Promise(quantile=0.95, limit_s=0.030)

    missed = ttft_exceedance(a_replica(), a_workload(), state, promise, Queueing(slots=64))

    assert missed == 1


def test_an_idle_replica_keeps_what_its_own_prefill_allows():
    idle = steady_state(a_replica(), a_workload(), 0)

    assert keeps_ttft(a_replica(), a_workload(), idle, an_slo(ttft_s=0.060), Queueing(slots=64))


def test_long_prompts_count_at_the_promised_quantile():
    spread = a_workload(prompt=Lengths(mean_tokens=2000, p99_tokens=8000))
    idle = steady_state(a_replica(), spread, 0)
    queueing = Queueing(slots=64)

    # 8,000 tokens alone take 0.133 s.
    for quantile, keeps in ((0.5, True), (0.99, False)):
        slo = an_slo(ttft_s=0.100, quantile=quantile)
        assert keeps_ttft(a_replica(), spread, idle, slo, queueing) is keeps


def test_fewer_slots_than_requests_in_flight_break_every_promise():
    state = steady_state(a_replica(), a_workload(), 20)

    assert not keeps_ttft(a_replica(), a_workload(), state, an_slo(ttft_s=60), Queueing(slots=20))


def test_more_prefill_than_the_engine_can_do_breaks_every_promise():
    replica = a_replica(max_batched_tokens=60)
    state = steady_state(replica, a_workload(), 40)

    assert not keeps_ttft(replica, a_workload(), state, an_slo(ttft_s=60), Queueing(slots=64))


def test_a_typical_first_token_waits_for_half_a_step():
    state = steady_state(a_replica(), a_workload(), 20)

    first_s = typical_ttft_s(a_replica(), a_workload(), state)

    own_s = own_prefill_s(a_replica(), a_workload(), state, 2000)
    assert first_s == own_s + state.step_s / 2


class TestReplicas:
    def test_without_demand_there_is_one(self):
        assert replicas_for(a_team(), 0) == 1

    def test_a_rate_of_exactly_three_replicas_needs_three(self):
        team = a_team()

        assert replicas_for(team, 3 * team.sustainable_requests_per_s(1)) == 3

    def test_a_little_more_needs_one_more(self):
        team = a_team()

        assert replicas_for(team, 3.001 * team.sustainable_requests_per_s(1)) == 4

    def test_bursty_arrivals_need_more(self):
        rate = 10 * a_team(ttft_s=0.2).sustainable_requests_per_s(1)

        assert replicas_for(a_team(ttft_s=0.2, arrival_scv=8), rate) > 10

    def test_a_router_that_knows_the_load_needs_fewer(self):
        shared = a_team(slots=24, routing=Routing.LEAST_OUTSTANDING)
        alone = replace(shared, routing=Routing.SERVICE)
        rate = 12 * alone.sustainable_requests_per_s(1)

        assert replicas_for(shared, rate) < replicas_for(alone, rate) == 12

    def test_no_number_of_replicas_that_sustain_nothing_is_asked_for(self):
        with pytest.raises(SLOInfeasibleError, match="no number of them helps"):
            replicas_for(a_team(ttft_s=0.001), 1)
