"""Waiting: for a place, for prefill, and how many replicas keep it short."""

import math
from dataclasses import replace

import pytest

from builders import a_replica, a_shard, a_sizing_request, a_workload, an_slo, decoding_only
from tonnage.catalog.models import built_in_model
from tonnage.sizing.bounded import bounded
from tonnage.sizing.crowd import crowd
from tonnage.sizing.errors import SLOInfeasibleError
from tonnage.sizing.gate import alike_exceedance, gated_wait, quiet_share
from tonnage.sizing.occupancy import Arrivals, Places, seen_scv
from tonnage.sizing.pace import pace_of
from tonnage.sizing.parallelism.shard import shard_of
from tonnage.sizing.plan import size
from tonnage.sizing.serving.load_line import LoadLine, line_used, load_line
from tonnage.sizing.serving.staffing import Team, replicas_for
from tonnage.sizing.serving.steady import load_at, places, ranks_together, steady_state
from tonnage.sizing.serving.ttft import own_prefill_s, ttft_exceedance, typical_ttft_s
from tonnage.sizing.split import Parallelism
from tonnage.sizing.stream import WorkStream
from tonnage.sizing.tails import Moments, capped_gamma, gamma_share
from tonnage.sizing.tpot import averaged, tpot_exceedance
from tonnage.sizing.workload import Demand, Lengths, Routing


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


def late(ttft_s, *, requests_per_s=1.0, replica=None, workload=None, slots=math.inf, **arrivals):
    """Return the share of the requests whose first token comes later than this."""
    load = load_at(
        replica or a_replica(),
        workload or a_workload(),
        Arrivals(requests_per_s=requests_per_s, **arrivals),
    )
    return ttft_exceedance(load, bounded(load, Places(slots=slots)), ttft_s)


def full_share(servers, offered):
    """Return the share of the time in which all servers are busy, each request alike."""
    return crowd(mean=offered, dispersion=1, places=servers, stay=offered / servers).full


@pytest.mark.parametrize(
    ("servers", "offered", "waits"),
    [(1, 0.5, 0.5), (2, 1, 1 / 3), (5, 4, 0.5541), (10, 8, 0.4092)],  # tables of Erlang's C
)
def test_independent_requests_find_all_places_taken_as_erlangs_tables_say(servers, offered, waits):
    assert full_share(servers, offered) == pytest.approx(waits, abs=1e-3)


def test_thousands_of_places_are_as_likely_full_as_in_the_square_root_limit():
    # [halfin1981] with 5,000 servers and 4,929 busy: b = 71 / sqrt(4929) = 1.011 gives 0.224.
    assert full_share(5000, 4929) == pytest.approx(0.224, abs=0.01)
    assert full_share(5000, 10) == 0


@pytest.mark.parametrize(
    ("share", "mean_wait"),
    [(0.5, 0.5), (0.8, 2.0), (0.9, 4.5)],  # M/D/1 with jobs of 1 s: rho / (2 (1 - rho))
)
def test_jobs_of_one_length_wait_as_long_as_behind_one_server(share, mean_wait):
    stream = WorkStream(jobs_per_s=share, mean_s=1, second_s2=1, third_s3=1)

    assert stream.wait_share() == share
    assert stream.wait_share() * stream.wait().mean == pytest.approx(mean_wait)


@pytest.mark.parametrize(
    ("time_s", "longer"),
    # P(wait > t) of M/D/1 at rho 1/2: 1 - (1 - rho) * sum (-rho (t - k))^k / k! * exp(rho (t - k))
    [(0.5, 0.3580), (1.0, 0.1756), (2.0, 0.0523), (3.0, 0.0149)],
)
def test_the_tail_of_their_wait_is_near_the_exact_one(time_s, longer):
    stream = WorkStream(jobs_per_s=0.5, mean_s=1, second_s2=1, third_s3=1)

    found = stream.wait_share() * stream.wait().exceedance(time_s)

    assert found == pytest.approx(longer, rel=0.12)


def test_bursts_make_jobs_wait_longer():
    smooth = WorkStream(jobs_per_s=0.5, mean_s=1, second_s2=1, third_s3=1)
    bursty = replace(smooth, arrival_scv=4)

    for stream, mean in ((smooth, 0.5), (bursty, 2.0)):  # (ca2 + cs2) / 2 * rho / (1 - rho)
        assert stream.wait_share() * stream.wait().mean >= mean * 0.999


def test_interruptions_take_their_share_of_the_whole_time():
    stream = WorkStream(jobs_per_s=0.25, mean_s=1, second_s2=1, third_s3=1)

    # 30 s of work take 40 s, 10 of which serve jobs; variance 30 * 0.25 / 0.75^3.
    stalls = stream.interruptions(30)

    assert stalls.mean == pytest.approx(10)
    assert stalls.variance == pytest.approx(17.78, abs=0.01)


