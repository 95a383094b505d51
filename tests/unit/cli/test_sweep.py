"""The sweep's arithmetic: which loads, and how long a step of a batch took."""

import asyncio
from array import array
from dataclasses import replace

import pytest

from tonnage.cli.answers.loads import Hopes, Room, loads_for, repeats_of
from tonnage.cli.load.engine_page import read_page
from tonnage.cli.load.replaying import ReplayLimits, replay
from tonnage.cli.load.stream import RequestResult, RequestSize
from tonnage.cli.load.sweep import Load, plateau, sweep
from tonnage.cli.load.watch import Bounds, EngineWatch
from tonnage.replay.traces import Trace

LOAD = Load(kind="decode", sequences=2, prompt_tokens=100, output_tokens=41)
ROOM = Room(
    context_tokens=8192, max_concurrency=16, max_seconds=300, max_ttft_s=30, kv_tokens=1_000_000
)
QUICK = Hopes(seconds_of=lambda _: 0.1, ttft_of=lambda _: 0.1)


def an_answer(*, first_s, step_s=0.02, tokens=41, per_event=1):
    events = [first_s + step_s * per_event * k for k in range((tokens - 1) // per_event + 1)]
    return RequestResult(
        asked=RequestSize(prompt_tokens=100, output_tokens=tokens),
        due_s=0.0,
        status=200,
        output_tokens=tokens,
        event_s=array("d", events),
    )


@pytest.mark.parametrize("per_event", [1, 4])
def test_a_step_is_timed_while_all_decode(per_event):
    answers = [an_answer(first_s=1.0, per_event=per_event), an_answer(first_s=1.2, tokens=41)]

    measured = plateau(LOAD, answers)

    assert measured.seconds == pytest.approx(0.02)
    assert measured.num_steps == pytest.approx(30, abs=4)
    # From 1.2 to 1.8 s the first has 11 to 41 tokens out, the second 1 to 31.
    assert measured.context_tokens == pytest.approx(200 + 26 + 16, abs=4)


def test_a_batch_that_does_not_run_at_once_says_nothing():
    assert plateau(LOAD, [an_answer(first_s=1.0), an_answer(first_s=1.7)]) is None
    assert plateau(LOAD, [an_answer(first_s=1.0), an_answer(first_s=9.0)]) is None


def test_batches_grow_to_the_limit_and_differ_in_context_too():
    loads = loads_for(replace(ROOM, max_concurrency=24), QUICK)

    decode = [load for load in loads if load.kind == "decode"]
    assert [load.sequences for load in decode if load.prompt_tokens == 128] == [1, 2, 4, 8, 16, 24]
    assert [load.sequences for load in decode if load.prompt_tokens == 4096] == [8, 24]
    assert [load.prompt_tokens for load in loads if load.kind == "prefill"] == [16, 512, 1280, 2048]


def test_answers_outlast_the_prefill_of_the_others():
    longest = loads_for(ROOM, QUICK)[-1]

    steps_of_prefill = longest.sequences * longest.prompt_tokens / 2048
    assert longest.output_tokens >= steps_of_prefill + 16


def test_less_time_means_shorter_prompts_and_answers():
    def seconds(load):
        tokens = load.sequences * load.prompt_tokens + load.output_tokens
        return repeats_of(load) * tokens * 1e-3

    hopes = Hopes(seconds_of=seconds, ttft_of=lambda _: 0.1)
    ample, scarce = (loads_for(replace(ROOM, max_seconds=limit), hopes) for limit in (3000, 100))

    assert sum(map(seconds, ample)) > 2 * sum(map(seconds, scarce))
    assert sum(map(seconds, scarce)) <= 40


def test_no_load_comes_near_the_limit_of_a_first_token():
    def ttft(load):
        return load.sequences * load.prompt_tokens * 2e-3

    hopes = Hopes(seconds_of=ttft, ttft_of=ttft)
    loads = loads_for(replace(ROOM, max_ttft_s=10, max_seconds=9000), hopes)

    assert max(map(ttft, loads)) <= 3
    assert {load.sequences for load in loads} == {1, 2, 4, 8, 16}
    assert len({load.prompt_tokens for load in loads if load.sequences == 4}) == 2


def test_nothing_is_asked_that_the_engine_cannot_hold():
    small = replace(ROOM, context_tokens=512, kv_tokens=2000.0)

    for load in loads_for(small, QUICK):
        each = load.prompt_tokens + load.output_tokens
        assert each <= 512
        assert load.sequences * each <= 2000


class Slots:
    """An engine that runs two requests at once, 20 ms a step."""

    def __init__(self):
        self.batches = []

    def body(self, asked):
        return b""

    async def send(self, _, asked):
        if not self.batches or self.batches[-1][0] != asked or self.is_closed:
            self.batches.append((asked, []))
            self.is_closed = False
        batch = self.batches[-1][1]
        first_s = 1.0 + len(batch) // 2 * (asked.output_tokens + 1) * 0.02
        batch.append(first_s)
        await asyncio.sleep(0)
        self.is_closed = True
        events = array("d", [first_s + 0.02 * k for k in range(asked.output_tokens)])
        return RequestResult(
            asked=asked, due_s=0.9, status=200, output_tokens=asked.output_tokens, event_s=events
        )


def test_a_ladder_ends_where_requests_wait_and_is_measured_no_rung_twice():
    watch = EngineWatch(None, Bounds(max_ttft_s=99))
    told = []

    loads = loads_for(ROOM, QUICK)
    measured, remark = asyncio.run(sweep(loads, Slots(), watch, tell=told.append))

    batches = [(m.load.sequences, m.load.prompt_tokens) for m in measured if m.num_steps > 3]
    assert batches == [(1, 128), (2, 128), (2, 4096)]
    assert remark == "the engine does not run 4 requests at once"
    assert told[0] == "1/11 prefill of 16 tokens: 100.0 ms"


PAGE = """\
process_start_time_seconds 1.5e9
vllm:num_requests_running{engine="0"} 2
vllm:num_requests_running{engine="1"} 1
vllm:num_requests_waiting{engine="0"} NaN
vllm:request_success_total{engine="0",finished_reason="stop"} 5
vllm:request_success_total{engine="0",finished_reason="length"} 7
vllm:gpu_prefix_cache_queries_total{engine="0"} 100
vllm:cache_config_info{engine="0",kv_cache_size_tokens="None",gpu_memory_utilization="0.9"} 1
"""


def test_a_page_is_summed_over_its_labels_and_missing_stays_missing():
    page = read_page(PAGE)

    assert (page.running, page.waiting, page.succeeded) == (3, None, 12)
    assert (page.looked_up_tokens, page.cached_tokens) == (100, None)
    assert page.engines == {"0", "1"}
    assert page.servers == {"started 1500000000.00"}
    assert (page.kv_tokens, page.gpu_memory_utilization) == (None, 0.9)


@pytest.mark.parametrize("text", ["", "python_gc_objects_total 1\n", "<html>", "a{ 1\n"])
def test_another_page_is_no_engines(text):
    assert read_page(text) is None


class Instant:
    """Answers two tokens at once; never where the prompt has 13 tokens."""

    def __init__(self):
        self.asked = []

    def body(self, asked):
        return b""

    async def send(self, _, asked, *, due_s):
        self.asked.append(asked.prompt_tokens)
        if asked.prompt_tokens == 13:
            await asyncio.Event().wait()
        return RequestResult(
            asked=asked,
            due_s=due_s,
            status=200,
            output_tokens=2,
            event_s=array("d", [due_s + 0.1, due_s + 0.2]),
        )


def test_a_replay_is_bounded_and_tells_what_it_left_out():
    streamer = Instant()
    watch = EngineWatch(None, Bounds(max_ttft_s=9))
    trace = Trace(
        arrival_s=array("d", [100.0, 100.02, 100.04, 100.06, 200.0]),
        prompt_tokens=array("q", [1, 13, 999, 4, 5]),
        output_tokens=array("q", [2, 2, 2, 2, 2]),
    )
    limits = ReplayLimits(sending_s=0.2, draining_s=0.1, max_model_len=1000)

    sent = asyncio.run(replay(trace, streamer, watch, limits=limits, tell=print))

    assert streamer.asked == [1, 13, 4]
    assert [each.at_s for each in sent.requests] == pytest.approx((0, 0.02, 0.06))
    assert {number: each.asked.prompt_tokens for number, each in sent.ended.items()} == {0: 1, 2: 4}
    assert (sent.num_left, sent.num_too_long, sent.num_cut, sent.num_failed) == (1, 1, 1, 0)
    assert (watch.num_sent, watch.num_failed) == (3, 0)
