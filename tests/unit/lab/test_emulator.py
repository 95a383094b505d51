"""The engine emulator: arguments, buckets, hidden constants, and the server over real HTTP."""

import asyncio
import contextlib
import json
import random
import re
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import ClientPayloadError
from aiohttp.test_utils import TestClient, TestServer

from tonnage.api.fields import ALLOWED_FLAGS
from tonnage.control.observe.starting import read_crash
from tonnage.engine.core import Engine
from tonnage.engine.limits import EngineLimits, LimitsError, RequestError
from tonnage.engine.table import RequestTable
from tonnage_lab.emulator.__main__ import build, drain, engine_limits, serve, work
from tonnage_lab.emulator.arguments import parse
from tonnage_lab.emulator.buckets import effective, parse_custom
from tonnage_lab.emulator.formula import formula_kv_tokens
from tonnage_lab.emulator.step import Prompt
from tonnage_lab.emulator.truth import EngineTruth, TruthError, kv_tokens, step_costs

LISTED = Path(__file__).parent / "data" / "vllm-0.33-metrics.txt"
FAST = {"per_step_s": 0.001}


def arguments(*flags):
    return parse(["serve", "meta/model", "--max-model-len", "256", "--max-num-seqs", "8", *flags])


def a_truth(**changes):
    return EngineTruth.from_dict({"kv_tokens": 4096, "step": FAST} | changes)


@contextlib.asynccontextmanager
async def a_server(*flags, truth=None, api_key=None):
    server, loop = build(arguments(*flags), truth or a_truth())
    server.ready = True
    stepper = asyncio.create_task(loop.run())
    async with TestClient(TestServer(server.application(api_key=api_key))) as client:
        client.emulator, client.loop_ = server, loop
        yield client
    stepper.cancel()


def sample(page, name, **labels):
    """Return the value of the one series with this name and these labels."""
    wanted = {f'{key}="{value}"' for key, value in labels.items()}
    (value,) = [
        float(line.rpartition(" ")[2])
        for line in page.splitlines()
        if re.match(rf"{re.escape(name)}[{{ ]", line) and all(each in line for each in wanted)
    ]
    return value


def families(page):
    """Return {family: (type, label names)} of a page; _created series are left out."""
    types = dict(re.findall(r"^# TYPE (vllm:\S+) (\w+)$", page, re.MULTILINE))
    found = {name: (kind, set()) for name, kind in types.items() if not name.endswith("_created")}
    for name, labels in re.findall(r"^(vllm:\w+)\{(.*)\} ", page, re.MULTILINE):
        family = name if name in found else re.sub(r"_(bucket|count|sum)$", "", name)
        if family in found:
            found[family][1].update(set(re.findall(r'(\w+)="', labels)) - {"le"})
    return found


def step_s(costs, prompts):
    """Return the seconds of the step that computes all prompts, and of the one after it."""
    table = RequestTable(prompts, [3] * len(prompts), [0] * len(prompts), [0.0] * len(prompts))
    limits = EngineLimits(
        max_num_seqs=len(costs.base_s) - 1,
        max_num_batched_tokens=sum(prompts),
        num_blocks=sum(prompts),
        block_size=16,
        max_model_len=1100,
    )
    engine = Engine(limits, costs, table)
    for number in range(table.size):
        engine.submit(number)
    return [engine.step(), engine.step()]


# Arguments


def test_arguments_are_those_of_vllm_serve():
    read = parse(
        [
            "serve",
            "meta/model",
            "--served-model-name",
            "a",
            "b",
            "--port",
            "9",
            "--max-model-len",
            "8K",
            "--max-num-seqs=37",
            "-tp",
            "2",
            "--max_num_batched_tokens",
            "2048",
            "--kv-cache-dtype",
            "fp8",
            "--no-enable-prefix-caching",
            "--gpu-memory-utilization",
            "0.9",
            "--shutdown-timeout",
            "45",
            "--enforce-eager",
            "--revision",
            "6f6073b",
            "--speculative-config",
            '{"method": "mtp", "num_speculative_tokens": 3}',
        ]
    )

    assert read.served_model_names == ("a", "b")
    assert (read.port, read.max_model_len, read.max_num_seqs) == (9, 8192, 37)
    assert (read.tensor_parallel_size, read.max_num_batched_tokens) == (2, 2048)
    assert (read.kv_cache_dtype, read.enable_prefix_caching) == ("fp8", False)
    assert (read.gpu_memory_utilization, read.shutdown_timeout_s) == (0.9, 45)
    assert (read.speculation.method, read.num_draft_tokens) == ("mtp", 3)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--max-seqs", "4"], "unrecognized arguments: --max-seqs 4"),
        (["--max-num-seq", "4"], "unrecognized arguments: --max-num-seq 4"),
        (["--max-num-seqs", "0"], "0 must be at least 1"),
        (["--kv-cache-dtype", "int3"], "invalid choice: 'int3'"),
        (["--gpu-memory-utilization", "1.2"], "above 0 and at most 1"),
        (["--custom-histogram-buckets", "{no json"], "custom-histogram-buckets"),
        (["--custom-histogram-buckets", '{"speed": [1]}'], "unknown bucket family 'speed'"),
        (["--speculative-config", "{no json"], "num_speculative_tokens"),
        (["--speculative-config", '{"method": "mtp"}'], "num_speculative_tokens"),
        (["--kv-transfer-config", "{no json"], "kv_connector"),
        (["--kv-transfer-config", '{"kv_connector": "C", "kv_role": "prefill"}'], "kv_role"),
    ],
)
def test_a_flag_that_vllm_does_not_know_or_take_exits_with_2_and_says_which(flags, message, capsys):
    with pytest.raises(SystemExit) as exit_:
        parse(["serve", "m", *flags])

    assert exit_.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("name", ALLOWED_FLAGS)