@pytest.mark.parametrize(
    ("value", "beyond"),
    [(1, 0.3679), (2, 0.1353), (3, 0.0498), (4.6052, 0.01)],  # exp(-x)
)
def test_three_moments_give_an_exponential_tail(value, beyond):
    exponential = Moments(mean=1, variance=1, third=2)

    assert exponential.exceedance(value) == pytest.approx(beyond, rel=0.03)


def test_a_moment_of_a_rare_delay_is_that_of_the_delay_where_there_is_one():
    # One time in four a delay of 8: mean 2, variance 12, third moment 48.
    given = Moments(mean=2, variance=12, third=48).given_positive(0.25)

    assert (given.mean, given.variance, given.third) == (8, 0, 0)


def test_what_is_left_of_a_mixture_are_its_other_cases():
    # Three times in four 1, else 5: mean 2, variance 3, third central moment 6.
    whole = Moments(mean=1).mixed(Moments(mean=5), 0.25)
    rest = whole.without(Moments(mean=1), 0.75)

    assert (whole.mean, whole.variance, whole.third) == pytest.approx((2, 3, 6))
    assert (rest.mean, rest.variance, rest.third) == pytest.approx((5, 0, 0))


@pytest.mark.parametrize(
    ("shape", "value", "share"),
    [(1, 1, 0.6321), (3, 3, 0.5768), (0.5, 0.5, 0.6827), (100, 100, 0.5133)],  # chi-square tables
)
def test_a_gamma_variable_stays_below_a_value_as_often_as_tables_say(shape, value, share):
    assert gamma_share(shape, value) == pytest.approx(share, abs=2e-4)


def test_a_normal_variable_cut_off_at_its_highest_tenth_loses_a_sixth_of_its_variance():
    # E[min(Z, c)] = -density(c) + 0.1 c = -0.0474 at c = 1.2816; E of its square 0.8393.
    cut = capped_gamma(0.0, 0.1)

    assert cut.mean == pytest.approx(-0.0474, abs=0.01)
    assert cut.variance == pytest.approx(0.837, abs=0.01)
    assert cut.third < 0


def test_half_of_a_bursts_excess_follows_each_of_its_jobs():
    bursty = WorkStream(jobs_per_s=1, mean_s=0, second_s2=0, third_s3=0, arrival_scv=4)
    smooth = replace(bursty, arrival_scv=1)

    seen = [bursty.followers_within(time_s) for time_s in (0.01, 0.1, 1, 10, 100)]

    assert seen == sorted(seen)
    assert seen[-1] == pytest.approx(1.5, abs=0.01)  # (ca2 - 1) / 2
    assert smooth.followers_within(10) == 0


@pytest.mark.parametrize(("mean", "seen"), [(1e-6, 1), (1e6, 4)])
def test_a_short_stay_sees_no_bursts_and_a_long_one_all(mean, seen):
    assert seen_scv(4, mean) == pytest.approx(seen, rel=0.1)
    assert seen_scv(1, mean) == 1


def test_answers_of_one_token_behind_a_router_are_planned_for():
    workload = a_workload(prompt=Lengths(mean_tokens=20, p99_tokens=40), output_tokens=1)
    sizing = size(
        a_sizing_request(
            workload=workload,
            slo=an_slo(ttft_s=60, tpot_s=10),
            demand=Demand(requests_per_s=100_000),
            routing=Routing.LEAST_OUTSTANDING,
            arrival_scv=2.0,
        )
    )

    assert sizing.replicas > 1


def test_long_prompts_of_sparse_attention_cost_what_they_look_at():
    # DeepSeek V3.2 attends to 2,048 tokens: what it costs to look at all before grows no further.
    shape = built_in_model("DeepSeek-V3.2")
    shard = shard_of(
        shape, weights=shape.weight_format, kv_element_bytes=2, parallelism=Parallelism(tensor=8)
    )
    workload = a_workload(prompt=Lengths(mean_tokens=2000, p99_tokens=20_000))
    replica = a_replica(shard=shard)
    pace, idle = pace_of(replica, workload), steady_state(replica, workload, 1e-6)

    for tokens in (2000, 20_000):
        steps = math.ceil(tokens / replica.max_batched_tokens)
        own_s = own_prefill_s(replica, workload, idle, tokens) - steps * idle.step_s
        assert pace.prompt_s(tokens) == pytest.approx(own_s, rel=0.15)


