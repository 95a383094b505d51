"""The load generator: who gets a request, what is recorded, and at which times they start."""

import asyncio
import random
import statistics
from contextlib import AsyncExitStack

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer, unused_port

from tonnage_lab.load_client import (
    Client,
    LengthDistribution,
    RequestRecord,
    RequestShape,
    attainment,
    quantile,
)
from tonnage_lab.load_endpoints import Endpoints, PodChoice, PodEndpoint, ready_endpoints

A, B = (PodEndpoint(address=f"10.244.0.{n}", port=8000, pod=f"pod-{n}") for n in (2, 6))


def a_generator(seed=0):
    return random.Random(seed)  # noqa: S311


def an_endpoint_slice(*endpoints, port=8000, port_name="http"):
    return {
        "metadata": {"name": "m-abc"},
        "ports": [{"name": port_name, "port": port}],
        "endpoints": [
            {
                "addresses": [address],
                "conditions": {"ready": ready},
                "targetRef": {"kind": "Pod", "name": pod},
            }
            for address, pod, ready in endpoints
        ],
    }


def a_record(**changes):
    defaults = {
        "start_s": 10.0,
        "prompt_tokens": 100,
        "output_tokens": 10,
        "status": 200,
        "ttft_s": 0.5,
        "tpot_s": 0.02,
        "e2e_s": 0.68,
        "pod": "a",
    }
    return RequestRecord(**(defaults | changes))


def a_shape(**changes):
    lengths = LengthDistribution(mean_tokens=3)
    defaults = {"model": "m", "prompt": lengths, "output": lengths}
    return RequestShape(**(defaults | changes))


def test_only_ready_endpoints_of_the_named_port_are_used():
    slices = [
        an_endpoint_slice(("10.244.0.6", "pod-6", True), ("10.244.0.10", "pod-10", False)),
        an_endpoint_slice(("10.244.0.2", "pod-2", True)),
        an_endpoint_slice(("10.244.0.14", "pod-14", True), port_name="metrics"),
    ]

    assert ready_endpoints(slices, port_name="http") == [A, B]


def test_a_service_without_ports_has_no_endpoints():
    assert ready_endpoints([{"metadata": {"name": "m"}, "ports": None, "endpoints": None}]) == []


def test_the_least_outstanding_endpoint_is_chosen():
    endpoints = Endpoints(ready=[A, B])
    endpoints.outstanding[A] = 2
    endpoints.outstanding[B] = 1

    assert endpoints.choose(PodChoice.LEAST_OUTSTANDING, a_generator(0)) == B


def test_random_routing_uses_every_endpoint():
    endpoints = Endpoints(ready=[A, B])
    generator = a_generator(0)

    assert {endpoints.choose(PodChoice.RANDOM, generator) for _ in range(50)} == {A, B}


def test_another_endpoint_is_chosen_for_a_second_try_when_there_is_one():
    both, one = Endpoints(ready=[A, B]), Endpoints(ready=[A])

    assert {both.choose(PodChoice.RANDOM, a_generator(n), but=A) for n in range(9)} == {B}
    assert one.choose(PodChoice.RANDOM, a_generator(0), but=A) == A
    assert Endpoints().choose(PodChoice.RANDOM, a_generator(0)) is None


def test_exponential_lengths_have_the_mean_and_keep_the_maximum():
    lengths = LengthDistribution(mean_tokens=200, exponential=True, maximum_tokens=1000)
    generator = a_generator(1)
    drawn = [lengths.draw(generator) for _ in range(4000)]

    # E[min(X, 1000)] = 200 * (1 - e**-5) = 198.7
    assert statistics.mean(drawn) == pytest.approx(198.7, rel=0.05)
    assert max(drawn) == 1000
    assert min(drawn) >= 1


def test_fixed_lengths_are_all_the_mean():
    assert LengthDistribution(mean_tokens=200).draw(a_generator(0)) == 200


def test_attainment_counts_what_was_due_in_the_window_and_failures_against_it():
    records = [
        a_record(),
        a_record(ttft_s=3.0),
        a_record(tpot_s=0.2),
        a_record(status=503, ttft_s=None, tpot_s=None, error="busy"),
        a_record(start_s=99.0, ttft_s=9.0),
    ]

    assert attainment(records, ttft_s=2, tpot_s=0.05, since_s=0, until_s=50) == 1 / 4


def test_an_answer_of_one_token_counts_with_a_time_per_token_of_none():
    one = run_client(as_asked, output=LengthDistribution(mean_tokens=1))

    assert (one.output_tokens, one.tpot_s) == (1, 0)
    assert attainment([one], tpot_s=0.01) == 1
    assert quantile([one.tpot_s] * 19 + [0.2], 0.95) == 0


def test_attainment_without_requests_is_missing_not_zero():
    assert attainment([a_record(start_s=10)], since_s=20) is None


def test_quantile_is_an_observed_value():
    assert quantile([1.0, 2.0, 3.0, 4.0], 0.5) == 2.0


def run_client(handler, *, dead=False, **changes):
    """Send one request to a server with this handler, with or without a dead endpoint beside it."""

    async def scenario():
        application = web.Application()
        application.router.add_post("/v1/completions", handler)
        async with TestServer(application) as server, ClientSession() as session:
            alive = PodEndpoint(address=server.host, port=server.port, pod="alive")
            gone = PodEndpoint(address=server.host, port=unused_port(), pod="gone")
            endpoints = Endpoints(ready=[alive])
            if dead:
                endpoints.ready = [gone, alive]
                endpoints.outstanding[alive] = 1
            client = Client(session, endpoints, a_shape(**changes))
            return await client.send(1000.0)

    return asyncio.run(scenario())


