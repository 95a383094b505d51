from collections import Counter
from dataclasses import replace
from itertools import count

import pytest

from changing_engines import ChangingCounters
from engine_builders import costs, limits, table
from stepped_page import Stepped
from tonnage.engine.chance import Chance
from tonnage.engine.core import Engine
from tonnage.replay.ground_truth import Machine
from tonnage.replay.prometheus import Ladders

LADDERS = Ladders(ttft_s=(0.05, 0.2, 1.0), tpot_s=(0.012, 0.015, 0.02))
LABELS = (("engine", "0"), ("model_name", "m"))
COSTS = costs(0.01, per_sequence_s=0.0005, kv_s_per_token=1e-6, prefill_s_per_token=1e-4)
ROOM = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "num_blocks": 400, "max_model_len": 256}
TIGHT = {**ROOM, "num_blocks": 30}


def requests_at(rate, number=120, seed=3):
    """Poisson arrivals of 20 to 99 prompt and 1 to 60 output tokens."""
    chance, at_s, rows = Chance(seed), 0.0, []
    for gap in chance.gamma_gaps(number, 1.0):
        at_s += gap / rate
        rows.append((at_s, 20 + int(80 * chance.share()), 1 + int(60 * chance.share()), 8))
    return rows


class Scraped:
    """The same requests given to an engine that is advanced, and scraped at any time."""

    def __init__(self, rows, bounds, the_costs=COSTS, ladders=LADDERS):
        self.rows, self.next = rows, 0
        self.limits, self.table = limits(**bounds), table(*rows)
        self.engine = Engine(self.limits, the_costs, self.table, 0)
        self.counters = ChangingCounters(
            self.engine, self.limits, model_name="m", kv_tokens=6400, ladders=ladders
        )

    def page(self, at_s):
        while self.next < len(self.rows) and self.rows[self.next][0] < at_s:
            self.engine.advance(self.rows[self.next][0])
            self.engine.submit(self.next)
            self.counters.note_request(self.next)
            self.next += 1
        self.engine.advance(at_s)
        page = self.counters.page(at_s)
        return {name: value for (name, labels), value in page.items() if labels == LABELS}, page


def both(rate, bounds):
    rows = requests_at(rate)
    stepped = Stepped(limits(**bounds), COSTS, table(*rows)).serve()
    scraped = Scraped(rows, bounds)
    end_s = stepped.notes[-1].at_s
    for index in count(1):
        at_s = index * 0.337
        yield stepped.at(at_s), *scraped.page(at_s)
        if at_s > end_s:
            return


EXACT = {
    "generation_tokens_total": "tokens",
    "inter_token_latency_seconds_count": "gaps",
    "iteration_tokens_total_count": "steps",
    "prompt_tokens_total": "prompt_tokens",
    "request_generation_tokens_sum": "finished_output",
    "request_generation_tokens_count": "finished",
    "num_requests_running": "running",
    "num_preemptions_total": "preemptions",
}


@pytest.mark.parametrize("rate", [3.0, 12.0, 30.0], ids=["idle at times", "busy", "overloaded"])
def test_counters_and_gauges_are_those_of_an_engine_that_is_stepped(rate):
    for noted, page, _ in both(rate, ROOM):
        found = {name: page[f"vllm:{name}"] for name in EXACT}
        assert found == {name: getattr(noted, told) for name, told in EXACT.items()}


@pytest.mark.parametrize("rate", [3.0, 12.0, 30.0], ids=["idle at times", "busy", "overloaded"])
def test_as_many_wait_as_at_an_engine_that_is_stepped_but_for_those_who_came_in_a_step(rate):
    # At 30/s and 20 ms a step 0.6 come in each, and the length of the last one is not known.
    differences = [
        page["vllm:num_requests_waiting"] - noted.waiting for noted, page, _ in both(rate, ROOM)
    ]

    assert max(map(abs, differences)) <= 3
    assert abs(sum(differences) / len(differences)) < 0.6


@pytest.mark.parametrize("rate", [3.0, 12.0, 30.0])
def test_gaps_between_tokens_add_up_to_those_of_an_engine_that_is_stepped(rate):
    for noted, page, _ in both(rate, ROOM):
        assert page["vllm:inter_token_latency_seconds_sum"] == pytest.approx(noted.gap_s)