def test_every_flag_that_a_spec_may_hold_is_taken(name):
    is_boolean = name.startswith(("allow-", "enable-", "no-", "async-", "enforce-", "trust-"))
    value = "priority" if name == "scheduling-policy" else "x"

    assert parse(["serve", "m", f"--{name}" if is_boolean else f"--{name}={value}"]).model == "m"


def test_a_model_is_needed(capsys):
    with pytest.raises(SystemExit):
        parse(["serve"])

    assert "a model is needed" in capsys.readouterr().err


# Buckets


def test_a_custom_family_replaces_its_default_and_leaves_the_others():
    custom = parse_custom('{"inter_token_latency": [0.02, 0.03]}')
    bounds = effective(custom, max_model_len=4096)

    assert bounds["inter_token_latency"] == (0.02, 0.03)
    assert bounds["request_tokens"] == (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)
    assert bounds["iteration_tokens"][-2:] == (8192, 16384)
    assert bounds["request_latency"][0] == 0.3


@pytest.mark.parametrize("bounds", ["[]", "[0, 1]", "[2, 1]", "[1, 1]", '["1"]', "3", "[1, NaN]"])
def test_bounds_must_be_positive_finite_and_increasing(bounds):
    with pytest.raises(ValueError, match="strictly increasing"):
        parse_custom(f'{{"request_latency": {bounds}}}')


# Hidden constants


def test_the_linear_step_adds_its_parts():
    truth = a_truth(
        step={
            "per_step_s": 0.004,
            "per_sequence_s": 2e-5,
            "weight_read_s": 0.015,
            "kv_s_per_token": 4e-8,
            "prefill_s_per_token": 1e-4,
        }
    )

    costs = step_costs(truth, arguments("--max-num-seqs", "2"))

    # Prompts of 51 and 50 tokens, then each decodes once, over 52 and 51 tokens.
    assert step_s(costs, [51, 50]) == pytest.approx(
        [0.004 + 0.015 + 101 * 1e-4, 0.004 + 0.015 + 2 * 2e-5 + 103 * 4e-8]
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "TONNAGE_LAB_TRUTH="),
        ('{"kv_tokens": 4096}', "step"),
        ('{"kv_tokens": 4096, "step": {}, "speed": 1}', "speed"),
    ],
)
def test_a_wrong_truth_file_is_named_with_its_fault(tmp_path, content, message):
    path = tmp_path / "truth.json"
    path.write_text(content)

    with pytest.raises(TruthError, match=message):
        EngineTruth.load(path)


def test_a_step_of_no_known_form_is_refused():
    with pytest.raises(TruthError, match="'speed'; for the formula it needs gpu"):
        step_costs(a_truth(step={"speed": 1}), arguments())


def test_a_step_with_a_constant_that_does_not_exist_is_refused_by_its_name():
    with pytest.raises(TruthError, match="per_kilometre_s"):
        step_costs(a_truth(step=FAST | {"per_kilometre_s": 1}), arguments())


def test_an_engine_whose_cache_is_too_small_for_one_request_does_not_start():
    async def scenario():
        with pytest.raises(LimitsError, match="estimated maximum model length is 240"):
            build(arguments(), a_truth(kv_tokens=256))

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("truth", "cure"),
    [
        ({"state_blocks": 47}, "set --max-num-seqs to at most 47"),
        ({"kv_tokens": 256}, "set --max-model-len to at most 240"),
    ],
)
def test_what_vllm_refuses_once_it_has_loaded_is_refused_in_its_words(truth, cure):
    given = replace(arguments(), max_num_seqs=48)

    with pytest.raises(LimitsError) as refusal:
        engine_limits(given, a_truth(**truth))
    assert read_crash(f"ERROR tonnage_lab.emulator {refusal.value}").cures[0] == cure

    assert engine_limits(given, a_truth(state_blocks=48)).max_num_seqs == 48