async def as_asked(request):
    asked = await request.json()
    assert len(asked["prompt"]) == 3
    response = web.StreamResponse()
    await response.prepare(request)
    for _ in range(asked["max_tokens"]):
        await response.write(b'data: {"choices":[{"finish_reason":null}]}\n\n')
    await response.write(b"data: [DONE]\n\n")
    return response


def test_a_streamed_answer_is_recorded_with_its_times_and_pod():
    record = run_client(as_asked)

    assert record.is_complete
    assert (record.prompt_tokens, record.output_tokens, record.pod) == (3, 3, "alive")
    assert record.start_s == 1000.0
    assert 0 < record.ttft_s <= record.e2e_s
    assert record.tpot_s >= 0


def test_a_refused_connection_is_tried_on_another_endpoint():
    record = run_client(as_asked, dead=True, routing=PodChoice.LEAST_OUTSTANDING)

    assert record.is_complete
    assert record.pod == "alive"


def test_an_error_answer_is_recorded_with_its_status_and_text():
    async def busy(_):
        return web.Response(status=503, text="busy")

    record = run_client(busy)

    assert (record.status, record.error, record.is_complete) == (503, "503: busy", False)
    assert record.ttft_s is None


def test_a_stream_that_breaks_off_is_a_failure():
    async def half(request):
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"data: {}\n\n")
        return response

    record = run_client(half)

    assert not record.is_complete
    assert record.error == "the stream broke off"


def test_an_answer_that_the_server_aborted_is_a_failure():
    async def aborted(request):
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b'data: {"choices":[{"finish_reason":"abort"}]}\n\n')
        await response.write(b"data: [DONE]\n\n")
        return response

    assert run_client(aborted).error == "1 of 3 tokens came"


def test_without_endpoints_the_request_fails_and_says_so():
    async def scenario():
        async with ClientSession() as session:
            return await Client(session, Endpoints(), a_shape()).send(5.0)

    record = asyncio.run(scenario())

    assert (record.status, record.error) == (None, "no endpoint is ready")


def test_no_two_prompts_are_alike_and_a_seed_decides_lengths_alone():
    async def prompts_of_a_run():
        prompts = []

        async def answer(request):
            prompts.append((await request.json())["prompt"])
            return web.Response(text="data: [DONE]\n\n")

        application = web.Application()
        application.router.add_post("/v1/completions", answer)
        async with TestServer(application) as server, ClientSession() as session:
            endpoint = PodEndpoint(address=server.host, port=server.port, pod="p")
            shape = a_shape(
                prompt=LengthDistribution(mean_tokens=40, exponential=True), vocab_size=1000
            )
            client = Client(session, Endpoints(ready=[endpoint]), shape)
            for _ in range(3):
                await client.send(5.0)
        return prompts

    first, second = asyncio.run(prompts_of_a_run()), asyncio.run(prompts_of_a_run())

    # Blocks of 16 equal tokens at the start would be served from the engine's prefix cache.
    assert len({tuple(each[:16]) for each in first + second}) == 6
    assert [len(each) for each in first] == [len(each) for each in second]
    assert all(100 <= token < 900 for each in first for token in each)


def run_through_both(*prefill):
    """Send one request through engines that read prompts with these handlers."""

    async def scenario():
        asked = []

        async def answer(request):
            asked.append((await request.json()).get("kv_transfer_params"))
            return await as_asked(request)

        async with AsyncExitStack() as servers, ClientSession() as session:

            async def endpoint(handler, pod):
                application = web.Application()
                application.router.add_post("/v1/completions", handler)
                server = await servers.enter_async_context(TestServer(application))
                return PodEndpoint(address=server.host, port=server.port, pod=pod)

            decode = Endpoints(ready=[await endpoint(answer, "decode")])
            readers = Endpoints(ready=[await endpoint(each, "prefill") for each in prefill])
            readers.outstanding.update({each: n for n, each in enumerate(readers.ready)})
            shape = a_shape(routing=PodChoice.LEAST_OUTSTANDING)
            return asked, await Client(session, decode, shape, readers).send(1000.0)

    return asyncio.run(scenario())


async def reads(_):
    return web.json_response({"kv_transfer_params": {"remote_request_id": "r"}})


async def fails(_):
    return web.Response(status=503)


@pytest.mark.parametrize(
    ("prefill", "passed_on"),
    [
        ([reads], {"remote_request_id": "r"}),
        ([fails, reads], {"remote_request_id": "r"}),
        ([fails, fails, reads], None),
        ([fails], None),
        ([], None),
    ],
)
def test_what_two_engines_do_not_read_is_answered_all_the_same(prefill, passed_on):
    asked, record = run_through_both(*prefill)

    assert asked == [passed_on]
    assert record.is_complete


def test_an_engine_that_keeps_no_cache_is_not_passed_over():
    async def keeps_none(_):
        return web.json_response({})

    asked, record = run_through_both(keeps_none)

    assert asked == []
    assert record.error == "prefill: KeyError('kv_transfer_params')"