def test_latencies_fall_into_the_buckets_of_an_engine_that_is_stepped():
    for noted, _, page in both(12.0, ROOM):
        for name, bounds, values in (
            ("time_to_first_token_seconds", LADDERS.ttft_s, noted.ttfts_s),
            ("request_time_per_output_token_seconds", LADDERS.tpot_s, noted.tpots_s),
        ):
            for bound in bounds:
                within = page[f"vllm:{name}_bucket", (*LABELS, ("le", str(bound)))]
                assert within == sum(value <= bound for value in values)
            assert page[f"vllm:{name}_bucket", (*LABELS, ("le", "+Inf"))] == len(values)


@pytest.mark.parametrize("server_s", [0.0, 0.7])
def test_times_to_the_first_token_are_of_the_queue_of_prefill_and_of_what_is_outside(server_s):
    scraped = Scraped(requests_at(30.0), ROOM, ladders=replace(LADDERS, server_s=server_s))
    page, _ = scraped.page(60.0)
    told = scraped.table
    waited_s = [told.started_s[n] - told.arrival_s[n] for n in range(told.size)]

    assert page["vllm:request_queue_time_seconds_count"] == told.size
    assert page["vllm:request_queue_time_seconds_sum"] == pytest.approx(sum(waited_s))
    assert sum(waited_s) > told.size * 0.1
    assert page["vllm:time_to_first_token_seconds_sum"] == pytest.approx(
        page["vllm:request_queue_time_seconds_sum"]
        + page["vllm:request_prefill_time_seconds_sum"]
        + server_s * told.size
    )


def test_queues_and_prompts_fall_into_the_buckets_of_the_engine():
    scraped = Scraped(requests_at(30.0), ROOM)
    _, page = scraped.page(60.0)
    told = scraped.table
    waited_s = [told.started_s[n] - told.arrival_s[n] for n in range(told.size)]

    for name, bounds, values in (
        ("request_queue_time_seconds", (0.3, 0.5, 1.0, 5.0, 7680.0), waited_s),
        ("request_prompt_tokens", (20.0, 50.0, 100.0, 1000.0), list(told.prompt_tokens)),
    ):
        found = [page[f"vllm:{name}_bucket", (*LABELS, ("le", str(bound)))] for bound in bounds]
        assert found == [sum(value <= bound for value in values) for bound in bounds]
        assert 0 < found[1] < told.size
        assert page[f"vllm:{name}_bucket", (*LABELS, ("le", "+Inf"))] == told.size


def test_only_a_promise_of_a_first_token_has_buckets_of_queues_and_prompts():
    scraped = Scraped(requests_at(3.0), ROOM, ladders=Ladders(ttft_s=(), tpot_s=(0.012,)))
    _, page = scraped.page(20.0)

    bounds = {
        name for name, labels in page if any(key == "le" and le != "+Inf" for key, le in labels)
    }
    assert bounds == {"vllm:request_time_per_output_token_seconds_bucket"}


def test_the_cache_is_as_full_as_that_of_an_engine_that_is_stepped():
    # A step's prompt tokens count from its start: 64 of them are 4 blocks of 400, and sequences in
    # steps under way hold half a block more or less.
    for noted, page, _ in both(12.0, ROOM):
        assert page["vllm:kv_cache_usage_perc"] == pytest.approx(noted.kv_usage, abs=0.02)


def test_preemptions_are_counted_and_tokens_stay_exact_through_them():
    pages = list(both(12.0, TIGHT))

    assert pages[-1][0].preemptions > 10
    for noted, page, _ in pages:
        assert page["vllm:generation_tokens_total"] == noted.tokens
        assert page["vllm:num_preemptions_total"] == pytest.approx(noted.preemptions, abs=2)
        assert page["vllm:inter_token_latency_seconds_sum"] == pytest.approx(noted.gap_s, rel=0.1)
    noted, page, _ = pages[-1]
    assert page["vllm:inter_token_latency_seconds_sum"] == pytest.approx(noted.gap_s)


@pytest.mark.parametrize("rate", [3.0, 30.0])
def test_what_was_submitted_has_ended_or_is_in_the_engine(rate):
    scraped = Scraped(requests_at(rate), ROOM)
    for index in range(1, 40):
        page, _ = scraped.page(index * 0.337)

        assert page["vllm:request_generation_tokens_count"] + scraped.engine.num_outstanding == (
            scraped.next
        )