# The server


def test_the_metrics_page_has_the_names_types_and_labels_of_a_real_one():
    listed = {}
    for line in LISTED.read_text().splitlines():
        if not line.startswith("#"):
            name, kind, labels = line.split(" ")
            listed[name] = (kind, set(labels.split(",")))

    async def scenario():
        work = {"weight_bytes": 1e9, "kv_bytes_per_token": 1e5, "flop_per_token": 2e9}
        async with a_server("--enable-mfu-metrics", truth=a_truth(work=work)) as client:
            return await (await client.get("/metrics")).text()

    assert families(asyncio.run(scenario())) == listed


def test_a_streamed_answer_has_one_event_for_each_token_then_usage_and_done():
    async def scenario():
        async with a_server() as client:
            response = await client.post(
                "/v1/completions",
                json={
                    "model": "meta/model",
                    "prompt": [1, 5, 6],
                    "max_tokens": 3,
                    "stream": True,
                    "stream_options": {"include_usage": True},
                    "ignore_eos": True,
                },
            )
            return response.content_type, await response.text()

    content_type, text = asyncio.run(scenario())
    *events, done = [line.removeprefix("data: ") for line in text.split("\n\n")[:-1]]
    pieces = [json.loads(event) for event in events]

    assert content_type == "text/event-stream"
    assert [piece["choices"][0]["finish_reason"] for piece in pieces[:3]] == [None, None, "length"]
    assert pieces[3]["usage"] == {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}
    assert done == "[DONE]"


def test_an_answer_that_is_not_streamed_comes_whole_and_is_counted():
    async def scenario():
        async with a_server() as client:
            response = await client.post(
                "/v1/completions", json={"prompt": "to be or not to be", "max_tokens": 5}
            )
            return await response.json(), await (await client.get("/metrics")).text()

    answer, page = asyncio.run(scenario())

    assert answer["usage"] == {"prompt_tokens": 6, "completion_tokens": 5, "total_tokens": 11}
    assert answer["choices"][0]["finish_reason"] == "length"
    assert sample(page, "vllm:request_success_total", finished_reason="length") == 1
    assert sample(page, "vllm:prompt_tokens_total") == 6
    assert sample(page, "vllm:generation_tokens_total") == 5
    assert sample(page, "vllm:inter_token_latency_seconds_count") == 4
    assert sample(page, "vllm:time_to_first_token_seconds_count") == 1
    assert sample(page, "vllm:iteration_tokens_total_count") == 5
    assert sample(page, "vllm:iteration_tokens_total_sum") == 11
    assert sample(page, "vllm:num_requests_running") == 0


def test_the_cache_is_described_as_vllm_does():
    async def scenario():
        async with a_server("--block-size", "32", "--kv-cache-dtype", "fp8") as client:
            return await (await client.get("/metrics")).text()

    page = asyncio.run(scenario())
    labels = {
        "num_gpu_blocks": "128",
        "block_size": "32",
        "kv_cache_size_tokens": "4096",
        "kv_cache_max_concurrency": "16.0",
        "cache_dtype": "fp8",
    }

    assert sample(page, "vllm:cache_config_info", **labels) == 1


@pytest.mark.parametrize(("name", "head_bytes"), [("fp8", 256), ("nvfp4", 144)])
def test_a_cache_of_another_type_has_room_for_more_tokens(name, head_bytes):
    llama = ["serve", "meta-llama/Llama-3.1-8B-Instruct", "--max-model-len", "8192"]
    wide, narrow = (
        formula_kv_tokens({"gpu": "B200"}, parse([*llama, "--kv-cache-dtype", each]))
        for each in ("auto", name)
    )

    assert narrow / wide == pytest.approx(512 / head_bytes, rel=1e-4)


def test_a_cached_share_of_prompts_shows_in_the_prefix_cache_counters():
    async def scenario():
        async with a_server(truth=a_truth(cached_prompt_fraction=0.5)) as client:
            await client.post("/v1/completions", json={"prompt": [1] * 100, "max_tokens": 2})
            return await (await client.get("/metrics")).text()

    page = asyncio.run(scenario())

    assert sample(page, "vllm:prompt_tokens_total") == 100
    assert sample(page, "vllm:prefix_cache_hits_total") == 50
    assert sample(page, "vllm:prompt_tokens_by_source_total", source="local_compute") == 50