def test_prompts_served_by_the_step_wait_for_its_rest_and_for_all_that_come_in_it():
    # Steps of 1 s and 0.5 prompts/s of 0.4 s: E[X] = 1.25, Var[X] = 0.5 * 0.16 * 1.25 / 0.96; the
    # mean wait is E[X^2] / E[X] * (1/2 + 0.2), that of prompts that meet no other half a step.
    work = WorkStream(jobs_per_s=0.5, mean_s=0.4, second_s2=0.16, third_s3=0.064)
    quiet = quiet_share(work, 1.0)

    met = gated_wait(work, 1.0)

    length_s = 1.25 + 0.5 * 0.16 * 1.25 / 0.96 / 1.25
    assert quiet == pytest.approx(math.exp(-0.5 * (1.5 + 0.4)) * math.exp(-0.25))
    assert quiet * 0.5 + (1 - quiet) * met.mean == pytest.approx(length_s * 0.7)


def test_prompts_of_one_length_wait_as_long_whichever_way_they_are_counted():
    work = WorkStream(jobs_per_s=0.5, mean_s=0.4, second_s2=0.16, third_s3=0.064)
    grid_s = [k / 50 for k in range(500)]

    mean_s = sum(alike_exceedance(work, 1.0, spare_s) for spare_s in grid_s) / 50

    assert mean_s == pytest.approx((1.25 + 0.5 * 0.16 / 0.96) * 0.7, abs=0.015)


def test_a_router_sends_no_prompts_to_an_engine_in_a_long_step():
    work = WorkStream(jobs_per_s=0.5, mean_s=1, second_s2=1, third_s3=1)

    assert gated_wait(work, 0.5, evened=0.9).mean < gated_wait(work, 0.5).mean


def test_numbers_more_even_than_chance_do_not_reach_places_far_above_them():
    # Binomial: at most mean / (1 - dispersion) = 8 at once.
    even = crowd(mean=4, dispersion=0.5, places=20, stay=0.5)

    assert even.full == 0
    assert even.below.mean == pytest.approx(4)
    assert even.below.variance == pytest.approx(2)


def test_a_mean_over_time_strays_less_the_longer_it_is():
    assert averaged(0) == 1
    assert averaged(2.0) == pytest.approx(0.5677, abs=1e-4)  # (2 - 1 + exp(-2)) / 2
    assert averaged(1000) < 0.01


@pytest.mark.parametrize(("sustained", "used"), [(0.9, 10), (1.1, 12)])
def test_the_load_line_of_places_for_all_is_shown_unless_more_is_sustained(sustained, used):
    line, roomy = (
        LoadLine(
            state=replace(steady_state(a_replica(), a_workload(), n), requests_per_s=n / 10),
            limited_by="TimePerOutputToken",
        )
        for n in (12, 10)
    )

    assert line_used(line, roomy, sustained).state.num_decoding == used


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
    assert late(0.030) == 1


def test_an_idle_replica_keeps_what_its_own_prefill_allows():
    assert late(0.060, requests_per_s=0.001) < 0.001


def test_long_prompts_count_as_often_as_they_come():
    spread = a_workload(prompt=Lengths(mean_tokens=2000, p99_tokens=8000))

    # 8,000 tokens, which one prompt in a hundred has, alone take 0.133 s; 0.136 s with half a step.
    assert late(0.136, workload=spread, requests_per_s=0.001) == pytest.approx(0.01, abs=0.001)


def test_places_for_fewer_than_come_are_refused():
    load = load_at(a_replica(), a_workload(), Arrivals(requests_per_s=5))

    assert load.num_decoding > 20
    assert bounded(load, Places(slots=20)) is None


def test_more_prefill_than_the_engine_can_do_is_refused():
    # 2,000 tokens of 16 GFLOP at 1 PFLOP/s: 0.032 s each.
    assert load_at(a_replica(), a_workload(), Arrivals(requests_per_s=31.3)) is None