@pytest.mark.parametrize("bounds", [ROOM, TIGHT], ids=["room", "preempting"])
def test_nothing_that_has_begun_is_missed_behind_what_waits(bounds):
    scraped, moves = Scraped(requests_at(30.0), bounds), Counter()
    for index in range(1, 60):
        page, _ = scraped.page(index * 0.337)
        told = scraped.table
        begun = [n for n in range(scraped.next) if told.emitted[n]]
        preempted = sum(told.preemptions[n] - moves[n] for n in range(scraped.next))

        assert page["vllm:time_to_first_token_seconds_count"] == len(begun)
        assert page["vllm:num_preemptions_total"] == preempted
        if index in {12, 13, 30}:
            before = list(told.preemptions)
            kind = replace(a_kind(COSTS), limits=limits(**bounds))
            scraped.engine = scraped.counters.go_on_with(kind, index * 0.337)
            moves.update({n: told.preemptions[n] - own for n, own in enumerate(before)})


def a_kind(the_costs, **changes):
    limited = limits(**ROOM | changes)
    return Machine(limits=limited, costs=the_costs, kv_tokens=6400, num_gpus=1)


def test_an_engine_whose_costs_become_the_same_ones_goes_on_as_if_nothing_had_been():
    rows = requests_at(12.0)
    kept, moved = Scraped(rows, ROOM), Scraped(rows, ROOM)
    for index in range(1, 45):
        kept.page(index * 0.337)
        moved.page(index * 0.337)
        if index == 12:
            moved.engine = moved.counters.go_on_with(a_kind(COSTS), index * 0.337)

    before, after = kept.page(30.0)[0], moved.page(30.0)[0]
    assert after["vllm:request_generation_tokens_count"] == len(rows)
    for name in ("generation_tokens_total", "prompt_tokens_total", "prompt_tokens_cached_total",
                 "num_preemptions_total"):  # fmt: skip
        assert after[f"vllm:{name}"] == before[f"vllm:{name}"]
    for name in ("inter_token_latency_seconds_sum", "time_to_first_token_seconds_sum",
                 "iteration_tokens_total_count"):  # fmt: skip
        assert after[f"vllm:{name}"] == pytest.approx(before[f"vllm:{name}"], rel=0.02)


def test_an_engine_that_becomes_half_as_fast_takes_twice_as_long_from_then_on():
    rows = [(0.001, 20, 201)]
    scraped = Scraped(rows, ROOM, costs(0.01))
    scraped.page(1.0)
    scraped.engine = scraped.counters.go_on_with(a_kind(costs(0.02)), 1.0)

    page, _ = scraped.page(10.0)

    # 99 tokens by 1.0 s (0.99 s of steps after 0.001), the other 102 at 0.02 s each.
    assert scraped.table.ended_s[0] == pytest.approx(0.001 + 0.99 + 102 * 0.02)
    assert page["vllm:generation_tokens_total"] == 201
    assert page["vllm:iteration_tokens_total_count"] == 201


def test_an_engine_that_becomes_half_as_fast_in_a_long_prompt_keeps_what_it_has_computed():
    bounds = {**ROOM, "max_model_len": 2000}
    scraped = Scraped([(0.001, 1280, 1)], bounds, costs(0.01))
    scraped.page(0.057)
    kind = replace(a_kind(costs(0.02)), limits=limits(**bounds))
    scraped.engine = scraped.counters.go_on_with(kind, 0.057)

    scraped.page(1.0)

    # 20 chunks: five have ended by 0.057 s, and the sixth counts from its start.
    assert scraped.table.cached_tokens[0] == 6 * 64
    assert scraped.table.ended_s[0] == pytest.approx(0.001 + 5 * 0.01 + 14 * 0.02)


@pytest.mark.parametrize(
    ("bound", "said"),
    [
        ({"num_ranks": 2}, "spec.hardware.gpusPerReplica: 2 data-parallel ranks"),
        ({"num_draft_tokens": 3}, "spec.engine.speculative: "),
    ],
)
def test_engines_with_ranks_or_drafts_are_refused_with_the_field_that_asks_for_them(bound, said):
    bounds = limits(**bound)
    engine = Engine(bounds, costs(), table((0.0, 10, 10)), 0)

    with pytest.raises(ValueError, match=said):
        ChangingCounters(engine, bounds, model_name="m", kv_tokens=1, ladders=LADDERS)