def test_what_the_server_holds_a_request_for_is_in_the_ttft_and_in_no_queue():
    async def scenario():
        async with a_server(truth=a_truth(server_s=0.4)) as client:
            await client.post("/v1/completions", json={"prompt": [1], "max_tokens": 2})
            return await (await client.get("/metrics")).text()

    page = asyncio.run(scenario())

    ttft_s, queue_s = (
        sample(page, f"vllm:{name}_seconds_sum")
        for name in ("time_to_first_token", "request_queue_time")
    )
    assert ttft_s - queue_s > 0.4 > queue_s


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"prompt": [1] * 250, "max_tokens": 7}, 400, "maximum context length is 256"),
        ({"prompt": [1], "model": "other"}, 404, "`other` does not exist"),
        ({"prompt": []}, 400, "the prompt is empty"),
        ({"prompt": {"a": 1}}, 400, "prompt must be"),
        ({"prompt": [1], "max_tokens": 0}, 400, "max_tokens must be at least 1"),
        ({"prompt": [1], "n": 2}, 400, "only n = 1"),
        ([1], 400, "must be a JSON object"),
    ],
)
def test_a_wrong_request_gets_an_error_in_vllms_form(body, status, message):
    async def scenario():
        async with a_server() as client:
            response = await client.post("/v1/completions", json=body)
            return response.status, await response.json()

    got, answer = asyncio.run(scenario())

    assert got == answer["error"]["code"] == status
    assert message in answer["error"]["message"]


def test_a_body_that_is_no_json_is_a_bad_request():
    async def scenario():
        async with a_server() as client:
            return (await client.post("/v1/completions", data=b"{")).status

    assert asyncio.run(scenario()) == 400


def test_until_the_model_is_loaded_everything_answers_503():
    async def scenario():
        async with a_server() as client:
            client.emulator.ready = False
            return [(await client.get(path)).status for path in ("/health", "/metrics")]

    assert asyncio.run(scenario()) == [503, 503]


def test_models_and_version_are_served():
    async def scenario():
        async with a_server("--served-model-name", "short") as client:
            models = await (await client.get("/v1/models")).json()
            return models["data"][0], await (await client.get("/version")).json()

    model, version = asyncio.run(scenario())

    assert (model["id"], model["root"], model["max_model_len"]) == ("short", "meta/model", 256)
    assert version == {"version": "0.33.0"}


@pytest.mark.parametrize(
    ("path", "header", "status"),
    [
        ("/v1/models", None, 401),
        ("/v1/models", "Bearer other", 401),
        ("/v1/models", "Basic secret", 401),
        ("/v1/models", "Bearer secret", 200),
        ("/health", None, 200),
        ("/metrics", None, 200),
    ],
)
def test_an_api_key_is_asked_for_where_vllm_does(path, header, status):
    async def run():
        async with a_server(api_key="secret") as client:
            headers = {"Authorization": header} if header else {}
            return (await client.get(path, headers=headers)).status

    assert asyncio.run(run()) == status


@pytest.mark.parametrize(
    ("kind", "limit", "status"),
    [("tokens", "3", 503), ("tokens", "4", 200), ("reqs", "1", 503), ("reqs", "2", 200)],
)
def test_who_comes_while_that_much_is_queued_is_refused_and_counted(kind, limit, status):
    async def scenario():
        slow = a_truth(step={"per_step_s": 0.5})
        async with a_server(f"--max-num-queued-{kind}", limit, truth=slow) as client:
            asked = {"prompt": [1, 2, 3], "max_tokens": 1}
            first = asyncio.create_task(client.post("/v1/completions", json=asked))
            while not client.loop_.num_requests:
                await asyncio.sleep(0)
            second = await client.post("/v1/completions", json=asked)
            await first
            third = await client.post("/v1/completions", json=asked)
            return [second.status, third.status], await (await client.get("/metrics")).text()

    statuses, page = asyncio.run(scenario())

    refused = sample(page, "vllm:admission_rejections_total", reason=f"max_num_queued_{kind}")
    assert statuses == [status, 200]
    assert refused == statuses.count(503)


@pytest.mark.parametrize("flags", [(), ("--scheduling-policy", "priority")])
def test_the_oldest_is_admitted_first_also_by_priority_where_nobody_gives_priorities(flags):
    answered = []

    async def ask(client, name):
        await client.post("/v1/completions", json={"prompt": [1], "max_tokens": 1})
        answered.append(name)

    async def scenario():
        slow = a_truth(step={"per_step_s": 0.5})
        async with a_server("--max-num-seqs", "1", *flags, truth=slow) as client:
            asked = []
            for number, name in enumerate(("running", "first", "second"), 1):
                asked.append(asyncio.create_task(ask(client, name)))
                while client.loop_.engine.table.size < number:  # those that have ended, too
                    await asyncio.sleep(0)
                await asyncio.sleep(0.02)
            await asyncio.gather(*asked)

    asyncio.run(scenario())

    assert answered == ["running", "first", "second"]


def test_requests_spread_over_data_parallel_ranks():
    async def scenario():
        async with a_server("--data-parallel-size", "2") as client:
            body = {"prompt": [1], "max_tokens": 3}
            await asyncio.gather(*[client.post("/v1/completions", json=body) for _ in range(2)])
            return await (await client.get("/metrics")).text()

    page = asyncio.run(scenario())

    assert sample(page, "vllm:generation_tokens_total", engine="0") == 3
    assert sample(page, "vllm:generation_tokens_total", engine="1") == 3