class TestDataParallelRanks:
    """Eight ranks; of the 16 GFLOP of a token 10 are routed experts'."""

    def replica(self, **changes):
        split = Parallelism(data=8)
        return a_replica(shard=a_shard(expert_flop_per_token=10e9, parallelism=split), **changes)

    def test_work_on_one_prompt_as_its_own_rank_does(self):
        # 2,000 tokens: 6 GFLOP each on one rank and 10 GFLOP on eight, at 1 PFLOP/s.
        by_hand_s = 2000 * (6e9 + 10e9 / 8) / 1e15
        workload = a_workload()
        pace = pace_of(self.replica(), workload)
        idle = steady_state(self.replica(), workload, 1e-6)

        own_s = own_prefill_s(self.replica(), workload, idle, 2000)

        assert pace.prompt_s(2000) == pytest.approx(by_hand_s)
        assert own_s == pytest.approx(by_hand_s + 16e9 / 3e12, rel=1e-6)

    def test_are_all_held_up_by_the_prompts_of_each(self):
        load = load_at(self.replica(), a_workload(), Arrivals(requests_per_s=2))

        assert load.prefill_share == pytest.approx(8 * 2 * 2000 * 7.25e9 / 1e15)

    def test_decode_the_sequences_of_all_evenly(self):
        pace = pace_of(self.replica(), decoding_only(2000))

        # 16 GB of weights and the caches of four of 32 sequences.
        assert pace.decode_s(32) == pytest.approx((16e9 + 4 * 2000 * 131_072) / 3e12)

    def test_offer_their_places_together(self):
        room = places(self.replica(max_num_seqs=10), a_workload())

        assert room.slots == 80
        assert room.held == self.replica().sequences_held(2500)

    @pytest.mark.parametrize(
        ("chunks", "together"),
        [(0, 1), (0.5, 1.2707), (2, 2.3130), (20, 8)],  # x / (1 - exp(-x)), eight at most
    )
    def test_prefill_together_when_prompts_fall_into_one_step(self, chunks, together):
        assert ranks_together(chunks, 8) == pytest.approx(together, rel=1e-4)


def test_steps_that_are_filled_with_prompts_break_every_promise():
    replica = a_replica(max_batched_tokens=60)

    assert late(60, replica=replica, requests_per_s=6) == 1


@pytest.mark.parametrize("change", [{"requests_per_s": 2.5}, {"slots": 12}, {"scv": 4}])
def test_load_bursts_and_fewer_slots_make_requests_wait(change):
    usual = {"requests_per_s": 2, "slots": 14}

    assert late(0.2, **(usual | change)) > late(0.2, **usual)


def test_a_long_answer_sees_the_mean_and_a_short_one_may_not():
    def slow(output_tokens):
        workload = a_workload(output_tokens=output_tokens, output_second_moment=output_tokens**2)
        load = load_at(a_replica(), workload, Arrivals(requests_per_s=1000 / output_tokens))
        state = bounded(load, Places())
        return tpot_exceedance(load, state, 1.3 * load.mean_step_s)

    assert slow(100) > slow(400) > slow(1600)


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

        assert replicas_for(team, 3.01 * team.sustainable_requests_per_s(1)) == 4

    def test_bursty_arrivals_need_more(self):
        rate = 2 * a_team(ttft_s=0.2).sustainable_requests_per_s(1)

        assert replicas_for(a_team(ttft_s=0.2, arrival_scv=8), rate) > 2

    def test_a_router_that_knows_the_load_needs_fewer(self):
        shared = a_team(slots=24, routing=Routing.LEAST_OUTSTANDING)
        alone = replace(shared, routing=Routing.SERVICE)
        rate = 12 * alone.sustainable_requests_per_s(1)

        assert replicas_for(shared, rate) < replicas_for(alone, rate) == 12

    def test_no_number_of_replicas_that_sustain_nothing_is_asked_for(self):
        with pytest.raises(SLOInfeasibleError, match="no number of them helps"):
            replicas_for(a_team(ttft_s=0.001), 1)


class TestLongTails:
    def test_no_prompt_is_longer_than_the_engine_takes(self):
        cut = Lengths(mean_tokens=500, p99_tokens=7500, longest_tokens=8192)
        whole = Lengths(mean_tokens=500, p99_tokens=7500)

        assert cut.moment(6) <= 8192**6
        assert cut.moment(6) < whole.moment(6)
        assert cut.quantile(0.9999) == 8192

    def test_a_tail_far_beyond_the_limit_is_cut_not_counted(self):
        def asked(p99_tokens):
            prompt = Lengths(mean_tokens=500, p99_tokens=p99_tokens, longest_tokens=8192)
            workload = a_workload(prompt=prompt)
            return size(
                a_sizing_request(workload=workload, demand=Demand(requests_per_s=20))
            ).replicas

        assert asked(6000) <= asked(8000) <= 2 * asked(6000)

    def test_a_loose_tpot_beside_a_long_tail_is_sized(self):
        prompt = Lengths(mean_tokens=61, p99_tokens=900, longest_tokens=8192)
        workload = a_workload(prompt=prompt, output_tokens=151)

        sizing = size(a_sizing_request(workload=workload, slo=an_slo(ttft_s=0.5, tpot_s=0.2)))

        assert sizing.sustainable_requests_per_s > 0

    def test_more_demand_never_takes_fewer_replicas(self):
        workload = a_workload(prompt=Lengths(mean_tokens=2723.6), output_tokens=34.5)
        slo = an_slo(ttft_s=2, tpot_s=0.05, quantile=0.99)
        team = size(a_sizing_request(workload=workload, slo=slo)).team

        needed = [replicas_for(team, 0.5 * rate) for rate in range(1, 100)]

        assert needed == sorted(needed)