def test_drain_waits_for_requests_in_flight_and_refuses_new_ones():
    async def scenario():
        async with a_server(truth=a_truth(step={"per_step_s": 0.01})) as client:
            request = client.post("/v1/completions", json={"prompt": [1], "max_tokens": 10})
            first = asyncio.create_task(request)
            while not client.loop_.num_requests:
                await asyncio.sleep(0)
            client.emulator.draining = True
            refused = await client.post("/v1/completions", json={"prompt": [1]})
            await drain(client.loop_, timeout_s=5)
            return refused.status, await (await first).json()

    refused, answer = asyncio.run(scenario())

    assert refused == 503
    assert answer["usage"]["completion_tokens"] == 10


def test_without_a_shutdown_timeout_requests_in_flight_are_aborted_and_counted():
    async def scenario():
        async with a_server(truth=a_truth(step={"per_step_s": 5.0})) as client:
            request = client.post("/v1/completions", json={"prompt": [1], "stream": True})
            response = await request
            while not client.loop_.num_requests:
                await asyncio.sleep(0)
            await drain(client.loop_, timeout_s=0)
            text = await response.text()
            return text, await (await client.get("/metrics")).text()

    text, page = asyncio.run(scenario())

    assert '"finish_reason":"abort"' in text
    assert sample(page, "vllm:request_success_total", finished_reason="abort") == 1


def test_a_client_that_goes_away_frees_its_place():
    async def scenario():
        async with a_server(truth=a_truth(step={"per_step_s": 0.01})) as client:
            body = {"prompt": [1], "max_tokens": 250, "stream": True}
            response = await client.post("/v1/completions", json=body)
            response.close()
            with contextlib.suppress(ClientPayloadError):
                await client.loop_.wait_until_idle()
            return await (await client.get("/metrics")).text()

    assert sample(asyncio.run(scenario()), "vllm:request_success_total", finished_reason="abort")


def test_latencies_on_the_page_are_those_of_the_hidden_step_time():
    async def scenario():
        async with a_server(truth=a_truth(step={"per_step_s": 0.02})) as client:
            await client.post("/v1/completions", json={"prompt": [1], "max_tokens": 21})
            return await (await client.get("/metrics")).text()

    page = asyncio.run(scenario())
    mean_s = sample(page, "vllm:inter_token_latency_seconds_sum") / 20

    # On a busy machine tokens are late, the first one too, which brings it nearer to the last.
    assert 0.016 < mean_s < 0.03


def test_hidden_constants_may_be_those_of_the_products_own_formula():
    flags = ["serve", "Qwen/Qwen3-8B", "--max-model-len", "8192", "--max-num-seqs", "64"]
    read = parse([*flags, "--max-num-batched-tokens", "8192"])
    slow, fast = (
        a_truth(kv_tokens=None, step={"gpu": "H200", "bandwidth_efficiency": efficiency})
        for efficiency in (0.3, 0.6)
    )
    slow_s, fast_s = (step_s(step_costs(truth, read), [1000] * 8)[-1] for truth in (slow, fast))

    # 8.19e9 parameters of two bytes read at 30 % of 4.8e12 B/s take 11.4 ms, and half at 60 %.
    assert slow_s - fast_s == pytest.approx(0.0057, rel=0.2)
    assert kv_tokens(slow, read) > 500_000


def test_drafts_of_draft_layers_and_of_ngrams_cost_what_the_formula_says():
    flags = ["serve", "Qwen/Qwen3-8B", "--max-model-len", "8192", "--max-num-seqs", "64"]
    config = '{"method": "ngram", "num_speculative_tokens": 7}'
    plain, drafting = parse(flags), parse([*flags, "--speculative-config", config])
    # Every flop takes time here: 64 sequences have 8 tokens verified each, not one.
    hidden = a_truth(step={"gpu": "H200", "compute_efficiency": 0.05, "overlap_power": None})
    plain_s, drafting_s = (step_costs(hidden, each).compute_s[64] for each in (plain, drafting))

    assert drafting_s == pytest.approx(8 * plain_s, rel=0.05)


# Speculation


DRAFTS = ["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 2}']


def test_where_every_draft_token_is_right_a_step_gives_all_of_them_and_one():
    async def scenario():
        truth = a_truth(acceptance_rate=1.0)
        async with a_server(*DRAFTS, truth=truth) as client:
            response = await client.post("/v1/completions", json={"prompt": [1], "max_tokens": 10})
            return await response.json(), await (await client.get("/metrics")).text()

    answer, page = asyncio.run(scenario())

    # The prefill gives the first token; three steps give three each.
    assert answer["usage"]["completion_tokens"] == 10
    assert sample(page, "vllm:generation_tokens_total") == 10
    assert sample(page, "vllm:iteration_tokens_total_count") == 4
    assert sample(page, "vllm:inter_token_latency_seconds_count") == 3
    assert sample(page, "vllm:spec_decode_num_drafts_total") == 3
    assert sample(page, "vllm:spec_decode_num_draft_tokens_total") == 6
    assert sample(page, "vllm:spec_decode_num_accepted_tokens_total") == 6
    for position in ("0", "1"):
        per_position = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
        assert sample(page, per_position, position=position) == 3


def test_where_none_is_right_each_step_gives_one_token():
    async def scenario():
        async with a_server(*DRAFTS) as client:
            body = {"prompt": [1], "max_tokens": 5, "stream": True}
            response = await client.post("/v1/completions", json=body)
            return await response.text(), await (await client.get("/metrics")).text()

    text, page = asyncio.run(scenario())

    assert text.count('" token"') == 5
    assert sample(page, "vllm:spec_decode_num_drafts_total") == 4
    assert sample(page, "vllm:spec_decode_num_accepted_tokens_total") == 0


def test_without_drafts_their_series_are_absent():
    async def scenario():
        async with a_server() as client:
            return await (await client.get("/metrics")).text()

    assert "spec_decode" not in asyncio.run(scenario())


# Prefill and decode apart


def a_role(kv_role):
    config = {"kv_connector": "NixlConnector", "kv_role": kv_role}
    return ["--kv-transfer-config", json.dumps(config)]


def by_source(page):
    """Return the prompt tokens that were counted, by where they came from."""
    return {
        source: sample(page, "vllm:prompt_tokens_by_source_total", source=source)
        for source in ("local_compute", "local_cache_hit", "external_kv_transfer")
    }


async def handed_over(prefill, prompt_tokens):
    """Return the parameters with which a proxy asks for the answer."""
    answer = await prefill.post(
        "/v1/completions",
        json={
            "prompt": [1] * prompt_tokens,
            "max_tokens": 1,
            "kv_transfer_params": {"do_remote_decode": True},
        },
    )
    told = (await answer.json()).get("kv_transfer_params")
    return told and told | {"remote_host": prefill.host, "remote_port": prefill.port}


async def one_short_of_capacity(client):
    """Return the page once a request waits for capacity."""
    reason = {"reason": "capacity"}
    async with asyncio.timeout(10):
        while True:
            page = await (await client.get("/metrics")).text()
            if sample(page, "vllm:num_requests_waiting_by_reason", **reason) == 1:
                return page


async def answered(decode, prompt_tokens, transfer):
    body = {"prompt": [1] * prompt_tokens, "max_tokens": 3, "kv_transfer_params": transfer}
    answer = await decode.post("/v1/completions", json=body)
    return await answer.json(), await (await decode.get("/metrics")).text()


def test_a_prompt_that_another_engine_has_read_is_taken_from_it_after_a_wait():
    async def scenario():
        slow = a_truth(transfer_s_per_token=0.002)
        async with (
            a_server(*a_role("kv_producer")) as prefill,
            a_server(*a_role("kv_consumer"), truth=slow) as decode,
        ):
            told = await handed_over(prefill, 100)
            asking = asyncio.create_task(answered(decode, 100, told))
            await asyncio.sleep(0.1)
            midway = await (await decode.get("/metrics")).text()
            return told, midway, *(await asking)

    told, midway, answer, page = asyncio.run(scenario())

    assert told["do_remote_prefill"]
    assert answer["usage"]["completion_tokens"] == 3
    assert by_source(page) == {
        "local_compute": 0,
        "local_cache_hit": 0,
        "external_kv_transfer": 100,
    }
    assert sample(page, "vllm:time_to_first_token_seconds_sum") >= 0.2
    assert sample(midway, "vllm:num_requests_waiting") == 1
    assert sample(midway, "vllm:num_requests_waiting_by_reason", reason="deferred") == 1
    assert sample(midway, "vllm:num_requests_waiting_by_reason", reason="capacity") == 0
    assert sample(page, "vllm:num_requests_waiting") == 0


def test_the_time_of_a_transfer_may_change_while_engines_run(tmp_path):
    async def scenario():
        file = tmp_path / "truth.json"
        file.write_text(json.dumps({"kv_tokens": 4096, "step": FAST}))
        async with (
            a_server(*a_role("kv_producer")) as prefill,
            a_server(*a_role("kv_consumer"), truth=EngineTruth.load(file)) as decode,
        ):
            _, fast = await answered(decode, 100, await handed_over(prefill, 100))
            slow = {"kv_tokens": 4096, "step": FAST, "transfer_s_per_token": 0.005}
            file.write_text(json.dumps(slow))
            return fast, *(await answered(decode, 100, await handed_over(prefill, 100)))

    fast, _, slow = asyncio.run(scenario())

    before, after = (sample(page, "vllm:time_to_first_token_seconds_sum") for page in (fast, slow))
    assert after - before >= 0.5


def test_a_cache_that_nobody_has_pulled_holds_its_blocks():
    async def scenario():
        flags = [*a_role("kv_producer"), "--max-num-batched-tokens", "2048"]
        async with a_server(*flags, truth=a_truth(kv_tokens=272)) as prefill:
            told = await handed_over(prefill, 160)
            second = asyncio.create_task(handed_over(prefill, 160))
            full = await one_short_of_capacity(prefill)
            is_waiting = not second.done()
            await prefill.delete(f"/kv/{told['remote_request_id']}")
            await second
            renewed = await prefill.post(f"/kv/{told['remote_request_id']}")
            return full, is_waiting, renewed.status

    full, is_waiting, status = asyncio.run(scenario())

    assert is_waiting
    assert sample(full, "vllm:kv_cache_usage_perc") == pytest.approx(10 / 16)
    assert sample(full, "vllm:num_requests_running") == 0
    assert status == 404


def test_an_engine_that_is_full_leaves_caches_where_they_are_until_it_has_room():
    async def scenario():
        one_that_is_long = ("--max-num-seqs", "1", "--max-model-len", "3200")
        slow = a_truth(step={"per_step_s": 0.01})
        async with (
            a_server(*a_role("kv_producer")) as prefill,
            a_server(*a_role("kv_consumer"), *one_that_is_long, truth=slow) as decode,
        ):
            first = await handed_over(prefill, 100)
            second = await handed_over(prefill, 100)
            body = {"prompt": [1] * 100, "max_tokens": 3000, "kv_transfer_params": first}
            long = asyncio.create_task(decode.post("/v1/completions", json=body))
            while not decode.loop_.engine.ranks[0].num_running:
                await asyncio.sleep(0.01)
            short = asyncio.create_task(answered(decode, 100, second))
            midway = await one_short_of_capacity(decode)
            kept = await prefill.post(f"/kv/{second['remote_request_id']}")
            decode.loop_.abort_all()
            _, page = await short
            gone = await prefill.post(f"/kv/{second['remote_request_id']}")
            await long
            return midway, kept.status, page, gone.status

    midway, kept, page, gone = asyncio.run(scenario())

    assert sample(midway, "vllm:num_requests_waiting_by_reason", reason="deferred") == 0
    assert (kept, gone) == (204, 404)
    assert by_source(page)["external_kv_transfer"] == 200


def test_an_engine_that_stops_waits_for_those_whose_cache_is_on_its_way():
    async def scenario():
        slow = a_truth(transfer_s_per_token=0.003)
        async with (
            a_server(*a_role("kv_producer")) as prefill,
            a_server(*a_role("kv_consumer"), truth=slow) as decode,
        ):
            told = await handed_over(prefill, 100)
            asking = asyncio.create_task(answered(decode, 100, told))
            while not decode.loop_.num_requests:
                await asyncio.sleep(0.01)
            await drain(decode.loop_, timeout_s=5)
            return await asking

    answer, _ = asyncio.run(scenario())

    assert answer["usage"]["completion_tokens"] == 3


def test_a_prompt_whose_cache_is_gone_is_computed():
    async def scenario():
        async with a_server(*a_role("kv_consumer")) as decode:
            async with a_server(*a_role("kv_producer")) as prefill:
                told = await handed_over(prefill, 100)
                await answered(decode, 100, told)
                again, page = await answered(decode, 100, told)
                left = await handed_over(prefill, 50)
            alone, last = await answered(decode, 50, left)
            await answered(decode, 50, {"do_remote_prefill": True})
            return again, page, alone, last

    again, page, alone, last = asyncio.run(scenario())

    assert again["usage"]["completion_tokens"] == alone["usage"]["completion_tokens"] == 3
    assert sample(page, "vllm:prompt_tokens_by_source_total", source="local_compute") == 100
    assert sample(last, "vllm:prompt_tokens_by_source_total", source="local_compute") == 150


def test_an_engine_without_a_connector_hands_nothing_over_and_takes_nothing():
    async def scenario():
        async with a_server() as client, a_server(*a_role("kv_producer")) as prefill:
            told = await handed_over(prefill, 100)
            return await handed_over(client, 100), *(await answered(client, 100, told))

    nothing, answer, page = asyncio.run(scenario())

    assert nothing is None
    assert answer["usage"]["completion_tokens"] == 3
    assert sample(page, "vllm:prompt_tokens_by_source_total", source="local_compute") == 200


# A cache in the host's memory


HELD = {"host_cached_prompt_fraction": 0.5, "transfer_s_per_token": 0.002}


def test_what_the_host_holds_of_a_prompt_is_read_from_it_after_a_wait():
    async def scenario():
        truth = a_truth(cached_prompt_fraction=0.2, **HELD)
        async with a_server("--kv-offloading-size", "4", truth=truth) as client:
            asking = asyncio.create_task(answered(client, 100, {}))
            await asyncio.sleep(0.05)
            midway = await (await client.get("/metrics")).text()
            return midway, *(await asking)

    midway, answer, page = asyncio.run(scenario())

    assert answer["usage"]["completion_tokens"] == 3
    assert by_source(page) == {
        "local_compute": 30,
        "local_cache_hit": 20,
        "external_kv_transfer": 50,
    }
    assert sample(page, "vllm:prefix_cache_hits_total") == 20
    assert sample(page, "vllm:external_prefix_cache_hits_total") == 50
    assert sample(page, "vllm:prompt_tokens_cached_by_source_total", source="host") == 50
    assert sample(page, "vllm:time_to_first_token_seconds_sum") >= 0.1
    assert sample(midway, "vllm:num_requests_waiting_by_reason", reason="deferred") == 1


@pytest.mark.parametrize("flags", [[], ["--kv-offloading-size", "4", "--no-enable-prefix-caching"]])
def test_without_such_a_cache_nothing_comes_from_the_host(flags):
    async def scenario():
        async with a_server(*flags, truth=a_truth(**HELD)) as client:
            return await answered(client, 100, {})

    _, page = asyncio.run(scenario())

    assert sample(page, "vllm:prompt_tokens_by_source_total", source="local_compute") == 100


# The loop and its rows


def a_loop(*flags, truth=None):
    _, loop = build(arguments(*flags), truth or a_truth(step={"per_step_s": 0.0}))
    return loop


def test_rows_of_requests_that_have_ended_are_used_again():
    async def scenario():
        loop = a_loop()
        stepper = asyncio.create_task(loop.run())
        tokens = []
        for _ in range(1500):
            loop.submit(Prompt(tokens=3), output_tokens=2, listener=tokens.append)
            await loop.wait_until_idle()
        stepper.cancel()
        return loop.engine.table, tokens

    table, tokens = asyncio.run(scenario())

    # 256 that have ended keep their row until more have; a table grows by doubling.
    assert table.capacity <= 512
    assert tokens == [None, "length"] * 1500


def test_each_client_gets_its_own_tokens_while_others_end_go_away_and_come():
    """The rows of the one are those of the other, a while later."""

    async def client(loop, chance, counts):
        output, patience = chance.randint(1, 12), chance.choice([3, 99])
        got, ended = [], asyncio.get_running_loop().create_future()

        def listen(reason):
            got.append(reason)
            if reason or len(got) == patience:
                ended.cancelled() or ended.done() or ended.set_result(reason)

        prompt = Prompt(tokens=chance.randint(1, 90))
        number = loop.submit(prompt, output_tokens=output, listener=listen)
        reason = await ended
        if reason is None:
            loop.abort(number)
        counts.append((len(got), min(output, patience + 1) if reason is None else output))

    async def crowd(loop, seed, counts):
        chance = random.Random(seed)  # noqa: S311 -- a scenario has no secrets
        for _ in range(120):
            await client(loop, chance, counts)

    async def scenario():
        counts = []
        loop = a_loop(truth=a_truth(kv_tokens=512, step={"per_step_s": 0.0}))
        stepper = asyncio.create_task(loop.run())
        await asyncio.gather(*[crowd(loop, seed, counts) for seed in range(12)])
        stepper.cancel()
        return loop, counts

    loop, counts = asyncio.run(scenario())
    (rank,) = loop.engine.ranks

    assert len(counts) == 12 * 120
    assert all(got == expected for got, expected in counts)
    assert loop.engine.table.size <= 300
    assert (rank.free_blocks, rank.num_running) == (rank.num_blocks, 0)
    assert loop.engine.num_outstanding == loop.num_requests == 0


def test_what_an_engine_can_never_serve_is_refused_by_its_loop():
    async def scenario():
        with pytest.raises(RequestError, match="exceed max_model_len"):
            a_loop().submit(Prompt(tokens=250), output_tokens=7, listener=lambda _: None)

    asyncio.run(scenario())


class TestSeveralNodes:
    def test_a_leader_whose_port_is_taken_ends_with_the_reason(self):
        with socket.create_server(("0.0.0.0", 0)) as taken:  # noqa: S104
            port = str(taken.getsockname()[1])
            nodes = arguments("--nnodes", "2", "--master-port", port, "--port", "0")

            with pytest.raises(OSError, match="address already in use"):
                asyncio.run(serve(nodes, a_truth()))

    def test_a_worker_whose_leader_cannot_have_such_a_name_ends_with_the_reason(self):
        flags = ("--nnodes", "2", "--node-rank", "1", "--headless", "--master-addr", "m" * 64)

        with pytest.raises(UnicodeError):
            asyncio.run(work(arguments(*flags)))
